/* Calibration.  This program is also the ranks that it starts: `test_calibrate rank-part FILE`. */
#include "exec/calibrate/calibrate.h"

#include "exec/calibrate/calibrate_comm.h"
#include "exec/calibrate/calibrate_ops.h"
#include "exec/calibrate/calibrate_storage.h"
#include "exec/calibrate/calibrate_tasks.h"
#include "sim/base/error.h"
#include "sim/base/samples.h"
#include "sim/cost/collective.h"
#include "sim/cost/compute.h"
#include "tests/suite.h"

#include <glib/gstdio.h>
#include <stdio.h>
#include <unistd.h>

static const char *const rank_command[] = {"test_calibrate", "rank-part", NULL};
static const CalibrateOptions options = {
    .quick = TRUE, .topologies_dir = "topologies", .rank_command = rank_command};

static OpTask *task_at(const GArray *tasks, guint i)
{
    return &g_array_index(tasks, OpTask, i);
}

static Topology *localhost(void)
{
    g_autoptr(GError) error = NULL;
    Topology *topology = topology_load("localhost", options.topologies_dir, &error);

    g_assert_no_error(error);
    return topology;
}

/* ---- tasks and rows ---- */

/* But head_stats, which is priced by a part of what head_loss's rows say, copies between tiers, of
 * which a CPU has one, and what no device has kernels for (op.h: behind the exchange). */
START_TEST(every_compute_op_is_measured)
{
    g_autoptr(GArray) tasks = op_tasks_new(CALIBRATE_CPU_QUICK);
    gboolean found[NUM_OPS] = {FALSE};

    for (guint i = 0; i < tasks->len; i++)
        found[task_at(tasks, i)->op.kind] = TRUE;
    found[OP_HEAD_STATS] = found[OP_HEAD_LOSS];
    found[OP_COPY] = TRUE;
    for (OpKind kind = 0; kind <= OP_EXCHANGE; kind++)
        ck_assert_msg(found[kind] != op_kind_is_communication(kind), "%s", op_kind_name(kind));
}
END_TEST

/* Any positive function of the work will do, as long as equal products take equal times. */
static double made_up_seconds(const OpTask *task)
{
    const Op *op = &task->op;
    double seconds = 1e-6 + op_flops(op) / 50e9 + op_memory_bytes(op, task->unit_elements) / 10e9;

    if (op->kind == OP_HEAD_LOSS)
        seconds +=
            3e-6 + CALIBRATE_BYTES_PER_LOGIT * (double)(op->sizes.rows * op->sizes.out) / 5e9;
    return seconds;
}

static GArray *made_up_tasks(gboolean quick)
{
    GArray *tasks = op_tasks_new(quick ? CALIBRATE_CPU_QUICK : CALIBRATE_CPU);

    for (guint i = 0; i < tasks->len; i++)
        task_at(tasks, i)->seconds = made_up_seconds(task_at(tasks, i));
    return tasks;
}

START_TEST(no_two_rows_have_the_same_key)
{
    g_autoptr(GArray) tasks = made_up_tasks(_i == 0);
    g_autoptr(Topology) topology = localhost();
    g_autoptr(GError) error = NULL;

    op_tasks_add_rows(tasks, 1, 1, &topology->measured);
    g_autofree char *text = topology_print(topology);
    g_autoptr(Topology) again = topology_parse(text, "printed", options.topologies_dir, &error);
    g_assert_no_error(error);
    ck_assert_uint_eq(again->measured.gemm->len, topology->measured.gemm->len);
    ck_assert_uint_eq(again->measured.ops->len, topology->measured.ops->len);
}
END_TEST

/* Where an op was measured, it is predicted to take what it took. */
START_TEST(a_measured_op_is_predicted_to_take_its_measured_time)
{
    g_autoptr(GArray) tasks = made_up_tasks(_i == 0);
    g_autoptr(Topology) topology = localhost();

    op_tasks_add_rows(tasks, 1, 1, &topology->measured);
    for (guint i = 0; i < tasks->len; i++) {
        const OpTask *task = task_at(tasks, i);
        const ComputeContext alone = {
            .busy = 1, .threads = 1, .cores = 2, .unit_elements = task->unit_elements};
        const double predicted = compute_op_seconds(&task->op, topology, &alone);
        /* Four digits of the row; a head counts other bytes than those it reads and writes. */
        const double tolerance = task->op.kind == OP_HEAD_LOSS ? 0.02 : 0.001;

        ck_assert_double_eq_tol(predicted / task->seconds, 1, tolerance);
    }
}
END_TEST

/* Three times of one product, of the same shape in its three layouts: the mean of 1, 2 and 6 ms. */
START_TEST(a_product_measured_in_several_layouts_gives_one_row_with_their_mean)
{
    g_autoptr(GArray) tasks = g_array_new(FALSE, TRUE, sizeof(OpTask));
    g_autoptr(Topology) topology = localhost();
    const OpSizes cube = {.rows = 100, .in = 100, .out = 100};

    op_tasks_add(tasks, OP_LINEAR, DTYPE_FP32, &cube, 0);
    op_tasks_add(tasks, OP_LINEAR_BACKWARD_INPUT, DTYPE_FP32, &cube, 0);
    op_tasks_add(tasks, OP_LINEAR_BACKWARD_WEIGHT, DTYPE_FP32, &cube, 0);
    task_at(tasks, 0)->seconds = 1e-3;
    task_at(tasks, 1)->seconds = 2e-3;
    task_at(tasks, 2)->seconds = 6e-3;
    op_tasks_add_rows(tasks, 2, 1, &topology->measured);
    ck_assert_uint_eq(topology->measured.gemm->len, 1);
    const MeasuredGemm *row = &g_array_index(topology->measured.gemm, MeasuredGemm, 0);
    ck_assert_double_eq_tol(row->flops_per_s, samples_round(2e6 / 3e-3), 1);
    ck_assert_uint_eq(row->busy, 2);
}
END_TEST

/* ---- measuring, alone ---- */

static Session alone_session(void)
{
    g_autoptr(GError) error = NULL;
    const SessionMeans means = {.transport = "self"};
    Session session;

    ck_assert(session_open(&session, &means, &error));
    return session;
}

/* Small ops of every kind and type, in little time. */
static GArray *small_tasks(void)
{
    g_autoptr(GArray) all = op_tasks_new(CALIBRATE_CPU);
    GArray *small = g_array_new(FALSE, TRUE, sizeof(OpTask));

    for (guint i = 0; i < all->len; i++) {
        const OpTask *task = task_at(all, i);
        if (op_flops(&task->op) < 1e8 && op_memory_bytes(&task->op, task->unit_elements) < 1 << 22)
            g_array_append_val(small, *task);
    }
    return small;
}

START_TEST(ops_of_every_kind_and_type_take_time)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Device) device = device_open(DEVICE_CPU, (guint)_i + 1, &error);
    g_autoptr(GArray) tasks = small_tasks();
    Session session = alone_session();
    OpBench bench = {.session = &session, .device = device, .budget_s = 0.01};
    gboolean found[NUM_OPS] = {FALSE};

    g_assert_no_error(error);
    ck_assert(op_bench_run(&bench, tasks, &error));
    ck_assert_double_gt(bench.overhead_s, 0);
    for (guint i = 0; i < tasks->len; i++) {
        ck_assert_double_gt(task_at(tasks, i)->seconds, 0);
        found[task_at(tasks, i)->op.kind] = TRUE;
    }
    /* Statistics of a head are priced by its products and its softmax row. */
    for (OpKind kind = 0; kind <= OP_EXCHANGE; kind++)
        ck_assert(found[kind] !=
                  (op_kind_is_communication(kind) || kind == OP_HEAD_STATS || kind == OP_COPY));
    ck_assert(session_close(&session, &error));
}
END_TEST

START_TEST(collectives_of_one_rank_take_time_and_say_what_they_moved)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GArray) tasks = comm_tasks_new(CALIBRATE_CPU_QUICK);
    g_autoptr(Topology) topology = localhost();
    Session session = alone_session();

    ck_assert(comm_tasks_run(&session, tasks, 0.01, &error));
    comm_tasks_add_rows(tasks, 1, &topology->measured);
    for (guint i = 0; i < tasks->len; i++) {
        const CommTask *task = &g_array_index(tasks, CommTask, i);
        const CollectiveContext one = {
            .topology = topology, .ranks = 1, .span = 1, .ranks_per_node = 1};
        ck_assert_double_gt(task->seconds, 0);
        ck_assert_uint_eq(task->bytes % dtype_bytes(task->dtype), 0);
        ck_assert_double_eq_tol(collective_seconds(task->kind, task->bytes, task->dtype, &one) /
                                    task->seconds,
                                1, 0.001);
    }
    ck_assert(session_close(&session, &error));
}
END_TEST

/* ---- everything, with ranks ---- */

static guint count_gemm(const Topology *topology, guint busy, guint threads)
{
    guint count = 0;

    for (guint i = 0; i < topology->measured.gemm->len; i++) {
        const MeasuredGemm *row = &g_array_index(topology->measured.gemm, MeasuredGemm, i);
        count += row->busy == busy && row->threads == threads ? 1 : 0;
    }
    return count;
}

static guint count_collectives(const Topology *topology, guint ranks)
{
    guint count = 0;

    for (guint i = 0; i < topology->measured.collectives->len; i++)
        count += g_array_index(topology->measured.collectives, MeasuredCollective, i).ranks == ranks
                     ? 1
                     : 0;
    return count;
}

/* In place of what was stated. */
START_TEST(a_disk_is_measured_for_the_ranks_that_share_it)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Topology) localhost = topology_load("localhost", options.topologies_dir, &error);
    g_autofree char *stated = topology_print(localhost);
    g_autofree char *text =
        g_strconcat(stated, "[memory nvme]\ncapacity = 1 kB\nbandwidth = 1 kB/s\nspan = 9\n", NULL);
    g_autoptr(Topology) topology =
        topology_parse(text, "localhost", options.topologies_dir, &error);
    MemoryTier nvme;

    g_assert_no_error(error);
    ck_assert(!calibrate_storage(topology, "/nowhere", &error));
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
    g_clear_error(&error);
    ck_assert_msg(calibrate_storage(topology, "/var/tmp", &error), "%s",
                  error == NULL ? "" : error->message);
    ck_assert_uint_eq(topology->memories->len, localhost->memories->len + 1);
    ck_assert(topology_memory(topology, TIER_NVME, &nvme));
    ck_assert_uint_gt(nvme.capacity_bytes, 1);
    ck_assert_double_gt(nvme.bytes_per_s, 1000);
    ck_assert(nvme.latency_s > 0 && nvme.latency_s < 1);
    ck_assert_uint_eq(nvme.span, 0);
    g_autofree char *printed = topology_print(topology);
    g_autoptr(Topology) again =
        topology_parse(printed, "localhost", options.topologies_dir, &error);
    ck_assert_msg(again != NULL, "%s", error == NULL ? "" : error->message);
}
END_TEST

START_TEST(a_calibration_measures_every_load_and_writes_a_topology)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *path = g_build_filename(g_get_tmp_dir(), "test_calibrate_XXXXXX", NULL);
    g_autoptr(GArray) collectives = comm_tasks_new(CALIBRATE_CPU_QUICK);

    g_setenv("ASAN_OPTIONS", "detect_leaks=0", TRUE); /* of the ranks: Open MPI leaks */
    close(g_mkstemp(path));
    ck_assert_msg(calibrate(&options, path, &error), "%s", error ? error->message : "");
    g_autoptr(Topology) topology = topology_load(path, options.topologies_dir, &error);
    g_unlink(path);
    g_assert_no_error(error);
    const guint cores = topology->gpus_per_node, rows = count_gemm(topology, 1, 1);

    ck_assert_uint_gt(rows, 0);
    ck_assert_uint_eq(count_gemm(topology, 1, cores), rows);
    ck_assert_uint_eq(count_gemm(topology, cores, 1), rows);
    ck_assert_uint_eq(count_collectives(topology, 1), collectives->len);
    ck_assert_uint_eq(count_collectives(topology, 2), collectives->len);
    ck_assert_uint_eq(count_collectives(topology, 4), collectives->len);
    ck_assert_double_gt(topology->measured.op_overhead_s, 0);
    ck_assert_uint_gt(topology->measured.framework_bytes, 1 << 20);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("calibrate");
    TCase *rows = tcase_create("rows"), *measuring = tcase_create("measuring");

    tcase_add_test(rows, every_compute_op_is_measured);
    tcase_add_loop_test(rows, no_two_rows_have_the_same_key, 0, 2);
    tcase_add_loop_test(rows, a_measured_op_is_predicted_to_take_its_measured_time, 0, 2);
    tcase_add_test(rows, a_product_measured_in_several_layouts_gives_one_row_with_their_mean);

    tcase_set_timeout(measuring, 200);
    tcase_add_loop_test(measuring, ops_of_every_kind_and_type_take_time, 0, 2);
    tcase_add_test(measuring, collectives_of_one_rank_take_time_and_say_what_they_moved);
    tcase_add_test(measuring, a_disk_is_measured_for_the_ranks_that_share_it);
    tcase_add_test(measuring, a_calibration_measures_every_load_and_writes_a_topology);
    suite_add_tcase(suite, rows);
    suite_add_tcase(suite, measuring);
    return suite;
}

static int rank_main(const char *path)
{
    g_autoptr(GError) error = NULL;

    if (calibrate_rank_part(&options, path, &error))
        return EXIT_SUCCESS;
    fprintf(stderr, "%s\n", error->message);
    return 3;
}

/* Calibration starts its own program with a plan to train: fsdp-run, which lies beside tests/. */
static int training_main(char **argv)
{
    g_autofree char *folder = g_path_get_dirname(argv[0]);
    g_autofree char *program = g_build_filename(folder, "..", "..", "fsdp-run", NULL);

    execv(program, argv);
    perror(program);
    return 3;
}

int main(int argc, char **argv)
{
    if (argc == 3 && g_str_equal(argv[1], rank_command[1]))
        return rank_main(argv[2]);
    if (argc > 1)
        return training_main(argv);
    return suite_run(make_suite());
}
