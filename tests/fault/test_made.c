/*
 * Tenants that come and go while the daemon runs: what one had is of no use to the next of its name and number, what it
 * holds goes, and who is beside it notices nothing. With the argument `agent` the daemon is one, with a server behind
 * it.
 */
#include "raw_daemon.h"

#include "base/rng.h"
#include "control/session.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SHARD 1u /* the first that is free: the server's own tenant has 0 */

static int create(struct raw *admin, const char *name, const char *more)
{
    const char *settings[] = {"containers=p/c", "buffer_memory=8M", more ? more : "weight=2",
                              daemon_agent ? behind_setting : NULL, NULL};

    return raw_tenant_create(admin, name, settings);
}

static int enroll(struct raw *admin, const char *name, const char *tenant, char ret_token[600])
{
    char of[100], uid[32];
    const char *settings[] = {of, uid, "any_uid=true", NULL};

    snprintf(of, sizeof of, "tenant=%s", tenant);
    snprintf(uid, sizeof uid, "uid=%u", geteuid());
    return raw_cred_create(admin, name, settings, "", ret_token);
}

/* Threads of shards: what a tenant that was let go has left. */
static int shard_threads(void)
{
    DIR *d = opendir("/proc/self/task");
    struct dirent *e;
    int n = 0;

    assert_non_null(d);
    while ((e = readdir(d))) {
        char path[300], name[32] = "";
        FILE *f;
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
        f = fopen(path, "r");
        if (f && fgets(name, sizeof name, f))
            n += strncmp(name, "shard-", 6) == 0;
        if (f)
            fclose(f);
    }
    closedir(d);
    return n;
}

static double refused_of(const char *tenant, const char *reason)
{
    char name[120];
    snprintf(name, sizeof name, "penstock_tenant_refused_total{tenant=\"%s\",reason=\"%s\"}", tenant, reason);
    return metric(name);
}

/* Her connection, her session and her token are at an end. */
static void eve_is_gone(struct raw *was, struct raw_conn *k, const struct dp_request *r, uint64_t file,
                        const char *old_token)
{
    struct raw again;
    struct cap own;

    assert_int_equal(raw_call(k, r), -ENOTCONN);
    assert_int_equal(raw_grant(was, file, CAP_READ, 0, 0, 0, &own, NULL), -ESTALE);
    assert_int_equal(raw_open(&again, addr, old_token, "p", "c"), -EACCES);
    raw_close(&again);
    assert_int_equal(raw_tenant_delete(&alice, "eve"), -ENOENT);
}

static void her_data_is_there(struct raw *is, struct raw_conn *k, uint64_t file)
{
    struct dp_request r;
    struct cap own;
    uint64_t number;

    assert_int_equal(raw_create(is, "eves", &number, &own), 0);
    assert_int_equal(number, file);
    assert_int_equal(raw_bind(k, 0, &own), 0);
    r = raw_io(k, DP_READ, 0, file, 0, 4096, 0);
    assert_int_equal(raw_call(k, &r), 0);
    assert_true(all(k->mem, 4096, 'e'));
}

static void nothing_of_a_deleted_tenant_reaches_the_next_of_its_name(void **state)
{
    uint8_t client[16], ticket[48];
    char old_token[600], new_token[600];
    struct raw was, is, again;
    struct raw_conn kw, ki, k;
    struct dp_request r;
    struct cap cap, own;
    uint64_t file;
    size_t len;
    int before = shard_threads();
    (void)state;

    rng_secret(client, sizeof client);
    assert_int_equal(create(&alice, "eve", NULL), 0);
    assert_int_equal(shard_threads(), before + 1);
    assert_int_equal(enroll(&alice, "eve", "eve", old_token), 0);
    assert_int_equal(raw_open_as(&was, addr, old_token, "p", "c", client), 0);
    assert_int_equal(raw_create(&was, "eves", &file, &cap), 0);
    assert_int_equal(raw_connect_shard(&was, SHARD, &kw), 0);
    assert_int_equal(raw_bind(&kw, 0, &cap), 0);
    memset(kw.mem, 'e', 4096);
    r = raw_io(&kw, DP_WRITE, 0, file, 0, 4096, 0);
    assert_int_equal(raw_call(&kw, &r), 0);
    assert_int_equal(raw_mkdir(&was, "once", 3, 1, 1), 0);
    assert_int_equal(raw_rmdir(&was, "once"), 0);
    assert_int_equal(raw_ticket(&was, 0, ticket, &len), -EINVAL); /* the server's own shard; counted as hers */
    assert_int_equal(raw_ticket(&was, SHARD, ticket, &len), 0);

    assert_int_equal(raw_tenant_delete(&alice, "eve"), 0);
    assert_int_equal(shard_threads(), before);
    eve_is_gone(&was, &kw, &r, file, old_token);

    /* The same name, the same number, the same shard: another tenant. */
    assert_int_equal(create(&alice, "eve", NULL), 0);
    assert_int_equal(enroll(&alice, "eve", "eve", new_token), 0);
    assert_string_not_equal(old_token, new_token);
    assert_true(refused_of("eve", "ticket_unknown") == 0 && refused_of("eve", "session") == 0);
    assert_int_equal(raw_open(&again, addr, old_token, "p", "c"), -EACCES);
    raw_close(&again);
    assert_int_equal(raw_open_as(&is, addr, new_token, "p", "c", client), 0);
    assert_int_equal(raw_grant(&was, file, CAP_READ, 0, 0, 0, &own, NULL), -ESTALE);
    was.data = is.data;
    assert_true(raw_connect(&was, ticket, len, NULL, &k) < 0);
    raw_disconnect(&k);
    assert_true(refused_of("eve", "ticket_unknown") == 1);
    assert_int_equal(raw_connect_shard(&is, SHARD, &ki), 0);
    assert_int_equal(raw_bind(&ki, 0, &cap), -EKEYREVOKED);
    /* A reply that the old one's client was given is none of the new one's, even if it calls itself by the same id. */
    assert_int_equal(raw_mkdir(&is, "once", 3, 1, 1), 0);
    assert_int_equal(raw_rmdir(&is, "once"), 0);
    her_data_is_there(&is, &ki, file);
    raw_disconnect(&kw);
    raw_disconnect(&ki);
    assert_int_equal(raw_tenant_delete(&alice, "eve"), 0);
    assert_int_equal(shard_threads(), before);
    raw_close(&was);
    raw_close(&is);
}

static void a_credential_that_is_taken_away_ends_its_own_sessions(void **state)
{
    char one[600], two[600], none[600];
    const char *same[] = {"tenant=dora", NULL};
    struct raw a, b;
    struct cap cap;
    uint64_t file;
    (void)state;

    assert_int_equal(create(&alice, "dora", NULL), 0);
    assert_int_equal(enroll(&alice, "dora", "dora", one), 0);
    assert_int_equal(enroll(&alice, "dora2", "dora", two), 0);
    assert_int_equal(raw_cred_create(&alice, "dora3", same, one, none), -EEXIST);
    assert_int_equal(raw_open(&a, addr, one, "p", "c"), 0);
    assert_int_equal(raw_open(&b, addr, two, "p", "c"), 0);
    assert_int_equal(raw_cred_delete(&a, "dora"), -EPERM);
    assert_int_equal(raw_cred_delete(&alice, "dora"), 0);
    assert_int_equal(raw_create(&a, "f", &file, &cap), -ESTALE);
    assert_int_equal(raw_create(&b, "f", &file, &cap), 0);
    assert_int_equal(raw_cred_delete(&alice, "dora"), -ENOENT);
    /* The same token again is a credential like any other. */
    assert_int_equal(raw_cred_create(&alice, "dora", same, one, none), 0);
    assert_string_equal(none, "");
    assert_int_equal(raw_create(&a, "f", &file, &cap), -ESTALE);
    assert_int_equal(raw_tenant_delete(&alice, "dora"), 0);
    assert_int_equal(raw_create(&b, "g", &file, &cap), -ESTALE);
    raw_close(&a);
    raw_close(&b);
}

/* ---- what is wrong ---- */

/* With one setting besides those that are needed, or with these two alone. */
static void refuse_tenant(const char *name, const char *one, const char *two, int err, const char *says)
{
    const char *settings[] = {"containers=p/c", one, daemon_agent ? behind_setting : two,
                              daemon_agent ? two : NULL, NULL};
    if (!strncmp(one, "containers", 10))
        settings[0] = "weight=1";
    assert_int_equal(raw_tenant_create(&alice, name, settings), err);
    if (!strstr(raw_said, says))
        fail_msg("\"%s\" does not say \"%s\"", raw_said, says);
}

static void what_is_wrong_of_a_tenant_is_refused_by_its_name(void **state)
{
    char longest[SESS_NAME_MAX + 2];
    int before = shard_threads();
    (void)state;

    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = 0;
    refuse_tenant("default", "weight=2", NULL, -EEXIST, "there is a tenant");
    refuse_tenant("ca rl", "weight=2", NULL, -EINVAL, "must be 1 to 63 of A-Z");
    refuse_tenant("..", "weight=2", NULL, -EINVAL, "must be 1 to 63 of A-Z");
    refuse_tenant("", "weight=2", NULL, -EINVAL, "must be 1 to 63 of A-Z");
    refuse_tenant("+carl\n", "weight=2", NULL, -EINVAL, "must be 1 to 63 of A-Z");
    refuse_tenant(longest, "weight=2", NULL, -EINVAL, "must be 1 to 63 of A-Z");
    refuse_tenant("carl", "containers=p", NULL, -EINVAL, "carl.containers[0]: \"p\": must be POOL/CONTAINER");
    refuse_tenant("carl", "containers=p/c\n+eve id 00", NULL, -EINVAL, "containers: not a value");
    refuse_tenant("carl", "quota=", NULL, -EINVAL, "quota: not a value");
    refuse_tenant("carl", "quota=1M", "quota=2M", -EINVAL, "quota: is there twice");
    refuse_tenant("carl", "quota=1", NULL, -EINVAL, "carl.quota: \"1\": must be a size from 64K");
    refuse_tenant("carl", "shards=65", NULL, -EINVAL, "carl.shards: \"65\": must be a number");
    refuse_tenant("carl", "burst=1M", NULL, -EINVAL, "carl.burst: \"1M\": needs rate");
    refuse_tenant("carl", "colour=red", NULL, -EINVAL, "\"colour\" is no setting; these are: containers");
    refuse_tenant("carl", "filters=crypt:key_command=id", NULL, -EINVAL, "key_command is for the configuration file");
    refuse_tenant("carl", "filters=none", "buffer_memory=4M", -EINVAL, "none");
    if (!daemon_agent) {
        refuse_tenant("carl", "cache=1G", NULL, -EINVAL, "carl.cache: \"1G\": is for an agent");
        refuse_tenant("carl", "backend_token_file=/none", NULL, -EINVAL, "is for an agent");
    }
    assert_int_equal(raw_tenant_delete(&alice, "default"), -EOPNOTSUPP);
    assert_int_equal(raw_tenant_delete(&alice, ""), -ENOENT);
    assert_int_equal(shard_threads(), before);
}

static void refuse_cred(const char *name, const char *one, const char *two, const char *secret, int err,
                        const char *says)
{
    const char *settings[] = {one, two, NULL};
    char made[600] = "";

    assert_int_equal(raw_cred_create(&alice, name, settings, secret, made), err);
    if (!strstr(raw_said, says))
        fail_msg("\"%s\" does not say \"%s\"", raw_said, says);
    assert_string_equal(made, "");
}

static void what_is_wrong_of_a_credential_is_refused_by_its_name(void **state)
{
    const char *by_cert[] = {"tenant=bert", "cn=bert", NULL};
    char made[600];
    (void)state;

    assert_int_equal(create(&alice, "bert", NULL), 0);
    assert_int_equal(raw_cred_create(&alice, "bert", by_cert, "", made), 0);
    refuse_cred("bert", "tenant=bert", NULL, "", -EEXIST, "there is a credential");
    refuse_cred("other", "tenant=bert", "cn=bert", "", -EEXIST, "another one has this cn");
    refuse_cred("carl", "tenant=carl", NULL, "", -ENOENT, "no such tenant");
    refuse_cred("carl", "tenant=default", "admin=true", "", -EOPNOTSUPP,
                "server's own tenant are in the configuration");
    refuse_cred("carl", "uid=1", NULL, "", -EINVAL, "carl.tenant: is missing");
    refuse_cred("carl", "tenant=bert", "uid=x", "", -EINVAL, "uid: \"x\": must be a numeric id");
    refuse_cred("carl", "tenant=bert", "admin=perhaps", "", -EINVAL, "admin");
    refuse_cred("carl", "tenant=bert", "token_file=/etc/passwd", "", -EINVAL, "\"token_file\" is no setting");
    refuse_cred("carl", "tenant=bert", "cn=carl", "0123456789abcdef", -EINVAL, "cn and a token: one of them");
    refuse_cred("carl", "tenant=bert", NULL, "0123456789abcde", -EINVAL, "16 to 512 printable");
    refuse_cred("carl", "tenant=bert", NULL, "0123456789 abcdef", -EINVAL, "16 to 512 printable");
    refuse_cred("ca rl", "tenant=bert", NULL, "", -EINVAL, "must be 1 to 63 of A-Z");
    assert_int_equal(raw_cred_delete(&alice, "carl"), -ENOENT);
    assert_int_equal(raw_cred_delete(&alice, "local"), -ENOENT);
    assert_int_equal(raw_tenant_delete(&alice, "bert"), 0);
    assert_int_equal(raw_cred_delete(&alice, "bert"), -ENOENT);
}

static void an_agent_makes_no_tenant_that_its_server_refuses(void **state)
{
    char path[sizeof behind_file + 8], backend[200];
    const char *wrong[] = {"containers=p/c", "buffer_memory=8M", backend, NULL};
    int before = shard_threads();
    FILE *f;
    (void)state;

    snprintf(path, sizeof path, "%s.wrong", behind_file);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fchmod(fileno(f), 0600), 0);
    fprintf(f, "a-token-that-the-server-does-not-know\n");
    fclose(f);
    snprintf(backend, sizeof backend, "backend_token_file=%s", path);
    assert_int_equal(raw_tenant_create(&alice, "refused", wrong), -EACCES);
    assert_non_null(strstr(raw_said, "tenant refused: "));
    assert_non_null(strstr(raw_said, "not one of this server's"));
    assert_non_null(strstr(raw_said, "backend_token_file")); /* the agent's, and not that of who asks */
    assert_null(strstr(raw_said, "--token-file"));
    snprintf(backend, sizeof backend, "backend_token_file=/none");
    assert_true(raw_tenant_create(&alice, "refused", wrong) < 0);
    assert_non_null(strstr(raw_said, "/none"));
    wrong[2] = NULL;
    assert_int_equal(raw_tenant_create(&alice, "refused", wrong), -EINVAL);
    assert_non_null(strstr(raw_said, "needs a credential of its own at the server"));
    assert_int_equal(raw_tenant_delete(&alice, "refused"), -ENOENT);
    assert_int_equal(shard_threads(), before);
}

/* ---- third parties ---- */

static int way_of(struct raw *c, struct raw_way *ret)
{
    return daemon_agent ? raw_third_party(c, SHARD, ret) : raw_third_ticket(c, SHARD, 1, ret);
}

static void connect_third(struct raw *c, struct raw_way *way, struct raw_conn *k)
{
    assert_int_equal(way_of(c, way), 0);
    assert_int_equal(raw_connect_third(c, way, k), 0);
    assert_int_equal(raw_wait(k), 0); /* the server says a word first */
    assert_int_equal(k->reply.opcode, DP_PING);
}

/* What was made for it opens nothing, at the server behind an agent either; what is open ends; and nothing waits. */
static void third_ways_of_a_deleted_tenant_are_of_no_use(void **state)
{
    char eves[600], uid[32];
    const char *who[] = {"tenant=eve", uid, "any_uid=true", "origin=true", NULL};
    struct raw eve;
    struct raw_conn open, late;
    struct raw_way used, unused;
    (void)state;

    snprintf(uid, sizeof uid, "uid=%u", geteuid());
    for (int again = 0; again < 2; again++) { /* the next of its name, number and shard is not disturbed by the first */
        assert_int_equal(create(&alice, "eve", NULL), 0);
        assert_int_equal(raw_cred_create(&alice, "eve", who, "", eves), 0);
        assert_int_equal(raw_open(&eve, addr, eves, "p", "c"), 0);
        if (again)
            assert_true(raw_connect_third(&eve, &unused, &late) < 0);
        if (again)
            raw_disconnect(&late);
        assert_int_equal(way_of(&eve, &unused), 0);
        connect_third(&eve, &used, &open);
        assert_int_equal(raw_tenant_delete(&alice, "eve"), 0);
        assert_true(raw_connect_third(&eve, &unused, &late) < 0);
        raw_disconnect(&late);
        for (int i = 0; i < 400 && !open.closed; i++)
            fab_progress(open.shard, 50 * NSEC_PER_MSEC);
        assert_true(open.closed);
        assert_true(way_of(&eve, &used) < 0);
        raw_disconnect(&open);
        raw_close(&eve);
    }
    assert_nothing_moved();
}

/* ---- under load ---- */

static atomic_bool stop;
static atomic_int failures;

/* The server's own tenant, all the time. */
static void *reader(void *arg)
{
    (void)arg;
    for (uint32_t i = 0; !atomic_load(&stop); i++) {
        uint32_t at = i * 4096 % FILE_BYTES;
        struct dp_request r = raw_io(&conn, DP_READ, 0, ino, at, 4096, 0);
        memset(conn.mem, 'm', 4096);
        if (raw_call(&conn, &r) != 0 || !all(conn.mem, 4096, 'f'))
            atomic_fetch_add(&failures, 1);
    }
    return NULL;
}

/* Another administrator, who makes and deletes as well; one is refused where two want the same. */
static void *rival(void *arg)
{
    char secret[600];
    (void)arg;

    while (!atomic_load(&stop)) {
        int r = create(&bob, "both", NULL);
        if (r != 0 && r != -EEXIST)
            atomic_fetch_add(&failures, 1);
        r = enroll(&bob, "both", "both", secret);
        if (r != 0 && r != -ENOENT && r != -EEXIST)
            atomic_fetch_add(&failures, 1);
        r = raw_tenant_delete(&bob, "both");
        if (r != 0 && r != -ENOENT)
            atomic_fetch_add(&failures, 1);
    }
    return NULL;
}

/* A tenant with requests under way, whose answers nobody reads, is deleted. */
static void cycle(void)
{
    char secret[600];
    struct raw_conn k;
    struct dp_request r;
    struct raw c;
    struct cap cap;
    uint64_t file;
    uint8_t ticket[48];
    size_t len;
    int n;

    assert_int_equal(create(&alice, "mayfly", "rate_ops=1000"), 0);
    n = create(&alice, "both", NULL);
    assert_true(n == 0 || n == -EEXIST);
    n = raw_tenant_delete(&alice, "both");
    assert_true(n == 0 || n == -ENOENT);
    assert_int_equal(enroll(&alice, "mayfly", "mayfly", secret), 0);
    assert_int_equal(raw_open(&c, addr, secret, "p", "c"), 0);
    assert_int_equal(raw_create(&c, "m", &file, &cap), 0);
    for (n = 0; n < 8 && raw_ticket(&c, (uint32_t)n, ticket, &len) < 0; n++)
        ; /* the other administrator's tenants have shards as well */
    assert_int_equal(raw_connect(&c, ticket, len, NULL, &k), 0);
    assert_int_equal(raw_bind(&k, 0, &cap), 0);
    r = raw_io(&k, DP_WRITE, 0, file, 0, 64 << 10, 0);
    for (int i = 0; i < 16; i++)
        raw_request(&k, &r);
    assert_int_equal(raw_tenant_delete(&alice, "mayfly"), 0);
    assert_int_equal(raw_create(&c, "n", &file, &cap), -ESTALE);
    raw_disconnect(&k);
    raw_close(&c);
    metric("penstock_sessions");
}

static void tenants_come_and_go_beside_one_that_notices_nothing(void **state)
{
    int cycles = getenv("PENSTOCK_EXTENDED") ? 60 : 5, before = shard_threads();
    pthread_t threads[2];
    (void)state;

    assert_int_equal(pthread_create(&threads[0], NULL, reader, NULL), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, rival, NULL), 0);
    for (int i = 0; i < cycles; i++)
        cycle();
    atomic_store(&stop, true);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    raw_tenant_delete(&alice, "both");
    assert_int_equal(atomic_load(&failures), 0);
    assert_int_equal(shard_threads(), before);
}

static void as_many_as_there_is_room_for_and_not_one_more(void **state)
{
    const char *many[] = {"containers=p/c", "buffer_memory=4M", "shards=64", daemon_agent ? behind_setting : NULL,
                          NULL};
    const char *more[] = {"containers=p/c", "buffer_memory=1M", daemon_agent ? behind_setting : NULL, NULL};
    int before = shard_threads();
    (void)state;

    if (getenv("PENSTOCK_EXTENDED")) { /* 192 threads, with their buffers */
        for (int i = 0; i < 3; i++) {
            char name[20];
            snprintf(name, sizeof name, "many%d", i);
            assert_int_equal(raw_tenant_create(&alice, name, many), 0);
        }
        assert_int_equal(raw_tenant_create(&alice, "many3", many), -ENOSPC);
        for (int i = 0; i < 3; i++) {
            char name[20];
            snprintf(name, sizeof name, "many%d", i);
            assert_int_equal(raw_tenant_delete(&alice, name), 0);
        }
    }
    assert_int_equal(raw_tenant_create(&alice, "small", more), -EINVAL); /* buffers for less than four requests */
    assert_int_equal(shard_threads(), before);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_agent_makes_no_tenant_that_its_server_refuses), /* the first one: an agent's alone */
        cmocka_unit_test(nothing_of_a_deleted_tenant_reaches_the_next_of_its_name),
        cmocka_unit_test(a_credential_that_is_taken_away_ends_its_own_sessions),
        cmocka_unit_test(what_is_wrong_of_a_tenant_is_refused_by_its_name),
        cmocka_unit_test(what_is_wrong_of_a_credential_is_refused_by_its_name),
        cmocka_unit_test_setup_teardown(third_ways_of_a_deleted_tenant_are_of_no_use, set_up, tear_down),
        cmocka_unit_test_setup_teardown(tenants_come_and_go_beside_one_that_notices_nothing, set_up, tear_down),
        cmocka_unit_test(as_many_as_there_is_room_for_and_not_one_more),
    };

    daemon_agent = daemon_third = argc > 1 && !strcmp(argv[1], "agent");
    return _cmocka_run_group_tests("made", tests + !daemon_agent, ARRAY_SIZE(tests) - !daemon_agent, start_daemon,
                                   stop_daemon);
}
