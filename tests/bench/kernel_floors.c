/* What the CUDA kernels of one training step must move and do, beside what they do: a table, a line
 * for each op of Llama 3.1 8B's program (bf16, one sequence of 8192, one GPU).  "Must" are the
 * traits that the planner prices (sim/program/traits.c), of the program that a run executes; "does"
 * adds what these kernels touch or compute more than once, which is known of them alone.  The times
 * are what that takes at the memory's bandwidth or at the peak of the arithmetic, the larger one:
 * the floor, of an H100 and an H200.
 *
 * kernel_floors TOPOLOGY, a file that `fsdp-run calibrate --device cuda` wrote: the floor of its
 * GPU instead, and beside it what the planner takes the op to cost with the rows of that file
 * (launch included), the floor's share of that, and of how many of the works that the op consists
 * of there are rows: of the others it is what a data sheet says.
 */
#include "sim/base/data_dirs.h"
#include "sim/base/error.h"
#include "sim/cost/device_cost.h"
#include "sim/input/topology.h"
#include "sim/layout/legality.h"
#include "sim/program/compile.h"
#include "sim/program/cuda_blocks.h"

#include <stdio.h>
#include <string.h>

enum { SEQ = 8192 };

typedef struct {
    double bytes, flops;
} Does;

/* Sums of the blocks of a norm's gradient are written and read. */
static double norm_partials(const Op *op, double sums)
{
    return sums * 2 * CUDA_NORM_PARTIALS * sizeof(float) * (double)op->sizes.in;
}

/* Logits (fp32) are written, and read twice, as a row outgrows caches; their gradients written, and
 * read by two products; weights are read by two products of each chunk of rows but the first time,
 * and their gradient added to. */
static double head_traffic(const Op *op)
{
    const OpSizes *s = &op->sizes;
    const double logits = (double)s->rows * (double)s->out;
    const double weights = (double)s->out * (double)s->in;
    const double chunks = (double)((s->rows + s->chunk - 1) / s->chunk);
    const double size = dtype_bytes(op->dtype), size_out = dtype_bytes(op->dtype_out);

    return logits * (3 * sizeof(float) + 3 * size) +
           weights * ((2 * chunks - 1) * size + (2 * chunks - 2) * size_out);
}

/* Tiles of 64 keys above the diagonal are computed whole: half a tile a row more. */
static double diagonal(const Op *op)
{
    return 1 + 64 / (double)op->sizes.seq;
}

static Does does(const Op *op, Does must)
{
    const OpSizes *s = &op->sizes;
    const double tokens = (double)(s->batch * s->seq), size = dtype_bytes(op->dtype);

    switch (op->kind) {
    case OP_RMSNORM_BACKWARD:
        must.bytes += norm_partials(op, 1);
        break;
    case OP_LAYERNORM_BACKWARD:
        must.bytes += norm_partials(op, 2);
        break;
    case OP_HEAD_LOSS:
        must.bytes += head_traffic(op);
        break;
    case OP_ATTENTION:
        must.flops *= diagonal(op);
        break;
    case OP_ATTENTION_BACKWARD: /* two kernels: q, k, v and do again, seven products for five */
        must.bytes += tokens * size * (double)(2 * (s->heads + s->kv_heads) * s->head_dim);
        must.flops *= 7.0 / 5 * diagonal(op);
        break;
    default:
        break;
    }
    return must;
}

/* ---- the table ---- */

static guint64 unit_elements(const Program *program, const Op *op)
{
    return op->unit == NO_UNIT ? 0 : program_unit(program, (guint)op->unit)->map->elements;
}

static gboolean same_work(const Program *program, const Op *a, const Op *b)
{
    return a->kind == b->kind && memcmp(&a->sizes, &b->sizes, sizeof a->sizes) == 0 &&
           op_memory_bytes(a, unit_elements(program, a)) ==
               op_memory_bytes(b, unit_elements(program, b));
}

typedef struct {
    const Op *op;
    guint64 calls; /* in a step */
} Row;

static void count_op(const Program *program, const Op *op, GArray *rows)
{
    for (guint r = 0; r < rows->len; r++) {
        Row *row = &g_array_index(rows, Row, r);

        if (same_work(program, row->op, op)) {
            row->calls++;
            return;
        }
    }
    g_array_append_val(rows, ((Row){op, 1}));
}

static GArray *rows_of(const Program *program)
{
    GArray *rows = g_array_new(FALSE, FALSE, sizeof(Row));

    for (guint c = 0; c < program->step.calls->len; c++) {
        const Call *call = &g_array_index(program->step.calls, Call, c);
        const Segment *segment = program_segment(program, call->segment);

        for (guint i = 0; i < segment->num_ops; i++)
            if (!op_kind_is_communication(segment->ops[i].kind))
                count_op(program, &segment->ops[i], rows);
    }
    return rows;
}

/* What the times are of: GPUs by their data sheets, or the one that was calibrated. */
typedef struct {
    Topology *gpus[2];
    guint num_gpus;
    gboolean calibrated;
} Columns;

static double floor_seconds(Does does, const Gpu *gpu)
{
    return MAX(does.bytes / gpu->memory_bytes_per_s, does.flops / gpu_peak_flops(gpu, DTYPE_BF16));
}

static void print_measured(const Program *program, const Op *op, double floor_s,
                           const Topology *topology)
{
    const ComputeContext alone = {
        .busy = 1, .threads = 1, .cores = 1, .unit_elements = unit_elements(program, op)};
    const Works works = compute_op_works(op, topology, &alone);
    const double seconds = compute_op_seconds(op, topology, &alone);
    guint with_rows = 0;

    for (guint i = 0; i < works.num; i++)
        with_rows += device_cost_cuda_has_row(&works.list[i], op, topology, &alone) ? 1 : 0;
    printf(" %11.1f %9.1f %3u/%u", 1e6 * seconds, 100 * floor_s / seconds, with_rows, works.num);
}

static void print_row(const Program *program, const Row *row, const Columns *columns)
{
    const Op *op = row->op;
    const Does must = {op_memory_bytes(op, unit_elements(program, op)), op_flops(op)};
    const Does done = does(op, must);
    g_autofree char *shape = op->sizes.out > 0 && op->sizes.in > 0
                                 ? g_strdup_printf("%" G_GUINT64_FORMAT "x%" G_GUINT64_FORMAT,
                                                   op->sizes.in, op->sizes.out)
                                 : g_strdup("-");

    printf("%-24s %-14s %6" G_GUINT64_FORMAT " %9.1f %9.1f %9.1f %9.1f", op_kind_name(op->kind),
           shape, row->calls, must.bytes * 1e-6, done.bytes * 1e-6, must.flops * 1e-9,
           done.flops * 1e-9);
    for (guint g = 0; g < columns->num_gpus; g++)
        printf(" %9.1f", 1e6 * floor_seconds(done, &columns->gpus[g]->gpu));
    if (columns->calibrated)
        print_measured(program, op, floor_seconds(done, &columns->gpus[0]->gpu), columns->gpus[0]);
    printf("\n");
}

static void print_table(const Program *program, const Columns *columns)
{
    g_autoptr(GArray) rows = rows_of(program);

    if (columns->calibrated)
        printf(
            "%s: %s; rows: n/m of the op's m works are measured, the others as data sheets say\n",
            columns->gpus[0]->gpu.name, columns->gpus[0]->source);
    printf("%-24s %-14s %6s %9s %9s %9s %9s %s\n", "op, N = 8192, bf16", "in x out", "calls",
           "must MB", "does MB", "must GF", "does GF",
           columns->calibrated ? " floor us measured us   % floor  rows" : "  H100 us   H200 us");
    for (guint r = 0; r < rows->len; r++)
        print_row(program, &g_array_index(rows, Row, r), columns);
}

/* ---- what it is of ---- */

static gboolean columns_of_data_sheets(Columns *columns, GError **error)
{
    static const char *const names[] = {"dgx-h100", "hgx-h200"};
    g_autofree char *topologies = data_dir("topologies");

    for (guint g = 0; g < G_N_ELEMENTS(names); g++) {
        columns->gpus[g] = topology_load(names[g], topologies, error);
        if (columns->gpus[g] == NULL)
            return FALSE;
        columns->num_gpus++;
    }
    return TRUE;
}

static gboolean columns_of_calibration(Columns *columns, const char *file, GError **error)
{
    g_autofree char *topologies = data_dir("topologies");
    Topology *topology = topology_load(file, topologies, error);

    if (topology == NULL)
        return FALSE;
    columns->gpus[columns->num_gpus++] = topology;
    columns->calibrated = TRUE;
    if (device_cost(topology) == &device_cost_cuda_measured)
        return TRUE;
    return fail(error, ERROR_INPUT,
                "%s: no rows of a GPU are in it: must be what fsdp-run calibrate --device cuda "
                "wrote",
                file);
}

static void columns_clear(Columns *columns)
{
    for (guint g = 0; g < columns->num_gpus; g++)
        topology_free(columns->gpus[g]);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Columns, columns_clear)

static ProgramSet *compile(const Model *model)
{
    const Workload workload = {
        .global_batch = 1, .seq_len = SEQ, .recipe = &recipe_zero, .optimizer = OPTIMIZER_ADAMW};
    Sharding sharding = sharding_default;
    const ProgramSpec spec = {
        .model = model,
        .workload = &workload,
        .layout = {{1, 1, 1, 1, 1}},
        .sharding = &sharding,
        .schedule = {.micro_batch = 1, .micro_batches = 1, .virtual_stages = 1},
        .device = DEVICE_CUDA,
        .threads = 1,
    };

    sharding.strategy = STRATEGY_NO_SHARD;
    sharding_normalise(&sharding, &spec.layout, &spec.schedule);
    return program_compile(&spec);
}

int main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *models = data_dir("models");
    g_autoptr(Model) model = model_load("llama-3.1-8b", models, &error);
    g_auto(Columns) columns = {.num_gpus = 0};

    if (argc > 2) {
        fprintf(stderr, "usage: kernel_floors [TOPOLOGY]\n");
        return 2;
    }
    if (model == NULL || !(argc == 2 ? columns_of_calibration(&columns, argv[1], &error)
                                     : columns_of_data_sheets(&columns, &error))) {
        fprintf(stderr, "kernel_floors: %s\n", error->message);
        return 2;
    }
    g_autoptr(ProgramSet) set = compile(model);
    print_table(set->classes[0], &columns);
    return 0;
}
