/* Frameworks that a prediction can be for: what they do otherwise than fsdp-run with the same
 * program.  GPUs only. */
#pragma once

#include "sim/program/op.h"

#include <glib.h>

typedef enum {
    ATTENTION_FLASH_2,      /* Dao 2023, and what fsdp-run is taken to reach */
    ATTENTION_FLASH_1,      /* Dao et al. 2022, its library before version 2 */
    ATTENTION_FLASH_TRITON, /* the same algorithm, written in Triton */
    ATTENTION_CUDNN,        /* cuDNN's of 2024, through Transformer Engine */
    ATTENTION_CUDNN_2026,   /* of version 9.19 */
    ATTENTION_CUDNN_FP8,    /* the same, its products in fp8 */
    ATTENTION_FUSED_MASK,   /* scores in memory; scale, mask and softmax are one kernel */
    ATTENTION_UNFUSED,      /* scores in memory; each step is a kernel of its own */
    NUM_ATTENTION_KERNELS
} AttentionKernel;

/* Bytes that a block leaves for its backward pass beside what the program keeps. */
typedef struct {
    double hidden;    /* for each value of the residual stream that this rank norms */
    double ffn;       /* for each value of the MLP's inner width */
    double attention; /* for each value of a query */
    double score;     /* for each of the heads x seq attention scores of a token */
    double gradient;  /* of a score's gradients, while one block's are there */
} SavedBytes;

typedef struct Framework {
    const char *name, *reading; /* reading: which software that is, in a few words */
    AttentionKernel attention;
    /* Seconds; all 0 is what fsdp-run does. */
    double norm_more;       /* bytes that norms move beside those that one kernel must, of them */
    double activation_more; /* the same of SwiGLU and GELU */
    double residual_more;   /* the same of what adds to the residual stream */
    double rotary_more;     /* the same of rotary embedding */
    double gradient_more;  /* bytes that adding a product's gradient to the step's moves, a value */
    gboolean drops_scores; /* flash attention has dropout: a random number for each score */
    double fp8_more;       /* time of fp8 products beside that of the library's best, of it */
    gboolean keeps_fp8_weights; /* rounded once a step, not for each micro-batch */
    double logit_bytes;         /* that softmax and its gradient move, a logit; 0: as the program */
    double host_forward_s;      /* a block's kernels are not issued faster: forward, recompute */
    double host_backward_s;
    double host_sparse_forward_s; /* the same of a block with experts */
    double host_sparse_backward_s;
    gboolean fuses_experts; /* their activation is part of the products */
    double exchange_more;   /* time of exchanges between experts beside that of their bytes, where
                               the innermost network joins all of them, of it */
    double exchange_hidden; /* of those exchanges, beside the rest of a block, where that takes as
                               long; of the rest where it is shorter */
    gboolean sends_once;    /* a token goes once to each node, rank with experts that it visits */
    gboolean pads_rows;     /* in fp8 each expert's rows are copied to a multiple of 16 or 32, and
                               back, by kernels of their own */
    double tensor_hidden;   /* of tensor-parallel collectives, beside the products they belong to */
    double all_reduce_more; /* time of all-reduces within a tp group beside that of their bytes, of
                               it */
    gboolean recomputes_all; /* of a block, what nobody needs too */
    double pipeline_hidden;  /* of messages between stages */
    double gather_exposed;   /* seconds that compute loses while gathers of parameters take one: 0
                                all beside it, 1 nothing overlaps */
    double reduce_exposed;   /* the same of reductions of gradients */
    double gather_saved;     /* of the bytes of gathered parameters, by a narrower type than the
                                program's */
    double broadcast_s; /* of each rank in turn, where parameters are not gathered but broadcast by
                           those that updated them; 0: gathered */
    gboolean context_plain;   /* ranks of a cp group have a sequence's parts in order: the last one
                                 attends to all */
    gboolean splits_messages; /* between stages: each rank of a tp group sends its part only */
    /* Bytes. */
    double process_bytes;     /* of a process beside its tensors; 0: as for fsdp-run */
    double logit_held_bytes;  /* of a logit of a whole micro-batch; 0: chunks, as the program */
    double logit_split_bytes; /* the same where a tp group splits the vocabulary; 0: as much */
    gboolean gathers_logits;  /* of the tp group: each rank holds all of them, and takes the loss of
                                 all */
    double transient_share;   /* buffers that come and go, of all that is not state */
    double gather_bytes;      /* of buffers that stay, for the collectives of a tp group, for each
                                 value of a micro-batch's residual stream */
    guint queued_reductions;  /* of a tp group, that the device's queue takes: what they read is
                                 held until the device has passed them; 0: the host waits */
    double whole_bytes, shard_bytes; /* of state, a parameter, beside what the recipe keeps */
    double copied_bytes; /* of a whole parameter where several ranks train it: what is reduced or
                            gathered is copied to */
    double cached_bytes; /* of a parameter that a rank updates: free within a step, but taken from
                            the device while there is room */
    gboolean keeps_gathered; /* what `hidden` of `saved` means is kept whole by each of a tp group,
                                between which tokens are split */
    SavedBytes saved;
} Framework;

/* fsdp-run itself: the program as it is. */
const Framework *framework_default(void);

/* NULL when unknown; all names, joined by ", ": the caller's. */
const Framework *framework_from_name(const char *name);
char *framework_names(void);

/* @framework, or the default where it is NULL. */
const Framework *framework_or_default(const Framework *framework);

/* Whether that is another than fsdp-run, whose memory is not the program's. */
gboolean framework_is_foreign(const Framework *framework);

/* How often the bytes of a memory-bound op pass through memory; @pads: rows of experts are padded
 * (pads_rows in a program in fp8). */
double framework_passes(const Framework *framework, const Op *op, gboolean pads);

/* Of the time of a collective of @kind between ranks of @purpose ("tp", "pp", "shard", ...), what
 * is left; @inside: the innermost network joins all of them. */
double framework_exposed(const Framework *framework, const char *purpose, OpKind kind,
                         gboolean inside);

/* Seconds that compute loses for each second on a stream of that name ("shard.gather"). */
double framework_blocks(const Framework *framework, const char *stream);
