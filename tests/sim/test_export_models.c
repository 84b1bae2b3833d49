/* What each framework makes of the blocks that can be trained: each told in its words, or refused.
 */
#include "tests/sim/export_case.h"
#include "tests/suite.h"

#define STARCODER2                                                                                 \
    "{\"model_type\": \"starcoder2\", \"hidden_size\": 64, \"intermediate_size\": 256, "           \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "           \
    "\"vocab_size\": 257, \"hidden_act\": \"gelu_pytorch_tanh\""

static const struct {
    const char *model, *framework;
    const char *says[6], *says_not[4];
} told[] = {
    {"gpt2",
     "megatron",
     {"--position-embedding-type learned_absolute\n", "--max-position-embeddings 1024\n",
      "--normalization LayerNorm\n--norm-epsilon 1e-05\n", "--ffn-hidden-size 3072\n"},
     {"--swiglu", "--disable-bias-linear", "--rotary", "--untie"}},
    {"qwen2.5-7b",
     "megatron",
     {"--normalization RMSNorm\n", "--swiglu\n--disable-bias-linear\n--add-qkv-bias\n",
      "--position-embedding-type rope\n--rotary-base 1000000\n", "--untie"},
     {NULL}},
    {STARCODER2 "}",
     "megatron",
     {"--position-embedding-type rope\n", "--normalization LayerNorm\n",
      "--group-query-attention\n--num-query-groups 2\n"},
     {"--swiglu", "--disable-bias-linear"}},
    {"qwen3-8b", "megatron", {"--kv-channels 128\n", "--qk-layernorm\n"}, {"--multi-latent"}},
    {"mistral-7b", "megatron", {"--num-query-groups 8\n--seq-length 4096\n"}, {"--window-size"}},
    {"gpt2", "accelerate", {"GPT2Block"}, {NULL}},
    {"qwen2.5-0.5b", "accelerate", {"Qwen2DecoderLayer"}, {NULL}},
    {STARCODER2 "}", "accelerate", {"Starcoder2DecoderLayer"}, {NULL}},
    /* 2 blocks of 12 C^2 + 13 C, the root (V + S + 2) C */
    {"gpt2", "deepspeed", {"\"stage3_max_live_parameters\" : 53561088"}, {NULL}},
};

START_TEST(blocks_are_told_in_the_words_of_the_framework)
{
    g_autoptr(Plan) plan = plan_of_model(told[_i].model, told[_i].framework);
    g_autofree char *refusal = NULL;
    g_autofree char *text = export_or_refusal(plan, told[_i].framework, &refusal);

    ck_assert_msg(text != NULL, "%s", refusal);
    check_words(text, told[_i].says, G_N_ELEMENTS(told[0].says), TRUE);
    check_words(text, told[_i].says_not, G_N_ELEMENTS(told[0].says_not), FALSE);
}
END_TEST

static const struct {
    const char *model, *framework, *refusal;
} refused[] = {
    {"gpt2", "torchtitan", "model.model_type = gpt2: its llama3 has RMSNorm"},
    {"qwen2.5-7b", "torchtitan", "model.model_type = qwen2"},
    {STARCODER2 ", \"use_bias\": false}", "megatron", "its GELU without a bias"},
    {"{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 256, "
     "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"vocab_size\": 257, \"mlp_bias\": "
     "true}",
     "megatron", "biases are on all matrices"},
};

START_TEST(blocks_that_a_framework_lacks_are_refused_by_name)
{
    g_autoptr(Plan) plan = plan_of_model(refused[_i].model, refused[_i].framework);
    g_autofree char *refusal = NULL;
    g_autofree char *text = export_or_refusal(plan, refused[_i].framework, &refusal);

    ck_assert_ptr_null(text);
    ck_assert_msg(strstr(refusal, refused[_i].refusal) != NULL, "%s", refusal);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("export of models");
    TCase *tcase = tcase_create("blocks");

    tcase_add_loop_test(tcase, blocks_are_told_in_the_words_of_the_framework, 0,
                        G_N_ELEMENTS(told));
    tcase_add_loop_test(tcase, blocks_that_a_framework_lacks_are_refused_by_name, 0,
                        G_N_ELEMENTS(refused));
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
