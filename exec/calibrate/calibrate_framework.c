#include "exec/calibrate/calibrate_framework.h"

#include "reports/store/store.h"
#include "sim/base/error.h"
#include "sim/search/plan.h"

#include <glib/gstdio.h>
#include <string.h>

/* Large enough for its products to fill the BLAS's packing buffers, small enough to take a second.
 */
enum { HIDDEN = 512, TINY_HIDDEN = 64, HEAD_DIM = 64, TOKENS = 256, TINY_TOKENS = 16 };

static Model *make_model(gboolean tiny, GError **error)
{
    const guint hidden = tiny ? TINY_HIDDEN : HIDDEN;
    g_autofree char *config = g_strdup_printf(
        "{\"model_type\": \"llama\", \"hidden_size\": %u, \"intermediate_size\": %u, "
        "\"num_hidden_layers\": 2, \"num_attention_heads\": %u, \"num_key_value_heads\": %u, "
        "\"vocab_size\": 256, \"max_position_embeddings\": 256}",
        hidden, 11 * hidden / 4, hidden / HEAD_DIM, hidden / HEAD_DIM);

    return model_parse(config, "calibration", "calibration", error);
}

static Plan *make_plan(const Topology *topology, gboolean tiny, guint ranks, GError **error)
{
    g_autoptr(Plan) plan = plan_new();
    g_autofree char *text = topology_print(topology);

    plan->model = make_model(tiny, error);
    plan->topology = plan->model == NULL ? NULL : topology_parse(text, "calibration", "", error);
    if (plan->topology == NULL)
        return NULL;
    plan->gpus = plan->ranks_per_node = plan->layout.size[AXIS_DP_SHARD] = ranks;
    plan->device = topology->gpu.kind;
    plan->threads = plan->device == DEVICE_CUDA ? 1 : MAX(1, topology->gpus_per_node / ranks);
    plan->workload = (Workload){.global_batch = 2 * ranks,
                                .seq_len = tiny ? TINY_TOKENS : TOKENS,
                                .recipe = &recipe_fp32,
                                .optimizer = OPTIMIZER_ADAMW};
    plan->sharding = sharding_default;
    plan->schedule = (Schedule){.micro_batch = 2, .micro_batches = 1};
    const ProgramSpec spec = plan_spec(plan);
    g_autoptr(ProgramSet) set = program_compile(&spec);
    plan->hash = program_set_hash(set);
    g_array_set_size(plan->stages, plan->layout.size[AXIS_PP]); /* not priced: times are 0 */
    return g_steal_pointer(&plan);
}

static gboolean write_text(const char *path, GError **error)
{
    g_autoptr(GString) text = g_string_new(NULL);
    g_autoptr(GError) why = NULL;

    for (guint i = 0; i < 2000; i++)
        g_string_append_printf(text, "line %u of a text to calibrate with\n", i);
    if (!g_file_set_contents(path, text->str, (gssize)text->len, &why))
        return fail(error, ERROR_RUNTIME, "%s", why->message);
    return TRUE;
}

static gboolean run(const char *plan, const char *text, const char *store, GError **error)
{
    const char *const command[] = {"/proc/self/exe", plan,  "--data",      text, "--steps", "4",
                                   "--db",           store, "--log-every", "0",  NULL};
    g_autofree char *program = g_file_read_link("/proc/self/exe", NULL);
    g_autofree char **argv = g_memdup2(command, sizeof command);
    g_autofree char *said = NULL;
    g_autoptr(GError) why = NULL;
    gint status = 0;

    argv[0] = program; /* the child's /proc/self/exe would be itself anyhow, but is not inherited */
    if (!g_spawn_sync(NULL, argv, NULL, G_SPAWN_STDOUT_TO_DEV_NULL, NULL, NULL, NULL, &said,
                      &status, &why) ||
        !g_spawn_check_wait_status(status, &why))
        return fail(error, ERROR_RUNTIME, "training to calibrate memory: %s %s", why->message,
                    said == NULL ? "" : said);
    return TRUE;
}

static gboolean read_framework(const char *path, guint64 *bytes, GError **error)
{
    g_autoptr(Store) store = store_open(path, TRUE, error);
    g_autoptr(GArray) runs = store == NULL ? NULL : store_runs(store, error);

    if (runs == NULL || runs->len == 0)
        return runs != NULL && fail(error, ERROR_RUNTIME, "%s: no run was recorded", path);
    g_autoptr(GArray) terms =
        store_terms(store, g_array_index(runs, StoreRun, runs->len - 1).id, error);
    for (guint i = 0; terms != NULL && i < terms->len; i++) {
        const StoreTerm *term = &g_array_index(terms, StoreTerm, i);

        if (strcmp(term->term, "memory_bytes.framework") == 0)
            *bytes = MAX(*bytes, (guint64)term->measured);
    }
    return terms != NULL;
}

static void remove_folder(const char *folder)
{
    g_autoptr(GDir) files = g_dir_open(folder, 0, NULL);
    const char *name;

    while (files != NULL && (name = g_dir_read_name(files)) != NULL) {
        g_autofree char *path = g_build_filename(folder, name, NULL);

        g_unlink(path);
    }
    g_rmdir(folder);
}

typedef struct {
    const Topology *topology;
    const char *folder;
    gboolean tiny;
} Means;

static gboolean measure(const Means *means, guint ranks, guint64 *bytes, GError **error)
{
    g_autofree char *plan_path = g_build_filename(means->folder, "plan", NULL);
    g_autofree char *text_path = g_build_filename(means->folder, "text", NULL);
    g_autofree char *store_path = g_strdup_printf("%s/store%u", means->folder, ranks);
    g_autoptr(Plan) plan = make_plan(means->topology, means->tiny, ranks, error);

    return plan != NULL && plan_save(plan, plan_path, error) && write_text(text_path, error) &&
           run(plan_path, text_path, store_path, error) && read_framework(store_path, bytes, error);
}

gboolean calibrate_framework(Topology *topology, guint most_ranks, gboolean tiny, GError **error)
{
    g_autoptr(GError) why = NULL;
    g_autofree char *folder = g_dir_make_tmp("fsdp-calibrate-XXXXXX", &why);
    Measured *measured = &topology->measured;

    if (folder == NULL)
        return fail(error, ERROR_RUNTIME, "%s", why->message);
    const Means means = {topology, folder, tiny};
    const gboolean ok = measure(&means, 1, &measured->framework_alone_bytes, error) &&
                        (most_ranks < 2 || measure(&means, 2, &measured->framework_bytes, error));
    remove_folder(folder);
    return ok;
}
