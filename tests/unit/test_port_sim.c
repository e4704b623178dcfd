/* The simulated network: each property of a link, routing, bounds, and that a seed repeats everything. */
#include "base/rng.h"
#include "base/util.h"
#include "port/port.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#define US 1000ull
#define MS 1000000ull

static struct port_addr addr(uint8_t last)
{
    return (struct port_addr){.gid.raw = {[10] = 0xff, [11] = 0xff, 10, 0, 0, last}, .udp_port = PORT_UDP};
}

static uint64_t seed(void)
{
    const char *s = getenv("PENSTOCK_SEED");
    return s ? strtoull(s, NULL, 0) : 1;
}

struct fix {
    struct port_sim_net *net;
    struct port *a, *b;
};

static void open2(struct fix *f, uint64_t s, const struct port_sim_link *up)
{
    struct port_addr a = addr(1), b = addr(2);
    assert_int_equal(port_sim_net_new(s, &f->net), 0);
    assert_int_equal(port_sim_open(f->net, &a, up, NULL, &f->a), 0);
    assert_int_equal(port_sim_open(f->net, &b, NULL, NULL, &f->b), 0);
}

static void close2(struct fix *f)
{
    port_close(f->a);
    port_close(f->b);
    port_sim_net_free(f->net);
}

/* A packet whose bytes 8..11 are its number. */
static int send_no(struct port *p, uint64_t now, uint8_t to, uint32_t no, uint32_t len, uint8_t tc)
{
    uint8_t buf[4096] = {0};
    memcpy(buf + 8, &no, sizeof no);
    struct iovec iov = {buf, len};
    struct port_tx tx = {.from = addr(1), .to = addr(to), .iov = &iov, .niov = 1, .npkts = 1, .seg_bytes = len};
    tx.last_bytes = len;
    tx.traffic_class = tc;
    tx.hop_limit = 64;
    return port_send(p, now, &tx, 1);
}

static uint32_t no_of(const struct port_rx *rx)
{
    uint32_t no;
    memcpy(&no, rx->data + 8, sizeof no);
    return no;
}

static void a_run_arrives_as_its_packets_at_the_stated_time(void **state)
{
    (void)state;
    struct port_sim_link up = {.delay_ns = 5 * US};
    struct fix f;
    open2(&f, 1, &up);
    uint8_t head[20], pay[1000];
    memset(head, 1, sizeof head);
    for (size_t i = 0; i < sizeof pay; i++)
        pay[i] = (uint8_t)i;
    struct iovec iov[2] = {{head, sizeof head}, {pay, sizeof pay}};
    struct port_tx tx = {.from = addr(1), .to = addr(2), .iov = iov, .niov = 2, .npkts = 3, .seg_bytes = 400};
    tx.last_bytes = 220;
    tx.hop_limit = 9;
    struct port_rx rx[8];
    assert_int_equal(port_send(f.a, 100, &tx, 1), 1);
    assert_true(port_sim_net_deadline(f.net) == 100 + 5 * US);
    assert_int_equal(port_recv(f.b, 99 + 5 * US, rx, 8), 0);
    assert_int_equal(port_recv(f.b, 100 + 5 * US, rx, 2), 2);
    assert_int_equal(rx[0].len, 400);
    assert_int_equal(rx[0].hop_limit, 9);
    assert_true(rx[0].time_ns == 100 + 5 * US && rx[0].ipv4_id_known && rx[0].ipv4_id == 0);
    assert_memory_equal(rx[0].data, head, 20);
    assert_memory_equal(rx[0].data + 20, pay, 380);
    assert_memory_equal(rx[1].data, pay + 380, 400);
    assert_true(port_arm(f.b));
    assert_int_equal(port_recv(f.b, 100 + 5 * US, rx, 8), 1);
    assert_int_equal(rx[0].len, 220);
    assert_memory_equal(rx[0].data, pay + 780, 220);
    assert_false(port_arm(f.b));
    assert_true(port_deadline(f.b) == UINT64_MAX);
    close2(&f);
}

static void a_run_that_breaks_the_caps_is_refused(void **state)
{
    (void)state;
    struct fix f;
    open2(&f, 1, NULL);
    uint8_t buf[8192] = {0};
    struct iovec iov = {buf, 100};
    struct port_tx good = {.from = addr(1), .to = addr(2), .iov = &iov, .niov = 1, .npkts = 2, .seg_bytes = 60};
    good.last_bytes = 40;
    struct port_tx bad[6] = {good, good, good, good, good, good};
    bad[0].npkts = 0;
    bad[1].npkts = PORT_SEGS_MAX + 1;
    bad[2].last_bytes = 41;
    bad[3].seg_bytes = 30, bad[3].last_bytes = 70;
    bad[4].last_bytes = 8, bad[4].seg_bytes = 92;
    bad[5].npkts = 1, bad[5].last_bytes = 8000;
    for (int i = 0; i < 6; i++)
        assert_int_equal(port_send(f.a, 0, &bad[i], 1), -EINVAL);
    struct port_tx two[2] = {good, bad[0]};
    assert_int_equal(port_send(f.a, 0, two, 2), 1);
    close2(&f);
}

struct result {
    uint64_t got, out_of_order, marked, twice, hash;
    struct port_sim_stats stats;
};

/* n packets of 1000 bytes, one each `gap`; what came. */
static struct result flood(uint64_t s, const struct port_sim_link *up, uint32_t n, uint64_t gap, uint8_t tc)
{
    struct fix f;
    struct result r = {0};
    open2(&f, s, up);
    uint8_t *seen = calloc(n, 1);
    uint32_t last = 0;
    for (uint64_t i = 0, now = 0; i < n || port_sim_net_deadline(f.net) != UINT64_MAX; i++, now += gap) {
        if (i < n)
            assert_int_equal(send_no(f.a, now, 2, (uint32_t)i, 1000, tc), 1);
        struct port_rx rx[16];
        int k;
        while ((k = port_recv(f.b, now, rx, 16)) > 0) {
            for (int j = 0; j < k; j++) {
                uint32_t no = no_of(&rx[j]);
                r.hash = (r.hash ^ no ^ rx[j].time_ns) * 0x9e3779b97f4a7c15ull;
                r.got++;
                if (no >= n)
                    continue; /* corrupted there */
                r.twice += seen[no];
                seen[no] = 1;
                r.out_of_order += no < last;
                last = no;
                r.marked += (rx[j].traffic_class & 3) == 3;
            }
        }
    }
    port_sim_net_stats(f.net, &r.stats);
    free(seen);
    close2(&f);
    return r;
}

static void near(uint64_t value, double want, double tolerance)
{
    if ((double)value < want - tolerance || (double)value > want + tolerance)
        fail_msg("%llu, expected %.0f +- %.0f (seed %llu)", (unsigned long long)value, want, tolerance,
                 (unsigned long long)seed());
}

static void loss_is_near_its_probability(void **state)
{
    (void)state;
    struct port_sim_link up = {.loss = 0.1};
    struct result r = flood(seed(), &up, 20000, US, 0);
    near(r.got, 18000, 300);
    assert_int_equal(r.stats.lost, 20000 - r.got);
    assert_int_equal(r.out_of_order + r.twice, 0);
}

static void duplicates_come_twice_and_lose_nothing(void **state)
{
    (void)state;
    struct port_sim_link up = {.duplicate = 0.05};
    struct result r = flood(seed(), &up, 20000, US, 0);
    near(r.twice, 1000, 200);
    assert_int_equal(r.got, 20000 + r.twice);
    assert_int_equal(r.stats.duplicated, r.twice);
}

static void jitter_keeps_the_order_and_reorder_does_not(void **state)
{
    (void)state;
    struct port_sim_link up = {.delay_ns = 10 * US, .jitter_ns = 50 * US};
    struct result r = flood(seed(), &up, 5000, US, 0);
    assert_int_equal(r.got, 5000);
    assert_int_equal(r.out_of_order, 0);
    up = (struct port_sim_link){.reorder = 0.02, .reorder_ns = 5 * US};
    r = flood(seed(), &up, 5000, US, 0);
    assert_int_equal(r.got, 5000);
    near(r.stats.reordered, 100, 70);
    assert_true(r.out_of_order > 15);
}

static void corruption_flips_one_bit(void **state)
{
    (void)state;
    struct port_sim_link up = {.corrupt = 1};
    struct fix f;
    open2(&f, seed(), &up);
    for (int i = 0; i < 200; i++) {
        struct port_rx rx;
        assert_int_equal(send_no(f.a, 0, 2, 0, 64, 0), 1);
        assert_int_equal(port_recv(f.b, 0, &rx, 1), 1);
        int bits = 0;
        for (int b = 0; b < 64; b++)
            bits += __builtin_popcount(rx.data[b]);
        assert_int_equal(bits, 1);
    }
    close2(&f);
}

static void only_ecn_capable_packets_are_marked(void **state)
{
    (void)state;
    struct port_sim_link up = {.ecn_mark = 0.25};
    struct result r = flood(seed(), &up, 10000, US, 2);
    near(r.marked, 2500, 250);
    assert_int_equal(r.stats.marked, r.marked);
    r = flood(seed(), &up, 10000, US, 0);
    assert_int_equal(r.marked, 0);
}

static void the_rate_spaces_packets_and_the_queue_drops_its_tail(void **state)
{
    (void)state;
    /* 1000 + 66 bytes at 8.528 Gbit/s: 1 us each. */
    struct port_sim_link up = {.rate_bps = 8528000000ull, .queue_bytes = 10 * 1066};
    struct fix f;
    open2(&f, 1, &up);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(send_no(f.a, 0, 2, i, 1000, 0), 1);
    struct port_rx rx[32];
    for (uint64_t t = 1; t <= 10; t++) {
        assert_int_equal(port_recv(f.b, t * US - 2, rx, 32), 0);
        assert_int_equal(port_recv(f.b, t * US, rx, 32), 1);
        assert_int_equal(no_of(&rx[0]), t - 1);
    }
    assert_int_equal(port_recv(f.b, MS, rx, 32), 0);
    struct port_sim_stats st;
    port_sim_net_stats(f.net, &st);
    assert_int_equal(st.tail_dropped, 10);
    close2(&f);
}

static void red_marks_by_the_length_of_the_queue(void **state)
{
    (void)state;
    struct port_sim_link up = {.rate_bps = 8528000000ull, .ecn_kmin_bytes = 5 * 1066, .ecn_kmax_bytes = 50 * 1066};
    up.ecn_pmax = 0.5;
    uint64_t below = 0, between = 0, above = 0;
    for (uint64_t round = 0; round < 20; round++) {
        struct fix f;
        struct port_rx rx[128];
        open2(&f, seed() + round, &up);
        for (uint32_t i = 0; i < 100; i++)
            assert_int_equal(send_no(f.a, 0, 2, i, 1000, 1), 1);
        assert_int_equal(port_recv(f.b, MS, rx, 128), 100);
        for (int i = 0; i < 100; i++)
            *(i <= 5 ? &below : i < 50 ? &between : &above) += (rx[i].traffic_class & 3) == 3;
        close2(&f);
    }
    assert_int_equal(below, 0);
    near(between, 220, 90);
    assert_true(above >= 20 * 49); /* the queue's bytes are rounded down */
}

static void many_senders_share_the_way_down(void **state)
{
    (void)state;
    struct port_sim_net *net;
    struct port *tx[8], *rx;
    struct port_addr to = addr(100);
    struct port_sim_link down = {.rate_bps = 8528000000ull, .queue_bytes = 40 * 1066};
    assert_int_equal(port_sim_net_new(1, &net), 0);
    assert_int_equal(port_sim_open(net, &to, NULL, &down, &rx), 0);
    for (uint8_t i = 0; i < 8; i++) {
        struct port_addr a = addr((uint8_t)(i + 1));
        assert_int_equal(port_sim_open(net, &a, NULL, NULL, &tx[i]), 0);
        assert_int_equal(port_sim_open(net, &a, NULL, NULL, &tx[i]), -EADDRINUSE);
    }
    for (uint32_t k = 0; k < 10; k++)
        for (int i = 0; i < 8; i++)
            assert_int_equal(send_no(tx[i], 0, 100, k, 1000, 0), 1);
    struct port_rx got[128];
    assert_int_equal(port_recv(rx, 20 * US, got, 128), 20);
    assert_int_equal(port_recv(rx, MS, got, 128), 20);
    struct port_sim_stats st;
    port_sim_net_stats(net, &st);
    assert_int_equal(st.tail_dropped, 40);
    for (int i = 0; i < 8; i++)
        port_close(tx[i]);
    port_close(rx);
    port_sim_net_free(net);
}

static void groups_reach_their_members_and_strangers_nobody(void **state)
{
    (void)state;
    struct fix f;
    struct port_rx rx[4];
    struct port_addr g = {.gid.raw = {[10] = 0xff, [11] = 0xff, 239, 1, 1, 1}};
    open2(&f, 1, NULL);
    assert_int_equal(port_join(f.b, &g, false), -ENOENT);
    assert_int_equal(port_join(f.b, &g, true), 0);
    assert_int_equal(port_join(f.a, &g, true), 0);
    uint8_t buf[32] = {0};
    struct iovec iov = {buf, 32};
    struct port_tx tx = {.from = addr(1), .to = g, .iov = &iov, .niov = 1, .npkts = 1, .last_bytes = 32};
    assert_int_equal(port_send(f.a, 0, &tx, 1), 1);
    assert_int_equal(port_recv(f.b, 0, rx, 4), 1);
    assert_int_equal(port_recv(f.a, 0, rx, 4), 1);
    assert_int_equal(port_join(f.a, &g, false), 0);
    assert_int_equal(port_send(f.a, 0, &tx, 1), 1);
    assert_int_equal(port_recv(f.a, 0, rx, 4), 0);
    assert_int_equal(send_no(f.a, 0, 77, 0, 32, 0), 1);
    assert_int_equal(port_recv(f.b, 0, rx, 4), 1);
    struct port_sim_stats st;
    port_sim_net_stats(f.net, &st);
    assert_int_equal(st.unrouted, 1);
    close2(&f);
}

static void a_full_receive_buffer_drops_and_counts(void **state)
{
    (void)state;
    struct fix f;
    struct uroce_counters c = {0};
    struct port_rx rx[32];
    open2(&f, 1, NULL);
    port_sim_set_rcvbuf(f.b, 5000);
    for (uint32_t i = 0; i < 9; i++)
        assert_int_equal(send_no(f.a, 0, 2, i, 1000, 0), 1);
    assert_int_equal(port_recv(f.b, 0, rx, 32), 5);
    port_counters(f.b, &c);
    assert_int_equal(c.rx_overruns, 4);
    close2(&f);
}

static void a_closed_port_takes_its_packets_along(void **state)
{
    (void)state;
    struct port_sim_link slow = {.delay_ns = MS};
    struct fix f;
    struct port_rx rx[4];
    struct port_addr b = addr(2);
    open2(&f, 1, NULL);
    port_sim_set_link(f.b, NULL, &slow);
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(send_no(f.a, i, 2, i, 500, 0), 1);
    assert_int_equal(port_recv(f.b, MS + 10, rx, 4), 4);
    port_close(f.b);
    assert_int_equal(port_recv(f.a, 2 * MS, rx, 4), 0);
    assert_true(port_sim_net_deadline(f.net) == UINT64_MAX);
    assert_int_equal(port_sim_open(f.net, &b, NULL, NULL, &f.b), 0);
    assert_int_equal(send_no(f.a, 2 * MS, 2, 1, 500, 0), 1);
    assert_int_equal(port_recv(f.b, 2 * MS, rx, 4), 1);
    close2(&f);
}

static void a_seed_repeats_everything(void **state)
{
    (void)state;
    struct port_sim_link up = {.loss = 0.1, .duplicate = 0.1, .reorder = 0.1, .corrupt = 0.1, .ecn_mark = 0.1};
    up.delay_ns = 7 * US, up.jitter_ns = 9 * US, up.reorder_ns = 20 * US, up.rate_bps = 10000000000ull;
    uint64_t s = seed();
    struct result a = flood(s, &up, 3000, US, 2), b = flood(s, &up, 3000, US, 2), c = flood(s + 1, &up, 3000, US, 2);
    assert_true(a.hash == b.hash && a.got == b.got);
    assert_true(a.hash != c.hash);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_arrives_as_its_packets_at_the_stated_time),
        cmocka_unit_test(a_run_that_breaks_the_caps_is_refused),
        cmocka_unit_test(loss_is_near_its_probability),
        cmocka_unit_test(duplicates_come_twice_and_lose_nothing),
        cmocka_unit_test(jitter_keeps_the_order_and_reorder_does_not),
        cmocka_unit_test(corruption_flips_one_bit),
        cmocka_unit_test(only_ecn_capable_packets_are_marked),
        cmocka_unit_test(the_rate_spaces_packets_and_the_queue_drops_its_tail),
        cmocka_unit_test(red_marks_by_the_length_of_the_queue),
        cmocka_unit_test(many_senders_share_the_way_down),
        cmocka_unit_test(groups_reach_their_members_and_strangers_nobody),
        cmocka_unit_test(a_full_receive_buffer_drops_and_counts),
        cmocka_unit_test(a_closed_port_takes_its_packets_along),
        cmocka_unit_test(a_seed_repeats_everything),
    };
    printf("seed %llu\n", (unsigned long long)seed());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
