/* The mesh: how many ranks an axis has, and where a rank lies on each. */
#pragma once

#include "sim/input/model.h"

#include <glib.h>

/* Outermost first; tp is innermost (DESIGN 4). */
typedef enum { AXIS_PP, AXIS_DP_REPLICATE, AXIS_DP_SHARD, AXIS_CP, AXIS_TP, NUM_AXES } Axis;

/* @ep is no axis of its own: of the dp_shard x cp x tp ranks of a stage's replica, each @ep
 * neighbours hold the experts of a block between them, whole, and those ep apart have the same
 * ones; all other parameters know nothing of it.  So ep borrows ranks of dp_shard, cp and tp, as in
 * torchtitan, and as in Megatron-Core with an expert tensor parallelism of 1.  0 is 1. */
typedef struct {
    guint size[NUM_AXES];
    guint ep;
} Layout;

const char *axis_name(Axis axis); /* "pp", "dp_replicate", "dp_shard", "cp", "tp" */
gboolean axis_from_name(const char *name, Axis *axis);

guint layout_world(const Layout *layout); /* product of all axes */
guint layout_data_ranks(
    const Layout *layout); /* ranks with samples of their own: dp_replicate x dp_shard */
guint layout_shard_ranks(const Layout *layout); /* d, ranks that shard a parameter: dp_shard x cp */
guint layout_ep(const Layout *layout);          /* at least 1 */
guint layout_expert_block(const Layout *layout); /* dp_shard x cp x tp, a multiple of ep */

/* Rank <-> coordinates, rank = ((((pp) dp_replicate) dp_shard) cp) tp. */
void layout_coordinates(const Layout *layout, guint rank, guint coordinate[NUM_AXES]);
guint layout_rank(const Layout *layout, const guint coordinate[NUM_AXES]);

/* "dp_shard=8" or "dp_replicate=2 dp_shard=4": axes, and ep, larger than 1; "1 rank" for a world of
 * one. */
char *layout_text(const Layout *layout);
