/* What a training run is asked to do beside its plan. */
#pragma once

#include "exec/run/interpreter.h"

#include <glib.h>

typedef struct {
    const char *data_path, *db_path; /* db NULL: nothing is stored */
    const char *nvme_folder;         /* where the nvme tier's files go; NULL: not given */
    guint steps;                     /* the step to stop at, counted from the start of training */
    guint64 seed;
    double lr, clip_norm; /* clip_norm 0 = off */
    gboolean cosine;      /* else the rate is constant */
    guint lr_steps, warmup;
    guint log_every;
    gboolean json;    /* a JSON line a step instead of text */
    guint watchdog_s; /* 0 = off */
    gboolean check, check_seed_given, no_overlap;
    gboolean stochastic; /* bf16 parameters are rounded from their masters by chance */
    GraphMode graph;
    AttentionMode attention;
    guint64 check_seed;
} TrainOptions;
