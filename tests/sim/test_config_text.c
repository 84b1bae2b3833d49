/* Values of other frameworks' files that have a syntax of their own, and files nested without end.
 */
#include "sim/config/config.h"
#include "tests/suite.h"

#include <string.h>

/* Megatron-Bridge 5391's split of 80 layers in 40 chunks, and what is none. */
START_TEST(a_pipeline_layout_is_unrolled)
{
    static const struct {
        const char *layout;
        guint chunks, first, second, last; /* 0 chunks: even stages, and a note */
    } layouts[] = {
        {"Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", 40, 2, 2, 1},
        {"Ett|ttt|ttL", 3, 2, 3, 2},
        {"Et|(tt|)*2tL", 4, 1, 2, 1},
        {"(t|)*0t", 1, 1, 1, 1},
        {"Et|(tt|*2tL", 0, 0, 0, 0},
        {"Et*x|tL", 0, 0, 0, 0},
        {"Et|tmL", 0, 0, 0, 0},
        {"t*99999999999|t", 0, 0, 0, 0},
    };
    g_autofree char *text =
        g_strdup_printf("--pipeline-model-parallel-size 1 --tensor-model-parallel-size 4 "
                        "--pipeline-model-parallel-layout \"%s\" --micro-batch-size 1\n",
                        layouts[_i].layout);
    g_auto(GStrv) parts = g_strsplit(text, "-size 1", 2);
    g_autofree char *staged = g_strjoinv(layouts[_i].chunks == 40 ? "-size 8" : "-size 2", parts);
    g_autoptr(GError) error = NULL;
    g_autoptr(Config) config = config_parse(staged, "a.sh", &error);

    ck_assert_msg(config != NULL, "%s", error == NULL ? "" : error->message);
    ck_assert_uint_eq(config->num_chunks, layouts[_i].chunks);
    ck_assert_uint_eq(config->micro_batch, 1);
    if (layouts[_i].chunks == 0) {
        ck_assert_ptr_nonnull(strstr(g_ptr_array_index(config->notes, 0), "even stages"));
        return;
    }
    ck_assert_uint_eq(config->chunk_layers[0], layouts[_i].first);
    ck_assert_uint_eq(config->chunk_layers[MIN(1, layouts[_i].chunks - 1)], layouts[_i].second);
    ck_assert_uint_eq(config->chunk_layers[layouts[_i].chunks - 1], layouts[_i].last);
    ck_assert_uint_eq(config->virtual_stages,
                      layouts[_i].chunks == 40 ? 5 : MAX(1, layouts[_i].chunks / 2));
}
END_TEST

/* Nesting costs no stack: 100,000 levels of each syntax are refused, or read as they stand. */
START_TEST(deep_nesting_ends_no_program)
{
    static const struct {
        const char *source, *head, *level;
    } deep[] = {{"d.json", "", "["},         {"d.json", "", "{\"a\":"}, {"d.toml", "a = ", "["},
                {"d.toml", "a = ", "{b = "}, {"d.yaml", "a: ", "["},    {"d.yaml", "a: ", "{b: "},
                {"d.yaml", "", "- "},        {"d.sh", "--a ", "${A:-"}};
    g_autoptr(GString) text = g_string_new(deep[_i].head);
    g_autoptr(GError) error = NULL;

    for (guint i = 0; i < 100000; i++)
        g_string_append(text, deep[_i].level);
    g_autoptr(Config) config = config_parse(text->str, deep[_i].source, &error);
    ck_assert_ptr_null(config);
    ck_assert_ptr_nonnull(error);
}
END_TEST

START_TEST(a_misspelt_key_is_refused_with_the_one_that_is_meant)
{
    static const struct {
        const char *source, *text, *message;
    } cases[] = {
        {"a.toml", "[parallelism]\ndata_parallel_shard_degree = 8\ntensor_paralel_degree = 8\n",
         "a.toml:3: parallelism.tensor_paralel_degree = 8: must be called tensor_parallel_degree, "
         "if that is meant"},
        {"a.sh", "--micro-batch-size 1 --tensor-model-paralell-size 8\n",
         "a.sh:1: tensor_model_paralell_size = 8: must be called tensor_model_parallel_size, if "
         "that is meant"},
        {"a.json",
         "{\"train_batch_size\": 8, \"train_micro_batch_size_per_gpus\": 1, "
         "\"zero_optimization\": {\"stage\": 3}}",
         "a.json:train_micro_batch_size_per_gpus = 1: must be called "
         "train_micro_batch_size_per_gpu, if that is meant"}};
    g_autoptr(GError) error = NULL;
    g_autoptr(Config) config = config_parse(cases[_i].text, cases[_i].source, &error);

    ck_assert_ptr_null(config);
    ck_assert_str_eq(error->message, cases[_i].message);
}
END_TEST

/* What is short, or somebody's text, resembles much. */
START_TEST(keys_that_only_resemble_others_are_no_mistake)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Config) config = config_parse(
        "{\"train_batch_size\": 8, \"expert_parallel\": {\"autoep_size\": 4}, "
        "\"zero_optimization\": {\"stage\": 3}, "
        "\"names\": {\"gradient_accumulation_steps \": \"--gradient_accumulation_steps\"}}",
        "a.json", &error);

    ck_assert_msg(config != NULL, "%s", error == NULL ? "" : error->message);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("config_text");
    TCase *tcase = tcase_create("config_text");

    tcase_add_loop_test(tcase, a_pipeline_layout_is_unrolled, 0, 8);
    tcase_add_loop_test(tcase, deep_nesting_ends_no_program, 0, 8);
    tcase_add_loop_test(tcase, a_misspelt_key_is_refused_with_the_one_that_is_meant, 0, 3);
    tcase_add_test(tcase, keys_that_only_resemble_others_are_no_mistake);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
