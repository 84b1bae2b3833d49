#include "sim/layout/layout.h"
#include "tests/suite.h"

/* pp, dp_replicate, dp_shard, cp, tp */
static const Layout sample = {.size = {2, 3, 5, 2, 4}};

START_TEST(world_and_groups_are_products_of_axes)
{
    ck_assert_uint_eq(layout_world(&sample), 240);
    ck_assert_uint_eq(layout_data_ranks(&sample), 15);
    ck_assert_uint_eq(layout_shard_ranks(&sample), 10);
}
END_TEST

START_TEST(tp_is_innermost_and_pp_outermost)
{
    const guint coordinate[NUM_AXES] = {1, 2, 3, 1, 2};

    /* (((1 * 3 + 2) * 5 + 3) * 2 + 1) * 4 + 2 */
    ck_assert_uint_eq(layout_rank(&sample, coordinate), 230);
}
END_TEST

START_TEST(neighbours_along_an_axis_are_a_product_of_inner_axes_apart)
{
    static const guint stride[NUM_AXES] = {120, 40, 8, 4, 1};

    for (guint axis = 0; axis < NUM_AXES; axis++) {
        guint coordinate[NUM_AXES] = {0};

        coordinate[axis] = 1;
        ck_assert_uint_eq(layout_rank(&sample, coordinate), stride[axis]);
    }
}
END_TEST

START_TEST(every_rank_has_coordinates_of_its_own)
{
    for (guint rank = 0; rank < layout_world(&sample); rank++) {
        guint coordinate[NUM_AXES];

        layout_coordinates(&sample, rank, coordinate);
        for (guint axis = 0; axis < NUM_AXES; axis++)
            ck_assert_uint_lt(coordinate[axis], sample.size[axis]);
        ck_assert_uint_eq(layout_rank(&sample, coordinate), rank);
    }
}
END_TEST

START_TEST(text_names_axes_larger_than_one)
{
    const Layout one = {.size = {1, 1, 1, 1, 1}}, hybrid = {.size = {1, 2, 4, 1, 1}};
    g_autofree char *one_text = layout_text(&one);
    g_autofree char *hybrid_text = layout_text(&hybrid);

    ck_assert_str_eq(one_text, "1 rank");
    ck_assert_str_eq(hybrid_text, "dp_replicate=2 dp_shard=4");
}
END_TEST

START_TEST(axis_names_are_read_back)
{
    Axis axis = AXIS_CP;

    ck_assert(!axis_from_name("dp", &axis));
    ck_assert_int_eq(axis, AXIS_CP);
    for (guint i = 0; i < NUM_AXES; i++) {
        ck_assert(axis_from_name(axis_name((Axis)i), &axis));
        ck_assert_uint_eq(axis, i);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("layout");
    TCase *tcase = tcase_create("layout");

    tcase_add_test(tcase, world_and_groups_are_products_of_axes);
    tcase_add_test(tcase, tp_is_innermost_and_pp_outermost);
    tcase_add_test(tcase, neighbours_along_an_axis_are_a_product_of_inner_axes_apart);
    tcase_add_test(tcase, every_rank_has_coordinates_of_its_own);
    tcase_add_test(tcase, text_names_axes_larger_than_one);
    tcase_add_test(tcase, axis_names_are_read_back);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
