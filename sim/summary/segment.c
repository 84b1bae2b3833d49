#include "sim/summary/segment.h"

#include <math.h>
#include <string.h>

/* ---- sums ---- */

static const char *stream_purpose(const Program *program, const Op *op)
{
    const Stream *stream = program_stream(program, op->stream);

    return stream->kind == STREAM_COMMUNICATION
               ? g_array_index(program->groups, GroupRef, stream->group).purpose
               : "";
}

static gboolean touches_whole_copy(const Program *program, const Op *op)
{
    for (guint o = 0; o < op->num_operands; o++) {
        const TensorKind kind = program_tensor(program, op->operands[o].tensor)->kind;

        if (kind == TENSOR_GATHERED || kind == TENSOR_UNIT_GRADIENT)
            return TRUE;
    }
    return FALSE;
}

/* @files: program_file_streams(), whose ops another thread runs; and to wait for a disk takes no
 * core. */
static void add_op(SegmentSums *sums, const Program *program, guint32 files, const Op *op,
                   double seconds)
{
    sums->all_s += program_copies_file(program, op) ? 0 : seconds;
    if (op_kind_is_communication(op->kind))
        sums->volume_bytes[op_volume(op->kind)] += op_volume_bytes(program, op);
    if (op->stream == COMPUTE_STREAM)
        return;
    const char *purpose = stream_purpose(program, op);
    const gboolean of_files = (files >> op->stream & 1) != 0;
    *(of_files ? &sums->files_s : &sums->moving_s) += seconds;
    if (op->kind == OP_COPY)
        sums->copies_s[program_tensor(program, op->operands[0].tensor)->tier == TIER_DEVICE] +=
            seconds;
    if (strcmp(purpose, "replicate") == 0) {
        sums->replicate_s += seconds;
    } else if (strcmp(purpose, "ep") == 0) {
        sums->experts_s += seconds;
    } else if (g_str_has_suffix(purpose, "shard") || g_str_has_suffix(purpose, "data")) {
        sums->shard_s += seconds;
        sums->shard_moves_s += touches_whole_copy(program, op) ? seconds : 0;
        sums->data_s += strcmp(purpose, "data") == 0 ? seconds : 0;
    }
}

SegmentSums segment_sums(const SegmentRun *run)
{
    const guint32 files = program_file_streams(run->program);
    SegmentSums sums = {0};

    for (guint s = 0; s < run->num; s++) {
        const Segment *segment = program_segment(run->program, run->segments[s]);

        for (guint i = 0; i < segment->num_ops; i++)
            add_op(&sums, run->program, files, &segment->ops[i],
                   run->durations[run->segments[s]][i]);
    }
    return sums;
}

/* ---- paths ---- */

/* Where paths start: at the compute stream and the entry, at one of them, at the first op that
 * touches the weights (the gradients).  All are followed at once. */
typedef enum {
    FROM_BOTH,
    FROM_STREAM,
    FROM_ENTRY,
    FROM_WEIGHTS,
    FROM_GRADIENTS,
    NUM_STARTS
} PathStart;

/* Seconds by start. */
typedef struct {
    double s[NUM_STARTS];
} Times;

/* One copy of a tensor, named by the shift of the operands that mean it. */
typedef struct {
    guint tensor;
    gint shift;
    Times written, read;
} Copy;

enum { MAX_SHIFTED = 16, NONE = G_MAXUINT };

/* An event that nothing waits for has always happened. */
static const double ALWAYS = -INFINITY;

static const Times always = {{-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY}};

/* The longest paths so far. */
typedef struct {
    const SegmentRun *run;
    Copy *copies; /* by tensor, then those with a shift */
    guint num_copies;
    Times stream[MAX_STREAMS];
    Times *end;                            /* by op of a segment */
    guint weights, gradients;              /* tensors, or NONE */
    guint source[NUM_STARTS];              /* op of the run that starts at 0, or NONE */
    double weights_until, gradients_until; /* FROM_STREAM: the latest end of ops that touch them */
} Path;

static void add_later(Times *times, const Times *others)
{
    for (guint i = 0; i < NUM_STARTS; i++)
        times->s[i] = MAX(times->s[i], others->s[i]);
}

static Copy *copy_of(Path *path, const Operand *operand)
{
    const guint tensors = path->run->program->tensors->len;

    if (operand->shift == 0)
        return &path->copies[operand->tensor];
    for (guint i = tensors; i < path->num_copies; i++)
        if (path->copies[i].tensor == operand->tensor && path->copies[i].shift == operand->shift)
            return &path->copies[i];
    g_assert(path->num_copies < tensors + MAX_SHIFTED);
    path->copies[path->num_copies] = (Copy){operand->tensor, operand->shift, always, always};
    return &path->copies[path->num_copies++];
}

/* What the host binds is always there. */
static gboolean is_input(const Path *path, const Operand *operand)
{
    return program_tensor(path->run->program, operand->tensor)->kind == TENSOR_INPUT;
}

static void wait_for_operand(Path *path, const Operand *operand, Times *at)
{
    if (is_input(path, operand))
        return;
    const Copy *copy = copy_of(path, operand);

    add_later(at, &copy->written);
    if (operand->access != ACCESS_READ)
        add_later(at, &copy->read);
}

static void note_operand(Path *path, const Operand *operand, const Times *end)
{
    if (is_input(path, operand))
        return;
    Copy *copy = copy_of(path, operand);

    if (operand->access == ACCESS_READ)
        add_later(&copy->read, end);
    else
        *copy = (Copy){operand->tensor, operand->shift, *end, always};
    if (operand->tensor == path->weights)
        path->weights_until = MAX(path->weights_until, end->s[FROM_STREAM]);
    if (operand->tensor == path->gradients)
        path->gradients_until = MAX(path->gradients_until, end->s[FROM_STREAM]);
}

/* @index: of the op in its segment, @number: in the run. */
static void follow(Path *path, const Op *op, guint index, guint number, double took_s)
{
    Times at = path->stream[op->stream];

    for (guint o = 0; o < op->num_operands; o++)
        wait_for_operand(path, &op->operands[o], &at);
    for (guint w = 0; w < op->num_waits; w++)
        add_later(&at, &path->end[op->waits[w]]);
    for (guint i = 0; i < NUM_STARTS; i++) {
        if (path->source[i] == number)
            at.s[i] = MAX(at.s[i], 0);
        at.s[i] += took_s;
    }
    path->end[index] = path->stream[op->stream] = at;
    for (guint o = 0; o < op->num_operands; o++)
        note_operand(path, &op->operands[o], &at);
}

static void follow_all(Path *path)
{
    const SegmentRun *run = path->run;
    guint before = 0;

    for (guint s = 0; s < run->num; s++) {
        const Segment *segment = program_segment(run->program, run->segments[s]);

        for (guint i = 0; i < segment->num_ops; i++)
            follow(path, &segment->ops[i], i, before + i, run->durations[run->segments[s]][i]);
        before += segment->num_ops;
    }
}

static guint num_ops(const SegmentRun *run)
{
    guint num = 0;

    for (guint s = 0; s < run->num; s++)
        num += program_segment(run->program, run->segments[s])->num_ops;
    return num;
}

static const Op *op_at(const SegmentRun *run, guint index)
{
    for (guint s = 0; s < run->num; s++) {
        const Segment *segment = program_segment(run->program, run->segments[s]);

        if (index < segment->num_ops)
            return &segment->ops[index];
        index -= segment->num_ops;
    }
    return NULL;
}

/* The activation that the last compute op writes. */
static guint entry_of(const SegmentRun *run)
{
    const Segment *segment = program_segment(run->program, run->segments[run->num - 1]);

    for (guint i = segment->num_ops; i-- > 0;) {
        const Op *op = &segment->ops[i];

        for (guint o = 0; op->stream == COMPUTE_STREAM && o < op->num_operands; o++)
            if (op->operands[o].access != ACCESS_READ &&
                program_tensor(run->program, op->operands[o].tensor)->kind == TENSOR_ACTIVATION)
                return op->operands[o].tensor;
        if (op->stream == COMPUTE_STREAM)
            break;
    }
    return NONE;
}

static gboolean is_watched(const SegmentRun *run, guint index, TensorKind kind)
{
    const Tensor *tensor = program_tensor(run->program, index);

    return tensor->kind == kind && (run->watched == NO_UNIT || run->watched == tensor->unit);
}

/* The unit's whole weights or whole gradients among the operands of the run. */
static guint unit_tensor(const SegmentRun *run, TensorKind kind)
{
    const Op *op;

    for (guint i = 0; (op = op_at(run, i)) != NULL; i++)
        for (guint o = 0; o < op->num_operands; o++)
            if (is_watched(run, op->operands[o].tensor, kind))
                return op->operands[o].tensor;
    return NONE;
}

static gboolean touches(const Op *op, guint tensor)
{
    for (guint o = 0; o < op->num_operands; o++)
        if (op->operands[o].tensor == tensor)
            return TRUE;
    return FALSE;
}

/* The first op of the run that touches @tensor. */
static guint first_touch(const SegmentRun *run, guint tensor)
{
    const Op *op;

    for (guint i = 0; tensor != NONE && (op = op_at(run, i)) != NULL; i++)
        if (touches(op, tensor))
            return i;
    return NONE;
}

static void path_start(Path *path, guint entry)
{
    const guint tensors = path->run->program->tensors->len;

    for (guint t = 0; t < tensors; t++)
        path->copies[t] = (Copy){t, 0, always, always};
    if (entry != NONE)
        path->copies[entry].written.s[FROM_BOTH] = path->copies[entry].written.s[FROM_ENTRY] = 0;
    for (guint s = 0; s < MAX_STREAMS; s++)
        path->stream[s] = always;
    path->stream[COMPUTE_STREAM].s[FROM_BOTH] = path->stream[COMPUTE_STREAM].s[FROM_STREAM] = 0;
    for (guint i = 0; i < NUM_STARTS; i++)
        path->source[i] = NONE;
    path->source[FROM_WEIGHTS] = first_touch(path->run, path->weights);
    path->source[FROM_GRADIENTS] = first_touch(path->run, path->gradients);
}

SegmentPath segment_path(const SegmentRun *run)
{
    const guint tensors = run->program->tensors->len;
    g_autofree Copy *copies = g_new(Copy, tensors + MAX_SHIFTED);
    g_autofree Times *end = g_new(Times, num_ops(run) + 1);
    Path path = {.run = run,
                 .copies = copies,
                 .num_copies = tensors,
                 .end = end,
                 .weights = unit_tensor(run, TENSOR_PARAMETER),
                 .gradients = unit_tensor(run, TENSOR_GRADIENT),
                 .weights_until = ALWAYS,
                 .gradients_until = ALWAYS};
    const Times *last = &path.stream[COMPUTE_STREAM];

    path_start(&path, entry_of(run));
    follow_all(&path);
    return (SegmentPath){
        .whole_s = MAX(last->s[FROM_BOTH], 0),
        .stream_s = MAX(last->s[FROM_STREAM], 0),
        .entry_s = MAX(last->s[FROM_ENTRY], 0),
        .weights_tail_s = MAX(last->s[FROM_WEIGHTS], 0),
        .gradients_tail_s = MAX(last->s[FROM_GRADIENTS], 0),
        .weights_until_s = MAX(path.weights_until, 0),
        .gradients_until_s = MAX(path.gradients_until, 0),
    };
}

/* ---- peaks ---- */

/* The newest life of a tensor, from a write to the last access before the next: ops of the run. */
typedef struct {
    guint first, last;
    gboolean seen;
} Life;

typedef struct {
    const SegmentRun *run;
    const gboolean *is_counted;
    Life *lives;    /* by tensor */
    guint64 *alive; /* by op: bytes */
} Tally;

static gboolean is_transient(const Tally *tally, const Tensor *tensor)
{
    return tensor->persistence == PERSIST_STEP &&
           (tensor->space == NO_SPACE || tally->is_counted[tensor->space]);
}

static void end_life(const Tally *tally, guint t)
{
    const Tensor *tensor = program_tensor(tally->run->program, t);
    const Life *life = &tally->lives[t];

    for (guint i = life->first; life->seen && is_transient(tally, tensor) && i <= life->last; i++)
        tally->alive[i] += tensor_copy_bytes(tensor);
}

/* What is not written first was there before. */
static void note_access(const Tally *tally, const Operand *operand, guint index)
{
    Life *life = &tally->lives[operand->tensor];
    const gboolean starts = operand->access == ACCESS_WRITE;

    if (starts)
        end_life(tally, operand->tensor);
    if (starts || !life->seen)
        *life = (Life){.first = starts ? index : 0, .seen = TRUE};
    life->last = index;
}

static void tally_lives(const Tally *tally)
{
    const Op *op;

    for (guint i = 0; (op = op_at(tally->run, i)) != NULL; i++)
        for (guint o = 0; o < op->num_operands; o++)
            note_access(tally, &op->operands[o], i);
    for (guint t = 0; t < tally->run->program->tensors->len; t++)
        end_life(tally, t);
}

/* The ops between the first that touches the gradients and the last that reads the weights. */
static void find_extent(const SegmentRun *run, guint tensor, guint *first, guint *last)
{
    const Op *op;

    *first = G_MAXUINT;
    *last = 0;
    for (guint i = 0; (op = op_at(run, i)) != NULL; i++)
        if (touches(op, tensor)) {
            *first = MIN(*first, i);
            *last = i + 1;
        }
}

SegmentPeak segment_peak(const SegmentRun *run, const gboolean *is_counted)
{
    const guint num = num_ops(run);
    g_autofree Life *lives = g_new0(Life, run->program->tensors->len);
    g_autofree guint64 *alive = g_new0(guint64, num + 1);
    const Tally tally = {run, is_counted, lives, alive};
    SegmentPeak peak = {0};
    guint weights_end, gradients_start, unused;

    tally_lives(&tally);
    find_extent(run, unit_tensor(run, TENSOR_PARAMETER), &unused, &weights_end);
    find_extent(run, unit_tensor(run, TENSOR_GRADIENT), &gradients_start, &unused);
    for (guint i = 0; i < num; i++) {
        guint64 *bytes = &peak.bytes[i < weights_end][i >= gradients_start];

        *bytes = MAX(*bytes, alive[i]);
    }
    return peak;
}
