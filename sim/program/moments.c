#include "sim/program/moments.h"

#include <string.h>

struct Moments {
    guint num_tensors, words; /* of a row of bits, one a tensor */
    guint64 *conflicts;       /* by tensor: a row */
    guint num;
    guint *started;   /* by moment: the tensor of which a lifetime starts */
    StepPhase *phase; /* by moment, as the rest */
    guint *segment;   /* of the call under way, the first of several alike */
    guint64 *alive;   /* a row of those that may be there with what starts */
};

void moments_free(Moments *moments)
{
    if (moments == NULL)
        return;
    g_free(moments->conflicts);
    g_free(moments->started);
    g_free(moments->phase);
    g_free(moments->segment);
    g_free(moments->alive);
    g_free(moments);
}

/* ---- listing ---- */

typedef struct {
    const Lifetimes *lives;
    guint32 *last;     /* by tensor and stream that touches it: the newest access so far */
    guint64 *unsure;   /* by stream: tensors that an op of it must not take to be over, as bits */
    guint64 *row;      /* of the moment: the tensor that starts, phase, what may be there with it */
    GHashTable *seen;  /* GBytes: rows */
    GArray *rows;      /* guint64: moments that differ */
    GArray *segments;  /* guint: theirs */
    StepPhase *phases; /* by segment */
} Lister;

enum { ROW_TENSOR, ROW_PHASE, ROW_ALIVE }; /* from the last on: a bit a tensor */

static StepPhase segment_phase(const Segment *segment)
{
    for (guint i = 0; i < segment->num_ops; i++)
        if (op_class(segment->ops[i].kind) == OP_CLASS_OPTIMIZER)
            return PHASE_OPTIMIZER;
    return PHASE_PASSES;
}

static guint segment_at(const Lifetimes *lives, guint64 instance)
{
    const Program *program = lives->program;
    const guint64 within = instance % lives->happens->ops_per_step;
    guint from = 0, until = program->step.calls->len - 1;

    while (from < until) {
        const guint middle = (from + until) / 2;

        if (within < lives->happens->first_op[middle + 1])
            until = middle;
        else
            from = middle + 1;
    }
    return g_array_index(program->step.calls, Call, from).segment;
}

/* What is over for one op of a stream is over for the later ones, until it lives again. */
static void note_start(Lister *lister, const Lifetime *started)
{
    const Lifetimes *lives = lister->lives;
    const guint t = started->tensor;
    const guint32 *lasts = lifetimes_lasts(lives, started);
    guint32 *last = &lister->last[t * MAX_STREAMS];

    for (guint s = 0; s < lives->touching[t].num; s++)
        last[s] = MAX(last[s], lasts[s]);
    for (guint s = 0; s < lives->program->streams->len; s++)
        lister->unsure[s * lives->words + t / 64] |= G_GUINT64_CONSTANT(1) << t % 64;
}

static void fill_row(Lister *lister, const Lifetime *started, guint segment)
{
    const Lifetimes *lives = lister->lives;
    const guint64 instance = started->start - 1;
    guint64 *unsure = &lister->unsure[lives->happens->stream[instance] * lives->words];

    lister->row[ROW_TENSOR] = started->tensor;
    lister->row[ROW_PHASE] = lister->phases[segment];
    for (guint w = 0; w < lives->words; w++) {
        for (guint64 left = unsure[w]; left != 0; left &= left - 1) {
            const guint t = w * 64 + (guint)__builtin_ctzll(left);

            if (!lives->always[t] &&
                lifetimes_are_over(lives, t, &lister->last[t * MAX_STREAMS], instance))
                unsure[w] &= ~(left & -left);
        }
        lister->row[ROW_ALIVE + w] =
            unsure[w] & lives->conflicts[started->tensor * lives->words + w];
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

/* Every start of a lifetime of the second repetition: between them nothing is added.  A tensor is
 * alive while any of its lifetimes that have started is not over; places on a stream are in order,
 * so their newest access there stands for all of them. */
static void list_moments(Lister *lister)
{
    const Lifetimes *lives = lister->lives;
    const guint numbers = ROW_ALIVE + lives->words;

    note_always(lister);
    for (guint i = 0; i < lives->list->len; i++) {
        const Lifetime *started = &g_array_index(lives->list, Lifetime, i);

        note_start(lister, started);
        if (started->start <= lives->happens->ops_per_step)
            continue;
        const guint segment = segment_at(lives, started->start - 1);
        fill_row(lister, started, segment);
        if (!g_hash_table_add(lister->seen, g_bytes_new(lister->row, numbers * sizeof(guint64))))
            continue;
        g_array_append_vals(lister->rows, lister->row, numbers);
        g_array_append_val(lister->segments, segment);
    }
}

static Moments *moments_of_rows(Lifetimes *lives, const GArray *rows, const GArray *segments)
{
    Moments *moments = g_new(Moments, 1);
    const guint words = lives->words, num = segments->len;

    *moments = (Moments){.num_tensors = lives->num_tensors,
                         .words = words,
                         .conflicts = g_steal_pointer(&lives->conflicts),
                         .num = num,
                         .started = g_new(guint, num),
                         .phase = g_new(StepPhase, num),
                         .segment = g_memdup2(segments->data, num * sizeof(guint)),
                         .alive = g_new(guint64, (gsize)num * words)};
    for (guint m = 0; m < num; m++) {
        const guint64 *row = &g_array_index(rows, guint64, m * (ROW_ALIVE + words));

        moments->started[m] = (guint)row[ROW_TENSOR];
        moments->phase[m] = (StepPhase)row[ROW_PHASE];
        memcpy(&moments->alive[m * words], &row[ROW_ALIVE], words * sizeof *row);
    }
    return moments;
}

Moments *moments_of(Lifetimes *lives)
{
    const Program *program = lives->program;
    g_autoptr(GHashTable) seen =
        g_hash_table_new_full(g_bytes_hash, g_bytes_equal, (GDestroyNotify)g_bytes_unref, NULL);
    g_autoptr(GArray) rows = g_array_new(FALSE, FALSE, sizeof(guint64));
    g_autoptr(GArray) segments = g_array_new(FALSE, FALSE, sizeof(guint));
    g_autofree guint32 *last = g_new0(guint32, lives->num_tensors * MAX_STREAMS);
    g_autofree guint64 *unsure = g_new0(guint64, program->streams->len * lives->words);
    g_autofree guint64 *row = g_new(guint64, ROW_ALIVE + lives->words);
    g_autofree StepPhase *phases = g_new(StepPhase, program->segments->len);
    Lister lister = {lives, last, unsure, row, seen, rows, segments, phases};

    for (guint i = 0; i < program->segments->len; i++)
        phases[i] = segment_phase(program_segment(program, i));
    list_moments(&lister);
    return moments_of_rows(lives, rows, segments);
}

Moments *moments_new(const Program *program)
{
    Lifetimes lives;

    lifetimes_init(&lives, program, TRUE);
    Moments *moments = moments_of(&lives);
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

typedef struct {
    const Moments *moments;
    const GArray *order;     /* of tensors, the largest first */
    const guint64 *bytes;    /* by tensor */
    guint64 *left, *members; /* rows: that may still be among them; that are */
} Sum;

/* Of the tensors that are not over, the one that starts and then, the largest first, those that
 * conflict with all before them: two that follow each other on a stream may both lie beside this
 * moment, but only one at a time.  So no arena is smaller than their sum. */
static guint64 sum_together(const Sum *sum, guint moment)
{
    const Moments *moments = sum->moments;
    const guint words = moments->words, started = moments->started[moment];
    guint64 bytes = sum->bytes[started];

    memcpy(sum->left, &moments->alive[moment * words], words * sizeof *sum->left);
    memset(sum->members, 0, words * sizeof *sum->members);
    sum->members[started / 64] |= G_GUINT64_CONSTANT(1) << started % 64;
    for (guint i = 0; i < sum->order->len; i++) {
        const guint t = g_array_index(sum->order, guint, i);
        const guint64 bit = G_GUINT64_CONSTANT(1) << t % 64;

        if ((sum->left[t / 64] & bit) == 0)
            continue;
        bytes += sum->bytes[t];
        sum->members[t / 64] |= bit;
        for (guint w = 0; w < words; w++)
            sum->left[w] &= moments->conflicts[t * words + w];
    }
    return bytes;
}

MomentsPeak moments_peak(const Moments *moments, const Program *program, gint phase)
{
    g_autoptr(GArray) order = program_shared_by_extent(program);
    g_autofree guint64 *bytes = g_new(guint64, program->tensors->len);
    g_autofree guint64 *left = g_new(guint64, moments->words);
    MomentsPeak peak = {.members = g_new0(guint64, moments->words)};
    guint64 *members = g_new(guint64, moments->words);

    g_assert(moments->num_tensors == program->tensors->len);
    for (guint t = 0; t < program->tensors->len; t++)
        bytes[t] = tensor_bytes(program, program_tensor(program, t));
    for (guint m = 0; m < moments->num; m++) {
        const Sum sum = {moments, order, bytes, left, members};

        if ((phase != ANY_PHASE && (gint)moments->phase[m] != phase) ||
            !may_exceed(moments, m, bytes, peak.bytes))
            continue;
        const guint64 together = sum_together(&sum, m);
        if (together <= peak.bytes)
            continue;
        peak.bytes = together;
        peak.segment = moments->segment[m];
        guint64 *swapped = peak.members;
        peak.members = members;
        members = swapped;
    }
    g_free(members);
    return peak;
}
