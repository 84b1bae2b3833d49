#include "sim/program/pattern.h"

#include "tests/sim/spec_case.h"

/* Placed, so that the hash knows waits and offsets. */
static ProgramSet *compile_with(const Case *from, Patterns *patterns)
{
    ProgramSpec spec = case_spec(from);

    spec.patterns = patterns;
    ProgramSet *set = program_compile_unplaced(&spec);
    for (guint c = 0; c < set->num_classes; c++)
        program_place_tensors(set->classes[c]);
    return set;
}

static void compare(const Case *one, Patterns *patterns)
{
    g_autoptr(ProgramSet) plain = compile_with(one, NULL);
    g_autoptr(ProgramSet) set = compile_with(one, patterns);
    g_autofree char *plain_hash = program_set_hash(plain), *hash = program_set_hash(set);
    g_autofree char *text = case_text(one);

    ck_assert_msg(strcmp(plain_hash, hash) == 0, "%s", text);
}

/* One store for all: what only nearly is a pattern that is known must not be taken for it. */
START_TEST(with_patterns_programs_are_the_same)
{
    enum { CASES = 60 };
    g_autoptr(GRand) random = g_rand_new_with_seed(7 + (guint)_i);
    g_autoptr(Patterns) patterns = patterns_new();
    g_autoptr(Model) model = case_model(&case_shape);

    for (guint i = 0; i < CASES; i++) {
        Case one = case_random_4d(random, model);

        compare(&one, patterns);
        one.layout.size[AXIS_DP_REPLICATE] *= 2;
        one.workload.global_batch *= 2;
        if (case_verdict(&one, NULL) == VERDICT_OK)
            compare(&one, patterns);
    }
}
END_TEST

START_TEST(programs_share_a_pattern_where_only_sizes_differ)
{
    g_autoptr(Patterns) patterns = patterns_new();
    g_autoptr(Model) model = case_model(&case_shape);
    const Case two = case_of(model, 1, 2, 3), four = case_of(model, 1, 4, 3);
    const Case longer = case_of(model, 1, 2, 4);
    Case unlike = two;

    unlike.sharding.prefetch = 0;
    g_autoptr(ProgramSet) first = compile_with(&two, patterns);
    g_autoptr(ProgramSet) same = compile_with(&four, patterns);
    g_autoptr(ProgramSet) other = compile_with(&longer, patterns);
    g_autoptr(ProgramSet) unordered = compile_with(&unlike, patterns);
    ck_assert_ptr_eq(same->classes[0]->pattern, first->classes[0]->pattern);
    ck_assert_ptr_ne(other->classes[0]->pattern, first->classes[0]->pattern);
    ck_assert_ptr_ne(unordered->classes[0]->pattern, first->classes[0]->pattern);
}
END_TEST

/* All that waits and lifetimes depend on, each changed in a program of its own. */
static const struct {
    const char *what;
    gboolean matters;
} changes[] = {
    {"index of a call", TRUE},         {"first of a call", TRUE},
    {"segment of a call", TRUE},       {"stream of an op", TRUE},
    {"predicate of an op", TRUE},      {"tensor of an operand", TRUE},
    {"access of an operand", TRUE},    {"shift of an operand", TRUE},
    {"part of an operand", TRUE},      {"space of a tensor", TRUE},
    {"persistence of a tensor", TRUE}, {"copies in a space", TRUE},
    {"elements of a tensor", FALSE},   {"type of a tensor", FALSE},
    {"size of an op", FALSE},
};

static void change(Program *program, guint which)
{
    Call *call = &g_array_index(program->step.calls, Call, program->step.calls->len / 2);
    Op *op = &program_segment(program, call->segment)->ops[0];
    Tensor *tensor = program_tensor(program, op->operands[0].tensor);

    switch (which) {
    case 0:
        call->index[program->spaces->len - 1]++;
        break;
    case 1:
        call->first = !call->first;
        break;
    case 2:
        call->segment++;
        break;
    case 3:
        op->stream++;
        break;
    case 4:
        op->predicate = 1;
        break;
    case 5:
        op->operands[0].tensor++;
        break;
    case 6:
        op->operands[0].access = ACCESS_UPDATE;
        break;
    case 7:
        op->operands[0].shift++;
        break;
    case 8:
        op->operands[0].param = op->operands[0].param == WHOLE_TENSOR ? 0 : WHOLE_TENSOR;
        break;
    case 9:
        tensor->space++;
        break;
    case 10:
        tensor->persistence = tensor->persistence == PERSIST_STEP ? PERSIST_STATE : PERSIST_STEP;
        break;
    case 11:
        g_array_index(program->spaces, Space, 1).count++;
        break;
    case 12:
        tensor->elements++;
        break;
    case 13:
        tensor->dtype = DTYPE_FP64;
        break;
    default:
        op->sizes.rows++;
    }
}

START_TEST(what_waits_and_lifetimes_depend_on_makes_another_pattern)
{
    g_autoptr(Patterns) patterns = patterns_new();
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_of(model, 1, 2, 3);
    const ProgramSpec spec = case_spec(&one);
    g_autoptr(Program) plain = program_build_unplaced(&spec, 0);
    g_autoptr(Program) changed = program_build_unplaced(&spec, 0);
    Pattern *pattern = patterns_find(patterns, plain);

    change(changed, (guint)_i);
    Pattern *other = patterns_find(patterns, changed);
    ck_assert_msg((other != pattern) == changes[_i].matters, "%s", changes[_i].what);
    pattern_unref(pattern);
    pattern_unref(other);
}
END_TEST

START_TEST(programs_outlive_the_patterns_that_they_share)
{
    Patterns *patterns = patterns_new();
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_of(model, 1, 2, 3);
    g_autoptr(ProgramSet) set = compile_with(&one, patterns);

    patterns_free(patterns);
    program_place_tensors(set->classes[0]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pattern");
    TCase *tcase = tcase_create("pattern");

    tcase_add_loop_test(tcase, with_patterns_programs_are_the_same, 0, 4);
    tcase_add_test(tcase, programs_share_a_pattern_where_only_sizes_differ);
    tcase_add_loop_test(tcase, what_waits_and_lifetimes_depend_on_makes_another_pattern, 0,
                        G_N_ELEMENTS(changes));
    tcase_add_test(tcase, programs_outlive_the_patterns_that_they_share);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
