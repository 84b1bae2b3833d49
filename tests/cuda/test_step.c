/* Squared norm, clipping and optimisers over pieces of a unit, against plain loops. */
#include "sim/program/op.h"
#include "tests/cuda/cuda_case.h"

/* Pieces: short, empty, of several chunks of a block, at odd places; more than one launch takes. */
enum { PIECES = 30, UNIT = 60000 };

typedef struct {
    CudaPiece piece[PIECES];
} UnitCase;

/* Where they lie differs by array; elements nobody owns stay as they are. */
static UnitCase unit_case(gboolean aligned)
{
    UnitCase unit = {0};
    guint64 at = 0;

    for (guint p = 0; p < PIECES; p++) {
        const guint64 elements = p == 2 ? 0 : p == 3 ? 40000 : p * 37 % 50 + 1;
        const guint64 shift = aligned ? 8 : 3;

        unit.piece[p] = (CudaPiece){.elements = elements,
                                    .parameter = at + shift,
                                    .gradient = at + 2 * shift,
                                    .moment = at,
                                    .master = at + 3 * shift,
                                    .first = 1000 + at,
                                    .decay = p % 2 == 0 ? 1 : 0,
                                    .weight = p == 5 ? 0.25 : 1};
        at += (elements + 15) / 8 * 8 + (aligned ? 0 : 1);
    }
    g_assert(at + 24 < UNIT);
    return unit;
}

START_TEST(squared_norm_counts_pieces_by_their_weight)
{
    g_auto(CudaCase) c = cuda_case();
    const UnitCase unit = unit_case(_i / 2 % 2);
    Array *gradient = case_noise(&c, loop_dtype(_i), UNIT);
    Array *sum = case_scalar(&c, 3);
    double want = 0;
    CudaSquaredNorm norm = {.dtype = loop_dtype(_i),
                            .gradient = gradient->p,
                            .pieces = unit.piece,
                            .num_pieces = PIECES,
                            .sum = sum->p,
                            .adds = TRUE};

    norm.partials = case_scratch(&c, CUDA_SQUARED_NORM_PARTIALS * sizeof(double));
    for (guint p = 0; p < PIECES; p++)
        for (guint64 i = 0; i < unit.piece[p].elements; i++)
            want += unit.piece[p].weight * pow(gradient->was[unit.piece[p].gradient + i], 2);
    cuda_squared_norm(&norm, c.stream);
    ck_assert_double_eq_tol(array_now(&c, sum)[0], want + 3, 1e-12 * want);
    norm.adds = FALSE;
    cuda_squared_norm(&norm, c.stream);
    ck_assert_double_eq_tol(array_now(&c, sum)[0], want, 1e-12 * want);
    norm.num_pieces = 0;
    cuda_squared_norm(&norm, c.stream);
    ck_assert(array_now(&c, sum)[0] == 0);
}
END_TEST

static Array *hyper_of(CudaCase *c, double step, double max_norm)
{
    Array *hyper = case_noise(c, DTYPE_FP64, NUM_HYPER);
    const double values[NUM_HYPER] = {
        [HYPER_LR] = 0.01,          [HYPER_BETA1] = 0.9,        [HYPER_BETA2] = 0.95,
        [HYPER_EPS] = 1e-8,         [HYPER_WEIGHT_DECAY] = 0.1, [HYPER_STEP] = step,
        [HYPER_MAX_NORM] = max_norm};

    memcpy(hyper->was, values, sizeof values);
    array_fill(hyper);
    return hyper;
}

/* max_norm, sums, loss, labels; norm, coefficient, finite, mean loss. */
static const struct {
    double max_norm, sums[2], loss, valid, norm, coef, finite, mean;
} clips[] = {
    {1, {9, 16}, 2, 8, 5, 1 / (5 + 1e-6), 1, 0.25},
    {10, {9, 16}, 2, 1, 5, 1, 1, 2},
    {0, {9, 16}, 0, 0, 5, 1, 1, 0},
    {1, {9, 16}, (double)NAN, 8, 5, 1 / (5 + 1e-6), 0, (double)NAN},
    {1, {(double)INFINITY, 1}, 2, 8, (double)INFINITY, 0, 0, 0.25},
};

START_TEST(clip_gives_the_worked_values)
{
    g_auto(CudaCase) c = cuda_case();
    Array *hyper = hyper_of(&c, 1, clips[_i].max_norm);
    Array *loss = case_scalar(&c, clips[_i].loss), *valid = case_scalar(&c, clips[_i].valid);
    Array *sums[] = {case_scalar(&c, clips[_i].sums[0]), case_scalar(&c, clips[_i].sums[1])};
    Array *norm = case_scalar(&c, -1), *coef = case_scalar(&c, -1), *finite = case_scalar(&c, -1);

    cuda_clip(&(CudaClip){.hyper = hyper->p,
                          .valid = valid->p,
                          .loss = loss->p,
                          .norm = norm->p,
                          .coef = coef->p,
                          .finite = finite->p,
                          .sums = {sums[0]->p, sums[1]->p},
                          .num_sums = 2},
              c.stream);
    ck_assert(array_now(&c, norm)[0] == clips[_i].norm);
    ck_assert_double_eq_tol(array_now(&c, coef)[0], clips[_i].coef, 1e-15);
    ck_assert(array_now(&c, finite)[0] == clips[_i].finite);
    const double mean = array_now(&c, loss)[0];
    ck_assert(mean == clips[_i].mean || (isnan(mean) && isnan(clips[_i].mean)));
}
END_TEST

/* ---- optimisers ---- */

typedef struct {
    CudaCase c;
    UnitCase unit;
    Array *parameter, *gradient, *m, *v, *master, *hyper, *coef, *predicate;
    CudaUpdate update;
} UpdateCase;

/* Index bits: parameter's type, alignment, gradient's type. */
static UpdateCase update_case(int i)
{
    UpdateCase u = {.c = cuda_case(), .unit = unit_case(i / 2 % 2)};
    const DType dtype = loop_dtype(i), dtype_out = loop_dtype(i / 4);

    u.parameter = case_noise(&u.c, dtype, UNIT);
    u.gradient = case_noise(&u.c, dtype_out, UNIT);
    u.m = case_noise(&u.c, DTYPE_FP32, UNIT);
    u.v = case_noise(&u.c, DTYPE_FP32, UNIT);
    for (guint64 j = 0; j < UNIT; j++)
        u.v->was[j] = fabs(u.v->was[j]);
    array_fill(u.v);
    u.master = dtype == DTYPE_BF16 ? case_noise(&u.c, DTYPE_FP32, UNIT) : NULL;
    u.hyper = hyper_of(&u.c, 3, 0);
    u.coef = case_scalar(&u.c, 0.5);
    u.predicate = case_scalar(&u.c, 1);
    u.update = (CudaUpdate){.dtype = dtype,
                            .dtype_out = dtype_out,
                            .parameter = u.parameter->p,
                            .gradient = u.gradient->p,
                            .m = u.m->p,
                            .v = u.v->p,
                            .master = u.master != NULL ? u.master->p : NULL,
                            .hyper = u.hyper->p,
                            .coef = u.coef->p,
                            .predicate = u.predicate->p,
                            .num_pieces = PIECES};
    return u;
}

/* Updates the "was" of all arrays as adamw, or sgd, does. */
static void want_update(UpdateCase *u, gboolean adamw)
{
    for (guint p = 0; p < PIECES; p++) {
        const CudaPiece *piece = &u->unit.piece[p];
        double *to = u->master != NULL ? u->master->was + piece->master
                                       : u->parameter->was + piece->parameter;
        double *m = u->m->was + piece->moment, *v = u->v->was + piece->moment;

        for (guint64 i = 0; i < piece->elements; i++) {
            const double g = u->gradient->was[piece->gradient + i] * 0.5;

            if (adamw) {
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.95 * v[i] + 0.05 * g * g;
                to[i] -=
                    0.01 * (m[i] / (1 - pow(0.9, 3)) / (sqrt(v[i] / (1 - pow(0.95, 3))) + 1e-8) +
                            0.1 * (double)piece->decay * to[i]);
            } else {
                to[i] -= 0.01 * g;
            }
            u->parameter->was[piece->parameter + i] = to[i];
        }
    }
}

static void check_update(UpdateCase *u)
{
    array_check(&u->c, u->parameter, u->parameter->was, 1e-12, BF16_ROUNDED);
    array_check(&u->c, u->m, u->m->was, 1e-12, 0);
    array_check(&u->c, u->v, u->v->was, 1e-12, 0);
    if (u->master != NULL)
        array_check(&u->c, u->master, u->master->was, 1e-12, 0);
}

START_TEST(adamw_equals_plain_loops)
{
    UpdateCase u = update_case(_i);

    u.update.pieces = u.unit.piece;
    cuda_adamw(&u.update, u.c.stream);
    want_update(&u, TRUE);
    check_update(&u);
    cuda_case_clear(&u.c);
}
END_TEST

START_TEST(sgd_equals_plain_loops)
{
    UpdateCase u = update_case(_i);

    u.update.pieces = u.unit.piece;
    cuda_sgd(&u.update, u.c.stream);
    want_update(&u, FALSE);
    check_update(&u);
    cuda_case_clear(&u.c);
}
END_TEST

START_TEST(nothing_is_updated_while_the_predicate_is_0)
{
    UpdateCase u = update_case(_i);

    u.update.pieces = u.unit.piece;
    u.predicate->was[0] = 0;
    array_fill(u.predicate);
    cuda_adamw(&u.update, u.c.stream);
    array_check(&u.c, u.parameter, u.parameter->was, 0, 0);
    array_check(&u.c, u.m, u.m->was, 0, 0);
    cuda_case_clear(&u.c);
}
END_TEST

/* ---- stochastic rounding ---- */

/* sgd with gradients of 0: parameters become roundings of their masters. */
static double *rounded(UpdateCase *u, guint64 first, double step)
{
    u->update.stochastic = TRUE;
    u->unit.piece[3].first = first;
    u->update.pieces = u->unit.piece;
    u->hyper->was[HYPER_STEP] = step;
    array_fill(u->hyper);
    cuda_sgd(&u->update, u->c.stream);
    return array_now(&u->c, u->parameter);
}

/* 1 + 2^-7 / 4 lies a quarter of the way from 1 to the next bf16: a quarter of 40,000 roundings go
 * up, within 5 standard deviations (0.0022 each). */
START_TEST(stochastic_rounding_keeps_the_mean)
{
    UpdateCase u = update_case(1);
    const CudaPiece *piece = &u.unit.piece[3];
    guint64 up = 0;

    for (guint64 i = 0; i < UNIT; i++) {
        u.master->was[i] = 1 + 0x1p-9;
        u.gradient->was[i] = 0;
    }
    array_fill(u.master);
    array_fill(u.gradient);
    const double *got = rounded(&u, 7, 1);

    for (guint64 i = 0; i < piece->elements; i++) {
        const double value = got[piece->parameter + i];

        ck_assert(value == 1 || value == 1 + 0x1p-7);
        up += value > 1;
    }
    ck_assert_double_eq_tol((double)up / (double)piece->elements, 0.25, 0.011);
    cuda_case_clear(&u.c);
}
END_TEST

/* How many elements of the large piece differ. */
static guint64 differences(const UpdateCase *u, const double *a, const double *b)
{
    const CudaPiece *piece = &u->unit.piece[3];
    guint64 count = 0;

    for (guint64 i = 0; i < piece->elements; i++)
        count += a[piece->parameter + i] != b[piece->parameter + i];
    return count;
}

START_TEST(stochastic_rounding_depends_on_step_and_number_alone)
{
    UpdateCase u = update_case(1);

    for (guint64 i = 0; i < UNIT; i++)
        u.gradient->was[i] = 0;
    array_fill(u.gradient);
    const double *first = rounded(&u, 7, 1);

    ck_assert_uint_eq(differences(&u, first, rounded(&u, 7, 1)), 0);
    ck_assert_uint_gt(differences(&u, first, rounded(&u, 8, 1)), 10000);
    ck_assert_uint_gt(differences(&u, first, rounded(&u, 7, 2)), 10000);
    u.unit.piece[3].start = 1;
    ck_assert_uint_eq(differences(&u, first, rounded(&u, 6, 1)), 0);
    ck_assert_uint_gt(differences(&u, first, rounded(&u, 7, 1)), 10000);
    cuda_case_clear(&u.c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda step");
    TCase *tests = tcase_create("step");

    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, squared_norm_counts_pieces_by_their_weight, 0, 4);
    tcase_add_loop_test(tests, clip_gives_the_worked_values, 0, G_N_ELEMENTS(clips));
    tcase_add_loop_test(tests, adamw_equals_plain_loops, 0, 8);
    tcase_add_loop_test(tests, sgd_equals_plain_loops, 0, 8);
    tcase_add_loop_test(tests, nothing_is_updated_while_the_predicate_is_0, 0, 2);
    tcase_add_test(tests, stochastic_rounding_keeps_the_mean);
    tcase_add_test(tests, stochastic_rounding_depends_on_step_and_number_alone);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
