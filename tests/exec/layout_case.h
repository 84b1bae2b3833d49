/* Trains a program for some steps on a runtime, as fsdp-run does, and keeps what tests compare:
 * losses, gradient norms, and tensors put together from what all ranks hold. */
#pragma once

#include "exec/device/cpu_block.h"
#include "exec/run/binding.h"
#include "exec/run/interpreter.h"
#include "exec/run/parameters.h"
#include "sim/program/compile.h"
#include "sim/program/place.h"
#include "tests/exec/runtime_case.h"

#include <glib/gstdio.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { LAYOUT_STEPS = 20 };

/* What a ProgramSpec borrows. */
typedef struct {
    Workload workload;
    Sharding sharding;
} LayoutParts;

typedef struct {
    const Data *data;
    guint64 seed;
    double lr, clip_norm; /* AdamW: betas 0.9 and 0.95, eps 1e-8, decay 0.1 */
} LayoutTask;

typedef struct {
    LayoutTask task;
    ProgramSpec spec;
    ProgramSet *set;
    Interpreter *interpreter;
    Binding *binding;
    guint steps; /* done so far */
    double loss[LAYOUT_STEPS], norm[LAYOUT_STEPS];
} LayoutRun;

/* ---- the text, as tests/golden/README.md says ---- */

typedef struct {
    guint64 seed;
    guint bytes, first, count;
} LayoutText;

static const LayoutText layout_ascii = {.seed = 7, .bytes = 4096, .first = 32, .count = 95};

static inline guint64 layout_mix(guint64 x)
{
    x = (x ^ x >> 30) * G_GUINT64_CONSTANT(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * G_GUINT64_CONSTANT(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static inline char *layout_text_new(const LayoutText *text)
{
    const guint64 golden = G_GUINT64_CONSTANT(0x9E3779B97F4A7C15);
    const guint64 state = layout_mix(text->seed + golden);
    char *bytes = g_malloc(text->bytes);

    for (guint k = 0; k < text->bytes; k++)
        bytes[k] = (char)(text->first + layout_mix(state + k * golden) % text->count);
    return bytes;
}

static inline Data *layout_data_new(const LayoutText *text, guint vocab, guint seq_len)
{
    g_autofree char *bytes = layout_text_new(text);
    g_autofree char *path = NULL;
    g_autoptr(GError) error = NULL;
    const int file = g_file_open_tmp("fsdp-text-XXXXXX", &path, &error);

    g_assert_no_error(error);
    g_assert(write(file, bytes, text->bytes) == (gssize)text->bytes);
    close(file);
    Data *data = data_open(path, vocab, seq_len, &error);
    g_unlink(path);
    g_assert_no_error(error);
    return data;
}

/* ---- models ---- */

typedef struct {
    guint hidden, layers, heads, kv_heads, ffn;
    guint vocab;   /* 0 = 257 */
    gboolean tied; /* one matrix for words in and out */
} LayoutShape;

/* A small Llama. */
static inline Model *layout_model(const LayoutShape *shape)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *config = g_strdup_printf(
        "{\"model_type\": \"llama\", \"hidden_act\": \"silu\", \"max_position_embeddings\": 64,"
        " \"hidden_size\": %u, \"num_hidden_layers\": %u, \"num_attention_heads\": %u,"
        " \"num_key_value_heads\": %u, \"intermediate_size\": %u, \"vocab_size\": %u,"
        " \"tie_word_embeddings\": %s, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0,"
        " \"initializer_range\": 0.15}",
        shape->hidden, shape->layers, shape->heads, shape->kv_heads, shape->ffn,
        shape->vocab == 0 ? 257 : shape->vocab, shape->tied ? "true" : "false");
    Model *model = model_parse(config, "config", "small", &error);

    g_assert_no_error(error);
    return model;
}

/* Its heads share keys and values. */
static inline Model *layout_tied_model(guint layers)
{
    return layout_model(&(LayoutShape){
        .hidden = 8, .layers = layers, .heads = 4, .kv_heads = 1, .ffn = 50, .tied = TRUE});
}

/* ---- tables of layouts ---- */

/* A row names a layout, or none (all 0): any number of ranks, all of them shards. */
static inline gboolean layout_is_of(const Layout *named, guint ranks)
{
    const guint world = layout_world(named);

    return world == 0 || world == ranks;
}

/* The training of any row is one rank's too. */
static inline Layout layout_over(const Layout *named, guint ranks)
{
    return layout_world(named) == ranks ? *named : (Layout){.size = {1, 1, ranks, 1, 1}};
}

/* ---- a run ---- */

static inline void *layout_tensor(LayoutRun *run, const char *name, guint copy)
{
    const gint tensor = interpreter_find(run->interpreter, name);

    g_assert(tensor != NO_TENSOR);
    return interpreter_tensor(run->interpreter, (guint)tensor, copy);
}

static inline double layout_scalar(LayoutRun *run, const char *name)
{
    return binding_read(run->binding, name);
}

/* Collective.  @spec's pointers and the data are borrowed. */
static inline LayoutRun *layout_run_new_with(Runtime *runtime, const ProgramSpec *spec,
                                             const LayoutTask *task,
                                             const InterpreterOptions *options)
{
    LayoutRun *run = g_new0(LayoutRun, 1);
    g_autoptr(GError) error = NULL;

    run->task = *task;
    run->spec = *spec;
    run->set = program_compile(spec);
    run->interpreter = interpreter_new_with(runtime, run->set, options, &error);
    g_assert_no_error(error);
    run->binding = binding_new(run->interpreter, spec);
    parameters_init(run->interpreter, spec->model, task->seed);
    return run;
}

static inline LayoutRun *layout_run_new(Runtime *runtime, const ProgramSpec *spec,
                                        const LayoutTask *task)
{
    const InterpreterOptions options = {0};

    return layout_run_new_with(runtime, spec, task, &options);
}

static inline void layout_run_free(LayoutRun *run)
{
    if (run == NULL)
        return;
    binding_free(run->binding);
    interpreter_free(run->interpreter);
    program_set_free(run->set);
    g_free(run);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(LayoutRun, layout_run_free)

/* All that a host does before a step. */
static inline void layout_bind(LayoutRun *run, guint step)
{
    const double hyper[NUM_HYPER] = {
        [HYPER_LR] = run->task.lr,
        [HYPER_BETA1] = 0.9,
        [HYPER_BETA2] = 0.95,
        [HYPER_EPS] = 1e-8,
        [HYPER_WEIGHT_DECAY] = 0.1,
        [HYPER_STEP] = step,
        [HYPER_MAX_NORM] = run->task.clip_norm,
    };

    binding_samples(run->binding, run->task.data, run->task.seed, step);
    binding_write(run->binding, "hyper", hyper, NUM_HYPER);
    binding_clear_sums(run->binding);
}

static inline void layout_step(LayoutRun *run, gboolean sample)
{
    g_autoptr(GError) error = NULL;

    g_assert(run->steps < LAYOUT_STEPS);
    layout_bind(run, run->steps + 1);
    gboolean ok = interpreter_step(run->interpreter, sample, &error);
    g_assert_no_error(error);
    g_assert(ok);
    run->loss[run->steps] = layout_scalar(run, "loss");
    run->norm[run->steps] = layout_scalar(run, "norm");
    run->steps++;
}

static inline void layout_train_to(LayoutRun *run, guint steps)
{
    while (run->steps < steps)
        layout_step(run, FALSE);
}

static inline void layout_drain(LayoutRun *run)
{
    g_autoptr(GError) error = NULL;
    gboolean ok = interpreter_drain(run->interpreter, &error);

    g_assert_no_error(error);
    g_assert(ok);
}

/* ---- measured from below ---- */

/* One step; NULL when what the transport counts is what the program says, of every kind, or the
 * difference; the caller's. */
static inline char *layout_counted_step(LayoutRun *run, gboolean sample)
{
    Runtime *runtime = interpreter_runtime(run->interpreter);
    guint64 want[NUM_VOLUMES], before[NUM_VOLUMES], after[NUM_VOLUMES];

    program_volume(interpreter_program(run->interpreter), want);
    runtime_bytes_in(runtime, before);
    layout_step(run, sample);
    layout_drain(run);
    runtime_bytes_in(runtime, after);
    for (guint v = 0; v < NUM_VOLUMES; v++)
        if (after[v] - before[v] != want[v])
            return g_strdup_printf(
                "%s: %" G_GUINT64_FORMAT " bytes in step %u, not %" G_GUINT64_FORMAT,
                volume_name((Volume)v), after[v] - before[v], run->steps, want[v]);
    return NULL;
}

/* State is touched to the byte.  Of the arena at most 2% is never touched, beside alignment, which
 * counts in one as small as a test's, and workspace: that is a bound, and attention's tiles are
 * longer than a test's sequences.  NULL, or what does not hold; the caller's. */
static inline char *layout_memory_problem(LayoutRun *run)
{
    Interpreter *interpreter = run->interpreter;
    const Program *program = interpreter_program(interpreter);
    const guint64 arena = program->arena_bytes[TIER_DEVICE];
    const guint64 touched = interpreter_touched_arena(interpreter, TIER_DEVICE);
    guint64 spare = 0;

    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);
        const guint64 bytes = interpreter_touched_tensor(interpreter, t);
        const guint64 all = tensor_bytes(program, tensor);
        const guint copies = tensor_num_copies(program, tensor);

        spare += ARENA_ALIGNMENT * copies + (tensor->kind == TENSOR_WORKSPACE ? all - bytes : 0);
        if (tensor->persistence == PERSIST_STATE && bytes != all)
            return g_strdup_printf("%s: %" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT
                                   " bytes touched",
                                   tensor->name, bytes, all);
    }
    if (touched > arena || (double)(touched + spare) < 0.98 * (double)arena)
        return g_strdup_printf("%" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT
                               " bytes of the arena touched, %" G_GUINT64_FORMAT " to spare",
                               touched, arena, spare);
    return NULL;
}

/* ---- whole tensors ---- */

/* What every unit has one of, or none. */
typedef enum {
    LAYOUT_PARAMETER,
    LAYOUT_GRADIENT,
    LAYOUT_MASTER,
    LAYOUT_MOMENT1,
    LAYOUT_MOMENT2,
    NUM_LAYOUT_TENSORS
} LayoutTensor;

static inline gint layout_unit_tensor(const UnitClass *unit, LayoutTensor which)
{
    const gint tensors[NUM_LAYOUT_TENSORS] = {
        unit->parameter, unit->gradient, unit->master, unit->moment[0], unit->moment[1],
    };

    return tensors[which];
}

/* A range of one parameter, as a rank holds it. */
typedef struct {
    guint64 at; /* its first element, counted over all parameters of all units */
    guint64 elements;
    guint64 offset; /* in its copy of the tensor, in elements */
} LayoutRange;

/* What this rank is to have of a parameter: its span, or the whole where that is kept.  Of whole
 * gradients only the rank's own chunk is reduced. */
static inline LayoutRange layout_range(const LayoutRun *run, const UnitClass *unit, guint param,
                                       LayoutTensor which)
{
    const Program *program = interpreter_program(run->interpreter);
    const UnitMap *map = unit->map;
    const gint tensor = layout_unit_tensor(unit, which);
    const gboolean whole = program_tensor(program, (guint)tensor)->part == PART_WHOLE;
    const guint rank = map->ranks == 1 ? 0 : interpreter_map_rank(run->interpreter);
    const ShardSpan span = unit_map_span(map, param, rank);

    if (whole && which == LAYOUT_PARAMETER)
        return (LayoutRange){0, map->params[param].rows * map->params[param].cols,
                             map->params[param].full_offset};
    return (LayoutRange){span.start, span.elements, whole ? span.full_offset : span.shard_offset};
}

static inline float layout_value(const Tensor *tensor, const void *data, guint64 i)
{
    return tensor->dtype == DTYPE_BF16 ? bf16_to_float(((const guint16 *)data)[i])
                                       : ((const float *)data)[i];
}

static inline guint64 layout_elements(const GArray *params)
{
    guint64 elements = 0;

    for (guint p = 0; p < params->len; p++)
        elements +=
            g_array_index(params, ParamShape, p).rows * g_array_index(params, ParamShape, p).cols;
    return elements;
}

/* Ranges and values that this rank holds: {at, elements} and the values as fp32, again and again.
 * FALSE when there is no such tensor. */
static inline gboolean layout_pack(LayoutRun *run, LayoutTensor which, GByteArray *packed)
{
    const Program *program = interpreter_program(run->interpreter);
    guint64 base = 0;

    for (guint u = 0; u < program->unit_refs->len; u++) {
        const UnitRef *ref = program_unit_ref(program, u);
        g_autoptr(GArray) params =
            model_unit_params(run->spec.model, u == ROOT_UNIT ? UNIT_ROOT : UNIT_BLOCK);

        if (ref->unit_class == NO_UNIT_CLASS) {
            base += layout_elements(params);
            continue;
        }
        const UnitClass *unit = program_unit(program, ref->unit_class);
        const gint tensor = layout_unit_tensor(unit, which);

        if (tensor == NO_TENSOR)
            return FALSE;
        const Tensor *stored = program_tensor(program, (guint)tensor);
        const guint64 bytes = tensor_copy_bytes(stored);
        g_autofree void *data = g_malloc(bytes);
        interpreter_read(run->interpreter, (guint)tensor, ref->index, (TensorRange){0, bytes},
                         data);
        for (guint p = 0; p < unit->map->num_params; p++) {
            LayoutRange range = layout_range(run, unit, p, which);

            range.at += base;
            base += g_array_index(params, ParamShape, p).rows *
                    g_array_index(params, ParamShape, p).cols;
            g_byte_array_append(packed, (const guint8 *)&range, sizeof range);
            for (guint64 i = 0; i < range.elements; i++) {
                const float value = layout_value(stored, data, range.offset + i);

                g_byte_array_append(packed, (const guint8 *)&value, sizeof value);
            }
        }
    }
    return TRUE;
}

/* Copies one rank's ranges in; FALSE when something that was there has other bits. */
static inline gboolean layout_unpack(GBytes *packed, float *whole, gboolean *there)
{
    gsize bytes;
    const guint8 *at = g_bytes_get_data(packed, &bytes), *end = at + bytes;
    gboolean equal = TRUE;

    while (at < end) {
        LayoutRange range;

        memcpy(&range, at, sizeof range);
        at += sizeof range;
        for (guint64 i = 0; i < range.elements; i++, at += sizeof(float)) {
            equal &= !there[range.at + i] || memcmp(&whole[range.at + i], at, sizeof(float)) == 0;
            memcpy(&whole[range.at + i], at, sizeof(float));
            there[range.at + i] = TRUE;
        }
    }
    return equal;
}

/* Collective: the tensor of all units as rank 0 learns it from all ranks, fp32, in the order of
 * units and their parameters; NULL on other ranks, or when there is none.  *equal becomes FALSE on
 * rank 0 when two ranks that hold the same element have other bits, or nobody holds it. */
static inline float *layout_gather(LayoutRun *run, LayoutTensor which, gboolean *equal)
{
    Runtime *runtime = interpreter_runtime(run->interpreter);
    const guint64 elements = model_parameters(run->spec.model);
    g_autoptr(GByteArray) packed = g_byte_array_new();
    g_autoptr(GPtrArray) all = g_ptr_array_new_with_free_func((GDestroyNotify)g_bytes_unref);
    g_autoptr(GError) error = NULL;

    if (!layout_pack(run, which, packed))
        return NULL;
    gboolean ok = runtime_gather(runtime, packed->data, packed->len, all, &error);
    g_assert_no_error(error);
    g_assert(ok);
    if (runtime_rank(runtime) != 0)
        return NULL;
    float *whole = g_new0(float, elements);
    g_autofree gboolean *there = g_new0(gboolean, elements);
    for (guint r = 0; r < all->len; r++)
        *equal &= layout_unpack(g_ptr_array_index(all, r), whole, there);
    for (guint64 i = 0; i < elements; i++)
        *equal &= there[i];
    return whole;
}

/* Without rotation a bias of keys adds the same to all scores of a query, which softmax takes away
 * again: its gradient is rounding alone, and AdamW makes steps of full size of it.  Sets it to 0 in
 * what layout_gather() gave. */
static inline void layout_forget_key_biases(const LayoutRun *run, float *whole)
{
    const Program *program = interpreter_program(run->interpreter);
    float *at = whole;

    for (guint u = 0; u < program->unit_refs->len; u++) {
        const UnitMap *map = program_unit(program, program_unit_ref(program, u)->unit_class)->map;

        for (guint p = 0; p < map->num_params; p++) {
            const guint64 elements = map->params[p].rows * map->params[p].cols;

            if (map->params[p].role == PARAM_K_BIAS)
                memset(at, 0, elements * sizeof *at);
            at += elements;
        }
    }
}
