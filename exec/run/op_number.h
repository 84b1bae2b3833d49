/* A number for every op of a program: those of the step in the order of issue, then those of the
 * epilogue (which follows a last step), then those of the prologue. */
#pragma once

#include "sim/program/program.h"

typedef struct {
    guint32 epilogue, prologue; /* number of their first op */
    guint32 end;                /* how many there are */
} OpNumbers;

OpNumbers op_numbers(const Program *program);

/* What has that number; FALSE when nothing has. */
gboolean op_number_find(const Program *program, guint32 number, const Call **call, const Op **op);
