#include "sim/plan_options.h"

#include "sim/base/data_dirs.h"
#include "sim/base/error.h"
#include "sim/base/option_value.h"
#include "sim/base/text_file.h"
#include "sim/base/units.h"
#include "sim/command_argument.h"
#include "sim/plan_config.h"
#include "sim/plan_fix.h"

#include <string.h>

enum { MAX_SEQ = 1 << 28, MAX_TOP = 1000 };

/* A list of nothing is a slip, as is a file without a name. */
static gboolean check_empty(const PlanOptions *o, GError **error)
{
    return option_text("layout", o->layout,
                       "AXIS=N,..., axes dp_replicate, dp_shard, cp, tp, pp, ep", error) &&
           option_text("fix", o->fix, "FIELD=VALUE,...", error) &&
           option_text("offload", o->offload, "optimizer=TIER, parameters=TIER", error) &&
           option_text("from", o->from, "a file", error) &&
           (o->output == NULL || text_file_check(o->output, error)) &&
           option_text("db", o->db, "a file", error);
}

gboolean plan_options_parse(PlanOptions *o, gboolean estimate, int *argc, char ***argv,
                            GError **error)
{
    const GOptionEntry entries[] = {
        {"model", 'm', 0, G_OPTION_ARG_FILENAME, &o->model,
         "Folder with config.json, that file, or a name under models/", "M"},
        {"topology", 't', 0, G_OPTION_ARG_FILENAME, &o->topology,
         "File, or a name under topologies/ (default localhost)", "T"},
        {"gpus", 'n', 0, G_OPTION_ARG_STRING, &o->gpus,
         "Ranks; \"auto\": the smallest number that fits, with --sort pareto also what more buy "
         "(default: the whole cluster)",
         "N"},
        {"seq-len", 0, 0, G_OPTION_ARG_STRING, &o->seq_len,
         "Tokens of a sequence (default min(max_position_embeddings, 8192))", "L"},
        {"global-batch", 'b', 0, G_OPTION_ARG_STRING, &o->global_batch,
         "Sequences of a step (default one micro-batch a data-parallel rank)", "B"},
        {"precision", 0, 0, G_OPTION_ARG_STRING, &o->precision,
         "Of matrix products: bf16, fp32, fp16 or fp8 (default bf16; fp32 where the target is a "
         "CPU)",
         "P"},
        {"recipe", 0, 0, G_OPTION_ARG_STRING, &o->recipe,
         "What is kept a parameter: zero, fsdp2, megatron or fp32 (default fp32 with fp32, else "
         "zero)",
         "R"},
        {"strategy", 's', 0, G_OPTION_ARG_STRING, &o->strategy, "auto, " STRATEGY_NAMES, "S"},
        {"optimizer", 0, 0, G_OPTION_ARG_STRING, &o->optimizer,
         "adamw (default), sgd, or adam8bit: 8-bit moments", "O"},
        {"micro-batch", 0, 0, G_OPTION_ARG_STRING, &o->micro_batch,
         "Sequences at a time on a rank (default: chosen)", "N"},
        {"expert-imbalance", 0, 0, G_OPTION_ARG_STRING, &o->expert_imbalance,
         "Tokens of the busiest rank's experts over the mean (default 1: balanced)", "X"},
        {"recompute", 0, 0, G_OPTION_ARG_STRING, &o->recompute,
         "none, selective (attention) or full (default: chosen); full:4 = of the first 4 layers of "
         "each chunk, full:4/2/0/0 = by stage",
         "R"},
        {"schedule", 0, 0, G_OPTION_ARG_STRING, &o->schedule,
         "Of pipeline stages: gpipe, 1f1b, interleaved or zb_h1 (default: chosen)", "S"},
        {"virtual-stages", 0, 0, G_OPTION_ARG_STRING, &o->virtual_stages,
         "Chunks of the model a stage, with interleaved (default: chosen)", "V"},
        {"offload", 0, 0, G_OPTION_ARG_STRING, &o->offload,
         "What is kept in another tier: optimizer=host,parameters=host (or nvme; "
         "cxl is planned only)",
         "K=TIER"},
        {"fix", 0, 0, G_OPTION_ARG_STRING, &o->fix,
         "Fields held fixed: dp_shard=8,form=flat,accumulate=unsharded,prefetch=2,live_units=3,"
         "keep=none,gather=fp8,reduce_dtype=bf16,gradient_dtype=fp32,sequence=false,"
         "context=all_gather,stages=9:10:10:9, and units: "
         "unit=root:no_shard, or unit=uniform (else, without keep and --strategy, searched)",
         "K=V,..."},
        {"framework", 0, 0, G_OPTION_ARG_STRING, &o->framework,
         "What the prediction is for: fsdp-run (default), megatron, torchtitan, ...", "F"},
        {"json", 0, 0, G_OPTION_ARG_NONE, &o->json, "JSON on stdout", NULL},
        {"output", 'o', 0, G_OPTION_ARG_FILENAME, &o->output, "Write the (best) plan here", "PLAN"},
        {"layout", 0, estimate ? 0 : G_OPTION_FLAG_HIDDEN, G_OPTION_ARG_STRING, &o->layout,
         "The mesh: dp_replicate=1,dp_shard=8 (axes that are not named are 1)", "A=N,..."},
        {"from", 0, 0, G_OPTION_ARG_FILENAME, &o->from,
         "What runs today: a configuration of torchtitan, megatron, deepspeed, accelerate, axolotl",
         "FILE"},
        {"top", 'k', estimate ? G_OPTION_FLAG_HIDDEN : 0, G_OPTION_ARG_STRING, &o->top,
         "Plans listed (default 10)", "K"},
        {"sort", 0, estimate ? G_OPTION_FLAG_HIDDEN : 0, G_OPTION_ARG_STRING, &o->sort,
         "time (default), memory, pareto (none is both faster and smaller), or cost: without "
         "--gpus on a half, a quarter, ... of the cluster too",
         "KEY"},
        {"db", 0, estimate ? G_OPTION_FLAG_HIDDEN : 0, G_OPTION_ARG_FILENAME, &o->db,
         "Record the ranked plans in this store", "FILE"},
        G_OPTION_ENTRY_NULL,
    };
    g_autoptr(GOptionContext) context = g_option_context_new(NULL);
    g_autoptr(GError) why = NULL;

    command_name(estimate ? "estimate" : "search");
    g_option_context_set_summary(
        context, estimate ? "fsdp-plan estimate: prices one layout."
                          : "fsdp-plan search: prices every legal layout and ranks them.");
    g_option_context_add_main_entries(context, entries, NULL);
    if (!g_option_context_parse(context, argc, argv, &why))
        return fail(error, ERROR_INPUT, "%s (see --help)", why->message);
    if (!check_empty(o, error))
        return FALSE;
    if (*argc > 1)
        return fail(error, ERROR_INPUT, "unexpected argument \"%s\" (see --help)", (*argv)[1]);
    if (!estimate && o->layout != NULL)
        return fail(error, ERROR_INPUT, "--layout is estimate's; search has --fix");
    if (estimate && (o->layout == NULL) == (o->from == NULL))
        return fail(error, ERROR_INPUT, "estimate needs --layout dp_shard=N,... or --from FILE");
    return TRUE;
}

void plan_options_clear(PlanOptions *o)
{
    char **const strings[] = {&o->model,       &o->topology,
                              &o->gpus,        &o->precision,
                              &o->recipe,      &o->strategy,
                              &o->optimizer,   &o->recompute,
                              &o->schedule,    &o->offload,
                              &o->fix,         &o->layout,
                              &o->from,        &o->sort,
                              &o->output,      &o->db,
                              &o->framework,   &o->expert_imbalance,
                              &o->seq_len,     &o->global_batch,
                              &o->micro_batch, &o->virtual_stages,
                              &o->top};

    for (guint i = 0; i < G_N_ELEMENTS(strings); i++)
        g_clear_pointer(strings[i], g_free);
}

/* ---- values ---- */

static gboolean bad_option(const char *name, const char *value, const char *allowed, GError **error)
{
    return fail(error, ERROR_INPUT, "--%s = \"%s\": must be %s", name, value, allowed);
}

/* --precision and --recipe confirm each other; defaults are DESIGN 4's. */
static gboolean read_recipe(PlanInputs *inputs, const PlanOptions *o, GError **error)
{
    const gboolean cpu = inputs->topology->gpu.kind == DEVICE_CPU;
    DType precision = cpu ? DTYPE_FP32 : DTYPE_BF16;
    const Recipe *recipe;

    if (o->precision != NULL && !precision_from_name(o->precision, &precision))
        return bad_option("precision", o->precision, PRECISION_NAMES, error);
    if (o->recipe != NULL)
        recipe = recipe_from_name(o->recipe);
    else
        recipe = precision == DTYPE_FP32 ? &recipe_fp32 : &recipe_zero;
    if (recipe == NULL)
        return bad_option("recipe", o->recipe, RECIPE_NAMES, error);
    if (o->precision != NULL || o->recipe == NULL)
        inputs->request.recipe = recipe_with_precision(recipe, precision);
    else
        inputs->request.recipe = recipe;
    if (inputs->request.recipe == NULL)
        return fail(error, ERROR_INPUT, "--precision = %s: recipe %s computes in %s", o->precision,
                    recipe->name, recipe == &recipe_fp32 ? "fp32" : "bf16, fp16 or fp8");
    return TRUE;
}

/* From balanced to all tokens on the same experts. */
static gboolean read_imbalance(SearchRequest *request, const PlanOptions *o, GError **error)
{
    const Experts *experts = &request->model->experts;
    const double most = workload_most_imbalance(experts->count, experts->top_k);
    double value;

    if (o->expert_imbalance == NULL)
        return TRUE;
    if (!units_parse_number(o->expert_imbalance, &value, NULL) || !(value >= 1 && value <= most)) {
        if (experts->count == 0)
            return fail(error, ERROR_INPUT,
                        "--expert-imbalance = \"%s\": must be 1: model %s has no experts",
                        o->expert_imbalance, request->model->name);
        return fail(error, ERROR_INPUT,
                    "--expert-imbalance = \"%s\": must be 1 (balanced) to %g: model %s has %u "
                    "experts, and a token goes to %u",
                    o->expert_imbalance, most, request->model->name, experts->count,
                    experts->top_k);
    }
    request->expert_imbalance = value;
    return TRUE;
}

static gboolean read_framework(PlanInputs *inputs, const PlanOptions *o, GError **error)
{
    return o->framework == NULL || framework_option(o->framework, inputs->topology->gpu.kind,
                                                    &inputs->request.framework, error);
}

static gboolean read_strategy(SearchRequest *request, const PlanOptions *o, GError **error)
{
    Strategy strategy;

    request->strategy = -1;
    if (o->strategy == NULL || g_ascii_strcasecmp(o->strategy, "auto") == 0)
        return TRUE;
    if (!strategy_from_name(o->strategy, &strategy))
        return bad_option("strategy", o->strategy, "auto, " STRATEGY_NAMES, error);
    request->strategy = (gint)strategy;
    return TRUE;
}

static gboolean read_sort(SearchRequest *request, const PlanOptions *o, GError **error)
{
    static const char *const names[] = {[SORT_TIME] = "time",
                                        [SORT_MEMORY] = "memory",
                                        [SORT_COST] = "cost",
                                        [SORT_PARETO] = "pareto"};
    guint key = SORT_TIME;

    while (o->sort != NULL && key < G_N_ELEMENTS(names) && strcmp(o->sort, names[key]) != 0)
        key++;
    if (key == G_N_ELEMENTS(names))
        return bad_option("sort", o->sort, "time, memory, pareto or cost", error);
    if (key == SORT_COST && request->topology->cost.price_per_gpu_hour == 0)
        return fail(error, ERROR_INPUT,
                    "--sort = cost: topology %s states no [cost] price_per_gpu_hour",
                    request->topology->name);
    if (key == SORT_PARETO && o->top != NULL)
        return fail(error, ERROR_INPUT, "--top = %s: --sort pareto lists the whole front", o->top);
    request->sort = (SortKey)key;
    return TRUE;
}

static gboolean read_choices(PlanInputs *inputs, const PlanOptions *o, GError **error)
{
    SearchRequest *request = &inputs->request;
    ScheduleKind schedule = SCHEDULE_1F1B;

    if (o->optimizer != NULL && !optimizer_from_name(o->optimizer, &request->optimizer))
        return bad_option("optimizer", o->optimizer, OPTIMIZER_NAMES, error);
    request->recompute = -1;
    if (o->recompute != NULL && !plan_fix_recompute(request, o->recompute))
        return bad_option("recompute", o->recompute, RECOMPUTE_TEXTS, error);
    if (o->schedule != NULL && !schedule_from_name(o->schedule, &schedule))
        return bad_option("schedule", o->schedule, "gpipe, 1f1b, interleaved or zb_h1", error);
    request->schedule = o->schedule == NULL ? -1 : (gint)schedule;
    request->context = -1;
    request->top = 10;
    return option_uint("seq-len", o->seq_len, 1, MAX_SEQ, &request->seq_len, error) &&
           option_uint("global-batch", o->global_batch, 1, MAX_BATCH, &request->global_batch,
                       error) &&
           option_uint("micro-batch", o->micro_batch, 1, MAX_BATCH, &request->micro_batch, error) &&
           option_uint("virtual-stages", o->virtual_stages, 1, MAX_CHUNKS, &request->virtual_stages,
                       error) &&
           option_uint("top", o->top, 1, MAX_TOP, &request->top, error) &&
           read_recipe(inputs, o, error) && read_framework(inputs, o, error) &&
           read_imbalance(request, o, error) && read_strategy(request, o, error) &&
           read_sort(request, o, error);
}

static gboolean read_gpus(PlanInputs *inputs, const PlanOptions *o, GError **error)
{
    guint64 gpus;

    if (o->gpus == NULL)
        return TRUE;
    if (strcmp(o->gpus, "auto") == 0) {
        inputs->gpus_auto = TRUE;
        return TRUE;
    }
    if (!units_parse_count(o->gpus, 1, MAX_GPUS, &gpus, NULL))
        return fail(error, ERROR_INPUT, "--gpus = \"%s\": must be 1 to %d, or auto", o->gpus,
                    MAX_GPUS);
    inputs->gpus_given = TRUE;
    inputs->request.gpus = (guint)gpus;
    return TRUE;
}

/* ---- --offload, --fix ---- */

static gboolean read_tier(PlanInputs *inputs, const char *text, GError **error)
{
    Offload *offload = &inputs->request.sharding.offload;
    g_auto(GStrv) pair = g_strsplit(text, "=", 2);
    const gboolean whole = g_strv_length(pair) == 2;
    Tier *tier = !whole                               ? NULL
                 : strcmp(pair[0], "optimizer") == 0  ? &offload->optimizer
                 : strcmp(pair[0], "parameters") == 0 ? &offload->parameters
                                                      : NULL;
    MemoryTier memory;

    if (tier == NULL || !tier_from_name(pair[1], tier))
        return fail(error, ERROR_INPUT,
                    "--offload: \"%s\": must be optimizer=TIER or parameters=TIER, TIER %s", text,
                    TIER_NAMES);
    return *tier == TIER_DEVICE || topology_memory(inputs->topology, *tier, &memory) ||
           fail(error, ERROR_INPUT, "--offload: %s: topology %s states no %s%s%s", text,
                inputs->topology->name,
                *tier == TIER_HOST ? "cpu_memory and host_link of a node with GPUs" : "[memory ",
                *tier == TIER_HOST ? "" : tier_name(*tier),
                *tier == TIER_HOST ? "; allowed: a topology file that does, under [node]"
                                   : "]; allowed: a topology file that does");
}

static gboolean read_offload(PlanInputs *inputs, const PlanOptions *o, GError **error)
{
    g_auto(GStrv) fields = o->offload == NULL ? NULL : g_strsplit(o->offload, ",", -1);

    for (guint i = 0; fields != NULL && fields[i] != NULL; i++) {
        if (plan_fix_repeats(fields, i))
            return fail(error, ERROR_INPUT, "--offload: %s: its kind of state is given twice",
                        fields[i]);
        if (!read_tier(inputs, fields[i], error))
            return FALSE;
    }
    return TRUE;
}

/* That the chunks of a stage have, at most: where pp, virtual stages or their layers are free,
 * those of the largest. */
static guint most_layers(const SearchRequest *request, guint pp, guint stage)
{
    const guint layers = request->model->layers, chunks = pp * MAX(1, request->virtual_stages);
    const gboolean given = request->num_chunks > 0 && request->num_chunks % pp == 0;
    const Schedule schedule = {
        .kind = SCHEDULE_INTERLEAVED,
        .virtual_stages = (given ? request->num_chunks : chunks) / pp,
        .chunk_layers = search_chunk_layers(request, given ? request->num_chunks : chunks),
    };

    return chunks > layers ? layers : schedule_most_layers(&schedule, layers, pp, stage);
}

/* Layers by stage are of so many stages, which have as many. */
static gboolean check_stages(const SearchRequest *request, GError **error)
{
    const guint stages = request->num_recompute;
    const guint pp = request->fixed[AXIS_PP] > 0 ? request->fixed[AXIS_PP] : MAX(1, stages);
    guint most = 0;

    if (stages > 1 && pp != stages)
        return fail(error, ERROR_INPUT, "recompute: layers of %u stages, but pp = %u", stages, pp);
    for (guint s = 0; stages > 0 && s < pp; s++) {
        most = MAX(most, most_layers(request, pp, s));
        if (stages > 1 && request->recompute_layers[s] > most_layers(request, pp, s))
            return fail(error, ERROR_INPUT,
                        "recompute: %u layers of stage %u: must be 0 to %u, what its chunks have",
                        request->recompute_layers[s], s, most_layers(request, pp, s));
    }
    return stages != 1 || request->recompute_layers[0] <= most ||
           fail(error, ERROR_INPUT,
                "recompute: %u layers of each chunk: must be 0 to %u, what the largest has",
                request->recompute_layers[0], most);
}

/* An axis that --fix and --layout both give would be one of the two. */
static gboolean check_mesh_is_free(const SearchRequest *request, GError **error)
{
    for (guint a = 0; a < NUM_AXES; a++)
        if (request->fixed[a] != 0)
            return fail(error, ERROR_INPUT, "--fix: %s = %u: the mesh is --layout's",
                        axis_name((Axis)a), request->fixed[a]);
    return request->fixed_ep == 0 ||
           fail(error, ERROR_INPUT, "--fix: ep = %u: the mesh is --layout's", request->fixed_ep);
}

/* More prefetch needs more live units; a number that was given stays. */
static gboolean read_fixed(PlanInputs *inputs, const PlanOptions *o, gboolean estimate,
                           GError **error)
{
    SearchRequest *request = &inputs->request;

    request->sequence_parallel = TRUE;
    request->searches_units = TRUE;
    request->sharding = sharding_default;
    request->sharding.live_units = 0; /* not given */
    if (o->fix != NULL && !plan_fix_read(request, "fix", o->fix, FALSE, error))
        return FALSE;
    if (estimate && o->layout != NULL &&
        (!check_mesh_is_free(request, error) ||
         !plan_fix_read(request, "layout", o->layout, TRUE, error)))
        return FALSE;
    if (request->sharding.live_units == 0)
        request->sharding.live_units = request->sharding.prefetch + 1;
    if (request->sharding.live_units <= request->sharding.prefetch)
        return fail(error, ERROR_INPUT,
                    "--fix: live_units = %u: prefetch %u needs at least %u gathered units alive",
                    request->sharding.live_units, request->sharding.prefetch,
                    request->sharding.prefetch + 1);
    return check_stages(request, error);
}

/* estimate's world is the product of its layout; --gpus may only confirm it. */
static gboolean confirm_gpus(const PlanInputs *inputs, GError **error)
{
    const guint world = search_fixed_ranks(&inputs->request);

    if (world > MAX_GPUS)
        return fail(error, ERROR_INPUT, "--layout: more than %d ranks", MAX_GPUS);
    if (inputs->gpus_auto)
        return fail(error, ERROR_INPUT, "--gpus auto: the layout says how many, %u", world);
    if (inputs->gpus_given && inputs->request.gpus != world)
        return fail(error, ERROR_INPUT, "--gpus %u: the layout has %u ranks", inputs->request.gpus,
                    world);
    return TRUE;
}

/* "fp32, fp16": of what is a precision. */
static char *stated_peaks(const Gpu *gpu)
{
    GString *text = g_string_new(NULL);
    DType precision;

    for (guint d = 0; d < NUM_DTYPES; d++)
        if (gpu->peak_flops[d] > 0 && precision_from_name(dtype_name((DType)d), &precision))
            g_string_append_printf(text, "%s%s", text->len == 0 ? "" : ", ", dtype_name((DType)d));
    return g_string_free(text, FALSE);
}

static gboolean check_peak(const Topology *topology, DType precision, DType dtype, GError **error)
{
    /* A core computes in fp32 what it has no instructions for. */
    const gboolean in_fp32 = topology->gpu.kind == DEVICE_CPU && dtype == DTYPE_BF16;
    const double peak =
        in_fp32 ? gpu_peak_flops(&topology->gpu, dtype) : topology->gpu.peak_flops[dtype];

    if (peak > 0)
        return TRUE;
    g_autofree char *stated = stated_peaks(&topology->gpu);
    return fail(error, ERROR_INPUT,
                "--precision = %s: topology %s states no %s peak for its GPU %s; allowed: %s",
                dtype_name(precision), topology->name, dtype_name(dtype), topology->gpu.name,
                stated);
}

/* What the cluster can't do: a type its GPU has no rate for, more GPUs than its networks join. */
static gboolean check_cluster(const PlanInputs *inputs, guint gpus, GError **error)
{
    const Topology *topology = inputs->topology;
    const Recipe *recipe = inputs->request.recipe;

    if (!check_peak(topology, recipe->precision, recipe->precision, error) ||
        !check_peak(topology, recipe->precision, recipe->compute, error))
        return FALSE;
    if (gpus > topology_max_gpus(topology))
        return fail(error, ERROR_INPUT,
                    "%u GPUs: the networks of topology %s join at most %u; give it an outer "
                    "[network] for more",
                    gpus, topology->name, topology_max_gpus(topology));
    return TRUE;
}

/* Both the layout of today and the others are predicted for the framework whose file that is;
 * accelerate's and axolotl's runs are PyTorch's FSDP, as torchtitan's. */
static const Framework *config_framework(const Config *config, const Topology *topology)
{
    const Framework *own = framework_from_name(config->framework);

    if (topology->gpu.kind != DEVICE_CUDA)
        return NULL;
    return own != NULL ? own : framework_from_name("torchtitan");
}

/* What the file says where the command line says nothing: before --fix, which goes by the recipe.
 */
static gboolean read_config(PlanInputs *inputs, const PlanOptions *o, GError **error)
{
    const gboolean recipe_is_open = o->recipe == NULL && o->precision == NULL;

    if (o->from == NULL)
        return TRUE;
    if (inputs->gpus_auto)
        return fail(error, ERROR_INPUT, "--gpus = auto: --from needs a number");
    inputs->config = config_load(o->from, error);
    if (inputs->config == NULL)
        return FALSE;
    if (o->framework == NULL)
        inputs->request.framework = config_framework(inputs->config, inputs->topology);
    if (o->optimizer == NULL && inputs->config->optimizer >= 0)
        inputs->request.optimizer = (Optimizer)inputs->config->optimizer;
    if (!plan_config_workload(inputs->config, o->from, recipe_is_open, &inputs->request, error))
        return FALSE;
    inputs->gpus_given = TRUE; /* the file and the mesh say how many */
    return TRUE;
}

static gboolean read_today(PlanInputs *inputs, const PlanOptions *o, GError **error)
{
    if (inputs->config == NULL)
        return TRUE;
    inputs->today = inputs->request;
    inputs->today.searches_units = FALSE;
    return plan_config_layout(inputs->config, o->from, &inputs->today, error);
}

gboolean plan_inputs_load(PlanInputs *inputs, const PlanOptions *o, gboolean estimate,
                          GError **error)
{
    g_autofree char *models = data_dir("models");
    g_autofree char *topologies = data_dir("topologies");

    *inputs = (PlanInputs){0};
    if (o->model == NULL)
        return fail(error, ERROR_INPUT,
                    "--model is missing: a folder with config.json, that file, "
                    "or a name under models/");
    inputs->model = model_load(o->model, models, error);
    if (inputs->model == NULL || !model_check_plannable(inputs->model, error))
        return FALSE;
    inputs->topology =
        topology_load(o->topology == NULL ? "localhost" : o->topology, topologies, error);
    if (inputs->topology == NULL)
        return FALSE;
    inputs->request.model = inputs->model;
    inputs->request.topology = inputs->topology;
    return read_choices(inputs, o, error) && read_gpus(inputs, o, error) &&
           read_config(inputs, o, error) && read_fixed(inputs, o, estimate, error) &&
           read_offload(inputs, o, error) && read_today(inputs, o, error) &&
           (o->layout == NULL || confirm_gpus(inputs, error)) &&
           check_cluster(inputs,
                         o->layout != NULL ? search_fixed_ranks(&inputs->request)
                                           : search_gpus(&inputs->request),
                         error);
}

void plan_inputs_clear(PlanInputs *inputs)
{
    model_free(inputs->model);
    topology_free(inputs->topology);
    config_free(inputs->config);
}
