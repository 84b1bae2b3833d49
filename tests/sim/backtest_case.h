/* Small tables of published runs, and the plans that they become. */
#pragma once

#include "sim/backtest/backtest.h"
#include "sim/backtest/setup.h"
#include "tests/suite.h"

#include <string.h>

static const char *const header =
    "id,model,params_b,layers,hidden,heads,kv_heads,ffn_hidden,vocab,seq_len,gpu,gpu_mem_gb,gpus,"
    "gpus_per_node,network,framework,dp,fsdp_strategy,tp,sp,pp,vpp,cp,ep,micro_batch,global_batch,"
    "precision,compile_or_flash,tokens_per_s_per_gpu,tflops_per_gpu,mfu_pct,step_time_s,"
    "peak_mem_gb,status,active_params_b,trust,flags,strategy_kind,recompute_kind,precision_kind,"
    "mem_kind,group\n";

/* Two layers on eight A100, fully sharded, a step of two seconds. */
static const char *const row =
    "T-1,tiny,,2,1024,8,8,4096,32000,2048,A100,80,8,8,,torchtitan,8,,1,,1,,"
    "1,,1,8,bf16,,,,,2,,ok,,high,,full_shard,none,bf16,,g\n";

/* @row with one column changed. */
static inline char *with(const char *text, const char *column, const char *value)
{
    g_auto(GStrv) names = g_strsplit(header, ",", -1);
    g_auto(GStrv) fields = g_strsplit(text, ",", -1);

    for (guint i = 0; names[i] != NULL; i++)
        if (strcmp(g_strchomp(names[i]), column) == 0) {
            g_free(fields[i]);
            fields[i] = g_strdup_printf("%s%s", value, names[i + 1] == NULL ? "\n" : "");
            return g_strjoinv(",", fields);
        }
    g_assert_not_reached();
}

static inline Csv *table(const char *rows)
{
    g_autofree char *text = g_strconcat(header, rows, NULL);
    g_autoptr(GError) error = NULL;
    Csv *csv = csv_parse(text, "t.csv", &error);

    ck_assert_msg(csv != NULL, "%s", error != NULL ? error->message : "");
    return csv;
}

static inline GArray *records(const Csv *csv)
{
    g_autoptr(GError) error = NULL;
    GArray *read = records_read(csv, &error);

    ck_assert_msg(read != NULL, "%s", error != NULL ? error->message : "");
    return read;
}

/* Two layers of it on eight H100. */
static const char *const sparse_row =
    "T-2,Qwen3_30B_a3B,,2,2048,32,4,768,32000,2048,H100,80,8,8,,Megatron-Core,8,,1,,1,,"
    "1,8,1,8,bf16,,,,,2,,ok,3.3,high,,shard_optimizer,none,bf16,,g\n";

static inline Plan *plan_of(const char *text, double *share, char **reason)
{
    g_autoptr(Csv) csv = table(text);
    g_autoptr(GArray) read = records(csv);

    return setup_plan(&g_array_index(read, Record, 0), "topologies", share, reason);
}
