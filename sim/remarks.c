#include "sim/remarks.h"

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
