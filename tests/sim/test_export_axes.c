/* Pipelines, context parallelism and what goes with them, in each framework's words. */
#include "tests/sim/export_case.h"

/* make_plan() on another mesh of the same 16 ranks, so that a data-parallel rank has more
 * micro-batches; two frameworks take only recipe fsdp2. */
static Plan *plan_on(const char *framework, guint pp, guint cp, guint tp)
{
    const gboolean fsdp2 =
        strcmp(framework, "torchtitan") == 0 || strcmp(framework, "accelerate") == 0;
    Plan *plan = make_plan(fsdp2 ? &recipe_fsdp2 : &recipe_zero);

    plan->layout.size[AXIS_PP] = pp;
    plan->layout.size[AXIS_CP] = cp;
    plan->layout.size[AXIS_TP] = tp;
    plan->layout.size[AXIS_DP_SHARD] = 16 / (pp * cp * tp);
    plan->schedule.micro_batches = 64 / plan->layout.size[AXIS_DP_SHARD];
    plan->sequence_parallel = strcmp(framework, "accelerate") != 0;
    return plan;
}

static void leave(Plan *plan)
{
    (void)plan;
}

/* What torchtitan's pipeline does by itself: units stay gathered, gradients are reduced once. */
static void gather_once(Plan *plan)
{
    plan->sharding.strategy = STRATEGY_SHARD_GRAD_OP;
    plan->sharding.accumulate_sharded = FALSE;
}
static void gather_again(Plan *plan)
{
    plan->sharding.keep_root = plan->sharding.keep_last = FALSE;
    plan->sharding.accumulate_sharded = FALSE;
}
static void fill_and_drain(Plan *plan)
{
    gather_once(plan);
    plan->schedule.kind = SCHEDULE_GPIPE;
}
static void interleave(Plan *plan)
{
    gather_once(plan);
    plan->schedule.kind = SCHEDULE_INTERLEAVED;
    plan->schedule.virtual_stages = 2;
}
static void interleave_zero(Plan *plan)
{
    interleave(plan);
    plan->sharding.strategy = STRATEGY_SHARD_OPTIMIZER;
}
static void shard_optimizer(Plan *plan)
{
    plan->sharding.strategy = STRATEGY_SHARD_OPTIMIZER;
    plan->sharding.accumulate_sharded = FALSE;
}
static void split_backward(Plan *plan)
{
    gather_once(plan);
    plan->schedule.kind = SCHEDULE_ZB_H1;
}
static void drop_a_layer(Plan *plan)
{
    gather_once(plan);
    plan->model->layers = 7;
}
static void drop_a_layer_interleaved(Plan *plan)
{
    interleave_zero(plan);
    plan->model->layers = 9;
}
static void leave_two_micro_batches(Plan *plan)
{
    gather_once(plan);
    plan->schedule.micro_batches = 2;
}
static void leave_a_group_short(Plan *plan)
{
    interleave(plan);
    plan->schedule.micro_batches = 18;
}
static void leave_a_group_short_zero(Plan *plan)
{
    interleave_zero(plan);
    plan->schedule.micro_batches = 18;
}
static void gather_keys(Plan *plan)
{
    plan->context = CONTEXT_ALL_GATHER;
}
static void recompute_attention(Plan *plan)
{
    plan->schedule.recompute = RECOMPUTE_SELECTIVE;
}
static void recompute_two_of_each(Plan *plan)
{
    plan_set_recompute(plan, RECOMPUTE_FULL, (const guint16[]){2}, 1);
}
static void recompute_by_stage(Plan *plan)
{
    plan_set_recompute(plan, RECOMPUTE_FULL, (const guint16[]){4, 3, 1, 0}, 4);
}
static void recompute_some_attention(Plan *plan)
{
    plan_set_recompute(plan, RECOMPUTE_SELECTIVE, (const guint16[]){2}, 1);
}
static void replicate(Plan *plan)
{
    plan->workload.recipe = &recipe_fp32;
    set_mesh(plan, STRATEGY_NO_SHARD, plan->layout.size[AXIS_DP_SHARD], 1);
}
static void shard_nothing(Plan *plan)
{
    gather_once(plan);
    plan->layout.size[AXIS_DP_SHARD] = 1;
}
static void cut_flat(Plan *plan)
{
    plan->sharding.form = FORM_FLAT;
}
static void split_sequence(Plan *plan)
{
    plan->sequence_parallel = TRUE;
}
static void shorten_sequence(Plan *plan)
{
    plan->workload.seq_len = 4092; /* 4 x 1023 */
}
static void widen_oddly(Plan *plan)
{
    plan->model->ffn = 14338;
}
static void name_phi3(Plan *plan)
{
    g_free(plan->model->model_type);
    plan->model->model_type = g_strdup("phi3");
}

static const struct {
    const char *framework;
    guint pp, cp, tp;
    void (*choose)(Plan *plan);
    const char *says[5], *says_not[4];
} told[] = {
    {"torchtitan",
     4,
     1,
     1,
     gather_once,
     {"local_batch_size = 32\nglobal_batch_size = 128\n", "fsdp_reshard_after_forward = \"never\"",
      "pipeline_parallel_degree = 4\npipeline_parallel_schedule = \"1F1B\"\n"
      "pipeline_parallel_microbatch_size = 2\npipeline_parallel_layers_per_stage = 8\n"
      "pipeline_parallel_first_stage_less_layers = 0\n"
      "pipeline_parallel_last_stage_less_layers = 0\ncontext_parallel_degree = 1\n"},
     {"module_fqns", "rotate_method", "stays gathered"}},
    {"torchtitan",
     4,
     1,
     1,
     gather_again,
     {"fsdp_reshard_after_forward = \"always\"", "# left to PyTorch: a unit stays gathered"},
     {NULL}},
    {"torchtitan", 4, 1, 1, fill_and_drain, {"_schedule = \"GPipe\"\n"}, {NULL}},
    {"torchtitan",
     4,
     1,
     1,
     interleave,
     {"_schedule = \"Interleaved1F1B\"\n", "_layers_per_stage = 4\n", "gathers a chunk's units"},
     {"module_fqns"}},
    {"torchtitan",
     4,
     1,
     1,
     drop_a_layer, /* 7 = 1 + 2 + 2 + 2: the first one has the embedding */
     {"module_fqns_per_model_part = [[\"tok_embeddings\", \"layers.0\"], [\"layers.1\", "
      "\"layers.2\"], [\"layers.3\", \"layers.4\"], [\"layers.5\", \"layers.6\", \"norm\", "
      "\"output\"]]\n"},
     {"layers_per_stage"}},
    {"torchtitan",
     1,
     2,
     2,
     leave,
     {"local_batch_size = 2\n", "context_parallel_degree = 2\n",
      "context_parallel_rotate_method = \"alltoall\"\n"},
     {"pipeline_parallel_schedule", "left to PyTorch"}},
    {"torchtitan",
     1,
     2,
     1,
     gather_keys,
     {"context_parallel_rotate_method = \"allgather\"\n", "gradients of keys and values pass"},
     {NULL}},

    {"megatron",
     4,
     1,
     1,
     leave,
     {"--pipeline-model-parallel-size 4\n--context-parallel-size 1\n--use-megatron-fsdp"},
     {"virtual", "layout", "cp-comm", "CONNECTIONS=1"}},
    {"megatron",
     4,
     1,
     1,
     interleave_zero,
     {"--pipeline-model-parallel-size 4\n--num-virtual-stages-per-pipeline-rank 2\n"},
     {"layout"}},
    {"megatron",
     4,
     1,
     1,
     drop_a_layer_interleaved, /* 9 over 8 chunks */
     {"--pipeline-model-parallel-layout Et|t|t|t|tt|t|t|tL\n"},
     {"virtual"}},
    {"megatron",
     1,
     4,
     2,
     leave,
     {"--context-parallel-size 4\n--cp-comm-type p2p\n", "--sequence-parallel\n"},
     {NULL}},
    {"megatron",
     1,
     4,
     2,
     shard_optimizer,
     {"CUDA_DEVICE_MAX_CONNECTIONS=1", "--use-distributed-optimizer\n"},
     {NULL}},
    {"megatron", 1, 4, 1, gather_keys, {"--cp-comm-type all_gather\n"}, {NULL}},
    {"megatron",
     1,
     1,
     1,
     recompute_attention,
     {"--recompute-granularity selective\n--recompute-modules core_attn\n",
      "core_attn keeps what attention gives"},
     {"--recompute-method", "--recompute-num-layers"}},
    {"megatron",
     4,
     1,
     1,
     recompute_two_of_each,
     {"--recompute-granularity full\n--recompute-method block\n--recompute-num-layers 2\n"},
     {"uniform"}},

    {"accelerate",
     1,
     2,
     1,
     leave,
     {"parallelism_config_cp_size: 2\n", "parallelism_config_dp_shard_size: 8\n",
      "parallelism_config_cp_comm_strategy: alltoall\n", "maybe_context_parallel",
      "batches of 2 x 4096 tokens a data-parallel rank"},
     {"tp_plan"}},
    {"accelerate", 1, 2, 1, gather_keys, {"_cp_comm_strategy: allgather\n"}, {NULL}},
    {"accelerate",
     1,
     1,
     4,
     leave,
     {"parallelism_config_tp_size: 4\n", "parallelism_config_dp_shard_size: 4\n",
      "tp_plan=\"auto\""},
     {"comm_strategy", "maybe_context_parallel"}},
};

START_TEST(axes_are_told_in_the_words_of_the_framework)
{
    g_autoptr(Plan) plan = plan_on(told[_i].framework, told[_i].pp, told[_i].cp, told[_i].tp);
    g_autofree char *refusal = NULL;

    told[_i].choose(plan);
    g_autofree char *text = export_or_refusal(plan, told[_i].framework, &refusal);
    ck_assert_msg(text != NULL, "%s", refusal);
    check_words(text, told[_i].says, G_N_ELEMENTS(told[0].says), TRUE);
    check_words(text, told[_i].says_not, G_N_ELEMENTS(told[0].says_not), FALSE);
}
END_TEST

static const struct {
    const char *framework;
    guint pp, cp, tp;
    void (*choose)(Plan *plan);
    const char *refusal;
} refused[] = {
    {"torchtitan", 4, 1, 1, leave, "sharding.keep = [root, last]: with a pipeline"},
    {"torchtitan", 4, 1, 1, split_backward, "schedule.name = zb_h1: PyTorch's zero-bubble"},
    {"torchtitan", 4, 1, 1, leave_two_micro_batches, "schedule.micro_batches = 2: its 1F1B"},
    {"torchtitan", 4, 1, 1, leave_a_group_short, "schedule.micro_batches = 18: its Interleaved"},
    {"torchtitan", 4, 1, 1, replicate, "sharding.strategy = no_shard: its DDP"},
    {"torchtitan", 1, 2, 1, replicate, "sharding.strategy = no_shard: its DDP"},
    {"torchtitan", 1, 1, 2, replicate, "sharding.strategy = no_shard: its DDP"},
    {"torchtitan", 4, 1, 1, shard_nothing, "workload.recipe = fsdp2: with pp or tp"},
    {"torchtitan", 1, 1, 1, recompute_attention, "recompute = selective: its selective mode"},
    {"torchtitan", 1, 1, 1, recompute_two_of_each, "recompute = full:2: its selective mode takes"},
    {"megatron", 4, 1, 1, recompute_by_stage,
     "recompute = full:4/3/1/0: --recompute-num-layers is one number"},
    {"megatron", 4, 1, 1, recompute_some_attention,
     "recompute = selective:2: recomputing attention"},
    {"deepspeed", 1, 1, 1, recompute_two_of_each, "recompute = full:2: which layers"},
    {"accelerate", 1, 1, 1, recompute_two_of_each, "recompute = full:2: fsdp_activation_checkp"},
    {"torchtitan", 1, 1, 4, shorten_sequence, "workload.seq_len = 4092"},
    {"megatron", 4, 1, 1, fill_and_drain, "schedule.name = gpipe: its pipeline runs 1f1b"},
    {"megatron", 4, 1, 1, split_backward, "schedule.name = zb_h1: its pipeline runs 1f1b"},
    {"megatron", 4, 1, 1, leave_a_group_short_zero, "schedule.micro_batches = 18: interleaved"},
    {"megatron", 1, 1, 8, shorten_sequence, "workload.seq_len = 4092: with --sequence-parallel"},
    {"megatron", 1, 1, 4, widen_oddly, "layout.tp = 4: it must divide the model's intermediate"},
    {"deepspeed", 2, 1, 1, leave, "layout.pp = 2: its pipeline is a model's code"},
    {"deepspeed", 1, 2, 1, leave, "layout.cp = 2: its sequence parallelism (Ulysses)"},
    {"deepspeed", 1, 1, 2, leave, "layout.tp = 2: what its AutoTP splits"},
    {"deepspeed", 1, 1, 1, recompute_attention, "recompute = selective"},
    {"accelerate", 2, 1, 1, leave, "layout.pp = 2: its pipeline"},
    {"accelerate", 1, 2, 1, cut_flat, "sharding.form = flat: tp and cp go with FSDP2"},
    {"accelerate", 1, 2, 1, replicate, "sharding.strategy = no_shard: tp and cp go with FSDP2"},
    {"accelerate", 1, 1, 2, shard_nothing, "layout.dp_shard = 1: FSDP2 beside tp"},
    {"accelerate", 1, 1, 2, split_sequence, "tensor_parallel.sequence = true"},
    {"accelerate", 1, 1, 2, name_phi3, "model.model_type = phi3: with tp"},
    {"accelerate", 1, 1, 1, recompute_attention, "recompute = selective"},
};

START_TEST(what_a_framework_lacks_of_them_is_refused_by_name)
{
    g_autoptr(Plan) plan =
        plan_on(refused[_i].framework, refused[_i].pp, refused[_i].cp, refused[_i].tp);
    g_autofree char *refusal = NULL;

    refused[_i].choose(plan);
    g_autofree char *text = export_or_refusal(plan, refused[_i].framework, &refusal);
    ck_assert_msg(text == NULL, "%s", text);
    ck_assert_msg(strstr(refusal, refused[_i].refusal) != NULL, "%s", refusal);
    ck_assert(g_str_has_prefix(refusal, refused[_i].framework));
}
END_TEST

/* With tp alone, no group of ranks has gradients to reduce: accumulation is nobody's business. */
START_TEST(one_data_parallel_rank_may_accumulate_as_it_likes)
{
    g_autoptr(Plan) plan = plan_on("torchtitan", 1, 1, 4);
    g_autofree char *refusal = NULL;

    plan->workload.recipe = &recipe_fp32;
    plan->schedule.micro_batches = 64;
    set_mesh(plan, STRATEGY_NO_SHARD, 1, 1);
    g_autofree char *text = export_or_refusal(plan, "torchtitan", &refusal);
    ck_assert_msg(text != NULL, "%s", refusal);
}
END_TEST

START_TEST(the_title_names_schedule_and_context)
{
    g_autoptr(Plan) plan = plan_on("megatron", 2, 2, 2);
    g_autofree char *refusal = NULL;

    interleave_zero(plan);
    plan->context = CONTEXT_ALL_GATHER;
    g_autofree char *text = export_or_refusal(plan, "megatron", &refusal);
    ck_assert_msg(text != NULL, "%s", refusal);
    ck_assert_msg(strstr(text, "(pp=2 interleaved x2 dp_shard=2 cp=2 all_gather tp=2)") != NULL,
                  "%s", text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("export of all axes");
    TCase *tcase = tcase_create("axes");

    tcase_add_loop_test(tcase, axes_are_told_in_the_words_of_the_framework, 0, G_N_ELEMENTS(told));
    tcase_add_loop_test(tcase, what_a_framework_lacks_of_them_is_refused_by_name, 0,
                        G_N_ELEMENTS(refused));
    tcase_add_test(tcase, one_data_parallel_rank_may_accumulate_as_it_likes);
    tcase_add_test(tcase, the_title_names_schedule_and_context);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
