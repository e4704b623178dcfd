/*
 * The data-plane protocol: requests and replies, as docs/protocol.md states them. Pure: bytes in, checked structs out.
 *
 * The server moves the bytes (contract 3): a request names the client's memory (address, key), the server reads or
 * writes it by RMA and then sends the reply on the same connection. Payloads up to DP_INLINE_MAX ride in the message.
 * Each message ends with a MAC under the connection's key (dp_conn_key) over everything before it and the direction.
 * Requests carry a message number: 1 on a new connection, then each time the last one plus one; a reply names the
 * number that it answers. So an injected, altered, replayed or reordered message is refused, also one of another
 * connection.
 */
#ifndef FABRIC_DP_H
#define FABRIC_DP_H

#include "base/crypto.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#define DP_VERSION      1u
#define DP_MAC_BYTES    16u         /* HMAC-SHA-256, cut */
#define DP_INLINE_MAX   4096u       /* bytes of payload in a message */
#define DP_SEGS_MAX     4u          /* client memory ranges in a request */
#define DP_CAP_MAX      1024u       /* bytes of a capability */
#define DP_CAPS_MAX     4096u       /* capabilities bound to a connection at once */
#define DP_IO_MAX       (8u << 20)  /* bytes of a READ or WRITE */
#define DP_CHUNK_MAX    (16u << 20) /* bytes of a CHUNK_READ or CHUNK_REPLACE */
#define DP_SLOTS_MAX    1024u       /* slots for exactly once */
#define DP_ORIGIN_SHIFT 16          /* in the slot field: the origin above it */
#define DP_META_MAX     64u         /* opaque bytes with a chunk */
#define DP_KEY_BYTES    32u
#define DP_TYPE_REQUEST 0x51u /* 'Q', the second byte of a request */
#define DP_TYPE_REPLY   0x52u /* 'R', of a reply */

enum dp_opcode {
    DP_BIND = 1, /* capability -> a number of the client's choice below DP_CAPS_MAX, for later requests */
    DP_UNBIND,
    DP_READ,
    DP_WRITE,
    DP_PUNCH,
    DP_ALLOCATE,
    DP_SEEK_DATA,
    DP_SEEK_HOLE,
    DP_FSYNC,
    DP_SYNCFS,
    DP_CHUNK_READ,
    DP_CHUNK_REPLACE,
    DP_PING,
    DP_OPCODES,
};

/* "read", "chunk_replace": for logs and figures. "?" for none. */
const char *dp_opcode_name(unsigned opcode);

#define DP_F_APPEND    1u
#define DP_F_DSYNC     2u
#define DP_F_KEEP_SIZE 4u
#define DP_F_GROW      8u
#define DP_F_SET_SIZE  16u
#define DP_F_INLINE    32u /* the payload (WRITE, CHUNK_REPLACE) is, or is to be (READ, CHUNK_READ), in the message */
#define DP_F_IF_UNCHANGED 64u /* version is the object's change counter */
/* The segments are of exported memory: offset and number of the export, for address and key. */
#define DP_F_EXPORTED  128u
/*
 * Third party: the memory is reached by another connection, of a client of the requester (docs/protocol.md, section
 * 11). The first segment is none: address: a tag of that client's; key: number of the connection; length 0.
 */
#define DP_F_THIRD     256u
#define DP_F_KILL_SETID 512u /* the object loses its set-id bits in the same step */
#define DP_F_ALL       1023u

/*
 * What a request carries; the encoder writes 0 for the numbers that its opcode does not use, the decoder refuses
 * others.
 *
 *   opcode          flags                            cap ino offset length       segs/payload       slot,seq  other
 *   BIND            -                                yes -   -      -            capability         -
 *   UNBIND, SYNCFS  -                                yes -   -      -            -                  -
 *   READ            INLINE|EXPORTED|THIRD            yes yes bytes  <= IO_MAX    segs unless INLINE -
 *   WRITE           INLINE|EXPORTED|THIRD DSYNC      yes yes bytes  <= IO_MAX    segs or payload    yes
 *                   APPEND (no offset) KILL_SETID
 *   PUNCH           KILL_SETID                       yes yes bytes  any          -                  yes
 *   ALLOCATE        KEEP_SIZE KILL_SETID             yes yes bytes  any          -                  yes
 *   SEEK_*, FSYNC   -                                yes yes SEEK   -            -                  -
 *   CHUNK_READ      INLINE|EXPORTED|THIRD            yes yes number <= CHUNK_MAX segs unless INLINE -
 *   CHUNK_REPLACE   INLINE|EXPORTED|THIRD DSYNC      yes yes number <= CHUNK_MAX segs or payload    yes       (1)
 *                   GROW|SET_SIZE IF_UNCHANGED KILL_SETID
 *   PING            -                                -   -   -      -            -                  -
 *   (1) version, meta, new_size (with GROW or SET_SIZE, of which only one may be set)
 *
 * offset + length <= INT64_MAX. With INLINE length <= DP_INLINE_MAX; with EXPORTED or THIRD length > 0. The lengths
 * of the segments are > 0 (but for THIRD's first) and add up to `length`; none for length 0. seq 0 goes with slot 0 and
 * origin 0.
 */

/* A range of the client's memory. */
struct dp_seg {
    uint64_t addr, key; /* EXPORTED: the offset in the export, and its number (fabric/export.h) */
    uint32_t len;
};

struct dp_request {
    uint64_t msgno; /* of this connection: the last one plus one */
    uint64_t tag;   /* the client's; comes back in the reply. Its upper 48 bits: the id in logs (base/trace.h) */
    uint8_t opcode; /* enum dp_opcode */
    uint16_t flags;
    uint32_t cap;  /* number of a bound capability */
    uint16_t origin; /* 0: the session's client; else whose slot it is: upper half of the slot on the wire */
    uint32_t slot; /* exactly once: struct pst_reqid, seq 0: none */
    uint64_t seq;
    uint64_t ino, offset, length;
    uint64_t version, new_size; /* CHUNK_REPLACE */
    uint8_t meta_len;
    uint8_t meta[DP_META_MAX];
    uint8_t nsegs;
    struct dp_seg seg[DP_SEGS_MAX];
    /* Inside the message: the inline payload of WRITE and CHUNK_REPLACE, or the capability of BIND. */
    const void *payload;
    uint32_t payload_len;
};

#define DP_SETTLED 1u /* no RMA of the request is under way, or comes */

/*
 * The receiver has to check that a reply fits its request: msgno, opcode, and result <= length for bytes; of
 * CHUNK_REPLACE <= DP_CHUNK_MAX: the recorded answer to a request that was made anew may be of another length.
 */
struct dp_reply {
    uint64_t msgno;  /* of the request that it answers */
    uint64_t tag;    /* of the request */
    uint8_t opcode;  /* of the request */
    int32_t status;  /* 0 or -errno (Linux numbers on the wire: docs/protocol.md has the list) */
    uint64_t result; /* bytes, or an offset; <= INT64_MAX; payload_len when there is a payload */
    uint64_t offset; /* of an append; of a failed request with THIRD: DP_SETTLED or 0 */
    uint64_t version;
    uint64_t size, used, change; /* attributes after a change; 0 otherwise */
    int64_t mtime_ns;
    uint8_t meta_len; /* CHUNK_READ only, like the payload only with status 0 */
    uint8_t meta[DP_META_MAX];
    const void *payload; /* inline data of READ and CHUNK_READ, inside the message */
    uint32_t payload_len;
};

/*
 * The key of one connection's MACs, from the session's data key and the ticket of its connect request: a message of one
 * connection is worth nothing on another of the same session. 0 or -ENOMEM / -EIO.
 */
int dp_conn_key(const uint8_t session_key[DP_KEY_BYTES], const void *ticket, size_t ticket_len,
                uint8_t ret_key[DP_KEY_BYTES]);

/*
 * Encoders: header and trailer go to buf (>= DP_HEAD_MAX bytes), the payload is not copied: ret_iov gets the message in
 * up to 3 parts (header, payload, MAC). Return the number of parts; -EINVAL / -EMSGSIZE for a message that no decoder
 * would take; -EIO when the MAC cannot be made.
 */
#define DP_HEAD_MAX 512u
int dp_encode_request(struct pst_mac *mac, const struct dp_request *r, uint8_t *buf, struct iovec ret_iov[3]);
int dp_encode_reply(struct pst_mac *mac, const struct dp_reply *r, uint8_t *buf, struct iovec ret_iov[3]);
/*
 * Decoders look at version and size, then the MAC, then every length and value. 0; -EBADMSG: malformed; -EACCES: the
 * MAC does not match; -EPROTO: another version. ret is untouched on error; pointers in ret are inside msg. The receiver
 * ends the connection on every error; a server also when msgno is not the last one plus one.
 */
int dp_decode_request(struct pst_mac *mac, const void *msg, size_t len, struct dp_request *ret);
int dp_decode_reply(struct pst_mac *mac, const void *msg, size_t len, struct dp_reply *ret);

#endif
