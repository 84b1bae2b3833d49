/* What a training runs with today, from its framework's configuration file. */
#pragma once

#include "sim/input/workload.h"
#include "sim/layout/context_parallel.h"
#include "sim/layout/layout.h"
#include "sim/layout/schedule.h"
#include "sim/layout/sharding.h"

/* 0 and -1: the file does not say. */
typedef struct {
    const char *framework; /* torchtitan, megatron, deepspeed, accelerate, axolotl */
    guint axis[NUM_AXES];  /* dp_shard 0: what the other axes leave of the GPUs */
    guint gpus, global_batch, micro_batch, micro_batches, seq_len, virtual_stages;
    guint ep;         /* experts are divided among so many ranks that shard */
    guint num_chunks; /* of the pipeline; 0: even, with virtual_stages of them a stage */
    guint16 chunk_layers[MAX_CHUNKS];
    guint recompute_layers; /* of each chunk, the first ones; 0: of all */
    gint strategy, recompute, schedule, context, sequence_parallel, optimizer;
    gint keep; /* units kept gathered between forward and backward: none, or the default's */
    gboolean gather_fp8;  /* weights travel in 8 bits */
    Offload offload;      /* on the device where it says nothing */
    const Recipe *recipe; /* NULL: not said */
    GPtrArray *notes;     /* char *: what it says that is priced otherwise, or not at all */
} Config;

/* The framework follows from the file: TOML is torchtitan's, JSON deepspeed's, YAML accelerate's,
 * axolotl's or (with Megatron's names) NeMo's or Primus's, anything else a script with Megatron's
 * options.  NULL and ERROR_INPUT, "file:line: path = value: must be ..." otherwise. */
Config *config_load(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same from text; @source is named in messages, and its ending tells the syntax. */
Config *config_parse(const char *text, const char *source,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
void config_free(Config *config);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Config, config_free)
