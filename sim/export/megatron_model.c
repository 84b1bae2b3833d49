#include "sim/export/megatron_model.h"

#include "sim/base/json.h"
#include "sim/export/routing.h"

#include <math.h>
#include <string.h>

static gboolean has(const Model *model, guint32 features)
{
    return (model->features & features) == features;
}

/* ---- positions ---- */

/* Of YaRN latent attention takes these from arguments, the others are built in. */
static gboolean write_yarn(Export *export, const JsonText *json, const char *where, GError **error)
{
    const struct {
        const char *name;
        double built_in;
        const char *option;
    } fields[] = {
        {"factor", 1, "--rotary-scaling-factor"},
        {"mscale", 1, "--mscale"},
        {"mscale_all_dim", 0, "--mscale-all-dim"},
        {"beta_fast", 32, NULL},
        {"beta_slow", 1, NULL},
        {"original_max_position_embeddings", 4096, NULL},
    };

    g_string_append(export->text, "--rope-type yarn\n");
    for (guint i = 0; i < G_N_ELEMENTS(fields); i++) {
        g_autofree char *field = g_strdup_printf("%s.%s", where, fields[i].name);
        double value = fields[i].built_in;

        if (!json_optional_double(json, field, 0, 1e9, &value, error))
            return FALSE;
        if (fields[i].option != NULL)
            g_string_append_printf(export->text, "%s %g\n", fields[i].option, value);
        else if (value != fields[i].built_in) {
            g_autofree char *said = g_strconcat("model.", field, NULL);
            g_autofree char *text = g_strdup_printf("%g", value);
            g_autofree char *why = g_strdup_printf("it has %g built in", fields[i].built_in);

            return export_refuse(export, said, text, why, error);
        }
    }
    return TRUE;
}

/* Its latent attention stretches positions as YaRN does unless told. */
static gboolean write_latent_positions(Export *export, GError **error)
{
    const Model *model = export->plan->model;
    g_autoptr(JsonText) json = json_parse(model->config_text, model->name, error);
    const char *type = "default";

    if (json == NULL)
        return FALSE;
    const char *where = json_has(json, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    g_autofree char *old_field = g_strconcat(where, ".type", NULL);
    g_autofree char *field = g_strconcat(where, ".rope_type", NULL);
    if (!json_optional_string(json, old_field, &type, error) ||
        !json_optional_string(json, field, &type, error))
        return FALSE;
    if (strcmp(type, "yarn") == 0)
        return write_yarn(export, json, where, error);
    if (strcmp(type, "default") != 0)
        return export_refuse(export, "model.rope_scaling.rope_type", type,
                             "its latent attention has yarn, or none", error);
    /* Its fused kernel there is YaRN's. */
    g_string_append(export->text, "--rope-type rope\n--no-rope-fusion\n");
    return TRUE;
}

/* Scaling without latent attention: Llama 3's, of which the factor alone is an argument. */
static gboolean write_plain_positions(Export *export, GError **error)
{
    const Model *model = export->plan->model;
    const RopeScaling *scaling = &model->rope_scaling;

    if (has(model, FEATURE_ROPE_SCALED))
        return export_refuse(export, "model.rope_scaling", "{...}",
                             "beside latent attention it has Llama 3's only", error);
    if (has(model, FEATURE_ROPE_PAIRS))
        g_string_append(export->text, "--rotary-interleaved\n");
    if (scaling->factor == 1.0)
        return TRUE;
    if (scaling->low_freq_factor != 1.0 || scaling->high_freq_factor != 4.0 ||
        scaling->original_max_seq != 8192)
        return export_refuse(export, "model.rope_scaling", "{...}",
                             "it has low_freq_factor 1, high_freq_factor 4 and "
                             "original_max_position_embeddings 8192 built in",
                             error);
    g_string_append_printf(export->text, "--use-rope-scaling\n--rope-scaling-factor %g\n",
                           scaling->factor);
    return TRUE;
}

static gboolean write_positions(Export *export, GError **error)
{
    const Model *model = export->plan->model;

    if (!has(model, FEATURE_ROPE)) {
        g_string_append_printf(export->text, "--position-embedding-type %s\n",
                               has(model, FEATURE_POSITIONS) ? "learned_absolute" : "none");
        return TRUE;
    }
    if (model->rope_theta != floor(model->rope_theta)) {
        g_autofree char *value = g_strdup_printf("%g", model->rope_theta);

        return export_refuse(export, "model.rope_theta", value, "--rotary-base is an integer",
                             error);
    }
    g_string_append_printf(export->text,
                           "--position-embedding-type rope\n--rotary-base %.0f\n"
                           "--rotary-percent 1.0\n",
                           model->rope_theta);
    return has(model, FEATURE_LATENT) ? write_latent_positions(export, error)
                                      : write_plain_positions(export, error);
}

/* ---- attention ---- */

/* Its norms in latent attention are those of the low ranks, elsewhere those of each head. */
static gboolean write_latent(Export *export, GError **error)
{
    const Model *model = export->plan->model;
    const LatentAttention *latent = &model->latent;

    if ((model->features & (FEATURE_QKV_BIAS | FEATURE_O_BIAS)) != 0)
        return export_refuse(export, "model.attention_bias", "true",
                             "its latent attention has no biases", error);
    g_string_append(export->text, "--multi-latent-attention\n--qk-layernorm\n");
    if (has(model, FEATURE_Q_RANK))
        g_string_append_printf(export->text, "--q-lora-rank %u\n", latent->q_rank);
    g_string_append_printf(export->text,
                           "--kv-lora-rank %u\n--qk-head-dim %u\n--qk-pos-emb-head-dim %u\n"
                           "--v-head-dim %u\n",
                           latent->kv_rank, latent->plain_dim, latent->rope_dim, latent->value_dim);
    return TRUE;
}

/* A window of that many tokens, the query's own among them. */
static gboolean write_window(Export *export, GError **error)
{
    const Plan *plan = export->plan;
    const guint window = plan->model->sliding_window;

    if (window == 0 || plan->workload.seq_len <= window)
        return TRUE;
    if (plan->layout.size[AXIS_CP] > 1)
        return export_refuse_uint(export, "layout.cp", plan->layout.size[AXIS_CP],
                                  "the model's sliding_window is shorter than the sequence, and "
                                  "whether its kernels split that is up to TransformerEngine",
                                  error);
    g_string_append_printf(export->text, "--window-size %u,0\n", window - 1);
    return TRUE;
}

static gboolean write_attention(Export *export, GError **error)
{
    const Model *model = export->plan->model;
    const gboolean latent = has(model, FEATURE_LATENT);

    if (has(model, FEATURE_QK_NORM_OF_ALL))
        return export_refuse(export, "model.model_type", model->model_type,
                             "--qk-layernorm is of each head, not of all heads at once", error);
    g_string_append_printf(export->text, "--num-attention-heads %u\n--kv-channels %u\n",
                           model->heads, model_value_dim(model));
    if (latent)
        return write_latent(export, error);
    if (model->kv_heads != model->heads)
        g_string_append_printf(export->text, "--group-query-attention\n--num-query-groups %u\n",
                               model->kv_heads);
    if (has(model, FEATURE_QK_NORM))
        g_string_append(export->text, "--qk-layernorm\n");
    return write_window(export, error);
}

/* ---- experts ---- */

/* Which blocks have experts: one number where they begin with the first, else a list. */
static void write_sparse_blocks(Export *export)
{
    const Model *model = export->plan->model;
    const Experts *experts = &model->experts;
    const guint left = model->layers - experts->first, groups = left / experts->every;
    GString *text = export->text;

    g_string_append(text, "--moe-layer-freq ");
    if (experts->first == 0) {
        g_string_append_printf(text, "%u\n", experts->every);
        return;
    }
    g_string_append_printf(text, "[0]*%u", experts->first);
    if (experts->every == 1)
        g_string_append_printf(text, "+[1]*%u", left);
    else if (groups > 0)
        g_string_append_printf(text, "+([1]+[0]*%u)*%u", experts->every - 1, groups);
    if (left % experts->every > 0)
        g_string_append_printf(text, "+[1]+[0]*%u", left % experts->every - 1);
    g_string_append_c(text, '\n');
}

/* Its groups are as good as the sum of their best top-k / groups experts. */
static gboolean write_groups(Export *export, const Routing *routing, GError **error)
{
    if (routing->groups == 0)
        return TRUE;
    if (export->plan->model->experts.top_k / routing->top_groups != routing->group_best)
        return export_refuse_uint(export, "model.topk_group", routing->top_groups,
                                  "its groups are chosen by the sum of their best "
                                  "num_experts_per_tok / topk_group experts",
                                  error);
    g_string_append_printf(export->text, "--moe-router-num-groups %u\n--moe-router-group-topk %u\n",
                           routing->groups, routing->top_groups);
    return TRUE;
}

/* Softmax over those chosen is what normalising the weights of softmax over all makes of them;
 * sigmoid's it always normalises. */
static gboolean write_routing(Export *export, const Routing *routing, GError **error)
{
    GString *text = export->text;

    if (export->plan->model->experts.top_k == 1 ? routing->normalised
                                                : routing->sigmoid && !routing->normalised)
        return export_refuse(export, "model.norm_topk_prob", routing->normalised ? "true" : "false",
                             "it normalises the weights of a sigmoid router's experts, and no "
                             "expert's that is alone",
                             error);
    if (routing->sigmoid)
        g_string_append(text, "--moe-router-score-function sigmoid\n");
    else if (!routing->normalised)
        g_string_append(text, "--moe-router-pre-softmax\n");
    if (routing->biased)
        g_string_append(text, "--moe-router-enable-expert-bias\n");
    if (routing->scale != 1)
        g_string_append_printf(text, "--moe-router-topk-scaling-factor %g\n", routing->scale);
    return write_groups(export, routing, error);
}

static gboolean write_experts(Export *export, GError **error)
{
    const Model *model = export->plan->model;
    const Experts *experts = &model->experts;
    Routing routing;

    if (!has(model, FEATURE_EXPERTS))
        return TRUE;
    if (!routing_read(model, &routing, error))
        return FALSE;
    export_note(export, "left to you: a loss that balances the experts' load "
                        "(--moe-router-load-balancing-type, --moe-aux-loss-coeff); the plan has "
                        "none, and takes the load as even");
    g_string_append_printf(export->text,
                           "--num-experts %u\n--moe-router-topk %u\n--moe-ffn-hidden-size %u\n"
                           "--moe-router-load-balancing-type none\n--moe-grouped-gemm\n"
                           "--moe-token-dispatcher-type alltoall\n",
                           experts->count, experts->top_k, experts->ffn);
    write_sparse_blocks(export);
    if (has(model, FEATURE_SHARED_EXPERTS))
        g_string_append_printf(
            export->text, "--moe-shared-expert-intermediate-size %" G_GUINT64_FORMAT "\n%s",
            experts->shared_ffn,
            has(model, FEATURE_SHARED_SCALE) ? "--moe-shared-expert-gate\n" : "");
    return write_routing(export, &routing, error);
}

/* ---- blocks ---- */

/* All matrices have a bias there, or none, or queries, keys and values alone. */
static gboolean write_biases(Export *export, GError **error)
{
    const guint32 all = FEATURE_QKV_BIAS | FEATURE_O_BIAS | FEATURE_MLP_BIAS;
    const guint32 biases = export->plan->model->features & all;

    if (biases == all)
        return TRUE;
    if (biases != 0 && biases != FEATURE_QKV_BIAS)
        return export_refuse(export, "model.model_type", export->plan->model->model_type,
                             "biases are on all matrices, on queries, keys and values, or on none",
                             error);
    g_string_append(export->text, "--disable-bias-linear\n");
    if (biases != 0)
        g_string_append(export->text, "--add-qkv-bias\n");
    return TRUE;
}

/* Its GELU has the tanh form where it is fused with a bias. */
static gboolean write_block(Export *export, GError **error)
{
    const Model *model = export->plan->model;
    const gboolean gated = has(model, FEATURE_GATED);

    if (!gated && !has(model, FEATURE_MLP_BIAS))
        return export_refuse(export, "model.model_type", model->model_type,
                             "its GELU without a bias is not the tanh form", error);
    g_string_append_printf(export->text, "--normalization %s\n--norm-epsilon %g\n%s",
                           has(model, FEATURE_LAYER_NORM) ? "LayerNorm" : "RMSNorm",
                           model->norm_eps, gated ? "--swiglu\n" : "");
    return write_biases(export, error);
}

gboolean megatron_write_model(Export *export, GError **error)
{
    const Plan *plan = export->plan;
    const Model *model = plan->model;
    GString *text = export->text;

    g_string_append_printf(text, "--num-layers %u\n--hidden-size %u\n--ffn-hidden-size %u\n",
                           model->layers, model->hidden, model->ffn);
    if (!write_attention(export, error))
        return FALSE;
    g_string_append_printf(text, "--seq-length %u\n--max-position-embeddings %u\n",
                           plan->workload.seq_len, model->max_seq);
    if (!write_positions(export, error) || !write_block(export, error) ||
        !write_experts(export, error))
        return FALSE;
    g_string_append_printf(text,
                           "--attention-dropout 0.0\n--hidden-dropout 0.0\n"
                           "--init-method-std %g\n",
                           model->init_std);
    if (!model->tied)
        g_string_append(text, "--untie-embeddings-and-output-weights\n");
    /* Unpadded, as the plan counts it; its default rounds up to a multiple of 128. */
    g_string_append_printf(text, "--vocab-size %u\n--make-vocab-size-divisible-by 1\n",
                           model->vocab);
    return TRUE;
}
