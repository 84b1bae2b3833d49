#include "tests/sim/export_case.h"

/* Elements of one of its blocks, by hand: 2 x 4096 + 2 x 4096^2 + 2 x 1024 x 4096 + 3 x 4096 x
 * 14336; of the final norm with the head, and of the whole root. */
#define BLOCK "218112000"
enum { BLOCK_ELEMENTS = 218112000, END_ELEMENTS = 4096 + 128256 * 4096 };

static char *export_text(const Plan *plan, const char *framework)
{
    g_autofree char *refusal = NULL;
    char *text = export_or_refusal(plan, framework, &refusal);

    ck_assert_msg(text != NULL, "%s: %s", framework, refusal == NULL ? "" : refusal);
    return text;
}

static void assert_refused(const Plan *plan, const char *framework, const char *expected)
{
    g_autofree char *refusal = NULL;
    g_autofree char *text = export_or_refusal(plan, framework, &refusal);

    ck_assert_msg(text == NULL, "%s: not refused: %s", framework, expected);
    ck_assert_msg(strstr(refusal, expected) != NULL, "\"%s\" lacks \"%s\"", refusal, expected);
}

/* ---- whole files ---- */

START_TEST(torchtitan_file_is_as_written_here)
{
    g_autoptr(Plan) plan = make_plan(&recipe_fsdp2);
    plan->schedule.recompute = RECOMPUTE_FULL;
    g_autofree char *text = export_text(plan, "torchtitan");

    ck_assert_str_eq(
        text, "# llama-3.1-8b on 16 ranks (dp_shard=16), full_shard, recipe fsdp2: global batch "
              "128 = micro-batch 2 x 4 micro-batches x 16 data-parallel ranks\n"
              "# yours to add: learning rate, steps, dataset, tokenizer; for torchtitan "
              "v0.2.2, the last version that reads TOML\n"
              "# left to torchtitan: sharding.prefetch = 1, live_units = 2 (FSDP2 gathers the "
              "next unit while one computes), which of root and last it keeps\n"
              "\n[job]\n"
              "description = \"from a plan of fsdp-plan\"\n"
              "\n[model]\n"
              "name = \"llama3\"\n"
              "flavor = \"8B\"\n"
              "\n[optimizer]\n"
              "name = \"AdamW\"\n"
              "\n[training]\n"
              "local_batch_size = 2\n"
              "global_batch_size = 128\n"
              "seq_len = 4096\n"
              "max_norm = 1.0\n"
              "mixed_precision_param = \"bfloat16\"\n"
              "mixed_precision_reduce = \"float32\"\n"
              "\n[parallelism]\n"
              "data_parallel_replicate_degree = 1\n"
              "data_parallel_shard_degree = 16\n"
              "fsdp_reshard_after_forward = \"default\"\n"
              "tensor_parallel_degree = 1\n"
              "pipeline_parallel_degree = 1\n"
              "context_parallel_degree = 1\n"
              "\n[activation_checkpoint]\n"
              "mode = \"full\"\n");
}
END_TEST

START_TEST(megatron_arguments_are_as_written_here)
{
    g_autoptr(Plan) plan = make_plan(&recipe_zero);
    plan->schedule.recompute = RECOMPUTE_FULL;
    g_autofree char *text = export_text(plan, "megatron");

    ck_assert_str_eq(
        text,
        "# llama-3.1-8b on 16 ranks (dp_shard=16), full_shard, recipe zero: global batch 128 = "
        "micro-batch 2 x 4 micro-batches x 16 data-parallel ranks\n"
        "# use: torchrun --nproc-per-node 8 ... pretrain_gpt.py $(grep -v '^#' THIS_FILE) --lr ... "
        "--train-iters ... --data-path ...\n"
        "# yours to add: learning rate, iterations, data, tokenizer (NullTokenizer adds a token to "
        "--vocab-size)\n"
        "# left to Megatron-LM: sharding.form = per_parameter (it cuts flat buckets)\n"
        "# left to Megatron-FSDP: sharding.prefetch = 1, live_units = 2, keep; unset "
        "CUDA_DEVICE_MAX_CONNECTIONS\n"
        "--num-layers 32\n--hidden-size 4096\n--ffn-hidden-size 14336\n--num-attention-heads 32\n"
        "--kv-channels 128\n--group-query-attention\n--num-query-groups 8\n--seq-length 4096\n"
        "--max-position-embeddings 131072\n--position-embedding-type rope\n--rotary-base 500000\n"
        "--rotary-percent 1.0\n--use-rope-scaling\n--rope-scaling-factor 8\n"
        "--normalization RMSNorm\n--norm-epsilon 1e-05\n--swiglu\n--disable-bias-linear\n"
        "--attention-dropout 0.0\n--hidden-dropout 0.0\n--init-method-std 0.02\n"
        "--untie-embeddings-and-output-weights\n--vocab-size 128256\n"
        "--make-vocab-size-divisible-by 1\n--micro-batch-size 2\n--global-batch-size 128\n"
        "--clip-grad 1.0\n--optimizer adam\n--bf16\n--grad-reduce-in-bf16\n"
        "--recompute-granularity full\n--recompute-method uniform\n--recompute-num-layers 1\n"
        "--tensor-model-parallel-size 1\n--pipeline-model-parallel-size 1\n"
        "--context-parallel-size 1\n--use-megatron-fsdp\n--ckpt-format fsdp_dtensor\n"
        "--no-gradient-accumulation-fusion\n--use-distributed-optimizer\n--overlap-grad-reduce\n"
        "--overlap-param-gather\n--data-parallel-sharding-strategy optim_grads_params\n");
}
END_TEST

START_TEST(megatron_reduces_in_fp32_unless_told)
{
    g_autoptr(Plan) plan = make_plan(&recipe_megatron);
    g_autofree char *text = export_text(plan, "megatron");

    ck_assert_ptr_nonnull(strstr(text, "--bf16\n"));
    ck_assert_ptr_null(strstr(text, "--grad-reduce-in-bf16"));
}
END_TEST

START_TEST(deepspeed_file_is_as_written_here)
{
    g_autoptr(Plan) plan = make_plan(&recipe_zero);
    plan->schedule.recompute = RECOMPUTE_FULL;
    g_autofree char *text = export_text(plan, "deepspeed");
    g_autofree char *live =
        g_strdup_printf("%u", 2 * BLOCK_ELEMENTS + END_ELEMENTS + 128256 * 4096);
    g_autofree char *reuse = g_strdup_printf("%u", 2 * BLOCK_ELEMENTS + 2 * END_ELEMENTS);
    g_autofree char *expected =
        g_strconcat("{\"train_batch_size\":128,\"train_micro_batch_size_per_gpu\":2,"
                    "\"gradient_accumulation_steps\":4,\"gradient_clipping\":1.0,"
                    "\"bf16\":{\"enabled\":true},\"data_types\":{\"grad_accum_dtype\":\"bf16\"},"
                    "\"communication_data_type\":\"bf16\",\"optimizer\":{\"type\":\"AdamW\","
                    "\"params\":{\"lr\":\"auto\",\"weight_decay\":\"auto\"}},"
                    "\"zero_optimization\":{\"stage\":3,\"overlap_comm\":true,"
                    "\"contiguous_gradients\":true,\"reduce_bucket_size\":" BLOCK ","
                    "\"stage3_prefetch_bucket_size\":" BLOCK ","
                    "\"stage3_param_persistence_threshold\":0,\"stage3_max_live_parameters\":",
                    live, ",\"stage3_max_reuse_distance\":", reuse,
                    "},\"activation_checkpointing\":{\"partition_activations\":false}}", NULL);
    g_autoptr(JsonNode) root = json_from_string(text, NULL);
    g_autofree char *compact = json_to_string(root, FALSE);

    ck_assert_str_eq(compact, expected);
}
END_TEST

START_TEST(accelerate_file_is_as_written_here)
{
    g_autoptr(Plan) plan = make_plan(&recipe_fsdp2);
    plan->schedule.recompute = RECOMPUTE_FULL;
    g_autofree char *text = export_text(plan, "accelerate");

    ck_assert_str_eq(
        text, "# llama-3.1-8b on 16 ranks (dp_shard=16), full_shard, recipe fsdp2: global batch "
              "128 = micro-batch 2 x 4 micro-batches x 16 data-parallel ranks\n"
              "# in the training script: torch.optim.AdamW, batches of 2 x 4096 tokens a process, "
              "clip_grad_norm_ at 1.0\n"
              "# in the training script: Accelerator(gradient_accumulation_plugin="
              "GradientAccumulationPlugin(num_steps=4, sync_each_batch=True))\n"
              "# in the training script, or gradients are reduced in bf16: "
              "FullyShardedDataParallelPlugin(mixed_precision_policy=...) with reduce_dtype "
              "torch.float32\n"
              "# machine_rank, main_process_ip and main_process_port are each machine's to set\n"
              "# left to FSDP: sharding.prefetch = 1 beyond on or off, live_units = 2, keep\n"
              "compute_environment: LOCAL_MACHINE\n"
              "debug: false\n"
              "distributed_type: FSDP\n"
              "downcast_bf16: 'no'\n"
              "fsdp_config:\n"
              "  fsdp_activation_checkpointing: true\n"
              "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
              "  fsdp_cpu_ram_efficient_loading: true\n"
              "  fsdp_offload_params: false\n"
              "  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
              "  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n"
              "  fsdp_reshard_after_forward: true\n"
              "  fsdp_version: 2\n"
              "machine_rank: 0\n"
              "main_training_function: main\n"
              "mixed_precision: bf16\n"
              "num_machines: 2\n"
              "num_processes: 16\n"
              "rdzv_backend: static\n"
              "same_network: true\n"
              "use_cpu: false\n");
}
END_TEST

/* ---- what the strategy decides ---- */

/* Of a file only the settings that strategy, mesh and form decide, in this order. */
static char *decided_by_strategy(const char *framework, const char *text)
{
    static const char *const keys[] = {
        "parallelism.data_parallel_replicate_degree",
        "parallelism.data_parallel_shard_degree",
        "parallelism.fsdp_reshard_after_forward",
        "--use-distributed-optimizer",
        "--use-megatron-fsdp",
        "--data-parallel-sharding-strategy",
        "--outer-dp-sharding-strategy",
        "--num-distributed-optimizer-instances",
        "zero_optimization.stage",
        "zero_optimization.reduce_scatter",
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.stage3_prefetch_bucket_size",
        "zero_optimization.mics_shard_size",
        "distributed_type",
        "fsdp_config.fsdp_version",
        "fsdp_config.fsdp_sharding_strategy",
        "fsdp_config.fsdp_reshard_after_forward",
        "fsdp_config.fsdp_backward_prefetch",
        "parallelism_config.parallelism_config_dp_replicate_size",
        "parallelism_config.parallelism_config_dp_shard_size",
    };
    g_autoptr(GHashTable) settings = settings_read(framework, text);
    GString *decided = g_string_new(NULL);

    for (guint i = 0; i < G_N_ELEMENTS(keys); i++) {
        const char *value = g_hash_table_lookup(settings, keys[i]);
        const char *dot = strrchr(keys[i], '.');

        if (value != NULL)
            g_string_append_printf(decided, "%s %s;", dot == NULL ? keys[i] : dot + 1, value);
    }
    return g_string_free(decided, FALSE);
}

#define TITAN(replicate, shard, reshard)                                                           \
    "data_parallel_replicate_degree " #replicate ";data_parallel_shard_degree " #shard             \
    ";fsdp_reshard_after_forward \"" reshard "\";"
#define MEGATRON_FSDP(strategy)                                                                    \
    "--use-distributed-optimizer ;--use-megatron-fsdp "                                            \
    ";--data-parallel-sharding-strategy " strategy ";"
#define ZERO2(stage) "stage " #stage ";reduce_scatter true;reduce_bucket_size " BLOCK ";"
#define ZERO3        "stage 3;reduce_bucket_size " BLOCK ";stage3_prefetch_bucket_size " BLOCK ";"
#define FSDP1(strategy)                                                                            \
    "distributed_type FSDP;fsdp_version 1;fsdp_sharding_strategy " strategy                        \
    ";fsdp_backward_prefetch BACKWARD_PRE;"
#define FSDP2(reshard)                                                                             \
    "distributed_type FSDP;fsdp_version 2;fsdp_reshard_after_forward " reshard ";"
#define HSDP_MESH "parallelism_config_dp_replicate_size 2;parallelism_config_dp_shard_size 8;"

/* One micro-batch, so that accumulation is not in the way. */
static const struct {
    const char *framework;
    const Recipe *recipe;
    Form form;
    Strategy strategy;
    guint replicate, shard;
    const char *decided, *refusal;
} by_strategy[] = {
    {"torchtitan", &recipe_fp32, FORM_PER_PARAMETER, STRATEGY_NO_SHARD, 16, 1,
     TITAN(16, 1, "default"), NULL},
    {"torchtitan", &recipe_fp32, FORM_PER_PARAMETER, STRATEGY_SHARD_OPTIMIZER, 1, 16, NULL,
     "torchtitan can't express sharding.strategy = shard_optimizer"},
    {"torchtitan", &recipe_fsdp2, FORM_PER_PARAMETER, STRATEGY_SHARD_GRAD_OP, 1, 16,
     TITAN(1, 16, "never"), NULL},
    {"torchtitan", &recipe_fsdp2, FORM_PER_PARAMETER, STRATEGY_SHARD_GRAD_OP, 2, 8,
     TITAN(2, 8, "never"), NULL},
    {"torchtitan", &recipe_fsdp2, FORM_PER_PARAMETER, STRATEGY_FULL_SHARD, 1, 16,
     TITAN(1, 16, "default"), NULL},
    {"torchtitan", &recipe_fsdp2, FORM_PER_PARAMETER, STRATEGY_HYBRID_SHARD, 2, 8,
     TITAN(2, 8, "default"), NULL},
    {"torchtitan", &recipe_fsdp2, FORM_FLAT, STRATEGY_FULL_SHARD, 1, 16, NULL,
     "torchtitan can't express sharding.form = flat"},

    {"megatron", &recipe_zero, FORM_PER_PARAMETER, STRATEGY_NO_SHARD, 16, 1, "", NULL},
    {"megatron", &recipe_zero, FORM_PER_PARAMETER, STRATEGY_SHARD_OPTIMIZER, 1, 16,
     "--use-distributed-optimizer ;", NULL},
    {"megatron", &recipe_zero, FORM_PER_PARAMETER, STRATEGY_SHARD_OPTIMIZER, 2, 8,
     "--use-distributed-optimizer ;--num-distributed-optimizer-instances 2;", NULL},
    {"megatron", &recipe_zero, FORM_FLAT, STRATEGY_SHARD_GRAD_OP, 1, 16,
     MEGATRON_FSDP("optim_grads"), NULL},
    {"megatron", &recipe_zero, FORM_PER_PARAMETER, STRATEGY_FULL_SHARD, 1, 16,
     MEGATRON_FSDP("optim_grads_params"), NULL},
    {"megatron", &recipe_zero, FORM_PER_PARAMETER, STRATEGY_HYBRID_SHARD, 2, 8,
     MEGATRON_FSDP("optim_grads_params") "--outer-dp-sharding-strategy no_shard;"
                                         "--num-distributed-optimizer-instances 2;",
     NULL},

    {"deepspeed", &recipe_zero, FORM_PER_PARAMETER, STRATEGY_NO_SHARD, 16, 1, "stage 0;", NULL},
    {"deepspeed", &recipe_zero, FORM_PER_PARAMETER, STRATEGY_SHARD_OPTIMIZER, 1, 16, ZERO2(1),
     NULL},
    {"deepspeed", &recipe_zero, FORM_PER_PARAMETER, STRATEGY_SHARD_OPTIMIZER, 2, 8, NULL,
     "deepspeed can't express sharding.strategy = shard_optimizer: ZeRO-1 has no replicas"},
    {"deepspeed", &recipe_zero, FORM_FLAT, STRATEGY_SHARD_GRAD_OP, 1, 16, ZERO2(2), NULL},
    {"deepspeed", &recipe_zero, FORM_FLAT, STRATEGY_SHARD_GRAD_OP, 2, 8, NULL,
     "deepspeed can't express sharding.strategy = shard_grad_op: ZeRO-2 has no replicas"},
    {"deepspeed", &recipe_zero, FORM_PER_PARAMETER, STRATEGY_FULL_SHARD, 1, 16, ZERO3, NULL},
    {"deepspeed", &recipe_zero, FORM_PER_PARAMETER, STRATEGY_HYBRID_SHARD, 2, 8,
     ZERO3 "mics_shard_size 8;", NULL},

    {"accelerate", &recipe_fp32, FORM_PER_PARAMETER, STRATEGY_NO_SHARD, 16, 1,
     "distributed_type MULTI_GPU;", NULL},
    {"accelerate", &recipe_fp32, FORM_FLAT, STRATEGY_NO_SHARD, 16, 1, FSDP1("NO_SHARD"), NULL},
    {"accelerate", &recipe_fp32, FORM_PER_PARAMETER, STRATEGY_SHARD_OPTIMIZER, 1, 16, NULL,
     "accelerate can't express sharding.strategy = shard_optimizer: FSDP2"},
    {"accelerate", &recipe_fp32, FORM_FLAT, STRATEGY_SHARD_OPTIMIZER, 1, 16, NULL,
     "accelerate can't express sharding.strategy = shard_optimizer: FSDP"},
    {"accelerate", &recipe_fsdp2, FORM_PER_PARAMETER, STRATEGY_SHARD_GRAD_OP, 1, 16, FSDP2("false"),
     NULL},
    {"accelerate", &recipe_fsdp2, FORM_FLAT, STRATEGY_SHARD_GRAD_OP, 1, 16, FSDP1("SHARD_GRAD_OP"),
     NULL},
    {"accelerate", &recipe_fsdp2, FORM_FLAT, STRATEGY_SHARD_GRAD_OP, 2, 8,
     FSDP1("HYBRID_SHARD_ZERO2"), NULL},
    {"accelerate", &recipe_fsdp2, FORM_PER_PARAMETER, STRATEGY_FULL_SHARD, 1, 16, FSDP2("true"),
     NULL},
    {"accelerate", &recipe_fsdp2, FORM_FLAT, STRATEGY_FULL_SHARD, 1, 16, FSDP1("FULL_SHARD"), NULL},
    {"accelerate", &recipe_fsdp2, FORM_PER_PARAMETER, STRATEGY_HYBRID_SHARD, 2, 8,
     FSDP2("true") HSDP_MESH, NULL},
    {"accelerate", &recipe_fsdp2, FORM_FLAT, STRATEGY_HYBRID_SHARD, 2, 8, FSDP1("HYBRID_SHARD"),
     NULL},
    {"accelerate", &recipe_fsdp2, FORM_FLAT, STRATEGY_HYBRID_SHARD, 4, 4, NULL,
     "accelerate can't express layout.dp_shard = 4: FSDP1 (form flat) with replicas"},
    {"accelerate", &recipe_fsdp2, FORM_PER_PARAMETER, STRATEGY_HYBRID_SHARD, 16, 1, NULL,
     "accelerate can't express layout.dp_shard = 1: FSDP2 with replicas"},
};

START_TEST(each_framework_writes_or_refuses_each_strategy)
{
    g_autoptr(Plan) plan = make_plan(by_strategy[_i].recipe);

    plan->sharding.form = by_strategy[_i].form;
    plan->schedule.micro_batches = 1;
    plan->workload.global_batch = 32;
    set_mesh(plan, by_strategy[_i].strategy, by_strategy[_i].replicate, by_strategy[_i].shard);
    if (by_strategy[_i].refusal != NULL) {
        assert_refused(plan, by_strategy[_i].framework, by_strategy[_i].refusal);
        return;
    }
    g_autofree char *text = export_text(plan, by_strategy[_i].framework);
    g_autofree char *decided = decided_by_strategy(by_strategy[_i].framework, text);
    ck_assert_str_eq(decided, by_strategy[_i].decided);
}
END_TEST

/* ---- other choices ---- */

static void choose_sgd(Plan *plan)
{
    plan->workload.optimizer = OPTIMIZER_SGD;
}
static void choose_fsdp2(Plan *plan)
{
    plan->workload.recipe = &recipe_fsdp2;
}
static void choose_zero(Plan *plan)
{
    plan->workload.recipe = &recipe_zero;
}
static void choose_fp8(Plan *plan)
{
    plan->workload.recipe = recipe_with_precision(plan->workload.recipe, DTYPE_FP8);
}
static void gather_fp8(Plan *plan)
{
    plan->sharding.gather_fp8 = TRUE;
}
static void choose_adam8bit(Plan *plan)
{
    plan->workload.optimizer = OPTIMIZER_ADAM8BIT;
}
static void accumulate_whole(Plan *plan)
{
    plan->sharding.accumulate_sharded = FALSE;
}
static void choose_ddp(Plan *plan)
{
    set_mesh(plan, STRATEGY_NO_SHARD, 16, 1);
}
static void keep_only_last(Plan *plan)
{
    plan->sharding.keep_root = FALSE;
}
static void override_a_unit(Plan *plan)
{
    plan->sharding.num_overrides = 1;
}
static void split_heads(Plan *plan)
{
    plan->layout.size[AXIS_TP] = 2;
}
static void split_heads_only(Plan *plan)
{
    plan->layout.size[AXIS_TP] = 2;
    plan->sequence_parallel = FALSE;
}
static void share_kv_heads(Plan *plan)
{
    plan->layout.size[AXIS_TP] = 2 * plan->model->kv_heads;
}
static void tie(Plan *plan)
{
    plan->model->tied = TRUE;
}
static void widen_heads(Plan *plan)
{
    plan->model->head_dim = 256;
}
static void stretch_rope(Plan *plan)
{
    plan->model->rope_scaling.low_freq_factor = 2;
}
static void bend_rope(Plan *plan)
{
    plan->model->rope_theta = 500000.5;
}
static void leave_a_node_partly_empty(Plan *plan)
{
    plan->ranks_per_node = 6;
}
static void name_an_unknown_family(Plan *plan)
{
    g_free(plan->model->model_type);
    plan->model->model_type = g_strdup("gpt9");
}

static const struct {
    const char *framework;
    const Recipe *recipe;
    void (*choose)(Plan *plan);
    const char *refusal;
} refusals[] = {
    {"torchtitan", &recipe_fsdp2, choose_zero, "workload.recipe = zero"},
    {"torchtitan", &recipe_fsdp2, choose_sgd, "workload.optimizer = sgd"},
    {"torchtitan", &recipe_fsdp2, accumulate_whole, "sharding.accumulate = unsharded"},
    {"torchtitan", &recipe_fp32, choose_ddp, "sharding.accumulate = unsharded"},
    {"torchtitan", &recipe_fsdp2, keep_only_last, "sharding.keep = [last]"},
    {"torchtitan", &recipe_fsdp2, override_a_unit, "sharding.units = root"},
    {"torchtitan", &recipe_fsdp2, split_heads_only, "tensor_parallel.sequence = false"},
    {"torchtitan", &recipe_fsdp2, share_kv_heads, "layout.tp = 16"},
    {"megatron", &recipe_zero, share_kv_heads, "layout.tp = 16"},
    {"torchtitan", &recipe_fsdp2, tie, "model.tie_word_embeddings = true"},
    {"torchtitan", &recipe_fsdp2, widen_heads, "model.head_dim = 256"},
    {"megatron", &recipe_zero, choose_fsdp2, "workload.recipe = fsdp2"},
    {"megatron", &recipe_zero, choose_sgd, "workload.optimizer = sgd"},
    {"megatron", &recipe_zero, gather_fp8, "sharding.gather_dtype = fp8: what is gathered"},
    {"torchtitan", &recipe_fsdp2, gather_fp8, "sharding.gather_dtype = fp8"},
    {"torchtitan", &recipe_fsdp2, choose_adam8bit, "workload.optimizer = adam8bit"},
    {"megatron", &recipe_zero, accumulate_whole, "sharding.accumulate = unsharded"},
    {"megatron", &recipe_zero, override_a_unit, "sharding.units = root"},
    {"megatron", &recipe_zero, stretch_rope, "model.rope_scaling = {...}"},
    {"megatron", &recipe_zero, bend_rope, "model.rope_theta = 500000"},
    {"deepspeed", &recipe_zero, choose_fp8, "workload.precision = fp8: plans in bf16, fp16 and"},
    {"deepspeed", &recipe_zero, gather_fp8, "sharding.gather_dtype = fp8: it gathers what"},
    {"deepspeed", &recipe_zero, choose_fsdp2, "workload.recipe = fsdp2"},
    {"deepspeed", &recipe_zero, accumulate_whole, "sharding.accumulate = unsharded"},
    {"deepspeed", &recipe_zero, keep_only_last, "sharding.keep = [last]"},
    {"deepspeed", &recipe_zero, override_a_unit, "sharding.units = root"},
    {"deepspeed", &recipe_zero, split_heads, "layout.tp = 2"},
    {"accelerate", &recipe_fsdp2, choose_zero, "workload.recipe = zero"},
    {"accelerate", &recipe_fsdp2, override_a_unit, "sharding.units = root"},
    {"accelerate", &recipe_fsdp2, leave_a_node_partly_empty, "target.ranks_per_node = 6"},
    {"accelerate", &recipe_fsdp2, name_an_unknown_family, "model.model_type = gpt9"},
};

START_TEST(what_a_framework_has_no_word_for_is_refused_by_name)
{
    g_autoptr(Plan) plan = make_plan(refusals[_i].recipe);

    g_free(export_text(plan, refusals[_i].framework)); /* the choice alone is why */
    refusals[_i].choose(plan);
    assert_refused(plan, refusals[_i].framework, refusals[_i].refusal);
}
END_TEST

START_TEST(tensor_parallelism_has_a_degree_and_a_sequence_flag)
{
    g_autoptr(Plan) titan = make_plan(&recipe_fsdp2);
    g_autoptr(Plan) megatron = make_plan(&recipe_zero);

    titan->layout.size[AXIS_TP] = megatron->layout.size[AXIS_TP] = 4;
    titan->sequence_parallel = megatron->sequence_parallel = TRUE;
    g_autofree char *toml = export_text(titan, "torchtitan");
    g_autofree char *flags = export_text(megatron, "megatron");
    ck_assert_ptr_nonnull(strstr(toml, "\ntensor_parallel_degree = 4\n"));
    ck_assert_ptr_nonnull(strstr(flags, "--tensor-model-parallel-size 4\n"));
    ck_assert_ptr_nonnull(strstr(flags, "--sequence-parallel\n"));

    megatron->sequence_parallel = FALSE;
    g_autofree char *without = export_text(megatron, "megatron");
    ck_assert_ptr_null(strstr(without, "--sequence-parallel"));
}
END_TEST

START_TEST(an_unknown_framework_is_bad_usage_with_a_hint)
{
    g_autoptr(Plan) plan = make_plan(&recipe_zero);
    g_autoptr(GPtrArray) notes = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GError) error = NULL;

    ck_assert_ptr_null(export_plan(plan, "deepsped", notes, &error));
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
    ck_assert_ptr_nonnull(strstr(error->message, "did you mean \"deepspeed\""));
    ck_assert_ptr_nonnull(strstr(error->message, "accelerate"));
}
END_TEST

START_TEST(kept_units_decide_what_is_gathered_again)
{
    g_autoptr(Plan) titan = make_plan(&recipe_fsdp2);
    g_autoptr(Plan) deepspeed = make_plan(&recipe_zero);
    titan->sharding.keep_root = titan->sharding.keep_last = FALSE;
    deepspeed->sharding.keep_last = FALSE;
    g_autofree char *toml = export_text(titan, "torchtitan");
    g_autofree char *json = export_text(deepspeed, "deepspeed");
    g_autoptr(GHashTable) titan_settings = settings_read("torchtitan", toml);
    g_autoptr(GHashTable) settings = settings_read("deepspeed", json);
    g_autofree char *root_only = g_strdup_printf("%u", 2 * END_ELEMENTS);

    ck_assert_str_eq(setting(titan_settings, "parallelism.fsdp_reshard_after_forward"),
                     "\"always\"");
    ck_assert_str_eq(setting(settings, "zero_optimization.stage3_max_reuse_distance"), root_only);
}
END_TEST

static void assert_reuse_distance(const Plan *plan, guint elements)
{
    g_autofree char *text = export_text(plan, "deepspeed");
    g_autoptr(GHashTable) settings = settings_read("deepspeed", text);
    g_autofree char *expected = g_strdup_printf("%u", elements);

    ck_assert_str_eq(setting(settings, "zero_optimization.stage3_max_reuse_distance"), expected);
}

/* Or a block would be gathered a third time, between its two forward passes and the backward. */
START_TEST(a_recomputed_block_stays_for_its_backward_pass)
{
    g_autoptr(Plan) plan = make_plan(&recipe_zero);

    plan->sharding.keep_root = plan->sharding.keep_last = FALSE;
    assert_reuse_distance(plan, 0);
    plan->schedule.recompute = RECOMPUTE_FULL;
    assert_reuse_distance(plan, 2 * BLOCK_ELEMENTS);
}
END_TEST

/* With 4 micro-batches: whether a framework reduces after each, with a strategy, or once. */
static const struct {
    const char *framework;
    const Recipe *recipe;
    Strategy strategy;
    gboolean each, once;
} accumulations[] = {
    {"torchtitan", &recipe_fsdp2, STRATEGY_SHARD_GRAD_OP, TRUE, FALSE},
    {"torchtitan", &recipe_fsdp2, STRATEGY_FULL_SHARD, TRUE, FALSE},
    {"megatron", &recipe_zero, STRATEGY_SHARD_OPTIMIZER, FALSE, TRUE},
    {"megatron", &recipe_zero, STRATEGY_SHARD_GRAD_OP, TRUE, FALSE},
    {"megatron", &recipe_zero, STRATEGY_FULL_SHARD, TRUE, FALSE},
    {"deepspeed", &recipe_zero, STRATEGY_SHARD_OPTIMIZER, FALSE, TRUE},
    {"deepspeed", &recipe_zero, STRATEGY_SHARD_GRAD_OP, TRUE, FALSE},
    {"deepspeed", &recipe_zero, STRATEGY_FULL_SHARD, TRUE, FALSE},
    {"accelerate", &recipe_fsdp2, STRATEGY_SHARD_GRAD_OP, TRUE, TRUE},
    {"accelerate", &recipe_fsdp2, STRATEGY_FULL_SHARD, TRUE, TRUE},
};

START_TEST(gradients_are_reduced_as_often_as_the_plan_says)
{
    g_autoptr(Plan) plan = make_plan(accumulations[_i].recipe);

    plan->sharding.strategy = accumulations[_i].strategy;
    for (gint each = 0; each <= 1; each++) {
        g_autofree char *refusal = NULL;

        plan->sharding.accumulate_sharded = each;
        g_autofree char *text = export_or_refusal(plan, accumulations[_i].framework, &refusal);
        ck_assert_int_eq(text != NULL, each ? accumulations[_i].each : accumulations[_i].once);
        ck_assert(text != NULL || strstr(refusal, "sharding.accumulate") != NULL);
    }
}
END_TEST

START_TEST(a_shape_without_a_flavor_gets_one_to_be_added)
{
    g_autoptr(Plan) plan = make_plan(&recipe_fsdp2);
    plan->model->layers = 7;
    g_free(plan->model->name);
    plan->model->name = g_strdup("my \"model\"\n[job]");
    g_autofree char *text = export_text(plan, "torchtitan");
    g_autoptr(GHashTable) settings = settings_read("torchtitan", text);

    check_keys("torchtitan", settings);
    ck_assert_str_eq(setting(settings, "model.flavor"), "\"my__model___job_\"");
    ck_assert_ptr_nonnull(strstr(text, "no flavor of this shape"));
    ck_assert_ptr_nonnull(strstr(text, "n_layers 7,"));
}
END_TEST

START_TEST(a_flavor_is_one_in_every_size)
{
    g_autoptr(Plan) plan = make_plan(&recipe_fsdp2);
    guint *const sizes[] = {&plan->model->layers,   &plan->model->hidden, &plan->model->heads,
                            &plan->model->kv_heads, &plan->model->ffn,    &plan->model->vocab};

    for (guint i = 0; i < G_N_ELEMENTS(sizes); i++) {
        const guint size = *sizes[i];

        *sizes[i] = size * 2;
        plan->model->head_dim = plan->model->hidden / plan->model->heads;
        g_autofree char *text = export_text(plan, "torchtitan");
        ck_assert_ptr_null(strstr(text, "flavor = \"8B\""));
        *sizes[i] = size;
    }
}
END_TEST

START_TEST(sgd_is_written_where_it_exists)
{
    g_autoptr(Plan) plan = make_plan(&recipe_zero);
    choose_sgd(plan);
    g_autofree char *json = export_text(plan, "deepspeed");
    choose_ddp(plan);
    g_autofree char *arguments = export_text(plan, "megatron");
    g_autoptr(GHashTable) deepspeed = settings_read("deepspeed", json);
    g_autoptr(GHashTable) megatron = settings_read("megatron", arguments);

    ck_assert_str_eq(setting(deepspeed, "optimizer.type"), "\"SGD\"");
    ck_assert_str_eq(setting(deepspeed, "zero_allow_untested_optimizer"), "true");
    ck_assert_str_eq(setting(megatron, "--optimizer"), "sgd");
    ck_assert_str_eq(setting(megatron, "--sgd-momentum"), "0.0"); /* its default is 0.9 */
}
END_TEST

START_TEST(deepspeeds_notes_are_the_callers_as_json_has_no_comments)
{
    g_autoptr(Plan) plan = make_plan(&recipe_zero);
    g_autoptr(GPtrArray) notes = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GPtrArray) none = g_ptr_array_new_with_free_func(g_free);
    plan->schedule.recompute = RECOMPUTE_FULL;
    g_autofree char *json = export_plan(plan, "deepspeed", notes, NULL);
    g_autofree char *arguments = export_plan(plan, "megatron", none, NULL);
    gboolean said = FALSE;

    ck_assert_ptr_nonnull(json);
    ck_assert_ptr_nonnull(arguments);
    for (guint i = 0; i < notes->len; i++)
        said = said || g_str_has_prefix(g_ptr_array_index(notes, i), "recompute = full");
    ck_assert(said);
    ck_assert_uint_eq(none->len, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("export");
    TCase *files = tcase_create("files");

    tcase_add_test(files, torchtitan_file_is_as_written_here);
    tcase_add_test(files, megatron_arguments_are_as_written_here);
    tcase_add_test(files, megatron_reduces_in_fp32_unless_told);
    tcase_add_test(files, deepspeed_file_is_as_written_here);
    tcase_add_test(files, accelerate_file_is_as_written_here);
    tcase_add_loop_test(files, each_framework_writes_or_refuses_each_strategy, 0,
                        G_N_ELEMENTS(by_strategy));
    tcase_add_loop_test(files, what_a_framework_has_no_word_for_is_refused_by_name, 0,
                        G_N_ELEMENTS(refusals));
    tcase_add_test(files, tensor_parallelism_has_a_degree_and_a_sequence_flag);
    tcase_add_test(files, an_unknown_framework_is_bad_usage_with_a_hint);
    tcase_add_test(files, kept_units_decide_what_is_gathered_again);
    tcase_add_test(files, a_recomputed_block_stays_for_its_backward_pass);
    tcase_add_loop_test(files, gradients_are_reduced_as_often_as_the_plan_says, 0,
                        G_N_ELEMENTS(accumulations));
    tcase_add_test(files, a_flavor_is_one_in_every_size);
    tcase_add_test(files, a_shape_without_a_flavor_gets_one_to_be_added);
    tcase_add_test(files, sgd_is_written_where_it_exists);
    tcase_add_test(files, deepspeeds_notes_are_the_callers_as_json_has_no_comments);
    suite_add_tcase(suite, files);
    return suite_run(suite);
}
