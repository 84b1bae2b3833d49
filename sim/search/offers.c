#include "sim/search/offers.h"

#include "sim/layout/legality.h"

/* With one stage the order is plain; a schedule that was asked for is tried and refused there. */
gboolean offers_schedule(const SearchRequest *request, guint pp, ScheduleKind kind)
{
    if (request->schedule >= 0)
        return request->schedule == (gint)kind;
    return pp > 1 || kind == SCHEDULE_1F1B;
}

static gboolean is_cut_evenly(const SearchRequest *request, guint chunks)
{
    return chunks <= request->model->layers && request->model->layers % chunks == 0;
}

guint offers_most_virtual_stages(const SearchRequest *request, guint pp, ScheduleKind kind)
{
    if (request->virtual_stages != 0)
        return request->virtual_stages;
    return kind == SCHEDULE_INTERLEAVED ? MAX(request->model->layers / pp, 2) : 1;
}

gboolean offers_virtual_stages(const SearchRequest *request, guint pp, ScheduleKind kind,
                               guint virtual_stages)
{
    const guint chunks = pp * virtual_stages;

    if (request->num_chunks != 0 && request->num_chunks != chunks)
        return FALSE;
    if (request->virtual_stages != 0)
        return virtual_stages == request->virtual_stages;
    return kind == SCHEDULE_INTERLEAVED
               ? virtual_stages == 2 || (virtual_stages > 2 && is_cut_evenly(request, chunks))
               : virtual_stages == 1;
}

/* Sharding over one rank is what no_shard does with more copies: offered only when asked for, or
 * where nothing may be whole.  Ranks of cp share parameters too, and with ep experts lie on several
 * ranks anyway: then all that shard are a choice, and no_shard, with ep, only when asked for. */
gboolean offers_strategy(const SearchRequest *request, const Layout *layout, Strategy strategy)
{
    const gboolean replicated = layout->size[AXIS_DP_REPLICATE] > 1;
    const gboolean spreads = layout_ep(layout) > 1;
    const Strategy named =
        strategy == STRATEGY_FULL_SHARD && replicated ? STRATEGY_HYBRID_SHARD : strategy;

    if (strategy == STRATEGY_NO_SHARD && spreads && request->fixed_ep == 0)
        return FALSE;
    if (request->strategy >= 0)
        return named == (Strategy)request->strategy || strategy == (Strategy)request->strategy;
    if (strategy == STRATEGY_HYBRID_SHARD) /* enumerated as full_shard */
        return FALSE;
    if (strategy == STRATEGY_NO_SHARD)
        return layout->size[AXIS_DP_SHARD] == 1;
    return layout_shard_ranks(layout) > 1 || spreads ||
           (strategy != STRATEGY_SHARD_OPTIMIZER &&
            legality_needs_shards(request->recipe, &request->sharding));
}

/* How attention crosses ranks matters only where there are several. */
gboolean offers_context(const SearchRequest *request, guint cp, ContextKind kind)
{
    return request->context >= 0 ? request->context == (gint)kind : kind == CONTEXT_RING || cp > 1;
}

gboolean offers_axis(const SearchRequest *request, Axis axis, guint size)
{
    return request->fixed[axis] == 0 || request->fixed[axis] == size;
}

gboolean offers_tp(const SearchRequest *request, guint tp)
{
    return offers_axis(request, AXIS_TP, tp) &&
           (request->fixed[AXIS_TP] != 0 || tp <= request->model->heads);
}

guint offers_most_tp(const SearchRequest *request)
{
    return MAX(request->fixed[AXIS_TP], request->model->heads);
}

/* A stage has a layer at least. */
gboolean offers_pp(const SearchRequest *request, guint pp)
{
    return offers_axis(request, AXIS_PP, pp) &&
           (request->fixed[AXIS_PP] != 0 || pp <= request->model->layers) &&
           (request->num_recompute <= 1 || request->num_recompute == pp);
}

/* Fewer tokens a rank than a tile of attention has are never worth an exchange. */
gboolean offers_cp(const SearchRequest *request, guint cp)
{
    enum { LEAST_TOKENS = 256 };
    const guint seq_len = search_seq_len(request);

    return offers_axis(request, AXIS_CP, cp) &&
           (request->fixed[AXIS_CP] != 0 || cp == 1 ||
            (seq_len / cp >= LEAST_TOKENS && seq_len % (2 * cp) == 0));
}

/* 1, and where there are experts all that divide them and the ranks among which they lie; one that
 * was asked for is tried, and refused there. */
gboolean offers_ep(const SearchRequest *request, const Layout *layout, guint ep)
{
    if (request->fixed_ep != 0)
        return request->fixed_ep == ep;
    return ep == 1 ||
           (request->model->experts.count % ep == 0 && layout_expert_block(layout) % ep == 0);
}

guint offers_most_ep(const SearchRequest *request)
{
    return MAX(request->fixed_ep, MAX(request->model->experts.count, 1));
}

gboolean offers_partly(const SearchRequest *request)
{
    return request->recompute < 0 && request->sort != SORT_MEMORY &&
           !framework_is_foreign(request->framework);
}
