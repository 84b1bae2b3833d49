/* The topologies and GPUs that ship: they load, print back, and are plausible. */
#include "sim/base/error.h"
#include "sim/input/topology.h"
#include "tests/suite.h"

#include <string.h>

static gint by_name(gconstpointer a, gconstpointer b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names of the files of @folder, sorted. */
static GPtrArray *files_of(const char *folder)
{
    GPtrArray *names = g_ptr_array_new_with_free_func(g_free);
    GDir *dir = g_dir_open(folder, 0, NULL);

    ck_assert_ptr_nonnull(dir);
    for (const char *name; (name = g_dir_read_name(dir)) != NULL;) {
        g_autofree char *path = g_build_filename(folder, name, NULL);

        if (g_file_test(path, G_FILE_TEST_IS_REGULAR))
            g_ptr_array_add(names, g_strdup(name));
    }
    g_dir_close(dir);
    g_ptr_array_sort(names, by_name);
    return names;
}

static Topology *load(const char *name)
{
    g_autoptr(GError) error = NULL;
    Topology *topology = topology_load(name, "topologies", &error);

    ck_assert_msg(topology != NULL, "%s: %s", name, error != NULL ? error->message : "");
    return topology;
}

/* One node of 2 of that GPU. */
static Topology *load_gpu(const char *name)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *text = g_strdup_printf("[cluster]\nname = t\nsource = t\nnodes = 1\n[node]\n"
                                            "gpus = 2\ngpu = %s\n[network n]\nkind = pcie\n"
                                            "bandwidth = 1 GB/s\nlatency = 1 us\n",
                                            name);
    Topology *topology = topology_parse(text, "t", "topologies", &error);

    ck_assert_msg(topology != NULL, "%s: %s", name, error != NULL ? error->message : "");
    return topology;
}

static void check_prints_back(const Topology *topology)
{
    g_autofree char *printed = topology_print(topology);
    g_autoptr(Topology) again = topology_parse(printed, "printed", "nowhere", NULL);

    ck_assert_ptr_nonnull(again);
    g_autofree char *printed_again = topology_print(again);
    ck_assert_str_eq(printed_again, printed);
}

START_TEST(every_topology_prints_back_under_its_own_name)
{
    g_autoptr(GPtrArray) names = files_of("topologies");

    ck_assert_uint_ge(names->len, 30);
    for (guint i = 0; i < names->len; i++) {
        g_autoptr(Topology) topology = load(names->pdata[i]);

        ck_assert_str_eq(topology->name, names->pdata[i]);
        ck_assert_msg(strlen(topology->source) >= 20, "%s", topology->name);
        check_prints_back(topology);
    }
}
END_TEST

static gboolean is_projected(const char *source)
{
    return g_str_has_prefix(source, "PROJECTED");
}

/* Dense: the largest GPU that can be bought does 2.5 PFLOP/s of bf16, a projected one twice. */
static void check_gpu(const Gpu *gpu)
{
    const double bf16 = gpu->peak_flops[DTYPE_BF16], fp32 = gpu->peak_flops[DTYPE_FP32];
    const double gib = (double)gpu->memory_bytes / (1 << 30);

    ck_assert_msg(bf16 <= (is_projected(gpu->source) ? 5.2e15 : 2.6e15), "%s", gpu->name);
    ck_assert_msg(bf16 == 0 || bf16 >= 50e12, "%s", gpu->name);
    ck_assert_msg(fp32 == 0 || (fp32 >= 10e12 && fp32 <= 200e12), "%s", gpu->name);
    ck_assert_msg(bf16 == 0 || bf16 > fp32, "%s", gpu->name);
    ck_assert_msg(gpu->peak_flops[DTYPE_FP64] <= 100e12, "%s", gpu->name);
    ck_assert_msg(gib >= 14 && gib <= 300, "%s", gpu->name);
    ck_assert_msg(gpu->memory_bytes_per_s >= 500e9 && gpu->memory_bytes_per_s <= 9e12, "%s",
                  gpu->name);
    /* FLOPs per byte of memory traffic: 37 (H20, cut in compute alone), 78 (MI210) to 640 (Rubin)
     */
    ck_assert_msg(bf16 == 0 ||
                      (bf16 / gpu->memory_bytes_per_s > 36 && bf16 / gpu->memory_bytes_per_s < 700),
                  "%s", gpu->name);
}

START_TEST(every_gpu_loads_and_is_plausible)
{
    g_autoptr(GPtrArray) names = files_of("topologies/gpus");

    ck_assert_uint_ge(names->len, 30);
    for (guint i = 0; i < names->len; i++) {
        g_autoptr(Topology) topology = load_gpu(names->pdata[i]);
        g_autofree char *path = g_build_filename("topologies/gpus", names->pdata[i], NULL);
        g_autofree char *text = NULL, *group = g_strdup_printf("[gpu %s]", topology->gpu.name);

        ck_assert(g_file_get_contents(path, &text, NULL, NULL));
        ck_assert_msg(strstr(text, group) != NULL, "%s", topology->gpu.name);
        ck_assert_msg(strlen(topology->gpu.source) >= 20, "%s", topology->gpu.name);
        ck_assert_int_eq(topology->gpu.kind, DEVICE_CUDA);
        check_gpu(&topology->gpu);
        check_prints_back(topology);
    }
}
END_TEST

/* Bandwidths are of one GPU and one direction: none above NVLink 5's 900 GB/s, and outer levels
 * are never faster than those inside them. */
START_TEST(networks_are_of_one_gpu_and_one_direction)
{
    g_autoptr(GPtrArray) names = files_of("topologies");

    for (guint i = 0; i < names->len; i++) {
        g_autoptr(Topology) topology = load(names->pdata[i]);
        double inner = 900e9;

        for (guint k = 0; k < topology->networks->len; k++) {
            const NetworkLevel *level = &g_array_index(topology->networks, NetworkLevel, k);

            ck_assert_msg(level->bytes_per_s <= inner, "%s, %s", topology->name, level->name);
            ck_assert_msg(level->bytes_per_s >= 1e9, "%s, %s", topology->name, level->name);
            ck_assert_msg(level->latency_s >= 1e-6 && level->latency_s <= 100e-6, "%s, %s",
                          topology->name, level->name);
            inner = level->bytes_per_s;
        }
    }
}
END_TEST

/* Published counts and rates, as people know them. */
static const struct {
    const char *name, *gpu;
    guint gpus; /* of the whole */
    double inner_gb_per_s, outer_gb_per_s;
} known[] = {
    {"dgx-h100", "h100-sxm-80gb", 32, 450, 50},
    {"dgx-a100-80gb", "a100-sxm-80gb", 32, 300, 25},
    {"gb200-nvl72", "gb200", 72, 900, 50},
    {"vr-nvl144", "rubin-die", 144, 900, 100},
    {"isambard-ai", "gh200-96gb", 5280, 450, 25},
    {"alps", "gh200-96gb", 10752, 450, 25},
    {"jade-2", "v100-sxm-32gb", 504, 150, 6.25},
    {"baskerville", "a100-sxm-40gb", 184, 300, 6.25},
    {"sulis", "a100-pcie-40gb", 90, 31, 4.16},
    {"leonardo", "a100-sxm-64gb", 13824, 300, 12.5},
    {"lumi", "mi250x-gcd", 23824, 200, 12.5},
    {"aws-p4d", "a100-sxm-40gb", 32, 300, 6.25},
    {"aws-p5", "h100-sxm-80gb", 32, 450, 50},
    {"azure-ndv4", "a100-sxm-40gb", 32, 300, 25},
    {"azure-ndv5-h200", "h200-sxm-141gb", 32, 450, 50},
    {"meta-24k-h100", "h100-sxm-80gb", 24576, 450, 50},
    {"meta-rsc-1", "a100-sxm-80gb", 16000, 300, 25},
    {"one-h200", "h200-sxm-141gb", 1, 63, 63},
};

START_TEST(known_systems_have_their_published_size_and_rates)
{
    g_autoptr(Topology) t = load(known[_i].name);
    const guint last = t->networks->len - 1;

    ck_assert_str_eq(t->gpu.name, known[_i].gpu);
    ck_assert_uint_eq(t->nodes * t->gpus_per_node, known[_i].gpus);
    ck_assert_double_eq_tol(g_array_index(t->networks, NetworkLevel, 0).bytes_per_s,
                            known[_i].inner_gb_per_s * 1e9, 1e3);
    ck_assert_double_eq_tol(g_array_index(t->networks, NetworkLevel, last).bytes_per_s,
                            known[_i].outer_gb_per_s * 1e9, 1e3);
}
END_TEST

/* Of one GPU, while all of a node copy as much out as in: 1 / (1 / read + 1 / write) x 2 / GPUs. */
static const struct {
    const char *name;
    double terabytes, read_gb_per_s, write_gb_per_s;
} disks[] = {
    {"aws-p4d", 8, 16, 16},
    {"frontier", 3.84, 11, 4},
    {"azure-ndv5-h200", 30.787, 48, 26},
};

START_TEST(disks_are_shared_by_a_node_and_copied_to_and_from)
{
    g_autoptr(Topology) t = load(disks[_i].name);
    const double mean = 2 / (1 / disks[_i].read_gb_per_s + 1 / disks[_i].write_gb_per_s);
    MemoryTier nvme;

    ck_assert(topology_memory(t, TIER_NVME, &nvme));
    ck_assert_uint_eq(nvme.span, 0);
    ck_assert_double_eq_tol((double)nvme.capacity_bytes, disks[_i].terabytes * 1e12, 1e9);
    ck_assert_double_eq_tol(nvme.bytes_per_s, mean * 1e9 / t->gpus_per_node, 5e6);
}
END_TEST

START_TEST(an_nvlink_domain_may_be_wider_than_a_node)
{
    g_autoptr(Topology) t = load("gb200-nvl72");

    ck_assert_uint_eq(t->gpus_per_node, 4);
    ck_assert_str_eq(topology_level(t, 72)->kind, "nvlink");
    ck_assert_str_eq(topology_level(t, 73)->kind, "infiniband");
}
END_TEST

/* A Grace's C2C, 450 GB/s each way, is one GPU's or shared by two; plans may keep state there. */
START_TEST(gpus_of_superchips_reach_their_host_by_c2c)
{
    g_autoptr(GPtrArray) names = files_of("topologies");
    guint superchips = 0;

    for (guint i = 0; i < names->len; i++) {
        g_autoptr(Topology) t = load(names->pdata[i]);
        const gboolean one = g_str_has_prefix(t->gpu.name, "gh");
        MemoryTier memory;

        if (!one && !g_str_has_prefix(t->gpu.name, "gb"))
            continue;
        ck_assert_msg(topology_memory(t, TIER_HOST, &memory), "%s", t->name);
        ck_assert_double_eq(memory.bytes_per_s, one ? 450e9 : 225e9);
        superchips++;
    }
    ck_assert_uint_ge(superchips, 4);
}
END_TEST

START_TEST(what_is_projected_says_so)
{
    g_autoptr(Topology) t = load("vr-nvl144");

    ck_assert(is_projected(t->source));
    ck_assert(is_projected(t->gpu.source));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("topologies");
    TCase *tcase = tcase_create("topologies");

    g_log_set_always_fatal(G_LOG_LEVEL_CRITICAL | G_LOG_FLAG_FATAL);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, every_topology_prints_back_under_its_own_name);
    tcase_add_test(tcase, every_gpu_loads_and_is_plausible);
    tcase_add_test(tcase, networks_are_of_one_gpu_and_one_direction);
    tcase_add_loop_test(tcase, known_systems_have_their_published_size_and_rates, 0,
                        G_N_ELEMENTS(known));
    tcase_add_loop_test(tcase, disks_are_shared_by_a_node_and_copied_to_and_from, 0,
                        G_N_ELEMENTS(disks));
    tcase_add_test(tcase, an_nvlink_domain_may_be_wider_than_a_node);
    tcase_add_test(tcase, gpus_of_superchips_reach_their_host_by_c2c);
    tcase_add_test(tcase, what_is_projected_says_so);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
