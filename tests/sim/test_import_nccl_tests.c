#include "tests/sim/import_case.h"

static const ImportOptions hgx = {.topology = "hgx-h200"}, alps = {.topology = "alps"},
                           nothing = {.gpu = NULL};

/* 2 GPUs: busbw is algbw for all_reduce, half of it for the others.  The first column of times is
 * the one that counts. */
static const char *const reduced =
    "# nccl-tests version 2.17\n"
    "# Collective test starting: all_reduce_perf\n"
    "# nThread 1 nGpus 2 minBytes 1024 maxBytes 4096\n"
    "#\n"
    "# Using devices\n"
    "#  Rank  0 Group  0 Pid     11 on   nodeA device  0 [0x1a] NVIDIA H200\n"
    "#  Rank  1 Group  0 Pid     11 on   nodeA device  1 [0x1b] NVIDIA H200\n"
    "#\n"
    "#        out-of-place                    in-place\n"
    "#   size  count   type  redop  root   time  algbw  busbw #wrong   time  algbw  busbw #wrong\n"
    "#    (B)  (elements)                  (us)  (GB/s) (GB/s)         (us)  (GB/s) (GB/s)\n"
    "       0      0  float    sum    -1   5.00   0.00   0.00      0   9.00   0.00   0.00      0\n"
    "nodeA:11:11 [0] NCCL INFO a line of the log\n"
    " 1048576 262144  float    sum    -1  20.00  52.43  52.43      0  90.00  11.65  11.65      0\n"
    " 2097152 524288  float    sum    -1  40.00  52.43  52.43    N/A  90.00  23.30  23.30    N/A\n"
    "# Out of bounds values : 0 OK\n"
    "# Avg bus bandwidth    : 26.2\n";

/* As older versions print it: nothing names the test. */
static const char *const old =
    "# Using devices\n"
    "#   Rank  0 Pid 7 on localhost device  0 [0x00] H200\n"
    "#   Rank  1 Pid 7 on localhost device  1 [0x00] H200\n"
    "#   size  count   type  time  algbw  busbw error   time  algbw  busbw error\n"
    " 1048576 131072  float 20.00  52.43  26.21 0e+00  20.00  52.43  26.21 0e+00\n"
    "# Out of bounds values : 0 OK\n";

static const MeasuredCollective *row(const Topology *topology, guint i)
{
    ck_assert_uint_lt(i, topology->measured.collectives->len);
    return &g_array_index(topology->measured.collectives, MeasuredCollective, i);
}

START_TEST(rows_are_out_of_place_times_of_whole_buffers)
{
    g_autoptr(Topology) t = imported(reduced, &hgx);

    ck_assert_uint_eq(t->measured.collectives->len, 2); /* no row for 0 bytes */
    ck_assert_str_eq(row(t, 0)->collective, "all_reduce");
    ck_assert_int_eq(row(t, 0)->dtype, DTYPE_FP32);
    ck_assert_uint_eq(row(t, 0)->ranks, 2);
    ck_assert_uint_eq(row(t, 0)->bytes, 1048576);
    ck_assert_double_eq(row(t, 0)->seconds, 20e-6);
    ck_assert_uint_eq(row(t, 1)->bytes, 2097152);
    ck_assert_double_eq(row(t, 1)->seconds, 40e-6);
    ck_assert_ptr_nonnull(strstr(t->source, "all_reduce: f (nccl-tests"));
    ck_assert_uint_eq(t->networks->len, 2); /* the rest is as it was */
}
END_TEST

START_TEST(element_types_are_kept)
{
    g_autofree char *wide = replaced(reduced, "262144  float", "131072 double");
    g_autofree char *narrow = replaced(wide, "524288  float", "1048576 bfloat16");
    g_autofree char *half = replaced(reduced, "262144  float", "524288  half ");
    g_autofree char *whole = replaced(reduced, "262144  float", "262144  int32");
    g_autoptr(Topology) t = imported(narrow, &hgx), h = imported(half, &hgx);

    ck_assert_int_eq(row(t, 0)->dtype, DTYPE_FP64);
    ck_assert_int_eq(row(t, 1)->dtype, DTYPE_BF16);
    ck_assert_int_eq(row(h, 0)->dtype, DTYPE_FP16);
    check_refused(whole, &hgx, "f:14: type int32; allowed: float, half, bfloat16, double");
}
END_TEST

START_TEST(old_tables_are_told_apart_by_their_columns)
{
    g_autofree char *redop = replaced(old, "type  time", "type redop  time");
    g_autofree char *scatter = replaced(redop, "float 20.00", "float sum 20.00");
    g_autofree char *counted = replaced(scatter, "131072", "262144");
    g_autofree char *half = replaced(counted, "26.21", "52.43");
    g_autofree char *reduce = replaced(half, "26.21", "52.43");
    g_autofree char *root = replaced(old, "type  time", "type root time");
    g_autoptr(Topology) gather = imported(old, &hgx), s = imported(scatter, &hgx),
                        r = imported(reduce, &hgx);

    ck_assert_str_eq(row(gather, 0)->collective, "all_gather");
    ck_assert_str_eq(row(s, 0)->collective, "reduce_scatter");
    ck_assert_str_eq(row(r, 0)->collective, "all_reduce");
    check_refused(redop, &hgx, "f:5: a test without redop, as alltoall_perf");
    check_refused(root, &hgx, "f:4: a test that is not named");
}
END_TEST

/* A paste without the command and the first lines, as most are. */
START_TEST(new_tables_without_a_name_are_told_apart_by_redop_and_root)
{
    g_autofree char *unnamed =
        replaced(reduced, "# Collective test starting: all_reduce_perf\n", "");
    g_autofree char *one =
        replaced(unnamed, " 2097152 524288  float    sum    -1  40.00  52.43  52.43    N/A", "#");
    g_autofree char *shared = replaced(one, "262144", "131072");
    g_autofree char *scatter = replaced(shared, "20.00  52.43  52.43", "20.00  52.43  26.21");
    g_autofree char *gather = replaced(scatter, "sum    -1  20", "none   -1  20");
    g_autofree char *rooted = replaced(one, "sum    -1  20", "sum     0  20");
    g_autoptr(Topology) r = imported(unnamed, &hgx), s = imported(scatter, &hgx);

    ck_assert_uint_eq(r->measured.collectives->len, 2);
    ck_assert_str_eq(row(r, 0)->collective, "all_reduce");
    ck_assert_str_eq(row(s, 0)->collective, "reduce_scatter");
    check_refused(gather, &hgx,
                  "f:13: redop none, root -1, and no test is named: all_gather_perf and "
                  "alltoall_perf look the same; allowed: all_gather_perf");
    check_refused(rooted, &hgx, "f:13: redop sum, root 0, and no test is named; allowed: ");
    /* 8 GPUs' busbw is 1.75 times algbw: a table of 2 is none of theirs */
    g_autofree char *damaged_row = replaced(one, "20.00  52.43  52.43", "20.00  52.43  91.75");
    check_refused(damaged_row, &hgx, "don't belong together for all_reduce over 2");
}
END_TEST

START_TEST(bus_bandwidth_above_the_links_is_taken_as_measured)
{
    /* 8 GPUs in one node: 17 GB in 62648 us is 480 GB/s over links of 450. */
    GString *text = g_string_new("./build/all_reduce_perf -b 16G\n");

    for (guint i = 0; i < 8; i++)
        g_string_append_printf(text, "# Rank %u Group 0 Pid 1 on a device %u [0] NVIDIA H200\n", i,
                               i);
    g_string_append(text, "# size count type redop root time algbw busbw #wrong time algbw busbw "
                          "#wrong\n"
                          "17179869184 4294967296 float sum -1 62648 274.23 479.90 0 62648 274.23 "
                          "479.90 0\n# Out of bounds values : 0 OK\n");
    g_autofree char *run = g_string_free(text, FALSE);
    g_autoptr(Topology) t = imported(run, &hgx);

    ck_assert_uint_eq(row(t, 0)->ranks, 8);
    ck_assert_double_eq(row(t, 0)->seconds, 62648e-6);
}
END_TEST

/* A row of 2 ranks means 2 GPUs of one node. */
START_TEST(ranks_must_fill_the_nodes_that_they_spread_over)
{
    g_autofree char *spread = replaced(reduced, "nodeA device  1", "nodeB device  1");
    GString *text = g_string_new("# all_gather_perf\n");

    check_refused(spread, &hgx, "1 ranks on node");
    for (guint i = 0; i < 8; i++)
        g_string_append_printf(text, "# Rank %u Group 0 Pid 1 on n%u device 0 [0] GH200 120GB\n", i,
                               i / 4);
    g_string_append(text, "# size count type redop root time algbw busbw #wrong time algbw busbw "
                          "#wrong\n"
                          "1048576 32768 float none -1 100.0 10.49 9.18 0 100.0 10.49 9.18 0\n"
                          "# Out of bounds values : 0 OK\n");
    g_autofree char *full = g_string_free(text, FALSE);
    g_autoptr(Topology) t = imported(full, &alps);

    ck_assert_str_eq(row(t, 0)->collective, "all_gather");
    ck_assert_uint_eq(row(t, 0)->ranks, 8);
}
END_TEST

START_TEST(a_later_run_takes_the_place_of_the_same_row)
{
    g_autoptr(Topology) once = imported(reduced, &hgx);
    g_autofree char *path = NULL, *printed = topology_print(once);
    const int fd = g_file_open_tmp("topology-XXXXXX", &path, NULL);

    ck_assert_int_ge(fd, 0);
    close(fd);
    ck_assert(g_file_set_contents(path, printed, -1, NULL));
    const ImportOptions again = {.topology = path};
    g_autofree char *slower = replaced(reduced, "20.00  52.43  52.43", "40.00  26.21  26.21");
    g_autoptr(Topology) twice = imported(slower, &again), gathered = imported(old, &again);

    unlink(path);
    ck_assert_uint_eq(twice->measured.collectives->len, 2);
    ck_assert_double_eq(row(twice, 0)->seconds, 40e-6);
    ck_assert_uint_eq(gathered->measured.collectives->len, 3);
}
END_TEST

static const struct {
    const char *from, *to, *message;
} damaged[] = {
    {"# Out of bounds values : 0 OK\n", "", "the end, without \"# Out of bounds values\""},
    {"values : 0 OK", "values : 3 FAILED", "f:16: the test failed"},
    {"bandwidth    : 26.2", "bandwidth    : 0", "f:17: an average of 0"},
    {"52.43      0  90.00", "52.43      2  90.00", "f:14: 2 wrong values"},
    {"20.00  52.43  52.43", "20.00  52.43       ", "f:14: 12 columns; allowed: 13, as in line 10"},
    {"20.00  52.43  52.43", "2.000  52.43  52.43", "f:14: 1.04858e+06 bytes in 2 us"},
    {"20.00  52.43  52.43", "20.00  52.43  91.75", "don't belong together for all_reduce over 2"},
    {"20.00  52.43  52.43", "20.00  fifty  52.43",
     "f:14: \"fifty\" in column 7; allowed: a number"},
    {" 1048576", " 1O48576", "f:14: \"1O48576\" in column 1; allowed: a number"},
    {" 1048576", " 1048576.5", "f:14: 1.04858e+06 bytes; allowed: whole, up to 2^50"},
    {"262144", "131072", "f:14: 131072 elements of 1.04858e+06 bytes over 2 ranks"},
    {"Rank  1", "Rank  2", "f:7: Rank 2; allowed: Rank 1"},
    {"#  Rank  1 Group  0 Pid     11 on   nodeA device  1 [0x1b] NVIDIA H200\n", "",
     "1 lines \"# Rank N ...\""},
    {"[0x1b] NVIDIA H200", "[0x1b] NVIDIA A100", "f:7: device \"NVIDIA A100\", but the GPU of"},
    {"[0x1b] NVIDIA H200", "[0x1b] NVIDIA H2000", "f:7: device \"NVIDIA H2000\", but the GPU of"},
    {"starting: all_reduce_perf", "starting: broadcast_perf",
     "broadcast_perf; allowed: all_gather"},
    {"# Avg bus", "# size count type redop root time algbw busbw", "a second table, after that of"},
    {" 1048576 262144  float    sum    -1  20.00  52.43  52.43      0  90.00  11.65  11.65      0\n"
     " 2097152 524288  float    sum    -1  40.00  52.43  52.43    N/A  90.00  23.30  23.30    "
     "N/A\n",
     "", "no rows"},
};

START_TEST(damaged_tables_are_refused_with_their_line)
{
    g_autofree char *text = replaced(reduced, damaged[_i].from, damaged[_i].to);

    check_refused(text, &hgx, damaged[_i].message);
}
END_TEST

START_TEST(beside_a_matrix_the_option_tells_which_is_meant)
{
    g_autofree char *log =
        g_strconcat("\tGPU0\tGPU1\nGPU0\tX\tNV18\nGPU1\tNV18\tX\n", reduced, NULL);
    const ImportOptions gpu = {.gpu = "h200-sxm-141gb"};
    g_autoptr(Topology) node = imported(log, &gpu), rows = imported(log, &hgx);

    ck_assert_uint_eq(node->gpus_per_node, 2);
    ck_assert_uint_eq(rows->measured.collectives->len, 2);
    check_refused(log, &nothing, "f:13: nccl-tests output beside the topo -m matrix of line 1");
}
END_TEST

START_TEST(what_the_test_ran_on_must_be_given)
{
    const ImportOptions gpu = {.gpu = "h200-sxm-141gb"}, here = {.topology = "localhost"},
                        unknown = {.topology = "hgx-h201"};

    check_refused(reduced, &nothing, "f:10: nccl-tests does not say what cluster it ran on");
    check_refused(reduced, &gpu, "f:10: times of nccl-tests; allowed: --topology");
    check_refused(reduced, &here, "--topology localhost has no GPUs");
    check_refused(reduced, &unknown, "hgx-h201");
}
END_TEST

START_TEST(random_damage_never_crashes)
{
    check_damage(reduced, &hgx, 75);
    check_damage(old, &hgx, 76);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("import_nccl_tests");
    TCase *tcase = tcase_create("import_nccl_tests");

    g_log_set_always_fatal(G_LOG_LEVEL_CRITICAL | G_LOG_FLAG_FATAL);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, rows_are_out_of_place_times_of_whole_buffers);
    tcase_add_test(tcase, element_types_are_kept);
    tcase_add_test(tcase, old_tables_are_told_apart_by_their_columns);
    tcase_add_test(tcase, new_tables_without_a_name_are_told_apart_by_redop_and_root);
    tcase_add_test(tcase, bus_bandwidth_above_the_links_is_taken_as_measured);
    tcase_add_test(tcase, ranks_must_fill_the_nodes_that_they_spread_over);
    tcase_add_test(tcase, a_later_run_takes_the_place_of_the_same_row);
    tcase_add_loop_test(tcase, damaged_tables_are_refused_with_their_line, 0,
                        G_N_ELEMENTS(damaged));
    tcase_add_test(tcase, beside_a_matrix_the_option_tells_which_is_meant);
    tcase_add_test(tcase, what_the_test_ran_on_must_be_given);
    tcase_add_test(tcase, random_damage_never_crashes);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
