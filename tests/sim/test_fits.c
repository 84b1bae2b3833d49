/* Jobs that people asked about in public: whether they fit, and what stands in the way. */
#include "sim/cost/framework.h"
#include "sim/remarks.h"
#include "sim/search/search.h"
#include "tests/suite.h"

#include <string.h>

typedef struct {
    const char *model, *topology, *framework;
    guint axes[NUM_AXES]; /* pp, dp_replicate, dp_shard, cp, tp */
    guint seq_len;
    Tier optimizer;
} Job;

static Plan *estimated(const Job *job)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_load(job->model, "models", &error);
    g_autoptr(Topology) topology = topology_load(job->topology, "topologies", &error);
    SearchRequest request = {
        .model = model,
        .topology = topology,
        .gpus = 1,
        .fixed_ep = 1,
        .seq_len = job->seq_len,
        .recipe = &recipe_zero,
        .strategy = STRATEGY_FULL_SHARD,
        .recompute = RECOMPUTE_FULL,
        .schedule = -1,
        .context = -1,
        .sequence_parallel = TRUE,
        .micro_batch = 1,
        .sharding = {.prefetch = 1,
                     .live_units = 2,
                     .keep_root = TRUE,
                     .keep_last = TRUE,
                     .accumulate_sharded = TRUE,
                     .offload = {job->optimizer, TIER_DEVICE}},
        .framework = framework_from_name(job->framework),
    };

    memcpy(request.fixed, job->axes, sizeof request.fixed);
    for (guint a = 0; a < NUM_AXES; a++)
        request.gpus *= job->axes[a];
    Plan *plan = search_estimate(&request, &error);
    ck_assert_msg(plan != NULL, "%s", error == NULL ? "" : error->message);
    return plan;
}

#define ZERO3_OF_8                                                                                 \
    {                                                                                              \
        1, 1, 8, 1, 1                                                                              \
    }

/* Full fine-tuning of 7B, checkpoints of each block. */
static const struct {
    Job job;
    const char *in_the_way; /* NULL: it fits */
} jobs[] = {
    /* LlamaFactory 5720: on 8 A100-80, optimiser offloaded, 64k fits and more is out of memory;
     * 128k with Liger's loss, says the maintainer */
    {{"llama-2-7b", "dgx-a100-80gb", "deepspeed", ZERO3_OF_8, 65536, TIER_HOST}, NULL},
    {{"llama-2-7b", "dgx-a100-80gb", "deepspeed", ZERO3_OF_8, 131072, TIER_HOST},
     "logits are whole: 131072 tokens x 32000 words x 10 bytes, however many ranks shard the "
     "parameters; fewer with a larger cp or tp, or with a loss that is taken in chunks"},
    {{"llama-2-7b", "dgx-a100-80gb", "deepspeed-liger", ZERO3_OF_8, 131072, TIER_HOST}, NULL},
    /* LlamaFactory 5024: Qwen2-7B (the same shape), 120k on 8 H100 */
    {{"qwen2.5-7b", "dgx-h100", "deepspeed", ZERO3_OF_8, 120000, TIER_DEVICE},
     "logits are whole: 120000 tokens x 152064 words x 10 bytes"},
    {{"qwen2.5-7b", "dgx-h100", "deepspeed", ZERO3_OF_8, 120000, TIER_HOST}, "logits are whole"},
    {{"qwen2.5-7b", "dgx-h100", "deepspeed-liger", ZERO3_OF_8, 65536, TIER_DEVICE}, NULL},
    {{"qwen2.5-7b", "dgx-h100", "deepspeed-liger", ZERO3_OF_8, 122880, TIER_DEVICE},
     "activations are of the 122880 tokens that a rank works on at once, however many ranks shard "
     "the parameters; fewer with a larger cp or tp"},
    {{"qwen2.5-7b", "dgx-h100", "deepspeed-liger", ZERO3_OF_8, 122880, TIER_HOST}, NULL},
    {{"qwen2.5-7b", "dgx-h100", "deepspeed", {1, 1, 2, 4, 1}, 122880, TIER_DEVICE}, NULL},
    /* fsdp-run takes the loss in chunks too */
    {{"qwen2.5-7b", "dgx-h100", "fsdp-run", ZERO3_OF_8, 65536, TIER_DEVICE}, NULL},
};

START_TEST(long_sequences_of_7b_fit_as_people_found)
{
    g_autoptr(Plan) plan = estimated(&jobs[_i].job);
    g_autofree char *largest = remark_largest(plan);
    const char *expected = jobs[_i].in_the_way;

    ck_assert_int_eq(plan->reasons->len == 0, expected == NULL);
    ck_assert_msg((largest == NULL) == (expected == NULL), "%s", largest);
    if (expected != NULL)
        ck_assert_msg(strstr(largest, expected) != NULL, "%s", largest);
}
END_TEST

/* litgpt 303: FSDP on 2 GPUs ran out of memory before 1 did, for one tensor of 8 GiB. */
START_TEST(ranks_that_shard_parameters_leave_logits_as_they_are)
{
    Job job = {"llama-2-7b", "pcie-8x-rtx-3090", "deepspeed", {1, 1, 1, 1, 1}, 32768, TIER_DEVICE};
    guint64 logits[2];

    for (guint i = 0; i < G_N_ELEMENTS(logits); i++) {
        job.axes[AXIS_DP_SHARD] = i + 1;
        g_autoptr(Plan) plan = estimated(&job);
        logits[i] = plan->prediction.memory_bytes[TERM_LOGITS];
    }
    ck_assert_uint_gt(logits[0], 10 * G_GUINT64_CONSTANT(32768) * 32000);
    ck_assert_uint_eq(logits[0], logits[1]);
}
END_TEST

/* llama-cookbook 100: 7B fits 8 x 24 GB once it is sharded. */
static const struct {
    Job job;
    const char *says; /* NULL: nothing is in the way */
} loads[] = {
    {{"llama-2-7b", "pcie-8x-rtx-3090", "torchtitan", ZERO3_OF_8, 2048, TIER_DEVICE},
     "needs 30.5 GB in fp32, which does not fit; 16 bits need 17.0 GB: make it on the meta"},
    {{"llama-3.1-70b", "dgx-h100", "torchtitan", {1, 1, 64, 1, 1}, 8192, TIER_DEVICE},
     "needs 285.7 GB in fp32, which does not fit, nor do 16 bits, 144.6 GB"},
    {{"llama-3.1-8b", "dgx-h100", "torchtitan", ZERO3_OF_8, 8192, TIER_DEVICE}, NULL},
    {{"llama-3.1-70b", "dgx-h100", "megatron", {8, 1, 2, 1, 4}, 8192, TIER_DEVICE}, NULL},
    {{"llama-3.1-70b", "dgx-h100", "fsdp-run", {1, 1, 64, 1, 1}, 8192, TIER_DEVICE}, NULL},
};

START_TEST(a_plan_that_fits_says_where_loading_would_not)
{
    g_autoptr(Plan) plan = estimated(&loads[_i].job);
    g_autofree char *loading = remark_loading(plan);

    ck_assert_uint_eq(plan->reasons->len, 0);
    ck_assert_msg((loading == NULL) == (loads[_i].says == NULL), "%s", loading);
    if (loading != NULL)
        ck_assert_msg(strstr(loading, loads[_i].says) != NULL, "%s", loading);
}
END_TEST

/* What can't be made smaller any more is not advised. */
START_TEST(advice_names_only_what_is_not_done_yet)
{
    const Job job = {"llama-2-7b", "pcie-8x-rtx-3090", "fsdp-run", ZERO3_OF_8, 131072, TIER_DEVICE};
    g_autoptr(Plan) plan = estimated(&job);
    g_autofree char *done = remark_largest(plan);

    plan->schedule.recompute = RECOMPUTE_NONE;
    plan->schedule.micro_batch = 2;
    g_autofree char *more = remark_largest(plan);
    ck_assert_ptr_null(strstr(done, "recompute full"));
    ck_assert_ptr_null(strstr(done, "micro-batch"));
    ck_assert_ptr_nonnull(strstr(more, "recompute full"));
    ck_assert_ptr_nonnull(strstr(more, "a smaller micro-batch"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fits");
    TCase *tcase = tcase_create("fits");

    tcase_add_loop_test(tcase, long_sequences_of_7b_fit_as_people_found, 0, G_N_ELEMENTS(jobs));
    tcase_add_test(tcase, ranks_that_shard_parameters_leave_logits_as_they_are);
    tcase_add_loop_test(tcase, a_plan_that_fits_says_where_loading_would_not, 0,
                        G_N_ELEMENTS(loads));
    tcase_add_test(tcase, advice_names_only_what_is_not_done_yet);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
