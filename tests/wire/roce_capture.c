/*
 * Writes capture files through the capture port: roce_capture DIR SEED. For each packet that is to be in DIR/all.pcapng
 * a line goes to standard output:
 *
 *     tx|rx SOURCE DESTINATION SOURCE-PORT ID HOPS CLASS OPCODE QPN PSN BYTES HEAD-BYTES
 *
 * DIR/heads.pcapng is the same with headers only, DIR/some.pcapng with a filter (rx, RC), DIR/small.pcapng ends at 4
 * KiB.
 */
#include "base/util.h"
#include "lib/loop_port.h"
#include "port/port.h"
#include "roce_frames.h"

#include <arpa/inet.h>
#include <string.h>

static void print_line(const char *dir, const struct port_rx *r, uint16_t id, const struct wire_pkt *p)
{
    char from[64], to[64];
    bool v6 = r->from.gid.raw[0] != 0;
    inet_ntop(v6 ? AF_INET6 : AF_INET, r->from.gid.raw + (v6 ? 0 : 12), from, sizeof from);
    inet_ntop(v6 ? AF_INET6 : AF_INET, r->to.gid.raw + (v6 ? 0 : 12), to, sizeof to);
    printf("%s %s %s %u %u %u %u %u %u %u %u %u\n", dir, from, to, r->from.udp_port, v6 ? 0 : id, r->hop_limit,
           r->traffic_class, p->opcode, p->dest_qp, p->psn.v, r->len, wire_pkt_op(p)->head_bytes);
}

static struct port *open_capture(const char *dir, const char *name, const char *filter, bool heads, uint64_t max,
                                 struct port *below)
{
    char path[512], err[200];
    struct port *p;
    snprintf(path, sizeof path, "%s/%s.pcapng", dir, name);
    struct port_capture_config cfg = {.path = path, .filter = filter, .headers_only = heads, .max_bytes = max};
    cfg.interface = "uroce-test";
    if (port_capture_open(&cfg, below, &p, err, sizeof err)) {
        fprintf(stderr, "%s\n", err);
        exit(1);
    }
    return p;
}

/* A run of packets of one random kind, sent and received. */
static void exchange(struct port *p, struct loop_port *loop, struct rng *r)
{
    static uint8_t room[WIRE_PAYLOAD_MAX], buf[16 * WIRE_PKT_MAX];
    struct wire_pkt pkt;
    struct wire_flow flow;
    uint8_t opcode = 0;
    roce_opcode((unsigned)rng_below(r, roce_opcodes()), &opcode);
    roce_random_flow(r, &flow);
    flow.df = true;
    flow.dst_port = PORT_UDP;
    struct port_tx tx = {.from.udp_port = flow.src_port, .to.udp_port = flow.dst_port};
    memset(tx.from.gid.raw + 10, 0xff, 2);
    memset(tx.to.gid.raw + 10, 0xff, 2);
    memcpy(tx.from.gid.raw + (flow.v6 ? 0 : 12), flow.src, flow.v6 ? 16 : 4);
    memcpy(tx.to.gid.raw + (flow.v6 ? 0 : 12), flow.dst, flow.v6 ? 16 : 4);
    if (flow.v6)
        tx.from.gid.raw[0] = tx.to.gid.raw[0] = 0x20;
    memcpy(flow.src, tx.from.gid.raw + (flow.v6 ? 0 : 12), flow.v6 ? 16 : 4);
    memcpy(flow.dst, tx.to.gid.raw + (flow.v6 ? 0 : 12), flow.v6 ? 16 : 4);
    tx.traffic_class = (uint8_t)rng_below(r, 256);
    tx.hop_limit = (uint8_t)(1 + rng_below(r, 255));
    roce_random_pkt(r, opcode, 600, room, &pkt);
    uint32_t n = 1 + (uint32_t)rng_below(r, 5), len = 0;
    for (uint32_t k = 0; k < n; k++) {
        pkt.psn = psn_next(pkt.psn);
        len = roce_build(&pkt, &flow, (uint16_t)k, buf + k * len);
    }
    struct iovec iov = {buf, n * len};
    tx.iov = &iov;
    tx.niov = 1;
    tx.npkts = n;
    tx.seg_bytes = tx.last_bytes = len;
    loop->remote = rng_below(r, 4) == 0;
    if (port_send(p, now_ns(), &tx, 1) != 1)
        abort();
    for (int pass = 0; pass < 2; pass++) {
        for (int i = loop->npkts - (int)n; i < loop->npkts; i++) {
            wire_decode(loop->pkts[i].rx.data, loop->pkts[i].rx.len, &pkt);
            /* A packet whose payload lay elsewhere came without an ICRC: no id is found. */
            bool far = loop->remote && pkt.payload_len;
            print_line(pass ? "rx" : "tx", &loop->pkts[i].rx, pass && far ? 0 : loop->pkts[i].id, &pkt);
        }
    }
    struct port_rx rx[16];
    while (port_recv(p, now_ns(), rx, 16) > 0)
        ;
}

int main(int argc, char **argv)
{
    struct rng r;
    struct loop_port *loop = loop_port_new();
    if (argc != 3)
        return 2;
    rng_seed(&r, strtoull(argv[2], NULL, 0));
    struct port *all = open_capture(argv[1], "all", NULL, false, 0, &loop->port);
    struct port *heads = open_capture(argv[1], "heads", NULL, true, 0, all);
    struct port *some = open_capture(argv[1], "some", "rx, opcode=0-0x1f", false, 0, heads);
    struct port *small = open_capture(argv[1], "small", NULL, false, 4096, some);
    for (int i = 0; i < 150; i++)
        exchange(small, loop, &r);
    struct port_capture_stats st, ended;
    if (port_capture_stats(all, &st) || port_capture_stats(small, &ended) || st.packets != 2 * (uint64_t)loop->npkts ||
        st.missed || !ended.missed || ended.error || ended.bytes > 4096)
        return 1;
    port_close(small);
    return 0;
}
