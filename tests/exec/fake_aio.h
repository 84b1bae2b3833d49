/* The calls of libaio that storage makes, with what a kernel and a disk may answer put in between.
 * Defined in a test, they come before the library's. */
#pragma once

#include "exec/run/block_io.h"

#include <dlfcn.h>
#include <errno.h>
#include <libaio.h>

typedef struct {
    int setup;           /* what io_setup() returns, where that is no 0 */
    guint again;         /* calls of io_submit() that have no room */
    guint interrupted;   /* calls of io_getevents() that a signal ends */
    gboolean parts;      /* every other request of several blocks is not done to the end */
    guint fails;         /* the request that fails, counted from 1 */
    int why;             /* -errno, or 0: the end of the file */
    void (*waits)(void); /* called before each wait for the disk */
    guint begun, flight, most_flight;
    gsize most_bytes;
} FakeAio;

static FakeAio fake_aio;

#define REAL(name) ((__typeof__(&name))(gpointer)dlsym(RTLD_NEXT, #name))

int io_setup(int most, io_context_t *context)
{
    return fake_aio.setup != 0 ? fake_aio.setup : REAL(io_setup)(most, context);
}

int io_submit(io_context_t context, long count, struct iocb *list[])
{
    struct iocb *request = list[0];

    g_assert(count == 1);
    if (fake_aio.again > 0) {
        fake_aio.again--;
        return -EAGAIN;
    }
    fake_aio.begun++;
    fake_aio.most_bytes = MAX(fake_aio.most_bytes, request->u.c.nbytes);
    if (fake_aio.parts && fake_aio.begun % 2 == 0 && request->u.c.nbytes > BLOCK_BYTES)
        request->u.c.nbytes -= BLOCK_BYTES / 2;
    request->data = GUINT_TO_POINTER(fake_aio.begun);
    fake_aio.flight++;
    fake_aio.most_flight = MAX(fake_aio.most_flight, fake_aio.flight);
    return REAL(io_submit)(context, count, list);
}

int io_getevents(io_context_t context, long least, long most, struct io_event *events,
                 struct timespec *timeout)
{
    if (fake_aio.interrupted > 0) {
        fake_aio.interrupted--;
        return -EINTR;
    }
    if (fake_aio.waits != NULL)
        fake_aio.waits();
    const int status = REAL(io_getevents)(context, least, most, events, timeout);
    g_assert(status == 1);
    fake_aio.flight--;
    if (fake_aio.fails != 0 && GPOINTER_TO_UINT(events->data) == fake_aio.fails)
        events->res = (unsigned long)fake_aio.why;
    return status;
}
