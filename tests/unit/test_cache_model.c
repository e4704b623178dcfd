/*
 * Two caches and the bare store, over one local engine: files are written, cut, punched, made longer through any of
 * them at random and read through the others. After an open, what is read is the newest state. Without one it is, byte
 * by byte, of a state since the last look of that cache. Random; the seed is printed.
 */
#include "cache.h"
#include "filter_fixture.h"
#include "../lib/seed.h"

#define FILES  5
#define MAX    (300 * KiB)
#define STATES 24 /* that are kept for a cache before it looks again */

struct file {
    uint64_t ino, size;
    uint8_t data[MAX];
};

/* What a cache may still show of a file. */
struct seen {
    uint32_t n;
    uint64_t size[STATES];
    uint8_t *data[STATES];
};

static struct file files[FILES];
static struct seen seen[2][FILES];
static struct {
    struct filter share;
    struct pst_store *top;
    struct pst_cont *c;
    struct pst_queue *q;
} way[3]; /* two caches, and none */
static struct rng rng;

static void add_state(struct seen *s, const struct file *f)
{
    if (s->n == STATES)
        return;
    s->data[s->n] = realloc(s->data[s->n], MAX);
    memcpy(s->data[s->n], f->data, MAX);
    s->size[s->n++] = f->size;
}

/* A file has a new state, made through a way: that one shows nothing older. */
static void new_state(int k, int by)
{
    for (int w = 0; w < 2; w++) {
        if (w == by)
            seen[w][k].n = 0;
        add_state(&seen[w][k], &files[k]);
    }
}

static void look(int w, int k)
{
    struct pst_attr a;

    if (rng_below(&rng, 3)) {
        assert_int_equal(pst_store_open(way[w].c, &ff_ctx, files[k].ino, R_OK | W_OK, false, &a), 0);
        assert_int_equal(a.size, files[k].size);
        pst_store_release(way[w].c, files[k].ino);
    } else { /* as a daemon does it for who asks for attributes by its data connection */
        struct pst_op op = {.kind = PST_OP_CHUNK_READ, .cont = way[w].c, .ino = files[k].ino};
        assert_true(pst_queue_run(way[w].q, &op) >= 0);
        assert_int_equal(op.attr.size, files[k].size);
    }
    if (w == 2)
        return;
    seen[w][k].n = 0;
    add_state(&seen[w][k], &files[k]);
}

static int64_t io(int w, enum pst_op_kind kind, int k, uint64_t at, void *p, uint64_t n, uint32_t flags)
{
    struct iovec v = {p, n};
    struct pst_op op = {.kind = kind, .flags = flags, .cont = way[w].c, .ino = files[k].ino, .offset = at, .length = n};

    if (p) {
        op.iov = &v;
        op.iovcnt = 1;
    }
    return pst_queue_run(way[w].q, &op);
}

static void resize(struct file *f, uint64_t size)
{
    if (size > f->size)
        memset(f->data + f->size, 0, size - f->size);
    f->size = size;
}

static void change(int w, int k)
{
    static uint8_t p[MAX];
    struct file *f = &files[k];
    uint64_t at = rng_below(&rng, MAX), n = 1 + rng_below(&rng, rng_below(&rng, 3) ? 5000 : MAX);
    struct pst_attr a;

    n = min_u64(n, MAX - at);
    rng_fill(&rng, p, n);
    switch (rng_below(&rng, 7)) {
    case 0:
        n = min_u64(n, MAX - f->size);
        if (!n)
            return;
        at = f->size;
        assert_int_equal(io(w, PST_OP_WRITE, k, 0, p, n, PST_OPF_APPEND), n);
        break;
    case 1:
        a.size = at;
        assert_int_equal(pst_store_setattr(way[w].c, &ff_ctx, f->ino, PST_SET_SIZE, &a, &a), 0);
        resize(f, at);
        new_state(k, w);
        return;
    case 2:
        assert_int_equal(io(w, PST_OP_PUNCH, k, at, NULL, n, 0), 0);
        if (at < f->size)
            memset(f->data + at, 0, min_u64(n, f->size - at));
        new_state(k, w);
        return;
    case 3:
        assert_int_equal(io(w, PST_OP_ALLOCATE, k, at, NULL, n, 0), 0);
        resize(f, max_u64(f->size, at + n));
        new_state(k, w);
        return;
    case 4:
        assert_int_equal(pst_store_open(way[w].c, &ff_ctx, f->ino, W_OK, true, &a), 0);
        pst_store_release(way[w].c, f->ino);
        resize(f, 0);
        new_state(k, w);
        return;
    default:
        assert_int_equal(io(w, PST_OP_WRITE, k, at, p, n, 0), n);
    }
    resize(f, max_u64(f->size, at + n));
    memcpy(f->data + at, p, n);
    new_state(k, w);
}

/* Byte i of what came is of one of the states; where all of them end before it, it does not come. */
static bool is_seen(const struct seen *s, uint64_t at, const uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        bool ok = false;
        for (uint32_t k = 0; k < s->n && !ok; k++)
            ok = at + i < s->size[k] ? s->data[k][at + i] == p[i] : p[i] == 0 && k + 1 < s->n;
        if (!ok)
            return false;
    }
    return true;
}

static void check(int w, int k, int round)
{
    static uint8_t p[MAX];
    struct file *f = &files[k];
    uint64_t at = rng_below(&rng, MAX), n = min_u64(1 + rng_below(&rng, MAX), MAX - at);
    bool opened = rng_below(&rng, 2);
    int64_t got;

    if (opened)
        look(w, k);
    got = io(w, PST_OP_READ, k, at, p, n, 0);
    assert_true(got >= 0);
    if (w == 2 || seen[w][k].n == 1) {
        if (got != (int64_t)(at < f->size ? min_u64(n, f->size - at) : 0) || memcmp(p, f->data + at, (size_t)got))
            fail_msg("round %d: file %d, way %d: not the newest state", round, k, w);
    } else if (seen[w][k].n < STATES && !is_seen(&seen[w][k], at, p, (uint64_t)got)) {
        fail_msg("round %d: file %d, way %d: of no state since the last look", round, k, w);
    }
}

static void all_ways_show_the_newest_state_after_an_open(void **state)
{
    int rounds = getenv("PENSTOCK_EXTENDED") ? 60000 : 2000;
    struct cache_counts n;
    (void)state;

    rng_seed(&rng, seed_new());
    for (int w = 0; w < 3; w++) {
        filter_init(&way[w].share, "share", ff_base);
        way[w].share.ops.close = ff_share_close;
        way[w].top = &way[w].share.st;
        if (w < 2)
            assert_int_equal(filter_cache(&way[w].share.st, FILTER_CACHE_MIN, w ? 128 * KiB : 0, &way[w].top), 0);
        assert_int_equal(pst_cont_open(way[w].top, &ff_ctx, "p", ff_label, &way[w].c), 0);
        assert_int_equal(pst_queue_open(way[w].top, 16, &way[w].q), 0);
    }
    for (int k = 0; k < FILES; k++) {
        const struct pst_new new = {.mode = S_IFREG | 0600};
        struct pst_attr a;
        char name[16];
        snprintf(name, sizeof name, "f%d", k);
        for (int w = 0; w < 3; w++) /* open in all from now on */
            assert_int_equal(
                pst_store_create(way[w].c, &ff_ctx, PST_ROOT_INO, name, &new, R_OK | W_OK, false, &a, NULL), 0);
        files[k].ino = a.ino;
        new_state(k, 0);
        new_state(k, 1);
    }
    for (int i = 0; i < rounds; i++) {
        int k = (int)rng_below(&rng, FILES);
        if (rng_below(&rng, 4) == 0)
            change((int)rng_below(&rng, 3), k);
        else
            check((int)rng_below(&rng, 3), k, i);
    }
    n = cache_of(way[0].top)->n;
    print_message("%llu hits, %llu misses, %llu looks\n", (unsigned long long)n.hits, (unsigned long long)n.misses,
                  (unsigned long long)n.looks);
    assert_true(n.hits > (uint64_t)rounds / 100);
    for (int w = 0; w < 3; w++) {
        for (int k = 0; k < FILES; k++)
            pst_store_release(way[w].c, files[k].ino);
        pst_queue_close(way[w].q);
        pst_cont_close(way[w].c);
        pst_store_close(way[w].top);
    }
    for (int w = 0; w < 2; w++)
        for (int k = 0; k < FILES; k++)
            for (int i = 0; i < STATES; i++)
                free(seen[w][k].data[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_ways_show_the_newest_state_after_an_open, ff_setup, ff_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
