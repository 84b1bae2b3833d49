/* What every transport must do.  All ranks run the same tests; a verdict is agreed on before any of
 * them fails, else the others would wait for ever. */
#pragma once

#include "exec/comm/comm.h"
#include "tests/exec/comm_case.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_CASE_GROUPS = 16, CASE_FULL_BYTES = 1 << 20, CASE_SHARD_BYTES = 1 << 20 };

/* What the tests run on; Check passes them nothing. */
static struct {
    Comm *comm;
    guint num_groups;
    CommGroup *group[MAX_CASE_GROUPS]; /* NULL where this rank is no member */
    guint *ranks[MAX_CASE_GROUPS];
    CaseBuffers alloc, private;
} under_test;

static void verdict(gboolean ok)
{
    gint64 failed = ok ? 0 : 1;
    g_autoptr(GError) error = NULL;
    gboolean agreed = under_test.comm->ops->agree_max(under_test.comm, &failed, &error);

    ck_assert_msg(agreed, "agree_max: %s", error ? error->message : "");
    ck_assert_msg(failed == 0, "a rank says why on stderr");
}

/* ---- groups and memory ---- */

static void add_group(guint first, guint count, gint stride)
{
    guint at = under_test.num_groups++;
    guint *ranks = g_new(guint, count);
    g_autoptr(GError) error = NULL;

    g_assert(at < MAX_CASE_GROUPS);
    for (guint i = 0; i < count; i++)
        ranks[i] = (guint)((gint)first + (gint)i * stride);
    under_test.ranks[at] = ranks;
    gboolean ok = under_test.comm->ops->group(under_test.comm, ranks, count, "test",
                                              &under_test.group[at], &error);
    g_assert_no_error(error);
    g_assert(ok);
}

/* The world forwards and backwards, its halves, every second rank, each rank alone. */
static void add_groups(void)
{
    guint size = under_test.comm->size;

    add_group(0, size, 1);
    if (size > 1) {
        add_group(size - 1, size, -1);
        add_group(0, size / 2, 1);
        add_group(size / 2, size - size / 2, 1);
    }
    if (size > 2)
        add_group(0, (size + 1) / 2, 2);
    for (guint i = 0; i < size; i++)
        add_group(i, 1, 1);
}

static char *checked_alloc(gsize bytes)
{
    g_autoptr(GError) error = NULL;
    char *memory = under_test.comm->ops->alloc(under_test.comm, bytes, &error);

    g_assert_no_error(error);
    g_assert(memory);
    return memory;
}

static void suite_begin(Comm *comm)
{
    under_test.comm = comm;
    under_test.num_groups = 0;
    add_groups();
    /* Two windows, and a buffer that does not start one. */
    under_test.alloc.full = checked_alloc(CASE_FULL_BYTES + 64) + 64;
    under_test.alloc.shard = checked_alloc(CASE_SHARD_BYTES);
    under_test.private.full = g_malloc(CASE_FULL_BYTES);
    under_test.private.shard = g_malloc(CASE_SHARD_BYTES);
}

static void suite_end(void)
{
    for (guint i = 0; i < under_test.num_groups; i++)
        g_free(under_test.ranks[i]);
    g_free(under_test.private.full);
    g_free(under_test.private.shard);
}

static CaseBuffers buffers_of(CaseMemory memory, const CommGroup *group)
{
    gboolean private = memory == MEMORY_PRIVATE || (memory == MEMORY_MIXED && group->rank == 0);

    return private ? under_test.private : under_test.alloc;
}

/* ---- pieces ---- */

enum { NUM_PIECE_SETS = 3 };

/* 0, 1: a unit whose rows do not divide (257 over 3, 5 over 4), as its two forms; 2: small and
 * empty ones. */
static UnitMap *unit_pieces(Form form, guint ranks)
{
    static const ParamShape shapes[] = {{.name = (char *)"a", .rows = 257, .cols = 3, .dims = 2},
                                        {.name = (char *)"b", .rows = 5, .cols = 4, .dims = 2},
                                        {.name = (char *)"c", .rows = 7, .cols = 1, .dims = 1}};
    g_autoptr(GArray) params = g_array_new(FALSE, FALSE, sizeof(ParamShape));

    g_array_append_vals(params, shapes, G_N_ELEMENTS(shapes));
    return unit_map_new(params, ranks, form);
}

typedef struct {
    UnitMap *map;
    ShardPiece pieces[3];
    const ShardPiece *first;
    guint num;
} PieceSet;

static PieceSet piece_set(guint which, guint ranks)
{
    PieceSet set = {.num = 0};

    if (which < 2) {
        set.map = unit_pieces(which == 0 ? FORM_PER_PARAMETER : FORM_FLAT, ranks);
        set.first = set.map->pieces;
        set.num = set.map->num_pieces;
    } else {
        set.num = 3;
        set.pieces[0] = (ShardPiece){.shard_offset = 5, .full_offset = 3, .chunk = 1};
        set.pieces[1] = (ShardPiece){.shard_offset = 0, .full_offset = 40, .chunk = 0};
        set.pieces[2] = (ShardPiece){.shard_offset = 9, .full_offset = 50, .chunk = 3};
    }
    return set;
}

/* ---- collectives ---- */

typedef gboolean (*Collective)(const Case *c);

/* Each group, each set of pieces, in place and not, in all kinds of memory. */
static gboolean on_everything(Collective collective, DType dtype)
{
    gboolean ok = TRUE;

    for (guint g = 0; g < under_test.num_groups; g++)
        for (guint set = 0; set < NUM_PIECE_SETS; set++)
            for (guint memory = 0; memory < 2 * NUM_CASE_MEMORIES; memory++) {
                CommGroup *group = under_test.group[g];

                if (!group)
                    continue;
                PieceSet pieces = piece_set(set, group->size);
                const Case c = {.group = group,
                                .ranks = under_test.ranks[g],
                                .buffers = buffers_of(memory / 2, group),
                                .in_place = memory % 2 == 0,
                                .dtype = dtype,
                                .pieces = pieces.map ? pieces.first : pieces.pieces,
                                .num_pieces = pieces.num,
                                .seed = g * 100 + set * 10 + memory};
                ok &= collective(&c);
                unit_map_free(pieces.map);
            }
    return ok;
}

static const DType summed[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP64};

START_TEST(an_all_gather_puts_every_chunk_in_its_place)
{
    verdict(on_everything(case_all_gather, summed[_i]));
}
END_TEST

START_TEST(a_reduce_scatter_sums_in_order_and_rounds_as_promised)
{
    verdict(on_everything(case_reduce_scatter, summed[_i]));
}
END_TEST

START_TEST(an_all_reduce_gives_every_rank_the_same_bits)
{
    static const CommRun runs[] = {{0, 1}, {2, 3}, {5, 4}, {10, 257}, {300, 64}, {400, 3001}};
    static const CommRun scalar[] = {{7, 1}};
    gboolean ok = TRUE;

    for (guint g = 0; g < under_test.num_groups; g++)
        for (guint memory = 0; under_test.group[g] && memory < NUM_CASE_MEMORIES; memory++) {
            CommGroup *group = under_test.group[g];
            const Case c = {.group = group,
                            .ranks = under_test.ranks[g],
                            .buffers = buffers_of(memory, group),
                            .in_place = TRUE,
                            .dtype = summed[_i],
                            .seed = g * 100 + memory};

            ok &= case_all_reduce(&c, runs, G_N_ELEMENTS(runs));
            ok &= case_all_reduce(&c, scalar, 1);
        }
    verdict(ok);
}
END_TEST

/* Not negative, fp32: every rank's value is there once, as its element's largest or not. */
START_TEST(a_maximum_is_the_largest_of_all_ranks)
{
    enum { ELEMENTS = 257 };
    static const CommRun run = {1, ELEMENTS};
    CommGroup *world = under_test.group[0];
    float *values = (float *)(gpointer)under_test.alloc.full;
    g_autoptr(GError) error = NULL;

    for (guint i = 0; i < ELEMENTS + 2; i++)
        values[i] = (float)((i * 7 + world->rank * 5) % 11);
    gboolean ok =
        world->comm->ops->all_reduce(world, values, &run, 1, DTYPE_FP32, REDUCE_MAX, &error);
    for (guint i = 0; i < ELEMENTS + 2; i++) {
        float want = (float)((i * 7 + world->rank * 5) % 11);

        for (guint r = 0; r < world->size && i >= 1 && i <= ELEMENTS; r++)
            want = MAX(want, (float)((i * 7 + r * 5) % 11));
        ok &= values[i] == want;
    }
    verdict(ok);
}
END_TEST

/* More than a hop of a ring or a round of staging carries. */
START_TEST(a_large_unit_moves_in_several_parts)
{
    CommGroup *world = under_test.group[0];
    const ShardPiece pieces[] = {
        {.full_offset = 1, .shard_offset = 1, .chunk = 130000},
        {.full_offset = 130001 * (guint64)world->size, .shard_offset = 130001, .chunk = 9000}};
    gsize shard_bytes = 140000 * sizeof(double), full_bytes = world->size * shard_bytes;
    CaseBuffers alloc = {checked_alloc(full_bytes), checked_alloc(shard_bytes)};
    CaseBuffers private = {g_malloc(full_bytes), g_malloc(shard_bytes)};
    const CommRun run = {3, world->size * 139000 - 5};
    gboolean ok = TRUE;

    for (guint i = 0; i < 2; i++) {
        const Case c = {.group = world,
                        .ranks = under_test.ranks[0],
                        .buffers = i == 0 ? alloc : private,
                        .dtype = DTYPE_FP64,
                        .pieces = pieces,
                        .num_pieces = G_N_ELEMENTS(pieces),
                        .seed = i};

        ok &= case_all_gather(&c);
        ok &= case_reduce_scatter(&c);
        ok &= case_all_reduce(&c, &run, 1);
    }
    g_free(private.full);
    g_free(private.shard);
    verdict(ok);
}
END_TEST

/* 256 and n - 1 ones in bf16, which has 8 bits: each hop would round 256 + 1 back to 256. */
START_TEST(bf16_sums_within_a_node_are_rounded_once)
{
    static const double want[] = {256, 256, 258, 260};
    static const CommRun run = {0, 1};
    CommGroup *world = under_test.group[0];
    char *buffer = under_test.alloc.full;
    g_autoptr(GError) error = NULL;

    case_store(DTYPE_BF16, buffer, 0, world->rank == 0 ? 256 : 1);
    gboolean ok =
        world->comm->ops->all_reduce(world, buffer, &run, 1, DTYPE_BF16, REDUCE_SUM, &error);
    double got = case_load(DTYPE_BF16, buffer, 0);
    g_assert(world->size <= G_N_ELEMENTS(want));
    if (world->shared && got != want[world->size - 1])
        fprintf(stderr, "bf16 sum: %g instead of %g\n", got, want[world->size - 1]);
    verdict(ok && (!world->shared || got == want[world->size - 1]));
}
END_TEST

/* ---- exchange ---- */

static gboolean holds(const char *buffer, gsize bytes, char value)
{
    for (gsize i = 0; i < bytes; i++)
        if (buffer[i] != value)
            return FALSE;
    return TRUE;
}

static gboolean run_exchange(CommGroup *group, const CommMessage *messages, guint num)
{
    guint64 before = group->comm->bytes_in[VOLUME_EXCHANGE], want = 0;
    GError *error = NULL;

    for (guint i = 0; i < num; i++)
        want += messages[i].send ? 0 : messages[i].bytes;
    gboolean ok = group->comm->ops->exchange(group, messages, num, &error);
    return case_done(ok, "exchange", error) &&
           group->comm->bytes_in[VOLUME_EXCHANGE] - before == want;
}

/* Two messages each way around the world; the receiver names them in the other order.  Far beyond
 * what MPI buffers: sending first on all ranks must not block.  Alone, to oneself. */
START_TEST(messages_pair_by_tag_and_large_ones_do_not_block)
{
    enum { BYTES = 300 * 1024 };
    CommGroup *world = under_test.group[0];
    guint size = world->size, rank = world->rank;
    guint next = (rank + 1) % size, previous = (rank + size - 1) % size;
    char *out = under_test.alloc.full, *in = under_test.private.full;
    const CommMessage messages[] = {
        {out, BYTES, next, 7, TRUE},         {out + BYTES, BYTES, next, 9, TRUE},
        {in, BYTES, previous, 9, FALSE},     {in + BYTES, BYTES, previous, 7, FALSE},
        {out + 2 * BYTES, 0, next, 3, TRUE}, {in + 2 * BYTES, 0, previous, 3, FALSE},
    };

    memset(out, (int)(2 * rank + 1), BYTES);
    memset(out + BYTES, (int)(2 * rank + 2), BYTES);
    memset(in, 0, CASE_FULL_BYTES);
    gboolean ok = run_exchange(world, messages, G_N_ELEMENTS(messages)) &&
                  holds(in, BYTES, (char)(2 * previous + 2)) &&
                  holds(in + BYTES, BYTES, (char)(2 * previous + 1)) &&
                  holds(in + 2 * BYTES, BYTES, 0);
    verdict(ok);
}
END_TEST

START_TEST(a_member_without_messages_takes_part_in_an_exchange)
{
    CommGroup *world = under_test.group[0];
    char out = 'x', in = 0;
    guint last = world->size - 1;
    CommMessage messages[2];
    guint num = 0;

    if (world->rank == 0)
        messages[num++] = (CommMessage){&out, 1, last, 1, TRUE};
    if (world->rank == last)
        messages[num++] = (CommMessage){&in, 1, 0, 1, FALSE};
    gboolean ok = run_exchange(world, messages, num);
    verdict(ok && (world->rank != last || in == 'x'));
}
END_TEST

/* ---- control channel, memory, descriptions ---- */

START_TEST(the_greatest_value_is_agreed_on)
{
    Comm *comm = under_test.comm;
    gint64 value = comm->rank == comm->size / 2 ? 5 : -(gint64)comm->rank;
    g_autoptr(GError) error = NULL;
    guint64 before[NUM_VOLUMES];

    memcpy(before, comm->bytes_in, sizeof before);
    gboolean ok = comm->ops->agree_max(comm, &value, &error);
    verdict(ok && value == 5 && memcmp(before, comm->bytes_in, sizeof before) == 0);
}
END_TEST

START_TEST(bytes_of_all_ranks_are_gathered_in_order)
{
    enum { LONGEST = 100000 };
    Comm *comm = under_test.comm;
    g_autoptr(GPtrArray) all = g_ptr_array_new_with_free_func((GDestroyNotify)g_bytes_unref);
    g_autofree char *data = g_malloc(LONGEST);
    g_autoptr(GError) error = NULL;

    /* Rank 1 has nothing to say. */
    memset(data, (int)comm->rank + 1, LONGEST);
    gboolean ok = comm->ops->gather_bytes(comm, data, comm->rank == 1 ? 0 : LONGEST - comm->rank,
                                          all, &error);
    ok &= all->len == (comm->rank == 0 ? comm->size : 0);
    for (guint i = 0; ok && i < all->len; i++) {
        gsize bytes = 0;
        const char *got = g_bytes_get_data(all->pdata[i], &bytes);

        ok = bytes == (i == 1 ? 0 : LONGEST - i) && holds(got, bytes, (char)(i + 1));
    }
    verdict(ok);
}
END_TEST

START_TEST(memory_is_zeroed_and_aligned_to_pages)
{
    gboolean ok = TRUE;

    for (guint i = 0; i < 3; i++) {
        gsize bytes = 1 + (under_test.comm->rank + i) * 5000; /* not equal over ranks */
        char *memory = checked_alloc(bytes);

        ok &= (guintptr)memory % 4096 == 0 && holds(memory, bytes, 0);
        memset(memory, 1, bytes);
    }
    verdict(ok);
}
END_TEST

START_TEST(a_note_is_kept_and_cut_to_its_place)
{
    Comm *comm = under_test.comm;
    g_autofree char *long_note = g_strnfill(500, 'x');

    comm_note(comm, "step 12 block.backward layers.3 linear");
    gboolean ok = g_str_equal(comm->last_op, "step 12 block.backward layers.3 linear");
    comm_note(comm, long_note);
    verdict(ok && strlen(comm->last_op) == sizeof comm->last_op - 1);
}
END_TEST

START_TEST(a_note_of_a_call_is_text_once_asked)
{
    Comm *comm = under_test.comm;

    comm_note_call(comm, "block forward", (CommCall){.step = 12, .micro_batch = 3, .unit = 4});
    g_autofree char *of_call = comm_last_op(comm);
    comm_note(comm, "step 13 as a graph");
    g_autofree char *of_graph = comm_last_op(comm);
    verdict(g_str_equal(of_call, "step 12 micro-batch 3 block forward unit 4") &&
            g_str_equal(of_graph, "step 13 as a graph"));
}
END_TEST

START_TEST(an_unknown_transport_is_refused_by_name)
{
    g_autoptr(GError) error = NULL;
    Comm *none = comm_open("pigeon", 0, &error);

    verdict(!none && error && strstr(error->message, "pigeon") && strstr(error->message, "self"));
}
END_TEST

/* ---- many mixed operations ---- */

static gboolean random_exchange(CommGroup *group, guint seed)
{
    char out[64], in[64];
    guint size = group->size, shift = seed % size;
    gsize bytes = seed % sizeof out;
    const CommMessage messages[] = {
        {in, bytes, (group->rank + size - shift) % size, seed % 100, FALSE},
        {out, bytes, (group->rank + shift) % size, seed % 100, TRUE}};

    memset(out, (int)(group->rank + seed) % 100, sizeof out);
    return run_exchange(group, messages, G_N_ELEMENTS(messages)) &&
           holds(in, bytes, (char)((messages[0].peer + seed) % 100));
}

static gboolean random_operation(GRand *random)
{
    guint kind = (guint)g_rand_int_range(random, 0, 4);
    guint g = (guint)g_rand_int_range(random, 0, (gint)under_test.num_groups);
    guint set = (guint)g_rand_int_range(random, 0, NUM_PIECE_SETS);
    guint memory = (guint)g_rand_int_range(random, 0, 2 * NUM_CASE_MEMORIES);
    guint seed = g_rand_int(random) % 100000;
    DType dtype = summed[g_rand_int_range(random, 0, G_N_ELEMENTS(summed))];
    CommRun run = {(gsize)g_rand_int_range(random, 0, 50), (gsize)g_rand_int_range(random, 0, 99)};
    CommGroup *group = under_test.group[g];

    if (!group)
        return TRUE;
    PieceSet pieces = piece_set(set, group->size);
    const Case c = {.group = group,
                    .ranks = under_test.ranks[g],
                    .buffers = buffers_of(memory / 2, group),
                    .in_place = memory % 2 == 0,
                    .dtype = dtype,
                    .pieces = pieces.map ? pieces.first : pieces.pieces,
                    .num_pieces = pieces.num,
                    .seed = seed};
    gboolean ok = kind == 0   ? case_all_gather(&c)
                  : kind == 1 ? case_reduce_scatter(&c)
                  : kind == 2 ? case_all_reduce(&c, &run, 1)
                              : random_exchange(group, seed);
    unit_map_free(pieces.map);
    return ok;
}

START_TEST(a_thousand_mixed_operations_keep_their_data_apart)
{
    GRand *random = g_rand_new_with_seed(1); /* the same choices in all ranks */
    gboolean ok = TRUE;

    for (guint i = 0; i < 1000; i++)
        ok &= random_operation(random);
    g_rand_free(random);
    verdict(ok);
}
END_TEST

/* ---- the suite ---- */

static inline Suite *comm_suite(const char *name)
{
    const int dtypes = G_N_ELEMENTS(summed);
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create("transport");

    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, an_all_gather_puts_every_chunk_in_its_place, 0, dtypes);
    tcase_add_loop_test(tcase, a_reduce_scatter_sums_in_order_and_rounds_as_promised, 0, dtypes);
    tcase_add_loop_test(tcase, an_all_reduce_gives_every_rank_the_same_bits, 0, dtypes);
    tcase_add_test(tcase, a_large_unit_moves_in_several_parts);
    tcase_add_test(tcase, a_maximum_is_the_largest_of_all_ranks);
    tcase_add_test(tcase, bf16_sums_within_a_node_are_rounded_once);
    tcase_add_test(tcase, messages_pair_by_tag_and_large_ones_do_not_block);
    tcase_add_test(tcase, a_member_without_messages_takes_part_in_an_exchange);
    tcase_add_test(tcase, the_greatest_value_is_agreed_on);
    tcase_add_test(tcase, bytes_of_all_ranks_are_gathered_in_order);
    tcase_add_test(tcase, memory_is_zeroed_and_aligned_to_pages);
    tcase_add_test(tcase, a_note_is_kept_and_cut_to_its_place);
    tcase_add_test(tcase, a_note_of_a_call_is_text_once_asked);
    tcase_add_test(tcase, an_unknown_transport_is_refused_by_name);
    tcase_add_test(tcase, a_thousand_mixed_operations_keep_their_data_apart);
    suite_add_tcase(suite, tcase);
    return suite;
}

/* Runs @suite (taken) in this process on @comm; rank 0 alone prints.  Returns failed tests. */
static inline int comm_suite_run(Suite *suite, Comm *comm)
{
    SRunner *runner = srunner_create(suite);

    suite_begin(comm);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, comm->rank == 0 ? CK_NORMAL : CK_SILENT);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    suite_end();
    return failed;
}
