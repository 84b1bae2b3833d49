/* The report as one self-contained page: pictures inlined, no links outside, no scripts. */
#pragma once

#include "reports/report/report.h"

#include <glib.h>

/* Writes @folder/index.html about @run and the store, and each picture as an .svg of its own (and
 * a .png with @png).  The folder is created.  Every picture is drawn before anything is written,
 * and each file is written under another name, then renamed. */
gboolean html_write(const Report *report, const ReportRun *run, const char *folder, gboolean png,
                    GError **error) G_GNUC_WARN_UNUSED_RESULT;
