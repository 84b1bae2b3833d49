/* A socket that listens at a port of this machine which no other process has. */
#pragma once

#include <arpa/inet.h>
#include <check.h>
#include <glib.h>
#include <netinet/in.h>
#include <sys/socket.h>

static inline int listen_somewhere(guint *port)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof here;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)(void *)&here, bytes), 0);
    ck_assert_int_eq(listen(fd, 16), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)(void *)&here, &bytes), 0);
    *port = ntohs(here.sin_port);
    return fd;
}
