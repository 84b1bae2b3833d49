/* Private to summaries: a step call by call, on clocks of the streams of every stage. */
#pragma once

#include "sim/summary/known.h"

/* Seconds from clip to clip.  A call takes the shortest time that it can; what calls wait for is
 * left out only where it is not known, so no step is shorter.  0 where blocks have several
 * strategies: nothing is known then. */
double walk_s(Known *known, const ProgramSpec *spec);
