#include "sim/import/import_rates.h"

#define PCIE3 15.75e9 /* x16, one direction: 8, 16, 32 GT/s less the 128b/130b code */
#define PCIE4 31.5e9
#define PCIE5 63.0e9

/* A longer prefix comes before a shorter one that it begins with.  Sources: NVIDIA's datasheets and
 * whitepapers, by GPU; compute capabilities: developer.nvidia.com/cuda-gpus; NVLink 2 to 4: 25 GB/s
 * a link and direction, NVLink 5: 50; the bridges of GA102 cards: 4 links of 14.0625 GB/s (GA102
 * whitepaper).  A PCIe card has its links only where a bridge sits on it. */
static const ImportRates known[] = {
    {"a100-pcie", 80, 12, 25e9, PCIE4, FALSE},
    {"a100-sxm", 80, 12, 25e9, PCIE4, TRUE},
    {"a10", 86, 0, 0, PCIE4, FALSE},
    {"a800-sxm", 80, 8, 25e9, PCIE4, TRUE},
    {"b200", 100, 18, 50e9, PCIE5, TRUE},
    {"b300", 103, 18, 50e9, PCIE5, TRUE},
    {"gb200", 100, 18, 50e9, PCIE5, TRUE},
    {"gb300", 103, 18, 50e9, PCIE5, TRUE},
    {"gh200", 90, 18, 25e9, PCIE5, FALSE},
    {"h100-nvl", 90, 12, 25e9, PCIE5, FALSE},
    {"h100-pcie", 90, 12, 25e9, PCIE5, FALSE},
    {"h100-sxm", 90, 18, 25e9, PCIE5, TRUE},
    {"h200-nvl", 90, 18, 25e9, PCIE5, FALSE},
    {"h200-sxm", 90, 18, 25e9, PCIE5, TRUE},
    {"h20-sxm", 90, 18, 25e9, PCIE5, TRUE},
    {"h800-sxm", 90, 8, 25e9, PCIE5, TRUE},
    {"l40s", 89, 0, 0, PCIE4, FALSE},
    {"rtx-3090", 86, 4, 14.0625e9, PCIE4, FALSE},
    {"rtx-4090", 89, 0, 0, PCIE4, FALSE},
    {"rtx-5090", 120, 0, 0, PCIE5, FALSE},
    {"rtx-a6000", 86, 4, 14.0625e9, PCIE4, FALSE},
    {"v100-pcie", 70, 0, 0, PCIE3, FALSE},
    {"v100-sxm", 70, 6, 25e9, PCIE3, TRUE},
};

const ImportRates *import_rates(const char *name)
{
    g_autofree char *lower = g_ascii_strdown(name, -1);

    for (guint i = 0; i < G_N_ELEMENTS(known); i++) {
        if (g_str_has_prefix(lower, known[i].prefix))
            return &known[i];
    }
    return NULL;
}

char *import_rates_known(void)
{
    const char *names[G_N_ELEMENTS(known) + 1] = {NULL};

    for (guint i = 0; i < G_N_ELEMENTS(known); i++)
        names[i] = known[i].prefix;
    return g_strjoinv(", ", (GStrv)names);
}

/* Source: the PCI ID repository (pci.ids), vendor 10de. */
static const struct {
    const char *id, *gpu;
} devices[] = {
    {"0x1db1", "v100-sxm-16gb"},  {"0x1db5", "v100-sxm-32gb"}, {"0x1db6", "v100-pcie-32gb"},
    {"0x20b0", "a100-sxm-40gb"},  {"0x20b2", "a100-sxm-80gb"}, {"0x20b5", "a100-pcie-80gb"},
    {"0x20f1", "a100-pcie-40gb"}, {"0x20f3", "a800-sxm-80gb"}, {"0x2204", "rtx-3090"},
    {"0x2230", "rtx-a6000"},      {"0x2236", "a10"},           {"0x2237", "a10"},
    {"0x2329", "h20-sxm-96gb"},   {"0x2330", "h100-sxm-80gb"}, {"0x2331", "h100-pcie-80gb"},
    {"0x2335", "h200-sxm-141gb"}, {"0x2342", "gh200-96gb"},    {"0x2684", "rtx-4090"},
    {"0x26b9", "l40s"},           {"0x2901", "b200"},          {"0x2b85", "rtx-5090"},
};

const char *import_gpu_of_device(const char *id)
{
    for (guint i = 0; i < G_N_ELEMENTS(devices); i++) {
        if (g_ascii_strcasecmp(devices[i].id, id) == 0)
            return devices[i].gpu;
    }
    return NULL;
}
