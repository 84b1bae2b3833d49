/* On how many GPUs something fits. */
#include "sim/search/offers.h"
#include "sim/search/queue.h"
#include "sim/search/search.h"

#include <math.h>

static gboolean candidate_fits(const SearchRequest *request, const Candidates *found,
                               const Candidate *candidate)
{
    const PriceLimit limit = {.limit_s = INFINITY,
                              .stage = candidate->stage,
                              .summariser = candidates_summariser(found, 0),
                              .floor_bytes = candidate->floor_bytes};
    Plan *plan = plan_new();

    candidate_choose(request, candidate, plan);
    const gboolean fits = plan_price_below(plan, &limit) == PRICE_FITS;
    plan_free_borrowed(plan);
    return fits;
}

/* The candidates that need least are tried first; one that fits is enough.  With as few layers
 * computed again as fit, all of them is a candidate too, and needs less. */
static gboolean fits_on(const SearchRequest *request, guint gpus)
{
    g_autoptr(Candidates) found = candidates_find(request, gpus);
    g_autoptr(GArray) taken = g_array_new(FALSE, FALSE, sizeof(Candidate));
    gboolean fits = FALSE;
    Queue queue;

    queue_init(&queue, request, found, candidate_by_floor);
    do {
        g_array_set_size(taken, 0);
        queue_fill(&queue, 1, NULL, NULL);
        if (queue_take(&queue, 1, taken) == 0)
            break;
        const Candidate *candidate = &g_array_index(taken, Candidate, 0);
        fits = !candidate->partly && candidate_fits(request, found, candidate);
    } while (!fits);
    queue_clear(&queue);
    return fits;
}

/* Whether some tp leaves data-parallel ranks that divide the batch; more stages, or ranks that
 * share a sequence, only leave fewer of them. */
static gboolean batch_divides(const SearchRequest *request, guint gpus)
{
    const guint pp = MAX(request->fixed[AXIS_PP], 1), cp = MAX(request->fixed[AXIS_CP], 1);
    const guint most_pp = request->fixed[AXIS_PP] != 0 ? pp : request->model->layers;

    for (guint tp = 1; tp <= offers_most_tp(request); tp++)
        for (guint stages = pp; stages <= most_pp; stages++)
            if (gpus % (stages * cp * tp) == 0 && offers_tp(request, tp) &&
                request->global_batch % (gpus / (stages * cp * tp)) == 0)
                return TRUE;
    return FALSE;
}

guint search_most_gpus(const SearchRequest *request)
{
    return MIN(SEARCH_MOST_GPUS, topology_max_gpus(request->topology));
}

/* Counts in multiples of the fixed axes.  With a batch that was asked for, those that it allows are
 * tried one by one.  Else doubling finds a range, which is halved until it is short and then tried
 * one by one: more ranks need less apart from padding, and a number that divides the model's
 * dimensions has less of that than the next ones. */
guint search_smallest_gpus(const SearchRequest *request, guint from)
{
    enum { SHORT = 64 };
    const guint unit = search_fixed_ranks(request);
    const guint most = search_most_gpus(request) / unit;
    guint low = (MAX(from, 1) - 1) / unit + 1, high = 1;

    if (low > most)
        return 0;
    if (request->global_batch != 0) {
        for (guint n = low; n <= most; n++)
            if (batch_divides(request, n * unit) && fits_on(request, n * unit))
                return n * unit;
        return 0;
    }
    while (high < low) /* powers of two divide most dimensions */
        high *= 2;
    high = MIN(high, most);
    while (!fits_on(request, high * unit)) {
        if (high == most)
            return 0;
        low = high + 1;
        high = MIN(high * 2, most);
    }
    while (high - low > SHORT) {
        const guint middle = (low + high) / 2;

        if (fits_on(request, middle * unit))
            high = middle;
        else
            low = middle + 1;
    }
    while (low < high && !fits_on(request, low * unit))
        low++;
    return low * unit;
}

guint search_nearest_gpus(const SearchRequest *request, guint from, gboolean above)
{
    enum { MOST_TRIED = 64 };
    const guint unit = search_fixed_ranks(request), most = search_most_gpus(request) / unit;
    guint n = above ? from / unit + 1 : (from - 1) / unit;

    for (guint tried = 0; n >= 1 && n <= most && tried < MOST_TRIED; n += above ? 1 : -1u) {
        if (request->global_batch != 0 && !batch_divides(request, n * unit))
            continue;
        if (fits_on(request, n * unit))
            return n * unit;
        tried++;
    }
    return 0;
}
