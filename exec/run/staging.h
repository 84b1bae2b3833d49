/* Host memory that tensors of a device pass through where a communicator takes host memory only:
 * what an op reads is copied there before it, what it writes is copied back. */
#pragma once

#include "exec/run/transfer.h"

typedef struct Staging Staging;

/* As much as the program's largest communication op needs, from @comm, so that ranks of a node see
 * each other's.  On the communication thread; collective. */
Staging *staging_new(Device *device, Comm *comm, const Program *program,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
void staging_free(Staging *staging);

/* On the communication thread, which waits for both copies: @host becomes @launch with operands in
 * host memory that hold what the op reads; and back. */
gboolean staging_in(Staging *staging, const Transfer *transfer, const Launch *launch, Launch *host,
                    GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean staging_out(Staging *staging, const Transfer *transfer, const Launch *launch,
                     const Launch *host, GError **error) G_GNUC_WARN_UNUSED_RESULT;
