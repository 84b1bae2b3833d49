#include "tests/exec/comm_suite.h"

START_TEST(a_message_without_a_counterpart_is_an_error)
{
    CommGroup *group = under_test.group[0];
    char byte = 0, other = 0;
    const CommMessage one_way[] = {{&byte, 1, 0, 4, TRUE}};
    const CommMessage wrong_tag[] = {{&byte, 1, 0, 4, TRUE}, {&other, 1, 0, 5, FALSE}};
    g_autoptr(GError) first = NULL, second = NULL;

    ck_assert(!comm_self.exchange(group, one_way, 1, &first));
    ck_assert_ptr_nonnull(strstr(first->message, "tag 4"));
    ck_assert(!comm_self.exchange(group, wrong_tag, 2, &second));
}
END_TEST

START_TEST(equal_tags_pair_in_the_order_given)
{
    CommGroup *group = under_test.group[0];
    char out[] = {'a', 'b'}, in[2] = "";
    const CommMessage messages[] = {{&out[0], 1, 0, 4, TRUE},
                                    {&out[1], 1, 0, 4, TRUE},
                                    {&in[0], 1, 0, 4, FALSE},
                                    {&in[1], 1, 0, 4, FALSE}};

    ck_assert(comm_self.exchange(group, messages, 4, NULL));
    ck_assert(in[0] == 'a' && in[1] == 'b');
}
END_TEST

START_TEST(one_rank_receives_nothing_from_others)
{
    const Comm *comm = under_test.comm;

    ck_assert_uint_eq(comm->bytes_in[VOLUME_ALL_GATHER], 0);
    ck_assert_uint_eq(comm->bytes_in[VOLUME_REDUCE_SCATTER], 0);
    ck_assert_uint_eq(comm->bytes_in[VOLUME_ALL_REDUCE], 0);
    ck_assert_uint_eq(comm_foreign_bytes(comm), 0);
    ck_assert_str_eq(comm_describe(comm), "one rank");
}
END_TEST

int main(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Comm) comm = comm_open("self", 0, &error);
    Suite *suite = comm_suite("comm_self");
    TCase *tcase = tcase_create("one rank");

    g_assert_no_error(error);
    tcase_add_test(tcase, a_message_without_a_counterpart_is_an_error);
    tcase_add_test(tcase, equal_tags_pair_in_the_order_given);
    tcase_add_test(tcase, one_rank_receives_nothing_from_others);
    suite_add_tcase(suite, tcase);
    return comm_suite_run(suite, comm) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
