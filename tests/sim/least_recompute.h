/* By trying every list: the fewest layers of each stage that a plan must compute again to fit. */
#pragma once

#include "sim/search/price.h"
#include "tests/suite.h"

#include <string.h>

static inline gboolean differ_in_recompute_only(const Plan *a, const Plan *b)
{
    return memcmp(&a->layout, &b->layout, sizeof a->layout) == 0 &&
           a->sharding.strategy == b->sharding.strategy && a->context == b->context &&
           a->schedule.kind == b->schedule.kind &&
           a->schedule.virtual_stages == b->schedule.virtual_stages &&
           a->schedule.micro_batch == b->schedule.micro_batch &&
           a->workload.global_batch == b->workload.global_batch;
}

static inline gboolean fits_without_recompute(const GPtrArray *all, const Plan *plan)
{
    for (guint i = 0; i < all->len; i++) {
        const Plan *other = g_ptr_array_index(all, i);

        if (other->schedule.recompute == RECOMPUTE_NONE && differ_in_recompute_only(plan, other))
            return other->reasons->len == 0;
    }
    return FALSE;
}

/* The next list of numbers up to @most, the first one fastest; FALSE after the last. */
static inline gboolean next_layers(guint16 *layers, const guint *most, guint num)
{
    for (guint s = 0; s < num; s++) {
        if (layers[s]++ < most[s])
            return TRUE;
        layers[s] = 0;
    }
    return FALSE;
}

/* NULL where only all layers, or not even those, are enough. */
static inline Plan *least_recompute(const Plan *plan)
{
    const guint pp = plan->layout.size[AXIS_PP];
    g_autofree char *text = plan_print(plan);
    guint16 layers[16] = {0};
    guint most[16], least = G_MAXUINT;
    Plan *best = NULL;

    for (guint s = 0; s < pp; s++)
        most[s] = schedule_most_layers(&plan->schedule, plan->model->layers, pp, s);
    while (next_layers(layers, most, pp)) {
        g_autoptr(Plan) tried = plan_parse(text, "plan", NULL);
        guint sum = 0;

        ck_assert_ptr_nonnull(tried);
        for (guint s = 0; s < pp; s++)
            sum += layers[s];
        plan_set_recompute(tried, plan->schedule.recompute, layers, pp);
        if (!schedule_has_rest(&tried->schedule) || sum >= least)
            continue;
        plan_price(tried);
        if (tried->reasons->len > 0)
            continue;
        plan_free(best);
        best = g_steal_pointer(&tried);
        least = sum;
    }
    return best;
}

/* To @all, which has what computes again nothing, or all: where nothing does not fit.  Returns how
 * many. */
static inline guint add_least_recomputes(GPtrArray *all)
{
    const guint num = all->len;

    for (guint i = 0; i < num; i++) {
        const Plan *plan = g_ptr_array_index(all, i);

        if (plan->schedule.recompute == RECOMPUTE_NONE || fits_without_recompute(all, plan))
            continue;
        Plan *least = least_recompute(plan);
        if (least != NULL)
            g_ptr_array_add(all, least);
    }
    return all->len - num;
}
