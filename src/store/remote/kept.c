/*
 * Capabilities of objects that are not open. What the server gave at an open goes on after the handle's close, until
 * its key ends; an agent's own capabilities do so too, and what they name is judged there. So an agent keeps what it
 * had of an object when that is closed; and where it has nothing (any more), it asks the server for it as the user that
 * its own capability was granted to, who is judged there as at an open. No handle stays open for either.
 */
#include "queue.h"

#define KEPT_MAX 4096u /* of a container: the others are asked for again */

struct rkept {
    struct list link, lru;
    uint64_t ino, epoch, cap_id, key_id;
    uint32_t accmode;
    bool revoked;
    size_t cap_len;
    uint8_t cap[];
};

/* One question: all operations that need its answer wait for it. */
struct rfetch {
    struct session_async async;
    struct list link; /* rcont.fetches, until it is answered */
    struct rcont *rc;
    uint64_t ino;
    uint32_t accmode;
    struct pst_cred cred;
    struct list waiters; /* struct rop.mail */
};

void remote_kept_init(struct rcont *rc)
{
    for (size_t i = 0; i < OBJ_BUCKETS; i++)
        list_init(&rc->kept[i]);
    list_init(&rc->kept_lru);
    list_init(&rc->fetches);
}

/* ---- what is kept; rcont.lock held ---- */

static struct list *bucket(struct rcont *rc, uint64_t ino)
{
    return &rc->kept[ino % OBJ_BUCKETS];
}

static bool is_dead(const struct rcont *rc, const struct rkept *k)
{
    return k->revoked || remote_key_ended(rc, k->key_id, k->epoch);
}

static void forget(struct rcont *rc, struct rkept *k)
{
    list_del(&k->link);
    list_del(&k->lru);
    rc->nkept--;
    free(k);
}

static struct rkept *kept_find(struct rcont *rc, uint64_t ino, uint32_t rights)
{
    uint64_t epoch = session_epoch(remote_of(rc->c.store)->session);
    struct rkept *best = NULL;

    list_for_each_safe (it, bucket(rc, ino)) {
        struct rkept *k = list_entry(it, struct rkept, link);
        if (k->epoch != epoch)
            forget(rc, k);
        else if (k->ino == ino && (k->accmode & rights) == rights && (!best || is_dead(rc, best)))
            best = k;
    }
    return best;
}

void remote_keep(struct rcont *rc, uint64_t ino, const struct rhandle *h)
{
    struct rkept *k = kept_find(rc, ino, h->accmode);

    if (!remote_of(rc->c.store)->is_agent || !h->cap_len || (k && !is_dead(rc, k)))
        return;
    list_for_each_safe (it, bucket(rc, ino)) { /* it does what they did */
        struct rkept *old = list_entry(it, struct rkept, link);
        if (old->ino == ino && (old->accmode & h->accmode) == old->accmode)
            forget(rc, old);
    }
    while (rc->nkept >= KEPT_MAX)
        forget(rc, list_entry(rc->kept_lru.next, struct rkept, lru));
    k = malloc(sizeof *k + h->cap_len);
    if (!k)
        return; /* it is asked for again */
    *k = (struct rkept){.ino = ino,
                        .epoch = h->epoch,
                        .cap_id = h->cap_id,
                        .key_id = h->key_id,
                        .accmode = h->accmode,
                        .revoked = h->revoked,
                        .cap_len = h->cap_len};
    memcpy(k->cap, h->cap, h->cap_len);
    list_push_front(bucket(rc, ino), &k->link);
    list_push_back(&rc->kept_lru, &k->lru);
    rc->nkept++;
}

int remote_kept_cap(struct rcont *rc, uint64_t ino, uint32_t rights, bool alive, struct rcap *ret)
{
    struct rkept *k = kept_find(rc, ino, rights);

    if (!k || (alive && is_dead(rc, k)))
        return -EBADF;
    list_del(&k->lru);
    list_push_back(&rc->kept_lru, &k->lru);
    *ret = (struct rcap){k->cap_id, k->epoch, k->cap, k->cap_len};
    return 0;
}

void remote_kept_revoked(struct rcont *rc, uint64_t ino, uint64_t cap_id)
{
    list_for_each (it, bucket(rc, ino)) {
        struct rkept *k = list_entry(it, struct rkept, link);
        k->revoked |= k->cap_id == cap_id;
    }
}

/* ---- asking ---- */

/* Keeps what came, and closes its handle. */
static int keep_answer(struct rfetch *f)
{
    const PB(NamespaceReply) *y = f->async.reply;
    struct remote *r = remote_of(f->rc->c.store);
    struct rhandle h = {0};
    int e;

    if (y->op_case != PENSTOCK__V1__NAMESPACE_REPLY__OP_OPEN)
        return -EBADMSG;
    if (session_epoch(r->session) != f->async.epoch)
        return -ECONNRESET;
    e = remote_handle(f->rc, y->open, (int)f->accmode, &f->cred, f->async.epoch, &h);
    if (e < 0)
        return e;
    remote_keep(f->rc, f->ino, &h);
    remote_close_handle(f->rc, h.handle, h.epoch);
    return h.cap_len ? 0 : -EBADF;
}

/* From a session thread. */
static void answered(struct session_async *a, int err)
{
    struct rfetch *f = container_of(a, struct rfetch, async);
    struct rcont *rc = f->rc;
    struct list *l;

    scoped_lock(&rc->lock);
    list_del(&f->link);
    if (!err)
        err = a->reply ? keep_answer(f) : -EBADMSG;
    while ((l = list_pop_front(&f->waiters))) {
        struct rop *p = list_entry(l, struct rop, mail);
        p->fetch = NULL;
        p->async.epoch = a->epoch;
        rq_mail(p, err);
    }
    free(f);
    pthread_cond_broadcast(&rc->closed);
}

static bool same_user(const struct pst_cred *a, const struct pst_cred *b)
{
    return a->uid == b->uid && a->gid == b->gid && a->ngroups == b->ngroups &&
           !memcmp(a->groups, b->groups, a->ngroups * sizeof a->groups[0]);
}

static int begin(struct rfetch *f, uint64_t trace)
{
    PB(NamespaceRequest) req = PENSTOCK__V1__NAMESPACE_REQUEST__INIT;
    PB(Header) header = PENSTOCK__V1__HEADER__INIT;
    PB(OpenRequest) in = PENSTOCK__V1__OPEN_REQUEST__INIT;
    struct session_call call = {
        .req = &req, .header = &header, .container = &f->rc->handle, .cred = &f->cred};

    in.header = &header;
    header.trace = trace;
    in.ino = f->ino;
    in.accmode = f->accmode;
    req.op_case = PENSTOCK__V1__NAMESPACE_REQUEST__OP_OPEN;
    req.open = &in;
    return session_begin(remote_of(f->rc->c.store)->session, &call, &f->async);
}

int rq_fetch(struct rop *p, uint32_t rights)
{
    const struct pst_cred *cred = p->op->ctx.cred;
    struct rcont *rc = rcont_of(p->op->cont);
    struct rfetch *f = NULL;
    int r;

    scoped_lock(&rc->lock);
    list_for_each (it, &rc->fetches) {
        struct rfetch *x = list_entry(it, struct rfetch, link);
        if (x->ino == p->op->ino && x->accmode == rights && same_user(&x->cred, cred))
            f = x;
    }
    if (!f) {
        f = malloc(sizeof *f);
        if (!f)
            return -ENOMEM;
        *f = (struct rfetch){
            .async.fn = answered, .rc = rc, .ino = p->op->ino, .accmode = rights, .cred = *cred};
        list_init(&f->waiters);
        r = begin(f, p->trace); /* its answer waits for the lock */
        if (r < 0) {
            free(f);
            return r;
        }
        list_push_back(&rc->fetches, &f->link);
    }
    p->fetch = f;
    p->is_fetching = true;
    list_push_back(&f->waiters, &p->mail);
    return -EINPROGRESS;
}

bool rq_fetch_leave(struct rop *p)
{
    struct rcont *rc = rcont_of(p->op->cont);

    scoped_lock(&rc->lock);
    if (!p->fetch)
        return false;
    list_del(&p->mail); /* the answer is kept all the same */
    p->fetch = NULL;
    p->is_fetching = false;
    return true;
}

/* It has waited long enough. */
static void go_on(struct rqueue *q, struct rop *p, int err)
{
    list_del(&p->link);
    if (!err && !q->broken) {
        list_push_front(&q->waiting, &p->link);
        return;
    }
    rq_settle(q, p);
    rq_finish(q, p, err ? err : q->broken);
}

void rq_fetched(struct rqueue *q, struct rop *p)
{
    p->is_fetching = false;
    if (p->ended)
        go_on(q, p, p->ended);
    else if (p->mail_err == -ESTALE) { /* which may speak of the session */
        p->is_doubted = true;
        p->doubt = session_doubt(q->r->session);
    } else {
        go_on(q, p, p->mail_err == -ECONNRESET ? 0 : p->mail_err);
    }
}

void rq_fetch_step(struct rqueue *q)
{
    list_for_each_safe (it, &q->fetching) {
        struct rop *p = list_entry(it, struct rop, link);
        int r = p->is_doubted ? session_doubt_end(q->r->session, p->async.epoch, p->doubt) : -EAGAIN;
        if (r == -EAGAIN)
            continue;
        p->is_doubted = false;
        go_on(q, p, r);
    }
}

/* ---- the end ---- */

void remote_kept_done(struct rcont *rc)
{
    scoped_lock(&rc->lock);
    list_for_each_safe (it, &rc->fetches) {
        struct rfetch *f = list_entry(it, struct rfetch, link);
        if (!session_forget(remote_of(rc->c.store)->session, &f->async))
            continue; /* its answer is about to take the lock */
        list_del(it);
        free(f);
    }
    while (!list_empty(&rc->fetches))
        pthread_cond_wait(&rc->closed, &rc->lock);
    while (rc->nkept)
        forget(rc, list_entry(rc->kept_lru.next, struct rkept, lru));
}
