/* Names of an enum's values, as plans and command lines write them. */
#pragma once

#include <glib.h>

/* Sets *value to the index of @name among the @num @names; FALSE, and leaves it, when it is none of
 * them. */
gboolean name_find(const char *name, const char *const *names, guint num, guint *value);
