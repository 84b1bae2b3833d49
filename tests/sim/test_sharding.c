#include "sim/layout/sharding.h"
#include "tests/suite.h"

/* @rows and @cols of @num tensors; cols 0 stands for a vector. */
static GArray *params_of(const guint64 (*shapes)[2], guint num)
{
    GArray *params = g_array_new(FALSE, FALSE, sizeof(ParamShape));

    for (guint i = 0; i < num; i++) {
        const ParamShape shape = {
            .rows = shapes[i][0],
            .cols = MAX(shapes[i][1], 1),
            .dims = shapes[i][1] == 0 ? 1 : 2,
        };

        g_array_append_val(params, shape);
    }
    return params;
}

static UnitMap *map_of_one(guint64 rows, guint64 cols, guint ranks, Form form)
{
    const guint64 shape[1][2] = {{rows, cols}};
    g_autoptr(GArray) params = params_of(shape, 1);

    return unit_map_new(params, ranks, form);
}

/* Worked by hand: elements of each rank for (rows, cols). */
static const struct {
    guint64 rows, cols;
    guint ranks;
    guint64 elements[4];
} worked[] = {
    {5, 0, 2, {3, 2}},             /* ceil(5 / 2) = 3 */
    {5, 0, 4, {2, 2, 1, 0}},       /* ceil(5 / 4) = 2 */
    {257, 10, 3, {860, 860, 850}}, /* 86, 86, 85 rows */
    {2, 7, 4, {7, 7, 0, 0}},       /* fewer rows than ranks */
    {4, 3, 4, {3, 3, 3, 3}},       /* even */
    {6, 1, 1, {6}},                /* one rank has all */
};

START_TEST(uneven_rows_leave_trailing_ranks_short_or_empty)
{
    g_autoptr(UnitMap) map =
        map_of_one(worked[_i].rows, worked[_i].cols, worked[_i].ranks, FORM_PER_PARAMETER);

    for (guint rank = 0; rank < worked[_i].ranks; rank++)
        ck_assert_uint_eq(unit_map_span(map, 0, rank).elements, worked[_i].elements[rank]);
    ck_assert_uint_eq(map->shard_elements, worked[_i].elements[0]);
    ck_assert_uint_eq(map->full_elements, worked[_i].ranks * worked[_i].elements[0]);
}
END_TEST

START_TEST(flat_units_are_cut_across_parameters)
{
    /* 10 elements on 4: chunks of 3, 3, 3, 1 + 2 of padding; the second tensor starts at 4. */
    static const guint64 shapes[2][2] = {{2, 2}, {6, 0}};
    g_autoptr(GArray) params = params_of(shapes, 2);
    g_autoptr(UnitMap) map = unit_map_new(params, 4, FORM_FLAT);
    const ShardSpan first = unit_map_span(map, 0, 1), second = unit_map_span(map, 1, 1);

    ck_assert_uint_eq(map->num_pieces, 1);
    ck_assert_uint_eq(map->shard_elements, 3);
    ck_assert_uint_eq(map->full_elements, 12);
    ck_assert_uint_eq(first.start, 3);
    ck_assert_uint_eq(first.elements, 1);
    ck_assert_uint_eq(first.shard_offset, 0);
    ck_assert_uint_eq(second.start, 0);
    ck_assert_uint_eq(second.elements, 2);
    ck_assert_uint_eq(second.shard_offset, 1);
    ck_assert_uint_eq(second.full_offset, 4);
    ck_assert_uint_eq(unit_map_span(map, 0, 3).elements, 0);
    ck_assert_uint_eq(unit_map_span(map, 1, 3).elements, 1);
}
END_TEST

/* A unit of up to 6 random tensors. */
static GArray *random_params(GRand *random)
{
    guint64 shapes[6][2];
    const guint num = (guint)g_rand_int_range(random, 1, 7);

    for (guint i = 0; i < num; i++) {
        shapes[i][0] = (guint64)g_rand_int_range(random, 1, 12);
        shapes[i][1] = (guint64)g_rand_int_range(random, 0, 5);
    }
    return params_of(shapes, num);
}

/* Fills @shard with the numbers (parameter * 1000 + element) of what @rank holds; each place once.
 */
static void fill_shard(const UnitMap *map, guint rank, guint *shard)
{
    for (guint param = 0; param < map->num_params; param++) {
        const ShardSpan span = unit_map_span(map, param, rank);

        ck_assert_uint_le(span.shard_offset + span.elements, map->shard_elements);
        for (guint64 i = 0; i < span.elements; i++) {
            ck_assert_uint_eq(shard[span.shard_offset + i], 0);
            shard[span.shard_offset + i] = 1 + param * 1000 + (guint)(span.start + i);
            ck_assert_uint_eq(span.full_offset + i,
                              map->params[param].full_offset + span.start + i);
        }
    }
}

/* What a collective does with rank @rank's shard: piece by piece into the whole unit. */
static void gather(const UnitMap *map, guint rank, const guint *shard, guint *whole)
{
    for (guint p = 0; p < map->num_pieces; p++) {
        const ShardPiece *piece = &map->pieces[p];

        for (guint64 i = 0; i < piece->chunk; i++) {
            const guint64 at = piece->full_offset + rank * piece->chunk + i;

            ck_assert_uint_lt(at, map->full_elements);
            whole[at] = shard[piece->shard_offset + i];
        }
    }
}

static void check_tiling(const GArray *params, guint ranks, Form form)
{
    g_autoptr(UnitMap) map = unit_map_new(params, ranks, form);
    g_autofree guint *whole = g_new0(guint, map->full_elements);
    guint64 held = 0;

    ck_assert_uint_eq(map->full_elements, ranks * map->shard_elements);
    for (guint rank = 0; rank < ranks; rank++) {
        g_autofree guint *shard = g_new0(guint, map->shard_elements);

        fill_shard(map, rank, shard);
        gather(map, rank, shard, whole);
        for (guint param = 0; param < params->len; param++)
            held += unit_map_span(map, param, rank).elements;
    }
    ck_assert_uint_eq(held, map->elements);
    for (guint param = 0; param < params->len; param++) {
        const ParamShape *shape = &g_array_index(params, ParamShape, param);

        for (guint64 i = 0; i < shape->rows * shape->cols; i++)
            ck_assert_uint_eq(whole[map->params[param].full_offset + i],
                              1 + param * 1000 + (guint)i);
    }
}

START_TEST(gathering_the_shards_of_all_ranks_gives_every_parameter_whole_and_in_order)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(11);

    for (guint round = 0; round < 100; round++) {
        g_autoptr(GArray) params = random_params(random);

        for (guint ranks = 1; ranks <= 9; ranks++) {
            check_tiling(params, ranks, FORM_PER_PARAMETER);
            check_tiling(params, ranks, FORM_FLAT);
        }
    }
}
END_TEST

START_TEST(per_parameter_shards_hold_whole_rows)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(12);

    for (guint round = 0; round < 100; round++) {
        g_autoptr(GArray) params = random_params(random);
        const guint ranks = (guint)g_rand_int_range(random, 1, 10);
        g_autoptr(UnitMap) map = unit_map_new(params, ranks, FORM_PER_PARAMETER);

        for (guint i = 0; i < params->len * ranks; i++) {
            const ShardSpan span = unit_map_span(map, i % params->len, i / params->len);

            ck_assert_uint_eq(span.elements % map->params[i % params->len].cols, 0);
            ck_assert_uint_eq(span.start % map->params[i % params->len].cols, 0);
        }
    }
}
END_TEST

START_TEST(padding_is_less_than_one_row_or_element_a_rank)
{
    g_autoptr(UnitMap) rows = map_of_one(1000003, 64, 7, FORM_PER_PARAMETER);
    g_autoptr(UnitMap) flat = map_of_one(1000003, 64, 7, FORM_FLAT);

    ck_assert_uint_lt(rows->full_elements - rows->elements, 7 * 64);
    ck_assert_uint_lt(flat->full_elements - flat->elements, 7);
}
END_TEST

START_TEST(names_are_read_back_and_strategies_in_upper_case_too)
{
    Strategy strategy = STRATEGY_NO_SHARD;
    Form form;

    ck_assert(strategy_from_name("FULL_SHARD", &strategy));
    ck_assert_int_eq(strategy, STRATEGY_FULL_SHARD);
    ck_assert(!strategy_from_name("zero3", &strategy));
    ck_assert_int_eq(strategy, STRATEGY_FULL_SHARD);
    for (guint i = 0; i < NUM_STRATEGIES; i++) {
        ck_assert(strategy_from_name(strategy_name((Strategy)i), &strategy));
        ck_assert_uint_eq(strategy, i);
    }
    for (guint i = 0; i < NUM_FORMS; i++) {
        ck_assert(form_from_name(form_name((Form)i), &form));
        ck_assert_uint_eq(form, i);
    }
    ck_assert(!form_from_name("flatt", &form));
}
END_TEST

START_TEST(the_root_and_the_last_block_are_kept_where_asked)
{
    Sharding sharding = {.strategy = STRATEGY_FULL_SHARD, .keep_root = TRUE, .keep_last = TRUE};

    ck_assert(sharding_unit_kept(&sharding, ROOT_UNIT, 4));
    ck_assert(!sharding_unit_kept(&sharding, 1, 4));
    ck_assert(!sharding_unit_kept(&sharding, 3, 4));
    ck_assert(sharding_unit_kept(&sharding, 4, 4));
    sharding.keep_root = sharding.keep_last = FALSE;
    ck_assert(!sharding_unit_kept(&sharding, ROOT_UNIT, 4));
    ck_assert(!sharding_unit_kept(&sharding, 4, 4));
}
END_TEST

START_TEST(overrides_change_one_field_of_their_units_and_the_last_one_holds)
{
    const Sharding sharding = {
        .strategy = STRATEGY_FULL_SHARD,
        .num_overrides = 3,
        .overrides = {{.first = 2, .last = 3, .strategy = STRATEGY_SHARD_GRAD_OP, .keep = -1},
                      {.first = 1, .last = 1, .strategy = -1, .keep = 1},
                      {.first = 3, .last = 4, .strategy = STRATEGY_FULL_SHARD, .keep = -1}},
    };
    static const Strategy strategies[] = {STRATEGY_FULL_SHARD, STRATEGY_FULL_SHARD,
                                          STRATEGY_SHARD_GRAD_OP, STRATEGY_FULL_SHARD,
                                          STRATEGY_FULL_SHARD};
    /* Unit 2 is there from forward to backward by its strategy. */
    static const gboolean kept[] = {FALSE, TRUE, TRUE, FALSE, FALSE};

    for (guint unit = 0; unit <= 4; unit++) {
        ck_assert_int_eq(sharding_unit_strategy(&sharding, unit), strategies[unit]);
        ck_assert_int_eq(sharding_unit_kept(&sharding, unit, 4), kept[unit]);
    }
}
END_TEST

/* A block is named with its experts, and each part of it alone. */
START_TEST(overrides_name_blocks_or_parts_of_them)
{
    const Sharding sharding = {
        .strategy = STRATEGY_FULL_SHARD,
        .keep_last = TRUE,
        .num_overrides = 4,
        .overrides = {{1, 3, STRATEGY_SHARD_GRAD_OP, -1},
                      {EXPERTS_UNITS + 2, EXPERTS_UNITS + 3, STRATEGY_SHARD_OPTIMIZER, -1},
                      {REST_UNITS + 3, REST_UNITS + 4, STRATEGY_NO_SHARD, -1},
                      {EXPERTS_UNITS + 4, EXPERTS_UNITS + 4, -1, TRUE}},
    };
    static const Strategy block[] = {STRATEGY_FULL_SHARD,    STRATEGY_SHARD_GRAD_OP,
                                     STRATEGY_SHARD_GRAD_OP, STRATEGY_NO_SHARD,
                                     STRATEGY_NO_SHARD,      STRATEGY_FULL_SHARD},
                          experts[] = {STRATEGY_FULL_SHARD,      STRATEGY_SHARD_GRAD_OP,
                                       STRATEGY_SHARD_OPTIMIZER, STRATEGY_SHARD_OPTIMIZER,
                                       STRATEGY_FULL_SHARD,      STRATEGY_FULL_SHARD};

    for (guint unit = 1; unit < G_N_ELEMENTS(block); unit++) {
        ck_assert_int_eq(sharding_unit_strategy(&sharding, unit), block[unit]);
        ck_assert_int_eq(sharding_unit_strategy(&sharding, EXPERTS_UNITS + unit), experts[unit]);
    }
    ck_assert_int_eq(sharding_unit_strategy(&sharding, ROOT_UNIT), STRATEGY_FULL_SHARD);
    ck_assert(sharding_unit_kept(&sharding, EXPERTS_UNITS + 4, 5));
    ck_assert(sharding_unit_kept(&sharding, EXPERTS_UNITS + 5, 5));
    ck_assert(!sharding_unit_kept(&sharding, EXPERTS_UNITS + 5, 6));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sharding");
    TCase *tcase = tcase_create("sharding");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, uneven_rows_leave_trailing_ranks_short_or_empty, 0,
                        G_N_ELEMENTS(worked));
    tcase_add_test(tcase, flat_units_are_cut_across_parameters);
    tcase_add_test(tcase,
                   gathering_the_shards_of_all_ranks_gives_every_parameter_whole_and_in_order);
    tcase_add_test(tcase, per_parameter_shards_hold_whole_rows);
    tcase_add_test(tcase, padding_is_less_than_one_row_or_element_a_rank);
    tcase_add_test(tcase, names_are_read_back_and_strategies_in_upper_case_too);
    tcase_add_test(tcase, the_root_and_the_last_block_are_kept_where_asked);
    tcase_add_test(tcase, overrides_change_one_field_of_their_units_and_the_last_one_holds);
    tcase_add_test(tcase, overrides_name_blocks_or_parts_of_them);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
