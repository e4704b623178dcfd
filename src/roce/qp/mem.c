/* Protection domains, memory regions and the table of keys. */
#include "impl.h"

int qp_pd_new(struct qp_engine *e, struct qp_pd **ret)
{
    struct qp_pd *pd = calloc(1, sizeof *pd);

    if (!pd)
        return -ENOMEM;
    pd->e = e;
    e->objects++;
    *ret = pd;
    return 0;
}

int qp_pd_free(struct qp_pd *pd)
{
    if (pd->refs)
        return -EBUSY;
    pd->e->objects--;
    free(pd);
    return 0;
}

/* ---- the table ---- */

static uint32_t place(const struct mem_table *t, uint32_t key)
{
    return key >> 8 & t->mask;
}

static void put(struct mem_table *t, struct mem_key *k)
{
    uint32_t i = place(t, k->key);

    while (t->slot[i])
        i = (i + 1) & t->mask;
    t->slot[i] = k;
    t->used++;
}

static int grow(struct mem_table *t)
{
    struct mem_table n = {.mask = t->slot ? t->mask * 2 + 1 : 63};

    n.slot = calloc((size_t)n.mask + 1, sizeof *n.slot);
    if (!n.slot)
        return -ENOMEM;
    for (uint32_t i = 0; t->slot && i <= t->mask; i++)
        if (t->slot[i])
            put(&n, t->slot[i]);
    free(t->slot);
    *t = n;
    return 0;
}

struct mem_key *mem_find_index(const struct mem_table *t, uint32_t key)
{
    if (!t->slot)
        return NULL;
    for (uint32_t i = place(t, key); t->slot[i]; i = (i + 1) & t->mask)
        if (t->slot[i]->key >> 8 == key >> 8)
            return t->slot[i];
    return NULL;
}

int mem_table_add(struct qp_engine *e, struct mem_key *k)
{
    struct mem_table *t = &e->keys;
    uint32_t key;

    if (t->used >= 1u << 22)
        return -ENOSPC;
    if (!t->slot || t->used * 2 >= t->mask) {
        int r = grow(t);
        if (r)
            return r;
    }
    do
        key = (uint32_t)rng_u64(&e->rng);
    while (key >> 8 == 0 || mem_find_index(t, key));
    k->key = key;
    put(t, k);
    return 0;
}

void mem_table_del(struct mem_table *t, const struct mem_key *k)
{
    uint32_t hole = place(t, k->key);

    while (t->slot[hole] != k)
        hole = (hole + 1) & t->mask;
    t->used--;
    for (uint32_t i = (hole + 1) & t->mask; t->slot[i]; i = (i + 1) & t->mask) {
        uint32_t home = place(t, t->slot[i]->key);
        if (((i - home) & t->mask) >= ((i - hole) & t->mask)) { /* its way from home leads over the hole */
            t->slot[hole] = t->slot[i];
            hole = i;
        }
    }
    t->slot[hole] = NULL;
}

struct mem_key *mem_find(const struct mem_table *t, uint32_t key)
{
    struct mem_key *k = mem_find_index(t, key);

    return k && k->key == key ? k : NULL;
}

/* ---- checks ---- */

static uint8_t nothing[1]; /* where a piece of 0 bytes lies */

static uint8_t *range(const struct mem_key *k, uint64_t addr, uint64_t len)
{
    uint64_t off = addr - k->iova;

    if (addr < k->iova || off > k->len || len > k->len - off)
        return NULL;
    return k->base + off;
}

uint8_t *mem_local(struct qp_pd *pd, uint32_t lkey, uint64_t addr, uint64_t len, bool write)
{
    const struct mem_key *k;

    if (!len)
        return nothing;
    k = mem_find(&pd->e->keys, lkey);
    if (!k || k->kind != MEM_MR || k->pd != pd || (write && !(k->access & UROCE_ACCESS_LOCAL_WRITE)))
        return NULL;
    if (k->implicit)
        return addr && addr + len > addr ? (uint8_t *)(uintptr_t)addr : NULL;
    return range(k, addr, len);
}

uint8_t *mem_remote(const struct qp *qp, const struct qp_pd *pd, uint32_t rkey, uint64_t va, uint64_t len,
                    unsigned int access)
{
    const struct mem_key *k;

    if (!len)
        return nothing;
    k = mem_find(&qp->e->keys, rkey);
    if (!k || !k->remote || k->pd != pd || (k->access & access) != access)
        return NULL;
    if (k->kind == MEM_MW2 && k->qpn != qp->num)
        return NULL;
    return range(k, va, len);
}

void mem_put_run(uint8_t *dst, uint64_t left, const uint8_t *const *payload, uint32_t n, uint32_t len)
{
    for (uint32_t i = 0; i < n; i++, dst += len, left -= len) {
        for (uint32_t at = 0; at < len && left >= MEM_FETCH_AHEAD + len; at += 64)
            __builtin_prefetch(dst + MEM_FETCH_AHEAD + at, 1, 2);
        memcpy(dst, payload[i], len);
    }
}

void mem_let_go(const struct qp_engine *e, const struct mem_key *k)
{
    if (e->ops.let_go && k->len)
        e->ops.let_go(e->cfg.ctx, NULL, k->base, k->len);
}

int mem_invalidate(struct qp *qp, struct qp_pd *pd, uint32_t rkey, bool by_peer)
{
    struct mem_key *k = mem_find(&qp->e->keys, rkey);

    if (!k || !k->remote || k->pd != pd || k->kind == MEM_MW1)
        return -EACCES;
    if (k->kind == MEM_MW2) {
        struct qp_mw *mw = container_of(k, struct qp_mw, k);
        if (by_peer && k->qpn != qp->num)
            return -EACCES;
        mw->mr->windows--;
        mw->mr = NULL;
    } else if (container_of(k, struct qp_mr, k)->windows) {
        return -EACCES;
    }
    mem_let_go(qp->e, k);
    k->remote = false; /* of a region, the local rights stay: they are not the peer's to take */
    return 0;
}

/* ---- regions ---- */

#define REMOTE_ANY (UROCE_ACCESS_REMOTE_WRITE | UROCE_ACCESS_REMOTE_READ | UROCE_ACCESS_REMOTE_ATOMIC)
#define ACCESS_ALL (UROCE_ACCESS_LOCAL_WRITE | REMOTE_ANY | UROCE_ACCESS_MW_BIND | UROCE_ACCESS_ZERO_BASED)

static bool access_ok(unsigned int access)
{
    if (access & ~(unsigned int)ACCESS_ALL)
        return false;
    return !(access & (UROCE_ACCESS_REMOTE_WRITE | UROCE_ACCESS_REMOTE_ATOMIC)) || access & UROCE_ACCESS_LOCAL_WRITE;
}

/* Checks, then fills in all of k but the key. */
static int describe(struct mem_key *k, struct qp_pd *pd, void *addr, uint64_t len, uint64_t iova, unsigned int access)
{
    bool implicit = !addr && len == UINT64_MAX;

    if (!access_ok(access) || (implicit && access & ~(unsigned int)UROCE_ACCESS_LOCAL_WRITE))
        return -EINVAL;
    if (access & UROCE_ACCESS_ZERO_BASED)
        iova = 0;
    if (!implicit && ((uintptr_t)addr + len < (uintptr_t)addr || iova + len < iova || (len && !addr)))
        return -EINVAL;
    k->kind = MEM_MR;
    k->implicit = implicit;
    k->access = access;
    k->remote = access & REMOTE_ANY;
    k->pd = pd;
    k->base = addr;
    k->len = len;
    k->iova = iova;
    return 0;
}

int qp_mr_reg(struct qp_pd *pd, void *addr, uint64_t len, uint64_t iova, unsigned int access, void *user,
              struct qp_mr **ret)
{
    struct qp_mr *mr = calloc(1, sizeof *mr);
    int r;

    if (!mr)
        return -ENOMEM;
    mr->user = user;
    r = describe(&mr->k, pd, addr, len, iova, access);
    if (!r)
        r = mem_table_add(pd->e, &mr->k);
    if (r) {
        free(mr);
        return r;
    }
    pd->refs++;
    pd->e->objects++;
    *ret = mr;
    return 0;
}

int qp_mr_rereg(struct qp_mr *mr, unsigned int flags, struct qp_pd *pd, void *addr, uint64_t len, uint64_t iova,
                unsigned int access)
{
    struct qp_pd *old = mr->k.pd;
    struct mem_key k = mr->k;
    int r;

    if (!flags || flags & ~7u || (flags & QP_REREG_PD && !pd))
        return -EINVAL;
    if (mr->windows)
        return -EBUSY;
    if (!(flags & QP_REREG_PD))
        pd = old;
    if (pd->e != old->e)
        return -EINVAL;
    if (!(flags & QP_REREG_TRANSLATION)) {
        addr = k.base;
        len = k.len;
        iova = k.iova;
    }
    r = describe(&k, pd, addr, len, iova, flags & QP_REREG_ACCESS ? access : k.access);
    if (r)
        return r;
    mem_let_go(pd->e, &mr->k);
    if (flags & QP_REREG_TRANSLATION) {
        mem_table_del(&pd->e->keys, &mr->k);
        mr->k = k;
        (void)mem_table_add(pd->e, &mr->k); /* cannot fail: a place has just become free */
    } else {
        mr->k = k;
    }
    old->refs--;
    pd->refs++;
    return 0;
}

int qp_mr_dereg(struct qp_mr *mr)
{
    struct qp_pd *pd = mr->k.pd;

    if (mr->windows)
        return -EBUSY;
    mem_table_del(&pd->e->keys, &mr->k);
    mem_let_go(pd->e, &mr->k);
    pd->refs--;
    pd->e->objects--;
    free(mr);
    return 0;
}

uint32_t qp_mr_lkey(const struct qp_mr *mr)
{
    return mr->k.key;
}

uint32_t qp_mr_rkey(const struct qp_mr *mr)
{
    return mr->k.key;
}
