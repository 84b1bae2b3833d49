/* Rank 0 listens and takes whoever says Hello as a rank of this job; once all have come it welcomes
 * them.  The others try again until it listens.  Nobody is waited for alone: a stranger that says
 * nothing holds nobody up. */
#define _GNU_SOURCE 1 /* POLLRDHUP */
#include "exec/comm/tcp_meeting.h"

#include "exec/base/process.h"
#include "sim/base/error.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define STRANGER_S 10.0 /* to say Hello in */
#define LINGER_S   3.0  /* to tell those that come late why there will be no job */
#define ANSWER_S   5.0  /* longer than rank 0 waits for others */
#define TRY_S      5.0  /* one attempt to connect */

enum { MAX_GUESTS = 256, JOB_BYTES = 256, FIRST_PAUSE_MS = 20, LAST_PAUSE_MS = 500 };

typedef struct {
    guint32 rank, size;
    gint32 pid;
    char host[TCP_NAME_BYTES];
    char machine[2 * TCP_NAME_BYTES]; /* equal on ranks that share one */
    char job[JOB_BYTES];
} TcpHello;

enum { HELLO_BYTES = sizeof(FrameHead) + sizeof(TcpHello) }; /* with its head */

typedef struct {
    gint32 pid;
    guint32 node_ranks;
    char host[TCP_NAME_BYTES];
} TcpWelcome;

/* ---- what both sides say ---- */

/* Containers of one machine have their own host names, and GPUs. */
static TcpHello hello_of(const CommRendezvous *how)
{
    TcpHello hello = {.rank = how->rank, .size = how->size, .pid = getpid()};
    g_autofree char *boot = NULL;

    if (g_file_get_contents("/proc/sys/kernel/random/boot_id", &boot, NULL, NULL))
        g_strchomp(boot);
    g_strlcpy(hello.host, g_get_host_name(), sizeof hello.host);
    g_snprintf(hello.machine, sizeof hello.machine, "%s %s", g_get_host_name(),
               boot == NULL ? "" : boot);
    g_strlcpy(hello.job, how->job, sizeof hello.job);
    return hello;
}

static double deadline_of(const CommRendezvous *how)
{
    return how->limit_s == 0 ? G_MAXDOUBLE : clock_s() + how->limit_s;
}

/* For poll(): until @end_s, but to look again within a second in any case. */
static int wait_ms(double end_s)
{
    const double left_s = end_s - clock_s();

    return (int)(1e3 * CLAMP(left_s, 0.0, 1.0)) + 1;
}

/* ---- rank 0 ---- */

/* Whoever has connected and not yet said Hello. */
typedef struct {
    int fd;
    double since_s;
    gsize got;
    struct {
        FrameHead head;
        TcpHello hello;
    } said;
    char from[INET6_ADDRSTRLEN];
} Guest;

typedef struct {
    const CommRendezvous *how;
    TcpHello own;
    int listener;
    GArray *guests;                       /* Guest */
    TcpLink *links;                       /* by rank - 1; fd -1: has not come */
    char (*machines)[2 * TCP_NAME_BYTES]; /* by rank */
    guint missing;
    GArray *polled; /* struct pollfd: the listener, guests, links */
} Host;

static void host_clear(Host *host)
{
    tcp_close(&host->listener);
    for (guint g = 0; g < host->guests->len; g++)
        tcp_close(&g_array_index(host->guests, Guest, g).fd);
    for (guint r = 1; host->links != NULL && r < host->how->size; r++)
        tcp_close(&host->links[r - 1].fd);
    g_array_unref(host->guests);
    g_array_unref(host->polled);
    g_free(host->links);
    g_free(host->machines);
}

/* A connection a rank, and whatever else is open. */
static void allow_files(guint num)
{
    enum { OTHERS = 512 };
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= num + OTHERS)
        return;
    limit.rlim_cur = MIN(limit.rlim_max, (rlim_t)num + OTHERS);
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* All addresses of this machine, of both families where there are both. */
static int listen_at(int family, guint port)
{
    const struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((guint16)port)};
    const struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((guint16)port)};
    const int yes = 1, no = 0;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    const int bound = family == AF_INET6
                          ? bind(fd, (const struct sockaddr *)(const void *)&six, sizeof six)
                          : bind(fd, (const struct sockaddr *)(const void *)&four, sizeof four);
    if (bound == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    const int why = errno;
    tcp_close(&fd);
    errno = why;
    return -1;
}

static gboolean open_listener(Host *host, GError **error)
{
    const guint port = host->how->port;

    host->listener = host->how->listener;
    if (host->listener < 0)
        host->listener = listen_at(AF_INET6, port);
    if (host->listener < 0 && errno != EADDRINUSE)
        host->listener = listen_at(AF_INET, port);
    return (host->listener >= 0 && fcntl(host->listener, F_SETFL, O_NONBLOCK) == 0) ||
           fail(error, ERROR_RUNTIME, "rank 0 can't wait for the others at port %u of host %s: %s",
                port, g_get_host_name(), g_strerror(errno));
}

static void drop_guest(Host *host, guint g)
{
    tcp_close(&g_array_index(host->guests, Guest, g).fd);
    g_array_remove_index(host->guests, g);
}

static void drop_stranger(Host *host, guint g)
{
    fprintf(stderr, "fsdp-run: rank 0: what connected from %s is no rank of this job: ignored\n",
            g_array_index(host->guests, Guest, g).from);
    drop_guest(host, g);
}

static void accept_all(Host *host)
{
    struct sockaddr_storage from;
    socklen_t bytes = sizeof from;
    Guest guest = {.since_s = clock_s()};

    while ((guest.fd = accept(host->listener, (struct sockaddr *)(void *)&from, &bytes)) >= 0) {
        getnameinfo((const struct sockaddr *)(const void *)&from, bytes, guest.from,
                    sizeof guest.from, NULL, 0, NI_NUMERICHOST);
        tcp_prepare(guest.fd);
        if (host->guests->len == MAX_GUESTS)
            drop_stranger(host, 0);
        g_array_append_val(host->guests, guest);
        bytes = sizeof from;
    }
}

/* Why the guest can't be a rank of this job; NULL: it is one. */
static char *objection(const Host *host, const TcpHello *hello)
{
    const CommRendezvous *how = host->how;

    if (hello->size != how->size || hello->rank == 0 || hello->rank >= how->size)
        return g_strdup_printf("pid %d on host %s says that it is rank %u of %u, and rank 0 (pid "
                               "%d on host %s) that there are %u",
                               hello->pid, hello->host, hello->rank, hello->size, host->own.pid,
                               host->own.host, how->size);
    const TcpLink *other = &host->links[hello->rank - 1];
    if (other->fd >= 0)
        return g_strdup_printf("two processes say that they are rank %u: pid %d on host %s and pid "
                               "%d on host %s",
                               hello->rank, other->pid, other->host, hello->pid, hello->host);
    if (strcmp(hello->job, host->own.job) != 0)
        return g_strdup_printf("rank %u (pid %d on host %s) runs %s, rank 0 %s", hello->rank,
                               hello->pid, hello->host, hello->job, host->own.job);
    return NULL;
}

/* All who have come, and who come within some seconds, are told. */
static gboolean call_off(Host *host, ErrorCode code, const char *why, GError **error)
{
    const GError cause = {.domain = ERROR_DOMAIN, .code = (int)code};
    TcpStop stop = {.status = error_exit_status(&cause)};
    const double end_s = clock_s() + (code == ERROR_INPUT ? LINGER_S : 0.0);

    g_strlcpy(stop.text, why, sizeof stop.text);
    for (guint r = 1; r < host->how->size; r++)
        if (host->links[r - 1].fd >= 0)
            tcp_stop(host->links[r - 1].fd, &stop);
    do {
        struct pollfd door = {.fd = host->listener, .events = POLLIN};

        accept_all(host);
        while (host->guests->len > 0) {
            tcp_stop(g_array_index(host->guests, Guest, 0).fd, &stop);
            drop_guest(host, 0);
        }
        poll(&door, 1, wait_ms(end_s));
    } while (clock_s() < end_s);
    return fail(error, code, "%s", why);
}

static gboolean join_guest(Host *host, guint g, GError **error)
{
    Guest *guest = &g_array_index(host->guests, Guest, g);
    TcpHello *hello = &guest->said.hello;

    tcp_tidy(hello->host, sizeof hello->host);
    tcp_tidy(hello->machine, sizeof hello->machine);
    tcp_tidy(hello->job, sizeof hello->job);
    g_autofree char *why = objection(host, hello);
    if (why != NULL)
        return call_off(host, ERROR_INPUT, why, error);
    TcpLink *link = &host->links[hello->rank - 1];
    *link = (TcpLink){.fd = guest->fd, .rank = hello->rank, .pid = hello->pid};
    memcpy(link->host, hello->host, sizeof link->host);
    memcpy(host->machines[hello->rank], hello->machine, sizeof hello->machine);
    host->missing--;
    guest->fd = -1;
    drop_guest(host, g);
    return TRUE;
}

/* *gone: it is no longer among the guests. */
static gboolean hear_guest(Host *host, guint g, gboolean *gone, GError **error)
{
    Guest *guest = &g_array_index(host->guests, Guest, g);
    char *said = (char *)&guest->said;
    const gssize got = tcp_receive_some(guest->fd, said + guest->got, HELLO_BYTES - guest->got);
    const FrameHead *head = &guest->said.head;

    *gone = FALSE;
    guest->got += got > 0 ? (gsize)got : 0;
    const gboolean is_head = guest->got >= sizeof *head;
    if (is_head && tcp_frame_is_valid(head) && head->kind == FRAME_HELLO &&
        head->bytes == sizeof(TcpHello) && guest->got == HELLO_BYTES) {
        *gone = TRUE;
        return join_guest(host, g, error);
    }
    const FrameHead own = tcp_frame(FRAME_HELLO, sizeof(TcpHello));
    const gboolean rubbish = memcmp(head, &own, MIN(guest->got, sizeof own)) != 0;
    const gboolean over = got == 0 || (got < 0 && errno != EAGAIN);
    if (rubbish || over || clock_s() - guest->since_s > STRANGER_S) {
        drop_stranger(host, g);
        *gone = TRUE;
    }
    return TRUE;
}

static gboolean hear_all(Host *host, GError **error)
{
    for (guint g = 0; g < host->guests->len;) {
        gboolean gone;

        if (!hear_guest(host, g, &gone, error))
            return FALSE;
        g += gone ? 0 : 1;
    }
    return TRUE;
}

static void add_polled(Host *host, int fd, short events)
{
    const struct pollfd polled = {.fd = fd, .events = events};

    g_array_append_val(host->polled, polled);
}

/* Until something comes; FALSE when a rank that had come has gone. */
static gboolean await_any(Host *host, double end_s, GError **error)
{
    g_array_set_size(host->polled, 0);
    for (guint r = 1; r < host->how->size; r++)
        add_polled(host, host->links[r - 1].fd, POLLRDHUP);
    add_polled(host, host->listener, POLLIN);
    for (guint g = 0; g < host->guests->len; g++)
        add_polled(host, g_array_index(host->guests, Guest, g).fd, POLLIN);
    poll((struct pollfd *)(void *)host->polled->data, host->polled->len, wait_ms(end_s));
    for (guint r = 1; r < host->how->size; r++) {
        if (host->links[r - 1].fd < 0 ||
            g_array_index(host->polled, struct pollfd, r - 1).revents == 0)
            continue;
        g_autofree char *name = tcp_link_name(&host->links[r - 1]);
        g_autofree char *why = g_strdup_printf("%s ended before all ranks had come", name);
        return call_off(host, ERROR_RUNTIME, why, error);
    }
    return TRUE;
}

static gboolean too_late(Host *host, GError **error)
{
    enum { NAMED = 8 };
    const CommRendezvous *how = host->how;
    g_autoptr(GString) why = g_string_new(NULL);
    guint named = 0;

    for (guint r = 1; r < how->size; r++)
        if (host->links[r - 1].fd < 0 && named++ < NAMED)
            g_string_append_printf(why, "%s%u", named == 1 ? "" : ", ", r);
    if (named > NAMED)
        g_string_append_printf(why, " and %u more", named - NAMED);
    g_string_prepend(why, named == 1 ? "rank " : "ranks ");
    g_string_append_printf(why, " did not come to %s, port %u, within %u s", how->host, how->port,
                           how->limit_s);
    return call_off(host, ERROR_RUNTIME, why->str, error);
}

static guint count_machine(const Host *host, guint rank)
{
    guint count = 0;

    for (guint r = 0; r < host->how->size; r++)
        count += strcmp(host->machines[r], host->machines[rank]) == 0;
    return count;
}

static void welcome_all(Host *host, TcpMeeting *meeting)
{
    const FrameHead head = tcp_frame(FRAME_WELCOME, sizeof(TcpWelcome));
    TcpWelcome welcome = {.pid = host->own.pid};

    memcpy(welcome.host, host->own.host, sizeof welcome.host);
    for (guint r = 1; r < host->how->size; r++) {
        welcome.node_ranks = count_machine(host, r);
        tcp_send_some(host->links[r - 1].fd, &head, sizeof head, TRUE);
        tcp_send_some(host->links[r - 1].fd, &welcome, sizeof welcome, FALSE);
    }
    *meeting = (TcpMeeting){.links = g_steal_pointer(&host->links),
                            .num = host->how->size - 1,
                            .node_ranks = count_machine(host, 0)};
}

static gboolean gather_ranks(Host *host, GError **error)
{
    const double end_s = deadline_of(host->how);

    if (!open_listener(host, error))
        return FALSE;
    while (host->missing > 0) {
        if (clock_s() > end_s)
            return too_late(host, error);
        if (!await_any(host, end_s, error))
            return FALSE;
        accept_all(host);
        if (!hear_all(host, error))
            return FALSE;
    }
    return TRUE;
}

static gboolean meet_as_host(const CommRendezvous *how, TcpMeeting *meeting, GError **error)
{
    Host host = {.how = how, .own = hello_of(how), .listener = -1, .missing = how->size - 1};

    allow_files(how->size);
    host.guests = g_array_new(FALSE, FALSE, sizeof(Guest));
    host.polled = g_array_new(FALSE, FALSE, sizeof(struct pollfd));
    host.links = g_new0(TcpLink, how->size);
    host.machines = g_malloc0_n(how->size, sizeof *host.machines);
    memcpy(host.machines[0], host.own.machine, sizeof host.own.machine);
    for (guint r = 1; r < how->size; r++)
        host.links[r - 1].fd = -1;
    const gboolean ok = gather_ranks(&host, error);
    if (ok)
        welcome_all(&host, meeting);
    host_clear(&host);
    return ok;
}

/* ---- the other ranks ---- */

/* A port nobody listens at, of those that the system gives away, may connect to itself. */
static gboolean is_itself(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_bytes = sizeof here, there_bytes = sizeof there;

    return getsockname(fd, (struct sockaddr *)(void *)&here, &here_bytes) == 0 &&
           getpeername(fd, (struct sockaddr *)(void *)&there, &there_bytes) == 0 &&
           here_bytes == there_bytes && memcmp(&here, &there, here_bytes) == 0;
}

/* A connection, or -1 and errno. */
static int connect_to(const struct addrinfo *address)
{
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int why = errno;

    if (fd < 0)
        return -1;
    if (connect(fd, address->ai_addr, address->ai_addrlen) != 0) {
        struct pollfd polled = {.fd = fd, .events = POLLOUT};
        socklen_t bytes = sizeof why;

        why = errno;
        if (why == EINPROGRESS && poll(&polled, 1, (int)(TRY_S * 1e3)) > 0)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &bytes);
    } else {
        why = 0;
    }
    if (why == 0 && !is_itself(fd))
        return fd;
    tcp_close(&fd);
    errno = why == 0 ? ECONNREFUSED : why == EINPROGRESS ? ETIMEDOUT : why;
    return -1;
}

/* Each address of that name once.  @why: what a message may say of the last failure. */
static int connect_once(const CommRendezvous *how, const char **why)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *addresses = NULL;
    char port[8];
    int fd = -1;

    g_snprintf(port, sizeof port, "%u", how->port);
    const int status = getaddrinfo(how->host, port, &hints, &addresses);
    if (status != 0) {
        *why = gai_strerror(status);
        return -1;
    }
    for (const struct addrinfo *at = addresses; at != NULL && fd < 0; at = at->ai_next)
        fd = connect_to(at);
    if (fd < 0)
        *why = g_strerror(errno);
    freeaddrinfo(addresses);
    return fd;
}

static int connect_in_time(const CommRendezvous *how, double end_s, GError **error)
{
    const char *why = "";
    gulong pause_ms = FIRST_PAUSE_MS;

    for (;;) {
        const int fd = connect_once(how, &why);

        if (fd >= 0)
            return fd;
        if (clock_s() > end_s)
            break;
        g_usleep(1000 * pause_ms);
        pause_ms = MIN(2 * pause_ms, LAST_PAUSE_MS);
    }
    fail(error, ERROR_RUNTIME,
         "nobody waits at %s, port %u, as rank 0 of this job, within %u s: %s", how->host,
         how->port, how->limit_s, why);
    return -1;
}

static gboolean read_all(int fd, void *data, gsize bytes, double end_s)
{
    for (gsize done = 0; done < bytes;) {
        struct pollfd polled = {.fd = fd, .events = POLLIN};
        const gssize got = tcp_receive_some(fd, (char *)data + done, bytes - done);

        if (got == 0 || (got < 0 && errno != EAGAIN) || clock_s() > end_s)
            return FALSE;
        done += got > 0 ? (gsize)got : 0;
        if (got < 0)
            poll(&polled, 1, wait_ms(end_s));
    }
    return TRUE;
}

/* Welcome, or the reason why not. */
static gboolean hear_answer(const CommRendezvous *how, int fd, double end_s, TcpWelcome *welcome,
                            GError **error)
{
    FrameHead head;
    TcpStop stop;
    const gboolean is_head = read_all(fd, &head, sizeof head, end_s);
    const gboolean ours = is_head && tcp_frame_is_valid(&head);

    if (ours && head.kind == FRAME_STOP && head.bytes == sizeof stop &&
        read_all(fd, &stop, sizeof stop, end_s)) {
        tcp_tidy(stop.text, sizeof stop.text);
        return fail(error, stop.status == 2 ? ERROR_INPUT : ERROR_RUNTIME, "%s", stop.text);
    }
    if (ours && head.kind == FRAME_WELCOME && head.bytes == sizeof *welcome &&
        read_all(fd, welcome, sizeof *welcome, end_s)) {
        tcp_tidy(welcome->host, sizeof welcome->host);
        return TRUE;
    }
    if (is_head && !ours)
        return fail(error, ERROR_RUNTIME, "what answers at %s, port %u, is no rank 0 of fsdp-run",
                    how->host, how->port);
    return fail(error, ERROR_RUNTIME, "rank 0 at %s, port %u, %s before all ranks had come",
                how->host, how->port, clock_s() > end_s ? "went silent" : "ended");
}

static gboolean meet_as_guest(const CommRendezvous *how, TcpMeeting *meeting, GError **error)
{
    const double end_s = deadline_of(how);
    const FrameHead head = tcp_frame(FRAME_HELLO, sizeof(TcpHello));
    const TcpHello hello = hello_of(how);
    TcpWelcome welcome;
    int fd = connect_in_time(how, end_s, error);

    if (fd < 0)
        return FALSE;
    tcp_prepare(fd);
    /* An end that is closed already may have said why. */
    tcp_send_some(fd, &head, sizeof head, TRUE);
    tcp_send_some(fd, &hello, sizeof hello, FALSE);
    if (!hear_answer(how, fd, end_s + ANSWER_S, &welcome, error)) {
        tcp_close(&fd);
        return FALSE;
    }
    *meeting =
        (TcpMeeting){.links = g_new0(TcpLink, 1), .num = 1, .node_ranks = welcome.node_ranks};
    meeting->links[0] = (TcpLink){.fd = fd, .rank = 0, .pid = welcome.pid};
    memcpy(meeting->links[0].host, welcome.host, sizeof welcome.host);
    return TRUE;
}

gboolean tcp_meet(const CommRendezvous *how, TcpMeeting *meeting, GError **error)
{
    g_assert(how->rank < how->size);
    return how->rank == 0 ? meet_as_host(how, meeting, error) : meet_as_guest(how, meeting, error);
}

void tcp_meeting_clear(TcpMeeting *meeting)
{
    for (guint i = 0; i < meeting->num; i++)
        tcp_close(&meeting->links[i].fd);
    g_clear_pointer(&meeting->links, g_free);
}
