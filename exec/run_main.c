/* fsdp-run: executes a plan; calibrate measures this machine. */
#include "exec/calibrate/calibrate.h"
#include "exec/launch/launch.h"
#include "exec/launch/launch_local.h"
#include "exec/run/data.h"
#include "exec/run/plug_in.h"
#include "exec/run/run_options.h"
#include "exec/run/train.h"
#include "reports/store/store.h"
#include "sim/base/data_dirs.h"
#include "sim/base/error.h"
#include "sim/base/option_value.h"
#include "sim/base/text_file.h"

#include <locale.h>
#include <string.h>
#include <unistd.h>

/* ---- training ---- */

static gboolean check_nvme(const Plan *plan, const RunOptions *options, GError **error)
{
    const Offload *offload = &plan->sharding.offload;
    const gboolean needed = offload->optimizer == TIER_NVME || offload->parameters == TIER_NVME;

    if (needed && options->nvme_folder == NULL)
        return fail(error, ERROR_INPUT,
                    "--nvme DIR is missing: the plan offloads to nvme, and DIR is where its ranks' "
                    "files go");
    return needed || options->nvme_folder == NULL ||
           fail(error, ERROR_INPUT, "--nvme: the plan keeps nothing in the nvme tier");
}

static gboolean check_rounding(const Plan *plan, const RunOptions *options, GError **error)
{
    const Recipe *recipe = plan->workload.recipe;

    return !options->train.stochastic || (recipe->master && recipe->stored == DTYPE_BF16) ||
           fail(
               error, ERROR_INPUT,
               "--rounding stochastic: the plan's recipe %s in %s has no bf16 parameters beside an "
               "fp32 master; must be nearest, or a plan of zero or megatron in bf16",
               recipe->name, dtype_name(recipe->precision));
}

/* What rank 0 would refuse is refused before any rank is started.  The store is rank 0's. */
static gboolean check_inputs(const LaunchEnvironment *launch, const Plan *plan,
                             const RunOptions *options, GError **error)
{
    g_autoptr(Data) data =
        data_open(options->data_path, plan->model->vocab, plan->workload.seq_len, error);

    if (data == NULL)
        return FALSE;
    if (options->device != NULL && strcmp(options->device, device_kind_name(plan->device)) != 0)
        return fail(error, ERROR_INPUT, "--device = \"%s\": the plan's is %s", options->device,
                    device_kind_name(plan->device));
    if (!check_nvme(plan, options, error) || !check_rounding(plan, options, error))
        return FALSE;
    if (options->db_path == NULL || launch->rank != 0)
        return TRUE;
    g_autoptr(Store) store = store_open(options->db_path, FALSE, error);
    return store != NULL;
}

/* What the plan's device needs.  Where ranks of a machine share a GPU, which NCCL refuses, MPI
 * moves their tensors through host memory; what holds is part of what a run prints.  A launcher
 * without MPI may show each rank the one GPU it is to use: then NCCL alone can tell. */
static gboolean find_means(const LaunchEnvironment *launch, const Plan *plan, RuntimeOptions *means,
                           GError **error)
{
    const gboolean cuda = plan->device == DEVICE_CUDA;
    const guint here = MIN(plan->ranks_per_node, plan->gpus);
    guint num_devices = 0;

    *means = (RuntimeOptions){
        .transport = launch->kind == LAUNCH_BY_HAND ? "self" : "mpi",
        .threads = plan->threads,
        .device = plan->device,
        .local_rank = launch->local_rank,
    };
    if (!cuda)
        return launch_check_mpi(launch, error);
    means->plug_in = plug_in_open(&num_devices, error);
    if (means->plug_in == NULL)
        return FALSE;
    means->nccl = here <= num_devices || (launch->meets && num_devices == 1);
    if (means->nccl || !launch->meets)
        return TRUE;
    return fail(error, ERROR_RUNTIME,
                "%u ranks of this machine would share %u GPUs, which NCCL refuses; started with "
                "mpirun, they can",
                here, num_devices);
}

/* Without MPI a failure to find the others is known to this rank alone. */
static Runtime *open_runtime(const LaunchEnvironment *launch, const Plan *plan,
                             const RunOptions *options, const RuntimeOptions *means, GError **error)
{
    g_autofree char *job = g_strdup_printf("fsdp-run %s, program %s", FSDP_VERSION, plan->hash);
    const CommRendezvous rendezvous = {
        .host = launch->host,
        .port = launch->port,
        .listener = launch->listener,
        .rank = launch->rank,
        .size = launch->size,
        .job = job,
        .limit_s = options->train.watchdog_s,
    };
    RuntimeOptions with = *means;

    if (launch->kind == LAUNCH_BY_HAND)
        with.nccl = FALSE; /* one rank */
    if (!launch->meets)
        return runtime_open(&with, error);
    with.transport = "tcp";
    with.rendezvous = &rendezvous;
    Runtime *runtime = runtime_open(&with, error);
    if (runtime == NULL && launch->rank > 0)
        g_printerr("fsdp-run: rank %u: %s\n", launch->rank, (*error)->message);
    return runtime;
}

static int run_rank(const LaunchEnvironment *launch, const Plan *plan, const ProgramSet *set,
                    const RuntimeOptions *means, const RunOptions *options, GError **error)
{
    if (!launch_rank_started(launch, error))
        return error_exit_status(*error);
    g_autoptr(Runtime) runtime = open_runtime(launch, plan, options, means, error);
    if (runtime == NULL)
        return error_exit_status(*error);
    return train(plan, set, runtime, &options->train, error);
}

/* Without MPI a machine's ranks need a GPU each. */
static int start_ranks(const Plan *plan, const RuntimeOptions *means, int argc, char **argv,
                       GError **error)
{
    return means->nccl && !launch_has_mpirun()
               ? launch_local(argc, argv, plan->gpus, plan->threads, error)
               : launch_ranks(argc, argv, plan->gpus, plan->threads, error);
}

static Plan *load_trainable(const char *path, GError **error)
{
    g_autoptr(Plan) plan = plan_load(path, error);

    if (plan == NULL || plan_check_trainable(plan, error))
        return g_steal_pointer(&plan);
    g_prefix_error(error, "%s: ", plan->source);
    return NULL;
}

static int run_plan(const LaunchEnvironment *launch, const RunOptions *options, int argc,
                    char **argv, GError **error)
{
    g_autoptr(Plan) plan = load_trainable(options->plan_path, error);
    g_autoptr(ProgramSet) set = plan != NULL ? plan_compile(plan, error) : NULL;
    RuntimeOptions means;

    if (set == NULL || !launch_check_ranks(launch, plan->gpus, error) ||
        !check_inputs(launch, plan, options, error) || !find_means(launch, plan, &means, error))
        return error_exit_status(*error);
    if (launch->kind == LAUNCH_BY_HAND && plan->gpus > 1)
        return start_ranks(plan, &means, argc, argv, error);
    return run_rank(launch, plan, set, &means, options, error);
}

static int run_command(const LaunchEnvironment *launch, int argc, char **argv, GError **error)
{
    RunOptions options = {0};
    g_autofree char **typed = g_memdup2(argv, ((gsize)argc + 1) * sizeof *argv);
    const int typed_count = argc;
    int status = 2;

    if (run_options_parse(&options, &argc, &argv, error)) {
        status = 0;
        if (options.version)
            g_print("fsdp-run %s\n", FSDP_VERSION);
        else
            status = run_plan(launch, &options, typed_count, typed, error);
    }
    run_options_clear(&options);
    return status;
}

/* ---- calibrate ---- */

/* What a rank of a calibration is started with: the same options, and where its rows go. */
static GPtrArray *rank_command(const char *program, const CalibrateOptions *options)
{
    GPtrArray *command = g_ptr_array_new();

    g_ptr_array_add(command, (gpointer)program);
    g_ptr_array_add(command, (gpointer) "calibrate");
    if (options->quick)
        g_ptr_array_add(command, (gpointer) "--quick");
    if (options->tiny)
        g_ptr_array_add(command, (gpointer) "--tiny");
    if (options->topology != NULL) {
        g_ptr_array_add(command, (gpointer) "--topology");
        g_ptr_array_add(command, (gpointer)options->topology);
    }
    g_ptr_array_add(command, (gpointer) "--rank-part");
    g_ptr_array_add(command, NULL);
    return command;
}

/* The device is the topology's; without one it is this machine's CPU. */
static gboolean check_calibrated_device(const char *device, const char *attention,
                                        const CalibrateOptions *options, GError **error)
{
    const gboolean cuda = g_strcmp0(device, "cuda") == 0;

    if (device != NULL && !cuda && strcmp(device, "cpu") != 0)
        return fail(error, ERROR_INPUT, "--device = \"%s\": must be cpu or cuda", device);
    if (cuda && options->topology == NULL)
        return fail(error, ERROR_INPUT,
                    "calibrate --device cuda needs --topology T: what describes this machine (one "
                    "under topologies/, or what fsdp-plan topology import makes)");
    if (!cuda && attention != NULL)
        return fail(error, ERROR_INPUT, "--attention: only with --device cuda");
    if (!cuda && options->tiny)
        return fail(error, ERROR_INPUT, "--tiny: only with --device cuda");
    if (!cuda && options->topology != NULL)
        return fail(error, ERROR_INPUT,
                    "--topology = \"%s\": only with --device cuda; a CPU is measured as localhost",
                    options->topology);
    return TRUE;
}

static int calibrate_command(int argc, char **argv, GError **error)
{
    g_autofree char *output = NULL, *rank_part = NULL, *device = NULL, *topology = NULL;
    g_autofree char *nvme = NULL, *attention = NULL;
    CalibrateOptions options = {.quick = FALSE};
    const GOptionEntry entries[] = {
        {"quick", 0, 0, G_OPTION_ARG_NONE, &options.quick,
         "Fewer rows: on a CPU 15 s instead of 60 s", NULL},
        {"device", 0, 0, G_OPTION_ARG_STRING, &device, "cpu (default) or cuda", "D"},
        {"topology", 't', 0, G_OPTION_ARG_FILENAME, &topology,
         "Of GPUs: what describes this machine; its rows are replaced", "T"},
        {"nvme", 0, 0, G_OPTION_ARG_FILENAME, &nvme,
         "The disk there too, as the nvme tier that ranks of this machine share", "DIR"},
        {"attention", 0, 0, G_OPTION_ARG_STRING, &attention,
         "Of GPUs: auto (default), cudnn or own, as the runs that are to be predicted", "BY"},
        {"output", 'o', 0, G_OPTION_ARG_FILENAME, &output, "Write the topology here", "T"},
        {"tiny", 0, G_OPTION_FLAG_HIDDEN, G_OPTION_ARG_NONE, &options.tiny, NULL, NULL},
        {"rank-part", 0, G_OPTION_FLAG_HIDDEN, G_OPTION_ARG_FILENAME, &rank_part, NULL, NULL},
        G_OPTION_ENTRY_NULL,
    };
    g_autoptr(GOptionContext) context = g_option_context_new("- measures this machine");
    g_autoptr(GError) why = NULL;
    g_autofree char *topologies = data_dir("topologies");

    g_option_context_add_main_entries(context, entries, NULL);
    if (!g_option_context_parse(context, &argc, &argv, &why)) {
        fail(error, ERROR_INPUT, "%s (see --help)", why->message);
        return 2;
    }
    options.topology = topology;
    options.nvme_folder = nvme;
    options.topologies_dir = topologies;
    g_autoptr(GPtrArray) command = rank_command(argv[0], &options);
    options.rank_command = (const char *const *)command->pdata;
    const gboolean cuda = topology != NULL;
    if (rank_part != NULL)
        return (cuda ? calibrate_cuda_rank_part : calibrate_rank_part)(&options, rank_part, error)
                   ? 0
                   : error_exit_status(*error);
    if (output == NULL || argc != 1) {
        fail(error, ERROR_INPUT, "calibrate needs -o T and no other argument (see --help)");
        return 2;
    }
    if (!text_file_check(output, error) || !option_text("nvme", nvme, "a folder", error) ||
        !check_calibrated_device(device, attention, &options, error) ||
        !attention_mode_parse(attention, &options.attention, error))
        return 2;
    return (cuda ? calibrate_cuda : calibrate)(&options, output, error) ? 0
                                                                        : error_exit_status(*error);
}

/* Only rank 0 says what all ranks found, or one that can't know which it is.  mpirun ends a job
 * with the first rank that fails, so the others leave it the time to speak; its end is theirs. */
static void report(const LaunchEnvironment *launch, const GError *error)
{
    enum { PATIENCE_S = 5 };

    if (launch->rank == 0 || launch->rank >= launch->size)
        g_printerr("fsdp-run: %s\n", error->message);
    else
        sleep(PATIENCE_S);
}

int main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    LaunchEnvironment launch = {0};
    int status;

    setlocale(LC_ALL, "C.UTF-8");
    if (argc > 1 && strcmp(argv[1], "calibrate") == 0) {
        argv[1] = argv[0];
        status = calibrate_command(argc - 1, argv + 1, &error);
    } else if (!launch_environment(&launch, &error)) {
        status = error_exit_status(error);
    } else {
        status = run_command(&launch, argc, argv, &error);
    }
    if (error != NULL)
        report(&launch, error);
    return status;
}
