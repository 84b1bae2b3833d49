#include "exec/calibrate/calibrate_match.h"

#include "sim/base/error.h"
#include "sim/base/text.h"

#include <string.h>

/* A driver keeps 1% (80 GB) to 4% (40 GB with ECC) of what nvidia-smi reports, and data sheets
 * round down: 141 GB of an H200 NVL are 150.  Variants are 15% or more apart. */
static const double LEAST_MEMORY = 0.92, MOST_MEMORY = 1.08;

/* Data sheets round (4.8 TB/s of an H200 are 4.9 by its clock), boards are clocked a little higher
 * or lower; a PCIe variant has 0.6 of the bandwidth and 0.77 of the peak of an SXM one. */
static const double BANDWIDTH_TOLERANCE = 0.08, PEAK_TOLERANCE = 0.15;

static const char *form_of(const char *lower)
{
    static const char *const forms[] = {"sxm", "pcie", "nvl"};

    for (guint i = 0; i < G_N_ELEMENTS(forms); i++)
        if (strstr(lower, forms[i]) != NULL)
            return forms[i];
    return NULL;
}

static gboolean has_word(const char *text, const char *word)
{
    const gsize length = strlen(word);

    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word))
        if ((at == text || !g_ascii_isalnum(at[-1])) && !g_ascii_isalnum(at[length]))
            return TRUE;
    return FALSE;
}

/* "h100" of "h100-sxm-80gb" must be a word of "NVIDIA H100 80GB HBM3", both of "rtx-3090" of
 * "NVIDIA GeForce RTX 3090": GH200 is no h200, A100 no a10. */
static gboolean has_name(const char *type, const char *lower)
{
    g_auto(GStrv) parts = g_strsplit(type, "-", -1);

    for (guint i = 0; parts[i] != NULL; i++)
        if (form_of(parts[i]) == NULL && !g_str_has_suffix(parts[i], "gb") &&
            !has_word(lower, parts[i]))
            return FALSE;
    return TRUE;
}

/* An SXM module's name may leave that out ("NVIDIA H100 80GB HBM3"), those of cards never do. */
static gboolean has_form(const char *type, const char *lower)
{
    const char *wanted = form_of(type), *form = form_of(lower);

    return wanted == NULL || strcmp(form == NULL ? "sxm" : form, wanted) == 0;
}

static gboolean is_off(double is, double stated, double tolerance)
{
    return is > 0 && stated > 0 && (is < stated * (1 - tolerance) || is > stated * (1 + tolerance));
}

static char *rates_note(const Topology *topology, const DeviceFacts *facts)
{
    const Gpu *gpu = &topology->gpu;
    const double peak = gpu->peak_flops[DTYPE_FP32];

    if (!is_off(facts->memory_bytes_per_s, gpu->memory_bytes_per_s, BANDWIDTH_TOLERANCE) &&
        !is_off(facts->fp32_flops, peak, PEAK_TOLERANCE))
        return NULL;
    return g_strdup_printf("by its clocks this %s has %.3g TB/s of memory and %.3g TFLOP/s of "
                           "fp32; topology %s states "
                           "%.3g and %.3g for a %s",
                           facts->name, facts->memory_bytes_per_s / 1e12, facts->fp32_flops / 1e12,
                           topology->name, gpu->memory_bytes_per_s / 1e12, peak / 1e12, gpu->name);
}

gboolean calibrate_match(const Topology *topology, const DeviceFacts *facts, char **note,
                         GError **error)
{
    const Gpu *gpu = &topology->gpu;
    const double share = (double)facts->memory_bytes / (double)gpu->memory_bytes;
    g_autofree char *lower = g_ascii_strdown(facts->name, -1);
    g_autofree char *type = g_ascii_strdown(gpu->name, -1);

    if (!has_name(type, lower) || !has_form(type, lower))
        return fail(error, ERROR_INPUT,
                    "topology %s has GPUs of type %s, and this machine has another: %s (--topology "
                    "names what describes it)",
                    topology->name, gpu->name, facts->name);
    if (share < LEAST_MEMORY || share > MOST_MEMORY) {
        g_autofree char *is = bytes_text(facts->memory_bytes);
        g_autofree char *stated = bytes_text(gpu->memory_bytes);

        return fail(error, ERROR_INPUT,
                    "topology %s has GPUs of type %s with %s, and this machine's %s has %s "
                    "(--topology names what describes it)",
                    topology->name, gpu->name, stated, facts->name, is);
    }
    *note = rates_note(topology, facts);
    return TRUE;
}
