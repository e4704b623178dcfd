/* Completion channels and asynchronous events. */
#include "verbs_priv.h"

#include <fcntl.h>
#include <poll.h>

/* ---- completion channels ---- */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
    struct vb_channel *ch = calloc(1, sizeof *ch);
    if (!ch)
        return vb_null(-ENOMEM);
    int r = uroce_channel_create(vb_ctx(c)->native, &ch->native);
    if (r) {
        free(ch);
        return vb_null(r);
    }
    ch->ibv.context = c;
    ch->ibv.fd = uroce_channel_fd(ch->native);
    vb_add(vb_ctx(c), VB_CHANNEL, &ch->obj);
    return &ch->ibv;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *ibv)
{
    struct vb_channel *ch = container_of(ibv, struct vb_channel, ibv);
    int r = uroce_channel_destroy(ch->native);
    if (r)
        return vb_result(r);
    vb_del(vb_ctx(ibv->context), &ch->obj);
    free(ch);
    return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *ibv, struct ibv_cq **ret_cq, void **ret_context)
{
    struct uroce_cq *native;
    void *context;
    int r = uroce_get_cq_event(container_of(ibv, struct vb_channel, ibv)->native, &native, &context);
    if (r) {
        errno = -r;
        return -1;
    }
    struct vb_cq *cq = context;
    *ret_cq = &cq->ibv;
    *ret_context = cq->ibv.cq_context;
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *ibv, unsigned int n)
{
    struct vb_cq *cq = container_of(ibv, struct vb_cq, ibv);
    pthread_mutex_lock(&ibv->mutex);
    ibv->comp_events_completed += n;
    pthread_mutex_unlock(&ibv->mutex);
    uroce_ack_cq_events(cq->native, n);
}

/* ---- asynchronous events ---- */

/* Puts the event's object into `ret`, counts it as given. ctx->events_lock. */
static void fill(const struct uroce_async_event *e, struct ibv_async_event *ret)
{
    *ret = (struct ibv_async_event){.event_type = (enum ibv_event_type)e->type};
    switch (e->type) {
    case UROCE_EVENT_QP_FATAL:
    case UROCE_EVENT_QP_REQ_ERR:
    case UROCE_EVENT_QP_ACCESS_ERR:
    case UROCE_EVENT_COMM_EST:
    case UROCE_EVENT_SQ_DRAINED:
    case UROCE_EVENT_PATH_MIG:
    case UROCE_EVENT_PATH_MIG_ERR:
    case UROCE_EVENT_QP_LAST_WQE_REACHED: {
        struct vb_qp *qp = e->context;
        qp->async_given++;
        ret->element.qp = &qp->ibv;
        break;
    }
    case UROCE_EVENT_CQ_ERR: {
        struct vb_cq *cq = e->context;
        cq->async_given++;
        ret->element.cq = &cq->ibv;
        break;
    }
    case UROCE_EVENT_SRQ_ERR:
    case UROCE_EVENT_SRQ_LIMIT_REACHED: {
        struct vb_srq *srq = e->context;
        srq->async_given++;
        ret->element.srq = &srq->ibv;
        break;
    }
    case UROCE_EVENT_DEVICE_FATAL:
    case UROCE_EVENT_PORT_ACTIVE:
    case UROCE_EVENT_PORT_ERR:
    case UROCE_EVENT_LID_CHANGE:
    case UROCE_EVENT_PKEY_CHANGE:
    case UROCE_EVENT_SM_CHANGE:
    case UROCE_EVENT_CLIENT_REREGISTER:
    case UROCE_EVENT_GID_CHANGE:
        ret->element.port_num = 1;
        break;
    }
}

static int take(struct vb_context *ctx, struct ibv_async_event *ret)
{
    struct uroce_async_event e;
    scoped_lock(&ctx->events_lock);
    int r = uroce_events_get(ctx->events, &e);
    if (!r)
        fill(&e, ret);
    return r;
}

/* Blocks unless the program made the descriptor O_NONBLOCK. */
int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *ret)
{
    int r;
    while ((r = take(vb_ctx(c), ret)) == -EAGAIN && !(fcntl(c->async_fd, F_GETFL) & O_NONBLOCK)) {
        struct pollfd p = {.fd = c->async_fd, .events = POLLIN};
        if (poll(&p, 1, -1) < 0)
            return -1;
    }
    if (!r)
        return 0;
    errno = -r;
    return -1;
}

static void acknowledge(pthread_mutex_t *lock, pthread_cond_t *cond, uint32_t *done)
{
    pthread_mutex_lock(lock);
    ++*done;
    pthread_cond_signal(cond);
    pthread_mutex_unlock(lock);
}

void ibv_ack_async_event(struct ibv_async_event *e)
{
    switch (e->event_type) {
    case IBV_EVENT_CQ_ERR:
        acknowledge(&e->element.cq->mutex, &e->element.cq->cond, &e->element.cq->async_events_completed);
        break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        acknowledge(&e->element.qp->mutex, &e->element.qp->cond, &e->element.qp->events_completed);
        break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
        acknowledge(&e->element.srq->mutex, &e->element.srq->cond, &e->element.srq->events_completed);
        break;
    default: /* nobody waits for those of the device */
        break;
    }
}

void vb_await_acks(struct ibv_context *c, const uint32_t *given, pthread_mutex_t *lock, pthread_cond_t *cond,
                   const uint32_t *done)
{
    struct vb_context *ctx = vb_ctx(c);
    pthread_mutex_lock(&ctx->events_lock); /* whoever took one before the object went has counted it */
    uint32_t n = *given;
    pthread_mutex_unlock(&ctx->events_lock);
    pthread_mutex_lock(lock);
    while (*done != n)
        pthread_cond_wait(cond, lock);
    pthread_mutex_unlock(lock);
}
