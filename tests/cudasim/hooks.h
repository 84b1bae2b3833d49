/* From the hooks of -fsanitize=thread to race.c. */
#pragma once

#include <glib.h>

typedef enum { CS_HOOK_READ, CS_HOOK_WRITE, CS_HOOK_ATOMIC } CsHook;

/* A load or a store by a kernel or by the host, at instruction @at. */
void cs_hook(const void *address, gsize bytes, CsHook hook, const void *at);
