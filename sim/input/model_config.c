/* config.json -> Model. */
#include "sim/base/error.h"
#include "sim/input/model_family.h"

#include <string.h>

static const double max_parameters = 1e15;

static const ModelFamily *const tables[] = {llama_families, gpt_families, expert_families,
                                            mixed_families};

/* ---- family ---- */

static gboolean is_one_of(const char *name, const char *const names[MAX_ALIASES])
{
    for (guint i = 0; i < MAX_ALIASES && names[i] != NULL; i++)
        if (g_ascii_strcasecmp(name, names[i]) == 0)
            return TRUE;
    return FALSE;
}

static gboolean has_architecture(const JsonText *json, const ModelFamily *family)
{
    guint length = 0;

    if (!json_has(json, "architectures") || !json_length(json, "architectures", &length, NULL))
        return FALSE;
    for (guint i = 0; i < length; i++) {
        g_autofree char *field = g_strdup_printf("architectures.%u", i);
        const char *name;

        if (json_string(json, field, &name, NULL) && is_one_of(name, family->architectures))
            return TRUE;
    }
    return FALSE;
}

/* "llama (LlamaForCausalLM), gpt2 (...), ..." */
static char *known_families(void)
{
    g_autoptr(GString) known = g_string_new(NULL);

    for (guint t = 0; t < G_N_ELEMENTS(tables); t++)
        for (const ModelFamily *family = tables[t]; family->model_types[0] != NULL; family++)
            g_string_append_printf(known, "%s%s (%s)", known->len > 0 ? ", " : "",
                                   family->model_types[0], family->architectures[0]);
    return g_string_free(g_steal_pointer(&known), FALSE);
}

/* model_type decides; where it is absent, architectures; a file that has both must agree. */
static const ModelFamily *match_family(const JsonText *json, const char *model_type, guint listed)
{
    for (guint t = 0; t < G_N_ELEMENTS(tables); t++)
        for (const ModelFamily *family = tables[t]; family->model_types[0] != NULL; family++) {
            const gboolean by_architecture = has_architecture(json, family);

            if (model_type == NULL ? by_architecture
                                   : is_one_of(model_type, family->model_types) &&
                                         (by_architecture || listed == 0))
                return family;
        }
    return NULL;
}

static gboolean is_known(const char *model_type)
{
    for (guint t = 0; t < G_N_ELEMENTS(tables); t++)
        for (const ModelFamily *family = tables[t]; family->model_types[0] != NULL; family++)
            if (is_one_of(model_type, family->model_types))
                return TRUE;
    return FALSE;
}

/* Of a file whose language model is an object of it, as where pictures are read too; else "". */
static char *nested_hint(const JsonText *json)
{
    const char *nested = NULL;

    if (!json_has(json, "text_config") ||
        !json_optional_string(json, "text_config.model_type", &nested, NULL) || nested == NULL ||
        !is_known(nested))
        return g_strdup("");
    return g_strdup_printf(
        " (its \"text_config\", a %s, is the language model: in a file of its own "
        "it can be read)",
        nested);
}

static const ModelFamily *find_family(const JsonText *json, GError **error)
{
    const char *model_type = NULL, *first = "none";
    guint listed = 0;

    if (!json_optional_string(json, "model_type", &model_type, error) ||
        (json_has(json, "architectures") && !json_length(json, "architectures", &listed, error)))
        return NULL;
    const ModelFamily *family = match_family(json, model_type, listed);

    if (family != NULL || (listed > 0 && !json_string(json, "architectures.0", &first, error)))
        return family;
    g_autofree char *known = known_families(), *nested = nested_hint(json);
    g_autofree char *architecture =
        listed > 0 ? g_strconcat(" of architecture ", first, NULL) : g_strdup("");

    if (model_type == NULL)
        fail(error, ERROR_INPUT,
             "%s: no field \"model_type\", and \"architectures\" is %s; known: %s",
             json_source(json), first, known);
    else
        fail(error, ERROR_INPUT, "%s: model_type \"%s\"%s is not known%s; known: %s",
             json_source(json), model_type, architecture, nested, known);
    return NULL;
}

/* ---- fields ---- */

char *model_find_key(const JsonText *json, const char *names)
{
    g_auto(GStrv) keys = g_strsplit(names != NULL ? names : "", "|", -1);

    for (guint i = 0; keys[i] != NULL; i++)
        if (json_has(json, keys[i]))
            return g_strdup(keys[i]);
    return g_strdup(keys[0]); /* NULL where there are no names */
}

static gboolean read_size(const JsonText *json, const char *names, guint max, guint *out,
                          GError **error)
{
    g_autofree char *key = model_find_key(json, names);

    return json_uint32(json, key, 1, max, out, error);
}

/* What a family has no name for stays as it is. */
static gboolean read_optional_size(const JsonText *json, const char *names, guint min, guint max,
                                   guint *out, GError **error)
{
    g_autofree char *key = model_find_key(json, names);

    return key == NULL || json_optional_uint32(json, key, min, max, out, error);
}

static gboolean read_optional_number(const JsonText *json, const char *names, double max,
                                     double *out, GError **error)
{
    g_autofree char *key = model_find_key(json, names);

    return key == NULL || json_optional_double(json, key, 0.0, max, out, error);
}

static gboolean read_flags(Model *model, const JsonText *json, GError **error)
{
    const Flag *flags = model->family->flags;

    for (guint i = 0; i < MAX_FLAGS && flags[i].key != NULL; i++) {
        gboolean value = flags[i].value;

        if (!json_optional_bool(json, flags[i].key, &value, error))
            return FALSE;
        if (flags[i].fixed && value != flags[i].value)
            return fail(error, ERROR_INPUT, "%s: field \"%s\" is %s; allowed: %s",
                        json_source(json), flags[i].key, value ? "true" : "false",
                        value ? "false" : "true");
        model->features |= value ? flags[i].if_true : flags[i].if_false;
    }
    return TRUE;
}

/* Names that transformers' table of activations has. */
static gboolean read_activation(Model *model, const JsonText *json, GError **error)
{
    static const struct {
        const char *name;
        Activation activation;
    } known[] = {
        {"silu", ACTIVATION_SILU},           {"swish", ACTIVATION_SILU},
        {"gelu_new", ACTIVATION_GELU_TANH},  {"gelu_pytorch_tanh", ACTIVATION_GELU_TANH},
        {"gelu_fast", ACTIVATION_GELU_TANH}, {"gelu", ACTIVATION_GELU},
        {"relu", ACTIVATION_RELU},           {"relu2", ACTIVATION_RELU2},
    };
    g_autofree char *key = model_find_key(json, model->family->keys->activation);
    const char *name = NULL;

    model->activation = model->family->activation;
    if (key != NULL && !json_optional_string(json, key, &name, error))
        return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(known) && name != NULL; i++) {
        if (g_str_equal(name, known[i].name)) {
            model->activation = known[i].activation;
            return TRUE;
        }
    }
    return name == NULL || fail(error, ERROR_INPUT,
                                "%s: field \"%s\" is \"%s\"; allowed: silu, swish, gelu_new, "
                                "gelu_pytorch_tanh, gelu_fast, gelu, relu, relu2",
                                json_source(json), key, name);
}

/* ---- sizes ---- */

static gboolean check_heads(const Model *model, const JsonText *json, GError **error)
{
    const Keys *keys = model->family->keys;
    g_autofree char *hidden = model_find_key(json, keys->hidden);
    g_autofree char *heads = model_find_key(json, keys->heads);

    if (model->heads % model->kv_heads != 0)
        return fail(error, ERROR_INPUT, "%s: field \"%s\" is %u; allowed: divisors of %s, %u",
                    json_source(json), keys->kv_heads != NULL ? keys->kv_heads : "num_kv_heads",
                    model->kv_heads, heads, model->heads);
    if (model->head_dim == 0)
        return fail(error, ERROR_INPUT,
                    "%s: field \"%s\" is %u; allowed without \"head_dim\": multiples of %s, %u",
                    json_source(json), hidden, model->hidden, heads, model->heads);
    if ((model->head_dim % 2 != 0 && (model->features & FEATURE_ROPE) != 0) ||
        model->head_dim > MAX_HEAD_DIM)
        return fail(error, ERROR_INPUT,
                    "%s: head_dim (%s / %s unless given) is %u; allowed: even numbers up to %d",
                    json_source(json), hidden, heads, model->head_dim, MAX_HEAD_DIM);
    return TRUE;
}

static gboolean read_heads(Model *model, const JsonText *json, GError **error)
{
    const ModelFamily *family = model->family;

    if (!read_size(json, family->keys->heads, MAX_HEADS, &model->heads, error))
        return FALSE;
    model->kv_heads = family->kv_heads != 0 ? family->kv_heads : model->heads;
    if (family->head_dim != 0)
        model->head_dim = family->head_dim;
    else if (model->hidden % model->heads == 0)
        model->head_dim = model->hidden / model->heads;
    return read_optional_size(json, family->keys->kv_heads, 1, MAX_HEADS, &model->kv_heads,
                              error) &&
           (family->keys->kv_heads == NULL ||
            json_optional_uint32(json, "head_dim", 1, MAX_HEAD_DIM, &model->head_dim, error));
}

static gboolean read_ffn(Model *model, const JsonText *json, GError **error)
{
    const ModelFamily *family = model->family;
    guint ratio = family->ffn_ratio;

    if (family->ffn_ratio == 0)
        return read_size(json, family->keys->ffn, MAX_FFN, &model->ffn, error);
    if (!read_optional_size(json, family->keys->ffn_ratio, 1, MAX_FFN / MAX_HIDDEN, &ratio, error))
        return FALSE;
    model->ffn = ratio * model->hidden;
    return read_optional_size(json, family->keys->ffn, 1, MAX_FFN, &model->ffn, error);
}

/* transformers' default holds only where the key is absent: null means no window. */
static gboolean read_window(Model *model, const JsonText *json, GError **error)
{
    const ModelFamily *family = model->family;
    const Keys *keys = family->keys;
    gboolean holds = keys->window_flag == NULL;

    if (keys->window == NULL)
        return TRUE;
    model->full_every = family->full_every;
    model->sliding_window = json_is_null(json, keys->window) ? 0 : family->sliding_window;
    if (!json_optional_uint32(json, keys->window, 0, MAX_SEQ, &model->sliding_window, error) ||
        (!holds && !json_optional_bool(json, keys->window_flag, &holds, error)))
        return FALSE;
    if (!holds)
        model->sliding_window = 0;
    return TRUE;
}

static gboolean read_sizes(Model *model, const JsonText *json, GError **error)
{
    const Keys *keys = model->family->keys;

    model->max_seq = model->family->max_seq;
    if (!read_size(json, keys->layers, MAX_LAYERS, &model->layers, error) ||
        !read_size(json, keys->hidden, MAX_HIDDEN, &model->hidden, error) ||
        !read_ffn(model, json, error) ||
        !json_uint32(json, "vocab_size", 1, MAX_VOCAB, &model->vocab, error) ||
        !read_optional_size(json, keys->max_seq, 1, MAX_SEQ, &model->max_seq, error) ||
        !read_window(model, json, error) || !read_heads(model, json, error))
        return FALSE;
    model->embedding = model->hidden;
    if ((model->features & FEATURE_POSITIONS) != 0)
        model->position_rows = model->max_seq + model->family->position_offset;
    return TRUE;
}

/* ---- rope ---- */

/* rope_scaling, or rope_parameters in files written since transformers 5. */
static gboolean read_rope_scaling(Model *model, const JsonText *json, const char *where,
                                  GError **error)
{
    RopeScaling *scaling = &model->rope_scaling;
    g_autofree char *type_field = g_strconcat(where, ".rope_type", NULL);
    g_autofree char *old_type_field = g_strconcat(where, ".type", NULL);
    g_autofree char *factor = g_strconcat(where, ".factor", NULL);
    g_autofree char *low = g_strconcat(where, ".low_freq_factor", NULL);
    g_autofree char *high = g_strconcat(where, ".high_freq_factor", NULL);
    g_autofree char *original = g_strconcat(where, ".original_max_position_embeddings", NULL);
    const char *type = "default";

    if (!json_optional_string(json, old_type_field, &type, error) ||
        !json_optional_string(json, type_field, &type, error))
        return FALSE;
    if (g_str_equal(type, "default"))
        return TRUE;
    if (!g_str_equal(type, "llama3")) {
        model->features |= FEATURE_ROPE_SCALED;
        return TRUE;
    }
    if (!json_double(json, factor, 1.0, 1e6, &scaling->factor, error) ||
        !json_double(json, low, 1e-6, 1e6, &scaling->low_freq_factor, error) ||
        !json_double(json, high, 1e-6, 1e6, &scaling->high_freq_factor, error) ||
        !json_uint32(json, original, 1, MAX_SEQ, &scaling->original_max_seq, error))
        return FALSE;
    if (scaling->high_freq_factor <= scaling->low_freq_factor)
        return fail(error, ERROR_INPUT,
                    "%s: field \"%s\" is %g; allowed: numbers above low_freq_factor, %g",
                    json_source(json), high, scaling->high_freq_factor, scaling->low_freq_factor);
    return TRUE;
}

/* The part of a head that is rotated. */
static gboolean read_rotary_factor(Model *model, const JsonText *json, GError **error)
{
    g_autofree char *key = model_find_key(json, model->family->keys->rotary_factor);
    double factor = model->family->rotary_factor != 0 ? model->family->rotary_factor : 1.0;

    if (key != NULL && !json_optional_double(json, key, 0.0, 1.0, &factor, error))
        return FALSE;
    if (factor != 1.0)
        model->features |= FEATURE_PARTIAL_ROPE;
    model->rotary_dim = (guint)(factor * model->head_dim);
    return TRUE;
}

static gboolean read_rope(Model *model, const JsonText *json, GError **error)
{
    const char *where = json_has(json, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    g_autofree char *theta = model_find_key(json, model->family->keys->rope_theta);

    model->rotary_dim = model->head_dim;
    model->rope_theta = 10000.0;
    model->rope_scaling = (RopeScaling){.factor = 1.0};
    if (theta == NULL)
        return TRUE;
    if (!json_optional_double(
            json,
            json_has(json, "rope_parameters.rope_theta") ? "rope_parameters.rope_theta" : theta,
            1.0, 1e12, &model->rope_theta, error) ||
        !read_rotary_factor(model, json, error))
        return FALSE;
    if (!json_has(json, where))
        return TRUE;

    g_autofree char *text = json_object_text(json, where, error); /* refuses other types */

    return text != NULL && read_rope_scaling(model, json, where, error);
}

/* ---- the whole ---- */

static gboolean check_total(const Model *model, const JsonText *json, GError **error)
{
    const double parameters = model_parameters_bound(model);
    const guint64 experts = (guint64)model->experts.count * model->layers;

    if (parameters > max_parameters)
        return fail(error, ERROR_INPUT, "%s: the sizes make %.3g parameters; allowed: at most %.0e",
                    json_source(json), parameters, max_parameters);
    if (experts > MAX_EXPERTS_IN_ALL)
        return fail(error, ERROR_INPUT,
                    "%s: the sizes make %" G_GUINT64_FORMAT " experts; allowed: at most %d",
                    json_source(json), experts, MAX_EXPERTS_IN_ALL);
    return TRUE;
}

static gboolean read_model(Model *model, const JsonText *json, GError **error)
{
    const ModelFamily *family = find_family(json, error);

    if (family == NULL)
        return FALSE;
    model->family = family;
    model->model_type = g_strdup(family->model_types[0]);
    model->features = family->features;
    model->norm_eps = family->norm_eps;
    model->init_std = 0.02;
    model->tied = family->tied;
    if (!read_flags(model, json, error) || !read_activation(model, json, error) ||
        !read_sizes(model, json, error) || !read_rope(model, json, error) ||
        !json_optional_bool(json, "tie_word_embeddings", &model->tied, error) ||
        !read_optional_number(json, family->keys->norm_eps, 1.0, &model->norm_eps, error) ||
        !read_optional_number(json, family->keys->init_std, 1e3, &model->init_std, error))
        return FALSE;
    if (!model->tied)
        model->features |= FEATURE_UNTIED;
    return (family->read_more == NULL || family->read_more(model, json, error)) &&
           check_heads(model, json, error) && check_total(model, json, error);
}

/* Python writes NaN and Infinity, which JSON does not have, into some config.json: as strings they
 * pass where nobody reads them and are refused where a number is read. */
static char *quote_python_words(const char *text)
{
    static const char *const words[] = {"-Infinity", "Infinity", "NaN"};
    g_autoptr(GString) out = g_string_new(NULL);
    gboolean in_string = FALSE;

    while (*text != '\0') {
        const char *word = NULL;

        for (guint i = 0; i < G_N_ELEMENTS(words) && !in_string && word == NULL; i++) {
            if (g_str_has_prefix(text, words[i]))
                word = words[i];
        }
        if (word != NULL) {
            g_string_append_printf(out, "\"%s\"", word);
            text += strlen(word);
            continue;
        }
        if (*text == '"')
            in_string = !in_string;
        if (in_string && text[0] == '\\' && text[1] != '\0')
            g_string_append_c(out, *text++);
        g_string_append_c(out, *text++);
    }
    return g_string_free(g_steal_pointer(&out), FALSE);
}

Model *model_parse(const char *text, const char *source, const char *name, GError **error)
{
    g_autofree char *valid = quote_python_words(text);
    g_autoptr(JsonText) json = json_parse(valid, source, error);

    if (json == NULL)
        return NULL;

    g_autoptr(Model) model = g_new0(Model, 1);

    if (!read_model(model, json, error))
        return NULL;
    model->name = g_strdup(name != NULL && *name != '\0' ? name : model->model_type);
    model->config_text = g_steal_pointer(&valid);
    if (model->num_kinds > 1)
        model->cuts = model_cuts_new(model);
    return g_steal_pointer(&model);
}
