/* Measures ops on a device, with memory in the state in which a step leaves it. */
#pragma once

#include "exec/calibrate/calibrate_session.h"
#include "exec/device/device.h"

#include <glib.h>

typedef struct {
    Session *session; /* ranks that measure at the same time */
    Device *device;
    double budget_s;          /* for all tasks */
    double overhead_s;        /* of one op; set */
    double offset_s;          /* what is timed of an op with next to no work; set */
    DeviceEvent *begin, *end; /* of a device with queues; its own */
} OpBench;

/* Sets the seconds of all tasks: all ranks of the session run the same task in the same window. */
gboolean op_bench_run(OpBench *bench, GArray *tasks, GError **error) G_GNUC_WARN_UNUSED_RESULT;
