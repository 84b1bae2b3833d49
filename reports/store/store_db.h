/* What store.c and store_read.c share: the database behind a Store.  Not for other files. */
#pragma once

#include "reports/store/store.h"

#include <sqlite3.h>

/* "FSDP": marks a file as a store, whatever its name is. */
enum { STORE_APPLICATION_ID = 0x46534450, STORE_VERSION = 2 };

typedef enum {
    INSERT_RUN,
    INSERT_STEP,
    INSERT_TERM,
    INSERT_OP,
    INSERT_SEARCH,
    UPDATE_STATUS,
    UPDATE_NOTES,
    NUM_STATEMENTS
} StoreStatement;

struct Store {
    sqlite3 *db;
    char *path;
    gboolean read_only;
    gint64 version; /* of the file: 1 has no terms.estimated */
    guint busy_timeout_ms;
    sqlite3_stmt *statements[NUM_STATEMENTS]; /* prepared when first used */
};

/* Fails with the path, what was being done and SQLite's message; returns FALSE. */
gboolean store_db_fail(const Store *store, const char *doing, GError **error);
gboolean store_db_exec(Store *store, const char *sql, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* WAL needs memory shared between all processes that have the file open: on a network file system
 * it is DELETE, where readers wait for a commit instead. */
gboolean store_db_set_journal(Store *store, gboolean network,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
