#include "sim/layout/layout.h"

#include "sim/base/names.h"

static const char *const axis_names[NUM_AXES] = {
    [AXIS_PP] = "pp",
    [AXIS_DP_REPLICATE] = "dp_replicate",
    [AXIS_DP_SHARD] = "dp_shard",
    [AXIS_CP] = "cp",
    [AXIS_TP] = "tp",
};

const char *axis_name(Axis axis)
{
    g_assert(axis < NUM_AXES);
    return axis_names[axis];
}

gboolean axis_from_name(const char *name, Axis *axis)
{
    guint value;

    if (!name_find(name, axis_names, NUM_AXES, &value))
        return FALSE;
    *axis = (Axis)value;
    return TRUE;
}

guint layout_world(const Layout *layout)
{
    guint world = 1;

    for (guint i = 0; i < NUM_AXES; i++)
        world *= layout->size[i];
    return world;
}

guint layout_data_ranks(const Layout *layout)
{
    return layout->size[AXIS_DP_REPLICATE] * layout->size[AXIS_DP_SHARD];
}

guint layout_shard_ranks(const Layout *layout)
{
    return layout->size[AXIS_DP_SHARD] * layout->size[AXIS_CP];
}

guint layout_ep(const Layout *layout)
{
    return MAX(layout->ep, 1);
}

guint layout_expert_block(const Layout *layout)
{
    return layout_shard_ranks(layout) * layout->size[AXIS_TP];
}

void layout_coordinates(const Layout *layout, guint rank, guint coordinate[NUM_AXES])
{
    g_assert(rank < layout_world(layout));

    for (guint i = NUM_AXES; i-- > 0;) {
        coordinate[i] = rank % layout->size[i];
        rank /= layout->size[i];
    }
}

guint layout_rank(const Layout *layout, const guint coordinate[NUM_AXES])
{
    guint rank = 0;

    for (guint i = 0; i < NUM_AXES; i++) {
        g_assert(coordinate[i] < layout->size[i]);
        rank = rank * layout->size[i] + coordinate[i];
    }
    return rank;
}

char *layout_text(const Layout *layout)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint i = 0; i < NUM_AXES; i++) {
        if (layout->size[i] > 1)
            g_string_append_printf(text, "%s%s=%u", text->len > 0 ? " " : "", axis_names[i],
                                   layout->size[i]);
    }
    if (layout_ep(layout) > 1)
        g_string_append_printf(text, "%sep=%u", text->len > 0 ? " " : "", layout->ep);
    return text->len > 0 ? g_strdup(text->str) : g_strdup("1 rank");
}
