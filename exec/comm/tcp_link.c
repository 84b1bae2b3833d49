#include "exec/comm/tcp_link.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FRAME_VERSION = 1 };
static const char magic[] = "fsdp-run";

FrameHead tcp_frame(FrameKind kind, gsize bytes)
{
    FrameHead head = {.version = FRAME_VERSION, .kind = kind, .bytes = bytes};

    memcpy(head.magic, magic, sizeof head.magic);
    return head;
}

gboolean tcp_frame_is_valid(const FrameHead *head)
{
    return memcmp(head->magic, magic, sizeof head->magic) == 0 && head->version == FRAME_VERSION &&
           head->kind >= FRAME_HELLO && head->kind <= FRAME_STOP && head->bytes <= TCP_MAX_BYTES;
}

/* ---- sockets ---- */

static void set(int fd, int level, int name, int value)
{
    setsockopt(fd, level, name, &value, sizeof value);
}

void tcp_prepare(int fd)
{
    enum { IDLE_S = 10, INTERVAL_S = 5, PROBES = 3 };

    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, IDLE_S);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, INTERVAL_S);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, PROBES);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (IDLE_S + INTERVAL_S * PROBES) * 1000);
}

void tcp_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

gssize tcp_send_some(int fd, const void *data, gsize bytes, gboolean more)
{
    gssize sent;

    do
        sent = send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0));
    while (sent < 0 && errno == EINTR);
    return sent;
}

gssize tcp_receive_some(int fd, void *data, gsize bytes)
{
    gssize got;

    do
        got = recv(fd, data, bytes, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    return got;
}

/* ---- the end ---- */

void tcp_stop(int fd, const TcpStop *stop)
{
    const FrameHead head = tcp_frame(FRAME_STOP, sizeof *stop);

    if (tcp_send_some(fd, &head, sizeof head, TRUE) == (gssize)sizeof head)
        tcp_send_some(fd, stop, sizeof *stop, FALSE);
}

static gboolean skip(int fd, guint64 bytes)
{
    char scrap[4096];

    while (bytes > 0) {
        const gssize got = tcp_receive_some(fd, scrap, MIN(bytes, sizeof scrap));

        if (got <= 0)
            return FALSE;
        bytes -= (guint64)got;
    }
    return TRUE;
}

/* Whoever stops sends whole frames, and nothing after the last one. */
gboolean tcp_last_words(int fd, TcpStop *stop)
{
    FrameHead head;

    while (tcp_receive_some(fd, &head, sizeof head) == (gssize)sizeof head) {
        if (!tcp_frame_is_valid(&head))
            return FALSE;
        if (head.kind == FRAME_STOP)
            return head.bytes == sizeof *stop &&
                   tcp_receive_some(fd, stop, sizeof *stop) == (gssize)sizeof *stop;
        if (!skip(fd, head.bytes))
            return FALSE;
    }
    return FALSE;
}

/* ---- names ---- */

char *tcp_link_name(const TcpLink *link)
{
    return g_strdup_printf("rank %u (pid %d on host %s)", link->rank, link->pid, link->host);
}

void tcp_tidy(char *text, gsize bytes)
{
    text[bytes - 1] = '\0';
    for (char *at = text; *at != '\0'; at++)
        if (!g_ascii_isprint(*at))
            *at = '?';
}
