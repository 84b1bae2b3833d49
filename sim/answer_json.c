#include "sim/answer_json.h"

#include "sim/base/json_members.h"
#include "sim/remarks.h"
#include "sim/search/plan_json.h"
#include "sim/search/price.h"

/* Takes @line; NULL: nothing to say. */
static void add_note(JsonArray *notes, char *line)
{
    if (line != NULL)
        json_array_add_string_element(notes, line);
    g_free(line);
}

static JsonArray *plan_notes(const Plan *plan)
{
    JsonArray *notes = json_array_new();

    add_note(notes, remark_routing(plan->model, plan->workload.expert_imbalance));
    add_note(notes, remark_long_sequence(plan->model, plan->workload.seq_len));
    add_note(notes, remark_framework(plan->framework));
    add_note(notes, remark_largest(plan));
    add_note(notes, remark_loading(plan));
    return notes;
}

JsonNode *answer_plan(const Plan *plan)
{
    JsonNode *node = plan_node(plan);
    JsonObject *object = json_node_get_object(node);
    g_autofree char *untrainable = remark_untrainable(plan);

    json_object_set_boolean_member(object, "trainable", untrainable == NULL);
    if (untrainable != NULL)
        json_object_set_string_member(object, "untrainable", untrainable);
    json_object_set_boolean_member(object, "at_risk", plan_is_tight(plan));
    json_object_set_double_member(object, "memory_error", plan_memory_error(plan));
    json_object_set_string_member(object, "bound_by", op_class_name(remark_bound(plan)));
    json_object_set_double_member(
        object, "bytes_per_parameter",
        recipe_bytes_per_parameter(plan->workload.recipe, plan->workload.optimizer));
    if (plan->alike_s > 0)
        json_object_set_double_member(object, "uniform_step_seconds", plan->alike_s);
    json_object_set_array_member(object, "notes", plan_notes(plan));
    return node;
}

void answer_add_refused(JsonObject *object, const SearchResult *result)
{
    JsonObject *rejected = json_object_new(), *refused = json_object_new();

    for (guint v = VERDICT_OK + 1; v < NUM_VERDICTS; v++) {
        if (result->rejected[v] == 0)
            continue;
        json_object_set_int_member(rejected, verdict_name((Verdict)v), (gint64)result->rejected[v]);
        if (result->example[v] != NULL)
            json_object_set_string_member(refused, verdict_name((Verdict)v), result->example[v]);
    }
    json_object_set_object_member(object, "rejected", rejected);
    json_object_set_object_member(object, "refused", refused);
}

/* NULL: no member. */
static void add_plan(JsonObject *object, const char *name, const Plan *plan)
{
    if (plan != NULL)
        json_object_set_member(object, name, answer_plan(plan));
}

/* 0: no number up to the most that was tried. */
static void add_smallest(JsonObject *object, const SearchAnswer *answer)
{
    json_object_set_int_member(object, "smallest_gpus", answer->smallest);
    json_object_set_int_member(object, "most_gpus", search_most_gpus(answer->request));
    if (answer->result->candidates == 0) /* none is legal on those that were asked for */
        json_object_set_int_member(object, "fewer_gpus", answer->fewer);
}

static void add_today(JsonObject *object, const SearchAnswer *answer)
{
    JsonArray *notes;

    if (answer->today == NULL)
        return;
    add_plan(object, "from", answer->today);
    notes = json_array_new();
    for (guint i = 0; answer->notes != NULL && i < answer->notes->len; i++)
        json_array_add_string_element(notes, g_ptr_array_index(answer->notes, i));
    json_object_set_array_member(object, "from_notes", notes);
}

static void add_searched(JsonObject *object, const GArray *searched)
{
    JsonArray *numbers;

    if (searched == NULL)
        return;
    numbers = json_array_new();
    for (guint i = 0; i < searched->len; i++)
        json_array_add_int_element(numbers, g_array_index(searched, guint, i));
    json_object_set_array_member(object, "gpus_searched", numbers);
}

JsonNode *answer_search(const SearchAnswer *answer)
{
    const SearchResult *result = answer->result;
    JsonObject *object = json_object_new();
    JsonArray *plans = json_array_new();
    JsonNode *node = json_node_new(JSON_NODE_OBJECT);

    json_object_set_int_member(object, "candidates", (gint64)result->candidates);
    json_object_set_int_member(object, "feasible", (gint64)result->feasible);
    answer_add_refused(object, result);
    json_object_set_double_member(object, "seconds", result->seconds);
    if (answer->request->sort == SORT_TIME)
        json_object_set_int_member(object, "within_noise", remark_alike(result));
    if (result->plans->len == 0)
        add_smallest(object, answer);
    add_plan(object, "closest", result->closest);
    add_plan(object, "offloaded", answer->offloaded);
    add_plan(object, "fewer_faster", answer->faster);
    add_plan(object, "other_batch", answer->batch);
    if (answer->roomy != 0)
        json_object_set_int_member(object, "gpus_with_room", answer->roomy);
    add_searched(object, answer->searched);
    add_today(object, answer);
    for (guint i = 0; i < result->plans->len; i++)
        json_array_add_element(plans, answer_plan(g_ptr_array_index(result->plans, i)));
    json_object_set_array_member(object, "plans", plans);
    json_node_take_object(node, object);
    return node;
}

/* ---- models ---- */

static JsonNode *tensor_node(const ParamShape *tensor)
{
    JsonNode *node = json_node_new(JSON_NODE_OBJECT);
    JsonObject *object = json_object_new();
    JsonArray *shape = json_array_new();

    if (tensor->dims == 3)
        json_array_add_int_element(shape, (gint64)tensor->stack);
    json_array_add_int_element(shape, (gint64)tensor->rows);
    if (tensor->dims >= 2)
        json_array_add_int_element(shape, (gint64)tensor->cols);
    json_object_set_string_member(object, "name", tensor->name);
    json_object_set_array_member(object, "shape", shape);
    json_node_take_object(node, object);
    return node;
}

static void add_shape(JsonObject *object, const Model *model)
{
    const struct {
        const char *name;
        guint value;
    } sizes[] = {{"layers", model->layers},         {"hidden", model->hidden},
                 {"heads", model->heads},           {"head_dim", model->head_dim},
                 {"kv_heads", model->kv_heads},     {"ffn", model->ffn},
                 {"vocab", model->vocab},           {"max_seq_len", model->max_seq},
                 {"experts", model->experts.count}, {"experts_per_token", model->experts.top_k}};

    for (guint i = 0; i < G_N_ELEMENTS(sizes); i++)
        json_object_set_int_member(object, sizes[i].name, sizes[i].value);
    json_object_set_boolean_member(object, "tied", model->tied);
}

/* Takes @lacking: what it has that is in the way; NULL: it can be. */
static void add_ability(JsonObject *object, const char *can, const char * not, char *lacking)
{
    json_object_set_boolean_member(object, can, lacking == NULL);
    if (lacking != NULL)
        json_object_set_string_member(object, not, lacking);
    g_free(lacking);
}

JsonNode *answer_model(const Model *model)
{
    JsonNode *node = json_node_new(JSON_NODE_OBJECT);
    JsonObject *object = json_object_new();
    JsonArray *list = json_array_new();
    g_autoptr(GArray) tensors = model_tensors(model);

    json_object_set_string_member(object, "name", model->name);
    json_object_set_string_member(object, "model_type", model->model_type);
    json_object_set_int_member(object, "parameters", (gint64)model_parameters(model));
    json_object_set_int_member(object, "active_parameters", (gint64)model_active_parameters(model));
    add_shape(object, model);
    add_ability(object, "plannable", "unplannable", model_unplannable(model));
    add_ability(object, "trainable", "untrainable", model_untrainable(model));
    for (guint i = 0; i < tensors->len; i++)
        json_array_add_element(list, tensor_node(&g_array_index(tensors, ParamShape, i)));
    json_object_set_array_member(object, "tensors", list);
    json_node_take_object(node, object);
    return node;
}

/* ---- proofs ---- */

JsonNode *answer_check(const ProgramSet *set, guint64 ops, const GPtrArray *problems)
{
    JsonNode *node = json_node_new(JSON_NODE_OBJECT);
    JsonObject *object = json_object_new();
    JsonArray *lines = json_array_new();

    for (guint i = 0; i < problems->len; i++)
        json_array_add_string_element(lines, g_ptr_array_index(problems, i));
    json_object_set_boolean_member(object, "proven", problems->len == 0);
    json_object_set_array_member(object, "problems", lines);
    json_object_set_int_member(object, "ranks", set->num_ranks);
    json_object_set_int_member(object, "classes", set->num_classes);
    json_object_set_int_member(object, "ops", (gint64)ops);
    json_node_take_object(node, object);
    return node;
}

void answer_print(JsonNode *node)
{
    g_autofree char *text = json_node_text(node, TRUE);

    g_print("%s\n", text);
}
