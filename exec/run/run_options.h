/* fsdp-run's command line. */
#pragma once

#include "exec/run/train_options.h"
#include "sim/input/topology.h"

typedef struct {
    TrainOptions train;
    char *plan_path, *data_path, *db_path, *device, *schedule, *graph, *attention, *nvme_folder,
        *rounding;
    gboolean version;
} RunOptions;

/* Takes everything out of argv.  ERROR_INPUT with the option, its value and what is allowed. */
gboolean run_options_parse(RunOptions *options, int *argc, char ***argv,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
void run_options_clear(RunOptions *options);

/* Of --attention; nothing was typed: auto. */
gboolean attention_mode_parse(const char *typed, AttentionMode *mode,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
