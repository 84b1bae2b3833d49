/* Private to reading models: a family as data.  How its config.json is read and which tensors its
 * files hold; everything else follows from that. */
#pragma once

#include "sim/base/json.h"
#include "sim/input/model.h"

/* Sizes that shapes are made of. */
typedef enum {
    DIM_NONE, /* no second dimension: a vector */
    DIM_ONE,
    DIM_VOCAB,
    DIM_POSITIONS,
    DIM_EMBEDDING,
    DIM_HIDDEN,
    DIM_HEADS,
    DIM_KV_HEADS,
    DIM_HEAD,  /* head_dim */
    DIM_QUERY, /* heads x head_dim */
    DIM_KV,    /* kv_heads x head_dim */
    DIM_QKV,   /* query + 2 kv */
    DIM_FFN,
    DIM_GATE_UP, /* 2 ffn */
    DIM_EXPERTS,
    DIM_EXPERT_FFN,
    DIM_EXPERT_GATE_UP,
    DIM_SHARED_FFN,
    DIM_Q_RANK,
    DIM_KV_RANK,
    DIM_KV_RANK_ROPE,     /* and the rotated part of a key */
    DIM_LATENT_QUERY,     /* heads x (plain + rotated) */
    DIM_LATENT_KEY_VALUE, /* heads x (plain + value) */
    DIM_LATENT_VALUE,     /* heads x value */
    DIM_INDEX_HEADS,
    DIM_INDEX_HEAD,
    DIM_INDEX_QUERY, /* their product */
    DIM_MAMBA_HEADS,
    DIM_MAMBA_INNER, /* heads x head_dim */
    DIM_MAMBA_CONV,  /* inner and 2 groups x state */
    DIM_MAMBA_IN,    /* inner, conv and heads */
    DIM_MAMBA_KERNEL,
} Dim;

/* Blocks that have a module. */
typedef enum {
    IN_ALL_BLOCKS,
    IN_DENSE_BLOCKS,
    IN_EXPERT_BLOCKS,
    IN_ATTENTION_BLOCKS, /* these of models with BlockParts alone */
    IN_MLP_BLOCKS,
    IN_MAMBA_BLOCKS,
} Where;

/* How many of it there are, and what of it a token uses. */
typedef enum {
    ONE,
    EACH_EXPERT,     /* one an expert: the name has a %u */
    STACKED_EXPERTS, /* one tensor, experts first: of 3 dims, or 2 for a vector each */
    JOINED_EXPERTS,  /* one matrix, all experts' rows under each other */
    EACH_CHANNEL,    /* one tensor of 3 dims, Mamba's channels first */
} Times;

/* Roles of the file's fused matrices. */
enum {
    PARAM_QKV = NUM_PARAM_ROLES,
    PARAM_GATE_UP,
    PARAM_EXPERT_GATE_UP,
    PARAM_EXPERT_GATE_UP_BIAS,
};

/* A weight and perhaps its bias.  Lists end with one that has no name. */
typedef struct {
    guint role;       /* ParamRole; that of a bias, where training has one, is the next */
    const char *name; /* ".weight" and ".bias" follow unless @exact */
    Dim rows, cols;
    guint32 when, unless; /* features: has all of these, none of those */
    guint32 bias;         /* features that give it a bias; 0 = never */
    Where where;
    Times times;
    gboolean exact;      /* the name is whole */
    gboolean transposed; /* the file holds (in, out) */
} Module;

#define MATRIX(role_, name_, rows_, cols_, ...)                                                    \
    {                                                                                              \
        .role = role_, .name = name_, .rows = rows_, .cols = cols_, ##__VA_ARGS__                  \
    }
#define VECTOR(role_, name_, rows_, ...)                                                           \
    {                                                                                              \
        .role = role_, .name = name_, .rows = rows_, ##__VA_ARGS__                                 \
    }
#define END_OF_LIST                                                                                \
    {                                                                                              \
        .name = NULL                                                                               \
    }

/* A boolean of the file. */
typedef struct {
    const char *key;
    gboolean value;            /* where it is absent */
    guint32 if_true, if_false; /* features that are added */
    gboolean fixed;            /* what else it may be changes the model in ways unknown here */
} Flag;

#define FLAG(key_, value_, ...)                                                                    \
    {                                                                                              \
        .key = key_, .value = value_, ##__VA_ARGS__                                                \
    }

/* Names of fields; "a|b" = any of them, the first in messages; NULL = the family has none. */
typedef struct {
    const char *layers, *hidden, *heads, *kv_heads, *ffn, *max_seq, *norm_eps, *init_std;
    const char *activation;
    const char *ffn_ratio;                  /* ffn / hidden, where it is that which is given */
    const char *rope_theta, *rotary_factor; /* rotary_factor: part of a head that is rotated */
    const char *window, *window_flag;       /* window_flag: whether the window holds; absent: not */
    const char *kv_heads_from; /* the field that excerpts lose, and then read as another model */
} Keys;

enum { MAX_LISTS = 6, MAX_FLAGS = 6, MAX_ALIASES = 4 };

/* Each far above any model known in 2026; together they keep products of three below 2^62. */
enum {
    MAX_LAYERS = 1 << 14,
    MAX_HEADS = 1 << 14,
    MAX_HEAD_DIM = 1 << 14,
    MAX_HIDDEN = 1 << 20,
    MAX_FFN = 1 << 22,
    MAX_VOCAB = 1 << 26,
    MAX_SEQ = 1 << 30,
    MAX_EXPERTS = 1 << 14,
    MAX_EXPERTS_IN_ALL = 1 << 20,
};

struct ModelFamily {
    const char *model_types[MAX_ALIASES], *architectures[MAX_ALIASES]; /* NULL behind the last */
    const Keys *keys;
    const char *block_prefix;     /* "model.layers." */
    const Module *before, *after; /* of the root: before and behind the blocks in the file */
    const Module *block[MAX_LISTS];
    guint32 features; /* of every member */
    Flag flags[MAX_FLAGS];
    /* Fields that only this family has; NULL: none. */
    gboolean (*read_more)(Model *model, const JsonText *json, GError **error);
    /* Where the file does not say; those of transformers' configuration classes. */
    gboolean tied;
    guint kv_heads; /* 0: as many as heads */
    guint head_dim; /* 0: hidden / heads */
    guint max_seq, sliding_window, full_every, position_offset;
    guint ffn_ratio; /* 0: the file must say */
    Activation activation;
    double norm_eps, rotary_factor; /* 0: all of a head */
};

/* The tables of families, each ending with one without model_types. */
extern const ModelFamily llama_families[], expert_families[], gpt_families[], mixed_families[];

/* Lists that more than one of them uses. */
extern const Module llama_before[], llama_after[], llama_attention[], llama_norms[];
extern const Module head_qk_norms[], wide_qk_norms[];
extern const Keys llama_keys;

/* model_parameters() of sizes that may be absurd, and of what a token uses the elements that a
 * product multiplies by. */
double model_parameters_bound(const Model *model);
double model_matrix_parameters(const Model *model);

/* For model_even_work(), of a model with kinds of blocks. */
ModelCuts *model_cuts_new(const Model *model);
void model_cuts_free(ModelCuts *cuts);

/* The first of "a|b" that the file has, else "a"; NULL for NULL.  The caller's. */
char *model_find_key(const JsonText *json, const char *names);
