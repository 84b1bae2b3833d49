#include "sim/search/search.h"
#include "tests/sim/least_recompute.h"
#include "tests/sim/plan_case.h"

/* Search over all axes against plain loops that price every choice. */

typedef struct {
    const SearchRequest *request;
    char *topology;
    GPtrArray *all; /* Plan */
    Case one;
} Everything;

static void add_choice(Everything *every)
{
    const Case *one = &every->one;

    if (case_verdict(one, NULL) != VERDICT_OK)
        return;
    Plan *plan = case_plan(one, topology_parse(every->topology, "case", "", NULL));
    plan->framework = every->request->framework;
    plan_price(plan);
    g_ptr_array_add(every->all, plan);
}

static void add_batches(Everything *every)
{
    const SearchRequest *request = every->request;
    const guint ranks = layout_data_ranks(&every->one.layout);

    for (guint micro = 1; micro <= request->global_batch; micro++)
        for (guint r = 0; r < NUM_RECOMPUTES; r++) {
            if (request->global_batch % (ranks * micro) != 0)
                continue;
            every->one.schedule.micro_batch = micro;
            every->one.schedule.micro_batches = request->global_batch / ranks / micro;
            every->one.schedule.recompute = (Recompute)r;
            add_choice(every);
        }
}

/* Two chunks a stage, or as many as cut the layers evenly. */
static gboolean is_cut(guint layers, guint pp, guint virtual_stages)
{
    return virtual_stages == 2 || layers % (pp * virtual_stages) == 0;
}

static void add_schedules(Everything *every, Strategy strategy)
{
    const guint pp = every->one.layout.size[AXIS_PP], layers = every->one.model->layers;

    for (guint kind = 0; kind < NUM_SCHEDULES; kind++)
        for (guint v = 1; v <= MAX(layers / pp, 2); v++) {
            const gboolean several = kind == SCHEDULE_INTERLEAVED;

            if ((pp == 1 && kind != SCHEDULE_1F1B) || several != (v > 1) ||
                (several && !is_cut(layers, pp, v)))
                continue;
            every->one.schedule.kind = (ScheduleKind)kind;
            every->one.schedule.virtual_stages = v;
            every->one.sharding = every->request->sharding;
            every->one.sharding.strategy = strategy;
            sharding_normalise(&every->one.sharding, &every->one.layout, &every->one.schedule);
            add_batches(every);
        }
}

static void add_mesh(Everything *every)
{
    const Layout *layout = &every->one.layout;
    const SearchRequest *request = every->request;
    const gboolean shards = layout_shard_ranks(layout) > 1 ||
                            request->recipe->stored != request->recipe->compute ||
                            request->sharding.offload.parameters != TIER_DEVICE ||
                            request->sharding.gather_fp8; /* no_shard is none of these */

    for (guint s = STRATEGY_NO_SHARD; s <= STRATEGY_FULL_SHARD; s++)
        for (guint context = 0; context < NUM_CONTEXT_KINDS; context++) {
            const gboolean offered =
                s == STRATEGY_NO_SHARD ? layout->size[AXIS_DP_SHARD] == 1 : shards;

            if (!offered || (layout->size[AXIS_CP] == 1 && context != CONTEXT_RING))
                continue;
            every->one.context = (ContextKind)context;
            add_schedules(every, (Strategy)s);
        }
}

/* Whether a mesh is one that search looks at: of cp only what is asked for, as sequences are
 * short. */
static gboolean is_mesh(const Everything *every)
{
    const SearchRequest *request = every->request;
    const Layout *layout = &every->one.layout;

    return layout_world(layout) == request->gpus &&
           layout->size[AXIS_CP] == MAX(request->fixed[AXIS_CP], 1) &&
           layout->size[AXIS_PP] <= every->one.model->layers &&
           layout->size[AXIS_TP] <= every->one.model->heads;
}

static void add_all(Everything *every)
{
    guint *size = every->one.layout.size;

    for (guint i = 0; i < 12 * 12 * 12 * 12 * 12; i++) {
        guint rest = i;

        for (guint a = 0; a < NUM_AXES; a++, rest /= 12)
            size[a] = 1 + rest % 12;
        if (is_mesh(every))
            add_mesh(every);
    }
}

static double key_of(const SearchRequest *request, const Plan *plan)
{
    return request->sort == SORT_MEMORY ? (double)plan->prediction.memory_total
                                        : plan->prediction.step_seconds;
}

static gint by_key(gconstpointer a, gconstpointer b, gpointer data)
{
    const double left = key_of(data, *(Plan *const *)a), right = key_of(data, *(Plan *const *)b);

    return left < right ? -1 : left > right;
}

/* The list is the best of all that fit, in order; of equal ones any. */
static void compare(const Everything *every)
{
    const SearchRequest *request = every->request;
    g_autoptr(GPtrArray) fitting = g_ptr_array_new();
    g_autoptr(SearchResult) result = search(request);
    const guint least = request->sort == SORT_MEMORY ? 0 : add_least_recomputes(every->all);

    for (guint i = 0; i < every->all->len; i++)
        if (((Plan *)g_ptr_array_index(every->all, i))->reasons->len == 0)
            g_ptr_array_add(fitting, g_ptr_array_index(every->all, i));
    g_ptr_array_sort_with_data(fitting, by_key, (gpointer)request);
    ck_assert_uint_ge(result->candidates, every->all->len - least); /* and what may need less */
    ck_assert_uint_eq(result->candidates, result->feasible + result->rejected[VERDICT_MEMORY] +
                                              result->rejected[VERDICT_SLOWER]);
    ck_assert_uint_eq(result->plans->len, MIN(fitting->len, request->top));
    for (guint i = 0; i < result->plans->len; i++) {
        const Plan *plan = g_ptr_array_index(result->plans, i);
        const double key = key_of(request, plan);
        gboolean found = FALSE;

        ck_assert_double_eq_tol(key, key_of(request, g_ptr_array_index(fitting, i)), 1e-12 * key);
        for (guint j = 0; j < fitting->len; j++)
            found |= strcmp(plan->hash, ((Plan *)g_ptr_array_index(fitting, j))->hash) == 0;
        ck_assert_msg(found, "plan %u is none of those that fit", i);
    }
}

static SearchRequest draw_request(GRand *random, const Model *model, const Topology *topology)
{
    static const guint gpus[] = {2, 4, 4, 6, 8};
    static const Tier tiers[] = {TIER_DEVICE, TIER_DEVICE, TIER_HOST, TIER_CXL};
    SearchRequest request = {
        .model = model,
        .topology = topology,
        .gpus = gpus[draw(random, G_N_ELEMENTS(gpus) - 1)],
        .seq_len = 16,
        .recipe = topology->gpu.kind == DEVICE_CPU ? &recipe_fp32 : &recipe_zero,
        .strategy = -1,
        .recompute = -1,
        .schedule = -1,
        .context = -1,
        .sequence_parallel = draw(random, 1) == 1,
        .sharding = sharding_default,
        .top = 1 + draw(random, 11),
        .sort = draw(random, 3) == 0 ? SORT_MEMORY : SORT_TIME,
    };

    request.sharding.form = (Form)draw(random, 1);
    request.sharding.keep_root = draw(random, 1) == 1;
    request.sharding.keep_last = draw(random, 1) == 1;
    request.sharding.accumulate_sharded = draw(random, 1) == 1;
    if (topology->gpu.kind == DEVICE_CUDA && draw(random, 1) == 1) {
        request.recipe = draw_recipe(random);
        request.optimizer = (Optimizer)draw(random, NUM_OPTIMIZERS - 1);
        request.sharding.gather_fp8 =
            request.recipe->precision == DTYPE_FP8 && draw(random, 1) == 1;
        request.sharding.offload = (Offload){tiers[draw(random, 3)], tiers[draw(random, 3)]};
    }
    request.global_batch = request.gpus << draw(random, 1);
    request.fixed[AXIS_CP] = 2 * draw(random, 1);
    return request;
}

static Topology *draw_gpus(GRand *random, double process_bytes)
{
    return case_gpu_topology(4, (guint)(process_bytes / 1e6) + 34 + draw(random, 5),
                             100 << draw(random, 8));
}

/* Memory so that some choices fit: of 3500 MB for the framework and 34 for cuBLAS little is left.
 */
static Topology *draw_topology(GRand *random)
{
    return draw(random, 3) == 0
               ? case_cpu_topology(8 << draw(random, 1), 1 + draw(random, 20))
               : case_gpu_topology(4, 3534 + draw(random, 3), 100 << draw(random, 8));
}

/* @framework: NULL for fsdp-run. */
static void compare_search(GRand *random, const Framework *framework)
{
    const CaseShape shape = {
        .vocab = 256 + draw(random, 100),
        .hidden = 32,
        .ffn = 64 + draw(random, 64),
        .layers = 1 + draw(random, 3),
        .heads = 4,
        .kv_heads = 1u << draw(random, 2),
        .tied = draw(random, 1) == 1,
    };
    g_autoptr(Model) model = case_model(&shape);
    g_autoptr(Topology) topology =
        framework == NULL ? draw_topology(random) : draw_gpus(random, framework->process_bytes);
    g_autofree char *text = topology_print(topology);
    SearchRequest request = draw_request(random, model, topology);
    request.framework = framework;
    g_autoptr(GPtrArray) all = g_ptr_array_new_with_free_func((GDestroyNotify)plan_free);
    Everything every = {&request, text, all, case_of(model, 1, 1, 1)};

    every.one.workload = (Workload){request.global_batch, request.seq_len, request.recipe,
                                    request.optimizer, request.expert_imbalance};
    every.one.sequence_parallel = request.sequence_parallel;
    add_all(&every);
    compare(&every);
}

START_TEST(search_over_all_axes_finds_what_pricing_everything_finds)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(7 + (guint)_i);

    compare_search(random, NULL);
}
END_TEST

START_TEST(so_it_does_for_other_frameworks)
{
    static const char *const names[] = {"megatron", "torchtitan", "deepspeed", "nemo"};
    g_autoptr(GRand) random = g_rand_new_with_seed(107 + (guint)_i);

    compare_search(random, framework_from_name(names[(guint)_i % G_N_ELEMENTS(names)]));
}
END_TEST

/* Memory between what nothing and what all layers computed again need, in steps of a megabyte: of
 * three stages the first holds most micro-batches, so it is the first to compute again. */
START_TEST(as_few_layers_are_computed_again_as_fit)
{
    const CaseShape shape = {
        .vocab = 256, .hidden = 64, .ffn = 128, .layers = 9, .heads = 4, .kv_heads = 4};
    g_autoptr(Model) model = case_model(&shape);
    guint partly = 0, by_stage = 0;

    for (guint megabytes = 3536; megabytes < 3552; megabytes++) {
        g_autoptr(Topology) topology = case_gpu_topology(4, megabytes, 20000);
        g_autofree char *text = topology_print(topology);
        SearchRequest request = {
            .model = model,
            .topology = topology,
            .gpus = 3,
            .seq_len = 256,
            .global_batch = 12,
            .micro_batch = 2,
            .recipe = &recipe_zero,
            .strategy = -1,
            .recompute = -1,
            .schedule = SCHEDULE_1F1B,
            .virtual_stages = 1,
            .context = -1,
            .fixed = {3, 1, 1, 1, 1},
            .sharding = sharding_default,
            .top = 8,
        };
        g_autoptr(GPtrArray) all = g_ptr_array_new_with_free_func((GDestroyNotify)plan_free);
        Everything every = {&request, text, all, case_of(model, 1, 1, 1)};

        every.one.workload = (Workload){.global_batch = 12,
                                        .seq_len = 256,
                                        .recipe = &recipe_zero,
                                        .optimizer = OPTIMIZER_ADAMW};
        every.one.layout.size[AXIS_PP] = 3;
        for (guint r = 0; r < NUM_RECOMPUTES; r++) {
            every.one.sharding = request.sharding;
            every.one.sharding.strategy = STRATEGY_NO_SHARD;
            every.one.schedule = (Schedule){.micro_batch = 2,
                                            .micro_batches = 6,
                                            .recompute = (Recompute)r,
                                            .virtual_stages = 1};
            sharding_normalise(&every.one.sharding, &every.one.layout, &every.one.schedule);
            add_choice(&every);
        }
        compare(&every);
        for (guint i = 3; i < all->len; i++) {
            const guint16 *layers = ((Plan *)g_ptr_array_index(all, i))->schedule.recompute_layers;

            partly++;
            by_stage += layers[0] != layers[2] ? 1 : 0;
            ck_assert_uint_ge(layers[0], layers[1]);
        }
    }
    ck_assert_uint_ge(partly, 4);
    ck_assert_uint_ge(by_stage, 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("search_axes");
    TCase *tcase = tcase_create("search_axes");

    tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, search_over_all_axes_finds_what_pricing_everything_finds, 0, 16);
    tcase_add_loop_test(tcase, so_it_does_for_other_frameworks, 0, 4);
    tcase_add_test(tcase, as_few_layers_are_computed_again_as_fit);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
