/*
 * A tenant against the others of its daemon: with their tickets, capabilities and messages, with guesses, with more
 * connections than it may have, and by not reading. No byte moves, it is counted as that tenant's, the others are
 * served.
 */
#include "raw_daemon.h"

#include "base/rng.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LIMIT 3 /* anna's connections */

static const char config[] =
    "pools:\n"
    "  - {label: pa, mode: 777, containers: [{label: c, mode: 777}]}\n"
    "  - {label: pb, mode: 777, containers: [{label: c, mode: 777}]}\n"
    "tenants:\n"
    "  - {name: anna, containers: [pa/*], buffer_memory: 16M, max_connections: 3}\n"
    "  - {name: bert, containers: [pb/*], buffer_memory: 16M}\n"
    "credentials:\n"
    "  - {name: anna, token: annas-own-token-of-the-test, uid: 1000, gid: 1000, tenant: anna}\n"
    "  - {name: bert, token: berts-own-token-of-the-test, uid: 1000, gid: 1000, tenant: bert}\n";

static struct raw anna, bert;
static struct raw_conn ka, kb;
static uint64_t file_a, file_b;
static struct cap cap_a, cap_b;
#define SHARD_A 1u /* the server's own tenant has shard 0 */
#define SHARD_B 2u

static int start(void **state)
{
    daemon_config = config;
    if (start_daemon(state) < 0 || raw_open(&anna, addr, "annas-own-token-of-the-test", "pa", "c") < 0 ||
        raw_open(&bert, addr, "berts-own-token-of-the-test", "pb", "c") < 0)
        return -1;
    return raw_create(&anna, "f", &file_a, &cap_a) < 0 ? -1 : raw_create(&bert, "f", &file_b, &cap_b);
}

static int stop(void **state)
{
    raw_close(&anna);
    raw_close(&bert);
    return stop_daemon(state);
}

static int both(void **state)
{
    struct dp_request w;
    (void)state;

    if (raw_connect_shard(&anna, SHARD_A, &ka) < 0 || raw_connect_shard(&bert, SHARD_B, &kb) < 0 ||
        raw_bind(&ka, 0, &cap_a) < 0 || raw_bind(&kb, 0, &cap_b) < 0)
        return -1;
    memset(kb.mem, 'b', FILE_BYTES);
    w = raw_io(&kb, DP_WRITE, 0, file_b, 0, FILE_BYTES, 0);
    if (raw_call(&kb, &w) < 0)
        return -1;
    memset(ka.mem, 'm', RAW_MEM);
    memset(kb.mem, 'm', RAW_MEM);
    return 0;
}

static int neither(void **state)
{
    (void)state;
    raw_disconnect(&ka);
    raw_disconnect(&kb);
    return 0;
}

static double refused_of(const char *tenant, const char *reason)
{
    char name[120];
    snprintf(name, sizeof name, "penstock_tenant_refused_total{tenant=\"%s\",reason=\"%s\"}", tenant, reason);
    return metric(name);
}

/* Bert's file is as he wrote it, read over his connection; anna's memory has nothing of it. */
static void assert_bert_is_served_and_apart(void)
{
    struct dp_request r = raw_io(&kb, DP_READ, 0, file_b, 0, FILE_BYTES, 0);

    assert_int_equal(raw_call(&kb, &r), 0);
    assert_int_equal(kb.reply.result, FILE_BYTES);
    assert_true(all(kb.mem, FILE_BYTES, 'b'));
    memset(kb.mem, 'm', FILE_BYTES);
    if (ka.mem)
        assert_true(all(ka.mem, RAW_MEM, 'm'));
}

static void a_ticket_opens_nothing_at_another_tenants_shard(void **state)
{
    double before = refused_of("bert", "ticket_shard"), own = refused_of("bert", "ticket_unknown");
    struct raw crossed = anna;
    struct raw_conn k;
    uint8_t ticket[48];
    size_t len;
    (void)state;

    crossed.data = bert.data;
    assert_int_equal(raw_ticket(&anna, SHARD_A, ticket, &len), 0);
    assert_true(raw_connect(&crossed, ticket, len, NULL, &k) < 0);
    raw_disconnect(&k);
    assert_int_equal(refused_of("bert", "ticket_shard") - before, 1);
    /* It is gone for her own as well; and there are none for the others' shards. */
    assert_true(raw_connect(&anna, ticket, len, NULL, &k) < 0);
    raw_disconnect(&k);
    assert_int_equal(raw_ticket(&anna, SHARD_B, ticket, &len), -EINVAL);
    assert_int_equal(raw_ticket(&anna, 0, ticket, &len), -EINVAL);
    assert_int_equal(raw_ticket(&anna, 77, ticket, &len), -EINVAL);
    /* Bert's ticket, stolen, under her own session's key: the connection is up to the first message. */
    assert_int_equal(raw_ticket(&bert, SHARD_B, ticket, &len), 0);
    before = refused_of("bert", "message_mac");
    if (raw_connect(&crossed, ticket, len, NULL, &k) == 0) {
        struct dp_request ping = {.opcode = DP_PING};
        assert_int_equal(raw_call(&k, &ping), -ENOTCONN);
        assert_int_equal(refused_of("bert", "message_mac") - before, 1);
    }
    raw_disconnect(&k);
    assert_int_equal(refused_of("bert", "ticket_unknown"), own);
    assert_bert_is_served_and_apart();
}

static void a_capability_of_another_tenant_is_not_bound(void **state)
{
    double session = refused_of("anna", "cap_session"), moved = bytes_moved();
    struct dp_request r = raw_io(&ka, DP_READ, 0, file_b, 0, 4096, 0);
    (void)state;

    assert_int_equal(raw_bind(&ka, 1, &cap_b), -EACCES);
    assert_int_equal(refused_of("anna", "cap_session") - session, 1);
    /* Nor is another's object reached by its number under her own. */
    session = refused_of("anna", "cap_rights");
    assert_int_equal(raw_call(&ka, &r), -EACCES);
    assert_int_equal(refused_of("anna", "cap_rights") - session, 1);
    r = raw_io(&ka, DP_READ, 1, file_b, 0, 4096, 0);
    assert_int_equal(raw_call(&ka, &r), -EACCES);
    assert_int_equal(bytes_moved(), moved);
    assert_bert_is_served_and_apart();
}

static void a_message_of_another_tenants_connection_ends_this_one(void **state)
{
    double before = refused_of("anna", "message_mac"), moved;
    struct dp_request w = raw_io(&kb, DP_WRITE, 0, file_b, 0, 4096, 0);
    (void)state;

    assert_int_equal(raw_call(&kb, &w), 0); /* he writes 'm's, and she has heard it */
    moved = bytes_moved();
    assert_int_equal(raw_send(&ka, kb.sent, kb.sent_len), 0);
    assert_int_equal(raw_wait(&ka), -ENOTCONN);
    assert_int_equal(refused_of("anna", "message_mac") - before, 1);
    assert_int_equal(bytes_moved(), moved);
}

static void guesses_find_nothing(void **state)
{
    const int tries = getenv("PENSTOCK_EXTENDED") ? 20000 : 300;
    double moved = bytes_moved();
    struct cap guess = cap_a;
    (void)state;

    for (int i = 0; i < tries; i++) {
        /* The MAC: all that stands between her and another range or object. */
        rng_secret(guess.bytes + guess.len - 32, 32);
        assert_int_equal(raw_bind(&ka, 1, &guess), -EACCES);
    }
    assert_true(refused_of("anna", "cap_mac") >= tries);
    assert_int_equal(bytes_moved(), moved);
    print_message("guessing: a ticket, session key or capability is one of 2^256: at 10^6 tries a second half of them "
                  "take %.0e years; a message's MAC is one of 2^128 and a remote key of tcp one of 2^64 = %.1e, and a "
                  "wrong one ends its connection\n",
                  5.8e76 / 1e6 / 31557600.0, 18446744073709551616.0);
    assert_bert_is_served_and_apart();
}

static void a_key_is_stale_once_it_is_revoked(void **state)
{
    struct dp_request r = raw_io(&ka, DP_READ, 1, file_a, 0, 8, 0);
    double before;
    struct cap cap;
    uint64_t key;
    (void)state;

    assert_int_equal(raw_grant(&anna, file_a, CAP_READ, 0, 0, 0, &cap, &key), 0);
    assert_int_equal(raw_bind(&ka, 1, &cap), 0);
    assert_int_equal(raw_revoke_key(&bert, key), 0); /* not his: nothing ends */
    assert_int_equal(raw_call(&ka, &r), 0);
    before = refused_of("anna", "cap_revoked");
    assert_int_equal(raw_revoke_key(&anna, key), 1);
    assert_int_equal(raw_call(&ka, &r), -EKEYREVOKED);
    assert_true(refused_of("anna", "cap_revoked") > before);
    assert_bert_is_served_and_apart();
    /* Her next open is under a new key. */
    assert_int_equal(raw_grant(&anna, file_a, CAP_READ | CAP_WRITE, 0, 0, 0, &cap_a, NULL), 0);
}

static void connections_end_at_the_tenants_limit(void **state)
{
    double before = refused_of("anna", "limit");
    struct raw_conn more[LIMIT + 2];
    int up = 0;
    (void)state;

    for (int i = 0; i < LIMIT + 2; i++)
        up += raw_connect_shard(&anna, SHARD_A, &more[i]) == 0;
    assert_int_equal(up, LIMIT - 1); /* with the one of the test */
    assert_int_equal(refused_of("anna", "limit") - before, LIMIT + 2 - up);
    assert_bert_is_served_and_apart();
    for (int i = 0; i < LIMIT + 2; i++)
        raw_disconnect(&more[i]);
}

static void who_stops_reading_stops_only_itself(void **state)
{
    struct dp_request r = raw_io(&ka, DP_READ, 0, file_a, 0, 4096, 0);
    (void)state;

    for (uint32_t i = 0; i < 1000; i++) /* as many as the connection takes: nobody looks at the answers */
        if (raw_request(&ka, &r) < 0)
            break;
    for (int i = 0; i < 20; i++)
        assert_bert_is_served_and_apart();
}

static void garbage_ends_its_connection_only(void **state)
{
    uint8_t junk[200];
    double before = refused_of("anna", "message_malformed") + refused_of("anna", "message_mac") +
                    refused_of("anna", "version");
    (void)state;

    rng_secret(junk, sizeof junk);
    assert_int_equal(raw_send(&ka, junk, sizeof junk), 0);
    assert_int_equal(raw_wait(&ka), -ENOTCONN);
    assert_int_equal(refused_of("anna", "message_malformed") + refused_of("anna", "message_mac") +
                         refused_of("anna", "version") - before, 1);
    assert_bert_is_served_and_apart();
}

#define T(f) cmocka_unit_test_setup_teardown(f, both, neither)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_ticket_opens_nothing_at_another_tenants_shard),
        T(a_capability_of_another_tenant_is_not_bound),
        T(a_message_of_another_tenants_connection_ends_this_one),
        T(guesses_find_nothing),
        T(a_key_is_stale_once_it_is_revoked),
        T(connections_end_at_the_tenants_limit),
        T(who_stops_reading_stops_only_itself),
        T(garbage_ends_its_connection_only),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
