/* fsdp-plan export: a plan as the configuration of another framework. */
#include "sim/base/error.h"
#include "sim/base/text_file.h"
#include "sim/command_argument.h"
#include "sim/commands.h"
#include "sim/export/export.h"

#include <string.h>

static gboolean write_text(const char *path, const char *text, GError **error)
{
    if (path != NULL)
        return text_file_write(path, text, strlen(text), error);
    g_print("%s", text);
    return TRUE;
}

static char *export_file(const char *path, const char *framework, GError **error)
{
    g_autoptr(Plan) plan = plan_load(path, error);
    g_autoptr(GPtrArray) notes = g_ptr_array_new_with_free_func(g_free);
    g_autofree char *text = plan == NULL ? NULL : export_plan(plan, framework, notes, error);

    for (guint i = 0; text != NULL && i < notes->len; i++)
        g_printerr("fsdp-plan: note: %s\n", (const char *)g_ptr_array_index(notes, i));
    return g_steal_pointer(&text);
}

int command_export(int argc, char **argv, GError **error)
{
    g_autofree char *framework = NULL, *output = NULL;
    g_autofree char *known = g_strjoinv(", ", (char **)export_frameworks());
    const GOptionEntry entries[] = {
        {"to", 0, 0, G_OPTION_ARG_STRING, &framework, known, "FRAMEWORK"},
        {"output", 'o', 0, G_OPTION_ARG_FILENAME, &output, "Write it here", "FILE"},
        G_OPTION_ENTRY_NULL,
    };
    g_autofree char *path = command_argument("export", "PLAN", entries, argc, argv, error);

    if (path == NULL)
        return error_exit_status(*error);
    if (framework == NULL)
        return fail(error, ERROR_INPUT, "export needs --to FRAMEWORK: %s", known), 2;
    g_autofree char *text = export_file(path, framework, error);
    if (text == NULL || !write_text(output, text, error))
        return error_exit_status(*error);
    return 0;
}
