/* Calibration of the GPUs of a machine. */
#include "exec/calibrate/calibrate_comm.h"
#include "exec/calibrate/calibrate_framework.h"
#include "exec/calibrate/calibrate_match.h"
#include "exec/calibrate/calibrate_ops.h"
#include "exec/calibrate/calibrate_parts.h"
#include "exec/calibrate/calibrate_storage.h"
#include "exec/calibrate/calibrate_tasks.h"
#include "exec/launch/launch.h"
#include "exec/launch/launch_local.h"
#include "exec/run/plug_in.h"
#include "sim/base/error.h"
#include "sim/base/samples.h"
#include "sim/input/topology_rules.h"

#include <string.h>

/* Seconds for the ops of one GPU, and for the collectives of one group. */
static const struct {
    double ops_s, collectives_s;
} full_budget = {.ops_s = 40, .collectives_s = 8}, quick_budget = {.ops_s = 12, .collectives_s = 3};

enum { PATIENCE_S = 60 }; /* that ranks have to find each other */

static CalibrateScale scale_of(const CalibrateOptions *options)
{
    if (options->tiny)
        return CALIBRATE_TINY;
    return options->quick ? CALIBRATE_GPU_QUICK : CALIBRATE_GPU;
}

/* Without rows that were measured before. */
static Topology *load(const CalibrateOptions *options, GError **error)
{
    g_autoptr(Topology) topology = topology_load(options->topology, options->topologies_dir, error);

    if (topology == NULL)
        return NULL;
    if (topology->gpu.kind != DEVICE_CUDA) {
        fail(error, ERROR_INPUT, "--topology %s: its device is a %s, and --device is cuda",
             options->topology, device_kind_name(topology->gpu.kind));
        return NULL;
    }
    measured_clear(&topology->measured);
    measured_init(&topology->measured);
    return g_steal_pointer(&topology);
}

/* The device's library runs attention of @tasks from here on: what it is called, or NULL. */
static const char *open_library(Device *device, const GArray *tasks, GError **error)
{
    g_autoptr(GPtrArray) ops = g_ptr_array_new();
    guint64 scratch_bytes = 0;

    for (guint i = 0; i < tasks->len; i++) {
        const Op *op = &g_array_index(tasks, OpTask, i).op;

        g_ptr_array_add(ops, (gpointer)op);
        scratch_bytes = MAX(scratch_bytes, op_workspace_bytes(op, DEVICE_CUDA, 1));
    }
    return device_queues(device)->library_attention(device, ops, scratch_bytes, error);
}

static gboolean measure_tasks(OpBench *bench, GArray *tasks, Measured *measured, GError **error)
{
    if (!op_bench_run(bench, tasks, error))
        return FALSE;
    op_tasks_add_rows(tasks, 1, 1, measured);
    return TRUE;
}

/* Rows of their own beside those of the own kernels, which context parallelism and fp32 take all
 * the same.  @said: by what a run's attention runs here. */
static gboolean measure_library(const CalibrateOptions *options, OpBench *bench, GArray *tasks,
                                Measured *measured, char **said, GError **error)
{
    g_autoptr(GError) why = NULL;
    const char *library =
        options->attention == ATTENTION_BY_OWN ? NULL : open_library(bench->device, tasks, &why);

    if (library == NULL && options->attention == ATTENTION_BY_CUDNN)
        return fail(error, ERROR_RUNTIME, "--attention cudnn: %s", why->message);
    if (library == NULL) {
        *said = why == NULL ? g_strdup("own kernels")
                            : g_strdup_printf("own kernels (cuDNN: %s)", why->message);
        return TRUE;
    }
    *said = g_strdup(library);
    const gboolean ok = measure_tasks(bench, tasks, measured, error);
    device_queues(bench->device)->library_attention(bench->device, NULL, 0, NULL);
    return ok;
}

static gboolean measure_ops(const CalibrateOptions *options, Device *device, Measured *measured,
                            char **attention, GError **error)
{
    const SessionMeans means = {.transport = "self"};
    const double budget_s = options->quick ? quick_budget.ops_s : full_budget.ops_s;
    g_autoptr(GArray) tasks = op_tasks_new(scale_of(options));
    g_autoptr(GArray) library = op_tasks_by_library(tasks);
    const double share = (double)library->len / (library->len + tasks->len);
    Session session;

    if (!session_open(&session, &means, error))
        return FALSE;
    OpBench bench = {.session = &session, .device = device, .budget_s = budget_s * share};
    if (!measure_library(options, &bench, library, measured, attention, error))
        return FALSE;
    bench.budget_s = budget_s * (1 - share);
    if (!measure_tasks(&bench, tasks, measured, error))
        return FALSE;
    measured->op_overhead_s = samples_round(bench.overhead_s);
    return session_close(&session, error);
}

/* ---- one of several ranks ---- */

static void say_late(const GArray *tasks, guint ranks)
{
    guint late = 0;

    for (guint i = 0; i < tasks->len; i++)
        late += g_array_index(tasks, CommTask, i).late ? 1 : 0;
    if (late > 0)
        g_printerr("note: of %u collectives of %u ranks %u were not issued before their time "
                   "began: it may include the host's\n",
                   tasks->len, ranks, late);
}

static gboolean measure_collectives(const CalibrateOptions *options, const SessionMeans *means,
                                    Measured *measured, guint *rank, GError **error)
{
    const double budget_s = options->quick ? quick_budget.collectives_s : full_budget.collectives_s;
    g_autoptr(GArray) tasks = comm_tasks_new(scale_of(options));
    Session session;

    if (!session_open(&session, means, error) || !comm_tasks_run(&session, tasks, budget_s, error))
        return FALSE;
    *rank = session.comm->rank;
    comm_tasks_add_rows(tasks, session.comm->size, measured);
    if (*rank == 0)
        say_late(tasks, session.comm->size);
    return session_close(&session, error);
}

gboolean calibrate_cuda_rank_part(const CalibrateOptions *options, const char *rows_path,
                                  GError **error)
{
    g_autoptr(Topology) topology = load(options, error);
    LaunchEnvironment launch;
    guint num_devices = 0, rank = 0;

    if (topology == NULL || !launch_environment(&launch, error) ||
        !launch_rank_started(&launch, error))
        return FALSE;
    const DeviceOptions gpu = {.threads = 1, .local_rank = launch.local_rank};
    const CudaPlugIn *plug_in = plug_in_open(&num_devices, error);
    g_autoptr(Device) device =
        plug_in == NULL ? NULL : device_open_with(plug_in->device, &gpu, error);
    const CommRendezvous rendezvous = {
        .host = launch.host,
        .port = launch.port,
        .listener = launch.listener,
        .rank = launch.rank,
        .size = launch.size,
        .job = "fsdp-run calibrate " FSDP_VERSION,
        .limit_s = PATIENCE_S,
    };
    const SessionMeans means = {.transport = "mpi",
                                .rendezvous = launch.meets ? &rendezvous : NULL,
                                .nccl = plug_in,
                                .device = device};

    if (device == NULL || !measure_collectives(options, &means, &topology->measured, &rank, error))
        return FALSE;
    return rank != 0 || calibrate_write(topology, rows_path, error);
}

/* ---- all ---- */

static void set_source(Topology *topology, const char *library, const char *attention)
{
    g_autofree char *nominal = g_steal_pointer(&topology->source);

    topology->source =
        g_strdup_printf("measured by fsdp-run calibrate on %s, attention by %s; the rest: %s",
                        library, attention, nominal == NULL ? "not stated" : nominal);
}

/* The device is closed again before other processes want its memory. */
static gboolean measure_one(const CalibrateOptions *options, const CudaPlugIn *plug_in,
                            Topology *topology, GError **error)
{
    const DeviceOptions first = {.threads = 1};
    g_autoptr(Device) device = device_open_with(plug_in->device, &first, error);
    g_autofree char *attention = NULL, *note = NULL;
    DeviceFacts facts;

    if (device == NULL)
        return FALSE;
    device_queues(device)->describe(device, &facts);
    if (!calibrate_match(topology, &facts, &note, error) ||
        !measure_ops(options, device, &topology->measured, &attention, error))
        return FALSE;
    if (note != NULL)
        g_printerr("note: %s\n", note);
    set_source(topology, device_library(device), attention);
    return TRUE;
}

gboolean calibrate_cuda(const CalibrateOptions *options, const char *output_path, GError **error)
{
    guint num_devices = 0;
    const CudaPlugIn *plug_in = plug_in_open(&num_devices, error);
    g_autoptr(Topology) topology = plug_in == NULL ? NULL : load(options, error);
    const guint most = topology == NULL ? 0 : MIN(num_devices, topology->gpus_per_node);

    if (topology == NULL ||
        (options->nvme_folder != NULL &&
         !calibrate_storage(topology, options->nvme_folder, error)) ||
        !measure_one(options, plug_in, topology, error))
        return FALSE;
    for (guint ranks = 2; ranks <= most; ranks *= 2)
        if (!calibrate_ranks(options, launch_has_mpirun() ? launch_ranks : launch_local, ranks,
                             &topology->measured, error))
            return FALSE;
    return calibrate_framework(topology, most, options->tiny, error) &&
           calibrate_write(topology, output_path, error);
}
