#include "sim/search/search.h"

#include "sim/base/error.h"
#include "sim/base/parallel.h"
#include "sim/search/front.h"
#include "sim/search/offers.h"
#include "sim/search/price.h"
#include "sim/search/queue.h"
#include "sim/search/unit_choice.h"

#include <math.h>
#include <string.h>

guint search_seq_len(const SearchRequest *request)
{
    return request->seq_len != 0 ? request->seq_len : MIN(request->model->max_seq, 8192);
}

const guint16 *search_chunk_layers(const SearchRequest *request, guint chunks)
{
    return request->num_chunks != 0 ? request->chunk_layers
                                    : model_even_work(request->model, chunks);
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
    Candidates *found;
    Patterns *patterns;
    GArray *more;  /* Candidate: what candidates that were too large have led to */
    GArray *later; /* the same: those whose bound is their step */
    Front front;   /* of SORT_PARETO: of result->plans */
} Search;

static void reject(Search *search, Verdict verdict, const char *reason)
{
    search->result->rejected[verdict]++;
    if (search->result->example[verdict] == NULL)
        search->result->example[verdict] = g_strdup(reason);
}

static double plan_key(const SearchRequest *request, const Plan *plan)
{
    return request->sort == SORT_MEMORY ? (double)plan->prediction.memory_total : front_key_s(plan);
}

/* Of a key: steps that differ by less are sums of the same in another order. */
static const double rounding = 1e-10;

/* Equal by the key: the one that needs less of the other comes first. */
static gboolean goes_after(const SearchRequest *request, const Plan *listed, const Plan *plan)
{
    const double listed_key = plan_key(request, listed), key = plan_key(request, plan);

    if (fabs(listed_key - key) > rounding * key)
        return listed_key < key;
    if (listed->prediction.memory_total != plan->prediction.memory_total)
        return listed->prediction.memory_total < plan->prediction.memory_total;
    return listed->prediction.tokens_per_second >= plan->prediction.tokens_per_second;
}

static void insert_plan(const Search *search, Plan *plan)
{
    GPtrArray *plans = search->result->plans;
    guint at = 0;

    while (at < plans->len && goes_after(search->request, g_ptr_array_index(plans, at), plan))
        at++;
    g_ptr_array_insert(plans, (gint)at, plan);
}

/* Keeps the best `top` in order, or the front; takes.  Plans borrow model and topology until they
 * are listed. */
static void keep_plan(Search *search, Plan *plan)
{
    GPtrArray *plans = search->result->plans;

    if (search->request->sort == SORT_PARETO) {
        if (!front_add(&search->front, plan))
            plan_free_borrowed(plan);
        return;
    }
    insert_plan(search, plan);
    if (plans->len > search->request->top)
        g_ptr_array_remove_index(plans, plans->len - 1);
}

/* What a plan must not exceed to be listed; of a front it depends on memory. */
static double worst_key(const Search *search)
{
    const GPtrArray *plans = search->result->plans;

    if (plans->len < search->request->top || search->request->sort == SORT_PARETO)
        return INFINITY;
    return plan_key(search->request, g_ptr_array_index(plans, plans->len - 1));
}

/* With all that a rank holds. */
static double floor_of(const Search *search, const Candidate *candidate)
{
    return (double)(candidate->floor_bytes + search->framework_bytes);
}

/* Neither this candidate nor any after it can be among the best.  Where nothing overlaps bound and
 * step are one sum, added up in two orders: the last digits don't count. */
static gboolean is_excluded(gconstpointer data, const Candidate *candidate)
{
    const Search *search = data;
    const double worst = worst_key(search);

    if (search->request->sort == SORT_MEMORY)
        return floor_of(search, candidate) > worst;
    return candidate->bound_s * (1 - 1e-9) > worst;
}

/* Not in the front, whatever comes after it. */
static gboolean is_left_out(gconstpointer data, const Candidate *candidate)
{
    const Search *search = data;

    return front_leaves_out(&search->front, candidate->bound_s, floor_of(search, candidate));
}

/* Candidates that are priced at once: so many, on however many cores, that the same are priced
 * everywhere. */
enum { BATCH = 4 };

typedef struct {
    const Search *search;
    const Candidate *candidates;
    double limits[BATCH]; /* limit_of() each */
    double soon_s[BATCH]; /* 0, or of a sequence: what takes longer may be left out by then */
    Plan *plans[BATCH];
    PriceResult results[BATCH];
} Batch;

static gboolean is_too_slow(const Search *search, const Plan *plan, const PriceLimit *limit,
                            guint worker)
{
    return candidates_bound_s(search->found, plan, worker) * (1 - 1e-9) > limit->limit_s;
}

/* As few layers computed again as fit, if that can still be fast enough. */
static PriceResult price_partly(const Search *search, const Candidate *candidate, Plan *plan,
                                const PriceLimit *limit, guint worker)
{
    const Recompute recompute = (Recompute)candidate->recompute;
    const guint pp = plan->layout.size[AXIS_PP];
    g_autofree guint16 *layers = g_memdup2(candidate->recompute_layers, pp * sizeof *layers);

    if (limit->summariser != NULL)
        plan_raise_recompute(plan, recompute, limit->summariser, layers);
    plan_set_recompute(plan, recompute, layers, pp);
    if (is_too_slow(search, plan, limit, worker))
        return PRICE_TOO_SLOW;
    if (!plan_least_recompute(plan, recompute, layers))
        return PRICE_TOO_LARGE;
    return is_too_slow(search, plan, limit, worker) ? PRICE_TOO_SLOW
                                                    : plan_price_below(plan, limit);
}

/* The plan of candidate @i, priced. */
static Plan *price_one(const Batch *batch, guint i, gboolean explains, guint worker,
                       PriceResult *result)
{
    const Search *search = batch->search;
    const Candidate *candidate = &batch->candidates[i];
    const PriceLimit below = {
        .limit_s = search->request->sort == SORT_MEMORY
                       ? INFINITY
                       : batch->limits[i] * candidate->global_batch * (1 + rounding),
        .soon_s = explains ? 0 : batch->soon_s[i] * candidate->global_batch,
        .stage = candidate->stage,
        .explains = explains,
        .briefly = search->request->briefly,
        .summariser = candidates_summariser(search->found, worker),
        .floor_bytes = candidate->partly ? 0 : candidate->floor_bytes,
    };
    Plan *plan = plan_new();

    candidate_choose(search->request, candidate, plan);
    plan->patterns = search->patterns;
    *result = candidate->partly ? price_partly(search, candidate, plan, &below, worker)
                                : plan_price_below(plan, &below);
    return plan;
}

static void price_candidate(gpointer data, guint i, guint worker)
{
    Batch *batch = data;

    batch->plans[i] = price_one(batch, i, FALSE, worker, &batch->results[i]);
}

static const char slower[] =
    "a lower bound of its step time (or memory) is above the last plan that is listed";

/* Its floor fits, itself it does not: the stage that @plan says to be too large is that as long as
 * it computes nothing again. */
static void add_partly(Search *search, const Candidate *candidate, const Plan *plan)
{
    const guint stage = plan->prediction.rank / (plan->gpus / plan->layout.size[AXIS_PP]);

    if (!offers_partly(search->request) || candidate->recompute != RECOMPUTE_NONE)
        return;
    for (gint r = RECOMPUTE_NONE + 1; r < NUM_RECOMPUTES; r++) {
        const Candidate partly = candidate_partly(candidate, (Recompute)r, stage);

        g_array_append_val(search->more, partly);
        search->result->candidates++;
    }
}

/* What is the largest is asked of the first that is too large alone: to know takes long. */
static void reject_large(Search *search, const Batch *batch, guint i)
{
    PriceResult result;

    if (search->result->example[VERDICT_MEMORY] != NULL) {
        reject(search, VERDICT_MEMORY, g_ptr_array_index(batch->plans[i]->reasons, 0));
        return;
    }
    Plan *explained = price_one(batch, i, TRUE, 0, &result);
    g_assert(result == PRICE_TOO_LARGE);
    reject(search, VERDICT_MEMORY, g_ptr_array_index(explained->reasons, 0));
    plan_free_borrowed(explained);
}

static void take_priced(Search *search, const Batch *batch, guint i)
{
    const Candidate *candidate = &batch->candidates[i];
    Plan *plan = batch->plans[i];

    if (batch->results[i] == PRICE_FITS) {
        search->result->feasible++;
        keep_plan(search, plan);
        return;
    }
    if (batch->results[i] == PRICE_TOO_LARGE) {
        reject_large(search, batch, i);
        add_partly(search, candidate, plan);
        candidates_note_large(search->found, candidate);
        if (search->request->keeps_large && search->result->large == NULL && !candidate->partly) {
            search->result->large = plan;
            return;
        }
    } else if (batch->results[i] == PRICE_LATER) {
        Candidate later = *candidate;

        later.bound_s = front_key_s(plan);
        later.is_timed = TRUE;
        g_array_append_val(search->later, later);
    } else {
        reject(search, VERDICT_SLOWER, slower);
    }
    plan_free_borrowed(plan);
}

/* What a candidate must not exceed to be among the best. */
static double limit_of(const Search *search, const Candidate *candidate)
{
    return search->request->sort == SORT_PARETO
               ? front_limit_s(&search->front, floor_of(search, candidate))
               : worst_key(search);
}

/* Of a front: a step that long is not waited for, as plans that leave it out may be found first. */
static double soon_s(const Search *search, const Candidate *candidate, double frontier)
{
    return search->request->sort == SORT_PARETO && !candidate->is_timed && isfinite(frontier)
               ? frontier * (1 + SEARCH_FRONT_STEP)
               : 0;
}

/* Prices the first of @ready whose bounds are no more than @frontier; returns how many. */
static guint price_batch(Search *search, const GArray *ready, double frontier)
{
    Batch batch = {.search = search, .candidates = &g_array_index(ready, Candidate, 0)};
    guint count = 0;

    while (count < MIN(ready->len, BATCH) && batch.candidates[count].bound_s <= frontier &&
           !is_excluded(search, &batch.candidates[count])) {
        batch.limits[count] = limit_of(search, &batch.candidates[count]);
        batch.soon_s[count] = soon_s(search, &batch.candidates[count], frontier);
        count++;
    }
    if (count > 0)
        parallel_run(count, price_candidate, &batch);
    for (guint i = 0; i < count; i++)
        take_priced(search, &batch, i);
    return count;
}

/* ---- all that may be among the best ---- */

/* Brings the bounds of those from @first on closer and sorts them in. */
static void walk_ready(Search *search, GArray *ready, guint first)
{
    candidates_walk(search->found, search->request, &g_array_index(ready, Candidate, first),
                    ready->len - first);
    g_array_sort(ready, candidate_by_bound);
}

/* The next of those that are queued. */
static void walk_more(Search *search, Queue *queue, GArray *ready)
{
    enum { WALKS = 64 };
    const guint first = ready->len;

    queue_fill(queue, WALKS, is_excluded, search);
    if (queue_take(queue, WALKS, ready) > 0)
        walk_ready(search, ready, first);
}

static void reject_rest(Search *search, guint64 num)
{
    if (num > 0)
        reject(search, VERDICT_SLOWER, slower);
    if (num > 1)
        search->result->rejected[VERDICT_SLOWER] += num - 1;
}

static void show_progress(const Search *search, const Queue *queue, const GArray *ready)
{
    Progress *progress = search->request->progress;

    if (!progress_is_due(progress))
        return;
    const guint64 left = ready->len + queue_left(queue);
    progress_show(progress, 1 - (double)left / (double)MAX(search->found->legal, 1));
}

/* Those that plans found meanwhile leave out. */
static void drop_left_out(Search *search, GArray *candidates)
{
    guint kept = 0;

    for (guint i = 0; i < candidates->len; i++)
        if (!is_left_out(search, &g_array_index(candidates, Candidate, i)))
            g_array_index(candidates, Candidate, kept++) = g_array_index(candidates, Candidate, i);
    reject_rest(search, candidates->len - kept);
    g_array_set_size(candidates, kept);
}

/* Whatever is not yet priced has a bound of no less than the first of both. */
static void settle(Search *search, GArray *ready, double frontier)
{
    const double first_s = ready->len == 0 ? INFINITY : g_array_index(ready, Candidate, 0).bound_s;

    if (search->request->sort != SORT_PARETO)
        return;
    front_settle(&search->front, MIN(first_s, frontier));
    drop_left_out(search, ready);
}

/* What has come of candidates that were priced. */
static void take_back(Search *search, GArray *ready)
{
    const guint first = ready->len;

    if (search->more->len > 0) {
        g_array_append_vals(ready, search->more->data, search->more->len);
        g_array_set_size(search->more, 0);
        walk_ready(search, ready, first);
    }
    if (search->later->len > 0) {
        g_array_append_vals(ready, search->later->data, search->later->len);
        g_array_set_size(search->later, 0);
        g_array_sort(ready, candidate_by_bound);
    }
}

/* In the order of bounds, each candidate once its closer bound is the least of all; for a front up
 * to the slowest, which may be small. */
static void price_by_time(Search *search)
{
    g_autoptr(GArray) ready = g_array_new(FALSE, FALSE, sizeof(Candidate));
    Queue queue;
    guint count = 1;

    queue_init(&queue, search->request, search->found, candidate_by_bound);
    queue.drops = search->request->sort == SORT_PARETO ? is_left_out : NULL;
    queue.data = search;
    while (count > 0) {
        const Candidate *next = queue_first(&queue);
        const double frontier = next == NULL ? INFINITY : next->bound_s;

        show_progress(search, &queue, ready);
        settle(search, ready, frontier);
        if (next != NULL && !is_excluded(search, next) &&
            (ready->len < BATCH || g_array_index(ready, Candidate, BATCH - 1).bound_s > frontier)) {
            walk_more(search, &queue, ready);
            continue;
        }
        count = price_batch(search, ready, frontier);
        g_array_remove_range(ready, 0, count);
        take_back(search, ready);
    }
    settle(search, ready, INFINITY);
    reject_rest(search, ready->len + queue_left(&queue) + queue.dropped);
    queue_clear(&queue);
}

/* What needs least comes first: nothing is walked. */
static void price_by_memory(Search *search)
{
    g_autoptr(GArray) ready = g_array_new(FALSE, FALSE, sizeof(Candidate));
    Queue queue;
    guint count;

    queue_init(&queue, search->request, search->found, candidate_by_floor);
    do {
        queue_fill(&queue, BATCH, is_excluded, search);
        queue_take(&queue, BATCH - ready->len, ready);
        show_progress(search, &queue, ready);
        count = price_batch(search, ready, INFINITY);
        g_array_remove_range(ready, 0, count);
    } while (count > 0);
    reject_rest(search, ready->len + queue_left(&queue));
    queue_clear(&queue);
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

/* Few: by insertion, which keeps the order of equal ones. */
static void sort_plans(const SearchRequest *request, GPtrArray *plans)
{
    for (guint i = 1; i < plans->len; i++) {
        Plan *plan = g_ptr_array_index(plans, i);
        guint at = i;

        for (; at > 0 && !goes_after(request, g_ptr_array_index(plans, at - 1), plan); at--)
            plans->pdata[at] = plans->pdata[at - 1];
        plans->pdata[at] = plan;
    }
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
    sort_plans(search->request, plans);
    if (search->request->sort == SORT_PARETO)
        front_clean(&search->front);
}

/* The candidate that needs least of those that don't fit is priced to say what it would need. */
static Plan *closest_plan(const SearchRequest *request, Candidates *found)
{
    Plan *plan = plan_new();

    candidate_choose(request, candidates_least(found, request), plan);
    own(plan);
    plan_price(plan);
    return plan;
}

/* Straight lines may have been a little off, and floors may have refused all without pricing one.
 */
static void find_large(Search *search)
{
    SearchResult *result = search->result;

    if (result->large != NULL) {
        own(result->large);
        result->large->patterns = NULL;
        if (plan_price(result->large))
            g_clear_pointer(&result->large, plan_free);
    }
    if (result->large == NULL && result->closest == NULL &&
        search->found->rejected[VERDICT_MEMORY] > 0)
        result->large = closest_plan(search->request, search->found);
    if (result->large != NULL && result->large->reasons->len == 0)
        g_clear_pointer(&result->large, plan_free);
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
    g_autoptr(GArray) later = g_array_new(FALSE, FALSE, sizeof(Candidate));
    g_autoptr(Patterns) patterns = patterns_new();
    Search search = {
        .request = request, .result = result, .patterns = patterns, .more = more, .later = later};
    g_autoptr(Candidates) found = candidates_find(request, search_gpus(request));

    result->plans = g_ptr_array_new_with_free_func((GDestroyNotify)plan_free_borrowed);
    search.front.plans = result->plans;
    for (guint v = 0; v < NUM_VERDICTS; v++)
        result->example[v] = g_steal_pointer(&found->example[v]);
    search.framework_bytes = found->framework_bytes;
    search.found = found;
    if (request->sort == SORT_MEMORY)
        price_by_memory(&search);
    else
        price_by_time(&search);
    result->candidates += found->legal;
    for (guint v = 0; v < NUM_VERDICTS; v++)
        result->rejected[v] += found->rejected[v];
    progress_hide(request->progress);
    price_listed(&search, found);
    if (found->legal == 0)
        say_none_offered(request, result);
    else if (result->plans->len == 0)
        result->closest = closest_plan(request, found);
    if (request->keeps_large)
        find_large(&search);
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
    plan_free(result->large);
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
