/* What tables of runs call a framework, and what its users do where a table does not say. */
#pragma once

#include "sim/backtest/record.h"
#include "sim/layout/sharding.h"

typedef struct {
    const char *word, *software; /* parts of columns framework, and compile_or_flash, precision,
                                    fsdp_strategy or source_locator; NULL: any */
    const char *model;           /* part of the model's name as letters and digits; NULL: any */
    const char *gpu;             /* the GPU's name begins so; NULL: any */
    gboolean experts;            /* mixtures only */
    const char *recomputed;      /* part of what is recomputed selectively, attention not; NULL:
                                    whatever */
    guint since;                 /* year and month that the row names, or later; 0: any */
    const char *framework;
    const char *waiting; /* the same of runs whose host is not ahead of the device: host_waits();
                            NULL: all the same */
    const char *recipe;
    Strategy strategy;
    gboolean sequence;         /* tokens are split between matrices */
    gboolean interleaves;      /* stages have as many chunks as layers allow */
    gboolean halves_selective; /* "selective" keeps every other product */
    gboolean balances_head;    /* stages are cut by parameters, the head's too */
    gboolean recomputes;       /* where nothing is said, what did not fit */
    gboolean recomputes_gpt;   /* blocks without a gate are recomputed */
    gboolean weighs_first;     /* memory is that of rank 0, of the first stage */
    gboolean reduces_half;     /* gradients are reduced as wide as what is computed with */
} Usage;

/* The first of all that the row is of; the last is of any. */
const Usage *usage_of(const Record *record);
