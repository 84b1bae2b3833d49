#include "sim/input/model.h"

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
    g_free(model);
}

/* ---- finding ---- */

static int compare_names(gconstpointer a, gconstpointer b)
{
    return g_strcmp0(*(const char *const *)a, *(const char *const *)b);
}

/* The models that ship, sorted. */
static GStrv list_models(const char *models_dir)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    GDir *dir = g_dir_open(models_dir, 0, NULL);

    for (const char *entry; dir != NULL && (entry = g_dir_read_name(dir)) != NULL;) {
        g_autofree char *path = g_build_filename(models_dir, entry, "config.json", NULL);

        if (g_file_test(path, G_FILE_TEST_IS_REGULAR))
            g_ptr_array_add(names, g_strdup(entry));
    }
    if (dir != NULL)
        g_dir_close(dir);
    g_ptr_array_sort(names, compare_names);
    g_ptr_array_add(names, NULL);
    return (GStrv)g_ptr_array_free(g_steal_pointer(&names), FALSE);
}

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

    g_auto(GStrv) names = list_models(models_dir);
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

Model *model_load(const char *where, const char *models_dir, GError **error)
{
    g_autofree char *path = find_config(where, models_dir, error);
    g_autofree char *text = path != NULL ? text_file_read(path, error) : NULL;

    if (text == NULL)
        return NULL;

    g_autofree char *name = name_of(path);
    Model *model = model_parse(text, path, name, error);

    /* Excerpts of GQA models lose this field, and then read as a larger model. */
    if (model != NULL && strstr(text, "\"num_key_value_heads\"") == NULL)
        g_message("%s: num_key_value_heads = %u, assumed: the field is missing", path,
                  model->kv_heads);
    return model;
}

/* ---- tensors ---- */

static void clear_shape(gpointer shape)
{
    g_free(((ParamShape *)shape)->name);
}

static GArray *shapes_new(void)
{
    GArray *shapes = g_array_new(FALSE, FALSE, sizeof(ParamShape));

    g_array_set_clear_func(shapes, clear_shape);
    return shapes;
}

/* @prefix may be empty; cols 0 stands for a vector. */
static void add_shape(GArray *shapes, const char *prefix, const char *name, guint64 rows,
                      guint64 cols)
{
    const ParamShape shape = {
        .name = g_strconcat(prefix, name, NULL),
        .rows = rows,
        .cols = MAX(cols, 1),
        .dims = cols == 0 ? 1 : 2,
    };

    g_array_append_val(shapes, shape);
}

static GArray *block_params(const Model *model)
{
    const guint64 hidden = model->hidden, ffn = model->ffn;
    const guint64 query = (guint64)model->heads * model->head_dim;
    const guint64 kv = (guint64)model->kv_heads * model->head_dim;
    const struct {
        const char *name;
        guint64 rows, cols;
    } params[NUM_BLOCK_PARAMS] = {
        [PARAM_INPUT_NORM] = {.name = "input_layernorm.weight", .rows = hidden},
        [PARAM_Q] = {.name = "self_attn.q_proj.weight", .rows = query, .cols = hidden},
        [PARAM_K] = {.name = "self_attn.k_proj.weight", .rows = kv, .cols = hidden},
        [PARAM_V] = {.name = "self_attn.v_proj.weight", .rows = kv, .cols = hidden},
        [PARAM_O] = {.name = "self_attn.o_proj.weight", .rows = hidden, .cols = query},
        [PARAM_POST_NORM] = {.name = "post_attention_layernorm.weight", .rows = hidden},
        [PARAM_GATE] = {.name = "mlp.gate_proj.weight", .rows = ffn, .cols = hidden},
        [PARAM_UP] = {.name = "mlp.up_proj.weight", .rows = ffn, .cols = hidden},
        [PARAM_DOWN] = {.name = "mlp.down_proj.weight", .rows = hidden, .cols = ffn},
    };
    GArray *shapes = shapes_new();

    for (guint i = 0; i < NUM_BLOCK_PARAMS; i++)
        add_shape(shapes, "", params[i].name, params[i].rows, params[i].cols);
    return shapes;
}

GArray *model_unit_params(const Model *model, UnitKind unit)
{
    if (unit == UNIT_BLOCK)
        return block_params(model);

    GArray *shapes = shapes_new();

    add_shape(shapes, "", "model.embed_tokens.weight", model->vocab, model->hidden);
    add_shape(shapes, "", "model.norm.weight", model->hidden, 0);
    if (!model->tied)
        add_shape(shapes, "", "lm_head.weight", model->vocab, model->hidden);
    return shapes;
}

/* Appends a copy of params[i] under a longer name. */
static void add_copy(GArray *shapes, const char *prefix, const GArray *params, guint i)
{
    const ParamShape *shape = &g_array_index(params, ParamShape, i);

    add_shape(shapes, prefix, shape->name, shape->rows, shape->dims == 1 ? 0 : shape->cols);
}

GArray *model_tensors(const Model *model)
{
    /* The order of LlamaForCausalLM's state_dict(). */
    static const BlockParam order[NUM_BLOCK_PARAMS] = {
        PARAM_Q,  PARAM_K,    PARAM_V,          PARAM_O,         PARAM_GATE,
        PARAM_UP, PARAM_DOWN, PARAM_INPUT_NORM, PARAM_POST_NORM,
    };
    g_autoptr(GArray) root = model_unit_params(model, UNIT_ROOT);
    g_autoptr(GArray) block = model_unit_params(model, UNIT_BLOCK);
    GArray *tensors = shapes_new();

    add_copy(tensors, "", root, PARAM_EMBEDDING);
    for (guint layer = 0; layer < model->layers; layer++) {
        g_autofree char *prefix = g_strdup_printf("model.layers.%u.", layer);

        for (guint i = 0; i < NUM_BLOCK_PARAMS; i++)
            add_copy(tensors, prefix, block, order[i]);
    }
    for (guint i = PARAM_FINAL_NORM; i < root->len; i++)
        add_copy(tensors, "", root, i);
    return tensors;
}

static guint64 unit_elements(const Model *model, UnitKind unit)
{
    g_autoptr(GArray) params = model_unit_params(model, unit);
    guint64 elements = 0;

    for (guint i = 0; i < params->len; i++) {
        const ParamShape *shape = &g_array_index(params, ParamShape, i);

        elements += shape->rows * shape->cols;
    }
    return elements;
}

guint64 model_parameters(const Model *model)
{
    return unit_elements(model, UNIT_ROOT) + model->layers * unit_elements(model, UNIT_BLOCK);
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

/**
 * model_step_flops:
 *
 * Forward, multiply and add counted as two:
 *
 *     matmuls     2 P a token               P = L (2 C H D + 2 C K D + 3 C F) + V C
 *     attention   4 H D a pair and layer    pairs of a sequence = T^2 / 2 - (T - W)^2 / 2
 *
 *     L layers   C hidden   F ffn   V vocab   H, K heads and kv heads   D head_dim
 *     T sequence length   W sliding window, T where there is none or it is longer
 *
 * An attention pair is a row of Q K^T and of P V, 2 D each in each of H heads; the causal mask
 * leaves half of T^2.  The backward pass is twice the forward one: 6 P + 6 L H D T a token without
 * a window.
 *
 * Source: Chowdhery et al., PaLM, arXiv 2204.02311, appendix B (6 N + 12 L H Q T), with attention
 * at half and N without the embedding lookup.
 * Left out: norms, rotary embedding, softmax, loss, optimiser (below 1%).
 */
double model_step_flops(const Model *model, guint64 tokens, guint64 seq_len)
{
    const double query = (double)model->heads * model->head_dim;
    const double kv = (double)model->kv_heads * model->head_dim;
    const double hidden = model->hidden;
    const double block = hidden * (2.0 * query + 2.0 * kv + 3.0 * model->ffn);
    const double matmul_parameters = model->layers * block + (double)model->vocab * hidden;

    const double seq = (double)seq_len;
    const double hidden_by_window =
        model->sliding_window > 0 ? MAX(seq - model->sliding_window, 0.0) : 0.0;
    const double pairs = (seq * seq - hidden_by_window * hidden_by_window) / 2.0;
    const double sequences = (double)tokens / seq;

    return 3.0 * (2.0 * matmul_parameters * (double)tokens +
                  4.0 * query * pairs * model->layers * sequences);
}
