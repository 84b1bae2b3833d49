#include "sim/base/error.h"
#include "sim/input/model.h"
#include "tests/suite.h"

#include <math.h>
#include <string.h>

#define DATA "tests/sim/data/models/"

/* First what ships under models/, then configurations as people hold them, without what nobody
 * reads. Counts are those of model cards, keras-hub's presets, bytes of published files / 2, or of
 * the same configuration in transformers; active ones (embedding included) of the papers. */
static const struct {
    const char *name;
    guint64 parameters, active; /* active 0: all */
} published[] = {
    {"bloom-176b", 176247271424, 0},
    {"deepseek-v3", 671026419200, 37552297472},
    {"gemma-2-27b", 27227128320, 0},
    {"gemma-2-2b", 2614341888, 0},
    {"gemma-2-9b", 9241705984, 0},
    {"gpt-neox-20b", 20554567680, 0},
    {"gpt-oss-120b", 116829156672, 5711982912},
    {"gpt-oss-20b", 20914757184, 4187440704},
    {"gpt2", 124439808, 0},
    {"gpt2-large", 774030080, 0},
    {"gpt2-medium", 354823168, 0},
    {"gpt2-xl", 1557611200, 0},
    {"llama-2-13b", 13015864320, 0},
    {"llama-2-70b", 68976648192, 0},
    {"llama-2-7b", 6738415616, 0},
    {"llama-3.1-405b", 405853388800, 0},
    {"llama-3.1-70b", 70553706496, 0},
    {"llama-3.1-8b", 8030261248, 0},
    {"llama-3.2-1b", 1235814400, 0},
    {"llama-3.2-3b", 3212749824, 0},
    {"mistral-7b", 7241732096, 0},
    {"mistral-7b-v0.3", 7248023552, 0},
    {"mixtral-8x7b", 46702792704, 12879925248},
    {"opt-1.3b", 1315758080, 0},
    {"opt-125m", 125239296, 0},
    {"opt-13b", 12853473280, 0},
    {"opt-2.7b", 2651596800, 0},
    {"opt-30b", 29974540288, 0},
    {"opt-350m", 331196416, 0}, /* an embedding of 512, norms after the sum */
    {"opt-6.7b", 6658473984, 0},
    {"opt-66b", 65719701504, 0},
    {"phi-3-mini", 3821079552, 0},
    {"pythia-1.4b", 1414647808, 0},
    {"pythia-12b", 11846072320, 0},
    {"pythia-160m", 162322944, 0},
    {"pythia-1b", 1011781632, 0},
    {"pythia-2.8b", 2775208960, 0},
    {"pythia-410m", 405334016, 0},
    {"pythia-6.9b", 6857302016, 0},
    {"pythia-70m", 70426624, 0},
    {"qwen1.5-moe-a2.7b", 14315784192, 2689173504},
    {"qwen2.5-0.5b", 494032768, 0},
    {"qwen2.5-1.5b", 1543714304, 0},
    {"qwen2.5-14b", 14770033664, 0},
    {"qwen2.5-32b", 32763876352, 0},
    {"qwen2.5-3b", 3085938688, 0},
    {"qwen2.5-72b", 72706203648, 0},
    {"qwen2.5-7b", 7615616512, 0},
    {"qwen3-0.6b", 596049920, 0},
    {"qwen3-1.7b", 1720574976, 0},
    {"qwen3-14b", 14768307200, 0},
    {"qwen3-30b-a3b", 30532122624, 3353032704},
    {"qwen3-32b", 32762123264, 0},
    {"qwen3-4b", 4022468096, 0},
    {"qwen3-8b", 8190735360, 0},
    {"smollm-1.7b", 1711376384, 0},
    {"smollm-135m", 134515008, 0},
    {"smollm-360m", 361821120, 0},
    {"bloom-7b1", 7069016064, 0},
    {"command-r", 34980831232, 0},
    {"dbrx", 131596523520, 36469708800},
    {"deepseek-v2", 235741434880, 21375800320},
    {"deepseek-v2-lite", 15706484224, 2661150208},
    {"deepseek-v3.2", 671877944064, 38403822336},
    {"falcon-11b", 11102822400, 0},  /* one norm in parallel */
    {"falcon-40b", 41303293952, 0},  /* two norms, 8 kv heads */
    {"falcon-7b", 6921720704, 0},    /* one norm, one kv head */
    {"falcon-rw-1b", 1311625216, 0}, /* biases, as many kv heads as heads */
    {"gemma-2b", 2506172416, 0},
    {"gemma-3-1b", 999885952, 0},
    {"gemma-7b", 8537680896, 0},
    {"glm-5", 743911218432, 41784728832},
    {"gpt-j-6b", 6050882784, 0},
    {"kimi-k2", 1026408232448, 32861500928},
    {"mimo-7b", 7622619136, 0},
    {"minimax-m2.5", 228689764864, 11030553088},
    {"mistral-nemo-12b", 12247782400, 0},
    {"mixtral-8x22b", 140620634112, 39152031744},
    {"mpt-7b", 6649286656, 0},
    {"nemotron-h-56b", 56324350464, 0},
    {"nemotron-super-49b", 49867145216, 0},
    {"olmo-1b", 1176764416, 0},
    {"olmo-2-7b", 7298617344, 0},
    {"phi-2", 2779683840, 0},
    {"phi-3-medium", 13960238080, 0},
    {"pythia-70m-excerpt", 70426624, 0}, /* neither model_type nor anything optional */
    {"qwen3-235b-a22b", 235093634560, 22190763520},
    {"starcoder2-7b", 7173923840, 0},
};

static Model *load(const char *name)
{
    g_autofree char *path = g_strdup_printf(DATA "%s.json", name);
    const gboolean is_data = g_file_test(path, G_FILE_TEST_EXISTS);
    g_autoptr(GError) error = NULL;
    Model *model = model_load(is_data ? path : name, "models", &error);

    ck_assert_msg(model != NULL, "%s", error != NULL ? error->message : "");
    return model;
}

START_TEST(every_family_has_its_published_number_of_parameters)
{
    g_autoptr(Model) model = load(published[_i].name);
    const guint64 parameters = published[_i].parameters, active = published[_i].active;

    ck_assert_uint_eq(model_parameters(model), parameters);
    ck_assert_uint_eq(model_active_parameters(model), active == 0 ? parameters : active);
}
END_TEST

/* Where files hold more than the model: what it is worked out by hand, and with it the total that
 * Hugging Face shows of them. */
static const struct {
    const char *name;
    guint64 beside, file;
} beside[] = {
    /* A block for multi-token prediction: of the kind of the others (q and o 2 x 4096^2, k and v
     * 2 x 1024 x 4096, biases 6144, MLP 3 x 4096 x 11008, two norms), the matrix that joins two
     * inputs (4096, 8192), and three norms. */
    {"mimo-7b", 177223680 + 4096 * 8192 + 3 * 4096, 7833409536},
    /* A scale of each 128 x 128 block of what is fp8: attention 3072 x (2 x 6144 + 2 x 1024) and
     * 256 experts of 3 x 3072 x 1536, in 62 layers. */
    {"minimax-m2.5", 62ull * (3072 * 14336 + 256ull * 3 * 3072 * 1536) / (128 * 128), 228703644928},
    /* Without scales.  One more block with experts: attention 187107328, indexer 13959424, router
     * 256 x 7169, 257 experts of 3 x 7168 x 2048, five norms, the matrix that joins (7168, 14336);
     * and embedding and head again. */
    {"deepseek-v3.2",
     187107328 + 13959424 + 256 * 7169 + 257ull * 3 * 7168 * 2048 + 5 * 7168 + 2 * 7168 * 7168 +
         2 * 129280ull * 7168,
     685355329792},
    /* The same: attention 165022208, indexer 9371904; embedding and head once. */
    {"glm-5",
     165022208 + 9371904 + 256 * 6145 + 257ull * 3 * 6144 * 2048 + 5 * 6144 + 2 * 6144 * 6144,
     753864139008},
};

START_TEST(what_files_hold_beside_the_model_makes_their_published_size)
{
    g_autoptr(Model) model = load(beside[_i].name);

    ck_assert_uint_eq(model_parameters(model) + beside[_i].beside, beside[_i].file);
}
END_TEST

/* Nemotron-H 56B: 54 Mamba-2 blocks of 256 heads x 64 with a state of 256 in 8 groups, 54 MLPs of
 * two matrices, 10 of attention; a norm each, one behind all, embedding and head.  Published as 56
 * B. */
START_TEST(blocks_of_one_part_each_add_up)
{
    const guint64 hidden = 8192, inner = 256 * 64, conv = inner + 2 * 8 * 256;
    const guint64 mamba =
        hidden * (inner + conv + 256) + conv * (4 + 1) + 3 * 256 + inner + inner * hidden;
    const guint64 mlp = 2 * hidden * 32768, attention = 2 * hidden * (8192 + 1024);
    g_autoptr(Model) model = load("nemotron-h-56b");

    ck_assert_uint_eq(model_parameters(model),
                      54 * mamba + 54 * mlp + 10 * attention + 119 * hidden + 2 * 131072 * hidden);
    /* attention in 10 of 118 blocks, 6 H D T a token each */
    const double longer = model_step_flops(model, 8192, 8192) / 8192;
    const double shorter = model_step_flops(model, 4096, 4096) / 4096;
    ck_assert_double_eq_tol(longer - shorter, 6.0 * 10 * 8192 * 4096, 1e4);
}
END_TEST

/* Nemotron Super 49B: blocks by the width of their MLP, 2/3 of ffn_mult x 8192 in steps of 256. */
START_TEST(blocks_from_which_parts_were_taken_add_up)
{
    static const struct {
        guint64 blocks, with_attention, ffn;
    } kinds[] = {{6, 1, 14336}, {49, 48, 28672}, {1, 0, 17920},
                 {10, 0, 7168}, {8, 0, 5632},    {6, 0, 2816}};
    const guint64 hidden = 8192, attention = 2 * hidden * (8192 + 1024) + hidden;
    guint64 elements = (2 * 128256 + 1) * hidden;
    g_autoptr(Model) model = load("nemotron-super-49b");

    for (guint i = 0; i < G_N_ELEMENTS(kinds); i++)
        elements += kinds[i].blocks * (3 * hidden * kinds[i].ffn + hidden) +
                    kinds[i].with_attention * attention;
    ck_assert_uint_eq(model_parameters(model), elements);
}
END_TEST

/* Sizes that papers give without a count: L (12 C^2 + 13 C) + (V + positions + 2) C, from the
 * shapes of a block with biases and two norms (Narayanan et al., arXiv 2104.04473, equation 2,
 * which leaves out the final norm). */
static const struct {
    const char *name;
    guint64 layers, hidden, vocab, positions;
    double billions; /* as the papers round it */
} computed[] = {
    {"gpt-3-175b", 96, 12288, 50257, 2048, 174.6},
    {"mt-nlg-530b", 105, 20480, 51200, 2048, 529.6},
    {"megatron-1t", 128, 25600, 51200, 2048, 1008.0},
    {"opt-175b", 96, 12288, 50272, 2050, 174.6},
    {"tiny-gpt2", 4, 128, 256, 256, 0.0},
};

START_TEST(gpt2_shapes_have_the_parameters_of_the_formula)
{
    g_autoptr(Model) model = load(computed[_i].name);
    const guint64 hidden = computed[_i].hidden;
    const guint64 expected = computed[_i].layers * (12 * hidden * hidden + 13 * hidden) +
                             (computed[_i].vocab + computed[_i].positions + 2) * hidden;

    ck_assert_uint_eq(model_parameters(model), expected);
    ck_assert_double_eq_tol((double)expected / 1e9, computed[_i].billions, 0.05);
}
END_TEST

static gboolean is_counted(const char *name)
{
    static const char *const made_here[] = {"small-10m", "tiny-1m"};
    gboolean counted = FALSE;

    for (guint i = 0; i < G_N_ELEMENTS(published); i++)
        counted = counted || strcmp(published[i].name, name) == 0;
    for (guint i = 0; i < G_N_ELEMENTS(computed); i++)
        counted = counted || strcmp(computed[i].name, name) == 0;
    for (guint i = 0; i < G_N_ELEMENTS(made_here); i++)
        counted = counted || strcmp(made_here[i], name) == 0;
    return counted;
}

START_TEST(every_model_that_ships_has_its_count_here)
{
    GDir *dir = g_dir_open("models", 0, NULL);

    ck_assert_ptr_nonnull(dir);
    for (const char *name; (name = g_dir_read_name(dir)) != NULL;) {
        g_autofree char *path = g_build_filename("models", name, "config.json", NULL);

        ck_assert_msg(!g_file_test(path, G_FILE_TEST_EXISTS) || is_counted(name), "%s", name);
    }
    g_dir_close(dir);
}
END_TEST

START_TEST(tensors_add_up_to_the_parameters_and_have_names_of_their_own)
{
    g_autoptr(Model) model = load(published[_i].name);
    g_autoptr(GArray) tensors = model_tensors(model);
    g_autoptr(GHashTable) names = g_hash_table_new(g_str_hash, g_str_equal);
    guint64 elements = 0;

    for (guint i = 0; i < tensors->len; i++) {
        const ParamShape *tensor = &g_array_index(tensors, ParamShape, i);

        elements += tensor->rows * tensor->cols * tensor->stack;
        ck_assert_uint_eq(tensor->stack > 1, tensor->dims == 3);
        ck_assert_msg(g_hash_table_add(names, tensor->name), "%s", tensor->name);
    }
    ck_assert_uint_eq(elements, published[_i].parameters);
}
END_TEST

/* One tensor each that tells a family from the others, as in its published files. */
static const struct {
    const char *model, *name;
    guint64 stack, rows, cols; /* cols 0: a vector */
} told[] = {
    {"bloom-7b1", "transformer.word_embeddings_layernorm.bias", 1, 4096, 0},
    {"bloom-7b1", "transformer.h.29.self_attention.query_key_value.weight", 1, 12288, 4096},
    {"command-r", "model.layers.0.input_layernorm.weight", 1, 8192, 0},
    {"dbrx", "transformer.blocks.39.ffn.experts.mlp.w1", 1, 172032, 6144},
    {"deepseek-v2", "model.layers.0.mlp.up_proj.weight", 1, 12288, 5120},
    {"deepseek-v2", "model.layers.1.mlp.experts.159.down_proj.weight", 1, 5120, 1536},
    {"deepseek-v2", "model.layers.1.mlp.shared_experts.up_proj.weight", 1, 3072, 5120},
    {"deepseek-v2", "model.layers.0.self_attn.kv_a_proj_with_mqa.weight", 1, 576, 5120},
    {"deepseek-v2-lite", "model.layers.0.self_attn.q_proj.weight", 1, 3072, 2048},
    {"falcon-40b", "transformer.h.0.ln_mlp.bias", 1, 8192, 0},
    {"falcon-7b", "transformer.h.0.self_attention.query_key_value.weight", 1, 4672, 4544},
    {"falcon-rw-1b", "transformer.h.0.post_attention_layernorm.bias", 1, 2048, 0},
    {"gemma-2-2b", "model.layers.0.pre_feedforward_layernorm.weight", 1, 2304, 0},
    {"gemma-3-1b", "model.layers.25.self_attn.k_norm.weight", 1, 256, 0},
    {"gpt-j-6b", "lm_head.bias", 1, 50400, 0},
    {"gpt-oss-20b", "model.layers.0.mlp.experts.gate_up_proj", 32, 2880, 5760},
    {"gpt-oss-20b", "model.layers.0.mlp.experts.down_proj_bias", 1, 32, 2880},
    {"gpt-oss-20b", "model.layers.0.self_attn.sinks", 1, 64, 0},
    {"glm-5", "model.layers.0.self_attn.indexer.wq_b.weight", 1, 4096, 2048},
    {"glm-5", "model.layers.77.self_attn.indexer.k_norm.bias", 1, 128, 0},
    {"kimi-k2", "model.layers.1.mlp.gate.e_score_correction_bias", 1, 384, 0},
    {"mimo-7b", "model.layers.35.self_attn.k_proj.bias", 1, 1024, 0},
    {"minimax-m2.5", "model.layers.0.block_sparse_moe.e_score_correction_bias", 1, 256, 0},
    {"minimax-m2.5", "model.layers.61.self_attn.k_norm.weight", 1, 1024, 0},
    {"mixtral-8x22b", "model.layers.0.block_sparse_moe.experts.7.w2.weight", 1, 6144, 16384},
    {"mpt-7b", "transformer.blocks.0.ffn.up_proj.weight", 1, 16384, 4096},
    {"nemotron-h-56b", "backbone.layers.0.mixer.in_proj.weight", 1, 37120, 8192},
    {"nemotron-h-56b", "backbone.layers.0.mixer.conv1d.weight", 20480, 1, 4},
    {"nemotron-h-56b", "backbone.layers.1.mixer.up_proj.weight", 1, 32768, 8192},
    {"nemotron-super-49b", "model.layers.0.mlp.gate_proj.weight", 1, 14336, 8192},
    {"nemotron-super-49b", "model.layers.79.self_attn.k_proj.weight", 1, 1024, 8192},
    {"olmo-2-7b", "model.layers.0.self_attn.q_norm.weight", 1, 4096, 0},
    {"opt-350m", "model.decoder.embed_positions.weight", 1, 2050, 1024},
    {"opt-350m", "model.decoder.project_in.weight", 1, 1024, 512},
    {"phi-2", "model.layers.31.self_attn.dense.bias", 1, 2560, 0},
    {"phi-3-medium", "model.layers.0.self_attn.qkv_proj.weight", 1, 7680, 5120},
    {"qwen1.5-moe-a2.7b", "model.layers.0.mlp.shared_expert_gate.weight", 1, 1, 2048},
    {"qwen3-0.6b", "model.layers.0.self_attn.q_norm.weight", 1, 128, 0},
    {"starcoder2-7b", "model.layers.0.mlp.c_fc.bias", 1, 18432, 0},
};

static const ParamShape *find(const GArray *tensors, const char *name)
{
    for (guint i = 0; i < tensors->len; i++)
        if (strcmp(g_array_index(tensors, ParamShape, i).name, name) == 0)
            return &g_array_index(tensors, ParamShape, i);
    return NULL;
}

START_TEST(tensors_are_called_and_shaped_as_in_published_files)
{
    g_autoptr(Model) model = load(told[_i].model);
    g_autoptr(GArray) tensors = model_tensors(model);
    const ParamShape *tensor = find(tensors, told[_i].name);

    ck_assert_msg(tensor != NULL, "%s", told[_i].name);
    ck_assert_uint_eq(tensor->stack, told[_i].stack);
    ck_assert_uint_eq(tensor->rows, told[_i].rows);
    ck_assert_uint_eq(tensor->cols, told[_i].cols == 0 ? 1 : told[_i].cols);
    ck_assert_uint_eq(tensor->dims, told[_i].stack > 1 ? 3 : told[_i].cols == 0 ? 1 : 2);
}
END_TEST

/* The order of transformers' state_dict(), the matrices of Conv1D (in, out). */
START_TEST(a_gpt2_has_the_tensors_of_its_file)
{
    static const struct {
        const char *name;
        guint64 rows, cols;
    } expected[] = {
        {"transformer.wte.weight", 257, 8},
        {"transformer.wpe.weight", 32, 8},
        {"transformer.h.0.ln_1.weight", 8, 1},
        {"transformer.h.0.ln_1.bias", 8, 1},
        {"transformer.h.0.attn.c_attn.weight", 8, 24},
        {"transformer.h.0.attn.c_attn.bias", 24, 1},
        {"transformer.h.0.attn.c_proj.weight", 8, 8},
        {"transformer.h.0.attn.c_proj.bias", 8, 1},
        {"transformer.h.0.ln_2.weight", 8, 1},
        {"transformer.h.0.ln_2.bias", 8, 1},
        {"transformer.h.0.mlp.c_fc.weight", 8, 25},
        {"transformer.h.0.mlp.c_fc.bias", 25, 1},
        {"transformer.h.0.mlp.c_proj.weight", 25, 8},
        {"transformer.h.0.mlp.c_proj.bias", 8, 1},
        {"transformer.ln_f.weight", 8, 1},
        {"transformer.ln_f.bias", 8, 1},
    };
    g_autoptr(Model) model =
        model_parse("{\"model_type\": \"gpt2\", \"n_embd\": 8, \"n_layer\": 1, \"n_head\": 2, "
                    "\"n_inner\": 25, \"n_positions\": 32, \"vocab_size\": 257}",
                    "test", NULL, NULL);
    g_autoptr(GArray) tensors = model_tensors(model);

    ck_assert_uint_eq(tensors->len, G_N_ELEMENTS(expected));
    for (guint i = 0; i < tensors->len; i++) {
        const ParamShape *tensor = &g_array_index(tensors, ParamShape, i);

        ck_assert_str_eq(tensor->name, expected[i].name);
        ck_assert_uint_eq(tensor->rows, expected[i].rows);
        ck_assert_uint_eq(tensor->cols, expected[i].cols);
    }
}
END_TEST

START_TEST(units_split_what_the_file_fuses_and_keep_every_element)
{
    static const ParamRole roles[] = {
        PARAM_INPUT_NORM, PARAM_INPUT_NORM_BIAS, PARAM_Q,         PARAM_Q_BIAS,
        PARAM_K,          PARAM_K_BIAS,          PARAM_V,         PARAM_V_BIAS,
        PARAM_O,          PARAM_O_BIAS,          PARAM_POST_NORM, PARAM_POST_NORM_BIAS,
        PARAM_UP,         PARAM_UP_BIAS,         PARAM_DOWN,      PARAM_DOWN_BIAS,
    };
    g_autoptr(Model) model =
        model_parse("{\"model_type\": \"gpt2\", \"n_embd\": 8, \"n_layer\": 3, \"n_head\": 2, "
                    "\"vocab_size\": 257}",
                    "test", NULL, NULL);
    g_autoptr(GArray) block = model_unit_params(model, UNIT_BLOCK);
    g_autoptr(GArray) root = model_unit_params(model, UNIT_ROOT);
    guint64 elements = 0;

    ck_assert_uint_eq(block->len, G_N_ELEMENTS(roles));
    for (guint i = 0; i < block->len; i++) {
        const ParamShape *shape = &g_array_index(block, ParamShape, i);

        ck_assert_int_eq(shape->role, roles[i]);
        ck_assert_int_eq(model_param_index(model, UNIT_BLOCK, roles[i]), (gint)i);
        elements += 3 * shape->rows * shape->cols;
    }
    for (guint i = 0; i < root->len; i++)
        elements +=
            g_array_index(root, ParamShape, i).rows * g_array_index(root, ParamShape, i).cols;
    ck_assert_uint_eq(elements, model_parameters(model));
    ck_assert_int_eq(model_param_index(model, UNIT_BLOCK, PARAM_GATE), -1);
    ck_assert_int_eq(model_param_index(model, UNIT_ROOT, PARAM_HEAD), -1);
    ck_assert_str_eq(g_array_index(block, ParamShape, 2).name, "attn.q_proj.weight");
    ck_assert_uint_eq(g_array_index(block, ParamShape, 12).rows, 32); /* (out, in) */
    ck_assert_str_eq(model_block_prefix(model), "transformer.h.");
}
END_TEST

/* hidden 100 on 8 heads: a head's width is stated, not a quotient.  With the sizes below attention
 * has 8 (4 + 2) x 100 + (3 + 2) x 100 + 3 + 8 (4 + 5) x 3 + 100 x 8 x 5 elements. */
START_TEST(latent_heads_need_not_divide_the_hidden_size)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_parse(
        "{\"model_type\": \"deepseek_v2\", \"hidden_size\": 100, \"num_hidden_layers\": "
        "1, \"num_attention_heads\": 8, \"vocab_size\": 10, \"intermediate_size\": 20, "
        "\"first_k_dense_replace\": 1, \"moe_intermediate_size\": 7, "
        "\"n_routed_experts\": 4, \"num_experts_per_tok\": 2, \"q_lora_rank\": null, "
        "\"kv_lora_rank\": 3, \"qk_nope_head_dim\": 4, \"qk_rope_head_dim\": 2, "
        "\"v_head_dim\": 5}",
        "test", NULL, &error);

    ck_assert_msg(model != NULL, "%s", error != NULL ? error->message : "");
    ck_assert_uint_eq(model_parameters(model),
                      4800 + 500 + 3 + 216 + 4000 + 2 * 100 + 3 * 2000 + 2 * 1000 + 100);
    ck_assert_uint_eq(model_active_parameters(model), model_parameters(model));
}
END_TEST

/* Mixtral 8x22B, one token alone: 6 x (active - embedding - 113 norms of 6144). */
START_TEST(experts_that_a_token_does_not_visit_cost_no_flops)
{
    g_autoptr(Model) model = load("mixtral-8x22b");
    const double matrices = 39152031744.0 - 32000.0 * 6144 - 113.0 * 6144;
    const double attention = 6.0 * 56 * 6144 * 4096; /* 6 L H D T a token */

    ck_assert_double_eq_tol(model_step_flops(model, 4096, 4096) / 4096, 6 * matrices + attention,
                            1e4);
}
END_TEST

/* 128 heads of 192 for queries and keys, of 128 for values. */
START_TEST(latent_attention_costs_what_its_heads_are_wide)
{
    g_autoptr(Model) model = load("deepseek-v2");
    const double longer = model_step_flops(model, 8192, 8192) / 8192;
    const double shorter = model_step_flops(model, 4096, 4096) / 4096;

    ck_assert_double_eq_tol(longer - shorter, 3.0 * 60 * 128 * (192 + 128) * 4096, 1e4);
}
END_TEST

static const struct {
    const char *model, *reason;
} refused[] = {
    {"bloom-7b1", "ALiBi, a norm of the embedding"},
    {"command-r", "attention and MLP in parallel"},
    {"deepseek-v2", "latent attention, mixture of experts"},
    {"falcon-rw-1b", "ALiBi"},
    {"gemma-2-2b", "norms that multiply by 1 + weight"},
    {"gpt-j-6b", "rotary embedding of neighbouring pairs"},
    {"minimax-m2.5", "norms of queries and keys, rotary embedding of a part"},
    {"nemotron-h-56b", "Mamba-2 blocks, blocks that differ in more than experts"},
    {"nemotron-super-49b", "blocks that differ in more than experts"},
    {"olmo-1b", "norms without parameters"},
    {"olmo-2-7b", "norms of what attention and MLP give"},
    {"gpt-oss-20b", "attention sinks, biases of experts"},
    {"opt-350m", "norms after the sum"},
    {"phi-2", "a bias of the head"},
    {"phi-3-medium", "rope_scaling of another type than llama3"},
    {"qwen1.5-moe-a2.7b", "a gate of what shared experts give"},
    {"qwen3-0.6b", "norms of queries and keys"},
};

START_TEST(what_can_only_be_counted_says_why)
{
    g_autoptr(Model) model = load(refused[_i].model);
    g_autoptr(GError) error = NULL;

    ck_assert(!model_check_trainable(model, &error));
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
    ck_assert_msg(strstr(error->message, refused[_i].reason) != NULL, "%s", error->message);
    ck_assert_msg(strstr(error->message, refused[_i].model) != NULL, "%s", error->message);
    ck_assert_ptr_null(strchr(error->message, '\n'));
}
END_TEST

/* Each block wider than the one before. */
static char *widening_config(guint blocks)
{
    g_autoptr(GString) text = g_string_new(NULL);

    g_string_printf(text,
                    "{\"model_type\": \"nemotron-nas\", \"vocab_size\": 64, \"hidden_size\": 48, "
                    "\"num_hidden_layers\": %u, \"num_attention_heads\": 4, \"hidden_act\": "
                    "\"silu\", \"block_configs\": [",
                    blocks);
    for (guint i = 0; i < blocks; i++)
        g_string_append_printf(text,
                               "%s{\"attention\": {\"no_op\": true}, \"ffn\": {\"ffn_mult\": %u}}",
                               i > 0 ? ", " : "", 2 + 8 * i);
    return g_strdup(g_string_append(text, "]}")->str);
}

START_TEST(more_shapes_of_blocks_than_there_is_room_for_are_refused)
{
    g_autofree char *most = widening_config(MAX_BLOCK_KINDS);
    g_autofree char *more = widening_config(MAX_BLOCK_KINDS + 1);
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_parse(most, "most", NULL, &error);

    ck_assert_ptr_nonnull(model);
    ck_assert(model_check_plannable(model, &error));
    ck_assert_uint_eq(model_num_kinds(model), MAX_BLOCK_KINDS);
    ck_assert_ptr_null(model_parse(more, "more", NULL, &error));
    ck_assert_str_eq(error->message, "more: block 32 is of another shape than the 32 before it; "
                                     "allowed: 32 shapes of blocks");
}
END_TEST

START_TEST(blocks_of_nothing_are_counted_only)
{
    g_autofree char *config = widening_config(1);
    g_autofree char *nothing = g_strdup_printf(
        "%.*s{\"no_op\": true}}]}", (int)(strstr(config, "{\"ffn_mult") - config), config);
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_parse(nothing, "nothing", NULL, &error);

    ck_assert_ptr_nonnull(model);
    ck_assert_uint_eq(model_parameters(model), (2 * 64 + 1) * 48);
    ck_assert(!model_check_plannable(model, &error));
    ck_assert_ptr_nonnull(strstr(error->message, "blocks without attention and MLP"));
}
END_TEST

START_TEST(a_lost_hidden_size_is_missed_by_name)
{
    g_autoptr(GError) error = NULL;

    ck_assert_ptr_null(model_load(DATA "bloom-without-hidden.json", "models", &error));
    ck_assert_ptr_nonnull(strstr(error->message, "\"hidden_size\" is missing"));
}
END_TEST

static GLogWriterOutput keep_message(GLogLevelFlags level, const GLogField *fields, gsize num,
                                     gpointer text)
{
    for (gsize i = 0; i < num; i++)
        if (level == G_LOG_LEVEL_MESSAGE && strcmp(fields[i].key, "MESSAGE") == 0)
            g_string_append(text, fields[i].value);
    return G_LOG_WRITER_HANDLED;
}

/* 1.116 B or 1.312 B: the excerpt does not say. */
START_TEST(a_field_that_decides_the_kv_heads_is_missed_aloud)
{
    g_autoptr(GString) said = g_string_new(NULL);

    g_log_set_writer_func(keep_message, said, NULL);
    g_autoptr(Model) model = load("falcon-rw-without-multi-query");
    ck_assert_uint_eq(model->kv_heads, 1);
    ck_assert_msg(strstr(said->str, "1 kv heads assumed") != NULL, "%s", said->str);
    ck_assert_msg(strstr(said->str, "\"multi_query\" is missing; so are ") != NULL, "%s",
                  said->str);
    ck_assert_msg(strstr(said->str, "\"parallel_attn\" (true)") != NULL, "%s", said->str);
}
END_TEST

#define BAD_SIZES                                                                                  \
    "\"hidden_size\": 64, \"intermediate_size\": 64, \"num_hidden_layers\": 2, "                   \
    "\"num_attention_heads\": 8, \"vocab_size\": 9"
#define MAMBA_SIZES                                                                                \
    "\"mamba_num_heads\": 4, \"mamba_head_dim\": 8, \"n_groups\": 2, \"ssm_state_size\": 16, "     \
    "\"conv_kernel\": 4"

static const struct {
    const char *text, *message;
} bad[] = {
    {"{\"model_type\": \"gpt2\", \"n_embd\": 10, \"n_head\": 4, \"n_layer\": 1, "
     "\"vocab_size\": 9}",
     "\"n_embd\" is 10; allowed without \"head_dim\": multiples of n_head, 4"},
    {"{\"model_type\": \"gpt2\", \"n_embd\": 8, \"n_head\": 4, \"n_layer\": 1, \"vocab_size\": 9, "
     "\"add_cross_attention\": true}",
     "\"add_cross_attention\" is true; allowed: false"},
    {"{\"model_type\": \"mixtral\", \"hidden_size\": 64, \"intermediate_size\": 64, "
     "\"num_hidden_layers\": 1, \"num_attention_heads\": 8, \"vocab_size\": 9, "
     "\"num_local_experts\": 2, \"num_experts_per_tok\": 3}",
     "\"num_experts_per_tok\" is 3"},
    {"{\"model_type\": \"mixtral\", \"hidden_size\": 64, \"intermediate_size\": 1, "
     "\"num_hidden_layers\": 16384, \"num_attention_heads\": 8, \"vocab_size\": 9, "
     "\"num_local_experts\": 16384, \"num_experts_per_tok\": 3}",
     "268435456 experts; allowed: at most"},
    {"{\"model_type\": \"opt\", \"hidden_size\": 8, \"num_hidden_layers\": 1, "
     "\"num_attention_heads\": 2, \"vocab_size\": 9}",
     "\"ffn_dim\" is missing"},
    {"{\"model_type\": \"falcon\", \"hidden_size\": 64, \"num_hidden_layers\": 1, "
     "\"num_attention_heads\": 8, \"num_kv_heads\": 3, \"new_decoder_architecture\": true, "
     "\"vocab_size\": 9}",
     "\"num_kv_heads\" is 3; allowed: divisors of num_attention_heads, 8"},
    {"{\"model_type\": \"mamba\"}", "gpt_neox (GPTNeoXForCausalLM)"},
    {"{\"model_type\": \"minimax_m2\", " BAD_SIZES ", \"qk_norm_type\": \"per_head\"}",
     "\"qk_norm_type\" is \"per_head\"; allowed: per_layer"},
    {"{\"model_type\": \"minimax_m2\", " BAD_SIZES ", \"use_routing_bias\": false}",
     "\"use_routing_bias\" is false; allowed: true"},
    {"{\"model_type\": \"deepseek_v32\", " BAD_SIZES "}", "\"index_n_heads\" is missing"},
    {"{\"model_type\": \"glm_moe_dsa\", " BAD_SIZES ", \"index_n_heads\": 2, \"index_head_dim\": "
     "8, \"index_topk\": 4, \"q_lora_rank\": 8, \"index_topk_freq\": 4}",
     "\"index_topk_freq\" is 4"},
    {"{\"model_type\": \"nemotron_h\", " BAD_SIZES ", " MAMBA_SIZES
     ", \"hybrid_override_pattern\": \"ME\"}",
     "\"hybrid_override_pattern\" is \"ME\"; allowed: M, * or - for each of num_hidden_layers, 2"},
    {"{\"model_type\": \"nemotron_h\", " BAD_SIZES ", " MAMBA_SIZES
     ", \"hybrid_override_pattern\": \"M-*\"}",
     "\"hybrid_override_pattern\" is \"M-*\""},
    {"{\"model_type\": \"nemotron-nas\", " BAD_SIZES ", \"block_configs\": [{}]}",
     "\"block_configs\" has 1 blocks; allowed: num_hidden_layers, 2"},
    {"{\"model_type\": \"nemotron-nas\", " BAD_SIZES
     ", \"block_configs\": [{}, {\"attention\": {\"no_op\": true}}]}",
     "\"block_configs.0.attention.n_heads_in_group\" is missing"},
    {"{\"model_type\": \"nemotron-nas\", " BAD_SIZES ", \"block_configs\": [{\"attention\": "
     "{\"n_heads_in_group\": 3}}, {}]}",
     "\"block_configs.0.attention.n_heads_in_group\" is 3; allowed: divisors of "
     "num_attention_heads, 8"},
    {"{\"model_type\": \"nemotron-nas\", " BAD_SIZES ", \"block_configs\": [{\"attention\": "
     "{\"no_op\": true}, \"ffn\": {\"replace_with_linear\": true}}, {}]}",
     "\"block_configs.0.ffn.replace_with_linear\" is true; allowed: false"},
    {"{\"model_type\": \"llava\", \"text_config\": {\"model_type\": \"llama\"}}",
     "\"llava\" is not known (its \"text_config\", a llama, is the language model: in a file of "
     "its "
     "own it can be read); known: "},
    {"{\"model_type\": \"other\", \"text_config\": {\"model_type\": \"mamba\"}}",
     "\"other\" is not known; known: "},
    {"{\"model_type\": \"odd\", \"text_config\": 7}", "\"odd\" is not known; known: "},
};

START_TEST(bad_files_are_refused_in_the_words_of_their_family)
{
    g_autoptr(GError) error = NULL;

    ck_assert_ptr_null(model_parse(bad[_i].text, "test", NULL, &error));
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
    ck_assert_msg(strstr(error->message, bad[_i].message) != NULL, "%s", error->message);
    ck_assert_ptr_null(strchr(error->message, '\n'));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("families");
    TCase *counts = tcase_create("counts");
    TCase *refusals = tcase_create("refusals");

    g_log_set_always_fatal(G_LOG_LEVEL_CRITICAL | G_LOG_FLAG_FATAL);
    tcase_set_timeout(counts, 60);
    tcase_add_loop_test(counts, every_family_has_its_published_number_of_parameters, 0,
                        G_N_ELEMENTS(published));
    tcase_add_loop_test(counts, gpt2_shapes_have_the_parameters_of_the_formula, 0,
                        G_N_ELEMENTS(computed));
    tcase_add_loop_test(counts, what_files_hold_beside_the_model_makes_their_published_size, 0,
                        G_N_ELEMENTS(beside));
    tcase_add_test(counts, blocks_of_one_part_each_add_up);
    tcase_add_test(counts, blocks_from_which_parts_were_taken_add_up);
    tcase_add_test(counts, every_model_that_ships_has_its_count_here);
    tcase_add_loop_test(counts, tensors_add_up_to_the_parameters_and_have_names_of_their_own, 0,
                        G_N_ELEMENTS(published));
    tcase_add_loop_test(counts, tensors_are_called_and_shaped_as_in_published_files, 0,
                        G_N_ELEMENTS(told));
    tcase_add_test(counts, a_gpt2_has_the_tensors_of_its_file);
    tcase_add_test(counts, units_split_what_the_file_fuses_and_keep_every_element);
    tcase_add_test(counts, latent_heads_need_not_divide_the_hidden_size);
    tcase_add_test(counts, experts_that_a_token_does_not_visit_cost_no_flops);
    tcase_add_test(counts, latent_attention_costs_what_its_heads_are_wide);
    suite_add_tcase(suite, counts);
    tcase_add_loop_test(refusals, what_can_only_be_counted_says_why, 0, G_N_ELEMENTS(refused));
    tcase_add_test(refusals, a_lost_hidden_size_is_missed_by_name);
    tcase_add_test(refusals, more_shapes_of_blocks_than_there_is_room_for_are_refused);
    tcase_add_test(refusals, blocks_of_nothing_are_counted_only);
    tcase_add_test(refusals, a_field_that_decides_the_kv_heads_is_missed_aloud);
    tcase_add_loop_test(refusals, bad_files_are_refused_in_the_words_of_their_family, 0,
                        G_N_ELEMENTS(bad));
    suite_add_tcase(suite, refusals);
    return suite_run(suite);
}
