/* Rows of calibration: one a key. */
#include "sim/input/topology.h"

gboolean measured_same_gemm(const MeasuredGemm *a, const MeasuredGemm *b)
{
    return a->dtype == b->dtype && a->busy == b->busy && a->threads == b->threads && a->m == b->m &&
           a->n == b->n && a->k == b->k;
}

gboolean measured_same_op(const MeasuredOp *a, const MeasuredOp *b)
{
    return a->dtype == b->dtype && a->busy == b->busy && a->threads == b->threads &&
           a->size == b->size && a->width == b->width && g_str_equal(a->op, b->op);
}

static gboolean same_collective(const MeasuredCollective *a, const MeasuredCollective *b)
{
    return a->dtype == b->dtype && a->ranks == b->ranks && a->bytes == b->bytes &&
           g_str_equal(a->collective, b->collective);
}

MeasuredGemm *measured_find_gemm(const Measured *measured, const MeasuredGemm *key)
{
    for (guint i = 0; i < measured->gemm->len; i++)
        if (measured_same_gemm(&g_array_index(measured->gemm, MeasuredGemm, i), key))
            return &g_array_index(measured->gemm, MeasuredGemm, i);
    return NULL;
}

MeasuredOp *measured_find_op(const Measured *measured, const MeasuredOp *key)
{
    for (guint i = 0; i < measured->ops->len; i++)
        if (measured_same_op(&g_array_index(measured->ops, MeasuredOp, i), key))
            return &g_array_index(measured->ops, MeasuredOp, i);
    return NULL;
}

static MeasuredCollective *find_collective(const Measured *measured, const MeasuredCollective *key)
{
    for (guint i = 0; i < measured->collectives->len; i++)
        if (same_collective(&g_array_index(measured->collectives, MeasuredCollective, i), key))
            return &g_array_index(measured->collectives, MeasuredCollective, i);
    return NULL;
}

void measured_put_gemm(Measured *measured, const MeasuredGemm *row)
{
    MeasuredGemm *there = measured_find_gemm(measured, row);

    if (there != NULL)
        there->flops_per_s = row->flops_per_s;
    else
        g_array_append_val(measured->gemm, *row);
}

void measured_put_op(Measured *measured, const MeasuredOp *row)
{
    MeasuredOp *there = measured_find_op(measured, row), copy = *row;

    if (there != NULL) {
        there->per_s = row->per_s;
        return;
    }
    copy.op = g_strdup(row->op);
    g_array_append_val(measured->ops, copy);
}

void measured_put_collective(Measured *measured, const MeasuredCollective *row)
{
    MeasuredCollective *there = find_collective(measured, row), copy = *row;

    if (there != NULL) {
        there->seconds = row->seconds;
        return;
    }
    copy.collective = g_strdup(row->collective);
    g_array_append_val(measured->collectives, copy);
}

void measured_merge(Measured *measured, const Measured *from)
{
    for (guint i = 0; i < from->gemm->len; i++)
        measured_put_gemm(measured, &g_array_index(from->gemm, MeasuredGemm, i));
    for (guint i = 0; i < from->ops->len; i++)
        measured_put_op(measured, &g_array_index(from->ops, MeasuredOp, i));
    for (guint i = 0; i < from->collectives->len; i++)
        measured_put_collective(measured, &g_array_index(from->collectives, MeasuredCollective, i));
}
