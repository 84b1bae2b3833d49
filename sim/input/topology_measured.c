/* The rows that calibration wrote: their keys hold what was measured, '/' between the parts. */
#include "sim/base/error.h"
#include "sim/base/nearest.h"
#include "sim/base/units.h"
#include "sim/input/topology_rules.h"

#include <string.h>

static const char *const collectives[] = {"all_gather", "reduce_scatter", "all_reduce", "exchange",
                                          NULL};

static void clear_op(gpointer op)
{
    g_free(((MeasuredOp *)op)->op);
}

static void clear_collective(gpointer collective)
{
    g_free(((MeasuredCollective *)collective)->collective);
}

void measured_init(Measured *measured)
{
    *measured = (Measured){
        .gemm = g_array_new(FALSE, FALSE, sizeof(MeasuredGemm)),
        .ops = g_array_new(FALSE, FALSE, sizeof(MeasuredOp)),
        .collectives = g_array_new(FALSE, FALSE, sizeof(MeasuredCollective)),
    };
    g_array_set_clear_func(measured->ops, clear_op);
    g_array_set_clear_func(measured->collectives, clear_collective);
}

void measured_clear(Measured *measured)
{
    g_clear_pointer(&measured->gemm, g_array_unref);
    g_clear_pointer(&measured->ops, g_array_unref);
    g_clear_pointer(&measured->collectives, g_array_unref);
    g_clear_pointer(&measured->source, g_free);
}

/* ---- keys ---- */

/* "busy2" with @word "busy" -> 2. */
static gboolean read_count(const char *part, const char *word, guint *count)
{
    guint64 value;

    if (!g_str_has_prefix(part, word) ||
        !g_ascii_string_to_unsigned(part + strlen(word), 10, 1, G_MAXINT, &value, NULL))
        return FALSE;
    *count = (guint)value;
    return TRUE;
}

/* "1024x768x256" -> 3 sizes of @num; up to 2^53, which a double holds exactly. */
static gboolean read_sizes(const char *part, guint num, guint64 *sizes)
{
    g_auto(GStrv) texts = g_strsplit(part, "x", -1);

    if (g_strv_length(texts) != num)
        return FALSE;
    for (guint i = 0; i < num; i++) {
        if (!g_ascii_string_to_unsigned(texts[i], 10, 1, G_GUINT64_CONSTANT(1) << 53, &sizes[i],
                                        NULL))
            return FALSE;
    }
    return TRUE;
}

static gboolean is_attention(const char *op)
{
    return g_str_has_prefix(op, "attention");
}

static gboolean is_name(const char *text)
{
    return *text != '\0' && text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_")] == '\0';
}

/* ---- one row ---- */

static gboolean read_rate(const char *value, Units units, double *rate, GError **error)
{
    if (!rules_parse_units(value, units, rate, error))
        return FALSE;
    return *rate > 0.0 || fail(error, ERROR_INPUT, "\"%s\": allowed: more than 0", value);
}

static gboolean read_gemm(Measured *measured, const KeyEntry *entry, GError **error)
{
    g_auto(GStrv) parts = g_strsplit(entry->key, "/", -1);
    MeasuredGemm row = {.busy = 0};
    guint64 sizes[3];

    if (g_strv_length(parts) != 4 || !dtype_from_name(parts[0], &row.dtype) ||
        !read_count(parts[1], "busy", &row.busy) ||
        !read_count(parts[2], "threads", &row.threads) || !read_sizes(parts[3], 3, sizes))
        return fail(error, ERROR_INPUT,
                    "unknown key; allowed: DTYPE/busyN/threadsN/MxNxK, such as "
                    "fp32/busy2/threads1/1024x768x256");
    row.m = sizes[0];
    row.n = sizes[1];
    row.k = sizes[2];
    if (!read_rate(entry->value, UNITS_FLOPS_PER_S, &row.flops_per_s, error))
        return FALSE;
    g_array_append_val(measured->gemm, row);
    return TRUE;
}

static gboolean read_op(Measured *measured, const KeyEntry *entry, GError **error)
{
    g_auto(GStrv) parts = g_strsplit(entry->key, "/", -1);
    const gboolean attention = is_attention(entry->key);
    MeasuredOp row = {.width = 0};
    guint64 sizes[2] = {0, 0};

    if (g_strv_length(parts) != 5 || !is_name(parts[0]) || !dtype_from_name(parts[1], &row.dtype) ||
        !read_count(parts[2], "busy", &row.busy) ||
        !read_count(parts[3], "threads", &row.threads) ||
        !read_sizes(parts[4], attention ? 2 : 1, sizes))
        return fail(error, ERROR_INPUT,
                    "unknown key; allowed: OP/DTYPE/busyN/threadsN/BYTES, for attention "
                    "SEQUENCExHEAD_DIM, such as rmsnorm/fp32/busy2/threads1/16777216 and "
                    "attention/fp32/busy1/threads2/512x64");
    row.size = sizes[0];
    row.width = sizes[1];
    if (!read_rate(entry->value, attention ? UNITS_FLOPS_PER_S : UNITS_BYTES_PER_S, &row.per_s,
                   error))
        return FALSE;
    row.op = g_strdup(parts[0]);
    g_array_append_val(measured->ops, row);
    return TRUE;
}

static gboolean read_collective(Measured *measured, const KeyEntry *entry, GError **error)
{
    g_auto(GStrv) parts = g_strsplit(entry->key, "/", -1);
    MeasuredCollective row = {.ranks = 0};

    if (g_strv_length(parts) != 4 || !g_strv_contains(collectives, parts[0]) ||
        !dtype_from_name(parts[1], &row.dtype) || !read_count(parts[2], "ranks", &row.ranks) ||
        !read_sizes(parts[3], 1, &row.bytes)) {
        g_autofree char *names = g_strjoinv(", ", (GStrv)collectives);

        return fail(error, ERROR_INPUT,
                    "unknown key; allowed: COLLECTIVE/DTYPE/ranksN/BYTES, such as "
                    "all_gather/fp32/ranks2/1048576, with %s",
                    names);
    }
    if (!read_rate(entry->value, UNITS_SECONDS, &row.seconds, error))
        return FALSE;
    row.collective = g_strdup(parts[0]);
    g_array_append_val(measured->collectives, row);
    return TRUE;
}

/* ---- groups ---- */

static const struct {
    const char *name;
    gboolean (*read)(Measured *measured, const KeyEntry *entry, GError **error);
} groups[] = {
    {.name = "gemm", .read = read_gemm},
    {.name = "ops", .read = read_op},
    {.name = "collectives", .read = read_collective},
};

gboolean measured_read(Measured *measured, const char *name, const KeyText *text,
                       const KeyGroup *group, GError **error)
{
    static const char *const names[] = {"gemm", "ops", "collectives", "machine", NULL};
    const RuleTarget machine = {.record = measured};

    if (g_str_equal(name, "machine"))
        return rules_read(&machine_rules, text, group, &machine, error);
    for (guint g = 0; g < G_N_ELEMENTS(groups); g++) {
        if (!g_str_equal(name, groups[g].name))
            continue;
        for (guint i = 0; i < group->entries->len; i++) {
            const KeyEntry *entry = key_group_entry(group, i);
            g_autoptr(GError) row_error = NULL;

            if (!groups[g].read(measured, entry, &row_error))
                return key_text_refuse(text, group, entry, error, "%s", row_error->message);
        }
        return TRUE;
    }
    g_autofree char *hint = nearest_hint(name, names);

    return key_text_refuse(text, group, NULL, error,
                           "unknown group%s; allowed: [measured gemm], [measured ops], "
                           "[measured collectives], [measured machine]",
                           hint);
}

static void print_gemm(const MeasuredGemm *row, GKeyFile *file)
{
    g_autofree char *value = units_print(row->flops_per_s, UNITS_FLOPS_PER_S);
    g_autofree char *key = g_strdup_printf(
        "%s/busy%u/threads%u/%" G_GUINT64_FORMAT "x%" G_GUINT64_FORMAT "x%" G_GUINT64_FORMAT,
        dtype_name(row->dtype), row->busy, row->threads, row->m, row->n, row->k);

    g_key_file_set_string(file, "measured gemm", key, value);
}

static void print_op(const MeasuredOp *row, GKeyFile *file)
{
    const gboolean attention = is_attention(row->op);
    g_autofree char *value =
        units_print(row->per_s, attention ? UNITS_FLOPS_PER_S : UNITS_BYTES_PER_S);
    g_autofree char *width =
        attention ? g_strdup_printf("x%" G_GUINT64_FORMAT, row->width) : g_strdup("");
    g_autofree char *key =
        g_strdup_printf("%s/%s/busy%u/threads%u/%" G_GUINT64_FORMAT "%s", row->op,
                        dtype_name(row->dtype), row->busy, row->threads, row->size, width);

    g_key_file_set_string(file, "measured ops", key, value);
}

static void print_collective(const MeasuredCollective *row, GKeyFile *file)
{
    g_autofree char *value = units_print(row->seconds, UNITS_SECONDS);
    g_autofree char *key = g_strdup_printf("%s/%s/ranks%u/%" G_GUINT64_FORMAT, row->collective,
                                           dtype_name(row->dtype), row->ranks, row->bytes);

    g_key_file_set_string(file, "measured collectives", key, value);
}

void measured_print(const Measured *measured, GKeyFile *file)
{
    rules_print(&machine_rules, measured, file, "measured machine");
    for (guint i = 0; i < measured->gemm->len; i++)
        print_gemm(&g_array_index(measured->gemm, MeasuredGemm, i), file);
    for (guint i = 0; i < measured->ops->len; i++)
        print_op(&g_array_index(measured->ops, MeasuredOp, i), file);
    for (guint i = 0; i < measured->collectives->len; i++)
        print_collective(&g_array_index(measured->collectives, MeasuredCollective, i), file);
}
