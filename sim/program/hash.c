/* The hash of a program: two programs with the same hash make the executor do the same. */
#include "sim/program/program.h"

static void add(GChecksum *sum, const char *format, ...) G_GNUC_PRINTF(2, 3);

static void add(GChecksum *sum, const char *format, ...)
{
    char line[512];
    va_list arguments;

    va_start(arguments, format);
    const gint length = g_vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    g_assert(length >= 0 && (gsize)length < sizeof line);
    g_checksum_update(sum, (const guchar *)line, length);
}

static void add_tensors(GChecksum *sum, const Program *program)
{
    for (guint i = 0; i < program->spaces->len; i++) {
        const Space *space = &g_array_index(program->spaces, Space, i);

        add(sum, "space %.200s %u\n", space->name, space->count);
    }
    for (guint i = 0; i < program->tensors->len; i++) {
        const Tensor *tensor = program_tensor(program, i);

        add(sum, "tensor %.200s %d %d %d %d %u %" G_GUINT64_FORMAT " %d %d", tensor->name,
            tensor->kind, tensor->dtype, tensor->tier, tensor->persistence, tensor->space,
            tensor->elements, tensor->unit, tensor->part);
        add(sum, " at %" G_GUINT64_FORMAT " by %" G_GUINT64_FORMAT "\n", tensor->offset,
            tensor->stride);
    }
}

static void add_units(GChecksum *sum, const Program *program)
{
    for (guint i = 0; i < program->units->len; i++) {
        const UnitMap *map = program_unit(program, i)->map;

        add(sum, "unit %.200s %u %d", program_unit(program, i)->name, map->ranks, map->form);
        for (guint p = 0; p < map->num_pieces; p++)
            add(sum, " %" G_GUINT64_FORMAT "+%" G_GUINT64_FORMAT ":%" G_GUINT64_FORMAT,
                map->pieces[p].shard_offset, map->pieces[p].full_offset, map->pieces[p].chunk);
        add(sum, "\n");
    }
    for (guint i = 0; i < program->unit_refs->len; i++)
        add(sum, "%u.%u ", program_unit_ref(program, i)->unit_class,
            program_unit_ref(program, i)->index);
}

static void add_op(GChecksum *sum, const Op *op)
{
    const OpSizes *s = &op->sizes;

    add(sum, "op %s %u %d %d %d %d", op_kind_name(op->kind), op->stream, op->dtype, op->dtype_out,
        op->unit, op->predicate);
    add(sum, " %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT, s->rows, s->in,
        s->out);
    add(sum, " %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT, s->batch, s->seq,
        s->heads);
    add(sum, " %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT, s->kv_heads,
        s->head_dim, s->chunk);
    add(sum, " %" G_GUINT64_FORMAT " %.17g", s->elements, s->eps);
    if (s->value_dim != 0 || s->groups != 0 || s->top_k != 0)
        add(sum, " %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT, s->value_dim,
            s->groups, s->top_k);
    if (s->seen != 0)
        add(sum, " seen %.17g", s->seen);
    for (guint i = 0; i < op->num_operands; i++)
        add(sum, " (%u %d %d %d)", op->operands[i].tensor, op->operands[i].access,
            op->operands[i].shift, op->operands[i].param);
    for (guint i = 0; i < op->num_waits; i++)
        add(sum, " wait %u", op->waits[i]);
    for (guint i = 0; op->kind == OP_EXCHANGE && i < op->num_operands; i++)
        add(sum, " to %u %d %u %u", op->messages[i].peer_shift, op->messages[i].micro_batch_shift,
            op->messages[i].chunk, op->messages[i].direction);
    add(sum, "\n");
}

static void add_segments(GChecksum *sum, const Program *program)
{
    for (guint i = 0; i < program->streams->len; i++) {
        const Stream *stream = program_stream(program, i);

        add(sum, "stream %.200s %d", stream->name, stream->kind);
        if (stream->kind == STREAM_COMMUNICATION)
            add(sum, " %.200s %u", g_array_index(program->groups, GroupRef, stream->group).purpose,
                g_array_index(program->groups, GroupRef, stream->group).size);
        add(sum, "\n");
    }
    for (guint i = 0; i < program->segments->len; i++) {
        const Segment *segment = program_segment(program, i);

        add(sum, "segment %.200s\n", segment->name);
        for (guint o = 0; o < segment->num_ops; o++)
            add_op(sum, &segment->ops[o]);
    }
}

static void add_calls(GChecksum *sum, const Program *program, const CallList *list)
{
    for (guint i = 0; i < list->calls->len; i++) {
        const Call *call = &g_array_index(list->calls, Call, i);

        add(sum, "call %u %u %u %d %d", call->segment, call->unit, call->micro_batch, call->first,
            call->last);
        for (guint s = 0; s < program->spaces->len; s++)
            add(sum, " %u", call->index[s]);
        for (guint w = 0; w < call->num_waits; w++) {
            const Wait *wait = &g_array_index(list->waits, Wait, call->first_wait + w);

            add(sum, " wait %u.%u.%u.%u", wait->call, wait->op, wait->before, wait->back);
        }
        add(sum, "\n");
    }
}

static void add_program(GChecksum *sum, const Program *program)
{
    add_tensors(sum, program);
    add_units(sum, program);
    add_segments(sum, program);
    add_calls(sum, program, &program->prologue);
    add_calls(sum, program, &program->step);
    add_calls(sum, program, &program->epilogue);
    for (guint t = 0; t < NUM_TIERS; t++) /* those past the host where they hold something */
        if (t <= TIER_HOST || program->arena_bytes[t] > 0)
            add(sum, "arena %" G_GUINT64_FORMAT "\n", program->arena_bytes[t]);
}

char *program_hash(const Program *program)
{
    g_autoptr(GChecksum) sum = g_checksum_new(G_CHECKSUM_SHA256);

    add_program(sum, program);
    return g_strdup(g_checksum_get_string(sum));
}

char *program_set_hash(const ProgramSet *set)
{
    g_autoptr(GChecksum) sum = g_checksum_new(G_CHECKSUM_SHA256);

    for (guint c = 0; c < set->num_classes; c++)
        add_program(sum, set->classes[c]);
    for (guint r = 0; r < set->num_ranks; r++)
        add(sum, "%u ", set->class_of[r]);
    return g_strdup(g_checksum_get_string(sum));
}
