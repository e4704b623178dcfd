/*
 * Numbers of objects and containers. One counter counts runs of NS_INO_RUN numbers; a container takes a run when it has
 * used up its last one, and a new container takes one for its own number. Which numbers a run has is a permutation of
 * the counter under a key that the index keeps: who sees the numbers of some containers learns nothing of what was made
 * in the others, and objects made one after another are neighbours in the index.
 *
 * The index holds a mark of the counter; runs below mark + NS_INO_WINDOW may be in use, and none above is taken before
 * a higher mark is durable. An open after a crash therefore goes on at mark + NS_INO_WINDOW: a number that a client may
 * have seen is not used again, even if its object did not survive. A clean close leaves the exact mark and says so.
 *
 * Stores from before there were runs have numbers that are the counter's own, below their mark: NS_INO_FLAG tells them
 * apart.
 *
 * The store's history (pst_store_history) goes with the mark: an open that follows neither a clean close nor a
 * process of which all is there (recent.c) begins a new one.
 */
#include "ns.h"
#include "parts.h"

#include "base/crypto.h"
#include "base/endian.h"
#include "base/rng.h"

#include <errno.h>

#define HALF_BITS 25u          /* a run is named by two halves, above the bits of NS_INO_RUN */
#define HALF_MASK ((1u << HALF_BITS) - 1)
#define ROUNDS    8

_Static_assert(NS_INO_RUN == 1u << (62 - 2 * HALF_BITS),
               "a number is the flag, the two halves and the place in the run");

static struct key ino_key(void)
{
    struct key k = key_begin(KEY_SYSTEM);
    key_bytes(&k, "ino", 3);
    return k;
}

/* ---- the permutation: a Feistel network over HMAC-SHA-256 ---- */

static int round_bits(const struct ino_mark *m, uint8_t round, uint32_t half, uint32_t *ret)
{
    const uint8_t in[5] = {round, (uint8_t)(half >> 24), (uint8_t)(half >> 16), (uint8_t)(half >> 8), (uint8_t)half};
    const struct pst_bytes part = {in, sizeof in};
    uint8_t mac[PST_HMAC_BYTES];
    int r = pst_hmac(m->key, sizeof m->key, &part, 1, mac);

    if (!r)
        *ret = ((uint32_t)mac[0] << 24 | (uint32_t)mac[1] << 16 | (uint32_t)mac[2] << 8 | mac[3]) & HALF_MASK;
    return r;
}

/* The halves of the run's name, from those of its place in the counter. */
int ino_of_run(const struct ino_mark *m, uint64_t run, uint64_t *ret)
{
    uint32_t left = (uint32_t)(run >> HALF_BITS) & HALF_MASK, right = (uint32_t)run & HALF_MASK, bits;

    for (uint8_t i = 0; i < ROUNDS; i++) {
        int r = round_bits(m, i, right, &bits);
        if (r)
            return r;
        bits ^= left;
        left = right;
        right = bits;
    }
    *ret = NS_INO_FLAG | ((uint64_t)left << HALF_BITS | right) * NS_INO_RUN;
    return 0;
}

int ino_run_of(const struct ino_mark *m, uint64_t ino, uint64_t *ret)
{
    uint64_t run = ino / NS_INO_RUN;
    uint32_t left = (uint32_t)(run >> HALF_BITS) & HALF_MASK, right = (uint32_t)run & HALF_MASK, bits;

    if (!(ino & NS_INO_FLAG)) {
        *ret = ino;
        return 0;
    }
    for (uint8_t i = ROUNDS; i-- > 0;) {
        int r = round_bits(m, i, left, &bits);
        if (r)
            return r;
        bits ^= right;
        right = left;
        left = bits;
    }
    *ret = (uint64_t)left << HALF_BITS | right;
    return 0;
}

/* ---- the mark ---- */

int ino_mark_write(struct engine *e, const struct ino_mark *m)
{
    struct key k = ino_key();
    uint8_t v[9 + sizeof m->key];
    le64 next = put_le64(m->next);
    struct txn *t = txn_new(e);
    uint64_t lsn;

    if (!t)
        return -ENOMEM;
    memcpy(v, next.b, 8);
    v[8] = m->clean;
    memcpy(v + 9, m->key, sizeof m->key);
    txn_put(t, &k, v, sizeof v);
    txn_set_reserved(t); /* a full store opens, so that space can be made */
    int r = txn_commit(t, &lsn);
    return r ? r : eng_sync(e, lsn);
}

static int mark_decode(const struct wbuf *v, struct ino_mark *ret)
{
    struct rbuf rb = rbuf_of(v->data, v->len);
    struct ino_mark m = {.next = rbuf_u64(&rb)};

    m.clean = rbuf_u8(&rb);
    if (v->len == 9)
        rng_secret(m.key, sizeof m.key); /* from before there were runs */
    else
        rbuf_get(&rb, m.key, sizeof m.key);
    if (rbuf_end(&rb) || m.next <= PST_ROOT_INO || m.next > NS_INO_RUNS - NS_INO_WINDOW)
        return -EIO;
    if (!m.clean)
        m.next += NS_INO_WINDOW;
    *ret = m;
    return 0;
}

int ino_mark_read(struct engine *e, struct ino_mark *ret)
{
    struct key k = ino_key();
    struct wbuf v = {0};
    int r = idx_get(e, NULL, &k, &v);

    if (r == 0)
        r = mark_decode(&v, ret);
    wbuf_done(&v);
    return r;
}

void ino_mark_begin(struct ino_mark *ret)
{
    *ret = (struct ino_mark){.next = PST_ROOT_INO + 1, .clean = true};
    rng_secret(ret->key, sizeof ret->key);
}

/* The mark is written after it: who comes after a crash in between begins another history once more. */
static int history_open(struct ns *ns, bool clean)
{
    struct key k = key_begin(KEY_SYSTEM);
    struct wbuf v = {0};
    struct rbuf rb;
    struct txn *t;
    le64 w;
    int r;

    key_bytes(&k, "history", 7);
    r = idx_get(ns->e, NULL, &k, &v);
    if (r == 0) {
        rb = rbuf_of(v.data, v.len);
        ns->history = rbuf_u64(&rb);
    }
    wbuf_done(&v);
    if ((r && r != -ENOENT) || (clean && ns->history))
        return r;
    do
        rng_secret(&ns->history, sizeof ns->history);
    while (!ns->history);
    w = put_le64(ns->history);
    t = txn_new(ns->e);
    if (!t)
        return -ENOMEM;
    txn_put(t, &k, w.b, sizeof w.b);
    txn_set_reserved(t);
    return txn_commit(t, NULL); /* durable with the mark */
}

uint64_t local_history(struct pst_store *st)
{
    struct ns *ns = engine_of(st)->ns;
    return ns ? ns->history : 0;
}

int ino_open(struct ns *ns)
{
    struct ino_mark *m = &ns->ino;
    int r = ino_mark_read(ns->e, m);

    if (r == -ENOENT) {
        ino_mark_begin(m);
        m->clean = false;
        r = 0;
    }
    if (!r)
        r = history_open(ns, m->clean || recent_complete(ns->e));
    if (r)
        return r;
    recent_renewed(ns->e);
    m->clean = false;
    ns->ino_durable = m->next;
    return ino_mark_write(ns->e, m);
}

void ino_close(struct ns *ns)
{
    ns->ino.clean = true;
    int r = ino_mark_write(ns->e, &ns->ino);
    if (r)
        log_debug("the mark of object numbers was not written: %d", r); /* the next open leaves a gap instead */
}

static int run_new(struct ns *ns, uint64_t *ret)
{
    if (ns->ino.next >= NS_INO_RUNS - NS_INO_WINDOW)
        return -ENOSPC;
    if (ns->ino.next >= ns->ino_durable + NS_INO_WINDOW) {
        int r = ino_mark_write(ns->e, &ns->ino);
        if (r)
            return r;
        ns->ino_durable = ns->ino.next;
    }
    int r = ino_of_run(&ns->ino, ns->ino.next, ret);
    if (!r)
        ns->ino.next++;
    return r;
}

int ino_new(struct ns *ns, uint64_t cont, uint64_t *ret)
{
    struct ns_cont *c = cont ? cont_find(ns, cont) : NULL;

    if (!c)
        return cont ? -ENOENT : run_new(ns, ret);
    if (c->ino_next % NS_INO_RUN == 0) {
        int r = run_new(ns, &c->ino_next);
        if (r)
            return r;
    }
    *ret = c->ino_next++;
    return 0;
}
