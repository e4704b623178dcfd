/*
 * The table, sessions and their origins. Handles of containers and objects: session_handles.c; keys and tickets:
 * session_keys.c.
 */
#include "session_priv.h"

#include "base/crypto.h"
#include "base/rng.h"

#include <errno.h>

static const char *const names[REFUSALS] = {
    [REFUSE_VERSION] = "version",
    [REFUSE_CREDENTIAL] = "credential",
    [REFUSE_SESSION] = "session",
    [REFUSE_FOREIGN] = "foreign_session",
    [REFUSE_CRED] = "cred",
    [REFUSE_ADMIN] = "admin",
    [REFUSE_HANDLE] = "handle",
    [REFUSE_LIMIT] = "limit",
    [REFUSE_TICKET_UNKNOWN] = "ticket_unknown",
    [REFUSE_TICKET_EXPIRED] = "ticket_expired",
    [REFUSE_TICKET_SHARD] = "ticket_shard",
    [REFUSE_CAP_MALFORMED] = "cap_malformed",
    [REFUSE_CAP_KEY] = "cap_key",
    [REFUSE_CAP_REVOKED] = "cap_revoked",
    [REFUSE_CAP_MAC] = "cap_mac",
    [REFUSE_CAP_SESSION] = "cap_session",
    [REFUSE_CAP_RIGHTS] = "cap_rights",
    [REFUSE_CAP_RANGE] = "cap_range",
    [REFUSE_CAP_EXPIRED] = "cap_expired",
    [REFUSE_MAC] = "message_mac",
    [REFUSE_REPLAY] = "message_replay",
    [REFUSE_MALFORMED] = "message_malformed",
    [REFUSE_EXPORT_PROOF] = "export_proof",
    [REFUSE_EXPORT_MEMORY] = "export_memory",
    [REFUSE_EXPORT_UNKNOWN] = "export_unknown",
    [REFUSE_EXPORT_RANGE] = "export_range",
    [REFUSE_THIRD_UNKNOWN] = "third_unknown",
    [REFUSE_THIRD_MESSAGE] = "third_message",
    [REFUSE_OVERTAKEN] = "message_overtaken",
};

const char *refusal_name(enum refusal r)
{
    return (unsigned)r < REFUSALS ? names[r] : "?";
}

static _Thread_local uint32_t on_behalf;

void sess_on_behalf(uint32_t tenant)
{
    on_behalf = tenant;
}

void sess_refuse(struct sess_table *t, enum refusal r)
{
    atomic_fetch_add_explicit(&t->refused[r], 1, memory_order_relaxed);
    if (on_behalf < SESS_TENANTS_MAX)
        atomic_fetch_add_explicit(&t->refused_of[on_behalf][r], 1, memory_order_relaxed);
    if (t->hooks.refused)
        t->hooks.refused(t->hooks.user, on_behalf, r);
}

uint64_t sess_refused_of(const struct sess_table *t, uint32_t tenant, enum refusal r)
{
    return tenant < SESS_TENANTS_MAX ? atomic_load_explicit(&t->refused_of[tenant][r], memory_order_relaxed) : 0;
}

uint64_t sess_refused(const struct sess_table *t, enum refusal r)
{
    return atomic_load_explicit(&t->refused[r], memory_order_relaxed);
}

/* ---- table ---- */

struct sess_table *sess_table_new(const struct sess_limits *l, const struct sess_hooks *h)
{
    struct sess_table *t = calloc(1, sizeof *t);

    if (!t)
        return NULL;
    t->lim = *l;
    t->lim.sessions = l->sessions ? l->sessions : 4096;
    t->lim.conts = l->conts ? l->conts : 64;
    t->lim.objects = l->objects ? l->objects : 65536;
    t->lim.tickets = l->tickets ? l->tickets : 16;
    t->lim.thirds = l->thirds ? l->thirds : 64;
    t->lim.lease_ns = l->lease_ns ? l->lease_ns : 30 * NSEC_PER_SEC;
    t->lim.ticket_ns = l->ticket_ns ? l->ticket_ns : 10 * NSEC_PER_SEC;
    t->hooks = *h;
    pthread_mutex_init(&t->mu, NULL);
    list_init(&t->sessions);
    list_init(&t->ticket_order);
    list_init(&t->clients);
    /* Key ids of an earlier run are unknown, not mistaken for ended ones. */
    rng_secret(&t->first_key_id, sizeof t->first_key_id);
    t->first_key_id = (t->first_key_id >> 16) + 1;
    t->next_key_id = t->first_key_id;
    return t;
}

const struct sess_limits *sess_limits(const struct sess_table *t)
{
    return &t->lim;
}

/* ---- ending things. What is taken out under the lock is freed after it. ---- */

/* Needs mu. Out of the table, with all it holds moved to the lists. */
static void detach(struct sess_table *t, struct sess *s, struct list *objects)
{
    struct sess_cont *sc;
    uint32_t pos = 0;

    atomic_store(&s->alive, false);
    idmap_remove(&t->by_id, sess_id_key(s->id));
    list_del(&s->link);
    t->nsessions--;
    t->nsessions_of[s->who.tenant]--;
    list_for_each_safe(it, &t->ticket_order) {
        struct ticket *k = list_entry(it, struct ticket, link);
        if (k->of == s)
            sess_ticket_end(t, k);
    }
    while ((sc = idmap_next(&s->conts, &pos))) {
        sess_key_end(t, sc);
        list_splice_back(objects, &sc->objects);
    }
    idmap_done(&s->objects);
}

/* After detach, without the lock. */
static void bury(struct sess_table *t, struct sess *s, struct list *objects)
{
    struct sess_cont *sc;
    uint32_t pos = 0;

    if (t->hooks.session_gone)
        t->hooks.session_gone(t->hooks.user, s->id);
    if (t->hooks.session_ended)
        t->hooks.session_ended(t->hooks.user, &s->who);
    sess_objects_drop(t, objects);
    while ((sc = idmap_next(&s->conts, &pos)))
        sess_cont_put(sc);
    idmap_done(&s->conts);
    sess_put(s);
}

void sess_table_free(struct sess_table *t)
{
    if (!t)
        return;
    while (!list_empty(&t->sessions))
        sess_close(t, list_entry(t->sessions.next, struct sess, link)->id);
    idmap_done(&t->by_id);
    idmap_done(&t->keys);
    idmap_done(&t->tickets);
    pthread_mutex_destroy(&t->mu);
    free(t);
}

/* ---- sessions ---- */

/* Needs mu. */
static bool is_full(const struct sess_table *t, const struct sess_ident *who)
{
    return t->nsessions >= t->lim.sessions ||
           (who->tenant_sessions && t->nsessions_of[who->tenant] >= who->tenant_sessions);
}

int sess_open(struct sess_table *t, const struct sess_ident *who, uint64_t now_ns, struct sess **ret)
{
    struct sess *s;
    int r;

    if (who->tenant >= SESS_TENANTS_MAX)
        return -EINVAL;
    s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->t = t;
    s->who = *who;
    s->once = once_client_get(t, who->client);
    if (!s->once) {
        free(s);
        return -ENOMEM;
    }
    atomic_fetch_add(&t->held_of[who->tenant], 1);
    once_join(s);
    s->next_handle = 1;
    atomic_init(&s->refs, 2);
    atomic_init(&s->alive, true);
    s->expires_ns = now_ns + t->lim.lease_ns;
    rng_secret(s->data_key, sizeof s->data_key);
    pthread_mutex_lock(&t->mu);
    do {
        rng_secret(s->id, sizeof s->id);
        r = is_full(t, who) ? -EUSERS : idmap_add(&t->by_id, sess_id_key(s->id), s);
    } while (r == -EEXIST);
    if (!r) {
        list_push_back(&t->sessions, &s->link);
        t->nsessions++;
        t->nsessions_of[who->tenant]++;
    }
    pthread_mutex_unlock(&t->mu);
    if (r) {
        once_client_put(t, s->once);
        atomic_fetch_sub(&t->held_of[who->tenant], 1);
        free(s);
        return r == -EUSERS ? sess_refused_as(t, REFUSE_LIMIT, r) : r;
    }
    *ret = s;
    return 0;
}

struct sess *sess_get(struct sess_table *t, const void *id, size_t len, uint64_t now_ns)
{
    struct sess *s = NULL;

    if (len == SESS_ID_BYTES) {
        scoped_lock(&t->mu);
        s = idmap_get(&t->by_id, sess_id_key(id));
        if (s && (!pst_equal_ct(s->id, id, sizeof s->id) || now_ns >= s->expires_ns))
            s = NULL;
        if (s)
            atomic_fetch_add(&s->refs, 1);
    }
    if (!s)
        sess_refuse(t, REFUSE_SESSION);
    return s;
}

/* Without mu. Accepts NULL. */
static void origin_free(struct sess_table *t, struct sess_origin *g)
{
    if (!g)
        return;
    once_client_put(t, g->once);
    free(g->made);
    free(g);
}

void sess_put(struct sess *s)
{
    if (!s || atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    for (uint32_t i = 0; i < s->norigins; i++)
        origin_free(s->t, s->origins[i]);
    free(s->origins);
    once_client_put(s->t, s->once);
    pst_wipe(s->data_key, sizeof s->data_key);
    free(s->made);
    atomic_fetch_sub(&s->t->held_of[s->who.tenant], 1); /* last: then nothing of it is there */
    free(s);
}

int sess_renew(struct sess_table *t, struct sess *s, uint64_t now_ns)
{
    scoped_lock(&t->mu);
    if (!atomic_load(&s->alive))
        return -ESTALE;
    s->expires_ns = now_ns + t->lim.lease_ns;
    return 0;
}

int sess_close(struct sess_table *t, const uint8_t id[SESS_ID_BYTES])
{
    struct list objects = LIST_INIT(objects);
    struct sess *s;

    pthread_mutex_lock(&t->mu);
    s = idmap_get(&t->by_id, sess_id_key(id));
    if (s && pst_equal_ct(s->id, id, sizeof s->id))
        detach(t, s, &objects);
    else
        s = NULL;
    pthread_mutex_unlock(&t->mu);
    if (!s)
        return -ESTALE;
    bury(t, s, &objects);
    return 0;
}

uint32_t sess_close_of(struct sess_table *t, uint32_t tenant, uint64_t cred)
{
    for (uint32_t n = 0;; n++) {
        struct list objects = LIST_INIT(objects);
        struct sess *dead = NULL;

        pthread_mutex_lock(&t->mu);
        list_for_each(it, &t->sessions) {
            struct sess *s = list_entry(it, struct sess, link);
            if (s->who.tenant == tenant && (!cred || s->who.cred == cred)) {
                dead = s;
                break;
            }
        }
        if (dead)
            detach(t, dead, &objects);
        pthread_mutex_unlock(&t->mu);
        if (!dead)
            return n;
        bury(t, dead, &objects);
    }
}

uint32_t sess_held_of(const struct sess_table *t, uint32_t tenant)
{
    return tenant < SESS_TENANTS_MAX ? atomic_load(&t->held_of[tenant]) : 0;
}

void sess_tenant_reset(struct sess_table *t, uint32_t tenant)
{
    for (unsigned i = 0; tenant < SESS_TENANTS_MAX && i < REFUSALS; i++)
        atomic_store(&t->refused_of[tenant][i], 0);
}

uint64_t sess_expire(struct sess_table *t, uint64_t now_ns)
{
    for (;;) {
        struct list objects = LIST_INIT(objects);
        struct sess *dead = NULL;
        uint64_t next = UINT64_MAX;

        pthread_mutex_lock(&t->mu);
        list_for_each_safe(it, &t->ticket_order) {
            struct ticket *k = list_entry(it, struct ticket, link);
            if (k->expires_ns > now_ns)
                break;
            sess_ticket_end(t, k);
        }
        list_for_each(it, &t->sessions) {
            struct sess *s = list_entry(it, struct sess, link);
            if (now_ns >= s->expires_ns) {
                dead = s;
                detach(t, s, &objects);
                break;
            }
            next = min_u64(next, s->expires_ns);
        }
        pthread_mutex_unlock(&t->mu);
        if (!dead)
            return next;
        bury(t, dead, &objects);
    }
}

uint32_t sess_count(struct sess_table *t)
{
    scoped_lock(&t->mu);
    return t->nsessions;
}

uint32_t sess_count_of(struct sess_table *t, uint32_t tenant)
{
    scoped_lock(&t->mu);
    return tenant < SESS_TENANTS_MAX ? t->nsessions_of[tenant] : 0;
}

void sess_each(struct sess_table *t, void (*fn)(const struct sess *s, void *arg), void *arg)
{
    scoped_lock(&t->mu);
    list_for_each(it, &t->sessions)
        fn(list_entry(it, struct sess, link), arg);
}

const uint8_t *sess_id(const struct sess *s)
{
    return s->id;
}

const uint8_t *sess_data_key(const struct sess *s)
{
    return s->data_key;
}

const struct sess_ident *sess_ident(const struct sess *s)
{
    return &s->who;
}

bool sess_keeps_setid(const struct sess *s)
{
    return s->who.any_uid || s->who.uid == 0;
}

bool sess_alive(const struct sess *s)
{
    return atomic_load(&s->alive);
}

/* ---- origins ---- */

struct sess_origin *sess_origin_of(struct sess *s, uint32_t number)
{
    return number && number <= s->norigins ? s->origins[number - 1] : NULL;
}

/* Needs mu. Room for the next number. */
static int origin_room(struct sess *s)
{
    struct sess_origin **more;

    if (!atomic_load(&s->alive))
        return -ESTALE;
    if (s->origins_alive == SESS_ORIGINS_MAX)
        return -EUSERS;
    if (s->norigins == UINT16_MAX)
        return -EOVERFLOW;
    if (s->norigins & (s->norigins - 1) && s->norigins) /* the array has a power of two of places */
        return 0;
    more = realloc(s->origins, (s->norigins ? 2ul * s->norigins : 1) * sizeof(*more));
    if (!more)
        return -ENOMEM;
    s->origins = more;
    return 0;
}

int sess_origin_add(struct sess_table *t, struct sess *s, const uint8_t client[16], uint32_t *ret_number)
{
    struct sess_origin *g = calloc(1, sizeof *g);
    int r;

    if (!g)
        return -ENOMEM;
    g->once = once_client_get(t, client);
    if (!g->once) {
        free(g);
        return -ENOMEM;
    }
    pthread_mutex_lock(&t->mu);
    r = origin_room(s);
    if (!r) {
        g->era = once_client_fence(g->once);
        s->origins[s->norigins++] = g;
        s->origins_alive++;
        *ret_number = s->norigins;
    }
    pthread_mutex_unlock(&t->mu);
    if (r)
        origin_free(t, g);
    return r == -EUSERS ? sess_refused_as(t, REFUSE_LIMIT, r) : r;
}

bool sess_origin_quiet(struct sess_table *t, struct sess *s, uint32_t number)
{
    struct sess_origin *g;

    scoped_lock(&t->mu);
    g = sess_origin_of(s, number);
    return !g || once_client_quiet(g->once);
}

void sess_origin_drop(struct sess_table *t, struct sess *s, uint32_t number)
{
    struct sess_origin *g;

    pthread_mutex_lock(&t->mu);
    g = sess_origin_of(s, number);
    if (g) {
        s->origins[number - 1] = NULL;
        s->origins_alive--;
    }
    pthread_mutex_unlock(&t->mu);
    origin_free(t, g);
}
