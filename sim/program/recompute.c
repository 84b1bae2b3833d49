/* Recomputation: right before a block's backward its forward runs again, without the ops whose
 * results nobody misses.  full: between forward and backward only the block's input lives;
 * selective: all but what attention leaves, which costs two products to make again and no
 * communication. */
#include "sim/program/builder.h"

/* Of LOT_FIRST, of any kind: an op's tensors are of its own. */
static gboolean is_in_ring(const Builder *builder, guint tensor, Ring ring)
{
    const guint space = program_tensor(builder->program, tensor)->space;

    for (guint k = 0; space != NO_SPACE && k < builder->num_kinds; k++)
        if (space == builder->kinds[k].ring_space[LOT_FIRST][ring])
            return TRUE;
    return FALSE;
}

/* What backward finds computed again, and what it finds as forward left it. */
static gboolean is_again(const Builder *builder, guint tensor)
{
    return is_in_ring(builder, tensor, RING_AGAIN) || is_in_ring(builder, tensor, RING_AGAIN_KEPT);
}

static gboolean is_stored(const Builder *builder, guint tensor)
{
    return is_in_ring(builder, tensor, RING_RESIDUAL) || is_in_ring(builder, tensor, RING_SAVED) ||
           is_in_ring(builder, tensor, RING_KEPT);
}

static gboolean writes_needed(const Op *op, const gboolean *needed)
{
    for (guint i = 0; i < op->num_operands; i++)
        if (op->operands[i].access != ACCESS_READ && needed[op->operands[i].tensor])
            return TRUE;
    return FALSE;
}

/* Walks @forward backwards from what is computed again: an op is kept when it writes something
 * needed, and then what it reads is needed too, unless it is stored.  -1: nothing is. */
static gint copy_needed_ops(Builder *builder, gint forward, const char *name)
{
    Program *program = builder->program;
    const Segment *from = program_segment(program, (guint)forward);
    g_autofree gboolean *needed = g_new0(gboolean, program->tensors->len);
    g_autofree gboolean *kept = g_new0(gboolean, from->num_ops);
    gboolean any = FALSE;

    for (guint t = 0; t < program->tensors->len; t++)
        needed[t] = is_again(builder, t);
    for (guint i = from->num_ops; i-- > 0;) {
        const Op *op = &from->ops[i];

        kept[i] = writes_needed(op, needed);
        any |= kept[i];
        for (guint o = 0; kept[i] && o < op->num_operands; o++)
            if (!is_stored(builder, op->operands[o].tensor))
                needed[op->operands[o].tensor] |= op->operands[o].access == ACCESS_READ;
    }
    if (!any)
        return -1;
    const guint segment = program_add_segment(program, name);
    from = program_segment(program, (guint)forward);
    for (guint i = 0; i < from->num_ops; i++) {
        if (!kept[i])
            continue;
        Op *copy = segment_add_op(program, segment, from->ops[i].kind, 0, from->ops[i].dtype);
        *copy = from->ops[i];
    }
    return (gint)segment;
}

static const ClassSegments *segments_of(const Builder *builder, guint unit)
{
    return &builder->classes[program_unit_ref(builder->program, unit)->unit_class];
}

/* Before @backward, of @unit: its own, or the block that its experts belong to. */
static void append_recompute(Builder *builder, const Draft *backward, guint unit)
{
    Draft recompute = *backward;

    recompute.unit = unit;
    recompute.segment = (guint)segments_of(builder, unit)->recompute;
    recompute.opens_gradient = recompute.closes_gradient = FALSE;
    g_array_append_val(builder->drafts, recompute);
}

/* A block with experts runs backward in two parts, of which the first needs all that is computed
 * again, unless its experts compute nothing again. */
static void append_recomputes(Builder *builder, const Draft *backward)
{
    const guint layers = builder->spec->model->layers, unit = backward->unit;
    const gboolean is_sparse = unit <= layers && model_is_sparse(builder->spec->model, unit - 1);

    if (unit > layers && segments_of(builder, unit)->recompute >= 0)
        append_recompute(builder, backward, builder_block_unit(builder, unit));
    if (is_sparse && segments_of(builder, builder_experts_unit(builder, unit))->recompute >= 0)
        return;
    if (segments_of(builder, unit)->recompute >= 0)
        append_recompute(builder, backward, unit);
}

static void insert_recompute_calls(Builder *builder)
{
    g_autoptr(GArray) plain = builder->drafts;

    builder->drafts = g_array_new(FALSE, FALSE, sizeof(Draft));
    for (guint i = 0; i < plain->len; i++) {
        const Draft draft = g_array_index(plain, Draft, i);

        if (draft.unit != ROOT_UNIT &&
            (gint)draft.segment == segments_of(builder, draft.unit)->passes[LOT_FIRST].backward)
            append_recomputes(builder, &draft);
        g_array_append_val(builder->drafts, draft);
    }
}

void pass_recompute(Builder *builder)
{
    Program *program = builder->program;

    if (builder->recompute == RECOMPUTE_NONE)
        return;
    for (guint i = 1; i < program->units->len; i++) {
        const gint forward = builder->classes[i].passes[LOT_FIRST].forward;
        g_autofree char *name = g_strdup_printf("%s.recompute", program_unit(program, i)->name);

        if (forward >= 0)
            builder->classes[i].recompute = copy_needed_ops(builder, forward, name);
    }
    insert_recompute_calls(builder);
}
