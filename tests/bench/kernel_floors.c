/* What the CUDA kernels of one training step must move and do, beside what they do: a table, a line
 * for each op of Llama 3.1 8B's program (bf16, one sequence of 8192, one GPU).  "Must" are the
 * traits that the planner prices (sim/program/traits.c), of the program that a run executes; "does"
 * adds what these kernels touch or compute more than once, which is known of them alone.  The times
 * are what that takes at the memory's bandwidth or at the peak of the arithmetic, the larger one.
 */
#include "sim/input/topology.h"
#include "sim/layout/legality.h"
#include "sim/program/compile.h"
#include "sim/program/cuda_blocks.h"

#include <stdio.h>
#include <string.h>

static const char *const gpus[] = {"dgx-h100", "hgx-h200"};

enum { NUM_GPUS = G_N_ELEMENTS(gpus), SEQ = 8192 };

typedef struct {
    double bytes, flops;
} Work;

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

static Work does(const Op *op, Work must)
{
    const OpSizes *s = &op->sizes;
    const double tokens = (double)(s->batch * s->seq), size = dtype_bytes(op->dtype);

    switch (op->kind) {
    case OP_EMBED_BACKWARD: /* zeroes dW, adds rows to it */
        must.bytes += ((double)s->in * (double)s->out + (double)s->rows * (double)s->out) *
                      dtype_bytes(op->dtype_out);
        break;
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

static void print_row(const Program *program, const Row *row, const Gpu *const gpu[NUM_GPUS])
{
    const Op *op = row->op;
    const Work must = {op_memory_bytes(op, unit_elements(program, op)), op_flops(op)};
    const Work done = does(op, must);
    g_autofree char *shape = op->sizes.out > 0 && op->sizes.in > 0
                                 ? g_strdup_printf("%" G_GUINT64_FORMAT " x %" G_GUINT64_FORMAT,
                                                   op->sizes.in, op->sizes.out)
                                 : g_strdup("");

    printf("%-24s %-14s %6" G_GUINT64_FORMAT " %9.1f %9.1f %9.1f %9.1f", op_kind_name(op->kind),
           shape, row->calls, must.bytes * 1e-6, done.bytes * 1e-6, must.flops * 1e-9,
           done.flops * 1e-9);
    for (guint g = 0; g < NUM_GPUS; g++)
        printf(" %9.1f", 1e6 * MAX(done.bytes / gpu[g]->memory_bytes_per_s,
                                   done.flops / gpu_peak_flops(gpu[g], DTYPE_BF16)));
    printf("\n");
}

static void print_table(const Program *program, const Gpu *const gpu[NUM_GPUS])
{
    g_autoptr(GArray) rows = rows_of(program);

    printf("%-24s %-14s %6s %9s %9s %9s %9s %9s %9s\n", "op, N = 8192, bf16", "in x out", "calls",
           "must MB", "does MB", "must GF", "does GF", "H100 us", "H200 us");
    for (guint r = 0; r < rows->len; r++)
        print_row(program, &g_array_index(rows, Row, r), gpu);
}

int main(void)
{
    g_autoptr(Model) model = model_load("llama-3.1-8b", "models", NULL);
    g_autoptr(Topology) h100 = topology_load(gpus[0], "topologies", NULL);
    g_autoptr(Topology) h200 = topology_load(gpus[1], "topologies", NULL);
    const Workload workload = {1, SEQ, &recipe_zero, OPTIMIZER_ADAMW};
    Sharding sharding = {.strategy = STRATEGY_NO_SHARD,
                         .form = FORM_PER_PARAMETER,
                         .prefetch = 1,
                         .live_units = 2,
                         .keep_root = TRUE,
                         .keep_last = TRUE,
                         .accumulate_sharded = TRUE};
    const ProgramSpec spec = {
        .model = model,
        .workload = &workload,
        .layout = {{1, 1, 1, 1, 1}},
        .sharding = &sharding,
        .schedule = {.micro_batch = 1, .micro_batches = 1, .virtual_stages = 1},
        .device = DEVICE_CUDA,
        .threads = 1,
    };

    if (model == NULL || h100 == NULL || h200 == NULL) {
        fprintf(stderr, "kernel_floors: models/ and topologies/ are not here\n");
        return 2;
    }
    sharding_normalise(&sharding, &spec.layout, &spec.schedule);
    g_autoptr(ProgramSet) set = program_compile(&spec);
    print_table(set->classes[0], (const Gpu *const[]){&h100->gpu, &h200->gpu});
    return 0;
}
