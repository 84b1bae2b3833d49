#include "exec/run/step_graph.h"

#include "sim/base/error.h"

#include <string.h>

/* Libraries choose algorithms and connect in the first steps. */
enum { WARM_UP = 2, TIMED = 3 };

typedef enum { WITHOUT, WITH, NUM_TIMED } Timed;

struct StepGraph {
    Runtime *runtime;
    Device *device;
    GraphMode mode;                                     /* auto: not yet decided */
    DeviceGraph *kept;                                  /* NULL: not yet */
    guint64 before[NUM_VOLUMES], received[NUM_VOLUMES]; /* by one run of it */
    guint times[NUM_TIMED];
    double seconds[NUM_TIMED]; /* of so many steps, together */
    char *text;
};

StepGraph *step_graph_new(Runtime *runtime, GraphMode mode, const char *obstacle)
{
    static const char *const texts[] = {
        [GRAPH_OFF] = "off",
        [GRAPH_ON] = "on from step 3 on, but for steps that are sampled",
        [GRAPH_AUTO] = "auto: some steps are timed without and with"};
    StepGraph *graph = g_new0(StepGraph, 1);

    G_STATIC_ASSERT(WARM_UP == 2);
    graph->runtime = runtime;
    graph->device = runtime_device(runtime);
    graph->mode = obstacle == NULL ? mode : GRAPH_OFF;
    graph->text =
        obstacle == NULL ? g_strdup(texts[mode]) : g_strconcat("off, since ", obstacle, NULL);
    return graph;
}

static void drop(StepGraph *graph)
{
    if (graph->kept != NULL)
        device_queues(graph->device)->graph_free(graph->device, graph->kept);
    graph->kept = NULL;
}

void step_graph_free(StepGraph *graph)
{
    if (graph == NULL)
        return;
    drop(graph);
    g_free(graph->text);
    g_free(graph);
}

StepWay step_graph_way(const StepGraph *graph, guint64 step, gboolean sample)
{
    if (graph->mode == GRAPH_OFF || sample || step <= WARM_UP)
        return STEP_ISSUED;
    if (graph->mode == GRAPH_AUTO && graph->times[WITHOUT] < TIMED)
        return STEP_ISSUED;
    return graph->kept == NULL ? STEP_CAPTURED : STEP_REPLAYED;
}

/* ---- a step ---- */

gboolean step_graph_begin(StepGraph *graph, GError **error)
{
    runtime_bytes_in(graph->runtime, graph->before);
    return device_queues(graph->device)->capture_begin(graph->device, error);
}

gboolean step_graph_end(StepGraph *graph, GError **error)
{
    guint64 after[NUM_VOLUMES];

    graph->kept = device_queues(graph->device)->capture_end(graph->device, error);
    if (graph->kept == NULL) {
        g_prefix_error(error, "a step can't become a CUDA graph (--cuda-graph off does without): ");
        return FALSE;
    }
    runtime_bytes_in(graph->runtime, after);
    for (guint v = 0; v < NUM_VOLUMES; v++)
        graph->received[v] = after[v] - graph->before[v];
    return TRUE;
}

/* Issuing counted the first run. */
static gboolean count(Comm *comm, gconstpointer job, GError **error)
{
    const guint64 *received = job;

    (void)error;
    for (guint v = 0; v < NUM_VOLUMES; v++)
        comm->bytes_in[v] += received[v];
    return TRUE;
}

void step_graph_run(StepGraph *graph, gboolean again)
{
    if (again)
        runtime_post(graph->runtime, LANE_COMMUNICATION, count, graph->received,
                     sizeof graph->received);
    device_queues(graph->device)->graph_run(graph->device, graph->kept);
}

/* ---- which is faster ---- */

/* The slowest rank's time is the job's. */
static gboolean decide(StepGraph *graph, guint64 step, GError **error)
{
    gint64 step_ns[NUM_TIMED];

    for (guint t = 0; t < NUM_TIMED; t++) {
        step_ns[t] = (gint64)(graph->seconds[t] / TIMED * 1e9);
        if (!runtime_agree_max(graph->runtime, &step_ns[t], error))
            return FALSE;
    }
    const gboolean helps = step_ns[WITH] < step_ns[WITHOUT];

    graph->mode = helps ? GRAPH_ON : GRAPH_OFF;
    if (!helps)
        drop(graph);
    g_free(graph->text);
    graph->text = g_strdup_printf(
        "%s from step %" G_GUINT64_FORMAT " on%s: a step took %.4g ms with, %.4g ms without",
        helps ? "on" : "off", step + 1, helps ? ", but for steps that are sampled" : "",
        (double)step_ns[WITH] * 1e-6, (double)step_ns[WITHOUT] * 1e-6);
    return TRUE;
}

gboolean step_graph_took(StepGraph *graph, StepWay way, guint64 step, double seconds,
                         GError **error)
{
    const Timed timed = way == STEP_REPLAYED ? WITH : WITHOUT;

    if (graph->mode != GRAPH_AUTO || step <= WARM_UP || way == STEP_CAPTURED)
        return TRUE;
    graph->seconds[timed] += seconds;
    graph->times[timed]++;
    return graph->times[WITH] < TIMED || decide(graph, step, error);
}

const char *step_graph_text(const StepGraph *graph)
{
    return graph->text;
}
