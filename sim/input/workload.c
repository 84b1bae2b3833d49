#include "sim/input/workload.h"

#include <math.h>

/* A row a precision: @products of the blocks, activations and gathered parameters in @half;
 * @gradients are accumulated and @sums are reduced. */

/* 2 (parameter) + 2 (gradient) + 4 (master) + moments: 16 bytes a parameter with adamw. */
#define ZERO(products, half, gradients, sums)                                                      \
    {                                                                                              \
        .name = "zero", .precision = (products), .compute = (half), .stored = (half),              \
        .gradient = (gradients), .reduce = (sums), .master = TRUE                                  \
    }

/* The fp32 shard is the master; gathers are in @half. */
#define FSDP2(products, half, gradients, sums)                                                     \
    {                                                                                              \
        .name = "fsdp2", .precision = (products), .compute = (half), .stored = DTYPE_FP32,         \
        .gradient = (gradients), .reduce = (sums), .master = FALSE                                 \
    }

/* As zero with gradients that are summed and reduced in fp32: with shard_optimizer and adamw
 * 6 + 12 / d bytes a parameter (Megatron-LM, docs/api-guide/dist_optimizer.md). */
#define MEGATRON(products, half, gradients, sums)                                                  \
    {                                                                                              \
        .name = "megatron", .precision = (products), .compute = (half), .stored = (half),          \
        .gradient = (gradients), .reduce = (sums), .master = TRUE                                  \
    }

const Recipe recipe_zero = ZERO(DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16);
const Recipe recipe_fsdp2 = FSDP2(DTYPE_BF16, DTYPE_BF16, DTYPE_FP32, DTYPE_FP32);
const Recipe recipe_megatron = MEGATRON(DTYPE_BF16, DTYPE_BF16, DTYPE_FP32, DTYPE_FP32);
const Recipe recipe_fp32 = {
    .name = "fp32",
    .precision = DTYPE_FP32,
    .compute = DTYPE_FP32,
    .stored = DTYPE_FP32,
    .gradient = DTYPE_FP32,
    .reduce = DTYPE_FP32,
    .master = FALSE,
};

static const Recipe fp16_recipes[] = {
    ZERO(DTYPE_FP16, DTYPE_FP16, DTYPE_FP16, DTYPE_FP16),
    FSDP2(DTYPE_FP16, DTYPE_FP16, DTYPE_FP32, DTYPE_FP32),
    MEGATRON(DTYPE_FP16, DTYPE_FP16, DTYPE_FP32, DTYPE_FP32),
};
static const Recipe fp8_recipes[] = {
    ZERO(DTYPE_FP8, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16),
    FSDP2(DTYPE_FP8, DTYPE_BF16, DTYPE_FP32, DTYPE_FP32),
    MEGATRON(DTYPE_FP8, DTYPE_BF16, DTYPE_FP32, DTYPE_FP32),
};

/* The default precision of a name stands first. */
static const Recipe *const recipes[] = {
    &recipe_zero,     &recipe_fsdp2,    &recipe_megatron, &recipe_fp32,    &fp16_recipes[0],
    &fp16_recipes[1], &fp16_recipes[2], &fp8_recipes[0],  &fp8_recipes[1], &fp8_recipes[2],
};

/* Every choice of accumulators and reductions; the recipes' own are found among those above. */
#define CHOICES(row, products, half)                                                               \
    row(products, half, half, half), row(products, half, half, DTYPE_FP32),                        \
        row(products, half, DTYPE_FP32, half), row(products, half, DTYPE_FP32, DTYPE_FP32)
#define ALL_CHOICES(products, half)                                                                \
    CHOICES(ZERO, products, half), CHOICES(FSDP2, products, half), CHOICES(MEGATRON, products, half)

static const Recipe chosen_recipes[] = {
    ALL_CHOICES(DTYPE_BF16, DTYPE_BF16),
    ALL_CHOICES(DTYPE_FP16, DTYPE_FP16),
    ALL_CHOICES(DTYPE_FP8, DTYPE_BF16),
};

/* adam8bit: dynamic 8-bit codes with the largest magnitude of each 256 elements in fp32 beside
 * them, as bitsandbytes keeps both moments (bitsandbytes/optim/optimizer.py, blocksize; Dettmers et
 * al., arXiv 2110.02861, had 2048).  Left out: its 8 KiB of code tables, and that it keeps tensors
 * of less than 4096 elements in fp32. */
static const struct {
    const char *name;
    guint moments, block;
} optimizers[NUM_OPTIMIZERS] = {
    [OPTIMIZER_ADAMW] = {.name = "adamw", .moments = 2},
    [OPTIMIZER_SGD] = {.name = "sgd", .moments = 0},
    [OPTIMIZER_ADAM8BIT] = {.name = "adam8bit", .moments = 2, .block = 256},
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

guint optimizer_moment_block(Optimizer optimizer)
{
    g_assert(optimizer < NUM_OPTIMIZERS);
    return optimizers[optimizer].block;
}

guint64 moment_bytes(guint64 elements, guint block)
{
    if (block == 0)
        return elements * dtype_bytes(DTYPE_FP32);
    return elements + (elements + block - 1) / block * dtype_bytes(DTYPE_FP32);
}

double optimizer_bytes_per_parameter(Optimizer optimizer)
{
    const guint block = MAX(optimizer_moment_block(optimizer), 1);

    return optimizer_moments(optimizer) *
           (double)moment_bytes(block, optimizer_moment_block(optimizer)) / block;
}

const Recipe *recipe_from_name(const char *name)
{
    for (guint i = 0; i < G_N_ELEMENTS(recipes); i++) {
        if (g_str_equal(name, recipes[i]->name))
            return recipes[i];
    }
    return NULL;
}

const Recipe *recipe_with_precision(const Recipe *recipe, DType precision)
{
    for (guint i = 0; i < G_N_ELEMENTS(recipes); i++) {
        if (g_str_equal(recipe->name, recipes[i]->name) && recipes[i]->precision == precision)
            return recipes[i];
    }
    return NULL;
}

static gboolean is_choice(const Recipe *row, const Recipe *recipe, DType gradient, DType reduce)
{
    return g_str_equal(row->name, recipe->name) && row->precision == recipe->precision &&
           row->gradient == gradient && row->reduce == reduce;
}

const Recipe *recipe_with_gradients(const Recipe *recipe, DType gradient, DType reduce)
{
    for (guint i = 0; i < G_N_ELEMENTS(recipes); i++) {
        if (is_choice(recipes[i], recipe, gradient, reduce))
            return recipes[i];
    }
    for (guint i = 0; i < G_N_ELEMENTS(chosen_recipes); i++) {
        if (is_choice(&chosen_recipes[i], recipe, gradient, reduce))
            return &chosen_recipes[i];
    }
    return NULL;
}

char *recipe_text(const Recipe *recipe)
{
    const Recipe *own = recipe_with_precision(recipe, recipe->precision);

    if (recipe->gradient == own->gradient && recipe->reduce == own->reduce)
        return g_strdup(recipe->name);
    return g_strdup_printf("%s (gradients %s, reductions %s)", recipe->name,
                           dtype_name(recipe->gradient), dtype_name(recipe->reduce));
}

const char *recipe_gradient_names(const Recipe *recipe)
{
    switch (recipe->compute) {
    case DTYPE_BF16:
        return "bf16 or fp32";
    case DTYPE_FP16:
        return "fp16 or fp32";
    default:
        return "fp32";
    }
}

gboolean precision_from_name(const char *name, DType *precision)
{
    DType dtype;

    if (!dtype_from_name(name, &dtype))
        return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(recipes); i++) {
        if (recipes[i]->precision == dtype) {
            *precision = dtype;
            return TRUE;
        }
    }
    return FALSE;
}

double workload_most_imbalance(guint experts, guint top_k)
{
    return experts == 0 ? 1 : (double)experts / top_k;
}

/* What rounding adds to a product that is whole is no row. */
guint64 workload_busiest_rows(const Workload *workload, guint64 rows, guint ep)
{
    const double factor = MIN(MAX(workload->expert_imbalance, 1), ep);

    return (guint64)ceil((double)rows * factor * (1 - 1e-12));
}

double recipe_bytes_per_parameter(const Recipe *recipe, Optimizer optimizer)
{
    return dtype_bytes(recipe->stored) + dtype_bytes(recipe->gradient) + (recipe->master ? 4 : 0) +
           optimizer_bytes_per_parameter(optimizer);
}
