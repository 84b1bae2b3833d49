#include "sim/config/config.h"

#include "sim/base/error.h"
#include "sim/base/text_file.h"
#include "sim/base/units.h"
#include "sim/config/config_reader.h"

#include <string.h>

/* ---- what readers share ---- */

const Meaning reader_zero_stages[] = {
    {"0", STRATEGY_NO_SHARD},
    {"1", STRATEGY_SHARD_OPTIMIZER},
    {"2", STRATEGY_SHARD_GRAD_OP},
    {"3", STRATEGY_FULL_SHARD},
    {NULL, 0},
};

const Meaning reader_rotations[] = {
    {"allgather", CONTEXT_ALL_GATHER},
    {"alltoall", CONTEXT_RING},
    {NULL, 0},
};

enum { MOST = 1 << 30 };

/* TOML and YAML allow 500_000. */
static char *without_underscores(const char *value)
{
    g_auto(GStrv) parts = g_strsplit(value, "_", -1);

    return g_strjoinv("", parts);
}

gboolean reader_uint(const Reader *reader, const char *name, guint *out, GError **error)
{
    const FlatEntry *entry = flat_find(reader->flat, name);
    guint64 value;

    if (entry == NULL)
        return TRUE;
    g_autofree char *digits = without_underscores(entry->value);
    if (!units_parse_count(digits, 1, MOST, &value, NULL))
        return flat_refuse(reader->flat, entry, "a whole number from 1", error);
    *out = (guint)value;
    return TRUE;
}

gboolean reader_word(const Reader *reader, const char *name, const Meaning *meanings, gint *out,
                     GError **error)
{
    const FlatEntry *entry = flat_find(reader->flat, name);
    g_autoptr(GString) allowed = g_string_new(NULL);

    if (entry == NULL)
        return TRUE;
    for (const Meaning *m = meanings; m->word != NULL; m++) {
        if (g_ascii_strcasecmp(m->word, entry->value) == 0) {
            *out = m->value;
            return TRUE;
        }
        g_string_append_printf(allowed, "%s%s", m == meanings ? "" : ", ", m->word);
    }
    return flat_refuse(reader->flat, entry, allowed->str, error);
}

gboolean reader_flag(const Reader *reader, const char *name, gboolean *out, GError **error)
{
    static const Meaning meanings[] = {{"true", TRUE}, {"false", FALSE}, {"yes", TRUE},
                                       {"no", FALSE},  {"1", TRUE},      {"0", FALSE},
                                       {NULL, 0}};

    *out = FALSE;
    return reader_word(reader, name, meanings, out, error);
}

void reader_note(const Reader *reader, const char *name, const char *harmless, const char *why)
{
    const FlatEntry *entry = flat_find(reader->flat, name);

    if (entry == NULL || (harmless != NULL && g_ascii_strcasecmp(entry->value, harmless) == 0))
        return;
    g_ptr_array_add(reader->config->notes,
                    g_strdup_printf("%s = %s: %s", entry->path, entry->value, why));
}

/* PyTorch's and DeepSpeed's names of a type; leaves *dtype where nothing is said, or, with a note,
 * where gradients of the recipe are never of it. */
static gboolean read_gradient_type(const Reader *reader, const char *name, DType *dtype,
                                   GError **error)
{
    static const Meaning types[] = {
        {"fp32", DTYPE_FP32},    {"float32", DTYPE_FP32},  {"float", DTYPE_FP32},
        {"bf16", DTYPE_BF16},    {"bfloat16", DTYPE_BF16}, {"fp16", DTYPE_FP16},
        {"float16", DTYPE_FP16}, {"half", DTYPE_FP16},     {NULL, 0}};
    gint said = (gint)*dtype;

    if (name == NULL || flat_find(reader->flat, name) == NULL)
        return TRUE;
    if (!reader_word(reader, name, types, &said, error))
        return FALSE;
    if (recipe_with_gradients(reader->config->recipe, (DType)said, (DType)said) != NULL) {
        *dtype = (DType)said;
        return TRUE;
    }
    g_autofree char *why = g_strdup_printf("priced with %s", dtype_name(*dtype));
    reader_note(reader, name, NULL, why);
    return TRUE;
}

gboolean reader_gradients(const Reader *reader, const char *gradient, const char *reduce,
                          GError **error)
{
    Config *config = reader->config;

    if (config->recipe == NULL) /* the command line's, with its own */
        return TRUE;
    DType accumulated = config->recipe->gradient, reduced = config->recipe->reduce;
    if (!read_gradient_type(reader, gradient, &accumulated, error) ||
        !read_gradient_type(reader, reduce, &reduced, error))
        return FALSE;
    config->recipe = recipe_with_gradients(config->recipe, accumulated, reduced);
    return TRUE;
}

/* Only the place of state is the same. */
static void note_offload(const Reader *reader, const char *name)
{
    reader_note(reader, name, "",
                "priced with copies to the GPU and the optimiser's step there; theirs is on the "
                "host, and gradients go there");
}

gboolean reader_tier(const Reader *reader, const char *name, Tier *tier, GError **error)
{
    static const Meaning tiers[] = {
        {"none", TIER_DEVICE}, {"cpu", TIER_HOST}, {"nvme", TIER_NVME}, {NULL, 0}};
    gint found = TIER_DEVICE;

    if (!reader_word(reader, name, tiers, &found, error))
        return FALSE;
    *tier = (Tier)found;
    if (*tier != TIER_DEVICE)
        note_offload(reader, name);
    return TRUE;
}

gboolean reader_offload_all(const Reader *reader, const char *name, GError **error)
{
    gboolean offloads;

    if (!reader_flag(reader, name, &offloads, error))
        return FALSE;
    if (offloads) {
        reader->config->offload = (Offload){TIER_HOST, TIER_HOST};
        note_offload(reader, name);
    }
    return TRUE;
}

gboolean reader_experts(const Reader *reader, const char *name, GError **error)
{
    Config *config = reader->config;

    if (config->strategy != STRATEGY_NO_SHARD)
        return reader_uint(reader, name, &config->ep, error);
    reader_note(reader, name, "1", "priced without it: nothing is sharded");
    return TRUE;
}

gboolean reader_gather_fp8(const Reader *reader, const char *name, GError **error)
{
    Config *config = reader->config;
    gboolean gathers;

    if (!reader_flag(reader, name, &gathers, error))
        return FALSE;
    config->gather_fp8 = gathers && config->strategy != STRATEGY_NO_SHARD &&
                         config->strategy != STRATEGY_SHARD_OPTIMIZER;
    if (gathers && !config->gather_fp8)
        reader_note(reader, name, NULL, "priced without it: blocks are whole between steps");
    return TRUE;
}

/* ---- files ---- */

static Config *config_new(void)
{
    Config *config = g_new0(Config, 1);

    config->strategy = config->recompute = config->schedule = config->context = -1;
    config->sequence_parallel = config->optimizer = config->keep = -1;
    config->notes = g_ptr_array_new_with_free_func(g_free);
    return config;
}

void config_free(Config *config)
{
    if (config == NULL)
        return;
    g_ptr_array_unref(config->notes);
    g_free(config);
}

static gboolean has_ending(const char *source, const char *ending)
{
    g_autofree char *lower = g_ascii_strdown(source, -1);

    return g_str_has_suffix(lower, ending);
}

static gboolean is_yaml(const char *source)
{
    return has_ending(source, ".yaml") || has_ending(source, ".yml");
}

static Flat *parse(const char *text, const char *source, GError **error)
{
    if (has_ending(source, ".toml"))
        return flat_parse_toml(text, source, error);
    if (has_ending(source, ".json"))
        return flat_parse_json(text, source, error);
    return is_yaml(source) ? flat_parse_yaml(text, source, error)
                           : flat_parse_options(text, source);
}

typedef struct {
    const char *framework;
    const char *signs[3]; /* names of which its files have one at least */
    gboolean (*read)(const Reader *reader, GError **error);
} Framework;

/* Its file trains or tunes; how that is sharded stands in another one. */
static gboolean read_llama_factory(const Reader *reader, GError **error)
{
    return flat_refuse(reader->flat, flat_find(reader->flat, "finetuning_type"),
                       "in a file that says how ranks share the model: LLaMA-Factory's names it as "
                       "deepspeed, or accelerate's is given to its launcher; --from takes those",
                       error);
}

/* In this order: LLaMA-Factory has a "stage" that is not DeepSpeed's; accelerate's files may speak
 * of Megatron's degrees and DeepSpeed's stages. */
static const Framework frameworks[] = {
    {"LLaMA-Factory", {"finetuning_type"}, read_llama_factory},
    {"accelerate", {"distributed_type"}, config_read_accelerate},
    {"axolotl", {"base_model"}, config_read_axolotl},
    {"torchtitan",
     {"tensor_parallel_degree", "data_parallel_shard_degree", "data_parallel_degree"},
     config_read_torchtitan},
    {"megatron",
     {"tensor_model_parallel_size", "micro_batch_size", "global_batch_size"},
     config_read_megatron},
    {"deepspeed",
     {"stage", "train_micro_batch_size_per_gpu", "train_batch_size"},
     config_read_deepspeed},
};

static gboolean is_sign(const FlatEntry *entry, const char *sign)
{
    const char *dot = strrchr(entry->path, '.');

    return strcmp(dot == NULL ? entry->path : dot + 1, sign) == 0;
}

static gboolean has_sign(const Flat *flat, const Framework *framework)
{
    for (guint s = 0; s < G_N_ELEMENTS(framework->signs) && framework->signs[s] != NULL; s++)
        for (guint i = 0; i < flat->entries->len; i++)
            if (is_sign(&g_array_index(flat->entries, FlatEntry, i), framework->signs[s]))
                return TRUE;
    return FALSE;
}

static gboolean is_at_top(const Flat *flat, const char *path)
{
    for (guint i = 0; i < flat->entries->len; i++)
        if (strcmp(g_array_index(flat->entries, FlatEntry, i).path, path) == 0)
            return TRUE;
    return FALSE;
}

/* A list of runs says the same of each, with other values: none of them is meant.  What stands at
 * the top is the run's. */
static gboolean check_one_run(const Flat *flat, const Framework *framework, GError **error)
{
    for (guint s = 0; s < G_N_ELEMENTS(framework->signs) && framework->signs[s] != NULL; s++) {
        const FlatEntry *first = NULL;
        const gboolean at_top = is_at_top(flat, framework->signs[s]);

        for (guint i = 0; !at_top && i < flat->entries->len; i++) {
            const FlatEntry *entry = &g_array_index(flat->entries, FlatEntry, i);

            if (!is_sign(entry, framework->signs[s]))
                continue;
            if (first != NULL && strcmp(first->value, entry->value) != 0) {
                g_autofree char *allowed =
                    g_strdup_printf("that of one run; %s is %s", first->path, first->value);

                return flat_refuse(flat, entry, allowed, error);
            }
            first = entry;
        }
    }
    return TRUE;
}

/* Where files say that a few parameters are trained beside frozen ones, perhaps of 4 bits: axolotl,
 * NeMo, LLaMA-Factory, transformers. */
static gboolean check_all_trained(const Flat *flat, GError **error)
{
    static const struct {
        const char *name, *of_all; /* what it says of training that is planned */
    } signs[] = {{"adapter", "none"},       {"peft_scheme", "none"},   {"finetuning_type", "full"},
                 {"use_peft", "false"},     {"use_lora", "false"},     {"load_in_4bit", "false"},
                 {"load_in_8bit", "false"}, {"quantization_bit", "16"}};

    for (guint i = 0; i < G_N_ELEMENTS(signs); i++) {
        const FlatEntry *entry = flat_find(flat, signs[i].name);

        if (entry != NULL && g_ascii_strcasecmp(entry->value, signs[i].of_all) != 0)
            return flat_refuse(
                flat, entry,
                "absent: LoRA and other training of some parameters is not planned "
                "(it keeps no gradients, masters and moments of the frozen ones, and "
                "as many activations); what is planned trains all",
                error);
    }
    return TRUE;
}

static const Framework *find_framework(const Flat *flat)
{
    for (guint i = 0; i < G_N_ELEMENTS(frameworks); i++)
        if (has_sign(flat, &frameworks[i]))
            return &frameworks[i];
    return NULL;
}

Config *config_parse(const char *text, const char *source, GError **error)
{
    g_autoptr(Flat) flat = parse(text, source, error);
    g_autoptr(Config) config = config_new();
    const Framework *framework = flat == NULL ? NULL : find_framework(flat);

    if (flat == NULL)
        return NULL;
    if (framework == NULL) {
        fail(error, ERROR_INPUT,
             "%s: must be a configuration of torchtitan (.toml), deepspeed (.json), accelerate, "
             "axolotl, NeMo or Primus (.yaml), or a script with Megatron-LM's options",
             source);
        return NULL;
    }
    const Reader reader = {flat, config};
    config->framework = framework->framework;
    if (!check_all_trained(flat, error) || !check_one_run(flat, framework, error) ||
        !framework->read(&reader, error) || !flat_check_names(flat, error))
        return NULL;
    if (config->strategy == STRATEGY_NO_SHARD && config->axis[AXIS_DP_SHARD] == 0) {
        config->axis[AXIS_DP_REPLICATE] = 0; /* all data ranks are replicas */
        config->axis[AXIS_DP_SHARD] = 1;
    }
    return g_steal_pointer(&config);
}

Config *config_load(const char *path, GError **error)
{
    g_autofree char *text = text_file_read(path, error);

    return text == NULL ? NULL : config_parse(text, path, error);
}
