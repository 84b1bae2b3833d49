#include "exec/run/train.h"

#include "exec/base/process.h"
#include "exec/run/data.h"
#include "exec/run/parameters.h"
#include "exec/run/record.h"
#include "exec/run/watchdog.h"
#include "sim/base/error.h"

#include <math.h>
#include <string.h>

double train_learning_rate(const TrainOptions *options, guint step)
{
    const double floor_rate = options->lr / 10;

    if (!options->cosine)
        return options->lr;
    if (step <= options->warmup)
        return options->lr * step / options->warmup;
    if (step >= options->lr_steps)
        return floor_rate;
    const double done =
        (double)(step - options->warmup) / (double)(options->lr_steps - options->warmup);
    return floor_rate + (options->lr - floor_rate) * 0.5 * (1 + cos(G_PI * done));
}

enum { STATUS_STALLED = 3 };

/* The tensors that the host writes before a step and reads after it. */
typedef struct {
    gint32 *tokens, *labels; /* first copy; the others follow at the tensors' strides */
    double *hyper, *loss, *valid, *norm, *finite;
    float *rope_table;
} Bound;

typedef struct {
    const Plan *plan;
    const TrainOptions *options;
    Interpreter *interpreter;
    Data *data;
    Record *record;
    Bound bound;
    guint tokens_tensor, labels_tensor;
    guint data_rank; /* position among data-parallel ranks */
    gboolean stopped;
} Trainer;

static void *bound_tensor(Interpreter *interpreter, const char *name)
{
    const gint tensor = interpreter_find(interpreter, name);

    g_assert(tensor != NO_TENSOR);
    return interpreter_tensor(interpreter, (guint)tensor, 0);
}

static void bind_tensors(Trainer *trainer)
{
    Interpreter *interpreter = trainer->interpreter;

    trainer->bound = (Bound){
        .hyper = bound_tensor(interpreter, "hyper"),
        .loss = bound_tensor(interpreter, "loss"),
        .valid = bound_tensor(interpreter, "valid"),
        .norm = bound_tensor(interpreter, "norm"),
        .finite = bound_tensor(interpreter, "finite"),
        .rope_table = bound_tensor(interpreter, "rope_table"),
    };
    trainer->tokens_tensor = (guint)interpreter_find(interpreter, "tokens");
    trainer->labels_tensor = (guint)interpreter_find(interpreter, "labels");
}

/* cos and sin of every position's angles; angles in double, so that long sequences stay exact. */
static void fill_rope_table(Trainer *trainer)
{
    const Model *model = trainer->plan->model;
    const guint half = model->head_dim / 2;
    g_autofree double *inverse = g_new(double, half);

    model_rope_frequencies(model, inverse);
    for (guint t = 0; t < trainer->plan->workload.seq_len; t++) {
        float *row = trainer->bound.rope_table + (gsize)t * model->head_dim;

        for (guint i = 0; i < half; i++) {
            row[i] = (float)cos(t * inverse[i]);
            row[half + i] = (float)sin(t * inverse[i]);
        }
    }
}

/* Samples of a step in the order (micro-batch, data rank, sequence): which rank sees which depends
 * on the layout, the set of them does not. */
static void bind_samples(Trainer *trainer, guint step)
{
    const Schedule *schedule = &trainer->plan->schedule;
    const guint seq = trainer->plan->workload.seq_len;
    const guint data_ranks = layout_data_ranks(&trainer->plan->layout);

    for (guint m = 0; m < schedule->micro_batches; m++) {
        gint32 *tokens = interpreter_tensor(trainer->interpreter, trainer->tokens_tensor, m);
        gint32 *labels = interpreter_tensor(trainer->interpreter, trainer->labels_tensor, m);

        for (guint b = 0; b < schedule->micro_batch; b++) {
            const guint64 sample =
                ((guint64)m * data_ranks + trainer->data_rank) * schedule->micro_batch + b;

            data_fill(trainer->data, trainer->options->seed, step, sample, tokens + (gsize)b * seq,
                      labels + (gsize)b * seq);
        }
    }
}

/* AdamW as in LLaMA (Touvron et al. 2023, arXiv 2302.13971, sec. 2.3), eps as in PyTorch. */
static void bind_scalars(Trainer *trainer, guint step)
{
    double *hyper = trainer->bound.hyper;

    hyper[HYPER_LR] = train_learning_rate(trainer->options, step);
    hyper[HYPER_BETA1] = 0.9;
    hyper[HYPER_BETA2] = 0.95;
    hyper[HYPER_EPS] = 1e-8;
    hyper[HYPER_WEIGHT_DECAY] = 0.1;
    hyper[HYPER_STEP] = step;
    hyper[HYPER_MAX_NORM] = trainer->options->clip_norm;
    *trainer->bound.loss = 0;
}

static StoreStep measured_step(const Trainer *trainer, guint step, double seconds)
{
    const double valid = *trainer->bound.valid;

    return (StoreStep){
        .step = step,
        .seconds = seconds,
        .loss = *trainer->bound.loss / MAX(valid, 1.0),
        .grad_norm = *trainer->bound.norm,
        .tokens = valid,
        .lr = trainer->bound.hyper[HYPER_LR],
        .finite = *trainer->bound.finite != 0.0,
    };
}

/* All ranks leave after the same step: the flag of any is the flag of all. */
static gboolean agree_to_stop(Trainer *trainer, GError **error)
{
    gint64 stop = process_stop_requested();

    if (!runtime_agree_max(interpreter_runtime(trainer->interpreter), &stop, error))
        return FALSE;
    trainer->stopped = stop != 0;
    return TRUE;
}

/* One step and what it took, until all that it moved has arrived on all ranks: a gather of updated
 * parameters belongs to the step that updated them. */
static gboolean time_step(Trainer *trainer, gboolean sample, double *seconds, GError **error)
{
    const double start = clock_s();

    if (!interpreter_step(trainer->interpreter, sample, error) || !agree_to_stop(trainer, error))
        return FALSE;
    *seconds = clock_s() - start;
    return TRUE;
}

static gboolean run_step(Trainer *trainer, guint step, GError **error)
{
    const gboolean sample = record_is_sampled(step, trainer->options->steps);
    Runtime *runtime = interpreter_runtime(trainer->interpreter);
    guint64 before[NUM_VOLUMES];
    double seconds;

    bind_samples(trainer, step);
    bind_scalars(trainer, step);
    if (sample)
        runtime_bytes_in(runtime, before);
    if (!time_step(trainer, sample, &seconds, error))
        return FALSE;
    const StoreStep measured = measured_step(trainer, step, seconds);
    if (sample)
        record_volume(trainer->record, before);
    if (!record_step(trainer->record, &measured, sample, error))
        return FALSE;
    if (!measured.finite)
        return fail(error, ERROR_RUNTIME,
                    "step %u: loss %g, gradient norm %g: not finite; no rank applied that update, "
                    "parameters are those of step %u",
                    step, measured.loss, measured.grad_norm, step - 1);
    return TRUE;
}

static gboolean run_steps(Trainer *trainer, GError **error)
{
    for (guint step = 1; step <= trainer->options->steps && !trainer->stopped; step++)
        if (!run_step(trainer, step, error))
            return FALSE;
    return interpreter_drain(trainer->interpreter, error);
}

/* Rank 0 draws the seed that was not given. */
static Interpreter *open_interpreter(Runtime *runtime, const ProgramSet *set,
                                     const TrainOptions *options, GError **error)
{
    const gboolean is_root = runtime_rank(runtime) == 0;
    gint64 seed = 0;

    if (is_root && options->check)
        seed = options->check_seed_given ? (gint64)options->check_seed : g_random_int();
    if (options->check && !runtime_agree_max(runtime, &seed, error))
        return NULL;
    if (is_root && options->check)
        g_printerr("  check mode     delays of seed %" G_GINT64_FORMAT
                   " (--check-seed %" G_GINT64_FORMAT " draws the same)\n",
                   seed, seed);
    const InterpreterOptions run = {
        .check = options->check, .seed = (guint64)seed, .no_overlap = options->no_overlap};
    return interpreter_new_with(runtime, set, &run, error);
}

static guint data_rank(const Plan *plan, guint rank)
{
    guint coordinate[NUM_AXES];

    layout_coordinates(&plan->layout, rank, coordinate);
    return coordinate[AXIS_DP_REPLICATE] * plan->layout.size[AXIS_DP_SHARD] +
           coordinate[AXIS_DP_SHARD];
}

/* A rank whose step failed leaves alone; a loss that is not finite is seen by all ranks alike. */
static int run_status(Trainer *trainer, GError **error)
{
    g_autoptr(GError) why = NULL;
    g_autoptr(GError) record_why = NULL;
    const gboolean ok = run_steps(trainer, &why);
    const gboolean non_finite = !ok && *trainer->bound.finite == 0.0 && trainer->record != NULL &&
                                record_saw_non_finite(trainer->record);
    const char *status =
        ok ? (trainer->stopped ? "stopped" : "done") : (non_finite ? "non-finite" : "failed");

    if (!record_finish(trainer->record, status, ok || non_finite, &record_why) && ok) {
        g_propagate_error(error, g_steal_pointer(&record_why));
        return 3;
    }
    if (ok)
        return 0;
    g_propagate_error(error, g_steal_pointer(&why));
    if (!non_finite) {
        Runtime *runtime = interpreter_runtime(trainer->interpreter);

        g_printerr("fsdp-run: rank %u: %s\n", runtime_rank(runtime), (*error)->message);
        runtime_abort(runtime, error_exit_status(*error));
    }
    return error_exit_status(*error);
}

int train(const Plan *plan, const ProgramSet *set, Runtime *runtime, const TrainOptions *options,
          GError **error)
{
    g_autoptr(Data) data =
        data_open(options->data_path, plan->model->vocab, plan->workload.seq_len, error);
    g_autoptr(Interpreter) interpreter = NULL;
    g_autoptr(Record) record = NULL;
    g_autoptr(Watchdog) watchdog = NULL;

    if (data == NULL)
        return error_exit_status(*error);
    if (options->watchdog_s > 0)
        watchdog = watchdog_start(runtime, set, options->watchdog_s, STATUS_STALLED);
    interpreter = open_interpreter(runtime, set, options, error);
    if (interpreter == NULL)
        return error_exit_status(*error);
    record = record_new(plan, interpreter, options, error);
    if (record == NULL)
        return error_exit_status(*error);

    Trainer trainer = {
        .plan = plan,
        .options = options,
        .interpreter = interpreter,
        .data = data,
        .record = record,
        .data_rank = data_rank(plan, runtime_rank(runtime)),
    };
    bind_tensors(&trainer);
    fill_rope_table(&trainer);
    parameters_init(interpreter, plan->model, options->seed);
    return run_status(&trainer, error);
}
