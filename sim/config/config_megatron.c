/* Megatron-LM's options in a script, and files that carry its names: NeMo's, Primus's YAML,
 * Megatron-DeepSpeed's options. */
#include "sim/config/config_reader.h"

#include "sim/base/error.h"

#include <string.h>

static const Meaning granularities[] = {
    {"full", RECOMPUTE_FULL},
    {"selective", RECOMPUTE_SELECTIVE},
    {NULL, 0},
};

/* --data-parallel-sharding-strategy, with Megatron's FSDP */
static const Meaning sharding[] = {
    {"no_shard", STRATEGY_NO_SHARD},
    {"optim", STRATEGY_SHARD_OPTIMIZER},
    {"optim_grads", STRATEGY_SHARD_GRAD_OP},
    {"optim_grads_params", STRATEGY_FULL_SHARD},
    {NULL, 0},
};

static const Meaning contexts[] = {
    {"p2p", CONTEXT_RING},
    {"all_gather", CONTEXT_ALL_GATHER},
    {NULL, 0},
};

static const Meaning optimizers[] = {
    {"adam", OPTIMIZER_ADAMW},
    {"adamw", OPTIMIZER_ADAMW},
    {"sgd", OPTIMIZER_SGD},
    {"distributed_fused_adam", OPTIMIZER_ADAMW},
    {"fused_adam", OPTIMIZER_ADAMW},
    {"mcore_distributed_optim", OPTIMIZER_ADAMW},
    {NULL, 0},
};

/* Names of the same thing, oldest first: the last that the file has counts. */
static gboolean read_uint(const Reader *reader, const char *const *names, guint *out,
                          GError **error)
{
    for (guint i = 0; names[i] != NULL; i++)
        if (!reader_uint(reader, names[i], out, error))
            return FALSE;
    return TRUE;
}

static gboolean read_axes(const Reader *reader, GError **error)
{
    static const char *const tp[] = {"tensor_model_parallel_size", NULL};
    static const char *const pp[] = {"pipeline_model_parallel_size", NULL};
    static const char *const cp[] = {"context_parallel_size", NULL};
    guint *axis = reader->config->axis;
    guint instances = 1;

    axis[AXIS_TP] = axis[AXIS_PP] = axis[AXIS_CP] = 1;
    if (!read_uint(reader, tp, &axis[AXIS_TP], error) ||
        !read_uint(reader, pp, &axis[AXIS_PP], error) ||
        !read_uint(reader, cp, &axis[AXIS_CP], error) ||
        !reader_uint(reader, "num_distributed_optimizer_instances", &instances, error))
        return FALSE;
    axis[AXIS_DP_REPLICATE] = instances;
    return axis[AXIS_CP] == 1 ||
           (reader->config->context = CONTEXT_RING,
            reader_word(reader, "cp_comm_type", contexts, &reader->config->context, error));
}

/* Whether any of the names says "true". */
static gboolean any_flag(const Reader *reader, const char *const *names, gboolean *out,
                         GError **error)
{
    *out = FALSE;
    for (guint i = 0; names[i] != NULL; i++) {
        gboolean flag;

        if (!reader_flag(reader, names[i], &flag, error))
            return FALSE;
        *out |= flag;
    }
    return TRUE;
}

static gboolean names_distributed(const Reader *reader)
{
    const FlatEntry *name = flat_find(reader->flat, "optim.name");

    return name != NULL && g_strstr_len(name->value, -1, "distrib") != NULL;
}

static gboolean read_strategy(const Reader *reader, GError **error)
{
    static const char *const distributed[] = {"use_distributed_optimizer", NULL};
    static const char *const fsdp[] = {"use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2",
                                       NULL};
    Config *config = reader->config;
    gboolean optimizer_sharded, fully;

    if (!any_flag(reader, distributed, &optimizer_sharded, error) ||
        !any_flag(reader, fsdp, &fully, error))
        return FALSE;
    config->strategy = optimizer_sharded || names_distributed(reader) ? STRATEGY_SHARD_OPTIMIZER
                                                                      : STRATEGY_NO_SHARD;
    if (fully)
        config->strategy = STRATEGY_FULL_SHARD;
    return reader_word(reader, "zero_stage", reader_zero_stages, &config->strategy, error) &&
           reader_word(reader, "data_parallel_sharding_strategy", sharding, &config->strategy,
                       error);
}

/* Whole layers, of each chunk: by block the first so many are recomputed, the others not at all;
 * uniform recomputes all, in groups of which the first one's input is kept. */
static gboolean read_recompute_layers(const Reader *reader, const char *prefix, GError **error)
{
    enum { UNIFORM, BLOCK };
    static const Meaning methods[] = {{"uniform", UNIFORM}, {"block", BLOCK}, {NULL, 0}};
    g_autofree char *method_name = g_strconcat(prefix, "_method", NULL);
    g_autofree char *layers_name = g_strconcat(prefix, "_num_layers", NULL);
    gint method = UNIFORM;
    guint layers = 1;

    if (!reader_word(reader, method_name, methods, &method, error) ||
        !reader_uint(reader, layers_name, &layers, error))
        return FALSE;
    if (method == BLOCK && reader->config->recompute == RECOMPUTE_FULL && layers == 0)
        reader->config->recompute = RECOMPUTE_NONE;
    else if (method == BLOCK && reader->config->recompute == RECOMPUTE_FULL)
        reader->config->recompute_layers = layers;
    else if (method == UNIFORM)
        reader_note(reader, layers_name, "1", "priced with the input of every block kept");
    return TRUE;
}

static gboolean read_recompute(const Reader *reader, GError **error)
{
    static const char *const attention[] = {"recompute_activations", NULL};
    static const char *const blocks[] = {"checkpoint_activations",
                                         "deepspeed_activation_checkpointing", NULL};
    Config *config = reader->config;
    gboolean selective, full;

    if (!any_flag(reader, attention, &selective, error) || !any_flag(reader, blocks, &full, error))
        return FALSE;
    config->recompute = full ? RECOMPUTE_FULL : selective ? RECOMPUTE_SELECTIVE : RECOMPUTE_NONE;
    return reader_word(reader, "activations_checkpoint_granularity", granularities,
                       &config->recompute, error) &&
           reader_word(reader, "recompute_granularity", granularities, &config->recompute, error) &&
           read_recompute_layers(reader, "recompute", error) &&
           read_recompute_layers(reader, "activations_checkpoint", error);
}

/* Appends @length characters as often as "*N" at *@at says, else once. */
static gboolean append_times(GString *text, const char *what, gsize length, const char **at)
{
    enum { MOST = 1 << 16 };
    char *end = (char *)*at;
    const guint64 times = **at == '*' ? g_ascii_strtoull(*at + 1, &end, 10) : 1;

    if ((**at == '*' && !g_ascii_isdigit((*at)[1])) || times * length > MOST - MIN(MOST, text->len))
        return FALSE;
    for (guint64 i = 0; i < times; i++)
        g_string_append_len(text, what, (gssize)length);
    *at = end;
    return TRUE;
}

/* "t*2" is "tt" and "(t|)*2" is "t|t|", in @groups or of single characters; NULL: it is something
 * else.  The caller's. */
static char *unroll(const char *layout, gboolean groups)
{
    g_autoptr(GString) text = g_string_new(NULL);

    while (*layout != '\0') {
        const gboolean group = groups && *layout == '(';
        const char *what = layout + (group ? 1 : 0), *end = group ? strchr(what, ')') : what + 1;
        const char *next = end == NULL ? NULL : end + (group ? 1 : 0);

        if (next == NULL)
            return NULL;
        if (groups && !group) { /* its repetition is the second pass's */
            g_string_append_c(text, *layout++);
            continue;
        }
        if (!append_times(text, what, (gsize)(end - what), &next))
            return NULL;
        layout = next;
    }
    return g_string_free(g_steal_pointer(&text), FALSE);
}

/* --pipeline-model-parallel-layout "Et*2|(t*3|)*2t*2L": blocks (t) of each chunk, E and L the
 * embedding and the loss; groups are unrolled first, and not nested; commas say nothing. */
static gboolean read_chunks(const Reader *reader, GError **error)
{
    Config *config = reader->config;
    const FlatEntry *layout = flat_find(reader->flat, "pipeline_model_parallel_layout");
    guint chunk = 0;

    if (layout == NULL)
        return TRUE;
    g_autofree char *groups = unroll(layout->value, TRUE);
    g_autofree char *all = groups == NULL ? NULL : unroll(groups, FALSE);
    if (all == NULL || strspn(all, "EtL|,") != strlen(all)) {
        reader_note(reader, "pipeline_model_parallel_layout", NULL, "priced with even stages");
        return TRUE;
    }
    for (const char *at = all; *at != '\0'; at++) {
        chunk += *at == '|';
        if (chunk == MAX_CHUNKS)
            return flat_refuse(reader->flat, layout, "at most 256 chunks", error);
        config->chunk_layers[chunk] = (guint16)(config->chunk_layers[chunk] + (*at == 't'));
    }
    config->num_chunks = chunk + 1;
    config->virtual_stages = MAX(1, config->num_chunks / config->axis[AXIS_PP]);
    return TRUE;
}

/* --num-layers-per-virtual-pipeline-stage says it by the layers of a chunk. */
static gboolean read_virtual_stages(const Reader *reader, GError **error)
{
    static const char *const names[] = {"virtual_pipeline_model_parallel_size",
                                        "num_virtual_stages_per_pipeline_rank", NULL};
    Config *config = reader->config;
    guint layers = 0, per_chunk = 0;

    if (config->axis[AXIS_PP] == 1)
        return TRUE;
    if (!read_uint(reader, names, &config->virtual_stages, error) ||
        !reader_uint(reader, "num_layers", &layers, error) ||
        !reader_uint(reader, "num_layers_per_virtual_pipeline_stage", &per_chunk, error))
        return FALSE;
    if (per_chunk > 0 && layers == 0)
        return flat_refuse(reader->flat,
                           flat_find(reader->flat, "num_layers_per_virtual_pipeline_stage"),
                           "beside num_layers, which says how many chunks that makes", error);
    if (per_chunk > 0)
        config->virtual_stages = MAX(1, layers / (per_chunk * config->axis[AXIS_PP]));
    if (!read_chunks(reader, error))
        return FALSE;
    config->schedule = config->virtual_stages > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B;
    return TRUE;
}

static gboolean read_gpus(const Reader *reader, GError **error)
{
    static const char *const nodes[] = {"num_nodes", "nnodes", NULL};
    static const char *const each[] = {"devices", "nproc_per_node", NULL};
    guint num_nodes = 0, gpus_per_node = 0;

    if (!read_uint(reader, nodes, &num_nodes, error) ||
        !read_uint(reader, each, &gpus_per_node, error))
        return FALSE;
    reader->config->gpus = num_nodes * gpus_per_node; /* 0: one of them is not said */
    return TRUE;
}

static gboolean read_batch(const Reader *reader, GError **error)
{
    static const char *const lengths[] = {"encoder_seq_length", "seq_length", NULL};
    Config *config = reader->config;

    return reader_uint(reader, "micro_batch_size", &config->micro_batch, error) &&
           reader_uint(reader, "global_batch_size", &config->global_batch, error) &&
           read_uint(reader, lengths, &config->seq_len, error);
}

/* Something else than "false" or "no". */
static gboolean says(const Reader *reader, const char *name)
{
    const FlatEntry *entry = flat_find(reader->flat, name);

    return entry != NULL && g_ascii_strcasecmp(entry->value, "false") != 0 &&
           g_ascii_strcasecmp(entry->value, "no") != 0;
}

/* Parameters and master (6 bytes and 12 / d) as recipe megatron has them.  Gradients are fp32
 * beside bf16 unless it says otherwise, and half as wide beside fp16 unless it says fp32. */
static const Recipe *mixed_recipe(const Reader *reader)
{
    const gboolean fp16 = says(reader, "fp16");
    const gboolean fp32 =
        says(reader, "accumulate_allreduce_grads_in_fp32") || says(reader, "grad_reduce_in_fp32");
    const gboolean half = says(reader, "grad_reduce_in_bf16") ||
                          (flat_find(reader->flat, "grad_reduce_in_fp32") != NULL && !fp32);
    const Recipe *recipe = (fp16 ? fp32 : !half) ? &recipe_megatron : &recipe_zero;

    return fp16 ? recipe_with_precision(recipe, DTYPE_FP16) : recipe;
}

gboolean config_read_megatron(const Reader *reader, GError **error)
{
    static const char *const halves[] = {"bf16", "fp16", NULL};
    Config *config = reader->config;
    const FlatEntry *precision = flat_find(reader->flat, "trainer.precision");
    gboolean half, sequence;

    if (!read_axes(reader, error) || !read_strategy(reader, error) ||
        !reader_experts(reader, "expert_model_parallel_size", error) ||
        !read_recompute(reader, error) || !read_virtual_stages(reader, error) ||
        !read_gpus(reader, error) || !read_batch(reader, error) ||
        !any_flag(reader, halves, &half, error) ||
        !reader_flag(reader, "sequence_parallel", &sequence, error) ||
        !reader_gather_fp8(reader, "fp8_param_gather", error) ||
        !reader_word(reader, "optimizer", optimizers, &config->optimizer, error))
        return FALSE;
    config->sequence_parallel = sequence;
    half |= precision != NULL && g_strstr_len(precision->value, -1, "16") != NULL;
    config->recipe = half ? mixed_recipe(reader) : NULL;
    if (says(reader, "fp8") || says(reader, "fp8_format"))
        config->recipe = recipe_with_precision(mixed_recipe(reader), DTYPE_FP8);
    reader_note(reader, "cpu_offloading", "false", "activations: priced without offload");
    reader_note(reader, "expert_tensor_parallel_size", "1", "priced with whole experts on a rank");
    if (!reader_offload_all(reader, "optimizer_cpu_offload", error))
        return FALSE;
    config->offload.parameters = TIER_DEVICE; /* of the optimiser alone */
    if (config->offload.optimizer != TIER_DEVICE)
        reader_note(reader, "optimizer_offload_fraction", "1.0",
                    "priced as with 1.0, all of the optimiser's state");
    return TRUE;
}
