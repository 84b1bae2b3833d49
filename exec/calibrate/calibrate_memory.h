/* Memory of a device for ops that are measured, in the state in which a step leaves it. */
#pragma once

#include "exec/calibrate/calibrate_session.h"
#include "exec/calibrate/calibrate_tasks.h"
#include "exec/device/device.h"

/* Each call takes the next place of a ring, so that a buffer that a step last used long ago is not
 * found in the cache.  One ring holds what is only read, and keeps its values. */
typedef struct {
    char *base;
    gsize bytes, next;
} Ring;

/* All on the device. */
typedef struct {
    Device *device;
    char *all;
    Ring read, written;
    char *scratch;
    char *idle; /* of WAKE_ELEMENTS */
    gint32 *ids;
    double *scalars, *results, *hyper; /* MAX_OPERANDS of each of the first two */
} Memory;

enum { WAKE_ELEMENTS = 65536 }; /* enough for every thread to get some */

/* Enough for any of @tasks; on a device without queues it stays the session's. */
gboolean memory_open(Memory *memory, Session *session, Device *device, const GArray *tasks,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
void memory_close(const Memory *memory);

/* Copies @elements (fp32) by a kernel of @stream: work that keeps a device busy for a while. */
void memory_keep_busy(Device *device, guint stream, const void *from, void *to, guint64 elements);

/* Bytes of operand @i, from what the op with and without it moves. */
gsize memory_operand_bytes(const OpTask *task, guint i);

/* The next place of a ring. */
char *memory_take(Ring *ring, gsize bytes);
/* Writes values there, as the op before would. */
void memory_refill(const Memory *memory, char *to, gsize bytes);
