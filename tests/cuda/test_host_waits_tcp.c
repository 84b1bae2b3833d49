/* How often the host waits for the device in a step, on the simulated device, which counts that:
 * once, at its end, whatever there is to do. */
#include "tests/cuda/tcp_ranks.h"
#include "tests/cuda/train_layouts.h"
#include "tests/cudasim/cudasim.h"

/* Before the step that is counted: a prologue's ops run one after the other, and a graph is
 * captured in the third. */
enum { BEFORE = 1, BEFORE_GRAPH = 3 };

/* What a step with storage waits for is stated in storage.h: a file can't be read by a stream. */
static gboolean has_files(const TrainLayout *of)
{
    return of->offload.optimizer == TIER_NVME || of->offload.parameters == TIER_NVME;
}

static gboolean waits_once(const TrainTest *test, const TrainLayout *of, GraphMode mode)
{
    const InterpreterOptions options = {.graph = mode};
    const LayoutTask task = train_task(test);
    g_autoptr(GError) error = NULL;
    LayoutParts parts;
    const ProgramSpec spec = train_spec(test, of, DEVICE_CUDA, &parts);
    g_autoptr(LayoutRun) run = layout_run_new_with(test->runtime, &spec, &task, &options);

    for (guint step = 0; step < (mode == GRAPH_ON ? BEFORE_GRAPH : BEFORE); step++)
        layout_step(run, FALSE);
    layout_bind(run, run->steps + 1);
    const guint before = cudasim_host_waits();
    const gboolean ok = interpreter_step(run->interpreter, FALSE, &error);
    const guint waits = cudasim_host_waits() - before;
    g_assert_no_error(error);
    if (ok && waits == 1)
        return TRUE;
    g_autofree char *problem = g_strdup_printf("the host waits %u times in a step", waits);
    return train_say(test, of, problem);
}

static gint64 all_wait_once(const TrainTest *test)
{
    const TrainLayout *graph = NULL; /* one of them */
    gint64 failed = 0;

    for (guint i = 0; i < G_N_ELEMENTS(train_layouts); i++) {
        const TrainLayout *of = &train_layouts[i];

        if (of->ranks != test->ranks || has_files(of))
            continue;
        failed += waits_once(test, of, GRAPH_OFF) ? 0 : 1;
        graph = of->as_graph ? of : graph;
    }
    g_assert(graph != NULL);
    return failed + (waits_once(test, graph, GRAPH_ON) ? 0 : 1);
}

START_TEST(the_host_waits_once_in_a_step)
{
    if (tcp_ranks_wanted(1u << _i))
        tcp_ranks_run(1u << _i, all_wait_once);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("waits of the host");
    TCase *tcase = tcase_create("layouts");

    tcase_set_timeout(tcase, TCP_TIMEOUT_S);
    tcase_add_loop_test(tcase, the_host_waits_once_in_a_step, 0, 2);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
