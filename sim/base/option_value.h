/* Numbers on a command line: what is not one, or out of bounds, is refused with what is allowed. */
#pragma once

#include <glib.h>

/* --NAME = "TEXT": an integer.  @text NULL: not given, @value stays. */
gboolean option_count(const char *name, const char *text, guint64 min, guint64 max, guint64 *value,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean option_uint(const char *name, const char *text, guint min, guint max, guint *value,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same: a finite number above 0, or (@zero) of at least 0. */
gboolean option_number(const char *name, const char *text, gboolean zero, double *value,
                       GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same: text that is not empty. */
gboolean option_text(const char *name, const char *text, const char *allowed,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
