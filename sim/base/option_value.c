#include "sim/base/option_value.h"

#include "sim/base/error.h"
#include "sim/base/units.h"

#include <math.h>

gboolean option_count(const char *name, const char *text, guint64 min, guint64 max, guint64 *value,
                      GError **error)
{
    if (text == NULL || units_parse_count(text, min, max, value, NULL))
        return TRUE;
    return fail(error, ERROR_INPUT,
                "--%s = \"%s\": must be %" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT, name, text,
                min, max);
}

gboolean option_uint(const char *name, const char *text, guint min, guint max, guint *value,
                     GError **error)
{
    guint64 count = *value;

    if (!option_count(name, text, min, max, &count, error))
        return FALSE;
    *value = (guint)count;
    return TRUE;
}

gboolean option_number(const char *name, const char *text, gboolean zero, double *value,
                       GError **error)
{
    char *end = NULL;
    const double number = text == NULL ? 0 : g_ascii_strtod(text, &end);

    if (text == NULL)
        return TRUE;
    if (end == text || *end != '\0' || !isfinite(number) || number < 0 || (number == 0 && !zero))
        return fail(error, ERROR_INPUT, "--%s = \"%s\": must be a finite number %s 0", name, text,
                    zero ? "of at least" : "above");
    *value = number;
    return TRUE;
}

gboolean option_text(const char *name, const char *text, const char *allowed, GError **error)
{
    return text == NULL || *text != '\0' ||
           fail(error, ERROR_INPUT, "--%s = \"\": must be %s", name, allowed);
}
