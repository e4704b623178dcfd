/* What all changes to data share: one transaction under the object's lock, claimed blocks, reply records. */
#include "data.h"

#include "ns.h"

#include <errno.h>
#include <string.h>

/* Kinds of replies of the namespace are below (ns.h); a retry that is another kind of request is refused. */
#define REPLY_DATA 0x80u

/* ---- changes ---- */

int change_begin(struct change *c, struct engine *e, uint64_t cont, uint64_t ino)
{
    int r;

    *c = (struct change){.e = e, .cont = cont, .locked = true};
    eng_lock_inode(e, cont, ino);
    r = inode_get(e, cont, ino, &c->i);
    if (r) {
        eng_unlock_inode(e, cont, ino);
        c->locked = false;
        return r;
    }
    c->t = txn_new(e);
    if (!c->t) {
        change_end(c);
        return -ENOMEM;
    }
    return 0;
}

void change_within(struct change *c, struct engine *e, uint64_t cont, struct txn *t, const struct inode *i)
{
    *c = (struct change){.e = e, .cont = cont, .t = t, .i = *i, .within = true};
}

void change_end(struct change *c)
{
    for (uint32_t k = 0; k < c->nmaps; k++)
        chunk_unref(c->maps[k].m);
    free(c->maps);
    c->maps = NULL;
    c->nmaps = c->maps_cap = 0;
    if (!c->locked)
        return;
    txn_drop(c->t);
    eng_unlock_inode(c->e, c->cont, c->i.a.ino);
    inode_done(&c->i);
    c->locked = false;
}

/* The entry of a chunk; read from the index at the first time. */
static int entry_of(struct change *c, uint64_t index, struct change_map **ret)
{
    struct change_map *x;
    int r;

    for (uint32_t k = c->nmaps; k > 0; k--) {
        if (c->maps[k - 1].index == index) {
            *ret = &c->maps[k - 1];
            return 0;
        }
    }
    if (c->nmaps == c->maps_cap) {
        uint32_t cap = c->maps_cap ? c->maps_cap * 2 : 4;
        x = realloc(c->maps, cap * sizeof *x);
        if (!x)
            return -ENOMEM;
        c->maps = x;
        c->maps_cap = cap;
    }
    x = &c->maps[c->nmaps];
    *x = (struct change_map){.index = index};
    r = map_get(c->e, c->cont, &c->i.a, index, false, &x->m);
    if (r)
        return r;
    c->nmaps++;
    *ret = x;
    return 0;
}

int change_look(struct change *c, uint64_t index, const struct chunk_map **ret)
{
    struct change_map *x;
    int r = entry_of(c, index, &x);

    if (r)
        return r;
    *ret = x->m;
    return 0;
}

static void give_back(void *user, uint64_t phys, uint32_t n, bool unwritten)
{
    struct change *c = user;
    struct data_op *o = c->steal;

    c->blocks -= n;
    if (!o || !unwritten) {
        txn_free_extent(c->t, phys, n);
        return;
    }
    if (op_room_runs(o, o->nruns + 1))
        c->err = -ENOMEM;
    else
        o->runs[o->nruns++] = (struct chunk_run){.phys = phys, .n = n};
}

static void changed(struct change *c, struct change_map *x, struct chunk_map *m)
{
    c->bytes += m ? m->bytes : sizeof *x;
    chunk_unref(x->m);
    x->m = m;
    x->changed = true;
}

int change_blocks(struct change *c, uint64_t index, uint32_t first, uint32_t n, const struct chunk_run *runs,
                  size_t nruns, const uint32_t *crcs, uint32_t in_use)
{
    struct change_map *x;
    struct chunk_map *m;
    int r = entry_of(c, index, &x);

    if (!r && x->m && x->m->meta_len) /* in a filter's form: only as a whole */
        r = -ENOTSUP;
    if (!r)
        r = chunk_edit(x->m, first, n, runs, nruns, crcs, give_back, c, &m);
    if (r)
        return r;
    if (in_use > m->in_use)
        m->in_use = in_use;
    if (nruns)
        c->blocks += n;
    changed(c, x, m);
    return c->err;
}

int change_chunk(struct change *c, uint64_t index, struct chunk_map *m)
{
    struct change_map *x;
    int r = entry_of(c, index, &x);

    if (r) {
        chunk_unref(m);
        return r;
    }
    for (uint32_t k = 0; x->m && k < x->m->nexts; k++)
        give_back(c, x->m->exts[k].phys, x->m->exts[k].n, x->m->exts[k].unwritten);
    c->blocks += chunk_blocks(m);
    changed(c, x, m);
    return c->err;
}

int change_clamp(struct change *c, uint64_t index, uint32_t in_use)
{
    struct change_map *x;
    struct chunk_map *m;
    int r = entry_of(c, index, &x);

    if (r || !x->m || x->m->in_use <= in_use)
        return r;
    r = chunk_edit(x->m, 0, 0, NULL, 0, NULL, NULL, NULL, &m);
    if (r)
        return r;
    m->in_use = in_use;
    changed(c, x, m);
    return 0;
}

/* A record with nothing in it is none. */
static bool worth_keeping(const struct chunk_map *m)
{
    return m && (m->nexts || m->meta_len);
}

int change_put(struct change *c)
{
    struct wbuf w = {0};
    int r = usage_add(c->t, c->cont, c->blocks * (int64_t)PST_BLOCK, 0);

    if (r)
        return r;
    c->i.a.change++;
    c->i.a.used += (uint64_t)(c->blocks * (int64_t)PST_BLOCK);
    c->blocks = 0;
    for (uint32_t k = 0; k < c->nmaps && !w.err; k++) {
        struct change_map *x = &c->maps[k];
        struct key key = chunk_key(c->cont, c->i.a.ino, x->index);
        if (!x->changed)
            continue;
        if (!worth_keeping(x->m)) {
            chunk_unref(x->m);
            x->m = NULL;
            txn_del(c->t, &key);
            continue;
        }
        x->m->version = c->i.a.change;
        w.len = 0;
        chunk_encode(x->m, &w);
        txn_put(c->t, &key, w.data, w.len);
    }
    if (!w.err && !c->within)
        inode_put(c->t, c->cont, &c->i);
    r = w.err;
    wbuf_done(&w);
    return r;
}

static int put_reply(struct change *c, const struct pst_op *op)
{
    struct wbuf w = {0};
    int r;

    if (!op->ctx.id.seq)
        return 0;
    wbuf_u8(&w, (uint8_t)(REPLY_DATA | op->kind));
    wbuf_u64(&w, (uint64_t)op->result);
    wbuf_u64(&w, op->offset);
    wbuf_u64(&w, op->version);
    attr_encode(&w, &c->i.a);
    r = w.err;
    if (!r)
        reply_put(c->t, &op->ctx.id, w.data, w.len);
    wbuf_done(&w);
    return r;
}

int change_commit(struct change *c, struct data_op *o, bool reply, uint64_t *ret_lsn)
{
    int r = change_put(c);

    if (!r && reply)
        r = put_reply(c, o->op);
    for (uint32_t k = 0; !r && o && k < o->nruns; k++)
        txn_claimed_extent(c->t, o->runs[k].phys, o->runs[k].n);
    if (!r) {
        if (o && o->nruns)
            eng_data_written(c->e);
        if (o)
            o->nruns = 0; /* they belong to the transaction */
        r = txn_commit(take_ptr(c->t), ret_lsn);
    } else {
        txn_drop(take_ptr(c->t));
    }
    for (uint32_t k = 0; !r && k < c->nmaps; k++)
        map_put(c->e, c->cont, c->i.a.ino, c->i.a.change, c->maps[k].index, c->maps[k].m);
    if (!r && o)
        o->op->attr = c->i.a;
    return r;
}

/* ---- reply records ---- */

int reply_replay(struct data_op *o)
{
    struct pst_op *op = o->op;
    struct wbuf v = {0};
    struct rbuf b;
    int r = op->ctx.id.seq ? reply_find(o->e, &op->ctx.id, &v) : 0;

    if (r == 1) {
        struct pst_attr attr;
        b = rbuf_of(v.data, v.len);
        uint8_t kind = rbuf_u8(&b);
        int64_t result = (int64_t)rbuf_u64(&b);
        uint64_t offset = rbuf_u64(&b), version = rbuf_u64(&b);
        attr_decode(&b, &attr);
        if (rbuf_end(&b) || kind != (REPLY_DATA | op->kind)) {
            r = -EINVAL;
        } else {
            op->result = result;
            op->offset = offset;
            op->version = version;
            op->attr = attr;
        }
    }
    wbuf_done(&v);
    return r;
}
