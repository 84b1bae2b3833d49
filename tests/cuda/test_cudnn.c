/* Attention by cuDNN where there is one, in a training; that it is refused where it can't be had.
 */
#include "tests/cuda/cudnn_case.h"

static TrainTest test;
static gboolean absent; /* there is no cuDNN */

static void setup(void)
{
    test = cudnn_test();
    g_autofree char *why = cudnn_refusal_of(&test, &cudnn_layout);
    absent = why != NULL && strstr(why, "libcudnn") != NULL;
    if (absent)
        printf("SKIP: %s\n", why);
    else
        ck_assert_msg(why == NULL, "%s", why);
}

static void teardown(void)
{
    train_test_close(&test);
}

static LayoutRun *train(AttentionMode attention)
{
    const InterpreterOptions options = {.attention = attention};
    const LayoutTask task = train_task(&test);
    LayoutParts parts;
    const ProgramSpec spec = train_spec(&test, &cudnn_layout, DEVICE_CUDA, &parts);
    LayoutRun *run = layout_run_new_with(test.runtime, &spec, &task, &options);

    layout_train_to(run, TRAIN_STEPS);
    return run;
}

START_TEST(losses_are_those_of_the_cpu)
{
    double want[TRAIN_STEPS];

    if (absent)
        return;
    train_reference(&test, &(TrainLayout){.bf16 = TRUE}, want);
    g_autoptr(LayoutRun) run = train(ATTENTION_BY_CUDNN);
    ck_assert(g_str_has_prefix(interpreter_attention(run->interpreter), "cuDNN 9."));
    for (guint s = 0; s < TRAIN_STEPS; s++)
        ck_assert_double_eq_tol(run->loss[s] / want[s], 1, 1e-2);
}
END_TEST

/* Of both passes: the first loss is of the forward alone, the norm of the backward. */
START_TEST(losses_and_norms_are_near_those_of_the_own_kernels)
{
    if (absent)
        return;
    g_autoptr(LayoutRun) own = train(ATTENTION_BY_OWN);
    ck_assert_str_eq(interpreter_attention(own->interpreter), "own kernels");
    g_autoptr(LayoutRun) run = train(ATTENTION_BY_AUTO);
    ck_assert(g_str_has_prefix(interpreter_attention(run->interpreter), "cuDNN 9."));
    for (guint s = 0; s < TRAIN_STEPS; s++) {
        ck_assert_double_eq_tol(run->loss[s] / own->loss[s], 1, 2e-3);
        ck_assert_double_eq_tol(run->norm[s] / own->norm[s], 1, 1e-2);
    }
}
END_TEST

/* ---- as a graph ---- */

enum { Q, K, V, O, LSE, SCRATCH, DOUT, DQ, DK, DV, NUM_ARRAYS };
enum { ELEMENTS = 4096, ARRAY_BYTES = 1 << 20 }; /* of bf16 noise; more than any has */

/* The program's first op of that kind on these arrays. */
static void launch(const Program *program, OpKind kind, guint8 *memory)
{
    static const guint forward[] = {Q, K, V, O, LSE, SCRATCH};
    static const guint backward[] = {DOUT, Q, K, V, O, LSE, DQ, DK, DV, SCRATCH};
    const guint *arrays = kind == OP_ATTENTION ? forward : backward;

    for (guint s = 0; s < program->segments->len; s++) {
        const Segment *segment = program_segment(program, s);

        for (guint i = 0; i < segment->num_ops; i++) {
            Launch op = {.op = &segment->ops[i], .stream = COMPUTE_STREAM};

            if (op.op->kind != kind)
                continue;
            for (guint a = 0; a < op.op->num_operands; a++)
                op.operand[a] = memory + (gsize)arrays[a] * ARRAY_BYTES;
            device_run(runtime_device(test.runtime), &op);
            return;
        }
    }
    ck_abort_msg("the program has no attention");
}

static void fill(Device *device, guint8 *memory)
{
    guint64 state = 1;
    guint16 values[ELEMENTS];

    for (guint i = 0; i < ELEMENTS; i++) {
        state = layout_mix(state + i);
        values[i] = bf16_from_float((float)(state >> 40) / (float)(1 << 23) - 1);
    }
    device_fill(device, memory, 0, (gsize)NUM_ARRAYS * ARRAY_BYTES);
    for (guint a = 0; a < NUM_ARRAYS; a++)
        if (a <= V || a == DOUT)
            device_write(device, memory + (gsize)a * ARRAY_BYTES, values, sizeof values);
}

/* o and dv, which have an order of summation. */
static void read_results(Device *device, const guint8 *memory, guint16 results[2][ELEMENTS])
{
    g_autoptr(GError) error = NULL;

    device_read(device, results[0], memory + (gsize)O * ARRAY_BYTES, sizeof results[0]);
    device_read(device, results[1], memory + (gsize)DV * ARRAY_BYTES, sizeof results[1]);
    ck_assert_msg(device_sync(device, &error), "%s", error == NULL ? "" : error->message);
}

static void run_both(const Program *program, guint8 *memory)
{
    launch(program, OP_ATTENTION, memory);
    launch(program, OP_ATTENTION_BACKWARD, memory);
}

START_TEST(both_passes_can_be_kept_as_a_graph)
{
    Device *device = runtime_device(test.runtime);
    const DeviceQueueOps *queues = device_queues(device);
    guint16 issued[2][ELEMENTS], replayed[2][ELEMENTS];
    g_autoptr(GError) error = NULL;
    LayoutParts parts;
    const ProgramSpec spec = train_spec(&test, &cudnn_layout, DEVICE_CUDA, &parts);

    if (absent)
        return;
    g_autoptr(ProgramSet) set = program_compile(&spec);
    const Program *program = set->classes[0];
    ck_assert(device_library_attention(device, program, &error) != NULL);
    guint8 *memory = queues->alloc(device, (gsize)NUM_ARRAYS * ARRAY_BYTES, &error);
    fill(device, memory);
    run_both(program, memory);
    read_results(device, memory, issued);
    fill(device, memory);
    ck_assert(queues->capture_begin(device, &error));
    run_both(program, memory);
    DeviceGraph *graph = queues->capture_end(device, &error);
    ck_assert(graph != NULL);
    queues->graph_run(device, graph);
    read_results(device, memory, replayed);
    ck_assert_mem_eq(issued, replayed, sizeof issued);
    ck_assert(issued[0][0] != 0 && issued[1][0] != 0);
    queues->graph_free(device, graph);
    queues->release(device, memory);
}
END_TEST

/* ---- where it can't be had ---- */

START_TEST(fp32_and_positions_are_left_to_the_own_kernels)
{
    const TrainLayout fp32 = {.layout = {.size = {1, 1, 1, 1, 1}}};
    const TrainLayout context = {.layout = {.size = {1, 1, 1, 2, 1}}, .bf16 = TRUE};
    g_autofree char *of_fp32 = cudnn_refusal_of(&test, &fp32);
    g_autofree char *of_context = cudnn_refusal_of(&test, &context);

    if (absent)
        return;
    ck_assert_str_eq(of_fp32, "it is used for bf16, and here fp32 gives fp32");
    ck_assert_str_eq(of_context, "context parallel attention has positions");
}
END_TEST

/* The program's own scratch, made smaller. */
static char *refusal_with_scratch(guint64 bytes)
{
    LayoutParts parts;
    const ProgramSpec spec = train_spec(&test, &cudnn_layout, DEVICE_CUDA, &parts);
    g_autoptr(ProgramSet) set = program_compile(&spec);
    Program *program = set->classes[0];

    for (guint t = 0; t < program->tensors->len; t++) {
        Tensor *tensor = program_tensor(program, t);

        if (tensor->kind == TENSOR_WORKSPACE)
            tensor->elements = bytes / dtype_bytes(tensor->dtype);
    }
    return cudnn_refusal(&test, program);
}

/* 4 * 8 rows of 4 heads of 8: sums of dq take 4096 bytes, dots 512. */
START_TEST(the_plans_scratch_is_never_exceeded)
{
    if (absent)
        return;
    g_autofree char *no_sums = refusal_with_scratch(4352);
    ck_assert_str_eq(no_sums,
                     "backward: its sums take 4608 bytes of scratch, and the plan has 4352");
    g_autofree char *no_workspace = refusal_with_scratch(4608);
    ck_assert_msg(strstr(no_workspace, "bytes of workspace, and 0 are free") != NULL, "%s",
                  no_workspace);
    g_autofree char *enough = refusal_with_scratch(1 << 20);
    ck_assert_msg(enough == NULL, "%s", enough);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attention by cuDNN");
    TCase *tcase = tcase_create("training");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, losses_are_those_of_the_cpu);
    tcase_add_test(tcase, both_passes_can_be_kept_as_a_graph);
    tcase_add_test(tcase, losses_and_norms_are_near_those_of_the_own_kernels);
    tcase_add_test(tcase, fp32_and_positions_are_left_to_the_own_kernels);
    tcase_add_test(tcase, the_plans_scratch_is_never_exceeded);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
