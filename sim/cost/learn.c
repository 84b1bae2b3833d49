/* Rows of calibration from the times of ops in a step.  Rows are looked up as "alone" or "under
 * this load", and the simulated step adds nothing for streams that slow each other: so what an op
 * takes while the step's other streams run is what belongs into its row. */
#include "sim/cost/learn.h"

#include "sim/base/samples.h"
#include "sim/cost/device_cost.h"

#include <math.h>
#include <string.h>

/* Of an op's time, what is left for its work where the fixed cost, or works that other ops showed,
 * leave less by chance: rates without bound would reach other sizes.  What is predicted to take
 * less may. */
static const double LEAST_WORK = 0.01;

/* Rows have 4 digits: several of them add up to what they should within this. */
static const double ROUNDED = 1e-3;

/* The row of a work, by its key. */
typedef struct {
    gboolean is_gemm;
    MeasuredGemm gemm;
    MeasuredOp op; /* its name is static */
    double amount; /* FLOPs or bytes, of all calls */
    double seconds;
} Row;

typedef struct {
    Topology *topology;
    const SimulateContext *context;
    gboolean by_cudnn;
    GArray *rows; /* Row: those of this run */
    Learnt learnt;
} Learning;

/* ---- one op ---- */

/* Its works under its load. */
typedef struct {
    const LearnOp *shown;
    ComputeContext compute;
    MeasuredLoad load;
    Works works;
} Case;

static Case case_of(const Learning *learning, const LearnOp *shown)
{
    Case c = {
        .shown = shown,
        .compute = durations_compute(shown->program, shown->op, learning->context),
    };

    c.load = device_cost(learning->topology)->load(&c.compute);
    c.works = compute_op_works(shown->op, learning->topology, &c.compute);
    return c;
}

static double work_seconds(const Learning *learning, const Case *c, guint i)
{
    const Work *work = &c->works.list[i];

    return work->times * compute_work_seconds(work, c->shown->op, learning->topology, &c->compute);
}

static double work_amount(const Work *work, const Op *op)
{
    const GemmShape *shape = &work->gemm;

    switch (work->kind) {
    case WORK_GEMM:
        return 2.0 * (double)MAX(shape->groups, 1) * (double)shape->m * (double)shape->n *
               (double)shape->k;
    case WORK_ATTENTION:
        return op_flops(op);
    case WORK_MEMORY:
        return work->memory.bytes;
    }
    g_assert_not_reached();
}

/* The row that a lookup of that work under that load takes as it is. */
static Row row_of(const Learning *learning, const Case *c, guint i)
{
    const Work *work = &c->works.list[i];
    const Op *op = c->shown->op;
    const guint busy = measured_at_once(&c->load), threads = c->load.threads;
    Row row = {.is_gemm = work->kind == WORK_GEMM};

    if (row.is_gemm)
        row.gemm = (MeasuredGemm){.dtype = op->dtype,
                                  .busy = busy,
                                  .threads = threads,
                                  .m = work->gemm.m,
                                  .n = work->gemm.n,
                                  .k = work->gemm.k};
    else if (work->kind == WORK_ATTENTION)
        row.op = (MeasuredOp){.op = (char *)op_attention_row(
                                  op->kind, learning->by_cudnn && op_library_attention(op)),
                              .dtype = op->dtype,
                              .busy = busy,
                              .threads = threads,
                              .size = device_cost(learning->topology)->attention_keys(op),
                              .width = op->sizes.head_dim};
    else
        row.op = (MeasuredOp){.op = (char *)work->memory.op,
                              .dtype = work->memory.dtype,
                              .busy = busy,
                              .threads = threads,
                              .size = (guint64)work->memory.bytes};
    return row;
}

static gboolean same_key(const Row *a, const Row *b)
{
    if (a->is_gemm != b->is_gemm)
        return FALSE;
    return a->is_gemm ? measured_same_gemm(&a->gemm, &b->gemm) : measured_same_op(&a->op, &b->op);
}

static Row *find_row(const Learning *learning, const Row *key)
{
    for (guint i = 0; i < learning->rows->len; i++)
        if (same_key(&g_array_index(learning->rows, Row, i), key))
            return &g_array_index(learning->rows, Row, i);
    return NULL;
}

static gboolean is_in_topology(const Learning *learning, const Row *row)
{
    const Measured *measured = &learning->topology->measured;

    return row->is_gemm ? measured_find_gemm(measured, &row->gemm) != NULL
                        : measured_find_op(measured, &row->op) != NULL;
}

/* Sums what the calls of a work took in one rank, to that of a rank with its cores to itself.  An
 * op of no elements (of a rank that holds nothing of a unit) has no row. */
static void add_seconds(Learning *learning, const Case *c, guint i, double seconds)
{
    const double amount = work_amount(&c->works.list[i], c->shown->op);
    const Row row = row_of(learning, c, i);
    Row *sum = find_row(learning, &row);

    if (amount < 1)
        return;
    if (sum == NULL) {
        g_array_append_val(learning->rows, row);
        sum = &g_array_index(learning->rows, Row, learning->rows->len - 1);
    }
    sum->amount += c->shown->calls * c->works.list[i].times * amount;
    sum->seconds += c->shown->calls * seconds / measured_time_sharing(&c->load);
}

/* Puts the rows from @first on into the topology. */
static void put_rows(Learning *learning, guint first)
{
    Measured *measured = &learning->topology->measured;

    for (guint i = first; i < learning->rows->len; i++) {
        Row *row = &g_array_index(learning->rows, Row, i);

        row->gemm.flops_per_s = row->op.per_s = samples_round(row->amount / row->seconds);
        if (row->is_gemm)
            measured_put_gemm(measured, &row->gemm);
        else
            measured_put_op(measured, &row->op);
    }
}

/* ---- the fixed cost ---- */

/* A few scalars: a fixed cost and next to nothing else. */
static gboolean has_no_work(const Op *op)
{
    return op->kind == OP_CLIP;
}

static double overhead_seconds(const Learning *learning, const Case *c)
{
    const double overhead_s = learning->topology->measured.op_overhead_s;

    return overhead_s > 0
               ? overhead_s * measured_time_sharing(&c->load)
               : device_cost(learning->topology)->overhead(learning->topology, &c->compute);
}

static gboolean computes(const LearnOp *shown)
{
    return !op_kind_is_communication(shown->op->kind) && shown->op->kind != OP_COPY;
}

/* What the ops without work take, by number of calls; without any, what there was.  A topology
 * without rows has a nominal cost, which is written down before it gets some. */
static void learn_overhead(Learning *learning, const GArray *ops)
{
    Measured *measured = &learning->topology->measured;
    double sum = 0, calls = 0, nominal = 0;

    for (guint i = 0; i < ops->len; i++) {
        const LearnOp *shown = &g_array_index(ops, LearnOp, i);
        if (!computes(shown))
            continue;
        const Case c = case_of(learning, shown);
        const double sharing = measured_time_sharing(&c.load);
        nominal = overhead_seconds(learning, &c) / sharing;
        if (!has_no_work(shown->op))
            continue;
        const double beside_s = shown->seconds - work_seconds(learning, &c, 0);
        sum += shown->calls * MAX(0, beside_s) / sharing;
        calls += shown->calls;
    }
    if (sum > 0)
        measured->op_overhead_s = samples_round(sum / calls);
    else if (measured->gemm->len == 0)
        measured->op_overhead_s = samples_round(nominal);
}

/* ---- works ---- */

static double left_for_work(const Learning *learning, const Case *c)
{
    double predicted = 0;

    for (guint i = 0; i < c->works.num; i++)
        predicted += work_seconds(learning, c, i);
    const double left_s = c->shown->seconds - overhead_seconds(learning, c);
    const double least_s = MIN(LEAST_WORK * c->shown->seconds, predicted);
    return MAX(left_s, least_s);
}

static void learn_single(Learning *learning, const LearnOp *shown)
{
    const Case c = case_of(learning, shown);

    if (c.works.num == 1 && !has_no_work(shown->op))
        add_seconds(learning, &c, 0, left_for_work(learning, &c));
}

/**
 * learn_several: an op of several works.
 *
 *     seconds = known + factor * (what the others are predicted to take)
 *
 *     known  of works that other ops showed alone
 *
 * All that is not known is taken to be wrong alike.
 */
static void learn_several(Learning *learning, const LearnOp *shown)
{
    const Case c = case_of(learning, shown);
    const guint first = learning->rows->len;
    double predicted[MAX_WORKS], known = 0, others = 0;
    gboolean is_known[MAX_WORKS], all_rows = TRUE;

    for (guint i = 0; i < c.works.num; i++) {
        const Row row = row_of(learning, &c, i);

        predicted[i] = work_seconds(learning, &c, i);
        is_known[i] = find_row(learning, &row) != NULL;
        *(is_known[i] ? &known : &others) += predicted[i];
        all_rows = all_rows && is_in_topology(learning, &row);
    }
    if (others == 0)
        return;
    const double seconds = left_for_work(learning, &c);
    const double factor = MAX(seconds - known, LEAST_WORK * seconds) / others;
    for (guint i = 0; i < c.works.num; i++)
        if (!is_known[i])
            add_seconds(learning, &c, i, factor * predicted[i]);
    if (!all_rows || fabs(factor - 1) > ROUNDED)
        put_rows(learning, first);
}

/* Ops of few works first: they leave less open to those of more. */
static void learn_works(Learning *learning, const GArray *ops, guint num)
{
    for (guint i = 0; i < ops->len; i++) {
        const LearnOp *shown = &g_array_index(ops, LearnOp, i);
        if (computes(shown) && case_of(learning, shown).works.num == num)
            (num == 1 ? learn_single : learn_several)(learning, shown);
    }
    if (num == 1)
        put_rows(learning, 0);
}

/* ---- collectives ---- */

/* A MeasuredCollective whose seconds are of all @calls; @least: of one. */
typedef struct {
    MeasuredCollective row;
    double calls, least;
} Traffic;

static void add_traffic(GArray *traffic, const MeasuredCollective *row, double calls)
{
    const Traffic new = {.row = *row, .least = row->seconds};
    Traffic *sum = NULL;

    for (guint i = 0; i < traffic->len && sum == NULL; i++) {
        Traffic *t = &g_array_index(traffic, Traffic, i);

        if (g_str_equal(t->row.collective, row->collective) && t->row.dtype == row->dtype &&
            t->row.ranks == row->ranks && t->row.bytes == row->bytes)
            sum = t;
    }
    if (sum == NULL) {
        g_array_append_val(traffic, new);
        sum = &g_array_index(traffic, Traffic, traffic->len - 1);
        sum->row.seconds = 0;
    }
    sum->row.seconds += calls * row->seconds;
    sum->calls += calls;
    sum->least = MIN(sum->least, row->seconds);
}

/* Between stages one side of a message always waits for what the other computes: the least. */
static double traffic_seconds(const Traffic *sum)
{
    return strcmp(sum->row.collective, volume_name(VOLUME_EXCHANGE)) == 0
               ? sum->least
               : sum->row.seconds / sum->calls;
}

static void learn_collective(Learning *learning, const LearnOp *shown, GArray *traffic)
{
    guint64 bytes;
    const CollectiveContext where =
        durations_collective(shown->program, shown->op, learning->context, shown->spans, &bytes);
    const Volume kind = op_volume(shown->op->kind);
    const MeasuredCollective row = {
        .collective = (char *)volume_name(kind),
        .dtype = shown->op->dtype,
        .ranks = where.ranks,
        .bytes = bytes,
        .seconds = collective_row_seconds(shown->seconds, &where),
    };

    if (row.seconds == 0 && shown->seconds > 0)
        learning->learnt.between_nodes++;
    else if (kind != VOLUME_ALL_TO_ALL && row.seconds > 0 && bytes > 0)
        add_traffic(traffic, &row, shown->calls);
}

static void learn_collectives(Learning *learning, const GArray *ops)
{
    g_autoptr(GArray) traffic = g_array_new(FALSE, FALSE, sizeof(Traffic));

    for (guint i = 0; i < ops->len; i++)
        if (op_kind_is_communication(g_array_index(ops, LearnOp, i).op->kind))
            learn_collective(learning, &g_array_index(ops, LearnOp, i), traffic);
    for (guint i = 0; i < traffic->len; i++) {
        const Traffic *sum = &g_array_index(traffic, Traffic, i);
        MeasuredCollective row = sum->row;

        row.seconds = samples_round(traffic_seconds(sum));
        measured_put_collective(&learning->topology->measured, &row);
    }
    learning->learnt.collectives = traffic->len;
}

Learnt learn_rows(Topology *topology, const SimulateContext *context, const GArray *ops,
                  gboolean by_cudnn)
{
    Learning learning = {.topology = topology, .context = context, .by_cudnn = by_cudnn};

    g_assert(context->topology == topology);
    learning.rows = g_array_new(FALSE, FALSE, sizeof(Row));
    learn_overhead(&learning, ops);
    for (guint num = 1; num <= MAX_WORKS; num++)
        learn_works(&learning, ops, num);
    learn_collectives(&learning, ops);
    for (guint i = 0; i < learning.rows->len; i++)
        (*(g_array_index(learning.rows, Row, i).is_gemm ? &learning.learnt.gemm
                                                        : &learning.learnt.ops))++;
    g_array_unref(learning.rows);
    return learning.learnt;
}
