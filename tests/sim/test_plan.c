#include "sim/base/error.h"
#include "sim/search/plan_json.h"
#include "tests/mutate.h"
#include "tests/sim/plan_case.h"

/* A priced plan of a case, on CPUs or GPUs by its device. */
static Plan *plan_of(const Case *from, guint gpu_megabytes)
{
    Plan *plan =
        case_plan(from, from->device == DEVICE_CPU ? case_cpu_topology(8, 10)
                                                   : case_gpu_topology(8, gpu_megabytes, 100000));

    plan_price(plan);
    return plan;
}

static Plan *example_plan(void)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_HYBRID_SHARD, 2, 2);

    one.sharding.keep_last = TRUE;
    one.sharding.num_overrides = 2;
    one.sharding.overrides[0] = (UnitOverride){1, 2, STRATEGY_SHARD_GRAD_OP, -1};
    one.sharding.overrides[1] = (UnitOverride){0, 0, -1, 1};
    return plan_of(&one, 0);
}

static Plan *parse(const char *text, GError **error)
{
    return plan_parse(text, "the plan", error);
}

static void assert_same_when_read(const Plan *plan, const char *what)
{
    g_autofree char *text = plan_print(plan);
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) read = parse(text, &error);

    ck_assert_msg(read != NULL, "%s: %s", what, error == NULL ? "" : error->message);
    g_autofree char *again = plan_print(read);
    ck_assert_msg(strcmp(again, text) == 0, "%s reads back as another plan", what);
}

START_TEST(a_plan_reads_back_as_it_was_printed)
{
    CaseShape shape = case_shape;
    g_autoptr(GRand) random = g_rand_new_with_seed(91);

    for (guint i = 0; i < 60; i++) {
        shape.tied = draw(random, 1) == 1;
        g_autoptr(Model) model = case_model(&shape);
        const Case one = case_random_4d(random, model);
        g_autofree char *text = case_text(&one);
        g_autoptr(Plan) plan = plan_of(&one, 80000);

        ck_assert_uint_eq(plan->reasons->len, 0);
        assert_same_when_read(plan, text);
    }
}
END_TEST

/* 2% of 100 GB, and 10% where another framework is predicted; more than there is is not at risk. */
START_TEST(a_plan_with_little_to_spare_is_at_risk)
{
    static const struct {
        const char *framework;
        guint64 gigabytes;
        gboolean tight;
    } totals[] = {{"fsdp-run", 98, FALSE},  {"fsdp-run", 99, TRUE},  {"fsdp-run", 100, TRUE},
                  {"fsdp-run", 101, FALSE}, {"megatron", 90, FALSE}, {"megatron", 92, TRUE}};
    g_autoptr(Plan) plan = plan_new();

    plan->prediction.memory_limit = 100;
    for (guint i = 0; i < G_N_ELEMENTS(totals); i++) {
        plan->framework = framework_from_name(totals[i].framework);
        ck_assert_ptr_nonnull(plan->framework);
        plan->prediction.memory_total = totals[i].gigabytes;
        ck_assert_int_eq(plan_is_tight(plan), totals[i].tight);
    }
}
END_TEST

START_TEST(a_plan_that_does_not_fit_reads_back_with_its_reasons)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);

    one.device = DEVICE_CUDA;
    g_autoptr(Plan) plan = plan_of(&one, 2);
    ck_assert_uint_eq(plan->reasons->len, 1);
    assert_same_when_read(plan, "too large");
}
END_TEST

START_TEST(a_plan_compiles_again_to_its_own_programs)
{
    g_autoptr(Plan) plan = example_plan();
    g_autofree char *text = plan_print(plan);
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) read = parse(text, &error);
    g_autoptr(ProgramSet) set = plan_compile(read, &error);

    ck_assert_msg(set != NULL, "%s", error == NULL ? "" : error->message);
    ck_assert_uint_eq(set->num_ranks, 4);
    g_autofree char *hash = program_set_hash(set);
    ck_assert_str_eq(hash, plan->hash);
}
END_TEST

START_TEST(a_plan_edited_by_hand_does_not_compile)
{
    g_autoptr(Plan) plan = example_plan();
    g_autoptr(GError) error = NULL;

    plan->sharding.prefetch = 0;
    g_autoptr(ProgramSet) set = plan_compile(plan, &error);
    ck_assert_ptr_null(set);
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
    ck_assert(strstr(error->message, "program.hash") != NULL);
}
END_TEST

/* ---- damaged fields ---- */

/* Paths of all members, those of the model's own config apart: it has tests of its own. */
static void add_paths(JsonNode *node, const char *path, GPtrArray *paths)
{
    if (JSON_NODE_HOLDS_OBJECT(node) && strcmp(path, "model.config") != 0) {
        g_autoptr(GList) members = json_object_get_members(json_node_get_object(node));

        for (const GList *m = members; m != NULL; m = m->next) {
            g_autofree char *child =
                g_strdup_printf("%s%s%s", path, *path == '\0' ? "" : ".", (char *)m->data);

            g_ptr_array_add(paths, g_strdup(child));
            add_paths(json_object_get_member(json_node_get_object(node), m->data), child, paths);
        }
    }
}

/* The object that holds the last name of @path; *name is that name. */
static JsonObject *holder(JsonNode *root, const char *path, const char **name)
{
    JsonObject *object = json_node_get_object(root);
    const char *dot;

    while ((dot = strchr(path, '.')) != NULL) {
        g_autofree char *member = g_strndup(path, (gsize)(dot - path));

        object = json_object_get_object_member(object, member);
        path = dot + 1;
    }
    *name = path;
    return object;
}

/* A line that names the field, of ERROR_INPUT. */
static void assert_names(JsonNode *root, const char *path, const char *what)
{
    g_autofree char *text = json_to_string(root, FALSE);
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = parse(text, &error);
    const char *last = strrchr(path, '.');

    ck_assert_msg(plan == NULL, "%s %s was accepted", path, what);
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
    ck_assert_msg(strstr(error->message, last == NULL ? path : last + 1) != NULL, "%s %s: %s", path,
                  what, error->message);
    ck_assert_msg(strchr(error->message, '\n') == NULL, "%s %s: %s", path, what, error->message);
    ck_assert_msg(g_str_has_prefix(error->message, "the plan"), "%s %s: %s", path, what,
                  error->message);
}

typedef void (*Damage)(JsonObject *object, const char *name);

static void remove_it(JsonObject *object, const char *name)
{
    json_object_remove_member(object, name);
}

static void make_null(JsonObject *object, const char *name)
{
    json_object_set_null_member(object, name);
}

/* No field is an array of numbers. */
static void retype(JsonObject *object, const char *name)
{
    JsonArray *array = json_array_new();

    json_array_add_int_element(array, 7);
    json_object_set_array_member(object, name, array);
}

static void rename_it(JsonObject *object, const char *name)
{
    g_autofree char *other = g_strconcat(name, "x", NULL);

    json_object_set_member(object, other, json_node_copy(json_object_get_member(object, name)));
    json_object_remove_member(object, name);
}

static const struct {
    const char *what;
    Damage damage;
} damages[] = {{"removed", remove_it},
               {"made null", make_null},
               {"made an array", retype},
               {"renamed", rename_it}};

START_TEST(each_field_is_missed_or_refused_by_name)
{
    g_autoptr(Plan) plan = example_plan();
    g_autoptr(JsonNode) whole = plan_node(plan);
    g_autoptr(GPtrArray) paths = g_ptr_array_new_with_free_func(g_free);

    add_paths(whole, "", paths);
    ck_assert_uint_gt(paths->len, 80);
    for (guint i = 0; i < paths->len; i++) {
        const char *path = g_ptr_array_index(paths, i), *name;
        g_autofree char *text = json_to_string(whole, FALSE);
        g_autoptr(JsonNode) root = json_from_string(text, NULL);
        JsonObject *object = holder(root, path, &name);

        damages[_i].damage(object, name);
        assert_names(root, path, damages[_i].what);
    }
}
END_TEST

/* By field: JSON values that are of the right type and yet not allowed. */
static const struct {
    const char *path, *values;
} refused[] = {
    {"format", "\"fsdp\" \"\""},
    {"version", "0 2 -1 1.5"},
    {"model.parameters", "0 26329"},
    {"topology.name", "\"other\""},
    {"topology.gpus", "0 3 5 -4"},
    {"target.device", "\"cuda\" \"tpu\""},
    {"target.ranks_per_node", "0 -1 99999999"},
    {"target.threads", "0 1025"},
    {"workload.global_batch", "0 7 1073741825"},
    {"workload.seq_len", "0 1073741825"},
    {"workload.precision", "\"fp32\" \"fp12\" \"int32\""},
    {"sharding.gather_dtype", "\"fp32\" \"fp16\" \"\""},
    {"workload.recipe", "\"fp32\" \"fsdp\""},
    {"workload.optimizer", "\"adam\""},
    {"layout.dp_replicate", "0 3 -2"},
    {"layout.dp_shard", "0 3"},
    {"layout.tp", "0 2"},
    {"layout.pp", "2"},
    {"layout.cp", "2"},
    {"sharding.strategy", "\"zero3\" \"no_shard\""},
    {"sharding.form", "\"flatt\""},
    {"sharding.prefetch", "-1 2 1025"},
    {"sharding.live_units", "0 1 1025"},
    {"sharding.accumulate", "\"whole\" \"\""},
    {"sharding.gradient_dtype", "\"fp16\" \"fp8\" \"int32\" \"\""},
    {"sharding.reduce_dtype", "\"fp16\" \"fp64\" \"fp31\" \"\""},
    {"tensor_parallel.sequence", "0"},
    {"context_parallel.kind", "\"ulysses\""},
    {"schedule.name", "\"gpipe\""},
    {"schedule.micro_batch", "0 3"},
    {"schedule.micro_batches", "0 1"},
    {"schedule.virtual_stages", "0 2 257"},
    {"recompute", "\"some\" \"\" 1 {} {\"kind\":\"full\"} {\"kind\":\"full\",\"layers\":[1,1]} "
                  "{\"kind\":\"full\",\"layers\":[4]} {\"kind\":\"some\",\"layers\":[1]}"},
    {"offload.optimizer", "\"host\""},
    {"offload.parameters", "\"host\" \"tape\""},
    {"program.ops", "-1 1.5"},
    {"prediction.step_seconds", "-1"},
    {"prediction.rank", "4 -1"},
    {"prediction.memory_bytes.parameters", "-1 0.5"},
    {"prediction.communication_bytes.all_gather", "-1"},
    {"prediction.time_seconds.gemm", "-1"},
};

START_TEST(values_that_are_not_allowed_are_refused)
{
    g_autoptr(Plan) plan = example_plan();
    g_auto(GStrv) values = g_strsplit(refused[_i].values, " ", -1);

    for (guint v = 0; values[v] != NULL; v++) {
        g_autoptr(JsonNode) root = plan_node(plan);
        g_autoptr(GError) error = NULL;
        const char *name;
        JsonObject *object = holder(root, refused[_i].path, &name);

        json_object_set_member(object, name, json_from_string(values[v], NULL));
        g_autofree char *text = json_to_string(root, FALSE);
        g_autoptr(Plan) read = parse(text, &error);
        ck_assert_msg(read == NULL, "%s = %s was accepted", refused[_i].path, values[v]);
        ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
        ck_assert_msg(strchr(error->message, '\n') == NULL, "%s", error->message);
    }
}
END_TEST

/* One form per meaning: all or none of the layers is a word, whatever was read. */
START_TEST(layers_computed_again_are_a_list_only_where_some_are_not)
{
    static const struct {
        const char *read, *printed;
    } forms[] = {
        {"\"full\"", "\"full\""},
        {"{\"kind\":\"full\",\"layers\":[2]}", "{\"kind\":\"full\",\"layers\":[2]}"},
        {"{\"kind\":\"selective\",\"layers\":[3]}", "\"selective\""},
        {"{\"kind\":\"full\",\"layers\":[0]}", "\"none\""},
    };
    g_autoptr(Plan) plan = example_plan();

    for (guint i = 0; i < G_N_ELEMENTS(forms); i++) {
        g_autoptr(JsonNode) root = plan_node(plan);
        g_autoptr(GError) error = NULL;

        json_object_set_member(json_node_get_object(root), "recompute",
                               json_from_string(forms[i].read, NULL));
        g_autofree char *text = json_to_string(root, FALSE);
        g_autoptr(Plan) read = parse(text, &error);
        ck_assert_msg(read != NULL, "%s", error == NULL ? "" : error->message);
        g_autoptr(JsonNode) again = plan_node(read);
        g_autofree char *printed =
            json_to_string(json_object_get_member(json_node_get_object(again), "recompute"), FALSE);
        ck_assert_str_eq(printed, forms[i].printed);
    }
}
END_TEST

/* 65537 x 65537 is 131073 in 32 bits. */
START_TEST(a_layout_whose_ranks_overflow_is_refused)
{
    g_autoptr(Plan) plan = example_plan();
    g_autoptr(JsonNode) root = plan_node(plan);
    const char *name;

    json_object_set_int_member(holder(root, "layout.dp_replicate", &name), "dp_replicate", 65537);
    json_object_set_int_member(holder(root, "layout.dp_shard", &name), "dp_shard", 65537);
    json_object_set_int_member(holder(root, "topology.gpus", &name), "gpus", 131073);
    assert_names(root, "topology.gpus", "wrapped");
}
END_TEST

START_TEST(damaged_text_never_crashes_and_is_refused_in_one_line_or_read_whole)
{
    g_autoptr(Plan) plan = example_plan();
    g_autofree char *text = plan_print(plan);
    g_autoptr(GRand) random = g_rand_new_with_seed(92 + (guint)_i);

    for (guint i = 0; i < 400; i++) {
        g_autofree char *damaged = mutate(text, random);
        g_autoptr(GError) error = NULL;
        g_autoptr(Plan) read = parse(damaged, &error);

        if (read == NULL) {
            ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
            ck_assert_ptr_null(strchr(error->message, '\n'));
        } else {
            assert_same_when_read(read, "damaged");
        }
    }
}
END_TEST

/* ---- hash ---- */

/* One choice after the other, from the same start: hybrid_shard over 2 x 2, M = 2. */
static void change(Case *one, guint choice)
{
    switch (choice) {
    case 0:
        break;
    case 1:
        *one = case_with(one->model, STRATEGY_FULL_SHARD, 4, 2);
        break;
    case 2:
        one->sharding.strategy = STRATEGY_SHARD_GRAD_OP;
        break;
    case 3:
        one->sharding.strategy = STRATEGY_SHARD_OPTIMIZER;
        one->sharding.accumulate_sharded = FALSE;
        break;
    case 4:
        one->sharding.form = FORM_FLAT;
        break;
    case 5:
        one->sharding.prefetch = 0;
        break;
    case 6:
        one->sharding.live_units = 3;
        break;
    case 7:
        one->sharding.keep_root = TRUE;
        break;
    case 8:
        one->sharding.keep_last = TRUE;
        break;
    case 9:
        one->sharding.accumulate_sharded = FALSE;
        break;
    case 10:
        one->schedule.recompute = RECOMPUTE_FULL;
        break;
    case 11:
        one->schedule.micro_batch = 1;
        one->schedule.micro_batches = 4;
        break;
    case 12:
        one->workload.global_batch *= 2;
        one->schedule.micro_batches *= 2;
        break;
    case 13:
        one->workload.recipe = &recipe_fp32;
        break;
    case 14:
        one->workload.recipe = &recipe_fsdp2;
        break;
    case 15:
        one->workload.optimizer = OPTIMIZER_SGD;
        break;
    case 16:
        one->workload.seq_len = 9;
        break;
    case 17:
        one->sharding.num_overrides = 1;
        one->sharding.overrides[0] = (UnitOverride){1, 1, STRATEGY_NO_SHARD, -1};
        break;
    case 18:
        one->sharding.num_overrides = 1;
        one->sharding.overrides[0] = (UnitOverride){2, 2, -1, 1};
        break;
    case 19:
        *one = case_with(one->model, STRATEGY_NO_SHARD, 4, 2);
        break;
    case 20:
        one->device = DEVICE_CUDA;
        break;
    case 21:
        one->workload.recipe = recipe_with_gradients(&recipe_zero, DTYPE_FP32, DTYPE_BF16);
        break;
    case 22:
        one->workload.recipe = recipe_with_gradients(&recipe_zero, DTYPE_BF16, DTYPE_FP32);
        break;
    case 23:
        one->workload.recipe = recipe_with_gradients(&recipe_zero, DTYPE_FP32, DTYPE_FP32);
        break;
    }
}

enum { CHOICES = 24 };

START_TEST(every_choice_changes_the_hash_and_the_same_choice_does_not)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);

    for (guint i = 0; i < CHOICES; i++) {
        Case one = case_with(model, STRATEGY_HYBRID_SHARD, 2, 2);

        change(&one, i);
        g_autofree char *text = case_text(&one);
        g_autoptr(ProgramSet) set = case_compile(&one), again = case_compile(&one);
        char *hash = program_set_hash(set);
        g_autofree char *same = program_set_hash(again);
        ck_assert_str_eq(hash, same);
        ck_assert_uint_eq(strlen(hash), 64);
        ck_assert_msg(g_hash_table_add(seen, hash), "choice %u: %s", i, text);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan");
    TCase *tcase = tcase_create("plan");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, a_plan_reads_back_as_it_was_printed);
    tcase_add_test(tcase, a_plan_with_little_to_spare_is_at_risk);
    tcase_add_test(tcase, a_plan_that_does_not_fit_reads_back_with_its_reasons);
    tcase_add_test(tcase, a_plan_compiles_again_to_its_own_programs);
    tcase_add_test(tcase, a_plan_edited_by_hand_does_not_compile);
    tcase_add_loop_test(tcase, each_field_is_missed_or_refused_by_name, 0, G_N_ELEMENTS(damages));
    tcase_add_loop_test(tcase, values_that_are_not_allowed_are_refused, 0, G_N_ELEMENTS(refused));
    tcase_add_test(tcase, layers_computed_again_are_a_list_only_where_some_are_not);
    tcase_add_test(tcase, a_layout_whose_ranks_overflow_is_refused);
    tcase_add_loop_test(tcase, damaged_text_never_crashes_and_is_refused_in_one_line_or_read_whole,
                        0, 4);
    tcase_add_test(tcase, every_choice_changes_the_hash_and_the_same_choice_does_not);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
