#include "dp_wire.h"

#include <errno.h>

#define ERRNO_MAX 4095 /* as in the kernel */

static int check(const struct dp_reply *r)
{
    bool data = r->opcode == DP_READ || r->opcode == DP_CHUNK_READ;

    if (!r->opcode || r->opcode >= DP_OPCODES || !r->msgno)
        return -EINVAL;
    if (r->status > 0 || r->status < -ERRNO_MAX || r->result > INT64_MAX)
        return -EINVAL;
    if (r->meta_len && (r->meta_len > DP_META_MAX || r->opcode != DP_CHUNK_READ || r->status))
        return -EINVAL;
    if (!r->payload_len)
        return 0;
    if (!data || r->status || r->result != r->payload_len)
        return -EINVAL;
    return r->payload_len > DP_INLINE_MAX ? -EMSGSIZE : 0;
}

int dp_encode_reply(struct pst_mac *mac, const struct dp_reply *r, uint8_t *buf, struct iovec ret_iov[3])
{
    struct dp_wire_reply *w = (struct dp_wire_reply *)buf;
    int err = check(r);

    if (err)
        return err;
    *w = (struct dp_wire_reply){
        .h = {DP_VERSION, DP_TYPE_REPLY, r->opcode, r->meta_len, put_le32(r->payload_len), put_le32(0)},
        .status = put_le32((uint32_t)r->status),
        .msgno = put_le64(r->msgno),
        .tag = put_le64(r->tag),
        .result = put_le64(r->result),
        .offset = put_le64(r->offset),
        .version = put_le64(r->version),
        .size = put_le64(r->size),
        .used = put_le64(r->used),
        .change = put_le64(r->change),
        .mtime_ns = put_le64((uint64_t)r->mtime_ns),
    };
    memcpy(buf + sizeof *w, r->meta, r->meta_len);
    return dp_seal(mac, DP_FROM_SERVER, buf, sizeof *w + r->meta_len, r->payload, r->payload_len, ret_iov);
}

int dp_decode_reply(struct pst_mac *mac, const void *msg, size_t len, struct dp_reply *ret)
{
    const struct dp_wire_reply *w = msg;
    const uint8_t *p = (const uint8_t *)msg + sizeof *w;
    struct dp_reply r = {0};
    int err = dp_open(mac, DP_FROM_SERVER, DP_TYPE_REPLY, sizeof *w, msg, len);

    if (err)
        return err;
    r.payload_len = get_le32(w->h.payload_len);
    r.meta_len = w->h.meta_len;
    if (r.meta_len > DP_META_MAX || r.payload_len > DP_INLINE_MAX ||
        len != sizeof *w + r.meta_len + r.payload_len + DP_MAC_BYTES)
        return -EBADMSG;
    r.opcode = w->h.opcode;
    r.status = (int32_t)get_le32(w->status);
    r.msgno = get_le64(w->msgno);
    r.tag = get_le64(w->tag);
    r.result = get_le64(w->result);
    r.offset = get_le64(w->offset);
    r.version = get_le64(w->version);
    r.size = get_le64(w->size);
    r.used = get_le64(w->used);
    r.change = get_le64(w->change);
    r.mtime_ns = (int64_t)get_le64(w->mtime_ns);
    memcpy(r.meta, p, r.meta_len);
    if (r.payload_len)
        r.payload = p + r.meta_len;
    if (check(&r))
        return -EBADMSG;
    *ret = r;
    return 0;
}
