#include "sim/import/import_kinds.h"
#include "sim/import/import_node.h"

#include <string.h>

enum { MAX_GPUS = 256 };

/* "GPU12" -> 12. */
static gboolean gpu_number(const char *word, guint *number)
{
    guint64 value;

    if (word == NULL || !g_str_has_prefix(word, "GPU") ||
        !g_ascii_string_to_unsigned(word + 3, 10, 0, G_MAXUINT16, &value, NULL))
        return FALSE;
    *number = (guint)value;
    return TRUE;
}

/* How two devices are connected: "NV12", "PXB", "X" (the device itself). */
static gboolean is_link(const char *word, guint *nvlinks)
{
    static const char *const paths[] = {"X",   "PIX", "PXB", "PHB", "NODE",
                                        "SYS", "SOC", "PSB", NULL};
    guint64 value = 0;

    *nvlinks = 0;
    if (g_strv_contains(paths, word))
        return TRUE;
    if (!g_str_has_prefix(word, "NV") ||
        !g_ascii_string_to_unsigned(word + 2, 10, 1, G_MAXUINT8, &value, NULL))
        return FALSE;
    *nvlinks = (guint)value;
    return TRUE;
}

/* ---- the header: GPUs, network adapters, then columns about CPUs ---- */

typedef struct {
    guint gpus, nics;
    char **words; /* all columns */
} Header;

static void header_clear(Header *header)
{
    g_strfreev(header->words);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Header, header_clear)

/* Takes nothing; FALSE when the line is no header.  A row has a link after its label. */
static gboolean read_header(const char *line, Header *header)
{
    guint number, nvlinks;

    header->words = import_words(line);
    header->gpus = 0;
    header->nics = 0;
    if (g_strcmp0(header->words[0], "GPU0") != 0 ||
        (header->words[1] != NULL && is_link(header->words[1], &nvlinks)))
        return FALSE;
    while (gpu_number(header->words[header->gpus], &number) && number == header->gpus)
        header->gpus++;
    for (char **word = header->words + header->gpus; *word != NULL; word++) {
        if (g_str_equal(*word, "CPU") || g_str_equal(*word, "NUMA"))
            break;
        header->nics++;
    }
    return TRUE;
}

guint import_matrix_find(const ImportText *text, guint from)
{
    for (guint i = from; i < text->num_lines; i++) {
        g_auto(Header) header = {.gpus = 0};

        if (read_header(text->lines[i], &header))
            return i;
    }
    return text->num_lines;
}

static gboolean check_header(const ImportText *text, guint line, const Header *header,
                             GError **error)
{
    const char *next = header->words[header->gpus];
    const guint second = import_matrix_find(text, line + 1);
    guint number;

    if (gpu_number(next, &number))
        return import_refuse(text, line, error, "column %s follows GPU%u; allowed: GPUs in order",
                             next, header->gpus - 1);
    if (header->gpus > MAX_GPUS)
        return import_refuse(text, line, error, "%u GPUs; allowed: at most %d", header->gpus,
                             MAX_GPUS);
    for (guint i = 0; i < text->num_lines; i++) {
        if (strstr(text->lines[i], "topo -mp") != NULL)
            return import_refuse(text, i, error,
                                 "topo -mp hides NVLink; allowed: the output of topo -m");
    }
    if (second == text->num_lines)
        return TRUE;
    return import_refuse(text, second, error,
                         "a second matrix, after that of line %u; allowed: one node a file",
                         line + 1);
}

/* ---- rows ---- */

/* @words after the label must be one link a column and itself at @self, no more and no less: a
 * lost, doubled or fused cell moves all that follow it. */
static gboolean check_row(const ImportText *text, guint line, char **words, guint columns,
                          guint self, GError **error)
{
    guint count = 0, nvlinks;

    while (words[count + 1] != NULL && is_link(words[count + 1], &nvlinks))
        count++;
    g_autofree char *stop = import_shown(words[count + 1] != NULL ? words[count + 1] : "the end");

    if (count != columns)
        return import_refuse(text, line, error,
                             "row %s: %u links before \"%s\"; allowed: %u, one for each GPU and "
                             "network adapter of the header",
                             words[0], count, stop, columns);
    for (guint i = 0; i < columns; i++) {
        if (g_str_equal(words[i + 1], "X") != (i == self))
            return import_refuse(text, line, error,
                                 "row %s: \"%s\" in column %u; allowed: X in column %u only, for "
                                 "itself",
                                 words[0], words[i + 1], i, self);
    }
    return TRUE;
}

static void store_row(ImportNode *node, guint gpu, char **words)
{
    for (guint i = 0; i < node->gpus; i++) {
        const char *word = words[i + 1];

        is_link(word, &node->nvlinks[gpu * node->gpus + i]);
        node->shares_switch[gpu * node->gpus + i] =
            g_str_equal(word, "PIX") || g_str_equal(word, "PXB");
    }
}

static gboolean is_row(char **words)
{
    guint number, nvlinks;

    return gpu_number(words[0], &number) && words[1] != NULL && is_link(words[1], &nvlinks);
}

/* Rows of adapters are checked like those of GPUs, but may be left out. */
static gboolean read_line(const ImportText *text, guint line, const Header *header,
                          ImportNode *node, guint *next, GError **error)
{
    g_auto(GStrv) words = import_words(text->lines[line]);
    const guint columns = header->gpus + header->nics;
    guint number;

    for (guint i = 0; words[0] != NULL && words[1] != NULL && i < header->nics; i++) {
        guint nvlinks;

        if (g_str_equal(words[0], header->words[header->gpus + i]) && is_link(words[1], &nvlinks))
            return check_row(text, line, words, columns, header->gpus + i, error);
    }
    if (words[0] == NULL || !gpu_number(words[0], &number) || (words[1] != NULL && !is_row(words)))
        return TRUE; /* the legend, or other text around the matrix */
    if (*next == header->gpus || number != *next)
        return import_refuse(text, line, error,
                             "row %s; allowed: each of GPU0 to GPU%u once, in "
                             "order",
                             words[0], header->gpus - 1);
    if (!check_row(text, line, words, columns, number, error))
        return FALSE;
    store_row(node, number, words);
    (*next)++;
    return TRUE;
}

static gboolean check_symmetry(const ImportNode *node, const ImportText *text, GError **error)
{
    for (guint a = 0; a < node->gpus; a++) {
        for (guint b = 0; b < a; b++) {
            const guint there = a * node->gpus + b, back = b * node->gpus + a;

            if (node->nvlinks[there] != node->nvlinks[back] ||
                node->shares_switch[there] != node->shares_switch[back])
                return import_refuse(text, node->line, error,
                                     "GPU%u to GPU%u and GPU%u to GPU%u differ; allowed: an "
                                     "undamaged listing",
                                     b, a, a, b);
        }
    }
    return TRUE;
}

Topology *import_matrix(const ImportText *text, const char *gpu, const char *topologies_dir,
                        GError **error)
{
    const guint line = import_matrix_find(text, 0);
    g_auto(Header) header = {.gpus = 0};
    guint next = 0;

    g_assert(line < text->num_lines);
    read_header(text->lines[line], &header);
    if (!check_header(text, line, &header, error))
        return NULL;

    g_auto(ImportNode) node;
    import_node_init(&node, header.gpus);
    node.kind = "nvidia-smi topo -m";
    node.line = line;
    node.nics = header.nics;
    for (guint i = line + 1; i < text->num_lines; i++) {
        if (!read_line(text, i, &header, &node, &next, error))
            return NULL;
    }
    if (next < header.gpus) {
        import_refuse(text, line, error, "row GPU%u is missing; allowed: the whole matrix", next);
        return NULL;
    }
    if (!check_symmetry(&node, text, error))
        return NULL;
    if (gpu == NULL) {
        import_refuse(text, line, error,
                      "topo -m does not say which GPUs these are; give --gpu NAME");
        return NULL;
    }
    return import_node_topology(&node, text, gpu, topologies_dir, error);
}
