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
    {"megatron-bridge", "GPT OSS 120B", "NVIDIA H100", "megatron-bridge-gpt-oss"},
    {"nemo", "Qwen3_30B_a3B", "DGX-H100", "nemo"},
    {"Megatron-Bridge", "Qwen3_235B_a22B", "NVIDIA DGX B200", "megatron-bridge-alltoall"},
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
    {"NeMo 24.07 / Megatron-Core", "Llama 3 8B", "", "", "nemo-flash2"},
    {"NeMo 24.03.01 / Megatron-Core", "GPT3-5B", "", "", "nemo-flash2-dropout"},
    {"NeMo 24.09 / Megatron-Core", "Llama 3 8B", "", "", "nemo"},
    {"NeMo 24.09 / Megatron-Core", "GPT3-5B", "", "", "nemo-dropout"},
    {"NeMo / Megatron-Core", "Llama 3 8B", "", "", "nemo"},
    {"NeMo/Megatron-Core (MLPerf-tuned)", "GPT-3 175B", "", "", "nemo"},
    {"Pax", "tiny", "", "github.com/NVIDIA/JAX-Toolbox@62799732 L155", "paxml-unfused"},
    {"Pax", "tiny", "", "github.com/NVIDIA/JAX-Toolbox@28603900 L160", "paxml"},
    {"torchtitan FSDP2", "Llama 3 8B", "eager", "llama3_h100_202412.md", "torchtitan-eager"},
    {"torchtitan FSDP2", "Llama 3 8B", "torch.compile", "llama3_h100_202412.md", "torchtitan"},
    {"torchtitan FSDP2", "Llama 3 8B", "torch.compile", "mxfp8.md", "torchtitan-2025"},
    {"torchtitan FSDP2", "Qwen3 8B", "torch.compile", "nvfp4.md", "torchtitan-2026"},
    {"torchtitan FSDP2", "Llama 3 8B", "torch.compile; float8", "", "torchtitan-fp8"},
    {"torchtitan FSDP2", "Llama 3 8B", "torch.compile; rowwise", "", "torchtitan-rowwise"},
    {"torchtitan FSDP2", "Llama 3 8B", "", "llama3-8b_h200_202506_trainy.md", "torchtitan-2025"},
    {"TorchTitan", "Llama 3 8B", "torch.compile", "", "torchtitan"},
    {"Megatron-Core", "tiny", "default", "tp2_pp2/model_config.yaml", "megatron"},
    {"Megatron-Core", "tiny", "default", "gpt/tp2_pp2_cross_entropy_loss_fusion/model_config.yaml",
     "megatron-fused-loss"},
    {"torchtitan of 2025-03", "Llama 3 8B", "torch.compile", "", "torchtitan"},
    {"torchtitan of 2025-04", "Llama 3 8B", "torch.compile", "", "torchtitan-2025"},
    {"torchtitan of 2025-04", "Llama 3 8B", "rowwise", "", "torchtitan-2025-rowwise"},
    {"torchtitan FSDP2", "Llama 3 8B", "PyTorch 20260415", "", "torchtitan-2026"},
    {"torchtitan FSDP2", "Llama 3 8B", "torch.compile", "@a202506b", "torchtitan"},
    {"torchtitan FSDP2", "Llama 2 13B", "", "docs/performance.md", "torchtitan-eager-norm"},
    {"torchtitan FSDP2", "Llama 3 70B", "", "docs/performance.md", "torchtitan-eager"},
    {"torchtitan FSDP2", "Llama 3.1 405B", "", "docs/performance.md", "torchtitan"},
    {"AA-Scaling (Megatron-like)", "Llama 13B", "fused", "", "aa-scaling-fused"},
    {"AA-Scaling (Megatron-like)", "Llama 13B", "flash_attention", "", "aa-scaling-flash2"},
    {"AA-Scaling (Megatron-like)", "Llama 13B", "flash_attentionv1.0.8", "", "aa-scaling-flash1"},
    {"AA-Scaling (Megatron-like)", "Llama 13B", "torch", "", "aa-scaling-torch"},
    {"PyTorch FSDP1", "Llama 2 7B", "torch.compile", "", "torchtitan"},
    {"PyTorch FSDP1", "Llama 2 7B", "", "", "torchtitan-eager"},
    {"PyTorch FSDP2", "Llama 2 7B", "", "", "torchtitan"},
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

/* Flash attention is as old as H100: what has either is not of 2021. */
static const struct {
    const char *framework, *gpu, *software, *locator, *recompute, *name;
} megatrons[] = {
    {"Megatron-LM", "V100", "", "", "", "megatron-2021-local"},
    {"Megatron-LM", "A100", "", "", "", "megatron-2021-local"},
    {"Megatron-LM", "A100", "", "github.com/NVIDIA/Megatron-LM README", "", "megatron-2021"},
    {"Megatron-LM", "A100", "", "arxiv 2104.04473 Table 1", "", "megatron-2021"},
    {"Megatron-LM", "A100", "FlashAttention-2", "", "", "megatron-flash2"},
    {"Megatron-LM", "A800", "flash_attn", "NVIDIA/Megatron-LM README", "", "megatron-flash2"},
    {"Megatron-LM", "H100", "", "", "", "megatron"},
    {"Megatron-LM", "B200", "", "github.com/NVIDIA/Megatron-LM README", "", "megatron"},
    {"Megatron-LM", "H800", "", "", "selective (norm, act)", "megatron-norm-act"},
    {"Megatron-Core", "H100", "", "", "selective (core attention)", "megatron"},
    {"Megatron-Core", "H100", "attention-backend unfused", "", "", "megatron-unfused"},
    {"NeMo", "H100", "", "", "selective (norm, act)", "nemo"},
};

START_TEST(a_megatron_is_as_old_as_its_gpu_and_attention)
{
    g_autofree char *named = with(row, "framework", megatrons[_i].framework);
    g_autofree char *gpu = with(named, "gpu", megatrons[_i].gpu);
    g_autofree char *memory = with(gpu, "gpu_mem_gb", "");
    g_autofree char *kind =
        with(memory, "recompute_kind", *megatrons[_i].recompute != '\0' ? "selective" : "full");
    g_autofree char *software = with(kind, "compile_or_flash", megatrons[_i].software);
    g_autofree char *text =
        g_strdup_printf("source_locator,recompute,%s%s,\"%s\",%s", header, megatrons[_i].locator,
                        megatrons[_i].recompute, software);
    g_autoptr(GError) error = NULL;
    g_autoptr(Csv) csv = csv_parse(text, "t.csv", &error);
    g_autoptr(GArray) read = records(csv);
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan =
        setup_plan(&g_array_index(read, Record, 0), "topologies", &share, &reason);

    ck_assert_msg(plan != NULL, "%s", reason);
    ck_assert_str_eq(plan->framework->name, megatrons[_i].name);
    ck_assert_int_eq(plan->schedule.recompute,
                     g_str_has_suffix(megatrons[_i].name, "norm-act") ? RECOMPUTE_NONE
                     : *megatrons[_i].recompute != '\0'               ? RECOMPUTE_SELECTIVE
                                                                      : RECOMPUTE_FULL);
}
END_TEST

/* FSDP's MixedPrecision of bf16 reduces in bf16, FSDP2 as torchtitan has it in fp32. */
START_TEST(the_first_fsdp_reduces_in_what_it_computes_with)
{
    static const struct {
        const char *framework;
        DType reduce;
    } kinds[] = {{"PyTorch FSDP1", DTYPE_BF16},
                 {"fms-fsdp", DTYPE_BF16},
                 {"PyTorch FSDP2", DTYPE_FP32},
                 {"torchtitan FSDP2", DTYPE_FP32}};

    for (guint i = 0; i < G_N_ELEMENTS(kinds); i++) {
        g_autofree char *text = with(row, "framework", kinds[i].framework);
        g_autofree char *reason = NULL;
        double share;
        g_autoptr(Plan) plan = plan_of(text, &share, &reason);

        ck_assert_msg(plan != NULL, "%s", reason);
        ck_assert_int_eq(plan->workload.recipe->reduce, kinds[i].reduce);
        ck_assert_int_eq(plan->workload.recipe->gradient, DTYPE_FP32);
    }
}
END_TEST

/* A row of the playbook's sweep with a micro-batch for each stage, and what its stages are made of.
 * A head of 131,072 x 2048 costs four of 1B's blocks (16 h^2 each), 1.1 of 80B's (14.5 h^2). */
static const struct {
    const char *layers, *hidden, *heads, *ffn, *pp, *tp, *gpus, *framework;
    guint16 cut[8];
} cuts[] = {
    {"16", "2048", "32", "8192", "2", "1", "2", "nanotron", {10, 6}}, /* a tie: 20 / 2 */
    {"16", "2048", "32", "8192", "4", "1", "4", "nanotron", {5, 5, 5, 1}},
    {"16", "2048", "32", "8192", "8", "1", "8", "nanotron", {3, 2, 3, 2, 3, 1, 1, 1}},
    {"16", "2048", "32", "8192", "2", "32", "64", "nanotron-waits", {11, 5}},
    {"16", "2048", "32", "8192", "4", "32", "128", "nanotron-waits", {6, 5, 4, 1}},
    {"80",
     "8192",
     "64",
     "28672",
     "8",
     "16",
     "128",
     "nanotron-waits",
     {11, 10, 10, 10, 10, 10, 10, 9}},
};

START_TEST(stages_of_nanotron_end_with_the_block_that_passes_their_part)
{
    g_autofree char *named = with(row, "framework", "nanotron");
    g_autofree char *deep = with(named, "layers", cuts[_i].layers);
    g_autofree char *wide = with(deep, "hidden", cuts[_i].hidden);
    g_autofree char *heads = with(wide, "heads", cuts[_i].heads);
    g_autofree char *keys = with(heads, "kv_heads", cuts[_i].heads);
    g_autofree char *ffn = with(keys, "ffn_hidden", cuts[_i].ffn);
    g_autofree char *vocab = with(ffn, "vocab", "131072");
    g_autofree char *staged = with(vocab, "pp", cuts[_i].pp);
    g_autofree char *split = with(staged, "tp", cuts[_i].tp);
    g_autofree char *alone = with(split, "dp", "1");
    g_autofree char *model = with(alone, "model", "Llama-style");
    g_autofree char *large = with(model, "gpus", cuts[_i].gpus);
    g_autofree char *text = with(large, "strategy_kind", "no_shard");
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(text, &share, &reason);

    ck_assert_msg(plan != NULL, "%s", reason);
    ck_assert_str_eq(plan->framework->name, cuts[_i].framework);
    for (guint s = 0; s < plan->layout.size[AXIS_PP]; s++)
        ck_assert_msg(plan->chunk_layers[s] == cuts[_i].cut[s], "stage %u has %u blocks, want %u",
                      s, plan->chunk_layers[s], cuts[_i].cut[s]);
}
END_TEST

static Suite *usage_suite(void)
{
    Suite *suite = suite_create("usage");
    TCase *test = tcase_create("usage");

    tcase_add_loop_test(test, a_mixture_is_one_graph_from_a_release_on, 0, G_N_ELEMENTS(graphs));
    tcase_add_loop_test(test, a_version_is_told_by_where_the_source_has_it, 0,
                        G_N_ELEMENTS(versions));
    tcase_add_loop_test(test, a_megatron_is_as_old_as_its_gpu_and_attention, 0,
                        G_N_ELEMENTS(megatrons));
    tcase_add_test(test, the_first_fsdp_reduces_in_what_it_computes_with);
    tcase_add_loop_test(test, a_framework_is_told_by_its_name_and_the_models, 0,
                        G_N_ELEMENTS(usages));
    tcase_add_loop_test(test, stages_of_nanotron_end_with_the_block_that_passes_their_part, 0,
                        G_N_ELEMENTS(cuts));
    suite_add_tcase(suite, test);
    return suite;
}

int main(void)
{
    return suite_run(usage_suite());
}
