#include "sim/program/builder.h"
#include "tests/sim/spec_case.h"

START_TEST(a_new_program_has_one_space_of_one_copy_and_the_compute_stream)
{
    g_autoptr(Program) program = program_new();

    ck_assert_uint_eq(program->spaces->len, 1);
    ck_assert_uint_eq(g_array_index(program->spaces, Space, NO_SPACE).count, 1);
    ck_assert_uint_eq(program->streams->len, 1);
    ck_assert_int_eq(program_stream(program, COMPUTE_STREAM)->kind, STREAM_COMPUTE);
    ck_assert_uint_eq(program_num_ops(program), 0);
}
END_TEST

/* Kind -> lives between steps?, term. */
static const struct {
    TensorKind kind;
    gboolean state;
    const char *term;
} kinds[] = {
    {TENSOR_PARAMETER, TRUE, "parameters"},
    {TENSOR_GATHERED, FALSE, "gathered"},
    {TENSOR_UNIT_GRADIENT, FALSE, "communication"},
    {TENSOR_GRADIENT, TRUE, "gradients"},
    {TENSOR_MASTER, TRUE, "master"},
    {TENSOR_MOMENT, TRUE, "optimizer"},
    {TENSOR_ACTIVATION, FALSE, "activations"},
    {TENSOR_LOGITS, FALSE, "logits"},
    {TENSOR_COMMUNICATION, FALSE, "communication"},
    {TENSOR_WORKSPACE, FALSE, "workspace"},
    {TENSOR_INPUT, TRUE, "workspace"},
    {TENSOR_SCALAR, TRUE, "workspace"},
};

START_TEST(the_kind_of_a_tensor_decides_how_long_it_lives_and_where_it_counts)
{
    g_autoptr(Program) program = program_new();
    const guint ring = program_add_space(program, "ring", 3);

    ck_assert_uint_eq(G_N_ELEMENTS(kinds), NUM_TENSOR_KINDS);
    for (guint i = 0; i < G_N_ELEMENTS(kinds); i++) {
        const guint t = program_add_tensor(program, "t", kinds[i].kind, DTYPE_BF16, ring, 100);
        const Tensor *tensor = program_tensor(program, t);

        ck_assert_int_eq(tensor->persistence == PERSIST_STATE, kinds[i].state);
        ck_assert_str_eq(memory_term_name(tensor_term(tensor)), kinds[i].term);
        ck_assert_uint_eq(tensor_copy_bytes(tensor), 200);
        ck_assert_uint_eq(tensor_bytes(program, tensor), 600);
    }
}
END_TEST

START_TEST(copies_of_a_ring_wrap_in_both_directions)
{
    g_autoptr(Program) program = program_new();
    const guint ring = program_add_space(program, "ring", 3);
    const guint in_ring = program_add_tensor(program, "a", TENSOR_ACTIVATION, DTYPE_FP32, ring, 1);
    const guint alone =
        program_add_tensor(program, "b", TENSOR_ACTIVATION, DTYPE_FP32, NO_SPACE, 1);
    static const gint shifts[] = {0, 1, -1, -2, 4, -3};
    static const guint copies[] = {2, 0, 1, 0, 0, 2};
    Call call = {.index = {0}};

    call.index[ring] = 2;
    for (guint i = 0; i < G_N_ELEMENTS(shifts); i++) {
        Operand operand = {.tensor = in_ring, .shift = shifts[i]};

        ck_assert_uint_eq(operand_copy(program, &call, &operand), copies[i]);
        operand.tensor = alone;
        ck_assert_uint_eq(operand_copy(program, &call, &operand), 0);
    }
}
END_TEST

START_TEST(the_first_call_of_an_accumulation_writes_and_the_others_update)
{
    static const Access accesses[] = {ACCESS_READ, ACCESS_WRITE, ACCESS_UPDATE, ACCESS_ACCUMULATE};
    static const Access first[] = {ACCESS_READ, ACCESS_WRITE, ACCESS_UPDATE, ACCESS_WRITE};
    static const Access later[] = {ACCESS_READ, ACCESS_WRITE, ACCESS_UPDATE, ACCESS_UPDATE};

    for (guint i = 0; i < G_N_ELEMENTS(accesses); i++) {
        const Operand operand = {.access = accesses[i]};

        ck_assert_int_eq(operand_access(&operand, TRUE), first[i]);
        ck_assert_int_eq(operand_access(&operand, FALSE), later[i]);
    }
}
END_TEST

START_TEST(waits_of_a_call_are_a_slice_of_the_list)
{
    g_autoptr(Program) program = program_new();
    CallList *list = &program->step;
    const guint segment = program_add_segment(program, "s");

    for (guint c = 0; c < 3; c++) {
        const guint call = call_list_add(list, segment, c, 7);

        for (guint w = 0; w < c; w++)
            call_list_wait(list, call, (Wait){.call = w, .back = 1});
    }
    ck_assert_uint_eq(list->waits->len, 3);
    const Call *last = &g_array_index(list->calls, Call, 2);
    ck_assert_uint_eq(last->first_wait, 1);
    ck_assert_uint_eq(last->num_waits, 2);
    ck_assert_uint_eq(last->micro_batch, 7);
    ck_assert(last->first && last->last);
    ck_assert_uint_eq(g_array_index(list->waits, Wait, 2).call, 1);
}
END_TEST

/* ---- volume ---- */

/* Of @elements fp32 on @ranks, by hand: gather and scatter (n - 1) ceil(e / n), all-reduce twice
 * that. */
static const struct {
    OpKind kind;
    guint64 elements;
    guint ranks;
    guint64 bytes;
    Volume volume;
} moved[] = {
    {OP_ALL_GATHER, 100, 4, 4 * 75, VOLUME_ALL_GATHER},
    {OP_ALL_GATHER, 101, 4, 4 * 78, VOLUME_ALL_GATHER},
    {OP_ALL_GATHER, 100, 1, 0, VOLUME_ALL_GATHER},
    {OP_REDUCE_SCATTER, 10, 3, 4 * 8, VOLUME_REDUCE_SCATTER},
    {OP_ALL_REDUCE, 10, 3, 4 * 16, VOLUME_ALL_REDUCE},
    {OP_ALL_REDUCE, 1, 5, 4 * 8, VOLUME_ALL_REDUCE},
    {OP_ALL_REDUCE, 7, 1, 0, VOLUME_ALL_REDUCE},
};

START_TEST(a_collective_moves_the_hand_worked_bytes)
{
    g_autoptr(Program) program = program_new();
    const guint stream = program_add_stream(program, "s", STREAM_COMMUNICATION,
                                            program_add_group(program, "tp", moved[_i].ranks));
    const guint data = program_add_tensor(program, "data", TENSOR_ACTIVATION, DTYPE_FP32, NO_SPACE,
                                          moved[_i].elements);
    const guint segment = program_add_segment(program, "segment");
    Op *op = segment_add_op(program, segment, moved[_i].kind, stream, DTYPE_FP32);

    op->sizes.elements = moved[_i].elements;
    op_add_operand(op, data, ACCESS_UPDATE, 0, WHOLE_TENSOR);
    ck_assert_uint_eq(op_group_size(program, op), moved[_i].ranks);
    ck_assert_uint_eq(op_volume_bytes(program, op), moved[_i].bytes);
    ck_assert_int_eq(op_volume(op->kind), moved[_i].volume);
}
END_TEST

START_TEST(an_exchange_counts_what_it_receives)
{
    g_autoptr(Program) program = program_new();
    const guint stream =
        program_add_stream(program, "s", STREAM_COMMUNICATION, program_add_group(program, "pp", 3));
    const guint a = program_add_tensor(program, "a", TENSOR_ACTIVATION, DTYPE_BF16, NO_SPACE, 10);
    const guint b = program_add_tensor(program, "b", TENSOR_ACTIVATION, DTYPE_FP32, NO_SPACE, 7);
    const guint segment = program_add_segment(program, "segment");
    Op *op = segment_add_op(program, segment, OP_EXCHANGE, stream, DTYPE_BF16);

    op_add_operand(op, a, ACCESS_READ, 0, WHOLE_TENSOR);
    ck_assert_uint_eq(op_volume_bytes(program, op), 0);
    op_add_operand(op, b, ACCESS_WRITE, 0, WHOLE_TENSOR);
    op_add_operand(op, a, ACCESS_WRITE, 0, WHOLE_TENSOR);
    ck_assert_uint_eq(op_volume_bytes(program, op), 28 + 20);
    ck_assert_int_eq(op_volume(op->kind), VOLUME_EXCHANGE);
}
END_TEST

START_TEST(a_step_counts_its_calls_and_neither_prologue_nor_epilogue)
{
    g_autoptr(Program) program = program_new();
    const guint stream =
        program_add_stream(program, "s", STREAM_COMMUNICATION, program_add_group(program, "tp", 2));
    const guint data = program_add_tensor(program, "a", TENSOR_GRADIENT, DTYPE_FP32, NO_SPACE, 10);
    const guint segment = program_add_segment(program, "segment");
    guint64 bytes[NUM_VOLUMES];

    for (guint i = 0; i < 2; i++) {
        Op *op = segment_add_op(program, segment, OP_ALL_REDUCE, stream, DTYPE_FP32);

        op->sizes.elements = 10;
        op_add_operand(op, data, ACCESS_UPDATE, 0, WHOLE_TENSOR);
    }
    for (guint c = 0; c < 3; c++)
        call_list_add(&program->step, segment, 0, c);
    call_list_add(&program->prologue, segment, 0, 0);
    call_list_add(&program->epilogue, segment, 0, 0);
    program_volume(program, bytes);
    ck_assert_uint_eq(bytes[VOLUME_ALL_REDUCE], 3 * 2 * 4 * 10);
    ck_assert_uint_eq(program_num_ops(program), 6);
}
END_TEST

START_TEST(terms_and_volumes_are_named_as_in_plans)
{
    static const char *const terms[] = {"parameters", "gathered",    "gradients", "master",
                                        "optimizer",  "activations", "logits",    "communication",
                                        "workspace",  "framework"};
    static const char *const volumes[] = {"all_gather", "reduce_scatter", "all_reduce",
                                          "all_to_all", "exchange"};

    ck_assert_uint_eq(G_N_ELEMENTS(terms), NUM_MEMORY_TERMS);
    ck_assert_uint_eq(G_N_ELEMENTS(volumes), NUM_VOLUMES);
    for (guint t = 0; t < NUM_MEMORY_TERMS; t++)
        ck_assert_str_eq(memory_term_name((MemoryTerm)t), terms[t]);
    for (guint v = 0; v < NUM_VOLUMES; v++)
        ck_assert_str_eq(volume_name((Volume)v), volumes[v]);
}
END_TEST

/* ---- hash ---- */

/* Edits one fact of a compiled program. */
static void edit(Program *program, guint what)
{
    Segment *segment = program_segment(program, (guint)find_segment(program, "block.forward"));
    Op *op = &segment->ops[1];
    Call *call = &g_array_index(program->step.calls, Call, 5);

    switch (what) {
    case 0:
        program_tensor(program, 3)->offset += 256;
        break;
    case 1:
        program_tensor(program, 3)->stride += 256;
        break;
    case 2:
        program_tensor(program, 3)->elements++;
        break;
    case 3:
        program_tensor(program, 3)->dtype = DTYPE_FP64;
        break;
    case 4:
        g_array_index(program->spaces, Space, 1).count++;
        break;
    case 5:
        op->kind = OP_CAST;
        break;
    case 6:
        op->operands[0].tensor++;
        break;
    case 7:
        op->operands[0].shift++;
        break;
    case 8:
        op->operands[1].param++;
        break;
    case 9:
        op->operands[2].access = ACCESS_UPDATE;
        break;
    case 10:
        op->sizes.out++;
        break;
    case 11:
        op->predicate = 0;
        break;
    case 12:
        op->waits[op->num_waits++] = 0;
        break;
    case 13:
        call->segment ^= 1;
        break;
    case 14:
        call->first = !call->first;
        break;
    case 15:
        call->index[2]++;
        break;
    case 16:
        g_array_index(program->step.waits, Wait, 0).op++;
        break;
    case 17:
        g_array_index(program->groups, GroupRef, 0).size++;
        break;
    case 18:
        program_unit(program, 1)->map->pieces[0].chunk++;
        break;
    case 19:
        program->arena_bytes[TIER_DEVICE]++;
        break;
    case 20:
        call_list_add(&program->epilogue, 0, 0, 0);
        break;
    case 21:
        segment->ops[0].sizes.eps *= 2;
        break;
    case 22:
        op->dtype_out = DTYPE_FP32;
        break;
    case 23:
        op->stream = 1;
        break;
    }
}

enum { EDITS = 24 };

START_TEST(each_fact_that_the_executor_acts_on_changes_the_hash)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 2);
    g_autoptr(Program) program = case_build(&one);
    g_autofree char *hash = program_hash(program);

    edit(program, (guint)_i);
    g_autofree char *edited = program_hash(program);
    ck_assert_str_ne(hash, edited);
    ck_assert_uint_eq(strlen(hash), 64);
}
END_TEST

/* ---- sets ---- */

START_TEST(a_rank_finds_its_group_and_its_place_in_it)
{
    static const guint pairs[2][2] = {{0, 2}, {3, 1}};
    g_autoptr(ProgramSet) set = program_set_new(5);

    for (guint i = 0; i < 2; i++)
        program_set_add_group(set, "pair", pairs[i], 2);
    ck_assert_ptr_null(program_set_group(set, "nobody", 0));
    ck_assert_ptr_null(program_set_group(set, "pair", 4));
    ck_assert_ptr_eq(program_set_group(set, "pair", 0), program_set_group(set, "pair", 2));
    const Group *group = program_set_group(set, "pair", 1);
    ck_assert_uint_eq(group->size, 2);
    ck_assert_uint_eq(group_position(group, 1), 1);
    ck_assert_uint_eq(group_position(group, 3), 0);
}
END_TEST

/* dp_shard inside dp_replicate: ranks 0-2 and 3-5 share shards, 0 and 3 are replicas. */
START_TEST(groups_of_a_hybrid_layout)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_with(model, STRATEGY_HYBRID_SHARD, 3, 1);
    g_autoptr(ProgramSet) set = case_compile(&one);

    ck_assert_uint_eq(set->num_ranks, 6);
    ck_assert_uint_eq(set->num_classes, 1);
    for (guint rank = 0; rank < 6; rank++) {
        const Group *shard = program_set_group(set, "shard", rank);
        const Group *replicate = program_set_group(set, "replicate", rank);
        const Group *data = program_set_group(set, "data", rank);

        ck_assert_uint_eq(shard->size, 3);
        ck_assert_uint_eq(shard->ranks[0], rank / 3 * 3);
        ck_assert_uint_eq(group_position(shard, rank), rank % 3);
        ck_assert_uint_eq(replicate->size, 2);
        ck_assert_uint_eq(replicate->ranks[0], rank % 3);
        ck_assert_uint_eq(replicate->ranks[1], rank % 3 + 3);
        ck_assert_uint_eq(data->size, 6);
        ck_assert_uint_eq(group_position(data, rank), rank);
    }
}
END_TEST

START_TEST(the_hash_of_a_set_covers_its_classes_and_who_runs_them)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);
    g_autoptr(ProgramSet) set = case_compile(&one);
    g_autofree char *alone = program_set_hash(set);

    program_set_add_class(set, case_build(&one));
    g_autofree char *two = program_set_hash(set);
    program_set_assign(set, 1, 1);
    g_autofree char *assigned = program_set_hash(set);
    ck_assert_str_ne(alone, two);
    ck_assert_str_ne(two, assigned);
}
END_TEST

/* A sketch is the program without its list of calls. */
START_TEST(a_sketch_counts_the_calls_that_the_program_lists)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(GRand) random = g_rand_new_with_seed(101);

    for (guint i = 0; i < 60; i++) {
        const Case one = case_random_4d(random, model);
        const ProgramSpec spec = case_spec(&one);
        g_autoptr(Sketch) sketch = program_sketch(&spec, 0);
        g_autoptr(Program) program = case_build(&one);

        ck_assert_uint_eq(sketch->program->segments->len, program->segments->len);
        for (guint s = 0; s < program->segments->len; s++) {
            guint64 calls = 0;

            for (guint c = 0; c < program->step.calls->len; c++)
                calls += g_array_index(program->step.calls, Call, c).segment == s ? 1 : 0;
            ck_assert_uint_eq(sketch->calls[s], calls);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("program");
    TCase *tcase = tcase_create("program");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, a_new_program_has_one_space_of_one_copy_and_the_compute_stream);
    tcase_add_test(tcase, the_kind_of_a_tensor_decides_how_long_it_lives_and_where_it_counts);
    tcase_add_test(tcase, copies_of_a_ring_wrap_in_both_directions);
    tcase_add_test(tcase, the_first_call_of_an_accumulation_writes_and_the_others_update);
    tcase_add_test(tcase, waits_of_a_call_are_a_slice_of_the_list);
    tcase_add_loop_test(tcase, a_collective_moves_the_hand_worked_bytes, 0, G_N_ELEMENTS(moved));
    tcase_add_test(tcase, an_exchange_counts_what_it_receives);
    tcase_add_test(tcase, a_step_counts_its_calls_and_neither_prologue_nor_epilogue);
    tcase_add_test(tcase, terms_and_volumes_are_named_as_in_plans);
    tcase_add_loop_test(tcase, each_fact_that_the_executor_acts_on_changes_the_hash, 0, EDITS);
    tcase_add_test(tcase, a_rank_finds_its_group_and_its_place_in_it);
    tcase_add_test(tcase, groups_of_a_hybrid_layout);
    tcase_add_test(tcase, the_hash_of_a_set_covers_its_classes_and_who_runs_them);
    tcase_add_test(tcase, a_sketch_counts_the_calls_that_the_program_lists);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
