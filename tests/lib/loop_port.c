#include "loop_port.h"

#include "base/util.h"
#include "roce/wire.h"

#include <errno.h>
#include <string.h>

static struct loop_port *loop_of(const struct port *p)
{
    return container_of((struct port *)p, struct loop_port, port);
}

static void loop_caps(const struct port *p, struct port_caps *ret)
{
    (void)p;
    *ret = (struct port_caps){.name = "loop", .packet_bytes_max = WIRE_PKT_MAX, .segs_max = PORT_SEGS_MAX};
    ret->ipv4_id = PORT_ID_ZERO_THEN_K;
}

static int loop_send(struct port *p, uint64_t now_ns, const struct port_tx *tx, int n)
{
    struct loop_port *l = loop_of(p);
    int taken = 0;
    for (; taken < n && l->room; taken++, tx++) {
        size_t total = 0, at = 0;
        for (int i = 0; i < tx->niov; i++)
            total += tx->iov[i].iov_len;
        uint8_t *all = malloc(total);
        for (int i = 0; i < tx->niov; i++) {
            memcpy(all + at, tx->iov[i].iov_base, tx->iov[i].iov_len);
            at += tx->iov[i].iov_len;
        }
        l->room -= l->room > 0;
        l->runs[l->nruns++ % 256] = (struct loop_run){tx->npkts, (uint32_t)total, tx->traffic_class, tx->stays};
        at = 0;
        for (uint32_t k = 0; k < tx->npkts; k++) {
            uint32_t len = k + 1 < tx->npkts ? tx->seg_bytes : tx->last_bytes;
            int i = l->npkts++;
            if (i >= (int)ARRAY_SIZE(l->pkts))
                abort();
            l->pkts[i].data = malloc(len);
            memcpy(l->pkts[i].data, all + at, len);
            l->pkts[i].id = (uint16_t)k;
            l->pkts[i].rx = (struct port_rx){.from = tx->from, .to = tx->to, .data = l->pkts[i].data, .len = len};
            l->pkts[i].rx.traffic_class = tx->traffic_class;
            l->pkts[i].rx.hop_limit = tx->hop_limit;
            l->pkts[i].rx.time_ns = now_ns;
            at += len;
        }
        free(all);
    }
    return taken;
}

static int loop_copy(void *ctx, void *dst, size_t offset, size_t len)
{
    memcpy(dst, (uint8_t *)ctx + offset, len);
    return 0;
}

static int loop_recv(struct port *p, uint64_t now_ns, struct port_rx *ret, int max)
{
    struct loop_port *l = loop_of(p);
    int n = 0;
    (void)now_ns;
    for (; n < max && l->next < l->npkts; n++, l->next++) {
        struct wire_pkt pkt;
        struct port_rx *r = &ret[n];
        *r = l->pkts[l->next].rx;
        int head = wire_decode(r->data, r->len, &pkt);
        if (!l->remote || head < 0 || !pkt.payload_len)
            continue;
        r->len = (uint32_t)head;
        r->remote_len = pkt.payload_len;
        r->copy = loop_copy;
        r->copy_ctx = l->pkts[l->next].data + head;
    }
    return n;
}

static int loop_fd(const struct port *p)
{
    (void)p;
    return -1;
}

static bool loop_arm(struct port *p)
{
    return loop_of(p)->next < loop_of(p)->npkts;
}

static uint64_t loop_deadline(const struct port *p)
{
    (void)p;
    return UINT64_MAX;
}

static uint16_t loop_sport(struct port *p, uint16_t wanted)
{
    (void)p;
    return wanted;
}

static void loop_revoke(struct port *p, const struct port_taken *what)
{
    (void)p, (void)what;
}

static int loop_join(struct port *p, const struct port_addr *group, bool join)
{
    (void)p, (void)group, (void)join;
    return -EOPNOTSUPP;
}

static void loop_counters(const struct port *p, struct uroce_counters *add_to)
{
    (void)p, (void)add_to;
}

static void loop_close(struct port *p)
{
    struct loop_port *l = loop_of(p);
    if (l->closed)
        *l->closed = true;
    for (int i = 0; i < l->npkts; i++)
        free(l->pkts[i].data);
    free(l);
}

static const struct port_ops loop_ops = {
    .caps = loop_caps,
    .send = loop_send,
    .recv = loop_recv,
    .fd = loop_fd,
    .arm = loop_arm,
    .deadline = loop_deadline,
    .sport = loop_sport,
    .revoke = loop_revoke,
    .join = loop_join,
    .counters = loop_counters,
    .close = loop_close,
};

struct loop_port *loop_port_new(void)
{
    struct loop_port *l = calloc(1, sizeof *l);
    if (!l)
        abort();
    l->port.ops = &loop_ops;
    l->room = -1;
    return l;
}
