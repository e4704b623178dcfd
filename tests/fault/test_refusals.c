/*
 * What a client must not get, each with the counter that shows it: "moves no byte" means that the client's memory keeps
 * its pattern and the file its contents. With "cache" the daemon is an agent with one, in front of a server.
 */
#include "raw_daemon.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Reads and writes under the bound capability are refused so, and counted so; the connection stays. */
static void assert_refused(uint32_t number, uint64_t object, uint64_t offset, uint32_t len, int status,
                           const char *reason)
{
    double before = refused(reason), moved = bytes_moved();
    struct dp_request r = raw_io(&conn, DP_READ, number, object, offset, len, 0),
                      w = raw_io(&conn, DP_WRITE, number, object, offset, len, 0),
                      small = {.opcode = DP_READ,
                               .flags = DP_F_INLINE,
                               .cap = number,
                               .ino = object,
                               .offset = offset,
                               .length = min_u64(len, DP_INLINE_MAX)};

    assert_int_equal(raw_call(&conn, &r), status);
    assert_int_equal(raw_call(&conn, &w), status);
    assert_int_equal(raw_call(&conn, &small), status);
    assert_int_equal(conn.reply.payload_len, 0);
    assert_int_equal(refused(reason) - before, 3);
    assert_int_equal(bytes_moved() - moved, 0);
    assert_nothing_moved();
}

static void a_correct_client_is_served(void **state)
{
    struct dp_request r = raw_io(&conn, DP_READ, 0, ino, 4096, 8192, 100), bad;
    (void)state;

    assert_int_equal(raw_call(&conn, &r), 0);
    assert_int_equal(conn.reply.result, 8192);
    assert_true(all(conn.mem + 100, 8192, 'f'));
    assert_true(all(conn.mem, 100, 'm') && all(conn.mem + 8292, 1000, 'm'));
    bad = (struct dp_request){.opcode = DP_PING};
    assert_int_equal(raw_call(&conn, &bad), 0);
}

static void large_requests_are_cut_and_joined(void **state)
{
    const uint32_t n = 3u << 20;
    struct dp_request w, r;
    struct cap cap;
    uint64_t big;
    (void)state;

    assert_int_equal(raw_create(&alice, "big", &big, &cap), 0);
    assert_int_equal(raw_bind(&conn, 1, &cap), 0);
    for (uint32_t i = 0; i < n; i++)
        conn.mem[i] = (uint8_t)(i * 7 + (i >> 12));
    w = raw_io(&conn, DP_WRITE, 1, big, 12345, n, 0);
    assert_int_equal(raw_call(&conn, &w), 0);
    assert_int_equal(conn.reply.result, n);
    assert_int_equal(conn.reply.size, n + 12345);
    memset(conn.mem, 0, n);
    r = raw_io(&conn, DP_READ, 1, big, 12345, n + 4096, 0);
    /* Three pieces of the client's memory, of odd lengths. */
    r.nsegs = 3;
    r.seg[2] = r.seg[1] = r.seg[0];
    r.seg[0].len = 1000001;
    r.seg[1].addr += 1000001;
    r.seg[1].len = 7;
    r.seg[2].addr += 1000008;
    r.seg[2].len = n + 4096 - 1000008;
    assert_int_equal(raw_call(&conn, &r), 0);
    assert_int_equal(conn.reply.result, n); /* short at the end of the file */
    for (uint32_t i = 0; i < n; i++)
        if (conn.mem[i] != (uint8_t)(i * 7 + (i >> 12)))
            fail_msg("byte %u differs", i);
}

static void an_unbound_number_is_refused(void **state)
{
    (void)state;
    assert_refused(5, ino, 0, 4096, -EACCES, "cap_key");
    assert_refused(4095, ino, 0, 4096, -EACCES, "cap_key");
}

static void rights_and_objects_outside_are_refused(void **state)
{
    struct cap ro, other;
    uint64_t other_ino;
    double before;
    struct dp_request w = raw_io(&conn, DP_WRITE, 1, ino, 0, 4096, 0);
    (void)state;

    assert_int_equal(raw_grant(&alice, ino, CAP_READ, 0, 0, 0, &ro, NULL), 0);
    assert_int_equal(raw_bind(&conn, 1, &ro), 0);
    before = refused("cap_rights");
    assert_int_equal(raw_call(&conn, &w), -EACCES);
    w = (struct dp_request){.opcode = DP_PUNCH, .cap = 1, .ino = ino, .length = 4096};
    assert_int_equal(raw_call(&conn, &w), -EACCES);
    w.opcode = DP_ALLOCATE;
    assert_int_equal(raw_call(&conn, &w), -EACCES);
    assert_int_equal(refused("cap_rights") - before, 3);
    assert_nothing_moved();

    assert_int_equal(raw_create(&alice, "other", &other_ino, &other), 0);
    assert_int_equal(raw_bind(&conn, 2, &other), 0);
    assert_refused(2, ino, 0, 4096, -EACCES, "cap_rights"); /* a capability of another file */
}

static void ranges_outside_are_refused(void **state)
{
    struct dp_request r;
    struct cap part;
    double before;
    (void)state;

    assert_int_equal(raw_grant(&alice, ino, CAP_READ | CAP_WRITE, 8192, 8192, 0, &part, NULL), 0);
    assert_int_equal(raw_bind(&conn, 1, &part), 0);
    assert_refused(1, ino, 0, 4096, -ERANGE, "cap_range");
    assert_refused(1, ino, 8191, 4096, -ERANGE, "cap_range");
    assert_refused(1, ino, 12289, 4096, -ERANGE, "cap_range");
    assert_refused(1, ino, INT64_MAX - 4096, 4096, -ERANGE, "cap_range");
    before = refused("cap_range");
    r = (struct dp_request){.opcode = DP_SEEK_DATA, .cap = 1, .ino = ino, .offset = 8192};
    assert_int_equal(raw_call(&conn, &r), -ERANGE); /* it would tell of what lies behind */
    r = raw_io(&conn, DP_WRITE, 1, ino, 0, 16, 0);
    r.flags = DP_F_APPEND;
    assert_int_equal(raw_call(&conn, &r), -ERANGE);
    r = raw_io(&conn, DP_CHUNK_READ, 1, ino, 0, 65536, 0);
    assert_int_equal(raw_call(&conn, &r), -ERANGE);
    assert_int_equal(refused("cap_range") - before, 3);
    r = raw_io(&conn, DP_READ, 1, ino, 8192, 8192, 0);
    assert_int_equal(raw_call(&conn, &r), 0); /* inside it is */
    assert_true(all(conn.mem, 8192, 'f') && all(conn.mem + 8192, 100, 'm'));
}

static void an_expired_capability_is_refused(void **state)
{
    struct timespec t = {0, 300000000};
    struct dp_request r;
    struct cap brief;
    (void)state;

    assert_int_equal(raw_grant(&alice, ino, CAP_READ | CAP_WRITE, 0, 0, 250, &brief, NULL), 0);
    assert_int_equal(raw_bind(&conn, 1, &brief), 0);
    nanosleep(&t, NULL);
    assert_refused(1, ino, 0, 4096, -EKEYEXPIRED, "cap_expired");
    r = (struct dp_request){.opcode = DP_PING};
    assert_int_equal(raw_call(&conn, &r), 0);
}

static void a_revoked_capability_is_refused_where_it_is_bound(void **state)
{
    struct raw carol;
    struct raw_conn k;
    struct cap cap;
    uint64_t key;
    double before;
    struct dp_request r;
    (void)state;

    /* A session of its own: keys are per container handle, and the others' must live on. */
    assert_int_equal(raw_open(&carol, addr, token, "p", "c"), 0);
    assert_int_equal(raw_open_file(&carol, ino, CAP_READ | CAP_WRITE, &cap), 0);
    assert_int_equal(raw_grant(&carol, ino, CAP_READ | CAP_WRITE, 0, 0, 0, &cap, &key), 0);
    assert_int_equal(raw_connect_new(&carol, &k), 0);
    assert_int_equal(raw_bind(&k, 1, &cap), 0);
    memset(k.mem, 'm', RAW_MEM);
    r = raw_io(&k, DP_READ, 1, ino, 0, 4096, 0);
    assert_int_equal(raw_call(&k, &r), 0);
    memset(k.mem, 'm', RAW_MEM);
    assert_int_equal(raw_revoke_key(&carol, key), 1);
    before = refused("cap_revoked");
    r = raw_io(&k, DP_READ, 1, ino, 0, 4096, 0);
    assert_int_equal(raw_call(&k, &r), -EKEYREVOKED);
    r = raw_io(&k, DP_WRITE, 1, ino, 0, 4096, 0);
    assert_int_equal(raw_call(&k, &r), -EKEYREVOKED);
    assert_int_equal(raw_bind(&k, 2, &cap), -EKEYREVOKED); /* and it cannot be bound again */
    assert_true(refused("cap_revoked") - before >= 3);
    assert_true(all(k.mem, RAW_MEM, 'm'));
    assert_nothing_moved();
    raw_disconnect(&k);
    raw_end_session(&carol);
    raw_close(&carol);
}

/* Reads until its connection ends: the first answer that is neither data nor the end. */
static void *read_on(void *arg)
{
    struct raw_conn *k = arg;
    struct dp_request r = {.opcode = DP_READ, .flags = DP_F_INLINE, .cap = 1, .ino = ino, .length = 8};
    int e;

    do
        e = raw_call(k, &r);
    while (e == 0);
    return (void *)(intptr_t)e;
}

/* What is left of a session is asked for again in the next one: an answer that says "revoked" would go to the user. */
static void a_session_that_ends_while_data_flows_answers_nothing_more(void **state)
{
    struct raw carol;
    struct raw_conn k;
    struct cap cap;
    pthread_t id;
    void *end;
    (void)state;

    for (int i = 0; i < 60; i++) {
        assert_int_equal(raw_open(&carol, addr, token, "p", "c"), 0);
        assert_int_equal(raw_open_file(&carol, ino, CAP_READ, &cap), 0);
        assert_int_equal(raw_connect_new(&carol, &k), 0);
        assert_int_equal(raw_bind(&k, 1, &cap), 0);
        assert_int_equal(pthread_create(&id, NULL, read_on, &k), 0);
        assert_int_equal(raw_end_session(&carol), 0);
        pthread_join(id, &end);
        assert_int_equal((intptr_t)end, -ENOTCONN);
        raw_disconnect(&k);
        raw_close(&carol);
    }
}

static void a_forged_or_foreign_capability_is_not_bound(void **state)
{
    struct cap forged = whole, wide, part, bobs;
    double mac = refused("cap_mac"), foreign = refused("cap_session"), malformed = refused("cap_malformed");
    struct cap_grant g = {.range_length = 4096, .expires_ns = INT64_MAX, .rights = CAP_READ};
    (void)state;

    forged.bytes[forged.len - 1] ^= 1;
    assert_int_equal(raw_bind(&conn, 1, &forged), -EACCES);
    assert_int_equal(refused("cap_mac") - mac, 1);
    /* A caveat that narrows cannot be taken away or changed. */
    assert_int_equal(cap_narrow(&whole, &g, &part), 0);
    wide = part;
    wide.bytes[part.len / 2] ^= 4;
    assert_true(raw_bind(&conn, 1, &wide) < 0);
    forged.len = 3;
    assert_int_equal(raw_bind(&conn, 1, &forged), -EBADMSG);
    assert_true(refused("cap_malformed") - malformed >= 1);
    /* Another session's, though it is a good one. */
    assert_int_equal(raw_grant(&bob, ino, CAP_READ, 0, 0, 0, &bobs, NULL), 0);
    assert_int_equal(raw_bind(&conn, 1, &bobs), -EACCES);
    assert_int_equal(refused("cap_session") - foreign, 1);
    assert_refused(1, ino, 0, 4096, -EACCES, "cap_key"); /* nothing was bound */
}

static void a_narrowed_capability_is_as_narrow(void **state)
{
    struct cap_grant g = {
        .range_offset = 4096, .range_length = 4096, .expires_ns = INT64_MAX, .rights = CAP_READ | CAP_WRITE};
    struct cap part;
    (void)state;

    assert_int_equal(cap_narrow(&whole, &g, &part), 0);
    assert_int_equal(raw_bind(&conn, 1, &part), 0);
    assert_refused(1, ino, 0, 4096, -ERANGE, "cap_range");
}

static void a_ticket_is_good_once_and_where_it_was_made_for(void **state)
{
    uint8_t ticket[48], made_up[32];
    struct raw_conn k;
    size_t len;
    double unknown = refused("ticket_unknown");
    (void)state;

    assert_int_equal(raw_ticket(&alice, 0, ticket, &len), 0);
    assert_int_equal(raw_connect(&alice, ticket, len, NULL, &k), 0);
    raw_disconnect(&k);
    assert_true(raw_connect(&alice, ticket, len, NULL, &k) < 0); /* replayed */
    raw_disconnect(&k);
    memset(made_up, 7, sizeof made_up);
    assert_true(raw_connect(&alice, made_up, sizeof made_up, NULL, &k) < 0);
    raw_disconnect(&k);
    assert_true(raw_connect(&alice, made_up, 3, NULL, &k) < 0);
    raw_disconnect(&k);
    assert_int_equal(refused("ticket_unknown") - unknown, 3);
}

static void a_message_without_the_right_mac_ends_the_connection(void **state)
{
    struct dp_request w = raw_io(&conn, DP_WRITE, 0, ino, 0, 4096, 0);
    uint8_t msg[FAB_MSG_MAX], ticket[48];
    double before = refused("message_mac");
    struct raw_conn k;
    size_t len;
    (void)state;

    assert_int_equal(raw_request(&conn, &w), 0);
    assert_int_equal(raw_wait(&conn), 0);
    memcpy(msg, conn.sent, conn.sent_len);
    msg[conn.sent_len - 1] ^= 0x80;
    assert_int_equal(raw_send(&conn, msg, conn.sent_len), 0);
    assert_int_equal(raw_wait(&conn), -ENOTCONN);
    assert_int_equal(refused("message_mac") - before, 1);

    /* Bob's key on alice's ticket. */
    assert_int_equal(raw_ticket(&alice, 0, ticket, &len), 0);
    assert_int_equal(raw_connect(&alice, ticket, len, bob.data_key, &k), 0);
    w = (struct dp_request){.opcode = DP_PING};
    assert_int_equal(raw_call(&k, &w), -ENOTCONN);
    assert_int_equal(refused("message_mac") - before, 2);
    raw_disconnect(&k);
}

static void a_replayed_or_reordered_message_ends_the_connection(void **state)
{
    struct dp_request w = raw_io(&conn, DP_WRITE, 0, ino, 0, 4096, 0);
    double before = refused("message_replay"), mac = refused("message_mac");
    struct raw_conn k;
    uint8_t msg[FAB_MSG_MAX];
    size_t len;
    (void)state;

    memset(conn.mem, 'f', 4096);
    assert_int_equal(raw_call(&conn, &w), 0);
    memset(conn.mem, 'm', 4096);
    memcpy(msg, conn.sent, len = conn.sent_len);
    assert_int_equal(raw_send(&conn, msg, len), 0); /* the same bytes once more */
    assert_int_equal(raw_wait(&conn), -ENOTCONN);
    assert_int_equal(refused("message_replay") - before, 1);
    assert_nothing_moved();

    assert_int_equal(raw_connect_new(&alice, &k), 0); /* or on another connection of the same session */
    assert_int_equal(raw_send(&k, msg, len), 0);
    assert_int_equal(raw_wait(&k), -ENOTCONN);
    assert_int_equal(refused("message_mac") - mac, 1);
    raw_disconnect(&k);

    assert_int_equal(raw_connect_new(&alice, &k), 0); /* a number is left out */
    w = (struct dp_request){.opcode = DP_PING, .msgno = 2};
    assert_int_equal(raw_call(&k, &w), -ENOTCONN);
    assert_int_equal(refused("message_replay") - before, 2);
    raw_disconnect(&k);
}

static void garbage_ends_the_connection(void **state)
{
    double before = refused("message_malformed") + refused("message_mac") + refused("version");
    uint8_t junk[FAB_MSG_MAX];
    struct raw_conn k;
    (void)state;

    for (int i = 0; i < 8; i++) {
        size_t len = (size_t[]){1, 2, 15, 16, 40, 100, 4096, FAB_MSG_MAX}[i];
        assert_int_equal(raw_connect_new(&alice, &k), 0);
        memset(junk, i * 37, sizeof junk);
        junk[0] = i & 1 ? DP_VERSION : junk[0];
        assert_int_equal(raw_send(&k, junk, len), 0);
        assert_int_equal(raw_wait(&k), -ENOTCONN);
        raw_disconnect(&k);
    }
    assert_int_equal(refused("message_malformed") + refused("message_mac") + refused("version") - before, 8);
    assert_nothing_moved();
}

static void a_wrong_memory_key_ends_that_connection_only(void **state)
{
    struct raw_conn k;
    struct dp_request r;
    (void)state;

    for (int i = 0; i < 2; i++) {
        assert_int_equal(raw_connect_new(&alice, &k), 0);
        assert_int_equal(raw_bind(&k, 0, &whole), 0);
        r = raw_io(&k, i ? DP_WRITE : DP_READ, 0, ino, 0, 16384, 0);
        r.seg[0].key ^= 0x5a5a;
        assert_int_equal(raw_call(&k, &r), -ENOTCONN);
        raw_disconnect(&k);
    }
    r = (struct dp_request){.opcode = DP_PING};
    assert_int_equal(raw_call(&conn, &r), 0);
    assert_nothing_moved(); /* the write whose bytes did not come left the file alone */
}

static void the_end_of_a_session_ends_its_connections(void **state)
{
    struct raw carol;
    struct raw_conn k;
    struct cap cap;
    struct dp_request r;
    double sessions;
    (void)state;

    assert_int_equal(raw_open(&carol, addr, token, "p", "c"), 0);
    assert_int_equal(raw_grant(&carol, ino, CAP_READ | CAP_WRITE, 0, 0, 0, &cap, NULL), 0);
    assert_int_equal(raw_connect_new(&carol, &k), 0);
    assert_int_equal(raw_bind(&k, 0, &cap), 0);
    sessions = metric("penstock_sessions");
    assert_int_equal(raw_end_session(&carol), 0);
    assert_int_equal(raw_wait(&k), -ENOTCONN);
    assert_int_equal(metric("penstock_sessions"), sessions - 1);
    raw_disconnect(&k);
    raw_close(&carol);
    r = (struct dp_request){.opcode = DP_PING};
    assert_int_equal(raw_call(&conn, &r), 0); /* alice goes on */
}

static void more_requests_than_credits_end_the_connection(void **state)
{
    struct dp_request r = {.opcode = DP_PING};
    int e = 0;
    (void)state;

    /* The transport lets nobody send more messages than credits, so all are answered, however fast they come. */
    for (int i = 0; i < 2000 && e == 0; i++) {
        e = raw_request(&conn, &r);
        if (e == -EAGAIN) {
            conn.msgno--;
            e = 0;
            fab_progress(conn.shard, NSEC_PER_MSEC);
        }
    }
    assert_int_equal(e, 0);
    assert_false(conn.closed);
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        T(a_correct_client_is_served),
        T(large_requests_are_cut_and_joined),
        T(an_unbound_number_is_refused),
        T(rights_and_objects_outside_are_refused),
        T(ranges_outside_are_refused),
        T(an_expired_capability_is_refused),
        T(a_revoked_capability_is_refused_where_it_is_bound),
        T(a_session_that_ends_while_data_flows_answers_nothing_more),
        T(a_forged_or_foreign_capability_is_not_bound),
        T(a_narrowed_capability_is_as_narrow),
        T(a_ticket_is_good_once_and_where_it_was_made_for),
        T(a_message_without_the_right_mac_ends_the_connection),
        T(a_replayed_or_reordered_message_ends_the_connection),
        T(garbage_ends_the_connection),
        T(a_wrong_memory_key_ends_that_connection_only),
        T(the_end_of_a_session_ends_its_connections),
        T(more_requests_than_credits_end_the_connection),
    };

    if (argc > 1 && !strcmp(argv[1], "cache")) {
        daemon_agent = true;
        daemon_cache = "16M";
    }
    return cmocka_run_group_tests(tests, start_daemon, stop_daemon);
}
