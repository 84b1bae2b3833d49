/* Proofs about the programs of all ranks (DESIGN 2, "check"). */
#pragma once

#include "sim/program/program.h"

/* Over all rank classes, on the step followed by itself:
 *  - the union of stream order, issue order and waits has no cycle once each collective and each
 *    matched exchange is one node: no deadlock, also across communicators;
 *  - members of a group agree in kind, order and bytes; every send has its receive;
 *  - no operand is read before it was written, nothing is touched while another stream still uses
 *    it, no arena range is shared without happens-before;
 *  - every tensor lies inside its arena.
 * @device_bytes: what the device has for the arena, 0 = not checked.
 * Returns the problems found, at most a few dozen, one line each; empty = proven. */
GPtrArray *program_set_check(const ProgramSet *set, guint64 device_bytes);
