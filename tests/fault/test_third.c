/*
 * Connections of third parties: whose memory requests may name, what comes when, and what is refused. The daemon runs
 * in this process. Without an argument `alice` is an agent at its server; with "agent" the daemon is an agent, alice a
 * client of it, and the connection is to the server behind; with "delay" each second read of the server's store takes
 * longer.
 */
#include "raw_daemon.h"

#include "base/rng.h"
#include "base/util.h"
#include "../lib/seed.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL (8u << 20)

static uint64_t seed;
static uint64_t owner = 1; /* a new one for each test: each has a share of connections */
static struct raw_way way;
static struct raw_conn third; /* alice's, new for each test */

/* ---- */

static int make_way(struct raw *c, struct raw_way *ret)
{
    return daemon_agent ? raw_third_party(c, 0, ret) : raw_third_ticket(c, 0, owner, ret);
}

/* The server says a word first. */
static int greeted(struct raw_conn *k)
{
    int r = raw_wait(k);

    return r < 0 ? r : k->reply.opcode == DP_PING && k->reply.msgno == 1 ? 0 : -EPROTO;
}

static int connect_third(struct raw *c, struct raw_way *w, struct raw_conn *k)
{
    int r = make_way(c, w);

    if (r == 0)
        r = raw_connect_third(c, w, k);
    return r == 0 ? greeted(k) : r;
}

static int set_up_third(void **state)
{
    owner++;
    if (set_up(state) < 0 || connect_third(&alice, &way, &third) < 0)
        return -1;
    memset(third.mem, 't', RAW_MEM);
    return 0;
}

static int tear_down_third(void **state)
{
    raw_disconnect(&third);
    return tear_down(state);
}

/* Memory is reached only while its owner looks after its connection. */
static int call_both(struct raw_conn *k, struct raw_conn *t, const struct dp_request *q)
{
    uint64_t end = now_ns() + 20 * NSEC_PER_SEC;
    int r = raw_request(k, q);

    while (r == 0 && !k->got && !k->closed && now_ns() < end) {
        fab_progress(k->shard, NSEC_PER_MSEC);
        fab_progress(t->shard, NSEC_PER_MSEC);
    }
    return r < 0 ? r : raw_wait(k);
}

static struct dp_request io(uint8_t opcode, uint64_t offset, uint32_t len, struct raw_conn *t, uint64_t number,
                            uint64_t tag, uint32_t at)
{
    struct dp_request q = {
        .opcode = opcode, .flags = DP_F_THIRD, .ino = ino, .offset = offset, .length = len, .nsegs = 2};

    q.seg[0] = (struct dp_seg){tag, number, 0};
    fab_mr_remote(t->mr, t->mem + at, &q.seg[1].addr, &q.seg[1].key);
    q.seg[1].len = len;
    return q;
}

/* It comes behind the bytes, whatever the answer does. */
static void assert_notice(struct raw_conn *t, uint8_t opcode, uint64_t tag, uint64_t number)
{
    assert_int_equal(raw_wait(t), 0);
    assert_int_equal(t->reply.opcode, opcode);
    assert_int_equal(t->reply.tag, tag);
    assert_int_equal(t->reply.msgno, number);
}

/* Answered, counted, and no byte of anybody's has moved; the connection that asked goes on. */
static void assert_refused(struct raw_conn *k, struct dp_request q, const char *reason)
{
    double before = refused(reason);

    assert_int_equal(call_both(k, &third, &q), -ENOTCONN);
    assert_int_equal(k->reply.offset, DP_SETTLED);
    assert_int_equal(refused(reason) - before, 1);
    assert_true(all(third.mem, RAW_MEM, 't'));
    assert_nothing_moved();
}

/* ---- */

static void bytes_of_all_sizes_and_alignments_come_and_go(void **state)
{
    uint8_t *model = calloc(1, MODEL);
    uint64_t small = ino, notices = 1, moved = 0;
    double before = metric("penstock_data_bytes_third_total");
    struct cap cap;
    struct rng r;
    char name[32];

    (void)state;
    rng_seed(&r, seed);
    snprintf(name, sizeof name, "big%llu", (unsigned long long)owner);
    assert_int_equal(raw_create(&alice, name, &ino, &cap), 0);
    assert_int_equal(raw_bind(&conn, 0, &cap), 0);
    for (int i = 0; i < 60; i++) {
        uint32_t len = (uint32_t)(1 + rng_below(&r, i % 10 == 0 ? 3u << 20 : i % 3 ? 300000 : 5000));
        uint32_t at = (uint32_t)rng_below(&r, RAW_MEM - len + 1), a = len / 3;
        uint64_t offset = rng_below(&r, MODEL - len), tag = rng_u64(&r);
        struct dp_request q = io(DP_WRITE, offset, len, &third, way.number, tag, at);
        if (i % 4 == 0 && a > 0) { /* in pieces, not in order in the memory */
            q.nsegs = 4;
            q.seg[2] = q.seg[3] = q.seg[1];
            q.seg[1].addr += len - a;
            q.seg[1].len = a;
            q.seg[2].len = a;
            q.seg[3].addr += a;
            q.seg[3].len = len - 2 * a;
        }
        rng_fill(&r, third.mem, RAW_MEM);
        for (uint32_t k = 1, pos = 0; k < q.nsegs; pos += q.seg[k++].len)
            memcpy(model + offset + pos,
                   third.mem + at + (q.seg[k].addr - io(DP_READ, 0, len, &third, 1, 0, at).seg[1].addr), q.seg[k].len);
        assert_int_equal(call_both(&conn, &third, &q), 0);
        assert_int_equal(conn.reply.result, len);
        memset(third.mem, 't', RAW_MEM);
        q.opcode = DP_READ;
        assert_int_equal(call_both(&conn, &third, &q), 0);
        assert_int_equal(conn.reply.result, len);
        assert_notice(&third, DP_READ, tag, ++notices);
        for (uint32_t k = 1, pos = 0; k < q.nsegs; pos += q.seg[k++].len)
            assert_memory_equal(model + offset + pos,
                                third.mem + at + (q.seg[k].addr - io(DP_READ, 0, len, &third, 1, 0, at).seg[1].addr),
                                q.seg[k].len);
        assert_true(all(third.mem, at, 't') && all(third.mem + at + len, RAW_MEM - at - len, 't'));
        moved += 2 * len;
    }
    assert_int_equal(metric("penstock_data_bytes_third_total") - before, moved);
    assert_true(all(conn.mem, RAW_MEM, 'm'));
    ino = small;
    free(model);
}

static void a_read_at_the_end_has_a_notice_only_for_bytes(void **state)
{
    struct dp_request q = io(DP_READ, FILE_BYTES - 1000, 70000, &third, way.number, 1, 33);

    (void)state;
    assert_int_equal(call_both(&conn, &third, &q), 0);
    assert_int_equal(conn.reply.result, 1000);
    assert_notice(&third, DP_READ, 1, 2);
    assert_true(all(third.mem, 33, 't') && all(third.mem + 33, 1000, 'f') &&
                all(third.mem + 1033, RAW_MEM - 1033, 't'));
    q = io(DP_READ, FILE_BYTES, 70000, &third, way.number, 2, 33);
    assert_int_equal(call_both(&conn, &third, &q), 0);
    assert_int_equal(conn.reply.result, 0);
    q = io(DP_READ, 0, 5000, &third, way.number, 3, 33);
    assert_int_equal(call_both(&conn, &third, &q), 0);
    assert_notice(&third, DP_READ, 3, 3);
}

static void a_failure_says_whether_the_memory_is_free(void **state)
{
    struct dp_request q = io(DP_READ, 0, 5000, &third, way.number, 1, 0);

    (void)state;
    q.cap = 7; /* not bound */
    assert_int_equal(call_both(&conn, &third, &q), -EACCES);
    assert_int_equal(conn.reply.offset, DP_SETTLED);
    q.cap = 0;
    q.ino++;
    assert_int_equal(call_both(&conn, &third, &q), -EACCES);
    assert_int_equal(conn.reply.offset, DP_SETTLED);
    assert_true(all(third.mem, RAW_MEM, 't'));
}

static void numbers_of_others_and_none_are_refused(void **state)
{
    const uint64_t bad[] = {way.number + 1, way.number + 1000, 1ull << 63, UINT64_MAX, way.number ^ 1ull << 63};
    struct raw_conn bobs;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        if (bad[i]) {
            assert_refused(&conn, io(DP_READ, 0, 5000, &third, bad[i], 1, 0), "third_unknown");
            assert_refused(&conn, io(DP_WRITE, 0, 5000, &third, bad[i], 1, 0), "third_unknown");
        }
    /* Bob knows number and key, and has rights to the file of his own. */
    assert_int_equal(raw_connect_new(&bob, &bobs), 0);
    {
        uint64_t his, alices = ino;
        struct cap cap;
        char name[32];
        snprintf(name, sizeof name, "bob%llu", (unsigned long long)owner);
        assert_int_equal(raw_create(&bob, name, &his, &cap), 0);
        assert_int_equal(raw_bind(&bobs, 0, &cap), 0);
        ino = his;
        struct dp_request w = io(DP_WRITE, 0, 5000, &third, way.number, 1, 0), r = w;
        r.opcode = DP_READ;
        ino = alices;
        assert_refused(&bobs, w, "third_unknown");
        assert_refused(&bobs, r, "third_unknown");
    }
    raw_disconnect(&bobs);
    struct dp_request q = io(DP_READ, 0, 5000, &third, way.number, 9, 0);
    assert_int_equal(call_both(&conn, &third, &q), 0);
    assert_notice(&third, DP_READ, 9, 2);
    assert_true(all(third.mem, 5000, 'f'));
}

static void a_key_that_is_none_ends_the_third_connection_only(void **state)
{
    struct dp_request q = io(DP_READ, 0, 5000, &third, way.number, 1, 0);

    (void)state;
    q.seg[1].key ^= 0x55;
    (void)call_both(&conn, &third, &q); /* the answer may be ahead of the failure */
    for (int i = 0; i < 400 && !third.closed; i++)
        fab_progress(third.shard, 50 * NSEC_PER_MSEC);
    assert_true(third.closed);
    assert_true(all(third.mem, RAW_MEM, 't'));
    assert_nothing_moved();
    q = raw_io(&conn, DP_READ, 0, ino, 0, 5000, 0);
    assert_int_equal(raw_call(&conn, &q), 0);
    assert_true(all(conn.mem, 5000, 'f'));
}

static void a_write_whose_bytes_cannot_be_had_does_nothing(void **state)
{
    struct dp_request q = io(DP_WRITE, 0, 5000, &third, way.number, 1, 0);

    (void)state;
    q.seg[1].key ^= 0x55;
    assert_int_equal(call_both(&conn, &third, &q), -ENOTCONN);
    assert_int_equal(conn.reply.offset, DP_SETTLED);
    assert_nothing_moved();
    q.seg[1].key ^= 0x55;
    assert_int_equal(call_both(&conn, &third, &q), -ENOTCONN); /* it is gone */
    assert_nothing_moved();
}

static void after_the_end_of_a_connection_its_number_is_unknown(void **state)
{
    (void)state;
    fab_disconnect(third.conn);
    for (int i = 0; i < 400 && !third.closed; i++)
        fab_progress(third.shard, 50 * NSEC_PER_MSEC);
    for (int i = 0;; i++) { /* the server hears of it a moment later */
        struct dp_request q = io(DP_WRITE, 0, 5000, &third, way.number, 1, 0);
        assert_int_equal(call_both(&conn, &third, &q), -ENOTCONN);
        if (i > 20)
            break;
    }
    assert_true(all(third.mem, RAW_MEM, 't'));
    assert_nothing_moved();
}

static void a_connection_makes_no_requests_of_its_own(void **state)
{
    const char *name = daemon_agent ? NULL : "third_message"; /* else the server behind counts it */
    double before = name ? refused(name) : 0;
    struct dp_request q = {.opcode = DP_PING};

    (void)state;
    assert_int_equal(raw_call(&third, &q), -ENOTCONN);
    if (name)
        assert_int_equal(refused(name) - before, 1);
    assert_nothing_moved();
}

static void tickets_are_used_once_by_the_right_connection(void **state)
{
    double before = daemon_agent ? 0 : refused("ticket_unknown");
    struct raw_way w = way;
    struct raw_conn k;
    struct rng r;

    (void)state;
    assert_int_equal(raw_connect_third(&alice, &w, &k), -ECONNREFUSED); /* it was used */
    raw_disconnect(&k);
    rng_seed(&r, seed);
    for (int i = 0; i < 5; i++) { /* one bit off: a guess takes nothing away */
        if (i == 0)
            assert_int_equal(make_way(&alice, &w), 0);
        struct raw_way guess = w;
        guess.ticket[rng_below(&r, w.len)] ^= (uint8_t)(1u << rng_below(&r, 8));
        assert_int_equal(raw_connect_third(&alice, &guess, &k), -ECONNREFUSED);
        raw_disconnect(&k);
    }
    if (!daemon_agent)
        assert_int_equal(refused("ticket_unknown") - before, 6);
    assert_int_equal(raw_connect_third(&alice, &w, &k), 0);
    assert_int_equal(greeted(&k), 0);
    raw_disconnect(&k);
    if (getenv("PENSTOCK_EXTENDED")) {
        assert_int_equal(make_way(&alice, &w), 0);
        usleep(10500000);
        assert_int_equal(raw_connect_third(&alice, &w, &k), -ECONNREFUSED);
        raw_disconnect(&k);
    }
}

/* Of connections at the server; of ways at an agent, in some time. */
static void one_client_has_its_share_only(void **state)
{
    double before = refused("limit");
    struct raw_conn k[16];
    struct raw_way w;
    int n = 0, r = 0;

    (void)state;
    if (daemon_agent) {
        while (n < 20 && (r = make_way(&bob, &w)) == 0)
            n++;
        assert_int_equal(r, -EAGAIN);
        assert_int_equal(n, 16);
        return;
    }
    for (n = 0; n < 15; n++)
        assert_int_equal(connect_third(&alice, &w, &k[n]), 0);
    assert_int_equal(connect_third(&alice, &w, &k[n]), -ECONNREFUSED); /* with the one of the set-up it is the 17th */
    raw_disconnect(&k[n]);
    assert_int_equal(refused("limit") - before, 1);
    owner++;
    assert_int_equal(connect_third(&alice, &w, &k[n]), 0); /* another one's share is his own */
    for (n = 0; n < 16; n++)
        raw_disconnect(&k[n]);
}

static void ways_end_with_the_session(void **state)
{
    struct raw_conn bobs, again;
    struct raw_way w;

    (void)state;
    raw_close(&bob);
    assert_int_equal(raw_open(&bob, addr, token, "p", "c"), 0);
    assert_int_equal(connect_third(&bob, &w, &bobs), 0);
    assert_int_equal(raw_end_session(&bob), 0);
    if (!daemon_agent) { /* there it is of the agent's session, and nobody can name it */
        for (int i = 0; i < 400 && !bobs.closed; i++)
            fab_progress(bobs.shard, 50 * NSEC_PER_MSEC);
        assert_true(bobs.closed);
    }
    raw_close(&bob);
    assert_int_equal(raw_open(&bob, addr, token, "p", "c"), 0);
    assert_int_equal(raw_connect_new(&bob, &again), 0);
    {
        uint64_t alices = ino;
        struct cap cap;
        char name[32];
        snprintf(name, sizeof name, "end%llu", (unsigned long long)owner);
        assert_int_equal(raw_create(&bob, name, &ino, &cap), 0);
        assert_int_equal(raw_bind(&again, 0, &cap), 0);
        struct dp_request q = io(DP_WRITE, 0, 5000, &bobs, w.number, 1, 0);
        ino = alices;
        assert_refused(&again, q, "third_unknown");
    }
    raw_disconnect(&again);
    raw_disconnect(&bobs);
}

/* ---- revocation ---- */

/* Another client with a third connection; the file is bound as 0. */
struct party {
    struct raw raw;
    struct raw_conn asks, moves;
    struct raw_way way;
    struct cap cap;
    uint64_t key;
};

static void party_open(struct party *p)
{
    owner++;
    assert_int_equal(raw_open(&p->raw, addr, token, "p", "c"), 0);
    assert_int_equal(raw_open_file(&p->raw, ino, CAP_READ | CAP_WRITE, &p->cap), 0);
    assert_int_equal(raw_grant(&p->raw, ino, CAP_READ | CAP_WRITE, 0, 0, 0, &p->cap, &p->key), 0);
    assert_int_equal(raw_connect_new(&p->raw, &p->asks), 0);
    assert_int_equal(raw_bind(&p->asks, 0, &p->cap), 0);
    assert_int_equal(connect_third(&p->raw, &p->way, &p->moves), 0);
    memset(p->moves.mem, 't', RAW_MEM);
}

static int party_moves(struct party *p, uint8_t opcode, uint32_t n)
{
    struct dp_request q = io(opcode, 0, n, &p->moves, p->way.number, 1, 0);

    return call_both(&p->asks, &p->moves, &q);
}

static void party_close(struct party *p)
{
    raw_disconnect(&p->asks);
    raw_disconnect(&p->moves);
    raw_end_session(&p->raw);
    raw_close(&p->raw);
}

/* The way and its connection are still there, and carry nothing for who has no right any more. */
static void what_is_revoked_moves_nothing_over_it(void **state)
{
    (void)state;
    for (int all_of_it = 0; all_of_it < 2; all_of_it++) {
        struct party p;
        party_open(&p);
        assert_int_equal(party_moves(&p, DP_READ, 5000), 0);
        assert_notice(&p.moves, DP_READ, 1, 2);
        assert_true(all(p.moves.mem, 5000, 'f'));
        memset(p.moves.mem, 't', RAW_MEM);
        assert_true((all_of_it ? raw_revoke_session(&p.raw) : raw_revoke_key(&p.raw, p.key)) > 0);
        assert_int_equal(party_moves(&p, DP_READ, 5000), -EKEYREVOKED);
        assert_int_equal(p.asks.reply.offset, DP_SETTLED);
        assert_int_equal(party_moves(&p, DP_WRITE, 5000), -EKEYREVOKED);
        assert_int_equal(p.asks.reply.offset, DP_SETTLED);
        assert_true(all(p.moves.mem, RAW_MEM, 't'));
        assert_nothing_moved();
        party_close(&p);
    }
}

/* The server takes back what it gave the agent: its host is told, and nothing moves until the file is opened anew. */
static void what_the_server_revokes_moves_nothing_over_it(void **state)
{
    struct raw admin;
    struct party p;
    struct dp_request q;

    (void)state;
    party_open(&p);
    assert_int_equal(party_moves(&p, DP_READ, 5000), 0);
    assert_notice(&p.moves, DP_READ, 1, 2);
    memset(p.moves.mem, 't', RAW_MEM);
    assert_int_equal(raw_open(&admin, behind_addr, behind_token, "p", "c"), 0);
    assert_true(raw_revoke_cont(&admin) > 0);
    assert_int_equal(party_moves(&p, DP_READ, 5000), -EKEYREVOKED);
    assert_int_equal(p.asks.reply.offset, DP_SETTLED);
    assert_int_equal(party_moves(&p, DP_WRITE, 5000), -EKEYREVOKED);
    assert_int_equal(p.asks.reply.offset, DP_SETTLED);
    assert_true(all(p.moves.mem, RAW_MEM, 't'));
    q = raw_io(&conn, DP_READ, 0, ino, 0, FILE_BYTES, 0);
    assert_int_equal(raw_call(&conn, &q), -EKEYREVOKED);
    assert_true(all(conn.mem, RAW_MEM, 'm'));
    assert_int_equal(raw_open_file(&alice, ino, CAP_READ | CAP_WRITE, &whole), 0);
    assert_int_equal(raw_bind(&conn, 0, &whole), 0);
    assert_int_equal(raw_call(&conn, &q), 0);
    assert_true(all(conn.mem, FILE_BYTES, 'f'));
    raw_end_session(&admin);
    raw_close(&admin);
    party_close(&p);
}

/* ---- with "delay" ---- */

/* A read of a file that is empty at first and has `n` bytes before its last part is read. */
static void read_while_it_grows(struct raw_conn *other, uint32_t n, uint64_t tag)
{
    struct dp_request r, w;
    struct cap cap;
    char name[32];

    snprintf(name, sizeof name, "grows%llu", (unsigned long long)tag);
    assert_int_equal(raw_create(&alice, name, &ino, &cap), 0);
    assert_int_equal(raw_bind(&conn, 0, &cap), 0);
    assert_int_equal(raw_bind(other, 0, &cap), 0);
    memset(third.mem, 't', RAW_MEM);
    r = io(DP_READ, 0, n, &third, way.number, tag, 0);
    w = raw_io(other, DP_WRITE, 0, ino, 0, n, 0);
    assert_int_equal(raw_request(&conn, &r), 0);
    usleep(100000);
    assert_int_equal(raw_call(other, &w), 0);
    for (int i = 0; i < 20000 && !conn.got && !conn.closed; i++) {
        fab_progress(conn.shard, NSEC_PER_MSEC);
        fab_progress(third.shard, NSEC_PER_MSEC);
    }
}

/* An answer "nothing read" gives the memory back at once: so none of the request's bytes may be on their way. */
static void a_read_of_nothing_has_no_bytes_under_way(void **state)
{
    const uint32_t part = 1u << 20; /* data.buffer_bytes: in three parts, of which one or two are delayed, in turn */
    uint64_t was = ino;
    struct raw_conn other;
    bool met = false;

    (void)state;
    assert_int_equal(raw_connect_new(&alice, &other), 0);
    for (uint64_t tag = 1; tag <= 40 && !met; tag++) {
        read_while_it_grows(&other, 3 * part, tag);
        if (raw_wait(&conn) == 0) {
            if (conn.reply.result > 0)
                continue; /* those bytes count, and a notice tells of them */
            for (int i = 0; i < 20; i++)
                fab_progress(third.shard, 10 * NSEC_PER_MSEC);
            assert_true(all(third.mem, RAW_MEM, 't'));
        } else { /* bytes behind a gap: it is to be asked again */
            assert_int_equal(conn.reply.status, -ENOTCONN);
            assert_int_equal(conn.reply.offset, 0);
            met = true;
        }
    }
    assert_true(met);
    raw_disconnect(&other);
    ino = was;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest slow[] = {
        cmocka_unit_test_setup_teardown(a_read_of_nothing_has_no_bytes_under_way, set_up_third, tear_down_third),
    };
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up_third, tear_down_third)
        T(bytes_of_all_sizes_and_alignments_come_and_go),
        T(a_read_at_the_end_has_a_notice_only_for_bytes),
        T(a_failure_says_whether_the_memory_is_free),
        T(numbers_of_others_and_none_are_refused),
        T(a_key_that_is_none_ends_the_third_connection_only),
        T(a_write_whose_bytes_cannot_be_had_does_nothing),
        T(after_the_end_of_a_connection_its_number_is_unknown),
        T(a_connection_makes_no_requests_of_its_own),
        T(tickets_are_used_once_by_the_right_connection),
        T(one_client_has_its_share_only),
        T(ways_end_with_the_session),
        T(what_is_revoked_moves_nothing_over_it),
        T(what_the_server_revokes_moves_nothing_over_it),
#undef T
    };

    seed = seed_new();
    daemon_agent = daemon_third = argc > 1 && !strcmp(argv[1], "agent");
    if (argc > 1 && !strcmp(argv[1], "delay")) {
        daemon_filter = "delay:ms=500,op=read,every=2";
        return cmocka_run_group_tests(slow, start_daemon, stop_daemon);
    }
    if (!daemon_agent)
        cmocka_set_skip_filter("what_the_server_revokes_moves_nothing_over_it");
    return cmocka_run_group_tests(tests, start_daemon, stop_daemon);
}
