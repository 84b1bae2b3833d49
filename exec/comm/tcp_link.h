/* Connections between ranks, and the frames that go over them: a head, then bytes. */
#pragma once

#include <glib.h>

typedef enum {
    FRAME_HELLO = 1, /* TcpHello, of who comes */
    FRAME_WELCOME,   /* TcpWelcome, of rank 0 once all have come */
    FRAME_VALUE,     /* gint64, of agree_max() */
    FRAME_BYTES,     /* of gather_bytes() */
    FRAME_STOP,      /* TcpStop: the job ends */
} FrameKind;

typedef struct {
    char magic[8];
    guint32 version, kind;
    guint64 bytes; /* that follow */
} FrameHead;

enum { TCP_NAME_BYTES = 64, TCP_TEXT_BYTES = 512, TCP_MAX_BYTES = 1 << 30 };

typedef struct {
    gint32 status; /* of DESIGN 5 */
    char text[TCP_TEXT_BYTES];
} TcpStop;

/* Who is at the other end. */
typedef struct {
    int fd; /* does not block; -1: closed */
    guint rank;
    gint32 pid;
    char host[TCP_NAME_BYTES];
} TcpLink;

FrameHead tcp_frame(FrameKind kind, gsize bytes);
/* One of ours, no longer than TCP_MAX_BYTES. */
gboolean tcp_frame_is_valid(const FrameHead *head);

/* A socket as all of ours are: does not block, does not wait to fill packets, and finds a peer that
 * vanished with its machine. */
void tcp_prepare(int fd);
void tcp_close(int *fd);

/* As much of @bytes as goes without waiting; -1 and errno when none does.  @more: other data
 * follows at once. */
gssize tcp_send_some(int fd, const void *data, gsize bytes, gboolean more);
/* The same of receiving; 0: the other end is closed. */
gssize tcp_receive_some(int fd, void *data, gsize bytes);

/* A frame that fits into any socket's buffer; what does not go at once is lost. */
void tcp_stop(int fd, const TcpStop *stop);
/* What is left to read of an end that is closed: TRUE when it said why. */
gboolean tcp_last_words(int fd, TcpStop *stop);

/* "rank 1 (pid 7 on host n3)"; the caller's. */
char *tcp_link_name(const TcpLink *link);
/* Text from another process, as it may be shown: ended, and without control characters. */
void tcp_tidy(char *text, gsize bytes);
