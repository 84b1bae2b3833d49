#include "sim/program/compile.h"

#include "sim/layout/tensor_parallel.h"
#include "sim/program/builder.h"
#include "sim/program/pattern.h"
#include "sim/program/place.h"

#include <string.h>

/* Which axes the members of a group differ in.  "kv" differs in tp, but only within ranks that hold
 * the same keys and values; "embedding" in pp, but only the first and the last stage; "ep" and the
 * expert ones in dp_shard, cp and tp together (layout.h). */
static const struct {
    const char *purpose;
    guint axes;
} purposes[] = {
    {"shard", 1u << AXIS_DP_SHARD | 1u << AXIS_CP},
    {"replicate", 1u << AXIS_DP_REPLICATE},
    {"data", 1u << AXIS_DP_REPLICATE | 1u << AXIS_DP_SHARD | 1u << AXIS_CP},
    {"cp", 1u << AXIS_CP},
    {"tp", 1u << AXIS_TP},
    {"kv", 1u << AXIS_TP},
    {"pp", 1u << AXIS_PP},
    {"embedding", 1u << AXIS_PP},
    {"model", 1u << AXIS_PP | 1u << AXIS_TP},
    {"loss", 1u << AXIS_PP | 1u << AXIS_DP_REPLICATE | 1u << AXIS_DP_SHARD | 1u << AXIS_CP},
    {"ep", 1u << AXIS_DP_SHARD | 1u << AXIS_CP | 1u << AXIS_TP},
    {"expert_shard", 1u << AXIS_DP_SHARD | 1u << AXIS_CP | 1u << AXIS_TP},
    {"expert_data", 1u << AXIS_DP_REPLICATE | 1u << AXIS_DP_SHARD | 1u << AXIS_CP | 1u << AXIS_TP},
    {"norm", 1u << AXIS_PP | 1u << AXIS_DP_SHARD | 1u << AXIS_CP | 1u << AXIS_TP},
};

static guint purpose_axes(const char *purpose)
{
    for (guint i = 0; i < G_N_ELEMENTS(purposes); i++)
        if (strcmp(purposes[i].purpose, purpose) == 0)
            return purposes[i].axes;
    g_assert_not_reached();
}

/* Blocks are alike in that: legality_check(). */
gboolean program_has_scales(const ProgramSpec *spec)
{
    return spec->sharding->gather_fp8 && spec->workload->recipe->precision != DTYPE_FP8 &&
           spec->sharding->strategy > STRATEGY_SHARD_OPTIMIZER;
}

guint64 program_scales(const ProgramSpec *spec)
{
    const guint64 layers = spec->model->layers;
    const guint64 units = 1 + layers + (spec->model->experts.count > 0 ? layers : 0);

    return program_has_scales(spec) ? units * NUM_PARAM_ROLES : 0;
}

DType program_gradient_dtype(const ProgramSpec *spec)
{
    return sharding_unit_reduces_each(spec->sharding, ROOT_UNIT) ? spec->workload->recipe->reduce
                                                                 : spec->workload->recipe->gradient;
}

static guint kv_copies(const ProgramSpec *spec)
{
    return tensor_parallel_kv_copies(spec->model, spec->layout.size[AXIS_TP]);
}

static gboolean is_expert_purpose(const char *purpose)
{
    return g_str_has_prefix(purpose, "expert_");
}

guint purpose_size(const ProgramSpec *spec, const char *purpose)
{
    const guint axes = purpose_axes(purpose);
    guint size = 1;

    if (strcmp(purpose, "kv") == 0)
        return kv_copies(spec);
    if (strcmp(purpose, "embedding") == 0)
        return 2;
    if (strcmp(purpose, "ep") == 0)
        return layout_ep(&spec->layout);
    for (guint a = 0; a < NUM_AXES; a++)
        if ((axes & (1u << a)) != 0)
            size *= spec->layout.size[a];
    return is_expert_purpose(purpose) ? size / layout_ep(&spec->layout) : size;
}

/* From the innermost axis out to the outermost one that varies. */
guint purpose_span(const ProgramSpec *spec, const char *purpose)
{
    const guint axes = purpose_axes(purpose), pp = spec->layout.size[AXIS_PP];
    guint outermost = 0, span = 1;

    if (strcmp(purpose, "kv") == 0)
        return kv_copies(spec);
    if (strcmp(purpose, "ep") == 0)
        return layout_ep(&spec->layout);
    if (strcmp(purpose, "embedding") == 0) /* two, that far apart */
        return 2 * (pp - 1) * (layout_world(&spec->layout) / pp);
    while (outermost < NUM_AXES && (axes & (1u << outermost)) == 0)
        outermost++;
    for (guint a = outermost; a < NUM_AXES; a++)
        span *= spec->layout.size[a];
    return span;
}

guint purpose_reach(const ProgramSpec *spec, const char *purpose)
{
    const guint axes = purpose_axes(purpose);
    guint reach = 0, stride = 1;

    for (guint a = NUM_AXES; a-- > 0; stride *= spec->layout.size[a])
        if ((axes & (1u << a)) != 0)
            reach += (spec->layout.size[a] - 1) * stride;
    return reach;
}

/* Of its neighbours that hold experts between them, and of those that hold the same ones. */
static guint first_of_experts(const ProgramSpec *spec, guint rank, const char *purpose)
{
    const guint ep = layout_ep(&spec->layout);
    const guint span = purpose_span(spec, is_expert_purpose(purpose) ? purpose : "expert_shard");
    const guint within = rank % span;

    return rank - within + (is_expert_purpose(purpose) ? within % ep : within / ep * ep);
}

/* The group of @rank, named by its first member: the same coordinates, but 0 on the axes that vary,
 * or, of "kv", a multiple of its copies. */
static guint first_of_axes(const ProgramSpec *spec, guint rank, guint axes, guint copies)
{
    guint first = rank, stride = 1;

    for (guint a = NUM_AXES; a-- > 0; stride *= spec->layout.size[a])
        if ((axes & (1u << a)) != 0)
            first -= rank / stride % spec->layout.size[a] % copies * stride;
    return first;
}

static gboolean is_member(const ProgramSpec *spec, guint rank, const char *purpose)
{
    guint coordinate[NUM_AXES];

    if (strcmp(purpose, "embedding") != 0)
        return TRUE;
    layout_coordinates(&spec->layout, rank, coordinate);
    return coordinate[AXIS_PP] == 0 || coordinate[AXIS_PP] + 1 == spec->layout.size[AXIS_PP];
}

/* Adds every group of that purpose, members in the order of ranks. */
static void add_groups(ProgramSet *set, const ProgramSpec *spec, const char *purpose)
{
    const guint world = layout_world(&spec->layout), axes = purpose_axes(purpose);
    const guint copies = strcmp(purpose, "kv") == 0 ? kv_copies(spec) : G_MAXUINT;
    const gboolean of_experts = strcmp(purpose, "ep") == 0 || is_expert_purpose(purpose);
    g_autofree gint *first = g_new(gint, world);

    for (guint rank = 0; rank < world; rank++) {
        if (!is_member(spec, rank, purpose))
            first[rank] = -1;
        else if (of_experts)
            first[rank] = (gint)first_of_experts(spec, rank, purpose);
        else
            first[rank] = (gint)first_of_axes(spec, rank, axes, copies);
    }
    program_set_add_groups(set, purpose, first);
}

/* All passes but the last. */
static Builder build_unordered(const ProgramSpec *spec, guint stage,
                               const SharedTimetables *timetables)
{
    Builder builder = {
        .spec = spec,
        .program = program_new(),
        .drafts = g_array_new(FALSE, FALSE, sizeof(Draft)),
        .stage = stage,
        .timetable = shared_timetable(timetables, stage),
    };

    build_plain(&builder);
    pass_recompute(&builder);
    pass_shard(&builder);
    pass_optimizer(&builder);
    pass_offload(&builder);
    return builder;
}

void builder_clear(Builder *builder)
{
    for (guint kind = 0; kind < builder->num_kinds; kind++)
        for (guint k = 0; k < NUM_UNIT_KINDS; k++)
            g_clear_pointer(&builder->kinds[kind].params[k], g_array_unref);
    g_free(builder->kinds);
    g_array_unref(builder->root_params);
    g_array_unref(builder->drafts);
    g_free(builder->classes);
}

static Program *build(const ProgramSpec *spec, guint stage, const SharedTimetables *timetables)
{
    Builder builder = build_unordered(spec, stage, timetables);

    pass_order(&builder);
    builder_clear(&builder);
    return builder.program;
}

Program *program_build_unplaced(const ProgramSpec *spec, guint stage)
{
    g_autoptr(SharedTimetables) timetables =
        patterns_timetables(spec->patterns, &spec->schedule, spec->layout.size[AXIS_PP]);

    return build(spec, stage, timetables);
}

Program *program_build(const ProgramSpec *spec, guint stage)
{
    Program *program = program_build_unplaced(spec, stage);

    program_place(program);
    return program;
}

/* Micro-batches between the first and the last are alike: of more than four, one of them stands for
 * the rest. */
Sketch *program_sketch(const ProgramSpec *spec, guint stage)
{
    enum { LISTED = 4, MIDDLE = 2 };
    const guint micro_batches = spec->schedule.micro_batches, pp = spec->layout.size[AXIS_PP];
    const guint more = pp == 1 && micro_batches > LISTED ? micro_batches - LISTED : 0;
    ProgramSpec listed = *spec;

    listed.schedule.micro_batches = micro_batches - more;
    g_autoptr(SharedTimetables) timetables =
        patterns_timetables(spec->patterns, &listed.schedule, pp);
    Builder builder = build_unordered(&listed, stage, timetables);
    Sketch *sketch = g_new0(Sketch, 1);

    sketch->program = builder.program;
    sketch->micro_batch_space = builder.micro_batch_space;
    sketch->calls = g_new0(guint64, builder.program->segments->len);
    for (guint i = 0; i < builder.drafts->len; i++) {
        const Draft *draft = builder_draft(&builder, i);

        sketch->calls[draft->segment] += draft->micro_batch == MIDDLE ? 1 + more : 1;
    }
    g_array_index(builder.program->spaces, Space, builder.micro_batch_space).count = micro_batches;
    builder_clear(&builder);
    return sketch;
}

void sketch_free(Sketch *sketch)
{
    if (sketch == NULL)
        return;
    program_free(sketch->program);
    g_free(sketch->calls);
    g_free(sketch);
}

/* Ranks of a stage are equal: shards are padded to one size.  Groups of a purpose that only some
 * stages need are made on all. */
ProgramSet *program_compile_around(const ProgramSpec *spec, guint known, Program *program)
{
    const guint pp = spec->layout.size[AXIS_PP];
    ProgramSet *set = program_set_new(layout_world(&spec->layout));
    g_autoptr(SharedTimetables) timetables =
        patterns_timetables(spec->patterns, &spec->schedule, pp);
    g_autoptr(GHashTable) purposes_made = g_hash_table_new(g_str_hash, g_str_equal);

    for (guint stage = 0; stage < pp; stage++)
        program_set_add_class(
            set, program != NULL && stage == known ? program : build(spec, stage, timetables));
    for (guint rank = 0; rank < set->num_ranks; rank++)
        program_set_assign(set, rank, rank / (set->num_ranks / pp)); /* pp is outermost */
    for (guint c = 0; c < set->num_classes; c++) {
        const GArray *groups = set->classes[c]->groups;

        for (guint g = 0; g < groups->len; g++) {
            const char *purpose = g_array_index(groups, GroupRef, g).purpose;

            if (g_hash_table_add(purposes_made, (gpointer)purpose))
                add_groups(set, spec, purpose);
        }
    }
    return set;
}

ProgramSet *program_compile_unplaced(const ProgramSpec *spec)
{
    return program_compile_around(spec, 0, NULL);
}

ProgramSet *program_compile(const ProgramSpec *spec)
{
    ProgramSet *set = program_compile_unplaced(spec);

    for (guint c = 0; c < set->num_classes; c++)
        program_place(set->classes[c]);
    return set;
}
