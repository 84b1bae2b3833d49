#include "sim/program/check.h"

#include "sim/program/check_parts.h"

void check_problem(GPtrArray *problems, const char *format, ...)
{
    va_list arguments;

    if (problems->len >= MAX_PROBLEMS)
        return;
    va_start(arguments, format);
    g_ptr_array_add(problems, g_strdup_vprintf(format, arguments));
    va_end(arguments);
}

/* What holds for the collectives of a step holds for those of a prologue and of an epilogue too:
 * the same programs with that list in place of the step. */
static void check_list(const ProgramSet *set, gsize list_offset, GPtrArray *problems)
{
    g_autofree Program *programs = g_new(Program, set->num_classes);
    g_autofree Program **classes = g_new(Program *, set->num_classes);
    ProgramSet view = *set;

    for (guint c = 0; c < set->num_classes; c++) {
        programs[c] = *set->classes[c];
        programs[c].step = G_STRUCT_MEMBER(CallList, set->classes[c], list_offset);
        classes[c] = &programs[c];
    }
    view.classes = classes;
    check_ranks(&view, problems);
}

GPtrArray *program_set_check(const ProgramSet *set, guint64 device_bytes)
{
    GPtrArray *problems = g_ptr_array_new_with_free_func(g_free);

    for (guint c = 0; c < set->num_classes; c++) {
        const Program *program = set->classes[c];

        if (device_bytes != 0 && program->arena_bytes[TIER_DEVICE] > device_bytes)
            check_problem(problems,
                          "class %u: an arena of %" G_GUINT64_FORMAT
                          " bytes does not fit in %" G_GUINT64_FORMAT,
                          c, program->arena_bytes[TIER_DEVICE], device_bytes);
        check_data(program, problems);
    }
    check_ranks(set, problems);
    if (problems->len == 0) {
        check_list(set, G_STRUCT_OFFSET(Program, prologue), problems);
        check_list(set, G_STRUCT_OFFSET(Program, epilogue), problems);
    }
    return problems;
}
