/* Plan -> Megatron-LM's arguments, one option a line: DDP, distributed optimizer, Megatron-FSDP,
 * pipelines, context parallelism.
 *
 * Options and rules as in Megatron-LM at commit d98e8a64ddf3 (its training/arguments.py, core's
 * transformer_config.py, pipeline_parallel/schedules.py, pipeline_parallel_layer_layout.py). */
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
    {"megatron", "--bf16\n", NULL},
    {"fsdp2", NULL, "it keeps bf16 parameters with an fp32 copy beside them (recipe zero)"},
    {"fp32", "", NULL},
    {NULL, NULL, NULL},
};

/* --fp16 reduces gradients as they are unless told. */
static const Mapping half_recipes[] = {
    {"zero", "--fp16\n", NULL},
    {"megatron", "--fp16\n--accumulate-allreduce-grads-in-fp32\n", NULL},
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
    {"selective", "--recompute-granularity selective\n--recompute-modules core_attn\n", NULL},
    {"full", "--recompute-granularity full\n", NULL},
    {NULL, NULL, NULL},
};

/* It has one schedule a number of chunks, and no option for it. */
static const Mapping schedules[] = {
    {"1f1b", "", NULL},
    {"interleaved", "", NULL},
    {"gpipe", NULL, "its pipeline runs 1f1b, or interleaved"},
    {"zb_h1", NULL, "its pipeline runs 1f1b, or interleaved"},
    {NULL, NULL, NULL},
};

static const Mapping contexts[] = {
    {"ring", "--cp-comm-type p2p\n", NULL},
    {"all_gather", "--cp-comm-type all_gather\n", NULL},
    {NULL, NULL, NULL},
};

typedef struct {
    const char *sharding, *recipe, *optimizer, *recompute, *context;
    guint recompute_layers; /* of each chunk; 0: of all that is said */
} Words;

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
    const guint *size = export->plan->layout.size;

    export_note(export,
                "use: torchrun --nproc-per-node %u ... pretrain_gpt.py "
                "$(grep -v '^#' THIS_FILE) --lr ... --train-iters ... --data-path ...",
                export->plan->ranks_per_node);
    export_note(export, "yours to add: learning rate, iterations, data, tokenizer (NullTokenizer "
                        "adds a token to --vocab-size)");
    if (export->plan->workload.recipe->precision == DTYPE_FP16)
        export_note(export, "fp16: its loss scale is dynamic");
    if (export->plan->schedule.recompute == RECOMPUTE_SELECTIVE)
        export_note(export, "recompute = selective: core_attn keeps what attention gives, the plan "
                            "makes that again too");
    if ((size[AXIS_TP] > 1 || size[AXIS_CP] > 1) && !accumulates_sharded(sharding->strategy))
        export_note(export, "with tp or cp it wants CUDA_DEVICE_MAX_CONNECTIONS=1 on GPUs before "
                            "Blackwell");
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

/* Chunks of the model in its order, t a block: "Ett|ttt|ttL". */
static void write_uneven_chunks(Export *export)
{
    const Plan *plan = export->plan;
    const guint pp = plan->layout.size[AXIS_PP], chunks = schedule_chunks(&plan->schedule, pp);

    g_string_append(export->text, "--pipeline-model-parallel-layout E");
    for (guint c = 0; c < chunks; c++) {
        const LayerRange range = schedule_chunk(&plan->schedule, plan->model->layers, pp, c);

        g_string_append(export->text, c == 0 ? "" : "|");
        for (guint i = 0; i < range.count; i++)
            g_string_append_c(export->text, 't');
    }
    g_string_append(export->text, "L\n");
}

static void write_parallel(Export *export, const Words *words)
{
    const Plan *plan = export->plan;
    const guint *size = plan->layout.size;
    const guint virtual_stages = schedule_virtual_stages(&plan->schedule);

    g_string_append_printf(export->text,
                           "--tensor-model-parallel-size %u\n--pipeline-model-parallel-size %u\n",
                           size[AXIS_TP], size[AXIS_PP]);
    if (export_even_layers(plan) == 0)
        write_uneven_chunks(export);
    else if (virtual_stages > 1)
        g_string_append_printf(export->text, "--num-virtual-stages-per-pipeline-rank %u\n",
                               virtual_stages);
    g_string_append_printf(export->text, "--context-parallel-size %u\n%s%s", size[AXIS_CP],
                           size[AXIS_CP] > 1 ? words->context : "", words->sharding);
    if (size[AXIS_TP] > 1 && plan->sequence_parallel)
        g_string_append(export->text, "--sequence-parallel\n");
    /* Without it everything is sharded over all data-parallel ranks. */
    if (plan->sharding.strategy != STRATEGY_NO_SHARD && size[AXIS_DP_REPLICATE] > 1)
        g_string_append_printf(export->text, "--num-distributed-optimizer-instances %u\n",
                               size[AXIS_DP_REPLICATE]);
}

/* Its splits are equal, and with a sequence that is split those of one sample's tokens. */
static gboolean check_tensor_parallel(const Export *export, GError **error)
{
    const Plan *plan = export->plan;
    const guint tp = plan->layout.size[AXIS_TP], cp = plan->layout.size[AXIS_CP];

    if (plan->model->ffn % tp != 0)
        return export_refuse_uint(export, "layout.tp", tp,
                                  "it must divide the model's intermediate_size there", error);
    if (tp > 1 && plan->sequence_parallel && plan->workload.seq_len / cp % tp != 0)
        return export_refuse_uint(export, "workload.seq_len", plan->workload.seq_len,
                                  "with --sequence-parallel cp x tp must divide it", error);
    return TRUE;
}

static gboolean check_pipeline(const Export *export, GError **error)
{
    const Schedule *schedule = &export->plan->schedule;

    return schedule->kind != SCHEDULE_INTERLEAVED ||
           schedule->micro_batches % export->plan->layout.size[AXIS_PP] == 0 ||
           export_refuse_uint(export, "schedule.micro_batches", schedule->micro_batches,
                              "interleaved, pp must divide them there", error);
}

/* Gradients are reduced as they are accumulated, whichever recipe says so. */
static const char *recipe_word(const Plan *plan)
{
    const Recipe *recipe = plan->workload.recipe;

    if (!recipe->master)
        return recipe->name;
    return recipe->gradient == DTYPE_FP32 ? "megatron" : "zero";
}

static gboolean check_gradients(const Export *export, GError **error)
{
    const Recipe *recipe = export->plan->workload.recipe;

    return export_check_gradients(export, recipe->reduce,
                                  "it reduces gradients as they are accumulated (reduce_dtype)",
                                  error);
}

/* The plan's choices in its words. */
static gboolean find_words(const Export *export, Words *words, GError **error)
{
    const Plan *plan = export->plan;
    const Strategy strategy = plan->sharding.strategy;
    const gboolean half = plan->workload.recipe->precision == DTYPE_FP16;

    return (words->sharding = export_map(export, "sharding.strategy", strategy_name(strategy),
                                         strategies, error)) != NULL &&
           check_gradients(export, error) &&
           (words->recipe = export_map(export, "workload.recipe", recipe_word(plan),
                                       half ? half_recipes : recipes, error)) != NULL &&
           (words->optimizer = export_map(
                export, "workload.optimizer", optimizer_name(plan->workload.optimizer),
                strategy == STRATEGY_NO_SHARD ? optimizers : sharded_optimizers, error)) != NULL &&
           (words->recompute =
                export_map(export, "recompute", recompute_name(plan->schedule.recompute),
                           recomputes, error)) != NULL &&
           export_map(export, "schedule.name", schedule_name(plan->schedule.kind), schedules,
                      error) != NULL &&
           (words->context = export_map(export, "context_parallel.kind",
                                        context_kind_name(plan->context), contexts, error)) != NULL;
}

/* --recompute-num-layers with the block method: the same number of first layers of each chunk, or
 * all there are. */
static gboolean check_recompute(const Export *export, Words *words, GError **error)
{
    const Plan *plan = export->plan;
    const Schedule *schedule = &plan->schedule;
    const guint pp = plan->layout.size[AXIS_PP];
    gboolean equal = TRUE;
    guint layers = 0;

    if (!schedule_has_rest(schedule))
        return TRUE;
    if (schedule->recompute != RECOMPUTE_FULL)
        return export_check_recompute(export, "recomputing attention, it does so in all layers",
                                      error);
    for (guint s = 0; s < pp; s++)
        layers = MAX(layers, schedule->recompute_layers[s]);
    for (guint s = 0; s < pp; s++)
        equal &= schedule->recompute_layers[s] ==
                 MIN(layers, schedule_most_layers(schedule, plan->model->layers, pp, s));
    words->recompute_layers = layers;
    return equal ||
           export_check_recompute(
               export, "--recompute-num-layers is one number for all pipeline stages", error);
}

static gboolean megatron_write(Export *export, GError **error)
{
    const Plan *plan = export->plan;
    Words words = {.recompute_layers = 0};

    if (!find_words(export, &words, error) || !check_recompute(export, &words, error) ||
        !check_tensor_parallel(export, error) || !check_pipeline(export, error) ||
        !export_check_accumulate(export, accumulates_sharded(plan->sharding.strategy), error))
        return FALSE;
    note_hints(export);
    if (!write_model(export, error))
        return FALSE;
    g_string_append_printf(export->text,
                           "--micro-batch-size %u\n--global-batch-size %u\n"
                           "--clip-grad " EXPORT_CLIP_NORM "\n%s%s%s",
                           plan->schedule.micro_batch, plan->workload.global_batch, words.optimizer,
                           words.recipe, words.recompute);
    if (words.recompute_layers > 0)
        g_string_append_printf(export->text,
                               "--recompute-method block\n--recompute-num-layers %u\n",
                               words.recompute_layers);
    else if (plan->schedule.recompute == RECOMPUTE_FULL)
        g_string_append(export->text, "--recompute-method uniform\n--recompute-num-layers 1\n");
    write_parallel(export, &words);
    return TRUE;
}

const Exporter exporter_megatron = {
    .name = "megatron",
    .comments = TRUE,
    .half = TRUE,
    .why_not_offload = "its optimiser on the host needs the precision-aware one, which keeps other "
                       "types than a plan's recipe",
    .write = megatron_write,
};
