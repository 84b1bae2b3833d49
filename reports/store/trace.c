/* The Chrome trace event format, as Perfetto and chrome://tracing read it. */
#include "reports/store/trace.h"

#include "sim/base/error.h"
#include "sim/base/text_file.h"

#include <math.h>

static void append_string(GString *json, const char *text)
{
    g_autofree char *valid = g_utf8_make_valid(text, -1);

    g_string_append_c(json, '"');
    for (const char *c = valid; *c != '\0'; c++)
        if (*c == '"' || *c == '\\')
            g_string_append_printf(json, "\\%c", *c);
        else if ((guchar)*c < 0x20)
            g_string_append_printf(json, "\\u%04x", (guint)(guchar)*c);
        else
            g_string_append_c(json, *c);
    g_string_append_c(json, '"');
}

/* JSON knows no NaN: such a value is left out by the caller. */
static void append_number(GString *json, double value, const char *format)
{
    char digits[G_ASCII_DTOSTR_BUF_SIZE];

    g_string_append(json, g_ascii_formatd(digits, sizeof digits, format, value));
}

static void append_name_of(GString *json, const char *what, guint pid, guint tid, const char *name)
{
    g_string_append_printf(
        json, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":", what, pid,
        tid);
    append_string(json, name);
    g_string_append(json, "}},\n");
}

static void append_order_of(GString *json, const char *what, guint pid, guint tid)
{
    g_string_append_printf(json,
                           "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"args\":{\"sort_"
                           "index\":%u}},\n",
                           what, pid, tid, tid == 0 ? pid : tid);
}

/* The number of @stream within @rank, from 1 in order of appearance; new ones are announced. */
static guint thread_of(GString *json, GHashTable *threads, GHashTable *counts, guint rank,
                       const char *stream)
{
    g_autofree char *key = g_strdup_printf("%u %s", rank, stream);
    guint tid = GPOINTER_TO_UINT(g_hash_table_lookup(threads, key));
    if (tid != 0)
        return tid;

    tid = GPOINTER_TO_UINT(g_hash_table_lookup(counts, GUINT_TO_POINTER(rank))) + 1;
    g_hash_table_insert(threads, g_steal_pointer(&key), GUINT_TO_POINTER(tid));
    g_hash_table_insert(counts, GUINT_TO_POINTER(rank), GUINT_TO_POINTER(tid));
    if (tid == 1) {
        g_autofree char *name = g_strdup_printf("rank %u", rank);

        append_name_of(json, "process_name", rank, 0, name);
        append_order_of(json, "process_sort_index", rank, 0);
    }
    append_name_of(json, "thread_name", rank, tid, stream);
    append_order_of(json, "thread_sort_index", rank, tid);
    return tid;
}

static void append_event(GString *json, const TraceEvent *event, guint tid)
{
    const double duration_s = event->end_s - event->start_s;

    g_string_append(json, "{\"ph\":\"X\",\"name\":");
    append_string(json, event->name);
    g_string_append_printf(json, ",\"pid\":%u,\"tid\":%u,\"ts\":", event->rank, tid);
    append_number(json, event->start_s * 1e6, "%.3f");
    g_string_append(json, ",\"dur\":");
    append_number(json, duration_s * 1e6, "%.3f");
    g_string_append(json, ",\"args\":{");
    if (isfinite(event->bytes)) {
        g_string_append(json, "\"bytes\":");
        append_number(json, event->bytes, "%.0f");
    }
    if (isfinite(event->flops)) {
        g_string_append(json, isfinite(event->bytes) ? ",\"flops\":" : "\"flops\":");
        append_number(json, event->flops, "%.0f");
    }
    g_string_append(json, "}},\n");
}

gboolean trace_write(const char *path, const char *title, const GArray *events, GError **error)
{
    g_autoptr(GHashTable) threads = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_autoptr(GHashTable) counts = g_hash_table_new(NULL, NULL);
    g_autoptr(GString) json = g_string_new("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"title\":");

    append_string(json, title);
    g_string_append(json, "},\n\"traceEvents\":[\n");
    for (guint i = 0; i < events->len; i++) {
        const TraceEvent *event = &g_array_index(events, TraceEvent, i);

        if (!isfinite(event->start_s) || !isfinite(event->end_s) || event->end_s < event->start_s)
            return fail(error, ERROR_RUNTIME, "%s: event %u, \"%s\", has no time", path, i,
                        event->name);
        append_event(json, event, thread_of(json, threads, counts, event->rank, event->stream));
    }
    if (events->len > 0)
        g_string_truncate(json, json->len - 2); /* the last comma */
    g_string_append(json, "\n]}\n");
    return text_file_write(path, json->str, json->len, error);
}
