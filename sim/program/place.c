/* Offsets: state packed at the bottom, then the rest, the largest first, each at the lowest offset
 * where nothing that it conflicts with lies. */
#include "sim/program/place.h"

#include "sim/program/moments.h"

#include <string.h>

/* ---- offsets ---- */

static guint64 aligned(guint64 bytes)
{
    return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

/* Every copy is aligned; what that costs counts as workspace, so that state terms are exact to the
 * byte. */
static guint64 stride_of(const Program *program, const Tensor *tensor)
{
    const guint count = tensor_num_copies(program, tensor);
    const guint64 bytes = tensor_copy_bytes(tensor);

    return count > 1 ? aligned(bytes) : bytes;
}

static guint64 extent(const Program *program, const Tensor *tensor)
{
    return tensor->stride * tensor_num_copies(program, tensor);
}

static gint by_extent(gconstpointer a, gconstpointer b, gpointer extents)
{
    const guint left = *(const guint *)a, right = *(const guint *)b;
    const guint64 *bytes = extents;

    if (bytes[left] != bytes[right])
        return bytes[left] > bytes[right] ? -1 : 1;
    return (gint)left - (gint)right;
}

/* Strides need not be set yet. */
GArray *program_shared_by_extent(const Program *program)
{
    GArray *order = g_array_new(FALSE, FALSE, sizeof(guint));
    g_autofree guint64 *extents = g_new(guint64, program->tensors->len);

    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);
        const guint count = tensor_num_copies(program, tensor);

        extents[t] = stride_of(program, tensor) * count;
        if (is_shared_memory(tensor))
            g_array_append_val(order, t);
    }
    g_array_sort_with_data(order, by_extent, extents);
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

        tensor->stride = stride_of(program, tensor);
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

static gboolean is_member(const guint64 *members, guint tensor)
{
    return members != NULL && (members[tensor / 64] >> tensor % 64 & 1) != 0;
}

/* Of state, and of those @members (bits; NULL: none) of the rest; all else of the arena counts as
 * workspace. */
static MemoryUse sum_terms(const Program *program, const guint64 *members)
{
    MemoryUse use = {.total = program->arena_bytes[TIER_DEVICE], .moment = ""};

    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);

        if (tensor->tier == TIER_DEVICE && (!is_shared_memory(tensor) || is_member(members, t)))
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

/* Takes conflicts. */
static void sum_peak(Program *program, Lifetimes *lives)
{
    g_autoptr(Moments) moments = moments_of(lives);
    const MomentsPeak peak = moments_peak(moments, program, ANY_PHASE);

    program->memory = sum_terms(program, peak.members);
    if (peak.bytes > 0)
        program->memory.moment = program_segment(program, peak.segment)->name;
    g_free(peak.members);
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
    g_autoptr(Moments) moments = moments_new(program);

    for (gint phase = 0; phase < NUM_PHASES; phase++) {
        const MomentsPeak peak = moments_peak(moments, program, phase);

        peak_bytes[phase] = program_state_bytes(program) + peak.bytes;
        g_free(peak.members);
    }
}
