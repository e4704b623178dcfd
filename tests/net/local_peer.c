#include "local_peer.h"

#include "base/crc.h"
#include "base/util.h"
#include "qp_mask.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct order {
    uint32_t verb;
    uint64_t a, b, c, d;
};

struct ticket {
    uint32_t qpn, rkey, window_rkey;
    uint64_t addr;
};

struct meeting {
    uint32_t qpn, mtu, timeout;
};

#define REMOTE (UROCE_ACCESS_REMOTE_WRITE | UROCE_ACCESS_REMOTE_READ | UROCE_ACCESS_REMOTE_ATOMIC)

/* ---- the child ---- */

struct child {
    struct node n;
    struct uroce_qp *qp;
    struct uroce_mw *mw;
};

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "peer: %s: %s\n", what, strerror(errno));
    _exit(1);
}

static void post(struct child *c, const struct order *o, enum uroce_wr_opcode op)
{
    struct uroce_sge s = {(uintptr_t)c->n.buf + o->a, (uint32_t)o->b, uroce_mr_lkey(c->n.mr)};
    struct uroce_send_wr wr = {.sg_list = &s, .num_sge = 1, .opcode = op};
    const struct uroce_send_wr *bad;
    wr.wr.rdma.remote_addr = o->c;
    wr.wr.rdma.rkey = (uint32_t)o->d;
    must(uroce_post_send(c->qp, &wr, &bad) == 0, "post");
}

static struct peer_reply wait_one(struct child *c)
{
    struct uroce_wc wc;
    struct peer_reply r = {.ret = -ETIMEDOUT};
    if (uroce_wait_cq(c->n.cq, 1, &wc, 20 * NSEC_PER_SEC) == 1)
        r = (struct peer_reply){wc.status, wc.byte_len, wc.imm_data, wc.wc_flags};
    return r;
}

static void bind_window(struct child *c)
{
    struct uroce_send_wr wr = {.opcode = UROCE_WR_BIND_MW, .send_flags = UROCE_SEND_SIGNALED};
    const struct uroce_send_wr *bad;
    wr.bind_mw.mw = c->mw;
    wr.bind_mw.rkey = uroce_mw_rkey(c->mw);
    wr.bind_mw.bind =
        (struct uroce_mw_bind_info){.mr = c->n.mr, .addr = (uintptr_t)c->n.buf, .length = c->n.len, .access = REMOTE};
    must(uroce_post_send(c->qp, &wr, &bad) == 0, "bind");
    must(wait_one(c).ret == UROCE_WC_SUCCESS, "bound");
}

static void churn(struct child *c, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        void *m;
        must(uroce_mem_alloc(c->n.dev, 8192, &m) == 0, "memory");
        memset(m, 1, 8192);
        must(uroce_mem_free(c->n.dev, m) == 0, "free");
    }
}

static struct peer_reply carry_out(struct child *c, const struct order *o)
{
    struct peer_reply r = {0};
    struct uroce_qp_transport t;
    switch ((enum peer_verb)o->verb) {
    case PEER_FILL:
        node_fill(&c->n, o->a);
        break;
    case PEER_CRC:
        r.ret = crc32c(0, c->n.buf + o->a, o->b);
        break;
    case PEER_SET:
        memset(c->n.buf, (int)o->a, c->n.len);
        break;
    case PEER_RECV:
        node_recv(&c->n, c->qp, o->a, (uint32_t)o->b, 0);
        break;
    case PEER_WAIT:
        r = wait_one(c);
        break;
    case PEER_SEND:
        post(c, o, UROCE_WR_SEND);
        break;
    case PEER_WRITE:
        post(c, o, UROCE_WR_RDMA_WRITE);
        break;
    case PEER_READ:
        post(c, o, UROCE_WR_RDMA_READ);
        break;
    case PEER_DEREG:
        usleep((unsigned)(o->a / 1000));
        r.ret = uroce_mr_dereg(c->n.mr);
        memset(c->n.buf, (int)o->b, c->n.len);
        c->n.mr = NULL;
        break;
    case PEER_SHM:
        r.ret = uroce_qp_transport(c->qp, &t);
        r.ret = r.ret ? r.ret : strcmp(t.port, "shm") == 0;
        break;
    case PEER_CHURN:
        churn(c, o->a);
        break;
    case PEER_BIND:
        bind_window(c);
        break;
    case PEER_END:
        break;
    }
    return r;
}

static struct uroce_qp *make_qp(struct node *n)
{
    struct uroce_qp_init init = {
        .type = UROCE_QPT_RC,
        .send_cq = n->cq,
        .recv_cq = n->cq,
        .cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1},
        .sq_sig_all = 1,
    };
    struct uroce_qp_attr a = {.qp_state = UROCE_QPS_INIT, .port_num = 1, .qp_access_flags = REMOTE};
    struct uroce_qp *qp = NULL;
    must(uroce_qp_create(n->pd, &init, &qp) == 0, "queue pair");
    must(uroce_qp_modify(qp, &a, qp_mask(UROCE_QPT_RC, UROCE_QPS_INIT)) == 0, "INIT");
    return qp;
}

static void child(int sock, const struct peer_opts *o)
{
    struct uroce_config cfg = o->cfg;
    struct child c;
    struct order order;
    char go;
    cfg.addresses = "10.77.0.2";
    if (recv(sock, &go, 1, 0) != 1) /* it is not needed */
        _exit(0);
    if (o->uid)
        must(setresgid(o->uid, o->uid, o->uid) == 0 && setresuid(o->uid, o->uid, o->uid) == 0, "user");
    if (o->allocated)
        node_open_allocated(&c.n, &cfg, o->len);
    else if (o->lent)
        node_open_lent(&c.n, &cfg, o->len);
    else
        node_open(&c.n, &cfg, o->len);
    must(uroce_mr_dereg(c.n.mr) == 0, "region");
    must(uroce_mr_reg(c.n.pd, c.n.buf, o->len, (uintptr_t)c.n.buf,
                      UROCE_ACCESS_LOCAL_WRITE | REMOTE | UROCE_ACCESS_MW_BIND, &c.n.mr) == 0,
         "region");
    c.qp = make_qp(&c.n);
    must(uroce_mw_alloc(c.n.pd, 2, &c.mw) == 0, "window");
    struct ticket t = {uroce_qp_num(c.qp), uroce_mr_rkey(c.n.mr), uroce_mw_rkey(c.mw), (uintptr_t)c.n.buf};
    struct meeting m;
    must(send(sock, &t, sizeof t, 0) == sizeof t, "send");
    must(recv(sock, &m, sizeof m, MSG_WAITALL) == sizeof m, "recv");
    node_timeout = (uint8_t)m.timeout;
    node_connect_to(c.qp, m.qpn, o->address ? o->address : "10.77.0.1", (enum uroce_mtu)m.mtu);
    must(send(sock, "r", 1, 0) == 1, "send");
    do {
        if (recv(sock, &order, sizeof order, MSG_WAITALL) != sizeof order)
            _exit(2);
        struct peer_reply r = carry_out(&c, &order);
        must(send(sock, &r, sizeof r, 0) == sizeof r, "send");
    } while (order.verb != PEER_END);
    must(uroce_qp_destroy(c.qp) == 0 && uroce_mw_dealloc(c.mw) == 0, "end");
    node_close(&c.n);
    exit(0); /* so that the leak checker looks */
}

/* ---- the parent ---- */

static struct peer latest;

void peer_fork(struct peer *p, const struct netns_pair *ns, const struct peer_opts *o)
{
    int s[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s), 0);
    p->pid = fork();
    if (p->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(s[0]);
        netns_enter(ns, 1);
        setenv("CMOCKA_TEST_ABORT", "1", 1); /* what fails here does not go on as the test */
        child(s[1], o);
    }
    close(s[1]);
    p->sock = s[0];
}

void peer_start(struct peer *p)
{
    struct ticket t;
    latest = *p;
    assert_int_equal(send(p->sock, "g", 1, 0), 1);
    assert_int_equal(recv(p->sock, &t, sizeof t, MSG_WAITALL), sizeof t);
    p->qpn = t.qpn;
    p->rkey = t.rkey;
    p->window_rkey = t.window_rkey;
    p->addr = t.addr;
}

void peer_connect(struct peer *p, struct uroce_qp *qp, enum uroce_mtu mtu, uint8_t timeout)
{
    struct meeting m = {uroce_qp_num(qp), mtu, timeout};
    char ready;
    assert_int_equal(send(p->sock, &m, sizeof m, 0), sizeof m);
    node_timeout = timeout;
    node_connect_to(qp, p->qpn, "10.77.0.2", mtu);
    assert_int_equal(recv(p->sock, &ready, 1, 0), 1);
}

void peer_tell(struct peer *p, enum peer_verb verb, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    struct order o = {(uint32_t)verb, a, b, c, d};
    assert_int_equal(send(p->sock, &o, sizeof o, MSG_NOSIGNAL), sizeof o);
}

struct peer_reply peer_hear(struct peer *p)
{
    struct peer_reply r = {.ret = -EIO};
    assert_int_equal(recv(p->sock, &r, sizeof r, MSG_WAITALL), sizeof r);
    return r;
}

struct peer_reply peer_do(struct peer *p, enum peer_verb verb, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    peer_tell(p, verb, a, b, c, d);
    return peer_hear(p);
}

void peer_end(struct peer *p)
{
    int status;
    peer_do(p, PEER_END, 0, 0, 0, 0);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    latest.pid = 0;
    assert_int_equal(status, 0);
    close(p->sock);
}

void peer_kill(struct peer *p)
{
    kill(p->pid, SIGKILL);
    waitpid(p->pid, NULL, 0);
    close(p->sock);
    latest.pid = 0;
}

void peer_stop(struct peer *p)
{
    int status;
    assert_int_equal(kill(p->pid, SIGSTOP), 0);
    assert_int_equal(waitpid(p->pid, &status, WUNTRACED), p->pid);
    assert_true(WIFSTOPPED(status));
}

int peer_reap(void **state)
{
    (void)state;
    if (latest.pid)
        peer_kill(&latest);
    return 0;
}
