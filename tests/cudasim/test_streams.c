/* Waits between streams, and with the host: with all of them a program is right under every
 * schedule; without one it is wrong under some, and a checked build reports it under every one. */
#include "tests/cudasim/kernels.h"
#include "tests/cudasim/outcome.h"
#include "tests/suite.h"

#ifdef CUDASIM_CHECK
#define CHECKED 1
#else
#define CHECKED 0
#endif

enum { N = 1024, BYTES = N * (int)sizeof(float), LAYERS = 6 };

static cudaStream_t new_stream(void)
{
    cudaStream_t stream;

    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static cudaEvent_t new_event(void)
{
    cudaEvent_t event;

    ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

static float *new_pinned(void)
{
    void *p;

    ok(cudaMallocHost(&p, BYTES));
    return p;
}

static float first_of(const float *device)
{
    float value;

    ok(cudaDeviceSynchronize());
    to_host(&value, device, sizeof value);
    return value;
}

/* ---- scenarios: with all their waits, or without one ---- */

static gboolean consumer_waits_for_producer(int waits)
{
    cudaStream_t producer = new_stream(), consumer = new_stream();
    cudaEvent_t made = new_event();
    float *x = to_device(NULL, BYTES), *y = to_device(NULL, BYTES), *result = new_pinned();

    kernel_fill(x, 1.0f, N, producer);
    kernel_fill(y, 0.0f, N, consumer);
    kernel_axpy(x, x, 1.0f, N, producer);
    ok(cudaEventRecord(made, producer));
    if (waits)
        ok(cudaStreamWaitEvent(consumer, made, 0));
    kernel_axpy(y, x, 1.0f, N, consumer);
    ok(cudaMemcpyAsync(result, y, BYTES, cudaMemcpyDeviceToHost, consumer));
    ok(cudaStreamSynchronize(consumer));
    return result[0] == 2.0f && result[N - 1] == 2.0f;
}

/* An event means what was recorded last before the wait, not what is recorded later. */
static gboolean a_wait_binds_to_the_last_recording(int waits)
{
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t event = new_event();
    float *x = to_device(NULL, BYTES), *y = to_device(NULL, BYTES);

    ok(cudaEventRecord(event, a));
    kernel_fill(x, 1.0f, N, a);
    if (waits)
        ok(cudaEventRecord(event, a));
    ok(cudaStreamWaitEvent(b, event, 0));
    kernel_fill(y, 0.0f, N, b);
    kernel_axpy(y, x, 1.0f, N, b);
    return first_of(y) == 1.0f;
}

/* The copy has all of a large allocation, the kernel a few elements in the middle. */
static gboolean a_copy_of_all_waits_for_a_kernel_in_the_middle(int waits)
{
    enum { ALL = 64 * N, MIDDLE = ALL / 2 + 5 };
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t made = new_event();
    float *x = to_device(NULL, ALL * sizeof *x), *y = to_device(NULL, ALL * sizeof *y);

    ok(cudaMemsetAsync(x, 0, ALL * sizeof *x, a));
    kernel_fill(x + MIDDLE, 1.0f, N, a);
    ok(cudaEventRecord(made, a));
    if (waits)
        ok(cudaStreamWaitEvent(b, made, 0));
    ok(cudaMemcpyAsync(y, x, ALL * sizeof *x, cudaMemcpyDeviceToDevice, b));
    return first_of(y + MIDDLE) == 1.0f;
}

static gboolean host_refills_a_staging_buffer_after_its_copy(int waits)
{
    cudaStream_t stream = new_stream();
    cudaEvent_t copied = new_event();
    float *staging = new_pinned(), *x = to_device(NULL, 2 * BYTES);

    for (int round = 0; round < 2; round++) {
        if (round > 0 && waits)
            ok(cudaEventSynchronize(copied));
        for (int i = 0; i < N; i++)
            staging[i] = (float)round;
        ok(cudaMemcpyAsync(x + round * N, staging, BYTES, cudaMemcpyHostToDevice, stream));
        ok(cudaEventRecord(copied, stream));
    }
    return first_of(x) == 0.0f;
}

static gboolean host_reads_a_result_after_its_copy(int waits)
{
    cudaStream_t stream = new_stream();
    float *result = new_pinned(), *x = to_device(NULL, BYTES), seen;

    result[N - 1] = 0.0f;
    kernel_fill(x, 1.0f, N, stream);
    ok(cudaMemcpyAsync(result, x, BYTES, cudaMemcpyDeviceToHost, stream));
    if (waits)
        ok(cudaStreamSynchronize(stream));
    seen = result[N - 1];
    ok(cudaStreamSynchronize(stream));
    return seen == 1.0f;
}

static gboolean memory_is_freed_after_its_last_use(int waits)
{
    cudaStream_t owner = new_stream(), user = new_stream();
    cudaEvent_t event = new_event();
    float *y = to_device(NULL, BYTES), *x;

    ok(cudaMallocAsync((void **)&x, BYTES, owner));
    kernel_fill(x, 3.0f, N, owner);
    ok(cudaEventRecord(event, owner));
    ok(cudaStreamWaitEvent(user, event, 0));
    kernel_fill(y, 0.0f, N, user);
    kernel_axpy(y, x, 1.0f, N, user);
    ok(cudaEventRecord(event, user));
    if (waits)
        ok(cudaStreamWaitEvent(owner, event, 0));
    ok(cudaFreeAsync(x, owner));
    return first_of(y) == 3.0f;
}

/* Units are gathered into two buffers by turns while the one before computes. */
static gboolean a_buffer_is_refilled_after_its_last_use(int waits)
{
    cudaStream_t compute = new_stream(), gather = new_stream();
    cudaEvent_t full[2] = {new_event(), new_event()}, empty[2] = {new_event(), new_event()};
    float *buffers[2] = {to_device(NULL, BYTES), to_device(NULL, BYTES)};
    float *sum = to_device(NULL, BYTES);

    kernel_fill(sum, 0.0f, N, compute);
    for (int layer = 0; layer < LAYERS; layer++) {
        int i = layer % 2;
        if (layer >= 2 && waits)
            ok(cudaStreamWaitEvent(gather, empty[i], 0));
        kernel_fill(buffers[i], (float)(1 << layer), N, gather);
        ok(cudaEventRecord(full[i], gather));
        ok(cudaStreamWaitEvent(compute, full[i], 0));
        kernel_axpy(sum, buffers[i], 1.0f, N, compute);
        ok(cudaEventRecord(empty[i], compute));
    }
    return first_of(sum) == (float)((1 << LAYERS) - 1);
}

/* Two tensors share a range of an arena, one after the other. */
static gboolean a_range_is_reused_after_its_last_use(int waits)
{
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t used = new_event();
    float *range = to_device(NULL, BYTES), *y = to_device(NULL, BYTES);

    kernel_fill(y, 0.0f, N, a);
    kernel_fill(range, 1.0f, N, a);
    kernel_axpy(y, range, 1.0f, N, a);
    ok(cudaEventRecord(used, a));
    if (waits)
        ok(cudaStreamWaitEvent(b, used, 0));
    cudasim_mark_undefined(range, BYTES, b);
    kernel_fill(range, 2.0f, N, b);
    return first_of(y) == 1.0f;
}

static const struct {
    const char *name;
    Scenario run;
} scenarios[] = {
    {"consumer and producer", consumer_waits_for_producer},
    {"last recording", a_wait_binds_to_the_last_recording},
    {"copy of all", a_copy_of_all_waits_for_a_kernel_in_the_middle},
    {"staging buffer", host_refills_a_staging_buffer_after_its_copy},
    {"result", host_reads_a_result_after_its_copy},
    {"free", memory_is_freed_after_its_last_use},
    {"two buffers", a_buffer_is_refilled_after_its_last_use},
    {"arena", a_range_is_reused_after_its_last_use},
};

START_TEST(with_every_wait_a_program_is_right_under_every_schedule)
{
    for (int i = 0; i < NUM_SCHEDULES; i++)
        ck_assert_msg(outcome_of(scenarios[_i].run, TRUE, schedule_at(i)) == 0, "%s, schedule %d",
                      scenarios[_i].name, i);
}
END_TEST

START_TEST(without_a_wait_it_is_wrong_under_some_schedule)
{
    int wrong = 0;

    for (int i = 0; i < NUM_SCHEDULES; i++)
        wrong += (outcome_of(scenarios[_i].run, FALSE, schedule_at(i)) & (WRONG | CRASHED)) != 0;
    ck_assert_msg(wrong > 0, "%s", scenarios[_i].name);
}
END_TEST

START_TEST(without_a_wait_a_checked_build_reports_it_under_every_schedule)
{
    for (int i = 0; CHECKED && i < NUM_SCHEDULES; i++)
        ck_assert_msg(outcome_of(scenarios[_i].run, FALSE, schedule_at(i)) & REPORTED,
                      "%s, schedule %d", scenarios[_i].name, i);
}
END_TEST

/* ---- semantics ---- */

START_TEST(the_default_stream_waits_for_blocking_streams)
{
    cudaStream_t blocking;
    float *x = to_device(NULL, BYTES);

    cudasim_reset(CS_LIFO, CS_ASCENDING, 1);
    ok(cudaStreamCreate(&blocking));
    kernel_fill(x, 1.0f, N, blocking);
    kernel_axpy(x, x, 1.0f, N, NULL);
    kernel_axpy(x, x, 1.0f, N, blocking);
    ck_assert_float_eq(first_of(x), 4.0f);
    ck_assert_uint_eq(cudasim_all_reports(), 0);
}
END_TEST

START_TEST(work_is_pending_until_somebody_asks)
{
    cudaStream_t stream = new_stream();
    cudaEvent_t event = new_event();
    float *x = to_device(NULL, BYTES);

    cudasim_reset(CS_LIFO, CS_ASCENDING, 1);
    for (int i = 0; i < 3; i++)
        kernel_fill(x, 1.0f, N, stream);
    ok(cudaEventRecord(event, stream));
    ck_assert_int_eq(cudaStreamQuery(stream), cudaErrorNotReady);
    ck_assert_int_eq(cudaEventQuery(event), cudaErrorNotReady);
    ok(cudaEventSynchronize(event));
    ok(cudaEventQuery(event));
    ok(cudaStreamQuery(stream));
    ok(cudaGetLastError()); /* not being ready is no error */
}
END_TEST

START_TEST(elapsed_time_needs_timed_events_that_happened)
{
    cudaStream_t stream = new_stream();
    cudaEvent_t begin, end;
    float milliseconds = -1.0f;

    cudasim_reset(CS_LIFO, CS_ASCENDING, 1);
    ok(cudaEventCreate(&begin));
    ok(cudaEventCreate(&end));
    ok(cudaEventRecord(begin, stream));
    ck_assert_int_eq(cudaEventElapsedTime(&milliseconds, begin, end),
                     cudaErrorInvalidResourceHandle);
    ok(cudaEventRecord(end, stream));
    ck_assert_int_eq(cudaEventElapsedTime(&milliseconds, begin, end), cudaErrorNotReady);
    ok(cudaStreamSynchronize(stream));
    ok(cudaEventElapsedTime(&milliseconds, begin, end));
    ck_assert_float_gt(milliseconds, 0.0f);
    ck_assert_int_eq(cudaEventElapsedTime(&milliseconds, begin, new_event()),
                     cudaErrorInvalidResourceHandle);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidResourceHandle);
}
END_TEST

static void add_one(void *count)
{
    ++*(int *)count;
}

START_TEST(functions_of_the_host_run_in_stream_order)
{
    cudaStream_t stream = new_stream();
    int count = 0;

    cudasim_reset(CS_LIFO, CS_ASCENDING, 1);
    ok(cudaLaunchHostFunc(stream, add_one, &count));
    ck_assert_int_eq(count, 0);
    ok(cudaStreamSynchronize(stream));
    ck_assert_int_eq(count, 1);
}
END_TEST

static gboolean wait_for_nothing(int variant)
{
    (void)variant;
    ok(cudaStreamWaitEvent(new_stream(), new_event(), 0));
    return TRUE;
}

START_TEST(waiting_for_what_was_never_recorded_is_reported)
{
    ck_assert_int_eq(outcome_of(wait_for_nothing, 0, schedule_at(0)), REPORTED);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cudasim streams");
    TCase *tests = tcase_create("streams");
    int num = G_N_ELEMENTS(scenarios);

    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, with_every_wait_a_program_is_right_under_every_schedule, 0, num);
    tcase_add_loop_test(tests, without_a_wait_it_is_wrong_under_some_schedule, 0, num);
    tcase_add_loop_test(tests, without_a_wait_a_checked_build_reports_it_under_every_schedule, 0,
                        num);
    tcase_add_test(tests, the_default_stream_waits_for_blocking_streams);
    tcase_add_test(tests, work_is_pending_until_somebody_asks);
    tcase_add_test(tests, elapsed_time_needs_timed_events_that_happened);
    tcase_add_test(tests, functions_of_the_host_run_in_stream_order);
    tcase_add_test(tests, waiting_for_what_was_never_recorded_is_reported);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
