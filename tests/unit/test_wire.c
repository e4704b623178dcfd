/* The RoCEv2 codec: opcodes, packets, limits, hello. */
#include "../wire/roce_frames.h"

#include "base/util.h"
#include "roce/wire_mad.h"
#include "../lib/seed.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed;

static void every_opcode_has_the_bytes_of_its_headers(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 256; i++) {
        const struct wire_op *o = wire_op((uint8_t)i);
        unsigned n;

        if (!o) {
            assert_string_equal(wire_op_name((uint8_t)i), "?");
            continue;
        }
        n = WIRE_BTH_BYTES + o->deth * WIRE_DETH_BYTES + o->xrceth * WIRE_XRCETH_BYTES + o->reth * WIRE_RETH_BYTES +
            o->atomic * WIRE_ATOMIC_BYTES + o->aeth * WIRE_AETH_BYTES + o->atomic_ack * WIRE_ATOMIC_ACK_BYTES +
            o->sack * WIRE_SACK_BYTES + o->imm * WIRE_IMM_BYTES + o->ieth * WIRE_IETH_BYTES + o->cnp * WIRE_CNP_BYTES;
        assert_int_equal(o->head_bytes, n);
        assert_true(n <= (o->has_payload ? WIRE_HEAD_PAYLOAD_MAX : WIRE_HEAD_MAX));
        assert_string_equal(wire_op_name((uint8_t)i), o->name);
    }
    assert_int_equal(roce_opcodes(), 23 + 12 + 2 + 23 + 2);
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

/* The name is written once more by a person: it and the properties must agree. */
static void properties_of_an_opcode_are_those_of_its_name(void **state)
{
    uint8_t code;

    (void)state;
    for (unsigned i = 0; roce_opcode(i, &code); i++) {
        const struct wire_op *o = wire_op(code);
        bool xrc = !strncmp(o->name, "XRC_", 4), request = o->kind == WIRE_KIND_REQUEST;
        const char *n = o->name;

        assert_int_equal(o->xrceth, xrc && request);
        assert_int_equal(o->deth, !strncmp(n, "UD_", 3));
        assert_int_equal(o->imm, ends_with(n, "_IMM"));
        assert_int_equal(o->ieth, ends_with(n, "_INV"));
        assert_int_equal(o->atomic, ends_with(n, "_CMP_SWAP") || ends_with(n, "_FETCH_ADD"));
        assert_int_equal(o->aeth, strstr(n, "ACK") || (strstr(n, "RESP") && !strstr(n, "MIDDLE")));
        assert_int_equal(o->reth, (strstr(n, "WRITE_") && o->first) || ends_with(n, "READ_REQUEST"));
        assert_int_equal(o->first && !o->last, strstr(n, "_FIRST") != NULL);
        assert_int_equal(wire_op_middle(o), strstr(n, "_MIDDLE") != NULL);
        assert_int_equal(o->last && !o->first, strstr(n, "_LAST") != NULL);
        assert_int_equal(o->has_payload, strstr(n, "SEND") || strstr(n, "WRITE") || strstr(n, "RESP") || o->sack);
        assert_int_equal(o->kind == WIRE_KIND_RESPONSE, strstr(n, "RESP_") || strstr(n, "ATOMIC_ACK"));
        /* XRC is RC plus 0xa0, row for row. */
        if (xrc) {
            const struct wire_op *rc = wire_op((uint8_t)(code - 0xa0));
            assert_string_equal(rc->name, n + 1);
            assert_int_equal(rc->verb, o->verb);
            assert_int_equal(rc->kind, o->kind);
        }
    }
}

static void a_packet_comes_out_as_it_went_in(void **state)
{
    static uint8_t room[WIRE_PAYLOAD_MAX], buf[WIRE_PKT_MAX];
    struct wire_pkt in, out;
    struct wire_flow flow;
    struct rng r;
    uint8_t op;

    (void)state;
    rng_seed(&r, seed);
    for (unsigned round = 0; round < 200; round++)
        for (unsigned i = 0; roce_opcode(i, &op); i++) {
            uint32_t n;

            roce_random_pkt(&r, op, round % 4 ? 64 : WIRE_PAYLOAD_MAX, room, &in);
            roce_random_flow(&r, &flow);
            n = roce_build(&in, &flow, 7, buf);
            assert_int_equal(n, wire_pkt_bytes(&in));
            assert_int_equal(n % 4, 0);
            assert_int_equal(wire_decode(buf, n, &out), wire_op(op)->head_bytes);
            assert_true(roce_same(&in, &out));
            assert_int_equal(out.pad, wire_pad(in.payload_len));
            assert_ptr_equal(out.payload, buf + wire_op(op)->head_bytes);
            assert_int_equal(out.icrc, wire_icrc_of(&flow, 7, buf, n));
        }
}

/* Copies of exactly len bytes, so that a sanitizer sees a read past the end. */
static int decode_copy(const uint8_t *buf, size_t len, struct wire_pkt *ret)
{
    uint8_t *p = malloc(len ? len : 1);
    int rc;

    assert_non_null(p);
    memcpy(p, buf, len);
    rc = wire_decode(p, len, ret);
    free(p);
    return rc;
}

static void every_cut_is_refused_or_a_shorter_payload(void **state)
{
    static uint8_t room[WIRE_PAYLOAD_MAX], buf[WIRE_PKT_MAX];
    struct wire_pkt in, out, before;
    struct wire_flow flow = {0};
    struct rng r;
    uint8_t op;

    (void)state;
    rng_seed(&r, seed + 1);
    memset(&before, 0xa5, sizeof before);
    for (unsigned i = 0; roce_opcode(i, &op); i++) {
        uint32_t n;

        roce_random_pkt(&r, op, 64, room, &in);
        n = roce_build(&in, &flow, 0, buf);
        for (uint32_t len = 0; len < n; len++) {
            int rc;

            out = before;
            rc = decode_copy(buf, len, &out);
            if (len < wire_op(op)->head_bytes + wire_pad(in.payload_len) + WIRE_ICRC_BYTES)
                assert_int_equal(rc, -ENODATA);
            else if (len % 4)
                assert_int_equal(rc, -EBADMSG);
            else if (wire_op(op)->sack)
                assert_int_equal(rc, -EPROTO);
            if (rc < 0)
                assert_memory_equal(&out, &before, sizeof out);
            else
                assert_true(out.payload_len < in.payload_len);
        }
    }
}

static void what_is_malformed_is_refused_by_its_reason(void **state)
{
    static uint8_t buf[2 * WIRE_PKT_MAX];
    struct wire_pkt p;

    (void)state;
    memset(buf, 0, sizeof buf);
    assert_int_equal(wire_decode(buf, WIRE_PKT_MAX + 4, &p), -EMSGSIZE);
    /* A SEND has shorter headers than the longest packet: its payload would be too long. */
    assert_int_equal(wire_decode(buf, WIRE_BTH_BYTES + WIRE_PAYLOAD_MAX + 4 + WIRE_ICRC_BYTES, &p), -EMSGSIZE);
    assert_int_equal(wire_decode(buf, WIRE_BTH_BYTES + WIRE_PAYLOAD_MAX + WIRE_ICRC_BYTES, &p), WIRE_BTH_BYTES);
    buf[1] = 0x01;
    assert_int_equal(wire_decode(buf, 16, &p), -EPROTONOSUPPORT);
    /* Version is looked at before the opcode, which may mean another thing in another version. */
    buf[0] = 0xff;
    assert_int_equal(wire_decode(buf, 16, &p), -EPROTONOSUPPORT);
    buf[1] = 0;
    assert_int_equal(wire_decode(buf, 16, &p), -EOPNOTSUPP);
    buf[0] = WIRE_RC_ACK;
    assert_int_equal(wire_decode(buf, 20, &p), 16);
    assert_int_equal(wire_decode(buf, 24, &p), -EBADMSG);
    buf[0] = WIRE_RC_SEND_ONLY;
    buf[1] = 0x10;
    assert_int_equal(wire_decode(buf, 16, &p), -ENODATA);
    assert_int_equal(wire_decode(buf, 20, &p), 12);
    assert_int_equal(p.payload_len, 3);
    assert_int_equal(wire_decode(buf, 19, &p), -EBADMSG);
}

static void an_acknowledgement_that_contradicts_itself_is_refused(void **state)
{
    uint8_t buf[WIRE_PKT_MAX], bitmap[WIRE_SACK_BITMAP_MAX] = {0};
    struct wire_pkt p = {.opcode = WIRE_SACK, .sack_bits = 40, .payload_len = 8, .payload = bitmap}, out;
    struct wire_flow flow = {0};
    uint32_t n;

    (void)state;
    wire_sack_set(bitmap, 39);
    n = roce_build(&p, &flow, 0, buf);
    assert_int_equal(wire_decode(buf, n, &out), 24);
    assert_true(wire_sack_test(out.payload, 39));
    buf[24] = 1; /* the first bit is of a PSN that is missing */
    assert_int_equal(wire_decode(buf, n, &out), -EPROTO);
    buf[24] = 0;
    buf[24 + 5] = 1; /* bit 40 is past the end */
    assert_int_equal(wire_decode(buf, n, &out), -EPROTO);
    buf[24 + 5] = 0;
    buf[16 + 5] = 65; /* more bits than the bitmap has */
    assert_int_equal(wire_decode(buf, n, &out), -EPROTO);
    p.sack_bits = WIRE_SACK_BITS_MAX + 1;
    assert_int_equal(wire_encode_head(&p, buf, sizeof buf), -EINVAL);
}

static void what_cannot_be_said_is_not_encoded(void **state)
{
    uint8_t buf[WIRE_HEAD_MAX];
    struct wire_pkt p = {.opcode = WIRE_RC_ACK};

    (void)state;
    assert_int_equal(wire_encode_head(&p, buf, sizeof buf), 16);
    assert_int_equal(wire_encode_head(&p, buf, 15), -ENOSPC);
#define REFUSED(...)                                                                                                   \
    do {                                                                                                               \
        struct wire_pkt bad = {__VA_ARGS__};                                                                           \
        assert_int_equal(wire_encode_head(&bad, buf, sizeof buf), -EINVAL);                                            \
    } while (0)
    REFUSED(.opcode = 0x15);
    REFUSED(.opcode = 0xff);
    REFUSED(.opcode = WIRE_RC_ACK, .payload_len = 4);
    REFUSED(.opcode = WIRE_RC_ACK, .tver = 1);
    REFUSED(.opcode = WIRE_RC_ACK, .msn = 1u << 24);
    REFUSED(.opcode = WIRE_RC_ACK, .dest_qp = 1u << 24);
    REFUSED(.opcode = WIRE_RC_ACK, .psn = {1u << 24});
    REFUSED(.opcode = WIRE_UD_SEND_ONLY, .src_qp = 1u << 24);
    REFUSED(.opcode = WIRE_XRC_SEND_ONLY, .srqn = 1u << 24);
    REFUSED(.opcode = WIRE_RC_SEND_ONLY, .payload_len = WIRE_PAYLOAD_MAX + 1);
#undef REFUSED
}

static void random_bytes_do_no_harm(void **state)
{
    uint8_t buf[256];
    struct wire_pkt p;
    struct wire_hello h;
    struct rng r;

    (void)state;
    rng_seed(&r, seed + 2);
    for (unsigned i = 0; i < 20000; i++) {
        size_t n = (size_t)rng_below(&r, sizeof buf + 1);
        int rc;

        rng_fill(&r, buf, n);
        if (i & 1 && n > 1)
            buf[1] &= 0xf0;
        rc = decode_copy(buf, n, &p);
        if (rc < 0)
            assert_true(wire_drop_of(rc) < WIRE_DROPS);
        else
            assert_int_equal(rc + p.payload_len + p.pad + WIRE_ICRC_BYTES, n);
        assert_true(wire_hello_decode(buf, n, &h) < 0);
    }
}

static void reasons_have_names(void **state)
{
    (void)state;
    for (int d = 0; d < WIRE_DROPS; d++)
        assert_string_not_equal(wire_drop_name((enum wire_drop)d), "?");
    assert_string_equal(wire_drop_name(WIRE_DROPS), "?");
    assert_int_equal(wire_drop_of(-EILSEQ), WIRE_DROP_ICRC);
    assert_int_equal(wire_drop_of(-EPROTO), WIRE_DROP_FIELD);
}

static void sequence_numbers_wrap(void **state)
{
    psn24 last = psn_make(0xffffff), zero = psn_next(last);

    (void)state;
    assert_int_equal(zero.v, 0);
    assert_int_equal(psn_prev(zero).v, 0xffffff);
    assert_int_equal(psn_diff(zero, last), 1);
    assert_int_equal(psn_diff(last, zero), -1);
    assert_true(psn_lt(last, zero) && !psn_lt(zero, last) && psn_le(zero, zero));
    assert_int_equal(psn_dist(psn_make(5), psn_make(0xfffffe)), 7);
    assert_true(psn_within(psn_make(1), psn_make(0xfffffe), 4));
    assert_false(psn_within(psn_make(2), psn_make(0xfffffe), 4));
    assert_false(psn_within(psn_make(0xfffffd), psn_make(0xfffffe), 4));
    assert_int_equal(psn_diff(psn_make(0x800000), zero), -0x800000);
    assert_int_equal(psn_sub(psn_make(3), 5).v, 0xfffffe);
    assert_int_equal(psn_add(psn_make(0xfffffe), 0x1000005).v, 3);
}

static void timers_and_credits_are_those_of_the_standard(void **state)
{
    (void)state;
    assert_int_equal(wire_rnr_ns(0), 655360000);
    assert_int_equal(wire_rnr_ns(1), 10000);
    assert_int_equal(wire_rnr_ns(14), 1280000);
    assert_int_equal(wire_rnr_ns(20), 10240000);
    assert_int_equal(wire_rnr_ns(31), 491520000);
    assert_int_equal(wire_rnr_code(0), 1);
    assert_int_equal(wire_rnr_code(10001), 2);
    assert_int_equal(wire_rnr_code(491520001), 0);
    for (uint8_t c = 0; c < 32; c++)
        assert_int_equal(wire_rnr_code(wire_rnr_ns(c)), c);
    assert_true(wire_timeout_ns(0) == UINT64_MAX);
    assert_int_equal(wire_timeout_ns(1), 8192);
    assert_int_equal(wire_timeout_ns(14), 67108864);
    assert_int_equal(wire_timeout_ns(31), 4096ull << 31);
    for (uint8_t c = 0; c < WIRE_CREDITS_NONE; c++) {
        assert_int_equal(wire_credit_code(wire_credits(c)), c);
        assert_true(!c || wire_credits(c) > wire_credits((uint8_t)(c - 1)));
    }
    assert_int_equal(wire_credits(30), 32768);
    assert_int_equal(wire_credit_code(5), 4);
    assert_int_equal(wire_credit_code(UINT32_MAX), 30);
    assert_true(wire_credits(WIRE_CREDITS_NONE) == UINT32_MAX);
}

static void syndromes_say_what_they_are(void **state)
{
    (void)state;
    assert_int_equal(wire_syndrome_ack(31), 0x1f);
    assert_int_equal(wire_syndrome_rnr(14), 0x2e);
    assert_int_equal(wire_syndrome_nak(WIRE_NAK_SEQ), 0x60);
    assert_int_equal(wire_syndrome_nak(WIRE_NAK_OPERATION), 0x63);
    assert_int_equal(wire_ack_kind(0x1f), WIRE_ACK_OK);
    assert_int_equal(wire_ack_kind(0x2e), WIRE_ACK_RNR);
    assert_int_equal(wire_ack_kind(0x40), WIRE_ACK_RESERVED);
    assert_int_equal(wire_ack_kind(0x62), WIRE_ACK_NAK);
    assert_int_equal(wire_ack_kind(0xe2), WIRE_ACK_RESERVED);
    assert_int_equal(wire_ack_value(0x62), WIRE_NAK_ACCESS);
}

static void sizes_follow_from_the_mtu(void **state)
{
    (void)state;
    assert_int_equal(wire_mtu_from_bytes(1024), WIRE_MTU_1024);
    assert_int_equal(wire_mtu_from_bytes(1023), -EINVAL);
    assert_int_equal(wire_mtu_from_bytes(128), -EINVAL);
    assert_int_equal(wire_mtu_for_link(1500, false), WIRE_MTU_1024);
    assert_int_equal(wire_mtu_for_link(4200, true), WIRE_MTU_4096);
    assert_int_equal(wire_mtu_for_link(9000, true), WIRE_MTU_4096);
    assert_int_equal(wire_mtu_for_link(323, false), -EMSGSIZE);
    assert_int_equal(wire_mtu_for_link(324, false), WIRE_MTU_256);
    assert_int_equal(wire_packets(0, WIRE_MTU_256), 1);
    assert_int_equal(wire_packets(256, WIRE_MTU_256), 1);
    assert_int_equal(wire_packets(257, WIRE_MTU_256), 2);
    assert_int_equal(wire_packets(UINT32_MAX, WIRE_MTU_256), 1u << 24);
    assert_int_equal(wire_pad(0), 0);
    assert_int_equal(wire_pad(1), 3);
    assert_true(wire_pkey_match(0xffff, 0x7fff));
    assert_false(wire_pkey_match(0x7fff, 0x7fff));
    assert_false(wire_pkey_match(0xffff, 0xfffe));
}

static void a_hello_comes_out_as_it_went_in(void **state)
{
    struct wire_hello in = {.tid = 0x1122334455667788,
                            .kind = WIRE_HELLO_ANSWER,
                            .caps = WIRE_HELLO_SACK | WIRE_HELLO_SHM,
                            .src_qp = 0x123456,
                            .dest_qp = 0xffffff,
                            .uid = 1000,
                            .sack_bits = 256,
                            .instance = 0x0102030405060708,
                            .machine = {1, 2, 3},
                            .cookie = {[15] = 9},
                            .far_bytes = 1 << 20,
                            .name = "/run/user/1000/uroce/a"},
                      out;
    uint8_t mad[WIRE_MAD_BYTES], bad[WIRE_MAD_BYTES];

    (void)state;
    assert_int_equal(wire_hello_encode(&in, mad), 0);
    assert_int_equal(wire_hello_decode(mad, sizeof mad, &out), 0);
    assert_int_equal(out.version, WIRE_HELLO_VERSION);
    assert_true(out.tid == in.tid && out.kind == in.kind && out.caps == in.caps && out.src_qp == in.src_qp);
    assert_true(out.dest_qp == in.dest_qp && out.uid == in.uid && out.sack_bits == in.sack_bits);
    assert_true(out.instance == in.instance && out.far_bytes == in.far_bytes);
    assert_memory_equal(in.machine, out.machine, sizeof in.machine);
    assert_memory_equal(in.cookie, out.cookie, sizeof in.cookie);
    assert_string_equal(in.name, out.name);
    assert_int_equal(wire_hello_decode(mad, sizeof mad - 1, &out), -ENODATA);

    const struct {
        unsigned at;
        uint8_t value;
        int error;
    } cases[] = {
        {0, 2, -EPROTONOSUPPORT}, {1, 0x07, -ENOMSG}, {2, 2, -ENOMSG},           {3, WIRE_MAD_GET, -ENOMSG},
        {17, 2, -ENOMSG},         {38, 0, -ENOMSG},   {40, 0, -EPROTONOSUPPORT}, {41, 5, -EPROTO},
        {41, 0, -EPROTO},         {48, 1, -EPROTO}, {52, 1, -EPROTO},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        memcpy(bad, mad, sizeof mad);
        bad[cases[i].at] = cases[i].value;
        assert_int_equal(wire_hello_decode(bad, sizeof bad, &out), cases[i].error);
    }
    memcpy(bad, mad, sizeof mad);
    memset(bad + 104, 'x', WIRE_HELLO_NAME_BYTES);
    assert_int_equal(wire_hello_decode(bad, sizeof bad, &out), -EPROTO);
    /* A later version adds fields: it is understood as far as we know it. */
    memcpy(bad, mad, sizeof mad);
    bad[40] = 2;
    bad[200] = 77;
    assert_int_equal(wire_hello_decode(bad, sizeof bad, &out), 0);
    assert_int_equal(out.version, 2);

    memset(in.name, 'x', sizeof in.name);
    assert_int_equal(wire_hello_encode(&in, mad), -EINVAL);
    in.name[0] = 0;
    in.src_qp = 1u << 24;
    assert_int_equal(wire_hello_encode(&in, mad), -EINVAL);
}

/* Headers alone, for payload in shared memory: every opcode, and what must be refused. */
static void headers_are_read_without_their_payload(void **state)
{
    struct rng r;
    uint8_t op, head[WIRE_HEAD_MAX], room[WIRE_PAYLOAD_MAX];
    struct wire_pkt in, out;
    (void)state;
    rng_seed(&r, 3);
    for (unsigned i = 0; roce_opcode(i, &op); i++) {
        const struct wire_op *o = wire_op(op);
        roce_random_pkt(&r, op, 64, room, &in);
        in.far = true;
        if (o->has_payload && !o->sack)
            in.payload_len = (uint32_t)rng_below(&r, WIRE_FAR_MAX + 1);
        int n = wire_encode_head(&in, head, sizeof head);
        assert_int_equal(n, o->head_bytes);
        if (o->sack) {
            assert_int_equal(wire_decode_far(head, (size_t)n, in.payload_len, &out), -EBADMSG);
            continue;
        }
        assert_int_equal(wire_decode_far(head, (size_t)n, in.payload_len, &out), n);
        assert_true(out.far && !out.payload && out.payload_len == in.payload_len);
        assert_int_equal(out.psn.v, in.psn.v);
        assert_int_equal(out.dest_qp, in.dest_qp);
        wire_head_psn(head, psn_make(0xabcdef));
        assert_int_equal(wire_decode_far(head, (size_t)n, in.payload_len, &out), n);
        assert_int_equal(out.psn.v, 0xabcdef);
        assert_int_equal(out.ackreq, in.ackreq);
        assert_int_equal(out.dest_qp, in.dest_qp);
        for (size_t k = 0; k < (size_t)n; k++)
            assert_int_equal(wire_decode_far(head, k, in.payload_len, &out), -ENODATA);
        assert_int_equal(wire_decode_far(head, (size_t)n + 1, in.payload_len, &out), -EBADMSG);
        assert_int_equal(wire_decode_far(head, (size_t)n, in.payload_len + 1, &out),
                         in.payload_len == WIRE_FAR_MAX ? -EMSGSIZE : -EBADMSG);
        assert_int_equal(wire_decode_far(head, (size_t)n, WIRE_FAR_MAX + 1, &out), -EMSGSIZE);
        if (o->has_payload) {
            in.payload_len = WIRE_FAR_MAX + 1;
            assert_int_equal(wire_encode_head(&in, head, sizeof head), -EINVAL);
        }
    }
}

static void a_head_follows_another_if_the_psn_alone_is_further(void **state)
{
    uint8_t first[WIRE_HEAD_MAX], next[WIRE_HEAD_MAX];
    struct wire_pkt p = {.opcode = WIRE_RC_WRITE_MIDDLE, .pkey = 0xffff, .dest_qp = 0x123456, .payload_len = 1024};

    (void)state;
    p.psn = psn_make(0xfffffe); /* it wraps */
    assert_int_equal(wire_encode_head(&p, first, sizeof first), WIRE_BTH_BYTES);
    memcpy(next, first, sizeof next);
    wire_head_psn(next, psn_make(3));
    assert_true(wire_head_follows(first, next, 5));
    assert_false(wire_head_follows(first, next, 4));
    assert_false(wire_head_follows(first, next, 6));
    assert_true(wire_head_follows(first, first, 0));
    for (size_t i = 0; i < WIRE_BTH_BYTES; i++)
        for (int bit = 0; bit < 8; bit++) {
            next[i] ^= (uint8_t)(1 << bit);
            assert_false(wire_head_follows(first, next, 5));
            next[i] ^= (uint8_t)(1 << bit);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_head_follows_another_if_the_psn_alone_is_further),
        cmocka_unit_test(every_opcode_has_the_bytes_of_its_headers),
        cmocka_unit_test(properties_of_an_opcode_are_those_of_its_name),
        cmocka_unit_test(a_packet_comes_out_as_it_went_in),
        cmocka_unit_test(every_cut_is_refused_or_a_shorter_payload),
        cmocka_unit_test(what_is_malformed_is_refused_by_its_reason),
        cmocka_unit_test(an_acknowledgement_that_contradicts_itself_is_refused),
        cmocka_unit_test(what_cannot_be_said_is_not_encoded),
        cmocka_unit_test(random_bytes_do_no_harm),
        cmocka_unit_test(reasons_have_names),
        cmocka_unit_test(sequence_numbers_wrap),
        cmocka_unit_test(timers_and_credits_are_those_of_the_standard),
        cmocka_unit_test(syndromes_say_what_they_are),
        cmocka_unit_test(sizes_follow_from_the_mtu),
        cmocka_unit_test(a_hello_comes_out_as_it_went_in),
        cmocka_unit_test(headers_are_read_without_their_payload),
    };

    seed = seed_new();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
