#include "sim/explain_volume.h"

#include "sim/base/text.h"
#include "sim/formula.h"
#include "sim/layout/tensor_parallel.h"

#define PER_BLOCK "block and micro_batch"

/* What a group of ranks moves, told as so many times a unit. */
typedef struct {
    const char *purpose;
    char *unit; /* in words; owned */
    guint ranks;
    double unit_bytes, per;
    const char *per_text, *per_name; /* what it is told of: words, and one name; NULL: a step */
} Traffic;

static void traffic_clear(gpointer traffic)
{
    g_free(((Traffic *)traffic)->unit);
}

/* Parameters and gradients between data-parallel ranks: of experts, or of all else. */
static void add_data_traffic(const Plan *plan, const Program *program, gboolean experts,
                             GArray *list)
{
    const Recipe *recipe = plan->workload.recipe;
    const guint d = formula_shard_ranks(plan, experts);
    const guint r = plan->layout.size[AXIS_DP_REPLICATE], n = r * d;
    const double psi = (double)formula_parameters_of(program, experts);
    const double other = (double)formula_parameters_of(program, !experts);
    const double other_d = formula_shard_ranks(plan, !experts);
    const guint reduced = dtype_bytes(recipe->reduce);
    const double gradient = psi * reduced;
    const double shards_bytes = (psi / d + other / other_d) * reduced;
    const gboolean shards = plan->sharding.strategy != STRATEGY_NO_SHARD;
    const double whole = formula_gather_bytes(plan, program, experts);
    g_autofree char *reduction =
        reduced == whole / psi ? NULL : g_strdup_printf(" (a reduction: %u Psi)", reduced);
    const Traffic traffic[] = {
        {.purpose = experts ? "expert_shard" : "shard",
         .unit = g_strdup_printf("a gather of everything, %.4g Psi (n-1)/n%s", whole / psi,
                                 reduction == NULL ? "" : reduction),
         .ranks = shards ? d : 1,
         .unit_bytes = whole * (d - 1) / d,
         .per = 1},
        {.purpose = "replicate",
         .unit = g_strdup_printf("all gradient shards, %u Psi/d (n-1)/n", reduced),
         .ranks = shards && !experts ? r : 1,
         .unit_bytes = shards_bytes * (r - 1) / r,
         .per = 1},
        {.purpose = experts ? "expert_data" : "data",
         .unit = g_strdup_printf("all gradients, %u Psi (n-1)/n", reduced),
         .ranks = shards ? 1 : n,
         .unit_bytes = gradient * (n - 1) / n,
         .per = 1},
    };

    g_array_append_vals(list, traffic, G_N_ELEMENTS(traffic));
}

static guint stage_units(const Program *program, UnitKind kind)
{
    guint units = 0;

    for (guint u = 0; u < program->units->len; u++)
        units += program_unit(program, u)->kind == kind ? program_unit(program, u)->count : 0;
    return units;
}

static guint blocks_without_attention(const Model *model, const Program *program)
{
    guint blocks = 0;

    for (guint u = 1; u < program->units->len; u++) {
        const UnitClass *unit = program_unit(program, u);
        const Model one = model_of_kind(model, unit->of_kind);

        blocks += model_has_attention(&one) ? 0 : unit->count;
    }
    return blocks;
}

/* Elements of a token that a rank gives the others of its cp group, as a collective has them. */
static guint64 context_columns(const Plan *plan)
{
    const Model local = tensor_parallel_model(plan->model, plan->layout.size[AXIS_TP]);
    const LatentAttention *latent = &local.latent;

    return latent->top_keys > 0
               ? latent->kv_rank + latent->rope_dim + latent->index_dim
               : (guint64)local.kv_heads * (local.head_dim + model_value_dim(&local));
}

/* Activations, within a block and between stages. */
static void add_activation_traffic(const Plan *plan, const Program *program, GArray *list)
{
    const guint *size = plan->layout.size;
    const guint tp = size[AXIS_TP], cp = size[AXIS_CP], m = plan->schedule.micro_batches;
    const double tokens = (double)plan->schedule.micro_batch * (plan->workload.seq_len / cp);
    const double element = dtype_bytes(plan->workload.recipe->compute);
    const guint sparse = stage_units(program, UNIT_SPARSE), ep = layout_ep(&plan->layout);
    const guint blocks = stage_units(program, UNIT_BLOCK) + sparse;
    const guint attention = blocks - blocks_without_attention(plan->model, program);
    const double arriving = (double)workload_busiest_rows(
        &plan->workload, (guint64)tokens / tp * plan->model->experts.top_k, ep);
    const gboolean busiest = ep > 1 && plan->workload.expert_imbalance > 1;
    const double imbalance = MIN(plan->workload.expert_imbalance, ep);
    const char *handed = plan->sequence_parallel && tp > 1
                             ? "what a chunk hands on, N C/tp elements"
                             : "what a chunk hands on, N C elements";
    const Traffic traffic[] = {
        {.purpose = "tp",
         .unit = g_strdup("an activation, N C (n-1)/n elements"),
         .ranks = tp,
         .unit_bytes = element * tokens * plan->model->hidden * (tp - 1) / tp,
         .per = (double)blocks * m,
         .per_text = " a block and micro-batch (embedding and head included)",
         .per_name = PER_BLOCK},
        {.purpose = "cp",
         .unit = g_strdup(plan->model->latent.top_keys > 0
                              ? "latent keys and the indexer's of the others, N (K + KI) (n-1) "
                                "elements"
                              : "keys and values of the others, 2 N K (n-1) elements"),
         .ranks = cp,
         .unit_bytes = element * tokens * (double)context_columns(plan) * (cp - 1),
         .per = (double)attention * m,
         .per_text = attention < blocks ? " a block with attention and micro-batch"
                                        : " a block and micro-batch",
         .per_name = PER_BLOCK},
        {.purpose = "ep",
         .unit = busiest
                     ? g_strdup_printf("a row for each token that the busiest rank's experts have, "
                                       "%g k N C/tp (n-1)/n elements",
                                       imbalance)
                     : g_strdup("a row for each expert that a token visits, k N C/tp (n-1)/n "
                                "elements"),
         .ranks = ep,
         .unit_bytes = element * arriving * plan->model->hidden * (ep - 1) / ep,
         .per = (double)sparse * m,
         .per_text = " a block and micro-batch (the rows' weights included)",
         .per_name = PER_BLOCK},
        {.purpose = "pp",
         .unit = g_strdup(handed),
         .ranks = size[AXIS_PP],
         .unit_bytes = (double)formula_handed_bytes(plan),
         .per = m,
         .per_text = " a micro-batch: the chunks before and after this stage's",
         .per_name = "micro_batch"},
    };

    g_array_append_vals(list, traffic, G_N_ELEMENTS(traffic));
}

/* Of the rank that the plan's figures are of: what groups of several ranks move. */
static GArray *traffic_of(const Plan *plan, const Program *program)
{
    GArray *list = g_array_new(FALSE, FALSE, sizeof(Traffic));

    g_array_set_clear_func(list, traffic_clear);
    add_data_traffic(plan, program, FALSE, list);
    if (plan->model->experts.count > 0)
        add_data_traffic(plan, program, TRUE, list);
    add_activation_traffic(plan, program, list);
    for (guint i = list->len; i-- > 0;) {
        const Traffic *traffic = &g_array_index(list, Traffic, i);

        if (traffic->ranks == 1 || !(traffic->unit_bytes > 0)) /* nobody, or nothing to send */
            g_array_remove_index(list, i);
    }
    return list;
}

/* How many times the unit the bytes of one kind are. */
static double times_unit(const Traffic *traffic, guint64 bytes)
{
    return (double)bytes / traffic->unit_bytes / traffic->per;
}

static void print_traffic(const Program *program, const Traffic *traffic)
{
    guint64 received[NUM_VOLUMES];
    g_autofree char *unit = bytes_text((guint64)traffic->unit_bytes);
    const char *separator = "; ";

    program_purpose_volume(program, traffic->purpose, received);
    g_print("  %-9s %4u ranks: %s = %s", traffic->purpose, traffic->ranks, traffic->unit, unit);
    for (guint v = 0; v < NUM_VOLUMES; v++) {
        if (received[v] == 0)
            continue;
        g_print("%s%s %.4g", separator, volume_name((Volume)v), times_unit(traffic, received[v]));
        separator = ", ";
    }
    g_print(" times that%s\n", traffic->per_text == NULL ? "" : traffic->per_text);
}

void explain_volume_print(const Plan *plan, const ProgramSet *set)
{
    const Program *program = formula_program(plan, set);
    g_autoptr(GArray) list = traffic_of(plan, program);

    if (plan->gpus == 1)
        return;
    g_print("\nvolume of rank %u, by formula: received by group of n ranks; N = tokens of a "
            "micro-batch on a rank, C = hidden size, K = width of its keys\n",
            plan->prediction.rank);
    for (guint i = 0; i < list->len; i++)
        print_traffic(program, &g_array_index(list, Traffic, i));
}

static JsonObject *traffic_answer(const Program *program, const Traffic *traffic)
{
    JsonObject *object = json_object_new(), *bytes = json_object_new(), *times = json_object_new();
    guint64 received[NUM_VOLUMES];

    program_purpose_volume(program, traffic->purpose, received);
    for (guint v = 0; v < NUM_VOLUMES; v++) {
        if (received[v] == 0)
            continue;
        json_object_set_int_member(bytes, volume_name((Volume)v), (gint64)received[v]);
        json_object_set_double_member(times, volume_name((Volume)v),
                                      times_unit(traffic, received[v]));
    }
    json_object_set_string_member(object, "group", traffic->purpose);
    json_object_set_int_member(object, "ranks", traffic->ranks);
    json_object_set_string_member(object, "unit", traffic->unit);
    json_object_set_int_member(object, "unit_bytes", (gint64)traffic->unit_bytes);
    json_object_set_string_member(object, "per",
                                  traffic->per_name == NULL ? "step" : traffic->per_name);
    json_object_set_object_member(object, "times", times);
    json_object_set_object_member(object, "received_bytes", bytes);
    return object;
}

void explain_volume_answer(const Plan *plan, const ProgramSet *set, JsonObject *answer)
{
    const Program *program = formula_program(plan, set);
    g_autoptr(GArray) list = traffic_of(plan, program);
    JsonArray *volume = json_array_new();

    for (guint i = 0; i < list->len; i++)
        json_array_add_object_element(volume,
                                      traffic_answer(program, &g_array_index(list, Traffic, i)));
    json_object_set_array_member(answer, "volume", volume);
}
