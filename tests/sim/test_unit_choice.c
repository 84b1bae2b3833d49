/* Units that are not all sharded alike: what a search finds against every choice of every unit. */
#include "sim/cost/collective.h"
#include "sim/search/price.h"
#include "sim/search/search.h"
#include "sim/search/unit_choice.h"
#include "tests/sim/family_case.h"

#include <math.h>

/* 16 bytes a parameter: a block has 12.8 MB of state, the root 2.5 MB. */
static CaseShape shape_of(guint layers)
{
    return (CaseShape){
        .vocab = 300, .hidden = 256, .ffn = 704, .layers = layers, .heads = 4, .kv_heads = 4};
}

static SearchRequest request_of(const Model *model, const Topology *topology, guint gpus)
{
    return (SearchRequest){
        .model = model,
        .topology = topology,
        .gpus = gpus,
        .seq_len = 16,
        .recipe = &recipe_zero,
        .strategy = -1,
        .micro_batch = 1,
        .recompute = RECOMPUTE_NONE,
        .fixed = {[AXIS_TP] = 1, [AXIS_PP] = 1, [AXIS_CP] = 1},
        .sharding = {.form = FORM_PER_PARAMETER,
                     .prefetch = 0,
                     .live_units = 1,
                     .keep_root = TRUE,
                     .keep_last = TRUE,
                     .accumulate_sharded = TRUE},
        .searches_units = TRUE,
        .top = 100,
    };
}

static const Plan *best_of(const SearchResult *result)
{
    ck_assert_uint_gt(result->plans->len, 0);
    return g_ptr_array_index(result->plans, 0);
}

/* ---- against every choice ---- */

/* A unit is as the plan says, or kept, or has a strategy of its own. */
enum { CHOICES = 2 + STRATEGY_FULL_SHARD + 1 };

static void choose(Sharding *sharding, guint unit, guint choice)
{
    UnitOverride *entry = &sharding->overrides[sharding->num_overrides];

    if (choice == 0)
        return;
    *entry = (UnitOverride){unit, unit, choice == 1 ? -1 : (gint)choice - 2, choice == 1 ? 1 : -1};
    sharding->num_overrides++;
}

/* What another number says too. */
static gboolean repeats(const Sharding *sharding)
{
    for (guint i = 0; i < sharding->num_overrides; i++)
        if (sharding->overrides[i].strategy == (gint)sharding->strategy ||
            (sharding->overrides[i].keep > 0 && sharding->strategy < STRATEGY_FULL_SHARD))
            return TRUE;
    return FALSE;
}

/* How gradients accumulate is not searched.  Under a strategy that keeps them whole all units do it
 * whole, and so would one that is more sharded by an override of its own, whatever was asked for.
 */
static gboolean accumulates_otherwise(const Case *one, const Sharding *asked)
{
    gboolean sharded = one->sharding.strategy > STRATEGY_SHARD_OPTIMIZER;

    for (guint i = 0; i < one->sharding.num_overrides; i++)
        sharded |= one->sharding.overrides[i].strategy > STRATEGY_SHARD_OPTIMIZER;
    return sharded && one->schedule.micro_batches > 1 &&
           one->sharding.accumulate_sharded != asked->accumulate_sharded;
}

/* The root, blocks, or both parts of those with experts; how many. */
static guint list_units(const Model *model, guint *units)
{
    guint num = 0;

    units[num++] = ROOT_UNIT;
    for (guint unit = 1; unit <= model->layers; unit++) {
        const gboolean sparse = model_is_sparse(model, unit - 1);

        units[num++] = (sparse ? REST_UNITS : ROOT_UNIT) + unit;
        if (sparse)
            units[num++] = EXPERTS_UNITS + unit;
    }
    return num;
}

/* Of one layout and strategy, the shortest step that any choice of its units makes. */
static double least_of_units(Case *one, const Topology *topology, const Sharding *asked,
                             double below_s)
{
    guint units[8], all = 1;
    const guint num = list_units(one->model, units);
    double least_s = below_s;

    for (guint u = 0; u < num; u++)
        all *= CHOICES;
    for (guint number = 0; number < all; number++) {
        Plan plan = {.model = one->model,
                     .topology = (Topology *)topology,
                     .workload = one->workload,
                     .layout = one->layout,
                     .schedule = one->schedule};
        const PriceLimit limit = {.limit_s = least_s};

        one->sharding.num_overrides = 0;
        for (guint u = 0, rest = number; u < num; u++, rest /= CHOICES)
            choose(&one->sharding, units[u], rest % CHOICES);
        if (repeats(&one->sharding) || accumulates_otherwise(one, asked) ||
            case_verdict(one, NULL) != VERDICT_OK)
            continue;
        plan.sharding = one->sharding;
        plan.stages = g_array_new(FALSE, TRUE, sizeof(StageTime));
        plan.reasons = g_ptr_array_new_with_free_func(g_free);
        plan_set_target(&plan);
        if (plan_price_below(&plan, &limit) == PRICE_FITS)
            least_s = MIN(least_s, plan.prediction.step_seconds);
        g_array_unref(plan.stages);
        g_ptr_array_unref(plan.reasons);
        g_free(plan.hash);
    }
    return least_s;
}

/* Plain loops over all that search may choose; @below_s, where nothing takes less. */
static double least_of_all(const SearchRequest *request, double below_s)
{
    double least_s = below_s;

    for (guint shard = 1; shard <= request->gpus; shard++)
        for (guint s = STRATEGY_NO_SHARD; s <= STRATEGY_FULL_SHARD; s++) {
            if (request->gpus % shard != 0 || (s == STRATEGY_NO_SHARD) != (shard == 1))
                continue;
            Case one = case_of((Model *)request->model, request->gpus / shard, shard, 1);
            one.layout.ep = MAX(request->fixed_ep, 1);
            one.workload = (Workload){request->global_batch, request->seq_len, request->recipe,
                                      request->optimizer, 0};
            one.schedule = (Schedule){.micro_batch = 1,
                                      .micro_batches = request->global_batch / request->gpus};
            one.sharding = request->sharding;
            one.sharding.strategy = (Strategy)s;
            sharding_normalise(&one.sharding, &one.layout, &one.schedule);
            least_s = least_of_units(&one, request->topology, &request->sharding, least_s);
        }
    return least_s;
}

/* MB of a GPU, of which 3534 are the framework's; and of its links. */
/* 3534 of the MB of a GPU are the framework's.  With fewer nothing fits, with more all units are
 * whole: between, units differ. */
static const struct {
    guint layers, gpus, batch, megabytes, link;
    gboolean differ;
} spaces[] = {
    {2, 8, 16, 3543, 200, TRUE},
    {2, 8, 16, 3546, 200, FALSE},
    {2, 2, 8, 3560, 20000, FALSE},
    {3, 4, 8, 3550, 200, TRUE},
};

START_TEST(no_choice_of_units_is_faster_than_what_search_finds)
{
    const CaseShape shape = shape_of(spaces[_i].layers);
    g_autoptr(Model) model = case_model(&shape);
    g_autoptr(Topology) topology = case_gpu_topology(2, spaces[_i].megabytes, spaces[_i].link);
    SearchRequest request = request_of(model, topology, spaces[_i].gpus);

    request.global_batch = spaces[_i].batch;
    const double least_s = least_of_all(&request, INFINITY);
    g_autoptr(SearchResult) result = search(&request);
    const double found_s = best_of(result)->prediction.step_seconds;

    ck_assert_double_ge(found_s, least_s * (1 - 1e-9));
    ck_assert_msg(found_s * (1 - UNIT_CHOICE_GAIN) <= least_s, "%.9g s, but %.9g s is possible",
                  found_s, least_s);
    ck_assert_int_eq(best_of(result)->sharding.num_overrides > 0, spaces[_i].differ);
}
END_TEST

/* A dense block, and one with 4 experts of 4.3 million parameters together, on 4 GPUs. */
static Model *mixture_new(void)
{
    return plannable_model("mixture",
                           "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 300, "
                           "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
                           "\"num_key_value_heads\": 4, \"head_dim\": 64, \"hidden_size\": 256, "
                           "\"intermediate_size\": 704, \"max_position_embeddings\": 4096, "
                           "\"num_experts\": 4, \"num_experts_per_tok\": 2, "
                           "\"moe_intermediate_size\": 1408, \"decoder_sparse_step\": 2}");
}

/* There is room for the state of all that is not of experts, but not of these. */
START_TEST(no_choice_of_units_with_experts_is_faster)
{
    g_autoptr(Model) model = mixture_new();
    g_autoptr(Topology) topology = case_gpu_topology(1, 3606, 200);
    SearchRequest request = request_of(model, topology, 4);

    request.global_batch = 8;
    request.fixed_ep = 1;
    g_autoptr(SearchResult) result = search(&request);
    const double found_s = best_of(result)->prediction.step_seconds;
    const double least_s = least_of_all(&request, found_s * (1 + 1e-9));
    g_autofree char *text = plan_units_text(best_of(result));

    ck_assert_str_eq(text, "root no_shard, layers.0 no_shard, rest.1 no_shard");
    ck_assert_double_eq_tol(least_s, found_s, 1e-9 * found_s);
}
END_TEST

/* ---- by hand ---- */

static Plan *find_best(const SearchRequest *request)
{
    g_autoptr(SearchResult) result = search(request);

    ck_assert_uint_gt(result->plans->len, 0);
    return g_ptr_array_steal_index(result->plans, 0);
}

/* Of 8 blocks shared by 2 GPUs. */
static Plan *find_of_eight(guint megabytes, gboolean searches_units)
{
    const CaseShape shape = shape_of(8);
    g_autoptr(Model) model = case_model(&shape);
    g_autoptr(Topology) topology = case_gpu_topology(1, megabytes, 5000);
    SearchRequest request = request_of(model, topology, 2);

    request.global_batch = 4;
    request.searches_units = searches_units;
    return find_best(&request);
}

/* Blocks that are gathered once a micro-batch. */
static guint num_kept(const Plan *plan)
{
    guint kept = 0;

    for (guint unit = 1; unit <= plan->model->layers; unit++)
        kept += sharding_unit_kept(&plan->sharding, unit, plan->model->layers) ? 1 : 0;
    return kept;
}

/* A gathered block takes 1.6 MB: the last block is kept anyway, and each 1.6 MB more keep another.
 */
START_TEST(as_many_blocks_are_kept_as_there_is_memory_for)
{
    guint before = 1;
    double before_s = INFINITY;

    for (guint megabytes = 3594; megabytes <= 3600; megabytes++) {
        g_autoptr(Plan) alike = find_of_eight(megabytes, FALSE);
        g_autoptr(Plan) plan = find_of_eight(megabytes, TRUE);
        const guint kept = num_kept(plan);
        const double step_s = plan->prediction.step_seconds;

        ck_assert_int_eq(plan->sharding.strategy, STRATEGY_FULL_SHARD);
        ck_assert_uint_ge(kept, before);
        ck_assert_double_le(step_s, before_s);
        if (kept > 1) {
            ck_assert_double_eq(plan->alike_s, alike->prediction.step_seconds);
            ck_assert_double_lt(step_s, plan->alike_s * (1 - UNIT_CHOICE_GAIN));
        }
        before = kept;
        before_s = step_s;
    }
    ck_assert_uint_ge(before, 4);
}
END_TEST

/* Two micro-batches gather and reduce a root that is kept twice, one of shard_optimizer once: of
 * 304 rows of 256, twice, and a norm, in bf16.  Little hides it: the step is shorter by nearly
 * both. */
START_TEST(a_small_root_is_moved_once_where_the_network_is_slow)
{
    const CaseShape shape = shape_of(2);
    g_autoptr(Model) model = case_model(&shape);
    g_autoptr(Topology) topology = case_gpu_topology(2, 3543, 200);
    SearchRequest request = request_of(model, topology, 8);
    const CollectiveContext where = {
        .topology = topology, .ranks = 8, .span = 8, .ranks_per_node = 4};
    const guint64 bytes = (304 * 256 * 2 + 256) * 2;
    const double moved_s = collective_seconds(VOLUME_ALL_GATHER, bytes, DTYPE_BF16, &where) +
                           collective_seconds(VOLUME_REDUCE_SCATTER, bytes, DTYPE_BF16, &where);

    request.global_batch = 16;
    g_autoptr(Plan) plan = find_best(&request);
    g_autofree char *text = plan_units_text(plan);
    const double saved_s = plan->alike_s - plan->prediction.step_seconds;

    ck_assert_str_eq(text, "root shard_optimizer");
    ck_assert_double_le(saved_s, moved_s);
    ck_assert_double_ge(saved_s, 0.9 * moved_s);
}
END_TEST

/* ---- what a request holds fixed, and what is found is a plan as any other ---- */

START_TEST(what_is_given_is_not_searched)
{
    const CaseShape shape = shape_of(2);
    g_autoptr(Model) model = case_model(&shape);
    g_autoptr(Topology) topology = case_gpu_topology(2, 3543, 200);
    SearchRequest request = request_of(model, topology, 8);

    request.global_batch = 16;
    for (guint i = 0; i < 4; i++) {
        SearchRequest one = request;

        one.searches_units = i != 0;
        one.strategy = i == 1 ? STRATEGY_FULL_SHARD : -1;
        one.sort = i == 2 ? SORT_MEMORY : SORT_TIME;
        one.framework = i == 3 ? framework_from_name("torchtitan") : NULL;
        g_autoptr(SearchResult) result = search(&one);
        for (guint p = 0; p < result->plans->len; p++)
            ck_assert_uint_eq(((Plan *)g_ptr_array_index(result->plans, p))->sharding.num_overrides,
                              0);
    }
}
END_TEST

START_TEST(a_plan_that_is_found_is_proven_and_read_back_and_found_again)
{
    g_autoptr(Plan) plan = find_of_eight(3598, TRUE);
    g_autoptr(Plan) again = find_of_eight(3598, TRUE);
    g_autofree char *text = plan_print(plan);
    g_autofree char *text_again = plan_print(again);
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) read = plan_parse(text, "plan", &error);

    ck_assert_uint_gt(plan->sharding.num_overrides, 0);
    ck_assert_str_eq(text, text_again);
    ck_assert_msg(read != NULL, "%s", error == NULL ? "" : error->message);
    g_autoptr(ProgramSet) set = plan_compile(read, &error);
    ck_assert_msg(set != NULL, "%s", error == NULL ? "" : error->message);
    assert_proven(set, "the plan that was found");
    plan_price(read);
    ck_assert_double_eq(read->prediction.step_seconds, plan->prediction.step_seconds);
    ck_assert_uint_eq(read->prediction.memory_total, plan->prediction.memory_total);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("unit_choice");
    TCase *tcase = tcase_create("unit_choice");

    tcase_set_timeout(tcase, 200);
    tcase_add_loop_test(tcase, no_choice_of_units_is_faster_than_what_search_finds, 0,
                        G_N_ELEMENTS(spaces));
    tcase_add_test(tcase, no_choice_of_units_with_experts_is_faster);
    tcase_add_test(tcase, as_many_blocks_are_kept_as_there_is_memory_for);
    tcase_add_test(tcase, a_small_root_is_moved_once_where_the_network_is_slow);
    tcase_add_test(tcase, what_is_given_is_not_searched);
    tcase_add_test(tcase, a_plan_that_is_found_is_proven_and_read_back_and_found_again);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
