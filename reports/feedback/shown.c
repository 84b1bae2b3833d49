/* A step's time is a sum, so ops count with their mean, over calls, ranks and the steps of the
 * middle half by length, which a disturbed step is not among.  A collective's time is from when its
 * last member came, that is the least of its members' times: the others waited.  A message between
 * stages has one pair for itself and waits for what a stage computes: the least of all.  So is the
 * fixed cost of an op, which a step pays hundreds of times.
 */
#include "reports/feedback/shown.h"

#include "reports/feedback/slot.h"
#include "sim/base/error.h"
#include "sim/cost/learn.h"

#include <math.h>
#include <string.h>

/* One op of a step of one class, in the order of calls. */
typedef struct {
    const Op *op;
    const char *stream;
    char *label;
    guint slot;       /* of its segment's op, among those of the class */
    guint nth;        /* of a communication: on its stream */
    gboolean waits;   /* for another op, before it runs */
    gboolean between; /* a message between classes */
} Place;

typedef struct {
    const Program *program;
    Place *places;
    Slot *slots;           /* by segment's op */
    const Place **of_slot; /* one that it has; NULL: none */
    guint num, num_slots;
} Class;

/* One rank's times in the step under way; start is NAN where there is none. */
typedef struct {
    double start, end;
} Span;

typedef struct {
    const ProgramSet *set;
    Class *classes;
    Span **spans;    /* by rank; NULL: it has no rows of this step */
    Slot gap;        /* between two ops of compute */
    GArray *lengths; /* double, by step: until its last op of compute */
    Shown *shown;
    gint64 run;
} Reader;

/* ---- programs ---- */

static gboolean waits(const Program *program, const Call *call, guint op)
{
    if (program_segment(program, call->segment)->ops[op].num_waits > 0)
        return TRUE;
    for (guint w = 0; w < call->num_waits; w++)
        if (g_array_index(program->step.waits, Wait, call->first_wait + w).before == op)
            return TRUE;
    return FALSE;
}

static const Group *group_of(const ProgramSet *set, const Program *program, const Op *op,
                             guint rank)
{
    const Stream *stream = program_stream(program, op->stream);

    return program_set_group(set, program_stream_purpose(program, stream), rank);
}

static gboolean is_between_classes(const ProgramSet *set, guint class_index, const Op *op)
{
    const Group *group = op->kind != OP_EXCHANGE
                             ? NULL
                             : group_of(set, set->classes[class_index], op,
                                        program_set_first_rank(set, class_index));

    for (guint i = 0; group != NULL && i < group->size; i++)
        if (set->class_of[group->ranks[i]] != class_index)
            return TRUE;
    return FALSE;
}

static Place place_of(const ProgramSet *set, guint class_index, guint c, guint o)
{
    const Program *program = set->classes[class_index];
    const Call *call = &g_array_index(program->step.calls, Call, c);
    const Op *op = &program_segment(program, call->segment)->ops[o];

    return (Place){
        .op = op,
        .stream = program_stream(program, op->stream)->name,
        .label = program_op_label(program, call, op),
        .waits = waits(program, call, o),
        .between = is_between_classes(set, class_index, op),
    };
}

static void class_init(Class *class, const ProgramSet *set, guint class_index)
{
    const Program *program = set->classes[class_index];
    g_autofree guint32 *first_op = program_first_ops(program);
    g_autofree guint *first_slot = g_new0(guint, program->segments->len + 1);
    guint nth[MAX_STREAMS] = {0};

    for (guint s = 0; s < program->segments->len; s++)
        first_slot[s + 1] = first_slot[s] + program_segment(program, s)->num_ops;
    *class = (Class){.program = program, .num = first_op[program->step.calls->len]};
    class->places = g_new0(Place, class->num);
    class->num_slots = first_slot[program->segments->len];
    class->slots = g_new(Slot, class->num_slots);
    class->of_slot = g_new0(const Place *, class->num_slots);
    for (guint i = 0; i < class->num_slots; i++)
        slot_init(&class->slots[i]);
    for (guint c = 0, i = 0; c < program->step.calls->len; c++) {
        const guint segment = g_array_index(program->step.calls, Call, c).segment;

        for (guint o = 0; o < program_segment(program, segment)->num_ops; o++, i++) {
            Place *place = &class->places[i];

            *place = place_of(set, class_index, c, o);
            place->slot = first_slot[segment] + o;
            if (op_kind_is_communication(place->op->kind))
                place->nth = nth[place->op->stream]++;
            class->of_slot[place->slot] = place;
        }
    }
}

static void class_clear(Class *class)
{
    for (guint i = 0; i < class->num; i++)
        g_free(class->places[i].label);
    g_free(class->places);
    for (guint i = 0; i < class->num_slots; i++)
        slot_clear(&class->slots[i]);
    g_free(class->slots);
    g_free(class->of_slot);
}

/* ---- a step ---- */

static const Class *class_of(const Reader *reader, guint rank)
{
    return &reader->classes[reader->set->class_of[rank]];
}

static void add_sample(Reader *reader, guint rank, const Place *place, double seconds)
{
    slot_add(&class_of(reader, rank)->slots[place->slot], seconds);
    reader->shown->num++;
}

/* The time of a member's part of the collective that is @place for another; NAN when it has none.
 * Members issue the same on a stream, in the same order. */
static double member_seconds(const Reader *reader, guint rank, const Place *place, guint at)
{
    const Class *class = class_of(reader, rank);
    const Span *spans = reader->spans[rank];

    if (spans == NULL)
        return NAN;
    if (at < class->num && class->places[at].op == place->op)
        return spans[at].end - spans[at].start;
    for (guint i = 0; i < class->num; i++) {
        const Place *other = &class->places[i];

        if (op_kind_is_communication(other->op->kind) && other->nth == place->nth &&
            strcmp(other->stream, place->stream) == 0)
            return spans[i].end - spans[i].start;
    }
    return NAN;
}

/* Once a group, at its first member. */
static void add_collective(Reader *reader, guint rank, const Place *place, guint at)
{
    const Group *group = group_of(reader->set, class_of(reader, rank)->program, place->op, rank);
    double least = INFINITY;

    if (group == NULL || place->between) {
        add_sample(reader, rank, place, member_seconds(reader, rank, place, at));
        return;
    }
    if (group->ranks[0] != rank && reader->spans[group->ranks[0]] != NULL)
        return;
    for (guint i = 0; i < group->size; i++) {
        const double seconds = member_seconds(reader, group->ranks[i], place, at);

        if (isnan(seconds)) {
            reader->shown->incomplete++;
            return;
        }
        least = MIN(least, seconds);
    }
    add_sample(reader, rank, place, least);
}

static gint by_start(gconstpointer a, gconstpointer b)
{
    const Span *x = a, *y = b;

    return x->start < y->start ? -1 : x->start > y->start;
}

/* Spans of what a rank's other streams ran, by start. */
static GArray *beside(const Class *class, const Span *spans)
{
    GArray *others = g_array_new(FALSE, FALSE, sizeof(Span));

    for (guint i = 0; i < class->num; i++)
        if (class->places[i].op->stream != COMPUTE_STREAM && !isnan(spans[i].start))
            g_array_append_val(others, spans[i]);
    g_array_sort(others, by_start);
    return others;
}

/* What lies between an op of compute that waits for nothing and the one before it, unless another
 * stream ran then: on a CPU that may have taken the core. */
static void read_gaps(Reader *reader, const Class *class, const Span *spans)
{
    g_autoptr(GArray) others = beside(class, spans);
    const Span *before = NULL;
    double others_end = -INFINITY;

    for (guint i = 0, next = 0; i < class->num; i++) {
        const Span *span = &spans[i];

        if (isnan(span->start) || class->places[i].op->stream != COMPUTE_STREAM)
            continue;
        for (; next < others->len && g_array_index(others, Span, next).start < span->start; next++)
            others_end = MAX(others_end, g_array_index(others, Span, next).end);
        if (before != NULL && !class->places[i].waits && span->start >= before->end &&
            others_end <= before->end)
            slot_add(&reader->gap, span->start - before->end);
        before = span;
    }
}

static void read_rank(Reader *reader, guint rank)
{
    const Class *class = class_of(reader, rank);
    const Span *spans = reader->spans[rank];

    for (guint i = 0; i < class->num; i++) {
        const Place *place = &class->places[i];

        if (isnan(spans[i].start))
            continue;
        if (op_kind_is_communication(place->op->kind))
            add_collective(reader, rank, place, i);
        else
            add_sample(reader, rank, place, spans[i].end - spans[i].start);
    }
    read_gaps(reader, class, spans);
}

/* Until its last op of compute, at the last rank. */
static double step_length(const Reader *reader)
{
    double length = 0;

    for (guint rank = 0; rank < reader->set->num_ranks; rank++)
        for (guint i = 0; reader->spans[rank] != NULL && i < class_of(reader, rank)->num; i++)
            if (class_of(reader, rank)->places[i].op->stream == COMPUTE_STREAM &&
                reader->spans[rank][i].end > length)
                length = reader->spans[rank][i].end;
    return length;
}

static void read_step(Reader *reader)
{
    const double length = step_length(reader);

    g_array_append_val(reader->lengths, length);
    for (guint rank = 0; rank < reader->set->num_ranks; rank++)
        if (reader->spans[rank] != NULL)
            read_rank(reader, rank);
    for (guint rank = 0; rank < reader->set->num_ranks; rank++)
        g_clear_pointer(&reader->spans[rank], g_free);
    for (guint c = 0; c < reader->set->num_classes; c++)
        for (guint i = 0; i < reader->classes[c].num_slots; i++)
            slot_end_step(&reader->classes[c].slots[i]);
    slot_end_step(&reader->gap);
    reader->shown->steps++;
}

/* ---- rows ---- */

static Span *spans_new(guint num)
{
    Span *spans = g_new(Span, num);

    for (guint i = 0; i < num; i++)
        spans[i] = (Span){NAN, NAN};
    return spans;
}

/* Lays one rank's rows of a step, in the order in which they were written, which is that of the
 * program, along its ops: those that did not run have no row.  Returns how many rows those are, 0
 * on error. */
static guint lay_rows(Reader *reader, const GArray *rows, guint first, GError **error)
{
    const StoreOp *head = &g_array_index(rows, StoreOp, first);
    guint row = first, at = 0;

    if (head->rank >= reader->set->num_ranks || reader->spans[head->rank] != NULL) {
        fail(error, ERROR_INPUT, "run %" G_GINT64_FORMAT ": rank %u has ops, of %u ranks",
             reader->run, head->rank, reader->set->num_ranks);
        return 0;
    }
    const Class *class = class_of(reader, head->rank);
    Span *spans = reader->spans[head->rank] = spans_new(class->num);
    for (; row < rows->len; row++) {
        const StoreOp *op = &g_array_index(rows, StoreOp, row);

        if (op->rank != head->rank)
            break;
        while (at < class->num && (strcmp(class->places[at].label, op->op) != 0 ||
                                   strcmp(class->places[at].stream, op->stream) != 0))
            at++;
        if (at == class->num || !(op->end >= op->start)) {
            fail(error, ERROR_INPUT,
                 "run %" G_GINT64_FORMAT ": step %" G_GINT64_FORMAT ", rank %u: \"%s\" from %g to "
                 "%g s is no op of its plan at that place",
                 reader->run, op->step, op->rank, op->op, op->start, op->end);
            return 0;
        }
        spans[at++] = (Span){op->start, op->end};
    }
    return row - first;
}

/* One step after the other: a long run has millions of rows. */
static gboolean read_steps(Reader *reader, Store *store, GError **error)
{
    for (gint64 step = G_MININT64;;) {
        g_autoptr(GArray) rows = store_next_ops(store, reader->run, step, error);

        if (rows == NULL)
            return FALSE;
        if (rows->len == 0)
            break;
        for (guint i = 0, laid; i < rows->len; i += laid) {
            laid = lay_rows(reader, rows, i, error);
            if (laid == 0)
                return FALSE;
        }
        step = g_array_index(rows, StoreOp, 0).step;
        read_step(reader);
    }
    return reader->shown->steps > 0 ||
           fail(error, ERROR_INPUT,
                "run %" G_GINT64_FORMAT " has no op times: it ended before its first sampled step",
                reader->run);
}

/* ---- all ---- */

static double seconds_of(const Slot *slot, const Place *place, const GArray *steps, double gap)
{
    if (place->between || place->op->kind == OP_CLIP)
        return slot->least;
    const double seconds = slot_seconds(slot, steps);

    return seconds + (seconds > 0 && place->op->stream == COMPUTE_STREAM ? gap : 0);
}

static void show_class(Reader *reader, guint class_index, const guint *spans, gboolean gaps)
{
    const Class *class = &reader->classes[class_index];
    g_autoptr(GArray) steps = slot_middle_steps(reader->lengths);
    const double gap = gaps ? slot_seconds(&reader->gap, steps) : 0;

    for (guint i = 0; i < class->num_slots; i++) {
        const Slot *slot = &class->slots[i];
        const Place *place = class->of_slot[i];
        const double seconds = slot->calls == 0 ? 0 : seconds_of(slot, place, steps, gap);

        if (seconds == 0)
            continue;
        const LearnOp op = {
            .program = class->program,
            .spans = spans,
            .op = place->op,
            .seconds = seconds,
            .calls = (double)slot->calls,
        };
        g_array_append_val(reader->shown->ops, op);
    }
}

gboolean shown_read(Shown *shown, Store *store, gint64 run, const ProgramSet *set,
                    guint *const *spans, gboolean gaps, GError **error)
{
    Reader reader = {.set = set, .shown = shown, .run = run};

    *shown = (Shown){.ops = g_array_new(FALSE, FALSE, sizeof(LearnOp))};
    reader.classes = g_new(Class, set->num_classes);
    reader.spans = g_new0(Span *, set->num_ranks);
    slot_init(&reader.gap);
    reader.lengths = g_array_new(FALSE, FALSE, sizeof(double));
    for (guint c = 0; c < set->num_classes; c++)
        class_init(&reader.classes[c], set, c);
    const gboolean ok = read_steps(&reader, store, error);
    for (guint c = 0; c < set->num_classes; c++) {
        if (ok)
            show_class(&reader, c, spans[c], gaps);
        class_clear(&reader.classes[c]);
    }
    for (guint rank = 0; rank < set->num_ranks; rank++)
        g_free(reader.spans[rank]);
    g_free(reader.spans);
    g_free(reader.classes);
    slot_clear(&reader.gap);
    g_array_unref(reader.lengths);
    return ok;
}

void shown_clear(Shown *shown)
{
    g_clear_pointer(&shown->ops, g_array_unref);
}
