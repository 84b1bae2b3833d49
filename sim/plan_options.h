/* The options of search and estimate: one table, one request. */
#pragma once

#include "sim/config/config.h"
#include "sim/search/search.h"

/* As typed; the strings are owned. */
typedef struct {
    char *model, *topology, *gpus, *precision, *recipe, *strategy, *optimizer, *recompute,
        *schedule, *offload, *fix, *framework;
    char *layout, *from, *sort, *output, *db, *expert_imbalance;
    char *seq_len, *global_batch, *micro_batch, *virtual_stages, *top;
    gboolean json, gpus_auto;
} PlanOptions;

/* What was typed, loaded and checked. */
typedef struct {
    Model *model;
    Topology *topology;
    SearchRequest request;
    Config *config;      /* --from; NULL: none */
    SearchRequest today; /* then what it describes */
    gboolean gpus_given, gpus_auto;
} PlanInputs;

/* Takes the options out of argv; @estimate: --layout instead of --fix's axes.  ERROR_INPUT. */
gboolean plan_options_parse(PlanOptions *options, gboolean estimate, int *argc, char ***argv,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
void plan_options_clear(PlanOptions *options);

gboolean plan_inputs_load(PlanInputs *inputs, const PlanOptions *options, gboolean estimate,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
void plan_inputs_clear(PlanInputs *inputs);
