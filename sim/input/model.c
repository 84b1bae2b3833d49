#include "sim/input/model_family.h"

#include "sim/base/data_dirs.h"
#include "sim/base/error.h"
#include "sim/base/nearest.h"
#include "sim/base/text_file.h"

#include <math.h>
#include <string.h>

void model_free(Model *model)
{
    if (model == NULL)
        return;
    g_free(model->name);
    g_free(model->model_type);
    g_free(model->config_text);
    g_free(model->kinds);
    g_free(model->kind_of);
    model_cuts_free(model->cuts);
    g_free(model);
}

/* ---- finding ---- */

/* The path of the config.json that @where means. */
static char *find_config(const char *where, const char *models_dir, GError **error)
{
    g_autofree char *lower = g_ascii_strdown(where, -1);
    g_autofree char *in_folder = g_build_filename(where, "config.json", NULL);
    g_autofree char *shipped = g_build_filename(models_dir, lower, "config.json", NULL);
    const gboolean is_name = *where != '\0' && strchr(where, G_DIR_SEPARATOR) == NULL;

    if (*where != '\0' && g_file_test(in_folder, G_FILE_TEST_EXISTS))
        return g_steal_pointer(&in_folder);
    if (g_file_test(where, G_FILE_TEST_EXISTS) && !g_file_test(where, G_FILE_TEST_IS_DIR))
        return g_strdup(where);
    if (is_name && g_file_test(shipped, G_FILE_TEST_EXISTS))
        return g_steal_pointer(&shipped);

    g_auto(GStrv) names = data_names(models_dir, "config.json");
    g_autofree char *hint = nearest_hint(lower, (const char *const *)names);
    g_autofree char *all = g_strjoinv(", ", names);

    fail(error, ERROR_INPUT,
         "model \"%s\" is not known%s; allowed: a folder with config.json, that file, or one of %s",
         where, hint, all);
    return NULL;
}

/* The folder's name; the file's own where it is not called config.json. */
static char *name_of(const char *path)
{
    g_autofree char *absolute = g_canonicalize_filename(path, NULL);
    g_autofree char *base = g_path_get_basename(absolute);

    if (!g_str_equal(base, "config.json")) {
        if (g_str_has_suffix(base, ".json"))
            base[strlen(base) - strlen(".json")] = '\0';
        return g_steal_pointer(&base);
    }
    g_autofree char *folder = g_path_get_dirname(absolute);
    g_autofree char *name = g_path_get_basename(folder);

    return g_str_equal(name, G_DIR_SEPARATOR_S) ? NULL : g_steal_pointer(&name);
}

static gboolean mentions(const char *text, const char *key)
{
    g_autofree char *quoted = g_strdup_printf("\"%s\"", key);

    return strstr(text, quoted) != NULL;
}

/* Excerpts of configurations lose this field, and then read as a larger or a smaller model; what
 * else decides which tensors there are may be lost with it. */
static void note_assumed(const Model *model, const char *path, const char *text)
{
    const ModelFamily *family = model->family;
    const char *key = family->keys->kv_heads_from;
    g_autoptr(GString) others = g_string_new(NULL);

    if (key == NULL || mentions(text, key))
        return;
    for (guint i = 0; i < MAX_FLAGS && family->flags[i].key != NULL; i++)
        if (!family->flags[i].fixed && !mentions(text, family->flags[i].key))
            g_string_append_printf(others, "%s \"%s\" (%s)", others->len == 0 ? "; so are" : ",",
                                   family->flags[i].key, family->flags[i].value ? "true" : "false");
    g_message("%s: %u kv heads assumed: the field \"%s\" is missing%s", path, model->kv_heads, key,
              others->str);
}

Model *model_load(const char *where, const char *models_dir, GError **error)
{
    g_autofree char *path = find_config(where, models_dir, error);
    g_autofree char *text = path != NULL ? text_file_read(path, error) : NULL;

    if (text == NULL)
        return NULL;

    g_autofree char *name = name_of(path);
    Model *model = model_parse(text, path, name, error);

    if (model != NULL)
        note_assumed(model, path, text);
    return model;
}

/* ---- arithmetic ---- */

/*
 * Scaling of Llama 3.1, by wavelength w = 2 pi / f and the trained length S:
 *
 *     w < S / high          f
 *     w > S / low           f / factor
 *     between               (1 - t) f / factor + t f,   t = (S / w - low) / (high - low)
 *
 * Source: transformers, modeling_rope_utils.py, _compute_llama3_parameters.
 */
static double scale_frequency(const RopeScaling *scaling, double frequency)
{
    if (scaling->factor == 1.0)
        return frequency;

    const double turns = scaling->original_max_seq * frequency / (2.0 * G_PI); /* S / w */

    if (turns > scaling->high_freq_factor)
        return frequency;
    if (turns < scaling->low_freq_factor)
        return frequency / scaling->factor;

    const double t =
        (turns - scaling->low_freq_factor) / (scaling->high_freq_factor - scaling->low_freq_factor);

    return (1.0 - t) * frequency / scaling->factor + t * frequency;
}

void model_rope_frequencies(const Model *model, double *inverse)
{
    for (guint i = 0; i < model->head_dim / 2; i++) {
        const double frequency = pow(model->rope_theta, -2.0 * i / model->head_dim);

        inverse[i] = scale_frequency(&model->rope_scaling, frequency);
    }
}

/* LayerNorm's, of the one family that has such. */
gboolean model_norms_heads_apart(const Model *model)
{
    const guint32 both = FEATURE_LAYER_NORM | FEATURE_QK_NORM;

    return (model->features & both) == both;
}

guint model_value_dim(const Model *model)
{
    return model->latent.value_dim != 0 ? model->latent.value_dim : model->head_dim;
}

/**
 * model_seen_pairs:
 *
 * Of chosen keys k are read where there are as many: what a window of k leaves.
 *
 *     (L T^2 / 2 - (L - F) (T - W)^2 / 2) / (L T^2 / 2)
 *
 *     L layers   F of them without a window   T sequence length   W window, T where it is longer
 *
 * Left out: the diagonal, T / 2 pairs more in each.
 */
double model_seen_pairs(const Model *model, guint64 seq_len)
{
    const double seq = (double)seq_len;
    const guint window =
        model->latent.top_keys > 0 ? model->latent.top_keys : model->sliding_window;
    const double hidden = window > 0 ? MAX(seq - window, 0.0) : 0.0;
    const guint full = model->full_every > 0 ? model->layers / model->full_every : 0;

    return 1 - (double)(model->layers - full) / model->layers * (hidden / seq) * (hidden / seq);
}

static guint num_attention_blocks(const Model *model)
{
    guint count = 0;

    if (model->num_kinds == 0)
        return model->layers;
    for (guint i = 0; i < model->layers; i++)
        count += model->kinds[model_block_kind(model, i)].attention ? 1 : 0;
    return count;
}

/* Of a query and a key, in all heads, forward: in the latent space where keys are chosen. */
static double pair_flops(const Model *model)
{
    const LatentAttention *latent = &model->latent;
    const double plain = (double)model->head_dim + (double)model_value_dim(model);
    const double chosen = 2.0 * latent->kv_rank + latent->rope_dim;

    return 2.0 * model->heads * (latent->top_keys > 0 ? chosen : plain);
}

/* What the indexer's matrices need less than others: a gradient of what they read. */
static double index_unneeded(const Model *model)
{
    const LatentAttention *latent = &model->latent;
    const double query = (double)latent->index_heads * latent->index_dim;
    const double read = (double)latent->index_heads + latent->index_dim;

    return model->layers * (query * latent->q_rank + read * model->hidden);
}

/**
 * model_step_flops:
 *
 * Forward, multiply and add counted as two:
 *
 *     matmuls     2 P a token               P = the matrices that a token is multiplied by: of
 *                                           experts those that it visits; the head, not the
 *                                           embedding
 *     attention   2 H (D + D') a pair       pairs of a sequence = s T^2 / 2 in each layer that
 *                                           has attention
 *     indexer     2 HI DI a pair            all T^2 / 2
 *
 *     H heads   D head_dim of queries and keys   D' of values (D but in latent attention)
 *     T sequence length   s of all pairs those in windows or chosen: model_seen_pairs()
 *     HI, DI  heads of an indexer and their width; D and D' are those of the latent space then
 *
 * An attention pair is a row of Q K^T and of P V in each of H heads; the causal mask leaves half of
 * T^2.  The backward pass is twice the forward one: 6 P + 6 L H D T a token in L layers without a
 * window.  That of an indexer is 4 HI DI a chosen pair, and its matrices give no gradient to what
 * they read (build_indexed.c says why).
 *
 * Source: Chowdhery et al., PaLM, arXiv 2204.02311, appendix B (6 N + 12 L H Q T), with attention
 * at half and N without the embedding lookup.
 * Left out: norms, biases, positions, softmax, loss, optimiser (below 1%); the scan of Mamba-2.
 */
double model_step_flops(const Model *model, guint64 tokens, guint64 seq_len)
{
    const LatentAttention *latent = &model->latent;
    const double seq = (double)seq_len;
    const double all = num_attention_blocks(model) * seq * seq / 2.0;
    const double pairs = all * model_seen_pairs(model, seq_len);
    const double index = 2.0 * latent->index_heads * latent->index_dim * (all + 2 * pairs);
    const double sequences = (double)tokens / seq;
    const double matmuls = 6.0 * model_matrix_parameters(model) - 2.0 * index_unneeded(model);

    return matmuls * (double)tokens + (3.0 * pair_flops(model) * pairs + index) * sequences;
}
