/* A file of tests/golden/: the model, the data and the JSON, as tests/golden/README.md says. */
#pragma once

#include "tests/exec/layout_case.h"

#include <json-glib/json-glib.h>

/* fp32 alone moves a loss or norm by up to 3e-6 (worst_difference_to_fp64 of the files). */
#define GOLDEN_RUN_TOLERANCE 1e-5
/* Of a sum: beside the sum of magnitudes, which is at most sqrt(n x sum of squares). */
#define GOLDEN_SUM_TOLERANCE 2e-6

typedef struct {
    JsonNode *root;
    JsonObject *json;
    Model *model; /* NULL when refused */
    char *refusal;
    Data *data;
    guint batch, seq;
} Golden;

static inline Golden golden_load(const char *name)
{
    g_autofree char *path = g_strdup_printf("tests/golden/%s.json", name);
    g_autoptr(JsonParser) parser = json_parser_new();
    g_autoptr(GError) error = NULL;
    g_autoptr(GError) refusal = NULL;
    Golden golden = {0};

    json_parser_load_from_file(parser, path, &error);
    g_assert_no_error(error);
    golden.root = json_parser_steal_root(parser);
    golden.json = json_node_get_object(golden.root);
    golden.batch = (guint)json_object_get_int_member(golden.json, "global_batch");
    golden.seq = (guint)json_object_get_int_member(golden.json, "seq_len");
    golden.model = model_parse(json_object_get_string_member(golden.json, "config_json"), path,
                               name, &refusal);
    if (golden.model == NULL) {
        golden.refusal = g_strdup(refusal->message);
        return golden;
    }
    JsonObject *json = json_object_get_object_member(golden.json, "text");
    const LayoutText text = {
        .seed = (guint64)json_object_get_int_member(json, "seed"),
        .bytes = (guint)json_object_get_int_member(json, "bytes"),
        .first = (guint)json_object_get_int_member(json, "first"),
        .count = (guint)json_object_get_int_member(json, "count"),
    };
    golden.data = layout_data_new(&text, golden.model->vocab, golden.seq);
    return golden;
}

static inline void golden_clear(Golden *golden)
{
    json_node_unref(golden->root);
    model_free(golden->model);
    g_free(golden->refusal);
    data_free(golden->data);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Golden, golden_clear)

/* What layout_bind() binds is what PyTorch's AdamW was given. */
static inline gboolean golden_setting_is_bound(JsonObject *adamw)
{
    return json_object_get_double_member(adamw, "beta1") == 0.9 &&
           json_object_get_double_member(adamw, "beta2") == 0.95 &&
           json_object_get_double_member(adamw, "eps") == 1e-8 &&
           json_object_get_double_member(adamw, "weight_decay") == 0.1;
}
