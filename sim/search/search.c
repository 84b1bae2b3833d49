#include "sim/search/search.h"

#include "sim/base/error.h"
#include "sim/search/price.h"
#include "sim/summary/summary.h"

#include <string.h>

/* A complete choice and what its summary says. */
typedef struct {
    Layout layout;
    Strategy strategy;
    Schedule schedule;
    ContextKind context;
    guint global_batch;
    Summary summary;
    guint order; /* of enumeration: makes ties deterministic */
} Candidate;

typedef struct {
    const SearchRequest *request;
    SearchResult *result;
    GArray *candidates; /* Candidate that passed legality */
    guint gpus;
    Summariser *summariser;
} Search;

guint search_seq_len(const SearchRequest *request)
{
    return request->seq_len != 0 ? request->seq_len : MIN(request->model->max_seq, 8192);
}

guint search_gpus(const SearchRequest *request)
{
    return request->gpus != 0 ? request->gpus
                              : request->topology->nodes * request->topology->gpus_per_node;
}

/* ---- candidates ---- */

/* The candidate as a plan that borrows model and topology: for what only reads one. */
static Plan borrowed_plan(const SearchRequest *request, const Candidate *candidate)
{
    Plan plan = {
        .model = (Model *)request->model,
        .topology = (Topology *)request->topology,
        .workload = {candidate->global_batch, search_seq_len(request), request->recipe,
                     request->optimizer},
        .layout = candidate->layout,
        .sharding = request->sharding,
        .schedule = candidate->schedule,
        .sequence_parallel = request->sequence_parallel,
        .context = candidate->context,
    };

    plan.sharding.strategy = candidate->strategy;
    sharding_normalise(&plan.sharding, &plan.layout, &plan.schedule);
    plan_set_target(&plan);
    return plan;
}

/* The same with copies of its own. */
static Plan *candidate_plan(const SearchRequest *request, const Candidate *candidate)
{
    Plan *plan = plan_new();
    GPtrArray *reasons = plan->reasons;
    GArray *stages = plan->stages;
    const Model *model = request->model;
    g_autofree char *topology = topology_print(request->topology);

    *plan = borrowed_plan(request, candidate);
    plan->reasons = reasons;
    plan->stages = stages;
    if (candidate->schedule.chunk_layers != NULL)
        plan->schedule.chunk_layers = plan->chunk_layers =
            g_memdup2(request->chunk_layers, request->num_chunks * sizeof(guint16));
    plan->model = model_parse(model->config_text, model->name, model->name, NULL);
    plan->topology = topology_parse(topology, request->topology->name, "", NULL);
    g_assert(plan->model != NULL && plan->topology != NULL); /* they were parsed before */
    return plan;
}

static void reject(Search *search, Verdict verdict, char *reason)
{
    search->result->rejected[verdict]++;
    if (search->result->example[verdict] == NULL)
        search->result->example[verdict] = reason;
    else
        g_free(reason);
}

static void add_candidate(Search *search, Candidate candidate)
{
    const Plan plan = borrowed_plan(search->request, &candidate);
    const Choice choice = plan_choice(&plan);
    char *reason = NULL;
    const Verdict verdict = legality_check(&choice, &reason);

    if (verdict != VERDICT_OK) {
        reject(search, verdict, reason);
        return;
    }
    const ProgramSpec spec = plan_spec(&plan);
    const SimulateContext context = plan_context(&plan);
    candidate.order = search->candidates->len;
    if (search->summariser == NULL)
        search->summariser = summariser_new(&context);
    candidate.summary = summarise(search->summariser, &spec);
    search->result->candidates++;
    g_array_append_val(search->candidates, candidate);
}

static void add_recomputes(Search *search, Candidate candidate)
{
    const SearchRequest *request = search->request;

    for (gint r = 0; r < NUM_RECOMPUTES; r++) {
        candidate.schedule.recompute = (Recompute)r;
        if (request->recompute < 0 || request->recompute == r)
            add_candidate(search, candidate);
    }
}

/* A rank's batch is cut into each micro-batch that divides it. */
static void add_micro_batches(Search *search, Candidate candidate)
{
    const SearchRequest *request = search->request;
    const guint ranks = layout_data_ranks(&candidate.layout);
    const guint micro = MAX(request->micro_batch, 1);
    const guint batch = request->global_batch != 0 ? request->global_batch : ranks * micro;
    const guint rank_batch = batch / ranks;

    candidate.global_batch = batch;
    if (request->micro_batch != 0 || batch % ranks != 0) {
        candidate.schedule.micro_batch = micro;
        candidate.schedule.micro_batches = MAX(rank_batch / micro, 1);
        add_recomputes(search, candidate);
        return;
    }
    for (guint m = 1; m <= rank_batch; m++) {
        if (rank_batch % m != 0)
            continue;
        candidate.schedule.micro_batch = m;
        candidate.schedule.micro_batches = rank_batch / m;
        add_recomputes(search, candidate);
    }
}

/* With one stage the order is plain; a schedule that was asked for is tried and refused there. */
static gboolean is_schedule_offered(const SearchRequest *request, guint pp, ScheduleKind kind)
{
    if (request->schedule >= 0)
        return request->schedule == (gint)kind;
    return pp > 1 || kind == SCHEDULE_1F1B;
}

static gboolean is_cut_evenly(const SearchRequest *request, guint chunks)
{
    return chunks <= request->model->layers && request->model->layers % chunks == 0;
}

static void add_schedules(Search *search, Candidate candidate)
{
    const SearchRequest *request = search->request;
    const guint pp = candidate.layout.size[AXIS_PP];

    for (gint k = 0; k < NUM_SCHEDULES; k++) {
        const gboolean several = k == SCHEDULE_INTERLEAVED;
        const guint most = request->virtual_stages != 0 ? request->virtual_stages
                           : several                    ? MAX(request->model->layers / pp, 2)
                                                        : 1;

        if (!is_schedule_offered(request, pp, (ScheduleKind)k))
            continue;
        candidate.schedule.kind = (ScheduleKind)k;
        for (guint v = several ? 2 : 1; v <= most; v++) {
            if (request->virtual_stages != 0 ? v != request->virtual_stages
                                             : several && v > 2 && !is_cut_evenly(request, pp * v))
                continue;
            candidate.schedule.virtual_stages = v;
            if (request->num_chunks == pp * v)
                candidate.schedule.chunk_layers = request->chunk_layers;
            if (request->num_chunks == 0 || request->num_chunks == pp * v)
                add_micro_batches(search, candidate);
        }
    }
}

/* How attention crosses ranks matters only where there are several. */
static void add_contexts(Search *search, Candidate candidate)
{
    const SearchRequest *request = search->request;

    for (gint k = 0; k < NUM_CONTEXT_KINDS; k++) {
        candidate.context = (ContextKind)k;
        if (request->context >= 0 ? request->context == k
                                  : k == CONTEXT_RING || candidate.layout.size[AXIS_CP] > 1)
            add_schedules(search, candidate);
    }
}

/* Sharding over one rank is what no_shard does with more copies: offered only when asked for. */
static gboolean is_offered(const SearchRequest *request, const Layout *layout, Strategy strategy)
{
    const guint shard = layout->size[AXIS_DP_SHARD];
    const gboolean replicated = layout->size[AXIS_DP_REPLICATE] > 1;
    const Strategy named =
        strategy == STRATEGY_FULL_SHARD && replicated ? STRATEGY_HYBRID_SHARD : strategy;

    if (request->strategy >= 0)
        return named == (Strategy)request->strategy || strategy == (Strategy)request->strategy;
    if (strategy == STRATEGY_HYBRID_SHARD) /* enumerated as full_shard */
        return FALSE;
    return (strategy == STRATEGY_NO_SHARD) == (shard == 1);
}

static gboolean is_free(const SearchRequest *request, Axis axis, guint size)
{
    return request->fixed[axis] == 0 || request->fixed[axis] == size;
}

static void add_mesh(Search *search, const Layout *layout)
{
    const SearchRequest *request = search->request;
    Candidate candidate = {.layout = *layout};

    for (guint s = 0; s < NUM_STRATEGIES; s++) {
        candidate.strategy = (Strategy)s;
        if (is_offered(request, &candidate.layout, candidate.strategy))
            add_contexts(search, candidate);
    }
}

/* Wider than the fastest link joins is never worth it: two exchanges a half block over the next
 * one. */
static gboolean is_tp_offered(const SearchRequest *request, guint tp)
{
    const NetworkLevel *inner = &g_array_index(request->topology->networks, NetworkLevel, 0);

    if (request->fixed[AXIS_TP] != 0)
        return request->fixed[AXIS_TP] == tp;
    return tp <= request->model->heads && (inner->span == 0 || tp <= inner->span);
}

static guint most_tp(const SearchRequest *request)
{
    return MAX(request->fixed[AXIS_TP], request->model->heads);
}

/* A stage has a layer at least. */
static gboolean is_pp_offered(const SearchRequest *request, guint pp)
{
    return is_free(request, AXIS_PP, pp) &&
           (request->fixed[AXIS_PP] != 0 || pp <= request->model->layers);
}

/* Fewer tokens a rank than a tile of attention has are never worth an exchange. */
static gboolean is_cp_offered(const SearchRequest *request, guint cp)
{
    enum { LEAST_TOKENS = 256 };
    const guint seq_len = search_seq_len(request);

    return is_free(request, AXIS_CP, cp) &&
           (request->fixed[AXIS_CP] != 0 || cp == 1 ||
            (seq_len / cp >= LEAST_TOKENS && seq_len % (2 * cp) == 0));
}

static void add_data_axes(Search *search, Layout layout, guint gpus)
{
    for (guint shard = 1; shard <= gpus; shard++) {
        if (gpus % shard != 0 || !is_free(search->request, AXIS_DP_SHARD, shard) ||
            !is_free(search->request, AXIS_DP_REPLICATE, gpus / shard))
            continue;
        layout.size[AXIS_DP_SHARD] = shard;
        layout.size[AXIS_DP_REPLICATE] = gpus / shard;
        add_mesh(search, &layout);
    }
}

static void add_outer_axes(Search *search, Layout layout, guint gpus)
{
    for (guint pp = 1; pp <= gpus; pp++) {
        if (gpus % pp != 0 || !is_pp_offered(search->request, pp))
            continue;
        layout.size[AXIS_PP] = pp;
        for (guint cp = 1; cp <= gpus / pp; cp++) {
            if (gpus / pp % cp != 0 || !is_cp_offered(search->request, cp))
                continue;
            layout.size[AXIS_CP] = cp;
            add_data_axes(search, layout, gpus / pp / cp);
        }
    }
}

static void enumerate(Search *search)
{
    Layout layout = {0};

    for (guint tp = 1; tp <= most_tp(search->request); tp++) {
        if (search->gpus % tp != 0 || !is_tp_offered(search->request, tp))
            continue;
        layout.size[AXIS_TP] = tp;
        add_outer_axes(search, layout, search->gpus / tp);
    }
}

/* ---- pricing ---- */

/* Layouts of different batches compare by the time of a sequence: with no batch asked for, each has
 * one micro-batch a data-parallel rank. */
static double bound_per_sequence_s(const Candidate *candidate)
{
    return candidate->summary.bound_s / candidate->global_batch;
}

static gint by_bound(gconstpointer a, gconstpointer b)
{
    const Candidate *left = a, *right = b;

    const double left_s = bound_per_sequence_s(left), right_s = bound_per_sequence_s(right);

    if (left_s != right_s)
        return left_s < right_s ? -1 : 1;
    return left->order < right->order ? -1 : left->order > right->order;
}

static gint by_floor(gconstpointer a, gconstpointer b)
{
    const Candidate *left = a, *right = b;

    if (left->summary.floor_bytes != right->summary.floor_bytes)
        return left->summary.floor_bytes < right->summary.floor_bytes ? -1 : 1;
    return left->order < right->order ? -1 : left->order > right->order;
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

/* Keeps the best `top` in order. */
static void keep_plan(const Search *search, Plan *plan)
{
    GPtrArray *plans = search->result->plans;
    guint at = 0;

    while (at < plans->len && goes_after(search->request, g_ptr_array_index(plans, at), plan))
        at++;
    g_ptr_array_insert(plans, (gint)at, plan);
    if (plans->len > search->request->top)
        g_ptr_array_set_size(plans, (gint)search->request->top);
}

/* A bound of what a candidate needs: its arena is never smaller than the floor. */
static guint64 least_memory(const Search *search, const Candidate *candidate, guint64 *limit)
{
    const Plan plan = borrowed_plan(search->request, candidate);

    *limit = plan_memory_limit(&plan);
    return candidate->summary.floor_bytes + plan_framework_bytes(&plan);
}

static gboolean exceeds_floor(const Search *search, const Candidate *candidate)
{
    guint64 limit;

    return least_memory(search, candidate, &limit) > limit;
}

/* Neither this candidate nor any after it can be among the best.  Where nothing overlaps bound and
 * step are one sum, added up in two orders: the last digits don't count. */
static gboolean is_excluded(const Search *search, const Candidate *candidate)
{
    const GPtrArray *plans = search->result->plans;
    guint64 limit;

    if (plans->len < search->request->top)
        return FALSE;
    const double worst = plan_key(search->request, g_ptr_array_index(plans, plans->len - 1));
    if (search->request->sort == SORT_MEMORY)
        return (double)least_memory(search, candidate, &limit) > worst;
    return bound_per_sequence_s(candidate) * (1 - 1e-9) > worst;
}

static void price_candidate(Search *search, const Candidate *candidate)
{
    SearchResult *result = search->result;
    Plan *plan = candidate_plan(search->request, candidate);

    if (plan_price_steady(plan)) {
        result->feasible++;
        keep_plan(search, plan);
        return;
    }
    reject(search, VERDICT_MEMORY, g_strdup(g_ptr_array_index(plan->reasons, 0)));
    plan_free(plan);
}

static void price_all(Search *search)
{
    g_array_sort(search->candidates, search->request->sort == SORT_MEMORY ? by_floor : by_bound);
    for (guint i = 0; i < search->candidates->len; i++) {
        const Candidate *candidate = &g_array_index(search->candidates, Candidate, i);

        if (is_excluded(search, candidate))
            reject(search, VERDICT_SLOWER,
                   g_strdup("a lower bound of its step time (or memory) "
                            "is above the last plan that is listed"));
        else if (exceeds_floor(search, candidate))
            reject(search, VERDICT_MEMORY, NULL);
        else
            price_candidate(search, candidate);
    }
}

static gint by_plan_key(gconstpointer a, gconstpointer b, gpointer request)
{
    const double left = plan_key(request, *(Plan *const *)a);
    const double right = plan_key(request, *(Plan *const *)b);

    return left < right ? -1 : left > right;
}

/* Those that are listed are priced to the last micro-batch; the straight line may be a little off.
 */
static void price_listed(Search *search)
{
    GPtrArray *plans = search->result->plans;

    for (guint i = plans->len; i-- > 0;) {
        Plan *plan = g_ptr_array_index(plans, i);

        if (plan_price(plan))
            continue;
        search->result->feasible--;
        reject(search, VERDICT_MEMORY, g_strdup(g_ptr_array_index(plan->reasons, 0)));
        g_ptr_array_remove_index(plans, i);
    }
    g_ptr_array_sort_with_data(plans, by_plan_key, (gpointer)search->request);
}

/* Nothing fits: the candidate that needs least is priced to say what it would need. */
static void find_closest(Search *search)
{
    const Candidate *least = NULL;

    for (guint i = 0; i < search->candidates->len; i++) {
        const Candidate *candidate = &g_array_index(search->candidates, Candidate, i);

        if (least == NULL || candidate->summary.floor_bytes < least->summary.floor_bytes)
            least = candidate;
    }
    if (least == NULL)
        return;
    search->result->closest = candidate_plan(search->request, least);
    plan_price(search->result->closest);
}

SearchResult *search(const SearchRequest *request)
{
    const gint64 start = g_get_monotonic_time();
    SearchResult *result = g_new0(SearchResult, 1);
    Search search = {
        .request = request,
        .result = result,
        .candidates = g_array_new(FALSE, TRUE, sizeof(Candidate)),
        .gpus = search_gpus(request),
    };

    result->plans = g_ptr_array_new_with_free_func((GDestroyNotify)plan_free);
    enumerate(&search);
    price_all(&search);
    price_listed(&search);
    if (result->plans->len == 0)
        find_closest(&search);
    g_array_unref(search.candidates);
    summariser_free(search.summariser);
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
static gboolean any_fits(Search *search)
{
    g_array_sort(search->candidates, by_floor);
    for (guint i = 0; i < search->candidates->len; i++) {
        const Candidate *candidate = &g_array_index(search->candidates, Candidate, i);

        if (exceeds_floor(search, candidate))
            continue;
        g_autoptr(Plan) plan = candidate_plan(search->request, candidate);
        if (plan_price_steady(plan))
            return TRUE;
    }
    return FALSE;
}

static gboolean fits_on(const SearchRequest *request, guint gpus)
{
    SearchRequest one = *request;

    one.gpus = gpus;
    g_autoptr(SearchResult) result = g_new0(SearchResult, 1);
    result->plans = g_ptr_array_new_with_free_func((GDestroyNotify)plan_free);
    Search search = {
        .request = &one,
        .result = result,
        .candidates = g_array_new(FALSE, TRUE, sizeof(Candidate)),
        .gpus = gpus,
    };
    enumerate(&search);
    const gboolean fits = any_fits(&search);
    g_array_unref(search.candidates);
    summariser_free(search.summariser);
    return fits;
}

/* What a number of GPUs is a multiple of. */
static guint fixed_ranks(const SearchRequest *request)
{
    guint ranks = 1;

    for (guint a = 0; a < NUM_AXES; a++)
        ranks *= MAX(request->fixed[a], 1);
    return ranks;
}

/* Whether some tp leaves data-parallel ranks that divide the batch; more stages, or ranks that
 * share a sequence, only leave fewer of them. */
static gboolean batch_divides(const SearchRequest *request, guint gpus)
{
    const guint pp = MAX(request->fixed[AXIS_PP], 1), cp = MAX(request->fixed[AXIS_CP], 1);
    const guint most_pp = request->fixed[AXIS_PP] != 0 ? pp : request->model->layers;

    for (guint tp = 1; tp <= most_tp(request); tp++)
        for (guint stages = pp; stages <= most_pp; stages++)
            if (gpus % (stages * cp * tp) == 0 && is_tp_offered(request, tp) &&
                request->global_batch % (gpus / (stages * cp * tp)) == 0)
                return TRUE;
    return FALSE;
}

/* Counts in multiples of the fixed axes.  With a batch that was asked for, those that it allows are
 * tried one by one.  Else doubling finds a range, which is halved until it is short and then tried
 * one by one: more ranks need less apart from padding, and a number that divides the model's
 * dimensions has less of that than the next ones. */
guint search_smallest_gpus(const SearchRequest *request, guint from)
{
    enum { SHORT = 64 };
    const guint unit = fixed_ranks(request);
    const guint most = MIN(SEARCH_MOST_GPUS, topology_max_gpus(request->topology)) / unit;
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
