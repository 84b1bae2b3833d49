#include "sim/base/error.h"
#include "sim/base/units.h"
#include "tests/suite.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *text;
    Units units;
    double value;
} worked[] = {
    {"300 GB/s", UNITS_BYTES_PER_S, 300e9},
    {"300GB/s", UNITS_BYTES_PER_S, 300e9},
    {"1 GiB/s", UNITS_BYTES_PER_S, 1073741824.0},
    {"80 GiB", UNITS_BYTES, 85899345920.0},
    {"80 GB", UNITS_BYTES, 80e9},
    {"0 B", UNITS_BYTES, 0.0},
    {"1.5 KiB", UNITS_BYTES, 1536.0},
    {"2 PiB", UNITS_BYTES, 2251799813685248.0},
    {"5 us", UNITS_SECONDS, 0.000005},
    {"3 us", UNITS_SECONDS, 0.000003}, /* 3 * 1e-6 is another double */
    {"103 ns", UNITS_SECONDS, 0.000000103},
    {"12 ms", UNITS_SECONDS, 0.012},
    {"2 s", UNITS_SECONDS, 2.0},
    {"989 TFLOP/s", UNITS_FLOPS_PER_S, 989e12},
    {"63.1 GFLOP/s", UNITS_FLOPS_PER_S, 63.1e9},
    {"1e3 FLOP/s", UNITS_FLOPS_PER_S, 1000.0},
    {"700 W", UNITS_WATTS, 700.0},
};

START_TEST(quantities_are_read_in_base_units)
{
    g_autoptr(GError) error = NULL;
    double value = -1.0;

    ck_assert(units_parse(worked[_i].text, worked[_i].units, &value, &error));
    ck_assert_double_eq(value, worked[_i].value);
}
END_TEST

static const struct {
    const char *text;
    Units units;
} refused[] = {
    {"", UNITS_BYTES},
    {"80", UNITS_BYTES}, /* of what? */
    {"GB", UNITS_BYTES},
    {"80 Gb", UNITS_BYTES}, /* bits */
    {"80 gib", UNITS_BYTES},
    {"80 GiB/s", UNITS_BYTES},
    {"80 GiB ", UNITS_BYTES},
    {" 80 GiB", UNITS_BYTES},
    {"-1 B", UNITS_BYTES},
    {"+1 B", UNITS_BYTES},
    {"0x10 B", UNITS_BYTES},
    {"nan B", UNITS_BYTES},
    {"inf B", UNITS_BYTES},
    {"1e999 B", UNITS_BYTES},
    {"1e300 PB", UNITS_BYTES},
    {"1,5 GB", UNITS_BYTES},
    {"400 Gb/s", UNITS_BYTES_PER_S},
    {"300 GB", UNITS_BYTES_PER_S},
    {"1 TiFLOP/s", UNITS_FLOPS_PER_S},
    {"1 TFLOPS", UNITS_FLOPS_PER_S},
    {"5 ks", UNITS_SECONDS},
    {"5 min", UNITS_SECONDS},
};

START_TEST(what_is_no_quantity_is_refused_with_value_and_allowed_units)
{
    g_autoptr(GError) error = NULL;
    double value = -1.0;

    ck_assert(!units_parse(refused[_i].text, refused[_i].units, &value, &error));
    ck_assert_double_eq(value, -1.0);
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
    ck_assert_ptr_nonnull(strstr(error->message, refused[_i].text));
    ck_assert_ptr_nonnull(strstr(error->message, "allowed: "));
}
END_TEST

static const struct {
    double value;
    Units units;
    const char *text;
} printed[] = {
    {300e9, UNITS_BYTES_PER_S, "300 GB/s"},
    {80e9, UNITS_BYTES, "80 GB"},
    {85899345920.0, UNITS_BYTES, "80 GiB"},
    {85520809984.0, UNITS_BYTES, "81559 MiB"},
    {0.0, UNITS_SECONDS, "0 s"},
    {0.000005, UNITS_SECONDS, "5 us"},
    {989.4e12, UNITS_FLOPS_PER_S, "989.4 TFLOP/s"},
};

START_TEST(quantities_are_printed_in_the_unit_that_reads_best)
{
    g_autofree char *text = units_print(printed[_i].value, printed[_i].units);

    ck_assert_str_eq(text, printed[_i].text);
}
END_TEST

static void check_round_trip(double value)
{
    for (guint units = 0; units < NUM_UNITS; units++) {
        g_autofree char *text = units_print(value, (Units)units);
        double back = -1.0;

        ck_assert_msg(units_parse(text, (Units)units, &back, NULL), "%a: %s", value, text);
        ck_assert_msg(back == value, "%a printed as %s reads as %a", value, text, back);
    }
    g_autofree char *number = units_print_number(value);
    double back = -1.0;

    ck_assert(units_parse_number(number, &back, NULL));
    ck_assert_double_eq(back, value);
}

START_TEST(every_finite_double_survives_printing_and_reading)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(7);

    check_round_trip(0.0);
    check_round_trip(G_MAXDOUBLE);
    check_round_trip(0x1p-1074); /* the smallest there is */
    for (guint i = 0; i < 3000; i++) {
        union {
            guint64 bits;
            double value;
        } any = {.bits = ((guint64)g_rand_int(random) << 32 | g_rand_int(random)) &
                         G_MAXINT64}; /* any pattern without its sign */

        if (isfinite(any.value))
            check_round_trip(any.value);
        check_round_trip(g_rand_double(random) * pow(10.0, g_rand_int_range(random, -9, 18)));
    }
}
END_TEST

START_TEST(bytes_are_whole_and_at_most_8_pib)
{
    guint64 bytes = 7;

    ck_assert(units_parse_bytes("0.1 KiB", &bytes, NULL)); /* 102.4 */
    ck_assert_uint_eq(bytes, 102);
    ck_assert(units_parse_bytes("8 PiB", &bytes, NULL));
    ck_assert_uint_eq(bytes, G_GUINT64_CONSTANT(1) << 53);
    ck_assert(!units_parse_bytes("8.1 PiB", &bytes, NULL));
}
END_TEST

START_TEST(counts_are_digits_within_their_range)
{
    static const char *const bad[] = {"", "0", "9", "-1", "+4", "4.0", "4 ", "0x4", "1e1", "four"};
    guint64 count = 7;

    ck_assert(units_parse_count("8", 1, 8, &count, NULL));
    ck_assert_uint_eq(count, 8);
    for (guint i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;

        ck_assert_msg(!units_parse_count(bad[i], 1, 8, &count, &error), "%s", bad[i]);
        ck_assert_ptr_nonnull(strstr(error->message, "an integer from 1 to 8"));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("units");
    TCase *tcase = tcase_create("units");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, quantities_are_read_in_base_units, 0, G_N_ELEMENTS(worked));
    tcase_add_loop_test(tcase, what_is_no_quantity_is_refused_with_value_and_allowed_units, 0,
                        G_N_ELEMENTS(refused));
    tcase_add_loop_test(tcase, quantities_are_printed_in_the_unit_that_reads_best, 0,
                        G_N_ELEMENTS(printed));
    tcase_add_test(tcase, every_finite_double_survives_printing_and_reading);
    tcase_add_test(tcase, bytes_are_whole_and_at_most_8_pib);
    tcase_add_test(tcase, counts_are_digits_within_their_range);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
