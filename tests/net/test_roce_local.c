/*
 * Two processes of one machine, each in a network namespace of its own: they move to shared memory when they are of one
 * user, and to nothing else when they are not; and what one of them does to the other by dying, sleeping or taking its
 * memory away.
 */
#include "base/crc.h"
#include "base/util.h"
#include "local_peer.h"
#include "roce/wire_op.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define LEN      (9u << 20)
#define TIMEOUT  14 /* 67 ms */
#define STRANGER 65534
#define PART     (512u << 10)

static struct netns_pair ns;
static struct node me;
static struct uroce_qp *qp;

/* Both ends go by shared memory within some seconds; or (false) still by the network after a while. */
static bool moves(struct peer *p, struct uroce_qp *q, bool expected)
{
    uint64_t end = now_ns() + (expected ? 10 * NSEC_PER_SEC : NSEC_PER_SEC / 3);
    while (now_ns() < end) {
        if (node_by_shm(q) && peer_do(p, PEER_SHM, 0, 0, 0, 0).ret == 1)
            return true;
        poll(NULL, 0, 2);
    }
    return node_by_shm(q) || peer_do(p, PEER_SHM, 0, 0, 0, 0).ret == 1;
}

static void begin(struct peer *p, const struct peer_opts *o, const struct uroce_config *cfg, bool allocated)
{
    struct uroce_config c = cfg ? *cfg : (struct uroce_config){0};
    c.addresses = "10.77.0.1";
    peer_fork(p, &ns, o);
    peer_start(p);
    netns_enter(&ns, 0);
    if (allocated)
        node_open_allocated(&me, &c, LEN);
    else
        node_open(&me, &c, LEN);
    qp = node_qp(&me, UROCE_QPT_RC, 64);
}

static void finish(void)
{
    assert_int_equal(uroce_qp_destroy(qp), 0);
    node_close(&me);
}

static int post(enum uroce_wr_opcode op, size_t at, uint32_t len, const struct peer *p, uint32_t rkey, uint32_t imm)
{
    struct uroce_sge s = {(uintptr_t)me.buf + at, len, uroce_mr_lkey(me.mr)};
    struct uroce_send_wr wr = {.sg_list = &s, .num_sge = 1, .opcode = op, .imm_data = imm};
    const struct uroce_send_wr *bad;
    if (op == UROCE_WR_ATOMIC_CMP_AND_SWP || op == UROCE_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = p->addr;
        wr.wr.atomic.rkey = rkey;
        wr.wr.atomic.compare_add = imm;
        wr.wr.atomic.swap = 77;
    } else {
        wr.wr.rdma.remote_addr = p->addr + at;
        wr.wr.rdma.rkey = rkey;
    }
    return uroce_post_send(qp, &wr, &bad);
}

/* The next completion, for which the program sleeps. */
static struct uroce_wc await(void)
{
    struct uroce_wc wc = {.status = UROCE_WC_GENERAL_ERR};
    assert_int_equal(uroce_wait_cq(me.cq, 1, &wc, 30 * NSEC_PER_SEC), 1);
    return wc;
}

static void done(enum uroce_wr_opcode op, size_t at, uint32_t len, const struct peer *p, uint32_t rkey, uint32_t imm)
{
    assert_int_equal(post(op, at, len, p, rkey, imm), 0);
    struct uroce_wc wc = await();
    if (wc.status != UROCE_WC_SUCCESS)
        fail_msg("operation %d of %u bytes: status %d", (int)op, len, (int)wc.status);
}

static uint32_t crc_of(struct peer *p, size_t at, uint32_t len)
{
    return (uint32_t)peer_do(p, PEER_CRC, at, len, 0, 0).ret;
}

static void one_size(struct peer *p, uint32_t n, size_t at)
{
    node_fill(&me, n + at);
    peer_do(p, PEER_FILL, n + 100, 0, 0, 0);
    done(UROCE_WR_RDMA_WRITE, at, n, p, p->rkey, 0);
    assert_int_equal(crc_of(p, at, n), crc32c(0, me.buf + at, n));
    peer_do(p, PEER_FILL, n + 200, 0, 0, 0);
    done(UROCE_WR_RDMA_READ, at, n, p, p->rkey, 0);
    assert_int_equal(crc_of(p, at, n), crc32c(0, me.buf + at, n));
    static const enum uroce_wr_opcode sends[] = {UROCE_WR_SEND, UROCE_WR_SEND_WITH_IMM, UROCE_WR_RDMA_WRITE_WITH_IMM,
                                                 UROCE_WR_SEND_WITH_INV};
    for (size_t i = 0; i < ARRAY_SIZE(sends); i++) {
        bool inv = sends[i] == UROCE_WR_SEND_WITH_INV;
        node_fill(&me, n + i);
        peer_do(p, PEER_RECV, at, LEN - at, 0, 0);
        if (inv)
            peer_do(p, PEER_BIND, 0, 0, 0, 0);
        done(sends[i], at, n, p, p->rkey, inv ? p->window_rkey : n + 7);
        struct peer_reply r = peer_do(p, PEER_WAIT, 0, 0, 0, 0);
        assert_int_equal(r.ret, UROCE_WC_SUCCESS);
        assert_int_equal(r.len, n);
        assert_int_equal(r.imm, i == 0 ? 0 : inv ? p->window_rkey : n + 7);
        assert_int_equal(crc_of(p, at, n), crc32c(0, me.buf + at, n));
    }
    /* The other way round: the peer asks. */
    peer_do(p, PEER_WRITE, at, n, (uintptr_t)me.buf + at, uroce_mr_rkey(me.mr));
    assert_int_equal(peer_do(p, PEER_WAIT, 0, 0, 0, 0).ret, UROCE_WC_SUCCESS);
    assert_int_equal(crc_of(p, at, n), crc32c(0, me.buf + at, n));
}

static void atomics(struct peer *p)
{
    uint64_t value = 40;
    memcpy(me.buf, &value, 8);
    done(UROCE_WR_RDMA_WRITE, 0, 8, p, p->rkey, 0);
    done(UROCE_WR_ATOMIC_FETCH_AND_ADD, 0, 8, p, p->rkey, 2);
    assert_memory_equal(me.buf, &value, 8);
    done(UROCE_WR_ATOMIC_CMP_AND_SWP, 0, 8, p, p->rkey, 42);
    done(UROCE_WR_RDMA_READ, 0, 8, p, p->rkey, 0);
    value = 77;
    assert_memory_equal(me.buf, &value, 8);
}

static void every_operation(struct peer *p)
{
    static const uint32_t sizes[] = {
        0, 1, 448, 449, 4096, 8191, 8192, 65537, (1u << 20) - 1, 1u << 20, (1u << 20) + 1, 8u << 20};
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        one_size(p, sizes[i], i % 3);
    atomics(p);
}

static void one_users_processes_do_every_operation_by_shared_memory(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) { /* memory of the allocator at both ends, at one, at none */
        struct peer p;
        struct peer_opts o = {.len = LEN, .allocated = kind == 0};
        begin(&p, &o, NULL, kind < 2);
        peer_connect(&p, qp, UROCE_MTU_1024, TIMEOUT);
        assert_true(moves(&p, qp, true));
        every_operation(&p);
        struct uroce_counters c;
        uroce_qp_counters(qp, &c);
        assert_true(c.tx_pkts < 400); /* large ones: 8 MiB in packets of 1 KiB would be many more */
        peer_end(&p);
        finish();
    }
}

/* While requests go on by the network. */
static void they_move_while_data_flows(void **state)
{
    (void)state;
    struct peer p;
    struct peer_opts o = {.len = LEN};
    begin(&p, &o, NULL, false);
    node_fill(&me, 4);
    peer_connect(&p, qp, UROCE_MTU_1024, TIMEOUT);
    int out = 0;
    uint64_t end = now_ns() + 10 * NSEC_PER_SEC;
    for (size_t at = 0; now_ns() < end; at = (at + 100000) % (LEN - 100000)) {
        assert_int_equal(post(at % 3 ? UROCE_WR_RDMA_WRITE : UROCE_WR_RDMA_READ, at, 100000, &p, p.rkey, 0), 0);
        if (++out < 16)
            continue;
        out--;
        assert_int_equal(await().status, UROCE_WC_SUCCESS);
        if (node_by_shm(qp) && end > now_ns() + NSEC_PER_SEC)
            end = now_ns() + NSEC_PER_SEC / 10;
    }
    for (; out; out--)
        assert_int_equal(await().status, UROCE_WC_SUCCESS);
    assert_true(moves(&p, qp, true));
    one_size(&p, 1000000, 5);
    peer_end(&p);
    finish();
}

static void others_stay_on_the_network(struct peer_opts *o, const struct uroce_config *cfg)
{
    struct peer p;
    o->len = LEN;
    begin(&p, o, cfg, true);
    peer_connect(&p, qp, UROCE_MTU_4096, TIMEOUT);
    assert_false(moves(&p, qp, false));
    one_size(&p, 100000, 1);
    peer_end(&p);
    finish();
}

static void another_users_process_stays_on_the_network(void **state)
{
    (void)state;
    if (geteuid())
        skip();
    others_stay_on_the_network(&(struct peer_opts){.uid = STRANGER}, NULL);
    rmdir("/tmp/uroce-65534");
}

/* In a user namespace this user has the number of another, whose directory may be there. */
static void a_directory_that_is_not_ours_alone_is_passed_over(void **state)
{
    (void)state;
    struct peer p;
    struct peer_opts o = {.len = LEN};
    char run[] = "/tmp/uroce-run-XXXXXX", theirs[64], ours[80];
    const char *before = getenv("XDG_RUNTIME_DIR");
    cleanup_free char *old = before ? strdup(before) : NULL;
    assert_non_null(mkdtemp(run));
    snprintf(theirs, sizeof theirs, "%s/uroce-%u", run, (unsigned)geteuid());
    snprintf(ours, sizeof ours, "%s.1", theirs);
    assert_int_equal(mkdir(theirs, 0700) || chmod(theirs, 0755), 0);
    setenv("XDG_RUNTIME_DIR", run, 1);
    begin(&p, &o, NULL, false);
    peer_connect(&p, qp, UROCE_MTU_1024, TIMEOUT);
    assert_true(moves(&p, qp, true));
    peer_end(&p);
    finish();
    if (old)
        setenv("XDG_RUNTIME_DIR", old, 1);
    else
        unsetenv("XDG_RUNTIME_DIR");
    assert_int_equal(rmdir(ours), 0); /* it was made, and its sockets are gone */
    assert_int_equal(rmdir(theirs) || rmdir(run), 0);
}

static void who_does_not_want_it_stays_on_the_network(void **state)
{
    (void)state;
    others_stay_on_the_network(&(struct peer_opts){.cfg = {.no_shm = 1}}, NULL);
    others_stay_on_the_network(&(struct peer_opts){0}, &(struct uroce_config){.no_shm = 1});
    setenv("UROCE_SHM", "0", 1);
    others_stay_on_the_network(&(struct peer_opts){0}, NULL);
    unsetenv("UROCE_SHM");
}

/* By shared memory, too, rules do what they say and a capture has the packets. */
static void impairment_and_capture_work_on_it(void **state)
{
    (void)state;
    struct peer p;
    char path[] = "/tmp/uroce-local-XXXXXX";
    int fd = mkstemp(path);
    const char *rules = "drop rx prob=0.05 qpn=2-0xffffff; duplicate rx prob=0.03; delay tx us=300 prob=0.05";
    struct uroce_config cfg = {.impair = rules, .seed = 3, .capture = path};
    struct peer_opts o = {.len = LEN, .cfg = {.impair = rules, .seed = 4}};
    begin(&p, &o, &cfg, true);
    peer_connect(&p, qp, UROCE_MTU_1024, TIMEOUT);
    assert_true(moves(&p, qp, true));
    for (int i = 0; i < 10; i++)
        one_size(&p, 10u + (uint32_t)i * 200000, 0);
    struct uroce_counters c;
    uroce_qp_counters(qp, &c);
    assert_true(c.retransmits + c.duplicates > 0);
    peer_end(&p);
    finish();
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    assert_true(ftell(f) > 100000);
    fclose(f);
    unlink(path);
    close(fd);
}

/* All requests end, none as if it was done, within the time that the retries take; the device goes on. */
static void a_killed_peer_ends_its_queue_pair_alone(void **state)
{
    (void)state;
    struct peer p, next;
    struct peer_opts o = {.len = LEN, .allocated = true};
    peer_fork(&next, &ns, &o);
    begin(&p, &o, NULL, true);
    peer_connect(&p, qp, UROCE_MTU_1024, 12); /* 17 ms */
    assert_true(moves(&p, qp, true));
    for (int i = 0; i < 20; i++)
        assert_int_equal(post(i % 2 ? UROCE_WR_RDMA_WRITE : UROCE_WR_RDMA_READ, 0, 8u << 20, &p, p.rkey, 0), 0);
    assert_int_equal(await().status, UROCE_WC_SUCCESS);
    peer_kill(&p);
    bool failed = false;
    for (int i = 1; i < 20; i++) {
        struct uroce_wc wc = await();
        if (wc.status != UROCE_WC_SUCCESS)
            assert_int_equal(wc.status, failed ? UROCE_WC_WR_FLUSH_ERR : UROCE_WC_RETRY_EXC_ERR);
        failed |= wc.status != UROCE_WC_SUCCESS;
    }
    assert_true(failed);
    assert_int_equal(uroce_qp_destroy(qp), 0);
    p = next;
    peer_start(&p); /* another one, of the same address */
    qp = node_qp(&me, UROCE_QPT_RC, 64);
    peer_connect(&p, qp, UROCE_MTU_1024, TIMEOUT);
    assert_true(moves(&p, qp, true));
    one_size(&p, 2000000, 0);
    peer_end(&p);
    finish();
}

/* Nothing of a peer that is stopped holds up another one's; when it goes on, so do its requests. */
static void a_stopped_peer_holds_up_nobody_and_goes_on(void **state)
{
    (void)state;
    struct peer p;
    struct peer_opts o = {.len = LEN};
    begin(&p, &o, NULL, false);
    peer_connect(&p, qp, UROCE_MTU_1024, 18); /* 1 s */
    assert_true(moves(&p, qp, true));
    struct uroce_qp *loop[2] = {node_qp(&me, UROCE_QPT_RC, 4), node_qp(&me, UROCE_QPT_RC, 4)};
    node_connect(&me, loop[0], &me, loop[1], 0, UROCE_MTU_1024);
    node_fill(&me, 12);
    peer_stop(&p);
    int out = 0;
    for (; out < 60; out++) /* small ones: more than the ring has room for */
        assert_int_equal(post(UROCE_WR_RDMA_WRITE, (size_t)out * 100000, 100000, &p, p.rkey, 0), 0);
    uint64_t end = now_ns() + 2 * NSEC_PER_SEC;
    int rounds = 0;
    struct uroce_wc wc;
    for (; now_ns() < end; rounds++) {
        node_send(&me, loop[0], UROCE_WR_RDMA_READ, 7u << 20, 1000, &me, 8u << 20, 99);
        do {
            wc = await();
            assert_int_equal(wc.status, UROCE_WC_SUCCESS);
            out -= wc.wr_id != 99;
        } while (wc.wr_id != 99);
        poll(NULL, 0, 5);
    }
    assert_true(rounds > 20 && out > 0);
    assert_int_equal(kill(p.pid, SIGCONT), 0);
    for (; out; out--)
        assert_int_equal(await().status, UROCE_WC_SUCCESS);
    assert_int_equal(crc_of(&p, 0, 6000000), crc32c(0, me.buf, 6000000));
    peer_end(&p);
    assert_int_equal(uroce_qp_destroy(loop[0]), 0);
    assert_int_equal(uroce_qp_destroy(loop[1]), 0);
    finish();
}

/* READs of a mebibyte in one post. */
static void post_reads(int n, const struct peer *p)
{
    struct uroce_sge s[8];
    struct uroce_send_wr wr[8];
    const struct uroce_send_wr *bad;
    for (int i = 0; i < n; i++) {
        s[i] = (struct uroce_sge){(uintptr_t)me.buf + ((size_t)i << 20), 1u << 20, uroce_mr_lkey(me.mr)};
        wr[i] = (struct uroce_send_wr){.next = i + 1 < n ? &wr[i + 1] : NULL,
                                       .sg_list = &s[i],
                                       .num_sge = 1,
                                       .opcode = UROCE_WR_RDMA_READ,
                                       .wr.rdma = {p->addr + ((size_t)i << 20), p->rkey}};
    }
    assert_int_equal(uroce_post_send(qp, wr, &bad), 0);
}

/* What was asked for is all there; then the program has the first of it while the others are still to be copied. */
static void a_poll_returns_what_is_there_before_it_copies_much_more(void **state)
{
    (void)state;
    enum { N = 8 };
    struct peer p;
    struct peer_opts o = {.len = LEN};
    struct uroce_wc wc[N];
    int got = 0, n = 0;
    begin(&p, &o, &(struct uroce_config){.no_thread = true}, false);
    peer_connect(&p, qp, UROCE_MTU_1024, 18);
    peer_do(&p, PEER_FILL, 31, 0, 0, 0);
    while (!node_by_shm(qp) || peer_do(&p, PEER_SHM, 0, 0, 0, 0).ret != 1)
        uroce_poll_cq(me.cq, 0, wc);
    post_reads(1, &p); /* the link has learnt of large packets */
    assert_int_equal(await().status, UROCE_WC_SUCCESS);
    peer_stop(&p); /* nothing comes while this posts */
    post_reads(N, &p);
    assert_int_equal(kill(p.pid, SIGCONT), 0);
    /* Its helper thread has answered meanwhile, or answers later: all the better. */
    peer_do(&p, PEER_CRC, 0, LEN, 0, 0);
    for (; got < N; got += n) {
        n = uroce_poll_cq(me.cq, N, wc);
        assert_in_range(n, 0, 2);
        for (int i = 0; i < n; i++)
            assert_int_equal(wc[i].status, UROCE_WC_SUCCESS);
    }
    assert_int_equal(crc_of(&p, 0, N << 20), crc32c(0, me.buf, N << 20));
    peer_end(&p);
    finish();
}

/* After a region's end not a byte of it changes, nor is one read from it, whatever was on its way. */
static void memory_that_is_deregistered_is_let_alone(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct peer p;
        struct peer_opts o = {.len = LEN, .allocated = i / 2 % 2};
        bool read = i % 2;
        begin(&p, &o, NULL, i / 4);
        peer_connect(&p, qp, UROCE_MTU_1024, TIMEOUT);
        assert_true(moves(&p, qp, true));
        peer_do(&p, PEER_SET, 0x11, 0, 0, 0);
        memset(me.buf, 0x11, LEN);
        peer_tell(&p, PEER_DEREG, 3 * NSEC_PER_MSEC, 0xee, 0, 0);
        size_t posted = 0, told = 0;
        struct uroce_wc wc = {.status = UROCE_WC_SUCCESS};
        while (wc.status == UROCE_WC_SUCCESS) {
            for (; posted < told + 16; posted++)
                if (post(read ? UROCE_WR_RDMA_READ : UROCE_WR_RDMA_WRITE, posted % 16 * PART, PART, &p, p.rkey, 0))
                    break;
            wc = await();
            for (uint32_t k = 0; read && wc.status == UROCE_WC_SUCCESS && k < PART; k += 512)
                assert_int_equal(me.buf[told % 16 * PART + k], 0x11);
            told++;
        }
        /* An answer that was taken back before it was read is lost, and the peer may have ended when it is asked. */
        if (!read || wc.status != UROCE_WC_RETRY_EXC_ERR)
            assert_int_equal(wc.status, UROCE_WC_REM_ACCESS_ERR);
        assert_int_equal(peer_hear(&p).ret, 0);
        poll(NULL, 0, 20);
        memset(me.buf, 0xee, LEN);
        assert_int_equal(crc_of(&p, 0, LEN), crc32c(0, me.buf, LEN));
        for (; told < posted; told++)
            await();
        peer_kill(&p);
        finish();
    }
}

/* What is posted and not sent yet goes from no memory whose region has ended here. */
static void a_region_that_ends_at_the_sender_sends_no_other_bytes(void **state)
{
    (void)state;
    struct peer p;
    struct peer_opts o = {.len = LEN};
    begin(&p, &o, NULL, false);
    peer_connect(&p, qp, UROCE_MTU_1024, TIMEOUT);
    assert_true(moves(&p, qp, true));
    peer_do(&p, PEER_SET, 0x11, 0, 0, 0);
    memset(me.buf, 0x22, LEN);
    peer_stop(&p);
    for (int i = 0; i < 16; i++)
        assert_int_equal(post(UROCE_WR_RDMA_WRITE, 0, 8u << 20, &p, p.rkey, 0), 0);
    poll(NULL, 0, 20);
    assert_int_equal(uroce_mr_dereg(me.mr), 0);
    me.mr = NULL;
    memset(me.buf, 0xee, LEN);
    assert_int_equal(kill(p.pid, SIGCONT), 0);
    assert_int_equal(await().status, UROCE_WC_LOC_PROT_ERR);
    for (int i = 1; i < 16; i++)
        assert_int_equal(await().status, UROCE_WC_WR_FLUSH_ERR);
    memset(me.buf, 0x11, LEN);
    assert_int_equal(crc_of(&p, 0, LEN), crc32c(0, me.buf, LEN));
    peer_kill(&p);
    finish();
}

static void memory_of_the_allocator_comes_and_goes(void **state)
{
    (void)state;
    struct peer p;
    struct peer_opts o = {.len = LEN, .allocated = true};
    begin(&p, &o, NULL, true);
    peer_connect(&p, qp, UROCE_MTU_1024, TIMEOUT);
    assert_true(moves(&p, qp, true));
    for (int i = 0; i < 4; i++) {
        void *more[40];
        peer_tell(&p, PEER_CHURN, 100, 0, 0, 0);
        for (size_t k = 0; k < ARRAY_SIZE(more); k++)
            assert_int_equal(uroce_mem_alloc(me.dev, 10000, &more[k]), 0);
        peer_hear(&p);
        one_size(&p, 300000, (size_t)i);
        for (size_t k = 0; k < ARRAY_SIZE(more); k++)
            assert_int_equal(uroce_mem_free(me.dev, more[k]), 0);
    }
    peer_end(&p);
    finish();
}

/* Of memory of process `of`, in process `in`. */
static bool is_mapped(pid_t in, pid_t of)
{
    char path[40], name[40], line[400];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)in);
    snprintf(name, sizeof name, "memfd:node-%d ", (int)of);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        found |= strstr(line, name) != NULL;
    fclose(f);
    return found;
}

static void memory_that_is_lent_is_mapped_by_peers_and_let_go(void **state)
{
    (void)state;
    struct peer p;
    struct peer_opts o = {.len = LEN, .lent = true};
    struct uroce_config c = {.addresses = "10.77.0.1"};
    peer_fork(&p, &ns, &o);
    peer_start(&p);
    netns_enter(&ns, 0);
    node_open_lent(&me, &c, LEN);
    qp = node_qp(&me, UROCE_QPT_RC, 64);
    peer_connect(&p, qp, UROCE_MTU_1024, TIMEOUT);
    assert_true(moves(&p, qp, true));
    for (int i = 0; i < 1000 && !(is_mapped(p.pid, getpid()) && is_mapped(getpid(), p.pid)); i++)
        one_size(&p, 300000, (size_t)i % 3);
    assert_true(is_mapped(p.pid, getpid()));
    assert_true(is_mapped(getpid(), p.pid));
    every_operation(&p);
    assert_int_equal(uroce_mem_lend(me.buf, LEN, me.memfd), 0); /* twice: taken back with the second */
    uroce_mem_take_back(me.buf);
    every_operation(&p);
    assert_true(is_mapped(p.pid, getpid()));
    node_take_back(&me);
    for (int i = 0; i < 1000 && is_mapped(p.pid, getpid()); i++)
        one_size(&p, 300000, (size_t)i % 3);
    assert_false(is_mapped(p.pid, getpid()));
    every_operation(&p);
    peer_end(&p);
    finish();
}

#define T(f) cmocka_unit_test_teardown(f, peer_reap)

int main(void)
{
    setenv("UROCE_HOLDER", "off", 1);
    unsetenv("UROCE_SHM");
    netns_pair_make(&ns, 4200);
    const struct CMUnitTest tests[] = {
        T(one_users_processes_do_every_operation_by_shared_memory),
        T(they_move_while_data_flows),
        T(another_users_process_stays_on_the_network),
        T(a_directory_that_is_not_ours_alone_is_passed_over),
        T(who_does_not_want_it_stays_on_the_network),
        T(impairment_and_capture_work_on_it),
        T(a_killed_peer_ends_its_queue_pair_alone),
        T(a_stopped_peer_holds_up_nobody_and_goes_on),
        T(a_poll_returns_what_is_there_before_it_copies_much_more),
        T(memory_that_is_deregistered_is_let_alone),
        T(a_region_that_ends_at_the_sender_sends_no_other_bytes),
        T(memory_of_the_allocator_comes_and_goes),
        T(memory_that_is_lent_is_mapped_by_peers_and_let_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
