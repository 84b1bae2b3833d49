#include "exec/run/checker.h"

#include "exec/base/random.h"
#include "exec/run/op_number.h"
#include "sim/base/error.h"
#include "sim/program/written.h"

#include <string.h>

/* The newest access of a stream. */
typedef struct {
    guint64 position; /* on its stream, from 1; 0 = none */
    guint64 at;       /* progress_at() of the op */
} Touch;

/* One copy of a tensor. */
typedef struct {
    guint tensor, copy;
    guint64 begin, end;       /* in the program's arenas, one behind the other */
    GArray *overlaps;         /* guint: places that share bytes with it, itself first */
    Touch touch[MAX_STREAMS]; /* newest access */
    Touch write[MAX_STREAMS]; /* newest write */
    guint64 written;          /* written.h */
    guint64 lost_at;          /* the op that overwrote it, and as what; 0 = nothing was written */
    guint lost_to;
    gboolean dying, poisoned;
    guint64 died_at; /* the last op of its life */
} Place;

struct Checker {
    const Program *program;
    ArenaGuard *const *guards; /* by tier */
    guint rank, num_streams;
    guint64 seed;
    OpNumbers numbers;
    guint *first_place; /* by tensor */
    Place *places;
    guint num_places;
    guint8 *last_access; /* by op of the step x operand: of a life */
    GArray *dying;       /* guint: places that may be poisoned once all that used them is done */
    guint stream;        /* of the op at hand */
    guint64 clock[MAX_STREAMS][MAX_STREAMS]; /* by stream: newest positions known to be done */
    guint64 *events[2];                      /* by step's parity: op x stream */
};

static Place *operand_place(const Checker *checker, const Call *call, const Operand *operand)
{
    return &checker->places[checker->first_place[operand->tensor] +
                            operand_copy(checker->program, call, operand)];
}

static const char *place_name(const Checker *checker, const Place *place)
{
    return program_tensor(checker->program, place->tensor)->name;
}

/* ---- setting up ---- */

/* Where an arena begins when those of the tiers before it lie before it. */
static guint64 tier_begin(const Program *program, Tier tier)
{
    guint64 begin = 0;

    for (guint t = 0; t < tier; t++)
        begin += program->arena_bytes[t];
    return begin;
}

static void add_places(Checker *checker)
{
    const Program *program = checker->program;

    checker->first_place = g_new0(guint, program->tensors->len + 1);
    for (guint t = 0; t < program->tensors->len; t++)
        checker->first_place[t + 1] =
            checker->first_place[t] + tensor_num_copies(program, program_tensor(program, t));
    checker->num_places = checker->first_place[program->tensors->len];
    checker->places = g_new0(Place, checker->num_places);
    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);

        for (guint c = 0; c < tensor_num_copies(program, tensor); c++) {
            const guint64 begin =
                tier_begin(program, tensor->tier) + tensor->offset + c * tensor->stride;

            checker->places[checker->first_place[t] + c] =
                (Place){.tensor = t,
                        .copy = c,
                        .begin = begin,
                        .end = begin + tensor_copy_bytes(tensor),
                        .overlaps = g_array_new(FALSE, FALSE, sizeof(guint)),
                        .written = tensor->persistence == PERSIST_STATE ? ALL_WRITTEN : 0};
        }
    }
}

static gint by_begin(gconstpointer a, gconstpointer b, gpointer places)
{
    const guint64 left = ((const Place *)places)[*(const guint *)a].begin;
    const guint64 right = ((const Place *)places)[*(const guint *)b].begin;

    return left < right ? -1 : left > right;
}

/* Sweep in the order of offsets. */
static void find_overlaps(Checker *checker)
{
    g_autofree guint *order = g_new(guint, checker->num_places);
    Place *places = checker->places;

    for (guint i = 0; i < checker->num_places; i++) {
        order[i] = i;
        g_array_append_val(places[i].overlaps, i);
    }
    g_qsort_with_data(order, (gint)checker->num_places, sizeof *order, by_begin, places);
    for (guint i = 0; i < checker->num_places; i++)
        for (guint j = i + 1;
             j < checker->num_places && places[order[j]].begin < places[order[i]].end; j++) {
            if (places[order[j]].end == places[order[j]].begin ||
                places[order[i]].end == places[order[i]].begin)
                continue;
            g_array_append_val(places[order[i]].overlaps, order[j]);
            g_array_append_val(places[order[j]].overlaps, order[i]);
        }
}

/* By place: its newest access so far (one past), and whether it was read as a whole since it was
 * written, so that the next write starts a new life. */
typedef struct {
    guint64 newest;
    gboolean consumed, never; /* never: it does not die */
} Life;

static void follow_op(Checker *checker, Life *lives, const Call *call, const Op *op, guint32 number)
{
    for (guint o = 0; o < op->num_operands; o++) {
        const Operand *operand = &op->operands[o];
        const Access access = operand_access(operand, call->first);
        Life *life = &lives[operand_place(checker, call, operand) - checker->places];

        if (life->newest != 0 && access == ACCESS_WRITE && !life->never &&
            (operand->param == WHOLE_TENSOR || life->consumed))
            checker->last_access[life->newest - 1] = TRUE;
        life->newest = (guint64)number * MAX_OPERANDS + o + 1;
        life->consumed = access == ACCESS_READ && operand->param == WHOLE_TENSOR;
    }
}

/* What runs between steps may be read by any of them. */
static void exclude_list(Checker *checker, Life *lives, const CallList *list)
{
    for (guint c = 0; c < list->calls->len; c++) {
        const Segment *segment =
            program_segment(checker->program, g_array_index(list->calls, Call, c).segment);

        for (guint i = 0; i < segment->num_ops; i++)
            for (guint o = 0; o < segment->ops[i].num_operands; o++) {
                const guint tensor = segment->ops[i].operands[o].tensor;

                for (guint p = checker->first_place[tensor]; p < checker->first_place[tensor + 1];
                     p++)
                    lives[p].never = TRUE;
            }
    }
}

/* Over the step followed by itself. */
static void find_last_accesses(Checker *checker)
{
    g_autofree Life *lives = g_new0(Life, checker->num_places);
    const GArray *calls = checker->program->step.calls;

    checker->last_access = g_new0(guint8, (gsize)checker->numbers.epilogue * MAX_OPERANDS + 1);
    for (guint p = 0; p < checker->num_places; p++)
        lives[p].never = program_tensor(checker->program, checker->places[p].tensor)->persistence ==
                         PERSIST_STATE;
    exclude_list(checker, lives, &checker->program->prologue);
    exclude_list(checker, lives, &checker->program->epilogue);
    for (guint step = 0; step < 2; step++) {
        guint32 number = 0;

        for (guint c = 0; c < calls->len; c++) {
            const Call *call = &g_array_index(calls, Call, c);
            const Segment *segment = program_segment(checker->program, call->segment);

            for (guint i = 0; i < segment->num_ops; i++)
                follow_op(checker, lives, call, &segment->ops[i], number++);
        }
    }
}

Checker *checker_new(const Program *program, ArenaGuard *const *guards, guint rank, guint64 seed)
{
    Checker *checker = g_new0(Checker, 1);

    checker->program = program;
    checker->guards = guards;
    checker->rank = rank;
    checker->seed = seed;
    checker->num_streams = program->streams->len;
    checker->numbers = op_numbers(program);
    checker->dying = g_array_new(FALSE, FALSE, sizeof(guint));
    for (guint i = 0; i < 2; i++)
        checker->events[i] =
            g_new0(guint64, (gsize)checker->numbers.epilogue * checker->num_streams + 1);
    add_places(checker);
    find_overlaps(checker);
    find_last_accesses(checker);
    return checker;
}

void checker_free(Checker *checker)
{
    if (checker == NULL)
        return;
    for (guint p = 0; p < checker->num_places; p++)
        g_array_unref(checker->places[p].overlaps);
    g_free(checker->places);
    g_free(checker->first_place);
    g_free(checker->last_access);
    g_array_unref(checker->dying);
    for (guint i = 0; i < 2; i++)
        g_free(checker->events[i]);
    g_free(checker);
}

/* ---- clocks ---- */

void checker_begin(Checker *checker, guint stream)
{
    checker->stream = stream;
    checker->clock[stream][stream]++;
}

static guint64 *event_clock(const Checker *checker, guint64 at)
{
    return checker->events[(at >> 32) % 2] + (gsize)(guint32)at * checker->num_streams;
}

void checker_join(Checker *checker, guint64 event_at)
{
    guint64 *clock = checker->clock[checker->stream];
    const guint64 *event = event_clock(checker, event_at);

    for (guint s = 0; s < checker->num_streams; s++)
        if (s != checker->stream)
            clock[s] = MAX(clock[s], event[s]);
}

void checker_quiet(Checker *checker)
{
    for (guint s = 0; s < checker->num_streams; s++)
        for (guint t = 0; t < checker->num_streams; t++)
            checker->clock[s][t] = checker->clock[t][t];
}

static gboolean in_flight(const Checker *checker, guint seen_by, guint stream, const Touch *touch)
{
    return stream != seen_by && touch->position > checker->clock[seen_by][stream];
}

/* ---- in words ---- */

static char *label(const Checker *checker, guint64 at)
{
    const Call *call;
    const Op *op;

    if (!op_number_find(checker->program, (guint32)at, &call, &op))
        return g_strdup("?");
    g_autofree char *name = program_op_label(checker->program, call, op);
    return g_strdup_printf("%s of step %" G_GUINT64_FORMAT, name, at >> 32);
}

static gboolean problem(const Checker *checker, guint64 at, const Place *place, const char *what,
                        const char *other, GError **error)
{
    const Tier tier = program_tensor(checker->program, place->tensor)->tier;
    const guint64 before = tier_begin(checker->program, tier);
    g_autofree char *name = label(checker, at);

    return fail(error, ERROR_RUNTIME,
                "check: step %" G_GUINT64_FORMAT ": %s: %s[%u], bytes %" G_GUINT64_FORMAT
                " to %" G_GUINT64_FORMAT " of the %s arena, %s %s",
                at >> 32, name, place_name(checker, place), place->copy, place->begin - before,
                place->end - before, tier_name(tier), what, other);
}

/* ---- one operand ---- */

static gboolean check_flight(const Checker *checker, guint64 at, const Place *place,
                             gboolean writes, GError **error)
{
    for (guint i = 0; i < place->overlaps->len; i++) {
        const Place *other = &checker->places[g_array_index(place->overlaps, guint, i)];

        for (guint s = 0; s < checker->num_streams; s++) {
            const Touch *touch = writes ? &other->touch[s] : &other->write[s];

            if (!in_flight(checker, checker->stream, s, touch))
                continue;
            g_autofree char *name = label(checker, touch->at);
            g_autofree char *what = g_strdup_printf("%s has not been waited for, which uses %s[%u]",
                                                    name, place_name(checker, other), other->copy);
            return problem(checker, at, place, writes ? "is written, but" : "is read, but", what,
                           error);
        }
    }
    return TRUE;
}

static gboolean check_held(const Checker *checker, guint64 at, const Place *place,
                           const Operand *operand, GError **error)
{
    if (written_covers(checker->program, place->written, operand))
        return TRUE;
    if (place->poisoned) {
        g_autofree char *last = label(checker, place->died_at);

        return problem(checker, at, place, "is read, but the last to read it was", last, error);
    }
    if (place->lost_at == 0)
        return problem(checker, at, place, "is read, but", "nothing has written it", error);
    const Place *other = &checker->places[place->lost_to];
    g_autofree char *name = label(checker, place->lost_at);
    g_autofree char *what = g_strdup_printf("%s has written %s[%u] there", name,
                                            place_name(checker, other), other->copy);
    return problem(checker, at, place, "is needed, but", what, error);
}

static gboolean check_poison(const Checker *checker, guint64 at, const Place *place, GError **error)
{
    guint64 byte;

    if (!place->poisoned ||
        arena_guard_is_poison(checker->guards[TIER_DEVICE], place->tensor, place->copy, &byte))
        return TRUE;
    g_autofree char *name = label(checker, place->died_at);
    g_autofree char *what = g_strdup_printf(
        "by nobody who may: byte %" G_GUINT64_FORMAT " of it changed after %s", byte, name);
    return problem(checker, at, place, "was written", what, error);
}

/* A write ends what else lay in those bytes. */
static gboolean take(Checker *checker, guint64 at, Place *place, const Operand *operand,
                     GError **error)
{
    for (guint i = 0; i < place->overlaps->len; i++) {
        Place *other = &checker->places[g_array_index(place->overlaps, guint, i)];

        if (!check_poison(checker, at, other, error))
            return FALSE;
        other->dying = other->poisoned = FALSE;
        if (other == place)
            continue;
        other->written = 0;
        other->lost_at = at;
        other->lost_to = (guint)(place - checker->places);
    }
    place->written |= written_bits(operand);
    return TRUE;
}

static gboolean check_operand(Checker *checker, guint64 at, const Call *call,
                              const Operand *operand, GError **error)
{
    Place *place = operand_place(checker, call, operand);
    const Access access = operand_access(operand, call->first);
    const Touch touch = {checker->clock[checker->stream][checker->stream], at};
    const gboolean writes = access != ACCESS_READ;

    if (!check_flight(checker, at, place, writes, error) ||
        (access != ACCESS_WRITE && !check_held(checker, at, place, operand, error)) ||
        (writes && !take(checker, at, place, operand, error)))
        return FALSE;
    place->touch[checker->stream] = touch;
    if (writes)
        place->write[checker->stream] = touch;
    return TRUE;
}

/* ---- death ---- */

static gboolean all_done(const Checker *checker, const Place *place)
{
    for (guint s = 0; s < checker->num_streams; s++)
        if (in_flight(checker, COMPUTE_STREAM, s, &place->touch[s]))
            return FALSE;
    return TRUE;
}

/* The main thread is the compute stream: what that knows to be done is done. */
static void poison_the_dead(Checker *checker)
{
    guint kept = 0;

    for (guint i = 0; i < checker->dying->len; i++) {
        const guint p = g_array_index(checker->dying, guint, i);
        Place *place = &checker->places[p];

        if (place->dying && !all_done(checker, place)) {
            g_array_index(checker->dying, guint, kept++) = p;
        } else if (place->dying) {
            arena_guard_poison(checker->guards[TIER_DEVICE], place->tensor, place->copy);
            place->dying = FALSE;
            place->poisoned = TRUE;
            place->written = 0;
            place->lost_at = 0;
        }
    }
    g_array_set_size(checker->dying, kept);
}

static void note_death(Checker *checker, guint64 at, Place *place)
{
    const guint p = (guint)(place - checker->places);

    if (place->dying || place->written == 0)
        return;
    place->dying = TRUE;
    place->died_at = at;
    g_array_append_val(checker->dying, p);
}

/* ---- an op ---- */

gboolean checker_access(Checker *checker, guint64 at, const Call *call, const Op *op,
                        GError **error)
{
    const gboolean in_step = (guint32)at < checker->numbers.epilogue;
    const Operand predicate = {
        .tensor = (guint)op->predicate, .access = ACCESS_READ, .param = WHOLE_TENSOR};

    poison_the_dead(checker);
    if (op->predicate != NO_TENSOR && !check_operand(checker, at, call, &predicate, error))
        return FALSE;
    for (guint o = 0; o < op->num_operands; o++)
        if (!check_operand(checker, at, call, &op->operands[o], error))
            return FALSE;
    for (guint o = 0; in_step && o < op->num_operands; o++)
        if (checker->last_access[(gsize)(guint32)at * MAX_OPERANDS + o])
            note_death(checker, at, operand_place(checker, call, &op->operands[o]));
    if (in_step)
        memcpy(event_clock(checker, at), checker->clock[checker->stream],
               checker->num_streams * sizeof(guint64));
    return TRUE;
}

gboolean checker_step_end(Checker *checker, guint64 step, GError **error)
{
    for (guint p = 0; p < checker->num_places; p++)
        if (!check_poison(checker, checker->places[p].died_at, &checker->places[p], error))
            return FALSE;
    for (guint t = 0; t < NUM_TIERS; t++)
        if (checker->guards[t] != NULL && !arena_guard_check(checker->guards[t], error)) {
            g_prefix_error(error, "check: step %" G_GUINT64_FORMAT ": ", step);
            return FALSE;
        }
    return TRUE;
}

/* ---- delays ---- */

void checker_delay(const Checker *checker, guint64 at, guint point)
{
    enum { ONE_IN = 8, LONGEST_US = 1000 };
    const guint64 where = (guint64)checker->rank << 40 | at << 32 >> 24 | point;
    const guint64 drawn = random_sample_start(checker->seed, at >> 32, where, ONE_IN * LONGEST_US);

    if (drawn < LONGEST_US)
        g_usleep((gulong)drawn);
}
