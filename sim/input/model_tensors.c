/* From a family's description: the tensors of a model, and how many parameters they make. */
#include "sim/input/model_family.h"

#include <string.h>

static guint64 model_dim(const Model *model, Dim dim)
{
    const guint64 heads = model->heads, query = heads * model->head_dim;
    const guint64 kv = (guint64)model->kv_heads * model->head_dim;
    const Experts *experts = &model->experts;
    const LatentAttention *latent = &model->latent;
    const Mamba *mamba = &model->mamba;
    const guint64 inner = (guint64)mamba->heads * mamba->head_dim;
    const guint64 conv = inner + 2 * (guint64)mamba->groups * mamba->state;

    switch (dim) {
    case DIM_NONE:
    case DIM_ONE:
        return 1;
    case DIM_VOCAB:
        return model->vocab;
    case DIM_POSITIONS:
        return model->position_rows;
    case DIM_EMBEDDING:
        return model->embedding;
    case DIM_HIDDEN:
        return model->hidden;
    case DIM_HEADS:
        return heads;
    case DIM_KV_HEADS:
        return model->kv_heads;
    case DIM_HEAD:
        return model->head_dim;
    case DIM_QUERY:
        return query;
    case DIM_KV:
        return kv;
    case DIM_QKV:
        return query + 2 * kv;
    case DIM_FFN:
        return model->ffn;
    case DIM_GATE_UP:
        return 2 * (guint64)model->ffn;
    case DIM_EXPERTS:
        return experts->count;
    case DIM_EXPERT_FFN:
        return experts->ffn;
    case DIM_EXPERT_GATE_UP:
        return 2 * (guint64)experts->ffn;
    case DIM_SHARED_FFN:
        return experts->shared_ffn;
    case DIM_Q_RANK:
        return latent->q_rank;
    case DIM_KV_RANK:
        return latent->kv_rank;
    case DIM_KV_RANK_ROPE:
        return latent->kv_rank + latent->rope_dim;
    case DIM_LATENT_QUERY:
        return heads * (latent->plain_dim + latent->rope_dim);
    case DIM_LATENT_KEY_VALUE:
        return heads * (latent->plain_dim + latent->value_dim);
    case DIM_LATENT_VALUE:
        return heads * latent->value_dim;
    case DIM_INDEX_HEADS:
        return latent->index_heads;
    case DIM_INDEX_HEAD:
        return latent->index_dim;
    case DIM_INDEX_QUERY:
        return (guint64)latent->index_heads * latent->index_dim;
    case DIM_MAMBA_HEADS:
        return mamba->heads;
    case DIM_MAMBA_INNER:
        return inner;
    case DIM_MAMBA_CONV:
        return conv;
    case DIM_MAMBA_IN:
        return inner + conv + mamba->heads;
    case DIM_MAMBA_KERNEL:
        return mamba->kernel;
    }
    g_assert_not_reached();
}

static gboolean has_experts(const Experts *experts, guint block)
{
    return experts->count != 0 && block >= experts->first &&
           (block - experts->first) % experts->every == 0;
}

guint model_num_kinds(const Model *model)
{
    return model->num_kinds > 0 ? model->num_kinds : model->experts.count > 0 ? 2 : 1;
}

guint model_block_kind(const Model *model, guint block)
{
    if (model->kind_of != NULL)
        return model->kind_of[block];
    return model->num_kinds == 0 && has_experts(&model->experts, block) ? 1 : 0;
}

gboolean model_is_sparse(const Model *model, guint block)
{
    return model_kind_is_sparse(model, model_block_kind(model, block));
}

guint model_num_sparse(const Model *model)
{
    const Experts *experts = &model->experts;

    if (model->kind_of == NULL)
        return experts->count == 0 || experts->first >= model->layers
                   ? 0
                   : (model->layers - 1 - experts->first) / experts->every + 1;
    guint sparse = 0;
    for (guint i = 0; i < model->layers; i++)
        sparse += model_is_sparse(model, i) ? 1 : 0;
    return sparse;
}

gboolean model_has_kind(const Model *model, guint kind)
{
    const guint sparse = model_num_sparse(model);

    if (model->num_kinds > 0) /* only those of some block are listed */
        return kind < model->num_kinds;
    return model_kind_is_sparse(model, kind) ? sparse > 0 : kind == 0 && sparse < model->layers;
}

Model model_of_kind(const Model *model, guint kind)
{
    Model local = *model;

    local.kind_of = NULL;
    if (model->num_kinds == 0) {
        local.experts.first = model_kind_is_sparse(model, kind) ? 0 : G_MAXUINT;
        local.experts.every = 1;
        return local;
    }
    local.num_kinds = 1;
    local.kinds = model->kinds + kind;
    local.ffn = local.kinds->ffn;
    if (local.kinds->attention)
        local.kv_heads = local.kinds->kv_heads;
    return local;
}

gboolean model_has_attention(const Model *model)
{
    return model->num_kinds == 0 || model->kinds->attention;
}

gboolean model_has_mlp(const Model *model)
{
    return model->num_kinds == 0 || model->kinds->mlp;
}

static gboolean is_present(const Model *model, const Module *module)
{
    return (model->features & module->when) == module->when &&
           (model->features & module->unless) == 0;
}

static gboolean is_in_kind(const Model *model, const Module *module, gboolean experts)
{
    return is_present(model, module) &&
           (module->where == IN_ALL_BLOCKS || (module->where == IN_EXPERT_BLOCKS) == experts);
}

static gboolean has_part(const BlockParts *parts, Where where)
{
    switch (where) {
    case IN_ATTENTION_BLOCKS:
        return parts->attention;
    case IN_MLP_BLOCKS:
        return parts->mlp;
    case IN_MAMBA_BLOCKS:
        return parts->mamba;
    default:
        return TRUE;
    }
}

static gboolean is_in_block(const Model *model, const Module *module, guint block)
{
    const guint kind = model_block_kind(model, block);

    return model->num_kinds > 0
               ? is_present(model, module) && has_part(&model->kinds[kind], module->where)
               : is_in_kind(model, module, model_kind_is_sparse(model, kind));
}

/* With the sizes of that block. */
static Model block_model(const Model *model, guint block)
{
    return model_of_kind(model, model_block_kind(model, block));
}

static guint64 module_copies(const Model *model, const Module *module)
{
    return module->times == ONE            ? 1
           : module->times == EACH_CHANNEL ? model_dim(model, DIM_MAMBA_CONV)
                                           : model->experts.count;
}

static gboolean has_bias(const Model *model, const Module *module)
{
    return (model->features & module->bias) != 0;
}

/* ---- counting ---- */

/* Each in a double, so that absurd sizes are seen before they overflow; all that is accepted is far
 * below 2^53. */
typedef struct {
    double all, active, matrix; /* matrix: of active ones, those that a product multiplies by */
} Count;

static gboolean is_looked_up(guint role)
{
    return role == PARAM_EMBEDDING || role == PARAM_POSITIONS;
}

/* Those that are a matrix. */
static gboolean is_norm(guint role)
{
    return role == PARAM_Q_NORM || role == PARAM_K_NORM;
}

static void count_module(const Model *model, const Module *module, double blocks, Count *count)
{
    const gboolean chosen = module->times != ONE && module->times != EACH_CHANNEL;
    const double copies = (double)module_copies(model, module);
    const double used = chosen ? model->experts.top_k : copies;
    const double rows = (double)model_dim(model, module->rows) * blocks;
    const double weights = rows * (double)model_dim(model, module->cols);
    const double elements = weights + (has_bias(model, module) ? rows : 0);

    count->all += elements * copies;
    count->active += elements * used;
    if (module->cols != DIM_NONE && !is_looked_up(module->role) && !is_norm(module->role))
        count->matrix += weights * used;
}

static void count_root(const Model *model, const Module *list, Count *count)
{
    for (; list->name != NULL; list++)
        if (is_present(model, list))
            count_module(model, list, 1, count);
}

static guint blocks_with(const Model *model, const Module *module)
{
    const guint with_experts = model_num_sparse(model);

    return module->where == IN_ALL_BLOCKS      ? model->layers
           : module->where == IN_EXPERT_BLOCKS ? with_experts
                                               : model->layers - with_experts;
}

/* Where blocks differ, one after the other. */
static void count_in_blocks(const Model *model, const Module *module, Count *count)
{
    if (model->num_kinds == 0) {
        count_module(model, module, blocks_with(model, module), count);
        return;
    }
    for (guint block = 0; block < model->layers; block++) {
        const Model local = block_model(model, block);

        if (is_in_block(model, module, block))
            count_module(&local, module, 1, count);
    }
}

static Count count_parameters(const Model *model)
{
    const ModelFamily *family = model->family;
    Count count = {0};

    count_root(model, family->before, &count);
    count_root(model, family->after, &count);
    for (guint i = 0; i < MAX_LISTS && family->block[i] != NULL; i++)
        for (const Module *module = family->block[i]; module->name != NULL; module++)
            if (is_present(model, module))
                count_in_blocks(model, module, &count);
    if (model->tied) /* the embedding multiplies too, as the head */
        count.matrix += (double)model->vocab * model->embedding;
    return count;
}

double model_parameters_bound(const Model *model)
{
    return count_parameters(model).all;
}

guint64 model_parameters(const Model *model)
{
    return (guint64)count_parameters(model).all;
}

guint64 model_active_parameters(const Model *model)
{
    return (guint64)count_parameters(model).active;
}

double model_matrix_parameters(const Model *model)
{
    return count_parameters(model).matrix;
}

/* ---- listing ---- */

static void clear_shape(gpointer shape)
{
    g_free(((ParamShape *)shape)->name);
}

static GArray *shapes_new(void)
{
    GArray *shapes = g_array_new(FALSE, FALSE, sizeof(ParamShape));

    g_array_set_clear_func(shapes, clear_shape);
    return shapes;
}

/* The tensor of one module's weight (or bias) as in the file, without a name. */
static ParamShape file_shape(const Model *model, const Module *module, gboolean bias)
{
    const gboolean vector = bias || module->cols == DIM_NONE;
    ParamShape shape = {
        .rows = model_dim(model, module->rows),
        .cols = vector ? 1 : model_dim(model, module->cols),
        .dims = vector ? 1 : 2,
        .role = PARAM_OTHER,
        .stack = 1,
    };

    if (module->transposed && !vector) {
        const guint64 rows = shape.rows;

        shape.rows = shape.cols;
        shape.cols = rows;
    }
    if (module->times == JOINED_EXPERTS)
        shape.rows *= model->experts.count;
    if (module->times == STACKED_EXPERTS && vector) {
        shape.cols = shape.rows;
        shape.rows = model->experts.count;
        shape.dims = 2;
    } else if (module->times == STACKED_EXPERTS || module->times == EACH_CHANNEL) {
        shape.stack = module_copies(model, module);
        shape.dims = 3;
    }
    return shape;
}

/* One module's weight and bias, of one expert where it has many. */
static void add_module(GArray *tensors, const Model *model, const Module *module,
                       const char *prefix, const char *name)
{
    static const char *const suffixes[] = {".weight", ".bias"};

    for (guint bias = 0; bias < (has_bias(model, module) ? 2 : 1); bias++) {
        ParamShape shape = file_shape(model, module, bias != 0);

        shape.name = g_strconcat(prefix, name, module->exact ? "" : suffixes[bias], NULL);
        g_array_append_val(tensors, shape);
    }
}

/* "mlp.experts.%u.up_proj" -> that of one expert. */
static char *expert_name(const char *name, guint expert)
{
    g_auto(GStrv) parts = g_strsplit(name, "%u", 2);

    return g_strdup_printf("%s%u%s", parts[0], expert, parts[1]);
}

static void add_block(GArray *tensors, const Model *model, guint layer)
{
    const ModelFamily *family = model->family;
    const Model local = block_model(model, layer);
    g_autofree char *prefix = g_strdup_printf("%s%u.", family->block_prefix, layer);

    for (guint i = 0; i < MAX_LISTS && family->block[i] != NULL; i++)
        for (const Module *module = family->block[i]; module->name != NULL; module++) {
            if (!is_in_block(model, module, layer))
                continue;
            if (module->times != EACH_EXPERT) {
                add_module(tensors, &local, module, prefix, module->name);
                continue;
            }
            for (guint e = 0; e < model->experts.count; e++) {
                g_autofree char *name = expert_name(module->name, e);

                add_module(tensors, model, module, prefix, name);
            }
        }
}

static void add_root(GArray *tensors, const Model *model, const Module *list)
{
    for (; list->name != NULL; list++)
        if (is_present(model, list))
            add_module(tensors, model, list, "", list->name);
}

GArray *model_tensors(const Model *model)
{
    GArray *tensors = shapes_new();

    add_root(tensors, model, model->family->before);
    for (guint layer = 0; layer < model->layers; layer++)
        add_block(tensors, model, layer);
    add_root(tensors, model, model->family->after);
    return tensors;
}

/* ---- units ---- */

/* What a fused matrix is split into: siblings with the names that Llama has for them. */
typedef struct {
    guint fused;
    ParamRole role;
    const char *name;
    Dim rows;
} Part;

static const Part parts[] = {
    {PARAM_QKV, PARAM_Q, "q_proj", DIM_QUERY},
    {PARAM_QKV, PARAM_K, "k_proj", DIM_KV},
    {PARAM_QKV, PARAM_V, "v_proj", DIM_KV},
    {PARAM_GATE_UP, PARAM_GATE, "gate_proj", DIM_FFN},
    {PARAM_GATE_UP, PARAM_UP, "up_proj", DIM_FFN},
    {PARAM_EXPERT_GATE_UP, PARAM_EXPERT_GATE, "gate_proj", DIM_EXPERT_FFN},
    {PARAM_EXPERT_GATE_UP, PARAM_EXPERT_UP, "up_proj", DIM_EXPERT_FFN},
    {PARAM_EXPERT_GATE_UP_BIAS, PARAM_EXPERT_GATE_BIAS, "gate_proj_bias", DIM_EXPERT_FFN},
    {PARAM_EXPERT_GATE_UP_BIAS, PARAM_EXPERT_UP_BIAS, "up_proj_bias", DIM_EXPERT_FFN},
};

/* Experts that are held are one matrix: without their numbers. */
static char *part_name(const Module *module, const Part *part)
{
    const char *last = strrchr(module->name, '.'), *number = strstr(module->name, "%u.");

    if (number != NULL)
        return g_strdup_printf("%.*s%s", (int)(number - module->name), module->name,
                               number + strlen("%u."));

    return last == NULL || part->name == NULL
               ? g_strdup(module->name)
               : g_strdup_printf("%.*s.%s", (int)(last - module->name), module->name, part->name);
}

static void add_param(GArray *params, const Model *model, const Module *module, const Part *part)
{
    const gboolean vector = module->cols == DIM_NONE;
    const guint64 copies = module->times == ONE ? 1 : model->experts.held;
    g_autofree char *name = part_name(module, part);
    ParamShape shape = {
        .name = g_strconcat(name, module->exact ? "" : ".weight", NULL),
        .rows = model_dim(model, part->rows) * copies,
        .cols = vector ? 1 : model_dim(model, module->cols),
        .dims = vector ? 1 : 2,
        .role = part->role,
        .stack = 1,
    };

    g_array_append_val(params, shape);
    if (!has_bias(model, module))
        return;
    shape.name = g_strconcat(name, ".bias", NULL);
    shape.cols = shape.dims = 1;
    shape.role = MIN(part->role + 1, PARAM_OTHER);
    g_array_append_val(params, shape);
}

static gboolean is_in_unit(const Model *model, const Module *module, UnitKind unit)
{
    if (unit == UNIT_ROOT)
        return is_present(model, module);
    if (model->num_kinds > 0)
        return unit == UNIT_BLOCK && is_in_block(model, module, 0);
    return is_in_kind(model, module, unit != UNIT_BLOCK) &&
           (module->times != ONE) == (unit == UNIT_EXPERTS);
}

static void add_params(GArray *params, const Model *model, const Module *list, UnitKind unit)
{
    for (; list->name != NULL; list++) {
        const Part whole = {list->role, (ParamRole)list->role, NULL, list->rows};

        if (!is_in_unit(model, list, unit))
            continue;
        if (list->role < NUM_PARAM_ROLES)
            add_param(params, model, list, &whole);
        for (guint i = 0; i < G_N_ELEMENTS(parts); i++)
            if (parts[i].fused == list->role)
                add_param(params, model, list, &parts[i]);
    }
}

static gint compare_roles(gconstpointer a, gconstpointer b)
{
    return (gint)((const ParamShape *)a)->role - (gint)((const ParamShape *)b)->role;
}

GArray *model_unit_params(const Model *model, UnitKind unit)
{
    const ModelFamily *family = model->family;
    GArray *params = shapes_new();

    g_assert(unit == UNIT_ROOT || model->num_kinds <= 1);
    if (unit == UNIT_ROOT) {
        add_params(params, model, family->before, unit);
        add_params(params, model, family->after, unit);
    }
    for (guint i = 0; unit != UNIT_ROOT && i < MAX_LISTS && family->block[i] != NULL; i++)
        add_params(params, model, family->block[i], unit);
    g_array_sort(params, compare_roles);
    return params;
}

guint64 model_unit_elements(const Model *model, UnitKind unit)
{
    g_autoptr(GArray) params = model_unit_params(model, unit);
    guint64 elements = 0;

    for (guint i = 0; i < params->len; i++) {
        const ParamShape *param = &g_array_index(params, ParamShape, i);

        elements += param->rows * param->cols;
    }
    return elements;
}

gint model_param_index(const Model *model, UnitKind unit, ParamRole role)
{
    g_autoptr(GArray) params = model_unit_params(model, unit);

    for (guint i = 0; i < params->len; i++)
        if (g_array_index(params, ParamShape, i).role == role)
            return (gint)i;
    return -1;
}

const char *model_block_prefix(const Model *model)
{
    return model->family->block_prefix;
}
