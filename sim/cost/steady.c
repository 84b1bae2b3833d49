/* Whether a step leaves all clocks as the one before did. */
#include "sim/cost/clock.h"

#include <math.h>

/* Of the period: what is less is rounding.  Times are sums and maxima of those before, and an op
 * that is late for others on a link is so by what they overlap: no difference grows. */
static const double same_share = 1e-11;

/* The end of a step, and that of the one after. */
typedef struct {
    double period_s; /* between them */
    double begun_s;  /* when the first op of the step between began */
} Boundary;

static gboolean is_small(const Boundary *boundary, double difference_s)
{
    return fabs(difference_s) <= same_share * boundary->period_s;
}

static gboolean is_later(const Boundary *boundary, double before_s, double now_s)
{
    return is_small(boundary, now_s - before_s - boundary->period_s);
}

/* What was over before anything of the next step began is all one; but for compute, which loses
 * time to traffic from where it is. */
static gboolean is_over(const Boundary *boundary, double before_s, double now_s)
{
    return before_s <= boundary->begun_s && now_s - boundary->period_s <= boundary->begun_s;
}

static gboolean repeats(const Boundary *boundary, double before_s, double now_s)
{
    return is_over(boundary, before_s, now_s) || is_later(boundary, before_s, now_s);
}

static gboolean run_repeats(const Boundary *boundary, const LinkRun *before, const LinkRun *now)
{
    if (is_over(boundary, before->until_s, now->until_s))
        return TRUE;
    return now->link == before->link && repeats(boundary, before->from_s, now->from_s) &&
           repeats(boundary, before->until_s, now->until_s) &&
           is_small(boundary, now->slack_s - before->slack_s);
}

static gboolean links_repeat(const Boundary *boundary, const Links *before, const Links *now)
{
    for (guint link = 0; link < MAX_LINKS; link++)
        if (!repeats(boundary, before->until_s[link], now->until_s[link]))
            return FALSE;
    for (guint32 left = now->used; left != 0; left &= left - 1) {
        const guint lane = (guint)__builtin_ctz(left);

        if (!run_repeats(boundary, &before->runs[lane], &now->runs[lane]))
            return FALSE;
    }
    return TRUE;
}

/* Of ops that the next step waits for. */
static gboolean ends_repeat(const Boundary *boundary, const Clock *clock)
{
    const GArray *waits = clock->program->step.waits;

    for (guint w = 0; w < waits->len; w++) {
        const Wait *wait = &g_array_index(waits, Wait, w);
        const guint32 event = wait_event(clock->first_op, wait);

        if (wait->back != 0 && !repeats(boundary, clock->end[0][event], clock->end[1][event]))
            return FALSE;
    }
    return TRUE;
}

/* Of the threads of a rank. */
static gboolean threads_repeat(const Boundary *boundary, const Clock *before, const Clock *now)
{
    return repeats(boundary, before->issue_s, now->issue_s) &&
           repeats(boundary, before->queue_s, now->queue_s) &&
           repeats(boundary, before->files_s, now->files_s) &&
           repeats(boundary, before->held_s[0], now->held_s[0]) &&
           repeats(boundary, before->held_s[1], now->held_s[1]);
}

gboolean clock_repeats(const Clock *now, double period_s)
{
    const Clock *before = now->before;
    const Boundary boundary = {period_s, now->begun_s[1]};

    for (guint s = 0; s < now->program->streams->len; s++)
        if (s != COMPUTE_STREAM && !repeats(&boundary, before->stream_s[s], now->stream_s[s]))
            return FALSE;
    return is_later(&boundary, before->stream_s[COMPUTE_STREAM], now->stream_s[COMPUTE_STREAM]) &&
           is_later(&boundary, before->last_compute_s, now->last_compute_s) &&
           is_small(&boundary, now->owed_s - before->owed_s) &&
           threads_repeat(&boundary, before, now) &&
           links_repeat(&boundary, &before->links, &now->links) && ends_repeat(&boundary, now);
}
