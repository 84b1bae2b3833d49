/* Device and pinned memory.  Every allocation has a gap before and behind it, no address is used
 * twice, and what is new or freed is filled with 0xff: NaN in every floating point type. */
#pragma once

#include <glib.h>

void cs_memory_start(void);

/* Lets addresses start again, if nothing is allocated. */
void cs_memory_reuse(void);

gboolean cs_memory_is_device(const void *p);
gboolean cs_memory_is_pinned(const void *p);

/* Whether a range lies in one living allocation; host memory that CUDA does not know always does.
 */
gboolean cs_memory_is_inside(const void *p, gsize bytes);

/* Host code faults on device memory; between these calls it does not. */
void cs_memory_open(void);
void cs_memory_close(void);

void cs_memory_poison(void *p, gsize bytes);
