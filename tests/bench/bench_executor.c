/* bench_executor [THREADS]: one rank, one thread unless told, the 10 M-parameter model: what the
 * interpreter costs, where the time of a step goes, op by op, and how the rate of matrix products
 * compares with OpenBLAS alone on the same shapes, in one run. */
#include "tests/bench/bench.h"
#include "tests/bench/bench_plan.h"

#include "exec/run/parameters.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 9, BATCH = 4, SEQ = 128 };

static Plan *make_plan(guint threads)
{
    g_autofree char *topologies = data_dir("topologies");
    g_autoptr(GError) error = NULL;
    g_autoptr(Topology) topology = topology_load("localhost", topologies, &error);

    if (topology == NULL)
        g_error("%s", error->message);
    return bench_plan(topology, BATCH, SEQ, TIER_DEVICE, threads);
}

static void bind(Interpreter *interpreter, const Plan *plan)
{
    gint32 *tokens =
        interpreter_tensor(interpreter, (guint)interpreter_find(interpreter, "tokens"), 0);
    gint32 *labels =
        interpreter_tensor(interpreter, (guint)interpreter_find(interpreter, "labels"), 0);
    double *hyper =
        interpreter_tensor(interpreter, (guint)interpreter_find(interpreter, "hyper"), 0);
    float *rope =
        interpreter_tensor(interpreter, (guint)interpreter_find(interpreter, "rope_table"), 0);

    for (guint i = 0; i < BATCH * SEQ; i++) {
        tokens[i] = (gint32)(i * 7919 % plan->model->vocab);
        labels[i] = (gint32)(i * 104729 % plan->model->vocab);
    }
    for (guint i = 0; i < SEQ * plan->model->head_dim; i++)
        rope[i] = i % plan->model->head_dim < plan->model->head_dim / 2 ? 1.0f : 0.0f;
    hyper[HYPER_LR] = 1e-4;
    hyper[HYPER_BETA1] = 0.9;
    hyper[HYPER_BETA2] = 0.95;
    hyper[HYPER_EPS] = 1e-8;
    hyper[HYPER_STEP] = 1;
}

typedef struct {
    double step_s, ops_s, gemm_s, gemm_flops;
    double kind_ms[NUM_OPS], kind_flops[NUM_OPS];
    guint kind_count[NUM_OPS];
} Sample;

static Sample sum_ops(const Interpreter *interpreter, double step_s)
{
    const Program *program = interpreter_program(interpreter);
    const OpTime *time = interpreter_times(interpreter);
    Sample sample = {.step_s = step_s};

    for (guint c = 0; c < program->step.calls->len; c++) {
        const Segment *segment =
            program_segment(program, g_array_index(program->step.calls, Call, c).segment);

        for (guint i = 0; i < segment->num_ops; i++, time++) {
            const double took = time->end_s - time->start_s;
            const OpKind kind = segment->ops[i].kind;

            sample.ops_s += took;
            sample.kind_ms[kind] += took * 1e3;
            sample.kind_flops[kind] += op_flops(&segment->ops[i]);
            sample.kind_count[kind]++;
            if (op_class(kind) != OP_CLASS_GEMM)
                continue;
            sample.gemm_s += took;
            sample.gemm_flops += op_flops(&segment->ops[i]);
        }
    }
    return sample;
}

/* The products of one linear op, called directly. */
static double blas_seconds(const Op *op, const float *a, const float *b, float *c)
{
    const int n = (int)op->sizes.rows, in = (int)op->sizes.in, out = (int)op->sizes.out;
    const double start = clock_s();

    switch (op->kind) {
    case OP_LINEAR:
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, out, in, 1, a, in, b, in, 0, c,
                    out);
        break;
    case OP_LINEAR_BACKWARD_INPUT:
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, in, out, 1, a, out, b, in, 0, c,
                    in);
        break;
    case OP_LINEAR_BACKWARD_WEIGHT:
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, out, in, n, 1, a, out, b, in, 0, c,
                    in);
        break;
    default:
        return 0;
    }
    return clock_s() - start;
}

/* All linear ops of one step, with buffers large enough for each. */
static double blas_rate(const Interpreter *interpreter)
{
    const Program *program = interpreter_program(interpreter);
    const gsize elements = 1 << 22;
    g_autofree float *a = g_new0(float, elements), *b = g_new0(float, elements);
    g_autofree float *c = g_new0(float, elements);
    double seconds = 0, flops = 0;

    for (guint i = 0; i < elements; i++)
        a[i] = b[i] = (float)(i % 13) * 0.1f;
    for (guint k = 0; k < program->step.calls->len; k++) {
        const Segment *segment =
            program_segment(program, g_array_index(program->step.calls, Call, k).segment);

        for (guint i = 0; i < segment->num_ops; i++) {
            const double took = blas_seconds(&segment->ops[i], a, b, c);

            seconds += took;
            flops += took > 0 ? op_flops(&segment->ops[i]) : 0;
        }
    }
    return flops / seconds;
}

/* Medians over the steps, longest first. */
static void print_kinds(Sample samples[STEPS], double step_ms)
{
    double ms[NUM_OPS], values[STEPS];

    for (guint kind = 0; kind < NUM_OPS; kind++) {
        for (guint i = 0; i < STEPS; i++)
            values[i] = samples[i].kind_ms[kind];
        ms[kind] = samples_median(values, STEPS);
    }
    printf("%-28s %6s %10s %8s %10s\n", "op", "count", "ms a step", "share", "GFLOP/s");
    for (;;) {
        guint longest = 0;

        for (guint kind = 1; kind < NUM_OPS; kind++)
            if (ms[kind] > ms[longest])
                longest = kind;
        if (ms[longest] <= 0)
            return;
        printf("%-28s %6u %10.3f %7.1f%% %10.1f\n", op_kind_name((OpKind)longest),
               samples[0].kind_count[longest], ms[longest], 100 * ms[longest] / step_ms,
               samples[0].kind_flops[longest] / ms[longest] / 1e6);
        ms[longest] = 0;
    }
}

int main(int argc, char **argv)
{
    const guint threads = argc > 1 ? (guint)atoi(argv[1]) : 1;
    const RuntimeOptions options = {.transport = "self", .threads = threads, .device = DEVICE_CPU};
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = make_plan(threads);
    g_autoptr(ProgramSet) set = plan_compile(plan, &error);
    g_autoptr(Runtime) runtime = runtime_open(&options, &error);
    g_autoptr(Interpreter) interpreter =
        runtime == NULL ? NULL : interpreter_new(runtime, set, &error);
    double overhead[STEPS], share[STEPS], rate[STEPS], blas[STEPS], ratio[STEPS], step[STEPS];
    g_autofree Sample *samples = g_new(Sample, STEPS);

    if (interpreter == NULL)
        g_error("%s", error->message);
    bind(interpreter, plan);
    parameters_init(interpreter, plan->model, 1);
    for (gint i = -2; i < STEPS; i++) {
        const double start = clock_s();

        if (!interpreter_step(interpreter, TRUE, &error))
            g_error("%s", error->message);
        const Sample sample = sum_ops(interpreter, clock_s() - start);
        if (i < 0)
            continue;
        samples[i] = sample;
        step[i] = sample.step_s * 1e3;
        overhead[i] = 100 * (sample.step_s - sample.ops_s) / sample.step_s;
        share[i] = 100 * sample.gemm_s / sample.step_s;
        rate[i] = sample.gemm_flops / sample.gemm_s / 1e9;
        openblas_set_num_threads((int)threads);
        blas[i] = blas_rate(interpreter) / 1e9;
        openblas_set_num_threads(1);
        ratio[i] = 100 * rate[i] / blas[i];
    }
    printf("%s, %" G_GUINT64_FORMAT " parameters, %u x %u tokens, fp32, 1 rank, threads = %u, %s\n",
           plan->model->name, model_parameters(plan->model), BATCH, SEQ, threads,
           runtime_library(runtime));
    bench_print("step", "ms", step, STEPS);
    bench_print("interpreter: step time outside ops (target <= 2)", "%", overhead, STEPS);
    bench_print("matrix products' share of the step", "%", share, STEPS);
    bench_print("matrix products in the step", "GFLOP/s", rate, STEPS);
    bench_print("OpenBLAS alone, same shapes", "GFLOP/s", blas, STEPS);
    bench_print("ratio (target >= 70)", "%", ratio, STEPS);
    print_kinds(samples, samples_median(step, STEPS));
    return EXIT_SUCCESS;
}
