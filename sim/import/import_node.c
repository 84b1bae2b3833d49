#include "sim/import/import_node.h"

#include "sim/base/data_dirs.h"
#include "sim/base/error.h"
#include "sim/base/nearest.h"
#include "sim/base/units.h"
#include "sim/import/import_rates.h"

#include <math.h>
#include <string.h>

/* Not in the files.  A hop of NVLink as in topologies/dgx-h100; the others are assumed. */
#define NVLINK_LATENCY  "1.5 us"
#define PCIE_LATENCY    "5 us"
#define NETWORK_LATENCY "5 us"

void import_node_init(ImportNode *node, guint gpus)
{
    *node = (ImportNode){
        .gpus = gpus,
        .nvlinks = g_new0(guint, (gsize)gpus * gpus),
        .shares_switch = g_new0(gboolean, (gsize)gpus * gpus),
        .lists_nvlink = TRUE,
        .assumed = g_string_new(NULL),
    };
}

void import_node_clear(ImportNode *node)
{
    g_free(node->nvlinks);
    g_free(node->shares_switch);
    g_string_free(node->assumed, TRUE);
    *node = (ImportNode){.gpus = 0};
}

static guint links(const ImportNode *node, guint a, guint b)
{
    return node->nvlinks[a * node->gpus + b];
}

/* ---- islands: GPUs that links join, directly or through others ---- */

typedef gboolean (*Joins)(const ImportNode *node, guint a, guint b);

static gboolean by_nvlink(const ImportNode *node, guint a, guint b)
{
    return links(node, a, b) > 0;
}

static gboolean by_switch(const ImportNode *node, guint a, guint b)
{
    return node->shares_switch[a * node->gpus + b];
}

/* The lowest GPU of each one's island. */
static guint *islands_of(const ImportNode *node, Joins joins)
{
    guint *island = g_new(guint, node->gpus);

    for (guint i = 0; i < node->gpus; i++)
        island[i] = i;
    for (gboolean changed = TRUE; changed;) {
        changed = FALSE;
        for (guint a = 0; a < node->gpus; a++) {
            for (guint b = 0; b < node->gpus; b++) {
                if (island[b] <= island[a] || !joins(node, a, b))
                    continue;
                island[b] = island[a];
                changed = TRUE;
            }
        }
    }
    return island;
}

static guint island_size(const guint *island, guint gpus, guint member)
{
    guint size = 0;

    for (guint i = 0; i < gpus; i++)
        size += island[i] == island[member];
    return size;
}

static guint largest_island(const guint *island, guint gpus)
{
    guint largest = 0;

    for (guint i = 0; i < gpus; i++)
        largest = MAX(largest, island_size(island, gpus, i));
    return largest;
}

/* The first GPU that is not with its neighbours in blocks of @size from GPU 0; @gpus when all are.
 * The last block may be shorter. */
static guint out_of_place(const guint *island, guint gpus, guint size)
{
    for (guint i = 0; i < gpus; i++) {
        if (island[i] != i / size * size)
            return i;
    }
    return gpus;
}

/* ---- checks ---- */

/* All links of @gpu to the others; more than it has where they end in a switch, as each other is
 * then listed with all of them. */
static guint sum_of_links(const ImportNode *node, guint gpu)
{
    guint sum = 0;

    for (guint b = 0; b < node->gpus; b++)
        sum += links(node, gpu, b);
    return sum;
}

/* Through a switch a GPU that is whole is listed with all its links. */
static gboolean check_switched(const ImportNode *node, const ImportText *text, const char *gpu,
                               const ImportRates *rates, GError **error)
{
    guint most = 0, switched = node->gpus;

    for (guint a = 0; a < node->gpus; a++) {
        if (sum_of_links(node, a) > rates->nvlinks)
            switched = MIN(switched, a);
        for (guint b = 0; b < node->gpus; b++)
            most = MAX(most, links(node, a, b));
    }
    if (switched == node->gpus || most == rates->nvlinks)
        return TRUE;
    return import_refuse(text, node->line, error,
                         "GPU%u has %u NVLinks to each of its neighbours, through a switch; %s has "
                         "%u; allowed: the --gpu of this node",
                         switched, most, gpu, rates->nvlinks);
}

static gboolean check_links(const ImportNode *node, const ImportText *text, const char *gpu,
                            const ImportRates *rates, GError **error)
{
    gboolean any = FALSE;

    for (guint a = 0; a < node->gpus; a++) {
        for (guint b = 0; b < node->gpus; b++) {
            any |= links(node, a, b) > 0;
            if (links(node, a, b) > rates->nvlinks)
                return import_refuse(text, node->line, error,
                                     "GPU%u and GPU%u are joined by %u NVLinks; %s has %u; "
                                     "allowed: the --gpu of this node",
                                     a, b, links(node, a, b), gpu, rates->nvlinks);
            if (links(node, a, b) != links(node, b, a))
                return import_refuse(text, node->line, error,
                                     "GPU%u has %u NVLinks to GPU%u, which has %u back; allowed: "
                                     "an undamaged listing",
                                     a, links(node, a, b), b, links(node, b, a));
        }
    }
    if (!check_switched(node, text, gpu, rates, error))
        return FALSE;
    if (any || !rates->always_joined || node->gpus == 1 || !node->lists_nvlink)
        return TRUE;
    return import_refuse(text, node->line, error,
                         "no NVLink between GPUs, but %s is on a board that has it; allowed: "
                         "the output of topo -m (topo -mp hides NVLink), or another --gpu",
                         gpu);
}

static gboolean check_islands(const ImportNode *node, const ImportText *text, const guint *island,
                              guint size, GError **error)
{
    const guint misplaced = out_of_place(island, node->gpus, size);

    for (guint i = 0; size > 2 && i < node->gpus; i++) {
        if (island_size(island, node->gpus, i) == 1)
            return import_refuse(text, node->line, error,
                                 "GPU%u has no NVLink while %u others have: a fault of the node, "
                                 "or of the listing; allowed: the listing without it",
                                 i, size);
    }
    if (misplaced == node->gpus)
        return TRUE;
    return import_refuse(text, node->line, error,
                         "NVLink joins up to %u GPUs, but GPU%u is not in such a block of "
                         "neighbours; allowed: islands of one size, GPUs in their order "
                         "(CUDA_VISIBLE_DEVICES)",
                         size, misplaced);
}

/* ---- levels ---- */

typedef struct {
    const char *name, *kind, *latency;
    guint span; /* 0 = all */
    double bytes_per_s;
} Level;

static void add_level(GKeyFile *file, const Level *level)
{
    g_autofree char *group = g_strconcat("network ", level->name, NULL);
    g_autofree char *bandwidth = units_print(level->bytes_per_s, UNITS_BYTES_PER_S);

    g_key_file_set_string(file, group, "kind", level->kind);
    if (level->span > 1)
        g_key_file_set_uint64(file, group, "span", level->span);
    g_key_file_set_string(file, group, "bandwidth", bandwidth);
    g_key_file_set_string(file, group, "latency", level->latency);
}

/* Links that every GPU of an island has for the others of it: a ring over the island uses all,
 * whether they end in the others or in a switch.  There a pair has as many as the one that lacks
 * some. */
static guint usable_links(const ImportNode *node, guint nvlinks)
{
    guint usable = nvlinks;

    for (guint a = 0; a < node->gpus; a++) {
        const guint sum = sum_of_links(node, a);

        if (sum > 0)
            usable = MIN(usable, sum);
        for (guint b = 0; b < node->gpus && sum > nvlinks; b++)
            usable = links(node, a, b) > 0 ? MIN(usable, links(node, a, b)) : usable;
    }
    return usable;
}

/* Levels of the node.  A PCIe switch has one uplink, which its GPUs share on the way to others. */
static void add_pcie(GKeyFile *file, const ImportNode *node, double bytes_per_s, guint inner)
{
    g_autofree guint *island = islands_of(node, by_switch);
    const guint sharing = largest_island(island, node->gpus);
    const gboolean blocks = out_of_place(island, node->gpus, sharing) == node->gpus;
    Level level = {.name = "pcie-switch",
                   .kind = "pcie",
                   .latency = PCIE_LATENCY,
                   .span = sharing,
                   .bytes_per_s = bytes_per_s};

    if (blocks && sharing > inner && sharing < node->gpus)
        add_level(file, &level);
    level.name = "pcie";
    level.span = node->gpus;
    level.bytes_per_s = sharing < node->gpus ? bytes_per_s / sharing : bytes_per_s;
    add_level(file, &level);
}

/* What a GPU sends to other nodes: its share of all adapters, but no more than its own slot takes,
 * and that by whole adapters.  NCCL finds a path of its own to each adapter that it uses, and a
 * slot that one fills has none left for a second: one GPU beside four of 50 GB/s had 50, not 200
 * (NVIDIA/nccl-tests, issue 232). */
static double network_bytes_per_s(const ImportNode *node, double slot_bytes_per_s)
{
    const double share = node->nic_bytes_per_s / node->gpus, rail = node->rail_bytes_per_s;

    if (share <= slot_bytes_per_s)
        return share;
    return rail < slot_bytes_per_s ? floor(slot_bytes_per_s / rail) * rail : slot_bytes_per_s;
}

static gboolean add_levels(GKeyFile *file, const ImportNode *node, const ImportText *text,
                           const ImportRates *rates, GError **error)
{
    g_autofree guint *island = islands_of(node, by_nvlink);
    const guint size = largest_island(island, node->gpus);
    const Level nvlink = {
        .name = "nvlink",
        .kind = "nvlink",
        .latency = NVLINK_LATENCY,
        .span = size,
        .bytes_per_s = usable_links(node, rates->nvlinks) * rates->nvlink_bytes_per_s,
    };
    const Level network = {
        .name = "network",
        .kind = "network",
        .latency = NETWORK_LATENCY,
        .bytes_per_s = network_bytes_per_s(node, rates->pcie_bytes_per_s),
    };

    if (!check_islands(node, text, island, size, error))
        return FALSE;
    const gboolean has_network = network.bytes_per_s >= 1;

    if (size > 1)
        add_level(file, &nvlink);
    if (size < node->gpus || (node->gpus == 1 && !has_network))
        add_pcie(file, node, rates->pcie_bytes_per_s, size);
    if (has_network)
        add_level(file, &network);
    return TRUE;
}

/* ---- the whole ---- */

/* "node7" of "node7.txt". */
static char *without_ending(const char *file_name)
{
    const char *dot = strrchr(file_name, '.');

    return dot != NULL && dot != file_name ? g_strndup(file_name, (gsize)(dot - file_name))
                                           : g_strdup(file_name);
}

static void add_head(GKeyFile *file, const ImportNode *node, const ImportText *text,
                     const char *gpu)
{
    g_autofree char *shown = import_file_name(text);
    g_autofree char *name = without_ending(shown);
    g_autofree char *source = g_strdup_printf(
        "imported from %s, line %u of %s; rates of links: of the GPU%s; latencies: assumed", shown,
        node->line + 1, node->kind, node->assumed->str);

    g_key_file_set_string(file, "cluster", "name", name);
    g_key_file_set_string(file, "cluster", "source", source);
    g_key_file_set_uint64(file, "cluster", "nodes", 1);
    g_key_file_set_uint64(file, "node", "gpus", node->gpus);
    g_key_file_set_string(file, "node", "gpu", gpu);
    if (node->nics > 0)
        g_key_file_set_uint64(file, "node", "nics", node->nics);
}

static gboolean check_gpu(const char *gpu, const char *topologies_dir, GError **error)
{
    g_autofree char *lower = g_ascii_strdown(gpu, -1);
    g_autofree char *path = g_build_filename(topologies_dir, "gpus", lower, NULL);
    g_autofree char *shown = import_shown(gpu);

    if (*gpu != '\0' && strchr(gpu, G_DIR_SEPARATOR) == NULL &&
        g_file_test(path, G_FILE_TEST_IS_REGULAR))
        return TRUE;
    if (topology_lists_gpus(gpu))
        return fail(error, ERROR_INPUT, "--gpu \"%s\": " TOPOLOGY_MIXED_GPUS, shown);
    g_autofree char *folder = topology_gpus_dir(topologies_dir);
    g_auto(GStrv) names = data_names(folder, NULL);
    g_autofree char *hint = nearest_hint(lower, (const char *const *)names);
    g_autofree char *all = g_strjoinv(", ", names);
    return fail(
        error, ERROR_INPUT,
        "--gpu \"%s\" is unknown%s; allowed: one of %s (files of %s: another GPU needs one, "
        "with its dense peaks, memory and memory_bandwidth)",
        shown, hint, all, folder);
}

static const ImportRates *rates_of(const char *gpu, const char *topologies_dir, GError **error)
{
    const ImportRates *rates = import_rates(gpu);
    g_autofree char *known = import_rates_known();

    if (!check_gpu(gpu, topologies_dir, error))
        return NULL;
    if (rates == NULL)
        fail(error, ERROR_INPUT,
             "the NVLink and PCIe rates of --gpu %s are not known; allowed: a GPU that begins with "
             "%s",
             gpu, known);
    return rates;
}

/* Of a board that has NVLink where the file leaves it out: all links, through a switch. */
static void assume_nvlink(ImportNode *node, const ImportRates *rates)
{
    if (node->lists_nvlink || !rates->always_joined)
        return;
    for (guint a = 0; a < node->gpus; a++) {
        for (guint b = 0; b < node->gpus; b++)
            node->nvlinks[a * node->gpus + b] = a != b ? rates->nvlinks : 0;
    }
    g_string_append(node->assumed, "; NVLink is not in it: assumed, all links");
}

/* Links that a GPU has for a ring; to a switch each pair is listed with all that both have. */
static guint links_of(const ImportNode *node, guint gpu, guint nvlinks)
{
    const guint sum = sum_of_links(node, gpu);
    guint most = 0;

    for (guint b = 0; b < node->gpus; b++)
        most = MAX(most, links(node, gpu, b));
    return sum > nvlinks ? most : sum;
}

/* The slowest decides (usable_links()): a GPU that has lost links is named. */
static void note_uneven(ImportNode *node, const ImportRates *rates)
{
    guint weakest = 0, least = 0, most = 0;

    for (guint a = 0; a < node->gpus; a++) {
        const guint own = links_of(node, a, rates->nvlinks);

        most = MAX(most, own);
        if (own > 0 && (least == 0 || own < least)) {
            weakest = a;
            least = own;
        }
    }
    if (least < most)
        g_string_append_printf(node->assumed,
                               "; GPU%u has %u NVLinks, others %u: rings are as fast as its",
                               weakest, least, most);
}

Topology *import_node_topology(ImportNode *node, const ImportText *text, const char *gpu,
                               const char *topologies_dir, GError **error)
{
    g_autoptr(GKeyFile) file = g_key_file_new();
    const ImportRates *rates = rates_of(gpu, topologies_dir, error);

    if (rates == NULL)
        return NULL;
    assume_nvlink(node, rates);
    if (!check_links(node, text, gpu, rates, error))
        return NULL;
    note_uneven(node, rates);
    add_head(file, node, text, gpu);
    if (!add_levels(file, node, text, rates, error))
        return NULL;
    g_autofree char *printed = g_key_file_to_data(file, NULL, NULL);

    return topology_parse(printed, text->source, topologies_dir, error);
}
