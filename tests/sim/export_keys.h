/* Reading back what sim/export writes, and the keys that the frameworks know.  The keys and their
 * types were taken by hand from public configurations; each list says from which. */
#pragma once

#include "tests/suite.h"

#include <glib.h>
#include <json-glib/json-glib.h>
#include <string.h>

/* ---- text -> "path" => value as written ---- */

typedef GHashTable Settings;

static inline void settings_add(Settings *settings, const char *section, const char *key,
                                const char *value)
{
    char *path = section[0] == '\0' ? g_strdup(key) : g_strdup_printf("%s.%s", section, key);

    ck_assert_msg(g_hash_table_insert(settings, path, g_strdup(value)), "%s: written twice", path);
}

static inline void read_toml(const char *line, char **section, Settings *settings)
{
    g_auto(GStrv) part = g_strsplit(line, " = ", 2);
    const gsize length = strlen(line);

    if (line[0] == '[') {
        ck_assert_msg(line[length - 1] == ']', "%s", line);
        g_free(*section);
        *section = g_strndup(line + 1, length - 2);
        return;
    }
    ck_assert_msg(g_strv_length(part) == 2 && (*section)[0] != '\0', "%s", line);
    settings_add(settings, *section, part[0], part[1]);
}

static inline void read_yaml(const char *line, char **section, Settings *settings)
{
    const gboolean nested = g_str_has_prefix(line, "  ");
    g_auto(GStrv) part = g_strsplit(nested ? line + 2 : line, ": ", 2);

    if (g_strv_length(part) == 1) {
        ck_assert_msg(!nested && g_str_has_suffix(line, ":"), "%s", line);
        g_free(*section);
        *section = g_strndup(line, strlen(line) - 1);
        return;
    }
    ck_assert_msg(part[0][0] != ' ' && (!nested || (*section)[0] != '\0'), "%s", line);
    settings_add(settings, nested ? *section : "", part[0], part[1]);
}

static inline void read_arguments(const char *line, char **section, Settings *settings)
{
    g_auto(GStrv) part = g_strsplit(line, " ", 3);

    ck_assert_msg(g_str_has_prefix(line, "--") && g_strv_length(part) <= 2, "%s", line);
    settings_add(settings, *section, part[0], part[1] == NULL ? "" : part[1]);
}

static inline void read_json(JsonObject *object, const char *section, Settings *settings)
{
    g_autoptr(GList) names = json_object_get_members(object);

    for (const GList *name = names; name != NULL; name = name->next) {
        JsonNode *node = json_object_get_member(object, name->data);

        if (JSON_NODE_HOLDS_OBJECT(node)) {
            g_autofree char *path = section[0] == '\0'
                                        ? g_strdup(name->data)
                                        : g_strdup_printf("%s.%s", section, (char *)name->data);
            read_json(json_node_get_object(node), path, settings);
            continue;
        }
        g_autofree char *value = json_to_string(node, FALSE);
        settings_add(settings, section, name->data, value);
    }
}

static inline Settings *settings_read(const char *framework, const char *text)
{
    Settings *settings = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    g_autofree char *section = g_strdup("");
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);

    ck_assert(g_str_has_suffix(text, "\n"));
    if (strcmp(framework, "deepspeed") == 0) {
        g_autoptr(JsonNode) root = json_from_string(text, NULL);

        ck_assert_msg(root != NULL, "not JSON: %s", text);
        read_json(json_node_get_object(root), "", settings);
        return settings;
    }
    for (guint i = 0; lines[i] != NULL; i++) {
        if (lines[i][0] == '#' || lines[i][0] == '\0')
            continue;
        if (strcmp(framework, "torchtitan") == 0)
            read_toml(lines[i], &section, settings);
        else if (strcmp(framework, "accelerate") == 0)
            read_yaml(lines[i], &section, settings);
        else
            read_arguments(lines[i], &section, settings);
    }
    return settings;
}

/* ---- types ---- */

typedef enum {
    IS_FLAG,
    IS_INTEGER,
    IS_NUMBER,
    IS_BOOLEAN,
    IS_STRING,
    IS_NUMBER_OR_AUTO,
    IS_PATTERN, /* a number, or a Python expression of lists of numbers */
    IS_LIST,    /* of strings, TOML */
    IS_LISTS    /* of such lists */
} KeyType;

typedef struct {
    const char *key;
    KeyType type;
} Key;

static inline gboolean is_number(const char *text)
{
    char *end = NULL;

    (void)g_ascii_strtod(text, &end);
    return text[0] != '\0' && *end == '\0';
}

static inline gboolean is_boolean(const char *text)
{
    return strcmp(text, "true") == 0 || strcmp(text, "false") == 0;
}

/* Quoted, or bare where the format lets it and does not read something else: YAML's no is false. */
static inline gboolean is_string(const char *framework, const char *text)
{
    static const char *const words[] = {"yes", "no", "on", "off", "null", "~", NULL};
    const char quote = strcmp(framework, "accelerate") == 0 ? '\'' : '"';
    const gsize length = strlen(text);

    if (length >= 2 && text[0] == quote && text[length - 1] == quote)
        return TRUE;
    if (strcmp(framework, "torchtitan") == 0 || strcmp(framework, "deepspeed") == 0)
        return FALSE;
    g_autofree char *lower = g_ascii_strdown(text, -1);
    return length > 0 && !is_number(text) && !is_boolean(lower) && !g_strv_contains(words, lower) &&
           strpbrk(text, " #:'\"[]{}") == NULL;
}

static inline gboolean is_lists(const char *text)
{
    return g_regex_match_simple("^\\[(\\[\"[^\"]+\"(, \"[^\"]+\")*\\](, (?=\\[))?)+\\]$", text, 0,
                                0);
}

static inline gboolean has_type(const char *framework, const char *text, KeyType type)
{
    switch (type) {
    case IS_FLAG:
        return text[0] == '\0';
    case IS_INTEGER:
        return text[0] != '\0' && strspn(text, "0123456789") == strlen(text);
    case IS_NUMBER:
        return is_number(text);
    case IS_BOOLEAN:
        return is_boolean(text);
    case IS_STRING:
        return is_string(framework, text);
    case IS_NUMBER_OR_AUTO:
        return is_number(text) || strcmp(text, "\"auto\"") == 0;
    case IS_PATTERN:
        return text[0] != '\0' && strspn(text, "0123456789[]()+*,") == strlen(text);
    case IS_LIST:
        return g_regex_match_simple("^\\[\"[^\"]+\"(, \"[^\"]+\")*\\]$", text, 0, 0);
    case IS_LISTS:
        return is_lists(text);
    }
    return FALSE;
}

/* ---- known keys ---- */

static const Key torchtitan_keys[] = {
    /* from torchtitan's llama3_8b and llama3_70b train configs */
    {"job.description", IS_STRING},
    {"model.name", IS_STRING},
    {"model.flavor", IS_STRING},
    {"optimizer.name", IS_STRING},
    {"training.enable_cpu_offload", IS_BOOLEAN},
    {"training.local_batch_size", IS_INTEGER},
    {"training.seq_len", IS_INTEGER},
    {"training.max_norm", IS_NUMBER},
    {"training.mixed_precision_reduce", IS_STRING},
    {"parallelism.data_parallel_replicate_degree", IS_INTEGER},
    {"parallelism.data_parallel_shard_degree", IS_INTEGER},
    {"parallelism.tensor_parallel_degree", IS_INTEGER},
    {"parallelism.pipeline_parallel_degree", IS_INTEGER},
    {"parallelism.context_parallel_degree", IS_INTEGER},
    {"activation_checkpoint.mode", IS_STRING},
    /* from torchtitan v0.2.2's job_config.py */
    {"model.converters", IS_LIST},
    {"training.global_batch_size", IS_INTEGER},
    {"training.mixed_precision_param", IS_STRING},
    {"parallelism.fsdp_reshard_after_forward", IS_STRING},
    {"parallelism.module_fqns_per_model_part", IS_LISTS},
    {"parallelism.pipeline_parallel_first_stage_less_layers", IS_INTEGER},
    {"parallelism.pipeline_parallel_last_stage_less_layers", IS_INTEGER},
    {"parallelism.pipeline_parallel_layers_per_stage", IS_INTEGER},
    {"parallelism.pipeline_parallel_schedule", IS_STRING},
    {"parallelism.pipeline_parallel_microbatch_size", IS_INTEGER},
    {"parallelism.context_parallel_rotate_method", IS_STRING},
    {"parallelism.expert_parallel_degree", IS_INTEGER},
    {"parallelism.expert_tensor_parallel_degree", IS_INTEGER},
    {"quantize.linear.float8.enable_fsdp_float8_all_gather", IS_BOOLEAN},
    {"quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp", IS_BOOLEAN},
    {"quantize.linear.float8.filter_fqns", IS_LIST},
    {"quantize.grouped_mm.float8.fqns", IS_LIST},
    {NULL, IS_FLAG},
};

static const Key megatron_keys[] = {
    /* from Megatron-LM's train_llama3_8b_h100_fp8.sh */
    {"--num-layers", IS_INTEGER},
    {"--hidden-size", IS_INTEGER},
    {"--ffn-hidden-size", IS_INTEGER},
    {"--num-attention-heads", IS_INTEGER},
    {"--group-query-attention", IS_FLAG},
    {"--num-query-groups", IS_INTEGER},
    {"--kv-channels", IS_INTEGER},
    {"--seq-length", IS_INTEGER},
    {"--max-position-embeddings", IS_INTEGER},
    {"--position-embedding-type", IS_STRING},
    {"--rotary-base", IS_INTEGER},
    {"--rotary-percent", IS_NUMBER},
    {"--attention-dropout", IS_NUMBER},
    {"--hidden-dropout", IS_NUMBER},
    {"--swiglu", IS_FLAG},
    {"--init-method-std", IS_NUMBER},
    {"--untie-embeddings-and-output-weights", IS_FLAG},
    {"--disable-bias-linear", IS_FLAG},
    {"--micro-batch-size", IS_INTEGER},
    {"--global-batch-size", IS_INTEGER},
    {"--clip-grad", IS_NUMBER},
    {"--bf16", IS_FLAG},
    {"--fp16", IS_FLAG},
    {"--accumulate-allreduce-grads-in-fp32", IS_FLAG},
    {"--grad-reduce-in-bf16", IS_FLAG},
    {"--vocab-size", IS_INTEGER},
    {"--tensor-model-parallel-size", IS_INTEGER},
    {"--context-parallel-size", IS_INTEGER},
    {"--use-distributed-optimizer", IS_FLAG},
    {"--sequence-parallel", IS_FLAG},
    {"--overlap-grad-reduce", IS_FLAG},
    {"--overlap-param-gather", IS_FLAG},
    /* from Megatron-LM's train_llama3_8b_fsdp_h100_fp8.sh */
    {"--normalization", IS_STRING},
    {"--use-megatron-fsdp", IS_FLAG},
    {"--data-parallel-sharding-strategy", IS_STRING},
    {"--no-gradient-accumulation-fusion", IS_FLAG},
    {"--ckpt-format", IS_STRING},
    {"--num-distributed-optimizer-instances", IS_INTEGER},
    {"--fp8-format", IS_STRING},
    {"--fp8-param-gather", IS_FLAG},
    {"--outer-dp-sharding-strategy", IS_STRING},
    /* from Megatron-LM's sbatch_mfsdp_deepseek_v3.sh */
    {"--norm-epsilon", IS_NUMBER},
    {"--recompute-granularity", IS_STRING},
    {"--expert-model-parallel-size", IS_INTEGER},
    {"--expert-tensor-parallel-size", IS_INTEGER},
    {"--num-experts", IS_INTEGER},
    {"--moe-layer-freq", IS_PATTERN},
    {"--moe-ffn-hidden-size", IS_INTEGER},
    {"--moe-shared-expert-intermediate-size", IS_INTEGER},
    {"--moe-router-load-balancing-type", IS_STRING},
    {"--moe-router-topk", IS_INTEGER},
    {"--moe-token-dispatcher-type", IS_STRING},
    {"--moe-router-pre-softmax", IS_FLAG},
    {"--moe-grouped-gemm", IS_FLAG},
    {"--moe-router-group-topk", IS_INTEGER},
    {"--moe-router-num-groups", IS_INTEGER},
    {"--moe-router-topk-scaling-factor", IS_NUMBER},
    {"--moe-router-score-function", IS_STRING},
    {"--moe-router-enable-expert-bias", IS_FLAG},
    {"--multi-latent-attention", IS_FLAG},
    {"--qk-layernorm", IS_FLAG},
    {"--q-lora-rank", IS_INTEGER},
    {"--kv-lora-rank", IS_INTEGER},
    {"--qk-head-dim", IS_INTEGER},
    {"--qk-pos-emb-head-dim", IS_INTEGER},
    {"--v-head-dim", IS_INTEGER},
    {"--rotary-scaling-factor", IS_NUMBER},
    {"--mscale", IS_NUMBER},
    {"--mscale-all-dim", IS_NUMBER},
    /* from the argument dump of bigscience's meg_gpt2_perf_n16 log */
    {"--pipeline-model-parallel-size", IS_INTEGER},
    {"--make-vocab-size-divisible-by", IS_INTEGER},
    {"--optimizer", IS_STRING},
    {"--sgd-momentum", IS_NUMBER},
    /* from Megatron-LM's arguments.py, and transformer_config.py, of which it makes options */
    {"--pipeline-model-parallel-layout", IS_STRING},
    {"--num-virtual-stages-per-pipeline-rank", IS_INTEGER},
    {"--cp-comm-type", IS_STRING},
    {"--recompute-modules", IS_STRING},
    {"--recompute-method", IS_STRING},
    {"--recompute-num-layers", IS_INTEGER},
    {"--rope-type", IS_STRING},
    {"--no-rope-fusion", IS_FLAG},
    {"--rotary-interleaved", IS_FLAG},
    {"--window-size", IS_STRING},
    {"--fp8-recipe", IS_STRING},
    {"--optimizer-cpu-offload", IS_FLAG},
    {"--use-precision-aware-optimizer", IS_FLAG},
    {"--main-grads-dtype", IS_STRING},
    {"--main-params-dtype", IS_STRING},
    {"--exp-avg-dtype", IS_STRING},
    {"--exp-avg-sq-dtype", IS_STRING},
    {"--use-rope-scaling", IS_FLAG},
    {"--rope-scaling-factor", IS_NUMBER},
    {"--add-qkv-bias", IS_FLAG},
    {"--moe-shared-expert-gate", IS_FLAG},
    {NULL, IS_FLAG},
};

static const Key deepspeed_keys[] = {
    /* from accelerate's zero_stage1, 2, 3 and ds_config_zero2, 3 */
    {"train_batch_size", IS_INTEGER},
    {"train_micro_batch_size_per_gpu", IS_INTEGER},
    {"gradient_accumulation_steps", IS_INTEGER},
    {"gradient_clipping", IS_NUMBER},
    {"bf16.enabled", IS_BOOLEAN},
    {"optimizer.type", IS_STRING},
    {"zero_optimization.offload_optimizer.device", IS_STRING},
    {"zero_optimization.offload_optimizer.nvme_path", IS_STRING},
    {"zero_optimization.offload_optimizer.pin_memory", IS_BOOLEAN},
    {"zero_optimization.offload_param.device", IS_STRING},
    {"zero_optimization.offload_param.nvme_path", IS_STRING},
    {"zero_optimization.offload_param.pin_memory", IS_BOOLEAN},
    {"optimizer.params.lr", IS_NUMBER_OR_AUTO},
    {"optimizer.params.weight_decay", IS_NUMBER_OR_AUTO},
    {"zero_optimization.stage", IS_INTEGER},
    {"zero_optimization.overlap_comm", IS_BOOLEAN},
    {"zero_optimization.contiguous_gradients", IS_BOOLEAN},
    {"zero_optimization.reduce_bucket_size", IS_INTEGER},
    {"zero_optimization.allgather_partitions", IS_BOOLEAN},
    {"zero_optimization.reduce_scatter", IS_BOOLEAN},
    {"zero_optimization.allgather_bucket_size", IS_INTEGER},
    {"zero_optimization.stage3_prefetch_bucket_size", IS_INTEGER},
    {"zero_optimization.stage3_param_persistence_threshold", IS_INTEGER},
    {"zero_optimization.stage3_max_live_parameters", IS_INTEGER},
    {"zero_optimization.stage3_max_reuse_distance", IS_INTEGER},
    /* from DeepSpeed's module_inject/auto_ep_config.py */
    {"expert_parallel.enabled", IS_BOOLEAN},
    {"expert_parallel.autoep_size", IS_INTEGER},
    {"expert_parallel.preset_model", IS_STRING},
    /* from DeepSpeed's runtime/constants.py, zero/config.py, activation_checkpointing/config.py */
    {"communication_data_type", IS_STRING},
    {"data_types.grad_accum_dtype", IS_STRING},
    {"zero_allow_untested_optimizer", IS_BOOLEAN},
    {"zero_optimization.mics_shard_size", IS_INTEGER},
    {"activation_checkpointing.partition_activations", IS_BOOLEAN},
    {NULL, IS_FLAG},
};

static const Key accelerate_keys[] = {
    /* from accelerate's latest_fsdp.yaml and fsdp2_tp_preparation_config.yaml */
    {"compute_environment", IS_STRING},
    {"debug", IS_BOOLEAN},
    {"distributed_type", IS_STRING},
    {"downcast_bf16", IS_STRING},
    {"machine_rank", IS_INTEGER},
    {"main_training_function", IS_STRING},
    {"mixed_precision", IS_STRING},
    {"num_machines", IS_INTEGER},
    {"num_processes", IS_INTEGER},
    {"rdzv_backend", IS_STRING},
    {"same_network", IS_BOOLEAN},
    {"use_cpu", IS_BOOLEAN},
    {"fsdp_config.fsdp_activation_checkpointing", IS_BOOLEAN},
    {"fsdp_config.fsdp_auto_wrap_policy", IS_STRING},
    {"fsdp_config.fsdp_backward_prefetch", IS_STRING},
    {"fsdp_config.fsdp_cpu_ram_efficient_loading", IS_BOOLEAN},
    {"fsdp_config.fsdp_forward_prefetch", IS_BOOLEAN},
    {"fsdp_config.fsdp_offload_params", IS_BOOLEAN},
    {"fsdp_config.fsdp_sharding_strategy", IS_STRING},
    {"fsdp_config.fsdp_state_dict_type", IS_STRING},
    {"fsdp_config.fsdp_sync_module_states", IS_BOOLEAN},
    {"fsdp_config.fsdp_transformer_layer_cls_to_wrap", IS_STRING},
    {"fsdp_config.fsdp_use_orig_params", IS_BOOLEAN},
    /* from the configuration in accelerate's issue 3474 */
    {"fsdp_config.fsdp_reshard_after_forward", IS_BOOLEAN},
    {"fsdp_config.fsdp_version", IS_INTEGER},
    /* from accelerate's fp8.yaml, commands/config/cluster.py, commands/launch.py */
    {"fp8_config.backend", IS_STRING},
    {"fp8_config.enable_fsdp_float8_all_gather", IS_BOOLEAN},
    {"fp8_config.pad_inner_dim", IS_BOOLEAN},
    /* from accelerate's tp_hsdp.yaml */
    {"parallelism_config.parallelism_config_cp_size", IS_INTEGER},
    {"parallelism_config.parallelism_config_dp_replicate_size", IS_INTEGER},
    {"parallelism_config.parallelism_config_dp_shard_size", IS_INTEGER},
    {"parallelism_config.parallelism_config_tp_size", IS_INTEGER},
    /* from accelerate's commands/config/cluster.py */
    {"parallelism_config.parallelism_config_cp_comm_strategy", IS_STRING},
    {NULL, IS_FLAG},
};

static const struct {
    const char *framework;
    const Key *keys;
} known_keys[] = {
    {"torchtitan", torchtitan_keys},
    {"megatron", megatron_keys},
    {"deepspeed", deepspeed_keys},
    {"accelerate", accelerate_keys},
};

static inline void check_keys(const char *framework, Settings *settings)
{
    GHashTableIter iter;
    gpointer name, value;
    const Key *keys = NULL;

    for (guint i = 0; i < G_N_ELEMENTS(known_keys); i++)
        if (strcmp(known_keys[i].framework, framework) == 0)
            keys = known_keys[i].keys;
    ck_assert_ptr_nonnull(keys);
    g_hash_table_iter_init(&iter, settings);
    while (g_hash_table_iter_next(&iter, &name, &value)) {
        const Key *key = keys;

        while (key->key != NULL && strcmp(key->key, name) != 0)
            key++;
        ck_assert_msg(key->key != NULL, "%s: unknown key %s", framework, (char *)name);
        ck_assert_msg(has_type(framework, value, key->type), "%s: %s = %s has the wrong type",
                      framework, key->key, (char *)value);
    }
}
