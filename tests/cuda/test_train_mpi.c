/* Run under mpirun with 1, 2 or 4 ranks: trainings on the CUDA device, joined by MPI through pinned
 * memory, or with NCCL in the environment by NCCL. */
#include "tests/cuda/train_layouts.h"

static TrainTest under_test;

START_TEST(layouts_train_on_the_device_as_one_rank_on_the_cpu)
{
    g_autoptr(GError) error = NULL;
    gint64 failed = train_all_layouts(&under_test);

    ck_assert(runtime_agree_max(under_test.runtime, &failed, &error));
    ck_assert_msg(failed == 0, "a rank says why on stderr");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("training on CUDA");
    TCase *tcase = tcase_create("layouts");

    tcase_add_test(tcase, layouts_train_on_the_device_as_one_rank_on_the_cpu);
    suite_add_tcase(suite, tcase);
    return train_suite_run(&under_test, suite);
}
