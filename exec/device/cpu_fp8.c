/* Matrices as e4m3 codes under one scale each (Micikevicius et al., arXiv 2209.05433): what ranks
 * gather instead of bf16.
 *
 *     s = 448 / a, code = e4m3(w s), w' = code a / 448, a = max(amax, AMAX_LEAST)
 *
 * amax is the same on all ranks, so codes depend on the matrix alone and not on who holds which
 * part of it.  s and a / 448 are found in fp64 and rounded to fp32 once.  An infinite matrix
 * becomes NaN, as does what is one: the loss shows it. */
#include "exec/device/cpu_fp8.h"
#include "exec/device/cpu_block.h"
#include "exec/device/cpu_kernels.h"
#include "exec/device/cpu_loop.h"

/* e4m3: sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinity, NaN is 0x7f.  Adding
 * 2^(k + 20) to a magnitude leaves it rounded, ties to even, to multiples of 2^(k - 3); below 2^-6
 * steps are those of 2^-6. */
guint8 cpu_e4m3_from_float(float value)
{
    const guint32 bits = float_bits(value), magnitude = bits & 0x7fffffff;
    const guint8 sign = (guint8)(bits >> 24 & 0x80);

    if (magnitude > 0x7f800000)
        return sign | 0x7f;
    if (magnitude >= 0x43e00000) /* 448 */
        return sign | 0x7e;
    const gint exponent = MAX((gint)(magnitude >> 23) - 127, -6);
    const float step = float_from_bits((guint32)(exponent + 20 + 127) << 23);
    const float rounded = (float_from_bits(magnitude) + step) - step;
    /* In steps of 2^-9 where it is small; else the exponent's bits and three of the mantissa's. */
    if (rounded < 0x1p-6f)
        return sign | (guint8)(rounded * 0x1p9f);
    return sign | (guint8)((float_bits(rounded) >> 20) - ((127 - 7) << 3));
}

float cpu_e4m3_to_float(guint8 code)
{
    const guint32 sign = (guint32)(code & 0x80) << 24, rest = code & 0x7f;

    if (rest == 0x7f)
        return float_from_bits(sign | 0x7fc00000);
    if (rest < 8)
        return float_from_bits(sign | float_bits((float)rest * 0x1p-9f));
    return float_from_bits(sign | ((rest << 20) + ((guint32)(127 - 7) << 23)));
}

/* ---- what a launch works on ---- */

static gboolean is_matrix(const Launch *launch, guint param)
{
    return launch->map->params[param].dims >= 2;
}

static float *amax_row(const Launch *launch)
{
    return (float *)launch->operand[1] + (gsize)launch->unit * NUM_PARAM_ROLES;
}

static double amax_of(const Launch *launch, guint param)
{
    return MAX((double)amax_row(launch)[launch->map->params[param].role], AMAX_LEAST);
}

/* A run of elements, in blocks, on all threads. */
typedef struct {
    const Launch *launch;
    guint64 from, to, elements; /* where it begins in what is read, in what is written */
    float scale;
} Run;

static guint64 block_elements(const Run *run, guint64 block)
{
    return MIN(CPU_BLOCK, run->elements - block * CPU_BLOCK);
}

/* ---- amax ---- */

/* Runs of a span that threads look through apart. */
enum { AMAX_RUNS = 64 };

typedef struct {
    const Launch *launch;
    const ShardSpan *span;
    guint32 *most; /* by run */
} AmaxRuns;

/* Magnitudes compare like the integers of their bits, NaN above all. */
static void amax_run(gconstpointer context, guint64 run)
{
    const AmaxRuns *to = context;
    const guint64 end = (run + 1) * to->span->elements / AMAX_RUNS;
    float buffer[CPU_BLOCK];
    guint32 most = 0;

    for (guint64 at = run * to->span->elements / AMAX_RUNS; at < end; at += CPU_BLOCK) {
        const guint64 n = MIN(CPU_BLOCK, end - at);
        const float *values = block_read(to->launch->op->dtype, to->launch->operand[0],
                                         to->span->shard_offset + at, n, buffer);

        for (guint64 i = 0; i < n; i++)
            most = MAX(most, float_bits(values[i]) & 0x7fffffff);
    }
    to->most[run] = most;
}

void cpu_amax(guint threads, const Launch *launch)
{
    const UnitMap *map = launch->map;
    float *row = amax_row(launch);

    if (!launch_adds(launch, 1))
        memset(launch->operand[1], 0, launch->op->sizes.chunk * NUM_PARAM_ROLES * sizeof *row);
    for (guint p = 0; p < map->num_params; p++) {
        const ShardSpan span = unit_map_span(map, p, launch->map_rank);
        guint32 most[AMAX_RUNS];

        if (!is_matrix(launch, p) || span.elements == 0)
            continue;
        cpu_loop(span.elements > AMAX_RUNS * CPU_BLOCK ? threads : 1, AMAX_RUNS, amax_run,
                 &(AmaxRuns){launch, &span, most});
        guint32 all = float_bits(row[map->params[p].role]);
        for (guint run = 0; run < AMAX_RUNS; run++)
            all = MAX(all, most[run]);
        row[map->params[p].role] = float_from_bits(all);
    }
}

/* ---- quantise ---- */

static void quantise_block(gconstpointer context, guint64 block)
{
    const Run *run = context;
    const guint64 at = run->from + block * CPU_BLOCK, n = block_elements(run, block);
    guint8 *codes = (guint8 *)run->launch->operand[2] + run->to + block * CPU_BLOCK;
    float buffer[CPU_BLOCK];
    const float *values =
        block_read(run->launch->op->dtype, run->launch->operand[0], at, n, buffer);

    for (guint64 i = 0; i < n; i++)
        codes[i] = cpu_e4m3_from_float(values[i] * run->scale);
}

static void cast_vector(const Launch *launch, const ShardSpan *span)
{
    float buffer[CPU_BLOCK];

    for (guint64 done = 0; done < span->elements; done += CPU_BLOCK) {
        const guint64 at = span->shard_offset + done, n = MIN(CPU_BLOCK, span->elements - done);

        block_write(launch->op->dtype_out, launch->operand[3], at, n,
                    block_read(launch->op->dtype, launch->operand[0], at, n, buffer));
    }
}

void cpu_quantise(guint threads, const Launch *launch)
{
    for (guint p = 0; p < launch->map->num_params; p++) {
        const ShardSpan span = unit_map_span(launch->map, p, launch->map_rank);

        if (is_matrix(launch, p)) {
            const Run run = {launch, span.shard_offset, span.shard_offset, span.elements,
                             (float)(E4M3_MOST / amax_of(launch, p))};

            cpu_loop(threads, cpu_num_blocks(span.elements), quantise_block, &run);
        } else if (launch_optional(launch, 3) != NULL) {
            cast_vector(launch, &span);
        }
    }
}

/* ---- dequantise ---- */

static void dequantise_block(gconstpointer context, guint64 block)
{
    const Run *run = context;
    const guint64 at = run->from + block * CPU_BLOCK, n = block_elements(run, block);
    const guint8 *codes = (const guint8 *)run->launch->operand[0] + at;
    float buffer[CPU_BLOCK];

    for (guint64 i = 0; i < n; i++)
        buffer[i] = cpu_e4m3_to_float(codes[i]) * run->scale;
    block_write(run->launch->op->dtype_out, run->launch->operand[2], at, n, buffer);
}

void cpu_dequantise(guint threads, const Launch *launch)
{
    for (guint p = 0; p < launch->map->num_params; p++) {
        const UnitParam *param = &launch->map->params[p];
        const Run run = {launch, param->full_offset, param->full_offset, param->rows * param->cols,
                         (float)(amax_of(launch, p) / E4M3_MOST)};

        if (is_matrix(launch, p))
            cpu_loop(threads, cpu_num_blocks(run.elements), dequantise_block, &run);
    }
}
