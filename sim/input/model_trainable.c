/* What of a model can be compiled into a program, and what of it kernels compute. */
#include "sim/base/error.h"
#include "sim/input/model.h"

/* What the kernels lack.  Programs have it: as another op of the same sizes, or for nothing, as it
 * is folded into one. */
static const struct {
    guint32 feature;
    const char *what;
} untrained[] = {
    {FEATURE_BARE_NORM, "norms without parameters"},
    {FEATURE_NORM_OFFSET, "norms that multiply by 1 + weight"},
    {FEATURE_OUTPUT_NORMS, "norms of what attention and MLP give"},
    {FEATURE_POST_NORM, "norms after the sum"},
    {FEATURE_QK_NORM, "norms of queries and keys"},
    {FEATURE_HEAD_BIAS, "a bias of the head"},
    {FEATURE_PARTIAL_ROPE, "rotary embedding of a part of each head"},
    {FEATURE_ROPE_PAIRS, "rotary embedding of neighbouring pairs"},
    {FEATURE_ROPE_SCALED, "rope_scaling of another type than llama3"},
    {FEATURE_ALIBI, "ALiBi"},
    {FEATURE_PARALLEL, "attention and MLP in parallel"},
    {FEATURE_EMBED_SCALED, "a scaled embedding"},
    {FEATURE_EMBED_NORM, "a norm of the embedding"},
    {FEATURE_EMBED_PROJECTED, "an embedding of another width"},
    {FEATURE_LOGITS_CHANGED, "capped or scaled logits"},
    {FEATURE_LATENT, "latent attention"},
    {FEATURE_EXPERTS, "mixture of experts"},
    {FEATURE_SHARED_SCALE, "a gate of what shared experts give"},
};

/* The same of parameters that no feature tells of. */
static const struct {
    UnitKind unit;
    ParamRole role;
    const char *what;
} untrained_params[] = {
    {UNIT_SPARSE, PARAM_SINKS, "attention sinks"},
    {UNIT_EXPERTS, PARAM_EXPERT_DOWN_BIAS, "biases of experts"},
};

static void append(GString *list, const char *what)
{
    g_string_append_printf(list, "%s%s", list->len > 0 ? ", " : "", what);
}

/* Neither can be planned. */
static void append_odd_norms(GString *list, const Model *model)
{
    const guint32 norms = model->features & (FEATURE_LAYER_NORM | FEATURE_NORM_BIAS);

    if (norms == FEATURE_NORM_BIAS)
        append(list, "RMSNorm with a bias");
}

/* No pass builds such blocks. */
static void append_unbuilt_blocks(GString *list, const Model *model)
{
    gboolean empty = FALSE, others = FALSE;

    for (guint k = 0; k < model->num_kinds; k++) {
        const BlockParts *parts = &model->kinds[k];

        empty |= !parts->attention && !parts->mlp && !parts->mamba;
        others |= parts->mamba;
    }
    if (empty)
        append(list, "blocks without attention and MLP");
    if (others)
        append(list, "Mamba-2 blocks");
}

static void append_unread_of(GString *list, const Model *model, UnitKind unit)
{
    g_autoptr(GArray) params = model_unit_params(model, unit);

    for (guint i = 0; i < params->len; i++)
        if (g_array_index(params, ParamShape, i).role == PARAM_OTHER)
            append(list, g_array_index(params, ParamShape, i).name);
}

/* Parameters that no op reads: of what is not told by a feature. */
static void append_unread(GString *list, const Model *model)
{
    append_unread_of(list, model, UNIT_ROOT);
    for (guint k = 0; k < model_num_kinds(model); k++) {
        const Model one = model_of_kind(model, k);

        if (!model_has_kind(model, k))
            continue;
        if (!model_kind_is_sparse(model, k)) {
            append_unread_of(list, &one, UNIT_BLOCK);
            continue;
        }
        append_unread_of(list, &one, UNIT_SPARSE);
        append_unread_of(list, &one, UNIT_EXPERTS);
    }
}

char *model_unplannable(const Model *model)
{
    g_autoptr(GString) list = g_string_new(NULL);

    append_odd_norms(list, model);
    append_unbuilt_blocks(list, model);
    if (list->len == 0)
        append_unread(list, model);
    return list->len == 0 ? NULL : g_string_free(g_steal_pointer(&list), FALSE);
}

char *model_untrainable(const Model *model)
{
    const gboolean gated = (model->features & FEATURE_GATED) != 0;
    const guint32 norms = model->features & (FEATURE_LAYER_NORM | FEATURE_NORM_BIAS);
    g_autoptr(GString) list = g_string_new(NULL);

    for (guint i = 0; i < G_N_ELEMENTS(untrained); i++)
        if ((model->features & untrained[i].feature) != 0)
            append(list, untrained[i].what);
    for (guint i = 0; model->num_kinds == 0 && i < G_N_ELEMENTS(untrained_params); i++)
        if (model_param_index(model, untrained_params[i].unit, untrained_params[i].role) >= 0)
            append(list, untrained_params[i].what);
    append_odd_norms(list, model);
    append_unbuilt_blocks(list, model);
    if (model->num_kinds > 0)
        append(list, "blocks that differ in more than experts");
    if (model->latent.top_keys != 0)
        append(list, "attention to the keys that an indexer chooses");
    if (norms == FEATURE_LAYER_NORM)
        append(list, "LayerNorm without a bias");
    if (gated && model->activation != ACTIVATION_SILU)
        append(list, "a gated MLP with another activation than silu");
    if (!gated && model->activation != ACTIVATION_GELU_TANH)
        append(list, "an MLP of two matrices with another activation than gelu's tanh form");
    if (model->full_every != 0)
        append(list, "blocks with and without a window");
    return list->len == 0 ? NULL : g_string_free(g_steal_pointer(&list), FALSE);
}

gboolean model_check_plannable(const Model *model, GError **error)
{
    g_autofree char *missing = model_unplannable(model);

    return missing == NULL ||
           fail(error, ERROR_INPUT, "model %s (%s) can be counted but not yet planned: it has %s",
                model->name, model->model_type, missing);
}

gboolean model_check_trainable(const Model *model, GError **error)
{
    g_autofree char *missing = model_untrainable(model);

    return missing == NULL ||
           fail(error, ERROR_INPUT, "model %s (%s) can be planned but not yet trained: it has %s",
                model->name, model->model_type, missing);
}
