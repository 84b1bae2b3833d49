/* Captured work is replayed under the same schedules as other work. */
#include "tests/cudasim/kernels.h"
#include "tests/cudasim/outcome.h"
#include "tests/suite.h"

#ifdef CUDASIM_CHECK
#define CHECKED 1
#else
#define CHECKED 0
#endif

enum { N = 512, BYTES = N * (int)sizeof(float), LAUNCHES = 3 };

static cudaStream_t main_stream, side_stream;
static cudaEvent_t fork_event, join_event;

static void set_up(void)
{
    ok(cudaStreamCreateWithFlags(&main_stream, cudaStreamNonBlocking));
    ok(cudaStreamCreateWithFlags(&side_stream, cudaStreamNonBlocking));
    ok(cudaEventCreateWithFlags(&fork_event, cudaEventDisableTiming));
    ok(cudaEventCreateWithFlags(&join_event, cudaEventDisableTiming));
}

static void begin(void)
{
    ok(cudaStreamBeginCapture(main_stream, cudaStreamCaptureModeGlobal));
}

static cudaGraphExec_t end(void)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    ok(cudaStreamEndCapture(main_stream, &graph));
    ok(cudaGraphInstantiate(&exec, graph, 0));
    ok(cudaGraphDestroy(graph));
    return exec;
}

static void fork_side(void)
{
    ok(cudaEventRecord(fork_event, main_stream));
    ok(cudaStreamWaitEvent(side_stream, fork_event, 0));
}

static void join_side(void)
{
    ok(cudaEventRecord(join_event, side_stream));
    ok(cudaStreamWaitEvent(main_stream, join_event, 0));
}

static float first_of(const float *device)
{
    float value;

    ok(cudaDeviceSynchronize());
    to_host(&value, device, sizeof value);
    return value;
}

/* ---- scenarios ---- */

/* x = 1, beside which y = 1 on the side; then y += x, which is 2 if the side has joined. */
static gboolean branches_join(int waits)
{
    float *x = to_device(NULL, BYTES), *y = to_device(NULL, BYTES);
    cudaGraphExec_t exec;

    set_up();
    begin();
    fork_side();
    kernel_fill(x, 1.0f, N, main_stream);
    kernel_fill(y, 1.0f, N, side_stream);
    if (waits)
        join_side();
    kernel_axpy(y, x, 1.0f, N, main_stream);
    join_side();
    exec = end();
    for (int i = 0; i < LAUNCHES; i++)
        ok(cudaGraphLaunch(exec, main_stream));
    return first_of(y) == 2.0f;
}

/* Launches of one graph come one after the other, whatever their streams; what follows a launch in
 * its stream comes after all branches of it. */
static gboolean launches_follow_each_other(int waits)
{
    float *x = to_device(NULL, BYTES), *y = to_device(NULL, BYTES);
    cudaGraphExec_t exec;

    set_up();
    kernel_fill(x, 1.0f, N, main_stream);
    kernel_fill(y, 0.0f, N, main_stream);
    ok(cudaStreamSynchronize(main_stream));
    begin();
    fork_side();
    kernel_axpy(x, x, 1.0f, N, side_stream);
    join_side();
    exec = end();
    for (int i = 0; i < LAUNCHES; i++)
        ok(cudaGraphLaunch(exec, i % 2 == 0 ? main_stream : side_stream));
    ok(cudaEventRecord(fork_event, main_stream));
    if (waits)
        ok(cudaStreamWaitEvent(side_stream, fork_event, 0));
    kernel_axpy(y, x, 1.0f, N, side_stream);
    return first_of(y) == 8.0f;
}

/* A graph waits for, and is awaited by, work outside it. */
static gboolean external_events_order_graphs(int waits)
{
    float *x = to_device(NULL, BYTES), *y = to_device(NULL, BYTES);
    cudaGraphExec_t exec;

    set_up();
    begin();
    if (waits)
        ok(cudaStreamWaitEvent(main_stream, fork_event, cudaEventWaitExternal));
    kernel_axpy(x, x, 1.0f, N, main_stream);
    ok(cudaEventRecordWithFlags(join_event, main_stream, cudaEventRecordExternal));
    exec = end();

    kernel_fill(y, 0.0f, N, side_stream);
    for (int i = 0; i < LAUNCHES; i++) {
        kernel_fill(x, (float)(1 + i), N, side_stream);
        ok(cudaEventRecord(fork_event, side_stream));
        ok(cudaGraphLaunch(exec, main_stream));
        ok(cudaStreamWaitEvent(side_stream, join_event, 0));
        kernel_axpy(y, x, 1.0f, N, side_stream);
    }
    return first_of(y) == 12.0f;
}

static const struct {
    const char *name;
    Scenario run;
} scenarios[] = {
    {"branches", branches_join},
    {"launches", launches_follow_each_other},
    {"external events", external_events_order_graphs},
};

START_TEST(with_every_wait_a_graph_is_right_under_every_schedule)
{
    for (int i = 0; i < NUM_SCHEDULES; i++)
        ck_assert_msg(outcome_of(scenarios[_i].run, TRUE, schedule_at(i)) == 0, "%s, schedule %d",
                      scenarios[_i].name, i);
}
END_TEST

START_TEST(without_a_wait_a_graph_is_wrong_under_some_schedule)
{
    int wrong = 0, reported = 0;

    for (int i = 0; i < NUM_SCHEDULES; i++) {
        int outcome = outcome_of(scenarios[_i].run, FALSE, schedule_at(i));
        wrong += (outcome & WRONG) != 0;
        reported += (outcome & REPORTED) != 0;
    }
    ck_assert_msg(wrong > 0, "%s", scenarios[_i].name);
    ck_assert_int_eq(reported, CHECKED ? NUM_SCHEDULES : 0);
}
END_TEST

/* ---- semantics ---- */

START_TEST(captured_work_runs_at_launches_only)
{
    float *x = to_device(NULL, BYTES), *pinned;
    cudaGraphExec_t exec;

    ok(cudaMallocHost((void **)&pinned, BYTES));
    set_up();
    pinned[0] = 5.0f;
    ok(cudaMemset(x, 0, BYTES));
    begin();
    ok(cudaMemcpyAsync(x, pinned, BYTES, cudaMemcpyHostToDevice, main_stream));
    kernel_axpy(x, x, 1.0f, N, main_stream);
    exec = end();
    ck_assert_float_eq(first_of(x), 0.0f);
    ok(cudaGraphLaunch(exec, main_stream));
    ck_assert_float_eq(first_of(x), 10.0f);
    pinned[0] = 7.0f; /* read at each launch */
    ok(cudaGraphLaunch(exec, main_stream));
    ck_assert_float_eq(first_of(x), 14.0f);
    ok(cudaGraphExecDestroy(exec));
    ck_assert_uint_eq(cudasim_all_reports(), 0);
}
END_TEST

START_TEST(a_capture_is_spoiled_by_a_call_that_would_wait)
{
    enum cudaStreamCaptureStatus status;
    cudaGraph_t graph;
    void *p;

    set_up();
    begin();
    ck_assert_int_eq(cudaMalloc(&p, 16), cudaErrorStreamCaptureUnsupported);
    ok(cudaStreamIsCapturing(main_stream, &status));
    ck_assert_int_eq(status, cudaStreamCaptureStatusInvalidated);
    ck_assert_int_eq(cudaStreamEndCapture(main_stream, &graph), cudaErrorStreamCaptureInvalidated);
    ok(cudaStreamIsCapturing(main_stream, &status));
    ck_assert_int_eq(status, cudaStreamCaptureStatusNone);
    begin();
    ck_assert_int_eq(cudaStreamSynchronize(main_stream), cudaErrorStreamCaptureUnsupported);
    ck_assert_int_eq(cudaStreamEndCapture(main_stream, &graph), cudaErrorStreamCaptureInvalidated);
    ok(cudaMalloc(&p, 16));
}
END_TEST

START_TEST(a_capture_whose_branch_never_joins_is_refused)
{
    float *x = to_device(NULL, BYTES);
    cudaGraph_t graph;

    set_up();
    begin();
    fork_side();
    kernel_fill(x, 1.0f, N, side_stream);
    ck_assert_int_eq(cudaStreamEndCapture(main_stream, &graph), cudaErrorStreamCaptureUnjoined);
    ck_assert_ptr_null(graph);
}
END_TEST

START_TEST(a_capture_does_not_wait_for_events_of_the_world)
{
    cudaGraph_t graph;

    set_up();
    ok(cudaEventRecord(fork_event, side_stream));
    begin();
    ck_assert_int_eq(cudaStreamWaitEvent(main_stream, fork_event, 0),
                     cudaErrorStreamCaptureIsolation);
    ck_assert_int_eq(cudaStreamEndCapture(main_stream, &graph), cudaErrorStreamCaptureInvalidated);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cudasim graph");
    TCase *tests = tcase_create("graph");
    int num = G_N_ELEMENTS(scenarios);

    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, with_every_wait_a_graph_is_right_under_every_schedule, 0, num);
    tcase_add_loop_test(tests, without_a_wait_a_graph_is_wrong_under_some_schedule, 0, num);
    tcase_add_test(tests, captured_work_runs_at_launches_only);
    tcase_add_test(tests, a_capture_is_spoiled_by_a_call_that_would_wait);
    tcase_add_test(tests, a_capture_whose_branch_never_joins_is_refused);
    tcase_add_test(tests, a_capture_does_not_wait_for_events_of_the_world);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
