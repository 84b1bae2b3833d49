/* What the transport itself says that a step's communication takes: a third column beside what is
 * predicted and what is measured. */
#pragma once

#include "exec/run/interpreter.h"

/* By kind, the sum over one step's operations of this rank, each alone on its links; 0 where there
 * are none, NAN where the transport says nothing: it isn't NCCL, or it is an exchange.  Takes
 * NCCL's buffers of one stream's groups for a moment, beside all else.  Before the first step;
 * collective over all ranks. */
gboolean estimate_step(Interpreter *interpreter, double seconds[NUM_VOLUMES],
                       GError **error) G_GNUC_WARN_UNUSED_RESULT;
