/* Trainings on the CUDA device, joined by NCCL without MPI. */
#include "tests/cuda/tcp_ranks.h"
#include "tests/cuda/train_layouts.h"

START_TEST(ranks_that_meet_without_mpi_train_as_one_on_the_cpu)
{
    if (tcp_ranks_wanted(1u << _i))
        tcp_ranks_run(1u << _i, train_all_layouts);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("training on CUDA without MPI");
    TCase *tcase = tcase_create("layouts");

    tcase_set_timeout(tcase, TCP_TIMEOUT_S);
    tcase_add_loop_test(tcase, ranks_that_meet_without_mpi_train_as_one_on_the_cpu, 0, 3);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
