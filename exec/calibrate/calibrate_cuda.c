/* Calibration of the GPUs of a machine. */
#include "exec/calibrate/calibrate_comm.h"
#include "exec/calibrate/calibrate_framework.h"
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

/* "h100" of "h100-sxm-80gb" must be a word of "NVIDIA H100 80GB HBM3": GH200 is no h200.  Left out:
 * variants of one name (its memory, PCIe or SXM), which the source of the rows shows. */
static gboolean check_name(const Topology *topology, const char *library, GError **error)
{
    g_auto(GStrv) parts = g_strsplit(topology->gpu.name, "-", 2);
    g_autofree char *lower = g_ascii_strdown(library, -1);
    const char *at = strstr(lower, parts[0]);

    return (at != NULL && (at == lower || !g_ascii_isalnum(at[-1]))) ||
           fail(error, ERROR_INPUT,
                "topology %s has GPUs of type %s, and this machine has another: %s (--topology "
                "names what describes it)",
                topology->name, topology->gpu.name, library);
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

static gboolean measure_ops(const CalibrateOptions *options, Device *device, Measured *measured,
                            GError **error)
{
    const SessionMeans means = {.transport = "self"};
    g_autoptr(GArray) tasks = op_tasks_new(scale_of(options));
    Session session;

    if (!session_open(&session, &means, error))
        return FALSE;
    OpBench bench = {.session = &session,
                     .device = device,
                     .budget_s = options->quick ? quick_budget.ops_s : full_budget.ops_s};
    if (!op_bench_run(&bench, tasks, error))
        return FALSE;
    measured->op_overhead_s = samples_round(bench.overhead_s);
    op_tasks_add_rows(tasks, 1, 1, measured);
    return session_close(&session, error);
}

/* ---- one of several ranks ---- */

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

static void set_source(Topology *topology, const char *library)
{
    g_autofree char *nominal = g_steal_pointer(&topology->source);

    topology->source = g_strdup_printf("measured by fsdp-run calibrate on %s; the rest: %s",
                                       library, nominal == NULL ? "not stated" : nominal);
}

/* The device is closed again before other processes want its memory. */
static gboolean measure_one(const CalibrateOptions *options, const CudaPlugIn *plug_in,
                            Topology *topology, GError **error)
{
    const DeviceOptions first = {.threads = 1};
    g_autoptr(Device) device = device_open_with(plug_in->device, &first, error);

    if (device == NULL || !check_name(topology, device_library(device), error) ||
        !measure_ops(options, device, &topology->measured, error))
        return FALSE;
    set_source(topology, device_library(device));
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
