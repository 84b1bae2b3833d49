/* Every planted bug of a kernel is found, and nothing is found in kernels without one. */
#include "tests/cudasim/kernels.h"
#include "tests/cudasim/outcome.h"
#include "tests/suite.h"
#include <math.h>
#include <string.h>

#if defined(CUDASIM_CHECK)
#define OF_BUILD(plain, checked, asan) checked
#elif defined(__SANITIZE_ADDRESS__)
#define OF_BUILD(plain, checked, asan) asan
#else
#define OF_BUILD(plain, checked, asan) plain
#endif

enum { COUNT = 1024 };

static float element(int i)
{
    return (float)(i % 7);
}

/* What a kernel that is right makes of element(0), element(1), ... */
static float expected(Kernel kernel, int i)
{
    float sum = 0.0f;

    switch (kernel) {
    case RIGHT_BLOCK_SUMS:
    case BUG_READ_BEFORE_BARRIER:
        for (int j = 0; j < 128; j++)
            sum += element(i * 128 + j);
        return sum;
    case RIGHT_ATOMICS:
        for (int j = 0; j < 256; j++)
            sum += element(j);
        return sum;
    case RIGHT_TRANSPOSE:
        return element(i % 32 * 32 + i / 32);
    case RIGHT_MMA:
        for (int k = 0; k < 16; k++)
            sum += (float)((i / 8 + k) * (k - i % 8));
        return sum;
    case RIGHT_WARP_COLLECTIVES:
        return 1.0f;
    case BUG_WRITE_BEFORE_BARRIER:
        return 4.0f * element((i + 64) % 128) + 6.0f;
    case RIGHT_WARP_SYNC:
    case BUG_NO_WARP_SYNC:
        return element(i ^ 1);
    case BUG_UNINITIALISED_SHARED:
        return element(127 - i);
    case BUG_BLOCKS_WRITE_ONE_ADDRESS:
        return element(i) + 1.0f; /* as if the last block were last */
    default:
        return element(i);
    }
}

static int num_expected(Kernel kernel)
{
    switch (kernel) {
    case RIGHT_BLOCK_SUMS:
        return 2;
    case RIGHT_ATOMICS:
    case BUG_READ_BEFORE_BARRIER:
        return 1;
    case RIGHT_TRANSPOSE:
        return COUNT;
    /* Whatever these give, it is not a result. */
    case BUG_RETURN_BEFORE_SHUFFLE:
    case BUG_PAST_DYNAMIC_SHARED:
    case BUG_PAST_GLOBAL:
    case BUG_MISALIGNED_VECTOR:
    case BUG_TOO_MUCH_SHARED:
    case RIGHT_BYTES:
        return 0;
    default:
        return 128;
    }
}

static gboolean is_right(Kernel kernel, const float *out)
{
    for (int i = 0; i < num_expected(kernel); i++)
        if (!(fabsf(out[i] - expected(kernel, i)) < 1e-3f)) /* nor NaN */
            return FALSE;
    return TRUE;
}

static gboolean run_kernel(int variant)
{
    Kernel kernel = (Kernel)variant;
    int size = MAX(num_expected(kernel), 128);
    float in[COUNT], out[COUNT] = {0};
    cudaStream_t stream;
    float *device_in, *device_out;

    for (int i = 0; i < COUNT; i++)
        in[i] = element(i);
    ok(cudaStreamCreate(&stream));
    device_in = to_device(in, sizeof in);
    device_out = to_device(out, (gsize)size * sizeof *out);
    kernel_run(kernel, device_out, device_in, stream);
    ok(cudaStreamSynchronize(stream));
    to_host(out, device_out, (gsize)size * sizeof *out);
    return is_right(kernel, out);
}

static int outcome_in_any_order(Scenario scenario, int variant)
{
    int outcome = 0;

    for (int order = CS_ASCENDING; order <= CS_SHUFFLED; order++)
        outcome |= outcome_of(scenario, variant, (Schedule){CS_RANDOM, (CsOrder)order, 3});
    return outcome;
}

START_TEST(kernels_without_a_bug_are_right_in_every_order)
{
    static const Kernel right[] = {
        RIGHT_BLOCK_SUMS,       RIGHT_TRANSPOSE, RIGHT_MMA,   RIGHT_ATOMICS,
        RIGHT_WARP_COLLECTIVES, RIGHT_WARP_SYNC, RIGHT_BYTES, RIGHT_COPY};

    for (gsize i = 0; i < G_N_ELEMENTS(right); i++)
        ck_assert_msg(outcome_in_any_order(run_kernel, (int)right[i]) == 0, "kernel %d",
                      (int)right[i]);
}
END_TEST

/* One of these bits at least, in each kind of build. */
static const struct {
    const char *name;
    Kernel kernel;
    int outcome;
} bugs[] = {
    {"read before the barrier", BUG_READ_BEFORE_BARRIER, OF_BUILD(WRONG, REPORTED, WRONG)},
    {"write before the barrier", BUG_WRITE_BEFORE_BARRIER, OF_BUILD(WRONG, REPORTED, WRONG)},
    {"barrier in two branches", BUG_BARRIER_IN_TWO_BRANCHES, REPORTED},
    {"barrier under an if", BUG_BARRIER_UNDER_IF, REPORTED},
    {"return before a shuffle", BUG_RETURN_BEFORE_SHUFFLE, REPORTED},
    {"no __syncwarp", BUG_NO_WARP_SYNC, OF_BUILD(WRONG, REPORTED, WRONG)},
    {"past dynamic shared memory", BUG_PAST_DYNAMIC_SHARED, CRASHED},
    {"past global memory", BUG_PAST_GLOBAL, OF_BUILD(0, REPORTED, CRASHED)},
    {"uninitialised shared memory", BUG_UNINITIALISED_SHARED, OF_BUILD(WRONG, REPORTED, WRONG)},
    {"blocks write one address", BUG_BLOCKS_WRITE_ONE_ADDRESS, OF_BUILD(WRONG, REPORTED, WRONG)},
    {"misaligned vector", BUG_MISALIGNED_VECTOR, OF_BUILD(0, 0, CRASHED)},
    {"too much shared memory", BUG_TOO_MUCH_SHARED, REPORTED},
    {"endless wait", BUG_ENDLESS_WAIT, REPORTED},
};

START_TEST(each_bug_of_a_kernel_is_found)
{
    int outcome = outcome_in_any_order(run_kernel, (int)bugs[_i].kernel);

    ck_assert_msg(bugs[_i].outcome == 0 || (outcome & bugs[_i].outcome) != 0,
                  "%s: outcome %d, not %d", bugs[_i].name, outcome, bugs[_i].outcome);
}
END_TEST

/* ---- memory that a kernel must not read ---- */

enum { HOST_MEMORY, UNINITIALISED_MEMORY, FREED_MEMORY, IN_A_LARGE_ONE };
enum { LARGE_FLOATS = 1 << 18 };

/* Of an allocation of 128 floats, or of those in the middle of a large one, all of which but they
 * was written. */
static gboolean copy_from(int variant)
{
    const gboolean is_large = variant >= IN_A_LARGE_ONE;
    const int what = variant % IN_A_LARGE_ONE, before = is_large ? LARGE_FLOATS / 2 : 0;
    float host[128] = {0}, result[128];
    float *out = to_device(host, sizeof host);
    float *all = to_device(NULL, is_large ? LARGE_FLOATS * sizeof *all : sizeof host);
    float *in = all + before, *after = in + 128;

    if (is_large) {
        ok(cudaMemset(all, 0, (gsize)before * sizeof *all));
        ok(cudaMemset(after, 0, (gsize)(LARGE_FLOATS - before - 128) * sizeof *all));
    }
    if (what == FREED_MEMORY)
        ok(cudaFree(all));
    kernel_run(RIGHT_COPY, out, what == HOST_MEMORY ? host : in, NULL);
    to_host(result, out, sizeof result);
    return memcmp(result, host, sizeof host) == 0;
}

START_TEST(a_kernel_that_reads_host_memory_is_found)
{
    ck_assert_int_eq(outcome_in_any_order(copy_from, HOST_MEMORY), OF_BUILD(0, REPORTED, 0));
}
END_TEST

START_TEST(a_read_of_uninitialised_memory_gives_nan_and_a_report)
{
    int outcome = outcome_in_any_order(copy_from, UNINITIALISED_MEMORY + _i * IN_A_LARGE_ONE);

    ck_assert_int_eq(outcome & WRONG, WRONG);
    ck_assert_int_eq(outcome & REPORTED, OF_BUILD(0, REPORTED, 0));
}
END_TEST

START_TEST(a_read_of_freed_memory_is_found)
{
    int outcome = outcome_in_any_order(copy_from, FREED_MEMORY + _i * IN_A_LARGE_ONE);

    ck_assert_int_ne(outcome & OF_BUILD(WRONG, REPORTED, CRASHED), 0);
}
END_TEST

/* ---- memory that the host must not touch ---- */

static gboolean host_reads_device(int variant)
{
    volatile float *device = to_device(&(float){1.0f}, sizeof(float));

    (void)variant;
    return device[0] == 1.0f;
}

START_TEST(host_code_that_reads_device_memory_is_found)
{
    ck_assert_int_ne(
        outcome_in_any_order(host_reads_device, 0) & OF_BUILD(CRASHED, REPORTED, CRASHED), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cudasim bugs");
    TCase *tests = tcase_create("kernels");

    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, kernels_without_a_bug_are_right_in_every_order);
    tcase_add_loop_test(tests, each_bug_of_a_kernel_is_found, 0, G_N_ELEMENTS(bugs));
    tcase_add_test(tests, a_kernel_that_reads_host_memory_is_found);
    tcase_add_loop_test(tests, a_read_of_uninitialised_memory_gives_nan_and_a_report, 0, 2);
    tcase_add_loop_test(tests, a_read_of_freed_memory_is_found, 0, 2);
    tcase_add_test(tests, host_code_that_reads_device_memory_is_found);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
