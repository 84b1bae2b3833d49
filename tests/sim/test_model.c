#include "sim/base/error.h"
#include "sim/input/model.h"
#include "tests/mutate.h"
#include "tests/suite.h"

#include <math.h>
#include <string.h>

/* Counts as the publishers print them: model cards, safetensors indices. */
static const struct {
    const char *name;
    guint hidden, ffn, layers, heads, kv_heads, head_dim, vocab; /* head_dim 0: left out */
    gboolean tied;
    guint64 parameters;
} public_models[] = {
    {"llama-2-7b", 4096, 11008, 32, 32, 32, 0, 32000, FALSE, 6738415616},
    {"llama-2-13b", 5120, 13824, 40, 40, 40, 0, 32000, FALSE, 13015864320},
    {"llama-2-70b", 8192, 28672, 80, 64, 8, 0, 32000, FALSE, 68976648192},
    {"llama-3-8b", 4096, 14336, 32, 32, 8, 0, 128256, FALSE, 8030261248},
    {"llama-3.1-70b", 8192, 28672, 80, 64, 8, 0, 128256, FALSE, 70553706496},
    {"llama-3.1-405b", 16384, 53248, 126, 128, 8, 0, 128256, FALSE, 405853388800},
    {"llama-3.2-1b", 2048, 8192, 16, 32, 8, 64, 128256, TRUE, 1235814400},
    {"llama-3.2-3b", 3072, 8192, 28, 24, 8, 128, 128256, TRUE, 3212749824},
    {"mistral-7b-v0.1", 4096, 14336, 32, 32, 8, 0, 32000, FALSE, 7241732096},
    {"mistral-7b-v0.3", 4096, 14336, 32, 32, 8, 0, 32768, FALSE, 7248023552},
    {"mistral-nemo-12b", 5120, 14336, 40, 32, 8, 128, 131072, FALSE, 12247782400},
    {"smollm-135m", 576, 1536, 30, 9, 3, 0, 49152, TRUE, 134515008},
    {"smollm-360m", 960, 2560, 32, 15, 5, 0, 49152, TRUE, 361821120},
    {"smollm-1.7b", 2048, 8192, 24, 32, 32, 0, 49152, TRUE, 1711376384},
    {"tinyllama-1.1b", 2048, 5632, 22, 32, 4, 0, 32000, FALSE, 1100048384},
    {"yi-34b", 7168, 20480, 60, 56, 8, 0, 64000, FALSE, 34388917248},
    {"codellama-34b", 8192, 22016, 48, 64, 8, 0, 32000, FALSE, 33743970304},
};

static Model *public_model(guint i)
{
    const gboolean mistral = g_str_has_prefix(public_models[i].name, "mistral");
    g_autofree char *head_dim =
        public_models[i].head_dim != 0
            ? g_strdup_printf("\"head_dim\": %u, ", public_models[i].head_dim)
            : g_strdup("");
    g_autofree char *text = g_strdup_printf(
        "{\"model_type\": \"%s\", \"hidden_size\": %u, \"intermediate_size\": %u, "
        "\"num_hidden_layers\": %u, \"num_attention_heads\": %u, \"num_key_value_heads\": %u, "
        "%s\"vocab_size\": %u, \"tie_word_embeddings\": %s}",
        mistral ? "mistral" : "llama", public_models[i].hidden, public_models[i].ffn,
        public_models[i].layers, public_models[i].heads, public_models[i].kv_heads, head_dim,
        public_models[i].vocab, public_models[i].tied ? "true" : "false");
    g_autoptr(GError) error = NULL;
    Model *model = model_parse(text, "test", public_models[i].name, &error);

    ck_assert_msg(model != NULL, "%s", error != NULL ? error->message : "");
    return model;
}

START_TEST(public_models_have_their_published_number_of_parameters)
{
    g_autoptr(Model) model = public_model((guint)_i);

    ck_assert_uint_eq(model_parameters(model), public_models[_i].parameters);
}
END_TEST

START_TEST(listed_tensors_add_up_to_the_parameters_and_have_names_of_their_own)
{
    g_autoptr(Model) model = public_model((guint)_i);
    g_autoptr(GArray) tensors = model_tensors(model);
    g_autoptr(GHashTable) names = g_hash_table_new(g_str_hash, g_str_equal);
    guint64 elements = 0;

    for (guint i = 0; i < tensors->len; i++) {
        const ParamShape *tensor = &g_array_index(tensors, ParamShape, i);

        elements += tensor->rows * tensor->cols;
        ck_assert(g_hash_table_add(names, tensor->name));
    }
    ck_assert_uint_eq(tensors->len, 9 * model->layers + (model->tied ? 2 : 3));
    ck_assert_uint_eq(elements, model_parameters(model));
}
END_TEST

/* ---- one small file and changes to it ---- */

static const char *const small =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 8, "
    "\"intermediate_size\": 16, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"vocab_size\": 10}";

/* @base with @json members added at its end. */
static char *with(const char *json)
{
    return g_strdup_printf("%.*s, %s}", (int)strlen(small) - 1, small, json);
}

static Model *parse_with(const char *json, GError **error)
{
    g_autofree char *text = with(json);

    return model_parse(text, "test", "small", error);
}

START_TEST(defaults_are_those_of_transformers)
{
    g_autoptr(Model) model = model_parse(small, "test", NULL, NULL);

    ck_assert_str_eq(model->name, "llama");
    ck_assert_uint_eq(model->head_dim, 2);
    ck_assert_uint_eq(model->max_seq, 2048);
    ck_assert_uint_eq(model->sliding_window, 0);
    ck_assert(!model->tied);
    ck_assert_double_eq(model->norm_eps, 1e-6);
    ck_assert_double_eq(model->rope_theta, 10000.0);
    ck_assert_double_eq(model->init_std, 0.02);
    ck_assert_double_eq(model->rope_scaling.factor, 1.0);
}
END_TEST

START_TEST(shapes_are_those_of_the_hugging_face_file)
{
    static const struct {
        const char *name;
        guint64 rows, cols;
        guint dims;
    } expected[] = {
        {"model.embed_tokens.weight", 10, 8, 2},
        {"model.layers.0.self_attn.q_proj.weight", 8, 8, 2},
        {"model.layers.0.self_attn.k_proj.weight", 4, 8, 2},
        {"model.layers.0.self_attn.v_proj.weight", 4, 8, 2},
        {"model.layers.0.self_attn.o_proj.weight", 8, 8, 2},
        {"model.layers.0.mlp.gate_proj.weight", 16, 8, 2},
        {"model.layers.0.mlp.up_proj.weight", 16, 8, 2},
        {"model.layers.0.mlp.down_proj.weight", 8, 16, 2},
        {"model.layers.0.input_layernorm.weight", 8, 1, 1},
        {"model.layers.0.post_attention_layernorm.weight", 8, 1, 1},
        {"model.layers.1.self_attn.q_proj.weight", 8, 8, 2},
    };
    g_autoptr(Model) model = model_parse(small, "test", NULL, NULL);
    g_autoptr(GArray) tensors = model_tensors(model);

    for (guint i = 0; i < G_N_ELEMENTS(expected); i++) {
        const ParamShape *tensor = &g_array_index(tensors, ParamShape, i);

        ck_assert_str_eq(tensor->name, expected[i].name);
        ck_assert_uint_eq(tensor->rows, expected[i].rows);
        ck_assert_uint_eq(tensor->cols, expected[i].cols);
        ck_assert_uint_eq(tensor->dims, expected[i].dims);
    }
    ck_assert_str_eq(g_array_index(tensors, ParamShape, 19).name, "model.norm.weight");
    ck_assert_str_eq(g_array_index(tensors, ParamShape, 20).name, "lm_head.weight");
}
END_TEST

START_TEST(tying_removes_the_head)
{
    g_autoptr(Model) untied = model_parse(small, "test", NULL, NULL);
    g_autoptr(Model) tied = parse_with("\"tie_word_embeddings\": true", NULL);
    g_autoptr(GArray) root = model_unit_params(tied, UNIT_ROOT);

    ck_assert_uint_eq(root->len, 2);
    ck_assert_uint_eq(model_parameters(untied) - model_parameters(tied), 80);
}
END_TEST

START_TEST(kv_heads_default_to_the_heads_of_llama_and_to_8_in_mistral)
{
    static const char *const format =
        "{\"model_type\": \"%s\", \"hidden_size\": 64, \"intermediate_size\": 16, "
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 16, \"vocab_size\": 10%s}";
    g_autofree char *llama_text = g_strdup_printf(format, "llama", "");
    g_autofree char *mistral_text = g_strdup_printf(format, "mistral", "");
    g_autofree char *null_text = g_strdup_printf(format, "mistral", ", \"sliding_window\": null");
    g_autoptr(Model) llama = model_parse(llama_text, "test", NULL, NULL);
    g_autoptr(Model) mistral = model_parse(mistral_text, "test", NULL, NULL);
    g_autoptr(Model) no_window = model_parse(null_text, "test", NULL, NULL);

    ck_assert_uint_eq(llama->kv_heads, 16);
    ck_assert_uint_eq(mistral->kv_heads, 8);
    ck_assert_uint_eq(mistral->sliding_window, 4096);
    ck_assert_uint_eq(no_window->sliding_window, 0);
}
END_TEST

START_TEST(rope_settings_are_read_in_both_forms)
{
    static const char *const llama3 =
        "\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, "
        "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192";
    g_autofree char *old_form =
        g_strdup_printf("\"rope_theta\": 5e5, \"rope_scaling\": {%s}", llama3);
    g_autofree char *new_form =
        g_strdup_printf("\"rope_parameters\": {\"rope_theta\": 500000, %s}", llama3);
    g_autoptr(Model) old_model = parse_with(old_form, NULL);
    g_autoptr(Model) new_model = parse_with(new_form, NULL);

    ck_assert_double_eq(old_model->rope_theta, 5e5);
    ck_assert_double_eq(new_model->rope_theta, 5e5);
    ck_assert_mem_eq(&old_model->rope_scaling, &new_model->rope_scaling, sizeof(RopeScaling));
    ck_assert_double_eq(new_model->rope_scaling.factor, 8.0);
    ck_assert_uint_eq(new_model->rope_scaling.original_max_seq, 8192);
}
END_TEST

/* Of Llama 3.1 8B, worked with Python from transformers' formula. */
START_TEST(llama3_scaling_leaves_short_waves_and_stretches_long_ones)
{
    static const struct {
        guint i;
        double frequency;
    } expected[] = {
        {0, 1.0},
        {20, 0.016560440080994446},
        {28, 0.003211445994752591}, /* the last that is left alone */
        {29, 0.002166570763503359},
        {32, 0.0005248461609929547},
        {34, 0.0001785078127679964},
        {35, 9.556212353964683e-05}, /* from here on divided by 8 */
        {63, 3.068925988914511e-07},
    };
    g_autoptr(Model) model = public_model(3);
    double inverse[64];

    model->rope_theta = 5e5;
    model->rope_scaling = (RopeScaling){8.0, 1.0, 4.0, 8192};
    model_rope_frequencies(model, inverse);
    for (guint k = 0; k < G_N_ELEMENTS(expected); k++)
        ck_assert_double_eq_tol(inverse[expected[k].i] / expected[k].frequency, 1.0, 1e-12);
}
END_TEST

START_TEST(model_flops_have_the_worked_values)
{
    g_autoptr(Model) llama = public_model(3);
    g_autoptr(Model) mistral = public_model(8);

    /* 6 * 7504658432 * 8192 + 6 * 32 * 32 * 128 * 8192 * 8192 */
    ck_assert_double_eq(model_step_flops(llama, 8192, 8192), 421645529382912.0);
    ck_assert_double_eq(model_step_flops(llama, 16 * 8192, 8192), 16 * 421645529382912.0);
    ck_assert_uint_eq(mistral->sliding_window, 4096);
    ck_assert_double_eq(model_step_flops(mistral, 32768, 32768), 1595872408240128.0);
}
END_TEST

START_TEST(tying_does_not_change_model_flops)
{
    g_autoptr(Model) untied = model_parse(small, "test", NULL, NULL);
    g_autoptr(Model) tied = parse_with("\"tie_word_embeddings\": true", NULL);

    ck_assert_double_eq(model_step_flops(tied, 64, 16), model_step_flops(untied, 64, 16));
}
END_TEST

/* ---- refusals ---- */

static const struct {
    const char *added, *message;
} refused[] = {
    {"\"attention_bias\": 1", "\"attention_bias\" is 1; allowed: true or false"},
    {"\"hidden_act\": \"sine\"", "\"hidden_act\" is \"sine\"; allowed: silu, "},
    {"\"head_dim\": 3", "head_dim"},
    {"\"head_dim\": \"128\"", "\"128\" (a string)"},
    {"\"rms_norm_eps\": -1", "\"rms_norm_eps\" is -1"},
    {"\"rms_norm_eps\": NaN", "\"rms_norm_eps\" is \"NaN\""},
    {"\"rope_theta\": 0", "\"rope_theta\" is 0"},
    {"\"rope_scaling\": {\"rope_type\": \"llama3\"}", "\"rope_scaling.factor\" is missing"},
    {"\"rope_scaling\": 2.0", "\"rope_scaling\" is 2.0; allowed: an object"},
    {"\"partial_rotary_factor\": 1.5", "\"partial_rotary_factor\" is 1.5"},
    {"\"tie_word_embeddings\": 1", "allowed: true or false"},
    {"\"sliding_window\": -1", "\"sliding_window\" is -1"},
    {"\"max_position_embeddings\": 0", "\"max_position_embeddings\" is 0"},
    {"\"vocab_size\": 11", "\"vocab_size\" is there twice"},
};

START_TEST(what_the_project_does_not_know_is_refused_by_field_and_value)
{
    g_autoptr(GError) error = NULL;

    ck_assert_ptr_null(parse_with(refused[_i].added, &error));
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
    ck_assert_msg(strstr(error->message, refused[_i].message) != NULL, "%s", error->message);
    ck_assert_ptr_null(strchr(error->message, '\n'));
}
END_TEST

/* What can be counted but not computed: fields of one family, and what is said of them. */
static const struct {
    const char *added, *message;
} counted[] = {
    {"\"hidden_act\": \"gelu\"", "a gated MLP with another activation than silu"},
    {"\"partial_rotary_factor\": 0.5", "rotary embedding of a part of each head"},
    {"\"rope_interleaved\": true", "rotary embedding of neighbouring pairs"},
    {"\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}", "another type than llama3"},
    {"\"rope_scaling\": {\"rope_type\": \"yarn\"}", "another type than llama3"},
};

START_TEST(what_no_op_computes_is_counted_and_its_training_refused)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) plain = model_parse(small, "test", NULL, NULL);
    g_autoptr(Model) model = parse_with(counted[_i].added, NULL);

    ck_assert_ptr_null(model_untrainable(plain));
    ck_assert_ptr_nonnull(model);
    ck_assert(!model_check_trainable(model, &error));
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
    ck_assert_msg(strstr(error->message, counted[_i].message) != NULL, "%s", error->message);
    ck_assert_ptr_null(strchr(error->message, '\n'));
}
END_TEST

static const struct {
    const char *from, *to, *message;
} changed[] = {
    {"\"llama\"", "\"gpt2\"", "model_type \"gpt2\""},
    {"\"LlamaForCausalLM\"", "\"LlamaForSequenceClassification\"",
     "LlamaForSequenceClassification"},
    {"\"LlamaForCausalLM\"", "7", "\"architectures.0\" is 7"},
    {"\"model_type\": \"llama\", ", "\"model_type\": 5, ", "\"model_type\" is 5"},
    {"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", "allowed: divisors of"},
    {"\"num_attention_heads\": 4", "\"num_attention_heads\": 6", "\"hidden_size\" is 8"},
    {"\"hidden_size\": 8", "\"hidden_size\": 4", "is 1; allowed: even"}, /* head_dim 1 */
    {"\"hidden_size\": 8", "\"hidden_size\": 0", "\"hidden_size\" is 0"},
    {"\"hidden_size\": 8", "\"hidden_size\": \"8\"", "a string"},
    {"\"hidden_size\": 8", "\"hidden_size\": 8.5", "\"hidden_size\" is 8.5"},
    {"\"hidden_size\": 8", "\"n_embd\": 8", "\"hidden_size\" is missing"},
    {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 99999999", "is 99999999"},
    {"\"vocab_size\": 10", "\"vocab_size\": 4294967297", "is 4294967297"},
    {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 16384", NULL}, /* allowed by itself */
};

START_TEST(absurd_and_missing_sizes_are_refused)
{
    g_autofree char *text = replaced(small, changed[_i].from, changed[_i].to);
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_parse(text, "test", NULL, &error);

    if (changed[_i].message == NULL) {
        ck_assert_ptr_nonnull(model);
        return;
    }
    ck_assert_ptr_null(model);
    ck_assert_msg(strstr(error->message, changed[_i].message) != NULL, "%s", error->message);
}
END_TEST

START_TEST(sizes_that_would_overflow_together_are_refused)
{
    g_autoptr(GError) error = NULL;

    ck_assert_ptr_null(model_parse("{\"model_type\": \"llama\", \"hidden_size\": 1048576, "
                                   "\"intermediate_size\": 4194304, \"num_hidden_layers\": 16384, "
                                   "\"num_attention_heads\": 16384, \"head_dim\": 16384, "
                                   "\"vocab_size\": 67108864}",
                                   "test", NULL, &error));
    ck_assert_ptr_nonnull(strstr(error->message, "parameters; allowed: at most 1e+15"));
}
END_TEST

START_TEST(a_file_that_names_no_family_is_refused_with_the_known_ones)
{
    static const char *const texts[] = {"{\"hidden_size\": 8}", "{\"architectures\": []}",
                                        "{\"architectures\": [\"MambaForCausalLM\"]}"};

    for (guint i = 0; i < G_N_ELEMENTS(texts); i++) {
        g_autoptr(GError) error = NULL;

        ck_assert_ptr_null(model_parse(texts[i], "test", NULL, &error));
        ck_assert_ptr_nonnull(strstr(error->message, "LlamaForCausalLM"));
    }
}
END_TEST

START_TEST(architectures_stand_in_for_a_missing_model_type)
{
    g_autofree char *text = replaced(small, "\"model_type\": \"llama\", ", "");
    g_autoptr(Model) model = model_parse(text, "test", NULL, NULL);

    ck_assert_ptr_nonnull(model);
    ck_assert_str_eq(model->model_type, "llama");
}
END_TEST

START_TEST(infinity_that_nobody_reads_does_no_harm)
{
    g_autoptr(Model) model =
        parse_with("\"x\": [Infinity, -Infinity, NaN], \"y\": \"NaN\\\"\"", NULL);

    ck_assert_ptr_nonnull(model);
    ck_assert_ptr_nonnull(strstr(model->config_text, "[\"Infinity\", \"-Infinity\", \"NaN\"]"));
    ck_assert_ptr_nonnull(strstr(model->config_text, "\"NaN\\\"\""));
}
END_TEST

/* ---- files ---- */

START_TEST(shipped_models_load_by_name_folder_and_file)
{
    static const char *const places[] = {"tiny-1m", "TINY-1M", "models/tiny-1m", "models/tiny-1m/",
                                         "models/tiny-1m/config.json"};

    for (guint i = 0; i < G_N_ELEMENTS(places); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Model) model = model_load(places[i], "models", &error);

        ck_assert_msg(model != NULL, "%s: %s", places[i], error != NULL ? error->message : "");
        ck_assert_str_eq(model->name, "tiny-1m");
        ck_assert_uint_eq(model->vocab, 256);
        ck_assert_uint_eq(model_parameters(model) / 100000, 10);
    }
}
END_TEST

START_TEST(shipped_llamas_have_their_published_size)
{
    g_autoptr(Model) small_one = model_load("llama-3.1-8b", "models", NULL);
    g_autoptr(Model) large_one = model_load("llama-3.1-70b", "models", NULL);

    ck_assert_uint_eq(model_parameters(small_one), 8030261248);
    ck_assert_uint_eq(model_parameters(large_one), 70553706496);
    ck_assert_uint_eq(large_one->max_seq, 131072);
}
END_TEST

START_TEST(unknown_names_are_refused_with_the_nearest_model)
{
    g_autoptr(GError) error = NULL;

    ck_assert_ptr_null(model_load("llama-3.1-8", "models", &error));
    ck_assert_ptr_nonnull(strstr(error->message, "did you mean \"llama-3.1-8b\"?"));
    ck_assert_ptr_nonnull(strstr(error->message, "tiny-1m"));
    g_clear_error(&error);
    ck_assert_ptr_null(model_load("deepseek", "models", &error)); /* a part of a name */
    ck_assert_ptr_nonnull(strstr(error->message, "did you mean \"deepseek-v3\"?"));
}
END_TEST

/* Of families that read lists or much of their own, what follows their model_type. */
static const char *const damaged[] = {
    "llama\", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, "
    "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
    "\"original_max_position_embeddings\": 8192}, \"x\": [1, \"\\n\"]}",
    "nemotron-nas\", \"block_configs\": [{\"attention\": {\"n_heads_in_group\": 4}, \"ffn\": "
    "{\"ffn_mult\": 2.5}}, {\"attention\": {\"no_op\": true}, \"ffn\": {\"no_op\": true}}]}",
    "nemotron_h\", \"hybrid_override_pattern\": \"M*\", \"mamba_num_heads\": 4, "
    "\"mamba_head_dim\": 8, \"n_groups\": 2, \"ssm_state_size\": 16, \"conv_kernel\": 4}",
    "deepseek_v32\", \"num_experts_per_tok\": 2, \"n_routed_experts\": 4, "
    "\"moe_intermediate_size\": 16, \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 8, "
    "\"qk_rope_head_dim\": 4, \"v_head_dim\": 6, \"q_lora_rank\": 20, \"index_n_heads\": 2, "
    "\"index_head_dim\": 10, \"index_topk\": 5}",
};

START_TEST(damaged_files_give_an_error_or_a_model_never_a_crash)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(21 + (guint)_i);
    g_autofree char *base =
        g_strconcat("{\"hidden_size\": 64, \"intermediate_size\": 172, \"num_hidden_layers\": 2, "
                    "\"num_attention_heads\": 8, \"vocab_size\": 128, \"model_type\": \"",
                    damaged[_i], NULL);
    guint accepted = 0;

    for (guint i = 0; i < 2000; i++) {
        g_autofree char *text =
            i % 8 == 0 ? random_bytes(random, (guint)i % 200) : mutate(base, random);
        g_autoptr(GError) error = NULL;
        g_autoptr(Model) model = model_parse(text, "test", NULL, &error);

        ck_assert_msg((model == NULL) == (error != NULL), "%s", text);
        if (model == NULL)
            continue;
        accepted++;
        ck_assert_uint_gt(model_parameters(model), 0);
        ck_assert(isfinite(model_step_flops(model, 64, 16)));
        g_autofree char *missing = model_unplannable(model);
    }
    ck_assert_uint_gt(accepted, 0); /* else the damage hides what comes after the syntax */
}
END_TEST

static TCase *reading_case(void)
{
    TCase *tcase = tcase_create("reading");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, public_models_have_their_published_number_of_parameters, 0,
                        G_N_ELEMENTS(public_models));
    tcase_add_loop_test(tcase, listed_tensors_add_up_to_the_parameters_and_have_names_of_their_own,
                        0, G_N_ELEMENTS(public_models));
    tcase_add_test(tcase, defaults_are_those_of_transformers);
    tcase_add_test(tcase, shapes_are_those_of_the_hugging_face_file);
    tcase_add_test(tcase, tying_removes_the_head);
    tcase_add_test(tcase, kv_heads_default_to_the_heads_of_llama_and_to_8_in_mistral);
    tcase_add_test(tcase, rope_settings_are_read_in_both_forms);
    tcase_add_test(tcase, llama3_scaling_leaves_short_waves_and_stretches_long_ones);
    tcase_add_test(tcase, model_flops_have_the_worked_values);
    tcase_add_test(tcase, tying_does_not_change_model_flops);
    tcase_add_test(tcase, shipped_models_load_by_name_folder_and_file);
    tcase_add_test(tcase, shipped_llamas_have_their_published_size);
    return tcase;
}

static TCase *refusing_case(void)
{
    TCase *tcase = tcase_create("refusing");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, what_the_project_does_not_know_is_refused_by_field_and_value, 0,
                        G_N_ELEMENTS(refused));
    tcase_add_loop_test(tcase, what_no_op_computes_is_counted_and_its_training_refused, 0,
                        G_N_ELEMENTS(counted));
    tcase_add_loop_test(tcase, absurd_and_missing_sizes_are_refused, 0, G_N_ELEMENTS(changed));
    tcase_add_test(tcase, sizes_that_would_overflow_together_are_refused);
    tcase_add_test(tcase, a_file_that_names_no_family_is_refused_with_the_known_ones);
    tcase_add_test(tcase, architectures_stand_in_for_a_missing_model_type);
    tcase_add_test(tcase, infinity_that_nobody_reads_does_no_harm);
    tcase_add_test(tcase, unknown_names_are_refused_with_the_nearest_model);
    tcase_add_loop_test(tcase, damaged_files_give_an_error_or_a_model_never_a_crash, 0,
                        G_N_ELEMENTS(damaged));
    return tcase;
}

int main(void)
{
    Suite *suite = suite_create("model");

    g_log_set_always_fatal(G_LOG_LEVEL_CRITICAL | G_LOG_FLAG_FATAL);
    suite_add_tcase(suite, reading_case());
    suite_add_tcase(suite, refusing_case());
    return suite_run(suite);
}
