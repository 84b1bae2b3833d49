/* What a long run of a plan costs: failures, checkpoints, money, energy. */
#pragma once

#include "sim/search/plan.h"

void explain_run_print(const Plan *plan);
