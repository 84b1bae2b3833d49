/* fsdp-plan search, estimate. */
#include "reports/store/store.h"
#include "sim/base/error.h"
#include "sim/commands.h"
#include "sim/plan_options.h"
#include "sim/search/cheapest.h"
#include "sim/search/plan_json.h"
#include "sim/search/price.h"
#include "sim/table.h"

static void print_json_node(JsonNode *node)
{
    g_autofree char *text = json_to_string(node, TRUE);

    g_print("%s\n", text);
}

/* NULL: no member. */
static void add_plan(JsonBuilder *json, const char *name, const Plan *plan)
{
    if (plan == NULL)
        return;
    json_builder_set_member_name(json, name);
    json_builder_add_value(json, plan_node(plan));
}

/* {"candidates", "feasible", "rejected", "seconds", "plans"} (DESIGN 6).  @smallest, @offloaded:
 * where nothing fits. */
static void print_json_search(const SearchResult *result, const Plan *today, guint smallest,
                              const Plan *offloaded)
{
    g_autoptr(JsonBuilder) json = json_builder_new();
    g_autoptr(JsonNode) node = NULL;

    json_builder_begin_object(json);
    json_builder_set_member_name(json, "candidates");
    json_builder_add_int_value(json, (gint64)result->candidates);
    json_builder_set_member_name(json, "feasible");
    json_builder_add_int_value(json, (gint64)result->feasible);
    json_builder_set_member_name(json, "rejected");
    json_builder_begin_object(json);
    for (guint v = VERDICT_OK + 1; v < NUM_VERDICTS; v++) {
        if (result->rejected[v] == 0)
            continue;
        json_builder_set_member_name(json, verdict_name((Verdict)v));
        json_builder_add_int_value(json, (gint64)result->rejected[v]);
    }
    json_builder_end_object(json);
    json_builder_set_member_name(json, "seconds");
    json_builder_add_double_value(json, result->seconds);
    if (result->plans->len == 0) { /* 0: none fits */
        json_builder_set_member_name(json, "smallest_gpus");
        json_builder_add_int_value(json, smallest);
    }
    add_plan(json, "closest", result->closest);
    add_plan(json, "offloaded", offloaded);
    add_plan(json, "from", today);
    json_builder_set_member_name(json, "plans");
    json_builder_begin_array(json);
    for (guint i = 0; i < result->plans->len; i++)
        json_builder_add_value(json, plan_node(g_ptr_array_index(result->plans, i)));
    json_builder_end_array(json);
    json_builder_end_object(json);
    node = json_builder_get_root(json);
    print_json_node(node);
}

static gboolean record_search(const SearchRequest *request, const SearchResult *result,
                              Store *store, GError **error)
{
    if (!store_begin(store, error))
        return FALSE;
    for (guint i = 0; i < result->plans->len; i++) {
        g_autofree char *plan = plan_print(g_ptr_array_index(result->plans, i));

        if (!store_add_search(store, request->model->name, request->topology->name,
                              search_gpus(request), i + 1, plan, error))
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

/* A store that can't be opened is refused before a plan is written. */
static int show_result(const SearchRequest *request, const SearchResult *result, const Plan *today,
                       const PlanOptions *options, GError **error)
{
    g_autoptr(Store) store = NULL;

    if (options->db != NULL && (store = store_open(options->db, FALSE, error)) == NULL)
        return error_exit_status(*error);
    if (options->output != NULL &&
        !plan_save(g_ptr_array_index(result->plans, 0), options->output, error))
        return error_exit_status(*error);
    if (store != NULL && !record_search(request, result, store, error))
        return error_exit_status(*error);
    if (options->json)
        print_json_search(result, today, 0, NULL);
    else
        table_print_search(request, result, today);
    return 0;
}

/* What fits with state in the host's memory: that of the optimiser, else all of it; NULL: nothing,
 * or it was asked for already. */
static Plan *find_offloaded(const SearchRequest *request)
{
    static const Offload offloads[] = {{TIER_HOST, TIER_DEVICE}, {TIER_HOST, TIER_HOST}};
    SearchRequest moved = *request;
    MemoryTier memory;

    if (sharding_offloads(&request->sharding) ||
        !topology_memory(request->topology, TIER_HOST, &memory))
        return NULL;
    moved.top = 1;
    for (guint i = 0; i < G_N_ELEMENTS(offloads); i++) {
        moved.sharding.offload = offloads[i];
        g_autoptr(SearchResult) result = search(&moved);

        if (result->plans->len > 0)
            return g_ptr_array_steal_index(result->plans, 0);
    }
    return NULL;
}

/* On the number of GPUs that was asked for: what is missing.  Without a number the smallest one
 * that fits is searched instead, and said. */
static int nothing_fits(const PlanInputs *inputs, const SearchResult *result, const Plan *today,
                        const PlanOptions *options, GError **error)
{
    SearchRequest request = inputs->request;
    const guint cluster = search_gpus(&request);
    const guint smallest =
        result->candidates == 0 ? 0 : search_smallest_gpus(&request, cluster + 1);

    if (inputs->gpus_given || smallest == 0) {
        g_autoptr(Plan) offloaded = find_offloaded(&request);

        if (options->json)
            print_json_search(result, today, smallest, offloaded);
        else
            table_print_nothing_fits(&request, result, smallest, offloaded);
        return 1;
    }
    g_printerr("fsdp-plan: nothing fits on the cluster's %u GPUs; the smallest number that fits is "
               "%u\n",
               cluster, smallest);
    request.gpus = smallest;
    g_autoptr(SearchResult) larger = search(&request);
    return show_result(&request, larger, today, options, error);
}

static int show_search(const PlanInputs *inputs, const PlanOptions *options, GError **error)
{
    SearchRequest request = inputs->request;

    if (inputs->gpus_auto) {
        request.gpus = search_smallest_gpus(&request, 1);
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
    const gboolean numbers = request.sort == SORT_COST && !inputs->gpus_given && !inputs->gpus_auto;
    g_autoptr(SearchResult) result = numbers ? search_cheapest(&request) : search(&request);
    if (result->plans->len == 0)
        return nothing_fits(inputs, result, today, options, error);
    return show_result(&request, result, today, options, error);
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
        g_autoptr(JsonNode) node = plan_node(plan);

        print_json_node(node);
    } else {
        table_print_plan(plan);
    }
    return plan->reasons->len == 0 ? 0 : 1;
}

static int run(int argc, char **argv, gboolean estimate, GError **error)
{
    PlanOptions options = {0};
    PlanInputs inputs = {0};
    int status = 2;

    if (plan_options_parse(&options, estimate, &argc, &argv, error) &&
        plan_inputs_load(&inputs, &options, estimate, error))
        status = estimate ? show_estimate(&inputs, &options, error)
                          : show_search(&inputs, &options, error);
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
