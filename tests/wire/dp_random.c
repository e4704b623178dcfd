#include "dp_random.h"

#include <string.h>

/* Small and border values more often than others. */
static uint64_t number(struct rng *r, uint64_t max)
{
    switch (rng_below(r, 4)) {
    case 0:
        return 0;
    case 1:
        return max;
    case 2:
        return rng_below(r, max < 100 ? max + 1 : 100);
    default:
        return max == UINT64_MAX ? rng_u64(r) : rng_below(r, max + 1);
    }
}

static void random_data(struct rng *r, uint8_t *room, struct dp_request *q)
{
    bool chunk = q->opcode == DP_CHUNK_READ || q->opcode == DP_CHUNK_REPLACE;
    bool takes = q->opcode == DP_WRITE || q->opcode == DP_CHUNK_REPLACE;
    uint64_t left;

    if (rng_below(r, 2)) {
        q->flags |= DP_F_INLINE;
        q->length = number(r, DP_INLINE_MAX);
        q->payload_len = takes ? (uint32_t)q->length : 0;
        q->payload = q->payload_len ? room : NULL;
        return;
    }
    left = q->length = number(r, chunk ? DP_CHUNK_MAX : DP_IO_MAX);
    if (left && rng_below(r, 2))
        q->flags |= rng_below(r, 2) ? DP_F_EXPORTED : DP_F_THIRD;
    if (q->flags & DP_F_THIRD)
        q->seg[q->nsegs++] = (struct dp_seg){rng_u64(r), 1 + number(r, UINT64_MAX - 1), 0};
    for (uint8_t n = (uint8_t)(1 + rng_below(r, DP_SEGS_MAX - q->nsegs)); left; n--) {
        uint32_t part = (uint32_t)(n == 1 ? left : 1 + rng_below(r, left));

        q->seg[q->nsegs++] = (struct dp_seg){number(r, UINT64_MAX - part), rng_u64(r), part};
        left -= part;
    }
}

void dp_random_request(struct rng *r, uint8_t *room, struct dp_request *ret)
{
    struct dp_request q = {.msgno = 1 + number(r, UINT64_MAX - 1),
                           .tag = number(r, UINT64_MAX),
                           .opcode = (uint8_t)(1 + rng_below(r, DP_OPCODES - 1))};
    bool mutates =
        q.opcode == DP_WRITE || q.opcode == DP_PUNCH || q.opcode == DP_ALLOCATE || q.opcode == DP_CHUNK_REPLACE;

    rng_fill(r, room, DP_INLINE_MAX);
    if (q.opcode != DP_PING)
        q.cap = (uint32_t)number(r, DP_CAPS_MAX - 1);
    if (q.opcode == DP_BIND) {
        q.payload_len = (uint32_t)(1 + number(r, DP_CAP_MAX - 1));
        q.payload = room;
    }
    if (q.opcode != DP_BIND && q.opcode != DP_UNBIND && q.opcode != DP_SYNCFS && q.opcode != DP_PING)
        q.ino = 1 + number(r, UINT64_MAX - 1);
    if (q.opcode == DP_READ || q.opcode == DP_WRITE || q.opcode == DP_CHUNK_READ || q.opcode == DP_CHUNK_REPLACE)
        random_data(r, room, &q);
    else if (q.opcode == DP_PUNCH || q.opcode == DP_ALLOCATE)
        q.length = number(r, INT64_MAX);
    if (q.ino && q.opcode != DP_FSYNC)
        q.offset = number(r, (uint64_t)INT64_MAX - q.length);
    if (mutates && rng_below(r, 2)) {
        q.seq = 1 + number(r, UINT64_MAX - 1);
        q.slot = (uint32_t)number(r, DP_SLOTS_MAX - 1);
        q.origin = (uint16_t)number(r, UINT16_MAX);
    }
    if (q.opcode == DP_WRITE && rng_below(r, 2)) {
        q.flags |= DP_F_APPEND;
        q.offset = 0;
    }
    if ((q.opcode == DP_WRITE || q.opcode == DP_CHUNK_REPLACE) && rng_below(r, 2))
        q.flags |= DP_F_DSYNC;
    if (q.opcode == DP_ALLOCATE && rng_below(r, 2))
        q.flags |= DP_F_KEEP_SIZE;
    if (mutates && rng_below(r, 2))
        q.flags |= DP_F_KILL_SETID;
    if (q.opcode == DP_CHUNK_REPLACE) {
        static const uint16_t grow[] = {0, DP_F_GROW, DP_F_SET_SIZE};

        q.flags |= grow[rng_below(r, 3)];
        q.flags |= rng_below(r, 2) ? DP_F_IF_UNCHANGED : 0;
        q.new_size = q.flags & (DP_F_GROW | DP_F_SET_SIZE) ? number(r, INT64_MAX) : 0;
        q.version = number(r, UINT64_MAX);
        q.meta_len = (uint8_t)number(r, DP_META_MAX);
        rng_fill(r, q.meta, q.meta_len);
    }
    *ret = q;
}

void dp_random_reply(struct rng *r, uint8_t *room, struct dp_reply *ret)
{
    struct dp_reply p = {.msgno = 1 + number(r, UINT64_MAX - 1),
                         .tag = number(r, UINT64_MAX),
                         .opcode = (uint8_t)(1 + rng_below(r, DP_OPCODES - 1)),
                         .status = rng_below(r, 3) ? 0 : -(int32_t)(1 + number(r, 4094)),
                         .result = number(r, INT64_MAX),
                         .offset = number(r, UINT64_MAX),
                         .version = number(r, UINT64_MAX),
                         .size = number(r, UINT64_MAX),
                         .used = number(r, UINT64_MAX),
                         .change = number(r, UINT64_MAX),
                         .mtime_ns = (int64_t)rng_u64(r)};

    rng_fill(r, room, DP_INLINE_MAX);
    if (!p.status && (p.opcode == DP_READ || p.opcode == DP_CHUNK_READ) && rng_below(r, 2)) {
        p.payload_len = (uint32_t)(1 + number(r, DP_INLINE_MAX - 1));
        p.payload = room;
        p.result = p.payload_len;
    }
    if (!p.status && p.opcode == DP_CHUNK_READ) {
        p.meta_len = (uint8_t)number(r, DP_META_MAX);
        rng_fill(r, p.meta, p.meta_len);
    }
    *ret = p;
}

size_t dp_join(const struct iovec *iov, int n, uint8_t *buf)
{
    size_t len = 0;

    for (int i = 0; i < n; i++) {
        memcpy(buf + len, iov[i].iov_base, iov[i].iov_len);
        len += iov[i].iov_len;
    }
    return len;
}

void dp_remac(struct pst_mac *mac, uint8_t from, uint8_t *msg, size_t len)
{
    uint8_t digest[PST_HMAC_BYTES];
    struct pst_bytes parts[] = {{&from, 1}, {msg, len - DP_MAC_BYTES}};

    if (!pst_mac(mac, parts, 2, digest))
        memcpy(msg + len - DP_MAC_BYTES, digest, DP_MAC_BYTES);
}
