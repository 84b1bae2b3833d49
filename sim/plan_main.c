/* fsdp-plan: prices every legal layout of a model on a cluster, picks one, explains it. */
#include "sim/base/error.h"
#include "sim/base/nearest.h"
#include "sim/base/text_file.h"
#include "sim/commands.h"

#include <locale.h>
#include <string.h>

static const struct {
    const char *name, *help;
    int (*run)(int argc, char **argv, GError **error);
} verbs[] = {
    {"search", "price every legal layout and rank them", command_search},
    {"estimate", "price one layout", command_estimate},
    {"explain", "memory and time by term, what bounds a plan, the runners-up", command_explain},
    {"check", "prove that a plan's program can't deadlock, race or overflow", command_check},
    {"trace", "write a Chrome trace of the simulated step", command_trace},
    {"export", "write a plan as torchtitan, megatron, deepspeed or accelerate take it",
     command_export},
    {"backtest", "predict published runs, and compare with what was measured", command_backtest},
    {"model", "parameters and tensors of a model", command_model},
    {"topology", "a topology as it was understood; topology import: from other tools' output",
     command_topology},
};

static void print_help(void)
{
    g_print("Usage: fsdp-plan VERB [OPTION...]\n\n");
    for (guint i = 0; i < G_N_ELEMENTS(verbs); i++)
        g_print("  %-10s %s\n", verbs[i].name, verbs[i].help);
    g_print("\nfsdp-plan VERB --help shows a verb's options.\n"
            "Exit status: 0 done, 1 nothing feasible or a check failed, 2 bad usage or input.\n");
}

static int unknown_verb(const char *verb)
{
    const char *names[G_N_ELEMENTS(verbs) + 1] = {NULL};

    for (guint i = 0; i < G_N_ELEMENTS(verbs); i++)
        names[i] = verbs[i].name;
    g_autofree char *hint = nearest_hint(verb, names);
    g_printerr("fsdp-plan: unknown verb \"%s\"%s (see --help)\n", verb, hint);
    return 2;
}

/* What was assumed of an input reads like the other lines, not like a log. */
static GLogWriterOutput write_note(GLogLevelFlags level, const GLogField *fields, gsize num_fields,
                                   gpointer unused)
{
    if ((level & G_LOG_LEVEL_MESSAGE) == 0)
        return g_log_writer_default(level, fields, num_fields, unused);
    for (gsize i = 0; i < num_fields; i++)
        if (strcmp(fields[i].key, "MESSAGE") == 0)
            g_printerr("fsdp-plan: note: %s\n", (const char *)fields[i].value);
    return G_LOG_WRITER_HANDLED;
}

int main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;

    setlocale(LC_ALL, "C.UTF-8");
    g_log_set_writer_func(write_note, NULL, NULL);
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help();
        return argc < 2 ? 2 : 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        g_print("fsdp-plan %s\n", FSDP_VERSION);
        return 0;
    }
    for (guint i = 0; i < G_N_ELEMENTS(verbs); i++) {
        if (strcmp(argv[1], verbs[i].name) != 0)
            continue;
        argv[1] = argv[0];
        int status = verbs[i].run(argc - 1, argv + 1, &error);
        if (error == NULL && !text_stdout_flush(&error))
            status = error_exit_status(error);
        if (error != NULL)
            g_printerr("fsdp-plan: %s\n", error->message);
        return status;
    }
    return unknown_verb(argv[1]);
}
