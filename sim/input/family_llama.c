/* Llama and the families that differ from it in few things. */
#include "sim/input/model_family.h"

const Module llama_before[] = {
    MATRIX(PARAM_EMBEDDING, "model.embed_tokens", DIM_VOCAB, DIM_HIDDEN),
    END_OF_LIST,
};

const Module llama_after[] = {
    VECTOR(PARAM_FINAL_NORM, "model.norm", DIM_HIDDEN, .unless = FEATURE_BARE_NORM,
           .bias = FEATURE_NORM_BIAS),
    MATRIX(PARAM_HEAD, "lm_head", DIM_VOCAB, DIM_HIDDEN, .when = FEATURE_UNTIED,
           .bias = FEATURE_HEAD_BIAS),
    END_OF_LIST,
};

const Module llama_attention[] = {
    MATRIX(PARAM_Q, "self_attn.q_proj", DIM_QUERY, DIM_HIDDEN, .bias = FEATURE_QKV_BIAS),
    MATRIX(PARAM_K, "self_attn.k_proj", DIM_KV, DIM_HIDDEN, .bias = FEATURE_QKV_BIAS),
    MATRIX(PARAM_V, "self_attn.v_proj", DIM_KV, DIM_HIDDEN, .bias = FEATURE_QKV_BIAS),
    MATRIX(PARAM_O, "self_attn.o_proj", DIM_HIDDEN, DIM_QUERY, .bias = FEATURE_O_BIAS),
    END_OF_LIST,
};

const Module llama_norms[] = {
    VECTOR(PARAM_INPUT_NORM, "input_layernorm", DIM_HIDDEN, .bias = FEATURE_NORM_BIAS),
    VECTOR(PARAM_POST_NORM, "post_attention_layernorm", DIM_HIDDEN, .bias = FEATURE_NORM_BIAS),
    END_OF_LIST,
};

/* One norm for all heads. */
const Module head_qk_norms[] = {
    VECTOR(PARAM_Q_NORM, "self_attn.q_norm", DIM_HEAD),
    VECTOR(PARAM_K_NORM, "self_attn.k_norm", DIM_HEAD),
    END_OF_LIST,
};

static const Module llama_mlp[] = {
    MATRIX(PARAM_GATE, "mlp.gate_proj", DIM_FFN, DIM_HIDDEN, .bias = FEATURE_MLP_BIAS),
    MATRIX(PARAM_UP, "mlp.up_proj", DIM_FFN, DIM_HIDDEN, .bias = FEATURE_MLP_BIAS),
    MATRIX(PARAM_DOWN, "mlp.down_proj", DIM_HIDDEN, DIM_FFN, .bias = FEATURE_MLP_BIAS),
    END_OF_LIST,
};

/* Over all heads at once. */
const Module wide_qk_norms[] = {
    VECTOR(PARAM_Q_NORM, "self_attn.q_norm", DIM_QUERY),
    VECTOR(PARAM_K_NORM, "self_attn.k_norm", DIM_KV),
    END_OF_LIST,
};

/* A row a head. */
static const Module row_qk_norms[] = {
    MATRIX(PARAM_Q_NORM, "self_attn.q_norm", DIM_HEADS, DIM_HEAD, .when = FEATURE_QK_NORM),
    MATRIX(PARAM_K_NORM, "self_attn.k_norm", DIM_KV_HEADS, DIM_HEAD, .when = FEATURE_QK_NORM),
    END_OF_LIST,
};

/* The first of them alone. */
static const Module input_norm[] = {
    VECTOR(PARAM_INPUT_NORM, "input_layernorm", DIM_HIDDEN, .bias = FEATURE_NORM_BIAS),
    END_OF_LIST,
};

static const Module gemma2_norms[] = {
    VECTOR(PARAM_INPUT_NORM, "input_layernorm", DIM_HIDDEN),
    VECTOR(PARAM_ATTENTION_NORM, "post_attention_layernorm", DIM_HIDDEN),
    VECTOR(PARAM_POST_NORM, "pre_feedforward_layernorm", DIM_HIDDEN),
    VECTOR(PARAM_MLP_NORM, "post_feedforward_layernorm", DIM_HIDDEN),
    END_OF_LIST,
};

static const Module olmo2_norms[] = {
    VECTOR(PARAM_ATTENTION_NORM, "post_attention_layernorm", DIM_HIDDEN),
    VECTOR(PARAM_MLP_NORM, "post_feedforward_layernorm", DIM_HIDDEN),
    END_OF_LIST,
};

static const Module phi3_attention[] = {
    MATRIX(PARAM_O, "self_attn.o_proj", DIM_HIDDEN, DIM_QUERY),
    MATRIX(PARAM_QKV, "self_attn.qkv_proj", DIM_QKV, DIM_HIDDEN),
    END_OF_LIST,
};

static const Module phi3_mlp[] = {
    MATRIX(PARAM_GATE_UP, "mlp.gate_up_proj", DIM_GATE_UP, DIM_HIDDEN),
    MATRIX(PARAM_DOWN, "mlp.down_proj", DIM_HIDDEN, DIM_FFN),
    END_OF_LIST,
};

static const Module phi_block[] = {
    MATRIX(PARAM_Q, "self_attn.q_proj", DIM_QUERY, DIM_HIDDEN, .bias = FEATURE_QKV_BIAS),
    MATRIX(PARAM_K, "self_attn.k_proj", DIM_KV, DIM_HIDDEN, .bias = FEATURE_QKV_BIAS),
    MATRIX(PARAM_V, "self_attn.v_proj", DIM_KV, DIM_HIDDEN, .bias = FEATURE_QKV_BIAS),
    MATRIX(PARAM_O, "self_attn.dense", DIM_HIDDEN, DIM_QUERY, .bias = FEATURE_O_BIAS),
    MATRIX(PARAM_UP, "mlp.fc1", DIM_FFN, DIM_HIDDEN, .bias = FEATURE_MLP_BIAS),
    MATRIX(PARAM_DOWN, "mlp.fc2", DIM_HIDDEN, DIM_FFN, .bias = FEATURE_MLP_BIAS),
    VECTOR(PARAM_INPUT_NORM, "input_layernorm", DIM_HIDDEN, .bias = FEATURE_NORM_BIAS),
    END_OF_LIST,
};

static const Module phi_after[] = {
    VECTOR(PARAM_FINAL_NORM, "model.final_layernorm", DIM_HIDDEN, .bias = FEATURE_NORM_BIAS),
    MATRIX(PARAM_HEAD, "lm_head", DIM_VOCAB, DIM_HIDDEN, .when = FEATURE_UNTIED,
           .bias = FEATURE_HEAD_BIAS),
    END_OF_LIST,
};

static const Module starcoder2_mlp[] = {
    MATRIX(PARAM_UP, "mlp.c_fc", DIM_FFN, DIM_HIDDEN, .bias = FEATURE_MLP_BIAS),
    MATRIX(PARAM_DOWN, "mlp.c_proj", DIM_HIDDEN, DIM_FFN, .bias = FEATURE_MLP_BIAS),
    END_OF_LIST,
};

#define LLAMA_SIZES                                                                                \
    .layers = "num_hidden_layers", .hidden = "hidden_size", .heads = "num_attention_heads",        \
    .kv_heads = "num_key_value_heads", .ffn = "intermediate_size",                                 \
    .max_seq = "max_position_embeddings", .init_std = "initializer_range"

const Keys llama_keys = {
    LLAMA_SIZES,
    .kv_heads_from = "num_key_value_heads",
    .norm_eps = "rms_norm_eps",
    .activation = "hidden_act",
    .rotary_factor = "partial_rotary_factor",
    .rope_theta = "rope_theta",
    .window = "sliding_window",
};

/* Its window holds only where another field says so. */
static const Keys qwen_keys = {
    LLAMA_SIZES,
    .norm_eps = "rms_norm_eps",
    .activation = "hidden_act",
    .rotary_factor = "partial_rotary_factor",
    .rope_theta = "rope_theta",
    .window = "sliding_window",
    .window_flag = "use_sliding_window",
};

static const Keys gemma_keys = {
    LLAMA_SIZES,
    .norm_eps = "rms_norm_eps",
    .activation = "hidden_activation|hidden_act",
    .rope_theta = "rope_theta",
    .window = "sliding_window",
};

static const Keys layer_norm_keys = {
    LLAMA_SIZES,
    .norm_eps = "layer_norm_eps",
    .activation = "hidden_act",
    .rotary_factor = "partial_rotary_factor",
    .rope_theta = "rope_theta",
};

static const Keys starcoder2_keys = {
    LLAMA_SIZES,
    .norm_eps = "norm_epsilon",
    .activation = "hidden_act",
    .rope_theta = "rope_theta",
    .window = "sliding_window",
};

#define LLAMA_FLAGS                                                                                \
    FLAG("attention_bias", FALSE, .if_true = FEATURE_QKV_BIAS | FEATURE_O_BIAS),                   \
        FLAG("mlp_bias", FALSE, .if_true = FEATURE_MLP_BIAS),                                      \
        FLAG("rope_interleaved", FALSE, .if_true = FEATURE_ROPE_PAIRS)

#define LLAMA_TENSORS .block_prefix = "model.layers.", .before = llama_before, .after = llama_after

static const guint32 llama_features = FEATURE_ROPE | FEATURE_GATED;

const ModelFamily llama_families[] = {
    {
        .model_types = {"llama"},
        .architectures = {"LlamaForCausalLM", "LLaMAForCausalLM"},
        .keys = &llama_keys,
        LLAMA_TENSORS,
        .block = {llama_attention, llama_mlp, llama_norms},
        .features = llama_features,
        .flags = {LLAMA_FLAGS},
        .max_seq = 2048,
        .norm_eps = 1e-6,
    },
    {
        .model_types = {"mistral"},
        .architectures = {"MistralForCausalLM"},
        .keys = &llama_keys,
        LLAMA_TENSORS,
        .block = {llama_attention, llama_mlp, llama_norms},
        .features = llama_features,
        .flags = {LLAMA_FLAGS},
        .kv_heads = 8,
        .max_seq = 131072,
        .sliding_window = 4096,
        .norm_eps = 1e-6,
    },
    {
        /* MiMo's block for multi-token prediction is left out, as those of DeepSeek are. */
        .model_types = {"qwen2", "mimo"},
        .architectures = {"Qwen2ForCausalLM", "MiMoForCausalLM"},
        .keys = &qwen_keys,
        LLAMA_TENSORS,
        .block = {llama_attention, llama_mlp, llama_norms},
        .features = llama_features | FEATURE_QKV_BIAS,
        .max_seq = 32768,
        .sliding_window = 4096,
        .norm_eps = 1e-6,
    },
    {
        .model_types = {"qwen3"},
        .architectures = {"Qwen3ForCausalLM"},
        .keys = &qwen_keys,
        LLAMA_TENSORS,
        .block = {llama_attention, head_qk_norms, llama_mlp, llama_norms},
        .features = llama_features | FEATURE_QK_NORM,
        .flags = {LLAMA_FLAGS},
        .head_dim = 128,
        .max_seq = 32768,
        .sliding_window = 4096,
        .norm_eps = 1e-6,
    },
    {
        .model_types = {"gemma"},
        .architectures = {"GemmaForCausalLM"},
        .keys = &gemma_keys,
        LLAMA_TENSORS,
        .block = {llama_attention, llama_mlp, llama_norms},
        .features = llama_features | FEATURE_NORM_OFFSET | FEATURE_EMBED_SCALED,
        .flags = {LLAMA_FLAGS},
        .tied = TRUE,
        .kv_heads = 16,
        .head_dim = 256,
        .max_seq = 8192,
        .activation = ACTIVATION_GELU_TANH,
        .norm_eps = 1e-6,
    },
    {
        .model_types = {"gemma2"},
        .architectures = {"Gemma2ForCausalLM"},
        .keys = &gemma_keys,
        LLAMA_TENSORS,
        .block = {llama_attention, llama_mlp, gemma2_norms},
        .features = llama_features | FEATURE_NORM_OFFSET | FEATURE_EMBED_SCALED |
                    FEATURE_OUTPUT_NORMS | FEATURE_LOGITS_CHANGED,
        .flags = {LLAMA_FLAGS},
        .tied = TRUE,
        .kv_heads = 4,
        .head_dim = 256,
        .max_seq = 8192,
        .sliding_window = 4096,
        .full_every = 2,
        .activation = ACTIVATION_GELU_TANH,
        .norm_eps = 1e-6,
    },
    {
        .model_types = {"gemma3_text"},
        .architectures = {"Gemma3ForCausalLM"},
        .keys = &gemma_keys,
        LLAMA_TENSORS,
        .block = {llama_attention, head_qk_norms, llama_mlp, gemma2_norms},
        .features = llama_features | FEATURE_NORM_OFFSET | FEATURE_EMBED_SCALED |
                    FEATURE_OUTPUT_NORMS | FEATURE_QK_NORM,
        .flags = {LLAMA_FLAGS},
        .tied = TRUE,
        .kv_heads = 4,
        .head_dim = 256,
        .max_seq = 131072,
        .sliding_window = 4096,
        .full_every = 6,
        .activation = ACTIVATION_GELU_TANH,
        .norm_eps = 1e-6,
    },
    {
        .model_types = {"olmo"},
        .architectures = {"OlmoForCausalLM"},
        .keys = &llama_keys,
        LLAMA_TENSORS,
        .block = {llama_attention, llama_mlp},
        .features = llama_features | FEATURE_LAYER_NORM | FEATURE_BARE_NORM,
        .flags = {LLAMA_FLAGS},
        .max_seq = 2048,
        .norm_eps = 1e-5,
    },
    {
        .model_types = {"olmo2"},
        .architectures = {"Olmo2ForCausalLM"},
        .keys = &llama_keys,
        LLAMA_TENSORS,
        .block = {llama_attention, wide_qk_norms, llama_mlp, olmo2_norms},
        .features =
            llama_features | FEATURE_QK_NORM | FEATURE_QK_NORM_OF_ALL | FEATURE_OUTPUT_NORMS,
        .flags = {LLAMA_FLAGS},
        .max_seq = 2048,
        .norm_eps = 1e-5,
    },
    {
        .model_types = {"cohere"},
        .architectures = {"CohereForCausalLM"},
        .keys = &layer_norm_keys,
        LLAMA_TENSORS,
        .block = {llama_attention, row_qk_norms, llama_mlp, input_norm},
        .features = llama_features | FEATURE_LAYER_NORM | FEATURE_PARALLEL | FEATURE_ROPE_PAIRS |
                    FEATURE_LOGITS_CHANGED,
        .flags = {LLAMA_FLAGS, FLAG("use_qk_norm", FALSE, .if_true = FEATURE_QK_NORM)},
        .tied = TRUE,
        .max_seq = 8192,
        .norm_eps = 1e-5,
    },
    {
        .model_types = {"phi3"},
        .architectures = {"Phi3ForCausalLM"},
        .keys = &llama_keys,
        LLAMA_TENSORS,
        .block = {phi3_attention, phi3_mlp, llama_norms},
        .features = llama_features,
        .max_seq = 4096,
        .norm_eps = 1e-5,
    },
    {
        .model_types = {"phi"},
        .architectures = {"PhiForCausalLM"},
        .keys = &layer_norm_keys,
        .block_prefix = "model.layers.",
        .before = llama_before,
        .after = phi_after,
        .block = {phi_block},
        .features = FEATURE_ROPE | FEATURE_LAYER_NORM | FEATURE_NORM_BIAS | FEATURE_PARALLEL |
                    FEATURE_QKV_BIAS | FEATURE_O_BIAS | FEATURE_MLP_BIAS | FEATURE_HEAD_BIAS,
        .flags = {FLAG("qk_layernorm", FALSE, .fixed = TRUE)},
        .max_seq = 2048,
        .activation = ACTIVATION_GELU_TANH,
        .norm_eps = 1e-5,
        .rotary_factor = 0.5,
    },
    {
        .model_types = {"starcoder2"},
        .architectures = {"Starcoder2ForCausalLM"},
        .keys = &starcoder2_keys,
        LLAMA_TENSORS,
        .block = {llama_attention, starcoder2_mlp, llama_norms},
        .features = FEATURE_ROPE | FEATURE_LAYER_NORM | FEATURE_NORM_BIAS,
        .flags = {FLAG("use_bias", TRUE,
                       .if_true = FEATURE_QKV_BIAS | FEATURE_O_BIAS | FEATURE_MLP_BIAS)},
        .tied = TRUE,
        .kv_heads = 2,
        .max_seq = 4096,
        .activation = ACTIVATION_GELU_TANH,
        .norm_eps = 1e-5,
    },
    {.model_types = {NULL}},
};
