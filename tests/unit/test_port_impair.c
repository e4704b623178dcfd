/* Impairment rules: their grammar, what each action does in both directions, and that nothing else is touched. */
#include "base/rng.h"
#include "base/util.h"
#include "lib/loop_port.h"
#include "roce/wire.h"
#include "roce/wire_icrc.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#define PAY 256u

static const struct port_addr A = {.gid.raw = {[10] = 0xff, [11] = 0xff, 192, 0, 2, 1}, .udp_port = 0xc001};
static const struct port_addr B = {.gid.raw = {[10] = 0xff, [11] = 0xff, 192, 0, 2, 2}, .udp_port = PORT_UDP};

struct fix {
    struct loop_port *loop;
    struct port *p;
    uint8_t buf[64 * 300];
};

static void start(struct fix *f, const char *rules)
{
    char err[200] = "";
    f->loop = loop_port_new();
    if (port_impair_open(rules, 7, &f->loop->port, &f->p, err, sizeof err))
        fail_msg("%s", err);
}

/* Middle packets of a WRITE from psn on, with their ICRCs for ids 0, 1, ..; payload byte = psn. Returns send's result.
 */
static int send_run(struct fix *f, uint64_t now, uint32_t psn, uint32_t npkts)
{
    const struct wire_flow flow = {
        .df = true, .src = {192, 0, 2, 1}, .dst = {192, 0, 2, 2}, .src_port = A.udp_port, .dst_port = PORT_UDP};
    uint32_t bytes = WIRE_BTH_BYTES + PAY + WIRE_ICRC_BYTES;
    for (uint32_t k = 0; k < npkts; k++) {
        uint8_t *pkt = f->buf + k * bytes;
        struct wire_pkt w = {.opcode = WIRE_RC_WRITE_MIDDLE, .pkey = 0xffff, .dest_qp = 0x11, .payload_len = PAY};
        w.psn = psn_make(psn + k);
        assert_int_equal(wire_encode_head(&w, pkt, WIRE_HEAD_MAX), WIRE_BTH_BYTES);
        memset(pkt + WIRE_BTH_BYTES, (int)(psn + k), PAY);
        uint32_t icrc = wire_icrc_of(&flow, (uint16_t)k, pkt, bytes);
        memcpy(pkt + bytes - 4, &icrc, 4);
    }
    struct iovec iov = {f->buf, npkts * bytes};
    struct port_tx tx = {.from = A, .to = B, .iov = &iov, .niov = 1, .npkts = npkts, .seg_bytes = bytes};
    tx.last_bytes = bytes;
    tx.traffic_class = 2;
    tx.stays = true;
    return port_send(f->p, now, &tx, 1);
}

/* What comes out, as text: PSNs; '!' a wrong ICRC for the id it was sent with, '*' marked. */
static char *receive(struct fix *f, uint64_t now)
{
    static char text[4096];
    static struct wire_icrc_tab tab;
    struct port_rx rx[16];
    int n;
    wire_icrc_tab_init(&tab);
    text[0] = 0;
    while ((n = port_recv(f->p, now, rx, 16)) > 0) {
        for (int i = 0; i < n; i++) {
            struct wire_pkt w;
            uint16_t id = 0;
            assert_true(wire_decode(rx[i].data, rx[i].len, &w) > 0);
            for (int j = 0; j < f->loop->npkts; j++)
                if (f->loop->pkts[j].data == rx[i].data)
                    id = f->loop->pkts[j].id;
            struct wire_flow flow = {.df = true,
                                     .src = {192, 0, 2, 1},
                                     .dst = {192, 0, 2, 2},
                                     .src_port = rx[i].from.udp_port,
                                     .dst_port = PORT_UDP};
            struct wire_icrc_ids ids = {.known = true, .id = id};
            bool bad = wire_icrc_verify(&tab, &flow, &ids, rx[i].data, rx[i].len, NULL) < 0;
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%u%s%s", *text ? " " : "", w.psn.v,
                     bad ? "!" : "", (rx[i].traffic_class & 3) == 3 ? "*" : "");
        }
    }
    return text;
}

static void acted(struct fix *f, int rule, uint64_t want_matched, uint64_t want_acted)
{
    uint64_t m, a;
    assert_int_equal(port_impair_counters(f->p, rule, &m, &a), 0);
    assert_int_equal(m, want_matched);
    assert_int_equal(a, want_acted);
}

static void a_run_that_no_rule_touches_passes_as_it_is(void **state)
{
    (void)state;
    struct fix f;
    start(&f, "drop tx psn=50-60\n# a comment\n\n drop rx qpn=0x12 ; drop opcode=SEND_ONLY");
    assert_int_equal(send_run(&f, 0, 1, 5), 1);
    assert_int_equal(f.loop->nruns, 1);
    assert_int_equal(f.loop->runs[0].npkts, 5);
    assert_true(f.loop->runs[0].stays);
    assert_string_equal(receive(&f, 0), "1 2 3 4 5");
    acted(&f, 0, 0, 0);
    port_close(f.p);
}

static void dropped_packets_split_their_run_and_icrcs_stay_right(void **state)
{
    (void)state;
    struct fix f;
    start(&f, "drop tx psn=3; drop tx qpn=0x11 opcode=RC_WRITE_MIDDLE psn=0xffffff-0");
    assert_int_equal(send_run(&f, 0, 1, 5), 1);
    assert_string_equal(receive(&f, 0), "1 2 4 5");
    assert_false(f.loop->runs[0].stays);
    assert_int_equal(send_run(&f, 0, 0xfffffe, 4), 1);
    assert_string_equal(receive(&f, 0), "16777214 1");
    acted(&f, 0, 1, 1);
    acted(&f, 1, 2, 2);
    uint64_t x;
    assert_int_equal(port_impair_counters(f.p, 2, &x, &x), -ENOENT);
    assert_int_equal(port_impair_counters(&f.loop->port, 0, &x, &x), -ENOENT);
    port_close(f.p);
}

static void nth_every_shots_and_prob_choose_among_those_that_match(void **state)
{
    (void)state;
    struct fix f;
    start(&f, "drop rx nth=2; drop rx every=4 shots=2; drop rx prob=0");
    assert_int_equal(send_run(&f, 0, 1, 16), 1);
    /* The second rule sees what the first lets pass: all but the 2nd. */
    assert_string_equal(receive(&f, 0), "1 3 4 6 7 8 10 11 12 13 14 15 16");
    acted(&f, 0, 16, 1);
    acted(&f, 1, 15, 2);
    acted(&f, 2, 13, 0);
    port_close(f.p);
    start(&f, "drop prob=0.5");
    for (int i = 0; i < 40; i++)
        assert_int_equal(send_run(&f, 0, 1, 50), 1);
    assert_true(f.loop->npkts > 800 && f.loop->npkts < 1200);
    port_close(f.p);
}

static void delayed_packets_are_overtaken_and_come_at_their_time(void **state)
{
    (void)state;
    struct fix f;
    start(&f, "delay tx us=100 psn=2; delay rx us=50 psn=4");
    assert_int_equal(send_run(&f, 1000, 1, 5), 1);
    assert_true(port_deadline(f.p) == 101000);
    assert_string_equal(receive(&f, 1000), "1 3 5");
    assert_true(port_deadline(f.p) == 51000);
    assert_false(port_arm(f.p));
    assert_string_equal(receive(&f, 50999), "");
    assert_string_equal(receive(&f, 51000), "4");
    assert_string_equal(receive(&f, 101000), "2");
    assert_true(port_deadline(f.p) == UINT64_MAX);
    port_close(f.p);
}

static void duplicates_corruption_and_marks(void **state)
{
    (void)state;
    struct fix f;
    start(&f, "duplicate tx psn=1; corrupt tx psn=2 byte=100; mark tx psn=3; duplicate rx psn=4; corrupt rx psn=5; "
              "mark rx psn=6");
    assert_int_equal(send_run(&f, 0, 1, 7), 1);
    /* A copy made on receive comes with the next call. Byte 5 may be any: its PSN too. */
    struct port_rx rx[16];
    assert_int_equal(port_recv(f.p, 0, rx, 16), 8);
    int wrong = 0, last[8] = {1, 1, 2, 3, 4, 5, 6, 7};
    for (int i = 0; i < 8; i++) {
        int bits = 0;
        for (uint32_t j = WIRE_BTH_BYTES; j < WIRE_BTH_BYTES + PAY; j++)
            bits += __builtin_popcount((unsigned)(rx[i].data[j] ^ last[i]));
        assert_true(bits <= 1);
        wrong += bits;
        assert_int_equal((rx[i].traffic_class & 3) == 3, last[i] == 3 || last[i] == 6);
    }
    assert_true(wrong >= 1 && wrong <= 2);
    assert_true(port_arm(f.p));
    assert_string_equal(receive(&f, 0), "4");
    port_close(f.p);
}

static void no_room_below_is_no_loss_and_keeps_the_order(void **state)
{
    (void)state;
    struct fix f;
    start(&f, "duplicate tx psn=2");
    f.loop->room = 2;
    assert_int_equal(send_run(&f, 0, 1, 3), 1); /* becomes four packets, of which two go */
    assert_int_equal(send_run(&f, 0, 4, 3), 0);
    assert_true(port_deadline(f.p) == UINT64_MAX);
    f.loop->room = 2;
    assert_int_equal(send_run(&f, 0, 4, 3), 1);
    f.loop->room = -1;
    assert_string_equal(receive(&f, 0), "1 2 2 3 4 5 6");
    port_close(f.p);
}

static void payload_that_lies_elsewhere_is_fetched_before_it_is_held(void **state)
{
    (void)state;
    struct fix f;
    start(&f, "delay rx us=1 psn=2; duplicate rx psn=3");
    f.loop->remote = true;
    assert_int_equal(send_run(&f, 0, 1, 3), 1);
    struct port_rx rx[16];
    assert_int_equal(port_recv(f.p, 0, rx, 16), 2);
    assert_true(rx[0].copy && rx[1].copy && rx[0].remote_len == PAY);
    assert_int_equal(port_recv(f.p, 1000, rx, 16), 2);
    for (int i = 0; i < 2; i++) {
        assert_null(rx[i].copy);
        assert_int_equal(rx[i].len, WIRE_BTH_BYTES + PAY + WIRE_ICRC_BYTES);
        for (uint32_t j = 0; j < PAY; j++)
            assert_int_equal(rx[i].data[WIRE_BTH_BYTES + j], i ? 2 : 3);
    }
    port_close(f.p);
}

static void a_wrong_rule_names_its_word_and_leaves_the_port_below(void **state)
{
    static const char *const wrong[][2] = {
        {"lose rx", "'lose'"},
        {"drop sideways", "'sideways'"},
        {"drop psn=5-x", "'psn=5-x'"},
        {"drop psn=", "'psn='"},
        {"drop qpn=0x1000000", "'qpn=0x1000000'"},
        {"drop opcode=SEND_FIST", "SEND_FIST"},
        {"drop opcode=|", "opcode=|"},
        {"drop addr=1.2.3", "'addr=1.2.3'"},
        {"drop prob=2", "'prob=2'"},
        {"drop prob=nan", "'prob=nan'"},
        {"drop nth=0", "'nth=0'"},
        {"drop us=5", "'us=5'"},
        {"delay rx", "us="},
        {"delay us=-1", "'us=-1'"},
        {"drop byte=4", "'byte=4'"},
        {"drop opcode=9-3", "'opcode=9-3'"},
        {"drop; mark; corrupt byte=x", "rule 2"},
    };
    (void)state;
    struct loop_port *l = loop_port_new();
    bool closed = false;
    struct port *p = NULL;
    l->closed = &closed;
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        char err[200] = "";
        assert_int_equal(port_impair_open(wrong[i][0], 1, &l->port, &p, err, sizeof err), -EINVAL);
        if (!strstr(err, wrong[i][1]))
            fail_msg("%s: %s", wrong[i][0], err);
    }
    char many[65 * 6 + 1] = "", err[200];
    for (int i = 0; i < 65; i++)
        strcat(many, "drop;");
    assert_int_equal(port_impair_open(many, 1, &l->port, &p, err, sizeof err), -EINVAL);
    assert_null(p);
    assert_false(closed);
    port_close(&l->port);
    assert_true(closed);
}

static void addresses_and_opcodes_match_by_name_number_and_range(void **state)
{
    static const char *const takes[] = {"opcode=7",       "opcode=WRITE_MIDDLE", "opcode=SEND_ONLY|0x6-0x8",
                                        "addr=192.0.2.1", "addr=192.0.2.2",      "addr=::ffff:192.0.2.2",
                                        "qpn=17",         "qpn=0x10-0x20"};
    static const char *const leaves[] = {
        "opcode=8-255", "opcode=UC_WRITE_MIDDLE", "addr=192.0.2.3", "addr=2001:db8::1", "qpn=18", "rx"};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(takes) + ARRAY_SIZE(leaves); i++) {
        struct fix f;
        char rule[100];
        bool take = i < ARRAY_SIZE(takes);
        snprintf(rule, sizeof rule, "drop tx %s", take ? takes[i] : leaves[i - ARRAY_SIZE(takes)]);
        if (i == ARRAY_SIZE(takes) + ARRAY_SIZE(leaves) - 1)
            strcpy(rule, "drop rx addr=192.0.2.9");
        start(&f, rule);
        assert_int_equal(send_run(&f, 0, 1, 1), 1);
        assert_string_equal(receive(&f, 0), take ? "" : "1");
        port_close(f.p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_that_no_rule_touches_passes_as_it_is),
        cmocka_unit_test(dropped_packets_split_their_run_and_icrcs_stay_right),
        cmocka_unit_test(nth_every_shots_and_prob_choose_among_those_that_match),
        cmocka_unit_test(delayed_packets_are_overtaken_and_come_at_their_time),
        cmocka_unit_test(duplicates_corruption_and_marks),
        cmocka_unit_test(no_room_below_is_no_loss_and_keeps_the_order),
        cmocka_unit_test(payload_that_lies_elsewhere_is_fetched_before_it_is_held),
        cmocka_unit_test(a_wrong_rule_names_its_word_and_leaves_the_port_below),
        cmocka_unit_test(addresses_and_opcodes_match_by_name_number_and_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
