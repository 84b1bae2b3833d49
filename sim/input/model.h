/* A transformer's shape, as read from a Hugging Face config.json. */
#pragma once

#include <glib.h>

/* Which of the FSDP units a tensor belongs to: everything outside the blocks is the root unit,
 * as where PyTorch's fully_shard() wraps each block and then the model. */
typedef enum { UNIT_ROOT, UNIT_BLOCK } UnitKind;

/* The tensors of a block and of the root, in the order in which a unit stores them. */
typedef enum {
    PARAM_EMBEDDING, /* (vocab, hidden); also the head when tied */
    PARAM_FINAL_NORM,
    PARAM_HEAD, /* absent when tied */
    NUM_ROOT_PARAMS
} RootParam;

typedef enum {
    PARAM_INPUT_NORM,
    PARAM_Q,
    PARAM_K,
    PARAM_V,
    PARAM_O,
    PARAM_POST_NORM,
    PARAM_GATE,
    PARAM_UP,
    PARAM_DOWN,
    NUM_BLOCK_PARAMS
} BlockParam;

/* One parameter tensor.  A vector has cols = 1 and dims = 1. */
typedef struct {
    char *name; /* as in Hugging Face files; in a block without its "model.layers.N." */
    guint64 rows, cols;
    guint dims;
} ParamShape;

/* config.json's rope_scaling of type "llama3"; factor 1 means none. */
typedef struct {
    double factor, low_freq_factor, high_freq_factor;
    guint original_max_seq;
} RopeScaling;

typedef struct {
    char *name;        /* the folder's name, or model_type where there is none */
    char *model_type;  /* "llama", "mistral" */
    char *config_text; /* config.json as read */
    guint layers, hidden, heads, kv_heads, head_dim, ffn, vocab, max_seq;
    guint sliding_window; /* 0 = none */
    gboolean tied;
    double norm_eps, rope_theta, init_std;
    RopeScaling rope_scaling;
} Model;

/* @where: a folder with config.json, that file, or a name under @models_dir.  Refuses, by name,
 * what the project does not know yet.  NULL and ERROR_INPUT otherwise. */
Model *model_load(const char *where, const char *models_dir,
                  GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same from text; @source is named in messages, @name becomes the model's. */
Model *model_parse(const char *text, const char *source, const char *name,
                   GError **error) G_GNUC_WARN_UNUSED_RESULT;
void model_free(Model *model);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Model, model_free)

/* The parameters of a unit in storage order: GArray of ParamShape (which owns the names).
 * The root has 3 (2 when tied), a block NUM_BLOCK_PARAMS; indices are RootParam / BlockParam. */
GArray *model_unit_params(const Model *model, UnitKind unit);

/* Every tensor of the model, full names, in Hugging Face's order; GArray of ParamShape. */
GArray *model_tensors(const Model *model);

/* Psi: every element once, tied ones once. */
guint64 model_parameters(const Model *model);

/* Inverse frequencies of rotary embedding, (head_dim / 2) values, llama3 scaling applied:
 * theta^(-2i/D).  Source: Su et al., RoFormer, arXiv 2104.09864, sec. 3.2.2. */
void model_rope_frequencies(const Model *model, double *inverse);

/* Model FLOPs of one training step of @tokens tokens in sequences of @seq_len: matmuls (head
 * included, embedding lookup not) and causal attention at half, forward + backward = 3 x forward;
 * recomputation is not counted. */
double model_step_flops(const Model *model, guint64 tokens, guint64 seq_len);
