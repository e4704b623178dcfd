#include "fab_int.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#define CQ_SIZE_SOFT 1024u  /* software queues grow by themselves */
#define CQ_SIZE_HARD 65536u /* asked for first; halved until the device has it */

static int cq_open(struct fab_shard *s)
{
    size_t size = s->f->bounded_cq ? CQ_SIZE_HARD : CQ_SIZE_SOFT;

    for (;;) {
        struct fi_cq_attr a = {.size = size, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD};
        int r = fi_cq_open(s->domain, &a, &s->cq, s);

        if (!r) {
            s->cq_size = size;
            return fi_control(&s->cq->fid, FI_GETWAIT, &s->cq_fd);
        }
        s->cq = NULL;
        if (size <= CQ_SIZE_SOFT)
            return r;
        size /= 2;
    }
}

static int fabric_objects(struct fab_shard *s)
{
    struct fi_eq_attr eq = {.size = 1024, .wait_obj = FI_WAIT_FD};
    struct fi_info *info = s->f->info;
    int r = s->f->lib->fabric(info->fabric_attr, &s->fabric, s);

    if (!r)
        r = fi_domain(s->fabric, info, &s->domain, s);
    if (!r)
        r = fi_eq_open(s->fabric, &eq, &s->eq, s);
    if (!r)
        r = fi_control(&s->eq->fid, FI_GETWAIT, &s->eq_fd);
    if (!r)
        r = cq_open(s);
    return r ? fab_errno(r) : 0;
}

int fab_watch(struct fab_shard *s, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};

    return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

int fab_unwatch(struct fab_shard *s, int fd)
{
    return epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, fd, NULL) ? -errno : 0;
}

static int descriptors(struct fab_shard *s)
{
    int r;

    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (s->epoll_fd < 0 || s->wake_fd < 0 || s->timer_fd < 0)
        return -errno;
    r = fab_watch(s, s->wake_fd);
    if (!r)
        r = fab_watch(s, s->timer_fd);
    if (!r)
        r = fab_watch(s, s->cq_fd);
    if (!r && s->eq_fd != s->cq_fd)
        r = fab_watch(s, s->eq_fd);
    return r;
}

static void shard_free(struct fab_shard *s)
{
    struct fid *fids[] = {s->pep ? &s->pep->fid : NULL, s->cq ? &s->cq->fid : NULL, s->eq ? &s->eq->fid : NULL,
                          s->domain ? &s->domain->fid : NULL, s->fabric ? &s->fabric->fid : NULL};

    for (size_t i = 0; i < ARRAY_SIZE(fids); i++)
        if (fids[i])
            fi_close(fids[i]);
    fab_halfopen_done(s);
    for (int *fd = (int[]){s->epoll_fd, s->wake_fd, s->timer_fd, -2}; *fd != -2; fd++)
        if (*fd >= 0)
            close(*fd);
    free(s);
}

/* With the cache two registrations of the same bytes are one. */
static int refuse_mr_cache(struct fab_shard *s)
{
    static uint8_t bytes[64];
    struct fab_mr *a = NULL, *b = NULL;
    uint64_t addr, key[2];
    int r;

    if (!(s->f->facts.mr_mode & FI_MR_PROV_KEY))
        return 0;
    r = fab_mr_reg(s, bytes, sizeof bytes, FAB_REMOTE_READ, &a);
    if (!r)
        r = fab_mr_reg(s, bytes, sizeof bytes, FAB_REMOTE_READ, &b);
    if (!r) {
        fab_mr_remote(a, bytes, &addr, &key[0]);
        fab_mr_remote(b, bytes, &addr, &key[1]);
        r = key[0] == key[1] ? -ENOTSUP : 0;
    }
    fab_mr_close(a);
    fab_mr_close(b);
    return r;
}

int fab_shard_open(struct fab *f, const struct fab_callbacks *cb, void *user, struct fab_shard **ret)
{
    struct fab_shard *s = calloc(1, sizeof *s);
    int r;

    if (!s)
        return -ENOMEM;
    s->f = f;
    s->cb = *cb;
    s->user = user;
    s->epoll_fd = s->wake_fd = s->timer_fd = -1;
    atomic_init(&s->woken, false);
    list_init(&s->conns);
    list_init(&s->connecting);
    list_init(&s->lingering);
    list_init(&s->closing);
    list_init(&s->retry);
    list_init(&s->open);
    list_init(&s->mrs);
    r = fabric_objects(s);
    if (!r)
        r = descriptors(s);
    if (!r)
        r = refuse_mr_cache(s);
    if (r) {
        shard_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

void fab_shard_close(struct fab_shard *s)
{
    if (!s)
        return;
    /* Callbacks may begin connections: until none is left. */
    while (!list_empty(&s->conns)) {
        list_for_each_safe (it, &s->conns)
            fab_disconnect(list_entry(it, struct fab_conn, link));
        (void)fab_cq_events(s, 64);
        fab_cm_deadlines(s, now_ns());
        fab_conns_finish(s);
    }
    fab_mrs_drop(s);
    fab_halfopen_end(s);
    shard_free(s);
}
