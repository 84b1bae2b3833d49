/* A transformer's shape, as read from a Hugging Face config.json. */
#pragma once

#include <glib.h>

/* Which of the FSDP units a tensor belongs to: everything outside the blocks is the root unit,
 * as where PyTorch's fully_shard() wraps each block and then the model.  A block with a mixture of
 * experts is two: the experts that a rank holds, which fewer ranks share, and the rest. */
typedef enum { UNIT_ROOT, UNIT_BLOCK, UNIT_SPARSE, UNIT_EXPERTS, NUM_UNIT_KINDS } UnitKind;

/* What a parameter tensor does, in the order in which a unit stores them.  A role that a model
 * lacks is absent from its units. */
typedef enum {
    /* root */
    PARAM_EMBEDDING,  /* (vocab, hidden); also the head when tied */
    PARAM_POSITIONS,  /* (positions, hidden), learned */
    PARAM_EMBED_NORM, /* of what the embedding gives */
    PARAM_EMBED_NORM_BIAS,
    PARAM_PROJECT_IN, /* (hidden, embedding), where an embedding has another width */
    PARAM_PROJECT_IN_BIAS,
    PARAM_PROJECT_OUT, /* (embedding, hidden), before the head */
    PARAM_PROJECT_OUT_BIAS,
    PARAM_FINAL_NORM,
    PARAM_FINAL_NORM_BIAS,
    PARAM_HEAD, /* absent when tied */
    PARAM_HEAD_BIAS,
    /* block */
    PARAM_INPUT_NORM,
    PARAM_INPUT_NORM_BIAS,
    PARAM_Q,
    PARAM_Q_BIAS,
    PARAM_K,
    PARAM_K_BIAS,
    PARAM_V,
    PARAM_V_BIAS,
    PARAM_SINKS,  /* (heads): logits of a key that all queries see, whose value is 0 */
    PARAM_Q_NORM, /* of each head, or of all heads at once */
    PARAM_K_NORM,
    PARAM_Q_DOWN, /* latent attention: to q_rank; PARAM_Q is what comes from there */
    PARAM_Q_DOWN_BIAS,
    PARAM_Q_DOWN_NORM,
    PARAM_KV_DOWN, /* to kv_rank, and the rotated part of a key */
    PARAM_KV_DOWN_BIAS,
    PARAM_KV_DOWN_NORM,
    PARAM_KV_UP, /* keys but for that part, and values */
    PARAM_KV_UP_BIAS,
    PARAM_INDEX_Q, /* the indexer's queries, from q_rank; its one key, and that's norm */
    PARAM_INDEX_Q_BIAS,
    PARAM_INDEX_K,
    PARAM_INDEX_K_BIAS,
    PARAM_INDEX_K_NORM,
    PARAM_INDEX_K_NORM_BIAS,
    PARAM_INDEX_WEIGHTS, /* of its heads */
    PARAM_INDEX_WEIGHTS_BIAS,
    PARAM_O,
    PARAM_O_BIAS,
    PARAM_ATTENTION_NORM, /* of what attention gives, or of its sum with x */
    PARAM_ATTENTION_NORM_BIAS,
    PARAM_POST_NORM, /* before the MLP */
    PARAM_POST_NORM_BIAS,
    PARAM_GATE,
    PARAM_GATE_BIAS,
    PARAM_UP, /* the first matrix of an MLP without gate */
    PARAM_UP_BIAS,
    PARAM_DOWN,
    PARAM_DOWN_BIAS,
    PARAM_MLP_NORM, /* of what the MLP gives, or of its sum with x */
    PARAM_MLP_NORM_BIAS,
    PARAM_ROUTER, /* (experts, hidden) */
    PARAM_ROUTER_BIAS,
    PARAM_SHARED_GATE, /* of the shared experts, which are one MLP */
    PARAM_SHARED_GATE_BIAS,
    PARAM_SHARED_UP,
    PARAM_SHARED_UP_BIAS,
    PARAM_SHARED_DOWN,
    PARAM_SHARED_DOWN_BIAS,
    PARAM_SHARED_SCALE, /* (1, hidden): how much of what they give a token takes */
    PARAM_SHARED_SCALE_BIAS,
    /* experts: the matrices of all that are held, under each other */
    PARAM_EXPERT_GATE,
    PARAM_EXPERT_GATE_BIAS,
    PARAM_EXPERT_UP,
    PARAM_EXPERT_UP_BIAS,
    PARAM_EXPERT_DOWN,
    PARAM_EXPERT_DOWN_BIAS,
    PARAM_OTHER, /* of models that are counted only */
    NUM_PARAM_ROLES
} ParamRole;

/* What a block and the root are made of, beyond a plain pre-norm block with RMS norms, no biases,
 * an MLP of two matrices, no positions and a tied head. */
enum {
    FEATURE_LAYER_NORM = 1 << 0,   /* LayerNorm, not RMSNorm */
    FEATURE_NORM_BIAS = 1 << 1,    /* norms have a bias */
    FEATURE_BARE_NORM = 1 << 2,    /* norms have no parameters at all */
    FEATURE_NORM_OFFSET = 1 << 3,  /* norms multiply by 1 + weight */
    FEATURE_OUTPUT_NORMS = 1 << 4, /* norms on what attention and MLP give */
    FEATURE_POST_NORM = 1 << 5,    /* norms after the sum, not before; no final norm */
    FEATURE_QK_NORM = 1 << 6,      /* norms of queries and keys */
    FEATURE_QKV_BIAS = 1 << 7,
    FEATURE_O_BIAS = 1 << 8,
    FEATURE_MLP_BIAS = 1 << 9,
    FEATURE_HEAD_BIAS = 1 << 10,
    FEATURE_ROPE = 1 << 11,
    FEATURE_PARTIAL_ROPE = 1 << 12, /* only a part of each head is rotated */
    FEATURE_ROPE_PAIRS = 1 << 13,   /* neighbours are rotated, not halves */
    FEATURE_ROPE_SCALED = 1 << 14,  /* in another way than Llama 3's */
    FEATURE_POSITIONS = 1 << 15,    /* learned positions */
    FEATURE_ALIBI = 1 << 16,
    FEATURE_PARALLEL = 1 << 17,     /* attention and MLP read the same x and add to it */
    FEATURE_TWO_NORMS = 1 << 18,    /* in parallel, each with a norm of its own */
    FEATURE_GATED = 1 << 19,        /* act(gate x) * (up x) */
    FEATURE_UNTIED = 1 << 20,       /* a head of its own */
    FEATURE_EMBED_SCALED = 1 << 21, /* by sqrt(hidden) */
    FEATURE_EMBED_NORM = 1 << 22,
    FEATURE_EMBED_PROJECTED = 1 << 23, /* to and from another width */
    FEATURE_LOGITS_CHANGED = 1 << 24,  /* capped or scaled */
    FEATURE_LATENT = 1 << 25,          /* multi-head latent attention */
    FEATURE_Q_RANK = 1 << 26,          /* of that, queries of low rank too */
    FEATURE_EXPERTS = 1 << 27,
    FEATURE_SHARED_EXPERTS = 1 << 28,
    FEATURE_QK_NORM_OF_ALL = 1 << 29, /* those norms are over all heads at once */
    FEATURE_SHARED_SCALE = 1 << 30,   /* a gate of what shared experts give */
};

typedef enum {
    ACTIVATION_SILU,
    ACTIVATION_GELU_TANH, /* "gelu_new", "gelu_pytorch_tanh" */
    ACTIVATION_GELU,
    ACTIVATION_RELU,
    ACTIVATION_RELU2,
    NUM_ACTIVATIONS
} Activation;

/* One parameter tensor.  A vector has cols = 1 and dims = 1; with dims = 3 there are @stack
 * matrices behind each other. */
typedef struct {
    char *name; /* as in Hugging Face files; in a unit's block without its "model.layers.N." */
    guint64 rows, cols;
    guint dims;
    ParamRole role;
    guint64 stack; /* 1, except with dims = 3 */
} ParamShape;

/* config.json's rope_scaling of type "llama3"; factor 1 means none. */
typedef struct {
    double factor, low_freq_factor, high_freq_factor;
    guint original_max_seq;
} RopeScaling;

/* Mixture of experts; count 0 where there is none.  Blocks first, first + every, ... have it, the
 * others an MLP. */
typedef struct {
    guint count, top_k, ffn;
    guint held;         /* count; where ranks share the experts, those of one */
    guint64 shared_ffn; /* of all shared experts together */
    guint first, every;
} Experts;

/* DeepSeek's attention: keys and values from @kv_rank values a token; of a head's query and key,
 * @plain_dim values are not rotated, @rope_dim are.  Where @top_keys is not 0 a query reads no more
 * keys than that: those which an indexer of @index_heads heads of @index_dim scores highest. */
typedef struct {
    guint q_rank, kv_rank, plain_dim, rope_dim, value_dim;
    guint index_heads, index_dim, top_keys;
} LatentAttention;

enum { MAX_BLOCK_KINDS = 32 }; /* that a model has at most; beyond, model_parse() refuses it */

/* What a block is made of, in models whose blocks differ in more than experts. */
typedef struct {
    gboolean attention, mlp, mamba;
    guint kv_heads, ffn; /* where it has them, else 0 */
} BlockParts;

/* Mamba-2: @heads x @head_dim inner values, a state of @state for each of @groups groups. */
typedef struct {
    guint heads, head_dim, groups, state, kernel;
} Mamba;

typedef struct ModelFamily ModelFamily;
typedef struct ModelCuts ModelCuts;

typedef struct {
    char *name;        /* the folder's name, or model_type where there is none */
    char *model_type;  /* "llama", "gpt2", ...: a name that the family goes by */
    char *config_text; /* config.json as read */
    const ModelFamily *family;
    guint32 features; /* FEATURE_ */
    Activation activation;
    guint layers, hidden, heads, kv_heads, head_dim, ffn, vocab, max_seq;
    guint rotary_dim;     /* of each head, that much is rotated */
    guint embedding;      /* width of the embedding; hidden in all models but one */
    guint position_rows;  /* of learned positions; OPT has two more than max_seq */
    guint sliding_window; /* 0 = none */
    guint full_every;     /* each such block attends to all in spite of a window; 0 = none does */
    gboolean tied;
    double norm_eps, rope_theta, init_std;
    RopeScaling rope_scaling;
    Experts experts;
    LatentAttention latent;
    Mamba mamba;
    /* Blocks of one kind are alike.  Where none is listed there is one, or in mixtures of experts
     * two: without and with experts. */
    guint num_kinds;
    BlockParts *kinds;
    ModelCuts *cuts; /* model_even_work() */
    guint8 *kind_of; /* by block; NULL: all are of the first, or as @experts says */
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

/* NULL, or what of this model can't be compiled into a program yet, as in "a bias of the head";
 * the caller's.  The same of what no device's kernels compute: such a model's programs are priced,
 * and not run. */
char *model_unplannable(const Model *model);
char *model_untrainable(const Model *model);

/* TRUE where that is NULL, else one line and ERROR_INPUT. */
gboolean model_check_plannable(const Model *model, GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean model_check_trainable(const Model *model, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Kinds of blocks that a model may have, in each of which all are alike; which one a block is of,
 * and whether those of a kind have a mixture of experts. */
guint model_num_kinds(const Model *model);
guint model_block_kind(const Model *model, guint block);
static inline gboolean model_kind_is_sparse(const Model *model, guint kind)
{
    return model->num_kinds == 0 && kind == 1;
}
gboolean model_has_kind(const Model *model, guint kind); /* any block is of it */

/* The same model, but that all blocks are of one kind.  Its pointers are those of @model. */
Model model_of_kind(const Model *model, guint kind);

/* Blocks of each of so many pieces that follow each other, of which the largest has as little work
 * as can be, the last one's with the head; the model's.  NULL where blocks are alike or differ in
 * experts alone (then pieces have as many each), or where there is one piece, or more than blocks.
 */
const guint16 *model_even_work(const Model *model, guint pieces);

/* Whether blocks of a model of one kind have attention, and an MLP or experts. */
gboolean model_has_attention(const Model *model);
gboolean model_has_mlp(const Model *model);

/* Whether block @block has a mixture of experts, and how many blocks have. */
gboolean model_is_sparse(const Model *model, guint block);
guint model_num_sparse(const Model *model);

/* Whether the norms of queries and keys have weights of their own for each head. */
gboolean model_norms_heads_apart(const Model *model);

/* Width of a head's values: head_dim but in latent attention. */
guint model_value_dim(const Model *model);

/* The parameters of a unit of a plannable model (of a block's: whose blocks are of one kind, or
 * two without and with experts) in storage order: GArray of ParamShape (which owns
 * the names).  What is fused in the file - queries, keys and values, gate and up - is split here,
 * and all matrices are (out, in): tensor parallelism cuts them apart.  The number of elements is
 * the file's. */
GArray *model_unit_params(const Model *model, UnitKind unit);

/* How many elements they have. */
guint64 model_unit_elements(const Model *model, UnitKind unit);

/* Where the parameter of that role is in model_unit_params(), -1 where the model has none. */
gint model_param_index(const Model *model, UnitKind unit, ParamRole role);

/* What stands before "N." in the full name of a block's parameter: "model.layers.". */
const char *model_block_prefix(const Model *model);

/* Every tensor of the model, full names and shapes as in Hugging Face's files; GArray of
 * ParamShape.
 */
GArray *model_tensors(const Model *model);

/* Psi: every element once, tied ones once; and of them those that one token's forward pass uses. */
guint64 model_parameters(const Model *model);
guint64 model_active_parameters(const Model *model);

/* Inverse frequencies of rotary embedding, (head_dim / 2) values, llama3 scaling applied:
 * theta^(-2i/D).  Source: Su et al., RoFormer, arXiv 2104.09864, sec. 3.2.2. */
void model_rope_frequencies(const Model *model, double *inverse);

/* Of all causal pairs of queries and keys those inside the windows, as the mean of the layers; 1
 * without windows, or where none is shorter than @seq_len. */
double model_seen_pairs(const Model *model, guint64 seq_len);

/* Model FLOPs of one training step of @tokens tokens in sequences of @seq_len: matmuls (head
 * included, embedding lookup not, of experts those that a token visits) and causal attention at
 * half, forward + backward = 3 x forward; recomputation is not counted. */
double model_step_flops(const Model *model, guint64 tokens, guint64 seq_len);
