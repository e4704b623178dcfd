/* The codec of data-plane messages. The MAC is made right first, so that what is behind it is reached. */
#include "fuzz.h"

#include "../wire/dp_random.h"

#include <stdlib.h>
#include <string.h>

static struct pst_mac *mac(void)
{
    static struct pst_mac *m;

    if (!m)
        m = pst_mac_new("0123456789abcdef0123456789abcdef", DP_KEY_BYTES);
    CHECK(m);
    return m;
}

/* What is taken means one thing only: it comes out as the same bytes. */
static void try_request(const uint8_t *msg, size_t size)
{
    static uint8_t again[DP_MSG_MAX];
    uint8_t head[DP_HEAD_MAX];
    struct iovec iov[3];
    struct dp_request q;
    int n;

    if (dp_decode_request(mac(), msg, size, &q))
        return;
    n = dp_encode_request(mac(), &q, head, iov);
    CHECK(n > 0 && dp_join(iov, n, again) == size && !memcmp(again, msg, size));
}

static void try_reply(const uint8_t *msg, size_t size)
{
    static uint8_t again[DP_MSG_MAX];
    uint8_t head[DP_HEAD_MAX];
    struct iovec iov[3];
    struct dp_reply p;
    int n;

    if (dp_decode_reply(mac(), msg, size, &p))
        return;
    n = dp_encode_reply(mac(), &p, head, iov);
    CHECK(n > 0 && dp_join(iov, n, again) == size && !memcmp(again, msg, size));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *msg = malloc(size ? size : 1);

    CHECK(msg);
    memcpy(msg, data, size);
    try_request(msg, size);
    try_reply(msg, size);
    if (size >= DP_MAC_BYTES) {
        dp_remac(mac(), 'C', msg, size);
        try_request(msg, size);
        dp_remac(mac(), 'S', msg, size);
        try_reply(msg, size);
    }
    free(msg);
    return 0;
}

size_t fuzz_sample(uint64_t n, uint8_t *buf, size_t cap)
{
    static uint8_t room[DP_INLINE_MAX], msg[DP_MSG_MAX];
    uint8_t head[DP_HEAD_MAX];
    struct dp_request q;
    struct dp_reply p;
    struct iovec iov[3];
    struct rng r;
    size_t len;

    rng_seed(&r, n);
    if (n & 1) {
        dp_random_request(&r, room, &q);
        len = dp_join(iov, dp_encode_request(mac(), &q, head, iov), msg);
    } else {
        dp_random_reply(&r, room, &p);
        len = dp_join(iov, dp_encode_reply(mac(), &p, head, iov), msg);
    }
    if (len > cap)
        len = cap;
    memcpy(buf, msg, len);
    return len;
}
