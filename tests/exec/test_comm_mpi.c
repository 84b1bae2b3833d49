/* Run under mpirun with 1 to 4 ranks: as one node, and as if on nodes of one and of two ranks. */
#include "tests/exec/comm_suite.h"

#include <mpi.h>

START_TEST(a_description_says_how_ranks_are_joined)
{
    const Comm *comm = under_test.comm;
    const char *text = comm_describe(comm);
    gboolean windows = strstr(text, "shared windows") != NULL;
    gboolean rings = strstr(text, "rings") != NULL;

    verdict(windows == (comm->node_ranks > 1 || comm->size == 1) &&
            rings == (comm->node_ranks < comm->size));
}
END_TEST

START_TEST(a_group_shares_windows_when_its_members_share_a_node)
{
    const CommGroup *world = under_test.group[0];

    verdict(world->shared == (under_test.comm->node_ranks == under_test.comm->size));
}
END_TEST

/* Each rank reads 64 KiB of every peer's window, and no page before that. */
START_TEST(peers_memory_counts_as_foreign_once_it_was_read)
{
    enum { BYTES = 64 * 1024 };
    CommGroup *world = under_test.group[0];
    const ShardPiece piece = {.chunk = BYTES / sizeof(float)};
    char *full = checked_alloc(world->size * BYTES);
    g_autoptr(GError) error = NULL;

    memset(full, 0, world->size * BYTES);
    guint64 before = comm_foreign_bytes(under_test.comm);
    gboolean ok = world->comm->ops->all_gather(world, NULL, full, &piece, 1, DTYPE_FP32, &error);
    guint64 grown = comm_foreign_bytes(under_test.comm) - before;
    guint64 least = world->shared ? (world->size - 1) * BYTES : 0;
    if (grown < least)
        fprintf(stderr, "foreign: %" G_GUINT64_FORMAT " bytes, read %" G_GUINT64_FORMAT "\n", grown,
                least);
    verdict(ok && grown >= least && (world->shared || grown == 0));
}
END_TEST

static int run_on_nodes(guint ranks_per_node)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *name = g_strdup_printf("comm_mpi, %u ranks a node", ranks_per_node);
    Comm *comm = comm_open("mpi", ranks_per_node, &error);
    Suite *suite = comm_suite(ranks_per_node == 0 ? "comm_mpi" : name);
    TCase *tcase = tcase_create("nodes");

    g_assert_no_error(error);
    tcase_add_test(tcase, a_description_says_how_ranks_are_joined);
    tcase_add_test(tcase, a_group_shares_windows_when_its_members_share_a_node);
    tcase_add_test(tcase, peers_memory_counts_as_foreign_once_it_was_read);
    suite_add_tcase(suite, tcase);
    int failed = comm_suite_run(suite, comm);
    comm_free(comm);
    return failed;
}

int main(void)
{
    int provided = 0, size = 0, failed = 0;

    MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int ranks_per_node = 0; ranks_per_node <= MIN(2, size - 1); ranks_per_node++)
        failed += run_on_nodes((guint)ranks_per_node);
    MPI_Finalize();
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
