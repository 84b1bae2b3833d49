/* Ops: what a program is made of.  One kind, one operand order, for every device and every reader.
 */
#pragma once

#include "sim/base/dtype.h"
#include "sim/input/topology.h"
#include "sim/layout/sharding.h"

#include <glib.h>

/* N = rows = batch * seq tokens; C hidden, I/O columns, F ffn, V vocab, H/K heads and kv heads,
 * D head_dim, T seq.  r read, w write, u update, a accumulate (w on the first call of an
 * accumulation, u on the others).  "scratch" is the shared workspace tensor, of at least
 * op_workspace_bytes(); "scalar" is one fp64.  Activations and weights have op->dtype (fp32, bf16
 * or fp16), sums inside a kernel are fp32 or better.  The three linear ops take fp8 operands too
 * (op->dtype), and leave what they write in dtype_out. */
typedef enum {
    /* forward */
    OP_EMBED,   /* r tokens int32(N)  r W(V,C)  w|u x(N,C)  [r range fp64(2)]: x (+)= W[token];
                   with a range {first, count} W has the words first .. first + count - 1, and
                   all others give 0.  Learned positions: tokens are positions, x is updated */
    OP_RMSNORM, /* r x(N,C)  r w(C)  w y(N,C)  w rstd fp32(N)  [r added(N,C)  w sum(N,C)]:
                   y = x * rstd * w, rstd = 1 / sqrt(mean(x^2) + eps); with added, what is normed is
                   sum = x + added, rounded */
    OP_RMSNORM_APPLY,   /* r x(N,C)  r w(C)  r rstd fp32(N)  w y(N,C): y again, in the backward pass
                         */
    OP_LAYERNORM,       /* r x(N,C)  r w(C)  r b(C)  w y(N,C)  w stats fp32(N,2)
                           [r added(N,C)  w sum(N,C)]: y = (x - mean) * rstd * w + b,
                           rstd = 1 / sqrt(variance + eps), over C; added as in OP_RMSNORM */
    OP_LAYERNORM_APPLY, /* r x(N,C)  r w(C)  r b(C)  r stats fp32(N,2)  w y(N,C): y again, in the
                           backward pass */
    OP_LINEAR,          /* r x(N,I)  r W(O,I)  w|u y(N,O)  scratch  [r b(O)]:  y (+)= x W^T + b */
    OP_ADD_BIAS,        /* u y(N,C)  r b(C):  y += b, where y is summed over ranks before */
    OP_ROPE,      /* u q(N,H*D)  u k(N,K*D)  r table fp32(T,D): cos in [0,D/2), sin in [D/2,D);
                     pairs (i, i + D/2), as Hugging Face's rotate_half */
    OP_ATTENTION, /* r q(N,H*D)  r k(M,K*D)  r v(M,K*D)  w|u o(N,H*D)  w|u lse fp32(batch,H,T)
                     scratch  [r q_positions int32(T)  r k_positions int32(blocks*T)]
                     [r sinks(H)]:  scale
                     1/sqrt(D), query head h reads kv head h / (H/K).  Without positions causal,
                     M = N.  With them k and v are (blocks, batch, T, K*D), M = blocks * N,
                     sizes.chunk = blocks, and key j of block b is seen by query i where
                     k_positions[b*T + j] <= q_positions[i]; positions are a few ascending runs, and
                     what they hide costs next to nothing.  Updated, o and lse (both) become those
                     over these keys and the ones before.  A query that sees no key leaves them, or
                     has o = 0, lse = -inf where they are written.  o has dtype_out.  Priced only:
                     a sink is one more score, of no key; it is in lse, and adds nothing to o */
    OP_SWIGLU,    /* r gate(N,F)  r up(N,F)  w h(N,F)  [r weights fp32(N)]:
                     h = gate * sigmoid(gate) * up, times the row's weight where there are weights */
    OP_GELU,      /* r x(N,F)  w h(N,F):  h = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
    OP_HEAD_LOSS, /* r x(N,C)  r W(V,C)  r labels int32(N)  r valid scalar  u loss scalar  w dx(N,C)
                     a dW(V,C) in the gradient dtype  scratch (logits):  loss += sum of -log
                     softmax(x W^T)[label] over labels != -1 (a sum, not a mean); dx and dW are of
                     loss / max(valid, 1); sizes.chunk rows at a time, so that full logits never
                     exist  [r range fp64(2)  r stats fp32(parts,N,3)]: W has the words of range
                     only; stats of all parts (OP_HEAD_STATS) give the softmax over all words, dx is
                     this part's share of the sum.  Priced only: behind all these [r b(V)  a db(V)],
                     logits are x W^T + b, and OP_HEAD_STATS ends with [r b(V)] */
    OP_HEAD_STATS, /* r x(N,C)  r W(V,C)  r labels int32(N)  r range fp64(2)  w stats fp32(N,3)
                      scratch (logits):  max z, sum e^(z - max), z[label] or 0 where the label is
                      not of this range; z = x W^T over the range's words */
    /* backward; d<name> is the gradient of <name> */
    OP_EMBED_BACKWARD,         /* r tokens  r dx(N,C)  a|u dW(V,C)  [r range fp64(2)] */
    OP_RMSNORM_BACKWARD,       /* r dy(N,C)  r x(N,C)  r w(C)  r rstd fp32(N)  w|u dx(N,C)  a dw(C)
                                  scratch  [r sums fp32(N)]: sums of OP_ROW_SUMS, of all columns */
    OP_LAYERNORM_BACKWARD,     /* r dy(N,C)  r x(N,C)  r w(C)  r stats fp32(N,2)  w|u dx(N,C)
                                  a dw(C)  a db(C)  scratch.  Priced only, of both: dx written where
                                  dy is */
    OP_LINEAR_BACKWARD_INPUT,  /* r dy(N,O)  r W(O,I)  w|u dx(N,I)  scratch:  dx (+)= dy W */
    OP_LINEAR_BACKWARD_WEIGHT, /* r dy(N,O)  r x(N,I)  a dW(O,I)  scratch  [a db(O)]:
                                  dW (+)= dy^T x, db (+)= column sums of dy */
    OP_ROPE_BACKWARD,          /* u dq(N,H*D)  u dk(N,K*D)  r table: the inverse rotation */
    OP_ATTENTION_BACKWARD, /* r do(N,H*D)  r q  r k  r v  r o  r lse  w|u dq(N,H*D)  w|u dk(M,K*D)
                              w|u dv(M,K*D)  scratch  [r q_positions  r k_positions]: as
                              OP_ATTENTION; o and lse are over all keys, these ones or more.  dq,
                              dk, dv have dtype_out */
    OP_SWIGLU_BACKWARD,    /* r dh(N,F)  u gate -> dgate  u up -> dup, in place
                              [r weights fp32(N)  w|u dweights fp32(N)] */
    OP_GELU_BACKWARD,      /* r dh(N,F)  u x -> dx, in place */
    /* between micro-batches and steps */
    OP_COUNT_VALID,  /* r labels int32(N)  a valid scalar:  labels != -1 */
    OP_ACCUMULATE,   /* r src(elements) op->dtype  u|w dst(elements)  [r base(elements)], both
                        op->dtype_out: dst += src, or where it is written dst = base + src, summed
                        in fp32 */
    OP_CAST,         /* r src(elements) op->dtype  w dst(elements) op->dtype_out */
    OP_AMAX,         /* r parameter of a unit  a amax fp32(units, NUM_PARAM_ROLES): max |w| of this
                        rank's elements of each matrix, in the row of the call's unit; the first
                        zeroes all rows.  Nothing is 0, NaN is above all */
    OP_QUANTISE,     /* r parameter of a unit  r amax  w codes fp8  [w vectors op->dtype_out]: of
                        each matrix e4m3(w s), s = 448 / max(amax, AMAX_LEAST), saturated; what is
                        no matrix is cast.  Real elements only; NaN stays one */
    OP_DEQUANTISE,   /* r codes fp8 of a whole unit  r amax  w|u whole op->dtype_out: its matrices,
                        w = code max(amax, AMAX_LEAST) / 448 */
    OP_SQUARED_NORM, /* r gradient of a unit  a sum scalar: real elements of this rank's span only,
                        fp64, fixed order; a parameter with copies counts 1 / copies */
    OP_CLIP,         /* r hyper  r valid scalar  u loss scalar  w norm scalar  w coef scalar
                        w finite scalar  r sum scalar [r sum scalar]:
                        loss /= max(valid, 1), norm = sqrt(sum of sums),
                        coef = min(1, max_norm / (norm + 1e-6)), 1 when max_norm = 0;
                        finite = 1 when loss and norm are finite, else 0 */
    OP_ADAMW, /* u parameter of a unit  r gradient of a unit  u m fp32  u v fp32  r hyper  r coef
                 scalar [u master fp32]: decoupled weight decay on tensors of 2 dims, eps outside
                 the root, bias corrected; real elements only; the master (or the fp32 parameter) is
                 what is updated.  With sizes.chunk each of m and v are 8-bit codes behind an fp32
                 scale of every so many elements (moment_bytes()) */
    OP_SGD,   /* u parameter  r gradient  r hyper  r coef scalar  [u master fp32] */
    OP_COPY,  /* r src(elements)  w dst(elements), both op->dtype: between tiers */
    /* communication; on a unit (op->unit >= 0) piece by piece, else sizes.elements as one piece */
    OP_ALL_GATHER,     /* r shard  w whole;  or u whole: own chunk in place; op->params of a unit */
    OP_REDUCE_SCATTER, /* r whole  w shard;  or u whole: own chunk in place */
    OP_ALL_REDUCE, /* u buffer: op->reduction; a whole unit's tensor whose unit has ranks > 1: own
                      chunks only; one parameter of a unit's tensor: this rank's chunk of it */
    OP_EXCHANGE,   /* r sent ... w received ...: op->messages says to whom, from whom */
    /* mixture of experts and latent attention: priced only, no device has kernels for them.  A
       token is a row for each of the k = sizes.top_k experts that it visits; of E = sizes.groups
       experts each has as many rows as the next (routing is taken to be balanced), N / E of N. */
    OP_ROUTE,          /* r logits(N,E)  w weights fp32(N,k)  w experts int32(N,k): the k largest */
    OP_ROUTE_BACKWARD, /* r dweights fp32(N,k)  r weights  r experts  r logits  w dlogits(N,E) */
    OP_PERMUTE,        /* r x(N,C)  r experts int32(N,k)  w rows(N*k,C): by expert */
    OP_UNPERMUTE,      /* r rows(N*k,C)  r experts int32(N,k)  w|u y(N,C): a token's rows' sum */
    OP_GROUPED_LINEAR, /* r x(N,I)  r W(E*O,I)  w|u y(N,O)  scratch  [r b(E*O)  [r weights
                          fp32(N)]]: each expert's rows by its own, and its bias, times the row's
                          weight where there are weights */
    OP_GROUPED_LINEAR_BACKWARD_INPUT,  /* r dy(N,O)  r W(E*O,I)  w|u dx(N,I)  scratch
                                          [r b(E*O)  w dweights fp32(N)]: dweights = dy b */
    OP_GROUPED_LINEAR_BACKWARD_WEIGHT, /* r dy(N,O)  r x(N,I)  a dW(E*O,I)  scratch
                                          [a db(E*O)  [r weights fp32(N)]] */
    OP_ALL_TO_ALL,  /* r sent  w received: each member's nth part of sizes.elements to the nth */
    OP_LATENT_JOIN, /* r up(N,H*(D-I+D'))  r rotated(N,I)  w k(N,H*D)  w v(N,H*D'): a head's key is
                       its part of up and the one rotated part of all heads; I = sizes.in, D' =
                       sizes.value_dim */
    OP_LATENT_JOIN_BACKWARD, /* r dk  r dv  w dup  w drotated: the sum over heads */
    OP_SINKS_BACKWARD,   /* r do(N,H*D)  r o(N,H*D)  r lse fp32(batch,H,T)  r sinks(H)  a dsinks(H):
                            minus the sum over all rows of e^(sink - lse) do . o */
    OP_SIGMOID,          /* r x(N)  w y fp32(N):  y = 1 / (1 + e^-x) */
    OP_SIGMOID_BACKWARD, /* r dy fp32(N)  r y fp32(N)  w dx(N):  dx = dy y (1 - y) */
    /* attention to chosen keys: priced only.  M keys of sizes.chunk ranks, their latent values
       shared by all heads, the first D' of D being the value; k = sizes.top_k of those before a
       query are chosen, all where there are fewer; of an indexer H and D are its own. */
    OP_INDEX, /* r q(N,H*D)  r k(M,D)  r weights(N,H)  w chosen int32(N,k)  scratch (scores)
                 [r q_positions  r k_positions]: the largest of sum over H of weight *
                 max(q k, 0) */
    OP_INDEXED_ATTENTION,          /* r q(N,H*D)  r k(M,D)  r chosen int32(N,k)  w o(N,H*D')
                                      w lse fp32(batch,H,T)  scratch */
    OP_INDEXED_ATTENTION_BACKWARD, /* r do(N,H*D')  r q  r k  r chosen  r o  r lse  w dq  w dk(M,D)
                                      scratch */
    OP_INDEX_TARGET,   /* r q(N,H*D)  r k(M,D)  r chosen  r lse  w target fp32(N,k): softmax of the
                          chosen keys, summed over heads: what scores are trained towards */
    OP_INDEX_BACKWARD, /* r target fp32(N,k)  r chosen  r q(N,H*D)  r k(M,D)  r weights(N,H)
                          w dq  w dk(M,D)  w dweights  scratch: of the divergence of the chosen
                          keys' scores from the target */
    OP_ROW_SUMS, /* r x(N,C)  w sums fp32(N)  [r dy(N,C)  r w(C)]: of a norm whose columns several
                    ranks have, priced only; this one's sum of x^2, or of dy w x.  Of all ranks the
                    first stands for rstd */
    NUM_OPS
} OpKind;

/* OP_ADAMW, OP_SGD, OP_CLIP: fp64 step scalars bound by the host before a step. */
enum {
    HYPER_LR,
    HYPER_BETA1,
    HYPER_BETA2,
    HYPER_EPS,
    HYPER_WEIGHT_DECAY,
    HYPER_STEP,
    HYPER_MAX_NORM,
    NUM_HYPER
};

/* A part of the vocabulary: bound by the host, once. */
enum { RANGE_FIRST, RANGE_COUNT, NUM_RANGE };

/* Below it an fp8 tensor's scale grows no more: all zeros have one too. */
#define AMAX_LEAST 1e-12

/* Largest e4m3 (Micikevicius et al., arXiv 2209.05433, table 1). */
#define E4M3_MOST 448.0

/* Of one row of logits, in OP_HEAD_STATS. */
enum { STATS_MAX, STATS_SUM, STATS_LABEL, NUM_STATS };

/* Of one row of x, in OP_LAYERNORM. */
enum { LAYERNORM_MEAN, LAYERNORM_RSTD, NUM_LAYERNORM };

enum { MAX_OPERANDS = 12, MAX_OP_WAITS = 4, WHOLE_TENSOR = -1, NO_UNIT = -1, NO_TENSOR = -1 };

typedef enum { ACCESS_READ, ACCESS_WRITE, ACCESS_UPDATE, ACCESS_ACCUMULATE } Access;

typedef struct {
    guint tensor; /* index into the program's tensors */
    Access access;
    gint shift; /* added to the index that the call binds in the tensor's space */
    gint param; /* one parameter of a unit's whole tensor, or WHOLE_TENSOR */
} Operand;

typedef struct {
    guint64 rows, in, out; /* linear: I and O; norm, add_bias: in = out = C; embed: in = V, out = C;
                              swiglu, gelu: in = F; head: in = C, out = V; route: in = E;
                              permute: in = C */
    guint64 batch, seq, heads, kv_heads, head_dim; /* attention, rope */
    guint64 value_dim;     /* attention: of values, where it is not head_dim; else 0 */
    guint64 groups, top_k; /* experts, and of keys those that are chosen; 0 elsewhere */
    guint64 sinks;         /* attention: heads with a sink, where it has that operand; else 0 */
    guint64 chunk;    /* head: rows of logits at a time; attention with positions: blocks of keys;
                         adamw: elements of a moment that share a scale, 0 where moments are fp32;
                         amax: units of the model */
    guint64 elements; /* accumulate, cast, and collectives not on a unit */
    double eps;       /* norms */
    double seen;      /* attention: of all causal pairs, those in the model's windows, or of chosen
                         keys; 0 = all */
} OpSizes;

/* One send or receive of an exchange; it pairs with its counterpart by peers and by tag =
 * (micro-batch, chunk, direction). */
typedef struct {
    guint peer_shift; /* the peer's position in the stream's group is ours plus this, around */
    gint micro_batch_shift; /* added to the call's micro-batch */
    guint chunk, direction;
} Message;

typedef enum { REDUCE_SUM, REDUCE_MAX /* of fp32 that is not negative */ } Reduction;

typedef struct {
    OpKind kind;
    guint stream;
    DType dtype, dtype_out; /* dtype_out: of gradients written (weights), of what a cast, a sum,
                               attention and products write; else = dtype */
    guint num_operands;
    Operand operands[MAX_OPERANDS];
    OpSizes sizes;
    gint unit;           /* unit class, or NO_UNIT */
    ParamSet params;     /* all_gather of a unit: which of its parameters */
    Reduction reduction; /* all_reduce */
    gint predicate;      /* scalar tensor: the op is skipped while it is 0; or NO_TENSOR */
    guint num_waits;
    guint waits[MAX_OP_WAITS];      /* earlier ops of this segment, on other streams */
    Message messages[MAX_OPERANDS]; /* OP_EXCHANGE: one an operand */
} Op;

/* Whether a norm has an operand `added`. */
gboolean op_norm_adds(const Op *op);

/* Of values in attention: head_dim unless they have a width of their own. */
guint64 op_value_dim(const Op *op);

/* Whether it is of attention to chosen keys, or of what chooses them. */
gboolean op_is_indexed(const Op *op);

/* Whether it copies rows between their exchange and their experts' order. */
gboolean op_copies_rows(const Op *op);

/* Attention: of all causal pairs of queries and keys, the part that is computed, in (0, 1]. */
double op_seen_pairs(const Op *op);

/* What the time of an op is listed under, in predictions and in measurements.  Communication comes
 * last: classes below it are compute. */
typedef enum {
    OP_CLASS_GEMM,
    OP_CLASS_ATTENTION,
    OP_CLASS_MEMORY_BOUND,
    OP_CLASS_OPTIMIZER, /* adamw, sgd, squared norm, clip */
    OP_CLASS_COMMUNICATION,
    NUM_OP_CLASSES
} OpClass;

/* Attention: how many operands it has but for that of sinks, which stands last; whether positions
 * are among them; blocks of keys and values, each as long as the queries, 1 without positions.  To
 * chosen keys: ranks whose keys there are. */
guint op_attention_operands(const Op *op);
gboolean op_has_positions(const Op *op);
guint64 op_key_blocks(const Op *op);

const char *op_kind_name(OpKind kind);         /* "linear_backward_weight", ... */
OpClass op_class(OpKind kind);                 /* one table, in op.c */
const char *op_class_name(OpClass time_class); /* "memory_bound", ...: as in plans and stores */
gboolean op_kind_is_communication(OpKind kind);

/* The access that holds for this call: ACCESS_ACCUMULATE becomes WRITE when @first, else UPDATE. */
Access operand_access(const Operand *operand, gboolean first);

/* ---- traits: one table by (kind, device) ---- */

/* Rows of one expert as grouped products take them: those that it has, or a multiple of the rows of
 * a kernel's tile. */
guint64 op_expert_rows(guint64 rows, DeviceKind device);

/* Floating-point operations of the op (multiply and add are two), padding and recomputation as
 * issued. */
double op_flops(const Op *op);

/* Bytes that the op must move to and from memory at least once; unit ops: @unit_elements of this
 * rank. */
double op_memory_bytes(const Op *op, guint64 unit_elements);

/* Upper bound of the scratch that @device needs for this op with @threads threads; a kernel may use
 * that many bytes and no more (a library instead of it, where there is a choice, all that the
 * program's scratch tensor has).  For OP_HEAD_LOSS the chunk of logits is part of it. */
guint64 op_workspace_bytes(const Op *op, DeviceKind device, guint threads);

/* Which operand of OP_ATTENTION or OP_ATTENTION_BACKWARD is the scratch; results come before it. */
guint op_attention_scratch(OpKind kind);

/* Whether a GPU's library (cuDNN) may run this op in place of the device's own kernel: attention of
 * bf16 without positions, whose values are as wide as its keys. */
gboolean op_library_attention(const Op *op);
guint64 op_library_aligned(guint64 bytes); /* of each part of its scratch */

/* The op that a row of calibration names, of attention: that library ran it, or the device's own
 * kernel. */
const char *op_attention_row(OpKind kind, gboolean by_library);
