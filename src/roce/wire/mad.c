/* Management datagrams: the common header, and uroce's hello. */
#include "roce/wire_mad.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define MAD_BASE_VERSION    1u
#define HELLO_CLASS_VERSION 1u

struct raw_hello {
    struct wire_mad_raw head;
    uint8_t rmpp[12];
    uint8_t zero;
    be24 oui;
    uint8_t version, kind;
    be16 zero2;
    be32 caps, src_qp, dest_qp, uid;
    be16 sack_bits, zero3;
    be64 instance;
    uint8_t machine[16], cookie[16];
    char name[WIRE_HELLO_NAME_BYTES];
    be32 far_bytes;
    uint8_t zero4[84];
};

static_assert(sizeof(struct wire_mad_raw) == WIRE_MAD_HEAD_BYTES, "layout");
static_assert(sizeof(struct raw_hello) == WIRE_MAD_BYTES, "layout");
static_assert(offsetof(struct raw_hello, instance) == 64 && offsetof(struct raw_hello, name) == 104, "layout");

void wire_mad_encode(const struct wire_mad *m, uint8_t *ret_head)
{
    struct wire_mad_raw r = {
        .base_version = MAD_BASE_VERSION,
        .mgmt_class = m->mgmt_class,
        .class_version = m->class_version,
        .method = m->method,
        .status = put_be16(m->status),
        .class_specific = put_be16(m->class_specific),
        .tid = put_be64(m->tid),
        .attr_id = put_be16(m->attr_id),
        .attr_mod = put_be32(m->attr_mod),
    };

    memcpy(ret_head, &r, sizeof r);
}

int wire_mad_decode(const void *data, size_t len, struct wire_mad *ret_mad)
{
    struct wire_mad_raw r;

    if (len != WIRE_MAD_BYTES)
        return -ENODATA;
    memcpy(&r, data, sizeof r);
    if (r.base_version != MAD_BASE_VERSION)
        return -EPROTONOSUPPORT;
    *ret_mad = (struct wire_mad){
        .mgmt_class = r.mgmt_class,
        .class_version = r.class_version,
        .method = r.method,
        .status = get_be16(r.status),
        .class_specific = get_be16(r.class_specific),
        .tid = get_be64(r.tid),
        .attr_id = get_be16(r.attr_id),
        .attr_mod = get_be32(r.attr_mod),
    };
    return 0;
}

int wire_hello_encode(const struct wire_hello *h, uint8_t ret_mad[WIRE_MAD_BYTES])
{
    struct wire_mad m = {.mgmt_class = WIRE_MAD_UROCE,
                         .class_version = HELLO_CLASS_VERSION,
                         .method = WIRE_MAD_SEND,
                         .tid = h->tid,
                         .attr_id = WIRE_HELLO_ATTR};
    struct raw_hello r = {
        .oui = put_be24(WIRE_OUI_UROCE),
        .version = WIRE_HELLO_VERSION,
        .kind = (uint8_t)h->kind,
        .caps = put_be32(h->caps),
        .src_qp = put_be32(h->src_qp),
        .dest_qp = put_be32(h->dest_qp),
        .uid = put_be32(h->uid),
        .sack_bits = put_be16(h->sack_bits),
        .instance = put_be64(h->instance),
        .far_bytes = put_be32(h->far_bytes),
    };
    size_t name = strnlen(h->name, sizeof h->name);

    if (h->kind < WIRE_HELLO_ASK || h->kind > WIRE_HELLO_BOUND || (h->src_qp | h->dest_qp) >> 24 ||
        name == sizeof h->name)
        return -EINVAL;
    memcpy(r.machine, h->machine, sizeof r.machine);
    memcpy(r.cookie, h->cookie, sizeof r.cookie);
    memcpy(r.name, h->name, name);
    memcpy(ret_mad, &r, sizeof r);
    wire_mad_encode(&m, ret_mad);
    return 0;
}

int wire_hello_decode(const void *data, size_t len, struct wire_hello *ret_hello)
{
    struct raw_hello r;
    struct wire_mad m;
    struct wire_hello h;
    int rc = wire_mad_decode(data, len, &m);

    if (rc)
        return rc;
    memcpy(&r, data, sizeof r);
    if (m.mgmt_class != WIRE_MAD_UROCE || m.class_version != HELLO_CLASS_VERSION || m.method != WIRE_MAD_SEND ||
        m.attr_id != WIRE_HELLO_ATTR || get_be24(r.oui) != WIRE_OUI_UROCE)
        return -ENOMSG;
    if (!r.version)
        return -EPROTONOSUPPORT;
    if (r.kind < WIRE_HELLO_ASK || r.kind > WIRE_HELLO_BOUND || (get_be32(r.src_qp) | get_be32(r.dest_qp)) >> 24 ||
        !memchr(r.name, 0, sizeof r.name))
        return -EPROTO;
    h = (struct wire_hello){
        .tid = m.tid,
        .version = r.version,
        .kind = (enum wire_hello_kind)r.kind,
        .caps = get_be32(r.caps),
        .src_qp = get_be32(r.src_qp),
        .dest_qp = get_be32(r.dest_qp),
        .uid = get_be32(r.uid),
        .sack_bits = get_be16(r.sack_bits),
        .instance = get_be64(r.instance),
        .far_bytes = get_be32(r.far_bytes),
    };
    memcpy(h.machine, r.machine, sizeof h.machine);
    memcpy(h.cookie, r.cookie, sizeof h.cookie);
    memcpy(h.name, r.name, strlen(r.name));
    *ret_hello = h;
    return 0;
}
