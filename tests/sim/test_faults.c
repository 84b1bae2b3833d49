/* Programs of several stages and ranks that share sequences: every read finds what is meant for it,
 * and faults planted into them are caught. */
#include "sim/program/builder.h"
#include "tests/sim/family_case.h"
#include "tests/sim/hazards.h"

/* ---- what a read finds ---- */

/* Whose data a copy of a tensor holds. */
typedef struct {
    gboolean written;
    guint unit, micro_batch;
} Owner;

typedef struct {
    const Program *program;
    const char *text; /* of the case */
    guint layers;
    guint *first_copy;
    Owner *owners;    /* by tensor copy */
    GHashTable *sums; /* "unit.param" -> contributions to its gradient in this step */
} Content;

static const char *space_name(const Program *program, const Tensor *tensor)
{
    return g_array_index(program->spaces, Space, tensor->space).name;
}

static gboolean is_in(const Program *program, const Tensor *tensor, const char *const *rings)
{
    for (guint i = 0; rings[i] != NULL; i++)
        if (strcmp(space_name(program, tensor), rings[i]) == 0)
            return TRUE;
    return FALSE;
}

static guint micro_batch_of(const Call *call, const Op *op, guint operand)
{
    return op->kind == OP_EXCHANGE
               ? (guint)((gint)call->micro_batch + op->messages[operand].micro_batch_shift)
               : call->micro_batch;
}

/* A block's experts are a unit of their own (builder_experts_unit()), and share its activations. */
static guint block_of(const Content *content, guint unit)
{
    return unit > content->layers ? unit - content->layers : unit;
}

/* A block's input is from the block before, or was put there at the start of a chunk; its output is
 * its own. */
static gboolean is_residual_of(const Operand *operand, guint owner, guint unit)
{
    if (operand->shift == 1)
        return owner == unit;
    return owner + 1 == unit || owner == ROOT_UNIT;
}

/* Whether @owner's data is what an operand of @call means. */
static gboolean is_meant(const Content *content, const Call *call, const Operand *operand,
                         const Owner *owner, guint micro_batch)
{
    const Tensor *tensor = program_tensor(content->program, operand->tensor);
    static const char *const of_unit[] = {"saved",        "kept",       "again",
                                          "weights",      "again_kept", "sparse_saved",
                                          "rest_kept",    "rest_saved", "rest_sparse_saved",
                                          "rest_weights", NULL};
    static const char *const residual[] = {"residual", NULL};
    const guint unit = block_of(content, call->unit), owns = block_of(content, owner->unit);

    if (tensor->kind == TENSOR_GATHERED)
        return owner->unit == call->unit;
    if (tensor->kind == TENSOR_UNIT_GRADIENT)
        return owner->unit == call->unit && owner->micro_batch == micro_batch;
    if (tensor->kind != TENSOR_ACTIVATION)
        return TRUE;
    if (owner->micro_batch != micro_batch)
        return FALSE;
    if (call->unit != ROOT_UNIT && is_in(content->program, tensor, of_unit))
        return owns == unit;
    if (call->unit != ROOT_UNIT && is_in(content->program, tensor, residual))
        return is_residual_of(operand, owns, unit);
    return TRUE;
}

static void count_sum(const Content *content, const Call *call, const Operand *operand)
{
    char *key = g_strdup_printf("%u.%d", call->unit, operand->param);
    const guint before = GPOINTER_TO_UINT(g_hash_table_lookup(content->sums, key));

    g_hash_table_insert(content->sums, key, GUINT_TO_POINTER(before + 1));
}

/* State of a unit, and inputs of a micro-batch. */
static void assert_own_copy(const Content *content, const Call *call, const Operand *operand)
{
    const Program *program = content->program;
    const Tensor *tensor = program_tensor(program, operand->tensor);
    const guint copy = operand_copy(program, call, operand);

    if (strcmp(space_name(program, tensor), "micro_batch") == 0)
        ck_assert_msg(copy == call->micro_batch, "%s: %s", content->text, tensor->name);
    if (tensor->unit != NO_UNIT && tensor->persistence == PERSIST_STATE)
        ck_assert_msg(copy == program_unit_ref(program, call->unit)->index &&
                          (guint)tensor->unit == program_unit_ref(program, call->unit)->unit_class,
                      "%s: %s", content->text, tensor->name);
}

static void visit_operand(Content *content, const Call *call, const Op *op, guint i)
{
    const Program *program = content->program;
    const Operand *operand = &op->operands[i];
    const Tensor *tensor = program_tensor(program, operand->tensor);
    const Access access = operand_access(operand, call->first);
    Owner *owner =
        &content
             ->owners[content->first_copy[operand->tensor] + operand_copy(program, call, operand)];
    const gboolean has_owner =
        tensor->persistence == PERSIST_STEP || tensor->kind == TENSOR_GRADIENT;

    assert_own_copy(content, call, operand);
    if (operand->access == ACCESS_ACCUMULATE && operand->param != WHOLE_TENSOR)
        count_sum(content, call, operand);
    if (has_owner && access != ACCESS_WRITE)
        ck_assert_msg(owner->written &&
                          is_meant(content, call, operand, owner, micro_batch_of(call, op, i)),
                      "%s: %s of unit %u micro-batch %u finds %s of unit %u micro-batch %u",
                      content->text, program_segment(program, call->segment)->name, call->unit,
                      micro_batch_of(call, op, i), tensor->name, owner->unit, owner->micro_batch);
    if (access != ACCESS_READ)
        *owner = (Owner){TRUE, call->unit, micro_batch_of(call, op, i)};
}

/* Each micro-batch adds once to each gradient (where a tied embedding is on one stage, its lookup
 * updates what the head wrote). */
static void assert_sums(const Content *content, guint micro_batches)
{
    const Program *program = content->program;

    for (guint u = 0; u < program->unit_refs->len; u++) {
        const guint unit_class = program_unit_ref(program, u)->unit_class;

        if (unit_class == NO_UNIT_CLASS)
            continue;
        const UnitMap *map = program_unit(program, unit_class)->map;
        for (guint p = 0; p < map->num_params; p++) {
            g_autofree char *key = g_strdup_printf("%u.%u", u, p);
            const guint sums = GPOINTER_TO_UINT(g_hash_table_lookup(content->sums, key));

            ck_assert_msg(sums == (map->params[p].rows == 0 ? 0 : micro_batches),
                          "%s: unit %u parameter %u: %u", content->text, u, p, sums);
        }
    }
}

static void assert_content(const Program *program, const Case *from, const char *text)
{
    Content content = {.program = program, .text = text, .layers = from->model->layers};
    g_autofree guint *first_copy = g_new0(guint, program->tensors->len + 1);
    g_autoptr(GHashTable) sums = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);

    for (guint t = 0; t < program->tensors->len; t++)
        first_copy[t + 1] = first_copy[t] + copies_of(program, t);
    g_autofree Owner *owners = g_new0(Owner, first_copy[program->tensors->len]);
    content.first_copy = first_copy;
    content.owners = owners;
    content.sums = sums;
    for (guint c = 0; c < program->step.calls->len; c++) {
        const Call *call = &g_array_index(program->step.calls, Call, c);
        const Segment *segment = program_segment(program, call->segment);

        for (guint i = 0; i < segment->num_ops; i++)
            for (guint o = 0; o < segment->ops[i].num_operands; o++)
                visit_operand(&content, call, &segment->ops[i], o);
    }
    assert_sums(&content, from->schedule.micro_batches);
}

/* check proves that something was written; this, that it was of the right unit and micro-batch. */
START_TEST(every_read_finds_what_is_meant_for_it)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(91 + (guint)_i);

    for (guint i = 0; i < 75; i++) {
        guint16 stages[MAX_CHUNKS];
        g_autoptr(Model) model = NULL;
        const Case one = draw_of_all(random, &model, stages);
        g_autofree char *text = case_text(&one);
        g_autoptr(ProgramSet) set = case_compile(&one);

        for (guint c = 0; c < set->num_classes; c++)
            assert_content(set->classes[c], &one, text);
    }
}
END_TEST

/* ---- faults ---- */

typedef enum {
    FAULT_WAIT,        /* a wait fewer */
    FAULT_ORDER,       /* two exchanges with the same neighbour in the other order */
    FAULT_MISSING,     /* an exchange fewer */
    FAULT_PEER,        /* a message to the wrong rank */
    FAULT_MICRO_BATCH, /* ... of the wrong micro-batch */
    FAULT_DIRECTION,   /* ... a gradient for an activation */
    FAULT_SIZE,        /* ... one element short */
    FAULT_OVERLAP,     /* two tensors that one op reads in the same place */
    FAULT_UNWRITTEN,   /* the only op that writes a tensor does not */
    NUM_FAULTS
} Fault;

typedef struct {
    GRand *random;
    ProgramSet *set;
    const char *text;
    guint planted[NUM_FAULTS], harmless; /* waits that are not needed */
} Planter;

static gboolean is_caught(const Planter *planter)
{
    g_autoptr(GPtrArray) problems = program_set_check(planter->set, 0);

    return problems->len > 0;
}

static void assert_fault(Planter *planter, Fault fault, const char *what)
{
    planter->planted[fault]++;
    ck_assert_msg(is_caught(planter), "%s: fault %d (%s) is not caught", planter->text, fault,
                  what);
}

static Program *any_class(const Planter *planter)
{
    return planter->set->classes[draw(planter->random, planter->set->num_classes - 1)];
}

/* Of those that the step calls; NULL when there is none. */
static Op *any_exchange(const Planter *planter, const Program *program)
{
    g_autoptr(GPtrArray) found = g_ptr_array_new();

    for (guint c = 0; c < program->step.calls->len; c++) {
        Segment *segment =
            program_segment(program, g_array_index(program->step.calls, Call, c).segment);

        for (guint i = 0; i < segment->num_ops; i++)
            if (segment->ops[i].kind == OP_EXCHANGE)
                g_ptr_array_add(found, &segment->ops[i]);
    }
    return found->len == 0 ? NULL : found->pdata[draw(planter->random, found->len - 1)];
}

static void drop_wait(Planter *planter)
{
    const Program *program = any_class(planter);
    const GArray *calls = program->step.calls;
    Call *call = &g_array_index(calls, Call, draw(planter->random, calls->len - 1));

    while (call->num_waits == 0)
        call = &g_array_index(calls, Call, draw(planter->random, calls->len - 1));
    const guint nth = draw(planter->random, call->num_waits - 1);
    Wait *waits = &g_array_index(program->step.waits, Wait, call->first_wait);
    const Wait dropped = waits[nth];

    waits[nth] = waits[--call->num_waits];
    planter->planted[FAULT_WAIT]++;
    if (!is_caught(planter)) {
        planter->harmless++;
        ck_assert_msg(hazards_races(program) == 0, "%s: a wait for call %u", planter->text,
                      dropped.call);
    }
    waits[call->num_waits++] = waits[nth];
    waits[nth] = dropped;
}

static gboolean is_between_stages(const Program *program, const Call *call)
{
    const Segment *segment = program_segment(program, call->segment);

    return segment->num_ops == 1 && segment->ops[0].kind == OP_EXCHANGE;
}

static gboolean share_peer(const Op *a, const Op *b)
{
    for (guint i = 0; i < a->num_operands; i++)
        for (guint j = 0; j < b->num_operands; j++)
            if (a->messages[i].peer_shift == b->messages[j].peer_shift)
                return TRUE;
    return FALSE;
}

/* The first, from a random call on, with the next one that has a common neighbour. */
static void swap_exchanges(Planter *planter)
{
    const Program *program = any_class(planter);
    const GArray *calls = program->step.calls;
    Call *first = NULL;

    for (guint c = draw(planter->random, calls->len / 2); c < calls->len; c++) {
        Call *call = &g_array_index(calls, Call, c);

        if (!is_between_stages(program, call))
            continue;
        if (first != NULL && share_peer(&program_segment(program, first->segment)->ops[0],
                                        &program_segment(program, call->segment)->ops[0])) {
            swap_calls(first, call);
            assert_fault(planter, FAULT_ORDER, "");
            swap_calls(first, call);
            return;
        }
        first = call;
    }
}

static void drop_exchange(Planter *planter)
{
    const Program *program = any_class(planter);
    const GArray *calls = program->step.calls;

    for (guint c = draw(planter->random, calls->len / 2); c < calls->len; c++) {
        Call *call = &g_array_index(calls, Call, c);
        Segment *segment = program_segment(program, call->segment);
        const Call before = *call;

        if (!is_between_stages(program, call))
            continue;
        call->segment = (guint)find_segment(program, "count_valid"); /* once more, of labels only */
        call->num_waits = 0;
        assert_fault(planter, FAULT_MISSING, segment->name);
        *call = before;
        return;
    }
}

static void spoil_messages(Planter *planter)
{
    const Program *program = any_class(planter);
    Op *op = any_exchange(planter, program);

    if (op == NULL)
        return;
    const guint operand = draw(planter->random, op->num_operands - 1);
    Message *message = &op->messages[operand];
    Tensor *tensor = program_tensor(program, op->operands[operand].tensor);
    const Message before = *message;

    message->peer_shift = (message->peer_shift + 1) % op_group_size(program, op);
    assert_fault(planter, FAULT_PEER, tensor->name);
    *message = before;
    message->micro_batch_shift += 1;
    assert_fault(planter, FAULT_MICRO_BATCH, tensor->name);
    *message = before;
    message->direction ^= 1;
    assert_fault(planter, FAULT_DIRECTION, tensor->name);
    *message = before;
    tensor->elements--;
    assert_fault(planter, FAULT_SIZE, tensor->name);
    tensor->elements++;
}

/* A step tensor with bytes that is read whole. */
static gboolean holds_data(const Program *program, const Operand *operand)
{
    const Tensor *tensor = program_tensor(program, operand->tensor);

    return tensor->persistence == PERSIST_STEP && tensor_copy_bytes(tensor) > 0 &&
           operand->access == ACCESS_READ;
}

/* Any called op that reads two of them, from a random call on. */
static void overlap_tensors(Planter *planter)
{
    const Program *program = any_class(planter);
    const GArray *calls = program->step.calls;

    for (guint c = draw(planter->random, calls->len / 2); c < calls->len; c++) {
        const Call *call = &g_array_index(calls, Call, c);
        const Segment *segment = program_segment(program, call->segment);
        const Op *op = &segment->ops[draw(planter->random, MAX(segment->num_ops, 1) - 1)];

        if (segment->num_ops == 0 || op->num_operands < 2 ||
            op->operands[0].tensor == op->operands[1].tensor ||
            !holds_data(program, &op->operands[0]) || !holds_data(program, &op->operands[1]))
            continue;
        Tensor *one = program_tensor(program, op->operands[0].tensor);
        const Tensor *other = program_tensor(program, op->operands[1].tensor);
        const guint64 offset = one->offset, stride = one->stride;
        one->offset = other->offset + other->stride * operand_copy(program, call, &op->operands[1]);
        one->stride = 0; /* all copies */
        assert_fault(planter, FAULT_OVERLAP, one->name);
        one->offset = offset;
        one->stride = stride;
        return;
    }
}

static guint writers(const Program *program, guint tensor)
{
    guint count = 0;

    for (guint s = 0; s < program->segments->len; s++)
        for (guint i = 0; i < program_segment(program, s)->num_ops; i++) {
            const Op *op = &program_segment(program, s)->ops[i];

            for (guint o = 0; o < op->num_operands; o++)
                count += op->operands[o].tensor == tensor && op->operands[o].access == ACCESS_WRITE;
        }
    return count;
}

static void drop_write(Planter *planter)
{
    const Program *program = any_class(planter);
    const GArray *calls = program->step.calls;

    for (guint c = draw(planter->random, calls->len / 2); c < calls->len; c++) {
        const Segment *segment = program_segment(program, g_array_index(calls, Call, c).segment);

        for (guint i = 0; i < segment->num_ops; i++)
            for (guint o = 0; o < segment->ops[i].num_operands; o++) {
                Operand *operand = &segment->ops[i].operands[o];
                const Tensor *tensor = program_tensor(program, operand->tensor);

                if (operand->access != ACCESS_WRITE || tensor->persistence != PERSIST_STEP ||
                    tensor_copy_bytes(tensor) == 0 || writers(program, operand->tensor) != 1)
                    continue;
                operand->access = ACCESS_READ;
                assert_fault(planter, FAULT_UNWRITTEN, tensor->name);
                operand->access = ACCESS_WRITE;
                return;
            }
    }
}

/* With something to exchange: between stages, or there or in a ring. */
static Case draw_exchanging(GRand *random, gboolean of_stages, Model **model, guint16 *stages)
{
    for (;;) {
        const Case one = draw_of_all(random, model, stages);

        if (one.layout.size[AXIS_PP] > 1 ||
            (!of_stages && one.layout.size[AXIS_CP] > 1 && one.context == CONTEXT_RING))
            return one;
        g_clear_pointer(model, model_free);
    }
}

enum { SLICES = 4, CASES = 60 };

START_TEST(faults_are_caught)
{
    static void (*const plant[])(Planter *) = {drop_wait,      swap_exchanges,  drop_exchange,
                                               spoil_messages, overlap_tensors, drop_write};
    static const char *const names[] = {"wait",      "order", "missing", "peer",     "micro-batch",
                                        "direction", "size",  "overlap", "unwritten"};
    g_autoptr(GRand) random = g_rand_new_with_seed(111 + (guint)_i);
    g_autoptr(GString) counts = g_string_new(NULL);
    Planter planter = {.random = random};

    for (guint i = 0; i < CASES; i++) {
        g_autoptr(Model) model = NULL;
        guint16 stages[MAX_CHUNKS];
        const Case one = draw_exchanging(random, i % 2 == 0, &model, stages);
        g_autofree char *text = case_text(&one);
        g_autoptr(ProgramSet) set = case_compile(&one);

        planter.set = set;
        planter.text = text;
        assert_proven(set, text);
        for (guint p = 0; p < G_N_ELEMENTS(plant); p++)
            plant[p](&planter);
        assert_proven(set, text); /* all as it was */
    }
    for (guint f = 0; f < NUM_FAULTS; f++) {
        ck_assert_uint_gt(planter.planted[f], CASES / 3);
        g_string_append_printf(counts, "%s%s %u", f == 0 ? "" : ", ", names[f], planter.planted[f]);
    }
    ck_assert_uint_le(planter.harmless * 10, planter.planted[FAULT_WAIT]);
    g_print("%d programs, faults caught: %s; waits not needed: %u\n", CASES, counts->str,
            planter.harmless);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("faults");
    TCase *tcase = tcase_create("faults");

    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, every_read_finds_what_is_meant_for_it, 0, SLICES);
    tcase_add_loop_test(tcase, faults_are_caught, 0, SLICES);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
