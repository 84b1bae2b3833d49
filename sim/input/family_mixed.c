/* Families whose blocks differ in more than experts: each may lack attention or MLP, or have
 * another width. */
#include "sim/base/error.h"
#include "sim/input/model_family.h"

#include <string.h>

#define ATTENTION(role, name, rows, cols, bias_)                                                   \
    MATRIX(role, name, rows, cols, .where = IN_ATTENTION_BLOCKS, .bias = bias_)
#define MLP(role, name, rows, cols)                                                                \
    MATRIX(role, name, rows, cols, .where = IN_MLP_BLOCKS, .bias = FEATURE_MLP_BIAS)

/* Block @block is made of @parts, like those of a kind before, or as the first of a new one. */
static gboolean add_block(Model *model, const JsonText *json, guint block, const BlockParts *parts,
                          GError **error)
{
    guint kind = 0;

    while (kind < model->num_kinds && memcmp(&model->kinds[kind], parts, sizeof *parts) != 0)
        kind++;
    if (kind == MAX_BLOCK_KINDS)
        return fail(error, ERROR_INPUT,
                    "%s: block %u is of another shape than the %d before it; "
                    "allowed: %d shapes of blocks",
                    json_source(json), block, kind, MAX_BLOCK_KINDS);
    if (kind == model->num_kinds)
        model->kinds[model->num_kinds++] = *parts;
    model->kind_of[block] = (guint8)kind;
    return TRUE;
}

static void init_blocks(Model *model)
{
    model->kinds = g_new0(BlockParts, MAX_BLOCK_KINDS);
    model->kind_of = g_new0(guint8, model->layers);
}

/* ---- Nemotron-NAS: Llama's blocks, from which a search took some parts away ---- */

static const Module nas_block[] = {
    ATTENTION(PARAM_Q, "self_attn.q_proj", DIM_QUERY, DIM_HIDDEN, FEATURE_QKV_BIAS),
    ATTENTION(PARAM_K, "self_attn.k_proj", DIM_KV, DIM_HIDDEN, FEATURE_QKV_BIAS),
    ATTENTION(PARAM_V, "self_attn.v_proj", DIM_KV, DIM_HIDDEN, FEATURE_QKV_BIAS),
    ATTENTION(PARAM_O, "self_attn.o_proj", DIM_HIDDEN, DIM_QUERY, FEATURE_O_BIAS),
    MLP(PARAM_GATE, "mlp.gate_proj", DIM_FFN, DIM_HIDDEN),
    MLP(PARAM_UP, "mlp.up_proj", DIM_FFN, DIM_HIDDEN),
    MLP(PARAM_DOWN, "mlp.down_proj", DIM_HIDDEN, DIM_FFN),
    VECTOR(PARAM_INPUT_NORM, "input_layernorm", DIM_HIDDEN, .where = IN_ATTENTION_BLOCKS),
    VECTOR(PARAM_POST_NORM, "post_attention_layernorm", DIM_HIDDEN, .where = IN_MLP_BLOCKS),
    END_OF_LIST,
};

/* Widths are of blocks, kv heads too. */
static const Keys nas_keys = {
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

static char *block_field(guint block, const char *name)
{
    return g_strdup_printf("block_configs.%u.%s", block, name);
}

/* What only other members of the family have. */
static gboolean refuse_flag(const JsonText *json, guint block, const char *name, GError **error)
{
    g_autofree char *field = block_field(block, name);
    gboolean value = FALSE;

    if (!json_optional_bool(json, field, &value, error))
        return FALSE;
    return !value || fail(error, ERROR_INPUT, "%s: field \"%s\" is true; allowed: false",
                          json_source(json), field);
}

static gboolean read_nas_attention(const Model *model, const JsonText *json, guint block,
                                   BlockParts *parts, GError **error)
{
    g_autofree char *none = block_field(block, "attention.no_op");
    g_autofree char *group = block_field(block, "attention.n_heads_in_group");
    gboolean no_op = FALSE;
    guint queries = 0;

    if (!refuse_flag(json, block, "attention.replace_with_linear", error) ||
        !json_optional_bool(json, none, &no_op, error))
        return FALSE;
    parts->attention = !no_op;
    if (no_op)
        return TRUE;
    if (!json_uint32(json, group, 1, model->heads, &queries, error))
        return FALSE;
    if (model->heads % queries != 0)
        return fail(error, ERROR_INPUT,
                    "%s: field \"%s\" is %u; allowed: divisors of num_attention_heads, %u",
                    json_source(json), group, queries, model->heads);
    parts->kv_heads = model->heads / queries;
    return TRUE;
}

/* 2/3 of mult x hidden, rounded down, then up to a multiple of 256: DeciLM's
 * _ffn_mult_to_intermediate_size(). */
static guint nas_ffn(guint hidden, double mult)
{
    const guint ffn = (guint)(2 * mult * hidden / 3);

    return (ffn + 255) / 256 * 256;
}

static gboolean read_nas_mlp(const Model *model, const JsonText *json, guint block,
                             BlockParts *parts, GError **error)
{
    g_autofree char *none = block_field(block, "ffn.no_op");
    g_autofree char *width = block_field(block, "ffn.ffn_mult");
    gboolean no_op = FALSE;
    double mult = 0;

    if (!refuse_flag(json, block, "ffn.replace_with_linear", error) ||
        !json_optional_bool(json, none, &no_op, error))
        return FALSE;
    parts->mlp = !no_op;
    if (no_op)
        return TRUE;
    if (!json_double(json, width, 1e-3, 1.5 * MAX_FFN / model->hidden, &mult, error))
        return FALSE;
    parts->ffn = nas_ffn(model->hidden, mult);
    return TRUE;
}

static gboolean read_nas(Model *model, const JsonText *json, GError **error)
{
    guint blocks = 0;

    if (!json_length(json, "block_configs", &blocks, error))
        return FALSE;
    if (blocks != model->layers)
        return fail(error, ERROR_INPUT,
                    "%s: field \"block_configs\" has %u blocks; allowed: num_hidden_layers, %u",
                    json_source(json), blocks, model->layers);
    init_blocks(model);
    model->kv_heads = model->ffn = 0;
    for (guint i = 0; i < blocks; i++) {
        BlockParts parts = {0};

        if (!read_nas_attention(model, json, i, &parts, error) ||
            !read_nas_mlp(model, json, i, &parts, error) ||
            !add_block(model, json, i, &parts, error))
            return FALSE;
        model->kv_heads = MAX(model->kv_heads, parts.kv_heads);
        model->ffn = MAX(model->ffn, parts.ffn);
    }
    model->kv_heads = MAX(model->kv_heads, 1);
    return TRUE;
}

/* ---- Nemotron-H: one thing a block, Mamba-2, attention or an MLP ---- */

#define MAMBA_VECTOR(name, rows, ...)                                                              \
    VECTOR(PARAM_OTHER, "mixer." name, rows, .where = IN_MAMBA_BLOCKS, ##__VA_ARGS__)

static const Module hybrid_block[] = {
    VECTOR(PARAM_INPUT_NORM, "norm", DIM_HIDDEN),
    MAMBA_VECTOR("A_log", DIM_MAMBA_HEADS, .exact = TRUE),
    MAMBA_VECTOR("D", DIM_MAMBA_HEADS, .exact = TRUE),
    MAMBA_VECTOR("dt_bias", DIM_MAMBA_HEADS, .exact = TRUE),
    MATRIX(PARAM_OTHER, "mixer.conv1d", DIM_ONE, DIM_MAMBA_KERNEL, .where = IN_MAMBA_BLOCKS,
           .times = EACH_CHANNEL),
    MAMBA_VECTOR("conv1d.bias", DIM_MAMBA_CONV, .exact = TRUE),
    MATRIX(PARAM_OTHER, "mixer.in_proj", DIM_MAMBA_IN, DIM_HIDDEN, .where = IN_MAMBA_BLOCKS),
    MAMBA_VECTOR("norm", DIM_MAMBA_INNER),
    MATRIX(PARAM_OTHER, "mixer.out_proj", DIM_HIDDEN, DIM_MAMBA_INNER, .where = IN_MAMBA_BLOCKS),
    ATTENTION(PARAM_Q, "mixer.q_proj", DIM_QUERY, DIM_HIDDEN, FEATURE_QKV_BIAS),
    ATTENTION(PARAM_K, "mixer.k_proj", DIM_KV, DIM_HIDDEN, FEATURE_QKV_BIAS),
    ATTENTION(PARAM_V, "mixer.v_proj", DIM_KV, DIM_HIDDEN, FEATURE_QKV_BIAS),
    ATTENTION(PARAM_O, "mixer.o_proj", DIM_HIDDEN, DIM_QUERY, FEATURE_O_BIAS),
    MLP(PARAM_UP, "mixer.up_proj", DIM_FFN, DIM_HIDDEN),
    MLP(PARAM_DOWN, "mixer.down_proj", DIM_HIDDEN, DIM_FFN),
    END_OF_LIST,
};

static const Module hybrid_before[] = {
    MATRIX(PARAM_EMBEDDING, "backbone.embeddings", DIM_VOCAB, DIM_HIDDEN),
    END_OF_LIST,
};

static const Module hybrid_after[] = {
    VECTOR(PARAM_FINAL_NORM, "backbone.norm_f", DIM_HIDDEN),
    MATRIX(PARAM_HEAD, "lm_head", DIM_VOCAB, DIM_HIDDEN, .when = FEATURE_UNTIED),
    END_OF_LIST,
};

static const Keys hybrid_keys = {
    .layers = "num_hidden_layers",
    .hidden = "hidden_size",
    .heads = "num_attention_heads",
    .kv_heads = "num_key_value_heads",
    .ffn = "intermediate_size",
    .max_seq = "max_position_embeddings",
    .init_std = "initializer_range",
    .norm_eps = "layer_norm_epsilon|rms_norm_eps",
    .activation = "mlp_hidden_act",
};

static gboolean read_mamba(Model *model, const JsonText *json, GError **error)
{
    Mamba *mamba = &model->mamba;

    return json_uint32(json, "mamba_num_heads", 1, MAX_HEADS, &mamba->heads, error) &&
           json_uint32(json, "mamba_head_dim", 1, MAX_HEAD_DIM, &mamba->head_dim, error) &&
           json_uint32(json, "n_groups", 1, mamba->heads, &mamba->groups, error) &&
           json_uint32(json, "ssm_state_size", 1, MAX_HEAD_DIM, &mamba->state, error) &&
           json_uint32(json, "conv_kernel", 1, MAX_HEAD_DIM, &mamba->kernel, error);
}

static gboolean read_hybrid(Model *model, const JsonText *json, GError **error)
{
    const char *pattern = NULL;

    if (!json_string(json, "hybrid_override_pattern", &pattern, error) ||
        !json_optional_uint32(json, "attention_head_dim", 1, MAX_HEAD_DIM, &model->head_dim,
                              error) ||
        !read_mamba(model, json, error))
        return FALSE;
    if (strlen(pattern) != model->layers || strspn(pattern, "M*-") != model->layers)
        return fail(error, ERROR_INPUT,
                    "%s: field \"hybrid_override_pattern\" is \"%s\"; allowed: M, * or - for each "
                    "of num_hidden_layers, %u",
                    json_source(json), pattern, model->layers);
    init_blocks(model);
    for (guint i = 0; i < model->layers; i++) {
        const BlockParts parts = {.attention = pattern[i] == '*',
                                  .mlp = pattern[i] == '-',
                                  .mamba = pattern[i] == 'M',
                                  .kv_heads = model->kv_heads,
                                  .ffn = model->ffn};

        if (!add_block(model, json, i, &parts, error))
            return FALSE;
    }
    return TRUE;
}

const ModelFamily mixed_families[] = {
    {
        .model_types = {"nemotron-nas"},
        .architectures = {"DeciLMForCausalLM"},
        .keys = &nas_keys,
        .block_prefix = "model.layers.",
        .before = llama_before,
        .after = llama_after,
        .block = {nas_block},
        .features = FEATURE_ROPE | FEATURE_GATED,
        .flags = {FLAG("attention_bias", FALSE, .if_true = FEATURE_QKV_BIAS | FEATURE_O_BIAS),
                  FLAG("mlp_bias", FALSE, .if_true = FEATURE_MLP_BIAS)},
        .read_more = read_nas,
        .ffn_ratio = 1, /* no width of its own: blocks have theirs */
        .max_seq = 2048,
        .norm_eps = 1e-6,
    },
    {
        .model_types = {"nemotron_h"},
        .architectures = {"NemotronHForCausalLM"},
        .keys = &hybrid_keys,
        .block_prefix = "backbone.layers.",
        .before = hybrid_before,
        .after = hybrid_after,
        .block = {hybrid_block},
        .flags = {FLAG("attention_bias", FALSE, .if_true = FEATURE_QKV_BIAS | FEATURE_O_BIAS),
                  FLAG("mlp_bias", FALSE, .if_true = FEATURE_MLP_BIAS),
                  FLAG("use_conv_bias", TRUE, .fixed = TRUE),
                  FLAG("mamba_proj_bias", FALSE, .fixed = TRUE),
                  FLAG("use_bias", FALSE, .fixed = TRUE)},
        .read_more = read_hybrid,
        .kv_heads = 8,
        .head_dim = 128,
        .max_seq = 4096,
        .activation = ACTIVATION_RELU2,
        .norm_eps = 1e-5,
    },
    {.model_types = {NULL}},
};
