/* Which parts of a copy of a tensor hold data, as bits: one a parameter of a unit (as in
 * unit_map_param_bits()), or that of all of it. */
#pragma once

#include "sim/program/program.h"

static const guint64 ALL_WRITTEN = G_GUINT64_CONSTANT(1) << 63;

/* What a write of that operand adds. */
static inline guint64 written_bits(const Operand *operand)
{
    return operand->param == WHOLE_TENSOR ? ALL_WRITTEN
                                          : G_GUINT64_CONSTANT(1) << (operand->param % 62);
}

/* A whole read needs every part; parts were written one by one or all at once. */
static inline gboolean written_covers(const Program *program, guint64 written,
                                      const Operand *operand)
{
    const gint unit = program_tensor(program, operand->tensor)->unit;

    if (written & (ALL_WRITTEN | written_bits(operand)))
        return TRUE;
    if (operand->param != WHOLE_TENSOR || unit == NO_UNIT)
        return FALSE;
    const guint64 parts = unit_map_param_bits(program_unit(program, (guint)unit)->map);
    return (written & parts) == parts;
}
