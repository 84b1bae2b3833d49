#define _GNU_SOURCE
#include "tests/cudasim/race.h"

#ifdef CUDASIM_CHECK
#include "tests/cudasim/grid.h"
#include "tests/cudasim/hooks.h"
#include "tests/cudasim/report.h"
#include "tests/cudasim/stream.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define CELL_BYTES    2
#define GRANULE_BYTES ((gsize)4096)

enum { ALIVE = 1, ATOMIC_WRITE = 2, ALL_BYTES = (1 << CELL_BYTES) - 1 };

/* A thread's access within its kernel. */
typedef struct {
    guint32 thread; /* in the grid, + 1; 0: none */
    guint16 block_epoch;
    guint16 warp_epoch;
    guint8 bytes; /* of the cell, a bit each */
} Trace;

/* What is known of two bytes. */
typedef struct {
    guint32 writer;     /* op; the generation of the block for shared memory */
    guint32 readers[2]; /* ops of different streams */
    Trace write;        /* of the writer */
    Trace reads[2];     /* of the first reader: one thread's, and another's */
    guint8 defined;     /* bytes */
    guint8 flags;
} Cell;

/* Memory that is only allocated, filled, copied and freed as a whole is one cell: cells are 26
 * times as large as what they stand for, and most of an arena is workspace that nobody touches. */
typedef struct {
    Cell all;       /* what all its cells are */
    gboolean split; /* into its cells, untouched until then */
} Granule;

G_STATIC_ASSERT(GRANULE_BYTES / CELL_BYTES * sizeof(Cell) % 4096 == 0); /* pages, to give back */

typedef struct {
    const char *name;
    guint own; /* its timeline */
    CsClock clock;
} Op;

static struct {
    gsize base;
    gsize bytes;
    Cell *cells;
    Granule *granules;
} regions[CS_REGIONS];
static GArray *ops; /* Op; 0 is none */
static guint current_op;
static guint generation; /* of shared memory */

/* An access that is looked at. */
typedef struct {
    gsize address;
    gsize bytes;
    gboolean write;
    gboolean atomic;
    gboolean shared;
    guint op;
    Trace trace;
    const void *at; /* instruction */
} Access;

/* ---- regions, ops ---- */

/* Zeros, which take no memory until they are written. */
static void *many_zeros(gsize bytes)
{
    void *zeros = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    g_assert(zeros != MAP_FAILED);
    return zeros;
}

void cs_race_add_region(CsRegion region, void *base, gsize bytes)
{
    regions[region].base = (gsize)base;
    regions[region].bytes = bytes;
    regions[region].cells = many_zeros((bytes / CELL_BYTES + 1) * sizeof(Cell));
    regions[region].granules = many_zeros((bytes / GRANULE_BYTES + 1) * sizeof(Granule));
}

static gboolean is_in(CsRegion region, gsize address)
{
    return address - regions[region].base < regions[region].bytes;
}

/* The cell of two bytes, with a life of its own. */
static Cell *cell_of(CsRegion region, gsize address)
{
    const gsize offset = address - regions[region].base, cells = GRANULE_BYTES / CELL_BYTES;
    Granule *granule = &regions[region].granules[offset / GRANULE_BYTES];

    if (!granule->split) {
        Cell *first = &regions[region].cells[offset / GRANULE_BYTES * cells];
        const gsize left = regions[region].bytes / CELL_BYTES + 1 - offset / GRANULE_BYTES * cells;

        for (gsize i = 0; i < MIN(cells, left); i++)
            first[i] = granule->all;
        granule->split = TRUE;
    }
    return &regions[region].cells[offset / CELL_BYTES];
}

/* The cell at *@start of an access up to @end, that of a granule where one will do; moves *@start
 * behind it. */
static Cell *next_cell(CsRegion region, gsize *start, gsize end)
{
    const gsize at = *start, offset = at - regions[region].base;
    Granule *granule = &regions[region].granules[offset / GRANULE_BYTES];

    if (!granule->split && offset % GRANULE_BYTES == 0 && at + GRANULE_BYTES <= end) {
        *start += GRANULE_BYTES;
        return &granule->all;
    }
    *start += CELL_BYTES;
    return cell_of(region, at);
}

/* Which bytes of the cell at @start are in the access. */
static guint8 bytes_in(gsize start, gsize address, gsize bytes)
{
    guint8 mask = 0;

    for (guint i = 0; i < CELL_BYTES; i++)
        if (start + i >= address && start + i < address + bytes)
            mask |= (guint8)(1u << i);
    return mask;
}

void cs_race_new_block(void)
{
    generation++;
}

void cs_race_fresh(CsRegion region, void *base, gsize bytes)
{
    for (gsize i = 0; i < bytes; i += CELL_BYTES)
        *cell_of(region, (gsize)base + i) = (Cell){.writer = generation, .flags = ALIVE};
}

guint cs_race_op(const CsClock *clock, guint own, const char *name)
{
    Op op = {.name = name, .own = own, .clock = *clock};

    if (ops == NULL) {
        ops = g_array_new(FALSE, TRUE, sizeof(Op));
        g_array_set_size(ops, 1);
    }
    g_array_append_val(ops, op);
    return ops->len - 1;
}

void cs_race_enter(guint op)
{
    current_op = op;
}

static const Op *op_of(guint op)
{
    return &g_array_index(ops, Op, op);
}

static gboolean happens_before(guint earlier, guint later)
{
    if (earlier == 0 || earlier == later)
        return TRUE;
    guint own = op_of(earlier)->own;
    return op_of(earlier)->clock.at[own] <= op_of(later)->clock.at[own];
}

/* ---- reports ---- */

/* "file:line" of an instruction. */
static char *place_of(const void *at)
{
    Dl_info info;
    char line[512] = "";

    if (at == NULL || dladdr(at, &info) == 0 || info.dli_fname == NULL)
        return g_strdup("a library");
    g_autofree char *command = g_strdup_printf("addr2line -e '%s' %#zx 2>/dev/null", info.dli_fname,
                                               (gsize)at - 1 - (gsize)info.dli_fbase);
    FILE *output = popen(command, "r");
    if (output == NULL || fgets(line, sizeof line, output) == NULL)
        g_strlcpy(line, "?", sizeof line);
    if (output != NULL)
        pclose(output);
    return g_path_get_basename(g_strchomp(line));
}

/* One report of a kind for each instruction and op. */
static gboolean is_new(CsReportKind kind, const Access *access)
{
    static guint64 seen[4096];
    guint64 key = ((guint64)(gsize)access->at * 0x9E3779B97F4A7C15u) ^ (guint64)access->op << 8 ^
                  (guint64)kind ^ 1;
    guint64 *slot = &seen[(key ^ key >> 29) % G_N_ELEMENTS(seen)];

    if (*slot == key)
        return FALSE;
    *slot = key;
    return TRUE;
}

static void report(CsReportKind kind, const Access *access, const char *what, guint other_op,
                   const Trace *other)
{
    if (!is_new(kind, access))
        return;
    const char *kernel = cs_grid_kernel();
    unsigned block = cs_block.threads.x * cs_block.threads.y * cs_block.threads.z;
    g_autofree char *place =
        cs_report_is_shown(kind) ? place_of(access->at) : g_strdup("not looked up");
    g_autoptr(GString) against = g_string_new(NULL);

    if (other_op != 0)
        g_string_append_printf(against, ", against %s", op_of(other_op)->name);
    if (other != NULL)
        g_string_append_printf(against, ", thread %u of block %u against %u of %u",
                               cs_thread->index, cs_block.index, (other->thread - 1) % block,
                               (other->thread - 1) / block);
    cs_report(kind, "%s: %s of %zu bytes at %#zx%s [%s]",
              kernel != NULL ? kernel : op_of(access->op)->name, what, access->bytes,
              access->address, against->str, place);
}

/* ---- checks ---- */

/* Whether barriers or warp collectives lie between an earlier access and this one. */
static gboolean is_ordered(const Trace *earlier, const Access *access)
{
    unsigned block = cs_block.threads.x * cs_block.threads.y * cs_block.threads.z;
    guint32 thread = earlier->thread - 1;

    if (thread / block != cs_block.index)
        return FALSE;
    if (earlier->thread == access->trace.thread || earlier->block_epoch != cs_block.epoch)
        return TRUE;
    return thread % block / 32 == cs_thread->warp && earlier->warp_epoch < cs_thread->warp_epoch;
}

static gboolean conflicts(const Trace *earlier, const Access *access, guint8 bytes)
{
    return earlier->thread != 0 && (earlier->bytes & bytes) != 0 && !is_ordered(earlier, access);
}

static void check_threads(const Cell *cell, const Access *access, guint8 bytes)
{
    if (access->atomic && (cell->flags & ATOMIC_WRITE) != 0)
        return;
    if (cell->writer == access->op && conflicts(&cell->write, access, bytes))
        report(CS_KERNEL_RACE, access, access->write ? "a second write" : "a read after a write", 0,
               &cell->write);
    for (int i = 0; access->write && cell->readers[0] == access->op && i < 2; i++)
        if (conflicts(&cell->reads[i], access, bytes))
            report(CS_KERNEL_RACE, access, "a write after a read", 0, &cell->reads[i]);
}

static void check_ops(const Cell *cell, const Access *access)
{
    if (!happens_before(cell->writer, access->op))
        report(CS_STREAM_RACE, access, access->write ? "a second write" : "a read after a write",
               cell->writer, NULL);
    for (int i = 0; access->write && i < 2; i++)
        if (!happens_before(cell->readers[i], access->op))
            report(CS_STREAM_RACE, access, "a write after a read", cell->readers[i], NULL);
}

/* FALSE: the memory is not there, and more need not be said. */
static gboolean check_alive(const Cell *cell, const Access *access)
{
    gboolean alive = (cell->flags & ALIVE) != 0;

    if (access->shared)
        alive = alive && cell->writer == access->op;
    else if (!alive && !happens_before(cell->writer, access->op))
        report(CS_STREAM_RACE, access, "use against a free", cell->writer, NULL);
    if (!alive)
        report(CS_BOUNDS, access, "access outside every allocation", 0, NULL);
    return alive;
}

static void note_write(Cell *cell, const Access *access, guint8 bytes)
{
    guint8 defined = (guint8)(cell->defined | bytes);

    *cell = (Cell){.writer = access->op,
                   .write = access->trace,
                   .defined = defined,
                   .flags = (guint8)(ALIVE | (access->atomic ? ATOMIC_WRITE : 0))};
    cell->write.bytes = bytes;
}

static void note_read(Cell *cell, const Access *access, guint8 bytes)
{
    Trace trace = access->trace;

    trace.bytes = bytes;
    if (cell->readers[0] != access->op) {
        if (!access->shared && cell->readers[0] != 0 &&
            op_of(cell->readers[0])->own != op_of(access->op)->own)
            cell->readers[1] = cell->readers[0];
        cell->readers[0] = access->op;
        cell->reads[0] = trace;
        cell->reads[1] = (Trace){0};
    } else if (trace.thread != 0 && is_ordered(&cell->reads[0], access)) {
        if (cell->reads[0].thread == trace.thread)
            trace.bytes |= cell->reads[0].bytes;
        cell->reads[0] = trace;
    } else {
        cell->reads[1] = trace;
    }
}

static void check(CsRegion region, const Access *access)
{
    const gsize end = access->address + access->bytes;
    gsize start = access->address - (access->address - regions[region].base) % CELL_BYTES;

    while (start < end) {
        const guint8 bytes = bytes_in(start, access->address, access->bytes);
        Cell *cell = next_cell(region, &start, start < access->address ? start : end);
        if (!check_alive(cell, access))
            return;
        if ((!access->write || access->atomic) && (cell->defined & bytes) != bytes)
            report(CS_UNINITIALISED, access, "a read before any write", 0, NULL);
        if (access->trace.thread != 0)
            check_threads(cell, access, bytes);
        if (!access->shared)
            check_ops(cell, access);
        if (access->write)
            note_write(cell, access, bytes);
        else
            note_read(cell, access, bytes);
    }
}

/* ---- accesses ---- */

static gboolean region_of(gsize address, CsRegion *region)
{
    for (*region = 0; *region < CS_REGIONS; (*region)++)
        if (is_in(*region, address))
            return TRUE;
    return FALSE;
}

/* After all of it was allocated or freed: one cell a granule again. */
static void join(CsRegion region, gsize address, gsize bytes)
{
    const gsize base = regions[region].base, end = address + bytes;
    gsize start = base + (address - base + GRANULE_BYTES - 1) / GRANULE_BYTES * GRANULE_BYTES;

    for (; start + GRANULE_BYTES <= end; start += GRANULE_BYTES) {
        Granule *granule = &regions[region].granules[(start - base) / GRANULE_BYTES];
        Cell *cells = &regions[region].cells[(start - base) / CELL_BYTES];

        if (!granule->split)
            continue;
        *granule = (Granule){.all = *cells};
        madvise(cells, GRANULE_BYTES / CELL_BYTES * sizeof *cells, MADV_DONTNEED);
    }
}

/* Alive or dead from now on, after all that was done to it. */
static void change_life(CsRegion region, Access access, guint8 flags)
{
    const gsize end = access.address + access.bytes;

    access.write = TRUE;
    for (gsize start = access.address; start < end;) {
        Cell *cell = next_cell(region, &start, end);
        check_ops(cell, &access);
        *cell = (Cell){.writer = access.op, .flags = flags};
    }
    join(region, access.address, access.bytes);
}

void cs_race_access(CsAccess kind, const void *base, gsize bytes)
{
    Access access = {.address = (gsize)base,
                     .bytes = bytes,
                     .write = kind != CS_READ,
                     .op = current_op,
                     .at = __builtin_return_address(0)};
    CsRegion region;

    if (bytes == 0 || !region_of(access.address, &region))
        return;
    if (kind == CS_ALLOCATE || kind == CS_FREE)
        change_life(region, access, kind == CS_ALLOCATE ? ALIVE : 0);
    else
        check(region, &access);
}

void cs_race_defined(const void *base, gsize bytes)
{
    const gsize end = (gsize)base + bytes;

    for (gsize start = (gsize)base; start < end;)
        next_cell(CS_PINNED, &start, end)->defined = ALL_BYTES;
}

static void check_host(Access *access, CsRegion region)
{
    gboolean entered = cs_enter_if_outside();

    access->op = current_op != 0 ? current_op : cs_host_op();
    if (region == CS_PINNED)
        check(region, access);
    else if (region == CS_DEVICE)
        report(CS_BOUNDS, access, "host code touches device memory", 0, NULL);
    if (entered)
        cs_leave(cudaSuccess);
}

extern char __executable_start[], end[];

static void check_kernel(Access *access, CsRegion region, gboolean known)
{
    unsigned block = cs_block.threads.x * cs_block.threads.y * cs_block.threads.z;

    access->shared = known && region >= CS_DYNAMIC_SHARED;
    access->op = access->shared ? generation : current_op;
    access->trace = (Trace){.thread = cs_block.index * block + cs_thread->index + 1,
                            .block_epoch = cs_block.epoch,
                            .warp_epoch = cs_thread->warp_epoch};
    if (known)
        check(region, access);
    else if (!cs_grid_owns(access->address) &&
             access->address - (gsize)__executable_start >= (gsize)(end - __executable_start))
        report(CS_BOUNDS, access, "a kernel touches host memory", 0, NULL);
}

void cs_hook(const void *address, gsize bytes, CsHook hook, const void *at)
{
    Access access = {.address = (gsize)address,
                     .bytes = bytes,
                     .write = hook != CS_HOOK_READ,
                     .atomic = hook == CS_HOOK_ATOMIC,
                     .at = at};
    CsRegion region;
    gboolean known = region_of(access.address, &region);

    if (bytes == 0)
        return;
    if (cs_grid_is_here())
        check_kernel(&access, region, known);
    else if (known)
        check_host(&access, region);
}
#endif
