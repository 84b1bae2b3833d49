/* Every op of a program, launched on the CUDA device as the interpreter launches it, leaves what it
 * leaves on the CPU: operands in the order of op.h, optional ones with and without, first and later
 * calls of an accumulation, sizes that divide by nothing, the plan's scratch and not a byte more.
 */
#include "exec/cuda/cuda_device.h"
#include "exec/cuda/plug_in.h"
#include "tests/exec/kernel_case.h"

/* Operands, a word each: access (r, w, u, a), type and how many, by the letters of op.h.
 *   T dtype   O dtype_out   f fp32   x fp32, positive   d fp64   q fp8 codes
 *   t tokens (of `in` words)   l labels (of `out` words, or -1)   p positions   k those of keys
 *   v the scalar 5   h hyper   R a range of words
 *   N rows  I in  O out  B batch  S seq  H heads  K kv_heads  D head_dim  b chunk  E elements
 *   U a unit's shard  W a whole unit  A amax of all units        s: the scratch */
typedef struct {
    OpKind kind;
    OpSizes sizes;
    const char *operands;
    gboolean of_unit;
} OpCase;

#define ROWS                                                                                       \
    {                                                                                              \
        .rows = 13, .in = 40, .out = 22, .eps = 1e-5                                               \
    }
#define WIDE_ROWS                                                                                  \
    {                                                                                              \
        .rows = 70, .in = 36, .out = 8, .eps = 1e-5                                                \
    }
#define HEADS                                                                                      \
    {                                                                                              \
        .rows = 2 * 37, .batch = 2, .seq = 37, .heads = 6, .kv_heads = 2, .head_dim = 24,          \
        .chunk = 3                                                                                 \
    }
/* Rows in chunks, the last one shorter. */
#define HEAD_OF(parts)                                                                             \
    {                                                                                              \
        .rows = 13, .in = 40, .out = 37, .chunk = 5, .elements = (parts)*13 * NUM_STATS            \
    }

static const OpCase cases[] = {
    {OP_EMBED, ROWS, "rt:N rT:IO wT:NO", 0},
    {OP_EMBED, ROWS, "rt:N rT:IO uT:NO rR:2", 0},
    {OP_RMSNORM, ROWS, "rT:NI rT:I wT:NI wf:N", 0},
    {OP_RMSNORM, ROWS, "rT:NI rT:I wT:NI wf:N rT:NI wT:NI", 0},
    {OP_RMSNORM_APPLY, ROWS, "rT:NI rT:I rx:N wT:NI", 0},
    {OP_LAYERNORM, ROWS, "rT:NI rT:I rT:I wT:NI wf:N2", 0},
    {OP_LAYERNORM, WIDE_ROWS, "rT:NI rT:I rT:I wT:NI wf:N2 rT:NI wT:NI", 0},
    {OP_LAYERNORM_APPLY, ROWS, "rT:NI rT:I rT:I rx:N2 wT:NI", 0},
    {OP_LINEAR, ROWS, "rT:NI rT:OI wT:NO s", 0},
    {OP_LINEAR, ROWS, "rT:NI rT:OI uT:NO s rT:O", 0},
    {OP_LINEAR, WIDE_ROWS, "rT:NI rT:OI wT:NO s rT:O", 0},
    {OP_ADD_BIAS, ROWS, "uT:NI rT:I", 0},
    {OP_ROPE, HEADS, "uT:BSHD uT:BSKD rf:SD", 0},
    {OP_ATTENTION, HEADS, "rT:BSHD rT:BSKD rT:BSKD wO:BSHD wf:BSH s", 0},
    {OP_ATTENTION, HEADS, "rT:BSHD rT:bBSKD rT:bBSKD wO:BSHD wf:BSH s rp:S rk:bS", 0},
    {OP_ATTENTION, HEADS, "rT:BSHD rT:bBSKD rT:bBSKD uO:BSHD uf:BSH s rp:S rk:bS", 0},
    {OP_SWIGLU, ROWS, "rT:NI rT:NI wT:NI", 0},
    {OP_GELU, ROWS, "rT:NI wT:NI", 0},
    {OP_HEAD_LOSS, HEAD_OF(0), "rT:NI rT:OI rl:N rv:1 ud:1 wT:NI aO:OI s", 0},
    {OP_HEAD_LOSS, HEAD_OF(3), "rT:NI rT:OI rl:N rv:1 ud:1 wT:NI aO:OI s rR:2 rx:E", 0},
    {OP_HEAD_STATS, HEAD_OF(0), "rT:NI rT:OI rl:N rR:2 wf:N3 s", 0},
    {OP_EMBED_BACKWARD, ROWS, "rt:N rT:NO aO:IO", 0},
    {OP_EMBED_BACKWARD, ROWS, "rt:N rT:NO uO:IO rR:2", 0},
    {OP_RMSNORM_BACKWARD, WIDE_ROWS, "rT:NI rT:NI rT:I rx:N wT:NI aO:I s", 0},
    {OP_RMSNORM_BACKWARD, ROWS, "rT:NI rT:NI rT:I rx:N uT:NI aO:I s", 0},
    {OP_LAYERNORM_BACKWARD, WIDE_ROWS, "rT:NI rT:NI rT:I rx:N2 wT:NI aO:I aO:I s", 0},
    {OP_LAYERNORM_BACKWARD, ROWS, "rT:NI rT:NI rT:I rx:N2 uT:NI aO:I uO:I s", 0},
    {OP_LINEAR_BACKWARD_INPUT, ROWS, "rT:NO rT:OI wT:NI s", 0},
    {OP_LINEAR_BACKWARD_INPUT, WIDE_ROWS, "rT:NO rT:OI uT:NI s", 0},
    {OP_LINEAR_BACKWARD_WEIGHT, ROWS, "rT:NO rT:NI aO:OI s", 0},
    {OP_LINEAR_BACKWARD_WEIGHT, WIDE_ROWS, "rT:NO rT:NI aO:OI s aO:O", 0},
    {OP_ROPE_BACKWARD, HEADS, "uT:BSHD uT:BSKD rf:SD", 0},
    {OP_ATTENTION_BACKWARD, HEADS,
     "rT:BSHD rT:BSHD rT:BSKD rT:BSKD rT:BSHD rx:BSH wO:BSHD wO:BSKD wO:BSKD s", 0},
    {OP_ATTENTION_BACKWARD, HEADS,
     "rT:BSHD rT:BSHD rT:bBSKD rT:bBSKD rT:BSHD rx:BSH uO:BSHD wO:bBSKD uO:bBSKD s rp:S rk:bS", 0},
    {OP_SWIGLU_BACKWARD, ROWS, "rT:NI uT:NI uT:NI", 0},
    {OP_GELU_BACKWARD, ROWS, "rT:NI uT:NI", 0},
    {OP_COUNT_VALID, ROWS, "rl:N ad:1", 0},
    {OP_ACCUMULATE, {.elements = 1003}, "rT:E uO:E", 0},
    {OP_ACCUMULATE, {.elements = 1003}, "rT:E wO:E rO:E", 0},
    {OP_CAST, {.elements = 1003}, "rT:E wO:E", 0},
    {OP_AMAX, {.chunk = 2}, "rT:U ax:A", TRUE},
    {OP_QUANTISE, {.chunk = 2}, "rT:U rx:A wq:U wO:U", TRUE},
    {OP_QUANTISE, {.chunk = 2}, "rT:U rx:A wq:U", TRUE},
    {OP_DEQUANTISE, {.chunk = 2}, "rq:W rx:A wO:W", TRUE},
    {OP_SQUARED_NORM, {0}, "rO:U ad:1", TRUE},
    {OP_SQUARED_NORM, {0}, "rO:W ad:1", TRUE},
    {OP_CLIP, {0}, "rh:7 rv:1 ud:1 wd:1 wd:1 wd:1 rv:1 rv:1", 0},
    {OP_ADAMW, {0}, "uT:U rO:W ux:U ux:U rh:7 rv:1 uf:U", TRUE},
    {OP_SGD, {0}, "uT:U rO:U rh:7 rv:1 uf:U", TRUE},
    {OP_COPY, {.elements = 1003}, "rT:E wT:E", 0},
};

/* Storage, and what sums over rows and steps are left in. */
static const DType types[][2] = {
    {DTYPE_FP32, DTYPE_FP32}, {DTYPE_BF16, DTYPE_BF16}, {DTYPE_BF16, DTYPE_FP32}};

enum { UNIT_RANKS = 3, UNIT_RANK = 1 };

/* A matrix whose rows do not divide by the ranks, vectors, one of them shorter than they are. */
static const ParamShape shapes[] = {
    {.name = (char *)"matrix", .rows = 7, .cols = 5, .dims = 2, .role = PARAM_Q},
    {.name = (char *)"short", .rows = 2, .cols = 1, .dims = 1, .role = PARAM_INPUT_NORM},
    {.name = (char *)"long", .rows = 41, .cols = 1, .dims = 1, .role = PARAM_POST_NORM},
    {.name = (char *)"wide", .rows = 50, .cols = 33, .dims = 2, .role = PARAM_UP},
};

static UnitMap *unit_of(Form form)
{
    g_autoptr(GArray) params = g_array_new(FALSE, FALSE, sizeof(ParamShape));

    g_array_append_vals(params, shapes, G_N_ELEMENTS(shapes));
    return unit_map_new(params, UNIT_RANKS, form);
}

/* ---- operands ---- */

static guint64 letter(const KernelCase *c, char which)
{
    const OpSizes *s = &c->op.sizes;

    switch (which) {
    case 'N':
        return s->rows;
    case 'I':
        return s->in;
    case 'O':
        return s->out;
    case 'B':
        return s->batch;
    case 'S':
        return s->seq;
    case 'H':
        return s->heads;
    case 'K':
        return s->kv_heads;
    case 'D':
        return s->head_dim;
    case 'b':
        return s->chunk;
    case 'E':
        return s->elements;
    case 'U':
        return c->map->shard_elements;
    case 'W':
        return c->map->full_elements;
    case 'A':
        return s->chunk * NUM_PARAM_ROLES;
    default:
        return (guint64)(which - '0');
    }
}

static DType type_of(const KernelCase *c, char which)
{
    switch (which) {
    case 'T':
        return c->op.dtype;
    case 'O':
        return c->op.dtype_out;
    case 'q':
        return DTYPE_FP8;
    case 'f':
    case 'x':
        return DTYPE_FP32;
    case 't':
    case 'l':
    case 'p':
    case 'k':
        return DTYPE_INT32;
    default:
        return DTYPE_FP64;
    }
}

/* Element @i of an operand; noise is there already. */
static double value_of(const KernelCase *c, guint operand, char type, guint64 i)
{
    const OpSizes *s = &c->op.sizes;
    static const double hyper[NUM_HYPER] = {0.1, 0.9, 0.99, 1e-8, 0.5, 3, 1};

    switch (type) {
    case 'x':
        return fabs(case_get(c, operand, i)) + 0.1;
    case 't':
        return (double)(i * 7 % s->in % 9);
    case 'l':
        return (double)(i * 5 % (s->out + 1)) - 1;
    case 'p':
        return (double)(s->seq + i);
    case 'k':
        return (double)i;
    case 'v':
        return 5;
    case 'h':
        return hyper[i];
    case 'R':
        return i == RANGE_FIRST ? 3 : 4;
    default:
        return (double)(i * 11 % 251); /* codes */
    }
}

static void add_operand(KernelCase *c, const char *word)
{
    static const char accesses[] = "rwua";
    const Access access = (Access)(strchr(accesses, word[0]) - accesses);
    guint64 count = 1;

    if (word[0] == 's') {
        case_add_scratch(c);
        return;
    }
    for (const char *at = word + 3; *at != '\0'; at++)
        count *= letter(c, *at);
    const guint operand = case_add(c, access, type_of(c, word[1]), count);

    c->part[operand] = word[3] == 'U' ? PART_SHARD : word[3] == 'W' ? PART_WHOLE : PART_NONE;
    for (guint64 i = 0; access != ACCESS_WRITE && strchr("xtlpkvhRq", word[1]) && i < count; i++)
        case_set(c, operand, i, value_of(c, operand, word[1], i));
}

/* The range of words: as many as W has rows, or, of an embedding, some of them. */
static void fit_range(KernelCase *c, const char *operands)
{
    const gboolean head = c->op.kind == OP_HEAD_LOSS || c->op.kind == OP_HEAD_STATS;
    g_auto(GStrv) words = g_strsplit(operands, " ", -1);

    for (guint i = 0; words[i] != NULL; i++)
        if (words[i][1] == 'R' && head)
            case_set(c, i, RANGE_COUNT, (double)c->op.sizes.out - 2);
}

static KernelCase op_case(const OpCase *of, const DType type[2], const UnitMap *map)
{
    KernelCase c = kernel_case(of->kind, type[0], of->sizes);
    g_auto(GStrv) words = g_strsplit(of->operands, " ", -1);

    c.op.dtype_out = type[1];
    c.map = of->of_unit ? map : NULL;
    c.map_rank = UNIT_RANK;
    c.unit = 1;
    for (guint i = 0; words[i] != NULL; i++)
        add_operand(&c, words[i]);
    fit_range(&c, of->operands);
    if (of->kind == OP_ADAMW || of->kind == OP_SGD) /* without a master fp32 is what is updated */
        c.op.num_operands -= type[0] == DTYPE_FP32 ? 1 : 0;
    return c;
}

/* ---- on the device ---- */

/* One scratch for all ops: libraries want tens of MiB, which the simulated device fills. */
typedef struct {
    Device *device;
    guint8 *scratch;
    guint64 scratch_bytes;
} OnCuda;

static gsize operand_bytes(const KernelCase *c, guint i)
{
    return c->count[i] * dtype_bytes(c->type[i]);
}

static void *allocate(Device *device, gsize bytes)
{
    g_autoptr(GError) error = NULL;
    void *memory = device_queues(device)->alloc(device, bytes, &error);

    g_assert_no_error(error);
    return memory;
}

static OnCuda open_cuda(guint64 scratch_bytes)
{
    const DeviceOptions options = {.threads = 1};
    g_autoptr(GError) error = NULL;
    OnCuda cuda = {device_open_with(fsdp_cuda_plug_in.device, &options, &error), NULL,
                   scratch_bytes};

    g_assert_no_error(error);
    cuda.scratch = allocate(cuda.device, scratch_bytes);
    return cuda;
}

static void close_cuda(OnCuda *cuda)
{
    device_queues(cuda->device)->release(cuda->device, cuda->scratch);
    device_free(cuda->device);
}

/* What the plan has for the op, at the end of the scratch: behind it is a guard. */
static void *scratch_for(const OnCuda *cuda, const Op *op)
{
    const guint64 bytes = op_workspace_bytes(op, DEVICE_CUDA, 1);

    g_assert(bytes <= cuda->scratch_bytes);
    return cuda->scratch + (cuda->scratch_bytes - bytes) / 16 * 16;
}

static void run_on(const OnCuda *cuda, KernelCase *c, gboolean first)
{
    Device *device = cuda->device;
    Launch launch = {.op = &c->op,
                     .map = c->map,
                     .map_rank = c->map_rank,
                     .unit = c->unit,
                     .rounding = c->rounding,
                     .first = first};
    g_autoptr(GError) error = NULL;

    for (guint i = 0; i < c->op.num_operands; i++) {
        launch.part[i] = c->part[i];
        if (c->data[i] == NULL) {
            launch.operand[i] = scratch_for(cuda, &c->op);
            continue;
        }
        launch.operand[i] = allocate(device, operand_bytes(c, i));
        device_write(device, launch.operand[i], c->data[i], operand_bytes(c, i));
    }
    device_run(device, &launch);
    for (guint i = 0; i < c->op.num_operands; i++) {
        if (c->data[i] == NULL)
            continue;
        device_read(device, c->data[i], launch.operand[i], operand_bytes(c, i));
        device_queues(device)->release(device, launch.operand[i]);
    }
    ck_assert(device_sync(device, &error));
    g_assert_no_error(error);
}

/* ---- comparing ---- */

/* The normalised mean square error that roundings of the operand's type explain: what is stored is
 * at most half a unit off, and what was stored before it was multiplied as well. */
static double most_error(const KernelCase *c, guint operand)
{
    const gboolean bf16 = c->op.dtype == DTYPE_BF16 || c->type[operand] == DTYPE_BF16;

    return bf16 ? 4 * 0x1p-18 : 1e-11;
}

static void check_operand(const KernelCase *want, const KernelCase *got, guint operand)
{
    double error = 0, all = 0;

    for (guint64 i = 0; i < want->count[operand]; i++) {
        const double w = case_get(want, operand, i), g = case_get(got, operand, i);

        if (isnan(w) != isnan(g) || isinf(w) != isinf(g))
            ck_abort_msg("%s, %s: operand %u, element %" G_GUINT64_FORMAT " is %g, not %g",
                         op_kind_name(want->op.kind), dtype_name(want->op.dtype), operand, i, g, w);
        error += isfinite(w) ? (g - w) * (g - w) : 0;
        all += isfinite(w) ? w * w : 0;
    }
    if (!(error <= most_error(want, operand) * all))
        ck_abort_msg("%s, %s to %s: operand %u has an NMSE of %.2g", op_kind_name(want->op.kind),
                     dtype_name(want->op.dtype), dtype_name(want->op.dtype_out), operand,
                     error / all);
}

static void check_case(const OnCuda *cuda, const KernelCase *c, gboolean first)
{
    KernelCase want = case_copy(c), got = case_copy(c);

    case_run_first(&want, 1, first);
    run_on(cuda, &got, first);
    for (guint i = 0; i < c->op.num_operands; i++) {
        if (c->data[i] == NULL)
            continue;
        if (c->op.operands[i].access == ACCESS_READ)
            ck_assert_mem_eq(got.data[i], c->data[i], operand_bytes(c, i));
        else
            check_operand(&want, &got, i);
    }
    kernel_case_clear(&want);
    kernel_case_clear(&got);
}

START_TEST(ops_leave_what_they_leave_on_the_cpu)
{
    KernelCase all[G_N_ELEMENTS(cases)];
    UnitMap *maps[] = {unit_of(FORM_PER_PARAMETER), unit_of(FORM_FLAT)};
    guint64 scratch_bytes = 0;

    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        all[i] = op_case(&cases[i], types[_i], maps[(i + (guint)_i) % 2]);
        scratch_bytes = MAX(scratch_bytes, op_workspace_bytes(&all[i].op, DEVICE_CUDA, 1));
    }
    OnCuda cuda = open_cuda(scratch_bytes);
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        check_case(&cuda, &all[i], TRUE);
        check_case(&cuda, &all[i], FALSE);
        kernel_case_clear(&all[i]);
    }
    close_cuda(&cuda);
    unit_map_free(maps[0]);
    unit_map_free(maps[1]);
}
END_TEST

/* Masters that a rate of 0 leaves as they are: each device rounds the same, and draws the same. The
 * last parameter is some columns of a wider one. */
START_TEST(chance_rounds_as_it_does_on_the_cpu)
{
    static const RoundingNumbers rounding[G_N_ELEMENTS(shapes)] = {
        {.first = 7}, {.first = 1000}, {.first = G_MAXUINT64 - 20}, {5000, 33, 99}};
    static const OpCase updates[] = {
        {OP_ADAMW, {0}, "uT:U rO:W ux:U ux:U rh:7 rv:1 uf:U", TRUE},
        {OP_SGD, {0}, "uT:W rO:U rh:7 rv:1 uf:U", TRUE},
    };
    g_autoptr(UnitMap) map = unit_of(_i % 2 == 0 ? FORM_PER_PARAMETER : FORM_FLAT);
    KernelCase cpu = op_case(&updates[_i / 2], types[1], map), cuda_case, nearest;
    OnCuda cuda = open_cuda(16);

    case_set(&cpu, _i / 2 == 0 ? 4 : 2, HYPER_LR, 0);
    nearest = case_copy(&cpu);
    cpu.rounding = rounding;
    cuda_case = case_copy(&cpu);
    case_run(&cpu, 2);
    case_run(&nearest, 2);
    run_on(&cuda, &cuda_case, TRUE);
    ck_assert_mem_eq(cuda_case.data[0], cpu.data[0], operand_bytes(&cpu, 0));
    ck_assert_mem_ne(nearest.data[0], cpu.data[0], operand_bytes(&cpu, 0));
    close_cuda(&cuda);
    kernel_case_clear(&cpu);
    kernel_case_clear(&cuda_case);
    kernel_case_clear(&nearest);
}
END_TEST

START_TEST(no_op_of_the_device_is_left_out)
{
    for (guint kind = 0; kind < NUM_OPS; kind++) {
        gboolean found = FALSE;

        for (guint i = 0; i < G_N_ELEMENTS(cases); i++)
            found |= cases[i].kind == (OpKind)kind;
        ck_assert_msg(found == (cuda_op((OpKind)kind) != NULL), "%s", op_kind_name((OpKind)kind));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ops on CUDA");
    TCase *tcase = tcase_create("ops");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, ops_leave_what_they_leave_on_the_cpu, 0, G_N_ELEMENTS(types));
    tcase_add_loop_test(tcase, chance_rounds_as_it_does_on_the_cpu, 0, 4);
    tcase_add_test(tcase, no_op_of_the_device_is_left_out);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
