#include "exec/run/agreement.h"

#include "exec/run/op_number.h"
#include "sim/base/error.h"

#include <stdatomic.h>
#include <string.h>

/* What is compared, and how it is called.  Padding is zero. */
typedef struct {
    guint kind, dtype;
    guint64 elements;
    guint unit, micro_batch; /* of ops on a unit */
    guint rank;              /* from here on: not compared */
    char label[92];
} Intent;

enum { COMPARED_BYTES = G_STRUCT_OFFSET(Intent, rank), INTENT_TAG = 0 };

struct Agreement {
    const ProgramSet *set;
    guint rank;
    atomic_int broken; /* `why` is written before, by the communication thread */
    char *why;
};

Agreement *agreement_new(const ProgramSet *set, guint rank)
{
    Agreement *agreement = g_new0(Agreement, 1);

    agreement->set = set;
    agreement->rank = rank;
    return agreement;
}

void agreement_free(Agreement *agreement)
{
    if (agreement == NULL)
        return;
    g_free(agreement->why);
    g_free(agreement);
}

static Intent intent_of(const Agreement *agreement, guint64 at)
{
    const Program *program = agreement->set->classes[agreement->set->class_of[agreement->rank]];
    const Call *call = NULL;
    const Op *op = NULL;
    Intent intent;

    if (!op_number_find(program, (guint32)at, &call, &op))
        g_assert_not_reached();
    memset(&intent, 0, sizeof intent);
    intent.kind = op->kind;
    intent.dtype = op->dtype;
    intent.elements = op_collective_elements(program, op);
    intent.unit = op->unit == NO_UNIT ? 0 : call->unit;
    intent.micro_batch = op->unit == NO_UNIT ? 0 : call->micro_batch;
    intent.rank = agreement->rank;
    g_autofree char *label = program_op_label(program, call, op);
    g_strlcpy(intent.label, label, sizeof intent.label);
    return intent;
}

/* All members' intents, by position. */
static gboolean swap_intents(CommGroup *group, Intent *all, GError **error)
{
    g_autofree CommMessage *messages = g_new0(CommMessage, 2 * group->size);
    guint64 *counted = &group->comm->bytes_in[VOLUME_EXCHANGE];
    const guint64 before = *counted;
    guint num = 0;

    for (guint i = 0; i < group->size; i++) {
        if (i == group->rank)
            continue;
        messages[num++] = (CommMessage){&all[i], sizeof *all, i, INTENT_TAG, FALSE};
        messages[num++] = (CommMessage){&all[group->rank], sizeof *all, i, INTENT_TAG, TRUE};
    }
    const gboolean ok = group->comm->ops->exchange(group, messages, num, error);
    *counted = before;
    return ok;
}

static void break_up(Agreement *agreement, guint64 at, const Intent *own, const Intent *other)
{
    if (atomic_load(&agreement->broken))
        return;
    agreement->why = g_strdup_printf(
        "check: step %" G_GUINT64_FORMAT ": rank %u is about to run %s of %" G_GUINT64_FORMAT
        " elements while rank %u is about to run %s of %" G_GUINT64_FORMAT,
        at >> 32, own->rank, own->label, own->elements, other->rank, other->label, other->elements);
    atomic_store(&agreement->broken, TRUE);
}

gboolean agreement_reach(Agreement *agreement, CommGroup *group, guint64 at, gboolean *same,
                         GError **error)
{
    g_autofree Intent *all = g_new0(Intent, group->size);

    all[group->rank] = intent_of(agreement, at);
    *same = !atomic_load(&agreement->broken);
    if (all[group->rank].kind == OP_EXCHANGE)
        return TRUE;
    if (group->size > 1 && !swap_intents(group, all, error))
        return FALSE;
    for (guint i = 0; i < group->size; i++)
        if (memcmp(&all[i], &all[group->rank], COMPARED_BYTES) != 0)
            break_up(agreement, at, &all[group->rank], &all[i]);
    *same = !atomic_load(&agreement->broken);
    return TRUE;
}

gboolean agreement_holds(Agreement *agreement, GError **error)
{
    if (!atomic_load(&agreement->broken))
        return TRUE;
    return fail(error, ERROR_RUNTIME, "%s", agreement->why);
}
