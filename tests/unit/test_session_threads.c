/* The session table under many threads: nothing is freed twice, or never. */
#include "control/cap.h"
#include "control/session.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>

#include <cmocka.h>

#define ROUNDS  400
#define THREADS 4

static atomic_uint conts_freed, objects_freed;
static struct sess_table *t;

static void on_object(void *user, struct pst_cont *c, uint64_t ino)
{
    (void)user, (void)c, (void)ino;
    atomic_fetch_add(&objects_freed, 1);
}

static void on_cont(void *user, struct pst_cont *c)
{
    (void)user, (void)c;
    atomic_fetch_add(&conts_freed, 1);
}

static void *churn(void *arg)
{
    const struct sess_ident alice = {.client_id = "alice's client..", .credential = "alice", .uid = 1000,
                                     .purpose = "mount"};
    struct pst_cont *const cont = (struct pst_cont *)(uintptr_t)1; /* the table never looks inside */

    (void)arg;
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct sess *s, *got;
        struct sess_cont *sc;
        uint64_t h, o, k;
        uint8_t ticket[SESS_TICKET_BYTES], key[32];
        if (sess_open(t, &alice, i, &s))
            continue; /* the others have them all */
        if (!sess_cont_add(t, s, cont, 1, &h) && (sc = sess_cont_get(t, s, h))) {
            sess_object_add(t, s, sc, i, CAP_READ, i % 8, i + 1, &o);
            if (!sess_key_mint(t, s, sc, &k, key))
                sess_revoke_key(t, k, NULL);
            sess_cont_put(sc);
        }
        if (!sess_ticket_new(t, s, 0, i, ticket) && !sess_ticket_use(t, ticket, sizeof ticket, 0, i, &got))
            sess_put(got);
        if (i % 3 == 0)
            sess_expire(t, i % 9 ? i : UINT64_MAX);
        sess_close(t, sess_id(s));
        sess_put(s);
    }
    return NULL;
}

static void threads_share_the_table(void **state)
{
    const struct sess_hooks hooks = {on_object, on_cont, NULL, NULL, NULL, NULL};
    const struct sess_limits l = {.sessions = THREADS};
    pthread_t threads[THREADS];

    (void)state;
    t = sess_table_new(&l, &hooks);
    assert_non_null(t);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(sess_count(t), 0);
    assert_true(conts_freed > 0 && conts_freed <= THREADS * ROUNDS);
    assert_true(objects_freed <= conts_freed);
    sess_table_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_share_the_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
