/* Links of GPUs, which neither `nvidia-smi topo -m` nor NCCL's XML gives in bytes. */
#pragma once

#include <glib.h>

typedef struct {
    const char *prefix;        /* of names under topologies/gpus */
    guint sm;                  /* compute capability, 90 = 9.0 */
    guint nvlinks;             /* of one GPU; 0 = none */
    double nvlink_bytes_per_s; /* of one link, one direction */
    double pcie_bytes_per_s;   /* of the slot, one direction */
    gboolean always_joined;    /* on a board with NVLink: without it the listing is not whole */
} ImportRates;

/* Of the GPU @name; NULL when it is not known. */
const ImportRates *import_rates(const char *name);

/* "a10, a100-pcie, ..." */
char *import_rates_known(void);

/* The name under topologies/gpus of NVIDIA's PCI device @id ("0x20b0"), or NULL. */
const char *import_gpu_of_device(const char *id);
