/* Capability keys and data tickets of the session table. */
#include "session_priv.h"

#include "base/crypto.h"
#include "base/rng.h"

#include <errno.h>

/* ---- keys ---- */

bool sess_key_end(struct sess_table *t, struct sess_cont *sc)
{
    if (!sc->key_id)
        return false;
    idmap_remove(&t->keys, sc->key_id);
    sc->key_id = 0;
    pst_wipe(sc->key, sizeof sc->key);
    atomic_fetch_add(&t->generation, 1);
    return true;
}

int sess_key_mint(struct sess_table *t, struct sess *s, struct sess_cont *sc, uint64_t *ret_key_id,
                  uint8_t ret_key[SESS_KEY_BYTES])
{
    scoped_lock(&t->mu);
    if (!atomic_load(&s->alive) || idmap_get(&s->conts, sc->handle) != sc)
        return -ESTALE;
    if (!sc->key_id) {
        int r = idmap_add(&t->keys, t->next_key_id, sc);
        if (r)
            return r;
        sc->key_id = t->next_key_id++;
        rng_secret(sc->key, sizeof sc->key);
    }
    *ret_key_id = sc->key_id;
    memcpy(ret_key, sc->key, sizeof sc->key);
    return 0;
}

int sess_key_find(struct sess_table *t, uint64_t key_id, uint8_t ret_key[SESS_KEY_BYTES], struct sess_cont **ret_cont)
{
    struct sess_cont *sc;

    scoped_lock(&t->mu);
    sc = idmap_get(&t->keys, key_id);
    if (!sc)
        return key_id >= t->first_key_id && key_id < t->next_key_id ? -EKEYREVOKED : -ENOKEY;
    memcpy(ret_key, sc->key, sizeof sc->key);
    *ret_cont = sess_cont_ref(sc);
    return 0;
}

bool sess_key_alive(struct sess_table *t, uint64_t key_id)
{
    scoped_lock(&t->mu);
    return idmap_get(&t->keys, key_id) != NULL;
}

uint64_t sess_generation(const struct sess_table *t)
{
    return atomic_load(&t->generation);
}

/* Needs mu. */
static uint32_t revoke_of(struct sess_table *t, struct sess *s, const uint64_t *cont_id)
{
    struct sess_cont *sc;
    uint32_t pos = 0, n = 0;

    while ((sc = idmap_next(&s->conts, &pos)))
        if (!cont_id || sc->id == *cont_id)
            n += sess_key_end(t, sc);
    return n;
}

uint32_t sess_revoke_session(struct sess_table *t, const void *id, size_t len)
{
    struct sess *s;

    if (len != SESS_ID_BYTES)
        return 0;
    scoped_lock(&t->mu);
    s = idmap_get(&t->by_id, sess_id_key(id));
    return s && pst_equal_ct(s->id, id, sizeof s->id) ? revoke_of(t, s, NULL) : 0;
}

uint32_t sess_revoke_cont(struct sess_table *t, uint64_t cont_id, const struct sess *only)
{
    uint32_t n = 0;

    scoped_lock(&t->mu);
    list_for_each(it, &t->sessions) {
        struct sess *s = list_entry(it, struct sess, link);
        if (!only || s == only)
            n += revoke_of(t, s, &cont_id);
    }
    return n;
}

uint32_t sess_revoke_key(struct sess_table *t, uint64_t key_id, const struct sess *only)
{
    struct sess_cont *sc;

    scoped_lock(&t->mu);
    sc = idmap_get(&t->keys, key_id);
    return sc && (!only || sc->of == only) ? sess_key_end(t, sc) : 0;
}

/* ---- tickets ---- */

void sess_ticket_end(struct sess_table *t, struct ticket *k)
{
    idmap_remove(&t->tickets, sess_id_key(k->bytes));
    list_del(&k->link);
    if (k->third.number)
        k->of->nthirds--;
    else
        k->of->ntickets--;
    free(k);
}

/* third NULL: of an ordinary connection; else its number is made. */
static int ticket_new(struct sess_table *t, struct sess *s, uint32_t shard, struct sess_third *third, uint64_t now_ns,
                      uint8_t ret_ticket[SESS_TICKET_BYTES])
{
    struct ticket *k = calloc(1, sizeof *k);
    int r;

    if (!k)
        return -ENOMEM;
    list_init(&k->link);
    k->of = s;
    k->shard = shard;
    k->expires_ns = now_ns + t->lim.ticket_ns;
    pthread_mutex_lock(&t->mu);
    list_for_each_safe(it, &t->ticket_order) {
        struct ticket *old = list_entry(it, struct ticket, link);
        if (old->expires_ns > now_ns)
            break;
        sess_ticket_end(t, old);
    }
    do {
        rng_secret(k->bytes, sizeof k->bytes);
        bool full = third ? s->nthirds >= t->lim.thirds : s->ntickets >= t->lim.tickets;
        r = !atomic_load(&s->alive) ? -ESTALE : full ? -EAGAIN : idmap_add(&t->tickets, sess_id_key(k->bytes), k);
    } while (r == -EEXIST);
    if (!r) {
        list_push_back(&t->ticket_order, &k->link);
        if (third) {
            third->number = ++t->last_third;
            k->third = *third;
            s->nthirds++;
        } else {
            s->ntickets++;
        }
        memcpy(ret_ticket, k->bytes, sizeof k->bytes);
    }
    pthread_mutex_unlock(&t->mu);
    if (r)
        free(k);
    return r == -EAGAIN ? sess_refused_as(t, REFUSE_LIMIT, r) : r;
}

int sess_ticket_new(struct sess_table *t, struct sess *s, uint32_t shard, uint64_t now_ns,
                    uint8_t ret_ticket[SESS_TICKET_BYTES])
{
    return ticket_new(t, s, shard, NULL, now_ns, ret_ticket);
}

int sess_third_new(struct sess_table *t, struct sess *s, uint32_t shard, uint64_t owner, uint64_t now_ns,
                   uint8_t ret_ticket[SESS_TICKET_BYTES], uint64_t *ret_number)
{
    struct sess_third third = {.owner = owner};
    int r = ticket_new(t, s, shard, &third, now_ns, ret_ticket);

    if (r == 0)
        *ret_number = third.number;
    return r;
}

int sess_ticket_use(struct sess_table *t, const void *ticket, size_t len, uint32_t shard, uint64_t now_ns,
                    struct sess **ret)
{
    return sess_ticket_take(t, ticket, len, shard, now_ns, ret, NULL);
}

int sess_ticket_take(struct sess_table *t, const void *ticket, size_t len, uint32_t shard, uint64_t now_ns,
                     struct sess **ret, struct sess_third *ret_third)
{
    struct sess_third third = {0};
    struct ticket *k;
    struct sess *s;
    enum refusal why = REFUSALS;

    if (len != SESS_TICKET_BYTES)
        return sess_refused_as(t, REFUSE_TICKET_UNKNOWN, -EACCES);
    pthread_mutex_lock(&t->mu);
    k = idmap_get(&t->tickets, sess_id_key(ticket));
    if (!k || !pst_equal_ct(k->bytes, ticket, sizeof k->bytes) || (k->third.number && !ret_third)) {
        why = REFUSE_TICKET_UNKNOWN;
    } else {
        s = k->of;
        third = k->third;
        if (now_ns >= k->expires_ns)
            why = REFUSE_TICKET_EXPIRED;
        else if (k->shard != shard)
            why = REFUSE_TICKET_SHARD;
        else if (now_ns >= s->expires_ns)
            why = REFUSE_SESSION;
        sess_ticket_end(t, k);
    }
    if (why == REFUSALS) {
        atomic_fetch_add(&s->refs, 1);
        *ret = s;
        if (ret_third)
            *ret_third = third;
    }
    pthread_mutex_unlock(&t->mu);
    return why == REFUSALS ? 0 : sess_refused_as(t, why, -EACCES);
}
