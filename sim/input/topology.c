#include "sim/input/topology.h"

#include "sim/base/data_dirs.h"
#include "sim/base/error.h"
#include "sim/base/nearest.h"
#include "sim/base/text_file.h"
#include "sim/base/units.h"
#include "sim/input/topology_rules.h"

#include <string.h>

double gpu_peak_flops(const Gpu *gpu, DType dtype)
{
    return gpu->peak_flops[dtype] > 0 ? gpu->peak_flops[dtype] : gpu->peak_flops[DTYPE_FP32];
}

static const char *const tier_names[NUM_TIERS] = {
    [TIER_DEVICE] = "device", [TIER_HOST] = "host", [TIER_CXL] = "cxl", [TIER_NVME] = "nvme"};

const char *tier_name(Tier tier)
{
    g_assert((guint)tier < NUM_TIERS);
    return tier_names[tier];
}

gboolean tier_from_name(const char *name, Tier *tier)
{
    for (guint i = 0; i < NUM_TIERS; i++) {
        if (g_str_equal(name, tier_names[i])) {
            *tier = (Tier)i;
            return TRUE;
        }
    }
    return FALSE;
}

gboolean topology_memory(const Topology *topology, Tier tier, MemoryTier *memory)
{
    const gboolean host = topology->gpu.kind != DEVICE_CPU && topology->cpu_memory_bytes > 0 &&
                          topology->host_link_bytes_per_s > 0;

    for (guint i = 0; i < topology->memories->len; i++) {
        *memory = g_array_index(topology->memories, MemoryTier, i);
        if (g_str_equal(memory->name, tier_names[tier]))
            return TRUE;
    }
    *memory = (MemoryTier){.name = (char *)"host",
                           .capacity_bytes = topology->cpu_memory_bytes,
                           .bytes_per_s = topology->host_link_bytes_per_s};
    return tier == TIER_HOST && host;
}

const char *device_kind_name(DeviceKind kind)
{
    return kind == DEVICE_CUDA ? "cuda" : "cpu";
}

/* ---- memory ---- */

static void clear_level(gpointer data)
{
    NetworkLevel *level = data;

    g_free(level->name);
    g_free(level->kind);
}

static void clear_memory(gpointer data)
{
    g_free(((MemoryTier *)data)->name);
}

static void clear_extra(gpointer data)
{
    TopologyExtra *extra = data;

    g_free(extra->group);
    g_free(extra->key);
    g_free(extra->value);
}

static Topology *topology_new(void)
{
    Topology *topology = g_new0(Topology, 1);

    topology->networks = g_array_new(FALSE, FALSE, sizeof(NetworkLevel));
    g_array_set_clear_func(topology->networks, clear_level);
    topology->memories = g_array_new(FALSE, FALSE, sizeof(MemoryTier));
    g_array_set_clear_func(topology->memories, clear_memory);
    topology->extras = g_array_new(FALSE, FALSE, sizeof(TopologyExtra));
    g_array_set_clear_func(topology->extras, clear_extra);
    measured_init(&topology->measured);
    return topology;
}

void topology_free(Topology *topology)
{
    if (topology == NULL)
        return;
    g_free(topology->name);
    g_free(topology->source);
    g_free(topology->gpu.name);
    g_free(topology->gpu.source);
    g_free(topology->cost.source);
    g_free(topology->cost.currency);
    g_free(topology->reliability.source);
    g_clear_pointer(&topology->networks, g_array_unref);
    g_clear_pointer(&topology->memories, g_array_unref);
    g_clear_pointer(&topology->extras, g_array_unref);
    measured_clear(&topology->measured);
    g_free(topology);
}

/* ---- groups ---- */

/* What is being read. */
typedef struct {
    Topology *topology;
    const KeyText *text;
    const char *topologies_dir;
} Reader;

/* "network" in "network node-to-node"; NULL when the group is of another kind. */
static const char *name_after(const KeyGroup *group, const char *word)
{
    const gsize length = strlen(word);

    if (!g_str_has_prefix(group->name, word) || group->name[length] != ' ')
        return NULL;
    return group->name[length + 1] != '\0' ? group->name + length + 1 : NULL;
}

static gboolean read_plain(const Reader *reader, const KeyGroup *group, const KeyRules *rules,
                           GError **error)
{
    const RuleTarget target = {
        .record = reader->topology,
        .extras = reader->topology->extras,
        .kept_as = group->name,
    };

    return rules_read(rules, reader->text, group, &target, error);
}

static gboolean read_network(const Reader *reader, const KeyGroup *group, const char *name,
                             GError **error)
{
    GArray *networks = reader->topology->networks;
    NetworkLevel level = {.oversubscription = 1.0};
    const RuleTarget target = {.record = &level};

    if (!rules_read(&network_rules, reader->text, group, &target, error)) {
        clear_level(&level);
        return FALSE;
    }
    const guint inner =
        networks->len > 0 ? g_array_index(networks, NetworkLevel, networks->len - 1).span : 1;
    const gboolean grows = inner != 0 && (level.span == 0 || level.span > inner);

    level.name = g_strdup(name);
    g_array_append_val(networks, level);
    if (grows)
        return TRUE;
    return key_text_refuse(reader->text, group, key_group_find(group, "span"), error,
                           "levels come innermost first; allowed: a larger span than the level "
                           "before (%s)",
                           inner == 0 ? "which joins all" : "which is the same or larger");
}

static gboolean read_memory(const Reader *reader, const KeyGroup *group, const char *name,
                            GError **error)
{
    MemoryTier memory = {.span = 0};
    const RuleTarget target = {.record = &memory};
    Tier tier;

    if (!tier_from_name(name, &tier) || tier == TIER_DEVICE)
        return key_text_refuse(reader->text, group, NULL, error,
                               "unknown memory; allowed: host, cxl, nvme");
    if (!rules_read(&memory_rules, reader->text, group, &target, error))
        return FALSE;
    memory.name = g_strdup(name);
    g_array_append_val(reader->topology->memories, memory);
    return TRUE;
}

/* All but GPUs, which are read once the node has named one. */
static gboolean read_group(const Reader *reader, const KeyGroup *group, GError **error)
{
    static const char *const words[] = {"cluster",
                                        "node",
                                        "gpu NAME",
                                        "network NAME",
                                        "memory NAME",
                                        "cost",
                                        "reliability",
                                        "measured gemm",
                                        "measured collectives",
                                        "measured ops",
                                        "measured machine",
                                        NULL};
    const char *name;

    if (g_str_equal(group->name, "cluster"))
        return read_plain(reader, group, &cluster_rules, error);
    if (g_str_equal(group->name, "node"))
        return read_plain(reader, group, &node_rules, error);
    if (g_str_equal(group->name, "cost"))
        return read_plain(reader, group, &cost_rules, error);
    if (g_str_equal(group->name, "reliability"))
        return read_plain(reader, group, &reliability_rules, error);
    if ((name = name_after(group, "memory")) != NULL)
        return read_memory(reader, group, name, error);
    if ((name = name_after(group, "network")) != NULL)
        return read_network(reader, group, name, error);
    if ((name = name_after(group, "measured")) != NULL)
        return measured_read(&reader->topology->measured, name, reader->text, group, error);
    if (name_after(group, "gpu") != NULL)
        return TRUE;
    if (name_after(group, "node") != NULL)
        return key_text_refuse(reader->text, group, NULL, error,
                               "[node] says of all nodes what they are; " TOPOLOGY_MIXED_GPUS);

    g_autofree char *hint = nearest_hint(group->name, words);
    g_autofree char *all = g_strjoinv("], [", (GStrv)words);

    return key_text_refuse(reader->text, group, NULL, error, "unknown group%s; allowed: [%s]", hint,
                           all);
}

/* ---- the GPU ---- */

static gboolean read_gpu_group(Topology *topology, const KeyText *text, const KeyGroup *group,
                               GError **error)
{
    Gpu *gpu = &topology->gpu;
    const RuleTarget target = {.record = gpu, .extras = topology->extras, .kept_as = "gpu"};

    if (!rules_read(&gpu_rules, text, group, &target, error))
        return FALSE;
    if (gpu->peak_flops[DTYPE_FP32] == 0.0 && gpu->peak_flops[DTYPE_BF16] == 0.0)
        return key_text_refuse(text, group, NULL, error, "key \"fp32\" or \"bf16\" is missing");
    if (gpu->kind == DEVICE_CUDA && gpu->memory_bytes == 0)
        return key_text_refuse(text, group, key_group_find(group, "memory"), error,
                               "auto is for kind = cpu; allowed: bytes, such as \"80 GiB\"");
    return TRUE;
}

char *topology_gpus_dir(const char *topologies_dir)
{
    return g_build_filename(topologies_dir, "gpus", NULL);
}

gboolean topology_lists_gpus(const char *gpu)
{
    return strpbrk(gpu, " ,;+&") != NULL;
}

/* The GPU that @entry of [node] names, from a file of its own. */
static gboolean read_gpu_file(const Reader *reader, const KeyGroup *node, const KeyEntry *entry,
                              GError **error)
{
    const char *name = reader->topology->gpu.name;
    g_autofree char *lower = g_ascii_strdown(name, -1);
    g_autofree char *path = g_build_filename(reader->topologies_dir, "gpus", lower, NULL);

    if (topology_lists_gpus(name))
        return key_text_refuse(reader->text, node, entry, error, TOPOLOGY_MIXED_GPUS);
    if (strchr(name, G_DIR_SEPARATOR) != NULL || !g_file_test(path, G_FILE_TEST_IS_REGULAR))
        return key_text_refuse(
            reader->text, node, entry, error,
            "\"%s\" is unknown; allowed: a [gpu %s] of this file (source, kind, bf16 and others "
            "it has as dense peaks, memory, memory_bandwidth), or a file of %s%cgpus",
            name, name, reader->topologies_dir, G_DIR_SEPARATOR);

    g_autofree char *content = text_file_read(path, error);
    g_autoptr(KeyText) text = content != NULL ? key_text_parse(content, path, error) : NULL;

    if (text == NULL)
        return FALSE;
    if (text->groups->len != 1 || name_after(key_text_group(text, 0), "gpu") == NULL)
        return fail(error, ERROR_INPUT, "%s: allowed: one group, [gpu NAME]", path);
    return read_gpu_group(reader->topology, text, key_text_group(text, 0), error);
}

static gboolean read_gpu(const Reader *reader, const KeyGroup *node, GError **error)
{
    const char *name = reader->topology->gpu.name;
    const KeyGroup *found = NULL;

    for (guint i = 0; i < reader->text->groups->len; i++) {
        const KeyGroup *group = key_text_group(reader->text, i);
        const char *group_name = name_after(group, "gpu");

        if (group_name == NULL)
            continue;
        if (!g_str_equal(group_name, name))
            return key_text_refuse(reader->text, group, NULL, error,
                                   "[node] has gpu = %s; " TOPOLOGY_MIXED_GPUS, name);
        found = group;
    }
    if (found != NULL)
        return read_gpu_group(reader->topology, reader->text, found, error);
    return read_gpu_file(reader, node, key_group_find(node, "gpu"), error);
}

/* ---- what is automatic ---- */

/* 0 when /proc/meminfo does not say. */
static guint64 installed_memory(void)
{
    g_autofree char *text = NULL;

    if (!g_file_get_contents("/proc/meminfo", &text, NULL, NULL))
        return 0;

    const char *line = strstr(text, "MemTotal:");

    return line != NULL ? g_ascii_strtoull(line + strlen("MemTotal:"), NULL, 10) * 1024 : 0;
}

static gboolean resolve_automatic(const Reader *reader, const KeyGroup *node, GError **error)
{
    Topology *topology = reader->topology;
    const gboolean cpu = topology->gpu.kind == DEVICE_CPU;
    const KeyEntry *memory = key_group_find(node, "cpu_memory");

    if (topology->gpus_per_node == 0) {
        if (!cpu)
            return key_text_refuse(reader->text, node, key_group_find(node, "gpus"), error,
                                   "auto is for a GPU of kind = cpu; allowed: a number of GPUs");
        topology->gpus_per_node = g_get_num_processors(); /* that this process may use */
    }
    if (topology->cpu_memory_bytes == 0 && (memory != NULL || cpu)) {
        if (!cpu)
            return key_text_refuse(reader->text, node, memory, error,
                                   "auto is for a GPU of kind = cpu; allowed: bytes, such as "
                                   "\"512 GiB\"");
        topology->cpu_memory_bytes = installed_memory();
        if (topology->cpu_memory_bytes == 0)
            return fail(error, ERROR_RUNTIME,
                        "%s: cpu_memory = auto, but /proc/meminfo has no MemTotal",
                        reader->text->source);
    }
    if (topology->gpu.memory_bytes == 0)
        topology->gpu.memory_bytes = topology->cpu_memory_bytes;
    return TRUE;
}

/* ---- the whole ---- */

/* What joins some GPUs of a node joins as many of all its parts, but for the rest beside bridged
 * pairs or boards of 4; what joins more joins whole nodes.  A core is no GPU: ranks of a CPU are
 * processes, which may be more. */
static gboolean divides_nodes(const Topology *topology, guint span, guint inner)
{
    const guint gpus = topology->gpus_per_node;

    if (span == 0 || topology->gpu.kind != DEVICE_CUDA)
        return TRUE;
    if (span >= gpus)
        return span % gpus == 0;
    return (gpus % span == 0 || span == 2 || span == 4) && span % inner == 0;
}

static gboolean refuse_span(const Reader *reader, const char *kind, const char *name, guint span,
                            GError **error)
{
    g_autofree char *title = g_strdup_printf("%s %s", kind, name);
    const KeyGroup *group = key_text_find(reader->text, title);

    return key_text_refuse(reader->text, group, key_group_find(group, "span"), error,
                           "%u, where a node has %u GPUs; allowed: what divides them, 2 or 4 (each "
                           "whole spans of the level before), or whole nodes",
                           span, reader->topology->gpus_per_node);
}

static gboolean check_spans(const Reader *reader, GError **error)
{
    const Topology *topology = reader->topology;
    guint inner = 1;

    for (guint i = 0; i < topology->networks->len; i++) {
        const NetworkLevel *level = &g_array_index(topology->networks, NetworkLevel, i);

        if (!divides_nodes(topology, level->span, inner))
            return refuse_span(reader, "network", level->name, level->span, error);
        inner = level->span;
    }
    for (guint i = 0; i < topology->memories->len; i++) {
        const MemoryTier *memory = &g_array_index(topology->memories, MemoryTier, i);

        if (!divides_nodes(topology, memory->span, 1))
            return refuse_span(reader, "memory", memory->name, memory->span, error);
    }
    return TRUE;
}

/* The outermost level joins everything, as a shipped file's nodes may be scaled up. */
static gboolean check_networks(const Reader *reader, GError **error)
{
    const Topology *topology = reader->topology;

    if (topology->networks->len == 0)
        return fail(error, ERROR_INPUT, "%s: no [network NAME]; allowed: at least one",
                    reader->text->source);

    const guint last = topology->networks->len - 1;
    const NetworkLevel *outermost = &g_array_index(topology->networks, NetworkLevel, last);
    const guint64 gpus = (guint64)topology->nodes * topology->gpus_per_node;

    if (gpus > G_MAXINT)
        return fail(error, ERROR_INPUT,
                    "%s: nodes x gpus = %" G_GUINT64_FORMAT "; allowed: at most %d",
                    reader->text->source, gpus, G_MAXINT);
    if (outermost->span == 0 || outermost->span >= gpus)
        return TRUE;
    return fail(error, ERROR_INPUT,
                "%s: [network %s] span: %u of %" G_GUINT64_FORMAT
                " GPUs; allowed for the outermost level: all",
                reader->text->source, outermost->name, outermost->span, gpus);
}

static gboolean read_topology(const Reader *reader, GError **error)
{
    static const char *const required[] = {"cluster", "node"};

    for (guint i = 0; i < reader->text->groups->len; i++) {
        if (!read_group(reader, key_text_group(reader->text, i), error))
            return FALSE;
    }
    for (guint i = 0; i < G_N_ELEMENTS(required); i++) {
        if (key_text_find(reader->text, required[i]) == NULL)
            return fail(error, ERROR_INPUT, "%s: group [%s] is missing", reader->text->source,
                        required[i]);
    }
    const KeyGroup *node = key_text_find(reader->text, "node");

    return read_gpu(reader, node, error) && resolve_automatic(reader, node, error) &&
           check_spans(reader, error) && check_networks(reader, error);
}

Topology *topology_parse(const char *text, const char *source, const char *topologies_dir,
                         GError **error)
{
    g_autoptr(KeyText) key_text = key_text_parse(text, source, error);

    if (key_text == NULL)
        return NULL;

    g_autoptr(Topology) topology = topology_new();
    const Reader reader = {
        .topology = topology,
        .text = key_text,
        .topologies_dir = topologies_dir,
    };

    return read_topology(&reader, error) ? g_steal_pointer(&topology) : NULL;
}

/* "dgx-h100" has "h100", "dgx"; "hgx-h200" has no "h20". */
static gboolean has_word(const char *name, const char *word)
{
    g_auto(GStrv) words = g_strsplit(name, "-", -1);

    return g_strv_contains((const char *const *)words, word);
}

/* The name of a GPU is a usual slip. */
static gboolean refuse_unknown(const char *where, const char *lower, const char *topologies_dir,
                               GError **error)
{
    g_autofree char *folder = topology_gpus_dir(topologies_dir);
    g_auto(GStrv) names = data_names(topologies_dir, NULL), gpus = data_names(folder, NULL);
    const char *gpu = nearest_with(lower, (const char *const *)gpus);
    const char *near = nearest_with(lower, (const char *const *)names);
    g_autofree char *all = g_strjoinv(", ", names);
    g_autofree char *hint =
        gpu != NULL && (near == NULL || (g_str_has_prefix(gpu, lower) && !has_word(near, lower)))
            ? g_strdup_printf(" (%s is a GPU; a topology says how many and what joins them)", gpu)
            : nearest_hint(lower, (const char *const *)names);

    return fail(error, ERROR_INPUT,
                "topology \"%s\" is not known%s; allowed: a file (fsdp-plan topology NAME prints "
                "one to start from), or one of %s",
                where, hint, all);
}

/* Adapters hang on the slots of GPUs, or on their host's. */
static gboolean is_of_adapters(const NetworkLevel *level)
{
    static const char *const kinds[] = {"infiniband", "roce", "ethernet", "efa", "slingshot", NULL};

    return level->kind != NULL && g_strv_contains(kinds, level->kind);
}

/* What all adapters of a node carry together is the usual slip: nccl-tests' issue 232 expected
 * 200 GB/s of one GPU beside four adapters, and had 50.  Some GPUs have a way of their own to an
 * adapter, so it is no error. */
static void doubt_networks(const Topology *topology, const char *path)
{
    const double link = topology->host_link_bytes_per_s;

    for (guint i = 0; i < topology->networks->len; i++) {
        const NetworkLevel *level = &g_array_index(topology->networks, NetworkLevel, i);

        if (link == 0 || level->bytes_per_s <= link || !is_of_adapters(level))
            continue;
        g_autofree char *bandwidth = units_print(level->bytes_per_s, UNITS_BYTES_PER_S);
        g_autofree char *most = units_print(link, UNITS_BYTES_PER_S);
        g_message("%s: [network %s] bandwidth = %s is more than a GPU's host_link, %s: it is what "
                  "one GPU sends, however many adapters a node has",
                  path, level->name, bandwidth, most);
    }
}

Topology *topology_load(const char *where, const char *topologies_dir, GError **error)
{
    g_autofree char *lower = g_ascii_strdown(where, -1);
    g_autofree char *shipped = g_build_filename(topologies_dir, lower, NULL);
    const gboolean is_name = strchr(where, G_DIR_SEPARATOR) == NULL;
    const char *path = where;

    if (!g_file_test(where, G_FILE_TEST_EXISTS) || g_file_test(where, G_FILE_TEST_IS_DIR)) {
        if (!is_name || !g_file_test(shipped, G_FILE_TEST_IS_REGULAR)) {
            (void)refuse_unknown(where, lower, topologies_dir, error);
            return NULL;
        }
        path = shipped;
    }
    g_autofree char *text = text_file_read(path, error);
    Topology *topology = text != NULL ? topology_parse(text, path, topologies_dir, error) : NULL;

    if (topology != NULL)
        doubt_networks(topology, path);
    return topology;
}

/* ---- printing ---- */

static void print_extras(const Topology *topology, GKeyFile *file, const char *group,
                         const char *print_as)
{
    for (guint i = 0; topology->extras != NULL && i < topology->extras->len; i++) {
        const TopologyExtra *extra = &g_array_index(topology->extras, TopologyExtra, i);

        if (g_str_equal(extra->group, group))
            g_key_file_set_string(file, print_as, extra->key, extra->value);
    }
}

char *topology_print(const Topology *topology)
{
    g_autoptr(GKeyFile) file = g_key_file_new();
    g_autofree char *gpu_group = g_strconcat("gpu ", topology->gpu.name, NULL);

    rules_print(&cluster_rules, topology, file, "cluster");
    rules_print(&node_rules, topology, file, "node");
    print_extras(topology, file, "node", "node");
    rules_print(&gpu_rules, &topology->gpu, file, gpu_group);
    print_extras(topology, file, "gpu", gpu_group);
    for (guint i = 0; i < topology->networks->len; i++) {
        const NetworkLevel *level = &g_array_index(topology->networks, NetworkLevel, i);
        g_autofree char *group = g_strconcat("network ", level->name, NULL);

        rules_print(&network_rules, level, file, group);
    }
    for (guint i = 0; i < topology->memories->len; i++) {
        const MemoryTier *memory = &g_array_index(topology->memories, MemoryTier, i);
        g_autofree char *group = g_strconcat("memory ", memory->name, NULL);

        rules_print(&memory_rules, memory, file, group);
    }
    rules_print(&cost_rules, topology, file, "cost");
    rules_print(&reliability_rules, topology, file, "reliability");
    measured_print(&topology->measured, file);
    return g_key_file_to_data(file, NULL, NULL);
}

guint topology_max_gpus(const Topology *topology)
{
    const GArray *networks = topology->networks;
    const guint span = g_array_index(networks, NetworkLevel, networks->len - 1).span;

    if (topology->gpu.kind == DEVICE_CPU)
        return G_MAXUINT;
    if (span == 0 && networks->len == 1 && topology->nodes == 1) /* a network within its node */
        return topology->gpus_per_node;
    return span == 0 ? G_MAXUINT : span;
}

const NetworkLevel *topology_level(const Topology *topology, guint ranks)
{
    const guint last = topology->networks->len - 1;

    for (guint i = 0; i < last; i++) {
        const NetworkLevel *level = &g_array_index(topology->networks, NetworkLevel, i);

        if (level->span == 0 || level->span >= ranks)
            return level;
    }
    return &g_array_index(topology->networks, NetworkLevel, last);
}
