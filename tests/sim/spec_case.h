/* Small models and choices for the tests of sim/, and what one must expect of them, by hand. */
#pragma once

#include "sim/base/data_dirs.h"
#include "sim/cost/simulate.h"
#include "sim/layout/legality.h"
#include "sim/program/compile.h"
#include "sim/program/place.h"
#include "tests/sim/program_case.h"

typedef struct {
    guint vocab, hidden, ffn, layers, heads, kv_heads;
    gboolean tied;
} CaseShape;

/* Odd sizes: nothing divides by 2, 3 and 4 at once. */
static const CaseShape case_shape = {
    .vocab = 257, .hidden = 24, .ffn = 40, .layers = 3, .heads = 4, .kv_heads = 2};

/* Every choice of a program.  Copies share the model. */
typedef struct {
    Model *model; /* owned by whoever made the case */
    Workload workload;
    Layout layout;
    Sharding sharding;
    Schedule schedule;
    gboolean sequence_parallel;
    ContextKind context;
    DeviceKind device;
    guint threads;
} Case;

static inline Model *case_model(const CaseShape *shape)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *text = g_strdup_printf(
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_act\": "
        "\"silu\", \"vocab_size\": %u, \"hidden_size\": %u, \"intermediate_size\": %u, "
        "\"num_hidden_layers\": %u, \"num_attention_heads\": %u, \"num_key_value_heads\": %u, "
        "\"max_position_embeddings\": 4096, \"rope_theta\": 10000.0, \"rms_norm_eps\": 1e-05, "
        "\"tie_word_embeddings\": %s}",
        shape->vocab, shape->hidden, shape->ffn, shape->layers, shape->heads, shape->kv_heads,
        shape->tied ? "true" : "false");
    Model *model = model_parse(text, "case", "case", &error);

    ck_assert_msg(model != NULL, "%s", error == NULL ? "" : error->message);
    return model;
}

/* full_shard over @shard ranks in @replicate replicas, @micro_batches of 2 sequences of 8 tokens,
 * recipe zero, no unit kept. */
static inline Case case_of(Model *model, guint replicate, guint shard, guint micro_batches)
{
    Case made = {
        .model = model,
        .workload = {.global_batch = replicate * shard * 2 * micro_batches,
                     .seq_len = 8,
                     .recipe = &recipe_zero,
                     .optimizer = OPTIMIZER_ADAMW},
        .sharding = sharding_default,
        .schedule = {.micro_batch = 2, .micro_batches = micro_batches},
        .device = DEVICE_CPU,
        .threads = 1,
    };

    made.sharding.keep_root = made.sharding.keep_last = FALSE;
    for (guint a = 0; a < NUM_AXES; a++)
        made.layout.size[a] = 1;
    made.layout.size[AXIS_DP_REPLICATE] = replicate;
    made.layout.size[AXIS_DP_SHARD] = shard;
    return made;
}

/* The same with a strategy and all that follows from it: replicas where it does not shard. */
static inline Case case_with(Model *model, Strategy strategy, guint ranks, guint micro_batches)
{
    const gboolean whole = strategy == STRATEGY_NO_SHARD;
    const gboolean hybrid = strategy == STRATEGY_HYBRID_SHARD;
    Case made = case_of(model, whole ? ranks : hybrid ? 2 : 1, whole ? 1 : ranks, micro_batches);

    made.sharding.strategy = strategy;
    sharding_normalise(&made.sharding, &made.layout, &made.schedule);
    return made;
}

static inline ProgramSpec case_spec(const Case *from)
{
    return (ProgramSpec){
        .model = from->model,
        .workload = &from->workload,
        .layout = from->layout,
        .sharding = &from->sharding,
        .schedule = from->schedule,
        .sequence_parallel = from->sequence_parallel,
        .context = from->context,
        .device = from->device,
        .threads = from->threads,
    };
}

static inline Verdict case_verdict(const Case *from, char **reason)
{
    const Choice choice = {from->model,     &from->workload,         &from->layout, &from->sharding,
                           &from->schedule, from->sequence_parallel, from->context};

    return legality_check(&choice, reason);
}

static inline ProgramSet *case_compile(const Case *from)
{
    const ProgramSpec spec = case_spec(from);
    g_autofree char *reason = NULL;

    ck_assert_msg(case_verdict(from, &reason) == VERDICT_OK, "%s", reason);
    return program_compile(&spec);
}

static inline Program *case_build(const Case *from)
{
    const ProgramSpec spec = case_spec(from);
    g_autofree char *reason = NULL;

    ck_assert_msg(case_verdict(from, &reason) == VERDICT_OK, "%s", reason);
    return program_build(&spec, 0);
}

/* As simulate_program() wants them; the caller's. */
static inline guint *case_spans(const Program *program, const Case *from)
{
    const ProgramSpec spec = case_spec(from);

    return program_spans(program, &spec);
}

/* One line that names every choice, for messages. */
static inline char *case_text(const Case *from)
{
    g_autofree char *recompute =
        schedule_recompute_text(&from->schedule, from->layout.size[AXIS_PP]);
    g_autofree char *recipe = recipe_text(from->workload.recipe);

    return g_strdup_printf(
        "pp %u cp %u %s tp %u%s ep %u (x %g) %s V %u batch %u seq %u: %s %s replicate %u shard %u "
        "M %u "
        "recompute "
        "%s recipe %s in %s%s %s offload %s %s keep %d%d prefetch %u live %u accumulate %d "
        "overrides %u",
        from->layout.size[AXIS_PP], from->layout.size[AXIS_CP], context_kind_name(from->context),
        from->layout.size[AXIS_TP], from->sequence_parallel ? " sequence" : "",
        layout_ep(&from->layout), from->workload.expert_imbalance,
        schedule_name(from->schedule.kind), schedule_virtual_stages(&from->schedule),
        from->schedule.micro_batch, from->workload.seq_len, strategy_name(from->sharding.strategy),
        form_name(from->sharding.form), from->layout.size[AXIS_DP_REPLICATE],
        from->layout.size[AXIS_DP_SHARD], from->schedule.micro_batches, recompute, recipe,
        dtype_name(from->workload.recipe->precision), from->sharding.gather_fp8 ? ", gathered" : "",
        optimizer_name(from->workload.optimizer), tier_name(from->sharding.offload.optimizer),
        tier_name(from->sharding.offload.parameters), from->sharding.keep_root,
        from->sharding.keep_last, from->sharding.prefetch, from->sharding.live_units,
        from->sharding.accumulate_sharded, from->sharding.num_overrides);
}

#define CASE_MEMORIES                                                                              \
    "[memory nvme]\ncapacity = 1 TB\nbandwidth = 100 MB/s\nlatency = 100 us\n"                     \
    "[memory cxl]\ncapacity = 2 TB\nbandwidth = 1 GB/s\nlatency = 1 us\n"

/* Nodes of @gpus CPUs' cores; their memory moves @gigabytes_per_s GB/s; links reach 500 MB/s (0.8
 * of what is stated) and take 10 us. */
static inline Topology *case_cpu_topology(guint gpus, guint gigabytes_per_s)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *text = g_strdup_printf(
        "[cluster]\nname = case\nsource = test\nnodes = 1\n[node]\ngpus = %u\ngpu = "
        "core\ncpu_memory = 64 GB\n[gpu core]\nsource = test\nkind = cpu\nfp32 = 50 "
        "GFLOP/s\nmemory = 64 GB\nmemory_bandwidth = %u GB/s\n[network memory]\nkind = "
        "shared_memory\nbandwidth = 625 MB/s\nlatency = 10 us\n" CASE_MEMORIES,
        gpus, gigabytes_per_s);
    Topology *topology = topology_parse(text, "case", "", &error);

    ck_assert_msg(topology != NULL, "%s", error == NULL ? "" : error->message);
    return topology;
}

/* @nodes of 4 GPUs of @megabytes MB; links of @link and a fabric a tenth as fast. */
static inline Topology *case_gpu_topology(guint nodes, guint megabytes, guint link_megabytes_per_s)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *text = g_strdup_printf(
        "[cluster]\nname = case\nsource = test\nnodes = %u\n[node]\ngpus = 4\ngpu = "
        "chip\ncpu_memory = 64 GB\nhost_link = 20 GB/s\n[gpu chip]\nsource = test\nkind = "
        "cuda\nfp32 = 10 "
        "TFLOP/s\nbf16 = 20 TFLOP/s\nmemory = %u MB\nmemory_bandwidth = 1 TB/s\n[network "
        "link]\nkind = nvlink\nspan = 4\nbandwidth = %u MB/s\nlatency = 1 us\n[network "
        "fabric]\nkind = infiniband\nbandwidth = %u kB/s\nlatency = 5 us\n" CASE_MEMORIES,
        nodes, megabytes, link_megabytes_per_s, link_megabytes_per_s * 100);
    Topology *topology = topology_parse(text, "case", "", &error);

    ck_assert_msg(topology != NULL, "%s", error == NULL ? "" : error->message);
    return topology;
}

static inline guint draw(GRand *random, guint most)
{
    return (guint)g_rand_int_range(random, 0, (gint)most + 1);
}

/* Half of all have one stage; tp, cp and the schedule's fields likewise; and where there are
 * experts, ep and how unevenly tokens go to them. */
static inline void draw_axes(GRand *random, Case *made)
{
    made->layout.size[AXIS_PP] = draw(random, 1) == 0 ? 1 : 1 + draw(random, 2);
    made->layout.size[AXIS_CP] = draw(random, 1) == 0 ? 1 : 2;
    made->layout.size[AXIS_TP] = draw(random, 1) == 0 ? 1 : 2;
    made->sequence_parallel = draw(random, 1) == 1;
    made->context = (ContextKind)draw(random, NUM_CONTEXT_KINDS - 1);
    if (made->layout.size[AXIS_PP] > 1)
        made->schedule.kind = (ScheduleKind)draw(random, NUM_SCHEDULES - 1);
    made->schedule.virtual_stages =
        made->schedule.kind == SCHEDULE_INTERLEAVED ? 2 + draw(random, 1) : 1;
    if (made->model->experts.count > 0) {
        made->layout.ep = 1u << draw(random, 2);
        made->workload.expert_imbalance = 1 + 0.25 * draw(random, 3);
    }
}

/* Cuts the model into chunks of any size; @layers, array of MAX_CHUNKS, must outlive the case. */
static inline void draw_stages(GRand *random, Case *made, guint16 *layers)
{
    const guint chunks = schedule_chunks(&made->schedule, made->layout.size[AXIS_PP]);

    if (chunks == 1 || chunks > made->model->layers || draw(random, 1) == 0)
        return;
    for (guint c = 0; c < chunks; c++)
        layers[c] = 1;
    for (guint rest = made->model->layers - chunks; rest > 0; rest--)
        layers[draw(random, chunks - 1)]++;
    made->schedule.chunk_layers = layers;
}

/* By stage; more than a chunk has is all of it. */
static const guint16 case_recompute_layers[][4] = {
    {1, 0, 2, 1}, {2, 2, 2, 2}, {1, 1, 1, 1}, {0, 3, 1, 0}, {4, 2, 0, 9}};

/* Every name in every precision that it has; half of all with any accumulators and reductions. */
static inline const Recipe *draw_recipe(GRand *random)
{
    static const Recipe *const names[] = {&recipe_zero, &recipe_fsdp2, &recipe_megatron,
                                          &recipe_fp32};
    static const DType precisions[] = {DTYPE_BF16, DTYPE_FP16, DTYPE_FP8};
    const Recipe *name = names[draw(random, G_N_ELEMENTS(names) - 1)];
    const Recipe *recipe = recipe_with_precision(name, precisions[draw(random, 2)]);

    if (recipe == NULL)
        recipe = name;
    const DType gradients[] = {recipe->compute, DTYPE_FP32};
    if (draw(random, 1) == 0)
        return recipe;
    const DType gradient = gradients[draw(random, 1)], reduce = gradients[draw(random, 1)];
    return recipe_with_gradients(recipe, gradient, reduce);
}

/* A block, or only its experts, or all but these. */
static inline void draw_part(GRand *random, UnitOverride *unit)
{
    static const guint parts[] = {0, 0, REST_UNITS, EXPERTS_UNITS};
    const guint part = parts[draw(random, G_N_ELEMENTS(parts) - 1)];

    unit->first += part;
    unit->last += part;
}

/* A legal choice, every field drawn; now and then with overrides.  @all_axes: not only of data
 * parallelism. */
static inline Case case_draw(GRand *random, Model *model, gboolean all_axes)
{
    for (;;) {
        Case made = case_of(model, 1 + draw(random, 2), 1 + draw(random, 4), 1 + draw(random, 3));
        Sharding *s = &made.sharding;

        made.workload.recipe = draw_recipe(random);
        made.workload.optimizer = (Optimizer)draw(random, NUM_OPTIMIZERS - 1);
        made.schedule.recompute = (Recompute)draw(random, NUM_RECOMPUTES - 1);
        if (draw(random, 1) == 0)
            made.schedule.recompute_layers =
                case_recompute_layers[draw(random, G_N_ELEMENTS(case_recompute_layers) - 1)];
        if (all_axes)
            draw_axes(random, &made);
        made.device = draw(random, 1) == 0 ? DEVICE_CPU : DEVICE_CUDA;
        s->strategy = (Strategy)draw(random, NUM_STRATEGIES - 1);
        s->form = (Form)draw(random, 1);
        s->prefetch = draw(random, 3);
        s->live_units = s->prefetch + 1 + draw(random, 2);
        s->keep_root = draw(random, 1) == 1;
        s->keep_last = draw(random, 1) == 1;
        s->accumulate_sharded = draw(random, 1) == 1;
        s->gather_fp8 = made.workload.recipe->precision == DTYPE_FP8 && draw(random, 1) == 1;
        if (made.device == DEVICE_CUDA && draw(random, 2) == 0)
            s->offload.optimizer = TIER_HOST;
        if (made.device == DEVICE_CUDA && draw(random, 3) == 0)
            s->offload.parameters = TIER_HOST;
        s->num_overrides = draw(random, 1) * draw(random, 2);
        for (guint i = 0; i < s->num_overrides; i++) {
            const guint first = draw(random, model->layers);
            const guint last = first == ROOT_UNIT ? first : first + draw(random, 1);

            s->overrides[i] = (UnitOverride){first, MIN(last, model->layers),
                                             (gint)draw(random, STRATEGY_FULL_SHARD + 1) - 1,
                                             (gint)draw(random, 2) - 1};
            if (first != ROOT_UNIT && model->experts.count > 0)
                draw_part(random, &s->overrides[i]);
        }
        sharding_normalise(s, &made.layout, &made.schedule);
        if (case_verdict(&made, NULL) == VERDICT_OK)
            return made;
    }
}

static inline Case case_random(GRand *random, Model *model)
{
    return case_draw(random, model, FALSE);
}

static inline Case case_random_4d(GRand *random, Model *model)
{
    return case_draw(random, model, TRUE);
}

/* ---- by hand ---- */

typedef struct {
    guint num;
    guint64 rows[16], cols[16];
} HandUnit;

static inline void hand_add(HandUnit *unit, guint64 rows, guint64 cols)
{
    unit->rows[unit->num] = rows;
    unit->cols[unit->num++] = cols;
}

static inline HandUnit hand_root(const Model *m)
{
    HandUnit unit = {0};

    hand_add(&unit, m->vocab, m->hidden);
    hand_add(&unit, m->hidden, 1);
    if (!m->tied)
        hand_add(&unit, m->vocab, m->hidden);
    return unit;
}

static inline HandUnit hand_block(const Model *m)
{
    const guint64 c = m->hidden, f = m->ffn;
    const guint64 a = (guint64)m->heads * m->head_dim, k = (guint64)m->kv_heads * m->head_dim;
    HandUnit unit = {0};

    hand_add(&unit, c, 1);
    hand_add(&unit, a, c);
    hand_add(&unit, k, c);
    hand_add(&unit, k, c);
    hand_add(&unit, c, a);
    hand_add(&unit, c, 1);
    hand_add(&unit, f, c);
    hand_add(&unit, f, c);
    hand_add(&unit, c, f);
    return unit;
}

static inline guint64 hand_elements(const HandUnit *unit)
{
    guint64 elements = 0;

    for (guint i = 0; i < unit->num; i++)
        elements += unit->rows[i] * unit->cols[i];
    return elements;
}

/* What a rank of @ranks stores: ceil(rows / ranks) rows of each, or ceil(all / ranks). */
static inline guint64 hand_shard(const HandUnit *unit, guint ranks, Form form)
{
    guint64 elements = 0;

    if (form == FORM_FLAT)
        return (hand_elements(unit) + ranks - 1) / ranks;
    for (guint i = 0; i < unit->num; i++)
        elements += (unit->rows[i] + ranks - 1) / ranks * unit->cols[i];
    return elements;
}

/* One of models/. */
static inline Model *case_shipped_model(const char *name)
{
    g_autofree char *models = data_dir("models");
    g_autoptr(GError) error = NULL;
    Model *model = model_load(name, models, &error);

    ck_assert_msg(model != NULL, "%s", error == NULL ? "" : error->message);
    return model;
}

/* Psi, and what a rank holds of all units (padding included). */
static inline guint64 hand_psi(const Model *model)
{
    const HandUnit root = hand_root(model), block = hand_block(model);

    return hand_elements(&root) + model->layers * hand_elements(&block);
}

static inline guint64 hand_psi_shard(const Model *model, guint ranks, Form form)
{
    const HandUnit root = hand_root(model), block = hand_block(model);

    return hand_shard(&root, ranks, form) + model->layers * hand_shard(&block, ranks, form);
}
