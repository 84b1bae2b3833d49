#include "sim/base/text.h"

/* Three significant digits or one decimal, whichever is more. */
static char *scaled(double value, const char *unit)
{
    return g_strdup_printf(value < 10 ? "%.2f %s" : "%.1f %s", value, unit);
}

char *bytes_text(guint64 bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double value = (double)bytes;
    guint unit = 0;

    if (bytes < 1000)
        return g_strdup_printf("%u B", (guint)bytes);
    for (; value >= 1000 && unit + 1 < G_N_ELEMENTS(units); unit++)
        value /= 1000;
    return scaled(value, units[unit]);
}

char *seconds_text(double seconds)
{
    if (seconds >= 2 * 3600)
        return scaled(seconds / 3600, "h");
    if (seconds >= 1)
        return scaled(seconds, "s");
    if (seconds >= 1e-3)
        return scaled(seconds * 1e3, "ms");
    return scaled(seconds * 1e6, "us");
}
