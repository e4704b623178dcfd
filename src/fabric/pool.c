#include "fab_int.h"

#include "fabric/export.h"

#include <sys/mman.h>

struct fab_pool {
    uint8_t *mem;
    size_t size;
    int memfd; /* that it is; -1 */
    struct fab_mr *mr;
    struct list free; /* the one used last is in front: its lines are warm */
    struct fab_buf *bufs;
};

/* Fresh memory is slow to touch and may be refused late: all pages are there before the first request. */
static int prefault(uint8_t *mem, size_t size)
{
#ifdef MADV_POPULATE_WRITE
    if (!madvise(mem, size, MADV_POPULATE_WRITE))
        return 0;
    if (errno == ENOMEM)
        return -ENOMEM;
#endif
    for (size_t at = 0; at < size; at += 4096)
        ((volatile uint8_t *)mem)[at] = 0;
    return 0;
}

int fab_pool_new(struct fab_shard *s, size_t buf_size, uint32_t count, uint32_t access, struct fab_pool **ret)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size;
    struct fab_pool *p;
    void *mem;
    int r = -ENOMEM;

    if (!buf_size || !count || buf_size > SIZE_MAX / 2 - page)
        return -EINVAL;
    buf_size = align_up(buf_size, page);
    if (__builtin_mul_overflow(buf_size, count, &size))
        return -ENOMEM;
    p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    list_init(&p->free);
    p->memfd = -1;
    p->size = size;
    p->bufs = calloc(count, sizeof *p->bufs);
    if (p->bufs)
        r = export_memory_or_private(fab_shares(s->f), size, &mem, &p->memfd);
    if (!r) {
        p->mem = mem;
        madvise(p->mem, size, MADV_HUGEPAGE);
        r = prefault(p->mem, size);
    }
    if (!r)
        r = fab_mr_reg_memfd(s, p->mem, size, access, p->memfd, &p->mr);
    if (r) {
        fab_pool_free(p);
        return r;
    }
    for (uint32_t i = 0; i < count; i++) {
        p->bufs[i] = (struct fab_buf){.data = p->mem + i * buf_size, .size = buf_size, .mr = p->mr, .pool = p};
        list_push_back(&p->free, &p->bufs[i].link);
    }
    *ret = p;
    return 0;
}

void fab_pool_free(struct fab_pool *p)
{
    if (!p)
        return;
    fab_mr_close(p->mr);
    if (p->mem)
        munmap(p->mem, p->size);
    if (p->memfd >= 0)
        close(p->memfd);
    free(p->bufs);
    free(p);
}

void fab_pool_memory(const struct fab_pool *p, void **ret_base, size_t *ret_len)
{
    *ret_base = p->mem;
    *ret_len = p->size;
}

struct fab_buf *fab_buf_get(struct fab_pool *p)
{
    struct list *l = list_pop_front(&p->free);

    return l ? list_entry(l, struct fab_buf, link) : NULL;
}

void fab_buf_put(struct fab_buf *b)
{
    list_push_front(&b->pool->free, &b->link);
}
