/* Every backward kernel against central differences of the forward op in fp64: for random r,
 * the gradient of sum(r * y) by each input, where y is kernel_reference.h's. */
#include "tests/exec/kernel_case.h"
#include "tests/exec/kernel_reference.h"

typedef struct {
    double (*objective)(const OpSizes *s, double *const *in); /* sum(r * y) */
    double *const *in;
    guint64 step;  /* every so many elements are looked at */
    double stored; /* error that the op's rounded inputs alone cause */
} Differences;

/* Differences by in[which] against operand @gradient. */
static void check_gradient(const KernelCase *c, const Differences *differences, guint which,
                           guint gradient)
{
    const double h = 1e-5, rounding = c->type[gradient] == DTYPE_BF16 ? 0x1p-7 : 2e-6;
    double *x = differences->in[which];

    for (guint64 i = 0; i < c->count[gradient]; i += differences->step) {
        const double at = x[i];

        x[i] = at + h;
        const double above = differences->objective(&c->op.sizes, differences->in);
        x[i] = at - h;
        const double below = differences->objective(&c->op.sizes, differences->in);
        x[i] = at;
        const double want = (above - below) / (2 * h), got = case_get(c, gradient, i);

        if (!(fabs(got - want) <= 2e-5 + differences->stored + rounding * fabs(want)))
            ck_abort_msg("%s, %s: operand %u, element %" G_GUINT64_FORMAT " is %.9g, not %.9g",
                         op_kind_name(c->op.kind), dtype_name(c->op.dtype), gradient, i, got, want);
    }
}

static double weighted(const double *r, const double *y, guint64 n)
{
    double sum = 0;

    for (guint64 i = 0; i < n; i++)
        sum += r[i] * y[i];
    return sum;
}

static const DType dtypes[] = {DTYPE_FP32, DTYPE_BF16};

/* ---- linear: in = dy, x, W ---- */

static double linear_objective(const OpSizes *s, double *const *in)
{
    g_autofree double *y = g_new(double, s->rows * s->out);

    reference_linear(s, in[1], in[2], y);
    return weighted(in[0], y, s->rows * s->out);
}

START_TEST(linear_backward_is_the_gradient_of_linear)
{
    const OpSizes s = {.rows = 7, .in = 10, .out = 9};
    KernelCase dx = kernel_case(OP_LINEAR_BACKWARD_INPUT, dtypes[_i], s);
    KernelCase dw = kernel_case(OP_LINEAR_BACKWARD_WEIGHT, dtypes[_i], s);

    case_add(&dx, ACCESS_READ, dx.op.dtype, 63);
    case_add(&dx, ACCESS_READ, dx.op.dtype, 90);
    case_add(&dx, ACCESS_WRITE, dx.op.dtype, 70);
    case_add_scratch(&dx);
    case_add(&dw, ACCESS_READ, dw.op.dtype, 63); /* the same noise as dx's: the same dy */
    case_add(&dw, ACCESS_READ, dw.op.dtype, 70);
    case_add(&dw, ACCESS_WRITE, dw.op.dtype, 90);
    case_add_scratch(&dw);
    g_autofree double *dy = case_values(&dx, 0), *x = case_values(&dw, 1), *w = case_values(&dx, 1);
    double *const in[] = {dy, x, w};

    case_run(&dx, 2);
    case_run(&dw, 2);
    check_gradient(&dx, &(Differences){linear_objective, in, .step = 1}, 1, 2);
    check_gradient(&dw, &(Differences){linear_objective, in, .step = 1}, 2, 2);
    kernel_case_clear(&dx);
    kernel_case_clear(&dw);
}
END_TEST

/* ---- rmsnorm: in = dy, x, w ---- */

static double rmsnorm_objective(const OpSizes *s, double *const *in)
{
    g_autofree double *y = g_new(double, s->rows * s->in);

    reference_rmsnorm(s, in[1], in[2], y);
    return weighted(in[0], y, s->rows * s->in);
}

static KernelCase rmsnorm_case(DType dtype, OpSizes s)
{
    KernelCase c = kernel_case(OP_RMSNORM_BACKWARD, dtype, s);

    case_add(&c, ACCESS_READ, dtype, s.rows * s.in);
    case_add(&c, ACCESS_READ, dtype, s.rows * s.in);
    case_add(&c, ACCESS_READ, dtype, s.in);
    case_add(&c, ACCESS_READ, DTYPE_FP32, s.rows);
    case_add(&c, ACCESS_WRITE, dtype, s.rows * s.in);
    case_add(&c, ACCESS_ACCUMULATE, dtype, s.in);
    case_add_scratch(&c);
    for (guint64 n = 0; n < s.rows; n++) {
        double squares = 0;

        for (guint64 i = n * s.in; i < (n + 1) * s.in; i++)
            squares += case_get(&c, 1, i) * case_get(&c, 1, i);
        case_set(&c, 3, n, 1 / sqrt(squares / (double)s.in + s.eps));
    }
    return c;
}

START_TEST(rmsnorm_backward_is_the_gradient_of_rmsnorm)
{
    const OpSizes sizes[] = {{.rows = 1, .in = 6, .eps = 1e-5},
                             {.rows = 40, .in = 10, .eps = 1e-5},
                             {.rows = 2, .in = 1030, .eps = 1e-5}};
    KernelCase c = rmsnorm_case(dtypes[_i % 2], sizes[_i / 2]);
    g_autofree double *dy = case_values(&c, 0), *x = case_values(&c, 1), *w = case_values(&c, 2);
    double *const in[] = {dy, x, w};

    case_check_threads(&c);
    case_run(&c, 2);
    check_gradient(&c, &(Differences){rmsnorm_objective, in, .step = 1}, 1, 4);
    check_gradient(&c, &(Differences){rmsnorm_objective, in, .step = 1}, 2, 5);
    kernel_case_clear(&c);
}
END_TEST

START_TEST(rmsnorm_backward_adds_where_it_updates)
{
    KernelCase c = rmsnorm_case(DTYPE_FP32, (OpSizes){.rows = 5, .in = 10, .eps = 1e-5});

    case_run(&c, 1);
    g_autofree double *dx = case_values(&c, 4), *dw = case_values(&c, 5);
    c.op.operands[4].access = ACCESS_UPDATE;
    case_run_first(&c, 1, FALSE);
    for (guint64 i = 0; i < c.count[4]; i++)
        dx[i] *= 2;
    for (guint64 i = 0; i < c.count[5]; i++)
        dw[i] *= 2;
    case_check(&c, 4, dx, 0, 1);
    case_check(&c, 5, dw, 0, 1);
    kernel_case_clear(&c);
}
END_TEST

/* ---- rope: in = dq, q, table ---- */

static double rope_objective(const OpSizes *s, double *const *in)
{
    const guint64 n = s->batch * s->seq * s->heads * s->head_dim;
    g_autofree double *q = g_memdup2(in[1], n * sizeof(double));

    reference_rope(s, s->heads, in[2], q);
    return weighted(in[0], q, n);
}

START_TEST(rope_backward_is_the_gradient_of_rope)
{
    const OpSizes s = {.batch = 2, .seq = 3, .heads = 2, .kv_heads = 1, .head_dim = 6};
    KernelCase c = kernel_case(OP_ROPE_BACKWARD, dtypes[_i], s);

    case_add(&c, ACCESS_UPDATE, c.op.dtype, 72);
    case_add(&c, ACCESS_UPDATE, c.op.dtype, 36);
    case_add(&c, ACCESS_READ, DTYPE_FP32, 18);
    g_autofree double *dq = case_values(&c, 0), *table = case_values(&c, 2);
    g_autofree double *q = g_new0(double, 72); /* the op is linear: anywhere will do */
    double *const in[] = {dq, q, table};

    case_run(&c, 1);
    check_gradient(&c, &(Differences){rope_objective, in, .step = 1}, 1, 0);
    kernel_case_clear(&c);
}
END_TEST

/* ---- attention: in = do, q, k, v ---- */

static double attention_objective(const OpSizes *s, double *const *in)
{
    const guint64 n = s->batch * s->seq * s->heads * s->head_dim;
    g_autofree double *o = g_new(double, n);
    const double *qkv[] = {in[1], in[2], in[3]};

    reference_attention(s, qkv, o, NULL);
    return weighted(in[0], o, n);
}

/* Operands of op.h; o and lse are those of the forward op. */
static KernelCase attention_case(DType dtype, OpSizes s)
{
    const guint64 q = s.batch * s.seq * s.heads * s.head_dim, k = q / s.heads * s.kv_heads;
    const guint64 counts[] = {q, q, k, k, q, s.batch * s.heads * s.seq, q, k, k};
    KernelCase c = kernel_case(OP_ATTENTION_BACKWARD, dtype, s);

    for (guint i = 0; i < G_N_ELEMENTS(counts); i++)
        case_add(&c, i < 6 ? ACCESS_READ : ACCESS_WRITE, i == 5 ? DTYPE_FP32 : dtype, counts[i]);
    case_add_scratch(&c);
    g_autofree double *q_values = case_values(&c, 1), *k_values = case_values(&c, 2);
    g_autofree double *v_values = case_values(&c, 3);
    g_autofree double *o = g_new(double, q), *lse = g_new(double, counts[5]);
    const double *qkv[] = {q_values, k_values, v_values};
    reference_attention(&s, qkv, o, lse);
    for (guint64 i = 0; i < q; i++)
        case_set(&c, 4, i, o[i]);
    for (guint64 i = 0; i < counts[5]; i++)
        case_set(&c, 5, i, lse[i]);
    return c;
}

/* One token; heads in groups of 1, 2, 4; a tile of queries and one; two tiles of keys.  Differences
 * cost T^2 each, so that long sequences are sampled. */
static const struct {
    OpSizes sizes;
    guint64 step;
} attentions[] = {
    {{.batch = 1, .seq = 1, .heads = 2, .kv_heads = 2, .head_dim = 6}, 1},
    {{.batch = 2, .seq = 7, .heads = 2, .kv_heads = 2, .head_dim = 4}, 1},
    {{.batch = 1, .seq = 9, .heads = 4, .kv_heads = 2, .head_dim = 6}, 1},
    {{.batch = 1, .seq = 65, .heads = 4, .kv_heads = 1, .head_dim = 6}, 19},
    {{.batch = 1, .seq = 300, .heads = 2, .kv_heads = 1, .head_dim = 4}, 83},
};

START_TEST(attention_backward_is_the_gradient_of_attention)
{
    KernelCase c = attention_case(dtypes[_i % 2], attentions[_i / 2].sizes);
    g_autofree double *dout = case_values(&c, 0), *q = case_values(&c, 1);
    g_autofree double *k = case_values(&c, 2), *v = case_values(&c, 3);
    double *const in[] = {dout, q, k, v};

    case_check_threads(&c);
    case_run(&c, 2);
    /* o is read as stored: in bf16, delta = do . o is off by up to 2^-8 of it */
    const Differences differences = {.objective = attention_objective,
                                     .in = in,
                                     .step = attentions[_i / 2].step,
                                     .stored = _i % 2 == 0 ? 0 : 2e-3};
    for (guint i = 1; i <= 3; i++)
        check_gradient(&c, &differences, i, 5 + i);
    kernel_case_clear(&c);
}
END_TEST

/* ---- swiglu: in = dh, gate, up ---- */

static double swiglu_objective(const OpSizes *s, double *const *in)
{
    g_autofree double *h = g_new(double, s->rows * s->in);

    reference_swiglu(s, in[1], in[2], h);
    return weighted(in[0], h, s->rows * s->in);
}

START_TEST(swiglu_backward_replaces_gate_and_up_by_their_gradients)
{
    KernelCase c = kernel_case(OP_SWIGLU_BACKWARD, dtypes[_i], (OpSizes){.rows = 5, .in = 250});

    case_add(&c, ACCESS_READ, c.op.dtype, 1250);
    case_add(&c, ACCESS_UPDATE, c.op.dtype, 1250);
    case_add(&c, ACCESS_UPDATE, c.op.dtype, 1250);
    g_autofree double *dh = case_values(&c, 0), *gate = case_values(&c, 1),
                      *up = case_values(&c, 2);
    double *const in[] = {dh, gate, up};

    case_check_threads(&c);
    case_run(&c, 2);
    check_gradient(&c, &(Differences){swiglu_objective, in, .step = 7}, 1, 1);
    check_gradient(&c, &(Differences){swiglu_objective, in, .step = 7}, 2, 2);
    kernel_case_clear(&c);
}
END_TEST

/* ---- head: in = labels, x, W, valid ---- */

static double head_objective(const OpSizes *s, double *const *in)
{
    return reference_loss(s, in[1], in[2], in[0]) / in[3][0];
}

START_TEST(head_loss_gives_the_gradients_of_its_loss)
{
    const OpSizes s = {.rows = 7, .in = 6, .out = 31, .chunk = 3};
    KernelCase c = kernel_case(OP_HEAD_LOSS, dtypes[_i], s);

    case_add(&c, ACCESS_READ, c.op.dtype, 42);
    case_add(&c, ACCESS_READ, c.op.dtype, 186);
    case_add(&c, ACCESS_READ, DTYPE_INT32, 7);
    case_add(&c, ACCESS_READ, DTYPE_FP64, 1);
    case_add(&c, ACCESS_WRITE, DTYPE_FP64, 1);
    case_add(&c, ACCESS_WRITE, c.op.dtype, 42);
    case_add(&c, ACCESS_WRITE, c.op.dtype, 186);
    case_add_scratch(&c);
    for (guint64 n = 0; n < 7; n++)
        case_set(&c, 2, n, n == 4 ? -1 : (double)(n * 5));
    case_set(&c, 3, 0, 12); /* valid tokens of all ranks: more than this rank's */
    g_autofree double *labels = case_values(&c, 2), *x = case_values(&c, 0);
    g_autofree double *w = case_values(&c, 1), *valid = case_values(&c, 3);
    double *const in[] = {labels, x, w, valid};

    case_run(&c, 2);
    check_gradient(&c, &(Differences){head_objective, in, .step = 1}, 1, 5);
    check_gradient(&c, &(Differences){head_objective, in, .step = 1}, 2, 6);
    kernel_case_clear(&c);
}
END_TEST

/* ---- embedding: the op is a linear of one-hot rows, in = dx, tokens, W ---- */

static double embed_objective(const OpSizes *s, double *const *in)
{
    double sum = 0;

    for (guint64 i = 0; i < s->rows * s->out; i++)
        sum += in[0][i] * in[2][(guint64)in[1][i / s->out] * s->out + i % s->out];
    return sum;
}

START_TEST(embed_backward_is_the_gradient_of_embed)
{
    KernelCase c =
        kernel_case(OP_EMBED_BACKWARD, dtypes[_i], (OpSizes){.rows = 12, .in = 5, .out = 6});

    case_add(&c, ACCESS_READ, DTYPE_INT32, 12);
    case_add(&c, ACCESS_READ, c.op.dtype, 72);
    case_add(&c, ACCESS_WRITE, c.op.dtype, 30);
    for (guint64 n = 0; n < 12; n++)
        case_set(&c, 0, n, (double)(n * n % 5));
    g_autofree double *tokens = case_values(&c, 0), *dx = case_values(&c, 1);
    g_autofree double *w = g_new0(double, 30);
    double *const in[] = {dx, tokens, w};

    case_run(&c, 2);
    check_gradient(&c, &(Differences){embed_objective, in, .step = 1}, 2, 2);
    kernel_case_clear(&c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gradients");
    TCase *tcase = tcase_create("differences");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, linear_backward_is_the_gradient_of_linear, 0, 2);
    tcase_add_loop_test(tcase, rmsnorm_backward_is_the_gradient_of_rmsnorm, 0, 6);
    tcase_add_test(tcase, rmsnorm_backward_adds_where_it_updates);
    tcase_add_loop_test(tcase, rope_backward_is_the_gradient_of_rope, 0, 2);
    tcase_add_loop_test(tcase, attention_backward_is_the_gradient_of_attention, 0,
                        2 * G_N_ELEMENTS(attentions));
    tcase_add_loop_test(tcase, swiglu_backward_replaces_gate_and_up_by_their_gradients, 0, 2);
    tcase_add_loop_test(tcase, head_loss_gives_the_gradients_of_its_loss, 0, 2);
    tcase_add_loop_test(tcase, embed_backward_is_the_gradient_of_embed, 0, 2);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
