/*
 * Hosts of an agent with a cache, and hosts that are at the server itself: what one closed another opens whole,
 * wherever it was written, and what is read of the cache is never older. usage: test_agent_cache PENSTOCK [PROVIDER]
 */
#include "api_cases.h"
#include "base/rng.h"
#include "base/util.h"
#include "daemon.h"
#include "remote/remote_store.h"
#include "remote_case.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define HOSTS    4 /* 0 and 1 at the agent, 2 at another agent with a cache, 3 at the server */
#define FILES    3
#define FILE_MAX (1u << 20)

static struct daemon server, agent, other;
static struct pst_fs *host[HOSTS];
static struct rng rng;

static void connect_all(const char *container)
{
    for (int i = 0; i < HOSTS; i++)
        host[i] = connect_at(i < 2 ? agent.base : i == 2 ? other.base : server.base, container, 0);
}

static void disconnect_all(void)
{
    for (int i = 0; i < HOSTS; i++)
        assert_int_equal(pst_disconnect(host[i]), 0);
}

/* ---- a file, and what it is to be ---- */

struct model {
    char path[16];
    size_t size;
    uint8_t bytes[FILE_MAX];
};
static struct model model[FILES];

static void draw(uint8_t *p, size_t n)
{
    uint64_t word = rng_u64(&rng);

    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(word >> i % 8 * 8 ^ i >> 3);
}

/* In place, behind the end, shorter, or another file of that name. */
static void change(struct pst_fs *fs, struct model *m)
{
    size_t at = rng_below(&rng, m->size + 1), n = 1 + rng_below(&rng, rng_below(&rng, 2) ? 300 : 300000);
    enum { PART, TRUNCATE, NEW, AS_NEW } how = (int)rng_below(&rng, 4);
    struct pst_file *f;

    n = min_u64(n, FILE_MAX - at);
    if (how == TRUNCATE) {
        assert_int_equal(pst_truncate(fs, m->path, (int64_t)at), 0);
        m->size = at;
        return;
    }
    if (how != PART)
        at = m->size = 0;
    draw(m->bytes + at, n);
    assert_int_equal(
        pst_open(fs, how == AS_NEW ? "/new" : m->path, O_WRONLY | O_CREAT | (how == PART ? 0 : O_TRUNC), 0644, &f), 0);
    assert_int_equal(pst_pwrite(f, m->bytes + at, n, at), n);
    assert_int_equal(pst_close(f), 0);
    m->size = max_u64(m->size, at + n);
    if (how == AS_NEW)
        assert_int_equal(pst_rename(fs, "/new", m->path, 0), 0);
}

static void must_be_as(struct pst_file *f, const struct model *m, const char *who)
{
    static uint8_t back[FILE_MAX + 1];
    int64_t n = pst_pread(f, back, sizeof back, 0);

    if (n != (int64_t)m->size)
        fail_msg("%s of %s: %lld bytes of %zu", who, m->path, (long long)n, m->size);
    for (size_t i = 0; i < m->size; i++)
        if (back[i] != m->bytes[i])
            fail_msg("%s of %s: byte %zu of %zu differs", who, m->path, i, m->size);
}

static void opened_it_is_as(int i, const struct model *m, int flags)
{
    static const char *const who[HOSTS] = {"a host", "a second host", "a host of another agent",
                                           "a host at the server"};
    struct pst_file *f;
    struct stat st;

    assert_int_equal(pst_open(host[i], m->path, O_RDONLY | flags, 0, &f), 0);
    must_be_as(f, m, who[i]);
    assert_int_equal(pst_fstat(f, &st), 0);
    assert_int_equal(st.st_size, m->size);
    assert_int_equal(pst_close(f), 0);
}

/*
 * Each change is by one host that is drawn, and the next opens of the others find it, of all files, so that most are
 * hits.
 */
static void what_one_host_closed_the_next_open_of_any_other_reads(void **state)
{
    const int rounds = extended ? 1000 : 20;
    double hits;

    (void)state;
    connect_all("hosts");
    for (int k = 0; k < FILES; k++) {
        snprintf(model[k].path, sizeof model[k].path, "/f%d", k);
        api_put(host[0], model[k].path, "");
    }
    hits = figure_of(agent.base, "penstock_cache_hits_total");
    for (int round = 0; round < rounds; round++) {
        int by = (int)rng_below(&rng, HOSTS);
        change(host[by], &model[rng_below(&rng, FILES)]);
        for (int i = 1; i < HOSTS; i++)
            for (int k = 0; k < FILES; k++)
                opened_it_is_as((by + i) % HOSTS, &model[k], rng_below(&rng, 2) ? O_DIRECT : 0);
    }
    assert_true(figure_of(agent.base, "penstock_cache_hits_total") - hits > rounds);
    disconnect_all();
}

/*
 * Of a file that stays open: at once what came through the agent; else when it is looked at next, and never an older
 * state again.
 */
static void a_file_that_stays_open_never_goes_back(void **state)
{
    uint32_t page[1024], written = 0, seen = 0;
    struct pst_file *w[2], *r;

    (void)state;
    connect_all("open");
    w[0] = api_open_new(host[1], "/f", O_DIRECT);
    assert_int_equal(pst_open(host[3], "/f", O_WRONLY | O_DIRECT, 0, &w[1]), 0);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 1024; k++)
            page[k] = written;
        assert_int_equal(pst_pwrite(w[0], page, sizeof page, 0), sizeof page);
    }
    assert_int_equal(pst_open(host[0], "/f", O_RDONLY | O_DIRECT, 0, &r), 0);
    for (int i = 0; i < (extended ? 20 : 2); i++) {
        written++;
        for (int k = 0; k < 1024; k++)
            page[k] = written;
        assert_int_equal(pst_pwrite(w[i % 2], page, sizeof page, 0), sizeof page);
        do {
            assert_int_equal(pst_pread(r, page, sizeof page, 0), sizeof page);
            for (int k = 1; k < 1024; k++)
                assert_int_equal(page[k], page[0]);
            assert_true(page[0] >= seen && page[0] <= written);
            seen = page[0];
            if (i % 2 == 0)
                assert_int_equal(seen, written);
            nap(1);
        } while (seen < written);
    }
    assert_int_equal(pst_close(r), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pst_close(w[i]), 0);
    disconnect_all();
}

/* It is at the store; durable once the file is closed. */
static struct pst_file *write_all_of(struct pst_fs *fs, const char *path, int c)
{
    static uint8_t bytes[FILE_MAX];
    struct pst_file *f;

    memset(bytes, c, FILE_MAX);
    assert_int_equal(pst_open(fs, path, O_WRONLY | O_CREAT | O_DIRECT, 0644, &f), 0);
    assert_int_equal(pst_pwrite(f, bytes, FILE_MAX, 0), FILE_MAX);
    return f;
}

/* The first byte, of all that are the same. */
static int read_all_of(struct pst_fs *fs, const char *path)
{
    static uint8_t bytes[FILE_MAX];
    struct pst_file *f;

    assert_int_equal(pst_open(fs, path, O_RDONLY | O_DIRECT, 0, &f), 0);
    assert_int_equal(pst_pread(f, bytes, FILE_MAX, 0), FILE_MAX);
    for (size_t i = 1; i < FILE_MAX; i++)
        assert_int_equal(bytes[i], bytes[0]);
    assert_int_equal(pst_close(f), 0);
    return bytes[0];
}

/*
 * A crash takes what was cached and not durable, and another change takes its place, which the object's counter may not
 * tell from the one that is lost.
 */
static void what_a_crash_of_the_server_took_is_not_served_from_the_cache(void **state)
{
    (void)state;
    connect_all("crash");
    for (int round = 0; round < 2; round++) {
        struct pst_file *lost;
        assert_int_equal(pst_close(write_all_of(host[0], "/f", 'a')), 0);
        lost = write_all_of(host[0], "/f", 'b');
        assert_int_equal(read_all_of(host[1], "/f"), 'b');
        assert_int_equal(read_all_of(host[2], "/f"), 'b');
        daemon_kill(&server);
        assert_true(daemon_again(&server));
        if (round == 0) {
            int there = read_all_of(host[3], "/f"); /* 'b' if it was slow enough to sync it */
            assert_true(there == 'a' || there == 'b');
            assert_int_equal(read_all_of(host[1], "/f"), there);
            assert_int_equal(read_all_of(host[2], "/f"), there);
        }
        assert_int_equal(pst_close(write_all_of(host[3], "/f", 'c')), 0);
        assert_int_equal(read_all_of(host[1], "/f"), 'c');
        assert_int_equal(read_all_of(host[2], "/f"), 'c');
        pst_close(lost); /* -EIO, if it is */
    }
    disconnect_all();
}

static int start(void **state)
{
    /* A server that is killed loses what is not durable, as a machine does. */
    static const char *const forgets[] = {"--store-option", "recent=0", "--store-option", "sync_ms=5000", NULL};

    (void)state;
    return daemon_start(&server, program, forgets) && daemon_agent_start(&agent, &server, NULL) &&
                   daemon_agent_start(&other, &server, NULL) ? 0 : -1;
}

static int done(void **state)
{
    (void)state;
    daemon_done(&other);
    daemon_done(&agent);
    daemon_done(&server);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_one_host_closed_the_next_open_of_any_other_reads),
        cmocka_unit_test(a_file_that_stays_open_never_goes_back),
        cmocka_unit_test(what_a_crash_of_the_server_took_is_not_served_from_the_cache),
    };
    int r = remote_main_begin(argc > 2 ? 2 : argc, argv);

    if (r)
        return r;
    rng_seed(&rng, seed);
    if (argc > 2)
        setenv("PENSTOCK_TEST_PROVIDER", argv[2], 1);
    setenv("PENSTOCK_TEST_CACHE", "16M", 1);
    pst_backend_register(&pst_remote_backend);
    return cmocka_run_group_tests(tests, start, done);
}
