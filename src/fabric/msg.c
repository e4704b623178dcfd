#include "fab_int.h"

/*
 * Messages and credits. What is sent in one turn of the thread goes in one frame, up to FAB_SEVERAL_SENT messages and
 * what the peer takes: a connection's open frame is posted when it is full, by fab_flush, and before the thread drives
 * the fabric again or sleeps. The bytes of a slot that is sent from:
 *
 *   header (4)            | { length (2), message }...     several
 *   unused (2) header (4) | message                        one
 *
 * A side may have as many messages under way as the other has granted; each frame carries the number of messages that
 * its sender has taken in since the last one. When half of the grant is owed and nothing goes back, a credit message
 * carries them: it needs no credit itself. As it is worth half the grant, at most two are under way, which the extra
 * receives take; so credits never wait for credits.
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

static void slot_free(struct fab_conn *c, struct fab_slot *slot)
{
    list_push_front(&c->free_sends, &slot->link);
    if (!c->want_send)
        return;
    c->s->tell_due = true;
    fab_conn_retry_later(c);
}

/* The provider copies small ones at once: the slot is free again, and no completion comes. */
int fab_msg_post(struct fab_conn *c, struct fab_slot *slot)
{
    bool one = slot->count == 1, due = c->credit_msg_due;
    struct fab_head h = {.type = one ? FAB_T_DATA : FAB_T_SEVERAL};
    uint8_t *start = slot->buf + (one ? sizeof(le16) : 0);
    size_t len = sizeof h + slot->len - (one ? sizeof(le16) : 0);
    bool small = len <= min_u64(c->s->f->facts.inject_max, INJECT_MAX);
    uint32_t owed = c->owed;
    ssize_t e;

    h.credits = take_owed(c);
    memcpy(start, &h, sizeof h);
    e = small ? fi_inject(c->ep, start, len, 0) : fi_send(c->ep, start, len, c->slab_mr->desc, 0, &slot->op);
    if (!e) {
        c->sends_posted += !small;
        if (small)
            slot_free(c, slot);
        return 0;
    }
    c->owed = owed;
    c->credit_msg_due = due;
    return e == -FI_EAGAIN ? -EAGAIN : fab_errno(e);
}

void fab_msg_drop_open(struct fab_conn *c)
{
    c->open = NULL;
    list_del(&c->open_link);
}

void fab_msg_flush(struct fab_conn *c)
{
    struct fab_slot *slot = c->open;
    int e = -EAGAIN;

    if (!slot)
        return;
    fab_msg_drop_open(c);
    if (list_empty(&c->pending))
        e = fab_msg_post(c, slot);
    if (e == -EAGAIN) {
        list_push_back(&c->pending, &slot->link);
        fab_conn_retry_later(c);
    } else if (e) {
        fab_conn_fail(c, e);
    }
}

static bool fits(const struct fab_conn *c, size_t len)
{
    const struct fab_slot *slot = c->open;

    return c->takes_several && slot->count < FAB_SEVERAL_SENT && slot->len + sizeof(le16) + len <= c->frame_max;
}

static void append(struct fab_slot *slot, const struct iovec *iov, uint32_t iovcnt, size_t len)
{
    uint8_t *to = slot->buf + sizeof(struct fab_head) + slot->len;
    le16 n = put_le16((uint16_t)len);

    memcpy(to, &n, sizeof n);
    to += sizeof n;
    for (uint32_t i = 0; i < iovcnt; i++) {
        if (iov[i].iov_len)
            memcpy(to, iov[i].iov_base, iov[i].iov_len);
        to += iov[i].iov_len;
    }
    slot->len += (uint32_t)(sizeof n + len);
    slot->count++;
}

int fab_send(struct fab_conn *c, const struct iovec *iov, uint32_t iovcnt)
{
    size_t len = 0;

    if (c->state != FAB_CONNECTED)
        return -ENOTCONN;
    for (uint32_t i = 0; i < iovcnt; i++) {
        if (iov[i].iov_len > FAB_MSG_MAX)
            return -EMSGSIZE;
        len += iov[i].iov_len;
        if (len > c->msg_max)
            return -EMSGSIZE;
    }
    if (c->open && !fits(c, len))
        fab_msg_flush(c);
    if (c->state != FAB_CONNECTED)
        return -ENOTCONN;
    if (!c->credits || (!c->open && list_empty(&c->free_sends))) {
        c->want_send = true;
        return -EAGAIN;
    }
    if (!c->open) {
        c->open = list_entry(list_pop_front(&c->free_sends), struct fab_slot, link);
        c->open->len = c->open->count = 0;
        list_push_back(&c->s->open, &c->open_link);
    }
    append(c->open, iov, iovcnt, len);
    c->credits--;
    c->stats.msgs_out++;
    if (!fits(c, len))
        fab_msg_flush(c);
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

void fab_msg_tell_sendable(struct fab_conn *c)
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
    fab_msg_tell_sendable(c);
}

int fab_msg_post_recv(struct fab_conn *c, struct fab_slot *slot)
{
    ssize_t e = fi_recv(c->ep, slot->buf, c->takes + sizeof(struct fab_head), c->slab_mr->desc, 0, &slot->op);

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

/* The messages of a frame with several: their number, or -EPROTO. */
static int count_several(const uint8_t *p, size_t left)
{
    int n = 0;

    while (left) {
        le16 len;

        if (left < sizeof len || ++n > (int)FAB_SEVERAL_TAKEN)
            return -EPROTO;
        memcpy(&len, p, sizeof len);
        if (get_le16(len) > FAB_MSG_MAX || get_le16(len) > left - sizeof len)
            return -EPROTO;
        p += sizeof len + get_le16(len);
        left -= sizeof len + get_le16(len);
    }
    return n < 2 ? -EPROTO : n;
}

/* What the header says and what follows it; ret_count: messages. */
static int check_frame(struct fab_conn *c, const struct fab_head *h, const uint8_t *body, size_t len, int *ret_count)
{
    int n = h->type == FAB_T_DATA ? 1 : 0;

    if (h->zero || (h->type == FAB_T_DATA && len > FAB_MSG_MAX))
        return -EPROTO;
    if (h->type == FAB_T_SEVERAL)
        n = count_several(body, len);
    else if (h->type != FAB_T_DATA && (len || (h->type != FAB_T_CREDIT && h->type != FAB_T_BYE)))
        n = -EPROTO;
    /* More messages than it had credits for. */
    if (n < 0 || (uint32_t)n > c->granted - c->owed)
        return -EPROTO;
    *ret_count = n;
    return h->type == FAB_T_BYE ? 0 : take_credits(c, get_le16(h->credits), h->type == FAB_T_CREDIT);
}

static void deliver(struct fab_conn *c, const uint8_t *msg, size_t len)
{
    c->stats.msgs_in++;
    c->owed++; /* before: an answer given there takes it along */
    c->s->cb.on_message(c, msg, len, c->user);
}

static void deliver_several(struct fab_conn *c, const uint8_t *p, int n)
{
    for (; n > 0 && c->state == FAB_CONNECTED; n--) {
        le16 len;

        memcpy(&len, p, sizeof len);
        p += sizeof len;
        deliver(c, p, get_le16(len));
        p += get_le16(len);
    }
}

void fab_msg_arrived(struct fab_conn *c, struct fab_slot *slot, size_t len)
{
    const uint8_t *body = slot->buf + sizeof(struct fab_head);
    struct fab_head h;
    int e, n = 0;

    if (c->state == FAB_CLOSING)
        return;
    if (c->state == FAB_CONNECTING) {
        /* The first messages may overtake the event that says that the connection is up. */
        slot->len = (uint32_t)len;
        list_push_back(&c->early, &slot->link);
        return;
    }
    if (len < sizeof h || len > c->takes + sizeof h) {
        fab_conn_fail(c, -EPROTO);
        return;
    }
    memcpy(&h, slot->buf, sizeof h);
    e = check_frame(c, &h, body, len - sizeof h, &n);
    if (e || h.type == FAB_T_BYE) {
        fab_conn_fail(c, e);
        return;
    }
    c->stats.frames_in += n > 0;
    if (h.type == FAB_T_SEVERAL)
        deliver_several(c, body, n);
    else if (n)
        deliver(c, body, len - sizeof h);
    recycle(c, slot);
    fab_msg_tell_sendable(c);
}

void fab_msg_early(struct fab_conn *c)
{
    struct list *l;

    while (c->state == FAB_CONNECTED && (l = list_pop_front(&c->early))) {
        struct fab_slot *slot = list_entry(l, struct fab_slot, link);

        fab_msg_arrived(c, slot, slot->len);
    }
}
