/* The invariant CRC: against a plain one, by parts, under another IPv4 id, and as a check of what was received. */
#include "../wire/roce_frames.h"

#include "base/util.h"
#include "icrc_priv.h"
#include "../lib/seed.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed;
static struct wire_icrc_tab tab;
static uint8_t room[WIRE_PAYLOAD_MAX], buf[WIRE_PKT_MAX];

/* Bit by bit, over a header made from the text of the annex. */
static uint32_t plain_icrc(const struct wire_flow *f, uint16_t id, const uint8_t *pkt, uint32_t n)
{
    uint8_t b[8 + 40 + 8 + WIRE_PKT_MAX], *at = b + 8;
    uint32_t crc = 0xffffffff, udp = 8 + n, ip4 = 20 + udp;

    memset(b, 0xff, 8);
    if (f->v6) {
        const uint8_t head[8] = {0x6f, 0xff, 0xff, 0xff, (uint8_t)(udp >> 8), (uint8_t)udp, 17, 0xff};
        memcpy(at, head, 8);
        memcpy(at + 8, f->src, 16);
        memcpy(at + 24, f->dst, 16);
        at += 40;
    } else {
        const uint8_t head[12] = {0x45,
                                  0xff,
                                  (uint8_t)(ip4 >> 8),
                                  (uint8_t)ip4,
                                  (uint8_t)(id >> 8),
                                  (uint8_t)id,
                                  f->df ? 0x40 : 0,
                                  0,
                                  0xff,
                                  17,
                                  0xff,
                                  0xff};
        memcpy(at, head, 12);
        memcpy(at + 12, f->src, 4);
        memcpy(at + 16, f->dst, 4);
        at += 20;
    }
    const uint8_t head[8] = {(uint8_t)(f->src_port >> 8),
                             (uint8_t)f->src_port,
                             (uint8_t)(f->dst_port >> 8),
                             (uint8_t)f->dst_port,
                             (uint8_t)(udp >> 8),
                             (uint8_t)udp,
                             0xff,
                             0xff};
    memcpy(at, head, 8);
    memcpy(at + 8, pkt, n - 4);
    at[8 + 4] = 0xff;
    at += 8 + n - 4;
    for (const uint8_t *p = b; p < at; p++) {
        crc ^= *p;
        for (int i = 0; i < 8; i++)
            crc = crc & 1 ? crc >> 1 ^ 0xedb88320 : crc >> 1;
    }
    return ~crc;
}

static uint32_t random_packet(struct rng *r, struct wire_flow *f, uint16_t id)
{
    struct wire_pkt p;
    uint8_t op = 0;

    roce_opcode((unsigned)rng_below(r, roce_opcodes()), &op);
    roce_random_pkt(r, op, rng_below(r, 2) ? 32 : WIRE_PAYLOAD_MAX, room, &p);
    roce_random_flow(r, f);
    return roce_build(&p, f, id, buf);
}

static uint32_t sent_icrc(uint32_t n)
{
    return (uint32_t)buf[n - 1] << 24 | (uint32_t)buf[n - 2] << 16 | (uint32_t)buf[n - 3] << 8 | buf[n - 4];
}

static void it_is_the_crc_of_the_annex(void **state)
{
    struct wire_flow f;
    struct rng r;

    (void)state;
    rng_seed(&r, seed);
    for (int i = 0; i < 300; i++) {
        uint16_t id = (uint16_t)rng_u64(&r);
        uint32_t n = random_packet(&r, &f, id);

        assert_int_equal(sent_icrc(n), plain_icrc(&f, id, buf, n));
        assert_int_equal(wire_icrc_of(&f, id, buf, n), sent_icrc(n));
    }
}

/* Only ::ffff:0:0/96 is IPv4: addresses that begin with zeros as it does are not. */
static void ipv4_is_told_from_ipv6(void **state)
{
    static const union uroce_gid v4 = {.raw = {[10] = 0xff, [11] = 0xff, 192, 0, 2, 7}}, loopback = {.raw = {[15] = 1}};
    char text[WIRE_GID_TEXT];
    struct wire_flow f;
    (void)state;
    assert_true(wire_gid_is_v4(&v4));
    assert_false(wire_gid_is_v4(&loopback));
    assert_string_equal(wire_gid_text(&v4, text), "192.0.2.7");
    assert_string_equal(wire_gid_text(&loopback, text), "::1");
    wire_flow_init(&f, &v4, &v4, 1, 2);
    assert_false(f.v6);
    assert_memory_equal(f.dst, v4.raw + 12, 4);
    wire_flow_init(&f, &loopback, &loopback, 1, 2);
    assert_true(f.v6);
    assert_memory_equal(f.src, loopback.raw, 16);
}

static void what_routers_change_is_not_covered(void **state)
{
    struct wire_flow f = {.v6 = true, .dst_port = WIRE_UDP_PORT};
    struct wire_pkt p = {.opcode = WIRE_RC_ACK}, marked = {.opcode = WIRE_RC_ACK, .fecn = true, .becn = true};
    uint8_t other[WIRE_PKT_MAX];
    uint32_t n = roce_build(&p, &f, 0, buf);

    (void)state;
    roce_build(&marked, &f, 99, other);
    assert_memory_equal(buf + n - 4, other + n - 4, 4);
    assert_memory_not_equal(buf, other, n - 4);
}

static void both_ways_to_multiply_agree(void **state)
{
    struct rng r;

    (void)state;
    rng_seed(&r, seed + 5);
    assert_int_equal(icrc_times(1u << 31, 0x12345678), 0x12345678);
    assert_int_equal(icrc_times(0, 0xffffffff), 0);
    for (int i = 0; i < 10000; i++) {
        uint32_t a = (uint32_t)rng_u64(&r), b = (uint32_t)rng_u64(&r);
        assert_int_equal(icrc_times(a, b), icrc_times_plain(a, b));
        assert_int_equal(icrc_times(a, b), icrc_times(b, a));
    }
}

static void packets_of_a_run_have_the_same_icrc_as_alone(void **state)
{
    struct wire_icrc_run run;
    struct wire_icrc_ids ids = {.solve = true};
    struct wire_flow f;
    struct rng r;

    (void)state;
    rng_seed(&r, seed + 6);
    for (int i = 0; i < 300; i++) {
        uint16_t id = (uint16_t)(i & 1 ? rng_below(&r, 128) : rng_u64(&r)), found = 0;
        uint32_t n = random_packet(&r, &f, id), head = (uint32_t)min_u64(n - WIRE_ICRC_BYTES, WIRE_HEAD_MAX);
        struct wire_icrc c;

        wire_icrc_run_init(&run, &tab, &f, n);
        wire_icrc_run_begin(&c, &run, buf, head);
        wire_icrc_add(&c, buf + head, n - head - WIRE_ICRC_BYTES);
        assert_int_equal(wire_icrc_run_id(&run, wire_icrc_end(&c, 0), id), sent_icrc(n));
        assert_int_equal(wire_icrc_run_id(&run, wire_icrc_run_of(&run, buf), id), sent_icrc(n));
        assert_int_equal(wire_icrc_run_verify(&run, &ids, buf, &found), f.v6 ? WIRE_ICRC_FULL : WIRE_ICRC_SOLVED);
        assert_int_equal(found, f.v6 ? 0 : id);
        buf[n - 1] ^= 0x80;
        assert_int_equal(wire_icrc_run_verify(&run, &ids, buf, NULL), -EILSEQ);
    }
}

static void another_id_is_a_step_away(void **state)
{
    struct wire_flow f;
    struct rng r;

    (void)state;
    rng_seed(&r, seed + 1);
    for (int i = 0; i < 1000; i++) {
        uint16_t from = (uint16_t)rng_u64(&r), to = (uint16_t)(i & 1 ? rng_below(&r, 64) : rng_u64(&r));
        uint32_t n;

        do {
            n = random_packet(&r, &f, from);
        } while (f.v6);
        assert_int_equal(wire_icrc_reid(&tab, sent_icrc(n), n, from, to), wire_icrc_of(&f, to, buf, n));
    }
}

static void the_id_is_found_and_the_kind_of_check_is_told(void **state)
{
    struct rng r;

    (void)state;
    rng_seed(&r, seed + 2);
    for (int i = 0; i < 2000; i++) {
        uint16_t id = (uint16_t)(i & 1 ? rng_below(&r, 64) : rng_u64(&r)), found = 1;
        struct wire_icrc_ids solve = {.set = 64, .solve = true}, set = {.set = 64}, known = {.known = true, .id = id};
        struct wire_flow f;
        uint32_t n = random_packet(&r, &f, id);

        assert_int_equal(wire_icrc_verify(&tab, &f, &known, buf, n, NULL), WIRE_ICRC_FULL);
        if (f.v6) {
            assert_int_equal(wire_icrc_verify(&tab, &f, &set, buf, n, &found), WIRE_ICRC_FULL);
            assert_int_equal(found, 0);
            continue;
        }
        assert_int_equal(wire_icrc_verify(&tab, &f, &solve, buf, n, &found),
                         id < 64 ? WIRE_ICRC_SET : WIRE_ICRC_SOLVED);
        assert_int_equal(found, id);
        assert_int_equal(wire_icrc_verify(&tab, &f, &set, buf, n, &found), id < 64 ? WIRE_ICRC_SET : -EILSEQ);
        known.id ^= (uint16_t)(1u << rng_below(&r, 16));
        assert_int_equal(wire_icrc_verify(&tab, &f, &known, buf, n, NULL), -EILSEQ);
    }
}

/* With the id unknown too: at no distance in a packet that is allowed does a single bit look like a change of the id.
 */
static void every_flipped_bit_is_noticed(void **state)
{
    struct rng r;

    (void)state;
    rng_seed(&r, seed + 3);
    for (int i = 0; i < 40; i++) {
        struct wire_icrc_ids solve = {.solve = true};
        struct wire_flow f;
        uint32_t n = random_packet(&r, &f, (uint16_t)rng_u64(&r));
        uint16_t found = 77;

        for (uint32_t bit = 0; bit < n * 8; bit += 1 + (uint32_t)rng_below(&r, 1 + n / 16)) {
            if (bit / 8 == 4)
                continue; /* the byte of FECN and BECN */
            buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
            assert_int_equal(wire_icrc_verify(&tab, &f, &solve, buf, n, &found), -EILSEQ);
            buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        assert_int_equal(found, 77);
    }
}

/* What solving is worth: 16 bits. Of random damage, about one in 65,536 passes. */
static void solving_leaves_a_check_of_sixteen_bits(void **state)
{
    struct wire_flow f = {.df = true};
    struct wire_pkt p = {.opcode = WIRE_RC_ACK};
    struct wire_icrc_ids solve = {.solve = true}, set = {.set = 64};
    uint32_t n = roce_build(&p, &f, 0, buf), solved = 0, in_set = 0;
    const uint32_t tries = 1u << 20;
    struct rng r;

    (void)state;
    rng_seed(&r, seed + 4);
    for (uint32_t i = 0; i < tries; i++) {
        uint32_t v = (uint32_t)rng_u64(&r);

        memcpy(buf + n - 4, &v, 4);
        solved += wire_icrc_verify(&tab, &f, &solve, buf, n, NULL) >= 0;
        in_set += wire_icrc_verify(&tab, &f, &set, buf, n, NULL) >= 0;
    }
    /* 16 are expected; 60 or none at all have a chance under 1e-7. */
    assert_in_range(solved, 1, 60);
    assert_in_range(in_set, 0, 3);
}

static void a_datagram_receive_gets_the_header_that_verbs_programs_expect(void **state)
{
    struct wire_flow v4 = {.df = true, .src = {10, 0, 0, 1}, .dst = {10, 0, 0, 2}}, v6 = {.v6 = true, .src = {0xfd}};
    uint8_t grh[WIRE_GRH_BYTES], zeros[20] = {0};
    uint32_t sum = 0;

    (void)state;
    wire_grh(&v4, 2, 64, 100, grh);
    assert_memory_equal(grh, zeros, 20);
    assert_int_equal(grh[20], 0x45);
    assert_int_equal(grh[21], 2);
    assert_int_equal(grh[22] << 8 | grh[23], 128);
    assert_int_equal(grh[28], 64);
    assert_memory_equal(grh + 32, v4.src, 4);
    assert_memory_equal(grh + 36, v4.dst, 4);
    /* rdma-core tells IPv4 from IPv6 by a right checksum. */
    for (int i = 20; i < 40; i += 2)
        sum += (uint32_t)grh[i] << 8 | grh[i + 1];
    assert_int_equal((sum & 0xffff) + (sum >> 16), 0xffff);
    wire_grh(&v6, 0xb8, 5, 100, grh);
    assert_int_equal(grh[0], 0x6b);
    assert_int_equal(grh[1], 0x80);
    assert_int_equal(grh[4] << 8 | grh[5], 108);
    assert_int_equal(grh[6], 17);
    assert_int_equal(grh[7], 5);
    assert_memory_equal(grh + 8, v6.src, 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_the_crc_of_the_annex),
        cmocka_unit_test(ipv4_is_told_from_ipv6),
        cmocka_unit_test(what_routers_change_is_not_covered),
        cmocka_unit_test(both_ways_to_multiply_agree),
        cmocka_unit_test(packets_of_a_run_have_the_same_icrc_as_alone),
        cmocka_unit_test(another_id_is_a_step_away),
        cmocka_unit_test(the_id_is_found_and_the_kind_of_check_is_told),
        cmocka_unit_test(every_flipped_bit_is_noticed),
        cmocka_unit_test(solving_leaves_a_check_of_sixteen_bits),
        cmocka_unit_test(a_datagram_receive_gets_the_header_that_verbs_programs_expect),
    };

    seed = seed_new();
    wire_icrc_tab_init(&tab);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
