/* A topology file as a person wrote it, with other rows of calibration. */
#pragma once

#include "sim/input/topology.h"

typedef struct {
    char *path; /* links followed */
    char *text;
    guint mode; /* its permissions */
    Topology *topology;
} TopologyText;

/* ERROR_INPUT where @path is no file that can be read and written, or not a topology. */
gboolean topology_text_load(TopologyText *file, const char *path,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
void topology_text_clear(TopologyText *file);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(TopologyText, topology_text_clear)

/* Writes the rows that file->topology has now; the rest of the text, comments too, stays. */
gboolean topology_text_save(const TopologyText *file, GError **error) G_GNUC_WARN_UNUSED_RESULT;
