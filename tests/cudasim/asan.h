/* Whether this is a build with ASan, and what it offers. */
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define CS_ASAN 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
