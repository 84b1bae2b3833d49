#include "sim/import/import.h"

#include "sim/base/error.h"
#include "sim/base/text_file.h"
#include "sim/import/import_kinds.h"

#include <string.h>

typedef enum { KIND_NONE, KIND_MATRIX, KIND_XML, KIND_SLURM, KIND_NCCL_TESTS } Kind;

/* What was found, and where. */
typedef struct {
    Kind kind;
    guint line;
} Found;

static gboolean is_rocm(const char *line)
{
    return strstr(line, "ROCm System Management Interface") != NULL ||
           strstr(line, "Link Type between two GPUs") != NULL;
}

/* A log may hold a matrix and a table: what is given tells which is meant. */
static gboolean choose(const ImportText *text, const ImportOptions *options, guint matrix,
                       guint table, Found *found, GError **error)
{
    const gboolean both = matrix < text->num_lines && table < text->num_lines;

    if (both && (options->gpu == NULL) == (options->topology == NULL))
        return import_refuse(text, table, error,
                             "nccl-tests output beside the topo -m matrix of line %u; give --gpu "
                             "for the matrix or --topology for the table",
                             matrix + 1);
    if (matrix < text->num_lines && (!both || options->gpu != NULL))
        *found = (Found){KIND_MATRIX, matrix};
    else if (table < text->num_lines)
        *found = (Found){KIND_NCCL_TESTS, table};
    return TRUE;
}

static gboolean find_kind(const ImportText *text, const ImportOptions *options, Found *found,
                          GError **error)
{
    for (guint i = 0; i < text->num_lines; i++) {
        const char *start = text->lines[i] + strspn(text->lines[i], " \t");

        if (is_rocm(start))
            return import_refuse(text, i, error,
                                 "rocm-smi says neither how many links nor how fast; allowed: "
                                 "nvidia-smi topo -m; for AMD start from a shipped topology");
        if (found->kind == KIND_NONE && import_slurm_begins(start))
            *found = (Found){KIND_SLURM, i};
    }
    for (guint i = 0; i < text->num_lines; i++) {
        const char *start = text->lines[i] + strspn(text->lines[i], " \t");

        if (*start == '\0')
            continue;
        if (*start == '<')
            *found = (Found){KIND_XML, i};
        break;
    }
    if (found->kind != KIND_NONE)
        return TRUE;
    return choose(text, options, import_matrix_find(text, 0), import_nccl_tests_find(text, 0),
                  found, error);
}

static gboolean check_options(const ImportText *text, const ImportOptions *options,
                              const Found *found, GError **error)
{
    const gboolean of_node = found->kind == KIND_MATRIX || found->kind == KIND_XML;

    if (found->kind == KIND_NONE)
        return import_refuse(text, 0, error,
                             "none of what can be imported; allowed: the output of nvidia-smi topo "
                             "-m, an NCCL topology XML, a Slurm topology.conf, the output of "
                             "nccl-tests");
    if (of_node && options->topology != NULL)
        return import_refuse(text, found->line, error,
                             "the GPUs of one node; allowed: --gpu NAME in place of --topology");
    if (!of_node && options->gpu != NULL)
        return import_refuse(
            text, found->line, error, "%s; allowed: --topology NAME|FILE in place of --gpu",
            found->kind == KIND_SLURM ? "Slurm's nodes and switches" : "times of nccl-tests");
    if (of_node || options->topology != NULL)
        return TRUE;
    return import_refuse(text, found->line, error, "%s; give --topology NAME|FILE",
                         found->kind == KIND_SLURM
                             ? "Slurm does not say what its nodes are"
                             : "nccl-tests does not say what cluster it ran on");
}

static Topology *extend_base(const ImportText *text, const ImportOptions *options, Kind kind,
                             const char *topologies_dir, GError **error)
{
    g_autoptr(Topology) base = topology_load(options->topology, topologies_dir, error);

    if (base == NULL)
        return NULL;
    if (kind == KIND_SLURM ? !import_slurm(text, base, error)
                           : !import_nccl_tests(text, base, topologies_dir, error))
        return NULL;
    return g_steal_pointer(&base);
}

Topology *import_parse(const char *text, const char *source, const ImportOptions *options,
                       const char *topologies_dir, GError **error)
{
    g_autoptr(ImportText) lines = import_text_new(text, source);
    Found found = {.kind = KIND_NONE};

    if (!find_kind(lines, options, &found, error) || !check_options(lines, options, &found, error))
        return NULL;
    switch (found.kind) {
    case KIND_MATRIX:
        return import_matrix(lines, options->gpu, topologies_dir, error);
    case KIND_XML:
        return import_xml(text, lines, options->gpu, topologies_dir, error);
    default:
        return extend_base(lines, options, found.kind, topologies_dir, error);
    }
}

Topology *import_load(const char *path, const ImportOptions *options, const char *topologies_dir,
                      GError **error)
{
    g_autofree char *text = text_file_read(path, error);

    return text != NULL ? import_parse(text, path, options, topologies_dir, error) : NULL;
}
