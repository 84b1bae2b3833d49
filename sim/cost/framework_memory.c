#include "sim/cost/framework_memory.h"

#include "sim/program/cuda_blocks.h"

#include <math.h>
#include <string.h>

/* "q" of blocks, "sparse.q" of those with experts. */
static gboolean is_named(const Tensor *tensor, const char *name)
{
    const char *dot = strrchr(tensor->name, '.');

    return strcmp(dot == NULL ? tensor->name : dot + 1, name) == 0;
}

static Tensor *find_tensor(const Program *program, const char *name)
{
    for (guint t = 0; t < program->tensors->len; t++)
        if (is_named(program_tensor(program, t), name))
            return program_tensor(program, t);
    return NULL;
}

static const Op *find_op(const Program *program, OpKind kind)
{
    for (guint s = 0; s < program->segments->len; s++)
        for (guint i = 0; i < program_segment(program, s)->num_ops; i++)
            if (program_segment(program, s)->ops[i].kind == kind)
                return &program_segment(program, s)->ops[i];
    return NULL;
}

static void grow(Tensor *tensor, double bytes)
{
    tensor->elements += (guint64)ceil(bytes / dtype_bytes(tensor->dtype));
}

/* Products of rounded operands keep these. */
static gboolean is_fp8(const Program *program)
{
    return find_op(program, OP_LINEAR)->dtype == DTYPE_FP8;
}

/* Of one copy; 0 where there is no such tensor. */
static double elements_of(const Program *program, const char *name)
{
    const Tensor *tensor = find_tensor(program, name);

    return tensor == NULL ? 0 : (double)tensor->elements;
}

/* Of one block and micro-batch: a rank's queries with all keys; of chosen keys none is kept. */
static double attention_scores(const Program *program)
{
    const Op *attention = find_op(program, OP_ATTENTION);

    if (attention == NULL)
        return 0;
    const OpSizes *sizes = &attention->sizes;
    return (double)(op_key_blocks(attention) * sizes->seq) *
           (double)(sizes->batch * sizes->heads * sizes->seq);
}

/* Of the same blocks as @tensor; of blocks with experts the MLP of those without, where the program
 * has such. */
static double elements_beside(const Program *program, const Tensor *tensor, const char *name)
{
    const char *dot = strrchr(tensor->name, '.');
    const gsize length = dot == NULL ? 0 : (gsize)(dot + 1 - tensor->name);

    if (strstr(tensor->name, "sparse.") != NULL)
        return elements_of(program, name);
    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *one = program_tensor(program, t);

        if (strncmp(one->name, tensor->name, length) == 0 && strcmp(one->name + length, name) == 0)
            return (double)one->elements;
    }
    return 0;
}

/* What the block of @tensor, its `q` or its `up`, keeps beside the program: @hidden bytes as wide
 * as the stream where it has attention and an MLP, half of them where it has one; and of the MLP.
 */
static double block_bytes(const SavedBytes *saved, const Program *program, const Tensor *tensor,
                          double hidden)
{
    const double up = elements_beside(program, tensor, "up");
    const gboolean both = elements_beside(program, tensor, "q") > 0 &&
                          (up > 0 || elements_beside(program, tensor, "mid") > 0);

    return (both ? 1 : 0.5) * hidden + saved->ffn * up;
}

/* What is kept grows with `q`, which lives from forward to backward (recomputed: in backward only),
 * or with `up` in blocks without attention; the scores with their statistics, their gradients with
 * that of what attention gives.  Left out: what experts keep beside. */
static void grow_saved(const Framework *framework, const Program *program)
{
    const SavedBytes *saved = &framework->saved;
    const double width = is_fp8(program) ? 0.5 : 1;
    const double whole = elements_of(program, "partial"); /* 0 without a tp group */
    const double hidden =
        saved->hidden *
        (framework->keeps_gathered && whole > 0 ? whole : elements_of(program, "residual"));
    const double scores = attention_scores(program), q = elements_of(program, "q");

    for (guint t = 0; t < program->tensors->len; t++) {
        Tensor *tensor = program_tensor(program, t);

        if (is_named(tensor, "q"))
            grow(tensor,
                 width * block_bytes(saved, program, tensor, hidden) + saved->attention * q);
        else if (is_named(tensor, "up") && elements_beside(program, tensor, "q") == 0)
            grow(tensor, width * block_bytes(saved, program, tensor, hidden));
        else if (is_named(tensor, "lse"))
            grow(tensor, saved->score * scores);
        else if (is_named(tensor, "dattention"))
            grow(tensor, saved->gradient * scores);
    }
}

/* The head's: routers have logits too. */
static Tensor *find_logits(const Program *program)
{
    for (guint t = 0; t < program->tensors->len; t++)
        if (strcmp(program_tensor(program, t)->name, "logits") == 0)
            return program_tensor(program, t);
    return NULL;
}

static double held_logit_bytes(const Framework *framework, const Program *program)
{
    return framework->logit_split_bytes > 0 && program_purpose_ranks(program, "tp") > 1
               ? framework->logit_split_bytes
               : framework->logit_held_bytes;
}

void framework_grow_logits(const Framework *framework, Program *program)
{
    const Op *head = find_op(program, OP_HEAD_LOSS);
    Tensor *logits = find_logits(program);

    if (head == NULL || framework->logit_held_bytes == 0)
        return;
    const double vocab = (double)head->sizes.out *
                         (framework->gathers_logits ? program_purpose_ranks(program, "tp") : 1);
    const double bytes = held_logit_bytes(framework, program) * (double)head->sizes.rows * vocab;
    logits->elements = 0;
    grow(logits, bytes + CUDA_GEMM_WORKSPACE_BYTES);
}

void framework_grow(const Framework *framework, Program *program)
{
    grow_saved(framework, program);
    framework_grow_logits(framework, program);
}

static gboolean is_trained_by_several(const Program *program)
{
    return program_purpose_ranks(program, "shard") > 1 ||
           program_purpose_ranks(program, "replicate") > 1 ||
           program_purpose_ranks(program, "data") > 1;
}

double framework_unit_bytes(const Framework *framework, const Program *program, const UnitMap *map)
{
    const double copied = is_trained_by_several(program) ? framework->copied_bytes : 0;

    return (framework->whole_bytes + copied) * (double)map->full_elements +
           framework->shard_bytes * (double)map->shard_elements;
}

void framework_add_memory(const Framework *framework, const Program *program, MemoryUse *use)
{
    double state = 0;

    for (guint u = 0; u < program->units->len; u++) {
        const UnitClass *unit = program_unit(program, u);

        state += unit->count * framework_unit_bytes(framework, program, unit->map);
    }
    use->term[TERM_GRADIENTS] += (guint64)state;
    use->total += (guint64)state;
    const guint64 gathers = (guint64)(framework->gather_bytes * elements_of(program, "partial"));
    use->term[TERM_COMMUNICATION] += gathers;
    use->total += gathers;
    const guint64 step = use->total - use->term[TERM_PARAMETERS] - use->term[TERM_GRADIENTS] -
                         use->term[TERM_MASTER] - use->term[TERM_OPTIMIZER];
    const guint64 transient = (guint64)(framework->transient_share * (double)step);
    use->term[TERM_WORKSPACE] += transient;
    use->total += transient;
}

static guint count_blocks(const Program *program)
{
    guint count = 0;

    for (guint u = 0; u < program->units->len; u++)
        if (program_unit(program, u)->kind == UNIT_BLOCK)
            count += program_unit(program, u)->count;
    return count;
}

/* Reductions of a tp group that the host is ahead of the device by, two a block and pass.  Without
 * stages as many as the queue takes, or none where the host is the slower one: half.  A stage
 * begins with forward passes that await nothing: the device goes on to the second when the next
 * stage has taken what the first gave, and the last one is followed by a gradient that is awaited.
 * So of the micro-batches that have blocks alive all but two are ahead. */
static double reductions_ahead(const Framework *framework, const Program *program)
{
    const Tensor *saved = find_tensor(program, "q");
    const double most = framework->queued_reductions;

    if (program_purpose_ranks(program, "pp") == 1)
        return most / 2;
    if (saved == NULL)
        return 0;
    const double copies = tensor_num_copies(program, saved);
    return CLAMP(2 * (copies - 2.0 * count_blocks(program)), 0, most);
}

static double cached_state(const Framework *framework, const Program *program)
{
    double bytes = 0;

    for (guint u = 0; u < program->units->len; u++) {
        const UnitClass *unit = program_unit(program, u);

        bytes += framework->cached_bytes * unit->count * (double)unit->map->shard_elements;
    }
    return bytes;
}

/* As much of @bytes as there is room for. */
static void add_within(MemoryUse *use, MemoryTerm term, double bytes, guint64 limit_bytes)
{
    const guint64 room = limit_bytes - MIN(use->total, limit_bytes);
    const guint64 added = MIN((guint64)bytes, room);

    use->term[term] += added;
    use->total += added;
}

void framework_add_held(const Framework *framework, const Program *program, guint64 limit_bytes,
                        MemoryUse *use)
{
    const Tensor *whole = find_tensor(program, "partial"); /* none without a tp group */
    const double read =
        whole == NULL ? 0 : reductions_ahead(framework, program) * (double)tensor_copy_bytes(whole);

    add_within(use, TERM_COMMUNICATION, read, limit_bytes);
    add_within(use, TERM_GRADIENTS, cached_state(framework, program), limit_bytes);
}
