/* fsdp-plan explain and check: what a program reads is what people read. */
#include "sim/answer_json.h"
#include "sim/base/text.h"
#include "sim/explain.h"
#include "sim/search/price.h"
#include "tests/sim/family_case.h"
#include "tests/sim/spec_case.h"

#include <math.h>
#include <string.h>

/* ---- what explain prints ---- */

static GString *captured;

static void capture(const char *text)
{
    g_string_append(captured, text);
}

static char *explained_text(const Plan *plan)
{
    g_autoptr(GError) error = NULL;

    captured = g_string_new(NULL);
    const GPrintFunc before = g_set_print_handler(capture);
    const gboolean done = explain_print(plan, &error);
    g_set_print_handler(before);
    ck_assert_msg(done, "%s", error == NULL ? "" : error->message);
    return g_string_free(g_steal_pointer(&captured), FALSE);
}

static JsonNode *explained(const Plan *plan)
{
    g_autoptr(GError) error = NULL;
    JsonNode *node = explain_answer(plan, &error);

    ck_assert_msg(node != NULL, "%s", error == NULL ? "" : error->message);
    return node;
}

/* ---- plans ---- */

typedef struct {
    const char *name;
    guint axes[NUM_AXES], ep, memory_mb;
    const char *framework;
    gboolean experts, units;
} Explained;

static const Explained explained_plans[] = {
    {.name = "alone", .axes = {1, 1, 1, 1, 1}, .memory_mb = 80000},
    {.name = "stages", .axes = {2, 1, 2, 1, 1}, .memory_mb = 80000},
    {.name = "tensor and context", .axes = {1, 1, 1, 2, 2}, .memory_mb = 80000},
    {.name = "experts", .experts = TRUE, .axes = {2, 1, 2, 1, 1}, .ep = 2, .memory_mb = 80000},
    {.name = "units", .axes = {1, 1, 4, 1, 1}, .memory_mb = 80000, .units = TRUE},
    {.name = "too large", .axes = {1, 1, 2, 1, 1}, .memory_mb = 1},
    {.name = "another framework",
     .axes = {1, 1, 2, 1, 1},
     .memory_mb = 80000,
     .framework = "megatron"},
};

static Plan *explained_plan_of(const Explained *of, const Model *model)
{
    g_autoptr(Topology) topology = case_gpu_topology(1, of->memory_mb, 100000);
    g_autoptr(GError) error = NULL;
    SearchRequest request = {
        .model = model,
        .topology = topology,
        .global_batch = 8,
        .seq_len = 16,
        .recipe = &recipe_zero,
        .strategy = STRATEGY_FULL_SHARD,
        .recompute = -1,
        .schedule = -1,
        .context = -1,
        .sequence_parallel = TRUE,
        .sharding = sharding_default,
        .framework = of->framework == NULL ? NULL : framework_from_name(of->framework),
    };

    memcpy(request.fixed, of->axes, sizeof request.fixed);
    request.fixed_ep = MAX(of->ep, 1);
    request.gpus = 1;
    for (guint a = 0; a < NUM_AXES; a++)
        request.gpus *= of->axes[a];
    if (of->units)
        request.sharding.overrides[request.sharding.num_overrides++] = (UnitOverride){
            .first = ROOT_UNIT, .last = ROOT_UNIT, .strategy = STRATEGY_NO_SHARD, .keep = -1};
    Plan *plan = search_estimate(&request, &error);
    ck_assert_msg(plan != NULL, "%s: %s", of->name, error == NULL ? "" : error->message);
    return plan;
}

static Plan *explained_plan(const Explained *of)
{
    g_autoptr(Model) model = of->experts ? expert_model(0) : case_model(&case_shape);

    return explained_plan_of(of, model);
}

/* ---- both say the same ---- */

static JsonObject *member(JsonObject *object, const char *name)
{
    return json_object_has_member(object, name) ? json_object_get_object_member(object, name)
                                                : NULL;
}

/* @line: as the text has it, up to what is left out. */
static void assert_line(const char *text, const char *name, char *line)
{
    ck_assert_msg(strstr(text, line) != NULL, "%s: \"%s\" is not in\n%.6000s", name, line, text);
    g_free(line);
}

static char *member_bytes(JsonObject *object, const char *name)
{
    return bytes_text((guint64)json_object_get_int_member(object, name));
}

/* What loading needs is said of other frameworks, and only of them: by hand, 2 or 4 bytes a
 * parameter of the rank. */
static void whole_says_the_same(JsonObject *answer, const char *name, const char *text)
{
    JsonObject *whole = member(answer, "whole_model");

    if (whole == NULL) {
        ck_assert_msg(strstr(text, "no rank and no host loads a copy") != NULL, "%s: load", name);
        ck_assert_msg(strstr(text, "load, before sharding") == NULL, "%s: no whole model", name);
        return;
    }
    const gint64 parameters = json_object_get_int_member(member(answer, "state"), "parameters");
    const gint64 ranks = json_object_get_int_member(whole, "ranks");
    g_autofree char *narrow = member_bytes(whole, "load_16_bytes");
    g_autofree char *wide = member_bytes(whole, "load_fp32_bytes");
    g_autofree char *node = bytes_text((guint64)(ranks * 2 * parameters));

    ck_assert_int_eq(json_object_get_int_member(whole, "whole_16_bytes"), 2 * parameters);
    ck_assert_int_eq(json_object_get_int_member(whole, "whole_fp32_bytes"), 4 * parameters);
    assert_line(text, name,
                g_strdup_printf("  %-26s %s in 16 bits, %s in fp32", "load, before sharding",
                                narrow, wide));
    assert_line(
        text, name,
        g_strdup_printf("  %-26s %" G_GINT64_FORMAT " ranks x ", "load, on a node's host", ranks));
    ck_assert_msg(strstr(text, node) != NULL, "%s: %s", name, node);
}

static void memory_says_the_same(JsonObject *answer, const char *name, const char *text)
{
    JsonObject *memory = member(answer, "memory");

    if (memory == NULL) {
        ck_assert_msg(strstr(text, "three views") == NULL, "%s: no memory", name);
        return;
    }
    g_autofree char *live = member_bytes(memory, "allocated_bytes");
    g_autofree char *arena = member_bytes(memory, "reserved_bytes");
    g_autofree char *process = member_bytes(memory, "process_bytes");
    g_autofree char *passes = member_bytes(memory, "passes_bytes");
    g_autofree char *optimizer = member_bytes(memory, "optimizer_bytes");
    JsonObject *host = member(memory, "host");
    g_autofree char *node = member_bytes(host, "needs_bytes");
    g_autofree char *has = member_bytes(host, "has_bytes");

    assert_line(text, name,
                g_strdup_printf("(allocated) %s, arena (reserved) %s, process (as the driver "
                                "counts) %s:",
                                live, arena, process));
    assert_line(text, name, g_strdup_printf("  %-24s %10s", "forward and backward", passes));
    assert_line(text, name, g_strdup_printf("  %-24s %10s", "optimiser step", optimizer));
    assert_line(text, name, g_strdup_printf("goes on) = %s of %s", node, has));
}

static void stages_say_the_same(JsonObject *answer, const char *name, const char *text, guint pp)
{
    JsonObject *bubble = member(answer, "bubble");

    ck_assert_msg((bubble != NULL) == (pp > 1), "%s: bubble", name);
    ck_assert_msg(json_object_has_member(answer, "stages") == (pp > 1), "%s: stages", name);
    if (pp == 1)
        return;
    JsonArray *stages = json_object_get_array_member(answer, "stages");
    ck_assert_uint_eq(json_array_get_length(stages), pp);
    for (guint s = 0; s < pp; s++) {
        JsonObject *stage = json_array_get_object_element(stages, s);
        g_autofree char *memory = member_bytes(stage, "memory_bytes");
        g_autofree char *compute =
            seconds_text(json_object_get_double_member(stage, "compute_seconds"));

        assert_line(text, name, g_strdup_printf(" %10s %10s", memory, compute));
        assert_line(text, name,
                    g_strdup_printf("  %3u  %s", s, json_object_get_string_member(stage, "holds")));
    }
    assert_line(text, name,
                g_strdup_printf("bubble, by formula: %s = %.1f%%",
                                json_object_get_string_member(bubble, "formula"),
                                100 * json_object_get_double_member(bubble, "formula_fraction")));
}

static void state_says_the_same(JsonObject *answer, const char *name, const char *text)
{
    JsonObject *state = member(answer, "state"), *experts = member(state, "experts");
    JsonObject *each = member(state, "bytes_per_parameter");
    g_autofree char *bytes = member_bytes(state, "bytes");
    g_autofree char *unsharded = member_bytes(state, "unsharded_bytes");

    assert_line(text, name,
                g_strdup_printf("Psi = %" G_GINT64_FORMAT " parameters",
                                json_object_get_int_member(state, "parameters")));
    assert_line(text, name,
                g_strdup_printf("d = %" G_GINT64_FORMAT "; %g + %g + %g bytes a parameter",
                                json_object_get_int_member(state, "d"),
                                json_object_get_double_member(each, "parameter"),
                                json_object_get_double_member(each, "gradient"),
                                json_object_get_double_member(each, "master_and_moments")));
    assert_line(text, name, g_strdup_printf("%s a rank (unsharded: %s)", bytes, unsharded));
    if (experts != NULL)
        assert_line(text, name,
                    g_strdup_printf("of them %" G_GINT64_FORMAT " of the %" G_GINT64_FORMAT
                                    " experts",
                                    json_object_get_int_member(experts, "parameters"),
                                    json_object_get_int_member(experts, "held")));
}

/* Groups' bytes add up to what a rank receives, but for scalars, which no group is told of. */
static void volume_says_the_same(JsonObject *answer, const char *name, const char *text,
                                 const Plan *plan)
{
    JsonArray *volume = json_object_get_array_member(answer, "volume");
    gint64 gathered = 0;

    for (guint i = 0; i < json_array_get_length(volume); i++) {
        JsonObject *group = json_array_get_object_element(volume, i);
        JsonObject *received = member(group, "received_bytes"), *times = member(group, "times");
        g_autofree char *unit = member_bytes(group, "unit_bytes");

        assert_line(text, name,
                    g_strdup_printf("  %-9s %4" G_GINT64_FORMAT " ranks: %s = %s",
                                    json_object_get_string_member(group, "group"),
                                    json_object_get_int_member(group, "ranks"),
                                    json_object_get_string_member(group, "unit"), unit));
        if (!json_object_has_member(received, "all_gather"))
            continue;
        gathered += json_object_get_int_member(received, "all_gather");
        assert_line(
            text, name,
            g_strdup_printf("all_gather %.4g", json_object_get_double_member(times, "all_gather")));
    }
    ck_assert_int_eq(gathered, (gint64)plan->prediction.communication_bytes[VOLUME_ALL_GATHER]);
}

static guint lines_between(const char *text, const char *first, const char *end)
{
    const char *from = strstr(text, first);
    const char *to = from == NULL ? NULL : strstr(from, end);
    guint lines = 0;

    ck_assert_msg(to != NULL, "\"%s\" to \"%s\" are not in\n%s", first, end, text);
    for (from = strchr(from, '\n') + 1; from < to; from = strchr(from, '\n') + 1)
        lines++;
    return lines;
}

static void changes_say_the_same(JsonObject *answer, const char *name, const char *text)
{
    JsonArray *changes = json_object_get_array_member(answer, "changes");

    ck_assert_msg(json_array_get_length(changes) ==
                      lines_between(text, "one change, simulated", "\n\n"),
                  "%s: changes", name);
    for (guint i = 0; i < json_array_get_length(changes); i++) {
        JsonObject *change = json_array_get_object_element(changes, i);
        g_autofree char *micro =
            g_strdup_printf("(%" G_GINT64_FORMAT " x %" G_GINT64_FORMAT ")",
                            json_object_get_int_member(change, "micro_batches"),
                            json_object_get_int_member(change, "micro_batch"));

        assert_line(text, name,
                    g_strdup_printf("  %-25s %-10s %+6.1f%% tokens/s",
                                    json_object_get_string_member(change, "change"), micro,
                                    100 * json_object_get_double_member(change, "speed_change")));
    }
}

/* One line, with what the object says; or that there is none. */
static void mend_says_the_same(JsonObject *object, const char *name, const char *text)
{
    JsonObject *mend = NULL;

    if (json_object_get_null_member(object, "mend")) {
        assert_line(text, name, g_strdup("no single change of "));
        mend = json_object_get_null_member(object, "nearest") ? NULL : member(object, "nearest");
    } else {
        ck_assert(json_object_get_null_member(object, "nearest"));
        mend = member(object, "mend");
        assert_line(
            text, name,
            g_strdup_printf("%s makes it fit: ", json_object_get_string_member(mend, "change")));
    }
    if (mend != NULL)
        assert_line(text, name, g_strdup(json_object_get_string_member(mend, "change")));
}

/* Of the plan itself, and of those that memory refuses. */
static void refusals_say_the_same(JsonObject *answer, const char *name, const char *text)
{
    const gboolean fits = json_object_get_boolean_member(member(answer, "plan"), "feasible");
    const gint64 refused = json_object_has_member(member(answer, "rejected"), "memory");

    ck_assert_int_eq(json_object_has_member(answer, "mend"), !fits);
    ck_assert_int_eq(strstr(text, "\nthis plan does not fit:\n") != NULL, !fits);
    if (!fits)
        mend_says_the_same(answer, name, text);
    ck_assert_int_eq(json_object_get_null_member(answer, "too_large"), !refused);
    if (!refused)
        return;
    JsonObject *large = member(answer, "too_large");
    assert_line(text, name,
                g_strdup_printf(" memory, such as %s: %s\n",
                                json_object_get_string_member(large, "choice"),
                                json_object_get_string_member(large, "reason")));
    mend_says_the_same(large, name, text);
}

/* Each of them can be kept and run. */
static void others_say_the_same(JsonObject *answer, const char *name, const char *text)
{
    JsonArray *others = json_object_get_array_member(answer, "others");

    ck_assert_msg(json_array_get_length(others) == lines_between(text, "other choices:", "\nof "),
                  "%s: others", name);
    for (guint i = 0; i < json_array_get_length(others); i++) {
        g_autofree char *printed = json_to_string(json_array_get_element(others, i), FALSE);
        g_autoptr(Plan) other = plan_parse(printed, "other", NULL);
        g_autofree char *layout = other == NULL ? NULL : plan_layout_text(other);
        JsonObject *object = json_array_get_object_element(others, i);

        ck_assert_msg(other != NULL, "%s: %s", name, printed);
        assert_line(text, name, g_strdup_printf("  %-33s ", layout));
        assert_line(text, name,
                    g_strdup_printf("%+6.1f%% time",
                                    100 * json_object_get_double_member(object, "time_change")));
    }
}

static void bound_says_the_same(JsonObject *answer, const char *name, const char *text)
{
    JsonObject *bound = member(answer, "bound");

    assert_line(text, name,
                g_strdup_printf("bound by %s %.0f%% of the step",
                                json_object_get_string_member(bound, "by"),
                                100 * json_object_get_double_member(bound, "share")));
    assert_line(
        text, name,
        g_strdup_printf(" would gain %.1f%%",
                        100 * json_object_get_double_member(bound, "hidden_communication_gain")));
}

static void assert_numbers(JsonArray *array, guint i, JsonNode *node, gpointer name);

/* JSON has no number that is none. */
static void assert_number(JsonObject *object, const char *key, JsonNode *node, gpointer name)
{
    (void)object;
    if (JSON_NODE_HOLDS_OBJECT(node))
        json_object_foreach_member(json_node_get_object(node), assert_number, name);
    else if (JSON_NODE_HOLDS_ARRAY(node))
        json_array_foreach_element(json_node_get_array(node), assert_numbers, name);
    else if (json_node_get_value_type(node) == G_TYPE_DOUBLE)
        ck_assert_msg(isfinite(json_node_get_double(node)), "%s: %s", (char *)name, key);
}

static void assert_numbers(JsonArray *array, guint i, JsonNode *node, gpointer name)
{
    (void)array;
    (void)i;
    assert_number(NULL, "an element", node, name);
}

/* Members of an object and, where it is no plan's model or the like, of those inside. */
static void assert_documented(JsonObject *object, const char *key, JsonNode *node, gpointer text)
{
    static const char *const by_name[] = {"config",
                                          "rejected",
                                          "refused",
                                          "time_seconds",
                                          "communication_bytes",
                                          "received_bytes",
                                          "times",
                                          "communication_seconds",
                                          "arena_bytes",
                                          "memory_bytes",
                                          NULL};
    g_autofree char *quoted = g_strdup_printf("`%s`", key);

    (void)object;
    ck_assert_msg(strcmp(key, "explain") == 0 || strstr(text, quoted) != NULL,
                  "%s is not in reports/docs/json.md", quoted);
    if (g_strv_contains(by_name, key))
        return;
    if (JSON_NODE_HOLDS_OBJECT(node))
        json_object_foreach_member(json_node_get_object(node), assert_documented, text);
    if (JSON_NODE_HOLDS_ARRAY(node) && json_array_get_length(json_node_get_array(node)) > 0) {
        JsonNode *first = json_array_get_element(json_node_get_array(node), 0);

        if (JSON_NODE_HOLDS_OBJECT(first) && strcmp(key, "stages") != 0)
            json_object_foreach_member(json_node_get_object(first), assert_documented, text);
    }
}

START_TEST(every_member_is_in_the_document)
{
    g_autofree char *text = NULL;
    g_autoptr(Plan) plan = explained_plan(&explained_plans[_i]);
    g_autoptr(JsonNode) node = explained(plan);

    ck_assert(g_file_get_contents("reports/docs/json.md", &text, NULL, NULL));
    assert_documented(NULL, "explain", node, text);
}
END_TEST

START_TEST(explain_says_to_programs_what_it_says_to_people)
{
    const Explained *of = &explained_plans[_i];
    g_autoptr(Plan) plan = explained_plan(of);
    g_autofree char *text = explained_text(plan);
    g_autoptr(JsonNode) node = explained(plan);
    JsonObject *answer = json_node_get_object(node), *priced = member(answer, "plan");
    const char *larger = json_object_get_null_member(answer, "larger")
                             ? "no layout would be faster with more memory"
                             : "with more memory ";

    ck_assert_int_eq(json_object_get_boolean_member(priced, "feasible"), plan->reasons->len == 0);
    ck_assert_double_eq(json_object_get_double_member(member(priced, "prediction"), "step_seconds"),
                        plan->prediction.step_seconds);
    memory_says_the_same(answer, of->name, text);
    whole_says_the_same(answer, of->name, text);
    stages_say_the_same(answer, of->name, text, of->axes[AXIS_PP]);
    state_says_the_same(answer, of->name, text);
    volume_says_the_same(answer, of->name, text, plan);
    bound_says_the_same(answer, of->name, text);
    changes_say_the_same(answer, of->name, text);
    others_say_the_same(answer, of->name, text);
    refusals_say_the_same(answer, of->name, text);
    ck_assert_int_eq(json_object_has_member(answer, "units"), of->units);
    ck_assert_int_eq(strstr(text, "\nunits that differ (") != NULL, of->units);
    assert_line(text, of->name,
                g_strdup_printf("\nof %" G_GINT64_FORMAT " candidates",
                                json_object_get_int_member(answer, "candidates")));
    ck_assert_msg(strstr(text, larger) != NULL, "%s: larger", of->name);
    assert_number(NULL, "the answer", node, (gpointer)of->name);
}
END_TEST

/* A stage without experts moves none: nothing is said of them, rather than of 0 / 0. */
START_TEST(a_group_that_moves_nothing_is_not_told)
{
    const Explained of = {"dense first", {4, 1, 4, 1, 1}, 2, 80000, NULL, FALSE, FALSE};
    g_autoptr(Model) model = expert_model(4); /* deepseek_v3: its first block is dense */
    g_autoptr(Plan) plan = explained_plan_of(&of, model);

    plan->prediction.rank = 0;
    g_autofree char *text = explained_text(plan);
    g_autoptr(JsonNode) node = explained(plan);
    ck_assert_ptr_null(strstr(text, "nan"));
    ck_assert_ptr_null(strstr(text, "expert_shard"));
    assert_number(NULL, "the answer", node, (gpointer)of.name);
}
END_TEST

/* No figure without its origin. */
START_TEST(what_a_process_needs_beside_its_tensors_says_where_it_is_from)
{
    g_autoptr(Plan) plan = explained_plan(&explained_plans[1]);
    g_autofree char *nominal = explained_text(plan);

    assert_line(nominal, "nominal", g_strdup("buffers of the transport (nominal, as the driver"));
    plan->topology->measured.framework_bytes = 1000000000;
    g_autofree char *measured = explained_text(plan);
    assert_line(measured, "measured", g_strdup("(measured: framework_memory of the topology)"));
}
END_TEST

/* llama-cookbook 100: 7B on 8 x 24 GB is fine once it is sharded, and failed before, in fp32;
 * litgpt 438: 8 ranks of a host load 8 copies; llama-cookbook 332: a full state dict on each GPU.
 */
START_TEST(a_model_that_fits_when_sharded_may_not_fit_while_it_is_loaded)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_load("llama-2-7b", "models", &error);
    g_autoptr(Topology) topology = topology_load("pcie-8x-rtx-3090", "topologies", &error);
    SearchRequest request = {
        .model = model,
        .topology = topology,
        .gpus = 8,
        .fixed = {1, 1, 8, 1, 1},
        .fixed_ep = 1,
        .global_batch = 8,
        .seq_len = 2048,
        .recipe = &recipe_zero,
        .strategy = STRATEGY_FULL_SHARD,
        .recompute = RECOMPUTE_FULL,
        .schedule = -1,
        .context = -1,
        .sequence_parallel = TRUE,
        .sharding = {.prefetch = 1, .live_units = 2, .accumulate_sharded = TRUE},
        .framework = framework_from_name("torchtitan"),
    };
    g_autoptr(Plan) plan = search_estimate(&request, &error);
    ck_assert_msg(plan != NULL, "%s", error == NULL ? "" : error->message);
    g_autofree char *text = explained_text(plan);

    ck_assert_uint_eq(plan->reasons->len, 0); /* the steady state fits */
    assert_line(text, "3090",
                g_strdup("17.0 GB in 16 bits, 30.5 GB in fp32: fp32 does not fit, make it on"));
    assert_line(text, "3090", g_strdup("8 ranks x 13.5 GB = 107.8 GB in 16 bits, 215.6 GB in"));
    assert_line(text, "3090", g_strdup("43.9 GB in fp32: neither fits, save shards"));
}
END_TEST

/* shard_optimizer turns accumulation over to whole gradients, for itself: others that are compared
 * with such a plan keep theirs, and so a search's first plan has no faster one beside it. */
START_TEST(what_is_compared_is_what_a_search_compares)
{
    const CaseShape one_stage = {
        .vocab = 257, .hidden = 24, .ffn = 40, .layers = 1, .heads = 4, .kv_heads = 2};
    g_autoptr(Model) model = case_model(&one_stage);
    g_autoptr(Topology) topology = case_gpu_topology(2, 80000, 20000);
    SearchRequest request = {.model = model,
                             .topology = topology,
                             .gpus = 8,
                             .global_batch = 16,
                             .seq_len = 64,
                             .recipe = &recipe_zero,
                             .strategy = STRATEGY_SHARD_OPTIMIZER,
                             .recompute = -1,
                             .schedule = -1,
                             .context = -1,
                             .sequence_parallel = TRUE,
                             .sharding = sharding_default,
                             .searches_units = TRUE,
                             .top = 6};
    g_autoptr(SearchResult) first = search(&request);
    const Plan *plan = g_ptr_array_index(first->plans, 0);

    ck_assert(!plan->sharding.accumulate_sharded);
    g_autoptr(JsonNode) answer = explained(plan);
    JsonArray *others = json_object_get_array_member(json_node_get_object(answer), "others");
    guint compared = 0;
    for (guint i = 0; i < json_array_get_length(others); i++) {
        JsonObject *sharding =
            json_object_get_object_member(json_array_get_object_element(others, i), "sharding");
        const char *strategy = json_object_get_string_member(sharding, "strategy");

        if (strcmp(strategy, "shard_grad_op") != 0 && strcmp(strategy, "full_shard") != 0)
            continue;
        ck_assert_str_eq(json_object_get_string_member(sharding, "accumulate"), "sharded");
        compared++;
    }
    ck_assert_uint_gt(compared, 0);
}
END_TEST

/* ---- check ---- */

START_TEST(check_says_whether_it_is_proven_and_what_is_wrong)
{
    g_autoptr(Plan) plan = explained_plan(&explained_plans[1]);
    g_autoptr(ProgramSet) set = plan_compile(plan, NULL);
    g_autoptr(GPtrArray) problems = g_ptr_array_new();
    g_autoptr(JsonNode) proven = answer_check(set, plan->ops, problems);
    JsonObject *object = json_node_get_object(proven);

    ck_assert(json_object_get_boolean_member(object, "proven"));
    ck_assert_uint_eq(json_array_get_length(json_object_get_array_member(object, "problems")), 0);
    ck_assert_int_eq(json_object_get_int_member(object, "ranks"), plan->gpus);
    ck_assert_int_eq(json_object_get_int_member(object, "classes"), 2);
    ck_assert_int_eq(json_object_get_int_member(object, "ops"), (gint64)plan->ops);

    g_ptr_array_add(problems, (char *)"one line");
    g_autoptr(JsonNode) refuted = answer_check(set, plan->ops, problems);
    object = json_node_get_object(refuted);
    ck_assert(!json_object_get_boolean_member(object, "proven"));
    ck_assert_str_eq(
        json_array_get_string_element(json_object_get_array_member(object, "problems"), 0),
        "one line");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("explain");
    TCase *tcase = tcase_create("explain");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, explain_says_to_programs_what_it_says_to_people, 0,
                        G_N_ELEMENTS(explained_plans));
    tcase_add_loop_test(tcase, every_member_is_in_the_document, 0, G_N_ELEMENTS(explained_plans));
    tcase_add_test(tcase, a_group_that_moves_nothing_is_not_told);
    tcase_add_test(tcase, what_is_compared_is_what_a_search_compares);
    tcase_add_test(tcase, what_a_process_needs_beside_its_tensors_says_where_it_is_from);
    tcase_add_test(tcase, a_model_that_fits_when_sharded_may_not_fit_while_it_is_loaded);
    tcase_add_test(tcase, check_says_whether_it_is_proven_and_what_is_wrong);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
