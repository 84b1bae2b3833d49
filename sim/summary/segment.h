/* What segments cost by themselves, without the calls around them: sums over their ops, the
 * shortest time that they can take, and what they hold. */
#pragma once

#include "sim/program/program.h"

/* Segments that run one after the other, on the same copies of all rings. */
enum { MAX_RUN = 4 };

typedef struct {
    const Program *program;
    double **durations; /* durations_new() */
    guint segments[MAX_RUN], num;
    gint watched; /* unit class whose weights and gradients paths and peaks are about; NO_UNIT: that
                     of the first op that has any */
} SegmentRun;

/* Of all ops together. */
typedef struct {
    double all_s;
    double moving_s;      /* on streams of communication */
    double shard_s;       /* on the stream of the group that shards, or that has the same data */
    double shard_moves_s; /* of that, what fills a unit's whole weights or reads its whole
                             gradients: without casts before, sums and casts behind */
    double data_s;        /* of shard_s, on the latter */
    double replicate_s;   /* on that of the replicas */
    double experts_s;     /* on that of ranks that share experts */
    double files_s;       /* on streams with copies from and to a disk, which one thread runs */
    double copies_s[2];   /* from another tier, to it */
    guint64 volume_bytes[NUM_VOLUMES];
} SegmentSums;

/* Seconds to the end of the run's last compute op: no run takes less.  The *entry* is the
 * activation that a run's last compute op leaves for the next run: the residual stream, or its
 * gradient. */
typedef struct {
    double whole_s;                            /* from when compute stream and entry are there */
    double stream_s;                           /* from when the compute stream is free */
    double entry_s;                            /* from when the entry is there */
    double weights_tail_s, gradients_tail_s;   /* from the start of the first op that reads (writes)
                                                  them; 0 where none does */
    double weights_until_s, gradients_until_s; /* from a free stream to the end of the last one */
} SegmentPath;

/* Bytes of what is neither state nor in a ring, at the worst moment: [1][] while the unit's
 * weights must be there, [][1] once its gradients are. */
typedef struct {
    guint64 bytes[2][2];
} SegmentPeak;

SegmentSums segment_sums(const SegmentRun *run);
SegmentPath segment_path(const SegmentRun *run);

/* @is_counted: by space: its tensors are counted as if they had one copy, which the run has alone.
 */
SegmentPeak segment_peak(const SegmentRun *run, const gboolean *is_counted);
