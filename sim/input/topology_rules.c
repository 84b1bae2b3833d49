#include "sim/input/topology_rules.h"

#include "sim/base/error.h"
#include "sim/base/nearest.h"
#include "sim/base/units.h"

#include <math.h>

/* ---- the tables ---- */

enum { MAX_NODES = 1 << 20, MAX_GPUS_PER_NODE = 1 << 12 };

/* Less is a slip of the unit, such as GB that became B; so is a wait of more than MAX_WAIT_S for
 * one message.  What would be 0 for "not stated" is left out instead. */
#define MIN_BYTES            1e3
#define MIN_BYTES_PER_S      1e3
#define MIN_FLOPS_PER_S      1e6
#define MAX_WAIT_S           10
#define MIN_RESTART_S        1e-3
#define MAX_OVERSUBSCRIPTION 1000
#define MIN_PRICE            1e-6
#define MAX_PRICE            1e6

#define RULES(table)                                                                               \
    {                                                                                              \
        .rules = (table), .num_rules = G_N_ELEMENTS(table)                                         \
    }

static const KeyRule cluster[] = {
    {.key = "name", .kind = VALUE_TEXT, .required = TRUE, .offset = offsetof(Topology, name)},
    {.key = "source", .kind = VALUE_TEXT, .required = TRUE, .offset = offsetof(Topology, source)},
    {.key = "nodes",
     .kind = VALUE_COUNT,
     .required = TRUE,
     .min = 1,
     .max = MAX_NODES,
     .offset = offsetof(Topology, nodes)},
};

static const KeyRule node[] = {
    {.key = "gpus",
     .kind = VALUE_COUNT,
     .required = TRUE,
     .zero_word = "auto",
     .min = 1,
     .max = MAX_GPUS_PER_NODE,
     .offset = offsetof(Topology, gpus_per_node)},
    {.key = "gpu", .kind = VALUE_TEXT, .required = TRUE, .offset = offsetof(Topology, gpu.name)},
    {.key = "cpu_memory",
     .kind = VALUE_BYTES,
     .zero_word = "auto",
     .min = MIN_BYTES,
     .offset = offsetof(Topology, cpu_memory_bytes)},
    {.key = "nics", .kind = VALUE_COUNT, .max = MAX_GPUS_PER_NODE, .offset = KEPT},
    {.key = "host_link",
     .kind = VALUE_BYTES_PER_S,
     .min = MIN_BYTES_PER_S,
     .offset = offsetof(Topology, host_link_bytes_per_s)},
    {.key = "storage_read", .kind = VALUE_BYTES_PER_S, .min = MIN_BYTES_PER_S, .offset = KEPT},
    {.key = "storage_write", .kind = VALUE_BYTES_PER_S, .min = MIN_BYTES_PER_S, .offset = KEPT},
};

static const KeyRule gpu[] = {
    {.key = "source", .kind = VALUE_TEXT, .required = TRUE, .offset = offsetof(Gpu, source)},
    {.key = "kind", .kind = VALUE_DEVICE, .required = TRUE, .offset = offsetof(Gpu, kind)},
    {.key = "fp32",
     .kind = VALUE_FLOPS_PER_S,
     .min = MIN_FLOPS_PER_S,
     .offset = offsetof(Gpu, peak_flops[DTYPE_FP32])},
    {.key = "bf16",
     .kind = VALUE_FLOPS_PER_S,
     .min = MIN_FLOPS_PER_S,
     .offset = offsetof(Gpu, peak_flops[DTYPE_BF16])},
    {.key = "fp64",
     .kind = VALUE_FLOPS_PER_S,
     .min = MIN_FLOPS_PER_S,
     .offset = offsetof(Gpu, peak_flops[DTYPE_FP64])},
    {.key = "fp16",
     .kind = VALUE_FLOPS_PER_S,
     .min = MIN_FLOPS_PER_S,
     .offset = offsetof(Gpu, peak_flops[DTYPE_FP16])},
    {.key = "fp8",
     .kind = VALUE_FLOPS_PER_S,
     .min = MIN_FLOPS_PER_S,
     .offset = offsetof(Gpu, peak_flops[DTYPE_FP8])},
    {.key = "memory",
     .kind = VALUE_BYTES,
     .required = TRUE,
     .zero_word = "auto",
     .min = MIN_BYTES,
     .offset = offsetof(Gpu, memory_bytes)},
    {.key = "memory_bandwidth",
     .kind = VALUE_BYTES_PER_S,
     .required = TRUE,
     .min = MIN_BYTES_PER_S,
     .offset = offsetof(Gpu, memory_bytes_per_s)},
};

static const KeyRule network[] = {
    {.key = "kind", .kind = VALUE_TEXT, .required = TRUE, .offset = offsetof(NetworkLevel, kind)},
    {.key = "span",
     .kind = VALUE_COUNT,
     .zero_word = "all",
     .min = 2,
     .max = G_MAXINT,
     .offset = offsetof(NetworkLevel, span)},
    {.key = "bandwidth",
     .kind = VALUE_BYTES_PER_S,
     .required = TRUE,
     .min = MIN_BYTES_PER_S,
     .offset = offsetof(NetworkLevel, bytes_per_s)},
    {.key = "latency",
     .kind = VALUE_SECONDS,
     .max = MAX_WAIT_S,
     .required = TRUE,
     .offset = offsetof(NetworkLevel, latency_s)},
    {.key = "oversubscription",
     .kind = VALUE_NUMBER,
     .min = 1,
     .max = MAX_OVERSUBSCRIPTION,
     .offset = offsetof(NetworkLevel, oversubscription)},
};

static const KeyRule memory[] = {
    {.key = "capacity",
     .kind = VALUE_BYTES,
     .required = TRUE,
     .min = MIN_BYTES,
     .offset = offsetof(MemoryTier, capacity_bytes)},
    {.key = "bandwidth",
     .kind = VALUE_BYTES_PER_S,
     .required = TRUE,
     .min = MIN_BYTES_PER_S,
     .offset = offsetof(MemoryTier, bytes_per_s)},
    {.key = "latency",
     .kind = VALUE_SECONDS,
     .max = MAX_WAIT_S,
     .offset = offsetof(MemoryTier, latency_s)},
    {.key = "span",
     .kind = VALUE_COUNT,
     .min = 1,
     .max = G_MAXINT,
     .offset = offsetof(MemoryTier, span)},
};

static const KeyRule cost[] = {
    {.key = "source", .kind = VALUE_TEXT, .offset = offsetof(Topology, cost.source)},
    {.key = "price_per_gpu_hour",
     .kind = VALUE_NUMBER,
     .min = MIN_PRICE,
     .max = MAX_PRICE,
     .offset = offsetof(Topology, cost.price_per_gpu_hour)},
    {.key = "currency", .kind = VALUE_TEXT, .offset = offsetof(Topology, cost.currency)},
    {.key = "power_per_gpu",
     .kind = VALUE_WATTS,
     .min = 1,
     .offset = offsetof(Topology, cost.power_per_gpu_w)},
};

static const KeyRule reliability[] = {
    {.key = "source", .kind = VALUE_TEXT, .offset = offsetof(Topology, reliability.source)},
    {.key = "gpu_mtbf",
     .kind = VALUE_SECONDS,
     .min = 1,
     .offset = offsetof(Topology, reliability.gpu_mtbf_s)},
    {.key = "node_mtbf",
     .kind = VALUE_SECONDS,
     .min = 1,
     .offset = offsetof(Topology, reliability.node_mtbf_s)},
    {.key = "checkpoint_bandwidth",
     .kind = VALUE_BYTES_PER_S,
     .min = MIN_BYTES_PER_S,
     .offset = offsetof(Topology, reliability.checkpoint_bytes_per_s)},
    {.key = "restart",
     .kind = VALUE_SECONDS,
     .min = MIN_RESTART_S,
     .offset = offsetof(Topology, reliability.restart_s)},
};

static const KeyRule machine[] = {
    {.key = "source", .kind = VALUE_TEXT, .offset = offsetof(Measured, source)},
    {.key = "op_overhead",
     .kind = VALUE_SECONDS,
     .max = MAX_WAIT_S,
     .offset = offsetof(Measured, op_overhead_s)},
    {.key = "framework_memory", .kind = VALUE_BYTES, .offset = offsetof(Measured, framework_bytes)},
    {.key = "framework_memory_alone",
     .kind = VALUE_BYTES,
     .offset = offsetof(Measured, framework_alone_bytes)},
};

const KeyRules cluster_rules = RULES(cluster), node_rules = RULES(node), gpu_rules = RULES(gpu),
               network_rules = RULES(network), memory_rules = RULES(memory),
               cost_rules = RULES(cost), reliability_rules = RULES(reliability),
               machine_rules = RULES(machine);

/* ---- reading ---- */

static const Units units_of[] = {
    [VALUE_BYTES] = UNITS_BYTES,
    [VALUE_BYTES_PER_S] = UNITS_BYTES_PER_S,
    [VALUE_FLOPS_PER_S] = UNITS_FLOPS_PER_S,
    [VALUE_SECONDS] = UNITS_SECONDS,
    [VALUE_WATTS] = UNITS_WATTS,
};

/* More is a slip too, whatever the key; a wafer's memory has 21 PB/s and a GPU 50 PFLOP/s. */
static const double most_of[] = {
    [UNITS_BYTES] = 0x1p53, [UNITS_BYTES_PER_S] = 1e17, [UNITS_FLOPS_PER_S] = 1e18,
    [UNITS_SECONDS] = 1e12, [UNITS_WATTS] = 1e6,
};

gboolean rules_parse_units(const char *text, Units units, double *value, GError **error)
{
    if (!units_parse(text, units, value, error))
        return FALSE;
    if (*value <= most_of[units])
        return TRUE;
    g_autofree char *most = units_print(most_of[units], units);
    return fail(error, ERROR_INPUT, "\"%s\": allowed: at most %s", text, most);
}

/* A value in base units: one of these by kind. */
typedef struct {
    double real;
    guint64 integer;
    DeviceKind device;
} Value;

static gboolean check_bounds(const KeyRule *rule, const char *text, double value, GError **error)
{
    const gboolean small = value < rule->min;
    const double bound = small ? rule->min : rule->max;

    if (!small && (rule->max == 0 || value <= rule->max))
        return TRUE;
    g_autofree char *printed = rule->kind == VALUE_NUMBER
                                   ? units_print_number(bound)
                                   : units_print(bound, units_of[rule->kind]);
    return fail(error, ERROR_INPUT, "\"%s\": allowed: at %s %s", text, small ? "least" : "most",
                printed);
}

static gboolean parse_value(const KeyRule *rule, const char *text, Value *value, GError **error)
{
    switch (rule->kind) {
    case VALUE_TEXT:
        return TRUE;
    case VALUE_DEVICE:
        value->device = g_str_equal(text, "cuda") ? DEVICE_CUDA : DEVICE_CPU;
        if (!g_str_equal(text, device_kind_name(value->device)))
            return fail(error, ERROR_INPUT, "\"%s\": allowed: cpu, cuda", text);
        return TRUE;
    case VALUE_COUNT:
        return units_parse_count(text, (guint64)rule->min, (guint64)rule->max, &value->integer,
                                 error);
    case VALUE_NUMBER:
        if (!units_parse_number(text, &value->real, error))
            return FALSE;
        break;
    case VALUE_BYTES:
        if (!units_parse_bytes(text, &value->integer, error))
            return FALSE;
        value->real = (double)value->integer;
        break;
    default:
        if (!rules_parse_units(text, units_of[rule->kind], &value->real, error))
            return FALSE;
    }
    return check_bounds(rule, text, value->real, error);
}

static void store_value(const KeyRule *rule, const char *text, const Value *value, void *record)
{
    void *field = (char *)record + rule->offset;

    switch (rule->kind) {
    case VALUE_TEXT:
        g_free(*(char **)field);
        *(char **)field = g_strdup(text);
        break;
    case VALUE_DEVICE:
        *(DeviceKind *)field = value->device;
        break;
    case VALUE_COUNT:
        *(guint *)field = (guint)value->integer;
        break;
    case VALUE_BYTES:
        *(guint64 *)field = value->integer;
        break;
    default:
        *(double *)field = value->real;
    }
}

static const KeyRule *find_rule(const KeyRules *rules, const char *key)
{
    for (guint i = 0; i < rules->num_rules; i++) {
        if (g_str_equal(rules->rules[i].key, key))
            return &rules->rules[i];
    }
    return NULL;
}

static gboolean refuse_key(const KeyRules *rules, const KeyText *text, const KeyGroup *group,
                           const KeyEntry *entry, GError **error)
{
    g_autofree const char **known = g_new0(const char *, rules->num_rules + 1);

    for (guint i = 0; i < rules->num_rules; i++)
        known[i] = rules->rules[i].key;

    g_autofree char *hint = nearest_hint(entry->key, known);
    g_autofree char *all = g_strjoinv(", ", (GStrv)known);

    return key_text_refuse(text, group, entry, error, "unknown key%s; allowed: %s", hint, all);
}

static gboolean read_entry(const KeyRule *rule, const KeyEntry *entry, const RuleTarget *target,
                           GError **error)
{
    const gboolean is_word = g_strcmp0(entry->value, rule->zero_word) == 0;
    Value value = {.integer = 0};

    if (!is_word && !parse_value(rule, entry->value, &value, error))
        return FALSE;
    if (rule->offset == KEPT) {
        const TopologyExtra extra = {
            .group = g_strdup(target->kept_as),
            .key = g_strdup(entry->key),
            .value = g_strdup(entry->value),
        };

        g_array_append_val(target->extras, extra);
    } else {
        store_value(rule, entry->value, &value, target->record);
    }
    return TRUE;
}

gboolean rules_read(const KeyRules *rules, const KeyText *text, const KeyGroup *group,
                    const RuleTarget *target, GError **error)
{
    for (guint i = 0; i < group->entries->len; i++) {
        const KeyEntry *entry = key_group_entry(group, i);
        const KeyRule *rule = find_rule(rules, entry->key);
        g_autoptr(GError) value_error = NULL;

        if (rule == NULL)
            return refuse_key(rules, text, group, entry, error);
        if (!read_entry(rule, entry, target, &value_error))
            return key_text_refuse(text, group, entry, error, "%s%s%s", value_error->message,
                                   rule->zero_word != NULL ? ", or " : "",
                                   rule->zero_word != NULL ? rule->zero_word : "");
    }
    for (guint i = 0; i < rules->num_rules; i++) {
        const KeyRule *rule = &rules->rules[i];

        if (rule->required && key_group_find(group, rule->key) == NULL)
            return key_text_refuse(text, group, NULL, error, "key \"%s\" is missing", rule->key);
    }
    return TRUE;
}

/* ---- printing ---- */

/* NULL where the field is empty. */
static char *print_value(const KeyRule *rule, const void *record)
{
    const void *field = (const char *)record + rule->offset;
    double real = 0.0;

    switch (rule->kind) {
    case VALUE_TEXT:
        return g_strdup(*(char *const *)field);
    case VALUE_DEVICE:
        return g_strdup(device_kind_name(*(const DeviceKind *)field));
    case VALUE_COUNT:
        real = *(const guint *)field;
        break;
    case VALUE_BYTES:
        real = (double)*(const guint64 *)field;
        break;
    default:
        real = *(const double *)field;
    }
    if (real == 0.0 && !rule->required)
        return NULL;
    if (rule->kind == VALUE_COUNT || rule->kind == VALUE_NUMBER)
        return units_print_number(real);
    return units_print(real, units_of[rule->kind]);
}

void rules_print(const KeyRules *rules, const void *record, GKeyFile *file, const char *group)
{
    for (guint i = 0; i < rules->num_rules; i++) {
        const KeyRule *rule = &rules->rules[i];
        g_autofree char *value = rule->offset != KEPT ? print_value(rule, record) : NULL;

        if (value != NULL)
            g_key_file_set_string(file, group, rule->key, value);
    }
}
