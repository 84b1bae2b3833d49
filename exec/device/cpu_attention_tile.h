/* What both passes of attention share: rows of heads as fp32, and which keys a tile of queries
 * sees.
 *
 * Work is done by tiles of QUERIES queries and at most KEYS keys.  Positions in a tile of keys
 * never fall, so that a query sees the first few of them: nothing of a tile is computed behind the
 * last key that one of its queries sees, nor for the queries at its start that see none. */
#pragma once

#include "exec/device/cpu_kernels.h"

enum { QUERIES = CPU_ATTENTION_QUERIES, KEYS = CPU_ATTENTION_KEYS };

/* Rows of one head inside (N, heads * D): element (row, d) is at offset + row * stride + d. */
typedef struct {
    guint64 offset, stride;
} HeadRows;

/* @sequence counts sequences of all blocks. */
HeadRows attention_head_rows(const OpSizes *s, guint64 sequence, guint64 head, guint64 heads);

typedef struct {
    guint64 first, count;
} RowRange;

/* A matrix of fp32 rows. */
typedef struct {
    const float *data;
    guint64 stride;
} View;

/* Rows of an operand of op->dtype: where they lie if fp32, else widened into @buffer. */
View attention_view(const Launch *launch, guint operand, HeadRows of, RowRange range,
                    float *buffer);

/* Rows of an operand, copied as fp32. */
void attention_load(const Launch *launch, guint operand, DType dtype, HeadRows of, RowRange range,
                    float *to);

/* operand = rows, or += where the launch updates it, in op->dtype_out. */
void attention_store(const Launch *launch, guint operand, HeadRows of, RowRange range,
                     const float *rows);

/* Of scores. */
float attention_scale(const OpSizes *s);

/* This thread's equal share of the scratch operand. */
Scratch attention_scratch(guint threads, const Launch *launch, guint operand);

typedef struct {
    const gint32 *of_queries, *of_keys; /* positions; NULL: query i sees keys 0 .. i */
    guint64 blocks, seq;
} Mask;

/* @operand: where the positions are, if the op has them. */
Mask attention_mask(const Launch *launch, guint operand);

/* A tile of keys of one block.  Starts as {0}. */
typedef struct {
    guint64 block, first, count;
    guint64 hidden; /* queries at the start of their tile that see none of these keys */
    guint64 next;   /* key of the block where the search goes on */
    gboolean fresh; /* nothing needs to be there before sums over these keys: without positions, the
                       first tile, which all queries see */
} KeyTile;

/* The next keys that some of @queries see; FALSE when there are no more. */
gboolean attention_next_keys(const Mask *mask, RowRange queries, KeyTile *tile);

/* How many keys of the tile @query sees: its first ones. */
guint64 attention_seen(const Mask *mask, guint64 query, const KeyTile *tile);
