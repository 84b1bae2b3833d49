/* Programs written by hand, of shapes that no pass builds yet: pipeline stages, two-way exchanges,
 * a relay through the middle rank, collectives within a segment, work before the first step and
 * after the last.  sim/ checks, places and prices them; the executor runs them.
 *
 * All tensors are fp32.  State is zero until the host writes it; what a program leaves behind,
 * after any number of steps, stands at its builder. */
#pragma once

#include "sim/program/builder.h"
#include "sim/program/place.h"

/* ---- ops ---- */

static inline Op *handmade_op(Program *program, guint segment, OpKind kind, guint stream,
                              guint64 elements)
{
    Op *op = segment_add_op(program, segment, kind, stream, DTYPE_FP32);

    op->sizes.elements = elements;
    return op;
}

/* to := from */
static inline Op *handmade_copy(Program *program, guint segment, guint from, guint to)
{
    Op *op = handmade_op(program, segment, OP_CAST, COMPUTE_STREAM,
                         program_tensor(program, to)->elements);

    op_add_operand(op, from, ACCESS_READ, 0, WHOLE_TENSOR);
    op_add_operand(op, to, ACCESS_WRITE, 0, WHOLE_TENSOR);
    return op;
}

/* to += from */
static inline Op *handmade_add(Program *program, guint segment, guint from, guint to)
{
    Op *op = handmade_op(program, segment, OP_ACCUMULATE, COMPUTE_STREAM,
                         program_tensor(program, to)->elements);

    op_add_operand(op, from, ACCESS_READ, 0, WHOLE_TENSOR);
    op_add_operand(op, to, ACCESS_UPDATE, 0, WHOLE_TENSOR);
    return op;
}

enum { HANDMADE_FORWARD, HANDMADE_BACKWARD }; /* Message.direction */

/* One message of an exchange, of the call's micro-batch or (@ahead) of the next one. */
static inline void handmade_message(Op *op, guint tensor, guint peer_shift, guint direction,
                                    gboolean send, gboolean ahead)
{
    op->messages[op->num_operands] = (Message){
        .peer_shift = peer_shift, .micro_batch_shift = ahead ? 1 : 0, .direction = direction};
    op_add_operand(op, tensor, send ? ACCESS_READ : ACCESS_WRITE, ahead ? 1 : 0, WHOLE_TENSOR);
}

static inline guint handmade_tensor(Program *program, const char *name, TensorKind kind,
                                    guint space, guint64 elements)
{
    return program_add_tensor(program, name, kind, DTYPE_FP32, space, elements);
}

/* Binds @index in every space of the program (the micro-batch, around each ring). */
static inline void handmade_call(Program *program, guint segment, guint micro_batch)
{
    const guint c = call_list_add(&program->step, segment, 0, micro_batch);

    for (guint s = 1; s < program->spaces->len; s++)
        g_array_index(program->step.calls, Call, c).index[s] =
            (guint16)(micro_batch % g_array_index(program->spaces, Space, s).count);
}

/* ---- sets ---- */

/* Adds waits, places, and takes @program as the next rank's class. */
static inline void handmade_add_rank(ProgramSet *set, guint rank, Program *program)
{
    order_add_waits(program);
    program_place(program);
    program_set_assign(set, rank, program_set_add_class(set, program));
}

static inline void handmade_group_of_all(ProgramSet *set, const char *purpose)
{
    g_autofree guint *ranks = g_new(guint, set->num_ranks);

    for (guint i = 0; i < set->num_ranks; i++)
        ranks[i] = i;
    program_set_add_group(set, purpose, ranks, set->num_ranks);
}

/* A program with stream 1, "<purpose>.exchange" or the like, over all @ranks. */
static inline Program *handmade_program(const char *purpose, const char *stream, guint ranks)
{
    Program *program = program_new();

    program_add_stream(program, stream, STREAM_COMMUNICATION,
                       program_add_group(program, purpose, ranks));
    return program;
}

/* ---- two pipeline stages ----
 *
 * Rank 0: "input" [micro-batch] -> activation; from the gradients that come back, "gradient" adds
 * up.  Rank 1: adds the activations up in "sum" and sends back twice what it got.  1F1B: once the
 * pipe is full, one exchange sends the activation of m + 1 and receives the gradient of m.
 *
 * After k steps: gradient = 2 k sum(input) on rank 0, sum = k sum(input) on rank 1. */

static inline Program *handmade_first_stage(guint micro_batches, guint64 elements)
{
    Program *program = handmade_program("pp", "pp.exchange", 2);
    const guint micro_batch = program_add_space(program, "micro_batch", micro_batches);
    const guint ring = program_add_space(program, "in_flight", MIN(micro_batches, 2));
    const guint input = handmade_tensor(program, "input", TENSOR_INPUT, micro_batch, elements);
    const guint activation =
        handmade_tensor(program, "activation", TENSOR_ACTIVATION, ring, elements);
    const guint dactivation =
        handmade_tensor(program, "dactivation", TENSOR_ACTIVATION, ring, elements);
    const guint gradient =
        handmade_tensor(program, "gradient", TENSOR_GRADIENT, NO_SPACE, elements);
    const guint forward = program_add_segment(program, "forward");
    const guint backward = program_add_segment(program, "backward");
    const guint fill = program_add_segment(program, "exchange.first");
    const guint both = program_add_segment(program, "exchange");
    const guint drain = program_add_segment(program, "exchange.last");

    handmade_copy(program, forward, input, activation);
    handmade_add(program, backward, dactivation, gradient);
    Op *op = handmade_op(program, fill, OP_EXCHANGE, 1, 0);
    handmade_message(op, activation, 1, HANDMADE_FORWARD, TRUE, FALSE);
    op = handmade_op(program, both, OP_EXCHANGE, 1, 0);
    handmade_message(op, activation, 1, HANDMADE_FORWARD, TRUE, TRUE);
    handmade_message(op, dactivation, 1, HANDMADE_BACKWARD, FALSE, FALSE);
    op = handmade_op(program, drain, OP_EXCHANGE, 1, 0);
    handmade_message(op, dactivation, 1, HANDMADE_BACKWARD, FALSE, FALSE);

    handmade_call(program, forward, 0);
    handmade_call(program, fill, 0);
    for (guint m = 0; m < micro_batches; m++) {
        if (m + 1 < micro_batches)
            handmade_call(program, forward, m + 1);
        handmade_call(program, m + 1 < micro_batches ? both : drain, m);
        handmade_call(program, backward, m);
    }
    return program;
}

static inline Program *handmade_last_stage(guint micro_batches, guint64 elements)
{
    Program *program = handmade_program("pp", "pp.exchange", 2);
    const guint ring = program_add_space(program, "in_flight", MIN(micro_batches, 2));
    const guint activation =
        handmade_tensor(program, "activation", TENSOR_ACTIVATION, ring, elements);
    const guint dactivation =
        handmade_tensor(program, "dactivation", TENSOR_ACTIVATION, ring, elements);
    const guint sum = handmade_tensor(program, "sum", TENSOR_GRADIENT, NO_SPACE, elements);
    const guint forward = program_add_segment(program, "forward");
    const guint backward = program_add_segment(program, "backward");
    const guint fill = program_add_segment(program, "exchange.first");
    const guint both = program_add_segment(program, "exchange");
    const guint drain = program_add_segment(program, "exchange.last");

    handmade_add(program, forward, activation, sum);
    handmade_copy(program, backward, activation, dactivation);
    handmade_add(program, backward, activation, dactivation);
    Op *op = handmade_op(program, fill, OP_EXCHANGE, 1, 0);
    handmade_message(op, activation, 1, HANDMADE_FORWARD, FALSE, FALSE);
    op = handmade_op(program, both, OP_EXCHANGE, 1, 0);
    handmade_message(op, dactivation, 1, HANDMADE_BACKWARD, TRUE, FALSE);
    handmade_message(op, activation, 1, HANDMADE_FORWARD, FALSE, TRUE);
    op = handmade_op(program, drain, OP_EXCHANGE, 1, 0);
    handmade_message(op, dactivation, 1, HANDMADE_BACKWARD, TRUE, FALSE);

    handmade_call(program, fill, 0);
    for (guint m = 0; m < micro_batches; m++) {
        handmade_call(program, forward, m);
        handmade_call(program, backward, m);
        handmade_call(program, m + 1 < micro_batches ? both : drain, m);
    }
    return program;
}

static inline ProgramSet *handmade_pipeline(guint micro_batches, guint64 elements)
{
    ProgramSet *set = program_set_new(2);

    handmade_add_rank(set, 0, handmade_first_stage(micro_batches, elements));
    handmade_add_rank(set, 1, handmade_last_stage(micro_batches, elements));
    handmade_group_of_all(set, "pp");
    return set;
}

/* ---- a relay ----
 *
 * Rank 0 sends "input" [micro-batch]; each rank between doubles what it got and sends it on, and
 * one exchange of it sends m to the right while it receives m + 1 from the left; the last rank adds
 * up in "sum".  At least 2 ranks.
 *
 * After k steps: sum = k 2^(ranks - 2) sum(input) on the last rank. */

static inline Program *handmade_relay_first(guint ranks, guint micro_batches, guint64 elements)
{
    Program *program = handmade_program("relay", "relay.exchange", ranks);
    const guint micro_batch = program_add_space(program, "micro_batch", micro_batches);
    const guint input = handmade_tensor(program, "input", TENSOR_INPUT, micro_batch, elements);
    const guint sent = handmade_tensor(program, "sent", TENSOR_ACTIVATION, NO_SPACE, elements);
    const guint forward = program_add_segment(program, "forward");
    const guint exchange = program_add_segment(program, "exchange");

    handmade_copy(program, forward, input, sent);
    handmade_message(handmade_op(program, exchange, OP_EXCHANGE, 1, 0), sent, 1, HANDMADE_FORWARD,
                     TRUE, FALSE);
    for (guint m = 0; m < micro_batches; m++) {
        handmade_call(program, forward, m);
        handmade_call(program, exchange, m);
    }
    return program;
}

static inline Program *handmade_relay_middle(guint ranks, guint micro_batches, guint64 elements)
{
    Program *program = handmade_program("relay", "relay.exchange", ranks);
    const guint ring = program_add_space(program, "in_flight", 2);
    const guint received = handmade_tensor(program, "received", TENSOR_ACTIVATION, ring, elements);
    const guint sent = handmade_tensor(program, "sent", TENSOR_ACTIVATION, NO_SPACE, elements);
    const guint fill = program_add_segment(program, "exchange.first");
    const guint forward = program_add_segment(program, "forward");
    const guint both = program_add_segment(program, "exchange");
    const guint drain = program_add_segment(program, "exchange.last");

    handmade_message(handmade_op(program, fill, OP_EXCHANGE, 1, 0), received, ranks - 1,
                     HANDMADE_FORWARD, FALSE, FALSE);
    handmade_copy(program, forward, received, sent);
    handmade_add(program, forward, received, sent);
    Op *op = handmade_op(program, both, OP_EXCHANGE, 1, 0);
    handmade_message(op, sent, 1, HANDMADE_FORWARD, TRUE, FALSE);
    handmade_message(op, received, ranks - 1, HANDMADE_FORWARD, FALSE, TRUE);
    handmade_message(handmade_op(program, drain, OP_EXCHANGE, 1, 0), sent, 1, HANDMADE_FORWARD,
                     TRUE, FALSE);
    handmade_call(program, fill, 0);
    for (guint m = 0; m < micro_batches; m++) {
        handmade_call(program, forward, m);
        handmade_call(program, m + 1 < micro_batches ? both : drain, m);
    }
    return program;
}

static inline Program *handmade_relay_last(guint ranks, guint micro_batches, guint64 elements)
{
    Program *program = handmade_program("relay", "relay.exchange", ranks);
    const guint ring = program_add_space(program, "in_flight", 2);
    const guint received = handmade_tensor(program, "received", TENSOR_ACTIVATION, ring, elements);
    const guint sum = handmade_tensor(program, "sum", TENSOR_GRADIENT, NO_SPACE, elements);
    const guint exchange = program_add_segment(program, "exchange");
    const guint forward = program_add_segment(program, "forward");

    handmade_message(handmade_op(program, exchange, OP_EXCHANGE, 1, 0), received, ranks - 1,
                     HANDMADE_FORWARD, FALSE, FALSE);
    handmade_add(program, forward, received, sum);
    for (guint m = 0; m < micro_batches; m++) {
        handmade_call(program, exchange, m);
        handmade_call(program, forward, m);
    }
    return program;
}

static inline ProgramSet *handmade_relay(guint ranks, guint micro_batches, guint64 elements)
{
    ProgramSet *set = program_set_new(ranks);

    handmade_add_rank(set, 0, handmade_relay_first(ranks, micro_batches, elements));
    for (guint r = 1; r + 1 < ranks; r++)
        handmade_add_rank(set, r, handmade_relay_middle(ranks, micro_batches, elements));
    handmade_add_rank(set, ranks - 1, handmade_relay_last(ranks, micro_batches, elements));
    handmade_group_of_all(set, "relay");
    return set;
}

/* ---- a ring ----
 *
 * Each rank sends its own "input" to the right and receives its left neighbour's, in one op.
 * After any step: output = own input + left neighbour's. */

static inline Program *handmade_ring_rank(guint ranks, guint64 elements)
{
    Program *program = handmade_program("cp", "cp.exchange", ranks);
    const guint input = handmade_tensor(program, "input", TENSOR_INPUT, NO_SPACE, elements);
    const guint own = handmade_tensor(program, "own", TENSOR_ACTIVATION, NO_SPACE, elements);
    const guint other = handmade_tensor(program, "other", TENSOR_ACTIVATION, NO_SPACE, elements);
    const guint output = handmade_tensor(program, "output", TENSOR_GRADIENT, NO_SPACE, elements);
    const guint segment = program_add_segment(program, "block");

    handmade_copy(program, segment, input, own);
    Op *op = handmade_op(program, segment, OP_EXCHANGE, 1, 0);
    handmade_message(op, own, 1, HANDMADE_FORWARD, TRUE, FALSE);
    handmade_message(op, other, ranks - 1, HANDMADE_FORWARD, FALSE, FALSE);
    op->num_waits = 1;
    op->waits[0] = 0;
    op = handmade_copy(program, segment, other, output);
    op->num_waits = 1;
    op->waits[0] = 1;
    handmade_add(program, segment, own, output);
    handmade_call(program, segment, 0);
    return program;
}

static inline ProgramSet *handmade_ring(guint ranks, guint64 elements)
{
    ProgramSet *set = program_set_new(ranks);

    for (guint r = 0; r < ranks; r++)
        handmade_add_rank(set, r, handmade_ring_rank(ranks, elements));
    handmade_group_of_all(set, "cp");
    return set;
}

/* ---- collectives within a block ----
 *
 * As tensor parallelism has them, on activations, waits within the segment; all ranks are equal.
 * "input" (ranks x chunk elements) is summed over the ranks into "reduced"; "shard" (chunk) is
 * gathered into "whole", and the sum of all ranks' wholes scattered again into "scattered".
 *
 * After any step: reduced = sum over ranks of input; scattered = ranks x own shard; whole (as long
 * as the step lasts) all shards. */

static inline Program *handmade_block_rank(guint ranks, guint calls, guint64 chunk)
{
    Program *program = handmade_program("tp", "tp.collective", ranks);
    const guint64 elements = ranks * chunk;
    const guint input = handmade_tensor(program, "input", TENSOR_INPUT, NO_SPACE, elements);
    const guint shard = handmade_tensor(program, "shard", TENSOR_INPUT, NO_SPACE, chunk);
    const guint partial =
        handmade_tensor(program, "partial", TENSOR_ACTIVATION, NO_SPACE, elements);
    const guint own = handmade_tensor(program, "own", TENSOR_ACTIVATION, NO_SPACE, chunk);
    const guint whole = handmade_tensor(program, "whole", TENSOR_ACTIVATION, NO_SPACE, elements);
    const guint piece = handmade_tensor(program, "piece", TENSOR_ACTIVATION, NO_SPACE, chunk);
    const guint reduced = handmade_tensor(program, "reduced", TENSOR_GRADIENT, NO_SPACE, elements);
    const guint scattered = handmade_tensor(program, "scattered", TENSOR_GRADIENT, NO_SPACE, chunk);
    const guint segment = program_add_segment(program, "block");

    handmade_copy(program, segment, input, partial);
    Op *op = handmade_op(program, segment, OP_ALL_REDUCE, 1, elements);
    op_add_operand(op, partial, ACCESS_UPDATE, 0, WHOLE_TENSOR);
    op->waits[op->num_waits++] = 0;
    op = handmade_copy(program, segment, partial, reduced);
    op->waits[op->num_waits++] = 1;
    handmade_copy(program, segment, shard, own);
    op = handmade_op(program, segment, OP_ALL_GATHER, 1, elements);
    op_add_operand(op, own, ACCESS_READ, 0, WHOLE_TENSOR);
    op_add_operand(op, whole, ACCESS_WRITE, 0, WHOLE_TENSOR);
    op->waits[op->num_waits++] = 3;
    op = handmade_op(program, segment, OP_REDUCE_SCATTER, 1, elements);
    op_add_operand(op, whole, ACCESS_READ, 0, WHOLE_TENSOR);
    op_add_operand(op, piece, ACCESS_WRITE, 0, WHOLE_TENSOR);
    op = handmade_copy(program, segment, piece, scattered);
    op->waits[op->num_waits++] = 5;
    for (guint c = 0; c < calls; c++)
        handmade_call(program, segment, 0);
    return program;
}

static inline ProgramSet *handmade_block(guint ranks, guint calls, guint64 chunk)
{
    ProgramSet *set = program_set_new(ranks);

    handmade_add_rank(set, 0, handmade_block_rank(ranks, calls, chunk));
    for (guint r = 1; r < ranks; r++)
        program_set_assign(set, r, 0);
    handmade_group_of_all(set, "tp");
    return set;
}

/* ---- a prologue and an epilogue ----
 *
 * The step ends with a gather that the next one uses.  The prologue gathers for the first step; the
 * epilogue takes what the last step gathered.  "own" (chunk) grows by "increment" in every step.
 *
 * After k steps and the drain: own = own0 + k increment; output = sum over t < k of the wholes of
 * own0 + t increment; final = the whole of own0 + k increment. */

static inline Program *handmade_prefetch_rank(guint ranks, guint64 chunk)
{
    Program *program = handmade_program("shard", "shard.gather", ranks);
    const guint64 elements = ranks * chunk;
    const guint own = handmade_tensor(program, "own", TENSOR_PARAMETER, NO_SPACE, chunk);
    const guint increment = handmade_tensor(program, "increment", TENSOR_INPUT, NO_SPACE, chunk);
    const guint whole = handmade_tensor(program, "whole", TENSOR_GATHERED, NO_SPACE, elements);
    const guint drained =
        handmade_tensor(program, "drained", TENSOR_ACTIVATION, NO_SPACE, elements);
    const guint output = handmade_tensor(program, "output", TENSOR_GRADIENT, NO_SPACE, elements);
    const guint final = handmade_tensor(program, "final", TENSOR_GRADIENT, NO_SPACE, elements);
    const guint use = program_add_segment(program, "use");
    const guint advance = program_add_segment(program, "advance");
    const guint gather = program_add_segment(program, "gather");
    const guint drain = program_add_segment(program, "drain");

    handmade_add(program, use, whole, output);
    handmade_add(program, advance, increment, own);
    Op *op = handmade_op(program, gather, OP_ALL_GATHER, 1, elements);
    op_add_operand(op, own, ACCESS_READ, 0, WHOLE_TENSOR);
    op_add_operand(op, whole, ACCESS_WRITE, 0, WHOLE_TENSOR);
    handmade_copy(program, drain, whole, drained);
    handmade_copy(program, drain, drained, final);
    call_list_add(&program->prologue, gather, 0, 0);
    handmade_call(program, use, 0);
    handmade_call(program, advance, 0);
    handmade_call(program, gather, 0);
    call_list_add(&program->epilogue, drain, 0, 0);
    return program;
}

static inline ProgramSet *handmade_prefetch(guint ranks, guint64 chunk)
{
    ProgramSet *set = program_set_new(ranks);

    handmade_add_rank(set, 0, handmade_prefetch_rank(ranks, chunk));
    for (guint r = 1; r < ranks; r++)
        program_set_assign(set, r, 0);
    handmade_group_of_all(set, "shard");
    return set;
}
