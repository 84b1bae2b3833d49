#include "sim/base/error.h"
#include "sim/import/import_kinds.h"

#include <math.h>
#include <string.h>

/* The table of one run: header, rows, "# Out of bounds values". */
typedef struct {
    const ImportText *text;
    guint header, end; /* lines */
    guint ranks;
    guint hosts;
    const char *collective; /* as in [measured collectives] */
    guint time, words;      /* column of the out-of-place time; columns of a row */
    gboolean has_redop, has_root, named;
} Table;

/* busbw / algbw, and bytes a rank / size: nccl-tests, doc/PERFORMANCE.md.  n: ranks. */
static const struct {
    const char *test, *name;
    double factor;     /* times (n - 1) / n */
    gboolean per_rank; /* count is one rank's share of size */
} collectives[] = {
    {"all_gather_perf", "all_gather", 1, TRUE},
    {"reduce_scatter_perf", "reduce_scatter", 1, TRUE},
    {"all_reduce_perf", "all_reduce", 2, FALSE},
};

#define ALLOWED_TESTS "all_gather_perf, reduce_scatter_perf, all_reduce_perf"

static guint index_of_collective(const char *name)
{
    guint i = 0;

    while (!g_str_equal(collectives[i].name, name))
        i++;
    return i;
}

/* ---- around the table ---- */

/* "#  size  count  type ... time algbw busbw". */
static gboolean is_header(const char *line)
{
    g_auto(GStrv) words = import_words(line);

    return g_strcmp0(words[0], "#") == 0 && g_strcmp0(words[1], "size") == 0 &&
           g_strv_contains((const char *const *)words, "algbw");
}

guint import_nccl_tests_find(const ImportText *text, guint from)
{
    guint i = from;

    while (i < text->num_lines && !is_header(text->lines[i]))
        i++;
    return i;
}

static gboolean read_header(Table *table, GError **error)
{
    g_auto(GStrv) words = import_words(table->text->lines[table->header]);
    const guint second = import_nccl_tests_find(table->text, table->header + 1);
    guint i = 1;

    if (second < table->text->num_lines)
        return import_refuse(table->text, second, error,
                             "a second table, after that of line %u; allowed: one run a file",
                             table->header + 1);
    table->has_redop = g_strv_contains((const char *const *)words, "redop");
    table->has_root = g_strv_contains((const char *const *)words, "root");
    while (words[i] != NULL && !g_str_equal(words[i], "time"))
        i++;
    table->time = i - 1; /* the header's "#" is no column */
    table->words = g_strv_length(words) - 1;
    return table->words == table->time + 8 ||
           import_refuse(table->text, table->header, error,
                         "%u columns; allowed: time, algbw, busbw and errors, out of place and in "
                         "place",
                         table->words);
}

/* "#  Rank  3 Group  0 Pid 7 on HOST device  3 [0x07] NVIDIA H100": *host is NULL without "on". */
static gboolean read_device(const char *line, guint *rank, char **host, char **device)
{
    g_auto(GStrv) words = import_words(line);
    guint64 number;

    if (g_strcmp0(words[0], "#") != 0 || g_strcmp0(words[1], "Rank") != 0 || words[2] == NULL ||
        !g_ascii_string_to_unsigned(words[2], 10, 0, G_MAXINT, &number, NULL))
        return FALSE;
    *rank = (guint)number;
    for (guint i = 3; words[i] != NULL && words[i + 1] != NULL; i++) {
        if (g_str_equal(words[i], "on") && *host == NULL)
            *host = g_strdup(words[i + 1]);
    }
    *device = g_strdup(strchr(line, ']') != NULL ? strchr(line, ']') + 1 : "");
    return TRUE;
}

/* "a100" of "a100-sxm-40gb": the part of a GPU's name that has a digit. */
static char *model_of(const char *gpu)
{
    g_auto(GStrv) parts = g_strsplit(gpu, "-", -1);

    for (guint i = 0; parts[i] != NULL; i++) {
        if (strpbrk(parts[i], "0123456789") != NULL)
            return g_ascii_strdown(parts[i], -1);
    }
    return NULL;
}

static gboolean names_model(const char *device, const char *model)
{
    g_autofree char *lower = g_ascii_strdown(device, -1);

    for (const char *at = lower; (at = strstr(at, model)) != NULL; at++) {
        if ((at == lower || !g_ascii_isalnum(at[-1])) && !g_ascii_isdigit(at[strlen(model)]))
            return TRUE; /* an H200 is no H20 */
    }
    return FALSE;
}

static gboolean check_device(const Table *table, guint line, const char *device,
                             const Topology *base, const char *topologies_dir, GError **error)
{
    g_autofree char *path = g_build_filename(topologies_dir, "gpus", base->gpu.name, NULL);
    g_autofree char *model = model_of(base->gpu.name);
    g_autofree char *shown = import_shown(device);

    if (model == NULL || !g_file_test(path, G_FILE_TEST_IS_REGULAR) || names_model(device, model))
        return TRUE; /* a GPU of the user's own is taken as given */
    return import_refuse(
        table->text, line, error,
        "device \"%s\", but the GPU of --topology %s is %s; allowed: what the test "
        "ran on",
        g_strstrip(shown), base->name, base->gpu.name);
}

/* A row stands for consecutive GPUs: those of one node, or all of several. */
static gboolean check_hosts(const Table *table, guint line, GHashTable *hosts, const Topology *base,
                            GError **error)
{
    GHashTableIter iter;
    gpointer host, count;

    g_hash_table_iter_init(&iter, hosts);
    while (g_hash_table_iter_next(&iter, &host, &count)) {
        const guint ranks = GPOINTER_TO_UINT(count);
        g_autofree char *shown = import_shown(host);

        if (ranks > base->gpus_per_node ||
            (g_hash_table_size(hosts) > 1 && ranks != base->gpus_per_node))
            return import_refuse(table->text, line, error,
                                 "%u ranks on %s; allowed: up to the %u GPUs of a node of "
                                 "--topology %s, all of them where there are several nodes",
                                 ranks, shown, base->gpus_per_node, base->name);
    }
    return TRUE;
}

static gboolean read_devices(Table *table, const Topology *base, const char *topologies_dir,
                             GError **error)
{
    g_autoptr(GHashTable) hosts = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    guint last = table->header;

    for (guint i = 0; i < table->header; i++) {
        g_autofree char *host = NULL, *device = NULL;
        guint rank;

        if (!read_device(table->text->lines[i], &rank, &host, &device))
            continue;
        if (rank != table->ranks)
            return import_refuse(table->text, i, error,
                                 "Rank %u; allowed: Rank %u, each once, in "
                                 "order",
                                 rank, table->ranks);
        if (!check_device(table, i, device, base, topologies_dir, error))
            return FALSE;
        const char *key = host != NULL ? host : "one host";
        const guint count = GPOINTER_TO_UINT(g_hash_table_lookup(hosts, key));

        g_hash_table_replace(hosts, g_strdup(key), GUINT_TO_POINTER(count + 1));
        table->ranks++;
        last = i;
    }
    table->hosts = g_hash_table_size(hosts);
    if (table->ranks < 2)
        return import_refuse(table->text, table->header, error,
                             "%u lines \"# Rank N ...\" before the table; allowed: one a rank, 2 "
                             "or more",
                             table->ranks);
    return check_hosts(table, last, hosts, base, error);
}

/* The last word before the header that is, or ends as a path in, the name of a test. */
static char *named_test(const Table *table)
{
    char *test = NULL;

    for (guint i = 0; i < table->header; i++) {
        g_auto(GStrv) words = import_words(table->text->lines[i]);

        for (char **word = words; *word != NULL; word++) {
            g_autofree char *base = g_path_get_basename(*word);

            if (g_str_has_suffix(base, "_mpi"))
                base[strlen(base) - strlen("_mpi")] = '\0';
            if (!g_str_has_suffix(base, "_perf"))
                continue;
            g_free(test);
            test = g_steal_pointer(&base);
        }
    }
    return test;
}

/* Where no test is named (old versions, pastes without the command), columns tell: only all_gather
 * has neither redop nor root; reduce_scatter and all_reduce have redop, and differ in what count
 * is.  With a root column rows say more: check_unnamed(). */
static gboolean find_collective(Table *table, GError **error)
{
    g_autofree char *test = named_test(table);

    for (guint i = 0; test != NULL && i < G_N_ELEMENTS(collectives); i++) {
        if (g_str_equal(test, collectives[i].test))
            table->collective = collectives[i].name;
    }
    table->named = table->collective != NULL;
    if (table->named)
        return TRUE;
    if (test == NULL && (!table->has_root || table->has_redop)) {
        table->collective = table->has_redop ? "all_reduce" : "all_gather";
        return TRUE;
    }
    g_autofree char *shown = import_shown(test != NULL ? test : "a test that is not named");

    return import_refuse(table->text, table->header, error,
                         "%s; allowed: " ALLOWED_TESTS
                         " (in the command or in \"# Collective test starting: NAME\")",
                         shown);
}

/* "# Out of bounds values : 0 OK" ends the table; "# Avg bus bandwidth : 0" follows a failure. */
static gboolean find_end(Table *table, GError **error)
{
    const ImportText *text = table->text;

    for (guint i = table->header + 1; i < text->num_lines; i++) {
        const char *found = strstr(text->lines[i], "Out of bounds values");

        if (found == NULL)
            continue;
        g_auto(GStrv) words = import_words(found);

        table->end = i;
        if (g_strv_length(words) != 7 || !g_str_equal(words[5], "0") ||
            !g_str_equal(words[6], "OK"))
            return import_refuse(text, i, error,
                                 "the test failed; allowed: \"Out of bounds values : 0 OK\"");
        break;
    }
    if (table->end == 0)
        return import_refuse(text, text->num_lines - 1, error,
                             "the end, without \"# Out of bounds values\"; allowed: the whole "
                             "output");
    for (guint i = table->end; i < text->num_lines; i++) {
        const char *found = strstr(text->lines[i], "Avg bus bandwidth");
        const char *colon = found != NULL ? strchr(found, ':') : NULL;

        if (colon != NULL && !(g_ascii_strtod(colon + 1, NULL) > 0))
            return import_refuse(text, i, error, "an average of 0; allowed: a run that measured");
    }
    return TRUE;
}

/* ---- rows ---- */

static gboolean number_of(const char *word, double *value)
{
    char *end;

    *value = g_ascii_strtod(word, &end);
    return end != word && *end == '\0' && isfinite(*value) && *value >= 0;
}

/* What is printed is rounded: algbw and busbw to 0.01, time to 3 digits or more. */
static gboolean near(double expected, double printed)
{
    return isfinite(expected) && fabs(expected - printed) <= 0.0051 + 0.006 * expected;
}

static gboolean dtype_of(const char *name, DType *dtype)
{
    static const struct {
        const char *name;
        DType dtype;
    } names[] = {{"float", DTYPE_FP32},
                 {"half", DTYPE_FP16},
                 {"bfloat16", DTYPE_BF16},
                 {"double", DTYPE_FP64}};

    for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
        if (g_str_equal(name, names[i].name)) {
            *dtype = names[i].dtype;
            return TRUE;
        }
    }
    return FALSE;
}

/* One row's numbers, as printed. */
typedef struct {
    double size, count, time_us, algbw, busbw;
    DType dtype;
} Row;

static gboolean read_numbers(const Table *table, guint line, char **words, Row *row, GError **error)
{
    const struct {
        guint column;
        double *value;
    } columns[] = {
        {0, &row->size},
        {1, &row->count},
        {table->time, &row->time_us},
        {table->time + 1, &row->algbw},
        {table->time + 2, &row->busbw},
    };

    for (guint i = 0; i < G_N_ELEMENTS(columns); i++) {
        g_autofree char *shown = import_shown(words[columns[i].column]);

        if (!number_of(words[columns[i].column], columns[i].value))
            return import_refuse(table->text, line, error, "\"%s\" in column %u; allowed: a number",
                                 shown, columns[i].column + 1);
    }
    if (!dtype_of(words[2], &row->dtype)) {
        g_autofree char *shown = import_shown(words[2]);

        return import_refuse(table->text, line, error,
                             "type %s; allowed: float, half, bfloat16, double", shown);
    }
    return TRUE;
}

/* #wrong is 0 or not counted (N/A); the older "error" is how far sums are off, at most rounding. */
static gboolean check_errors(const Table *table, guint line, const char *word, GError **error)
{
    g_autofree char *shown = import_shown(word);
    double wrong;

    if (g_str_equal(word, "N/A") || (number_of(word, &wrong) && wrong < 0.01))
        return TRUE;
    return import_refuse(table->text, line, error, "%s wrong values; allowed: a run without any",
                         shown);
}

/* The numbers of a row follow from each other; damage breaks that. */
static gboolean check_row(Table *table, guint line, const Row *row, GError **error)
{
    const double n = table->ranks;
    const double elements = row->size / dtype_bytes(row->dtype);
    const gboolean shares = row->count * n == elements;

    if (table->has_redop && !table->named && shares)
        table->collective = "reduce_scatter";
    const guint kind = index_of_collective(table->collective);

    if (collectives[kind].per_rank ? !shares : row->count != elements)
        return import_refuse(table->text, line, error,
                             "%g elements of %g bytes over %u ranks are not what %s has; allowed: "
                             "an undamaged row",
                             row->count, row->size, table->ranks, table->collective);
    const double gb_per_s = row->size / row->time_us / 1e3;

    if (row->time_us > 0 && near(gb_per_s, row->algbw) &&
        near(gb_per_s * collectives[kind].factor * (n - 1) / n, row->busbw))
        return TRUE;
    return import_refuse(table->text, line, error,
                         "%g bytes in %g us, algbw %g, busbw %g GB/s don't belong together for %s "
                         "over %u ranks; allowed: an undamaged row",
                         row->size, row->time_us, row->algbw, row->busbw, table->collective,
                         table->ranks);
}

/* Columns 4 and 5 of tables with a root: of all tests only all_reduce and reduce_scatter reduce
 * without one. */
static gboolean check_unnamed(const Table *table, guint line, char **words, GError **error)
{
    const gboolean reduces = !g_str_equal(words[3], "none"), rooted = !g_str_equal(words[4], "-1");
    g_autofree char *redop = import_shown(words[3]), *root = import_shown(words[4]);

    if (table->named || !table->has_root || (reduces && !rooted))
        return TRUE;
    return import_refuse(table->text, line, error,
                         "redop %s, root %s, and no test is named%s; allowed: " ALLOWED_TESTS
                         " (in the command or in \"# Collective test starting: NAME\")",
                         redop, root,
                         rooted ? "" : ": all_gather_perf and alltoall_perf look the same");
}

/* In place of a row of the same kind, if there is one. */
static void store(const Table *table, const Row *row, Topology *base)
{
    const guint64 bytes = (guint64)row->size;
    GArray *rows = base->measured.collectives;
    MeasuredCollective new = {
        .collective = g_strdup(table->collective),
        .dtype = row->dtype,
        .ranks = table->ranks,
        .bytes = bytes,
        .seconds = row->time_us / 1e6,
    };

    for (guint i = 0; i < rows->len; i++) {
        const MeasuredCollective *old = &g_array_index(rows, MeasuredCollective, i);

        if (old->dtype == new.dtype && old->ranks == new.ranks &&
            old->bytes == bytes &&g_str_equal(old->collective, new.collective)) {
            g_array_remove_index(rows, i);
            break;
        }
    }
    g_array_append_val(rows, new);
}

/* Other lines among the rows are logs of NCCL; sizes that round to no element are empty. */
static gboolean read_row(Table *table, guint line, Topology *base, guint *rows, GError **error)
{
    g_auto(GStrv) words = import_words(table->text->lines[line]);
    const guint num = g_strv_length(words);
    Row row = {.size = 0};

    if (num == 0 || !g_ascii_isdigit(words[0][0]) || strchr(words[0], ':') != NULL)
        return TRUE;
    if (num + 1 == table->words && table->has_redop && !table->named)
        return import_refuse(table->text, line, error,
                             "a test without redop, as alltoall_perf; allowed: " ALLOWED_TESTS);
    if (num != table->words)
        return import_refuse(table->text, line, error, "%u columns; allowed: %u, as in line %u",
                             num, table->words, table->header + 1);
    if (!check_unnamed(table, line, words, error) || !read_numbers(table, line, words, &row, error))
        return FALSE;
    if (row.size > (double)(G_GUINT64_CONSTANT(1) << 50) || row.size != floor(row.size))
        return import_refuse(table->text, line, error, "%g bytes; allowed: whole, up to 2^50",
                             row.size);
    if (row.size == 0)
        return TRUE;
    if (!check_errors(table, line, words[table->time + 3], error) ||
        !check_row(table, line, &row, error))
        return FALSE;
    store(table, &row, base);
    (*rows)++;
    return TRUE;
}

gboolean import_nccl_tests(const ImportText *text, Topology *base, const char *topologies_dir,
                           GError **error)
{
    Table table = {.text = text, .header = import_nccl_tests_find(text, 0)};
    g_autofree char *shown = import_file_name(text);
    guint rows = 0;

    if (base->gpu.kind != DEVICE_CUDA)
        return import_refuse(text, table.header, error,
                             "--topology %s has no GPUs; allowed: what nccl-tests ran on",
                             base->name);
    if (!read_header(&table, error) || !find_collective(&table, error) ||
        !read_devices(&table, base, topologies_dir, error) || !find_end(&table, error))
        return FALSE;
    for (guint i = table.header + 1; i < table.end; i++) {
        if (!read_row(&table, i, base, &rows, error))
            return FALSE;
    }
    if (rows == 0)
        return import_refuse(text, table.header, error, "no rows; allowed: at least one");
    char *source = g_strdup_printf("%s; %s: %s (nccl-tests, out of place)", base->source,
                                   table.collective, shown);

    g_free(base->source);
    base->source = source;
    base->nodes = MAX(base->nodes, table.hosts);
    return TRUE;
}
