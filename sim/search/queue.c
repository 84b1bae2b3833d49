#include "sim/search/queue.h"

static gint compare_queued(gconstpointer a, gconstpointer b, gpointer queue)
{
    return ((Queue *)queue)->compare(a, b);
}

static void queue_insert(Queue *queue, GSequence *into, gconstpointer item, gsize size)
{
    g_sequence_insert_sorted(into, g_memdup2(item, size), compare_queued, queue);
}

void queue_init(Queue *queue, const SearchRequest *request, Candidates *found, GCompareFunc compare)
{
    *queue = (Queue){.request = request,
                     .found = found,
                     .compare = compare,
                     .groups = g_sequence_new(g_free),
                     .listed = g_sequence_new(g_free)};
    for (guint i = 0; i < found->groups->len; i++)
        g_sequence_append(queue->groups, g_memdup2(&g_array_index(found->groups, ChoiceGroup, i),
                                                   sizeof(ChoiceGroup)));
    g_sequence_sort(queue->groups, compare_queued, queue);
}

void queue_clear(Queue *queue)
{
    g_sequence_free(queue->groups);
    g_sequence_free(queue->listed);
}

/* NULL: there are no more. */
static gpointer item_at(GSequence *sequence, guint i)
{
    GSequenceIter *iter = g_sequence_get_iter_at_pos(sequence, (gint)i);

    return g_sequence_iter_is_end(iter) ? NULL : g_sequence_get(iter);
}

/* What holds for all groups that are not yet expanded; NULL: all are. */
static const Candidate *queue_group(const Queue *queue)
{
    const ChoiceGroup *group = item_at(queue->groups, 0);

    return group == NULL ? NULL : &group->least;
}

static gboolean is_dropped(const Queue *queue, const Candidate *candidate)
{
    return queue->drops != NULL && queue->drops(queue->data, candidate);
}

/* Both kinds of items start with a candidate. */
static void drop_first(Queue *queue, GSequence *from)
{
    gconstpointer first;

    while ((first = item_at(from, 0)) != NULL && is_dropped(queue, first)) {
        queue->dropped += from == queue->groups ? group_counted(first) : 1;
        g_sequence_remove(g_sequence_get_begin_iter(from));
    }
}

const Candidate *queue_first(Queue *queue)
{
    drop_first(queue, queue->groups);
    drop_first(queue, queue->listed);
    const Candidate *group = queue_group(queue), *first = item_at(queue->listed, 0);

    if (group == NULL || first == NULL)
        return group == NULL ? first : group;
    return queue->compare(first, group) < 0 ? first : group;
}

/* Moves the first items of @from behind @to, up to @most of them; returns how many. */
static guint take_first(Queue *queue, GSequence *from, guint most, GArray *to)
{
    guint num = 0;

    for (; num < most; num++) {
        drop_first(queue, from);
        if (g_sequence_is_empty(from))
            break;
        GSequenceIter *first = g_sequence_get_begin_iter(from);

        g_array_append_vals(to, g_sequence_get(first), 1);
        g_sequence_remove(first);
    }
    return num;
}

/* Back into the queue, where they fit. */
static void queue_bound(Queue *queue, GArray *put_off)
{
    candidates_bound(queue->found, queue->request, (ChoiceGroup *)put_off->data, put_off->len);
    for (guint i = 0; i < put_off->len; i++) {
        const ChoiceGroup *group = &g_array_index(put_off, ChoiceGroup, i);

        if (candidates_fit(queue->found, group))
            queue_insert(queue, queue->groups, group, sizeof *group);
    }
}

static void queue_list(Queue *queue, const GArray *groups)
{
    g_autoptr(GArray) listed = g_array_new(FALSE, FALSE, sizeof(Candidate));

    candidates_expand(queue->found, queue->request, (const ChoiceGroup *)groups->data, groups->len,
                      listed);
    for (guint i = 0; i < listed->len; i++) {
        const Candidate *candidate = &g_array_index(listed, Candidate, i);

        if (is_dropped(queue, candidate))
            queue->dropped++;
        else
            queue_insert(queue, queue->listed, candidate, sizeof *candidate);
    }
}

/* The first groups become candidates; those that were put off get bounds of their own. */
static void queue_expand(Queue *queue)
{
    enum { AT_ONCE = 32 };
    g_autoptr(GArray) first = g_array_new(FALSE, FALSE, sizeof(ChoiceGroup));
    g_autoptr(GArray) put_off = g_array_new(FALSE, FALSE, sizeof(ChoiceGroup));

    take_first(queue, queue->groups, AT_ONCE, first);
    for (guint i = first->len; i-- > 0;) {
        const ChoiceGroup group = g_array_index(first, ChoiceGroup, i);

        if (!group.put_off)
            continue;
        g_array_append_val(put_off, group);
        g_array_remove_index(first, i);
    }
    queue_bound(queue, put_off);
    queue_list(queue, first);
}

void queue_fill(Queue *queue, guint num, QueueTest stops, gconstpointer data)
{
    for (;;) {
        const Candidate *group = queue_group(queue), *last = item_at(queue->listed, num - 1);

        if (group == NULL || (last != NULL && queue->compare(last, group) < 0) ||
            (stops != NULL && stops(data, group)))
            return;
        queue_expand(queue);
    }
}

guint queue_take(Queue *queue, guint num, GArray *taken)
{
    return take_first(queue, queue->listed, num, taken);
}

guint64 queue_left(const Queue *queue)
{
    guint64 left = (guint64)g_sequence_get_length(queue->listed);

    for (GSequenceIter *i = g_sequence_get_begin_iter(queue->groups); !g_sequence_iter_is_end(i);
         i = g_sequence_iter_next(i))
        left += group_counted(g_sequence_get(i));
    return left;
}
