/* Devices as the connection manager has them: opened once, with a protection domain for ids that bring none. */
#include "rdmacm_priv.h"

#include <fcntl.h>
#include <string.h>

pthread_mutex_t cma_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cma_device devices[CMA_DEVICES];
static int ndevices;

/* A child has nothing of its parent's: what it opens is its own. */
static void in_child(void)
{
    pthread_mutex_init(&cma_lock, NULL);
    ndevices = 0;
}

__attribute__((constructor)) static void init(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

static int open_one(struct ibv_device *from, struct cma_device *d)
{
    struct ibv_device_attr attr;
    *d = (struct cma_device){.verbs = ibv_open_device(from)};
    if (!d->verbs)
        return errno ? -errno : -ENODEV;
    d->native = vb_native(d->verbs);
    d->pd = d->native ? ibv_alloc_pd(d->verbs) : NULL;
    if (!d->pd || ibv_query_device(d->verbs, &attr)) {
        int e = d->native ? errno : ENODEV; /* another libibverbs is loaded */
        if (d->pd)
            ibv_dealloc_pd(d->pd);
        ibv_close_device(d->verbs);
        return -e;
    }
    d->max_initiator_depth = (uint8_t)min_u64((uint64_t)attr.max_qp_init_rd_atom, 255);
    d->max_responder_resources = (uint8_t)min_u64((uint64_t)attr.max_qp_rd_atom, 255);
    return 0;
}

/* cma_lock held. */
static int open_all(void)
{
    int n, r = 0;
    struct ibv_device **list = ibv_get_device_list(&n);
    if (!list)
        return -ENODEV;
    for (int i = 0; i < n && ndevices < CMA_DEVICES; i++) {
        int e = open_one(list[i], &devices[ndevices]);
        if (e)
            r = e;
        else
            ndevices++;
    }
    ibv_free_device_list(list);
    return ndevices ? 0 : r ? r : -ENODEV;
}

int cma_devices(struct cma_device **ret)
{
    scoped_lock(&cma_lock);
    int r = ndevices ? 0 : open_all();
    if (r)
        return r;
    *ret = devices;
    return ndevices;
}

void cma_use_device(struct cma_id *id, struct cma_device *dev)
{
    id->dev = dev;
    id->id.verbs = dev->verbs;
    id->id.port_num = 1;
    if (!id->id.pd)
        id->id.pd = dev->pd;
}

struct ibv_xrcd *cma_xrcd(struct cma_device *dev)
{
    struct ibv_xrcd_init_attr attr = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    scoped_lock(&cma_lock);
    if (!dev->xrcd)
        dev->xrcd = ibv_open_xrcd(dev->verbs, &attr);
    return dev->xrcd;
}

struct ibv_context **rdma_get_devices(int *num_devices)
{
    struct cma_device *d;
    int n = cma_devices(&d);
    struct ibv_context **list = n < 0 ? NULL : calloc((size_t)n + 1, sizeof(struct ibv_context *));
    if (n < 0)
        errno = -n;
    for (int i = 0; list && i < n; i++)
        list[i] = d[i].verbs;
    if (num_devices)
        *num_devices = list ? n : 0;
    return list;
}

void rdma_free_devices(struct ibv_context **list)
{
    free(list);
}
