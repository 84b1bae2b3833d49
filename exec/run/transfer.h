/* The communication ops of a program as operations of a communicator. */
#pragma once

#include "exec/comm/comm.h"
#include "exec/device/device.h"

typedef struct {
    const Program *program;
    CommGroup *group;           /* of the op's stream */
    CommRun *const *own_chunks; /* transfer_own_chunks() */
    guint micro_batch;
} Transfer;

/* On the communication thread. */
gboolean transfer_run(const Transfer *transfer, const Launch *launch,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* What an all-reduce sums of its operand, see OP_ALL_REDUCE: *num runs, which live as long as *one
 * and the chunks. */
const CommRun *transfer_reduced(const Transfer *transfer, const Launch *launch, CommRun *one,
                                guint *num);

/* By unit class, one a piece: the runs of the whole that are this rank's; @map_rank is its position
 * among the ranks that share a unit.  Made once: a step allocates nothing. */
CommRun **transfer_own_chunks(const Program *program, guint map_rank);
void transfer_own_chunks_free(CommRun **chunks, const Program *program);
