#include "fab_int.h"

/*
 * Messages and credits. A side may have as many messages under way as the other has granted; each message carries the
 * number of receives that its sender has made free again since the last one. When half of the grant is owed and nothing
 * goes back, a credit message carries them: it needs no credit itself. As it is worth half the grant, at most two are
 * under way, which the extra receives take; so credits never wait for credits.
 */

#define INJECT_MAX 512u

/* All that is owed goes with the next message. */
static le16 take_owed(struct fab_conn *c)
{
    le16 n = put_le16((uint16_t)c->owed);

    c->owed = 0;
    c->credit_msg_due = false;
    return n;
}

int fab_msg_flush_credits(struct fab_conn *c)
{
    struct fab_head h = {.type = FAB_T_CREDIT, .credits = put_le16((uint16_t)c->owed)};
    ssize_t e = fi_inject(c->ep, &h, sizeof h, 0);

    if (!e)
        take_owed(c);
    return e == -FI_EAGAIN ? -EAGAIN : e ? fab_errno(e) : 0;
}

bool fab_msg_bye(struct fab_conn *c)
{
    struct fab_head h = {.type = FAB_T_BYE};
    struct fab_slot *slot = &c->sends[c->nsends];

    /* On TCP what was sent arrives though the endpoint is closed at once; without a BYE the peer sees a reset. */
    if (c->s->f->tcp_like) {
        (void)fi_inject(c->ep, &h, sizeof h, 0);
        return false;
    }
    memcpy(slot->buf, &h, sizeof h);
    if (fi_send(c->ep, slot->buf, sizeof h, c->slab_mr->desc, 0, &slot->op))
        return false;
    c->sends_posted++;
    return true;
}

int fab_msg_post(struct fab_conn *c, struct fab_slot *slot)
{
    uint32_t owed = c->owed;
    bool due = c->credit_msg_due;
    struct fab_head h = {.type = FAB_T_DATA, .credits = take_owed(c)};
    ssize_t e;

    memcpy(slot->buf, &h, sizeof h);
    e = fi_send(c->ep, slot->buf, sizeof h + slot->len, c->slab_mr->desc, 0, &slot->op);
    if (!e) {
        c->sends_posted++;
        return 0;
    }
    c->owed = owed;
    c->credit_msg_due = due;
    return e == -FI_EAGAIN ? -EAGAIN : fab_errno(e);
}

static void gather(uint8_t *to, const struct iovec *iov, uint32_t iovcnt)
{
    for (uint32_t i = 0; i < iovcnt; i++) {
        if (iov[i].iov_len)
            memcpy(to, iov[i].iov_base, iov[i].iov_len);
        to += iov[i].iov_len;
    }
}

/* The provider copies small ones at once: no slot, no completion. */
static int inject(struct fab_conn *c, const struct iovec *iov, uint32_t iovcnt, size_t len)
{
    uint8_t buf[INJECT_MAX];
    struct fab_head h = {.type = FAB_T_DATA, .credits = put_le16((uint16_t)c->owed)};
    ssize_t e;

    memcpy(buf, &h, sizeof h);
    gather(buf + sizeof h, iov, iovcnt);
    e = fi_inject(c->ep, buf, sizeof h + len, 0);
    if (!e)
        take_owed(c);
    return e == -FI_EAGAIN ? -EAGAIN : e ? fab_errno(e) : 0;
}

int fab_send(struct fab_conn *c, const struct iovec *iov, uint32_t iovcnt)
{
    size_t len = 0;
    struct fab_slot *slot;
    struct list *l;
    int e = -EAGAIN;

    if (c->state != FAB_CONNECTED)
        return -ENOTCONN;
    for (uint32_t i = 0; i < iovcnt; i++) {
        if (iov[i].iov_len > FAB_MSG_MAX)
            return -EMSGSIZE;
        len += iov[i].iov_len;
        if (len > c->msg_max)
            return -EMSGSIZE;
    }
    if (!c->credits || list_empty(&c->free_sends)) {
        c->want_send = true;
        return -EAGAIN;
    }
    if (list_empty(&c->pending) && len + sizeof(struct fab_head) <= min_u64(c->s->f->facts.inject_max, INJECT_MAX))
        e = inject(c, iov, iovcnt, len);
    if (e == -EAGAIN) {
        l = list_pop_front(&c->free_sends);
        slot = list_entry(l, struct fab_slot, link);
        slot->len = (uint32_t)len;
        gather(slot->buf + sizeof(struct fab_head), iov, iovcnt);
        if (list_empty(&c->pending))
            e = fab_msg_post(c, slot);
        if (e == -EAGAIN) {
            list_push_back(&c->pending, &slot->link);
            fab_conn_retry_later(c);
            e = 0;
        } else if (e) {
            list_push_front(&c->free_sends, &slot->link);
        }
    }
    if (e) {
        fab_conn_fail(c, e);
        return -ENOTCONN;
    }
    c->credits--;
    c->stats.msgs_out++;
    return 0;
}

uint32_t fab_send_credits(const struct fab_conn *c)
{
    return c->state != FAB_CONNECTED || list_empty(&c->free_sends) ? 0 : c->credits;
}

uint32_t fab_credits(const struct fab_conn *c)
{
    return c->granted;
}

static void tell_sendable(struct fab_conn *c)
{
    if (!c->want_send || c->state != FAB_CONNECTED || !c->credits || list_empty(&c->free_sends))
        return;
    c->want_send = false;
    if (c->s->cb.on_sendable)
        c->s->cb.on_sendable(c, c->user);
}

void fab_msg_sent(struct fab_conn *c, struct fab_slot *slot)
{
    if (slot == &c->sends[c->nsends]) {
        fab_conn_linger_end(c);
        return;
    }
    list_push_front(&c->free_sends, &slot->link);
    tell_sendable(c);
}

int fab_msg_post_recv(struct fab_conn *c, struct fab_slot *slot)
{
    ssize_t e = fi_recv(c->ep, slot->buf, FAB_MSG_MAX + sizeof(struct fab_head), c->slab_mr->desc, 0, &slot->op);

    if (e)
        return e == -FI_EAGAIN ? -ENOBUFS : fab_errno(e);
    c->recvs_posted++;
    return 0;
}

static int take_credits(struct fab_conn *c, uint32_t n, bool needed)
{
    /* More than was granted: the peer counts wrongly or lies. */
    if (n > c->granted - c->credits || (needed && !n))
        return -EPROTO;
    c->credits += n;
    return 0;
}

static void recycle(struct fab_conn *c, struct fab_slot *slot)
{
    int e;

    if (c->state != FAB_CONNECTED)
        return;
    e = fab_msg_post_recv(c, slot);
    if (e) {
        fab_conn_fail(c, e);
        return;
    }
    if (c->owed < (c->granted + 1) / 2 || c->credit_msg_due)
        return;
    /* Not at once: an answer that is under way in the user's hands will carry it for nothing. */
    c->credit_msg_due = true;
    fab_conn_retry_later(c);
}

void fab_msg_arrived(struct fab_conn *c, struct fab_slot *slot, size_t len)
{
    struct fab_head h;
    int e = 0;

    if (c->state == FAB_CLOSING)
        return;
    if (c->state == FAB_CONNECTING) {
        /* The first messages may overtake the event that says that the connection is up. */
        slot->len = (uint32_t)len;
        list_push_back(&c->early, &slot->link);
        return;
    }
    if (len < sizeof h || len > FAB_MSG_MAX + sizeof h) {
        fab_conn_fail(c, -EPROTO);
        return;
    }
    memcpy(&h, slot->buf, sizeof h);
    if (h.zero || (h.type != FAB_T_DATA && len != sizeof h))
        e = -EPROTO;
    else if (h.type == FAB_T_DATA || h.type == FAB_T_CREDIT)
        e = take_credits(c, get_le16(h.credits), h.type == FAB_T_CREDIT);
    else if (h.type != FAB_T_BYE)
        e = -EPROTO;
    if (e || h.type == FAB_T_BYE) {
        fab_conn_fail(c, e);
        return;
    }
    if (h.type == FAB_T_DATA) {
        c->stats.msgs_in++;
        c->owed++;
        c->s->cb.on_message(c, slot->buf + sizeof h, len - sizeof h, c->user);
    }
    recycle(c, slot);
    tell_sendable(c);
}

void fab_msg_early(struct fab_conn *c)
{
    struct list *l;

    while (c->state == FAB_CONNECTED && (l = list_pop_front(&c->early))) {
        struct fab_slot *slot = list_entry(l, struct fab_slot, link);

        fab_msg_arrived(c, slot, slot->len);
    }
}
