#include "sim/summary/peak.h"

#include "sim/cost/framework_memory.h"
#include "sim/summary/reduce.h"

/* ---- keys ---- */

static void add(GArray *key, guint number)
{
    g_array_append_val(key, number);
}

static void add_op(GArray *key, const Op *op)
{
    add(key, op->stream | (guint)op->predicate << 16);
    add(key, op->num_operands << 16 | op->num_waits);
    for (guint w = 0; w < op->num_waits; w++)
        add(key, op->waits[w]);
    for (guint o = 0; o < op->num_operands; o++) {
        const Operand *operand = &op->operands[o];
        const guint whole = operand->param == WHOLE_TENSOR ? 1 : 0;

        add(key, operand->tensor << 16 | operand->access << 1 | whole);
        add(key, (guint)operand->shift);
    }
}

/* Exchanges follow from the timetable. */
static void add_segments(GArray *key, const Program *program)
{
    for (guint s = 0; s < program->segments->len; s++) {
        const Segment *segment = program_segment(program, s);

        if (segment->num_ops == 1 && segment->ops[0].kind == OP_EXCHANGE)
            continue;
        add(key, segment->num_ops);
        for (guint i = 0; i < segment->num_ops; i++)
            add_op(key, &segment->ops[i]);
    }
}

static void add_tensors(GArray *key, const Program *program)
{
    add(key, program->streams->len);
    add(key, program->tensors->len);
    for (guint t = 0; t < program->tensors->len; t++)
        add(key, program_tensor(program, t)->space << 1 | program_tensor(program, t)->persistence);
}

static void add_blocks(GArray *key, const ProgramSpec *spec, guint stage)
{
    const guint pp = spec->layout.size[AXIS_PP], chunks = schedule_chunks(&spec->schedule, pp);

    for (guint c = stage; c < chunks; c += pp) {
        const LayerRange range = schedule_chunk(&spec->schedule, spec->model->layers, pp, c);

        add(key, range.count);
        for (guint i = 0; i < range.count; i++) {
            const BlockTraits traits = block_traits(spec, c, range, i);

            add(key, traits.kind << 24 | traits.block.strategy << 16 |
                         traits.experts.strategy << 8 | (traits.experts.is_kept ? 4u : 0) |
                         (traits.block.is_kept ? 2u : 0) | (traits.is_again ? 1u : 0));
        }
    }
}

/* Which tensors are alive together follows from what segments do, and from the order of their
 * calls: from choices that are not sizes. */
static GBytes *key_new(const Reduced *reduced, const Program *program)
{
    GArray *key = g_array_sized_new(FALSE, FALSE, sizeof(guint), 4096);
    const Schedule *schedule = &reduced->spec.schedule;
    const Sharding *sharding = reduced->spec.sharding;
    const gboolean keeps_root =
        sharding_unit_kept(sharding, ROOT_UNIT, reduced->spec.model->layers);

    add(key, reduced->stage);
    add(key, reduced->spec.layout.size[AXIS_PP]);
    add(key, schedule->kind);
    add(key, schedule_virtual_stages(schedule));
    add(key, schedule->micro_batches);
    add(key, schedule->recompute);
    add(key, sharding_unit_strategy(sharding, ROOT_UNIT) << 1 | (keeps_root ? 1u : 0));
    add(key, sharding->prefetch << 16 | sharding->live_units);
    add(key, sharding->accumulate_sharded ? 1 : 0);
    add_blocks(key, &reduced->spec, reduced->stage);
    add_tensors(key, program);
    add_segments(key, program);
    const gsize bytes = key->len * sizeof(guint);
    return g_bytes_new_take(g_array_free(key, FALSE), bytes);
}

/* ---- moments ---- */

static const Moments *look_at(Known *known, GBytes *key, const Reduced *reduced)
{
    g_autoptr(Program) program = program_build_unplaced(&reduced->spec, reduced->stage);

    return known_add_moments(known, key, moments_new(program));
}

static const Moments *find_moments(Known *known, const Program *program, const Reduced *reduced)
{
    g_autoptr(GBytes) key = key_new(reduced, program);
    const Moments *found = known_moments(known, key);

    return found != NULL ? found : look_at(known, key, reduced);
}

/* ---- bytes ---- */

/* A tensor of each micro-batch is state: the host binds it. */
static guint64 copies_bytes(const Program *program, const Tensor *tensor, const ProgramSpec *spec,
                            guint micro_batch_space)
{
    return tensor->space == micro_batch_space
               ? tensor_copy_bytes(tensor) * spec->schedule.micro_batches
               : tensor_bytes(program, tensor);
}

static void sum_state(const ProgramSpec *spec, const Sketch *sketch, MemoryUse *use)
{
    const Program *program = sketch->program;

    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);

        if (tensor->persistence == PERSIST_STEP || tensor->tier != TIER_DEVICE)
            continue;
        const guint64 bytes = copies_bytes(program, tensor, spec, sketch->micro_batch_space);
        use->term[tensor_term(tensor)] += bytes;
        use->total += bytes;
    }
}

static Sketch *sketch_of(const ProgramSpec *spec, guint stage)
{
    ProgramSpec some = *spec;

    some.schedule.micro_batches = fewest_micro_batches(spec, stage);
    return program_sketch(&some, stage);
}

guint64 peak_bytes(Known *known, const ProgramSpec *spec, guint stage, const Framework *framework)
{
    g_autoptr(Sketch) sketch = sketch_of(spec, stage);
    MemoryUse use = {.total = 0};
    g_auto(Reduced) reduced = {0};

    reduce_spec(spec, stage, &reduced);
    const Moments *moments = find_moments(known, sketch->program, &reduced);
    const gboolean is_foreign = framework_is_foreign(framework);
    if (is_foreign)
        framework_grow(framework, sketch->program);
    sum_state(spec, sketch, &use);
    const MomentsPeak peak = moments_peak(moments, sketch->program, ANY_PHASE);
    g_free(peak.members);
    use.total += peak.bytes;
    if (is_foreign)
        framework_add_memory(framework, sketch->program, &use);
    return use.total;
}
