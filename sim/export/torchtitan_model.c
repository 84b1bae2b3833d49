#include "sim/export/torchtitan_model.h"

#include "sim/export/routing.h"

#include <string.h>

/* Its models: the features that one must have, those that it may have, and what that is called. */
typedef struct {
    const char *name;
    guint32 must, may;
    gboolean tied, pipeline; /* may be tied, may be cut into stages */
    const char *is;
} Kind;

#define PLAIN (FEATURE_ROPE | FEATURE_GATED)

static const Kind deepseek = {
    "deepseek_v3",
    PLAIN | FEATURE_LATENT | FEATURE_ROPE_PAIRS | FEATURE_EXPERTS,
    FEATURE_UNTIED | FEATURE_Q_RANK | FEATURE_SHARED_EXPERTS | FEATURE_ROPE_SCALED,
    FALSE,
    TRUE,
    "its deepseek_v3 has RMSNorm, latent attention, experts, SwiGLU and no biases",
};
static const Kind qwen = {
    "qwen3",
    PLAIN | FEATURE_QK_NORM,
    FEATURE_UNTIED | FEATURE_EXPERTS,
    TRUE,
    FALSE,
    "its qwen3 has RMSNorm, norms of each head's queries and keys, rotary embedding, SwiGLU and "
    "no biases",
};
static const Kind llama = {
    "llama3", PLAIN, FEATURE_UNTIED,
    FALSE,    TRUE,  "its llama3 has RMSNorm, rotary embedding, SwiGLU, no biases and no experts",
};

/* Experts of a flavor, and the rank of its queries. */
typedef struct {
    guint experts, top_k, ffn, shared, dense_layers, q_rank;
    Routing routing;
} Mixture;

static const Mixture qwen_30b = {128, 8, 768, 0, 0, 0, {.normalised = TRUE, .scale = 1}};
static const Mixture qwen_235b = {128, 8, 1536, 0, 0, 0, {.normalised = TRUE, .scale = 1}};
static const Mixture deepseek_16b = {64, 6, 1408, 2, 1, 0, {.scale = 1}};
static const Mixture deepseek_671b = {
    256,
    8,
    2048,
    1,
    3,
    1536,
    {.sigmoid = TRUE, .normalised = TRUE, .scale = 2.5, .groups = 8, .top_groups = 4}};

/* Shapes that they have under a name; deepseek_v3's 236B chooses groups otherwise than
 * DeepSeek-V2. */
static const struct Flavor {
    const char *name, *flavor;
    guint layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    gboolean tied;
    const Mixture *mixture;
} flavors[] = {
    {"llama3", "8B", 32, 4096, 32, 8, 128, 14336, 128256, FALSE, NULL},
    {"llama3", "70B", 80, 8192, 64, 8, 128, 28672, 128256, FALSE, NULL},
    {"llama3", "405B", 126, 16384, 128, 8, 128, 53248, 128256, FALSE, NULL},
    {"qwen3", "0.6B", 28, 1024, 16, 8, 128, 3072, 151936, TRUE, NULL},
    {"qwen3", "1.7B", 28, 2048, 16, 8, 128, 6144, 151936, TRUE, NULL},
    {"qwen3", "4B", 36, 2560, 32, 8, 128, 9728, 151936, TRUE, NULL},
    {"qwen3", "8B", 36, 4096, 32, 8, 128, 12288, 151936, FALSE, NULL},
    {"qwen3", "14B", 40, 5120, 40, 8, 128, 17408, 151936, FALSE, NULL},
    {"qwen3", "32B", 64, 5120, 64, 8, 128, 25600, 151936, FALSE, NULL},
    {"qwen3", "30B-A3B", 48, 2048, 32, 4, 128, 6144, 151936, FALSE, &qwen_30b},
    {"qwen3", "235B-A22B", 94, 4096, 64, 4, 128, 12288, 151936, FALSE, &qwen_235b},
    {"deepseek_v3", "16B", 27, 2048, 16, 16, 192, 10944, 102400, FALSE, &deepseek_16b},
    {"deepseek_v3", "671B", 61, 7168, 128, 128, 192, 18432, 129280, FALSE, &deepseek_671b},
};

static gboolean has(const Model *model, guint32 features)
{
    return (model->features & features) == features;
}

static const Kind *find_kind(const Model *model)
{
    return has(model, FEATURE_LATENT) ? &deepseek : has(model, FEATURE_QK_NORM) ? &qwen : &llama;
}

/* Of latent attention all but the rank of queries is the same in all flavors. */
static gboolean same_latent(const Model *model, const Mixture *mixture)
{
    const LatentAttention *latent = &model->latent;

    return latent->q_rank == mixture->q_rank &&
           (!has(model, FEATURE_LATENT) ||
            (latent->kv_rank == 512 && latent->rope_dim == 64 && latent->value_dim == 128));
}

static gboolean same_experts(const Model *model, const Mixture *known, const Routing *routing)
{
    const Experts *experts = &model->experts;
    const Routing *wanted = &known->routing;

    return experts->count == known->experts && experts->top_k == known->top_k &&
           experts->ffn == known->ffn &&
           experts->shared_ffn == (guint64)known->shared * known->ffn &&
           experts->first == known->dense_layers && routing->sigmoid == wanted->sigmoid &&
           routing->normalised == wanted->normalised && routing->scale == wanted->scale &&
           routing->groups == wanted->groups &&
           (wanted->groups == 0 || routing->top_groups == wanted->top_groups);
}

static const char *find_flavor(const Model *model, const Routing *routing)
{
    const char *name = find_kind(model)->name;

    for (guint i = 0; i < G_N_ELEMENTS(flavors); i++) {
        const struct Flavor *known = &flavors[i];
        const Mixture *mixture = known->mixture;

        if (strcmp(known->name, name) == 0 && known->layers == model->layers &&
            known->hidden == model->hidden && known->heads == model->heads &&
            known->kv_heads == model->kv_heads && known->head_dim == model->head_dim &&
            known->ffn == model->ffn && known->vocab == model->vocab &&
            known->tied == model->tied && (mixture != NULL) == (model->experts.count > 0) &&
            (mixture == NULL ||
             (same_latent(model, mixture) && same_experts(model, mixture, routing))))
            return known->flavor;
    }
    return NULL;
}

/* ---- what it lacks ---- */

static gboolean check_kind(const Export *export, const Kind *kind, GError **error)
{
    const Model *model = export->plan->model;
    const guint pp = export->plan->layout.size[AXIS_PP];
    g_autofree char *lacks_tied = g_strdup_printf("its %s has a head of its own", kind->name);

    if ((model->features & kind->must) != kind->must ||
        (model->features & ~(kind->must | kind->may)) != 0)
        return export_refuse(export, "model.model_type", model->model_type, kind->is, error);
    if (model->tied && !kind->tied)
        return export_refuse(export, "model.tie_word_embeddings", "true", lacks_tied, error);
    if (pp > 1 && !kind->pipeline)
        return export_refuse_uint(export, "layout.pp", pp, "its qwen3 has no pipeline", error);
    if (kind == &llama && model->head_dim * model->heads != model->hidden)
        return export_refuse_uint(export, "model.head_dim", model->head_dim,
                                  "its llama3 takes hidden_size / num_attention_heads", error);
    if (model->sliding_window != 0 && export->plan->workload.seq_len > model->sliding_window)
        return export_refuse_uint(export, "model.sliding_window", model->sliding_window,
                                  "its attention is to all of a sequence", error);
    return TRUE;
}

/* Blocks with experts are all of qwen3's, and of deepseek_v3's those behind the first ones. */
static gboolean check_sparse_blocks(const Export *export, const Kind *kind, GError **error)
{
    const Experts *experts = &export->plan->model->experts;

    if (experts->every != 1)
        return export_refuse_uint(
            export, kind == &qwen ? "model.decoder_sparse_step" : "model.moe_layer_freq",
            experts->every, "every block behind the dense ones has experts", error);
    return TRUE;
}

/* Of ep = 1 the matrices of an expert are split as the others are. */
static gboolean check_expert_axes(const Export *export, GError **error)
{
    const Plan *plan = export->plan;
    const guint *size = plan->layout.size;

    if (layout_ep(&plan->layout) == 1 && size[AXIS_TP] > 1)
        return export_refuse_uint(export, "layout.ep", 1,
                                  "beside tp it splits each expert's matrices then", error);
    if (plan->workload.recipe->precision != DTYPE_FP8)
        return TRUE;
    if (size[AXIS_PP] > 1 || size[AXIS_CP] > 1)
        return export_refuse(export, "workload.precision", "fp8",
                             "its experts in float8 go with neither pp nor cp", error);
    return !plan->sharding.gather_fp8 ||
           export_refuse(export, "sharding.gather_dtype", "fp8",
                         "its experts are gathered in bf16, and scaled by rows then", error);
}

/* A group is as good as its two best experts there. */
static gboolean check_experts(const Export *export, const Kind *kind, Routing *routing,
                              GError **error)
{
    const Model *model = export->plan->model;

    if (model->experts.count == 0)
        return TRUE;
    if (!routing_read(model, routing, error) || !check_sparse_blocks(export, kind, error) ||
        !check_expert_axes(export, error))
        return FALSE;
    return routing->groups == 0 || routing->group_best == 2 ||
           export_refuse(export, "model.topk_method", "group_limited_greedy",
                         "its groups are chosen by the sum of their two best experts", error);
}

gboolean torchtitan_check_model(const Export *export, GError **error)
{
    const Model *model = export->plan->model;
    const Kind *kind = find_kind(model);
    const guint cp = export->plan->layout.size[AXIS_CP];
    Routing routing = {0};

    if (!check_kind(export, kind, error) || !check_experts(export, kind, &routing, error))
        return FALSE;
    return kind != &deepseek || cp == 1 || find_flavor(model, &routing) == NULL ||
           export_refuse_uint(export, "layout.cp", cp,
                              "its flavors of deepseek_v3 have attn_type flex, which context "
                              "parallelism does not take",
                              error);
}

/* ---- its words ---- */

static void append_experts(GString *text, const Model *model, const Routing *routing)
{
    const Experts *experts = &model->experts;

    g_string_append_printf(text,
                           ", moe_inter_dim %u, num_experts %u, num_shared_experts %u, top_k %u, "
                           "score_func %s, route_norm %s, route_scale %g",
                           experts->ffn, experts->count,
                           (guint)(experts->shared_ffn / MAX(experts->ffn, 1)), experts->top_k,
                           routing->sigmoid ? "sigmoid" : "softmax",
                           routing->normalised ? "True" : "False", routing->scale);
    if (routing->groups != 0)
        g_string_append_printf(text, ", num_expert_groups %u, num_limited_groups %u",
                               routing->groups, routing->top_groups);
}

/* What a flavor of that shape is made of, as its classes of arguments call it. */
static char *describe(const Model *model, const Routing *routing)
{
    const LatentAttention *latent = &model->latent;
    GString *text = g_string_new(NULL);

    g_string_append_printf(text,
                           "dim %u, n_layers %u, n_heads %u, n_kv_heads %u, vocab_size %u, "
                           "rope_theta %g, norm_eps %g, feed-forward %u",
                           model->hidden, model->layers, model->heads, model->kv_heads,
                           model->vocab, model->rope_theta, model->norm_eps, model->ffn);
    if (has(model, FEATURE_QK_NORM))
        g_string_append_printf(text, ", head_dim %u, qk_norm True, enable_weight_tying %s",
                               model->head_dim, model->tied ? "True" : "False");
    if (has(model, FEATURE_LATENT))
        g_string_append_printf(text,
                               ", n_dense_layers %u, q_lora_rank %u, kv_lora_rank %u, "
                               "qk_nope_head_dim %u, qk_rope_head_dim %u, v_head_dim %u",
                               model->experts.first, latent->q_rank, latent->kv_rank,
                               latent->plain_dim, latent->rope_dim, latent->value_dim);
    if (model->experts.count > 0)
        append_experts(text, model, routing);
    return g_string_free(text, FALSE);
}

static void note_experts(Export *export, const Kind *kind)
{
    const Plan *plan = export->plan;

    if (plan->model->experts.count == 0)
        return;
    if (kind == &deepseek)
        export_note(export, "left to torchtitan: a bias balances the experts' load "
                            "(load_balance_coeff); the plan takes it as even");
    if (layout_ep(&plan->layout) == 1)
        export_note(export, "left to torchtitan: without expert parallelism a block's experts are "
                            "gathered with the rest of it, the plan gathers them apart");
}

/* The file names a flavor; sizes are in torchtitan's code. */
gboolean torchtitan_write_model(Export *export, GError **error)
{
    const Plan *plan = export->plan;
    const Model *model = plan->model;
    const Kind *kind = find_kind(model);
    const gboolean sparse = model->experts.count > 0;
    Routing routing = {0};

    if (sparse && !routing_read(model, &routing, error))
        return FALSE;
    const char *known = find_flavor(model, &routing);
    g_autofree char *flavor = g_strdup(known != NULL ? known : model->name);
    g_autofree char *shape = describe(model, &routing);

    g_strcanon(flavor, G_CSET_A_2_Z G_CSET_a_2_z G_CSET_DIGITS "._-", '_');
    if (known == NULL)
        export_note(export,
                    "torchtitan has no flavor of this shape yet: add \"%s\" to its %s with %s",
                    flavor, kind->name, shape);
    note_experts(export, kind);
    g_string_append_printf(export->text, "\n[model]\nname = \"%s\"\nflavor = \"%s\"\n", kind->name,
                           flavor);
    if (plan->workload.recipe->precision == DTYPE_FP8)
        g_string_append_printf(export->text, "converters = [\"quantize.linear.float8\"%s]\n",
                               sparse ? ", \"quantize.grouped_mm.float8\"" : "");
    return TRUE;
}
