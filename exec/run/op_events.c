#include "exec/run/op_events.h"

struct OpEvents {
    Device *device;
    const DeviceQueueOps *queues;
    const Program *program;
    const guint32 *first_op;
    guint32 num_ops;
    guint64 first_step;    /* that a wait can be for */
    DeviceEvent **done[2]; /* by parity of the step and number; NULL where nobody waits */
    DeviceEvent **joined;  /* by stream */
    DeviceEvent **timer;   /* begin and end by number, and last that of the step; NULL at first */
};

/* ---- setting up ---- */

static gboolean need(OpEvents *events, guint32 number, GError **error)
{
    for (guint parity = 0; parity < 2; parity++) {
        DeviceEvent **event = &events->done[parity][number];

        if (*event == NULL)
            *event = events->queues->event_new(events->device, FALSE, error);
        if (*event == NULL)
            return FALSE;
    }
    return TRUE;
}

static gboolean need_for_call(OpEvents *events, guint c, GError **error)
{
    const CallList *step = &events->program->step;
    const Call *call = &g_array_index(step->calls, Call, c);
    const Segment *segment = program_segment(events->program, call->segment);

    for (guint w = 0; w < call->num_waits; w++) {
        const Wait *wait = &g_array_index(step->waits, Wait, call->first_wait + w);

        if (!need(events, wait_event(events->first_op, wait), error))
            return FALSE;
    }
    for (guint i = 0; i < segment->num_ops; i++)
        for (guint w = 0; w < segment->ops[i].num_waits; w++)
            if (!need(events, events->first_op[c] + segment->ops[i].waits[w], error))
                return FALSE;
    return TRUE;
}

OpEvents *op_events_new(Device *device, const Program *program, const guint32 *first_op,
                        GError **error)
{
    g_autoptr(OpEvents) events = g_new0(OpEvents, 1);
    const guint num_calls = program->step.calls->len;

    events->device = device;
    events->queues = device_queues(device);
    events->program = program;
    events->first_op = first_op;
    events->num_ops = first_op[num_calls];
    events->done[0] = g_new0(DeviceEvent *, events->num_ops);
    events->done[1] = g_new0(DeviceEvent *, events->num_ops);
    events->first_step = 1;
    events->joined = g_new0(DeviceEvent *, program->streams->len);
    if (!events->queues->open_streams(device, program->streams->len, error))
        return NULL;
    for (guint s = 0; s < program->streams->len; s++) {
        events->joined[s] = events->queues->event_new(device, FALSE, error);
        if (events->joined[s] == NULL)
            return NULL;
    }
    for (guint c = 0; c < num_calls; c++)
        if (!need_for_call(events, c, error))
            return NULL;
    return g_steal_pointer(&events);
}

static void free_list(const OpEvents *events, DeviceEvent **list, guint64 count)
{
    for (guint64 i = 0; list != NULL && i < count; i++)
        if (list[i] != NULL)
            events->queues->event_free(events->device, list[i]);
    g_free(list);
}

void op_events_free(OpEvents *events)
{
    if (events == NULL)
        return;
    free_list(events, events->done[0], events->num_ops);
    free_list(events, events->done[1], events->num_ops);
    free_list(events, events->joined, events->program->streams->len);
    free_list(events, events->timer, 2 * (guint64)events->num_ops + 1);
    g_free(events);
}

/* ---- a step ---- */

/* Of op @number, @back steps ago; the first step has none before it. */
static void wait_one(OpEvents *events, guint64 step, guint back, guint32 number, guint stream)
{
    if (step >= events->first_step + back)
        events->queues->wait(events->device, stream, events->done[(step - back) & 1][number]);
}

void op_events_wait(OpEvents *events, guint64 step, const Call *call, guint i)
{
    const CallList *list = &events->program->step;
    const Op *op = &program_segment(events->program, call->segment)->ops[i];
    const guint c = (guint)(call - &g_array_index(list->calls, Call, 0));

    for (guint w = 0; w < call->num_waits; w++) {
        const Wait *wait = &g_array_index(list->waits, Wait, call->first_wait + w);

        if (wait->before == i)
            wait_one(events, step, wait->back, wait_event(events->first_op, wait), op->stream);
    }
    for (guint w = 0; w < op->num_waits; w++)
        wait_one(events, step, 0, events->first_op[c] + op->waits[w], op->stream);
}

void op_events_record(OpEvents *events, guint64 step, guint32 number, guint stream)
{
    DeviceEvent *event = events->done[step & 1][number];

    if (event != NULL)
        events->queues->record(events->device, stream, event);
}

void op_events_join(OpEvents *events)
{
    for (guint s = 0; s < events->program->streams->len; s++) {
        if (s == COMPUTE_STREAM)
            continue;
        events->queues->record(events->device, s, events->joined[s]);
        events->queues->wait(events->device, COMPUTE_STREAM, events->joined[s]);
    }
}

void op_events_fork(OpEvents *events)
{
    DeviceEvent *begin = events->joined[COMPUTE_STREAM];

    events->queues->record(events->device, COMPUTE_STREAM, begin);
    for (guint s = 0; s < events->program->streams->len; s++)
        if (s != COMPUTE_STREAM)
            events->queues->wait(events->device, s, begin);
}

void op_events_begin_at(OpEvents *events, guint64 step)
{
    events->first_step = step;
}

gboolean op_events_sync(OpEvents *events, GError **error)
{
    for (guint s = 0; s < events->program->streams->len; s++)
        if (!events->queues->sync(events->device, s, error))
            return FALSE;
    return TRUE;
}

/* ---- sampled steps ---- */

gboolean op_events_sample(OpEvents *events, GError **error)
{
    const guint64 count = 2 * (guint64)events->num_ops + 1;

    if (events->timer == NULL)
        events->timer = g_new0(DeviceEvent *, count);
    for (guint64 i = 0; i < count; i++) {
        if (events->timer[i] == NULL)
            events->timer[i] = events->queues->event_new(events->device, TRUE, error);
        if (events->timer[i] == NULL)
            return FALSE;
    }
    events->queues->record(events->device, COMPUTE_STREAM, events->timer[count - 1]);
    return TRUE;
}

void op_events_begin(OpEvents *events, guint32 number, guint stream)
{
    events->queues->record(events->device, stream, events->timer[2 * (guint64)number]);
}

void op_events_end(OpEvents *events, guint32 number, guint stream)
{
    events->queues->record(events->device, stream, events->timer[2 * (guint64)number + 1]);
}

void op_events_time(OpEvents *events, guint32 number, double *start_s, double *end_s)
{
    DeviceEvent **timer = events->timer;
    DeviceEvent *step = timer[2 * (guint64)events->num_ops];

    *start_s = events->queues->seconds(events->device, step, timer[2 * (guint64)number]);
    *end_s = events->queues->seconds(events->device, step, timer[2 * (guint64)number + 1]);
}
