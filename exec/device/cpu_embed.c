/* Embedding lookup.  tokens (N), W (V, C), x (N, C); sizes.in = V, sizes.out = C; with a
 * range (tensor parallelism) W has that part of the words. */
#include "exec/device/cpu_block.h"
#include "exec/device/cpu_kernels.h"
#include "exec/device/cpu_loop.h"

/* The row of W that holds a token; FALSE when another rank has it. */
static gboolean find_row(const Launch *launch, gint32 token, guint64 *row)
{
    const gboolean has_range = launch->op->num_operands == 4;
    const double *range = has_range ? launch->operand[3] : NULL;
    const guint64 first = has_range ? (guint64)range[RANGE_FIRST] : 0;
    const guint64 count = has_range ? (guint64)range[RANGE_COUNT] : launch->op->sizes.in;

    g_assert(token >= 0 && (has_range || (guint64)token < count));
    *row = (guint64)token - first;
    return (guint64)token >= first && *row < count;
}

static void embed_row(gconstpointer context, guint64 n)
{
    const Launch *launch = context;
    const guint64 bytes = launch->op->sizes.out * dtype_bytes(launch->op->dtype);
    char *x = (char *)launch->operand[2] + n * bytes;
    guint64 row;

    if (find_row(launch, ((const gint32 *)launch->operand[0])[n], &row))
        memcpy(x, (const char *)launch->operand[1] + row * bytes, bytes);
    else
        memset(x, 0, bytes);
}

static void embed_row_on_top(gconstpointer context, guint64 n)
{
    const Launch *launch = context;
    const guint64 columns = launch->op->sizes.out;
    const DType dtype = launch->op->dtype;
    float block[CPU_BLOCK];
    guint64 row;

    if (!find_row(launch, ((const gint32 *)launch->operand[0])[n], &row))
        return;
    for (guint64 c = 0; c < columns; c += CPU_BLOCK) {
        const guint64 width = MIN(CPU_BLOCK, columns - c);
        const float *w = block_read(dtype, launch->operand[1], row * columns + c, width, block);

        block_put(dtype, launch->operand[2], n * columns + c, width, w, TRUE);
    }
}

void cpu_embed(guint threads, const Launch *launch)
{
    cpu_loop(threads, launch->op->sizes.rows, launch_adds(launch, 2) ? embed_row_on_top : embed_row,
             launch);
}

/* ---- backward: dW[token] (+)= sum of dx over the rows with that token ---- */

/* Rows that share a token; sums of longer lists are rounded once a list. */
enum { LIST = 1024 };

static void add_rows(const Launch *launch, guint64 token, const guint32 *rows, guint num_rows)
{
    const guint64 columns = launch->op->sizes.out;
    float sum[CPU_BLOCK], block[CPU_BLOCK];

    for (guint64 c = 0; c < columns; c += CPU_BLOCK) {
        const guint64 n = MIN(CPU_BLOCK, columns - c);

        memset(sum, 0, n * sizeof *sum);
        for (guint r = 0; r < num_rows; r++) {
            const float *dx =
                block_read(launch->op->dtype, launch->operand[1], rows[r] * columns + c, n, block);
#pragma omp simd
            for (guint64 i = 0; i < n; i++)
                sum[i] += dx[i];
        }
        block_put(launch->op->dtype_out, launch->operand[2], token * columns + c, n, sum, TRUE);
    }
}

/* The first row from @n on with @token, or @end; blocks of rows without it are passed at once. */
static guint64 find(const gint32 *tokens, guint64 n, guint64 end, gint32 token)
{
    const guint64 block = 64;

    for (; n + block <= end; n += block) {
        gint32 found = 0;
#pragma omp simd reduction(| : found)
        for (guint64 i = 0; i < block; i++)
            found |= tokens[n + i] == token;
        if (found)
            break;
    }
    while (n < end && tokens[n] != token)
        n++;
    return n;
}

/* All rows with the token of row @first, which is the first of them. */
static void add_token(const Launch *launch, guint64 first)
{
    const gint32 *tokens = launch->operand[0], token = tokens[first];
    const guint64 end = launch->op->sizes.rows;
    guint32 rows[LIST];
    guint num_rows = 0;
    guint64 id;

    if (!find_row(launch, token, &id))
        return;
    for (guint64 n = first; n < end; n = find(tokens, n + 1, end, token)) {
        if (num_rows == LIST) {
            add_rows(launch, id, rows, num_rows);
            num_rows = 0;
        }
        rows[num_rows++] = (guint32)n;
    }
    add_rows(launch, id, rows, num_rows);
}

static void add_first_of_token(gconstpointer context, guint64 n)
{
    const Launch *launch = context;
    const gint32 *tokens = launch->operand[0];

    if (find(tokens, 0, n, tokens[n]) == n)
        add_token(launch, n);
}

/* Rows of equal tokens are found by looking, since there is no scratch: N^2 / 2 comparisons at
 * most, which the products of the same N tokens dwarf.  A row of dW belongs to one thread and is
 * summed in fp32 in the order of tokens: the bits do not depend on the number of threads. */
void cpu_embed_backward(guint threads, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;

    g_assert(s->rows <= G_MAXUINT32);
    if (!launch_adds(launch, 2))
        memset(launch->operand[2], 0, s->in * s->out * dtype_bytes(launch->op->dtype_out));
    cpu_loop_uneven(threads, s->rows, add_first_of_token, launch);
}
