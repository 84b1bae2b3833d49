/* Trainings on the CUDA device, joined by NCCL without MPI: ranks are children of this process that
 * meet at a port of this machine.  RANKS in the environment: those numbers of ranks ("2 4"). */
#include "tests/cuda/train_layouts.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { MOST_RANKS = 4, TIMEOUT_S = 300 };

static int listen_somewhere(guint *port)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof here;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)(void *)&here, bytes), 0);
    ck_assert_int_eq(listen(fd, MOST_RANKS), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)(void *)&here, &bytes), 0);
    *port = ntohs(here.sin_port);
    return fd;
}

/* The exit status of a child, which is the first of its processes to use CUDA. */
static int run_rank(const CommRendezvous *how)
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
    gint64 failed = train_all_layouts(&test);
    const gboolean agreed = runtime_agree_max(test.runtime, &failed, &error);
    train_test_close(&test);
    return agreed && failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

static void train_with(guint ranks)
{
    CommRendezvous how = {
        .host = "127.0.0.1", .size = ranks, .job = "a test", .limit_s = TIMEOUT_S};
    const int listener = listen_somewhere(&how.port);
    pid_t pid[MOST_RANKS];

    fflush(NULL);
    for (how.rank = 0; how.rank < ranks; how.rank++) {
        how.listener = how.rank == 0 ? listener : -1;
        pid[how.rank] = fork();
        if (pid[how.rank] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (how.rank > 0)
                close(listener);
            exit(run_rank(&how)); /* reports of the simulated device change the status there */
        }
    }
    close(listener);
    for (guint rank = 0; rank < ranks; rank++) {
        int status;

        ck_assert_int_eq(waitpid(pid[rank], &status, 0), pid[rank]);
        ck_assert_msg(status == 0, "rank %u says why on stderr", rank);
    }
}

START_TEST(ranks_that_meet_without_mpi_train_as_one_on_the_cpu)
{
    const char *only = g_getenv("RANKS");
    g_autofree char *number = g_strdup_printf("%u", 1u << _i);

    if (only == NULL ? _i > 0 : strstr(only, number) != NULL)
        train_with(1u << _i);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("training on CUDA without MPI");
    TCase *tcase = tcase_create("layouts");

    tcase_set_timeout(tcase, TIMEOUT_S);
    tcase_add_loop_test(tcase, ranks_that_meet_without_mpi_train_as_one_on_the_cpu, 0, 3);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
