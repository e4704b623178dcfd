/* The capture port: a filter that writes what passes to a pcapng file. See port.h. */
#define LOG_COMPONENT "uroce"
#include "frame.h"
#include "match.h"
#include "pcapng.h"
#include "run.h"

#include "base/log.h"
#include "base/util.h"
#include "roce/wire_op.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a packet that is longer (shm) so much is written. */
#define CAPTURE_BYTES (64u << 10)

/* Of the ports that write to one file: those of a device, of which one thread at a time uses any. */
struct sink {
    struct pcapng *file; /* NULL: it has ended */
    unsigned int users;
    uint64_t max_bytes;
    struct port_capture_stats stats;
};

struct capture {
    struct port port;
    struct port *below;
    struct sink *sink;
    struct match match;
    bool headers_only;
    uint64_t wall_offset_ns, now_ns;
    struct wire_icrc_tab icrc_tab;
    uint8_t buf[CAPTURE_BYTES];
};

static struct capture *capture_of(const struct port *p)
{
    return container_of((struct port *)p, struct capture, port);
}

static void stop(struct capture *c, int err)
{
    if (err) {
        log_warn("the capture ends: %s; traffic goes on", strerror(-err));
        c->sink->stats.error = err;
    }
    pcapng_close(c->sink->file, c->sink->stats.packets, c->sink->stats.missed, c->now_ns + c->wall_offset_ns);
    c->sink->file = NULL;
}

/* data: the first `have` of `bytes` bytes. */
static void write_packet(struct capture *c, bool tx, const struct frame *f, const uint8_t *data, size_t have,
                         size_t bytes)
{
    uint8_t head[FRAME_HEAD_MAX];
    size_t n = frame_head(f, have == bytes ? data : NULL, bytes, head), keep = have;
    if (c->headers_only && have) {
        const struct wire_op *op = wire_op(data[0]);
        size_t limit = op ? op->head_bytes : MATCH_HEAD_BYTES;
        keep = keep < limit ? keep : limit;
    }
    if (c->sink->max_bytes && pcapng_bytes(c->sink->file) + n + keep + 64 > c->sink->max_bytes) {
        c->sink->stats.missed++;
        stop(c, 0);
        return;
    }
    int err = pcapng_packet(c->sink->file, c->now_ns + c->wall_offset_ns, tx, head, n, data, keep, n + bytes);
    if (err) {
        c->sink->stats.missed++;
        if (err != -EAGAIN)
            stop(c, err);
        return;
    }
    c->sink->stats.packets++;
    c->sink->stats.bytes = pcapng_bytes(c->sink->file);
}

static void capture_run(struct capture *c, const struct port_tx *tx, enum port_id_rule ids)
{
    for (uint32_t k = 0; k < tx->npkts; k++) {
        size_t have = run_head(tx, k, c->buf, sizeof c->buf);
        struct frame f = {&tx->from, &tx->to, tx->traffic_class, tx->hop_limit, tx->flow_label, 0};
        if (!c->sink->file) {
            c->sink->stats.missed++;
            continue;
        }
        if (ids == PORT_ID_ZERO_THEN_K)
            f.ipv4_id = (uint16_t)k;
        if (match_packet(&c->match, true, &tx->from, &tx->to, c->buf, have))
            write_packet(c, true, &f, c->buf, have, run_bytes(tx, k));
    }
}

static int capture_send(struct port *p, uint64_t now_ns, const struct port_tx *tx, int n)
{
    struct capture *c = capture_of(p);
    struct port_caps caps;
    c->now_ns = now_ns;
    port_caps(c->below, &caps);
    int took = port_send(c->below, now_ns, tx, n);
    for (int i = 0; i < took; i++)
        capture_run(c, &tx[i], caps.ipv4_id);
    return took;
}

/* The id that makes the ICRC right, so that who reads the file finds it right too. */
static uint16_t solved_id(const struct capture *c, const struct port_rx *rx)
{
    struct wire_flow flow;
    struct wire_icrc_ids ids = {.solve = true};
    uint16_t id = 0;
    wire_flow_init(&flow, &rx->from.gid, &rx->to.gid, rx->from.udp_port, rx->to.udp_port);
    if (rx->len < RUN_PACKET_MIN || rx->len > WIRE_PKT_MAX || rx->len % 4)
        return 0;
    return wire_icrc_verify(&c->icrc_tab, &flow, &ids, rx->data, rx->len, &id) < 0 ? 0 : id;
}

static void capture_rx(struct capture *c, const struct port_rx *rx)
{
    struct frame f = {&rx->from, &rx->to, rx->traffic_class, rx->hop_limit, 0, rx->ipv4_id};
    const uint8_t *data = rx->data;
    size_t bytes = rx->len, have = bytes;
    if (!c->sink->file) {
        c->sink->stats.missed++;
        return;
    }
    if (!match_packet(&c->match, false, &rx->from, &rx->to, rx->data, rx->len))
        return;
    if (!rx->ipv4_id_known && !rx->copy && wire_gid_is_v4(&rx->to.gid))
        f.ipv4_id = solved_id(c, rx);
    if (rx->copy && rx->len <= WIRE_HEAD_MAX) {
        size_t part = rx->remote_len < sizeof c->buf - WIRE_HEAD_MAX - WIRE_TAIL_MAX ? rx->remote_len : 0;
        bytes = rx->len + rx->remote_len + wire_pad(rx->remote_len) + WIRE_ICRC_BYTES;
        memset(c->buf, 0, part ? bytes : have);
        memcpy(c->buf, rx->data, rx->len);
        if (part && !c->headers_only && rx->copy(rx->copy_ctx, c->buf + rx->len, 0, part) == 0)
            have = bytes;
        data = c->buf;
    }
    write_packet(c, false, &f, data, have, bytes);
}

static int capture_recv(struct port *p, uint64_t now_ns, struct port_rx *ret, int max)
{
    struct capture *c = capture_of(p);
    c->now_ns = now_ns;
    int n = port_recv(c->below, now_ns, ret, max);
    for (int i = 0; i < n; i++)
        capture_rx(c, &ret[i]);
    /* Nothing to do: a good time to show what there is to whoever follows the file. */
    if (n == 0 && c->sink->file) {
        int err = pcapng_flush(c->sink->file);
        if (err && err != -EAGAIN)
            stop(c, err);
    }
    return n;
}

static void capture_caps(const struct port *p, struct port_caps *ret)
{
    port_caps(capture_of(p)->below, ret);
}

static int capture_fd(const struct port *p)
{
    return port_fd(capture_of(p)->below);
}

static int capture_rx_fd(const struct port *p)
{
    return port_rx_fd(capture_of(p)->below);
}

static bool capture_arm(struct port *p)
{
    return port_arm(capture_of(p)->below);
}

static uint64_t capture_deadline(const struct port *p)
{
    return port_deadline(capture_of(p)->below);
}

static uint16_t capture_sport(struct port *p, uint16_t wanted)
{
    return port_sport(capture_of(p)->below, wanted);
}

static void capture_revoke(struct port *p, const struct port_taken *what)
{
    port_revoke(capture_of(p)->below, what);
}

static int capture_join(struct port *p, const struct port_addr *group, bool join)
{
    return port_join(capture_of(p)->below, group, join);
}

static void capture_counters(const struct port *p, struct uroce_counters *add_to)
{
    port_counters(capture_of(p)->below, add_to);
}

static void capture_close(struct port *p)
{
    struct capture *c = capture_of(p);
    port_close(c->below);
    if (--c->sink->users == 0) {
        if (c->sink->file)
            stop(c, 0);
        free(c->sink);
    }
    free(c);
}

static const struct port_ops capture_ops = {
    .caps = capture_caps,
    .send = capture_send,
    .recv = capture_recv,
    .fd = capture_fd,
    .rx_fd = capture_rx_fd,
    .arm = capture_arm,
    .deadline = capture_deadline,
    .sport = capture_sport,
    .revoke = capture_revoke,
    .join = capture_join,
    .counters = capture_counters,
    .close = capture_close,
};

static int parse_filter(struct match *m, const char *text, char *err, size_t err_size)
{
    cleanup_free char *copy = strdup(text);
    char *save = NULL;
    if (!copy)
        return -ENOMEM;
    for (char *w = strtok_r(copy, ", ", &save); w; w = strtok_r(NULL, ", ", &save)) {
        if (match_word(m, w) == 1)
            continue;
        snprintf(err, err_size, "capture filter: wrong word '%s'", w);
        return -EINVAL;
    }
    return 0;
}

static int open_sink(const struct port_capture_config *cfg, struct sink **ret, char *err, size_t err_size)
{
    if (cfg->share) {
        if (cfg->share->ops != &capture_ops)
            return -EINVAL;
        *ret = capture_of(cfg->share)->sink;
        (*ret)->users++;
        return 0;
    }
    struct sink *s = calloc(1, sizeof *s);
    int e = s ? pcapng_create(cfg->path, cfg->append, cfg->interface, &s->file) : -ENOMEM;
    if (e) {
        snprintf(err, err_size, "capture file %s: %s", cfg->path,
                 e == -EBUSY ? "another process writes to it" : strerror(-e));
        free(s);
        return e;
    }
    s->users = 1;
    s->max_bytes = cfg->max_bytes;
    *ret = s;
    return 0;
}

int port_capture_open(const struct port_capture_config *cfg, struct port *below, struct port **ret, char *err,
                      size_t err_size)
{
    struct port_caps caps;
    struct capture *c = calloc(1, sizeof *c);
    int e = c ? parse_filter(&c->match, cfg->filter ? cfg->filter : "", err, err_size) : -ENOMEM;
    if (!e)
        e = open_sink(cfg, &c->sink, err, err_size);
    if (e) {
        free(c);
        return e;
    }
    port_caps(below, &caps);
    c->port.ops = &capture_ops;
    c->below = below;
    c->headers_only = cfg->headers_only;
    /* A simulated network has a clock of its own: two runs of one seed give the same file. */
    if (strcmp(caps.name, "sim"))
        c->wall_offset_ns = (uint64_t)wall_ns() - now_ns();
    wire_icrc_tab_init(&c->icrc_tab);
    *ret = &c->port;
    return 0;
}

int port_capture_stats(const struct port *p, struct port_capture_stats *ret)
{
    if (p->ops != &capture_ops)
        return -EINVAL;
    *ret = capture_of(p)->sink->stats;
    return 0;
}
