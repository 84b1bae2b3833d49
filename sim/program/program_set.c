/* All ranks: classes of equal programs, and the groups that communicate. */
#include "sim/program/program.h"

#include <string.h>

static void group_set_clear(gpointer data)
{
    GroupSet *groups = data;

    g_free(groups->purpose);
    g_free(groups->of_rank);
    g_array_unref(groups->groups);
    g_ptr_array_unref(groups->members);
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
        .members = g_ptr_array_new_with_free_func(g_free),
    };

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
    g_ptr_array_add(groups->members, group.ranks);
    for (guint i = 0; i < size; i++) {
        g_assert(ranks[i] < set->num_ranks && groups->of_rank[ranks[i]] == -1);
        groups->of_rank[ranks[i]] = (gint)groups->groups->len;
    }
    g_array_append_val(groups->groups, group);
}

/* Counts the members of each group, as its size. */
static void count_members(GroupSet *groups, const gint *first, guint num_ranks)
{
    for (guint rank = 0; rank < num_ranks; rank++) {
        const Group none = {.size = 0};

        if (first[rank] < 0)
            continue;
        g_assert((guint)first[rank] <= rank);
        if ((guint)first[rank] == rank) {
            groups->of_rank[rank] = (gint)groups->groups->len;
            g_array_append_val(groups->groups, none);
        }
        groups->of_rank[rank] = groups->of_rank[first[rank]];
        g_array_index(groups->groups, Group, (guint)groups->of_rank[rank]).size++;
    }
}

void program_set_add_groups(ProgramSet *set, const char *purpose, const gint *first)
{
    GroupSet *groups = add_purpose(set, purpose);
    guint *members = g_new(guint, set->num_ranks);

    count_members(groups, first, set->num_ranks);
    g_ptr_array_add(groups->members, members);
    for (guint g = 0; g < groups->groups->len; g++) {
        Group *group = &g_array_index(groups->groups, Group, g);

        group->ranks = members;
        members += group->size;
        group->size = 0;
    }
    for (guint rank = 0; rank < set->num_ranks; rank++) {
        if (groups->of_rank[rank] < 0)
            continue;
        Group *group = &g_array_index(groups->groups, Group, (guint)groups->of_rank[rank]);
        group->ranks[group->size++] = rank;
    }
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
