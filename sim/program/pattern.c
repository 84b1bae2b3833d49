#include "sim/program/pattern.h"

#include <pthread.h>
#include <string.h>

/* Numbers, on their way in where there is room for them. */
typedef struct {
    guint32 *numbers;
    guint num;
} Key;

/* Whole keys are compared: a sum of them could be that of another one. */
struct Pattern {
    gint users; /* atomic */
    Key key;
    guint hash; /* of it */
    pthread_mutex_t mutex;
    guint *num_waits;   /* by call; NULL: not known yet */
    Wait *waits;        /* call after call */
    guint64 *conflicts; /* NULL: not known yet */
};

/* What timetables depend on. */
typedef struct {
    ScheduleKind kind;
    guint micro_batches, virtual_stages, pp;
} TimetablesKey;

struct SharedTimetables {
    gint users; /* atomic */
    TimetablesKey key;
    Timetable *all; /* by stage */
};

enum { KEPT_TIMETABLES = 4 }; /* plans that are priced after one another are mostly of those */

/* (GLib's mutex would look like a race to TSan.) */
struct Patterns {
    pthread_mutex_t mutex;
    SharedTimetables *timetables[KEPT_TIMETABLES]; /* or NULL */
    guint next_timetables;                         /* which of those is replaced next */
    GHashTable *all;                               /* Pattern, a set */
    gsize key_bytes; /* of all; what is known of them takes about as much again */
};

/* Beyond that all are forgotten: what is searched next is unlike them. */
static const gsize MOST_KEY_BYTES = 16u << 20;

/* ---- keys ---- */

static void add(Key *key, guint32 number)
{
    key->numbers[key->num++] = number;
}

static void add_tensors(Key *key, const Program *program)
{
    add(key, program->streams->len);
    add(key, program->tensors->len);
    for (guint t = 0; t < program->tensors->len; t++) {
        add(key, program_tensor(program, t)->space);
        add(key, program_tensor(program, t)->persistence);
    }
    add(key, program->spaces->len);
    for (guint s = 0; s < program->spaces->len; s++)
        add(key, program_space(program, s)->count | program_space(program, s)->slot << 16);
}

static void add_op(Key *key, const Op *op)
{
    add(key, op->stream);
    add(key, (guint32)op->predicate);
    add(key, op->num_waits);
    for (guint w = 0; w < op->num_waits; w++)
        add(key, op->waits[w]);
    add(key, op->num_operands);
    for (guint o = 0; o < op->num_operands; o++) {
        add(key, op->operands[o].tensor);
        add(key, op->operands[o].access);
        add(key, (guint32)op->operands[o].shift);
        add(key, op->operands[o].param == WHOLE_TENSOR ? 1 : 0);
    }
}

static void add_segments(Key *key, const Program *program)
{
    add(key, program->segments->len);
    for (guint s = 0; s < program->segments->len; s++) {
        const Segment *segment = program_segment(program, s);

        add(key, segment->num_ops);
        for (guint i = 0; i < segment->num_ops; i++)
            add_op(key, &segment->ops[i]);
    }
}

static void add_calls(Key *key, const Program *program, const CallList *list)
{
    add(key, list->calls->len);
    for (guint c = 0; c < list->calls->len; c++) {
        const Call *call = &g_array_index(list->calls, Call, c);

        add(key, call->segment << 1 | (call->first ? 1 : 0));
        for (guint s = 1; s < program->num_slots; s += 2)
            add(key, call->index[s] | (guint32)(s + 1 < MAX_SLOTS ? call->index[s + 1] : 0) << 16);
    }
}

/* No key has more numbers. */
static guint most_numbers(const Program *program)
{
    const guint calls =
        program->prologue.calls->len + program->step.calls->len + program->epilogue.calls->len;
    guint most = 16 + 2 * program->tensors->len + program->spaces->len;

    for (guint s = 0; s < program->segments->len; s++)
        most += 1 + program_segment(program, s)->num_ops * (4 + MAX_OP_WAITS + 4 * MAX_OPERANDS);
    return most + calls * (1 + program->spaces->len / 2);
}

/* All that order_add_waits() and lifetimes_init() look at. */
static void key_init(Key *key, const Program *program)
{
    key->numbers = g_new(guint32, most_numbers(program));
    key->num = 0;
    add_tensors(key, program);
    add_segments(key, program);
    add_calls(key, program, &program->prologue);
    add_calls(key, program, &program->step);
    add_calls(key, program, &program->epilogue);
    key->numbers = g_renew(guint32, key->numbers, key->num);
}

static guint key_hash(const Key *key)
{
    guint64 hash = 0;

    for (guint i = 0; i < key->num; i++)
        hash = (hash ^ key->numbers[i]) * G_GUINT64_CONSTANT(0x9e3779b97f4a7c15) + i;
    return (guint)(hash >> 32);
}

static guint pattern_hash(gconstpointer pattern)
{
    return ((const Pattern *)pattern)->hash;
}

static gboolean pattern_equal(gconstpointer a, gconstpointer b)
{
    const Key *left = &((const Pattern *)a)->key, *right = &((const Pattern *)b)->key;

    return left->num == right->num &&
           memcmp(left->numbers, right->numbers, left->num * sizeof(guint32)) == 0;
}

/* ---- patterns ---- */

static Pattern *pattern_new(const Program *program)
{
    Pattern *pattern = g_new0(Pattern, 1);

    pattern->users = 1;
    key_init(&pattern->key, program);
    pattern->hash = key_hash(&pattern->key);
    pthread_mutex_init(&pattern->mutex, NULL);
    return pattern;
}

Pattern *pattern_ref(Pattern *pattern)
{
    g_atomic_int_inc(&pattern->users);
    return pattern;
}

void pattern_unref(Pattern *pattern)
{
    if (pattern == NULL || !g_atomic_int_dec_and_test(&pattern->users))
        return;
    g_free(pattern->key.numbers);
    pthread_mutex_destroy(&pattern->mutex);
    g_free(pattern->num_waits);
    g_free(pattern->waits);
    g_free(pattern->conflicts);
    g_free(pattern);
}

Patterns *patterns_new(void)
{
    Patterns *patterns = g_new0(Patterns, 1);

    pthread_mutex_init(&patterns->mutex, NULL);
    patterns->all =
        g_hash_table_new_full(pattern_hash, pattern_equal, (GDestroyNotify)pattern_unref, NULL);
    return patterns;
}

void patterns_free(Patterns *patterns)
{
    if (patterns == NULL)
        return;
    g_hash_table_unref(patterns->all);
    for (guint i = 0; i < KEPT_TIMETABLES; i++)
        shared_timetables_unref(patterns->timetables[i]);
    pthread_mutex_destroy(&patterns->mutex);
    g_free(patterns);
}

Pattern *patterns_find(Patterns *patterns, const Program *program)
{
    Pattern *made = pattern_new(program);

    pthread_mutex_lock(&patterns->mutex);
    Pattern *found = g_hash_table_lookup(patterns->all, made);

    if (found == NULL) {
        const gsize bytes = made->key.num * sizeof(guint32);

        if (patterns->key_bytes + bytes > MOST_KEY_BYTES) {
            g_hash_table_remove_all(patterns->all);
            patterns->key_bytes = 0;
        }
        patterns->key_bytes += bytes;
        g_hash_table_add(patterns->all, pattern_ref(made));
        found = made;
    }
    pattern_ref(found);
    pthread_mutex_unlock(&patterns->mutex);
    pattern_unref(made);
    return found;
}

/* ---- timetables ---- */

const Timetable *shared_timetable(const SharedTimetables *timetables, guint stage)
{
    g_assert(stage < timetables->key.pp);
    return &timetables->all[stage];
}

void shared_timetables_unref(SharedTimetables *timetables)
{
    if (timetables == NULL || !g_atomic_int_dec_and_test(&timetables->users))
        return;
    timetables_free(timetables->all, timetables->key.pp);
    g_free(timetables);
}

static SharedTimetables *find_timetables(const Patterns *patterns, const TimetablesKey *key)
{
    for (guint i = 0; i < KEPT_TIMETABLES; i++) {
        SharedTimetables *kept = patterns->timetables[i];

        if (kept == NULL || kept->key.kind != key->kind ||
            kept->key.micro_batches != key->micro_batches ||
            kept->key.virtual_stages != key->virtual_stages || kept->key.pp != key->pp)
            continue;
        g_atomic_int_inc(&kept->users);
        return kept;
    }
    return NULL;
}

/* Those of the most passes are not worth their memory. */
static void keep_timetables(Patterns *patterns, SharedTimetables *timetables)
{
    enum { MOST_PASSES = 1 << 15 };
    const TimetablesKey *key = &timetables->key;
    SharedTimetables **kept = &patterns->timetables[patterns->next_timetables];

    if ((guint64)key->pp * key->virtual_stages * key->micro_batches > MOST_PASSES)
        return;
    shared_timetables_unref(*kept);
    *kept = timetables;
    g_atomic_int_inc(&timetables->users);
    patterns->next_timetables = (patterns->next_timetables + 1) % KEPT_TIMETABLES;
}

SharedTimetables *patterns_timetables(Patterns *patterns, const Schedule *schedule, guint pp)
{
    const TimetablesKey key = {schedule->kind, schedule->micro_batches,
                               schedule_virtual_stages(schedule), pp};
    SharedTimetables *found = NULL;

    if (patterns != NULL) {
        pthread_mutex_lock(&patterns->mutex);
        found = find_timetables(patterns, &key);
        pthread_mutex_unlock(&patterns->mutex);
    }
    if (found != NULL)
        return found;
    found = g_new(SharedTimetables, 1);
    *found = (SharedTimetables){1, key, timetables_new(schedule, pp)};
    if (patterns != NULL) {
        pthread_mutex_lock(&patterns->mutex);
        keep_timetables(patterns, found);
        pthread_mutex_unlock(&patterns->mutex);
    }
    return found;
}

/* ---- what is known ---- */

gboolean pattern_add_waits(Pattern *pattern, Program *program)
{
    CallList *step = &program->step;

    pthread_mutex_lock(&pattern->mutex);
    const gboolean known = pattern->num_waits != NULL;
    pthread_mutex_unlock(&pattern->mutex);
    if (!known)
        return FALSE;
    const Wait *wait = pattern->waits; /* once there, they stay */
    for (guint c = 0; c < step->calls->len; c++)
        for (guint w = 0; w < pattern->num_waits[c]; w++)
            call_list_wait(step, c, *wait++);
    return TRUE;
}

void pattern_keep_waits(Pattern *pattern, const Program *program)
{
    const CallList *step = &program->step;
    g_autofree guint *num_waits = g_new0(guint, step->calls->len + 1);

    for (guint c = 0; c < step->calls->len; c++)
        num_waits[c] = g_array_index(step->calls, Call, c).num_waits;
    pthread_mutex_lock(&pattern->mutex);
    if (pattern->num_waits == NULL) {
        pattern->waits = g_memdup2(step->waits->data, step->waits->len * sizeof(Wait));
        pattern->num_waits = g_steal_pointer(&num_waits);
    }
    pthread_mutex_unlock(&pattern->mutex);
}

gboolean pattern_copy_conflicts(Pattern *pattern, guint64 *conflicts, gsize words)
{
    pthread_mutex_lock(&pattern->mutex);
    const gboolean known = pattern->conflicts != NULL;

    if (known)
        memcpy(conflicts, pattern->conflicts, words * sizeof *conflicts);
    pthread_mutex_unlock(&pattern->mutex);
    return known;
}

void pattern_keep_conflicts(Pattern *pattern, const guint64 *conflicts, gsize words)
{
    pthread_mutex_lock(&pattern->mutex);
    if (pattern->conflicts == NULL)
        pattern->conflicts = g_memdup2(conflicts, words * sizeof *conflicts);
    pthread_mutex_unlock(&pattern->mutex);
}
