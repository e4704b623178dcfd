/* What keeps tenants apart in a store: the view, and the quota. */
#include "filter_fixture.h"

static struct pst_store *base(void)
{
    struct pst_store *st;
    char err[200] = "";
    assert_int_equal(ff_open_base(&st, err, sizeof err), 0);
    return st;
}

static int two_tenants(void **state)
{
    static const char *const names[][2] = {{"a", "one"}, {"a", "two"}, {"b", "one"}, {"s", "in"}, {"s", "out"}};
    const struct pst_cont_props props = {.chunk_size = FF_CHUNK, .mode = 0777};
    struct pst_cont_info ci;
    (void)state;

    if (!getenv("PENSTOCK_LOG"))
        log_set_sink(ff_quiet, NULL);
    ff_base = base();
    for (unsigned i = 0; i < ARRAY_SIZE(names); i++) {
        struct pst_pool_info p = {.mode = 0777}, pi;
        int r;
        snprintf(p.label, sizeof p.label, "%s", names[i][0]);
        r = pst_pool_create(ff_base, &ff_ctx, &p, &pi);
        assert_true(r == 0 || r == -EEXIST);
        assert_int_equal(pst_cont_create(ff_base, &ff_ctx, names[i][0], names[i][1], &props, &ci), 0);
    }
    return 0;
}

static struct pst_store *view(const char *const *rules, size_t n)
{
    struct pst_store *v;
    assert_int_equal(filter_view(ff_base, rules, n, true, &v), 0);
    return v;
}

static int add_pool(const struct pst_pool_info *p, void *user)
{
    strcat(strcat(user, p->label), " ");
    return 0;
}

static int add_cont(const struct pst_cont_info *c, void *user)
{
    strcat(strcat(user, c->label), " ");
    return 0;
}

static void a_view_lists_its_own_only(void **state)
{
    static const char *const rules[] = {"s/in", "a/*", "a/one", "s/new"};
    struct pst_store *v = view(rules, ARRAY_SIZE(rules));
    char got[100] = "";
    (void)state;

    assert_int_equal(pst_pool_list(v, &ff_ctx, NULL, add_pool, got), 0);
    assert_string_equal(got, "a s ");
    *got = 0;
    assert_int_equal(pst_pool_list(v, &ff_ctx, "a", add_pool, got), 0);
    assert_string_equal(got, "s ");
    *got = 0;
    assert_int_equal(pst_cont_list(v, &ff_ctx, "s", NULL, add_cont, got), 0);
    assert_string_equal(got, "in ");
    *got = 0;
    assert_int_equal(pst_cont_list(v, &ff_ctx, "a", NULL, add_cont, got), 0);
    assert_string_equal(got, "one two ");
    pst_store_close(v);
}

static void what_is_anothers_is_not_there(void **state)
{
    static const char *const rules[] = {"a/*", "s/in"};
    const struct pst_cont_props props = {.mode = 0777};
    struct pst_store *v = view(rules, ARRAY_SIZE(rules));
    struct pst_pool_info pi = {.label = "b", .mode = 0777};
    struct pst_cont_info ci;
    struct pst_cont *c;
    char got[100] = "";
    (void)state;

    /* In pairs: what there is and what there is not are told alike. */
    assert_int_equal(pst_pool_query(v, &ff_ctx, "b", &pi), -ENOENT);
    assert_int_equal(pst_pool_query(v, &ff_ctx, "none", &pi), -ENOENT);
    assert_int_equal(pst_pool_destroy(v, &ff_ctx, "b", true), -ENOENT);
    assert_int_equal(pst_pool_destroy(v, &ff_ctx, "none", true), -ENOENT);
    assert_int_equal(pst_pool_create(v, &ff_ctx, &pi, &pi), -EPERM);
    assert_int_equal(pst_cont_list(v, &ff_ctx, "b", NULL, add_cont, got), -ENOENT);
    assert_int_equal(pst_cont_list(v, &ff_ctx, "none", NULL, add_cont, got), -ENOENT);
    assert_int_equal(pst_cont_open(v, &ff_ctx, "b", "one", &c), -ENOENT);
    assert_int_equal(pst_cont_open(v, &ff_ctx, "b", "none", &c), -ENOENT);
    assert_int_equal(pst_cont_open(v, &ff_ctx, "s", "out", &c), -ENOENT);
    assert_int_equal(pst_cont_open(v, &ff_ctx, "s", "none", &c), -ENOENT);
    assert_int_equal(pst_cont_query(v, &ff_ctx, "s", "out", &ci), -ENOENT);
    assert_int_equal(pst_cont_destroy(v, &ff_ctx, "s", "out"), -ENOENT);
    assert_int_equal(pst_cont_create(v, &ff_ctx, "s", "out", &props, &ci), -EPERM);
    assert_int_equal(pst_cont_create(v, &ff_ctx, "s", "none", &props, &ci), -EPERM);
    assert_int_equal(pst_cont_create(v, &ff_ctx, "b", "one", &props, &ci), -ENOENT);
    assert_int_equal(pst_cont_create(v, &ff_ctx, "none", "one", &props, &ci), -ENOENT);
    assert_int_equal(pst_store_scrub(v, NULL, NULL, NULL), -EPERM);
    assert_int_equal(pst_store_backup(v, "/nowhere"), -EPERM);
    /* And what is its own works. */
    assert_int_equal(pst_cont_create(v, &ff_ctx, "a", "three", &props, &ci), 0);
    assert_int_equal(pst_cont_open(v, &ff_ctx, "a", "three", &c), 0);
    pst_cont_close(c);
    assert_int_equal(pst_cont_destroy(v, &ff_ctx, "a", "three"), 0);
    pst_store_close(v);
}

static void a_pools_figures_are_of_ones_own_containers(void **state)
{
    static const char *const rules[] = {"s/in"};
    struct pst_new dir = {.mode = S_IFDIR | 0777};
    struct pst_store *v = view(rules, 1);
    struct pst_pool_info all, own;
    struct pst_attr a;
    struct pst_cont *c;
    (void)state;

    assert_int_equal(pst_cont_open(ff_base, &ff_ctx, "s", "out", &c), 0);
    assert_int_equal(pst_store_make(c, &ff_ctx, PST_ROOT_INO, "d", &dir, &a, NULL), 0);
    pst_cont_close(c);
    assert_int_equal(pst_pool_query(ff_base, &ff_ctx, "s", &all), 0);
    assert_int_equal(pst_pool_query(v, &ff_ctx, "s", &own), 0);
    assert_int_equal(all.containers, 2);
    assert_int_equal(own.containers, 1);
    assert_int_equal(own.objects, 1);
    assert_true(all.objects > own.objects);
    pst_store_close(v);
}

static void bad_rules_are_refused(void **state)
{
    static const char *const bad[] = {"", "a", "/a", "a/", "*/a", "*", "a/b/c", "a/b*", "a b/c"};
    struct pst_store *v;
    (void)state;

    for (unsigned i = 0; i < ARRAY_SIZE(bad); i++) {
        assert_int_equal(filter_view_check(bad[i]), -EINVAL);
        assert_int_equal(filter_view(ff_base, &bad[i], 1, true, &v), -EINVAL);
    }
}

/* ---- quota ---- */

#define LIMIT (1024 * KiB)

struct stand {
    struct pst_store *top;
    struct pst_cont *c, *c2; /* two containers share the quota */
    struct pst_queue *q;
};

static void stand_open(struct stand *x, uint64_t bytes, uint64_t objects)
{
    static const char *const rules[] = {"a/*"};

    assert_int_equal(filter_quota(view(rules, 1), bytes, objects, &x->top), 0);
    assert_int_equal(pst_cont_open(x->top, &ff_ctx, "a", "one", &x->c), 0);
    assert_int_equal(pst_cont_open(x->top, &ff_ctx, "a", "two", &x->c2), 0);
    assert_int_equal(pst_queue_open(x->top, 16, &x->q), 0);
}

static void stand_close(struct stand *x)
{
    pst_queue_close(x->q);
    pst_cont_close(x->c);
    pst_cont_close(x->c2);
    pst_store_close(x->top);
}

static uint64_t file(struct pst_cont *c, const char *name)
{
    struct pst_new in = {.mode = S_IFREG | 0644};
    struct pst_attr a;

    assert_int_equal(pst_store_make(c, &ff_ctx, PST_ROOT_INO, name, &in, &a, NULL), 0);
    return a.ino;
}

static int64_t put(struct stand *x, struct pst_cont *c, enum pst_op_kind kind, uint64_t ino, uint64_t off, size_t len)
{
    static uint8_t bytes[256 * KiB];
    struct iovec iov = {bytes, len};
    struct pst_op op = {.kind = kind, .cont = c, .ino = ino, .offset = off, .length = len, .iov = &iov, .iovcnt = 1};

    memset(bytes, 'x', sizeof bytes);
    if (kind != PST_OP_WRITE) {
        op.iov = NULL;
        op.iovcnt = 0;
    }
    return pst_queue_run(x->q, &op);
}

static uint64_t in_use(struct stand *x, uint64_t *ret_objects)
{
    struct pst_pool_info p;
    assert_int_equal(pst_pool_query(x->top, &ff_ctx, "a", &p), 0);
    if (ret_objects)
        *ret_objects = p.objects;
    return p.used_bytes;
}

static void space_ends_at_the_quota_and_comes_back(void **state)
{
    struct pst_statfs s;
    struct stand x;
    uint64_t ino, ino2;
    (void)state;

    stand_open(&x, LIMIT, 0);
    ino = file(x.c, "f");
    ino2 = file(x.c2, "f");
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(put(&x, x.c, PST_OP_WRITE, ino, i * 256 * KiB, 256 * KiB), 256 * KiB);
    assert_int_equal(put(&x, x.c2, PST_OP_WRITE, ino2, 0, 256 * KiB), 256 * KiB);
    assert_int_equal(in_use(&x, NULL), LIMIT);
    assert_int_equal(put(&x, x.c2, PST_OP_WRITE, ino2, 256 * KiB, 1), -EDQUOT);
    assert_int_equal(put(&x, x.c, PST_OP_ALLOCATE, ino, 1024 * KiB, 4096), -EDQUOT);
    assert_int_equal(pst_store_write(x.c, ino, 1024 * KiB, "x", 1, false), -EDQUOT);
    assert_int_equal(pst_store_statfs(x.c, &s), 0);
    assert_int_equal(s.total_bytes, LIMIT);
    assert_int_equal(s.free_bytes, 0);
    /* What is there may be written over. */
    assert_int_equal(put(&x, x.c, PST_OP_WRITE, ino, 100, 100 * KiB), 100 * KiB);
    assert_int_equal(put(&x, x.c, PST_OP_WRITE, ino, 0, 256 * KiB), 256 * KiB);
    assert_int_equal(in_use(&x, NULL), LIMIT);
    /* The rest of a last block, and a hole, by the byte. */
    assert_int_equal(put(&x, x.c, PST_OP_PUNCH, ino, 0, 8192), 0);
    assert_int_equal(put(&x, x.c2, PST_OP_WRITE, ino2, 256 * KiB, 1), 1);
    assert_int_equal(put(&x, x.c2, PST_OP_WRITE, ino2, 256 * KiB + 1, 4095), 4095);
    assert_int_equal(put(&x, x.c, PST_OP_WRITE, ino, 0, 8192), -EDQUOT);
    assert_int_equal(put(&x, x.c, PST_OP_WRITE, ino, 0, 4096), 4096);
    assert_int_equal(in_use(&x, NULL), LIMIT);
    stand_close(&x);

    /* A new instance, as after a restart, knows it. */
    stand_open(&x, LIMIT, 0);
    assert_int_equal(pst_store_open(x.c2, &ff_ctx, ino2, R_OK | W_OK, false, &(struct pst_attr){0}), 0);
    assert_int_equal(put(&x, x.c2, PST_OP_WRITE, ino2, 300 * KiB, 1), -EDQUOT);
    pst_store_release(x.c2, ino2);
    assert_int_equal(pst_store_unlink(x.c, &ff_ctx, PST_ROOT_INO, "f"), 0);
    assert_int_equal(put(&x, x.c2, PST_OP_WRITE, ino2, 300 * KiB, 1), 1);
    assert_int_equal(pst_store_unlink(x.c2, &ff_ctx, PST_ROOT_INO, "f"), 0);
    stand_close(&x);
}

static void objects_end_at_the_quota(void **state)
{
    struct pst_new excl = {.mode = S_IFREG | 0644, .exclusive = true}, any = {.mode = S_IFREG | 0644};
    struct pst_new dir = {.mode = S_IFDIR | 0755};
    const struct pst_cont_props props = {.mode = 0777};
    const struct pst_ctx once = {.id = {.client = "objects", .slot = 1, .seq = 1}};
    struct pst_cont_info ci;
    struct pst_attr a;
    struct stand x;
    uint64_t n;
    (void)state;

    stand_open(&x, 0, 4); /* two roots are there */
    file(x.c, "f");
    assert_int_equal(pst_store_make(x.c2, &once, PST_ROOT_INO, "d", &dir, &a, NULL), 0);
    in_use(&x, &n);
    assert_int_equal(n, 4);
    assert_int_equal(pst_store_make(x.c, &ff_ctx, PST_ROOT_INO, "g", &any, &a, NULL), -EDQUOT);
    assert_int_equal(pst_store_create(x.c, &ff_ctx, PST_ROOT_INO, "g", &any, W_OK, false, &a, NULL), -EDQUOT);
    assert_int_equal(pst_cont_create(x.top, &ff_ctx, "a", "three", &props, &ci), -EDQUOT);
    /* What needs none goes on: names that are there, links, requests that were done before. */
    assert_int_equal(pst_store_make(x.c, &ff_ctx, PST_ROOT_INO, "f", &excl, &a, NULL), -EEXIST);
    assert_int_equal(pst_store_make(x.c, &ff_ctx, PST_ROOT_INO, "f", &any, &a, NULL), 0);
    assert_int_equal(pst_store_make(x.c2, &once, PST_ROOT_INO, "d", &dir, &a, NULL), 0);
    assert_int_equal(pst_cont_create(x.top, &ff_ctx, "a", "two", &props, &ci), -EEXIST);
    assert_int_equal(pst_store_link(x.c, &ff_ctx, a.ino, PST_ROOT_INO, "nowhere", &a), -ENOENT);
    assert_int_equal(pst_store_unlink(x.c, &ff_ctx, PST_ROOT_INO, "f"), 0);
    file(x.c, "g");
    assert_int_equal(pst_store_unlink(x.c, &ff_ctx, PST_ROOT_INO, "g"), 0);
    assert_int_equal(pst_store_rmdir(x.c2, &ff_ctx, PST_ROOT_INO, "d"), 0);
    stand_close(&x);
}

/* Many operations at once, over more than there is room for: never above the limit, and the last block gets used. */
static void what_is_under_way_counts(void **state)
{
    static uint8_t bytes[64 * KiB];
    struct iovec iov = {bytes, sizeof bytes};
    struct pst_op ops[16], *done[16];
    struct stand x;
    uint64_t ino[16];
    unsigned good = 0, left = 0;
    (void)state;

    stand_open(&x, 10 * sizeof bytes, 0);
    for (unsigned i = 0; i < 16; i++) {
        char name[8];
        snprintf(name, sizeof name, "m%u", i);
        ino[i] = file(x.c, name);
    }
    for (unsigned i = 0; i < 16; i++) {
        ops[i] = (struct pst_op){.kind = PST_OP_WRITE, .cont = x.c, .ino = ino[i], .length = sizeof bytes, .iov = &iov,
                                 .iovcnt = 1};
        int r = pst_queue_submit(x.q, &ops[i]);
        assert_true(r == 0 || r == -EDQUOT);
        left += r == 0;
    }
    while (left) {
        int n = pst_queue_reap(x.q, done, 16, UINT64_MAX);
        for (int i = 0; i < n; i++)
            good += done[i]->result == (int64_t)sizeof bytes;
        left -= (unsigned)n;
    }
    assert_int_equal(in_use(&x, NULL), good * sizeof bytes);
    assert_in_range(good, 1, 10);
    for (unsigned i = 0; i < 16; i++)
        good += put(&x, x.c, PST_OP_WRITE, ino[i], 64 * KiB, sizeof bytes) == (int64_t)sizeof bytes;
    assert_int_equal(good, 10);
    stand_close(&x);
}

static void a_quota_may_be_changed_while_it_is_in_use(void **state)
{
    struct pst_new in = {.mode = S_IFREG | 0644};
    struct pst_statfs s;
    struct pst_attr a;
    struct stand x;
    uint64_t ino;
    (void)state;

    stand_open(&x, 0, 0); /* none at first: also what comes under none is counted */
    ino = file(x.c, "f");
    assert_int_equal(put(&x, x.c, PST_OP_WRITE, ino, 0, 128 * KiB), 128 * KiB);
    filter_quota_set(x.top, 192 * KiB, 0);
    assert_int_equal(put(&x, x.c, PST_OP_WRITE, ino, 128 * KiB, 128 * KiB), -EDQUOT);
    assert_int_equal(put(&x, x.c, PST_OP_WRITE, ino, 128 * KiB, 64 * KiB), 64 * KiB);
    assert_int_equal(pst_store_statfs(x.c, &s), 0);
    assert_int_equal(s.total_bytes, 192 * KiB);
    /* Below what is in use: it stays, may be written over, and no more comes. */
    filter_quota_set(x.top, 64 * KiB, 1);
    assert_int_equal(put(&x, x.c, PST_OP_WRITE, ino, 0, 64 * KiB), 64 * KiB);
    assert_int_equal(put(&x, x.c, PST_OP_WRITE, ino, 192 * KiB, 4 * KiB), -EDQUOT);
    assert_int_equal(pst_store_make(x.c, &ff_ctx, PST_ROOT_INO, "g", &in, &a, NULL), -EDQUOT);
    filter_quota_set(x.top, 0, 0);
    assert_int_equal(put(&x, x.c, PST_OP_WRITE, ino, 192 * KiB, 256 * KiB), 256 * KiB);
    assert_int_equal(pst_store_make(x.c, &ff_ctx, PST_ROOT_INO, "g", &in, &a, NULL), 0);
    stand_close(&x);
}

static void the_filters_options(void **state)
{
    static const char *const bad[] = {"quota", "quota:bytes=0", "quota:bytes=x", "quota:objects=0", "quota:size=1"};
    struct pst_store *st;
    char err[200];
    (void)state;

    for (unsigned i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(filter_push(bad[i], ff_base, &st, err, sizeof err), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_view_lists_its_own_only, two_tenants, ff_teardown),
        cmocka_unit_test_setup_teardown(what_is_anothers_is_not_there, two_tenants, ff_teardown),
        cmocka_unit_test_setup_teardown(a_pools_figures_are_of_ones_own_containers, two_tenants, ff_teardown),
        cmocka_unit_test_setup_teardown(bad_rules_are_refused, two_tenants, ff_teardown),
        cmocka_unit_test_setup_teardown(space_ends_at_the_quota_and_comes_back, two_tenants, ff_teardown),
        cmocka_unit_test_setup_teardown(objects_end_at_the_quota, two_tenants, ff_teardown),
        cmocka_unit_test_setup_teardown(what_is_under_way_counts, two_tenants, ff_teardown),
        cmocka_unit_test_setup_teardown(a_quota_may_be_changed_while_it_is_in_use, two_tenants, ff_teardown),
        cmocka_unit_test_setup_teardown(the_filters_options, two_tenants, ff_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
