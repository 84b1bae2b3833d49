/* How a step is cut into micro-batches and stages, in which order they run, what is recomputed. */
#pragma once

#include <glib.h>

typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, NUM_RECOMPUTES } Recompute;

const char *recompute_name(Recompute recompute); /* "none", "selective" (attention), "full" */
gboolean recompute_from_name(const char *name, Recompute *recompute);

/* What is allowed where recompute_parse() is asked. */
#define RECOMPUTE_TEXTS                                                                            \
    "none, selective or full, or of the first layers of each chunk only: full:4, or by stage "     \
    "full:4/2/0/0"

/* Orders of a pipeline's work (pipeline.h).  One stage has 1f1b, which is then plain. */
typedef enum {
    SCHEDULE_1F1B,        /* PipeDream-Flush (Narayanan et al. 2021, arXiv 2006.09503) */
    SCHEDULE_GPIPE,       /* all forward, then all backward (Huang et al. 2019, arXiv 1811.06965) */
    SCHEDULE_INTERLEAVED, /* several chunks a stage (Narayanan et al. 2021, arXiv 2104.04473) */
    SCHEDULE_ZB_H1,       /* backward in two parts (Qi et al. 2023, arXiv 2401.10241, sec. 3.1) */
    NUM_SCHEDULES
} ScheduleKind;

const char *schedule_name(ScheduleKind kind); /* "gpipe", "1f1b", "interleaved", "zb_h1" */
gboolean schedule_from_name(const char *name, ScheduleKind *kind);

enum { MAX_CHUNKS = 256 }; /* stages x virtual stages */

typedef struct {
    guint micro_batch;   /* sequences */
    guint micro_batches; /* in a step, of one data-parallel rank */
    Recompute recompute;
    const guint16 *recompute_layers; /* by stage: of each of its chunks' layers, that many first
                                        ones; borrowed; NULL = all */
    ScheduleKind kind;
    guint virtual_stages; /* chunks of the model a stage, 0 = 1; chunk c is on stage c % pp */
    const guint16 *chunk_layers; /* layers of each chunk, borrowed; NULL = balanced */
} Schedule;

/* The blocks of a chunk. */
typedef struct {
    guint first, count;
} LayerRange;

/* Of @layers blocks over pp * virtual_stages chunks.  Balanced: layers / chunks each, and what is
 * left over goes to chunks in the middle, as the first has the embedding and the last the head. */
LayerRange schedule_chunk(const Schedule *schedule, guint layers, guint pp, guint chunk);
guint schedule_virtual_stages(const Schedule *schedule);
guint schedule_chunks(const Schedule *schedule, guint pp); /* pp * virtual_stages */

/* Blocks of a chunk where the rest is not computed again: the first ones, the others. */
typedef enum { LOT_FIRST, LOT_REST, NUM_LOTS } Lot;

static inline gboolean schedule_has_rest(const Schedule *schedule)
{
    return schedule->recompute != RECOMPUTE_NONE && schedule->recompute_layers != NULL;
}

/* Whether block @within of a chunk is computed again; how many blocks of a stage's largest chunk.
 */
gboolean schedule_recomputes(const Schedule *schedule, guint pp, guint chunk, guint within);
guint schedule_most_layers(const Schedule *schedule, guint layers, guint pp, guint stage);

/* What is computed again, by stage (array of pp; a chunk's layers are all there is), in its one
 * form: all or none of all stages is no list.  @by_stage is changed and borrowed. */
void schedule_set_recompute(Schedule *schedule, Recompute recompute, guint16 *by_stage,
                            guint layers, guint pp);

/* "full", "full:4" of each stage, "full:4/2/0/0"; the caller's.  And back: *num layers of stages, 0
 * of them for all (array of MAX_CHUNKS); FALSE when it is none of these. */
char *schedule_recompute_text(const Schedule *schedule, guint pp);
gboolean recompute_parse(const char *text, Recompute *recompute, guint16 *layers, guint *num);

/* "9:10:10:9" -> layers of each chunk (array of MAX_CHUNKS, @num of them); FALSE when it is no such
 * list. */
gboolean schedule_parse_chunks(const char *text, guint16 *layers, guint *num);
