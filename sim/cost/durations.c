#include "sim/cost/durations.h"

#include <string.h>

static guint64 unit_elements(const Program *program, const Op *op)
{
    const UnitMap *map;
    guint64 most = 0;

    if (op->unit == NO_UNIT)
        return 0;
    map = program_unit(program, (guint)op->unit)->map;
    for (guint p = 0; p < map->num_params; p++) /* rank 0 holds the most of each */
        most += unit_map_span(map, p, 0).elements;
    return most;
}

static guint64 message_bytes(const Program *program, const Op *op)
{
    guint64 sent = 0, received = 0;

    for (guint i = 0; i < op->num_operands; i++) {
        const guint64 bytes = tensor_copy_bytes(program_tensor(program, op->operands[i].tensor));

        if (op->operands[i].access == ACCESS_READ)
            sent += bytes;
        else
            received += bytes;
    }
    return MAX(sent, received);
}

/* Bytes of the whole buffer that a collective is about. */
static guint64 buffer_bytes(const Program *program, const Op *op)
{
    const guint64 element_bytes = dtype_bytes(op->dtype);
    const Tensor *tensor = program_tensor(program, op->operands[0].tensor);

    if (op->kind == OP_EXCHANGE)
        return message_bytes(program, op);
    if (op->unit == NO_UNIT)
        return op->sizes.elements * element_bytes;
    const UnitMap *map = program_unit(program, (guint)op->unit)->map;
    if (op->kind != OP_ALL_REDUCE)
        return unit_map_set_elements(map, op->params) * map->ranks * element_bytes;
    if (op->operands[0].param != WHOLE_TENSOR)
        return map->pieces[op->operands[0].param].chunk * element_bytes;
    return (tensor->part == PART_WHOLE && map->ranks > 1 ? map->shard_elements : tensor->elements) *
           element_bytes;
}

const Framework *durations_framework(const SimulateContext *context)
{
    return context->topology->gpu.kind == DEVICE_CUDA ? framework_or_default(context->framework)
                                                      : framework_default();
}

/* Of a program's tokens, those that the residual stream has on this rank of its tp group; FALSE
 * when all. */
static gboolean splits_tokens(const Program *program)
{
    guint64 rows = 0, local = 0;

    for (guint t = 0; t < program->tensors->len; t++)
        if (strcmp(program_tensor(program, t)->name, "labels") == 0)
            rows = program_tensor(program, t)->elements;
    for (guint s = 0; s < program->segments->len && local == 0; s++)
        for (guint i = 0; i < program_segment(program, s)->num_ops; i++) {
            const Op *op = &program_segment(program, s)->ops[i];

            if (op->kind == OP_RMSNORM || op->kind == OP_LAYERNORM)
                local = op->sizes.rows;
        }
    return local < rows;
}

/* Parts of a message between stages, of which each rank of a tp group sends its own. */
static guint message_parts(const Program *program, const Op *op, const Framework *framework)
{
    if (!framework->splits_messages || op->kind != OP_EXCHANGE ||
        strcmp(program_stream_purpose(program, program_stream(program, op->stream)), "pp") != 0 ||
        splits_tokens(program))
        return 1;
    return program_purpose_ranks(program, "tp");
}

/* Broadcasts of all ranks' parts, each with a fixed cost, over as many units as there are. */
static double broadcast_seconds(const Program *program, const Op *op, const Framework *framework)
{
    guint units = 0;

    if (op->kind != OP_ALL_GATHER || op->unit == NO_UNIT)
        return 0;
    for (guint u = 0; u < program->units->len; u++)
        units += program_unit(program, u)->count;
    return framework->broadcast_s * op_group_size(program, op) / units;
}

/* Rows of one token that an all-to-all sends; 0 where each goes by itself. */
static guint row_copies(const Program *program, const Op *op, const Framework *framework)
{
    if (op->kind != OP_ALL_TO_ALL || !framework->sends_once)
        return 0;
    for (guint s = 0; s < program->segments->len; s++)
        for (guint i = 0; i < program_segment(program, s)->num_ops; i++)
            if (program_segment(program, s)->ops[i].kind == OP_ROUTE)
                return (guint)program_segment(program, s)->ops[i].sizes.top_k;
    return 0;
}

CollectiveContext durations_collective(const Program *program, const Op *op,
                                       const SimulateContext *context, const guint *spans,
                                       guint64 *bytes)
{
    const Framework *framework = durations_framework(context);

    *bytes = buffer_bytes(program, op) / message_parts(program, op, framework);
    return (CollectiveContext){
        .topology = context->topology,
        .ranks = op_group_size(program, op),
        .span = spans[program_stream(program, op->stream)->group],
        .ranks_per_node = context->ranks_per_node,
        .copies = row_copies(program, op, framework),
    };
}

/* Of a collective's time, what the framework leaves. */
static double exposed_share(const Program *program, const Op *op, const SimulateContext *context,
                            const CollectiveContext *where)
{
    return framework_exposed(durations_framework(context),
                             program_stream_purpose(program, program_stream(program, op->stream)),
                             op->kind, collective_inside(where));
}

static double communication_seconds(const Program *program, const Op *op,
                                    const SimulateContext *context, const guint *spans)
{
    guint64 bytes;
    const CollectiveContext where = durations_collective(program, op, context, spans, &bytes);

    return exposed_share(program, op, context, &where) *
               collective_seconds(op_volume(op->kind), bytes, op->dtype, &where) +
           broadcast_seconds(program, op, durations_framework(context));
}

LinkUse durations_link(const Program *program, const Op *op, const SimulateContext *context,
                       const guint *spans)
{
    guint64 bytes;

    if (!op_kind_is_communication(op->kind) || context->free_communication || context->free_units)
        return (LinkUse){.level = NO_LEVEL};
    const CollectiveContext where = durations_collective(program, op, context, spans, &bytes);
    const Volume kind = op_volume(op->kind);
    const guint level = collective_level(kind, &where);

    if (level == NO_LEVEL)
        return (LinkUse){.level = NO_LEVEL};
    return (LinkUse){.level = level,
                     .seconds = exposed_share(program, op, context, &where) *
                                collective_link_seconds(kind, bytes, op->dtype, &where)};
}

/* Adds time to the stream of compute: spread over its ops. */
static void stand_still(const Segment *segment, double seconds, double *durations)
{
    guint computes = 0;

    for (guint i = 0; i < segment->num_ops; i++)
        computes += segment->ops[i].stream == COMPUTE_STREAM ? 1 : 0;
    for (guint i = 0; i < segment->num_ops; i++)
        if (segment->ops[i].stream == COMPUTE_STREAM)
            durations[i] += seconds / computes;
}

static double all_seconds(const Segment *segment, const double *durations)
{
    double seconds = 0;

    for (guint i = 0; i < segment->num_ops; i++)
        seconds += durations[i];
    return seconds;
}

static gboolean has_products(const Segment *segment)
{
    for (guint i = 0; i < segment->num_ops; i++)
        if (segment->ops[i].kind == OP_LINEAR)
            return TRUE;
    return FALSE;
}

/* A block that is recomputed in full, its last product too: as long as its forward pass. */
static void repeat_forward(const Program *program, guint again, double **durations)
{
    static const char *const suffix = ".recompute";
    const Segment *segment = program_segment(program, again);

    if (!g_str_has_suffix(segment->name, suffix) || !has_products(segment))
        return;
    g_autofree char *unit = g_strndup(segment->name, strlen(segment->name) - strlen(suffix));
    g_autofree char *name = g_strconcat(unit, ".forward", NULL);
    for (guint s = 0; s < program->segments->len; s++) {
        const Segment *forward = program_segment(program, s);

        if (strcmp(forward->name, name) != 0)
            continue;
        const double longer_s =
            all_seconds(forward, durations[s]) - all_seconds(segment, durations[again]);
        stand_still(segment, MAX(0, longer_s), durations[again]);
    }
}

/* A part of a block with experts, not of its recomputation. */
static gboolean is_sparse_pass(const Segment *segment)
{
    return (g_str_has_prefix(segment->name, "sparse") ||
            g_str_has_prefix(segment->name, "experts")) &&
           (g_str_has_suffix(segment->name, ".forward") ||
            g_str_has_suffix(segment->name, ".backward"));
}

/* Of the pass over a block's experts, which is a segment of its own, beside that over the rest. */
static double experts_seconds(const Program *program, const Segment *rest, double **durations)
{
    g_autofree char *name = g_strconcat("experts", strrchr(rest->name, '.'), NULL);

    for (guint s = 0; s < program->segments->len; s++)
        if (strcmp(program_segment(program, s)->name, name) == 0)
            return all_seconds(program_segment(program, s), durations[s]);
    return 0;
}

/* A pass over a block whose kernels run faster than the host issues them waits for it: the stream
 * of compute stands still for the rest. */
static void wait_for_host(const Program *program, guint s, const Framework *framework,
                          double **durations)
{
    const Segment *segment = program_segment(program, s);
    const gboolean forward = g_str_has_suffix(segment->name, ".forward") ||
                             g_str_has_suffix(segment->name, ".recompute");
    const gboolean is_pass = forward || g_str_has_suffix(segment->name, ".backward");
    const gboolean sparse = g_str_has_prefix(segment->name, "sparse");
    const double dense_s = forward ? framework->host_forward_s : framework->host_backward_s;
    const double sparse_s =
        forward ? framework->host_sparse_forward_s : framework->host_sparse_backward_s;
    const double host_s = sparse ? MAX(dense_s, sparse_s) : dense_s;
    const gboolean is_block = sparse || g_str_has_prefix(segment->name, "block");

    if (host_s == 0 || !is_pass || !is_block)
        return;
    const double issued_s = all_seconds(segment, durations[s]) +
                            (sparse ? experts_seconds(program, segment, durations) : 0);
    stand_still(segment, MAX(0, host_s - issued_s), durations[s]);
}

/* Seconds of a block with experts, forward and backward: exchanges, and what computes. */
static void add_block_seconds(const Program *program, double **durations, double *exchange_s,
                              double *compute_s)
{
    for (guint s = 0; s < program->segments->len; s++) {
        const Segment *segment = program_segment(program, s);

        if (!is_sparse_pass(segment))
            continue;
        for (guint i = 0; i < segment->num_ops; i++)
            if (segment->ops[i].kind == OP_ALL_TO_ALL)
                *exchange_s += durations[s][i];
            else if (segment->ops[i].stream == COMPUTE_STREAM)
                *compute_s += durations[s][i];
    }
}

/**
 * expose_exchanges: exchanges hide beside another micro-batch's pass over the same block, so no
 * more of them than that takes.
 *
 *     A' = A - h min(A, C)
 *
 *     A  seconds of exchanges, C of compute, forward and backward     h  exchange_hidden
 *
 * Ops have A (1 - h) so far.
 */
static void expose_exchanges(const Program *program, const Framework *framework, double **durations)
{
    const double hidden = framework->exchange_hidden;
    double exchange_s = 0, compute_s = 0;

    if (hidden == 0)
        return;
    add_block_seconds(program, durations, &exchange_s, &compute_s);
    const double all_s = exchange_s / (1 - hidden);
    if (all_s <= compute_s)
        return;
    const double more = (all_s - hidden * compute_s) / exchange_s;
    for (guint s = 0; s < program->segments->len; s++)
        for (guint i = 0; i < program_segment(program, s)->num_ops; i++)
            if (program_segment(program, s)->ops[i].kind == OP_ALL_TO_ALL)
                durations[s][i] *= more;
}

/**
 * copy_seconds: one way between the device and another tier.
 *
 *     t = a + S / B
 *
 *     a, B  latency and bandwidth that the topology states for one GPU     S  bytes
 *
 * A disk has one op of a rank at a time, whichever way (simulate.h).  It is the ranks' of the GPUs
 * that share it: with fewer of them (or, on a CPU, more) a rank has as much more of it, up to what
 * its link to the host lets through.  Left out: the buffer of the host on the way to an SSD, which
 * the next requests fill meanwhile.  To and from the host, both directions at once don't slow each
 * other; ranks of a node don't either.
 */
static double copy_seconds(const Program *program, const Op *op, const SimulateContext *context)
{
    const Topology *topology = context->topology;
    const Tensor *from = program_tensor(program, op->operands[0].tensor);
    const Tensor *to = program_tensor(program, op->operands[1].tensor);
    const guint64 bytes = tensor_copy_bytes(from);
    MemoryTier memory, host;

    if (!topology_memory(topology, from->tier != TIER_DEVICE ? from->tier : to->tier, &memory))
        g_assert_not_reached(); /* a plan's tiers are looked up before */
    if (!program_copies_file(program, op))
        return memory.latency_s + (double)bytes / memory.bytes_per_s;
    const guint gpus = memory.span == 0 ? topology->gpus_per_node : memory.span;
    const guint ranks = topology->gpu.kind == DEVICE_CPU ? context->ranks_per_node
                                                         : MIN(context->ranks_per_node, gpus);
    const double share = memory.bytes_per_s * gpus / ranks;
    const double through = topology_memory(topology, TIER_HOST, &host) ? host.bytes_per_s : share;
    return memory.latency_s + (double)bytes / MIN(share, through);
}

/* What units that are less sharded would not do: gathers, reductions before the last micro-batch's,
 * the casts and sums beside them, copies from another tier.  Each unit is reduced once at least, by
 * nothing shorter than a reduce-scatter. */
static gboolean can_be_saved(const Program *program, guint segment, const Op *op)
{
    static const char *const moving[] = {"shard.gather", "shard.reduce", "replicate.reduce",
                                         "data.reduce", NULL};
    const gboolean reduces = op->kind == OP_REDUCE_SCATTER || op->kind == OP_ALL_REDUCE;
    const gboolean in_place = op->num_operands == 1; /* whole gradients, once a step */

    if (op->kind == OP_COPY)
        return TRUE;
    if (!g_strv_contains(moving, program_stream(program, op->stream)->name))
        return FALSE;
    return !reduces ||
           (!in_place && !g_str_has_suffix(program_segment(program, segment)->name, ".last"));
}

/* Whether that copies rows of experts whose products are in fp8, where the framework pads them. */
static gboolean pads_rows(const Program *program, const Op *op, const Framework *framework)
{
    if (!framework->pads_rows || !op_copies_rows(op))
        return FALSE;
    for (guint s = 0; s < program->segments->len; s++)
        for (guint i = 0; i < program_segment(program, s)->num_ops; i++)
            if (program_segment(program, s)->ops[i].kind == OP_GROUPED_LINEAR &&
                program_segment(program, s)->ops[i].dtype == DTYPE_FP8)
                return TRUE;
    return FALSE;
}

ComputeContext durations_compute(const Program *program, const Op *op,
                                 const SimulateContext *context)
{
    return (ComputeContext){
        .busy = context->ranks_per_node,
        .threads = context->threads,
        .cores = context->topology->gpus_per_node,
        .unit_elements = unit_elements(program, op),
        .context_ranks = program_purpose_ranks(program, "cp"),
        .logit_ranks =
            durations_framework(context)->gathers_logits ? program_purpose_ranks(program, "tp") : 1,
        .pads = pads_rows(program, op, durations_framework(context)),
        .framework = durations_framework(context),
    };
}

static double op_seconds(const Program *program, const Op *op, const SimulateContext *context,
                         const guint *spans)
{
    const ComputeContext compute = durations_compute(program, op, context);

    if (op->stream != COMPUTE_STREAM && context->free_communication)
        return 0;
    if (op->kind == OP_COPY)
        return copy_seconds(program, op, context);
    return op_kind_is_communication(op->kind) ? communication_seconds(program, op, context, spans)
                                              : compute_op_seconds(op, context->topology, &compute);
}

double *durations_of_segment(const Program *program, guint segment, const SimulateContext *context,
                             const guint *spans)
{
    const Segment *of = program_segment(program, segment);
    double *durations = g_new(double, of->num_ops + 1);

    for (guint i = 0; i < of->num_ops; i++)
        durations[i] = context->free_units && can_be_saved(program, segment, &of->ops[i])
                           ? 0
                           : op_seconds(program, &of->ops[i], context, spans);
    return durations;
}

double **durations_new(const Program *program, const SimulateContext *context, const guint *spans)
{
    double **durations = g_new(double *, program->segments->len);

    for (guint s = 0; s < program->segments->len; s++)
        durations[s] = durations_of_segment(program, s, context, spans);
    expose_exchanges(program, durations_framework(context), durations);
    for (guint s = 0; s < program->segments->len; s++)
        wait_for_host(program, s, durations_framework(context), durations);
    for (guint s = 0; durations_framework(context)->recomputes_all && s < program->segments->len;
         s++)
        repeat_forward(program, s, durations);
    return durations;
}

void durations_free(double **durations, const Program *program)
{
    for (guint s = 0; s < program->segments->len; s++)
        g_free(durations[s]);
    g_free(durations);
}
