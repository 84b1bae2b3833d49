/* Latent attention to chosen keys, DeepSeek Sparse Attention (DeepSeek-V3.2, arXiv 2512.02556, sec.
 * 2.1).  An indexer scores all keys before a query,
 *
 *     I(t, s) = sum over its heads of w(t) max(q(t) k(s), 0)                              (eq. 1)
 *
 * and the query's heads attend to the k highest (eq. 2).  All heads read the same latent keys and
 * values (there: "the MQA mode of MLA"): queries go up to the latent space and what attention gives
 * comes down from it, a product of each head with its part of the matrix that would make keys and
 * values; as many products as making them.
 *
 * In sparse training what the indexer reads is cut off from the graph: its matrices give no
 * gradient to x, and learn from the divergence of softmax(I) from what attention's heads together
 * gave the chosen keys (eq. 4).  The ops are those of cuDNN (NVIDIA/cudnn-frontend, dsa.md): scores
 * and the largest, attention, a target from its scores made again, the indexer's backward pass.
 *
 * With tensor parallelism each rank has the whole indexer, of all tokens, and targets are summed;
 * with context parallelism keys of all ranks are gathered: as in Megatron-Core's DSAttention.  Left
 * out: Hadamard rotation and fp8 in the indexer; the loss itself, of N k values. */
#include "sim/program/emit.h"

static guint64 latent_width(const LatentAttention *latent)
{
    return latent->kv_rank + latent->rope_dim;
}

static guint64 num_chosen(const Builder *builder)
{
    return MIN(builder->local.latent.top_keys, builder->spec->workload->seq_len);
}

/* The same of all ranks of the cp group. */
static guint add_all(Builder *builder, const char *name, guint own, guint64 columns)
{
    return builder->cp == 1 ? own
                            : emit_tensor(builder, name, builder->dtype, NO_SPACE,
                                          builder->cp * builder->rows * columns);
}

static void add_indexer(Builder *builder, IndexedTensors *x, guint saved)
{
    const LatentAttention *latent = &builder->local.latent;
    const guint64 dim = latent->index_dim, query = latent->index_heads * dim;
    const guint64 chosen = builder->rows * num_chosen(builder);
    const guint weights = builder_weights_space(builder);

    x->index_q = emit_activation(builder, "index_q", saved, query);
    x->given_k = emit_activation(builder, "index_k_given", saved, dim);
    x->stats = emit_activation_fp32(builder, "index_k_stats", saved, NUM_LAYERNORM * builder->rows);
    x->index_k = emit_activation(builder, "index_k", saved, dim);
    x->weights = emit_activation(builder, "index_weights", saved, latent->index_heads);
    x->chosen = emit_tensor(builder, "chosen", DTYPE_INT32, saved, chosen);
    x->target = emit_activation_fp32(builder, "index_target", NO_SPACE, chosen);
    x->dindex_q = emit_activation(builder, "dindex_q", weights, query);
    x->dindex_k = emit_activation(builder, "dindex_k", NO_SPACE, dim);
    x->dgiven_k = emit_activation(builder, "dindex_k_given", weights, dim);
    x->dweights = emit_activation(builder, "dindex_weights", weights, latent->index_heads);
    x->all_index_k = add_all(builder, "all_index_k", x->index_k, dim);
    x->all_dindex_k = add_all(builder, "all_dindex_k", x->dindex_k, dim);
}

/* @kept: of what attention leaves, which the weights' backward reads too. */
void build_indexed(Builder *builder, AttentionTensors *t, guint saved, guint kept)
{
    const LatentAttention *latent = &builder->local.latent;
    const guint64 heads = builder->local.heads, width = latent_width(latent);
    const guint weights = builder_weights_space(builder);
    IndexedTensors *x = &t->indexed;

    x->q = emit_activation(builder, "q_absorbed", saved, heads * width);
    x->o = emit_activation(builder, "o_latent", kept, heads * latent->kv_rank);
    x->dq = emit_activation(builder, "dq_absorbed", weights, heads * width);
    x->dgiven = emit_activation(builder, "do_latent", NO_SPACE, heads * latent->kv_rank);
    x->all_k = add_all(builder, "all_k", t->k, width);
    x->all_dk = add_all(builder, "all_dk", t->dk, width);
    add_indexer(builder, x, saved);
}

/* ---- products of each head with its part of the matrix ---- */

/* From queries to the latent space; from there to what attention gives. */
typedef enum { OF_KEYS, OF_VALUES } Half;

/* In the activations' type, whatever other products have. */
static Op *half_product(const Emit *to, OpKind kind, Half half)
{
    const Model *model = &to->builder->local;
    const LatentAttention *latent = &model->latent;
    Op *op = emit_op(to, kind);

    op->sizes.rows = to->builder->rows * model->heads;
    op->sizes.groups = model->heads;
    op->sizes.in = half == OF_KEYS ? latent->plain_dim : latent->kv_rank;
    op->sizes.out = half == OF_KEYS ? latent->kv_rank : latent->value_dim;
    return op;
}

static void emit_half(const Emit *to, OpKind kind, Half half, guint from, guint target)
{
    Op *op = half_product(to, kind, half);

    emit_reads(op, from);
    emit_reads_weight(to, op, PARAM_KV_UP);
    emit_writes(op, target);
    emit_uses_scratch(to, op);
}

/* That of values comes first and accumulates, that of keys adds to its own part of the matrix. */
static void emit_half_weight(const Emit *to, Half half, guint dy, guint x)
{
    Op *op = half_product(to, OP_GROUPED_LINEAR_BACKWARD_WEIGHT, half);

    emit_reads(op, dy);
    emit_reads(op, x);
    emit_accumulates_gradient(to, op, PARAM_KV_UP);
    if (half == OF_KEYS)
        op->operands[2].access = ACCESS_UPDATE;
    emit_uses_scratch(to, op);
}

/* The rotated part of queries goes along as it is. */
static void pass_rotated(const Emit *to, guint from, guint target)
{
    const Model *model = &to->builder->local;

    emit_part(to, from, target, to->builder->rows * model->heads * model->latent.rope_dim,
              ACCESS_UPDATE);
}

/* ---- keys of all ranks ---- */

static void collective(const Emit *to, OpKind kind, guint from, guint target)
{
    Builder *builder = to->builder;
    const gboolean gathers = kind == OP_ALL_GATHER;

    if (builder->cp == 1)
        return;
    Op *op = segment_add_op(builder->program, to->segment, kind,
                            builder_stream(builder, "cp", gathers ? "gather" : "reduce"),
                            builder->dtype);
    op->sizes.elements = program_tensor(builder->program, gathers ? target : from)->elements;
    emit_reads(op, from);
    emit_writes(op, target);
}

/* ---- ops of the indexer ---- */

/* In the latent space all heads have one key. */
static Op *attention_op(const Emit *to, OpKind kind)
{
    const LatentAttention *latent = &to->builder->local.latent;
    Op *op = emit_op(to, kind);

    op->sizes.kv_heads = 1;
    op->sizes.head_dim = latent_width(latent);
    op->sizes.value_dim = latent->kv_rank;
    op->sizes.top_k = num_chosen(to->builder);
    op->sizes.chunk = to->builder->cp;
    return op;
}

static Op *index_op(const Emit *to, OpKind kind)
{
    const LatentAttention *latent = &to->builder->local.latent;
    Op *op = attention_op(to, kind);

    op->sizes.heads = latent->index_heads;
    op->sizes.head_dim = latent->index_dim;
    op->sizes.value_dim = 0;
    return op;
}

typedef struct {
    Linear q, k, weights;
} IndexWeights;

static IndexWeights index_weights(const Builder *builder)
{
    const LatentAttention *latent = &builder->local.latent;
    const guint64 hidden = builder->local.hidden, dim = latent->index_dim;

    return (IndexWeights){
        .q = {PARAM_INDEX_Q, latent->q_rank, latent->index_heads * dim, 0, 0},
        .k = {PARAM_INDEX_K, hidden, dim, 0, 0},
        .weights = {PARAM_INDEX_WEIGHTS, hidden, latent->index_heads, 0, 0},
    };
}

/* Of its queries and its one key, a part of each. */
static void rotate(const Emit *to, OpKind kind, guint q, guint k)
{
    Op *op = index_op(to, kind);

    op->sizes.head_dim = to->builder->local.latent.rope_dim;
    emit_updates(op, q);
    emit_updates(op, k);
    emit_reads(op, to->builder->rope_table);
}

/* LayerNorm, whatever the model's other norms are. */
static Op *norm_op(const Emit *to, OpKind kind)
{
    Op *op = emit_op(to, kind);

    op->sizes.in = op->sizes.out = to->builder->local.latent.index_dim;
    return op;
}

static void norm_key(const Emit *to, const IndexedTensors *x)
{
    Op *op = norm_op(to, OP_LAYERNORM);

    emit_reads(op, x->given_k);
    emit_reads_weight(to, op, PARAM_INDEX_K_NORM);
    emit_reads_weight(to, op, PARAM_INDEX_K_NORM_BIAS);
    emit_writes(op, x->index_k);
    emit_writes(op, x->stats);
}

static void norm_key_backward(const Emit *to, const IndexedTensors *x)
{
    Op *op = norm_op(to, OP_LAYERNORM_BACKWARD);

    emit_reads(op, x->dindex_k);
    emit_reads(op, x->given_k);
    emit_reads_weight(to, op, PARAM_INDEX_K_NORM);
    emit_reads(op, x->stats);
    emit_writes(op, x->dgiven_k);
    emit_accumulates_gradient(to, op, PARAM_INDEX_K_NORM);
    emit_accumulates_gradient(to, op, PARAM_INDEX_K_NORM_BIAS);
    emit_uses_scratch(to, op);
}

static void choose(const Emit *to, const IndexedTensors *x)
{
    Op *op = index_op(to, OP_INDEX);

    op->sizes.seen = 0; /* all keys */
    emit_reads(op, x->index_q);
    emit_reads(op, x->all_index_k);
    emit_reads(op, x->weights);
    emit_writes(op, x->chosen);
    emit_uses_scratch(to, op);
    if (to->builder->cp == 1)
        return;
    emit_reads(op, to->builder->query_positions);
    emit_reads(op, to->builder->key_positions);
}

void emit_index(const Emit *to, const AttentionTensors *t, guint q_latent, guint normed)
{
    const IndexWeights w = index_weights(to->builder);
    const IndexedTensors *x = &t->indexed;

    emit_linear(to, &w.q, q_latent, x->index_q, ACCESS_WRITE);
    emit_linear(to, &w.k, normed, x->given_k, ACCESS_WRITE);
    norm_key(to, x);
    rotate(to, OP_ROPE, x->index_q, x->index_k);
    emit_linear(to, &w.weights, normed, x->weights, ACCESS_WRITE);
    collective(to, OP_ALL_GATHER, x->index_k, x->all_index_k);
    choose(to, x);
}

/* What attention's heads gave each chosen key, those of all ranks. */
static void find_target(const Emit *to, const AttentionTensors *t)
{
    const IndexedTensors *x = &t->indexed;
    Op *op = attention_op(to, OP_INDEX_TARGET);

    emit_reads(op, x->q);
    emit_reads(op, x->all_k);
    emit_reads(op, x->chosen);
    emit_reads(op, t->lse);
    emit_writes(op, x->target);
    emit_sum_fp32(to, x->target);
}

static void index_backward(const Emit *to, const AttentionTensors *t)
{
    const IndexedTensors *x = &t->indexed;

    find_target(to, t);
    collective(to, OP_ALL_GATHER, x->index_k, x->all_index_k);
    Op *op = index_op(to, OP_INDEX_BACKWARD);
    emit_reads(op, x->target);
    emit_reads(op, x->chosen);
    emit_reads(op, x->index_q);
    emit_reads(op, x->all_index_k);
    emit_reads(op, x->weights);
    emit_writes(op, x->dindex_q);
    emit_writes(op, x->all_dindex_k);
    emit_writes(op, x->dweights);
    emit_uses_scratch(to, op);
    collective(to, OP_REDUCE_SCATTER, x->all_dindex_k, x->dindex_k);
    rotate(to, OP_ROPE_BACKWARD, x->dindex_q, x->dindex_k);
    norm_key_backward(to, x);
}

void emit_index_backward_weight(const Emit *weights, const AttentionTensors *t, guint q_latent,
                                guint normed)
{
    const IndexWeights w = index_weights(weights->builder);
    const IndexedTensors *x = &t->indexed;

    emit_linear_backward_weight(weights, &w.q, x->dindex_q, q_latent);
    emit_linear_backward_weight(weights, &w.k, x->dgiven_k, normed);
    emit_linear_backward_weight(weights, &w.weights, x->dweights, normed);
}

/* ---- attention ---- */

void emit_indexed_attention(const Emit *to, const AttentionTensors *t)
{
    const IndexedTensors *x = &t->indexed;

    emit_half(to, OP_GROUPED_LINEAR, OF_KEYS, t->q, x->q);
    pass_rotated(to, t->q, x->q);
    collective(to, OP_ALL_GATHER, t->k, x->all_k);
    Op *op = attention_op(to, OP_INDEXED_ATTENTION);
    emit_reads(op, x->q);
    emit_reads(op, x->all_k);
    emit_reads(op, x->chosen);
    emit_writes(op, x->o);
    emit_writes(op, t->lse);
    emit_uses_scratch(to, op);
    emit_half(to, OP_GROUPED_LINEAR, OF_VALUES, x->o, t->o);
}

static void attention_backward(const Emit *to, const AttentionTensors *t)
{
    const IndexedTensors *x = &t->indexed;

    collective(to, OP_ALL_GATHER, t->k, x->all_k);
    Op *op = attention_op(to, OP_INDEXED_ATTENTION_BACKWARD);
    emit_reads(op, x->dgiven);
    emit_reads(op, x->q);
    emit_reads(op, x->all_k);
    emit_reads(op, x->chosen);
    emit_reads(op, x->o);
    emit_reads(op, t->lse);
    emit_writes(op, x->dq);
    emit_writes(op, x->all_dk);
    emit_uses_scratch(to, op);
    collective(to, OP_REDUCE_SCATTER, x->all_dk, t->dk);
}

void emit_indexed_attention_backward(const Emit *to, const Emit *weights, const AttentionTensors *t)
{
    const IndexedTensors *x = &t->indexed;

    emit_half_weight(weights, OF_VALUES, t->dattention, x->o);
    emit_half(to, OP_GROUPED_LINEAR_BACKWARD_INPUT, OF_VALUES, t->dattention, x->dgiven);
    attention_backward(to, t);
    index_backward(to, t);
    emit_half_weight(weights, OF_KEYS, x->dq, t->q);
    emit_half(to, OP_GROUPED_LINEAR_BACKWARD_INPUT, OF_KEYS, x->dq, t->dq);
    pass_rotated(to, x->dq, t->dq);
}
