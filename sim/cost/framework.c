#include "sim/cost/framework.h"

#include "sim/cost/framework_families.h"
#include "sim/program/program.h"

#include <string.h>

static const Framework own = {
    .name = "fsdp-run",
    .reading = "this project",
};

static const FrameworkFamily own_family = {&own, 1};

static const FrameworkFamily *const families[] = {&own_family, &framework_megatron,
                                                  &framework_others};

const Framework *framework_default(void)
{
    return &own;
}

const Framework *framework_from_name(const char *name)
{
    for (guint f = 0; f < G_N_ELEMENTS(families); f++)
        for (guint i = 0; i < families[f]->count; i++)
            if (strcmp(families[f]->frameworks[i].name, name) == 0)
                return &families[f]->frameworks[i];
    return NULL;
}

char *framework_names(void)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();

    for (guint f = 0; f < G_N_ELEMENTS(families); f++)
        for (guint i = 0; i < families[f]->count; i++)
            g_ptr_array_add(names, (gpointer)families[f]->frameworks[i].name);
    g_ptr_array_add(names, NULL);
    return g_strjoinv(", ", (char **)names->pdata);
}

const Framework *framework_or_default(const Framework *framework)
{
    return framework != NULL ? framework : framework_default();
}

gboolean framework_is_foreign(const Framework *framework)
{
    return framework_or_default(framework) != framework_default();
}

/* A matrix of a unit, to fp8: activations are no unit's parameter. */
static gboolean rounds_weight(const Op *op)
{
    return op->dtype_out == DTYPE_FP8 && op->operands[0].param != WHOLE_TENSOR;
}

/* Others add to the residual stream by an op of its own, two reads and a write, and norm the sum.
 */
static double norm_passes(const Framework *framework, const Op *op)
{
    const double pass = (double)op->sizes.rows * (double)op->sizes.in * dtype_bytes(op->dtype);
    const double all = op_memory_bytes(op, 0), norm = all - 2 * pass;

    if (!op_norm_adds(op) || !framework_is_foreign(framework))
        return 1 + framework->norm_more;
    return (norm * (1 + framework->norm_more) + 3 * pass * (1 + framework->residual_more)) / all;
}

double framework_passes(const Framework *framework, const Op *op, gboolean pads)
{
    if (op_copies_rows(op))
        return pads ? 2 : 1;

    switch (op->kind) {
    case OP_RMSNORM:
    case OP_RMSNORM_BACKWARD:
    case OP_LAYERNORM:
    case OP_LAYERNORM_BACKWARD:
        return norm_passes(framework, op);
    case OP_SWIGLU:
    case OP_SWIGLU_BACKWARD:
        if (framework->fuses_experts && op->sizes.top_k != 0)
            return 0;
        G_GNUC_FALLTHROUGH;
    case OP_GELU:
    case OP_GELU_BACKWARD:
        return 1 + framework->activation_more;
    case OP_CAST:
        if (framework->keeps_fp8_weights && rounds_weight(op))
            return 0;
        G_GNUC_FALLTHROUGH;
    case OP_ACCUMULATE:
        return op->stream == COMPUTE_STREAM ? 1 + framework->residual_more : 1;
    case OP_ROPE:
    case OP_ROPE_BACKWARD:
        return 1 + framework->rotary_more;
    default:
        return 1;
    }
}

/* Groups that keys and values are summed over are part of tensor parallelism. */
double framework_exposed(const Framework *framework, const char *purpose, OpKind kind,
                         gboolean inside)
{
    if (kind == OP_ALL_GATHER && strcmp(purpose, "shard") == 0)
        return 1 - framework->gather_saved;
    if (kind == OP_ALL_TO_ALL)
        return (1 + (inside ? framework->exchange_more : 0)) * (1 - framework->exchange_hidden);
    if (strcmp(purpose, "tp") == 0 || strcmp(purpose, "kv") == 0)
        return (1 + (kind == OP_ALL_REDUCE ? framework->all_reduce_more : 0)) *
               (1 - framework->tensor_hidden);
    return strcmp(purpose, "pp") == 0 ? 1 - framework->pipeline_hidden : 1;
}

double framework_blocks(const Framework *framework, const char *stream)
{
    static const char *const reductions[] = {"shard.reduce", "replicate.reduce", "data.reduce",
                                             "expert_shard.reduce", "expert_data.reduce"};

    for (guint i = 0; i < G_N_ELEMENTS(reductions); i++)
        if (strcmp(stream, reductions[i]) == 0)
            return framework->reduce_exposed;
    return g_str_has_suffix(stream, "shard.gather") ? framework->gather_exposed : 0;
}
