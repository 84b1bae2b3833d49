/* How the ranks of a job come together at rank 0. */
#pragma once

#include "exec/comm/comm_tcp.h"
#include "exec/comm/tcp_link.h"

typedef struct {
    TcpLink *links; /* at rank 0: of ranks 1 and up; else that of rank 0 */
    guint num;
    guint node_ranks; /* of this rank's machine */
} TcpMeeting;

/* On failure nothing stays open. */
gboolean tcp_meet(const CommRendezvous *how, TcpMeeting *meeting, GError **error);
void tcp_meeting_clear(TcpMeeting *meeting);
