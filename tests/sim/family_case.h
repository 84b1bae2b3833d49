/* One small model of each family whose blocks differ from Llama's and GPT-2's. */
#pragma once

#include "tests/sim/spec_case.h"

#define FAMILY_SIZES                                                                               \
    "\"vocab_size\": 256, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "                  \
    "\"hidden_size\": 32, \"intermediate_size\": 48, \"max_position_embeddings\": 4096, "
#define GPT_SIZES "\"vocab_size\": 256, \"n_layer\": 3, \"n_head\": 4, \"hidden_size\": 32, "

/* By hand, of a block and token, for the sizes above: values and statistics (fp32) that forward
 * leaves for backward beside the residual stream.  C 32, H 4, D 8, A 32, K kv heads x 8, F 48 (or
 * 128 = 4 C): q, k, v, o, then mid, gate and up; lse H. */
static const struct {
    const char *name, *config;
    guint values, statistics;
} families[] = {
    /* q and k before their norms too; rstd of each head and kv head */
    {"qwen3",
     "{\"model_type\": \"qwen3\", " FAMILY_SIZES "\"num_key_value_heads\": 2, \"head_dim\": 8}",
     32 + 16 + 16 + 32 + 32 + 2 * 48 + 32 + 16, 4 + 2 + 4 + 2},
    /* and what attention and MLP give, with its rstd */
    {"gemma2",
     "{\"model_type\": \"gemma2\", " FAMILY_SIZES "\"num_key_value_heads\": 2, \"head_dim\": 8}",
     32 + 16 + 16 + 32 + 32 + 2 * 48 + 2 * 32, 4 + 2 + 2},
    {"gemma3",
     "{\"model_type\": \"gemma3_text\", " FAMILY_SIZES
     "\"num_key_value_heads\": 2, \"head_dim\": 8}",
     32 + 16 + 16 + 32 + 32 + 2 * 48 + 2 * 32 + 32 + 16, 4 + 2 + 2 + 4 + 2},
    /* LayerNorm: mean and rstd */
    {"olmo", "{\"model_type\": \"olmo\", " FAMILY_SIZES "\"tie_word_embeddings\": false}",
     4 * 32 + 32 + 2 * 48, 4 + 2 * 2},
    /* one norm for all queries, one for all keys; none before attention and MLP */
    {"olmo2", "{\"model_type\": \"olmo2\", " FAMILY_SIZES "\"num_key_value_heads\": 2}",
     32 + 16 + 16 + 32 + 32 + 2 * 48 + 2 * 32 + 32 + 16, 4 + 2 + 2},
    /* parallel: no mid; an MLP of two matrices: no gate */
    {"gpt_neox", "{\"model_type\": \"gpt_neox\", " FAMILY_SIZES "\"hidden_act\": \"gelu\"}",
     4 * 32 + 48, 4 + 2 * 2},
    /* one norm for both halves, one kv head */
    {"falcon-7b", "{\"model_type\": \"falcon\", " GPT_SIZES "\"multi_query\": true}",
     2 * 32 + 2 * 8 + 128, 4 + 2},
    {"falcon-40b",
     "{\"model_type\": \"falcon\", " GPT_SIZES
     "\"new_decoder_architecture\": true, \"num_kv_heads\": 2}",
     2 * 32 + 2 * 16 + 128, 4 + 2 * 2},
    {"bloom", "{\"model_type\": \"bloom\", " GPT_SIZES "\"tie_word_embeddings\": true}",
     4 * 32 + 32 + 128, 4 + 2 * 2},
    {"mpt",
     "{\"model_type\": \"mpt\", \"vocab_size\": 256, \"n_layers\": 3, \"n_heads\": 4, "
     "\"d_model\": 32, \"expansion_ratio\": 4}",
     4 * 32 + 32 + 128, 4 + 2 * 2},
    {"starcoder2", "{\"model_type\": \"starcoder2\", " FAMILY_SIZES "\"num_key_value_heads\": 2}",
     2 * 32 + 2 * 16 + 32 + 48, 4 + 2 * 2},
    {"cohere", "{\"model_type\": \"cohere\", " FAMILY_SIZES "\"num_key_value_heads\": 2}",
     2 * 32 + 2 * 16 + 2 * 48, 4 + 2},
};

static inline Model *family_model(guint i)
{
    g_autoptr(GError) error = NULL;
    Model *model = model_parse(families[i].config, families[i].name, families[i].name, &error);

    ck_assert_msg(model != NULL, "%s", error == NULL ? "" : error->message);
    ck_assert_msg(model_check_plannable(model, &error), "%s", error == NULL ? "" : error->message);
    return model;
}
