/* fsdp-report: predicted beside measured, from the store of runs. */
#include "reports/feedback/feedback.h"
#include "reports/picture/html.h"
#include "reports/report/report.h"
#include "sim/base/error.h"
#include "sim/base/option_value.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    gint64 run; /* 0: the latest */
    char *html, *calibrate;
    gboolean json, png, version;
    char **files;
} Options;

static void options_clear(Options *options)
{
    g_free(options->html);
    g_free(options->calibrate);
    g_strfreev(options->files);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Options, options_clear)

static gboolean parse(Options *options, int *argc, char ***argv, GError **error)
{
    g_autofree char *run = NULL;
    guint64 id = 0;
    const GOptionEntry entries[] = {
        {"run", 0, 0, G_OPTION_ARG_STRING, &run, "The run to show; default: the latest", "ID"},
        {"html", 0, 0, G_OPTION_ARG_FILENAME, &options->html,
         "Write DIR/index.html, a page with pictures, and DIR/*.svg", "DIR"},
        {"png", 0, 0, G_OPTION_ARG_NONE, &options->png, "With --html: the pictures as PNG too",
         NULL},
        {"json", 0, 0, G_OPTION_ARG_NONE, &options->json,
         "Print JSON: all runs, or the one of --run", NULL},
        {"calibrate", 0, 0, G_OPTION_ARG_FILENAME, &options->calibrate,
         "Put what the run's sampled ops took into topology file T; print what changed", "T"},
        {"version", 0, 0, G_OPTION_ARG_NONE, &options->version, "Print the version", NULL},
        {G_OPTION_REMAINING, 0, 0, G_OPTION_ARG_FILENAME_ARRAY, &options->files, NULL, "DB"},
        G_OPTION_ENTRY_NULL,
    };
    g_autoptr(GOptionContext) context = g_option_context_new(NULL);

    g_option_context_set_summary(context, "Puts what was predicted for a run beside what was "
                                          "measured, term by term.");
    g_option_context_add_main_entries(context, entries, NULL);
    if (!g_option_context_parse(context, argc, argv, error))
        return FALSE;
    if (options->version)
        return TRUE;
    if (options->files == NULL || g_strv_length(options->files) != 1)
        return fail(error, ERROR_INPUT, "one store is needed: fsdp-report DB (see --help)");
    if (!option_text("html", options->html, "a folder", error) ||
        !option_text("calibrate", options->calibrate, "a topology file", error))
        return FALSE;
    if (!option_count("run", run, 1, G_MAXINT64, &id, error))
        return FALSE;
    options->run = (gint64)id;
    if (options->png && options->html == NULL)
        return fail(error, ERROR_INPUT, "--png: pictures are written with --html DIR only");
    return TRUE;
}

static gboolean print(const char *text, GError **error)
{
    if (fputs(text, stdout) < 0 || fflush(stdout) != 0)
        return fail(error, ERROR_RUNTIME, "standard output can't be written");
    return TRUE;
}

static gboolean print_json(char *json, GError **error)
{
    g_autofree char *line = g_strconcat(json, "\n", NULL);

    g_free(json);
    return print(line, error);
}

static gboolean calibrate(const Options *options, const Report *report, const ReportRun *run,
                          GError **error)
{
    g_auto(Feedback) feedback = {0};

    if (!feedback_write(&feedback, report, run, options->calibrate, error))
        return FALSE;
    if (options->json)
        return print_json(feedback_json(&feedback), error);
    g_autofree char *text = feedback_text(&feedback);

    return print(text, error);
}

static gboolean run_report(const Options *options, GError **error)
{
    g_autoptr(Report) report = report_load(options->files[0], error);
    if (report == NULL)
        return FALSE;

    const gboolean any =
        options->json && options->html == NULL && options->run == 0 && options->calibrate == NULL;
    const ReportRun *run = any ? NULL : report_find(report, options->run, error);
    if (run == NULL && !any)
        return FALSE;
    if (options->calibrate != NULL && !calibrate(options, report, run, error))
        return FALSE;
    if (options->html != NULL && !html_write(report, run, options->html, options->png, error))
        return FALSE;
    if (options->calibrate != NULL)
        return TRUE;
    if (options->json)
        return print_json(report_json(report, options->run != 0 ? run : NULL), error);

    g_autofree char *text = report_text(report, run);

    return print(text, error);
}

int main(int argc, char **argv)
{
    g_auto(Options) options = {0};
    g_autoptr(GError) error = NULL;
    setlocale(LC_CTYPE, ""); /* messages in the user's encoding, numbers always with a point */

    gboolean ok = parse(&options, &argc, &argv, &error);

    if (ok)
        ok = options.version ? print("fsdp-report " FSDP_VERSION "\n", &error)
                             : run_report(&options, &error);
    if (!ok)
        g_printerr("fsdp-report: %s\n", error->message);
    return ok ? EXIT_SUCCESS : error_exit_status(error);
}
