#include "fabric_xp.h"

#include "fabric/fabric.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

struct job {
    struct fab_rma r; /* first */
    struct ours *o;
    unsigned slot;
};

struct ours {
    struct xp x; /* first */
    struct fab *f;
    struct fab_shard *s;
    struct fab_conn *c;
    bool up;
    struct fab_mr *mr;
    uint8_t *mem;
    uint64_t remote_addr, remote_key;
    struct job jobs[XP_SLOTS];
};

static void *on_connect(struct fab_conn *c, const void *data, size_t len, void *user)
{
    (void)data;
    (void)len;
    ((struct ours *)user)->c = c;
    return user;
}

static void on_connected(struct fab_conn *c, void *user)
{
    (void)c;
    ((struct ours *)user)->up = true;
}

static void on_message(struct fab_conn *c, const void *msg, size_t len, void *user)
{
    struct ours *o = user;

    (void)c;
    o->x.message(o->x.user, msg, len);
}

static void on_closed(struct fab_conn *c, int err, void *user)
{
    (void)c;
    (void)err;
    ((struct ours *)user)->c = NULL;
}

static struct xp *ours_open(const char *provider, bool server, int ctl, uint8_t *mem, size_t len)
{
    static const struct fab_callbacks cb = {on_connect, on_connected, on_message, on_closed, NULL};
    struct sockaddr_storage addr = {0};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct fab_config cfg = {.provider = provider, .spin_us = XP_SPIN_NS / 1000};
    struct ours *o = calloc(1, sizeof *o);
    socklen_t addr_len = sizeof addr;
    uint64_t mine[2], theirs[2];
    char err[256];
    int r;

    if (!o)
        xp_fail("memory", -ENOMEM);
    o->x.ops = &xp_ours;
    o->mem = mem;
    if (fab_open(&cfg, &o->f, err, sizeof err))
        xp_fail(err, 0);
    r = fab_shard_open(o->f, &cb, o, &o->s);
    if (!r)
        r = fab_mr_reg(o->s, mem, len, FAB_REMOTE_READ | FAB_REMOTE_WRITE, &o->mr);
    if (!r && server) {
        r = fab_listen(o->s, (struct sockaddr *)&in, sizeof in, &addr, &addr_len);
        xp_tell(ctl, &addr, sizeof addr);
    } else if (!r) {
        xp_hear(ctl, &addr, sizeof addr);
        r = fab_connect(o->s, (struct sockaddr *)&addr, sizeof(struct sockaddr_in), NULL, 0, o, &o->c);
    }
    if (r)
        xp_fail("set-up", r);
    while (!o->up)
        fab_progress(o->s, NSEC_PER_SEC);
    fab_mr_remote(o->mr, mem, &mine[0], &mine[1]);
    xp_tell(ctl, mine, sizeof mine);
    xp_hear(ctl, theirs, sizeof theirs);
    o->remote_addr = theirs[0];
    o->remote_key = theirs[1];
    return &o->x;
}

static void ours_close(struct xp *x)
{
    struct ours *o = (struct ours *)x;

    fab_shard_close(o->s);
    fab_mr_close(o->mr);
    fab_close(o->f);
    free(o);
}

static void rma_done(struct fab_rma *r, int err)
{
    struct job *j = (struct job *)r;

    if (err)
        xp_fail("rma", err);
    j->o->x.done(j->o->x.user, j->slot);
}

static void ours_rma(struct xp *x, unsigned slot, bool write, size_t offset, size_t len)
{
    struct ours *o = (struct ours *)x;
    struct job *j = &o->jobs[slot];
    int r;

    j->o = o;
    j->slot = slot;
    j->r = (struct fab_rma){.write = write,
                            .mr = {o->mr},
                            .iov = {{o->mem + offset, len}},
                            .iovcnt = 1,
                            .remote_addr = o->remote_addr + offset,
                            .remote_key = o->remote_key,
                            .fn = rma_done};
    r = fab_rma(o->c, &j->r);
    if (r)
        xp_fail("rma", r);
}

static void ours_send(struct xp *x, const void *msg, size_t len)
{
    struct ours *o = (struct ours *)x;
    struct iovec iov = {(void *)(uintptr_t)msg, len};
    int r = fab_send(o->c, &iov, 1);

    if (r)
        xp_fail("send", r);
}

static void ours_poll(struct xp *x)
{
    int r = fab_progress(((struct ours *)x)->s, 5 * NSEC_PER_MSEC);

    if (r < 0)
        xp_fail("progress", r);
}

const struct xp_ops xp_ours = {"ours", ours_open, ours_close, ours_rma, ours_send, ours_poll};
