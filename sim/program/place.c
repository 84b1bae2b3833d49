/* Lifetimes: a tensor copy is alive from a write to the last read before the next write.  Two
 * tensors conflict when a lifetime of a copy of one is not over, by happens-before, when a lifetime
 * of the other starts.  Offsets: state packed at the bottom, then the rest, the largest first, each
 * at the lowest offset where nothing that it conflicts with lies. */
#include "sim/program/place.h"

#include "sim/program/happens.h"

#include <string.h>

enum { STEPS = 2 }; /* the step followed by itself */

/* One lifetime of one tensor copy. */
typedef struct {
    guint tensor;
    guint64 start;             /* instance, plus one */
    guint64 last[MAX_STREAMS]; /* its newest access, by stream, plus one */
    guint compared;            /* with that many lifetimes: all that had started */
    gboolean consumed;         /* read as a whole: the next write, even of a part, starts anew */
} Lifetime;

/* The streams whose ops touch a tensor. */
typedef struct {
    guint num;
    guint8 stream[MAX_STREAMS];
} Touching;

typedef struct {
    const Program *program;
    Happens *happens;
    guint num_tensors;
    Touching *touching;     /* by tensor */
    guint *first_copy;      /* by tensor; one past the end too */
    GArray *lifetimes;      /* Lifetime, in the order of starts */
    guint *newest;          /* by tensor copy: its newest of those, plus one; 0: none yet */
    guint64 *newest_access; /* by tensor x stream, of any copy, plus one */
    guint64 *newest_start;  /* by tensor: its newest lifetime's start, plus one */
    guint8 *conflicts;      /* num_tensors squared */
    guint **apart;          /* by tensor: those that it did not conflict with when last looked at */
    guint *num_apart;
    guint64 *bytes;   /* by tensor: of all copies */
    gboolean *always; /* by tensor: shared with nothing */
} Placer;

static gboolean is_shared_memory(const Tensor *tensor)
{
    return tensor->persistence == PERSIST_STEP;
}

static void conflict(Placer *placer, guint a, guint b)
{
    placer->conflicts[a * placer->num_tensors + b] = 1;
    placer->conflicts[b * placer->num_tensors + a] = 1;
}

static gboolean lifetime_over(const Placer *placer, guint tensor, const Lifetime *lifetime,
                              guint64 instance)
{
    const Touching *touching = &placer->touching[tensor];

    for (guint i = 0; i < touching->num; i++) {
        const guint64 last = lifetime->last[touching->stream[i]];

        if (last != 0 && !happens_before(placer->happens, last - 1, instance))
            return FALSE;
    }
    return TRUE;
}

/* Positions on a stream are in order, so its newest access of any copy stands for all of them. */
static gboolean all_over(const Placer *placer, guint tensor, guint64 instance)
{
    const Touching *touching = &placer->touching[tensor];
    const guint64 *newest = &placer->newest_access[tensor * MAX_STREAMS];

    for (guint i = 0; i < touching->num; i++) {
        const guint64 at = newest[touching->stream[i]];

        if (at != 0 && !happens_before(placer->happens, at - 1, instance))
            return FALSE;
    }
    return TRUE;
}

/* A lifetime of @tensor starts: whatever is not over by then conflicts. */
static void start_lifetime(Placer *placer, guint tensor, guint copy, guint64 instance)
{
    const Lifetime lifetime = {
        .tensor = tensor, .start = instance + 1, .compared = placer->lifetimes->len + 1};

    for (guint i = placer->num_apart[tensor]; i-- > 0;) {
        const guint t = placer->apart[tensor][i];
        const gboolean together = placer->conflicts[tensor * placer->num_tensors + t] != 0;

        if (!together && all_over(placer, t, instance))
            continue;
        conflict(placer, tensor, t);
        placer->apart[tensor][i] = placer->apart[tensor][--placer->num_apart[tensor]];
    }
    g_array_append_val(placer->lifetimes, lifetime);
    placer->newest[placer->first_copy[tensor] + copy] = placer->lifetimes->len;
    placer->newest_start[tensor] = instance + 1;
}

static Lifetime *lifetime_at(const Placer *placer, guint i)
{
    return &g_array_index(placer->lifetimes, Lifetime, i);
}

/* NULL: it has not lived yet. */
static Lifetime *newest_lifetime(const Placer *placer, guint tensor, guint copy)
{
    const guint newest = placer->newest[placer->first_copy[tensor] + copy];

    return newest == 0 ? NULL : lifetime_at(placer, newest - 1);
}

/* A later access of a lifetime: whatever started in between overlaps it. */
static void continue_lifetime(Placer *placer, Lifetime *lifetime)
{
    const guint starts = placer->lifetimes->len, tensor = lifetime->tensor;

    if (starts - lifetime->compared < placer->num_tensors) {
        for (guint i = lifetime->compared; i < starts; i++)
            if (lifetime_at(placer, i)->tensor != tensor)
                conflict(placer, tensor, lifetime_at(placer, i)->tensor);
    } else {
        for (guint t = 0; t < placer->num_tensors; t++)
            if (t != tensor && placer->newest_start[t] > lifetime->start)
                conflict(placer, tensor, t);
    }
    lifetime->compared = starts;
}

static void visit_operand(Placer *placer, const Call *call, const Op *op, guint64 instance,
                          const Operand *operand)
{
    const Tensor *tensor = program_tensor(placer->program, operand->tensor);
    const Access access = operand_access(operand, call->first);

    if (!is_shared_memory(tensor))
        return;
    const guint copy = operand_copy(placer->program, call, operand);
    Lifetime *lifetime = newest_lifetime(placer, operand->tensor, copy);
    /* Writing one parameter of a unit's gradients does not end the life of the others. */
    if (lifetime == NULL ||
        (access == ACCESS_WRITE && (operand->param == WHOLE_TENSOR || lifetime->consumed)))
        start_lifetime(placer, operand->tensor, copy, instance);
    else
        continue_lifetime(placer, lifetime);
    lifetime = newest_lifetime(placer, operand->tensor, copy);
    lifetime->last[op->stream] = instance + 1;
    placer->newest_access[operand->tensor * MAX_STREAMS + op->stream] = instance + 1;
    lifetime->consumed = access == ACCESS_READ && operand->param == WHOLE_TENSOR;
}

static void visit_step(Placer *placer, guint step)
{
    const Program *program = placer->program;

    for (guint c = 0; c < program->step.calls->len; c++) {
        const Call *call = &g_array_index(program->step.calls, Call, c);
        const Segment *segment = program_segment(program, call->segment);
        const guint64 start = step * placer->happens->ops_per_step + placer->happens->first_op[c];

        for (guint i = 0; i < segment->num_ops; i++)
            for (guint o = 0; o < segment->ops[i].num_operands; o++)
                visit_operand(placer, call, &segment->ops[i], start + i,
                              &segment->ops[i].operands[o]);
    }
}

/* What the prologue or the epilogue touches shares memory with nothing: they run between steps,
 * when any tensor of the step may hold what the next one reads. */
static void visit_list(Placer *placer, const CallList *list)
{
    for (guint c = 0; c < list->calls->len; c++) {
        const Segment *segment =
            program_segment(placer->program, g_array_index(list->calls, Call, c).segment);

        for (guint i = 0; i < segment->num_ops; i++)
            for (guint o = 0; o < segment->ops[i].num_operands; o++) {
                const guint tensor = segment->ops[i].operands[o].tensor;

                placer->always[tensor] = is_shared_memory(program_tensor(placer->program, tensor));
                for (guint t = 0; placer->always[tensor] && t < placer->num_tensors; t++)
                    if (t != tensor)
                        conflict(placer, tensor, t);
            }
    }
}

/* ---- analysis ---- */

static void note_stream(Touching *touching, guint stream)
{
    for (guint i = 0; i < touching->num; i++)
        if (touching->stream[i] == stream)
            return;
    touching->stream[touching->num++] = (guint8)stream;
}

static void find_touching(Placer *placer)
{
    placer->touching = g_new0(Touching, placer->num_tensors);
    for (guint s = 0; s < placer->program->segments->len; s++) {
        const Segment *segment = program_segment(placer->program, s);

        for (guint i = 0; i < segment->num_ops; i++)
            for (guint o = 0; o < segment->ops[i].num_operands; o++)
                note_stream(&placer->touching[segment->ops[i].operands[o].tensor],
                            segment->ops[i].stream);
    }
}

/* Before anything lives: all that may share memory. */
static void find_apart(Placer *placer)
{
    const Program *program = placer->program;

    placer->apart = g_new(guint *, placer->num_tensors);
    placer->num_apart = g_new0(guint, placer->num_tensors);
    placer->bytes = g_new(guint64, placer->num_tensors);
    for (guint t = 0; t < placer->num_tensors; t++) {
        placer->apart[t] = g_new(guint, placer->num_tensors);
        placer->bytes[t] = tensor_bytes(program, program_tensor(program, t));
        for (guint other = 0; other < placer->num_tensors; other++)
            if (other != t && is_shared_memory(program_tensor(program, other)))
                placer->apart[t][placer->num_apart[t]++] = other;
    }
}

static void placer_init(Placer *placer, const Program *program)
{
    guint copies = 0;

    *placer = (Placer){.program = program, .num_tensors = program->tensors->len};
    placer->happens = happens_new(program, STEPS);
    happens_fill(placer->happens, STEPS);
    placer->first_copy = g_new(guint, placer->num_tensors + 1);
    for (guint t = 0; t < placer->num_tensors; t++) {
        placer->first_copy[t] = copies;
        copies += g_array_index(program->spaces, Space, program_tensor(program, t)->space).count;
    }
    placer->first_copy[placer->num_tensors] = copies;
    placer->lifetimes = g_array_new(FALSE, FALSE, sizeof(Lifetime));
    placer->newest = g_new0(guint, copies);
    placer->newest_access = g_new0(guint64, placer->num_tensors * MAX_STREAMS);
    placer->newest_start = g_new0(guint64, placer->num_tensors);
    placer->conflicts = g_new0(guint8, placer->num_tensors * placer->num_tensors);
    placer->always = g_new0(gboolean, placer->num_tensors);
    find_touching(placer);
    find_apart(placer);
    for (guint s = 0; s < STEPS; s++)
        visit_step(placer, s);
    visit_list(placer, &program->prologue);
    visit_list(placer, &program->epilogue);
}

static void placer_clear(Placer *placer)
{
    happens_free(placer->happens);
    g_free(placer->first_copy);
    g_array_unref(placer->lifetimes);
    g_free(placer->newest);
    g_free(placer->newest_access);
    g_free(placer->newest_start);
    g_free(placer->conflicts);
    g_free(placer->always);
    for (guint t = 0; t < placer->num_tensors; t++)
        g_free(placer->apart[t]);
    g_free(placer->apart);
    g_free(placer->num_apart);
    g_free(placer->touching);
    g_free(placer->bytes);
}

/* ---- offsets ---- */

static guint64 aligned(guint64 bytes)
{
    return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

/* Every copy is aligned; what that costs counts as workspace, so that state terms are exact to the
 * byte. */
static void set_stride(const Program *program, Tensor *tensor)
{
    const guint count = g_array_index(program->spaces, Space, tensor->space).count;

    tensor->stride = tensor_copy_bytes(tensor);
    if (count > 1)
        tensor->stride = aligned(tensor->stride);
}

static guint64 extent(const Program *program, const Tensor *tensor)
{
    return tensor->stride * g_array_index(program->spaces, Space, tensor->space).count;
}

static gint by_extent(gconstpointer a, gconstpointer b, gpointer data)
{
    const Program *program = data;
    const guint64 left = extent(program, program_tensor(program, *(const guint *)a));
    const guint64 right = extent(program, program_tensor(program, *(const guint *)b));

    if (left != right)
        return left > right ? -1 : 1;
    return (gint) * (const guint *)a - (gint) * (const guint *)b;
}

/* Tensors that may share memory, the largest first. */
static GArray *shared_by_extent(const Program *program)
{
    GArray *order = g_array_new(FALSE, FALSE, sizeof(guint));

    for (guint t = 0; t < program->tensors->len; t++)
        if (is_shared_memory(program_tensor(program, t)))
            g_array_append_val(order, t);
    g_array_sort_with_data(order, by_extent, (gpointer)program);
    return order;
}

/* The lowest aligned offset at or above @floor_bytes where no tensor of @placed (by offset) that
 * conflicts lies. */
static guint64 lowest_offset(const Placer *placer, const GArray *placed, guint tensor,
                             guint64 floor_bytes)
{
    const Program *program = placer->program;
    const guint64 bytes = extent(program, program_tensor(program, tensor));
    guint64 offset = floor_bytes;

    for (guint i = 0; i < placed->len; i++) {
        const guint other = g_array_index(placed, guint, i);
        const Tensor *there = program_tensor(program, other);

        if (!placer->conflicts[tensor * placer->num_tensors + other])
            continue;
        if (offset + bytes <= there->offset)
            break;
        offset = MAX(offset, aligned(there->offset + extent(program, there)));
    }
    return offset;
}

static void place_state(Program *program, guint64 end[NUM_TIERS])
{
    memset(end, 0, NUM_TIERS * sizeof *end);
    for (guint t = 0; t < program->tensors->len; t++) {
        Tensor *tensor = program_tensor(program, t);

        set_stride(program, tensor);
        if (is_shared_memory(tensor))
            continue;
        tensor->offset = end[tensor->tier];
        end[tensor->tier] = aligned(tensor->offset + extent(program, tensor));
    }
}

/* Keeps @placed in the order of offsets. */
static void insert_placed(const Program *program, GArray *placed, guint tensor)
{
    guint at = placed->len;

    while (at > 0 && program_tensor(program, g_array_index(placed, guint, at - 1))->offset >
                         program_tensor(program, tensor)->offset)
        at--;
    g_array_insert_val(placed, at, tensor);
}

/* Places the tensors of @order one after the other; returns the end. */
static guint64 place_in_order(const Placer *placer, Program *program, const GArray *order,
                              guint64 floor_bytes)
{
    g_autoptr(GArray) placed = g_array_new(FALSE, FALSE, sizeof(guint));
    guint64 end = floor_bytes;

    for (guint i = 0; i < order->len; i++) {
        const guint t = g_array_index(order, guint, i);
        Tensor *tensor = program_tensor(program, t);

        tensor->offset = lowest_offset(placer, placed, t, floor_bytes);
        insert_placed(program, placed, t);
        end = MAX(end, aligned(tensor->offset + extent(program, tensor)));
    }
    return end;
}

static void swap(GArray *order, guint a, guint b)
{
    const guint t = g_array_index(order, guint, a);

    g_array_index(order, guint, a) = g_array_index(order, guint, b);
    g_array_index(order, guint, b) = t;
}

/* Largest first is good, not best (up to 7% above the peak): two of the larger ones change places,
 * and stay so unless that is worse.  The numbers drawn are the same for every program (Numerical
 * Recipes' generator). */
static guint64 place_shared(const Placer *placer, Program *program, guint64 floor_bytes)
{
    enum { TRIES = 100, LARGER = 24 };
    g_autoptr(GArray) order = shared_by_extent(program);
    const guint num = MIN(order->len, LARGER);
    guint64 best = place_in_order(placer, program, order, floor_bytes);
    guint32 drawn = 1;

    for (guint try = 0; num > 0 && try < TRIES; try++) {
        drawn = drawn * 1664525u + 1013904223u;
        const guint a = (drawn >> 8) % num, b = (drawn >> 20) % num;

        swap(order, a, b);
        const guint64 end = place_in_order(placer, program, order, floor_bytes);
        if (end > best)
            swap(order, a, b);
        best = MIN(best, end);
    }
    return place_in_order(placer, program, order, floor_bytes);
}

/* ---- the peak ---- */

/* What is alive at one moment of the second repetition, a steady one. */
typedef struct {
    guint64 bytes, instance;
    gboolean *members; /* by tensor */
} Peak;

/* Of the tensors that are not over, @first and then, the largest first, those that conflict with
 * all before them: two that follow each other on a stream may both lie beside this moment, but only
 * one at a time.  So no arena is smaller than their sum. */
static guint64 sum_members(const Placer *placer, const GArray *order, const gboolean *alive,
                           guint first, gboolean *members)
{
    g_autofree guint *included = g_new(guint, order->len);
    guint num = 1;
    guint64 bytes = placer->bytes[first];

    included[0] = first;
    members[first] = TRUE;
    for (guint i = 0; i < order->len; i++) {
        const guint t = g_array_index(order, guint, i);
        gboolean together = alive[t] && t != first;

        for (guint m = 0; together && m < num; m++)
            together = placer->conflicts[t * placer->num_tensors + included[m]] != 0;
        if (!together)
            continue;
        members[t] = TRUE;
        included[num++] = t;
        bytes += placer->bytes[t];
    }
    return bytes;
}

/* The newest lifetimes by tensor, and what is alive when @started starts. */
typedef struct {
    const GArray *order; /* of tensors, the largest first */
    guint64 all_bytes;   /* of them */
    const Lifetime *newest;
    const Lifetime *started;
    gboolean *alive; /* by tensor */
} Moment;

/* FALSE as soon as what may be alive is not more than @bytes. */
static gboolean find_alive(const Placer *placer, const Moment *moment, guint64 bytes)
{
    guint64 most = moment->all_bytes;

    for (guint i = 0; i < moment->order->len && most > bytes; i++) {
        const guint t = g_array_index(moment->order, guint, i);

        moment->alive[t] =
            t == moment->started->tensor || placer->always[t] ||
            !lifetime_over(placer, t, &moment->newest[t], moment->started->start - 1);
        most -= moment->alive[t] ? 0 : placer->bytes[t];
    }
    return most > bytes;
}

static void note_peak(const Placer *placer, const Moment *moment, Peak *peak)
{
    if (!find_alive(placer, moment, peak->bytes))
        return;
    g_autofree gboolean *members = g_new0(gboolean, placer->num_tensors);
    const guint64 bytes =
        sum_members(placer, moment->order, moment->alive, moment->started->tensor, members);
    if (bytes <= peak->bytes)
        return;
    peak->bytes = bytes;
    peak->instance = moment->started->start - 1;
    memcpy(peak->members, members, placer->num_tensors * sizeof *members);
}

/* Of any phase, or of calls of one. */
enum { ANY_PHASE = -1 };

static StepPhase segment_phase(const Segment *segment)
{
    for (guint i = 0; i < segment->num_ops; i++)
        if (op_class(segment->ops[i].kind) == OP_CLASS_OPTIMIZER)
            return PHASE_OPTIMIZER;
    return PHASE_PASSES;
}

static const Segment *segment_at(const Placer *placer, guint64 instance)
{
    const Program *program = placer->program;
    const guint64 within = instance % placer->happens->ops_per_step;
    guint from = 0, until = program->step.calls->len - 1;

    while (from < until) {
        const guint middle = (from + until) / 2;

        if (within < placer->happens->first_op[middle + 1])
            until = middle;
        else
            from = middle + 1;
    }
    return program_segment(program, g_array_index(program->step.calls, Call, from).segment);
}

/* Looks at every start of a lifetime: between them nothing is added.  A tensor is alive while any
 * of its lifetimes that have started is not over; positions on a stream are in order, so their
 * newest access there stands for all of them. */
static void find_peak(const Placer *placer, gint phase, Peak *peak)
{
    g_autoptr(GArray) order = shared_by_extent(placer->program);
    g_autofree Lifetime *newest = g_new0(Lifetime, placer->num_tensors);
    g_autofree gboolean *alive = g_new(gboolean, placer->num_tensors);
    guint64 all_bytes = 0;

    for (guint i = 0; i < order->len; i++)
        all_bytes += placer->bytes[g_array_index(order, guint, i)];
    for (guint i = 0; i < placer->lifetimes->len; i++) {
        const Lifetime *started = lifetime_at(placer, i);
        const Moment moment = {order, all_bytes, newest, started, alive};
        Lifetime *own = &newest[started->tensor];

        for (guint s = 0; s < placer->touching[started->tensor].num; s++) {
            const guint stream = placer->touching[started->tensor].stream[s];

            own->last[stream] = MAX(own->last[stream], started->last[stream]);
        }
        if (started->start > placer->happens->ops_per_step &&
            (phase == ANY_PHASE ||
             (gint)segment_phase(segment_at(placer, started->start - 1)) == phase))
            note_peak(placer, &moment, peak);
    }
}

static MemoryUse peak_use(const Placer *placer, guint64 arena_bytes)
{
    const Program *program = placer->program;
    g_autofree gboolean *members = g_new0(gboolean, placer->num_tensors);
    MemoryUse use = {.total = arena_bytes};
    Peak peak = {.members = members};

    find_peak(placer, ANY_PHASE, &peak);
    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);

        if (tensor->tier == TIER_DEVICE && (members[t] || !is_shared_memory(tensor)))
            use.term[tensor_term(tensor)] += tensor_bytes(program, tensor);
    }
    use.moment = placer->happens->ops_per_step > 0 ? segment_at(placer, peak.instance)->name : "";
    for (guint t = 0; t < NUM_MEMORY_TERMS; t++)
        use.live_peak += use.term[t];
    use.term[TERM_WORKSPACE] += use.total - use.live_peak; /* alignment and gaps */
    return use;
}

/* ---- all ---- */

void program_place(Program *program)
{
    Placer placer;

    place_state(program, program->arena_bytes);
    placer_init(&placer, program);
    program->arena_bytes[TIER_DEVICE] =
        place_shared(&placer, program, program->arena_bytes[TIER_DEVICE]);
    program->memory = peak_use(&placer, program->arena_bytes[TIER_DEVICE]);
    placer_clear(&placer);
}

MemoryUse program_memory(const Program *program)
{
    return program->memory;
}

guint64 program_state_bytes(const Program *program)
{
    guint64 bytes = 0;

    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);

        if (tensor->tier == TIER_DEVICE && !is_shared_memory(tensor))
            bytes += tensor_bytes(program, tensor);
    }
    return bytes;
}

void program_phase_peaks(const Program *program, guint64 peak_bytes[NUM_PHASES])
{
    Placer placer;

    placer_init(&placer, program);
    for (gint phase = 0; phase < NUM_PHASES; phase++) {
        g_autofree gboolean *members = g_new0(gboolean, placer.num_tensors);
        Peak peak = {.members = members};

        find_peak(&placer, phase, &peak);
        peak_bytes[phase] = program_state_bytes(program) + peak.bytes;
    }
    placer_clear(&placer);
}
