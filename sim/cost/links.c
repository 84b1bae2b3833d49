#include "sim/cost/links.h"

#include <math.h>

/* What is shorter is rounding: no op takes so little. */
static const double instant_s = 1e-9;

/* Runs of other lanes on a link that are under way. */
typedef struct {
    guint32 lanes;
    guint count;
    double
        left_s; /* of the one that ends first, as they share the link without the op that begins */
    double next_s; /* until the next one begins */
} Others;

/* At @at_s, each @lost so much so far. */
static Others others_at(const Links *links, guint lane, guint link, double at_s, const double *lost)
{
    Others others = {.left_s = INFINITY, .next_s = INFINITY};

    for (guint32 rest = links->used & ~(1u << lane); rest != 0; rest &= rest - 1) {
        const guint l = (guint)__builtin_ctz(rest);
        const LinkRun *run = &links->runs[l];
        const double left_s = run->until_s + lost[l] - at_s;

        if (run->link != link || left_s <= instant_s)
            continue;
        if (run->from_s > at_s + instant_s) {
            others.next_s = MIN(others.next_s, run->from_s - at_s);
            continue;
        }
        others.left_s = MIN(others.left_s, left_s);
        others.lanes |= 1u << l;
        others.count++;
    }
    return others;
}

/**
 * links_share: processor sharing.
 *
 *     dw = dt / (k + 1)        of the op that begins
 *     dl = dw / k              that each of the k others loses
 *
 *     w  seconds of its own, alone on the link     k  others that are under way
 *
 * Before, each of the others had 1 / k of the link; now 1 / (k + 1).  So no more passes than the
 * link lets through, and what was left of another takes (k + 1) / k times as long.  Left out: that
 * directions of a link are apart; that what others lose goes on to meet what begins later.
 */
double links_share(const Links *links, guint lane, guint link, double start_s, double seconds,
                   double lost[MAX_STREAMS])
{
    double at_s = start_s, left_s = seconds;

    while (left_s > 0) {
        const Others others = others_at(links, lane, link, at_s, lost);
        const double all = others.count + 1;
        const double shared_s = others.count > 0 ? others.left_s / others.count : INFINITY;
        const double sent_s = MIN(MIN(left_s, shared_s), others.next_s / all);

        for (guint32 rest = others.lanes; rest != 0; rest &= rest - 1)
            lost[__builtin_ctz(rest)] += sent_s / others.count;
        at_s += sent_s * all;
        left_s = sent_s < left_s ? left_s - sent_s : 0;
    }
    return MAX(0, at_s - start_s - seconds);
}

void links_take(Links *links, guint lane, guint link, double start_s, double until_s,
                gboolean goes_on)
{
    LinkRun *run = &links->runs[lane];
    const gboolean same = goes_on && (links->used >> lane & 1) != 0 && run->link == link;

    *run = (LinkRun){.from_s = same ? run->from_s : start_s, .until_s = until_s, .link = link};
    links->used |= 1u << lane;
    links->until_s[link] = MAX(links->until_s[link], until_s);
}

double links_lose(Links *links, guint lane, double lost_s)
{
    LinkRun *run = &links->runs[lane];
    const double slack_s = MIN(run->slack_s, lost_s);

    run->until_s += lost_s;
    run->slack_s -= slack_s;
    links->until_s[run->link] = MAX(links->until_s[run->link], run->until_s);
    return lost_s - slack_s;
}
