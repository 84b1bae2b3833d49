/* What every test program's main() needs. */
#pragma once

#include <check.h>
#include <stdlib.h>

#undef fail /* check.h's macro of that name would hide ours (sim/base/error.h) */

/* Runs @suite (taken) and returns the exit status of main(). */
static inline int suite_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);

    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
