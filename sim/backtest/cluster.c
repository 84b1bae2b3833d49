#include "sim/backtest/cluster.h"

#include <math.h>
#include <string.h>

/* GPUs as tables call them; names that contain others come first, and of one name the usual
 * memory. */
static const struct {
    const char *word;
    double memory_gb;
    const char *gpu; /* under topologies/gpus */
    double nvlink_gb_per_s;
    guint gpus_per_node, nvlink_span; /* 0: of a node */
    double fabric_gbits;              /* where the row doesn't say: one NIC a GPU of its time */
} gpus[] = {
    {"GB200", 186, "gb200", 900, 4, 72, 400},        {"GB300", 288, "gb300", 900, 4, 72, 800},
    {"GH200", 96, "gh200-96gb", 150, 4, 0, 200},     {"B200", 180, "b200", 900, 8, 0, 400},
    {"B300", 288, "b300", 900, 8, 0, 800},           {"H100", 80, "h100-sxm-80gb", 450, 8, 0, 400},
    {"H100", 96, "h100-sxm-96gb", 450, 8, 0, 400},   {"H100", 94, "h100-nvl-94gb", 300, 8, 0, 400},
    {"H200", 141, "h200-sxm-141gb", 450, 8, 0, 400}, {"H800", 80, "h800-sxm-80gb", 200, 8, 0, 400},
    {"A100", 80, "a100-sxm-80gb", 300, 8, 0, 200},   {"A100", 40, "a100-sxm-40gb", 300, 8, 0, 200},
    {"A100", 64, "a100-sxm-64gb", 300, 4, 0, 200},   {"A800", 80, "a800-sxm-80gb", 200, 8, 0, 200},
    {"V100", 32, "v100-sxm-32gb", 150, 8, 0, 100},   {"V100", 16, "v100-sxm-16gb", 150, 8, 0, 100},
    {"MI300X", 192, "mi300x", 448, 8, 0, 400},       {"MI325X", 256, "mi325x", 448, 8, 0, 400},
    {"MI350X", 288, "mi350x", 538, 8, 0, 400},       {"MI355X", 288, "mi355x", 538, 8, 0, 400},
};

enum { NO_GPU = G_MAXUINT };

/* Of the GPUs of that name the one whose memory is nearest; without one, the first. */
static guint find_gpu(const Record *record)
{
    guint found = NO_GPU;
    double nearest = INFINITY;

    for (guint i = 0; i < G_N_ELEMENTS(gpus); i++) {
        const double off =
            record->gpu_mem_gb == 0 ? 0 : fabs(gpus[i].memory_gb - record->gpu_mem_gb);

        if (!g_str_has_prefix(record->gpu, gpus[i].word) || off >= nearest)
            continue;
        found = i;
        nearest = off;
    }
    return found;
}

/* The number that ends right before @at, spaces between; 0 for none. */
static double number_before(const char *text, const char *at)
{
    while (at > text && at[-1] == ' ')
        at--;
    const char *end = at;
    while (at > text && g_ascii_isdigit(at[-1]))
        at--;
    return at == end ? 0 : g_ascii_strtod(at, NULL);
}

/* The largest number before any "Gb/s", "Gbps", "Gbit/s", in gigabits; bytes are of buses. */
static double largest_rate(const char *text)
{
    double rate = 0;

    for (const char *at = text; (at = strstr(at, "Gb")) != NULL; at++)
        rate = MAX(rate, number_before(text, at));
    return rate;
}

/* The largest of "8x ...", "4x100", "... x4"; 0 for none. */
static double largest_count(const char *text)
{
    double count = 0;

    for (const char *at = text; (at = strchr(at, 'x')) != NULL; at++) {
        if (at > text && g_ascii_isdigit(at[-1]))
            count = MAX(count, number_before(text, at));
        else if (at > text && at[-1] == ' ' && g_ascii_isdigit(at[1]))
            count = MAX(count, g_ascii_strtod(at + 1, NULL));
    }
    return count;
}

double cluster_fabric_gbits(const Record *record, guint gpus_per_node)
{
    g_autofree char *text = g_ascii_strdown(record->network, -1);
    const double rate = largest_rate(record->network), node = gpus_per_node;
    const double count = MAX(largest_count(text), 1); /* one without a count is a node's */

    if (strstr(text, "per gpu") != NULL)
        return rate;
    if (strstr(text, "per node") != NULL || strstr(text, "inter-node") != NULL)
        return rate * count / node;
    return rate * MIN(1, count / node);
}

/* Of the nominal rate, beside what InfiniBand loses: congestion of converged Ethernet and EFA under
 * a job's own traffic (llm-foundry, InternEvo and the playbook's all-reduce sweep: 5th percentiles
 * far below the 95th). */
static double ethernet_share(const Record *record)
{
    static const struct {
        const char *word;
        double share;
    } kinds[] = {{"infiniband", 1}, {"ib ", 1},     {"roce", 0.8},
                 {"efa", 0.55},     {"omni", 0.55}, {"ethernet", 0.55}};
    g_autofree char *text = g_ascii_strdown(record->network, -1);

    for (guint i = 0; i < G_N_ELEMENTS(kinds); i++)
        if (strstr(text, kinds[i].word) != NULL)
            return kinds[i].share;
    return 1;
}

/* Latencies: topologies/dgx-h100. */
static char *cluster_text(const Record *record, guint gpu)
{
    const guint node = record->gpus_per_node != 0 ? record->gpus_per_node : gpus[gpu].gpus_per_node;
    const guint span = gpus[gpu].nvlink_span != 0 ? gpus[gpu].nvlink_span : node;
    const double named = cluster_fabric_gbits(record, node);
    const double gbits = (named > 0 ? named : gpus[gpu].fabric_gbits) * ethernet_share(record);
    g_autofree char *nvlink =
        span == 1 ? g_strdup("")
                  : g_strdup_printf("[network nvlink]\nkind = nvlink\nspan = %u\nbandwidth = %g "
                                    "GB/s\nlatency = 1.5 us\n",
                                    span, gpus[gpu].nvlink_gb_per_s);

    return g_strdup_printf("[cluster]\nname = %s\nsource = %s\nnodes = %u\n"
                           "[node]\ngpus = %u\ngpu = %s\n%s"
                           "[network fabric]\nkind = infiniband\nbandwidth = %g GB/s\n"
                           "latency = 5 us\n",
                           gpus[gpu].gpu, record->id, (record->gpus + node - 1) / node, node,
                           gpus[gpu].gpu, nvlink, gbits / 8);
}

Topology *cluster_of(const Record *record, const char *topologies_dir, const char **reason)
{
    const guint gpu = find_gpu(record);

    if (gpu == NO_GPU) {
        *reason = *record->gpu == '\0' ? "gpu not stated" : "gpu not known";
        return NULL;
    }
    g_autofree char *text = cluster_text(record, gpu);
    g_autoptr(GError) error = NULL;
    Topology *topology = topology_parse(text, record->id, topologies_dir, &error);
    if (topology == NULL)
        *reason = "gpu not described under topologies/gpus";
    return topology;
}
