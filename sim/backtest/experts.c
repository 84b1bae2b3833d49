#include "sim/backtest/experts.h"

#include <string.h>

/* Names as letters and digits; those that contain others come first. */
typedef struct {
    const char *word, *type; /* of the name; model_type of a block as that model's */
    guint experts, top_k, ffn, shared_ffn;
    guint dense, dense_ffn; /* first blocks, that have none, and their MLP */
    guint heads, kv_heads, head_dim;
    guint q_rank, kv_rank; /* latent attention; parts of a head are as DeepSeek has them */
} ExpertShape;

/* DeepSeek-V3: arXiv 2412.19437, sec. 4.2.  Kimi K2: arXiv 2507.20534, table 2.  Qwen3: arXiv
 * 2505.09388, table 2.  gpt-oss: arXiv 2508.10925, table 1.  Mixtral: arXiv 2401.04088, table 1,
 * and the configuration of 8x22B.  Grok-1: github.com/xai-org/grok-1, run.py. */
static const ExpertShape shapes[] = {
    {"deepseekv3", "deepseek_v3", 256, 8, 2048, 2048, .dense = 3, .dense_ffn = 18432, .heads = 128,
     .q_rank = 1536, .kv_rank = 512},
    {"kimik2", "kimi_k2", 384, 8, 2048, 2048, .dense = 1, .dense_ffn = 18432, .heads = 64,
     .q_rank = 1536, .kv_rank = 512},
    {"qwen330b", "qwen3_moe", 128, 8, 768, .heads = 32, .kv_heads = 4, .head_dim = 128},
    {"qwen3235b", "qwen3_moe", 128, 8, 1536, .heads = 64, .kv_heads = 4, .head_dim = 128},
    {"gptoss120b", "gpt_oss", 128, 4, 2880, .heads = 64, .kv_heads = 8, .head_dim = 64},
    {"gptoss20b", "gpt_oss", 32, 4, 2880, .heads = 64, .kv_heads = 8, .head_dim = 64},
    {"mixtral8x22b", "mixtral", 8, 2, 16384, .heads = 48, .kv_heads = 8, .head_dim = 128},
    {"mixtral8x7b", "mixtral", 8, 2, 14336, .heads = 32, .kv_heads = 8, .head_dim = 128},
    {"grok1", "mixtral", 8, 2, 32768, .heads = 48, .kv_heads = 8, .head_dim = 128},
};

char *experts_plain_name(const char *name)
{
    GString *plain = g_string_new(NULL);

    for (const char *at = name; *at != '\0'; at++)
        if (g_ascii_isalnum(*at))
            g_string_append_c(plain, g_ascii_tolower(*at));
    return g_string_free(plain, FALSE);
}

static const ExpertShape *find_shape(const char *name)
{
    g_autofree char *plain = experts_plain_name(name);

    for (guint i = 0; i < G_N_ELEMENTS(shapes); i++)
        if (strstr(plain, shapes[i].word) != NULL)
            return &shapes[i];
    return NULL;
}

/* Families read the keys that they know. */
char *experts_config_text(const Record *record, guint vocab)
{
    const ExpertShape *shape = find_shape(record->model);

    if (shape == NULL)
        return NULL;
    const gboolean local =
        strcmp(shape->type, "mixtral") == 0 || strcmp(shape->type, "gpt_oss") == 0;
    GString *text = g_string_new(NULL);
    g_string_append_printf(
        text,
        "{\"model_type\": \"%s\", \"num_hidden_layers\": %u, \"hidden_size\": %u, "
        "\"vocab_size\": %u, \"max_position_embeddings\": %u, \"tie_word_embeddings\": false, "
        "\"hidden_act\": \"silu\", \"num_attention_heads\": %u, \"intermediate_size\": %u, ",
        shape->type, record->layers, record->hidden, vocab, record->seq_len, shape->heads,
        local || shape->dense_ffn == 0 ? shape->ffn : shape->dense_ffn);
    g_string_append_printf(
        text, "\"%s\": %u, \"num_experts_per_tok\": %u, \"moe_intermediate_size\": %u, ",
        local                 ? "num_local_experts"
        : shape->kv_rank != 0 ? "n_routed_experts"
                              : "num_experts",
        shape->experts, shape->top_k, shape->ffn);
    if (shape->kv_rank != 0)
        g_string_append_printf(
            text,
            "\"n_shared_experts\": %u, \"first_k_dense_replace\": %u, \"q_lora_rank\": %u, "
            "\"kv_lora_rank\": %u, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, "
            "\"v_head_dim\": 128}",
            shape->shared_ffn / shape->ffn, shape->dense, shape->q_rank, shape->kv_rank);
    else
        g_string_append_printf(text, "\"num_key_value_heads\": %u, \"head_dim\": %u}",
                               shape->kv_heads, shape->head_dim);
    return g_string_free(text, FALSE);
}
