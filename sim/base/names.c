#include "sim/base/names.h"

gboolean name_find(const char *name, const char *const *names, guint num, guint *value)
{
    for (guint i = 0; i < num; i++) {
        if (g_str_equal(name, names[i])) {
            *value = i;
            return TRUE;
        }
    }
    return FALSE;
}
