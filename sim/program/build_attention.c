/* Attention of a block, where the ranks of the cp group each have some tokens of every sequence.
 *
 *   ring        keys and values pass from rank to rank; each rank adds what its queries find there.
 *               Backward they pass again, and behind them the sums of their gradients, which are
 *               back home after as many steps as there are ranks.  Sums are fp32.
 *
 *   all_gather  keys and values of all ranks, in the order of ranks; again for backward, whose
 *               gradients are reduce-scattered.
 *
 * While one block of keys is worked on, the next one is under way. */
#include "sim/program/emit.h"

typedef enum { OF_KEYS, OF_VALUES } KeyOrValue;

static guint64 kv_elements(const Builder *builder, KeyOrValue which)
{
    const Model *model = &builder->local;

    return builder->rows * model->kv_heads *
           (which == OF_VALUES ? model_value_dim(model) : model->head_dim);
}

/* fp32 sums where the activations are narrower; else the activation itself. */
static guint add_sum(Builder *builder, const char *name, guint activation)
{
    const Tensor *tensor = program_tensor(builder->program, activation);

    return tensor->dtype == DTYPE_FP32
               ? activation
               : emit_activation_fp32(builder, name, NO_SPACE, tensor->elements);
}

static guint add_kv(Builder *builder, const char *name, KeyOrValue which, DType dtype, guint blocks)
{
    return emit_tensor(builder, name, dtype, NO_SPACE, blocks * kv_elements(builder, which));
}

static void add_ring(Builder *builder, const AttentionTensors *t, AttentionRing *ring)
{
    static const char *const names[2][6] = {
        {"ring_k.0", "ring_v.0", "ring_dk.0", "ring_dv.0", "part_dk", "part_dv"},
        {"ring_k.1", "ring_v.1", "ring_dk.1", "ring_dv.1", NULL, NULL},
    };

    for (guint i = 0; i < 2; i++) {
        ring->k[i] = add_kv(builder, names[i][0], OF_KEYS, builder->dtype, 1);
        ring->v[i] = add_kv(builder, names[i][1], OF_VALUES, builder->dtype, 1);
        ring->dk[i] = add_kv(builder, names[i][2], OF_KEYS, DTYPE_FP32, 1);
        ring->dv[i] = add_kv(builder, names[i][3], OF_VALUES, DTYPE_FP32, 1);
    }
    ring->part_dk = add_kv(builder, names[0][4], OF_KEYS, DTYPE_FP32, 1);
    ring->part_dv = add_kv(builder, names[0][5], OF_VALUES, DTYPE_FP32, 1);
    ring->o = add_sum(builder, "o_sum", t->o);
    ring->dq = add_sum(builder, "dq_sum", t->dq);
}

static void add_gathered(Builder *builder, AttentionRing *all)
{
    const guint cp = builder->cp;

    all->k[0] = add_kv(builder, "all_k", OF_KEYS, builder->dtype, cp);
    all->v[0] = add_kv(builder, "all_v", OF_VALUES, builder->dtype, cp);
    all->dk[0] = add_kv(builder, "all_dk", OF_KEYS, builder->dtype, cp);
    all->dv[0] = add_kv(builder, "all_dv", OF_VALUES, builder->dtype, cp);
}

void build_attention(Builder *builder, AttentionTensors *t)
{
    if (builder->cp == 1 || emit_is_indexed(builder))
        return;
    if (builder->spec->context == CONTEXT_RING)
        add_ring(builder, t, &t->ring);
    else
        add_gathered(builder, &t->ring);
}

/* ---- ops ---- */

/* One block of keys, or all of them. */
typedef struct {
    guint k, v;
    guint blocks;
    gint index;    /* of its positions */
    Access access; /* of what is found */
} Keys;

static void reads_positions(const Emit *to, Op *op, const Keys *keys)
{
    const Builder *builder = to->builder;

    if (builder->cp == 1)
        return;
    op->sizes.chunk = keys->blocks;
    emit_reads(op, builder->query_positions);
    op_add_operand(op, builder->key_positions, ACCESS_READ, keys->index, WHOLE_TENSOR);
}

static gboolean has_sinks(const Builder *builder)
{
    return builder->param[PARAM_SINKS] >= 0;
}

static void emit_attention_over(const Emit *to, const AttentionTensors *t, const Keys *keys,
                                guint o)
{
    Op *op = emit_op(to, OP_ATTENTION);

    op->dtype_out = program_tensor(to->builder->program, o)->dtype;
    emit_reads(op, t->q);
    emit_reads(op, keys->k);
    emit_reads(op, keys->v);
    op_add_operand(op, o, keys->access, 0, WHOLE_TENSOR);
    op_add_operand(op, t->lse, keys->access, 0, WHOLE_TENSOR);
    emit_uses_scratch(to, op);
    reads_positions(to, op, keys);
    if (has_sinks(to->builder) && keys->access == ACCESS_WRITE) { /* once for all blocks of keys */
        op->sizes.sinks = op->sizes.heads;
        emit_reads_weight(to, op, PARAM_SINKS);
    }
}

/* Where the gradients of one block of keys go. */
typedef struct {
    guint dq, dk, dv;
} KeyGradients;

static void emit_attention_backward_over(const Emit *to, const AttentionTensors *t,
                                         const Keys *keys, const KeyGradients *gradients)
{
    Op *op = emit_op(to, OP_ATTENTION_BACKWARD);

    op->dtype_out = program_tensor(to->builder->program, gradients->dq)->dtype;
    emit_reads(op, t->dattention);
    emit_reads(op, t->q);
    emit_reads(op, keys->k);
    emit_reads(op, keys->v);
    emit_reads(op, t->o);
    emit_reads(op, t->lse);
    op_add_operand(op, gradients->dq, keys->access, 0, WHOLE_TENSOR);
    emit_writes(op, gradients->dk);
    emit_writes(op, gradients->dv);
    emit_uses_scratch(to, op);
    reads_positions(to, op, keys);
}

/* To the next rank of the ring, from the one before. */
static void pass_on(const Emit *to, const guint sent[2], const guint received[2], guint direction)
{
    Builder *builder = to->builder;
    Op *op = segment_add_op(builder->program, to->segment, OP_EXCHANGE,
                            builder_stream(builder, "cp", "exchange"), builder->dtype);

    for (guint i = 0; i < 4; i++) {
        const gboolean sends = i < 2;

        op->messages[i] = (Message){
            .peer_shift = sends ? 1 : builder->cp - 1, .chunk = i % 2, .direction = direction};
        op_add_operand(op, sends ? sent[i] : received[i - 2], sends ? ACCESS_READ : ACCESS_WRITE, 0,
                       WHOLE_TENSOR);
    }
}

static void cast(const Emit *to, guint from, guint target)
{
    const Program *program = to->builder->program;

    if (from == target)
        return;
    Op *op = emit_op(to, OP_CAST);
    op->sizes.elements = program_tensor(program, target)->elements;
    op->dtype = program_tensor(program, from)->dtype;
    op->dtype_out = program_tensor(program, target)->dtype;
    emit_reads(op, from);
    emit_writes(op, target);
}

static void add_to(const Emit *to, guint part, guint sum)
{
    Op *op = emit_op(to, OP_ACCUMULATE);

    op->dtype = op->dtype_out = DTYPE_FP32;
    op->sizes.elements = program_tensor(to->builder->program, part)->elements;
    emit_reads(op, part);
    emit_updates(op, sum);
}

/* ---- ring ---- */

/* The keys of step @s: at first this rank's own, then those that came last. */
static Keys ring_keys(const AttentionTensors *t, guint s)
{
    const guint at = (s + 1) % 2;

    return (Keys){.k = s == 0 ? t->k : t->ring.k[at],
                  .v = s == 0 ? t->v : t->ring.v[at],
                  .blocks = 1,
                  .index = (gint)s,
                  .access = s == 0 ? ACCESS_WRITE : ACCESS_UPDATE};
}

static void pass_keys_on(const Emit *to, const AttentionTensors *t, guint s)
{
    const Keys keys = ring_keys(t, s), next = ring_keys(t, s + 1);

    pass_on(to, (const guint[]){keys.k, keys.v}, (const guint[]){next.k, next.v}, 0);
}

static void ring_forward(const Emit *to, const AttentionTensors *t)
{
    const guint cp = to->builder->cp;

    for (guint s = 0; s < cp; s++) {
        const Keys keys = ring_keys(t, s);

        if (s + 1 < cp)
            pass_keys_on(to, t, s);
        emit_attention_over(to, t, &keys, t->ring.o);
    }
    cast(to, t->ring.o, t->o);
}

/* The sums of the keys of step @s lie in half s % 2; those of the step before go on to the rank
 * whose keys come next. */
static void pass_sums_on(const Emit *to, const AttentionRing *ring, guint s)
{
    const guint from = (s + 1) % 2, here = s % 2;

    pass_on(to, (const guint[]){ring->dk[from], ring->dv[from]},
            (const guint[]){ring->dk[here], ring->dv[here]}, 1);
}

static void ring_backward(const Emit *to, const AttentionTensors *t)
{
    const AttentionRing *ring = &t->ring;
    const guint cp = to->builder->cp;

    for (guint s = 0; s < cp; s++) {
        const Keys keys = ring_keys(t, s);
        const KeyGradients gradients = {ring->dq, s == 0 ? ring->dk[0] : ring->part_dk,
                                        s == 0 ? ring->dv[0] : ring->part_dv};

        if (s + 1 < cp)
            pass_keys_on(to, t, s);
        if (s > 0)
            pass_sums_on(to, ring, s);
        emit_attention_backward_over(to, t, &keys, &gradients);
        if (s > 0) {
            add_to(to, ring->part_dk, ring->dk[s % 2]);
            add_to(to, ring->part_dv, ring->dv[s % 2]);
        }
    }
    pass_sums_on(to, ring, cp);
    cast(to, ring->dq, t->dq);
    cast(to, ring->dk[cp % 2], t->dk);
    cast(to, ring->dv[cp % 2], t->dv);
}

/* ---- all-gather ---- */

static void collective(const Emit *to, OpKind kind, guint from, guint target)
{
    Builder *builder = to->builder;
    const char *direction = kind == OP_ALL_GATHER ? "gather" : "reduce";
    Op *op = segment_add_op(builder->program, to->segment, kind,
                            builder_stream(builder, "cp", direction), builder->dtype);

    op->sizes.elements =
        program_tensor(builder->program, kind == OP_ALL_GATHER ? target : from)->elements;
    emit_reads(op, from);
    emit_writes(op, target);
}

static Keys gather_keys(const Emit *to, const AttentionTensors *t)
{
    collective(to, OP_ALL_GATHER, t->k, t->ring.k[0]);
    collective(to, OP_ALL_GATHER, t->v, t->ring.v[0]);
    return (Keys){t->ring.k[0], t->ring.v[0], to->builder->cp, 0, ACCESS_WRITE};
}

static void gathered_backward(const Emit *to, const AttentionTensors *t)
{
    const Keys keys = gather_keys(to, t);
    const KeyGradients gradients = {t->dq, t->ring.dk[0], t->ring.dv[0]};

    emit_attention_backward_over(to, t, &keys, &gradients);
    collective(to, OP_REDUCE_SCATTER, t->ring.dk[0], t->dk);
    collective(to, OP_REDUCE_SCATTER, t->ring.dv[0], t->dv);
}

/* ---- all ---- */

void emit_attention(const Emit *to, const AttentionTensors *t)
{
    Keys keys = {t->k, t->v, 1, 0, ACCESS_WRITE};

    if (emit_is_indexed(to->builder)) {
        emit_indexed_attention(to, t);
        return;
    }
    if (to->builder->cp > 1 && to->builder->spec->context == CONTEXT_RING) {
        ring_forward(to, t);
        return;
    }
    if (to->builder->cp > 1)
        keys = gather_keys(to, t);
    emit_attention_over(to, t, &keys, t->o);
}

static void sinks_backward(const Emit *to, const AttentionTensors *t)
{
    if (!has_sinks(to->builder))
        return;
    Op *op = emit_op(to, OP_SINKS_BACKWARD);
    emit_reads(op, t->dattention);
    emit_reads(op, t->o);
    emit_reads(op, t->lse);
    emit_reads_weight(to, op, PARAM_SINKS);
    emit_accumulates_gradient(to, op, PARAM_SINKS);
}

void emit_attention_backward(const Emit *to, const AttentionTensors *t)
{
    const Keys keys = {t->k, t->v, 1, 0, ACCESS_WRITE};
    const KeyGradients gradients = {t->dq, t->dk, t->dv};

    if (to->builder->cp == 1)
        emit_attention_backward_over(to, t, &keys, &gradients);
    else if (to->builder->spec->context == CONTEXT_RING)
        ring_backward(to, t);
    else
        gathered_backward(to, t);
    sinks_backward(to, t);
}
