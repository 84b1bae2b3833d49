/* The communicators of a program's streams. */
#pragma once

#include "exec/comm/comm.h"
#include "sim/program/program.h"

/* What is done with this rank's group of a stream once it is made, on all ranks that have one. */
typedef gboolean (*StreamGroupVisit)(gpointer data, guint stream, CommGroup *group, GError **error);

/* Makes the groups of one stream after the other, in the same order on every rank.  On the
 * communication thread; collective over all ranks. */
gboolean stream_groups_visit(const ProgramSet *set, Comm *comm, StreamGroupVisit visit,
                             gpointer data, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* One communicator a stream and group, made in the same order on every rank; this rank's, by
 * stream, go to @groups.  On the communication thread; collective over all ranks. */
gboolean stream_groups_open(const ProgramSet *set, Comm *comm, CommGroup *groups[MAX_STREAMS],
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
