#include "sim/search/search.h"

#include "sim/base/error.h"
#include "sim/base/parallel.h"
#include "sim/search/candidates.h"
#include "sim/search/price.h"
#include "sim/search/unit_choice.h"

#include <math.h>
#include <string.h>

guint search_seq_len(const SearchRequest *request)
{
    return request->seq_len != 0 ? request->seq_len : MIN(request->model->max_seq, 8192);
}

guint search_gpus(const SearchRequest *request)
{
    return request->gpus != 0 ? request->gpus
                              : request->topology->nodes * request->topology->gpus_per_node;
}

/* ---- the best ---- */

typedef struct {
    const SearchRequest *request;
    SearchResult *result;
    guint64 framework_bytes;
    const Candidates *found;
    Patterns *patterns;
    GArray *more; /* Candidate: what candidates that were too large have led to */
} Search;

static void reject(Search *search, Verdict verdict, const char *reason)
{
    search->result->rejected[verdict]++;
    if (search->result->example[verdict] == NULL)
        search->result->example[verdict] = g_strdup(reason);
}

static double plan_key(const SearchRequest *request, const Plan *plan)
{
    return request->sort == SORT_MEMORY
               ? (double)plan->prediction.memory_total
               : plan->prediction.step_seconds / plan->workload.global_batch;
}

/* Equal by the key: the one that needs less of the other comes first. */
static gboolean goes_after(const SearchRequest *request, const Plan *listed, const Plan *plan)
{
    const double listed_key = plan_key(request, listed), key = plan_key(request, plan);

    if (listed_key != key)
        return listed_key < key;
    if (listed->prediction.memory_total != plan->prediction.memory_total)
        return listed->prediction.memory_total < plan->prediction.memory_total;
    return listed->prediction.tokens_per_second >= plan->prediction.tokens_per_second;
}

/* Plans borrow model and topology until they are listed. */
static void borrowed_plan_free(Plan *plan)
{
    plan->model = NULL;
    plan->topology = NULL;
    plan_free(plan);
}

/* Keeps the best `top` in order; takes. */
static void keep_plan(const Search *search, Plan *plan)
{
    GPtrArray *plans = search->result->plans;
    guint at = 0;

    while (at < plans->len && goes_after(search->request, g_ptr_array_index(plans, at), plan))
        at++;
    g_ptr_array_insert(plans, (gint)at, plan);
    if (plans->len > search->request->top)
        borrowed_plan_free(g_ptr_array_steal_index(plans, plans->len - 1));
}

static gint by_bound(gconstpointer a, gconstpointer b)
{
    const Candidate *left = a, *right = b;

    if (left->bound_s != right->bound_s)
        return left->bound_s < right->bound_s ? -1 : 1;
    return left->order < right->order ? -1 : left->order > right->order;
}

static gint by_floor(gconstpointer a, gconstpointer b)
{
    const Candidate *left = a, *right = b;

    if (left->floor_bytes != right->floor_bytes)
        return left->floor_bytes < right->floor_bytes ? -1 : 1;
    return left->order < right->order ? -1 : left->order > right->order;
}

/* What a plan must not exceed to be listed. */
static double worst_key(const Search *search)
{
    const GPtrArray *plans = search->result->plans;

    if (plans->len < search->request->top)
        return INFINITY;
    return plan_key(search->request, g_ptr_array_index(plans, plans->len - 1));
}

/* Neither this candidate nor any after it can be among the best.  Where nothing overlaps bound and
 * step are one sum, added up in two orders: the last digits don't count. */
static gboolean is_excluded(const Search *search, const Candidate *candidate)
{
    const double worst = worst_key(search);

    if (search->request->sort == SORT_MEMORY)
        return (double)(candidate->floor_bytes + search->framework_bytes) > worst;
    return candidate->bound_s * (1 - 1e-9) > worst;
}

/* Candidates that are priced at once: so many, on however many cores, that the same are priced
 * everywhere. */
enum { BATCH = 4 };

typedef struct {
    const SearchRequest *request;
    const Candidates *found;
    const Candidate *candidates;
    Patterns *patterns;
    double limit;      /* worst_key() */
    gboolean explains; /* no plan that is too large has been explained yet */
    Plan *plans[BATCH];
    PriceResult results[BATCH];
} Batch;

static gboolean is_too_slow(const Batch *batch, const Plan *plan, const PriceLimit *limit,
                            guint worker)
{
    return candidates_bound_s(batch->found, plan, worker) * (1 - 1e-9) > limit->limit_s;
}

/* As few layers computed again as fit, if that can still be fast enough. */
static PriceResult price_partly(const Batch *batch, const Candidate *candidate, Plan *plan,
                                const PriceLimit *limit, guint worker)
{
    const Recompute recompute = (Recompute)candidate->recompute;
    const guint pp = plan->layout.size[AXIS_PP];
    g_autofree guint16 *layers = g_memdup2(candidate->recompute_layers, pp * sizeof *layers);

    if (limit->summariser != NULL)
        plan_raise_recompute(plan, recompute, limit->summariser, layers);
    plan_set_recompute(plan, recompute, layers, pp);
    if (is_too_slow(batch, plan, limit, worker))
        return PRICE_TOO_SLOW;
    if (!plan_least_recompute(plan, recompute, layers))
        return PRICE_TOO_LARGE;
    return is_too_slow(batch, plan, limit, worker) ? PRICE_TOO_SLOW : plan_price_below(plan, limit);
}

static void price_candidate(gpointer data, guint i, guint worker)
{
    Batch *batch = data;
    const Candidate *candidate = &batch->candidates[i];
    const PriceLimit limit = {
        .limit_s = batch->request->sort == SORT_MEMORY
                       ? INFINITY
                       : batch->limit * candidate->global_batch * (1 + 1e-12),
        .stage = candidate->stage,
        .explains = batch->explains,
        .briefly = batch->request->briefly,
        .summariser = candidates_summariser(batch->found, worker),
        .floor_bytes = candidate->partly ? 0 : candidate->floor_bytes,
    };

    batch->plans[i] = plan_new();
    candidate_choose(batch->request, candidate, batch->plans[i]);
    batch->plans[i]->patterns = batch->patterns;
    batch->results[i] = candidate->partly
                            ? price_partly(batch, candidate, batch->plans[i], &limit, worker)
                            : plan_price_below(batch->plans[i], &limit);
}

static const char slower[] =
    "a lower bound of its step time (or memory) is above the last plan that is listed";

/* Its floor fits, itself it does not: the stage that @plan says to be too large is that as long as
 * it computes nothing again. */
static void add_partly(Search *search, const Candidate *candidate, const Plan *plan)
{
    const guint stage = plan->prediction.rank / (plan->gpus / plan->layout.size[AXIS_PP]);

    if (!candidates_offer_partly(search->request) || candidate->recompute != RECOMPUTE_NONE)
        return;
    for (gint r = RECOMPUTE_NONE + 1; r < NUM_RECOMPUTES; r++) {
        const Candidate partly = candidate_partly(candidate, (Recompute)r, stage);

        g_array_append_val(search->more, partly);
        search->result->candidates++;
    }
}

static void take_priced(Search *search, const Candidate *candidate, Plan *plan, PriceResult result)
{
    if (result == PRICE_FITS) {
        search->result->feasible++;
        keep_plan(search, plan);
        return;
    }
    if (result == PRICE_TOO_LARGE) {
        reject(search, VERDICT_MEMORY, g_ptr_array_index(plan->reasons, 0));
        add_partly(search, candidate, plan);
    } else {
        reject(search, VERDICT_SLOWER, slower);
    }
    borrowed_plan_free(plan);
}

/* Prices the first of @ready whose bounds are no more than @frontier; returns how many. */
static guint price_batch(Search *search, const GArray *ready, double frontier)
{
    Batch batch = {.request = search->request,
                   .found = search->found,
                   .candidates = &g_array_index(ready, Candidate, 0),
                   .patterns = search->patterns,
                   .limit = worst_key(search),
                   .explains = search->result->example[VERDICT_MEMORY] == NULL};
    guint count = 0;

    while (count < MIN(ready->len, BATCH) && batch.candidates[count].bound_s <= frontier &&
           !is_excluded(search, &batch.candidates[count]))
        count++;
    if (count > 0)
        parallel_run(count, price_candidate, &batch);
    for (guint i = 0; i < count; i++)
        take_priced(search, &batch.candidates[i], batch.plans[i], batch.results[i]);
    return count;
}

/* Brings the bounds of @num candidates closer and sorts them in. */
static void add_ready(const Search *search, const Candidate *candidates, guint num, GArray *ready)
{
    const guint first = ready->len;

    g_array_append_vals(ready, candidates, num);
    candidates_walk(search->found, search->request, &g_array_index(ready, Candidate, first), num);
    g_array_sort(ready, by_bound);
}

/* The next of those that were listed; returns how many. */
static guint walk_more(const Search *search, guint walked, GArray *ready)
{
    enum { WALKS = 64 };
    const GArray *listed = search->found->listed;
    const guint num = MIN(listed->len - walked, WALKS);

    add_ready(search, &g_array_index(listed, Candidate, walked), num, ready);
    return num;
}

static void reject_rest(Search *search, guint num)
{
    if (num > 0)
        reject(search, VERDICT_SLOWER, slower);
    if (num > 1)
        search->result->rejected[VERDICT_SLOWER] += num - 1;
}

/* In the order of bounds, each candidate once its closer bound is the least of all. */
static void price_by_time(Search *search, const Candidates *found)
{
    g_autoptr(GArray) ready = g_array_new(FALSE, FALSE, sizeof(Candidate));
    GArray *listed = found->listed;
    guint walked = 0, count = 1;

    g_array_sort(listed, by_bound);
    while (count > 0) {
        const Candidate *next =
            walked == listed->len ? NULL : &g_array_index(listed, Candidate, walked);
        const double frontier = next == NULL ? INFINITY : next->bound_s;

        if (next != NULL && !is_excluded(search, next) &&
            (ready->len < BATCH || g_array_index(ready, Candidate, BATCH - 1).bound_s > frontier)) {
            walked += walk_more(search, walked, ready);
            continue;
        }
        count = price_batch(search, ready, frontier);
        g_array_remove_range(ready, 0, count);
        if (search->more->len == 0)
            continue;
        add_ready(search, &g_array_index(search->more, Candidate, 0), search->more->len, ready);
        g_array_set_size(search->more, 0);
    }
    reject_rest(search, ready->len + listed->len - walked);
}

/* What needs least comes first: nothing is walked. */
static void price_by_memory(Search *search, GArray *listed)
{
    guint count;

    g_array_sort(listed, by_floor);
    while ((count = price_batch(search, listed, INFINITY)) > 0)
        g_array_remove_range(listed, 0, count);
    reject_rest(search, listed->len);
}

/* ---- the list ---- */

/* Gives a plan a model and a topology of its own. */
static void own(Plan *plan)
{
    const Model *model = plan->model;
    g_autofree char *topology = topology_print(plan->topology);
    const char *name = plan->topology->name;

    if (plan->schedule.chunk_layers != NULL)
        plan->schedule.chunk_layers = plan->chunk_layers = g_memdup2(
            plan->schedule.chunk_layers,
            schedule_chunks(&plan->schedule, plan->layout.size[AXIS_PP]) * sizeof(guint16));
    plan->model = model_parse(model->config_text, model->name, model->name, NULL);
    plan->topology = topology_parse(topology, name, "", NULL);
    g_assert(plan->model != NULL && plan->topology != NULL); /* they were parsed before */
}

static gint by_plan_key(gconstpointer a, gconstpointer b, gpointer request)
{
    const double left = plan_key(request, *(Plan *const *)a);
    const double right = plan_key(request, *(Plan *const *)b);

    return left < right ? -1 : left > right;
}

static void price_plan(gpointer data, guint i, guint worker)
{
    const Search *all = data;
    Plan *plan = g_ptr_array_index(all->result->plans, i);

    (void)worker;
    own(plan);
    if (plan->ops == 0 && all->request->briefly)
        plan_price_briefly(plan);
    else if (plan->ops == 0)
        plan_price(plan);
    plan->patterns = NULL;
}

/* Those that are listed are priced to the last micro-batch; the straight line may be a little off.
 */
static void price_listed(Search *search, const Candidates *found)
{
    GPtrArray *plans = search->result->plans;

    parallel_run(plans->len, price_plan, search);
    g_ptr_array_set_free_func(plans, (GDestroyNotify)plan_free);
    for (guint i = plans->len; i-- > 0;) {
        const Plan *plan = g_ptr_array_index(plans, i);

        if (plan->reasons->len == 0)
            continue;
        search->result->feasible--;
        reject(search, VERDICT_MEMORY, g_ptr_array_index(plan->reasons, 0));
        g_ptr_array_remove_index(plans, i);
    }
    unit_choice_refine(search->request, found, plans);
    g_ptr_array_sort_with_data(plans, by_plan_key, (gpointer)search->request);
}

/* Nothing fits: the candidate that needs least is priced to say what it would need. */
static Plan *closest_plan(const SearchRequest *request, const Candidates *found)
{
    Plan *plan = plan_new();

    candidate_choose(request, &found->least, plan);
    own(plan);
    plan_price(plan);
    return plan;
}

guint search_fixed_ranks(const SearchRequest *request)
{
    guint64 ranks = 1;

    for (guint a = 0; a < NUM_AXES; a++)
        ranks = MIN(ranks * MAX(request->fixed[a], 1), G_MAXUINT);
    return (guint)ranks;
}

/* Why no choice was even offered: none was refused that could say it. */
static void say_none_offered(const SearchRequest *request, SearchResult *result)
{
    const guint gpus = search_gpus(request), unit = search_fixed_ranks(request);
    const Verdict verdict = gpus % unit != 0 ? VERDICT_MESH : VERDICT_PIPELINE;

    for (guint v = 0; v < NUM_VERDICTS; v++)
        if (result->rejected[v] > 0)
            return;
    if (verdict == VERDICT_MESH)
        result->example[verdict] = g_strdup_printf(
            "%u GPUs are not a multiple of %u, the product of the axes that are fixed", gpus, unit);
    else if (request->num_recompute > 1)
        result->example[verdict] = g_strdup_printf(
            "recompute: layers of %u stages are given; pp must be that many, and divide the GPUs",
            request->num_recompute);
    else if (request->num_chunks != 0)
        result->example[verdict] = g_strdup_printf(
            "stages: %u are given; pp x virtual_stages must be that many", request->num_chunks);
    result->rejected[verdict] = result->example[verdict] != NULL;
}

SearchResult *search(const SearchRequest *request)
{
    const gint64 start = g_get_monotonic_time();
    SearchResult *result = g_new0(SearchResult, 1);
    g_autoptr(GArray) more = g_array_new(FALSE, FALSE, sizeof(Candidate));
    g_autoptr(Patterns) patterns = patterns_new();
    Search search = {.request = request, .result = result, .patterns = patterns, .more = more};
    g_autoptr(Candidates) found = candidates_find(request, search_gpus(request));

    result->plans = g_ptr_array_new();
    result->candidates = found->legal;
    for (guint v = 0; v < NUM_VERDICTS; v++) {
        result->rejected[v] = found->rejected[v];
        result->example[v] = g_steal_pointer(&found->example[v]);
    }
    search.framework_bytes = found->framework_bytes;
    search.found = found;
    if (request->sort == SORT_MEMORY)
        price_by_memory(&search, found->listed);
    else
        price_by_time(&search, found);
    price_listed(&search, found);
    if (found->legal == 0)
        say_none_offered(request, result);
    else if (result->plans->len == 0)
        result->closest = closest_plan(request, found);
    result->seconds = (double)(g_get_monotonic_time() - start) / 1e6;
    return result;
}

void search_result_free(SearchResult *result)
{
    if (result == NULL)
        return;
    for (guint v = 0; v < NUM_VERDICTS; v++)
        g_free(result->example[v]);
    g_ptr_array_unref(result->plans);
    plan_free(result->closest);
    g_free(result);
}

/* ---- one layout ---- */

Plan *search_estimate(const SearchRequest *request, GError **error)
{
    SearchRequest one = *request;
    guint gpus = 1;

    for (guint a = 0; a < NUM_AXES; a++)
        gpus *= one.fixed[a] = MAX(one.fixed[a], 1);
    one.fixed_ep = MAX(one.fixed_ep, 1);
    if (one.num_recompute > 1 && one.num_recompute != one.fixed[AXIS_PP]) {
        fail(error, ERROR_INPUT, "recompute: layers of %u stages, but pp = %u", one.num_recompute,
             one.fixed[AXIS_PP]);
        return NULL;
    }
    one.gpus = gpus;
    one.top = 1;
    /* Without a strategy, those that the mesh allows compete, as in search; with one rank all can.
     */
    g_autoptr(SearchResult) result = search(&one);
    if (result->plans->len > 0)
        return g_ptr_array_steal_index(result->plans, 0);
    if (result->closest != NULL)
        return g_steal_pointer(&result->closest);
    for (guint v = 0; v < NUM_VERDICTS; v++) {
        if (result->example[v] == NULL)
            continue;
        fail(error, ERROR_INFEASIBLE, "illegal layout: %s", result->example[v]);
        return NULL;
    }
    fail(error, ERROR_INFEASIBLE,
         "illegal layout: no strategy is legal on this mesh; legal are no_shard with dp_shard = 1, "
         "shard_optimizer, shard_grad_op and full_shard with any dp_shard, hybrid_shard with "
         "dp_replicate > 1");
    return NULL;
}

/* ---- how many GPUs ---- */

/* The candidates that need least are tried first; one that fits is enough. */
static gboolean fits_on(const SearchRequest *request, guint gpus)
{
    g_autoptr(Candidates) found = candidates_find(request, gpus);
    gboolean fits = FALSE;

    g_array_sort(found->listed, by_floor);
    for (guint i = 0; i < found->listed->len && !fits; i++) {
        const Candidate *candidate = &g_array_index(found->listed, Candidate, i);
        const PriceLimit limit = {.limit_s = INFINITY,
                                  .stage = candidate->stage,
                                  .summariser = candidates_summariser(found, 0),
                                  .floor_bytes = candidate->floor_bytes};

        if (candidate->partly) /* all of it is a candidate too, and needs less */
            continue;
        Plan *plan = plan_new();
        candidate_choose(request, candidate, plan);
        fits = plan_price_below(plan, &limit) == PRICE_FITS;
        borrowed_plan_free(plan);
    }
    return fits;
}

/* Whether some tp leaves data-parallel ranks that divide the batch; more stages, or ranks that
 * share a sequence, only leave fewer of them. */
static gboolean batch_divides(const SearchRequest *request, guint gpus)
{
    const guint pp = MAX(request->fixed[AXIS_PP], 1), cp = MAX(request->fixed[AXIS_CP], 1);
    const guint most_pp = request->fixed[AXIS_PP] != 0 ? pp : request->model->layers;

    for (guint tp = 1; tp <= candidates_most_tp(request); tp++)
        for (guint stages = pp; stages <= most_pp; stages++)
            if (gpus % (stages * cp * tp) == 0 && candidates_offer_tp(request, tp) &&
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
