/* Frameworks that a prediction can be for: what each difference does to time and memory. */
#include "sim/cost/framework.h"
#include "sim/cost/framework_memory.h"
#include "sim/search/price.h"
#include "tests/sim/backtest_case.h"

START_TEST(a_framework_without_differences_changes_nothing)
{
    const Framework *own = framework_default();

    ck_assert_ptr_eq(framework_from_name("fsdp-run"), own);
    ck_assert_ptr_eq(framework_or_default(NULL), own);
    ck_assert_ptr_null(framework_from_name("fsdp"));
    for (guint kind = 0; kind < NUM_OPS; kind++) {
        const Op op = {.kind = (OpKind)kind};

        ck_assert_double_eq_tol(framework_passes(own, &op, FALSE), 1, 1e-15);
    }
    ck_assert_double_eq_tol(framework_exposed(own, "tp", OP_ALL_REDUCE, TRUE), 1, 1e-15);
    ck_assert_double_eq_tol(framework_exposed(own, "ep", OP_ALL_TO_ALL, TRUE), 1, 1e-15);
    ck_assert_double_eq_tol(framework_blocks(own, "shard.reduce"), 0, 1e-15);
}
END_TEST

/* Bytes that pass through memory; accesses as in "rrwwrw". */
static double moved_bytes(const Framework *framework, OpKind kind, const char *accesses)
{
    Op op = {.kind = kind,
             .dtype = DTYPE_BF16,
             .dtype_out = DTYPE_BF16,
             .stream = COMPUTE_STREAM,
             .sizes = {.rows = 16, .in = 64, .elements = 16 * 64}};

    for (guint i = 0; accesses[i] != '\0'; i++)
        op_add_operand(&op, i,
                       accesses[i] == 'r'   ? ACCESS_READ
                       : accesses[i] == 'w' ? ACCESS_WRITE
                                            : ACCESS_UPDATE,
                       0, WHOLE_TENSOR);
    return op_memory_bytes(&op, 0) * framework_passes(framework, &op, FALSE);
}

START_TEST(others_add_to_the_residual_stream_by_an_op_of_its_own)
{
    g_autofree char *all = framework_names();
    g_auto(GStrv) names = g_strsplit(all, ", ", -1);

    for (guint i = 0; names[i] != NULL; i++) {
        const Framework *framework = framework_from_name(names[i]);
        const double sum = moved_bytes(framework, OP_ACCUMULATE, "ru");
        const double rms = moved_bytes(framework, OP_RMSNORM, "rrww") + sum;
        const double layer = moved_bytes(framework, OP_LAYERNORM, "rrrww") + sum;
        const double saved = framework_is_foreign(framework) ? 0 : 2 * 16 * 64;

        ck_assert_double_eq_tol(moved_bytes(framework, OP_RMSNORM, "rrwwrw"), rms - saved, 1e-9);
        ck_assert_double_eq_tol(moved_bytes(framework, OP_LAYERNORM, "rrrwwrw"), layer - saved,
                                1e-9);
    }
}
END_TEST

/* @text's plan, priced for @framework. */
static Prediction text_priced_for(const char *text, const Framework *framework)
{
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(text, &share, &reason);

    plan->framework = framework;
    plan_price_quickly(plan);
    return plan->prediction;
}

static Prediction priced_for(const Framework *framework)
{
    return text_priced_for(row, framework);
}

/* Two layers; a second forward and two backward is far more than their kernels take. */
START_TEST(a_layer_takes_as_long_as_the_host_issues_it)
{
    Framework slow = *framework_default();
    const Prediction own = priced_for(&slow);

    slow.host_forward_s = 1;
    slow.host_backward_s = 2;
    const Prediction with_host = priced_for(&slow);
    ck_assert_double_ge(with_host.step_seconds, 2 * (1 + 2));
    ck_assert_double_le(with_host.step_seconds, 2 * (1 + 2) + own.step_seconds);
}
END_TEST

/* Two layers, whose kernels and the experts' take milliseconds: so the host's seconds are the
 * step's but for the rest of it. */
START_TEST(a_layer_with_experts_waits_for_the_host_once)
{
    Framework slow = *framework_default();
    const Prediction own = text_priced_for(sparse_row, &slow);

    slow.host_sparse_forward_s = 1;
    slow.host_sparse_backward_s = 2;
    const Prediction with_host = text_priced_for(sparse_row, &slow);
    ck_assert_double_eq_tol(with_host.step_seconds, 2 * (1 + 2), own.step_seconds);
    const Prediction dense = priced_for(&slow);
    ck_assert_double_lt(dense.step_seconds, 1);
}
END_TEST

/* Attention's part of a block is shorter than these, the block with its experts longer. */
START_TEST(experts_count_against_what_the_host_takes)
{
    Framework slow = *framework_default();
    const Prediction own = text_priced_for(sparse_row, &slow);

    slow.host_sparse_forward_s = 0.04 * own.step_seconds;
    slow.host_sparse_backward_s = 0.08 * own.step_seconds;
    const Prediction with_host = text_priced_for(sparse_row, &slow);
    ck_assert_double_eq_tol(with_host.step_seconds, own.step_seconds, 1e-12);
}
END_TEST

/* Eight rows of a token among eight ranks: 1 - (7/8)^8 = 66% of them go. */
START_TEST(rows_that_are_sent_once_take_less_time)
{
    Framework once = *framework_default();
    const Prediction own = text_priced_for(sparse_row, &once);

    once.sends_once = TRUE;
    const Prediction less = text_priced_for(sparse_row, &once);
    ck_assert_double_lt(less.exposed_communication_seconds, own.exposed_communication_seconds);
    ck_assert_double_gt(less.exposed_communication_seconds,
                        0.6 * own.exposed_communication_seconds);
}
END_TEST

/* Eight ranks of one node: NVLink joins them.  Sixteen are on two. */
START_TEST(exchanges_take_longer_where_nvlink_joins_their_ranks)
{
    g_autofree char *many = with(sparse_row, "gpus", "16");
    g_autofree char *wide = with(many, "dp", "16");
    g_autofree char *text = with(wide, "ep", "16");
    Framework longer = *framework_default();
    const Prediction own = text_priced_for(sparse_row, &longer),
                     apart = text_priced_for(text, &longer);

    longer.exchange_more = 0.5;
    ck_assert_double_eq_tol(
        text_priced_for(sparse_row, &longer).communication_seconds[VOLUME_ALL_TO_ALL],
        1.5 * own.communication_seconds[VOLUME_ALL_TO_ALL], 1e-12);
    ck_assert_double_eq_tol(text_priced_for(text, &longer).communication_seconds[VOLUME_ALL_TO_ALL],
                            apart.communication_seconds[VOLUME_ALL_TO_ALL], 1e-12);
}
END_TEST

START_TEST(exchanges_that_are_hidden_leave_the_rest_of_them)
{
    Framework hides = *framework_default();
    const Prediction own = text_priced_for(sparse_row, &hides);

    hides.exchange_hidden = 0.7;
    const Prediction less = text_priced_for(sparse_row, &hides);
    ck_assert_double_eq_tol(less.communication_seconds[VOLUME_ALL_TO_ALL],
                            0.3 * own.communication_seconds[VOLUME_ALL_TO_ALL], 1e-12);
    const double hidden_s = 0.7 * own.communication_seconds[VOLUME_ALL_TO_ALL];
    /* what shares their links is less late too, by no more than they take; weights are waited for
     */
    ck_assert_double_le(own.step_seconds - less.step_seconds, 2 * hidden_s);
    ck_assert_double_ge(own.step_seconds - less.step_seconds, 0.99 * hidden_s);
}
END_TEST

/* Sixteen ranks of two nodes whose network is slow: what hides of exchanges that take longer than
 * the rest of a block is that share of the rest, and two blocks are all that computes for long. */
START_TEST(no_more_of_exchanges_is_hidden_than_there_is_beside_them)
{
    g_autofree char *many = with(sparse_row, "gpus", "16");
    g_autofree char *wide = with(many, "dp", "16");
    g_autofree char *far = with(wide, "ep", "16");
    g_autofree char *text = with(far, "network", "1x100 Gb/s");
    Framework hides = *framework_default();
    const Prediction own = text_priced_for(text, &hides);

    hides.exchange_hidden = 0.7;
    const Prediction less = text_priced_for(text, &hides);
    const double exchanges_s = own.communication_seconds[VOLUME_ALL_TO_ALL];
    const double hidden_s = exchanges_s - less.communication_seconds[VOLUME_ALL_TO_ALL];
    const double compute_s = own.step_seconds - own.time_seconds[OP_CLASS_COMMUNICATION];
    ck_assert_double_lt(compute_s, exchanges_s);
    ck_assert_double_gt(hidden_s, 0.3 * compute_s); /* the rest is the head's */
    ck_assert_double_lt(hidden_s, 0.7 * compute_s);
}
END_TEST

/* Rows that fp8 pads are copied once more, forward and backward, to the experts and back: bf16 of
 * 2048 tokens x 8 x 2048 in two blocks read and written, at 0.85 of 3.35 TB/s. */
START_TEST(rows_of_experts_are_padded_in_fp8_only)
{
    g_autofree char *text = with(sparse_row, "precision_kind", "fp8");
    const double bytes = 4.0 * 2 * 2 * 2048 * 8 * 2048 * 2;
    Framework pads = *framework_default();
    const Prediction bf16 = text_priced_for(sparse_row, &pads), fp8 = text_priced_for(text, &pads);

    pads.pads_rows = TRUE;
    ck_assert_double_eq(text_priced_for(sparse_row, &pads).step_seconds, bf16.step_seconds);
    ck_assert_double_eq_tol((text_priced_for(text, &pads).step_seconds - fp8.step_seconds) /
                                (bytes / (0.85 * 3.35e12)),
                            1, 0.02);
}
END_TEST

/* Two ranks of a tp group: each moves 30 bytes for all 32,000 logits of two times 2048 tokens, not
 * for its half, at 0.85 of A100's 2.04 TB/s. */
START_TEST(the_loss_of_gathered_logits_is_taken_on_each_rank)
{
    g_autofree char *split = with(row, "tp", "2");
    g_autofree char *text = with(split, "dp", "4");
    const double bytes = 2.0 * 2048 * 16000 * 30;
    Framework gathers = *framework_default();

    gathers.logit_bytes = 30;
    gathers.logit_held_bytes = 6;
    const Prediction own = text_priced_for(text, &gathers);
    gathers.gathers_logits = TRUE;
    const Prediction all = text_priced_for(text, &gathers);
    ck_assert_double_eq_tol((all.step_seconds - own.step_seconds) / (bytes / (0.85 * 2.039e12)), 1,
                            0.01);
}
END_TEST

/* Its gate, up and product once forward and once more before the backward pass, which moves five:
 * 11 passes of bf16 over 2048 tokens x 8 experts x 768 in two blocks, at 0.85 of 3.35 TB/s. */
START_TEST(an_activation_that_is_part_of_the_products_moves_nothing)
{
    Framework fuses = *framework_default();
    const Prediction own = text_priced_for(sparse_row, &fuses), dense = priced_for(&fuses);
    const double bytes = 11.0 * 2 * 2048 * 8 * 768 * 2;

    fuses.fuses_experts = TRUE;
    const Prediction less = text_priced_for(sparse_row, &fuses);
    ck_assert_double_eq_tol((own.step_seconds - less.step_seconds) / (bytes / (0.85 * 3.35e12)), 1,
                            0.02);
    ck_assert_double_eq(priced_for(&fuses).step_seconds, dense.step_seconds);
}
END_TEST

/* Shared experts with a gate have an operand of weights too, and kernels as dense ones have. */
START_TEST(the_activation_of_shared_experts_is_no_part_of_products)
{
    Framework fuses = *framework_default();
    Op op = {.kind = OP_SWIGLU, .num_operands = 4, .sizes = {.rows = 8, .in = 8}};

    fuses.fuses_experts = TRUE;
    ck_assert_double_eq(framework_passes(&fuses, &op, FALSE), 1);
    op.sizes.top_k = 4;
    ck_assert_double_eq(framework_passes(&fuses, &op, FALSE), 0);
}
END_TEST

/* A router has logits too: they stay as they are. */
START_TEST(logits_that_are_held_are_the_heads)
{
    Framework holds = *framework_default();
    const Prediction own = text_priced_for(sparse_row, &holds);

    holds.logit_held_bytes = 6;
    const Prediction more = text_priced_for(sparse_row, &holds);
    ck_assert_uint_eq(more.memory_bytes[TERM_ACTIVATIONS], own.memory_bytes[TERM_ACTIVATIONS]);
}
END_TEST

/* 2048 tokens x 16,000 of 32,000 words, more than all else; alone a rank has no part of them. */
START_TEST(logits_of_a_split_vocabulary_have_bytes_of_their_own)
{
    g_autofree char *split = with(row, "tp", "2");
    g_autofree char *text = with(split, "dp", "4");
    Framework holds = *framework_default();

    holds.logit_held_bytes = 100;
    const Prediction same = text_priced_for(text, &holds), alone = priced_for(&holds);
    holds.logit_split_bytes = 130;
    const Prediction more = text_priced_for(text, &holds);
    ck_assert_uint_eq(more.memory_total - same.memory_total, 30ul * 2048 * 16000);
    ck_assert_uint_eq(more.memory_bytes[TERM_LOGITS] - same.memory_bytes[TERM_LOGITS],
                      30ul * 2048 * 16000);
    ck_assert_uint_eq(priced_for(&holds).memory_total, alone.memory_total);
}
END_TEST

START_TEST(traffic_that_is_exposed_makes_a_step_longer_and_compute_as_it_was)
{
    Framework exposed = *framework_default();
    const Prediction own = priced_for(&exposed);

    exposed.gather_exposed = exposed.reduce_exposed = 1;
    const Prediction longer = priced_for(&exposed);
    ck_assert_double_gt(longer.step_seconds, own.step_seconds);
    ck_assert_double_eq_tol(longer.time_seconds[OP_CLASS_GEMM], own.time_seconds[OP_CLASS_GEMM],
                            1e-12);
    ck_assert_double_eq_tol(longer.exposed_communication_seconds -
                                own.exposed_communication_seconds,
                            longer.step_seconds - own.step_seconds, 1e-12);
}
END_TEST

/* A narrower type takes the time of its bytes and nothing else. */
START_TEST(what_gathers_save_is_of_gathers_of_parameters_only)
{
    Framework saves = *framework_default();

    saves.gather_saved = 0.5;
    ck_assert_double_eq(framework_exposed(&saves, "shard", OP_ALL_GATHER, TRUE), 0.5);
    ck_assert_double_eq(framework_exposed(&saves, "shard", OP_REDUCE_SCATTER, TRUE), 1);
    ck_assert_double_eq(framework_exposed(&saves, "tp", OP_ALL_GATHER, TRUE), 1);
    ck_assert_double_eq(framework_exposed(framework_default(), "shard", OP_ALL_GATHER, TRUE), 1);
}
END_TEST

/* Nothing of the row's model is padded: all of its sizes are multiples of 8. */
START_TEST(state_of_a_framework_is_bytes_a_parameter)
{
    Framework keeps = *framework_default();
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(row, &share, &reason);
    const Prediction own = priced_for(&keeps);

    keeps.whole_bytes = 2;
    keeps.shard_bytes = 8;
    const Prediction more = priced_for(&keeps);
    const guint64 parameters = model_parameters(plan->model);
    ck_assert_uint_eq(more.memory_total - own.memory_total, 2 * parameters + 8 * parameters / 8);
    ck_assert_uint_eq(more.memory_bytes[TERM_GRADIENTS] - own.memory_bytes[TERM_GRADIENTS],
                      more.memory_total - own.memory_total);
    keeps.cached_bytes = 16;
    ck_assert_uint_eq(priced_for(&keeps).memory_total - more.memory_total, 16 * parameters / 8);
}
END_TEST

/* Buckets of reductions and flat copies of gathers, whole ones, of a sharded and a replicated
 * model; not where a rank trains alone. */
START_TEST(what_replicas_exchange_is_copied_where_there_are_several)
{
    g_autofree char *few = with(row, "dp", "1");
    g_autofree char *alone = with(few, "gpus", "1");
    g_autofree char *replicated = with(row, "strategy_kind", "no_shard");
    const char *const texts[] = {row, replicated, alone};
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(row, &share, &reason);

    for (guint i = 0; i < G_N_ELEMENTS(texts); i++) {
        Framework keeps = *framework_default();
        const Prediction own = text_priced_for(texts[i], &keeps);

        keeps.copied_bytes = 2;
        ck_assert_uint_eq(text_priced_for(texts[i], &keeps).memory_total - own.memory_total,
                          texts[i] == alone ? 0 : 2 * model_parameters(plan->model));
    }
}
END_TEST

/* 2048 tokens x 1024 x 4 bytes for each of two blocks. */
START_TEST(what_blocks_keep_beside_is_there_once_a_block)
{
    Framework keeps = *framework_default();
    const Prediction own = priced_for(&keeps);

    keeps.saved.hidden = 4;
    const Prediction more = priced_for(&keeps);
    ck_assert_uint_eq(more.memory_bytes[TERM_ACTIVATIONS] - own.memory_bytes[TERM_ACTIVATIONS],
                      2 * 2048 * 1024 * 4);
}
END_TEST

/* 8 heads x 2048 x 2048, of one block and micro-batch however many there are, and where gradients
 * for the weights wait. */
START_TEST(gradients_of_scores_are_there_for_one_block)
{
    g_autofree char *staged = with(row, "pp", "2");
    g_autofree char *text = with(staged, "dp", "4");
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(text, &share, &reason);
    Framework keeps = *framework_default();
    guint64 total[2];

    plan->framework = &keeps;
    plan->schedule.kind = _i == 0 ? SCHEDULE_1F1B : SCHEDULE_ZB_H1;
    for (guint i = 0; i < G_N_ELEMENTS(total); i++) {
        keeps.saved.gradient = 100 * (i + 1); /* more than all else: memory peaks there */
        plan_price_quickly(plan);
        total[i] = plan->prediction.memory_total;
    }
    ck_assert_uint_eq(total[1] - total[0], 100ul * 8 * 2048 * 2048);
}
END_TEST

/* Two ranks, each with a half of 2048 tokens x 1024 between matrices: the other half too, 4 bytes,
 * in two blocks. */
START_TEST(what_is_kept_gathered_is_whole_on_each_rank)
{
    g_autofree char *split = with(row, "tp", "2");
    g_autofree char *text = with(split, "dp", "4");
    Framework keeps = *framework_default();

    keeps.saved.hidden = 4;
    const Prediction half = text_priced_for(text, &keeps);
    keeps.keeps_gathered = TRUE;
    const Prediction whole = text_priced_for(text, &keeps);
    ck_assert_uint_eq(whole.memory_bytes[TERM_ACTIVATIONS] - half.memory_bytes[TERM_ACTIVATIONS],
                      2 * 1024 * 1024 * 4);
}
END_TEST

/* Two buffers of 2048 tokens x 1024 in bf16; none where nothing is gathered. */
START_TEST(buffers_of_gathers_are_there_once_where_a_group_gathers)
{
    g_autofree char *split = with(row, "tp", "2");
    g_autofree char *text = with(split, "dp", "4");
    Framework keeps = *framework_default();
    const Prediction own = text_priced_for(text, &keeps), alone = priced_for(&keeps);

    keeps.gather_bytes = 4;
    ck_assert_uint_eq(text_priced_for(text, &keeps).memory_total - own.memory_total,
                      2048 * 1024 * 4);
    ck_assert_uint_eq(priced_for(&keeps).memory_total, alone.memory_total);
}
END_TEST

/* nanotron writes what its first rank holds, which has no logits: the last stage may not fit all
 * the same. */
START_TEST(memory_of_nanotron_is_that_of_the_first_stage)
{
    g_autofree char *named = with(row, "framework", "nanotron");
    g_autofree char *staged = with(named, "pp", "2");
    g_autofree char *split = with(staged, "dp", "4");
    g_autofree char *wide = with(split, "vocab", "1000000");
    g_autofree char *text = with(wide, "mem_kind", "stated");
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(text, &share, &reason);
    g_autoptr(Csv) csv = table(text);
    g_autoptr(GArray) read = records(csv);
    g_autoptr(Backtest) backtest = backtest_run(read, "topologies", FALSE, NULL);
    const Outcome *outcome = &g_array_index(backtest->outcomes, Outcome, 0);

    ck_assert_msg(plan != NULL, "%s", reason);
    plan_price_quickly(plan);
    ck_assert_uint_lt(plan->prediction.memory_first, plan->prediction.memory_total);
    ck_assert_double_eq_tol(outcome->memory_gb, (double)plan->prediction.memory_first / 1e9, 1e-9);
    ck_assert_double_eq_tol(outcome->total_gb, (double)plan->prediction.memory_total / 1e9, 1e-9);
}
END_TEST

/* Of a sweep whose table has no column for it: messages are awaited with stages and tp 32 or more
 * than 256 GPUs. */
static const struct {
    const char *pp, *tp, *dp, *gpus, *batch, *framework;
} sweep[] = {
    {"1", "1", "8", "8", "16", "nanotron"},
    {"1", "32", "1", "32", "16", "nanotron"},
    {"1", "1", "512", "512", "1024", "nanotron"},
    {"2", "1", "4", "8", "64", "nanotron"},
    {"4", "16", "1", "64", "16", "nanotron"},
    {"4", "32", "1", "128", "16", "nanotron-waits"},
    {"4", "1", "64", "256", "512", "nanotron"},
    {"4", "1", "128", "512", "1024", "nanotron-waits"},
};

START_TEST(which_runs_of_nanotron_await_messages_follows_from_the_layout)
{
    g_autofree char *named = with(row, "framework", "nanotron");
    g_autofree char *deep = with(named, "layers", "4");
    g_autofree char *heads = with(deep, "heads", "32");
    g_autofree char *staged = with(heads, "pp", sweep[_i].pp);
    g_autofree char *split = with(staged, "tp", sweep[_i].tp);
    g_autofree char *replicated = with(split, "dp", sweep[_i].dp);
    g_autofree char *large = with(replicated, "gpus", sweep[_i].gpus);
    g_autofree char *text = with(large, "global_batch", sweep[_i].batch);
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(text, &share, &reason);

    ck_assert_msg(plan != NULL, "%s", reason);
    ck_assert_str_eq(plan->framework->name, sweep[_i].framework);
}
END_TEST

/* Only where a group gathers; both else the same. */
START_TEST(runs_of_nanotron_that_hold_buffers_take_more_memory)
{
    const Framework *holds = framework_from_name("nanotron");
    const Framework *waits = framework_from_name("nanotron-waits");
    g_autofree char *split = with(row, "tp", "2");
    g_autofree char *text = with(split, "dp", "4");

    ck_assert_uint_gt(text_priced_for(text, holds).memory_total,
                      text_priced_for(text, waits).memory_total);
    ck_assert_double_eq_tol(text_priced_for(text, holds).step_seconds,
                            text_priced_for(text, waits).step_seconds, 1e-15);
    ck_assert_uint_eq(priced_for(holds).memory_total, priced_for(waits).memory_total);
}
END_TEST

/* Two reductions a block of all forward passes that a first stage begins with but the first and the
 * last; at most 50, and half of that without stages. */
static const struct {
    const char *layers, *pp, *gpus, *batch;
    guint reductions;
} ahead[] = {
    {"8", "1", "2", "8", 25},    {"8", "2", "4", "8", 0}, /* one pass, then a gradient */
    {"8", "4", "8", "16", 8},   /* 2 blocks: the second of three passes, and the one that runs */
    {"8", "8", "16", "16", 12}, /* 1 block */
    {"8", "4", "8", "3", 4},    /* as many passes as micro-batches */
    {"64", "8", "16", "16", 50},
};

static char *staged_row(guint i)
{
    g_autofree char *split = with(row, "tp", "2");
    g_autofree char *alone = with(split, "dp", "1");
    g_autofree char *deep = with(alone, "layers", ahead[i].layers);
    g_autofree char *staged = with(deep, "pp", ahead[i].pp);
    g_autofree char *large = with(staged, "gpus", ahead[i].gpus);
    g_autofree char *kept = with(large, "strategy_kind", "no_shard");

    return with(kept, "global_batch", ahead[i].batch);
}

START_TEST(passes_that_await_nothing_hold_what_their_reductions_read)
{
    g_autofree char *text = staged_row((guint)_i);
    const Prediction holds = text_priced_for(text, framework_from_name("nanotron"));
    const Prediction waits = text_priced_for(text, framework_from_name("nanotron-waits"));

    ck_assert_uint_eq(holds.memory_first - waits.memory_first,
                      ahead[_i].reductions * 2048ul * 1024 * 2);
}
END_TEST

/* An allocator gives up only when it has awaited the device and emptied its cache. */
START_TEST(what_is_held_leaves_room)
{
    const Framework *holds = framework_from_name("nanotron");
    const Framework caches = {.cached_bytes = 4};
    g_autofree char *text = staged_row(0);
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(text, &share, &reason);
    g_autoptr(ProgramSet) set = plan_compile(plan, NULL);
    MemoryUse little = {.total = 100}, much = {.total = 100};

    framework_add_held(holds, set->classes[0], 150, &little);
    ck_assert_uint_eq(little.total, 150);
    ck_assert_uint_eq(little.term[TERM_COMMUNICATION], 50);
    framework_add_held(holds, set->classes[0], 90, &much);
    ck_assert_uint_eq(much.total, 100);
    framework_add_held(&caches, set->classes[0], 120, &much);
    ck_assert_uint_eq(much.total, 120);
    ck_assert_uint_eq(much.term[TERM_GRADIENTS], 20);
}
END_TEST

/* Half of the time and a third of the memory of a plan that recomputes nothing, the rest of one
 * that recomputes all; torchtitan's where the table says nothing. */
START_TEST(selective_of_torchtitan_is_between_none_and_all)
{
    static const char *const kinds[] = {"none", "full", "selective", ""};
    double step_s[G_N_ELEMENTS(kinds)], memory_gb[G_N_ELEMENTS(kinds)];

    for (guint i = 0; i < G_N_ELEMENTS(kinds); i++) {
        g_autofree char *text = with(row, "recompute_kind", kinds[i]);
        g_autoptr(Csv) csv = table(text);
        g_autoptr(GArray) read = records(csv);
        g_autoptr(Backtest) backtest = backtest_run(read, "topologies", FALSE, NULL);
        const Outcome *outcome = &g_array_index(backtest->outcomes, Outcome, 0);

        step_s[i] = outcome->step_s;
        memory_gb[i] = outcome->memory_gb;
    }
    ck_assert_double_gt(step_s[1], step_s[0]);
    ck_assert_double_lt(memory_gb[1], memory_gb[0]);
    for (guint i = 2; i < G_N_ELEMENTS(kinds); i++) {
        ck_assert_double_eq_tol(step_s[i], (step_s[0] + step_s[1]) / 2, 1e-12);
        ck_assert_double_eq_tol(memory_gb[i], (memory_gb[0] + 2 * memory_gb[1]) / 3, 1e-9);
    }
}
END_TEST

static Suite *framework_suite(void)
{
    Suite *suite = suite_create("framework");
    TCase *test = tcase_create("framework");

    tcase_add_test(test, a_layer_with_experts_waits_for_the_host_once);
    tcase_add_test(test, experts_count_against_what_the_host_takes);
    tcase_add_test(test, rows_that_are_sent_once_take_less_time);
    tcase_add_test(test, exchanges_take_longer_where_nvlink_joins_their_ranks);
    tcase_add_test(test, exchanges_that_are_hidden_leave_the_rest_of_them);
    tcase_add_test(test, no_more_of_exchanges_is_hidden_than_there_is_beside_them);
    tcase_add_test(test, rows_of_experts_are_padded_in_fp8_only);
    tcase_add_test(test, an_activation_that_is_part_of_the_products_moves_nothing);
    tcase_add_test(test, the_activation_of_shared_experts_is_no_part_of_products);
    tcase_add_test(test, the_loss_of_gathered_logits_is_taken_on_each_rank);
    tcase_add_test(test, logits_that_are_held_are_the_heads);
    tcase_add_test(test, logits_of_a_split_vocabulary_have_bytes_of_their_own);
    tcase_add_test(test, what_is_kept_gathered_is_whole_on_each_rank);
    tcase_add_test(test, buffers_of_gathers_are_there_once_where_a_group_gathers);
    tcase_add_test(test, memory_of_nanotron_is_that_of_the_first_stage);
    tcase_add_test(test, runs_of_nanotron_that_hold_buffers_take_more_memory);
    tcase_add_loop_test(test, which_runs_of_nanotron_await_messages_follows_from_the_layout, 0,
                        G_N_ELEMENTS(sweep));
    tcase_add_loop_test(test, passes_that_await_nothing_hold_what_their_reductions_read, 0,
                        G_N_ELEMENTS(ahead));
    tcase_add_test(test, what_is_held_leaves_room);
    tcase_add_test(test, selective_of_torchtitan_is_between_none_and_all);
    tcase_add_test(test, a_framework_without_differences_changes_nothing);
    tcase_add_test(test, others_add_to_the_residual_stream_by_an_op_of_its_own);
    tcase_add_test(test, a_layer_takes_as_long_as_the_host_issues_it);
    tcase_add_test(test, traffic_that_is_exposed_makes_a_step_longer_and_compute_as_it_was);
    tcase_add_test(test, what_gathers_save_is_of_gathers_of_parameters_only);
    tcase_add_test(test, state_of_a_framework_is_bytes_a_parameter);
    tcase_add_test(test, what_replicas_exchange_is_copied_where_there_are_several);
    tcase_add_test(test, what_blocks_keep_beside_is_there_once_a_block);
    tcase_add_loop_test(test, gradients_of_scores_are_there_for_one_block, 0, 2);
    suite_add_tcase(suite, test);
    return suite;
}

int main(void)
{
    return suite_run(framework_suite());
}
