/* The plain program of a Llama-shaped model: whole parameters, whole gradients, one stream.
 *
 * Shapes: N = micro_batch x seq tokens, C hidden, A = heads x head_dim, K = kv_heads x head_dim, F
 * ffn. Saved per block and micro-batch: x (the residual stream), rstd1, q, k, v (after rotation),
 * o, lse, mid, rstd2, gate, up.  The normed inputs and the SwiGLU product are computed again in the
 * backward pass: they cost one memory-bound pass each and would take 2 C + F per token and block.
 */
#include "sim/program/builder.h"

#include <math.h>

/* Tensors of a block that live from forward to backward (one copy a block, or one in all when
 * recomputed), and those that live within a call. */
typedef struct {
    guint rstd1, q, k, v, o, lse, mid, rstd2, gate, up;
    guint normed, dnormed, h, dh, dattention, dq, dk, dv;
} BlockTensors;

/* An op under construction and its unit's tensors. */
typedef struct {
    Builder *builder;
    guint segment, weights, gradient;
    DType gradient_dtype;
} Emit;

static guint activation(Builder *builder, const char *name, guint space, guint64 columns)
{
    return program_add_tensor(builder->program, name, TENSOR_ACTIVATION, builder->dtype, space,
                              builder->rows * columns);
}

static guint activation_fp32(Builder *builder, const char *name, guint space, guint64 elements)
{
    return program_add_tensor(builder->program, name, TENSOR_ACTIVATION, DTYPE_FP32, space,
                              elements);
}

static BlockTensors add_block_tensors(Builder *builder)
{
    const Model *model = builder->spec->model;
    const guint64 hidden = model->hidden, ffn = model->ffn;
    const guint64 attention = (guint64)model->heads * model->head_dim;
    const guint64 kv = (guint64)model->kv_heads * model->head_dim;
    const guint saved = builder->saved_space;

    return (BlockTensors){
        .rstd1 = activation_fp32(builder, "rstd1", saved, builder->rows),
        .q = activation(builder, "q", saved, attention),
        .k = activation(builder, "k", saved, kv),
        .v = activation(builder, "v", saved, kv),
        .o = activation(builder, "o", saved, attention),
        .lse = activation_fp32(builder, "lse", saved, builder->rows * model->heads),
        .mid = activation(builder, "mid", saved, hidden),
        .rstd2 = activation_fp32(builder, "rstd2", saved, builder->rows),
        .gate = activation(builder, "gate", saved, ffn),
        .up = activation(builder, "up", saved, ffn),
        .normed = activation(builder, "normed", NO_SPACE, hidden),
        .dnormed = activation(builder, "dnormed", NO_SPACE, hidden),
        .h = activation(builder, "h", NO_SPACE, ffn),
        .dh = activation(builder, "dh", NO_SPACE, ffn),
        .dattention = activation(builder, "dattention", NO_SPACE, attention),
        .dq = activation(builder, "dq", NO_SPACE, attention),
        .dk = activation(builder, "dk", NO_SPACE, kv),
        .dv = activation(builder, "dv", NO_SPACE, kv),
    };
}

/* ---- ops ---- */

static Op *emit(const Emit *to, OpKind kind)
{
    Op *op =
        segment_add_op(to->builder->program, to->segment, kind, COMPUTE_STREAM, to->builder->dtype);
    const Model *model = to->builder->spec->model;

    op->sizes.rows = to->builder->rows;
    op->sizes.batch = to->builder->spec->schedule.micro_batch;
    op->sizes.seq = to->builder->spec->workload->seq_len;
    op->sizes.heads = model->heads;
    op->sizes.kv_heads = model->kv_heads;
    op->sizes.head_dim = model->head_dim;
    op->sizes.in = op->sizes.out = model->hidden;
    op->sizes.eps = model->norm_eps;
    return op;
}

static void reads(Op *op, guint tensor)
{
    op_add_operand(op, tensor, ACCESS_READ, 0, WHOLE_TENSOR);
}

static void writes(Op *op, guint tensor)
{
    op_add_operand(op, tensor, ACCESS_WRITE, 0, WHOLE_TENSOR);
}

static void updates(Op *op, guint tensor)
{
    op_add_operand(op, tensor, ACCESS_UPDATE, 0, WHOLE_TENSOR);
}

static void accumulates(Op *op, guint tensor)
{
    op_add_operand(op, tensor, ACCESS_ACCUMULATE, 0, WHOLE_TENSOR);
}

static void reads_weight(const Emit *to, Op *op, guint param)
{
    op_add_operand(op, to->weights, ACCESS_READ, 0, (gint)param);
}

static void accumulates_gradient(const Emit *to, Op *op, guint param)
{
    op->dtype_out = to->gradient_dtype;
    op_add_operand(op, to->gradient, ACCESS_ACCUMULATE, 0, (gint)param);
}

/* Workspace of the op that was just completed: one tensor for all, as large as the largest bound.
 */
static void uses_scratch(const Emit *to, Op *op)
{
    Builder *builder = to->builder;
    const guint64 bytes = op_workspace_bytes(op, builder->spec->device, builder->spec->threads);

    builder->scratch_bytes = MAX(builder->scratch_bytes, bytes);
    writes(op, builder->scratch);
}

static void rmsnorm(const Emit *to, guint x, guint param, guint y, guint rstd)
{
    Op *op = emit(to, OP_RMSNORM);

    reads(op, x);
    reads_weight(to, op, param);
    writes(op, y);
    writes(op, rstd);
}

static void rmsnorm_again(const Emit *to, guint x, guint param, guint rstd, guint y)
{
    Op *op = emit(to, OP_RMSNORM_APPLY);

    reads(op, x);
    reads_weight(to, op, param);
    reads(op, rstd);
    writes(op, y);
}

/* Where an rmsnorm's backward reads, and where it adds. */
typedef struct {
    guint dy, x, rstd, dx;
    Access dx_access;
} NormBackward;

static void rmsnorm_backward(const Emit *to, const NormBackward *norm, guint param)
{
    Op *op = emit(to, OP_RMSNORM_BACKWARD);

    reads(op, norm->dy);
    reads(op, norm->x);
    reads_weight(to, op, param);
    reads(op, norm->rstd);
    op_add_operand(op, norm->dx, norm->dx_access, 0, WHOLE_TENSOR);
    accumulates_gradient(to, op, param);
    uses_scratch(to, op);
}

/* A weight (O, I) between x (N, I) and y (N, O). */
typedef struct {
    guint param;
    guint64 in, out;
} Linear;

static void linear(const Emit *to, const Linear *weight, guint x, guint y, Access access)
{
    Op *op = emit(to, OP_LINEAR);

    op->sizes.in = weight->in;
    op->sizes.out = weight->out;
    reads(op, x);
    reads_weight(to, op, weight->param);
    op_add_operand(op, y, access, 0, WHOLE_TENSOR);
    uses_scratch(to, op);
}

static void linear_backward_input(const Emit *to, const Linear *weight, guint dy, guint dx,
                                  Access access)
{
    Op *op = emit(to, OP_LINEAR_BACKWARD_INPUT);

    op->sizes.in = weight->in;
    op->sizes.out = weight->out;
    reads(op, dy);
    reads_weight(to, op, weight->param);
    op_add_operand(op, dx, access, 0, WHOLE_TENSOR);
    uses_scratch(to, op);
}

static void linear_backward_weight(const Emit *to, const Linear *weight, guint dy, guint x)
{
    Op *op = emit(to, OP_LINEAR_BACKWARD_WEIGHT);

    op->sizes.in = weight->in;
    op->sizes.out = weight->out;
    reads(op, dy);
    reads(op, x);
    accumulates_gradient(to, op, weight->param);
    uses_scratch(to, op);
}

static void rope(const Emit *to, OpKind kind, guint q, guint k)
{
    Op *op = emit(to, kind);

    updates(op, q);
    updates(op, k);
    reads(op, to->builder->rope_table);
}

static void attention(const Emit *to, const BlockTensors *t)
{
    Op *op = emit(to, OP_ATTENTION);

    reads(op, t->q);
    reads(op, t->k);
    reads(op, t->v);
    writes(op, t->o);
    writes(op, t->lse);
    uses_scratch(to, op);
}

static void attention_backward(const Emit *to, const BlockTensors *t)
{
    Op *op = emit(to, OP_ATTENTION_BACKWARD);

    reads(op, t->dattention);
    reads(op, t->q);
    reads(op, t->k);
    reads(op, t->v);
    reads(op, t->o);
    reads(op, t->lse);
    writes(op, t->dq);
    writes(op, t->dk);
    writes(op, t->dv);
    uses_scratch(to, op);
}

static void swiglu(const Emit *to, const BlockTensors *t)
{
    Op *op = emit(to, OP_SWIGLU);

    op->sizes.in = op->sizes.out = to->builder->spec->model->ffn;
    reads(op, t->gate);
    reads(op, t->up);
    writes(op, t->h);
}

static void swiglu_backward(const Emit *to, const BlockTensors *t)
{
    Op *op = emit(to, OP_SWIGLU_BACKWARD);

    op->sizes.in = op->sizes.out = to->builder->spec->model->ffn;
    reads(op, t->dh);
    updates(op, t->gate);
    updates(op, t->up);
}

/* y := x, to which a linear then adds its product. */
static void copy(const Emit *to, guint x, guint y, gint y_shift)
{
    Op *op = emit(to, OP_CAST);

    op->sizes.elements = to->builder->rows * to->builder->spec->model->hidden;
    reads(op, x);
    op_add_operand(op, y, ACCESS_WRITE, y_shift, WHOLE_TENSOR);
}

/* ---- block ---- */

typedef struct {
    Linear q, k, v, o, gate, up, down;
} BlockWeights;

static BlockWeights block_weights(const Model *model)
{
    const guint64 hidden = model->hidden, ffn = model->ffn;
    const guint64 attention_columns = (guint64)model->heads * model->head_dim;
    const guint64 kv = (guint64)model->kv_heads * model->head_dim;

    return (BlockWeights){
        .q = {PARAM_Q, hidden, attention_columns},
        .k = {PARAM_K, hidden, kv},
        .v = {PARAM_V, hidden, kv},
        .o = {PARAM_O, attention_columns, hidden},
        .gate = {PARAM_GATE, hidden, ffn},
        .up = {PARAM_UP, hidden, ffn},
        .down = {PARAM_DOWN, ffn, hidden},
    };
}

static void block_forward(const Emit *to, const BlockTensors *t)
{
    const BlockWeights w = block_weights(to->builder->spec->model);
    const guint x = to->builder->residual;

    rmsnorm(to, x, PARAM_INPUT_NORM, t->normed, t->rstd1);
    linear(to, &w.q, t->normed, t->q, ACCESS_WRITE);
    linear(to, &w.k, t->normed, t->k, ACCESS_WRITE);
    linear(to, &w.v, t->normed, t->v, ACCESS_WRITE);
    rope(to, OP_ROPE, t->q, t->k);
    attention(to, t);
    copy(to, x, t->mid, 0);
    linear(to, &w.o, t->o, t->mid, ACCESS_UPDATE);
    rmsnorm(to, t->mid, PARAM_POST_NORM, t->normed, t->rstd2);
    linear(to, &w.gate, t->normed, t->gate, ACCESS_WRITE);
    linear(to, &w.up, t->normed, t->up, ACCESS_WRITE);
    swiglu(to, t);
    copy(to, t->mid, x, 1);
    linear(to, &w.down, t->h, x, ACCESS_UPDATE);
    Segment *segment = program_segment(to->builder->program, to->segment);
    segment->ops[segment->num_ops - 1].operands[2].shift = 1;
}

/* dx holds the gradient of the block's output on entry, of its input on exit. */
static void block_backward(const Emit *to, const BlockTensors *t)
{
    const BlockWeights w = block_weights(to->builder->spec->model);
    const guint x = to->builder->residual, dx = to->builder->residual_gradient;
    const NormBackward post = {t->dnormed, t->mid, t->rstd2, dx, ACCESS_UPDATE};
    const NormBackward input = {t->dnormed, x, t->rstd1, dx, ACCESS_UPDATE};

    swiglu(to, t);
    linear_backward_weight(to, &w.down, dx, t->h);
    linear_backward_input(to, &w.down, dx, t->dh, ACCESS_WRITE);
    swiglu_backward(to, t); /* gate, up now hold their gradients */
    rmsnorm_again(to, t->mid, PARAM_POST_NORM, t->rstd2, t->normed);
    linear_backward_weight(to, &w.gate, t->gate, t->normed);
    linear_backward_weight(to, &w.up, t->up, t->normed);
    linear_backward_input(to, &w.gate, t->gate, t->dnormed, ACCESS_WRITE);
    linear_backward_input(to, &w.up, t->up, t->dnormed, ACCESS_UPDATE);
    rmsnorm_backward(to, &post, PARAM_POST_NORM);
    linear_backward_weight(to, &w.o, dx, t->o);
    linear_backward_input(to, &w.o, dx, t->dattention, ACCESS_WRITE);
    attention_backward(to, t);
    rope(to, OP_ROPE_BACKWARD, t->dq, t->dk);
    rmsnorm_again(to, x, PARAM_INPUT_NORM, t->rstd1, t->normed);
    linear_backward_weight(to, &w.q, t->dq, t->normed);
    linear_backward_weight(to, &w.k, t->dk, t->normed);
    linear_backward_weight(to, &w.v, t->dv, t->normed);
    linear_backward_input(to, &w.q, t->dq, t->dnormed, ACCESS_WRITE);
    linear_backward_input(to, &w.k, t->dk, t->dnormed, ACCESS_UPDATE);
    linear_backward_input(to, &w.v, t->dv, t->dnormed, ACCESS_UPDATE);
    rmsnorm_backward(to, &input, PARAM_INPUT_NORM);
}

/* ---- root ---- */

static guint root_segment(Builder *builder, const char *name, Emit *to)
{
    const UnitClass *root = program_unit(builder->program, 0);

    *to = (Emit){
        .builder = builder,
        .segment = program_add_segment(builder->program, name),
        .weights = (guint)root->parameter,
        .gradient = (guint)root->gradient,
        .gradient_dtype = builder->spec->workload->recipe->gradient,
    };
    return to->segment;
}

static void build_embedding(Builder *builder)
{
    Emit to;

    builder->embed = (gint)root_segment(builder, "embed.forward", &to);
    Op *op = emit(&to, OP_EMBED);
    op->sizes.in = builder->spec->model->vocab;
    reads(op, builder->tokens);
    reads_weight(&to, op, PARAM_EMBEDDING);
    writes(op, builder->residual);

    builder->embed_backward = (gint)root_segment(builder, "embed.backward", &to);
    op = emit(&to, OP_EMBED_BACKWARD);
    op->sizes.in = builder->spec->model->vocab;
    reads(op, builder->tokens);
    reads(op, builder->residual_gradient);
    accumulates_gradient(&to, op, PARAM_EMBEDDING);
    if (builder->spec->model->tied) /* the head wrote that gradient in this micro-batch */
        op->operands[op->num_operands - 1].access = ACCESS_UPDATE;
}

/* Rows of logits at a time: about 512 MiB of fp32 logits on a GPU, 16 MiB (two caches' worth) on a
 * CPU, and never fewer rows than keep a product efficient. */
static guint64 head_chunk(const Builder *builder)
{
    const guint64 logits = builder->spec->device == DEVICE_CUDA ? 1u << 27 : 1u << 22;
    const guint64 least = builder->spec->device == DEVICE_CUDA ? 1024 : 128;
    const guint64 rows = logits / builder->spec->model->vocab;

    return MIN(builder->rows, MAX(least, rows / least * least));
}

static void build_head(Builder *builder)
{
    const Model *model = builder->spec->model;
    const guint normed = activation(builder, "head.normed", NO_SPACE, model->hidden);
    const guint dnormed = activation(builder, "head.dnormed", NO_SPACE, model->hidden);
    const guint rstd = activation_fp32(builder, "head.rstd", NO_SPACE, builder->rows);
    const NormBackward norm = {dnormed, builder->residual, rstd, builder->residual_gradient,
                               ACCESS_WRITE};
    const guint head = model->tied ? PARAM_EMBEDDING : PARAM_HEAD;
    Emit to;

    builder->head = (gint)root_segment(builder, "head", &to);
    rmsnorm(&to, builder->residual, PARAM_FINAL_NORM, normed, rstd);
    Op *op = emit(&to, OP_HEAD_LOSS);
    op->sizes.out = model->vocab;
    op->sizes.chunk = head_chunk(builder);
    reads(op, normed);
    reads_weight(&to, op, head);
    reads(op, builder->labels);
    reads(op, builder->valid);
    updates(op, builder->loss); /* the host sets it to 0 before a step */
    writes(op, dnormed);
    accumulates_gradient(&to, op, head);
    const guint64 bytes = op_workspace_bytes(op, builder->spec->device, builder->spec->threads);
    builder->logits = program_add_tensor(builder->program, "logits", TENSOR_LOGITS, DTYPE_FP32,
                                         NO_SPACE, (bytes + 3) / 4);
    writes(op, builder->logits);
    rmsnorm_backward(&to, &norm, PARAM_FINAL_NORM);
}

static void build_count_valid(Builder *builder)
{
    Emit to;

    builder->count_valid = (gint)root_segment(builder, "count_valid", &to);
    Op *op = emit(&to, OP_COUNT_VALID);
    reads(op, builder->labels);
    accumulates(op, builder->valid);
}

/* ---- units ---- */

static guint add_unit_class(Builder *builder, UnitKind kind, Strategy strategy, const char *name)
{
    Program *program = builder->program;
    const guint index = program->units->len;
    g_autoptr(GArray) params = model_unit_params(builder->spec->model, kind);
    UnitClass unit = {
        .name = g_strdup(name),
        .kind = kind,
        .strategy = strategy,
        .count = 0,
        .map = unit_map_new(params, 1, builder->spec->sharding->form),
        .param_names = g_new0(char *, params->len + 1),
        .parameter = NO_TENSOR,
        .gathered = NO_TENSOR,
        .unit_gradient = NO_TENSOR,
        .gradient = NO_TENSOR,
        .master = NO_TENSOR,
        .moment = {NO_TENSOR, NO_TENSOR},
    };

    for (guint i = 0; i < params->len; i++)
        unit.param_names[i] = g_strdup(g_array_index(params, ParamShape, i).name);
    g_array_append_val(program->units, unit);
    return index;
}

static guint block_class(Builder *builder, Strategy strategy)
{
    Program *program = builder->program;

    for (guint i = 1; i < program->units->len; i++)
        if (program_unit(program, i)->strategy == strategy)
            return i;
    g_autofree char *name = program->units->len == 1
                                ? g_strdup("block")
                                : g_strdup_printf("block.%s", strategy_name(strategy));
    return add_unit_class(builder, UNIT_BLOCK, strategy, name);
}

/* Whole parameters and whole gradients, one copy a unit. */
static void add_unit_tensors(Builder *builder, guint index)
{
    Program *program = builder->program;
    UnitClass *unit = program_unit(program, index);
    const Recipe *recipe = builder->spec->workload->recipe;
    g_autofree char *parameter = g_strdup_printf("%s.parameters", unit->name);
    g_autofree char *gradient = g_strdup_printf("%s.gradients", unit->name);

    unit->layer_space = program_add_space(program, unit->name, unit->count);
    unit->parameter =
        (gint)program_add_tensor(program, parameter, TENSOR_PARAMETER, recipe->compute,
                                 unit->layer_space, unit->map->full_elements);
    unit->gradient = (gint)program_add_tensor(program, gradient, TENSOR_GRADIENT, recipe->gradient,
                                              unit->layer_space, unit->map->full_elements);
    program_tensor(program, (guint)unit->parameter)->unit = (gint)index;
    program_tensor(program, (guint)unit->parameter)->part = PART_WHOLE;
    program_tensor(program, (guint)unit->gradient)->unit = (gint)index;
    program_tensor(program, (guint)unit->gradient)->part = PART_WHOLE;
}

static void add_units(Builder *builder)
{
    Program *program = builder->program;
    const Sharding *sharding = builder->spec->sharding;
    UnitRef ref = {
        add_unit_class(builder, UNIT_ROOT, sharding_unit_strategy(sharding, ROOT_UNIT), "root"),
        program_unit(program, 0)->count++};

    g_array_append_val(program->unit_refs, ref);
    for (guint i = 0; i < builder->spec->model->layers; i++) {
        ref.unit_class = block_class(builder, sharding_unit_strategy(sharding, i + 1));
        ref.index = program_unit(program, ref.unit_class)->count++;
        g_array_append_val(program->unit_refs, ref);
    }
    for (guint i = 0; i < program->units->len; i++)
        add_unit_tensors(builder, i);
    builder->classes = g_new(ClassSegments, program->units->len);
    for (guint i = 0; i < program->units->len; i++)
        builder->classes[i] = (ClassSegments){.forward = -1,
                                              .backward = -1,
                                              .recompute = -1,
                                              .gather = -1,
                                              .reduce_first = -1,
                                              .reduce_add = -1,
                                              .reduce_last = -1,
                                              .update_gather = -1,
                                              .norm = -1,
                                              .update = -1};
}

static void build_blocks(Builder *builder)
{
    Program *program = builder->program;
    const BlockTensors tensors = add_block_tensors(builder);

    for (guint i = 1; i < program->units->len; i++) {
        const UnitClass *unit = program_unit(program, i);
        g_autofree char *forward = g_strdup_printf("%s.forward", unit->name);
        g_autofree char *backward = g_strdup_printf("%s.backward", unit->name);
        Emit to = {
            .builder = builder,
            .segment = program_add_segment(program, forward),
            .weights = (guint)unit->parameter,
            .gradient = (guint)unit->gradient,
            .gradient_dtype = builder->spec->workload->recipe->gradient,
        };

        builder->classes[i].forward = (gint)to.segment;
        block_forward(&to, &tensors);
        to.segment = program_add_segment(program, backward);
        builder->classes[i].backward = (gint)to.segment;
        block_backward(&to, &tensors);
    }
}

static void add_shared_tensors(Builder *builder)
{
    Program *program = builder->program;
    const ProgramSpec *spec = builder->spec;
    const Model *model = spec->model;
    const guint64 seq = spec->workload->seq_len;

    builder->micro_batch_space =
        program_add_space(program, "micro_batch", spec->schedule.micro_batches);
    builder->residual_space = program_add_space(program, "residual", model->layers + 1);
    builder->saved_space = program_add_space(program, "saved", model->layers);
    builder->tokens = program_add_tensor(program, "tokens", TENSOR_INPUT, DTYPE_INT32,
                                         builder->micro_batch_space, builder->rows);
    builder->labels = program_add_tensor(program, "labels", TENSOR_INPUT, DTYPE_INT32,
                                         builder->micro_batch_space, builder->rows);
    builder->rope_table = program_add_tensor(program, "rope_table", TENSOR_INPUT, DTYPE_FP32,
                                             NO_SPACE, seq * model->head_dim);
    builder->hyper =
        program_add_tensor(program, "hyper", TENSOR_INPUT, DTYPE_FP64, NO_SPACE, NUM_HYPER);
    builder->valid = program_add_tensor(program, "valid", TENSOR_SCALAR, DTYPE_FP64, NO_SPACE, 1);
    builder->loss = program_add_tensor(program, "loss", TENSOR_SCALAR, DTYPE_FP64, NO_SPACE, 1);
    builder->residual = activation(builder, "residual", builder->residual_space, model->hidden);
    builder->residual_gradient = activation(builder, "dresidual", NO_SPACE, model->hidden);
    builder->scratch =
        program_add_tensor(program, "scratch", TENSOR_WORKSPACE, DTYPE_FP32, NO_SPACE, 0);
}

/* ---- the plain step ---- */

static Draft *draft(Builder *builder, gint segment, guint unit, guint micro_batch)
{
    const Draft new_draft = {
        .kind = DRAFT_COMPUTE,
        .segment = (guint)segment,
        .unit = unit,
        .micro_batch = micro_batch,
        .first = micro_batch == 0,
        .last = micro_batch + 1 == builder->spec->schedule.micro_batches,
    };

    g_array_append_val(builder->drafts, new_draft);
    return builder_draft(builder, builder->drafts->len - 1);
}

static void draft_micro_batch(Builder *builder, guint micro_batch)
{
    const guint layers = builder->spec->model->layers;

    draft(builder, builder->embed, ROOT_UNIT, micro_batch)->uses_weights = TRUE;
    for (guint i = 0; i < layers; i++) {
        const guint unit_class = program_unit_ref(builder->program, i + 1)->unit_class;
        Draft *forward = draft(builder, builder->classes[unit_class].forward, i + 1, micro_batch);

        forward->uses_weights = TRUE;
        forward->residual = forward->saved = i;
    }
    Draft *head = draft(builder, builder->head, ROOT_UNIT, micro_batch);
    head->uses_weights = head->opens_gradient = TRUE;
    head->residual = layers;
    for (guint i = layers; i-- > 0;) {
        const guint unit_class = program_unit_ref(builder->program, i + 1)->unit_class;
        Draft *backward = draft(builder, builder->classes[unit_class].backward, i + 1, micro_batch);

        backward->uses_weights = backward->opens_gradient = TRUE;
        backward->residual = backward->saved = i;
    }
    draft(builder, builder->embed_backward, ROOT_UNIT, micro_batch);
}

void build_plain(Builder *builder)
{
    const Schedule *schedule = &builder->spec->schedule;

    builder->rows = (guint64)schedule->micro_batch * builder->spec->workload->seq_len;
    builder->dtype = builder->spec->workload->recipe->compute;
    add_units(builder);
    add_shared_tensors(builder);
    build_count_valid(builder);
    build_embedding(builder);
    build_blocks(builder);
    build_head(builder);
    program_tensor(builder->program, builder->scratch)->elements = (builder->scratch_bytes + 3) / 4;
    for (guint m = 0; m < schedule->micro_batches; m++)
        draft(builder, builder->count_valid, ROOT_UNIT, m)->kind = DRAFT_OTHER;
    for (guint m = 0; m < schedule->micro_batches; m++)
        draft_micro_batch(builder, m);
}
