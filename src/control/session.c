/* The table, sessions, and the handles of containers and objects. Keys and tickets: session_keys.c. */
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

static void cont_drop(struct sess_cont *sc)
{
    if (atomic_fetch_sub(&sc->refs, 1) != 1)
        return;
    if (sc->t->hooks.cont_free)
        sc->t->hooks.cont_free(sc->t->hooks.user, sc->c);
    pst_wipe(sc->key, sizeof sc->key);
    free(sc);
}

static void object_drop(struct sess_table *t, struct object *o)
{
    if (t->hooks.object_free)
        t->hooks.object_free(t->hooks.user, o->sc->c, o->ino);
    cont_drop(o->sc);
    free(o);
}

static void objects_drop(struct sess_table *t, struct list *objects)
{
    struct list *n;
    while ((n = list_pop_front(objects)))
        object_drop(t, list_entry(n, struct object, link));
}

/* Needs mu. Out of the table, with all it holds moved to the lists. */
static void detach(struct sess_table *t, struct sess *s, struct list *objects)
{
    struct sess_cont *sc;
    uint32_t pos = 0;

    atomic_store(&s->alive, false);
    idmap_remove(&t->by_id, sess_id_key(s->id));
    list_del(&s->link);
    t->nsessions--;
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
    objects_drop(t, objects);
    while ((sc = idmap_next(&s->conts, &pos)))
        cont_drop(sc);
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
static uint32_t count_of(const struct sess_table *t, uint32_t tenant)
{
    uint32_t n = 0;

    list_for_each(it, &t->sessions)
        n += list_entry(it, struct sess, link)->who.tenant == tenant;
    return n;
}

/* Needs mu. */
static bool tenant_is_full(const struct sess_table *t, const struct sess_ident *who)
{
    return who->tenant_sessions && count_of(t, who->tenant) >= who->tenant_sessions;
}

int sess_open(struct sess_table *t, const struct sess_ident *who, uint64_t now_ns, struct sess **ret)
{
    struct sess *s = calloc(1, sizeof *s);
    int r;

    if (!s)
        return -ENOMEM;
    s->t = t;
    s->who = *who;
    s->once = once_client_get(t, who->client);
    if (!s->once) {
        free(s);
        return -ENOMEM;
    }
    once_join(s);
    s->next_handle = 1;
    atomic_init(&s->refs, 2);
    atomic_init(&s->alive, true);
    s->expires_ns = now_ns + t->lim.lease_ns;
    rng_secret(s->data_key, sizeof s->data_key);
    pthread_mutex_lock(&t->mu);
    do {
        rng_secret(s->id, sizeof s->id);
        r = t->nsessions >= t->lim.sessions || tenant_is_full(t, who) ? -EUSERS : idmap_add(&t->by_id, sess_id_key(s->id), s);
    } while (r == -EEXIST);
    if (!r) {
        list_push_back(&t->sessions, &s->link);
        t->nsessions++;
    }
    pthread_mutex_unlock(&t->mu);
    if (r) {
        once_client_put(t, s->once);
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
    return count_of(t, tenant);
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

/* ---- containers ---- */

int sess_cont_add(struct sess_table *t, struct sess *s, struct pst_cont *c, uint64_t cont_id, uint64_t *ret_handle)
{
    struct sess_cont *sc = calloc(1, sizeof *sc);
    int r;

    if (!sc)
        return -ENOMEM;
    sc->t = t;
    sc->c = c;
    sc->id = cont_id;
    sc->of = s;
    atomic_init(&sc->refs, 1);
    list_init(&sc->objects);
    pthread_mutex_lock(&t->mu);
    if (!atomic_load(&s->alive))
        r = -ESTALE;
    else if (s->conts.n >= t->lim.conts)
        r = -EMFILE;
    else
        r = idmap_add(&s->conts, sc->handle = s->next_handle++, sc);
    if (!r)
        *ret_handle = sc->handle;
    pthread_mutex_unlock(&t->mu);
    if (r)
        free(sc);
    return r == -EMFILE ? sess_refused_as(t, REFUSE_LIMIT, r) : r;
}

struct sess_cont *sess_cont_ref(struct sess_cont *sc)
{
    atomic_fetch_add(&sc->refs, 1);
    return sc;
}

struct sess_cont *sess_cont_get(struct sess_table *t, struct sess *s, uint64_t handle)
{
    struct sess_cont *sc;

    pthread_mutex_lock(&t->mu);
    sc = atomic_load(&s->alive) ? idmap_get(&s->conts, handle) : NULL;
    if (sc)
        sess_cont_ref(sc);
    pthread_mutex_unlock(&t->mu);
    if (!sc)
        sess_refuse(t, REFUSE_HANDLE);
    return sc;
}

void sess_cont_put(struct sess_cont *sc)
{
    if (sc)
        cont_drop(sc);
}

struct pst_cont *sess_cont_store(const struct sess_cont *sc)
{
    return sc->c;
}

uint64_t sess_cont_id(const struct sess_cont *sc)
{
    return sc->id;
}

/* Needs mu. Where it is kept what the slot's last request got; NULL: nowhere. make: before the first one. */
static struct made *made_at(struct sess *s, uint32_t slot, uint64_t seq, bool make)
{
    uint32_t number = slot >> ONCE_ORIGIN_SHIFT, at = slot & ((1u << ONCE_ORIGIN_SHIFT) - 1);
    struct sess_origin *g = number ? sess_origin_of(s, number) : NULL;
    struct made **all = g ? &g->made : &s->made;
    uint32_t n = number ? SESS_ORIGIN_MADE : PST_SLOTS_MAX;

    if (!seq || at >= n || (number && !g))
        return NULL;
    if (!*all && make)
        *all = calloc(n, sizeof **all);
    return *all ? &(*all)[at] : NULL;
}

/* Needs mu. What the request (slot, seq) got, kept for its retry. */
static void remember(struct sess *s, uint32_t slot, uint64_t seq, uint64_t handle, uint32_t rights)
{
    struct made *m = made_at(s, slot, seq, true);

    if (m) /* without memory a retry opens once more (a handle that lives until the session ends), or gets EBADF */
        *m = (struct made){seq, handle, rights};
}

/* Needs mu. Has this request closed the handle before? Handles are not used twice in a session. */
static bool closed_before(struct sess *s, uint32_t slot, uint64_t seq, uint64_t handle)
{
    const struct made *m = made_at(s, slot, seq, false);
    return m && m->seq == seq && m->rights == MADE_CLOSED && m->handle == handle;
}

int sess_cont_close(struct sess_table *t, struct sess *s, uint64_t handle, uint32_t slot, uint64_t seq)
{
    struct list objects = LIST_INIT(objects);
    struct sess_cont *sc;
    bool done;

    pthread_mutex_lock(&t->mu);
    sc = atomic_load(&s->alive) ? idmap_remove(&s->conts, handle) : NULL;
    if (sc) {
        sess_key_end(t, sc);
        list_splice_back(&objects, &sc->objects);
        list_for_each(it, &objects)
            idmap_remove(&s->objects, list_entry(it, struct object, link)->handle);
        remember(s, slot, seq, handle, MADE_CLOSED);
    }
    done = !sc && closed_before(s, slot, seq, handle);
    pthread_mutex_unlock(&t->mu);
    if (!sc)
        return done ? 0 : sess_refused_as(t, REFUSE_HANDLE, -EBADF);
    objects_drop(t, &objects);
    cont_drop(sc);
    return 0;
}

uint32_t sess_cont_mounts(struct sess_table *t, uint64_t cont_id)
{
    uint32_t n = 0;

    scoped_lock(&t->mu);
    list_for_each(it, &t->sessions) {
        const struct sess *s = list_entry(it, struct sess, link);
        const struct sess_cont *sc;
        uint32_t pos = 0;
        if (strcmp(s->who.purpose, "mount") && strcmp(s->who.purpose, "agent")) /* which may have mounts behind it */
            continue;
        while ((sc = idmap_next(&s->conts, &pos)))
            if (sc->id == cont_id) {
                n++;
                break;
            }
    }
    return n;
}

/* ---- objects ---- */

int sess_object_add(struct sess_table *t, struct sess *s, struct sess_cont *sc, uint64_t ino, uint32_t rights,
                    uint32_t slot, uint64_t seq, uint64_t *ret_handle)
{
    struct object *o = calloc(1, sizeof *o);
    int r;

    if (!o)
        return -ENOMEM;
    list_init(&o->link);
    o->sc = sc;
    o->ino = ino;
    o->rights = rights;
    pthread_mutex_lock(&t->mu);
    if (!atomic_load(&s->alive) || idmap_get(&s->conts, sc->handle) != sc)
        r = -ESTALE;
    else if (s->objects.n >= t->lim.objects)
        r = -EMFILE;
    else
        r = idmap_add(&s->objects, o->handle = s->next_handle++, o);
    if (!r) {
        list_push_back(&sc->objects, &o->link);
        sess_cont_ref(sc);
        remember(s, slot, seq, o->handle, rights);
        *ret_handle = o->handle;
    }
    pthread_mutex_unlock(&t->mu);
    if (r)
        free(o);
    return r == -EMFILE ? sess_refused_as(t, REFUSE_LIMIT, r) : r;
}

bool sess_object_find(struct sess_table *t, struct sess *s, struct sess_cont *sc, uint64_t ino, uint32_t rights,
                      uint32_t slot, uint64_t seq, uint64_t *ret_handle)
{
    const struct object *o;
    const struct made *m;

    scoped_lock(&t->mu);
    m = made_at(s, slot, seq, false);
    if (!atomic_load(&s->alive) || !m || m->seq != seq || m->rights != rights)
        return false;
    o = idmap_get(&s->objects, m->handle);
    if (!o || o->sc != sc || o->ino != ino)
        return false;
    *ret_handle = o->handle;
    return true;
}

void sess_object_granted(struct sess_table *t, struct sess *s, uint64_t handle, uint64_t key_id)
{
    struct object *o;

    scoped_lock(&t->mu);
    o = atomic_load(&s->alive) ? idmap_get(&s->objects, handle) : NULL;
    if (o)
        o->key_id = key_id;
}

/* Needs mu. 0, or as sess_object_allows. */
static int allows(const struct object *o, const struct sess_cont *sc, uint64_t ino, uint32_t rights)
{
    if (!o || o->sc != sc || o->ino != ino || (o->rights & rights) != rights || !o->key_id)
        return -EBADF;
    return o->key_id == sc->key_id ? 0 : -EKEYREVOKED;
}

int sess_object_allows(struct sess_table *t, struct sess *s, struct sess_cont *sc, uint64_t handle, uint64_t ino,
                       uint32_t rights)
{
    int best;

    scoped_lock(&t->mu);
    if (!atomic_load(&s->alive))
        return -EBADF;
    best = allows(idmap_get(&s->objects, handle), sc, ino, rights);
    list_for_each(it, &sc->objects) {
        int r;
        if (!best)
            break;
        r = allows(list_entry(it, struct object, link), sc, ino, rights);
        best = r == -EBADF ? best : r;
    }
    return best;
}

int sess_object_close(struct sess_table *t, struct sess *s, uint64_t handle, uint32_t slot, uint64_t seq)
{
    struct object *o;
    bool done;

    pthread_mutex_lock(&t->mu);
    o = atomic_load(&s->alive) ? idmap_remove(&s->objects, handle) : NULL;
    if (o) {
        list_del(&o->link);
        remember(s, slot, seq, handle, MADE_CLOSED);
    }
    done = !o && closed_before(s, slot, seq, handle);
    pthread_mutex_unlock(&t->mu);
    if (!o)
        return done ? 0 : sess_refused_as(t, REFUSE_HANDLE, -EBADF);
    object_drop(t, o);
    return 0;
}
