#include "sim/base/error.h"

#include <stdarg.h>

G_DEFINE_QUARK(fsdp - error - quark, error)

gboolean fail(GError **error, ErrorCode code, const char *format, ...)
{
    if (error == NULL)
        return FALSE;

    va_list arguments;

    va_start(arguments, format);
    GError *made = g_error_new_valist(ERROR_DOMAIN, (gint)code, format, arguments);
    va_end(arguments);
    g_propagate_error(error, made);
    return FALSE;
}

int error_exit_status(const GError *error)
{
    if (error->domain != ERROR_DOMAIN)
        return 2;

    switch ((ErrorCode)error->code) {
    case ERROR_INFEASIBLE:
        return 1;
    case ERROR_RUNTIME:
        return 3;
    case ERROR_INPUT:
        break;
    }
    return 2;
}
