#include "sim/cost/collective.h"

#include "sim/cost/measured.h"

#include <math.h>

/* What links reach of their nominal rate, and how fast collectives approach it. */
static const struct {
    double link_fraction; /* within a job: NVLink 230 of 300 GB/s (A100), 360 to 400 of 450
                             (H100) in nccl-tests; InfiniBand 0.8 in training runs */
    double
        crowding_per_level; /* of a fabric: rate / (1 + this * log2(nodes)), from the same runs */
    double ramp_bytes;      /* NCCL reaches half of its bus bandwidth at this buffer size and
                               under (nccl-tests, 8 GPUs of a node) */
    double tree_fraction;   /* of a ring's bandwidth, that NCCL takes its trees to reach */
    double tree_hop; /* a hop of a tree between nodes takes as many of a ring's: 5.0 of 2.7 us and
                        8.5 of 4.0 us in NCCL's table (LL, LL128) */
} fabric = {
    .link_fraction = 0.80,
    .crowding_per_level = 0.03,
    .ramp_bytes = 8e6,
    .tree_fraction = 0.92,
    .tree_hop = 2,
};

/* How many times each kind sends the whole buffer around a ring. */
static const double rounds[NUM_VOLUMES] = {
    [VOLUME_ALL_GATHER] = 1, [VOLUME_REDUCE_SCATTER] = 1, [VOLUME_ALL_REDUCE] = 2,
    [VOLUME_ALL_TO_ALL] = 1, [VOLUME_EXCHANGE] = 1,
};

static guint stride_of(const CollectiveContext *context)
{
    return MAX(1, context->span / context->ranks);
}

/* Consecutive ranks that a level joins; 0 = all.  A level's span counts GPUs (on a CPU, cores), of
 * which a node may use fewer, or share them among more ranks. */
static guint domain_of(const CollectiveContext *context, const NetworkLevel *level)
{
    const double ranks_per_gpu = (double)context->ranks_per_node / context->topology->gpus_per_node;

    return (guint)ceil(level->span * ranks_per_gpu);
}

/* Members of the group among @domain consecutive ranks (0 = all). */
static guint members_within(const CollectiveContext *context, guint domain)
{
    return domain == 0 ? context->ranks : CLAMP(domain / stride_of(context), 1, context->ranks);
}

/* A level that joins members of the group whom no inner level joins. */
typedef struct {
    const NetworkLevel *level;
    guint number, inside, joined; /* inside a domain of the level below; of this one */
} Joining;

/* Outwards from {0}, which is before the innermost one; FALSE once all are joined. */
static inline gboolean joins_more(const CollectiveContext *context, Joining *at)
{
    const GArray *levels = context->topology->networks;
    const guint inside = MAX(at->joined, 1), first = at->level == NULL ? 0 : at->number + 1;

    for (guint i = first; i < levels->len && inside < context->ranks; i++) {
        const NetworkLevel *level = &g_array_index(levels, NetworkLevel, i);
        const guint domain = i + 1 == levels->len ? 0 : domain_of(context, level);
        const guint joined = members_within(context, domain);

        if (joined > inside) {
            *at = (Joining){level, i, inside, joined};
            return TRUE;
        }
    }
    return FALSE;
}

/* What one link of the level gives to a rank of this group. */
static double link_bytes_per_s(const CollectiveContext *context, const NetworkLevel *level)
{
    const double local = members_within(context, context->ranks_per_node);
    const double nodes = ceil(context->ranks / local);
    const guint domain = domain_of(context, level);
    const gboolean within_node = domain != 0 && domain <= context->ranks_per_node;
    const double crowding = within_node ? 1 : 1 + fabric.crowding_per_level * log2(nodes);

    return level->bytes_per_s * fabric.link_fraction / crowding / level->oversubscription;
}

/* Of the ring and of the tree that the group forms: what the slowest level lets through, and the
 * latency of the hops once around, or from the leaves to the root. */
typedef struct {
    double bytes_per_s, ring_s, tree_s;
    guint slowest; /* level */
} Route;

/* Members that the innermost level or a node joins: what NCCL takes for a node. */
static guint node_members(const CollectiveContext *context)
{
    const GArray *levels = context->topology->networks;
    const guint inner = domain_of(context, &g_array_index(levels, NetworkLevel, 0));

    return members_within(context, MAX(context->ranks_per_node, inner));
}

/**
 * route_of: over the levels that the group crosses.
 *
 *     B      = min over levels (l * b)
 *     a_ring = sum over levels (joined / l - 1) * latency
 *     a_tree = the same inside nodes + sum over levels between them ceil(log2(joined / l)) * h *
 *              latency
 *
 *     b  what one GPU's link of the level gives, one direction
 *     joined  members inside one domain of the level
 *     l  members inside one domain of the level below: each has a link (NIC) of its own, and as
 *        many rings run side by side; 1 at the innermost level     h  tree_hop
 *
 * Source: NCCL's rings, one a NIC (nccl-tests, doc/PERFORMANCE.md); its trees are chains in a node
 * and binary between nodes (NCCL, src/graph/tuning.cc and trees.cc).  Left out: a last domain that
 * is partly filled, in-network reduction.
 */
static Route route_of(const CollectiveContext *context)
{
    const guint local = node_members(context);
    Route route = {.bytes_per_s = INFINITY};

    for (Joining at = {0}; joins_more(context, &at);) {
        const guint parts = (at.joined + at.inside - 1) / at.inside;
        const double depth = g_bit_storage(parts - 1); /* ceil(log2(parts)) */
        const double bytes_per_s = at.inside * link_bytes_per_s(context, at.level);
        const double hops = at.joined <= local ? parts - 1 : fabric.tree_hop * depth;

        route.slowest = bytes_per_s < route.bytes_per_s ? at.number : route.slowest;
        route.bytes_per_s = MIN(route.bytes_per_s, bytes_per_s);
        route.ring_s += (parts - 1) * at.level->latency_s;
        route.tree_s += hops * at.level->latency_s;
    }
    return route;
}

/* Small buffers don't fill the pipeline of GPUs: their bytes take so many times as long. */
static double ramp_of(const CollectiveContext *context, double bytes)
{
    const gboolean ramps = context->topology->gpu.kind == DEVICE_CUDA;

    return ramps ? 1 + fabric.ramp_bytes / (fabric.ramp_bytes + bytes) : 1;
}

/**
 * ring_seconds:
 *
 *     t = c (a + (n - 1) / n * S / B * ramp)     all-gather, reduce-scatter c = 1; all-reduce c = 2
 *
 *     n  ranks     S  bytes of the whole buffer     B, a  of the ring (see route_of)
 *     ramp  1 + r / (r + S) on GPUs, r = ramp_bytes
 *
 * Source: Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005, sec. 4.1, with (n - 1) hops of latency
 * replaced by the hops of a ring in each level (hierarchical).
 * Left out: NCCL's PAT, all-gather and reduce-scatter in log2(n) hops
 * for one GPU a node (since 2.23).  Limit: c * a for no bytes; 0 for a group of one.
 */
static double ring_seconds(Volume kind, double bytes, const CollectiveContext *context,
                           const Route *route)
{
    const double n = context->ranks;

    return rounds[kind] *
           (route->ring_s + (n - 1) / n * bytes / route->bytes_per_s * ramp_of(context, bytes));
}

/**
 * tree_seconds: an all-reduce over two binary trees that halve the buffer.
 *
 *     t = 2 (a + S / (f B) * ramp)
 *
 *     S  bytes     B, a  of the tree (see route_of)     f  tree_fraction     ramp  as of a ring
 *
 * To the root and back; who is a leaf in one tree is inside the other, so every rank sends and
 * receives S each way.  Source: Sanders, Speck, Traeff, Parallel Computing 35(12), 2009; NCCL,
 * src/graph/tuning.cc (f, and hops).
 */
static double tree_seconds(double bytes, const CollectiveContext *context, const Route *route)
{
    const double bytes_per_s = fabric.tree_fraction * route->bytes_per_s;

    return 2 * (route->tree_s + bytes / bytes_per_s * ramp_of(context, bytes));
}

/* What passes around or up and down: on GPUs an all-reduce takes the faster way, as NCCL does;
 * between CPUs there are rings only. */
static double routed_seconds(Volume kind, double bytes, const CollectiveContext *context)
{
    const Route route = route_of(context);
    const double ring_s = ring_seconds(kind, bytes, context, &route);

    if (kind != VOLUME_ALL_REDUCE || context->topology->gpu.kind != DEVICE_CUDA)
        return ring_s;
    const double tree_s = tree_seconds(bytes, context, &route);
    return MIN(ring_s, tree_s);
}

/* See all_to_all_seconds. */
static double sent_once(guint copies, double domain_share)
{
    return copies <= 1 ? 1 : (1 - pow(1 - domain_share, copies)) / (copies * domain_share);
}

/**
 * all_to_all_seconds:
 *
 *     t = max over levels (a + (joined - l) / n * S * once(l / n) / b * ramp)
 *     once(q) = (1 - (1 - q)^k) / (k q)      1 where all rows are sent
 *
 *     n  ranks     S  bytes that a rank sends, its own part included     joined, l  members inside
 *     one domain of the level, of the level below     b, a  one link of the level     k  copies
 *
 * Each rank has its own link of every level, over which goes what is for members that no inner
 * level joins; levels work side by side.  Derived here.  Where copies of a row go to one domain it
 * is sent there once and multiplied inside (DeepSeek-V3, arXiv 2412.19437, sec. 3.2.2; DeepEP):
 * once(q) is the chance that a domain is hit at all over the copies that are for it.  Left out: a
 * last domain that is partly filled, uneven routing, a limit on a token's nodes.
 */
static double all_to_all_seconds(double bytes, const CollectiveContext *context, guint *slowest)
{
    const double ramp = ramp_of(context, bytes);
    double seconds = 0;

    for (Joining at = {0}; joins_more(context, &at);) {
        const double part = (double)(at.joined - at.inside) / context->ranks *
                            sent_once(context->copies, (double)at.inside / context->ranks);
        const double level_s =
            at.level->latency_s + part * bytes / link_bytes_per_s(context, at.level) * ramp;

        *slowest = level_s > seconds ? at.number : *slowest;
        seconds = MAX(seconds, level_s);
    }
    return seconds;
}

/* The innermost level that joins all of the group. */
static guint joining_level(const CollectiveContext *context)
{
    Joining at = {0};

    while (joins_more(context, &at))
        continue;
    return at.number;
}

/* One message between neighbours of the group, over the level that joins all of it: the pair that
 * is farthest apart decides. */
static double exchange_seconds(double bytes, const CollectiveContext *context)
{
    const NetworkLevel *level =
        &g_array_index(context->topology->networks, NetworkLevel, joining_level(context));

    return level->latency_s + bytes / link_bytes_per_s(context, level);
}

/* A group of one: on a CPU gathering and scattering copy the shard (read + write); an all-reduce
 * has nothing to do. */
static double alone_seconds(Volume kind, double bytes, const Topology *topology)
{
    const gboolean copies = kind == VOLUME_ALL_GATHER || kind == VOLUME_REDUCE_SCATTER;

    if (topology->gpu.kind == DEVICE_CUDA || !copies)
        return 0;
    return 2 * bytes / topology->gpu.memory_bytes_per_s;
}

static double nominal_seconds(Volume kind, double bytes, const CollectiveContext *context)
{
    guint slowest = 0;

    if (context->ranks == 1)
        return alone_seconds(kind, bytes, context->topology);
    if (kind == VOLUME_EXCHANGE)
        return exchange_seconds(bytes, context);
    if (kind == VOLUME_ALL_TO_ALL)
        return all_to_all_seconds(bytes, context, &slowest);
    return routed_seconds(kind, bytes, context);
}

/* Time-sharing of a node on which @ranks run. */
static double sharing(const Topology *topology, guint ranks)
{
    const MeasuredLoad load = {.busy = ranks, .threads = 1, .cores = topology->gpus_per_node};

    return measured_time_sharing(&load);
}

/**
 * scale_measured: from a group of @measured ranks, alone on its node, to @context's.
 *
 *     CPU   t * n / n' * sharing(job) / sharing(group)
 *     GPU   t * ((n - 1) / n) / ((n' - 1) / n')
 *
 *     n, n'    ranks wanted, measured
 *     sharing  max(1, ranks / cores), of the node's ranks in this job and of the group alone
 *
 * Ranks of a CPU node move n S bytes through the one memory that they share; links of GPUs work in
 * parallel, and only the ring's length counts.  Derived here.  Exact at measured groups that are
 * alone on the node.
 */
static double scale_measured(const CollectiveContext *context, guint measured)
{
    const Topology *topology = context->topology;
    const double n = context->ranks, m = measured;

    if (topology->gpu.kind == DEVICE_CPU)
        return n / m * sharing(topology, MAX(context->ranks_per_node, context->ranks)) /
               sharing(topology, context->ranks);
    return n == m ? 1 : (n - 1) / n / ((m - 1) / m);
}

static gboolean is_in_node(const CollectiveContext *context)
{
    return context->span <= context->ranks_per_node;
}

/* Rows are of whole nodes where they are of several (nccl-tests: all GPUs, in order). */
static gboolean has_rows_for(const CollectiveContext *context)
{
    const Topology *topology = context->topology;

    return is_in_node(context) ||
           (topology->gpu.kind == DEVICE_CUDA && context->span == context->ranks &&
            context->ranks_per_node == topology->gpus_per_node);
}

/* A group of one moves nothing between ranks, so it says nothing about larger ones; nor do GPUs of
 * one node about those of several. */
static MeasuredGroup rows_for(Volume kind, DType dtype, const CollectiveContext *context)
{
    const gboolean cuda = context->topology->gpu.kind == DEVICE_CUDA;
    const guint node = context->topology->gpus_per_node;
    MeasuredGroup rows = {
        .collective = volume_name(kind),
        .dtype = dtype,
        .ranks = context->ranks,
        .least = 2,
        .most = cuda ? node : G_MAXUINT,
    };

    if (context->ranks == 1)
        rows.least = rows.most = 1;
    if (!is_in_node(context)) {
        rows.least = node + 1;
        rows.most = G_MAXUINT;
    }
    return rows;
}

/**
 * gpu_scale: from a row of GPUs to what was asked for.
 *
 *     in a node        scale_measured, and below the smallest row f(S, n) / f(S', n)
 *     between nodes    f(S, n) / f(S', n')
 *
 *     f  the formula     S, S'  bytes asked for, of the row that is used     n, n'  ranks
 *
 * The smallest row may be a large one (nccl-tests -b 1G), whose time is no latency.
 */
static double gpu_scale(Volume kind, guint64 bytes, const CollectiveContext *context,
                        const MeasuredGroup *rows)
{
    const guint64 at = MAX(bytes, rows->least_bytes);
    CollectiveContext measured = *context;

    if (!is_in_node(context)) {
        measured.ranks = measured.span = rows->nearest;
        return nominal_seconds(kind, (double)bytes, context) /
               nominal_seconds(kind, (double)at, &measured);
    }
    const double smaller = at == bytes ? 1
                                       : nominal_seconds(kind, (double)bytes, context) /
                                             nominal_seconds(kind, (double)at, context);
    return smaller * scale_measured(context, rows->nearest);
}

/* 0 when nothing of that kind was measured.  Bytes are moved alike, whatever they hold: rows of
 * fp32 do for all, and links of GPUs take those of any type. */
static double measured_seconds(Volume kind, guint64 bytes, DType dtype,
                               const CollectiveContext *context)
{
    const Topology *topology = context->topology;
    const gboolean cuda = topology->gpu.kind == DEVICE_CUDA;
    const DType types[] = {dtype, DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};
    MeasuredGroup rows = rows_for(kind, dtype, context);
    double seconds = 0;

    for (guint i = 0; i < (cuda ? G_N_ELEMENTS(types) : 2) && rows.nearest == 0; i++) {
        rows.dtype = types[i];
        seconds = measured_collective_seconds(&topology->measured, &rows, bytes);
    }
    if (rows.nearest == 0)
        return 0;
    return seconds * (cuda && context->ranks > 1 ? gpu_scale(kind, bytes, context, &rows)
                                                 : scale_measured(context, rows.nearest));
}

guint collective_level(Volume kind, const CollectiveContext *context)
{
    guint slowest = 0;

    if (context->ranks == 1 || context->topology->gpu.kind == DEVICE_CPU)
        return NO_LEVEL;
    if (kind == VOLUME_EXCHANGE)
        return joining_level(context);
    if (kind != VOLUME_ALL_TO_ALL)
        return route_of(context).slowest;
    all_to_all_seconds(1e12, context, &slowest); /* by bandwidth, whatever the latencies */
    return slowest;
}

gboolean collective_inside(const CollectiveContext *context)
{
    const GArray *levels = context->topology->networks;
    const NetworkLevel *level = &g_array_index(levels, NetworkLevel, 0);

    return levels->len > 0 && level->span != 0 && domain_of(context, level) >= context->span;
}

double collective_row_seconds(double seconds, const CollectiveContext *context)
{
    return is_in_node(context) ? seconds / scale_measured(context, context->ranks) : 0;
}

double collective_seconds(Volume kind, guint64 bytes, DType dtype, const CollectiveContext *context)
{
    g_assert(context->ranks >= 1 && context->ranks_per_node >= 1);

    const double seconds =
        has_rows_for(context) ? measured_seconds(kind, bytes, dtype, context) : 0;

    return seconds > 0 ? seconds : nominal_seconds(kind, (double)bytes, context);
}

double collective_link_seconds(Volume kind, guint64 bytes, DType dtype,
                               const CollectiveContext *context)
{
    const double moving_s = collective_seconds(kind, bytes, dtype, context) -
                            collective_seconds(kind, 0, dtype, context);

    return MAX(0, moving_s);
}
