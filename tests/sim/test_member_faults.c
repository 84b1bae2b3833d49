/* Programs of all kinds, of which one rank's is another: a collective in another order, another one
 * or none.  Its group must notice. */
#include "tests/sim/family_case.h"

typedef enum {
    MEMBER_SWAPPED, /* two calls of collectives on a communicator, in the other order */
    MEMBER_CROSSED, /* ... of two communicators, next to each other */
    MEMBER_MISSING, /* a collective fewer */
    MEMBER_KIND,    /* another collective */
    MEMBER_BYTES,   /* ... of other elements */
    NUM_MEMBER_FAULTS
} MemberFault;

static const char *const member_names[NUM_MEMBER_FAULTS] = {"swapped", "crossed", "missing", "kind",
                                                            "bytes"};

/* One rank's program apart from that of its class: *member, which *set owns. */
static void set_apart(const Case *from, GRand *random, ProgramSet *set, Program **member)
{
    const ProgramSpec spec = case_spec(from);
    const guint rank = draw(random, set->num_ranks - 1);

    *member = program_build(&spec, set->class_of[rank]);
    program_set_assign(set, rank, program_set_add_class(set, *member));
}

/* The first op of a call of which all ops are collectives of more than one rank; else NULL. */
static Op *collective_of(const Program *program, const Call *call)
{
    const Segment *segment = program_segment(program, call->segment);

    for (guint i = 0; i < segment->num_ops; i++) {
        const Op *op = &segment->ops[i];

        if (!op_kind_is_communication(op->kind) || op->kind == OP_EXCHANGE ||
            op_group_size(program, op) == 1 || op->stream != segment->ops[0].stream)
            return NULL;
    }
    return segment->num_ops == 0 ? NULL : &segment->ops[0];
}

static gboolean is_alike(const Call *a, const Call *b)
{
    return a->segment == b->segment && a->unit == b->unit && a->micro_batch == b->micro_batch;
}

/* The first two collectives, from a random call on, on one stream or on two; next to each other
 * where they are on two, as all between would be crossed too.  FALSE: there are none. */
static gboolean find_pair(const Program *program, GRand *random, gboolean one_stream,
                          Call *found[2])
{
    const GArray *calls = program->step.calls;

    for (guint a = draw(random, calls->len / 2); a < calls->len; a++) {
        Call *first = &g_array_index(calls, Call, a);
        const Op *op = collective_of(program, first);

        for (guint b = a + 1; op != NULL && b < calls->len; b++) {
            Call *second = &g_array_index(calls, Call, b);
            const Op *other = collective_of(program, second);

            if (other != NULL && (other->stream == op->stream) == one_stream &&
                !is_alike(first, second)) {
                found[0] = first;
                found[1] = second;
                return TRUE;
            }
            if (!one_stream)
                break;
        }
    }
    return FALSE;
}

static Op *any_collective(const Program *program, GRand *random, Call **call)
{
    const GArray *calls = program->step.calls;

    for (guint c = draw(random, calls->len / 2); c < calls->len; c++) {
        *call = &g_array_index(calls, Call, c);
        if (collective_of(program, *call) != NULL)
            return collective_of(program, *call);
    }
    return NULL;
}

/* What was changed, and what it was. */
typedef struct {
    Call *pair[2], *call, call_was;
    Op *op, op_was;
} Planted;

/* FALSE: there is nothing of that kind in the program. */
static gboolean plant_in_member(Program *member, GRand *random, MemberFault fault, Planted *planted)
{
    *planted = (Planted){.op = NULL};
    if (fault <= MEMBER_CROSSED) {
        if (!find_pair(member, random, fault == MEMBER_SWAPPED, planted->pair))
            return FALSE;
        swap_calls(planted->pair[0], planted->pair[1]);
        return TRUE;
    }
    Op *op = planted->op = any_collective(member, random, &planted->call);
    if (op == NULL)
        return FALSE;
    planted->op_was = *op;
    planted->call_was = *planted->call;
    if (fault == MEMBER_MISSING)
        planted->call->segment = (guint)find_segment(member, "count_valid");
    else if (fault == MEMBER_KIND)
        op->kind = op->kind == OP_ALL_REDUCE ? OP_ALL_GATHER : OP_ALL_REDUCE;
    else
        op->dtype = op->dtype == DTYPE_FP32 ? DTYPE_BF16 : DTYPE_FP32;
    return TRUE;
}

static void undo(const Planted *planted)
{
    if (planted->op == NULL) {
        swap_calls(planted->pair[0], planted->pair[1]);
        return;
    }
    *planted->op = planted->op_was;
    *planted->call = planted->call_was;
}

enum { SLICES = 4, CASES = 60 };

START_TEST(a_member_that_does_something_else_is_caught)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(131 + (guint)_i);
    g_autoptr(GString) counts = g_string_new(NULL);
    guint planted[NUM_MEMBER_FAULTS] = {0};
    guint16 stages[MAX_CHUNKS];

    for (guint i = 0; i < CASES; i++) {
        g_autoptr(Model) model = NULL;
        const Case one = draw_of_all(random, &model, stages);
        g_autofree char *text = case_text(&one);
        g_autoptr(ProgramSet) set = case_compile(&one);
        Program *member;

        assert_proven(set, text);
        set_apart(&one, random, set, &member);
        assert_proven(set, text);
        for (guint f = 0; f < NUM_MEMBER_FAULTS; f++) {
            Planted fault;

            if (set->num_ranks == 1 || !plant_in_member(member, random, (MemberFault)f, &fault))
                continue;
            g_autoptr(GPtrArray) problems = program_set_check(set, 0);
            ck_assert_msg(problems->len > 0, "%s: %s is not caught", text, member_names[f]);
            undo(&fault);
            planted[f]++;
        }
    }
    for (guint f = 0; f < NUM_MEMBER_FAULTS; f++) {
        ck_assert_uint_gt(planted[f], CASES / 10);
        g_string_append_printf(counts, "%s%s %u", f == 0 ? "" : ", ", member_names[f], planted[f]);
    }
    g_print("%d programs, faults of one member caught: %s\n", CASES, counts->str);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("member_faults");
    TCase *tcase = tcase_create("member_faults");

    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, a_member_that_does_something_else_is_caught, 0, SLICES);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
