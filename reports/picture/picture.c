/* What all pictures share. */
#include "reports/picture/picture.h"

static void picture_free(gpointer data)
{
    Picture *picture = data;

    plot_free(picture->plot);
    g_free(picture->caption);
    g_free(picture);
}

enum { MARGIN_PX = 10, TITLE_PX = 42, KEY_ROW_PX = 20, SWATCH_PX = 16, BELOW_PX = 64 };

/* Entries follow each other like words; returns the number of rows.  @script may be NULL. */
static guint lay_key(GString *script, const PictureFrame *frame, double height)
{
    const double width = PICTURE_WIDTH;
    guint x = MARGIN_PX, row = 0;

    for (guint i = 0; i < frame->num_keys; i++) {
        const PictureKey *key = &frame->key[i];
        const guint text_px = picture_text_px((gsize)g_utf8_strlen(key->label, -1));
        const guint entry_px = SWATCH_PX + 8 + text_px;

        if (x > MARGIN_PX && x + entry_px > PICTURE_WIDTH - MARGIN_PX) {
            x = MARGIN_PX;
            row++;
        }
        if (script != NULL) {
            const double y = 1 - (TITLE_PX + KEY_ROW_PX * row + 5) / height;
            g_autofree char *label = plot_quote(key->label);

            g_string_append_printf(script,
                                   "set object rectangle from screen %.5f,screen %.5f to screen "
                                   "%.5f,screen %.5f fillcolor rgb '%s' fillstyle solid noborder\n"
                                   "set label %s at screen %.5f,%.5f left\n",
                                   x / width, y - 5 / height, (x + SWATCH_PX) / width,
                                   y + 5 / height, key->colour, label, (x + SWATCH_PX + 8) / width,
                                   y);
        }
        x += entry_px + 18;
    }
    return frame->num_keys > 0 ? row + 1 : 0;
}

static guint above_px(const PictureFrame *frame)
{
    return TITLE_PX + KEY_ROW_PX * lay_key(NULL, frame, 1) + (frame->num_keys > 0 ? 8 : 0);
}

static guint height_px(const PictureFrame *frame)
{
    return above_px(frame) + frame->plot_height + BELOW_PX;
}

Picture *picture_new(const char *name, const PictureFrame *frame, GString *script, char *caption)
{
    Plot *plot = g_new0(Plot, 1);
    Picture *picture = g_new0(Picture, 1);

    plot->name = g_strdup(name);
    plot->width = PICTURE_WIDTH;
    plot->height = height_px(frame);
    plot->script = g_string_free(script, FALSE);
    picture->plot = plot;
    picture->caption = caption;
    return picture;
}

guint picture_text_px(gsize chars)
{
    return (guint)(7.6 * (double)chars);
}

void picture_begin(GString *script, const PictureFrame *frame)
{
    const double width = PICTURE_WIDTH, height = height_px(frame);
    g_autofree char *title = plot_quote(frame->title);

    g_string_append_printf(script,
                           "set label %s at screen %.5f,%.5f left font ',15'\n"
                           "set lmargin at screen %.5f\nset rmargin at screen %.5f\n"
                           "set tmargin at screen %.5f\nset bmargin at screen %.5f\n"
                           "unset key\nset border 0\nset tics nomirror scale 0\n"
                           "set grid linetype 1 linewidth 1 linecolor rgb '" PICTURE_GRID "'\n",
                           title, MARGIN_PX / width, 1 - 22 / height, frame->left / width,
                           1 - frame->right / width, 1 - above_px(frame) / height,
                           BELOW_PX / height);
    lay_key(script, frame, height);
}

char *picture_ellipsis(const char *text, gsize max_chars)
{
    if ((gsize)g_utf8_strlen(text, -1) <= max_chars)
        return g_strdup(text);

    g_autofree char *start = g_utf8_substring(text, 0, (glong)max_chars - 1);

    return g_strconcat(start, "…", NULL);
}

char *picture_run_label(const ReportRun *run, gsize max_chars)
{
    g_autofree char *label = g_strdup_printf("run %" G_GINT64_FORMAT ", %s %s", run->row->id,
                                             run->layout, run->strategy);

    return picture_ellipsis(label, max_chars);
}

GPtrArray *picture_all(const Report *report, const ReportRun *run)
{
    Picture *const pictures[] = {
        picture_step_time(run),    picture_memory(run),          picture_timeline(run),
        picture_loss(report, run), picture_ranking(report, run), picture_accuracy(report, run),
    };
    GPtrArray *shown = g_ptr_array_new_with_free_func(picture_free);

    for (guint i = 0; i < G_N_ELEMENTS(pictures); i++)
        if (pictures[i] != NULL)
            g_ptr_array_add(shown, pictures[i]);
    return shown;
}
