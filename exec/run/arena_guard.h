/* What the bytes of one tier's arena say, in check mode: canaries between tensors, poison in what
 * is dead.  The program's offsets stay as they are (so does its hash); the arena is longer, and
 * what shares no bytes moves apart. */
#pragma once

#include "sim/program/program.h"

typedef struct ArenaGuard ArenaGuard;

ArenaGuard *arena_guard_new(const Program *program, Tier tier);
void arena_guard_free(ArenaGuard *guard);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ArenaGuard, arena_guard_free)

guint64 arena_guard_bytes(const ArenaGuard *guard);                /* of the arena */
guint64 arena_guard_offset(const ArenaGuard *guard, guint tensor); /* of that tier */

/* @arena: of that size; what no tensor covers has been filled with @canary and is to stay so. */
void arena_guard_attach(ArenaGuard *guard, guint8 *arena, guint32 canary);

/* Fills a copy that is dead with NaNs (as fp32 and as bf16), and whether it still holds nothing
 * else: *@at is the first byte of the copy that does not. */
void arena_guard_poison(ArenaGuard *guard, guint tensor, guint copy);
gboolean arena_guard_is_poison(const ArenaGuard *guard, guint tensor, guint copy, guint64 *at);

/* ERROR_RUNTIME with the tensors around the first byte that is no longer a canary. */
gboolean arena_guard_check(const ArenaGuard *guard, GError **error) G_GNUC_WARN_UNUSED_RESULT;
