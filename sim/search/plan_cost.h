/* What a plan's training costs in failures, money and energy, where its topology says. */
#pragma once

#include "sim/cost/goodput.h"
#include "sim/search/plan.h"

typedef struct {
    guint64 checkpoint_bytes; /* parameters (their master, where there is one) and moments, once */
    Failures failures;
    double young_s, daly_s; /* intervals between checkpoints */
    double useful;          /* share of the time, with Daly's interval */
    guint replicas;         /* that hold all state: dp_replicate */
    guint lost_with_node;   /* of them, when a node is lost, at most */
    Survivors survivors;    /* where others can go on: plan_survives() */
    guint64 heal_bytes;     /* that each rank of a group gets when it is back, on average */
    double surviving;       /* share of the work, when others go on */
} PlanGoodput;

/* FALSE where the topology doesn't state both failures and a checkpoint's bandwidth. */
gboolean plan_goodput(const Plan *plan, PlanGoodput *goodput);

/* Whether a group that holds all state is left by the loss of a rank, and of a node where nodes
 * are said to fail. */
gboolean plan_survives(const Plan *plan, const PlanGoodput *goodput);

/* Of a million tokens that are trained once and for all: failures and checkpoints included where
 * they are known.  0 where the topology has no price, no power; INFINITY where nothing is useful.
 */
double plan_money_per_million(const Plan *plan);
double plan_kwh_per_million(const Plan *plan);
