#include "sim/backtest/shape.h"

#include "sim/backtest/experts.h"

#include <math.h>
#include <string.h>

/* A block with a gate or without, a head of its own or not. */
typedef struct {
    guint heads, kv_heads, ffn, vocab;
    gboolean gated, tied;
} Shape;

static double parameters(const Record *record, const Shape *shape)
{
    const double hidden = record->hidden, head_dim = hidden / shape->heads;
    const double attention = 2 * hidden * hidden + 2 * hidden * shape->kv_heads * head_dim;
    const double mlp = (shape->gated ? 3.0 : 2.0) * hidden * shape->ffn;

    return record->layers * (attention + mlp) + (shape->tied ? 1.0 : 2.0) * hidden * shape->vocab;
}

/* Llama's blocks have a gate, whatever their width (a tied one of 16 layers 2048 wide has as many
 * parameters as GPT's with a head of its own). */
static gboolean is_llama(const Record *record)
{
    g_autofree char *name = g_ascii_strdown(record->model, -1);

    return strstr(name, "llama") != NULL;
}

/* 14.0 may mean 13.96: what is nearest is taken, not what is equal. */
static void choose(const Record *record, Shape *shape)
{
    const gboolean llama = is_llama(record);
    double nearest = INFINITY;

    shape->gated = llama || shape->ffn != 4 * record->hidden;
    if (record->params_b == 0)
        return;
    for (guint i = 0; i < 4; i++) {
        Shape other = *shape;

        other.gated = i % 2 == 1;
        other.tied = i / 2 == 1;
        if (llama && !other.gated)
            continue;
        const double off = fabs(parameters(record, &other) - record->params_b * 1e9);
        if (off >= nearest)
            continue;
        nearest = off;
        *shape = other;
    }
}

static guint pad(guint value, guint multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* Llama's block where it is gated; without a gate GPT-2's, or Starcoder2's where heads share keys.
 */
static char *config_text(const Record *record, const Shape *shape, guint vocab)
{
    const char *tied = shape->tied ? "true" : "false";

    if (!shape->gated && shape->kv_heads == shape->heads)
        return g_strdup_printf(
            "{\"model_type\": \"gpt2\", \"n_embd\": %u, \"n_inner\": %u, \"n_layer\": %u, "
            "\"n_head\": %u, \"vocab_size\": %u, \"n_positions\": %u, "
            "\"tie_word_embeddings\": %s}",
            record->hidden, shape->ffn, record->layers, shape->heads, vocab, record->seq_len, tied);
    return g_strdup_printf(
        "{\"model_type\": \"%s\", \"hidden_size\": %u, \"intermediate_size\": %u, "
        "\"num_hidden_layers\": %u, \"num_attention_heads\": %u, \"num_key_value_heads\": %u, "
        "\"vocab_size\": %u, \"max_position_embeddings\": %u, \"hidden_act\": \"%s\", "
        "\"tie_word_embeddings\": %s}",
        shape->gated ? "llama" : "starcoder2", record->hidden, shape->ffn, record->layers,
        shape->heads, shape->kv_heads, vocab, record->seq_len,
        shape->gated ? "silu" : "gelu_pytorch_tanh", tied);
}

gboolean shape_has_experts(const Record *record)
{
    return record->ep > 1 || record->active_params_b > 0;
}

/* NeMo fine-tunes on SQuAD, whose examples are packed into sequences and see only themselves (its
 * user guide, "Sequence Packing"): some 120 words of context, 15 of question and answer, at 1.3
 * tokens a word.  As many pairs are in windows of half an example. */
enum { PACKED_TOKENS = 180 };

static gboolean is_packed(const Record *record)
{
    return strstr(record->model, "SFT") != NULL && strstr(record->framework, "NeMo") != NULL;
}

Model *shape_model(const Record *record, guint tp, const char **reason)
{
    const guint heads = record->heads != 0 ? record->heads : MAX(1, record->hidden / 128);
    Shape shape = {
        .heads = heads,
        .kv_heads = record->kv_heads != 0 ? record->kv_heads : heads,
        .ffn = record->ffn != 0 ? record->ffn : 4 * record->hidden,
        .vocab = record->vocab != 0 ? record->vocab : 50257,
    };

    *reason = "no layers, hidden or seq_len";
    if (record->layers == 0 || record->hidden == 0 || record->seq_len == 0)
        return NULL;
    const guint vocab = pad(shape.vocab, 128 * tp);
    g_autofree char *text = NULL;
    if (shape_has_experts(record)) {
        text = experts_config_text(record, vocab);
        *reason = "a mixture of experts that is not known";
    } else {
        choose(record, &shape);
        text = config_text(record, &shape, vocab);
    }
    if (text == NULL)
        return NULL;
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_parse(text, record->id, record->model, &error);
    *reason = "a shape that is not a model's";
    if (model == NULL || !model_check_plannable(model, &error))
        return NULL;
    if (is_packed(record))
        model->sliding_window = PACKED_TOKENS / 2;
    return g_steal_pointer(&model);
}
