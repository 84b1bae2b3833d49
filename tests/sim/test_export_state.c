/* State that lies elsewhere, and fp16: what frameworks have words for. */
#include "tests/sim/export_case.h"

static void put(Plan *plan, Tier optimizer, Tier parameters)
{
    plan->sharding.offload = (Offload){optimizer, parameters};
}
static void put_all_on_the_host(Plan *plan)
{
    put(plan, TIER_HOST, TIER_HOST);
}
static void put_moments_on_the_host(Plan *plan)
{
    put(plan, TIER_HOST, TIER_DEVICE);
}
static void put_moments_on_cxl(Plan *plan)
{
    put(plan, TIER_CXL, TIER_DEVICE);
}
static void offload_in_stage_2(Plan *plan)
{
    set_mesh(plan, STRATEGY_SHARD_GRAD_OP, 1, 16);
    put_all_on_the_host(plan);
}
static void offload_a_distributed_optimizer(Plan *plan)
{
    set_mesh(plan, STRATEGY_SHARD_OPTIMIZER, 1, 16);
    put_moments_on_the_host(plan);
}
static void offload_of_groups(Plan *plan)
{
    set_mesh(plan, STRATEGY_HYBRID_SHARD, 2, 8);
    put_all_on_the_host(plan);
}

/* What has no word is refused by name. */
static const struct {
    const char *framework;
    const Recipe *recipe; /* NULL: zero in fp16 */
    void (*choose)(Plan *plan);
    const char *refusal;
} refusals[] = {
    {"torchtitan", &recipe_fsdp2, put_moments_on_the_host,
     "offload = optimizer=host,parameters=device: its offload moves"},
    {"accelerate", &recipe_fsdp2, put_moments_on_the_host,
     "offload = optimizer=host,parameters=device: its offload moves"},
    {"megatron", &recipe_zero, put_moments_on_the_host,
     "offload = optimizer=host,parameters=device: its optimiser on the host is a distributed"},
    {"megatron", &recipe_zero, put_all_on_the_host,
     "offload = optimizer=host,parameters=host: it moves the optimiser's state"},
    {"megatron", &recipe_fp32, offload_a_distributed_optimizer,
     "workload.recipe = fp32: its optimiser on the host has a master"},
    {"megatron", NULL, offload_a_distributed_optimizer,
     "workload.recipe = zero: --main-grads-dtype is fp32 or bf16"},
    {"deepspeed", &recipe_zero, put_moments_on_cxl, "offload.optimizer = cxl"},
    {"deepspeed", &recipe_zero, offload_in_stage_2, "offload.parameters = host"},
    {"deepspeed", &recipe_zero, offload_of_groups, "offload.optimizer = host: MiCS has no"},
};

START_TEST(tiers_that_a_framework_lacks_are_refused_by_name)
{
    const Recipe *half = recipe_with_precision(&recipe_zero, DTYPE_FP16);
    g_autoptr(Plan) plan = make_plan(refusals[_i].recipe != NULL ? refusals[_i].recipe : half);
    g_autofree char *refusal = NULL;

    refusals[_i].choose(plan);
    g_autofree char *text = export_or_refusal(plan, refusals[_i].framework, &refusal);
    ck_assert_ptr_null(text);
    ck_assert_msg(strstr(refusal, refusals[_i].refusal) != NULL, "%s", refusal);
}
END_TEST

/* The dtypes that a plan's recipe has, of gradients, master and moments. */
static const struct {
    const Recipe *recipe;
    const char *written, *not ;
} on_the_host[] = {
    {&recipe_zero,
     "--bf16\n--grad-reduce-in-bf16\n--optimizer-cpu-offload\n"
     "--use-precision-aware-optimizer\n--main-grads-dtype bf16\n"
     "--main-params-dtype fp32\n--exp-avg-dtype fp32\n--exp-avg-sq-dtype fp32\n",
     "use-megatron-fsdp"},
    {&recipe_megatron,
     "--bf16\n--optimizer-cpu-offload\n--use-precision-aware-optimizer\n"
     "--main-grads-dtype fp32\n--main-params-dtype fp32\n",
     "--grad-reduce-in-bf16"},
};

START_TEST(megatrons_optimiser_on_the_host_keeps_the_types_of_the_recipe)
{
    g_autoptr(Plan) plan = make_plan(on_the_host[_i].recipe);
    g_autofree char *refusal = NULL;

    offload_a_distributed_optimizer(plan);
    g_autofree char *text = export_or_refusal(plan, "megatron", &refusal);
    ck_assert_msg(text != NULL, "%s", refusal);
    check_words(text, &on_the_host[_i].written, 1, TRUE);
    check_words(text, &on_the_host[_i].not, 1, FALSE);
}
END_TEST

/* What the framework's own words for it are, and that nothing is said where all is on the device.
 */
static const struct {
    const char *framework;
    const Recipe *recipe;
    Tier optimizer, parameters;
    const char *written[3], *not [3];
} offloaded[] = {
    {"torchtitan", &recipe_fsdp2, TIER_HOST, TIER_HOST, {"enable_cpu_offload = true\n"}, {NULL}},
    {"torchtitan", &recipe_fsdp2, TIER_DEVICE, TIER_DEVICE, {NULL}, {"offload"}},
    {"accelerate", &recipe_fsdp2, TIER_HOST, TIER_HOST, {"fsdp_offload_params: true\n"}, {NULL}},
    {"accelerate",
     &recipe_fsdp2,
     TIER_DEVICE,
     TIER_DEVICE,
     {"fsdp_offload_params: false\n"},
     {NULL}},
    {"deepspeed",
     &recipe_zero,
     TIER_HOST,
     TIER_DEVICE,
     {"\"offload_optimizer\" : {\n      \"device\" : \"cpu\""},
     {"offload_param", "nvme"}},
    {"deepspeed",
     &recipe_zero,
     TIER_HOST,
     TIER_NVME,
     {"\"offload_optimizer\" : {\n      \"device\" : \"cpu\"",
      "\"offload_param\" : {\n      \"device\" : \"nvme\",\n      \"nvme_path\""},
     {NULL}},
    {"deepspeed", &recipe_zero, TIER_DEVICE, TIER_DEVICE, {NULL}, {"offload"}},
};

START_TEST(state_that_lies_elsewhere_is_told_in_the_words_of_the_framework)
{
    g_autoptr(Plan) plan = make_plan(offloaded[_i].recipe);
    g_autofree char *refusal = NULL;

    put(plan, offloaded[_i].optimizer, offloaded[_i].parameters);
    g_autofree char *text = export_or_refusal(plan, offloaded[_i].framework, &refusal);
    ck_assert_msg(text != NULL, "%s", refusal);
    check_words(text, offloaded[_i].written, 3, TRUE);
    check_words(text, offloaded[_i].not, 3, FALSE);
}
END_TEST

/* Of those that have it; a GPU without bf16, such as V100, trains in nothing else. */
static const struct {
    const char *framework;
    const Recipe *recipe;
    const char *written[3], *not [3];
} halves[] = {
    {"megatron", &recipe_zero, {"--fp16\n"}, {"bf16", "--accumulate"}},
    {"megatron",
     &recipe_megatron,
     {"--fp16\n", "--accumulate-allreduce-grads-in-fp32\n"},
     {"bf16"}},
    {"deepspeed",
     &recipe_zero,
     {"\"fp16\" : {\n    \"enabled\" : true", "\"grad_accum_dtype\" : \"fp16\"",
      "\"communication_data_type\" : \"fp16\""},
     {"bf16"}},
    {"accelerate", &recipe_fsdp2, {NULL}, {NULL}},
    {"torchtitan", &recipe_fsdp2, {NULL}, {NULL}},
};

START_TEST(fp16_is_written_where_it_exists)
{
    g_autoptr(Plan) plan = make_plan(recipe_with_precision(halves[_i].recipe, DTYPE_FP16));
    g_autofree char *refusal = NULL;
    g_autofree char *text = export_or_refusal(plan, halves[_i].framework, &refusal);

    if (halves[_i].written[0] == NULL) {
        ck_assert_ptr_nonnull(strstr(refusal, "can't express workload.precision = fp16"));
        return;
    }
    ck_assert_msg(text != NULL, "%s", refusal);
    const char *body = strstr(text, halves[_i].framework[0] == 'm' ? "\n--" : "{");
    check_words(body, halves[_i].written, 3, TRUE);
    check_words(body, halves[_i].not, 3, FALSE);
}
END_TEST

/* Where accumulators or reductions are not the recipe's: the words, or what is refused. */
static const struct {
    const char *framework;
    const Recipe *recipe;
    DType gradient, reduce;
    const char *written[3], *not [3];
    const char *refusal;
} gradients[] = {
    {"torchtitan",
     &recipe_fsdp2,
     DTYPE_FP32,
     DTYPE_BF16,
     {"mixed_precision_param = \"bfloat16\"\nmixed_precision_reduce = \"bfloat16\"\n",
      "# mixed_precision_reduce: its type names float32 alone"},
     {NULL},
     NULL},
    {"torchtitan", &recipe_fsdp2, DTYPE_BF16, DTYPE_FP32, {NULL}, {NULL}, "gradient_dtype = bf16"},
    {"megatron",
     &recipe_zero,
     DTYPE_FP32,
     DTYPE_FP32,
     {"--bf16\n"},
     {"--grad-reduce-in-bf16"},
     NULL},
    {"megatron",
     &recipe_megatron,
     DTYPE_BF16,
     DTYPE_BF16,
     {"--bf16\n--grad-reduce-in-bf16\n"},
     {NULL},
     NULL},
    {"megatron", &recipe_zero, DTYPE_FP32, DTYPE_BF16, {NULL}, {NULL}, "gradient_dtype = fp32"},
    {"deepspeed",
     &recipe_zero,
     DTYPE_FP32,
     DTYPE_BF16,
     {"\"grad_accum_dtype\" : \"fp32\"", "\"communication_data_type\" : \"bf16\""},
     {NULL},
     NULL},
    {"deepspeed",
     &recipe_megatron,
     DTYPE_BF16,
     DTYPE_FP32,
     {"\"grad_accum_dtype\" : \"bf16\"", "\"communication_data_type\" : \"fp32\""},
     {NULL},
     NULL},
    {"accelerate",
     &recipe_fsdp2,
     DTYPE_FP32,
     DTYPE_BF16,
     {"mixed_precision: bf16\n"},
     {"reduce_dtype"},
     NULL},
    {"accelerate", &recipe_fsdp2, DTYPE_BF16, DTYPE_BF16, {NULL}, {NULL}, "gradient_dtype = bf16"},
};

START_TEST(types_of_gradients_are_written_or_refused)
{
    g_autoptr(Plan) plan = make_plan(
        recipe_with_gradients(gradients[_i].recipe, gradients[_i].gradient, gradients[_i].reduce));
    g_autofree char *refusal = NULL;
    g_autofree char *text = export_or_refusal(plan, gradients[_i].framework, &refusal);

    if (gradients[_i].refusal != NULL) {
        ck_assert_ptr_nonnull(strstr(refusal, gradients[_i].refusal));
        return;
    }
    ck_assert_msg(text != NULL, "%s", refusal);
    check_words(text, gradients[_i].written, 3, TRUE);
    check_words(text, gradients[_i].not, 3, FALSE);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("export of state and fp16");
    TCase *tcase = tcase_create("export of state and fp16");

    tcase_add_loop_test(tcase, tiers_that_a_framework_lacks_are_refused_by_name, 0,
                        G_N_ELEMENTS(refusals));
    tcase_add_loop_test(tcase, state_that_lies_elsewhere_is_told_in_the_words_of_the_framework, 0,
                        G_N_ELEMENTS(offloaded));
    tcase_add_loop_test(tcase, megatrons_optimiser_on_the_host_keeps_the_types_of_the_recipe, 0,
                        G_N_ELEMENTS(on_the_host));
    tcase_add_loop_test(tcase, fp16_is_written_where_it_exists, 0, G_N_ELEMENTS(halves));
    tcase_add_loop_test(tcase, types_of_gradients_are_written_or_refused, 0,
                        G_N_ELEMENTS(gradients));
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
