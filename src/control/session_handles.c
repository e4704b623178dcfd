/* The handles of a session: of containers, of objects, and what each slot's last request opened or closed. */
#include "session_priv.h"

#include "base/crypto.h"

#include <errno.h>

/* ---- ending things. What is taken out under the lock is freed after it. ---- */

static void cont_drop(struct sess_cont *sc)
{
    if (atomic_fetch_sub(&sc->refs, 1) != 1)
        return;
    if (sc->t->hooks.cont_free)
        sc->t->hooks.cont_free(sc->t->hooks.user, sc->c);
    pst_wipe(sc->key, sizeof sc->key);
    atomic_fetch_sub(&sc->t->held_of[sc->tenant], 1); /* last: its store may go now */
    free(sc);
}

static void object_drop(struct sess_table *t, struct object *o)
{
    if (t->hooks.object_free)
        t->hooks.object_free(t->hooks.user, o->sc->c, o->ino);
    cont_drop(o->sc);
    free(o);
}

void sess_objects_drop(struct sess_table *t, struct list *objects)
{
    struct list *n;
    while ((n = list_pop_front(objects)))
        object_drop(t, list_entry(n, struct object, link));
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
    sc->tenant = s->who.tenant;
    atomic_fetch_add(&t->held_of[sc->tenant], 1);
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
    if (r) {
        atomic_fetch_sub(&t->held_of[sc->tenant], 1);
        free(sc);
    }
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
    sess_objects_drop(t, &objects);
    cont_drop(sc);
    return 0;
}

#define FOLLOWED_MAX 64u /* origins of a session that has ended its use, but not itself: more are waited for */

/* Needs mu, as all below. */
static bool has_open(const struct sess *s, uint64_t cont_id)
{
    const struct sess_cont *sc;
    uint32_t pos = 0;

    while ((sc = idmap_next(&s->conts, &pos)))
        if (sc->id == cont_id)
            return true;
    return false;
}

/* Has the client come by way of another session that has the container open, later than with this origin? */
static bool came_elsewhere(const struct sess_table *t, const struct sess *s, const struct sess_origin *g,
                           uint64_t cont_id)
{
    if (!once_client_is_fenced(g->once, g->era))
        return false;
    list_for_each(it, &t->sessions) {
        const struct sess *o = list_entry(it, struct sess, link);
        if (o == s || !o->origins_alive || !has_open(o, cont_id))
            continue;
        for (uint32_t i = 0; i < o->norigins; i++)
            if (o->origins[i] && o->origins[i]->once == g->once && !once_client_is_fenced(g->once, o->origins[i]->era))
                return true;
    }
    return false;
}

/*
 * An agent that was killed leaves its session behind until the lease is over, while its hosts go on by way of the next
 * one. Once all of them have come there nobody is left who could hold a lock by the first.
 */
static bool was_left(const struct sess_table *t, const struct sess *s, uint64_t cont_id)
{
    if (!s->origins_alive || s->origins_alive > FOLLOWED_MAX)
        return false;
    for (uint32_t i = 0; i < s->norigins; i++)
        if (s->origins[i] && !came_elsewhere(t, s, s->origins[i], cont_id))
            return false;
    return true;
}

uint32_t sess_cont_mounts(struct sess_table *t, uint64_t cont_id)
{
    uint32_t n = 0;

    scoped_lock(&t->mu);
    list_for_each(it, &t->sessions) {
        const struct sess *s = list_entry(it, struct sess, link);
        bool agent = !strcmp(s->who.purpose, "agent"); /* which may have mounts behind it */
        if ((agent || !strcmp(s->who.purpose, "mount")) && has_open(s, cont_id))
            n += !agent || !was_left(t, s, cont_id);
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
