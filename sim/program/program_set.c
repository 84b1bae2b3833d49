/* All ranks: classes of equal programs, and the groups that communicate. */
#include "sim/program/program.h"

#include <string.h>

static void group_clear(gpointer data)
{
    g_free(((Group *)data)->ranks);
}

static void group_set_clear(gpointer data)
{
    GroupSet *groups = data;

    g_free(groups->purpose);
    g_free(groups->of_rank);
    g_array_unref(groups->groups);
}

ProgramSet *program_set_new(guint num_ranks)
{
    ProgramSet *set = g_new0(ProgramSet, 1);

    set->num_ranks = num_ranks;
    set->class_of = g_new0(guint, num_ranks);
    set->group_sets = g_array_new(FALSE, TRUE, sizeof(GroupSet));
    g_array_set_clear_func(set->group_sets, group_set_clear);
    return set;
}

void program_set_free(ProgramSet *set)
{
    if (set == NULL)
        return;
    for (guint i = 0; i < set->num_classes; i++)
        program_free(set->classes[i]);
    g_free(set->classes);
    g_free(set->class_of);
    g_array_unref(set->group_sets);
    g_free(set);
}

guint program_set_add_class(ProgramSet *set, Program *program)
{
    set->classes = g_renew(Program *, set->classes, set->num_classes + 1);
    set->classes[set->num_classes] = program;
    return set->num_classes++;
}

void program_set_assign(ProgramSet *set, guint rank, guint class_index)
{
    g_assert(rank < set->num_ranks && class_index < set->num_classes);
    set->class_of[rank] = class_index;
}

static GroupSet *find_purpose(const ProgramSet *set, const char *purpose)
{
    for (guint i = 0; i < set->group_sets->len; i++) {
        GroupSet *groups = &g_array_index(set->group_sets, GroupSet, i);

        if (strcmp(groups->purpose, purpose) == 0)
            return groups;
    }
    return NULL;
}

static GroupSet *add_purpose(ProgramSet *set, const char *purpose)
{
    GroupSet groups = {
        .purpose = g_strdup(purpose),
        .groups = g_array_new(FALSE, TRUE, sizeof(Group)),
        .of_rank = g_new(gint, set->num_ranks),
    };

    g_array_set_clear_func(groups.groups, group_clear);
    for (guint rank = 0; rank < set->num_ranks; rank++)
        groups.of_rank[rank] = -1;
    g_array_append_val(set->group_sets, groups);
    return &g_array_index(set->group_sets, GroupSet, set->group_sets->len - 1);
}

guint program_set_first_rank(const ProgramSet *set, guint class_index)
{
    guint rank = 0;

    while (set->class_of[rank] != class_index)
        rank++;
    return rank;
}

void program_set_add_group(ProgramSet *set, const char *purpose, const guint *ranks, guint size)
{
    GroupSet *groups = find_purpose(set, purpose);
    const Group group = {.size = size, .ranks = g_memdup2(ranks, size * sizeof *ranks)};

    if (groups == NULL)
        groups = add_purpose(set, purpose);
    for (guint i = 0; i < size; i++) {
        g_assert(ranks[i] < set->num_ranks && groups->of_rank[ranks[i]] == -1);
        groups->of_rank[ranks[i]] = (gint)groups->groups->len;
    }
    g_array_append_val(groups->groups, group);
}

const Group *program_set_group(const ProgramSet *set, const char *purpose, guint rank)
{
    const GroupSet *groups = find_purpose(set, purpose);

    if (groups == NULL || groups->of_rank[rank] < 0)
        return NULL;
    return &g_array_index(groups->groups, Group, (guint)groups->of_rank[rank]);
}

guint group_position(const Group *group, guint rank)
{
    for (guint i = 0; i < group->size; i++)
        if (group->ranks[i] == rank)
            return i;
    g_assert_not_reached();
}
