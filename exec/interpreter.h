/* Executes a program on a device and a communicator: the second interpreter of DESIGN 2. */
#pragma once

#include "exec/comm.h"
#include "exec/device.h"
#include "sim/program/program.h"

typedef struct Interpreter Interpreter;

typedef struct {
    const char *transport; /* "self" (one rank) or "mpi" */
    guint ranks_per_node;  /* 0 = as the machine is; see comm_open() */
    guint threads;         /* of the device */
    DeviceKind device;
} InterpreterOptions;

/* One timed op of a sampled step. */
typedef struct {
    double start_s, end_s; /* since the step began; both 0: skipped */
} OpTime;

/* Starts the communication thread, opens the communicator on it, makes all groups and the arena,
 * poisons the arena.  Collective over all ranks.  @set is borrowed.  ERROR_RUNTIME, or ERROR_INPUT
 * when the communicator has another number of ranks than the set. */
Interpreter *interpreter_new(const ProgramSet *set, const InterpreterOptions *options,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Ends with every queued operation done (unless it failed).  Collective when nothing failed. */
void interpreter_free(Interpreter *interpreter);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Interpreter, interpreter_free)

guint interpreter_rank(const Interpreter *interpreter);
guint interpreter_map_rank(const Interpreter *interpreter); /* among the ranks that share a unit */
const Program *interpreter_program(const Interpreter *interpreter);
const char *interpreter_transport(const Interpreter *interpreter); /* as comm_describe() */
const char *interpreter_library(const Interpreter *interpreter);   /* as device_library() */

/* A tensor copy in the arena, and the tensor of that name (NO_TENSOR when there is none). */
void *interpreter_tensor(Interpreter *interpreter, guint tensor, guint copy);
gint interpreter_find(const Interpreter *interpreter, const char *name);

/* Runs one step; returns when all compute is done (a gather of updated parameters may still run).
 * Allocates nothing.  @sample: time every op.  ERROR_RUNTIME with the op at which it failed. */
gboolean interpreter_step(Interpreter *interpreter, gboolean sample,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Waits for everything that the last step left running and runs the epilogue; the next step then
 * starts with the prologue.  Before a save, an evaluation, the end. */
gboolean interpreter_drain(Interpreter *interpreter, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Times of the last sampled step, one per op in the order of calls; NULL before there was one. */
const OpTime *interpreter_times(const Interpreter *interpreter);

/* Bytes that the transport has received so far, by kind. */
void interpreter_bytes_in(Interpreter *interpreter, guint64 bytes[NUM_VOLUMES]);

/* Bytes of the arena, or of one tensor with all its copies, that no longer hold poison: what was
 * really touched since interpreter_new(). */
guint64 interpreter_touched_arena(const Interpreter *interpreter);
guint64 interpreter_touched_tensor(const Interpreter *interpreter, guint tensor);
guint64 interpreter_foreign_bytes(const Interpreter *interpreter); /* comm_foreign_bytes() */

/* Control channel: the largest @value of all ranks; @data of all ranks, at rank 0 (@all: GBytes).
 * Collective; not counted as volume. */
gboolean interpreter_agree_max(Interpreter *interpreter, gint64 *value,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean interpreter_gather(Interpreter *interpreter, gconstpointer data, gsize bytes,
                            GPtrArray *all, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Ends the whole job, all ranks, with @status. */
void interpreter_abort(Interpreter *interpreter, int status) G_GNUC_NORETURN;
