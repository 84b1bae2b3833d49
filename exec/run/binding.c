#include "exec/run/binding.h"

#include <math.h>

static const char *const sum_names[] = {"loss", "sum_sharded", "sum_whole"};

enum { NUM_SUMS = G_N_ELEMENTS(sum_names) };

struct Binding {
    Interpreter *interpreter;
    ProgramSpec spec;
    guint count;                /* tokens of a sequence on this rank */
    gint32 *positions;          /* theirs, in the sequence */
    gint32 *sequence, *shifted; /* one sequence's tokens and labels, on their way */
    gint tokens, labels;        /* tensors; NO_TENSOR where this stage has no use for them */
    gint sums[NUM_SUMS];        /* likewise */
    guint data_rank, cp_rank;
};

static void find_rank(Binding *binding)
{
    const Layout *layout = &binding->spec.layout;
    guint at[NUM_AXES];

    layout_coordinates(layout, runtime_rank(interpreter_runtime(binding->interpreter)), at);
    binding->data_rank = at[AXIS_DP_REPLICATE] * layout->size[AXIS_DP_SHARD] + at[AXIS_DP_SHARD];
    binding->cp_rank = at[AXIS_CP];
}

/* cos and sin of the angles at each of this rank's positions; angles in double, so that long
 * sequences stay exact. */
static void bind_rope_table(const Binding *binding)
{
    const Model *model = binding->spec.model;
    const guint half = model->head_dim / 2;
    const gint tensor = interpreter_find(binding->interpreter, "rope_table");
    const guint64 elements = (guint64)binding->count * model->head_dim;
    g_autofree double *inverse = g_new(double, half);
    g_autofree float *table = g_new(float, elements);
    float *row = table;

    if (tensor == NO_TENSOR)
        return;
    model_rope_frequencies(model, inverse);
    for (guint t = 0; t < binding->count; t++, row += model->head_dim) {
        for (guint i = 0; i < half; i++) {
            row[i] = (float)cos(binding->positions[t] * inverse[i]);
            row[half + i] = (float)sin(binding->positions[t] * inverse[i]);
        }
    }
    interpreter_write(binding->interpreter, (guint)tensor, 0,
                      (TensorRange){0, elements * sizeof *table}, table);
}

/* Positions of the queries here, and of the keys as they come: in a ring from this rank backwards,
 * gathered in the order of ranks. */
static void bind_positions(const Binding *binding)
{
    const guint cp = binding->spec.layout.size[AXIS_CP];
    const gboolean ring = binding->spec.context == CONTEXT_RING;
    const gint queries = interpreter_find(binding->interpreter, "query_positions");
    const gint keys = interpreter_find(binding->interpreter, "key_positions");
    const guint64 bytes = binding->count * sizeof *binding->positions;
    g_autofree gint32 *block = g_malloc(bytes);

    if (queries == NO_TENSOR)
        return;
    interpreter_write(binding->interpreter, (guint)queries, 0, (TensorRange){0, bytes},
                      binding->positions);
    for (guint b = 0; b < cp; b++) {
        const guint rank = ring ? (binding->cp_rank + cp - b) % cp : b;
        const TensorRange range = {ring ? 0 : b * bytes, bytes};

        context_positions(binding->spec.workload->seq_len, cp, rank, block);
        interpreter_write(binding->interpreter, (guint)keys, ring ? b : 0, range, block);
    }
}

/* Positions of the residual stream's tokens: all of a micro-batch, or of them this rank's where the
 * tp group splits them. */
static void bind_row_positions(const Binding *binding)
{
    const gint tensor = interpreter_find(binding->interpreter, "positions");
    const Program *program = interpreter_program(binding->interpreter);
    guint tp;
    const guint tp_rank = interpreter_position(binding->interpreter, "tp", &tp);

    if (tensor == NO_TENSOR)
        return;
    const guint64 count = program_tensor(program, (guint)tensor)->elements;
    const guint64 first = binding->spec.sequence_parallel ? tp_rank * count : 0;
    g_autofree gint32 *rows = g_new(gint32, count);
    for (guint64 i = 0; i < count; i++)
        rows[i] = binding->positions[(first + i) % binding->count];
    interpreter_write(binding->interpreter, (guint)tensor, 0,
                      (TensorRange){0, count * sizeof *rows}, rows);
}

Binding *binding_new(Interpreter *interpreter, const ProgramSpec *spec)
{
    Binding *binding = g_new0(Binding, 1);
    const guint cp = spec->layout.size[AXIS_CP];

    binding->interpreter = interpreter;
    binding->spec = *spec;
    find_rank(binding);
    binding->count = spec->workload->seq_len / cp;
    binding->positions = g_new(gint32, binding->count);
    context_positions(spec->workload->seq_len, cp, binding->cp_rank, binding->positions);
    binding->sequence = g_new(gint32, binding->count);
    binding->shifted = g_new(gint32, binding->count);
    binding->tokens = interpreter_find(interpreter, "tokens");
    binding->labels = interpreter_find(interpreter, "labels");
    for (guint i = 0; i < NUM_SUMS; i++)
        binding->sums[i] = interpreter_find(interpreter, sum_names[i]);
    bind_rope_table(binding);
    bind_positions(binding);
    bind_row_positions(binding);
    return binding;
}

void binding_free(Binding *binding)
{
    if (binding == NULL)
        return;
    g_free(binding->positions);
    g_free(binding->sequence);
    g_free(binding->shifted);
    g_free(binding);
}

/* Sequence @b of a micro-batch. */
static void write_sequence(const Binding *binding, gint tensor, guint micro_batch, guint b,
                           const gint32 *values)
{
    const guint64 bytes = binding->count * sizeof *values;

    if (tensor != NO_TENSOR)
        interpreter_write(binding->interpreter, (guint)tensor, micro_batch,
                          (TensorRange){b * bytes, bytes}, values);
}

void binding_samples(Binding *binding, const Data *data, guint64 seed, guint64 step)
{
    const Schedule *schedule = &binding->spec.schedule;
    const guint64 data_ranks = layout_data_ranks(&binding->spec.layout);

    for (guint m = 0; m < schedule->micro_batches; m++) {
        for (guint b = 0; b < schedule->micro_batch; b++) {
            const Sample sample = {
                seed, step, (m * data_ranks + binding->data_rank) * schedule->micro_batch + b};

            data_fill(data, &sample, binding->positions, binding->count,
                      binding->tokens == NO_TENSOR ? NULL : binding->sequence,
                      binding->labels == NO_TENSOR ? NULL : binding->shifted);
            write_sequence(binding, binding->tokens, m, b, binding->sequence);
            write_sequence(binding, binding->labels, m, b, binding->shifted);
        }
    }
}

void binding_clear_sums(Binding *binding)
{
    const double zero = 0;

    for (guint i = 0; i < NUM_SUMS; i++)
        if (binding->sums[i] != NO_TENSOR)
            interpreter_write(binding->interpreter, (guint)binding->sums[i], 0,
                              (TensorRange){0, sizeof zero}, &zero);
}

static guint scalar_tensor(const Binding *binding, const char *name)
{
    const gint tensor = interpreter_find(binding->interpreter, name);

    g_assert(tensor != NO_TENSOR);
    return (guint)tensor;
}

void binding_write(Binding *binding, const char *name, const double *values, guint count)
{
    interpreter_write(binding->interpreter, scalar_tensor(binding, name), 0,
                      (TensorRange){0, count * sizeof *values}, values);
}

double binding_read(Binding *binding, const char *name)
{
    double value = 0;

    interpreter_read(binding->interpreter, scalar_tensor(binding, name), 0,
                     (TensorRange){0, sizeof value}, &value);
    return value;
}
