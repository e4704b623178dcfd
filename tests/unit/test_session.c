/* The session table under a virtual clock: leases, handles, keys, tickets, limits, and what is freed when. */
#include "control/cap.h"
#include "control/session.h"

#include "base/util.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define SEC NSEC_PER_SEC

/* What the hooks have seen, in order: "o5 c1 g " is object 5, container 1, session gone. */
static char events[4096];
static unsigned conts_freed, objects_freed, gone;

static void on_object(void *user, struct pst_cont *c, uint64_t ino)
{
    (void)user, (void)c;
    objects_freed++;
    sprintf(events + strlen(events), "o%llu ", (unsigned long long)ino);
}

static void on_cont(void *user, struct pst_cont *c)
{
    (void)user;
    conts_freed++;
    sprintf(events + strlen(events), "c%lu ", (unsigned long)(uintptr_t)c);
}

static void on_gone(void *user, const uint8_t id[16])
{
    (void)user, (void)id;
    gone++;
    strcat(events, "g ");
}

static struct sess_table *t;
static const struct sess_hooks hooks = {on_object, on_cont, on_gone, NULL, NULL, NULL};
static const struct sess_ident alice = {.client_id = "alice's client..",
                                        .credential = "alice",
                                        .uid = 1000,
                                        .purpose = "mount"},
                               bob = {.credential = "bob", .uid = 1001, .purpose = "cli"};

static struct pst_cont *cont(unsigned long n)
{
    return (struct pst_cont *)(uintptr_t)n; /* the table never looks inside */
}

static int setup(void **state)
{
    const struct sess_limits l = {.sessions = 4, .conts = 3, .objects = 5, .tickets = 2, .thirds = 2,
                                  .lease_ns = 30 * SEC, .ticket_ns = 10 * SEC};
    (void)state;
    events[0] = 0;
    conts_freed = objects_freed = gone = 0;
    t = sess_table_new(&l, &hooks);
    return t ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    sess_table_free(t);
    return 0;
}

static struct sess *open_at(const struct sess_ident *who, uint64_t now)
{
    struct sess *s = NULL;
    assert_int_equal(sess_open(t, who, now, &s), 0);
    return s;
}

static uint64_t add_cont(struct sess *s, unsigned long n, uint64_t id)
{
    uint64_t h = 0;
    assert_int_equal(sess_cont_add(t, s, cont(n), id, &h), 0);
    return h;
}

static void a_lease_ends_when_it_is_not_renewed(void **state)
{
    struct sess *s = open_at(&alice, 0), *again;
    (void)state;
    again = sess_get(t, sess_id(s), 16, 29 * SEC);
    assert_ptr_equal(again, s);
    assert_int_equal(sess_renew(t, s, 29 * SEC), 0);
    sess_put(again);
    assert_int_equal(sess_expire(t, 40 * SEC), 59 * SEC);
    assert_true(sess_alive(s));
    assert_null(sess_get(t, sess_id(s), 16, 59 * SEC)); /* over, before the sweep has seen it */
    assert_int_equal(sess_refused(t, REFUSE_SESSION), 1);
    assert_int_equal(sess_expire(t, 59 * SEC), UINT64_MAX);
    assert_false(sess_alive(s));
    assert_int_equal(sess_renew(t, s, 59 * SEC), -ESTALE);
    assert_int_equal(sess_close(t, sess_id(s)), -ESTALE);
    assert_int_equal(sess_count(t), 0);
    assert_string_equal(events, "g ");
    sess_put(s);
}

static void ids_are_checked_whole(void **state)
{
    struct sess *s = open_at(&alice, 0);
    uint8_t id[16];
    (void)state;
    memcpy(id, sess_id(s), 16);
    assert_null(sess_get(t, id, 15, 0));
    assert_null(sess_get(t, id, 0, 0));
    id[15] ^= 1;
    assert_null(sess_get(t, id, 16, 0));
    assert_int_equal(sess_close(t, id), -ESTALE);
    assert_int_equal(sess_refused(t, REFUSE_SESSION), 3);
    sess_put(s);
}

static void keys_differ_between_sessions(void **state)
{
    struct sess *a = open_at(&alice, 0), *b = open_at(&alice, 0);
    (void)state;
    assert_memory_not_equal(sess_id(a), sess_id(b), 16);
    assert_memory_not_equal(sess_data_key(a), sess_data_key(b), 32);
    sess_put(a);
    sess_put(b);
}

static void closing_frees_objects_before_containers(void **state)
{
    struct sess *s = open_at(&alice, 0);
    uint64_t c1 = add_cont(s, 1, 11), c2 = add_cont(s, 2, 12), h;
    struct sess_cont *sc1 = sess_cont_get(t, s, c1), *sc2 = sess_cont_get(t, s, c2);
    (void)state;
    assert_int_equal(sess_object_add(t, s, sc1, 5, CAP_READ, 0, 0, &h), 0);
    assert_int_equal(sess_object_add(t, s, sc2, 6, CAP_READ, 0, 0, &h), 0);
    sess_cont_put(sc1);
    sess_cont_put(sc2);
    assert_int_equal(sess_close(t, sess_id(s)), 0);
    assert_true(strstr(events, "g ") == events);
    assert_true(strstr(events, "c1 ") > strstr(events, "o5 "));
    assert_true(strstr(events, "c2 ") > strstr(events, "o6 "));
    assert_int_equal(strlen(events), strlen("g o5 o6 c1 c2 "));
    sess_put(s);
}

static void a_container_in_use_outlives_its_session(void **state)
{
    struct sess *s = open_at(&alice, 0);
    struct sess_cont *sc = sess_cont_get(t, s, add_cont(s, 1, 11));
    uint64_t h;
    (void)state;
    assert_int_equal(sess_close(t, sess_id(s)), 0);
    assert_string_equal(events, "g ");
    assert_int_equal(sess_object_add(t, s, sc, 5, CAP_READ, 0, 0, &h), -ESTALE);
    assert_ptr_equal(sess_cont_store(sc), cont(1));
    sess_cont_put(sc);
    assert_string_equal(events, "g c1 ");
    sess_put(s);
}

static void handles_belong_to_their_session(void **state)
{
    struct sess *a = open_at(&alice, 0), *b = open_at(&bob, 0);
    uint64_t ca = add_cont(a, 1, 11), oa, got;
    struct sess_cont *sc = sess_cont_get(t, a, ca);
    (void)state;
    assert_int_equal(sess_object_add(t, a, sc, 5, CAP_READ, 3, 1, &oa), 0);
    assert_null(sess_cont_get(t, b, ca));
    assert_int_equal(sess_cont_close(t, b, ca, 0, 0), -EBADF);
    assert_int_equal(sess_object_close(t, b, oa, 0, 0), -EBADF);
    assert_int_equal(sess_object_close(t, a, ca, 0, 0), -EBADF); /* a container's handle is no object's */
    assert_int_equal(sess_refused(t, REFUSE_HANDLE), 4);
    assert_true(sess_object_find(t, a, sc, 5, CAP_READ, 3, 1, &got));
    assert_true(got == oa);
    assert_false(sess_object_find(t, a, sc, 6, CAP_READ, 3, 1, &got)); /* another object: no retry */
    assert_false(sess_object_find(t, a, sc, 5, CAP_READ | CAP_WRITE, 3, 1, &got)); /* more than was checked */
    assert_false(sess_object_find(t, a, sc, 5, CAP_READ, 3, 2, &got));
    assert_false(sess_object_find(t, a, sc, 5, CAP_READ, 4, 1, &got));
    assert_false(sess_object_find(t, a, sc, 5, CAP_READ, 3, 0, &got));
    assert_false(sess_object_find(t, b, sc, 5, CAP_READ, 3, 1, &got));
    assert_int_equal(sess_object_close(t, a, oa, 0, 0), 0);
    assert_int_equal(sess_object_close(t, a, oa, 0, 0), -EBADF);
    assert_false(sess_object_find(t, a, sc, 5, CAP_READ, 3, 1, &got));
    assert_string_equal(events, "o5 ");
    sess_cont_put(sc);
    assert_int_equal(sess_cont_close(t, a, ca, 0, 0), 0);
    assert_string_equal(events, "o5 c1 ");
    sess_put(a);
    sess_put(b);
}

static void a_retried_close_finds_it_done(void **state)
{
    struct sess *s = open_at(&alice, 0), *b = open_at(&bob, 0);
    uint64_t c = add_cont(s, 1, 11), o;
    struct sess_cont *sc = sess_cont_get(t, s, c);
    (void)state;
    assert_int_equal(sess_object_add(t, s, sc, 5, CAP_READ, 3, 1, &o), 0);
    sess_cont_put(sc);
    assert_int_equal(sess_object_close(t, s, o, 3, 2), 0);
    assert_int_equal(sess_object_close(t, s, o, 3, 2), 0);
    assert_int_equal(sess_object_close(t, s, o + 1, 3, 2), -EBADF);
    assert_int_equal(sess_object_close(t, s, o, 3, 3), -EBADF); /* another request */
    assert_int_equal(sess_object_close(t, s, o, 4, 2), -EBADF);
    assert_int_equal(sess_object_close(t, s, o, 0, 0), -EBADF);
    assert_int_equal(sess_object_close(t, b, o, 3, 2), -EBADF);
    assert_int_equal(sess_cont_close(t, s, c, 5, 9), 0);
    assert_int_equal(sess_cont_close(t, s, c, 5, 9), 0);
    assert_int_equal(sess_cont_close(t, s, c, 5, 10), -EBADF);
    assert_string_equal(events, "o5 c1 ");
    sess_put(s);
    sess_put(b);
}

static void closing_a_container_closes_its_objects_only(void **state)
{
    struct sess *s = open_at(&alice, 0);
    uint64_t c1 = add_cont(s, 1, 11), c2 = add_cont(s, 2, 12), o1, o2;
    struct sess_cont *sc1 = sess_cont_get(t, s, c1), *sc2 = sess_cont_get(t, s, c2);
    (void)state;
    assert_int_equal(sess_object_add(t, s, sc1, 5, CAP_READ, 0, 0, &o1), 0);
    assert_int_equal(sess_object_add(t, s, sc2, 6, CAP_READ, 0, 0, &o2), 0);
    sess_cont_put(sc1);
    sess_cont_put(sc2);
    assert_int_equal(sess_cont_close(t, s, c1, 0, 0), 0);
    assert_string_equal(events, "o5 c1 ");
    assert_int_equal(sess_object_close(t, s, o1, 0, 0), -EBADF);
    assert_int_equal(sess_object_close(t, s, o2, 0, 0), 0);
    sess_put(s);
}

static void everything_is_bounded(void **state)
{
    struct sess *s[4], *more;
    uint64_t h;
    struct sess_cont *sc;
    uint8_t ticket[SESS_TICKET_BYTES];
    (void)state;
    for (int i = 0; i < 4; i++)
        s[i] = open_at(&alice, 0);
    assert_int_equal(sess_open(t, &bob, 0, &more), -EUSERS);
    for (unsigned long i = 1; i <= 3; i++)
        h = add_cont(s[0], i, i);
    assert_int_equal(sess_cont_add(t, s[0], cont(9), 9, &h), -EMFILE);
    sc = sess_cont_get(t, s[0], h);
    for (int i = 0; i < 5; i++)
        assert_int_equal(sess_object_add(t, s[0], sc, 1, CAP_READ, 0, 0, &h), 0);
    assert_int_equal(sess_object_add(t, s[0], sc, 1, CAP_READ, 0, 0, &h), -EMFILE);
    sess_cont_put(sc);
    assert_int_equal(sess_ticket_new(t, s[0], 0, 0, ticket), 0);
    assert_int_equal(sess_ticket_new(t, s[0], 0, 0, ticket), 0);
    assert_int_equal(sess_ticket_new(t, s[0], 0, 0, ticket), -EAGAIN);
    assert_int_equal(sess_ticket_new(t, s[1], 0, 0, ticket), 0);
    assert_int_equal(sess_ticket_new(t, s[0], 0, 10 * SEC, ticket), 0); /* the old ones are over */
    assert_int_equal(sess_refused(t, REFUSE_LIMIT), 4);
    for (int i = 0; i < 4; i++)
        sess_put(s[i]);
}

static void a_tenant_has_so_many_sessions_at_once(void **state)
{
    const struct sess_ident one = {.credential = "one", .tenant = 1, .tenant_sessions = 2},
                            two = {.credential = "two", .tenant = SESS_TENANTS_MAX - 1, .tenant_sessions = 1},
                            none = {.credential = "none", .tenant = SESS_TENANTS_MAX};
    struct sess *s[3], *more = NULL;
    (void)state;
    s[0] = open_at(&one, 0);
    s[1] = open_at(&one, 20 * SEC);
    s[2] = open_at(&two, 20 * SEC);
    assert_int_equal(sess_open(t, &one, 0, &more), -EUSERS);
    assert_int_equal(sess_open(t, &two, 0, &more), -EUSERS);
    assert_int_equal(sess_open(t, &none, 0, &more), -EINVAL);
    assert_int_equal(sess_count_of(t, 1), 2);
    assert_int_equal(sess_count_of(t, SESS_TENANTS_MAX - 1), 1);
    assert_int_equal(sess_count_of(t, SESS_TENANTS_MAX), 0);
    sess_expire(t, 30 * SEC); /* the first, though it is held here */
    assert_int_equal(sess_count_of(t, 1), 1);
    more = open_at(&one, 30 * SEC);
    assert_int_equal(sess_close(t, sess_id(s[2])), 0);
    assert_int_equal(sess_count_of(t, SESS_TENANTS_MAX - 1), 0);
    assert_int_equal(sess_count_of(t, 1), 2);
    for (int i = 0; i < 3; i++)
        sess_put(s[i]);
    sess_put(more);
}

static void a_ticket_works_once_in_time_on_its_shard(void **state)
{
    struct sess *s = open_at(&alice, 0), *got = NULL;
    uint8_t a[SESS_TICKET_BYTES], b[SESS_TICKET_BYTES];
    (void)state;
    assert_int_equal(sess_ticket_new(t, s, 3, 0, a), 0);
    assert_int_equal(sess_ticket_use(t, a, sizeof a, 3, 9 * SEC, &got), 0);
    assert_ptr_equal(got, s);
    sess_put(got);
    assert_int_equal(sess_ticket_use(t, a, sizeof a, 3, 9 * SEC, &got), -EACCES);
    assert_int_equal(sess_refused(t, REFUSE_TICKET_UNKNOWN), 1);

    assert_int_equal(sess_ticket_new(t, s, 3, 10 * SEC, a), 0);
    assert_int_equal(sess_ticket_use(t, a, sizeof a, 3, 20 * SEC, &got), -EACCES);
    assert_int_equal(sess_refused(t, REFUSE_TICKET_EXPIRED), 1);

    assert_int_equal(sess_ticket_new(t, s, 3, 10 * SEC, a), 0);
    assert_int_equal(sess_ticket_use(t, a, sizeof a, 4, 11 * SEC, &got), -EACCES);
    assert_int_equal(sess_refused(t, REFUSE_TICKET_SHARD), 1);
    assert_int_equal(sess_ticket_use(t, a, sizeof a, 3, 11 * SEC, &got), -EACCES); /* gone with the attempt */

    assert_int_equal(sess_ticket_new(t, s, 3, 10 * SEC, a), 0);
    memcpy(b, a, sizeof b);
    b[31] ^= 1;
    assert_int_equal(sess_ticket_use(t, b, sizeof b, 3, 11 * SEC, &got), -EACCES);
    assert_int_equal(sess_ticket_use(t, a, 31, 3, 11 * SEC, &got), -EACCES);
    assert_int_equal(sess_ticket_use(t, a, sizeof a, 3, 11 * SEC, &got), 0); /* a guess takes nothing away */
    sess_put(got);
    sess_put(s);
}

static void tickets_of_third_parties_have_a_bound_and_numbers_of_their_own(void **state)
{
    uint8_t a[SESS_TICKET_BYTES], b[SESS_TICKET_BYTES], c[SESS_TICKET_BYTES];
    struct sess *s = open_at(&alice, 0), *got;
    struct sess_third third;
    uint64_t one, two, three;

    (void)state;
    assert_int_equal(sess_third_new(t, s, 3, 77, 0, a, &one), 0);
    assert_int_equal(sess_third_new(t, s, 3, 78, 0, b, &two), 0);
    assert_int_equal(sess_third_new(t, s, 3, 78, 0, c, &three), -EAGAIN);
    assert_int_equal(sess_ticket_new(t, s, 3, 0, c), 0); /* the session's own has room */
    assert_true(one && two && one != two);
    assert_int_equal(sess_ticket_use(t, a, sizeof a, 3, SEC, &got), -EACCES); /* not for an ordinary connection */
    assert_int_equal(sess_ticket_take(t, b, sizeof b, 3, SEC, &got, &third), 0);
    assert_true(third.number == two && third.owner == 78 && got == s);
    sess_put(got);
    assert_int_equal(sess_ticket_take(t, b, sizeof b, 3, SEC, &got, &third), -EACCES); /* used */
    assert_int_equal(sess_ticket_take(t, c, sizeof c, 3, SEC, &got, &third), 0);
    assert_true(third.number == 0);
    sess_put(got);
    assert_int_equal(sess_refused(t, REFUSE_TICKET_UNKNOWN), 2);
    assert_int_equal(sess_third_new(t, s, 3, 78, SEC, c, &three), 0); /* room again */
    assert_true(three != one && three != two);
    assert_int_equal(sess_ticket_take(t, c, sizeof c, 3, 12 * SEC, &got, &third), -EACCES);
    assert_int_equal(sess_refused(t, REFUSE_TICKET_EXPIRED), 1);
    sess_put(s);
}

static void tickets_end_with_their_session(void **state)
{
    struct sess *s = open_at(&alice, 0), *got;
    uint8_t a[SESS_TICKET_BYTES], b[SESS_TICKET_BYTES];
    (void)state;
    assert_int_equal(sess_ticket_new(t, s, 0, 25 * SEC, a), 0);
    assert_int_equal(sess_ticket_new(t, s, 0, 25 * SEC, b), 0);
    assert_int_equal(sess_ticket_use(t, a, sizeof a, 0, 30 * SEC, &got), -EACCES); /* its lease is over */
    assert_int_equal(sess_refused(t, REFUSE_SESSION), 1);
    assert_int_equal(sess_close(t, sess_id(s)), 0);
    assert_int_equal(sess_ticket_use(t, b, sizeof b, 0, 26 * SEC, &got), -EACCES);
    assert_int_equal(sess_ticket_new(t, s, 0, 26 * SEC, a), -ESTALE);
    sess_put(s);
}

static uint64_t mint(struct sess *s, uint64_t handle)
{
    struct sess_cont *sc = sess_cont_get(t, s, handle);
    uint64_t id = 0;
    uint8_t key[32];
    assert_non_null(sc);
    assert_int_equal(sess_key_mint(t, s, sc, &id, key), 0);
    sess_cont_put(sc);
    return id;
}

static void a_container_has_one_key_until_it_is_revoked(void **state)
{
    struct sess *s = open_at(&alice, 0);
    uint64_t c1 = add_cont(s, 1, 11), c2 = add_cont(s, 2, 12), k1 = mint(s, c1), k2 = mint(s, c2), gen;
    struct sess_cont *sc;
    uint8_t key[32];
    (void)state;
    assert_int_equal(mint(s, c1), k1);
    assert_int_not_equal(k1, k2);
    assert_int_equal(sess_key_find(t, k1, key, &sc), 0);
    assert_int_equal(sess_cont_id(sc), 11);
    sess_cont_put(sc);
    assert_int_equal(sess_key_find(t, k2 + 1, key, &sc), -ENOKEY);
    assert_int_equal(sess_key_find(t, 0, key, &sc), -ENOKEY);
    gen = sess_generation(t);
    assert_int_equal(sess_revoke_key(t, k1, NULL), 1);
    assert_true(sess_generation(t) > gen);
    assert_int_equal(sess_revoke_key(t, k1, NULL), 0);
    assert_int_equal(sess_key_find(t, k1, key, &sc), -EKEYREVOKED);
    assert_false(sess_key_alive(t, k1));
    assert_true(sess_key_alive(t, k2));
    assert_int_not_equal(mint(s, c1), k1);
    sess_put(s);
}

static void revocation_reaches_as_far_as_it_is_told(void **state)
{
    struct sess *a = open_at(&alice, 0), *b = open_at(&bob, 0);
    uint64_t a1 = add_cont(a, 1, 11), a2 = add_cont(a, 2, 12), b1 = add_cont(b, 3, 11);
    uint64_t ka1 = mint(a, a1), ka2 = mint(a, a2), kb1 = mint(b, b1);
    (void)state;
    assert_int_equal(sess_revoke_key(t, kb1, a), 0); /* not a's */
    assert_int_equal(sess_revoke_cont(t, 11, a), 1);
    assert_false(sess_key_alive(t, ka1));
    assert_true(sess_key_alive(t, kb1));
    ka1 = mint(a, a1);
    assert_int_equal(sess_revoke_cont(t, 11, NULL), 2);
    assert_true(!sess_key_alive(t, ka1) && !sess_key_alive(t, kb1) && sess_key_alive(t, ka2));
    ka1 = mint(a, a1);
    assert_int_equal(sess_revoke_session(t, sess_id(a), 16), 2);
    assert_true(!sess_key_alive(t, ka1) && !sess_key_alive(t, ka2));
    kb1 = mint(b, b1);
    assert_int_equal(sess_revoke_session(t, sess_id(a), 15), 0);
    assert_int_equal(sess_cont_close(t, b, b1, 0, 0), 0);
    assert_false(sess_key_alive(t, kb1)); /* a key ends with its handle */
    sess_put(a);
    sess_put(b);
}

static void keys_end_with_their_session(void **state)
{
    struct sess *s = open_at(&alice, 0);
    uint64_t k = mint(s, add_cont(s, 1, 11)), gen = sess_generation(t);
    (void)state;
    assert_int_equal(sess_expire(t, 31 * SEC), UINT64_MAX);
    assert_false(sess_key_alive(t, k));
    assert_true(sess_generation(t) > gen);
    sess_put(s);
}

/* Two hosts' mounts behind an agent that is killed: each comes again, by way of the next one. */
static void an_agent_that_its_hosts_have_left_has_no_mounts(void **state)
{
    static const uint8_t host[2][16] = {{1}, {2}};
    struct sess_ident who = alice;
    struct sess *dead, *next;
    uint32_t n[2], again;
    (void)state;

    memcpy(who.purpose, "agent", 6);
    dead = open_at(&who, 0);
    assert_int_equal(sess_origin_add(t, dead, host[0], &n[0]), 0);
    assert_int_equal(sess_origin_add(t, dead, host[1], &n[1]), 0);
    add_cont(dead, 1, 11);
    assert_int_equal(sess_cont_mounts(t, 11), 1);
    next = open_at(&who, 0);
    assert_int_equal(sess_origin_add(t, next, host[0], &again), 0);
    add_cont(next, 2, 11);
    assert_int_equal(sess_cont_mounts(t, 11), 2); /* the other may still be there */
    assert_int_equal(sess_origin_add(t, next, host[1], &again), 0);
    assert_int_equal(sess_cont_mounts(t, 11), 1);
    assert_int_equal(sess_origin_add(t, dead, host[1], &again), 0); /* and back: it lives */
    assert_int_equal(sess_cont_mounts(t, 11), 2);
    sess_put(dead);
    sess_put(next);
}

/* In between nobody else is to believe that he is alone. */
static void hosts_count_where_they_were_until_their_container_is_open_elsewhere(void **state)
{
    static const uint8_t host[16] = {1};
    struct sess_ident who = alice;
    struct sess *dead, *next;
    uint32_t n;
    (void)state;

    memcpy(who.purpose, "agent", 6);
    dead = open_at(&who, 0);
    next = open_at(&who, 0);
    assert_int_equal(sess_origin_add(t, dead, host, &n), 0);
    add_cont(dead, 1, 11);
    assert_int_equal(sess_origin_add(t, next, host, &n), 0);
    add_cont(next, 2, 12);
    assert_int_equal(sess_cont_mounts(t, 11), 1);
    add_cont(next, 3, 11);
    assert_int_equal(sess_cont_mounts(t, 11), 1);
    sess_close(t, sess_id(next));
    assert_int_equal(sess_cont_mounts(t, 11), 1);
    sess_put(dead);
    sess_put(next);
}

static void mounts_are_counted_by_session(void **state)
{
    struct sess *a = open_at(&alice, 0), *b = open_at(&bob, 0), *c = open_at(&alice, 0);
    (void)state;
    add_cont(a, 1, 11);
    add_cont(a, 2, 11); /* twice in one session */
    add_cont(b, 3, 11); /* not a mount */
    add_cont(c, 4, 11);
    assert_int_equal(sess_cont_mounts(t, 11), 2);
    assert_int_equal(sess_cont_mounts(t, 12), 0);
    sess_close(t, sess_id(c));
    assert_int_equal(sess_cont_mounts(t, 11), 1);
    sess_put(a);
    sess_put(b);
    sess_put(c);
}

static void every_refusal_has_a_name_of_its_own(void **state)
{
    (void)state;
    for (enum refusal a = 0; a < REFUSALS; a++) {
        assert_non_null(refusal_name(a));
        for (enum refusal b = 0; b < a; b++)
            assert_string_not_equal(refusal_name(a), refusal_name(b));
    }
    assert_string_equal(refusal_name(REFUSALS), "?");
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_lease_ends_when_it_is_not_renewed),
        T(ids_are_checked_whole),
        T(keys_differ_between_sessions),
        T(closing_frees_objects_before_containers),
        T(a_container_in_use_outlives_its_session),
        T(handles_belong_to_their_session),
        T(a_retried_close_finds_it_done),
        T(closing_a_container_closes_its_objects_only),
        T(everything_is_bounded),
        T(a_tenant_has_so_many_sessions_at_once),
        T(a_ticket_works_once_in_time_on_its_shard),
        T(tickets_of_third_parties_have_a_bound_and_numbers_of_their_own),
        T(tickets_end_with_their_session),
        T(a_container_has_one_key_until_it_is_revoked),
        T(revocation_reaches_as_far_as_it_is_told),
        T(keys_end_with_their_session),
        T(mounts_are_counted_by_session),
        T(an_agent_that_its_hosts_have_left_has_no_mounts),
        T(hosts_count_where_they_were_until_their_container_is_open_elsewhere),
        T(every_refusal_has_a_name_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
