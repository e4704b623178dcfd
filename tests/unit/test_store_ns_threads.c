/* The namespace under concurrent callers. Threads count what is wrong; the test looks at the counts. */
#include "ns_fixture.h"

#define ROOT   PST_ROOT_INO
#define STABLE 400

static uint64_t dir;
static atomic_bool stop;
static atomic_int wrong, listings;

#define EXPECT(cond)                                                                                                   \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            print_message("%s:%d: %s\n", __FILE__, __LINE__, #cond);                                                   \
            wrong++;                                                                                                   \
        }                                                                                                              \
    } while (0)

static int thread_rounds(int normal)
{
    return getenv("PENSTOCK_EXTENDED") ? normal * 20 : normal;
}

static void run_threads(void *(*const fn[])(void *), int n)
{
    pthread_t t[8];
    wrong = 0;
    stop = false;
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&t[i], NULL, fn[i], (void *)(intptr_t)i), 0);
    for (int i = 0; i < n; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(wrong, 0);
}

/* ---- listings while the directory changes ---- */

static int count_stable(const struct pst_dirent *de, void *user)
{
    uint8_t *seen = user;
    unsigned n;
    if (sscanf(de->name, "stable%u", &n) == 1 && n < STABLE)
        seen[n]++;
    return 0;
}

static void *list_all(void *arg)
{
    struct pst_ctx ctx = as(NULL);
    bool with_attr = (intptr_t)arg % 2;
    for (int i = 0; i < thread_rounds(30); i++) {
        uint8_t seen[STABLE] = {0};
        EXPECT(pst_store_readdir(nx_c, &ctx, dir, 0, with_attr, count_stable, seen) == 0);
        for (int k = 0; k < STABLE; k++)
            EXPECT(seen[k] == 1);
        listings++;
    }
    stop = true;
    return NULL;
}

static void *make_and_remove(void *arg)
{
    char name[32];
    for (unsigned i = 0; !stop; i++) {
        snprintf(name, sizeof name, "t%d-%u", (int)(intptr_t)arg, i % 50);
        int r = i / 50 % 2 ? nx_unlink(NULL, dir, name) : nx_make(NULL, dir, name, S_IFREG | 0644, NULL);
        EXPECT(r == 0);
    }
    return NULL;
}

/* A name that is replaced was there all the time. */
static void *replace(void *arg)
{
    struct pst_attr a;
    char name[32];
    (void)arg;
    for (unsigned i = 0; !stop; i++) {
        snprintf(name, sizeof name, "stable%u", i * 7 % STABLE);
        EXPECT(nx_make(NULL, ROOT, "new", S_IFREG | 0644, NULL) == 0);
        EXPECT(nx_look(NULL, dir, name, &a) == 0);
        EXPECT(nx_rename(NULL, ROOT, "new", dir, name, 0) == 0);
        EXPECT(nx_look(NULL, dir, name, &a) == 0);
    }
    return NULL;
}

static void each_name_that_stays_is_listed_once(void **state)
{
    void *(*const fn[])(void *) = {list_all, list_all, make_and_remove, make_and_remove, replace};
    char name[32];
    (void)state;
    dir = nx_made(NULL, ROOT, "d", S_IFDIR | 0755);
    for (int i = 0; i < STABLE; i++) {
        snprintf(name, sizeof name, "stable%d", i);
        nx_made(NULL, dir, name, S_IFREG | 0644);
    }
    run_threads(fn, 5);
    assert_int_equal(nx_attr(dir).nlink, 2);
}

/* ---- many hands in one directory ---- */

static void *move_about(void *arg)
{
    struct rng r;
    struct pst_attr a;
    char name[8], other[8];
    rng_seed(&r, (uint64_t)(intptr_t)arg);
    for (int i = 0; i < thread_rounds(400); i++) {
        snprintf(name, sizeof name, "%u", (unsigned)rng_below(&r, 6));
        snprintf(other, sizeof other, "%u", (unsigned)rng_below(&r, 6));
        uint64_t from = rng_below(&r, 2) ? dir : ROOT, to = rng_below(&r, 2) ? dir : ROOT;
        switch (rng_below(&r, 7)) {
        case 0:
            nx_make(NULL, from, name, S_IFREG | 0644, NULL);
            break;
        case 1:
            nx_make(NULL, from, name, S_IFDIR | 0755, NULL);
            break;
        case 2:
            nx_unlink(NULL, from, name);
            break;
        case 3:
            nx_rmdir(NULL, from, name);
            break;
        case 4:
            nx_rename(NULL, from, name, to, other, (uint32_t)rng_below(&r, 3));
            break;
        case 5:
            if (nx_look(NULL, from, name, &a) == 0)
                nx_chmod(NULL, a.ino, (uint32_t)rng_below(&r, 0777));
            break;
        default:
            if (nx_look(NULL, from, name, &a) == 0)
                nx_link(NULL, a.ino, to, other);
        }
    }
    return NULL;
}

static int count_dirs(const struct pst_dirent *de, void *user)
{
    int *n = user;
    *n += de->type == S_IFDIR;
    return 0;
}

static void counts_hold_after_a_melee(void **state)
{
    void *(*const fn[])(void *) = {move_about, move_about, move_about, move_about};
    struct pst_ctx ctx = as(NULL);
    (void)state;
    dir = nx_made(NULL, ROOT, "d", S_IFDIR | 0755);
    run_threads(fn, 4);
    const uint64_t dirs[] = {ROOT, dir};
    for (int i = 0; i < 2; i++) {
        int n = 0;
        struct inode rec;
        assert_int_equal(pst_store_readdir(nx_c, &ctx, dirs[i], 0, true, count_dirs, &n), 0);
        assert_int_equal(nx_attr(dirs[i]).nlink, 2 + n);
        assert_int_equal(inode_get(nx_e, nx_c->info.id, dirs[i], &rec), 0);
        nx_list(dirs[i]);
        inode_done(&rec);
    }
}

/* ---- open against unlink ---- */

static void *open_release(void *arg)
{
    struct pst_ctx ctx = as(NULL);
    struct pst_attr a;
    (void)arg;
    while (!stop)
        if (nx_look(NULL, ROOT, "f", &a) == 0 && pst_store_open(nx_c, &ctx, a.ino, R_OK, false, &a) == 0) {
            EXPECT(pst_store_getattr(nx_c, &ctx, a.ino, &a) == 0); /* what is open stays */
            pst_store_release(nx_c, a.ino);
        }
    return NULL;
}

static void *make_unlink(void *arg)
{
    (void)arg;
    for (int i = 0; i < thread_rounds(1000); i++) {
        EXPECT(nx_make(NULL, ROOT, "f", S_IFREG | 0644, NULL) == 0);
        EXPECT(nx_unlink(NULL, ROOT, "f") == 0);
    }
    stop = true;
    return NULL;
}

static void an_open_object_stays_and_leaves_nothing(void **state)
{
    void *(*const fn[])(void *) = {open_release, open_release, make_unlink};
    struct pst_statfs sf;
    (void)state;
    run_threads(fn, 3);
    assert_int_equal(pst_store_statfs(nx_c, &sf), 0);
    assert_int_equal(sf.objects, 1);
}

/* ---- the same request at the same time ---- */

static pthread_barrier_t together;
static uint64_t made_by[4][200];

static void *same_request(void *arg)
{
    struct pst_new in = {.mode = S_IFREG | 0644, .exclusive = true};
    int me = (int)(intptr_t)arg;
    for (uint32_t i = 0; i < 200; i++) {
        struct pst_ctx ctx = {.id = {.client = "impatient-client", .seq = i + 1}};
        struct pst_attr a = {0};
        char name[16];
        bool created = false;
        snprintf(name, sizeof name, "f%u", i);
        pthread_barrier_wait(&together);
        EXPECT(pst_store_make(nx_c, &ctx, ROOT, name, &in, &a, &created) == 0);
        EXPECT(created);
        made_by[me][i] = a.ino;
        pthread_barrier_wait(&together);
    }
    return NULL;
}

static void a_request_sent_twice_at_once_happens_once(void **state)
{
    void *(*const fn[])(void *) = {same_request, same_request, same_request, same_request};
    (void)state;
    pthread_barrier_init(&together, NULL, 4);
    run_threads(fn, 4);
    pthread_barrier_destroy(&together);
    for (int i = 0; i < 200; i++)
        for (int k = 1; k < 4; k++)
            assert_int_equal(made_by[k][i], made_by[0][i]);
}

#define T(name) cmocka_unit_test_setup_teardown(name, nx_setup, nx_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(each_name_that_stays_is_listed_once),
        T(counts_hold_after_a_melee),
        T(an_open_object_stays_and_leaves_nothing),
        T(a_request_sent_twice_at_once_happens_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
