/* Time of collectives: worked values, limits, monotony, what calibration measured. */
#include "sim/cost/collective.h"
#include "tests/suite.h"

enum { FABRIC = 1 }; /* its index among the levels */

/* Two levels: 8 GPUs of a node at 100 GB/s and 1 us, nodes at 10 GB/s a GPU and 5 us. */
static Topology test_topology(DeviceKind kind)
{
    const NetworkLevel levels[] = {
        {.name = (char *)"link",
         .span = 8,
         .bytes_per_s = 100e9,
         .latency_s = 1e-6,
         .oversubscription = 1},
        {.name = (char *)"fabric", .bytes_per_s = 10e9, .latency_s = 5e-6, .oversubscription = 1},
    };
    Topology topology = {
        .nodes = 64,
        .gpus_per_node = 8,
        .gpu = {.kind = kind, .memory_bytes_per_s = 20e9},
        .networks = g_array_new(FALSE, FALSE, sizeof(NetworkLevel)),
        .measured = {.collectives = g_array_new(FALSE, FALSE, sizeof(MeasuredCollective))},
    };

    g_array_append_vals(topology.networks, levels, G_N_ELEMENTS(levels));
    return topology;
}

static void topology_clear(Topology *topology)
{
    g_array_unref(topology->networks);
    g_array_unref(topology->measured.collectives);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Topology, topology_clear)

static void add_row(Topology *topology, const char *collective, guint ranks, guint64 bytes,
                    double seconds)
{
    const MeasuredCollective row = {.collective = (char *)collective,
                                    .dtype = DTYPE_FP32,
                                    .ranks = ranks,
                                    .bytes = bytes,
                                    .seconds = seconds};

    g_array_append_val(topology->measured.collectives, row);
}

/* @ranks at distance @stride on nodes of 8. */
static CollectiveContext group(const Topology *topology, guint ranks, guint stride)
{
    return (CollectiveContext){
        .topology = topology, .ranks = ranks, .span = ranks * stride, .ranks_per_node = 8};
}

/* As in sim/cost/collective.c: links reach 0.8; GPU rings take 1 + 8 MB / (8 MB + S) as long. */
static double ramp(double bytes)
{
    return 1 + 8e6 / (8e6 + bytes);
}

START_TEST(a_group_within_a_node_takes_the_ring_formula)
{
    g_auto(Topology) gpus = test_topology(DEVICE_CUDA);
    const CollectiveContext four = group(&gpus, 4, 1);
    /* 3 hops of 1 us; 3/4 of 800 MB at 80 GB/s = 7.5 ms */
    const double ring = 3e-6 + 7.5e-3 * ramp(800e6);

    ck_assert_double_eq_tol(collective_seconds(VOLUME_ALL_GATHER, 800000000, DTYPE_BF16, &four),
                            ring, 1e-12);
    ck_assert_double_eq_tol(collective_seconds(VOLUME_REDUCE_SCATTER, 800000000, DTYPE_BF16, &four),
                            ring, 1e-12);
    ck_assert_double_eq_tol(collective_seconds(VOLUME_ALL_REDUCE, 800000000, DTYPE_BF16, &four),
                            2 * ring, 1e-12);
}
END_TEST

/* 16 ranks fill 2 nodes: 8 rings side by side over 8 NICs give min(80, 8 * 8 / 1.03) GB/s; hops
 * are 7 within and 1 between. */
START_TEST(a_group_that_fills_its_nodes_uses_every_nic)
{
    g_auto(Topology) gpus = test_topology(DEVICE_CUDA);
    const CollectiveContext sixteen = group(&gpus, 16, 1);
    const double expected = 12e-6 + 15.0 / 16 * 1.6e9 / (64e9 / 1.03) * ramp(1.6e9);

    ck_assert_double_eq_tol(collective_seconds(VOLUME_ALL_GATHER, 1600000000, DTYPE_BF16, &sixteen),
                            expected, 1e-12);
}
END_TEST

/* One rank a node (tp = 8 inside): one NIC for the ring, 8 / (1 + 0.03 * log2(4)) GB/s. */
START_TEST(a_group_with_one_rank_a_node_has_one_nic)
{
    g_auto(Topology) gpus = test_topology(DEVICE_CUDA);
    const CollectiveContext four = group(&gpus, 4, 8);
    const double expected = 15e-6 + 0.75 * 800e6 / (8e9 / 1.06) * ramp(800e6);

    ck_assert_double_eq_tol(collective_seconds(VOLUME_ALL_GATHER, 800000000, DTYPE_BF16, &four),
                            expected, 1e-12);
}
END_TEST

START_TEST(oversubscription_divides_the_fabric)
{
    g_auto(Topology) gpus = test_topology(DEVICE_CUDA);
    const CollectiveContext four = group(&gpus, 4, 8);
    const double before = collective_seconds(VOLUME_ALL_GATHER, 1 << 30, DTYPE_BF16, &four);

    g_array_index(gpus.networks, NetworkLevel, FABRIC).oversubscription = 2;
    ck_assert_double_eq_tol(collective_seconds(VOLUME_ALL_GATHER, 1 << 30, DTYPE_BF16, &four),
                            2 * before - 15e-6, 1e-9);
}
END_TEST

/* 4 of 8 GPUs of a node are used: ranks 0..3 and 4..7 are on two nodes. */
START_TEST(fewer_ranks_a_node_cross_the_fabric_earlier)
{
    g_auto(Topology) gpus = test_topology(DEVICE_CUDA);
    CollectiveContext eight = group(&gpus, 8, 1);
    const double inside = collective_seconds(VOLUME_ALL_GATHER, 1 << 30, DTYPE_BF16, &eight);

    eight.ranks_per_node = 4;
    ck_assert_double_gt(collective_seconds(VOLUME_ALL_GATHER, 1 << 30, DTYPE_BF16, &eight),
                        2 * inside);
}
END_TEST

START_TEST(no_bytes_take_the_latency_alone)
{
    g_auto(Topology) gpus = test_topology(DEVICE_CUDA);
    const CollectiveContext four = group(&gpus, 4, 1), pair = group(&gpus, 2, 8);

    ck_assert_double_eq_tol(collective_seconds(VOLUME_ALL_GATHER, 0, DTYPE_BF16, &four), 3e-6,
                            1e-15);
    ck_assert_double_eq_tol(collective_seconds(VOLUME_ALL_REDUCE, 0, DTYPE_BF16, &four), 6e-6,
                            1e-15);
    ck_assert_double_eq_tol(collective_seconds(VOLUME_EXCHANGE, 0, DTYPE_BF16, &pair), 5e-6, 1e-15);
}
END_TEST

/* 512 ranks on 64 nodes, a scalar: 7 hops of 1 us within a node, then log2(64) = 6 of a tree, each
 * 2 of 5 us: 2 * 67 us; around a ring they would be 2 * (7 + 63 * 5) = 644 us.  A gather has no
 * tree, nor have CPUs. */
START_TEST(a_scalar_is_summed_over_many_nodes_by_a_tree)
{
    g_auto(Topology) gpus = test_topology(DEVICE_CUDA);
    g_auto(Topology) cores = test_topology(DEVICE_CPU);
    const CollectiveContext many = group(&gpus, 512, 1), on_cores = group(&cores, 512, 1);

    ck_assert_double_eq_tol(collective_seconds(VOLUME_ALL_REDUCE, 4, DTYPE_FP32, &many), 134e-6,
                            1e-8);
    ck_assert_double_eq_tol(collective_seconds(VOLUME_ALL_GATHER, 4, DTYPE_FP32, &many), 322e-6,
                            1e-8);
    ck_assert_double_eq_tol(collective_seconds(VOLUME_ALL_REDUCE, 4, DTYPE_FP32, &on_cores), 644e-6,
                            1e-8);
}
END_TEST

/* 64 nodes of one rank, 8 / 1.18 GB/s.  By a tree of 6 levels 2 * (60 us + S / (0.92 B)), by a ring
 * 2 * (315 us + 63/64 S / B): 80 MB are summed by the ring, 8 kB by the tree. */
START_TEST(an_all_reduce_takes_the_faster_of_ring_and_tree)
{
    g_auto(Topology) gpus = test_topology(DEVICE_CUDA);
    const CollectiveContext many = group(&gpus, 64, 8);
    const double rate = 8e9 / 1.18;

    ck_assert_double_eq_tol(collective_seconds(VOLUME_ALL_REDUCE, 80000000, DTYPE_BF16, &many),
                            2 * (315e-6 + 63.0 / 64 * 80e6 / rate * ramp(80e6)), 1e-12);
    ck_assert_double_eq_tol(collective_seconds(VOLUME_ALL_REDUCE, 8000, DTYPE_BF16, &many),
                            2 * (60e-6 + 8e3 / (0.92 * rate) * ramp(8e3)), 1e-12);
}
END_TEST

/* Nodes that one NVLink domain joins are one to NCCL: its tree is a chain there, and no faster. */
START_TEST(inside_a_domain_of_many_nodes_there_is_no_tree)
{
    g_auto(Topology) gpus = test_topology(DEVICE_CUDA);
    const CollectiveContext all = group(&gpus, 512, 1);

    g_array_index(gpus.networks, NetworkLevel, 0).span = 512;
    ck_assert_double_eq_tol(collective_seconds(VOLUME_ALL_REDUCE, 0, DTYPE_BF16, &all), 2 * 511e-6,
                            1e-12);
}
END_TEST

/* On a CPU the shard is copied: read and written at 20 GB/s. */
START_TEST(a_group_of_one_is_free_on_a_gpu_and_a_copy_on_a_cpu)
{
    g_auto(Topology) gpus = test_topology(DEVICE_CUDA);
    g_auto(Topology) cores = test_topology(DEVICE_CPU);
    const CollectiveContext gpu = group(&gpus, 1, 1), core = group(&cores, 1, 1);

    for (Volume kind = 0; kind < NUM_VOLUMES; kind++)
        ck_assert_double_eq(collective_seconds(kind, 1 << 30, DTYPE_FP32, &gpu), 0);
    ck_assert_double_eq_tol(collective_seconds(VOLUME_ALL_GATHER, 1000000, DTYPE_FP32, &core), 1e-4,
                            1e-12);
    ck_assert_double_eq_tol(collective_seconds(VOLUME_REDUCE_SCATTER, 1000000, DTYPE_FP32, &core),
                            1e-4, 1e-12);
    ck_assert_double_eq(collective_seconds(VOLUME_ALL_REDUCE, 1000000, DTYPE_FP32, &core), 0);
}
END_TEST

/* 80 MB at 80 GB/s; between nodes at 8 / 1.03 GB/s. */
START_TEST(an_exchange_is_one_message_over_the_level_that_joins_the_group)
{
    g_auto(Topology) gpus = test_topology(DEVICE_CUDA);
    const CollectiveContext inside = group(&gpus, 2, 4), across = group(&gpus, 2, 8);

    ck_assert_double_eq_tol(collective_seconds(VOLUME_EXCHANGE, 80000000, DTYPE_BF16, &inside),
                            1e-6 + 1e-3, 1e-12);
    ck_assert_double_eq_tol(collective_seconds(VOLUME_EXCHANGE, 80000000, DTYPE_BF16, &across),
                            5e-6 + 1.03e-2, 1e-12);
}
END_TEST

/* 16 ranks on 2 nodes: a half goes over the fabric, which 2 nodes crowd by 3%, 7 of 16 parts over
 * links meanwhile.  On one node 7 of 8 parts do. */
START_TEST(all_to_all_uses_every_level_at_once)
{
    g_auto(Topology) gpus = test_topology(DEVICE_CUDA);
    const CollectiveContext within = group(&gpus, 8, 1), across = group(&gpus, 16, 1);
    const double bytes = 160e6;

    ck_assert_double_eq_tol(
        collective_seconds(VOLUME_ALL_TO_ALL, (guint64)bytes, DTYPE_BF16, &within),
        1e-6 + bytes * 7 / 8 / 80e9 * ramp(bytes), 1e-12);
    ck_assert_double_eq_tol(
        collective_seconds(VOLUME_ALL_TO_ALL, (guint64)bytes, DTYPE_BF16, &across),
        5e-6 + bytes / 2 / (8e9 / 1.03) * ramp(bytes), 1e-12);
}
END_TEST

/* Two copies of each row to ranks at random: of a node of 8 among 16 both come there with a chance
 * of 1/4, so of what is for it 3/4 is sent; on one node both are for one rank with 1/8, 15/16. */
START_TEST(copies_of_a_row_go_to_a_domain_once)
{
    g_auto(Topology) gpus = test_topology(DEVICE_CUDA);
    CollectiveContext within = group(&gpus, 8, 1), across = group(&gpus, 16, 1);
    const double bytes = 160e6;

    within.copies = across.copies = 2;
    ck_assert_double_eq_tol(
        collective_seconds(VOLUME_ALL_TO_ALL, (guint64)bytes, DTYPE_BF16, &within),
        1e-6 + bytes * 7 / 8 * 15 / 16 / 80e9 * ramp(bytes), 1e-12);
    ck_assert_double_eq_tol(
        collective_seconds(VOLUME_ALL_TO_ALL, (guint64)bytes, DTYPE_BF16, &across),
        5e-6 + bytes / 2 * 3 / 4 / (8e9 / 1.03) * ramp(bytes), 1e-12);
}
END_TEST

START_TEST(time_grows_with_bytes_and_with_ranks)
{
    g_auto(Topology) gpus = test_topology(DEVICE_CUDA);
    const Volume kinds[] = {VOLUME_ALL_GATHER, VOLUME_REDUCE_SCATTER, VOLUME_ALL_REDUCE,
                            VOLUME_ALL_TO_ALL};

    for (guint k = 0; k < G_N_ELEMENTS(kinds); k++)
        for (guint stride = 1; stride <= 8; stride *= 2)
            for (guint ranks = 2; ranks <= 64; ranks *= 2) {
                const CollectiveContext context = group(&gpus, ranks, stride);
                const CollectiveContext twice = group(&gpus, 2 * ranks, stride);
                for (guint64 bytes = 1; bytes < 1 << 30; bytes *= 4) {
                    const double t = collective_seconds(kinds[k], bytes, DTYPE_BF16, &context);
                    ck_assert_double_lt(
                        t, collective_seconds(kinds[k], 4 * bytes, DTYPE_BF16, &context));
                    ck_assert_double_lt(t, collective_seconds(kinds[k], bytes, DTYPE_BF16, &twice));
                }
            }
}
END_TEST

/* Rows of a machine of 8 cores: 2 ranks, and a group of one. */
static Topology measured_topology(void)
{
    Topology cores = test_topology(DEVICE_CPU);

    cores.nodes = 1;
    add_row(&cores, "all_gather", 1, 1 << 20, 50e-6);
    add_row(&cores, "all_gather", 2, 1 << 10, 10e-6);
    add_row(&cores, "all_gather", 2, 1 << 16, 40e-6);
    add_row(&cores, "all_gather", 2, 1 << 20, 400e-6);
    add_row(&cores, "reduce_scatter", 2, 1 << 20, 700e-6);
    return cores;
}

static double gather(const CollectiveContext *context, guint64 bytes)
{
    return collective_seconds(VOLUME_ALL_GATHER, bytes, DTYPE_FP32, context);
}

START_TEST(measured_rows_are_exact)
{
    g_auto(Topology) cores = measured_topology();
    CollectiveContext pair = group(&cores, 2, 1), one = group(&cores, 1, 1);

    pair.ranks_per_node = 2;
    one.ranks_per_node = 1;
    ck_assert_double_eq(gather(&pair, 1 << 10), 10e-6);
    ck_assert_double_eq(gather(&pair, 1 << 16), 40e-6);
    ck_assert_double_eq(gather(&one, 1 << 20), 50e-6);
    ck_assert_double_eq(collective_seconds(VOLUME_REDUCE_SCATTER, 1 << 20, DTYPE_FP32, &pair),
                        700e-6);
}
END_TEST

/* 8 KiB is midway, in logarithms, between 1 and 64 KiB: sqrt(10 * 40) = 20 us. */
START_TEST(measured_rows_give_latency_below_and_bandwidth_above)
{
    g_auto(Topology) cores = measured_topology();
    CollectiveContext pair = group(&cores, 2, 1);

    pair.ranks_per_node = 2;
    ck_assert_double_eq(gather(&pair, 0), 10e-6);
    ck_assert_double_eq(gather(&pair, 8), 10e-6);
    ck_assert_double_eq_tol(gather(&pair, 1 << 13), 20e-6, 1e-12);
    ck_assert_double_eq_tol(gather(&pair, 1 << 24), 16 * 400e-6, 1e-12);
}
END_TEST

/* The node's memory moves n S bytes: 4 ranks take twice what 2 take, never what 1 takes. */
START_TEST(unmeasured_ranks_scale_the_nearest_by_what_the_node_moves)
{
    g_auto(Topology) cores = measured_topology();
    CollectiveContext four = group(&cores, 4, 1);

    four.ranks_per_node = 4;
    ck_assert_double_eq_tol(gather(&four, 1 << 20), 800e-6, 1e-12);
}
END_TEST

/* 16 ranks on 8 cores in 8 groups of two: each pair gets half of its cores' time. */
START_TEST(groups_side_by_side_share_the_cores)
{
    g_auto(Topology) cores = measured_topology();
    CollectiveContext pair = group(&cores, 2, 1);

    pair.ranks_per_node = 16;
    ck_assert_double_eq_tol(gather(&pair, 1 << 20), 800e-6, 1e-12);
}
END_TEST

START_TEST(unmeasured_types_take_fp32_rows_and_unmeasured_kinds_the_formula)
{
    g_auto(Topology) cores = measured_topology();
    CollectiveContext pair = group(&cores, 2, 1);

    pair.ranks_per_node = 8;
    ck_assert_double_eq(collective_seconds(VOLUME_ALL_GATHER, 1 << 16, DTYPE_BF16, &pair), 40e-6);
    /* 2 * (1 us + 1/2 of 1 MB at 80 GB/s) */
    ck_assert_double_eq_tol(collective_seconds(VOLUME_ALL_REDUCE, 1000000, DTYPE_FP32, &pair),
                            2 * (1e-6 + 6.25e-6), 1e-12);
}
END_TEST

static double reduce(const CollectiveContext *context, guint64 bytes)
{
    return collective_seconds(VOLUME_ALL_REDUCE, bytes, DTYPE_BF16, context);
}

/* nccl-tests -b 1G: what a GiB takes is no latency of 1 MB. */
START_TEST(below_the_smallest_row_gpus_take_the_formulas_part_of_it)
{
    g_auto(Topology) gpus = test_topology(DEVICE_CUDA), nominal = test_topology(DEVICE_CUDA);
    const CollectiveContext node = group(&gpus, 8, 1), formula = group(&nominal, 8, 1);

    add_row(&gpus, "all_reduce", 8, 1 << 30, 0.1);
    const double slower = 0.1 / reduce(&formula, 1 << 30);
    ck_assert_double_eq(reduce(&node, 1 << 30), 0.1);
    ck_assert_double_eq_tol(reduce(&node, 1u << 31), 0.2, 1e-12);
    for (guint64 bytes = 0; bytes < 1 << 30; bytes = 10 * bytes + 1)
        ck_assert_double_eq_tol(reduce(&node, bytes), slower * reduce(&formula, bytes), 1e-12);
}
END_TEST

/* nccl-tests 309: 480, 470 and 366 GB/s on 1, 2 and 4 nodes. */
START_TEST(rows_of_several_nodes_are_for_whole_nodes)
{
    g_auto(Topology) gpus = test_topology(DEVICE_CUDA), nominal = test_topology(DEVICE_CUDA);
    const CollectiveContext node = group(&gpus, 8, 1), two = group(&gpus, 16, 1),
                            four = group(&gpus, 32, 1), strided = group(&gpus, 16, 8);
    const CollectiveContext formulas[] = {group(&nominal, 8, 1), group(&nominal, 16, 1),
                                          group(&nominal, 32, 1), group(&nominal, 16, 8)};
    const guint64 bytes = 1 << 28;

    add_row(&gpus, "all_reduce", 16, bytes, 0.5);
    ck_assert_double_eq(reduce(&two, bytes), 0.5);
    ck_assert_double_eq_tol(reduce(&four, bytes),
                            0.5 * reduce(&formulas[2], bytes) / reduce(&formulas[1], bytes), 1e-12);
    ck_assert_double_eq(reduce(&node, bytes), reduce(&formulas[0], bytes));
    ck_assert_double_eq(reduce(&strided, bytes), reduce(&formulas[3], bytes));
    add_row(&gpus, "all_reduce", 8, bytes, 0.01);
    ck_assert_double_eq(reduce(&node, bytes), 0.01);
    ck_assert_double_eq(reduce(&two, bytes), 0.5);
    add_row(&gpus, "all_reduce", 32, bytes, 0.9);
    ck_assert_double_eq(reduce(&four, bytes), 0.9);
}
END_TEST

/* nccl-tests -d half, for a plan in bf16. */
START_TEST(links_of_gpus_take_rows_of_any_type)
{
    g_auto(Topology) gpus = test_topology(DEVICE_CUDA), cores = test_topology(DEVICE_CPU);
    const CollectiveContext links = group(&gpus, 8, 1), memory = group(&cores, 8, 1);

    add_row(&gpus, "all_reduce", 8, 1 << 20, 1e-3);
    add_row(&cores, "all_reduce", 8, 1 << 20, 1e-3);
    g_array_index(gpus.measured.collectives, MeasuredCollective, 0).dtype = DTYPE_FP16;
    g_array_index(cores.measured.collectives, MeasuredCollective, 0).dtype = DTYPE_FP16;
    ck_assert_double_eq(reduce(&links, 1 << 20), 1e-3);
    ck_assert_double_ne(reduce(&memory, 1 << 20), 1e-3);
}
END_TEST

START_TEST(a_group_over_several_nodes_ignores_rows_of_one)
{
    g_auto(Topology) cores = measured_topology();
    CollectiveContext pair = group(&cores, 2, 1);

    pair.ranks_per_node = 1;
    ck_assert_double_ne(gather(&pair, 1 << 16), 40e-6);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("collective");
    TCase *nominal = tcase_create("nominal"), *measured = tcase_create("measured");

    tcase_add_test(nominal, a_group_within_a_node_takes_the_ring_formula);
    tcase_add_test(nominal, a_group_that_fills_its_nodes_uses_every_nic);
    tcase_add_test(nominal, a_group_with_one_rank_a_node_has_one_nic);
    tcase_add_test(nominal, oversubscription_divides_the_fabric);
    tcase_add_test(nominal, fewer_ranks_a_node_cross_the_fabric_earlier);
    tcase_add_test(nominal, no_bytes_take_the_latency_alone);
    tcase_add_test(nominal, a_scalar_is_summed_over_many_nodes_by_a_tree);
    tcase_add_test(nominal, an_all_reduce_takes_the_faster_of_ring_and_tree);
    tcase_add_test(nominal, inside_a_domain_of_many_nodes_there_is_no_tree);
    tcase_add_test(nominal, a_group_of_one_is_free_on_a_gpu_and_a_copy_on_a_cpu);
    tcase_add_test(nominal, an_exchange_is_one_message_over_the_level_that_joins_the_group);
    tcase_add_test(nominal, all_to_all_uses_every_level_at_once);
    tcase_add_test(nominal, copies_of_a_row_go_to_a_domain_once);
    tcase_add_test(nominal, time_grows_with_bytes_and_with_ranks);
    tcase_add_test(measured, measured_rows_are_exact);
    tcase_add_test(measured, measured_rows_give_latency_below_and_bandwidth_above);
    tcase_add_test(measured, unmeasured_ranks_scale_the_nearest_by_what_the_node_moves);
    tcase_add_test(measured, groups_side_by_side_share_the_cores);
    tcase_add_test(measured, unmeasured_types_take_fp32_rows_and_unmeasured_kinds_the_formula);
    tcase_add_test(measured, below_the_smallest_row_gpus_take_the_formulas_part_of_it);
    tcase_add_test(measured, links_of_gpus_take_rows_of_any_type);
    tcase_add_test(measured, rows_of_several_nodes_are_for_whole_nodes);
    tcase_add_test(measured, a_group_over_several_nodes_ignores_rows_of_one);
    suite_add_tcase(suite, nominal);
    suite_add_tcase(suite, measured);
    return suite_run(suite);
}
