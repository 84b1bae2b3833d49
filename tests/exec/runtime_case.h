/* Runtimes on CPUs, one thread a rank, for tests. */
#pragma once

#include "exec/run/runtime.h"

/* Of all ranks; as if so many of them shared a node, 0: as they do. */
static inline Runtime *case_runtime(const char *transport, guint ranks_per_node)
{
    const RuntimeOptions options = {.transport = transport,
                                    .ranks_per_node = ranks_per_node,
                                    .threads = 1,
                                    .device = DEVICE_CPU};
    g_autoptr(GError) error = NULL;
    Runtime *runtime = runtime_open(&options, &error);

    g_assert_no_error(error);
    return runtime;
}

/* Of this process alone. */
static inline Runtime *case_runtime_alone(void)
{
    return case_runtime("self", 0);
}
