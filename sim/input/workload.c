#include "sim/input/workload.h"

/* 2 (parameter) + 2 (gradient) + 4 (master) + moments: 16 bytes a parameter with adamw. */
const Recipe recipe_zero = {
    .name = "zero",
    .compute = DTYPE_BF16,
    .stored = DTYPE_BF16,
    .gradient = DTYPE_BF16,
    .master = TRUE,
};

/* The fp32 shard is the master; gathers are in bf16, reductions in fp32. */
const Recipe recipe_fsdp2 = {
    .name = "fsdp2",
    .compute = DTYPE_BF16,
    .stored = DTYPE_FP32,
    .gradient = DTYPE_FP32,
    .master = FALSE,
};

const Recipe recipe_fp32 = {
    .name = "fp32",
    .compute = DTYPE_FP32,
    .stored = DTYPE_FP32,
    .gradient = DTYPE_FP32,
    .master = FALSE,
};

static const Recipe *const recipes[] = {&recipe_zero, &recipe_fsdp2, &recipe_fp32};

static const struct {
    const char *name;
    guint moments;
} optimizers[NUM_OPTIMIZERS] = {
    [OPTIMIZER_ADAMW] = {.name = "adamw", .moments = 2},
    [OPTIMIZER_SGD] = {.name = "sgd", .moments = 0},
};

const char *optimizer_name(Optimizer optimizer)
{
    g_assert(optimizer < NUM_OPTIMIZERS);
    return optimizers[optimizer].name;
}

gboolean optimizer_from_name(const char *name, Optimizer *optimizer)
{
    for (guint i = 0; i < NUM_OPTIMIZERS; i++) {
        if (g_str_equal(name, optimizers[i].name)) {
            *optimizer = (Optimizer)i;
            return TRUE;
        }
    }
    return FALSE;
}

guint optimizer_moments(Optimizer optimizer)
{
    g_assert(optimizer < NUM_OPTIMIZERS);
    return optimizers[optimizer].moments;
}

const Recipe *recipe_from_name(const char *name)
{
    for (guint i = 0; i < G_N_ELEMENTS(recipes); i++) {
        if (g_str_equal(name, recipes[i]->name))
            return recipes[i];
    }
    return NULL;
}
