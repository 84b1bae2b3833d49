#include "exec/run/op_times.h"

static gsize times_bytes(const Program *program)
{
    g_autofree guint32 *first = program_first_ops(program);

    return first[program->step.calls->len] * sizeof(OpTime);
}

GPtrArray *op_times_gather(Interpreter *interpreter, guint ranks, GError **error)
{
    Runtime *runtime = interpreter_runtime(interpreter);
    const gboolean told = runtime_rank(runtime) < ranks;
    const gsize bytes = told ? times_bytes(interpreter_program(interpreter)) : 0;
    g_autoptr(GPtrArray) all = g_ptr_array_new_with_free_func((GDestroyNotify)g_bytes_unref);

    if (!runtime_gather(runtime, interpreter_times(interpreter), bytes, all, error))
        return NULL;
    if (all->len > ranks)
        g_ptr_array_set_size(all, (gint)ranks);
    return g_steal_pointer(&all);
}

static gboolean write_rank(const OpTime *times, const Program *program, guint rank,
                           const OpTimesPlace *place, GError **error)
{
    guint64 i = 0;

    for (guint c = 0; c < program->step.calls->len; c++) {
        const Call *call = &g_array_index(program->step.calls, Call, c);
        const Segment *segment = program_segment(program, call->segment);

        for (guint o = 0; o < segment->num_ops; o++, i++) {
            const Op *op = &segment->ops[o];
            g_autofree char *name = program_op_label(program, call, op);
            const StoreOp row = {
                .rank = rank,
                .step = place->step,
                .op = name,
                .stream = program_stream(program, op->stream)->name,
                .start = times[i].start_s,
                .end = times[i].end_s,
                .bytes = (double)op_volume_bytes(program, op),
                .flops = op_flops(op),
            };

            if (times[i].end_s > 0 && !store_add_op(place->store, place->run, &row, error))
                return FALSE;
        }
    }
    return TRUE;
}

gboolean op_times_write(const GPtrArray *times, const ProgramSet *set, const OpTimesPlace *place,
                        GError **error)
{
    for (guint rank = 0; rank < times->len; rank++) {
        const Program *program = set->classes[set->class_of[rank]];
        gsize bytes;
        const OpTime *own = g_bytes_get_data(times->pdata[rank], &bytes);

        g_assert(bytes == times_bytes(program));
        if (!write_rank(own, program, rank, place, error))
            return FALSE;
    }
    return TRUE;
}
