/* Allocation, copies and launches: what the API refuses, and what it reports. */
#include "tests/cudasim/kernels.h"
#include "tests/cudasim/outcome.h"
#include "tests/suite.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

START_TEST(new_memory_is_nan_and_no_address_comes_twice)
{
    float value, *first = to_device(NULL, 4096), *second;

    cudasim_expect_reports(); /* a checked build says that it is uninitialised */
    to_host(&value, first, sizeof value);
    ck_assert(isnan(value));
    ok(cudaFree(first));
    second = to_device(NULL, 4096);
    ck_assert_ptr_ne(first, second);
}
END_TEST

START_TEST(memory_runs_out)
{
    size_t free_bytes, total;
    void *p, *q;

    setenv("CUDASIM_MEM", "65536", 1);
    ok(cudaMemGetInfo(&free_bytes, &total));
    ck_assert_uint_eq(total, 65536);
    ok(cudaMalloc(&p, 40000));
    ck_assert_int_eq(cudaMalloc(&q, 40000), cudaErrorMemoryAllocation);
    ck_assert_ptr_null(q);
    ok(cudaMemGetInfo(&free_bytes, &total));
    ck_assert_uint_eq(free_bytes, 65536 - 40000);
    ok(cudaFree(p));
    ok(cudaMalloc(&q, 40000));
    ck_assert_int_eq(cudaGetLastError(), cudaErrorMemoryAllocation);
    ok(cudaGetLastError());
}
END_TEST

START_TEST(an_allocation_fails_where_it_is_told_to)
{
    void *p;

    setenv("CUDASIM_FAIL_ALLOC", "1", 1);
    ok(cudaMalloc(&p, 16));
    ck_assert_int_eq(cudaMalloc(&p, 16), cudaErrorMemoryAllocation);
    ok(cudaMalloc(&p, 16));
}
END_TEST

START_TEST(rows_are_copied_between_pitches)
{
    static const char from[] = "ab--cd--ef--";
    char *device = to_device(from, 12), *pinned;

    ok(cudaMallocHost((void **)&pinned, 9));
    memset(pinned, '.', 9);
    ok(cudaMemcpy2DAsync(pinned, 3, device, 4, 2, 3, cudaMemcpyDeviceToHost, NULL));
    ok(cudaDeviceSynchronize());
    ck_assert_mem_eq(pinned, "ab.cd.ef.", 9);
    ck_assert_int_eq(cudaMemcpy2DAsync(pinned, 1, device, 4, 2, 3, cudaMemcpyDeviceToHost, NULL),
                     cudaErrorInvalidPitchValue);
}
END_TEST

START_TEST(host_memory_may_be_registered)
{
    char host[16] = "registered", *device = to_device(NULL, 16);

    ok(cudaHostRegister(host, sizeof host, 0));
    ck_assert_int_eq(cudaHostRegister(host, sizeof host, 0), cudaErrorHostMemoryAlreadyRegistered);
    ok(cudaMemcpyAsync(device, host, sizeof host, cudaMemcpyHostToDevice, NULL));
    ok(cudaDeviceSynchronize());
    ok(cudaHostUnregister(host));
    ck_assert_uint_eq(cudasim_all_reports(), 0);
}
END_TEST

/* ---- misuse: TRUE if the call says so as well ---- */

static gboolean free_twice(int variant)
{
    void *p = to_device(NULL, 16);

    (void)variant;
    ok(cudaFree(p));
    return cudaFree(p) == cudaErrorInvalidValue;
}

static gboolean copy_too_much(int variant)
{
    char host[32] = {0}, *device = to_device(NULL, 16);

    (void)variant;
    return cudaMemcpy(device, host, 32, cudaMemcpyHostToDevice) == cudaErrorInvalidValue;
}

static gboolean copy_the_wrong_way(int variant)
{
    char host[16] = {0}, *device = to_device(NULL, 16);

    (void)variant;
    return cudaMemcpy(device, host, 16, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue;
}

static gboolean copy_pageable_memory(int variant)
{
    char host[16] = {0}, *device = to_device(NULL, 16);

    (void)variant;
    return cudaMemcpyAsync(device, host, 16, cudaMemcpyHostToDevice, NULL) == cudaSuccess;
}

static gboolean launch_too_much(int variant)
{
    float *x = to_device(NULL, 16);

    (void)variant;
    kernel_run(BUG_TOO_MUCH_SHARED, x, x, NULL);
    return cudaGetLastError() == cudaErrorInvalidConfiguration;
}

static const struct {
    const char *name;
    Scenario run;
} misuses[] = {
    {"free twice", free_twice},
    {"copy too much", copy_too_much},
    {"copy the wrong way", copy_the_wrong_way},
    {"copy pageable memory", copy_pageable_memory},
    {"launch too much", launch_too_much},
};

START_TEST(misuse_is_reported_and_refused)
{
    ck_assert_msg(outcome_of(misuses[_i].run, 0, schedule_at(0)) == REPORTED, "%s",
                  misuses[_i].name);
}
END_TEST

START_TEST(a_process_with_reports_fails)
{
    char *device = to_device("x", 1), host = 0;

    ok(cudaMemcpyAsync(&host, device, 1, cudaMemcpyDeviceToHost, NULL));
    ok(cudaDeviceSynchronize());
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cudasim memory");
    TCase *tests = tcase_create("memory");

    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, new_memory_is_nan_and_no_address_comes_twice);
    tcase_add_test(tests, memory_runs_out);
    tcase_add_test(tests, an_allocation_fails_where_it_is_told_to);
    tcase_add_test(tests, rows_are_copied_between_pitches);
    tcase_add_test(tests, host_memory_may_be_registered);
    tcase_add_loop_test(tests, misuse_is_reported_and_refused, 0, G_N_ELEMENTS(misuses));
    tcase_add_exit_test(tests, a_process_with_reports_fails, 99);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
