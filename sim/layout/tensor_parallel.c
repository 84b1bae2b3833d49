#include "sim/layout/tensor_parallel.h"

static guint divide_up(guint a, guint b)
{
    return a / b + (a % b != 0);
}

guint tensor_parallel_kv_copies(const Model *model, guint tp)
{
    return tp > model->kv_heads ? tp / model->kv_heads : 1;
}

Model tensor_parallel_model(const Model *model, guint tp)
{
    Model local = *model;

    local.heads = model->heads / tp;
    local.kv_heads = MAX(model->kv_heads / tp, 1);
    local.ffn = divide_up(model->ffn, tp);
    local.vocab = divide_up(model->vocab, tp);
    return local;
}

static Split param_split(UnitKind unit, guint param)
{
    static const Split root[NUM_ROOT_PARAMS] = {
        [PARAM_EMBEDDING] = SPLIT_ROWS,
        [PARAM_FINAL_NORM] = SPLIT_NONE,
        [PARAM_HEAD] = SPLIT_ROWS,
    };
    static const Split block[NUM_BLOCK_PARAMS] = {
        [PARAM_INPUT_NORM] = SPLIT_NONE, [PARAM_Q] = SPLIT_ROWS,    [PARAM_K] = SPLIT_ROWS,
        [PARAM_V] = SPLIT_ROWS,          [PARAM_O] = SPLIT_COLUMNS, [PARAM_POST_NORM] = SPLIT_NONE,
        [PARAM_GATE] = SPLIT_ROWS,       [PARAM_UP] = SPLIT_ROWS,   [PARAM_DOWN] = SPLIT_COLUMNS,
    };

    return unit == UNIT_ROOT ? root[param] : block[param];
}

TensorSplit tensor_split(const Model *model, UnitKind unit, guint param, guint tp)
{
    const Model local = tensor_parallel_model(model, tp);
    g_autoptr(GArray) whole = model_unit_params(model, unit);
    g_autoptr(GArray) part = model_unit_params(&local, unit);
    const ParamShape *shape = &g_array_index(whole, ParamShape, param);
    const ParamShape *own = &g_array_index(part, ParamShape, param);
    const Split split = param_split(unit, param);
    const gboolean kv = unit == UNIT_BLOCK && (param == PARAM_K || param == PARAM_V);
    const guint copies = split == SPLIT_NONE ? tp : kv ? tensor_parallel_kv_copies(model, tp) : 1;

    return (TensorSplit){
        .split = split,
        .rows = shape->rows,
        .cols = shape->cols,
        .chunk = split == SPLIT_COLUMNS ? own->cols : own->rows,
        .parts = tp / copies,
        .copies = copies,
    };
}
