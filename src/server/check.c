/* What stands between a request and the store: capabilities, bound to numbers of a connection. */
#include "data.h"

#include <errno.h>
#include <string.h>

static struct bound *bound_of(struct conn *c, uint32_t number)
{
    return number < c->ncaps && c->caps[number].cont ? &c->caps[number] : NULL;
}

/* Still the key that it was? Asked again only after some key has ended. */
static bool alive(struct ctl_server *ctl, struct bound *b)
{
    uint64_t generation = ctl_generation(ctl);

    if (b->generation == generation)
        return true;
    if (!ctl_cap_alive(ctl, &b->grant))
        return false;
    b->generation = generation;
    return true;
}

/* What rights on which bytes a request needs. */
struct need {
    uint32_t rights;
    uint64_t ino, offset, length;
};

/* The whole object: only a capability without a range has that. */
#define WHOLE 0, INT64_MAX

static struct need need_of(const struct dp_request *dp, const struct bound *b, uint64_t chunk_size)
{
    uint64_t ino = dp->ino;

    switch (dp->opcode) {
    case DP_READ:
        return (struct need){CAP_READ, ino, dp->offset, dp->length};
    case DP_SEEK_DATA:
    case DP_SEEK_HOLE: /* tells of bytes anywhere behind the offset */
        return (struct need){CAP_READ, ino, WHOLE};
    case DP_WRITE:
        if (dp->flags & DP_F_APPEND)
            return (struct need){CAP_WRITE, ino, WHOLE};
        return (struct need){CAP_WRITE, ino, dp->offset, dp->length};
    case DP_PUNCH:
    case DP_ALLOCATE:
        return (struct need){CAP_WRITE, ino, dp->offset, dp->length};
    case DP_CHUNK_READ:
        return (struct need){CAP_READ, ino, dp->offset * chunk_size, chunk_size};
    case DP_CHUNK_REPLACE:
        if (dp->flags & (DP_F_GROW | DP_F_SET_SIZE))
            return (struct need){CAP_WRITE, ino, WHOLE};
        return (struct need){CAP_WRITE, ino, dp->offset * chunk_size, chunk_size};
    case DP_FSYNC:
        return (struct need){0, ino, 0, 0};
    default: /* SYNCFS: who has something open in the container may make it durable */
        return (struct need){0, b->grant.ino, 0, 0};
    }
}

int check_request(struct req *q)
{
    const struct dp_request *dp = &q->dp;
    struct conn *c = q->conn;
    struct ctl_server *ctl = c->shard->srv->ctl;
    struct bound *b = bound_of(c, dp->cap);
    const struct pst_cont *cont;
    struct need n;
    int r;

    if (!b) {
        ctl_refuse(ctl, REFUSE_CAP_KEY);
        return -EACCES;
    }
    if (!alive(ctl, b))
        return -EKEYREVOKED;
    cont = sess_cont_store(b->cont);
    if ((dp->opcode == DP_CHUNK_READ || dp->opcode == DP_CHUNK_REPLACE) && dp->offset > PST_FILE_MAX / PST_CHUNK_MIN)
        return -EFBIG; /* so that the product with the chunk size does not wrap */
    n = need_of(dp, b, cont->info.props.chunk_size);
    r = ctl_cap_check(ctl, &b->grant, n.ino, n.rights, n.offset, n.length);
    if (r < 0)
        return r;
    q->cont = sess_cont_ref(b->cont);
    q->bearer = b->bearer;
    if (b->bearer)
        b->bearer->refs++;
    return 0;
}

void check_put_bearer(struct bearer *b)
{
    if (b && !--b->refs)
        free(b);
}

/* Of a capability that was accepted. 0 or -ENOMEM. */
static int bearer_of(const struct dp_request *dp, struct bearer **ret)
{
    struct pst_cred cred;
    struct bearer *b;

    if (cap_user(dp->payload, dp->payload_len, &cred)) {
        *ret = NULL;
        return 0;
    }
    b = malloc(sizeof *b);
    if (!b)
        return -ENOMEM;
    *b = (struct bearer){1, cred};
    *ret = b;
    return 0;
}

static void unbind(struct bound *b)
{
    sess_cont_put(b->cont); /* requests under it hold their own count, of both */
    check_put_bearer(b->bearer);
    *b = (struct bound){0};
}

int check_bind(struct conn *c, const struct dp_request *dp)
{
    struct ctl_server *ctl = c->shard->srv->ctl;
    uint64_t generation = ctl_generation(ctl); /* before: a revocation meanwhile is then noticed */
    struct sess_cont *cont;
    struct cap_grant grant;
    struct bearer *bearer;
    int r;

    if (dp->cap >= DP_CAPS_MAX)
        return -EINVAL;
    if (dp->cap >= c->ncaps) {
        uint32_t n = (uint32_t)max_u64(8, 2ull << (63 - __builtin_clzll(dp->cap | 1)));
        struct bound *p = realloc(c->caps, n * sizeof *p);
        if (!p)
            return -ENOMEM;
        memset(p + c->ncaps, 0, (n - c->ncaps) * sizeof *p);
        c->caps = p;
        c->ncaps = n;
    }
    r = ctl_cap_verify(ctl, c->sess, dp->payload, dp->payload_len, &grant, &cont);
    if (r < 0)
        return r;
    r = bearer_of(dp, &bearer);
    if (r < 0) {
        sess_cont_put(cont);
        return r;
    }
    unbind(&c->caps[dp->cap]);
    c->caps[dp->cap] = (struct bound){cont, bearer, grant, generation};
    return 0;
}

int check_unbind(struct conn *c, const struct dp_request *dp)
{
    struct bound *b = bound_of(c, dp->cap);

    if (!b)
        return -ENOENT;
    unbind(b);
    return 0;
}

void check_unbind_all(struct conn *c)
{
    for (uint32_t i = 0; i < c->ncaps; i++)
        unbind(&c->caps[i]);
    free(c->caps);
    c->caps = NULL;
    c->ncaps = 0;
}
