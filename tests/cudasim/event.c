#include "tests/cudasim/capture.h"
#include "tests/cudasim/graph.h"

struct CUevent_st {
    CsToken *token; /* the last recording */
    gboolean timed;
    CsCapturePoint captured; /* or where it was captured since then */
};

CsToken *cs_event_token(cudaEvent_t event)
{
    return event->token;
}

void cs_event_set_token(cudaEvent_t event, CsToken *token)
{
    cs_token_unref(event->token);
    event->token = token;
    cs_capture_point_clear(&event->captured);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    cs_enter();
    *event = g_new0(struct CUevent_st, 1);
    (*event)->timed = (flags & cudaEventDisableTiming) == 0;
    return cs_leave(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    cs_enter();
    cs_event_set_token(event, NULL);
    g_free(event);
    return cs_leave(cudaSuccess);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned flags)
{
    CsStream *stream;

    cs_enter();
    stream = cs_stream(handle);
    if (stream->capture != NULL && flags == cudaEventRecordExternal) {
        cs_capture_external(stream, event, TRUE);
    } else if (stream->capture != NULL) {
        cs_event_set_token(event, NULL);
        cs_capture_record(stream, &event->captured);
    } else {
        cs_host_advance();
        cs_event_set_token(event, cs_stream_record(stream));
        cs_schedule_some();
    }
    return cs_leave(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

/* A wait that is part of a capture, or would make the stream part of one. */
static cudaError_t wait_captured(CsStream *stream, cudaEvent_t event, unsigned flags)
{
    if (flags == cudaEventWaitExternal && stream->capture != NULL) {
        cs_capture_external(stream, event, FALSE);
        return cudaSuccess;
    }
    if (event->captured.capture == NULL) {
        cs_capture_spoil();
        return cudaErrorStreamCaptureIsolation;
    }
    return cs_capture_wait(stream, &event->captured) ? cudaSuccess : cudaErrorStreamCaptureMerge;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags)
{
    CsStream *stream;

    cs_enter();
    stream = cs_stream(handle);
    if (stream->capture != NULL || event->captured.capture != NULL)
        return cs_leave(wait_captured(stream, event, flags));
    cs_host_advance();
    if (event->token == NULL)
        cs_report(CS_MISUSE, "cudaStreamWaitEvent on an event that was never recorded");
    else
        cs_stream_wait(stream, event->token);
    cs_schedule_some();
    return cs_leave(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cs_enter();
    if (event->captured.capture != NULL)
        return cs_leave(cudaErrorCapturedEvent);
    if (!cs_may_synchronise())
        return cs_leave(cudaErrorStreamCaptureUnsupported);
    cs_schedule_one();
    if (event->token == NULL)
        return cs_leave(cudaSuccess);
    if (!event->token->done)
        return cs_leave(cudaErrorNotReady);
    cs_host_advance();
    cs_host_joins(&event->token->clock);
    return cs_leave(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cs_enter();
    if (event->captured.capture != NULL)
        return cs_leave(cudaErrorCapturedEvent);
    if (event->token != NULL)
        cs_wait_token(event->token);
    return cs_leave(cudaSuccess);
}

/* A simulated microsecond passes with each op of any stream. */
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    cs_enter();
    if (!start->timed || !end->timed || start->token == NULL || end->token == NULL)
        return cs_leave(cudaErrorInvalidResourceHandle);
    if (!start->token->done || !end->token->done)
        return cs_leave(cudaErrorNotReady);
    *milliseconds = (float)((end->token->time_us - start->token->time_us) * 1e-3);
    return cs_leave(cudaSuccess);
}
