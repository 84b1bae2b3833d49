#include "sim/plan_config.h"

#include "sim/base/error.h"

#include <string.h>

/* ---- the mesh ---- */

static guint known_product(const guint *axis)
{
    guint product = 1;

    for (guint a = 0; a < NUM_AXES; a++)
        product *= MAX(axis[a], 1);
    return product;
}

static gboolean any_open(const guint *axis)
{
    for (guint a = 0; a < NUM_AXES; a++)
        if (axis[a] == 0)
            return TRUE;
    return FALSE;
}

/* What was asked for, else what the file says, else what its mesh makes, else the cluster. */
static guint world_of(const Config *config, const SearchRequest *request)
{
    if (request->gpus != 0)
        return request->gpus;
    if (config->gpus != 0)
        return config->gpus;
    return any_open(config->axis) ? search_gpus(request) : known_product(config->axis);
}

/* @axis becomes the file's, the open one what is left of @gpus: replicas where nothing is sharded
 * (or, of hybrid_shard, one a node), else shards. */
static gboolean find_mesh(const Config *config, const char *source, guint gpus,
                          const Topology *topology, guint *axis, GError **error)
{
    memcpy(axis, config->axis, sizeof config->axis);
    if (axis[AXIS_DP_REPLICATE] == 0 && axis[AXIS_DP_SHARD] == 0)
        axis[AXIS_DP_REPLICATE] = MAX(1, gpus / topology->gpus_per_node);
    const guint product = known_product(axis);
    const guint open = axis[AXIS_DP_SHARD] == 0       ? AXIS_DP_SHARD
                       : axis[AXIS_DP_REPLICATE] == 0 ? AXIS_DP_REPLICATE
                                                      : NUM_AXES;
    if (open == NUM_AXES ? gpus != product : gpus % product != 0)
        return fail(error, ERROR_INPUT, "%s: its axes make %s%u ranks, --gpus is %u", source,
                    open == NUM_AXES ? "" : "multiples of ", product, gpus);
    if (open != NUM_AXES)
        axis[open] = gpus / product;
    return TRUE;
}

/* ---- requests ---- */

/* micro-batch x micro-batches x data ranks where it says no more; 0: not even that. */
static guint batch_of(const Config *config, const guint *axis)
{
    if (config->global_batch != 0)
        return config->global_batch;
    return config->micro_batch * config->micro_batches * axis[AXIS_DP_REPLICATE] *
           axis[AXIS_DP_SHARD];
}

static void fill(guint *field, guint value)
{
    if (*field == 0)
        *field = value;
}

static void fill_choice(gint *field, gint value)
{
    if (*field < 0)
        *field = value;
}

gboolean plan_config_workload(const Config *config, const char *source, gboolean recipe_is_open,
                              SearchRequest *request, GError **error)
{
    guint axis[NUM_AXES];

    request->gpus = world_of(config, request);
    if (!find_mesh(config, source, request->gpus, request->topology, axis, error))
        return FALSE;
    fill(&request->global_batch, batch_of(config, axis));
    fill(&request->seq_len, config->seq_len);
    if (recipe_is_open && config->recipe != NULL)
        request->recipe = config->recipe;
    return TRUE;
}

/* What was typed comes first. */
static gboolean fill_offload(const Config *config, const char *source, SearchRequest *request,
                             GError **error)
{
    const Tier tiers[] = {config->offload.optimizer, config->offload.parameters};
    MemoryTier memory;

    if (sharding_offloads(&request->sharding))
        return TRUE;
    for (guint i = 0; i < G_N_ELEMENTS(tiers); i++)
        if (tiers[i] != TIER_DEVICE && !topology_memory(request->topology, tiers[i], &memory))
            return fail(error, ERROR_INPUT,
                        "%s: it keeps state in %s memory, of which topology %s states no size and "
                        "bandwidth",
                        source, tier_name(tiers[i]), request->topology->name);
    request->sharding.offload = config->offload;
    return TRUE;
}

gboolean plan_config_layout(const Config *config, const char *source, SearchRequest *request,
                            GError **error)
{
    guint axis[NUM_AXES];

    if (!find_mesh(config, source, request->gpus, request->topology, axis, error))
        return FALSE;
    for (guint a = 0; a < NUM_AXES; a++)
        fill(&request->fixed[a], axis[a]);
    fill(&request->fixed_ep, config->ep);
    fill(&request->micro_batch, config->micro_batch);
    fill(&request->virtual_stages, config->virtual_stages);
    fill_choice(&request->strategy, config->strategy);
    if (request->recompute < 0 && config->recompute_layers > 0) {
        request->num_recompute = 1;
        request->recompute_layers[0] = (guint16)MIN(config->recompute_layers, G_MAXUINT16);
    }
    fill_choice(&request->recompute, config->recompute);
    fill_choice(&request->schedule, config->schedule);
    fill_choice(&request->context, config->context);
    if (request->num_chunks == 0 && config->num_chunks > 0) {
        request->num_chunks = config->num_chunks;
        memcpy(request->chunk_layers, config->chunk_layers, sizeof request->chunk_layers);
    }
    if (config->sequence_parallel >= 0)
        request->sequence_parallel = config->sequence_parallel;
    if (config->keep == 0)
        request->sharding.keep_root = request->sharding.keep_last = FALSE;
    request->sharding.gather_fp8 |= config->gather_fp8;
    return fill_offload(config, source, request, error);
}
