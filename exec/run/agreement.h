/* In check mode the members of a group say to each other what they are about to do before they do
 * it.  A collective of another kind, order or unit on one rank would mix up tensors, or hang. */
#pragma once

#include "exec/comm/comm.h"
#include "sim/program/program.h"

typedef struct Agreement Agreement;

/* @set is borrowed. */
Agreement *agreement_new(const ProgramSet *set, guint rank);
void agreement_free(Agreement *agreement);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Agreement, agreement_free)

/* On the communication thread, before the op at @at (progress_at()); collective over the group,
 * whatever its members are about to do, and not counted as volume.  *same FALSE: they differ, or
 * did before; then the op must not run.  An exchange is matched by its messages, not here. */
gboolean agreement_reach(Agreement *agreement, CommGroup *group, guint64 at, gboolean *same,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Any thread.  ERROR_RUNTIME with both ops once members differed. */
gboolean agreement_holds(Agreement *agreement, GError **error) G_GNUC_WARN_UNUSED_RESULT;
