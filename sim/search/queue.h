/* Candidates, the best first by a key that is no more than what they turn out to have; most of them
 * still in their groups. */
#pragma once

#include "sim/search/candidates.h"

/* Of a candidate, which may stand for a group. */
typedef gboolean (*QueueTest)(gconstpointer data, const Candidate *candidate);

typedef struct {
    const SearchRequest *request;
    Candidates *found;
    GCompareFunc compare; /* of candidates; a group starts with one */
    GSequence *groups;    /* ChoiceGroup */
    GSequence *listed;    /* Candidate */
    QueueTest drops;      /* those that are dropped when they come first; NULL: none */
    gconstpointer data;   /* of it */
    guint64 dropped;
} Queue;

void queue_init(Queue *queue, const SearchRequest *request, Candidates *found,
                GCompareFunc compare);
void queue_clear(Queue *queue);

/* No candidate that is left is better; it may stand for a group.  NULL: none is left. */
const Candidate *queue_first(Queue *queue);

/* Expands groups until the first @num candidates are known, or all up to one that @stops: neither
 * it nor any after it is wanted.  NULL: all are. */
void queue_fill(Queue *queue, guint num, QueueTest stops, gconstpointer data);

/* Moves the first @num of those that are known, or as many as there are, behind @taken (array of
 * Candidate); returns how many. */
guint queue_take(Queue *queue, guint num, GArray *taken);

/* How many are still in it, known or in groups. */
guint64 queue_left(const Queue *queue);
