/* Which GPU is the one of a topology. */
#include "exec/calibrate/calibrate_match.h"
#include "tests/suite.h"

#include <string.h>

/* As drivers name them, with the memory and the rates that CUDA tells. */
static const struct {
    const char *type;
    DeviceFacts facts;
} known[] = {
    {"v100-sxm-16gb", {"Tesla V100-SXM2-16GB", 16945512448, 898e9, 15.7e12}},
    {"v100-sxm-32gb", {"Tesla V100-SXM2-32GB", 34089730048, 898e9, 15.7e12}},
    {"v100-pcie-32gb", {"Tesla V100-PCIE-32GB", 34089730048, 898e9, 14.1e12}},
    {"a100-sxm-40gb", {"NVIDIA A100-SXM4-40GB", 42298834944, 1555e9, 19.5e12}},
    {"a100-sxm-80gb", {"NVIDIA A100-SXM4-80GB", 85097971712, 2039e9, 19.5e12}},
    {"a100-pcie-40gb", {"NVIDIA A100-PCIE-40GB", 42298834944, 1555e9, 19.5e12}},
    {"a100-pcie-80gb", {"NVIDIA A100 80GB PCIe", 85097971712, 1935e9, 19.5e12}},
    {"a800-sxm-80gb", {"NVIDIA A800-SXM4-80GB", 85097971712, 2039e9, 19.5e12}},
    {"h100-sxm-80gb", {"NVIDIA H100 80GB HBM3", 85045018624, 3352e9, 66.9e12}},
    {"h100-pcie-80gb", {"NVIDIA H100 PCIe", 84994490368, 2039e9, 51.2e12}},
    {"h100-nvl-94gb", {"NVIDIA H100 NVL", 99873685504, 3938e9, 60.3e12}},
    {"h200-sxm-141gb", {"NVIDIA H200", 150109880320, 4917e9, 66.9e12}},
    {"h200-nvl-141gb", {"NVIDIA H200 NVL", 150109880320, 4917e9, 60.3e12}},
    {"gh200-96gb", {"NVIDIA GH200 480GB", 101961498624, 4023e9, 66.9e12}},
    {"b200", {"NVIDIA B200", 191513952256, 8184e9, 74.4e12}},
    {"l40s", {"NVIDIA L40S", 47697362944, 864e9, 91.6e12}},
    {"a10", {"NVIDIA A10", 23695392768, 600e9, 31.2e12}},
    {"rtx-3090", {"NVIDIA GeForce RTX 3090", 25447170048, 936e9, 35.7e12}},
    {"rtx-4090", {"NVIDIA GeForce RTX 4090", 25393692672, 1008e9, 82.6e12}},
};

static Topology *topology_of(const char *type)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *text = g_strdup_printf(
        "[cluster]\nname = one\nsource = test\nnodes = 1\n[node]\ngpus = 1\ngpu = %s\n"
        "[network pcie]\nkind = pcie\nbandwidth = 63 GB/s\nlatency = 5 us\n",
        type);
    Topology *topology = topology_parse(text, "one", "topologies", &error);

    ck_assert_msg(topology != NULL, "%s", error == NULL ? "" : error->message);
    return topology;
}

/* Every pair of the table: variants of one name, names that are part of another. */
START_TEST(a_gpu_is_that_of_its_own_type_and_of_no_other)
{
    g_autoptr(Topology) topology = topology_of(known[_i].type);

    for (guint other = 0; other < G_N_ELEMENTS(known); other++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *note = NULL;
        const gboolean same = calibrate_match(topology, &known[other].facts, &note, &error);

        ck_assert_msg(same == (other == (guint)_i), "%s, %s: %s", known[_i].type,
                      known[other].facts.name, same ? "the same" : error->message);
        ck_assert_msg(note == NULL, "%s", note);
    }
}
END_TEST

static void refuses(const char *type, const char *name, guint64 bytes, const char *words)
{
    g_autoptr(Topology) topology = topology_of(type);
    DeviceFacts facts = {.memory_bytes = bytes};
    g_autoptr(GError) error = NULL;
    g_autofree char *note = NULL;

    g_strlcpy(facts.name, name, sizeof facts.name);
    ck_assert(!calibrate_match(topology, &facts, &note, &error));
    ck_assert_msg(strstr(error->message, words) != NULL, "%s", error->message);
}

START_TEST(a_refusal_names_both)
{
    refuses("h100-sxm-80gb", "NVIDIA H100 PCIe", 84994490368,
            "GPUs of type h100-sxm-80gb, and this machine has another: NVIDIA H100 PCIe");
    refuses("a100-sxm-80gb", "NVIDIA A100-SXM4-40GB", 42298834944,
            "of type a100-sxm-80gb with 85.9 GB, and this machine's NVIDIA A100-SXM4-40GB has "
            "42.3 GB");
    refuses("h100-sxm-80gb", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", 42298834944, "has 42.3 GB");
}
END_TEST

/* Clocks can be capped, so they are said, not refused; what isn't told is not compared. */
START_TEST(other_rates_are_noted_with_both_figures)
{
    g_autoptr(Topology) topology = topology_of("h100-sxm-80gb");
    DeviceFacts slow = {"NVIDIA H100 80GB HBM3", 85045018624, 2039e9, 66.9e12}, quiet = slow;
    g_autoptr(GError) error = NULL;
    g_autofree char *note = NULL, *none = NULL;

    quiet.memory_bytes_per_s = quiet.fp32_flops = 0;
    ck_assert(calibrate_match(topology, &slow, &note, &error));
    ck_assert_str_eq(note, "by its clocks this NVIDIA H100 80GB HBM3 has 2.04 TB/s of memory and "
                           "66.9 TFLOP/s of fp32; topology one states 3.35 and 66.9 for a "
                           "h100-sxm-80gb");
    ck_assert(calibrate_match(topology, &quiet, &none, &error));
    ck_assert_ptr_null(none);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("GPUs of topologies");
    TCase *tcase = tcase_create("match");

    tcase_add_loop_test(tcase, a_gpu_is_that_of_its_own_type_and_of_no_other, 0,
                        G_N_ELEMENTS(known));
    tcase_add_test(tcase, a_refusal_names_both);
    tcase_add_test(tcase, other_rates_are_noted_with_both_figures);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
