#define _GNU_SOURCE 1 /* sched_setaffinity() */
#include "exec/base/process.h"
#include "tests/suite.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCK (64u << 20)
#define SLACK (4u << 20) /* what the kernel's own counting and the test may add */

static char *touch_block(void)
{
    char *block = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    ck_assert_ptr_ne(block, MAP_FAILED);
    memset(block, 1, BLOCK);
    return block;
}

START_TEST(the_peak_counts_memory_that_was_given_back)
{
    const guint64 before = process_peak_rss_bytes();

    munmap(touch_block(), BLOCK);
    const guint64 after = process_peak_rss_bytes();
    ck_assert_uint_ge(after, before + BLOCK - SLACK);
    ck_assert_uint_le(after, before + BLOCK + SLACK);
}
END_TEST

START_TEST(usable_cores_are_those_of_the_affinity_mask)
{
    cpu_set_t one;
    gsize core = 0;

    ck_assert_int_eq(sched_getaffinity(0, sizeof one, &one), 0);
    while (!CPU_ISSET(core, &one))
        core++;
    ck_assert_uint_eq(process_usable_cores(), (guint)CPU_COUNT(&one));

    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    ck_assert_uint_eq(process_usable_cores(), 1);
}
END_TEST

START_TEST(the_clock_counts_seconds)
{
    const double before = clock_s();

    g_usleep(50000);
    const double passed = clock_s() - before;
    ck_assert_double_ge(passed, 0.05);
    ck_assert_double_lt(passed, 5.0); /* a busy machine; but not milliseconds, say */
}
END_TEST

START_TEST(each_signal_asks_for_a_stop_and_returns)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR2};

    signal(SIGINT, SIG_DFL);
    process_install_signals();
    ck_assert(!process_stop_requested());
    raise(signals[_i]);
    ck_assert(process_stop_requested());
}
END_TEST

START_TEST(many_requests_but_one_interrupt_do_not_end_the_process)
{
    signal(SIGINT, SIG_DFL);
    process_install_signals();
    raise(SIGUSR2);
    raise(SIGTERM);
    raise(SIGINT);
    raise(SIGTERM);
    raise(SIGUSR2);
    ck_assert(process_stop_requested());
}
END_TEST

START_TEST(a_second_interrupt_ends_the_process)
{
    signal(SIGINT, SIG_DFL);
    process_install_signals();
    raise(SIGINT);
    raise(SIGINT);
}
END_TEST

START_TEST(interrupts_can_be_counted_instead)
{
    signal(SIGINT, SIG_DFL);
    process_count_signals();
    for (guint i = 0; i < 3; i++)
        raise(SIGINT);
    ck_assert_uint_eq(process_interrupts(), 3);
}
END_TEST

START_TEST(a_signal_that_came_in_ignored_stays_ignored)
{
    signal(SIGINT, SIG_IGN);
    process_install_signals();
    raise(SIGINT);
    raise(SIGINT);
    ck_assert(!process_stop_requested());
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("process");
    TCase *self = tcase_create("self");
    TCase *stop = tcase_create("stop");

    tcase_add_test(self, the_peak_counts_memory_that_was_given_back);
    tcase_add_test(self, usable_cores_are_those_of_the_affinity_mask);
    tcase_add_test(self, the_clock_counts_seconds);
    tcase_add_loop_test(stop, each_signal_asks_for_a_stop_and_returns, 0, 3);
    tcase_add_test(stop, many_requests_but_one_interrupt_do_not_end_the_process);
    tcase_add_test_raise_signal(stop, a_second_interrupt_ends_the_process, SIGINT);
    tcase_add_test(stop, interrupts_can_be_counted_instead);
    tcase_add_test(stop, a_signal_that_came_in_ignored_stays_ignored);
    suite_add_tcase(suite, self);
    suite_add_tcase(suite, stop);
    return suite_run(suite);
}
