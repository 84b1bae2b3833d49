/* One choice: as a plan, and its closer bound. */
#include "sim/base/parallel.h"
#include "sim/search/choice_group.h"

static gint by_order(const Candidate *left, const Candidate *right)
{
    return left->order < right->order ? -1 : left->order > right->order;
}

gint candidate_by_bound(gconstpointer a, gconstpointer b)
{
    const Candidate *left = a, *right = b;

    if (left->bound_s != right->bound_s)
        return left->bound_s < right->bound_s ? -1 : 1;
    return by_order(left, right);
}

gint candidate_by_floor(gconstpointer a, gconstpointer b)
{
    const Candidate *left = a, *right = b;

    if (left->floor_bytes != right->floor_bytes)
        return left->floor_bytes < right->floor_bytes ? -1 : 1;
    return by_order(left, right);
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
        .chunk_layers = search_chunk_layers(request, candidate->layout.size[AXIS_PP] *
                                                         candidate->virtual_stages),
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

void candidates_add_summarisers(Candidates *candidates, guint num)
{
    Summariser *first = candidates_summariser(candidates, 0);

    while (candidates->summarisers->len < parallel_workers(num))
        g_ptr_array_add(candidates->summarisers, summariser_new(summariser_context(first), first));
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

void candidates_walk(Candidates *candidates, const SearchRequest *request, Candidate *first,
                     guint num)
{
    g_autoptr(GPtrArray) layers = layers_new(candidates, first, num);
    Walks walks = {request, candidates, first, layers};

    candidates_add_summarisers(candidates, num);
    parallel_run(num, walk_candidate, &walks);
}
