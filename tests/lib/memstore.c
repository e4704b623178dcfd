#include "memstore_node.h"

#include "store/perm.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

struct mqueue {
    struct pst_queue q;
    struct list link, waiting, done;
    uint32_t depth, count;
    int fd;
};

struct memstore *memstore_of(struct pst_store *st)
{
    return container_of(st, struct memstore, st);
}

static int64_t do_read(struct node *n, struct pst_op *op)
{
    uint64_t have = op->offset < n->a.size ? min_u64(op->length, n->a.size - op->offset) : 0, done = 0;

    for (uint32_t i = 0; i < op->iovcnt && done < have; i++) {
        size_t k = min_u64(op->iov[i].iov_len, have - done);
        memcpy(op->iov[i].iov_base, n->data + op->offset + done, k);
        done += k;
    }
    return (int64_t)have;
}

static int64_t do_write(struct memstore *m, struct node *n, struct pst_op *op)
{
    uint64_t at;

    if (op->flags & PST_OPF_APPEND)
        op->offset = n->a.size;
    at = op->offset;
    if (at + op->length > n->a.size && resize(n, at + op->length) < 0)
        return -EFBIG;
    for (uint32_t i = 0; i < op->iovcnt; at += op->iov[i].iov_len, i++)
        memcpy(n->data + at, op->iov[i].iov_base, op->iov[i].iov_len);
    touch(n);
    op->attr = n->a;
    m->n.largest_write = max_u64(m->n.largest_write, op->length);
    return (int64_t)op->length;
}

static int64_t execute(struct memstore *m, struct pst_op *op)
{
    struct node *n = node(m, op->ino);

    m->n.ops[op->kind]++;
    if (m->fail_left && m->fail_kinds >> op->kind & 1) {
        m->fail_left--;
        return m->fail_err;
    }
    if (op->kind == PST_OP_SYNCFS)
        return 0;
    if (!n)
        return -ENOENT;
    if (op->flags & PST_OPF_KILL_SETID)
        n->a.mode &= ~pst_perm_setid(n->a.mode);
    switch (op->kind) {
    case PST_OP_READ:
        return do_read(n, op);
    case PST_OP_WRITE:
        return do_write(m, n, op);
    case PST_OP_PUNCH:
        if (op->offset < n->a.size)
            memset(n->data + op->offset, 0, min_u64(op->length, n->a.size - op->offset));
        touch(n);
        op->attr = n->a;
        return 0;
    case PST_OP_ALLOCATE:
        if (!(op->flags & PST_OPF_KEEP_SIZE) && op->offset + op->length > n->a.size)
            return resize(n, op->offset + op->length);
        return 0;
    case PST_OP_SEEK_DATA:
        return op->offset < n->a.size ? (int64_t)op->offset : -ENXIO;
    case PST_OP_SEEK_HOLE:
        return op->offset < n->a.size ? (int64_t)n->a.size : -ENXIO;
    case PST_OP_FSYNC:
        return 0;
    case PST_OP_ATTR:
        op->attr = n->a;
        return 0;
    default:
        return -EOPNOTSUPP;
    }
}

static void kick(struct mqueue *q)
{
    uint64_t one = 1;

    if (write(q->fd, &one, sizeof one) < 0)
        abort();
}

static int m_queue_open(struct pst_store *st, uint32_t depth, struct pst_queue **ret)
{
    struct memstore *m = memstore_of(st);
    struct mqueue *q = calloc(1, sizeof *q);

    q->q.store = st;
    q->depth = depth;
    q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    list_init(&q->waiting);
    list_init(&q->done);
    scoped_lock(&m->lock);
    list_push_back(&m->queues, &q->link);
    *ret = &q->q;
    return 0;
}

static void m_queue_close(struct pst_queue *pq)
{
    struct mqueue *q = container_of(pq, struct mqueue, q);
    struct memstore *m = memstore_of(pq->store);

    scoped_lock(&m->lock);
    list_del(&q->link);
    close(q->fd);
    free(q);
}

static int m_queue_submit(struct pst_queue *pq, struct pst_op *op)
{
    struct mqueue *q = container_of(pq, struct mqueue, q);
    struct memstore *m = memstore_of(pq->store);

    scoped_lock(&m->lock);
    if (q->count == q->depth)
        return -EAGAIN;
    q->count++;
    if (m->backwards)
        list_push_front(&q->waiting, &op->link);
    else
        list_push_back(&q->waiting, &op->link);
    m->n.held += m->hold >> op->kind & 1;
    kick(q);
    return 0;
}

static int m_queue_reap(struct pst_queue *pq, struct pst_op **ret, int max, uint64_t timeout_ns)
{
    struct mqueue *q = container_of(pq, struct mqueue, q);
    struct memstore *m = memstore_of(pq->store);
    struct pollfd fd = {.fd = q->fd, .events = POLLIN};
    uint64_t count;
    int n = 0;

    if (timeout_ns)
        poll(&fd, 1, timeout_ns == UINT64_MAX ? -1 : (int)(timeout_ns / NSEC_PER_MSEC));
    scoped_lock(&m->lock);
    if (read(q->fd, &count, sizeof count) < 0)
        count = 0;
    list_for_each_safe (it, &q->waiting) {
        struct pst_op *op = list_entry(it, struct pst_op, link);
        if (n == max || m->hold >> op->kind & 1)
            continue;
        list_del(it);
        op->result = execute(m, op);
        ret[n++] = op;
        q->count--;
    }
    if (n == max)
        kick(q);
    return n;
}

static int m_queue_fd(struct pst_queue *pq)
{
    return container_of(pq, struct mqueue, q)->fd;
}

void memstore_hold(struct memstore *m, uint32_t kinds)
{
    scoped_lock(&m->lock);
    m->hold = kinds;
}

void memstore_release(struct memstore *m)
{
    scoped_lock(&m->lock);
    m->hold = 0;
    m->n.held = 0;
    list_for_each (it, &m->queues)
        kick(list_entry(it, struct mqueue, link));
}

void memstore_backwards(struct memstore *m, bool on)
{
    scoped_lock(&m->lock);
    m->backwards = on;
}

void memstore_fail(struct memstore *m, uint32_t kinds, int err, uint32_t count)
{
    scoped_lock(&m->lock);
    m->fail_kinds = kinds;
    m->fail_err = err;
    m->fail_left = count;
}

void memstore_counts(struct memstore *m, struct memstore_counts *ret)
{
    scoped_lock(&m->lock);
    *ret = m->n;
}

static void m_close(struct pst_store *st)
{
    struct memstore *m = memstore_of(st);

    while (!list_empty(&m->nodes))
        node_free(list_entry(m->nodes.next, struct node, link));
    pthread_mutex_destroy(&m->lock);
    free(m);
}

static int m_cont_open(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                       struct pst_cont **ret)
{
    (void)ctx, (void)pool, (void)label;
    *ret = &memstore_of(st)->cont;
    return 0;
}

static void m_cont_close(struct pst_cont *c)
{
    (void)c;
}

static const struct pst_store_ops data_ops = {
    .name = "mem", .close = m_close, .cont_open = m_cont_open, .cont_close = m_cont_close,
    .queue_open = m_queue_open, .queue_close = m_queue_close, .queue_submit = m_queue_submit,
    .queue_reap = m_queue_reap, .queue_fd = m_queue_fd,
};

static int m_open_store(const char *rest, const struct pst_option *o, size_t n, struct pst_store **ret, char *err,
                        size_t err_size)
{
    struct memstore *m = calloc(1, sizeof *m);

    (void)rest, (void)o, (void)n, (void)err, (void)err_size;
    m->ops = data_ops;
    memstore_names(&m->ops);
    m->st.ops = &m->ops;
    m->cont.store = &m->st;
    m->cont.info.id = 1;
    m->cont.info.props.chunk_size = PST_CHUNK_DEFAULT;
    pthread_mutex_init(&m->lock, NULL);
    list_init(&m->nodes);
    list_init(&m->queues);
    node_new(m, S_IFDIR | 0777, PST_ROOT_INO);
    *ret = &m->st;
    return 0;
}

const struct pst_backend memstore_backend = {"mem", m_open_store};
