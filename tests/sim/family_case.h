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
    /* a head with a bias */
    {"gptj",
     "{\"model_type\": \"gptj\", " GPT_SIZES "\"n_positions\": 4096, \"rotary_dim\": 4, "
     "\"tie_word_embeddings\": false}",
     4 * 32 + 128, 4 + 2},
    {"phi", "{\"model_type\": \"phi\", " FAMILY_SIZES "\"tie_word_embeddings\": false}",
     4 * 32 + 48, 4 + 2},
    /* both sums in place of mid; an embedding of another width, with and without a final norm */
    {"opt-350m",
     "{\"model_type\": \"opt\", " FAMILY_SIZES "\"ffn_dim\": 48, \"word_embed_proj_dim\": 20, "
     "\"do_layer_norm_before\": false}",
     4 * 32 + 2 * 32 + 48, 4 + 2 * 2},
    {"opt, projected",
     "{\"model_type\": \"opt\", " FAMILY_SIZES "\"ffn_dim\": 48, \"word_embed_proj_dim\": 20, "
     "\"tie_word_embeddings\": false}",
     4 * 32 + 32 + 48, 4 + 2 * 2},
    {"opt, normed sums",
     "{\"model_type\": \"opt\", " FAMILY_SIZES "\"ffn_dim\": 48, \"do_layer_norm_before\": false}",
     4 * 32 + 2 * 32 + 48, 4 + 2 * 2},
    /* q and k before their norms, one a head: mean and rstd of each head and kv head */
    {"cohere_plus",
     "{\"model_type\": \"cohere\", " FAMILY_SIZES
     "\"num_key_value_heads\": 2, \"use_qk_norm\": true}",
     2 * 32 + 2 * 16 + 2 * 48 + 32 + 16, 4 + 2 + 2 * (4 + 2)},
};

/* With experts, or latent attention; all blocks with experts, or some. */
#define EXPERT_SIZES                                                                               \
    "\"vocab_size\": 256, \"num_hidden_layers\": 4, \"num_attention_heads\": 4, "                  \
    "\"hidden_size\": 32, \"intermediate_size\": 48, \"max_position_embeddings\": 4096, "          \
    "\"num_experts_per_tok\": 2, "
#define LATENT_SIZES                                                                               \
    "\"moe_intermediate_size\": 24, \"n_routed_experts\": 8, \"kv_lora_rank\": 16, "               \
    "\"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 4, \"v_head_dim\": 6"

static const struct {
    const char *name, *config;
} expert_cases[] = {
    {"mixtral", "{\"model_type\": \"mixtral\", " EXPERT_SIZES
                "\"num_key_value_heads\": 2, \"num_local_experts\": 4}"},
    {"qwen3_moe", "{\"model_type\": \"qwen3_moe\", " EXPERT_SIZES
                  "\"num_key_value_heads\": 2, \"head_dim\": 8, \"num_experts\": 8, "
                  "\"moe_intermediate_size\": 16}"},
    {"every second", "{\"model_type\": \"qwen3_moe\", " EXPERT_SIZES
                     "\"num_key_value_heads\": 2, \"head_dim\": 8, \"num_experts\": 4, "
                     "\"moe_intermediate_size\": 16, \"decoder_sparse_step\": 2}"},
    {"deepseek_v2", "{\"model_type\": \"deepseek_v2\", " EXPERT_SIZES LATENT_SIZES
                    ", \"q_lora_rank\": null, \"n_shared_experts\": 2, "
                    "\"first_k_dense_replace\": 0}"},
    {"deepseek_v3", "{\"model_type\": \"deepseek_v3\", " EXPERT_SIZES LATENT_SIZES
                    ", \"q_lora_rank\": 20, \"n_shared_experts\": 1, "
                    "\"first_k_dense_replace\": 1}"},
    {"latent alone", "{\"model_type\": \"deepseek_v3\", " EXPERT_SIZES LATENT_SIZES
                     ", \"q_lora_rank\": 20, \"n_shared_experts\": 1, "
                     "\"first_k_dense_replace\": 4}"},
    {"minimax_m2", "{\"model_type\": \"minimax_m2\", " EXPERT_SIZES
                   "\"num_key_value_heads\": 2, \"head_dim\": 8, \"rotary_dim\": 4, "
                   "\"num_local_experts\": 4}"},
    /* each query reads 5 keys of its sequence */
    {"deepseek_v32", "{\"model_type\": \"deepseek_v32\", " EXPERT_SIZES LATENT_SIZES
                     ", \"q_lora_rank\": 20, \"n_shared_experts\": 1, "
                     "\"first_k_dense_replace\": 1, \"index_n_heads\": 2, "
                     "\"index_head_dim\": 10, \"index_topk\": 5}"},
    {"dbrx", "{\"model_type\": \"dbrx\", \"vocab_size\": 256, \"n_layers\": 3, \"n_heads\": 4, "
             "\"d_model\": 32, \"max_seq_len\": 4096, \"attn_config\": {\"kv_n_heads\": 2}, "
             "\"ffn_config\": {\"ffn_hidden_size\": 40, \"moe_num_experts\": 4, \"moe_top_k\": 2, "
             "\"ffn_act_fn\": {\"name\": \"silu\"}}}"},
    /* shared ones with a gate of their own, in every second block */
    {"qwen2_moe", "{\"model_type\": \"qwen2_moe\", " EXPERT_SIZES
                  "\"num_key_value_heads\": 2, \"num_experts\": 4, \"decoder_sparse_step\": 2, "
                  "\"moe_intermediate_size\": 16, \"shared_expert_intermediate_size\": 40}"},
    /* sinks, and a bias of every matrix */
    {"gpt_oss", "{\"model_type\": \"gpt_oss\", " EXPERT_SIZES
                "\"num_key_value_heads\": 2, \"head_dim\": 8, \"num_local_experts\": 4}"},
};

static inline Model *plannable_model(const char *name, const char *config)
{
    g_autoptr(GError) error = NULL;
    Model *model = model_parse(config, name, name, &error);

    ck_assert_msg(model != NULL, "%s", error == NULL ? "" : error->message);
    ck_assert_msg(model_check_plannable(model, &error), "%s", error == NULL ? "" : error->message);
    return model;
}

static inline Model *family_model(guint i)
{
    return plannable_model(families[i].name, families[i].config);
}

static inline Model *expert_model(guint i)
{
    return plannable_model(expert_cases[i].name, expert_cases[i].config);
}

/* Blocks of up to @most_kinds shapes in any order: without attention or without MLP, of two widths;
 * heads that share keys and values are as many in all, or not. */
static inline Model *mixed_model(GRand *random, guint layers, guint most_kinds)
{
    const guint group = 1u << draw(random, 2);
    const gboolean alike = draw(random, 3) > 0;
    g_autoptr(GPtrArray) shapes = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GString) blocks = g_string_new(NULL);

    for (guint k = 0; k < most_kinds; k++) {
        const guint parts = draw(random, 3); /* attention alone, MLP alone, both */
        g_autofree char *attention = parts == 1
                                         ? g_strdup("\"no_op\": true")
                                         : g_strdup_printf("\"n_heads_in_group\": %u",
                                                           alike ? group : 1u << draw(random, 2));
        g_autofree char *mlp = parts == 0
                                   ? g_strdup("\"no_op\": true")
                                   : g_strdup_printf("\"ffn_mult\": %u", 2 + 8 * draw(random, 2));

        g_ptr_array_add(shapes,
                        g_strdup_printf("{\"attention\": {%s}, \"ffn\": {%s}}", attention, mlp));
    }
    for (guint i = 0; i < layers; i++)
        g_string_append_printf(blocks, "%s%s", i > 0 ? ", " : "",
                               (char *)shapes->pdata[draw(random, most_kinds - 1)]);
    g_autofree char *config = g_strdup_printf(
        "{\"model_type\": \"nemotron-nas\", \"vocab_size\": %u, \"hidden_size\": 48, "
        "\"num_hidden_layers\": %u, \"num_attention_heads\": 4, \"tie_word_embeddings\": %s, "
        "\"max_position_embeddings\": 64, \"hidden_act\": \"silu\", \"block_configs\": [%s]}",
        256 + draw(random, 100), layers, draw(random, 1) == 1 ? "true" : "false", blocks->str);
    return plannable_model("mixed", config);
}

/* Of any family, cut into stages of any size, some with matrices gathered in fp8 or state in files:
 * what case_random_4d() leaves out.  @stages as in draw_stages(). */
static inline Case draw_of_all(GRand *random, Model **model, guint16 *stages)
{
    const guint plain = 3, of_family = plain + G_N_ELEMENTS(families);
    const guint of_experts = of_family + G_N_ELEMENTS(expert_cases);
    const guint kind = draw(random, of_experts + 1); /* two of several kinds of blocks */
    CaseShape shape = case_shape;

    shape.layers = 1 + draw(random, 5);
    shape.tied = draw(random, 1) == 1;
    *model = kind < plain        ? case_model(&shape)
             : kind < of_family  ? family_model(kind - plain)
             : kind < of_experts ? expert_model(kind - of_family)
                                 : mixed_model(random, 1 + draw(random, 7), 4);
    const Case one = case_random_4d(random, *model);
    for (;;) {
        Case more = one;

        draw_stages(random, &more, stages);
        more.sharding.gather_fp8 |= draw(random, 3) == 0;
        if (draw(random, 3) == 0)
            more.sharding.offload.optimizer = TIER_NVME;
        if (case_verdict(&more, NULL) == VERDICT_OK)
            return more;
    }
}
