/* The grammar of JSON, checked before a lax parser sees the text. */
#pragma once

#include <glib.h>

/* RFC 8259 to the letter, numbers within the range of gint64 or double, nesting at most 64 deep.
 * "@source:line:column: ..." and ERROR_INPUT otherwise. */
gboolean json_check(const char *text, const char *source, GError **error) G_GNUC_WARN_UNUSED_RESULT;
