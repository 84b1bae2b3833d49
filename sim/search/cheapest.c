#include "sim/search/cheapest.h"

#include "sim/search/plan_cost.h"
#include "sim/search/price.h"

static gint by_money(gconstpointer a, gconstpointer b)
{
    const double left = plan_money_per_million(*(Plan *const *)a);
    const double right = plan_money_per_million(*(Plan *const *)b);

    return left < right ? -1 : left > right;
}

/* Takes what @one found, but for its plans. */
static void take_counts(SearchResult *all, SearchResult *one)
{
    all->candidates += one->candidates;
    all->feasible += one->feasible;
    all->seconds += one->seconds;
    for (guint v = 0; v < NUM_VERDICTS; v++) {
        all->rejected[v] += one->rejected[v];
        if (all->example[v] == NULL)
            all->example[v] = g_steal_pointer(&one->example[v]);
    }
}

static void take_result(SearchResult *all, SearchResult *one)
{
    take_counts(all, one);
    while (one->plans->len > 0)
        g_ptr_array_add(all->plans, g_ptr_array_steal_index(one->plans, 0));
    if (all->closest == NULL)
        all->closest = g_steal_pointer(&one->closest);
    search_result_free(one);
}

SearchResult *search_cheapest(const SearchRequest *request)
{
    SearchRequest some = *request;
    SearchResult *all = search(request);

    for (some.gpus = search_gpus(request) / 2; some.gpus > 0; some.gpus /= 2)
        take_result(all, search(&some));
    g_ptr_array_sort(all->plans, by_money);
    if (all->plans->len > request->top)
        g_ptr_array_set_size(all->plans, (gint)request->top);
    if (all->plans->len > 0)
        g_clear_pointer(&all->closest, plan_free);
    return all;
}

/* ---- what each number buys ---- */

/* Beyond a node's, whole nodes. */
static gboolean is_tried(const SearchRequest *request, guint gpus, guint most)
{
    const guint node = request->topology->gpus_per_node;

    return gpus <= most && (gpus <= node || gpus % node == 0);
}

/* Ascending, behind the request's own. */
static void list_numbers(const SearchRequest *request, GArray *numbers)
{
    enum { TIMES = 8 };
    const guint unit = search_fixed_ranks(request), from = search_gpus(request);
    const guint cluster = request->topology->nodes * request->topology->gpus_per_node;
    const guint most = MIN(search_most_gpus(request), MAX(cluster, TIMES * from));

    g_array_append_val(numbers, from);
    for (guint64 power = unit; power <= most; power *= 2)
        for (guint half = 2; half <= 3; half++) {
            const guint gpus = (guint)(power * half / 2);

            if (power * half % 2 == 0 && gpus > from && gpus % unit == 0 &&
                is_tried(request, gpus, most))
                g_array_append_val(numbers, gpus);
        }
}

/* The most tokens a second so far, of all plans and of those that are not at risk. */
typedef struct {
    double any, roomy;
} Fastest;

/* The first of @found, by time, that where @roomy is not at risk, if it makes more tokens than all
 * such on fewer GPUs. */
static void take_fastest(SearchResult *all, SearchResult *found, gboolean roomy, double *fastest)
{
    for (guint i = 0; i < found->plans->len; i++) {
        const Plan *plan = g_ptr_array_index(found->plans, i);

        if (roomy && plan_is_tight(plan))
            continue;
        if (plan->prediction.tokens_per_second > *fastest) {
            *fastest = plan->prediction.tokens_per_second;
            g_ptr_array_add(all->plans, g_ptr_array_steal_index(found->plans, i));
        }
        return;
    }
}

static void take_number(SearchResult *all, SearchResult *found, Fastest *fastest)
{
    const Plan *first = found->plans->len > 0 ? g_ptr_array_index(found->plans, 0) : NULL;

    take_counts(all, found);
    if (first == NULL)
        return;
    if (plan_is_tight(first)) {
        take_fastest(all, found, FALSE, &fastest->any);
        take_fastest(all, found, TRUE, &fastest->roomy);
        return;
    }
    take_fastest(all, found, TRUE, &fastest->roomy);
    fastest->any = MAX(fastest->any, fastest->roomy);
}

SearchResult *search_numbers(const SearchRequest *request, GArray *searched)
{
    SearchResult *all = g_new0(SearchResult, 1);
    SearchRequest some = *request;
    Fastest fastest = {0};

    all->plans = g_ptr_array_new_with_free_func((GDestroyNotify)plan_free);
    some.sort = SORT_TIME;
    list_numbers(request, searched);
    for (guint i = 0; i < searched->len; i++) {
        some.gpus = g_array_index(searched, guint, i);
        g_autoptr(SearchResult) found = search(&some);
        take_number(all, found, &fastest);
    }
    return all;
}

/* ---- fewer, other batches ---- */

/* Takes @faster, and gives it or what is faster still on @gpus. */
static Plan *faster_on(const SearchRequest *request, guint gpus, const Plan *best, Plan *faster)
{
    const Plan *than = faster != NULL ? faster : best;
    SearchRequest fewer = *request;

    fewer.gpus = gpus;
    fewer.top = 1;
    g_autoptr(SearchResult) result = search(&fewer);
    if (result->plans->len == 0)
        return faster;
    const Plan *found = g_ptr_array_index(result->plans, 0);
    if (found->prediction.tokens_per_second <= than->prediction.tokens_per_second)
        return faster;
    plan_free(faster);
    return g_ptr_array_steal_index(result->plans, 0);
}

/* On fewer GPUs work takes as many times as long as there are fewer, so that what ranks wait must
 * be more than the part that is left out; two thirds of it, as smaller groups also work better. */
static gboolean may_be_faster(guint fewer, const Plan *best)
{
    const double waits_s = best->prediction.time_seconds[OP_CLASS_COMMUNICATION];
    const double left_out = 1 - (double)fewer / best->gpus;

    return fewer > 0 && fewer < best->gpus &&
           3 * waits_s >= 2 * left_out * best->prediction.step_seconds;
}

Plan *search_fewer_faster(const SearchRequest *request, const Plan *best)
{
    const guint node = request->topology->gpus_per_node, gpus = best->gpus;
    const guint whole = gpus / node * node, half = gpus <= 64 ? gpus / 2 : 0;
    const guint power = gpus > 1 && gpus <= 64 ? 1u << (g_bit_storage(gpus - 1) - 1) : 0;
    const guint fewer[] = {1, node, half, whole, power};
    Plan *faster = NULL;

    for (guint i = 0; request->sort == SORT_TIME && i < G_N_ELEMENTS(fewer); i++) {
        gboolean before = FALSE;

        for (guint k = 0; k < i; k++)
            before |= fewer[k] == fewer[i];
        if (!before && may_be_faster(fewer[i], best))
            faster = faster_on(request, fewer[i], best, faster);
    }
    return faster;
}

/* Each batch takes as long to search as the one that was asked for: so many take a second. */
#define FEW_CANDIDATES 200000

Plan *search_other_batch(const SearchRequest *request, const SearchResult *result)
{
    const Plan *best = g_ptr_array_index(result->plans, 0);
    const guint gpus = best->gpus, batch = request->global_batch, over = batch % gpus;
    const guint nearest = 2 * over > gpus ? 1 : 0;
    double most = 1.1 * best->prediction.tokens_per_second;
    SearchRequest other = *request;
    Plan *plan = NULL;

    if (request->sort != SORT_TIME || over == 0 || batch > G_MAXINT / 2 ||
        result->candidates > FEW_CANDIDATES)
        return NULL;
    other.top = 1;
    for (guint i = 0; i < 2; i++) {
        other.global_batch = batch - over + (i ^ nearest) * gpus;
        if (2 * other.global_batch < batch || 2 * other.global_batch > 3 * batch)
            continue;
        g_autoptr(SearchResult) found = search(&other);
        const Plan *first = found->plans->len > 0 ? g_ptr_array_index(found->plans, 0) : NULL;

        if (first == NULL || first->prediction.tokens_per_second < most)
            continue;
        most = 1.02 * first->prediction.tokens_per_second; /* what is less is noise */
        g_clear_pointer(&plan, plan_free);
        plan = g_ptr_array_steal_index(found->plans, 0);
    }
    return plan;
}

guint search_roomy_gpus(const SearchRequest *request, const SearchResult *result, guint from)
{
    const Plan *plan = NULL;

    for (guint i = 0; i < result->plans->len; i++) {
        plan = g_ptr_array_index(result->plans, i);
        if (!plan_is_tight(plan))
            return 0;
    }
    if (plan == NULL)
        return 0;
    /* What fits in so much less has it to spare. */
    const double memory = (double)request->topology->gpu.memory_bytes;
    g_autofree char *text = topology_print(request->topology);
    g_autoptr(Topology) smaller = topology_parse(text, request->topology->name, "", NULL);
    SearchRequest roomy = *request;

    smaller->gpu.memory_bytes = (guint64)(memory / (1 + plan_memory_error(plan)));
    roomy.topology = smaller;
    return search_smallest_gpus(&roomy, from + 1);
}
