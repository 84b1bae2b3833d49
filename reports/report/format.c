#include "reports/report/format.h"

#include <math.h>

typedef struct {
    double from; /* smallest value that this unit is for */
    FormatScale scale;
} Step;

/* Largest first; the last one is for all the rest. */
static FormatScale choose(const Step *steps, double reference)
{
    while (steps->from > 0 && !(fabs(reference) >= steps->from))
        steps++;
    return steps->scale;
}

FormatScale format_bytes_scale(double reference_bytes)
{
    static const Step steps[] = {
        {1024.0 * 1024 * 1024 * 1024, {1024.0 * 1024 * 1024 * 1024, "TiB"}},
        {1024.0 * 1024 * 1024, {1024.0 * 1024 * 1024, "GiB"}},
        {1024.0 * 1024, {1024.0 * 1024, "MiB"}},
        {1024, {1024, "KiB"}},
        {0, {1, "B"}},
    };

    return choose(steps, reference_bytes);
}

FormatScale format_seconds_scale(double reference_s)
{
    static const Step steps[] = {
        {1, {1, "s"}},
        {1e-3, {1e-3, "ms"}},
        {1e-6, {1e-6, "µs"}},
        {0, {1, "s"}},
    };

    return choose(steps, reference_s);
}

char *format_scaled(double value, FormatScale scale)
{
    /* Four digits say enough, and equal digits after the point line up. */
    const double shown = value / scale.divisor;
    const int decimals = fabs(shown) >= 1000  ? 0
                         : fabs(shown) >= 100 ? 1
                         : fabs(shown) >= 10  ? 2
                                              : 3;

    return g_strdup_printf("%.*f %s", value == 0 ? 0 : decimals, shown, scale.unit);
}

char *format_term(const char *term, const char *unit, double value, double reference)
{
    if (isnan(value))
        return g_strdup(FORMAT_UNKNOWN);
    if (g_strcmp0(unit, "bytes") == 0)
        return format_scaled(value, format_bytes_scale(reference));
    if (g_strcmp0(unit, "s") == 0)
        return format_scaled(value, format_seconds_scale(reference));
    if (g_strcmp0(term, "mfu") == 0 || g_strcmp0(term, "hfu") == 0 ||
        g_str_has_suffix(term, "_fraction"))
        return g_strdup_printf("%.2f %%", value * 100);
    if (unit == NULL || unit[0] == '\0' || g_strcmp0(unit, "1") == 0)
        return g_strdup_printf("%.4g", value);
    return fabs(value) >= 1000 ? g_strdup_printf("%.0f %s", value, unit)
                               : g_strdup_printf("%.4g %s", value, unit);
}

char *format_seconds(double value_s)
{
    return format_term("", "s", value_s, value_s);
}

double format_error_value(double predicted, double measured)
{
    if (predicted == 0 && measured == 0)
        return 0;
    return predicted == 0 ? NAN : measured / predicted - 1;
}

char *format_error(const char *unit, double predicted, double measured)
{
    if (isnan(predicted) || isnan(measured))
        return g_strdup(FORMAT_UNKNOWN);
    if (predicted == measured && (predicted == 0 || g_strcmp0(unit, "bytes") == 0))
        return g_strdup("exact");
    if (predicted == 0)
        return g_strdup("unpredicted");

    const double percent = 100 * format_error_value(predicted, measured);

    /* A difference of some bytes in a gigabyte must not read as none. */
    if (g_strcmp0(unit, "bytes") == 0 && fabs(percent) < 0.05)
        return g_strdup_printf("%+.2g %%", percent);
    return g_strdup_printf("%+.1f %%", percent);
}
