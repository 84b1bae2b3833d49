/* The interpreter's memory, groups and tables, and what of them others may see. */
#include "exec/run/interpreter_state.h"
#include "exec/run/stream_groups.h"
#include "exec/run/transfer.h"
#include "sim/base/error.h"

#include <string.h>

static const guint32 POISON = 0xFFA5FFA5u; /* a NaN as fp32, two NaNs as bf16 */

void *interpreter_tensor(Interpreter *interpreter, guint tensor, guint copy)
{
    const Tensor *at = program_tensor(interpreter->program, tensor);

    return interpreter->arena + interpreter->offset[tensor] + copy * at->stride;
}

void interpreter_write(Interpreter *interpreter, guint tensor, guint copy, TensorRange range,
                       const void *from)
{
    guint8 *at = interpreter_tensor(interpreter, tensor, copy);

    device_write(runtime_device(interpreter->runtime), at + range.offset, from, range.bytes);
}

void interpreter_read(Interpreter *interpreter, guint tensor, guint copy, TensorRange range,
                      void *to)
{
    const guint8 *at = interpreter_tensor(interpreter, tensor, copy);

    device_read(runtime_device(interpreter->runtime), to, at + range.offset, range.bytes);
}

/* ---- setting up ---- */

static gboolean open_arena(Comm *comm, gconstpointer job, GError **error)
{
    Interpreter *interpreter = *(Interpreter *const *)job;

    Device *device = runtime_device(interpreter->runtime);
    const guint64 bytes = interpreter->arena_bytes;
    const DeviceQueueOps *queues = device_queues(device);

    progress_begin(&comm->progress, LANE_COMMUNICATION, progress_at(0, PROGRESS_OPEN));
    interpreter->arena =
        queues == NULL ? comm->ops->alloc(comm, bytes, error) : queues->alloc(device, bytes, error);
    const gboolean ok = interpreter->arena != NULL &&
                        stream_groups_open(interpreter->set, comm, interpreter->groups, error);
    progress_end(&comm->progress, LANE_COMMUNICATION);
    if (!ok)
        return FALSE;
    for (guint s = 0; s < MAX_STREAMS; s++)
        if (interpreter->groups[s] != NULL)
            interpreter->groups[s]->stream = s;
    interpreter->on_device = comm->ops->takes_device_memory ||
                             (queues != NULL && runtime_size(interpreter->runtime) == 1);
    if (queues == NULL || interpreter->on_device)
        return TRUE;
    interpreter->staging = staging_new(device, comm, interpreter->program, error);
    return interpreter->staging != NULL;
}

static void count_ops(Interpreter *interpreter)
{
    interpreter->first_op = program_first_ops(interpreter->program);
    interpreter->numbers = op_numbers(interpreter->program);
    interpreter->ops_per_step = interpreter->first_op[interpreter->program->step.calls->len];
    interpreter->ordinals[0] = g_new0(guint64, interpreter->ops_per_step);
    interpreter->ordinals[1] = g_new0(guint64, interpreter->ops_per_step);
    interpreter->times = g_new0(OpTime, interpreter->ops_per_step);
}

/* State is zeroed, padding included; the rest keeps the poison until something is written. */
static void fill_arena(Interpreter *interpreter)
{
    const Program *program = interpreter->program;
    Device *device = runtime_device(interpreter->runtime);

    device_fill(device, interpreter->arena, POISON, interpreter->arena_bytes);
    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);
        const guint copies = g_array_index(program->spaces, Space, tensor->space).count;

        for (guint c = 0; tensor->persistence == PERSIST_STATE && c < copies; c++)
            device_fill(device, interpreter_tensor(interpreter, t, c), 0,
                        tensor_copy_bytes(tensor));
    }
}

/* Where tensors lie, and what check mode needs. */
static void lay_out(Interpreter *interpreter)
{
    const Program *program = interpreter->program;
    const gboolean check = interpreter->options.check;

    if (check) {
        interpreter->guard = arena_guard_new(program);
        interpreter->checker =
            checker_new(program, interpreter->guard, interpreter->rank, interpreter->options.seed);
        interpreter->agreement = agreement_new(interpreter->set, interpreter->rank);
    }
    interpreter->arena_bytes =
        check ? arena_guard_bytes(interpreter->guard) : program->arena_bytes[TIER_DEVICE];
    interpreter->offset = g_new(guint64, program->tensors->len);
    for (guint t = 0; t < program->tensors->len; t++)
        interpreter->offset[t] =
            check ? arena_guard_offset(interpreter->guard, t) : program_tensor(program, t)->offset;
}

/* A device has all of a step in its queues, unless a communicator moves host memory in it. */
static gboolean step_is_the_devices(const Interpreter *interpreter)
{
    const Program *program = interpreter->program;

    for (guint c = 0; c < program->step.calls->len && !interpreter->on_device; c++) {
        const Call *call = &g_array_index(program->step.calls, Call, c);
        const Segment *segment = program_segment(program, call->segment);

        for (guint i = 0; i < segment->num_ops; i++)
            if (op_kind_is_communication(segment->ops[i].kind))
                return FALSE;
    }
    return TRUE;
}

static gboolean open_graph(Interpreter *interpreter, GError **error)
{
    GraphMode mode = interpreter->options.graph;
    gint64 host = step_is_the_devices(interpreter) ? 0 : 1;

    /* Stages differ: what one rank's step has, another's may lack. */
    if (!runtime_agree_max(interpreter->runtime, &host, error))
        return FALSE;
    if (host != 0 && mode == GRAPH_ON)
        return fail(error, ERROR_INPUT,
                    "--cuda-graph on: a graph can't hold communication that passes through host "
                    "memory (here: %s); that takes NCCL",
                    runtime_transport(interpreter->runtime));
    interpreter->graph = step_graph_new(interpreter->runtime, mode, host == 0);
    return TRUE;
}

static gboolean open_events(Interpreter *interpreter, GError **error)
{
    Device *device = runtime_device(interpreter->runtime);

    if (device_queues(device) == NULL && interpreter->options.graph == GRAPH_ON)
        return fail(error, ERROR_INPUT, "--cuda-graph on: this plan's device is a CPU");
    if (device_queues(device) == NULL)
        return TRUE;
    interpreter->events = op_events_new(device, interpreter->program, interpreter->first_op, error);
    return interpreter->events != NULL && open_graph(interpreter, error);
}

Interpreter *interpreter_new(Runtime *runtime, const ProgramSet *set, GError **error)
{
    const InterpreterOptions options = {0};

    return interpreter_new_with(runtime, set, &options, error);
}

Interpreter *interpreter_new_with(Runtime *runtime, const ProgramSet *set,
                                  const InterpreterOptions *options, GError **error)
{
    g_autoptr(Interpreter) interpreter = g_new0(Interpreter, 1);
    Interpreter *self = interpreter;

    interpreter->runtime = runtime;
    if (runtime_size(runtime) != set->num_ranks) {
        fail(error, ERROR_INPUT, "the plan has %u ranks, this job %u", set->num_ranks,
             runtime_size(runtime));
        return NULL;
    }
    interpreter->options = *options;
    if (options->check && device_queues(runtime_device(runtime)) != NULL) {
        fail(error, ERROR_INPUT, "--check follows what a CPU does; this plan's device is another");
        return NULL;
    }
    interpreter->set = set;
    interpreter->rank = runtime_rank(runtime);
    interpreter->program = set->classes[set->class_of[interpreter->rank]];
    const Group *shard = program_set_group(set, "shard", interpreter->rank);
    interpreter->map_rank = shard == NULL ? 0 : group_position(shard, interpreter->rank);
    interpreter->own_chunks = transfer_own_chunks(interpreter->program, interpreter->map_rank);
    count_ops(interpreter);
    lay_out(interpreter);
    if (!runtime_do(runtime, open_arena, &self, sizeof self, error) ||
        !open_events(interpreter, error))
        return NULL;
    fill_arena(interpreter);
    if (interpreter->guard != NULL)
        arena_guard_attach(interpreter->guard, interpreter->arena, POISON);
    return g_steal_pointer(&interpreter);
}

/* What jobs may still use is used no more. */
static void close_device(Interpreter *interpreter)
{
    Device *device = runtime_device(interpreter->runtime);
    g_autoptr(GError) why = NULL;

    if (device_queues(device) == NULL)
        return;
    if (interpreter->events != NULL && !op_events_sync(interpreter->events, &why))
        g_debug("closing the interpreter: %s", why->message);
    step_graph_free(interpreter->graph);
    op_events_free(interpreter->events);
    staging_free(interpreter->staging);
    if (interpreter->arena != NULL)
        device_queues(device)->release(device, interpreter->arena);
}

void interpreter_free(Interpreter *interpreter)
{
    if (interpreter == NULL)
        return;
    close_device(interpreter);
    transfer_own_chunks_free(interpreter->own_chunks, interpreter->program);
    g_free(interpreter->first_op);
    g_free(interpreter->ordinals[0]);
    g_free(interpreter->ordinals[1]);
    g_free(interpreter->times);
    g_free(interpreter->offset);
    checker_free(interpreter->checker);
    arena_guard_free(interpreter->guard);
    agreement_free(interpreter->agreement);
    g_clear_error(&interpreter->found);
    g_free(interpreter);
}

/* ---- measuring ---- */

const OpTime *interpreter_times(const Interpreter *interpreter)
{
    return interpreter->sampled ? interpreter->times : NULL;
}

static guint64 touched_words(const guint8 *from, guint64 bytes)
{
    guint64 count = 0, i = 0;

    for (; i + sizeof POISON <= bytes; i += sizeof POISON)
        if (memcmp(from + i, &POISON, sizeof POISON) != 0)
            count += sizeof POISON;
    if (memcmp(from + i, &POISON, bytes - i) != 0) /* a last half word */
        count += bytes - i;
    return count;
}

static guint64 touched(const Interpreter *interpreter, const guint8 *from, guint64 bytes)
{
    enum { BLOCK = 1 << 20 };
    Device *device = runtime_device(interpreter->runtime);
    guint64 count = 0;

    if (device_queues(device) == NULL)
        return touched_words(from, bytes);
    g_autofree guint8 *block = g_malloc(BLOCK);
    for (guint64 done = 0; done < bytes; done += BLOCK) {
        const guint64 part = MIN(bytes - done, BLOCK);

        device_read(device, block, from + done, part);
        count += touched_words(block, part);
    }
    return count;
}

guint64 interpreter_touched_arena(const Interpreter *interpreter)
{
    return touched(interpreter, interpreter->arena, interpreter->arena_bytes);
}

guint64 interpreter_touched_tensor(const Interpreter *interpreter, guint tensor)
{
    const Tensor *at = program_tensor(interpreter->program, tensor);
    const guint copies = g_array_index(interpreter->program->spaces, Space, at->space).count;
    guint64 count = 0;

    for (guint c = 0; c < copies; c++)
        count +=
            touched(interpreter, interpreter->arena + interpreter->offset[tensor] + c * at->stride,
                    tensor_copy_bytes(at));
    return count;
}

/* ---- facts ---- */

const char *interpreter_graphs(const Interpreter *interpreter)
{
    return interpreter->graph == NULL ? NULL : step_graph_text(interpreter->graph);
}

Runtime *interpreter_runtime(const Interpreter *interpreter)
{
    return interpreter->runtime;
}

guint interpreter_position(const Interpreter *interpreter, const char *purpose, guint *size)
{
    const Group *group = program_set_group(interpreter->set, purpose, interpreter->rank);

    *size = group == NULL ? 1 : group->size;
    return group == NULL ? 0 : group_position(group, interpreter->rank);
}

guint interpreter_map_rank(const Interpreter *interpreter)
{
    return interpreter->map_rank;
}

const Program *interpreter_program(const Interpreter *interpreter)
{
    return interpreter->program;
}

const ProgramSet *interpreter_set(const Interpreter *interpreter)
{
    return interpreter->set;
}

gint interpreter_find(const Interpreter *interpreter, const char *name)
{
    for (guint t = 0; t < interpreter->program->tensors->len; t++)
        if (strcmp(program_tensor(interpreter->program, t)->name, name) == 0)
            return (gint)t;
    return NO_TENSOR;
}
