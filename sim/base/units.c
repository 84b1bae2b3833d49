#include "sim/base/units.h"

#include "sim/base/error.h"

#include <math.h>
#include <string.h>

/* The value is the decimal number with its exponent raised, times a power of two: so that
 * "66.9 TFLOP/s" is the double nearest to 66.9e12, which 66.9 * 1e12 is not. */
typedef struct {
    const char *prefix;
    int exponent; /* of ten */
    double times; /* a power of two */
} Scale;

enum { NUM_DECIMAL_SCALES = 6, NUM_SCALES = 11 };

/* FLOP/s and watts have the first six. */
static const Scale scales[NUM_SCALES] = {
    {.prefix = "", .exponent = 0, .times = 1},   {.prefix = "k", .exponent = 3, .times = 1},
    {.prefix = "M", .exponent = 6, .times = 1},  {.prefix = "G", .exponent = 9, .times = 1},
    {.prefix = "T", .exponent = 12, .times = 1}, {.prefix = "P", .exponent = 15, .times = 1},
    {.prefix = "Ki", .times = 0x1p10},           {.prefix = "Mi", .times = 0x1p20},
    {.prefix = "Gi", .times = 0x1p30},           {.prefix = "Ti", .times = 0x1p40},
    {.prefix = "Pi", .times = 0x1p50},
};

static const Scale time_scales[] = {
    {.prefix = "n", .exponent = -9, .times = 1},
    {.prefix = "u", .exponent = -6, .times = 1},
    {.prefix = "m", .exponent = -3, .times = 1},
    {.prefix = "", .exponent = 0, .times = 1},
};

static const struct {
    const char *base, *allowed;
    const Scale *scales;
    guint num_scales;
} kinds[NUM_UNITS] = {
    [UNITS_BYTES] = {.base = "B",
                     .allowed = "a number >= 0 and B, kB MB GB TB PB (powers of 1000) or KiB MiB "
                                "GiB TiB PiB (of 1024), such as \"80 GiB\"",
                     .scales = scales,
                     .num_scales = NUM_SCALES},
    [UNITS_BYTES_PER_S] = {.base = "B/s",
                           .allowed = "a number >= 0 and B/s, kB/s ... PB/s or KiB/s ... PiB/s "
                                      "(bytes, not bits), such as \"300 GB/s\"",
                           .scales = scales,
                           .num_scales = NUM_SCALES},
    [UNITS_FLOPS_PER_S] = {.base = "FLOP/s",
                           .allowed = "a number >= 0 and FLOP/s, kFLOP/s ... PFLOP/s, such as "
                                      "\"989 TFLOP/s\"",
                           .scales = scales,
                           .num_scales = NUM_DECIMAL_SCALES},
    [UNITS_SECONDS] = {.base = "s",
                       .allowed = "a number >= 0 and s, ms, us or ns, such as \"5 us\"",
                       .scales = time_scales,
                       .num_scales = G_N_ELEMENTS(time_scales)},
    [UNITS_WATTS] = {.base = "W",
                     .allowed = "a number >= 0 and W, kW, MW ..., such as \"700 W\"",
                     .scales = scales,
                     .num_scales = NUM_DECIMAL_SCALES},
};

/* The length of the number that @text begins with: decimal digits with an optional point and
 * exponent.  0 where there is none, or what strtod() takes besides (hexadecimal, inf, nan, signs,
 * leading space). */
static gsize number_length(const char *text)
{
    char *end;

    if (!g_ascii_isdigit(text[0]) || text[1] == 'x' || text[1] == 'X')
        return 0;
    g_ascii_strtod(text, &end);
    return (gsize)(end - text);
}

/* The number in the first @length characters, scaled; infinite when it is too large. */
static double scaled_number(const char *text, gsize length, const Scale *scale)
{
    g_autofree char *number = g_strndup(text, length);
    const gsize mantissa = strcspn(number, "eE");
    const gint64 written = mantissa < length ? g_ascii_strtoll(number + mantissa + 1, NULL, 10) : 0;
    const int exponent = (int)CLAMP(written, -100000, 100000) + scale->exponent;
    g_autofree char *raised = g_strdup_printf("%.*se%d", (int)mantissa, number, exponent);

    return g_ascii_strtod(raised, NULL) * scale->times;
}

static const Scale *find_scale(const char *unit, Units units)
{
    for (guint i = 0; i < kinds[units].num_scales; i++) {
        const Scale *scale = &kinds[units].scales[i];

        if (g_str_has_prefix(unit, scale->prefix) &&
            g_str_equal(unit + strlen(scale->prefix), kinds[units].base))
            return scale;
    }
    return NULL;
}

gboolean units_parse(const char *text, Units units, double *value, GError **error)
{
    const gsize length = number_length(text);
    const char *unit = text + length;
    const Scale *scale = length > 0 ? find_scale(unit + strspn(unit, " "), units) : NULL;
    const double found = scale != NULL ? scaled_number(text, length, scale) : INFINITY;

    if (!isfinite(found))
        return fail(error, ERROR_INPUT, "\"%s\": allowed: %s", text, kinds[units].allowed);
    *value = found;
    return TRUE;
}

gboolean units_parse_bytes(const char *text, guint64 *bytes, GError **error)
{
    double value;

    if (!units_parse(text, UNITS_BYTES, &value, error))
        return FALSE;
    if (value > 0x1p53)
        return fail(error, ERROR_INPUT, "\"%s\": allowed: at most 8 PiB", text);
    *bytes = (guint64)(value + 0.5);
    return TRUE;
}

gboolean units_parse_count(const char *text, guint64 min, guint64 max, guint64 *count,
                           GError **error)
{
    if (!g_ascii_string_to_unsigned(text, 10, min, max, count, NULL))
        return fail(error, ERROR_INPUT,
                    "\"%s\": allowed: an integer from %" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT,
                    text, min, max);
    return TRUE;
}

gboolean units_parse_number(const char *text, double *value, GError **error)
{
    const gsize length = number_length(text);
    const double found = g_ascii_strtod(text, NULL);

    if (length == 0 || text[length] != '\0' || !isfinite(found))
        return fail(error, ERROR_INPUT, "\"%s\": allowed: a number >= 0, such as \"1.5\"", text);
    *value = found;
    return TRUE;
}

/* The fewest digits of @value / @scale that read back as @value, without an exponent if that is
 * possible; NULL when 17 are not enough. */
static char *print_scaled(double value, const Scale *scale)
{
    g_autofree char *with_exponent = NULL;
    const double shown = value / scale->times / pow(10.0, scale->exponent);

    for (int digits = 1; digits <= 17; digits++) {
        char format[8], number[G_ASCII_DTOSTR_BUF_SIZE];

        g_snprintf(format, sizeof format, "%%.%dg", digits);
        g_ascii_formatd(number, sizeof number, format, shown);
        if (scaled_number(number, strlen(number), scale) != value)
            continue;
        if (strchr(number, 'e') == NULL)
            return g_strdup(number);
        if (with_exponent == NULL)
            with_exponent = g_strdup(number);
    }
    return g_steal_pointer(&with_exponent);
}

/* Characters, and a few more for what is hard to read: exponents, numbers below 1, from 1000 on. */
static gsize reading_cost(const char *number, const char *prefix)
{
    const double shown = g_ascii_strtod(number, NULL);

    return strlen(number) + strlen(prefix) + (strchr(number, 'e') != NULL ? 20 : 0) +
           (shown < 1.0 ? 4 : 0) + (shown >= 1000.0 ? 3 : 0);
}

char *units_print(double value, Units units)
{
    g_assert(isfinite(value) && value >= 0.0);

    char *best = NULL;
    gsize best_cost = G_MAXSIZE;

    for (guint i = 0; i < kinds[units].num_scales; i++) {
        const Scale *scale = &kinds[units].scales[i];
        g_autofree char *number = print_scaled(value, scale);

        if (number == NULL || reading_cost(number, scale->prefix) >= best_cost)
            continue;
        best_cost = reading_cost(number, scale->prefix);
        g_free(best);
        best = g_strdup_printf("%s %s%s", number, scale->prefix, kinds[units].base);
    }
    return best;
}

char *units_print_number(double value)
{
    g_assert(isfinite(value) && value >= 0.0);
    return print_scaled(value, &scales[0]);
}
