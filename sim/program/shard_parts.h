/* What the halves of pass_shard() share; not for others. */
#pragma once

#include "sim/program/builder.h"

/* The stream of the ranks that share a unit; experts are shared by fewer. */
guint shard_stream(Builder *builder, const UnitClass *unit, const char *direction);

/* "UNIT.WHAT" */
guint shard_new_segment(Builder *builder, const UnitClass *unit, const char *what);

/* A tensor of a unit: whole where @kind says so, else of its shard; and one that lives within its
 * gather, or its reduction. */
guint shard_unit_tensor(Builder *builder, guint index, const char *what, TensorKind kind,
                        DType dtype, guint space);
guint shard_call_buffer(Builder *builder, guint index, const char *what, DType dtype,
                        UnitPart part);

/* An op on a unit, of what is gathered or reduced. */
Op *shard_unit_op(Builder *builder, guint segment, OpKind kind, guint stream, guint index);

/* Whole gradients become a ring, each reduced into the accumulating shard. */
void shard_gradients(Builder *builder, guint index);

/* What reduces a unit's gradients, by micro-batch, or once. */
void shard_build_reductions(Builder *builder, guint index);
