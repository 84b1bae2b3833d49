/* The store against other programs' files, other processes, and kill -9. */
#include "reports/store/store.h"

#include "reports/store/store_db.h"
#include "sim/base/error.h"
#include "sim/base/file_system.h"
#include "tests/reports/fabricate.h"
#include "tests/suite.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OPS_A_STEP = 20 };

static Store *open_or_fail(const char *path, gboolean read_only)
{
    g_autoptr(GError) error = NULL;
    Store *store = store_open(path, read_only, &error);

    must(store != NULL, error);
    return store;
}

/* The first value of the answer, read without our code. */
static char *ask(const char *path, const char *sql)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *statement = NULL;
    char *answer = NULL;

    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 10000);
    ck_assert_msg(sqlite3_prepare_v2(db, sql, -1, &statement, NULL) == SQLITE_OK, "%s: %s", sql,
                  sqlite3_errmsg(db));
    if (sqlite3_step(statement) == SQLITE_ROW)
        answer = g_strdup((const char *)sqlite3_column_text(statement, 0));
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return answer;
}

static void assert_answer(const char *path, const char *sql, const char *expected)
{
    g_autofree char *answer = ask(path, sql);

    ck_assert_pstr_eq(answer, expected);
}

static gint64 add_run(Store *store)
{
    g_autoptr(GError) error = NULL;
    const StoreRun run = {.plan_json = "{}", .host = "here", .device = "cpu", .ranks = 2};
    const gint64 id = store_add_run(store, &run, &error);

    must(id > 0, error);
    return id;
}

static gboolean add_step(Store *store, gint64 run, gint64 number, GError **error)
{
    const StoreStep step = {.step = number, .seconds = 0.5, .loss = 4.0, .finite = TRUE};

    return store_add_step(store, run, &step, error);
}

/* ---- rows ---- */

START_TEST(rows_come_back_as_they_were_written)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL;
    g_autoptr(Store) store = open_or_fail(path, FALSE);
    const StoreRun run = {.created = "2026-01-02T03:04:05Z",
                          .plan_json = "{\"x\": 1}",
                          .host = "a'b\"c",
                          .device = "cpu",
                          .git_revision = "abc",
                          .status = "running",
                          .ranks = 8,
                          .seed = G_MAXUINT64};
    const StoreStep step = {7, 1.5, 2.25, 0.75, 4096, 3e-4, TRUE};
    const StoreTerm term = {3, "memory_bytes.total", 5e9, 6e9, 7e9, "bytes"};
    const StoreOp op = {1, 7, "block.forward layers.3 linear", "compute", 0.25, 0.5, 1e6, 2e9};

    const gint64 id = store_add_run(store, &run, &error);
    must(id == 1 && store_add_step(store, id, &step, &error) &&
             store_add_term(store, id, &term, &error) && store_add_op(store, id, &op, &error) &&
             store_set_status(store, id, "stopped", &error),
         error);

    g_autoptr(GArray) runs = store_runs(store, &error);
    g_autoptr(GArray) steps = store_steps(store, id, &error);
    g_autoptr(GArray) terms = store_terms(store, id, &error);
    g_autoptr(GArray) ops = store_ops(store, id, 0, &error);
    g_autoptr(GArray) none = store_ops(store, id, 6, &error);

    ck_assert_uint_eq(runs->len, 1);
    const StoreRun *got = &g_array_index(runs, StoreRun, 0);
    ck_assert_str_eq(got->created, run.created);
    ck_assert_str_eq(got->plan_json, run.plan_json);
    ck_assert_str_eq(got->host, run.host);
    ck_assert_str_eq(got->git_revision, "abc");
    ck_assert_str_eq(got->status, "stopped");
    ck_assert_ptr_null(got->notes);
    ck_assert_uint_eq(got->ranks, 8);
    ck_assert(got->seed == G_MAXUINT64);

    const StoreStep *got_step = &g_array_index(steps, StoreStep, 0);
    ck_assert(got_step->step == 7 && got_step->seconds == 1.5 && got_step->loss == 2.25 &&
              got_step->grad_norm == 0.75 && got_step->tokens == 4096 && got_step->lr == 3e-4 &&
              got_step->finite);

    const StoreTerm *got_term = &g_array_index(terms, StoreTerm, 0);
    ck_assert_str_eq(got_term->term, term.term);
    ck_assert_str_eq(got_term->unit, "bytes");
    ck_assert(got_term->rank == 3 && got_term->predicted == 5e9 && got_term->measured == 6e9 &&
              got_term->estimated == 7e9);

    const StoreOp *got_op = &g_array_index(ops, StoreOp, 0);
    ck_assert_str_eq(got_op->op, op.op);
    ck_assert_str_eq(got_op->stream, "compute");
    ck_assert(got_op->rank == 1 && got_op->step == 7 && got_op->start == 0.25 &&
              got_op->end == 0.5 && got_op->bytes == 1e6 && got_op->flops == 2e9);
    ck_assert_uint_eq(none->len, 0);
    scratch_remove(path);
}
END_TEST

START_TEST(nan_is_null_in_the_file_and_nan_again_when_read)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL;
    g_autoptr(Store) store = open_or_fail(path, FALSE);
    const gint64 run = add_run(store);
    const StoreTerm term = {0, "mfu", 0.4, NAN, NAN, ""};

    must(store_add_term(store, run, &term, &error), error);
    assert_answer(path, "SELECT measured IS NULL AND predicted = 0.4 FROM terms", "1");

    g_autoptr(GArray) terms = store_terms(store, run, &error);
    ck_assert_double_nan(g_array_index(terms, StoreTerm, 0).measured);
    scratch_remove(path);
}
END_TEST

START_TEST(what_is_not_committed_is_gone)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL;
    Store *store = open_or_fail(path, FALSE);
    const gint64 run = add_run(store);

    must(store_begin(store, &error) && add_step(store, run, 1, &error) &&
             store_commit(store, &error) && store_begin(store, &error) &&
             add_step(store, run, 2, &error),
         error);
    store_free(store);
    assert_answer(path, "SELECT group_concat(step) FROM steps", "1");
    scratch_remove(path);
}
END_TEST

START_TEST(rows_of_a_run_that_does_not_exist_are_refused)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL, status_error = NULL;
    g_autoptr(Store) store = open_or_fail(path, FALSE);

    ck_assert(!add_step(store, 5, 1, &error));
    ck_assert_ptr_nonnull(strstr(error->message, "FOREIGN KEY"));
    ck_assert_ptr_nonnull(strstr(error->message, path));
    ck_assert_int_eq(error_exit_status(error), 3);
    ck_assert(!store_set_status(store, 5, "done", &status_error));
    ck_assert_ptr_nonnull(strstr(status_error->message, "there is no run 5"));
    scratch_remove(path);
}
END_TEST

START_TEST(a_note_is_added_behind_those_of_the_run)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL, missing = NULL;
    g_autoptr(Store) store = open_or_fail(path, FALSE);
    const StoreRun described = {.ranks = 1, .notes = "a\n"}, bare = {.ranks = 1};
    const gint64 with = store_add_run(store, &described, &error);
    const gint64 without = store_add_run(store, &bare, &error);

    must(store_add_note(store, with, "b\n", &error), error);
    must(store_add_note(store, without, "b\n", &error), error);
    ck_assert(!store_add_note(store, 5, "b\n", &missing));
    ck_assert_ptr_nonnull(strstr(missing->message, "there is no run 5"));
    assert_answer(path, "SELECT notes FROM runs ORDER BY id LIMIT 1", "a\nb\n");
    assert_answer(path, "SELECT notes FROM runs ORDER BY id DESC LIMIT 1", "b\n");
    scratch_remove(path);
}
END_TEST

START_TEST(a_refused_row_leaves_the_statement_usable)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL, duplicate = NULL, status = NULL;
    g_autoptr(Store) store = open_or_fail(path, FALSE);
    const gint64 run = add_run(store);

    must(add_step(store, run, 1, &error), error);
    ck_assert(!add_step(store, run, 1, &duplicate));
    must(add_step(store, run, 2, &error), error);
    ck_assert(!store_set_status(store, run, "finished", &status)); /* not one of the five */
    must(store_set_status(store, run, "done", &error), error);
    assert_answer(path, "SELECT count(*) FROM steps", "2");
    scratch_remove(path);
}
END_TEST

START_TEST(sampled_ops_are_the_last_step_of_the_rank_or_of_the_lowest)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL;
    g_autoptr(Store) store = open_or_fail(path, FALSE);
    const gint64 run = add_run(store);
    const StoreOp ops[] = {{2, 5, "late", "compute", 0.5, 0.6, 0, 0},
                           {2, 5, "early", "compute", 0.1, 0.2, 0, 0},
                           {4, 5, "other", "compute", 0, 0.1, 0, 0},
                           {4, 5, "untimed", "compute", NAN, NAN, 0, 0},
                           {0, 4, "before", "compute", 0, 0.1, 0, 0}};

    for (guint i = 0; i < G_N_ELEMENTS(ops); i++)
        must(store_add_op(store, run, &ops[i], &error), error);

    g_autoptr(GArray) lowest = store_sampled_ops(store, run, 0, &error);
    g_autoptr(GArray) asked = store_sampled_ops(store, run, 4, &error);

    ck_assert_uint_eq(lowest->len, 2);
    ck_assert_str_eq(g_array_index(lowest, StoreOp, 0).op, "early");
    ck_assert_str_eq(g_array_index(lowest, StoreOp, 1).op, "late");
    ck_assert_uint_eq(asked->len, 1);
    ck_assert_str_eq(g_array_index(asked, StoreOp, 0).op, "other");

    /* A step at a time, each rank's ops as they were written. */
    g_autoptr(GArray) first = store_next_ops(store, run, 0, &error);
    g_autoptr(GArray) second = store_next_ops(store, run, 4, &error);
    g_autoptr(GArray) none = store_next_ops(store, run, 5, &error);
    ck_assert(first->len == 1 && second->len == 4 && none->len == 0);
    ck_assert_str_eq(g_array_index(first, StoreOp, 0).op, "before");
    ck_assert_str_eq(g_array_index(second, StoreOp, 0).op, "late");
    ck_assert_str_eq(g_array_index(second, StoreOp, 3).op, "untimed");
    scratch_remove(path);
}
END_TEST

START_TEST(searches_are_kept_with_their_rank)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL;
    g_autoptr(Store) store = open_or_fail(path, FALSE);

    must(store_add_search(store, "m", "t", 64, 1, "{\"best\": 1}", &error) &&
             store_add_search(store, "m", "t", 64, 2, "{}", &error),
         error);
    assert_answer(path, "SELECT plan FROM searches WHERE model = 'm' AND gpus = 64 AND rank = 1",
                  "{\"best\": 1}");
    scratch_remove(path);
}
END_TEST

START_TEST(a_reader_can_not_write)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL;
    Store *store = open_or_fail(path, FALSE);
    const gint64 run = add_run(store);

    store_free(store);
    store = open_or_fail(path, TRUE);
    ck_assert(!add_step(store, run, 1, &error));
    store_free(store);
    assert_answer(path, "SELECT count(*) FROM steps", "0");
    scratch_remove(path);
}
END_TEST

/* ---- files that are not ours ---- */

static GBytes *contents(const char *path)
{
    char *data = NULL;
    gsize size = 0;

    ck_assert(g_file_get_contents(path, &data, &size, NULL));
    return g_bytes_new_take(data, size);
}

static guint files_beside(const char *path)
{
    g_autofree char *folder = g_path_get_dirname(path);
    g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
    guint count = 0;

    while (g_dir_read_name(dir) != NULL)
        count++;
    return count;
}

/* Refused for reading and for writing, with @because in the message, not a byte changed. */
static void assert_refused(const char *path, const char *because)
{
    g_autoptr(GBytes) before = contents(path);

    for (guint read_only = 0; read_only < 2; read_only++) {
        g_autoptr(GError) error = NULL;

        ck_assert_ptr_null(store_open(path, read_only != 0, &error));
        ck_assert_int_eq(error_exit_status(error), 2);
        ck_assert_ptr_nonnull(strstr(error->message, path));
        ck_assert_msg(strstr(error->message, because) != NULL, "%s", error->message);

        g_autoptr(GBytes) after = contents(path);
        ck_assert(g_bytes_equal(before, after));
        ck_assert_uint_eq(files_beside(path), 1);
    }
}

START_TEST(a_database_of_another_program_is_refused_untouched)
{
    static const char *const foreign[] = {
        "CREATE TABLE bookmarks (x)",
        "PRAGMA application_id = 77",
        "PRAGMA journal_mode = wal; CREATE TABLE bookmarks (x)",
        "PRAGMA user_version = 9",
    };
    g_autofree char *path = scratch_path("other.db");
    sqlite3 *db = NULL;

    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, foreign[_i], NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_refused(path, "another program");
    scratch_remove(path);
}
END_TEST

START_TEST(a_newer_store_is_refused_untouched)
{
    g_autofree char *path = scratch_path("runs.db");

    store_free(open_or_fail(path, FALSE));
    g_free(ask(path, "PRAGMA user_version = 3"));
    assert_refused(path, "newer version");
    scratch_remove(path);
}
END_TEST

/* The only difference: version 1 had no terms.estimated. */
START_TEST(an_older_store_is_read_as_it_is_and_brought_up_to_date_by_a_writer)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL;
    Store *store = open_or_fail(path, FALSE);
    const gint64 run = add_run(store);
    const StoreTerm term = {0, "mfu", 0.4, 0.5, NAN, ""};

    must(store_add_term(store, run, &term, &error), error);
    store_free(store);
    g_free(ask(path, "ALTER TABLE terms DROP COLUMN estimated"));
    g_free(ask(path, "PRAGMA user_version = 1"));

    store = open_or_fail(path, TRUE);
    g_autoptr(GArray) old = store_terms(store, run, &error);
    must(old != NULL && old->len == 1, error);
    ck_assert_double_eq(g_array_index(old, StoreTerm, 0).measured, 0.5);
    ck_assert(isnan(g_array_index(old, StoreTerm, 0).estimated));
    store_free(store);
    assert_answer(path, "PRAGMA user_version", "1");

    const StoreTerm another = {1, "mfu", 0.4, 0.5, 0.6, ""};
    store = open_or_fail(path, FALSE);
    must(store_add_term(store, run, &another, &error), error);
    g_autoptr(GArray) terms = store_terms(store, run, &error);
    must(terms != NULL && terms->len == 2, error);
    ck_assert(isnan(g_array_index(terms, StoreTerm, 0).estimated));
    ck_assert_double_eq(g_array_index(terms, StoreTerm, 1).estimated, 0.6);
    store_free(store);
    assert_answer(path, "PRAGMA user_version", "2");
    scratch_remove(path);
}
END_TEST

START_TEST(a_text_file_is_refused_untouched)
{
    g_autofree char *path = scratch_path("notes.txt");

    ck_assert(g_file_set_contents(path, "These are notes, and no database at all.\n", -1, NULL));
    assert_refused(path, "not a database");
    scratch_remove(path);
}
END_TEST

START_TEST(a_missing_file_is_refused_by_a_reader_and_made_by_a_writer)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL, folder_error = NULL, deep_error = NULL;
    g_autofree char *folder = g_path_get_dirname(path);

    ck_assert_ptr_null(store_open(path, TRUE, &error));
    ck_assert_int_eq(error_exit_status(error), 2);
    ck_assert(!g_file_test(path, G_FILE_TEST_EXISTS));
    ck_assert_ptr_null(store_open(folder, TRUE, &folder_error));
    ck_assert_ptr_nonnull(strstr(folder_error->message, "a folder"));

    g_autofree char *deep = g_build_filename(folder, "no", "such", "runs.db", NULL);
    ck_assert_ptr_null(store_open(deep, FALSE, &deep_error));
    ck_assert_int_eq(error_exit_status(deep_error), 2);

    store_free(open_or_fail(path, FALSE));
    store_free(open_or_fail(path, TRUE));
    assert_answer(path, "PRAGMA application_id", "1179862096"); /* "FSDP" */
    scratch_remove(path);
}
END_TEST

START_TEST(an_empty_file_becomes_a_store_when_written_only)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL;

    ck_assert(g_file_set_contents(path, "", 0, NULL));
    ck_assert_ptr_null(store_open(path, TRUE, &error));
    ck_assert_ptr_nonnull(strstr(error->message, "empty"));
    store_free(open_or_fail(path, FALSE));
    store_free(open_or_fail(path, TRUE));
    scratch_remove(path);
}
END_TEST

START_TEST(a_path_with_odd_characters_is_a_path)
{
    g_autofree char *path = scratch_path("100% ?mode=memory#ü.db");
    Store *store = open_or_fail(path, FALSE);

    add_run(store);
    store_free(store);
    ck_assert(g_file_test(path, G_FILE_TEST_EXISTS));

    g_autoptr(Store) again = open_or_fail(path, TRUE);
    g_autoptr(GArray) runs = store_runs(again, NULL);
    ck_assert_uint_eq(runs->len, 1);
    scratch_remove(path);
}
END_TEST

/* ---- journals ---- */

START_TEST(network_file_systems_are_known_by_their_type)
{
    ck_assert(file_system_network(0x6969) != NULL);     /* NFS */
    ck_assert(file_system_network(0xff534d42) != NULL); /* CIFS */
    ck_assert(file_system_network(0x0bd00bd0) != NULL); /* Lustre */
    ck_assert(file_system_network(0xef53) == NULL);     /* ext4 */
    ck_assert(file_system_network(0x58465342) == NULL); /* xfs */
    ck_assert(file_system_network(0x01021994) == NULL); /* tmpfs */
}
END_TEST

START_TEST(the_journal_is_wal_here_and_delete_where_files_come_over_a_network)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL;
    g_autoptr(Store) store = open_or_fail(path, FALSE);

    assert_answer(path, "PRAGMA journal_mode", "wal");
    must(store_db_set_journal(store, TRUE, &error), error);
    assert_answer(path, "PRAGMA journal_mode", "delete");
    scratch_remove(path);
}
END_TEST

START_TEST(a_store_in_a_folder_that_can_not_be_written_is_readable)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autofree char *folder = g_path_get_dirname(path);
    Store *store = open_or_fail(path, FALSE);

    add_run(store);
    store_free(store);
    ck_assert_int_eq(g_chmod(path, 0444), 0);
    ck_assert_int_eq(g_chmod(folder, 0555), 0);
    if (geteuid() == 0) /* permissions do not hold for root */
        ck_assert_int_eq(seteuid(65534), 0);

    g_autoptr(GError) error = NULL;
    Store *archive = store_open(path, TRUE, &error);
    must(archive != NULL, error);
    g_autoptr(GArray) runs = store_runs(archive, NULL);
    g_autoptr(GError) refused = NULL;
    Store *written = store_open(path, FALSE, &refused);

    ck_assert_uint_eq(runs->len, 1);
    ck_assert_ptr_null(written);
    ck_assert_ptr_nonnull(strstr(refused->message, "no permission to write"));
    store_free(archive);
    if (getuid() == 0)
        ck_assert_int_eq(seteuid(0), 0);
    g_chmod(folder, 0755);
    scratch_remove(path);
}
END_TEST

/* ---- other processes ---- */

/* Writes steps, each with its ops in one transaction, until it's killed.  @network: as there. */
static void write_for_ever(const char *path, gboolean network)
{
    Store *store = store_open(path, FALSE, NULL);
    if (store == NULL || (network && !store_db_set_journal(store, TRUE, NULL)))
        _exit(1);

    const StoreRun row = {.plan_json = "{}", .ranks = 1};
    const gint64 run = store_add_run(store, &row, NULL);

    for (gint64 step = 1;; step++) {
        gboolean ok = store_begin(store, NULL) && add_step(store, run, step, NULL);

        for (guint i = 0; i < OPS_A_STEP; i++) {
            const StoreOp op = {0, step, "block.forward layers.0 linear", "compute", 0, 1, 0, 0};

            ok = ok && store_add_op(store, run, &op, NULL);
        }
        if (!ok || !store_commit(store, NULL))
            _exit(1);
    }
}

static pid_t start_writer(const char *path, gboolean network)
{
    const pid_t pid = fork();

    if (pid == 0)
        write_for_ever(path, network);
    ck_assert_int_gt(pid, 0);
    return pid;
}

static void kill_writer(pid_t pid)
{
    int status = 0;

    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFSIGNALED(status), "the writer failed on its own");
}

/* Every step is there with all of its ops.  Returns the number of steps. */
static guint assert_whole_steps(Store *store)
{
    g_autoptr(GError) error = NULL;
    must(store_begin(store, &error), error);
    g_autoptr(GArray) runs = store_runs(store, &error);
    guint count = 0;

    must(runs != NULL, error);
    for (guint i = 0; i < runs->len; i++) {
        const gint64 run = g_array_index(runs, StoreRun, i).id;
        g_autoptr(GArray) steps = store_steps(store, run, &error);
        g_autoptr(GArray) ops = store_ops(store, run, 0, &error);

        must(steps != NULL && ops != NULL, error);
        ck_assert_uint_eq(ops->len, steps->len * OPS_A_STEP);
        if (steps->len > 0)
            ck_assert_int_eq(g_array_index(steps, StoreStep, steps->len - 1).step, steps->len);
        count += steps->len;
    }
    must(store_commit(store, &error), error);
    return count;
}

START_TEST(a_writer_killed_at_any_moment_leaves_whole_steps)
{
    const gboolean network = _i == 1;
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GRand) rand = g_rand_new_with_seed(7);
    guint before = 0;

    /* Ever later kills, until some step has been committed even on a slow disk. */
    for (guint i = 0; i < 12 || before == 0; i++) {
        const pid_t pid = start_writer(path, network);

        g_usleep((gulong)g_rand_int_range(rand, 500, 1000 + 6000 * (gint)(i + 1)));
        kill_writer(pid);
        if (!g_file_test(path, G_FILE_TEST_EXISTS))
            continue;

        g_autoptr(GError) error = NULL;
        Store *store = store_open(path, i % 2 == 0, &error);
        if (store == NULL && strstr(error->message, "empty") != NULL)
            continue; /* killed before the first commit */
        must(store != NULL, error);

        const guint count = assert_whole_steps(store);
        ck_assert_uint_ge(count, before);
        before = count;
        store_free(store);
    }
    assert_answer(path, "PRAGMA integrity_check", "ok");
    assert_answer(path, "SELECT DISTINCT status FROM runs", "running");
    scratch_remove(path);
}
END_TEST

START_TEST(readers_come_and_go_while_a_writer_writes)
{
    const gboolean network = _i == 1;
    g_autofree char *path = scratch_path("runs.db");
    Store *made = open_or_fail(path, FALSE);
    guint before = 0, opened = 0;

    must(store_db_set_journal(made, network, NULL), NULL);
    store_free(made);

    const pid_t pid = start_writer(path, network);
    const gint64 end = g_get_monotonic_time() + 700 * 1000;

    while (g_get_monotonic_time() < end || before == 0 || opened < 4) {
        g_autoptr(Store) store = open_or_fail(path, TRUE);
        const guint count = assert_whole_steps(store);

        ck_assert_uint_ge(count, before);
        before = count;
        opened++;
        g_usleep(2000);
    }
    kill_writer(pid);
    scratch_remove(path);
}
END_TEST

START_TEST(two_that_create_the_store_at_once_both_write_to_it)
{
    enum { WRITERS = 4 };
    g_autofree char *path = scratch_path("runs.db");
    pid_t pids[WRITERS];

    for (guint i = 0; i < WRITERS; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            const StoreRun row = {.plan_json = "{}", .ranks = 1};
            Store *store = store_open(path, FALSE, NULL);

            _exit(store != NULL && store_add_run(store, &row, NULL) > 0 ? 0 : 1);
        }
    }
    for (guint i = 0; i < WRITERS; i++) {
        int status = 0;

        ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
        ck_assert_int_eq(status, 0);
    }
    assert_answer(path, "SELECT count(*) FROM runs", "4");
    scratch_remove(path);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store");
    TCase *rows = tcase_create("rows"), *files = tcase_create("files"),
          *processes = tcase_create("processes");

    tcase_add_test(rows, rows_come_back_as_they_were_written);
    tcase_add_test(rows, nan_is_null_in_the_file_and_nan_again_when_read);
    tcase_add_test(rows, what_is_not_committed_is_gone);
    tcase_add_test(rows, rows_of_a_run_that_does_not_exist_are_refused);
    tcase_add_test(rows, a_note_is_added_behind_those_of_the_run);
    tcase_add_test(rows, a_refused_row_leaves_the_statement_usable);
    tcase_add_test(rows, sampled_ops_are_the_last_step_of_the_rank_or_of_the_lowest);
    tcase_add_test(rows, searches_are_kept_with_their_rank);
    tcase_add_test(rows, a_reader_can_not_write);
    suite_add_tcase(suite, rows);

    tcase_add_loop_test(files, a_database_of_another_program_is_refused_untouched, 0, 4);
    tcase_add_test(files, a_newer_store_is_refused_untouched);
    tcase_add_test(files, an_older_store_is_read_as_it_is_and_brought_up_to_date_by_a_writer);
    tcase_add_test(files, a_text_file_is_refused_untouched);
    tcase_add_test(files, a_missing_file_is_refused_by_a_reader_and_made_by_a_writer);
    tcase_add_test(files, an_empty_file_becomes_a_store_when_written_only);
    tcase_add_test(files, a_path_with_odd_characters_is_a_path);
    tcase_add_test(files, network_file_systems_are_known_by_their_type);
    tcase_add_test(files, the_journal_is_wal_here_and_delete_where_files_come_over_a_network);
    tcase_add_test(files, a_store_in_a_folder_that_can_not_be_written_is_readable);
    suite_add_tcase(suite, files);

    tcase_set_timeout(processes, 60);
    tcase_add_loop_test(processes, a_writer_killed_at_any_moment_leaves_whole_steps, 0, 2);
    tcase_add_loop_test(processes, readers_come_and_go_while_a_writer_writes, 0, 2);
    tcase_add_test(processes, two_that_create_the_store_at_once_both_write_to_it);
    suite_add_tcase(suite, processes);
    return suite_run(suite);
}
