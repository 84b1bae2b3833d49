#include "exec/run/train.h"

#include "exec/base/process.h"
#include "exec/run/binding.h"
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

typedef struct {
    const Plan *plan;
    const TrainOptions *options;
    Interpreter *interpreter;
    Data *data;
    Record *record;
    Binding *binding;
    gboolean stopped;
} Trainer;

/* AdamW as in LLaMA (Touvron et al. 2023, arXiv 2302.13971, sec. 2.3), eps as in PyTorch. */
static void bind_scalars(Trainer *trainer, guint step)
{
    const double hyper[NUM_HYPER] = {
        [HYPER_LR] = train_learning_rate(trainer->options, step),
        [HYPER_BETA1] = 0.9,
        [HYPER_BETA2] = 0.95,
        [HYPER_EPS] = 1e-8,
        [HYPER_WEIGHT_DECAY] = 0.1,
        [HYPER_STEP] = step,
        [HYPER_MAX_NORM] = trainer->options->clip_norm,
    };

    binding_write(trainer->binding, "hyper", hyper, NUM_HYPER);
    binding_clear_sums(trainer->binding);
}

static StoreStep measured_step(const Trainer *trainer, guint step, double seconds)
{
    Binding *binding = trainer->binding;

    return (StoreStep){
        .step = step,
        .seconds = seconds,
        .loss = binding_read(binding, "loss"),
        .grad_norm = binding_read(binding, "norm"),
        .tokens = binding_read(binding, "valid"),
        .lr = train_learning_rate(trainer->options, step),
        .finite = binding_read(binding, "finite") != 0.0,
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

    binding_samples(trainer->binding, trainer->data, trainer->options->seed, step);
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
    const InterpreterOptions run = {.check = options->check,
                                    .seed = (guint64)seed,
                                    .no_overlap = options->no_overlap,
                                    .graph = options->graph,
                                    .nvme_folder = options->nvme_folder,
                                    .attention = options->attention};
    return interpreter_new_with(runtime, set, &run, error);
}

/* A rank whose step failed leaves alone; a loss that is not finite is seen by all ranks alike. */
static int run_status(Trainer *trainer, GError **error)
{
    g_autoptr(GError) why = NULL;
    g_autoptr(GError) record_why = NULL;
    const gboolean ok = run_steps(trainer, &why);
    const gboolean non_finite = !ok && record_saw_non_finite(trainer->record);
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

    const ProgramSpec spec = plan_spec(plan);
    g_autoptr(Binding) binding = binding_new(interpreter, &spec);
    Trainer trainer = {
        .plan = plan,
        .options = options,
        .interpreter = interpreter,
        .data = data,
        .record = record,
        .binding = binding,
    };
    parameters_init(interpreter, plan->model, options->seed);
    if (options->stochastic)
        parameters_round_by_chance(interpreter, plan->model, options->seed);
    return run_status(&trainer, error);
}
