/* Fibers are lazy: one runs thread after thread, and is left only when its thread really waits.  So
 * a kernel without barriers costs a function call a thread, a barrier one switch a thread. */
#include "tests/cudasim/grid.h"

#include "tests/cudasim/asan.h"
#include "tests/cudasim/fiber.h"
#include "tests/cudasim/report.h"
#include <string.h>
#include <sys/mman.h>

#ifdef CS_ASAN
#define STACK_BYTES ((size_t)256 << 10)
#else
#define STACK_BYTES ((size_t)64 << 10)
#endif
#define PAGE         ((size_t)4096)
#define STACK_STRIDE (STACK_BYTES + PAGE) /* a page that faults lies below each */

CsThread *cs_thread;
CsBlock cs_block;

static CsThread threads[CS_MAX_THREADS];
static struct {
    const CsLaunch *launch;
    unsigned count;
    unsigned started;
    unsigned returned;
    unsigned order[CS_MAX_THREADS];

    CsThread *ready[CS_MAX_THREADS]; /* ring */
    unsigned first_ready;
    unsigned num_ready;

    CsThread *at_barrier[CS_MAX_THREADS];
    unsigned num_at_barrier;
    CsPlace barrier;

    char *stacks;
    void *idle[CS_MAX_THREADS]; /* fibers without a thread */
    unsigned num_idle;
    unsigned num_fibers;
    void *scheduler; /* stack of whoever runs the grid */
} grid;

static __thread bool here;

bool cs_grid_is_here(void)
{
    return here && cs_thread != NULL;
}

const char *cs_grid_kernel(void)
{
    return grid.launch != NULL ? grid.launch->name : NULL;
}

bool cs_grid_owns(uintptr_t address)
{
    uintptr_t arguments = (uintptr_t)grid.launch->arguments;

    return address - (uintptr_t)grid.stacks < CS_MAX_THREADS * STACK_STRIDE ||
           address - arguments < 4096 + 64;
}

/* ---- stacks ---- */

static void *stack_of(unsigned fiber)
{
    return grid.stacks + fiber * STACK_STRIDE + PAGE;
}

static void make_stacks(void)
{
    grid.stacks = mmap(NULL, CS_MAX_THREADS * STACK_STRIDE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    g_assert(grid.stacks != MAP_FAILED);
    for (unsigned i = 0; i < CS_MAX_THREADS; i++)
        mprotect((char *)stack_of(i) - PAGE, PAGE, PROT_NONE);
}

#ifdef CS_ASAN
static const void *scheduler_bottom;
static size_t scheduler_bytes;
static bool from_scheduler;

static void arrived(void *fake_stack)
{
    const void *bottom;
    size_t bytes;

    __sanitizer_finish_switch_fiber(fake_stack, &bottom, &bytes);
    if (from_scheduler) {
        scheduler_bottom = bottom;
        scheduler_bytes = bytes;
        from_scheduler = false;
    }
}

static void jump(void **save, void *to)
{
    uintptr_t offset = (uintptr_t)to - (uintptr_t)grid.stacks;
    bool to_fiber = offset < CS_MAX_THREADS * STACK_STRIDE;
    void *fake_stack = NULL;

    __sanitizer_start_switch_fiber(
        &fake_stack, to_fiber ? stack_of((unsigned)(offset / STACK_STRIDE)) : scheduler_bottom,
        to_fiber ? STACK_BYTES : scheduler_bytes);
    cs_fiber_switch(save, to);
    arrived(fake_stack);
}
#else
static void jump(void **save, void *to)
{
    cs_fiber_switch(save, to);
}
#endif

/* ---- which thread goes on ---- */

static void work(void);

static void *idle_fiber(void)
{
    if (grid.num_idle > 0)
        return grid.idle[--grid.num_idle];

    /* Tops of stacks at different offsets, or all of them would share one set of the L1 cache. */
    unsigned fiber = grid.num_fibers++;
    return cs_fiber_new(stack_of(fiber), STACK_BYTES - fiber * 320 % PAGE, work);
}

static CsThread *next_ready(void)
{
    if (cs_settings.order == CS_SHUFFLED) {
        unsigned any = (grid.first_ready + cs_random() % grid.num_ready) % CS_MAX_THREADS;
        CsThread *thread = grid.ready[any];
        grid.ready[any] = grid.ready[grid.first_ready];
        grid.ready[grid.first_ready] = thread;
    }
    CsThread *thread = grid.ready[grid.first_ready];
    grid.first_ready = (grid.first_ready + 1) % CS_MAX_THREADS;
    grid.num_ready--;
    return thread;
}

/* Sets cs_thread, and returns the stack to go on with. */
static void *next_stack(void)
{
    bool first =
        grid.num_ready == 0 || (cs_settings.order == CS_SHUFFLED && (cs_random() & 1) != 0);

    if (grid.started < grid.count && first) {
        cs_thread = NULL;
        return idle_fiber();
    }
    if (grid.num_ready == 0)
        return grid.scheduler;
    cs_thread = next_ready();
    cs_thread->state = CS_RUNNING;
    return cs_thread->stack;
}

void cs_grid_yield(void)
{
    CsThread *self = cs_thread;
    void *to = next_stack();

    if (cs_thread != self || self->state != CS_RUNNING)
        jump(&self->stack, to);
}

void cs_grid_make_ready(CsThread *thread)
{
    thread->state = CS_READY;
    grid.ready[(grid.first_ready + grid.num_ready++) % CS_MAX_THREADS] = thread;
}

/* ---- barriers ---- */

/* Complaints about a barrier: one a kernel and line. */
static bool first_at(int line)
{
    static struct {
        const char *kernel;
        int line;
    } seen[64];
    static unsigned num_seen;

    for (unsigned i = 0; i < G_N_ELEMENTS(seen); i++)
        if (seen[i].kernel == cs_grid_kernel() && seen[i].line == line)
            return false;
    seen[num_seen % 64].kernel = cs_grid_kernel();
    seen[num_seen++ % 64].line = line;
    return true;
}

static void release_barrier(void)
{
    cs_block.epoch++;
    for (unsigned i = 0; i < grid.num_at_barrier; i++)
        cs_grid_make_ready(grid.at_barrier[i]);
    grid.num_at_barrier = 0;
}

/* Releases the barrier when nobody is left who could come; complains if some never will. */
static void release_if_complete(void)
{
    CsPlace place = grid.barrier;

    if (grid.num_at_barrier == 0 || grid.num_at_barrier + grid.returned < grid.count)
        return;
    if (grid.returned > 0 && first_at(place.line))
        cs_report(CS_BARRIER, "%s: __syncthreads at %s:%d, but %u of %u threads have returned",
                  cs_grid_kernel(), place.file, place.line, grid.returned, grid.count);
    release_barrier();
}

void cs_barrier(CsPlace place)
{
    CsThread *self = cs_thread;

    self->place = place;
    if (grid.num_at_barrier == 0)
        grid.barrier = place;
    else if ((grid.barrier.line != place.line || strcmp(grid.barrier.file, place.file) != 0) &&
             first_at(place.line))
        cs_report(CS_BARRIER, "%s: thread %u is in __syncthreads at %s:%d, others at %s:%d",
                  cs_grid_kernel(), self->index, place.file, place.line, grid.barrier.file,
                  grid.barrier.line);
    self->state = CS_AT_BARRIER;
    grid.at_barrier[grid.num_at_barrier++] = self;
    release_if_complete();
    cs_grid_yield();
}

/* ---- fibers, blocks, grids ---- */

static void finish(CsThread *thread)
{
    thread->state = CS_RETURNED;
    grid.returned++;
    cs_warp_thread_returned(thread);
    release_if_complete();
}

/* The life of a fiber. */
static void work(void)
{
#ifdef CS_ASAN
    arrived(NULL);
#endif
    for (;;) {
        while (grid.started < grid.count) {
            cs_thread = &threads[grid.order[grid.started++]];
            cs_thread->state = CS_RUNNING;
            grid.launch->call(grid.launch->arguments);
            finish(cs_thread);
        }
        void *to = next_stack(); /* never an idle one: no thread is left to start */
        jump(&grid.idle[grid.num_idle++], to);
    }
}

static void report_deadlock(void)
{
    g_autoptr(GString) where = g_string_new(NULL);
    const CsThread *last = NULL;

    for (unsigned i = 0; i < grid.count; i++) {
        const CsThread *thread = &threads[i];
        bool waits = thread->state == CS_AT_BARRIER || thread->state == CS_AT_COLLECTIVE;
        if (!waits || (last != NULL && last->place.line == thread->place.line))
            continue;
        g_string_append_printf(where, ", thread %u in %s at %s:%d", i,
                               thread->state == CS_AT_BARRIER
                                   ? "__syncthreads"
                                   : cs_collective_name(thread->collective),
                               thread->place.file, thread->place.line);
        last = thread;
    }
    cs_report(CS_DEADLOCK, "%s: block %u: %u of %u threads have returned%s", cs_grid_kernel(),
              cs_block.index, grid.returned, grid.count, where->str);
}

static uint3 position_in(unsigned index, dim3 size)
{
    return (uint3){index % size.x, index / size.x % size.y, index / size.x / size.y};
}

static void shuffle_order(void)
{
    for (unsigned i = grid.count - 1; i > 0; i--) {
        unsigned j = cs_random() % (i + 1), other = grid.order[i];
        grid.order[i] = grid.order[j];
        grid.order[j] = other;
    }
}

static bool run_block(unsigned index)
{
    cs_block.index = index;
    cs_block.position = position_in(index, cs_block.blocks);
    cs_block.epoch = 0;
    cs_shared_new_block(grid.launch->shared_bytes);
    if (cs_settings.order == CS_SHUFFLED)
        shuffle_order();
    for (unsigned i = 0; i < grid.count; i++) {
        threads[i].state = CS_NEW;
        threads[i].warp_epoch = 0;
    }
    cs_warps_reset(threads, grid.count);
    grid.started = grid.returned = grid.num_at_barrier = grid.num_ready = grid.first_ready = 0;
#ifdef CS_ASAN
    from_scheduler = true;
#endif
    jump(&grid.scheduler, next_stack());
    return grid.returned == grid.count;
}

static void prepare(const CsLaunch *launch)
{
    dim3 size = launch->threads;

    if (grid.stacks == NULL)
        make_stacks();
    grid.launch = launch;
    grid.count = size.x * size.y * size.z;
    cs_block.threads = size;
    cs_block.blocks = launch->blocks;
    for (unsigned i = 0; i < grid.count; i++) {
        threads[i] = (CsThread){
            .position = position_in(i, size), .index = i, .lane = i % 32, .warp = i / 32};
        grid.order[i] = cs_settings.order == CS_DESCENDING ? grid.count - 1 - i : i;
    }
}

void cs_grid_run(const CsLaunch *launch)
{
    unsigned blocks = launch->blocks.x * launch->blocks.y * launch->blocks.z;

    prepare(launch);
    here = true;
    for (unsigned i = 0; i < blocks; i++)
        if (!run_block(cs_settings.order == CS_DESCENDING ? blocks - 1 - i : i)) {
            report_deadlock();
            grid.num_idle = grid.num_fibers = 0; /* those that wait will never go on */
            break;
        }
    here = false;
    grid.launch = NULL;
    cs_thread = NULL;
}
