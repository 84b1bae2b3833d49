/* Made-up stores that look like real ones: runs of many layouts with steps, terms and sampled ops.
 */
#pragma once

#include "reports/report/report.h"
#include "reports/store/store.h"

#include <check.h>
#include <glib.h>
#include <glib/gstdio.h>
#include <json-glib/json-glib.h>
#include <math.h>

enum { FABRICATED_RANKS = 8 };

/* Ends the test with the message when @ok is false. */
static inline void must(gboolean ok, const GError *error)
{
    if (!ok)
        ck_abort_msg("%s", error != NULL ? error->message : "failed without a message");
}

static inline Report *must_load(const char *path)
{
    g_autoptr(GError) error = NULL;
    Report *report = report_load(path, &error);

    must(report != NULL, error);
    return report;
}

/* A path in a new folder; freed by the caller, who removes the folder with scratch_remove(). */
static inline char *scratch_path(const char *name)
{
    g_autofree char *folder = g_dir_make_tmp("reports-XXXXXX", NULL);

    ck_assert_ptr_nonnull(folder);
    return g_build_filename(folder, name, NULL);
}

static inline void scratch_remove(const char *path)
{
    g_autofree char *folder = g_path_get_dirname(path);
    g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
    const char *name;

    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *file = g_build_filename(folder, name, NULL);

        g_remove(file);
    }
    g_rmdir(folder);
}

/* The layout of run @i: a few dozen that differ; all of FABRICATED_RANKS ranks. */
typedef struct {
    guint dp_shard, tp, pp, cp, micro_batch;
    const char *strategy;
} FabricatedLayout;

static inline FabricatedLayout fabricated_layout(guint i)
{
    static const guint mesh[][4] = {{8, 1, 1, 1}, {4, 2, 1, 1}, {2, 4, 1, 1}, {4, 1, 2, 1},
                                    {2, 2, 2, 1}, {1, 4, 2, 1}, {4, 1, 1, 2}, {2, 1, 4, 1}};
    static const char *const strategies[] = {"full_shard", "shard_grad_op", "shard_optimizer"};
    const guint *m = mesh[i % G_N_ELEMENTS(mesh)];

    return (FabricatedLayout){
        m[0], m[1], m[2], m[3], 1 + (i / 8) % 2, strategies[(i / 8) % G_N_ELEMENTS(strategies)]};
}

static inline char *fabricated_plan(const char *model, guint i, double step_s)
{
    const FabricatedLayout l = fabricated_layout(i);
    g_autoptr(JsonNode) node = json_node_init_string(json_node_alloc(), model);
    g_autofree char *name = json_to_string(node, FALSE);

    return g_strdup_printf(
        "{\"format\": \"fsdp-plan\", \"version\": 1, \"model\": {\"name\": %s, \"parameters\": "
        "1235814400}, \"topology\": {\"name\": \"localhost\", \"gpus\": 8}, \"target\": "
        "{\"device\": \"cpu\"}, \"workload\": {\"global_batch\": 16, \"seq_len\": 1024, "
        "\"precision\": \"fp32\", \"recipe\": \"fp32\", \"optimizer\": \"adamw\"}, \"layout\": "
        "{\"dp_replicate\": 1, \"dp_shard\": %u, \"cp\": %u, \"tp\": %u, \"pp\": %u}, "
        "\"sharding\": {\"strategy\": \"%s\"}, \"schedule\": {\"name\": \"1f1b\", \"micro_batch\": "
        "%u, \"micro_batches\": %u}, \"recompute\": \"none\", \"prediction\": {\"step_seconds\": "
        "%g, \"mfu\": 0.41, \"rank\": 0, \"memory_bytes\": {\"parameters\": 617907200, \"total\": "
        "5000000000}}}",
        name, l.dp_shard, l.cp, l.tp, l.pp, l.strategy, l.micro_batch, 2 / l.micro_batch, step_s);
}

static inline void fabricate_term(Store *store, gint64 run, guint rank, const char *term,
                                  const double values[2], const char *unit)
{
    g_autoptr(GError) error = NULL;
    const StoreTerm row = {rank, term, values[0], values[1], NAN, unit};

    must(store_add_term(store, run, &row, &error), error);
}

/* The terms of one rank: @step_s is {predicted, measured}. */
static inline void fabricate_terms(Store *store, gint64 run, guint rank, const double step_s[2],
                                   GRand *rand)
{
    static const struct {
        const char *term;
        double share, spread;
    } times[] = {
        {"time_seconds.gemm", 0.52, 0.06},         {"time_seconds.attention", 0.14, 0.1},
        {"time_seconds.memory_bound", 0.11, 0.15}, {"time_seconds.optimizer", 0.05, 0.1},
        {"time_seconds.communication", 0.3, 0.2},  {"exposed_communication_seconds", 0.12, 0.3},
    };
    static const struct {
        const char *term;
        double bytes;
        gboolean exact, measured;
    } memory[] = {
        {"memory_bytes.parameters", 617907200, TRUE, TRUE},
        {"memory_bytes.gathered", 243793920, TRUE, TRUE},
        {"memory_bytes.gradients", 617907200, TRUE, TRUE},
        {"memory_bytes.master", 0, TRUE, TRUE},
        {"memory_bytes.optimizer", 1235814400, TRUE, TRUE},
        {"memory_bytes.activations", 1610612736, FALSE, TRUE},
        {"memory_bytes.logits", 134217728, FALSE, TRUE},
        {"memory_bytes.communication", 243793920, FALSE, TRUE},
        {"memory_bytes.workspace", 67108864, FALSE, TRUE},
        {"memory_bytes.framework", 157286400, FALSE, FALSE},
        {"memory_bytes.total", 4928442368, FALSE, TRUE},
    };
    static const struct {
        const char *term;
        double bytes;
    } volume[] = {
        {"communication_bytes.all_gather", 4325350400},
        {"communication_bytes.reduce_scatter", 2162675200},
        {"communication_bytes.all_reduce", 224},
        {"communication_bytes.all_to_all", 0},
        {"communication_bytes.exchange", 0},
    };
    const double tokens = 16 * 1024;

    fabricate_term(store, run, rank, "step_seconds", step_s, "s");
    fabricate_term(store, run, rank, "tokens_per_second",
                   (double[]){tokens / step_s[0], tokens / step_s[1]}, "tokens/s");
    fabricate_term(store, run, rank, "mfu", (double[]){0.55 / step_s[0], 0.55 / step_s[1]}, "");
    for (guint i = 0; i < G_N_ELEMENTS(times); i++)
        fabricate_term(
            store, run, rank, times[i].term,
            (double[]){times[i].share * step_s[0],
                       times[i].share * step_s[1] *
                           g_rand_double_range(rand, 1 - times[i].spread, 1 + times[i].spread)},
            "s");
    for (guint i = 0; i < G_N_ELEMENTS(memory); i++) {
        const double factor = memory[i].exact ? 1 : g_rand_double_range(rand, 0.97, 1.04);

        fabricate_term(
            store, run, rank, memory[i].term,
            (double[]){memory[i].bytes, memory[i].measured ? floor(memory[i].bytes * factor) : NAN},
            "bytes");
    }
    for (guint i = 0; i < G_N_ELEMENTS(volume); i++)
        fabricate_term(store, run, rank, volume[i].term,
                       (double[]){volume[i].bytes, volume[i].bytes}, "bytes");
}

static inline void fabricate_op(Store *store, gint64 run, const char *stream, const char *name,
                                const double span_s[2])
{
    g_autoptr(GError) error = NULL;
    const StoreOp op = {.step = 3,
                        .op = name,
                        .stream = stream,
                        .start = span_s[0],
                        .end = span_s[1],
                        .bytes = 1e6,
                        .flops = 1e9};

    must(store_add_op(store, run, &op, &error), error);
}

/* One pass over all layers: every op on the compute stream, each layer's gather before it. */
static inline double fabricate_pass(Store *store, gint64 run, gboolean backward, double at_s,
                                    double layer_s)
{
    static const struct {
        const char *name;
        double share;
    } ops[] = {{"rmsnorm", 0.04}, {"linear", 0.2},   {"rope", 0.03},   {"attention", 0.22},
               {"linear", 0.12},  {"rmsnorm", 0.04}, {"linear", 0.25}, {"swiglu", 0.08}};
    const char *pass = backward ? "backward" : "forward";

    for (guint i = 0; i < 16; i++) {
        const guint layer = backward ? 15 - i : i;
        g_autofree char *gather = g_strdup_printf("block.gather layers.%u all_gather", layer);
        g_autofree char *reduce = g_strdup_printf("block.reduce layers.%u reduce_scatter", layer);
        double now_s = at_s;

        fabricate_op(store, run, "shard gather", gather,
                     (double[]){at_s - layer_s * 0.7, at_s - 0.02 * layer_s});
        for (guint j = 0; j < G_N_ELEMENTS(ops); j++) {
            g_autofree char *name = g_strdup_printf("block.%s layers.%u %s%s", pass, layer,
                                                    ops[j].name, backward ? "_backward" : "");
            const double end_s = now_s + ops[j].share * layer_s;

            fabricate_op(store, run, "compute", name, (double[]){now_s, end_s});
            now_s = end_s + 0.002 * layer_s;
        }
        at_s += layer_s * 1.03;
        if (backward)
            fabricate_op(store, run, "shard reduce", reduce,
                         (double[]){at_s, at_s + layer_s * 0.5});
    }
    return at_s;
}

static inline void fabricate_ops(Store *store, gint64 run, double step_s)
{
    double at_s = fabricate_pass(store, run, FALSE, step_s * 0.03, step_s * 0.018);

    at_s = fabricate_pass(store, run, TRUE, at_s + step_s * 0.03, step_s * 0.034);
    fabricate_op(store, run, "compute", "root.optimizer all adamw",
                 (double[]){at_s + step_s * 0.03, step_s});
}

static inline void fabricate_steps(Store *store, gint64 run, guint num_steps, double step_s,
                                   GRand *rand)
{
    g_autoptr(GError) error = NULL;

    for (guint i = 1; i <= num_steps; i++) {
        const double loss =
            2.2 + 9.5 * exp(-(double)i / 40) + g_rand_double_range(rand, -0.05, 0.05);
        const StoreStep step = {.step = i,
                                .seconds =
                                    step_s * (i == 1 ? 1.8 : g_rand_double_range(rand, 0.98, 1.03)),
                                .loss = loss,
                                .grad_norm = 1.5,
                                .tokens = 16384,
                                .lr = 3e-4,
                                .finite = TRUE};

        must(store_add_step(store, run, &step, &error), error);
    }
}

/* Run @i of @model, finished; returns its id. */
static inline gint64 fabricate_run(Store *store, const char *model, guint i, guint num_steps)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GRand) rand = g_rand_new_with_seed(i + 1);
    const double predicted_s = 1.3 * (1 + 0.5 * fabs(sin(3.0 * (i + 1)))),
                 measured_s = predicted_s * g_rand_double_range(rand, 0.95, 1.12);
    g_autofree char *plan = fabricated_plan(model, i, predicted_s);
    const StoreRun row = {.created = "2026-03-04T05:06:07Z",
                          .plan_json = plan,
                          .host = "node-17",
                          .device = "cpu",
                          .git_revision = "0123abc",
                          .ranks = FABRICATED_RANKS,
                          .seed = 1234};

    must(store_begin(store, &error), error);
    const gint64 run = store_add_run(store, &row, &error);
    must(run > 0, error);
    fabricate_steps(store, run, num_steps, measured_s, rand);
    for (guint rank = 0; rank < FABRICATED_RANKS; rank++)
        fabricate_terms(store, run, rank, (double[]){predicted_s, measured_s}, rand);
    fabricate_ops(store, run, measured_s);
    must(store_set_status(store, run, "done", &error), error);
    must(store_commit(store, &error), error);
    return run;
}

static inline void fabricate_store(const char *path, guint num_runs, guint num_steps)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Store) store = store_open(path, FALSE, &error);

    must(store != NULL, error);
    for (guint i = 0; i < num_runs; i++)
        fabricate_run(store, "llama-3.2-1b", i, num_steps);
}
