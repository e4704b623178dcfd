/*
 * Two agents that compress and encrypt over one plain server: what several clients do through both comes out as if one
 * store had done it. Random; the seed is printed. usage: test_remote_agents_filters PENSTOCK [TEST]
 */
#include "api_cases.h"
#include "base/util.h"
#include "killer.h"
#include "remote/remote_store.h"
#include "remote_case.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGENTS   2
#define WRITERS  4        /* clients: two through each agent */
#define RECORD   4200u    /* records of different writers lie in one block and one chunk */
#define FILE_MAX (3u << 20)

static struct daemon server, agents[AGENTS];
static struct pst_fs *fs[WRITERS];
static uint8_t model[FILE_MAX], got[FILE_MAX + 1];
static uint64_t model_size;
static struct killer *killer_now; /* NULL: agents live */

static void open_all(const char *container)
{
    for (int i = 0; i < WRITERS; i++)
        fs[i] = connect_at(agents[i % AGENTS].base, container, 300000);
}

static void close_all(void)
{
    for (int i = 0; i < WRITERS; i++)
        assert_int_equal(pst_disconnect(fs[i]), 0);
}

/* Through each agent the file is the model. */
static void check(const char *path, const char *when, int round)
{
    for (int i = 0; i < AGENTS; i++) {
        struct pst_file *f;
        int64_t n;
        assert_int_equal(pst_open(fs[i], path, O_RDONLY, 0, &f), 0);
        n = pst_pread(f, got, sizeof got, 0);
        if (n != (int64_t)model_size)
            fail_msg("%s, round %d: agent %d has %lld bytes, not %llu", when, round, i, (long long)n,
                     (unsigned long long)model_size);
        for (uint64_t k = 0; k < model_size; k++)
            if (got[k] != model[k])
                fail_msg("%s, round %d: agent %d, byte %llu: %d, not %d", when, round, i, (unsigned long long)k, got[k],
                         model[k]);
        assert_int_equal(pst_close(f), 0);
    }
}

/* Bytes that become shorter, bytes that do not, and few that differ. */
static void content(struct rng *r, uint8_t *p, size_t n)
{
    if (rng_below(r, 2))
        rng_fill(r, p, n);
    else
        memset(p, (int)rng_below(r, 256), n);
}

static void model_resize(uint64_t size)
{
    if (size > model_size)
        memset(model + model_size, 0, size - model_size);
    model_size = size;
}

/* ---- several at once, each with records of its own in the same chunks ---- */

struct writer {
    int number;
    uint64_t seed;
    int r;
};

static void *write_records(void *arg)
{
    struct writer *w = arg;
    uint8_t buf[RECORD];
    struct pst_file *f;
    struct rng r;

    rng_seed(&r, w->seed);
    w->r = pst_open(fs[w->number], "/records", O_RDWR | (w->number < 2 ? O_DIRECT : 0), 0, &f);
    for (int i = 0; i < 12 && w->r == 0; i++) {
        uint64_t k = rng_below(&r, FILE_MAX / RECORD / WRITERS) * WRITERS + (uint64_t)w->number;
        size_t at = rng_below(&r, RECORD / 2), n = 1 + rng_below(&r, RECORD - at);
        if (k * RECORD + RECORD > model_size)
            continue; /* the file's length is the main thread's */
        content(&r, buf, n);
        if (pst_pwrite(f, buf, n, k * RECORD + at) != (int64_t)n)
            w->r = -EIO;
        memcpy(model + k * RECORD + at, buf, n); /* nobody else's bytes */
        if (killer_now && w->number % AGENTS == 0) /* through the one that is killed: they get on between two kills */
            killer_tick(killer_now);
    }
    if (w->r == 0)
        w->r = pst_close(f);
    return NULL;
}

/* k: kills an agent meanwhile; NULL: nobody does. */
static void change_records(const char *container, struct killer *k)
{
    struct rng r;
    struct pst_file *f;

    rng_seed(&r, seed);
    open_all(container);
    if (k)
        killer_start(k);
    f = api_open_new(fs[0], "/records", 0);
    content(&r, model, FILE_MAX);
    model_size = FILE_MAX;
    assert_int_equal(pst_pwrite(f, model, FILE_MAX, 0), FILE_MAX);
    assert_int_equal(pst_close(f), 0);
    for (int round = 0; k ? !killer_over(k) : round < (extended ? 200 : 12); round++) {
        struct writer w[WRITERS];
        pthread_t t[WRITERS];
        int who = (int)rng_below(&r, WRITERS);
        uint64_t size = FILE_MAX / 2 + rng_below(&r, FILE_MAX / 2), at = rng_below(&r, size),
                 n = 1 + rng_below(&r, size - at);

        for (int i = 0; i < WRITERS; i++) {
            w[i] = (struct writer){.number = i, .seed = rng_u64(&r)};
            assert_int_equal(pthread_create(&t[i], NULL, write_records, &w[i]), 0);
        }
        for (int i = 0; i < WRITERS; i++) {
            pthread_join(t[i], NULL);
            assert_int_equal(w[i].r, 0);
        }
        check("/records", "written", round);
        assert_int_equal(pst_truncate(fs[who], "/records", size), 0);
        model_resize(size);
        check("/records", "cut", round);
        assert_int_equal(pst_open(fs[WRITERS - 1 - who], "/records", O_RDWR, 0, &f), 0);
        assert_int_equal(pst_fallocate(f, 3 /* KEEP_SIZE | PUNCH_HOLE */, at, n), 0);
        assert_int_equal(pst_close(f), 0);
        memset(model + at, 0, n);
        assert_int_equal(pst_truncate(fs[(who + 1) % WRITERS], "/records", FILE_MAX), 0);
        model_resize(FILE_MAX);
        check("/records", "a hole punched, and longer again", round);
    }
    close_all();
}

static void partial_writes_truncates_and_holes_by_two_agents_are_those_of_one(void **state)
{
    (void)state;
    change_records("records", NULL);
}

/*
 * Neither the clients of the one that is killed nor those of the other see anything of it, but that it takes a while.
 */
static void they_are_also_when_one_of_the_agents_is_killed_under_them(void **state)
{
    static struct killer k;
    (void)state;

    k = (struct killer){.d = &agents[0], .rounds = extended ? 100 : 10};
    killer_now = &k;
    change_records("killed", &k);
    killer_now = NULL;
    assert_true(killer_end(&k));
}

/* ---- appends ---- */

#define LINES 40
#define LINE  3001u /* no whole number of them is a chunk */

static void *append_lines(void *arg)
{
    struct writer *w = arg;
    char line[LINE];
    struct pst_file *f;

    w->r = pst_open(fs[w->number], "/lines", O_WRONLY | O_APPEND, 0, &f);
    for (int i = 0; i < LINES && w->r == 0; i++) {
        memset(line, 'a' + w->number, sizeof line);
        snprintf(line, sizeof line, "%d %d", w->number, i);
        if (pst_append(f, line, sizeof line, NULL) != (int64_t)sizeof line)
            w->r = -EIO;
    }
    if (w->r == 0)
        w->r = pst_close(f);
    return NULL;
}

static void appends_by_two_agents_are_all_there_once_and_in_order(void **state)
{
    struct writer w[WRITERS];
    pthread_t t[WRITERS];
    int next[WRITERS] = {0}, who, k;
    (void)state;

    open_all("lines");
    assert_int_equal(pst_close(api_open_new(fs[0], "/lines", 0)), 0);
    for (int i = 0; i < WRITERS; i++) {
        w[i] = (struct writer){.number = i};
        assert_int_equal(pthread_create(&t[i], NULL, append_lines, &w[i]), 0);
    }
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(w[i].r, 0);
    }
    for (int a = 0; a < AGENTS; a++) {
        struct pst_file *f;
        assert_int_equal(pst_open(fs[a], "/lines", O_RDONLY, 0, &f), 0);
        assert_int_equal(pst_pread(f, got, sizeof got, 0), WRITERS * LINES * LINE);
        assert_int_equal(pst_close(f), 0);
        memset(next, 0, sizeof next);
        for (uint32_t i = 0; i < WRITERS * LINES; i++) {
            const char *line = (const char *)got + i * LINE;
            assert_int_equal(sscanf(line, "%d %d", &who, &k), 2);
            assert_in_range(who, 0, WRITERS - 1);
            assert_int_equal(k, next[who]++);
            assert_int_equal(line[LINE - 1], 'a' + who);
        }
    }
    close_all();
}

/* ---- one after the other, by whichever ---- */

static void one_step(struct rng *r, int who)
{
    uint64_t at = rng_below(r, model_size + 1), n = 1 + rng_below(r, 300000);
    static uint8_t buf[300001];
    struct pst_file *f;

    n = min_u64(n, FILE_MAX - at);
    assert_int_equal(pst_open(fs[who], "/steps", O_RDWR, 0, &f), 0);
    switch (n ? rng_below(r, 4) : 2) {
    case 0:
        if (model_size + n <= FILE_MAX) {
            content(r, buf, n);
            assert_int_equal(pst_append(f, buf, n, NULL), n);
            memcpy(model + model_size, buf, n);
            model_size += n;
        }
        break;
    case 1:
        content(r, buf, n);
        assert_int_equal(pst_pwrite(f, buf, n, at), n);
        memcpy(model + at, buf, n);
        model_size = max_u64(model_size, at + n);
        break;
    case 2:
        at = rng_below(r, FILE_MAX);
        assert_int_equal(pst_ftruncate(f, at), 0);
        model_resize(at);
        break;
    default:
        assert_int_equal(pst_pread(f, buf, n, at), min_u64(n, model_size - at));
        assert_memory_equal(buf, model + at, min_u64(n, model_size - at));
    }
    assert_int_equal(pst_close(f), 0);
}

static void any_sequence_of_changes_through_either_agent_matches_a_model(void **state)
{
    struct rng r;
    (void)state;

    rng_seed(&r, seed ^ 1);
    open_all("steps");
    assert_int_equal(pst_close(api_open_new(fs[0], "/steps", 0)), 0);
    model_size = 0;
    for (int i = 0; i < (extended ? 2000 : 80); i++) {
        one_step(&r, (int)rng_below(&r, WRITERS));
        if (i % 20 == 19)
            check("/steps", "steps", i);
    }
    close_all();
}

int main(int argc, char **argv)
{
    static const char *const filters[] = {"--filter", "compress", "--filter", "crypt:key_env=PST_TEST_KEY",
                                          "--buffer-memory", "16M", "--backend-timeout", "300s", NULL};
    int r = remote_main_begin(argc, argv);
    bool ok;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(partial_writes_truncates_and_holes_by_two_agents_are_those_of_one),
        cmocka_unit_test(they_are_also_when_one_of_the_agents_is_killed_under_them),
        cmocka_unit_test(appends_by_two_agents_are_all_there_once_and_in_order),
        cmocka_unit_test(any_sequence_of_changes_through_either_agent_matches_a_model),
    };

    if (r)
        return r;
    pst_backend_register(&pst_remote_backend);
    unsetenv("PENSTOCK_TEST_AGENT");
    setenv("PST_TEST_KEY", "7d1f3c9ab4e2085561c7f0d99a3e5b2248d6017ce3f98a40b51d6e27c0943fa8", 1);
    ok = daemon_start(&server, program, NULL);
    for (int i = 0; i < AGENTS && ok; i++)
        ok = daemon_agent_start(&agents[i], &server, filters);
    r = ok ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
    for (int i = 0; i < AGENTS; i++)
        daemon_done(&agents[i]);
    daemon_done(&server);
    return r;
}
