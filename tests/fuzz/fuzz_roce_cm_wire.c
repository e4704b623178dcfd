/* Messages of the communication manager from a stranger. What is taken means the same when it is sent again. */
#include "fuzz.h"

#include "../wire/cm_random.h"

#include <stdlib.h>
#include <string.h>

size_t fuzz_sample(uint64_t n, uint8_t *buf, size_t max)
{
    struct wire_cm m;
    struct rng r;

    rng_seed(&r, n);
    enum wire_cm_attr attr = cm_random_attr((unsigned)n);
    cm_random(&r, attr, attr == WIRE_CM_REQ || attr == WIRE_CM_SIDR_REQ, &m);
    if (max < WIRE_MAD_BYTES)
        return 0;
    cm_bytes(&m, buf);
    return WIRE_MAD_BYTES;
}

static void check_fields(const struct wire_cm *m)
{
    CHECK(wire_cm_private_bytes(m->attr) && wire_cm_private_bytes(m->attr) <= sizeof m->private_data);
    for (size_t i = wire_cm_private_bytes(m->attr); i < sizeof m->private_data; i++)
        CHECK(m->private_data[i] == 0);
    if (m->attr == WIRE_CM_REQ)
        CHECK(m->req.qpn <= 0xffffff && m->req.psn <= 0xffffff && m->req.transport <= 3 && m->req.mtu <= 15);
    if (m->attr == WIRE_CM_REJ)
        CHECK(m->rej.info_len <= WIRE_CM_INFO_MAX && m->rej.answered <= 3);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t mad[WIRE_MAD_BYTES], mad2[WIRE_MAD_BYTES], head[WIRE_CMA_BYTES];
    struct wire_cm m, again;
    struct wire_cma h;

    if (wire_cm_decode(data, size, &m))
        return 0;
    check_fields(&m);
    if (m.attr != WIRE_CM_LAP) {
        CHECK(!wire_cm_encode(&m, mad));
        CHECK(!wire_cm_decode(mad, sizeof mad, &again));
        CHECK(!wire_cm_encode(&again, mad2));
        CHECK(!memcmp(mad, mad2, sizeof mad));
    }
    if (m.attr == WIRE_CM_REQ && !wire_cma_decode(m.private_data, &h))
        CHECK(!wire_cma_encode(&h, head) && !memcmp(head + 20, m.private_data + 20, h.v4 ? 0 : 16));
    return 0;
}
