#include "tests/cudasim/ranks.h"

#include "tests/cudasim/kernels.h"
#include "tests/suite.h"
#include <sys/wait.h>
#include <unistd.h>

static void run_rank(RankTest test, Rank self, Schedule schedule)
{
    gboolean right;

    cudasim_reset(schedule.policy, schedule.order, schedule.seed * 100 + (guint64)self.rank);
    ok(cudaStreamCreateWithFlags(&self.stream, cudaStreamNonBlocking));
    right = test(&self);
    _exit(right && cudasim_all_reports() == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
}

int num_right(RankTest test, int size, Schedule schedule)
{
    pid_t children[MOST_RANKS];
    Rank self = {.size = size};
    int right = 0, status;

    ok(ncclGetUniqueId(&self.id));
    for (self.rank = 0; self.rank < size; self.rank++) {
        children[self.rank] = fork();
        if (children[self.rank] == 0)
            run_rank(test, self, schedule);
    }
    for (int rank = 0; rank < size; rank++) {
        ck_assert_int_eq(waitpid(children[rank], &status, 0), children[rank]);
        right += WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS;
    }
    return right;
}

ncclComm_t join_all(const Rank *self)
{
    ncclComm_t comm;

    ok(ncclCommInitRank(&comm, self->size, self->id, self->rank));
    return comm;
}

float *filled(const Rank *self, float value, int count)
{
    float *x = to_device(NULL, (gsize)count * sizeof *x);

    kernel_fill(x, value, count, self->stream);
    return x;
}

gboolean all_are(const Rank *self, const float *device, float value, int count)
{
    g_autofree float *host = g_new(float, (gsize)count);

    ok(cudaStreamSynchronize(self->stream));
    to_host(host, device, (gsize)count * sizeof *host);
    for (int i = 0; i < count; i++)
        if (host[i] != value)
            return FALSE;
    return TRUE;
}
