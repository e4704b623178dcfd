/* Inside of the simulated network: packets under way, links, the event heap. */
#ifndef PORT_SIM_PRIV_H
#define PORT_SIM_PRIV_H

#include "base/list.h"
#include "base/rng.h"
#include "port/port.h"

/* Bytes under way in a net: beyond, packets are dropped as by a full switch. */
#define SIM_BYTES_MAX (512u << 20)
#define SIM_RCVBUF    (16u << 20)
#define SIM_PORTS_MAX 1024u
#define SIM_GROUPS    64u /* of one port */

/* Ethernet header, checksum, preamble and gap; then IP and UDP headers: what a packet costs on a link. */
#define SIM_OVERHEAD_V4 (38u + 20u + 8u)
#define SIM_OVERHEAD_V6 (38u + 40u + 8u)

struct sim_port;

struct sim_pkt {
    struct list link; /* in sim_port.waiting or .lent */
    uint64_t time_ns, order;
    struct sim_port *to_port; /* NULL: on the way to the switch */
    struct port_addr from, to;
    uint8_t traffic_class, hop_limit;
    uint32_t len;
    uint8_t data[];
};

struct sim_link {
    struct port_sim_link cfg;
    uint64_t busy_until_ns, last_arrival_ns;
};

struct sim_port {
    struct port port;
    struct port_sim_net *net;
    struct list link; /* in net.ports */
    struct port_addr local;
    struct sim_link up, down;
    struct list waiting, lent; /* sim_pkt; lent: handed out by the last recv */
    uint64_t waiting_bytes, rcvbuf_bytes, overrun;
    union uroce_gid groups[SIM_GROUPS];
    uint32_t ngroups;
};

struct port_sim_net {
    struct rng rng;
    uint64_t now_ns, order, bytes;
    struct list ports;
    uint32_t nports;
    uint64_t nwaiting;
    struct sim_pkt **heap; /* earliest first, then in the order of sending */
    size_t nheap, cap;
    struct port_sim_stats stats;
};

void sim_heap_pop(struct port_sim_net *n);
/* Takes the packet; frees it when there is no memory (a drop). */
void sim_heap_push(struct port_sim_net *n, struct sim_pkt *p);
/* Removes those for `port`. */
void sim_heap_purge(struct port_sim_net *n, const struct sim_port *port);
/* Counted against SIM_BYTES_MAX; NULL beyond. */
struct sim_pkt *sim_pkt_new(struct port_sim_net *n, uint32_t len);
struct sim_pkt *sim_pkt_copy(struct port_sim_net *n, const struct sim_pkt *p);
void sim_pkt_free(struct port_sim_net *n, struct sim_pkt *p);

/*
 * Takes the packet at the begin of a link at net->now_ns: it, and perhaps a copy, is pushed with the time at which it
 * arrives at the end, or it is freed.
 */
void sim_link_pass(struct port_sim_net *n, struct sim_link *l, struct sim_pkt *p);

#endif
