/* Requests: unpacking, sessions, credentials, and the way back with a reply or an error. */
#include "service_priv.h"

#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void ctl_req_init(struct ctl_req *q, struct ctl_server *s, struct rpc_call *c)
{
    q->s = s;
    q->call = c;
    q->sess = NULL;
    q->tenant = NULL;
    q->about = NULL;
    sess_on_behalf(0);
    q->sc = NULL;
    q->cont = NULL;
    q->later = false;
    q->code = RPC_OK;
    q->text[0] = 0;
    q->act = NULL;
    q->what[0] = 0;
    q->cred.ngroups = 0;
    q->ctx = (struct pst_ctx){.cred = &q->cred};
    q->once = (struct once){0};
    q->slot = 0;
    q->walked = 0;
    arena_init(&q->a, CTL_REQUEST_MEM);
    q->start_ns = now_ns();
    q->trace = trace_new();
    trace_enter(q->trace);
}

void ctl_trace(struct ctl_req *q, uint64_t id)
{
    if (!(id & TRACE_MAX))
        return;
    q->trace = id & TRACE_MAX;
    trace_enter(q->trace);
}

void ctl_tell(const struct ctl_req *q, const ProtobufCMessageDescriptor *in, int r)
{
    uint64_t ns = now_ns() - q->start_ns;

    if (!q->later && trace_tells(r, ns))
        trace_end(LOG_COMPONENT, true, q->trace, r, ns, "%s from %s", in ? in->short_name : "nothing known",
                  rpc_peer(q->call));
}

void ctl_req_done(struct ctl_req *q)
{
    once_end(&q->once);
    sess_cont_put(q->sc);
    ctl_ten_put(q->about);
    sess_put(q->sess);
    sess_on_behalf(0);
    arena_done(&q->a);
    trace_enter(0);
}

int ctl_fail(struct ctl_req *q, int err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(q->text, sizeof q->text, fmt, ap);
    va_end(ap);
    return err;
}

void ctl_act(struct ctl_req *q, const char *act, const char *fmt, ...)
{
    va_list ap;

    q->act = act;
    va_start(ap, fmt);
    vsnprintf(q->what, sizeof q->what, fmt, ap);
    va_end(ap);
}

void ctl_audit(struct ctl_req *q, const char *event, const char *what, int err)
{
    const struct sess_ident *who = q->sess ? sess_ident(q->sess) : NULL;

    if (q->s->audit)
        audit_put(q->s->audit, &(struct audit_event){.event = event,
                                                     .tenant = who ? q->s->tenants[who->tenant].in.name : NULL,
                                                     .credential = who ? who->credential : NULL,
                                                     .peer = rpc_peer(q->call),
                                                     .what = what,
                                                     .error = err ? errs_name(err) : NULL,
                                                     .request = q->trace});
}

int ctl_result(struct ctl_req *q, int r)
{
    if (q->act)
        ctl_audit(q, q->act, q->what, r);
    once_end(&q->once); /* before the client hears of it, and uses the slot again */
    if (q->later)
        return r;
    return r < 0 && q->sess && (!sess_alive(q->sess) || atomic_load(&q->s->waits_ended))
               ? ctl_fail(q, -ESTALE, "the session has ended")
               : r;
}

int ctl_still_wanted(struct ctl_req *q)
{
    if (rpc_cancelled(q->call))
        return -ECANCELED;
    return rpc_deadline_ms(q->call) <= 0 ? -ETIMEDOUT : 0;
}

int ctl_pause(struct ctl_req *q)
{
    const struct timespec pause = {0, 2 * NSEC_PER_MSEC};
    int r = ctl_still_wanted(q);

    if (r)
        return r;
    rpc_may_block();
    nanosleep(&pause, NULL);
    return 0;
}

/* ---- who asks ---- */

/* A session that began with a certificate is of no use to who has only learnt its id. */
static bool same_peer(struct ctl_req *q, const struct sess_ident *who)
{
    struct ctl_cred cert;

    return !*who->cert || (ctl_cert_cred(q->s, q->call, &cert, NULL) && !strcmp(cert.name, who->cert));
}

int ctl_need_session(struct ctl_req *q, ProtobufCBinaryData id)
{
    q->sess = sess_get(q->s->sess, id.data, id.len, now_ns());
    if (!q->sess)
        return ctl_fail(q, -ESTALE, "no such session, or its lease is over: open a new one");
    q->tenant = &q->s->tenants[sess_ident(q->sess)->tenant];
    sess_on_behalf(sess_ident(q->sess)->tenant);
    if (!same_peer(q, sess_ident(q->sess))) {
        sess_refuse(q->s->sess, REFUSE_FOREIGN);
        return ctl_fail(q, -EPERM, "the session belongs to another credential");
    }
    return ctl_still_wanted(q);
}

static int take_cred(struct ctl_req *q, const PB(Cred) * in)
{
    const struct sess_ident *who = sess_ident(q->sess);
    bool ok = true;

    q->cred.uid = in ? in->uid : who->uid;
    q->cred.gid = in ? in->gid : who->gid;
    q->cred.ngroups = 0;
    if (!in)
        return 0;
    if (in->n_groups > PST_GROUPS_MAX)
        return ctl_fail(q, -EINVAL, "%zu groups: at most %u", in->n_groups, PST_GROUPS_MAX);
    for (size_t i = 0; i < in->n_groups; i++) {
        ok = ok && in->groups[i] == who->gid;
        q->cred.groups[q->cred.ngroups++] = in->groups[i];
    }
    if (who->any_uid || (ok && in->uid == who->uid && in->gid == who->gid))
        return 0;
    sess_refuse(q->s->sess, REFUSE_CRED);
    return ctl_fail(q, -EPERM, "credential %s acts as uid %u gid %u only", who->credential, who->uid, who->gid);
}

/* Waits while an earlier try is in the store. */
static int take_turn(struct ctl_req *q, const PB(RequestId) * rid)
{
    int r;

    while ((r = once_begin(&q->once, q->sess, q->slot, rid->sequence, rid->attempt)) == -EAGAIN) {
        r = ctl_pause(q);
        if (r)
            return r;
    }
    if (!r && !once_commit(&q->once))
        r = -ECONNABORTED;
    if (r != -ECONNABORTED)
        return r;
    sess_refuse(q->s->sess, REFUSE_OVERTAKEN);
    return ctl_fail(q, -ESTALE, "a later try of this request, or a later session of its client, has come before it");
}

static int take_id(struct ctl_req *q, const PB(RequestId) * rid)
{
    int r;

    if (rid->slot >= PST_SLOTS_MAX)
        return ctl_fail(q, -EINVAL, "request slot %u: below %u", rid->slot, PST_SLOTS_MAX);
    if (!rid->sequence)
        return 0;
    if (rid->origin > UINT16_MAX)
        return ctl_fail(q, -EINVAL, "origin %u: below 65536", rid->origin);
    q->slot = rid->origin << ONCE_ORIGIN_SHIFT | rid->slot;
    r = take_turn(q, rid);
    if (r)
        return r;
    memcpy(q->ctx.id.client, once_of(&q->once), sizeof q->ctx.id.client);
    q->ctx.id.slot = rid->slot;
    q->ctx.id.seq = rid->sequence;
    return 0;
}

static int identify(struct ctl_req *q, const PB(Cred) * cred, const PB(RequestId) * rid)
{
    /* The id first: what fails from here on, no earlier try does afterwards. */
    int r = rid ? take_id(q, rid) : 0;
    return r ? r : take_cred(q, cred);
}

int ctl_need_cred(struct ctl_req *q, ProtobufCBinaryData id, const PB(Cred) * cred, const PB(RequestId) * rid)
{
    int r = ctl_need_session(q, id);
    return r ? r : identify(q, cred, rid);
}

int ctl_need_party(struct ctl_req *q, const PB(AdminHeader) * h)
{
    if (!h)
        return ctl_fail(q, -EINVAL, "no header");
    ctl_trace(q, h->trace);
    return ctl_need_session(q, h->session);
}

int ctl_need_origin(struct ctl_req *q, const PB(AdminHeader) * h)
{
    int r = ctl_need_party(q, h);

    if (r || sess_ident(q->sess)->origin)
        return r;
    sess_refuse(q->s->sess, REFUSE_CRED);
    return ctl_fail(q, -EPERM, "credential %s may not speak for others (origin)", sess_ident(q->sess)->credential);
}

/* Within the tenant's limits. -EINPROGRESS: the request is put off. */
static int take_share(struct ctl_req *q)
{
    const struct ctl_hooks *h = &q->s->hooks;
    uint64_t at = h->turn && !rpc_was_later() ? h->turn(h->user, sess_ident(q->sess)->tenant) : 0;

    if (at <= now_ns())
        return 0;
    q->later = true;
    rpc_later(at);
    return -EINPROGRESS;
}

int ctl_need_header(struct ctl_req *q, const PB(Header) * h)
{
    int r;

    if (!h)
        return ctl_fail(q, -EINVAL, "no header");
    ctl_trace(q, h->trace);
    r = ctl_need_session(q, h->session);
    if (!r)
        r = take_share(q);
    if (!r)
        r = identify(q, h->cred, h->request_id);
    if (r)
        return r;
    q->sc = sess_cont_get(q->s->sess, q->sess, h->container);
    if (!q->sc)
        return ctl_fail(q, -EBADF, "no such container handle in this session");
    q->cont = sess_cont_store(q->sc);
    return 0;
}

int ctl_need_admin_header(struct ctl_req *q, const PB(AdminHeader) * h)
{
    int r;

    if (!h)
        return ctl_fail(q, -EINVAL, "no header");
    ctl_trace(q, h->trace);
    r = ctl_need_cred(q, h->session, h->cred, h->request_id);
    /* Administrators are trusted by the store, whatever uid they run as. */
    if (!r && ctl_is_admin(q))
        q->ctx.cred = NULL;
    return r;
}

bool ctl_is_admin(const struct ctl_req *q)
{
    const struct sess_ident *who = sess_ident(q->sess);
    return who->admin || (who->any_uid && q->cred.uid == 0);
}

int ctl_need_admin(struct ctl_req *q)
{
    if (ctl_is_admin(q))
        return 0;
    sess_refuse(q->s->sess, REFUSE_ADMIN);
    return ctl_fail(q, -EPERM, "only an administrator's credential may do this");
}

bool ctl_is_operator(const struct ctl_req *q)
{
    return q->tenant == q->s->tenants && ctl_is_admin(q);
}

int ctl_need_operator(struct ctl_req *q)
{
    if (ctl_is_operator(q))
        return 0;
    sess_refuse(q->s->sess, REFUSE_ADMIN);
    return ctl_fail(q, -EPERM, "only an administrator's credential may do this");
}

/* ---- small things ---- */

int ctl_name(struct ctl_req *q, ProtobufCBinaryData b, size_t max, const char **ret)
{
    if (!b.len || memchr(b.data, 0, b.len))
        return -EINVAL;
    if (b.len > max)
        return -ENAMETOOLONG;
    *ret = arena_copy(&q->a, b.data, b.len);
    return *ret ? 0 : -ENOMEM;
}

int ctl_bytes(struct ctl_req *q, const void *p, size_t n, ProtobufCBinaryData *ret)
{
    ret->data = (uint8_t *)arena_copy(&q->a, p, n);
    ret->len = ret->data ? n : 0;
    return ret->data ? 0 : -ENOMEM;
}

PB(Attr) * ctl_attr(struct ctl_req *q, const struct pst_attr *a)
{
    PB(Attr) *m = arena_alloc(&q->a, sizeof *m);

    if (!m)
        return NULL;
    penstock__v1__attr__init(m);
    m->ino = a->ino;
    m->mode = a->mode;
    m->nlink = a->nlink;
    m->uid = a->uid;
    m->gid = a->gid;
    m->rdev = a->rdev;
    m->size = a->size;
    m->used = a->used;
    m->atime_ns = a->atime_ns;
    m->mtime_ns = a->mtime_ns;
    m->ctime_ns = a->ctime_ns;
    m->btime_ns = a->btime_ns;
    m->change = a->change;
    m->chunk_size = a->chunk_size;
    return m;
}
