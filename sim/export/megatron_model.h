/* A model in Megatron-LM's arguments; not for others than sim/export. */
#pragma once

#include "sim/export/exporter.h"

/* What of a model Megatron-LM has arguments for, beyond what fsdp-run trains. */
#define MEGATRON_FEATURES                                                                          \
    (FEATURE_QK_NORM | FEATURE_ROPE_PAIRS | FEATURE_ROPE_SCALED | FEATURE_LATENT |                 \
     FEATURE_EXPERTS | FEATURE_SHARED_SCALE)

gboolean megatron_write_model(Export *export, GError **error);
