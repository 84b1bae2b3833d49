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

static gboolean touches_whole_weights(const Program *program, const Op *op)
{
    for (guint o = 0; o < op->num_operands; o++)
        if (program_tensor(program, op->operands[o].tensor)->kind == TENSOR_GATHERED)
            return TRUE;
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
    sums->moving_s += (files >> op->stream & 1) != 0 ? 0 : seconds;
    if (strcmp(purpose, "replicate") == 0) {
        sums->replicate_s += seconds;
    } else if (strcmp(purpose, "ep") == 0) {
        sums->experts_s += seconds;
    } else if (g_str_has_suffix(purpose, "shard") || g_str_has_suffix(purpose, "data")) {
        sums->shard_s += seconds;
        sums->shard_moves_s += touches_whole_weights(program, op) ? seconds : 0;
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

/* One copy of a tensor, named by the shift of the operands that mean it. */
typedef struct {
    guint tensor;
    gint shift;
    double written_s, read_s;
} Copy;

enum { MAX_SHIFTED = 16, NONE = G_MAXUINT };

/* An event that nothing waits for has always happened. */
static const double ALWAYS = -INFINITY;

/* The longest path so far. */
typedef struct {
    const SegmentRun *run;
    Copy *copies; /* by tensor, then those with a shift */
    guint num_copies;
    double stream_s[MAX_STREAMS];
    double *end_s;  /* by op of a segment */
    double until_s; /* the latest end of the ops that touch `watched` */
    guint watched;
} Path;

static Copy *copy_of(Path *path, const Operand *operand)
{
    const guint tensors = path->run->program->tensors->len;

    if (operand->shift == 0)
        return &path->copies[operand->tensor];
    for (guint i = tensors; i < path->num_copies; i++)
        if (path->copies[i].tensor == operand->tensor && path->copies[i].shift == operand->shift)
            return &path->copies[i];
    g_assert(path->num_copies < tensors + MAX_SHIFTED);
    path->copies[path->num_copies] = (Copy){operand->tensor, operand->shift, ALWAYS, ALWAYS};
    return &path->copies[path->num_copies++];
}

/* What the host binds is always there. */
static gboolean is_input(const Path *path, const Operand *operand)
{
    return program_tensor(path->run->program, operand->tensor)->kind == TENSOR_INPUT;
}

static double operand_ready_s(Path *path, const Operand *operand)
{
    if (is_input(path, operand))
        return ALWAYS;
    const Copy *copy = copy_of(path, operand);

    return operand->access == ACCESS_READ ? copy->written_s : MAX(copy->written_s, copy->read_s);
}

static void note_operand(Path *path, const Operand *operand, double end_s)
{
    if (is_input(path, operand))
        return;
    Copy *copy = copy_of(path, operand);

    if (operand->access == ACCESS_READ)
        copy->read_s = MAX(copy->read_s, end_s);
    else
        *copy = (Copy){operand->tensor, operand->shift, end_s, ALWAYS};
    if (operand->tensor == path->watched)
        path->until_s = MAX(path->until_s, end_s);
}

static void follow(Path *path, const Op *op, guint index, double took_s, gboolean is_source)
{
    double at = path->stream_s[op->stream];

    for (guint o = 0; o < op->num_operands; o++)
        at = MAX(at, operand_ready_s(path, &op->operands[o]));
    for (guint w = 0; w < op->num_waits; w++)
        at = MAX(at, path->end_s[op->waits[w]]);
    at = (is_source ? MAX(at, 0) : at) + took_s;
    path->end_s[index] = path->stream_s[op->stream] = at;
    for (guint o = 0; o < op->num_operands; o++)
        note_operand(path, &op->operands[o], at);
}

/* @source: the op of the run that starts at 0, or NONE. */
static void follow_all(Path *path, guint source)
{
    const SegmentRun *run = path->run;
    guint before = 0;

    for (guint s = 0; s < run->num; s++) {
        const Segment *segment = program_segment(run->program, run->segments[s]);

        for (guint i = 0; i < segment->num_ops; i++)
            follow(path, &segment->ops[i], i, run->durations[run->segments[s]][i],
                   before + i == source);
        before += segment->num_ops;
    }
}

/* When the path starts: at the compute stream, at the entry, at one op. */
typedef struct {
    double stream_s;
    guint entry;  /* tensor, or NONE */
    guint source; /* op, or NONE */
} Start;

static guint num_ops(const SegmentRun *run)
{
    guint num = 0;

    for (guint s = 0; s < run->num; s++)
        num += program_segment(run->program, run->segments[s])->num_ops;
    return num;
}

/* @watched: a tensor, or NONE; *until_s gets when its last op ends. */
static double longest(const SegmentRun *run, const Start *start, guint watched, double *until_s)
{
    const guint tensors = run->program->tensors->len;
    g_autofree Copy *copies = g_new(Copy, tensors + MAX_SHIFTED);
    g_autofree double *end_s = g_new(double, num_ops(run) + 1);
    Path path = {.run = run,
                 .copies = copies,
                 .end_s = end_s,
                 .num_copies = tensors,
                 .until_s = ALWAYS,
                 .watched = watched};

    for (guint t = 0; t < tensors; t++)
        copies[t] = (Copy){t, 0, t == start->entry ? 0 : ALWAYS, ALWAYS};
    for (guint s = 0; s < MAX_STREAMS; s++)
        path.stream_s[s] = ALWAYS;
    path.stream_s[COMPUTE_STREAM] = start->stream_s;
    follow_all(&path, start->source);
    if (until_s != NULL)
        *until_s = MAX(path.until_s, 0);
    return MAX(path.stream_s[COMPUTE_STREAM], 0);
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

/* From the start of the first op that touches @tensor. */
static double tail_s(const SegmentRun *run, guint tensor)
{
    const Op *op;

    for (guint i = 0; tensor != NONE && (op = op_at(run, i)) != NULL; i++)
        if (touches(op, tensor)) {
            const Start start = {ALWAYS, NONE, i};

            return longest(run, &start, NONE, NULL);
        }
    return 0;
}

SegmentPath segment_path(const SegmentRun *run)
{
    const guint weights = unit_tensor(run, TENSOR_PARAMETER);
    const guint gradients = unit_tensor(run, TENSOR_GRADIENT);
    const guint entry = entry_of(run);
    const Start whole = {0, entry, NONE}, stream = {0, NONE, NONE},
                only_entry = {ALWAYS, entry, NONE};
    SegmentPath path = {
        .whole_s = longest(run, &whole, NONE, NULL),
        .entry_s = longest(run, &only_entry, NONE, NULL),
        .weights_tail_s = tail_s(run, weights),
        .gradients_tail_s = tail_s(run, gradients),
    };

    path.stream_s = longest(run, &stream, weights, &path.weights_until_s);
    longest(run, &stream, gradients, &path.gradients_until_s);
    return path;
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
