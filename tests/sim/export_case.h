/* A plan to export, and what comes of it. */
#pragma once

#include "sim/base/error.h"
#include "sim/export/export.h"
#include "sim/layout/legality.h"
#include "tests/sim/export_keys.h"

static const char export_llama_8b[] =
    "{\"model_type\": \"llama\", \"hidden_act\": \"silu\", \"vocab_size\": 128256,"
    " \"hidden_size\": 4096, \"intermediate_size\": 14336, \"num_hidden_layers\": 32,"
    " \"num_attention_heads\": 32, \"num_key_value_heads\": 8,"
    " \"max_position_embeddings\": 131072, \"rope_theta\": 500000.0, \"rms_norm_eps\": 1e-05,"
    " \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0,"
    " \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}}";

static const Layout export_layout = {.size = {[AXIS_PP] = 1,
                                              [AXIS_DP_REPLICATE] = 1,
                                              [AXIS_DP_SHARD] = 16,
                                              [AXIS_CP] = 1,
                                              [AXIS_TP] = 1}};

/* All of the @num (or up to a NULL) are in @text, or none is. */
static inline void check_words(const char *text, const char *const *words, gsize num,
                               gboolean wanted)
{
    for (gsize i = 0; i < num && words[i] != NULL; i++)
        ck_assert_msg((strstr(text, words[i]) != NULL) == wanted, "%s\n%s %s", text,
                      wanted ? "lacks" : "has", words[i]);
}

/* full_shard over 16 ranks of 8-rank machines, batch 128 = 2 x 4 x 16, everything as it is by
 * default.  Takes @model. */
static inline Plan *make_plan_with(Model *model, const Recipe *recipe)
{
    Plan *plan = plan_new();

    plan->model = model;
    plan->gpus = 16;
    plan->device = DEVICE_CUDA;
    plan->ranks_per_node = 8;
    plan->threads = 1;
    plan->workload = (Workload){
        .global_batch = 128, .seq_len = 4096, .recipe = recipe, .optimizer = OPTIMIZER_ADAMW};
    plan->layout = export_layout;
    plan->sharding = sharding_default;
    plan->schedule = (Schedule){.micro_batch = 2, .micro_batches = 4};
    return plan;
}

/* A model that ships, or one given as text. */
static inline Model *model_of(const char *model)
{
    g_autoptr(GError) error = NULL;
    Model *known = *model == '{' ? model_parse(model, "test", "test", &error)
                                 : model_load(model, "models", &error);

    ck_assert_msg(known != NULL, "%s", error == NULL ? "" : error->message);
    return known;
}

static inline Plan *make_plan(const Recipe *recipe)
{
    Model *model = model_parse(export_llama_8b, "test", "llama-3.1-8b", NULL);

    ck_assert_ptr_nonnull(model);
    return make_plan_with(model, recipe);
}

/* Two frameworks take only recipe fsdp2. */
static inline Plan *plan_of_model(const char *model, const char *framework)
{
    const gboolean fsdp2 =
        strcmp(framework, "torchtitan") == 0 || strcmp(framework, "accelerate") == 0;
    Plan *plan = make_plan_with(model_of(model), fsdp2 ? &recipe_fsdp2 : &recipe_zero);

    plan->workload.seq_len = MIN(plan->workload.seq_len, plan->model->max_seq);
    return plan;
}

static inline void set_mesh(Plan *plan, Strategy strategy, guint replicate, guint shard)
{
    plan->layout.size[AXIS_DP_REPLICATE] = replicate;
    plan->layout.size[AXIS_DP_SHARD] = shard;
    plan->sharding.strategy = strategy;
    sharding_normalise(&plan->sharding, &plan->layout, &plan->schedule);
}

/* NULL when it was refused; then *refusal is the reason, one line that names the framework. */
static inline char *export_or_refusal(const Plan *plan, const char *framework, char **refusal)
{
    g_autoptr(GPtrArray) notes = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GError) error = NULL;
    char *text = export_plan(plan, framework, notes, &error);

    ck_assert_int_eq(text == NULL, error != NULL);
    *refusal = NULL;
    if (text != NULL)
        return text;
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INFEASIBLE));
    ck_assert_ptr_null(strchr(error->message, '\n'));
    *refusal = g_strdup(error->message);
    return NULL;
}

static inline const char *setting(Settings *settings, const char *key)
{
    const char *value = g_hash_table_lookup(settings, key);

    ck_assert_msg(value != NULL, "no %s", key);
    return value;
}
