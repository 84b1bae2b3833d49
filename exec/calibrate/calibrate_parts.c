#include "exec/calibrate/calibrate_parts.h"

#include "sim/base/error.h"
#include "sim/base/text_file.h"

#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

gboolean calibrate_write(const Topology *topology, const char *path, GError **error)
{
    g_autofree char *text = topology_print(topology);

    return text_file_write(path, text, strlen(text), error);
}

/* Runs @ranks of this program, which write their rows to @path. */
static gboolean launch_rank_part(const CalibrateOptions *options, CalibrateLaunch launch,
                                 guint ranks, const char *path, GError **error)
{
    g_autoptr(GPtrArray) arguments = g_ptr_array_new();

    for (guint i = 0; options->rank_command[i] != NULL; i++)
        g_ptr_array_add(arguments, (gpointer)options->rank_command[i]);
    g_ptr_array_add(arguments, (gpointer)path);
    const int argc = (int)arguments->len;
    g_ptr_array_add(arguments, NULL);

    g_autoptr(GError) cause = NULL;
    const int status = launch(argc, (char **)arguments->pdata, ranks, 1, &cause);
    if (status == 0)
        return TRUE;
    return fail(error, ERROR_RUNTIME, "calibration with %u ranks: %s", ranks,
                cause == NULL ? "a rank failed" : cause->message);
}

gboolean calibrate_ranks(const CalibrateOptions *options, CalibrateLaunch launch, guint ranks,
                         Measured *measured, GError **error)
{
    g_autoptr(GError) cause = NULL;
    g_autofree char *path = NULL;
    const int file = g_file_open_tmp("fsdp-calibrate-XXXXXX", &path, &cause);

    if (file < 0)
        return fail(error, ERROR_RUNTIME, "%s", cause->message);
    close(file);
    g_autoptr(Topology) part = launch_rank_part(options, launch, ranks, path, error)
                                   ? topology_load(path, options->topologies_dir, error)
                                   : NULL;
    g_unlink(path);
    if (part == NULL)
        return FALSE;
    measured_merge(measured, &part->measured);
    return TRUE;
}
