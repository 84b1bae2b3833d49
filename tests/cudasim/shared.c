/* Shared memory: static arrays lie in a section of the program or, in templates, in a region that
 * hands them out by tag; dynamic memory ends at a page that faults. */
#include "tests/cudasim/grid.h"
#include "tests/cudasim/race.h"
#include "tests/cudasim/report.h"
#include <sys/mman.h>

#define PAGE        ((size_t)4096)
#define DYNAMIC_MAX ((size_t)228 << 10) /* whole pages; a launch may use 227 KiB */
#define STATIC_MAX  ((size_t)48 << 10)

extern char __start_cudasim_shared[] __attribute__((weak));
extern char __stop_cudasim_shared[] __attribute__((weak));

static char *dynamic_base;
static size_t dynamic_used;
static char *static_base;
static size_t static_used;
static struct {
    const void *tag;
    void *array;
} arrays[64];
static unsigned num_arrays;

static size_t section_bytes(void)
{
    return __start_cudasim_shared == NULL
               ? 0
               : (size_t)(__stop_cudasim_shared - __start_cudasim_shared);
}

static void make_regions(void)
{
    char *base = mmap(NULL, DYNAMIC_MAX + PAGE + STATIC_MAX, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    g_assert(base != MAP_FAILED);
    mprotect(base + DYNAMIC_MAX, PAGE, PROT_NONE);
    dynamic_base = base;
    static_base = base + DYNAMIC_MAX + PAGE;
    cs_race_add_region(CS_DYNAMIC_SHARED, dynamic_base, DYNAMIC_MAX);
    cs_race_add_region(CS_STATIC_SHARED, static_base, STATIC_MAX);
    cs_race_add_region(CS_SECTION_SHARED, __start_cudasim_shared, section_bytes());
}

/* NaN in every type.  No memset: ASan would find its own red zones between the arrays. */
static void poison(char *p, size_t bytes)
{
    for (volatile char *at = p; at < p + bytes; at++)
        *at = (char)0xff;
}

void *cs_dynamic_shared(void)
{
    return dynamic_base + (DYNAMIC_MAX - dynamic_used);
}

void cs_shared_new_block(size_t dynamic_bytes)
{
    if (dynamic_base == NULL)
        make_regions();
    dynamic_used = (dynamic_bytes + 15) & ~(size_t)15;
    poison(cs_dynamic_shared(), dynamic_used);
    poison(static_base, static_used);
    poison(__start_cudasim_shared, section_bytes());
    static_used = 0;
    num_arrays = 0;
    cs_race_new_block();
    cs_race_fresh(CS_DYNAMIC_SHARED, cs_dynamic_shared(), dynamic_bytes);
    cs_race_fresh(CS_SECTION_SHARED, __start_cudasim_shared, section_bytes());
}

void *cs_static_shared(const void *tag, size_t bytes)
{
    for (unsigned i = 0; i < num_arrays; i++)
        if (arrays[i].tag == tag)
            return arrays[i].array;
    if (num_arrays == G_N_ELEMENTS(arrays) || static_used + bytes > STATIC_MAX)
        g_error("%s: over 48 KiB of static shared memory", cs_grid_kernel());
    arrays[num_arrays].tag = tag;
    arrays[num_arrays].array = static_base + static_used;
    cs_race_fresh(CS_STATIC_SHARED, static_base + static_used, bytes);
    static_used = MIN((static_used + bytes + 31) & ~(size_t)15, STATIC_MAX); /* a gap behind */
    return arrays[num_arrays++].array;
}
