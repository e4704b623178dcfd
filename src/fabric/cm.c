#include "fab_int.h"

#include <netinet/in.h>

#define CM_DATA_ROOM 256 /* the most that a provider hands over */

union cm_event {
    struct fi_eq_cm_entry e; /* its data goes on to the end */
    uint8_t room[sizeof(struct fi_eq_cm_entry) + CM_DATA_ROOM];
};

/* ---- addresses ---- */

static int check_addr(const struct sockaddr *addr, socklen_t len)
{
    if (addr->sa_family == AF_INET && len >= sizeof(struct sockaddr_in))
        return 0;
    if (addr->sa_family == AF_INET6 && len >= sizeof(struct sockaddr_in6))
        return 0;
    return -EAFNOSUPPORT;
}

/* A copy of the chosen info with one address: ours (listening) or the peer's (connecting). */
static struct fi_info *info_with(const struct fab *f, const struct sockaddr *addr, bool local)
{
    struct fi_info *i = f->lib->dupinfo(f->info);
    size_t len = addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    void *copy = malloc(len);

    if (!i || !copy) {
        free(copy);
        if (i)
            f->lib->freeinfo(i);
        return NULL;
    }
    memcpy(copy, addr, len);
    free(i->src_addr);
    free(i->dest_addr);
    i->src_addr = local ? copy : NULL;
    i->src_addrlen = local ? len : 0;
    i->dest_addr = local ? NULL : copy;
    i->dest_addrlen = local ? 0 : len;
    i->addr_format = addr->sa_family == AF_INET ? FI_SOCKADDR_IN : FI_SOCKADDR_IN6;
    return i;
}

/* ---- what both sides tell each other when they connect ---- */

static void hello_make(const struct fab_conn *c, struct fab_hello *ret)
{
    *ret =
        (struct fab_hello){FAB_MAGIC, FAB_VERSION, put_le16((uint16_t)c->s->f->credits), put_le16((uint16_t)c->takes)};
}

static int hello_read(const void *data, size_t len, struct fab_hello *ret)
{
    if (len < sizeof *ret || len > sizeof *ret + FAB_CM_DATA_MAX)
        return -EPROTO;
    memcpy(ret, data, sizeof *ret);
    return ret->magic == FAB_MAGIC && ret->version == FAB_VERSION ? 0 : -EPROTO;
}

static int hello_grant(struct fab_conn *c, const struct fab_hello *h)
{
    return fab_conn_grant(c, get_le16(h->credits), get_le16(h->msg_max));
}

/* ---- listening and connecting ---- */

int fab_listen(struct fab_shard *s, const struct sockaddr *addr, socklen_t len, struct sockaddr_storage *ret_bound,
               socklen_t *ret_len)
{
    struct sockaddr_storage bound = {0};
    size_t bound_len = sizeof bound;
    struct fi_info *info;
    int r = check_addr(addr, len);

    if (r)
        return r;
    if (s->pep)
        return -EISCONN;
    info = info_with(s->f, addr, true);
    if (!info)
        return -ENOMEM;
    r = fi_passive_ep(s->fabric, info, &s->pep, s);
    s->f->lib->freeinfo(info);
    if (r) {
        s->pep = NULL;
        return fab_errno(r);
    }
    r = fi_pep_bind(s->pep, &s->eq->fid, 0);
    if (!r)
        r = fi_listen(s->pep);
    if (!r)
        r = fi_getname(&s->pep->fid, &bound, &bound_len);
    if (r) {
        fi_close(&s->pep->fid);
        s->pep = NULL;
        return fab_errno(r);
    }
    s->bound = bound;
    if (s->f->tcp_like)
        fab_halfopen_tune(s);
    *ret_bound = bound;
    *ret_len = (socklen_t)bound_len;
    return 0;
}

static void start_timer(struct fab_conn *c)
{
    c->deadline_ns = now_ns() + c->s->f->connect_ns;
    list_push_back(&c->s->connecting, &c->state_link);
}

int fab_connect(struct fab_shard *s, const struct sockaddr *addr, socklen_t len, const void *data, size_t data_len,
                void *conn_user, struct fab_conn **ret)
{
    uint8_t param[sizeof(struct fab_hello) + FAB_CM_DATA_MAX];
    struct fab_hello hello;
    struct fab_conn *c;
    struct fi_info *info;
    int r = check_addr(addr, len);

    if (r)
        return r;
    if (data_len > FAB_CM_DATA_MAX)
        return -EMSGSIZE;
    info = info_with(s->f, addr, false);
    c = info ? fab_conn_new(s) : NULL;
    if (!c) {
        if (info)
            s->f->lib->freeinfo(info);
        return -ENOMEM;
    }
    c->takes = s->f->frame_max;
    r = fab_conn_open(c, info);
    s->f->lib->freeinfo(info);
    if (r) {
        fab_conn_drop(c);
        return r;
    }
    fab_peer_text(addr, c->peer, sizeof c->peer);
    hello_make(c, &hello);
    memcpy(param, &hello, sizeof hello);
    if (data_len)
        memcpy(param + sizeof hello, data, data_len);
    r = fi_connect(c->ep, addr, param, sizeof hello + data_len);
    if (r) {
        fab_conn_drop(c);
        return fab_errno(r);
    }
    c->user = conn_user;
    c->announced = true;
    start_timer(c);
    *ret = c;
    return 0;
}

/* ---- events ---- */

static struct fab_conn *find(struct fab_shard *s, const struct fid *fid)
{
    list_for_each (it, &s->conns) {
        struct fab_conn *c = list_entry(it, struct fab_conn, link);

        if (c->ep && &c->ep->fid == fid)
            return c;
    }
    return NULL;
}

/* 0: the request was accepted; else it is to be refused. ret_made: an endpoint was made from it. */
static int accept_one(struct fab_shard *s, struct fi_info *info, const void *data, size_t len, bool *ret_made)
{
    struct fab_hello theirs, ours;
    struct fab_conn *c;
    int r = hello_read(data, len, &theirs);

    /* A stranger costs next to nothing: no endpoint and no receives before it is admitted. */
    if (r)
        return r;
    c = fab_conn_new(s);
    if (!c)
        return -ENOMEM;
    if (info->dest_addr) {
        fab_peer_text(info->dest_addr, c->peer, sizeof c->peer);
        c->peer_hash = fab_peer_hash(info->dest_addr);
    }
    r = hello_grant(c, &theirs);
    if (!r) {
        c->user = s->cb.on_connect(c, (const uint8_t *)data + sizeof theirs, len - sizeof theirs, s->user);
        r = c->user ? 0 : -EACCES;
    }
    if (r) {
        fab_conn_drop(c);
        return r;
    }
    c->announced = true;
    c->takes = FAB_FRAME_SMALL;
    r = c->state == FAB_CLOSING ? -ECANCELED : fab_conn_open(c, info);
    *ret_made = c->ep != NULL;
    if (!r) {
        hello_make(c, &ours);
        r = fi_accept(c->ep, &ours, sizeof ours);
        r = r ? fab_errno(r) : 0;
    }
    if (r)
        fab_conn_fail(c, r);
    else
        start_timer(c);
    return r;
}

static void on_request(struct fab_shard *s, const union cm_event *ev, size_t len)
{
    struct fid_ep *ep = NULL;
    bool made = false;

    if (accept_one(s, ev->e.info, ev->e.data, len, &made)) {
        /*
         * verbs of 1.17 forgets the request's rdma_cm id, unless it belongs to an endpoint (which is no queue pair
         * yet).
         */
        if (s->f->facts.rdma && !made && fi_endpoint(s->domain, ev->e.info, &ep, NULL))
            ep = NULL;
        /* Also when an endpoint was made from it: that frees the request in every provider. */
        (void)fi_reject(s->pep, ev->e.info->handle, NULL, 0);
        if (ep)
            (void)fi_close(&ep->fid);
    }
    s->f->lib->freeinfo(ev->e.info);
}

static void on_up(struct fab_shard *s, const union cm_event *ev, size_t len)
{
    struct fab_conn *c = find(s, ev->e.fid);
    struct fab_hello h;
    int r;

    if (!c || c->state != FAB_CONNECTING)
        return;
    if (!c->granted) {
        /* We asked: the answer has what the other side grants. */
        r = hello_read(ev->e.data, len, &h);
        if (!r)
            r = hello_grant(c, &h);
        if (r) {
            fab_conn_fail(c, r);
            return;
        }
        /* A client has few connections, and strange programs around it. */
        if (s->f->tcp_like)
            fab_socket_private(c);
    }
    list_del(&c->state_link);
    c->state = FAB_CONNECTED;
    s->cb.on_connected(c, c->user);
    fab_msg_early(c);
}

static void on_down(struct fab_shard *s, const struct fid *fid, int err)
{
    struct fab_conn *c = find(s, fid);

    /* What arrived before the end, a BYE perhaps, lies in the completion queue. */
    for (int i = 0; i < 16 && c && c->state == FAB_CONNECTED; i++)
        if (fab_cq_events(s, 64) <= 0)
            break;
    if (!c)
        return;
    fab_conn_linger_end(c);
    fab_conn_fail(c, err);
}

static int on_error(struct fab_shard *s)
{
    struct fi_eq_err_entry e = {0};
    ssize_t n = fi_eq_readerr(s->eq, &e, 0);

    if (n < 0)
        return n == -FI_EAGAIN ? 0 : fab_errno(n);
    if (e.fid)
        on_down(s, e.fid, e.err ? fab_errno(e.err) : -ECONNRESET);
    return 1;
}

int fab_cm_events(struct fab_shard *s)
{
    union cm_event ev;
    uint32_t kind;
    int events = 0;

    s->eq_read_ns = now_ns();
    for (; events < 64; events++) {
        ssize_t n;

        /*
         * libfabric 1.17 takes errno for the cause when a stranger closes a connection before its request: a left-over
         * EAGAIN would make it keep the socket, and spin on it.
         */
        errno = 0;
        s->eq_reads++;
        n = fi_eq_read(s->eq, &kind, &ev, sizeof ev, 0);
        if (n == -FI_EAGAIN)
            break;
        if (n == -FI_EAVAIL)
            n = on_error(s);
        else if (n >= (ssize_t)sizeof ev.e && kind == FI_CONNREQ)
            on_request(s, &ev, (size_t)n - sizeof ev.e);
        else if (n >= (ssize_t)sizeof ev.e && kind == FI_CONNECTED)
            on_up(s, &ev, (size_t)n - sizeof ev.e);
        else if (n >= (ssize_t)sizeof ev.e && kind == FI_SHUTDOWN)
            on_down(s, ev.e.fid, -ECONNRESET);
        if (n < 0) {
            s->broken = fab_errno(n);
            break;
        }
    }
    return events;
}

bool fab_cm_waiting(struct fab_shard *s)
{
    uint32_t kind;
    union cm_event ev;

    errno = 0; /* as above */
    s->eq_reads++;
    return fi_eq_read(s->eq, &kind, &ev, sizeof ev, FI_PEEK) != -FI_EAGAIN;
}

void fab_cm_drop(struct fab_shard *s)
{
    for (int i = 0; i < 64; i++) {
        struct fi_eq_err_entry e = {0};
        union cm_event ev;
        uint32_t kind;
        ssize_t n;

        errno = 0; /* as above */
        n = fi_eq_read(s->eq, &kind, &ev, sizeof ev, 0);
        if (n == -FI_EAVAIL)
            n = fi_eq_readerr(s->eq, &e, 0);
        else if (n >= (ssize_t)sizeof ev.e && kind == FI_CONNREQ) {
            (void)fi_reject(s->pep, ev.e.info->handle, NULL, 0);
            s->f->lib->freeinfo(ev.e.info);
        }
        if (n < 0)
            break;
    }
}

void fab_cm_deadlines(struct fab_shard *s, uint64_t now)
{
    struct fab_conn *c;

    /* All on a list have the same time-out, so it is in order. */
    while (!list_empty(&s->connecting)) {
        c = list_entry(s->connecting.next, struct fab_conn, state_link);
        if (c->deadline_ns > now)
            break;
        fab_conn_fail(c, -ETIMEDOUT);
    }
    while (!list_empty(&s->lingering)) {
        c = list_entry(s->lingering.next, struct fab_conn, state_link);
        if (c->deadline_ns > now)
            break;
        fab_conn_linger_end(c);
    }
}
