/* Capture of streams into graphs, for stream.c and event.c. */
#pragma once

#include "tests/cudasim/stream.h"

/* Where an event was recorded while its stream was capturing. */
typedef struct {
    CsCapture *capture;
    GArray *after;
} CsCapturePoint;

/* Adds an op to the capture of @stream; takes it. */
void cs_capture_op(CsStream *stream, CsOp *op);

/* An event that is recorded or awaited at each launch, in or by the world outside the graph. */
void cs_capture_external(CsStream *stream, cudaEvent_t event, gboolean record);

void cs_capture_record(const CsStream *stream, CsCapturePoint *point);
/* FALSE: they belong to different captures. */
gboolean cs_capture_wait(CsStream *stream, const CsCapturePoint *point);
void cs_capture_point_clear(CsCapturePoint *point);

/* Whether any stream captures; and makes every capture that goes on end in an error. */
gboolean cs_capture_is_active(void);
void cs_capture_spoil(void);
