/* check, within one rank: data races, reads of nothing, and arena ranges. */
#include "sim/program/check_parts.h"

#include "sim/program/happens.h"
#include "sim/program/written.h"

enum { STEPS = 2 };

/* One copy of a tensor: where it lies, who touched it, and which of its parameters hold data. */
typedef struct {
    guint tensor, copy;
    guint64 begin, end;
    guint64 written;           /* written.h */
    guint64 writer;            /* instance plus one */
    guint64 last[MAX_STREAMS]; /* newest access by stream, plus one */
    GArray *overlaps;          /* guint: other copies that share bytes with it */
} Place;

typedef struct {
    const Program *program;
    Happens *happens;
    guint *first_copy;
    GArray *places; /* Place */
    GPtrArray *problems;
    const Call *call;
    const Op *op;
    guint64 instance;
} DataCheck;

static Place *place_at(const DataCheck *check, guint i)
{
    return &g_array_index(check->places, Place, i);
}

static void place_clear(gpointer data)
{
    g_array_unref(((Place *)data)->overlaps);
}

static void problem(DataCheck *check, const Place *place, const char *what)
{
    const Program *program = check->program;

    check_problem(check->problems, "%s unit %u micro-batch %u: %s on %s: %s[%u] %s",
                  program_segment(program, check->call->segment)->name, check->call->unit,
                  check->call->micro_batch, op_kind_name(check->op->kind),
                  program_stream(program, check->op->stream)->name,
                  program_tensor(program, place->tensor)->name, place->copy, what);
}

static void add_places(DataCheck *check)
{
    const Program *program = check->program;

    check->places = g_array_new(FALSE, TRUE, sizeof(Place));
    g_array_set_clear_func(check->places, place_clear);
    check->first_copy = g_new(guint, program->tensors->len);
    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);

        check->first_copy[t] = check->places->len;
        for (guint c = 0; c < tensor_num_copies(program, tensor); c++) {
            Place place = {.tensor = t, .copy = c};

            place.begin = tensor->offset + c * tensor->stride;
            place.end = place.begin + tensor_copy_bytes(tensor);
            place.written = tensor->persistence == PERSIST_STATE ? ALL_WRITTEN : 0;
            place.overlaps = g_array_new(FALSE, FALSE, sizeof(guint));
            if (place.end > program->arena_bytes[tensor->tier])
                check_problem(check->problems,
                              "%s[%u] ends at byte %" G_GUINT64_FORMAT
                              " of an arena of %" G_GUINT64_FORMAT,
                              tensor->name, c, place.end, program->arena_bytes[tensor->tier]);
            g_array_append_val(check->places, place);
        }
    }
}

static Tier tier_of(const DataCheck *check, const Place *place)
{
    return program_tensor(check->program, place->tensor)->tier;
}

static gint by_begin(gconstpointer a, gconstpointer b, gpointer data)
{
    const DataCheck *check = data;
    const Place *left = place_at(check, *(const guint *)a);
    const Place *right = place_at(check, *(const guint *)b);
    const Tier left_tier = tier_of(check, left), right_tier = tier_of(check, right);

    if (left_tier != right_tier)
        return left_tier < right_tier ? -1 : 1;
    return left->begin < right->begin ? -1 : left->begin > right->begin;
}

/* Sweep in the order of offsets, tier by tier. */
static void find_overlaps(DataCheck *check)
{
    const guint num = check->places->len;
    g_autofree guint *order = g_new(guint, num);

    for (guint i = 0; i < num; i++)
        order[i] = i;
    g_qsort_with_data(order, (gint)num, sizeof *order, by_begin, check);
    for (guint i = 0; i < num; i++) {
        Place *place = place_at(check, order[i]);

        for (guint j = i + 1; j < num && place_at(check, order[j])->begin < place->end; j++) {
            Place *other = place_at(check, order[j]);

            if (tier_of(check, other) != tier_of(check, place))
                break;
            if (other->begin == other->end || place->begin == place->end)
                continue;
            g_array_append_val(place->overlaps, order[j]);
            g_array_append_val(other->overlaps, order[i]);
        }
    }
}

static gboolean all_before(const DataCheck *check, const Place *place)
{
    for (guint s = 0; s < check->program->streams->len; s++)
        if (place->last[s] != 0 && place->last[s] - 1 != check->instance &&
            !happens_before(check->happens, place->last[s] - 1, check->instance))
            return FALSE;
    return TRUE;
}

static void check_overlaps(DataCheck *check, const Place *place)
{
    for (guint i = 0; i < place->overlaps->len; i++)
        if (!all_before(check, place_at(check, g_array_index(place->overlaps, guint, i))))
            problem(check, place, "overlaps a range that another stream still uses");
}

static Place *operand_place(const DataCheck *check, const Operand *operand)
{
    return place_at(check, check->first_copy[operand->tensor] +
                               operand_copy(check->program, check->call, operand));
}

static void check_written(DataCheck *check, const Place *place, const Operand *operand)
{
    if (operand_access(operand, check->call->first) != ACCESS_WRITE &&
        !written_covers(check->program, place->written, operand))
        problem(check, place, "is read before it is written");
}

/* What lies in the same bytes holds nothing any more. */
static void note_written(DataCheck *check, Place *place, const Operand *operand)
{
    for (guint i = 0; i < place->overlaps->len; i++)
        place_at(check, g_array_index(place->overlaps, guint, i))->written = 0;
    place->written |= written_bits(operand);
}

static void check_operand(DataCheck *check, const Operand *operand)
{
    Place *place = operand_place(check, operand);
    const Access access = operand_access(operand, check->call->first);

    check_written(check, place, operand);
    if (access == ACCESS_READ) {
        if (place->writer != 0 && place->writer - 1 != check->instance &&
            !happens_before(check->happens, place->writer - 1, check->instance))
            problem(check, place, "is read while another stream may still write it");
    } else {
        if (!all_before(check, place))
            problem(check, place, "is written while another stream may still use it");
        check_overlaps(check, place);
        note_written(check, place, operand);
        place->writer = check->instance + 1;
    }
    place->last[check->op->stream] = check->instance + 1;
}

/* A prologue or an epilogue: one op after the other, none while a step runs. */
static void check_list(DataCheck *check, const CallList *list)
{
    for (guint c = 0; c < list->calls->len; c++) {
        check->call = &g_array_index(list->calls, Call, c);
        const Segment *segment = program_segment(check->program, check->call->segment);

        for (guint i = 0; i < segment->num_ops; i++) {
            check->op = &segment->ops[i];
            for (guint o = 0; o < check->op->num_operands; o++) {
                const Operand *operand = &check->op->operands[o];
                Place *place = operand_place(check, operand);

                check_written(check, place, operand);
                if (operand->access != ACCESS_READ)
                    note_written(check, place, operand);
            }
        }
    }
}

static void check_waits(DataCheck *check, guint c)
{
    for (guint w = 0; w < check->call->num_waits; w++) {
        const Wait *wait =
            &g_array_index(check->program->step.waits, Wait, check->call->first_wait + w);

        const gboolean later =
            wait->call > c ||
            (wait->call == c && (wait->op == LAST_OP || wait->op >= wait->before));

        if (wait->back == 0 && later)
            check_problem(check->problems, "call %u waits for call %u, which is issued later", c,
                          wait->call);
    }
}

static void check_step(DataCheck *check, guint step)
{
    const Program *program = check->program;

    for (guint c = 0; c < program->step.calls->len; c++) {
        check->call = &g_array_index(program->step.calls, Call, c);
        const Segment *segment = program_segment(program, check->call->segment);
        const guint64 start = step * check->happens->ops_per_step + check->happens->first_op[c];

        check_waits(check, c);
        for (guint i = 0; i < segment->num_ops; i++) {
            check->op = &segment->ops[i];
            check->instance = start + i;
            const Operand predicate = {.tensor = (guint)check->op->predicate,
                                       .access = ACCESS_READ,
                                       .param = WHOLE_TENSOR};
            if (check->op->predicate != NO_TENSOR)
                check_operand(check, &predicate);
            for (guint o = 0; o < check->op->num_operands; o++)
                check_operand(check, &check->op->operands[o]);
        }
    }
}

/* What the host reads once the step's compute is done: its last write comes before the last op that
 * computes. */
static void check_scalars(DataCheck *check)
{
    const Program *program = check->program;
    const guint64 newest = check->happens->newest[COMPUTE_STREAM];

    for (guint t = 0; t < program->tensors->len; t++) {
        const Place *place = place_at(check, check->first_copy[t]);

        if (program_tensor(program, t)->kind == TENSOR_SCALAR && place->writer != 0 &&
            place->writer != newest &&
            (newest == 0 || !happens_before(check->happens, place->writer - 1, newest - 1)))
            check_problem(check->problems,
                          "%s is read by the host while another stream may still write it",
                          program_tensor(program, t)->name);
    }
}

void check_data(const Program *program, GPtrArray *problems)
{
    DataCheck check = {.program = program, .problems = problems};

    check.happens = happens_new(program, STEPS);
    happens_fill(check.happens, STEPS);
    add_places(&check);
    find_overlaps(&check);
    check_list(&check, &program->prologue);
    for (guint s = 0; s < STEPS; s++)
        check_step(&check, s);
    check_scalars(&check);
    check_list(&check, &program->epilogue);
    happens_free(check.happens);
    g_array_unref(check.places);
    g_free(check.first_copy);
}
