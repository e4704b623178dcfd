/*
 * Threads with queues of their own on two caches over one store. A block carries the number of its newest write; no
 * reader finds an older one than was written before it began, in its own cache, or before it opened the file, in the
 * other one. Random; the seed is printed.
 */
#include "cache_fixture.h"
#include "../lib/seed.h"

#define BLOCKS  300u /* more than the memory has */
#define WRITERS 2
#define READERS 4

static struct cx cache[2];
static uint64_t file;
static _Atomic uint64_t written[BLOCKS];
static _Atomic bool over;
static _Atomic int failed; /* a line */

struct worker {
    pthread_t t;
    int number;
    uint64_t seed, rounds;
};

#define NEED(x)                                                                                                        \
    do {                                                                                                               \
        if (!(x))                                                                                                      \
            atomic_store(&failed, __LINE__);                                                                           \
    } while (0)

static struct cx of(struct worker *w)
{
    struct cx x = cache[w->number % 2];

    NEED(pst_queue_open(x.top, 8, &x.q) == 0);
    return x;
}

static void *write_blocks(void *arg)
{
    struct worker *w = arg;
    struct cx x = of(w);
    uint64_t *p = malloc(B);
    struct rng r;

    rng_seed(&r, w->seed);
    for (; !atomic_load(&over); w->rounds++) {
        uint64_t b = rng_below(&r, BLOCKS / WRITERS) * WRITERS + (uint64_t)w->number; /* each has its own */
        uint64_t v = atomic_load(&written[b]) + 1;
        p[0] = p[B / 16] = p[B / 8 - 1] = v;
        NEED(cx_io(&x, PST_OP_WRITE, file, b * B, p, B) == (int64_t)B);
        atomic_store(&written[b], v);
        if (rng_below(&r, 4) == 0)
            usleep(200);
    }
    pst_queue_close(x.q);
    free(p);
    return NULL;
}

static void *read_blocks(void *arg)
{
    struct worker *w = arg;
    struct cx x = of(w);
    uint64_t *p = malloc(8 * B), least[8];
    struct pst_attr a;
    struct rng r;

    rng_seed(&r, w->seed);
    for (; !atomic_load(&over); w->rounds++) {
        uint64_t n = 1 + rng_below(&r, 8), b = rng_below(&r, BLOCKS - n);
        for (uint64_t k = 0; k < n; k++) {
            /* Of the other cache's writer only what the open below shows. */
            least[k] = atomic_load(&written[b + k]);
        }
        NEED(pst_store_open(x.c, &cx_ctx, file, R_OK, false, &a) == 0);
        NEED(cx_io(&x, PST_OP_READ, file, b * B, p, n * B) == (int64_t)(n * B));
        for (uint64_t k = 0; k < n; k++) {
            const uint64_t *q = p + k * B / 8;
            NEED(q[0] >= least[k] && q[0] == q[B / 16] && q[0] == q[B / 8 - 1]);
        }
        /* Once more without an open: what this cache's writer has written meanwhile is there. */
        for (uint64_t k = 0; k < n; k++)
            if ((b + k) % WRITERS == (uint64_t)w->number % 2)
                least[k] = atomic_load(&written[b + k]);
        NEED(cx_io(&x, PST_OP_READ, file, b * B, p, n * B) == (int64_t)(n * B));
        for (uint64_t k = 0; k < n; k++)
            NEED(p[k * B / 8] >= least[k]);
        pst_store_release(x.c, file);
    }
    pst_queue_close(x.q);
    free(p);
    return NULL;
}

static void nobody_reads_what_was_overwritten_before(void **state)
{
    uint64_t seed = seed_new(), writes = 0, reads = 0;
    struct worker w[WRITERS + READERS] = {0};
    uint8_t zero = 0;
    (void)state;

    cx_open(&cache[0], 16 * MiB, MiB);
    cx_open(&cache[1], 16 * MiB, 0);
    cx_age(&cache[0], CACHE_AGE_NS);
    cx_age(&cache[1], CACHE_AGE_NS);
    file = cx_make(&cache[0], "f", 0);
    cx_reopen(&cache[1], file);
    assert_int_equal(cx_io(&cache[0], PST_OP_WRITE, file, BLOCKS * B - 1, &zero, 1), 1);
    for (int i = 0; i < WRITERS + READERS; i++) {
        w[i].number = i < WRITERS ? i : i - WRITERS;
        w[i].seed = seed + (uint64_t)i;
        assert_int_equal(pthread_create(&w[i].t, NULL, i < WRITERS ? write_blocks : read_blocks, &w[i]), 0);
    }
    usleep(getenv("PENSTOCK_EXTENDED") ? 30000000 : 1500000);
    atomic_store(&over, true);
    for (int i = 0; i < WRITERS + READERS; i++) {
        pthread_join(w[i].t, NULL);
        *(i < WRITERS ? &writes : &reads) += w[i].rounds;
    }
    print_message("%llu writes, %llu reads; %llu hits in the first\n", (unsigned long long)writes,
                  (unsigned long long)reads, (unsigned long long)cx_counts(&cache[0]).hits);
    assert_int_equal(failed, 0);
    cx_close(&cache[0]);
    cx_close(&cache[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {CX_TEST(nobody_reads_what_was_overwritten_before)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
