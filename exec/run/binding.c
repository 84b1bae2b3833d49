#include "exec/run/binding.h"

#include <math.h>

struct Binding {
    Interpreter *interpreter;
    ProgramSpec spec;
    guint count;         /* tokens of a sequence on this rank */
    gint32 *positions;   /* theirs, in the sequence */
    gint tokens, labels; /* tensors; NO_TENSOR where this stage has no use for them */
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
    g_autofree double *inverse = g_new(double, half);

    if (tensor == NO_TENSOR)
        return;
    float *row = interpreter_tensor(binding->interpreter, (guint)tensor, 0);
    model_rope_frequencies(model, inverse);
    for (guint t = 0; t < binding->count; t++, row += model->head_dim) {
        for (guint i = 0; i < half; i++) {
            row[i] = (float)cos(binding->positions[t] * inverse[i]);
            row[half + i] = (float)sin(binding->positions[t] * inverse[i]);
        }
    }
}

/* Positions of the queries here, and of the keys as they come: in a ring from this rank backwards,
 * gathered in the order of ranks. */
static void bind_positions(const Binding *binding)
{
    const guint cp = binding->spec.layout.size[AXIS_CP];
    const gboolean ring = binding->spec.context == CONTEXT_RING;
    const gint queries = interpreter_find(binding->interpreter, "query_positions");
    const gint keys = interpreter_find(binding->interpreter, "key_positions");

    if (queries == NO_TENSOR)
        return;
    gint32 *own = interpreter_tensor(binding->interpreter, (guint)queries, 0);
    for (guint i = 0; i < binding->count; i++)
        own[i] = binding->positions[i];
    for (guint b = 0; b < cp; b++) {
        const guint rank = ring ? (binding->cp_rank + cp - b) % cp : b;

        gint32 *block = ring ? interpreter_tensor(binding->interpreter, (guint)keys, b)
                             : (gint32 *)interpreter_tensor(binding->interpreter, (guint)keys, 0) +
                                   (gsize)b * binding->count;

        context_positions(binding->spec.workload->seq_len, cp, rank, block);
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
    gint32 *rows = interpreter_tensor(binding->interpreter, (guint)tensor, 0);
    const guint64 count = program_tensor(program, (guint)tensor)->elements;
    const guint64 first = binding->spec.sequence_parallel ? tp_rank * count : 0;
    for (guint64 i = 0; i < count; i++)
        rows[i] = binding->positions[(first + i) % binding->count];
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
    binding->tokens = interpreter_find(interpreter, "tokens");
    binding->labels = interpreter_find(interpreter, "labels");
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
    g_free(binding);
}

static gint32 *sequence(const Binding *binding, gint tensor, guint micro_batch, guint b)
{
    if (tensor == NO_TENSOR)
        return NULL;
    return (gint32 *)interpreter_tensor(binding->interpreter, (guint)tensor, micro_batch) +
           (gsize)b * binding->count;
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
                      sequence(binding, binding->tokens, m, b),
                      sequence(binding, binding->labels, m, b));
        }
    }
}

void binding_clear_sums(Binding *binding)
{
    static const char *const sums[] = {"loss", "sum_sharded", "sum_whole"};

    for (guint i = 0; i < G_N_ELEMENTS(sums); i++)
        if (interpreter_find(binding->interpreter, sums[i]) != NO_TENSOR)
            *binding_scalar(binding, sums[i]) = 0;
}

double *binding_scalar(Binding *binding, const char *name)
{
    const gint tensor = interpreter_find(binding->interpreter, name);

    g_assert(tensor != NO_TENSOR);
    return interpreter_tensor(binding->interpreter, (guint)tensor, 0);
}
