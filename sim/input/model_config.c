/* config.json -> Model. */
#include "sim/base/error.h"
#include "sim/base/json.h"
#include "sim/input/model.h"

#include <string.h>

/* What the project knows; defaults are those of transformers' LlamaConfig and MistralConfig. */
typedef struct {
    const char *model_type, *architecture;
    guint kv_heads; /* 0: as many as heads */
    guint max_seq, sliding_window;
} Family;

static const Family families[] = {
    {.model_type = "llama", .architecture = "LlamaForCausalLM", .max_seq = 2048},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .kv_heads = 8,
     .max_seq = 131072,
     .sliding_window = 4096},
};

#define KNOWN_FAMILIES "llama (LlamaForCausalLM), mistral (MistralForCausalLM)"

/* Each far above any model known in 2026; together they keep products of three below 2^62. */
enum {
    MAX_LAYERS = 1 << 14,
    MAX_HEADS = 1 << 14,
    MAX_HEAD_DIM = 1 << 14,
    MAX_HIDDEN = 1 << 20,
    MAX_FFN = 1 << 22,
    MAX_VOCAB = 1 << 26,
    MAX_SEQ = 1 << 30,
};
static const double max_parameters = 1e15;

static gboolean has_architecture(const JsonText *json, const char *architecture)
{
    guint length = 0;

    if (!json_has(json, "architectures") || !json_length(json, "architectures", &length, NULL))
        return FALSE;
    for (guint i = 0; i < length; i++) {
        g_autofree char *field = g_strdup_printf("architectures.%u", i);
        const char *name;

        if (json_string(json, field, &name, NULL) && g_ascii_strcasecmp(name, architecture) == 0)
            return TRUE;
    }
    return FALSE;
}

/* model_type decides; where it is absent, architectures; a file that has both must agree. */
static const Family *find_family(const JsonText *json, GError **error)
{
    const char *model_type = NULL, *first = "none";
    guint listed = 0;

    if (!json_optional_string(json, "model_type", &model_type, error) ||
        (json_has(json, "architectures") && !json_length(json, "architectures", &listed, error)))
        return NULL;
    for (guint i = 0; i < G_N_ELEMENTS(families); i++) {
        const Family *family = &families[i];
        const gboolean by_architecture = has_architecture(json, family->architecture);

        if (model_type == NULL
                ? by_architecture
                : g_str_equal(model_type, family->model_type) && (by_architecture || listed == 0))
            return family;
    }
    if (listed > 0 && !json_string(json, "architectures.0", &first, error))
        return NULL;
    if (model_type == NULL) {
        fail(error, ERROR_INPUT,
             "%s: no field \"model_type\", and \"architectures\" is %s; known: " KNOWN_FAMILIES,
             json_source(json), first);
        return NULL;
    }
    g_autofree char *architecture =
        listed > 0 ? g_strconcat(" of architecture ", first, NULL) : NULL;

    fail(error, ERROR_INPUT, "%s: model_type \"%s\"%s is not known; known: " KNOWN_FAMILIES,
         json_source(json), model_type, architecture != NULL ? architecture : "");
    return NULL;
}

/* Fields that change the model in ways that nothing here computes. */
static gboolean refuse_unknown_features(const JsonText *json, GError **error)
{
    static const char *const must_be_false[] = {"attention_bias", "mlp_bias", "rope_interleaved"};
    const char *act = "silu";
    double rotary = 1.0;

    for (guint i = 0; i < G_N_ELEMENTS(must_be_false); i++) {
        gboolean value = FALSE;

        if (!json_optional_bool(json, must_be_false[i], &value, error))
            return FALSE;
        if (value)
            return fail(error, ERROR_INPUT, "%s: field \"%s\" is true; allowed: false",
                        json_source(json), must_be_false[i]);
    }
    if (!json_optional_string(json, "hidden_act", &act, error))
        return FALSE;
    if (!g_str_equal(act, "silu"))
        return fail(error, ERROR_INPUT, "%s: field \"hidden_act\" is \"%s\"; allowed: \"silu\"",
                    json_source(json), act);
    return json_optional_double(json, "partial_rotary_factor", 1.0, 1.0, &rotary, error);
}

static gboolean read_heads(Model *model, const JsonText *json, const Family *family, GError **error)
{
    const char *source = json_source(json);

    if (!json_uint32(json, "num_attention_heads", 1, MAX_HEADS, &model->heads, error))
        return FALSE;
    model->kv_heads = family->kv_heads != 0 ? family->kv_heads : model->heads;
    if (!json_optional_uint32(json, "num_key_value_heads", 1, MAX_HEADS, &model->kv_heads, error))
        return FALSE;
    if (model->heads % model->kv_heads != 0)
        return fail(error, ERROR_INPUT,
                    "%s: field \"num_key_value_heads\" is %u; allowed: divisors of "
                    "num_attention_heads, %u",
                    source, model->kv_heads, model->heads);
    if (!json_has(json, "head_dim") && model->hidden % model->heads != 0)
        return fail(error, ERROR_INPUT,
                    "%s: field \"hidden_size\" is %u; allowed without \"head_dim\": multiples of "
                    "num_attention_heads, %u",
                    source, model->hidden, model->heads);
    model->head_dim = model->hidden / model->heads;
    if (!json_optional_uint32(json, "head_dim", 1, MAX_HEAD_DIM, &model->head_dim, error))
        return FALSE;
    if (model->head_dim % 2 != 0 || model->head_dim > MAX_HEAD_DIM)
        return fail(error, ERROR_INPUT,
                    "%s: head_dim (hidden_size / num_attention_heads unless given) is %u; allowed: "
                    "even numbers up to %d",
                    source, model->head_dim, MAX_HEAD_DIM);
    return TRUE;
}

static gboolean read_sizes(Model *model, const JsonText *json, const Family *family, GError **error)
{
    model->max_seq = family->max_seq;
    /* transformers' default holds only where the key is absent: null means no window. */
    model->sliding_window = json_is_null(json, "sliding_window") ? 0 : family->sliding_window;
    return json_uint32(json, "num_hidden_layers", 1, MAX_LAYERS, &model->layers, error) &&
           json_uint32(json, "hidden_size", 1, MAX_HIDDEN, &model->hidden, error) &&
           json_uint32(json, "intermediate_size", 1, MAX_FFN, &model->ffn, error) &&
           json_uint32(json, "vocab_size", 1, MAX_VOCAB, &model->vocab, error) &&
           json_optional_uint32(json, "max_position_embeddings", 1, MAX_SEQ, &model->max_seq,
                                error) &&
           json_optional_uint32(json, "sliding_window", 0, MAX_SEQ, &model->sliding_window,
                                error) &&
           read_heads(model, json, family, error);
}

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
    if (!g_str_equal(type, "llama3"))
        return fail(error, ERROR_INPUT,
                    "%s: field \"%s\" is \"%s\"; allowed: \"llama3\", \"default\", or no %s",
                    json_source(json), type_field, type, where);
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

static gboolean read_rope(Model *model, const JsonText *json, GError **error)
{
    const char *where = json_has(json, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    const char *theta =
        json_has(json, "rope_parameters.rope_theta") ? "rope_parameters.rope_theta" : "rope_theta";

    model->rope_theta = 10000.0;
    model->rope_scaling = (RopeScaling){.factor = 1.0};
    if (!json_optional_double(json, theta, 1.0, 1e12, &model->rope_theta, error))
        return FALSE;
    if (!json_has(json, where))
        return TRUE;

    g_autofree char *text = json_object_text(json, where, error); /* refuses other types */

    return text != NULL && read_rope_scaling(model, json, where, error);
}

static gboolean read_model(Model *model, const JsonText *json, GError **error)
{
    const Family *family = find_family(json, error);

    if (family == NULL)
        return FALSE;
    model->model_type = g_strdup(family->model_type);
    model->norm_eps = 1e-6;
    model->init_std = 0.02;
    if (!refuse_unknown_features(json, error) || !read_sizes(model, json, family, error) ||
        !read_rope(model, json, error) ||
        !json_optional_bool(json, "tie_word_embeddings", &model->tied, error) ||
        !json_optional_double(json, "rms_norm_eps", 0.0, 1.0, &model->norm_eps, error) ||
        !json_optional_double(json, "initializer_range", 0.0, 1e3, &model->init_std, error))
        return FALSE;

    const double block = 2.0 * model->heads * model->head_dim * model->hidden +
                         2.0 * model->kv_heads * model->head_dim * model->hidden +
                         3.0 * model->ffn * model->hidden;
    const double parameters = block * model->layers + 2.0 * model->vocab * model->hidden;

    if (parameters > max_parameters)
        return fail(error, ERROR_INPUT, "%s: the sizes make %.3g parameters; allowed: at most %.0e",
                    json_source(json), parameters, max_parameters);
    return TRUE;
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
    return g_steal_pointer(&model);
}
