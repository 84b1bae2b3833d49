#include "sim/program/moments.h"

#include "sim/program/lifetimes.h"
#include "sim/program/place.h"

#include <string.h>

struct Moments {
    guint num_tensors, words; /* of a row of bits, one a tensor */
    guint64 *conflicts;       /* by tensor: a row */
    guint num;
    guint *started; /* by moment: the tensor of which a lifetime starts */
    guint64 *alive; /* by moment: a row of those that may be there with it */
};

void moments_free(Moments *moments)
{
    if (moments == NULL)
        return;
    g_free(moments->conflicts);
    g_free(moments->started);
    g_free(moments->alive);
    g_free(moments);
}

/* ---- listing ---- */

typedef struct {
    const Lifetimes *lives;
    guint32 *last;    /* by tensor and stream that touches it: the newest access so far */
    guint64 *unsure;  /* by stream: tensors that an op of it must not take to be over, as bits */
    guint64 *row;     /* of the moment: the tensor that starts, then what may be there with it */
    GHashTable *seen; /* GBytes: rows */
    GArray *rows;     /* guint64: moments that differ */
} Lister;

/* What is over for one op of a stream is over for the later ones, until it lives again. */
static void note_start(Lister *lister, const Lifetime *started)
{
    const Lifetimes *lives = lister->lives;
    const guint t = started->tensor;

    for (guint s = 0; s < lives->touching[t].num; s++)
        lister->last[t * MAX_STREAMS + s] =
            MAX(lister->last[t * MAX_STREAMS + s], lifetimes_lasts(lives, started)[s]);
    for (guint s = 0; s < lives->program->streams->len; s++)
        lister->unsure[s * lives->words + t / 64] |= G_GUINT64_CONSTANT(1) << t % 64;
}

static void fill_row(Lister *lister, const Lifetime *started)
{
    const Lifetimes *lives = lister->lives;
    const guint64 instance = started->start - 1;
    guint64 *unsure = &lister->unsure[lives->happens->stream[instance] * lives->words];

    lister->row[0] = started->tensor;
    for (guint w = 0; w < lives->words; w++) {
        for (guint64 left = unsure[w]; left != 0; left &= left - 1) {
            const guint t = w * 64 + (guint)__builtin_ctzll(left);

            if (!lives->always[t] &&
                lifetimes_are_over(lives, t, &lister->last[t * MAX_STREAMS], instance))
                unsure[w] &= ~(left & -left);
        }
        lister->row[1 + w] = unsure[w] & lives->conflicts[started->tensor * lives->words + w];
    }
}

/* What the prologue or the epilogue touches is always there. */
static void note_always(Lister *lister)
{
    const Lifetimes *lives = lister->lives;

    for (guint t = 0; t < lives->num_tensors; t++)
        for (guint s = 0; lives->always[t] && s < lives->program->streams->len; s++)
            lister->unsure[s * lives->words + t / 64] |= G_GUINT64_CONSTANT(1) << t % 64;
}

/* As find_peak() of place.c: every start of a lifetime of the second repetition. */
static void list_moments(Lister *lister)
{
    const Lifetimes *lives = lister->lives;
    const guint numbers = lives->words + 1;

    note_always(lister);
    for (guint i = 0; i < lives->list->len; i++) {
        const Lifetime *started = &g_array_index(lives->list, Lifetime, i);

        note_start(lister, started);
        if (started->start <= lives->happens->ops_per_step)
            continue;
        fill_row(lister, started);
        if (g_hash_table_add(lister->seen, g_bytes_new(lister->row, numbers * sizeof(guint64))))
            g_array_append_vals(lister->rows, lister->row, numbers);
    }
}

static Moments *moments_of(Lifetimes *lives, const GArray *rows)
{
    Moments *moments = g_new(Moments, 1);
    const guint words = lives->words, num = rows->len / (words + 1);

    *moments = (Moments){.num_tensors = lives->num_tensors,
                         .words = words,
                         .conflicts = g_steal_pointer(&lives->conflicts),
                         .num = num,
                         .started = g_new(guint, num),
                         .alive = g_new(guint64, (gsize)num * words)};
    for (guint m = 0; m < num; m++) {
        const guint64 *row = &g_array_index(rows, guint64, m * (words + 1));

        moments->started[m] = (guint)row[0];
        memcpy(&moments->alive[m * words], &row[1], words * sizeof *row);
    }
    return moments;
}

Moments *moments_new(const Program *program)
{
    g_autoptr(GHashTable) seen =
        g_hash_table_new_full(g_bytes_hash, g_bytes_equal, (GDestroyNotify)g_bytes_unref, NULL);
    g_autoptr(GArray) rows = g_array_new(FALSE, FALSE, sizeof(guint64));
    Lifetimes lives;

    lifetimes_init(&lives, program, TRUE);
    g_autofree guint32 *last = g_new0(guint32, lives.num_tensors * MAX_STREAMS);
    g_autofree guint64 *unsure = g_new0(guint64, program->streams->len * lives.words);
    g_autofree guint64 *row = g_new(guint64, lives.words + 1);
    Lister lister = {&lives, last, unsure, row, seen, rows};

    list_moments(&lister);
    Moments *moments = moments_of(&lives, rows);
    lifetimes_clear(&lives);
    return moments;
}

/* ---- sums ---- */

/* What may be there at a moment is more than that. */
static gboolean may_exceed(const Moments *moments, guint moment, const guint64 *bytes,
                           guint64 least)
{
    const guint64 *alive = &moments->alive[moment * moments->words];
    guint64 sum = bytes[moments->started[moment]];

    for (guint w = 0; w < moments->words; w++)
        for (guint64 left = alive[w]; left != 0; left &= left - 1)
            sum += bytes[w * 64 + (guint)__builtin_ctzll(left)];
    return sum > least;
}

/* As sum_members() of place.c.  @left: room for a row. */
static guint64 sum_together(const Moments *moments, guint moment, const GArray *order,
                            const guint64 *bytes, guint64 *left)
{
    const guint words = moments->words;
    guint64 sum = bytes[moments->started[moment]];

    memcpy(left, &moments->alive[moment * words], words * sizeof *left);
    for (guint i = 0; i < order->len; i++) {
        const guint t = g_array_index(order, guint, i);

        if ((left[t / 64] >> t % 64 & 1) == 0)
            continue;
        sum += bytes[t];
        for (guint w = 0; w < words; w++)
            left[w] &= moments->conflicts[t * words + w];
    }
    return sum;
}

guint64 moments_peak_bytes(const Moments *moments, const Program *program)
{
    g_autoptr(GArray) order = program_shared_by_extent(program);
    g_autofree guint64 *bytes = g_new(guint64, program->tensors->len);
    g_autofree guint64 *left = g_new(guint64, moments->words);
    guint64 peak = 0;

    g_assert(moments->num_tensors == program->tensors->len);
    for (guint t = 0; t < program->tensors->len; t++)
        bytes[t] = tensor_bytes(program, program_tensor(program, t));
    for (guint m = 0; m < moments->num; m++)
        if (may_exceed(moments, m, bytes, peak))
            peak = MAX(peak, sum_together(moments, m, order, bytes, left));
    return peak;
}
