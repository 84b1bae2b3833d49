#include "tests/cudasim/number.h"
#include "tests/suite.h"
#include <math.h>

START_TEST(numbers_round_to_nearest_even_and_fp8_saturates)
{
    static const struct {
        CsNumber type;
        double in;
        guint bits;
        double out;
    } worked[] = {
        {CS_BF16, 0.0, 0, 0.0},
        {CS_BF16, 1.0, 0x3f80, 1.0},
        {CS_BF16, 1.00390625, 0x3f80, 1.0},      /* 1 + 2^-8: a tie, down to even */
        {CS_BF16, 1.01171875, 0x3f82, 1.015625}, /* 1 + 3 * 2^-8: a tie, up to even */
        {CS_BF16, -3.5, 0xc060, -3.5},
        {CS_FP16, 65504.0, 0x7bff, 65504.0},
        {CS_FP16, 65536.0, 0x7c00, (double)INFINITY},
        {CS_FP16, 5.9604644775390625e-8, 0x0001, 5.9604644775390625e-8},
        {CS_E4M3, 448.0, 0x7e, 448.0},
        {CS_E4M3, 1e6, 0x7e, 448.0},
        {CS_E4M3, 0.001953125, 0x01, 0.001953125}, /* 2^-9: the smallest */
        {CS_E4M3, 17.0, 0x58, 16.0},               /* a tie between 16 and 18 */
        {CS_E5M2, 57344.0, 0x7b, 57344.0},
        {CS_E5M2, -1e9, 0xfb, -57344.0},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(worked); i++) {
        guint16 bits = 0;
        cs_number_set(worked[i].type, &bits, 0, worked[i].in);
        ck_assert_uint_eq(bits, worked[i].bits);
        ck_assert_double_eq(cs_number_get(worked[i].type, &bits, 0), worked[i].out);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cudasim number");
    TCase *tests = tcase_create("number");

    tcase_add_test(tests, numbers_round_to_nearest_even_and_fp8_saturates);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
