/*
 * The tenants and credentials of a control server, which come and go while it runs.
 *
 * A place of the table is free, live or ending. Who has found a live one counts as its user until ctl_ten_put; a
 * session and a container handle count in the session table (sess_held_of) until the last holder lets go. A place is
 * emptied when both counts are 0, so what somebody can still reach is never another tenant's. A credential is looked at
 * together with its tenant, under one lock: whoever has a tenant by a credential has the one that it was made for.
 */
#include "service_priv.h"

#include "base/crypto.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#define WAIT_STEP_NS (2 * NSEC_PER_MSEC)
#define CREDS_STEP   32u

/* ---- tenants ---- */

struct ctl_ten *ctl_ten_get(struct ctl_server *s, uint32_t number)
{
    struct ctl_ten *t = number < SESS_TENANTS_MAX ? &s->tenants[number] : NULL;

    if (!t)
        return NULL;
    atomic_fetch_add(&t->users, 1);
    if (atomic_load(&t->state) == CTL_TEN_LIVE)
        return t;
    atomic_fetch_sub(&t->users, 1);
    return NULL;
}

void ctl_ten_put(struct ctl_ten *t)
{
    if (t)
        atomic_fetch_sub(&t->users, 1);
}

struct ctl_ten *ctl_ten_find(struct ctl_server *s, const char *name)
{
    for (uint32_t i = 0; i < SESS_TENANTS_MAX; i++) {
        struct ctl_ten *t = ctl_ten_get(s, i);
        if (t && !strcmp(t->in.name, name))
            return t;
        ctl_ten_put(t);
    }
    return NULL;
}

uint32_t ctl_ten_number(const struct ctl_server *s, const struct ctl_ten *t)
{
    return (uint32_t)(t - s->tenants);
}

int ctl_tenant_add(struct ctl_server *s, uint32_t number, const struct ctl_tenant *in, char *err, size_t err_size)
{
    struct ctl_ten *t = number < SESS_TENANTS_MAX ? &s->tenants[number] : NULL;
    struct ctl_endpoint *own;

    if (!t || atomic_load(&t->state) != CTL_TEN_FREE)
        return -EINVAL;
    if (in->nendpoints > CTL_ENDPOINTS_MAX) {
        snprintf(err, err_size, "at most %u data endpoints", CTL_ENDPOINTS_MAX);
        return -E2BIG;
    }
    own = calloc(in->nendpoints + 1, sizeof *own);
    if (!own)
        return -ENOMEM;
    if (in->nendpoints)
        memcpy(own, in->endpoints, in->nendpoints * sizeof *own);
    t->in = *in;
    t->in.endpoints = own;
    atomic_store(&t->sessions, in->sessions);
    sess_tenant_reset(s->sess, number);
    atomic_fetch_add(&s->ntenants, 1);
    atomic_store(&t->state, CTL_TEN_LIVE);
    return 0;
}

static void creds_end_of(struct ctl_server *s, uint32_t tenant)
{
    size_t kept = 0;

    pthread_rwlock_wrlock(&s->cred_lock);
    for (size_t i = 0; i < s->ncreds; i++)
        if (s->creds[i].tenant != tenant)
            s->creds[kept++] = s->creds[i];
    s->ncreds = kept;
    pthread_rwlock_unlock(&s->cred_lock);
}

uint32_t ctl_tenant_end(struct ctl_server *s, uint32_t number)
{
    int live = CTL_TEN_LIVE;

    creds_end_of(s, number);
    if (atomic_compare_exchange_strong(&s->tenants[number].state, &live, CTL_TEN_ENDING))
        atomic_fetch_sub(&s->ntenants, 1);
    return sess_close_of(s->sess, number, 0);
}

static void close_queues(struct ctl_ten *t)
{
    scoped_lock(&t->mu);
    while (t->nqueues)
        pst_queue_close(t->queues[--t->nqueues]);
}

bool ctl_tenant_remove(struct ctl_server *s, uint32_t number, uint64_t deadline_ns)
{
    const struct timespec step = {0, WAIT_STEP_NS};
    struct ctl_ten *t = &s->tenants[number];

    while (atomic_load(&t->users) || sess_held_of(s->sess, number)) {
        if (now_ns() >= deadline_ns || atomic_load(&s->stopping))
            return false;
        sess_close_of(s->sess, number, 0); /* one that was about to begin */
        nanosleep(&step, NULL);
    }
    close_queues(t);
    free((void *)t->in.endpoints);
    t->in = (struct ctl_tenant){0};
    atomic_store(&t->state, CTL_TEN_FREE);
    return true;
}

void ctl_tenant_sessions(struct ctl_server *s, uint32_t tenant, uint32_t sessions)
{
    atomic_store(&s->tenants[tenant].sessions, sessions);
}

int ctl_tenants_start(struct ctl_server *s, const struct ctl_config *cfg, char *err, size_t err_size)
{
    s->tenants = calloc(SESS_TENANTS_MAX, sizeof *s->tenants);
    if (!s->tenants)
        return -ENOMEM;
    for (uint32_t i = 0; i < SESS_TENANTS_MAX; i++)
        pthread_mutex_init(&s->tenants[i].mu, NULL);
    for (uint32_t i = 0; i < cfg->ntenants; i++) {
        int r = ctl_tenant_add(s, cfg->tenants[i].number ? cfg->tenants[i].number : i, &cfg->tenants[i], err, err_size);
        if (r)
            return r;
    }
    return 0;
}

void ctl_tenants_stop(struct ctl_server *s)
{
    for (uint32_t i = 0; s->tenants && i < SESS_TENANTS_MAX; i++)
        close_queues(&s->tenants[i]);
}

void ctl_tenants_free(struct ctl_server *s)
{
    for (uint32_t i = 0; s->tenants && i < SESS_TENANTS_MAX; i++) {
        pthread_mutex_destroy(&s->tenants[i].mu);
        free((void *)s->tenants[i].in.endpoints);
    }
    free(s->tenants);
    if (s->creds)
        pst_wipe(s->creds, s->ncreds * sizeof *s->creds);
    free(s->creds);
}

/* ---- credentials ---- */

/* Needs the lock. Of the same kind and name, or by the same token. */
static bool taken(const struct ctl_server *s, const struct ctl_cred *c)
{
    for (size_t i = 0; i < s->ncreds; i++) {
        const struct ctl_cred *k = &s->creds[i];
        if (c->by_cert && k->by_cert && !strcmp(c->name, k->name))
            return true;
        if (c->by_token && k->by_token && pst_equal_ct(c->token_hash, k->token_hash, sizeof c->token_hash))
            return true;
    }
    return false;
}

/* Needs the lock. */
static int make_room(struct ctl_server *s)
{
    struct ctl_cred *more;

    if (s->ncreds < s->creds_room)
        return 0;
    more = realloc(s->creds, (s->creds_room + CREDS_STEP) * sizeof *more);
    if (!more)
        return -ENOMEM;
    s->creds = more;
    s->creds_room += CREDS_STEP;
    return 0;
}

int ctl_cred_add(struct ctl_server *s, const struct ctl_cred *c, bool may_be_taken, uint64_t *ret_id)
{
    int r;

    pthread_rwlock_wrlock(&s->cred_lock);
    r = !may_be_taken && taken(s, c) ? -EEXIST : make_room(s);
    if (!r) {
        s->creds[s->ncreds] = *c;
        s->creds[s->ncreds++].id = ++s->last_cred;
        if (ret_id)
            *ret_id = s->last_cred;
    }
    pthread_rwlock_unlock(&s->cred_lock);
    return r;
}

uint32_t ctl_cred_end(struct ctl_server *s, uint64_t id)
{
    uint32_t tenant = CTL_ALL;

    pthread_rwlock_wrlock(&s->cred_lock);
    for (size_t i = 0; i < s->ncreds && tenant == CTL_ALL; i++)
        if (s->creds[i].id == id) {
            tenant = s->creds[i].tenant;
            memmove(&s->creds[i], &s->creds[i + 1], (--s->ncreds - i) * sizeof *s->creds);
        }
    pthread_rwlock_unlock(&s->cred_lock);
    return tenant == CTL_ALL ? 0 : sess_close_of(s->sess, tenant, id);
}

bool ctl_cred_alive(struct ctl_server *s, uint64_t id)
{
    bool found = false;

    pthread_rwlock_rdlock(&s->cred_lock);
    for (size_t i = 0; i < s->ncreds && !found; i++)
        found = s->creds[i].id == id;
    pthread_rwlock_unlock(&s->cred_lock);
    return found;
}

struct find_cred {
    const struct ctl_server *s;
    const struct ctl_cred *found;
};

static bool match_cred(const char *name, void *arg)
{
    struct find_cred *f = arg;
    for (size_t i = 0; i < f->s->ncreds && !f->found; i++)
        if (f->s->creds[i].by_cert && !strcmp(f->s->creds[i].name, name))
            f->found = &f->s->creds[i];
    return f->found != NULL;
}

/* Needs the lock. Looks at every credential whatever matches, so that the time tells nothing. */
static const struct ctl_cred *by_token(const struct ctl_server *s, const uint8_t hash[32])
{
    const struct ctl_cred *found = NULL;

    for (size_t i = 0; i < s->ncreds; i++)
        if (pst_equal_ct(hash, s->creds[i].token_hash, sizeof s->creds[i].token_hash) && s->creds[i].by_token)
            found = &s->creds[i];
    return found;
}

/* Needs the lock. */
static bool hand_out(struct ctl_server *s, const struct ctl_cred *c, struct ctl_cred *ret, struct ctl_ten **ret_ten)
{
    struct ctl_ten *t = c && ret_ten ? ctl_ten_get(s, c->tenant) : NULL;

    if (!c || (ret_ten && !t))
        return false;
    *ret = *c;
    if (ret_ten)
        *ret_ten = t;
    return true;
}

bool ctl_cert_cred(struct ctl_server *s, struct rpc_call *c, struct ctl_cred *ret, struct ctl_ten **ret_ten)
{
    struct find_cred f = {.s = s};
    bool ok;

    pthread_rwlock_rdlock(&s->cred_lock);
    rpc_peer_names(c, match_cred, &f);
    ok = hand_out(s, f.found, ret, ret_ten);
    pthread_rwlock_unlock(&s->cred_lock);
    return ok;
}

bool ctl_token_cred(struct ctl_server *s, const void *token, size_t len, struct ctl_cred *ret, struct ctl_ten **ret_ten)
{
    uint8_t hash[32];
    bool ok;

    if (EVP_Digest(token, len, hash, NULL, EVP_sha256(), NULL) != 1)
        return false;
    pthread_rwlock_rdlock(&s->cred_lock);
    ok = hand_out(s, by_token(s, hash), ret, ret_ten);
    pthread_rwlock_unlock(&s->cred_lock);
    return ok;
}
