/* Steps as CUDA graphs: they change no bit, wait for what was issued before them, and what is
 * issued after them waits for them; in auto mode all ranks choose the same. */
#include "tests/cuda/tcp_ranks.h"
#include "tests/cuda/train_layouts.h"

enum { GRAPH_STEPS = 9, SAMPLED = 4, COUNTED = 7, AUTO_STEPS = 10 };

static LayoutRun *run_new(const TrainTest *test, const TrainLayout *of, GraphMode mode,
                          LayoutParts *parts)
{
    const InterpreterOptions options = {.graph = mode};
    const LayoutTask task = train_task(test);
    const ProgramSpec spec = train_spec(test, of, DEVICE_CUDA, parts);

    return layout_run_new_with(test->runtime, &spec, &task, &options);
}

/* Of graphs, steps 1 and 2 are issued, 3 is captured; 4, sampled, is issued behind it; 8
 * begins with a prologue. */
static gboolean train(const TrainTest *test, const TrainLayout *of, GraphMode mode,
                      double loss[GRAPH_STEPS], double norm[GRAPH_STEPS])
{
    LayoutParts parts;
    g_autoptr(LayoutRun) run = run_new(test, of, mode, &parts);
    gboolean ok = TRUE;

    for (guint step = 1; step <= GRAPH_STEPS; step++) {
        if (step == COUNTED)
            ok &= train_is_fine(test, of, layout_counted_step(run, FALSE));
        else
            layout_step(run, step == SAMPLED);
    }
    layout_drain(run);
    memcpy(loss, run->loss, GRAPH_STEPS * sizeof *loss);
    memcpy(norm, run->norm, GRAPH_STEPS * sizeof *norm);
    return ok;
}

static gboolean graphs_change_no_bit(const TrainTest *test, const TrainLayout *of)
{
    double loss[2][GRAPH_STEPS], norm[2][GRAPH_STEPS];

    if (!train(test, of, GRAPH_OFF, loss[0], norm[0]) ||
        !train(test, of, GRAPH_ON, loss[1], norm[1]))
        return FALSE;
    for (guint i = 0; i < GRAPH_STEPS; i++)
        if (memcmp(&loss[0][i], &loss[1][i], sizeof(double)) != 0 ||
            memcmp(&norm[0][i], &norm[1][i], sizeof(double)) != 0) {
            g_autofree char *text =
                g_strdup_printf("step %u: loss %.17g and norm %.17g, as a graph %.17g and %.17g",
                                i + 1, loss[0][i], norm[0][i], loss[1][i], norm[1][i]);
            return train_say(test, of, text);
        }
    return TRUE;
}

static gboolean auto_decides(const TrainTest *test, const TrainLayout *of)
{
    LayoutParts parts;
    g_autoptr(LayoutRun) run = run_new(test, of, GRAPH_AUTO, &parts);
    const char *text = interpreter_graphs(run->interpreter);
    gint64 on, any;
    g_autoptr(GError) error = NULL;

    if (strncmp(text, "auto", 4) != 0)
        return train_say(test, of, text);
    while (run->steps < AUTO_STEPS)
        layout_step(run, run->steps + 1 == SAMPLED);
    layout_drain(run);
    text = interpreter_graphs(run->interpreter);
    on = any = strncmp(text, "on from step 11 on", 18) == 0;
    gboolean ok = runtime_agree_max(test->runtime, &any, &error);
    g_assert_no_error(error);
    if (!ok || on != any || (!on && strncmp(text, "off from step 11 on", 19) != 0))
        return train_say(test, of, text);
    return TRUE;
}

static gint64 try_graphs(const TrainTest *test)
{
    gint64 failed = 0;

    for (guint i = 0; i < G_N_ELEMENTS(train_layouts); i++) {
        const TrainLayout *of = &train_layouts[i];

        if (train_layout_is_wanted(test, of) && of->as_graph)
            failed += graphs_change_no_bit(test, of) ? 0 : 1;
    }
    return failed;
}

static gint64 try_auto(const TrainTest *test)
{
    gint64 failed = 0;

    for (guint i = 0; i < G_N_ELEMENTS(train_layouts); i++)
        if (train_layouts[i].ranks == test->ranks && train_layouts[i].as_graph)
            return auto_decides(test, &train_layouts[i]) ? 0 : 1;
    return failed;
}

START_TEST(steps_as_graphs_are_the_same_to_the_bit)
{
    if (tcp_ranks_wanted(1u << _i))
        tcp_ranks_run(1u << _i, try_graphs);
}
END_TEST

START_TEST(what_is_faster_is_chosen_by_all_ranks_alike)
{
    if (tcp_ranks_wanted(1u << _i))
        tcp_ranks_run(1u << _i, try_auto);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("graphs");
    TCase *tcase = tcase_create("steps");

    tcase_set_timeout(tcase, TCP_TIMEOUT_S);
    tcase_add_loop_test(tcase, steps_as_graphs_are_the_same_to_the_bit, 0, 3);
    tcase_add_loop_test(tcase, what_is_faster_is_chosen_by_all_ranks_alike, 0, 3);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
