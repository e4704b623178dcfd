/* The codec of the communication manager's messages and of the RDMA CM's header. */
#include "../wire/cm_random.h"

#include "base/util.h"
#include "../lib/seed.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed;

static void a_message_comes_out_as_it_went_in(void **state)
{
    struct rng r;

    (void)state;
    rng_seed(&r, seed);
    for (unsigned i = 0; i < 20000; i++) {
        uint8_t mad[WIRE_MAD_BYTES], again[WIRE_MAD_BYTES];
        struct wire_cm in, out;

        cm_random(&r, cm_random_attr(i), false, &in);
        cm_bytes(&in, mad);
        memset(&out, 0xa5, sizeof out);
        assert_int_equal(wire_cm_decode(mad, sizeof mad, &out), 0);
        assert_int_equal(out.attr, in.attr);
        assert_int_equal(out.tid, in.tid);
        assert_int_equal(out.attr_mod, in.attr_mod);
        assert_int_equal(out.local_id, in.local_id);
        assert_int_equal(out.remote_id, in.remote_id);
        assert_memory_equal(out.private_data, in.private_data, sizeof in.private_data);
        cm_bytes(&out, again);
        assert_memory_equal(mad, again, sizeof mad);
    }
}

/* One bit of the message changes one field, and is seen again when it is encoded: but for reserved bits. */
static void each_bit_has_a_field_or_is_reserved(void **state)
{
    static const unsigned reserved[WIRE_CM_APR + 1] = {
        [WIRE_CM_REQ] = 8 + 32 + 2 * (6 + 3 + 3),
        [WIRE_CM_MRA] = 6 + 3,
        [WIRE_CM_REJ] = 6 + 1,
        [WIRE_CM_REP] = 4,
        [WIRE_CM_DREQ] = 8,
        [WIRE_CM_SIDR_REQ] = 16,
        [WIRE_CM_APR] = 16,
    };
    struct rng r;

    (void)state;
    rng_seed(&r, seed);
    for (unsigned i = 0; i < CM_RANDOM_ATTRS; i++) {
        uint8_t mad[WIRE_MAD_BYTES], flipped[WIRE_MAD_BYTES], again[WIRE_MAD_BYTES];
        enum wire_cm_attr attr = cm_random_attr(i);
        struct wire_cm in, out;
        unsigned lost = 0;

        cm_random(&r, attr, false, &in);
        if (attr == WIRE_CM_REJ)
            in.rej.info_len = WIRE_CM_INFO_MAX;
        if (attr == WIRE_CM_SIDR_REP)
            in.sidr_rep.info_len = WIRE_CM_INFO_MAX;
        if (attr == WIRE_CM_APR)
            in.apr.info_len = WIRE_CM_INFO_MAX;
        cm_bytes(&in, mad);
        for (unsigned bit = WIRE_MAD_HEAD_BYTES * 8; bit < WIRE_MAD_BYTES * 8; bit++) {
            memcpy(flipped, mad, sizeof mad);
            flipped[bit / 8] ^= (uint8_t)(0x80 >> bit % 8);
            if (wire_cm_decode(flipped, sizeof flipped, &out))
                continue; /* the length of the information */
            cm_bytes(&out, again);
            lost += memcmp(again, flipped, sizeof again) != 0;
        }
        /* A shorter information cuts what is behind: up to its 7 or 8 bits more. */
        assert_in_range(lost, reserved[attr], reserved[attr] + 8);
    }
}

static void fields_that_are_too_wide_are_refused(void **state)
{
    uint8_t mad[WIRE_MAD_BYTES];
    struct rng r;

    (void)state;
    rng_seed(&r, seed);
#define REFUSED(attr, field, value)                                                                                    \
    do {                                                                                                               \
        struct wire_cm m;                                                                                              \
        cm_random(&r, attr, false, &m);                                                                                \
        m.field = value;                                                                                               \
        assert_int_equal(wire_cm_encode(&m, mad), -EINVAL);                                                            \
    } while (0)
    REFUSED(WIRE_CM_REQ, req.qpn, 1u << 24);
    REFUSED(WIRE_CM_REQ, req.eecn, 1u << 24);
    REFUSED(WIRE_CM_REQ, req.psn, 1u << 24);
    REFUSED(WIRE_CM_REQ, req.transport, 4);
    REFUSED(WIRE_CM_REQ, req.retry_count, 8);
    REFUSED(WIRE_CM_REQ, req.mtu, 16);
    REFUSED(WIRE_CM_REQ, req.max_cm_retries, 16);
    REFUSED(WIRE_CM_REQ, req.remote_response_timeout, 32);
    REFUSED(WIRE_CM_REQ, req.primary.flow_label, 1u << 20);
    REFUSED(WIRE_CM_REQ, req.alternate.rate, 64);
    REFUSED(WIRE_CM_REP, rep.qpn, 1u << 24);
    REFUSED(WIRE_CM_REP, rep.target_ack_delay, 32);
    REFUSED(WIRE_CM_REP, rep.failover, 4);
    REFUSED(WIRE_CM_REJ, rej.answered, 4);
    REFUSED(WIRE_CM_REJ, rej.info_len, WIRE_CM_INFO_MAX + 1);
    REFUSED(WIRE_CM_MRA, mra.service_timeout, 32);
    REFUSED(WIRE_CM_DREQ, dreq.qpn, 1u << 24);
    REFUSED(WIRE_CM_SIDR_REP, sidr_rep.qpn, 1u << 24);
    REFUSED(WIRE_CM_SIDR_REP, sidr_rep.info_len, WIRE_CM_INFO_MAX + 1);
    REFUSED(WIRE_CM_APR, apr.info_len, WIRE_CM_INFO_MAX + 1);
    REFUSED(WIRE_CM_RTU, attr, (enum wire_cm_attr)0x1b);
    REFUSED(WIRE_CM_RTU, attr, WIRE_CM_LAP);
#undef REFUSED
}

static void what_is_no_message_of_ours_is_told_apart(void **state)
{
    uint8_t mad[WIRE_MAD_BYTES + 4] = {0}, good[WIRE_MAD_BYTES];
    struct wire_cm m, out = {.tid = 77};
    struct rng r;

    (void)state;
    rng_seed(&r, seed);
    cm_random(&r, WIRE_CM_REQ, false, &m);
    cm_bytes(&m, good);
    memcpy(mad, good, sizeof good);
    for (size_t len = 0; len <= sizeof mad; len++)
        if (len != WIRE_MAD_BYTES)
            assert_int_equal(wire_cm_decode(mad, len, &out), -ENODATA);
    mad[0] = 2; /* base version */
    assert_int_equal(wire_cm_decode(mad, WIRE_MAD_BYTES, &out), -EPROTONOSUPPORT);
    memcpy(mad, good, sizeof good);
    mad[1] = WIRE_MAD_UROCE;
    assert_int_equal(wire_cm_decode(mad, WIRE_MAD_BYTES, &out), -ENOMSG);
    memcpy(mad, good, sizeof good);
    mad[3] = WIRE_MAD_GET;
    assert_int_equal(wire_cm_decode(mad, WIRE_MAD_BYTES, &out), -ENOMSG);
    memcpy(mad, good, sizeof good);
    mad[17] = 0x1b;
    assert_int_equal(wire_cm_decode(mad, WIRE_MAD_BYTES, &out), -EPROTO);
    assert_int_equal(out.tid, 77);
    /* Another version of the class: the ids are there, for the refusal. */
    memcpy(mad, good, sizeof good);
    mad[2] = 3;
    assert_int_equal(wire_cm_decode(mad, WIRE_MAD_BYTES, &out), -EPROTONOSUPPORT);
    assert_int_equal(out.local_id, m.local_id);
}

static void the_header_of_the_rdma_cm_carries_both_families(void **state)
{
    struct wire_cma in = {.src_port = 4711, .v4 = true}, out;
    uint8_t b[WIRE_CMA_BYTES];

    (void)state;
    memcpy(in.src.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff\xc0\0\2\1", 16);
    memcpy(in.dst.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff\xc0\0\2\2", 16);
    assert_int_equal(wire_cma_encode(&in, b), 0);
    assert_int_equal(b[0], 0);
    assert_int_equal(b[1], 0x40);
    assert_memory_equal(b + 2, "\x12\x67\0\0\0\0\0\0\0\0\0\0\0\0\xc0\0\2\1", 18);
    assert_int_equal(wire_cma_decode(b, &out), 0);
    assert_memory_equal(&in.src, &out.src, 16);
    assert_memory_equal(&in.dst, &out.dst, 16);
    assert_true(out.v4 && out.src_port == 4711);
    in.v4 = false;
    assert_int_equal(wire_cma_encode(&in, b), -EINVAL);
    in.src.raw[0] = in.dst.raw[0] = 0x20;
    assert_int_equal(wire_cma_encode(&in, b), 0);
    assert_int_equal(wire_cma_decode(b, &out), 0);
    assert_false(out.v4);
    assert_memory_equal(&in.dst, &out.dst, 16);
    b[4] = 0; /* an IPv6 address that stands for an IPv4 one */
    assert_int_equal(wire_cma_decode(b, &out), -EPROTO);
    b[4] = 0x20;
    b[1] = 0x50;
    assert_int_equal(wire_cma_decode(b, &out), -EPROTO);
    b[1] = 0x60;
    b[0] = 1;
    assert_int_equal(wire_cma_decode(b, &out), -EPROTO);
    assert_int_equal(wire_cma_service_id(WIRE_CMA_TCP, 7174), 0x1061c06);
    assert_int_equal(wire_cma_space(0x1061c06), WIRE_CMA_TCP);
    assert_int_equal(wire_cma_space(0x1011061c06), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_comes_out_as_it_went_in),
        cmocka_unit_test(each_bit_has_a_field_or_is_reserved),
        cmocka_unit_test(fields_that_are_too_wide_are_refused),
        cmocka_unit_test(what_is_no_message_of_ours_is_told_apart),
        cmocka_unit_test(the_header_of_the_rdma_cm_carries_both_families),
    };

    seed = seed_new();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
