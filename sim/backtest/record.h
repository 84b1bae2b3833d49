/* One published run, as a row of the table says it (DESIGN 9). */
#pragma once

#include "sim/backtest/csv.h"

typedef enum { STATUS_OK, STATUS_OOM, STATUS_OOM_OR_CRASH, STATUS_FAILED } RunStatus;
typedef enum { TRUST_HIGH, TRUST_MEDIUM, TRUST_LOW } Trust;
typedef enum {
    KIND_NO_SHARD,
    KIND_SHARD_OPTIMIZER,
    KIND_SHARD_GRAD_OP,
    KIND_FULL_SHARD,
    KIND_HYBRID_SHARD,
    KIND_SHARD_OPTIMIZER_HYBRID,
} StrategyKind;
typedef enum {
    PRECISION_BF16,
    PRECISION_FP16,
    PRECISION_FP8,
    PRECISION_FP4,
    PRECISION_FP32
} PrecisionKind;
typedef enum { MEMORY_ALLOCATED, MEMORY_RESERVED, MEMORY_DRIVER, MEMORY_STATED } MemoryKind;

enum { UNKNOWN = -1 };

/* Text is borrowed from the table, "" where unknown; numbers are 0 and kinds UNKNOWN then. locator:
 * where the source has it, recompute_text: which parts are recomputed; tables may leave both out.
 */
typedef struct {
    const char *id, *model, *gpu, *network, *framework, *software, *strategy_text, *precision_text,
        *flags, *group, *locator, *recompute_text;
    double params_b, active_params_b, gpu_mem_gb;
    double tokens_per_s_per_gpu, tflops_per_gpu, mfu_pct, step_time_s, peak_mem_gb;
    guint layers, hidden, heads, kv_heads, ffn, vocab, seq_len, gpus, gpus_per_node;
    guint dp, tp, pp, vpp, cp, ep, micro_batch, global_batch;
    gint sequence, status, trust, strategy, recompute, precision, memory;
} Record;

/* GArray of Record.  ERROR_INPUT with file, line, column, value and what is allowed. */
GArray *records_read(const Csv *csv, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The letters that an id begins with name its source: "AALPH" of "AALPH-0007".  The caller's. */
char *record_source(const Record *record);

/* Whether the default filter takes the row for step times, for memory and feasibility. */
gboolean record_is_timed(const Record *record);
gboolean record_is_trusted(const Record *record);

/* Seconds of a step as they were measured, 0 where the row does not say. */
double record_step_seconds(const Record *record);
