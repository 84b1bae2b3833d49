#include "exec/run/inputs.h"

#include "sim/layout/tensor_parallel.h"

#include <math.h>

/* NULL where the program has no such tensor. */
static void *find(Interpreter *interpreter, const char *name, guint64 *elements)
{
    const gint tensor = interpreter_find(interpreter, name);

    if (tensor == NO_TENSOR)
        return NULL;
    *elements = program_tensor(interpreter_program(interpreter), (guint)tensor)->elements;
    return interpreter_tensor(interpreter, (guint)tensor, 0);
}

/* cos and sin of every position's angles; angles in double, so that long sequences stay exact. */
static void bind_rope_table(Interpreter *interpreter, const Model *model, guint seq_len)
{
    const guint half = model->head_dim / 2;
    g_autofree double *inverse = g_new(double, half);
    guint64 elements;
    float *row = find(interpreter, "rope_table", &elements);

    if (row == NULL)
        return;
    model_rope_frequencies(model, inverse);
    for (guint t = 0; t < seq_len; t++, row += model->head_dim)
        for (guint i = 0; i < half; i++) {
            row[i] = (float)cos(t * inverse[i]);
            row[half + i] = (float)sin(t * inverse[i]);
        }
}

/* Of the tokens of the residual stream: all of a micro-batch, or this rank's when the tp group
 * splits them. */
static void bind_positions(Interpreter *interpreter, guint seq_len)
{
    guint tp;
    const guint tp_rank = interpreter_position(interpreter, "tp", &tp);
    guint64 rows, all;
    gint32 *positions = find(interpreter, "positions", &rows);

    if (positions == NULL || find(interpreter, "tokens", &all) == NULL)
        return;
    const guint64 first = rows < all ? tp_rank * rows : 0;
    for (guint64 i = 0; i < rows; i++)
        positions[i] = (gint32)((first + i) % seq_len);
}

static void bind_vocab_range(Interpreter *interpreter, const Model *model)
{
    const gint embedding = model_param_index(model, UNIT_ROOT, PARAM_EMBEDDING);
    guint tp;
    const guint tp_rank = interpreter_position(interpreter, "tp", &tp);
    const TensorSplit split = tensor_split(model, UNIT_ROOT, (guint)embedding, tp);
    const guint64 first = MIN(tp_rank * split.chunk, split.rows);
    guint64 elements;
    double *range = find(interpreter, "vocab_range", &elements);

    if (range == NULL)
        return;
    range[RANGE_FIRST] = (double)first;
    range[RANGE_COUNT] = (double)MIN(split.chunk, split.rows - first);
}

void inputs_bind(Interpreter *interpreter, const Model *model, guint seq_len)
{
    bind_rope_table(interpreter, model, seq_len);
    bind_positions(interpreter, seq_len);
    bind_vocab_range(interpreter, model);
}
