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
    guint64 start;     /* instance, plus one */
    guint first_last;  /* its newest access, as its place on each stream that touches the tensor */
    guint compared;    /* with that many lifetimes: all that had started */
    gboolean consumed; /* read as a whole: the next write, even of a part, starts anew */
} Lifetime;

/* The streams whose ops touch a tensor. */
typedef struct {
    guint num;
    guint8 stream[MAX_STREAMS];
} Touching;

/* An operand that may share memory. */
typedef struct {
    guint op;    /* of the segment */
    guint touch; /* which of the streams that touch its tensor the op is on */
    const Operand *operand;
} Use;

typedef struct {
    const Program *program;
    Happens *happens;
    guint num_tensors;
    Touching *touching;     /* by tensor */
    GArray *uses;           /* Use, segment after segment */
    guint *first_use;       /* by segment; one past the end too */
    guint *first_copy;      /* by tensor; one past the end too */
    GArray *lifetimes;      /* Lifetime, in the order of starts */
    GArray *lasts;          /* guint32: Lifetime.first_last points here */
    guint *newest;          /* by tensor copy: its newest of those, plus one; 0: none yet */
    guint32 *newest_access; /* by tensor x stream that touches it, of any copy: a place there */
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

/* Whether accesses at those places of the streams that touch @tensor (0: none) are done before
 * @instance. */
static gboolean are_over(const Placer *placer, guint tensor, const guint32 *last, guint64 instance)
{
    const Touching *touching = &placer->touching[tensor];
    const guint32 *known = happens_known(placer->happens, instance);

    for (guint i = 0; i < touching->num; i++)
        if (last[i] > known[touching->stream[i]])
            return FALSE;
    return TRUE;
}

/* Places on a stream are in order, so its newest access of any copy stands for all of them. */
static gboolean all_over(const Placer *placer, guint tensor, guint64 instance)
{
    return are_over(placer, tensor, &placer->newest_access[tensor * MAX_STREAMS], instance);
}

/* The tensor no longer counts as apart from the @i-th of those. */
static void meet(Placer *placer, guint tensor, guint i)
{
    conflict(placer, tensor, placer->apart[tensor][i]);
    placer->apart[tensor][i] = placer->apart[tensor][--placer->num_apart[tensor]];
}

static gboolean is_conflict(const Placer *placer, guint a, guint b)
{
    return placer->conflicts[a * placer->num_tensors + b] != 0;
}

/* A lifetime of @tensor starts: whatever is not over by then conflicts. */
static void start_lifetime(Placer *placer, guint tensor, guint copy, guint64 instance)
{
    const Lifetime lifetime = {.tensor = tensor,
                               .start = instance + 1,
                               .first_last = placer->lasts->len,
                               .compared = placer->lifetimes->len + 1};

    for (guint i = placer->num_apart[tensor]; i-- > 0;) {
        const guint other = placer->apart[tensor][i];

        if (is_conflict(placer, tensor, other) || !all_over(placer, other, instance))
            meet(placer, tensor, i);
    }
    g_array_append_val(placer->lifetimes, lifetime);
    g_array_set_size(placer->lasts, placer->lasts->len + placer->touching[tensor].num);
    placer->newest[placer->first_copy[tensor] + copy] = placer->lifetimes->len;
    placer->newest_start[tensor] = instance + 1;
}

static Lifetime *lifetime_at(const Placer *placer, guint i)
{
    return &g_array_index(placer->lifetimes, Lifetime, i);
}

static guint32 *lasts_of(const Placer *placer, const Lifetime *lifetime)
{
    return &g_array_index(placer->lasts, guint32, lifetime->first_last);
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

    if (starts == lifetime->compared)
        return;
    lifetime->compared = starts;
    for (guint i = placer->num_apart[tensor]; i-- > 0;) {
        const guint other = placer->apart[tensor][i];

        if (is_conflict(placer, tensor, other) || placer->newest_start[other] > lifetime->start)
            meet(placer, tensor, i);
    }
}

static void visit_use(Placer *placer, const Call *call, const Use *use, guint64 instance)
{
    const Operand *operand = use->operand;
    const guint tensor = operand->tensor;
    const Access access = operand_access(operand, call->first);
    const guint copy = operand_copy(placer->program, call, operand);
    const guint32 place = placer->happens->position[instance];
    Lifetime *lifetime = newest_lifetime(placer, tensor, copy);

    /* Writing one parameter of a unit's gradients does not end the life of the others. */
    if (lifetime == NULL ||
        (access == ACCESS_WRITE && (operand->param == WHOLE_TENSOR || lifetime->consumed)))
        start_lifetime(placer, tensor, copy, instance);
    else
        continue_lifetime(placer, lifetime);
    lifetime = newest_lifetime(placer, tensor, copy);
    lasts_of(placer, lifetime)[use->touch] = place;
    placer->newest_access[tensor * MAX_STREAMS + use->touch] = place;
    lifetime->consumed = access == ACCESS_READ && operand->param == WHOLE_TENSOR;
}

static void visit_step(Placer *placer, guint step)
{
    const Program *program = placer->program;

    for (guint c = 0; c < program->step.calls->len; c++) {
        const Call *call = &g_array_index(program->step.calls, Call, c);
        const guint64 start = step * placer->happens->ops_per_step + placer->happens->first_op[c];

        for (guint u = placer->first_use[call->segment]; u < placer->first_use[call->segment + 1];
             u++) {
            const Use *use = &g_array_index(placer->uses, Use, u);

            visit_use(placer, call, use, start + use->op);
        }
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

/* Which of the streams that touch the tensor that one is. */
static guint note_stream(Touching *touching, guint stream)
{
    for (guint i = 0; i < touching->num; i++)
        if (touching->stream[i] == stream)
            return i;
    touching->stream[touching->num] = (guint8)stream;
    return touching->num++;
}

static void list_uses(Placer *placer, const Segment *segment)
{
    for (guint i = 0; i < segment->num_ops; i++)
        for (guint o = 0; o < segment->ops[i].num_operands; o++) {
            const Operand *operand = &segment->ops[i].operands[o];
            Touching *touching = &placer->touching[operand->tensor];
            const Use use = {i, note_stream(touching, segment->ops[i].stream), operand};

            if (is_shared_memory(program_tensor(placer->program, operand->tensor)))
                g_array_append_val(placer->uses, use);
        }
}

static void find_uses(Placer *placer)
{
    const guint num = placer->program->segments->len;

    placer->touching = g_new0(Touching, placer->num_tensors);
    placer->uses = g_array_new(FALSE, FALSE, sizeof(Use));
    placer->first_use = g_new(guint, num + 1);
    for (guint s = 0; s < num; s++) {
        placer->first_use[s] = placer->uses->len;
        list_uses(placer, program_segment(placer->program, s));
    }
    placer->first_use[num] = placer->uses->len;
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
    placer->lasts = g_array_new(FALSE, TRUE, sizeof(guint32));
    placer->newest_access = g_new0(guint32, placer->num_tensors * MAX_STREAMS);
    placer->newest_start = g_new0(guint64, placer->num_tensors);
    placer->conflicts = g_new0(guint8, placer->num_tensors * placer->num_tensors);
    placer->always = g_new0(gboolean, placer->num_tensors);
    find_uses(placer);
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
    g_array_unref(placer->uses);
    g_free(placer->first_use);
    g_array_unref(placer->lifetimes);
    g_array_unref(placer->lasts);
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

/* What is alive when @started starts. */
typedef struct {
    const GArray *order; /* of tensors, the largest first */
    guint64 all_bytes;   /* of them */
    const guint32 *last; /* by tensor and stream that touches it: the newest access so far */
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
            !are_over(placer, t, &moment->last[t * MAX_STREAMS], moment->started->start - 1);
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

/* Looks at every start of a lifetime: between them nothing is added.  A tensor is alive while any
 * of its lifetimes that have started is not over; places on a stream are in order, so their newest
 * access there stands for all of them. */
static void find_peak(const Placer *placer, Peak *peak)
{
    g_autoptr(GArray) order = shared_by_extent(placer->program);
    g_autofree guint32 *last = g_new0(guint32, placer->num_tensors * MAX_STREAMS);
    g_autofree gboolean *alive = g_new(gboolean, placer->num_tensors);
    guint64 all_bytes = 0;

    for (guint i = 0; i < order->len; i++)
        all_bytes += placer->bytes[g_array_index(order, guint, i)];
    for (guint i = 0; i < placer->lifetimes->len; i++) {
        const Lifetime *started = lifetime_at(placer, i);
        const Moment moment = {order, all_bytes, last, started, alive};
        guint32 *own = &last[started->tensor * MAX_STREAMS];

        for (guint s = 0; s < placer->touching[started->tensor].num; s++)
            own[s] = MAX(own[s], lasts_of(placer, started)[s]);
        if (started->start > placer->happens->ops_per_step)
            note_peak(placer, &moment, peak);
    }
}

static const char *moment_name(const Placer *placer, guint64 instance)
{
    const Program *program = placer->program;
    const guint64 within = instance % MAX(placer->happens->ops_per_step, 1);

    for (guint c = 0; c < program->step.calls->len; c++)
        if (within < placer->happens->first_op[c + 1])
            return program_segment(program, g_array_index(program->step.calls, Call, c).segment)
                ->name;
    return "";
}

/* Of state, and of those @members (NULL: none) of the rest; all else of the arena counts as
 * workspace. */
static MemoryUse sum_terms(const Program *program, const gboolean *members)
{
    MemoryUse use = {.total = program->arena_bytes[TIER_DEVICE], .moment = ""};

    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);

        if (tensor->tier == TIER_DEVICE &&
            (!is_shared_memory(tensor) || (members != NULL && members[t])))
            use.term[tensor_term(tensor)] += tensor_bytes(program, tensor);
    }
    for (guint t = 0; t < NUM_MEMORY_TERMS; t++)
        use.live_peak += use.term[t];
    use.term[TERM_WORKSPACE] += use.total - use.live_peak; /* alignment and gaps */
    return use;
}

/* ---- all ---- */

static void place_tensors(Program *program, Placer *placer)
{
    guint64 *end = program->arena_bytes;

    place_state(program, end);
    placer_init(placer, program);
    end[TIER_DEVICE] = place_shared(placer, program, end[TIER_DEVICE]);
    program->memory = sum_terms(program, NULL);
}

static void sum_peak(Program *program, const Placer *placer)
{
    g_autofree gboolean *members = g_new0(gboolean, placer->num_tensors);
    Peak peak = {.members = members};

    find_peak(placer, &peak);
    program->memory = sum_terms(program, members);
    program->memory.moment = moment_name(placer, peak.instance);
}

void program_place(Program *program)
{
    Placer placer;

    place_tensors(program, &placer);
    sum_peak(program, &placer);
    placer_clear(&placer);
}

void program_place_tensors(Program *program)
{
    Placer placer;

    place_tensors(program, &placer);
    placer_clear(&placer);
}

void program_find_peak(Program *program)
{
    Placer placer;

    placer_init(&placer, program);
    sum_peak(program, &placer);
    placer_clear(&placer);
}

MemoryUse program_memory(const Program *program)
{
    return program->memory;
}
