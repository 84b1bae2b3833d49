#include "sim/program/happens.h"

#include <string.h>

Happens *happens_new(const Program *program, guint steps)
{
    Happens *happens = g_new0(Happens, 1);
    const guint num_calls = program->step.calls->len;
    guint32 next[MAX_STREAMS] = {0};

    happens->program = program;
    happens->num_streams = program->streams->len;
    happens->first_op = program_first_ops(program);
    happens->ops_per_step = happens->first_op[num_calls];
    const guint64 instances = happens->ops_per_step * steps;
    happens->position = g_new(guint32, instances);
    happens->stream = g_new(guint8, instances);
    happens->clock = g_new0(guint32, instances);
    happens->room = num_calls + 1;
    happens->clocks = g_new(guint32, (gsize)happens->room * happens->num_streams);
    happens->num_clocks = 1;
    memset(happens->clocks, 0, happens->num_streams * sizeof(guint32));
    guint64 instance = 0;
    for (guint s = 0; s < steps; s++) {
        for (guint c = 0; c < num_calls; c++) {
            const Segment *segment =
                program_segment(program, g_array_index(program->step.calls, Call, c).segment);

            for (guint i = 0; i < segment->num_ops; i++, instance++) {
                happens->stream[instance] = (guint8)segment->ops[i].stream;
                happens->position[instance] = ++next[segment->ops[i].stream];
            }
        }
        if (s == 0)
            memcpy(happens->per_step, next, sizeof next);
    }
    return happens;
}

void happens_free(Happens *happens)
{
    if (happens == NULL)
        return;
    g_free(happens->first_op);
    g_free(happens->position);
    g_free(happens->stream);
    g_free(happens->clock);
    g_free(happens->clocks);
    g_free(happens->first_wait);
    g_free(happens->next_wait);
    g_free(happens);
}

static guint32 *clock_at(const Happens *happens, guint clock)
{
    return happens->clocks + (gsize)clock * happens->num_streams;
}

void happens_begin(Happens *happens, guint64 instance)
{
    guint64 *newest = &happens->newest[happens->stream[instance]];

    if (*newest > 0)
        happens->clock[instance] = happens->clock[*newest - 1];
    *newest = instance + 1;
}

/* That of an instance, for itself alone. */
static guint32 *own_clock(Happens *happens, guint64 instance)
{
    const guint shared = happens->clock[instance], added = happens->num_clocks;

    if (happens->newest_clock != instance + 1) {
        if (added == happens->room) {
            happens->room *= 2;
            happens->clocks =
                g_renew(guint32, happens->clocks, (gsize)happens->room * happens->num_streams);
        }
        happens->num_clocks++;
        memcpy(clock_at(happens, added), clock_at(happens, shared),
               happens->num_streams * sizeof(guint32));
        happens->clock[instance] = added;
        happens->newest_clock = instance + 1;
    }
    return clock_at(happens, happens->clock[instance]);
}

/* Whether the join tells @instance anything. */
static gboolean is_news(const Happens *happens, guint64 instance, guint64 event)
{
    const guint32 *clock = clock_at(happens, happens->clock[instance]);
    const guint32 *other = clock_at(happens, happens->clock[event]);
    guint32 more = happens->position[event] > clock[happens->stream[event]];

    for (guint s = 0; s < happens->num_streams; s++)
        more |= other[s] > clock[s];
    return more != 0;
}

void happens_join(Happens *happens, guint64 instance, guint64 event)
{
    const guint8 stream = happens->stream[event];

    if (stream == happens->stream[instance] || !is_news(happens, instance, event))
        return;
    guint32 *clock = own_clock(happens, instance);
    const guint32 *other = clock_at(happens, happens->clock[event]);

    for (guint s = 0; s < happens->num_streams; s++)
        clock[s] = MAX(clock[s], other[s]);
    clock[stream] = MAX(clock[stream], happens->position[event]);
}

gboolean happens_event(const Happens *happens, const Wait *wait, guint step, guint64 *event)
{
    if (wait->back > step)
        return FALSE;
    *event = (step - wait->back) * happens->ops_per_step + wait_event(happens->first_op, wait);
    return TRUE;
}

/* Calls may have hundreds of ops and of waits: each op looks at its own alone.  Programs to be
 * checked may have waits of ops that are not there. */
static void sort_waits(Happens *happens, const Call *call, guint num_ops)
{
    const Wait *waits = &g_array_index(happens->program->step.waits, Wait, call->first_wait);

    memset(happens->first_wait, 0, num_ops * sizeof *happens->first_wait);
    for (guint w = call->num_waits; w-- > 0;) {
        if (waits[w].before >= num_ops)
            continue;
        happens->next_wait[w] = happens->first_wait[waits[w].before];
        happens->first_wait[waits[w].before] = w + 1;
    }
}

static void fill_op(Happens *happens, const Call *call, guint64 call_start, guint step, guint i)
{
    const Program *program = happens->program;
    const Op *op = &program_segment(program, call->segment)->ops[i];

    happens_begin(happens, call_start + i);
    for (guint w = 0; w < op->num_waits; w++)
        happens_join(happens, call_start + i, call_start + op->waits[w]);
    for (guint w = happens->first_wait[i]; w != 0; w = happens->next_wait[w - 1]) {
        const Wait *wait = &g_array_index(program->step.waits, Wait, call->first_wait + w - 1);
        guint64 event;

        if (happens_event(happens, wait, step, &event))
            happens_join(happens, call_start + i, event);
    }
}

/* Room for the waits of any call. */
static void make_room(Happens *happens)
{
    const Program *program = happens->program;
    guint ops = 0, waits = 0;

    for (guint c = 0; c < program->step.calls->len; c++) {
        const Call *call = &g_array_index(program->step.calls, Call, c);

        ops = MAX(ops, program_segment(program, call->segment)->num_ops);
        waits = MAX(waits, call->num_waits);
    }
    happens->first_wait = g_new(guint, ops);
    happens->next_wait = g_new(guint, waits);
}

void happens_fill_call(Happens *happens, guint step, guint c)
{
    const Call *call = &g_array_index(happens->program->step.calls, Call, c);
    const guint64 start = step * happens->ops_per_step + happens->first_op[c];
    const guint num_ops = program_segment(happens->program, call->segment)->num_ops;

    if (happens->first_wait == NULL)
        make_room(happens);
    sort_waits(happens, call, num_ops);
    for (guint i = 0; i < num_ops; i++)
        fill_op(happens, call, start, step, i);
}

void happens_fill(Happens *happens, guint steps)
{
    for (guint s = 0; s < steps; s++)
        for (guint c = 0; c < happens->program->step.calls->len; c++)
            happens_fill_call(happens, s, c);
}
