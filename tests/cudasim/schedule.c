/* Which op runs next.  An op may run when it is the first of its stream and, if it waits for an
 * event, that has happened.  Everything else is chance, or malice. */
#include "tests/cudasim/memory.h"
#include "tests/cudasim/stream.h"
#include <unistd.h>

/* A collective gives its peers this long before other streams go on, so that the order depends on
 * the seed more than on the peers' speed.  One that has waited for them is asked briefly. */
#define PATIENCE_S 0.02
#define GLANCE_S   0.0002

/* The host is thought to do something else when it has not called for so long: long enough that the
 * seed decides, and not the speed of the machine. */
#define IDLE_US 100000

static gboolean scheduling; /* an op runs */

/* ---- choice ---- */

static gboolean is_better(CsPolicy policy, const CsStream *stream, const CsStream *best)
{
    switch (policy) {
    case CS_FIFO:
        return stream->first->sequence < best->first->sequence;
    case CS_LIFO:
        return stream->first->sequence > best->first->sequence;
    default:
        return stream->priority > best->priority;
    }
}

/* One of the streams that can go on, without those in the bits of @except; NULL if there is none.
 */
static CsStream *choose(guint32 except)
{
    CsStream *ready[CS_STREAMS], *best;
    guint count = 0;

    for (int i = 0; i < CS_STREAMS; i++) {
        CsStream *stream = &cs_streams[i];
        if (stream->first != NULL && (except >> i & 1) == 0 && !cs_op_must_wait(stream->first))
            ready[count++] = stream;
    }
    if (count == 0)
        return NULL;
    if (cs_settings.policy == CS_RANDOM)
        return ready[cs_random() % count];
    best = ready[0];
    for (guint i = 1; i < count; i++)
        if (is_better(cs_settings.policy, ready[i], best))
            best = ready[i];
    /* Probabilistic concurrency testing (Burckhardt et al., ASPLOS 2010) demotes now and then. */
    if (cs_settings.policy == CS_PCT && cs_random() % 16 == 0)
        best->priority = (int)(cs_random() % 1000) - 1000;
    return best;
}

/* ---- running ---- */

static void begin(CsStream *stream, CsOp *op)
{
    if (op->id == 0) {
        guint own = op->stream + 1;
        cs_clock_join(&stream->clock, &op->queued_at);
        stream->clock.at[own]++;
        op->id = cs_race_op(&stream->clock, own, op->name);
    }
    cs_race_enter(op->id);
    cs_memory_open();
    scheduling = TRUE;
}

static void finish(void)
{
    scheduling = FALSE;
    cs_memory_close();
    cs_race_enter(0);
}

static void run(CsStream *stream)
{
    CsOp *op = stream->first;

    begin(stream, op);
    cs_time_us += 1;
    op->kind->run(op);
    finish();
    stream->first = op->next;
    if (stream->first == NULL) {
        stream->last = NULL;
        stream->used = !stream->dying;
    }
    cs_op_free(op);
}

static gboolean poll(CsStream *stream)
{
    CsOp *op = stream->first;
    gboolean ready;

    begin(stream, op);
    ready = op->kind->poll(op, op->polled ? GLANCE_S : PATIENCE_S);
    op->polled = TRUE;
    finish();
    return ready;
}

static void begin_first_half(CsStream *stream)
{
    CsOp *op = stream->first;

    begin(stream, op);
    op->started = TRUE;
    op->kind->start(op);
    finish();
}

/* Streams whose collective waits for other processes are added to @stalled. */
static gboolean run_one(guint32 *stalled)
{
    CsStream *stream;

    while ((stream = choose(*stalled)) != NULL) {
        const CsOp *op = stream->first;
        if (op->kind->start != NULL && !op->started) {
            begin_first_half(stream);
            return TRUE;
        }
        if (op->kind->poll == NULL || poll(stream)) {
            run(stream);
            return TRUE;
        }
        *stalled |= 1u << (stream - cs_streams);
    }
    return FALSE;
}

gboolean cs_schedule_one(void)
{
    guint32 stalled = 0;

    return run_one(&stalled);
}

void cs_schedule_some(void)
{
    if (scheduling || cs_settings.eager_percent == 0)
        return;
    while (cs_random() % 100 < cs_settings.eager_percent && cs_schedule_one())
        continue;
}

static gpointer run_while_idle(gpointer unused)
{
    guint64 calls = 0;

    (void)unused;
    for (;;) {
        g_usleep(IDLE_US);
        cs_enter();
        while (cs_num_calls() == calls + 1 && cs_schedule_one())
            continue;
        calls = cs_num_calls();
        cs_leave(cudaSuccess);
    }
    return NULL;
}

void cs_schedule_in_background(void)
{
    static gboolean running;

    if (!running)
        g_thread_unref(g_thread_new("cudasim", run_while_idle, NULL));
    running = TRUE;
}

/* ---- waiting ---- */

static void report_stuck(void)
{
    g_autoptr(GString) where = g_string_new(NULL);

    for (int i = 0; i < CS_STREAMS; i++)
        if (cs_streams[i].first != NULL)
            g_string_append_printf(where, ", stream %d is at %s", i, cs_streams[i].first->name);
    cs_report(CS_DEADLOCK, "the host waits, but no stream can go on%s", where->str);
    _exit(97);
}

/* Ends the collectives that nobody joins: they report it. */
static void give_up(guint32 stalled)
{
    for (int i = 0; i < CS_STREAMS; i++)
        if ((stalled >> i & 1) != 0)
            run(&cs_streams[i]);
}

void cs_schedule_until(gboolean (*over)(const void *of), const void *of)
{
    gint64 stalled_since = 0;

    cs_memory_open();
    while (!over(of)) {
        guint32 stalled = 0;
        if (run_one(&stalled)) {
            stalled_since = 0;
            continue;
        }
        if (stalled == 0)
            report_stuck();
        gint64 now = g_get_monotonic_time();
        stalled_since = stalled_since == 0 ? now : stalled_since;
        if ((double)(now - stalled_since) * 1e-6 > cs_settings.timeout_s)
            give_up(stalled);
        else
            cs_breathe(GLANCE_S);
    }
    cs_memory_close();
}

static gboolean is_idle(const void *stream)
{
    return ((const CsStream *)stream)->first == NULL;
}

static gboolean is_done(const void *token)
{
    return ((const CsToken *)token)->done;
}

static guint host_waits;

guint cudasim_host_waits(void)
{
    return host_waits;
}

void cs_wait_stream(CsStream *stream)
{
    host_waits++;
    cs_host_advance();
    cs_schedule_until(is_idle, stream);
    cs_host_joins(&stream->clock);
    cs_host_advance();
}

void cs_wait_token(CsToken *token)
{
    host_waits++;
    cs_host_advance();
    cs_token_ref(token);
    cs_schedule_until(is_done, token);
    cs_host_joins(&token->clock);
    cs_token_unref(token);
    cs_host_advance();
}

void cs_wait_all(void)
{
    for (int i = 0; i < CS_STREAMS; i++)
        if (cs_streams[i].used)
            cs_wait_stream(&cs_streams[i]);
}
