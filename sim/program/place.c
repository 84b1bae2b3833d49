/* Lifetimes: a tensor copy is alive from a write to the last read before the next write.  Two
 * tensors conflict when a lifetime of a copy of one is not over, by happens-before, when a lifetime
 * of the other starts.  Offsets: state packed at the bottom, then the rest, the largest first, each
 * at the lowest offset where nothing that it conflicts with lies. */
#include "sim/program/place.h"

#include "sim/program/happens.h"

enum { STEPS = 2 }; /* the step followed by itself */

/* The newest lifetime of one tensor copy. */
typedef struct {
    guint64 start;             /* instance, plus one; 0 = not yet alive */
    guint64 last[MAX_STREAMS]; /* its newest access, by stream, plus one */
    gboolean consumed;         /* read as a whole: the next write, even of a part, starts anew */
} Lifetime;

/* A lifetime in positions of the compute stream: it may overlap ops first .. last. */
typedef struct {
    guint tensor;
    guint32 first, last;
} Interval;

typedef struct {
    const Program *program;
    Happens *happens;
    guint num_tensors;
    guint *first_copy;     /* by tensor; one past the end too */
    Lifetime *lifetimes;   /* by tensor copy */
    guint64 *newest_start; /* by tensor: its newest lifetime's start, plus one */
    guint8 *conflicts;     /* num_tensors squared */
    guint32 *done_by;      /* by instance: the compute position from which it is known to be done */
    GArray *intervals;     /* Interval, in the order in which they end being newest */
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

static gboolean lifetime_over(const Placer *placer, const Lifetime *lifetime, guint64 instance)
{
    for (guint s = 0; s < placer->happens->num_streams; s++)
        if (lifetime->last[s] != 0 &&
            !happens_before(placer->happens, lifetime->last[s] - 1, instance))
            return FALSE;
    return TRUE;
}

/* Ops of other streams may run from the last compute op that they wait for until the first compute
 * op that waits for them. */
static void note_interval(Placer *placer, guint tensor, const Lifetime *lifetime)
{
    const Happens *happens = placer->happens;
    const guint64 start = lifetime->start - 1;
    Interval interval = {.tensor = tensor};

    interval.first = happens->stream[start] == COMPUTE_STREAM
                         ? happens->position[start]
                         : happens->clock[start * happens->num_streams + COMPUTE_STREAM] + 1;
    for (guint s = 0; s < happens->num_streams; s++)
        if (lifetime->last[s] != 0)
            interval.last = MAX(interval.last, placer->done_by[lifetime->last[s] - 1] - 1);
    g_array_append_val(placer->intervals, interval);
}

/* A lifetime of @tensor starts: whatever is not over by then conflicts. */
static void start_lifetime(Placer *placer, guint tensor, guint copy, guint64 instance)
{
    Lifetime *lifetime = &placer->lifetimes[placer->first_copy[tensor] + copy];

    for (guint t = 0; t < placer->num_tensors; t++) {
        if (t == tensor || !is_shared_memory(program_tensor(placer->program, t)) ||
            placer->conflicts[tensor * placer->num_tensors + t])
            continue;
        for (guint c = placer->first_copy[t]; c < placer->first_copy[t + 1]; c++) {
            if (!lifetime_over(placer, &placer->lifetimes[c], instance)) {
                conflict(placer, tensor, t);
                break;
            }
        }
    }
    if (lifetime->start != 0)
        note_interval(placer, tensor, lifetime);
    *lifetime = (Lifetime){.start = instance + 1};
    placer->newest_start[tensor] = instance + 1;
}

/* A later access of a lifetime: whatever started in between overlaps it. */
static void continue_lifetime(Placer *placer, guint tensor, const Lifetime *lifetime)
{
    for (guint t = 0; t < placer->num_tensors; t++)
        if (t != tensor && placer->newest_start[t] > lifetime->start)
            conflict(placer, tensor, t);
}

static void visit_operand(Placer *placer, const Call *call, const Op *op, guint64 instance,
                          const Operand *operand)
{
    const Tensor *tensor = program_tensor(placer->program, operand->tensor);
    const Access access = operand_access(operand, call->first);

    if (!is_shared_memory(tensor))
        return;
    const guint copy = operand_copy(placer->program, call, operand);
    Lifetime *lifetime = &placer->lifetimes[placer->first_copy[operand->tensor] + copy];
    /* Writing one parameter of a unit's gradients does not end the life of the others. */
    if (lifetime->start == 0 ||
        (access == ACCESS_WRITE && (operand->param == WHOLE_TENSOR || lifetime->consumed)))
        start_lifetime(placer, operand->tensor, copy, instance);
    else
        continue_lifetime(placer, operand->tensor, lifetime);
    lifetime->last[op->stream] = instance + 1;
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
                const Interval always = {.tensor = segment->ops[i].operands[o].tensor,
                                         .last = G_MAXUINT32 - 1};

                if (!is_shared_memory(program_tensor(placer->program, always.tensor)))
                    continue;
                for (guint t = 0; t < placer->num_tensors; t++)
                    if (t != always.tensor)
                        conflict(placer, always.tensor, t);
                g_array_append_val(placer->intervals, always);
            }
    }
}

/* ---- analysis ---- */

/* done_by of compute ops is the position after their own. */
static void fill_done_by(Placer *placer)
{
    const Happens *happens = placer->happens;
    const guint64 instances = happens->ops_per_step * STEPS;
    guint64 next[MAX_STREAMS] = {0}; /* by stream: instances before it are known to be done */

    for (guint64 i = 0; i < instances; i++)
        placer->done_by[i] = G_MAXUINT32;
    for (guint64 c = 0; c < instances; c++) {
        if (happens->stream[c] != COMPUTE_STREAM)
            continue;
        placer->done_by[c] = happens->position[c] + 1;
        for (guint s = 1; s < happens->num_streams; s++) {
            const guint32 done = happens->clock[c * happens->num_streams + s];

            for (; next[s] < c; next[s]++) {
                if (happens->stream[next[s]] != s)
                    continue;
                if (happens->position[next[s]] > done)
                    break;
                placer->done_by[next[s]] = happens->position[c];
            }
        }
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
    placer->lifetimes = g_new0(Lifetime, copies);
    placer->newest_start = g_new0(guint64, placer->num_tensors);
    placer->conflicts = g_new0(guint8, placer->num_tensors * placer->num_tensors);
    placer->done_by = g_new(guint32, placer->happens->ops_per_step * STEPS);
    placer->intervals = g_array_new(FALSE, FALSE, sizeof(Interval));
    fill_done_by(placer);
    for (guint s = 0; s < STEPS; s++)
        visit_step(placer, s);
    visit_list(placer, &program->prologue);
    visit_list(placer, &program->epilogue);
    for (guint t = 0; t < placer->num_tensors; t++)
        for (guint c = placer->first_copy[t]; c < placer->first_copy[t + 1]; c++)
            if (placer->lifetimes[c].start != 0)
                note_interval(placer, t, &placer->lifetimes[c]);
}

static void placer_clear(Placer *placer)
{
    happens_free(placer->happens);
    g_free(placer->first_copy);
    g_free(placer->lifetimes);
    g_free(placer->newest_start);
    g_free(placer->conflicts);
    g_free(placer->done_by);
    g_array_unref(placer->intervals);
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

static gint by_offset(gconstpointer a, gconstpointer b, gpointer data)
{
    const Program *program = data;
    const guint64 left = program_tensor(program, *(const guint *)a)->offset;
    const guint64 right = program_tensor(program, *(const guint *)b)->offset;

    return left < right ? -1 : left > right;
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

/* The lowest aligned offset at or above @floor where no tensor of @placed that conflicts lies. */
static guint64 lowest_offset(const Placer *placer, GArray *placed, guint tensor,
                             guint64 floor_bytes)
{
    const Program *program = placer->program;
    const guint64 bytes = extent(program, program_tensor(program, tensor));
    guint64 offset = floor_bytes;

    g_array_sort_with_data(placed, by_offset, (gpointer)program);
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

static guint64 place_state(Program *program)
{
    guint64 end = 0;

    for (guint t = 0; t < program->tensors->len; t++) {
        Tensor *tensor = program_tensor(program, t);

        set_stride(program, tensor);
        if (is_shared_memory(tensor))
            continue;
        tensor->offset = end;
        end = aligned(end + extent(program, tensor));
    }
    return end;
}

void program_place(Program *program)
{
    Placer placer;
    g_autoptr(GArray) order = g_array_new(FALSE, FALSE, sizeof(guint));
    g_autoptr(GArray) placed = g_array_new(FALSE, FALSE, sizeof(guint));
    const guint64 floor_bytes = place_state(program);
    guint64 end = floor_bytes;

    placer_init(&placer, program);
    for (guint t = 0; t < program->tensors->len; t++)
        if (is_shared_memory(program_tensor(program, t)))
            g_array_append_val(order, t);
    g_array_sort_with_data(order, by_extent, program);
    for (guint i = 0; i < order->len; i++) {
        const guint t = g_array_index(order, guint, i);
        Tensor *tensor = program_tensor(program, t);

        tensor->offset = lowest_offset(&placer, placed, t, floor_bytes);
        g_array_append_val(placed, t);
        end = MAX(end, aligned(tensor->offset + extent(program, tensor)));
    }
    program->arena_bytes[TIER_DEVICE] = end;
    placer_clear(&placer);
}

/* ---- the peak ---- */

static gint by_tensor_then_first(gconstpointer a, gconstpointer b)
{
    const Interval *left = a, *right = b;

    if (left->tensor != right->tensor)
        return left->tensor < right->tensor ? -1 : 1;
    return left->first < right->first ? -1 : left->first > right->first;
}

/* Adds a tensor's bytes over each maximal run of compute positions in which any copy of it is
 * alive. */
static void add_live_bytes(Placer *placer, gint64 *delta, guint32 num_positions)
{
    GArray *intervals = placer->intervals;

    g_array_sort(intervals, by_tensor_then_first);
    for (guint i = 0; i < intervals->len;) {
        Interval run = g_array_index(intervals, Interval, i);
        const gint64 bytes =
            (gint64)tensor_bytes(placer->program, program_tensor(placer->program, run.tensor));

        for (i++; i < intervals->len; i++) {
            const Interval *next = &g_array_index(intervals, Interval, i);

            if (next->tensor != run.tensor || next->first > run.last)
                break;
            run.last = MAX(run.last, next->last);
        }
        delta[MIN(run.first, num_positions - 1)] += bytes;
        if (run.last + 1 < num_positions)
            delta[run.last + 1] -= bytes;
    }
}

/* Looks at the second repetition, which is a steady one. */
static guint32 peak_position(const gint64 *delta, guint32 num_positions)
{
    gint64 live = 0, best = -1;
    guint32 at = num_positions / 2;

    for (guint32 p = 0; p < num_positions; p++) {
        live += delta[p];
        if (p > num_positions / 2 && live > best) {
            best = live;
            at = p;
        }
    }
    return at;
}

static const char *moment_name(const Placer *placer, guint32 position)
{
    const Program *program = placer->program;
    const Happens *happens = placer->happens;

    for (guint c = 0; c < program->step.calls->len; c++) {
        const Call *call = &g_array_index(program->step.calls, Call, c);
        const guint64 start = happens->ops_per_step + happens->first_op[c];
        const guint64 end = happens->ops_per_step + happens->first_op[c + 1];

        for (guint64 i = start; i < end; i++)
            if (happens->stream[i] == COMPUTE_STREAM && happens->position[i] >= position)
                return program_segment(program, call->segment)->name;
    }
    return "";
}

/* Counts a tensor once even when several of its intervals cover @position. */
static void count_terms(const Placer *placer, guint32 position, MemoryUse *use)
{
    const Program *program = placer->program;
    gint64 counted = -1;

    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);

        if (!is_shared_memory(tensor))
            use->term[tensor_term(tensor)] += tensor_bytes(program, tensor);
    }
    for (guint i = 0; i < placer->intervals->len; i++) {
        const Interval *interval = &g_array_index(placer->intervals, Interval, i);
        const Tensor *tensor = program_tensor(program, interval->tensor);

        if (counted == interval->tensor || position < interval->first || position > interval->last)
            continue;
        counted = interval->tensor;
        use->term[tensor_term(tensor)] += tensor_bytes(program, tensor);
    }
}

MemoryUse program_memory(const Program *program)
{
    Placer placer;
    MemoryUse use = {.total = program->arena_bytes[TIER_DEVICE]};

    placer_init(&placer, program);
    guint32 num_positions = 2;
    for (guint64 i = 0; i < placer.happens->ops_per_step * STEPS; i++)
        if (placer.happens->stream[i] == COMPUTE_STREAM)
            num_positions = placer.happens->position[i] + 1;
    g_autofree gint64 *delta = g_new0(gint64, num_positions);
    add_live_bytes(&placer, delta, num_positions);
    const guint32 position = peak_position(delta, num_positions);
    count_terms(&placer, position, &use);
    use.moment = moment_name(&placer, position);
    for (guint t = 0; t < NUM_MEMORY_TERMS; t++)
        use.live_peak += use.term[t];
    use.term[TERM_WORKSPACE] += use.total - use.live_peak; /* alignment and gaps */
    placer_clear(&placer);
    return use;
}
