/* fsdp-plan model, topology, topology import: what was read, as it was understood. */
#include "sim/answer_json.h"
#include "sim/base/data_dirs.h"
#include "sim/base/error.h"
#include "sim/command_argument.h"
#include "sim/commands.h"
#include "sim/import/import.h"
#include "sim/input/model.h"
#include "sim/input/topology.h"

static void print_model_json(const Model *model)
{
    g_autoptr(JsonNode) node = answer_model(model);

    answer_print(node);
}

static void print_tensor(const ParamShape *tensor)
{
    g_print("  %-56s (", tensor->name);
    if (tensor->dims == 3)
        g_print("%" G_GUINT64_FORMAT ", ", tensor->stack);
    g_print("%" G_GUINT64_FORMAT, tensor->rows);
    if (tensor->dims >= 2)
        g_print(", %" G_GUINT64_FORMAT, tensor->cols);
    g_print(")\n");
}

static void print_model(const Model *model, const GArray *tensors)
{
    g_autofree char *unplannable = model_unplannable(model);
    g_autofree char *untrainable = model_untrainable(model);

    g_print("%s (%s): %" G_GUINT64_FORMAT " parameters in %u tensors%s\n", model->name,
            model->model_type, model_parameters(model), tensors->len,
            model->tied ? ", embedding and head tied" : "");
    g_print("%u layers, hidden %u, %u heads of %u, %u kv heads, ffn %u, vocabulary %u, up to %u "
            "tokens\n",
            model->layers, model->hidden, model->heads, model->head_dim, model->kv_heads,
            model->ffn, model->vocab, model->max_seq);
    if (model->experts.count > 0)
        g_print("%u experts, %u a token: %" G_GUINT64_FORMAT " active parameters\n",
                model->experts.count, model->experts.top_k, model_active_parameters(model));
    if (unplannable != NULL)
        g_print("counted only; not yet planned or trained: %s\n", unplannable);
    else if (untrainable != NULL)
        g_print("planned, not yet trained: %s\n", untrainable);
    for (guint i = 0; i < tensors->len; i++)
        print_tensor(&g_array_index(tensors, ParamShape, i));
}

int command_model(int argc, char **argv, GError **error)
{
    gboolean json = FALSE;
    const GOptionEntry entries[] = {
        {"json", 0, 0, G_OPTION_ARG_NONE, &json, "JSON on stdout", NULL},
        G_OPTION_ENTRY_NULL,
    };
    g_autofree char *where = command_argument("model", "NAME|FILE", entries, argc, argv, error);
    g_autofree char *models = data_dir("models");
    g_autoptr(Model) model = where == NULL ? NULL : model_load(where, models, error);

    if (model == NULL)
        return error_exit_status(*error);
    g_autoptr(GArray) tensors = model_tensors(model);
    if (json)
        print_model_json(model);
    else
        print_model(model, tensors);
    return 0;
}

static int print_topology(const Topology *topology, const GError *error)
{
    if (topology == NULL)
        return error_exit_status(error);
    g_autofree char *text = topology_print(topology);
    g_print("%s", text);
    return 0;
}

static int import_topology(int argc, char **argv, GError **error)
{
    g_autofree char *gpu = NULL, *base = NULL;
    const GOptionEntry entries[] = {
        {"gpu", 0, 0, G_OPTION_ARG_STRING, &gpu,
         "the GPU of the node of nvidia-smi topo -m, NCCL's XML", "NAME"},
        {"topology", 0, 0, G_OPTION_ARG_STRING, &base,
         "the nodes of a Slurm topology.conf; what nccl-tests ran on", "NAME|FILE"},
        G_OPTION_ENTRY_NULL,
    };
    g_autofree char *where =
        command_argument("topology import", "FILE", entries, argc, argv, error);
    g_autofree char *topologies = data_dir("topologies");
    const ImportOptions options = {.gpu = gpu, .topology = base};
    g_autoptr(Topology) topology =
        where == NULL ? NULL : import_load(where, &options, topologies, error);

    return print_topology(topology, *error);
}

int command_topology(int argc, char **argv, GError **error)
{
    if (argc > 1 && g_str_equal(argv[1], "import")) {
        argv[1] = argv[0];
        return import_topology(argc - 1, argv + 1, error);
    }
    g_autofree char *where = command_argument("topology", "NAME|FILE", NULL, argc, argv, error);
    g_autofree char *topologies = data_dir("topologies");
    g_autoptr(Topology) topology = where == NULL ? NULL : topology_load(where, topologies, error);

    return print_topology(topology, *error);
}
