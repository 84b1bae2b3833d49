/* Run under mpirun with 2 ranks, on the simulated device only: a program that lacks one of its
 * waits races, and the checked build says so under any schedule.  Which waits a program can't do
 * without, the planner's proofs say: what they refuse, the device is to find.  Waits are of a kind
 * when they are of an op of one kind for one of another.  LAYOUT in the environment: every kind of
 * that layout, else one of each.  Joined by NCCL (NCCL in the environment), since where MPI moves
 * tensors the host waits for each job, which keeps many a wait that is missing. */
#include "sim/program/check.h"
#include "tests/cuda/train_case.h"
#include "tests/cudasim/cudasim.h"

static TrainTest under_test;

static const TrainLayout layouts[] = {
    {.name = "full_shard", .layout = {{1, 1, 2, 1, 1}}, .strategy = STRATEGY_FULL_SHARD},
    {.name = "full_shard, all in the host",
     .layout = {{1, 1, 2, 1, 1}},
     .strategy = STRATEGY_FULL_SHARD,
     .offload = {TIER_HOST, TIER_HOST}},
    {.name = "tp sequence", .layout = {{1, 1, 1, 1, 2}}, .sequence = TRUE},
    {.name = "pp 1f1b", .layout = {{2, 1, 1, 1, 1}}, .micro_batches = 4},
    {.name = "cp ring", .layout = {{1, 1, 1, 2, 1}}, .strategy = STRATEGY_FULL_SHARD},
};

/* ---- kinds of waits ---- */

typedef struct {
    OpKind op, of;         /* op waits for of */
    gboolean back, within; /* of the step before; of its own segment */
} WaitKind;

/* The @at-th of the waits of a call, or, within a segment, of an op. */
typedef struct {
    WaitKind kind;
    guint call, segment, op, at;
} Place;

static const Op *op_of(const Program *program, guint call, guint op)
{
    const Call *of = &g_array_index(program->step.calls, Call, call);
    const Segment *segment = program_segment(program, of->segment);

    return &segment->ops[op == LAST_OP ? segment->num_ops - 1 : op];
}

/* What one rank reduces alone touches nothing, so nobody need wait for it. */
static gboolean is_idle(const Program *program, const Op *op)
{
    return op->kind == OP_ALL_REDUCE && op_group_size(program, op) == 1;
}

/* All that both name are other parameters of one unit: the proofs take a tensor as a whole. */
static gboolean touch_apart(const Op *a, const Op *b)
{
    gboolean apart = FALSE;

    for (guint i = 0; i < a->num_operands; i++)
        for (guint j = 0; j < b->num_operands; j++) {
            const Operand *of_a = &a->operands[i], *of_b = &b->operands[j];

            if (of_a->tensor != of_b->tensor)
                continue;
            if (of_a->param == of_b->param || of_a->param == WHOLE_TENSOR ||
                of_b->param == WHOLE_TENSOR)
                return FALSE;
            apart = TRUE;
        }
    return apart;
}

static void add_place(const Program *program, GArray *places, const Place *place,
                      const Op *const ops[2])
{
    if (!is_idle(program, ops[0]) && !is_idle(program, ops[1]) && !touch_apart(ops[0], ops[1]))
        g_array_append_val(places, *place);
}

static void add_places_of_calls(const Program *program, GArray *places)
{
    for (guint c = 0; c < program->step.calls->len; c++) {
        const Call *call = &g_array_index(program->step.calls, Call, c);

        for (guint w = 0; w < call->num_waits; w++) {
            const Wait *wait = &g_array_index(program->step.waits, Wait, call->first_wait + w);
            const Op *const ops[2] = {op_of(program, c, wait->before),
                                      op_of(program, wait->call, wait->op)};
            const Place place = {
                {ops[0]->kind, ops[1]->kind, wait->back > 0, FALSE}, c, call->segment, 0, w};

            add_place(program, places, &place, ops);
        }
    }
}

static void add_places_within(const Program *program, GArray *places)
{
    for (guint s = 0; s < program->segments->len; s++) {
        const Segment *segment = program_segment(program, s);

        for (guint i = 0; i < segment->num_ops; i++)
            for (guint w = 0; w < segment->ops[i].num_waits; w++) {
                const Op *const ops[2] = {&segment->ops[i],
                                          &segment->ops[segment->ops[i].waits[w]]};
                const Place place = {{ops[0]->kind, ops[1]->kind, FALSE, TRUE}, 0, s, i, w};

                add_place(program, places, &place, ops);
            }
    }
}

static GArray *places_of(const Program *program)
{
    GArray *places = g_array_new(FALSE, FALSE, sizeof(Place));

    add_places_of_calls(program, places);
    add_places_within(program, places);
    return places;
}

static gboolean is_kind(const WaitKind *a, const WaitKind *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Of all ranks' programs, each once. */
static GArray *kinds_of(const ProgramSet *set)
{
    GArray *kinds = g_array_new(FALSE, FALSE, sizeof(WaitKind));

    for (guint r = 0; r < set->num_classes; r++) {
        g_autoptr(GArray) places = places_of(set->classes[r]);

        for (guint p = 0; p < places->len; p++) {
            const WaitKind *kind = &g_array_index(places, Place, p).kind;
            gboolean known = FALSE;

            for (guint k = 0; k < kinds->len; k++)
                known |= is_kind(&g_array_index(kinds, WaitKind, k), kind);
            if (!known)
                g_array_append_val(kinds, *kind);
        }
    }
    return kinds;
}

/* ---- dropping ---- */

/* The last takes its place. */
static void drop(Program *program, const Place *place)
{
    Op *op = &program_segment(program, place->segment)->ops[place->op];
    Call *call = &g_array_index(program->step.calls, Call, place->call);
    Wait *first = &g_array_index(program->step.waits, Wait, call->first_wait);

    if (place->kind.within)
        op->waits[place->at] = op->waits[--op->num_waits];
    else
        first[place->at] = first[--call->num_waits];
}

/* The @nth of a kind, in every program that has so many; FALSE: none has. */
static gboolean drop_nth(ProgramSet *set, const WaitKind *kind, guint nth)
{
    gboolean dropped = FALSE;

    for (guint r = 0; r < set->num_classes; r++) {
        g_autoptr(GArray) places = places_of(set->classes[r]);
        guint left = nth;

        for (guint p = 0; p < places->len; p++) {
            const Place *place = &g_array_index(places, Place, p);

            if (!is_kind(&place->kind, kind) || left-- > 0)
                continue;
            drop(set->classes[r], place);
            dropped = TRUE;
            break;
        }
    }
    return dropped;
}

/* The first of a kind, from @nth on, that nothing else makes needless: what the proofs say without
 * it.  FALSE: there is none. */
static gboolean find_needed(const ProgramSpec *spec, const WaitKind *kind, guint *nth)
{
    for (;; (*nth)++) {
        g_autoptr(ProgramSet) set = program_compile(spec);

        if (!drop_nth(set, kind, *nth))
            return FALSE;
        g_autoptr(GPtrArray) problems = program_set_check(set, 0);
        if (problems->len > 0)
            return TRUE;
    }
}

/* At the end of a step it waits for all that computes. */
static gboolean is_kept_by_the_host(const WaitKind *kind)
{
    return kind->back && !op_kind_is_communication(kind->of) && kind->of != OP_COPY;
}

/* ---- runs ---- */

/* Whether something is reported, or a loss is another. */
static gboolean is_found(const ProgramSpec *spec, const WaitKind *kind, guint nth,
                         const double want[TRAIN_STEPS])
{
    const LayoutTask task = train_task(&under_test);
    g_autoptr(LayoutRun) run = layout_run_new(under_test.runtime, spec, &task);
    const guint reports = cudasim_all_reports();
    gint64 found = 0;
    g_autoptr(GError) error = NULL;

    drop_nth(run->set, kind, nth);
    layout_train_to(run, 2);
    layout_drain(run);
    for (guint i = 0; i < run->steps; i++)
        found |= !(fabs(run->loss[i] - want[i]) <= 1e-5 * fabs(want[i]));
    found |= cudasim_all_reports() > reports;
    gboolean ok = runtime_agree_max(under_test.runtime, &found, &error);
    g_assert_no_error(error);
    return ok && found != 0;
}

/* Drops one wait of a kind; FALSE: none is needed.  Of those for the step before one must be found,
 * whichever: the host, which waits for all that computes, also keeps what that has waited for. */
static gboolean try_kind(const ProgramSpec *spec, const WaitKind *kind,
                         const double want[TRAIN_STEPS], gboolean *found)
{
    gboolean tried = FALSE;

    *found = FALSE;
    for (guint nth = 0; !*found && (!tried || kind->back) && find_needed(spec, kind, &nth); nth++) {
        tried = TRUE;
        *found = is_found(spec, kind, nth, want);
    }
    return tried;
}

static void say(const TrainLayout *of, const WaitKind *kind, const char *what)
{
    if (under_test.rank == 0)
        printf("%s: %s without its wait for %s%s%s: %s\n", of->name, op_kind_name(kind->op),
               op_kind_name(kind->of), kind->back ? " of the step before" : "",
               kind->within ? " of its segment" : "", what);
}

START_TEST(a_program_without_one_of_its_waits_is_found)
{
    const TrainLayout *of = &layouts[_i];
    const char *only = g_getenv("LAYOUT");
    LayoutParts parts;
    const ProgramSpec spec = train_spec(&under_test, of, DEVICE_CUDA, &parts);
    g_autoptr(ProgramSet) set = program_compile(&spec);
    g_autoptr(GArray) kinds = kinds_of(set);
    double want[TRAIN_STEPS];
    guint tried = 0, missed = 0;

    if (only != NULL && strcmp(only, of->name) != 0)
        return;
    cudasim_expect_reports();
    train_reference(&under_test, of, want);
    for (guint k = 0; k < kinds->len && (only != NULL || tried == 0); k++) {
        /* One of each layout, and not always the first kind. */
        const WaitKind *kind = &g_array_index(kinds, WaitKind, (k + (guint)_i) % kinds->len);

        gboolean found;

        if (is_kept_by_the_host(kind) || !try_kind(&spec, kind, want, &found))
            continue;
        say(of, kind, found ? "found" : "not found");
        tried++;
        missed += found ? 0 : 1;
    }
    ck_assert_uint_gt(tried, 0);
#ifdef CUDASIM_CHECK
    ck_assert_uint_eq(missed, 0);
#endif
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("a dropped wait");
    TCase *tcase = tcase_create("waits");

    tcase_add_loop_test(tcase, a_program_without_one_of_its_waits_is_found, 0,
                        G_N_ELEMENTS(layouts));
    suite_add_tcase(suite, tcase);
    return train_suite_run(&under_test, suite);
}
