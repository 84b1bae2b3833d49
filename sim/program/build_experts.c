/* A mixture of experts: a router gives each token to k of E experts, of which this rank holds E /
 * ep. Tokens go to their experts' ranks and back in two exchanges of all with all, each of a row
 * for every expert that a token visits.
 *
 * A rank's experts have N k x rows of a micro-batch, N being a rank's tokens and x the workload's
 * expert_imbalance (1: balanced), each E / ep-th of them, and room for as many (rounded up:
 * op_expert_rows()): every rank is taken to be the busiest one, for which all wait.  An exchange is
 * told by what that one receives on the way there and sends on the way back.  A row's weight goes
 * along and is multiplied in with the activation, so that what the experts give need not be kept
 * for its gradient.
 *
 * A bias of what they give is taken by the row's weight too.
 *
 * Saved per block and micro-batch: logits, weights and choices of the router, the experts' rows,
 * gate and up, and the rows' weights. */
#include "sim/program/emit.h"

static guint64 routed_rows(const Builder *builder)
{
    return builder->local_rows * builder->local.experts.top_k;
}

/* What comes to this rank's experts of all ranks. */
static guint64 arriving_rows(const Builder *builder)
{
    return workload_busiest_rows(builder->spec->workload, routed_rows(builder), builder->ep);
}

/* Of all experts that are held. */
static guint64 expert_rows(const Builder *builder)
{
    const Experts *experts = &builder->local.experts;
    const guint64 rows = (arriving_rows(builder) + experts->held - 1) / experts->held;

    return experts->held * op_expert_rows(rows, builder->spec->device);
}

/* Rows come from each rank by expert, and each expert takes those of all ranks together. */
static gboolean reorders(const Builder *builder)
{
    return builder->ep > 1 && builder->local.experts.held > 1;
}

static guint add_routed(Builder *builder, const char *name, guint space)
{
    return emit_tensor(builder, name, builder->dtype, space,
                       routed_rows(builder) * builder->local.hidden);
}

static guint add_arriving(Builder *builder, const char *name, guint space)
{
    return emit_tensor(builder, name, builder->dtype, space,
                       arriving_rows(builder) * builder->local.hidden);
}

static guint add_rows(Builder *builder, const char *name, guint space, guint64 columns)
{
    return emit_tensor(builder, name, builder->dtype, space, expert_rows(builder) * columns);
}

/* Alone, rows are sorted right to where experts read them; with one expert they arrive there.  What
 * arrives passes from the block to its experts: where all is computed again, that too. */
static void add_ways(Builder *builder, ExpertTensors *t, guint saved)
{
    const gboolean alone = builder->ep == 1, direct = !reorders(builder);
    const guint passed = saved == builder_ring_space(builder, RING_AGAIN) ? saved : NO_SPACE;

    t->sent = alone ? t->rows : add_routed(builder, "sent", NO_SPACE);
    t->received = direct ? t->rows : add_arriving(builder, "received", passed);
    t->given = direct ? t->y : add_arriving(builder, "given", NO_SPACE);
    t->returned = alone ? t->y : add_routed(builder, "returned", NO_SPACE);
    t->dsent = alone ? t->dy : add_routed(builder, "dsent", NO_SPACE);
    t->dreceived = direct ? t->dy : add_arriving(builder, "dreceived", NO_SPACE);
    t->dgiven = direct ? t->drows : add_arriving(builder, "dgiven", NO_SPACE);
    t->dreturned = alone ? t->drows : add_routed(builder, "dreturned", NO_SPACE);
}

static gboolean has_down_bias(const Builder *builder)
{
    return builder->param[PARAM_EXPERT_DOWN_BIAS] >= 0;
}

/* @kept: what the weights' backward reads too, which may come later; then it finds h as it was, and
 * the gradients of what the router and the experts gave. */
void build_experts(Builder *builder, ExpertTensors *t, guint saved, guint kept)
{
    const Experts *experts = &builder->local.experts;
    const guint64 hidden = builder->local.hidden, ffn = experts->ffn;
    const guint64 routes = routed_rows(builder), rows = expert_rows(builder);
    const guint weights = builder_weights_space(builder);

    *t = (ExpertTensors){
        .logits = emit_local_columns(builder, "logits", saved, experts->count),
        .weights = emit_activation_fp32(builder, "route_weights", saved, routes),
        .routes = emit_tensor(builder, "routes", DTYPE_INT32, saved, routes),
        .rows = add_rows(builder, "expert_rows", kept, hidden),
        .row_weights = emit_activation_fp32(builder, "row_weights",
                                            has_down_bias(builder) ? kept : saved, rows),
        .gate = add_rows(builder, "expert_gate", kept, ffn),
        .up = add_rows(builder, "expert_up", kept, ffn),
        .h = add_rows(builder, "expert_h", NO_SPACE, ffn),
        .y = add_rows(builder, "expert_y", NO_SPACE, hidden),
        .dy = add_rows(builder, "dexpert_y", weights, hidden),
        .dh = add_rows(builder, "dexpert_h", NO_SPACE, ffn),
        .drows = add_rows(builder, "dexpert_rows", NO_SPACE, hidden),
        .drow_weights = emit_activation_fp32(builder, "drow_weights", NO_SPACE, rows),
        .dweights = emit_activation_fp32(builder, "droute_weights", NO_SPACE, routes),
        .dlogits = emit_local_columns(builder, "dlogits", weights, experts->count),
        .dx = emit_local_activation(builder, "drouted", NO_SPACE),
    };
    t->h_again = builder->splits_backward ? add_rows(builder, "expert_h_kept", weights, ffn) : t->h;
    add_ways(builder, t, saved);
}

/* ---- the way ---- */

static Op *routing_op(const Emit *to, OpKind kind)
{
    Op *op = emit_op(to, kind);

    op->sizes.rows = to->builder->local_rows;
    op->sizes.groups = to->builder->local.experts.count;
    op->sizes.top_k = to->builder->local.experts.top_k;
    return op;
}

static void permute(const Emit *to, guint x, guint routes, guint rows)
{
    Op *op = routing_op(to, OP_PERMUTE);

    emit_reads(op, x);
    emit_reads(op, routes);
    emit_writes(op, rows);
}

/* top_k tells it from casts of other things: where it is, frameworks differ. */
static void copy_rows(const Emit *to, guint from, guint target)
{
    if (from == target)
        return;
    Op *op = emit_op(to, OP_CAST);
    op->sizes.elements = arriving_rows(to->builder) * to->builder->local.hidden;
    op->sizes.top_k = to->builder->local.experts.top_k;
    emit_reads(op, from);
    emit_writes(op, target);
}

static void all_to_all(const Emit *to, guint from, guint target, DType dtype, guint64 elements)
{
    Builder *builder = to->builder;
    Op *op = segment_add_op(builder->program, to->segment, OP_ALL_TO_ALL,
                            builder_stream(builder, "ep", "exchange"), dtype);

    op->sizes.elements = elements;
    emit_reads(op, from);
    emit_writes(op, target);
}

/* To their experts' ranks, or back. */
static void exchange_rows(const Emit *to, guint from, guint target)
{
    if (to->builder->ep > 1)
        all_to_all(to, from, target, to->builder->dtype,
                   arriving_rows(to->builder) * to->builder->local.hidden);
}

static void exchange_weights(const Emit *to, guint from, guint target)
{
    const guint64 elements = arriving_rows(to->builder);

    if (to->builder->ep > 1) {
        all_to_all(to, from, target, DTYPE_FP32, elements);
        return;
    }
    Op *op = emit_op(to, OP_CAST);
    op->dtype = op->dtype_out = DTYPE_FP32;
    op->sizes.elements = elements;
    emit_reads(op, from);
    emit_writes(op, target);
}

/* ---- the router ---- */

static Linear router(const Builder *builder)
{
    return (Linear){PARAM_ROUTER, builder->local.hidden, builder->local.experts.count,
                    builder->local_rows, 0};
}

void emit_route(const Emit *to, const ExpertTensors *t, guint x)
{
    const Linear weight = router(to->builder);

    emit_linear(to, &weight, x, t->logits, ACCESS_WRITE);
    Op *op = routing_op(to, OP_ROUTE);
    op->sizes.in = to->builder->local.experts.count;
    emit_reads(op, t->logits);
    emit_writes(op, t->weights);
    emit_writes(op, t->routes);
    permute(to, x, t->routes, t->sent);
    exchange_rows(to, t->sent, t->received);
    exchange_weights(to, t->weights, t->row_weights);
}

void emit_route_backward(const Emit *to, const Emit *weights, const ExpertTensors *t, guint x)
{
    const Linear weight = router(to->builder);
    Op *op = routing_op(to, OP_ROUTE_BACKWARD);

    op->sizes.in = to->builder->local.experts.count;
    emit_reads(op, t->dweights);
    emit_reads(op, t->weights);
    emit_reads(op, t->routes);
    emit_reads(op, t->logits);
    emit_writes(op, t->dlogits);
    emit_linear_backward_weight(weights, &weight, t->dlogits, x);
    emit_linear_backward_input(to, &weight, t->dlogits, t->dx, ACCESS_UPDATE);
}

/* ---- experts ---- */

typedef struct {
    Linear gate, up, down;
} ExpertWeights;

static ExpertWeights expert_weights(const Builder *builder)
{
    const guint64 hidden = builder->local.hidden, ffn = builder->local.experts.ffn;
    const guint64 rows = expert_rows(builder), held = builder->local.experts.held;

    return (ExpertWeights){
        .gate = {PARAM_EXPERT_GATE, hidden, ffn, rows, held},
        .up = {PARAM_EXPERT_UP, hidden, ffn, rows, held},
        .down = {PARAM_EXPERT_DOWN, ffn, hidden, rows, held},
    };
}

static Op *activation_op(const Emit *to, OpKind kind)
{
    Op *op = emit_op(to, kind);

    op->sizes.rows = expert_rows(to->builder);
    op->sizes.in = op->sizes.out = to->builder->local.experts.ffn;
    op->sizes.top_k = to->builder->local.experts.top_k; /* tells it from that of shared ones */
    return op;
}

static void activate(const Emit *to, const ExpertTensors *t, guint h)
{
    Op *op = activation_op(to, OP_SWIGLU);

    emit_reads(op, t->gate);
    emit_reads(op, t->up);
    emit_writes(op, h);
    emit_reads(op, t->row_weights);
}

static void activate_backward(const Emit *to, const ExpertTensors *t)
{
    Op *op = activation_op(to, OP_SWIGLU_BACKWARD);

    emit_reads(op, t->dh);
    emit_updates(op, t->gate);
    emit_updates(op, t->up);
    emit_reads(op, t->row_weights);
    if (has_down_bias(to->builder)) /* which wrote its part of it */
        emit_updates(op, t->drow_weights);
    else
        emit_writes(op, t->drow_weights);
}

static void down(const Emit *to, const ExpertTensors *t, const Linear *weight)
{
    Op *op = emit_linear(to, weight, t->h, t->y, ACCESS_WRITE);

    if (has_down_bias(to->builder))
        emit_reads(op, t->row_weights);
}

static void down_backward(const Emit *to, const Emit *weights, const ExpertTensors *t,
                          const Linear *weight)
{
    Op *of_weight = emit_linear_backward_weight(weights, weight, t->dy, t->h_again);

    if (has_down_bias(to->builder))
        emit_reads(of_weight, t->row_weights);
    Op *of_input = emit_linear_backward_input(to, weight, t->dy, t->dh, ACCESS_WRITE);
    if (!has_down_bias(to->builder))
        return;
    emit_reads_weight(to, of_input, PARAM_EXPERT_DOWN_BIAS);
    emit_writes(of_input, t->drow_weights);
}

/* The sum of each token's rows: y = or y +=. */
static void unpermute(const Emit *to, guint rows, guint routes, Operand y)
{
    Op *op = routing_op(to, OP_UNPERMUTE);

    emit_reads(op, rows);
    emit_reads(op, routes);
    op_add_operand(op, y.tensor, y.access, y.shift, WHOLE_TENSOR);
}

void emit_experts(const Emit *to, const ExpertTensors *t)
{
    const ExpertWeights w = expert_weights(to->builder);
    const Operand next = {.tensor = to->builder->residual, .access = ACCESS_UPDATE, .shift = 1};

    copy_rows(to, t->received, t->rows);
    emit_linear(to, &w.gate, t->rows, t->gate, ACCESS_WRITE);
    emit_linear(to, &w.up, t->rows, t->up, ACCESS_WRITE);
    activate(to, t, t->h);
    down(to, t, &w.down);
    copy_rows(to, t->y, t->given);
    exchange_rows(to, t->given, t->returned);
    unpermute(to, t->returned, t->routes, next);
}

void emit_experts_backward(const Emit *to, const Emit *weights, const ExpertTensors *t)
{
    const ExpertWeights w = expert_weights(to->builder);
    const Operand dx = {.tensor = t->dx, .access = ACCESS_WRITE};

    permute(to, to->builder->residual_gradient, t->routes, t->dsent);
    exchange_rows(to, t->dsent, t->dreceived);
    copy_rows(to, t->dreceived, t->dy);
    activate(to, t, t->h_again);
    down_backward(to, weights, t, &w.down);
    activate_backward(to, t);
    exchange_weights(to, t->drow_weights, t->dweights);
    emit_linear_backward_weight(weights, &w.gate, t->gate, t->rows);
    emit_linear_backward_weight(weights, &w.up, t->up, t->rows);
    emit_linear_backward_input(to, &w.gate, t->gate, t->drows, ACCESS_WRITE);
    emit_linear_backward_input(to, &w.up, t->up, t->drows, ACCESS_UPDATE);
    copy_rows(to, t->drows, t->dgiven);
    exchange_rows(to, t->dgiven, t->dreturned);
    unpermute(to, t->dreturned, t->routes, dx);
}
