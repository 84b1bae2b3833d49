/* What every test program under mpirun needs beside tests/suite.h: ranks that run the same tests,
 * and one verdict for all of them. */
#pragma once

#include "tests/exec/runtime_case.h"
#include "tests/suite.h"

#include <mpi.h>
#include <stdio.h>

/* Starts MPI; returns the number of ranks. */
static inline int mpi_suite_start(void)
{
    int provided = 0, size = 0;

    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    g_assert(provided >= MPI_THREAD_SERIALIZED); /* two threads, one after the other */
    return size;
}

/* Runs @suite (taken) without forks: a collective in a child of one rank would wait for ever.  Rank
 * 0 alone prints.  Returns how many tests failed. */
static inline int mpi_suite_run(Runtime *runtime, Suite *suite)
{
    SRunner *runner = srunner_create(suite);

    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, runtime_rank(runtime) == 0 ? CK_NORMAL : CK_SILENT);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed;
}

/* Tests of a @runtime; @ranks_per_node is what it was opened with. */
typedef Suite *MpiSuiteMaker(Runtime *runtime, guint ranks_per_node);

/* The suite on windows between all ranks (0 ranks a node), then on rings between all (1) where
 * there are several.  Returns how many tests failed. */
static inline int mpi_suite_run_on_nodes(MpiSuiteMaker *make)
{
    guint ranks_per_node = 0, ranks;
    int failed = 0;

    do {
        g_autoptr(Runtime) runtime = case_runtime("mpi", ranks_per_node);

        ranks = runtime_size(runtime);
        failed += mpi_suite_run(runtime, make(runtime, ranks_per_node));
    } while (++ranks_per_node < MIN(ranks, 2));
    return failed;
}

/* Rank 0 asserts for all of them: a rank that failed alone would leave the others waiting. */
static inline void mpi_verdict(Runtime *runtime, gboolean ok)
{
    gint64 failed = !ok;
    g_autoptr(GError) error = NULL;
    const gboolean agreed = runtime_agree_max(runtime, &failed, &error);

    ck_assert_msg(agreed, "%s", error == NULL ? "" : error->message);
    ck_assert_msg(failed == 0, "a rank says why on stderr");
}

static inline gboolean mpi_complain(Runtime *runtime, const char *what, const char *format, ...)
    G_GNUC_PRINTF(3, 4);

/* Says on stderr what is wrong with @what on this rank; FALSE. */
static inline gboolean mpi_complain(Runtime *runtime, const char *what, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    fprintf(stderr, "rank %u: %s: %s\n", runtime_rank(runtime), what, text);
    return FALSE;
}

/* The same of a @problem that a helper found (taken); TRUE for NULL. */
static inline gboolean mpi_is_fine(Runtime *runtime, const char *what, char *problem)
{
    g_autofree char *owned = problem;

    return owned == NULL || mpi_complain(runtime, what, "%s", owned);
}
