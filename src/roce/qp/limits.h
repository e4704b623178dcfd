/* Numbers of the queue-pair engine, their units and reasons. */
#ifndef QP_LIMITS_H
#define QP_LIMITS_H

/* Unacknowledged packets and bytes of a queue pair when the device says nothing: fits a default socket buffer. */
#define QP_WINDOW_PKTS  256u
#define QP_WINDOW_BYTES (256u * 1024u)
/* Packets between two ACK requests within a message. */
#define QP_ACK_EVERY 32u

/* Selective repeat. The ring of received PSNs: a power of two, and the largest window toward such a peer. */
#define QP_SACK_RING 2048u
/* Packets past a gap that a queue pair keeps (a ring: power of two), and that all of an engine's keep together. */
#define QP_REORDER_PKTS     256u
#define QP_REORDER_PKTS_MAX 1024u
#define QP_REORDER_POOL     2048u
/* A packet counts as lost when one that was sent this much later has arrived: mild reorder costs nothing. */
#define QP_REORDER_SLACK 3u

/* READs are asked for in parts, so that their responses fit the window; so many parts are under way at most. */
#define QP_READ_PARTS 4u

/* Payload of the packets of one qp_engine_tx: the packet that reaches it is the last. */
#define QP_BURST_BYTES (1u << 20)

/* QPN[15:0]: 0 and 1 are special, 65535 is multicast's. */
#define QP_NUM_FIRST 2u
#define QP_NUM_END   65535u
/* Management datagrams that wait to be sent. */
#define QP_MAD_QUEUE 64u
/* XRC shared receive queues, members of a multicast group and groups of one engine. */
#define QP_XRC_SRQS     65536u
#define QP_MCAST_GROUPS UROCE_MCAST_GROUPS
#define QP_MCAST_QPS    UROCE_MCAST_QPS

/* A payload that lies elsewhere (shm) is brought here before a service slot looks at it. */
#define QP_BOUNCE_BYTES 8192u

/* A queue pair that waits while no acknowledgement comes to any so long may send a packet: some never come. */
#define QP_STARVE_NS 10000000u

#define QP_NEVER UINT64_MAX

#endif
