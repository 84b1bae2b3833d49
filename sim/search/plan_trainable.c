/* Which plans fsdp-run trains: what it lacks is said beside a plan, and refused by a run. */
#include "sim/base/error.h"
#include "sim/program/cuda_blocks.h"
#include "sim/search/plan.h"

static gboolean check_workload(const Plan *plan, GError **error)
{
    const DType precision = plan->workload.recipe->precision;

    if (precision != DTYPE_BF16 && precision != DTYPE_FP32)
        return fail(error, ERROR_INPUT,
                    "field \"workload.precision\" = \"%s\": it is planned only; fsdp-run trains in "
                    "bf16 and fp32",
                    dtype_name(precision));
    if (optimizer_moment_block(plan->workload.optimizer) != 0)
        return fail(error, ERROR_INPUT,
                    "field \"workload.optimizer\" = \"%s\": it is planned only; fsdp-run trains "
                    "with adamw and sgd",
                    optimizer_name(plan->workload.optimizer));
    return TRUE;
}

static gboolean check_window(const Plan *plan, GError **error)
{
    const guint window = plan->model->sliding_window;

    if (window == 0 || plan->workload.seq_len <= window)
        return TRUE;
    return fail(error, ERROR_INPUT,
                "field \"workload.seq_len\" = %u: attention within the model's sliding_window of "
                "%u is planned only; fsdp-run trains on sequences of at most that many tokens",
                plan->workload.seq_len, window);
}

static gboolean check_heads(const Plan *plan, GError **error)
{
    const guint dim = plan->model->head_dim;

    return plan->device != DEVICE_CUDA || (dim % 2 == 0 && dim <= CUDA_ATTENTION_MOST_DIM) ||
           fail(error, ERROR_INPUT,
                "model %s has head_dim = %u: attention kernels for GPUs take even ones of at most "
                "%u",
                plan->model->name, dim, (guint)CUDA_ATTENTION_MOST_DIM);
}

/* The model first: no other choice would help it. */
gboolean plan_check_trainable(const Plan *plan, GError **error)
{
    if (!model_check_trainable(plan->model, error) || !check_workload(plan, error) ||
        !check_window(plan, error) || !check_heads(plan, error))
        return FALSE;
    if (plan->sharding.offload.optimizer == TIER_CXL ||
        plan->sharding.offload.parameters == TIER_CXL)
        return fail(error, ERROR_INPUT,
                    "field \"offload\" = {\"optimizer\": \"%s\", \"parameters\": \"%s\"}: cxl is "
                    "planned only, since no topology says which NUMA node it is; fsdp-run keeps "
                    "state in device, host or nvme",
                    tier_name(plan->sharding.offload.optimizer),
                    tier_name(plan->sharding.offload.parameters));
    return TRUE;
}
