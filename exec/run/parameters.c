#include "exec/run/parameters.h"

#include "exec/base/random.h"
#include "exec/device/cpu_block.h"

#include <math.h>
#include <string.h>

char *parameters_name(const Program *program, guint unit, guint param)
{
    const UnitClass *unit_class =
        program_unit(program, program_unit_ref(program, unit)->unit_class);
    const char *name = unit_class->param_names[param];

    return unit == ROOT_UNIT ? g_strdup(name)
                             : g_strdup_printf("%s%u.%s", unit_class->prefix, unit - 1, name);
}

static double init_std(const Model *model, ParamRole role)
{
    const gboolean residual = role == PARAM_O || role == PARAM_DOWN;

    return residual ? model->init_std / sqrt(2.0 * model->layers) : model->init_std;
}

static gboolean is_norm(ParamRole role)
{
    return role == PARAM_INPUT_NORM || role == PARAM_POST_NORM || role == PARAM_FINAL_NORM;
}

/* One parameter of one unit. */
typedef struct {
    Interpreter *interpreter;
    const Model *model;
    guint64 seed;
    guint unit, param;
    TensorSplit split;
    guint part; /* of the split, that this rank holds */
} Target;

/* What the values of one whole parameter are drawn from. */
typedef struct {
    guint64 seed;
    const char *name;
    double std;
} Draw;

/* @count values from element @global of the whole on; behind @real of them come zeros. */
static void fill_run(const Draw *draw, float *values, guint64 global, guint64 real, guint64 count)
{
    const guint64 drawn = MIN(real, count);

    random_normal_fill(values, draw->seed, draw->name, global, drawn, draw->std);
    memset(values + drawn, 0, (count - drawn) * sizeof *values);
}

/* @elements of this rank's part from @start on.  Rows are contiguous in the whole; columns are a
 * run in each row. */
static void fill_split(const Target *target, const Draw *draw, float *values, guint64 start,
                       guint64 elements)
{
    const TensorSplit *s = &target->split;
    const guint64 first = target->part * s->chunk;
    guint64 run;

    if (s->split != SPLIT_COLUMNS) {
        const guint64 global = first * s->cols + start, end = s->rows * s->cols;

        fill_run(draw, values, global, global < end ? end - global : 0, elements);
        return;
    }
    for (guint64 done = 0; done < elements; done += run) {
        const guint64 row = (start + done) / s->chunk, column = (start + done) % s->chunk;
        const guint64 global = first + column;

        run = MIN(s->chunk - column, elements - done);
        fill_run(draw, values + done, row * s->cols + global,
                 global < s->cols ? s->cols - global : 0, run);
    }
}

static void fill(const Target *target, float *values, guint64 start, guint64 elements)
{
    const Program *program = interpreter_program(target->interpreter);
    const UnitClass *unit =
        program_unit(program, program_unit_ref(program, target->unit)->unit_class);
    g_autofree char *name = parameters_name(program, target->unit, target->param);
    const Draw draw = {target->seed, name,
                       init_std(target->model, unit->map->params[target->param].role)};

    if (unit->map->params[target->param].dims > 1) {
        fill_split(target, &draw, values, start, elements);
        return;
    }
    for (guint64 i = 0; i < elements; i++)
        values[i] = is_norm(unit->map->params[target->param].role) ? 1.0f : 0.0f;
}

/* A bf16 tensor's values are rounded where they are. */
static void store(const Target *target, gint tensor, guint64 offset, float *values,
                  guint64 elements)
{
    const Program *program = interpreter_program(target->interpreter);
    const UnitRef *ref = program_unit_ref(program, target->unit);
    const DType dtype = program_tensor(program, (guint)tensor)->dtype;
    const TensorRange range = {offset * dtype_bytes(dtype), elements * dtype_bytes(dtype)};

    g_assert(dtype == DTYPE_FP32 || dtype == DTYPE_BF16);
    for (guint64 i = 0; dtype == DTYPE_BF16 && i < elements; i++) {
        const guint16 rounded = bf16_from_float(values[i]);

        memcpy((guint8 *)values + i * sizeof rounded, &rounded, sizeof rounded);
    }
    interpreter_write(target->interpreter, (guint)tensor, ref->index, range, values);
}

/* @from .. @from + elements - 1 of the parameter, to @offset of the tensor, a block at a time. */
static void init_range(const Target *target, gint tensor, guint64 offset, guint64 from,
                       guint64 elements)
{
    enum { BLOCK = 1 << 16 };
    g_autofree float *values = g_new(float, MIN(elements, BLOCK) + 1);

    for (guint64 done = 0; done < elements; done += BLOCK) {
        const guint64 count = MIN(elements - done, BLOCK);

        fill(target, values, from + done, count);
        store(target, tensor, offset + done, values, count);
    }
}

static void init_param(const Target *target, guint map_rank)
{
    const Program *program = interpreter_program(target->interpreter);
    const UnitClass *unit =
        program_unit(program, program_unit_ref(program, target->unit)->unit_class);
    const UnitParam *param = &unit->map->params[target->param];
    const ShardSpan own =
        unit_map_span(unit->map, target->param, unit->map->ranks == 1 ? 0 : map_rank);

    if (program_tensor(program, (guint)unit->parameter)->part == PART_WHOLE)
        init_range(target, unit->parameter, param->full_offset, 0, param->rows * param->cols);
    else
        init_range(target, unit->parameter, own.shard_offset, own.start, own.elements);
    if (unit->master != NO_TENSOR)
        init_range(target, unit->master, own.shard_offset, own.start, own.elements);
}

/* The words whose embedding and head this rank holds. */
static void bind_vocab_range(Interpreter *interpreter, const Model *model, guint tp_rank, guint tp)
{
    const gint tensor = interpreter_find(interpreter, "vocab_range");
    const gint embedding = model_param_index(model, UNIT_ROOT, PARAM_EMBEDDING);
    const TensorSplit split = tensor_split(model, UNIT_ROOT, (guint)embedding, tp);
    const guint64 first = MIN(tp_rank * split.chunk, split.rows);

    if (tensor == NO_TENSOR)
        return;
    const double range[NUM_RANGE] = {
        [RANGE_FIRST] = (double)first,
        [RANGE_COUNT] = (double)MIN(split.chunk, split.rows - first),
    };
    interpreter_write(interpreter, (guint)tensor, 0, (TensorRange){0, sizeof range}, range);
}

void parameters_init(Interpreter *interpreter, const Model *model, guint64 seed)
{
    const Program *program = interpreter_program(interpreter);
    guint tp;
    const guint tp_rank = interpreter_position(interpreter, "tp", &tp);

    bind_vocab_range(interpreter, model, tp_rank, tp);

    for (guint u = 0; u < program->unit_refs->len; u++) {
        if (program_unit_ref(program, u)->unit_class == NO_UNIT_CLASS)
            continue;
        const UnitClass *unit = program_unit(program, program_unit_ref(program, u)->unit_class);

        for (guint p = 0; p < unit->map->num_params; p++) {
            const TensorSplit split = tensor_split(model, unit->kind, p, tp);
            const Target target = {interpreter, model, seed, u, p, split, tp_rank / split.copies};

            init_param(&target, interpreter_map_rank(interpreter));
        }
    }
}

RoundingNumbers parameters_rounding(const TensorSplit *split, guint part, guint64 numbers)
{
    const guint64 first = part * split->chunk;

    if (split->split == SPLIT_COLUMNS)
        return (RoundingNumbers){numbers + first, split->chunk, split->cols};
    return (RoundingNumbers){.first = numbers + first * split->cols};
}

void parameters_round_by_chance(Interpreter *interpreter, const Model *model, guint64 seed)
{
    const Program *program = interpreter_program(interpreter);
    RoundingNumbers *all =
        g_new0(RoundingNumbers, (gsize)program->unit_refs->len * LAUNCH_MOST_PARAMS);
    guint tp;
    const guint tp_rank = interpreter_position(interpreter, "tp", &tp);

    for (guint u = 0; u < program->unit_refs->len; u++) {
        if (program_unit_ref(program, u)->unit_class == NO_UNIT_CLASS)
            continue;
        const UnitClass *unit = program_unit(program, program_unit_ref(program, u)->unit_class);

        for (guint p = 0; p < unit->map->num_params; p++) {
            const TensorSplit split = tensor_split(model, unit->kind, p, tp);
            g_autofree char *name = parameters_name(program, u, p);

            all[u * LAUNCH_MOST_PARAMS + p] =
                parameters_rounding(&split, tp_rank / split.copies, random_numbers(seed, name));
        }
    }
    interpreter_round_by_chance(interpreter, all);
}
