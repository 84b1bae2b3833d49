#include "sim/cost/spans.h"

guint *program_spans(const Program *program, const ProgramSpec *spec)
{
    guint *spans = g_new0(guint, program->groups->len + 1);

    for (guint g = 0; g < program->groups->len; g++)
        spans[g] = purpose_span(spec, g_array_index(program->groups, GroupRef, g).purpose);
    return spans;
}

guint span_of_reach(guint reach, guint size)
{
    return size == 1 ? 1 : (reach + size - 2) / (size - 1) * size;
}

static guint span_of(const Group *group)
{
    guint low = G_MAXUINT, high = 0;

    for (guint i = 0; i < group->size; i++) {
        low = MIN(low, group->ranks[i]);
        high = MAX(high, group->ranks[i]);
    }
    return span_of_reach(high - low, group->size);
}

guint *program_set_spans(const ProgramSet *set, guint class_index, guint rank)
{
    const GArray *groups = set->classes[class_index]->groups;
    guint *spans = g_new0(guint, groups->len + 1);

    for (guint g = 0; g < groups->len; g++)
        spans[g] =
            span_of(program_set_group(set, g_array_index(groups, GroupRef, g).purpose, rank));
    return spans;
}
