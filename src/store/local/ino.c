/*
 * Numbers of objects and containers come from one counter. The index holds a mark; numbers below mark + NS_INO_WINDOW
 * may be in use, and none above is handed out before a higher mark is durable. An open after a crash therefore goes on
 * at mark + NS_INO_WINDOW: a number that a client may have seen is not used again, even if its object did not survive.
 * A clean close leaves the exact number and says so.
 *
 * The store's history (pst_store_history) goes with that: an open that follows neither a clean close nor a
 * process of which all is there (recent.c) begins a new one.
 */
#include "ns.h"
#include "parts.h"

#include "base/endian.h"
#include "base/rng.h"

#include <errno.h>

static struct key ino_key(void)
{
    struct key k = key_begin(KEY_SYSTEM);
    key_bytes(&k, "ino", 3);
    return k;
}

static int ino_write_mark(struct engine *e, uint64_t mark, bool clean)
{
    struct key k = ino_key();
    uint8_t v[9];
    le64 m = put_le64(mark);
    struct txn *t = txn_new(e);
    uint64_t lsn;

    if (!t)
        return -ENOMEM;
    memcpy(v, m.b, 8);
    v[8] = clean;
    txn_put(t, &k, v, sizeof v);
    txn_set_reserved(t); /* a full store opens, so that space can be made */
    int r = txn_commit(t, &lsn);
    return r ? r : eng_sync(e, lsn);
}

static int ino_read(struct engine *e, uint64_t *ret, bool *ret_clean)
{
    struct key k = ino_key();
    struct wbuf v = {0};
    int r = idx_get(e, NULL, &k, &v);

    if (r == 0) {
        struct rbuf rb = rbuf_of(v.data, v.len);
        uint64_t mark = rbuf_u64(&rb);
        bool clean = rbuf_u8(&rb);
        if (rbuf_end(&rb) || mark <= PST_ROOT_INO || mark > UINT64_MAX - NS_INO_WINDOW)
            r = -EIO;
        else
            *ret = clean ? mark : mark + NS_INO_WINDOW;
        *ret_clean = clean;
    }
    wbuf_done(&v);
    return r;
}

int ino_bound(struct engine *e, uint64_t *ret)
{
    bool clean;
    return ino_read(e, ret, &clean);
}

int ino_set_bound(struct engine *e, uint64_t next)
{
    return ino_write_mark(e, next, true);
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
    uint64_t next = PST_ROOT_INO + 1;
    bool clean = false;
    int r = ino_read(ns->e, &next, &clean);

    if (r == 0 || r == -ENOENT)
        r = history_open(ns, clean || recent_complete(ns->e));
    if (!r) {
        recent_renewed(ns->e);
        r = ino_write_mark(ns->e, next, false);
    }
    if (r)
        return r;
    ns->next_ino = ns->ino_durable = next;
    return 0;
}

void ino_close(struct ns *ns)
{
    int r = ino_write_mark(ns->e, ns->next_ino, true);
    if (r)
        log_debug("the mark of object numbers was not written: %d", r); /* the next open leaves a gap instead */
}

int ino_new(struct ns *ns, uint64_t *ret)
{
    if (ns->next_ino >= ns->ino_durable + NS_INO_WINDOW) {
        int r = ino_write_mark(ns->e, ns->next_ino, false);
        if (r)
            return r;
        ns->ino_durable = ns->next_ino;
    }
    *ret = ns->next_ino++;
    return 0;
}
