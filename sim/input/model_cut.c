/* Where a model whose blocks differ is cut, so that all pieces have about as much work. */
#include "sim/input/model_family.h"

struct ModelCuts {
    guint num;        /* pieces, at most */
    guint16 **layers; /* of each piece, by how many there are */
};

/* Products of one token, forward: of all matrices, and of a causal sequence of @seq_len tokens each
 * query and value with half of the keys (model_step_flops()). */
static double block_work(const Model *model, guint kind, guint seq_len)
{
    const Model one = model_of_kind(model, kind);
    const double pairs = one.kinds->attention ? (double)one.heads * one.head_dim * seq_len : 0;

    return (double)model_unit_elements(&one, UNIT_BLOCK) + pairs;
}

/* From the first piece on, as many blocks as @most leaves room for, but one at least for each of
 * the others; the last has @head too.  FALSE: it has more. */
static gboolean cut(const Model *model, const double *work, double head, double most, guint pieces,
                    guint16 *layers)
{
    guint block = 0;

    for (guint p = 0; p < pieces; p++) {
        const guint first = block, last = model->layers - (pieces - 1 - p);
        double done = p + 1 == pieces ? head : 0;

        while (block < last && (block == first || p + 1 == pieces ||
                                done + work[model_block_kind(model, block)] <= most))
            done += work[model_block_kind(model, block++)];
        layers[p] = (guint16)(block - first);
        if (done > most)
            return FALSE;
    }
    return TRUE;
}

/* The largest piece is as small as whole blocks allow, to a thousandth of all. */
static guint16 *find_cut(const Model *model, const double *work, double head, guint pieces)
{
    guint16 *layers = g_new(guint16, pieces);
    double least = 0, most = head;

    for (guint i = 0; i < model->layers; i++)
        most += work[model_block_kind(model, i)];
    for (const double close = most / 1000 / pieces; most - least > close;) {
        const double middle = (least + most) / 2;

        if (cut(model, work, head, middle, pieces, layers))
            most = middle;
        else
            least = middle;
    }
    if (!cut(model, work, head, most, pieces, layers))
        g_assert_not_reached();
    return layers;
}

ModelCuts *model_cuts_new(const Model *model)
{
    enum { MOST_PIECES = 256, SEQ_LEN = 8192 };
    double work[MAX_BLOCK_KINDS];
    ModelCuts *cuts = g_new0(ModelCuts, 1);

    for (guint k = 0; k < model->num_kinds; k++)
        work[k] = block_work(model, k, MIN(model->max_seq, SEQ_LEN));
    cuts->num = MIN(model->layers, MOST_PIECES);
    cuts->layers = g_new0(guint16 *, cuts->num);
    for (guint p = 0; p < cuts->num; p++)
        cuts->layers[p] = find_cut(model, work, (double)model->vocab * model->hidden, p + 1);
    return cuts;
}

void model_cuts_free(ModelCuts *cuts)
{
    if (cuts == NULL)
        return;
    for (guint p = 0; p < cuts->num; p++)
        g_free(cuts->layers[p]);
    g_free(cuts->layers);
    g_free(cuts);
}

const guint16 *model_even_work(const Model *model, guint pieces)
{
    return model->cuts == NULL || pieces < 2 || pieces > model->cuts->num
               ? NULL
               : model->cuts->layers[pieces - 1];
}
