/*
 * What an agent's cache holds reaches nobody who may not read it: not another tenant of the agent, whose container and
 * object it is as well, and not who could read it until now. The agent and the server run in this process.
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

#define BYTES (256u << 10)
#define TOKEN_OF_AGENT "the-agents-own-token-of-the-test"

static char token_file[] = "/tmp/test-cached-XXXXXX";
static struct raw anna, bert;
static struct raw_conn ka, kb;
static uint64_t file;
static struct cap cap_a, cap_b;
#define SHARD_ANNA 1u /* the agent's own tenant has shard 0 */
#define SHARD_BERT 2u

static const char server_config[] =
    "pools:\n"
    "  - {label: q, mode: 777, containers: [{label: c, mode: 777}]}\n"
    "credentials:\n"
    "  - {name: agent, token: " TOKEN_OF_AGENT ", any_uid: true, origin: true}\n";

static const char agent_config[] =
    "tenants:\n"
    "  - {name: anna, containers: [q/c], buffer_memory: 16M, cache: 16M, backend_token_file: %1$s}\n"
    "  - {name: bert, containers: [q/c], buffer_memory: 16M, cache: 16M, backend_token_file: %1$s}\n"
    "credentials:\n"
    "  - {name: anna, token: annas-own-token-of-the-test, uid: 1000, gid: 1000, tenant: anna}\n"
    "  - {name: bert, token: berts-own-token-of-the-test, uid: 1000, gid: 1000, tenant: bert}\n";

static int open_anna(void)
{
    return raw_open(&anna, addr, "annas-own-token-of-the-test", "q", "c");
}

static int start(void **state)
{
    static char text[sizeof agent_config + 2 * sizeof token_file];
    int fd = mkstemp(token_file); /* mode 0600 */

    if (fd < 0 || dprintf(fd, "%s\n", TOKEN_OF_AGENT) < 0 || close(fd) < 0)
        return -1;
    snprintf(text, sizeof text, agent_config, token_file);
    daemon_agent = true;
    daemon_config = server_config;
    daemon_agent_config = text;
    if (start_daemon(state) < 0 || open_anna() < 0 ||
        raw_open(&bert, addr, "berts-own-token-of-the-test", "q", "c") < 0)
        return -1;
    return raw_create(&anna, "both", &file, &cap_a);
}

static int stop(void **state)
{
    raw_close(&anna);
    raw_close(&bert);
    unlink(token_file);
    return stop_daemon(state);
}

static double of(const char *tenant, const char *name)
{
    char full[120];
    snprintf(full, sizeof full, "penstock_tenant_%s{tenant=\"%s\"}", name, tenant);
    return metric(full);
}

static int read_all(struct raw_conn *k, uint32_t cap)
{
    struct dp_request r = raw_io(k, DP_READ, cap, file, 0, BYTES, 0);

    memset(k->mem, 'm', RAW_MEM);
    return raw_call(k, &r);
}

static void assert_read(struct raw_conn *k, uint32_t cap, uint8_t c)
{
    assert_int_equal(read_all(k, cap), 0);
    assert_int_equal(k->reply.result, BYTES);
    assert_true(all(k->mem, BYTES, c) && all(k->mem + BYTES, RAW_MEM - BYTES, 'm'));
}

/* All of it is in anna's cache, and she has it from there. */
static void cached(uint8_t c)
{
    struct dp_request w = raw_io(&ka, DP_WRITE, 0, file, 0, BYTES, 0);
    double hits;

    memset(ka.mem, c, BYTES);
    assert_int_equal(raw_call(&ka, &w), 0);
    assert_read(&ka, 0, c);
    hits = of("anna", "cache_hits_total");
    assert_read(&ka, 0, c);
    assert_int_equal(of("anna", "cache_hits_total"), hits + 1);
}

static int both(void **state)
{
    (void)state;
    if (raw_open_file(&anna, file, CAP_READ | CAP_WRITE, &cap_a) < 0 || raw_connect_shard(&anna, SHARD_ANNA, &ka) < 0 ||
        raw_connect_shard(&bert, SHARD_BERT, &kb) < 0)
        return -1;
    return raw_bind(&ka, 0, &cap_a);
}

static int neither(void **state)
{
    (void)state;
    raw_disconnect(&ka);
    raw_disconnect(&kb);
    return 0;
}

/* Refused in each form, and neither memory nor answer has a byte. */
static void assert_refused(struct raw_conn *k, uint32_t cap, int status)
{
    struct dp_request small = {.opcode = DP_READ, .flags = DP_F_INLINE, .cap = cap, .ino = file, .length = 1000},
                      chunk = raw_io(k, DP_CHUNK_READ, cap, file, 0, 1 << 20, 0);

    assert_int_equal(read_all(k, cap), status);
    assert_int_equal(raw_call(k, &chunk), status);
    assert_int_equal(raw_call(k, &small), status);
    assert_int_equal(k->reply.payload_len, 0);
    assert_true(all(k->mem, RAW_MEM, 'm'));
}

static void another_tenant_gets_of_the_same_object_what_the_server_gives_it(void **state)
{
    double hits, misses;

    (void)state;
    cached('a');
    hits = of("anna", "cache_hits_total");
    assert_int_equal(raw_bind(&kb, 0, &cap_a), -EACCES); /* anna's, stolen */
    assert_refused(&kb, 0, -EACCES);
    misses = of("bert", "cache_misses_total");
    assert_int_equal(of("bert", "cache_hits_total"), 0);
    assert_int_equal(raw_open_file(&bert, file, CAP_READ, &cap_b), 0);
    assert_int_equal(raw_bind(&kb, 0, &cap_b), 0);
    assert_read(&kb, 0, 'a'); /* his own way, from the server */
    assert_int_equal(of("bert", "cache_misses_total"), misses + 1);
    assert_int_equal(of("bert", "cache_hits_total"), 0);
    assert_int_equal(of("anna", "cache_hits_total"), hits);
}

static void who_may_read_a_part_hits_that_part_only(void **state)
{
    struct dp_request r = raw_io(&ka, DP_READ, 1, file, 65536, 4096, 0);
    struct cap part;

    (void)state;
    cached('p');
    assert_int_equal(raw_grant(&anna, file, CAP_READ, 65536, 4096, 0, &part, NULL), 0);
    assert_int_equal(raw_bind(&ka, 1, &part), 0);
    assert_refused(&ka, 1, -ERANGE);
    assert_int_equal(raw_call(&ka, &r), 0);
    assert_true(all(ka.mem, 4096, 'p') && all(ka.mem + 4096, RAW_MEM - 4096, 'm'));
}

/* One tenant's session is revoked: it reads nothing more, and the other one's hits go on. */
static void a_revoked_session_has_no_hits(void **state)
{
    double hits;

    (void)state;
    cached('r');
    assert_int_equal(raw_open_file(&bert, file, CAP_READ, &cap_b), 0);
    assert_int_equal(raw_bind(&kb, 0, &cap_b), 0);
    assert_read(&kb, 0, 'r');
    assert_true(raw_revoke_session(&anna) > 0);
    hits = of("anna", "cache_hits_total");
    assert_refused(&ka, 0, -EKEYREVOKED);
    assert_int_equal(raw_bind(&ka, 1, &cap_a), -EKEYREVOKED);
    assert_refused(&ka, 1, -EACCES);
    assert_int_equal(of("anna", "cache_hits_total"), hits);
    hits = of("bert", "cache_hits_total");
    assert_read(&kb, 0, 'r');
    assert_int_equal(of("bert", "cache_hits_total"), hits + 1);
}

/* The next session of the same tenant has the hits, and only by a capability of its own. */
static void a_session_that_ended_leaves_nothing_to_the_next_but_the_cache(void **state)
{
    struct cap old = cap_a;
    double hits;

    (void)state;
    cached('e');
    assert_int_equal(raw_end_session(&anna), 0);
    assert_int_equal(read_all(&ka, 0), -ENOTCONN);
    assert_true(all(ka.mem, RAW_MEM, 'm'));
    raw_disconnect(&ka);
    raw_close(&anna);
    assert_int_equal(open_anna(), 0);
    assert_int_equal(raw_connect_shard(&anna, SHARD_ANNA, &ka), 0);
    assert_true(raw_bind(&ka, 0, &old) < 0);
    assert_refused(&ka, 0, -EACCES);
    hits = of("anna", "cache_hits_total");
    assert_int_equal(raw_open_file(&anna, file, CAP_READ, &cap_a), 0);
    assert_int_equal(raw_bind(&ka, 0, &cap_a), 0);
    assert_read(&ka, 0, 'e');
    assert_int_equal(of("anna", "cache_hits_total"), hits + 1);
}

/* The server takes back what it gave the agent: no hit is later than a second after that. */
static void what_is_revoked_at_the_server_ends_the_hits(void **state)
{
    struct raw admin;
    double hits;

    (void)state;
    cached('s');
    assert_int_equal(raw_open(&admin, behind_addr, behind_token, "q", "c"), 0);
    assert_true(raw_revoke_cont(&admin) > 0);
    usleep(1100000);
    hits = of("anna", "cache_hits_total");
    assert_int_equal(read_all(&ka, 0), -EKEYREVOKED);
    assert_true(all(ka.mem, RAW_MEM, 'm'));
    assert_int_equal(of("anna", "cache_hits_total"), hits);
    /* What is given anew at the next open holds again. */
    assert_int_equal(raw_open_file(&anna, file, CAP_READ | CAP_WRITE, &cap_a), 0);
    assert_int_equal(raw_bind(&ka, 1, &cap_a), 0);
    assert_read(&ka, 1, 's');
    raw_close(&admin);
}

#define T(f) cmocka_unit_test_setup_teardown(f, both, neither)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(another_tenant_gets_of_the_same_object_what_the_server_gives_it),
        T(who_may_read_a_part_hits_that_part_only),
        T(a_revoked_session_has_no_hits),
        T(a_session_that_ended_leaves_nothing_to_the_next_but_the_cache),
        T(what_is_revoked_at_the_server_ends_the_hits),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
