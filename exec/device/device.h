/* A device runs the compute ops of a program.  Backends are const tables; device_cpu.c is one. */
#pragma once

#include "sim/program/program.h"

#include <glib.h>

typedef struct Device Device;

/* One op of one call, resolved: pointers instead of tensors. */
typedef struct {
    const Op *op;
    void *operand[MAX_OPERANDS]; /* of a parameter: its first element inside the whole unit */
    UnitPart part[MAX_OPERANDS]; /* unit ops: whether an operand is laid out as shard or as whole */
    const UnitMap *map;          /* of op->unit, or NULL */
    guint map_rank;              /* this rank's position among map->ranks */
    gboolean first;              /* what ACCESS_ACCUMULATE means: TRUE = write */
} Launch;

/* All slots are required.  run() only enqueues on an asynchronous device; the first error is kept
 * until sync().  Kernels never allocate. */
typedef struct {
    const char *name; /* as in plans: "cpu" */
    DeviceKind kind;
    Device *(*open)(guint threads, GError **error);
    const char *(*library)(const Device *device);
    void (*run)(Device *device, const Launch *launch);
    gboolean (*sync)(Device *device, GError **error);
    void (*free)(Device *device);
} DeviceOps;

/* First member of every backend's own struct. */
struct Device {
    const DeviceOps *ops;
    guint threads; /* that one kernel may use */
};

extern const DeviceOps device_cpu;

/* @kind cpu: kernels on @threads OpenMP threads and a BLAS.  ERROR_RUNTIME when the device or its
 * self-check (a small product against plain loops) fails. */
Device *device_open(DeviceKind kind, guint threads, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void device_run(Device *device, const Launch *launch);
gboolean device_sync(Device *device, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void device_free(Device *device);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Device, device_free)

/* Name and version of what multiplies matrices, for the run's record ("OpenBLAS 0.3.21 Zen"). */
const char *device_library(const Device *device);
