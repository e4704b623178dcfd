/* An engine without a data path: what open needs until its files are in the build (they replace this one). */
#include "local.h"

#include <errno.h>

int data_open(struct engine *e)
{
    (void)e;
    return 0;
}

void data_close(struct engine *e)
{
    (void)e;
}

void data_stats(struct engine *e, pst_stat_fn fn, void *user)
{
    (void)e, (void)fn, (void)user;
}

int data_check(struct engine *e, struct check *c)
{
    (void)e, (void)c;
    return 0;
}

/* Without data a file is one hole. */
int data_truncate(struct txn *t, struct engine *e, uint64_t cont, struct inode *i, uint64_t size)
{
    (void)t, (void)e, (void)cont;
    i->a.size = size;
    return 0;
}

void data_delete(struct txn *t, uint64_t cont, const struct inode *i)
{
    (void)t, (void)cont, (void)i;
}

int data_collect(struct engine *e, int max)
{
    (void)e, (void)max;
    return 0;
}

int data_queue_open(struct pst_store *st, uint32_t depth, struct pst_queue **ret)
{
    (void)st, (void)depth, (void)ret;
    return -EOPNOTSUPP;
}

void data_queue_close(struct pst_queue *q)
{
    (void)q;
}

int data_queue_submit(struct pst_queue *q, struct pst_op *op)
{
    (void)q, (void)op;
    return -EOPNOTSUPP;
}

int data_queue_reap(struct pst_queue *q, struct pst_op **ret_ops, int max, uint64_t timeout_ns)
{
    (void)q, (void)ret_ops, (void)max, (void)timeout_ns;
    return -EOPNOTSUPP;
}

int data_queue_fd(struct pst_queue *q)
{
    (void)q;
    return -1;
}

int64_t data_scrub(struct pst_store *st, void (*report)(void *, const char *, const char *, uint64_t, uint64_t, uint64_t),
                   void *user, const volatile bool *cancel)
{
    (void)st, (void)report, (void)user, (void)cancel;
    return 0;
}
