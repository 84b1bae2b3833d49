/* Order: gathers move ahead of the calls that need them, rings get their indices, and every call
 * learns what it must wait for. */
#include "sim/program/builder.h"
#include "sim/program/happens.h"

/* ---- prefetch and rings ---- */

typedef struct {
    Builder *builder;
    Fifo *slots;      /* by unit class: copies of its ring that are free */
    guint *slot;      /* by unit: its gathered copy */
    guint *gradients; /* by unit class: gradient copies opened so far */
    guint *gradient;  /* by unit: its whole gradient's copy */
    gboolean *alive;  /* by unit: gathered and not yet released */
    gboolean *issued; /* by draft: a gather that has moved ahead already */
} Orderer;

static guint class_of(const Orderer *orderer, guint unit)
{
    return program_unit_ref(orderer->builder->program, unit)->unit_class;
}

static void bind(const Program *program, Call *call, guint space, guint index)
{
    if (space != NO_SPACE)
        call->index[program_space(program, space)->slot] = (guint16)index;
}

static void emit_call(Orderer *orderer, const Draft *draft)
{
    Builder *builder = orderer->builder;
    Program *program = builder->program;
    const guint c = call_list_add(&program->step, draft->segment, draft->unit, draft->micro_batch);
    Call *call = &g_array_index(program->step.calls, Call, c);

    call->first = draft->first;
    call->last = draft->last;
    bind(program, call, builder->micro_batch_space, draft->micro_batch);
    for (guint r = 0; r < NUM_RINGS; r++)
        bind(program, call, builder->kinds[draft->of_kind].ring_space[draft->lot][r],
             draft->ring[r]);
    if (!builder_has_unit(builder, draft->unit))
        return;
    const UnitRef *ref = program_unit_ref(program, draft->unit);
    const UnitClass *unit = program_unit(program, ref->unit_class);
    const ClassSegments *segments = &builder->classes[ref->unit_class];
    bind(program, call, unit->layer_space, ref->index);
    bind(program, call, segments->offload_space,
         ref->index % program_space(program, segments->offload_space)->count);
    if (unit->gathered != NO_TENSOR)
        bind(program, call, segments->gathered_space, orderer->slot[draft->unit]);
    if (unit->unit_gradient != NO_TENSOR)
        bind(program, call, segments->gradient_space, orderer->gradient[draft->unit]);
}

/* FALSE when all copies are in use, or the unit's last one still is: the gather then stays where it
 * is until one is released. */
static gboolean issue_gather(Orderer *orderer, guint i)
{
    const Draft *draft = builder_draft(orderer->builder, i);
    Fifo *slots = &orderer->slots[class_of(orderer, draft->unit)];

    if (orderer->issued[i])
        return TRUE;
    if (orderer->alive[draft->unit] || fifo_is_empty(slots))
        return FALSE;
    orderer->slot[draft->unit] = fifo_pop(slots);
    orderer->issued[i] = orderer->alive[draft->unit] = TRUE;
    emit_call(orderer, draft);
    return TRUE;
}

/* Before the use at @i: the gathers of the next uses, as far as prefetch and free copies allow. */
static void issue_ahead(Orderer *orderer, guint i)
{
    const Builder *builder = orderer->builder;
    guint uses = 0;

    for (guint j = i + 1; j < builder->drafts->len && uses < builder->spec->sharding->prefetch;
         j++) {
        const Draft *draft = builder_draft(builder, j);

        if (draft->kind == DRAFT_GATHER && !issue_gather(orderer, j))
            return;
        uses += draft->uses_weights ? 1 : 0;
    }
}

static void open_gradient(Orderer *orderer, const Draft *draft)
{
    const guint index = class_of(orderer, draft->unit);
    const Program *program = orderer->builder->program;
    const UnitClass *unit = program_unit(program, index);

    if (unit->unit_gradient == NO_TENSOR)
        return;
    const guint space = orderer->builder->classes[index].gradient_space;
    const guint count = g_array_index(program->spaces, Space, space).count;
    orderer->gradient[draft->unit] = orderer->gradients[index]++ % count;
}

static void order_draft(Orderer *orderer, guint i)
{
    const Draft *draft = builder_draft(orderer->builder, i);

    if (draft->kind == DRAFT_GATHER) {
        if (!issue_gather(orderer, i))
            g_assert_not_reached(); /* legality: live_units > prefetch */
        return;
    }
    if (draft->uses_weights)
        issue_ahead(orderer, i);
    if (draft->opens_gradient)
        open_gradient(orderer, draft);
    emit_call(orderer, draft);
    if (draft->releases) {
        fifo_push(&orderer->slots[class_of(orderer, draft->unit)], orderer->slot[draft->unit]);
        orderer->alive[draft->unit] = FALSE;
    }
}

/* Those of a program that differs in sizes only, if there was one. */
static void add_waits(const Builder *builder)
{
    Program *program = builder->program;
    Patterns *patterns = builder->spec->patterns;

    program->pattern = patterns == NULL ? NULL : patterns_find(patterns, program);
    if (program->pattern != NULL && pattern_add_waits(program->pattern, program))
        return;
    order_add_waits(program);
    if (program->pattern != NULL)
        pattern_keep_waits(program->pattern, program);
}

void pass_order(Builder *builder)
{
    Program *program = builder->program;
    const guint num_classes = program->units->len, num_units = program->unit_refs->len;
    g_autofree Fifo *slots = g_new0(Fifo, num_classes);
    g_autofree guint *slot = g_new0(guint, num_units);
    g_autofree guint *gradient = g_new0(guint, num_units);
    g_autofree guint *gradients = g_new0(guint, num_classes);
    g_autofree gboolean *alive = g_new0(gboolean, num_units);
    g_autofree gboolean *issued = g_new0(gboolean, builder->drafts->len);
    Orderer orderer = {builder, slots, slot, gradients, gradient, alive, issued};

    call_list_reserve(&program->step, builder->drafts->len);
    for (guint i = 0; i < num_classes; i++) {
        const guint space = builder->classes[i].gathered_space;
        const gboolean gathers = program_unit(program, i)->gathered != NO_TENSOR;

        fifo_init(&slots[i]);
        for (guint s = 0; gathers && s < g_array_index(program->spaces, Space, space).count; s++)
            fifo_push(&slots[i], s);
    }
    for (guint i = 0; i < builder->drafts->len; i++)
        order_draft(&orderer, i);
    for (guint i = 0; i < num_classes; i++)
        fifo_clear(&slots[i]);
    add_waits(builder);
}

/* ---- waits by dataflow ---- */

/* An op that ran: its instance, and its place on its stream. */
typedef struct {
    guint64 instance;
    guint32 position, stream;
} Event;

/* Who touched one copy of a tensor last: its writer, and its readers since, by stream. */
typedef struct {
    Event writer;    /* position 0: nobody */
    guint32 readers; /* streams, as bits */
} Touch;

/* A tensor's copies, among those of all. */
typedef struct {
    guint first;
    gint count;
    guint slot;
} Copies;

/* A wait, and the next one of its call; as one past its place among all of them, 0 for none. */
typedef struct {
    Wait wait;
    guint next;
} Listed;

typedef struct {
    guint first, last;
} Ends;

typedef struct {
    Program *program;
    Happens *happens;
    Copies *copies; /* by tensor */
    Touch *touches; /* by tensor copy */
    Event *readers; /* by tensor copy and stream, where its bit is set */
    GArray *waits;  /* Listed */
    Ends *ends;     /* by call */
    guint step;
    guint next; /* of the current call's waits, one past its place: what the step before found,
                   in the order of its ops; 0: no more */
} Waiter;

static void add_wait(Waiter *waiter, guint call, guint op, guint64 event)
{
    const Happens *happens = waiter->happens;
    const guint64 within = event % happens->ops_per_step;
    const guint back = waiter->step - (guint)(event / happens->ops_per_step);
    guint low = 0, high = waiter->program->step.calls->len;

    while (high - low > 1) { /* the call whose ops contain @within */
        const guint middle = (low + high) / 2;

        if (happens->first_op[middle] <= within)
            low = middle;
        else
            high = middle;
    }
    while (happens->first_op[low + 1] <= within) /* calls without ops share a start */
        low++;
    const Listed added = {
        {.call = low, .op = (guint)(within - happens->first_op[low]), .before = op, .back = back},
        0};
    g_array_append_val(waiter->waits, added);
    Ends *ends = &waiter->ends[call];
    if (ends->last == 0)
        ends->first = waiter->waits->len;
    else
        g_array_index(waiter->waits, Listed, ends->last - 1).next = waiter->waits->len;
    ends->last = waiter->waits->len;
}

static void depend(Waiter *waiter, guint call, guint op, const Event *own, const Event *event)
{
    if (event->stream == own->stream || /* it is done, or is the op itself */
        happens_known(waiter->happens, own->instance, event->stream) >= event->position)
        return;
    add_wait(waiter, call, op, event->instance);
    happens_join(waiter->happens, own->instance, event->instance);
}

static guint copy_of(const Waiter *waiter, const Call *call, guint tensor, gint shift)
{
    const Copies *copies = &waiter->copies[tensor];

    return copies->first + index_within((gint)call->index[copies->slot] + shift, copies->count);
}

static void depend_on(Waiter *waiter, guint c, guint i, const Event *own, guint copy, Access access)
{
    const Touch *touch = &waiter->touches[copy];

    if (touch->writer.position != 0)
        depend(waiter, c, i, own, &touch->writer);
    if (access == ACCESS_READ)
        return;
    for (guint32 left = touch->readers; left != 0; left &= left - 1) {
        const guint stream = (guint)__builtin_ctz(left);

        depend(waiter, c, i, own, &waiter->readers[copy * waiter->happens->num_streams + stream]);
    }
}

static void record(Waiter *waiter, const Event *own, guint copy, Access access)
{
    if (access == ACCESS_READ) {
        waiter->touches[copy].readers |= 1u << own->stream;
        waiter->readers[copy * waiter->happens->num_streams + own->stream] = *own;
    } else {
        waiter->touches[copy] = (Touch){.writer = *own};
    }
}

/* By the waits that are there. */
static void begin_op(Waiter *waiter, guint i, const Op *op, guint64 instance)
{
    Happens *happens = waiter->happens;

    happens_begin(happens, instance);
    for (guint w = 0; w < op->num_waits; w++)
        happens_join(happens, instance, instance - i + op->waits[w]);
    while (waiter->next != 0) {
        const Listed *listed = &g_array_index(waiter->waits, Listed, waiter->next - 1);
        guint64 event;

        if (listed->wait.before != i)
            return;
        if (happens_event(happens, &listed->wait, waiter->step, &event))
            happens_join(happens, instance, event);
        waiter->next = listed->next;
    }
}

/* A write that follows reads covers them: the later ones wait for it alone. */
static void visit_op(Waiter *waiter, guint c, guint i)
{
    const Call *call = &g_array_index(waiter->program->step.calls, Call, c);
    const Op *op = &program_segment(waiter->program, call->segment)->ops[i];
    const guint64 instance =
        waiter->step * waiter->happens->ops_per_step + waiter->happens->first_op[c] + i;
    const Event own = {instance, waiter->happens->position[instance], op->stream};
    const gboolean predicated = op->predicate != NO_TENSOR;
    const guint predicate = predicated ? copy_of(waiter, call, (guint)op->predicate, 0) : 0;
    guint copies[MAX_OPERANDS];

    begin_op(waiter, i, op, instance);
    if (predicated)
        depend_on(waiter, c, i, &own, predicate, ACCESS_READ);
    for (guint o = 0; o < op->num_operands; o++) {
        copies[o] = copy_of(waiter, call, op->operands[o].tensor, op->operands[o].shift);
        depend_on(waiter, c, i, &own, copies[o], op->operands[o].access);
    }
    if (predicated)
        record(waiter, &own, predicate, ACCESS_READ);
    for (guint o = 0; o < op->num_operands; o++)
        record(waiter, &own, copies[o], op->operands[o].access);
}

static Copies *count_copies(const Program *program, guint *total)
{
    Copies *copies = g_new(Copies, program->tensors->len);

    *total = 0;
    for (guint t = 0; t < program->tensors->len; t++) {
        const guint space = program_tensor(program, t)->space;
        const guint count = g_array_index(program->spaces, Space, space).count;

        copies[t] = (Copies){*total, (gint)count, program_space(program, space)->slot};
        *total += count;
    }
    return copies;
}

static void store_waits(Waiter *waiter)
{
    CallList *step = &waiter->program->step;

    for (guint c = 0; c < step->calls->len; c++)
        for (guint next = waiter->ends[c].first; next != 0;) {
            const Listed *listed = &g_array_index(waiter->waits, Listed, next - 1);

            call_list_wait(step, c, listed->wait);
            next = listed->next;
        }
}

void order_add_waits(Program *program)
{
    enum { STEPS = 2 }; /* the second finds what crosses the boundary */
    const guint num_calls = program->step.calls->len;
    g_autoptr(Happens) happens = happens_new(program, STEPS);
    guint total;
    g_autofree Copies *copies = count_copies(program, &total);
    g_autofree Touch *touches = g_new0(Touch, total);
    g_autofree Event *readers = g_new(Event, total * program->streams->len);
    g_autoptr(GArray) waits = g_array_sized_new(FALSE, FALSE, sizeof(Listed), num_calls);
    g_autofree Ends *ends = g_new0(Ends, num_calls);
    Waiter waiter = {program, happens, copies, touches, readers, waits, ends, 0, 0};

    for (waiter.step = 0; waiter.step < STEPS; waiter.step++)
        for (guint c = 0; c < num_calls; c++) {
            const guint segment = g_array_index(program->step.calls, Call, c).segment;

            waiter.next = waiter.step == 0 ? 0 : ends[c].first;
            for (guint i = 0; i < program_segment(program, segment)->num_ops; i++)
                visit_op(&waiter, c, i);
        }
    store_waits(&waiter);
}
