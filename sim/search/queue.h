/* Candidates, the best first by a key that is no more than what they turn out to have; most of them
 * still in their groups. */
#pragma once

#include "sim/search/candidates.h"

typedef struct {
    const SearchRequest *request;
    Candidates *found;
    GCompareFunc compare; /* of candidates; a group starts with one */
    GSequence *groups;    /* ChoiceGroup */
    GSequence *listed;    /* Candidate */
} Queue;

void queue_init(Queue *queue, const SearchRequest *request, Candidates *found,
                GCompareFunc compare);
void queue_clear(Queue *queue);

/* No candidate that is left is better; it may stand for a group.  NULL: none is left. */
const Candidate *queue_first(const Queue *queue);

/* Whether neither @first nor any candidate after it is wanted. */
typedef gboolean (*QueueStop)(gconstpointer data, const Candidate *first);

/* Expands groups until the first @num candidates are known, or all that are wanted; @stops NULL:
 * all are. */
void queue_fill(Queue *queue, guint num, QueueStop stops, gconstpointer data);

/* Moves the first @num of those that are known, or as many as there are, behind @taken (array of
 * Candidate); returns how many. */
guint queue_take(Queue *queue, guint num, GArray *taken);

/* How many are still in it, known or in groups. */
guint64 queue_left(const Queue *queue);
