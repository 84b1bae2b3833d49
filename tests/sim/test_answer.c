#include "sim/answer_json.h"
#include "sim/remarks.h"
#include "sim/search/price.h"
#include "tests/sim/spec_case.h"

static SearchRequest request_of(const Model *model, const Topology *topology)
{
    return (SearchRequest){
        .model = model,
        .topology = topology,
        .gpus = 4,
        .recipe = &recipe_zero,
        .strategy = -1,
        .recompute = -1,
        .schedule = -1,
        .context = -1,
        .sharding = sharding_default,
        .top = 3,
    };
}

static const char *string_of(JsonObject *object, const char *name)
{
    return json_object_has_member(object, name) ? json_object_get_string_member(object, name)
                                                : NULL;
}

/* What the text of a plan says beside its numbers; NULL: it does not say it. */
static void assert_says(const Plan *plan, const char *untrainable, const char *const *notes)
{
    g_autoptr(JsonNode) node = answer_plan(plan);
    JsonObject *object = json_node_get_object(node);
    JsonArray *said = json_object_get_array_member(object, "notes");

    ck_assert_int_eq(json_object_get_boolean_member(object, "trainable"), untrainable == NULL);
    ck_assert_pstr_eq(string_of(object, "untrainable"), untrainable);
    ck_assert_int_eq(json_object_get_boolean_member(object, "at_risk"), plan_is_tight(plan));
    ck_assert_double_eq(json_object_get_double_member(object, "memory_error"),
                        plan_memory_error(plan));
    ck_assert_double_eq(json_object_get_double_member(object, "bytes_per_parameter"), 16);
    ck_assert_str_eq(json_object_get_string_member(object, "bound_by"),
                     op_class_name(remark_bound(plan)));
    ck_assert_uint_eq(json_array_get_length(said), g_strv_length((char **)notes));
    for (guint i = 0; notes[i] != NULL; i++)
        ck_assert_str_eq(json_array_get_string_element(said, i), notes[i]);
}

START_TEST(an_answer_says_of_a_plan_what_its_text_says)
{
    static const struct {
        const char *model;
        guint seq_len;
        const char *framework, *untrainable;
        const char *notes[4];
    } plans[] = {
        {"llama-3.2-1b", 64, "fsdp-run", NULL, {NULL}},
        {"smollm-135m",
         2049,
         "megatron",
         NULL,
         {"2049 tokens are more than the model's max_position_embeddings, 2048: positions may need "
          "scaling; memory and time do not depend on it",
          "prediction for framework megatron: Megatron-Core with Transformer Engine", NULL}},
        {"mistral-7b",
         4097,
         "fsdp-run",
         "field \"workload.seq_len\" = 4097: attention within the model's sliding_window of 4096 "
         "is "
         "planned only; fsdp-run trains on sequences of at most that many tokens",
         {NULL}},
        {"mixtral-8x7b",
         64,
         "fsdp-run",
         "model mixtral-8x7b (mixtral) can be planned but not yet trained: it has mixture of "
         "experts",
         {"routing is taken to be balanced: each expert has as many tokens", NULL}},
        {"qwen1.5-moe-a2.7b",
         64,
         "fsdp-run",
         "model qwen1.5-moe-a2.7b (qwen2_moe) can be planned but not yet trained: it has mixture "
         "of experts, a gate of what shared experts give",
         {"routing is taken to be balanced: each expert has as many tokens", NULL}},
        /* shorter sequences than its window would not help */
        {"gemma-2-2b",
         4097,
         "fsdp-run",
         "model gemma-2-2b (gemma2) can be planned but not yet trained: it has norms that multiply "
         "by 1 + weight, norms of what attention and MLP give, a scaled embedding, capped or "
         "scaled logits, a gated MLP with another activation than silu, blocks with and without a "
         "window",
         {NULL}},
    };
    g_autoptr(Topology) topology = case_gpu_topology(4, 900000, 100000);
    g_autoptr(Model) model = case_shipped_model(plans[_i].model);
    SearchRequest request = request_of(model, topology);
    g_autoptr(GError) error = NULL;

    request.fixed[AXIS_DP_SHARD] = 4;
    request.seq_len = plans[_i].seq_len;
    request.framework = framework_from_name(plans[_i].framework);
    g_autoptr(Plan) plan = search_estimate(&request, &error);
    ck_assert_msg(plan != NULL, "%s", error == NULL ? "" : error->message);
    assert_says(plan, plans[_i].untrainable, plans[_i].notes);

    plan->prediction.memory_limit = plan->prediction.memory_total + 1;
    plan->alike_s = 2 * plan->prediction.step_seconds;
    ck_assert(plan_is_tight(plan));
    assert_says(plan, plans[_i].untrainable, plans[_i].notes);
    g_autoptr(JsonNode) node = answer_plan(plan);
    JsonObject *object = json_node_get_object(node);
    ck_assert_double_eq(json_object_get_double_member(object, "uniform_step_seconds"),
                        plan->alike_s);
}
END_TEST

/* 2% slower is noise, more is not, nor is what follows it. */
START_TEST(plans_that_differ_by_noise_are_counted)
{
    static const double speeds[] = {100, 99, 98.1, 98, 99.5};
    g_autoptr(GPtrArray) plans = g_ptr_array_new_with_free_func((GDestroyNotify)plan_free);
    const SearchResult result = {.plans = plans};

    ck_assert_uint_eq(remark_alike(&result), 0);
    for (guint i = 0; i < G_N_ELEMENTS(speeds); i++) {
        Plan *plan = plan_new();

        plan->prediction.tokens_per_second = speeds[i];
        g_ptr_array_add(plans, plan);
        ck_assert_uint_eq(remark_alike(&result), MIN(i + 1, 3));
    }
}
END_TEST

/* What --json prints of one plan can be kept and run. */
START_TEST(a_plan_that_is_answered_reads_as_its_file)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = case_gpu_topology(4, 80000, 100000);
    const SearchRequest request = request_of(model, topology);
    g_autoptr(SearchResult) result = search(&request);
    const Plan *plan = g_ptr_array_index(result->plans, 0);
    g_autoptr(JsonNode) node = answer_plan(plan);
    g_autofree char *answered = json_to_string(node, TRUE), *printed = plan_print(plan);
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) read = plan_parse(answered, "the answer", &error);

    ck_assert_msg(read != NULL, "%s", error == NULL ? "" : error->message);
    g_autofree char *again = plan_print(read);
    ck_assert_str_eq(again, printed);
}
END_TEST

START_TEST(an_answer_says_why_choices_were_refused_and_what_fits)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = case_gpu_topology(4, 80000, 100000);
    g_autoptr(GPtrArray) notes = g_ptr_array_new();
    SearchRequest request = request_of(model, topology);

    g_ptr_array_add(notes, (char *)"lines of theirs");
    request.global_batch = 10;
    request.fixed[AXIS_TP] = request.fixed[AXIS_CP] = request.fixed[AXIS_PP] = 1;
    g_autoptr(SearchResult) result = search(&request);
    request.global_batch = 0;
    request.fixed[AXIS_DP_SHARD] = 4;
    g_autoptr(Plan) today = search_estimate(&request, NULL);
    const SearchAnswer answer = {.request = &request,
                                 .result = result,
                                 .today = today,
                                 .notes = notes,
                                 .smallest = 5,
                                 .fewer = 3};
    g_autoptr(JsonNode) node = answer_search(&answer);
    JsonObject *object = json_node_get_object(node);
    const char *batch = verdict_name(VERDICT_BATCH);

    ck_assert_int_gt(
        json_object_get_int_member(json_object_get_object_member(object, "rejected"), batch), 0);
    ck_assert_str_eq(
        json_object_get_string_member(json_object_get_object_member(object, "refused"), batch),
        result->example[VERDICT_BATCH]);
    ck_assert_int_eq(json_object_get_int_member(object, "smallest_gpus"), 5);
    ck_assert_int_eq(json_object_get_int_member(object, "fewer_gpus"), 3);
    ck_assert_int_eq(json_object_get_int_member(object, "most_gpus"), search_most_gpus(&request));
    ck_assert_uint_eq(json_array_get_length(json_object_get_array_member(object, "plans")), 0);
    ck_assert(
        json_object_get_boolean_member(json_object_get_object_member(object, "from"), "trainable"));
    ck_assert_str_eq(
        json_array_get_string_element(json_object_get_array_member(object, "from_notes"), 0),
        "lines of theirs");
}
END_TEST

START_TEST(an_answer_of_a_model_says_its_shape_and_what_can_be_done_with_it)
{
    g_autoptr(Model) dense = case_shipped_model("gpt2"),
                     experts = case_shipped_model("mixtral-8x7b");
    g_autoptr(JsonNode) small = answer_model(dense), large = answer_model(experts);
    JsonObject *gpt2 = json_node_get_object(small), *mixtral = json_node_get_object(large);

    ck_assert_int_eq(json_object_get_int_member(gpt2, "parameters"), 124439808);
    ck_assert_str_eq(json_object_get_string_member(gpt2, "model_type"), "gpt2");
    ck_assert_int_eq(json_object_get_int_member(gpt2, "max_seq_len"), 1024);
    ck_assert(json_object_get_boolean_member(gpt2, "tied"));
    ck_assert(json_object_get_boolean_member(gpt2, "trainable"));
    ck_assert(!json_object_has_member(gpt2, "untrainable"));
    ck_assert_uint_eq(json_array_get_length(json_object_get_array_member(gpt2, "tensors")), 148);
    ck_assert_int_eq(json_object_get_int_member(mixtral, "active_parameters"), 12879925248);
    ck_assert_int_eq(json_object_get_int_member(mixtral, "experts"), 8);
    ck_assert_int_eq(json_object_get_int_member(mixtral, "experts_per_token"), 2);
    ck_assert(json_object_get_boolean_member(mixtral, "plannable"));
    ck_assert(!json_object_get_boolean_member(mixtral, "trainable"));
    ck_assert_str_eq(json_object_get_string_member(mixtral, "untrainable"), "mixture of experts");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("answer");
    TCase *tcase = tcase_create("answer");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, an_answer_says_of_a_plan_what_its_text_says, 0, 6);
    tcase_add_test(tcase, plans_that_differ_by_noise_are_counted);
    tcase_add_test(tcase, a_plan_that_is_answered_reads_as_its_file);
    tcase_add_test(tcase, an_answer_says_why_choices_were_refused_and_what_fits);
    tcase_add_test(tcase, an_answer_of_a_model_says_its_shape_and_what_can_be_done_with_it);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
