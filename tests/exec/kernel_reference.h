/* The forward ops as plain loops in fp64, written from sim/program/op.h: what kernels are compared
 * with, and what gradients are differences of. */
#pragma once

#include "sim/program/op.h"

#include <math.h>

/* y (N, O) = x (N, I) W (O, I)^T */
static inline void reference_linear(const OpSizes *s, const double *x, const double *w, double *y)
{
    for (guint64 n = 0; n < s->rows; n++)
        for (guint64 o = 0; o < s->out; o++) {
            double sum = 0;

            for (guint64 i = 0; i < s->in; i++)
                sum += x[n * s->in + i] * w[o * s->in + i];
            y[n * s->out + o] = sum;
        }
}

static inline void reference_rmsnorm(const OpSizes *s, const double *x, const double *w, double *y)
{
    for (guint64 n = 0; n < s->rows; n++) {
        double squares = 0;

        for (guint64 c = 0; c < s->in; c++)
            squares += x[n * s->in + c] * x[n * s->in + c];
        for (guint64 c = 0; c < s->in; c++)
            y[n * s->in + c] = x[n * s->in + c] / sqrt(squares / (double)s->in + s->eps) * w[c];
    }
}

/* @stats (N, 2): mean and 1 / deviation of each row; may be NULL. */
static inline void reference_layernorm(const OpSizes *s, const double *const xwb[3], double *y,
                                       double *stats)
{
    for (guint64 n = 0; n < s->rows; n++) {
        const double *x = xwb[0] + n * s->in;
        double mean = 0, variance = 0;

        for (guint64 c = 0; c < s->in; c++)
            mean += x[c] / (double)s->in;
        for (guint64 c = 0; c < s->in; c++)
            variance += (x[c] - mean) * (x[c] - mean) / (double)s->in;
        for (guint64 c = 0; c < s->in; c++)
            y[n * s->in + c] = (x[c] - mean) / sqrt(variance + s->eps) * xwb[1][c] + xwb[2][c];
        if (stats != NULL) {
            stats[2 * n] = mean;
            stats[2 * n + 1] = 1 / sqrt(variance + s->eps);
        }
    }
}

/* In place, @heads heads a row. */
static inline void reference_rope(const OpSizes *s, guint64 heads, const double *table, double *q)
{
    const guint64 half = s->head_dim / 2;

    for (guint64 row = 0; row < s->batch * s->seq; row++)
        for (guint64 h = 0; h < heads; h++)
            for (guint64 i = 0; i < half; i++) {
                double *a = q + (row * heads + h) * s->head_dim + i, *b = a + half;
                const double *angles = table + row % s->seq * s->head_dim;
                const double x = *a, y = *b;

                *a = x * angles[i] - y * angles[half + i];
                *b = y * angles[i] + x * angles[half + i];
            }
}

/* Output of one query: @scores has room for a sequence. */
static inline double reference_attention_row(const OpSizes *s, const double *qkv[3], guint64 at[3],
                                             double *scores, double *o)
{
    const guint64 batch = at[0], head = at[1], query = at[2];
    const guint64 q_stride = s->heads * s->head_dim, k_stride = s->kv_heads * s->head_dim;
    const guint64 kv = head / (s->heads / s->kv_heads);
    const guint64 first = batch * s->seq;
    const double *q = qkv[0] + (first + query) * q_stride + head * s->head_dim;
    double sum = 0;

    for (guint64 j = 0; j <= query; j++) {
        double score = 0;

        for (guint64 d = 0; d < s->head_dim; d++)
            score += q[d] * qkv[1][(first + j) * k_stride + kv * s->head_dim + d];
        scores[j] = exp(score / sqrt((double)s->head_dim));
        sum += scores[j];
    }
    for (guint64 d = 0; d < s->head_dim; d++) {
        double value = 0;

        for (guint64 j = 0; j <= query; j++)
            value += scores[j] / sum * qkv[2][(first + j) * k_stride + kv * s->head_dim + d];
        o[(first + query) * q_stride + head * s->head_dim + d] = value;
    }
    return log(sum);
}

/* @lse may be NULL. */
static inline void reference_attention(const OpSizes *s, const double *qkv[3], double *o,
                                       double *lse)
{
    g_autofree double *scores = g_new(double, s->seq);

    for (guint64 batch = 0; batch < s->batch; batch++)
        for (guint64 head = 0; head < s->heads; head++)
            for (guint64 query = 0; query < s->seq; query++) {
                guint64 at[3] = {batch, head, query};
                const double value = reference_attention_row(s, qkv, at, scores, o);

                if (lse != NULL)
                    lse[(batch * s->heads + head) * s->seq + query] = value;
            }
}

static inline void reference_swiglu(const OpSizes *s, const double *gate, const double *up,
                                    double *h)
{
    for (guint64 i = 0; i < s->rows * s->in; i++)
        h[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
}

static inline double reference_gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / G_PI) * (x + 0.044715 * x * x * x)));
}

/* Sum of the losses of all rows whose label is not -1. */
static inline double reference_loss(const OpSizes *s, const double *x, const double *w,
                                    const double *labels)
{
    g_autofree double *logits = g_new(double, s->rows * s->out);
    double loss = 0;

    reference_linear(s, x, w, logits);
    for (guint64 n = 0; n < s->rows; n++) {
        const double *row = logits + n * s->out;
        double sum = 0;

        if (labels[n] < 0)
            continue;
        for (guint64 v = 0; v < s->out; v++)
            sum += exp(row[v]);
        loss += log(sum) - row[(guint64)labels[n]];
    }
    return loss;
}
