/* --fix and --layout: KEY=VALUE,... into a request. */
#pragma once

#include "sim/search/search.h"

enum { MAX_GPUS = 1 << 20, MAX_BATCH = 1 << 30 };

/* @option: "fix", or "layout", which has axes only.  ERROR_INPUT. */
gboolean plan_fix_read(SearchRequest *request, const char *option, const char *text,
                       gboolean axes_only, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* "full", "selective:4:4", ...; FALSE when it is none of RECOMPUTE_TEXTS. */
gboolean plan_fix_recompute(SearchRequest *request, const char *text);

/* Whether what field @i of "name=value" ones names stands before it too; units may be several. */
gboolean plan_fix_repeats(GStrv fields, guint i);
