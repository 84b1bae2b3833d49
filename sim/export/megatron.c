/* Plan -> Megatron-LM's arguments, one option a line: DDP, distributed optimizer, Megatron-FSDP,
 * pipelines, context and expert parallelism, fp8, the optimiser on the host.
 *
 * Options and rules as in Megatron-LM at commit d98e8a64ddf3 (its training/arguments.py,
 * argument_utils.py, core's transformer_config.py, model_parallel_config.py, moe/moe_utils.py,
 * optimizer/distrib_optimizer.py, pipeline_parallel/schedules.py,
 * pipeline_parallel_layer_layout.py). */
#include "sim/export/megatron_model.h"

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

/* --main-grads-dtype: what the optimiser on the host is given; it keeps the rest in fp32. */
static const Mapping host_gradients[] = {
    {"zero", "bf16", NULL},
    {"megatron", "fp32", NULL},
    {"fp32", NULL, "its optimiser on the host has a master of its own (recipe zero or megatron)"},
    {NULL, NULL, NULL},
};
static const Mapping host_half_gradients[] = {
    {"zero", NULL, "--main-grads-dtype is fp32 or bf16 (recipe megatron)"},
    {"megatron", "fp32", NULL},
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
    const char *main_grads; /* dtype, of an optimiser on the host; NULL: it is on the device */
    guint recompute_layers; /* of each chunk; 0: of all that is said */
} Words;

/* Reduced after every micro-batch, where Megatron-FSDP shards gradients. */
static gboolean accumulates_sharded(Strategy strategy)
{
    return strategy != STRATEGY_NO_SHARD && strategy != STRATEGY_SHARD_OPTIMIZER;
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
    if (sharding->gather_fp8)
        export_note(export,
                    "gather = fp8: it keeps fp8 parameters between steps, where the plan "
                    "has %s ones",
                    dtype_name(export->plan->workload.recipe->stored));
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
    /* Its default splits experts as it does other matrices. */
    if (plan->model->experts.count > 0)
        g_string_append_printf(export->text,
                               "--expert-model-parallel-size %u\n--expert-tensor-parallel-size 1\n",
                               layout_ep(&plan->layout));
}

/* Scaled by the largest magnitude of each tensor as it is, as in the plan. */
static void write_fp8(Export *export)
{
    if (export->plan->workload.recipe->precision != DTYPE_FP8)
        return;
    g_string_append_printf(export->text, "--fp8-format hybrid\n--fp8-recipe tensorwise\n%s",
                           export->plan->sharding.gather_fp8 ? "--fp8-param-gather\n" : "");
}

static void write_offload(Export *export, const Words *words)
{
    if (words->main_grads == NULL)
        return;
    g_string_append_printf(export->text,
                           "--optimizer-cpu-offload\n--use-precision-aware-optimizer\n"
                           "--main-grads-dtype %s\n--main-params-dtype fp32\n"
                           "--exp-avg-dtype fp32\n--exp-avg-sq-dtype fp32\n",
                           words->main_grads);
}

/* Its optimiser on the host holds master and moments. */
static gboolean check_offload(Export *export, Words *words, GError **error)
{
    const Plan *plan = export->plan;
    const Offload *offload = &plan->sharding.offload;

    const gboolean half = plan->workload.recipe->precision == DTYPE_FP16;

    words->main_grads = NULL;
    if (!sharding_offloads(&plan->sharding))
        return TRUE;
    if (offload->optimizer != TIER_HOST || offload->parameters != TIER_DEVICE)
        return export_refuse_offload(export,
                                     "it moves the optimiser's state, to the host "
                                     "(optimizer=host,parameters=device)",
                                     error);
    if (plan->sharding.strategy != STRATEGY_SHARD_OPTIMIZER)
        return export_refuse_offload(export,
                                     "its optimiser on the host is a distributed optimizer, and "
                                     "Megatron-FSDP keeps masters itself (shard_optimizer)",
                                     error);
    export_note_offload(export);
    return (words->main_grads = export_map(export, "workload.recipe", plan->workload.recipe->name,
                                           half ? host_half_gradients : host_gradients, error)) !=
           NULL;
}

/* Each expert is whole on a rank, which then has its own part of the sequence. */
static gboolean check_experts(const Export *export, GError **error)
{
    const Plan *plan = export->plan;

    return plan->model->experts.count == 0 || plan->layout.size[AXIS_TP] == 1 ||
           plan->sequence_parallel ||
           export_refuse(export, "tensor_parallel.sequence", "false",
                         "a model with experts has --sequence-parallel beside tp", error);
}

/* Matrices that tp splits: not those of an expert. */
static gboolean check_mlps(const Export *export, GError **error)
{
    const Model *model = export->plan->model;
    const guint tp = export->plan->layout.size[AXIS_TP];

    if (model_num_sparse(model) < model->layers && model->ffn % tp != 0)
        return export_refuse_uint(export, "layout.tp", tp,
                                  "it must divide the model's intermediate_size there", error);
    return model->experts.shared_ffn % tp == 0 ||
           export_refuse_uint(export, "layout.tp", tp,
                              "it must divide the shared experts' width there", error);
}

/* Its splits are equal, and with a sequence that is split those of one sample's tokens. */
static gboolean check_tensor_parallel(const Export *export, GError **error)
{
    const Plan *plan = export->plan;
    const guint tp = plan->layout.size[AXIS_TP], cp = plan->layout.size[AXIS_CP];

    if (!check_mlps(export, error) || !check_experts(export, error))
        return FALSE;
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
        !check_offload(export, &words, error) || !check_tensor_parallel(export, error) ||
        !check_pipeline(export, error) ||
        !export_check_accumulate(export, accumulates_sharded(plan->sharding.strategy), error))
        return FALSE;
    note_hints(export);
    if (!megatron_write_model(export, error))
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
    write_fp8(export);
    write_offload(export, &words);
    write_parallel(export, &words);
    return TRUE;
}

const Exporter exporter_megatron = {
    .name = "megatron",
    .comments = TRUE,
    .features = MEGATRON_FEATURES,
    .half = TRUE,
    .eighth = TRUE,
    .write = megatron_write,
};
