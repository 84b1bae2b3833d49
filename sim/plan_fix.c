#include "sim/plan_fix.h"

#include "sim/base/error.h"
#include "sim/base/nearest.h"
#include "sim/base/units.h"

#include <string.h>

static gboolean fix_axis(SearchRequest *request, Axis axis, const char *option, const char *value,
                         GError **error)
{
    guint64 size;

    if (!units_parse_count(value, 1, MAX_GPUS, &size, NULL))
        return fail(error, ERROR_INPUT, "--%s: %s = \"%s\": must be 1 to %d", option,
                    axis_name(axis), value, MAX_GPUS);
    request->fixed[axis] = (guint)size;
    return TRUE;
}

/* Experts are divided among ranks of other axes, so it is no axis; --layout has it all the same. */
static gboolean fix_ep(SearchRequest *request, const char *option, const char *value,
                       GError **error)
{
    guint64 size;

    if (!units_parse_count(value, 1, MAX_GPUS, &size, NULL))
        return fail(error, ERROR_INPUT, "--%s: ep = \"%s\": must be 1 to %d", option, value,
                    MAX_GPUS);
    request->fixed_ep = (guint)size;
    return TRUE;
}

static gboolean fix_keep(SearchRequest *request, const char *value, GError **error)
{
    Sharding *sharding = &request->sharding;
    g_auto(GStrv) names = g_strsplit(value, "+", -1);

    request->searches_units = FALSE;
    sharding->keep_root = sharding->keep_last = FALSE;
    for (guint i = 0; names[i] != NULL; i++) {
        UnitOverride *unit = &sharding->overrides[sharding->num_overrides];

        if (strcmp(names[i], "none") == 0 && names[1] == NULL)
            return TRUE;
        if (strcmp(names[i], "root") == 0) {
            sharding->keep_root = TRUE;
        } else if (strcmp(names[i], "last") == 0) {
            sharding->keep_last = TRUE;
        } else if (sharding->num_overrides < MAX_UNIT_OVERRIDES &&
                   unit_override_parse(names[i], unit)) {
            unit->keep = TRUE;
            sharding->num_overrides++;
        } else {
            return fail(error, ERROR_INPUT,
                        "--fix: keep = \"%s\": must be none, or root, last, layers.N, layers.N-M "
                        "(or experts or rest in place of layers) joined by +",
                        value);
        }
    }
    return TRUE;
}

static gboolean fix_count(const char *key, const char *value, guint min, guint *out, GError **error)
{
    guint64 count;

    if (!units_parse_count(value, min, 1024, &count, NULL))
        return fail(error, ERROR_INPUT, "--fix: %s = \"%s\": must be %u to 1024", key, value, min);
    *out = (guint)count;
    return TRUE;
}

static gboolean fix_accumulate(SearchRequest *request, const char *value, GError **error)
{
    Sharding *sharding = &request->sharding;
    sharding->accumulate_sharded = strcmp(value, "sharded") == 0;
    if (!sharding->accumulate_sharded && strcmp(value, "unsharded") != 0)
        return fail(error, ERROR_INPUT, "--fix: accumulate = \"%s\": must be sharded or unsharded",
                    value);
    return TRUE;
}

/* "root:no_shard" or "layers.0-3:shard_grad_op": another strategy for some units; "uniform": one
 * for all.  Either way they are not searched. */
static gboolean fix_unit(SearchRequest *request, const char *value, GError **error)
{
    Sharding *sharding = &request->sharding;
    g_auto(GStrv) parts = g_strsplit(value, ":", -1);
    UnitOverride *unit = &sharding->overrides[sharding->num_overrides];
    Strategy strategy;

    request->searches_units = FALSE;
    if (strcmp(value, "uniform") == 0)
        return TRUE;
    if (g_strv_length(parts) != 2 || sharding->num_overrides == MAX_UNIT_OVERRIDES ||
        !unit_override_parse(parts[0], unit) || !strategy_from_name(parts[1], &strategy))
        return fail(error, ERROR_INPUT,
                    "--fix: unit = \"%s\": must be uniform, or " UNIT_TEXTS ", a colon, and a "
                    "strategy (at most %d of them)",
                    value, MAX_UNIT_OVERRIDES);
    unit->strategy = (gint)strategy;
    sharding->num_overrides++;
    return TRUE;
}

gboolean plan_fix_recompute(SearchRequest *request, const char *text)
{
    Recompute recompute;

    if (!recompute_parse(text, &recompute, request->recompute_layers, &request->num_recompute))
        return FALSE;
    request->recompute = (gint)recompute;
    return TRUE;
}

static gboolean fix_recompute(SearchRequest *request, const char *value, GError **error)
{
    return plan_fix_recompute(request, value) ||
           fail(error, ERROR_INPUT, "--fix: recompute = \"%s\": must be " RECOMPUTE_TEXTS, value);
}

static gboolean fix_micro_batch(SearchRequest *request, const char *value, GError **error)
{
    guint64 count;

    if (!units_parse_count(value, 1, MAX_BATCH, &count, NULL))
        return fail(error, ERROR_INPUT, "--fix: micro_batch = \"%s\": must be 1 to %d", value,
                    MAX_BATCH);
    request->micro_batch = (guint)count;
    return TRUE;
}

static gboolean fix_schedule(SearchRequest *request, const char *value, GError **error)
{
    ScheduleKind kind;

    if (!schedule_from_name(value, &kind))
        return fail(error, ERROR_INPUT,
                    "--fix: schedule = \"%s\": must be gpipe, 1f1b, interleaved or zb_h1", value);
    request->schedule = (gint)kind;
    return TRUE;
}

static gboolean fix_virtual_stages(SearchRequest *request, const char *value, GError **error)
{
    return fix_count("virtual_stages", value, 1, &request->virtual_stages, error);
}

static gboolean fix_stages(SearchRequest *request, const char *value, GError **error)
{
    if (!schedule_parse_chunks(value, request->chunk_layers, &request->num_chunks))
        return fail(error, ERROR_INPUT,
                    "--fix: stages = \"%s\": must be the layers of each chunk, such as 9:10:10:9, "
                    "at most %d of them",
                    value, MAX_CHUNKS);
    return TRUE;
}

static gboolean fix_context(SearchRequest *request, const char *value, GError **error)
{
    ContextKind kind;

    if (!context_kind_from_name(value, &kind))
        return fail(error, ERROR_INPUT, "--fix: context = \"%s\": must be ring or all_gather",
                    value);
    request->context = (gint)kind;
    return TRUE;
}

static gboolean fix_sequence(SearchRequest *request, const char *value, GError **error)
{
    request->sequence_parallel = strcmp(value, "true") == 0;
    return request->sequence_parallel || strcmp(value, "false") == 0 ||
           fail(error, ERROR_INPUT, "--fix: sequence = \"%s\": must be true or false", value);
}

static gboolean fix_strategy(SearchRequest *request, const char *value, GError **error)
{
    Strategy strategy;

    if (!strategy_from_name(value, &strategy))
        return fail(error, ERROR_INPUT, "--fix: strategy = \"%s\": must be " STRATEGY_NAMES, value);
    request->strategy = (gint)strategy;
    return TRUE;
}

static gboolean fix_form(SearchRequest *request, const char *value, GError **error)
{
    return form_from_name(value, &request->sharding.form) ||
           fail(error, ERROR_INPUT, "--fix: form = \"%s\": must be per_parameter or flat", value);
}

static gboolean fix_gather(SearchRequest *request, const char *value, GError **error)
{
    request->sharding.gather_fp8 = strcmp(value, "fp8") == 0;
    return request->sharding.gather_fp8 || strcmp(value, "bf16") == 0 ||
           fail(error, ERROR_INPUT, "--fix: gather = \"%s\": must be bf16 or fp8", value);
}

/* Of both fields: the type that @value names. */
static gboolean fix_gradients(SearchRequest *request, const char *key, const char *value,
                              DType *dtype, GError **error)
{
    return (dtype_from_name(value, dtype) &&
            recipe_with_gradients(request->recipe, *dtype, *dtype) != NULL) ||
           fail(error, ERROR_INPUT, "--fix: %s = \"%s\": recipe %s in %s takes %s", key, value,
                request->recipe->name, dtype_name(request->recipe->precision),
                recipe_gradient_names(request->recipe));
}

static gboolean fix_gradient_dtype(SearchRequest *request, const char *value, GError **error)
{
    DType dtype;

    if (!fix_gradients(request, "gradient_dtype", value, &dtype, error))
        return FALSE;
    request->recipe = recipe_with_gradients(request->recipe, dtype, request->recipe->reduce);
    return TRUE;
}

static gboolean fix_reduce_dtype(SearchRequest *request, const char *value, GError **error)
{
    DType dtype;

    if (!fix_gradients(request, "reduce_dtype", value, &dtype, error))
        return FALSE;
    request->recipe = recipe_with_gradients(request->recipe, request->recipe->gradient, dtype);
    return TRUE;
}

static gboolean fix_prefetch(SearchRequest *request, const char *value, GError **error)
{
    return fix_count("prefetch", value, 0, &request->sharding.prefetch, error);
}

static gboolean fix_live_units(SearchRequest *request, const char *value, GError **error)
{
    return fix_count("live_units", value, 1, &request->sharding.live_units, error);
}

static const struct {
    const char *key;
    gboolean (*fix)(SearchRequest *request, const char *value, GError **error);
} fixable[] = {
    {"strategy", fix_strategy},
    {"form", fix_form},
    {"gather", fix_gather},
    {"gradient_dtype", fix_gradient_dtype},
    {"reduce_dtype", fix_reduce_dtype},
    {"prefetch", fix_prefetch},
    {"live_units", fix_live_units},
    {"keep", fix_keep},
    {"unit", fix_unit},
    {"accumulate", fix_accumulate},
    {"micro_batch", fix_micro_batch},
    {"recompute", fix_recompute},
    {"sequence", fix_sequence},
    {"context", fix_context},
    {"schedule", fix_schedule},
    {"virtual_stages", fix_virtual_stages},
    {"stages", fix_stages},
};

/* Other programs have one axis of data where there are two here. */
static char *axis_hint(const char *name, const char *const *known)
{
    static const char *const data[] = {"dp", "ddp", "fsdp", "zero", "data_parallel", NULL};
    g_autofree char *lower = g_ascii_strdown(name, -1);

    return g_strv_contains(data, lower)
               ? g_strdup(" (dp_shard shards, as FSDP and ZeRO do; dp_replicate copies, as DDP)")
               : nearest_hint(name, known);
}

static gboolean fix_field(SearchRequest *request, const char *key, const char *value,
                          GError **error)
{
    const char *known[NUM_AXES + 1 + G_N_ELEMENTS(fixable) + 1] = {NULL};

    known[G_N_ELEMENTS(fixable) + NUM_AXES] = "ep";
    for (guint i = 0; i < G_N_ELEMENTS(fixable); i++) {
        if (strcmp(key, fixable[i].key) == 0)
            return fixable[i].fix(request, value, error);
        known[i] = fixable[i].key;
    }
    for (guint a = 0; a < NUM_AXES; a++)
        known[G_N_ELEMENTS(fixable) + a] = axis_name((Axis)a);
    g_autofree char *hint = axis_hint(key, known), *all = g_strjoinv(", ", (char **)known);
    return fail(error, ERROR_INPUT, "--fix: unknown field \"%s\"%s; allowed: %s", key, hint, all);
}

gboolean plan_fix_repeats(GStrv fields, guint i)
{
    const char *end = strchr(fields[i], '=');
    const gsize length = end == NULL ? 0 : (gsize)(end - fields[i]) + 1;

    for (guint k = 0; k < i && length > 0; k++)
        if (strncmp(fields[k], fields[i], length) == 0 && !g_str_has_prefix(fields[i], "unit="))
            return TRUE;
    return FALSE;
}

gboolean plan_fix_read(SearchRequest *request, const char *option, const char *text,
                       gboolean axes_only, GError **error)
{
    static const char *const axes[] = {"dp_replicate", "dp_shard", "cp", "tp", "pp", "ep", NULL};
    g_auto(GStrv) fields = g_strsplit(text, ",", -1);
    Axis axis;

    for (guint i = 0; fields[i] != NULL; i++) {
        g_auto(GStrv) pair = g_strsplit(fields[i], "=", 2);

        if (plan_fix_repeats(fields, i))
            return fail(error, ERROR_INPUT, "--%s: %s is given twice", option, pair[0]);
        if (g_strv_length(pair) != 2 || pair[1][0] == '\0')
            return fail(error, ERROR_INPUT, "--%s: \"%s\": must be FIELD=VALUE", option, fields[i]);
        if (axis_from_name(pair[0], &axis)) {
            if (!fix_axis(request, axis, option, pair[1], error))
                return FALSE;
        } else if (strcmp(pair[0], "ep") == 0) {
            if (!fix_ep(request, option, pair[1], error))
                return FALSE;
        } else if (axes_only) {
            g_autofree char *hint = axis_hint(pair[0], axes);

            return fail(
                error, ERROR_INPUT,
                "--layout: unknown axis \"%s\"%s; axes are dp_replicate, dp_shard, cp, tp, pp, ep",
                pair[0], hint);
        } else if (!fix_field(request, pair[0], pair[1], error)) {
            return FALSE;
        }
    }
    return TRUE;
}
