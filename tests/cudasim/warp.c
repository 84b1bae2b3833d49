/* A warp collective is one function: the last lane to arrive computes for all of them. */
#include "tests/cudasim/grid.h"
#include "tests/cudasim/report.h"
#include <string.h>

enum { SHUFFLE = 1, VOTE, SYNC, MMA };

typedef void (*Lead)(void *data[32], unsigned mask);

static struct {
    CsThread *lanes[32];
    unsigned exist;
    unsigned waiting;
    unsigned returned;
} warps[CS_MAX_THREADS / 32];

const char *cs_collective_name(int collective)
{
    static const char *const names[] = {"", "a shuffle", "a vote", "__syncwarp", "mma"};

    return names[collective];
}

void cs_warps_reset(CsThread *threads, unsigned count)
{
    memset(warps, 0, sizeof warps);
    for (unsigned i = 0; i < count; i++) {
        warps[i / 32].lanes[i % 32] = &threads[i];
        warps[i / 32].exist |= 1u << i % 32;
    }
}

void cs_warp_thread_returned(const CsThread *thread)
{
    warps[thread->warp].returned |= 1u << thread->lane;
}

/* ---- meeting ---- */

/* All lanes of @mask are here: collects their data, and notes that they met. */
static void meet(CsThread *const *lanes, unsigned mask, void *data[32])
{
    const CsThread *self = cs_thread;
    uint16_t epoch = 0;

    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        const CsThread *other = lanes[lane];
        gboolean same = other->mask == mask && other->collective == self->collective;

        if (!same)
            cs_report(CS_BARRIER,
                      "%s: warp %u: lane %u does %s of %08x at line %d, lane %d %s of %08x at %d",
                      cs_grid_kernel(), self->warp, self->lane,
                      cs_collective_name(self->collective), mask, self->place.line, lane,
                      cs_collective_name(other->collective), other->mask, other->place.line);
        data[lane] = other->collective == self->collective ? other->data : self->data;
        epoch = MAX(epoch, other->warp_epoch);
    }
    for (unsigned rest = mask; rest != 0; rest &= rest - 1)
        lanes[__builtin_ctz(rest)]->warp_epoch = (uint16_t)(epoch + 1);
}

static void check_mask(unsigned mask, unsigned returned)
{
    const CsThread *self = cs_thread;

    if ((mask >> self->lane & 1) == 0)
        cs_report(CS_BARRIER, "%s: %s at %s:%d: lane %u is not in its own mask %08x",
                  cs_grid_kernel(), cs_collective_name(self->collective), self->place.file,
                  self->place.line, self->lane, mask);
    if ((mask & returned) != 0)
        cs_report(CS_BARRIER, "%s: %s at %s:%d names lane %d, which has returned", cs_grid_kernel(),
                  cs_collective_name(self->collective), self->place.file, self->place.line,
                  __builtin_ctz(mask & returned));
}

/* Waits for the lanes of @mask; the last to come calls @lead with what all of them brought. */
static void collective(int which, unsigned mask, void *data, CsPlace place, Lead lead)
{
    CsThread *self = cs_thread;
    unsigned self_bit = 1u << self->lane, warp = self->warp;
    CsThread **lanes = warps[warp].lanes;
    void *all[32];

    mask &= warps[warp].exist;
    self->place = place;
    self->collective = which;
    check_mask(mask, warps[warp].returned);
    mask |= self_bit;
    self->mask = mask;
    self->data = data;
    warps[warp].waiting |= self_bit;
    if ((warps[warp].waiting & mask) != mask) {
        self->state = CS_AT_COLLECTIVE;
        cs_grid_yield();
        return;
    }
    meet(lanes, mask, all);
    if (lead != NULL)
        lead(all, mask);
    warps[warp].waiting &= ~mask;
    for (unsigned rest = mask & ~self_bit; rest != 0; rest &= rest - 1)
        cs_grid_make_ready(lanes[__builtin_ctz(rest)]);
}

/* ---- shuffles and votes ---- */

typedef struct {
    uint64_t in;
    uint64_t out;
    int source;
} Shuffle;

static void lead_shuffle(void *data[32], unsigned mask)
{
    for (int lane = 0; lane < 32; lane++) {
        if ((mask >> lane & 1) == 0)
            continue;
        Shuffle *self = data[lane];
        if ((mask >> self->source & 1) != 0) {
            self->out = ((const Shuffle *)data[self->source])->in;
            continue;
        }
        cs_report(CS_BARRIER, "%s: a shuffle: lane %d reads lane %d, which mask %08x does not name",
                  cs_grid_kernel(), lane, self->source, mask);
        self->out = ~(uint64_t)0;
    }
}

uint64_t cs_shuffle(unsigned mask, uint64_t value, int source_lane, CsPlace place)
{
    Shuffle shuffle = {.in = value, .source = source_lane};

    collective(SHUFFLE, mask, &shuffle, place, lead_shuffle);
    return shuffle.out;
}

typedef struct {
    unsigned in;
    unsigned out;
} Vote;

static void lead_vote(void *data[32], unsigned mask)
{
    unsigned votes = 0;

    for (int lane = 0; lane < 32; lane++)
        if ((mask >> lane & 1) != 0 && ((const Vote *)data[lane])->in != 0)
            votes |= 1u << lane;
    for (int lane = 0; lane < 32; lane++)
        if ((mask >> lane & 1) != 0)
            ((Vote *)data[lane])->out = votes;
}

unsigned cs_vote(unsigned mask, bool predicate, CsPlace place)
{
    Vote vote = {.in = predicate};

    collective(VOTE, mask, &vote, place, lead_vote);
    return vote.out;
}

void cs_sync_warp(unsigned mask, CsPlace place)
{
    collective(SYNC, mask, NULL, place, NULL);
}

/* ---- tensor cores ---- */

typedef struct {
    float d[4];
    unsigned a[4];
    unsigned b[2];
    float c[4];
} Mma;

static float bf16_half(unsigned pair, int upper)
{
    unsigned bits = upper ? pair & 0xffff0000u : pair << 16;
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Which element a register holds: PTX ISA, "Matrix Fragments for mma.m16n8k16". */
static void gather_tiles(void *data[32], float a[16][16], float b[16][8])
{
    for (int lane = 0; lane < 32; lane++) {
        const Mma *mma = data[lane];
        int group = lane / 4, pair = lane % 4 * 2;
        for (int i = 0; i < 8; i++) {
            int reg = i / 2, half = i % 2;
            a[group + reg % 2 * 8][pair + reg / 2 * 8 + half] = bf16_half(mma->a[reg], half);
            if (reg < 2)
                b[pair + reg * 8 + half][group] = bf16_half(mma->b[reg], half);
        }
    }
}

static void lead_mma(void *data[32], unsigned mask)
{
    float a[16][16], b[16][8];

    if (mask != ~0u) {
        cs_report(CS_BARRIER, "%s: mma without all 32 lanes", cs_grid_kernel());
        return;
    }
    gather_tiles(data, a, b);
    for (int lane = 0; lane < 32; lane++) {
        Mma *mma = data[lane];
        for (int i = 0; i < 4; i++) {
            int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            float sum = mma->c[i];
            for (int k = 0; k < 16; k++)
                sum += a[row][k] * b[k][column];
            mma->d[i] = sum;
        }
    }
}

void cs_mma(float d[4], const unsigned a[4], const unsigned b[2], const float c[4], CsPlace place)
{
    Mma mma = {0};

    memcpy(mma.a, a, sizeof mma.a);
    memcpy(mma.b, b, sizeof mma.b);
    memcpy(mma.c, c, sizeof mma.c);
    collective(MMA, ~0u, &mma, place, lead_mma);
    memcpy(d, mma.d, sizeof mma.d);
}
