/* The bytes of data-plane messages (docs/protocol.md), shared by the request and the reply codec. */
#ifndef FABRIC_DP_WIRE_H
#define FABRIC_DP_WIRE_H

#include "base/endian.h"
#include "fabric/dp.h"

#include <assert.h>
#include <stddef.h>

/* Both fixed headers begin with these. Then: meta, segments (requests), payload, MAC, without padding. */
struct dp_wire_head {
    uint8_t version, type, opcode, meta_len;
    le32 payload_len;
    le32 total; /* bytes of the whole message, MAC included */
};

struct dp_wire_request {
    struct dp_wire_head h;
    le16 flags;
    uint8_t nsegs, zero;
    le64 msgno, tag;
    le32 cap, slot;
    le64 seq, ino, offset, length, version, new_size;
};

struct dp_wire_seg {
    le64 addr, key;
    le32 len;
};

struct dp_wire_reply {
    struct dp_wire_head h;
    le32 status; /* -errno in two's complement */
    le64 msgno, tag, result, offset, version, size, used, change, mtime_ns;
};

static_assert(sizeof(struct dp_wire_head) == 12, "layout");
static_assert(sizeof(struct dp_wire_request) == 88, "layout");
static_assert(sizeof(struct dp_wire_seg) == 20, "layout");
static_assert(sizeof(struct dp_wire_reply) == 88, "layout");
static_assert(sizeof(struct dp_wire_request) + DP_META_MAX + DP_SEGS_MAX * sizeof(struct dp_wire_seg) + DP_MAC_BYTES <=
                  DP_HEAD_MAX,
              "all but the payload fits the encoder's buffer");

/* In front of the bytes under the MAC, not sent: who speaks. */
#define DP_FROM_CLIENT 0x43u
#define DP_FROM_SERVER 0x53u

/*
 * Ends a message whose head_len first bytes are in buf: puts the total into its header, the MAC behind it, and the
 * parts into ret_iov. Returns their number or -EIO.
 */
int dp_seal(struct pst_mac *mac, uint8_t from, uint8_t *buf, size_t head_len, const void *payload, uint32_t payload_len,
            struct iovec ret_iov[3]);
/* Version, type, sizes and the MAC of a message with a fixed header of `fixed` bytes. 0 or the decoder's error. */
int dp_open(struct pst_mac *mac, uint8_t from, uint8_t type, size_t fixed, const void *msg, size_t len);

#endif
