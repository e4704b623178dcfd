/* RMA of src/fabric between two processes over loopback: the server moves the bytes, as in contract 3. */
#include "fab_node.h"
#include "fab_suite.h"

#include <signal.h>
#include <sys/wait.h>

#define REGION (24u << 20)

/* What a client tells of its memory. */
struct region {
    uint64_t addr, key;
};

static struct region offer(struct node *n, uint8_t *mem, size_t len, uint32_t access, struct fab_mr **ret)
{
    struct region r;

    CHECK(!fab_mr_reg(n->s, mem, len, access, ret));
    fab_mr_remote(*ret, mem, &r.addr, &r.key);
    return r;
}

static uint8_t *memory(size_t len)
{
    void *p = NULL;

    CHECK(!posix_memalign(&p, 4096, len));
    memset(p, 0, len);
    return p;
}

/* ---- contents: random sizes and segments, several at once, and the order of a send after writes ---- */

struct note { /* after the writes of a round */
    uint64_t seed, offset, len;
};

struct job {
    struct fab_rma r; /* first */
    struct fab_buf *buf[FAB_RMA_IOV_MAX];
    bool busy;
    uint64_t seed, offset, len;
};

static uint32_t jobs_done, jobs_failed;
static int job_err;

static void job_done(struct fab_rma *r, int err)
{
    struct job *j = (struct job *)r;

    CHECK(j->busy);
    j->busy = false;
    jobs_done++;
    if (err) {
        jobs_failed++;
        job_err = err;
    }
}

static uint64_t random_len(struct rng *r)
{
    switch (rng_below(r, 4)) {
    case 0:
        return 1 + rng_below(r, 64);
    case 1:
        return 1 + rng_below(r, 5000);
    case 2:
        return 4096;
    default:
        return 1 + rng_below(r, 1u << (13 + rng_below(r, 11)));
    }
}

/* Cuts a range into segments of pool buffers; the buffers' contents are the pattern when it is a write. */
static void job_start(struct node *n, struct link *l, struct fab_pool *pool, struct job *j, const struct region *reg,
                      bool write)
{
    uint32_t segs = 1 + (uint32_t)rng_below(&n->rng, FAB_RMA_IOV_MAX);
    uint64_t left = j->len, at = j->offset;

    if (segs > left)
        segs = 1;
    j->r = (struct fab_rma){
        .write = write, .iovcnt = segs, .remote_addr = reg->addr + j->offset, .remote_key = reg->key, .fn = job_done};
    for (uint32_t i = 0; i < segs; i++) {
        uint64_t part = i + 1 == segs ? left : 1 + rng_below(&n->rng, left - (segs - i - 1));
        size_t skip;

        j->buf[i] = fab_buf_get(pool);
        CHECK(j->buf[i] && part <= j->buf[i]->size);
        skip = rng_below(&n->rng, j->buf[i]->size - part + 1);
        j->r.mr[i] = j->buf[i]->mr;
        j->r.iov[i] = (struct iovec){(uint8_t *)j->buf[i]->data + skip, part};
        if (write)
            fill(j->r.iov[i].iov_base, part, j->seed, at);
        else
            memset(j->r.iov[i].iov_base, 0, part);
        at += part;
        left -= part;
    }
    j->busy = true;
    CHECK(!fab_rma(l->c, &j->r));
}

static void job_put(struct job *j)
{
    for (uint32_t i = 0; i < j->r.iovcnt; i++)
        fab_buf_put(j->buf[i]);
}

static bool job_matches(const struct job *j)
{
    uint64_t at = j->offset;

    for (uint32_t i = 0; i < j->r.iovcnt; i++) {
        if (!filled(j->r.iov[i].iov_base, j->r.iov[i].iov_len, j->seed, at))
            return false;
        at += j->r.iov[i].iov_len;
    }
    return true;
}

static struct region peer_region;
static bool have_region;

static void take_region(struct link *l, const void *msg, size_t len)
{
    (void)l;
    if (len != sizeof peer_region)
        return;
    memcpy(&peer_region, msg, len);
    have_region = true;
}

enum { DEPTH = 8, ROUNDS = 40 };

static void contents_server(const char *provider, int fd)
{
    static struct node n;
    static struct job jobs[DEPTH];
    struct fab_pool *pool;
    struct link *l = &n.links[0];
    int rounds = getenv("PENSTOCK_EXTENDED") ? 2000 : ROUNDS;

    node_open(&n, provider, (struct fab_config){0});
    CHECK(!fab_pool_new(n.s, 8u << 20, DEPTH * FAB_RMA_IOV_MAX, FAB_LOCAL, &pool));
    n.message = take_region;
    node_listen(&n);
    tell_addr(fd, &n);
    UNTIL(&n, have_region);
    for (int round = 0; round < rounds; round++) {
        uint64_t offset = rng_below(&n.rng, 4096);
        uint32_t depth = 1 + (uint32_t)rng_below(&n.rng, DEPTH);
        struct note note = {rng_u64(&n.rng), offset, 0};
        uint64_t share = (REGION - 8192) / depth;

        /* Neighbouring ranges, written at once; then one send, without waiting for anything. */
        jobs_done = 0;
        for (uint32_t i = 0; i < depth; i++) {
            jobs[i] = (struct job){
                .seed = note.seed, .offset = offset, .len = min_u64(random_len(&n.rng), min_u64(share, 8u << 20))};
            if (round == 0)
                jobs[i].len = i ? 8u << 20 >> i : min_u64(8u << 20, share);
            offset += jobs[i].len;
            job_start(&n, l, pool, &jobs[i], &peer_region, true);
        }
        note.len = offset - note.offset;
        node_send(l, &note, sizeof note);
        UNTIL(&n, jobs_done == depth);
        for (uint32_t i = 0; i < depth; i++)
            job_put(&jobs[i]);
        /* And read again, in other segments. */
        jobs_done = 0;
        for (uint32_t i = 0; i < depth; i++)
            job_start(&n, l, pool, &jobs[i], &peer_region, false);
        UNTIL(&n, jobs_done == depth);
        CHECK(!jobs_failed);
        for (uint32_t i = 0; i < depth; i++) {
            CHECK(job_matches(&jobs[i]));
            job_put(&jobs[i]);
        }
        /* The next round may begin only now: its writes may land before the client looks at the note. */
        UNTIL(&n, l->in == (uint64_t)round + 2);
    }
    fab_disconnect(l->c);
    UNTIL(&n, l->closed);
    fab_pool_free(pool);
    node_close(&n);
}

static uint8_t *client_mem;

static void check_note(struct link *l, const void *msg, size_t len)
{
    struct note note;

    CHECK(len == sizeof note);
    memcpy(&note, msg, sizeof note);
    /* At the moment of the message all bytes of the writes before it are here. */
    CHECK(filled(client_mem + note.offset, note.len, note.seed, note.offset));
    node_answer(l, "seen", 4);
}

static void contents_client(const char *provider, int fd)
{
    static struct node n;
    struct fab_mr *mr;
    struct region r;

    node_open(&n, provider, (struct fab_config){0});
    client_mem = memory(REGION);
    r = offer(&n, client_mem, REGION, FAB_REMOTE_READ | FAB_REMOTE_WRITE, &mr);
    hear_addr(fd, &n);
    n.message = check_note;
    node_connect(&n, NULL, 0);
    UNTIL(&n, n.up == 1);
    node_send(&n.links[0], &r, sizeof r);
    UNTIL(&n, n.closed == 1);
    CHECK(n.links[0].err == 0 && n.links[0].in);
    fab_mr_close(mr);
    node_close(&n);
    free(client_mem);
}

void rma_moves_the_right_bytes_and_a_send_comes_after_writes(void **state)
{
    assert_true(run_pair(__func__, *state, contents_server, contents_client));
}

/* ---- wrong keys and ranges ---- */

enum { WRONGS = 6, GUARD = 65536 };

struct offers {
    struct region rw, ro, closed;
};

static struct offers theirs;

static void take_offers(struct link *l, const void *msg, size_t len)
{
    if (len == sizeof theirs)
        memcpy(&theirs, msg, len);
    l->arg = l;
}

/* The i-th way to be wrong: a key, a place, a permission, a registration that has ended. */
static void aim_wrong(struct fab_rma *r, uint32_t i)
{
    r->write = i != 3;
    r->remote_addr = theirs.rw.addr;
    r->remote_key = theirs.rw.key;
    if (i == 0)
        r->remote_key ^= 0x55;
    else if (i == 1)
        r->remote_addr += GUARD - 4095;
    else if (i == 2)
        r->remote_addr -= 1;
    else if (i == 3)
        r->remote_addr += 1ull << 40; /* a read */
    else if (i == 4)
        r->remote_addr = theirs.ro.addr, r->remote_key = theirs.ro.key;
    else
        r->remote_addr = theirs.closed.addr, r->remote_key = theirs.closed.key;
}

static void wrong_server(const char *provider, int fd)
{
    static struct node n;
    struct fab_pool *pool;
    struct link *good = &n.links[0];
    uint8_t done;

    node_open(&n, provider, (struct fab_config){0});
    CHECK(!fab_pool_new(n.s, 8192, 2, FAB_LOCAL, &pool));
    n.message = take_offers;
    node_listen(&n);
    tell_addr(fd, &n);
    UNTIL(&n, good->arg);
    for (uint32_t i = 0; i < WRONGS; i++) {
        struct fab_buf *b = fab_buf_get(pool);
        struct job j = {.busy = true};
        struct link *l = &n.links[i + 1];
        struct iovec iov = {b->data, 4096};

        UNTIL(&n, l->arg);
        j.r = (struct fab_rma){.mr = {b->mr}, .iov = {iov}, .iovcnt = 1, .fn = job_done};
        aim_wrong(&j.r, i);
        memset(b->data, 0xee, 4096);
        jobs_done = jobs_failed = 0;
        CHECK(!fab_rma(l->c, &j.r));
        UNTIL(&n, jobs_done == 1 && l->closed);
        /* tcp learns of a bad write only by the end of the connection: the write itself may have been reported sent. */
        CHECK(l->err < 0 && (j.r.write || jobs_failed));
        CHECK(!good->closed);
        /* Another connection of the same client goes on. */
        j.busy = true;
        j.r.remote_addr = theirs.rw.addr;
        j.r.remote_key = theirs.rw.key;
        j.r.write = false;
        jobs_done = jobs_failed = 0;
        CHECK(!fab_rma(good->c, &j.r));
        UNTIL(&n, jobs_done == 1);
        CHECK(!jobs_failed && filled(b->data, 4096, 5, 0));
        fab_buf_put(b);
    }
    UNTIL(&n, good->in == 2); /* the client has looked at the last one's end */
    fab_disconnect(good->c);
    UNTIL(&n, n.closed == WRONGS + 1);
    hear(fd, &done, 1);
    fab_pool_free(pool);
    node_close(&n);
}

static void wrong_client(const char *provider, int fd)
{
    static struct node n;
    struct fab_mr *rw, *ro, *gone;
    uint8_t *mem = memory(3 * GUARD), done = 1;
    struct offers o;
    struct link *good;

    node_open(&n, provider, (struct fab_config){0});
    fill(mem, 3 * GUARD, 5, 0);
    o.rw = offer(&n, mem, GUARD, FAB_REMOTE_READ | FAB_REMOTE_WRITE, &rw);
    o.ro = offer(&n, mem, GUARD, FAB_REMOTE_READ, &ro);
    o.closed = offer(&n, mem, GUARD, FAB_REMOTE_READ | FAB_REMOTE_WRITE, &gone);
    CHECK(o.rw.key != o.ro.key && o.rw.key != o.closed.key);
    fab_mr_close(gone);
    hear_addr(fd, &n);
    good = node_connect(&n, NULL, 0);
    UNTIL(&n, good->up);
    node_send(good, &o, sizeof o);
    for (uint32_t i = 0; i < WRONGS; i++) {
        struct link *l = node_connect(&n, NULL, 0);

        UNTIL(&n, l->up);
        node_send(l, "x", 1);
        UNTIL(&n, l->closed);
        CHECK(l->err == -ECONNRESET && !good->closed);
    }
    node_send(good, "x", 1);
    UNTIL(&n, good->closed);
    /* Not a byte was moved by any of them. */
    CHECK(good->err == 0 && filled(mem, 3 * GUARD, 5, 0));
    tell(fd, &done, 1);
    fab_mr_close(rw);
    fab_mr_close(ro);
    node_close(&n);
    free(mem);
}

void a_wrong_key_or_range_moves_nothing_and_ends_only_that_connection(void **state)
{
    assert_true(run_pair(__func__, *state, wrong_server, wrong_client));
}

/* ---- ends in the middle ---- */

enum { FLIGHT = 48 };

static void start_flight(struct node *n, struct link *l, struct fab_buf *b, struct job *jobs)
{
    jobs_done = jobs_failed = 0;
    for (uint32_t i = 0; i < FLIGHT; i++) {
        jobs[i] = (struct job){.busy = true};
        jobs[i].r = (struct fab_rma){.write = i & 1,
                                     .mr = {b->mr},
                                     .iov = {{b->data, b->size}},
                                     .iovcnt = 1,
                                     .remote_addr = peer_region.addr,
                                     .remote_key = peer_region.key,
                                     .fn = job_done};
        CHECK(!fab_rma(l->c, &jobs[i].r));
    }
    (void)n;
}

static void drain_server(const char *provider, int fd)
{
    static struct node n;
    static struct job jobs[FLIGHT];
    struct fab_pool *pool;
    struct fab_buf *b;
    struct link *l = &n.links[0];

    node_open(&n, provider, (struct fab_config){0});
    CHECK(!fab_pool_new(n.s, 1u << 20, 1, FAB_LOCAL, &pool));
    b = fab_buf_get(pool);
    n.message = take_region;
    node_listen(&n);
    tell_addr(fd, &n);
    UNTIL(&n, have_region);
    start_flight(&n, l, b, jobs);
    for (int i = 0; i < 3; i++)
        CHECK(fab_progress(n.s, 0) >= 0);
    fab_disconnect(l->c);
    CHECK(fab_rma(l->c, &jobs[0].r) == -ENOTCONN);
    CHECK(!l->closed);
    UNTIL(&n, l->closed);
    /* verbs may finish them all before the end. */
    CHECK(jobs_done == FLIGHT && (jobs_failed ? job_err == -ECONNRESET : fab_info(n.f)->rdma));
    fab_buf_put(b);
    node_close(&n);
    fab_pool_free(pool); /* after its shard */
}

static void region_client(const char *provider, int fd)
{
    static struct node n;
    struct fab_mr *mr;
    uint8_t *mem = memory(1u << 20);
    struct region r;

    node_open(&n, provider, (struct fab_config){0});
    r = offer(&n, mem, 1u << 20, FAB_REMOTE_READ | FAB_REMOTE_WRITE, &mr);
    hear_addr(fd, &n);
    node_connect(&n, NULL, 0);
    UNTIL(&n, n.up == 1);
    node_send(&n.links[0], &r, sizeof r);
    UNTIL(&n, n.closed == 1);
    fab_mr_close(mr);
    node_close(&n);
    free(mem);
}

void a_disconnect_brings_every_operation_back(void **state)
{
    assert_true(run_pair(__func__, *state, drain_server, region_client));
}

/* The peer is killed in mid-transfer, again and again: the server stays, and its descriptors are as many as before. */
static uint32_t open_fds(void)
{
    uint32_t n = 0;

    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void killed_server(const char *provider, int fd)
{
    static struct node n;
    static struct job jobs[FLIGHT];
    struct fab_pool *pool;
    struct fab_buf *b;
    uint32_t fds = 0, times;
    uint32_t may_grow = provider_is_rdma(provider) ? 16 : 0; /* uroce sends from a pool of sockets, opened one by one */

    hear(fd, &times, sizeof times);
    node_open(&n, provider, (struct fab_config){0});
    CHECK(!fab_pool_new(n.s, 1u << 20, 1, FAB_LOCAL, &pool));
    b = fab_buf_get(pool);
    n.message = take_region;
    node_listen(&n);
    tell_addr(fd, &n);
    for (uint32_t i = 0; i < times; i++) {
        struct link *l = &n.links[i];
        uint8_t go = 1;

        have_region = false;
        UNTIL(&n, have_region);
        start_flight(&n, l, b, jobs);
        for (uint64_t k = rng_below(&n.rng, 20); k; k--)
            CHECK(fab_progress(n.s, 0) >= 0);
        tell(fd, &go, 1);
        UNTIL(&n, l->closed);
        CHECK(jobs_done == FLIGHT && l->err < 0);
        if (!fds)
            fds = open_fds();
        CHECK(open_fds() >= fds && open_fds() <= fds + may_grow);
        tell(fd, &go, 1); /* the next client comes after that: have_region is for one */
    }
    fab_buf_put(b);
    fab_pool_free(pool);
    node_close(&n);
}

void a_killed_peer_is_noticed_and_leaves_nothing_behind(void **state)
{
    /* What RDMA has is time-outs: seconds for each. */
    uint32_t times = (getenv("PENSTOCK_EXTENDED") ? 100 : 20) / (provider_is_rdma(*state) ? 5 : 1);
    struct node n = {0};
    pid_t server;
    int sv[2];
    uint8_t go;

    test_seed();
    assert_false(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv));
    server = start_role(__func__, *state, killed_server, sv[0], sv[1]);
    close(sv[0]);
    tell(sv[1], &times, sizeof times);
    hear_addr(sv[1], &n);
    for (uint32_t i = 0; i < times; i++) {
        int cv[2];
        pid_t client;

        assert_false(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, cv));
        client = start_role(__func__, *state, region_client, cv[0], cv[1]);
        close(cv[0]);
        tell_addr(cv[1], &n);
        assert_int_equal(recv(sv[1], &go, 1, MSG_WAITALL), 1);
        kill(client, SIGKILL);
        assert_int_equal(recv(sv[1], &go, 1, MSG_WAITALL), 1);
        waitpid(client, NULL, 0);
        close(cv[1]);
    }
    assert_true(wait_role(server));
    close(sv[1]);
}

/* ---- pools and registrations ---- */

static void pool_alone(const char *provider, int fd)
{
    static struct node n;
    struct fab_pool *p;
    struct fab_buf *b[4];
    struct fab_mr *m, *m2;
    uint64_t addr, key, key2;
    uint8_t mem[100];

    (void)fd;
    node_open(&n, provider, (struct fab_config){0});
    CHECK(fab_pool_new(n.s, 0, 4, FAB_LOCAL, &p) == -EINVAL);
    CHECK(fab_pool_new(n.s, SIZE_MAX / 4, 1000, FAB_LOCAL, &p) == -ENOMEM);
    CHECK(!fab_pool_new(n.s, 5000, 4, FAB_LOCAL, &p));
    for (int i = 0; i < 4; i++) {
        b[i] = fab_buf_get(p);
        CHECK(b[i] && b[i]->size == 8192 && ((uintptr_t)b[i]->data & 4095) == 0);
        memset(b[i]->data, i, b[i]->size);
    }
    CHECK(!fab_buf_get(p));
    fab_buf_put(b[2]);
    CHECK(fab_buf_get(p) == b[2] && !fab_buf_get(p));
    fab_pool_free(p);
    CHECK(fab_mr_reg(n.s, NULL, 10, 0, &m) == -EINVAL && fab_mr_reg(n.s, mem, 0, 0, &m) == -EINVAL);
    CHECK(!fab_mr_reg(n.s, mem, sizeof mem, FAB_REMOTE_READ, &m));
    CHECK(!fab_mr_reg(n.s, mem, sizeof mem, FAB_REMOTE_READ, &m2));
    fab_mr_remote(m, mem + 7, &addr, &key);
    fab_mr_remote(m2, mem + 7, &addr, &key2);
    CHECK(key != key2);
    CHECK(addr == (fab_info(n.f)->mr_mode & 4 ? (uintptr_t)mem + 7 : 7)); /* FI_MR_VIRT_ADDR */
    fab_mr_close(m);
    node_close(&n); /* m2 goes with the shard, its handle stays */
    fab_mr_close(m2);
}

void an_exhausted_pool_says_so_and_recovers(void **state)
{
    assert_true(run_pair(__func__, *state, pool_alone, pool_alone));
}
