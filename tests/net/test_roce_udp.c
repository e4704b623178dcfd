/*
 * The UDP port between two network namespaces: packets, sizes, header fields, IPv4 ids, source ports, groups, and what
 * goes wrong on a network.
 */
#include "base/rng.h"
#include "base/util.h"
#include "lib/netns.h"
#include "port/port.h"
#include "roce/wire_icrc.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#define MTU 4400

static struct netns_pair ns;

static struct port_addr addr(const char *text)
{
    struct port_addr a = {.udp_port = PORT_UDP};
    if (strchr(text, ':')) {
        assert_int_equal(inet_pton(AF_INET6, text, a.gid.raw), 1);
    } else {
        a.gid.raw[10] = a.gid.raw[11] = 0xff;
        assert_int_equal(inet_pton(AF_INET, text, a.gid.raw + 12), 1);
    }
    return a;
}

struct end {
    struct port *p;
    struct port_addr addr;
};

/* Ports of the test that runs: closed also when it fails. */
static struct port *opened[8];
static int nopened;

static int close_ends(void **state)
{
    (void)state;
    while (nopened)
        port_close(opened[--nopened]);
    return 0;
}

static void keep(struct port *p)
{
    assert_true(nopened < (int)ARRAY_SIZE(opened));
    opened[nopened++] = p;
}

static void close_end(struct end *e)
{
    for (int i = 0; i < nopened; i++)
        if (opened[i] == e->p)
            opened[i] = opened[--nopened];
    port_close(e->p);
}

static struct end open_end(int i, const char *text, bool plain, bool raw)
{
    struct end e = {.addr = addr(text)};
    char err[256] = "";
    if (strncmp(text, "fe80", 4) == 0) {
        netns_enter(&ns, i);
        e.addr.scope_id = if_nametoindex(i ? "vb" : "va");
    }
    struct port_udp_config cfg = {.local = e.addr, .fd = -1, .no_segmentation = plain, .raw = raw};
    netns_enter(&ns, i);
    int rc = port_udp_open(&cfg, &e.p, err, sizeof err);
    netns_enter(&ns, 0);
    if (rc)
        fail_msg("%s", err);
    keep(e.p);
    return e;
}

/* Sleeps on the port's fd until it has something: by contract it never stays silent when packets wait. */
static int recv_some(struct port *p, struct port_rx *rx, int max, int timeout_ms)
{
    int n = port_recv(p, now_ns(), rx, max);
    while (n == 0) {
        if (port_arm(p)) {
            n = port_recv(p, now_ns(), rx, max);
            continue;
        }
        struct pollfd pfd = {port_fd(p), POLLIN, 0};
        if (poll(&pfd, 1, timeout_ms) <= 0)
            return 0;
        n = port_recv(p, now_ns(), rx, max);
    }
    return n;
}

static struct wire_flow flow(const struct port_addr *from, const struct port_addr *to)
{
    struct wire_flow f = {.v6 = from->gid.raw[10] != 0xff || from->gid.raw[0], .df = true};
    memcpy(f.src, from->gid.raw + (f.v6 ? 0 : 12), f.v6 ? 16 : 4);
    memcpy(f.dst, to->gid.raw + (f.v6 ? 0 : 12), f.v6 ? 16 : 4);
    f.src_port = from->udp_port;
    f.dst_port = to->udp_port;
    return f;
}

/* A run with random bytes and right ICRCs, each for its id. */
static void fill_run(uint8_t *buf, const struct port_addr *from, const struct port_addr *to, uint32_t npkts,
                     uint32_t seg, uint32_t last, struct rng *r)
{
    struct wire_flow f = flow(from, to);
    for (uint32_t k = 0; k < npkts; k++) {
        uint32_t len = k + 1 < npkts ? seg : last;
        rng_fill(r, buf, len);
        uint32_t icrc = wire_icrc_of(&f, (uint16_t)k, buf, len);
        memcpy(buf + len - 4, &icrc, 4);
        buf += len;
    }
}

static bool icrc_is_right(const struct port_rx *rx, uint16_t id)
{
    struct wire_flow f = flow(&rx->from, &rx->to);
    uint32_t got, icrc = wire_icrc_of(&f, id, rx->data, rx->len);
    memcpy(&got, rx->data + rx->len - 4, 4);
    return got == icrc;
}

struct sizes {
    uint32_t npkts, seg, last;
};

/* Sends runs one after the other, and checks each packet: bytes, length, addresses, traffic class, hop limit, ICRC. */
static void exchange(struct end *a, struct end *b, const struct sizes *s, int n, bool ids_zero)
{
    static uint8_t buf[PORT_BATCH_BYTES + 4096];
    struct rng r;
    rng_seed(&r, 7);
    struct port_addr from = a->addr;
    from.udp_port = port_sport(a->p, 0xc123);
    assert_int_equal(port_sport(a->p, 0xc123), from.udp_port);
    for (int i = 0; i < n; i++) {
        fill_run(buf, &from, &b->addr, s[i].npkts, s[i].seg, s[i].last, &r);
        size_t total = (size_t)(s[i].npkts - 1) * s[i].seg + s[i].last, at = 0;
        struct iovec iov[3] = {{buf, 10}, {buf + 10, 3}, {buf + 13, total - 13}};
        struct port_tx tx = {.from = from, .to = b->addr, .iov = iov, .niov = 3, .npkts = s[i].npkts};
        tx.seg_bytes = s[i].seg;
        tx.last_bytes = s[i].last;
        tx.traffic_class = (uint8_t)(i % 2 ? 0x68 | 2 : 0);
        tx.hop_limit = (uint8_t)(33 + i);
        assert_int_equal(port_send(a->p, now_ns(), &tx, 1), 1);
        for (uint32_t k = 0; k < s[i].npkts;) {
            struct port_rx rx[5];
            int got = recv_some(b->p, rx, 5, 2000);
            assert_true(got > 0);
            for (int j = 0; j < got; j++, k++) {
                uint32_t len = k + 1 < s[i].npkts ? s[i].seg : s[i].last;
                assert_int_equal(rx[j].len, len);
                assert_memory_equal(rx[j].data, buf + at, len - 4);
                assert_memory_equal(&rx[j].from.gid, &from.gid, 16);
                assert_int_equal(rx[j].from.udp_port, from.udp_port);
                assert_memory_equal(&rx[j].to.gid, &b->addr.gid, 16);
                assert_int_equal(rx[j].traffic_class, tx.traffic_class);
                assert_int_equal(rx[j].hop_limit, tx.hop_limit);
                assert_true(icrc_is_right(&rx[j], ids_zero ? 0 : (uint16_t)k));
                at += len;
            }
        }
        assert_int_equal(at, total);
    }
    struct uroce_counters c = {0};
    port_counters(a->p, &c);
    port_counters(b->p, &c);
    assert_int_equal(c.tx_drops + c.rx_overruns + c.drop_malformed, 0);
}

static const struct sizes all_sizes[] = {
    {1, 16, 16},     {1, 20, 20},    {1, 1048, 1048}, {1, 4136, 4136},  {2, 1040, 1040},  {2, 1040, 28},
    {5, 1044, 1044}, {64, 272, 272}, {64, 1008, 16},  {62, 1040, 1040}, {15, 4124, 4120}, {15, 4136, 16},
};

static void every_packet_of_every_run_arrives(void **state)
{
    static const char *pairs[][2] = {{"10.77.0.1", "10.77.0.2"}, {"fd77::1", "fd77::2"}};
    (void)state;
    for (int p = 0; p < 2; p++) {
        for (int plain = 0; plain < 4; plain++) {
            struct end a = open_end(0, pairs[p][0], plain & 1, false);
            struct end b = open_end(1, pairs[p][1], plain & 2, false);
            struct port_caps caps;
            port_caps(a.p, &caps);
            assert_int_equal(caps.segs_max, plain & 1 ? 1 : PORT_SEGS_MAX);
            /* Sent packet by packet each has id 0, and an ICRC for that. */
            exchange(&a, &b, all_sizes, (int)ARRAY_SIZE(all_sizes), p == 0 && plain & 1);
            exchange(&b, &a, all_sizes, (int)ARRAY_SIZE(all_sizes), p == 0 && plain & 2);
            close_ends(NULL);
        }
    }
}

static int send_one(struct end *a, const struct port_addr *to, uint32_t npkts, uint32_t bytes)
{
    static uint8_t zero[PORT_BATCH_BYTES];
    struct iovec iov = {zero, (size_t)npkts * bytes};
    struct port_tx tx = {.from = a->addr, .to = *to, .iov = &iov, .niov = 1, .npkts = npkts, .seg_bytes = bytes};
    tx.last_bytes = bytes;
    tx.hop_limit = 5;
    return port_send(a->p, now_ns(), &tx, 1);
}

static void a_raw_socket_shows_the_ids_that_the_icrc_was_made_for(void **state)
{
    (void)state;
    struct end a = open_end(0, "10.77.0.1", false, false), b = open_end(1, "10.77.0.2", false, true);
    exchange(&a, &b, all_sizes, (int)ARRAY_SIZE(all_sizes), false);
    uint8_t buf[16 * 1040];
    struct rng r;
    rng_seed(&r, 1);
    fill_run(buf, &a.addr, &b.addr, 16, 1040, 1040, &r);
    struct iovec iov = {buf, sizeof buf};
    struct port_tx tx = {.from = a.addr, .to = b.addr, .iov = &iov, .niov = 1, .npkts = 16, .seg_bytes = 1040};
    tx.last_bytes = 1040;
    assert_int_equal(port_send(a.p, now_ns(), &tx, 1), 1);
    for (int k = 0; k < 16;) {
        struct port_rx rx[16];
        int n = recv_some(b.p, rx, 16, 2000);
        assert_true(n > 0);
        for (int j = 0; j < n; j++, k++)
            assert_true(rx[j].ipv4_id_known && rx[j].ipv4_id == k && icrc_is_right(&rx[j], rx[j].ipv4_id));
    }
    /* Someone else's packets have any id: a connected socket's start at random. */
    netns_enter(&ns, 0);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT_UDP)};
    memcpy(&to.sin_addr, b.addr.gid.raw + 12, 4);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    int nonzero = 0;
    for (int k = 0; k < 8; k++) {
        struct port_rx rx;
        assert_int_equal(send(fd, buf, 40, 0), 40);
        assert_int_equal(recv_some(b.p, &rx, 1, 2000), 1);
        assert_int_equal(rx.len, 40);
        nonzero += rx.ipv4_id != 0;
    }
    assert_true(nonzero > 0);
    close(fd);
}

static void link_local_addresses_have_a_scope(void **state)
{
    (void)state;
    netns_sh(&ns, 0, "ip addr add fe80::77:1/64 dev va nodad");
    netns_sh(&ns, 1, "ip addr add fe80::77:2/64 dev vb nodad");
    struct end a = open_end(0, "fe80::77:1", false, false), b = open_end(1, "fe80::77:2", false, false);
    struct end to_b = {b.p, b.addr}, to_a = {a.p, a.addr};
    to_b.addr.scope_id = a.addr.scope_id; /* the sender's name of the link */
    to_a.addr.scope_id = b.addr.scope_id;
    exchange(&a, &to_b, all_sizes, (int)ARRAY_SIZE(all_sizes), false);
    exchange(&b, &to_a, all_sizes, (int)ARRAY_SIZE(all_sizes), false);
    assert_int_equal(send_one(&a, &to_b.addr, 1, 64), 1);
    struct port_rx rx;
    assert_int_equal(recv_some(b.p, &rx, 1, 2000), 1);
    assert_int_equal(rx.from.scope_id, b.addr.scope_id);
}

static void groups_are_joined_and_left(void **state)
{
    static const char *groups[] = {"239.7.7.7", "ff15::77"},
                      *local[][2] = {{"10.77.0.1", "10.77.0.2"}, {"fd77::1", "fd77::2"}};
    (void)state;
    for (int v = 0; v < 2; v++) {
        struct end a = open_end(0, local[v][0], false, false), b = open_end(1, local[v][1], false, false);
        struct port_addr g = addr(groups[v]), sender = g;
        struct port_rx rx;
        netns_enter(&ns, 1);
        g.scope_id = v ? if_nametoindex("vb") : 0;
        netns_enter(&ns, 0);
        sender.scope_id = v ? if_nametoindex("va") : 0;
        assert_int_equal(port_join(b.p, &b.addr, true), -EINVAL);
        assert_int_equal(port_join(b.p, &g, false), -ENOENT);
        netns_enter(&ns, 1);
        assert_int_equal(port_join(b.p, &g, true), 0);
        assert_int_equal(port_join(b.p, &g, true), 0);
        netns_enter(&ns, 0);
        assert_int_equal(send_one(&a, &sender, 1, 300), 1);
        assert_int_equal(recv_some(b.p, &rx, 1, 2000), 1);
        assert_int_equal(rx.len, 300);
        assert_memory_equal(&rx.to.gid, &g.gid, 16);
        assert_memory_equal(&rx.from.gid, &a.addr.gid, 16);
        /* A busy address starves no group. */
        for (int i = 0; i < 20; i++)
            assert_int_equal(send_one(&a, &b.addr, 10, 200), 1);
        assert_int_equal(send_one(&a, &sender, 1, 300), 1);
        int before = 0, all = 0;
        for (rx.len = 0; recv_some(b.p, &rx, 1, 300) == 1; all++)
            before = rx.len == 300 ? all : before;
        assert_int_equal(all, 201);
        assert_true(before < 150);
        assert_int_equal(port_join(b.p, &g, false), 0);
        assert_int_equal(send_one(&a, &sender, 1, 300), 1);
        assert_int_equal(send_one(&a, &b.addr, 1, 200), 1);
        assert_int_equal(recv_some(b.p, &rx, 1, 2000), 1);
        assert_int_equal(rx.len, 200);
        close_ends(NULL);
    }
}

static void what_cannot_be_sent_is_lost_and_counted(void **state)
{
    (void)state;
    struct end a = open_end(0, "10.77.0.1", false, false), b = open_end(1, "10.77.0.2", false, false);
    struct port_addr nowhere = addr("192.0.2.1"), v6 = addr("fd77::2");
    struct uroce_counters c = {0};
    struct port_rx rx;
    /* No route; longer than the link's MTU, alone and in a run; another family is the caller's mistake. */
    assert_int_equal(send_one(&a, &nowhere, 4, 1000), 1);
    netns_sh(&ns, 0, "ip link set va mtu 1280");
    assert_int_equal(send_one(&a, &b.addr, 1, 2000), 1);
    assert_int_equal(send_one(&a, &b.addr, 3, 2000), 1);
    port_counters(a.p, &c);
    assert_int_equal(c.tx_drops, 4 + 1 + 3);
    assert_int_equal(send_one(&a, &v6, 1, 100), -EINVAL);
    assert_int_equal(send_one(&a, &b.addr, 3, 1200), 1);
    for (int k = 0; k < 3;) {
        int n = recv_some(b.p, &rx, 1, 2000);
        assert_int_equal(n, 1);
        assert_int_equal(rx.len, 1200);
        k += n;
    }
    netns_sh(&ns, 0, "ip link set va mtu %d", MTU);
    close_end(&b);
    /* Nobody listens: ICMP says so, and stops nothing. */
    for (int i = 0; i < 20; i++)
        assert_int_equal(send_one(&a, &b.addr, 1, 100), 1);
    assert_int_equal(recv_some(a.p, &rx, 1, 20), 0);
    b = open_end(1, "10.77.0.2", false, false);
    assert_int_equal(send_one(&a, &b.addr, 1, 100), 1);
    assert_int_equal(recv_some(b.p, &rx, 1, 2000), 1);
    /* A link that goes down and up again. */
    netns_sh(&ns, 0, "ip link set va down");
    for (int i = 0; i < 20; i++)
        assert_int_equal(send_one(&a, &b.addr, 2, 100), 1);
    netns_sh(&ns, 0, "ip link set va up && ip addr replace fd77::1/64 dev va nodad");
    int came = 0;
    for (int i = 0; i < 100 && !came; i++) {
        assert_int_equal(send_one(&a, &b.addr, 1, 100), 1);
        came = recv_some(b.p, &rx, 1, 100);
    }
    assert_int_equal(came, 1);
}

static void push_back(uint16_t sport)
{
    struct end a = open_end(0, "10.77.0.1", false, false), b = open_end(1, "10.77.0.2", false, false);
    a.addr.udp_port = port_sport(a.p, sport);
    netns_sh(&ns, 0, "tc qdisc add dev va root tbf rate 800mbit burst 128k limit 100000000");
    int sent = 0, full = 0, waits = 0;
    uint32_t got = 0;
    struct port_rx rx[64];
    while (sent < 600) {
        int n = send_one(&a, &b.addr, 30, 1000);
        assert_true(n >= 0);
        sent += n;
        full += n == 0;
        if (n == 0) {
            assert_true(port_deadline(a.p) != UINT64_MAX);
            struct pollfd pfd = {port_fd(a.p), POLLIN, 0};
            assert_int_equal(poll(&pfd, 1, 5000), 1);
            waits++;
        }
        for (int k; (k = port_recv(b.p, now_ns(), rx, 64)) > 0;)
            got += (uint32_t)k;
    }
    assert_true(full > 0 && waits == full);
    for (int k; got < 18000 && (k = recv_some(b.p, rx, 64, 2000)) > 0;)
        got += (uint32_t)k;
    assert_int_equal(got, 18000);
    netns_sh(&ns, 0, "tc qdisc del dev va root");
    close_end(&a);
    close_end(&b);
}

static void a_slow_link_pushes_back_and_the_descriptor_tells_of_room(void **state)
{
    (void)state;
    push_back(PORT_UDP);
    push_back(0xc123);
}

/* Bytes that lie in the queues of this namespace's socket on a port. */
static unsigned long queued_at(uint16_t port)
{
    char line[256];
    unsigned long bytes = 0, rx;
    unsigned at;
    FILE *f = fopen("/proc/thread-self/net/udp", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, " %*u: %*x:%x %*x:%*x %*x %*x:%lx", &at, &rx) == 2 && at == port)
            bytes += rx;
    fclose(f);
    return bytes;
}

static void the_kernel_keeps_what_was_sent_last_and_no_more(void **state)
{
    (void)state;
    struct end a = open_end(0, "10.77.0.1", false, false), b = open_end(1, "10.77.0.2", false, false);
    static const uint16_t wanted[] = {0xc001, 0xc002, 0xc003};
    struct port_rx rx[64];
    unsigned long kept = 0;
    for (int i = 0; i < 300; i++) {
        a.addr.udp_port = port_sport(a.p, wanted[i % 3]);
        assert_int_equal(send_one(&a, &b.addr, 15, 4000), 1);
        for (int got = 0, k; got < 15; got += k)
            assert_true((k = recv_some(b.p, rx, 64, 2000)) > 0);
    }
    for (size_t i = 0; i < ARRAY_SIZE(wanted); i++)
        kept += queued_at(port_sport(a.p, wanted[i]));
    print_message("%lu bytes are kept\n", kept);
    assert_true(kept < 4u << 20); /* 2 MiB of messages, and what they take beside */
    assert_int_equal(queued_at(PORT_UDP), 0);
    struct uroce_counters c = {0};
    port_counters(a.p, &c);
    assert_int_equal(c.tx_drops, 0);
}

static void a_full_receive_buffer_is_counted(void **state)
{
    (void)state;
    struct end a = open_end(0, "10.77.0.1", false, false), b = {.addr = addr("10.77.0.2")};
    struct port_udp_config cfg = {.local = b.addr, .fd = -1, .rcvbuf_bytes = 65536};
    struct port_caps caps;
    netns_enter(&ns, 1);
    assert_int_equal(port_udp_open(&cfg, &b.p, NULL, 0), 0);
    keep(b.p);
    netns_enter(&ns, 0);
    port_caps(b.p, &caps);
    assert_int_equal(caps.rcvbuf_bytes, 65536);
    for (int i = 0; i < 50; i++)
        assert_int_equal(send_one(&a, &b.addr, 10, 1000), 1);
    struct port_rx rx[64];
    uint32_t got = 0;
    int k;
    while ((k = recv_some(b.p, rx, 64, 100)) > 0)
        got += (uint32_t)k;
    assert_true(got >= 10 && got < 500);
    assert_int_equal(send_one(&a, &b.addr, 1, 100), 1);
    assert_int_equal(recv_some(b.p, rx, 64, 2000), 1);
    struct uroce_counters c = {0};
    port_counters(b.p, &c);
    assert_true(c.rx_overruns > 0);
}

static void source_ports_come_from_a_bounded_pool(void **state)
{
    (void)state;
    struct end a = open_end(0, "10.77.0.1", false, false), b = open_end(1, "10.77.0.2", false, false);
    uint16_t seen[64];
    int nseen = 0, fd0 = dup(0);
    struct port_rx rx;
    for (uint16_t w = 0xc000; w < 0xc000 + 500; w++) {
        uint16_t p = port_sport(a.p, w);
        int i = 0;
        while (i < nseen && seen[i] != p)
            i++;
        if (i == nseen) {
            assert_true(nseen < 64);
            seen[nseen++] = p;
        }
    }
    assert_true(nseen > 1 && nseen <= 17);
    assert_true(dup(0) <= fd0 + 18);
    for (int i = 0; i < nseen; i++) {
        a.addr.udp_port = seen[i];
        assert_int_equal(send_one(&a, &b.addr, 1, 64), 1);
        assert_int_equal(recv_some(b.p, &rx, 1, 2000), 1);
        assert_int_equal(rx.from.udp_port, seen[i]);
    }
    a.addr.udp_port = 0x1234;
    assert_int_equal(send_one(&a, &b.addr, 1, 64), -EINVAL);
    for (int fd = dup(0); fd > fd0; fd--)
        close(fd);
}

static void an_address_in_use_is_named(void **state)
{
    (void)state;
    struct end a = open_end(0, "10.77.0.1", false, false);
    struct port_udp_config cfg = {.local = a.addr, .fd = -1};
    struct port *p;
    char err[256] = "";
    assert_int_equal(port_udp_open(&cfg, &p, err, sizeof err), -EADDRINUSE);
    assert_non_null(strstr(err, "10.77.0.1 UDP port 4791"));
    assert_non_null(strstr(err, "another"));
    cfg.local = addr("10.99.0.1");
    assert_int_equal(port_udp_open(&cfg, &p, err, sizeof err), -EADDRNOTAVAIL);
    assert_non_null(strstr(err, "10.99.0.1"));
}

static void a_wildcard_address_tells_and_takes_the_local_one(void **state)
{
    static const char *any[] = {"0.0.0.0", "::"}, *local[][2] = {{"10.77.0.1", "10.77.0.2"}, {"fd77::1", "fd77::2"}};
    (void)state;
    for (int v = 0; v < 2; v++) {
        struct end a = open_end(0, local[v][0], false, false), b = open_end(1, any[v], false, false);
        struct port_rx rx;
        b.addr = addr(local[v][1]);
        exchange(&a, &b, all_sizes, (int)ARRAY_SIZE(all_sizes), false);
        assert_int_equal(send_one(&b, &a.addr, 1, 100), 1);
        assert_int_equal(recv_some(a.p, &rx, 1, 2000), 1);
        assert_memory_equal(&rx.from.gid, &b.addr.gid, 16);
        close_ends(NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_packet_of_every_run_arrives, close_ends),
        cmocka_unit_test_teardown(a_raw_socket_shows_the_ids_that_the_icrc_was_made_for, close_ends),
        cmocka_unit_test_teardown(link_local_addresses_have_a_scope, close_ends),
        cmocka_unit_test_teardown(groups_are_joined_and_left, close_ends),
        cmocka_unit_test_teardown(what_cannot_be_sent_is_lost_and_counted, close_ends),
        cmocka_unit_test_teardown(a_slow_link_pushes_back_and_the_descriptor_tells_of_room, close_ends),
        cmocka_unit_test_teardown(the_kernel_keeps_what_was_sent_last_and_no_more, close_ends),
        cmocka_unit_test_teardown(a_full_receive_buffer_is_counted, close_ends),
        cmocka_unit_test_teardown(source_ports_come_from_a_bounded_pool, close_ends),
        cmocka_unit_test_teardown(an_address_in_use_is_named, close_ends),
        cmocka_unit_test_teardown(a_wildcard_address_tells_and_takes_the_local_one, close_ends),
    };
    netns_pair_make(&ns, MTU);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
