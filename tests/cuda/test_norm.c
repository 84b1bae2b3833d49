/* Norms, and sums of columns, against plain loops. */
#include "tests/cuda/cuda_case.h"

/* One of everything; odd; several vectors a thread; more rows than partial sums. */
static const struct {
    guint64 rows, columns;
} sizes[] = {{1, 1}, {7, 250}, {3, 2560}, {CUDA_NORM_PARTIALS + 43, 16}};

static const float eps = 1e-5f;

/* Index bits: type, alignment, layer norm, size. */
enum { LOOPS = 8 * G_N_ELEMENTS(sizes) };

typedef struct {
    CudaCase c;
    DType dtype;
    gboolean layer;
    guint64 rows, columns;
    Array *x, *added, *sum, *weight, *bias, *y, *stats;
    double *hat, *mean, *rstd; /* normed x, and what it was normed by */
} NormCase;

static void want_hat(NormCase *n, const double *all)
{
    for (guint64 row = 0; row < n->rows; row++) {
        const double *x = all + row * n->columns;
        double mean = 0, square = 0;

        for (guint64 c = 0; c < n->columns && n->layer; c++)
            mean += x[c] / (double)n->columns;
        for (guint64 c = 0; c < n->columns; c++)
            square += (x[c] - mean) * (x[c] - mean) / (double)n->columns;
        n->mean[row] = mean;
        n->rstd[row] = 1 / sqrt(square + (double)eps);
        for (guint64 c = 0; c < n->columns; c++)
            n->hat[row * n->columns + c] = (x[c] - mean) * n->rstd[row];
    }
}

static NormCase norm_case(int i, DType dtype)
{
    NormCase n = {.c = cuda_case(),
                  .dtype = dtype,
                  .layer = i / 4 % 2,
                  .rows = sizes[i / 8].rows,
                  .columns = sizes[i / 8].columns};
    const guint64 all = n.rows * n.columns;

    n.c.unaligned = i / 2 % 2;
    n.x = case_noise(&n.c, n.dtype, all);
    n.added = case_noise(&n.c, n.dtype, all);
    n.sum = case_output(&n.c, n.dtype, all);
    n.weight = case_noise(&n.c, n.dtype, n.columns);
    n.bias = case_noise(&n.c, n.dtype, n.columns);
    n.y = case_output(&n.c, n.dtype, all);
    n.stats = case_output(&n.c, DTYPE_FP32, n.rows * (n.layer ? 2 : 1));
    n.hat = case_values(&n.c, all);
    n.mean = case_values(&n.c, n.rows);
    n.rstd = case_values(&n.c, n.rows);
    return n;
}

static CudaNorm norm_of(const NormCase *n)
{
    return (CudaNorm){.dtype = n->dtype,
                      .rows = n->rows,
                      .columns = n->columns,
                      .eps = eps,
                      .x = n->x->p,
                      .weight = n->weight->p,
                      .bias = n->layer ? n->bias->p : NULL,
                      .y = n->y->p,
                      .stats = n->stats->p};
}

static double *want_y(NormCase *n)
{
    double *want = case_values(&n->c, n->rows * n->columns);

    for (guint64 i = 0; i < n->rows * n->columns; i++)
        want[i] = n->hat[i] * n->weight->was[i % n->columns] +
                  (n->layer ? n->bias->was[i % n->columns] : 0);
    return want;
}

static double *want_stats(NormCase *n)
{
    double *want = case_values(&n->c, n->stats->count);

    for (guint64 row = 0; row < n->rows; row++) {
        want[n->layer ? 2 * row + 1 : row] = n->rstd[row];
        if (n->layer)
            want[2 * row] = n->mean[row];
    }
    return want;
}

/* A single column of a layer norm has x = mean, up to rounding times a rstd of 316. */
static double fp32_bound(const NormCase *n)
{
    return n->layer && n->columns == 1 ? 1e-9 : 1e-12;
}

START_TEST(a_norm_equals_plain_loops_and_its_apply_form_gives_the_same)
{
    NormCase n = norm_case(_i, loop_dtype(_i));
    const CudaNorm norm = norm_of(&n);

    want_hat(&n, n.x->was);
    (n.layer ? cuda_layernorm : cuda_rmsnorm)(&norm, n.c.stream);
    array_check(&n.c, n.y, want_y(&n), fp32_bound(&n), BF16_ROUNDED);
    array_check(&n.c, n.stats, want_stats(&n), 1e-12, 0);
    array_check(&n.c, n.x, n.x->was, 0, 0);
    array_fill(n.y);
    (n.layer ? cuda_layernorm_apply : cuda_rmsnorm_apply)(&norm, n.c.stream);
    array_check(&n.c, n.y, want_y(&n), fp32_bound(&n), BF16_ROUNDED);
    cuda_case_clear(&n.c);
}
END_TEST

START_TEST(what_is_added_is_rounded_before_the_norm)
{
    NormCase n = norm_case(_i, loop_dtype(_i));
    CudaNorm norm = norm_of(&n);
    double *want = case_values(&n.c, n.x->count);

    norm.added = n.added->p;
    norm.sum = n.sum->p;
    for (guint64 i = 0; i < n.x->count; i++)
        want[i] = stored(n.dtype, n.x->was[i] + n.added->was[i]);
    want_hat(&n, want);
    (n.layer ? cuda_layernorm : cuda_rmsnorm)(&norm, n.c.stream);
    array_check(&n.c, n.x, n.x->was, 0, 0);
    array_check(&n.c, n.sum, want, 1e-14, 0);
    array_check(&n.c, n.y, want_y(&n), fp32_bound(&n), BF16_ROUNDED);
    cuda_case_clear(&n.c);
}
END_TEST

/* ---- backward ---- */

typedef struct {
    double *dx, *dw, *db;
} Gradients;

static Gradients want_gradients(NormCase *n, const Array *dy)
{
    const double columns = (double)n->columns;
    const Gradients g = {case_values(&n->c, dy->count), case_values(&n->c, n->columns),
                         case_values(&n->c, n->columns)};

    for (guint64 row = 0; row < n->rows; row++) {
        const double *hat = n->hat + row * n->columns, *d = dy->was + row * n->columns;
        double mean = 0, project = 0;

        for (guint64 c = 0; c < n->columns; c++) {
            mean += n->layer ? d[c] * n->weight->was[c] / columns : 0;
            project += d[c] * n->weight->was[c] * hat[c] / columns;
            g.dw[c] += d[c] * hat[c];
            g.db[c] += d[c];
        }
        for (guint64 c = 0; c < n->columns; c++)
            g.dx[row * n->columns + c] =
                n->rstd[row] * (d[c] * n->weight->was[c] - mean - hat[c] * project);
    }
    return g;
}

static void add_old(double *want, const Array *array)
{
    for (guint64 i = 0; i < array->count; i++)
        want[i] += array->was[i];
}

static void run_backward(NormCase *n, DType type, gboolean adds)
{
    Array *(*make)(CudaCase *, DType, guint64) = adds ? case_noise : case_output;
    Array *dy = case_noise(&n->c, n->dtype, n->x->count), *dx = make(&n->c, n->dtype, n->x->count);
    Array *dw = make(&n->c, type, n->columns), *db = make(&n->c, type, n->columns);
    const Gradients want = want_gradients(n, dy);
    const double loose = n->columns == 1 ? 1e-6 : 1e-11;
    CudaNormBackward norm = {.dtype = n->dtype,
                             .dtype_out = type,
                             .rows = n->rows,
                             .columns = n->columns,
                             .dy = dy->p,
                             .x = n->x->p,
                             .weight = n->weight->p,
                             .stats = n->stats->p,
                             .dx = dx->p,
                             .dweight = dw->p,
                             .dbias = db->p,
                             .adds_dx = adds,
                             .adds_dw = adds,
                             .adds_db = adds};

    norm.scratch =
        case_scratch(&n->c, CUDA_NORM_PARTIALS * n->columns * sizeof(float) * (n->layer ? 2 : 1));
    if (adds) {
        add_old(want.dx, dx);
        add_old(want.dw, dw);
        add_old(want.db, db);
    }
    (n->layer ? cuda_layernorm_backward : cuda_rmsnorm_backward)(&norm, n->c.stream);
    if (n->columns > 1 || adds) /* dx of a single column is 0 but for rounding */
        array_check(&n->c, dx, want.dx, loose, BF16_ROUNDED + loose);
    if (n->columns > 1 || !n->layer)
        array_check(&n->c, dw, want.dw, loose, BF16_ROUNDED + loose);
    if (n->layer)
        array_check(&n->c, db, want.db, 1e-12, BF16_ROUNDED);
}

START_TEST(gradients_of_a_norm_equal_plain_loops)
{
    static const DType types[] = {DTYPE_FP32, DTYPE_BF16};

    for (guint type = 0; type < 2; type++) {
        NormCase n = norm_case(_i, loop_dtype(_i));
        const CudaNorm norm = norm_of(&n);

        want_hat(&n, n.x->was);
        (n.layer ? cuda_layernorm : cuda_rmsnorm)(&norm, n.c.stream);
        run_backward(&n, types[type], FALSE);
        run_backward(&n, types[type], TRUE);
        cuda_case_clear(&n.c);
    }
}
END_TEST

/* More columns than a block may keep sums of in shared memory. */
START_TEST(gradients_of_very_wide_rows_are_summed_in_the_scratch)
{
    NormCase n = norm_case(4, DTYPE_FP32); /* layer norm */

    n.rows = 2;
    n.columns = 13000;
    n.x = case_noise(&n.c, n.dtype, n.rows * n.columns);
    n.weight = case_noise(&n.c, n.dtype, n.columns);
    n.bias = case_noise(&n.c, n.dtype, n.columns);
    n.y = case_output(&n.c, n.dtype, n.rows * n.columns);
    n.stats = case_output(&n.c, DTYPE_FP32, n.rows * 2);
    n.hat = case_values(&n.c, n.rows * n.columns);
    n.mean = case_values(&n.c, n.rows);
    n.rstd = case_values(&n.c, n.rows);
    const CudaNorm norm = norm_of(&n);

    want_hat(&n, n.x->was);
    cuda_layernorm(&norm, n.c.stream);
    run_backward(&n, DTYPE_FP32, FALSE);
    cuda_case_clear(&n.c);
}
END_TEST

/* ---- bias ---- */

START_TEST(gradient_of_a_bias_is_the_sum_of_columns)
{
    const guint64 rows = sizes[_i / 8].rows, columns = sizes[_i / 8].columns;
    const gboolean adds = _i / 4 % 2;
    g_auto(CudaCase) c = cuda_case();
    c.unaligned = _i / 2 % 2;
    Array *dy = case_noise(&c, loop_dtype(_i), rows * columns);
    Array *db =
        adds ? case_noise(&c, loop_dtype(_i), columns) : case_output(&c, loop_dtype(_i), columns);
    double *want = case_values(&c, columns);

    for (guint64 i = 0; i < rows * columns; i++)
        want[i % columns] += dy->was[i];
    if (adds)
        add_old(want, db);
    cuda_bias_backward(
        &(CudaBiasBackward){.dtype = loop_dtype(_i),
                            .dtype_out = loop_dtype(_i),
                            .rows = rows,
                            .columns = columns,
                            .dy = dy->p,
                            .db = db->p,
                            .adds = adds,
                            .scratch = case_scratch(&c, CUDA_BIAS_PARTIALS * columns * 4)},
        c.stream);
    array_check(&c, db, want, 1e-12, BF16_ROUNDED);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda norm");
    TCase *tests = tcase_create("norm");

    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, a_norm_equals_plain_loops_and_its_apply_form_gives_the_same, 0,
                        LOOPS);
    tcase_add_loop_test(tests, what_is_added_is_rounded_before_the_norm, 0, LOOPS);
    tcase_add_loop_test(tests, gradients_of_a_norm_equal_plain_loops, 0, LOOPS);
    tcase_add_test(tests, gradients_of_very_wide_rows_are_summed_in_the_scratch);
    tcase_add_loop_test(tests, gradient_of_a_bias_is_the_sum_of_columns, 0, LOOPS);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
