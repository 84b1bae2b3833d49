#include "exec/run/run_options.h"

#include "exec/run/watchdog.h"
#include "sim/base/error.h"
#include "sim/base/option_value.h"
#include "sim/input/workload.h"

#include <string.h>

/* As typed; the strings are owned, NULL = not given. */
typedef struct {
    char *steps, *lr_steps, *warmup, *log_every, *watchdog;
    char *seed, *check_seed;
    char *lr, *clip_norm;
} Typed;

static void typed_clear(Typed *typed)
{
    char **const texts[] = {&typed->steps,      &typed->lr_steps, &typed->warmup,
                            &typed->log_every,  &typed->watchdog, &typed->seed,
                            &typed->check_seed, &typed->lr,       &typed->clip_norm};

    for (guint i = 0; i < G_N_ELEMENTS(texts); i++)
        g_clear_pointer(texts[i], g_free);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Typed, typed_clear)

enum { MAX_STEPS = 100000000 };

static gboolean parse(RunOptions *o, Typed *typed, int *argc, char ***argv, GError **error)
{
    const GOptionEntry entries[] = {
        {"data", 'd', 0, G_OPTION_ARG_FILENAME, &o->data_path, "UTF-8 text; a token is a byte",
         "FILE"},
        {"steps", 'n', 0, G_OPTION_ARG_STRING, &typed->steps,
         "The step to stop at, counted from the start of training (default 20)", "N"},
        {"device", 0, 0, G_OPTION_ARG_STRING, &o->device, "Confirms the plan's device: cpu or cuda",
         "D"},
        {"db", 0, 0, G_OPTION_ARG_FILENAME, &o->db_path,
         "Record the run in this SQLite store (default: not recorded)", "FILE"},
        {"seed", 0, 0, G_OPTION_ARG_STRING, &typed->seed, "Of parameters and data (default 1)",
         "S"},
        {"lr", 0, 0, G_OPTION_ARG_STRING, &typed->lr, "Learning rate (default 1e-3)", "X"},
        {"lr-schedule", 0, 0, G_OPTION_ARG_STRING, &o->schedule,
         "constant (default) or cosine (needs --lr-steps)", "NAME"},
        {"lr-steps", 0, 0, G_OPTION_ARG_STRING, &typed->lr_steps,
         "Where the cosine reaches a tenth of --lr", "N"},
        {"warmup", 0, 0, G_OPTION_ARG_STRING, &typed->warmup,
         "Steps of linear warm-up before the cosine (default 0)", "N"},
        {"clip-norm", 0, 0, G_OPTION_ARG_STRING, &typed->clip_norm,
         "Largest global gradient norm; 0 = off (default " G_STRINGIFY(DEFAULT_CLIP_NORM) ")", "X"},
        {"log-every", 0, 0, G_OPTION_ARG_STRING, &typed->log_every,
         "Print one step in N (default 1)", "N"},
        {"check", 0, 0, G_OPTION_ARG_NONE, &o->train.check,
         "Watch memory, waits and the order of collectives, with delays drawn at random: a race "
         "becomes an error",
         NULL},
        {"check-seed", 0, 0, G_OPTION_ARG_STRING, &typed->check_seed,
         "--check with the delays of this seed (default: drawn, and printed)", "S"},
        {"no-overlap", 0, 0, G_OPTION_ARG_NONE, &o->train.no_overlap,
         "Wait for each communication at once: slower, and no bit may differ", NULL},
        {"cuda-graph", 0, 0, G_OPTION_ARG_STRING, &o->graph,
         "Steps as CUDA graphs: on, off, or auto (default), which times both and keeps the faster",
         "MODE"},
        {"nvme", 0, 0, G_OPTION_ARG_FILENAME, &o->nvme_folder,
         "Where a plan with the nvme tier keeps its ranks' files: on a disk of the node", "DIR"},
        {"attention", 0, 0, G_OPTION_ARG_STRING, &o->attention,
         "On a GPU: auto (default: cuDNN where it can run all of a plan's attention), cudnn or "
         "own; with cuDNN the last bits of gradients differ from run to run",
         "BY"},
        {"rounding", 0, 0, G_OPTION_ARG_STRING, &o->rounding,
         "How bf16 parameters are rounded from fp32 masters: nearest (default), or stochastic, up "
         "or down by chance and right in the mean, the same in every layout",
         "HOW"},
        {"watchdog", 0, 0, G_OPTION_ARG_STRING, &typed->watchdog,
         "End the job when a rank makes no progress for so long (default 300; 0 = off)", "SECONDS"},
        {"json", 0, 0, G_OPTION_ARG_NONE, &o->train.json, "A JSON line a step", NULL},
        {"version", 0, 0, G_OPTION_ARG_NONE, &o->version, "Print the version", NULL},
        G_OPTION_ENTRY_NULL,
    };
    g_autoptr(GOptionContext) context = g_option_context_new("PLAN");
    g_autoptr(GError) why = NULL;

    g_option_context_set_summary(
        context,
        "fsdp-run: executes exactly that plan; records what it measured.\n"
        "Started by hand it starts the plan's ranks itself; under mpirun, srun or (for "
        "GPUs) torchrun it joins them.\nfsdp-run calibrate [--quick] -o T measures this machine.");
    g_option_context_set_description(
        context, "Exit status: 0 done or stopped by SIGINT / SIGTERM after a step, 2 bad usage or "
                 "input, 3 run-time failure or a loss that is not finite.");
    g_option_context_add_main_entries(context, entries, NULL);
    if (!g_option_context_parse(context, argc, argv, &why))
        return fail(error, ERROR_INPUT, "%s (see --help)", why->message);
    return TRUE;
}

/* A dead rank is noticed sooner, so it is called dead and not idle. */
static gboolean check_watchdog(const char *typed, guint *limit_s, GError **error)
{
    guint value = WATCHDOG_DEFAULT_S;

    G_STATIC_ASSERT(WATCHDOG_MIN_S > COMM_DEATH_S);
    if (!option_uint("watchdog", typed, 0, WATCHDOG_MAX_S, &value, NULL) ||
        (value != 0 && value < WATCHDOG_MIN_S))
        return fail(error, ERROR_INPUT, "--watchdog = \"%s\": must be 0 (off) or %d to %d seconds",
                    typed, WATCHDOG_MIN_S, WATCHDOG_MAX_S);
    *limit_s = value;
    return TRUE;
}

static gboolean check_schedule(RunOptions *o, const Typed *typed, GError **error)
{
    TrainOptions *train = &o->train;

    train->cosine = o->schedule != NULL && strcmp(o->schedule, "cosine") == 0;
    if (o->schedule != NULL && !train->cosine && strcmp(o->schedule, "constant") != 0)
        return fail(error, ERROR_INPUT, "--lr-schedule = \"%s\": must be constant or cosine",
                    o->schedule);
    if (!train->cosine && (typed->lr_steps != NULL || typed->warmup != NULL))
        return fail(error, ERROR_INPUT, "--lr-steps and --warmup belong to --lr-schedule cosine");
    if (!train->cosine)
        return TRUE;
    if (typed->lr_steps == NULL)
        return fail(error, ERROR_INPUT, "--lr-schedule cosine needs --lr-steps");
    return option_uint("lr-steps", typed->lr_steps, 1, MAX_STEPS, &train->lr_steps, error) &&
           option_uint("warmup", typed->warmup, 0, train->lr_steps - 1, &train->warmup, error);
}

/* Which of @names was typed; nothing: @value stays. */
static gboolean check_mode(const char *option, const char *typed, const char *const names[3],
                           guint *value, GError **error)
{
    if (typed == NULL)
        return TRUE;
    for (guint m = 0; m < 3; m++) {
        if (strcmp(typed, names[m]) != 0)
            continue;
        *value = m;
        return TRUE;
    }
    return fail(error, ERROR_INPUT, "--%s = \"%s\": must be %s, %s or %s", option, typed, names[1],
                names[0], names[2]);
}

gboolean attention_mode_parse(const char *typed, AttentionMode *mode, GError **error)
{
    static const char *const names[] = {
        [ATTENTION_BY_OWN] = "own", [ATTENTION_BY_CUDNN] = "cudnn", [ATTENTION_BY_AUTO] = "auto"};
    guint value = ATTENTION_BY_AUTO;

    if (!check_mode("attention", typed, names, &value, error))
        return FALSE;
    *mode = (AttentionMode)value;
    return TRUE;
}

static gboolean check_modes(RunOptions *o, GError **error)
{
    static const char *const graphs[] = {
        [GRAPH_OFF] = "off", [GRAPH_ON] = "on", [GRAPH_AUTO] = "auto"};
    guint graph = GRAPH_AUTO;

    if (!check_mode("cuda-graph", o->graph, graphs, &graph, error))
        return FALSE;
    o->train.graph = (GraphMode)graph;
    o->train.stochastic = o->rounding != NULL && strcmp(o->rounding, "stochastic") == 0;
    if (o->rounding != NULL && !o->train.stochastic && strcmp(o->rounding, "nearest") != 0)
        return fail(error, ERROR_INPUT, "--rounding = \"%s\": must be nearest or stochastic",
                    o->rounding);
    return attention_mode_parse(o->attention, &o->train.attention, error);
}

/* What is not given has its default. */
static gboolean check_numbers(TrainOptions *train, const Typed *typed, GError **error)
{
    train->lr = 1e-3;
    train->clip_norm = DEFAULT_CLIP_NORM;
    train->steps = 20;
    train->log_every = 1;
    train->seed = 1;
    train->check_seed_given = typed->check_seed != NULL;
    train->check |= train->check_seed_given;
    return option_number("lr", typed->lr, FALSE, &train->lr, error) &&
           option_number("clip-norm", typed->clip_norm, TRUE, &train->clip_norm, error) &&
           option_uint("steps", typed->steps, 1, MAX_STEPS, &train->steps, error) &&
           option_uint("log-every", typed->log_every, 0, MAX_STEPS, &train->log_every, error) &&
           option_count("seed", typed->seed, 0, G_MAXINT64, &train->seed, error) &&
           option_count("check-seed", typed->check_seed, 0, G_MAXINT64, &train->check_seed,
                        error) &&
           check_watchdog(typed->watchdog, &train->watchdog_s, error);
}

static gboolean check(RunOptions *o, const Typed *typed, int argc, char **argv, GError **error)
{
    TrainOptions *train = &o->train;

    if (argc != 2)
        return fail(error, ERROR_INPUT, "one plan file is wanted, got %d (see --help)", argc - 1);
    o->plan_path = g_strdup(argv[1]);
    if (o->data_path == NULL)
        return fail(error, ERROR_INPUT, "--data is missing: a UTF-8 text file");
    if (!option_text("data", o->data_path, "a UTF-8 text file", error) ||
        !option_text("db", o->db_path, "a file", error) ||
        !option_text("nvme", o->nvme_folder, "a folder", error))
        return FALSE;
    if (o->device != NULL && strcmp(o->device, device_kind_name(DEVICE_CPU)) != 0 &&
        strcmp(o->device, device_kind_name(DEVICE_CUDA)) != 0)
        return fail(error, ERROR_INPUT, "--device = \"%s\": must be cpu or cuda", o->device);
    if (!check_numbers(train, typed, error) || !check_modes(o, error))
        return FALSE;
    train->data_path = o->data_path;
    train->db_path = o->db_path;
    train->nvme_folder = o->nvme_folder;
    return check_schedule(o, typed, error);
}

gboolean run_options_parse(RunOptions *options, int *argc, char ***argv, GError **error)
{
    g_auto(Typed) typed = {0};

    if (!parse(options, &typed, argc, argv, error))
        return FALSE;
    return options->version || check(options, &typed, *argc, *argv, error);
}

void run_options_clear(RunOptions *options)
{
    g_free(options->plan_path);
    g_free(options->data_path);
    g_free(options->db_path);
    g_free(options->nvme_folder);
    g_free(options->device);
    g_free(options->schedule);
    g_free(options->graph);
    g_free(options->attention);
    g_free(options->rounding);
}
