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

    return interpreter->tiers.base[at->tier] + interpreter->offset[tensor] + copy * at->stride;
}

gboolean interpreter_quiet(Interpreter *interpreter, GError **error)
{
    if (!runtime_quiet(interpreter->runtime, error))
        return FALSE;
    return interpreter->events == NULL || op_events_sync(interpreter->events, error);
}

/* The device's own copies wait for its ops; before those of another tier its copies are to end.  An
 * error is that of the next step. */
static Tier quiet_tier(Interpreter *interpreter, guint tensor)
{
    const Tier tier = program_tensor(interpreter->program, tensor)->tier;
    g_autoptr(GError) why = NULL;

    if (tier != TIER_DEVICE && !interpreter_quiet(interpreter, &why))
        g_debug("interpreter: %s", why->message);
    return tier;
}

void interpreter_write(Interpreter *interpreter, guint tensor, guint copy, TensorRange range,
                       const void *from)
{
    guint8 *at = interpreter_tensor(interpreter, tensor, copy);

    tiers_write(&interpreter->tiers, quiet_tier(interpreter, tensor), at + range.offset, from,
                range.bytes);
}

void interpreter_read(Interpreter *interpreter, guint tensor, guint copy, TensorRange range,
                      void *to)
{
    const guint8 *at = interpreter_tensor(interpreter, tensor, copy);

    tiers_read(&interpreter->tiers, quiet_tier(interpreter, tensor), to, at + range.offset,
               range.bytes);
}

/* ---- setting up ---- */

static gboolean open_arena(Comm *comm, gconstpointer job, GError **error)
{
    Interpreter *interpreter = *(Interpreter *const *)job;

    Device *device = runtime_device(interpreter->runtime);
    Tiers *tiers = &interpreter->tiers;
    const guint64 bytes = tiers->bytes[TIER_DEVICE];
    const DeviceQueueOps *queues = device_queues(device);

    progress_begin(&comm->progress, LANE_COMMUNICATION, progress_at(0, PROGRESS_OPEN));
    tiers->base[TIER_DEVICE] =
        queues == NULL ? comm->ops->alloc(comm, bytes, error) : queues->alloc(device, bytes, error);
    const gboolean ok = tiers->base[TIER_DEVICE] != NULL &&
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

static void choose_lanes(Interpreter *interpreter)
{
    const Program *program = interpreter->program;
    const guint32 files = program_file_streams(program);
    guint32 number = 0;

    for (guint s = 0; s < program->streams->len; s++)
        interpreter->lane[s] = s == COMPUTE_STREAM     ? LANE_COMPUTE
                               : (files >> s & 1) != 0 ? LANE_STORAGE
                                                       : LANE_COMMUNICATION;
    interpreter->op_lane = g_new(guint8, interpreter->ops_per_step + 1);
    for (guint c = 0; c < program->step.calls->len; c++) {
        const Segment *segment =
            program_segment(program, g_array_index(program->step.calls, Call, c).segment);

        for (guint i = 0; i < segment->num_ops; i++)
            interpreter->op_lane[number++] = (guint8)interpreter->lane[segment->ops[i].stream];
    }
    if (files != 0)
        runtime_start_storage(interpreter->runtime);
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
static void fill_arenas(Interpreter *interpreter)
{
    const Program *program = interpreter->program;
    Tiers *tiers = &interpreter->tiers;

    for (guint t = 0; t < NUM_TIERS; t++)
        if (tiers->bytes[t] > 0)
            tiers_fill(tiers, (Tier)t, tiers->base[t], POISON, tiers->bytes[t]);
    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);
        const guint copies = tensor_num_copies(program, tensor);

        for (guint c = 0; tensor->persistence == PERSIST_STATE && c < copies; c++)
            tiers_fill(tiers, tensor->tier, interpreter_tensor(interpreter, t, c), 0,
                       tensor_copy_bytes(tensor));
    }
}

/* Where tensors lie, and what check mode needs. */
static void lay_out(Interpreter *interpreter)
{
    const Program *program = interpreter->program;
    const gboolean check = interpreter->options.check;

    for (guint t = 0; t < NUM_TIERS; t++) {
        const gboolean guarded =
            check && (t == TIER_DEVICE || (t == TIER_HOST && program->arena_bytes[t] > 0));

        interpreter->guards[t] = guarded ? arena_guard_new(program, (Tier)t) : NULL;
        interpreter->tiers.bytes[t] =
            guarded ? arena_guard_bytes(interpreter->guards[t]) : program->arena_bytes[t];
    }
    if (check) {
        interpreter->checker =
            checker_new(program, interpreter->guards, interpreter->rank, interpreter->options.seed);
        interpreter->agreement = agreement_new(interpreter->set, interpreter->rank);
    }
    interpreter->offset = g_new(guint64, program->tensors->len);
    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);
        const ArenaGuard *guard = interpreter->guards[tensor->tier];

        interpreter->offset[t] = guard == NULL ? tensor->offset : arena_guard_offset(guard, t);
    }
}

/* What one rank could not make, all ranks leave for, and rank 0 says.  @why: this rank's, or NULL;
 * taken. */
static gboolean all_made(Interpreter *interpreter, GError *why, GError **error)
{
    g_autoptr(GError) own = why;
    g_autoptr(GPtrArray) all = g_ptr_array_new_with_free_func((GDestroyNotify)g_bytes_unref);
    const char *message = own == NULL ? "" : own->message;
    gint64 failed = own == NULL ? 0 : own->code + 1;

    if (!runtime_agree_max(interpreter->runtime, &failed, error))
        return FALSE;
    if (failed == 0)
        return TRUE;
    if (!runtime_gather(interpreter->runtime, message, strlen(message) + 1, all, error))
        return FALSE;
    for (guint r = 0; own == NULL && r < all->len; r++) {
        const char *said = g_bytes_get_data(all->pdata[r], NULL);

        if (said[0] != '\0')
            return fail(error, (ErrorCode)(failed - 1), "rank %u: %s", r, said);
    }
    return fail(error, (ErrorCode)(failed - 1), "%s",
                own == NULL ? "another rank failed" : message);
}

static gboolean open_tiers(Interpreter *interpreter, GError **error)
{
    GError *why = NULL;

    interpreter->tiers.device = runtime_device(interpreter->runtime);
    if (!tiers_open(&interpreter->tiers, interpreter->options.nvme_folder, &why))
        g_assert(why != NULL);
    return all_made(interpreter, why, error);
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

/* Why a step can't be a graph: the largest of all ranks' holds, since stages differ. */
typedef enum { GRAPH_POSSIBLE, COMMUNICATION_IN_HOST, STATE_IN_FILES } GraphObstacle;

static gboolean open_graph(Interpreter *interpreter, GError **error)
{
    static const char *const obstacles[] = {
        [COMMUNICATION_IN_HOST] = "communication passes through host memory",
        [STATE_IN_FILES] = "state of the nvme tier comes from files"};
    GraphMode mode = interpreter->options.graph;
    gint64 obstacle = interpreter->tiers.storage != NULL ? STATE_IN_FILES
                      : step_is_the_devices(interpreter) ? GRAPH_POSSIBLE
                                                         : COMMUNICATION_IN_HOST;

    if (!runtime_agree_max(interpreter->runtime, &obstacle, error))
        return FALSE;
    if (obstacle == COMMUNICATION_IN_HOST && mode == GRAPH_ON)
        return fail(error, ERROR_INPUT,
                    "--cuda-graph on: a graph can't hold communication that passes through host "
                    "memory (here: %s); that takes NCCL",
                    runtime_transport(interpreter->runtime));
    if (obstacle == STATE_IN_FILES && mode == GRAPH_ON)
        return fail(error, ERROR_INPUT,
                    "--cuda-graph on: a graph can't hold copies to and from files (the nvme tier)");
    interpreter->graph = step_graph_new(interpreter->runtime, mode, obstacles[obstacle]);
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

/* All ranks alike. */
static gboolean open_attention(Interpreter *interpreter, GError **error)
{
    const AttentionMode mode = interpreter->options.attention;
    Device *device = runtime_device(interpreter->runtime);
    const DeviceQueueOps *queues = device_queues(device);
    g_autoptr(GError) why = NULL;

    if (queues == NULL)
        return mode != ATTENTION_BY_CUDNN ||
               fail(error, ERROR_INPUT, "--attention cudnn: this plan's device is a CPU");
    const char *library = mode == ATTENTION_BY_OWN
                              ? queues->library_attention(device, NULL, 0, NULL)
                              : device_library_attention(device, interpreter->program, &why);
    gint64 own = library == NULL;
    if (!runtime_agree_max(interpreter->runtime, &own, error))
        return FALSE;
    if (own && library != NULL) {
        queues->library_attention(device, NULL, 0, NULL);
        fail(&why, ERROR_RUNTIME, "another rank can't use it");
    }
    if (own && mode == ATTENTION_BY_CUDNN)
        return fail(error, ERROR_RUNTIME, "--attention cudnn: %s", why->message);
    interpreter->attention = !own ? g_strdup(library)
                             : why == NULL
                                 ? g_strdup("own kernels")
                                 : g_strdup_printf("own kernels (cuDNN: %s)", why->message);
    return TRUE;
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
    choose_lanes(interpreter);
    lay_out(interpreter);
    if (!open_attention(interpreter, error) || !open_tiers(interpreter, error) ||
        !runtime_do(runtime, open_arena, &self, sizeof self, error) ||
        !open_events(interpreter, error))
        return NULL;
    fill_arenas(interpreter);
    for (guint t = 0; t < NUM_TIERS; t++)
        if (interpreter->guards[t] != NULL)
            arena_guard_attach(interpreter->guards[t], interpreter->tiers.base[t], POISON);
    return g_steal_pointer(&interpreter);
}

/* A step that was not drained may still copy to a tier that goes. */
static void quiet_copies(Interpreter *interpreter)
{
    const Tiers *tiers = &interpreter->tiers;
    g_autoptr(GError) why = NULL;

    if ((tiers->base[TIER_HOST] != NULL || tiers->base[TIER_NVME] != NULL) &&
        !interpreter_quiet(interpreter, &why))
        g_debug("closing the interpreter: %s", why->message);
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
    if (interpreter->tiers.base[TIER_DEVICE] != NULL)
        device_queues(device)->release(device, interpreter->tiers.base[TIER_DEVICE]);
}

void interpreter_free(Interpreter *interpreter)
{
    if (interpreter == NULL)
        return;
    quiet_copies(interpreter);
    close_device(interpreter);
    tiers_close(&interpreter->tiers);
    transfer_own_chunks_free(interpreter->own_chunks, interpreter->program);
    g_free(interpreter->attention);
    g_free(interpreter->rounding);
    g_free(interpreter->first_op);
    g_free(interpreter->ordinals[0]);
    g_free(interpreter->ordinals[1]);
    g_free(interpreter->op_lane);
    g_free(interpreter->times);
    g_free(interpreter->offset);
    checker_free(interpreter->checker);
    for (guint t = 0; t < NUM_TIERS; t++)
        arena_guard_free(interpreter->guards[t]);
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

    for (guint32 word; i + sizeof word <= bytes; i += sizeof word) {
        memcpy(&word, from + i, sizeof word); /* a call of memcmp for each would cost more */
        count += word != POISON ? sizeof word : 0;
    }
    if (memcmp(from + i, &POISON, bytes - i) != 0) /* a last half word */
        count += bytes - i;
    return count;
}

static guint64 touched(Interpreter *interpreter, Tier tier, const guint8 *from, guint64 bytes)
{
    enum { BLOCK = 1 << 20 };
    guint64 count = 0;

    if (tier == TIER_HOST || (tier == TIER_DEVICE && interpreter->events == NULL))
        return touched_words(from, bytes);
    g_autofree guint8 *block = g_malloc(BLOCK);
    for (guint64 done = 0; done < bytes; done += BLOCK) {
        const guint64 part = MIN(bytes - done, BLOCK);

        tiers_read(&interpreter->tiers, tier, block, from + done, part);
        count += touched_words(block, part);
    }
    return count;
}

guint64 interpreter_touched_arena(Interpreter *interpreter, Tier tier)
{
    const Tiers *tiers = &interpreter->tiers;

    if (tiers->base[tier] == NULL)
        return 0;
    return tier == TIER_NVME ? storage_used_bytes(tiers->storage)
                             : touched(interpreter, tier, tiers->base[tier], tiers->bytes[tier]);
}

guint64 interpreter_touched_tensor(Interpreter *interpreter, guint tensor)
{
    const Tensor *at = program_tensor(interpreter->program, tensor);
    const guint copies = tensor_num_copies(interpreter->program, at);
    const Tier tier = quiet_tier(interpreter, tensor);
    guint64 count = 0;

    for (guint c = 0; c < copies; c++)
        count += touched(interpreter, tier, interpreter_tensor(interpreter, tensor, c),
                         tensor_copy_bytes(at));
    return count;
}

/* ---- facts ---- */

const char *interpreter_graphs(const Interpreter *interpreter)
{
    return interpreter->graph == NULL ? NULL : step_graph_text(interpreter->graph);
}

const char *interpreter_storage(const Interpreter *interpreter)
{
    const Storage *storage = interpreter->tiers.storage;

    return storage == NULL ? NULL : storage_text(storage);
}

const char *interpreter_attention(const Interpreter *interpreter)
{
    return interpreter->attention;
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

void interpreter_round_by_chance(Interpreter *interpreter, RoundingNumbers *numbers)
{
    g_free(interpreter->rounding);
    interpreter->rounding = numbers;
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
