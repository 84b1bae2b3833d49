#include "sim/export/routing.h"

#include "sim/base/error.h"
#include "sim/base/json.h"

#include <string.h>

/* What a family's code fixes, and its defaults (transformers' configuration_*.py, modeling_*.py;
 * DeepSeek-V2's with topk_method group_limited_greedy, which its larger sizes have). */
static const struct {
    const char *model_type;
    Routing routing;
    gboolean fixed; /* the file can't say otherwise */
} families[] = {
    {"mixtral", {.normalised = TRUE, .scale = 1}, TRUE},
    {"qwen2_moe", {.scale = 1}, FALSE},
    {"qwen3_moe", {.scale = 1}, FALSE},
    {"deepseek_v2", {.scale = 1, .group_best = 1}, FALSE},
    {"deepseek_v3",
     {.sigmoid = TRUE,
      .biased = TRUE,
      .normalised = TRUE,
      .scale = 2.5,
      .groups = 8,
      .top_groups = 4,
      .group_best = 2},
     FALSE},
};

static gboolean read_groups(const Model *model, const JsonText *json, Routing *routing,
                            GError **error)
{
    const char *method = "greedy";

    if (routing->group_best == 0)
        return TRUE;
    if (!json_optional_string(json, "topk_method", &method, error) ||
        !json_optional_uint32(json, "n_group", 1, model->experts.count, &routing->groups, error) ||
        !json_optional_uint32(json, "topk_group", 1, model->experts.count, &routing->top_groups,
                              error))
        return FALSE;
    if (routing->group_best == 1 && strcmp(method, "group_limited_greedy") != 0)
        routing->groups = 0;
    if (routing->top_groups == 0 || routing->groups == routing->top_groups) /* all are the best */
        routing->groups = 0;
    return TRUE;
}

gboolean routing_read(const Model *model, Routing *routing, GError **error)
{
    g_autoptr(JsonText) json = json_parse(model->config_text, model->name, error);
    guint i = 0;

    if (json == NULL)
        return FALSE;
    while (i < G_N_ELEMENTS(families) && strcmp(families[i].model_type, model->model_type) != 0)
        i++;
    if (i == G_N_ELEMENTS(families))
        return fail(error, ERROR_INFEASIBLE, "how the router of model_type %s chooses is not known",
                    model->model_type);
    *routing = families[i].routing;
    if (families[i].fixed)
        return TRUE;
    return json_optional_bool(json, "norm_topk_prob", &routing->normalised, error) &&
           json_optional_double(json, "routed_scaling_factor", 1e-6, 1e6, &routing->scale, error) &&
           read_groups(model, json, routing, error);
}
