/* Plan -> torchtitan's job configuration, TOML: FSDP2, DDP, pipelines, context and expert
 * parallelism, float8.
 *
 * Fields and rules as in torchtitan v0.2.2 (its job_config.py, parallel_dims.py,
 * pipeline_parallel.py, quantization/float8.py, each model's __init__.py and parallelize.py), the
 * last version that reads TOML, and in PyTorch's distributed/pipelining at commit 00722e648b74. */
#include "sim/export/torchtitan_model.h"

/* fsdp_reshard_after_forward; full_shard's is decided by what the plan keeps. */
static const Mapping strategies[] = {
    {"no_shard", "default", NULL},
    {"shard_optimizer", NULL, "FSDP2 shards parameters and gradients too"},
    {"shard_grad_op", "never", NULL},
    {"full_shard", "default", NULL},
    {"hybrid_shard", "default", NULL},
    {NULL, NULL, NULL},
};

static const Mapping forms[] = {
    {"per_parameter", "", NULL},
    {"flat", NULL, "FSDP2 shards each parameter (per_parameter)"},
    {NULL, NULL, NULL},
};

/* mixed_precision_param */
static const Mapping recipes[] = {
    {"zero", NULL, "it keeps one fp32 copy of a parameter and gathers bf16 ones (recipe fsdp2)"},
    {"fsdp2", "bfloat16", NULL},
    {"fp32", "float32", NULL},
    {NULL, NULL, NULL},
};

/* mixed_precision_reduce */
static const Mapping reductions[] = {
    {"fp32", "float32", NULL},
    {"bf16", "bfloat16", NULL},
    {NULL, NULL, NULL},
};

static const Mapping optimizers[] = {
    {"adamw", "AdamW", NULL},
    {"sgd", NULL, "optimizer.name is Adam or AdamW"},
    {NULL, NULL, NULL},
};

static const Mapping recomputes[] = {
    {"none", "none", NULL},
    {"selective", NULL,
     "its selective mode is the reverse: it keeps what attention gives and recomputes other ops, "
     "or whole layers"},
    {"full", "full", NULL},
    {NULL, NULL, NULL},
};

/* pipeline_parallel_schedule */
static const Mapping schedules[] = {
    {"gpipe", "GPipe", NULL},
    {"1f1b", "1F1B", NULL},
    {"interleaved", "Interleaved1F1B", NULL},
    {"zb_h1", NULL,
     "PyTorch's zero-bubble schedules (InterleavedZeroBubble, ZBVZeroBubble) have several chunks "
     "on every rank"},
    {NULL, NULL, NULL},
};

/* context_parallel_rotate_method */
static const Mapping contexts[] = {
    {"ring", "alltoall", NULL},
    {"all_gather", "allgather", NULL},
    {NULL, NULL, NULL},
};

typedef struct {
    const char *reshard, *precision, *reduce, *optimizer, *recompute, *schedule, *context;
} Words;

/* Gathered units that are kept between forward and backward: both of those that FSDP2 would gather
 * again at once, or none.  With a pipeline its default keeps all, as "never" does. */
static const char *reshard_policy(const Export *export, GError **error)
{
    const Sharding *sharding = &export->plan->sharding;
    const char *policy = export_map(export, "sharding.strategy", strategy_name(sharding->strategy),
                                    strategies, error);

    if (policy == NULL || sharding->strategy == STRATEGY_NO_SHARD ||
        sharding->strategy == STRATEGY_SHARD_GRAD_OP)
        return policy;
    if (sharding->keep_root != sharding->keep_last) {
        export_refuse(export, "sharding.keep", sharding->keep_root ? "[root]" : "[last]",
                      "fsdp_reshard_after_forward keeps both (default) or none (always)", error);
        return NULL;
    }
    if (sharding->keep_root && export->plan->layout.size[AXIS_PP] > 1) {
        export_refuse(export, "sharding.keep", "[root, last]",
                      "with a pipeline it keeps all units (shard_grad_op) or none", error);
        return NULL;
    }
    return sharding->keep_root ? policy : "always";
}

static void note_hints(Export *export)
{
    const Plan *plan = export->plan;

    export_note(export, "yours to add: learning rate, steps, dataset, tokenizer; for torchtitan "
                        "v0.2.2, the last version that reads TOML");
    if (plan->sharding.strategy == STRATEGY_NO_SHARD)
        return;
    export_note(export,
                "left to torchtitan: sharding.prefetch = %u, live_units = %u (FSDP2 gathers the "
                "next unit while one computes), which of root and last it keeps",
                plan->sharding.prefetch, plan->sharding.live_units);
    if (plan->sharding.strategy == STRATEGY_SHARD_GRAD_OP && plan->schedule.micro_batches > 1 &&
        plan->layout.size[AXIS_PP] == 1)
        export_note(export, "shard_grad_op: FSDP2 gathers in every micro-batch, the plan once a "
                            "step");
    if (plan->workload.recipe->reduce != DTYPE_FP32)
        export_note(export, "mixed_precision_reduce: its type names float32 alone, FSDP2 takes "
                            "bfloat16 too");
    if (layout_shard_ranks(&plan->layout) == 1 && export_is_fsdp2(plan))
        export_note(export, "dp_shard = 1: nothing is sharded, bf16 comes from torch.autocast");
}

/* Of units that FSDP2 shards in a pipeline: when they are gathered. */
static void note_pipeline(Export *export)
{
    const Plan *plan = export->plan;

    export_note(export,
                "local_batch_size is all of a step's %u micro-batches: a pipeline cuts it into "
                "pieces of pipeline_parallel_microbatch_size",
                plan->schedule.micro_batches);
    if (layout_shard_ranks(&plan->layout) == 1)
        return;
    if (plan->schedule.kind == SCHEDULE_INTERLEAVED)
        export_note(export, "left to PyTorch: it gathers a chunk's units together, before the "
                            "chunk's first forward or backward pass");
    else if (plan->sharding.strategy != STRATEGY_SHARD_GRAD_OP)
        export_note(export, "left to PyTorch: a unit stays gathered from one micro-batch's "
                            "backward pass to the next one's forward pass");
}

static void note_context(Export *export)
{
    if (export->plan->context == CONTEXT_ALL_GATHER)
        export_note(export, "left to PyTorch: gradients of keys and values pass from rank to rank, "
                            "the plan reduce-scatters them");
}

/* Names of the modules of each chunk, as torchtitan's llama3 calls them. */
static void write_modules(Export *export)
{
    const Plan *plan = export->plan;
    const guint chunks = schedule_chunks(&plan->schedule, plan->layout.size[AXIS_PP]);

    g_string_append(export->text, "module_fqns_per_model_part = [");
    for (guint c = 0; c < chunks; c++) {
        const LayerRange range =
            schedule_chunk(&plan->schedule, plan->model->layers, plan->layout.size[AXIS_PP], c);

        g_string_append_printf(export->text, "%s[%s", c == 0 ? "" : ", ",
                               c == 0 ? "\"tok_embeddings\", " : "");
        for (guint i = range.first; i < range.first + range.count; i++)
            g_string_append_printf(export->text, "%s\"layers.%u\"", i == range.first ? "" : ", ",
                                   i);
        g_string_append(export->text, c + 1 == chunks ? ", \"norm\", \"output\"]" : "]");
    }
    g_string_append(export->text, "]\n");
}

static void write_pipeline(Export *export, const char *schedule)
{
    const Plan *plan = export->plan;
    const guint even_layers = export_even_layers(plan);

    if (plan->layout.size[AXIS_PP] == 1)
        return;
    g_string_append_printf(export->text,
                           "pipeline_parallel_schedule = \"%s\"\n"
                           "pipeline_parallel_microbatch_size = %u\n",
                           schedule, plan->schedule.micro_batch);
    if (even_layers == 0) {
        write_modules(export);
        return;
    }
    g_string_append_printf(export->text,
                           "pipeline_parallel_layers_per_stage = %u\n"
                           "pipeline_parallel_first_stage_less_layers = 0\n"
                           "pipeline_parallel_last_stage_less_layers = 0\n",
                           even_layers);
}

static void write_parallelism(Export *export, const Words *words)
{
    const guint *size = export->plan->layout.size;

    g_string_append_printf(export->text,
                           "\n[parallelism]\n"
                           "data_parallel_replicate_degree = %u\n"
                           "data_parallel_shard_degree = %u\n"
                           "fsdp_reshard_after_forward = \"%s\"\n"
                           "tensor_parallel_degree = %u\n"
                           "pipeline_parallel_degree = %u\n",
                           size[AXIS_DP_REPLICATE], size[AXIS_DP_SHARD], words->reshard,
                           size[AXIS_TP], size[AXIS_PP]);
    write_pipeline(export, words->schedule);
    g_string_append_printf(export->text, "context_parallel_degree = %u\n", size[AXIS_CP]);
    if (size[AXIS_CP] > 1)
        g_string_append_printf(export->text, "context_parallel_rotate_method = \"%s\"\n",
                               words->context);
    if (export->plan->model->experts.count > 0)
        g_string_append_printf(export->text,
                               "expert_parallel_degree = %u\nexpert_tensor_parallel_degree = 1\n",
                               layout_ep(&export->plan->layout));
}

/* Scaled by the largest magnitude of each tensor as it is, as in the plan; head and router stay in
 * bf16. */
static void write_float8(Export *export)
{
    const Plan *plan = export->plan;
    const gboolean sparse = plan->model->experts.count > 0;
    const char *gathers = plan->sharding.gather_fp8 ? "true" : "false";

    if (plan->workload.recipe->precision != DTYPE_FP8)
        return;
    g_string_append_printf(export->text,
                           "\n[quantize.linear.float8]\n"
                           "enable_fsdp_float8_all_gather = %s\n"
                           "precompute_float8_dynamic_scale_for_fsdp = %s\n"
                           "filter_fqns = [\"output\"%s]\n",
                           gathers, gathers, sparse ? ", \"router.gate\"" : "");
    if (sparse)
        g_string_append(export->text, "\n[quantize.grouped_mm.float8]\nfqns = [\"experts\"]\n");
}

static gboolean check_float8(const Export *export, GError **error)
{
    const Plan *plan = export->plan;

    return !plan->sharding.gather_fp8 || plan->layout.size[AXIS_DP_SHARD] > 1 ||
           export_refuse(export, "sharding.gather_dtype", "fp8",
                         "it gathers in float8 where dp_shard is larger than 1", error);
}

/* Its plan of a Llama always splits the sequence between matrices. */
static gboolean check_tensor_parallel(const Export *export, GError **error)
{
    const Plan *plan = export->plan;
    const guint *size = plan->layout.size;

    if (size[AXIS_TP] > 1 && !plan->sequence_parallel)
        return export_refuse(export, "tensor_parallel.sequence", "false",
                             "its tensor parallelism always splits the sequence", error);
    if (plan->workload.seq_len % (2 * size[AXIS_CP] * size[AXIS_TP]) != 0)
        return export_refuse_uint(export, "workload.seq_len", plan->workload.seq_len,
                                  "2 x context_parallel_degree x tensor_parallel_degree must "
                                  "divide it",
                                  error);
    return TRUE;
}

/* Beside other axes its data parallelism is FSDP2, which also casts to bf16. */
static gboolean check_data_parallel(const Export *export, GError **error)
{
    const Plan *plan = export->plan;
    const guint *size = plan->layout.size;
    const gboolean alone = size[AXIS_PP] == 1 && size[AXIS_TP] == 1;

    if (plan->sharding.strategy == STRATEGY_NO_SHARD &&
        (size[AXIS_CP] > 1 || (size[AXIS_DP_REPLICATE] > 1 && !alone)))
        return export_refuse(export, "sharding.strategy", "no_shard",
                             "its DDP does not go with pp, cp or tp", error);
    if (export_is_fsdp2(plan) && layout_shard_ranks(&plan->layout) == 1 && !alone)
        return export_refuse(export, "workload.recipe", "fsdp2",
                             "with pp or tp it casts to bf16 only where dp_shard or cp is larger "
                             "than 1",
                             error);
    if (plan->workload.recipe->reduce != DTYPE_FP32 && layout_shard_ranks(&plan->layout) == 1)
        return export_refuse(
            export, "sharding.reduce_dtype", dtype_name(plan->workload.recipe->reduce),
            "where nothing is sharded it reduces gradients as they are, in fp32", error);
    return export_check_gradients(export, DTYPE_FP32,
                                  "gradients of its fp32 parameters are fp32 once reduced", error);
}

/* Interleaved, PyTorch cuts the micro-batches into m / pp equal groups; the plan's have pp. */
static gboolean check_pipeline(const Export *export, GError **error)
{
    const guint micro_batches = export->plan->schedule.micro_batches;
    const guint pp = export->plan->layout.size[AXIS_PP];
    const ScheduleKind kind = export->plan->schedule.kind;

    if (kind == SCHEDULE_1F1B && micro_batches < pp)
        return export_refuse_uint(export, "schedule.micro_batches", micro_batches,
                                  "its 1F1B wants at least one for each stage", error);
    if (kind == SCHEDULE_INTERLEAVED && micro_batches > pp && micro_batches % pp != 0)
        return export_refuse_uint(export, "schedule.micro_batches", micro_batches,
                                  "its Interleaved1F1B has groups of pp where pp divides them",
                                  error);
    return TRUE;
}

/* FSDP2 and DDP reduce after every micro-batch, a pipeline once a step. */
static gboolean check_accumulate(const Export *export, GError **error)
{
    const guint *size = export->plan->layout.size;

    if (size[AXIS_DP_REPLICATE] * size[AXIS_DP_SHARD] * size[AXIS_CP] == 1)
        return TRUE; /* nothing to reduce */
    return export_check_accumulate(export, size[AXIS_PP] == 1, error);
}

/* The plan's choices in its words. */
static gboolean find_words(const Export *export, Words *words, GError **error)
{
    const Plan *plan = export->plan;

    return (words->reshard = reshard_policy(export, error)) != NULL &&
           export_map(export, "sharding.form", form_name(plan->sharding.form), forms, error) !=
               NULL &&
           (words->precision = export_map(export, "workload.recipe", plan->workload.recipe->name,
                                          recipes, error)) != NULL &&
           (words->reduce =
                export_map(export, "sharding.reduce_dtype",
                           dtype_name(plan->workload.recipe->reduce), reductions, error)) != NULL &&
           (words->optimizer =
                export_map(export, "workload.optimizer", optimizer_name(plan->workload.optimizer),
                           optimizers, error)) != NULL &&
           export_check_recompute(
               export, "its selective mode takes every n-th layer, not the first ones", error) &&
           (words->recompute =
                export_map(export, "recompute", recompute_name(plan->schedule.recompute),
                           recomputes, error)) != NULL &&
           (words->schedule = export_map(export, "schedule.name",
                                         schedule_name(plan->schedule.kind), schedules, error)) !=
               NULL &&
           (words->context = export_map(export, "context_parallel.kind",
                                        context_kind_name(plan->context), contexts, error)) != NULL;
}

static gboolean torchtitan_write(Export *export, GError **error)
{
    const Plan *plan = export->plan;
    const Schedule *schedule = &plan->schedule;
    const gboolean pipeline = plan->layout.size[AXIS_PP] > 1;
    gboolean offloads;
    Words words;

    if (!find_words(export, &words, error) || !check_tensor_parallel(export, error) ||
        !check_data_parallel(export, error) || !check_pipeline(export, error) ||
        !check_accumulate(export, error) || !torchtitan_check_model(export, error) ||
        !check_float8(export, error) || !export_offload_all(export, &offloads, error))
        return FALSE;
    note_hints(export);
    if (pipeline)
        note_pipeline(export);
    if (plan->layout.size[AXIS_CP] > 1)
        note_context(export);
    g_string_append(export->text, "\n[job]\ndescription = \"from a plan of fsdp-plan\"\n");
    if (!torchtitan_write_model(export, error))
        return FALSE;
    g_string_append_printf(export->text,
                           "\n[optimizer]\nname = \"%s\"\n"
                           "\n[training]\n"
                           "local_batch_size = %u\n"
                           "global_batch_size = %u\n"
                           "seq_len = %u\n"
                           "max_norm = " EXPORT_CLIP_NORM "\n"
                           "mixed_precision_param = \"%s\"\n"
                           "mixed_precision_reduce = \"%s\"\n%s",
                           words.optimizer,
                           schedule->micro_batch * (pipeline ? schedule->micro_batches : 1),
                           plan->workload.global_batch, plan->workload.seq_len, words.precision,
                           words.reduce, offloads ? "enable_cpu_offload = true\n" : "");
    write_parallelism(export, &words);
    g_string_append_printf(export->text, "\n[activation_checkpoint]\nmode = \"%s\"\n",
                           words.recompute);
    write_float8(export);
    return TRUE;
}

const Exporter exporter_torchtitan = {
    .name = "torchtitan",
    .comments = TRUE,
    .features = TORCHTITAN_FEATURES,
    .eighth = TRUE,
    .write = torchtitan_write,
};
