/*
 * Capabilities and exported memory: what a narrowed, expired or revoked one does not allow places no byte in the
 * client's memory, and what is under way when the keys end lands before the export's end or never. The client is raw;
 * the daemon is a server, or ("agent") an agent, whose server works in the client's memory, under keys of the agent's
 * own there.
 */
#include "export_client.h"

#include "base/rng.h"
#include "base/util.h"
#include "../lib/seed.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define AT 12288u /* where in the memory requests go */

static uint64_t seed;

static struct dp_request under(uint32_t cap, uint8_t opcode, uint64_t offset, uint32_t len, const struct given *g)
{
    struct dp_request q = io(opcode, offset, len, g, AT);

    q.cap = cap;
    return q;
}

/* Neither way, and counted; the connection goes on. */
static void assert_refused(uint32_t cap, uint64_t offset, uint32_t len, int err, const char *reason,
                           const struct given *g)
{
    double before = refused(reason);

    for (int i = 0; i < 2; i++) {
        struct dp_request q = under(cap, i ? DP_WRITE : DP_READ, offset, len, g);
        assert_int_equal(raw_call(&conn, &q), err);
    }
    assert_int_equal(refused(reason) - before, 2);
    assert_true(all(g->mem, BYTES, 'g'));
    assert_nothing_moved();
}

static void assert_read(uint32_t cap, uint64_t offset, uint32_t len, struct given *g)
{
    struct dp_request q = under(cap, DP_READ, offset, len, g);

    assert_int_equal(raw_call(&conn, &q), 0);
    assert_int_equal(conn.reply.result, len);
    assert_true(all(g->mem, AT, 'g') && all(g->mem + AT, len, 'f') && all(g->mem + AT + len, BYTES - AT - len, 'g'));
    memset(g->mem, 'g', BYTES);
}

static void a_narrowed_capability_places_what_it_covers_alone(void **state)
{
    const struct cap_grant range = {
        .range_offset = 4096, .range_length = 8192, .expires_ns = INT64_MAX, .rights = CAP_READ | CAP_WRITE};
    const struct cap_grant reading = {.expires_ns = INT64_MAX, .rights = CAP_READ};
    struct cap part, less;
    struct dp_request q;
    struct given g;

    (void)state;
    give(&alice, BYTES, &g);
    assert_int_equal(cap_narrow(&whole, &range, &part), 0);
    assert_int_equal(raw_bind(&conn, 1, &part), 0);
    assert_refused(1, 0, 4096, -ERANGE, "cap_range", &g);
    assert_refused(1, 4095, 2, -ERANGE, "cap_range", &g);
    assert_refused(1, 8192, 4097, -ERANGE, "cap_range", &g);
    assert_refused(1, 0, FILE_BYTES, -ERANGE, "cap_range", &g);
    assert_read(1, 4096, 8192, &g);
    assert_read(1, 12287, 1, &g);
    assert_int_equal(cap_narrow(&whole, &reading, &less), 0);
    assert_int_equal(raw_bind(&conn, 2, &less), 0);
    assert_read(2, 0, FILE_BYTES, &g);
    q = under(2, DP_WRITE, 0, 4096, &g);
    assert_int_equal(raw_call(&conn, &q), -EACCES);
    assert_nothing_moved();
    take_back(&g, BYTES);
}

static void an_expired_one_places_nothing(void **state)
{
    struct cap brief;
    struct given g;

    (void)state;
    give(&alice, BYTES, &g);
    assert_int_equal(raw_grant(&alice, ino, CAP_READ | CAP_WRITE, 0, 0, 250, &brief, NULL), 0);
    assert_int_equal(raw_bind(&conn, 1, &brief), 0);
    usleep(300000);
    assert_refused(1, 0, 4096, -EKEYEXPIRED, "cap_expired", &g);
    assert_read(0, 0, 4096, &g);
    take_back(&g, BYTES);
}

/* A client with a session, a connection and memory of its own, whose keys may end. */
struct other {
    struct raw c;
    struct raw_conn k;
    struct given g;
    struct cap cap;
    uint64_t key;
    _Atomic int calls;
    _Atomic bool over;
    int end; /* of its last request */
};

static void other_comes(struct other *o)
{
    uint64_t same;

    assert_int_equal(raw_open(&o->c, addr, token, "p", "c"), 0);
    assert_int_equal(raw_create(&o->c, "file", &same, &o->cap), 0); /* open: an agent has no access to what is not */
    assert_int_equal(same, ino);
    assert_int_equal(raw_grant(&o->c, ino, CAP_READ | CAP_WRITE, 0, 0, 0, &o->cap, &o->key), 0);
    assert_int_equal(raw_connect_new(&o->c, &o->k), 0);
    assert_int_equal(raw_bind(&o->k, 1, &o->cap), 0);
    give(&o->c, BYTES, &o->g);
}

static void other_goes(struct other *o, bool ended_already)
{
    raw_disconnect(&o->k);
    if (!ended_already)
        raw_end_session(&o->c);
    raw_close(&o->c);
}

static void a_revoked_one_places_nothing(void **state)
{
    struct other o = {.calls = 0};
    double before = refused("cap_revoked");
    struct dp_request q;

    (void)state;
    other_comes(&o);
    q = under(1, DP_READ, 0, 4096, &o.g);
    assert_int_equal(raw_call(&o.k, &q), 0);
    assert_true(all(o.g.mem + AT, 4096, 'f'));
    memset(o.g.mem, 'g', BYTES);
    assert_int_equal(raw_revoke_key(&o.c, o.key), 1);
    for (int i = 0; i < 2; i++) {
        q.opcode = i ? DP_WRITE : DP_READ;
        assert_int_equal(raw_call(&o.k, &q), -EKEYREVOKED);
    }
    assert_int_equal(refused("cap_revoked") - before, 2);
    assert_true(all(o.g.mem, BYTES, 'g'));
    assert_nothing_moved();
    take_back(&o.g, BYTES); /* a key's end is not the memory's */
    other_goes(&o, false);
}

/* Reads into the middle of the memory until it is refused; touches none of it. */
static void *read_on(void *arg)
{
    struct other *o = arg;
    struct dp_request q = under(1, DP_READ, 0, FILE_BYTES, &o->g);

    while ((o->end = raw_call(&o->k, &q)) == 0)
        atomic_fetch_add(&o->calls, 1);
    atomic_store(&o->over, true);
    return NULL;
}

/* The export's end says that nobody will write: not the daemon, and not the server that it had asked. */
static void what_is_under_way_when_keys_end_lands_before_the_exports_end_or_never(void **state)
{
    struct rng r;

    (void)state;
    rng_seed(&r, seed);
    for (int round = 0; round < (getenv("PENSTOCK_EXTENDED") ? 200 : 20); round++) {
        struct other o = {.calls = 0};
        pthread_t t;
        other_comes(&o);
        assert_int_equal(pthread_create(&t, NULL, read_on, &o), 0);
        while (atomic_load(&o.calls) < 3) {
            assert_false(atomic_load(&o.over));
            usleep(500);
        }
        usleep((unsigned)rng_below(&r, 3000));
        if (round % 2)
            assert_true(raw_revoke_session(&o.c) > 0);
        else
            assert_int_equal(raw_end_session(&o.c), 0);
        assert_true(ended(o.g.conn, 20000));
        assert_true(all(o.g.mem, AT, 'g') && all(o.g.mem + AT + FILE_BYTES, BYTES - AT - FILE_BYTES, 'g'));
        memset(o.g.mem, 'm', BYTES);
        pthread_join(t, NULL);
        assert_true(o.end < 0);
        usleep(2000);
        if (!all(o.g.mem, BYTES, 'm'))
            fail_msg("round %d: something was written after the export's end", round);
        forget(&o.g, BYTES);
        other_goes(&o, round % 2 == 0);
    }
}

/*
 * The host hears of it at its next request, and has access again once it opens the file anew; nothing else than the
 * file's bytes comes meanwhile, and only where asked.
 */
static void keys_of_the_agent_itself_may_be_revoked_at_its_server(void **state)
{
    struct raw admin;
    struct given g;
    struct rng r;

    (void)state;
    if (!daemon_agent)
        skip(); /* there is no other server */
    rng_seed(&r, seed);
    assert_int_equal(raw_open(&admin, behind_addr, behind_token, "p", "c"), 0);
    give(&alice, BYTES, &g);
    for (int i = 0; i < 30; i++) {
        struct dp_request q = under(0, DP_READ, 0, FILE_BYTES, &g);
        uint64_t same;
        int e;
        assert_int_equal(raw_request(&conn, &q), 0);
        usleep((unsigned)rng_below(&r, 1000));
        assert_true(raw_revoke_cont(&admin) >= 0);
        e = raw_wait(&conn);
        assert_true(e == 0 || e == -EKEYREVOKED);
        assert_true(all(g.mem, AT, 'g') && all(g.mem + AT + FILE_BYTES, BYTES - AT - FILE_BYTES, 'g'));
        assert_true(e != 0 || all(g.mem + AT, FILE_BYTES, 'f'));
        memset(g.mem, 'g', BYTES);
        assert_int_equal(raw_call(&conn, &q), -EKEYREVOKED);
        assert_true(all(g.mem, BYTES, 'g'));
        assert_int_equal(raw_create(&alice, "file", &same, &whole), 0);
        assert_int_equal(raw_bind(&conn, 0, &whole), 0);
        assert_read(0, 0, FILE_BYTES, &g);
    }
    take_back(&g, BYTES);
    raw_end_session(&admin);
    raw_close(&admin);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        T(a_narrowed_capability_places_what_it_covers_alone),
        T(an_expired_one_places_nothing),
        T(a_revoked_one_places_nothing),
        T(what_is_under_way_when_keys_end_lands_before_the_exports_end_or_never),
        T(keys_of_the_agent_itself_may_be_revoked_at_its_server),
#undef T
    };

    seed = seed_new();
    daemon_export = true;
    daemon_agent = argc > 1 && !strcmp(argv[1], "agent");
    return cmocka_run_group_tests(tests, start_daemon, stop_daemon);
}
