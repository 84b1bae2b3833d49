/* A program: what one class of equal ranks does in a training step.  The simulator prices it, the
 * executor runs it (DESIGN 2).  Built once, then const. */
#pragma once

#include "sim/layout/sharding.h"
#include "sim/program/op.h"

#include <glib.h>
#include <string.h>

typedef enum {
    TENSOR_PARAMETER,     /* stored: shard, or whole where not sharded */
    TENSOR_GATHERED,      /* whole unit for as long as it is needed */
    TENSOR_UNIT_GRADIENT, /* whole gradients of a unit alive between backward and reduction */
    TENSOR_GRADIENT,      /* accumulators: shards, or whole where not sharded */
    TENSOR_MASTER,
    TENSOR_MOMENT,
    TENSOR_ACTIVATION,
    TENSOR_LOGITS,
    TENSOR_COMMUNICATION, /* other buffers of collectives */
    TENSOR_WORKSPACE,
    TENSOR_INPUT,  /* tokens, labels, rotary table: bound by the host */
    TENSOR_SCALAR, /* step scalars */
    NUM_TENSOR_KINDS
} TensorKind;

typedef enum {
    PERSIST_STATE, /* lives between steps */
    PERSIST_STEP,  /* may be reused once its last reader is done */
} Persistence;

/* Which part of a unit a tensor holds. */
typedef enum { PART_NONE, PART_SHARD, PART_WHOLE } UnitPart;

typedef enum {
    TERM_PARAMETERS,
    TERM_GATHERED,
    TERM_GRADIENTS,
    TERM_MASTER,
    TERM_OPTIMIZER,
    TERM_ACTIVATIONS,
    TERM_LOGITS,
    TERM_COMMUNICATION,
    TERM_WORKSPACE,
    TERM_FRAMEWORK,
    NUM_MEMORY_TERMS
} MemoryTerm;

typedef enum {
    VOLUME_ALL_GATHER,
    VOLUME_REDUCE_SCATTER,
    VOLUME_ALL_REDUCE,
    VOLUME_ALL_TO_ALL,
    VOLUME_EXCHANGE,
    NUM_VOLUMES
} Volume;

/* An index space: a tensor in it has `count` copies at base + index * stride.  Layers,
 * micro-batches in flight, units gathered, reductions in flight are spaces; what a space counts is
 * its own.  No call touches two spaces of one slot, so that one index tells of both. */
typedef struct {
    const char *name;
    guint count, slot;
} Space;

enum { MAX_SLOTS = 64, NO_SPACE = 0 }; /* space 0 has one copy */

typedef struct {
    const char *name;
    TensorKind kind;
    DType dtype;
    Tier tier;
    Persistence persistence;
    guint space;
    guint64 elements; /* of one copy */
    gint unit;        /* unit class whose elements it holds, or NO_UNIT */
    UnitPart part;
    /* set by place */
    guint64 offset, stride; /* bytes */
} Tensor;

typedef enum { STREAM_COMPUTE, STREAM_COPY, STREAM_COMMUNICATION } StreamKind;

typedef struct {
    const char *name;
    StreamKind kind;
    guint group; /* STREAM_COMMUNICATION: index into the program's groups */
} Stream;

enum { MAX_STREAMS = 24, COMPUTE_STREAM = 0 };

/* A purpose ("shard", "replicate", "data", "pp", "tp") and its size for this class of ranks. */
typedef struct {
    const char *purpose;
    guint size;
} GroupRef;

/* Units with the same shapes and the same strategy share tensors and segments. */
typedef struct {
    const char *name; /* "root", "block", "block.2" */
    UnitKind kind;
    guint of_kind; /* of blocks: model_block_kind() */
    Strategy strategy;
    guint count; /* units of this class = copies of its state */
    UnitMap *map;
    const char *prefix; /* "model.layers.", before the number and the name of a block's parameter */
    const char **param_names; /* NULL-terminated, storage order */
    guint layer_space;        /* of its state: one copy a unit */
    /* its tensors; NO_TENSOR where there is none */
    gint parameter, gathered, unit_gradient, gradient, master, moment[2];
} UnitClass;

/* Unit number (0 root, i + 1 block i) -> class, and which unit of that class; NO_UNIT_CLASS where
 * another stage has it. */
enum { NO_UNIT_CLASS = G_MAXUINT };

typedef struct {
    guint unit_class, index;
} UnitRef;

typedef struct {
    const char *name; /* "block.forward", "root.gather" */
    guint num_ops;
    Op *ops;
} Segment;

/* An event is (call, op), named in the list of this step or, with back = 1, of the step before. */
typedef struct {
    guint call, op; /* op LAST_OP: the call's last */
    guint before;   /* the op of the waiting call that must not start earlier */
    guint back;
} Wait;

enum { LAST_OP = G_MAXUINT };

typedef struct {
    guint segment;
    guint
        unit; /* number of the unit: 0 root, i + 1 block i; its row of fp8 scales, and for names */
    guint micro_batch;
    gboolean first, last;        /* of an accumulation */
    guint first_wait, num_waits; /* slice of the list's waits */
    guint16 index[MAX_SLOTS];    /* by slot of a space */
} Call;

typedef struct {
    GArray *calls; /* Call */
    GArray *waits; /* Wait */
} CallList;

/* Memory of one rank at its peak moment, by term.  Terms add up to `total`, which is the arena
 * (framework is 0 here: it is the target's, not the program's). */
typedef struct {
    guint64 term[NUM_MEMORY_TERMS];
    guint64 total;
    guint64 live_peak;  /* bytes of tensors alive at that moment, without alignment and gaps */
    const char *moment; /* the segment that is running then; owned by the program */
} MemoryUse;

typedef struct Pattern Pattern; /* pattern.h */

typedef struct {
    GStringChunk *names; /* of all that follows */
    GArray *tensors;     /* Tensor */
    GArray *spaces;      /* Space */
    guint num_slots;     /* of them */
    GArray *streams;     /* Stream */
    GArray *groups;      /* GroupRef */
    GArray *units;       /* UnitClass */
    GArray *unit_refs;   /* UnitRef, by unit number */
    GArray *segments;    /* Segment */
    CallList prologue, step, epilogue;
    guint64 arena_bytes[NUM_TIERS]; /* set by place */
    MemoryUse memory;               /* set by place: program_memory() */
    Pattern *pattern;               /* shared with programs of other sizes, or NULL */
} Program;

Program *program_new(void); /* with space 0 ("one") and stream 0 ("compute") */
void program_free(Program *program);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Program, program_free)

/* A copy of @text that lives as long as @program. */
const char *program_name(Program *program, const char *text);

/* Builders; names are copied; each returns the new index. */
guint program_add_space(Program *program, const char *name, guint count);
/* With the slot of @space, unless that is NO_SPACE. */
guint program_add_space_beside(Program *program, const char *name, guint count, guint space);
/* Persistence follows from the kind: parameters, accumulators, masters, moments and inputs are
 * state. */
guint program_add_tensor(Program *program, const char *name, TensorKind kind, DType dtype,
                         guint space, guint64 elements);
guint program_add_group(Program *program, const char *purpose, guint size);
guint program_add_stream(Program *program, const char *name, StreamKind kind, guint group);
guint program_add_segment(Program *program, const char *name); /* empty */
Op *segment_add_op(Program *program, guint segment, OpKind kind, guint stream, DType dtype);
void op_add_operand(Op *op, guint tensor, Access access, gint shift, gint param);
void call_list_reserve(CallList *list, guint num); /* room for so many calls, before the first */
guint call_list_add(CallList *list, guint segment, guint unit,
                    guint micro_batch);                     /* all indices 0 */
void call_list_wait(CallList *list, guint call, Wait wait); /* call after call */

static inline Tensor *program_tensor(const Program *program, guint i)
{
    return &g_array_index(program->tensors, Tensor, i);
}
static inline Segment *program_segment(const Program *program, guint i)
{
    return &g_array_index(program->segments, Segment, i);
}
static inline Space *program_space(const Program *program, guint i)
{
    return &g_array_index(program->spaces, Space, i);
}
static inline UnitClass *program_unit(const Program *program, guint i)
{
    return &g_array_index(program->units, UnitClass, i);
}
static inline const UnitRef *program_unit_ref(const Program *program, guint unit)
{
    return &g_array_index(program->unit_refs, UnitRef, unit);
}
static inline Stream *program_stream(const Program *program, guint i)
{
    return &g_array_index(program->streams, Stream, i);
}

/* The group of a stream that communicates; its purpose, "" of other streams. */
const GroupRef *program_stream_group(const Program *program, const Stream *stream);
const char *program_stream_purpose(const Program *program, const Stream *stream);

/* Of a purpose's group; 1 where there is none. */
static inline guint program_purpose_ranks(const Program *program, const char *purpose)
{
    for (guint g = 0; g < program->groups->len; g++)
        if (strcmp(g_array_index(program->groups, GroupRef, g).purpose, purpose) == 0)
            return g_array_index(program->groups, GroupRef, g).size;
    return 1;
}

/* Copies to and from a file (the nvme tier); streams, as bits, on which such copies are: a thread
 * of its own runs what is on them, one after the other in the order of issue. */
gboolean program_copies_file(const Program *program, const Op *op);
guint32 program_file_streams(const Program *program);

/* Bytes of one copy, and of all copies. */
guint64 tensor_copy_bytes(const Tensor *tensor);
guint64 tensor_bytes(const Program *program, const Tensor *tensor); /* of all copies */
static inline guint tensor_num_copies(const Program *program, const Tensor *tensor)
{
    return g_array_index(program->spaces, Space, tensor->space).count;
}

/* @index counted around within @count; to divide takes long, and is rarely needed. */
static inline guint index_within(gint index, gint count)
{
    if (index < 0 || index >= count)
        index %= count;
    return (guint)(index < 0 ? index + count : index);
}

/* The copy that an operand of a call means. */
static inline guint operand_copy(const Program *program, const Call *call, const Operand *operand)
{
    const Space *space = program_space(program, program_tensor(program, operand->tensor)->space);

    return index_within((gint)call->index[space->slot] + operand->shift, (gint)space->count);
}

/* The term of DESIGN 4 that a tensor counts under; their names, and those of volumes, as in plans.
 */
MemoryTerm tensor_term(const Tensor *tensor);
const char *memory_term_name(MemoryTerm term);
const char *volume_name(Volume volume);

/* Members of the group of the stream that a communication op is on. */
guint op_group_size(const Program *program, const Op *op);

/* Elements of the whole that a collective is about: all its members have the same. */
guint64 op_collective_elements(const Program *program, const Op *op);

/* Bytes that one rank receives through one op (DESIGN 4, "Volume"), 0 for compute; and the kind
 * that a communication op counts under. */
guint64 op_volume_bytes(const Program *program, const Op *op);
Volume op_volume(OpKind kind);

/* The whole step's volume per kind (prologue and epilogue are not counted); that of groups of one
 * purpose ("shard", "tp", ...), NULL: of all. */
void program_volume(const Program *program, guint64 bytes[NUM_VOLUMES]);
void program_purpose_volume(const Program *program, const char *purpose,
                            guint64 bytes[NUM_VOLUMES]);
guint64 program_num_ops(const Program *program); /* of a step */

/* Ordinals of ops in a step: by call, that of its first op; one past the last call, their number.
 * The caller's. */
guint32 *program_first_ops(const Program *program);

/* Ordinal of the op that a wait names, in the step that it names. */
static inline guint32 wait_event(const guint32 *first_op, const Wait *wait)
{
    return wait->op == LAST_OP ? first_op[wait->call + 1] - 1 : first_op[wait->call] + wait->op;
}

/* One op of one call as traces and stores call it: "block.forward unit 3 micro-batch 0 linear". */
char *program_op_label(const Program *program, const Call *call, const Op *op);

/* SHA-256 over everything that the executor acts on, in a canonical text; hex. */
char *program_hash(const Program *program);

/* ---- all ranks ---- */

/* One group of ranks with a purpose, in the order of positions. */
typedef struct {
    guint size;
    guint *ranks;
} Group;

/* All groups of one purpose: rank r is in groups[of_rank[r]], or in none (-1). */
typedef struct {
    char *purpose;
    GArray *groups; /* Group */
    gint *of_rank;
    GPtrArray *members; /* arrays that the groups' ranks are in */
} GroupSet;

/* The programs of all ranks: a few classes of equal ones. */
typedef struct {
    guint num_ranks, num_classes;
    Program **classes;
    guint *class_of;    /* by rank */
    GArray *group_sets; /* GroupSet */
} ProgramSet;

ProgramSet *program_set_new(guint num_ranks);                   /* no classes yet */
guint program_set_add_class(ProgramSet *set, Program *program); /* takes */
void program_set_assign(ProgramSet *set, guint rank, guint class_index);
guint program_set_first_rank(const ProgramSet *set, guint class_index);
void program_set_add_group(ProgramSet *set, const char *purpose, const guint *ranks, guint size);

/* Adds all groups of a purpose that is new, members in the order of ranks: a rank is in that of
 * @first (array of num_ranks), its first member's number, or in none (-1). */
void program_set_add_groups(ProgramSet *set, const char *purpose, const gint *first);
const Group *program_set_group(const ProgramSet *set, const char *purpose,
                               guint rank); /* NULL: none */
guint group_position(const Group *group, guint rank);
char *program_set_hash(const ProgramSet *set);
void program_set_free(ProgramSet *set);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ProgramSet, program_set_free)
