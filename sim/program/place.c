/* Offsets: state packed at the bottom, then the rest, the largest first, each at the lowest offset
 * where nothing that it conflicts with lies. */
#include "sim/program/place.h"

#include "sim/program/lifetimes.h"

#include <string.h>

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

/* The same before it is placed. */
static guint64 extent_of(const Program *program, const Tensor *tensor)
{
    const guint count = g_array_index(program->spaces, Space, tensor->space).count;
    const guint64 bytes = tensor_copy_bytes(tensor);

    return count > 1 ? count * aligned(bytes) : bytes;
}

static gint by_extent(gconstpointer a, gconstpointer b, gpointer data)
{
    const Program *program = data;
    const guint64 left = extent_of(program, program_tensor(program, *(const guint *)a));
    const guint64 right = extent_of(program, program_tensor(program, *(const guint *)b));

    if (left != right)
        return left > right ? -1 : 1;
    return (gint) * (const guint *)a - (gint) * (const guint *)b;
}

GArray *program_shared_by_extent(const Program *program)
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
static guint64 lowest_offset(const Lifetimes *lives, const GArray *placed, guint tensor,
                             guint64 floor_bytes)
{
    const Program *program = lives->program;
    const guint64 bytes = extent(program, program_tensor(program, tensor));
    guint64 offset = floor_bytes;

    for (guint i = 0; i < placed->len; i++) {
        const guint other = g_array_index(placed, guint, i);
        const Tensor *there = program_tensor(program, other);

        if (!lifetimes_conflict(lives, tensor, other))
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
static guint64 place_in_order(const Lifetimes *lives, Program *program, const GArray *order,
                              guint64 floor_bytes)
{
    g_autoptr(GArray) placed = g_array_new(FALSE, FALSE, sizeof(guint));
    guint64 end = floor_bytes;

    for (guint i = 0; i < order->len; i++) {
        const guint t = g_array_index(order, guint, i);
        Tensor *tensor = program_tensor(program, t);

        tensor->offset = lowest_offset(lives, placed, t, floor_bytes);
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
static guint64 place_shared(const Lifetimes *lives, Program *program, guint64 floor_bytes)
{
    enum { TRIES = 100, LARGER = 24 };
    g_autoptr(GArray) order = program_shared_by_extent(program);
    const guint num = MIN(order->len, LARGER);
    guint64 best = place_in_order(lives, program, order, floor_bytes);
    guint32 drawn = 1;

    for (guint try = 0; num > 0 && try < TRIES; try++) {
        drawn = drawn * 1664525u + 1013904223u;
        const guint a = (drawn >> 8) % num, b = (drawn >> 20) % num;

        swap(order, a, b);
        const guint64 end = place_in_order(lives, program, order, floor_bytes);
        if (end > best)
            swap(order, a, b);
        best = MIN(best, end);
    }
    return place_in_order(lives, program, order, floor_bytes);
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
static guint64 sum_members(const Lifetimes *lives, const GArray *order, const gboolean *alive,
                           guint first, gboolean *members)
{
    g_autofree guint *included = g_new(guint, order->len);
    guint num = 1;
    guint64 bytes = lives->bytes[first];

    included[0] = first;
    members[first] = TRUE;
    for (guint i = 0; i < order->len; i++) {
        const guint t = g_array_index(order, guint, i);
        gboolean together = alive[t] && t != first;

        for (guint m = 0; together && m < num; m++)
            together = lifetimes_conflict(lives, t, included[m]);
        if (!together)
            continue;
        members[t] = TRUE;
        included[num++] = t;
        bytes += lives->bytes[t];
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
static gboolean find_alive(const Lifetimes *lives, const Moment *moment, guint64 bytes)
{
    guint64 most = moment->all_bytes;

    for (guint i = 0; i < moment->order->len && most > bytes; i++) {
        const guint t = g_array_index(moment->order, guint, i);

        moment->alive[t] = t == moment->started->tensor || lives->always[t] ||
                           !lifetimes_are_over(lives, t, &moment->last[t * MAX_STREAMS],
                                               moment->started->start - 1);
        most -= moment->alive[t] ? 0 : lives->bytes[t];
    }
    return most > bytes;
}

static void note_peak(const Lifetimes *lives, const Moment *moment, Peak *peak)
{
    if (!find_alive(lives, moment, peak->bytes))
        return;
    g_autofree gboolean *members = g_new0(gboolean, lives->num_tensors);
    const guint64 bytes =
        sum_members(lives, moment->order, moment->alive, moment->started->tensor, members);
    if (bytes <= peak->bytes)
        return;
    peak->bytes = bytes;
    peak->instance = moment->started->start - 1;
    memcpy(peak->members, members, lives->num_tensors * sizeof *members);
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

static const Segment *segment_at(const Lifetimes *lives, guint64 instance)
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
    return program_segment(program, g_array_index(program->step.calls, Call, from).segment);
}

/* Looks at every start of a lifetime: between them nothing is added.  A tensor is alive while any
 * of its lifetimes that have started is not over; places on a stream are in order, so their newest
 * access there stands for all of them. */
static void find_peak(const Lifetimes *lives, gint phase, Peak *peak)
{
    g_autoptr(GArray) order = program_shared_by_extent(lives->program);
    g_autofree guint32 *last = g_new0(guint32, lives->num_tensors * MAX_STREAMS);
    g_autofree gboolean *alive = g_new(gboolean, lives->num_tensors);
    guint64 all_bytes = 0;

    for (guint i = 0; i < order->len; i++)
        all_bytes += lives->bytes[g_array_index(order, guint, i)];
    for (guint i = 0; i < lives->list->len; i++) {
        const Lifetime *started = &g_array_index(lives->list, Lifetime, i);
        const Moment moment = {order, all_bytes, last, started, alive};
        guint32 *own = &last[started->tensor * MAX_STREAMS];

        for (guint s = 0; s < lives->touching[started->tensor].num; s++)
            own[s] = MAX(own[s], lifetimes_lasts(lives, started)[s]);
        if (started->start > lives->happens->ops_per_step &&
            (phase == ANY_PHASE ||
             (gint)segment_phase(segment_at(lives, started->start - 1)) == phase))
            note_peak(lives, &moment, peak);
    }
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

static void place_tensors(Program *program, Lifetimes *lives, gboolean finds_peak)
{
    guint64 *end = program->arena_bytes;

    place_state(program, end);
    lifetimes_init(lives, program, finds_peak);
    end[TIER_DEVICE] = place_shared(lives, program, end[TIER_DEVICE]);
    program->memory = sum_terms(program, NULL);
}

static void sum_peak(Program *program, const Lifetimes *lives)
{
    g_autofree gboolean *members = g_new0(gboolean, lives->num_tensors);
    Peak peak = {.members = members};

    find_peak(lives, ANY_PHASE, &peak);
    program->memory = sum_terms(program, members);
    if (lives->happens->ops_per_step > 0)
        program->memory.moment = segment_at(lives, peak.instance)->name;
}

void program_place(Program *program)
{
    Lifetimes lives;

    place_tensors(program, &lives, TRUE);
    sum_peak(program, &lives);
    lifetimes_clear(&lives);
}

void program_place_tensors(Program *program)
{
    Lifetimes lives;

    place_tensors(program, &lives, FALSE);
    lifetimes_clear(&lives);
}

void program_find_peak(Program *program)
{
    Lifetimes lives;

    lifetimes_init(&lives, program, TRUE);
    sum_peak(program, &lives);
    lifetimes_clear(&lives);
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
    Lifetimes lives;

    lifetimes_init(&lives, program, TRUE);
    for (gint phase = 0; phase < NUM_PHASES; phase++) {
        g_autofree gboolean *members = g_new0(gboolean, lives.num_tensors);
        Peak peak = {.members = members};

        find_peak(&lives, phase, &peak);
        peak_bytes[phase] = program_state_bytes(program) + peak.bytes;
    }
    lifetimes_clear(&lives);
}
