/* The SQLite store of runs: what was planned, what was measured (DESIGN 7). */
#pragma once

#include <glib.h>

typedef struct Store Store;

typedef struct {
    gint64 id;
    const char *created, *plan_json, *host, *device, *git_revision, *status, *notes;
    guint ranks;
    guint64 seed;
} StoreRun;

/* In the notes of a run whose ops took other times than training does. */
#define STORE_CHECK_MODE ", check mode"
#define STORE_NO_OVERLAP ", no overlap"
/* Of one whose steps ran as graphs, but for those that are sampled. */
#define STORE_GRAPHS "cuda graphs"
/* Of one on GPUs: who ran attention, "cuDNN 9.19.0" or "own kernels". */
#define STORE_ATTENTION "attention"

typedef struct {
    gint64 step; /* from 1 */
    double seconds, loss, grad_norm, tokens, lr;
    gboolean finite;
} StoreStep;

typedef struct {
    guint rank;
    const char *term;           /* its path in the prediction: "memory_bytes.parameters" */
    double predicted, measured; /* NAN = could not be measured: NULL in the store */
    double estimated;           /* by the transport itself (NCCL), NAN = it says nothing */
    const char *unit;           /* "s", "bytes", "tokens/s", ... */
} StoreTerm;

typedef struct {
    guint rank;
    gint64 step;
    const char *op, *stream; /* "block.forward layers.3 linear" */
    double start, end;       /* seconds since that step began */
    double bytes, flops;
} StoreOp;

/* Opens or creates @path.  A foreign file or one of a newer version is refused untouched
 * (ERROR_INPUT). WAL on a local disk, DELETE journal with a busy timeout on a network file system.
 */
Store *store_open(const char *path, gboolean read_only, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A writer that waits for other writers no longer than @patience_s, now and later; store_open()
 * has STORE_PATIENCE_S. */
enum { STORE_PATIENCE_S = 30 };
Store *store_open_writer(const char *path, double patience_s,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
void store_free(Store *store);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Store, store_free)

/* One writer.  Everything between begin and commit is one transaction; a step's rows are batched.
 * A reader that begins sees the store as it is at that moment until it commits. */
gboolean store_begin(Store *store, GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean store_commit(Store *store, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Returns the new run's id, 0 on error.  The id is the store's; created = NULL is now, status =
 * NULL is "running", other texts may be NULL. */
gint64 store_add_run(Store *store, const StoreRun *run, GError **error);
/* "running", "done", "stopped", "failed", "non-finite" */
gboolean store_set_status(Store *store, gint64 run, const char *status,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* @text behind the notes that the run has. */
gboolean store_add_note(Store *store, gint64 run, const char *text,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean store_add_step(Store *store, gint64 run, const StoreStep *step,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean store_add_term(Store *store, gint64 run, const StoreTerm *term,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean store_add_op(Store *store, gint64 run, const StoreOp *op,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Plans that were ranked by a search (fsdp-plan search --db): rank 1 is the best. */
gboolean store_add_search(Store *store, const char *model, const char *topology, guint gpus,
                          guint rank, const char *plan_json,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Readers; arrays own their strings (free with g_array_unref / g_ptr_array_unref). */
GArray *store_runs(Store *store, GError **error);              /* StoreRun, oldest first */
GArray *store_steps(Store *store, gint64 run, GError **error); /* StoreStep */
GArray *store_terms(Store *store, gint64 run, GError **error); /* StoreTerm */
GArray *store_ops(Store *store, gint64 run, gint64 step,
                  GError **error); /* StoreOp, by step, rank, start; step 0 = all */
/* StoreOp of the first sampled step after @step, by rank and then as they were written; empty when
 * there is none. */
GArray *store_next_ops(Store *store, gint64 run, gint64 step, GError **error);
/* StoreOp, by start: the last sampled step, of @rank or else of the lowest rank that has any. */
GArray *store_sampled_ops(Store *store, gint64 run, guint rank, GError **error);
