/* Run under mpirun with 1 to 4 ranks: what goes on while a disk works, and what a rank says whose
 * disk fails. */
#define _GNU_SOURCE 1 /* RTLD_NEXT */
#include "exec/base/process.h"
#include "sim/base/error.h"
#include "tests/exec/fake_aio.h"
#include "tests/exec/layout_case.h"
#include "tests/exec/layout_choices.h"
#include "tests/exec/mpi_suite.h"

/* What the tests run on; Check passes them nothing. */
static struct {
    Runtime *runtime;
    guint rank, ranks;
    Model *model;
    Data *data;
} under_test;

/* Fully sharded, AdamW, 2 micro-batches; what an update works on lies in a file. */
static LayoutRun *open_run(const InterpreterOptions *options, LayoutParts *parts)
{
    const LayoutTask task = {.data = under_test.data, .seed = 3, .lr = 0.003, .clip_norm = 1};
    const Choices choices = {.level = {[FACTOR_MICRO_BATCHES] = 1, [FACTOR_TRAINING] = 1}};
    const ProgramSpec spec = choice_spec(&choices, under_test.ranks, under_test.model, parts);

    parts->sharding.strategy = STRATEGY_FULL_SHARD;
    parts->sharding.offload.optimizer = TIER_NVME;
    return layout_run_new_with(under_test.runtime, &spec, &task, options);
}

/* ---- a disk that is slow ---- */

/* Kept by the storage thread while it holds requests back. */
static struct {
    atomic_bool holds; /* from now on */
    guint64 until;     /* progress_at() of the compute lane's op that ends it; 0: nothing does */
    double patience_s; /* for one request */
    guint reached, not_reached;
    guint64 others; /* ops of other lanes that began or ended meanwhile */
} disk;

static guint64 count_of_others(const CommProgress *progress)
{
    return atomic_load(&progress->lane[LANE_COMPUTE].count) +
           atomic_load(&progress->lane[LANE_COMMUNICATION].count);
}

static void hold(void)
{
    const CommProgress *progress = &runtime_peer(under_test.runtime, under_test.rank)->progress;
    const guint64 before = count_of_others(progress);
    const double begin_s = clock_s();

    if (!atomic_load(&disk.holds))
        return;
    while (clock_s() < begin_s + disk.patience_s &&
           atomic_load(&progress->lane[LANE_COMPUTE].at) != disk.until)
        g_usleep(100);
    disk.others += count_of_others(progress) - before;
    if (atomic_load(&progress->lane[LANE_COMPUTE].at) == disk.until)
        disk.reached++;
    else
        disk.not_reached++;
    if (disk.until != 0) /* one is enough */
        atomic_store(&disk.holds, FALSE);
}

/* Number of the first op of an update, which needs what is read, and how many collectives are
 * issued after that copy and before it. */
static guint32 first_update(const Program *program, guint *collectives)
{
    g_autofree guint32 *first = program_first_ops(program);
    gboolean fetched = FALSE;

    *collectives = 0;
    for (guint c = 0; c < program->step.calls->len; c++) {
        const Segment *segment =
            program_segment(program, g_array_index(program->step.calls, Call, c).segment);

        if (g_str_has_suffix(segment->name, ".update"))
            return first[c];
        fetched |= g_str_has_suffix(segment->name, ".fetch");
        for (guint i = 0; fetched && i < segment->num_ops; i++)
            *collectives += op_kind_is_communication(segment->ops[i].kind) ? 1 : 0;
    }
    g_assert_not_reached();
}

/* Holds what the third step reads and writes; the collectives that it must not hold up. */
static guint step_with_slow_disk(const InterpreterOptions *options, gboolean to_update,
                                 double patience_s)
{
    LayoutParts parts;
    guint collectives;

    fake_aio = (FakeAio){.waits = hold};
    g_autoptr(LayoutRun) run = open_run(options, &parts);
    const guint32 update = first_update(interpreter_program(run->interpreter), &collectives);

    layout_step(run, FALSE);
    layout_step(run, FALSE);
    disk.patience_s = patience_s;
    disk.until = to_update ? progress_at(3, update) : 0;
    disk.others = disk.reached = disk.not_reached = 0;
    atomic_store(&disk.holds, TRUE);
    layout_step(run, FALSE);
    layout_drain(run);
    atomic_store(&disk.holds, FALSE);
    return collectives;
}

/* All that comes before the first update is done while a request is held; were copies in a queue
 * with collectives, those would not be. */
START_TEST(compute_and_collectives_go_on_while_a_request_is_under_way)
{
    const InterpreterOptions options = {.nvme_folder = "/var/tmp"};
    const guint collectives = step_with_slow_disk(&options, TRUE, 5);

    mpi_verdict(under_test.runtime, disk.reached == 1 && disk.not_reached == 0 &&
                                        (under_test.ranks == 1 || collectives > 0));
}
END_TEST

START_TEST(nothing_does_without_overlap)
{
    const InterpreterOptions options = {.nvme_folder = "/var/tmp", .no_overlap = TRUE};

    step_with_slow_disk(&options, FALSE, 0.002);
    mpi_verdict(under_test.runtime, disk.not_reached > 0 && disk.others == 0);
}
END_TEST

/* ---- a disk that fails ---- */

/* All ranks' at once: the job ends with the first that says so. */
START_TEST(a_disk_that_fails_in_a_step_is_said_with_the_copy)
{
    const InterpreterOptions options = {.nvme_folder = "/var/tmp"};
    g_autoptr(GError) error = NULL;
    LayoutParts parts;

    fake_aio = (FakeAio){0};
    g_autoptr(LayoutRun) run = open_run(&options, &parts);
    layout_step(run, FALSE);
    layout_drain(run);
    layout_bind(run, 2);
    fake_aio.fails = fake_aio.begun + 3;
    fake_aio.why = -EIO;
    ck_assert(!interpreter_step(run->interpreter, FALSE, &error));
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_RUNTIME));
    ck_assert_msg(strstr(error->message, ".fetch unit ") != NULL &&
                      strstr(error->message, " copy: nvme: reading ") != NULL &&
                      g_str_has_suffix(error->message,
                                       " of this rank's file in /var/tmp: Input/output error"),
                  "%s", error->message);
    ck_assert(!interpreter_drain(run->interpreter, NULL));
}
END_TEST

/* ---- main ---- */

static Suite *storage_suite(guint ranks)
{
    Suite *suite = suite_create("storage in steps");
    TCase *tcase = tcase_create("storage");

    tcase_add_test(tcase, compute_and_collectives_go_on_while_a_request_is_under_way);
    tcase_add_test(tcase, nothing_does_without_overlap);
    if (ranks == 1) /* the last: its threads have stopped */
        tcase_add_test(tcase, a_disk_that_fails_in_a_step_is_said_with_the_copy);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    const guint ranks = (guint)mpi_suite_start();

    under_test.model = layout_tied_model(4);
    under_test.data = layout_data_new(&layout_ascii, under_test.model->vocab, CHOICE_SEQ);
    under_test.runtime = case_runtime("mpi", 0);
    under_test.rank = runtime_rank(under_test.runtime);
    under_test.ranks = ranks;
    const int failed = mpi_suite_run(under_test.runtime, storage_suite(ranks));
    runtime_close(under_test.runtime);
    data_free(under_test.data);
    model_free(under_test.model);
    MPI_Finalize();
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
