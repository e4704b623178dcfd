#include "dp_wire.h"

#include <errno.h>

/* What an opcode uses: the table in fabric/dp.h. */
enum { U_CAP = 1, U_INO = 2, U_OFFSET = 4, U_SPAN = 8, U_SEQ = 16, U_OUT = 32, U_IN = 64, U_CHUNK = 128, U_BIND = 256 };

struct rule {
    uint16_t uses, flags;
};

#define WHERE (DP_F_INLINE | DP_F_EXPORTED | DP_F_THIRD) /* the bytes are: at most one of these */

static const struct rule rules[DP_OPCODES] = {
    [DP_BIND] = {U_CAP | U_BIND, 0},
    [DP_UNBIND] = {U_CAP, 0},
    [DP_READ] = {U_CAP | U_INO | U_OFFSET | U_SPAN | U_OUT, WHERE},
    [DP_WRITE] = {U_CAP | U_INO | U_OFFSET | U_SPAN | U_SEQ | U_IN,
                  WHERE | DP_F_APPEND | DP_F_DSYNC | DP_F_KILL_SETID},
    [DP_PUNCH] = {U_CAP | U_INO | U_OFFSET | U_SPAN | U_SEQ, DP_F_KILL_SETID},
    [DP_ALLOCATE] = {U_CAP | U_INO | U_OFFSET | U_SPAN | U_SEQ, DP_F_KEEP_SIZE | DP_F_KILL_SETID},
    [DP_SEEK_DATA] = {U_CAP | U_INO | U_OFFSET, 0},
    [DP_SEEK_HOLE] = {U_CAP | U_INO | U_OFFSET, 0},
    [DP_FSYNC] = {U_CAP | U_INO, 0},
    [DP_SYNCFS] = {U_CAP, 0},
    [DP_CHUNK_READ] = {U_CAP | U_INO | U_OFFSET | U_SPAN | U_OUT, WHERE},
    [DP_CHUNK_REPLACE] = {U_CAP | U_INO | U_OFFSET | U_SPAN | U_SEQ | U_IN | U_CHUNK,
                          WHERE | DP_F_DSYNC | DP_F_GROW | DP_F_SET_SIZE | DP_F_IF_UNCHANGED | DP_F_KILL_SETID},
    [DP_PING] = {0, 0},
};

/* Zero for what the opcode does not use, so that one meaning has one form. */
static void canonical(const struct rule *u, struct dp_request *r)
{
    if (!(u->uses & U_CAP))
        r->cap = 0;
    if (!(u->uses & U_INO))
        r->ino = 0;
    if (!(u->uses & U_OFFSET) || (r->flags & DP_F_APPEND))
        r->offset = 0;
    if (!(u->uses & U_SPAN))
        r->length = 0;
    if (!(u->uses & U_SEQ))
        r->seq = 0;
    if (!r->seq)
        r->slot = r->origin = 0;
    if (!(u->uses & U_CHUNK)) {
        r->version = 0;
        r->meta_len = 0;
    }
    if (!(r->flags & (DP_F_GROW | DP_F_SET_SIZE)))
        r->new_size = 0;
}

static bool is_canonical(const struct rule *u, const struct dp_request *r)
{
    struct dp_request c = *r;

    canonical(u, &c);
    return c.cap == r->cap && c.ino == r->ino && c.offset == r->offset && c.length == r->length && c.seq == r->seq &&
           c.slot == r->slot && c.origin == r->origin && c.version == r->version && c.meta_len == r->meta_len &&
           c.new_size == r->new_size;
}

/* Where the bytes are: in the message or in segments, as flags say, and as many as `length`. */
static int check_data(const struct rule *u, const struct dp_request *r)
{
    bool chunk = r->opcode == DP_CHUNK_READ || r->opcode == DP_CHUNK_REPLACE;
    bool third = (r->flags & DP_F_THIRD) != 0;
    uint64_t sum = 0;

    if (r->nsegs > DP_SEGS_MAX)
        return -EINVAL;
    if (u->uses & U_BIND)
        return r->nsegs || !r->payload_len || r->payload_len > DP_CAP_MAX ? -EINVAL : 0;
    if (!(u->uses & (U_IN | U_OUT)))
        return r->nsegs || r->payload_len ? -EINVAL : 0;
    if (r->length > (chunk ? DP_CHUNK_MAX : DP_IO_MAX))
        return -EMSGSIZE;
    if (r->flags & WHERE & ((r->flags & WHERE) - 1))
        return -EINVAL;
    if ((r->flags & (DP_F_EXPORTED | DP_F_THIRD)) && !r->length)
        return -EINVAL;
    if (third && (r->nsegs < 2 || !r->seg[0].key || r->seg[0].len))
        return -EINVAL;
    if (r->flags & DP_F_INLINE) {
        if (r->nsegs || r->payload_len != (u->uses & U_IN ? r->length : 0))
            return -EINVAL;
        return r->length > DP_INLINE_MAX ? -EMSGSIZE : 0;
    }
    if (r->payload_len)
        return -EINVAL;
    for (unsigned i = third; i < r->nsegs; i++) {
        if (!r->seg[i].len || r->seg[i].addr + r->seg[i].len < r->seg[i].addr)
            return -EINVAL;
        sum += r->seg[i].len;
    }
    return sum == r->length ? 0 : -EINVAL;
}

/* The values of a request, for both directions: 0, -EINVAL or -EMSGSIZE. */
static int check(const struct dp_request *r)
{
    const struct rule *u = r->opcode < DP_OPCODES ? &rules[r->opcode] : NULL;

    if (!u || !r->opcode || (r->flags & ~u->flags) || !r->msgno)
        return -EINVAL;
    if (r->cap >= DP_CAPS_MAX || r->slot >= DP_SLOTS_MAX || r->meta_len > DP_META_MAX)
        return -EINVAL;
    if ((r->flags & DP_F_GROW) && (r->flags & DP_F_SET_SIZE))
        return -EINVAL;
    if (((u->uses & U_INO) && !r->ino) || r->new_size > INT64_MAX)
        return -EINVAL;
    if (r->offset > INT64_MAX || r->length > INT64_MAX - r->offset)
        return -EINVAL;
    if (!is_canonical(u, r))
        return -EINVAL;
    return check_data(u, r);
}

int dp_encode_request(struct pst_mac *mac, const struct dp_request *in, uint8_t *buf, struct iovec ret_iov[3])
{
    struct dp_request r = *in;
    struct dp_wire_request *w = (struct dp_wire_request *)buf;
    uint8_t *p = buf + sizeof *w;
    int err;

    if (r.opcode < DP_OPCODES)
        canonical(&rules[r.opcode], &r);
    err = check(&r);
    if (err)
        return err;
    *w = (struct dp_wire_request){
        .h = {DP_VERSION, DP_TYPE_REQUEST, r.opcode, r.meta_len, put_le32(r.payload_len), put_le32(0)},
        .flags = put_le16(r.flags),
        .nsegs = r.nsegs,
        .msgno = put_le64(r.msgno),
        .tag = put_le64(r.tag),
        .cap = put_le32(r.cap),
        .slot = put_le32(r.slot | (uint32_t)r.origin << DP_ORIGIN_SHIFT),
        .seq = put_le64(r.seq),
        .ino = put_le64(r.ino),
        .offset = put_le64(r.offset),
        .length = put_le64(r.length),
        .version = put_le64(r.version),
        .new_size = put_le64(r.new_size),
    };
    memcpy(p, r.meta, r.meta_len);
    p += r.meta_len;
    for (unsigned i = 0; i < r.nsegs; i++) {
        struct dp_wire_seg s = {put_le64(r.seg[i].addr), put_le64(r.seg[i].key), put_le32(r.seg[i].len)};

        memcpy(p, &s, sizeof s);
        p += sizeof s;
    }
    return dp_seal(mac, DP_FROM_CLIENT, buf, (size_t)(p - buf), r.payload, r.payload_len, ret_iov);
}

int dp_decode_request(struct pst_mac *mac, const void *msg, size_t len, struct dp_request *ret)
{
    const struct dp_wire_request *w = msg;
    const uint8_t *p = (const uint8_t *)msg + sizeof *w;
    struct dp_request r = {0};
    int err = dp_open(mac, DP_FROM_CLIENT, DP_TYPE_REQUEST, sizeof *w, msg, len);

    if (err)
        return err;
    r.payload_len = get_le32(w->h.payload_len);
    r.meta_len = w->h.meta_len;
    r.nsegs = w->nsegs;
    if (r.meta_len > DP_META_MAX || r.nsegs > DP_SEGS_MAX || r.payload_len > DP_INLINE_MAX || w->zero ||
        len != sizeof *w + r.meta_len + r.nsegs * sizeof(struct dp_wire_seg) + r.payload_len + DP_MAC_BYTES)
        return -EBADMSG;
    r.opcode = w->h.opcode;
    r.flags = get_le16(w->flags);
    r.msgno = get_le64(w->msgno);
    r.tag = get_le64(w->tag);
    r.cap = get_le32(w->cap);
    r.slot = get_le32(w->slot) & ((1u << DP_ORIGIN_SHIFT) - 1);
    r.origin = (uint16_t)(get_le32(w->slot) >> DP_ORIGIN_SHIFT);
    r.seq = get_le64(w->seq);
    r.ino = get_le64(w->ino);
    r.offset = get_le64(w->offset);
    r.length = get_le64(w->length);
    r.version = get_le64(w->version);
    r.new_size = get_le64(w->new_size);
    memcpy(r.meta, p, r.meta_len);
    p += r.meta_len;
    for (unsigned i = 0; i < r.nsegs; i++) {
        struct dp_wire_seg s;

        memcpy(&s, p, sizeof s);
        r.seg[i] = (struct dp_seg){get_le64(s.addr), get_le64(s.key), get_le32(s.len)};
        p += sizeof s;
    }
    if (r.payload_len)
        r.payload = p;
    if (check(&r))
        return -EBADMSG;
    *ret = r;
    return 0;
}
