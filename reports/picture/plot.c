#include "reports/picture/plot.h"

#include "sim/base/error.h"

#include <gio/gio.h>
#include <string.h>

void plot_free(Plot *plot)
{
    if (plot == NULL)
        return;
    g_free(plot->name);
    g_free(plot->script);
    g_free(plot);
}

/* Within single quotes gnuplot knows one special character, the quote itself, which is doubled:
 * no backslashes, no `commands`, no @macros.  A line break would end the string. */
char *plot_quote(const char *text)
{
    g_autofree char *valid = g_utf8_make_valid(text, -1);
    GString *quoted = g_string_new("'");

    for (const char *c = valid; *c != '\0'; c++)
        if (*c == '\'')
            g_string_append(quoted, "''");
        else
            g_string_append_c(quoted, (guchar)*c < 0x20 ? ' ' : *c);
    g_string_append_c(quoted, '\'');
    return g_string_free(quoted, FALSE);
}

static char *terminal_of(const Plot *plot, PlotFormat format)
{
    if (format == PLOT_SVG)
        return g_strdup_printf(
            "set terminal svg size %u,%u dynamic noenhanced font 'sans-serif,13' "
            "background '#ffffff' name '%s'\n",
            plot->width, plot->height, plot->name);
    return g_strdup_printf(
        "set terminal pngcairo size %u,%u noenhanced font 'sans,13' fontscale 1.5 "
        "linewidth 2 pointscale 2 background '#ffffff'\n",
        2 * plot->width, 2 * plot->height);
}

/* Without the XML prolog, which has no place within a page, and with ids of its own. */
static GBytes *finish_svg(const Plot *plot, GBytes *svg)
{
    g_autofree char *text = g_strndup(g_bytes_get_data(svg, NULL), g_bytes_get_size(svg));
    const char *start = strstr(text, "<svg");
    g_autoptr(GRegex) ids = g_regex_new("(\\bid=['\"]|href=['\"]#|url\\(#)", 0, 0, NULL);
    g_autofree char *prefixed = g_strdup_printf("\\1%s_", plot->name);
    char *finished = start != NULL ? g_regex_replace(ids, start, -1, 0, prefixed, 0, NULL) : NULL;

    return finished != NULL ? g_bytes_new_take(finished, strlen(finished)) : NULL;
}

static GSubprocess *start_gnuplot(GError **error)
{
    g_autoptr(GSubprocessLauncher) launcher =
        g_subprocess_launcher_new(G_SUBPROCESS_FLAGS_STDIN_PIPE | G_SUBPROCESS_FLAGS_STDOUT_PIPE |
                                  G_SUBPROCESS_FLAGS_STDERR_PIPE);
    g_autoptr(GError) local = NULL;

    /* Numbers have a point whatever the user's language is; -d reads no start-up files. */
    g_subprocess_launcher_setenv(launcher, "LC_ALL", "C", TRUE);
    GSubprocess *child = g_subprocess_launcher_spawn(launcher, &local, "gnuplot", "-d", NULL);
    if (child != NULL)
        return child;
    if (g_error_matches(local, G_SPAWN_ERROR, G_SPAWN_ERROR_NOENT))
        fail(error, ERROR_RUNTIME, "gnuplot is not installed or not in PATH; pictures need it");
    else
        fail(error, ERROR_RUNTIME, "gnuplot: %s", local->message);
    return NULL;
}

GBytes *plot_render(const Plot *plot, PlotFormat format, GError **error)
{
    g_autofree char *terminal = terminal_of(plot, format);
    char *script = g_strconcat("set encoding utf8\n", terminal, plot->script, NULL);
    g_autoptr(GBytes) input = g_bytes_new_take(script, strlen(script));
    g_autoptr(GBytes) output = NULL, messages = NULL;
    g_autoptr(GError) local = NULL;
    g_autoptr(GSubprocess) child = start_gnuplot(error);

    if (child == NULL)
        return NULL;
    if (!g_subprocess_communicate(child, input, NULL, &output, &messages, &local)) {
        fail(error, ERROR_RUNTIME, "gnuplot: %s", local->message);
        return NULL;
    }

    GBytes *picture = NULL;

    if (g_subprocess_get_if_exited(child) && g_subprocess_get_exit_status(child) == 0 &&
        g_bytes_get_size(output) > 0)
        picture = format == PLOT_SVG ? finish_svg(plot, output) : g_bytes_ref(output);
    if (picture == NULL) {
        g_autofree char *said =
            g_strndup(g_bytes_get_data(messages, NULL), g_bytes_get_size(messages));

        g_strdelimit(said, "\n", ' ');
        fail(error, ERROR_RUNTIME, "gnuplot: %s: %s", plot->name, g_strstrip(said));
    }
    return picture;
}
