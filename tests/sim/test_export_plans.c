/* Exports of any plan: batch, keys, types. */
#include "tests/sim/export_case.h"

static guint64 number(Settings *settings, const char *key)
{
    return g_ascii_strtoull(setting(settings, key), NULL, 10);
}

static guint64 number_after(const char *text, const char *words, guint64 otherwise)
{
    const char *found = strstr(text, words);

    return found == NULL ? otherwise : g_ascii_strtoull(found + strlen(words), NULL, 10);
}

/* Sequences of a step, from nothing but the file. */
static guint64 batch_of(const char *framework, const char *text, Settings *settings, guint world)
{
    guint64 micro, accumulation, ranks = world;

    if (strcmp(framework, "torchtitan") == 0) {
        const guint64 global = number(settings, "training.global_batch_size");

        ranks = number(settings, "parallelism.data_parallel_replicate_degree") *
                number(settings, "parallelism.data_parallel_shard_degree");
        micro = number(settings, "training.local_batch_size");
        ck_assert_uint_eq(global % (micro * ranks), 0); /* else torchtitan refuses to start */
        return global;
    }
    if (strcmp(framework, "megatron") == 0) {
        const guint64 global = number(settings, "--global-batch-size");

        ck_assert_uint_eq(global % (number(settings, "--micro-batch-size") * ranks), 0);
        return global;
    }
    if (strcmp(framework, "deepspeed") == 0) {
        micro = number(settings, "train_micro_batch_size_per_gpu");
        accumulation = number(settings, "gradient_accumulation_steps");
        /* It asserts this itself. */
        ck_assert_uint_eq(number(settings, "train_batch_size"), micro * accumulation * ranks);
        return micro * accumulation * ranks;
    }
    ranks = number(settings, "num_processes");
    return number_after(text, "batches of ", 0) * number_after(text, "num_steps=", 1) * ranks;
}

static Plan *random_plan(GRand *random)
{
    static const Recipe *const recipes[] = {&recipe_zero, &recipe_fsdp2, &recipe_fp32};
    Plan *plan = make_plan(recipes[g_rand_int_range(random, 0, 3)]);
    Sharding *sharding = &plan->sharding;

    plan->workload.optimizer = (Optimizer)g_rand_int_range(random, 0, NUM_OPTIMIZERS);
    plan->schedule =
        (Schedule){.micro_batch = (guint)g_rand_int_range(random, 1, 6),
                   .micro_batches = (guint)g_rand_int_range(random, 1, 9),
                   .recompute = (Recompute)g_rand_int_range(random, 0, NUM_RECOMPUTES)};
    sharding->form = (Form)g_rand_int_range(random, 0, NUM_FORMS);
    sharding->prefetch = (guint)g_rand_int_range(random, 0, 4);
    sharding->live_units = sharding->prefetch + (guint)g_rand_int_range(random, 1, 3);
    sharding->keep_root = g_rand_boolean(random);
    sharding->keep_last = g_rand_boolean(random);
    sharding->accumulate_sharded = g_rand_boolean(random);
    set_mesh(plan, (Strategy)g_rand_int_range(random, 0, NUM_STRATEGIES),
             (guint)g_rand_int_range(random, 1, 5), (guint)g_rand_int_range(random, 1, 24));
    plan->gpus = layout_world(&plan->layout);
    plan->ranks_per_node = (guint)g_rand_int_range(random, 1, (gint32)plan->gpus + 1);
    plan->workload.global_batch =
        plan->schedule.micro_batch * plan->schedule.micro_batches * plan->gpus;
    return plan;
}

static gboolean is_legal(const Plan *plan)
{
    const Choice choice = plan_choice(plan);

    return legality_check(&choice, NULL) == VERDICT_OK;
}

START_TEST(any_plan_keeps_its_batch_and_has_known_keys_or_is_refused)
{
    const char *framework = export_frameworks()[_i];
    g_autoptr(GRand) random = g_rand_new_with_seed(20260 + (guint32)_i);
    guint written = 0, refused = 0;

    for (guint i = 0; i < 3000; i++) {
        g_autoptr(Plan) plan = random_plan(random);
        g_autofree char *refusal = NULL;

        if (!is_legal(plan))
            continue;
        g_autofree char *text = export_or_refusal(plan, framework, &refusal);
        if (text == NULL) {
            ck_assert(g_str_has_prefix(refusal, framework));
            refused++;
            continue;
        }
        g_autoptr(GHashTable) settings = settings_read(framework, text);
        check_keys(framework, settings);
        ck_assert_uint_eq(batch_of(framework, text, settings, plan->gpus),
                          plan->workload.global_batch);
        written++;
    }
    ck_assert_uint_ge(written, 50);
    ck_assert_uint_ge(refused, 50);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("export of any plan");
    TCase *tests = tcase_create("export of any plan");

    tcase_add_loop_test(tests, any_plan_keeps_its_batch_and_has_known_keys_or_is_refused, 0, 4);
    tcase_set_timeout(tests, 60);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
