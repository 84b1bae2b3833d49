/* The arenas of a rank, one a tier that its program has tensors in: the device's memory; the
 * host's, pinned where the device has queues; and a file, whose addresses only stand for places in
 * it. */
#pragma once

#include "exec/run/storage.h"

typedef struct {
    Device *device;
    guint8 *base[NUM_TIERS]; /* NULL: nothing is there */
    guint64 bytes[NUM_TIERS];
    Storage *storage; /* of TIER_NVME, or NULL */
    gboolean pinned;  /* TIER_HOST */
} Tiers;

/* Makes all arenas but the device's, which is the device's or the communicator's to give.
 * @nvme_folder: where the file is to be, or NULL.  tiers_close() follows on failure, too. */
gboolean tiers_open(Tiers *tiers, const char *nvme_folder,
                    GError **error) G_GNUC_WARN_UNUSED_RESULT;
void tiers_close(Tiers *tiers);

/* The host's own copies: done when they return, and while no op uses that tier. */
void tiers_write(Tiers *tiers, Tier tier, void *to, const void *from, guint64 bytes);
void tiers_read(Tiers *tiers, Tier tier, void *to, const void *from, guint64 bytes);
/* A file is not filled: it begins with zeros. */
void tiers_fill(Tiers *tiers, Tier tier, void *to, guint32 word, guint64 bytes);
