/* Run under mpirun with 1, 2 or 4 ranks: trainings on the CUDA device, joined by MPI through pinned
 * memory, or with NCCL in the environment by NCCL. */
#include "sim/base/error.h"
#include "tests/cuda/train_layouts.h"

static TrainTest under_test;

START_TEST(layouts_train_on_the_device_as_one_rank_on_the_cpu)
{
    g_autoptr(GError) error = NULL;
    gint64 failed = train_all_layouts(&under_test);

    ck_assert(runtime_agree_max(under_test.runtime, &failed, &error));
    ck_assert_msg(failed == 0, "a rank says why on stderr");
}
END_TEST

/* Not in silence, and not at the first step that would be one. */
START_TEST(graphs_are_refused_where_communication_passes_through_the_host)
{
    const TrainLayout of = {.layout = {{1, 1, under_test.ranks, 1, 1}},
                            .strategy = STRATEGY_FULL_SHARD};
    const gboolean possible = g_getenv("NCCL") != NULL || under_test.ranks == 1;
    InterpreterOptions options = {.graph = GRAPH_ON};
    g_autoptr(GError) error = NULL;
    LayoutParts parts;
    const ProgramSpec spec = train_spec(&under_test, &of, DEVICE_CUDA, &parts);
    g_autoptr(ProgramSet) set = program_compile(&spec);
    g_autoptr(Interpreter) on = interpreter_new_with(under_test.runtime, set, &options, &error);

    ck_assert_int_eq(on != NULL, possible);
    ck_assert(possible || (g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT) &&
                           strstr(error->message, "passes through host memory") != NULL));
}
END_TEST

START_TEST(graphs_are_refused_where_state_comes_from_files)
{
    const TrainLayout of = {.layout = {{1, 1, under_test.ranks, 1, 1}},
                            .strategy = STRATEGY_FULL_SHARD,
                            .bf16 = TRUE,
                            .offload = {.optimizer = TIER_NVME}};
    InterpreterOptions options = {.graph = GRAPH_ON, .nvme_folder = "/var/tmp"};
    g_autoptr(GError) error = NULL;
    LayoutParts parts;
    const ProgramSpec spec = train_spec(&under_test, &of, DEVICE_CUDA, &parts);
    g_autoptr(ProgramSet) set = program_compile(&spec);
    g_autoptr(Interpreter) on = interpreter_new_with(under_test.runtime, set, &options, &error);

    ck_assert_ptr_null(on);
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
    ck_assert_msg(strstr(error->message, "files (the nvme tier)") != NULL, "%s", error->message);
    options.graph = GRAPH_AUTO;
    g_clear_error(&error);
    g_autoptr(Interpreter) off = interpreter_new_with(under_test.runtime, set, &options, &error);
    ck_assert_ptr_nonnull(off);
    ck_assert_str_eq(interpreter_graphs(off), "off, since state of the nvme tier comes from files");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("training on CUDA");
    TCase *tcase = tcase_create("layouts");

    tcase_add_test(tcase, layouts_train_on_the_device_as_one_rank_on_the_cpu);
    tcase_add_test(tcase, graphs_are_refused_where_communication_passes_through_the_host);
    tcase_add_test(tcase, graphs_are_refused_where_state_comes_from_files);
    suite_add_tcase(suite, tcase);
    return train_suite_run(&under_test, suite);
}
