/*
 * Exactly once, where the retry fails: a failure leaves no record, so nothing but control/once.h keeps the first try,
 * still on its way over the connection that was given up, from happening after the client was told of the failure.
 */
#include "raw_daemon.h"

#include "base/util.h"
#include "remote/remote_store.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SLOT 200u

static uint64_t seq;

/* A second connection of alice's, on which `number` may only be read. */
static void connect_narrow(struct raw_conn *k)
{
    struct cap narrow;

    assert_int_equal(raw_grant(&alice, ino, CAP_READ, 0, 0, 0, &narrow, NULL), 0);
    assert_int_equal(raw_connect_new(&alice, k), 0);
    assert_int_equal(raw_bind(k, 0, &narrow), 0);
}

static struct dp_request recorded(struct dp_request r)
{
    r.slot = SLOT;
    r.seq = seq;
    return r;
}

static void a_request_is_not_done_after_its_retry_failed(void **state)
{
    double before = refused("message_overtaken");
    struct dp_request first, retry;
    struct raw_conn next;
    (void)state;

    seq++;
    first = recorded(raw_io(&conn, DP_WRITE, 0, ino, 0, 4096, 0));
    connect_narrow(&next);
    retry = recorded(raw_io(&next, DP_WRITE, 0, ino, 0, 4096, 0));
    assert_int_equal(raw_call(&next, &retry), -EACCES);
    assert_int_equal(raw_call(&conn, &first), -ENOTCONN);
    assert_int_equal(refused("message_overtaken") - before, 1);
    raw_disconnect(&next);
    assert_nothing_moved();
}

/* An earlier request of the slot than the last one is out as well, whatever that ended with. */
static void an_older_sequence_is_refused_though_the_newer_one_failed(void **state)
{
    struct dp_request r, bad;
    (void)state;

    seq += 2;
    bad = recorded(raw_io(&conn, DP_WRITE, 9, ino, 0, 4096, 0));
    assert_int_equal(raw_call(&conn, &bad), -EACCES); /* nothing is bound as 9 */
    seq--;
    r = recorded(raw_io(&conn, DP_WRITE, 0, ino, 0, 4096, 0));
    assert_int_equal(raw_call(&conn, &r), -ESTALE);
    seq++;
    assert_nothing_moved();
}

/* The server reads the client's memory for the first try when the retry comes: the client does not answer meanwhile. */
static void a_retry_overtakes_what_waits_for_its_bytes(void **state)
{
    const char *provider = getenv("PENSTOCK_TEST_PROVIDER");
    struct dp_request first, retry;
    struct raw_conn next;
    (void)state;

    if (provider && (!strncmp(provider, "verbs", 5) || !strcmp(provider, "uroce")))
        skip(); /* a device answers for a client that is away */
    seq++;
    first = recorded(raw_io(&conn, DP_WRITE, 0, ino, 0, FILE_BYTES, 0));
    assert_int_equal(raw_request(&conn, &first), 0);
    connect_narrow(&next); /* takes longer than the first one's way to the server */
    retry = recorded(raw_io(&next, DP_WRITE, 0, ino, 0, FILE_BYTES, 0));
    assert_int_equal(raw_call(&next, &retry), -EACCES);
    assert_int_equal(raw_wait(&conn), -ENOTCONN);
    raw_disconnect(&next);
    assert_nothing_moved();
}

/* Sends a punch of the first block, which the filter keeps in the store for a while, and waits until it is there. */
static void punch_slowly(const struct dp_request *punch)
{
    static const char held[] = "penstock_filter_faults_total{filter=\"delay\"}";
    double before = metric(held);

    assert_int_equal(raw_request(&conn, punch), 0);
    while (metric(held) == before)
        fab_progress(conn.shard, NSEC_PER_MSEC);
}

static void a_retry_waits_for_what_is_in_the_store_and_has_its_reply(void **state)
{
    struct dp_request punch;
    struct raw_conn next;
    uint64_t change;
    (void)state;

    seq++;
    punch = recorded((struct dp_request){.opcode = DP_PUNCH, .ino = ino, .length = 4096});
    assert_int_equal(raw_connect_new(&alice, &next), 0);
    assert_int_equal(raw_bind(&next, 0, &whole), 0);
    punch_slowly(&punch);
    assert_int_equal(raw_call(&next, &punch), 0);
    change = next.reply.change;
    assert_int_equal(raw_wait(&conn), 0);
    assert_int_equal(conn.reply.change, change); /* once */
    raw_disconnect(&next);
}

static void a_failure_is_told_when_nothing_can_happen_any_more(void **state)
{
    struct dp_request punch, read;
    struct raw_conn next;
    (void)state;

    seq++;
    punch = recorded((struct dp_request){.opcode = DP_PUNCH, .ino = ino, .length = 4096});
    connect_narrow(&next);
    punch_slowly(&punch);
    assert_int_equal(raw_call(&next, &punch), -EACCES);
    read = raw_io(&next, DP_READ, 0, ino, 0, 8192, 0);
    assert_int_equal(raw_call(&next, &read), 0);
    assert_true(all(next.mem, 4096, 0) && all(next.mem + 4096, 4096, 'f'));
    assert_int_equal(raw_wait(&conn), 0);
    raw_disconnect(&next);
}

/* Tries that wait behind one another, on connections that end: the newest has the reply, the others nothing. */
static void of_several_retries_that_wait_the_newest_goes_on(void **state)
{
    struct dp_request punch;
    struct raw_conn next[3];
    (void)state;

    seq++;
    punch = recorded((struct dp_request){.opcode = DP_PUNCH, .ino = ino, .length = 4096});
    for (int i = 0; i < 3; i++) {
        assert_int_equal(raw_connect_new(&alice, &next[i]), 0);
        assert_int_equal(raw_bind(&next[i], 0, &whole), 0);
    }
    punch_slowly(&punch);
    for (int i = 0; i < 3; i++)
        assert_int_equal(raw_request(&next[i], &punch), 0);
    raw_disconnect(&next[0]);
    assert_int_equal(raw_wait(&next[2]), 0);
    raw_disconnect(&next[1]);
    raw_disconnect(&next[2]);
}

static void a_name_is_not_made_after_a_later_try_failed(void **state)
{
    double before = refused("message_overtaken");
    (void)state;

    assert_int_equal(raw_mkdir(&alice, "once", 0, 0, 0), 0);
    assert_int_equal(raw_mkdir(&alice, "once", 3, 1, 2), -EEXIST);
    assert_int_equal(raw_rmdir(&alice, "once"), 0);
    assert_int_equal(raw_mkdir(&alice, "once", 3, 1, 1), -ESTALE); /* comes late */
    assert_int_equal(raw_rmdir(&alice, "once"), -ENOENT);
    assert_int_equal(refused("message_overtaken") - before, 1);
    /* The same try, or a later one, of what failed is a new chance; of what succeeded it has the reply. */
    assert_int_equal(raw_mkdir(&alice, "once", 3, 1, 2), 0);
    assert_int_equal(raw_mkdir(&alice, "once", 3, 1, 3), 0);
    assert_int_equal(raw_mkdir(&alice, "more", 3, 2, 1), 0);
    assert_int_equal(raw_mkdir(&alice, "once", 3, 1, 9), -ESTALE);
    assert_int_equal(raw_rmdir(&alice, "once"), 0);
    assert_int_equal(raw_rmdir(&alice, "more"), 0);
}

struct maker {
    pthread_t id;
    uint64_t attempt;
    int result;
};

static void *make(void *arg)
{
    struct maker *m = arg;

    m->result = raw_mkdir(&alice, "slowly", 4, 1, m->attempt);
    return NULL;
}

/* The filter keeps each new name in the store for a while. */
static void tries_of_a_name_that_meet_make_it_once(void **state)
{
    struct maker m[4];
    int ok = 0;
    (void)state;

    for (int i = 0; i < 4; i++) {
        m[i].attempt = (uint64_t)i + 1;
        assert_int_equal(pthread_create(&m[i].id, NULL, make, &m[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(m[i].id, NULL);
        assert_true(m[i].result == 0 || m[i].result == -ESTALE);
        ok += m[i].result == 0;
    }
    assert_int_equal(m[3].result, 0); /* the newest, whenever it came */
    assert_true(ok >= 1);
    assert_int_equal(raw_rmdir(&alice, "slowly"), 0);
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
/* ---- by the client of our own, as an agent has it ---- */

static int64_t replace_chunk(struct pst_queue *q, struct pst_cont *c, const struct pst_reqid *id, uint8_t *bytes,
                             size_t n)
{
    struct iovec iov = {bytes, n};
    struct pst_op op = {.kind = PST_OP_CHUNK_REPLACE,
                        .cont = c,
                        .ino = ino,
                        .length = n,
                        .iov = &iov,
                        .iovcnt = 1,
                        .version = PST_VERSION_ANY,
                        .ctx.id = *id};

    return pst_queue_run(q, &op);
}

/* A chunk with filters is made anew when it is tried again, and is longer or shorter than the one that was recorded. */
static void a_recorded_answer_ends_a_repetition_of_another_length(void **state)
{
    const struct pst_option opts[] = {{"origin", "1"}, {"timeout_ms", "20000"}};
    const struct pst_ctx ctx = {0}; /* trusted */
    struct pst_reqid id = {.client = "a host's client", .slot = 3, .seq = 1};
    static const size_t lengths[] = {12288, 4096, 20480}; /* by the arena and in the message */
    uint8_t *bytes = calloc(1, 20480);
    char where[80], err[300] = "";
    struct pst_store *st;
    struct pst_cont *c;
    struct pst_queue *q;
    struct pst_attr a;

    (void)state;
    snprintf(where, sizeof where, "//%s", addr);
    if (pst_remote_backend.open(where, opts, ARRAY_SIZE(opts), &st, err, sizeof err) < 0)
        fail_msg("%s", err);
    assert_int_equal(pst_store_origin_add(st, id.client), 0);
    assert_int_equal(pst_cont_open(st, &ctx, "p", "c", &c), 0);
    assert_int_equal(pst_store_open(c, &ctx, ino, W_OK, false, &a), 0);
    assert_int_equal(pst_queue_open(st, 4, &q), 0);
    for (size_t i = 0; i < ARRAY_SIZE(lengths); i++)
        assert_int_equal(replace_chunk(q, c, &id, bytes, lengths[i]), lengths[0]);
    id.seq++;
    assert_int_equal(replace_chunk(q, c, &id, bytes, 4096), 4096);
    pst_queue_close(q);
    pst_store_release(c, ino);
    pst_cont_close(c);
    pst_store_origin_remove(st, id.client);
    pst_store_close(st);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_request_is_not_done_after_its_retry_failed),
        T(an_older_sequence_is_refused_though_the_newer_one_failed),
        T(a_retry_overtakes_what_waits_for_its_bytes),
        T(a_retry_waits_for_what_is_in_the_store_and_has_its_reply),
        T(a_failure_is_told_when_nothing_can_happen_any_more),
        T(of_several_retries_that_wait_the_newest_goes_on),
        T(a_name_is_not_made_after_a_later_try_failed),
        T(tries_of_a_name_that_meet_make_it_once),
        T(a_recorded_answer_ends_a_repetition_of_another_length),
    };

    daemon_filter = "delay:op=punch+make,ms=200";
    return cmocka_run_group_tests(tests, start_daemon, stop_daemon);
}
