/* What the exporters of sim/export share; not for others. */
#pragma once

#include "sim/search/plan.h"

/* One file being written. */
typedef struct {
    const Plan *plan;
    const char *framework;
    GString *text;
    GPtrArray *notes; /* lines on what the file can't hold */
} Export;

/* One framework: one file, which ends with its table. */
typedef struct {
    const char *name;
    gboolean comments;  /* its format has them, from "#" on */
    gboolean any_model; /* its file has no sizes: a model is what the training script makes */
    guint32 features;   /* else, of models that it tells beyond what fsdp-run trains */
    const char *why_not_axis[NUM_AXES]; /* why an axis is 1 there; NULL: it may be larger */
    gboolean half, eighth;              /* fp16 and fp8 too, beside bf16 and fp32 */
    gboolean (*write)(Export *export, GError **error);
} Exporter;

extern const Exporter exporter_torchtitan, exporter_megatron, exporter_deepspeed,
    exporter_accelerate;

/* A value of a plan's field, by its name in plan files: how the framework writes it, or why it has
 * no way to. */
typedef struct {
    const char *value, *to, *why_not;
} Mapping;

/* Looks @value up in @table, which ends with a zero entry; a value that is not there is refused
 * too, so that a new one is never exported by accident. */
const char *export_map(const Export *export, const char *field, const char *value,
                       const Mapping *table, GError **error);

/* "FRAMEWORK can't express FIELD = VALUE: WHY". */
gboolean export_refuse(const Export *export, const char *field, const char *value, const char *why,
                       GError **error);
gboolean export_refuse_uint(const Export *export, const char *field, guint value, const char *why,
                            GError **error);

void export_note(Export *export, const char *format, ...) G_GNUC_PRINTF(2, 3);

/* Refuses a plan whose gradients are accumulated in another way than the framework's: reduced into
 * shards after every micro-batch (@sharded), or whole and reduced once a step.  One micro-batch is
 * both. */
gboolean export_check_accumulate(const Export *export, gboolean sharded, GError **error);

/* Refuses, with @why, a plan whose gradients are accumulated in another type than @gradient. */
gboolean export_check_gradients(const Export *export, DType gradient, const char *why,
                                GError **error);

/* "FRAMEWORK can't express offload = optimizer=host,parameters=device: WHY". */
gboolean export_refuse_offload(const Export *export, const char *why, GError **error);

/* For those that move parameters, gradients and the optimiser's state to the host together: whether
 * the plan does, in *all.  A part of them is refused. */
gboolean export_offload_all(Export *export, gboolean *all, GError **error);

/* What every framework does otherwise with state that lies elsewhere. */
void export_note_offload(Export *export);

/* Refuses, with @why, a plan that computes only the first layers of stages again. */
gboolean export_check_recompute(const Export *export, const char *why, GError **error);

/* The recipe is fsdp2, in whatever precision. */
gboolean export_is_fsdp2(const Plan *plan);

/* Blocks of every chunk of the pipeline; 0 when some have more than others. */
guint export_even_layers(const Plan *plan);

#define EXPORT_CLIP_NORM G_STRINGIFY(DEFAULT_CLIP_NORM)
