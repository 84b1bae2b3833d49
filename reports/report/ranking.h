/* Whether the plans that were predicted faster are the ones that ran faster. */
#pragma once

#include <glib.h>

typedef struct {
    double predicted_s, measured_s; /* of a step; both known */
} RankedPair;

typedef struct {
    guint count;     /* runs compared */
    double spearman; /* rank correlation, equal values share the mean of their ranks; NAN when
                        there are fewer than 2 or one side is all equal */
    guint pairs,
        in_order;  /* pairs of runs whose predictions differ; those measured in that order */
    double regret; /* time of the one predicted best over the best measured - 1; NAN: none */
} Ranking;

/* @pairs: RankedPair. */
Ranking ranking_of(const GArray *pairs);
