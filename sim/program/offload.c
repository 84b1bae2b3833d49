/* Offload: state lives in another tier.  What an update works on is copied to a buffer on the
 * device before it and back after it, one stream a direction: a unit's copies run beside the update
 * of another, and are issued ahead of it as soon as one of two buffers is free, the first ones
 * beside the last backward pass.  Shards of parameters are also copied before each gather. */
#include "sim/program/builder.h"

#include <string.h>

enum { BUFFERS = 2 }; /* one in use, one under way */

static const char in_name[] = "copy.in", out_name[] = "copy.out";

static guint copy_stream(Program *program, const char *name)
{
    for (guint i = 0; i < program->streams->len; i++)
        if (strcmp(program_stream(program, i)->name, name) == 0)
            return i;
    return program_add_stream(program, name, STREAM_COPY, 0);
}

/* On the device, of the same shape as the state. */
static guint add_buffer(Program *program, guint state, const char *what, guint space)
{
    const Tensor of = *program_tensor(program, state);
    g_autofree char *name = g_strconcat(of.name, what, NULL);
    const guint buffer =
        program_add_tensor(program, name, TENSOR_COMMUNICATION, of.dtype, space, of.elements);

    program_tensor(program, buffer)->unit = of.unit;
    program_tensor(program, buffer)->part = of.part;
    return buffer;
}

static Op *add_copy(Program *program, guint segment, const char *stream, guint from, guint to)
{
    const Tensor *tensor = program_tensor(program, from);
    Op *op = segment_add_op(program, segment, OP_COPY, copy_stream(program, stream), tensor->dtype);

    op->sizes.elements = tensor->elements;
    op_add_operand(op, from, ACCESS_READ, 0, WHOLE_TENSOR);
    op_add_operand(op, to, ACCESS_WRITE, 0, WHOLE_TENSOR);
    return op;
}

static void replace_operands(Program *program, guint segment, guint from, guint to)
{
    Segment *of = program_segment(program, segment);

    for (guint i = 0; i < of->num_ops; i++)
        for (guint o = 0; o < of->ops[i].num_operands; o++)
            if (of->ops[i].operands[o].tensor == from)
                of->ops[i].operands[o].tensor = to;
}

/* The state moves to @tier, and the update works on a buffer. */
static void offload_from_update(Builder *builder, guint index, gint state, Tier tier)
{
    Program *program = builder->program;
    const ClassSegments *segments = &builder->classes[index];

    if (state == NO_TENSOR)
        return;
    const guint buffer = add_buffer(program, (guint)state, ".buffer", segments->offload_space);
    program_tensor(program, (guint)state)->tier = tier;
    add_copy(program, (guint)segments->fetch, in_name, (guint)state, buffer);
    replace_operands(program, (guint)segments->update, (guint)state, buffer);
    add_copy(program, (guint)segments->store, out_name, buffer, (guint)state);
}

/* The copy becomes the first op of the gather, which has one more that waits for nothing else of
 * its segment. */
static void offload_from_gather(Builder *builder, guint index, guint parameter)
{
    Program *program = builder->program;
    const guint segment = (guint)builder->classes[index].gather;
    const guint buffer = add_buffer(program, parameter, ".gather_buffer", NO_SPACE);

    replace_operands(program, segment, parameter, buffer);
    add_copy(program, segment, in_name, parameter, buffer);
    Segment *gather = program_segment(program, segment);
    const Op copy = gather->ops[gather->num_ops - 1];
    memmove(&gather->ops[1], &gather->ops[0], (gather->num_ops - 1) * sizeof *gather->ops);
    gather->ops[0] = copy;
    gather->ops[1].waits[gather->ops[1].num_waits++] = 0;
}

static gint new_segment(Builder *builder, guint index, const char *what)
{
    g_autofree char *name =
        g_strdup_printf("%s.%s", program_unit(builder->program, index)->name, what);

    return (gint)program_add_segment(builder->program, name);
}

static void offload_class(Builder *builder, guint index)
{
    const UnitClass unit = *program_unit(builder->program, index);
    const Offload *offload = &builder->spec->sharding->offload;
    const gboolean parameters = offload->parameters != TIER_DEVICE && unit.gathered != NO_TENSOR;
    ClassSegments *segments = &builder->classes[index];
    g_autofree char *name = g_strdup_printf("%s.offload", unit.name);

    segments->offload_space = program_add_space_beside(
        builder->program, name, MIN(unit.count, BUFFERS),
        builder->classes[builder_first_alike(builder, index)].offload_space);
    segments->fetch = new_segment(builder, index, "fetch");
    segments->store = new_segment(builder, index, "store");
    if (offload->optimizer != TIER_DEVICE) {
        offload_from_update(builder, index, unit.master, offload->optimizer);
        for (guint i = 0; i < G_N_ELEMENTS(unit.moment); i++)
            offload_from_update(builder, index, unit.moment[i], offload->optimizer);
    }
    if (parameters) {
        offload_from_update(builder, index, unit.parameter, offload->parameters);
        offload_from_gather(builder, index, (guint)unit.parameter);
    }
}

/* ---- calls ---- */

/* The copies of the updates, whose drafts are in `from`. */
typedef struct {
    Builder *builder;
    const GArray *from;
    GArray *updates; /* guint: drafts of `from` */
    guint fetched;   /* updates whose copies in are issued */
    guint stored;    /* and those whose copies out are */
} Copies;

static gboolean is_update(const Builder *builder, const Draft *draft)
{
    return builder_has_unit(builder, draft->unit) &&
           draft->segment ==
               (guint)builder->classes[program_unit_ref(builder->program, draft->unit)->unit_class]
                   .update;
}

static void append_copy(Builder *builder, const Draft *update, gint segment)
{
    Draft copy = *update;

    copy.segment = (guint)segment;
    if (program_segment(builder->program, copy.segment)->num_ops > 0)
        g_array_append_val(builder->drafts, copy);
}

static const Draft *update_draft(const Copies *copies, guint update)
{
    return &g_array_index(copies->from, Draft, g_array_index(copies->updates, guint, update));
}

static const ClassSegments *segments_of(const Copies *copies, guint update)
{
    const UnitRef *ref =
        program_unit_ref(copies->builder->program, update_draft(copies, update)->unit);

    return &copies->builder->classes[ref->unit_class];
}

/* Whether a buffer is free by what was issued: of the updates before it whose units share its ring,
 * as many are not stored as the ring has copies at most. */
static gboolean has_buffer(const Copies *copies, guint update)
{
    const guint space = segments_of(copies, update)->offload_space;
    guint in_use = 0;

    if (space == NO_SPACE)
        return TRUE;
    for (guint i = copies->stored; i < update; i++)
        in_use += segments_of(copies, i)->offload_space == space ? 1 : 0;
    return in_use < g_array_index(copies->builder->program->spaces, Space, space).count;
}

/* In the order of the updates, as far as buffers go. */
static void fetch_ahead(Copies *copies)
{
    for (; copies->fetched < copies->updates->len && has_buffer(copies, copies->fetched);
         copies->fetched++)
        append_copy(copies->builder, update_draft(copies, copies->fetched),
                    segments_of(copies, copies->fetched)->fetch);
}

/* Where the first copies in are issued: when the last micro-batch's backward begins, so that they
 * run beside it.  They need nothing of the step, but earlier they would stand before what the
 * forward passes gather from the same tier. */
static guint first_fetch(const GArray *from, const GArray *updates)
{
    const guint first_update = g_array_index(updates, guint, 0);

    for (guint i = 0; i < first_update; i++)
        if (g_array_index(from, Draft, i).opens_gradient && g_array_index(from, Draft, i).last)
            return i;
    return first_update;
}

static void insert_copies(Builder *builder)
{
    g_autoptr(GArray) from = g_array_ref(builder->drafts);
    g_autoptr(GArray) updates = g_array_new(FALSE, FALSE, sizeof(guint));
    Copies copies = {.builder = builder, .from = from, .updates = updates};

    for (guint i = 0; i < from->len; i++)
        if (is_update(builder, &g_array_index(from, Draft, i)))
            g_array_append_val(updates, i);
    if (updates->len == 0)
        return;
    const guint begin = first_fetch(from, updates);
    g_array_unref(builder->drafts);
    builder->drafts = g_array_new(FALSE, FALSE, sizeof(Draft));
    for (guint i = 0; i < from->len; i++) {
        const Draft *draft = &g_array_index(from, Draft, i);

        if (i >= begin)
            fetch_ahead(&copies);
        g_array_append_val(builder->drafts, *draft);
        if (is_update(builder, draft))
            append_copy(builder, draft, segments_of(&copies, copies.stored++)->store);
    }
}

void pass_offload(Builder *builder)
{
    if (!sharding_offloads(builder->spec->sharding))
        return;
    for (guint i = 0; i < builder->program->units->len; i++)
        if (program_unit(builder->program, i)->map->elements > 0)
            offload_class(builder, i);
    insert_copies(builder);
}
