#include "exec/run/stream_groups.h"

#include <string.h>

/* The stream of that name among those that carry the purpose's collectives; MAX_STREAMS: none. */
static guint find_stream(const Program *program, const char *purpose, const char *name)
{
    for (guint s = 0; s < program->streams->len; s++) {
        const Stream *stream = program_stream(program, s);

        if (strcmp(stream->name, name) == 0 &&
            strcmp(program_stream_purpose(program, stream), purpose) == 0)
            return s;
    }
    return MAX_STREAMS;
}

/* Names of a purpose's streams in any class of ranks. */
static GPtrArray *stream_names(const ProgramSet *set, const char *purpose)
{
    GPtrArray *names = g_ptr_array_new();

    for (guint c = 0; c < set->num_classes; c++)
        for (guint s = 0; s < set->classes[c]->streams->len; s++) {
            const char *name = program_stream(set->classes[c], s)->name;

            if (find_stream(set->classes[c], purpose, name) == s &&
                !g_ptr_array_find_with_equal_func(names, name, g_str_equal, NULL))
                g_ptr_array_add(names, (gpointer)name);
        }
    return names;
}

/* The groups of one purpose, once more for that stream; this rank's goes to *own. */
static gboolean open_stream(Comm *comm, const GroupSet *groups, CommGroup **own, GError **error)
{
    for (guint g = 0; g < groups->groups->len; g++) {
        const Group *group = &g_array_index(groups->groups, Group, g);
        CommGroup *made = NULL;

        if (!comm->ops->group(comm, group->ranks, group->size, groups->purpose, &made, error))
            return FALSE;
        if (groups->of_rank[comm->rank] == (gint)g)
            *own = made;
    }
    return TRUE;
}

gboolean stream_groups_visit(const ProgramSet *set, Comm *comm, StreamGroupVisit visit,
                             gpointer data, GError **error)
{
    const Program *program = set->classes[set->class_of[comm->rank]];

    for (guint s = 0; s < set->group_sets->len; s++) {
        const GroupSet *of_purpose = &g_array_index(set->group_sets, GroupSet, s);
        g_autoptr(GPtrArray) names = stream_names(set, of_purpose->purpose);

        for (guint i = 0; i < names->len; i++) {
            const guint stream = find_stream(program, of_purpose->purpose, names->pdata[i]);
            CommGroup *own = NULL;

            if (!open_stream(comm, of_purpose, &own, error) ||
                (stream != MAX_STREAMS && own != NULL && !visit(data, stream, own, error)))
                return FALSE;
        }
    }
    return TRUE;
}

static gboolean keep(gpointer groups, guint stream, CommGroup *group, GError **error)
{
    (void)error;
    ((CommGroup **)groups)[stream] = group;
    return TRUE;
}

gboolean stream_groups_open(const ProgramSet *set, Comm *comm, CommGroup *groups[MAX_STREAMS],
                            GError **error)
{
    return stream_groups_visit(set, comm, keep, groups, error);
}
