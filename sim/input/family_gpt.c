/* GPT-2 and the families that came after it: LayerNorm, and an MLP of two matrices. */
#include "sim/base/error.h"
#include "sim/input/model_family.h"

#define NORM(role, name) VECTOR(role, name, DIM_HIDDEN, .bias = FEATURE_NORM_BIAS)
#define EMBEDDING(name)  MATRIX(PARAM_EMBEDDING, name, DIM_VOCAB, DIM_EMBEDDING)
#define UNTIED_HEAD(name)                                                                          \
    MATRIX(PARAM_HEAD, name, DIM_VOCAB, DIM_HIDDEN, .when = FEATURE_UNTIED,                        \
           .bias = FEATURE_HEAD_BIAS)

static const Module gpt2_before[] = {
    EMBEDDING("transformer.wte"),
    MATRIX(PARAM_POSITIONS, "transformer.wpe", DIM_POSITIONS, DIM_HIDDEN),
    END_OF_LIST,
};

static const Module gptj_before[] = {EMBEDDING("transformer.wte"), END_OF_LIST};

static const Module gpt2_after[] = {
    NORM(PARAM_FINAL_NORM, "transformer.ln_f"),
    UNTIED_HEAD("lm_head"),
    END_OF_LIST,
};

/* Its matrices are called Conv1D and stored (in, out). */
static const Module gpt2_block[] = {
    NORM(PARAM_INPUT_NORM, "ln_1"),
    MATRIX(PARAM_QKV, "attn.c_attn", DIM_QKV, DIM_HIDDEN, .bias = FEATURE_QKV_BIAS,
           .transposed = TRUE),
    MATRIX(PARAM_O, "attn.c_proj", DIM_HIDDEN, DIM_QUERY, .bias = FEATURE_O_BIAS,
           .transposed = TRUE),
    NORM(PARAM_POST_NORM, "ln_2"),
    MATRIX(PARAM_UP, "mlp.c_fc", DIM_FFN, DIM_HIDDEN, .bias = FEATURE_MLP_BIAS, .transposed = TRUE),
    MATRIX(PARAM_DOWN, "mlp.c_proj", DIM_HIDDEN, DIM_FFN, .bias = FEATURE_MLP_BIAS,
           .transposed = TRUE),
    END_OF_LIST,
};

static const Module gptj_block[] = {
    NORM(PARAM_INPUT_NORM, "ln_1"),
    MATRIX(PARAM_K, "attn.k_proj", DIM_KV, DIM_HIDDEN),
    MATRIX(PARAM_V, "attn.v_proj", DIM_KV, DIM_HIDDEN),
    MATRIX(PARAM_Q, "attn.q_proj", DIM_QUERY, DIM_HIDDEN),
    MATRIX(PARAM_O, "attn.out_proj", DIM_HIDDEN, DIM_QUERY),
    MATRIX(PARAM_UP, "mlp.fc_in", DIM_FFN, DIM_HIDDEN, .bias = FEATURE_MLP_BIAS),
    MATRIX(PARAM_DOWN, "mlp.fc_out", DIM_HIDDEN, DIM_FFN, .bias = FEATURE_MLP_BIAS),
    END_OF_LIST,
};

static const Module opt_before[] = {
    EMBEDDING("model.decoder.embed_tokens"),
    MATRIX(PARAM_POSITIONS, "model.decoder.embed_positions", DIM_POSITIONS, DIM_HIDDEN),
    MATRIX(PARAM_PROJECT_OUT, "model.decoder.project_out", DIM_EMBEDDING, DIM_HIDDEN,
           .when = FEATURE_EMBED_PROJECTED),
    MATRIX(PARAM_PROJECT_IN, "model.decoder.project_in", DIM_HIDDEN, DIM_EMBEDDING,
           .when = FEATURE_EMBED_PROJECTED),
    VECTOR(PARAM_FINAL_NORM, "model.decoder.final_layer_norm", DIM_HIDDEN,
           .unless = FEATURE_POST_NORM, .bias = FEATURE_NORM_BIAS),
    END_OF_LIST,
};

static const Module opt_after[] = {
    MATRIX(PARAM_HEAD, "lm_head", DIM_VOCAB, DIM_EMBEDDING, .when = FEATURE_UNTIED),
    END_OF_LIST,
};

/* Of 350M alone after the sum. */
#define OPT_NORMS(before, after, name)                                                             \
    VECTOR(before, name, DIM_HIDDEN, .unless = FEATURE_POST_NORM, .bias = FEATURE_NORM_BIAS),      \
        VECTOR(after, name, DIM_HIDDEN, .when = FEATURE_POST_NORM, .bias = FEATURE_NORM_BIAS)

static const Module opt_block[] = {
    MATRIX(PARAM_K, "self_attn.k_proj", DIM_KV, DIM_HIDDEN, .bias = FEATURE_QKV_BIAS),
    MATRIX(PARAM_V, "self_attn.v_proj", DIM_KV, DIM_HIDDEN, .bias = FEATURE_QKV_BIAS),
    MATRIX(PARAM_Q, "self_attn.q_proj", DIM_QUERY, DIM_HIDDEN, .bias = FEATURE_QKV_BIAS),
    MATRIX(PARAM_O, "self_attn.out_proj", DIM_HIDDEN, DIM_QUERY, .bias = FEATURE_O_BIAS),
    OPT_NORMS(PARAM_INPUT_NORM, PARAM_ATTENTION_NORM, "self_attn_layer_norm"),
    MATRIX(PARAM_UP, "fc1", DIM_FFN, DIM_HIDDEN, .bias = FEATURE_MLP_BIAS),
    MATRIX(PARAM_DOWN, "fc2", DIM_HIDDEN, DIM_FFN, .bias = FEATURE_MLP_BIAS),
    OPT_NORMS(PARAM_POST_NORM, PARAM_MLP_NORM, "final_layer_norm"),
    END_OF_LIST,
};

#define DENSE_MLP                                                                                  \
    MATRIX(PARAM_UP, "mlp.dense_h_to_4h", DIM_FFN, DIM_HIDDEN, .bias = FEATURE_MLP_BIAS),          \
        MATRIX(PARAM_DOWN, "mlp.dense_4h_to_h", DIM_HIDDEN, DIM_FFN, .bias = FEATURE_MLP_BIAS)

static const Module neox_before[] = {EMBEDDING("gpt_neox.embed_in"), END_OF_LIST};

static const Module neox_after[] = {
    NORM(PARAM_FINAL_NORM, "gpt_neox.final_layer_norm"),
    UNTIED_HEAD("embed_out"),
    END_OF_LIST,
};

static const Module neox_block[] = {
    NORM(PARAM_INPUT_NORM, "input_layernorm"),
    NORM(PARAM_POST_NORM, "post_attention_layernorm"),
    MATRIX(PARAM_QKV, "attention.query_key_value", DIM_QKV, DIM_HIDDEN, .bias = FEATURE_QKV_BIAS),
    MATRIX(PARAM_O, "attention.dense", DIM_HIDDEN, DIM_QUERY, .bias = FEATURE_O_BIAS),
    DENSE_MLP,
    END_OF_LIST,
};

static const Module bloom_before[] = {
    EMBEDDING("transformer.word_embeddings"),
    NORM(PARAM_EMBED_NORM, "transformer.word_embeddings_layernorm"),
    END_OF_LIST,
};

static const Module bloom_block[] = {
    NORM(PARAM_INPUT_NORM, "input_layernorm"),
    MATRIX(PARAM_QKV, "self_attention.query_key_value", DIM_QKV, DIM_HIDDEN,
           .bias = FEATURE_QKV_BIAS),
    MATRIX(PARAM_O, "self_attention.dense", DIM_HIDDEN, DIM_QUERY, .bias = FEATURE_O_BIAS),
    NORM(PARAM_POST_NORM, "post_attention_layernorm"),
    DENSE_MLP,
    END_OF_LIST,
};

static const Module falcon_before[] = {EMBEDDING("transformer.word_embeddings"), END_OF_LIST};

static const Module falcon_block[] = {
    MATRIX(PARAM_QKV, "self_attention.query_key_value", DIM_QKV, DIM_HIDDEN,
           .bias = FEATURE_QKV_BIAS),
    MATRIX(PARAM_O, "self_attention.dense", DIM_HIDDEN, DIM_QUERY, .bias = FEATURE_O_BIAS),
    DENSE_MLP,
    VECTOR(PARAM_INPUT_NORM, "ln_attn", DIM_HIDDEN, .when = FEATURE_TWO_NORMS,
           .bias = FEATURE_NORM_BIAS),
    VECTOR(PARAM_POST_NORM, "ln_mlp", DIM_HIDDEN, .when = FEATURE_TWO_NORMS,
           .bias = FEATURE_NORM_BIAS),
    VECTOR(PARAM_POST_NORM, "post_attention_layernorm", DIM_HIDDEN, .unless = FEATURE_PARALLEL,
           .bias = FEATURE_NORM_BIAS),
    VECTOR(PARAM_INPUT_NORM, "input_layernorm", DIM_HIDDEN, .unless = FEATURE_TWO_NORMS,
           .bias = FEATURE_NORM_BIAS),
    END_OF_LIST,
};

static const Module mpt_after[] = {NORM(PARAM_FINAL_NORM, "transformer.norm_f"), END_OF_LIST};

static const Module mpt_block[] = {
    NORM(PARAM_INPUT_NORM, "norm_1"),
    MATRIX(PARAM_QKV, "attn.Wqkv", DIM_QKV, DIM_HIDDEN),
    MATRIX(PARAM_O, "attn.out_proj", DIM_HIDDEN, DIM_QUERY),
    NORM(PARAM_POST_NORM, "norm_2"),
    MATRIX(PARAM_UP, "ffn.up_proj", DIM_FFN, DIM_HIDDEN),
    MATRIX(PARAM_DOWN, "ffn.down_proj", DIM_HIDDEN, DIM_FFN),
    END_OF_LIST,
};

static const Keys gpt2_keys = {
    .layers = "n_layer|num_hidden_layers",
    .hidden = "n_embd|hidden_size",
    .heads = "n_head|num_attention_heads",
    .ffn = "n_inner",
    .max_seq = "n_positions|max_position_embeddings|n_ctx",
    .norm_eps = "layer_norm_epsilon",
    .init_std = "initializer_range",
    .activation = "activation_function",
};

static const Keys opt_keys = {
    .layers = "num_hidden_layers",
    .hidden = "hidden_size",
    .heads = "num_attention_heads",
    .ffn = "ffn_dim",
    .max_seq = "max_position_embeddings",
    .init_std = "init_std",
    .activation = "activation_function",
};

static const Keys neox_keys = {
    .layers = "num_hidden_layers",
    .hidden = "hidden_size",
    .heads = "num_attention_heads",
    .ffn = "intermediate_size",
    .max_seq = "max_position_embeddings",
    .norm_eps = "layer_norm_eps",
    .init_std = "initializer_range",
    .activation = "hidden_act",
    .rope_theta = "rotary_emb_base|rope_theta",
    .rotary_factor = "rotary_pct|partial_rotary_factor",
};

static const Keys bloom_keys = {
    .layers = "n_layer|num_hidden_layers",
    .hidden = "hidden_size|n_embed",
    .heads = "n_head|num_attention_heads",
    .max_seq = "seq_length",
    .norm_eps = "layer_norm_epsilon",
    .init_std = "initializer_range",
};

static const Keys falcon_keys = {
    .layers = "num_hidden_layers|n_layer",
    .hidden = "hidden_size|n_embed",
    .heads = "num_attention_heads|n_head",
    .ffn = "ffn_hidden_size",
    .max_seq = "max_position_embeddings",
    .norm_eps = "layer_norm_epsilon",
    .init_std = "initializer_range",
    .activation = "activation",
    .rope_theta = "rope_theta",
    .kv_heads_from = "multi_query",
};

static const Keys mpt_keys = {
    .layers = "n_layers",
    .hidden = "d_model",
    .heads = "n_heads",
    .ffn_ratio = "expansion_ratio",
    .max_seq = "max_seq_len",
    .norm_eps = "layer_norm_epsilon",
    .init_std = "initializer_range",
};

static gboolean read_opt(Model *model, const JsonText *json, GError **error)
{
    if (!json_optional_uint32(json, "word_embed_proj_dim", 1, MAX_HIDDEN, &model->embedding, error))
        return FALSE;
    if (model->embedding != model->hidden)
        model->features |= FEATURE_EMBED_PROJECTED;
    return TRUE;
}

static gboolean read_gptj(Model *model, const JsonText *json, GError **error)
{
    guint rotary_dim = 64;

    if (!json_optional_uint32(json, "rotary_dim", 1, MAX_HEAD_DIM, &rotary_dim, error))
        return FALSE;
    if (rotary_dim < model->head_dim)
        model->features |= FEATURE_PARTIAL_ROPE;
    model->rotary_dim = MIN(rotary_dim, model->head_dim);
    return TRUE;
}

/* Three generations: all heads' own keys and values, one for all heads, one for some. */
static gboolean read_falcon(Model *model, const JsonText *json, GError **error)
{
    g_autofree char *groups = model_find_key(json, "num_kv_heads|n_head_kv");
    gboolean one_for_all = TRUE, grouped = FALSE;
    guint parallel_norms = 0;

    if (!json_optional_bool(json, "multi_query", &one_for_all, error) ||
        !json_optional_bool(json, "new_decoder_architecture", &grouped, error))
        return FALSE;
    model->kv_heads = one_for_all && !grouped ? 1 : model->heads;
    parallel_norms = grouped ? 2 : 1;
    if (grouped && !json_optional_uint32(json, groups, 1, model->heads, &model->kv_heads, error))
        return FALSE;
    if (!json_optional_uint32(json, "num_ln_in_parallel_attn", 1, 2, &parallel_norms, error))
        return FALSE;
    if (parallel_norms == 2 && (model->features & FEATURE_PARALLEL) != 0)
        model->features |= FEATURE_TWO_NORMS;
    return TRUE;
}

static const guint32 layer_norm = FEATURE_LAYER_NORM | FEATURE_NORM_BIAS;

#define ALL_BIASES FEATURE_QKV_BIAS | FEATURE_O_BIAS | FEATURE_MLP_BIAS

const ModelFamily gpt_families[] = {
    {
        .model_types = {"gpt2"},
        .architectures = {"GPT2LMHeadModel"},
        .keys = &gpt2_keys,
        .block_prefix = "transformer.h.",
        .before = gpt2_before,
        .after = gpt2_after,
        .block = {gpt2_block},
        .features = layer_norm | FEATURE_POSITIONS | ALL_BIASES,
        .flags = {FLAG("add_cross_attention", FALSE, .fixed = TRUE),
                  FLAG("scale_attn_weights", TRUE, .fixed = TRUE),
                  FLAG("scale_attn_by_inverse_layer_idx", FALSE, .fixed = TRUE)},
        .tied = TRUE,
        .max_seq = 1024,
        .ffn_ratio = 4,
        .activation = ACTIVATION_GELU_TANH,
        .norm_eps = 1e-5,
    },
    {
        .model_types = {"gptj"},
        .architectures = {"GPTJForCausalLM"},
        .keys = &gpt2_keys,
        .block_prefix = "transformer.h.",
        .before = gptj_before,
        .after = gpt2_after,
        .block = {gptj_block},
        .features = layer_norm | FEATURE_ROPE | FEATURE_ROPE_PAIRS | FEATURE_PARALLEL |
                    FEATURE_MLP_BIAS | FEATURE_HEAD_BIAS,
        .read_more = read_gptj,
        .max_seq = 2048,
        .ffn_ratio = 4,
        .activation = ACTIVATION_GELU_TANH,
        .norm_eps = 1e-5,
    },
    {
        .model_types = {"opt"},
        .architectures = {"OPTForCausalLM"},
        .keys = &opt_keys,
        .block_prefix = "model.decoder.layers.",
        .before = opt_before,
        .after = opt_after,
        .block = {opt_block},
        .features = layer_norm | FEATURE_POSITIONS,
        .flags = {FLAG("enable_bias", TRUE, .if_true = ALL_BIASES),
                  FLAG("do_layer_norm_before", TRUE, .if_false = FEATURE_POST_NORM),
                  FLAG("layer_norm_elementwise_affine", TRUE, .fixed = TRUE),
                  FLAG("_remove_final_layer_norm", FALSE, .fixed = TRUE)},
        .read_more = read_opt,
        .tied = TRUE,
        .max_seq = 2048,
        .position_offset = 2,
        .activation = ACTIVATION_RELU,
        .norm_eps = 1e-5,
    },
    {
        .model_types = {"gpt_neox"},
        .architectures = {"GPTNeoXForCausalLM"},
        .keys = &neox_keys,
        .block_prefix = "gpt_neox.layers.",
        .before = neox_before,
        .after = neox_after,
        .block = {neox_block},
        .features = layer_norm | FEATURE_ROPE | FEATURE_MLP_BIAS,
        .flags = {FLAG("attention_bias", TRUE, .if_true = FEATURE_QKV_BIAS | FEATURE_O_BIAS),
                  FLAG("use_parallel_residual", TRUE, .if_true = FEATURE_PARALLEL)},
        .max_seq = 2048,
        .activation = ACTIVATION_GELU,
        .norm_eps = 1e-5,
        .rotary_factor = 0.25,
    },
    {
        .model_types = {"bloom"},
        .architectures = {"BloomForCausalLM"},
        .keys = &bloom_keys,
        .block_prefix = "transformer.h.",
        .before = bloom_before,
        .after = gpt2_after,
        .block = {bloom_block},
        .features = layer_norm | FEATURE_ALIBI | FEATURE_EMBED_NORM | ALL_BIASES,
        .tied = TRUE,
        .max_seq = 2048,
        .ffn_ratio = 4,
        .activation = ACTIVATION_GELU_TANH,
        .norm_eps = 1e-5,
    },
    {
        .model_types = {"falcon", "RefinedWebModel", "RefinedWeb"},
        .architectures = {"FalconForCausalLM", "RWForCausalLM"},
        .keys = &falcon_keys,
        .block_prefix = "transformer.h.",
        .before = falcon_before,
        .after = gpt2_after,
        .block = {falcon_block},
        .features = layer_norm,
        .flags = {FLAG("bias", FALSE, .if_true = ALL_BIASES),
                  FLAG("parallel_attn", TRUE, .if_true = FEATURE_PARALLEL),
                  FLAG("alibi", FALSE, .if_true = FEATURE_ALIBI, .if_false = FEATURE_ROPE)},
        .read_more = read_falcon,
        .tied = TRUE,
        .max_seq = 2048,
        .ffn_ratio = 4,
        .activation = ACTIVATION_GELU,
        .norm_eps = 1e-5,
    },
    {
        .model_types = {"mpt"},
        .architectures = {"MptForCausalLM", "MPTForCausalLM"},
        .keys = &mpt_keys,
        .block_prefix = "transformer.blocks.",
        .before = gptj_before,
        .after = mpt_after,
        .block = {mpt_block},
        .features = FEATURE_LAYER_NORM | FEATURE_ALIBI,
        .flags = {FLAG("no_bias", TRUE, .fixed = TRUE),
                  FLAG("attn_config.alibi", TRUE, .fixed = TRUE),
                  FLAG("attn_config.qk_ln", FALSE, .fixed = TRUE)},
        .tied = TRUE,
        .max_seq = 2048,
        .ffn_ratio = 4,
        .activation = ACTIVATION_GELU,
        .norm_eps = 1e-5,
    },
    {.model_types = {NULL}},
};
