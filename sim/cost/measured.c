#include "sim/cost/measured.h"

#include <math.h>

enum { MAX_COORDINATES = 3 };

/* One row: where it was measured (logarithms), and the rate there. */
typedef struct {
    guint busy, threads;
    double at[MAX_COORDINATES];
    double rate;
} Sample;

/* Shepard's weights are 1 / distance^SHEPARD_POWER.  Above the number of coordinates the nearest
 * rows decide and the many far ones do not drown them (Shepard, Proc. 23rd ACM Conf., 1968). */
static const double SHEPARD_POWER = 4.0;

static guint num_rows(const GArray *rows)
{
    return rows == NULL ? 0 : rows->len;
}

static double coordinate(guint64 size)
{
    return log((double)MAX(size, 1));
}

static GArray *gemm_samples(const Measured *measured, DType dtype)
{
    GArray *samples = g_array_new(FALSE, FALSE, sizeof(Sample));

    for (guint i = 0; i < num_rows(measured->gemm); i++) {
        const MeasuredGemm *row = &g_array_index(measured->gemm, MeasuredGemm, i);
        const Sample sample = {
            .busy = row->busy,
            .threads = row->threads,
            .at = {coordinate(row->m), coordinate(row->n), coordinate(row->k)},
            .rate = row->flops_per_s,
        };
        if (row->dtype == dtype)
            g_array_append_val(samples, sample);
    }
    return samples;
}

static GArray *op_samples(const Measured *measured, const char *op, DType dtype)
{
    GArray *samples = g_array_new(FALSE, FALSE, sizeof(Sample));

    for (guint i = 0; i < num_rows(measured->ops); i++) {
        const MeasuredOp *row = &g_array_index(measured->ops, MeasuredOp, i);
        const Sample sample = {
            .busy = row->busy,
            .threads = row->threads,
            .at = {coordinate(row->size), coordinate(row->width)},
            .rate = row->per_s,
        };
        if (row->dtype == dtype && g_str_equal(row->op, op))
            g_array_append_val(samples, sample);
    }
    return samples;
}

/* How many times slower each rank is than with cores of its own. */
double measured_time_sharing(const MeasuredLoad *load)
{
    const double wanted = (double)load->busy * load->threads;

    return MAX(1.0, wanted / load->cores);
}

guint measured_at_once(const MeasuredLoad *load)
{
    return MIN(load->busy, MAX(1, load->cores / load->threads));
}

/* The thread count of some row that is nearest, as a ratio, to @threads. */
static guint nearest_threads(const GArray *samples, guint threads)
{
    guint nearest = 0;
    double least = INFINITY;

    for (guint i = 0; i < samples->len; i++) {
        const guint candidate = g_array_index(samples, Sample, i).threads;
        const double distance = fabs(log((double)candidate / threads));
        if (distance < least) {
            least = distance;
            nearest = candidate;
        }
    }
    return nearest;
}

/* The busy counts of rows with @threads that are next to @busy, below and above; where one side
 * has none, the other side's. */
static void bracket_busy(const GArray *samples, guint threads, guint busy, guint *below,
                         guint *above)
{
    guint low = 0, high = G_MAXUINT;

    for (guint i = 0; i < samples->len; i++) {
        const Sample *sample = &g_array_index(samples, Sample, i);
        if (sample->threads != threads)
            continue;
        if (sample->busy <= busy)
            low = MAX(low, sample->busy);
        if (sample->busy >= busy)
            high = MIN(high, sample->busy);
    }
    *below = low == 0 ? high : low;
    *above = high == G_MAXUINT ? low : high;
}

/* Moves @at into the box that the rows span: beyond it a rate is taken as that of the edge. */
static void clamp_to_rows(const GArray *samples, double at[MAX_COORDINATES])
{
    for (guint c = 0; c < MAX_COORDINATES; c++) {
        double low = INFINITY, high = -INFINITY;
        for (guint i = 0; i < samples->len; i++) {
            low = MIN(low, g_array_index(samples, Sample, i).at[c]);
            high = MAX(high, g_array_index(samples, Sample, i).at[c]);
        }
        at[c] = CLAMP(at[c], low, high);
    }
}

static double distance_between(const double a[MAX_COORDINATES], const double b[MAX_COORDINATES])
{
    double sum = 0;

    for (guint c = 0; c < MAX_COORDINATES; c++)
        sum += (a[c] - b[c]) * (a[c] - b[c]);
    return sqrt(sum);
}

/* Inverse-distance weighted mean of the logarithm of the rates; at a row, that row's rate. */
static double weighted_rate(const GArray *samples, guint busy, guint threads,
                            const double at[MAX_COORDINATES])
{
    double weights = 0, sum = 0;

    for (guint i = 0; i < samples->len; i++) {
        const Sample *sample = &g_array_index(samples, Sample, i);
        if (sample->busy != busy || sample->threads != threads)
            continue;
        const double distance = distance_between(sample->at, at);
        if (distance < 1e-9)
            return sample->rate;
        const double weight = pow(distance, -SHEPARD_POWER);
        weights += weight;
        sum += weight * log(sample->rate);
    }
    return exp(sum / weights);
}

/* Value at @x on the straight line through (x0, y0), (x1, y1) in logarithms. */
static double log_line(double x, double x0, double y0, double x1, double y1)
{
    if (x1 - x0 < 1e-9)
        return y0;
    const double part = (x - x0) / (x1 - x0);

    return exp((1 - part) * log(y0) + part * log(y1));
}

/* The same along one coordinate: between the two rows around it. */
static double line_rate(const GArray *samples, guint busy, guint threads, double x)
{
    const Sample *below = NULL, *above = NULL;

    for (guint i = 0; i < samples->len; i++) {
        const Sample *sample = &g_array_index(samples, Sample, i);
        if (sample->busy != busy || sample->threads != threads)
            continue;
        if (sample->at[0] <= x && (below == NULL || sample->at[0] > below->at[0]))
            below = sample;
        if (sample->at[0] >= x && (above == NULL || sample->at[0] < above->at[0]))
            above = sample;
    }
    if (below == NULL)
        return above->rate;
    if (above == NULL)
        return below->rate;
    return log_line(x, below->at[0], below->rate, above->at[0], above->rate);
}

static double rate_at(const GArray *samples, guint busy, guint threads,
                      const double at[MAX_COORDINATES], gboolean one_coordinate)
{
    return one_coordinate ? line_rate(samples, busy, threads, at[0])
                          : weighted_rate(samples, busy, threads, at);
}

/**
 * rate_under_load: one rank's rate at @at when the node is used as @load says.
 *
 *     rate = 1 / s(busy) * threads / threads' / sharing
 *
 *     threads'  of the rows nearest to @load's; work is taken to divide evenly among threads
 *     busy      ranks that really run at once: min(load's busy, cores / threads)
 *     s(busy)   seconds of one FLOP or byte, on a straight line between measured busy counts
 *     sharing   max(1, busy * threads / cores): cores are shared evenly when ranks outnumber them
 *
 * Derived here.  Left out: what switching between ranks costs (caches refilled).
 */
static double rate_under_load(const GArray *samples, const MeasuredLoad *load,
                              double at[MAX_COORDINATES], gboolean one_coordinate)
{
    const guint threads = nearest_threads(samples, load->threads);
    const guint at_once = measured_at_once(load);
    guint below, above;

    clamp_to_rows(samples, at);
    bracket_busy(samples, threads, at_once, &below, &above);
    const double slow = 1 / rate_at(samples, above, threads, at, one_coordinate);
    const double fast = 1 / rate_at(samples, below, threads, at, one_coordinate);
    const double part =
        above > below ? CLAMP((double)(at_once - below) / (above - below), 0, 1) : 0;
    const double seconds = (1 - part) * fast + part * slow;

    return (double)load->threads / threads / seconds / measured_time_sharing(load);
}

double measured_gemm_rate(const Measured *measured, const MeasuredLoad *load, DType dtype,
                          const guint64 shape[3])
{
    g_autoptr(GArray) samples = gemm_samples(measured, dtype);
    double at[MAX_COORDINATES] = {coordinate(shape[0]), coordinate(shape[1]), coordinate(shape[2])};

    return samples->len == 0 ? 0 : rate_under_load(samples, load, at, FALSE);
}

double measured_op_rate(const Measured *measured, const MeasuredLoad *load, const char *op,
                        DType dtype, const guint64 size[2])
{
    g_autoptr(GArray) samples = op_samples(measured, op, dtype);
    double at[MAX_COORDINATES] = {coordinate(size[0]), coordinate(size[1])};

    return samples->len == 0 ? 0 : rate_under_load(samples, load, at, size[1] == 0);
}

static gboolean collective_matches(const MeasuredCollective *row, const MeasuredGroup *group)
{
    return row->dtype == group->dtype && g_str_equal(row->collective, group->collective);
}

/* Ranks of the rows nearest, as a ratio, to those that are wanted; 0 = none. */
static guint nearest_ranks(const Measured *measured, const MeasuredGroup *group)
{
    guint nearest = 0;
    double least = INFINITY;

    for (guint i = 0; i < num_rows(measured->collectives); i++) {
        const MeasuredCollective *row =
            &g_array_index(measured->collectives, MeasuredCollective, i);
        const double distance = fabs(log((double)row->ranks / group->ranks));
        if (!collective_matches(row, group) || row->ranks < group->least ||
            row->ranks > group->most || distance >= least)
            continue;
        least = distance;
        nearest = row->ranks;
    }
    return nearest;
}

/* On a line between the rows around @bytes; the smallest row's time below all, the largest row's
 * bandwidth above all. */
static double seconds_at(const Measured *measured, MeasuredGroup *group, guint64 bytes)
{
    const MeasuredCollective *below = NULL, *above = NULL;

    group->least_bytes = G_MAXUINT64;
    for (guint i = 0; i < num_rows(measured->collectives); i++) {
        const MeasuredCollective *row =
            &g_array_index(measured->collectives, MeasuredCollective, i);
        if (!collective_matches(row, group) || row->ranks != group->nearest)
            continue;
        group->least_bytes = MIN(group->least_bytes, row->bytes);
        if (row->bytes <= bytes && (below == NULL || row->bytes > below->bytes))
            below = row;
        if (row->bytes >= bytes && (above == NULL || row->bytes < above->bytes))
            above = row;
    }
    if (below == NULL)
        return above->seconds;
    if (above == NULL)
        return below->seconds * (double)bytes / (double)below->bytes;
    return log_line(coordinate(bytes), coordinate(below->bytes), below->seconds,
                    coordinate(above->bytes), above->seconds);
}

double measured_collective_seconds(const Measured *measured, MeasuredGroup *group, guint64 bytes)
{
    group->nearest = nearest_ranks(measured, group);
    return group->nearest == 0 ? 0 : seconds_at(measured, group, bytes);
}
