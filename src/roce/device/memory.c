/* Memory in memfds, which peers on this machine can map: of the device's allocator, or lent by the program. */
#include "dev.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

int uroce_mem_alloc(struct uroce_device *dev, size_t len, void **ret)
{
    int r = dev_check_fork(dev);
    if (r)
        return r;
    if (len == 0 || len > SIZE_MAX / 2)
        return -EINVAL;
    len = align_up(len, (size_t)sysconf(_SC_PAGESIZE));
    struct dev_mem *m = calloc(1, sizeof *m);
    if (!m)
        return -ENOMEM;
    m->len = len;
    m->addr = MAP_FAILED;
    m->fd = memfd_create("uroce", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (m->fd >= 0 && ftruncate(m->fd, (off_t)len) == 0 && fcntl(m->fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0)
        m->addr = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
    if (m->addr == MAP_FAILED) {
        r = -errno;
        if (m->fd >= 0)
            close(m->fd);
        free(m);
        return r;
    }
    dev_lock(dev);
    list_push_back(&dev->memory, &m->link);
    dev_links_offer(dev);
    dev_unlock(dev);
    atomic_fetch_add(&dev->objects, 1);
    *ret = m->addr;
    return 0;
}

int uroce_mem_free(struct uroce_device *dev, void *addr)
{
    int r = dev_check_fork(dev);
    if (r)
        return r;
    struct dev_mem *found = NULL;
    dev_lock(dev);
    for (struct list *l = dev->memory.next; l != &dev->memory && !found; l = l->next)
        if (container_of(l, struct dev_mem, link)->addr == addr && !container_of(l, struct dev_mem, link)->lent)
            found = container_of(l, struct dev_mem, link);
    if (found) {
        list_del(&found->link);
        dev_links_withdraw(dev, found);
    }
    dev_unlock(dev);
    if (!found)
        return -EINVAL;
    munmap(found->addr, found->len);
    close(found->fd);
    free(found);
    atomic_fetch_sub(&dev->objects, 1);
    return 0;
}

/* ---- lent ---- */

#define LENT_MAX 64 /* a peer maps no more, and each holds a descriptor */

struct loan {
    void *addr;
    size_t len;
    int fd;
};

/* dev->lock */
static struct dev_mem *find_lent(struct uroce_device *dev, const void *addr)
{
    list_for_each (l, &dev->memory) {
        struct dev_mem *m = container_of(l, struct dev_mem, link);
        if (m->addr == addr && m->lent)
            return m;
    }
    return NULL;
}

/* dev->lock */
static uint32_t lent_number(const struct uroce_device *dev)
{
    uint32_t n = 0;
    list_for_each (l, &dev->memory)
        n += container_of(l, struct dev_mem, link)->lent > 0;
    return n;
}

/* Where it fails, peers read the memory as any other. */
static void lend(struct uroce_device *dev, void *ctx)
{
    const struct loan *loan = ctx;
    if (dev_check_fork(dev))
        return;
    struct dev_mem *m = calloc(1, sizeof *m);
    int fd = fcntl(loan->fd, F_DUPFD_CLOEXEC, 0);
    dev_lock(dev);
    struct dev_mem *before = find_lent(dev, loan->addr);
    if (before) {
        before->lent++;
    } else if (m && fd >= 0 && lent_number(dev) < LENT_MAX) {
        *m = (struct dev_mem){.addr = loan->addr, .len = loan->len, .fd = fd, .lent = 1};
        list_push_back(&dev->memory, &m->link);
        dev_links_offer(dev);
        m = NULL;
        fd = -1;
    }
    dev_unlock(dev);
    free(m);
    if (fd >= 0)
        close(fd);
}

static void take_back(struct uroce_device *dev, void *ctx)
{
    if (dev_check_fork(dev))
        return;
    dev_lock(dev);
    struct dev_mem *m = find_lent(dev, ctx);
    if (m && --m->lent)
        m = NULL;
    if (m) {
        list_del(&m->link);
        dev_links_withdraw(dev, m);
    }
    dev_unlock(dev);
    if (m)
        close(m->fd);
    free(m);
}

int uroce_mem_lend(void *addr, size_t len, int memfd)
{
    struct loan loan = {addr, len, memfd};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int seals = fcntl(memfd, F_GET_SEALS);
    if (!addr || !len || len % page || (uintptr_t)addr % page || seals < 0 || !(seals & F_SEAL_SHRINK))
        return -EINVAL;
    dev_each(lend, &loan);
    return 0;
}

void uroce_mem_take_back(void *addr)
{
    dev_each(take_back, addr);
}

void dev_mem_close(struct uroce_device *dev)
{
    for (struct list *l; (l = list_pop_front(&dev->memory));) {
        struct dev_mem *m = container_of(l, struct dev_mem, link);
        close(m->fd);
        free(m);
    }
}
