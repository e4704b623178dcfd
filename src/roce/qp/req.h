/* What kind of request it is, and its packets (req_build.c). */
#ifndef QP_REQ_H
#define QP_REQ_H

#include "impl.h"

static inline bool is_read(const struct sq_wqe *w)
{
    return w->opcode == UROCE_WR_RDMA_READ;
}

static inline bool is_atomic(const struct sq_wqe *w)
{
    return w->opcode == UROCE_WR_ATOMIC_CMP_AND_SWP || w->opcode == UROCE_WR_ATOMIC_FETCH_AND_ADD;
}

static inline bool is_local(const struct sq_wqe *w)
{
    return w->opcode == UROCE_WR_LOCAL_INV || w->opcode == UROCE_WR_BIND_MW;
}

static inline bool takes_receive(const struct sq_wqe *w)
{
    return w->opcode != UROCE_WR_RDMA_WRITE && !is_read(w) && !is_atomic(w);
}

/* 0, or -EFAULT: the memory of the request is not usable (any more). */
int req_build(struct qp *qp, struct sq_wqe *w, uint32_t off, uint32_t npkts, struct qp_tx *tx);

#endif
