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
    tcase_add_test(tcase, programs_outlive_the_patterns_that_they_share);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
