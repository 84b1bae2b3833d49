/* Collectives, messages and communicators of NCCL between processes. */
#include "tests/cudasim/kernels.h"
#include "tests/cudasim/number.h"
#include "tests/cudasim/ranks.h"
#include "tests/suite.h"

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

static gboolean a_simulated_group_does_nothing(const Rank *self)
{
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    float *x = to_device(&(float){3.0f}, sizeof *x), value;
    ncclComm_t comm = join_all(self);

    ok(ncclGroupStart());
    ok(ncclAllReduce(x, x, 1, ncclFloat, ncclSum, comm, NULL));
    ok(ncclGroupSimulateEnd(&info));
    to_host(&value, x, sizeof value);
    return info.estimatedTime > 0.0f && value == 3.0f;
}

START_TEST(a_simulated_group_says_how_long_and_does_nothing)
{
    ck_assert_int_eq(num_right(a_simulated_group_does_nothing, 2, schedule_at(0)), 2);
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
    tcase_add_test(tests, a_simulated_group_says_how_long_and_does_nothing);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
