/* Ops between micro-batches and steps, on units that several ranks share. */
#include "tests/exec/kernel_case.h"

enum { RANKS = 3 };

/* A matrix whose rows do not divide by the ranks, a vector shorter than they are, a larger one. */
static const ParamShape shapes[] = {
    {.name = (char *)"matrix", .rows = 7, .cols = 5, .dims = 2},
    {.name = (char *)"short", .rows = 2, .cols = 1, .dims = 1},
    {.name = (char *)"wide", .rows = 50, .cols = 150, .dims = 2},
};

static UnitMap *unit(guint ranks, Form form)
{
    g_autoptr(GArray) params = g_array_new(FALSE, FALSE, sizeof(ParamShape));

    g_array_append_vals(params, shapes, G_N_ELEMENTS(shapes));
    return unit_map_new(params, ranks, form);
}

/* Adds an operand that holds one part of the unit: values at the real elements of this rank's
 * spans, NaN elsewhere. */
static guint add_unit_operand(KernelCase *c, Access access, DType type, UnitPart part)
{
    const UnitMap *map = c->map;
    const guint operand =
        case_add(c, access, type, part == PART_SHARD ? map->shard_elements : map->full_elements);

    c->part[operand] = part;
    case_fill(c, operand, (double)NAN);
    for (guint param = 0; param < map->num_params; param++) {
        const ShardSpan span = unit_map_span(map, param, c->map_rank);
        const guint64 at = part == PART_SHARD ? span.shard_offset : span.full_offset;

        for (guint64 i = 0; i < span.elements; i++)
            case_set(c, operand, at + i, noise(&c->state));
    }
    return operand;
}

static guint add_scalar(KernelCase *c, Access access, double value)
{
    const guint operand = case_add(c, access, DTYPE_FP64, 1);

    case_set(c, operand, 0, value);
    return operand;
}

START_TEST(count_valid_counts_labels_and_accumulates)
{
    KernelCase c = kernel_case(OP_COUNT_VALID, DTYPE_FP32, (OpSizes){.rows = 5});
    const gint32 labels[] = {3, -1, 0, -1, 7};

    case_add(&c, ACCESS_READ, DTYPE_INT32, 5);
    add_scalar(&c, ACCESS_ACCUMULATE, (double)NAN);
    memcpy(c.data[0], labels, sizeof labels);
    case_run_first(&c, 1, TRUE);
    ck_assert(case_get(&c, 1, 0) == 3);
    case_run_first(&c, 2, FALSE);
    ck_assert(case_get(&c, 1, 0) == 6);
    kernel_case_clear(&c);
}
END_TEST

/* ---- norm and clipping ---- */

static KernelCase norm_case(const UnitMap *map, guint rank, DType dtype, UnitPart part)
{
    KernelCase c = kernel_case(OP_SQUARED_NORM, DTYPE_FP32, (OpSizes){0});

    c.map = map;
    c.map_rank = rank;
    c.op.dtype_out = dtype;
    add_unit_operand(&c, ACCESS_READ, dtype, part);
    add_scalar(&c, ACCESS_ACCUMULATE, 0.5);
    return c;
}

/* Padding and the elements of others are NaN: one of them read, and the sum is. */
START_TEST(squared_norm_reads_the_real_elements_of_its_rank_only)
{
    const Form form = _i % 2 == 0 ? FORM_PER_PARAMETER : FORM_FLAT;
    const DType dtype = _i / 2 % 2 == 0 ? DTYPE_FP32 : DTYPE_BF16;
    const UnitPart part = _i / 4 == 0 ? PART_SHARD : PART_WHOLE;
    g_autoptr(UnitMap) map = unit(RANKS, form);
    guint64 counted = 0;

    for (guint rank = 0; rank < RANKS; rank++) {
        KernelCase c = norm_case(map, rank, dtype, part);
        double want = 0;

        for (guint64 i = 0; i < c.count[0]; i++)
            if (!isnan(case_get(&c, 0, i))) {
                want += case_get(&c, 0, i) * case_get(&c, 0, i);
                counted++;
            }
        case_check_threads(&c);
        case_run_first(&c, 2, TRUE);
        ck_assert_double_eq_tol(case_get(&c, 1, 0), want, 1e-12 * (want + 1));
        case_run_first(&c, 2, FALSE);
        ck_assert_double_eq_tol(case_get(&c, 1, 0), 2 * want, 1e-12 * (want + 1));
        kernel_case_clear(&c);
    }
    ck_assert_uint_eq(counted, map->elements); /* the ranks together have each element once */
}
END_TEST

START_TEST(a_nan_reaches_the_squared_norm)
{
    g_autoptr(UnitMap) map = unit(1, FORM_PER_PARAMETER);
    KernelCase c = norm_case(map, 0, DTYPE_BF16, PART_WHOLE);

    case_set(&c, 0, 40, (double)NAN);
    case_run(&c, 1);
    ck_assert(isnan(case_get(&c, 1, 0)));
    kernel_case_clear(&c);
}
END_TEST

/* By hand: sums 9 + 16 make a norm of 5, a loss of 2 over 8 labels a mean of 0.25. */
static const struct {
    double max_norm, valid, loss, sums[2], mean, norm, coef, finite;
} clips[] = {
    {1, 8, 2, {9, 16}, 0.25, 5, 1 / (5 + 1e-6), 1},
    {10, 1, 2, {9, 16}, 2, 5, 1, 1},
    {0, 0, 0, {9, 16}, 0, 5, 1, 1}, /* off; no label at all */
    {1, 8, (double)NAN, {9, 16}, (double)NAN, 5, 1 / (5 + 1e-6), 0},
    {1, 8, (double)INFINITY, {9, 16}, (double)INFINITY, 5, 1 / (5 + 1e-6), 0},
    {1, 8, 2, {(double)INFINITY, 16}, 0.25, (double)INFINITY, 0, 0},
};

static KernelCase clip_case(double max_norm, double valid, double loss)
{
    KernelCase c = kernel_case(OP_CLIP, DTYPE_FP32, (OpSizes){0});

    case_add(&c, ACCESS_READ, DTYPE_FP64, NUM_HYPER);
    case_set(&c, 0, HYPER_MAX_NORM, max_norm);
    add_scalar(&c, ACCESS_READ, valid);
    add_scalar(&c, ACCESS_UPDATE, loss);
    for (guint i = 0; i < 3; i++)
        add_scalar(&c, ACCESS_WRITE, (double)NAN);
    return c;
}

START_TEST(clip_gives_the_worked_values)
{
    KernelCase c = clip_case(clips[_i].max_norm, clips[_i].valid, clips[_i].loss);

    for (guint i = 0; i < 2; i++)
        add_scalar(&c, ACCESS_READ, clips[_i].sums[i]);
    case_run(&c, 1);
    const double mean = case_get(&c, 2, 0);
    ck_assert(mean == clips[_i].mean || (isnan(mean) && isnan(clips[_i].mean)));
    ck_assert(case_get(&c, 3, 0) == clips[_i].norm);
    ck_assert(case_get(&c, 4, 0) == clips[_i].coef);
    ck_assert(case_get(&c, 5, 0) == clips[_i].finite);
    kernel_case_clear(&c);
}
END_TEST

START_TEST(clip_with_a_sum_that_is_nan_is_not_finite)
{
    KernelCase c = clip_case(1, 1, 2);

    add_scalar(&c, ACCESS_READ, (double)NAN); /* one sum only */
    case_run(&c, 1);
    ck_assert(isnan(case_get(&c, 3, 0)));
    ck_assert(case_get(&c, 5, 0) == 0);
    kernel_case_clear(&c);
}
END_TEST

/* ---- optimisers ---- */

typedef struct {
    DType parameter, gradient;
    gboolean master;
    UnitPart parts[2]; /* of parameter and gradient; states are shards */
} UpdateForm;

static const UpdateForm forms[] = {
    {DTYPE_FP32, DTYPE_FP32, FALSE, {PART_SHARD, PART_SHARD}},
    {DTYPE_FP32, DTYPE_BF16, FALSE, {PART_SHARD, PART_WHOLE}},
    {DTYPE_BF16, DTYPE_BF16, TRUE, {PART_SHARD, PART_SHARD}},
    {DTYPE_BF16, DTYPE_FP32, TRUE, {PART_WHOLE, PART_SHARD}}, /* as in ZeRO-1 */
};

static void add_hyper(KernelCase *c)
{
    const double values[NUM_HYPER] = {
        [HYPER_LR] = 0.1,   [HYPER_BETA1] = 0.9,        [HYPER_BETA2] = 0.99,
        [HYPER_EPS] = 1e-8, [HYPER_WEIGHT_DECAY] = 0.5, [HYPER_STEP] = 3};
    const guint operand = case_add(c, ACCESS_READ, DTYPE_FP64, NUM_HYPER);

    memcpy(c->data[operand], values, sizeof values);
}

static KernelCase update_case(OpKind kind, const UnitMap *map, guint rank, const UpdateForm *form)
{
    KernelCase c = kernel_case(kind, form->parameter, (OpSizes){0});

    c.map = map;
    c.map_rank = rank;
    c.op.dtype_out = form->gradient;
    add_unit_operand(&c, ACCESS_UPDATE, form->parameter, form->parts[0]);
    add_unit_operand(&c, ACCESS_READ, form->gradient, form->parts[1]);
    for (guint i = 0; kind == OP_ADAMW && i < 2; i++)
        add_unit_operand(&c, ACCESS_UPDATE, DTYPE_FP32, PART_SHARD);
    for (guint64 i = 0; kind == OP_ADAMW && i < c.count[3]; i++)
        case_set(&c, 3, i, fabs(case_get(&c, 3, i))); /* a mean of squares */
    add_hyper(&c);
    add_scalar(&c, ACCESS_READ, 0.25);
    if (form->master)
        add_unit_operand(&c, ACCESS_UPDATE, DTYPE_FP32, PART_SHARD);
    return c;
}

/* Where element @i of a span is in an operand. */
static guint64 at(const KernelCase *c, guint operand, const ShardSpan *span, guint64 i)
{
    return (c->part[operand] == PART_SHARD ? span->shard_offset : span->full_offset) + i;
}

/* New values of {p, m, v} by the formula of Loshchilov and Hutter in fp64; t = 3. */
static void adamw_want(double values[3], double gradient, double decay)
{
    const double g = 0.25 * gradient;

    values[1] = 0.9 * values[1] + 0.1 * g;
    values[2] = 0.99 * values[2] + 0.01 * g * g;
    const double m = values[1] / (1 - 0.9 * 0.9 * 0.9);
    const double v = values[2] / (1 - 0.99 * 0.99 * 0.99);
    values[0] -= 0.1 * (m / (sqrt(v) + 1e-8) + decay * values[0]);
}

/* Every element of @before's spans moves as the formula says; all others keep their bits. */
static void check_adamw(const KernelCase *before, const KernelCase *after, guint master)
{
    const UnitMap *map = before->map;
    KernelCase want = case_copy(before);

    for (guint param = 0; param < map->num_params; param++) {
        const ShardSpan span = unit_map_span(map, param, before->map_rank);
        const double decay = map->params[param].dims == 2 ? 0.5 : 0;

        for (guint64 i = 0; i < span.elements; i++) {
            double values[] = {case_get(before, master, at(before, master, &span, i)),
                               case_get(before, 2, at(before, 2, &span, i)),
                               case_get(before, 3, at(before, 3, &span, i))};

            adamw_want(values, case_get(before, 1, at(before, 1, &span, i)), decay);
            case_set(&want, master, at(before, master, &span, i), values[0]);
            case_set(&want, 2, at(before, 2, &span, i), values[1]);
            case_set(&want, 3, at(before, 3, &span, i), values[2]);
            if (master != 0) /* the rounding of what the master became, exactly */
                case_set(&want, 0, at(before, 0, &span, i),
                         case_get(after, master, at(before, master, &span, i)));
        }
    }
    for (guint operand = 0; operand < before->op.num_operands; operand++)
        for (guint64 i = 0; i < before->count[operand]; i++) {
            const double got = case_get(after, operand, i), wanted = case_get(&want, operand, i);
            const double tolerance = operand == 0 && master != 0 ? 0 : 2e-6;

            if (!(isnan(wanted) ? isnan(got) : fabs(got - wanted) <= tolerance))
                ck_abort_msg("operand %u, element %" G_GUINT64_FORMAT " is %.9g, not %.9g", operand,
                             i, got, wanted);
        }
    kernel_case_clear(&want);
}

START_TEST(adamw_updates_real_elements_and_decays_matrices_only)
{
    const UpdateForm *form = &forms[_i / 2];
    g_autoptr(UnitMap) map = unit(RANKS, _i % 2 == 0 ? FORM_PER_PARAMETER : FORM_FLAT);

    for (guint rank = 0; rank < RANKS; rank++) {
        KernelCase before = update_case(OP_ADAMW, map, rank, form);
        KernelCase after = case_copy(&before);

        case_check_threads(&before);
        case_run(&after, 2);
        check_adamw(&before, &after, form->master ? 6 : 0);
        kernel_case_clear(&before);
        kernel_case_clear(&after);
    }
}
END_TEST

/* By hand, lr 0.1, b1 0.9, b2 0.99, eps 0 (1e-8 does not show), p 1 (a matrix, decay 0.5), g 2, -1:
 * step 1: m = 0.2, v = 0.04, m^ = 2, v^ = 4: p = 1 - 0.1 (1 + 0.5) = 0.85
 * step 2: m = 0.08, v = 0.0496; m^ = 0.08 / 0.19 = 0.4210526, v^ = 0.0496 / 0.0199 = 2.4924623
 *         p = 0.85 - 0.1 (0.4210526 / 1.5787534 + 0.425) = 0.7808300 */
START_TEST(adamw_gives_two_steps_worked_by_hand)
{
    const ParamShape one = {.name = (char *)"w", .rows = 1, .cols = 1, .dims = 2};
    g_autoptr(GArray) params = g_array_new(FALSE, FALSE, sizeof(ParamShape));
    g_array_append_val(params, one);
    g_autoptr(UnitMap) map = unit_map_new(params, 1, FORM_PER_PARAMETER);
    KernelCase c = update_case(OP_ADAMW, map, 0, &forms[0]);
    const double start[] = {1, 2, 0, 0}, want[] = {0.85, 0.78083};

    for (guint i = 0; i < 4; i++)
        case_set(&c, i, 0, start[i]);
    case_set(&c, 5, 0, 1);
    for (guint step = 0; step < 2; step++) {
        case_set(&c, 1, 0, step == 0 ? 2 : -1);
        case_set(&c, 4, HYPER_STEP, step + 1);
        case_run(&c, 1);
        ck_assert_double_eq_tol(case_get(&c, 0, 0), want[step], 1e-6);
    }
    ck_assert_double_eq_tol(case_get(&c, 2, 0), 0.08, 1e-7);
    ck_assert_double_eq_tol(case_get(&c, 3, 0), 0.0496, 1e-7);
    kernel_case_clear(&c);
}
END_TEST

START_TEST(sgd_subtracts_the_clipped_gradient)
{
    const UpdateForm *form = &forms[_i];
    const guint master = form->master ? 4 : 0;
    g_autoptr(UnitMap) map = unit(RANKS, FORM_PER_PARAMETER);
    KernelCase before = update_case(OP_SGD, map, 1, form), after = case_copy(&before);

    case_check_threads(&before);
    case_run(&after, 2);
    for (guint param = 0; param < map->num_params; param++) {
        const ShardSpan span = unit_map_span(map, param, 1);

        for (guint64 i = 0; i < span.elements; i++) {
            const double old = case_get(&before, master, at(&before, master, &span, i));
            const double g = case_get(&before, 1, at(&before, 1, &span, i));
            const double got = case_get(&after, master, at(&before, master, &span, i));

            ck_assert_double_eq_tol(got, old - 0.1 * 0.25 * g, 1e-7);
            if (master != 0)
                ck_assert(case_get(&after, 0, at(&before, 0, &span, i)) ==
                          (double)bf16_to_float(bf16_from_float((float)got)));
        }
    }
    kernel_case_clear(&before);
    kernel_case_clear(&after);
}
END_TEST

/* A matrix of bf16 whose master is @value; a rate of 0 leaves that as it is. */
static KernelCase rounding_case(const UnitMap *map, double value, const RoundingNumbers *rounding)
{
    KernelCase c = update_case(OP_SGD, map, 0, &forms[2]);

    case_fill(&c, 4, value);
    case_set(&c, 2, HYPER_LR, 0);
    c.rounding = rounding;
    return c;
}

static UnitMap *square_unit(guint64 side)
{
    const ParamShape one = {.name = (char *)"w", .rows = side, .cols = side, .dims = 2};
    g_autoptr(GArray) params = g_array_new(FALSE, FALSE, sizeof(ParamShape));

    g_array_append_val(params, one);
    return unit_map_new(params, 1, FORM_PER_PARAMETER);
}

/* Halfway parts of a step of bf16, 2^-7 at 1: as many of 40,000 roundings go up, within 5 standard
 * deviations, and none leaves the two neighbours.  Infinite and bf16 values stay. */
START_TEST(rounding_by_chance_keeps_the_mean)
{
    static const struct {
        double value, low, up; /* up: share of 40,000 */
    } of[] = {{1 + 0x1p-9, 1, 0.25},   {1 + 0x3p-9, 1, 0.75},
              {-1 - 0x1p-9, -1, 0.25}, {0x1p-20 + 0x1p-28, 0x1p-20, 0.5},
              {1.5, 1.5, 0},           {INFINITY, INFINITY, 0}};
    const RoundingNumbers numbers = {.first = 77};
    g_autoptr(UnitMap) map = square_unit(200);
    KernelCase c = rounding_case(map, of[_i].value, &numbers);
    const double step = ldexp(of[_i].low, -7);
    guint64 up = 0;

    case_check_threads(&c);
    case_run(&c, 2);
    for (guint64 i = 0; i < c.count[0]; i++) {
        const double value = case_get(&c, 0, i);

        ck_assert(value == of[_i].low || value == of[_i].low + step);
        up += value != of[_i].low;
    }
    const double deviation = sqrt(of[_i].up * (1 - of[_i].up) / 40000);
    ck_assert_double_le(fabs((double)up / 40000 - of[_i].up), 5 * deviation);
    kernel_case_clear(&c);
}
END_TEST

/* 20 columns of 50, from the 30th on: row 3's first is element 180 of the whole. */
START_TEST(columns_are_rounded_as_in_the_whole)
{
    const RoundingNumbers rows = {.first = 0}, columns = {30, 20, 50};
    g_autoptr(UnitMap) map = square_unit(50), part_map = square_unit(20);
    KernelCase whole = rounding_case(map, 1 + 0x1p-8, &rows);
    KernelCase part = rounding_case(part_map, 1 + 0x1p-8, &columns);

    case_run(&whole, 1);
    case_run(&part, 1);
    for (guint64 row = 0; row < 20; row++)
        for (guint64 column = 0; column < 20; column++)
            ck_assert(case_get(&part, 0, row * 20 + column) ==
                      case_get(&whole, 0, row * 50 + 30 + column));
    kernel_case_clear(&whole);
    kernel_case_clear(&part);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("step kernels");
    TCase *tcase = tcase_create("units");

    tcase_set_timeout(tcase, 30);
    tcase_add_test(tcase, count_valid_counts_labels_and_accumulates);
    tcase_add_loop_test(tcase, squared_norm_reads_the_real_elements_of_its_rank_only, 0, 8);
    tcase_add_test(tcase, a_nan_reaches_the_squared_norm);
    tcase_add_loop_test(tcase, clip_gives_the_worked_values, 0, G_N_ELEMENTS(clips));
    tcase_add_test(tcase, clip_with_a_sum_that_is_nan_is_not_finite);
    tcase_add_loop_test(tcase, adamw_updates_real_elements_and_decays_matrices_only, 0,
                        2 * G_N_ELEMENTS(forms));
    tcase_add_test(tcase, adamw_gives_two_steps_worked_by_hand);
    tcase_add_loop_test(tcase, sgd_subtracts_the_clipped_gradient, 0, G_N_ELEMENTS(forms));
    tcase_add_loop_test(tcase, rounding_by_chance_keeps_the_mean, 0, 6);
    tcase_add_test(tcase, columns_are_rounded_as_in_the_whole);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
