/* The one error domain, and what an error means for the exit status. */
#pragma once

#include <glib.h>

typedef enum {
    ERROR_INPUT,      /* bad usage or bad input: exit 2 */
    ERROR_INFEASIBLE, /* nothing feasible, an illegal layout, or a check failed: exit 1 */
    ERROR_RUNTIME,    /* device, communicator, storage, non-finite loss: exit 3 */
} ErrorCode;

#define ERROR_DOMAIN (error_quark())
GQuark error_quark(void);

/* Sets @error (which may be NULL) and returns FALSE, so that a caller fails in one line:
 * `return fail(error, ERROR_INPUT, "%s:%d: ...", file, line);` */
gboolean fail(GError **error, ErrorCode code, const char *format, ...) G_GNUC_PRINTF(3, 4);

/* The exit status of DESIGN's table (1, 2 or 3).  Errors of other domains (files, options) are 2.
 */
int error_exit_status(const GError *error);
