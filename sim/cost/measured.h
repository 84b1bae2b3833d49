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

/* Which rows may stand for a collective, and which do. */
typedef struct {
    const char *collective;
    DType dtype;
    guint ranks;         /* wanted */
    guint least, most;   /* ranks of rows */
    guint nearest;       /* set: ranks of the rows used; 0 = there is none */
    guint64 least_bytes; /* set: of the smallest of those */
} MeasuredGroup;

/* Seconds of a collective that is alone on its nodes; 0 when there is no row for it. */
double measured_collective_seconds(const Measured *measured, MeasuredGroup *group, guint64 bytes);

/* Ranks that really run at once. */
guint measured_at_once(const MeasuredLoad *load);

/* How many times slower each of @busy ranks of @threads runs because @cores are shared; 1 when
 * there are enough. */
double measured_time_sharing(const MeasuredLoad *load);
