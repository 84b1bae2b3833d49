/* Checks every access to device, pinned and shared memory: races between ops and between threads of
 * a kernel, bounds, initialisation.  In checked builds (-DCUDASIM_CHECK) kernels and tests are
 * compiled with -fsanitize=thread, whose hooks before each load and store are ours (hooks.c), not
 * libtsan's; ops of libraries report the ranges they touch.  In other builds nothing is checked. */
#pragma once

#include <glib.h>

#define CS_CLOCKS 32 /* the host's is 0, a stream's its number + 1 */

/* How much of each timeline has happened before: a vector clock. */
typedef struct {
    guint32 at[CS_CLOCKS];
} CsClock;

typedef enum {
    CS_DEVICE,
    CS_PINNED,
    CS_DYNAMIC_SHARED,
    CS_STATIC_SHARED,
    CS_SECTION_SHARED,
    CS_REGIONS
} CsRegion;

/* What ops and the host do to memory, other than by instrumented loads and stores. */
typedef enum {
    CS_READ,
    CS_WRITE,
    CS_ATOMIC,
    CS_ALLOCATE, /* undefined from now on */
    CS_FREE      /* nobody may touch it any more */
} CsAccess;

#ifdef CUDASIM_CHECK
void cs_race_add_region(CsRegion region, void *base, gsize bytes);

/* Shared memory of a new block: nothing in it is alive, and what is made fresh is undefined. */
void cs_race_new_block(void);
void cs_race_fresh(CsRegion region, void *base, gsize bytes);

/* Number of a new op that starts at @clock on timeline @own of it. */
guint cs_race_op(const CsClock *clock, guint own, const char *name);

/* Accesses that follow are of @op; 0: of nothing known, the host's. */
void cs_race_enter(guint op);

/* One by the current op, or by the host. */
void cs_race_access(CsAccess access, const void *base, gsize bytes);

/* Pinned memory may be filled where no hook sees it. */
void cs_race_defined(const void *base, gsize bytes);
#else
static inline void cs_race_add_region(CsRegion region, void *base, gsize bytes)
{
    (void)region, (void)base, (void)bytes;
}
static inline void cs_race_new_block(void)
{
}
static inline void cs_race_fresh(CsRegion region, void *base, gsize bytes)
{
    (void)region, (void)base, (void)bytes;
}
static inline guint cs_race_op(const CsClock *clock, guint own, const char *name)
{
    (void)clock, (void)own, (void)name;
    return 1;
}
static inline void cs_race_enter(guint op)
{
    (void)op;
}
static inline void cs_race_access(CsAccess access, const void *base, gsize bytes)
{
    (void)access, (void)base, (void)bytes;
}
static inline void cs_race_defined(const void *base, gsize bytes)
{
    (void)base, (void)bytes;
}
#endif
