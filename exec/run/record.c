#include "exec/run/record.h"

#include "exec/base/process.h"
#include "exec/run/effective.h"
#include "exec/run/estimate.h"
#include "exec/run/op_times.h"
#include "exec/run/terms.h"
#include "sim/base/error.h"
#include "sim/base/samples.h"

#include <math.h>
#include <string.h>

enum { FIRST_SAMPLE = 3, SAMPLE_EVERY = 25, WARM_UP = 2 };

struct Record {
    const Plan *plan;
    const TrainOptions *options;
    Interpreter *interpreter;
    Store *store; /* rank 0, when asked for */
    gint64 run;
    GArray *seconds; /* double, by step; room for all from the start */
    double tokens;   /* of a step */
    Terms terms;
    const char *graphs; /* what interpreter_graphs() said last */
    gboolean non_finite;
    gboolean header_printed;
};

static gboolean is_root(const Record *record)
{
    return runtime_rank(interpreter_runtime(record->interpreter)) == 0;
}

gboolean record_is_sampled(guint step, guint steps)
{
    const guint first = MIN(FIRST_SAMPLE, steps);

    return step >= first && (step - first) % SAMPLE_EVERY == 0;
}

/* ---- opening ---- */

/* What has changed of whether steps run as graphs, as a line of the record; "": nothing. */
static char *graphs_line(Record *record)
{
    const char *graphs = interpreter_graphs(record->interpreter);

    if (graphs == record->graphs)
        return g_strdup("");
    record->graphs = graphs;
    return g_strdup_printf("  %-15s%s\n", STORE_GRAPHS, graphs);
}

static char *storage_line(const Record *record)
{
    const char *storage = interpreter_storage(record->interpreter);

    return storage == NULL ? g_strdup("") : g_strdup_printf("  %-15s%s\n", "nvme", storage);
}

static char *attention_line(const Record *record)
{
    const char *attention = interpreter_attention(record->interpreter);

    return attention == NULL ? g_strdup("")
                             : g_strdup_printf("  %-15s%s\n", STORE_ATTENTION, attention);
}

/* @effective: what the run will do. */
static gboolean add_run(Record *record, const char *effective, GError **error)
{
    g_autofree char *plan = plan_print(record->plan);
    g_autoptr(GDateTime) now = g_date_time_new_now_utc();
    g_autofree char *created = g_date_time_format_iso8601(now);
    const StoreRun run = {
        .created = created,
        .plan_json = plan,
        .host = g_get_host_name(),
        .device = device_kind_name(record->plan->device),
        .git_revision = FSDP_GIT_REVISION,
        .status = "running",
        .notes = effective,
        .ranks = record->plan->gpus,
        .seed = record->options->seed,
    };

    record->run = store_add_run(record->store, &run, error);
    return record->run != 0;
}

static gboolean open_store(Record *record, const char *effective, GError **error)
{
    const guint watchdog_s = record->options->watchdog_s;

    /* Another writer is waited for less long than the watchdog waits for us. */
    record->store = store_open_writer(
        record->options->db_path,
        watchdog_s == 0 ? STORE_PATIENCE_S : MIN(STORE_PATIENCE_S, watchdog_s / 2.0), error);
    return record->store != NULL && add_run(record, effective, error);
}

/* For the store alone: it takes a second set of communicators, for a moment. */
static gboolean estimate(Record *record, GError **error)
{
    double *seconds = record->terms.estimated_seconds;

    for (guint v = 0; v < NUM_VOLUMES; v++)
        seconds[v] = NAN;
    return record->options->db_path == NULL || estimate_step(record->interpreter, seconds, error);
}

Record *record_new(const Plan *plan, Interpreter *interpreter, const TrainOptions *options,
                   GError **error)
{
    g_autoptr(Record) record = g_new0(Record, 1);
    gint64 failed = 0;

    record->plan = plan;
    record->options = options;
    record->interpreter = interpreter;
    record->seconds = g_array_sized_new(FALSE, FALSE, sizeof(double), options->steps);
    if (is_root(record)) {
        g_autofree char *run = effective_text(plan, options, interpreter_runtime(interpreter));
        g_autofree char *graphs = graphs_line(record);
        g_autofree char *storage = storage_line(record);
        g_autofree char *attention = attention_line(record);
        g_autofree char *effective = g_strconcat(run, storage, attention, graphs, NULL);

        failed = options->db_path != NULL && !open_store(record, effective, error);
        if (!failed)
            g_printerr("%s", effective);
    }
    const gint64 own = failed;
    if (!runtime_agree_max(interpreter_runtime(interpreter), &failed, own ? NULL : error))
        return NULL;
    if (failed && !own)
        fail(error, ERROR_RUNTIME, "rank 0 could not open the store");
    if (failed || !estimate(record, error))
        return NULL;
    return g_steal_pointer(&record);
}

void record_free(Record *record)
{
    if (record == NULL)
        return;
    store_free(record->store);
    g_array_unref(record->seconds);
    g_free(record);
}

/* ---- steps ---- */

void record_volume(Record *record, const guint64 before[NUM_VOLUMES])
{
    guint64 after[NUM_VOLUMES];

    runtime_bytes_in(interpreter_runtime(record->interpreter), after);
    for (guint v = 0; v < NUM_VOLUMES; v++)
        record->terms.communication_bytes[v] = after[v] - before[v];
}

/* Peak of one rank's device in that precision: a core's, times its threads. */
static double peak_flops(const Plan *plan)
{
    return gpu_peak_flops(&plan->topology->gpu, plan->workload.recipe->precision) * plan->threads;
}

static void print_header(Record *record)
{
    const Plan *plan = record->plan;
    g_autofree char *layout = plan_layout_text(plan);
    g_autofree char *recompute = plan_recompute_text(plan);
    g_autofree char *recipe = recipe_text(plan->workload.recipe);

    record->header_printed = TRUE;
    if (record->options->json)
        return;
    g_print("%s  %s %s  %s %s  batch %u x %u tokens (%u x %u sequences a rank)  %s  recompute %s\n",
            plan->model->name, layout, strategy_name(plan->sharding.strategy), recipe,
            optimizer_name(plan->workload.optimizer), plan->workload.global_batch,
            plan->workload.seq_len, plan->schedule.micro_batches, plan->schedule.micro_batch,
            form_name(plan->sharding.form), recompute);
    g_print("%u ranks x %u threads, %s, %s; program %.12s\n", plan->gpus, plan->threads,
            runtime_transport(interpreter_runtime(record->interpreter)),
            runtime_library(interpreter_runtime(record->interpreter)), plan->hash);
}

static void print_json(const StoreStep *step, double tflops, double mfu)
{
    char loss[G_ASCII_DTOSTR_BUF_SIZE], norm[G_ASCII_DTOSTR_BUF_SIZE];

    /* JSON has no NaN: what is not finite is null. */
    g_ascii_dtostr(loss, sizeof loss, step->loss);
    g_ascii_dtostr(norm, sizeof norm, step->grad_norm);
    g_print("{\"step\": %" G_GINT64_FORMAT ", \"loss\": %s, \"grad_norm\": %s, \"lr\": %.17g, "
            "\"seconds\": %.9g, \"tokens\": %.0f, \"tflops_per_gpu\": %.6g, \"mfu\": %.6g}\n",
            step->step, isfinite(step->loss) ? loss : "null",
            isfinite(step->grad_norm) ? norm : "null", step->lr, step->seconds, step->tokens,
            tflops, mfu);
}

/* Of the device where it has memory of its own, by whomever; else of this process. */
static guint64 peak_memory_bytes(const Record *record)
{
    Device *device = runtime_device(interpreter_runtime(record->interpreter));

    return device_queues(device) != NULL ? device_queues(device)->used_bytes(device)
                                         : process_peak_rss_bytes();
}

static void print_step(Record *record, const StoreStep *step)
{
    const Plan *plan = record->plan;
    const double flops =
        model_step_flops(plan->model, (guint64)step->tokens, plan->workload.seq_len) / plan->gpus /
        step->seconds;
    const double mfu = flops / peak_flops(plan);
    const gint64 every = record->options->log_every;

    if (!record->header_printed)
        print_header(record);
    if (every == 0 ||
        (step->step % every != 0 && step->step != record->options->steps && step->finite))
        return;
    if (record->options->json) {
        print_json(step, flops / 1e12, mfu);
        return;
    }
    g_print("step %5" G_GINT64_FORMAT "/%u  loss %9.6f  grad_norm %8.4f  lr %.2e  %8.1f ms  %9.0f "
            "tokens/s  %7.4f TFLOP/s/rank  mfu %4.1f%%  mem %.1f MiB\n",
            step->step, record->options->steps, step->loss, step->grad_norm, step->lr,
            step->seconds * 1e3, step->tokens / step->seconds, flops / 1e12, mfu * 100,
            (double)peak_memory_bytes(record) / (1 << 20));
}

/* Once found out in auto mode. */
static gboolean note_graphs(Record *record, GError **error)
{
    g_autofree char *line = graphs_line(record);

    if (line[0] == '\0')
        return TRUE;
    g_printerr("%s", line);
    return record->store == NULL || store_add_note(record->store, record->run, line, error);
}

/* @times: NULL where the step was not sampled. */
static gboolean write_step(Record *record, const StoreStep *step, const GPtrArray *times,
                           GError **error)
{
    const OpTimesPlace place = {record->store, record->run, step->step};

    if (!store_begin(record->store, error) ||
        !store_add_step(record->store, record->run, step, error))
        return FALSE;
    if (times != NULL &&
        !op_times_write(times, interpreter_set(record->interpreter), &place, error))
        return FALSE;
    return store_commit(record->store, error);
}

gboolean record_step(Record *record, const StoreStep *step, gboolean sampled, GError **error)
{
    g_array_append_val(record->seconds, step->seconds);
    record->tokens = step->tokens;
    record->non_finite |= !step->finite;
    if (sampled)
        terms_take_times(&record->terms, interpreter_program(record->interpreter),
                         interpreter_times(record->interpreter), step->seconds);
    const gboolean stores_ops = sampled && record->options->db_path != NULL;
    g_autoptr(GPtrArray) times =
        stores_ops ? op_times_gather(record->interpreter, record->plan->ranks_per_node, error)
                   : NULL;
    if (stores_ops && times == NULL)
        return FALSE;
    if (!is_root(record))
        return TRUE;
    print_step(record, step);
    if (!note_graphs(record, error))
        return FALSE;
    return record->store == NULL || write_step(record, step, times, error);
}

gboolean record_saw_non_finite(const Record *record)
{
    return record->non_finite;
}

/* ---- the end ---- */

/* Of the steps after warm-up, or of all when there are no others. */
static double median_seconds(const Record *record)
{
    const guint skip = record->seconds->len > WARM_UP ? WARM_UP : 0;
    const guint num = record->seconds->len - skip;
    g_autofree double *seconds = g_new(double, num);

    if (num == 0)
        return NAN;
    memcpy(seconds, &g_array_index(record->seconds, double, skip), num * sizeof *seconds);
    return samples_median(seconds, num);
}

static void measure_memory(Record *record)
{
    Terms *terms = &record->terms;
    Runtime *runtime = interpreter_runtime(record->interpreter);
    const Program *program = interpreter_program(record->interpreter);

    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);

        if (tensor->tier == TIER_DEVICE && terms_is_state(tensor_term(tensor)))
            terms->state_bytes[tensor_term(tensor)] +=
                interpreter_touched_tensor(record->interpreter, t);
    }
    for (guint t = 0; t < NUM_TIERS; t++)
        terms->arena_bytes[t] = interpreter_touched_arena(record->interpreter, (Tier)t);
    terms->total_bytes = peak_memory_bytes(record) - runtime_foreign_bytes(runtime);
    if (device_queues(runtime_device(runtime)) == NULL)
        terms->total_bytes -= terms->arena_bytes[TIER_HOST]; /* which is the process's too */
}

static gboolean write_terms_of(Record *record, guint rank, const Terms *terms, GError **error)
{
    g_autoptr(GArray) rows =
        terms_rows(terms, record->plan, interpreter_set(record->interpreter), rank);

    for (guint i = 0; i < rows->len; i++)
        if (!store_add_term(record->store, record->run, &g_array_index(rows, StoreTerm, i), error))
            return FALSE;
    return TRUE;
}

static gboolean write_terms(Record *record, GError **error)
{
    g_autoptr(GPtrArray) all = g_ptr_array_new_with_free_func((GDestroyNotify)g_bytes_unref);

    if (!runtime_gather(interpreter_runtime(record->interpreter), &record->terms,
                        sizeof record->terms, all, error))
        return FALSE;
    if (record->store == NULL)
        return TRUE;
    if (!store_begin(record->store, error))
        return FALSE;
    for (guint rank = 0; rank < all->len; rank++) {
        gsize bytes;
        const Terms *terms = g_bytes_get_data(g_ptr_array_index(all, rank), &bytes);

        g_assert(bytes == sizeof *terms);
        if (!write_terms_of(record, rank, terms, error))
            return FALSE;
    }
    return store_commit(record->store, error);
}

gboolean record_finish(Record *record, const char *status, gboolean together, GError **error)
{
    record->terms.step_seconds = median_seconds(record);
    record->terms.tokens = record->tokens;
    record->terms.peak_flops = peak_flops(record->plan);
    if (together && record->seconds->len > 0) {
        measure_memory(record);
        if (!write_terms(record, error))
            return FALSE;
    }
    if (record->store == NULL)
        return TRUE;
    return store_set_status(record->store, record->run, status, error);
}
