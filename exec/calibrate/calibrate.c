#include "exec/calibrate/calibrate.h"

#include "exec/base/process.h"
#include "exec/calibrate/calibrate_comm.h"
#include "exec/calibrate/calibrate_framework.h"
#include "exec/calibrate/calibrate_ops.h"
#include "exec/calibrate/calibrate_samples.h"
#include "exec/calibrate/calibrate_tasks.h"
#include "exec/launch/launch.h"
#include "sim/base/error.h"

#include <glib/gstdio.h>
#include <unistd.h>

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
    g_autoptr(GArray) tasks = op_tasks_new(options->quick);
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
    g_autoptr(GArray) tasks = comm_tasks_new(options->quick);

    if (!comm_tasks_run(session, tasks, budget_s, error))
        return FALSE;
    comm_tasks_add_rows(tasks, session->comm->size, measured);
    return TRUE;
}

/* One rank, with one thread and with one a core. */
static gboolean measure_alone(const CalibrateOptions *options, Measured *measured, GError **error)
{
    const guint cores = process_usable_cores();
    Session session;

    return session_open(&session, "self", error) &&
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
    Measured *measured = &topology->measured;
    Session session;

    if (device == NULL || !session_open(&session, "mpi", error) ||
        !measure_collectives(&session, options, measured, error))
        return FALSE;
    *rank = session.comm->rank;
    if (session.comm->size == process_usable_cores() &&
        !measure_ops(&session, device, options, measured, error))
        return FALSE;
    return session_close(&session, error);
}

/* ---- files ---- */

static gboolean write_topology(const Topology *topology, const char *path, GError **error)
{
    g_autofree char *text = topology_print(topology);
    g_autoptr(GError) cause = NULL;

    if (!g_file_set_contents(path, text, -1, &cause)) /* a temporary file, then renamed */
        return fail(error, ERROR_RUNTIME, "%s", cause->message);
    return TRUE;
}

/* Appends the rows of @from. */
static void measured_append(Measured *to, const Measured *from)
{
    g_array_append_vals(to->gemm, from->gemm->data, from->gemm->len);
    for (guint i = 0; i < from->ops->len; i++) {
        MeasuredOp row = g_array_index(from->ops, MeasuredOp, i);
        row.op = g_strdup(row.op);
        g_array_append_val(to->ops, row);
    }
    for (guint i = 0; i < from->collectives->len; i++) {
        MeasuredCollective row = g_array_index(from->collectives, MeasuredCollective, i);
        row.collective = g_strdup(row.collective);
        g_array_append_val(to->collectives, row);
    }
}

gboolean calibrate_rank_part(const CalibrateOptions *options, const char *rows_path, GError **error)
{
    g_autoptr(Topology) topology = topology_load("localhost", options->topologies_dir, error);
    LaunchEnvironment launch;
    guint rank = 0;

    if (topology == NULL || !launch_environment(&launch, error) ||
        !launch_rank_started(&launch, error) || !measure_together(options, topology, &rank, error))
        return FALSE;
    return rank != 0 || write_topology(topology, rows_path, error);
}

/* ---- all ---- */

/* Runs @ranks of this program, which write their rows to @path. */
static gboolean launch_rank_part(const CalibrateOptions *options, guint ranks, const char *path,
                                 GError **error)
{
    g_autoptr(GPtrArray) arguments = g_ptr_array_new();

    for (guint i = 0; options->rank_command[i] != NULL; i++)
        g_ptr_array_add(arguments, (gpointer)options->rank_command[i]);
    g_ptr_array_add(arguments, (gpointer)path);
    const int argc = (int)arguments->len;
    g_ptr_array_add(arguments, NULL);

    g_autoptr(GError) cause = NULL;
    const int status = launch_ranks(argc, (char **)arguments->pdata, ranks, 1, &cause);
    if (status == 0)
        return TRUE;
    return fail(error, ERROR_RUNTIME, "calibration with %u ranks: %s", ranks,
                cause == NULL ? "a rank failed" : cause->message);
}

static gboolean measure_ranks(const CalibrateOptions *options, guint ranks, Measured *measured,
                              GError **error)
{
    g_autoptr(GError) cause = NULL;
    g_autofree char *path = NULL;
    const int file = g_file_open_tmp("fsdp-calibrate-XXXXXX", &path, &cause);

    if (file < 0)
        return fail(error, ERROR_RUNTIME, "%s", cause->message);
    close(file);
    g_autoptr(Topology) part = launch_rank_part(options, ranks, path, error)
                                   ? topology_load(path, options->topologies_dir, error)
                                   : NULL;
    g_unlink(path);
    if (part == NULL)
        return FALSE;
    measured_append(measured, &part->measured);
    return TRUE;
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

    if (topology == NULL || !measure_alone(options, &topology->measured, error))
        return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(jobs); i++) {
        const gboolean done_or_alone = i == 2 && (cores == 1 || cores == 2 || cores == 4);
        if (!done_or_alone && !measure_ranks(options, jobs[i], &topology->measured, error))
            return FALSE;
    }
    set_peaks(topology);
    g_free(topology->source);
    topology->source = g_strdup("measured by fsdp-run calibrate");
    if (!calibrate_framework(topology, error))
        return FALSE;
    return write_topology(topology, output_path, error);
}
