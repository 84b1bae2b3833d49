/* Context parallelism: which tokens of a sequence a rank of the cp group has. */
#pragma once

#include <glib.h>

/* How attention sees the keys and values of other ranks. */
typedef enum {
    CONTEXT_RING,       /* they pass from rank to rank (Liu et al. 2023, arXiv 2310.01889) */
    CONTEXT_ALL_GATHER, /* gathered, again for backward (Llama 3, arXiv 2407.21783, sec. 3.3.2) */
    NUM_CONTEXT_KINDS
} ContextKind;

const char *context_kind_name(ContextKind kind); /* "ring", "all_gather" */
gboolean context_kind_from_name(const char *name, ContextKind *kind);

/* Zigzag: the sequence is cut into 2 cp pieces and rank r has pieces r and 2 cp - 1 - r, so that
 * under a causal mask all ranks have the same work.  Fills the seq_len / cp positions of @rank in
 * ascending order; 2 cp must divide @seq_len (cp 1: any). */
void context_positions(guint seq_len, guint cp, guint rank, gint32 *positions);
