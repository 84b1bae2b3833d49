/* Offload: state lives in another tier.  What an update works on is copied to a buffer on the
 * device before it and back after it, one stream a direction: a unit's copies run beside the update
 * of another, and ahead of it as soon as one of two buffers is free.  Shards of parameters are also
 * copied before each gather. */
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

    segments->offload_space = program_add_space(builder->program, name, MIN(unit.count, BUFFERS));
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

static void append_copy(Builder *builder, const Draft *update, gint segment)
{
    Draft copy = *update;

    copy.segment = (guint)segment;
    if (program_segment(builder->program, copy.segment)->num_ops > 0)
        g_array_append_val(builder->drafts, copy);
}

static void insert_copies(Builder *builder)
{
    g_autoptr(GArray) from = builder->drafts;

    builder->drafts = g_array_new(FALSE, FALSE, sizeof(Draft));
    for (guint i = 0; i < from->len; i++) {
        const Draft *draft = &g_array_index(from, Draft, i);
        const ClassSegments *segments =
            builder_has_unit(builder, draft->unit)
                ? &builder->classes[program_unit_ref(builder->program, draft->unit)->unit_class]
                : NULL;
        const gboolean updates = segments != NULL && draft->segment == (guint)segments->update;

        if (updates)
            append_copy(builder, draft, segments->fetch);
        g_array_append_val(builder->drafts, *draft);
        if (updates)
            append_copy(builder, draft, segments->store);
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
