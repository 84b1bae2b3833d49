/* The store: opening, refusing what is not ours, writing.  Reading is in store_read.c. */
#include "reports/store/store.h"

#include "reports/store/store_db.h"
#include "sim/base/error.h"
#include "sim/base/file_system.h"

#include <errno.h>
#include <math.h>
#include <sys/vfs.h>

static const char schema[] =
    "CREATE TABLE runs (id INTEGER PRIMARY KEY AUTOINCREMENT, created TEXT NOT NULL, plan TEXT,"
    " host TEXT, device TEXT, ranks INTEGER NOT NULL, seed INTEGER NOT NULL, git_revision TEXT,"
    " status TEXT NOT NULL CHECK (status IN ('running', 'done', 'stopped', 'failed',"
    " 'non-finite')), notes TEXT) STRICT;"
    "CREATE TABLE steps (run INTEGER NOT NULL REFERENCES runs, step INTEGER NOT NULL CHECK (step"
    " >= 1), seconds REAL, loss REAL, grad_norm REAL, tokens REAL, lr REAL, finite INTEGER NOT"
    " NULL, PRIMARY KEY (run, step)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE terms (run INTEGER NOT NULL REFERENCES runs, rank INTEGER NOT NULL, term TEXT NOT"
    " NULL, predicted REAL, measured REAL, unit TEXT NOT NULL, estimated REAL, UNIQUE (run, rank,"
    " term)) STRICT;"
    "CREATE TABLE ops (run INTEGER NOT NULL REFERENCES runs, rank INTEGER NOT NULL, step INTEGER"
    " NOT NULL, op TEXT NOT NULL, stream TEXT NOT NULL, start REAL, \"end\" REAL, bytes REAL,"
    " flops REAL) STRICT;"
    "CREATE INDEX ops_of_step ON ops (run, step, rank);"
    "CREATE TABLE searches (id INTEGER PRIMARY KEY AUTOINCREMENT, created TEXT NOT NULL, model TEXT"
    " NOT NULL, topology TEXT NOT NULL, gpus INTEGER NOT NULL, rank INTEGER NOT NULL, plan TEXT"
    " NOT NULL) STRICT;";

static const char *const statement_sql[NUM_STATEMENTS] = {
    [INSERT_RUN] = "INSERT INTO runs (created, plan, host, device, ranks, seed, git_revision,"
                   " status, notes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
    [INSERT_STEP] = "INSERT INTO steps (run, step, seconds, loss, grad_norm, tokens, lr, finite)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    [INSERT_TERM] = "INSERT INTO terms (run, rank, term, predicted, measured, unit,"
                    " estimated) VALUES (?, ?, ?, ?, ?, ?, ?)",
    [INSERT_OP] = "INSERT INTO ops (run, rank, step, op, stream, start, \"end\", bytes, flops)"
                  " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
    [INSERT_SEARCH] = "INSERT INTO searches (created, model, topology, gpus, rank, plan)"
                      " VALUES (?, ?, ?, ?, ?, ?)",
    [UPDATE_STATUS] = "UPDATE runs SET status = ? WHERE id = ?",
    [UPDATE_NOTES] = "UPDATE runs SET notes = coalesce(notes, '') || ? WHERE id = ?",
};

/* ---- opening ---- */

gboolean store_db_fail(const Store *store, const char *doing, GError **error)
{
    const int code = sqlite3_errcode(store->db) & 0xff;
    const gboolean input = code == SQLITE_CANTOPEN || code == SQLITE_NOTADB;

    return fail(error, input ? ERROR_INPUT : ERROR_RUNTIME, "%s: %s: %s", store->path, doing,
                sqlite3_errmsg(store->db));
}

gboolean store_db_exec(Store *store, const char *sql, GError **error)
{
    if (sqlite3_exec(store->db, sql, NULL, NULL, NULL) != SQLITE_OK)
        return store_db_fail(store, sql, error);
    return TRUE;
}

/* SQLite does not wait for other connections here, so this does. */
gboolean store_db_set_journal(Store *store, gboolean network, GError **error)
{
    enum { PAUSE_MS = 10 };
    const char *mode = network ? "delete" : "wal";
    g_autofree char *sql = g_strdup_printf("PRAGMA journal_mode = %s", mode);

    for (guint waited_ms = 0;; waited_ms += PAUSE_MS) {
        sqlite3_stmt *statement = NULL;
        int result = sqlite3_prepare_v2(store->db, sql, -1, &statement, NULL);

        if (result == SQLITE_OK)
            result = sqlite3_step(statement);

        const gboolean set = result == SQLITE_ROW &&
                             g_strcmp0((const char *)sqlite3_column_text(statement, 0), mode) == 0;

        sqlite3_finalize(statement);
        if (set)
            return TRUE;
        if (result == SQLITE_ROW)
            return fail(error, ERROR_RUNTIME, "%s: the journal mode can't be set to %s",
                        store->path, mode);
        if ((result & 0xff) != SQLITE_BUSY || waited_ms >= store->busy_timeout_ms)
            return store_db_fail(store, sql, error);
        g_usleep(PAUSE_MS * 1000);
    }
}

static gboolean is_on_network(const char *path)
{
    g_autofree char *folder = g_path_get_dirname(path);
    struct statfs info;

    return statfs(folder, &info) == 0 && file_system_network((guint32)info.f_type) != NULL;
}

/* *@is_new: nothing has been stored yet, as after a crash before the first commit.  One statement,
 * so that all three numbers are of the same moment. */
static gboolean check_identity(Store *store, gboolean *is_new, GError **error)
{
    const char *sql = "SELECT application_id, user_version, CASE application_id WHEN 0 THEN (SELECT"
                      " count(*) FROM sqlite_schema) END"
                      " FROM pragma_application_id, pragma_user_version";
    sqlite3_stmt *statement = NULL;

    if (sqlite3_prepare_v2(store->db, sql, -1, &statement, NULL) != SQLITE_OK ||
        sqlite3_step(statement) != SQLITE_ROW) {
        store_db_fail(store, "can't be read", error);
        sqlite3_finalize(statement);
        return FALSE;
    }

    const gint64 id = sqlite3_column_int64(statement, 0);
    const gint64 version = sqlite3_column_int64(statement, 1);
    const gint64 tables = sqlite3_column_int64(statement, 2);

    sqlite3_finalize(statement);
    store->version = version;
    *is_new = id == 0 && version == 0 && tables == 0;
    if (*is_new)
        return TRUE;
    if (id != STORE_APPLICATION_ID || version < 1)
        return fail(error, ERROR_INPUT,
                    "%s: a SQLite database of another program (application_id 0x%08x, allowed is "
                    "0x%08x)",
                    store->path, (guint)id, (guint)STORE_APPLICATION_ID);
    if (version > STORE_VERSION)
        return fail(error, ERROR_INPUT,
                    "%s: written by a newer version of this program (user_version %" G_GINT64_FORMAT
                    ", allowed is up to %d)",
                    store->path, version, STORE_VERSION);
    return TRUE;
}

static gboolean connect_to(Store *store, const char *name, int flags, GError **error)
{
    if (sqlite3_open_v2(name, &store->db, flags, NULL) != SQLITE_OK)
        return store_db_fail(store, "can't be opened", error);
    sqlite3_extended_result_codes(store->db, 1);
    sqlite3_busy_timeout(store->db, (int)store->busy_timeout_ms);
    return TRUE;
}

static Store *store_new(const char *path)
{
    Store *store = g_new0(Store, 1);

    store->path = g_strdup(path);
    store->busy_timeout_ms = STORE_PATIENCE_S * 1000;
    return store;
}

/* The file as it lies: "immutable" takes no lock and creates no -shm, -wal or journal, so that a
 * foreign file stays untouched.  What a writer has in its -wal is not seen; and while a writer
 * copies its -wal home the file may be shorter than its header says, which is no error under
 * writable_schema (nothing can be written here). */
static Store *open_as_it_lies(const char *path, GError **error)
{
    g_autofree char *absolute = g_canonicalize_filename(path, NULL);
    g_autofree char *uri = g_filename_to_uri(absolute, NULL, error);
    if (uri == NULL)
        return NULL;
    g_autofree char *name = g_strconcat(uri, "?immutable=1", NULL);
    g_autoptr(Store) store = store_new(path);
    gboolean is_new;

    store->read_only = TRUE;
    if (!connect_to(store, name, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, error) ||
        !store_db_exec(store, "PRAGMA writable_schema = ON", error) ||
        !check_identity(store, &is_new, error))
        return NULL;
    return g_steal_pointer(&store);
}

/* An archive: a store in WAL mode whose folder can't be written, so that SQLite can't add its -shm.
 * Without a -wal or -journal beside it nobody is writing, and the file as it lies is all there is.
 */
static gboolean is_archive(const Store *store)
{
    const int code = sqlite3_errcode(store->db) & 0xff;
    g_autofree char *wal = g_strconcat(store->path, "-wal", NULL);
    g_autofree char *journal = g_strconcat(store->path, "-journal", NULL);

    return (code == SQLITE_CANTOPEN || code == SQLITE_READONLY) &&
           !g_file_test(wal, G_FILE_TEST_EXISTS) && !g_file_test(journal, G_FILE_TEST_EXISTS);
}

/* Not SQLITE_OPEN_READONLY where the permissions allow it: what a killed writer left half done must
 * be rolled back, and the -wal and -shm files be removed, by whoever comes next. */
static Store *open_reader(const char *path, GError **error)
{
    g_autoptr(Store) lying = open_as_it_lies(path, error);
    if (lying == NULL)
        return NULL;

    g_autoptr(Store) store = store_new(path);
    g_autoptr(GError) local = NULL;
    gboolean is_new = FALSE;
    store->read_only = TRUE;
    if (!connect_to(store, path, SQLITE_OPEN_READWRITE, error) ||
        !store_db_exec(store, "PRAGMA query_only = ON", error))
        return NULL;
    if (!check_identity(store, &is_new, &local)) {
        if (is_archive(store))
            return g_steal_pointer(&lying);
        g_propagate_error(error, g_steal_pointer(&local));
        return NULL;
    }
    if (is_new) {
        fail(error, ERROR_INPUT, "%s: an empty file, not a store of runs", path);
        return NULL;
    }
    return g_steal_pointer(&store);
}

/* Another process may create the store, or bring it up to date, at the same moment: look again once
 * it is locked. */
static gboolean bring_up_to_date(Store *store, GError **error)
{
    static const char upgrade[] = "ALTER TABLE terms ADD COLUMN estimated REAL";
    g_autofree char *marks = g_strdup_printf("PRAGMA application_id = %d; PRAGMA user_version = %d",
                                             STORE_APPLICATION_ID, STORE_VERSION);
    gboolean is_new;

    if (!store_db_exec(store, "BEGIN IMMEDIATE", error) || !check_identity(store, &is_new, error))
        return FALSE;
    if ((is_new && !store_db_exec(store, schema, error)) ||
        (store->version == 1 && !store_db_exec(store, upgrade, error)) ||
        (store->version < STORE_VERSION && !store_db_exec(store, marks, error)))
        return FALSE;
    return store_db_exec(store, "COMMIT", error) && check_identity(store, &is_new, error);
}

Store *store_open_writer(const char *path, double patience_s, GError **error)
{
    g_autoptr(Store) store = store_new(path);
    gboolean is_new;

    store->busy_timeout_ms = (guint)(patience_s * 1000);
    if (g_file_test(path, G_FILE_TEST_IS_DIR)) {
        fail(error, ERROR_INPUT, "%s: a folder, not a store of runs", path);
        return NULL;
    }
    if (g_file_test(path, G_FILE_TEST_EXISTS)) {
        g_autoptr(Store) lying = open_as_it_lies(path, error);
        if (lying == NULL)
            return NULL;
    }
    if (!connect_to(store, path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, error))
        return NULL;
    if (sqlite3_db_readonly(store->db, "main") == 1) {
        fail(error, ERROR_INPUT, "%s: no permission to write", path);
        return NULL;
    }
    if (!check_identity(store, &is_new, error) ||
        (store->version < STORE_VERSION && !bring_up_to_date(store, error)) ||
        !store_db_set_journal(store, is_on_network(path), error) ||
        !store_db_exec(store, "PRAGMA synchronous = NORMAL", error) ||
        !store_db_exec(store, "PRAGMA foreign_keys = ON", error))
        return NULL;
    return g_steal_pointer(&store);
}

Store *store_open(const char *path, gboolean read_only, GError **error)
{
    if (!read_only)
        return store_open_writer(path, STORE_PATIENCE_S, error);
    if (g_file_test(path, G_FILE_TEST_IS_DIR)) {
        fail(error, ERROR_INPUT, "%s: a folder, not a store of runs", path);
        return NULL;
    }
    if (!g_file_test(path, G_FILE_TEST_EXISTS)) {
        fail(error, ERROR_INPUT, "%s: no such file", path);
        return NULL;
    }
    return open_reader(path, error);
}

void store_free(Store *store)
{
    if (store == NULL)
        return;
    for (guint i = 0; i < NUM_STATEMENTS; i++)
        sqlite3_finalize(store->statements[i]);
    sqlite3_close(store->db);
    g_free(store->path);
    g_free(store);
}

/* ---- writing ---- */

typedef struct {
    enum { VALUE_INTEGER, VALUE_REAL, VALUE_TEXT } type;
    gint64 integer;
    double real;
    const char *text;
} Value;

static Value integer(gint64 value)
{
    return (Value){.type = VALUE_INTEGER, .integer = value};
}

static Value real(double value)
{
    return (Value){.type = VALUE_REAL, .real = value};
}

static Value text(const char *value)
{
    return (Value){.type = VALUE_TEXT, .text = value};
}

static int bind(sqlite3_stmt *statement, int at, const Value *value)
{
    if (value->type == VALUE_INTEGER)
        return sqlite3_bind_int64(statement, at, value->integer);
    if (value->type == VALUE_TEXT)
        return sqlite3_bind_text(statement, at, value->text, -1, SQLITE_STATIC);
    return isnan(value->real) ? sqlite3_bind_null(statement, at)
                              : sqlite3_bind_double(statement, at, value->real);
}

static gboolean run_statement(Store *store, StoreStatement which, const Value *values,
                              guint num_values, GError **error)
{
    const char *sql = statement_sql[which];
    sqlite3_stmt **statement = &store->statements[which];

    if (*statement == NULL && sqlite3_prepare_v3(store->db, sql, -1, SQLITE_PREPARE_PERSISTENT,
                                                 statement, NULL) != SQLITE_OK)
        return store_db_fail(store, sql, error);

    g_assert((int)num_values == sqlite3_bind_parameter_count(*statement));
    for (guint i = 0; i < num_values; i++)
        if (bind(*statement, (int)i + 1, &values[i]) != SQLITE_OK)
            return store_db_fail(store, sql, error);

    const gboolean ok = sqlite3_step(*statement) == SQLITE_DONE ||
                        store_db_fail(store, sql, error); /* before reset clears the message */
    sqlite3_reset(*statement);
    sqlite3_clear_bindings(*statement);
    return ok;
}

gboolean store_begin(Store *store, GError **error)
{
    return store_db_exec(store, store->read_only ? "BEGIN" : "BEGIN IMMEDIATE", error);
}

gboolean store_commit(Store *store, GError **error)
{
    return store_db_exec(store, "COMMIT", error);
}

static char *now(void)
{
    g_autoptr(GDateTime) time = g_date_time_new_now_utc();

    return g_date_time_format(time, "%Y-%m-%dT%H:%M:%SZ");
}

gint64 store_add_run(Store *store, const StoreRun *run, GError **error)
{
    g_autofree char *created = run->created != NULL ? g_strdup(run->created) : now();
    const Value values[] = {
        text(created),           text(run->plan_json),
        text(run->host),         text(run->device),
        integer(run->ranks),     integer((gint64)run->seed),
        text(run->git_revision), text(run->status != NULL ? run->status : "running"),
        text(run->notes)};

    if (!run_statement(store, INSERT_RUN, values, G_N_ELEMENTS(values), error))
        return 0;
    return sqlite3_last_insert_rowid(store->db);
}

static gboolean update_run(Store *store, gint64 run, StoreStatement statement, const char *value,
                           GError **error)
{
    const Value values[] = {text(value), integer(run)};

    if (!run_statement(store, statement, values, G_N_ELEMENTS(values), error))
        return FALSE;
    if (sqlite3_changes(store->db) != 1)
        return fail(error, ERROR_RUNTIME, "%s: there is no run %" G_GINT64_FORMAT, store->path,
                    run);
    return TRUE;
}

gboolean store_set_status(Store *store, gint64 run, const char *status, GError **error)
{
    return update_run(store, run, UPDATE_STATUS, status, error);
}

gboolean store_add_note(Store *store, gint64 run, const char *note, GError **error)
{
    return update_run(store, run, UPDATE_NOTES, note, error);
}

gboolean store_add_step(Store *store, gint64 run, const StoreStep *step, GError **error)
{
    const Value values[] = {integer(run),     integer(step->step),   real(step->seconds),
                            real(step->loss), real(step->grad_norm), real(step->tokens),
                            real(step->lr),   integer(step->finite)};

    return run_statement(store, INSERT_STEP, values, G_N_ELEMENTS(values), error);
}

gboolean store_add_term(Store *store, gint64 run, const StoreTerm *term, GError **error)
{
    const Value values[] = {integer(run),          integer(term->rank),  text(term->term),
                            real(term->predicted), real(term->measured), text(term->unit),
                            real(term->estimated)};

    return run_statement(store, INSERT_TERM, values, G_N_ELEMENTS(values), error);
}

gboolean store_add_op(Store *store, gint64 run, const StoreOp *op, GError **error)
{
    const Value values[] = {integer(run),  integer(op->rank), integer(op->step),
                            text(op->op),  text(op->stream),  real(op->start),
                            real(op->end), real(op->bytes),   real(op->flops)};

    return run_statement(store, INSERT_OP, values, G_N_ELEMENTS(values), error);
}

gboolean store_add_search(Store *store, const char *model, const char *topology, guint gpus,
                          guint rank, const char *plan_json, GError **error)
{
    g_autofree char *created = now();
    const Value values[] = {text(created), text(model),   text(topology),
                            integer(gpus), integer(rank), text(plan_json)};

    return run_statement(store, INSERT_SEARCH, values, G_N_ELEMENTS(values), error);
}
