/* What the simulated device finds wrong, and the settings of a run. */
#pragma once

#include "tests/cudasim/cudasim.h"

typedef struct {
    CsPolicy policy;
    CsOrder order;
    guint64 seed;
    guint eager_percent; /* chance that an op runs at a call that need not wait */
    gsize device_bytes;
    gint64 failing_allocation; /* counts down; negative: none fails */
    double timeout_s;
} CsSettings;

extern CsSettings cs_settings;

/* Takes them from the environment. */
void cs_settings_read(void);
void cs_settings_reseed(CsPolicy policy, CsOrder order, guint64 seed);

/* The next of a reproducible sequence. */
guint32 cs_random(void);

void cs_report(CsReportKind kind, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* Whether a report of this kind would be seen: what makes it dear to write may then be left out. */
gboolean cs_report_is_shown(CsReportKind kind);
void cs_reports_forget(void);

/* From now on a process with reports ends with status 99, and one that touches memory it may not
 * says so. */
void cs_reports_start(void);
