/* The parts of an operation that all kinds share: memory, requests, tickets. */
#include "queue.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* Grows an array that starts as the operation's own small one. */
static int room(void **p, uint32_t *cap, const void *small, size_t elem, uint32_t n, bool keep, uint32_t used)
{
    uint32_t want = *cap;
    void *q;

    if (n <= *cap)
        return 0;
    while (want < n)
        want *= 2;
    q = malloc(want * elem);
    if (!q)
        return -ENOMEM;
    if (keep && used)
        memcpy(q, *p, used * elem);
    if (*p != small)
        free(*p);
    *p = q;
    *cap = want;
    return 0;
}

int op_room_runs(struct data_op *o, uint32_t n)
{
    return room((void **)&o->runs, &o->runs_cap, o->runs1, sizeof *o->runs, n, true, o->nruns);
}

int op_room_segs(struct data_op *o, uint32_t n)
{
    return room((void **)&o->segs, &o->segs_cap, o->segs1, sizeof *o->segs, n, true, o->nsegs);
}

int op_room_iovs(struct data_op *o, uint32_t n)
{
    return room((void **)&o->iovs, &o->iovs_cap, o->iovs1, sizeof *o->iovs, n, true, o->niovs);
}

int op_room_crcs(struct data_op *o, uint32_t n)
{
    return room((void **)&o->crcs, &o->crcs_cap, o->crcs1, sizeof *o->crcs, n, false, 0);
}

int op_room_added(struct data_op *o, uint32_t n)
{
    if (o->added_cap == 0) {
        o->added = malloc(16 * sizeof *o->added);
        if (!o->added)
            return -ENOMEM;
        o->added_cap = 16;
    }
    return room((void **)&o->added, &o->added_cap, NULL, sizeof *o->added, n, true, o->nadded);
}

void op_init(struct data_op *o, struct queue *q)
{
    *o = (struct data_op){.q = q, .e = q->e};
    list_init(&o->link);
    o->runs = o->runs1;
    o->runs_cap = ARRAY_SIZE(o->runs1);
    o->segs = o->segs1;
    o->segs_cap = ARRAY_SIZE(o->segs1);
    o->iovs = o->iovs1;
    o->iovs_cap = ARRAY_SIZE(o->iovs1);
    o->crcs = o->crcs1;
    o->crcs_cap = ARRAY_SIZE(o->crcs1);
}

bool op_is_now(const struct data_op *o)
{
    return o->q->now;
}

void op_ticket(struct data_op *o)
{
    op_ticket_end(o);
    o->ticket = alloc_read_begin(o->e);
    o->has_ticket = true;
}

void op_ticket_end(struct data_op *o)
{
    if (o->has_ticket)
        alloc_read_end(o->e, o->ticket);
    o->has_ticket = false;
}

/* Leaves the operation as op_init made it, its larger arrays freed. */
void op_clear(struct data_op *o)
{
    edges_drop(o);
    op_unclaim(o);
    swap_return(o);
    op_ticket_end(o);
    if (o->linear.iov_base) {
        free(o->linear.iov_base);
        o->q->linear_bytes -= o->linear.iov_len;
        list_splice_back(&o->q->ready, &o->q->starved);
    }
    if (o->runs != o->runs1)
        free(o->runs);
    if (o->segs != o->segs1)
        free(o->segs);
    if (o->iovs != o->iovs1)
        free(o->iovs);
    if (o->crcs != o->crcs1)
        free(o->crcs);
    free(o->added);
}

uint8_t *op_block(struct data_op *o)
{
    struct queue *q = o->q;
    void *p = NULL;

    if (q->nblocks)
        return q->blocks[--q->nblocks];
    return posix_memalign(&p, PST_BLOCK, PST_BLOCK) ? NULL : p;
}

void op_block_free(struct data_op *o, uint8_t *b)
{
    struct queue *q = o->q;

    if (b && q->nblocks < ARRAY_SIZE(q->blocks))
        q->blocks[q->nblocks++] = b;
    else
        free(b);
}

enum data_next op_gather(struct data_op *o, bool copy_in)
{
    struct pst_op *op = o->op;
    size_t bytes = align_up(op->length, PST_BLOCK);
    void *p = NULL;

    o->iov = op->iov;
    o->iovcnt = op->iovcnt;
    if (op->iovcnt <= DATA_IOV_MAX || o->linear.iov_base) {
        if (o->linear.iov_base) {
            o->iov = &o->linear;
            o->iovcnt = 1;
        }
        return NEXT_GO;
    }
    if (o->q->linear_bytes && o->q->linear_bytes + bytes > DATA_LINEAR_BYTES)
        return NEXT_MEM;
    if (posix_memalign(&p, PST_BLOCK, bytes ? bytes : PST_BLOCK))
        return op_done(o, -ENOMEM);
    o->linear = (struct iovec){.iov_base = p, .iov_len = bytes};
    o->q->linear_bytes += bytes;
    if (copy_in)
        iov_to(op->iov, op->iovcnt, 0, p, op->length);
    o->iov = &o->linear;
    o->iovcnt = 1;
    return NEXT_GO;
}

bool op_reread(struct data_op *o, uint64_t phys)
{
    bool first = !o->reread;

    o->reread = true;
    if (first)
        posix_fadvise(o->e->data_fd, (off_t)(phys * PST_BLOCK), PST_BLOCK, POSIX_FADV_DONTNEED);
    return first;
}

int op_attr(struct data_op *o, struct inode *ret)
{
    struct inode i;
    int r = inode_get(o->e, o->cont, o->op->ino, &i);

    if (r)
        return r;
    if (!S_ISREG(i.a.mode)) {
        r = S_ISDIR(i.a.mode) ? -EISDIR : -EINVAL;
        inode_done(&i);
        return r;
    }
    o->attr = i.a;
    if (ret)
        *ret = i;
    else
        inode_done(&i);
    return 0;
}
