#include "sim/base/error.h"

#include <stdarg.h>

GQuark error_quark(void)
{
    return g_quark_from_static_string("fsdp-error-quark");
}

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
