#include "sim/remarks.h"

#include "sim/base/text.h"

char *remark_routing(const Model *model, double imbalance)
{
    if (model->experts.count == 0)
        return NULL;
    if (imbalance <= 1)
        return g_strdup("routing is taken to be balanced: each expert has as many tokens");
    return g_strdup_printf("routing is taken to be out of balance: where ranks share experts (ep), "
                           "the busiest one's have %g times the mean of tokens, at most all",
                           imbalance);
}

/* ALiBi knows no limit. */
char *remark_long_sequence(const Model *model, guint seq_len)
{
    if ((model->features & (FEATURE_POSITIONS | FEATURE_ALIBI)) != 0 || seq_len <= model->max_seq)
        return NULL;
    return g_strdup_printf("%u tokens are more than the model's max_position_embeddings, %u: "
                           "positions may need scaling; memory and time do not depend on it",
                           seq_len, model->max_seq);
}

char *remark_framework(const Framework *framework)
{
    return framework_is_foreign(framework) ? g_strdup_printf("prediction for framework %s: %s",
                                                             framework->name, framework->reading)
                                           : NULL;
}

/* Of one micro-batch on a rank. */
static guint64 rank_tokens(const Plan *plan)
{
    return (guint64)plan->schedule.micro_batch * plan->workload.seq_len /
           plan->layout.size[AXIS_CP];
}

static char *remark_logits(const Plan *plan)
{
    const guint tp = plan->layout.size[AXIS_TP];
    const guint64 tokens = rank_tokens(plan), words = (plan->model->vocab + tp - 1) / tp;
    const double bytes = (double)plan->prediction.memory_bytes[TERM_LOGITS];

    return g_strdup_printf(
        "logits are whole: %" G_GUINT64_FORMAT " tokens x %" G_GUINT64_FORMAT " words x %.0f "
        "bytes, however many ranks shard the parameters; fewer with a larger cp or tp%s, or with "
        "a loss that is taken in chunks (fsdp-run, deepspeed-liger, torchtitan-2026)",
        tokens, words, bytes / (double)(tokens * words),
        plan->schedule.micro_batch > 1 ? ", a smaller micro-batch" : "");
}

static char *remark_activations(const Plan *plan)
{
    const gboolean full = plan->schedule.recompute == RECOMPUTE_FULL;

    const gboolean stages = plan->layout.size[AXIS_PP] > 1;

    return g_strdup_printf("activations are of %s%" G_GUINT64_FORMAT
                           " tokens%s, however many ranks shard the "
                           "parameters; fewer with a larger cp or tp%s%s",
                           stages ? "all micro-batches in flight, each of " : "the ",
                           rank_tokens(plan), stages ? "" : " that a rank works on at once",
                           plan->schedule.micro_batch > 1 ? ", a smaller micro-batch" : "",
                           full && !schedule_has_rest(&plan->schedule) ? "" : ", recompute full");
}

char *remark_largest(const Plan *plan)
{
    if (plan->prediction.memory_total <= plan->prediction.memory_limit)
        return NULL;
    switch (prediction_largest_term(&plan->prediction)) {
    case TERM_LOGITS:
        return remark_logits(plan);
    case TERM_ACTIVATIONS:
        return remark_activations(plan);
    default:
        return NULL;
    }
}

char *remark_loading(const Plan *plan)
{
    const guint *size = plan->layout.size;
    const guint64 parameters = model_parameters(plan->model), limit = plan->prediction.memory_limit;
    const guint64 beside = plan->prediction.memory_bytes[TERM_FRAMEWORK];

    if (!framework_is_foreign(plan->framework) || size[AXIS_TP] > 1 || size[AXIS_PP] > 1 ||
        plan->prediction.memory_total > limit || 4 * parameters + beside <= limit)
        return NULL;
    g_autofree char *wide = bytes_text(4 * parameters + beside);
    g_autofree char *narrow = bytes_text(2 * parameters + beside);
    return g_strdup_printf(
        "a rank that loads the whole model before it is sharded needs %s in "
        "fp32, which does not fit%s%s: make it on the meta device, or on the "
        "host (explain says more)",
        wide, 2 * parameters + beside > limit ? ", nor do 16 bits, " : "; 16 bits need ", narrow);
}

char *remark_untrainable(const Plan *plan)
{
    g_autoptr(GError) missing = NULL;

    return plan_check_trainable(plan, &missing) ? NULL : g_strdup(missing->message);
}

OpClass remark_bound(const Plan *plan)
{
    const double *seconds = plan->prediction.time_seconds;
    guint most = 0;

    for (guint t = 1; t < NUM_OP_CLASSES; t++)
        if (seconds[t] > seconds[most])
            most = t;
    return (OpClass)most;
}

static double speed(const SearchResult *result, guint i)
{
    const Plan *plan = g_ptr_array_index(result->plans, i);

    return plan->prediction.tokens_per_second;
}

guint remark_alike(const SearchResult *result)
{
    guint alike = 0;

    while (alike < result->plans->len &&
           speed(result, 0) < speed(result, alike) * (1 + REMARK_NOISE))
        alike++;
    return alike;
}
