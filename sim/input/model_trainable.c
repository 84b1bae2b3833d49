/* What of a model can be compiled into a program. */
#include "sim/base/error.h"
#include "sim/input/model.h"

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
};

static void append(GString *list, const char *what)
{
    g_string_append_printf(list, "%s%s", list->len > 0 ? ", " : "", what);
}

char *model_untrainable(const Model *model)
{
    const gboolean gated = (model->features & FEATURE_GATED) != 0;
    const gboolean layer_norm = (model->features & FEATURE_LAYER_NORM) != 0;
    const gboolean norm_bias = (model->features & FEATURE_NORM_BIAS) != 0;
    g_autoptr(GString) list = g_string_new(NULL);

    for (guint i = 0; i < G_N_ELEMENTS(untrained); i++)
        if ((model->features & untrained[i].feature) != 0)
            append(list, untrained[i].what);
    if (layer_norm != norm_bias)
        append(list, layer_norm ? "LayerNorm without a bias" : "RMSNorm with a bias");
    if (gated && model->activation != ACTIVATION_SILU)
        append(list, "a gated MLP with another activation than silu");
    if (!gated && model->activation != ACTIVATION_GELU_TANH)
        append(list, "an MLP of two matrices with another activation than gelu's tanh form");
    if (model->full_every != 0)
        append(list, "blocks with and without a window");
    return list->len == 0 ? NULL : g_string_free(g_steal_pointer(&list), FALSE);
}

gboolean model_check_trainable(const Model *model, GError **error)
{
    g_autofree char *missing = model_untrainable(model);

    return missing == NULL ||
           fail(error, ERROR_INPUT,
                "model %s (%s) can be counted but not yet planned or trained: it has %s",
                model->name, model->model_type, missing);
}
