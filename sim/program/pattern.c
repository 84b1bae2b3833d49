#include "sim/program/pattern.h"

#include <pthread.h>
#include <string.h>

/* Whole keys are compared: a sum of them could be that of another one. */
struct Pattern {
    gint users;  /* atomic */
    GArray *key; /* guint32 */
    guint hash;  /* of it */
    pthread_mutex_t mutex;
    guint *num_waits;   /* by call; NULL: not known yet */
    Wait *waits;        /* call after call */
    guint64 *conflicts; /* NULL: not known yet */
};

/* (GLib's mutex would look like a race to TSan.) */
struct Patterns {
    pthread_mutex_t mutex;
    GHashTable *all; /* Pattern, a set */
    gsize key_bytes; /* of all; what is known of them takes about as much again */
};

/* Beyond that all are forgotten: what is searched next is unlike them. */
static const gsize MOST_KEY_BYTES = 16u << 20;

/* ---- keys ---- */

static void add(GArray *key, guint32 number)
{
    g_array_append_val(key, number);
}

static void add_tensors(GArray *key, const Program *program)
{
    add(key, program->streams->len);
    add(key, program->tensors->len);
    for (guint t = 0; t < program->tensors->len; t++) {
        add(key, program_tensor(program, t)->space);
        add(key, program_tensor(program, t)->persistence);
    }
    add(key, program->spaces->len);
    for (guint s = 0; s < program->spaces->len; s++)
        add(key, g_array_index(program->spaces, Space, s).count);
}

static void add_op(GArray *key, const Op *op)
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

static void add_segments(GArray *key, const Program *program)
{
    add(key, program->segments->len);
    for (guint s = 0; s < program->segments->len; s++) {
        const Segment *segment = program_segment(program, s);

        add(key, segment->num_ops);
        for (guint i = 0; i < segment->num_ops; i++)
            add_op(key, &segment->ops[i]);
    }
}

static void add_calls(GArray *key, const Program *program, const CallList *list)
{
    add(key, list->calls->len);
    for (guint c = 0; c < list->calls->len; c++) {
        const Call *call = &g_array_index(list->calls, Call, c);

        add(key, call->segment << 1 | (call->first ? 1 : 0));
        for (guint s = 1; s < program->spaces->len; s += 2)
            add(key, call->index[s] | (guint32)(s + 1 < MAX_SPACES ? call->index[s + 1] : 0) << 16);
    }
}

/* All that order_add_waits() and lifetimes_init() look at. */
static GArray *key_of(const Program *program)
{
    GArray *key =
        g_array_sized_new(FALSE, FALSE, sizeof(guint32),
                          program->step.calls->len * (1 + program->spaces->len / 2) + 4096);

    add_tensors(key, program);
    add_segments(key, program);
    add_calls(key, program, &program->prologue);
    add_calls(key, program, &program->step);
    add_calls(key, program, &program->epilogue);
    return key;
}

static guint key_hash(const GArray *key)
{
    guint64 hash = 0;

    for (guint i = 0; i < key->len; i++)
        hash = (hash ^ g_array_index(key, guint32, i)) * G_GUINT64_CONSTANT(0x9e3779b97f4a7c15) + i;
    return (guint)(hash >> 32);
}

static guint pattern_hash(gconstpointer pattern)
{
    return ((const Pattern *)pattern)->hash;
}

static gboolean pattern_equal(gconstpointer a, gconstpointer b)
{
    const GArray *left = ((const Pattern *)a)->key, *right = ((const Pattern *)b)->key;

    return left->len == right->len &&
           memcmp(left->data, right->data, left->len * sizeof(guint32)) == 0;
}

/* ---- patterns ---- */

static Pattern *pattern_new(const Program *program)
{
    Pattern *pattern = g_new0(Pattern, 1);

    pattern->users = 1;
    pattern->key = key_of(program);
    pattern->hash = key_hash(pattern->key);
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
    g_array_unref(pattern->key);
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
    pthread_mutex_destroy(&patterns->mutex);
    g_free(patterns);
}

Pattern *patterns_find(Patterns *patterns, const Program *program)
{
    Pattern *made = pattern_new(program);

    pthread_mutex_lock(&patterns->mutex);
    Pattern *found = g_hash_table_lookup(patterns->all, made);

    if (found == NULL) {
        const gsize bytes = made->key->len * sizeof(guint32);

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
