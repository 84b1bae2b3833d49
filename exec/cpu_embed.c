/* Embedding lookup.  tokens (N), W (V, C), x (N, C); sizes.in = V, sizes.out = C. */
#include "exec/cpu_block.h"
#include "exec/cpu_kernels.h"

static guint64 token_at(const Launch *launch, guint64 n)
{
    const gint32 token = ((const gint32 *)launch->operand[0])[n];

    g_assert(token >= 0 && (guint64)token < launch->op->sizes.in);
    return (guint64)token;
}

void cpu_embed(guint threads, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;
    const guint64 bytes = s->out * dtype_bytes(launch->op->dtype);

#pragma omp parallel for num_threads(threads) if (threads > 1 && s->rows > threads)
    for (guint64 n = 0; n < s->rows; n++)
        memcpy((char *)launch->operand[2] + n * bytes,
               (const char *)launch->operand[1] + token_at(launch, n) * bytes, bytes);
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
    const guint64 id = token_at(launch, first), end = launch->op->sizes.rows;
    guint32 rows[LIST];
    guint num_rows = 0;

    for (guint64 n = first; n < end; n = find(tokens, n + 1, end, token)) {
        if (num_rows == LIST) {
            add_rows(launch, id, rows, num_rows);
            num_rows = 0;
        }
        rows[num_rows++] = (guint32)n;
    }
    add_rows(launch, id, rows, num_rows);
}

/* Rows of equal tokens are found by looking, since there is no scratch: N^2 / 2 comparisons at
 * most, which the products of the same N tokens dwarf.  A row of dW belongs to one thread and is
 * summed in fp32 in the order of tokens: the bits do not depend on the number of threads. */
void cpu_embed_backward(guint threads, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;
    const gint32 *tokens = launch->operand[0];

    g_assert(s->rows <= G_MAXUINT32);
    if (!launch_adds(launch, 2))
        memset(launch->operand[2], 0, s->in * s->out * dtype_bytes(launch->op->dtype_out));
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic, 16)
    for (guint64 n = 0; n < s->rows; n++)
        if (find(tokens, 0, n, tokens[n]) == n)
            add_token(launch, n);
}
