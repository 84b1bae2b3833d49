/* The waits of a program on a device with streams: an event for each op that another stream waits
 * for.  Ops are numbered as wait_event() does; steps count from 1. */
#pragma once

#include "exec/device/device.h"
#include "sim/program/program.h"

typedef struct OpEvents OpEvents;

/* Opens the device's streams, one for each of the program's.  @program and @first_op (that of
 * program_first_ops()) are borrowed. */
OpEvents *op_events_new(Device *device, const Program *program, const guint32 *first_op,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
void op_events_free(OpEvents *events);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(OpEvents, op_events_free)

/* The stream of op @i of @call goes on once all that the op waits for is done.  Those were recorded
 * before. */
void op_events_wait(OpEvents *events, guint64 step, const Call *call, guint i);
void op_events_record(OpEvents *events, guint64 step, guint32 number, guint stream);

/* ---- steps whose streams begin and end together ---- */

/* The compute stream goes on once all that the others hold is done; and they once what it holds is.
 * While nothing else is issued. */
void op_events_join(OpEvents *events);
void op_events_fork(OpEvents *events);

/* From step @step on, a wait for an earlier one is over: the streams were joined before it. */
void op_events_begin_at(OpEvents *events, guint64 step);

/* Everything on every stream is done. */
gboolean op_events_sync(OpEvents *events, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- sampled steps ---- */

/* Before a sampled step; the first one makes two events for each op. */
gboolean op_events_sample(OpEvents *events, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void op_events_begin(OpEvents *events, guint32 number, guint stream);
void op_events_end(OpEvents *events, guint32 number, guint stream);
/* After op_events_sync(): when op @number began and ended, since op_events_sample(). */
void op_events_time(OpEvents *events, guint32 number, double *start_s, double *end_s);
