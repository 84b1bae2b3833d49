/* Reading the store: each table's rows of one run as an array that owns its strings. */
#include "reports/store/store.h"
#include "reports/store/store_db.h"

#include <math.h>
#include <string.h>

/* Reads the columns of one row into @row, which is zeroed. */
typedef void ReadRow(sqlite3_stmt *statement, gpointer row);

typedef struct {
    const char *sql;
    gsize size;
    ReadRow *read;
    GDestroyNotify clear; /* or NULL */
} Table;

static char *column_text(sqlite3_stmt *statement, int column)
{
    const char *text = (const char *)sqlite3_column_text(statement, column);

    return text != NULL ? g_utf8_make_valid(text, -1) : NULL;
}

static double column_real(sqlite3_stmt *statement, int column)
{
    return sqlite3_column_type(statement, column) == SQLITE_NULL
               ? NAN
               : sqlite3_column_double(statement, column);
}

static guint column_uint(sqlite3_stmt *statement, int column)
{
    return (guint)sqlite3_column_int64(statement, column);
}

/* The fields are const for those who read them; the array alone frees them. */
static void free_text(const char *text)
{
    g_free((gpointer)(guintptr)text);
}

static void read_run(sqlite3_stmt *statement, gpointer row)
{
    StoreRun *run = row;

    run->id = sqlite3_column_int64(statement, 0);
    run->created = column_text(statement, 1);
    run->plan_json = column_text(statement, 2);
    run->host = column_text(statement, 3);
    run->device = column_text(statement, 4);
    run->ranks = column_uint(statement, 5);
    run->seed = (guint64)sqlite3_column_int64(statement, 6);
    run->git_revision = column_text(statement, 7);
    run->status = column_text(statement, 8);
    run->notes = column_text(statement, 9);
}

static void clear_run(gpointer row)
{
    StoreRun *run = row;

    free_text(run->created);
    free_text(run->plan_json);
    free_text(run->host);
    free_text(run->device);
    free_text(run->git_revision);
    free_text(run->status);
    free_text(run->notes);
}

static void read_step(sqlite3_stmt *statement, gpointer row)
{
    StoreStep *step = row;

    step->step = sqlite3_column_int64(statement, 0);
    step->seconds = column_real(statement, 1);
    step->loss = column_real(statement, 2);
    step->grad_norm = column_real(statement, 3);
    step->tokens = column_real(statement, 4);
    step->lr = column_real(statement, 5);
    step->finite = sqlite3_column_int(statement, 6) != 0;
}

static void read_term(sqlite3_stmt *statement, gpointer row)
{
    StoreTerm *term = row;

    term->rank = column_uint(statement, 0);
    term->term = column_text(statement, 1);
    term->predicted = column_real(statement, 2);
    term->measured = column_real(statement, 3);
    term->unit = column_text(statement, 4);
    term->estimated = column_real(statement, 5);
}

static void clear_term(gpointer row)
{
    StoreTerm *term = row;

    free_text(term->term);
    free_text(term->unit);
}

static void read_op(sqlite3_stmt *statement, gpointer row)
{
    StoreOp *op = row;

    op->rank = column_uint(statement, 0);
    op->step = sqlite3_column_int64(statement, 1);
    op->op = column_text(statement, 2);
    op->stream = column_text(statement, 3);
    op->start = column_real(statement, 4);
    op->end = column_real(statement, 5);
    op->bytes = column_real(statement, 6);
    op->flops = column_real(statement, 7);
}

static void clear_op(gpointer row)
{
    StoreOp *op = row;

    free_text(op->op);
    free_text(op->stream);
}

/* @run and @second are bound to ?1 and ?2 where the statement has them. */
static GArray *read_table(Store *store, const Table *table, gint64 run, gint64 second,
                          GError **error)
{
    g_autoptr(GArray) rows = g_array_new(FALSE, TRUE, (guint)table->size);
    g_autofree gpointer row = g_malloc(table->size);
    sqlite3_stmt *statement = NULL;
    int result = sqlite3_prepare_v2(store->db, table->sql, -1, &statement, NULL);

    g_array_set_clear_func(rows, table->clear);
    if (result == SQLITE_OK && sqlite3_bind_parameter_count(statement) >= 1)
        result = sqlite3_bind_int64(statement, 1, run);
    if (result == SQLITE_OK && sqlite3_bind_parameter_count(statement) >= 2)
        result = sqlite3_bind_int64(statement, 2, second);
    if (result == SQLITE_OK)
        while ((result = sqlite3_step(statement)) == SQLITE_ROW) {
            memset(row, 0, table->size);
            table->read(statement, row);
            g_array_append_vals(rows, row, 1);
        }
    if (result != SQLITE_DONE)
        store_db_fail(store, table->sql, error);
    sqlite3_finalize(statement);
    return result == SQLITE_DONE ? g_steal_pointer(&rows) : NULL;
}

static const Table runs_table = {
    .sql = "SELECT id, created, plan, host, device, ranks, seed, git_revision, status, notes"
           " FROM runs ORDER BY id",
    .size = sizeof(StoreRun),
    .read = read_run,
    .clear = clear_run,
};

static const Table steps_table = {
    .sql = "SELECT step, seconds, loss, grad_norm, tokens, lr, finite"
           " FROM steps WHERE run = ?1 ORDER BY step",
    .size = sizeof(StoreStep),
    .read = read_step,
};

static const Table terms_table = {
    .sql = "SELECT rank, term, predicted, measured, unit, estimated"
           " FROM terms WHERE run = ?1 ORDER BY rank, rowid",
    .size = sizeof(StoreTerm),
    .read = read_term,
    .clear = clear_term,
};

/* Of stores that an older program wrote and nobody has written to since. */
static const Table old_terms_table = {
    .sql = "SELECT rank, term, predicted, measured, unit, NULL"
           " FROM terms WHERE run = ?1 ORDER BY rank, rowid",
    .size = sizeof(StoreTerm),
    .read = read_term,
    .clear = clear_term,
};

static const Table ops_table = {
    .sql = "SELECT rank, step, op, stream, start, \"end\", bytes, flops"
           " FROM ops WHERE run = ?1 AND (?2 = 0 OR step = ?2) ORDER BY step, rank, start, rowid",
    .size = sizeof(StoreOp),
    .read = read_op,
    .clear = clear_op,
};

static const Table next_ops_table = {
    .sql = "SELECT rank, step, op, stream, start, \"end\", bytes, flops"
           " FROM ops WHERE run = ?1 AND step = (SELECT min(step) FROM ops WHERE run = ?1 AND"
           " step > ?2) ORDER BY rank, rowid",
    .size = sizeof(StoreOp),
    .read = read_op,
    .clear = clear_op,
};

static const Table sampled_ops_table = {
    .sql =
        "WITH sample AS (SELECT * FROM ops WHERE run = ?1 AND start IS NOT NULL AND \"end\" IS NOT"
        " NULL AND step = (SELECT max(step) FROM ops WHERE run = ?1))"
        " SELECT rank, step, op, stream, start, \"end\", bytes, flops FROM sample"
        " WHERE rank = (SELECT rank FROM sample ORDER BY rank <> ?2, rank LIMIT 1)"
        " ORDER BY start",
    .size = sizeof(StoreOp),
    .read = read_op,
    .clear = clear_op,
};

GArray *store_runs(Store *store, GError **error)
{
    return read_table(store, &runs_table, 0, 0, error);
}

GArray *store_steps(Store *store, gint64 run, GError **error)
{
    return read_table(store, &steps_table, run, 0, error);
}

GArray *store_terms(Store *store, gint64 run, GError **error)
{
    return read_table(store, store->version == 1 ? &old_terms_table : &terms_table, run, 0, error);
}

GArray *store_ops(Store *store, gint64 run, gint64 step, GError **error)
{
    return read_table(store, &ops_table, run, step, error);
}

GArray *store_next_ops(Store *store, gint64 run, gint64 step, GError **error)
{
    return read_table(store, &next_ops_table, run, step, error);
}

GArray *store_sampled_ops(Store *store, gint64 run, guint rank, GError **error)
{
    return read_table(store, &sampled_ops_table, run, rank, error);
}
