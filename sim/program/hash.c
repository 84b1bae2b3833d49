/* The hash of a program: two programs with the same hash make the executor do the same. */
#include "sim/program/program.h"

#include <string.h>

/* Text on its way into the sum. */
typedef struct {
    GChecksum *sum;
    gsize used;
    char bytes[4096];
} Text;

enum { LONGEST = 512 }; /* bytes that are added at once */

static void flush(Text *text)
{
    g_checksum_update(text->sum, (const guchar *)text->bytes, (gssize)text->used);
    text->used = 0;
}

/* Where up to LONGEST bytes can be written. */
static char *room(Text *text)
{
    if (text->used + LONGEST > sizeof text->bytes)
        flush(text);
    return text->bytes + text->used;
}

static void add(Text *text, const char *format, ...) G_GNUC_PRINTF(2, 3);

static void add(Text *text, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    const gint length = g_vsnprintf(room(text), LONGEST, format, arguments);
    va_end(arguments);
    g_assert(length >= 0 && length < LONGEST);
    text->used += (gsize)length;
}

/* As add() would, but there are millions of these. */
static void add_word(Text *text, const char *word)
{
    const gsize length = strlen(word);

    memcpy(room(text), word, length);
    text->used += length;
}

static void add_number(Text *text, char before, guint number)
{
    char *at = room(text);
    guint digits = 1;

    for (guint rest = number / 10; rest > 0; rest /= 10)
        digits++;
    *at = before;
    for (guint i = digits; i > 0; i--, number /= 10)
        at[i] = (char)('0' + number % 10);
    text->used += digits + 1;
}

static void add_tensors(Text *text, const Program *program)
{
    for (guint i = 0; i < program->spaces->len; i++) {
        const Space *space = &g_array_index(program->spaces, Space, i);

        add(text, "space %.200s %u\n", space->name, space->count);
    }
    for (guint i = 0; i < program->tensors->len; i++) {
        const Tensor *tensor = program_tensor(program, i);

        add(text, "tensor %.200s %d %d %d %d %u %" G_GUINT64_FORMAT " %d %d", tensor->name,
            tensor->kind, tensor->dtype, tensor->tier, tensor->persistence, tensor->space,
            tensor->elements, tensor->unit, tensor->part);
        add(text, " at %" G_GUINT64_FORMAT " by %" G_GUINT64_FORMAT "\n", tensor->offset,
            tensor->stride);
    }
}

static void add_units(Text *text, const Program *program)
{
    for (guint i = 0; i < program->units->len; i++) {
        const UnitMap *map = program_unit(program, i)->map;

        add(text, "unit %.200s %u %d", program_unit(program, i)->name, map->ranks, map->form);
        for (guint p = 0; p < map->num_pieces; p++)
            add(text, " %" G_GUINT64_FORMAT "+%" G_GUINT64_FORMAT ":%" G_GUINT64_FORMAT,
                map->pieces[p].shard_offset, map->pieces[p].full_offset, map->pieces[p].chunk);
        add(text, "\n");
    }
    for (guint i = 0; i < program->unit_refs->len; i++)
        add(text, "%u.%u ", program_unit_ref(program, i)->unit_class,
            program_unit_ref(program, i)->index);
}

static void add_op(Text *text, const Op *op)
{
    const OpSizes *s = &op->sizes;

    add(text, "op %s %u %d %d %d %d", op_kind_name(op->kind), op->stream, op->dtype, op->dtype_out,
        op->unit, op->predicate);
    add(text, " %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT, s->rows, s->in,
        s->out);
    add(text, " %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT, s->batch, s->seq,
        s->heads);
    add(text, " %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT, s->kv_heads,
        s->head_dim, s->chunk);
    add(text, " %" G_GUINT64_FORMAT " %.17g", s->elements, s->eps);
    if (s->value_dim != 0 || s->groups != 0 || s->top_k != 0)
        add(text, " %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT, s->value_dim,
            s->groups, s->top_k);
    if (s->sinks != 0)
        add(text, " sinks %" G_GUINT64_FORMAT, s->sinks);
    if (op->params != PARAMS_ALL || op->reduction != REDUCE_SUM)
        add(text, " of %d by %d", op->params, op->reduction);
    if (s->seen != 0)
        add(text, " seen %.17g", s->seen);
    for (guint i = 0; i < op->num_operands; i++)
        add(text, " (%u %d %d %d)", op->operands[i].tensor, op->operands[i].access,
            op->operands[i].shift, op->operands[i].param);
    for (guint i = 0; i < op->num_waits; i++)
        add(text, " wait %u", op->waits[i]);
    for (guint i = 0; op->kind == OP_EXCHANGE && i < op->num_operands; i++)
        add(text, " to %u %d %u %u", op->messages[i].peer_shift, op->messages[i].micro_batch_shift,
            op->messages[i].chunk, op->messages[i].direction);
    add(text, "\n");
}

static void add_segments(Text *text, const Program *program)
{
    for (guint i = 0; i < program->streams->len; i++) {
        const Stream *stream = program_stream(program, i);

        add(text, "stream %.200s %d", stream->name, stream->kind);
        if (stream->kind == STREAM_COMMUNICATION) {
            const GroupRef *group = program_stream_group(program, stream);

            add(text, " %.200s %u", group->purpose, group->size);
        }
        add(text, "\n");
    }
    for (guint i = 0; i < program->segments->len; i++) {
        const Segment *segment = program_segment(program, i);

        add(text, "segment %.200s\n", segment->name);
        for (guint o = 0; o < segment->num_ops; o++)
            add_op(text, &segment->ops[o]);
    }
}

static void add_call(Text *text, const Program *program, const CallList *list, const Call *call)
{
    add_word(text, "call");
    add_number(text, ' ', call->segment);
    add_number(text, ' ', call->unit);
    add_number(text, ' ', call->micro_batch);
    add_number(text, ' ', call->first ? 1 : 0);
    add_number(text, ' ', call->last ? 1 : 0);
    for (guint s = 0; s < program->num_slots; s++)
        add_number(text, ' ', call->index[s]);
    for (guint w = 0; w < call->num_waits; w++) {
        const Wait *wait = &g_array_index(list->waits, Wait, call->first_wait + w);

        add_word(text, " wait");
        add_number(text, ' ', wait->call);
        add_number(text, '.', wait->op);
        add_number(text, '.', wait->before);
        add_number(text, '.', wait->back);
    }
    add_word(text, "\n");
}

static void add_calls(Text *text, const Program *program, const CallList *list)
{
    for (guint i = 0; i < list->calls->len; i++)
        add_call(text, program, list, &g_array_index(list->calls, Call, i));
}

static void add_program(Text *text, const Program *program)
{
    add_tensors(text, program);
    add_units(text, program);
    add_segments(text, program);
    add_calls(text, program, &program->prologue);
    add_calls(text, program, &program->step);
    add_calls(text, program, &program->epilogue);
    for (guint t = 0; t < NUM_TIERS; t++) /* those past the host where they hold something */
        if (t <= TIER_HOST || program->arena_bytes[t] > 0)
            add(text, "arena %" G_GUINT64_FORMAT "\n", program->arena_bytes[t]);
}

static Text text_new(void)
{
    return (Text){.sum = g_checksum_new(G_CHECKSUM_SHA256)};
}

/* Takes the text. */
static char *text_sum(Text *text)
{
    g_autoptr(GChecksum) sum = text->sum;

    flush(text);
    return g_strdup(g_checksum_get_string(sum));
}

char *program_hash(const Program *program)
{
    Text text = text_new();

    add_program(&text, program);
    return text_sum(&text);
}

char *program_set_hash(const ProgramSet *set)
{
    Text text = text_new();

    for (guint c = 0; c < set->num_classes; c++)
        add_program(&text, set->classes[c]);
    for (guint r = 0; r < set->num_ranks; r++)
        add(&text, "%u ", set->class_of[r]);
    return text_sum(&text);
}
