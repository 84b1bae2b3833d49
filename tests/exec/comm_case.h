/* One collective on one group: fills buffers, runs it, and compares every element and the bytes
 * counted with a naive reference. */
#pragma once

#include "exec/comm/comm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Where buffers lie. */
typedef enum {
    MEMORY_ALLOC,   /* from alloc(), in all members */
    MEMORY_PRIVATE, /* not, in all members */
    MEMORY_MIXED,   /* not, at position 0 only */
    NUM_CASE_MEMORIES
} CaseMemory;

typedef struct {
    char *full, *shard;
} CaseBuffers;

typedef struct {
    CommGroup *group;
    const guint *ranks; /* of the group */
    CaseBuffers buffers;
    gboolean in_place;
    DType dtype;
    const ShardPiece *pieces;
    guint num_pieces;
    guint seed;
} Case;

static const double case_untouched = 4096; /* what lies where nothing should be written */

/* To the nearest value of @dtype, ties to even: independent of the code under test. */
static inline double case_round(DType dtype, double value)
{
    int exponent = 0;

    if (dtype == DTYPE_FP64)
        return value;
    if (dtype == DTYPE_FP32)
        return (float)value;
    double mantissa = frexp((float)value, &exponent);
    return ldexp(nearbyint(ldexp(mantissa, 8)), exponent - 8);
}

/* What rank @rank contributes as element @i: in (-2, 2), with all the bits that the dtype has, so
 * that the order of a sum shows. */
static inline double case_value(const Case *c, guint rank, guint64 i)
{
    guint64 x = (c->seed * 0x9E3779B97F4A7C15ULL) ^ ((rank + 1) * 0xD1B54A32D192ED03ULL) ^
                ((i + 1) * 0x8CB92BA72F3D8DD7ULL);

    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9ULL;
    x ^= x >> 32;
    double value = ldexp((double)(x >> 11), -52 - (int)(x % 8));
    return case_round(c->dtype, x % 16 < 8 ? value : -value);
}

static inline void case_store(DType dtype, char *buffer, guint64 i, double value)
{
    float narrow = (float)value;
    guint32 bits;

    memcpy(&bits, &narrow, sizeof bits);
    guint16 high = (guint16)(bits >> 16);
    if (dtype == DTYPE_FP64)
        memcpy(buffer + i * sizeof value, &value, sizeof value);
    else if (dtype == DTYPE_FP32)
        memcpy(buffer + i * sizeof narrow, &narrow, sizeof narrow);
    else
        memcpy(buffer + i * sizeof high, &high, sizeof high);
}

static inline double case_load(DType dtype, const char *buffer, guint64 i)
{
    double wide;
    float narrow;
    guint16 high;

    if (dtype == DTYPE_FP64) {
        memcpy(&wide, buffer + i * sizeof wide, sizeof wide);
        return wide;
    }
    if (dtype == DTYPE_FP32) {
        memcpy(&narrow, buffer + i * sizeof narrow, sizeof narrow);
        return narrow;
    }
    memcpy(&high, buffer + i * sizeof high, sizeof high);
    guint32 bits = (guint32)high << 16;
    memcpy(&narrow, &bits, sizeof narrow);
    return narrow;
}

/* The sum of all members' values of element @i, which lies in chunk @chunk: in the order of
 * positions, rounded once; of a ring, from chunk + 1 on, rounded at each hop. */
static inline double case_sum(const Case *c, guint chunk, guint64 i)
{
    guint size = c->group->size, first = c->group->shared ? 0 : chunk + 1;
    double sum = 0;

    for (guint step = 0; step < size; step++) {
        double value = case_value(c, c->ranks[(first + step) % size], i);

        sum = step == 0 ? value : sum + value;
        if (c->dtype != DTYPE_FP64)
            sum = (float)sum;
        if (!c->group->shared)
            sum = case_round(c->dtype, sum);
    }
    return case_round(c->dtype, sum);
}

static inline guint case_world_rank(const Case *c)
{
    return c->ranks[c->group->rank];
}

/* Elements of the whole that are filled and compared: a few more than the pieces. */
static inline guint64 case_extent(const Case *c)
{
    guint64 end = 0;

    for (guint i = 0; i < c->num_pieces; i++)
        end = MAX(end, c->pieces[i].full_offset + c->group->size * c->pieces[i].chunk);
    return end + 8;
}

static inline void case_fill_values(const Case *c, guint64 elements)
{
    for (guint64 i = 0; i < elements; i++)
        case_store(c->dtype, c->buffers.full, i, case_value(c, case_world_rank(c), i));
}

static inline gboolean case_same(const Case *c, const char *what, const char *buffer, guint64 i,
                                 double want)
{
    double got = case_load(c->dtype, buffer, i);

    if (got == want)
        return TRUE;
    fprintf(stderr,
            "%s, %s, group of %u (%s), position %u, %s: element %" G_GUINT64_FORMAT
            " is %.9g instead of %.9g\n",
            what, dtype_name(c->dtype), c->group->size, c->group->shared ? "shared" : "ring",
            c->group->rank, c->in_place ? "in place" : "with a shard", i, got, want);
    return FALSE;
}

static inline gboolean case_counted(const Case *c, const char *what, guint64 got, guint64 want)
{
    if (got != want)
        fprintf(stderr,
                "%s, %s, group of %u: counted %" G_GUINT64_FORMAT " bytes instead of "
                "%" G_GUINT64_FORMAT "\n",
                what, dtype_name(c->dtype), c->group->size, got, want);
    return got == want;
}

static inline gboolean case_done(gboolean ok, const char *what, GError *error)
{
    if (!ok)
        fprintf(stderr, "%s: %s\n", what, error ? error->message : "no error was set");
    g_clear_error(&error);
    return ok;
}

/* (n - 1) chunks of every piece. */
static inline guint64 case_piece_bytes(const Case *c)
{
    guint64 elements = 0;

    for (guint i = 0; i < c->num_pieces; i++)
        elements += c->pieces[i].chunk;
    return (c->group->size - 1) * elements * dtype_bytes(c->dtype);
}

/* ---- all-gather ---- */

static inline void gather_prepare(const Case *c)
{
    guint rank = case_world_rank(c);

    for (guint64 i = 0; i < case_extent(c); i++)
        case_store(c->dtype, c->buffers.full, i, case_untouched);
    for (guint p = 0; p < c->num_pieces; p++) {
        const ShardPiece *piece = &c->pieces[p];

        for (guint64 i = 0; i < piece->chunk; i++) {
            guint64 at = piece->full_offset + c->group->rank * piece->chunk + i;

            case_store(c->dtype, c->in_place ? c->buffers.full : c->buffers.shard,
                       c->in_place ? at : piece->shard_offset + i, case_value(c, rank, at));
        }
    }
}

static inline gboolean gather_correct(const Case *c)
{
    g_autofree double *want = g_new(double, case_extent(c));
    gboolean ok = TRUE;

    for (guint64 i = 0; i < case_extent(c); i++)
        want[i] = case_untouched;
    for (guint p = 0; p < c->num_pieces; p++)
        for (guint64 i = 0; i < c->group->size * c->pieces[p].chunk; i++) {
            guint64 at = c->pieces[p].full_offset + i;

            want[at] = case_value(c, c->ranks[i / c->pieces[p].chunk], at);
        }
    for (guint64 i = 0; ok && i < case_extent(c); i++)
        ok = case_same(c, "all_gather", c->buffers.full, i, want[i]);
    return ok;
}

static inline gboolean case_all_gather(const Case *c)
{
    Comm *comm = c->group->comm;
    guint64 before = comm->bytes_in[VOLUME_ALL_GATHER];
    GError *error = NULL;

    gather_prepare(c);
    gboolean ok =
        comm->ops->all_gather(c->group, c->in_place ? NULL : c->buffers.shard, c->buffers.full,
                              c->pieces, c->num_pieces, c->dtype, &error);
    return case_done(ok, "all_gather", error) && gather_correct(c) &&
           case_counted(c, "all_gather", comm->bytes_in[VOLUME_ALL_GATHER] - before,
                        case_piece_bytes(c));
}

/* ---- reduce-scatter ---- */

static inline gboolean reduce_correct(const Case *c)
{
    const char *result = c->in_place ? c->buffers.full : c->buffers.shard;
    gboolean ok = TRUE;

    for (guint p = 0; ok && p < c->num_pieces; p++)
        for (guint64 i = 0; ok && i < c->group->size * c->pieces[p].chunk; i++) {
            const ShardPiece *piece = &c->pieces[p];
            guint chunk = (guint)(i / piece->chunk);
            guint64 at = piece->full_offset + i, in_shard = piece->shard_offset + i % piece->chunk;
            gboolean own = chunk == c->group->rank;

            if (own)
                ok = case_same(c, "reduce_scatter", result, c->in_place ? at : in_shard,
                               case_sum(c, chunk, at));
            if (!own || !c->in_place)
                ok &= case_same(c, "reduce_scatter input", c->buffers.full, at,
                                case_value(c, case_world_rank(c), at));
        }
    return ok;
}

static inline gboolean case_reduce_scatter(const Case *c)
{
    Comm *comm = c->group->comm;
    guint64 before = comm->bytes_in[VOLUME_REDUCE_SCATTER];
    GError *error = NULL;

    case_fill_values(c, case_extent(c));
    gboolean ok =
        comm->ops->reduce_scatter(c->group, c->buffers.full, c->in_place ? NULL : c->buffers.shard,
                                  c->pieces, c->num_pieces, c->dtype, &error);
    return case_done(ok, "reduce_scatter", error) && reduce_correct(c) &&
           case_counted(c, "reduce_scatter", comm->bytes_in[VOLUME_REDUCE_SCATTER] - before,
                        case_piece_bytes(c));
}

/* ---- all-reduce ---- */

static inline gboolean all_reduce_correct(const Case *c, const CommRun *runs, guint num_runs)
{
    guint size = c->group->size;
    gsize at = 0;
    gboolean ok = TRUE;

    for (guint r = 0; ok && r < num_runs; r++) {
        gsize chunk = (runs[r].elements + size - 1) / size;

        for (; ok && at < runs[r].offset; at++)
            ok = case_same(c, "all_reduce, between runs", c->buffers.full, at,
                           case_value(c, case_world_rank(c), at));
        for (; ok && at < runs[r].offset + runs[r].elements; at++)
            ok = case_same(c, "all_reduce", c->buffers.full, at,
                           case_sum(c, (guint)((at - runs[r].offset) / chunk), at));
    }
    return ok;
}

/* @runs in ascending order. */
static inline gboolean case_all_reduce(const Case *c, const CommRun *runs, guint num_runs)
{
    Comm *comm = c->group->comm;
    guint64 before = comm->bytes_in[VOLUME_ALL_REDUCE], elements = 0;
    guint size = c->group->size;
    GError *error = NULL;

    case_fill_values(c, runs[num_runs - 1].offset + runs[num_runs - 1].elements);
    gboolean ok = comm->ops->all_reduce(c->group, c->buffers.full, runs, num_runs, c->dtype,
                                        REDUCE_SUM, &error);
    for (guint r = 0; r < num_runs; r++)
        elements += 2 * (size - 1) * ((runs[r].elements + size - 1) / size);
    return case_done(ok, "all_reduce", error) && all_reduce_correct(c, runs, num_runs) &&
           case_counted(c, "all_reduce", comm->bytes_in[VOLUME_ALL_REDUCE] - before,
                        elements * dtype_bytes(c->dtype));
}
