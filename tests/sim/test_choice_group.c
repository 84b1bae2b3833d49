/* Choices of one group against what is said to hold for all of them. */
#include "sim/search/candidates.h"
#include "tests/sim/summary_case.h"

#include <math.h>

/* 3500 MB are a process's own (price.c): what is above is for models of 1 to 20 MB. */
static Topology *draw_topology(GRand *random)
{
    if (draw(random, 3) == 0)
        return case_cpu_topology(1 + draw(random, 11), 1 + draw(random, 20));
    return case_gpu_topology(4, 3534 + draw(random, 20), 1000 << draw(random, 8));
}

static Sharding draw_sharding(GRand *random)
{
    const guint prefetch = draw(random, 2);

    return (Sharding){.form = draw(random, 1) == 0 ? FORM_PER_PARAMETER : FORM_FLAT,
                      .prefetch = prefetch,
                      .live_units = prefetch + 1 + draw(random, 1),
                      .keep_root = draw(random, 1) == 0,
                      .keep_last = draw(random, 1) == 0,
                      .accumulate_sharded = draw(random, 2) > 0};
}

/* All axes, strategies and schedules of up to 16 ranks. */
static SearchRequest draw_request(GRand *random, const Model *model, const Topology *topology)
{
    static const Recipe *const recipes[] = {&recipe_zero, &recipe_fsdp2, &recipe_megatron,
                                            &recipe_fp32};
    g_autofree char *names = framework_names();
    g_auto(GStrv) name = g_strsplit(names, ", ", -1);
    const gboolean is_cpu = topology->gpu.kind == DEVICE_CPU;
    const gboolean ours = is_cpu || draw(random, 2) > 0;

    return (SearchRequest){
        .model = model,
        .topology = topology,
        .gpus = is_cpu ? 1 + draw(random, 11) : 4 * (1 + draw(random, 3)),
        .global_batch = draw(random, 3) == 0 ? 0 : 12 * (1 + draw(random, 3)),
        .seq_len = 512,
        .recipe = is_cpu ? &recipe_fp32 : recipes[draw(random, 3)],
        .strategy = -1,
        .recompute = -1,
        .schedule = -1,
        .context = -1,
        .sequence_parallel = draw(random, 1) == 0,
        .sharding = draw_sharding(random),
        .framework = ours ? NULL : framework_from_name(name[draw(random, g_strv_length(name) - 1)]),
        .sort = draw(random, 4) == 0 ? SORT_MEMORY : SORT_TIME,
        .top = 10,
    };
}

static char *request_text(const SearchRequest *request, const Candidate *candidate)
{
    g_autofree char *layout = layout_text(&candidate->layout);

    return g_strdup_printf(
        "%s, recipe %s, prefetch %u, live %u, accumulate %d: %s strategy %u "
        "schedule %u V %u context %u micro-batches %u x %u recompute %u%s",
        request->framework == NULL ? "fsdp-run" : request->framework->name, request->recipe->name,
        request->sharding.prefetch, request->sharding.live_units,
        request->sharding.accumulate_sharded, layout, candidate->strategy, candidate->schedule,
        candidate->virtual_stages, candidate->context, candidate->micro_batch,
        candidate->micro_batches, candidate->recompute, candidate->partly ? " partly" : "");
}

/* Without a limit of their own, as where nothing fits. */
static void compare_members(Candidates *found, const SearchRequest *request,
                            const ChoiceGroup *group)
{
    const Candidate *least = &group->least;
    g_autoptr(GArray) members = g_array_new(FALSE, FALSE, sizeof(Candidate));

    candidates_expand(found, request, group, 1, members);
    for (guint i = 0; i < members->len; i++) {
        const Candidate *member = &g_array_index(members, Candidate, i);
        g_autofree char *text = request_text(request, member);

        ck_assert_msg(member->floor_bytes >= least->floor_bytes,
                      "%s: floor %" G_GUINT64_FORMAT ", its group's %" G_GUINT64_FORMAT, text,
                      member->floor_bytes, least->floor_bytes);
        ck_assert_msg(member->bound_s >= least->bound_s * (1 - 1e-9),
                      "%s: bound %.9g, its group's %.9g", text, member->bound_s, least->bound_s);
    }
}

/* The step of a choice, by simulation, divided by the global batch; @partly: with the first layer
 * of each chunk computed again. */
static double simulated_s(const SearchRequest *request, const Candidate *candidate, gboolean partly)
{
    static const guint16 one = 1;
    Plan *plan = plan_new();

    candidate_choose(request, candidate, plan);
    if (partly)
        plan_set_recompute(plan, (Recompute)candidate->recompute, &one, 1);
    plan_price_briefly(plan);
    const double step_s = plan->prediction.step_seconds;
    plan_free_borrowed(plan);
    return step_s / candidate->global_batch;
}

/* What stands for its bounds until then is no step's. */
static void compare_group(Candidates *found, const SearchRequest *request, ChoiceGroup group,
                          GRand *random)
{
    enum { SIMULATED = 20 }; /* one in so many */
    g_autofree char *text = request_text(request, &group.least);

    if (group.put_off) {
        const double step_s = draw(random, SIMULATED - 1) > 0
                                  ? INFINITY
                                  : simulated_s(request, &group.least, group.least.partly);

        ck_assert_msg(step_s >= group.least.bound_s * (1 - 1e-9),
                      "%s: step %.9g, bound of computing nothing again %.9g", text, step_s,
                      group.least.bound_s);
        group.least.bound_s = 0;
        candidates_bound(found, request, &group, 1);
        ck_assert(!group.put_off);
    }
    if (!candidates_fit(found, &group))
        group.least.bound_s = 0; /* too large as a whole: not timed */
    compare_members(found, request, &group);
}

static guint64 compare_all(Candidates *found, const SearchRequest *request, const GArray *groups,
                           GRand *random)
{
    guint64 counted = 0;

    for (guint i = 0; i < groups->len; i++) {
        const ChoiceGroup *group = &g_array_index(groups, ChoiceGroup, i);

        counted += group_counted(group);
        compare_group(found, request, *group, random);
    }
    return counted;
}

START_TEST(no_choice_is_better_than_its_group)
{
    enum { REQUESTS = 2 };
    g_autoptr(GRand) random = g_rand_new_with_seed(511 + (guint)_i);
    g_autoptr(Model) model =
        (guint)_i < G_N_ELEMENTS(expert_cases) ? expert_model((guint)_i) : NULL;

    for (guint i = 0; i < REQUESTS; i++) {
        const CaseShape shape = draw_shape(random);
        g_autoptr(Model) dense = case_model(&shape);
        g_autoptr(Topology) topology = draw_topology(random);
        const SearchRequest request = draw_request(random, model == NULL ? dense : model, topology);
        g_autoptr(Candidates) found = candidates_find(&request, request.gpus);
        g_autoptr(GArray) large = g_array_copy(found->large);
        const guint64 legal = found->legal;
        guint64 counted = compare_all(found, &request, found->groups, random);

        counted += compare_all(found, &request, large, random);
        ck_assert_uint_eq(counted, legal);
        found->floor_limit_bytes = G_MAXUINT64 / 2; /* now all fit */
        compare_all(found, &request, found->groups, random);
        compare_all(found, &request, large, random);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("choice_group");
    TCase *tcase = tcase_create("choice_group");

    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, no_choice_is_better_than_its_group, 0,
                        2 * G_N_ELEMENTS(expert_cases));
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
