#include "exec/run/op_number.h"

static guint32 count_ops(const Program *program, const CallList *list)
{
    guint32 count = 0;

    for (guint c = 0; c < list->calls->len; c++)
        count += program_segment(program, g_array_index(list->calls, Call, c).segment)->num_ops;
    return count;
}

OpNumbers op_numbers(const Program *program)
{
    const guint32 epilogue = count_ops(program, &program->step);
    const guint32 prologue = epilogue + count_ops(program, &program->epilogue);

    return (OpNumbers){epilogue, prologue, prologue + count_ops(program, &program->prologue)};
}

gboolean op_number_find(const Program *program, guint32 number, const Call **call, const Op **op)
{
    const CallList *const lists[] = {&program->step, &program->epilogue, &program->prologue};

    for (guint l = 0; l < G_N_ELEMENTS(lists); l++)
        for (guint c = 0; c < lists[l]->calls->len; c++) {
            const Call *at = &g_array_index(lists[l]->calls, Call, c);
            const Segment *segment = program_segment(program, at->segment);

            if (number < segment->num_ops) {
                *call = at;
                *op = &segment->ops[number];
                return TRUE;
            }
            number -= segment->num_ops;
        }
    return FALSE;
}
