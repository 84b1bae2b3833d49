#include "exec/run/arena_guard.h"

#include "sim/base/error.h"
#include "sim/program/place.h"

#include <string.h>

enum { PAD_BYTES = 4 * ARENA_ALIGNMENT };

static const guint16 DEAD = 0xFFA7; /* not what an arena starts with, so it counts as touched */

/* Bytes of no tensor. */
typedef struct {
    guint64 begin, end;
    gint before, after; /* tensors next to it, or NO_TENSOR */
} Gap;

/* One copy of a tensor, where it lies now. */
typedef struct {
    guint64 begin, end;
    guint tensor;
} Range;

struct ArenaGuard {
    const Program *program;
    Tier tier;
    guint8 *arena;
    guint32 canary;
    guint64 bytes;
    guint64 *offset; /* by tensor */
    GArray *gaps;    /* Gap */
};

static gint by_begin(gconstpointer a, gconstpointer b)
{
    const Range *left = a, *right = b;

    return left->begin < right->begin ? -1 : left->begin > right->begin;
}

/* Tensors with all their copies, in the order of the program's offsets. */
static GArray *sorted_tensors(const ArenaGuard *guard)
{
    const Program *program = guard->program;
    GArray *ranges = g_array_new(FALSE, FALSE, sizeof(Range));

    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);
        const Range range = {tensor->offset,
                             tensor->offset + tensor->stride * tensor_num_copies(program, tensor),
                             t};

        if (tensor->tier == guard->tier)
            g_array_append_val(ranges, range);
    }
    g_array_sort(ranges, by_begin);
    return ranges;
}

/* Tensors that overlap, also by way of others, keep their distances. */
static void move_apart(ArenaGuard *guard)
{
    g_autoptr(GArray) ranges = sorted_tensors(guard);
    guint64 end = 0, shift = PAD_BYTES;

    for (guint i = 0; i < ranges->len; i++) {
        const Range *range = &g_array_index(ranges, Range, i);

        if (i > 0 && range->begin >= end)
            shift += PAD_BYTES;
        guard->offset[range->tensor] = range->begin + shift;
        end = MAX(end, range->end);
    }
    guard->bytes = MAX(end, guard->program->arena_bytes[guard->tier]) + shift + PAD_BYTES;
}

static GArray *sorted_copies(const ArenaGuard *guard)
{
    GArray *ranges = g_array_new(FALSE, FALSE, sizeof(Range));

    for (guint t = 0; t < guard->program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(guard->program, t);

        for (guint c = 0; c < tensor_num_copies(guard->program, tensor); c++) {
            const guint64 begin = guard->offset[t] + c * tensor->stride;
            const Range range = {begin, begin + tensor_copy_bytes(tensor), t};

            if (tensor->tier == guard->tier && range.end > range.begin)
                g_array_append_val(ranges, range);
        }
    }
    g_array_sort(ranges, by_begin);
    return ranges;
}

static void find_gaps(ArenaGuard *guard)
{
    g_autoptr(GArray) ranges = sorted_copies(guard);
    Gap gap = {.before = NO_TENSOR};

    for (guint i = 0; i < ranges->len; i++) {
        const Range *range = &g_array_index(ranges, Range, i);

        gap.end = range->begin;
        gap.after = (gint)range->tensor;
        if (gap.end > gap.begin)
            g_array_append_val(guard->gaps, gap);
        if (range->end > gap.begin) {
            gap.begin = range->end;
            gap.before = (gint)range->tensor;
        }
    }
    gap.end = guard->bytes;
    gap.after = NO_TENSOR;
    g_array_append_val(guard->gaps, gap);
}

ArenaGuard *arena_guard_new(const Program *program, Tier tier)
{
    ArenaGuard *guard = g_new0(ArenaGuard, 1);

    guard->program = program;
    guard->tier = tier;
    guard->offset = g_new0(guint64, program->tensors->len);
    guard->gaps = g_array_new(FALSE, FALSE, sizeof(Gap));
    move_apart(guard);
    find_gaps(guard);
    return guard;
}

void arena_guard_free(ArenaGuard *guard)
{
    if (guard == NULL)
        return;
    g_free(guard->offset);
    g_array_unref(guard->gaps);
    g_free(guard);
}

guint64 arena_guard_bytes(const ArenaGuard *guard)
{
    return guard->bytes;
}

guint64 arena_guard_offset(const ArenaGuard *guard, guint tensor)
{
    return guard->offset[tensor];
}

void arena_guard_attach(ArenaGuard *guard, guint8 *arena, guint32 canary)
{
    guard->arena = arena;
    guard->canary = canary;
}

/* ---- bytes ---- */

static guint8 *copy_at(const ArenaGuard *guard, guint tensor, guint copy, guint64 *bytes)
{
    const Tensor *at = program_tensor(guard->program, tensor);

    *bytes = tensor_copy_bytes(at);
    return guard->arena + guard->offset[tensor] + copy * at->stride;
}

/* The first byte that is not as in @pattern again and again, or @bytes.  What repeats is equal to
 * itself one pattern further. */
static guint64 first_other(const guint8 *from, guint64 bytes, gconstpointer pattern, gsize period)
{
    const guint64 head = MIN(bytes, period);
    guint64 at = 0;

    if (memcmp(from, pattern, head) == 0 && memcmp(from, from + head, bytes - head) == 0)
        return bytes;
    while (from[at] == ((const guint8 *)pattern)[at % period])
        at++;
    return at;
}

void arena_guard_poison(ArenaGuard *guard, guint tensor, guint copy)
{
    guint64 bytes, done = sizeof DEAD;
    guint8 *at = copy_at(guard, tensor, copy, &bytes);

    memcpy(at, &DEAD, MIN(bytes, done));
    for (; done < bytes; done *= 2)
        memcpy(at + done, at, MIN(done, bytes - done));
}

gboolean arena_guard_is_poison(const ArenaGuard *guard, guint tensor, guint copy, guint64 *at)
{
    guint64 bytes;
    const guint8 *from = copy_at(guard, tensor, copy, &bytes);

    *at = first_other(from, bytes, &DEAD, sizeof DEAD);
    return *at == bytes;
}

static const char *name_of(const ArenaGuard *guard, gint tensor, const char *none)
{
    return tensor == NO_TENSOR ? none : program_tensor(guard->program, (guint)tensor)->name;
}

gboolean arena_guard_check(const ArenaGuard *guard, GError **error)
{
    for (guint g = 0; g < guard->gaps->len; g++) {
        const Gap *gap = &g_array_index(guard->gaps, Gap, g);
        const gsize period = sizeof guard->canary, turn = gap->begin % period;
        guint8 canary[2 * sizeof guard->canary];

        memcpy(canary, &guard->canary, period);
        memcpy(canary + period, &guard->canary, period);
        const guint64 bytes = gap->end - gap->begin;
        const guint64 at = first_other(guard->arena + gap->begin, bytes, canary + turn, period);
        if (at < bytes)
            return fail(error, ERROR_RUNTIME,
                        "byte %" G_GUINT64_FORMAT
                        " between %s and %s was written: %" G_GUINT64_FORMAT
                        " bytes behind the end of the one, %" G_GUINT64_FORMAT
                        " before the start of the other",
                        gap->begin + at, name_of(guard, gap->before, "the start of the arena"),
                        name_of(guard, gap->after, "the end of the arena"), at, bytes - at);
    }
    return TRUE;
}
