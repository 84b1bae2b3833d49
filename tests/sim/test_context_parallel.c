#include "sim/layout/context_parallel.h"
#include "tests/suite.h"

#include <string.h>

static void assert_positions(guint seq_len, guint cp, guint rank, const gint32 *wanted)
{
    g_autofree gint32 *positions = g_new(gint32, seq_len / cp);

    context_positions(seq_len, cp, rank, positions);
    for (guint i = 0; i < seq_len / cp; i++)
        ck_assert_int_eq(positions[i], wanted[i]);
}

/* Pieces of 3: 0 1 2 | 3 4 5 | 6 7 8 | 9 10 11; rank 0 has the first and the last. */
START_TEST(a_rank_has_a_piece_from_either_end)
{
    static const gint32 first[] = {0, 1, 2, 9, 10, 11}, second[] = {3, 4, 5, 6, 7, 8};
    static const gint32 third_of_four[] = {2, 5}, last_of_four[] = {3, 4};

    assert_positions(12, 2, 0, first);
    assert_positions(12, 2, 1, second);
    assert_positions(8, 4, 2, third_of_four);
    assert_positions(8, 4, 3, last_of_four);
}
END_TEST

START_TEST(one_rank_has_all_of_any_length)
{
    static const gint32 all[] = {0, 1, 2, 3, 4, 5, 6};

    assert_positions(7, 1, 0, all);
    assert_positions(1, 1, 0, all);
}
END_TEST

/* A query at position p sees p + 1 keys: all ranks together seq (seq + 1) / 2, each an equal part.
 */
START_TEST(every_position_is_on_one_rank_and_all_ranks_have_the_same_work)
{
    for (guint cp = 1; cp <= 9; cp++)
        for (guint piece = 1; piece <= 5; piece++) {
            const guint seq_len = 2 * cp * piece, own = seq_len / cp;
            g_autofree guint *times = g_new0(guint, seq_len);

            for (guint rank = 0; rank < cp; rank++) {
                g_autofree gint32 *positions = g_new(gint32, own);
                guint seen = 0;

                context_positions(seq_len, cp, rank, positions);
                for (guint i = 0; i < own; i++) {
                    ck_assert(positions[i] >= 0 && (guint)positions[i] < seq_len);
                    ck_assert(i == 0 || positions[i] > positions[i - 1]);
                    times[positions[i]]++;
                    seen += (guint)positions[i] + 1;
                }
                ck_assert_uint_eq(seen * cp, seq_len * (seq_len + 1) / 2);
            }
            for (guint i = 0; i < seq_len; i++)
                ck_assert_uint_eq(times[i], 1);
        }
}
END_TEST

/* Of each block of keys that comes by, a rank's queries see as many pairs as of any other rank's:
 * half of the block, half the diagonal more where the block is its own. */
START_TEST(every_block_of_keys_is_the_same_work)
{
    enum { CP = 4, SEQ = 24, OWN = SEQ / CP };

    for (guint rank = 0; rank < CP; rank++)
        for (guint block = 0; block < CP; block++) {
            gint32 queries[OWN], keys[OWN];
            guint pairs = 0;

            context_positions(SEQ, CP, rank, queries);
            context_positions(SEQ, CP, block, keys);
            for (guint q = 0; q < OWN; q++)
                for (guint k = 0; k < OWN; k++)
                    pairs += keys[k] <= queries[q] ? 1 : 0;
            ck_assert_uint_eq(2 * pairs, OWN * OWN + (rank == block ? OWN : 0));
        }
}
END_TEST

START_TEST(names_read_back)
{
    for (guint k = 0; k < NUM_CONTEXT_KINDS; k++) {
        ContextKind kind = NUM_CONTEXT_KINDS;

        ck_assert(context_kind_from_name(context_kind_name((ContextKind)k), &kind));
        ck_assert_uint_eq(kind, k);
    }
    ck_assert_str_eq(context_kind_name(CONTEXT_RING), "ring");
    ck_assert_str_eq(context_kind_name(CONTEXT_ALL_GATHER), "all_gather");
}
END_TEST

START_TEST(an_unknown_name_changes_nothing)
{
    ContextKind kind = CONTEXT_ALL_GATHER;

    ck_assert(!context_kind_from_name("ulysses", &kind));
    ck_assert(!context_kind_from_name("", &kind));
    ck_assert(!context_kind_from_name("Ring", &kind));
    ck_assert_int_eq(kind, CONTEXT_ALL_GATHER);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("context_parallel");
    TCase *tcase = tcase_create("context_parallel");

    tcase_add_test(tcase, a_rank_has_a_piece_from_either_end);
    tcase_add_test(tcase, one_rank_has_all_of_any_length);
    tcase_add_test(tcase, every_position_is_on_one_rank_and_all_ranks_have_the_same_work);
    tcase_add_test(tcase, every_block_of_keys_is_the_same_work);
    tcase_add_test(tcase, names_read_back);
    tcase_add_test(tcase, an_unknown_name_changes_nothing);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
