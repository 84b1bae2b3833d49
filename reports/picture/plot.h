/* gnuplot as a child process: a script in, an SVG or a PNG out. */
#pragma once

#include <glib.h>

typedef enum { PLOT_SVG, PLOT_PNG, NUM_PLOT_FORMATS } PlotFormat;

typedef struct {
    char *name;          /* of its file, without extension */
    guint width, height; /* of the SVG, px; the PNG has twice as many */
    char *script;        /* without terminal and output */
} Plot;

void plot_free(Plot *plot);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Plot, plot_free)

/* The picture.  ERROR_RUNTIME when gnuplot is not there or refuses the script.  Ids in the SVG
 * begin with the plot's name, so that several fit into one page. */
GBytes *plot_render(const Plot *plot, PlotFormat format, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* @text as a string of gnuplot's language that means nothing else, whatever is in it. */
char *plot_quote(const char *text);
