#include "fab_int.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/mman.h>

/*
 * A connection's life:
 *
 *   CONNECTING --FI_CONNECTED--> CONNECTED
 *       |                            |        fab_disconnect, BYE, FI_SHUTDOWN, any error, time-out
 *       +---------> CLOSING <--------+
 *                      |   next fab_progress: endpoint closed, completion queue drained, what the provider dropped
 *                      v   silently is completed, on_closed
 *                   (gone)
 *
 * Where an endpoint that is closed takes back what was sent (verbs), a CLOSING connection lingers until its BYE is out.
 *
 * Nothing refers to a connection once the queue has been drained after its endpoint was closed: so it is freed there
 * and nowhere else.
 */

void fab_peer_text(const struct sockaddr *sa, char *buf, size_t size)
{
    socklen_t len = sa->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    char host[48], port[8];

    if (getnameinfo(sa, len, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV))
        snprintf(buf, size, "unknown");
    else
        snprintf(buf, size, sa->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

static int slots_new(struct fab_conn *c, uint32_t nrecvs, uint32_t nsends)
{
    uint32_t all = nrecvs + nsends + 1;
    size_t recv_bytes = (size_t)align_up(sizeof(struct fab_head) + c->takes, 64);
    size_t send_bytes = (size_t)align_up(sizeof(struct fab_head) + c->s->f->frame_max, 64);
    uint8_t *at;

    c->slab_size = nrecvs * recv_bytes + (nsends + 1) * send_bytes;
    c->recvs = calloc(nrecvs, sizeof *c->recvs);
    c->sends = calloc(nsends + 1, sizeof *c->sends);
    /* Pages come when they are used: an idle connection costs little where memory is not pinned. */
    c->slab = mmap(NULL, c->slab_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (c->slab == MAP_FAILED)
        c->slab = NULL;
    if (!c->recvs || !c->sends || !c->slab)
        return -ENOMEM;
    c->nrecvs = nrecvs;
    c->nsends = nsends;
    at = c->slab;
    for (uint32_t i = 0; i < all; i++) {
        struct fab_slot *slot = i < nrecvs ? &c->recvs[i] : &c->sends[i - nrecvs];

        list_init(&slot->link);
        slot->op = (struct fab_op){.conn = c, .kind = i < nrecvs ? FAB_OP_RECV : FAB_OP_SEND};
        slot->buf = at;
        at += i < nrecvs ? recv_bytes : send_bytes;
        if (i >= nrecvs && i + 1 < all)
            list_push_back(&c->free_sends, &slot->link);
    }
    return fab_mr_reg(c->s, c->slab, c->slab_size, FAB_LOCAL, &c->slab_mr);
}

/* The endpoint is closed. */
static void conn_free(struct fab_conn *c)
{
    list_del(&c->link);
    list_del(&c->state_link);
    list_del(&c->retry_link);
    fab_msg_drop_open(c);
    fab_mr_close(c->slab_mr);
    if (c->slab)
        munmap(c->slab, c->slab_size);
    if (c->counted)
        c->s->cq_used -= c->nrecvs + c->s->f->info->tx_attr->size;
    free(c->recvs);
    free(c->sends);
    free(c);
}

/*
 * tcp and net before 1.18 complete and free a read twice when its endpoint is shut down or closed while the answer is
 * coming in (libfabric commit a74ea0fcd), after which two operations share one record: wrong bytes. When the end comes
 * from the socket it is right. So the socket is cut, and the provider driven until it has seen that: what arrived
 * before is taken, the rest fails. A receiver that waits for a buffer does not see it, but is not in a read then.
 */
static void drain_reads(struct fab_conn *c)
{
    if (!c->s->f->double_flush || !c->reads_posted)
        return;
    fab_socket_cut(c);
    for (int i = 0; i < 64 && c->reads_posted; i++)
        while (c->reads_posted && fab_cq_events(c->s, 64) > 0)
            ;
}

static void close_ep(struct fab_conn *c)
{
    if (!c->ep)
        return;
    drain_reads(c);
    (void)fi_shutdown(c->ep, 0);
    fi_close(&c->ep->fid);
    c->ep = NULL;
}

static int ep_open(struct fab_conn *c, struct fi_info *info)
{
    struct fab_shard *s = c->s;
    size_t room = 0, size = sizeof room;
    int r = fi_endpoint(s->domain, info, &c->ep, c);

    if (r) {
        c->ep = NULL;
        return r;
    }
    r = fi_ep_bind(c->ep, &s->eq->fid, 0);
    if (!r)
        r = fi_ep_bind(c->ep, &s->cq->fid, FI_TRANSMIT | FI_RECV);
    if (!r)
        r = fi_enable(c->ep);
    if (!r && !fi_getopt(&c->ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &room, &size) &&
        room < sizeof(struct fab_hello) + FAB_CM_DATA_MAX)
        r = -FI_EMSGSIZE;
    return r;
}

struct fab_conn *fab_conn_new(struct fab_shard *s)
{
    struct fab_conn *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->s = s;
    c->state = FAB_CONNECTING;
    list_init(&c->state_link);
    list_init(&c->retry_link);
    list_init(&c->open_link);
    list_init(&c->free_sends);
    list_init(&c->early);
    list_init(&c->pending);
    list_init(&c->posted);
    list_push_back(&s->conns, &c->link);
    return c;
}

int fab_conn_open(struct fab_conn *c, struct fi_info *info)
{
    struct fab_shard *s = c->s;
    uint32_t credits = s->f->credits;
    size_t cqes = credits + FAB_EXTRA_RECVS + s->f->info->tx_attr->size;
    int r;

    if (s->f->bounded_cq && s->cq_used + cqes > s->cq_size)
        return -EUSERS;
    /*
     * Twice the credits to send from: a peer's answer brings its credit, and RDMA's acknowledgement of what it answers
     * may come after that.
     */
    r = slots_new(c, credits + FAB_EXTRA_RECVS, 2 * credits);
    if (r)
        return r;
    c->counted = true;
    s->cq_used += cqes;
    r = ep_open(c, info);
    if (r)
        return fab_errno(r);
    for (uint32_t i = 0; i < c->nrecvs && !r; i++)
        r = fab_msg_post_recv(c, &c->recvs[i]);
    return r;
}

int fab_conn_grant(struct fab_conn *c, uint32_t credits, uint32_t msg_max)
{
    if (!credits || credits > FAB_CREDITS_MAX || msg_max < 1024)
        return -EPROTO;
    c->granted = c->credits = (uint32_t)min_u64(credits, c->s->f->credits);
    c->msg_max = (uint32_t)min_u64(msg_max, FAB_MSG_MAX);
    c->frame_max = (uint32_t)min_u64(msg_max, c->s->f->frame_max);
    c->takes_several = msg_max > FAB_MSG_MAX;
    return 0;
}

void fab_conn_retry_later(struct fab_conn *c)
{
    if (list_empty(&c->retry_link))
        list_push_back(&c->s->retry, &c->retry_link);
}

void fab_conn_fail(struct fab_conn *c, int err)
{
    if (c->state == FAB_CLOSING)
        return;
    c->state = FAB_CLOSING;
    c->err = err;
    fab_msg_drop_open(c);
    list_del(&c->state_link);
    list_del(&c->retry_link);
    list_push_back(&c->s->closing, &c->state_link);
}

void fab_disconnect(struct fab_conn *c)
{
    fab_msg_flush(c);
    if (c->state != FAB_CONNECTED || !fab_msg_bye(c)) {
        fab_conn_fail(c, 0);
        return;
    }
    c->state = FAB_CLOSING;
    c->lingers = true;
    c->deadline_ns = now_ns() + FAB_LINGER_NS;
    list_del(&c->retry_link);
    list_push_back(&c->s->lingering, &c->state_link);
}

void fab_conn_linger_end(struct fab_conn *c)
{
    if (!c->lingers)
        return;
    c->lingers = false;
    list_del(&c->state_link);
    list_push_back(&c->s->closing, &c->state_link);
}

static bool is_send(const struct fab_conn *c, const struct list *l)
{
    return (uintptr_t)l >= (uintptr_t)c->sends && (uintptr_t)l < (uintptr_t)(c->sends + c->nsends);
}

void fab_conns_retry(struct fab_shard *s)
{
    struct list now = LIST_INIT(now), *l;

    list_splice_back(&now, &s->retry);
    s->tell_due = false;
    while ((l = list_pop_front(&now))) {
        struct fab_conn *c = list_entry(l, struct fab_conn, retry_link);
        int e = 0;

        while (!e && (l = list_pop_front(&c->pending))) {
            e = is_send(c, l) ? fab_msg_post(c, list_entry(l, struct fab_slot, link))
                              : fab_rma_post(c, list_entry(l, struct fab_rma, link));
            if (e)
                list_push_front(&c->pending, l);
        }
        if (!e && c->credit_msg_due)
            e = fab_msg_flush_credits(c);
        if (e == -EAGAIN)
            fab_conn_retry_later(c);
        else if (e)
            fab_conn_fail(c, e);
        else
            fab_msg_tell_sendable(c);
    }
}

/* Completes what the provider did not: some drop receives, some everything, when an endpoint is closed. */
static void finish(struct fab_conn *c)
{
    struct list *l;

    while ((l = list_pop_front(&c->posted)))
        fab_rma_done(list_entry(l, struct fab_rma, link), -ECONNRESET);
    while ((l = list_pop_front(&c->pending)))
        if (!is_send(c, l))
            fab_rma_done(list_entry(l, struct fab_rma, link), -ECONNRESET);
    if (c->announced)
        c->s->cb.on_closed(c, c->err, c->user);
    conn_free(c);
}

static size_t outstanding(const struct fab_conn *c)
{
    return (size_t)c->recvs_posted + c->sends_posted + c->rmas_posted;
}

int fab_conns_finish(struct fab_shard *s)
{
    struct list batch = LIST_INIT(batch), *l;
    size_t in_queue = 0;
    int events = 0;

    if (list_empty(&s->closing))
        return 0;
    list_splice_back(&batch, &s->closing);
    list_for_each (it, &s->conns)
        in_queue += outstanding(list_entry(it, struct fab_conn, link));
    list_for_each (it, &batch)
        close_ep(list_entry(it, struct fab_conn, state_link));
    /*
     * Completions of a closed endpoint were queued when it was closed: they are among the first in_queue entries, also
     * if new ones of other connections keep coming.
     */
    for (;;) {
        size_t left = 0;
        int n;

        list_for_each (it, &batch)
            left += outstanding(list_entry(it, struct fab_conn, state_link));
        if (!left || !in_queue)
            break;
        n = fab_cq_events(s, 64);
        if (n <= 0)
            break;
        in_queue -= min_u64(in_queue, (uint64_t)n);
        events += n;
    }
    while ((l = list_pop_front(&batch))) {
        finish(list_entry(l, struct fab_conn, state_link));
        events++;
    }
    return events;
}

void fab_conn_drop(struct fab_conn *c)
{
    /* Its receives may be in the completion queue: it goes by the same way, silently. */
    if (c->recvs_posted) {
        fab_conn_fail(c, 0);
        return;
    }
    close_ep(c);
    conn_free(c);
}

const char *fab_conn_peer(const struct fab_conn *c)
{
    return c->peer;
}

void fab_conn_stats(const struct fab_conn *c, struct fab_conn_stats *ret)
{
    *ret = c->stats;
}
