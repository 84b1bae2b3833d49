#include "sim/base/error.h"
#include "sim/input/topology.h"
#include "tests/mutate.h"
#include "tests/suite.h"

#include <string.h>
#include <unistd.h>

/* Every documented group and key. */
static const char *const sample = "[cluster]\n"                                       /* 1 */
                                  "name = c\n"                                        /* 2 */
                                  "source = s\\\\t\n"                                 /* 3 */
                                  "nodes = 4\n"                                       /* 4 */
                                  "[node]\n"                                          /* 5 */
                                  "gpus = 8\n"                                        /* 6 */
                                  "gpu = g\n"                                         /* 7 */
                                  "cpu_memory = 2 TiB\n"                              /* 8 */
                                  "nics = 8\n"                                        /* 9 */
                                  "host_link = 64 GB/s\n"                             /* 10 */
                                  "storage_read = 10 GB/s\n"                          /* 11 */
                                  "storage_write = 5 GB/s\n"                          /* 12 */
                                  "[gpu g]\n"                                         /* 13 */
                                  "source = s\n"                                      /* 14 */
                                  "kind = cuda\n"                                     /* 15 */
                                  "fp32 = 66.9 TFLOP/s\n"                             /* 16 */
                                  "bf16 = 989.4 TFLOP/s\n"                            /* 17 */
                                  "fp8 = 1978.9 TFLOP/s\n"                            /* 18 */
                                  "memory = 80 GiB\n"                                 /* 19 */
                                  "memory_bandwidth = 3.35 TB/s\n"                    /* 20 */
                                  "# a comment\n"                                     /* 21 */
                                  "[network nvlink]\n"                                /* 22 */
                                  "kind = nvlink\n"                                   /* 23 */
                                  "span = 8\n"                                        /* 24 */
                                  "bandwidth = 450 GB/s\n"                            /* 25 */
                                  "latency = 2 us\n"                                  /* 26 */
                                  "[network ib]\n"                                    /* 27 */
                                  "kind = infiniband\n"                               /* 28 */
                                  "span = all\n"                                      /* 29 */
                                  "bandwidth = 50 GB/s\n"                             /* 30 */
                                  "latency = 5 us\n"                                  /* 31 */
                                  "oversubscription = 1.5\n"                          /* 32 */
                                  "[memory nvme]\n"                                   /* 33 */
                                  "capacity = 30 TB\n"                                /* 34 */
                                  "bandwidth = 6 GB/s\n"                              /* 35 */
                                  "latency = 80 us\n"                                 /* 36 */
                                  "[cost]\n"                                          /* 37 */
                                  "price_per_gpu_hour = 2.5\n"                        /* 38 */
                                  "power_per_gpu = 700 W\n"                           /* 39 */
                                  "[reliability]\n"                                   /* 40 */
                                  "gpu_mtbf = 1e8 s\n"                                /* 41 */
                                  "[measured machine]\n"                              /* 42 */
                                  "op_overhead = 1.5 us\n"                            /* 43 */
                                  "framework_memory = 300 MiB\n"                      /* 44 */
                                  "[measured gemm]\n"                                 /* 45 */
                                  "bf16/busy2/threads1/1024x768x256 = 63.1 GFLOP/s\n" /* 46 */
                                  "[measured ops]\n"                                  /* 47 */
                                  "rmsnorm/fp32/busy2/threads1/16777216 = 5.1 GB/s\n" /* 48 */
                                  "attention/fp32/busy1/threads2/512x64 = 40 GFLOP/s\n"
                                  "[measured collectives]\n"                   /* 50 */
                                  "all_gather/fp32/ranks2/1048576 = 103 us\n"; /* 51 */

static Topology *parse(const char *text, GError **error)
{
    return topology_parse(text, "t", "topologies", error);
}

/* @text with the first @from replaced. */
static char *replace(const char *text, const char *from, const char *to)
{
    g_auto(GStrv) parts = g_strsplit(text, from, 2);

    ck_assert_msg(g_strv_length(parts) == 2, "%s", from);
    return g_strjoinv(to, parts);
}

START_TEST(all_groups_are_read_in_base_units)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Topology) t = parse(sample, &error);

    ck_assert_msg(t != NULL, "%s", error != NULL ? error->message : "");
    ck_assert_str_eq(t->name, "c");
    ck_assert_str_eq(t->source, "s\\t");
    ck_assert_uint_eq(t->nodes, 4);
    ck_assert_uint_eq(t->gpus_per_node, 8);
    ck_assert_uint_eq(t->cpu_memory_bytes, G_GUINT64_CONSTANT(2) << 40);
    ck_assert_str_eq(t->gpu.name, "g");
    ck_assert_int_eq(t->gpu.kind, DEVICE_CUDA);
    ck_assert_double_eq(t->gpu.peak_flops[DTYPE_FP32], 66.9e12);
    ck_assert_double_eq(t->gpu.peak_flops[DTYPE_BF16], 989.4e12);
    ck_assert_double_eq(t->gpu.peak_flops[DTYPE_FP64], 0.0);
    ck_assert_uint_eq(t->gpu.memory_bytes, 85899345920);
    ck_assert_double_eq(t->gpu.memory_bytes_per_s, 3.35e12);
    ck_assert_uint_eq(t->networks->len, 2);
}
END_TEST

START_TEST(a_type_without_a_peak_has_that_of_fp32)
{
    const Gpu wide = {.peak_flops = {[DTYPE_FP32] = 2e12}};
    const Gpu both = {.peak_flops = {[DTYPE_FP32] = 2e12, [DTYPE_BF16] = 5e12}};
    const Gpu narrow = {.peak_flops = {[DTYPE_BF16] = 5e12}};

    ck_assert_double_eq(gpu_peak_flops(&wide, DTYPE_BF16), 2e12);
    ck_assert_double_eq(gpu_peak_flops(&both, DTYPE_BF16), 5e12);
    ck_assert_double_eq(gpu_peak_flops(&both, DTYPE_FP32), 2e12);
    ck_assert_double_eq(gpu_peak_flops(&narrow, DTYPE_FP32), 0.0);
}
END_TEST

START_TEST(network_levels_keep_their_order)
{
    g_autoptr(Topology) t = parse(sample, NULL);
    const NetworkLevel *inner = &g_array_index(t->networks, NetworkLevel, 0);
    const NetworkLevel *outer = &g_array_index(t->networks, NetworkLevel, 1);

    ck_assert_str_eq(inner->name, "nvlink");
    ck_assert_uint_eq(inner->span, 8);
    ck_assert_double_eq(inner->bytes_per_s, 450e9);
    ck_assert_double_eq(inner->latency_s, 2e-6);
    ck_assert_double_eq(inner->oversubscription, 1.0);
    ck_assert_str_eq(outer->kind, "infiniband");
    ck_assert_uint_eq(outer->span, 0);
    ck_assert_double_eq(outer->oversubscription, 1.5);
}
END_TEST

START_TEST(the_innermost_level_that_joins_the_ranks_is_taken)
{
    g_autoptr(Topology) t = parse(sample, NULL);

    ck_assert_str_eq(topology_level(t, 1)->name, "nvlink");
    ck_assert_str_eq(topology_level(t, 8)->name, "nvlink");
    ck_assert_str_eq(topology_level(t, 9)->name, "ib");
    ck_assert_str_eq(topology_level(t, 100000)->name, "ib");
}
END_TEST

START_TEST(measured_rows_are_read_from_their_keys)
{
    g_autoptr(Topology) t = parse(sample, NULL);
    const MeasuredGemm *gemm = &g_array_index(t->measured.gemm, MeasuredGemm, 0);
    const MeasuredOp *norm = &g_array_index(t->measured.ops, MeasuredOp, 0);
    const MeasuredOp *attention = &g_array_index(t->measured.ops, MeasuredOp, 1);
    const MeasuredCollective *gather =
        &g_array_index(t->measured.collectives, MeasuredCollective, 0);

    ck_assert(gemm->dtype == DTYPE_BF16 && gemm->busy == 2 && gemm->threads == 1);
    ck_assert(gemm->m == 1024 && gemm->n == 768 && gemm->k == 256);
    ck_assert_double_eq(gemm->flops_per_s, 63.1e9);
    ck_assert_str_eq(norm->op, "rmsnorm");
    ck_assert(norm->size == 16777216 && norm->width == 0);
    ck_assert_double_eq(norm->per_s, 5.1e9);
    ck_assert(attention->size == 512 && attention->width == 64 && attention->threads == 2);
    ck_assert_double_eq(attention->per_s, 40e9);
    ck_assert_str_eq(gather->collective, "all_gather");
    ck_assert(gather->ranks == 2 && gather->bytes == 1048576);
    ck_assert_double_eq(gather->seconds, 103e-6);
    ck_assert_double_eq(t->measured.op_overhead_s, 1.5e-6);
    ck_assert_uint_eq(t->measured.framework_bytes, 314572800);
}
END_TEST

/* Parse, print, parse, print: the two prints must be equal; the first is returned. */
static char *check_round_trip(const Topology *topology)
{
    char *text = topology_print(topology);
    g_autoptr(GError) error = NULL;
    g_autoptr(Topology) again = topology_parse(text, "printed", "nowhere", &error);

    ck_assert_msg(again != NULL, "%s\n%s", error != NULL ? error->message : "", text);

    g_autofree char *text_again = topology_print(again);

    ck_assert_str_eq(text_again, text);
    return text;
}

START_TEST(printing_loses_nothing)
{
    g_autoptr(Topology) t = parse(sample, NULL);
    g_autofree char *text = check_round_trip(t);
    g_auto(GStrv) lines = g_strsplit(sample, "\n", -1);

    for (guint i = 0; lines[i] != NULL; i++) {
        g_autofree char *printed =
            lines[i][0] == '['
                ? g_strdup(lines[i])
                : replace(lines[i][0] == '\0' || lines[i][0] == '#' ? "[cluster] = " : lines[i],
                          " = ", "=");

        /* What is the default, or reads better in another unit, is written otherwise. */
        if (strstr(printed, "span=all") != NULL || strstr(printed, "1e8") != NULL ||
            strstr(printed, "fp8") != NULL || g_str_equal(printed, "[cluster]="))
            continue;
        ck_assert_msg(strstr(text, printed) != NULL, "%s\n%s", printed, text);
    }
}
END_TEST

/* Each row of @from in turn with another key is put behind, with its own key in its place. */
START_TEST(a_row_takes_the_place_of_that_with_its_key)
{
    g_autoptr(Topology) t = parse(sample, NULL);
    g_autoptr(Topology) other = parse(sample, NULL);
    Measured *from = &other->measured;
    MeasuredGemm *gemm = &g_array_index(from->gemm, MeasuredGemm, 0);
    MeasuredOp *norm = &g_array_index(from->ops, MeasuredOp, 0);
    MeasuredCollective *gather = &g_array_index(from->collectives, MeasuredCollective, 0);

    gemm->flops_per_s = 1;
    norm->per_s = 2;
    gather->seconds = 3;
    measured_merge(&t->measured, from);
    ck_assert(t->measured.gemm->len == 1 && t->measured.ops->len == 2 &&
              t->measured.collectives->len == 1);
    ck_assert_double_eq(g_array_index(t->measured.gemm, MeasuredGemm, 0).flops_per_s, 1);
    ck_assert_double_eq(g_array_index(t->measured.ops, MeasuredOp, 0).per_s, 2);
    ck_assert_double_eq(g_array_index(t->measured.ops, MeasuredOp, 1).per_s, 40e9);
    ck_assert_double_eq(g_array_index(t->measured.collectives, MeasuredCollective, 0).seconds, 3);

    gemm->k++;
    norm->size++;
    gather->ranks++;
    t->measured.source = g_strdup("run 1 of here.db; run 2 of there.db");
    measured_merge(&t->measured, from);
    ck_assert(t->measured.gemm->len == 2 && t->measured.ops->len == 3 &&
              t->measured.collectives->len == 2);
    g_autofree char *text = check_round_trip(t);
    ck_assert_ptr_nonnull(strstr(text, "run 2 of there.db\n"));
}
END_TEST

START_TEST(measured_values_survive_to_the_last_bit)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(5);
    g_autoptr(Topology) t = parse(sample, NULL);
    MeasuredGemm *gemm = &g_array_index(t->measured.gemm, MeasuredGemm, 0);
    MeasuredCollective *gather = &g_array_index(t->measured.collectives, MeasuredCollective, 0);

    for (guint i = 0; i < 200; i++) {
        gemm->flops_per_s = 1e9 + 1e11 * g_rand_double(random);
        gather->seconds = 1e-6 + 1e-3 * g_rand_double(random);

        g_autofree char *text = topology_print(t);
        g_autoptr(Topology) again = parse(text, NULL);

        ck_assert_double_eq(g_array_index(again->measured.gemm, MeasuredGemm, 0).flops_per_s,
                            gemm->flops_per_s);
        ck_assert_double_eq(
            g_array_index(again->measured.collectives, MeasuredCollective, 0).seconds,
            gather->seconds);
    }
}
END_TEST

static const struct {
    const char *from, *to, *message;
} refused[] = {
    {"latency = 2 us", "latancy = 2 us",
     "t:26: [network nvlink] latancy: unknown key (did you mean \"latency\"?)"},
    {"[cost]", "[costs]", "t:37: [costs]: unknown group (did you mean \"cost\"?)"},
    {"[measured gemm]", "[measured gem]", "t:45: [measured gem]: unknown group"},
    {"[network ib]", "[network nvlink]", "t:27: [network nvlink] is already in line 22"},
    {"nodes = 4", "nodes = 4\nnodes = 5", "t:5: [cluster] nodes is already in line 4"},
    {"nodes = 4\n", "", "t:1: [cluster]: key \"nodes\" is missing"},
    {"nodes = 4", "nodes = 0", "t:4: [cluster] nodes: \"0\": allowed: an integer from 1"},
    {"nodes = 4", "nodes =", "t:4: \"nodes =\": the value is missing"},
    {"nodes = 4", "nodes 4", "t:4: \"nodes 4\""},
    {"gpus = 8", "gpus = auto", "t:6: [node] gpus: auto is for a GPU of kind = cpu"},
    {"gpus = 8", "gpus = many",
     "t:6: [node] gpus: \"many\": allowed: an integer from 1 to 4096, or auto"},
    {"memory = 80 GiB", "memory = auto", "t:19: [gpu g] memory: auto is for kind = cpu"},
    {"memory = 80 GiB", "memory = 80",
     "t:19: [gpu g] memory: \"80\": allowed: a number >= 0 and B"},
    {"450 GB/s", "450 Gb/s", "t:25: [network nvlink] bandwidth: \"450 Gb/s\""},
    {"450 GB/s", "0 GB/s", "allowed: at least 1 kB/s"},
    {"450 GB/s", "450 PB/s",
     "t:25: [network nvlink] bandwidth: \"450 PB/s\": allowed: at most 100"},
    {"989.4 TFLOP/s", "989.4 FLOP/s",
     "t:17: [gpu g] bf16: \"989.4 FLOP/s\": allowed: at least 1 M"},
    {"80 GiB", "80 B", "allowed: at least 1 kB"},
    {"latency = 5 us", "latency = 1e9 s",
     "t:31: [network ib] latency: \"1e9 s\": allowed: at most 10"},
    {"price_per_gpu_hour = 2.5", "price_per_gpu_hour = 0", "\"0\": allowed: at least 1e-06"},
    {"power_per_gpu = 700 W", "power_per_gpu = 0 W", "\"0 W\": allowed: at least 1 W"},
    {"gpu_mtbf = 1e8 s", "restart = 0 s", "\"0 s\": allowed: at least 1 ms"},
    {"span = 8", "span = 3",
     "t:24: [network nvlink] span: 3, where a node has 8 GPUs; allowed: what divides them"},
    {"span = 8", "span = 12", "12, where a node has 8 GPUs"},
    {"span = 8",
     "span = 4\nbandwidth = 1 GB/s\nlatency = 1 us\n[network two]\nkind = nvlink\nspan = 6",
     "t:29: [network two] span: 6, where a node has 8 GPUs"},
    {"capacity = 30 TB", "capacity = 30 TB\nspan = 5",
     "t:35: [memory nvme] span: 5, where a node has 8 GPUs"},
    {"span = 8", "span = 1", "t:24: [network nvlink] span: \"1\""},
    {"span = all", "span = 8", "t:29: [network ib] span: levels come innermost first"},
    {"span = all", "span = 16",
     "[network ib] span: 16 of 32 GPUs; allowed for the outermost level: all"},
    {"span = 8", "span = all",
     "innermost first; allowed: a larger span than the level before (which joins all)"},
    {"oversubscription = 1.5", "oversubscription = 0.5",
     "t:32: [network ib] oversubscription: \"0.5\": allowed: at least 1"},
    {"kind = cuda", "kind = tpu", "t:15: [gpu g] kind: \"tpu\": allowed: cpu, cuda"},
    {"gpu = g", "gpu = h", "t:13: [gpu g]: [node] has gpu = h; unsupported: mixed GPUs"},
    {"gpu = g", "gpu = g, h", "unsupported: mixed GPUs"},
    {"gpu = g", "gpu = 4x g + 4x h", "unsupported: mixed GPUs"},
    {"[gpu g]", "[node two]", "unsupported: mixed GPUs"},
    {"[gpu g]", "[gpu]", "t:13: [gpu]: unknown group"},
    {"bf16/busy2/threads1/1024x768x256", "bf16/busy2/threads1/1024x768",
     "t:46: [measured gemm] bf16/busy2/threads1/1024x768: unknown key; allowed: DTYPE/"},
    {"bf16/busy2", "bf17/busy2", "unknown key"},
    {"bf16/busy2", "bf16/busy0", "unknown key"},
    {"63.1 GFLOP/s", "0 GFLOP/s", "allowed: more than 0"},
    {"63.1 GFLOP/s", "63.1 GB/s", "FLOP/s"},
    {"attention/fp32/busy1/threads2/512x64", "attention/fp32/busy1/threads2/512", "unknown key"},
    {"16777216 = 5.1 GB/s", "16777216x4 = 5.1 GB/s", "unknown key"},
    {"all_gather/fp32", "allgather/fp32", "all_gather, reduce_scatter, all_reduce, exchange"},
    {"[cluster]", "x = 1\n[cluster]", "t:1: \"x = 1\" comes before the first [group]"},
    {"[node]", "[node", "t:5: \"[node\": allowed: [group]"},
    {"source = s\\\\t", "source = \\q", "t:3:"},
    {"name = c", "name = \xff", "not UTF-8"},
};

START_TEST(mistakes_are_refused_with_line_key_value_and_what_is_allowed)
{
    g_autofree char *text = replace(sample, refused[_i].from, refused[_i].to);
    g_autoptr(GError) error = NULL;

    ck_assert_ptr_null(parse(text, &error));
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
    ck_assert_msg(strstr(error->message, refused[_i].message) != NULL, "%s", error->message);
    ck_assert_ptr_null(strchr(error->message, '\n'));
}
END_TEST

/* Whatever number is written, a slip of many powers of ten is not taken for one. */
START_TEST(no_number_of_a_file_is_without_a_bound)
{
    g_autofree char *reliability = replace(sample, "gpu_mtbf = 1e8 s",
                                           "gpu_mtbf = 1e8 s\nnode_mtbf = 1e8 s\n"
                                           "checkpoint_bandwidth = 1 GB/s\nrestart = 60 s");
    g_autofree char *memory =
        replace(reliability, "capacity = 30 TB", "capacity = 30 TB\nspan = 4");
    g_auto(GStrv) lines = g_strsplit(memory, "\n", -1);
    guint numbers = 0;

    for (guint i = 0; lines[i] != NULL; i++) {
        g_auto(GStrv) pair = g_strsplit(lines[i], " = ", 2);
        g_autoptr(GError) error = NULL;

        if (g_strv_length(pair) != 2 || !g_ascii_isdigit(pair[1][0]))
            continue;
        char *kept = lines[i];
        const char *unit = strchr(pair[1], ' ');
        lines[i] = g_strdup_printf("%s = 1e30%s", pair[0], unit == NULL ? "" : unit);
        g_autofree char *text = g_strjoinv("\n", lines);
        ck_assert_msg(parse(text, &error) == NULL, "%s", lines[i]);
        ck_assert_msg(strstr(error->message, "1e30") != NULL &&
                          strstr(error->message, "allowed: ") != NULL,
                      "%s", error->message);
        g_free(lines[i]);
        lines[i] = kept;
        numbers++;
    }
    ck_assert_uint_ge(numbers, 30);
}
END_TEST

START_TEST(missing_groups_are_refused)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "[cluster] is missing"},
        {"# nothing\n\n", "[cluster] is missing"},
        {"[cluster]\nname = a\nsource = b\nnodes = 1\n", "[node] is missing"},
        {"[cluster]\nname = a\nsource = b\nnodes = 1\n[node]\ngpus = 1\ngpu = h100-sxm-80gb\n",
         "no [network NAME]"},
        {"[cluster]\nname = a\nsource = b\nnodes = 1\n[node]\ngpus = 1\ngpu = h101\n",
         "t:7: [node] gpu: \"h101\" is unknown; allowed: a [gpu h101] of this file (source, kind, "
         "bf16 and others "
         "it has as dense peaks, memory, memory_bandwidth)"},
        {"[cluster]\nname = a\nsource = b\nnodes = 1\n[node]\ngpus = 1\ngpu = ../localhost\n",
         "\"../localhost\" is unknown"},
    };

    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;

        ck_assert_ptr_null(parse(cases[i].text, &error));
        ck_assert_msg(strstr(error->message, cases[i].message) != NULL, "%s", error->message);
    }
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

static Topology *loaded(const char *text)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *path = NULL;
    const int file = g_file_open_tmp("topology-XXXXXX", &path, NULL);

    ck_assert_int_ge(file, 0);
    close(file);
    ck_assert(g_file_set_contents(path, text, -1, NULL));
    Topology *topology = topology_load(path, "topologies", &error);
    unlink(path);
    ck_assert_msg(topology != NULL, "%s", error == NULL ? "" : error->message);
    return topology;
}

/* nccl-tests 232: one GPU beside four adapters of 50 GB/s was expected to have 200. */
START_TEST(a_bandwidth_of_all_adapters_together_is_doubted_aloud)
{
    g_autoptr(GString) said = g_string_new(NULL);
    g_autofree char *more = replace(sample, "bandwidth = 50 GB/s", "bandwidth = 200 GB/s");

    g_log_set_writer_func(keep_message, said, NULL);
    g_autoptr(Topology) plain = loaded(sample);
    ck_assert_str_eq(said->str, "");
    g_autoptr(Topology) doubted = loaded(more);
    ck_assert_double_eq(g_array_index(doubted->networks, NetworkLevel, 1).bytes_per_s, 200e9);
    ck_assert_msg(strstr(said->str, ": [network ib] bandwidth = 200 GB/s is more than a GPU's "
                                    "host_link, 64 GB/s: it is what one GPU sends") != NULL,
                  "%s", said->str);
}
END_TEST

START_TEST(shipped_files_load_and_survive_printing)
{
    GDir *dir = g_dir_open("topologies", 0, NULL);
    g_autoptr(GString) said = g_string_new(NULL);
    guint num = 0;

    g_log_set_writer_func(keep_message, said, NULL);

    ck_assert_ptr_nonnull(dir);
    for (const char *name; (name = g_dir_read_name(dir)) != NULL;) {
        if (g_str_equal(name, "gpus"))
            continue;
        g_autoptr(GError) error = NULL;
        g_autoptr(Topology) topology = topology_load(name, "topologies", &error);

        ck_assert_msg(topology != NULL, "%s", error != NULL ? error->message : "");
        ck_assert_str_eq(topology->name, name);
        g_free(check_round_trip(topology));
        num++;
    }
    g_dir_close(dir);
    ck_assert_uint_ge(num, 2);
    ck_assert_str_eq(said->str, "");
}
END_TEST

START_TEST(localhost_is_this_machine)
{
    g_autoptr(Topology) topology = topology_load("localhost", "topologies", NULL);

    ck_assert_int_eq(topology->gpu.kind, DEVICE_CPU);
    ck_assert_uint_eq(topology->gpus_per_node, g_get_num_processors());
    ck_assert_uint_gt(topology->cpu_memory_bytes, G_GUINT64_CONSTANT(1) << 28);
    ck_assert_uint_eq(topology->gpu.memory_bytes, topology->cpu_memory_bytes);
    ck_assert_uint_eq(topology->networks->len, 1);
    ck_assert_str_eq(g_array_index(topology->networks, NetworkLevel, 0).kind, "shared_memory");
}
END_TEST

START_TEST(unknown_names_are_refused_with_those_that_ship)
{
    g_autoptr(GError) error = NULL;

    ck_assert_ptr_null(topology_load("dgx-h200", "topologies", &error));
    ck_assert_ptr_nonnull(strstr(error->message, "dgx-h200"));
    ck_assert_ptr_nonnull(strstr(error->message, "localhost"));
    g_clear_error(&error);
    ck_assert_ptr_null(topology_load("dgx-h10", "topologies", &error));
    ck_assert_ptr_nonnull(strstr(error->message, "did you mean \"dgx-h100\"?"));
    g_clear_error(&error);
    ck_assert_ptr_null(topology_load("A800", "topologies", &error));
    ck_assert_ptr_nonnull(strstr(error->message, "(a800-sxm-80gb is a GPU; a topology says"));
    g_clear_error(&error);
    ck_assert_ptr_null(topology_load("H20", "topologies", &error)); /* rather than hgx-h200 */
    ck_assert_ptr_nonnull(strstr(error->message, "(h20-sxm-96gb is a GPU; a topology says"));
}
END_TEST

START_TEST(damaged_files_give_an_error_or_a_topology_never_a_crash)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(31);
    guint accepted = 0;

    for (guint i = 0; i < 3000; i++) {
        g_autofree char *text = i % 8 == 0 ? random_bytes(random, i % 200) : mutate(sample, random);
        g_autoptr(GError) error = NULL;
        g_autoptr(Topology) topology = parse(text, &error);

        ck_assert_msg((topology == NULL) == (error != NULL), "%s", text);
        if (topology == NULL)
            continue;
        accepted++;
        g_free(check_round_trip(topology));
        ck_assert_ptr_nonnull(topology_level(topology, 1000));
    }
    ck_assert_uint_gt(accepted, 0); /* else the damage hides what comes after the syntax */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("topology");
    TCase *tcase = tcase_create("topology");

    g_log_set_always_fatal(G_LOG_LEVEL_CRITICAL | G_LOG_FLAG_FATAL);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, all_groups_are_read_in_base_units);
    tcase_add_test(tcase, a_type_without_a_peak_has_that_of_fp32);
    tcase_add_test(tcase, network_levels_keep_their_order);
    tcase_add_test(tcase, the_innermost_level_that_joins_the_ranks_is_taken);
    tcase_add_test(tcase, measured_rows_are_read_from_their_keys);
    tcase_add_test(tcase, printing_loses_nothing);
    tcase_add_test(tcase, a_row_takes_the_place_of_that_with_its_key);
    tcase_add_test(tcase, measured_values_survive_to_the_last_bit);
    tcase_add_loop_test(tcase, mistakes_are_refused_with_line_key_value_and_what_is_allowed, 0,
                        G_N_ELEMENTS(refused));
    tcase_add_test(tcase, no_number_of_a_file_is_without_a_bound);
    tcase_add_test(tcase, missing_groups_are_refused);
    tcase_add_test(tcase, shipped_files_load_and_survive_printing);
    tcase_add_test(tcase, a_bandwidth_of_all_adapters_together_is_doubted_aloud);
    tcase_add_test(tcase, localhost_is_this_machine);
    tcase_add_test(tcase, unknown_names_are_refused_with_those_that_ship);
    tcase_add_test(tcase, damaged_files_give_an_error_or_a_topology_never_a_crash);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
