#include "uroce_node.h"

#include "base/rng.h"
#include "base/util.h"
#include "qp_mask.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#define PSN_A 0xfffffau /* wraps soon */
#define PSN_B 0x000123u

uint8_t node_timeout = NODE_TIMEOUT;

/* A sealed memfd, which the node keeps. */
static uint8_t *lent(struct node *n)
{
    char name[32];
    snprintf(name, sizeof name, "node-%d", (int)getpid());
    n->memfd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(n->memfd >= 0);
    assert_int_equal(ftruncate(n->memfd, (off_t)n->len), 0);
    assert_int_equal(uroce_mem_lend(n, n->len, n->memfd), -EINVAL); /* it could shrink */
    assert_int_equal(fcntl(n->memfd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    void *p = mmap(NULL, n->len, PROT_READ | PROT_WRITE, MAP_SHARED, n->memfd, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    assert_int_equal(uroce_mem_lend(p, n->len, n->memfd), 0);
    return p;
}

void node_take_back(struct node *n)
{
    uroce_mem_take_back(n->buf);
    close(n->memfd);
    n->memfd = -1;
}

enum memory { PRIVATE, ALLOCATED, LENT };

static void open_with(struct node *n, const struct uroce_config *cfg, size_t len, enum memory kind)
{
    char err[256] = "";
    memset(n, 0, sizeof *n);
    if (uroce_open(cfg, &n->dev, err, sizeof err))
        fail_msg("%s", err);
    n->len = len;
    n->allocated = kind == ALLOCATED;
    n->memfd = -1;
    if (n->allocated)
        assert_int_equal(uroce_mem_alloc(n->dev, len, (void **)&n->buf), 0);
    else
        n->buf = kind == LENT ? lent(n) : calloc(1, len);
    assert_non_null(n->buf);
    assert_int_equal(uroce_pd_alloc(n->dev, &n->pd), 0);
    assert_int_equal(uroce_channel_create(n->dev, &n->channel), 0);
    assert_int_equal(uroce_cq_create(n->dev, 8192, n, n->channel, &n->cq), 0);
    assert_int_equal(uroce_mr_reg(n->pd, n->buf, len, (uintptr_t)n->buf,
                                  UROCE_ACCESS_LOCAL_WRITE | UROCE_ACCESS_REMOTE_WRITE | UROCE_ACCESS_REMOTE_READ |
                                      UROCE_ACCESS_REMOTE_ATOMIC,
                                  &n->mr),
                     0);
}

void node_open(struct node *n, const struct uroce_config *cfg, size_t len)
{
    open_with(n, cfg, len, PRIVATE);
}

void node_open_allocated(struct node *n, const struct uroce_config *cfg, size_t len)
{
    open_with(n, cfg, len, ALLOCATED);
}

void node_open_lent(struct node *n, const struct uroce_config *cfg, size_t len)
{
    open_with(n, cfg, len, LENT);
    n->lent = true;
}

void node_close(struct node *n)
{
    if (n->mr)
        assert_int_equal(uroce_mr_dereg(n->mr), 0);
    assert_int_equal(uroce_cq_destroy(n->cq), 0);
    assert_int_equal(uroce_channel_destroy(n->channel), 0);
    assert_int_equal(uroce_pd_dealloc(n->pd), 0);
    if (n->allocated)
        assert_int_equal(uroce_mem_free(n->dev, n->buf), 0);
    else if (!n->lent)
        free(n->buf);
    if (n->memfd >= 0)
        node_take_back(n);
    if (n->lent)
        munmap(n->buf, n->len);
    assert_int_equal(uroce_close(n->dev), 0);
}

struct uroce_qp *node_qp(struct node *n, enum uroce_qp_type type, uint32_t depth)
{
    struct uroce_qp_init init = {
        .type = type,
        .send_cq = n->cq,
        .recv_cq = n->cq,
        .cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1},
        .sq_sig_all = 1,
    };
    struct uroce_qp *qp = NULL;
    assert_int_equal(uroce_qp_create(n->pd, &init, &qp), 0);
    struct uroce_qp_attr a = {
        .qp_state = UROCE_QPS_INIT,
        .port_num = 1,
        .qkey = 0x1234,
        .qp_access_flags = UROCE_ACCESS_REMOTE_WRITE | UROCE_ACCESS_REMOTE_READ | UROCE_ACCESS_REMOTE_ATOMIC |
                           UROCE_ACCESS_LOCAL_WRITE,
    };
    assert_int_equal(uroce_qp_modify(qp, &a, qp_mask(type, UROCE_QPS_INIT)), 0);
    return qp;
}

static void to_rts(struct uroce_qp *qp, uint32_t dest, const union uroce_gid *gid, unsigned index, enum uroce_mtu mtu,
                   uint32_t rq_psn, uint32_t sq_psn)
{
    struct uroce_qp_attr a = {
        .qp_state = UROCE_QPS_RTR,
        .path_mtu = mtu,
        .dest_qp_num = dest,
        .rq_psn = rq_psn,
        .max_dest_rd_atomic = UROCE_RD_ATOMIC,
        .min_rnr_timer = 1,
        .ah_attr = {.dgid = *gid, .sgid_index = (uint8_t)index, .hop_limit = 64},
    };
    assert_int_equal(uroce_qp_modify(qp, &a, qp_mask(UROCE_QPT_RC, UROCE_QPS_RTR)), 0);
    a = (struct uroce_qp_attr){
        .qp_state = UROCE_QPS_RTS,
        .sq_psn = sq_psn,
        .timeout = node_timeout,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .max_rd_atomic = UROCE_RD_ATOMIC,
    };
    assert_int_equal(uroce_qp_modify(qp, &a, qp_mask(UROCE_QPT_RC, UROCE_QPS_RTS)), 0);
}

void node_connect(struct node *a, struct uroce_qp *qa, struct node *b, struct uroce_qp *qb, unsigned gid,
                  enum uroce_mtu mtu)
{
    union uroce_gid ga, gb;
    assert_int_equal(uroce_query_gid(a->dev, gid, &ga), 0);
    assert_int_equal(uroce_query_gid(b->dev, gid, &gb), 0);
    to_rts(qb, uroce_qp_num(qa), &ga, gid, mtu, PSN_A, PSN_B);
    to_rts(qa, uroce_qp_num(qb), &gb, gid, mtu, PSN_B, PSN_A);
}

bool node_by_shm(struct uroce_qp *qp)
{
    struct uroce_qp_transport t;
    assert_int_equal(uroce_qp_transport(qp, &t), 0);
    return strcmp(t.port, "shm") == 0;
}

bool node_await_shm(struct uroce_qp *qa, struct uroce_qp *qb)
{
    for (uint64_t end = now_ns() + 10 * NSEC_PER_SEC; now_ns() < end; poll(NULL, 0, 1))
        if (node_by_shm(qa) && node_by_shm(qb))
            return true;
    return false;
}

void node_connect_to(struct uroce_qp *qp, uint32_t qpn, const char *ipv4, enum uroce_mtu mtu)
{
    union uroce_gid g = {.raw = {[10] = 0xff, [11] = 0xff}};
    assert_int_equal(inet_pton(AF_INET, ipv4, g.raw + 12), 1);
    to_rts(qp, qpn, &g, 0, mtu, PSN_A, PSN_A);
}

void node_write_key(struct node *n, struct uroce_qp *qp, uint32_t len, uint64_t remote, uint32_t rkey)
{
    struct uroce_sge sge = {.addr = (uintptr_t)n->buf, .length = len, .lkey = uroce_mr_lkey(n->mr)};
    struct uroce_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = UROCE_WR_RDMA_WRITE};
    const struct uroce_send_wr *bad;
    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = rkey;
    assert_int_equal(uroce_post_send(qp, &wr, &bad), 0);
}

void node_wait(struct node *n, struct node *other, int count, struct uroce_wc *ret)
{
    uint64_t since = now_ns();
    int got = 0;
    while (got < count) {
        struct uroce_wc dummy;
        int r = uroce_poll_cq(n->cq, count - got, ret + got);
        assert_true(r >= 0);
        got += r;
        if (r)
            since = now_ns();
        if (other && other != n)
            assert_int_equal(uroce_poll_cq(other->cq, 0, &dummy), 0);
        if (now_ns() - since > 10 * NSEC_PER_SEC)
            fail_msg("%d of %d completions came", got, count);
    }
}

void node_send(struct node *n, struct uroce_qp *qp, enum uroce_wr_opcode op, size_t offset, uint32_t len,
               const struct node *to, size_t to_offset, uint64_t wr_id)
{
    struct uroce_sge sge = {.addr = (uintptr_t)n->buf + offset, .length = len, .lkey = uroce_mr_lkey(n->mr)};
    struct uroce_send_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = op};
    const struct uroce_send_wr *bad;
    if (op == UROCE_WR_ATOMIC_FETCH_AND_ADD || op == UROCE_WR_ATOMIC_CMP_AND_SWP) {
        wr.wr.atomic.remote_addr = (uintptr_t)to->buf + to_offset;
        wr.wr.atomic.rkey = uroce_mr_rkey(to->mr);
        wr.wr.atomic.compare_add = 1;
    } else if (to) {
        wr.wr.rdma.remote_addr = (uintptr_t)to->buf + to_offset;
        wr.wr.rdma.rkey = uroce_mr_rkey(to->mr);
    }
    assert_int_equal(uroce_post_send(qp, &wr, &bad), 0);
}

void node_recv(struct node *n, struct uroce_qp *qp, size_t offset, uint32_t len, uint64_t wr_id)
{
    struct uroce_sge sge = {.addr = (uintptr_t)n->buf + offset, .length = len, .lkey = uroce_mr_lkey(n->mr)};
    struct uroce_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1};
    const struct uroce_recv_wr *bad;
    assert_int_equal(uroce_post_recv(qp, &wr, &bad), 0);
}

void node_fill(struct node *n, uint64_t seed)
{
    struct rng r;
    rng_seed(&r, seed);
    rng_fill(&r, n->buf, n->len);
}
