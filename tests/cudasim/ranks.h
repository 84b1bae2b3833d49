/* Ranks for tests of NCCL: each is a child with a simulated device of its own. */
#pragma once

#include "tests/cudasim/outcome.h"
#include <nccl.h>

enum { COUNT = 1000, MOST_RANKS = 4 };

typedef struct {
    int rank;
    int size;
    ncclUniqueId id;
    cudaStream_t stream;
} Rank;

/* Whether a rank is right. */
typedef gboolean (*RankTest)(const Rank *self);

/* How many of @size ranks are right, and report nothing. */
int num_right(RankTest test, int size, Schedule schedule);

ncclComm_t join_all(const Rank *self);

/* Device memory that the rank's stream fills. */
float *filled(const Rank *self, float value, int count);

/* Whether all of @count elements are @value, once the rank's stream is done. */
gboolean all_are(const Rank *self, const float *device, float value, int count);
