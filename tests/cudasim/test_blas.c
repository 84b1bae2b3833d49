/* Matrix products against naive loops, with every epilogue, order and type. */
#include "tests/cudasim/kernels.h"
#include "tests/cudasim/number.h"
#include "tests/cudasim/outcome.h"
#include "tests/suite.h"
#include <cublas_v2.h>
#include <cublasLt.h>
#include <math.h>
#include <string.h>

enum { M = 16, N = 32, K = 48, BATCH = 2, MOST = BATCH * K * K };

/* A small number that every type holds exactly: a multiple of 1/8 of at most 7/8. */
static double element(guint seed, guint i)
{
    return (double)((i * 2654435761u + seed * 40503u) >> 16 & 15) / 8.0 - 0.875;
}

static void *operand(CsNumber type, guint seed, guint count)
{
    g_autofree char *values = g_malloc((gsize)count * 8);

    for (guint i = 0; i < count; i++)
        cs_number_set(type, values, i, element(seed, i));
    return to_device(values, count * cs_number_bytes(type));
}

static float *read_all(CsNumber type, const void *device, guint count)
{
    g_autofree char *values = g_malloc((gsize)count * 8);
    float *out = g_new(float, count);

    to_host(values, device, count * cs_number_bytes(type));
    for (guint i = 0; i < count; i++)
        out[i] = (float)cs_number_get(type, values, i);
    return out;
}

static void assert_near(float got, double want, double tolerance)
{
    ck_assert_msg(fabs((double)got - want) <= tolerance * (1.0 + fabs(want)), "%g, not %g",
                  (double)got, want);
}

/* ---- cuBLAS ---- */

static const cublasOperation_t ops[] = {CUBLAS_OP_N, CUBLAS_OP_T};

START_TEST(cublas_products_are_by_columns)
{
    cublasOperation_t op_a = ops[_i % 2], op_b = ops[_i / 2 % 2];
    cudaDataType type = _i < 4 ? CUDA_R_32F : CUDA_R_16BF;
    CsNumber number = _i < 4 ? CS_FP32 : CS_BF16;
    int lda = op_a == CUBLAS_OP_N ? M : K, ldb = op_b == CUBLAS_OP_N ? K : N;
    float alpha = 2.0f, beta = 0.5f;
    void *a = operand(number, 1, M * K * BATCH), *b = operand(number, 2, K * N * BATCH);
    void *c = operand(CS_FP32, 3, M * N * BATCH);
    cublasHandle_t handle;

    ok(cublasCreate(&handle));
    ok(cublasGemmStridedBatchedEx(handle, op_a, op_b, M, N, K, &alpha, a, type, lda, M * K, b, type,
                                  ldb, K * N, &beta, c, CUDA_R_32F, M, M * N, BATCH,
                                  CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    g_autofree float *got = read_all(CS_FP32, c, M * N * BATCH);
    for (guint q = 0; q < BATCH; q++)
        for (guint i = 0; i < M; i++)
            for (guint j = 0; j < N; j++) {
                guint at = q * M * N + j * M + i;
                double sum = 0.0;
                for (guint k = 0; k < K; k++)
                    sum += element(1, q * M * K + (op_a == CUBLAS_OP_N ? k * M + i : i * K + k)) *
                           element(2, q * K * N + (op_b == CUBLAS_OP_N ? j * K + k : k * N + j));
                assert_near(got[at], 2.0 * sum + 0.5 * element(3, at), 1e-6);
            }
    ok(cublasDestroy(handle));
}
END_TEST

/* C is undefined, and beta 0. */
START_TEST(with_beta_0_c_is_not_read)
{
    float alpha = 1.0f, beta = 0.0f, got;
    void *a = operand(CS_FP32, 1, 1), *c = to_device(NULL, 4);
    cublasHandle_t handle;

    ok(cublasCreate(&handle));
    ok(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &alpha, a, CUDA_R_32F, 1, a,
                    CUDA_R_32F, 1, &beta, c, CUDA_R_32F, 1, CUBLAS_COMPUTE_32F,
                    CUBLAS_GEMM_DEFAULT));
    to_host(&got, c, 4);
    ck_assert(!isnan(got));
    ck_assert_int_eq(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 8, 1, 1, &alpha, a, CUDA_R_32F,
                                  1, a, CUDA_R_32F, 1, &beta, c, CUDA_R_32F, 1, CUBLAS_COMPUTE_32F,
                                  CUBLAS_GEMM_DEFAULT),
                     CUBLAS_STATUS_INVALID_VALUE);
    ck_assert_uint_eq(cudasim_all_reports(), 0);
}
END_TEST

/* ---- cuBLASLt ---- */

typedef struct {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulHeuristicResult_t results[4];
    int found;
} Lt;

static void set_product(const Lt *lt, cublasLtMatmulDescAttributes_t attribute, const void *value,
                        size_t bytes)
{
    ok(cublasLtMatmulDescSetAttribute(lt->product, attribute, value, bytes));
}

static void set_order(cublasLtMatrixLayout_t layout, gint32 order)
{
    ok(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &order,
                                        sizeof order));
}

/* op(A) (M, K), op(B) (K, N), D (M, N), all of them by rows if @by_rows. */
static Lt lt_new(cudaDataType in, cudaDataType out, gint32 op_a, gint32 op_b, gboolean by_rows)
{
    Lt lt = {0};
    guint64 a_rows = op_a == CUBLAS_OP_N ? M : K, a_columns = op_a == CUBLAS_OP_N ? K : M;
    guint64 b_rows = op_b == CUBLAS_OP_N ? K : N, b_columns = op_b == CUBLAS_OP_N ? N : K;

    ok(cublasLtCreate(&lt.handle));
    ok(cublasLtMatmulDescCreate(&lt.product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set_product(&lt, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a);
    set_product(&lt, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b);
    ok(cublasLtMatrixLayoutCreate(&lt.a, in, a_rows, a_columns,
                                  (gint64)(by_rows ? a_columns : a_rows)));
    ok(cublasLtMatrixLayoutCreate(&lt.b, in, b_rows, b_columns,
                                  (gint64)(by_rows ? b_columns : b_rows)));
    ok(cublasLtMatrixLayoutCreate(&lt.d, out, M, N, by_rows ? N : M));
    set_order(lt.a, by_rows ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL);
    set_order(lt.b, by_rows ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL);
    set_order(lt.d, by_rows ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL);
    return lt;
}

static cublasStatus_t lt_find(Lt *lt, guint64 workspace_bytes)
{
    cublasLtMatmulPreference_t preference;

    ok(cublasLtMatmulPreferenceCreate(&preference));
    ok(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &workspace_bytes, sizeof workspace_bytes));
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(lt->handle, lt->product, lt->a, lt->b, lt->d, lt->d,
                                       preference, 4, lt->results, &lt->found);
    ok(cublasLtMatmulPreferenceDestroy(preference));
    return status;
}

static cublasStatus_t lt_run(Lt *lt, const void *a, const void *b, void *d, cudaStream_t stream)
{
    float alpha = 1.0f, beta = 0.0f;

    if (lt->found == 0)
        ok(lt_find(lt, 0));
    return cublasLtMatmul(lt->handle, lt->product, &alpha, a, lt->a, b, lt->b, &beta, d, lt->d, d,
                          lt->d, &lt->results[0].algo, NULL, 0, stream);
}

/* sum_k A[i][k] B[k][j] of operands with seeds 1 and 2, stored as lt_new() says. */
static double plain_product(gint32 op_a, gint32 op_b, gboolean by_rows, guint i, guint j)
{
    gboolean a_along_k = (op_a == CUBLAS_OP_N) == by_rows;
    gboolean b_along_n = (op_b == CUBLAS_OP_N) == by_rows;
    double sum = 0.0;

    for (guint k = 0; k < K; k++)
        sum += element(1, a_along_k ? i * K + k : k * M + i) *
               element(2, b_along_n ? k * N + j : j * K + k);
    return sum;
}

START_TEST(lt_products_take_orders_transposes_and_types)
{
    gint32 op_a = (gint32)ops[_i % 2], op_b = (gint32)ops[_i / 2 % 2];
    gboolean by_rows = _i / 4 % 2, bf16 = _i / 8 % 2;
    CsNumber number = bf16 ? CS_BF16 : CS_FP32;
    cudaDataType type = bf16 ? CUDA_R_16BF : CUDA_R_32F;
    Lt lt = lt_new(type, type, op_a, op_b, by_rows);
    void *d = to_device(NULL, M * N * cs_number_bytes(number));

    ok(lt_run(&lt, operand(number, 1, M * K), operand(number, 2, K * N), d, NULL));
    g_autofree float *got = read_all(number, d, M * N);
    for (guint i = 0; i < M; i++)
        for (guint j = 0; j < N; j++)
            assert_near(got[by_rows ? i * N + j : j * M + i],
                        plain_product(op_a, op_b, by_rows, i, j), bf16 ? 0.004 : 1e-6);
    ck_assert_uint_eq(cudasim_all_reports(), 0);
}
END_TEST

static double gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    return (gelu(x + 1e-4) - gelu(x - 1e-4)) / 2e-4;
}

/* What D and the bias gradient should be, of the product x, bias b, and auxiliary value u. */
static double with_epilogue(cublasLtEpilogue_t epilogue, double x, double b, double u)
{
    switch (epilogue) {
    case CUBLASLT_EPILOGUE_BIAS:
        return x + b;
    case CUBLASLT_EPILOGUE_RELU_BIAS:
        return MAX(x + b, 0.0);
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_AUX:
        return gelu(x);
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
        return gelu(x + b);
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
        return x * gelu_slope(u);
    default:
        return x;
    }
}

static const cublasLtEpilogue_t epilogues[] = {
    CUBLASLT_EPILOGUE_DEFAULT,       CUBLASLT_EPILOGUE_BIAS,      CUBLASLT_EPILOGUE_RELU_BIAS,
    CUBLASLT_EPILOGUE_GELU,          CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX,
    CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,     CUBLASLT_EPILOGUE_DGELU_BGRAD,
    CUBLASLT_EPILOGUE_BGRADA,        CUBLASLT_EPILOGUE_BGRADB};

/* The vector that BGRAD writes; 0 of other epilogues. */
static double expected_gradient(cublasLtEpilogue_t epilogue, guint i)
{
    double sum = 0.0;

    for (guint j = 0; epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD && j < N; j++)
        sum += plain_product(CUBLAS_OP_N, CUBLAS_OP_N, FALSE, i, j) *
               gelu_slope(element(4, j * M + i));
    for (guint k = 0; epilogue == CUBLASLT_EPILOGUE_BGRADA && k < K; k++)
        sum += element(1, k * M + i);
    for (guint k = 0; epilogue == CUBLASLT_EPILOGUE_BGRADB && k < K; k++)
        sum += element(2, i * K + k);
    return sum;
}

START_TEST(lt_epilogues_are_what_the_manual_says)
{
    cublasLtEpilogue_t epilogue = epilogues[_i];
    gboolean gradient = expected_gradient(epilogue, 0) != 0.0;
    gboolean forward_aux =
        epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    guint length = epilogue == CUBLASLT_EPILOGUE_BGRADB ? N : M;
    Lt lt = lt_new(CUDA_R_32F, CUDA_R_32F, CUBLAS_OP_N, CUBLAS_OP_N, FALSE);
    void *d = to_device(NULL, M * N * 4), *bias = operand(CS_FP32, 3, N);
    void *aux = operand(CS_FP32, 4, M * N);
    gint64 aux_leading = M;

    set_product(&lt, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    set_product(&lt, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    set_product(&lt, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux);
    set_product(&lt, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_leading, sizeof aux_leading);
    ok(lt_run(&lt, operand(CS_FP32, 1, M * K), operand(CS_FP32, 2, K * N), d, NULL));
    g_autofree float *got = read_all(CS_FP32, d, M * N), *got_bias = read_all(CS_FP32, bias, N),
                     *got_aux = read_all(CS_FP32, aux, M * N);
    for (guint i = 0; i < M; i++)
        for (guint j = 0; j < N; j++) {
            guint at = j * M + i;
            double x = plain_product(CUBLAS_OP_N, CUBLAS_OP_N, FALSE, i, j);
            double before = epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ? x + element(3, i) : x;
            assert_near(got[at], with_epilogue(epilogue, x, element(3, i), element(4, at)), 1e-4);
            assert_near(got_aux[at], forward_aux ? before : element(4, at), 1e-5);
        }
    for (guint i = 0; i < length; i++)
        assert_near(got_bias[i], gradient ? expected_gradient(epilogue, i) : element(3, i), 1e-4);
    ck_assert_uint_eq(cudasim_all_reports(), 0);
}
END_TEST

START_TEST(lt_fp8_products_scale_and_take_one_form_only)
{
    Lt lt = lt_new(CUDA_R_8F_E4M3, CUDA_R_16BF, CUBLAS_OP_T, CUBLAS_OP_N, FALSE);
    Lt other = lt_new(CUDA_R_8F_E4M3, CUDA_R_16BF, CUBLAS_OP_N, CUBLAS_OP_N, FALSE);
    void *d = to_device(NULL, M * N * 2);
    float *scale = to_device(&(float){4.0f}, 4);

    set_product(&lt, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scale, sizeof scale);
    ok(lt_run(&lt, operand(CS_E4M3, 1, M * K), operand(CS_E4M3, 2, K * N), d, NULL));
    g_autofree float *got = read_all(CS_BF16, d, M * N);
    for (guint i = 0; i < M; i++)
        for (guint j = 0; j < N; j++)
            assert_near(got[j * M + i], 4.0 * plain_product(CUBLAS_OP_T, CUBLAS_OP_N, FALSE, i, j),
                        0.004);
    ck_assert_int_eq(lt_find(&other, 0), CUBLAS_STATUS_NOT_SUPPORTED);
}
END_TEST

START_TEST(lt_algorithms_keep_to_the_workspace_and_to_their_problem)
{
    Lt lt = lt_new(CUDA_R_32F, CUDA_R_32F, CUBLAS_OP_N, CUBLAS_OP_N, FALSE);
    Lt other = lt_new(CUDA_R_32F, CUDA_R_32F, CUBLAS_OP_T, CUBLAS_OP_N, FALSE);
    void *a = operand(CS_FP32, 1, M * K), *b = operand(CS_FP32, 2, K * N);
    void *d = to_device(NULL, M * N * 4);

    ok(lt_find(&lt, 0));
    ck_assert_int_eq(lt.found, 1);
    ck_assert_uint_eq(lt.results[0].workspaceSize, 0);
    other.found = 1;
    other.results[0] = lt.results[0];
    ck_assert_int_eq(lt_run(&other, a, b, d, NULL), CUBLAS_STATUS_NOT_SUPPORTED);
    ok(lt_find(&lt, 1 << 20));
    ck_assert_int_eq(lt.found, 2);
    ck_assert_uint_gt(lt.results[0].workspaceSize, 0);
    ck_assert_int_eq(lt_run(&lt, a, b, d, NULL), CUBLAS_STATUS_INVALID_VALUE); /* without any */
}
END_TEST

/* Two streams whose handles share a workspace. */
static gboolean share_workspace(int shared)
{
    float one = 1.0f, zero = 0.0f;
    void *a = operand(CS_FP32, 1, 256), *spaces[2] = {to_device(NULL, 64), to_device(NULL, 64)};

    for (int i = 0; i < 2; i++) {
        cublasHandle_t handle;
        cudaStream_t stream;
        ok(cublasCreate(&handle));
        ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        ok(cublasSetStream(handle, stream));
        ok(cublasSetWorkspace(handle, spaces[shared ? 0 : i], 64));
        ok(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 16, 16, 16, &one, a, CUDA_R_32F, 16, a,
                        CUDA_R_32F, 16, &zero, to_device(NULL, 1024), CUDA_R_32F, 16,
                        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    }
    ok(cudaDeviceSynchronize());
    return TRUE;
}

START_TEST(a_workspace_that_two_streams_share_is_reported)
{
#ifdef CUDASIM_CHECK
    const int expected = REPORTED;
#else
    const int expected = 0;
#endif

    ck_assert_int_eq(outcome_of(share_workspace, FALSE, schedule_at(0)), 0);
    ck_assert_int_eq(outcome_of(share_workspace, TRUE, schedule_at(0)), expected);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cudasim blas");
    TCase *tests = tcase_create("blas");

    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, cublas_products_are_by_columns, 0, 8);
    tcase_add_test(tests, with_beta_0_c_is_not_read);
    tcase_add_loop_test(tests, lt_products_take_orders_transposes_and_types, 0, 16);
    tcase_add_loop_test(tests, lt_epilogues_are_what_the_manual_says, 0, G_N_ELEMENTS(epilogues));
    tcase_add_test(tests, lt_fp8_products_scale_and_take_one_form_only);
    tcase_add_test(tests, lt_algorithms_keep_to_the_workspace_and_to_their_problem);
    tcase_add_test(tests, a_workspace_that_two_streams_share_is_reported);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
