/* A device runs the compute ops of a program.  Backends are const tables; device_cpu.c is one. */
#pragma once

#include "sim/program/program.h"

#include <glib.h>

typedef struct Device Device;

typedef struct {
    guint threads;    /* that one kernel may use: of a CPU */
    guint local_rank; /* among the ranks of this machine: which accelerator */
} DeviceOptions;

typedef struct DeviceEvent DeviceEvent;
typedef struct DeviceGraph DeviceGraph;

enum { LAUNCH_MOST_PARAMS = 64 }; /* of a unit, in one op */

/* Which random bits round element e of this rank's part of a parameter: those of number
 * first + e; where it has some of the columns of a whole, first + e / columns * stride + e %
 * columns. */
typedef struct {
    guint64 first, columns, stride; /* columns 0: e follows e - 1 in the whole */
} RoundingNumbers;

/* One op of one call, resolved: pointers instead of tensors. */
typedef struct {
    const Op *op;
    void *operand[MAX_OPERANDS]; /* of a parameter: its first element inside the whole unit */
    UnitPart part[MAX_OPERANDS]; /* unit ops: whether an operand is laid out as shard or as whole */
    const UnitMap *map;          /* of op->unit, or NULL */
    guint map_rank;              /* this rank's position among map->ranks */
    gboolean first;              /* what ACCESS_ACCUMULATE means: TRUE = write */
    guint stream;                /* of the device's queues */
    guint unit;                  /* the call's: its row of amax */
    /* OP_ADAMW, OP_SGD: by parameter; a bf16 parameter becomes its master rounded up or down by
     * chance, so that the mean is the master (exec/base/random.h).  NULL: to nearest. */
    const RoundingNumbers *rounding;
    const double *predicate; /* read on the device: the op does nothing while it is 0; or NULL,
                                and on a device without queues, where the caller looks */
} Launch;

/* What it says of itself, at its highest clocks; 0: it doesn't. */
typedef struct {
    char name[256];
    guint64 memory_bytes;
    double memory_bytes_per_s, fp32_flops;
} DeviceFacts;

/* What a device has that runs ops later, on streams, in memory of its own.  Streams are numbered as
 * the program's.  Nothing waits but sync() and what says so; a stream is used by one thread at a
 * time, streams by several.  The first error is kept and is every later sync()'s. */
typedef struct {
    gboolean (*open_streams)(Device *device, guint count, GError **error); /* 0 .. count - 1 */
    void *(*alloc)(Device *device, gsize bytes, GError **error);
    void (*release)(Device *device, void *memory);
    gboolean (*pin)(Device *device, void *host, gsize bytes, GError **error); /* until unpin() */
    void (*unpin)(Device *device, void *host);
    gboolean (*sync)(Device *device, guint stream, GError **error); /* its stream is done */
    gboolean (*busy)(Device *device, guint stream); /* it isn't, and nothing has failed */
    /* One or both sides are the device's; host memory is pinned. */
    void (*copy)(Device *device, guint stream, void *to, const void *from, gsize bytes);
    DeviceEvent *(*event_new)(Device *device, gboolean timed, GError **error);
    void (*event_free)(Device *device, DeviceEvent *event);
    void (*record)(Device *device, guint stream, DeviceEvent *event);
    void (*wait)(Device *device, guint stream, DeviceEvent *event); /* of the last record() */
    gboolean (*happened)(Device *device, DeviceEvent *event);       /* the last record() did */
    double (*seconds)(Device *device, DeviceEvent *from, DeviceEvent *to); /* both have happened */
    /* What is issued on COMPUTE_STREAM, and on streams once they wait for an event of its, is kept
     * instead of run, whichever thread issues it.  At the end COMPUTE_STREAM must have waited for
     * all of it.  A graph that is kept runs on COMPUTE_STREAM, any number of times. */
    gboolean (*capture_begin)(Device *device, GError **error);
    DeviceGraph *(*capture_end)(Device *device, GError **error);
    void (*graph_run)(Device *device, DeviceGraph *graph);
    void (*graph_free)(Device *device, DeviceGraph *graph); /* it no longer runs */
    guint64 (*used_bytes)(Device *device);                  /* of its memory, by whomever */
    void (*describe)(Device *device, DeviceFacts *facts);
    /* Lets a library run attention, which is no other than @ops (const Op *), as long as nothing
     * else is asked for, and returns its name and version; or NULL, the device's own kernels run
     * it, and ERROR_RUNTIME says why.  @ops NULL: own kernels, no error.  @scratch_bytes: of their
     * scratch operand.  Nothing is under way. */
    const char *(*library_attention)(Device *device, const GPtrArray *ops, guint64 scratch_bytes,
                                     GError **error);
} DeviceQueueOps;

/* Slots are required.  Kernels never allocate. */
typedef struct {
    const char *name; /* as in plans: "cpu" */
    DeviceKind kind;
    Device *(*open)(const DeviceOptions *options, GError **error);
    const char *(*library)(const Device *device);
    void (*run)(Device *device, const Launch *launch);
    gboolean (*sync)(Device *device, GError **error); /* what runs on COMPUTE_STREAM is done */
    void (*free)(Device *device);
    const DeviceQueueOps *queues; /* NULL: run() returns when the op is done, on host memory */
} DeviceOps;

/* First member of every backend's own struct. */
struct Device {
    const DeviceOps *ops;
    guint threads;      /* that one kernel may use */
    guint8 *bounce;     /* pinned host memory for device_read() and device_write(); NULL without */
    gsize bounce_bytes; /* queues */
};

extern const DeviceOps device_cpu;

/* @kind cpu: kernels on @threads OpenMP threads and a BLAS.  ERROR_RUNTIME when the device or its
 * self-check (a small product against plain loops) fails. */
Device *device_open(DeviceKind kind, guint threads, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Of a plug-in's table. */
Device *device_open_with(const DeviceOps *ops, const DeviceOptions *options,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
void device_run(Device *device, const Launch *launch);
gboolean device_sync(Device *device, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void device_free(Device *device);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Device, device_free)

/* NULL: ops are done when device_run() returns, and operands are host memory. */
static inline const DeviceQueueOps *device_queues(const Device *device)
{
    return device->ops->queues;
}

/* The host's copies, behind all that was issued on COMPUTE_STREAM, and done when they return.  An
 * error is a later device_sync()'s. */
void device_write(Device *device, void *to, const void *from, gsize bytes);
void device_read(Device *device, void *to, const void *from, gsize bytes);
void device_fill(Device *device, void *to, guint32 word, gsize bytes); /* again and again */
void device_fill_host(void *to, guint32 word, gsize bytes);            /* the same of host memory */

/* Name and version of what multiplies matrices, for the run's record ("OpenBLAS 0.3.21 Zen"). */
const char *device_library(const Device *device);

/* Slot library_attention for all that @program has, with its scratch.  The device has queues. */
const char *device_library_attention(Device *device, const Program *program, GError **error);

/* The first of the optional operands, which come last: NULL when op has @required ones only. */
static inline void *launch_optional(const Launch *launch, guint required)
{
    return launch->op->num_operands > required ? launch->operand[required] : NULL;
}

/* Where @span of one of the unit's parameters begins in operand @i. */
static inline guint64 launch_offset(const Launch *launch, guint i, const ShardSpan *span)
{
    g_assert(launch->part[i] != PART_NONE);
    return launch->part[i] == PART_SHARD ? span->shard_offset : span->full_offset;
}

/* Whether this call adds to what operand @i holds. */
static inline gboolean launch_adds(const Launch *launch, guint i)
{
    return operand_access(&launch->op->operands[i], launch->first) == ACCESS_UPDATE;
}
