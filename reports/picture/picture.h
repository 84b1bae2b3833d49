/* The pictures of a report, as gnuplot scripts. */
#pragma once

#include "reports/picture/plot.h"
#include "reports/report/report.h"

#include <glib.h>

typedef struct {
    Plot *plot;
    char *caption; /* what is seen, and what was left out */
} Picture;

/* Picture, in the order of the page; one that would have nothing to show is left out. */
GPtrArray *picture_all(const Report *report, const ReportRun *run);

/* For those who write pictures (picture_*.c). */

/* Each NULL when there is nothing to show. */
Picture *picture_step_time(const ReportRun *run);
Picture *picture_memory(const ReportRun *run);
Picture *picture_timeline(const ReportRun *run);
Picture *picture_loss(const Report *report, const ReportRun *run);
Picture *picture_ranking(const Report *report, const ReportRun *run);
Picture *picture_accuracy(const Report *report, const ReportRun *run);

typedef struct {
    const char *label, *colour;
} PictureKey;

/* Where things lie, px: the title, below it the key, below it the plot. */
typedef struct {
    const char *title;
    guint left, right; /* margins, which hold the names of rows and what ends them */
    guint plot_height;
    const PictureKey *key; /* a coloured box each; gnuplot's own keys wrap as they like */
    guint num_keys;
} PictureFrame;

enum { PICTURE_WIDTH = 800 };

/* Appends title, margins and key, and what all pictures have in common. */
void picture_begin(GString *script, const PictureFrame *frame);

/* Takes @script and @caption. */
Picture *picture_new(const char *name, const PictureFrame *frame, GString *script, char *caption);

/* The width of @chars of text, px; what a browser's font takes differs, so this is on the wide
 * side. */
guint picture_text_px(gsize chars);

/* "run 3, dp_shard=8 full_shard", cut to @max_chars. */
char *picture_run_label(const ReportRun *run, gsize max_chars);

/* A new string, cut with an ellipsis when it's longer. */
char *picture_ellipsis(const char *text, gsize max_chars);

/* Okabe and Ito's colours, which also colour-blind readers tell apart, and greys. */
#define PICTURE_BLUE       "#0072B2"
#define PICTURE_SKY        "#56B4E9"
#define PICTURE_GREEN      "#009E73"
#define PICTURE_PINK       "#CC79A7"
#define PICTURE_VERMILLION "#D55E00"
#define PICTURE_ORANGE     "#E69F00"
#define PICTURE_YELLOW     "#F0E442"
#define PICTURE_VIOLET     "#7B6FD0"
#define PICTURE_WINE       "#882255"
#define PICTURE_GREY       "#9A9A9A"
#define PICTURE_PALE       "#C9C9C9"
#define PICTURE_GRID       "#D9D9D9" /* the page gives it another value in the dark */
