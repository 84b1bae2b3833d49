/* e4m3 codes of a unit's matrices, on the CPU: every code, every tie, what has no scale. */
#include "exec/device/cpu_fp8.h"
#include "tests/exec/kernel_case.h"

enum { RANKS = 3, ROWS = 2, UNIT = 1 };

/* Fewer rows than ranks, a vector, a matrix in several blocks. */
static const ParamShape shapes[] = {
    {.name = (char *)"short", .rows = 2, .cols = 5, .dims = 2, .role = PARAM_Q},
    {.name = (char *)"vector", .rows = 7, .cols = 1, .dims = 1, .role = PARAM_INPUT_NORM},
    {.name = (char *)"wide", .rows = 50, .cols = 150, .dims = 2, .role = PARAM_UP},
};

static UnitMap *unit(guint ranks)
{
    g_autoptr(GArray) params = g_array_new(FALSE, FALSE, sizeof(ParamShape));

    g_array_append_vals(params, shapes, G_N_ELEMENTS(shapes));
    return unit_map_new(params, ranks, FORM_PER_PARAMETER);
}

/* ---- one value: Micikevicius et al., table 1 ---- */

static double value_of(guint code)
{
    const double exponent = (code >> 3 & 15) == 0 ? -6 : (double)(code >> 3 & 15) - 7;
    const double mantissa = (code & 7) / 8.0 + ((code >> 3 & 15) == 0 ? 0 : 1);
    const double magnitude = (code & 0x7f) == 0x7f ? (double)NAN : mantissa * exp2(exponent);

    return (code & 0x80) != 0 ? -magnitude : magnitude;
}

START_TEST(every_code_is_its_value_and_back)
{
    for (guint code = 0; code < 256; code++) {
        const double value = value_of(code), got = (double)cpu_e4m3_to_float((guint8)code);

        ck_assert(isnan(value) ? isnan(got) : got == value && signbit(got) == signbit(value));
        ck_assert_uint_eq(cpu_e4m3_from_float((float)got), code);
    }
    ck_assert(value_of(0x7e) == E4M3_MOST);
}
END_TEST

/* Between neighbours: below the middle down, above it up, the middle to the even code. */
START_TEST(values_between_codes_go_to_the_nearest_and_ties_to_even)
{
    for (guint sign = 0; sign < 2; sign++)
        for (guint code = 0; code < 0x7e; code++) {
            const float middle = (float)((value_of(code) + value_of(code + 1)) / 2);
            const float side = sign == 0 ? 1 : -1;
            const guint bit = sign << 7, even = code + code % 2;

            ck_assert_uint_eq(cpu_e4m3_from_float(side * middle), even | bit);
            ck_assert_uint_eq(cpu_e4m3_from_float(side * nextafterf(middle, 0)), code | bit);
            ck_assert_uint_eq(cpu_e4m3_from_float(side * nextafterf(middle, 1e9f)),
                              (code + 1) | bit);
        }
}
END_TEST

START_TEST(large_values_saturate_and_a_nan_stays_one)
{
    ck_assert_uint_eq(cpu_e4m3_from_float(449), 0x7e);
    ck_assert_uint_eq(cpu_e4m3_from_float(-1e30f), 0xfe);
    ck_assert_uint_eq(cpu_e4m3_from_float(INFINITY), 0x7e);
    ck_assert_uint_eq(cpu_e4m3_from_float(NAN) & 0x7f, 0x7f);
    ck_assert_uint_eq(cpu_e4m3_from_float(1e-30f), 0);
}
END_TEST

/* ---- a unit ---- */

/* Element @i of parameter @param of the whole unit. */
static double element(guint param, guint64 i)
{
    guint64 state = param * 100000 + i;

    noise(&state);
    return noise(&state) * (param + 1);
}

static void fill_shard(KernelCase *c, guint operand)
{
    case_fill(c, operand, (double)NAN);
    for (guint p = 0; p < c->map->num_params; p++) {
        const ShardSpan span = unit_map_span(c->map, p, c->map_rank);

        for (guint64 i = 0; i < span.elements; i++)
            case_set(c, operand, span.shard_offset + i, element(p, span.start + i));
    }
}

static KernelCase unit_case(OpKind kind, const UnitMap *map, guint rank, DType dtype)
{
    KernelCase c = kernel_case(kind, dtype, (OpSizes){.rows = ROWS});

    c.map = map;
    c.map_rank = rank;
    c.unit = UNIT;
    return c;
}

static guint add_part(KernelCase *c, Access access, DType type, UnitPart part)
{
    const guint operand = case_add(
        c, access, type, part == PART_SHARD ? c->map->shard_elements : c->map->full_elements);

    c->part[operand] = part;
    return operand;
}

static guint add_amax(KernelCase *c, Access access)
{
    const guint operand = case_add(c, access, DTYPE_FP32, ROWS * NUM_PARAM_ROLES);

    case_fill(c, operand, access == ACCESS_READ ? 0 : (double)NAN);
    return operand;
}

static guint64 place(guint param)
{
    return UNIT * NUM_PARAM_ROLES + shapes[param].role;
}

static double largest(guint param, DType dtype)
{
    KernelCase c = {.type = {dtype}};
    gint64 room = 0;
    double most = 0;

    c.data[0] = &room;
    for (guint64 i = 0; i < shapes[param].rows * shapes[param].cols; i++) {
        case_set(&c, 0, 0, element(param, i));
        most = MAX(most, fabs(case_get(&c, 0, 0)));
    }
    return most;
}

static DType dtype_of(int i)
{
    return i == 0 ? DTYPE_FP32 : DTYPE_BF16;
}

/* The last rank has no row of the short one; padding is NaN, which would win. */
START_TEST(the_largest_of_all_ranks_is_that_of_the_matrix)
{
    const DType dtype = dtype_of(_i);
    g_autoptr(UnitMap) map = unit(RANKS);
    double most[ROWS * NUM_PARAM_ROLES] = {0};

    for (guint rank = 0; rank < RANKS; rank++) {
        KernelCase c = unit_case(OP_AMAX, map, rank, dtype);

        fill_shard(&c, add_part(&c, ACCESS_READ, dtype, PART_SHARD));
        add_amax(&c, ACCESS_ACCUMULATE);
        case_run_first(&c, 2, TRUE);
        for (guint i = 0; i < G_N_ELEMENTS(most); i++)
            most[i] = MAX(most[i], case_get(&c, 1, i));
        if (rank == RANKS - 1)
            ck_assert(case_get(&c, 1, place(0)) == 0);
        case_set(&c, 1, 0, 5); /* another unit's: a later call leaves it */
        case_run_first(&c, 1, FALSE);
        ck_assert(case_get(&c, 1, 0) == 5);
        kernel_case_clear(&c);
    }
    for (guint i = 0; i < G_N_ELEMENTS(most); i++)
        ck_assert(most[i] == (i == place(0)   ? largest(0, dtype)
                              : i == place(2) ? largest(2, dtype)
                                              : 0));
}
END_TEST

START_TEST(a_nan_is_the_largest)
{
    g_autoptr(UnitMap) map = unit(1);
    KernelCase c = unit_case(OP_AMAX, map, 0, DTYPE_FP32);

    fill_shard(&c, add_part(&c, ACCESS_READ, DTYPE_FP32, PART_SHARD));
    add_amax(&c, ACCESS_ACCUMULATE);
    case_set(&c, 0, map->pieces[2].shard_offset + 4000, (double)NAN);
    case_run(&c, 2);
    ck_assert(isnan(case_get(&c, 1, place(2))));
    ck_assert(case_get(&c, 1, place(0)) == largest(0, DTYPE_FP32));
    kernel_case_clear(&c);
}
END_TEST

/* Quantises the parts of @ranks and puts the codes together; the whole unit's values in fp32. */
static float *through_codes(guint ranks, const double amax[2], double scale)
{
    g_autoptr(UnitMap) map = unit(ranks);
    KernelCase back = unit_case(OP_DEQUANTISE, map, 0, DTYPE_FP8);

    back.op.dtype_out = DTYPE_FP32;
    add_part(&back, ACCESS_READ, DTYPE_FP8, PART_WHOLE);
    add_amax(&back, ACCESS_READ);
    add_part(&back, ACCESS_UPDATE, DTYPE_FP32, PART_WHOLE);
    case_fill(&back, 2, 7);
    case_set(&back, 1, place(0), amax[0]);
    case_set(&back, 1, place(2), amax[1]);
    for (guint rank = 0; rank < ranks; rank++) {
        KernelCase c = unit_case(OP_QUANTISE, map, rank, DTYPE_FP32);

        c.op.dtype_out = DTYPE_BF16;
        fill_shard(&c, add_part(&c, ACCESS_READ, DTYPE_FP32, PART_SHARD));
        add_amax(&c, ACCESS_READ);
        add_part(&c, ACCESS_WRITE, DTYPE_FP8, PART_SHARD);
        add_part(&c, ACCESS_WRITE, DTYPE_BF16, PART_SHARD);
        for (guint64 i = 0; i < c.count[0]; i++)
            case_set(&c, 0, i, case_get(&c, 0, i) * scale);
        memcpy(c.data[1], back.data[1], c.count[1] * sizeof(float));
        case_run(&c, 2);
        for (guint p = 0; p < map->num_params; p++) {
            const ShardSpan span = unit_map_span(map, p, rank);

            memcpy((guint8 *)back.data[0] + span.full_offset,
                   (guint8 *)c.data[2] + span.shard_offset, span.elements);
            for (guint64 i = 0; p == 1 && scale == 1 && i < span.elements; i++)
                ck_assert(fabs(case_get(&c, 3, span.shard_offset + i) -
                               case_get(&c, 0, span.shard_offset + i)) <=
                          0x1p-8 * fabs(case_get(&c, 0, span.shard_offset + i)));
        }
        kernel_case_clear(&c);
    }
    case_run(&back, 2);
    float *values = g_new(float, map->elements);
    guint64 at = 0;
    for (guint p = 0; p < map->num_params; p++)
        for (guint64 i = 0; i < shapes[p].rows * shapes[p].cols; i++)
            values[at++] = (float)case_get(&back, 2, map->params[p].full_offset + i);
    kernel_case_clear(&back);
    return values;
}

/* Half a step of three bits of mantissa, or of what is smallest. */
START_TEST(values_come_back_within_half_a_step_whatever_the_ranks)
{
    const double amax[2] = {largest(0, DTYPE_FP32), largest(2, DTYPE_FP32)};
    g_autofree float *one = through_codes(1, amax, 1);
    g_autofree float *several = through_codes(RANKS, amax, 1);
    guint64 at = 0;

    for (guint p = 0; p < G_N_ELEMENTS(shapes); p++)
        for (guint64 i = 0; i < shapes[p].rows * shapes[p].cols; i++, at++) {
            const double want = element(p, i), most = amax[p / 2];

            ck_assert(one[at] == several[at]);
            if (p == 1) /* what gathers put there */
                ck_assert(one[at] == 7);
            else
                ck_assert(fabs((double)one[at] - want) <=
                          1.0001 * MAX(fabs(want) / 16, most / 448 / 1024));
        }
}
END_TEST

START_TEST(zeros_stay_zeros_and_what_is_infinite_becomes_nan)
{
    const double none[2] = {0, 0}, all[2] = {(double)INFINITY, (double)INFINITY};
    g_autofree float *zeros = through_codes(2, none, 0);
    g_autofree float *infinite = through_codes(2, all, (double)INFINITY);

    ck_assert(zeros[0] == 0 && zeros[9] == 0 && zeros[20] == 0);
    ck_assert(isnan(infinite[0]) && isnan(infinite[9]) && isnan(infinite[20]));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fp8");
    TCase *tcase = tcase_create("codes");

    tcase_add_test(tcase, every_code_is_its_value_and_back);
    tcase_add_test(tcase, values_between_codes_go_to_the_nearest_and_ties_to_even);
    tcase_add_test(tcase, large_values_saturate_and_a_nan_stays_one);
    tcase_add_loop_test(tcase, the_largest_of_all_ranks_is_that_of_the_matrix, 0, 2);
    tcase_add_test(tcase, a_nan_is_the_largest);
    tcase_add_test(tcase, values_come_back_within_half_a_step_whatever_the_ranks);
    tcase_add_test(tcase, zeros_stay_zeros_and_what_is_infinite_becomes_nan);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
