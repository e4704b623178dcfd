/*
 * Capabilities of what nobody has open: by Grant, and of an open that was closed again. The same cases, with the same
 * results, at a server, and (agent, filters, cache) through an agent, which asks its server as the user that its own
 * capability was granted to. The agent and the server run in this process.
 */
#include "raw_daemon.h"

#include "base/util.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define BYTES (192u << 10)
#define TOKEN_OF_AGENT "the-agents-own-token-of-the-test"
#define READ_WRITE (CAP_READ | CAP_WRITE)

static char token_file[] = "/tmp/test-grants-XXXXXX";
static struct raw anna, bert;
static struct raw_conn ka, kb;
static uint64_t file;

/* Bert is another user, of another tenant, in the same container. */
#define CREDENTIALS                                                                                                    \
    "  - {name: anna, token: annas-own-token-of-the-test, uid: 1000, gid: 1000, tenant: anna}\n"                       \
    "  - {name: bert, token: berts-own-token-of-the-test, uid: 2000, gid: 2000, tenant: bert}\n"
#define POOLS                                                                                                          \
    "pools:\n"                                                                                                         \
    "  - {label: q, mode: 777, containers: [{label: c, mode: 777}]}\n"

static const char alone_config[] =
    POOLS
    "tenants:\n"
    "  - {name: anna, containers: [q/c], buffer_memory: 16M}\n"
    "  - {name: bert, containers: [q/c], buffer_memory: 16M}\n"
    "credentials:\n"
    CREDENTIALS;
static const char server_config[] =
    POOLS
    "credentials:\n"
    "  - {name: agent, token: " TOKEN_OF_AGENT ", any_uid: true, origin: true}\n";
static const char agent_config[] =
    "tenants:\n"
    "  - {name: anna, containers: [q/c], buffer_memory: 16M, backend_token_file: %1$s%2$s}\n"
    "  - {name: bert, containers: [q/c], buffer_memory: 16M, backend_token_file: %1$s%2$s}\n"
    "credentials:\n"
    CREDENTIALS;

static int start(void **state)
{
    static char text[sizeof agent_config + 2 * sizeof token_file + 60];
    int fd = mkstemp(token_file); /* mode 0600 */

    if (fd < 0 || dprintf(fd, "%s\n", TOKEN_OF_AGENT) < 0 || close(fd) < 0)
        return -1;
    snprintf(text, sizeof text, agent_config, token_file, daemon_cache ? ", cache: 16M" : "");
    daemon_config = daemon_agent ? server_config : alone_config;
    daemon_agent_config = text;
    return start_daemon(state);
}

static int stop(void **state)
{
    unlink(token_file);
    return stop_daemon(state);
}

static int io(struct raw_conn *k, uint8_t opcode, uint32_t cap, uint64_t offset, uint32_t len)
{
    struct dp_request r = raw_io(k, opcode, cap, file, offset, len, 0);

    return raw_call(k, &r);
}

static int read_all(struct raw_conn *k, uint32_t cap)
{
    memset(k->mem, 'm', RAW_MEM);
    return io(k, DP_READ, cap, 0, BYTES);
}

static void assert_read(struct raw_conn *k, uint32_t cap, uint8_t c)
{
    assert_int_equal(read_all(k, cap), 0);
    assert_int_equal(k->reply.result, BYTES);
    assert_true(all(k->mem, BYTES, c) && all(k->mem + BYTES, RAW_MEM - BYTES, 'm'));
}

/* By another session of anna's, which is over then: nobody has it open. */
static int make_file(void)
{
    struct raw other;
    struct raw_conn k;
    struct cap cap;

    if (raw_open(&other, addr, "annas-own-token-of-the-test", "q", "c") < 0 ||
        raw_create(&other, "file", &file, &cap) < 0 || raw_connect_shard(&other, 1, &k) < 0 ||
        raw_bind(&k, 0, &cap) < 0)
        return -1;
    memset(k.mem, 'f', BYTES);
    if (io(&k, DP_WRITE, 0, 0, BYTES) < 0)
        return -1;
    raw_disconnect(&k);
    if (raw_end_session(&other) < 0)
        return -1;
    raw_close(&other);
    return 0;
}

static int before(void **state)
{
    (void)state;
    if (make_file() < 0 || raw_open(&anna, addr, "annas-own-token-of-the-test", "q", "c") < 0 ||
        raw_open(&bert, addr, "berts-own-token-of-the-test", "q", "c") < 0)
        return -1;
    return raw_connect_shard(&anna, 1, &ka) < 0 || raw_connect_shard(&bert, 2, &kb) < 0 ? -1 : 0;
}

static int after(void **state)
{
    (void)state;
    raw_unlink(&anna, "file");
    raw_disconnect(&ka);
    raw_disconnect(&kb);
    raw_end_session(&anna);
    raw_end_session(&bert);
    raw_close(&anna);
    raw_close(&bert);
    return 0;
}

/* Granted and bound. */
static uint64_t have(struct raw *c, struct raw_conn *k, uint32_t number, uint32_t rights)
{
    uint64_t key;
    struct cap cap;

    assert_int_equal(raw_grant(c, file, rights, 0, 0, 0, &cap, &key), 0);
    assert_int_equal(raw_bind(k, number, &cap), 0);
    return key;
}

static void what_nobody_has_open_is_read_and_written_by_a_grant(void **state)
{
    struct dp_request small = {.opcode = DP_READ, .flags = DP_F_INLINE, .cap = 0, .length = 1000},
                      seek = {.opcode = DP_SEEK_DATA, .cap = 0}, sync = {.opcode = DP_FSYNC, .cap = 1},
                      punch = {.opcode = DP_PUNCH, .cap = 1, .length = BYTES};

    (void)state;
    small.ino = seek.ino = sync.ino = punch.ino = file;
    have(&anna, &ka, 0, CAP_READ);
    have(&anna, &ka, 1, CAP_WRITE);
    assert_read(&ka, 0, 'f');
    assert_int_equal(raw_call(&ka, &small), 0);
    assert_true(ka.reply.payload_len == 1000 && all(ka.payload, 1000, 'f'));
    assert_int_equal(raw_call(&ka, &seek), 0);
    memset(ka.mem, 'w', BYTES);
    assert_int_equal(io(&ka, DP_WRITE, 1, 0, BYTES), 0);
    assert_int_equal(raw_call(&ka, &sync), 0);
    assert_read(&ka, 0, 'w');
    assert_int_equal(raw_call(&ka, &punch), 0);
    assert_read(&ka, 0, 0);
    assert_int_equal(read_all(&ka, 1), -EACCES);
    assert_int_equal(io(&ka, DP_WRITE, 0, 0, BYTES), -EACCES);
}

static void it_gives_what_it_says_and_no_more(void **state)
{
    const struct cap_grant narrow = {
        .rights = READ_WRITE, .expires_ns = INT64_MAX, .range_offset = 8192, .range_length = 4096};
    struct cap part, less;
    (void)state;

    assert_int_equal(raw_grant(&anna, file, READ_WRITE, 4096, 65536, 0, &part, NULL), 0);
    assert_int_equal(cap_narrow(&part, &narrow, &less), 0);
    assert_int_equal(raw_bind(&ka, 0, &part), 0);
    assert_int_equal(raw_bind(&ka, 1, &less), 0);
    memset(ka.mem, 'm', RAW_MEM);
    assert_int_equal(io(&ka, DP_READ, 0, 0, 4097), -ERANGE);
    assert_int_equal(io(&ka, DP_READ, 1, 4096, 8192), -ERANGE);
    assert_int_equal(io(&ka, DP_WRITE, 1, 12288, 1), -ERANGE);
    assert_true(all(ka.mem, RAW_MEM, 'm'));
    assert_int_equal(io(&ka, DP_READ, 1, 8192, 4096), 0);
    assert_true(all(ka.mem, 4096, 'f') && all(ka.mem + 4096, RAW_MEM - 4096, 'm'));
    assert_int_equal(io(&ka, DP_READ, 0, 4096, 65536), 0);
    assert_true(all(ka.mem, 65536, 'f') && all(ka.mem + 65536, RAW_MEM - 65536, 'm'));
}

/* Neither the server's own end of a key nor time leaves anything behind. */
static void it_ends_by_revocation_and_by_time(void **state)
{
    struct cap soon;
    uint64_t key;
    (void)state;

    key = have(&anna, &ka, 0, CAP_READ);
    assert_read(&ka, 0, 'f');
    assert_int_equal(raw_revoke_key(&anna, key), 1);
    assert_int_equal(read_all(&ka, 0), -EKEYREVOKED);
    assert_true(all(ka.mem, RAW_MEM, 'm'));
    assert_int_equal(raw_grant(&anna, file, CAP_READ, 0, 0, 500, &soon, NULL), 0);
    assert_int_equal(raw_bind(&ka, 1, &soon), 0);
    usleep(600000);
    assert_int_equal(read_all(&ka, 1), -EKEYEXPIRED);
    assert_int_equal(raw_bind(&ka, 2, &soon), -EKEYEXPIRED);
    assert_true(all(ka.mem, RAW_MEM, 'm'));
    have(&anna, &ka, 0, CAP_READ);
    assert_read(&ka, 0, 'f');
}

static void who_may_not_gets_none_and_not_anothers(void **state)
{
    struct cap annas, berts;
    (void)state;

    assert_int_equal(raw_grant(&bert, file, CAP_WRITE, 0, 0, 0, &berts, NULL), -EACCES);
    assert_int_equal(raw_grant(&bert, file + 1000, CAP_READ, 0, 0, 0, &berts, NULL), -ENOENT);
    assert_int_equal(raw_grant(&anna, file, READ_WRITE, 0, 0, 0, &annas, NULL), 0);
    assert_int_equal(raw_bind(&kb, 0, &annas), -EACCES);
    assert_int_equal(read_all(&kb, 0), -EACCES);
    have(&bert, &kb, 1, CAP_READ); /* the file is 0644 */
    assert_read(&kb, 1, 'f');
    assert_int_equal(io(&kb, DP_WRITE, 1, 0, BYTES), -EACCES);
    assert_int_equal(raw_chmod(&anna, file, 0600), 0);
    assert_int_equal(raw_grant(&bert, file, CAP_READ, 0, 0, 0, &berts, NULL), -EACCES);
    have(&anna, &ka, 0, CAP_READ);
    assert_read(&ka, 0, 'f');
}

/* An agent's cache does not ask its server about each read. */
static void cache_asks(void)
{
    if (daemon_cache)
        usleep(1100000);
}

/* Nothing is open for it: a handle that was, for a filter, is closed by a message that may be on its way still. */
static int read_deleted(void)
{
    int r = 0;

    for (int i = 0; i < 100 && r != -ENOENT; i++) {
        if (i)
            usleep(100000);
        memset(kb.mem, 'm', RAW_MEM);
        r = read_all(&kb, 0);
    }
    return r;
}

/* As an open descriptor does; and a deleted file is gone. */
static void it_goes_on_after_chmod_and_not_after_the_deletion(void **state)
{
    (void)state;
    have(&bert, &kb, 0, CAP_READ);
    have(&anna, &ka, 0, CAP_WRITE);
    assert_int_equal(raw_chmod(&anna, file, 0), 0);
    assert_read(&kb, 0, 'f');
    memset(ka.mem, 'w', BYTES);
    assert_int_equal(io(&ka, DP_WRITE, 0, 0, BYTES), 0);
    assert_int_equal(raw_unlink(&anna, "file"), 0);
    cache_asks();
    assert_int_equal(read_deleted(), -ENOENT);
    assert_true(all(kb.mem, RAW_MEM, 'm'));
    assert_int_equal(io(&ka, DP_WRITE, 0, 0, BYTES), -ENOENT);
}

static void a_capability_of_an_open_goes_on_after_the_close(void **state)
{
    struct cap cap;
    (void)state;

    assert_int_equal(raw_open_file(&anna, file, READ_WRITE, &cap), 0);
    assert_int_equal(raw_close_file(&anna, anna.file), 0);
    assert_int_equal(raw_bind(&ka, 0, &cap), 0);
    assert_read(&ka, 0, 'f');
    memset(ka.mem, 'w', BYTES);
    assert_int_equal(io(&ka, DP_WRITE, 0, 0, BYTES), 0);
    assert_read(&ka, 0, 'w');
    assert_int_equal(raw_unlink(&anna, "file"), 0);
    cache_asks();
    assert_int_equal(read_all(&ka, 0), -ENOENT);
}

/* Also where a filter has to read what is around it. */
static void who_may_only_write_writes(void **state)
{
    struct cap cap;
    (void)state;

    assert_int_equal(raw_chmod(&anna, file, 0622), 0);
    assert_int_equal(raw_grant(&bert, file, CAP_READ, 0, 0, 0, &cap, NULL), -EACCES);
    have(&bert, &kb, 0, CAP_WRITE);
    memset(kb.mem, 'b', BYTES);
    assert_int_equal(io(&kb, DP_WRITE, 0, 5000, 6000), 0);
    assert_int_equal(read_all(&kb, 0), -EACCES);
    assert_int_equal(raw_open_file(&bert, file, CAP_WRITE, &cap), 0);
    assert_int_equal(raw_bind(&kb, 1, &cap), 0);
    memset(kb.mem, 'c', BYTES);
    assert_int_equal(io(&kb, DP_WRITE, 1, 11000, 100), 0);
    assert_int_equal(read_all(&kb, 1), -EACCES);
    assert_true(all(kb.mem, RAW_MEM, 'm'));
    have(&anna, &ka, 0, CAP_READ);
    assert_int_equal(read_all(&ka, 0), 0);
    assert_true(all(ka.mem, 5000, 'f') && all(ka.mem + 5000, 6000, 'b') && all(ka.mem + 11000, 100, 'c') &&
                all(ka.mem + 11100, BYTES - 11100, 'f'));
}

static void a_directory_has_no_bytes(void **state)
{
    struct dp_request small = {.opcode = DP_READ, .flags = DP_F_INLINE, .cap = 0, .ino = PST_ROOT_INO, .length = 100},
                      sync = {.opcode = DP_FSYNC, .cap = 0, .ino = PST_ROOT_INO}, whole_of_it = {.opcode = DP_SYNCFS};
    struct cap cap;
    (void)state;

    assert_int_equal(raw_grant(&anna, PST_ROOT_INO, CAP_READ, 0, 0, 0, &cap, NULL), 0);
    assert_int_equal(raw_bind(&ka, 0, &cap), 0);
    assert_int_equal(raw_call(&ka, &small), -EISDIR);
    assert_int_equal(raw_call(&ka, &sync), 0);
    assert_int_equal(raw_call(&ka, &whole_of_it), 0);
}

/* Ends the keys of all clients of the server, or of the server behind the agent. */
static void revoke_at_the_server(void)
{
    struct raw admin;

    assert_int_equal(daemon_agent ? raw_open(&admin, behind_addr, behind_token, "q", "c")
                                  : raw_open(&admin, addr, token, "q", "c"), 0);
    assert_true(raw_revoke_cont(&admin) > 0);
    assert_int_equal(raw_end_session(&admin), 0);
    raw_close(&admin);
    cache_asks();
}

static void what_the_server_revokes_ends_until_it_is_granted_anew(void **state)
{
    (void)state;
    have(&anna, &ka, 0, CAP_READ);
    assert_read(&ka, 0, 'f');
    revoke_at_the_server();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(read_all(&ka, 0), -EKEYREVOKED);
        assert_true(all(ka.mem, RAW_MEM, 'm'));
    }
    have(&anna, &ka, 1, CAP_READ);
    assert_read(&ka, 1, 'f');
    have(&anna, &ka, 2, READ_WRITE);
    revoke_at_the_server(); /* nobody has tried what it ends before it is granted anew */
    have(&anna, &ka, 1, CAP_READ);
    assert_read(&ka, 1, 'f');
}

/* Nobody tells an agent that its server has revoked something: it is to see it by what the next open gives. */
static void after_it_a_fresh_open_holds_at_once(void **state)
{
    struct cap old, both, again;
    (void)state;

    assert_int_equal(raw_open_file(&anna, file, CAP_READ, &old), 0);
    assert_int_equal(raw_open_file(&anna, file, READ_WRITE, &both), 0);
    assert_int_equal(raw_bind(&ka, 0, &old), 0);
    assert_read(&ka, 0, 'f');
    revoke_at_the_server();
    assert_int_equal(raw_open_file(&anna, file, CAP_READ, &again), 0);
    assert_int_equal(raw_bind(&ka, 1, &again), 0);
    assert_read(&ka, 1, 'f');
    assert_int_equal(raw_open_file(&anna, file, READ_WRITE, &again), 0);
    assert_int_equal(raw_bind(&ka, 2, &again), 0);
    memset(ka.mem, 'w', BYTES);
    assert_int_equal(io(&ka, DP_WRITE, 2, 0, BYTES), 0);
    assert_read(&ka, 1, 'w');
}

/*
 * An agent's own capabilities live on while its server is started anew, which ends what that had given. The agent asks
 * again, and in the name of whom they were granted to: not as itself, who may all.
 */
static void after_a_restart_of_the_server_the_user_is_judged_anew(void **state)
{
    (void)state;
    if (!daemon_agent)
        skip();
    have(&bert, &kb, 0, CAP_READ);
    have(&anna, &ka, 0, CAP_READ);
    assert_read(&kb, 0, 'f');
    assert_int_equal(restart_behind(), 0);
    assert_read(&kb, 0, 'f');
    assert_int_equal(raw_chmod(&anna, file, 0600), 0);
    assert_int_equal(restart_behind(), 0);
    assert_read(&ka, 0, 'f');
    cache_asks();
    assert_int_equal(read_all(&kb, 0), -EACCES);
    assert_true(all(kb.mem, RAW_MEM, 'm'));
    assert_int_equal(raw_chmod(&anna, file, 0644), 0);
    assert_read(&kb, 0, 'f');
    assert_int_equal(restart_behind(), 0);
    assert_int_equal(raw_unlink(&anna, "file"), 0);
    cache_asks();
    assert_int_equal(read_all(&ka, 0), -ENOENT); /* what the agent asks for leaves nothing open either */
}

#define T(f) cmocka_unit_test_setup_teardown(f, before, after)
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        T(what_nobody_has_open_is_read_and_written_by_a_grant),
        T(it_gives_what_it_says_and_no_more),
        T(it_ends_by_revocation_and_by_time),
        T(who_may_not_gets_none_and_not_anothers),
        T(it_goes_on_after_chmod_and_not_after_the_deletion),
        T(a_capability_of_an_open_goes_on_after_the_close),
        T(who_may_only_write_writes),
        T(a_directory_has_no_bytes),
        T(what_the_server_revokes_ends_until_it_is_granted_anew),
        T(after_it_a_fresh_open_holds_at_once),
        T(after_a_restart_of_the_server_the_user_is_judged_anew),
    };

    if (argc > 1) {
        daemon_agent = true;
        if (!strcmp(argv[1], "filters")) {
            daemon_agent_filters[0] = "crypt:key_command=printf${IFS}%064d${IFS}7";
            daemon_agent_filters[1] = "compress";
        }
        if (!strcmp(argv[1], "cache"))
            daemon_cache = "16M";
    }
    return cmocka_run_group_tests(tests, start, stop);
}
