/* The text of impairment rules and capture filters, and what the rules do to packets. */
#include "fuzz.h"

#include "base/rng.h"
#include "port/port.h"

#include <stdlib.h>
#include <string.h>

/* Takes what is sent, and has one packet to receive each time. */
static const uint8_t received[32] = {4};

static void null_caps(const struct port *p, struct port_caps *ret)
{
    (void)p;
    *ret = (struct port_caps){.name = "null", .packet_bytes_max = 4096, .segs_max = PORT_SEGS_MAX};
}

static int null_send(struct port *p, uint64_t now_ns, const struct port_tx *tx, int n)
{
    (void)p, (void)now_ns, (void)tx;
    return n;
}

static int null_recv(struct port *p, uint64_t now_ns, struct port_rx *ret, int max)
{
    (void)p, (void)now_ns;
    if (max)
        ret[0] = (struct port_rx){.data = received, .len = sizeof received};
    return max > 0;
}

static void null_close(struct port *p)
{
    (void)p;
}

static const struct port_ops null_ops = {.caps = null_caps, .send = null_send, .recv = null_recv, .close = null_close};

static void exchange(struct port *p, const uint8_t *data, size_t size)
{
    uint8_t pkt[64] = {0};
    struct iovec iov = {pkt, sizeof pkt};
    struct port_tx tx = {.iov = &iov, .niov = 1, .npkts = 2, .seg_bytes = 32, .last_bytes = 32};
    struct port_rx rx[4];
    memcpy(pkt, data, size < sizeof pkt ? size : sizeof pkt);
    for (uint64_t t = 0; t < 4; t++) {
        if (port_send(p, t * 1000000, &tx, 1) < 0)
            abort();
        if (port_recv(p, t * 1000000, rx, 4) < 0)
            abort();
    }
    port_recv(p, UINT64_MAX / 2, rx, 4);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[513], err[100];
    struct port null = {&null_ops}, *p = &null;
    size_t n = size < sizeof text - 1 ? size : sizeof text - 1;
    memcpy(text, data, n);
    text[n] = 0;
    int rc = port_impair_open(text, 1, &null, &p, err, sizeof err);
    if (rc > 0 || (rc < 0 && (p != &null || strlen(err) >= sizeof err)))
        abort();
    exchange(p, data, size);
    port_close(p);
    return 0;
}

size_t fuzz_sample(uint64_t n, uint8_t *buf, size_t cap)
{
    static const char *const actions[] = {"drop", "delay us=5", "duplicate", "corrupt byte=3", "mark", "corrupt"};
    static const char *const words[] = {
        "rx",           "tx",    "qpn=0x11", "qpn=1-5",  "psn=5-2", "opcode=SEND_LAST|4-10", "addr=10.0.0.1",
        "addr=fd00::1", "nth=3", "every=2",  "prob=0.5", "shots=2", "opcode=RC_ACK"};
    struct rng r;
    size_t used = 0;
    rng_seed(&r, n);
    for (uint64_t i = 1 + rng_below(&r, 4); i; i--) {
        const char *part = actions[rng_below(&r, 6)];
        for (uint64_t w = 1 + rng_below(&r, 4); w; w--) {
            size_t len = strlen(part);
            if (used + len + 2 > cap)
                return used;
            memcpy(buf + used, part, len);
            used += len;
            buf[used++] = w == 1 ? ';' : ' ';
            part = words[rng_below(&r, sizeof words / sizeof *words)];
        }
    }
    return used;
}
