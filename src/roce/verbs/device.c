/* Devices: listed, opened, closed; what a fork does to them. */
#include "verbs_priv.h"

#include "base/log.h"
#include "stub.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static pthread_mutex_t vb_lock = PTHREAD_MUTEX_INITIALIZER;
static struct list devices = LIST_INIT(devices);   /* struct vb_device */
static struct list contexts = LIST_INIT(contexts); /* struct vb_context */

/*
 * A child starts anew: the parent's contexts answer ECHILD, what it opens itself is its own. The locks may have been
 * held by threads that the child has not.
 */
static void in_child(void)
{
    pthread_mutex_init(&vb_lock, NULL);
    for (struct list *l; (l = list_pop_front(&contexts));) {
        struct vb_context *ctx = container_of(l, struct vb_context, link);
        pthread_mutex_init(&ctx->lock, NULL);
        pthread_mutex_init(&ctx->events_lock, NULL);
    }
    list_for_each (l, &devices) {
        struct vb_device *d = container_of(l, struct vb_device, link);
        d->native = NULL;
        d->users = 0;
    }
}

__attribute__((constructor)) static void init(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

int stub_refuse(const char *name)
{
    return vb_refuse("%s: not there in user space: EOPNOTSUPP", name);
}

/* ---- the list ---- */

static struct vb_device *device_named(const char *name)
{
    list_for_each (l, &devices) {
        struct vb_device *d = container_of(l, struct vb_device, link);
        if (strcmp(d->ibv.name, name) == 0)
            return d;
    }
    return NULL;
}

/* The paths are those of the sysfs view (docs/verbs.md). */
static struct vb_device *device_new(const char *name, int index)
{
    struct vb_device *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    d->ibv.node_type = IBV_NODE_CA;
    d->ibv.transport_type = IBV_TRANSPORT_IB;
    snprintf(d->ibv.name, sizeof d->ibv.name, "%s", name);
    snprintf(d->ibv.dev_name, sizeof d->ibv.dev_name, "uverbs%d", index);
    snprintf(d->ibv.dev_path, sizeof d->ibv.dev_path, "/sys/class/infiniband_verbs/uverbs%d", index);
    snprintf(d->ibv.ibdev_path, sizeof d->ibv.ibdev_path, "/sys/class/infiniband/%s", name);
    d->index = index;
    list_push_back(&devices, &d->link);
    return d;
}

/* A setting of the user's is wrong. Programs ask for the list again and again. */
static void tell_once(const char *err)
{
    static atomic_bool told;
    if (!atomic_exchange(&told, true))
        log_warn("%s", err);
}

struct ibv_device **ibv_get_device_list(int *num_devices)
{
    struct uroce_device_info info[UROCE_DEVICES_MAX];
    char err[256];
    int n = uroce_list_devices(info, UROCE_DEVICES_MAX, err, sizeof err);
    if (num_devices)
        *num_devices = 0;
    if (*err && (n == -EINVAL || strncmp(err, "UROCE_", 6) == 0))
        tell_once(err);
    else if (n < 0)
        vb_debug("no device: %s", err);
    if (n == -EINVAL || n == -ENOMEM)
        return vb_null(n);
    n = n < 0 ? 0 : n;
    struct ibv_device **list = calloc((size_t)n + 1, sizeof(struct ibv_device *));
    if (!list)
        return vb_null(-ENOMEM);
    scoped_lock(&vb_lock);
    for (int i = 0; i < n; i++) {
        struct vb_device *d = device_named(info[i].name);
        if (!d)
            d = device_new(info[i].name, i);
        if (!d) {
            free(list);
            return vb_null(-ENOMEM);
        }
        d->guid = info[i].node_guid;
        list[i] = &d->ibv;
    }
    if (num_devices)
        *num_devices = n;
    return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

__be64 ibv_get_device_guid(struct ibv_device *device)
{
    return container_of(device, struct vb_device, ibv)->guid;
}

/* Indices of the kernel's devices count from 0. */
int ibv_get_device_index(struct ibv_device *device)
{
    return container_of(device, struct vb_device, ibv)->index;
}

/* ---- contexts ---- */

/* The device is opened by the first of its contexts. vb_lock. */
static int native_get(struct vb_device *d)
{
    char err[256] = "";
    struct uroce_config cfg = {.name = d->ibv.name, .congestion_control = -1};
    if (!d->native) {
        int r = uroce_open(&cfg, &d->native, err, sizeof err);
        if (r) {
            log_warn("%s: %s", d->ibv.name, err);
            return r;
        }
    }
    d->users++;
    return 0;
}

static void native_put(struct vb_device *d)
{
    if (--d->users)
        return;
    int r = uroce_close(d->native);
    if (r)
        vb_debug("%s stays open: %s", d->ibv.name, strerror(-r));
    d->native = NULL;
}

/*
 * Programs duplicate cmd_fd, hand it on, set flags: it is a file of its own that nobody reads. By its inode number
 * ibv_import_device finds the context again.
 */
static int open_descriptors(struct vb_context *ctx)
{
    struct stat st;
    struct ibv_context *c = &ctx->v.context;
    c->cmd_fd = memfd_create("uroce", MFD_CLOEXEC);
    if (c->cmd_fd < 0 || fstat(c->cmd_fd, &st))
        return -errno;
    ctx->inode = st.st_ino;
    int r = uroce_events_create(ctx->native, &ctx->events);
    if (!r)
        c->async_fd = uroce_events_fd(ctx->events);
    return r;
}

/* vb_lock. */
static void context_free(struct vb_context *ctx)
{
    if (ctx->events)
        uroce_events_destroy(ctx->events);
    if (ctx->v.context.cmd_fd >= 0)
        close(ctx->v.context.cmd_fd);
    list_del(&ctx->link);
    pthread_mutex_destroy(&ctx->lock);
    pthread_mutex_destroy(&ctx->events_lock);
    pthread_mutex_destroy(&ctx->v.context.mutex);
    ctx->magic = 0;
    free(ctx);
}

static struct vb_context *context_new(struct vb_device *dev)
{
    struct vb_context *ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        return vb_null(-ENOMEM);
    struct ibv_context *c = &ctx->v.context;
    vb_fill_ops(&ctx->v);
    ctx->magic = VB_MAGIC;
    ctx->dev = dev;
    c->device = &dev->ibv;
    c->cmd_fd = c->async_fd = -1;
    c->num_comp_vectors = 1;
    c->abi_compat = __VERBS_ABI_IS_EXTENDED;
    list_init(&ctx->link);
    for (int k = 0; k < VB_KINDS; k++)
        list_init(&ctx->objects[k]);
    pthread_mutex_init(&ctx->lock, NULL);
    pthread_mutex_init(&ctx->events_lock, NULL);
    pthread_mutex_init(&c->mutex, NULL);
    scoped_lock(&vb_lock);
    int r = native_get(dev);
    if (!r) {
        ctx->native = dev->native;
        r = open_descriptors(ctx);
        if (r)
            native_put(dev);
    }
    if (r) {
        context_free(ctx);
        return vb_null(r);
    }
    list_push_back(&contexts, &ctx->link);
    return ctx;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct vb_context *ctx = context_new(container_of(device, struct vb_device, ibv));
    return ctx ? &ctx->v.context : NULL;
}

int ibv_close_device(struct ibv_context *context)
{
    struct vb_context *ctx = vb_ctx(context);
    struct vb_device *dev = ctx->dev;
    vb_sweep(ctx);
    scoped_lock(&vb_lock);
    bool parents = ctx->native != dev->native; /* opened before a fork: its device is the parent's */
    context_free(ctx);
    if (!parents)
        native_put(dev);
    return 0;
}

struct ibv_context *ibv_import_device(int cmd_fd)
{
    struct vb_device *dev = NULL;
    struct stat st;
    if (fstat(cmd_fd, &st))
        return NULL;
    pthread_mutex_lock(&vb_lock);
    list_for_each (l, &contexts) {
        struct vb_context *ctx = container_of(l, struct vb_context, link);
        if (ctx->inode == st.st_ino)
            dev = ctx->dev;
    }
    pthread_mutex_unlock(&vb_lock);
    if (!dev) {
        vb_debug("import refused: descriptor %d is of no context of this process; others cannot be imported", cmd_fd);
        return vb_null(-EINVAL);
    }
    struct vb_context *ctx = context_new(dev);
    return ctx ? &ctx->v.context : NULL;
}

void *vb_find(struct vb_context *like, void *(*fn)(struct vb_context *ctx, const void *arg), const void *arg)
{
    void *found = NULL;
    scoped_lock(&vb_lock);
    for (struct list *l = contexts.next; l != &contexts && !found; l = l->next) {
        struct vb_context *ctx = container_of(l, struct vb_context, link);
        if (ctx->native != like->native)
            continue;
        scoped_lock(&ctx->lock);
        found = fn(ctx, arg);
    }
    return found;
}

struct by_handle {
    enum vb_kind kind;
    uint32_t handle;
};

static void *with_handle(struct vb_context *ctx, const void *arg)
{
    const struct by_handle *by = arg;
    list_for_each (l, &ctx->objects[by->kind]) {
        struct vb_object *o = container_of(l, struct vb_object, link);
        if (o->handle == by->handle)
            return o;
    }
    return NULL;
}

struct vb_object *vb_find_handle(struct vb_context *like, enum vb_kind kind, uint32_t handle)
{
    struct vb_object *o = vb_find(like, with_handle, &(struct by_handle){kind, handle});
    if (!o)
        vb_debug("import refused: nothing of that kind has handle %u in this process", handle);
    return o;
}

void vb_add(struct vb_context *ctx, enum vb_kind kind, struct vb_object *o)
{
    static atomic_uint handles; /* one row for all kinds: unique in the process */
    o->handle = atomic_fetch_add(&handles, 1) + 1;
    scoped_lock(&ctx->lock);
    list_push_back(&ctx->objects[kind], &o->link);
}

void vb_del(struct vb_context *ctx, struct vb_object *o)
{
    scoped_lock(&ctx->lock);
    list_del(&o->link);
}
