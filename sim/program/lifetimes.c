#include "sim/program/lifetimes.h"

#include "sim/program/pattern.h"

enum { STEPS = 2 }; /* the step followed by itself */

/* An operand that may share memory. */
typedef struct {
    guint op;            /* of the segment */
    guint stream, touch; /* of the op: which of those that touch the tensor it is */
    const Operand *operand;
} Use;

static guint64 *conflicts_of(const Lifetimes *lives, guint tensor)
{
    return &lives->conflicts[tensor * lives->words];
}

static void conflict(Lifetimes *lives, guint a, guint b)
{
    conflicts_of(lives, a)[b / 64] |= G_GUINT64_CONSTANT(1) << b % 64;
    conflicts_of(lives, b)[a / 64] |= G_GUINT64_CONSTANT(1) << a % 64;
}

gboolean lifetimes_are_over(const Lifetimes *lives, guint tensor, const guint32 *last,
                            guint64 instance)
{
    const Touching *touching = &lives->touching[tensor];

    for (guint i = 0; i < touching->num; i++)
        if (last[i] > happens_known(lives->happens, instance, touching->stream[i]))
            return FALSE;
    return TRUE;
}

/* Places on a stream are in order, so its newest access of any copy stands for all of them. */
static gboolean all_over(const Lifetimes *lives, guint tensor, guint64 instance)
{
    return lifetimes_are_over(lives, tensor, &lives->newest_access[tensor * MAX_STREAMS], instance);
}

/* What is over for one op of a stream is over for the later ones, until it is touched again. */
static void note_access(Lifetimes *lives, guint tensor)
{
    const guint64 bit = G_GUINT64_CONSTANT(1) << tensor % 64;

    for (guint32 left = lives->streams & ~lives->is_unsure[tensor]; left != 0; left &= left - 1)
        lives->unsure[(guint)__builtin_ctz(left) * lives->words + tensor / 64] |= bit;
    lives->is_unsure[tensor] = lives->streams;
}

/* A lifetime of @tensor starts on @stream: whatever is not over by then conflicts.  Of what is
 * known to conflict nothing is asked. */
static void compare_start(Lifetimes *lives, guint tensor, guint stream, guint64 instance)
{
    const guint64 *known = conflicts_of(lives, tensor);
    guint64 *unsure = &lives->unsure[stream * lives->words];

    for (guint w = 0; w < lives->words; w++)
        for (guint64 left = unsure[w] & ~known[w]; left != 0; left &= left - 1) {
            const guint other = w * 64 + (guint)__builtin_ctzll(left);

            if (!all_over(lives, other, instance)) {
                if (other != tensor)
                    conflict(lives, tensor, other);
                continue;
            }
            unsure[w] &= ~(left & -left);
            lives->is_unsure[other] &= ~(1u << stream);
        }
}

static void note_start(Lifetimes *lives, guint tensor)
{
    lives->newest_start[tensor] = ++lives->starts;
    lives->started[tensor / 64] |= G_GUINT64_CONSTANT(1) << tensor % 64;
}

static Lifetime *lifetime_at(const Lifetimes *lives, guint i)
{
    return &g_array_index(lives->list, Lifetime, i);
}

/* NULL: it has not lived yet. */
static Lifetime *newest_lifetime(const Lifetimes *lives, guint tensor, guint copy)
{
    const guint newest = lives->newest[lives->first_copy[tensor] + copy];

    return newest == 0 ? NULL : lifetime_at(lives, newest - 1);
}

/* Only the peak asks for those that are over. */
static Lifetime *start_lifetime(Lifetimes *lives, guint tensor, guint copy, guint64 instance)
{
    Lifetime *lifetime = lives->finds_peak ? NULL : newest_lifetime(lives, tensor, copy);

    note_start(lives, tensor);
    if (lifetime == NULL) {
        const Lifetime added = {.tensor = tensor, .first_last = lives->lasts->len};

        g_array_append_val(lives->list, added);
        g_array_set_size(lives->lasts, lives->lasts->len + lives->touching[tensor].num);
        lives->newest[lives->first_copy[tensor] + copy] = lives->list->len;
        lifetime = lifetime_at(lives, lives->list->len - 1);
    }
    lifetime->start = instance + 1;
    lifetime->compared = lives->starts;
    return lifetime;
}

/* A later access of a lifetime: whatever started in between overlaps it. */
static void continue_lifetime(Lifetimes *lives, Lifetime *lifetime)
{
    const guint64 *known = conflicts_of(lives, lifetime->tensor);

    if (lifetime->compared == lives->starts)
        return;
    for (guint w = 0; w < lives->words; w++)
        for (guint64 left = lives->started[w] & ~known[w]; left != 0; left &= left - 1) {
            const guint other = w * 64 + (guint)__builtin_ctzll(left);

            if (lives->newest_start[other] > lifetime->compared && other != lifetime->tensor)
                conflict(lives, lifetime->tensor, other);
        }
    lifetime->compared = lives->starts;
}

static void note_place(Lifetimes *lives, const Lifetime *lifetime, const Use *use, guint32 place)
{
    guint32 *newest = &lives->newest_access[lifetime->tensor * MAX_STREAMS + use->touch];
    const guint32 per_step = lives->happens->per_step[use->stream];

    if (*newest == 0)
        lives->strangers++;
    if (*newest <= per_step && place > per_step)
        lives->strangers--;
    *newest = place;
    lifetimes_lasts(lives, lifetime)[use->touch] = place;
    note_access(lives, lifetime->tensor);
}

static void visit_use(Lifetimes *lives, const Call *call, const Use *use, guint64 instance)
{
    const Operand *operand = use->operand;
    const guint tensor = operand->tensor;
    const Access access = operand_access(operand, call->first);
    const gboolean writes_all = access == ACCESS_WRITE && operand->param == WHOLE_TENSOR;
    const guint copy = operand_copy(lives->program, call, operand);
    Lifetime *lifetime = newest_lifetime(lives, tensor, copy);

    /* Writing one parameter of a unit's gradients does not end the life of the others. */
    if (lifetime == NULL || writes_all || (access == ACCESS_WRITE && lifetime->consumed)) {
        lives->carries |= lifetime == NULL && !writes_all;
        compare_start(lives, tensor, use->stream, instance);
        lifetime = start_lifetime(lives, tensor, copy, instance);
    } else {
        continue_lifetime(lives, lifetime);
    }
    note_place(lives, lifetime, use, lives->happens->position[instance]);
    lifetime->consumed = access == ACCESS_READ && operand->param == WHOLE_TENSOR;
}

static void visit_call(Lifetimes *lives, guint step, guint c)
{
    const Call *call = &g_array_index(lives->program->step.calls, Call, c);
    const guint64 start = step * lives->happens->ops_per_step + lives->happens->first_op[c];
    const guint end = lives->first_use[call->segment + 1];

    happens_fill_call(lives->happens, step, c);
    for (guint u = lives->first_use[call->segment]; u < end; u++) {
        const Use *use = &g_array_index(lives->uses, Use, u);

        visit_use(lives, call, use, start + use->op);
    }
}

/* Tensors conflict within the second repetition only where they do within the first, which knows
 * of fewer waits; so it can end once nothing of the first is the newest any more. */
static void visit_steps(Lifetimes *lives)
{
    const guint num_calls = lives->program->step.calls->len;

    for (guint c = 0; c < num_calls; c++)
        visit_call(lives, 0, c);
    for (guint c = 0;
         c < num_calls && (lives->finds_peak || lives->carries || lives->strangers > 0); c++)
        visit_call(lives, 1, c);
}

/* What the prologue or the epilogue touches shares memory with nothing: they run between steps,
 * when any tensor of the step may hold what the next one reads. */
static void visit_list(Lifetimes *lives, const CallList *list)
{
    for (guint c = 0; c < list->calls->len; c++) {
        const Segment *segment =
            program_segment(lives->program, g_array_index(list->calls, Call, c).segment);

        for (guint i = 0; i < segment->num_ops; i++)
            for (guint o = 0; o < segment->ops[i].num_operands; o++) {
                const guint tensor = segment->ops[i].operands[o].tensor;

                lives->always[tensor] = is_shared_memory(program_tensor(lives->program, tensor));
                for (guint t = 0; lives->always[tensor] && t < lives->num_tensors; t++)
                    if (t != tensor)
                        conflict(lives, tensor, t);
            }
    }
}

/* ---- all ---- */

/* Which of the streams that touch the tensor that one is. */
static guint note_stream(Touching *touching, guint stream)
{
    for (guint i = 0; i < touching->num; i++)
        if (touching->stream[i] == stream)
            return i;
    touching->stream[touching->num] = (guint8)stream;
    return touching->num++;
}

static void list_uses(Lifetimes *lives, const Segment *segment)
{
    for (guint i = 0; i < segment->num_ops; i++)
        for (guint o = 0; o < segment->ops[i].num_operands; o++) {
            const Operand *operand = &segment->ops[i].operands[o];
            Touching *touching = &lives->touching[operand->tensor];
            const guint stream = segment->ops[i].stream;
            const Use use = {i, stream, note_stream(touching, stream), operand};

            if (!is_shared_memory(program_tensor(lives->program, operand->tensor)))
                continue;
            g_array_append_val(lives->uses, use);
            lives->streams |= 1u << stream;
        }
}

static void find_uses(Lifetimes *lives)
{
    const guint num = lives->program->segments->len;

    lives->touching = g_new0(Touching, lives->num_tensors);
    lives->uses = g_array_new(FALSE, FALSE, sizeof(Use));
    lives->first_use = g_new(guint, num + 1);
    for (guint s = 0; s < num; s++) {
        lives->first_use[s] = lives->uses->len;
        list_uses(lives, program_segment(lives->program, s));
    }
    lives->first_use[num] = lives->uses->len;
}

static void find_lifetimes(Lifetimes *lives)
{
    const Program *program = lives->program;
    guint copies = 0;

    lives->happens = happens_new(program, STEPS);
    lives->first_copy = g_new(guint, lives->num_tensors + 1);
    for (guint t = 0; t < lives->num_tensors; t++) {
        lives->first_copy[t] = copies;
        copies += tensor_num_copies(program, program_tensor(program, t));
    }
    lives->first_copy[lives->num_tensors] = copies;
    lives->list = g_array_new(FALSE, FALSE, sizeof(Lifetime));
    lives->newest = g_new0(guint, copies);
    lives->lasts = g_array_new(FALSE, TRUE, sizeof(guint32));
    lives->newest_access = g_new0(guint32, lives->num_tensors * MAX_STREAMS);
    lives->always = g_new0(gboolean, lives->num_tensors);
    find_uses(lives);
    lives->newest_start = g_new0(guint, lives->num_tensors);
    lives->started = g_new0(guint64, lives->words);
    lives->unsure = g_new0(guint64, program->streams->len * lives->words);
    lives->is_unsure = g_new0(guint32, lives->num_tensors);
    visit_steps(lives);
    visit_list(lives, &program->prologue);
    visit_list(lives, &program->epilogue);
}

/* Conflicts are the pattern's, if they are all that is wanted. */
void lifetimes_init(Lifetimes *lives, const Program *program, gboolean finds_peak)
{
    Pattern *pattern = finds_peak ? NULL : program->pattern;

    *lives = (Lifetimes){.program = program,
                         .num_tensors = program->tensors->len,
                         .words = (program->tensors->len + 63) / 64,
                         .finds_peak = finds_peak};
    const gsize words = (gsize)lives->num_tensors * lives->words;
    lives->conflicts = g_new0(guint64, words);
    if (pattern != NULL && pattern_copy_conflicts(pattern, lives->conflicts, words))
        return;
    find_lifetimes(lives);
    if (pattern != NULL)
        pattern_keep_conflicts(pattern, lives->conflicts, words);
}

static void array_clear(GArray *array)
{
    if (array != NULL)
        g_array_unref(array);
}

void lifetimes_clear(Lifetimes *lives)
{
    happens_free(lives->happens);
    g_free(lives->first_copy);
    array_clear(lives->uses);
    g_free(lives->first_use);
    array_clear(lives->list);
    array_clear(lives->lasts);
    g_free(lives->newest);
    g_free(lives->newest_access);
    g_free(lives->newest_start);
    g_free(lives->conflicts);
    g_free(lives->always);
    g_free(lives->started);
    g_free(lives->unsure);
    g_free(lives->is_unsure);
    g_free(lives->touching);
}
