/* State in another tier: where it lies, what it moves, what it takes. */
#include "sim/search/search.h"
#include "tests/sim/plan_case.h"

/* vocabulary 257, hidden 24, 3 layers on 3 ranks: 4136 elements of the root and 1584 of each block
 * (test_shard.c), 8888 together. */
enum { SHARD = 4136 + 3 * 1584 };

static Case offloaded(Model *model, Strategy strategy, Tier optimizer, Tier parameters)
{
    Case one = case_with(model, strategy, 3, 2);

    one.device = DEVICE_CUDA;
    one.sharding.offload = (Offload){optimizer, parameters};
    return one;
}

static guint64 tier_bytes(const Program *program, Tier tier)
{
    guint64 bytes = 0;

    for (guint t = 0; t < program->tensors->len; t++)
        if (program_tensor(program, t)->tier == tier)
            bytes += tensor_bytes(program, program_tensor(program, t));
    return bytes;
}

/* fp32 master and two moments: 12 bytes a parameter. */
START_TEST(masters_and_moments_lie_in_the_host_and_nothing_else)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = offloaded(model, STRATEGY_FULL_SHARD, TIER_HOST, TIER_DEVICE);
    g_autoptr(Program) program = case_build(&one);
    const MemoryUse use = program_memory(program);

    ck_assert_uint_eq(tier_bytes(program, TIER_HOST), 12 * SHARD);
    ck_assert_uint_ge(program->arena_bytes[TIER_HOST], 12 * SHARD);
    ck_assert_uint_lt(program->arena_bytes[TIER_HOST], 12 * SHARD + 12 * ARENA_ALIGNMENT);
    ck_assert_uint_eq(use.term[TERM_MASTER] + use.term[TERM_OPTIMIZER], 0);
    ck_assert_uint_eq(use.term[TERM_PARAMETERS], 2 * SHARD);
    ck_assert_uint_eq(use.term[TERM_GRADIENTS], 2 * SHARD);
}
END_TEST

/* Bytes of the step's copies towards @tier. */
static guint64 copied_to(const Program *program, Tier tier)
{
    guint64 bytes = 0;

    for (guint c = 0; c < program->step.calls->len; c++) {
        const Segment *segment =
            program_segment(program, g_array_index(program->step.calls, Call, c).segment);

        for (guint i = 0; i < segment->num_ops; i++) {
            const Op *op = &segment->ops[i];
            const Tensor *to = program_tensor(program, op->operands[1].tensor);

            if (op->kind == OP_COPY && to->tier == tier)
                bytes += op->sizes.elements * dtype_bytes(op->dtype);
        }
    }
    return bytes;
}

START_TEST(every_step_brings_the_state_in_and_takes_it_back)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = offloaded(model, STRATEGY_SHARD_OPTIMIZER, TIER_NVME, TIER_DEVICE);
    g_autoptr(Program) program = case_build(&one);

    ck_assert_uint_eq(copied_to(program, TIER_DEVICE), 12 * SHARD);
    ck_assert_uint_eq(copied_to(program, TIER_NVME), 12 * SHARD);
    ck_assert_uint_eq(count_calls(program, ".fetch"), 4);
    ck_assert_uint_eq(count_calls(program, ".store"), 4);
}
END_TEST

/* 2 micro-batches, nothing kept: 4 gathers of each unit, and one update. */
START_TEST(shards_in_the_host_come_in_for_each_gather)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = offloaded(model, STRATEGY_FULL_SHARD, TIER_DEVICE, TIER_HOST);
    g_autoptr(Program) program = case_build(&one);

    ck_assert_uint_eq(tier_bytes(program, TIER_HOST), 2 * SHARD);
    ck_assert_uint_eq(program_memory(program).term[TERM_PARAMETERS], 0);
    ck_assert_uint_eq(copied_to(program, TIER_DEVICE), (4 + 1) * 2 * SHARD);
    ck_assert_uint_eq(copied_to(program, TIER_HOST), 2 * SHARD);
}
END_TEST

/* 8-bit moments are what is copied, with their scales. */
START_TEST(what_is_copied_is_what_the_optimizer_keeps)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = offloaded(model, STRATEGY_FULL_SHARD, TIER_HOST, TIER_DEVICE);

    one.workload.optimizer = OPTIMIZER_ADAM8BIT;
    g_autoptr(Program) program = case_build(&one);
    ck_assert_uint_eq(copied_to(program, TIER_HOST),
                      4 * SHARD + 2 * (4136 + 4 * 17 + 3 * (1584 + 4 * 7)));
    one.workload.optimizer = OPTIMIZER_SGD;
    one.workload.recipe = &recipe_fp32; /* nothing is left to move */
    g_autoptr(Program) without = case_build(&one);
    ck_assert_uint_eq(count_ops(without, OP_COPY), 0);
}
END_TEST

START_TEST(offloaded_programs_are_proven)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(GRand) random = g_rand_new_with_seed(7100 + (guint)_i);

    for (guint i = 0; i < 40; i++) {
        Case one = case_random_4d(random, model);

        one.device = DEVICE_CUDA;
        one.sharding.offload.optimizer = i % 3 == 0 ? TIER_NVME : TIER_HOST;
        one.sharding.offload.parameters = i % 2 == 0 ? TIER_HOST : TIER_DEVICE;
        if (case_verdict(&one, NULL) != VERDICT_OK)
            one.sharding.offload.parameters = TIER_DEVICE;
        g_autofree char *text = case_text(&one);
        g_autoptr(ProgramSet) set = case_compile(&one);
        assert_proven(set, text);
    }
}
END_TEST

/* A copy that nobody waits for is found. */
START_TEST(an_update_that_does_not_wait_for_its_copies_is_caught)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = offloaded(model, STRATEGY_FULL_SHARD, TIER_HOST, TIER_DEVICE);
    g_autoptr(ProgramSet) set = case_compile(&one);
    const Program *program = set->classes[0];
    const guint update = (guint)find_segment(program, "block.update");

    for (guint c = 0; c < program->step.calls->len; c++)
        if (g_array_index(program->step.calls, Call, c).segment == update)
            g_array_index(program->step.calls, Call, c).num_waits = 0;
    assert_caught(set, "block.");
}
END_TEST

START_TEST(parameters_that_stay_whole_are_not_offloaded)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = offloaded(model, STRATEGY_SHARD_OPTIMIZER, TIER_DEVICE, TIER_HOST);
    g_autofree char *reason = NULL;

    ck_assert_int_eq(case_verdict(&one, &reason), VERDICT_RECIPE);
    ck_assert_msg(strstr(reason, "offload parameters=host with shard_optimizer") != NULL, "%s",
                  reason);
}
END_TEST

START_TEST(the_tier_is_part_of_the_hash)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Tier tiers[] = {TIER_DEVICE, TIER_HOST, TIER_NVME};
    g_autoptr(GHashTable) hashes = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);

    for (guint i = 0; i < G_N_ELEMENTS(tiers); i++) {
        const Case one = offloaded(model, STRATEGY_FULL_SHARD, tiers[i], TIER_DEVICE);
        g_autoptr(Program) program = case_build(&one);

        ck_assert(g_hash_table_add(hashes, program_hash(program)));
    }
}
END_TEST

/* ---- time and room ---- */

static Topology *linked(guint host_megabytes, const char *link)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *text = g_strdup_printf(
        "[cluster]\nname = case\nsource = test\nnodes = 1\n[node]\ngpus = 4\ngpu = chip\n"
        "cpu_memory = %u kB\nhost_link = %s\n[gpu chip]\nsource = test\nkind = cuda\nfp32 = 10 "
        "TFLOP/s\nbf16 = 20 TFLOP/s\nmemory = 80 GB\nmemory_bandwidth = 1 TB/s\n[network link]\n"
        "kind = nvlink\nspan = 4\nbandwidth = 100 GB/s\nlatency = 1 us\n"
        "[memory nvme]\ncapacity = 1 TB\nbandwidth = 1 MB/s\nlatency = 1 ms\nspan = 2\n",
        host_megabytes, link);
    Topology *topology = topology_parse(text, "case", "", &error);

    ck_assert_msg(topology != NULL, "%s", error == NULL ? "" : error->message);
    return topology;
}

static Topology *cpu_with_disk(guint cores)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *text = g_strdup_printf(
        "[cluster]\nname = case\nsource = test\nnodes = 1\n[node]\ngpus = %u\ngpu = core\n"
        "cpu_memory = 1 GB\n[gpu core]\nsource = test\nkind = cpu\nfp32 = 10 GFLOP/s\n"
        "bf16 = 10 GFLOP/s\nmemory = 1 GB\nmemory_bandwidth = 10 GB/s\n[network shared]\n"
        "kind = shared\nspan = all\nbandwidth = 1 GB/s\nlatency = 1 us\n"
        "[memory nvme]\ncapacity = 1 TB\nbandwidth = 100 MB/s\nlatency = 0 s\n",
        cores);
    Topology *topology = topology_parse(text, "case", "", &error);

    ck_assert_msg(topology != NULL, "%s", error == NULL ? "" : error->message);
    return topology;
}

static const Op *simulated_op(const Program *program, const SimulatedOp *at)
{
    const Call *call = &g_array_index(program->step.calls, Call, at->call);

    return &program_segment(program, call->segment)->ops[at->op];
}

static double step_seconds(const Case *from, const Topology *topology)
{
    const SimulateContext context = {.topology = topology, .ranks_per_node = 3, .threads = 1};
    g_autoptr(Program) program = case_build(from);
    g_autofree guint *spans = case_spans(program, from);

    return simulate_program(program, &context, spans).step_s;
}

/* At 1 MB/s each way all else takes next to no time.  The root has one buffer, blocks have two;
 * what a step takes is, one after the other: the root's 3 copies in and 3 out, the first out of
 * block 0, which frees a buffer's master for block 2, and the 3 in of block 2.  Then the root comes
 * again. */
START_TEST(a_slow_link_is_what_a_step_takes)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = linked(1000, "1 MB/s");
    const Case one = offloaded(model, STRATEGY_FULL_SHARD, TIER_HOST, TIER_DEVICE);
    const double bytes = 2 * 12 * 4136 + 4 * 1584 + 12 * 1584;

    ck_assert_double_eq_tol(step_seconds(&one, topology), bytes / 1e6, 1e-4);
}
END_TEST

/* 3 copies in and 3 out for each of 4 units, at 1 MB/s and 1 ms each: a disk has one at a time, and
 * no rest. */
START_TEST(what_a_disk_moves_both_ways_is_what_a_step_takes)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = linked(1000, "1 TB/s");
    const Case nvme = offloaded(model, STRATEGY_FULL_SHARD, TIER_NVME, TIER_DEVICE);

    ck_assert_double_eq_tol(step_seconds(&nvme, topology), 2 * 12 * SHARD / 1e6 + 24e-3, 1e-4);
}
END_TEST

/* Of the steady step's timeline: storage ops that run while one of another kind does. */
static guint beside(const Program *program, const GArray *ops, guint stream_of_others)
{
    guint num = 0;

    for (guint i = 0; i < ops->len; i++) {
        const SimulatedOp *copy = &g_array_index(ops, SimulatedOp, i);
        gboolean any = FALSE;

        if (!program_copies_file(program, simulated_op(program, copy)))
            continue;
        for (guint k = 0; k < ops->len; k++) {
            const SimulatedOp *other = &g_array_index(ops, SimulatedOp, k);

            any |= other->start_s < copy->end_s && other->end_s > copy->start_s &&
                   (simulated_op(program, other)->stream == COMPUTE_STREAM) ==
                       (stream_of_others == COMPUTE_STREAM) &&
                   !program_copies_file(program, simulated_op(program, other));
        }
        num += any ? 1 : 0;
    }
    return num;
}

/* Also where cores are too few for two threads of a rank: who waits for a disk needs none. */
START_TEST(a_disk_works_beside_compute_and_collectives)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = offloaded(model, STRATEGY_FULL_SHARD, TIER_NVME, TIER_DEVICE);
    g_autoptr(ProgramSet) set = case_compile(&one);

    for (guint i = 0; i < 2; i++) {
        g_autoptr(Topology) topology = cpu_with_disk(i == 0 ? 3 : 100);
        const SimulateContext context = {.topology = topology, .ranks_per_node = 3, .threads = 1};
        g_autofree StepTime *times = g_new0(StepTime, set->num_classes);
        g_autoptr(GArray) ops = g_array_new(FALSE, FALSE, sizeof(SimulatedOp));

        ck_assert_uint_eq(set->num_classes, 1);
        simulate_set(set, &context, times, ops);
        ck_assert_uint_gt(beside(set->classes[0], ops, COMPUTE_STREAM), 0);
        ck_assert_uint_gt(beside(set->classes[0], ops, COMPUTE_STREAM + 1), 0);
    }
}
END_TEST

/* 1, 3 and 6 ranks on 3 cores. */
START_TEST(ranks_of_a_node_share_its_disk)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = offloaded(model, STRATEGY_FULL_SHARD, TIER_NVME, TIER_DEVICE);
    g_autoptr(Program) program = case_build(&one);
    g_autofree guint *spans = case_spans(program, &one);
    g_autoptr(Topology) topology = cpu_with_disk(3);
    static const guint ranks[] = {1, 3, 6};
    double copies_s[3] = {0};

    for (guint i = 0; i < 3; i++) {
        const SimulateContext context = {
            .topology = topology, .ranks_per_node = ranks[i], .threads = 1};
        double **durations = durations_new(program, &context, spans);

        for (guint s = 0; s < program->segments->len; s++)
            for (guint k = 0; k < program_segment(program, s)->num_ops; k++)
                if (program_copies_file(program, &program_segment(program, s)->ops[k]))
                    copies_s[i] += durations[s][k];
        durations_free(durations, program);
    }
    ck_assert_double_gt(copies_s[0], 0);
    ck_assert_double_eq_tol(copies_s[1], 3 * copies_s[0], 1e-9);
    ck_assert_double_eq_tol(copies_s[2], 6 * copies_s[0], 1e-9);
}
END_TEST

START_TEST(a_fast_link_costs_little_and_a_slower_one_never_less)
{
    static const char *const links[] = {"10 TB/s", "1 GB/s", "100 MB/s", "10 MB/s"};
    g_autoptr(Model) model = case_model(&case_shape);
    const Case on_device = offloaded(model, STRATEGY_FULL_SHARD, TIER_DEVICE, TIER_DEVICE);
    const Case one = offloaded(model, STRATEGY_FULL_SHARD, TIER_HOST, TIER_HOST);
    g_autoptr(Topology) fastest = linked(1000, links[0]);
    double before = step_seconds(&on_device, fastest);

    ck_assert_double_le(step_seconds(&one, fastest), before * 1.05);
    for (guint i = 0; i < G_N_ELEMENTS(links); i++) {
        g_autoptr(Topology) topology = linked(1000, links[i]);
        const double step_s = step_seconds(&one, topology);

        ck_assert_double_ge(step_s, before * (1 - 1e-9));
        before = step_s;
    }
}
END_TEST

static Plan *price(const Case *from, Topology *topology)
{
    Plan *plan = case_plan(from, topology);

    plan_price(plan);
    return plan;
}

/* 3 ranks keep 106,656 bytes each: 330 kB hold them, 310 kB don't. */
START_TEST(ranks_of_a_node_share_its_memory)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = offloaded(model, STRATEGY_FULL_SHARD, TIER_HOST, TIER_DEVICE);
    g_autoptr(Plan) fits = price(&one, linked(330, "1 GB/s"));
    g_autoptr(Plan) too_large = price(&one, linked(310, "1 GB/s"));

    ck_assert_uint_eq(fits->reasons->len, 0);
    ck_assert_uint_ge(fits->arena_bytes[TIER_HOST], 12 * SHARD);
    ck_assert_uint_eq(too_large->reasons->len, 1);
    const char *reason = g_ptr_array_index(too_large->reasons, 0);
    g_autoptr(GPtrArray) problems = g_ptr_array_new_with_free_func(g_free);
    const ProgramSpec spec = plan_spec(too_large);
    g_autoptr(ProgramSet) set = program_compile(&spec);
    plan_check_tiers(fits, set, problems);
    ck_assert_uint_eq(problems->len, 0);
    plan_check_tiers(too_large, set, problems);
    ck_assert_uint_eq(problems->len, 1);
    ck_assert_str_eq(g_ptr_array_index(problems, 0), reason);
    ck_assert_msg(strstr(reason, "the 3 ranks that share a host memory need") != NULL, "%s",
                  reason);
}
END_TEST

START_TEST(a_plan_with_state_in_the_host_reads_back)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = offloaded(model, STRATEGY_FULL_SHARD, TIER_HOST, TIER_NVME);
    g_autoptr(Plan) plan = price(&one, linked(1000, "1 GB/s"));
    g_autofree char *text = plan_print(plan);
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) read = plan_parse(text, "plan", &error);

    ck_assert_msg(read != NULL, "%s", error == NULL ? "" : error->message);
    g_autofree char *again = plan_print(read);
    ck_assert_str_eq(again, text);
    ck_assert_int_eq(read->sharding.offload.optimizer, TIER_HOST);
    ck_assert_int_eq(read->sharding.offload.parameters, TIER_NVME);
    g_autoptr(ProgramSet) set = plan_compile(read, &error);
    ck_assert_ptr_nonnull(set);
}
END_TEST

/* ---- topologies ---- */

START_TEST(a_topology_has_the_memories_that_it_states)
{
    g_autoptr(Topology) topology = linked(64, "20 GB/s");
    g_autoptr(Topology) cpu = case_cpu_topology(2, 10);
    MemoryTier memory;

    ck_assert(topology_memory(topology, TIER_HOST, &memory));
    ck_assert_uint_eq(memory.capacity_bytes, 64000);
    ck_assert_double_eq(memory.bytes_per_s, 20e9);
    ck_assert_uint_eq(memory.span, 0);
    ck_assert(topology_memory(topology, TIER_NVME, &memory));
    ck_assert_uint_eq(memory.capacity_bytes, G_GUINT64_CONSTANT(1000000000000));
    ck_assert_double_eq(memory.latency_s, 1e-3);
    ck_assert_uint_eq(memory.span, 2);
    ck_assert(!topology_memory(topology, TIER_CXL, &memory));
    ck_assert(!topology_memory(topology, TIER_DEVICE, &memory));
    ck_assert(!topology_memory(cpu, TIER_HOST, &memory));
}
END_TEST

START_TEST(a_memory_of_its_own_name_stands_before_what_the_node_says)
{
    g_autoptr(Topology) topology = linked(64, "20 GB/s");
    g_autofree char *text = topology_print(topology);
    g_autofree char *more =
        g_strconcat(text, "[memory host]\ncapacity = 1 GB\nbandwidth = 5 GB/s\n", NULL);
    g_autofree char *wrong = g_strconcat(text,
                                         "[memory tape]\ncapacity = 1 GB\nbandwidth = 5 "
                                         "GB/s\n",
                                         NULL);
    g_autoptr(Topology) own = topology_parse(more, "more", "", NULL);
    g_autoptr(GError) error = NULL;
    MemoryTier memory;

    ck_assert(topology_memory(own, TIER_HOST, &memory));
    ck_assert_double_eq(memory.bytes_per_s, 5e9);
    ck_assert_ptr_null(topology_parse(wrong, "wrong", "", &error));
    ck_assert_msg(strstr(error->message, "allowed: host, cxl, nvme") != NULL, "%s", error->message);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("offload");
    TCase *tcase = tcase_create("offload");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, masters_and_moments_lie_in_the_host_and_nothing_else);
    tcase_add_test(tcase, every_step_brings_the_state_in_and_takes_it_back);
    tcase_add_test(tcase, shards_in_the_host_come_in_for_each_gather);
    tcase_add_test(tcase, what_is_copied_is_what_the_optimizer_keeps);
    tcase_add_loop_test(tcase, offloaded_programs_are_proven, 0, 4);
    tcase_add_test(tcase, an_update_that_does_not_wait_for_its_copies_is_caught);
    tcase_add_test(tcase, parameters_that_stay_whole_are_not_offloaded);
    tcase_add_test(tcase, the_tier_is_part_of_the_hash);
    tcase_add_test(tcase, a_slow_link_is_what_a_step_takes);
    tcase_add_test(tcase, what_a_disk_moves_both_ways_is_what_a_step_takes);
    tcase_add_test(tcase, a_disk_works_beside_compute_and_collectives);
    tcase_add_test(tcase, ranks_of_a_node_share_its_disk);
    tcase_add_test(tcase, a_fast_link_costs_little_and_a_slower_one_never_less);
    tcase_add_test(tcase, ranks_of_a_node_share_its_memory);
    tcase_add_test(tcase, a_plan_with_state_in_the_host_reads_back);
    tcase_add_test(tcase, a_topology_has_the_memories_that_it_states);
    tcase_add_test(tcase, a_memory_of_its_own_name_stands_before_what_the_node_says);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
