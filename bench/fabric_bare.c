/* The least that moves the same bytes: one endpoint, one completion queue, libfabric's calls and nothing around them.
 */
#include "fabric_xp.h"

#include "base/util.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <string.h>

#define RECVS 64u

const char *xp_address = "127.0.0.1";

struct ctx {
    struct fi_context2 fi;
    enum { RECV, SEND, RMA } kind;
    unsigned index;
};

struct bare {
    struct xp x; /* first */
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_eq *eq;
    struct fid_cq *cq;
    struct fid_pep *pep;
    struct fid_ep *ep;
    struct fid_mr *mr, *msg_mr;
    int cq_fd;
    uint8_t *mem;
    uint64_t remote_addr, remote_key;
    struct ctx recv[RECVS], send[RECVS], rma[XP_SLOTS];
    unsigned next_send;
    uint8_t recv_buf[RECVS][XP_MSG], send_buf[RECVS][XP_MSG];
};

#define CK(call)                                                                                                       \
    do {                                                                                                               \
        long ck_r = (long)(call);                                                                                      \
        if (ck_r < 0)                                                                                                  \
            xp_fail(#call, ck_r);                                                                                      \
    } while (0)

static void open_info(struct bare *b, const char *provider)
{
    struct fi_info *h = fi_allocinfo();

    if (!h)
        xp_fail("memory", -ENOMEM);
    h->fabric_attr->prov_name = strdup(provider);
    h->ep_attr->type = FI_EP_MSG;
    h->caps = FI_MSG | FI_RMA;
    h->mode = FI_CONTEXT | FI_CONTEXT2;
    h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    h->domain_attr->threading = FI_THREAD_DOMAIN;
    h->addr_format = FI_SOCKADDR_IN;
    CK(fi_getinfo(FI_VERSION(1, 14), xp_address, NULL, FI_SOURCE, h, &b->info));
    fi_freeinfo(h);
}

static void open_ep(struct bare *b, struct fi_info *info)
{
    struct fi_cq_attr ca = {.size = 1024, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD};

    CK(fi_domain(b->fabric, info, &b->domain, NULL));
    CK(fi_cq_open(b->domain, &ca, &b->cq, NULL));
    CK(fi_control(&b->cq->fid, FI_GETWAIT, &b->cq_fd));
    CK(fi_endpoint(b->domain, info, &b->ep, NULL));
    CK(fi_ep_bind(b->ep, &b->eq->fid, 0));
    CK(fi_ep_bind(b->ep, &b->cq->fid, FI_TRANSMIT | FI_RECV));
    CK(fi_enable(b->ep));
    CK(fi_mr_reg(b->domain, b->recv_buf, sizeof b->recv_buf + sizeof b->send_buf, FI_SEND | FI_RECV, 0, 1, 0,
                 &b->msg_mr, NULL));
    for (unsigned i = 0; i < RECVS; i++) {
        b->recv[i] = (struct ctx){.kind = RECV, .index = i};
        CK(fi_recv(b->ep, b->recv_buf[i], XP_MSG, fi_mr_desc(b->msg_mr), 0, &b->recv[i]));
    }
}

static void want(struct bare *b, uint32_t event, struct fi_eq_cm_entry *e)
{
    uint32_t got;

    CK(fi_eq_sread(b->eq, &got, e, sizeof *e, 5000, 0));
    if (got != event)
        xp_fail("event", got);
}

static struct xp *bare_open(const char *provider, bool server, int ctl, uint8_t *mem, size_t len)
{
    struct bare *b = calloc(1, sizeof *b);
    struct fi_eq_attr ea = {.size = 16, .wait_obj = FI_WAIT_UNSPEC};
    struct fi_eq_cm_entry e;
    struct sockaddr_in addr = {0};
    size_t addr_len = sizeof addr;
    uint64_t mine[2], theirs[2];

    if (!b)
        xp_fail("memory", -ENOMEM);
    b->x.ops = &xp_bare;
    b->mem = mem;
    open_info(b, provider);
    CK(fi_fabric(b->info->fabric_attr, &b->fabric, NULL));
    CK(fi_eq_open(b->fabric, &ea, &b->eq, NULL));
    if (server) {
        CK(fi_passive_ep(b->fabric, b->info, &b->pep, NULL));
        CK(fi_pep_bind(b->pep, &b->eq->fid, 0));
        CK(fi_listen(b->pep));
        CK(fi_getname(&b->pep->fid, &addr, &addr_len));
        xp_tell(ctl, &addr, sizeof addr);
        want(b, FI_CONNREQ, &e);
        open_ep(b, e.info);
        CK(fi_accept(b->ep, NULL, 0));
        fi_freeinfo(e.info);
    } else {
        xp_hear(ctl, &addr, sizeof addr);
        open_ep(b, b->info);
        CK(fi_connect(b->ep, &addr, NULL, 0));
    }
    want(b, FI_CONNECTED, &e);
    CK(fi_mr_reg(b->domain, mem, len, FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 2, 0, &b->mr, NULL));
    mine[0] = b->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)mem : 0;
    mine[1] = fi_mr_key(b->mr);
    xp_tell(ctl, mine, sizeof mine);
    xp_hear(ctl, theirs, sizeof theirs);
    b->remote_addr = theirs[0];
    b->remote_key = theirs[1];
    return &b->x;
}

static void bare_close(struct xp *x)
{
    struct bare *b = (struct bare *)x;

    fi_close(&b->ep->fid);
    if (b->pep)
        fi_close(&b->pep->fid);
    fi_close(&b->mr->fid);
    fi_close(&b->msg_mr->fid);
    fi_close(&b->cq->fid);
    fi_close(&b->eq->fid);
    fi_close(&b->domain->fid);
    fi_close(&b->fabric->fid);
    fi_freeinfo(b->info);
    free(b);
}

static void bare_rma(struct xp *x, unsigned slot, bool write, size_t offset, size_t len)
{
    struct bare *b = (struct bare *)x;
    struct ctx *c = &b->rma[slot];
    void *desc = fi_mr_desc(b->mr);

    c->kind = RMA;
    c->index = slot;
    if (write)
        CK(fi_write(b->ep, b->mem + offset, len, desc, 0, b->remote_addr + offset, b->remote_key, c));
    else
        CK(fi_read(b->ep, b->mem + offset, len, desc, 0, b->remote_addr + offset, b->remote_key, c));
}

static void bare_send(struct xp *x, const void *msg, size_t len)
{
    struct bare *b = (struct bare *)x;
    unsigned i = b->next_send++ % RECVS;

    if (len <= b->info->tx_attr->inject_size) {
        CK(fi_inject(b->ep, msg, len, 0));
        return;
    }
    b->send[i] = (struct ctx){.kind = SEND, .index = i};
    memcpy(b->send_buf[i], msg, len);
    CK(fi_send(b->ep, b->send_buf[i], len, fi_mr_desc(b->msg_mr), 0, &b->send[i]));
}

static void handle(struct bare *b, const struct fi_cq_msg_entry *e)
{
    struct ctx *c = e->op_context;

    if (c->kind == RMA) {
        b->x.done(b->x.user, c->index);
    } else if (c->kind == RECV) {
        b->x.message(b->x.user, b->recv_buf[c->index], e->len);
        CK(fi_recv(b->ep, b->recv_buf[c->index], XP_MSG, fi_mr_desc(b->msg_mr), 0, c));
    }
}

static void bare_poll(struct xp *x)
{
    struct bare *b = (struct bare *)x;
    struct fi_cq_msg_entry e[64];
    uint64_t end = now_ns() + XP_SPIN_NS;
    struct fid *f = &b->cq->fid;
    ssize_t n;

    for (;;) {
        n = fi_cq_read(b->cq, e, 64);
        if (n > 0) {
            for (ssize_t i = 0; i < n; i++)
                handle(b, &e[i]);
            return;
        }
        if (n != -FI_EAGAIN)
            xp_fail("completion queue", n);
        if (now_ns() < end)
            continue;
        if (fi_trywait(b->fabric, &f, 1) == FI_SUCCESS) {
            struct pollfd p = {b->cq_fd, POLLIN, 0};

            if (poll(&p, 1, 5) == 0)
                return;
        }
    }
}

const struct xp_ops xp_bare = {"bare", bare_open, bare_close, bare_rma, bare_send, bare_poll};
