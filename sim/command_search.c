/* fsdp-plan search, estimate. */
#include "reports/store/store.h"
#include "sim/answer_json.h"
#include "sim/base/error.h"
#include "sim/commands.h"
#include "sim/plan_options.h"
#include "sim/search/cheapest.h"
#include "sim/search/price.h"
#include "sim/table.h"

static gboolean record_search(const SearchRequest *request, const SearchResult *result,
                              Store *store, GError **error)
{
    if (!store_begin(store, error))
        return FALSE;
    for (guint i = 0; i < result->plans->len; i++) {
        const Plan *listed = g_ptr_array_index(result->plans, i);
        g_autofree char *plan = plan_print(listed);

        if (!store_add_search(store, request->model->name, request->topology->name, listed->gpus,
                              i + 1, plan, error))
            return FALSE;
    }
    return store_commit(store, error);
}

/* What the file says that is priced otherwise, or not at all. */
static void print_notes(const Config *config, const char *source)
{
    for (guint i = 0; i < config->notes->len; i++)
        g_printerr("fsdp-plan: %s (%s): %s\n", source, config->framework,
                   (const char *)g_ptr_array_index(config->notes, i));
}

static void print_json_search(const SearchAnswer *answer)
{
    g_autoptr(JsonNode) node = answer_search(answer);

    answer_print(node);
}

/* No number of GPUs fits: what was looked at, and no plan. */
static void print_json_none(const SearchRequest *request)
{
    g_autoptr(GPtrArray) plans = g_ptr_array_new();
    const SearchResult none = {.plans = plans};
    const SearchAnswer answer = {.request = request, .result = &none};

    print_json_search(&answer);
}

/* A store that can't be opened is refused before a plan is written. */
static int show_result(const SearchAnswer *answer, const PlanOptions *options, GError **error)
{
    const SearchResult *result = answer->result;
    g_autoptr(Store) store = NULL;

    if (options->db != NULL && (store = store_open(options->db, FALSE, error)) == NULL)
        return error_exit_status(*error);
    if (options->output != NULL &&
        !plan_save(g_ptr_array_index(result->plans, 0), options->output, error))
        return error_exit_status(*error);
    if (store != NULL && !record_search(answer->request, result, store, error))
        return error_exit_status(*error);
    if (options->json)
        print_json_search(answer);
    else
        table_print_search(answer);
    return 0;
}

/* What fits with state in the host's memory: that of the optimiser, else all of it; NULL: nothing,
 * or it was asked for already.  A mixture of experts has so many layouts that those which recompute
 * all must do: 148,000 of DeepSeek-V3 on 64 GPUs take 11 s, 48,000 take 1.4 s. */
static Plan *find_offloaded(const SearchRequest *request)
{
    static const Offload offloads[] = {{TIER_HOST, TIER_DEVICE}, {TIER_HOST, TIER_HOST}};
    SearchRequest moved = *request;
    MemoryTier memory;

    if (sharding_offloads(&request->sharding) ||
        !topology_memory(request->topology, TIER_HOST, &memory))
        return NULL;
    moved.top = 1;
    if (moved.recompute < 0 && moved.model->experts.count > 0)
        moved.recompute = RECOMPUTE_FULL;
    for (guint i = 0; i < G_N_ELEMENTS(offloads); i++) {
        moved.sharding.offload = offloads[i];
        g_autoptr(SearchResult) result = search(&moved);

        if (result->plans->len > 0)
            return g_ptr_array_steal_index(result->plans, 0);
    }
    return NULL;
}

/* More GPUs have more memory; what is illegal may be legal on fewer too. */
static void find_numbers(SearchAnswer *answer)
{
    const SearchRequest *request = answer->request;
    const guint gpus = search_gpus(request);
    const gboolean legal = answer->result->candidates > 0;

    answer->smallest =
        legal ? search_smallest_gpus(request, gpus + 1) : search_nearest_gpus(request, gpus, TRUE);
    answer->fewer = legal ? 0 : search_nearest_gpus(request, gpus, FALSE);
}

/* On the number of GPUs that was asked for: what is missing.  Without a number the smallest one
 * that fits is searched instead (of what is illegal there, the nearest below), and said. */
static int nothing_fits(const PlanInputs *inputs, SearchAnswer *answer, const PlanOptions *options,
                        GError **error)
{
    SearchRequest request = inputs->request;
    const guint cluster = search_gpus(&request);

    find_numbers(answer);
    const guint other = answer->fewer != 0 ? answer->fewer : answer->smallest;
    if (inputs->gpus_given || other == 0) {
        g_autoptr(Plan) offloaded = find_offloaded(&request);

        answer->offloaded = offloaded;
        if (options->json)
            print_json_search(answer);
        else
            table_print_nothing_fits(answer);
        return 1;
    }
    g_printerr("fsdp-plan: %s on the cluster's %u GPUs; the %s number that fits is %u\n",
               answer->result->candidates > 0 ? "nothing fits" : "no layout is legal", cluster,
               answer->result->candidates > 0 ? "smallest" : "nearest", other);
    request.gpus = other;
    g_autoptr(SearchResult) larger = search(&request);
    answer->request = &request;
    answer->result = larger;
    return show_result(answer, options, error);
}

static int show_search(const PlanInputs *inputs, const PlanOptions *options, GError **error)
{
    SearchRequest request = inputs->request;

    if (inputs->gpus_auto) {
        request.gpus = search_smallest_gpus(&request, 1);
        if (request.gpus == 0 && options->json) {
            print_json_none(&request);
            return 1;
        }
        if (request.gpus == 0) {
            fail(error, ERROR_INFEASIBLE, "no number of GPUs up to %u fits; --gpus %u says why",
                 search_most_gpus(&request), search_most_gpus(&request));
            return 1;
        }
    }
    g_autoptr(Plan) today = NULL;
    if (inputs->config != NULL) {
        print_notes(inputs->config, options->from);
        today = search_estimate(&inputs->today, error);
        if (today == NULL)
            return error_exit_status(*error);
    }
    const gboolean buys = request.sort == SORT_PARETO && inputs->gpus_auto;
    const gboolean cheapest =
        request.sort == SORT_COST && !inputs->gpus_given && !inputs->gpus_auto;
    const gboolean numbers = buys || cheapest;
    g_autoptr(GArray) searched = g_array_new(FALSE, FALSE, sizeof(guint));
    g_autoptr(SearchResult) result = buys       ? search_numbers(&request, searched)
                                     : cheapest ? search_cheapest(&request)
                                                : search(&request);
    SearchAnswer answer = {.request = &request, .result = result, .today = today};
    answer.searched = buys ? searched : NULL;
    if (inputs->config != NULL)
        answer.notes = inputs->config->notes;
    if (result->plans->len == 0)
        return nothing_fits(inputs, &answer, options, error);
    g_autoptr(Plan) faster =
        numbers ? NULL : search_fewer_faster(&request, g_ptr_array_index(result->plans, 0));
    answer.faster = faster;
    g_autoptr(Plan) batch = numbers ? NULL : search_other_batch(&request, result);
    answer.batch = batch;
    if (inputs->gpus_auto && !buys)
        answer.roomy = search_roomy_gpus(&request, result, request.gpus);
    return show_result(&answer, options, error);
}

static int show_estimate(const PlanInputs *inputs, const PlanOptions *options, GError **error)
{
    const gboolean from = inputs->config != NULL;

    if (from)
        print_notes(inputs->config, options->from);
    g_autoptr(Plan) plan = search_estimate(from ? &inputs->today : &inputs->request, error);
    if (plan == NULL)
        return error_exit_status(*error);
    if (options->output != NULL && !plan_save(plan, options->output, error))
        return error_exit_status(*error);
    if (options->json) {
        g_autoptr(JsonNode) node = answer_plan(plan);

        answer_print(node);
    } else {
        table_print_plan(plan);
        table_print_loading(plan);
    }
    return plan->reasons->len == 0 ? 0 : 1;
}

/* Else they are rows of a table. */
static gboolean writes_plans(const PlanOptions *options)
{
    return options->json || options->output != NULL || options->db != NULL;
}

static int run(int argc, char **argv, gboolean estimate, GError **error)
{
    PlanOptions options = {0};
    PlanInputs inputs = {0};
    g_autoptr(Progress) progress = progress_new("search");
    int status = 2;

    if (plan_options_parse(&options, estimate, &argc, &argv, error) &&
        plan_inputs_load(&inputs, &options, estimate, error)) {
        inputs.request.briefly = !estimate && !writes_plans(&options);
        inputs.request.progress = progress;
        status = estimate ? show_estimate(&inputs, &options, error)
                          : show_search(&inputs, &options, error);
    }
    plan_inputs_clear(&inputs);
    plan_options_clear(&options);
    return status;
}

int command_search(int argc, char **argv, GError **error)
{
    return run(argc, argv, FALSE, error);
}

int command_estimate(int argc, char **argv, GError **error)
{
    return run(argc, argv, TRUE, error);
}
