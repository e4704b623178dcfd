/* Memory windows: type 1 (any queue pair of the domain, a new key at each bind) and type 2 (bound on one queue pair).
 */
#include "impl.h"

int qp_mw_alloc(struct qp_pd *pd, int type, struct qp_mw **ret)
{
    struct qp_mw *mw;
    int r;

    if (type != 1 && type != 2)
        return -EINVAL;
    mw = calloc(1, sizeof *mw);
    if (!mw)
        return -ENOMEM;
    mw->k.kind = type == 1 ? MEM_MW1 : MEM_MW2;
    mw->k.pd = pd;
    r = mem_table_add(pd->e, &mw->k);
    if (r) {
        free(mw);
        return r;
    }
    pd->refs++;
    pd->e->objects++;
    *ret = mw;
    return 0;
}

int qp_mw_dealloc(struct qp_mw *mw)
{
    struct qp_pd *pd = mw->k.pd;

    if (mw->mr) {
        mw->mr->windows--;
        mem_let_go(pd->e, &mw->k);
    }
    mem_table_del(&pd->e->keys, &mw->k);
    pd->refs--;
    pd->e->objects--;
    free(mw);
    return 0;
}

uint32_t qp_mw_rkey(const struct qp_mw *mw)
{
    /* A bind may run at this time: it changes the low byte, which who posts another bind does not look at. */
    return __atomic_load_n(&mw->k.key, __ATOMIC_RELAXED);
}

/* The region and range that a window may be bound to; NULL: not allowed (IBTA 10.6.7.2). */
static struct qp_mr *bind_target(const struct qp *qp, const struct sq_wqe *w)
{
    struct mem_key *k = mem_find(&qp->e->keys, w->bind.mr_lkey);
    uint64_t off;

    if (!k || k->kind != MEM_MR || k->pd != qp->pd || k->implicit || !(k->access & UROCE_ACCESS_MW_BIND))
        return NULL;
    if (w->bind.access & (UROCE_ACCESS_REMOTE_WRITE | UROCE_ACCESS_REMOTE_ATOMIC) &&
        !(k->access & UROCE_ACCESS_LOCAL_WRITE))
        return NULL;
    off = w->bind.addr - k->iova;
    if (w->bind.addr < k->iova || off > k->len || w->bind.len > k->len - off)
        return NULL;
    return container_of(k, struct qp_mr, k);
}

/*
 * The window's index stays, so that a bind that was posted behind another finds it. The key byte is the one that the
 * request chose, or (type 1) the next.
 */
static int bind_mw(struct qp *qp, const struct sq_wqe *w)
{
    struct mem_key *k = mem_find_index(&qp->e->keys, w->bind.mw_rkey);
    struct qp_mr *mr = NULL;
    struct qp_mw *mw;

    if (!k || k->kind == MEM_MR || k->pd != qp->pd)
        return -EACCES;
    mw = container_of(k, struct qp_mw, k);
    if (w->bind.len || k->kind == MEM_MW2) {
        mr = bind_target(qp, w);
        if (!mr || !w->bind.len)
            return -EACCES;
    }
    if (w->bind.new_rkey && w->bind.new_rkey >> 8 != k->key >> 8)
        return -EACCES;
    if (k->kind == MEM_MW2 && mw->mr)
        return -EACCES; /* to be invalidated first */
    if (mw->mr) {
        mw->mr->windows--;
        mem_let_go(qp->e, k);
    }
    if (mr) {
        mr->windows++;
        k->access = w->bind.access;
        k->base = mr->k.base + (w->bind.addr - mr->k.iova);
        k->len = w->bind.len;
        k->iova = w->bind.access & UROCE_ACCESS_ZERO_BASED ? 0 : w->bind.addr;
        k->qpn = qp->num;
    }
    mw->mr = mr;
    k->remote = mr != NULL;
    __atomic_store_n(&k->key, w->bind.new_rkey ? w->bind.new_rkey : (k->key & ~0xffu) | ((k->key + 1) & 0xff),
                     __ATOMIC_RELAXED);
    return 0;
}

int req_local(struct qp *qp, struct sq_wqe *w)
{
    if (w->opcode == UROCE_WR_BIND_MW)
        return bind_mw(qp, w) ? UROCE_WC_MW_BIND_ERR : UROCE_WC_SUCCESS;
    return mem_invalidate(qp, qp->pd, w->imm, false) ? UROCE_WC_LOC_QP_OP_ERR : UROCE_WC_SUCCESS;
}
