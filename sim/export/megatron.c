/* Plan -> Megatron-LM's arguments, one option a line: DDP, distributed optimizer, Megatron-FSDP. */
#include "sim/export/exporter.h"

#include <math.h>

/* Megatron-FSDP asserts on its own checkpoint format, and on gradients that no kernel has already
 * added into a whole buffer. */
#define MEGATRON_FSDP                                                                              \
    "--use-megatron-fsdp\n--ckpt-format fsdp_dtensor\n--no-gradient-accumulation-fusion\n"         \
    "--use-distributed-optimizer\n--overlap-grad-reduce\n--overlap-param-gather\n"                 \
    "--data-parallel-sharding-strategy "

static const Mapping strategies[] = {
    {"no_shard", "--overlap-grad-reduce\n", NULL},
    {"shard_optimizer",
     "--use-distributed-optimizer\n--overlap-grad-reduce\n--overlap-param-gather\n", NULL},
    {"shard_grad_op", MEGATRON_FSDP "optim_grads\n", NULL},
    {"full_shard", MEGATRON_FSDP "optim_grads_params\n", NULL},
    {"hybrid_shard", MEGATRON_FSDP "optim_grads_params\n--outer-dp-sharding-strategy no_shard\n",
     NULL},
    {NULL, NULL, NULL},
};

/* Without --grad-reduce-in-bf16, --bf16 accumulates and reduces gradients in fp32. */
static const Mapping recipes[] = {
    {"zero", "--bf16\n--grad-reduce-in-bf16\n", NULL},
    {"fsdp2", NULL, "it keeps bf16 parameters with an fp32 copy beside them (recipe zero)"},
    {"fp32", "", NULL},
    {NULL, NULL, NULL},
};

/* Its adam decays weights as AdamW does. */
static const Mapping optimizers[] = {
    {"adamw", "--optimizer adam\n", NULL},
    {"sgd", "--optimizer sgd\n--sgd-momentum 0.0\n", NULL},
    {NULL, NULL, NULL},
};
static const Mapping sharded_optimizers[] = {
    {"adamw", "--optimizer adam\n", NULL},
    {"sgd", NULL, "its distributed optimizer takes adam only"},
    {NULL, NULL, NULL},
};

static const Mapping recomputes[] = {
    {"none", "", NULL},
    {"full", "--recompute-granularity full\n--recompute-method uniform\n--recompute-num-layers 1\n",
     NULL},
    {NULL, NULL, NULL},
};

/* Reduced after every micro-batch, where Megatron-FSDP shards gradients. */
static gboolean accumulates_sharded(Strategy strategy)
{
    return strategy != STRATEGY_NO_SHARD && strategy != STRATEGY_SHARD_OPTIMIZER;
}

/* Rotary scaling is a factor there; the rest is Llama 3.1's, in its code. */
static gboolean write_positions(Export *export, GError **error)
{
    const Model *model = export->plan->model;
    const RopeScaling *scaling = &model->rope_scaling;

    if ((model->features & FEATURE_ROPE) == 0) {
        g_string_append_printf(export->text, "--position-embedding-type %s\n",
                               (model->features & FEATURE_POSITIONS) != 0 ? "learned_absolute"
                                                                          : "none");
        return TRUE;
    }
    if (model->rope_theta != floor(model->rope_theta)) {
        g_autofree char *value = g_strdup_printf("%g", model->rope_theta);

        return export_refuse(export, "model.rope_theta", value, "--rotary-base is an integer",
                             error);
    }
    g_string_append_printf(export->text,
                           "--position-embedding-type rope\n--rotary-base %.0f\n"
                           "--rotary-percent 1.0\n",
                           model->rope_theta);
    if (scaling->factor == 1.0)
        return TRUE;
    if (scaling->low_freq_factor != 1.0 || scaling->high_freq_factor != 4.0 ||
        scaling->original_max_seq != 8192)
        return export_refuse(export, "model.rope_scaling", "{...}",
                             "it has low_freq_factor 1, high_freq_factor 4 and "
                             "original_max_position_embeddings 8192 built in",
                             error);
    g_string_append_printf(export->text, "--use-rope-scaling\n--rope-scaling-factor %g\n",
                           scaling->factor);
    return TRUE;
}

/* All matrices have a bias there, or none, or queries, keys and values alone. */
static gboolean write_biases(Export *export, GError **error)
{
    const guint32 all = FEATURE_QKV_BIAS | FEATURE_O_BIAS | FEATURE_MLP_BIAS;
    const guint32 biases = export->plan->model->features & all;

    if (biases == all)
        return TRUE;
    if (biases != 0 && biases != FEATURE_QKV_BIAS)
        return export_refuse(export, "model.model_type", export->plan->model->model_type,
                             "biases are on all matrices, on queries, keys and values, or on none",
                             error);
    g_string_append(export->text, "--disable-bias-linear\n");
    if (biases != 0)
        g_string_append(export->text, "--add-qkv-bias\n");
    return TRUE;
}

/* Its GELU has the tanh form where it is fused with a bias. */
static gboolean write_block(Export *export, GError **error)
{
    const Model *model = export->plan->model;
    const gboolean gated = (model->features & FEATURE_GATED) != 0;

    if (!gated && (model->features & FEATURE_MLP_BIAS) == 0)
        return export_refuse(export, "model.model_type", model->model_type,
                             "its GELU without a bias is not the tanh form", error);
    g_string_append_printf(export->text, "--normalization %s\n--norm-epsilon %g\n%s",
                           (model->features & FEATURE_LAYER_NORM) != 0 ? "LayerNorm" : "RMSNorm",
                           model->norm_eps, gated ? "--swiglu\n" : "");
    return write_biases(export, error);
}

static gboolean write_model(Export *export, GError **error)
{
    const Plan *plan = export->plan;
    const Model *model = plan->model;
    GString *text = export->text;

    g_string_append_printf(text,
                           "--num-layers %u\n--hidden-size %u\n--ffn-hidden-size %u\n"
                           "--num-attention-heads %u\n--kv-channels %u\n",
                           model->layers, model->hidden, model->ffn, model->heads, model->head_dim);
    if (model->kv_heads != model->heads)
        g_string_append_printf(text, "--group-query-attention\n--num-query-groups %u\n",
                               model->kv_heads);
    g_string_append_printf(text, "--seq-length %u\n--max-position-embeddings %u\n",
                           plan->workload.seq_len, model->max_seq);
    if (!write_positions(export, error) || !write_block(export, error))
        return FALSE;
    g_string_append_printf(text,
                           "--attention-dropout 0.0\n--hidden-dropout 0.0\n"
                           "--init-method-std %g\n",
                           model->init_std);
    if (!model->tied)
        g_string_append(text, "--untie-embeddings-and-output-weights\n");
    /* Unpadded, as the plan counts it; its default rounds up to a multiple of 128. */
    g_string_append_printf(text, "--vocab-size %u\n--make-vocab-size-divisible-by 1\n",
                           model->vocab);
    return TRUE;
}

static void note_hints(Export *export)
{
    const Sharding *sharding = &export->plan->sharding;

    export_note(export,
                "use: torchrun --nproc-per-node %u ... pretrain_gpt.py "
                "$(grep -v '^#' THIS_FILE) --lr ... --train-iters ... --data-path ...",
                export->plan->ranks_per_node);
    export_note(export, "yours to add: learning rate, iterations, data, tokenizer (NullTokenizer "
                        "adds a token to --vocab-size)");
    if (sharding->strategy == STRATEGY_NO_SHARD)
        return;
    export_note(export, "left to Megatron-LM: sharding.form = %s (it cuts flat buckets)",
                form_name(sharding->form));
    if (!accumulates_sharded(sharding->strategy))
        return;
    export_note(export,
                "left to Megatron-FSDP: sharding.prefetch = %u, live_units = %u, keep; unset "
                "CUDA_DEVICE_MAX_CONNECTIONS",
                sharding->prefetch, sharding->live_units);
    if (sharding->strategy == STRATEGY_SHARD_GRAD_OP)
        export_note(export, "shard_grad_op: optim_grads keeps whole bf16 parameters between steps, "
                            "the plan shards of them");
}

static void write_parallel(Export *export, const char *strategy)
{
    const Plan *plan = export->plan;
    const guint *size = plan->layout.size;

    g_string_append_printf(export->text,
                           "--tensor-model-parallel-size %u\n--pipeline-model-parallel-size %u\n"
                           "--context-parallel-size %u\n%s",
                           size[AXIS_TP], size[AXIS_PP], size[AXIS_CP], strategy);
    if (size[AXIS_TP] > 1 && plan->sequence_parallel)
        g_string_append(export->text, "--sequence-parallel\n");
    /* Without it everything is sharded over all data-parallel ranks. */
    if (plan->sharding.strategy != STRATEGY_NO_SHARD && size[AXIS_DP_REPLICATE] > 1)
        g_string_append_printf(export->text, "--num-distributed-optimizer-instances %u\n",
                               size[AXIS_DP_REPLICATE]);
}

static gboolean megatron_write(Export *export, GError **error)
{
    const Plan *plan = export->plan;
    const Workload *workload = &plan->workload;
    const Strategy strategy = plan->sharding.strategy;
    const char *sharding, *recipe, *optimizer, *recompute;

    if ((sharding = export_map(export, "sharding.strategy", strategy_name(strategy), strategies,
                               error)) == NULL ||
        (recipe = export_map(export, "workload.recipe", workload->recipe->name, recipes, error)) ==
            NULL ||
        (optimizer = export_map(export, "workload.optimizer", optimizer_name(workload->optimizer),
                                strategy == STRATEGY_NO_SHARD ? optimizers : sharded_optimizers,
                                error)) == NULL ||
        (recompute = export_map(export, "recompute", recompute_name(plan->schedule.recompute),
                                recomputes, error)) == NULL ||
        !export_check_accumulate(export, accumulates_sharded(strategy), error))
        return FALSE;
    note_hints(export);
    if (!write_model(export, error))
        return FALSE;
    g_string_append_printf(export->text,
                           "--micro-batch-size %u\n--global-batch-size %u\n"
                           "--clip-grad " EXPORT_CLIP_NORM "\n%s%s%s",
                           plan->schedule.micro_batch, workload->global_batch, optimizer, recipe,
                           recompute);
    write_parallel(export, sharding);
    return TRUE;
}

const Exporter exporter_megatron = {
    .name = "megatron",
    .comments = TRUE,
    .tensor_parallel = TRUE,
    .write = megatron_write,
};
