/* Exports of any plan: batch, mesh, stages, keys, types. */
#include "sim/config/config.h"
#include "tests/sim/export_case.h"

static guint64 number(Settings *settings, const char *key)
{
    return g_ascii_strtoull(setting(settings, key), NULL, 10);
}

static guint64 number_or(Settings *settings, const char *key, guint64 otherwise)
{
    return g_hash_table_contains(settings, key) ? number(settings, key) : otherwise;
}

static guint64 number_after(const char *text, const char *words, guint64 otherwise)
{
    const char *found = strstr(text, words);

    return found == NULL ? otherwise : g_ascii_strtoull(found + strlen(words), NULL, 10);
}

/* ---- the layout, from nothing but the file ---- */

static const char *const accelerate_mesh[NUM_AXES] = {
    [AXIS_DP_REPLICATE] = "parallelism_config.parallelism_config_dp_replicate_size",
    [AXIS_DP_SHARD] = "parallelism_config.parallelism_config_dp_shard_size",
    [AXIS_CP] = "parallelism_config.parallelism_config_cp_size",
    [AXIS_TP] = "parallelism_config.parallelism_config_tp_size"};
static const char *const torchtitan_mesh[NUM_AXES] = {
    [AXIS_PP] = "parallelism.pipeline_parallel_degree",
    [AXIS_DP_REPLICATE] = "parallelism.data_parallel_replicate_degree",
    [AXIS_DP_SHARD] = "parallelism.data_parallel_shard_degree",
    [AXIS_CP] = "parallelism.context_parallel_degree",
    [AXIS_TP] = "parallelism.tensor_parallel_degree"};
static const char *const megatron_mesh[NUM_AXES] = {[AXIS_PP] = "--pipeline-model-parallel-size",
                                                    [AXIS_DP_REPLICATE] =
                                                        "--num-distributed-optimizer-instances",
                                                    [AXIS_CP] = "--context-parallel-size",
                                                    [AXIS_TP] = "--tensor-model-parallel-size"};
static const char *const deepspeed_mesh[NUM_AXES] = {NULL};

static const char *const *mesh_keys(const char *framework)
{
    return strcmp(framework, "torchtitan") == 0   ? torchtitan_mesh
           : strcmp(framework, "megatron") == 0   ? megatron_mesh
           : strcmp(framework, "accelerate") == 0 ? accelerate_mesh
                                                  : deepspeed_mesh;
}

/* What the file does not say of data parallelism is in dp_shard. */
static Layout read_mesh(const char *framework, Settings *settings, guint world)
{
    const char *const *keys = mesh_keys(framework);
    Layout layout = {0};

    for (guint axis = 0; axis < NUM_AXES; axis++)
        layout.size[axis] = keys[axis] == NULL ? 1 : (guint)number_or(settings, keys[axis], 1);
    const guint rest = world / layout_world(&layout);
    ck_assert_uint_eq(rest * layout_world(&layout), world);
    layout.size[AXIS_DP_SHARD] *= rest;
    return layout;
}

static guint count_of(const char *text, const char *word)
{
    guint count = 0;

    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word))
        count++;
    return count;
}

/* Chunks that are written out between @separators: how many blocks each has. */
static void append_counts(GString *chunks, const char *text, const char *separator,
                          const char *block)
{
    g_auto(GStrv) parts = g_strsplit(text, separator, -1);

    for (guint i = 0; parts[i] != NULL; i++)
        g_string_append_printf(chunks, " %u", count_of(parts[i], block));
}

/* "8 8 8 8": the blocks of each chunk. */
static char *read_chunks(const char *framework, Settings *settings, guint layers, guint pp)
{
    const gboolean titan = strcmp(framework, "torchtitan") == 0;
    const char *key =
        titan ? "parallelism.module_fqns_per_model_part" : "--pipeline-model-parallel-layout";
    const char *written = g_hash_table_lookup(settings, key);
    GString *chunks = g_string_new(NULL);

    if (written != NULL) {
        append_counts(chunks, written, titan ? "], [" : "|", titan ? "\"layers." : "t");
        return g_string_free(chunks, FALSE);
    }
    const guint64 each =
        titan ? number_or(settings, "parallelism.pipeline_parallel_layers_per_stage", layers)
              : layers / pp / number_or(settings, "--num-virtual-stages-per-pipeline-rank", 1);
    for (guint64 done = 0; done < layers; done += each)
        g_string_append_printf(chunks, " %" G_GUINT64_FORMAT, each);
    return g_string_free(chunks, FALSE);
}

static char *chunks_of(const Plan *plan)
{
    const guint pp = plan->layout.size[AXIS_PP];
    GString *chunks = g_string_new(NULL);

    for (guint c = 0; c < schedule_chunks(&plan->schedule, pp); c++)
        g_string_append_printf(chunks, " %u",
                               schedule_chunk(&plan->schedule, plan->model->layers, pp, c).count);
    return g_string_free(chunks, FALSE);
}

static void check_stages(const char *framework, Settings *settings, const Plan *plan)
{
    const guint pp = plan->layout.size[AXIS_PP];
    g_autofree char *read = read_chunks(framework, settings, plan->model->layers, pp);
    g_autofree char *planned = chunks_of(plan);

    ck_assert_str_eq(read, planned);
    if (pp == 1 || strcmp(framework, "torchtitan") != 0)
        return;
    const char *schedule = setting(settings, "parallelism.pipeline_parallel_schedule");
    ck_assert_str_eq(schedule, plan->schedule.kind == SCHEDULE_GPIPE  ? "\"GPipe\""
                               : plan->schedule.kind == SCHEDULE_1F1B ? "\"1F1B\""
                                                                      : "\"Interleaved1F1B\"");
    ck_assert_uint_eq(number(settings, "training.local_batch_size"),
                      number(settings, "parallelism.pipeline_parallel_microbatch_size") *
                          plan->schedule.micro_batches);
}

static void check_context(const char *framework, Settings *settings, const Plan *plan)
{
    static const struct {
        const char *framework, *key, *ring, *all_gather;
    } words[] = {
        {"torchtitan", "parallelism.context_parallel_rotate_method", "\"alltoall\"",
         "\"allgather\""},
        {"megatron", "--cp-comm-type", "p2p", "all_gather"},
        {"accelerate", "parallelism_config.parallelism_config_cp_comm_strategy", "alltoall",
         "allgather"},
    };

    for (guint i = 0; i < G_N_ELEMENTS(words); i++)
        if (strcmp(words[i].framework, framework) == 0)
            ck_assert_str_eq(setting(settings, words[i].key),
                             plan->context == CONTEXT_RING ? words[i].ring : words[i].all_gather);
}

static void check_layout(const char *framework, Settings *settings, const Plan *plan)
{
    const Layout read = read_mesh(framework, settings, plan->gpus);
    const guint *size = plan->layout.size;

    ck_assert_uint_eq(read.size[AXIS_PP], size[AXIS_PP]);
    ck_assert_uint_eq(read.size[AXIS_CP], size[AXIS_CP]);
    ck_assert_uint_eq(read.size[AXIS_TP], size[AXIS_TP]);
    ck_assert_uint_eq(layout_data_ranks(&read), layout_data_ranks(&plan->layout));
    if (strcmp(framework, "torchtitan") == 0)
        ck_assert_uint_eq(read.size[AXIS_DP_SHARD], size[AXIS_DP_SHARD]);
    if (strcmp(framework, "torchtitan") == 0 || strcmp(framework, "megatron") == 0)
        check_stages(framework, settings, plan);
    if (size[AXIS_CP] > 1)
        check_context(framework, settings, plan);
}

/* Sequences of a step, from nothing but the file. */
static guint64 batch_of(const char *framework, const char *text, Settings *settings, guint world)
{
    const Layout layout = read_mesh(framework, settings, world);
    const guint64 ranks = layout_data_ranks(&layout);
    guint64 micro, accumulation;

    if (strcmp(framework, "torchtitan") == 0) {
        const guint64 global = number(settings, "training.global_batch_size");

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
    return number_after(text, "batches of ", 0) * number_after(text, "num_steps=", 1) * ranks;
}

/* ---- and back ---- */

static void same_or_unsaid(const char *what, guint read, guint want)
{
    ck_assert_msg(read == 0 || read == want, "%s: %u, not %u", what, read, want);
}

static void same_choice_or_unsaid(const char *what, gint read, guint want)
{
    ck_assert_msg(read < 0 || (guint)read == want, "%s: %d, not %u", what, read, want);
}

/* hybrid_shard is full_shard over some of the ranks. */
static Strategy plain(gint strategy)
{
    return strategy == STRATEGY_HYBRID_SHARD ? STRATEGY_FULL_SHARD : (Strategy)strategy;
}

/* The same types, under whichever name.  accelerate's file has no word for reductions. */
static void check_recipe(const char *framework, const Recipe *read, const Recipe *want)
{
    ck_assert_int_eq(read->precision, want->precision);
    ck_assert_int_eq(read->stored, want->stored);
    ck_assert_int_eq(read->master, want->master);
    ck_assert_int_eq(read->gradient, want->gradient);
    if (strcmp(framework, "accelerate") != 0)
        ck_assert_int_eq(read->reduce, want->reduce);
}

/* What --from takes out of the file is what the plan says, or nothing. */
static void check_read_back(const char *framework, const char *text, const Plan *plan)
{
    static const char *const sources[][2] = {{"torchtitan", "job.toml"},
                                             {"megatron", "job.sh"},
                                             {"deepspeed", "job.json"},
                                             {"accelerate", "job.yaml"}};
    guint i = 0;
    g_autoptr(GError) error = NULL;

    while (strcmp(sources[i][0], framework) != 0)
        i++;
    g_autoptr(Config) config = config_parse(text, sources[i][1], &error);
    ck_assert_msg(config != NULL, "%s\n%s", error == NULL ? "" : error->message, text);
    ck_assert_str_eq(config->framework, framework);
    for (guint a = 0; a < NUM_AXES; a++)
        same_or_unsaid(axis_name((Axis)a), config->axis[a], plan->layout.size[a]);
    same_or_unsaid("batch", config->global_batch, plan->workload.global_batch);
    same_or_unsaid("micro-batch", config->micro_batch, plan->schedule.micro_batch);
    same_or_unsaid("micro-batches", config->micro_batches, plan->schedule.micro_batches);
    same_or_unsaid("seq_len", config->seq_len, plan->workload.seq_len);
    same_choice_or_unsaid("recompute", config->recompute, plan->schedule.recompute);
    same_choice_or_unsaid("schedule", config->schedule, plan->schedule.kind);
    same_choice_or_unsaid("optimizer", config->optimizer, plan->workload.optimizer);
    if (plan->layout.size[AXIS_CP] > 1)
        same_choice_or_unsaid("context", config->context, plan->context);
    if (layout_shard_ranks(&plan->layout) > 1)
        ck_assert_int_eq(plain(config->strategy), plain((gint)plan->sharding.strategy));
    for (guint c = 0; c < config->num_chunks; c++)
        ck_assert_uint_eq(
            config->chunk_layers[c],
            schedule_chunk(&plan->schedule, plan->model->layers, plan->layout.size[AXIS_PP], c)
                .count);
    if (config->recipe != NULL)
        check_recipe(framework, config->recipe, plan->workload.recipe);
    ck_assert_int_eq(config->gather_fp8, plan->sharding.gather_fp8);
    ck_assert_int_eq(config->offload.optimizer, plan->sharding.offload.optimizer);
    ck_assert_int_eq(config->offload.parameters, plan->sharding.offload.parameters);
    if (plan->model->experts.count > 0 && plan->sharding.strategy != STRATEGY_NO_SHARD)
        ck_assert_uint_eq(MAX(config->ep, 1), layout_ep(&plan->layout));
}

/* ---- any plan ---- */

static guint random_size(GRand *random)
{
    static const guint sizes[] = {1, 1, 1, 2, 3, 4};

    return sizes[g_rand_int_range(random, 0, G_N_ELEMENTS(sizes))];
}

/* Blocks move from one chunk to another. */
static void make_uneven(Plan *plan, GRand *random)
{
    const guint chunks = schedule_chunks(&plan->schedule, plan->layout.size[AXIS_PP]);

    plan->chunk_layers = g_new(guint16, chunks);
    for (guint c = 0; c < chunks; c++)
        plan->chunk_layers[c] = (guint16)schedule_chunk(&plan->schedule, plan->model->layers,
                                                        plan->layout.size[AXIS_PP], c)
                                    .count;
    plan->chunk_layers[g_rand_int_range(random, 0, (gint32)chunks)]--;
    plan->chunk_layers[g_rand_int_range(random, 0, (gint32)chunks)]++;
    plan->schedule.chunk_layers = plan->chunk_layers;
}

static void choose_axes(Plan *plan, GRand *random)
{
    guint *size = plan->layout.size;

    size[AXIS_PP] = random_size(random);
    size[AXIS_CP] = random_size(random);
    size[AXIS_TP] = random_size(random);
    plan->context = (ContextKind)g_rand_int_range(random, 0, NUM_CONTEXT_KINDS);
    plan->sequence_parallel = g_rand_boolean(random);
    if (size[AXIS_PP] == 1)
        return;
    plan->schedule.kind = (ScheduleKind)g_rand_int_range(random, 0, NUM_SCHEDULES);
    if (plan->schedule.kind == SCHEDULE_INTERLEAVED)
        plan->schedule.virtual_stages = (guint)g_rand_int_range(random, 2, 4);
    if (g_rand_boolean(random))
        make_uneven(plan, random);
}

/* One in eight is in fp8, and one of two of those gathers in it; one in eight has state on the
 * host.
 */
static void choose_state(Plan *plan, GRand *random)
{
    const Recipe *eighth = recipe_with_precision(plan->workload.recipe, DTYPE_FP8);
    const gint which = g_rand_int_range(random, 0, 16);

    if (which < 2 && eighth != NULL)
        plan->workload.recipe = eighth;
    plan->sharding.gather_fp8 = which == 0 && eighth != NULL;
    if (which >= 14)
        plan->sharding.offload = (Offload){TIER_HOST, which == 14 ? TIER_HOST : TIER_DEVICE};
}

/* Takes @model. */
static Plan *random_plan(GRand *random, Model *model)
{
    static const Recipe *const recipes[] = {&recipe_zero, &recipe_fsdp2, &recipe_fp32};
    const gboolean sparse = model->experts.count > 0;
    Plan *plan = make_plan_with(model, recipes[g_rand_int_range(random, 0, 3)]);
    Sharding *sharding = &plan->sharding;

    if (!sparse)
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
    choose_state(plan, random);
    if (sparse)
        plan->layout.ep = 1u << g_rand_int_range(random, 0, 4);
    choose_axes(plan, random);
    set_mesh(plan, (Strategy)g_rand_int_range(random, 0, NUM_STRATEGIES),
             (guint)g_rand_int_range(random, 1, 5), (guint)g_rand_int_range(random, 1, 24));
    plan->gpus = layout_world(&plan->layout);
    plan->ranks_per_node = g_rand_boolean(random)
                               ? plan->gpus
                               : (guint)g_rand_int_range(random, 1, (gint32)plan->gpus + 1);
    plan->workload.global_batch = plan->schedule.micro_batch * plan->schedule.micro_batches *
                                  layout_data_ranks(&plan->layout);
    return plan;
}

/* Every fourth plan has accumulators or reductions of its own. */
static void choose_types(Plan *plan, guint turn)
{
    const Recipe *recipe = plan->workload.recipe;

    if (turn % 4 == 0)
        plan->workload.recipe =
            recipe_with_gradients(recipe, turn / 4 % 2 == 0 ? DTYPE_FP32 : recipe->gradient,
                                  turn / 8 % 2 == 0 ? recipe->compute : DTYPE_FP32);
}

static gboolean is_legal(const Plan *plan)
{
    const Choice choice = plan_choice(plan);

    return legality_check(&choice, NULL) == VERDICT_OK;
}

/* How many were written, and of those that have a feature. */
typedef struct {
    guint written, refused, split, staged, shared, eighths;
} Seen;

static void export_one(const char *framework, const Plan *plan, Seen *seen)
{
    g_autofree char *refusal = NULL;
    g_autofree char *text = export_or_refusal(plan, framework, &refusal);

    if (text == NULL) {
        ck_assert(g_str_has_prefix(refusal, framework));
        seen->refused++;
        return;
    }
    g_autoptr(GHashTable) settings = settings_read(framework, text);
    check_keys(framework, settings);
    ck_assert_uint_eq(batch_of(framework, text, settings, plan->gpus), plan->workload.global_batch);
    check_layout(framework, settings, plan);
    check_read_back(framework, text, plan);
    seen->written++;
    seen->staged += plan->layout.size[AXIS_PP] > 1;
    seen->split += plan->layout.size[AXIS_CP] > 1 && plan->layout.size[AXIS_TP] > 1;
    seen->shared += layout_ep(&plan->layout) > 1;
    seen->eighths += plan->workload.recipe->precision == DTYPE_FP8;
}

/* Each plan is of one of @models, up to a NULL. */
static Seen export_many(const char *framework, guint32 seed, guint plans, const char *const *models)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(seed);
    g_autoptr(GPtrArray) known = g_ptr_array_new_with_free_func((GDestroyNotify)model_free);
    Seen seen = {0};

    for (guint i = 0; models[i] != NULL; i++)
        g_ptr_array_add(known, model_of(models[i]));
    for (guint i = 0; i < plans; i++) {
        const guint which = (guint)g_rand_int_range(random, 0, (gint32)known->len);
        g_autoptr(Plan) plan = random_plan(random, g_ptr_array_index(known, which));

        choose_types(plan, i);
        if (is_legal(plan))
            export_one(framework, plan, &seen);
        plan->model = NULL; /* the array's */
    }
    return seen;
}

START_TEST(any_plan_keeps_its_batch_and_layout_or_is_refused)
{
    const char *framework = export_frameworks()[_i];
    const Seen seen = export_many(framework, 20260 + (guint32)_i, 20000,
                                  (const char *const[]){export_llama_8b, NULL});

    ck_assert_uint_ge(seen.written, 50);
    ck_assert_uint_ge(seen.refused, 50);
    ck_assert_int_eq(seen.staged >= 20, _i < 2); /* the two that have pipelines */
    ck_assert_int_eq(seen.split >= 5, strcmp(framework, "deepspeed") != 0);
    ck_assert_int_eq(seen.eighths >= 5, strcmp(framework, "deepspeed") != 0);
}
END_TEST

/* All but accelerate divide experts. */
START_TEST(any_plan_with_experts_keeps_its_layout_or_is_refused)
{
    const char *framework = export_frameworks()[_i];
    const Seen seen =
        export_many(framework, 30260 + (guint32)_i, 15000,
                    (const char *const[]){"mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", NULL});

    ck_assert_uint_ge(seen.written, 10);
    ck_assert_uint_ge(seen.refused, 20);
    ck_assert_int_eq(seen.shared >= 5, _i < 3);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("export of any plan");
    TCase *tests = tcase_create("export of any plan");

    tcase_add_loop_test(tests, any_plan_keeps_its_batch_and_layout_or_is_refused, 0, 4);
    tcase_add_loop_test(tests, any_plan_with_experts_keeps_its_layout_or_is_refused, 0, 4);
    tcase_set_timeout(tests, 60);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
