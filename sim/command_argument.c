#include "sim/command_argument.h"

#include "sim/base/error.h"
#include "sim/base/nearest.h"

void command_name(const char *verb)
{
    g_autofree char *name = g_strdup_printf("fsdp-plan %s", verb);

    g_set_prgname(name);
}

char *command_argument(const char *verb, const char *what, const GOptionEntry *entries, int argc,
                       char **argv, GError **error)
{
    g_autoptr(GOptionContext) context = g_option_context_new(what);
    g_autoptr(GError) why = NULL;

    command_name(verb);
    if (entries != NULL)
        g_option_context_add_main_entries(context, entries, NULL);
    if (!g_option_context_parse(context, &argc, &argv, &why)) {
        fail(error, ERROR_INPUT, "%s (see --help)", why->message);
        return NULL;
    }
    if (argc != 2) {
        fail(error, ERROR_INPUT, "%s takes one %s, got %d", verb, what, argc - 1);
        return NULL;
    }
    return g_strdup(argv[1]);
}

/* What people call by names of their own; else the nearest. */
static char *framework_hint(const char *name, const char *names)
{
    static const char *const hugging_face[] = {
        "accelerate",   "axolotl", "fsdp",  "fsdp2",        "hf",  "huggingface", "llama-factory",
        "llamafactory", "pytorch", "swift", "transformers", "trl", NULL};
    g_autofree char *lower = g_ascii_strdown(name, -1);
    g_auto(GStrv) known = g_strsplit(names, ", ", -1);

    if (g_strv_contains(hugging_face, lower))
        return g_strdup(" (that runs DeepSpeed: deepspeed, with Liger kernels deepspeed-liger; or "
                        "PyTorch's FSDP: torchtitan where it is compiled, else torchtitan-eager)");
    return nearest_hint(lower, (const char *const *)known);
}

gboolean framework_option(const char *name, DeviceKind device, const Framework **framework,
                          GError **error)
{
    g_autofree char *names = framework_names();

    *framework = framework_from_name(name);
    g_autofree char *hint = *framework == NULL ? framework_hint(name, names) : NULL;
    if (*framework == NULL)
        return fail(error, ERROR_INPUT, "--framework = \"%s\"%s: must be one of %s", name, hint,
                    names);
    if (device == DEVICE_CPU && *framework != framework_default())
        return fail(error, ERROR_INPUT,
                    "--framework = \"%s\": what is known of it is of GPUs; a CPU has fsdp-run",
                    name);
    return TRUE;
}
