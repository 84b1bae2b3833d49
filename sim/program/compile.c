#include "sim/program/compile.h"

#include "sim/program/builder.h"
#include "sim/program/place.h"

#include <string.h>

/* The group of @rank, named by its first member: the same coordinates, but 0 on the axes of
 * @varies. */
static guint first_member(const Layout *layout, guint rank, guint varies)
{
    guint coordinate[NUM_AXES];

    layout_coordinates(layout, rank, coordinate);
    for (guint a = 0; a < NUM_AXES; a++)
        if ((varies & (1u << a)) != 0)
            coordinate[a] = 0;
    return layout_rank(layout, coordinate);
}

/* Adds every group of ranks that differ in the axes of @varies only, members in the order of ranks.
 */
static void add_groups(ProgramSet *set, const Layout *layout, const char *purpose, guint varies)
{
    const guint world = layout_world(layout);
    g_autofree GArray **members = g_new0(GArray *, world);

    for (guint rank = 0; rank < world; rank++) {
        const guint first = first_member(layout, rank, varies);

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

static guint purpose_axes(const char *purpose)
{
    const guint replicate = 1u << AXIS_DP_REPLICATE, shard = 1u << AXIS_DP_SHARD;
    const guint context = 1u << AXIS_CP;

    if (strcmp(purpose, "shard") == 0)
        return shard | context;
    if (strcmp(purpose, "replicate") == 0)
        return replicate;
    g_assert_cmpstr(purpose, ==, "data");
    return replicate | shard | context;
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

Sketch *program_sketch(const ProgramSpec *spec)
{
    Builder builder = build_unordered(spec);
    Sketch *sketch = g_new0(Sketch, 1);

    sketch->program = builder.program;
    sketch->calls = g_new0(guint64, builder.program->segments->len);
    for (guint i = 0; i < builder.drafts->len; i++)
        sketch->calls[builder_draft(&builder, i)->segment]++;
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
    for (guint g = 0; g < program->groups->len; g++) {
        const char *purpose = g_array_index(program->groups, GroupRef, g).purpose;

        add_groups(set, &spec->layout, purpose, purpose_axes(purpose));
    }
    return set;
}
