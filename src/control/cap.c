/*
 * Layout, all integers big-endian:
 *
 *   'C' version key_id(8)   { type len data(len) } x caveats   mac(32)
 *
 * A caveat type that this version does not know cannot be honoured, so it is refused. Caveats that exclude each other
 * leave nothing allowed: cap_verify says -EACCES rather than return a grant that someone could misread.
 */
#include "control/cap.h"

#include "base/buf.h"
#include "base/crypto.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>

#define CAP_MAGIC   'C'
#define CAP_VERSION 1u
#define CAP_HEAD    10u
#define CAP_MAC     PST_HMAC_BYTES
#define CAP_RIGHTS  (CAP_READ | CAP_WRITE)

enum caveat {
    CAVEAT_SESSION = 1,
    CAVEAT_TENANT,
    CAVEAT_CONT,
    CAVEAT_INO,
    CAVEAT_RIGHTS,
    CAVEAT_RANGE,
    CAVEAT_EXPIRES,
    CAVEAT_USER,   /* uid, gid, groups; the first one or nowhere */
    CAVEAT_GROUPS, /* more of them, right behind it */
    CAVEATS,
};
#define USER_GROUPS 60u /* in the first of these two */

/* 0: has several. */
static const uint8_t caveat_len[CAVEATS] = {
    [CAVEAT_SESSION] = 16, [CAVEAT_TENANT] = 8, [CAVEAT_CONT] = 8,    [CAVEAT_INO] = 8,
    [CAVEAT_RIGHTS] = 4,   [CAVEAT_RANGE] = 16, [CAVEAT_EXPIRES] = 8,
};

static const uint8_t no_session[16];

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (24 - 8 * i));
}

static void put_u64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> (56 - 8 * i));
}

/* ---- building ---- */

/* Appends a caveat in place of the old mac and puts the new mac after it. */
static int append_bytes(struct cap *c, enum caveat type, const void *data, uint8_t len)
{
    uint8_t *at = c->bytes + c->len - CAP_MAC, mac[CAP_MAC];
    size_t n = 2u + len;
    int r;

    if (c->len + n > sizeof c->bytes)
        return -ENOSPC;
    memcpy(mac, at, sizeof mac);
    at[0] = (uint8_t)type;
    at[1] = len;
    memcpy(at + 2, data, len);
    r = pst_hmac(mac, sizeof mac, &(struct pst_bytes){at, n}, 1, at + n);
    c->len += n;
    pst_wipe(mac, sizeof mac);
    return r;
}

static int append(struct cap *c, enum caveat type, const void *data)
{
    return append_bytes(c, type, data, caveat_len[type]);
}

static int append_u64(struct cap *c, enum caveat type, uint64_t v)
{
    uint8_t b[8];
    put_u64(b, v);
    return append(c, type, b);
}

static int append_user(struct cap *c, const struct pst_cred *user)
{
    uint8_t b[8 + 4 * PST_GROUPS_MAX];
    uint32_t n = user->ngroups, first = (uint32_t)min_u64(n, USER_GROUPS);
    int r;

    if (n > PST_GROUPS_MAX)
        return -EINVAL;
    put_u32(b, user->uid);
    put_u32(b + 4, user->gid);
    for (uint32_t i = 0; i < n; i++)
        put_u32(b + 8 + 4 * i, user->groups[i]);
    r = append_bytes(c, CAVEAT_USER, b, (uint8_t)(8 + 4 * first));
    return r || n == first ? r : append_bytes(c, CAVEAT_GROUPS, b + 8 + 4 * first, (uint8_t)(4 * (n - first)));
}

/* Expects that the number of caveats allows all that g has. */
static int append_grant(struct cap *c, const struct cap_grant *g)
{
    uint8_t b[16];
    int r = 0;

    if (memcmp(g->session, no_session, sizeof no_session))
        r = append(c, CAVEAT_SESSION, g->session);
    if (!r && g->tenant)
        r = append_u64(c, CAVEAT_TENANT, g->tenant);
    if (!r && g->cont)
        r = append_u64(c, CAVEAT_CONT, g->cont);
    if (!r && g->ino)
        r = append_u64(c, CAVEAT_INO, g->ino);
    if (!r && g->rights != CAP_RIGHTS)
        r = append(c, CAVEAT_RIGHTS, (const uint8_t[4]){0, 0, 0, (uint8_t)g->rights});
    if (!r && (g->range_offset || g->range_length)) {
        put_u64(b, g->range_offset);
        put_u64(b + 8, g->range_length);
        r = append(c, CAVEAT_RANGE, b);
    }
    if (!r && g->expires_ns != INT64_MAX)
        r = append_u64(c, CAVEAT_EXPIRES, (uint64_t)g->expires_ns);
    return r;
}

static unsigned grant_caveats(const struct cap_grant *g)
{
    return (unsigned)(!!memcmp(g->session, no_session, sizeof no_session) + !!g->tenant + !!g->cont + !!g->ino +
                      (g->rights != CAP_RIGHTS) + (g->range_offset || g->range_length) + (g->expires_ns != INT64_MAX));
}

static int grant_sane(const struct cap_grant *g)
{
    return g->rights & ~CAP_RIGHTS || g->range_length > UINT64_MAX - g->range_offset ? -EINVAL : 0;
}

int cap_mint(const uint8_t key[CAP_KEY_BYTES], const struct cap_grant *g, struct cap *ret)
{
    return cap_mint_for(key, g, NULL, ret);
}

int cap_mint_for(const uint8_t key[CAP_KEY_BYTES], const struct cap_grant *g, const struct pst_cred *user,
                 struct cap *ret)
{
    struct cap c = {.len = CAP_HEAD + CAP_MAC};
    int r = grant_sane(g);

    if (r)
        return r;
    c.bytes[0] = CAP_MAGIC;
    c.bytes[1] = CAP_VERSION;
    put_u64(c.bytes + 2, g->key_id);
    r = pst_hmac(key, CAP_KEY_BYTES, &(struct pst_bytes){c.bytes, CAP_HEAD}, 1, c.bytes + CAP_HEAD);
    if (!r && user)
        r = append_user(&c, user);
    if (!r)
        r = append_grant(&c, g);
    if (!r)
        *ret = c;
    return r;
}

/* ---- reading ---- */

struct view {
    uint64_t key_id;
    const uint8_t *caveats; /* caveats_len bytes of whole caveats of known types */
    size_t caveats_len;
    unsigned n; /* but for the user's */
    const uint8_t *mac;
};

/* `before`: the type of the one before it; 0: it is the first. */
static bool well_formed(uint8_t type, uint8_t len, uint8_t before)
{
    switch (type) {
    case CAVEAT_USER:
        return !before && len >= 8 && len <= 8 + 4 * USER_GROUPS && len % 4 == 0;
    case CAVEAT_GROUPS:
        return before == CAVEAT_USER && len && len <= 4 * (PST_GROUPS_MAX - USER_GROUPS) && len % 4 == 0;
    default:
        return type && type < CAVEATS && len == caveat_len[type];
    }
}

/* The one place that checks lengths. */
static int parse(const void *bytes, size_t len, struct view *ret)
{
    struct view v = {0};
    uint8_t before = 0;
    struct rbuf r;

    if (len < CAP_HEAD + CAP_MAC || len > CAP_BYTES_MAX)
        return -EBADMSG;
    r = rbuf_of(bytes, len - CAP_MAC);
    if (rbuf_u8(&r) != CAP_MAGIC || rbuf_u8(&r) != CAP_VERSION)
        return -EBADMSG;
    v.key_id = rbuf_be64(&r);
    v.caveats = r.p;
    v.caveats_len = rbuf_left(&r);
    while (rbuf_left(&r)) {
        uint8_t type = rbuf_u8(&r), n = rbuf_u8(&r);
        v.n += type < CAVEAT_USER;
        if (!well_formed(type, n, before) || !rbuf_take(&r, n) || v.n > CAP_CAVEATS_MAX)
            return -EBADMSG;
        before = type;
    }
    if (rbuf_end(&r))
        return -EBADMSG;
    v.mac = (const uint8_t *)bytes + len - CAP_MAC;
    *ret = v;
    return 0;
}

int cap_narrow(const struct cap *in, const struct cap_grant *g, struct cap *ret)
{
    struct cap c;
    struct view v;
    int r;

    if (in->len > sizeof in->bytes)
        return -EBADMSG;
    r = parse(in->bytes, in->len, &v);
    if (!r)
        r = grant_sane(g);
    if (r)
        return r;
    if (v.n + grant_caveats(g) > CAP_CAVEATS_MAX)
        return -ENOSPC;
    c = *in;
    r = append_grant(&c, g);
    if (!r)
        *ret = c;
    return r;
}

int cap_key_id(const void *bytes, size_t len, uint64_t *ret_key_id)
{
    struct view v;
    int r = parse(bytes, len, &v);
    if (!r)
        *ret_key_id = v.key_id;
    return r;
}

/* A name that may be said once, or again with the same value; 0 is no name. */
static int fold_name(uint64_t *have, uint64_t v)
{
    if (!v)
        return -EBADMSG;
    if (*have && *have != v)
        return -EACCES;
    *have = v;
    return 0;
}

/* Intersects [offset, offset + length) with the grant's range; length 0 has no end. */
static int fold_range(struct cap_grant *g, uint64_t offset, uint64_t length)
{
    uint64_t start = max_u64(g->range_offset, offset), end, end_a, end_b;

    if (length > UINT64_MAX - offset)
        return -EBADMSG;
    end_a = g->range_length ? g->range_offset + g->range_length : UINT64_MAX;
    end_b = length ? offset + length : UINT64_MAX;
    end = min_u64(end_a, end_b);
    if (start >= end)
        return -EACCES;
    g->range_offset = start;
    g->range_length = g->range_length || length ? end - start : 0;
    return 0;
}

static int fold(struct cap_grant *g, uint8_t type, struct rbuf d)
{
    uint64_t a;

    switch ((enum caveat)type) {
    case CAVEAT_SESSION:
        if (!memcmp(d.p, no_session, sizeof no_session))
            return -EBADMSG;
        if (memcmp(g->session, no_session, sizeof no_session) && memcmp(g->session, d.p, sizeof g->session))
            return -EACCES;
        memcpy(g->session, d.p, sizeof g->session);
        return 0;
    case CAVEAT_TENANT:
        return fold_name(&g->tenant, rbuf_be64(&d));
    case CAVEAT_CONT:
        return fold_name(&g->cont, rbuf_be64(&d));
    case CAVEAT_INO:
        return fold_name(&g->ino, rbuf_be64(&d));
    case CAVEAT_RIGHTS:
        g->rights &= rbuf_be32(&d);
        return 0;
    case CAVEAT_RANGE:
        a = rbuf_be64(&d);
        return fold_range(g, a, rbuf_be64(&d));
    case CAVEAT_EXPIRES:
        a = rbuf_be64(&d);
        g->expires_ns = (int64_t)a < g->expires_ns ? (int64_t)a : g->expires_ns;
        return 0;
    case CAVEAT_USER:
    case CAVEAT_GROUPS:
        return 0; /* they narrow nothing: cap_user */
    case CAVEATS:
        break;
    }
    return -EBADMSG;
}

/* Walks the chain from the key to the last mac. */
static int check_macs(const uint8_t key[CAP_KEY_BYTES], const uint8_t *head, const struct view *v)
{
    uint8_t mac[CAP_MAC];
    const uint8_t *p = v->caveats, *end = v->caveats + v->caveats_len;
    int r = pst_hmac(key, CAP_KEY_BYTES, &(struct pst_bytes){head, CAP_HEAD}, 1, mac);

    while (!r && p < end) {
        size_t n = 2u + p[1];
        r = pst_hmac(mac, sizeof mac, &(struct pst_bytes){p, n}, 1, mac);
        p += n;
    }
    if (!r && !pst_equal_ct(mac, v->mac, sizeof mac))
        r = -EACCES;
    pst_wipe(mac, sizeof mac);
    return r;
}

int cap_verify(const uint8_t key[CAP_KEY_BYTES], const void *bytes, size_t len, struct cap_grant *ret)
{
    struct cap_grant g = {.rights = CAP_RIGHTS, .expires_ns = INT64_MAX};
    struct view v;
    struct rbuf r;
    int rc = parse(bytes, len, &v);

    if (!rc)
        rc = check_macs(key, bytes, &v);
    if (rc)
        return rc;
    g.key_id = v.key_id;
    r = rbuf_of(v.caveats, v.caveats_len);
    while (!rc && rbuf_left(&r)) {
        uint8_t type = rbuf_u8(&r), n = rbuf_u8(&r);
        rc = fold(&g, type, rbuf_of(rbuf_take(&r, n), n));
    }
    if (!rc)
        *ret = g;
    return rc;
}

int cap_user(const void *bytes, size_t len, struct pst_cred *ret)
{
    struct pst_cred c = {0};
    struct view v;
    struct rbuf r;
    int rc = parse(bytes, len, &v);

    if (rc)
        return rc;
    r = rbuf_of(v.caveats, v.caveats_len);
    if (!v.caveats_len || rbuf_u8(&r) != CAVEAT_USER)
        return -ENODATA;
    for (uint8_t type = CAVEAT_USER; type == CAVEAT_USER || type == CAVEAT_GROUPS; type = rbuf_u8(&r)) {
        uint8_t n = rbuf_u8(&r);
        struct rbuf d = rbuf_of(rbuf_take(&r, n), n);
        if (type == CAVEAT_USER) {
            c.uid = rbuf_be32(&d);
            c.gid = rbuf_be32(&d);
        }
        while (rbuf_left(&d))
            c.groups[c.ngroups++] = rbuf_be32(&d);
        if (!rbuf_left(&r))
            break;
    }
    *ret = c;
    return 0;
}

int cap_check(const struct cap_grant *g, uint64_t cont, uint64_t ino, uint32_t rights, uint64_t offset, uint64_t length,
              int64_t now_wall_ns)
{
    if (now_wall_ns >= g->expires_ns)
        return -EKEYEXPIRED;
    if ((g->cont && g->cont != cont) || (g->ino && g->ino != ino) || rights & ~g->rights)
        return -EACCES;
    if (length > UINT64_MAX - offset || offset < g->range_offset ||
        (g->range_length && offset + length > g->range_offset + g->range_length))
        return -ERANGE;
    return 0;
}
