/* What becomes of a scenario, which may crash: runs it in a process of its own. */
#pragma once

#include "tests/cudasim/cudasim.h"

/* Bits; none: it is right, and nothing is reported. */
enum { WRONG = 1, REPORTED = 2, CRASHED = 4 };

typedef struct {
    CsPolicy policy;
    CsOrder order;
    guint64 seed;
} Schedule;

/* A scenario says whether its result is right. */
typedef gboolean (*Scenario)(int variant);

int outcome_of(Scenario scenario, int variant, Schedule schedule);

/* fifo, lifo, and 8 seeds each of the other two. */
#define NUM_SCHEDULES 18
Schedule schedule_at(int index);

/* For calls that must succeed, whichever library's. */
void ok(int status);

/* Memory with these contents, or undefined ones if NULL; waits. */
void *to_device(const void *values, gsize bytes);
void to_host(void *values, const void *device, gsize bytes);
