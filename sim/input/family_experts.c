/* Families with a mixture of experts, or with DeepSeek's attention. */
#include "sim/base/error.h"
#include "sim/input/model_family.h"

static const Module mixtral_experts[] = {
    MATRIX(PARAM_ROUTER, "block_sparse_moe.gate", DIM_EXPERTS, DIM_HIDDEN),
    MATRIX(PARAM_EXPERT_GATE, "block_sparse_moe.experts.%u.w1", DIM_EXPERT_FFN, DIM_HIDDEN,
           .times = EACH_EXPERT),
    MATRIX(PARAM_EXPERT_DOWN, "block_sparse_moe.experts.%u.w2", DIM_HIDDEN, DIM_EXPERT_FFN,
           .times = EACH_EXPERT),
    MATRIX(PARAM_EXPERT_UP, "block_sparse_moe.experts.%u.w3", DIM_EXPERT_FFN, DIM_HIDDEN,
           .times = EACH_EXPERT),
    END_OF_LIST,
};

/* Beside them a bias that balances the load, as DeepSeek's. */
static const Module minimax_router_bias[] = {
    VECTOR(PARAM_ROUTER_BIAS, "block_sparse_moe.e_score_correction_bias", DIM_EXPERTS,
           .exact = TRUE),
    END_OF_LIST,
};

/* Of the blocks without experts. */
static const Module dense_mlp[] = {
    MATRIX(PARAM_GATE, "mlp.gate_proj", DIM_FFN, DIM_HIDDEN, .where = IN_DENSE_BLOCKS),
    MATRIX(PARAM_UP, "mlp.up_proj", DIM_FFN, DIM_HIDDEN, .where = IN_DENSE_BLOCKS),
    MATRIX(PARAM_DOWN, "mlp.down_proj", DIM_HIDDEN, DIM_FFN, .where = IN_DENSE_BLOCKS),
    END_OF_LIST,
};

#define EXPERT(role, matrix, rows, cols)                                                           \
    MATRIX(role, "mlp.experts.%u." matrix, rows, cols, .where = IN_EXPERT_BLOCKS,                  \
           .times = EACH_EXPERT)
#define SHARED(role, matrix, rows, cols)                                                           \
    MATRIX(role, matrix, rows, cols, .where = IN_EXPERT_BLOCKS, .when = FEATURE_SHARED_EXPERTS)

static const Module qwen_experts[] = {
    MATRIX(PARAM_ROUTER, "mlp.gate", DIM_EXPERTS, DIM_HIDDEN, .where = IN_EXPERT_BLOCKS),
    EXPERT(PARAM_EXPERT_GATE, "gate_proj", DIM_EXPERT_FFN, DIM_HIDDEN),
    EXPERT(PARAM_EXPERT_UP, "up_proj", DIM_EXPERT_FFN, DIM_HIDDEN),
    EXPERT(PARAM_EXPERT_DOWN, "down_proj", DIM_HIDDEN, DIM_EXPERT_FFN),
    SHARED(PARAM_SHARED_GATE, "mlp.shared_expert.gate_proj", DIM_SHARED_FFN, DIM_HIDDEN),
    SHARED(PARAM_SHARED_UP, "mlp.shared_expert.up_proj", DIM_SHARED_FFN, DIM_HIDDEN),
    SHARED(PARAM_SHARED_DOWN, "mlp.shared_expert.down_proj", DIM_HIDDEN, DIM_SHARED_FFN),
    MATRIX(PARAM_SHARED_SCALE, "mlp.shared_expert_gate", DIM_ONE, DIM_HIDDEN,
           .where = IN_EXPERT_BLOCKS, .when = FEATURE_SHARED_SCALE),
    END_OF_LIST,
};

static const Module deepseek_v2_router[] = {
    MATRIX(PARAM_ROUTER, "mlp.gate", DIM_EXPERTS, DIM_HIDDEN, .where = IN_EXPERT_BLOCKS),
    END_OF_LIST,
};

/* With a bias that balances the load, counted among the parameters. */
static const Module deepseek_v3_router[] = {
    MATRIX(PARAM_ROUTER, "mlp.gate", DIM_EXPERTS, DIM_HIDDEN, .where = IN_EXPERT_BLOCKS),
    VECTOR(PARAM_ROUTER_BIAS, "mlp.gate.e_score_correction_bias", DIM_EXPERTS,
           .where = IN_EXPERT_BLOCKS, .exact = TRUE),
    END_OF_LIST,
};

static const Module deepseek_experts[] = {
    EXPERT(PARAM_EXPERT_GATE, "gate_proj", DIM_EXPERT_FFN, DIM_HIDDEN),
    EXPERT(PARAM_EXPERT_UP, "up_proj", DIM_EXPERT_FFN, DIM_HIDDEN),
    EXPERT(PARAM_EXPERT_DOWN, "down_proj", DIM_HIDDEN, DIM_EXPERT_FFN),
    SHARED(PARAM_SHARED_GATE, "mlp.shared_experts.gate_proj", DIM_SHARED_FFN, DIM_HIDDEN),
    SHARED(PARAM_SHARED_UP, "mlp.shared_experts.up_proj", DIM_SHARED_FFN, DIM_HIDDEN),
    SHARED(PARAM_SHARED_DOWN, "mlp.shared_experts.down_proj", DIM_HIDDEN, DIM_SHARED_FFN),
    END_OF_LIST,
};

static const Module deepseek_attention[] = {
    MATRIX(PARAM_Q, "self_attn.q_proj", DIM_LATENT_QUERY, DIM_HIDDEN, .unless = FEATURE_Q_RANK),
    MATRIX(PARAM_Q_DOWN, "self_attn.q_a_proj", DIM_Q_RANK, DIM_HIDDEN, .when = FEATURE_Q_RANK,
           .bias = FEATURE_QKV_BIAS),
    VECTOR(PARAM_Q_DOWN_NORM, "self_attn.q_a_layernorm", DIM_Q_RANK, .when = FEATURE_Q_RANK),
    MATRIX(PARAM_Q, "self_attn.q_b_proj", DIM_LATENT_QUERY, DIM_Q_RANK, .when = FEATURE_Q_RANK),
    MATRIX(PARAM_KV_DOWN, "self_attn.kv_a_proj_with_mqa", DIM_KV_RANK_ROPE, DIM_HIDDEN,
           .bias = FEATURE_QKV_BIAS),
    VECTOR(PARAM_KV_DOWN_NORM, "self_attn.kv_a_layernorm", DIM_KV_RANK),
    MATRIX(PARAM_KV_UP, "self_attn.kv_b_proj", DIM_LATENT_KEY_VALUE, DIM_KV_RANK),
    MATRIX(PARAM_O, "self_attn.o_proj", DIM_HIDDEN, DIM_LATENT_VALUE, .bias = FEATURE_O_BIAS),
    END_OF_LIST,
};

/* Which keys a query reads (DeepSeek-V3.2-Exp, sec. 1). */
static const Module deepseek_indexer[] = {
    MATRIX(PARAM_INDEX_Q, "self_attn.indexer.wq_b", DIM_INDEX_QUERY, DIM_Q_RANK),
    MATRIX(PARAM_INDEX_K, "self_attn.indexer.wk", DIM_INDEX_HEAD, DIM_HIDDEN),
    VECTOR(PARAM_INDEX_K_NORM, "self_attn.indexer.k_norm", DIM_INDEX_HEAD, .bias = FEATURE_LATENT),
    MATRIX(PARAM_INDEX_WEIGHTS, "self_attn.indexer.weights_proj", DIM_INDEX_HEADS, DIM_HIDDEN),
    END_OF_LIST,
};

static const Module gpt_oss_sinks[] = {
    VECTOR(PARAM_SINKS, "self_attn.sinks", DIM_HEADS, .exact = TRUE),
    END_OF_LIST,
};

static const Module gpt_oss_experts[] = {
    MATRIX(PARAM_ROUTER, "mlp.router", DIM_EXPERTS, DIM_HIDDEN, .bias = FEATURE_EXPERTS),
    MATRIX(PARAM_EXPERT_GATE_UP, "mlp.experts.gate_up_proj", DIM_EXPERT_GATE_UP, DIM_HIDDEN,
           .times = STACKED_EXPERTS, .exact = TRUE, .transposed = TRUE),
    VECTOR(PARAM_EXPERT_GATE_UP_BIAS, "mlp.experts.gate_up_proj_bias", DIM_EXPERT_GATE_UP,
           .times = STACKED_EXPERTS, .exact = TRUE),
    MATRIX(PARAM_EXPERT_DOWN, "mlp.experts.down_proj", DIM_HIDDEN, DIM_EXPERT_FFN,
           .times = STACKED_EXPERTS, .exact = TRUE, .transposed = TRUE),
    VECTOR(PARAM_EXPERT_DOWN_BIAS, "mlp.experts.down_proj_bias", DIM_HIDDEN,
           .times = STACKED_EXPERTS, .exact = TRUE),
    END_OF_LIST,
};

static const Module dbrx_before[] = {
    MATRIX(PARAM_EMBEDDING, "transformer.wte", DIM_VOCAB, DIM_HIDDEN),
    END_OF_LIST,
};

static const Module dbrx_after[] = {
    VECTOR(PARAM_FINAL_NORM, "transformer.norm_f", DIM_HIDDEN),
    MATRIX(PARAM_HEAD, "lm_head", DIM_VOCAB, DIM_HIDDEN, .when = FEATURE_UNTIED),
    END_OF_LIST,
};

static const Module dbrx_block[] = {
    VECTOR(PARAM_INPUT_NORM, "norm_attn_norm.norm_1", DIM_HIDDEN),
    MATRIX(PARAM_QKV, "norm_attn_norm.attn.Wqkv", DIM_QKV, DIM_HIDDEN),
    MATRIX(PARAM_O, "norm_attn_norm.attn.out_proj", DIM_HIDDEN, DIM_QUERY),
    VECTOR(PARAM_POST_NORM, "norm_attn_norm.norm_2", DIM_HIDDEN),
    MATRIX(PARAM_ROUTER, "ffn.router.layer", DIM_EXPERTS, DIM_HIDDEN),
    MATRIX(PARAM_EXPERT_GATE, "ffn.experts.mlp.w1", DIM_EXPERT_FFN, DIM_HIDDEN,
           .times = JOINED_EXPERTS, .exact = TRUE),
    MATRIX(PARAM_EXPERT_UP, "ffn.experts.mlp.v1", DIM_EXPERT_FFN, DIM_HIDDEN,
           .times = JOINED_EXPERTS, .exact = TRUE),
    MATRIX(PARAM_EXPERT_DOWN, "ffn.experts.mlp.w2", DIM_EXPERT_FFN, DIM_HIDDEN,
           .times = JOINED_EXPERTS, .exact = TRUE),
    END_OF_LIST,
};

static const Keys qwen_moe_keys = {
    .layers = "num_hidden_layers",
    .hidden = "hidden_size",
    .heads = "num_attention_heads",
    .kv_heads = "num_key_value_heads",
    .ffn = "intermediate_size",
    .max_seq = "max_position_embeddings",
    .init_std = "initializer_range",
    .norm_eps = "rms_norm_eps",
    .activation = "hidden_act",
    .rope_theta = "rope_theta",
    .window = "sliding_window",
    .window_flag = "use_sliding_window",
};

/* Keys and values have a rank in place of heads. */
static const Keys deepseek_keys = {
    .layers = "num_hidden_layers",
    .hidden = "hidden_size",
    .heads = "num_attention_heads",
    .ffn = "intermediate_size",
    .max_seq = "max_position_embeddings",
    .init_std = "initializer_range",
    .norm_eps = "rms_norm_eps",
    .activation = "hidden_act",
    .rope_theta = "rope_theta",
};

static const Keys dbrx_keys = {
    .layers = "n_layers",
    .hidden = "d_model",
    .heads = "n_heads",
    .kv_heads = "attn_config.kv_n_heads",
    .ffn = "ffn_config.ffn_hidden_size",
    .max_seq = "max_seq_len",
    .init_std = "initializer_range",
    .activation = "ffn_config.ffn_act_fn.name",
    .rope_theta = "attn_config.rope_theta",
};

/* Number of experts and how many a token visits, under the names that a family has for them. */
static gboolean read_experts(Model *model, const JsonText *json, const char *count,
                             const char *top_k, GError **error)
{
    Experts *experts = &model->experts;

    experts->ffn = model->ffn;
    experts->every = 1;
    if (!json_uint32(json, count, 1, MAX_EXPERTS, &experts->count, error))
        return FALSE;
    experts->held = experts->count;
    return json_uint32(json, top_k, 1, experts->count, &experts->top_k, error);
}

static gboolean read_local_experts(Model *model, const JsonText *json, GError **error)
{
    return read_experts(model, json, "num_local_experts", "num_experts_per_tok", error);
}

/* Multi-token prediction's modules are left out, as DeepSeek's. */
static gboolean read_minimax(Model *model, const JsonText *json, GError **error)
{
    guint shared = 0, rotary_dim = model->rotary_dim;
    const char *norms = "per_layer";

    if (!json_optional_uint32(json, "shared_intermediate_size", 0, 0, &shared, error) ||
        !json_optional_string(json, "qk_norm_type", &norms, error) ||
        !json_optional_uint32(json, "rotary_dim", 1, model->head_dim, &rotary_dim, error))
        return FALSE;
    if (!g_str_equal(norms, "per_layer"))
        return fail(error, ERROR_INPUT, "%s: field \"qk_norm_type\" is \"%s\"; allowed: per_layer",
                    json_source(json), norms);
    if (rotary_dim < model->head_dim)
        model->features |= FEATURE_PARTIAL_ROPE;
    model->rotary_dim = rotary_dim;
    return read_local_experts(model, json, error);
}

static gboolean read_dbrx(Model *model, const JsonText *json, GError **error)
{
    return read_experts(model, json, "ffn_config.moe_num_experts", "ffn_config.moe_top_k", error);
}

static gboolean read_qwen_moe(Model *model, const JsonText *json, GError **error)
{
    Experts *experts = &model->experts;
    guint dense_only = 0;

    if (!read_experts(model, json, "num_experts", "num_experts_per_tok", error) ||
        !json_uint32(json, "moe_intermediate_size", 1, MAX_FFN, &experts->ffn, error) ||
        !json_optional_uint32(json, "decoder_sparse_step", 1, MAX_LAYERS, &experts->every, error))
        return FALSE;
    experts->first = experts->every - 1;
    if (json_has(json, "mlp_only_layers") &&
        !json_length(json, "mlp_only_layers", &dense_only, error))
        return FALSE;
    if (dense_only != 0)
        return fail(error, ERROR_INPUT,
                    "%s: field \"mlp_only_layers\" lists %u layers; allowed: none",
                    json_source(json), dense_only);
    return (model->features & FEATURE_SHARED_EXPERTS) == 0 ||
           json_uint(json, "shared_expert_intermediate_size", 1, MAX_FFN, &experts->shared_ffn,
                     error);
}

static gboolean read_latent(Model *model, const JsonText *json, GError **error)
{
    LatentAttention *latent = &model->latent;

    if (!json_optional_uint32(json, "q_lora_rank", 1, MAX_HIDDEN, &latent->q_rank, error) ||
        !json_uint32(json, "kv_lora_rank", 1, MAX_HIDDEN, &latent->kv_rank, error) ||
        !json_uint32(json, "qk_nope_head_dim", 1, MAX_HEAD_DIM, &latent->plain_dim, error) ||
        !json_uint32(json, "qk_rope_head_dim", 1, MAX_HEAD_DIM, &latent->rope_dim, error) ||
        !json_uint32(json, "v_head_dim", 1, MAX_HEAD_DIM, &latent->value_dim, error))
        return FALSE;
    if (latent->q_rank != 0)
        model->features |= FEATURE_Q_RANK;
    model->head_dim = latent->plain_dim + latent->rope_dim;
    model->rotary_dim = latent->rope_dim;
    return TRUE;
}

/* Multi-token prediction's extra blocks (num_nextn_predict_layers) are not of the model as
 * published: they are left out. */
static gboolean read_deepseek(Model *model, const JsonText *json, GError **error)
{
    Experts *experts = &model->experts;
    guint shared = 0, dense = 0;

    if (!read_experts(model, json, "n_routed_experts", "num_experts_per_tok", error) ||
        !json_uint32(json, "moe_intermediate_size", 1, MAX_FFN, &experts->ffn, error) ||
        !json_optional_uint32(json, "n_shared_experts", 0, MAX_EXPERTS, &shared, error) ||
        !json_optional_uint32(json, "first_k_dense_replace", 0, MAX_LAYERS, &dense, error) ||
        !json_optional_uint32(json, "moe_layer_freq", 1, MAX_LAYERS, &experts->every, error))
        return FALSE;
    experts->first = (dense + experts->every - 1) / experts->every * experts->every;
    experts->shared_ffn = (guint64)shared * experts->ffn;
    if (shared != 0)
        model->features |= FEATURE_SHARED_EXPERTS;
    return read_latent(model, json, error);
}

/* The same with an indexer, one a block. */
static gboolean read_deepseek_sparse(Model *model, const JsonText *json, GError **error)
{
    LatentAttention *latent = &model->latent;
    guint freq = 1;

    if (!json_uint32(json, "index_n_heads", 1, MAX_HEADS, &latent->index_heads, error) ||
        !json_uint32(json, "index_head_dim", 1, MAX_HEAD_DIM, &latent->index_dim, error) ||
        !json_uint32(json, "index_topk", 1, MAX_SEQ, &latent->top_keys, error) ||
        !json_uint32(json, "q_lora_rank", 1, MAX_HIDDEN, &latent->q_rank, error) ||
        !json_optional_uint32(json, "index_topk_freq", 1, 1, &freq, error))
        return FALSE;
    if (json_has(json, "index_topk_pattern"))
        return fail(error, ERROR_INPUT,
                    "%s: field \"index_topk_pattern\" is there; allowed: none (an indexer in each "
                    "block)",
                    json_source(json));
    return read_deepseek(model, json, error);
}

static const guint32 expert_features = FEATURE_ROPE | FEATURE_GATED | FEATURE_EXPERTS;

#define LLAMA_TENSORS  .block_prefix = "model.layers.", .before = llama_before, .after = llama_after
#define ATTENTION_BIAS FLAG("attention_bias", FALSE, .if_true = FEATURE_QKV_BIAS | FEATURE_O_BIAS)

const ModelFamily expert_families[] = {
    {
        .model_types = {"mixtral"},
        .architectures = {"MixtralForCausalLM"},
        .keys = &llama_keys,
        LLAMA_TENSORS,
        .block = {llama_attention, mixtral_experts, llama_norms},
        .features = expert_features,
        .read_more = read_local_experts,
        .kv_heads = 8,
        .max_seq = 131072,
        .norm_eps = 1e-5,
    },
    {
        .model_types = {"qwen2_moe"},
        .architectures = {"Qwen2MoeForCausalLM"},
        .keys = &qwen_moe_keys,
        LLAMA_TENSORS,
        .block = {llama_attention, qwen_experts, dense_mlp, llama_norms},
        .features =
            expert_features | FEATURE_QKV_BIAS | FEATURE_SHARED_EXPERTS | FEATURE_SHARED_SCALE,
        .read_more = read_qwen_moe,
        .max_seq = 32768,
        .sliding_window = 4096,
        .norm_eps = 1e-6,
    },
    {
        .model_types = {"qwen3_moe"},
        .architectures = {"Qwen3MoeForCausalLM"},
        .keys = &qwen_moe_keys,
        LLAMA_TENSORS,
        .block = {llama_attention, head_qk_norms, qwen_experts, dense_mlp, llama_norms},
        .features = expert_features | FEATURE_QK_NORM,
        .flags = {ATTENTION_BIAS},
        .read_more = read_qwen_moe,
        .kv_heads = 4,
        .max_seq = 32768,
        .sliding_window = 4096,
        .norm_eps = 1e-6,
    },
    {
        .model_types = {"deepseek_v2"},
        .architectures = {"DeepseekV2ForCausalLM"},
        .keys = &deepseek_keys,
        LLAMA_TENSORS,
        .block = {deepseek_attention, dense_mlp, deepseek_v2_router, deepseek_experts, llama_norms},
        .features = expert_features | FEATURE_LATENT | FEATURE_ROPE_PAIRS,
        .flags = {ATTENTION_BIAS},
        .read_more = read_deepseek,
        .max_seq = 2048,
        .norm_eps = 1e-6,
    },
    {
        .model_types = {"deepseek_v3", "kimi_k2"},
        .architectures = {"DeepseekV3ForCausalLM"},
        .keys = &deepseek_keys,
        LLAMA_TENSORS,
        .block = {deepseek_attention, dense_mlp, deepseek_v3_router, deepseek_experts, llama_norms},
        .features = expert_features | FEATURE_LATENT | FEATURE_ROPE_PAIRS,
        .flags = {ATTENTION_BIAS},
        .read_more = read_deepseek,
        .max_seq = 4096,
        .norm_eps = 1e-6,
    },
    {
        .model_types = {"deepseek_v32", "glm_moe_dsa"},
        .architectures = {"DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"},
        .keys = &deepseek_keys,
        LLAMA_TENSORS,
        .block = {deepseek_attention, deepseek_indexer, dense_mlp, deepseek_v3_router,
                  deepseek_experts, llama_norms},
        .features = expert_features | FEATURE_LATENT | FEATURE_ROPE_PAIRS,
        .flags = {ATTENTION_BIAS},
        .read_more = read_deepseek_sparse,
        .max_seq = 4096,
        .norm_eps = 1e-6,
    },
    {
        .model_types = {"gpt_oss"},
        .architectures = {"GptOssForCausalLM"},
        .keys = &llama_keys,
        LLAMA_TENSORS,
        .block = {gpt_oss_sinks, llama_attention, gpt_oss_experts, llama_norms},
        .features = expert_features,
        .flags = {FLAG("attention_bias", TRUE, .if_true = FEATURE_QKV_BIAS | FEATURE_O_BIAS)},
        .read_more = read_local_experts,
        .kv_heads = 8,
        .head_dim = 64,
        .max_seq = 131072,
        .sliding_window = 128,
        .full_every = 2,
        .norm_eps = 1e-5,
    },
    {
        .model_types = {"minimax_m2"},
        .architectures = {"MiniMaxM2ForCausalLM"},
        .keys = &llama_keys,
        LLAMA_TENSORS,
        .block = {llama_attention, wide_qk_norms, minimax_router_bias, mixtral_experts,
                  llama_norms},
        .features = expert_features | FEATURE_QK_NORM | FEATURE_QK_NORM_OF_ALL,
        .flags = {FLAG("use_qk_norm", TRUE, .fixed = TRUE),
                  FLAG("use_routing_bias", TRUE, .fixed = TRUE)},
        .read_more = read_minimax,
        .kv_heads = 8,
        .head_dim = 128,
        .max_seq = 196608,
        .norm_eps = 1e-6,
    },
    {
        .model_types = {"dbrx"},
        .architectures = {"DbrxForCausalLM"},
        .keys = &dbrx_keys,
        .block_prefix = "transformer.blocks.",
        .before = dbrx_before,
        .after = dbrx_after,
        .block = {dbrx_block},
        .features = expert_features | FEATURE_LAYER_NORM,
        .read_more = read_dbrx,
        .kv_heads = 1,
        .max_seq = 2048,
        .norm_eps = 1e-5,
    },
    {.model_types = {NULL}},
};
