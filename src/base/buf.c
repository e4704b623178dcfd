#include "base/buf.h"

#include "base/endian.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>

void wbuf_done(struct wbuf *w)
{
    free(w->data);
    *w = (struct wbuf){0};
}

void *wbuf_add(struct wbuf *w, size_t n)
{
    if (w->err)
        return NULL;
    if (n > w->cap - w->len) {
        size_t cap = w->cap ? w->cap : 128;
        uint8_t *d;
        while (cap - w->len < n)
            cap *= 2;
        d = realloc(w->data, cap);
        if (!d) {
            w->err = -ENOMEM;
            return NULL;
        }
        w->data = d;
        w->cap = cap;
    }
    w->len += n;
    return w->data + w->len - n;
}

void wbuf_put(struct wbuf *w, const void *p, size_t n)
{
    void *d = wbuf_add(w, n);
    if (d && n)
        memcpy(d, p, n);
}

#define WBUF_INT(name, type, put)                                                                                      \
    void name(struct wbuf *w, type v)                                                                                  \
    {                                                                                                                  \
        __typeof__(put(v)) x = put(v);                                                                                 \
        wbuf_put(w, &x, sizeof x);                                                                                     \
    }
WBUF_INT(wbuf_u16, uint16_t, put_le16)
WBUF_INT(wbuf_u32, uint32_t, put_le32)
WBUF_INT(wbuf_u64, uint64_t, put_le64)
WBUF_INT(wbuf_be32, uint32_t, put_be32)
WBUF_INT(wbuf_be64, uint64_t, put_be64)

void wbuf_u8(struct wbuf *w, uint8_t v)
{
    wbuf_put(w, &v, 1);
}

void wbuf_blob(struct wbuf *w, const void *p, size_t n)
{
    if (n > UINT32_MAX)
        w->err = w->err ? w->err : -ENOMEM;
    wbuf_u32(w, (uint32_t)n);
    wbuf_put(w, p, n);
}

struct rbuf rbuf_of(const void *p, size_t n)
{
    return (struct rbuf){.p = p, .end = (const uint8_t *)p + n};
}

size_t rbuf_left(const struct rbuf *r)
{
    return (size_t)(r->end - r->p);
}

const void *rbuf_take(struct rbuf *r, size_t n)
{
    const void *p = r->p;
    if (r->err || n > rbuf_left(r)) {
        r->err = -EBADMSG;
        return NULL;
    }
    r->p += n;
    return p;
}

void rbuf_get(struct rbuf *r, void *p, size_t n)
{
    const void *s = rbuf_take(r, n);
    if (s)
        memcpy(p, s, n);
    else
        memset(p, 0, n);
}

#define RBUF_INT(name, type, wire, get)                                                                                \
    type name(struct rbuf *r)                                                                                          \
    {                                                                                                                  \
        wire x;                                                                                                        \
        rbuf_get(r, &x, sizeof x);                                                                                     \
        return get(x);                                                                                                 \
    }
RBUF_INT(rbuf_u16, uint16_t, le16, get_le16)
RBUF_INT(rbuf_u32, uint32_t, le32, get_le32)
RBUF_INT(rbuf_u64, uint64_t, le64, get_le64)
RBUF_INT(rbuf_be32, uint32_t, be32, get_be32)
RBUF_INT(rbuf_be64, uint64_t, be64, get_be64)

uint8_t rbuf_u8(struct rbuf *r)
{
    uint8_t v;
    rbuf_get(r, &v, 1);
    return v;
}

const void *rbuf_blob(struct rbuf *r, size_t max, size_t *ret_len)
{
    uint32_t n = rbuf_u32(r);
    const void *p;
    if (n > max)
        r->err = -EBADMSG;
    p = rbuf_take(r, n);
    *ret_len = p ? n : 0;
    return p;
}

int rbuf_end(const struct rbuf *r)
{
    return r->err || r->p != r->end ? -EBADMSG : 0;
}
