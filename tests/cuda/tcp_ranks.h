/* Ranks on the CUDA device, joined by NCCL without MPI: children of this process that meet at a
 * port of this machine. */
#pragma once

#include "tests/cuda/train_case.h"
#include "tests/listen.h"

#include <sys/prctl.h>
#include <sys/wait.h>

enum { TCP_MOST_RANKS = 4, TCP_TIMEOUT_S = 300 };

/* What a rank does; how much of it fails. */
typedef gint64 TcpRanksWork(const TrainTest *test);

/* The exit status of a child, which is the first of its processes to use CUDA. */
static inline int tcp_ranks_rank(const CommRendezvous *how, TcpRanksWork *work)
{
    const RuntimeOptions options = {
        .transport = "tcp",
        .rendezvous = how,
        .threads = 1,
        .device = DEVICE_CUDA,
        .plug_in = &fsdp_cuda_plug_in,
        .local_rank = how->rank,
        .nccl = TRUE,
    };
    g_autoptr(GError) error = NULL;
    TrainTest test;

    train_test_open(&test, &options);
    g_assert(test.rank == how->rank && test.ranks == how->size);
    g_assert(strcmp(runtime_transport(test.runtime), "NCCL, ranks joined over TCP") == 0);
    gint64 failed = work(&test);
    const gboolean agreed = runtime_agree_max(test.runtime, &failed, &error);
    train_test_close(&test);
    return agreed && failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* All must have nothing that fails. */
static inline void tcp_ranks_run(guint ranks, TcpRanksWork *work)
{
    CommRendezvous how = {
        .host = "127.0.0.1", .size = ranks, .job = "a test", .limit_s = TCP_TIMEOUT_S};
    const int listener = listen_somewhere(&how.port);
    pid_t pid[TCP_MOST_RANKS];

    fflush(NULL);
    for (how.rank = 0; how.rank < ranks; how.rank++) {
        how.listener = how.rank == 0 ? listener : -1;
        pid[how.rank] = fork();
        if (pid[how.rank] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (how.rank > 0)
                close(listener);
            /* Reports of the simulated device change the status in exit(). */
            exit(tcp_ranks_rank(&how, work));
        }
    }
    close(listener);
    for (guint rank = 0; rank < ranks; rank++) {
        int status;

        ck_assert_int_eq(waitpid(pid[rank], &status, 0), pid[rank]);
        ck_assert_msg(status == 0, "rank %u says why on stderr", rank);
    }
}

/* RANKS in the environment ("2 4") says which numbers of ranks are tried; else all. */
static inline gboolean tcp_ranks_wanted(guint ranks)
{
    const char *only = g_getenv("RANKS");
    g_autofree char *number = g_strdup_printf("%u", ranks);

    return only == NULL || strstr(only, number) != NULL;
}
