#include "sim/program/compile.h"

#include "sim/layout/tensor_parallel.h"
#include "sim/program/builder.h"
#include "sim/program/place.h"

#include <string.h>

/* Which axes the members of a group differ in.  "kv" differs in tp, but only within ranks that hold
 * the same keys and values. */
static const struct {
    const char *purpose;
    guint axes;
} purposes[] = {
    {"shard", 1u << AXIS_DP_SHARD | 1u << AXIS_CP},
    {"replicate", 1u << AXIS_DP_REPLICATE},
    {"data", 1u << AXIS_DP_REPLICATE | 1u << AXIS_DP_SHARD | 1u << AXIS_CP},
    {"tp", 1u << AXIS_TP},
    {"kv", 1u << AXIS_TP},
    {"norm", 1u << AXIS_DP_SHARD | 1u << AXIS_CP | 1u << AXIS_TP},
};

static guint purpose_axes(const char *purpose)
{
    for (guint i = 0; i < G_N_ELEMENTS(purposes); i++)
        if (strcmp(purposes[i].purpose, purpose) == 0)
            return purposes[i].axes;
    g_assert_not_reached();
}

static guint kv_copies(const ProgramSpec *spec)
{
    return tensor_parallel_kv_copies(spec->model, spec->layout.size[AXIS_TP]);
}

guint purpose_size(const ProgramSpec *spec, const char *purpose)
{
    const guint axes = purpose_axes(purpose);
    guint size = 1;

    if (strcmp(purpose, "kv") == 0)
        return kv_copies(spec);
    for (guint a = 0; a < NUM_AXES; a++)
        if ((axes & (1u << a)) != 0)
            size *= spec->layout.size[a];
    return size;
}

/* From the innermost axis out to the outermost one that varies. */
guint purpose_span(const ProgramSpec *spec, const char *purpose)
{
    const guint axes = purpose_axes(purpose);
    guint outermost = 0, span = 1;

    if (strcmp(purpose, "kv") == 0)
        return kv_copies(spec);
    while (outermost < NUM_AXES && (axes & (1u << outermost)) == 0)
        outermost++;
    for (guint a = outermost; a < NUM_AXES; a++)
        span *= spec->layout.size[a];
    return span;
}

/* The group of @rank, named by its first member: the same coordinates, but 0 on the axes that vary.
 */
static guint first_member(const ProgramSpec *spec, guint rank, const char *purpose)
{
    const guint axes = purpose_axes(purpose), copies = kv_copies(spec);
    guint coordinate[NUM_AXES];

    layout_coordinates(&spec->layout, rank, coordinate);
    for (guint a = 0; a < NUM_AXES; a++)
        if ((axes & (1u << a)) != 0)
            coordinate[a] = strcmp(purpose, "kv") == 0 ? coordinate[a] / copies * copies : 0;
    return layout_rank(&spec->layout, coordinate);
}

/* Adds every group of that purpose, members in the order of ranks. */
static void add_groups(ProgramSet *set, const ProgramSpec *spec, const char *purpose)
{
    const guint world = layout_world(&spec->layout);
    g_autofree GArray **members = g_new0(GArray *, world);

    for (guint rank = 0; rank < world; rank++) {
        const guint first = first_member(spec, rank, purpose);

        if (members[first] == NULL)
            members[first] = g_array_new(FALSE, FALSE, sizeof(guint));
        g_array_append_val(members[first], rank);
    }
    for (guint rank = 0; rank < world; rank++) {
        if (members[rank] == NULL)
            continue;
        program_set_add_group(set, purpose, (const guint *)(gconstpointer)members[rank]->data,
                              members[rank]->len);
        g_array_unref(members[rank]);
    }
}

/* All passes but the last. */
static Builder build_unordered(const ProgramSpec *spec)
{
    Builder builder = {
        .spec = spec,
        .program = program_new(),
        .drafts = g_array_new(FALSE, FALSE, sizeof(Draft)),
    };

    build_plain(&builder);
    pass_recompute(&builder);
    pass_shard(&builder);
    pass_optimizer(&builder);
    return builder;
}

static void builder_clear(Builder *builder)
{
    g_array_unref(builder->drafts);
    g_free(builder->classes);
}

Program *program_build(const ProgramSpec *spec)
{
    Builder builder = build_unordered(spec);

    pass_order(&builder);
    builder_clear(&builder);
    program_place(builder.program);
    return builder.program;
}

/* Micro-batches between the first and the last are alike: of more than four, one of them stands for
 * the rest. */
Sketch *program_sketch(const ProgramSpec *spec)
{
    enum { LISTED = 4, MIDDLE = 2 };
    const guint micro_batches = spec->schedule.micro_batches;
    const guint more = micro_batches > LISTED ? micro_batches - LISTED : 0;
    ProgramSpec listed = *spec;

    listed.schedule.micro_batches = micro_batches - more;
    Builder builder = build_unordered(&listed);
    Sketch *sketch = g_new0(Sketch, 1);

    sketch->program = builder.program;
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

/* All data ranks are equal: shards are padded to one size, so there is one class. */
ProgramSet *program_compile(const ProgramSpec *spec)
{
    ProgramSet *set = program_set_new(layout_world(&spec->layout));
    Program *program = program_build(spec);
    const guint class_index = program_set_add_class(set, program);

    for (guint rank = 0; rank < set->num_ranks; rank++)
        program_set_assign(set, rank, class_index);
    for (guint g = 0; g < program->groups->len; g++)
        add_groups(set, spec, g_array_index(program->groups, GroupRef, g).purpose);
    return set;
}
