/* The known name that a mistyped one most resembles. */
#pragma once

#include <glib.h>

/* Smallest number of insertions, deletions and replacements that turn @a into @b. */
guint edit_distance(const char *a, const char *b);

/* Of @names (NULL-terminated, may be empty): NULL when none is within half of @name's length. */
const char *nearest_name(const char *name, const char *const *names);

/* The shortest of @names that starts with @name, else that has it inside, from 3 letters on; NULL
 * when none has. */
const char *nearest_with(const char *name, const char *const *names);

/* nearest_with(), else nearest_name(): " (did you mean \"bandwidth\"?)", or "" when nothing is
 * near. */
char *nearest_hint(const char *name, const char *const *names);
