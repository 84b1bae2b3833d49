/* What tables call frameworks, and what follows from it. */
#include "sim/cost/framework.h"
#include "tests/sim/backtest_case.h"

static const struct {
    const char *framework, *model, *gpu, *name;
} usages[] = {
    {"Megatron-Bridge", "GPT OSS 120B", "H100", "megatron-bridge-gpt-oss"},
    {"Megatron-Bridge", "gpt-oss-20b", "B200", "megatron-bridge-gpt-oss"},
    {"Megatron-Bridge", "Qwen3_30B_a3B", "H100", "megatron-bridge"},
    {"Megatron-Bridge", "Qwen3_235B_a22B", "H100", "megatron-bridge-overlap"},
    {"Megatron-Bridge", "Qwen3_235B_a22B", "B200", "megatron-bridge-alltoall"},
    {"Megatron-Bridge", "Qwen3_235B_a22B", "GB300", "megatron-bridge"},
    {"NeMo", "Qwen3_30B_a3B", "H100", "nemo"},
    {"Megatron-Core", "GPT OSS 120B", "H100", "megatron"},
};

START_TEST(a_framework_is_told_by_its_name_and_the_models)
{
    g_autofree char *named = with(sparse_row, "framework", usages[_i].framework);
    g_autofree char *gpu = with(named, "gpu", usages[_i].gpu);
    g_autofree char *memory = with(gpu, "gpu_mem_gb", "");
    g_autofree char *text = with(memory, "model", usages[_i].model);
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(text, &share, &reason);

    ck_assert_msg(plan != NULL, "%s", reason);
    ck_assert_str_eq(plan->framework->name, usages[_i].name);
}
END_TEST

/* From 26.06 on, in MXFP8, on GPUs of a rack: all of it, and only of mixtures; of others Qwen3-30B
 * on B300, from 26.08 on on B200 too. */
static const struct {
    const char *framework, *gpu, *precision, *name;
} graphs[] = {
    {"Megatron-Bridge / Megatron-Core 26.06.01", "GB300", "MXFP8", "megatron-bridge-graph"},
    {"Megatron-Bridge / Megatron-Core 26.08", "GB200", "MXFP8", "megatron-bridge-graph"},
    {"Megatron-Bridge / Megatron-Core 26.04.01", "GB300", "MXFP8", "megatron-bridge"},
    {"Megatron-Bridge / Megatron-Core 26.06", "B300", "MXFP8", "megatron-bridge-graph"},
    {"Megatron-Bridge / Megatron-Core 26.08", "B200", "MXFP8", "megatron-bridge-graph"},
    {"Megatron-Bridge / Megatron-Core 26.06", "B200", "MXFP8", "megatron-bridge"},
    {"Megatron-Bridge / Megatron-Core 26.06", "GB300", "FP8", "megatron-bridge"},
};

START_TEST(a_mixture_is_one_graph_from_a_release_on)
{
    const char *const rows[] = {sparse_row, row};

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autofree char *named = with(rows[i], "framework", graphs[_i].framework);
        g_autofree char *gpu = with(named, "gpu", graphs[_i].gpu);
        g_autofree char *memory = with(gpu, "gpu_mem_gb", "");
        g_autofree char *text = with(memory, "precision", graphs[_i].precision);
        g_autofree char *reason = NULL;
        double share;
        g_autoptr(Plan) plan = plan_of(text, &share, &reason);

        ck_assert_msg(plan != NULL, "%s", reason);
        ck_assert_str_eq(plan->framework->name, i == 0 ? graphs[_i].name : "megatron-bridge");
    }
}
END_TEST

/* A table may have the column that says where in its source a run stands, or not. */
static const struct {
    const char *framework, *model, *software, *locator, *name;
} versions[] = {
    {"NeMo 24.07 / Megatron-Core", "GPT3-175B", "", "", "nemo-dropout"},
    {"NeMo 24.07 / Megatron-Core", "Llama 3 8B", "", "", "nemo"},
    {"NeMo/Megatron-Core (MLPerf-tuned)", "GPT-3 175B", "", "", "nemo"},
    {"Pax", "tiny", "", "github.com/NVIDIA/JAX-Toolbox@62799732 L155", "paxml-unfused"},
    {"Pax", "tiny", "", "github.com/NVIDIA/JAX-Toolbox@28603900 L160", "paxml"},
    {"torchtitan FSDP2", "Llama 3 8B", "eager", "llama3_h100_202412.md", "torchtitan-eager"},
    {"torchtitan FSDP2", "Llama 3 8B", "torch.compile", "llama3_h100_202412.md", "torchtitan"},
    {"torchtitan FSDP2", "Llama 3 8B", "torch.compile", "mxfp8.md", "torchtitan-2025"},
    {"torchtitan FSDP2", "Qwen3 8B", "torch.compile", "nvfp4.md", "torchtitan-2026"},
    {"torchtitan FSDP2", "Llama 2 13B", "", "docs/performance.md", "torchtitan-eager-norm"},
    {"torchtitan FSDP2", "Llama 3 70B", "", "docs/performance.md", "torchtitan-eager"},
    {"torchtitan FSDP2", "Llama 3.1 405B", "", "docs/performance.md", "torchtitan"},
};

START_TEST(a_version_is_told_by_where_the_source_has_it)
{
    g_autofree char *named = with(row, "framework", versions[_i].framework);
    g_autofree char *model = with(named, "model", versions[_i].model);
    g_autofree char *software = with(model, "compile_or_flash", versions[_i].software);
    g_autofree char *text =
        g_strdup_printf("source_locator,%s%s,%s", header, versions[_i].locator, software);
    g_autoptr(GError) error = NULL;
    g_autoptr(Csv) csv = csv_parse(text, "t.csv", &error);
    g_autoptr(GArray) read = records(csv);
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan =
        setup_plan(&g_array_index(read, Record, 0), "topologies", &share, &reason);

    ck_assert_msg(plan != NULL, "%s", reason);
    ck_assert_str_eq(plan->framework->name, versions[_i].name);
}
END_TEST

static Suite *usage_suite(void)
{
    Suite *suite = suite_create("usage");
    TCase *test = tcase_create("usage");

    tcase_add_loop_test(test, a_mixture_is_one_graph_from_a_release_on, 0, G_N_ELEMENTS(graphs));
    tcase_add_loop_test(test, a_version_is_told_by_where_the_source_has_it, 0,
                        G_N_ELEMENTS(versions));
    tcase_add_loop_test(test, a_framework_is_told_by_its_name_and_the_models, 0,
                        G_N_ELEMENTS(usages));
    suite_add_tcase(suite, test);
    return suite;
}

int main(void)
{
    return suite_run(usage_suite());
}
