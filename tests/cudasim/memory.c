#define _GNU_SOURCE
#include "tests/cudasim/memory.h"

#include "tests/cudasim/asan.h"
#include "tests/cudasim/stream.h"
#include <string.h>
#include <sys/mman.h>

#define DEVICE_SPAN ((gsize)1 << 30) /* of addresses */
#define PINNED_SPAN ((gsize)256 << 20)
#define LARGE_PAGE  ((gsize)2 << 20)
#define GAP         ((gsize)512)

typedef struct {
    char *base;
    gsize span;
    gsize top;    /* bytes given away */
    gsize bottom; /* all below were taken back */
} Space;

typedef struct {
    char *base;
    gsize bytes;
    gboolean living;
    gboolean registered; /* host memory of somebody else's */
} Block;

static Space device = {.span = DEVICE_SPAN};
static Space pinned = {.span = PINNED_SPAN};
static gsize device_bytes_used;
static GArray *blocks; /* Block */
static guint opened;
static int key = -1; /* of protection, where the CPU has them: much cheaper than mprotect */

/* ---- regions ---- */

/* In large pages where there are any: their protection is changed twice an op. */
static void map(Space *space)
{
    char *base = mmap(NULL, space->span + LARGE_PAGE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    g_assert(base != MAP_FAILED);
    space->base = base + (LARGE_PAGE - (gsize)base % LARGE_PAGE) % LARGE_PAGE;
    madvise(space->base, space->span, MADV_HUGEPAGE);
}

/* In checked builds the hooks see what host code touches.  What lies below all that lives is left
 * out, as it grows with each arena: NaN, and forbidden to ASan. */
static void protect(gboolean on)
{
#ifndef CUDASIM_CHECK
#ifdef __x86_64__
    if (key >= 0) {
        pkey_set(key, on ? PKEY_DISABLE_ACCESS : 0);
        return;
    }
#endif
    const gsize from = device.bottom & ~(LARGE_PAGE - 1);

    mprotect(device.base + from, ((device.top + LARGE_PAGE - 1) & ~(LARGE_PAGE - 1)) - from,
             on ? PROT_NONE : PROT_READ | PROT_WRITE);
#else
    (void)on, (void)key;
#endif
}

void cs_memory_start(void)
{
    map(&device);
    map(&pinned);
    blocks = g_array_new(FALSE, FALSE, sizeof(Block));
    cs_race_add_region(CS_DEVICE, device.base, device.span);
    cs_race_add_region(CS_PINNED, pinned.base, pinned.span);
#if defined(__x86_64__) && !defined(CUDASIM_CHECK)
    key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    if (key >= 0 && pkey_mprotect(device.base, device.span, PROT_READ | PROT_WRITE, key) != 0)
        g_error("pkey_mprotect: %s", g_strerror(errno));
#endif
}

void cs_memory_open(void)
{
    if (opened++ == 0)
        protect(FALSE);
}

void cs_memory_close(void)
{
    if (--opened == 0)
        protect(TRUE);
}

void cs_memory_poison(void *p, gsize bytes)
{
    memset(p, 0xff, bytes);
}

void cs_memory_reuse(void)
{
    for (guint i = 0; i < blocks->len; i++)
        if (g_array_index(blocks, Block, i).living)
            return;
    g_array_set_size(blocks, 0);
    device.top = pinned.top = device.bottom = 0;
}

static gboolean in(const Space *space, const void *p)
{
    return space->base != NULL && (gsize)((const char *)p - space->base) < space->span;
}

static Block *find(const void *p)
{
    for (guint i = blocks->len; i-- > 0;) {
        Block *block = &g_array_index(blocks, Block, i);
        if (block->living && (const char *)p >= block->base &&
            (const char *)p < block->base + block->bytes)
            return block;
    }
    return NULL;
}

gboolean cs_memory_is_device(const void *p)
{
    return in(&device, p);
}

gboolean cs_memory_is_pinned(const void *p)
{
    const Block *block = in(&pinned, p) || in(&device, p) ? NULL : find(p);

    return in(&pinned, p) || (block != NULL && block->registered);
}

gboolean cs_memory_is_inside(const void *p, gsize bytes)
{
    const Block *block;

    if (bytes == 0 || (!in(&device, p) && !in(&pinned, p)))
        return TRUE;
    block = find(p);
    return block != NULL && (const char *)p + bytes <= block->base + block->bytes;
}

/* ---- allocations ---- */

static void asan_mark(void *p, gsize bytes, gboolean forbidden)
{
#ifdef CS_ASAN
    if (forbidden)
        ASAN_POISON_MEMORY_REGION(p, bytes);
    else
        ASAN_UNPOISON_MEMORY_REGION(p, bytes);
#else
    (void)p, (void)bytes, (void)forbidden;
#endif
}

static gboolean fails_on_purpose(void)
{
    return cs_settings.failing_allocation >= 0 && cs_settings.failing_allocation-- == 0;
}

static void *carve(Space *space, gsize bytes)
{
    gsize start = (space->top + GAP + 255) & ~(gsize)255;
    Block block = {.base = space->base + start, .bytes = bytes, .living = TRUE};

    if (fails_on_purpose())
        return NULL;
    if (space == &device && device_bytes_used + bytes > cs_settings.device_bytes)
        return NULL;
    if (start + bytes + GAP > space->span)
        g_error("cudasim: all addresses were used once");
    asan_mark(space->base + space->top, start + bytes + GAP - space->top, TRUE);
    asan_mark(block.base, bytes, FALSE);
    space->top = start + bytes;
    if (space == &device)
        device_bytes_used += bytes;
    g_array_append_val(blocks, block);
    return block.base;
}

/* The op that a synchronous call is. */
static void host_access(CsAccess access, void *p, gsize bytes)
{
    cs_race_enter(cs_host_op());
    cs_race_access(access, p, bytes);
    cs_race_enter(0);
}

static cudaError_t allocate(void **p, gsize bytes, Space *space)
{
    cs_enter();
    if (!cs_may_synchronise())
        return cs_leave(cudaErrorStreamCaptureUnsupported);
    *p = NULL;
    if (bytes == 0)
        return cs_leave(cudaSuccess);
    cs_host_advance();
    *p = carve(space, bytes);
    if (*p == NULL)
        return cs_leave(cudaErrorMemoryAllocation);
    cs_memory_open();
    cs_memory_poison(*p, bytes);
    cs_memory_close();
    host_access(CS_ALLOCATE, *p, bytes);
    if (space == &pinned)
        cs_race_defined(*p, bytes);
    cs_host_advance();
    return cs_leave(cudaSuccess);
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    return allocate(p, bytes, &device);
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    return allocate(p, bytes, &pinned);
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    return allocate(p, bytes, &pinned);
}

static void raise_bottom(void)
{
    device.bottom = device.top;
    for (guint i = 0; i < blocks->len; i++) {
        const Block *block = &g_array_index(blocks, Block, i);

        if (block->living && in(&device, block->base))
            device.bottom = MIN(device.bottom, (gsize)(block->base - device.base));
    }
}

/* Takes the block at @p out of the living, or complains. */
static gboolean forget(void *p, const char *function, gsize *bytes)
{
    Block *block = find(p);

    if (block == NULL || block->base != (char *)p || block->registered) {
        cs_report(CS_MISUSE, "%s of %p, which is not allocated", function, p);
        return FALSE;
    }
    block->living = FALSE;
    *bytes = block->bytes;
    if (in(&device, p))
        device_bytes_used -= block->bytes;
    return TRUE;
}

static void bury(void *p, gsize bytes)
{
    cs_race_access(CS_FREE, p, bytes);
    cs_memory_poison(p, bytes);
    asan_mark(p, bytes, TRUE);
}

static cudaError_t release(void *p, const char *function)
{
    gsize bytes;

    cs_enter();
    if (!cs_may_synchronise())
        return cs_leave(cudaErrorStreamCaptureUnsupported);
    if (p == NULL)
        return cs_leave(cudaSuccess);
    cs_host_advance();
    cs_wait_all();
    if (!forget(p, function, &bytes))
        return cs_leave(cudaErrorInvalidValue);
    cs_memory_open();
    cs_race_enter(cs_host_op());
    bury(p, bytes);
    cs_race_enter(0);
    raise_bottom();
    cs_memory_close();
    return cs_leave(cudaSuccess);
}

cudaError_t cudaFree(void *p)
{
    return release(p, "cudaFree");
}

cudaError_t cudaFreeHost(void *p)
{
    return release(p, "cudaFreeHost");
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    Block block = {.base = p, .bytes = bytes, .living = TRUE, .registered = TRUE};

    (void)flags;
    cs_enter();
    if (in(&device, p) || in(&pinned, p) || find(p) != NULL)
        return cs_leave(cudaErrorHostMemoryAlreadyRegistered);
    g_array_append_val(blocks, block);
    return cs_leave(cudaSuccess);
}

cudaError_t cudaHostUnregister(void *p)
{
    Block *block;

    cs_enter();
    block = find(p);
    if (block == NULL || !block->registered || block->base != (char *)p)
        return cs_leave(cudaErrorHostMemoryNotRegistered);
    block->living = FALSE;
    return cs_leave(cudaSuccess);
}

/* ---- in stream order ---- */

typedef struct {
    CsOp base;
    void *p;
    gsize bytes;
} MemoryOp;

static void run_allocate(CsOp *op)
{
    MemoryOp *self = (MemoryOp *)op;

    cs_memory_poison(self->p, self->bytes);
    cs_race_access(CS_ALLOCATE, self->p, self->bytes);
}

static void run_free(CsOp *op)
{
    bury(((MemoryOp *)op)->p, ((MemoryOp *)op)->bytes);
}

static const CsOpKind allocate_kind = {
    .name = "cudaMallocAsync", .bytes = sizeof(MemoryOp), .run = run_allocate};
static const CsOpKind free_kind = {
    .name = "cudaFreeAsync", .bytes = sizeof(MemoryOp), .run = run_free};
static const CsOpKind undefine_kind = {
    .name = "cudasim_mark_undefined", .bytes = sizeof(MemoryOp), .run = run_allocate};

static void push(const CsOpKind *kind, void *p, gsize bytes, CsStream *stream)
{
    MemoryOp *op = (MemoryOp *)cs_op_new(kind);

    op->p = p;
    op->bytes = bytes;
    cs_push(stream, &op->base);
}

cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t stream)
{
    cs_enter();
    if (cs_stream(stream)->capture != NULL)
        return cs_leave(cudaErrorNotSupported);
    *p = carve(&device, bytes);
    if (*p == NULL)
        return cs_leave(cudaErrorMemoryAllocation);
    push(&allocate_kind, *p, bytes, cs_stream(stream));
    return cs_leave(cudaSuccess);
}

cudaError_t cudaFreeAsync(void *p, cudaStream_t stream)
{
    gsize bytes;

    cs_enter();
    if (cs_stream(stream)->capture != NULL)
        return cs_leave(cudaErrorNotSupported);
    if (!forget(p, "cudaFreeAsync", &bytes))
        return cs_leave(cudaErrorInvalidValue);
    push(&free_kind, p, bytes, cs_stream(stream));
    return cs_leave(cudaSuccess);
}

void cudasim_mark_undefined(void *p, gsize bytes, cudaStream_t stream)
{
    cs_enter();
    push(&undefine_kind, p, bytes, cs_stream(stream));
    cs_leave(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    cs_enter();
    *total = cs_settings.device_bytes;
    *free_bytes = cs_settings.device_bytes - device_bytes_used;
    return cs_leave(cudaSuccess);
}
