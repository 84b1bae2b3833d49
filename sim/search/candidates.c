#include "sim/search/candidates.h"

#include "sim/base/parallel.h"
#include "sim/search/choice_group.h"
#include "sim/search/offers.h"
#include "sim/summary/summary.h"

/* Looks at choices one after the other: those so far are in `plan`. */
typedef struct {
    const SearchRequest *request;
    Summariser *summariser;
    guint64 framework_bytes, floor_limit_bytes; /* the same for all layouts of so many GPUs */
    Plan plan;
    Candidates *found;
    GArray *choices;  /* LegalChoice, of the axes under way */
    GArray *divisors; /* guint, of: */
    guint divided;
} Finder;

static Candidates *candidates_new(void)
{
    Candidates *found = g_new0(Candidates, 1);

    found->groups = g_array_new(FALSE, FALSE, sizeof(ChoiceGroup));
    found->large = g_array_new(FALSE, FALSE, sizeof(ChoiceGroup));
    found->members = g_array_new(FALSE, FALSE, sizeof(Member));
    found->least.floor_bytes = found->nearly.floor_bytes = G_MAXUINT64;
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
    g_array_unref(candidates->groups);
    g_array_unref(candidates->large);
    g_array_unref(candidates->members);
    g_ptr_array_unref(candidates->summarisers);
    g_ptr_array_unref(candidates->layers);
    g_free(candidates);
}

/* ---- one by one ---- */

static void add_choice(Finder *finder, Recompute recompute, DType gradient)
{
    const Plan *plan = &finder->plan;
    const LegalChoice choice = {
        .key = {.micro_batch = plan->schedule.micro_batch,
                .ep = (guint16)plan->layout.ep,
                .virtual_stages = (guint16)plan->schedule.virtual_stages,
                .schedule = (guint8)plan->schedule.kind,
                .context = (guint8)plan->context,
                .recompute = (guint8)recompute,
                .gradient = (guint8)gradient},
        .member = {.order = (guint32)finder->choices->len,
                   .dp_shard = plan->layout.size[AXIS_DP_SHARD],
                   .strategy = (guint8)plan->sharding.strategy},
    };

    g_array_append_val(finder->choices, choice);
    finder->found->legal++;
}

/* What is computed again is legal with all else, or nothing is. */
static void add_recomputes(Finder *finder)
{
    const SearchRequest *request = finder->request;
    Candidates *found = finder->found;
    const Choice choice = plan_choice(&finder->plan);
    const ProgramSpec spec = plan_spec(&finder->plan);
    const DType gradient = program_gradient_dtype(&spec);
    char *reason = NULL;
    Verdict verdict = legality_check(&choice, NULL);

    if (verdict != VERDICT_OK && found->example[verdict] == NULL) {
        legality_check(&choice, &reason);
        found->example[verdict] = reason;
    }
    for (gint r = 0; r < NUM_RECOMPUTES; r++) {
        if (request->recompute >= 0 && request->recompute != r)
            continue;
        if (verdict == VERDICT_OK)
            add_choice(finder, (Recompute)r, gradient);
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
    Plan *plan = &finder->plan;

    plan->schedule.virtual_stages = virtual_stages;
    plan->schedule.chunk_layers =
        search_chunk_layers(request, plan->layout.size[AXIS_PP] * virtual_stages);
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
        const ScheduleKind kind = (ScheduleKind)k;
        const guint most = offers_most_virtual_stages(request, pp, kind);

        if (!offers_schedule(request, pp, kind))
            continue;
        finder->plan.schedule.kind = kind;
        for (guint v = 1; v <= most; v++)
            if (offers_virtual_stages(request, pp, kind, v))
                add_virtual_stages(finder, strategy, v);
    }
}

static void add_contexts(Finder *finder, Strategy strategy)
{
    const guint cp = finder->plan.layout.size[AXIS_CP];

    for (gint k = 0; k < NUM_CONTEXT_KINDS; k++) {
        finder->plan.context = (ContextKind)k;
        if (offers_context(finder->request, cp, (ContextKind)k))
            add_schedules(finder, strategy);
    }
}

static void add_strategies(Finder *finder)
{
    for (guint s = 0; s < NUM_STRATEGIES; s++)
        if (offers_strategy(finder->request, &finder->plan.layout, (Strategy)s))
            add_contexts(finder, (Strategy)s);
}

static void add_mesh(Finder *finder)
{
    const guint most = offers_most_ep(finder->request);

    for (guint ep = 1; ep <= most; ep++) {
        if (!offers_ep(finder->request, &finder->plan.layout, ep))
            continue;
        finder->plan.layout.ep = ep == 1 ? 0 : ep;
        add_strategies(finder);
    }
    finder->plan.layout.ep = 0;
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
        if (ranks % shard != 0 || !offers_axis(finder->request, AXIS_DP_SHARD, shard) ||
            !offers_axis(finder->request, AXIS_DP_REPLICATE, ranks / shard))
            continue;
        layout->size[AXIS_DP_SHARD] = shard;
        layout->size[AXIS_DP_REPLICATE] = ranks / shard;
        add_mesh(finder);
    }
}

/* What the choices under way have in common but for their keys. */
static Candidate common(const Finder *finder)
{
    return (Candidate){.global_batch = finder->plan.workload.global_batch,
                       .layout = finder->plan.layout};
}

static void find_outer(Finder *finder, Outer *outer, guint ranks)
{
    finder->found = outer->found = candidates_new();
    finder->found->floor_limit_bytes = finder->floor_limit_bytes;
    add_data_axes(finder, outer, ranks);
    const Candidate all = common(finder);
    groups_add(finder->found, finder->request, finder->summariser, &all, finder->choices);
    g_array_set_size(finder->choices, 0);
}

static void find_split(gpointer data, guint index, guint worker)
{
    const Find *find = data;
    const Split *split = &g_array_index(find->splits, Split, index);

    for (guint i = 0; i < find->outers->len; i++) {
        Outer *outer = &g_array_index(find->outers, Outer, i);

        if (outer->tp == split->tp && outer->cp == split->cp)
            find_outer(&find->finders[worker], outer,
                       find->gpus / outer->tp / outer->pp / outer->cp);
    }
}

static void list_outers(Find *find)
{
    const SearchRequest *request = find->request;

    for (guint tp = 1; tp <= offers_most_tp(request); tp++) {
        const guint rest = find->gpus / tp;

        if (find->gpus % tp != 0 || !offers_tp(request, tp))
            continue;
        for (guint pp = 1; pp <= rest; pp++) {
            if (rest % pp != 0 || !offers_pp(request, pp))
                continue;
            for (guint cp = 1; cp <= rest / pp; cp++) {
                if (rest / pp % cp != 0 || !offers_cp(request, cp))
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
        .choices = g_array_new(FALSE, FALSE, sizeof(LegalChoice)),
        .divisors = g_array_new(FALSE, FALSE, sizeof(guint)),
    };
    plan_set_target(&finder->plan);
    const SimulateContext context = plan_context(&finder->plan);
    finder->summariser = summariser_new(&context, of_others);
    finder->framework_bytes = plan_framework_bytes(&finder->plan);
    finder->floor_limit_bytes = plan_floor_limit(&finder->plan);
}

/* The members of groups come behind those that were found before. */
static void take_groups(GArray *all, const GArray *groups, guint before, guint order)
{
    for (guint i = 0; i < groups->len; i++) {
        ChoiceGroup group = g_array_index(groups, ChoiceGroup, i);

        group.first += before;
        group.least.order += order;
        g_array_append_val(all, group);
    }
}

static void take_found(Candidates *all, Candidates *found, guint *order)
{
    const guint before = all->members->len;

    all->legal += found->legal;
    for (guint v = 0; v < NUM_VERDICTS; v++) {
        all->rejected[v] += found->rejected[v];
        if (all->example[v] == NULL)
            all->example[v] = g_steal_pointer(&found->example[v]);
    }
    take_groups(all->groups, found->groups, before, *order);
    take_groups(all->large, found->large, before, *order);
    for (guint i = 0; i < found->members->len; i++) {
        Member member = g_array_index(found->members, Member, i);

        member.order += *order;
        g_array_append_val(all->members, member);
    }
    *order += found->members->len;
    candidates_free(found);
}

Candidates *candidates_find(const SearchRequest *request, guint gpus)
{
    g_autoptr(GArray) outers = g_array_new(FALSE, FALSE, sizeof(Outer));
    g_autoptr(GArray) splits = g_array_new(FALSE, FALSE, sizeof(Split));
    Find find = {.request = request, .gpus = gpus, .outers = outers, .splits = splits};
    Candidates *all = candidates_new();
    guint order = 0;

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
        take_found(all, g_array_index(outers, Outer, i).found, &order);
    for (guint w = 0; w < workers; w++) {
        g_ptr_array_add(all->summarisers, find.finders[w].summariser);
        g_array_unref(find.finders[w].choices);
        g_array_unref(find.finders[w].divisors);
        g_free(find.finders[w].plan.recompute_layers);
    }
    g_free(find.finders);
    return all;
}
