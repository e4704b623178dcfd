/* An engine without a data path: what open needs until its files are in the build (they replace this one). */
#include "local.h"

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

/* A bare list of extents: u64 block, u32 count. */
int chunk_for_each_extent(const void *value, size_t len, int (*fn)(void *, uint64_t, uint32_t), void *user)
{
    struct rbuf r = rbuf_of(value, len);
    while (rbuf_left(&r)) {
        uint64_t block = rbuf_u64(&r);
        uint32_t n = rbuf_u32(&r);
        int err = r.err ? r.err : fn(user, block, n);
        if (err)
            return err;
    }
    return 0;
}
