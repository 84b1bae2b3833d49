#include "sim/program/builder.h"
#include "tests/sim/spec_case.h"

/* full_shard over 2 ranks, 6 layers; N = 2 x 8 tokens a micro-batch. */
static const CaseShape six_layers = {
    .vocab = 257, .hidden = 24, .ffn = 40, .layers = 6, .heads = 4, .kv_heads = 2};

enum { TOKENS = 16, HIDDEN = 24, FFN = 40, HEADS = 4, ATTENTION = 24, KV = 12 };

static Case staged(Model *model, guint pp, ScheduleKind kind, guint micro_batches)
{
    Case one = case_with(model, STRATEGY_FULL_SHARD, 2, micro_batches);

    one.layout.size[AXIS_PP] = pp;
    one.schedule.kind = kind;
    one.schedule.virtual_stages = kind == SCHEDULE_INTERLEAVED ? 2 : 1;
    sharding_normalise(&one.sharding, &one.layout, &one.schedule);
    return one;
}

static const UnitMap *root_map(const Program *program)
{
    return program_unit(program, 0)->map;
}

static guint64 root_rows(const Program *program, ParamRole role)
{
    const UnitMap *map = root_map(program);

    for (guint p = 0; p < map->num_params; p++)
        if (map->params[p].role == role)
            return map->params[p].rows;
    g_assert_not_reached();
}

/* ---- who has what ---- */

START_TEST(each_block_is_on_one_stage_in_the_order_of_stages)
{
    g_autoptr(Model) model = case_model(&six_layers);
    const Case one = staged(model, 3, SCHEDULE_1F1B, 2);
    const Case chunks = staged(model, 3, SCHEDULE_INTERLEAVED, 3);
    static const guint stage_of[] = {0, 0, 1, 1, 2, 2}, stage_of_chunk[] = {0, 1, 2, 0, 1, 2};
    g_autoptr(ProgramSet) set = case_compile(&one);
    g_autoptr(ProgramSet) interleaved = case_compile(&chunks);

    ck_assert_uint_eq(set->num_classes, 3);
    for (guint stage = 0; stage < 3; stage++)
        for (guint block = 0; block < 6; block++) {
            const UnitRef *ref = program_unit_ref(set->classes[stage], block + 1);
            const UnitRef *other = program_unit_ref(interleaved->classes[stage], block + 1);

            ck_assert_int_eq(ref->unit_class != NO_UNIT_CLASS, stage_of[block] == stage);
            ck_assert_int_eq(other->unit_class != NO_UNIT_CLASS, stage_of_chunk[block] == stage);
        }
}
END_TEST

START_TEST(the_first_stage_has_the_embedding_and_the_last_norm_and_head)
{
    for (guint tied = 0; tied <= 1; tied++) {
        CaseShape shape = six_layers;

        shape.tied = tied == 1;
        g_autoptr(Model) model = case_model(&shape);
        const Case one = staged(model, 3, SCHEDULE_1F1B, 2);
        g_autoptr(ProgramSet) set = case_compile(&one);

        for (guint stage = 0; stage < 3; stage++) {
            const Program *program = set->classes[stage];
            const gboolean first = stage == 0, last = stage == 2;

            ck_assert_uint_eq(root_rows(program, PARAM_EMBEDDING),
                              first || (last && shape.tied) ? 257 : 0);
            ck_assert_uint_eq(root_rows(program, PARAM_FINAL_NORM), last ? 24 : 0);
            if (!shape.tied)
                ck_assert_uint_eq(root_rows(program, PARAM_HEAD), last ? 257 : 0);
            ck_assert_int_eq(find_segment(program, "embed.forward") >= 0, first);
            ck_assert_int_eq(find_segment(program, "embed.backward") >= 0, first);
            ck_assert_int_eq(find_segment(program, "head") >= 0, last);
            ck_assert_int_eq(find_segment(program, "root.update") >= 0, first || last);
            ck_assert_int_eq(program_unit_ref(program, ROOT_UNIT)->unit_class != NO_UNIT_CLASS,
                             first || last);
        }
    }
}
END_TEST

/* 2048 tokens of 32 heads of 128 in bf16, in groups that share keys: dq's sums twice, dk and dv of
 * each, a number a row, counters; what products take is less. */
START_TEST(a_stage_without_head_has_the_scratch_of_cudnns_attention)
{
    const guint64 rows = 2048 * 32, elements = 128 * rows;
    CaseShape shape = six_layers;

    shape.hidden = 4096;
    shape.heads = 32;
    shape.kv_heads = 8;
    g_autoptr(Model) model = case_model(&shape);
    Case one = staged(model, 2, SCHEDULE_1F1B, 2);

    one.device = DEVICE_CUDA;
    one.workload.seq_len = 2048;
    one.workload.global_batch /= one.schedule.micro_batch;
    one.schedule.micro_batch = 1;
    g_autoptr(ProgramSet) set = case_compile(&one);
    const Program *first = set->classes[0];
    const gint scratch = find_tensor(first, "scratch");
    ck_assert_int_eq(find_segment(first, "head"), -1);
    ck_assert_uint_eq(tensor_copy_bytes(program_tensor(first, (guint)scratch)),
                      (4 + 4 + 2 + 2) * elements + 4 * rows + 256);
}
END_TEST

/* All stages together have Psi, and a tied embedding once more. */
START_TEST(stages_add_up_to_the_model)
{
    for (guint i = 0; i < 2 * 2 * 3; i++) {
        CaseShape shape = six_layers;

        shape.tied = i % 2 == 1;
        g_autoptr(Model) model = case_model(&shape);
        Case one = staged(model, 1 + i / 4 % 3, SCHEDULE_1F1B, 2);
        guint64 elements = 0;

        one.sharding.form = (Form)(i / 2 % 2);
        g_autoptr(ProgramSet) set = case_compile(&one);
        for (guint c = 0; c < set->num_classes; c++)
            for (guint u = 0; u < set->classes[c]->units->len; u++)
                elements += program_unit(set->classes[c], u)->map->elements *
                            program_unit(set->classes[c], u)->count;
        const gboolean twice = shape.tied && set->num_classes > 1;
        ck_assert_uint_eq(elements, hand_psi(model) + (twice ? 257 * 24 : 0));
        ck_assert_uint_eq(hand_psi(model), model_parameters(model));
    }
}
END_TEST

/* Rank by rank the same elements at both ends, whatever the form, so that shards can be summed:
 * 257 rows over 2 ranks are 129 and 128. */
START_TEST(both_copies_of_a_tied_embedding_have_the_same_shards)
{
    CaseShape shape = six_layers;

    shape.tied = TRUE;
    g_autoptr(Model) model = case_model(&shape);
    for (guint form = 0; form < NUM_FORMS; form++) {
        Case one = staged(model, 3, SCHEDULE_1F1B, 2);

        one.sharding.form = (Form)form;
        g_autoptr(ProgramSet) set = case_compile(&one);
        const UnitMap *first = root_map(set->classes[0]), *last = root_map(set->classes[2]);

        for (guint rank = 0; rank < 2; rank++) {
            const ShardSpan a = unit_map_span(first, PARAM_EMBEDDING, rank);
            const ShardSpan b = unit_map_span(last, PARAM_EMBEDDING, rank);

            ck_assert_uint_eq(a.start, b.start);
            ck_assert_uint_eq(a.elements, b.elements);
            ck_assert_uint_eq(a.elements, (rank == 0 ? 129 : 128) * 24);
        }
        ck_assert_uint_eq(first->params[PARAM_EMBEDDING].copies, 2);
        ck_assert_uint_eq(last->params[PARAM_EMBEDDING].copies, 2);
    }
}
END_TEST

/* 129 x 24 elements summed over 2 ranks: 2 (n - 1) ceil(elements / n) of 2 bytes. */
START_TEST(tied_gradients_are_summed_between_the_first_and_the_last_stage_only)
{
    for (guint tied = 0; tied <= 1; tied++) {
        CaseShape shape = six_layers;

        shape.tied = tied == 1;
        g_autoptr(Model) model = case_model(&shape);
        const Case one = staged(model, 3, SCHEDULE_1F1B, 2);
        g_autoptr(ProgramSet) set = case_compile(&one);

        for (guint stage = 0; stage < 3; stage++) {
            const Program *program = set->classes[stage];
            const gint sum = find_segment(program, "root.tied_reduce");

            ck_assert_int_eq(sum >= 0, shape.tied && stage != 1);
            ck_assert_uint_eq(count_calls(program, "root.tied_reduce"), sum >= 0 ? 1 : 0);
            if (sum >= 0)
                ck_assert_uint_eq(
                    op_volume_bytes(program, &program_segment(program, (guint)sum)->ops[0]),
                    2 * (129 * 24 / 2) * 2);
        }
        const Group *group = program_set_group(set, "embedding", 1);
        ck_assert_int_eq(group != NULL, shape.tied);
        if (group != NULL) { /* rank 1: its counterpart is the second of the last two */
            ck_assert_uint_eq(group->size, 2);
            ck_assert_uint_eq(group->ranks[0], 1);
            ck_assert_uint_eq(group->ranks[1], 5);
            ck_assert_ptr_null(program_set_group(set, "embedding", 2));
        }
    }
}
END_TEST

static void assert_partition(const Schedule *schedule, guint layers, guint pp, const guint *counts)
{
    guint first = 0;

    for (guint c = 0; c < schedule_chunks(schedule, pp); c++) {
        const LayerRange range = schedule_chunk(schedule, layers, pp, c);

        ck_assert_uint_eq(range.first, first);
        ck_assert_uint_eq(range.count, counts[c]);
        first += counts[c];
    }
    ck_assert_uint_eq(first, layers);
}

START_TEST(what_is_left_over_of_a_balanced_partition_goes_to_the_middle)
{
    static const guint even[] = {8, 8, 8, 8}, two[] = {1, 2}, ten[] = {2, 3, 3, 2};
    static const guint eighty[] = {6, 6, 7, 7, 7, 7, 7, 7, 7, 7, 6, 6};
    static const guint16 given[] = {1, 5, 2};
    static const guint as_given[] = {1, 5, 2};
    const Schedule balanced = {.virtual_stages = 1}, chunks = {.virtual_stages = 3};
    const Schedule by_hand = {.virtual_stages = 1, .chunk_layers = given};

    assert_partition(&balanced, 32, 4, even);
    assert_partition(&balanced, 80, 12, eighty);
    assert_partition(&chunks, 80, 4, eighty);
    assert_partition(&balanced, 3, 2, two);
    assert_partition(&balanced, 10, 4, ten);
    assert_partition(&by_hand, 8, 3, as_given);
}
END_TEST

START_TEST(a_list_of_chunks_reads_as_written)
{
    guint16 layers[MAX_CHUNKS];
    guint num = 0;

    ck_assert(schedule_parse_chunks("9:10:65535", layers, &num));
    ck_assert_uint_eq(num, 3);
    ck_assert_uint_eq(layers[0], 9);
    ck_assert_uint_eq(layers[1], 10);
    ck_assert_uint_eq(layers[2], 65535);
    ck_assert(schedule_parse_chunks("7", layers, &num));
    ck_assert_uint_eq(num, 1);
    static const char *const wrong[] = {"", ":", "1:", ":1", "1::2", "1:x", "-1", "65536", "1 :2"};
    for (guint i = 0; i < G_N_ELEMENTS(wrong); i++)
        ck_assert_msg(!schedule_parse_chunks(wrong[i], layers, &num), "%s", wrong[i]);
    GString *longest = g_string_new("1");
    for (guint i = 1; i < MAX_CHUNKS; i++)
        g_string_append(longest, ":1");
    ck_assert(schedule_parse_chunks(longest->str, layers, &num));
    ck_assert_uint_eq(num, MAX_CHUNKS);
    g_string_append(longest, ":1");
    ck_assert(!schedule_parse_chunks(longest->str, layers, &num));
    g_string_free(longest, TRUE);
}
END_TEST

/* ---- memory ---- */

/* Bytes of all tensors of a ring, all copies. */
static guint64 ring_bytes(const Program *program, const char *ring)
{
    guint64 bytes = 0;

    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);

        if (strcmp(g_array_index(program->spaces, Space, tensor->space).name, ring) == 0)
            bytes += tensor_bytes(program, tensor);
    }
    return bytes;
}

/* A block and micro-batch in bf16: q, o (A); k, v (K); mid (C); gate, up (F); fp32: two norms'
 * rstd, one lse a head. */
static const guint64 saved_bytes =
    TOKENS * (2 * (2 * ATTENTION + 2 * KV + HIDDEN + 2 * FFN) + 4 * (2 + HEADS));
static const guint64 residual_bytes = TOKENS * 2 * HIDDEN;

static void assert_rings(const Case *from, guint stage, guint in_flight, guint layers)
{
    const ProgramSpec spec = case_spec(from);
    g_autoptr(Program) program = program_build(&spec, stage);
    g_autofree char *text = case_text(from);

    ck_assert_msg(ring_bytes(program, "saved") == in_flight * layers * saved_bytes, "%s", text);
    ck_assert_msg(ring_bytes(program, "residual") == in_flight * (layers + 1) * residual_bytes,
                  "%s", text);
}

/* 6 layers on 3 stages: 2 blocks a stage and their inputs, and the last block's output; in chunks
 * one. */
START_TEST(activations_are_kept_for_each_micro_batch_in_flight)
{
    g_autoptr(Model) model = case_model(&six_layers);

    for (guint stage = 0; stage < 3; stage++)
        for (guint m = 1; m <= 6; m++) {
            const Case alternating = staged(model, 3, SCHEDULE_1F1B, m);
            const Case gpipe = staged(model, 3, SCHEDULE_GPIPE, m);

            assert_rings(&alternating, stage, MIN(3 - stage, m), 2);
            assert_rings(&gpipe, stage, m, 2);
        }
    for (guint stage = 0; stage < 3; stage++) {
        const Case chunks = staged(model, 3, SCHEDULE_INTERLEAVED, 6);

        assert_rings(&chunks, stage, 2 * (3 - stage - 1) + 3 + 1, 1);
    }
}
END_TEST

START_TEST(uneven_stages_have_rings_of_their_own_size)
{
    static const guint16 layers[] = {1, 3, 2};
    g_autoptr(Model) model = case_model(&six_layers);
    Case one = staged(model, 3, SCHEDULE_1F1B, 4);

    one.schedule.chunk_layers = layers;
    for (guint stage = 0; stage < 3; stage++)
        assert_rings(&one, stage, 3 - stage, layers[stage]);
}
END_TEST

/* zb_h1: to the backward pass the residual stream, q, k, v, lse, mid, norms' rstd; to that for
 * weights, of pp micro-batches, o, gate, up; from the one to the other, of stage + 1, h (F), what
 * the halves' gradients and the norms' outputs were (2 C each), dq, dk, dv. */
START_TEST(zb_h1_keeps_what_weights_need_for_as_many_micro_batches_as_stages)
{
    const guint64 until_weights = TOKENS * 2 * (ATTENTION + 2 * FFN);
    const guint64 until_backward = saved_bytes - until_weights;
    const guint64 between = TOKENS * 2 * (FFN + 4 * HIDDEN + ATTENTION + 2 * KV);
    g_autoptr(Model) model = case_model(&six_layers);

    for (guint stage = 0; stage < 3; stage++) {
        const Case one = staged(model, 3, SCHEDULE_ZB_H1, 6);
        const ProgramSpec spec = case_spec(&one);
        g_autoptr(Program) program = program_build(&spec, stage);

        ck_assert_uint_eq(ring_bytes(program, "saved"), (3 - stage) * 2 * until_backward);
        ck_assert_uint_eq(ring_bytes(program, "kept"), 3 * 2 * until_weights);
        ck_assert_uint_eq(ring_bytes(program, "residual"), (3 - stage) * 3 * residual_bytes);
        ck_assert_uint_eq(ring_bytes(program, "weights"), (stage + 1) * 2 * between);
    }
}
END_TEST

/* Selective: o and lse are one copy each, computed again, and nothing else changes.  Full: only the
 * inputs of blocks stay. */
START_TEST(recomputation_drops_o_and_lse_or_all_but_the_inputs_of_blocks)
{
    const guint64 dropped = TOKENS * (2 * ATTENTION + 4 * HEADS);
    g_autoptr(Model) model = case_model(&six_layers);

    for (guint stage = 0; stage < 3; stage++) {
        Case one = staged(model, 3, SCHEDULE_1F1B, 4);
        const guint in_flight = 3 - stage;

        one.schedule.recompute = RECOMPUTE_SELECTIVE;
        const ProgramSpec some = case_spec(&one);
        g_autoptr(Program) selective = program_build(&some, stage);
        ck_assert_uint_eq(ring_bytes(selective, "saved"), in_flight * 2 * (saved_bytes - dropped));
        ck_assert_uint_eq(ring_bytes(selective, "again"), dropped);
        ck_assert_uint_eq(copies_of(selective, (guint)find_tensor(selective, "o")), 1);
        ck_assert_uint_eq(copies_of(selective, (guint)find_tensor(selective, "lse")), 1);
        ck_assert_uint_eq(ring_bytes(selective, "residual"), in_flight * 3 * residual_bytes);
        one.schedule.recompute = RECOMPUTE_FULL;
        const ProgramSpec all = case_spec(&one);
        g_autoptr(Program) full = program_build(&all, stage);
        ck_assert_uint_eq(ring_bytes(full, "saved"), 0);
        ck_assert_uint_eq(ring_bytes(full, "again"), saved_bytes);
        ck_assert_uint_eq(ring_bytes(full, "residual"), in_flight * 3 * residual_bytes);
    }
}
END_TEST

/* ---- volume ---- */

/* A stage receives (N, C) of each micro-batch from either neighbour, in each of its chunks; not
 * before the first chunk and not after the last. */
START_TEST(each_boundary_moves_the_residual_stream_of_each_micro_batch_both_ways)
{
    g_autoptr(Model) model = case_model(&six_layers);

    for (guint kind = 0; kind < NUM_SCHEDULES; kind++)
        for (guint tp = 1; tp <= 2; tp++) {
            Case one = staged(model, 3, (ScheduleKind)kind, 5);
            const guint v = one.schedule.virtual_stages;

            one.layout.size[AXIS_TP] = tp;
            one.sequence_parallel = TRUE; /* a rank has half of the tokens */
            g_autoptr(ProgramSet) set = case_compile(&one);
            for (guint stage = 0; stage < 3; stage++) {
                const guint received = stage == 1 ? 2 * v : 2 * v - 1;

                ck_assert_uint_eq(volume_of(set->classes[stage], VOLUME_EXCHANGE),
                                  received * 5 * residual_bytes / tp);
            }
        }
}
END_TEST

/* Without data parallelism nothing else moves but scalars. */
static Program *with_context(Model *model, guint cp, ContextKind context, Recompute recompute)
{
    Case one = case_with(model, STRATEGY_NO_SHARD, 1, 3);

    one.layout.size[AXIS_CP] = cp;
    one.context = context;
    one.schedule.recompute = recompute;
    return case_build(&one);
}

/* k and v of N / cp tokens, bf16; their gradients' sums fp32. */
START_TEST(a_ring_passes_keys_and_values_and_the_sums_of_their_gradients)
{
    g_autoptr(Model) model = case_model(&six_layers);

    for (guint cp = 2; cp <= 4; cp += 2)
        for (guint recompute = 0; recompute < NUM_RECOMPUTES; recompute++) {
            const guint64 kv = TOKENS / cp * KV, forward = 2 * kv * (cp - 1) * 2;
            const guint64 backward = forward + 2 * kv * cp * 4;
            const guint64 again = recompute == RECOMPUTE_NONE ? 0 : forward;
            g_autoptr(Program) program =
                with_context(model, cp, CONTEXT_RING, (Recompute)recompute);

            ck_assert_uint_eq(volume_of(program, VOLUME_EXCHANGE),
                              3 * 6 * (forward + again + backward));
            ck_assert_uint_eq(volume_of(program, VOLUME_ALL_GATHER), 0);
            ck_assert_uint_eq(volume_of(program, VOLUME_REDUCE_SCATTER), 0);
        }
}
END_TEST

START_TEST(gathered_keys_and_values_are_gathered_again_and_their_gradients_reduced)
{
    g_autoptr(Model) model = case_model(&six_layers);

    for (guint cp = 2; cp <= 4; cp += 2)
        for (guint recompute = 0; recompute < NUM_RECOMPUTES; recompute++) {
            const guint64 once = 2 * (TOKENS / cp * KV) * (cp - 1) * 2;
            const guint gathers = recompute == RECOMPUTE_NONE ? 2 : 3;
            g_autoptr(Program) program =
                with_context(model, cp, CONTEXT_ALL_GATHER, (Recompute)recompute);

            ck_assert_uint_eq(volume_of(program, VOLUME_ALL_GATHER), 3 * 6 * gathers * once);
            ck_assert_uint_eq(volume_of(program, VOLUME_REDUCE_SCATTER), 3 * 6 * once);
            ck_assert_uint_eq(volume_of(program, VOLUME_EXCHANGE), 0);
        }
}
END_TEST

/* ---- gathers and reductions ---- */

static void assert_calls(const Case *from, guint stage, const char *segment, guint count)
{
    const ProgramSpec spec = case_spec(from);
    g_autoptr(Program) program = program_build(&spec, stage);
    g_autofree char *text = case_text(from);

    ck_assert_msg(count_calls(program, segment) == count, "%s: stage %u: %u x %s, not %u", text,
                  stage, count_calls(program, segment), segment, count);
}

/* 2 blocks a stage, 4 micro-batches, forward and backward (for inputs); the root is read once a
 * micro-batch at either end, as the embedding's backward needs no weights. */
START_TEST(full_shard_gathers_for_each_pass_of_each_micro_batch)
{
    g_autoptr(Model) model = case_model(&six_layers);

    for (guint kind = 0; kind < NUM_SCHEDULES; kind++) {
        const Case one = staged(model, 3, (ScheduleKind)kind, 4);

        for (guint stage = 0; stage < 3; stage++) {
            assert_calls(&one, stage, "block.gather", 2 * 4 * 2);
            assert_calls(&one, stage, "root.gather", stage == 1 ? 0 : 4);
        }
    }
}
END_TEST

static guint reductions(const Program *program, const char *unit)
{
    static const char *const suffixes[] = {"", ".add", ".last", ".add.last"};
    guint calls = 0;

    for (guint i = 0; i < G_N_ELEMENTS(suffixes); i++) {
        g_autofree char *name = g_strdup_printf("%s.reduce%s", unit, suffixes[i]);

        calls += count_calls(program, name);
    }
    return calls;
}

START_TEST(gradients_are_reduced_every_micro_batch_or_once)
{
    g_autoptr(Model) model = case_model(&six_layers);

    for (guint kind = 0; kind < NUM_SCHEDULES; kind++)
        for (guint sharded = 0; sharded <= 1; sharded++) {
            Case one = staged(model, 3, (ScheduleKind)kind, 4);

            one.sharding.accumulate_sharded = sharded == 1;
            sharding_normalise(&one.sharding, &one.layout, &one.schedule);
            const guint times = one.sharding.accumulate_sharded ? 4 : 1;
            g_autoptr(ProgramSet) set = case_compile(&one);
            for (guint stage = 0; stage < 3; stage++) {
                ck_assert_uint_eq(reductions(set->classes[stage], "block"), 2 * times);
                ck_assert_uint_eq(reductions(set->classes[stage], "root"), stage == 1 ? 0 : times);
            }
        }
}
END_TEST

/* On the first stage there is always one in flight, from the first forward to the last backward; on
 * the last one forward and backward take turns (gpipe: all forwards come first). */
START_TEST(kept_units_stay_while_any_micro_batch_is_in_flight)
{
    g_autoptr(Model) model = case_model(&six_layers);

    for (guint kind = SCHEDULE_1F1B; kind <= SCHEDULE_GPIPE; kind++) {
        Case one = staged(model, 3, (ScheduleKind)kind, 4);

        one.sharding.num_overrides = 1;
        one.sharding.overrides[0] = (UnitOverride){1, 6, -1, TRUE};
        for (guint stage = 0; stage < 3; stage++)
            assert_calls(&one, stage, "block.gather",
                         2 * (kind == SCHEDULE_1F1B && stage == 2 ? 4 : 1));
    }
}
END_TEST

/* The last block alone: its stage's other one is gathered for each pass. */
START_TEST(the_last_block_is_kept_with_one_live_unit)
{
    g_autoptr(Model) model = case_model(&six_layers);

    for (guint kind = 0; kind < NUM_SCHEDULES; kind++) {
        Case one = staged(model, 3, (ScheduleKind)kind, 4);
        const guint kept = kind == SCHEDULE_GPIPE ? 1 : 4; /* at once */
        const guint other = 2 * 4;

        one.sharding.keep_last = TRUE;
        one.sharding.prefetch = 0;
        one.sharding.live_units = 1;
        assert_calls(&one, 2, "block.gather", kept + other);
        assert_calls(&one, 1, "block.gather", 2 * other);
        g_autoptr(ProgramSet) set = case_compile(&one);
        assert_proven(set, schedule_name((ScheduleKind)kind));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stages");
    TCase *tcase = tcase_create("stages");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, each_block_is_on_one_stage_in_the_order_of_stages);
    tcase_add_test(tcase, the_first_stage_has_the_embedding_and_the_last_norm_and_head);
    tcase_add_test(tcase, a_stage_without_head_has_the_scratch_of_cudnns_attention);
    tcase_add_test(tcase, stages_add_up_to_the_model);
    tcase_add_test(tcase, both_copies_of_a_tied_embedding_have_the_same_shards);
    tcase_add_test(tcase, tied_gradients_are_summed_between_the_first_and_the_last_stage_only);
    tcase_add_test(tcase, what_is_left_over_of_a_balanced_partition_goes_to_the_middle);
    tcase_add_test(tcase, a_list_of_chunks_reads_as_written);
    tcase_add_test(tcase, activations_are_kept_for_each_micro_batch_in_flight);
    tcase_add_test(tcase, uneven_stages_have_rings_of_their_own_size);
    tcase_add_test(tcase, zb_h1_keeps_what_weights_need_for_as_many_micro_batches_as_stages);
    tcase_add_test(tcase, recomputation_drops_o_and_lse_or_all_but_the_inputs_of_blocks);
    tcase_add_test(tcase, each_boundary_moves_the_residual_stream_of_each_micro_batch_both_ways);
    tcase_add_test(tcase, a_ring_passes_keys_and_values_and_the_sums_of_their_gradients);
    tcase_add_test(tcase, gathered_keys_and_values_are_gathered_again_and_their_gradients_reduced);
    tcase_add_test(tcase, full_shard_gathers_for_each_pass_of_each_micro_batch);
    tcase_add_test(tcase, gradients_are_reduced_every_micro_batch_or_once);
    tcase_add_test(tcase, kept_units_stay_while_any_micro_batch_is_in_flight);
    tcase_add_test(tcase, the_last_block_is_kept_with_one_live_unit);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
