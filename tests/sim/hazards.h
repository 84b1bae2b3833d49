/* Data hazards of a program found the slow way: every pair of accesses, reachability by closure.
 * The independent voice beside the clocks of sim/program/happens.c. */
#pragma once

#include "sim/program/program.h"

/* One operand (or predicate) of one op of the step followed by itself. */
typedef struct {
    guint op; /* instance, in issue order */
    guint tensor, copy;
    guint64 begin, end; /* bytes of the arena */
    gboolean reads, writes;
} Touched;

typedef struct {
    guint num_ops;
    guint words;     /* of a row of @before */
    guint64 *before; /* by op: bit per op that is done when it starts */
    GArray *touched; /* Touched, in issue order */
} Hazards;

static inline gboolean hazards_before(const Hazards *h, guint a, guint b)
{
    return (h->before[(gsize)b * h->words + a / 64] >> (a % 64) & 1) != 0;
}

static inline void hazards_follow(Hazards *h, guint op, guint earlier)
{
    for (guint w = 0; w < h->words; w++)
        h->before[(gsize)op * h->words + w] |= h->before[(gsize)earlier * h->words + w];
    h->before[(gsize)op * h->words + earlier / 64] |= G_GUINT64_CONSTANT(1) << (earlier % 64);
}

static inline void hazards_touch(Hazards *h, const Program *program, const Call *call, guint op,
                                 const Operand *operand)
{
    const Tensor *tensor = program_tensor(program, operand->tensor);
    const Access access = operand_access(operand, call->first);
    const guint copy = operand_copy(program, call, operand);
    const guint64 begin =
        ((guint64)tensor->tier << 48) + tensor->offset + copy * tensor->stride; /* tiers apart */
    const Touched touched = {.op = op,
                             .tensor = operand->tensor,
                             .copy = copy,
                             .begin = begin,
                             .end = begin + tensor_copy_bytes(tensor),
                             .reads = access != ACCESS_WRITE,
                             .writes = access != ACCESS_READ};

    if (touched.begin != touched.end)
        g_array_append_val(h->touched, touched);
}

/* First op of each call, counted over one step; one past the end too. */
static inline guint *hazards_first_ops(const Program *program)
{
    guint *first = g_new0(guint, program->step.calls->len + 1);

    for (guint c = 0; c < program->step.calls->len; c++)
        first[c + 1] =
            first[c] +
            program_segment(program, g_array_index(program->step.calls, Call, c).segment)->num_ops;
    return first;
}

/* @newest: by stream, the newest op before this one, plus one. */
static inline void hazards_visit(Hazards *h, const Program *program, const guint *first, guint step,
                                 guint c, guint *newest)
{
    const Call *call = &g_array_index(program->step.calls, Call, c);
    const Segment *segment = program_segment(program, call->segment);
    const guint per_step = first[program->step.calls->len], start = step * per_step + first[c];

    for (guint i = 0; i < segment->num_ops; i++) {
        const Op *op = &segment->ops[i];
        const Operand predicate = {.tensor = (guint)op->predicate, .access = ACCESS_READ};

        if (newest[op->stream] != 0)
            hazards_follow(h, start + i, newest[op->stream] - 1);
        newest[op->stream] = start + i + 1;
        for (guint w = 0; w < op->num_waits; w++)
            hazards_follow(h, start + i, start + op->waits[w]);
        for (guint w = 0; w < call->num_waits; w++) {
            const Wait *wait = &g_array_index(program->step.waits, Wait, call->first_wait + w);
            const guint event =
                wait->op == LAST_OP ? first[wait->call + 1] - 1 : first[wait->call] + wait->op;

            if (wait->before == i && wait->back <= step)
                hazards_follow(h, start + i, (step - wait->back) * per_step + event);
        }
        if (op->predicate != NO_TENSOR)
            hazards_touch(h, program, call, start + i, &predicate);
        for (guint o = 0; o < op->num_operands; o++)
            hazards_touch(h, program, call, start + i, &op->operands[o]);
    }
}

static inline Hazards hazards_new(const Program *program)
{
    g_autofree guint *first = hazards_first_ops(program);
    const guint num_ops = 2 * first[program->step.calls->len];
    Hazards h = {.num_ops = num_ops, .words = (num_ops + 63) / 64};
    guint newest[MAX_STREAMS] = {0};

    h.before = g_new0(guint64, (gsize)num_ops * h.words);
    h.touched = g_array_new(FALSE, FALSE, sizeof(Touched));
    for (guint step = 0; step < 2; step++)
        for (guint c = 0; c < program->step.calls->len; c++)
            hazards_visit(&h, program, first, step, c, newest);
    return h;
}

static inline void hazards_clear(Hazards *h)
{
    g_free(h->before);
    g_array_unref(h->touched);
}

static inline const Touched *hazards_touched(const Hazards *h, guint i)
{
    return &g_array_index(h->touched, Touched, i);
}

static inline gboolean hazards_overlap(const Touched *a, const Touched *b)
{
    return a->begin < b->end && b->begin < a->end;
}

/* Pairs of accesses to the same bytes, one of them a write, that nothing orders. */
static inline guint hazards_races(const Program *program)
{
    Hazards h = hazards_new(program);
    guint races = 0;

    for (guint j = 0; j < h.touched->len; j++)
        for (guint i = 0; i < j; i++) {
            const Touched *a = hazards_touched(&h, i), *b = hazards_touched(&h, j);

            if ((a->writes || b->writes) && hazards_overlap(a, b) && a->op != b->op &&
                !hazards_before(&h, a->op, b->op))
                races++;
        }
    hazards_clear(&h);
    return races;
}

/* Reads of a step tensor whose bytes were last written as something else, or never. */
static inline guint hazards_wrong_reads(const Program *program)
{
    Hazards h = hazards_new(program);
    guint wrong = 0;

    for (guint j = 0; j < h.touched->len; j++) {
        const Touched *b = hazards_touched(&h, j);
        const Touched *writer = NULL;

        if (!b->reads)
            continue;
        for (guint i = j; i-- > 0 && writer == NULL;) {
            const Touched *a = hazards_touched(&h, i);

            if (a->writes && hazards_overlap(a, b))
                writer = a;
        }
        if (writer == NULL)
            wrong += program_tensor(program, b->tensor)->persistence != PERSIST_STATE;
        else
            wrong += writer->tensor != b->tensor || writer->copy != b->copy;
    }
    hazards_clear(&h);
    return wrong;
}
