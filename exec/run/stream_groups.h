/* The communicators of a program's streams. */
#pragma once

#include "exec/comm/comm.h"
#include "sim/program/program.h"

/* One communicator a stream and group, made in the same order on every rank; this rank's, by
 * stream, go to @groups.  On the communication thread; collective over all ranks. */
gboolean stream_groups_open(const ProgramSet *set, Comm *comm, CommGroup *groups[MAX_STREAMS],
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
