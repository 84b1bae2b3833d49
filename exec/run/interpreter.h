/* Executes a program on a device and a communicator: the second interpreter of DESIGN 2. */
#pragma once

#include "exec/run/runtime.h"
#include "exec/run/step_graph.h"
#include "sim/program/program.h"

typedef struct Interpreter Interpreter;

/* One timed op of a sampled step. */
typedef struct {
    double start_s, end_s; /* since the step began; both 0: skipped */
} OpTime;

/* Auto: a library where there is one that can, on all ranks. */
typedef enum { ATTENTION_BY_OWN, ATTENTION_BY_CUDNN, ATTENTION_BY_AUTO } AttentionMode;

typedef struct {
    gboolean check;          /* what checker.h says; a problem ends a step with ERROR_RUNTIME */
    guint64 seed;            /* of the delays */
    gboolean no_overlap;     /* each communication is waited for at once */
    GraphMode graph;         /* of steps, on a device with queues */
    const char *nvme_folder; /* of files, where the program has an nvme tier; borrowed until made */
    AttentionMode attention;
} InterpreterOptions;

/* Makes all groups and the arenas, and poisons those in memory.  Collective over all ranks, in the
 * same order on each.  @set and @runtime are borrowed; the device's arena lives as long as the
 * runtime. ERROR_INPUT when the job has another number of ranks than the set. */
Interpreter *interpreter_new(Runtime *runtime, const ProgramSet *set,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
Interpreter *interpreter_new_with(Runtime *runtime, const ProgramSet *set,
                                  const InterpreterOptions *options,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;
void interpreter_free(Interpreter *interpreter);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Interpreter, interpreter_free)

Runtime *interpreter_runtime(const Interpreter *interpreter);
/* This rank's position among the ranks of that purpose, and their number; 0 of 1 when it is in no
 * such group. */
guint interpreter_position(const Interpreter *interpreter, const char *purpose, guint *size);
guint interpreter_map_rank(const Interpreter *interpreter); /* among the ranks that share a unit */
const Program *interpreter_program(const Interpreter *interpreter);
const ProgramSet *interpreter_set(const Interpreter *interpreter);

/* A tensor copy in its tier's arena: the device's memory, the host's, or an address that stands for
 * a place in a file (interpreter_read() can read it). */
void *interpreter_tensor(Interpreter *interpreter, guint tensor, guint copy);

/* Bytes of a tensor copy, from and to the host, between steps.  An error of the device is that of
 * the next step or drain. */
typedef struct {
    guint64 offset, bytes;
} TensorRange;

void interpreter_write(Interpreter *interpreter, guint tensor, guint copy, TensorRange range,
                       const void *from);
void interpreter_read(Interpreter *interpreter, guint tensor, guint copy, TensorRange range,
                      void *to);

/* Optimisers round by chance from here on.  @numbers: of every unit of the program
 * LAUNCH_MOST_PARAMS, by parameter; taken. */
void interpreter_round_by_chance(Interpreter *interpreter, RoundingNumbers *numbers);

/* The tensor of that name (NO_TENSOR when there is none). */
gint interpreter_find(const Interpreter *interpreter, const char *name);

/* Runs one step; returns when all compute is done (a gather of updated parameters may still run).
 * Allocates nothing.  @sample: time every op.  ERROR_RUNTIME with the op at which it failed. */
gboolean interpreter_step(Interpreter *interpreter, gboolean sample,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Waits for everything that the last step left running and runs the epilogue; the next step then
 * starts with the prologue.  Before a save, an evaluation, the end. */
gboolean interpreter_drain(Interpreter *interpreter, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Whether steps run as graphs, as a run's record says it; what it says changes once in auto mode.
 * NULL on a device that has none. */
const char *interpreter_graphs(const Interpreter *interpreter);

/* Where the nvme tier's files are and how they are used; NULL without one. */
const char *interpreter_storage(const Interpreter *interpreter);

/* What runs attention, as a run's record says it; NULL on a device that has no choice. */
const char *interpreter_attention(const Interpreter *interpreter);

/* Times of the last sampled step, one per op in the order of calls; NULL before there was one. */
const OpTime *interpreter_times(const Interpreter *interpreter);

/* Bytes of a tier's arena, or of one tensor with all its copies, that no longer hold poison: what
 * was really touched since interpreter_new().  Of a file: what the file system counts. */
guint64 interpreter_touched_arena(Interpreter *interpreter, Tier tier);
guint64 interpreter_touched_tensor(Interpreter *interpreter, guint tensor);
