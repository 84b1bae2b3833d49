/* What a plan's training costs in failures, money and energy, where its topology says. */
#pragma once

#include "sim/cost/goodput.h"
#include "sim/search/plan.h"

typedef struct {
    guint64 checkpoint_bytes; /* parameters (their master, where there is one) and moments, once */
    Failures failures;
    double young_s, daly_s; /* intervals between checkpoints */
    double useful;          /* share of the time, with Daly's interval */
} PlanGoodput;

/* FALSE where the topology doesn't state both failures and a checkpoint's bandwidth. */
gboolean plan_goodput(const Plan *plan, PlanGoodput *goodput);

/* Mean time between failures; 0 = not stated. */
double plan_mtbf_s(const Plan *plan);

/* The replicas (dp_replicate) that hold all state. */
typedef struct {
    guint replicas;
    guint lost_with_node; /* of them, at most */
    gboolean go_on; /* one is left by the loss of a rank, and of a node where nodes are said to
                       fail; then: */
    Survivors formula;
    guint64 heal_bytes; /* that each rank of a replica gets when it is back, on average */
    double useful;      /* share of the work that is done when the others go on */
} PlanSurvivors;

/* Of a topology that states failures. */
PlanSurvivors plan_survivors(const Plan *plan);

/* Of a million tokens that are trained once and for all: failures and checkpoints included where
 * they are known.  0 where the topology has no price, no power; INFINITY where nothing is useful.
 */
double plan_money_per_million(const Plan *plan);
double plan_kwh_per_million(const Plan *plan);
