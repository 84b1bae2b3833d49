/* Ops between micro-batches and steps: counting, norm, clipping, optimisers.
 *
 * Unit ops touch the real elements that this rank owns: the spans of the unit's map, each operand
 * by its own part.  Gradients have op->dtype_out, parameters op->dtype; a parameter that is not
 * fp32 needs a master, which is what is updated, and becomes its rounding. */
#include "exec/base/random.h"
#include "exec/device/cpu_block.h"
#include "exec/device/cpu_kernels.h"
#include "exec/device/cpu_loop.h"

#include <math.h>

void cpu_count_valid(guint threads, const Launch *launch)
{
    const gint32 *labels = launch->operand[0];
    double *valid = launch->operand[1];
    guint64 count = 0;

    (void)threads;
    for (guint64 i = 0; i < launch->op->sizes.rows; i++)
        count += labels[i] != -1;
    *valid = (launch_adds(launch, 1) ? *valid : 0) + (double)count;
}

static ShardSpan span_of(const Launch *launch, guint param)
{
    return unit_map_span(launch->map, param, launch->map_rank);
}

/* ---- squared norm ---- */

/* Runs of a span that are summed apart, whatever the threads. */
enum { NORM_RUNS = 64 };

static double squared_run(DType dtype, const void *data, guint64 offset, guint64 elements)
{
    float buffer[CPU_BLOCK];
    double sum = 0;

    for (guint64 start = 0; start < elements; start += CPU_BLOCK) {
        const guint64 n = MIN(CPU_BLOCK, elements - start);
        const float *values = block_read(dtype, data, offset + start, n, buffer);
        double part = 0;
#pragma omp simd reduction(+ : part)
        for (guint64 i = 0; i < n; i++)
            part += (double)values[i] * (double)values[i];
        sum += part;
    }
    return sum;
}

typedef struct {
    const Launch *launch;
    const ShardSpan *span;
    double *runs;
} SquaredRuns;

static void one_run(gconstpointer context, guint64 run)
{
    const SquaredRuns *to = context;
    const guint64 elements = to->span->elements, offset = launch_offset(to->launch, 0, to->span);
    const guint64 start = run * elements / NORM_RUNS, end = (run + 1) * elements / NORM_RUNS;

    to->runs[run] =
        squared_run(to->launch->op->dtype_out, to->launch->operand[0], offset + start, end - start);
}

static double squared_span(guint threads, const Launch *launch, const ShardSpan *span)
{
    const gboolean large = span->elements > NORM_RUNS * CPU_BLOCK;
    double runs[NORM_RUNS], sum = 0;

    cpu_loop(large ? threads : 1, NORM_RUNS, one_run, &(SquaredRuns){launch, span, runs});
    for (guint run = 0; run < NORM_RUNS; run++)
        sum += runs[run];
    return sum;
}

void cpu_squared_norm(guint threads, const Launch *launch)
{
    double *to = launch->operand[1], sum = launch_adds(launch, 1) ? *to : 0;

    for (guint param = 0; param < launch->map->num_params; param++) {
        const ShardSpan span = span_of(launch, param);

        sum += squared_span(threads, launch, &span) / launch->map->params[param].copies;
    }
    *to = sum;
}

/* coef = min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_. */
void cpu_clip(guint threads, const Launch *launch)
{
    const double *hyper = launch->operand[0], *valid = launch->operand[1];
    double *loss = launch->operand[2], *norm = launch->operand[3], *coef = launch->operand[4];
    double *finite = launch->operand[5], sum = 0;

    (void)threads;
    for (guint i = 6; i < launch->op->num_operands; i++)
        sum += *(const double *)launch->operand[i];
    *loss /= MAX(*valid, 1);
    *norm = sqrt(sum);
    *coef = hyper[HYPER_MAX_NORM] == 0 ? 1 : MIN(1, hyper[HYPER_MAX_NORM] / (*norm + 1e-6));
    *finite = isfinite(*loss) && isfinite(*norm) ? 1 : 0;
}

/* ---- optimisers ---- */

/* Elements of one parameter, by operand: 0 the parameter, 1 its gradient. */
typedef struct {
    const Launch *launch;
    ShardSpan span;
    guint master;                    /* operand, or 0: the parameter itself is updated */
    guint64 step;                    /* its number */
    const RoundingNumbers *rounding; /* of this parameter, or NULL */
    float learning_rate, decay, coef;
    /* adamw: b, 1 - b of both moments, and the corrections 1 / (1 - b^t) */
    float keep[2], take[2], correction[2], eps;
} Update;

static Update update_open(const Launch *launch, const double *hyper, double coef, guint master)
{
    const gboolean has_master = launch->op->num_operands > master;

    g_assert(has_master || launch->op->dtype == DTYPE_FP32);
    return (Update){.launch = launch,
                    .master = has_master ? master : 0,
                    .step = (guint64)hyper[HYPER_STEP],
                    .learning_rate = (float)hyper[HYPER_LR],
                    .coef = (float)coef};
}

static void update_take(Update *update, guint param)
{
    const RoundingNumbers *all = update->launch->rounding;

    update->span = span_of(update->launch, param);
    update->rounding = all == NULL ? NULL : &all[param];
}

static float *fp32_at(const Update *update, guint operand, guint64 start)
{
    return (float *)update->launch->operand[operand] +
           launch_offset(update->launch, operand, &update->span) + start;
}

static const float *gradient_at(const Update *update, guint64 start, guint64 n, float *buffer)
{
    return block_read(update->launch->op->dtype_out, update->launch->operand[1],
                      launch_offset(update->launch, 1, &update->span) + start, n, buffer);
}

/* The number of element @at of this rank's part, and how many follow each other from there on. */
static guint64 number_of(const RoundingNumbers *numbers, guint64 at, guint64 *run)
{
    if (numbers->columns == 0) {
        *run = G_MAXUINT64;
        return numbers->first + at;
    }
    *run = numbers->columns - at % numbers->columns;
    return numbers->first + at / numbers->columns * numbers->stride + at % numbers->columns;
}

static void round_by_chance(const Update *update, guint64 start, guint64 n, const float *master)
{
    guint16 *to = (guint16 *)update->launch->operand[0] +
                  launch_offset(update->launch, 0, &update->span) + start;
    guint16 bits[CPU_BLOCK];
    guint64 run;

    for (guint64 done = 0; done < n; done += run) {
        const guint64 number = number_of(update->rounding, update->span.start + start + done, &run);

        run = MIN(run, n - done);
        random_bits_fill(bits, update->step, number, run);
        for (guint64 i = 0; i < run; i++)
            to[done + i] = bf16_by_chance(master[done + i], bits[i]);
    }
}

/* The parameter becomes the rounding of its master. */
static void round_master(const Update *update, guint64 start, guint64 n, const float *master)
{
    if (update->master != 0 && update->rounding != NULL)
        round_by_chance(update, start, n, master);
    else if (update->master != 0)
        block_write(update->launch->op->dtype, update->launch->operand[0],
                    launch_offset(update->launch, 0, &update->span) + start, n, master);
}

/* g = grad coef;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 * p -= lr ((m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + decay p)
 *
 * Loshchilov, Hutter, arXiv 1711.05101, alg. 2, with PyTorch's decay lr * wd. */
static void adamw_block(const Update *u, guint64 start, guint64 n)
{
    float buffer[CPU_BLOCK];
    const float *gradient = gradient_at(u, start, n, buffer);
    float *p = fp32_at(u, u->master, start);
    float *m = fp32_at(u, 2, start), *v = fp32_at(u, 3, start);
    const Update c = *u;

#pragma omp simd
    for (guint64 i = 0; i < n; i++) {
        const float g = gradient[i] * c.coef;

        m[i] = c.keep[0] * m[i] + c.take[0] * g;
        v[i] = c.keep[1] * v[i] + c.take[1] * g * g;
        const float step = m[i] * c.correction[0] / (sqrtf(v[i] * c.correction[1]) + c.eps);
        p[i] -= c.learning_rate * (step + c.decay * p[i]);
    }
    round_master(u, start, n, p);
}

static void sgd_block(const Update *u, guint64 start, guint64 n)
{
    float buffer[CPU_BLOCK];
    const float *gradient = gradient_at(u, start, n, buffer);
    float *p = fp32_at(u, u->master, start);
    const float coef = u->coef, learning_rate = u->learning_rate;

#pragma omp simd
    for (guint64 i = 0; i < n; i++)
        p[i] -= learning_rate * (gradient[i] * coef);
    round_master(u, start, n, p);
}

typedef struct {
    const Update *update;
    void (*kernel)(const Update *update, guint64 start, guint64 n);
} UpdateBlocks;

static void one_block(gconstpointer context, guint64 block)
{
    const UpdateBlocks *blocks = context;
    const guint64 start = block * CPU_BLOCK;

    blocks->kernel(blocks->update, start, MIN(CPU_BLOCK, blocks->update->span.elements - start));
}

static void each_block(guint threads, const Update *update,
                       void (*kernel)(const Update *update, guint64 start, guint64 n))
{
    cpu_loop(threads, (update->span.elements + CPU_BLOCK - 1) / CPU_BLOCK, one_block,
             &(UpdateBlocks){update, kernel});
}

void cpu_adamw(guint threads, const Launch *launch)
{
    const double *hyper = launch->operand[4];
    Update update = update_open(launch, hyper, *(const double *)launch->operand[5], 6);

    for (guint i = 0; i < 2; i++) {
        const double beta = hyper[HYPER_BETA1 + i];

        update.keep[i] = (float)beta;
        update.take[i] = (float)(1 - beta);
        update.correction[i] = (float)(1 / (1 - pow(beta, hyper[HYPER_STEP])));
    }
    update.eps = (float)hyper[HYPER_EPS];
    for (guint param = 0; param < launch->map->num_params; param++) {
        const gboolean decays = launch->map->params[param].dims >= 2;

        update_take(&update, param);
        update.decay = decays ? (float)hyper[HYPER_WEIGHT_DECAY] : 0;
        each_block(threads, &update, adamw_block);
    }
}

void cpu_sgd(guint threads, const Launch *launch)
{
    Update update = update_open(launch, launch->operand[2], *(const double *)launch->operand[3], 4);

    for (guint param = 0; param < launch->map->num_params; param++) {
        update_take(&update, param);
        each_block(threads, &update, sgd_block);
    }
}
