#include "sim/layout/schedule.h"

#include <string.h>

static const char *const recompute_names[NUM_RECOMPUTES] = {
    [RECOMPUTE_NONE] = "none",
    [RECOMPUTE_FULL] = "full",
};

const char *recompute_name(Recompute recompute)
{
    return recompute_names[recompute];
}

gboolean recompute_from_name(const char *name, Recompute *recompute)
{
    for (guint i = 0; i < NUM_RECOMPUTES; i++) {
        if (strcmp(name, recompute_names[i]) == 0) {
            *recompute = (Recompute)i;
            return TRUE;
        }
    }
    return FALSE;
}
