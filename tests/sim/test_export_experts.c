/* Models with experts or latent attention, and fp8: what frameworks have words for. */
#include "sim/config/config.h"
#include "tests/sim/export_case.h"

/* ---- models ---- */

/* On make_plan()'s mesh, with these axes of its 16 ranks. */
static Plan *plan_on(const char *model, const char *framework, guint ep, guint tp)
{
    Plan *plan = plan_of_model(model, framework);

    plan->layout.ep = ep;
    plan->layout.size[AXIS_TP] = tp;
    plan->layout.size[AXIS_DP_SHARD] = 16 / tp;
    plan->schedule.micro_batches = 64 / plan->layout.size[AXIS_DP_SHARD];
    plan->sequence_parallel = TRUE;
    return plan;
}

/* A small DeepSeek; @rest are more fields, each behind a comma. */
#define DEEPSEEK(type, rest)                                                                       \
    "{\"model_type\": \"" type "\", \"hidden_size\": 256, \"intermediate_size\": 512, "            \
    "\"num_hidden_layers\": 6, \"num_attention_heads\": 4, \"vocab_size\": 1024, "                 \
    "\"hidden_act\": \"silu\", \"kv_lora_rank\": 64, \"qk_nope_head_dim\": 32, "                   \
    "\"qk_rope_head_dim\": 16, \"v_head_dim\": 32, \"n_routed_experts\": 16, "                     \
    "\"num_experts_per_tok\": 4, \"moe_intermediate_size\": 128, "                                 \
    "\"tie_word_embeddings\": false" rest "}"
#define YARN(rest)                                                                                 \
    ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, "                                    \
    "\"original_max_position_embeddings\": 4096" rest "}"
#define QWEN3(rest)                                                                                \
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 256, \"intermediate_size\": 512, "           \
    "\"num_hidden_layers\": 6, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, "           \
    "\"head_dim\": 64, \"vocab_size\": 1024, \"hidden_act\": \"silu\", \"num_experts\": 16, "      \
    "\"num_experts_per_tok\": 4, \"moe_intermediate_size\": 128" rest "}"

static const struct {
    const char *model, *framework;
    guint ep, tp;
    const char *says[6], *says_not[5];
} told[] = {
    {"mixtral-8x7b",
     "megatron",
     8,
     1,
     {"--num-experts 8\n--moe-router-topk 2\n--moe-ffn-hidden-size 14336\n",
      "--moe-grouped-gemm\n--moe-token-dispatcher-type alltoall\n--moe-layer-freq 1\n",
      "--expert-model-parallel-size 8\n--expert-tensor-parallel-size 1\n",
      "# left to you: a loss that balances", "--moe-router-load-balancing-type none\n"},
     {"pre-softmax", "shared", "score-function", "group-topk", "qk-layernorm"}},
    {"qwen3-30b-a3b",
     "megatron",
     4,
     2,
     {"--kv-channels 128\n", "--qk-layernorm\n", "--num-experts 128\n--moe-router-topk 8\n",
      "--moe-ffn-hidden-size 768\n", "--sequence-parallel\n",
      "--expert-model-parallel-size 4\n--expert-tensor-parallel-size 1\n"},
     {"pre-softmax", "multi-latent", "shared"}},
    {"deepseek-v3",
     "megatron",
     16,
     1,
     {"--kv-channels 128\n--multi-latent-attention\n--qk-layernorm\n--q-lora-rank 1536\n"
      "--kv-lora-rank 512\n--qk-head-dim 128\n--qk-pos-emb-head-dim 64\n--v-head-dim 128\n",
      "--rope-type yarn\n--rotary-scaling-factor 40\n--mscale 1\n--mscale-all-dim 1\n",
      "--num-experts 256\n--moe-router-topk 8\n--moe-ffn-hidden-size 2048\n",
      "--moe-layer-freq [0]*3+[1]*58\n--moe-shared-expert-intermediate-size 2048\n",
      "--moe-router-score-function sigmoid\n--moe-router-enable-expert-bias\n"
      "--moe-router-topk-scaling-factor 2.5\n",
      "--moe-router-num-groups 8\n--moe-router-group-topk 4\n"},
     {"query-groups", "pre-softmax", "interleaved", "rope-fusion"}},
    /* DeepSeek-V2-Lite's: no rank for queries, softmax, no groups */
    {DEEPSEEK("deepseek_v2", ", \"first_k_dense_replace\": 1, \"n_shared_experts\": 2"),
     "megatron",
     2,
     1,
     {"--rope-type rope\n--no-rope-fusion\n", "--moe-router-pre-softmax\n",
      "--moe-layer-freq [0]*1+[1]*5\n", "--moe-shared-expert-intermediate-size 256\n"},
     {"q-lora-rank", "yarn", "group-topk", "expert-bias", "scaling-factor"}},
    {DEEPSEEK("deepseek_v2", ", \"n_group\": 4, \"topk_method\": \"group_limited_greedy\""),
     "megatron",
     2,
     1,
     {"--moe-router-pre-softmax\n"},
     {"group-topk"}},
    {DEEPSEEK("deepseek_v3", ", \"n_group\": 1, \"topk_group\": 1"),
     "megatron",
     2,
     1,
     {"--moe-router-enable-expert-bias\n--moe-router-topk-scaling-factor 2.5\n"},
     {"group-topk"}},
    {QWEN3(", \"decoder_sparse_step\": 2"),
     "megatron",
     2,
     1,
     {"--moe-layer-freq [0]*1+([1]+[0]*1)*2+[1]+[0]*0\n", "--moe-router-pre-softmax\n"},
     {NULL}},
    {"qwen1.5-moe-a2.7b",
     "megatron",
     4,
     1,
     {"--moe-shared-expert-intermediate-size 5632\n--moe-shared-expert-gate\n",
      "--moe-router-pre-softmax\n", "--disable-bias-linear\n--add-qkv-bias\n"},
     {"qk-layernorm"}},

    {"qwen3-30b-a3b",
     "torchtitan",
     8,
     2,
     {"name = \"qwen3\"\nflavor = \"30B-A3B\"\n",
      "expert_parallel_degree = 8\nexpert_tensor_parallel_degree = 1\n"},
     {"no flavor", "balances", "gathered with the rest"}},
    {"deepseek-v3",
     "torchtitan",
     16,
     1,
     {"name = \"deepseek_v3\"\nflavor = \"671B\"\n", "expert_parallel_degree = 16\n",
      "a bias balances the experts' load"},
     {"no flavor", "gathered with the rest"}},
    {"qwen3-30b-a3b",
     "accelerate",
     1,
     1,
     {"Qwen3MoeDecoderLayer", "a block's experts are gathered with the rest of it"},
     {NULL}},
    {"qwen1.5-moe-a2.7b", "accelerate", 1, 1, {"Qwen2MoeDecoderLayer"}, {NULL}},
    {"gpt-oss-20b", "accelerate", 1, 1, {"GptOssDecoderLayer"}, {NULL}},
    {"opt-350m", "accelerate", 1, 1, {"OPTDecoderLayer"}, {"experts"}},
    {"gemma-2-9b", "accelerate", 1, 1, {"Gemma2DecoderLayer"}, {"experts"}},
    {"gemma-2-9b", "deepspeed", 1, 1, {"\"stage\" : 3"}, {"expert"}},
    {"qwen3-8b", "torchtitan", 1, 2, {"name = \"qwen3\"\nflavor = \"8B\"\n"}, {"expert_"}},
    {"qwen3-0.6b", "torchtitan", 1, 1, {"name = \"qwen3\"\nflavor = \"0.6B\"\n"}, {"flavor of"}},
    {QWEN3(""),
     "torchtitan",
     1,
     1,
     {"flavor = \"test\"\n", "without expert parallelism a block's experts",
      "add \"test\" to its qwen3 with dim 256, n_layers 6,",
      "head_dim 64, qk_norm True, enable_weight_tying False, moe_inter_dim 128, num_experts 16, "
      "num_shared_experts 0, top_k 4, score_func softmax, route_norm False, route_scale 1\n"},
     {NULL}},
    {DEEPSEEK("deepseek_v3", ", \"q_lora_rank\": 96, \"first_k_dense_replace\": 1"),
     "torchtitan",
     4,
     1,
     {"n_dense_layers 1, q_lora_rank 96, kv_lora_rank 64, qk_nope_head_dim 32, qk_rope_head_dim "
      "16, v_head_dim 32,",
      "score_func sigmoid, route_norm True, route_scale 2.5, num_expert_groups 8, "
      "num_limited_groups 4\n"},
     {NULL}},
};

/* The units of a plan as DeepSpeed's buckets: of Mixtral's block 2 norms, 2 x 4096^2 and
 * 2 x 1024 x 4096 of attention, the router, and of its 8 experts those of a rank. */
START_TEST(deepspeeds_buckets_have_the_experts_of_a_rank)
{
    const guint64 rest = 2 * 4096 + 2 * 4096 * 4096 + 2 * 1024 * 4096 + 8 * 4096;
    const guint64 expert = 3 * (guint64)4096 * 14336;

    for (guint ep = 1; ep <= 8; ep *= 2) {
        g_autoptr(Plan) plan = plan_on("mixtral-8x7b", "deepspeed", ep, 1);
        g_autofree char *refusal = NULL;
        g_autofree char *text = export_or_refusal(plan, "deepspeed", &refusal);
        g_autofree char *bucket = g_strdup_printf("%" G_GUINT64_FORMAT, rest + expert * 8 / ep);

        ck_assert_msg(text != NULL, "%s", refusal);
        g_autoptr(GHashTable) settings = settings_read("deepspeed", text);
        check_keys("deepspeed", settings);
        ck_assert_str_eq(setting(settings, "zero_optimization.reduce_bucket_size"), bucket);
        ck_assert_int_eq(g_hash_table_contains(settings, "expert_parallel.autoep_size"), ep > 1);
        if (ep > 1)
            ck_assert_str_eq(setting(settings, "expert_parallel.preset_model"), "\"mixtral\"");
    }
}
END_TEST

START_TEST(experts_are_told_in_the_words_of_the_framework)
{
    g_autoptr(Plan) plan = plan_on(told[_i].model, told[_i].framework, told[_i].ep, told[_i].tp);
    g_autofree char *refusal = NULL;
    g_autofree char *text = export_or_refusal(plan, told[_i].framework, &refusal);

    ck_assert_msg(text != NULL, "%s", refusal);
    check_words(text, told[_i].says, G_N_ELEMENTS(told[0].says), TRUE);
    check_words(text, told[_i].says_not, G_N_ELEMENTS(told[0].says_not), FALSE);
    g_autoptr(GHashTable) settings = settings_read(told[_i].framework, text);
    check_keys(told[_i].framework, settings);
}
END_TEST

static void multiply_in_fp8(Plan *plan)
{
    plan->workload.recipe = recipe_with_precision(plan->workload.recipe, DTYPE_FP8);
}

static const struct {
    const char *model, *framework;
    guint ep, tp;
    const char *refusal;
} refused[] = {
    {DEEPSEEK("deepseek_v2", ", \"n_group\": 8, \"topk_group\": 2, \"topk_method\": "
                             "\"group_limited_greedy\""),
     "megatron", 2, 1, "model.topk_group = 2: its groups are chosen by the sum"},
    {DEEPSEEK("deepseek_v3", ", \"norm_topk_prob\": false"), "megatron", 2, 1,
     "model.norm_topk_prob = false"},
    {DEEPSEEK("deepseek_v3", ", \"attention_bias\": true"), "megatron", 2, 1,
     "model.attention_bias = true: its latent attention has no biases"},
    {DEEPSEEK("deepseek_v3", YARN(", \"beta_fast\": 1")), "megatron", 2, 1,
     "model.rope_scaling.beta_fast = 1: it has 32 built in"},
    {DEEPSEEK("deepseek_v3", ", \"rope_scaling\": {\"rope_type\": \"longrope\"}"), "megatron", 2, 1,
     "model.rope_scaling.rope_type = longrope"},
    {QWEN3(YARN("")), "megatron", 2, 1, "model.rope_scaling = {...}: beside latent attention"},
    {"mixtral-8x7b", "torchtitan", 2, 1, "model.model_type = mixtral: its llama3 has RMSNorm"},
    {DEEPSEEK("deepseek_v2", ", \"n_group\": 8, \"topk_group\": 2, \"topk_method\": "
                             "\"group_limited_greedy\""),
     "torchtitan", 2, 1, "model.topk_method = group_limited_greedy"},
    {QWEN3(", \"decoder_sparse_step\": 2"), "torchtitan", 2, 1, "model.decoder_sparse_step = 2"},
    {QWEN3(", \"attention_bias\": true"), "torchtitan", 2, 1, "model.model_type = qwen3_moe"},
    {"qwen3-30b-a3b", "torchtitan", 1, 2, "layout.ep = 1: beside tp it splits"},
    {"gemma-2-9b", "torchtitan", 1, 1, "model.model_type = gemma2: there is no word for norms"},
    {"gemma-2-9b", "megatron", 1, 1, "model.model_type = gemma2: there is no word for norms"},
    {"mixtral-8x7b", "accelerate", 2, 1, "layout.ep = 2: it has no expert parallelism"},
    {"gpt-oss-20b", "megatron", 4, 1,
     "there is no word for attention sinks, biases of experts, blocks with and without a window"},
    {"gpt-oss-20b", "torchtitan", 4, 1, "there is no word for attention sinks"},
    {"gpt-oss-20b", "deepspeed", 4, 1, "model.model_type = gpt_oss: no equivalent is known"},
    {"qwen1.5-moe-a2.7b", "torchtitan", 4, 1, "a gate of what shared experts give"},
    {"opt-350m", "megatron", 1, 1, "norms after the sum, an embedding of another width"},
};

START_TEST(experts_that_a_framework_lacks_are_refused_by_name)
{
    g_autoptr(Plan) plan =
        plan_on(refused[_i].model, refused[_i].framework, refused[_i].ep, refused[_i].tp);
    g_autofree char *refusal = NULL;
    g_autofree char *text = export_or_refusal(plan, refused[_i].framework, &refusal);

    ck_assert_msg(text == NULL, "%s", text);
    ck_assert_msg(strstr(refusal, refused[_i].refusal) != NULL, "%s", refusal);
}
END_TEST

static void split_sequence(Plan *plan)
{
    plan->layout.size[AXIS_CP] = 2;
    plan->layout.size[AXIS_DP_SHARD] = 8;
}
static void cut_into_stages(Plan *plan)
{
    plan->layout.size[AXIS_PP] = 2;
    plan->layout.size[AXIS_DP_SHARD] = 8;
    plan->sharding.strategy = STRATEGY_SHARD_GRAD_OP;
    plan->sharding.accumulate_sharded = FALSE;
}
static void cut_in_fp8(Plan *plan)
{
    cut_into_stages(plan);
    multiply_in_fp8(plan);
}
static void gather_in_fp8(Plan *plan)
{
    multiply_in_fp8(plan);
    plan->sharding.gather_fp8 = TRUE;
}
static void shard_in_groups(Plan *plan)
{
    plan->layout.ep = 2;
    set_mesh(plan, STRATEGY_HYBRID_SHARD, 2, 8);
}
static void lengthen(Plan *plan)
{
    plan->workload.seq_len = 8192;
}

static const struct {
    const char *model, *framework;
    void (*choose)(Plan *plan);
    const char *refusal;
} chosen[] = {
    {"deepseek-v3", "torchtitan", split_sequence,
     "layout.cp = 2: its flavors of deepseek_v3 have attn_type"},
    {"deepseek-v3", "torchtitan", cut_in_fp8,
     "workload.precision = fp8: its experts in float8 go with"},
    {"deepseek-v3", "torchtitan", gather_in_fp8,
     "sharding.gather_dtype = fp8: its experts are gathered in"},
    {"qwen3-30b-a3b", "torchtitan", cut_into_stages, "layout.pp = 2: its qwen3 has no pipeline"},
    {"mistral-7b", "torchtitan", lengthen, "model.sliding_window = 4096: its attention is to all"},
    {"mixtral-8x7b", "accelerate", multiply_in_fp8, "workload.precision = fp8: its float8 layers"},
    {"mixtral-8x7b", "deepspeed", shard_in_groups, "layout.ep = 2: its AutoEP does not go with"},
};

START_TEST(models_with_experts_lack_some_choices)
{
    g_autoptr(Plan) plan = plan_on(chosen[_i].model, chosen[_i].framework, 1, 1);
    g_autofree char *refusal = NULL;

    chosen[_i].choose(plan);
    g_autofree char *text = export_or_refusal(plan, chosen[_i].framework, &refusal);
    ck_assert_msg(text == NULL, "%s", text);
    ck_assert_msg(strstr(refusal, chosen[_i].refusal) != NULL, "%s", refusal);
}
END_TEST

START_TEST(torchtitans_experts_in_fp8_have_a_converter_of_their_own)
{
    g_autoptr(Plan) plan = plan_on("qwen3-30b-a3b", "torchtitan", 8, 1);
    g_autofree char *refusal = NULL;

    multiply_in_fp8(plan);
    g_autofree char *text = export_or_refusal(plan, "torchtitan", &refusal);
    ck_assert_msg(text != NULL, "%s", refusal);
    const char *const words[] = {
        "converters = [\"quantize.linear.float8\", \"quantize.grouped_mm.float8\"]\n",
        "filter_fqns = [\"output\", \"router.gate\"]\n",
        "\n[quantize.grouped_mm.float8]\nfqns = [\"experts\"]\n"};
    check_words(text, words, G_N_ELEMENTS(words), TRUE);
}
END_TEST

START_TEST(experts_beside_tp_want_the_sequence_split)
{
    g_autoptr(Plan) plan = plan_on("mixtral-8x7b", "megatron", 2, 2);
    g_autofree char *refusal = NULL;

    plan->sequence_parallel = FALSE;
    g_autofree char *text = export_or_refusal(plan, "megatron", &refusal);
    ck_assert_ptr_null(text);
    ck_assert_ptr_nonnull(strstr(refusal, "tensor_parallel.sequence = false: a model with exp"));
}
END_TEST

START_TEST(a_window_shorter_than_the_sequence_is_told)
{
    g_autoptr(Plan) plan = plan_of_model("mistral-7b", "megatron");
    g_autofree char *refusal = NULL, *split_refusal = NULL;

    plan->workload.seq_len = 8192;
    g_autofree char *text = export_or_refusal(plan, "megatron", &refusal);
    ck_assert_msg(text != NULL, "%s", refusal);
    ck_assert_ptr_nonnull(strstr(text, "--window-size 4095,0\n"));
    plan->layout.size[AXIS_CP] = 2;
    g_autofree char *split = export_or_refusal(plan, "megatron", &split_refusal);
    ck_assert_ptr_null(split);
    ck_assert_ptr_nonnull(strstr(split_refusal, "layout.cp = 2: the model's sliding_window"));
}
END_TEST

/* ---- fp8 ---- */

static const struct {
    const char *framework;
    const char *says, *gathers;
} eighths[] = {
    {"megatron", "--bf16\n--grad-reduce-in-bf16\n--fp8-format hybrid\n--fp8-recipe tensorwise\n",
     "--fp8-param-gather\n"},
    {"torchtitan", "converters = [\"quantize.linear.float8\"]\n",
     "enable_fsdp_float8_all_gather = true\n"
     "precompute_float8_dynamic_scale_for_fsdp = true\nfilter_fqns = [\"output\"]\n"},
    {"accelerate", "fsdp_cpu_ram_efficient_loading: false\n",
     "fp8_config:\n  backend: AO\n  enable_fsdp_float8_all_gather: true\n  pad_inner_dim: true\n"},
};

START_TEST(fp8_products_and_gathers_are_told_and_read_back)
{
    static const char *const sources[] = {"job.sh", "job.toml", "job.yaml"};
    const char *framework = eighths[_i].framework;
    g_autoptr(Plan) plan = plan_of_model("llama-3.1-8b", framework);

    plan->workload.recipe = recipe_with_precision(plan->workload.recipe, DTYPE_FP8);
    if (strcmp(framework, "accelerate") == 0) /* its file has no word for another reduction */
        plan->workload.recipe =
            recipe_with_gradients(plan->workload.recipe, DTYPE_FP32, DTYPE_BF16);
    for (gint gathers = 0; gathers <= 1; gathers++) {
        g_autofree char *refusal = NULL;
        g_autoptr(GError) error = NULL;

        plan->sharding.gather_fp8 = gathers;
        g_autofree char *text = export_or_refusal(plan, framework, &refusal);
        ck_assert_msg(text != NULL, "%s", refusal);
        ck_assert_ptr_nonnull(strstr(text, " in fp8: global batch "));
        check_words(text, &eighths[_i].says, 1, TRUE);
        check_words(text, &eighths[_i].gathers, 1, gathers);
        g_autoptr(GHashTable) settings = settings_read(framework, text);
        check_keys(framework, settings);
        g_autoptr(Config) config = config_parse(text, sources[_i], &error);
        ck_assert_msg(config != NULL, "%s", error == NULL ? "" : error->message);
        ck_assert_ptr_eq(config->recipe, plan->workload.recipe);
        ck_assert_int_eq(config->gather_fp8, gathers);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("export of experts");
    TCase *tcase = tcase_create("experts");

    tcase_add_loop_test(tcase, experts_are_told_in_the_words_of_the_framework, 0,
                        G_N_ELEMENTS(told));
    tcase_add_test(tcase, deepspeeds_buckets_have_the_experts_of_a_rank);
    tcase_add_loop_test(tcase, experts_that_a_framework_lacks_are_refused_by_name, 0,
                        G_N_ELEMENTS(refused));
    tcase_add_loop_test(tcase, models_with_experts_lack_some_choices, 0, G_N_ELEMENTS(chosen));
    tcase_add_test(tcase, torchtitans_experts_in_fp8_have_a_converter_of_their_own);
    tcase_add_test(tcase, experts_beside_tp_want_the_sequence_split);
    tcase_add_test(tcase, a_window_shorter_than_the_sequence_is_told);
    tcase_add_loop_test(tcase, fp8_products_and_gathers_are_told_and_read_back, 0,
                        G_N_ELEMENTS(eighths));
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
