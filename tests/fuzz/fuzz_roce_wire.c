/* RoCEv2 packets and hellos from a stranger. What is taken is in bounds, and means the same when it is sent again. */
#include "fuzz.h"

#include "../wire/roce_frames.h"
#include "roce/wire_mad.h"

#include <stdlib.h>
#include <string.h>

static const struct wire_icrc_tab *tab(void)
{
    static struct wire_icrc_tab t;

    if (!t.forward[0])
        wire_icrc_tab_init(&t);
    return &t;
}

/* Every sample has the ICRC of this flow and id 5. */
static const struct wire_flow flow = {
    .df = true, .src = {10, 0, 0, 1}, .dst = {10, 0, 0, 2}, .dst_port = WIRE_UDP_PORT};

size_t fuzz_sample(uint64_t seed, uint8_t *buf, size_t max)
{
    uint8_t room[WIRE_PAYLOAD_MAX], op = 0;
    struct wire_pkt p;
    struct rng r;

    rng_seed(&r, seed);
    roce_opcode((unsigned)rng_below(&r, roce_opcodes()), &op);
    roce_random_pkt(&r, op, 300, room, &p);
    if (op == WIRE_UD_SEND_ONLY) {
        struct wire_hello h = {.kind = WIRE_HELLO_ASK, .caps = (uint32_t)seed, .name = "/run/uroce"};
        CHECK(!wire_hello_encode(&h, room));
        p.payload_len = WIRE_MAD_BYTES;
    }
    return wire_pkt_bytes(&p) <= max ? roce_build(&p, &flow, 5, buf) : 0;
}

static void try_hello(const uint8_t *data, size_t size)
{
    uint8_t mad[WIRE_MAD_BYTES], mad2[WIRE_MAD_BYTES];
    struct wire_hello h, again;

    if (wire_hello_decode(data, size, &h))
        return;
    CHECK(!wire_hello_encode(&h, mad));
    CHECK(!wire_hello_decode(mad, sizeof mad, &again));
    CHECK(!wire_hello_encode(&again, mad2));
    CHECK(!memcmp(mad, mad2, sizeof mad));
}

static void check_fields(const struct wire_pkt *p)
{
    CHECK(wire_pkt_op(p));
    CHECK(p->dest_qp <= WIRE_QPN_MASK && p->src_qp <= WIRE_QPN_MASK && p->srqn <= WIRE_QPN_MASK);
    CHECK(p->psn.v <= PSN_MASK && p->msn <= PSN_MASK && p->payload_len <= WIRE_PAYLOAD_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct wire_icrc_ids known = {.known = true, .id = 5}, solve = {.solve = true, .set = 64};
    static uint8_t buf[WIRE_PKT_MAX];
    struct wire_pkt p, again;
    int head = wire_decode(data, size, &p), how;
    uint32_t n;

    try_hello(data, size);
    if (head < 0)
        return 0;
    check_fields(&p);
    CHECK((size_t)head + p.payload_len + p.pad + WIRE_ICRC_BYTES == size && wire_pkt_bytes(&p) == size);
    CHECK(p.payload == data + head);
    n = roce_build(&p, &flow, 5, buf);
    CHECK(n == size && wire_decode(buf, n, &again) == head && roce_same(&p, &again));
    CHECK(wire_icrc_verify(tab(), &flow, &known, buf, n, NULL) == WIRE_ICRC_FULL);
    how = wire_icrc_verify(tab(), &flow, &known, data, n, NULL);
    CHECK(how < 0 || wire_icrc_verify(tab(), &flow, &solve, data, n, NULL) == WIRE_ICRC_SET);
    try_hello(p.payload, p.payload_len);
    return 0;
}
