#include "sim/program/program.h"

#include "sim/program/pattern.h"

#include <string.h>

static const MemoryTerm kind_term[NUM_TENSOR_KINDS] = {
    [TENSOR_PARAMETER] = TERM_PARAMETERS,
    [TENSOR_GATHERED] = TERM_GATHERED,
    [TENSOR_UNIT_GRADIENT] = TERM_COMMUNICATION,
    [TENSOR_GRADIENT] = TERM_GRADIENTS,
    [TENSOR_MASTER] = TERM_MASTER,
    [TENSOR_MOMENT] = TERM_OPTIMIZER,
    [TENSOR_ACTIVATION] = TERM_ACTIVATIONS,
    [TENSOR_LOGITS] = TERM_LOGITS,
    [TENSOR_COMMUNICATION] = TERM_COMMUNICATION,
    [TENSOR_WORKSPACE] = TERM_WORKSPACE,
    [TENSOR_INPUT] = TERM_WORKSPACE,
    [TENSOR_SCALAR] = TERM_WORKSPACE,
};

static const char *const term_names[NUM_MEMORY_TERMS] = {
    [TERM_PARAMETERS] = "parameters", [TERM_GATHERED] = "gathered",
    [TERM_GRADIENTS] = "gradients",   [TERM_MASTER] = "master",
    [TERM_OPTIMIZER] = "optimizer",   [TERM_ACTIVATIONS] = "activations",
    [TERM_LOGITS] = "logits",         [TERM_COMMUNICATION] = "communication",
    [TERM_WORKSPACE] = "workspace",   [TERM_FRAMEWORK] = "framework",
};

static const char *const volume_names[NUM_VOLUMES] = {
    [VOLUME_ALL_GATHER] = "all_gather", [VOLUME_REDUCE_SCATTER] = "reduce_scatter",
    [VOLUME_ALL_REDUCE] = "all_reduce", [VOLUME_ALL_TO_ALL] = "all_to_all",
    [VOLUME_EXCHANGE] = "exchange",
};

static void unit_class_clear(gpointer data)
{
    UnitClass *unit = data;

    g_free(unit->param_names);
    unit_map_free(unit->map);
}

static void segment_clear(gpointer data)
{
    g_free(((Segment *)data)->ops);
}

static GArray *array_new(gsize element_size, GDestroyNotify clear)
{
    GArray *array = g_array_new(FALSE, TRUE, (guint)element_size);

    if (clear != NULL)
        g_array_set_clear_func(array, clear);
    return array;
}

static void call_list_init(CallList *list)
{
    list->calls = array_new(sizeof(Call), NULL);
    list->waits = array_new(sizeof(Wait), NULL);
}

static void call_list_clear(CallList *list)
{
    g_array_unref(list->calls);
    g_array_unref(list->waits);
}

Program *program_new(void)
{
    enum { NAMES_BYTES = 2048 }; /* of a block's program, all of them */
    Program *program = g_new0(Program, 1);

    program->names = g_string_chunk_new(NAMES_BYTES);
    program->tensors = array_new(sizeof(Tensor), NULL);
    program->spaces = array_new(sizeof(Space), NULL);
    program->streams = array_new(sizeof(Stream), NULL);
    program->groups = array_new(sizeof(GroupRef), NULL);
    program->units = array_new(sizeof(UnitClass), unit_class_clear);
    program->unit_refs = array_new(sizeof(UnitRef), NULL);
    program->segments = array_new(sizeof(Segment), segment_clear);
    call_list_init(&program->prologue);
    call_list_init(&program->step);
    call_list_init(&program->epilogue);
    program_add_space(program, "one", 1);
    program_add_stream(program, "compute", STREAM_COMPUTE, 0);
    return program;
}

void program_free(Program *program)
{
    if (program == NULL)
        return;
    call_list_clear(&program->prologue);
    call_list_clear(&program->step);
    call_list_clear(&program->epilogue);
    g_array_unref(program->tensors);
    g_array_unref(program->spaces);
    g_array_unref(program->streams);
    g_array_unref(program->groups);
    g_array_unref(program->units);
    g_array_unref(program->unit_refs);
    g_array_unref(program->segments);
    g_string_chunk_free(program->names);
    pattern_unref(program->pattern);
    g_free(program);
}

const char *program_name(Program *program, const char *text)
{
    return g_string_chunk_insert(program->names, text);
}

static guint add_space(Program *program, const char *name, guint count, guint slot)
{
    const Space space = {program_name(program, name), count, slot};

    g_assert(count >= 1 && count <= G_MAXUINT16 && slot < MAX_SLOTS);
    g_array_append_val(program->spaces, space);
    program->num_slots = MAX(program->num_slots, slot + 1);
    return program->spaces->len - 1;
}

guint program_add_space_beside(Program *program, const char *name, guint count, guint space)
{
    return add_space(program, name, count,
                     space == NO_SPACE ? program->num_slots : program_space(program, space)->slot);
}

guint program_add_space(Program *program, const char *name, guint count)
{
    return program_add_space_beside(program, name, count, NO_SPACE);
}

guint program_add_tensor(Program *program, const char *name, TensorKind kind, DType dtype,
                         guint space, guint64 elements)
{
    const gboolean state = kind == TENSOR_PARAMETER || kind == TENSOR_GRADIENT ||
                           kind == TENSOR_MASTER || kind == TENSOR_MOMENT || kind == TENSOR_INPUT ||
                           kind == TENSOR_SCALAR;
    const Tensor tensor = {
        .name = program_name(program, name),
        .kind = kind,
        .dtype = dtype,
        .tier = TIER_DEVICE,
        .persistence = state ? PERSIST_STATE : PERSIST_STEP,
        .space = space,
        .elements = elements,
        .unit = NO_UNIT,
        .part = PART_NONE,
    };

    g_assert(space < program->spaces->len);
    g_array_append_val(program->tensors, tensor);
    return program->tensors->len - 1;
}

guint program_add_group(Program *program, const char *purpose, guint size)
{
    const GroupRef group = {.purpose = program_name(program, purpose), .size = size};

    g_array_append_val(program->groups, group);
    return program->groups->len - 1;
}

guint program_add_stream(Program *program, const char *name, StreamKind kind, guint group)
{
    const Stream stream = {.name = program_name(program, name), .kind = kind, .group = group};

    g_assert(program->streams->len < MAX_STREAMS);
    g_array_append_val(program->streams, stream);
    return program->streams->len - 1;
}

guint program_add_segment(Program *program, const char *name)
{
    const Segment segment = {.name = program_name(program, name)};

    g_array_append_val(program->segments, segment);
    return program->segments->len - 1;
}

Op *segment_add_op(Program *program, guint segment, OpKind kind, guint stream, DType dtype)
{
    Segment *to = program_segment(program, segment);

    if ((to->num_ops & (to->num_ops - 1)) == 0) /* 0 or a power of two: all room is taken */
        to->ops = g_renew(Op, to->ops, MAX(2 * to->num_ops, 1));
    Op *op = &to->ops[to->num_ops++];
    memset(op, 0, sizeof *op);
    op->kind = kind;
    op->stream = stream;
    op->dtype = dtype;
    op->dtype_out = dtype;
    op->unit = NO_UNIT;
    op->predicate = NO_TENSOR;
    return op;
}

void op_add_operand(Op *op, guint tensor, Access access, gint shift, gint param)
{
    g_assert(op->num_operands < MAX_OPERANDS);
    op->operands[op->num_operands++] =
        (Operand){.tensor = tensor, .access = access, .shift = shift, .param = param};
}

void call_list_reserve(CallList *list, guint num)
{
    g_assert(list->calls->len == 0);
    g_array_unref(list->calls);
    list->calls = g_array_sized_new(FALSE, TRUE, sizeof(Call), num);
}

guint call_list_add(CallList *list, guint segment, guint unit, guint micro_batch)
{
    const Call call = {
        .segment = segment, .unit = unit, .micro_batch = micro_batch, .first = TRUE, .last = TRUE};

    g_array_append_val(list->calls, call);
    return list->calls->len - 1;
}

/* The waits of a call are contiguous: once a later call has some, it takes no more. */
void call_list_wait(CallList *list, guint call, Wait wait)
{
    Call *waiting = &g_array_index(list->calls, Call, call);

    if (waiting->num_waits == 0)
        waiting->first_wait = list->waits->len;
    g_assert(waiting->first_wait + waiting->num_waits == list->waits->len);
    waiting->num_waits++;
    g_array_append_val(list->waits, wait);
}

gboolean program_copies_file(const Program *program, const Op *op)
{
    return op->kind == OP_COPY &&
           (program_tensor(program, op->operands[0].tensor)->tier == TIER_NVME ||
            program_tensor(program, op->operands[1].tensor)->tier == TIER_NVME);
}

guint32 program_file_streams(const Program *program)
{
    guint32 streams = 0;

    for (guint s = 0; s < program->segments->len; s++) {
        const Segment *segment = program_segment(program, s);

        for (guint i = 0; i < segment->num_ops; i++)
            if (program_copies_file(program, &segment->ops[i]))
                streams |= 1u << segment->ops[i].stream;
    }
    return streams;
}

guint64 tensor_copy_bytes(const Tensor *tensor)
{
    return tensor->elements * dtype_bytes(tensor->dtype);
}

guint64 tensor_bytes(const Program *program, const Tensor *tensor)
{
    return tensor_copy_bytes(tensor) * tensor_num_copies(program, tensor);
}

MemoryTerm tensor_term(const Tensor *tensor)
{
    return kind_term[tensor->kind];
}

const char *memory_term_name(MemoryTerm term)
{
    return term_names[term];
}

const char *volume_name(Volume volume)
{
    return volume_names[volume];
}

const GroupRef *program_stream_group(const Program *program, const Stream *stream)
{
    g_assert(stream->kind == STREAM_COMMUNICATION);
    return &g_array_index(program->groups, GroupRef, stream->group);
}

const char *program_stream_purpose(const Program *program, const Stream *stream)
{
    return stream->kind == STREAM_COMMUNICATION ? program_stream_group(program, stream)->purpose
                                                : "";
}

guint op_group_size(const Program *program, const Op *op)
{
    return program_stream_group(program, program_stream(program, op->stream))->size;
}

guint64 op_collective_elements(const Program *program, const Op *op)
{
    if (op->unit == NO_UNIT)
        return op->sizes.elements;
    const UnitMap *map = program_unit(program, (guint)op->unit)->map;
    if (op->kind != OP_ALL_REDUCE)
        return unit_map_set_elements(map, op->params) * map->ranks;
    if (op->operands[0].param != WHOLE_TENSOR)
        return map->pieces[op->operands[0].param].chunk;
    return program_tensor(program, op->operands[0].tensor)->elements;
}

/* 2 (n - 1) ceil(e / n), in elements: a reduce-scatter, then an all-gather, of chunks. */
static guint64 all_reduce_elements(guint64 elements, guint64 ranks)
{
    return 2 * (ranks - 1) * ((elements + ranks - 1) / ranks);
}

static guint64 all_reduce_op_elements(const Program *program, const Op *op, guint ranks)
{
    const Tensor *tensor = program_tensor(program, op->operands[0].tensor);
    guint64 elements = 0;

    if (op->unit == NO_UNIT)
        return all_reduce_elements(op->sizes.elements, ranks);
    const UnitMap *map = program_unit(program, (guint)op->unit)->map;
    if (op->operands[0].param != WHOLE_TENSOR)
        return all_reduce_elements(map->pieces[op->operands[0].param].chunk, ranks);
    if (tensor->part == PART_SHARD || map->ranks == 1)
        return all_reduce_elements(tensor->elements, ranks);
    for (guint i = 0; i < map->num_pieces; i++)
        elements += all_reduce_elements(map->pieces[i].chunk, ranks);
    return elements;
}

static guint64 received_bytes(const Program *program, const Op *op)
{
    guint64 bytes = 0;

    for (guint i = 0; i < op->num_operands; i++)
        if (op->operands[i].access == ACCESS_WRITE)
            bytes += tensor_copy_bytes(program_tensor(program, op->operands[i].tensor));
    return bytes;
}

guint64 op_volume_bytes(const Program *program, const Op *op)
{
    const guint64 element_bytes = dtype_bytes(op->dtype);
    guint64 ranks, shard_elements;

    if (!op_kind_is_communication(op->kind))
        return 0;
    if (op->kind == OP_EXCHANGE)
        return received_bytes(program, op);
    ranks = op_group_size(program, op);
    if (op->kind == OP_ALL_REDUCE)
        return all_reduce_op_elements(program, op, (guint)ranks) * element_bytes;
    shard_elements =
        op->unit == NO_UNIT
            ? (op->sizes.elements + ranks - 1) / ranks
            : unit_map_set_elements(program_unit(program, (guint)op->unit)->map, op->params);
    return (ranks - 1) * shard_elements * element_bytes;
}

Volume op_volume(OpKind kind)
{
    switch (kind) {
    case OP_ALL_GATHER:
        return VOLUME_ALL_GATHER;
    case OP_REDUCE_SCATTER:
        return VOLUME_REDUCE_SCATTER;
    case OP_ALL_REDUCE:
        return VOLUME_ALL_REDUCE;
    case OP_ALL_TO_ALL:
        return VOLUME_ALL_TO_ALL;
    case OP_EXCHANGE:
        return VOLUME_EXCHANGE;
    default:
        g_assert_not_reached();
    }
}

static gboolean is_of_purpose(const Program *program, const Op *op, const char *purpose)
{
    const Stream *stream = program_stream(program, op->stream);

    return purpose == NULL || strcmp(program_stream_purpose(program, stream), purpose) == 0;
}

void program_purpose_volume(const Program *program, const char *purpose, guint64 bytes[NUM_VOLUMES])
{
    memset(bytes, 0, NUM_VOLUMES * sizeof *bytes);
    for (guint c = 0; c < program->step.calls->len; c++) {
        const Call *call = &g_array_index(program->step.calls, Call, c);
        const Segment *segment = program_segment(program, call->segment);

        for (guint i = 0; i < segment->num_ops; i++) {
            const Op *op = &segment->ops[i];

            if (op_kind_is_communication(op->kind) && is_of_purpose(program, op, purpose))
                bytes[op_volume(op->kind)] += op_volume_bytes(program, op);
        }
    }
}

void program_volume(const Program *program, guint64 bytes[NUM_VOLUMES])
{
    program_purpose_volume(program, NULL, bytes);
}

guint32 *program_first_ops(const Program *program)
{
    const GArray *calls = program->step.calls;
    guint32 *first_op = g_new(guint32, calls->len + 1);

    first_op[0] = 0;
    for (guint c = 0; c < calls->len; c++)
        first_op[c + 1] =
            first_op[c] + program_segment(program, g_array_index(calls, Call, c).segment)->num_ops;
    return first_op;
}

guint64 program_num_ops(const Program *program)
{
    g_autofree guint32 *first_op = program_first_ops(program);

    return first_op[program->step.calls->len];
}

char *program_op_label(const Program *program, const Call *call, const Op *op)
{
    return g_strdup_printf("%s unit %u micro-batch %u %s",
                           program_segment(program, call->segment)->name, call->unit,
                           call->micro_batch, op_kind_name(op->kind));
}
