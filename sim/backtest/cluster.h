/* The cluster that a published run names: its GPU, links and fabric. */
#pragma once

#include "sim/backtest/record.h"
#include "sim/input/topology.h"

/* NULL and *reason (static text) where the row's GPU is not known, or not named. */
Topology *cluster_of(const Record *record, const char *topologies_dir, const char **reason);

/* Gb/s of the fabric that one GPU has to itself, as the row words it; 0 where it has no number. */
double cluster_fabric_gbits(const Record *record, guint gpus_per_node);
