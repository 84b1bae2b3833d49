/* Collectives beside other work: overlap, graphs, and ranks that fail or disagree. */
#include "tests/cudasim/kernels.h"
#include "tests/cudasim/ranks.h"
#include "tests/suite.h"
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- trouble ---- */

static gboolean a_difference_is_reported(const Rank *self)
{
    ncclComm_t comm = join_all(self);
    float *x = filled(self, 0.0f, COUNT);
    guint reports;

    cudasim_expect_reports();
    ok(ncclAllReduce(x, x, self->rank == 0 ? COUNT : COUNT - 1, ncclFloat, ncclSum, comm,
                     self->stream));
    ok(cudaDeviceSynchronize());
    reports = cudasim_reports(CS_NCCL);
    cudasim_reset(CS_FIFO, CS_ASCENDING, 1);
    return reports > 0;
}

START_TEST(ranks_that_disagree_are_reported)
{
    ck_assert_int_eq(num_right(a_difference_is_reported, 2, schedule_at(2)), 2);
}
END_TEST

static gpointer abort_soon(gpointer comm)
{
    g_usleep(200000);
    ncclCommAbort(comm);
    return NULL;
}

static gboolean abort_ends_the_wait(const Rank *self)
{
    ncclComm_t comm = join_all(self);
    float *x = filled(self, 0.0f, COUNT);
    ncclResult_t state;

    if (self->rank == self->size - 1)
        return TRUE; /* dies without the collective */
    GThread *watchdog = g_thread_new("watchdog", abort_soon, comm);
    ok(ncclAllReduce(x, x, COUNT, ncclFloat, ncclSum, comm, self->stream));
    ok(cudaStreamSynchronize(self->stream));
    g_thread_join(watchdog);
    ok(ncclCommGetAsyncError(comm, &state));
    return state == ncclRemoteError;
}

START_TEST(an_abort_from_another_thread_ends_a_wait)
{
    ck_assert_int_eq(num_right(abort_ends_the_wait, 3, schedule_at(2)), 3);
}
END_TEST

static gboolean an_endless_wait_is_reported(const Rank *self)
{
    ncclComm_t comm = join_all(self);
    float *x = filled(self, 0.0f, COUNT);
    guint reports;

    cudasim_expect_reports();
    if (self->rank == 0)
        ok(ncclAllReduce(x, x, COUNT, ncclFloat, ncclSum, comm, self->stream));
    ok(cudaDeviceSynchronize());
    reports = cudasim_reports(CS_NCCL);
    cudasim_reset(CS_FIFO, CS_ASCENDING, 1);
    return reports == (self->rank == 0 ? 1 : 0);
}

START_TEST(a_collective_that_nobody_joins_is_reported)
{
    setenv("CUDASIM_TIMEOUT", "0.5", 1);
    ck_assert_int_eq(num_right(an_endless_wait_is_reported, 2, schedule_at(1)), 2);
}
END_TEST

/* ---- overlap ---- */

enum { LAYERS = 6, NO_WAITS = 0, WAIT_FOR_BUFFER = 1, WAIT_FOR_GATHER = 2, ALL_WAITS = 3 };

/* Layers are gathered by turns into two buffers, on a stream of their own, while the one before is
 * added up. */
static gboolean gathers_overlap(const Rank *self, int waits)
{
    int size = self->size;
    ncclComm_t comm = join_all(self);
    float *sum = filled(self, 0.0f, COUNT * size), *shards[LAYERS], *full[2];
    cudaEvent_t ready[2], unused[2];
    cudaStream_t gather;

    ok(cudaStreamCreateWithFlags(&gather, cudaStreamNonBlocking));
    for (int i = 0; i < 2; i++) {
        full[i] = to_device(NULL, (gsize)(COUNT * size) * sizeof(float));
        ok(cudaEventCreateWithFlags(&ready[i], cudaEventDisableTiming));
        ok(cudaEventCreateWithFlags(&unused[i], cudaEventDisableTiming));
    }
    for (int layer = 0; layer < LAYERS; layer++)
        shards[layer] = filled(self, (float)(1 << layer), COUNT);
    ok(cudaStreamSynchronize(self->stream));
    for (int layer = 0; layer < LAYERS; layer++) {
        int i = layer % 2;
        if (layer >= 2 && (waits & WAIT_FOR_BUFFER))
            ok(cudaStreamWaitEvent(gather, unused[i], 0));
        ok(ncclAllGather(shards[layer], full[i], COUNT, ncclFloat, comm, gather));
        ok(cudaEventRecord(ready[i], gather));
        if (waits & WAIT_FOR_GATHER)
            ok(cudaStreamWaitEvent(self->stream, ready[i], 0));
        kernel_axpy(sum, full[i], 1.0f, COUNT * size, self->stream);
        ok(cudaEventRecord(unused[i], self->stream));
    }
    ok(cudaDeviceSynchronize());
    return all_are(self, sum, (float)((1 << LAYERS) - 1), COUNT * size);
}

static gboolean gathers_overlap_with_waits(const Rank *self)
{
    return gathers_overlap(self, ALL_WAITS);
}

static gboolean gathers_overlap_without_waiting_for_buffers(const Rank *self)
{
    cudasim_expect_reports();
    return gathers_overlap(self, WAIT_FOR_GATHER);
}

static gboolean gathers_overlap_without_waiting_for_gathers(const Rank *self)
{
    cudasim_expect_reports();
    return gathers_overlap(self, WAIT_FOR_BUFFER);
}

START_TEST(gathers_overlap_with_computation)
{
    int without_buffers = 0, without_gathers = 0;

    for (int i = 0; i < 8; i++) {
        Schedule schedule = schedule_at(i);
        ck_assert_int_eq(num_right(gathers_overlap_with_waits, 2, schedule), 2);
        without_buffers += num_right(gathers_overlap_without_waiting_for_buffers, 2, schedule);
        without_gathers += num_right(gathers_overlap_without_waiting_for_gathers, 2, schedule);
    }
    ck_assert_int_lt(without_buffers, 16);
    ck_assert_int_lt(without_gathers, 16);
}
END_TEST

static int ends[2]; /* of a pipe from rank 1 to rank 0 */

/* Rank 0 waits for rank 1 by other means, and rank 1 for the collective. */
static gboolean a_collective_goes_on_without_the_host(const Rank *self)
{
    ncclComm_t comm = join_all(self);
    float *x = filled(self, 1.0f, COUNT);
    char byte = 0;

    ok(ncclAllReduce(x, x, COUNT, ncclFloat, ncclSum, comm, self->stream));
    if (self->rank == 0)
        ck_assert_int_eq(read(ends[0], &byte, 1), 1);
    ok(cudaStreamSynchronize(self->stream));
    if (self->rank == 1)
        ck_assert_int_eq(write(ends[1], &byte, 1), 1);
    return all_are(self, x, 2.0f, COUNT);
}

START_TEST(collectives_go_on_while_the_host_does_not_call)
{
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(num_right(a_collective_goes_on_without_the_host, 2, schedule_at(1)), 2);
}
END_TEST

/* A graph with a collective, launched several times. */
static gboolean graph_is_right(const Rank *self)
{
    ncclComm_t comm = join_all(self);
    float *x = filled(self, 1.0f, COUNT);
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    ok(cudaStreamBeginCapture(self->stream, cudaStreamCaptureModeThreadLocal));
    ok(ncclAllReduce(x, x, COUNT, ncclFloat, ncclSum, comm, self->stream));
    ok(cudaStreamEndCapture(self->stream, &graph));
    ok(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++)
        ok(cudaGraphLaunch(exec, self->stream));
    ok(ncclAllReduce(x, x, COUNT, ncclFloat, ncclSum, comm, self->stream));
    return all_are(self, x, powf((float)self->size, 4.0f), COUNT);
}

START_TEST(a_graph_replays_collectives)
{
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(num_right(graph_is_right, 2, schedule_at(i)), 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cudasim nccl streams");
    TCase *tests = tcase_create("nccl");

    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, ranks_that_disagree_are_reported);
    tcase_add_test(tests, an_abort_from_another_thread_ends_a_wait);
    tcase_add_test(tests, a_collective_that_nobody_joins_is_reported);
    tcase_add_test(tests, gathers_overlap_with_computation);
    tcase_add_test(tests, collectives_go_on_while_the_host_does_not_call);
    tcase_add_test(tests, a_graph_replays_collectives);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
