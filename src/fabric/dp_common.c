#include "dp_wire.h"

#include <errno.h>

/*
 * A status on the wire is a Linux errno with the numbers of the generic ABI (x86-64, arm64, riscv64, ppc64, s390x; of
 * docs/protocol.md). A host with other numbers needs a table here; without one it must not compile.
 */
static_assert(EPERM == 1 && ENOENT == 2 && EINTR == 4 && EIO == 5 && ENXIO == 6 && EBADF == 9 && EAGAIN == 11 &&
                  ENOMEM == 12 && EACCES == 13 && EBUSY == 16 && EEXIST == 17 && ENODEV == 19 && EISDIR == 21 &&
                  EINVAL == 22 && EFBIG == 27 && ENOSPC == 28 && EROFS == 30 && ERANGE == 34,
              "errno numbers");
static_assert(ENOSYS == 38 && EPROTO == 71 && EBADMSG == 74 && EOVERFLOW == 75 && EMSGSIZE == 90 && EOPNOTSUPP == 95 &&
                  ECONNRESET == 104 && ENOTCONN == 107 && ESHUTDOWN == 108 && ETIMEDOUT == 110 && ESTALE == 116 &&
                  EDQUOT == 122 && ECANCELED == 125 && EKEYEXPIRED == 127 && EKEYREVOKED == 128,
              "errno numbers");

int dp_conn_key(const uint8_t session_key[DP_KEY_BYTES], const void *ticket, size_t ticket_len,
                uint8_t ret_key[DP_KEY_BYTES])
{
    static const char label[] = "penstock dp 1";
    struct pst_bytes parts[] = {{label, sizeof label}, {ticket, ticket_len}};

    static_assert(DP_KEY_BYTES == PST_HMAC_BYTES, "one HMAC is one key");
    return pst_hmac(session_key, DP_KEY_BYTES, parts, 2, ret_key);
}

static int mac_of(struct pst_mac *mac, uint8_t from, const void *head, size_t head_len, const void *payload,
                  size_t payload_len, uint8_t ret[PST_HMAC_BYTES])
{
    struct pst_bytes parts[] = {{&from, 1}, {head, head_len}, {payload, payload_len}};

    return pst_mac(mac, parts, 3, ret) ? -EIO : 0;
}

int dp_seal(struct pst_mac *mac, uint8_t from, uint8_t *buf, size_t head_len, const void *payload, uint32_t payload_len,
            struct iovec ret_iov[3])
{
    struct dp_wire_head *h = (struct dp_wire_head *)buf;
    uint8_t digest[PST_HMAC_BYTES];

    h->total = put_le32((uint32_t)(head_len + payload_len + DP_MAC_BYTES));
    if (mac_of(mac, from, buf, head_len, payload, payload_len, digest))
        return -EIO;
    memcpy(buf + head_len, digest, DP_MAC_BYTES);
    if (!payload_len) {
        ret_iov[0] = (struct iovec){buf, head_len + DP_MAC_BYTES};
        return 1;
    }
    ret_iov[0] = (struct iovec){buf, head_len};
    ret_iov[1] = (struct iovec){(void *)(uintptr_t)payload, payload_len};
    ret_iov[2] = (struct iovec){buf + head_len, DP_MAC_BYTES};
    return 3;
}

int dp_open(struct pst_mac *mac, uint8_t from, uint8_t type, size_t fixed, const void *msg, size_t len)
{
    const struct dp_wire_head *h = msg;
    uint8_t digest[PST_HMAC_BYTES];

    if (!len)
        return -EBADMSG;
    /* Nothing is known about the rest of another version's message. */
    if (h->version != DP_VERSION)
        return -EPROTO;
    if (len < fixed + DP_MAC_BYTES || len > DP_HEAD_MAX + DP_INLINE_MAX)
        return -EBADMSG;
    if (mac_of(mac, from, msg, len - DP_MAC_BYTES, NULL, 0, digest))
        return -EIO;
    if (!pst_equal_ct(digest, (const uint8_t *)msg + len - DP_MAC_BYTES, DP_MAC_BYTES))
        return -EACCES;
    return h->type == type && get_le32(h->total) == len ? 0 : -EBADMSG;
}

const char *dp_opcode_name(unsigned opcode)
{
    static const char *const names[DP_OPCODES] = {
        [DP_BIND] = "bind",           [DP_UNBIND] = "unbind",         [DP_READ] = "read",
        [DP_WRITE] = "write",         [DP_PUNCH] = "punch",           [DP_ALLOCATE] = "allocate",
        [DP_SEEK_DATA] = "seek_data", [DP_SEEK_HOLE] = "seek_hole",   [DP_FSYNC] = "fsync",
        [DP_SYNCFS] = "syncfs",       [DP_CHUNK_READ] = "chunk_read", [DP_CHUNK_REPLACE] = "chunk_replace",
        [DP_PING] = "ping",
    };

    return opcode < DP_OPCODES && names[opcode] ? names[opcode] : "?";
}
