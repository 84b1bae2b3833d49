/* The loop, closed: steps simulated under other figures than a topology file states are stored as
 * if they had run; with what fsdp-report --calibrate makes of the file they are predicted. */
#include "reports/feedback/feedback.h"
#include "sim/base/error.h"
#include "tests/mutate.h"
#include "tests/reports/fabricate.h"
#include "tests/sim/plan_case.h"

#include <sqlite3.h>
#include <sys/stat.h>

enum { CASES = 12, SAMPLED = 3, DISTURBED = 28 }; /* one of the sampled steps is */

/* Of a step's time: rows have 4 digits. */
static const double BOUND = 2e-3;

/* A run that never was: its plan, its store, and the file that others predict with. */
typedef struct {
    Plan *plan;
    ProgramSet *set;
    char *folder, *db, *file;
    double step_s; /* what it takes */
    double gap_s;  /* of sampled steps: between an op and the next */
    const char *notes;
} Loop;

/* Topologies that differ in what devices and links do. */
static Topology *topology_of(DeviceKind device, gboolean is_truth)
{
    Topology *topology = device == DEVICE_CPU
                             ? case_cpu_topology(4, is_truth ? 10 : 3)
                             : case_gpu_topology(1, 80000, is_truth ? 9000 : 30000);

    if (is_truth)
        topology->gpu.peak_flops[DTYPE_FP32] *= 0.3;
    else
        topology->gpu.peak_flops[DTYPE_BF16] *= 0.5;
    return topology;
}

static Plan *plan_of(const Case *from)
{
    Plan *plan = case_plan(from, topology_of(from->device, TRUE));

    plan_price(plan);
    return plan;
}

/* All members but the last one come early and wait: of a pipeline's stages all but the last. */
static double wait_s(const Loop *loop, guint rank, const Program *program, const Op *op)
{
    const Stream *stream = program_stream(program, op->stream);
    const Group *group =
        !op_kind_is_communication(op->kind)
            ? NULL
            : program_set_group(loop->set, program_stream_purpose(program, stream), rank);

    return group == NULL || group->ranks[group->size - 1] == rank ? 0 : 1e-3 * (rank + 1);
}

static void store_rank(const Loop *loop, Store *store, const GArray *ops, guint rank, guint step)
{
    const guint class_index = loop->set->class_of[rank];
    const Program *program = loop->set->classes[class_index];
    const double slow = step == DISTURBED ? 10 : 1;
    g_autoptr(GError) error = NULL;

    for (guint i = 0; i < ops->len; i++) {
        const SimulatedOp *done = &g_array_index(ops, SimulatedOp, i);
        if (done->class_index != class_index)
            continue;
        const Call *call = &g_array_index(program->step.calls, Call, done->call);
        const Op *op = &program_segment(program, call->segment)->ops[done->op];
        g_autofree char *label = program_op_label(program, call, op);
        const StoreOp row = {
            .rank = rank,
            .step = step,
            .op = label,
            .stream = program_stream(program, op->stream)->name,
            .start = slow * (done->start_s - wait_s(loop, rank, program, op) + i * loop->gap_s),
            .end = slow * (done->end_s + i * loop->gap_s),
        };

        must(store_add_op(store, 1, &row, &error), error);
    }
}

/* Of @ranks the ops are in the store. */
static void store_run(const Loop *loop, guint ranks)
{
    const SimulateContext context = plan_context(loop->plan);
    g_autofree StepTime *times = g_new(StepTime, loop->set->num_classes);
    g_autoptr(GArray) ops = g_array_new(FALSE, FALSE, sizeof(SimulatedOp));
    g_autofree char *plan = plan_print(loop->plan);
    g_autoptr(GError) error = NULL;
    g_autoptr(Store) store = store_open(loop->db, FALSE, &error);
    const StoreRun run = {.created = "2026-03-04T05:06:07Z",
                          .plan_json = plan,
                          .host = "node-17",
                          .device = device_kind_name(loop->plan->device),
                          .notes = loop->notes,
                          .ranks = loop->plan->gpus};

    must(store != NULL, error);
    must(store_begin(store, &error) && store_add_run(store, &run, &error) == 1, error);
    simulate_set(loop->set, &context, times, ops);
    for (guint s = 0; s < SAMPLED; s++)
        for (guint rank = 0; rank < ranks; rank++)
            store_rank(loop, store, ops, rank, 3 + 25 * s);
    fabricate_term(store, 1, 0, "step_seconds", (double[]){loop->step_s, loop->step_s}, "s");
    fabricate_term(store, 1, 0, "memory_bytes.framework", (double[]){1, 123456789}, "bytes");
    must(store_commit(store, &error), error);
}

static void write_file(const Loop *loop, const Topology *topology)
{
    g_autofree char *text = topology_print(topology);
    g_autofree char *own = g_strconcat("# my machine\n", text, "\n# its end\n", NULL);

    ck_assert(g_file_set_contents(loop->file, own, -1, NULL));
}

static void loop_open(Loop *loop, const Case *from)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Topology) wrong = topology_of(from->device, FALSE);

    *loop = (Loop){.plan = plan_of(from)};
    loop->set = plan_compile(loop->plan, &error);
    must(loop->set != NULL, error);
    loop->step_s = loop->plan->prediction.step_seconds;
    loop->db = scratch_path("runs.db");
    loop->folder = g_path_get_dirname(loop->db);
    loop->file = g_build_filename(loop->folder, "here.topology", NULL);
    write_file(loop, wrong);
}

static void loop_close(Loop *loop)
{
    scratch_remove(loop->db);
    program_set_free(loop->set);
    plan_free(loop->plan);
    g_free(loop->folder);
    g_free(loop->db);
    g_free(loop->file);
}

static gboolean calibrate(const Loop *loop, Feedback *feedback, GError **error)
{
    g_autoptr(Report) report = report_load(loop->db, error);
    const ReportRun *run = report == NULL ? NULL : report_find(report, 0, error);

    return run != NULL && feedback_write(feedback, report, run, loop->file, error);
}

static char *contents(const char *path)
{
    char *text = NULL;

    ck_assert(g_file_get_contents(path, &text, NULL, NULL));
    return text;
}

/* A layout of the node of 4 GPUs, or of any number of ranks on 4 cores. */
static Case draw_case(GRand *random, Model *model)
{
    for (;;) {
        const Case one = case_random_4d(random, model);

        if (one.device == DEVICE_CPU || layout_world(&one.layout) <= 4)
            return one;
    }
}

static void each_loop(guint num, void (*check)(Loop *loop))
{
    g_autoptr(GRand) random = g_rand_new_with_seed(23);
    g_autoptr(Model) model = case_model(&case_shape);

    for (guint i = 0; i < num; i++) {
        const Case one = draw_case(random, model);
        Loop loop;

        loop_open(&loop, &one);
        check(&loop);
        loop_close(&loop);
    }
}

static void check_closed(Loop *loop)
{
    g_autoptr(GError) error = NULL;
    g_auto(Feedback) feedback = {0}, again = {0};

    store_run(loop, loop->plan->ranks_per_node);
    must(calibrate(loop, &feedback, &error), error);
    ck_assert_double_eq(feedback.measured_s, loop->step_s);
    ck_assert_msg(fabs(feedback.before_s / loop->step_s - 1) > 10 * BOUND, "was right before");
    ck_assert_msg(fabs(feedback.after_s / loop->step_s - 1) <= BOUND,
                  "%s: takes %.9g s, predicted %.9g s before, %.9g s now",
                  plan_layout_text(loop->plan), loop->step_s, feedback.before_s, feedback.after_s);
    ck_assert_uint_eq(feedback.steps, SAMPLED);
    ck_assert_uint_eq(feedback.after_memory, 123456789);
    ck_assert_uint_eq(feedback.incomplete, 0);

    g_autofree char *once = contents(loop->file);
    must(calibrate(loop, &again, &error), error);
    g_autofree char *twice = contents(loop->file);
    ck_assert_str_eq(once, twice);
    ck_assert_double_eq(again.before_s, feedback.after_s);
}

START_TEST(what_ran_is_predicted_next_time_and_calibrating_twice_changes_nothing)
{
    each_loop(CASES, check_closed);
}
END_TEST

/* The file's own figures, as if they had been measured. */
static void check_fixed_point(Loop *loop)
{
    g_autoptr(GError) error = NULL;
    g_auto(Feedback) feedback = {0};

    write_file(loop, loop->plan->topology);
    store_run(loop, loop->plan->ranks_per_node);
    must(calibrate(loop, &feedback, &error), error);
    ck_assert_double_eq_tol(feedback.before_s, loop->step_s, 1e-9 * loop->step_s);
    ck_assert_double_eq_tol(feedback.after_s, loop->step_s, BOUND * loop->step_s);
}

START_TEST(what_was_predicted_right_stays)
{
    each_loop(CASES / 2, check_fixed_point);
}
END_TEST

static void check_text(Loop *loop)
{
    g_autoptr(GError) error = NULL;
    g_auto(Feedback) feedback = {0};
    struct stat info;

    store_run(loop, loop->plan->ranks_per_node);
    ck_assert_int_eq(g_chmod(loop->file, 0640), 0);
    must(calibrate(loop, &feedback, &error), error);
    g_autofree char *text = contents(loop->file);
    g_autoptr(Topology) read = topology_parse(text, "file", "", &error);
    must(read != NULL, error);
    ck_assert_ptr_nonnull(strstr(text, "# my machine\n"));
    ck_assert_ptr_nonnull(strstr(text, "# its end\n"));
    ck_assert_ptr_nonnull(
        strstr(read->measured.source, "run 1 of runs.db (2026-03-04T05:06:07Z, node-17, "));
    ck_assert_uint_gt(read->measured.gemm->len, 0);
    ck_assert_int_eq(stat(loop->file, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0640);
}

START_TEST(the_file_keeps_its_comments_and_says_which_run_it_learnt_from)
{
    each_loop(1, check_text);
}
END_TEST

/* One rank, with the notes of a run. */
static double with_gaps(const char *notes, double gap_s, guint64 *ops)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_with(model, STRATEGY_NO_SHARD, 1, 2);
    g_autoptr(GError) error = NULL;
    g_auto(Feedback) feedback = {0};
    Loop loop;

    loop_open(&loop, &one);
    loop.gap_s = gap_s;
    loop.notes = notes;
    store_run(&loop, 1);
    must(calibrate(&loop, &feedback, &error), error);
    *ops = loop.plan->ops;
    loop_close(&loop);
    return feedback.after_s;
}

/* Where the others ran as a CUDA graph, what lies between the ops of a sampled step is not theirs.
 */
START_TEST(what_lies_between_ops_is_part_of_a_step_that_is_no_graph)
{
    const double gap_s = 5e-6;
    guint64 ops;
    const double without_s = with_gaps(NULL, 0, &ops), with_s = with_gaps("  x\n", gap_s, &ops);
    const double graph_s = with_gaps("  " STORE_GRAPHS "    on from step 3 on\n", gap_s, &ops);

    ck_assert_double_eq_tol(with_s, without_s + (double)ops * gap_s, 0.05 * (double)ops * gap_s);
    ck_assert_double_eq_tol(graph_s, without_s, 1e-9);
}
END_TEST

/* Stores of old, and ranks beyond the node: the time of one member may be that of waiting. */
START_TEST(collectives_of_which_a_member_is_unknown_teach_nothing)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case two = case_of(model, 1, 2, 1);
    g_autoptr(GError) error = NULL;
    g_auto(Feedback) feedback = {0};
    Loop loop;

    loop_open(&loop, &two);
    store_run(&loop, 1);
    must(calibrate(&loop, &feedback, &error), error);
    ck_assert_uint_eq(feedback.rows.collectives, 0);
    ck_assert_uint_gt(feedback.rows.gemm, 0);
    ck_assert_uint_gt(feedback.incomplete, 0);
    loop_close(&loop);
}
END_TEST

/* ---- refused ---- */

static void refuse(const Loop *loop, const char *message)
{
    g_autofree char *before = contents(loop->file);
    g_auto(Feedback) feedback = {0};
    g_autoptr(GError) error = NULL;

    ck_assert(!calibrate(loop, &feedback, &error));
    ck_assert_msg(strstr(error->message, message) != NULL, "\"%s\" lacks \"%s\"", error->message,
                  message);
    ck_assert_ptr_null(strchr(error->message, '\n'));
    ck_assert_int_eq(error_exit_status(error), 2);
    g_autofree char *after = contents(loop->file);
    ck_assert_str_eq(before, after);
}

static void set_store(const Loop *loop, const char *sql)
{
    sqlite3 *db = NULL;

    ck_assert_int_eq(sqlite3_open(loop->db, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static void check_refusals(Loop *loop)
{
    static const struct {
        const char *sql, *message;
    } damage[] = {
        {"UPDATE ops SET \"end\" = NULL WHERE rowid = 7", "is no op of its plan at that place"},
        {"UPDATE ops SET op = 'block.forward unit 9 micro-batch 9 linear' WHERE rowid = 6",
         "is no op of its plan at that place"},
        {"DELETE FROM ops WHERE step = 3 AND rank = 0; UPDATE ops SET rank = 99 WHERE rank = 0",
         "rank 99 has ops"},
        {"DELETE FROM ops", "run 1 has no op times"},
        {"UPDATE runs SET plan = '{}'", "run 1"},
        {"UPDATE runs SET plan = NULL", "it has no plan"},
    };
    static const struct {
        const char *from, *to, *message;
    } others[] = {
        {"[gpu core]", "[gpu zen]", "describes cpu zen, 4 a node"},
        {"gpus=4", "gpus=3", "describes cpu core, 3 a node"},
        {"kind=cpu", "kind=gpu", "allowed"},
        {"latency", "latancy", "did you mean"},
    };

    loop->notes = "  run            to step 60, seed 1" STORE_CHECK_MODE "\n";
    store_run(loop, loop->plan->ranks_per_node);
    refuse(loop, "ran with check mode");
    set_store(loop, "UPDATE runs SET notes = NULL");
    for (guint i = 0; i < G_N_ELEMENTS(others); i++) {
        g_autofree char *text = contents(loop->file);
        g_auto(GStrv) parts = g_strsplit(text, others[i].from, -1);
        g_autofree char *other = g_strjoinv(others[i].to, parts);
        g_auto(GStrv) names = g_strsplit(other, "gpu=core", -1);
        g_autofree char *whole = g_strjoinv(i == 0 ? "gpu=zen" : "gpu=core", names);

        ck_assert(g_file_set_contents(loop->file, whole, -1, NULL));
        refuse(loop, others[i].message);
        ck_assert(g_file_set_contents(loop->file, text, -1, NULL));
    }
    for (guint i = 0; i < G_N_ELEMENTS(damage); i++) {
        set_store(loop, damage[i].sql);
        refuse(loop, damage[i].message);
    }
}

START_TEST(another_device_or_damage_is_refused_and_the_file_stays)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case two = case_of(model, 1, 2, 1);
    Loop loop;

    loop_open(&loop, &two);
    check_refusals(&loop);
    loop_close(&loop);
}
END_TEST

/* Whatever the file holds: it is refused and stays, or what is made of it can be read. */
START_TEST(damaged_files_are_refused_or_stay_topologies)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(41);
    g_autoptr(Model) model = case_model(&case_shape);
    const Case two = case_of(model, 1, 2, 1);
    Loop loop;

    loop_open(&loop, &two);
    store_run(&loop, 2);
    g_autofree char *whole = contents(loop.file);
    for (guint i = 0; i < 60; i++) {
        g_autofree char *text = mutate(whole, random);
        g_auto(Feedback) feedback = {0};
        g_autoptr(GError) error = NULL;

        ck_assert(g_file_set_contents(loop.file, text, -1, NULL));
        const gboolean fed = calibrate(&loop, &feedback, &error);
        g_autofree char *after = contents(loop.file);
        g_autoptr(Topology) read = fed ? topology_parse(after, "file", "", &error) : NULL;

        ck_assert_msg(fed ? read != NULL : strcmp(text, after) == 0, "%s\n%s",
                      error == NULL ? "" : error->message, text);
    }
    loop_close(&loop);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("feedback");
    TCase *tcase = tcase_create("feedback");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, what_ran_is_predicted_next_time_and_calibrating_twice_changes_nothing);
    tcase_add_test(tcase, what_was_predicted_right_stays);
    tcase_add_test(tcase, the_file_keeps_its_comments_and_says_which_run_it_learnt_from);
    tcase_add_test(tcase, what_lies_between_ops_is_part_of_a_step_that_is_no_graph);
    tcase_add_test(tcase, collectives_of_which_a_member_is_unknown_teach_nothing);
    tcase_add_test(tcase, another_device_or_damage_is_refused_and_the_file_stays);
    tcase_add_test(tcase, damaged_files_are_refused_or_stay_topologies);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
