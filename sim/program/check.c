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
    return problems;
}
