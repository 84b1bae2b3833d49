/* Plan -> torchtitan's job configuration, TOML: FSDP2, DDP. */
#include "sim/export/exporter.h"

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

/* mixed_precision_param; mixed_precision_reduce is float32 with both. */
static const Mapping recipes[] = {
    {"zero", NULL, "it keeps one fp32 copy of a parameter and gathers bf16 ones (recipe fsdp2)"},
    {"fsdp2", "bfloat16", NULL},
    {"fp32", "float32", NULL},
    {NULL, NULL, NULL},
};

static const Mapping optimizers[] = {
    {"adamw", "AdamW", NULL},
    {"sgd", NULL, "optimizer.name is Adam or AdamW"},
    {NULL, NULL, NULL},
};

static const Mapping recomputes[] = {
    {"none", "none", NULL},
    {"full", "full", NULL},
    {NULL, NULL, NULL},
};

/* Shapes that torchtitan's llama3 has under a name. */
static const struct {
    const char *flavor;
    guint layers, hidden, heads, kv_heads, ffn, vocab;
} flavors[] = {
    {"8B", 32, 4096, 32, 8, 14336, 128256},
    {"70B", 80, 8192, 64, 8, 28672, 128256},
    {"405B", 126, 16384, 128, 8, 53248, 128256},
};

static const char *find_flavor(const Model *model)
{
    for (guint i = 0; i < G_N_ELEMENTS(flavors); i++)
        if (flavors[i].layers == model->layers && flavors[i].hidden == model->hidden &&
            flavors[i].heads == model->heads && flavors[i].kv_heads == model->kv_heads &&
            flavors[i].ffn == model->ffn && flavors[i].vocab == model->vocab)
            return flavors[i].flavor;
    return NULL;
}

static gboolean check_model(const Export *export, GError **error)
{
    const Model *model = export->plan->model;

    if ((model->features | FEATURE_UNTIED) != (FEATURE_ROPE | FEATURE_GATED | FEATURE_UNTIED))
        return export_refuse(export, "model.model_type", model->model_type,
                             "its llama3 has RMSNorm, rotary embedding, SwiGLU and no biases",
                             error);
    if (model->tied)
        return export_refuse(export, "model.tie_word_embeddings", "true",
                             "its llama3 has a head of its own", error);
    if (model->head_dim * model->heads != model->hidden) {
        g_autofree char *value = g_strdup_printf("%u", model->head_dim);

        return export_refuse(export, "model.head_dim", value,
                             "its llama3 takes hidden_size / num_attention_heads", error);
    }
    return TRUE;
}

/* The file names a flavor; sizes are in torchtitan's code. */
static void write_model(Export *export)
{
    const Model *model = export->plan->model;
    const char *known = find_flavor(model);
    g_autofree char *flavor = g_strdup(known != NULL ? known : model->name);

    g_strcanon(flavor, G_CSET_A_2_Z G_CSET_a_2_z G_CSET_DIGITS "._-", '_');
    if (known == NULL)
        export_note(export,
                    "torchtitan has no flavor of this shape yet: add \"%s\" to its llama3 with dim "
                    "%u, n_layers %u, n_heads %u, n_kv_heads %u, vocab_size %u, rope_theta %g, "
                    "norm_eps %g, feed-forward %u",
                    flavor, model->hidden, model->layers, model->heads, model->kv_heads,
                    model->vocab, model->rope_theta, model->norm_eps, model->ffn);
    g_string_append_printf(export->text, "\n[model]\nname = \"llama3\"\nflavor = \"%s\"\n", flavor);
}

/* Gathered units that are kept between forward and backward: both of those that FSDP2 would gather
 * again at once, or none. */
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
    return sharding->keep_root ? policy : "always";
}

static void note_hints(Export *export)
{
    const Plan *plan = export->plan;

    export_note(export, "yours to add: learning rate, steps, dataset, tokenizer; for versions of "
                        "torchtitan that read TOML");
    if (plan->sharding.strategy == STRATEGY_NO_SHARD)
        return;
    export_note(export,
                "left to torchtitan: sharding.prefetch = %u, live_units = %u (FSDP2 gathers the "
                "next unit while one computes), which of root and last it keeps",
                plan->sharding.prefetch, plan->sharding.live_units);
    if (plan->sharding.strategy == STRATEGY_SHARD_GRAD_OP && plan->schedule.micro_batches > 1)
        export_note(export, "shard_grad_op: FSDP2 gathers in every micro-batch, the plan once a "
                            "step");
    if (layout_shard_ranks(&plan->layout) == 1 && plan->workload.recipe == &recipe_fsdp2)
        export_note(export, "dp_shard = 1: nothing is sharded, bf16 comes from torch.autocast");
}

static void write_parallelism(Export *export, const char *reshard)
{
    const guint *size = export->plan->layout.size;

    g_string_append_printf(export->text,
                           "\n[parallelism]\n"
                           "data_parallel_replicate_degree = %u\n"
                           "data_parallel_shard_degree = %u\n"
                           "fsdp_reshard_after_forward = \"%s\"\n"
                           "tensor_parallel_degree = %u\n"
                           "pipeline_parallel_degree = %u\n"
                           "context_parallel_degree = %u\n",
                           size[AXIS_DP_REPLICATE], size[AXIS_DP_SHARD], reshard, size[AXIS_TP],
                           size[AXIS_PP], size[AXIS_CP]);
}

/* Its plan of a Llama always splits the sequence between matrices. */
static gboolean check_tensor_parallel(const Export *export, GError **error)
{
    const Plan *plan = export->plan;

    if (plan->layout.size[AXIS_TP] == 1 || plan->sequence_parallel)
        return TRUE;
    return export_refuse(export, "tensor_parallel.sequence", "false",
                         "its tensor parallelism always splits the sequence", error);
}

static gboolean torchtitan_write(Export *export, GError **error)
{
    const Plan *plan = export->plan;
    const Workload *workload = &plan->workload;
    const char *reshard, *precision, *optimizer, *recompute;

    if ((reshard = reshard_policy(export, error)) == NULL ||
        export_map(export, "sharding.form", form_name(plan->sharding.form), forms, error) == NULL ||
        (precision = export_map(export, "workload.recipe", workload->recipe->name, recipes,
                                error)) == NULL ||
        (optimizer = export_map(export, "workload.optimizer", optimizer_name(workload->optimizer),
                                optimizers, error)) == NULL ||
        (recompute = export_map(export, "recompute", recompute_name(plan->schedule.recompute),
                                recomputes, error)) == NULL ||
        !check_tensor_parallel(export, error) ||
        /* Its DDP too: it never suspends the reduction between micro-batches. */
        !export_check_accumulate(export, TRUE, error) || !check_model(export, error))
        return FALSE;
    note_hints(export);
    g_string_append(export->text, "\n[job]\ndescription = \"from a plan of fsdp-plan\"\n");
    write_model(export);
    g_string_append_printf(export->text,
                           "\n[optimizer]\nname = \"%s\"\n"
                           "\n[training]\n"
                           "local_batch_size = %u\n"
                           "global_batch_size = %u\n"
                           "seq_len = %u\n"
                           "max_norm = " EXPORT_CLIP_NORM "\n"
                           "mixed_precision_param = \"%s\"\n"
                           "mixed_precision_reduce = \"float32\"\n",
                           optimizer, plan->schedule.micro_batch, workload->global_batch,
                           workload->seq_len, precision);
    write_parallelism(export, reshard);
    g_string_append_printf(export->text, "\n[activation_checkpoint]\nmode = \"%s\"\n", recompute);
    return TRUE;
}

const Exporter exporter_torchtitan = {
    .name = "torchtitan",
    .comments = TRUE,
    .tensor_parallel = TRUE,
    .write = torchtitan_write,
};
