/* What tests read off a program, and what check says of it. */
#pragma once

#include "sim/program/check.h"
#include "tests/suite.h"

#include <string.h>

/* Bytes of all tensors of one kind, all copies. */
static inline guint64 kind_bytes(const Program *program, TensorKind kind)
{
    guint64 bytes = 0;

    for (guint t = 0; t < program->tensors->len; t++)
        if (program_tensor(program, t)->kind == kind)
            bytes += tensor_bytes(program, program_tensor(program, t));
    return bytes;
}

static inline guint64 bytes_of_state(const Program *program)
{
    return kind_bytes(program, TENSOR_PARAMETER) + kind_bytes(program, TENSOR_GRADIENT) +
           kind_bytes(program, TENSOR_MASTER) + kind_bytes(program, TENSOR_MOMENT);
}

/* Of a step. */
static inline guint64 volume_of(const Program *program, Volume volume)
{
    guint64 bytes[NUM_VOLUMES];

    program_volume(program, bytes);
    return bytes[volume];
}

/* Bytes of those on the device. */
static inline guint64 device_bytes(const Program *program, TensorKind kind)
{
    guint64 bytes = kind_bytes(program, kind);

    for (guint t = 0; t < program->tensors->len; t++)
        if (program_tensor(program, t)->kind == kind &&
            program_tensor(program, t)->tier != TIER_DEVICE)
            bytes -= tensor_bytes(program, program_tensor(program, t));
    return bytes;
}

/* Ops of a kind in a step. */
static inline guint count_ops(const Program *program, OpKind kind)
{
    guint count = 0;

    for (guint c = 0; c < program->step.calls->len; c++) {
        const Segment *segment =
            program_segment(program, g_array_index(program->step.calls, Call, c).segment);

        for (guint i = 0; i < segment->num_ops; i++)
            count += segment->ops[i].kind == kind;
    }
    return count;
}

/* "rmsnorm linear linear ..." */
static inline char *kinds_of(const Segment *segment)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint i = 0; i < segment->num_ops; i++)
        g_string_append_printf(text, "%s%s", i == 0 ? "" : " ", op_kind_name(segment->ops[i].kind));
    return g_string_free(g_steal_pointer(&text), FALSE);
}

/* Calls of the segments whose names end so. */
static inline guint count_calls(const Program *program, const char *suffix)
{
    guint count = 0;

    for (guint c = 0; c < program->step.calls->len; c++)
        if (g_str_has_suffix(
                program_segment(program, g_array_index(program->step.calls, Call, c).segment)->name,
                suffix))
            count++;
    return count;
}

/* Of a step. */
static inline double program_flops(const Program *program)
{
    double flops = 0;

    for (guint c = 0; c < program->step.calls->len; c++) {
        const Segment *segment =
            program_segment(program, g_array_index(program->step.calls, Call, c).segment);

        for (guint i = 0; i < segment->num_ops; i++)
            flops += op_flops(&segment->ops[i]);
    }
    return flops;
}

static inline gint find_tensor(const Program *program, const char *name)
{
    for (guint t = 0; t < program->tensors->len; t++)
        if (strcmp(program_tensor(program, t)->name, name) == 0)
            return (gint)t;
    return -1;
}

static inline gint find_segment(const Program *program, const char *name)
{
    for (guint s = 0; s < program->segments->len; s++)
        if (strcmp(program_segment(program, s)->name, name) == 0)
            return (gint)s;
    return -1;
}

static inline guint copies_of(const Program *program, guint tensor)
{
    return tensor_num_copies(program, program_tensor(program, tensor));
}

/* Fails unless check says @what in one of its lines. */
static inline void assert_caught(const ProgramSet *set, const char *what)
{
    g_autoptr(GPtrArray) problems = program_set_check(set, 0);

    for (guint i = 0; i < problems->len; i++)
        if (strstr(g_ptr_array_index(problems, i), what) != NULL)
            return;
    ck_abort_msg("not caught: \"%s\"; %u problems, the first: %s", what, problems->len,
                 problems->len == 0 ? "" : (const char *)g_ptr_array_index(problems, 0));
}

/* In the other order; each place keeps its waits. */
static inline void swap_calls(Call *a, Call *b)
{
    const Call kept = *a;
    const guint first_wait[] = {a->first_wait, b->first_wait};
    const guint num_waits[] = {a->num_waits, b->num_waits};

    *a = *b;
    *b = kept;
    a->first_wait = first_wait[0];
    a->num_waits = num_waits[0];
    b->first_wait = first_wait[1];
    b->num_waits = num_waits[1];
}

/* Fails with the first problem that check finds. */
static inline void assert_proven(const ProgramSet *set, const char *what)
{
    g_autoptr(GPtrArray) problems = program_set_check(set, 0);

    ck_assert_msg(problems->len == 0, "%s: %s", what,
                  problems->len == 0 ? "" : (const char *)g_ptr_array_index(problems, 0));
}
