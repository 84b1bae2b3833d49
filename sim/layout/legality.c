#include "sim/layout/legality.h"

#include "sim/layout/tensor_parallel.h"

static const char *const verdict_names[NUM_VERDICTS] = {
    [VERDICT_OK] = "ok",           [VERDICT_CONTEXT] = "context",   [VERDICT_PIPELINE] = "pipeline",
    [VERDICT_TENSOR] = "tensor",   [VERDICT_BATCH] = "batch",       [VERDICT_STRATEGY] = "strategy",
    [VERDICT_RECIPE] = "recipe",   [VERDICT_PREFETCH] = "prefetch", [VERDICT_SEQUENCE] = "sequence",
    [VERDICT_LIMIT] = "limit",     [VERDICT_MEMORY] = "memory",     [VERDICT_SLOWER] = "slower",
    [VERDICT_EXPERTS] = "experts", [VERDICT_MESH] = "mesh",
};

/* Ring indices are 16 bits wide (Call.index), and a step's calls are listed one by one. */
enum { MAX_MICRO_BATCHES = 4096, MAX_TOKENS_LOG2 = 31 };

const char *verdict_name(Verdict verdict)
{
    return verdict_names[verdict];
}

static Verdict refuse(char **reason, Verdict verdict, const char *format, ...) G_GNUC_PRINTF(3, 4);

static Verdict refuse(char **reason, Verdict verdict, const char *format, ...)
{
    va_list arguments;

    if (reason != NULL) {
        va_start(arguments, format);
        *reason = g_strdup_vprintf(format, arguments);
        va_end(arguments);
    }
    return verdict;
}

/* Tokens of a micro-batch on one rank of the cp group. */
static guint64 rank_tokens(const Choice *choice)
{
    return (guint64)choice->schedule->micro_batch *
           (choice->workload->seq_len / choice->layout->size[AXIS_CP]);
}

static Verdict check_context(const Choice *choice, char **reason)
{
    const guint cp = choice->layout->size[AXIS_CP], seq = choice->workload->seq_len;

    if (cp > 1 && (cp > seq / 2 || seq % (2 * cp) != 0)) {
        const guint64 pieces = 2 * (guint64)cp, below = seq / pieces * pieces;

        return refuse(
            reason, VERDICT_CONTEXT,
            "cp = %u: each rank has two pieces of a sequence, so 2 cp must divide seq_len "
            "= %u; the nearest are %" G_GUINT64_FORMAT " and %" G_GUINT64_FORMAT,
            cp, seq, MAX(below, pieces), MAX(below, pieces) + pieces);
    }
    if (cp > 1 && choice->model->latent.top_keys != 0 && choice->context == CONTEXT_RING)
        return refuse(reason, VERDICT_CONTEXT,
                      "cp = %u by ring: the indexer chooses among the keys of all ranks; allowed: "
                      "all_gather",
                      cp);
    return VERDICT_OK;
}

static Verdict check_chunk_layers(const Choice *choice, guint chunks, char **reason)
{
    const guint pp = choice->layout->size[AXIS_PP], layers = choice->model->layers;
    guint total = 0;

    for (guint c = 0; c < chunks; c++) {
        const guint count = schedule_chunk(choice->schedule, layers, pp, c).count;

        total += count;
        if (count == 0)
            return refuse(reason, VERDICT_PIPELINE, "stages: chunk %u of %u has no layer", c,
                          chunks);
    }
    if (total != layers)
        return refuse(reason, VERDICT_PIPELINE,
                      "stages: %u chunks have %u layers together; the model has %u", chunks, total,
                      layers);
    return VERDICT_OK;
}

static Verdict check_schedule(const Choice *choice, char **reason)
{
    const guint pp = choice->layout->size[AXIS_PP];
    const guint virtual_stages = schedule_virtual_stages(choice->schedule);
    const ScheduleKind kind = choice->schedule->kind;

    if (pp == 1 && kind != SCHEDULE_1F1B)
        return refuse(reason, VERDICT_PIPELINE,
                      "schedule %s needs pp > 1; one stage has 1f1b, the plain order",
                      schedule_name(kind));
    if (kind == SCHEDULE_INTERLEAVED && virtual_stages == 1)
        return refuse(reason, VERDICT_PIPELINE,
                      "schedule interleaved needs virtual_stages of at least 2");
    if (kind != SCHEDULE_INTERLEAVED && virtual_stages > 1)
        return refuse(
            reason, VERDICT_PIPELINE,
            "virtual_stages = %u: schedule %s has one chunk a stage; interleaved has more",
            virtual_stages, schedule_name(kind));
    if (kind == SCHEDULE_ZB_H1 && choice->sharding->accumulate_sharded)
        return refuse(reason, VERDICT_PIPELINE,
                      "schedule zb_h1 needs accumulate = unsharded: gradients of several "
                      "micro-batches are under way at once");
    return VERDICT_OK;
}

static Verdict check_pipeline(const Choice *choice, char **reason)
{
    const guint pp = choice->layout->size[AXIS_PP], layers = choice->model->layers;
    const guint64 chunks = (guint64)pp * schedule_virtual_stages(choice->schedule);

    if (chunks > MIN(layers, MAX_CHUNKS))
        return refuse(reason, VERDICT_PIPELINE,
                      "pp = %u x virtual_stages = %u: at most %u chunks, the model's %u layers "
                      "allow",
                      pp, schedule_virtual_stages(choice->schedule), MIN(layers, MAX_CHUNKS),
                      layers);
    const Verdict verdict = check_schedule(choice, reason);
    return verdict == VERDICT_OK ? check_chunk_layers(choice, (guint)chunks, reason) : verdict;
}

/* Those that hold the same keys and values are one group for all blocks. */
static gboolean tensor_size_fits_kind(const Model *model, guint kind, guint tp)
{
    const Model one = model_of_kind(model, kind);

    return (one.kv_heads % tp == 0 || tp % one.kv_heads == 0) &&
           tensor_parallel_kv_copies(&one, tp) == tensor_parallel_kv_copies(model, tp);
}

static gboolean tensor_size_fits_heads(const Model *model, guint tp)
{
    gboolean fits =
        model->heads % tp == 0 && (model->kv_heads % tp == 0 || tp % model->kv_heads == 0);

    for (guint k = 0; k < model->num_kinds; k++)
        fits &= tensor_size_fits_kind(model, k, tp);
    return fits;
}

static Verdict refuse_heads(char **reason, const Model *model, guint tp)
{
    if (reason == NULL)
        return VERDICT_TENSOR;
    g_autoptr(GString) sizes = g_string_new("1");

    for (guint size = 2; size <= model->heads; size++)
        if (tensor_size_fits_heads(model, size))
            g_string_append_printf(sizes, ", %u", size);
    if (model->heads % tp != 0)
        return refuse(reason, VERDICT_TENSOR,
                      "tp = %u: must divide the model's %u query heads; allowed: %s", tp,
                      model->heads, sizes->str);
    return refuse(
        reason, VERDICT_TENSOR,
        "tp = %u: must be a divisor or a multiple of the model's %u kv heads%s; allowed: %s", tp,
        model->kv_heads, model->num_kinds > 1 ? ", in all blocks alike" : "", sizes->str);
}

static Verdict check_tensor(const Choice *choice, char **reason)
{
    const guint tp = choice->layout->size[AXIS_TP];
    const Model *model = choice->model;
    const guint64 tokens = rank_tokens(choice);

    if (!tensor_size_fits_heads(model, tp))
        return refuse_heads(reason, model, tp);
    if (tp > 1 && choice->sequence_parallel && tokens % tp != 0)
        return refuse(reason, VERDICT_TENSOR,
                      "tp = %u with sequence parallelism: must divide the %" G_GUINT64_FORMAT
                      " tokens of a micro-batch on a rank; sequence = false leaves them whole",
                      tp, tokens);
    return VERDICT_OK;
}

/* The model's units one after the other, experts behind all blocks; FALSE behind the last. */
static gboolean next_unit(const Model *model, guint *unit)
{
    const guint last = model->experts.count > 0 ? EXPERTS_UNITS + model->layers : model->layers;

    do {
        *unit = *unit == model->layers ? EXPERTS_UNITS + 1 : *unit + 1;
    } while (*unit > EXPERTS_UNITS && *unit <= last &&
             !model_is_sparse(model, sharding_block(*unit) - 1));
    return *unit <= last;
}

static gboolean any_experts_whole(const Choice *choice)
{
    const Sharding *sharding = choice->sharding;

    if (sharding->num_overrides == 0)
        return sharding->strategy == STRATEGY_NO_SHARD;
    for (guint unit = ROOT_UNIT; next_unit(choice->model, &unit);)
        if (unit > EXPERTS_UNITS && sharding_unit_strategy(sharding, unit) == STRATEGY_NO_SHARD)
            return TRUE;
    return FALSE;
}

/* What is split over tokens needs them split between all matrices. */
static Verdict check_token_parallel(const Choice *choice, char **reason)
{
    const gboolean latent = (choice->model->features & FEATURE_LATENT) != 0;
    const guint tp = choice->layout->size[AXIS_TP];

    if (tp > 1 && !choice->sequence_parallel)
        return refuse(reason, VERDICT_TENSOR, "tp = %u: %s needs sequence parallelism", tp,
                      latent ? "latent attention" : "a mixture of experts");
    return VERDICT_OK;
}

static Verdict refuse_experts(char **reason, guint experts, guint ep)
{
    if (reason == NULL)
        return VERDICT_EXPERTS;
    g_autoptr(GString) sizes = g_string_new("1");

    for (guint size = 2; size <= experts; size++)
        if (experts % size == 0)
            g_string_append_printf(sizes, ", %u", size);
    return refuse(reason, VERDICT_EXPERTS,
                  "ep = %u: must divide the model's %u experts; allowed: %s", ep, experts,
                  sizes->str);
}

static Verdict check_expert_ranks(const Choice *choice, char **reason)
{
    const guint experts = choice->model->experts.count, ep = layout_ep(choice->layout);
    const guint ranks = layout_expert_block(choice->layout);

    if (ep > 1 && experts == 0)
        return refuse(reason, VERDICT_EXPERTS, "ep = %u: the model has no experts", ep);
    if (ep > 1 && experts % ep != 0)
        return refuse_experts(reason, experts, ep);
    if (ranks % ep != 0)
        return refuse(reason, VERDICT_EXPERTS,
                      "ep = %u: must divide dp_shard x cp x tp = %u, the ranks among which experts "
                      "are divided",
                      ep, ranks);
    if (ep > 1 && any_experts_whole(choice))
        return refuse(reason, VERDICT_EXPERTS,
                      "ep = %u with no_shard: experts are divided among ranks that shard", ep);
    return VERDICT_OK;
}

static Verdict check_experts(const Choice *choice, char **reason)
{
    const Model *model = choice->model;
    const Verdict verdict = check_expert_ranks(choice, reason);

    if (verdict != VERDICT_OK || (model->features & (FEATURE_EXPERTS | FEATURE_LATENT)) == 0)
        return verdict;
    return check_token_parallel(choice, reason);
}

static Verdict check_batch(const Choice *choice, char **reason)
{
    const guint data_ranks = layout_data_ranks(choice->layout);
    const guint batch = choice->workload->global_batch;
    const guint micro = choice->schedule->micro_batch;
    const guint64 step = (guint64)data_ranks * micro;

    if (batch < micro)
        return refuse(reason, VERDICT_BATCH,
                      "global batch %u is less than a micro-batch of %u; allowed: one that divides "
                      "it",
                      batch, micro);
    if (batch < step)
        return refuse(reason, VERDICT_BATCH,
                      "global batch %u is less than %u data-parallel ranks x micro-batch %u = "
                      "%" G_GUINT64_FORMAT "; allowed: as much, or at most %u such ranks",
                      batch, data_ranks, micro, step, batch / micro);
    if (batch % step != 0)
        return refuse(reason, VERDICT_BATCH,
                      "global batch %u is not a multiple of %u data-parallel ranks x micro-batch "
                      "%u; the nearest are %" G_GUINT64_FORMAT " and %" G_GUINT64_FORMAT,
                      batch, data_ranks, micro, batch / step * step, (batch / step + 1) * step);
    if (choice->schedule->micro_batches != batch / step)
        return refuse(reason, VERDICT_BATCH,
                      "micro_batches = %u: global batch %u over %u ranks x micro-batch %u is %u",
                      choice->schedule->micro_batches, batch, data_ranks, micro,
                      (guint)(batch / step));
    return VERDICT_OK;
}

static Verdict check_strategy(const Choice *choice, char **reason)
{
    const Strategy strategy = choice->sharding->strategy;
    const guint shard = choice->layout->size[AXIS_DP_SHARD];
    const guint replicate = choice->layout->size[AXIS_DP_REPLICATE];

    if (strategy == STRATEGY_NO_SHARD && shard != 1)
        return refuse(reason, VERDICT_STRATEGY,
                      "no_shard needs dp_shard = 1, not %u: replicas go on dp_replicate", shard);
    if (strategy == STRATEGY_HYBRID_SHARD && replicate == 1)
        return refuse(reason, VERDICT_STRATEGY,
                      "hybrid_shard needs dp_replicate > 1; with 1 it is full_shard");
    return VERDICT_OK;
}

/* The first unit behind @unit whose weights are whole, or -1. */
static gint whole_behind(const Choice *choice, guint unit)
{
    while (next_unit(choice->model, &unit))
        if (sharding_unit_strategy(choice->sharding, unit) <= STRATEGY_SHARD_OPTIMIZER)
            return (gint)unit;
    return -1;
}

static gint whole_unit(const Choice *choice)
{
    return sharding_unit_strategy(choice->sharding, ROOT_UNIT) <= STRATEGY_SHARD_OPTIMIZER
               ? ROOT_UNIT
               : whole_behind(choice, ROOT_UNIT);
}

/* fp8 products read what was gathered in fp8; for others each matrix has a scale of its own, and is
 * a piece of its own.  Where weights stay whole nothing is gathered for use. */
static Verdict check_gather(const Choice *choice, char **reason)
{
    const Recipe *recipe = choice->workload->recipe;
    const Sharding *sharding = choice->sharding;
    const gboolean scaled = sharding->gather_fp8 && recipe->precision != DTYPE_FP8;
    const gint whole = sharding->gather_fp8 ? whole_behind(choice, ROOT_UNIT) : -1;

    if (scaled && sharding->form != FORM_PER_PARAMETER)
        return refuse(
            reason, VERDICT_RECIPE,
            "gather = fp8 with precision %s needs form per_parameter: each matrix has its "
            "own scale",
            dtype_name(recipe->precision));
    if (scaled && sharding->offload.parameters != TIER_DEVICE)
        return refuse(reason, VERDICT_RECIPE,
                      "gather = fp8 with precision %s needs parameters on the device, not on %s: "
                      "their largest magnitude is found there",
                      dtype_name(recipe->precision), tier_name(sharding->offload.parameters));
    if (whole >= 0)
        return refuse(reason, VERDICT_RECIPE,
                      "gather = fp8 with %s: its blocks are whole, so strategies are full_shard, "
                      "hybrid_shard, shard_grad_op",
                      strategy_name(sharding_unit_strategy(choice->sharding, (guint)whole)));
    return VERDICT_OK;
}

/* Backward passes write gradients in one type: what is reduced with every micro-batch, or what is
 * accumulated whole. */
static Verdict check_gradients(const Choice *choice, char **reason)
{
    const Recipe *recipe = choice->workload->recipe;
    const Sharding *sharding = choice->sharding;
    const gboolean root = sharding_unit_reduces_each(sharding, ROOT_UNIT);

    if (recipe->gradient == recipe->reduce)
        return VERDICT_OK;
    for (guint unit = ROOT_UNIT; next_unit(choice->model, &unit);)
        if (sharding_unit_reduces_each(sharding, unit) != root)
            return refuse(
                reason, VERDICT_RECIPE,
                "gradient_dtype = %s with reduce_dtype = %s: units of %s and of %s accumulate "
                "differently, so strategies are full_shard, hybrid_shard, shard_grad_op "
                "for all units, or shard_optimizer, no_shard for all",
                dtype_name(recipe->gradient), dtype_name(recipe->reduce),
                strategy_name(sharding_unit_strategy(sharding, ROOT_UNIT)),
                strategy_name(sharding_unit_strategy(sharding, unit)));
    return VERDICT_OK;
}

/* FSDP2's recipe stores an fp32 shard and gathers bf16 copies of it, so each unit must be sharded.
 */
static gboolean stores_shards(const Recipe *recipe)
{
    return recipe->stored != recipe->compute;
}

static Verdict check_recipe(const Choice *choice, char **reason)
{
    const Recipe *recipe = choice->workload->recipe;
    const gint whole = stores_shards(recipe) ? whole_unit(choice) : -1;

    if (whole >= 0)
        return refuse(reason, VERDICT_RECIPE,
                      "recipe %s with %s: it keeps an fp32 shard, so strategies are full_shard, "
                      "hybrid_shard, shard_grad_op",
                      recipe->name,
                      strategy_name(sharding_unit_strategy(choice->sharding, (guint)whole)));
    const Verdict gradients = check_gradients(choice, reason);
    return gradients != VERDICT_OK ? gradients : check_gather(choice, reason);
}

/* Shards come from their tier with each gather; what stays whole is on the device. */
static Verdict check_offload(const Choice *choice, char **reason)
{
    const Tier tier = choice->sharding->offload.parameters;
    const gint whole = tier == TIER_DEVICE ? -1 : whole_unit(choice);

    if (whole >= 0)
        return refuse(reason, VERDICT_RECIPE,
                      "offload parameters=%s with %s: parameters are whole, so strategies are "
                      "full_shard, hybrid_shard, shard_grad_op",
                      tier_name(tier),
                      strategy_name(sharding_unit_strategy(choice->sharding, (guint)whole)));
    return VERDICT_OK;
}

gboolean legality_needs_shards(const Recipe *recipe, const Sharding *sharding)
{
    return stores_shards(recipe) || sharding->offload.parameters != TIER_DEVICE ||
           sharding->gather_fp8;
}

static gboolean has_sparse(const Model *model, guint first, guint last)
{
    for (guint block = first; block <= last; block++)
        if (model_is_sparse(model, block))
            return TRUE;
    return FALSE;
}

/* It names units that the model has. */
static Verdict check_override(const Choice *choice, const UnitOverride *override, char **reason)
{
    const Model *model = choice->model;
    const guint first = sharding_block(override->first), last = sharding_block(override->last);
    const gboolean part = override->first >= REST_UNITS;

    if (last > model->layers)
        return refuse(reason, VERDICT_STRATEGY, "units: block %u is not one of the model's 0 .. %u",
                      last - 1, model->layers - 1);
    if (part && !has_sparse(model, first - 1, last - 1)) {
        g_autofree char *units = unit_override_units(override);

        return refuse(reason, VERDICT_STRATEGY, "units: %s: none of these blocks has experts",
                      units);
    }
    return VERDICT_OK;
}

static Verdict check_units(const Choice *choice, char **reason)
{
    const Sharding *sharding = choice->sharding;
    const guint shard = layout_shard_ranks(choice->layout);

    if (sharding->live_units <= sharding->prefetch)
        return refuse(reason, VERDICT_PREFETCH,
                      "live_units = %u: prefetch %u needs at least %u gathered units alive",
                      sharding->live_units, sharding->prefetch, sharding->prefetch + 1);
    for (guint i = 0; i < sharding->num_overrides; i++) {
        const Verdict verdict = check_override(choice, &sharding->overrides[i], reason);

        if (verdict != VERDICT_OK)
            return verdict;
    }
    for (guint unit = ROOT_UNIT, more = sharding->num_overrides > 0 ? 1 : 0; more != 0;
         more = next_unit(choice->model, &unit) ? 1 : 0)
        if (sharding_unit_strategy(sharding, unit) == STRATEGY_SHARD_OPTIMIZER && shard == 1 &&
            sharding->strategy != STRATEGY_SHARD_OPTIMIZER)
            return refuse(reason, VERDICT_STRATEGY,
                          "units: shard_optimizer for a unit needs dp_shard > 1");
    return VERDICT_OK;
}

/* Rotary embedding has a value for any position (that the model knew fewer is said beside the
 * plan); a table of learned ones has no more rows. */
static Verdict check_sequence(const Choice *choice, char **reason)
{
    const guint seq = choice->workload->seq_len;

    if ((choice->model->features & FEATURE_POSITIONS) != 0 && seq > choice->model->max_seq)
        return refuse(reason, VERDICT_SEQUENCE,
                      "seq_len = %u: the model has %u learned positions (max_position_embeddings)",
                      seq, choice->model->max_seq);
    return VERDICT_OK;
}

/* Copies of a chunk's activations: gpipe has all micro-batches in flight, the others no more than
 * two groups of stages. */
static guint64 most_in_flight(const Choice *choice)
{
    const guint pp = choice->layout->size[AXIS_PP];
    const guint64 passes =
        (guint64)choice->schedule->micro_batches * schedule_virtual_stages(choice->schedule);

    if (choice->schedule->kind == SCHEDULE_GPIPE)
        return passes;
    return MIN(passes, (guint64)pp * (2 + schedule_virtual_stages(choice->schedule)));
}

/* With gpipe all micro-batches are under way at once: fewer of them help. */
static Verdict refuse_in_flight(const Choice *choice, char **reason)
{
    const Schedule *schedule = choice->schedule;
    g_autofree char *allowed =
        schedule->kind == SCHEDULE_GPIPE
            ? g_strdup_printf("; allowed: %u micro-batches, or 1f1b, which has fewer under way",
                              G_MAXUINT16 / (choice->model->layers + 1))
            : g_strdup("");

    return refuse(reason, VERDICT_LIMIT,
                  "schedule %s with %u micro-batches: at most %u activations of blocks at a time%s",
                  schedule_name(schedule->kind), schedule->micro_batches, G_MAXUINT16, allowed);
}

static Verdict check_limits(const Choice *choice, char **reason)
{
    const guint64 tokens = (guint64)choice->schedule->micro_batch * choice->workload->seq_len;

    if (choice->schedule->micro_batches > MAX_MICRO_BATCHES)
        return refuse(reason, VERDICT_LIMIT, "micro_batches = %u: at most %d a step",
                      choice->schedule->micro_batches, MAX_MICRO_BATCHES);
    if (tokens >> MAX_TOKENS_LOG2 != 0)
        return refuse(reason, VERDICT_LIMIT,
                      "micro-batch %u x seq_len %u: fewer than 2^%d tokens at a time",
                      choice->schedule->micro_batch, choice->workload->seq_len, MAX_TOKENS_LOG2);
    if (most_in_flight(choice) * (choice->model->layers + 1) > G_MAXUINT16)
        return refuse_in_flight(choice, reason);
    if (choice->sharding->live_units > 1024)
        return refuse(reason, VERDICT_LIMIT, "live_units = %u: at most 1024",
                      choice->sharding->live_units);
    return VERDICT_OK;
}

Verdict legality_check(const Choice *choice, char **reason)
{
    static Verdict (*const checks[])(const Choice *, char **) = {
        check_context, check_pipeline, check_tensor, check_experts,  check_strategy, check_batch,
        check_recipe,  check_offload,  check_units,  check_sequence, check_limits,
    };

    for (guint i = 0; i < G_N_ELEMENTS(checks); i++) {
        const Verdict verdict = checks[i](choice, reason);

        if (verdict != VERDICT_OK)
            return verdict;
    }
    return VERDICT_OK;
}

void sharding_normalise(Sharding *sharding, const Layout *layout, const Schedule *schedule)
{
    if (sharding->strategy == STRATEGY_FULL_SHARD && layout->size[AXIS_DP_REPLICATE] > 1)
        sharding->strategy = STRATEGY_HYBRID_SHARD;
    if (sharding->strategy == STRATEGY_NO_SHARD || sharding->strategy == STRATEGY_SHARD_OPTIMIZER ||
        schedule->kind == SCHEDULE_ZB_H1)
        sharding->accumulate_sharded = FALSE;
}
