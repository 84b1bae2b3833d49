/* A cluster: GPUs, nodes, network levels, and what calibration measured there. */
#pragma once

#include "sim/base/dtype.h"

#include <glib.h>

typedef enum { DEVICE_CPU, DEVICE_CUDA } DeviceKind;
const char *device_kind_name(DeviceKind kind); /* "cpu", "cuda" */

/* Where memory is. */
typedef enum { TIER_DEVICE, TIER_HOST, TIER_CXL, TIER_NVME, NUM_TIERS } Tier;
#define TIER_NAMES "device, host, cxl or nvme"
const char *tier_name(Tier tier);
gboolean tier_from_name(const char *name, Tier *tier);

/* One accelerator, or (kind cpu) one core as a rank's device. */
typedef struct {
    char *name, *source;
    DeviceKind kind;
    double peak_flops[NUM_DTYPES]; /* dense; 0 = not stated */
    guint64 memory_bytes; /* what a rank may use; on a CPU, of the node, shared by its ranks */
    double memory_bytes_per_s;
} Gpu;

/* FLOP/s that are stated for @dtype; where none are, those of fp32, in which it is computed then.
 */
double gpu_peak_flops(const Gpu *gpu, DType dtype);

/* One level of the network, innermost first. */
typedef struct {
    char *name, *kind;
    guint span;                    /* GPUs that it joins; 0 = all */
    double bytes_per_s, latency_s; /* per GPU, one direction */
    double oversubscription;       /* 1 = none */
} NetworkLevel;

/* Memory beside the GPU's. */
typedef struct {
    char *name;
    guint64 capacity_bytes;        /* of all that share it */
    double bytes_per_s, latency_s; /* of one GPU, one direction; nvme: while all that share it copy,
                                      both directions in turn */
    guint span;                    /* GPUs that share it; 0 = those of a node */
} MemoryTier;

/* What `fsdp-run calibrate` or `fsdp-report --calibrate` wrote.  busy = ranks that computed at
 * once, threads = of each. */
typedef struct {
    DType dtype;
    guint busy, threads;
    guint64 m, n, k;
    double flops_per_s;
} MeasuredGemm; /* C(m,n) = A(m,k) B(k,n) */

/* Behind the name of attention: cuDNN ran it, and not the kernels of fsdp-run. */
#define MEASURED_BY_CUDNN "_cudnn"

typedef struct {
    char *op; /* op_attention_row(): "rmsnorm", "adamw", ..., "attention", "attention_cudnn" */
    DType dtype;
    guint busy, threads;
    guint64 size;  /* attention: sequence length; others: bytes moved in one call */
    guint64 width; /* attention: head_dim; others 0 */
    double per_s;  /* attention: FLOP/s; others: bytes/s */
} MeasuredOp;

typedef struct {
    char *collective; /* "all_gather", "reduce_scatter", "all_reduce", "exchange" */
    DType dtype;
    guint ranks;
    guint64 bytes; /* of the whole buffer */
    double seconds;
} MeasuredCollective;

typedef struct {
    GArray *gemm;         /* MeasuredGemm */
    GArray *ops;          /* MeasuredOp */
    GArray *collectives;  /* MeasuredCollective */
    double op_overhead_s; /* interpreter + launch, per op; 0 = not measured */
    /* What a rank's process holds beside its arena: one of several ranks, and one alone (which
     * needs no MPI); 0 = not measured. */
    guint64 framework_bytes, framework_alone_bytes;
    char *source; /* the runs whose op times are among the rows; NULL = none */
} Measured;

/* What a GPU costs with its share of the node; 0 or NULL = not stated. */
typedef struct {
    char *source;
    double price_per_gpu_hour;
    char *currency;
    double power_per_gpu_w;
} RunningCost;

/* How long parts work until they fail, and what that costs; 0 = not stated. */
typedef struct {
    char *source;
    double gpu_mtbf_s;             /* of one GPU, with all that fails along with it */
    double node_mtbf_s;            /* of one node, beside its GPUs */
    double checkpoint_bytes_per_s; /* that one GPU writes while all of a job do */
    double restart_s;              /* from a failure until training goes on */
} Reliability;

/* A documented key that nothing reads yet: checked, and kept for printing. */
typedef struct {
    char *group; /* "gpu" whatever the GPU's name */
    char *key, *value;
} TopologyExtra;

typedef struct {
    char *name, *source;
    guint nodes;
    guint gpus_per_node; /* on a CPU: cores; ranks may be more */
    Gpu gpu;
    guint64 cpu_memory_bytes;     /* of a node */
    double host_link_bytes_per_s; /* between a GPU and the host, one direction; 0 = not stated */
    GArray *networks;             /* NetworkLevel, innermost first, at least one */
    GArray *memories;             /* MemoryTier */
    RunningCost cost;
    Reliability reliability;
    Measured measured;
    GArray *extras; /* TopologyExtra */
} Topology;

/* What is said of several kinds of GPU in one cluster. */
#define TOPOLOGY_MIXED_GPUS                                                                        \
    "unsupported: mixed GPUs; allowed: one kind of GPU in a cluster (a topology of its own for "   \
    "each)"

/* Whether @gpu lists names: "a10, l40s", "4x a10 + l40s". */
gboolean topology_lists_gpus(const char *gpu);

/* Where GPUs have files of their own; the caller's. */
char *topology_gpus_dir(const char *topologies_dir);

/* @where: a file, or a name under @topologies_dir.  ERROR_INPUT with file, line or key, value and
 * what is allowed; unknown keys are errors that name the nearest known one. */
Topology *topology_load(const char *where, const char *topologies_dir,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
Topology *topology_parse(const char *text, const char *source, const char *topologies_dir,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Self-contained text (the GPU written out); parse -> print -> parse gives the same. */
char *topology_print(const Topology *topology);
void topology_free(Topology *topology);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Topology, topology_free)

/* Whether rows have one key: what was measured, apart from what it took. */
gboolean measured_same_gemm(const MeasuredGemm *a, const MeasuredGemm *b);
gboolean measured_same_op(const MeasuredOp *a, const MeasuredOp *b);

/* The row that has the key of @key; NULL when there is none. */
MeasuredGemm *measured_find_gemm(const Measured *measured, const MeasuredGemm *key);
MeasuredOp *measured_find_op(const Measured *measured, const MeasuredOp *key);

/* Puts a row in the place of the one that has its key, else behind all others.  Copies texts. */
void measured_put_gemm(Measured *measured, const MeasuredGemm *row);
void measured_put_op(Measured *measured, const MeasuredOp *row);
void measured_put_collective(Measured *measured, const MeasuredCollective *row);
/* Puts all rows of @from. */
void measured_merge(Measured *measured, const Measured *from);

/* How many GPUs its outermost network can join: G_MAXUINT where that has no end (span all), and on
 * a CPU, whose ranks are processes. */
guint topology_max_gpus(const Topology *topology);

/* What a GPU finds beside its own memory: [memory NAME], or for the host what [node] says.  FALSE
 * where that is not stated, and on a CPU, whose own memory is the host's. */
gboolean topology_memory(const Topology *topology, Tier tier, MemoryTier *memory);

/* The innermost level that joins @ranks consecutive GPUs. */
const NetworkLevel *topology_level(const Topology *topology, guint ranks);
