/* NCCL between processes: each rank is a child with a simulated device of its own. */
#include "tests/cudasim/kernels.h"
#include "tests/cudasim/number.h"
#include "tests/cudasim/outcome.h"
#include "tests/suite.h"
#include <math.h>
#include <nccl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 1000, MOST_RANKS = 4 };

typedef struct {
    int rank;
    int size;
    ncclUniqueId id;
    cudaStream_t stream;
} Rank;

typedef gboolean (*RankTest)(const Rank *self);

static void run_rank(RankTest test, Rank self, Schedule schedule)
{
    gboolean right;

    cudasim_reset(schedule.policy, schedule.order, schedule.seed * 100 + (guint64)self.rank);
    ok(cudaStreamCreateWithFlags(&self.stream, cudaStreamNonBlocking));
    right = test(&self);
    _exit(right && cudasim_all_reports() == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
}

/* How many of @size ranks are right, and report nothing. */
static int num_right(RankTest test, int size, Schedule schedule)
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

static ncclComm_t join_all(const Rank *self)
{
    ncclComm_t comm;

    ok(ncclCommInitRank(&comm, self->size, self->id, self->rank));
    return comm;
}

static float *filled(const Rank *self, float value, int count)
{
    float *x = to_device(NULL, (gsize)count * sizeof *x);

    kernel_fill(x, value, count, self->stream);
    return x;
}

/* Whether all of @count elements are @value. */
static gboolean all_are(const Rank *self, const float *device, float value, int count)
{
    g_autofree float *host = g_new(float, (gsize)count);

    ok(cudaStreamSynchronize(self->stream));
    to_host(host, device, (gsize)count * sizeof *host);
    for (int i = 0; i < count; i++)
        if (host[i] != value)
            return FALSE;
    return TRUE;
}

/* ---- collectives ---- */

static gboolean collectives_are_right(const Rank *self)
{
    int size = self->size, rank = self->rank, sum = size * (size + 1) / 2;
    ncclComm_t comm = join_all(self);
    float *shard = filled(self, (float)(rank + 1), COUNT);
    float *full = to_device(NULL, (gsize)(COUNT * size) * sizeof *full);
    float *out = to_device(NULL, COUNT * sizeof *out);
    gboolean right = TRUE;

    ok(ncclAllGather(shard, full, COUNT, ncclFloat, comm, self->stream));
    for (int i = 0; i < size; i++)
        right = right && all_are(self, full + i * COUNT, (float)(i + 1), COUNT);
    ok(ncclReduceScatter(full, out, COUNT, ncclFloat, ncclSum, comm, self->stream));
    right = right && all_are(self, out, (float)(size * (rank + 1)), COUNT);
    ok(ncclAllReduce(shard, out, COUNT, ncclFloat, ncclSum, comm, self->stream));
    right = right && all_are(self, out, (float)sum, COUNT);
    ok(ncclAllReduce(shard, out, COUNT, ncclFloat, ncclMax, comm, self->stream));
    right = right && all_are(self, out, (float)size, COUNT);
    ok(ncclReduce(shard, out, COUNT, ncclFloat, ncclAvg, 1, comm, self->stream));
    right = right && all_are(self, out, rank == 1 ? (float)sum / (float)size : (float)size, COUNT);
    ok(ncclBroadcast(shard, out, COUNT, ncclFloat, 1, comm, self->stream));
    right = right && all_are(self, out, 2.0f, COUNT);
    ok(ncclAllReduce(shard, shard, COUNT, ncclFloat, ncclSum, comm, self->stream)); /* in place */
    right = right && all_are(self, shard, (float)sum, COUNT);
    ok(ncclCommDestroy(comm));
    return right;
}

START_TEST(collectives_give_the_sums_under_every_schedule)
{
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(num_right(collectives_are_right, 2, schedule_at(i)), 2);
    ck_assert_int_eq(num_right(collectives_are_right, 4, schedule_at(2)), 4);
}
END_TEST

static const struct {
    ncclDataType_t type;
    CsNumber number;
} types[] = {{ncclFloat32, CS_FP32}, {ncclBfloat16, CS_BF16},   {ncclFloat16, CS_FP16},
             {ncclFloat64, CS_FP64}, {ncclInt32, CS_INT32},     {ncclUint8, CS_UINT8},
             {ncclInt64, CS_INT64},  {ncclFloat8e4m3, CS_E4M3}, {ncclFloat8e5m2, CS_E5M2}};

/* Sums of small integers are exact in every type: element i of rank r is (i + r) % 3. */
static gboolean types_are_summed(const Rank *self)
{
    ncclComm_t comm = join_all(self);

    for (gsize t = 0; t < G_N_ELEMENTS(types); t++) {
        gsize bytes = COUNT * cs_number_bytes(types[t].number);
        g_autofree char *host = g_malloc(bytes);
        for (int i = 0; i < COUNT; i++)
            cs_number_set(types[t].number, host, (gsize)i, (i + self->rank) % 3);
        void *device = to_device(host, bytes);
        ok(ncclAllReduce(device, device, COUNT, types[t].type, ncclSum, comm, self->stream));
        ok(cudaStreamSynchronize(self->stream));
        to_host(host, device, bytes);
        for (int i = 0; i < COUNT; i++)
            if (cs_number_get(types[t].number, host, (gsize)i) != i % 3 + (i + 1) % 3)
                return FALSE;
    }
    return TRUE;
}

START_TEST(every_type_is_summed)
{
    ck_assert_int_eq(num_right(types_are_summed, 2, schedule_at(2)), 2);
}
END_TEST

static gboolean ring_is_right(const Rank *self)
{
    int next = (self->rank + 1) % self->size, last = (self->rank + self->size - 1) % self->size;
    ncclComm_t comm = join_all(self);
    float *in = filled(self, (float)self->rank, COUNT), *out = to_device(NULL, COUNT * sizeof *out);

    for (int round = 0; round < 3; round++) {
        ok(ncclGroupStart());
        ok(ncclSend(in, COUNT, ncclFloat, next, comm, self->stream));
        ok(ncclRecv(out, COUNT, ncclFloat, last, comm, self->stream));
        ok(ncclGroupEnd());
        if (!all_are(self, out, (float)last, COUNT))
            return FALSE;
    }
    return TRUE;
}

START_TEST(sends_and_receives_of_a_group_cannot_block_each_other)
{
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(num_right(ring_is_right, 3, schedule_at(i)), 3);
}
END_TEST

/* ---- communicators ---- */

/* 2 x 2: both axes at once, on streams of their own, which the ranks call in different order. */
static gboolean axes_are_independent(const Rank *self)
{
    ncclComm_t world = join_all(self), row, column, none;
    float *x = filled(self, (float)self->rank, COUNT), *y = filled(self, (float)self->rank, COUNT);
    cudaStream_t other;

    ok(cudaStreamSynchronize(self->stream));
    ok(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    ok(ncclCommSplit(world, self->rank / 2, self->rank, &row, NULL));
    ok(ncclCommSplit(world, self->rank % 2, self->rank, &column, NULL));
    ok(ncclCommSplit(world, self->rank == 0 ? NCCL_SPLIT_NOCOLOR : 1, 0, &none, NULL));
    if (self->rank % 2 == 0)
        ok(ncclAllReduce(x, x, COUNT, ncclFloat, ncclSum, row, self->stream));
    ok(ncclAllReduce(y, y, COUNT, ncclFloat, ncclSum, column, other));
    if (self->rank % 2 != 0)
        ok(ncclAllReduce(x, x, COUNT, ncclFloat, ncclSum, row, self->stream));
    ok(cudaStreamSynchronize(other));
    return (none == NULL) == (self->rank == 0) &&
           all_are(self, x, (float)(self->rank / 2 * 4 + 1), COUNT) &&
           all_are(self, y, (float)(self->rank % 2 * 2 + 2), COUNT);
}

START_TEST(a_communicator_splits_into_axes)
{
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(num_right(axes_are_independent, 4, schedule_at(i)), 4);
}
END_TEST

static int wait_ready(ncclComm_t comm)
{
    ncclResult_t state;
    int polls = 0;

    do {
        ok(ncclCommGetAsyncError(comm, &state));
        polls++;
    } while (state == ncclInProgress);
    ok((int)state);
    return polls;
}

static gboolean a_call_is_made_once_the_communicator_is_ready(const Rank *self)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    float *x = filled(self, 1.0f, COUNT);
    ncclComm_t comm, child;
    gboolean waited;

    config.blocking = 0;
    ck_assert_int_eq(ncclCommInitRankConfig(&comm, self->size, self->id, self->rank, &config),
                     ncclInProgress);
    waited = wait_ready(comm) > 1;
    ck_assert_int_eq(ncclCommSplit(comm, 0, self->rank, &child, NULL), ncclInProgress);
    wait_ready(comm);
    wait_ready(child);
    ck_assert_int_eq(ncclAllReduce(x, x, COUNT, ncclFloat, ncclSum, child, self->stream),
                     ncclInProgress);
    wait_ready(child);
    return waited && all_are(self, x, (float)self->size, COUNT);
}

START_TEST(a_communicator_need_not_block)
{
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(
            num_right(a_call_is_made_once_the_communicator_is_ready, 2, schedule_at(i)), 2);
}
END_TEST

/* Its event is recorded before the call has reached the stream. */
static gboolean an_event_too_early_is_wrong(const Rank *self)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    float *x = filled(self, 1.0f, COUNT), *y = filled(self, 0.0f, COUNT);
    cudaStream_t other;
    cudaEvent_t event;
    ncclComm_t comm;

    cudasim_expect_reports();
    config.blocking = 0;
    ok(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    ok(cudaEventCreate(&event));
    ncclCommInitRankConfig(&comm, self->size, self->id, self->rank, &config);
    wait_ready(comm);
    ncclAllReduce(x, x, COUNT, ncclFloat, ncclSum, comm, self->stream);
    ok(cudaEventRecord(event, self->stream));
    wait_ready(comm);
    ok(cudaStreamWaitEvent(other, event, 0));
    kernel_axpy(y, x, 1.0f, COUNT, other);
    ok(cudaStreamSynchronize(other));
    return all_are(self, y, (float)self->size, COUNT);
}

START_TEST(what_follows_a_call_in_progress_does_not_follow_the_collective)
{
    int wrong = 0;

    for (int i = 0; i < 4; i++)
        wrong += 2 - num_right(an_event_too_early_is_wrong, 2, schedule_at(i));
    ck_assert_int_gt(wrong, 0);
}
END_TEST

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

START_TEST(a_simulated_group_says_how_long_and_does_nothing)
{
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    Rank self = {.size = 1};
    float *x = to_device(&(float){3.0f}, sizeof *x), value;
    ncclComm_t comm;

    ok(ncclGetUniqueId(&self.id));
    comm = join_all(&self);
    ok(ncclGroupStart());
    ok(ncclAllReduce(x, x, 1, ncclFloat, ncclSum, comm, NULL));
    ok(ncclGroupSimulateEnd(&info));
    ck_assert_float_gt(info.estimatedTime, 0.0f);
    to_host(&value, x, sizeof value);
    ck_assert_float_eq(value, 3.0f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cudasim nccl");
    TCase *tests = tcase_create("nccl");

    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, collectives_give_the_sums_under_every_schedule);
    tcase_add_test(tests, every_type_is_summed);
    tcase_add_test(tests, sends_and_receives_of_a_group_cannot_block_each_other);
    tcase_add_test(tests, a_communicator_splits_into_axes);
    tcase_add_test(tests, a_communicator_need_not_block);
    tcase_add_test(tests, what_follows_a_call_in_progress_does_not_follow_the_collective);
    tcase_add_test(tests, ranks_that_disagree_are_reported);
    tcase_add_test(tests, an_abort_from_another_thread_ends_a_wait);
    tcase_add_test(tests, a_collective_that_nobody_joins_is_reported);
    tcase_add_test(tests, gathers_overlap_with_computation);
    tcase_add_test(tests, collectives_go_on_while_the_host_does_not_call);
    tcase_add_test(tests, a_graph_replays_collectives);
    tcase_add_test(tests, a_simulated_group_says_how_long_and_does_nothing);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
