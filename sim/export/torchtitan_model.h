/* Which of torchtitan's models a plan's is; not for others than sim/export. */
#pragma once

#include "sim/export/exporter.h"

/* What of a model one of them has, beyond what fsdp-run trains. */
#define TORCHTITAN_FEATURES                                                                        \
    (FEATURE_QK_NORM | FEATURE_ROPE_PAIRS | FEATURE_ROPE_SCALED | FEATURE_LATENT | FEATURE_EXPERTS)

/* Refuses what none of them has, and axes that the model's has not. */
gboolean torchtitan_check_model(const Export *export, GError **error);

/* The table [model]: name, flavor and, in fp8, converters. */
gboolean torchtitan_write_model(Export *export, GError **error);
