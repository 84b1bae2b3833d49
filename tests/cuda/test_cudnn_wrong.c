/* A cuDNN that can't be trusted, which only the simulated device has. */
#include "sim/base/error.h"
#include "tests/cuda/cudnn_case.h"

static TrainTest test;

static void setup(void)
{
    test = cudnn_test();
}

static void teardown(void)
{
    g_unsetenv("CUDASIM_CUDNN_SCALE");
    g_unsetenv("CUDASIM_CUDNN_RIGHT");
    g_unsetenv("CUDASIM_CUDNN_VERSION");
    train_test_close(&test);
}

/* The scale of scores is the one that matters. */
START_TEST(other_results_than_the_own_kernels_are_noticed_before_training)
{
    g_setenv("CUDASIM_CUDNN_SCALE", "1.25", TRUE);
    g_autofree char *why = cudnn_refusal_of(&test, &cudnn_layout);
    ck_assert(why != NULL && g_str_has_prefix(why, "its o differs from the own kernels' by 0."));
    g_setenv("CUDASIM_CUDNN_SCALE", "1", TRUE);
    g_autofree char *right = cudnn_refusal_of(&test, &cudnn_layout);
    ck_assert_msg(right == NULL, "%s", right);
}
END_TEST

/* 200 tokens, of which the first 192 and more are right by themselves: what is compared is as long
 * as what will run. */
START_TEST(what_is_wrong_at_the_planned_length_only_is_noticed)
{
    LayoutParts parts;
    const ProgramSpec spec = train_spec(&test, &cudnn_layout, DEVICE_CUDA, &parts);

    parts.workload.seq_len = 200;
    g_autoptr(ProgramSet) set = program_compile(&spec);
    g_setenv("CUDASIM_CUDNN_SCALE", "1.25", TRUE);
    g_setenv("CUDASIM_CUDNN_RIGHT", "200", TRUE);
    g_autofree char *right = cudnn_refusal(&test, set->classes[0]);
    ck_assert_msg(right == NULL, "%s", right);
    g_setenv("CUDASIM_CUDNN_RIGHT", "199", TRUE);
    g_autofree char *why = cudnn_refusal(&test, set->classes[0]);
    ck_assert(why != NULL && g_str_has_suffix(why, "of it on this GPU, at 200 tokens"));
}
END_TEST

START_TEST(an_old_one_is_refused_with_both_versions)
{
    g_setenv("CUDASIM_CUDNN_VERSION", "90800", TRUE);
    g_autofree char *why = cudnn_refusal_of(&test, &cudnn_layout);
    ck_assert_str_eq(why, "libcudnn.so.9 is cuDNN 9.8.0; it takes 9.10.0");
}
END_TEST

static GError *open_interpreter(AttentionMode attention, char **said)
{
    const InterpreterOptions options = {.attention = attention};
    GError *error = NULL;
    LayoutParts parts;
    const ProgramSpec spec = train_spec(&test, &cudnn_layout, DEVICE_CUDA, &parts);
    g_autoptr(ProgramSet) set = program_compile(&spec);
    g_autoptr(Interpreter) interpreter = interpreter_new_with(test.runtime, set, &options, &error);

    *said = interpreter == NULL ? NULL : g_strdup(interpreter_attention(interpreter));
    return error;
}

START_TEST(asked_for_it_is_an_error_and_left_open_it_is_said)
{
    g_autofree char *said = NULL, *nothing = NULL;

    g_setenv("CUDASIM_CUDNN_VERSION", "90800", TRUE);
    g_autoptr(GError) none = open_interpreter(ATTENTION_BY_AUTO, &said);
    g_assert_no_error(none);
    ck_assert_str_eq(said, "own kernels (cuDNN: libcudnn.so.9 is cuDNN 9.8.0; it takes 9.10.0)");
    g_autoptr(GError) error = open_interpreter(ATTENTION_BY_CUDNN, &nothing);
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_RUNTIME));
    ck_assert_str_eq(error->message,
                     "--attention cudnn: libcudnn.so.9 is cuDNN 9.8.0; it takes 9.10.0");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("a cuDNN that is wrong");
    TCase *tcase = tcase_create("refusals");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, other_results_than_the_own_kernels_are_noticed_before_training);
    tcase_add_test(tcase, what_is_wrong_at_the_planned_length_only_is_noticed);
    tcase_add_test(tcase, an_old_one_is_refused_with_both_versions);
    tcase_add_test(tcase, asked_for_it_is_an_error_and_left_open_it_is_said);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
