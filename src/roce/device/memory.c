/* Memory in a memfd of the device, which peers on this machine can map. */
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
        if (container_of(l, struct dev_mem, link)->addr == addr)
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
