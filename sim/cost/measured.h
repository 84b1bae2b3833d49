/* Looks up what calibration measured, between and beyond its rows. */
#pragma once

#include "sim/input/topology.h"

#include <glib.h>

/* How the node is used while an op runs; all at least 1. */
typedef struct {
    guint busy;    /* ranks that compute at once */
    guint threads; /* of each */
    guint cores;   /* that they share */
} MeasuredLoad;

/* FLOP/s of one rank's C(m,n) = A(m,k) B(k,n); 0 when no row has that dtype. */
double measured_gemm_rate(const Measured *measured, const MeasuredLoad *load, DType dtype,
                          const guint64 shape[3]);

/* FLOP/s (attention) or bytes/s (others) of one rank, @size and @width as in MeasuredOp; 0 when no
 * row has that op and dtype. */
double measured_op_rate(const Measured *measured, const MeasuredLoad *load, const char *op,
                        DType dtype, const guint64 size[2]);

/* Seconds of a collective of @ranks that are alone on the node; 0 when there is no row for it.
 * *nearest: ranks of the rows used, those nearest to @ranks (more than one where @ranks is). */
double measured_collective_seconds(const Measured *measured, const char *collective, DType dtype,
                                   guint ranks, guint64 bytes, guint *nearest);

/* Ranks that really run at once. */
guint measured_at_once(const MeasuredLoad *load);

/* How many times slower each of @busy ranks of @threads runs because @cores are shared; 1 when
 * there are enough. */
double measured_time_sharing(const MeasuredLoad *load);
