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
    local.experts.shared_ffn =
        model->experts.shared_ffn / tp + (model->experts.shared_ffn % tp != 0);
    return local;
}

/* Zero is SPLIT_NONE: norms, positions, and biases that are added once to a sum over ranks. */
static const Split splits[NUM_PARAM_ROLES] = {
    [PARAM_EMBEDDING] = SPLIT_ROWS, [PARAM_HEAD] = SPLIT_ROWS,
    [PARAM_HEAD_BIAS] = SPLIT_ROWS, [PARAM_Q] = SPLIT_ROWS,
    [PARAM_Q_BIAS] = SPLIT_ROWS,    [PARAM_K] = SPLIT_ROWS,
    [PARAM_K_BIAS] = SPLIT_ROWS,    [PARAM_V] = SPLIT_ROWS,
    [PARAM_V_BIAS] = SPLIT_ROWS,    [PARAM_SINKS] = SPLIT_ROWS,
    [PARAM_O] = SPLIT_COLUMNS,      [PARAM_GATE] = SPLIT_ROWS,
    [PARAM_GATE_BIAS] = SPLIT_ROWS, [PARAM_UP] = SPLIT_ROWS,
    [PARAM_UP_BIAS] = SPLIT_ROWS,   [PARAM_DOWN] = SPLIT_COLUMNS,
    [PARAM_KV_UP] = SPLIT_ROWS,     [PARAM_SHARED_GATE] = SPLIT_ROWS,
    [PARAM_SHARED_UP] = SPLIT_ROWS, [PARAM_SHARED_DOWN] = SPLIT_COLUMNS,
};

static gboolean is_kv(ParamRole role)
{
    return role == PARAM_K || role == PARAM_K_BIAS || role == PARAM_V || role == PARAM_V_BIAS;
}

static gboolean is_expert(ParamRole role)
{
    return role >= PARAM_EXPERT_GATE && role <= PARAM_EXPERT_DOWN_BIAS;
}

static gboolean is_index(ParamRole role)
{
    return role >= PARAM_INDEX_Q && role <= PARAM_INDEX_WEIGHTS_BIAS;
}

/* A norm of all heads at once, or apart of each, has a weight for each of their values. */
static gboolean is_wide_norm(const Model *model, ParamRole role)
{
    return ((model->features & FEATURE_QK_NORM_OF_ALL) != 0 || model_norms_heads_apart(model)) &&
           (role == PARAM_Q_NORM || role == PARAM_K_NORM);
}

static Split split_of(const Model *model, ParamRole role)
{
    return is_wide_norm(model, role) ? SPLIT_ROWS : splits[role];
}

static gboolean is_of_kv(const Model *model, ParamRole role)
{
    return is_kv(role) || (role == PARAM_K_NORM && is_wide_norm(model, role));
}

guint tensor_copies(const Model *model, ParamRole role, guint tp)
{
    if (split_of(model, role) == SPLIT_NONE)
        return tp;
    return is_of_kv(model, role) ? tensor_parallel_kv_copies(model, tp) : 1;
}

TensorSplit tensor_split(const Model *model, UnitKind unit, guint param, guint tp)
{
    const Model local = tensor_parallel_model(model, tp);
    g_autoptr(GArray) whole = model_unit_params(model, unit);
    g_autoptr(GArray) part = model_unit_params(&local, unit);
    const ParamShape *shape = &g_array_index(whole, ParamShape, param);
    const ParamShape *own = &g_array_index(part, ParamShape, param);
    const Split split = split_of(model, shape->role);
    const guint copies = tensor_copies(model, shape->role, tp);

    return (TensorSplit){
        .split = split,
        .rows = shape->rows,
        .cols = shape->cols,
        .chunk = split == SPLIT_COLUMNS ? own->cols : own->rows,
        .parts = tp / copies,
        .copies = copies,
    };
}

PartialSum tensor_gradient_sum(const Model *model, ParamRole role, gboolean sequence)
{
    if (is_of_kv(model, role))
        return SUM_OVER_KV;
    if (is_index(role)) /* of all tokens on every rank */
        return SUM_NONE;
    if (is_expert(role)) /* summed over all ranks that hold it, where it is reduced */
        return SUM_NONE;
    if (role == PARAM_SHARED_SCALE) /* of other columns of the MLP on every rank */
        return SUM_OVER_TP;
    if (split_of(model, role) == SPLIT_NONE &&
        (role == PARAM_Q_NORM || role == PARAM_K_NORM)) /* of other heads on every rank */
        return SUM_OVER_TP;
    if (split_of(model, role) != SPLIT_NONE || role == PARAM_O_BIAS || role == PARAM_DOWN_BIAS)
        return SUM_NONE;
    return sequence ? SUM_OVER_TP : SUM_NONE;
}
