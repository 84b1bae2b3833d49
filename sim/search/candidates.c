#include "sim/search/candidates.h"

#include "sim/base/parallel.h"
#include "sim/summary/summary.h"

/* ---- what a request offers ---- */

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

/* Sharding over one rank is what no_shard does with more copies: offered only when asked for. */
static gboolean is_strategy_offered(const SearchRequest *request, const Layout *layout,
                                    Strategy strategy)
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

/* Wider than the fastest link joins is never worth it: two exchanges a half block over the next
 * one. */
gboolean candidates_offer_tp(const SearchRequest *request, guint tp)
{
    const NetworkLevel *inner = &g_array_index(request->topology->networks, NetworkLevel, 0);

    if (request->fixed[AXIS_TP] != 0)
        return request->fixed[AXIS_TP] == tp;
    return tp <= request->model->heads && (inner->span == 0 || tp <= inner->span);
}

guint candidates_most_tp(const SearchRequest *request)
{
    return MAX(request->fixed[AXIS_TP], request->model->heads);
}

/* A stage has a layer at least. */
static gboolean is_pp_offered(const SearchRequest *request, guint pp)
{
    return is_free(request, AXIS_PP, pp) &&
           (request->fixed[AXIS_PP] != 0 || pp <= request->model->layers) &&
           (request->num_recompute <= 1 || request->num_recompute == pp);
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

gboolean candidates_offer_partly(const SearchRequest *request)
{
    return request->recompute < 0 && request->sort != SORT_MEMORY &&
           !framework_is_foreign(request->framework);
}

/* ---- one by one ---- */

/* Looks at candidates one after the other: the choices so far are in `plan`. */
typedef struct {
    const SearchRequest *request;
    Summariser *summariser;
    guint64 framework_bytes, floor_limit_bytes; /* the same for all layouts of so many GPUs */
    Plan plan;
    Candidates *found;
    GArray *divisors; /* guint, of: */
    guint divided;
    guint16 by_stage[MAX_CHUNKS]; /* layers that are computed again */
} Finder;

static Candidates *candidates_new(void)
{
    Candidates *found = g_new0(Candidates, 1);

    found->listed = g_array_new(FALSE, FALSE, sizeof(Candidate));
    found->summarisers = g_ptr_array_new_with_free_func((GDestroyNotify)summariser_free);
    found->layers = g_ptr_array_new_with_free_func(g_free);
    return found;
}

void candidates_free(Candidates *candidates)
{
    if (candidates == NULL)
        return;
    for (guint v = 0; v < NUM_VERDICTS; v++)
        g_free(candidates->example[v]);
    g_array_unref(candidates->listed);
    g_ptr_array_unref(candidates->summarisers);
    g_ptr_array_unref(candidates->layers);
    g_free(candidates);
}

static Candidate candidate_of(const Plan *plan, const Summary *summary)
{
    return (Candidate){
        .bound_s = summary->bound_s / plan->workload.global_batch,
        .floor_bytes = summary->floor_bytes,
        .micro_batch = plan->schedule.micro_batch,
        .micro_batches = plan->schedule.micro_batches,
        .global_batch = plan->workload.global_batch,
        .layout = plan->layout,
        .virtual_stages = (guint16)plan->schedule.virtual_stages,
        .stage = (guint16)summary->stage,
        .strategy = (guint8)plan->sharding.strategy,
        .schedule = (guint8)plan->schedule.kind,
        .recompute = (guint8)plan->schedule.recompute,
        .context = (guint8)plan->context,
    };
}

/* FALSE where it is too large.  How much too large is of interest only of what needs least. */
static gboolean add_candidate(Finder *finder)
{
    Candidates *found = finder->found;
    const ProgramSpec spec = plan_spec(&finder->plan);
    const guint64 least_bytes = found->legal == 0 ? G_MAXUINT64 : found->least.floor_bytes;
    const Summary summary =
        summarise(finder->summariser, &spec, MAX(finder->floor_limit_bytes, least_bytes));
    const Candidate candidate = candidate_of(&finder->plan, &summary);
    const gboolean fits = candidate.floor_bytes <= finder->floor_limit_bytes;

    if (found->legal == 0 || candidate.floor_bytes < found->least.floor_bytes)
        found->least = candidate;
    found->legal++;
    if (fits)
        g_array_append_val(found->listed, candidate);
    else
        found->rejected[VERDICT_MEMORY]++;
    return fits;
}

/* Where nothing computed again does not fit and all of it does: as few layers as fit.  No step is
 * shorter than with what the stages that say most need at least. */
static void add_partly(Finder *finder)
{
    Candidates *found = finder->found;
    guint16 *by_stage = finder->by_stage;
    ProgramSpec spec = plan_spec(&finder->plan);

    if (!summarise_recompute(finder->summariser, &spec, finder->floor_limit_bytes, FALSE, by_stage))
        return;
    spec.schedule.recompute_layers = by_stage;
    const Summary summary = summarise(finder->summariser, &spec, G_MAXUINT64);
    Candidate candidate = candidate_of(&finder->plan, &summary);
    candidate.partly = TRUE;
    candidate.too_large = TOO_LARGE_UNKNOWN;
    found->legal++;
    g_array_append_val(found->listed, candidate);
}

static void add_recompute(Finder *finder, Recompute recompute, gboolean *none_fits)
{
    const SearchRequest *request = finder->request;

    finder->plan.schedule.recompute = recompute;
    finder->plan.schedule.recompute_layers = NULL;
    if (request->num_recompute > 0)
        plan_set_recompute(&finder->plan, recompute, request->recompute_layers,
                           request->num_recompute);
    const gboolean fits = add_candidate(finder);
    if (recompute == RECOMPUTE_NONE)
        *none_fits = fits;
    else if (fits && !*none_fits && candidates_offer_partly(request))
        add_partly(finder);
}

/* What is computed again is legal with all else, or nothing is. */
static void add_recomputes(Finder *finder)
{
    const SearchRequest *request = finder->request;
    Candidates *found = finder->found;
    const Choice choice = plan_choice(&finder->plan);
    char *reason = NULL;
    Verdict verdict = legality_check(&choice, NULL);
    gboolean none_fits = TRUE; /* as long as it is not looked at */

    if (verdict != VERDICT_OK && found->example[verdict] == NULL) {
        legality_check(&choice, &reason);
        found->example[verdict] = reason;
    }
    for (gint r = 0; r < NUM_RECOMPUTES; r++) {
        if (request->recompute >= 0 && request->recompute != r)
            continue;
        if (verdict == VERDICT_OK)
            add_recompute(finder, (Recompute)r, &none_fits);
        else
            found->rejected[verdict]++;
    }
}

/* Sequences of a micro-batch that divide @number, ascending. */
static const GArray *divisors_of(Finder *finder, guint number)
{
    if (finder->divided == number)
        return finder->divisors;
    g_array_set_size(finder->divisors, 0);
    for (guint i = 1; i <= number; i++)
        if (number % i == 0)
            g_array_append_val(finder->divisors, i);
    finder->divided = number;
    return finder->divisors;
}

/* A rank's batch is cut into each micro-batch that divides it. */
static void add_micro_batches(Finder *finder)
{
    const SearchRequest *request = finder->request;
    Plan *plan = &finder->plan;
    const guint ranks = layout_data_ranks(&plan->layout);
    const guint micro = MAX(request->micro_batch, 1);
    const guint batch = request->global_batch != 0 ? request->global_batch : ranks * micro;
    const guint rank_batch = batch / ranks;

    plan->workload.global_batch = batch;
    if (request->micro_batch != 0 || batch % ranks != 0) {
        plan->schedule.micro_batch = micro;
        plan->schedule.micro_batches = MAX(rank_batch / micro, 1);
        add_recomputes(finder);
        return;
    }
    const GArray *divisors = divisors_of(finder, rank_batch);
    for (guint i = 0; i < divisors->len; i++) {
        plan->schedule.micro_batch = g_array_index(divisors, guint, i);
        plan->schedule.micro_batches = rank_batch / plan->schedule.micro_batch;
        add_recomputes(finder);
    }
}

static void add_virtual_stages(Finder *finder, Strategy strategy, guint virtual_stages)
{
    const SearchRequest *request = finder->request;
    const guint chunks = finder->plan.layout.size[AXIS_PP] * virtual_stages;
    Plan *plan = &finder->plan;

    if (request->num_chunks != 0 && request->num_chunks != chunks)
        return;
    plan->schedule.virtual_stages = virtual_stages;
    plan->schedule.chunk_layers = request->num_chunks != 0 ? request->chunk_layers : NULL;
    plan->sharding.strategy = strategy;
    plan->sharding.accumulate_sharded = request->sharding.accumulate_sharded;
    sharding_normalise(&plan->sharding, &plan->layout, &plan->schedule);
    add_micro_batches(finder);
}

static void add_schedules(Finder *finder, Strategy strategy)
{
    const SearchRequest *request = finder->request;
    const guint pp = finder->plan.layout.size[AXIS_PP];

    for (gint k = 0; k < NUM_SCHEDULES; k++) {
        const gboolean several = k == SCHEDULE_INTERLEAVED;
        const guint most = request->virtual_stages != 0 ? request->virtual_stages
                           : several                    ? MAX(request->model->layers / pp, 2)
                                                        : 1;

        if (!is_schedule_offered(request, pp, (ScheduleKind)k))
            continue;
        finder->plan.schedule.kind = (ScheduleKind)k;
        for (guint v = several ? 2 : 1; v <= most; v++)
            if (request->virtual_stages != 0 ? v == request->virtual_stages
                                             : !several || v == 2 || is_cut_evenly(request, pp * v))
                add_virtual_stages(finder, strategy, v);
    }
}

/* How attention crosses ranks matters only where there are several. */
static void add_contexts(Finder *finder, Strategy strategy)
{
    const SearchRequest *request = finder->request;

    for (gint k = 0; k < NUM_CONTEXT_KINDS; k++) {
        finder->plan.context = (ContextKind)k;
        if (request->context >= 0 ? request->context == k
                                  : k == CONTEXT_RING || finder->plan.layout.size[AXIS_CP] > 1)
            add_schedules(finder, strategy);
    }
}

/* 1, and where there are experts all that divide them and the ranks among which they lie; one that
 * was asked for is tried, and refused there. */
static gboolean is_ep_offered(const SearchRequest *request, const Layout *layout, guint ep)
{
    if (request->fixed_ep != 0)
        return request->fixed_ep == ep;
    return ep == 1 ||
           (request->model->experts.count % ep == 0 && layout_expert_block(layout) % ep == 0);
}

static void add_strategies(Finder *finder)
{
    const gboolean shards = finder->plan.layout.ep > 1 && finder->request->fixed_ep == 0;

    for (guint s = shards ? STRATEGY_NO_SHARD + 1 : 0; s < NUM_STRATEGIES; s++)
        if (is_strategy_offered(finder->request, &finder->plan.layout, (Strategy)s))
            add_contexts(finder, (Strategy)s);
}

static void add_mesh(Finder *finder)
{
    const guint most =
        MAX(finder->request->fixed_ep, MAX(finder->request->model->experts.count, 1));

    for (guint ep = 1; ep <= most; ep++) {
        if (!is_ep_offered(finder->request, &finder->plan.layout, ep))
            continue;
        finder->plan.layout.ep = ep == 1 ? 0 : ep;
        add_strategies(finder);
    }
}

/* ---- all ---- */

/* Layouts that differ in data axes only. */
typedef struct {
    guint tp, pp, cp;
    Candidates *found;
} Outer;

/* Those that split a block alike: one worker does them all, from what it looks at of it. */
typedef struct {
    guint tp, cp;
} Split;

typedef struct {
    const SearchRequest *request;
    guint gpus;
    GArray *outers;  /* Outer, in the order of enumeration */
    GArray *splits;  /* Split: neighbours differ in tp, so that workers look at different units */
    Finder *finders; /* by worker */
} Find;

static void add_data_axes(Finder *finder, const Outer *outer, guint ranks)
{
    Layout *layout = &finder->plan.layout;

    layout->size[AXIS_TP] = outer->tp;
    layout->size[AXIS_PP] = outer->pp;
    layout->size[AXIS_CP] = outer->cp;
    for (guint shard = 1; shard <= ranks; shard++) {
        if (ranks % shard != 0 || !is_free(finder->request, AXIS_DP_SHARD, shard) ||
            !is_free(finder->request, AXIS_DP_REPLICATE, ranks / shard))
            continue;
        layout->size[AXIS_DP_SHARD] = shard;
        layout->size[AXIS_DP_REPLICATE] = ranks / shard;
        add_mesh(finder);
    }
}

static void find_split(gpointer data, guint index, guint worker)
{
    const Find *find = data;
    const Split *split = &g_array_index(find->splits, Split, index);
    Finder *finder = &find->finders[worker];

    for (guint i = 0; i < find->outers->len; i++) {
        Outer *outer = &g_array_index(find->outers, Outer, i);

        if (outer->tp != split->tp || outer->cp != split->cp)
            continue;
        finder->found = outer->found = candidates_new();
        add_data_axes(finder, outer, find->gpus / outer->tp / outer->pp / outer->cp);
    }
}

static void list_outers(Find *find)
{
    const SearchRequest *request = find->request;

    for (guint tp = 1; tp <= candidates_most_tp(request); tp++) {
        const guint rest = find->gpus / tp;

        if (find->gpus % tp != 0 || !candidates_offer_tp(request, tp))
            continue;
        for (guint pp = 1; pp <= rest; pp++) {
            if (rest % pp != 0 || !is_pp_offered(request, pp))
                continue;
            for (guint cp = 1; cp <= rest / pp; cp++) {
                if (rest / pp % cp != 0 || !is_cp_offered(request, cp))
                    continue;
                const Outer outer = {.tp = tp, .pp = pp, .cp = cp};
                g_array_append_val(find->outers, outer);
            }
        }
    }
}

static gint by_cp(gconstpointer a, gconstpointer b)
{
    const Split *left = a, *right = b;

    if (left->cp != right->cp)
        return left->cp < right->cp ? -1 : 1;
    return left->tp < right->tp ? -1 : left->tp > right->tp;
}

static void list_splits(Find *find)
{
    guint num = 0;

    for (guint i = 0; i < find->outers->len; i++) {
        const Outer *outer = &g_array_index(find->outers, Outer, i);
        const Split split = {outer->tp, outer->cp};

        g_array_append_val(find->splits, split);
    }
    g_array_sort(find->splits, by_cp);
    for (guint i = 0; i < find->splits->len; i++) {
        const Split split = g_array_index(find->splits, Split, i);

        if (num == 0 || by_cp(&split, &g_array_index(find->splits, Split, num - 1)) != 0)
            g_array_index(find->splits, Split, num++) = split;
    }
    g_array_set_size(find->splits, num);
}

static void finder_init(Finder *finder, const SearchRequest *request, guint gpus,
                        Summariser *of_others)
{
    *finder = (Finder){
        .request = request,
        .plan = {.model = (Model *)request->model,
                 .topology = (Topology *)request->topology,
                 .workload = {0, search_seq_len(request), request->recipe, request->optimizer,
                              request->expert_imbalance},
                 .layout = {.size = {1, gpus, 1, 1, 1}},
                 .sharding = request->sharding,
                 .sequence_parallel = request->sequence_parallel,
                 .framework = request->framework},
        .divisors = g_array_new(FALSE, FALSE, sizeof(guint)),
    };
    plan_set_target(&finder->plan);
    const SimulateContext context = plan_context(&finder->plan);
    finder->summariser = summariser_new(&context, of_others);
    finder->framework_bytes = plan_framework_bytes(&finder->plan);
    finder->floor_limit_bytes = plan_floor_limit(&finder->plan);
}

static void take_found(Candidates *all, Candidates *found)
{
    const guint first = all->listed->len;

    if (found->legal > 0 && (all->legal == 0 || found->least.floor_bytes < all->least.floor_bytes))
        all->least = found->least;
    all->legal += found->legal;
    for (guint v = 0; v < NUM_VERDICTS; v++) {
        all->rejected[v] += found->rejected[v];
        if (all->example[v] == NULL)
            all->example[v] = g_steal_pointer(&found->example[v]);
    }
    if (found->listed->len > 0)
        g_array_append_vals(all->listed, found->listed->data, found->listed->len);
    for (guint i = first; i < all->listed->len; i++)
        g_array_index(all->listed, Candidate, i).order = i;
    candidates_free(found);
}

Candidates *candidates_find(const SearchRequest *request, guint gpus)
{
    g_autoptr(GArray) outers = g_array_new(FALSE, FALSE, sizeof(Outer));
    g_autoptr(GArray) splits = g_array_new(FALSE, FALSE, sizeof(Split));
    Find find = {.request = request, .gpus = gpus, .outers = outers, .splits = splits};
    Candidates *all = candidates_new();

    list_outers(&find);
    list_splits(&find);
    const guint workers = parallel_workers(splits->len);
    find.finders = g_new(Finder, workers);
    for (guint w = 0; w < workers; w++)
        finder_init(&find.finders[w], request, gpus, w == 0 ? NULL : find.finders[0].summariser);
    all->framework_bytes = find.finders[0].framework_bytes;
    all->floor_limit_bytes = find.finders[0].floor_limit_bytes;
    parallel_run(splits->len, find_split, &find);
    for (guint i = 0; i < outers->len; i++)
        take_found(all, g_array_index(outers, Outer, i).found);
    for (guint w = 0; w < workers; w++) {
        g_ptr_array_add(all->summarisers, find.finders[w].summariser);
        g_array_unref(find.finders[w].divisors);
        g_free(find.finders[w].plan.recompute_layers);
    }
    g_free(find.finders);
    return all;
}

/* ---- walks ---- */

typedef struct {
    const SearchRequest *request;
    const Candidates *candidates;
    Candidate *first;
    GPtrArray *layers; /* guint16 *, of each that is partly recomputed; by stage */
} Walks;

static void walk_candidate(gpointer data, guint i, guint worker)
{
    const Walks *walks = data;
    Candidate *candidate = &walks->first[i];
    Summariser *summariser = g_ptr_array_index(walks->candidates->summarisers, worker);
    Plan plan = {.gpus = 0};

    candidate_choose(walks->request, candidate, &plan);
    ProgramSpec spec = plan_spec(&plan);
    if (candidate->partly) {
        guint16 *by_stage = g_ptr_array_index(walks->layers, i);

        if (!summarise_recompute(summariser, &spec, walks->candidates->floor_limit_bytes, TRUE,
                                 by_stage))
            g_debug("a stage has too few layers: it will be found to be too large");
        if (candidate->too_large != TOO_LARGE_UNKNOWN)
            by_stage[candidate->too_large] = MAX(by_stage[candidate->too_large], 1);
        spec.schedule.recompute_layers = candidate->recompute_layers = by_stage;
    }
    const double bound_s = summarise_calls(summariser, &spec);
    candidate->bound_s = MAX(candidate->bound_s, bound_s / candidate->global_batch);
    g_free(plan.recompute_layers);
}

Summariser *candidates_summariser(const Candidates *candidates, guint worker)
{
    return worker < candidates->summarisers->len
               ? g_ptr_array_index(candidates->summarisers, worker)
               : NULL;
}

double candidates_bound_s(const Candidates *candidates, const Plan *plan, guint worker)
{
    Summariser *summariser = candidates_summariser(candidates, worker);
    const ProgramSpec spec = plan_spec(plan);

    return summariser == NULL ? 0 : summarise_calls(summariser, &spec);
}

Candidate candidate_partly(const Candidate *none, Recompute recompute, guint too_large)
{
    Candidate partly = *none;

    partly.recompute = (guint8)recompute;
    partly.partly = TRUE;
    partly.too_large = (guint16)too_large;
    return partly;
}

/* Room for the layers of each, which stays with the candidates. */
static GPtrArray *layers_new(const Candidates *candidates, const Candidate *first, guint num)
{
    GPtrArray *all = g_ptr_array_new();

    for (guint i = 0; i < num; i++) {
        guint16 *layers = first[i].partly ? g_new0(guint16, first[i].layout.size[AXIS_PP]) : NULL;

        g_ptr_array_add(all, layers);
        if (layers != NULL)
            g_ptr_array_add(candidates->layers, layers);
    }
    return all;
}

void candidates_walk(const Candidates *candidates, const SearchRequest *request, Candidate *first,
                     guint num)
{
    g_autoptr(GPtrArray) layers = layers_new(candidates, first, num);
    Walks walks = {request, candidates, first, layers};

    while (candidates->summarisers->len < parallel_workers(num)) {
        Plan plan = {.gpus = 0};

        candidate_choose(request, first, &plan);
        const SimulateContext context = plan_context(&plan);
        g_ptr_array_add(candidates->summarisers,
                        summariser_new(&context, g_ptr_array_index(candidates->summarisers, 0)));
        g_free(plan.recompute_layers);
    }
    parallel_run(num, walk_candidate, &walks);
}

void candidate_choose(const SearchRequest *request, const Candidate *candidate, Plan *plan)
{
    plan->model = (Model *)request->model;
    plan->topology = (Topology *)request->topology;
    plan->workload = (Workload){candidate->global_batch, search_seq_len(request), request->recipe,
                                request->optimizer, request->expert_imbalance};
    plan->layout = candidate->layout;
    plan->sharding = request->sharding;
    plan->sharding.strategy = (Strategy)candidate->strategy;
    plan->schedule = (Schedule){
        .micro_batch = candidate->micro_batch,
        .micro_batches = candidate->micro_batches,
        .recompute = (Recompute)candidate->recompute,
        .kind = (ScheduleKind)candidate->schedule,
        .virtual_stages = candidate->virtual_stages,
        .chunk_layers = request->num_chunks != 0 ? request->chunk_layers : NULL,
    };
    if (request->num_recompute > 0)
        plan_set_recompute(plan, (Recompute)request->recompute, request->recompute_layers,
                           request->num_recompute);
    plan->sequence_parallel = request->sequence_parallel;
    plan->context = (ContextKind)candidate->context;
    plan->framework = request->framework;
    sharding_normalise(&plan->sharding, &plan->layout, &plan->schedule);
    plan_set_target(plan);
}
