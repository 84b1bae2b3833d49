#include "exec/calibrate/calibrate.h"

#include "exec/base/process.h"
#include "exec/calibrate/calibrate_comm.h"
#include "exec/calibrate/calibrate_framework.h"
#include "exec/calibrate/calibrate_ops.h"
#include "exec/calibrate/calibrate_parts.h"
#include "exec/calibrate/calibrate_storage.h"
#include "exec/calibrate/calibrate_tasks.h"
#include "exec/launch/launch.h"
#include "sim/base/error.h"
#include "sim/base/samples.h"

/* Seconds for the ops under one load, and for the collectives of one group.  There are 3 loads and
 * 3 groups on a machine of 2 or 4 cores; slow rows take their least number of calls, whatever the
 * budget. */
static const struct {
    double ops_s, collectives_s;
} full_budget = {.ops_s = 7.0, .collectives_s = 4.0},
  quick_budget = {.ops_s = 2.0, .collectives_s = 0.8};

/* ---- one process's part ---- */

static gboolean measure_ops(Session *session, Device *device, const CalibrateOptions *options,
                            Measured *measured, GError **error)
{
    g_autoptr(GArray) tasks = op_tasks_new(options->quick ? CALIBRATE_CPU_QUICK : CALIBRATE_CPU);
    OpBench bench = {.session = session,
                     .device = device,
                     .budget_s = options->quick ? quick_budget.ops_s : full_budget.ops_s};

    if (!op_bench_run(&bench, tasks, error))
        return FALSE;
    measured->op_overhead_s = samples_round(bench.overhead_s);
    op_tasks_add_rows(tasks, session->comm->size, device->threads, measured);
    return TRUE;
}

static gboolean measure_ops_alone(Session *session, guint threads, const CalibrateOptions *options,
                                  Measured *measured, GError **error)
{
    g_autoptr(Device) device = device_open(DEVICE_CPU, threads, error);

    return device != NULL && measure_ops(session, device, options, measured, error);
}

static gboolean measure_collectives(Session *session, const CalibrateOptions *options,
                                    Measured *measured, GError **error)
{
    const double budget_s = options->quick ? quick_budget.collectives_s : full_budget.collectives_s;
    g_autoptr(GArray) tasks = comm_tasks_new(options->quick ? CALIBRATE_CPU_QUICK : CALIBRATE_CPU);

    if (!comm_tasks_run(session, tasks, budget_s, error))
        return FALSE;
    comm_tasks_add_rows(tasks, session->comm->size, measured);
    return TRUE;
}

/* One rank, with one thread and with one a core. */
static gboolean measure_alone(const CalibrateOptions *options, Measured *measured, GError **error)
{
    const SessionMeans means = {.transport = "self"};
    const guint cores = process_usable_cores();
    Session session;

    return session_open(&session, &means, error) &&
           measure_collectives(&session, options, measured, error) &&
           (cores == 1 || measure_ops_alone(&session, cores, options, measured, error)) &&
           measure_ops_alone(&session, 1, options, measured, error) &&
           session_close(&session, error);
}

/* One of several ranks of one thread.  Ops are measured where they fill the cores. */
static gboolean measure_together(const CalibrateOptions *options, Topology *topology, guint *rank,
                                 GError **error)
{
    g_autoptr(Device) device = device_open(DEVICE_CPU, 1, error);
    const SessionMeans means = {.transport = "mpi"};
    Measured *measured = &topology->measured;
    Session session;

    if (device == NULL || !session_open(&session, &means, error) ||
        !measure_collectives(&session, options, measured, error))
        return FALSE;
    *rank = session.comm->rank;
    if (session.comm->size == process_usable_cores() &&
        !measure_ops(&session, device, options, measured, error))
        return FALSE;
    return session_close(&session, error);
}

/* ---- all ---- */

gboolean calibrate_rank_part(const CalibrateOptions *options, const char *rows_path, GError **error)
{
    g_autoptr(Topology) topology = topology_load("localhost", options->topologies_dir, error);
    LaunchEnvironment launch;
    guint rank = 0;

    if (topology == NULL || !launch_environment(&launch, error) ||
        !launch_rank_started(&launch, error) || !measure_together(options, topology, &rank, error))
        return FALSE;
    return rank != 0 || calibrate_write(topology, rows_path, error);
}

/* What MFU is a fraction of: the best product that one thread reached here.  Products of bf16 run
 * in fp32 on a CPU. */
static void set_peaks(Topology *topology)
{
    double best = 0;

    for (guint i = 0; i < topology->measured.gemm->len; i++) {
        const MeasuredGemm *row = &g_array_index(topology->measured.gemm, MeasuredGemm, i);

        if (row->threads == 1 && row->dtype == DTYPE_FP32)
            best = MAX(best, row->flops_per_s);
    }
    topology->gpu.peak_flops[DTYPE_FP32] = topology->gpu.peak_flops[DTYPE_BF16] = best;
}

gboolean calibrate(const CalibrateOptions *options, const char *output_path, GError **error)
{
    g_autoptr(Topology) topology = topology_load("localhost", options->topologies_dir, error);
    const guint cores = process_usable_cores();
    const guint jobs[] = {2, 4, cores};

    if (topology == NULL ||
        (options->nvme_folder != NULL &&
         !calibrate_storage(topology, options->nvme_folder, error)) ||
        !measure_alone(options, &topology->measured, error))
        return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(jobs); i++) {
        const gboolean done_or_alone = i == 2 && (cores == 1 || cores == 2 || cores == 4);
        if (!done_or_alone &&
            !calibrate_ranks(options, launch_ranks, jobs[i], &topology->measured, error))
            return FALSE;
    }
    set_peaks(topology);
    g_free(topology->source);
    topology->source = g_strdup("measured by fsdp-run calibrate");
    if (!calibrate_framework(topology, 2, FALSE, error))
        return FALSE;
    return calibrate_write(topology, output_path, error);
}
