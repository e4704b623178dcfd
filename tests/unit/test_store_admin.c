/* Pools and containers, space in use, exactly once, the background deleter. */
#include "ns_fixture.h"

#include "local/local_store.h"

#define ROOT PST_ROOT_INO

static int make_pool(const struct pst_cred *cred, const char *label, uint32_t uid, uint32_t mode, uint64_t quota)
{
    struct pst_ctx ctx = as(cred);
    struct pst_pool_info in = {.uid = uid, .mode = mode, .quota_bytes = quota}, out;
    strcpy(in.label, label);
    return pst_pool_create(&nx_e->st, &ctx, &in, &out);
}

static int make_cont(const struct pst_cred *cred, const char *pool, const char *label, struct pst_cont_info *ret)
{
    struct pst_ctx ctx = as(cred);
    struct pst_cont_props props = {.uid = cred ? cred->uid : 0, .gid = cred ? cred->gid : 0};
    struct pst_cont_info info;
    return pst_cont_create(&nx_e->st, &ctx, pool, label, &props, ret ? ret : &info);
}

static int destroy_cont(const struct pst_cred *cred, const char *pool, const char *label)
{
    struct pst_ctx ctx = as(cred);
    return pst_cont_destroy(&nx_e->st, &ctx, pool, label);
}

static int pool_labels(const struct pst_pool_info *p, void *user)
{
    strcat(user, p->label);
    strcat(user, " ");
    return 0;
}

static int cont_labels(const struct pst_cont_info *c, void *user)
{
    strcat(user, c->label);
    strcat(user, " ");
    return 0;
}

static void pools_are_made_listed_and_destroyed(void **state)
{
    struct pst_ctx root = as(&nx_root), eve = as(&nx_eve);
    struct pst_pool_info info;
    char text[256] = "";
    (void)state;
    assert_int_equal(make_pool(&nx_root, "zoo", 1000, 0700, 1 * GiB), 0);
    assert_int_equal(make_pool(&nx_root, "zoo", 1000, 0700, 0), -EEXIST);
    assert_int_equal(make_pool(&nx_root, "a-b", 0, 0755, 0), 0);
    if (geteuid() != nx_eve.uid)
        assert_int_equal(make_pool(&nx_eve, "mine", 1002, 0700, 0), -EPERM);
    assert_int_equal(make_pool(&nx_root, "bad label", 0, 0, 0), -EINVAL);
    assert_int_equal(pst_pool_query(&nx_e->st, &root, "zoo", &info), 0);
    assert_true(info.uid == 1000 && info.mode == 0700 && info.quota_bytes == 1 * GiB && info.containers == 0);
    assert_int_equal(info.uuid[6] >> 4, 4);
    assert_int_equal(pst_pool_query(&nx_e->st, &eve, "zoo", &info), -EACCES);
    assert_int_equal(pst_pool_query(&nx_e->st, &eve, "none", &info), -ENOENT);
    assert_int_equal(pst_pool_list(&nx_e->st, &root, NULL, pool_labels, text), 0);
    assert_string_equal(text, "a-b p zoo ");
    text[0] = 0;
    assert_int_equal(pst_pool_list(&nx_e->st, &eve, "a-b", pool_labels, text), 0);
    assert_string_equal(text, "p ");
    assert_int_equal(pst_pool_destroy(&nx_e->st, &root, "p", false), -ENOTEMPTY);
    assert_int_equal(pst_pool_destroy(&nx_e->st, &root, "p", true), -EBUSY);
    assert_int_equal(pst_pool_destroy(&nx_e->st, &eve, "zoo", false), -EPERM);
    struct pst_ctx alice = as(&nx_alice);
    assert_int_equal(pst_pool_destroy(&nx_e->st, &alice, "zoo", false), 0);
    assert_int_equal(pst_pool_query(&nx_e->st, &root, "zoo", &info), -ENOENT);
    nx_reopen();
    text[0] = 0;
    assert_int_equal(pst_pool_list(&nx_e->st, &root, NULL, pool_labels, text), 0);
    assert_string_equal(text, "a-b p ");
}

static void the_pools_mode_rules_its_containers(void **state)
{
    struct pst_ctx alice = as(&nx_alice), bob = as(&nx_bob), eve = as(&nx_eve);
    struct pst_cont_info info;
    struct pst_cont *c;
    char text[256] = "";
    (void)state;
    assert_int_equal(make_pool(&nx_root, "q", 1000, 0750, 0), 0); /* group 0 */
    assert_int_equal(make_cont(&nx_alice, "q", "one", &info), 0);
    assert_int_equal(info.props.mode, 0755);
    assert_int_equal(make_cont(&nx_alice, "q", "two", NULL), 0);
    assert_int_equal(make_cont(&nx_alice, "q", "one", NULL), -EEXIST);
    assert_int_equal(make_cont(&nx_eve, "q", "x", NULL), -EACCES);
    assert_int_equal(make_cont(&nx_eve, "none", "x", NULL), -ENOENT);
    assert_int_equal(pst_cont_open(&nx_e->st, &eve, "q", "one", &c), -EACCES);
    assert_int_equal(pst_cont_query(&nx_e->st, &eve, "q", "one", &info), -EACCES);
    assert_int_equal(pst_cont_list(&nx_e->st, &bob, "q", NULL, cont_labels, text), -EACCES);
    assert_int_equal(pst_cont_list(&nx_e->st, &alice, "q", NULL, cont_labels, text), 0);
    assert_string_equal(text, "one two ");
    assert_int_equal(pst_cont_open(&nx_e->st, &alice, "q", "one", &c), 0);
    assert_int_equal(destroy_cont(&nx_alice, "q", "one"), -EBUSY);
    pst_cont_close(c);
    assert_int_equal(destroy_cont(&nx_eve, "q", "one"), -EACCES);
    assert_int_equal(destroy_cont(&nx_alice, "q", "one"), 0);
    assert_int_equal(destroy_cont(&nx_alice, "q", "one"), -ENOENT);
    assert_int_equal(pst_cont_open(&nx_e->st, &alice, "q", "one", &c), -ENOENT);
    struct pst_cont_props others = {.uid = 1002};
    assert_int_equal(pst_cont_create(&nx_e->st, &alice, "q", "gift", &others, &info), -EPERM);
}

static void a_new_container_starts_empty_with_an_id_of_its_own(void **state)
{
    struct pst_cont_info a, b;
    (void)state;
    assert_int_equal(make_cont(NULL, "p", "x", &a), 0);
    assert_int_equal(destroy_cont(NULL, "p", "x"), 0);
    assert_int_equal(make_cont(NULL, "p", "x", &b), 0);
    assert_true(b.id != a.id);
    assert_memory_not_equal(a.uuid, b.uuid, 16);
    assert_int_equal(b.objects, 1);
    assert_int_equal(b.used_bytes, 0);
}

/* Counts keys of a space that belong to a container. */
static int keys_of(enum key_space space, uint64_t cont)
{
    struct key prefix = key_begin(space);
    key_u64(&prefix, cont);
    struct idx_iter *it = idx_iter_new(nx_e, NULL, &prefix, NULL);
    int n = 0;
    while (idx_iter_next(it) > 0)
        n++;
    idx_iter_free(it);
    return n;
}

static void a_destroyed_container_goes_in_the_background(void **state)
{
    static const enum key_space spaces[] = {KEY_INODE, KEY_DIRENT, KEY_COOKIE, KEY_XATTR, KEY_ORPHAN,
                                            KEY_CHUNK, KEY_USAGE,  KEY_CONT_GC, KEY_CONT_ID};
    struct pst_ctx ctx = as(NULL);
    struct pst_pool_info pool;
    uint64_t id = nx_c->info.id;
    (void)state;
    for (int i = 0; i < 600; i++) {
        char name[16];
        snprintf(name, sizeof name, "f%d", i);
        uint64_t f = nx_made(NULL, ROOT, name, S_IFREG | 0644);
        if (i % 50 == 0)
            assert_int_equal(pst_store_setxattr(nx_c, &ctx, f, "user.x", "y", 1, 0), 0);
    }
    pst_cont_close(nx_c);
    assert_int_equal(destroy_cont(NULL, "p", "c"), 0);
    /* The marker survives a stop in the middle. */
    eng_close(nx_e);
    nx_e = fx_open();
    assert_int_equal(pst_pool_query(&nx_e->st, &ctx, "p", &pool), 0);
    assert_int_equal(pool.containers, 0);
    nx_collect();
    for (size_t i = 0; i < ARRAY_SIZE(spaces); i++)
        assert_int_equal(keys_of(spaces[i], id), 0);
    assert_int_equal(pst_pool_query(&nx_e->st, &ctx, "p", &pool), 0);
    assert_int_equal(pool.objects, 0);
    assert_int_equal(make_cont(NULL, "p", "c", NULL), 0);
    assert_int_equal(pst_cont_open(&nx_e->st, &ctx, "p", "c", &nx_c), 0);
}

static void a_forced_pool_takes_its_containers_along(void **state)
{
    struct pst_ctx ctx = as(NULL);
    struct pst_pool_info info;
    (void)state;
    assert_int_equal(make_pool(NULL, "q", 0, 0, 0), 0);
    assert_int_equal(make_cont(NULL, "q", "a", NULL), 0);
    assert_int_equal(make_cont(NULL, "q", "b", NULL), 0);
    assert_int_equal(pst_pool_destroy(&nx_e->st, &ctx, "q", false), -ENOTEMPTY);
    assert_int_equal(pst_pool_destroy(&nx_e->st, &ctx, "q", true), 0);
    assert_int_equal(make_pool(NULL, "q", 0, 0, 0), 0);
    nx_collect();
    nx_reopen();
    assert_int_equal(pst_pool_query(&nx_e->st, &ctx, "q", &info), 0);
    assert_true(info.containers == 0 && info.objects == 0);
}

/* A transaction that only takes or gives space. */
static int use_space(uint64_t cont, int64_t bytes, bool commit)
{
    struct txn *t = txn_new(nx_e);
    int r = usage_add(t, cont, bytes, 0);
    if (r || !commit) {
        txn_drop(t);
        return r;
    }
    return txn_commit(t, NULL);
}

static void quotas_hold_for_container_and_pool(void **state)
{
    struct pst_ctx ctx = as(NULL);
    struct pst_cont_props props = {.quota_bytes = 1 * MiB};
    struct pst_cont_info a, b;
    struct pst_cont *c;
    struct pst_statfs sf;
    (void)state;
    assert_int_equal(make_pool(NULL, "q", 0, 0, 1536 * KiB), 0);
    assert_int_equal(pst_cont_create(&nx_e->st, &ctx, "q", "a", &props, &a), 0);
    assert_int_equal(make_cont(NULL, "q", "b", &b), 0);
    assert_int_equal(use_space(a.id, 1 * MiB + 4096, true), -EDQUOT);
    assert_int_equal(use_space(a.id, 1 * MiB, false), 0); /* dropped: nothing is counted */
    assert_int_equal(use_space(a.id, 1 * MiB, true), 0);
    assert_int_equal(use_space(a.id, 4096, true), -EDQUOT);
    assert_int_equal(use_space(b.id, 512 * KiB + 4096, true), -EDQUOT);
    assert_int_equal(use_space(b.id, 512 * KiB - 4096, true), 0);
    assert_int_equal(pst_cont_open(&nx_e->st, &ctx, "q", "b", &c), 0);
    assert_int_equal(pst_store_statfs(c, &sf), 0);
    assert_int_equal(sf.total_bytes, 1536 * KiB);
    assert_int_equal(sf.free_bytes, 4096);
    pst_cont_close(c);
    nx_reopen();
    assert_int_equal(pst_cont_query(&nx_e->st, &ctx, "q", "a", &a), 0);
    assert_int_equal(a.used_bytes, 1 * MiB);
    assert_int_equal(use_space(a.id, 4096, true), -EDQUOT);
    assert_int_equal(use_space(a.id, -4096, true), 0);
    assert_int_equal(use_space(a.id, 4096, true), 0);
    struct pst_pool_info pool;
    assert_int_equal(pst_pool_query(&nx_e->st, &ctx, "q", &pool), 0);
    assert_int_equal(pool.used_bytes, 1536 * KiB - 4096);
    assert_int_equal(pool.objects, 2);
}

/* Appends a block of 1 MiB; what the write answers. */
static int64_t append_mib(struct pst_queue *q, struct pst_cont *c, uint64_t ino)
{
    static uint8_t block[1 * MiB];
    struct iovec iov = {block, sizeof block};
    struct pst_op op = {.kind = PST_OP_WRITE, .flags = PST_OPF_APPEND, .cont = c, .ino = ino, .iov = &iov, .iovcnt = 1,
                        .length = sizeof block};
    memset(block, 0x5a, sizeof block);
    return pst_queue_run(q, &op);
}

static void a_full_store_lets_its_files_be_deleted(void **state)
{
    struct pst_queue *q;
    struct pst_statfs before, full, after;
    int64_t r = 1 * MiB, mib = 0;
    (void)state;
    assert_int_equal(pst_store_statfs(nx_c, &before), 0);
    assert_int_equal(pst_queue_open(&nx_e->st, 8, &q), 0);
    uint64_t f = nx_made(NULL, ROOT, "f", S_IFREG | 0644), g = nx_made(NULL, ROOT, "g", S_IFREG | 0644);
    assert_int_equal(append_mib(q, nx_c, g), 1 * MiB);
    while (r == 1 * MiB && mib < 100) {
        r = append_mib(q, nx_c, f);
        mib += r > 0;
    }
    assert_int_equal(r, -ENOSPC);
    assert_true(mib > 40);
    assert_int_equal(nx_attr(f).size, mib * 1024 * 1024);
    assert_int_equal(pst_store_statfs(nx_c, &full), 0);
    assert_true(full.free_bytes < 3 * MiB);
    assert_int_equal(nx_make(NULL, ROOT, "still", S_IFREG | 0644, NULL), 0); /* names need no data space */
    assert_int_equal(nx_unlink(NULL, ROOT, "f"), 0);
    nx_collect();
    for (int i = 0; i < 10; i++)
        assert_int_equal(append_mib(q, nx_c, g), 1 * MiB);
    pst_queue_close(q);
    assert_int_equal(pst_store_statfs(nx_c, &after), 0);
    assert_true(after.free_bytes + 12 * MiB > before.free_bytes);
    nx_reopen();
    assert_int_equal(nx_attr(g).used, 11 * MiB);
}

static void writes_stop_at_the_quota(void **state)
{
    struct pst_ctx ctx = as(NULL);
    struct pst_cont_props props = {.quota_bytes = 3 * MiB, .mode = 0777};
    struct pst_cont_info info;
    struct pst_new in = {.mode = S_IFREG | 0644};
    struct pst_queue *q;
    struct pst_cont *c;
    struct pst_attr a;
    struct pst_statfs sf;
    (void)state;
    assert_int_equal(pst_cont_create(&nx_e->st, &ctx, "p", "small", &props, &info), 0);
    assert_int_equal(pst_cont_open(&nx_e->st, &ctx, "p", "small", &c), 0);
    assert_int_equal(pst_queue_open(&nx_e->st, 8, &q), 0);
    assert_int_equal(pst_store_make(c, &ctx, ROOT, "f", &in, &a, NULL), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(append_mib(q, c, a.ino), 1 * MiB);
    assert_int_equal(append_mib(q, c, a.ino), -EDQUOT);
    assert_int_equal(pst_store_statfs(c, &sf), 0);
    assert_int_equal(sf.free_bytes, 0);
    struct pst_attr half = {.size = 1536 * KiB};
    assert_int_equal(pst_store_setattr(c, &ctx, a.ino, PST_SET_SIZE, &half, &a), 0);
    assert_int_equal(append_mib(q, c, a.ino), 1 * MiB);
    assert_int_equal(pst_cont_query(&nx_e->st, &ctx, "p", "small", &info), 0);
    assert_int_equal(info.used_bytes, 2560 * KiB);
    pst_queue_close(q);
    pst_cont_close(c);
    assert_int_equal(destroy_cont(NULL, "p", "small"), 0);
    nx_collect();
    struct pst_pool_info pool;
    assert_int_equal(pst_pool_query(&nx_e->st, &ctx, "p", &pool), 0);
    assert_int_equal(pool.used_bytes, 0);
    assert_int_equal(keys_of(KEY_CHUNK, info.id), 0);
}

static uint64_t used_by(const char *label)
{
    struct pst_ctx ctx = as(NULL);
    struct pst_cont_info info;
    assert_int_equal(pst_cont_query(&nx_e->st, &ctx, "p", label, &info), 0);
    return info.used_bytes;
}

static void check_finds_nothing(void)
{
    struct pst_check_opts o = {0};
    nx_close();
    assert_int_equal(pst_local_check(fx_dir, &o, fx_err, sizeof fx_err), 0);
    nx_open();
}

static void attributes_count_as_space(void **state)
{
    struct pst_ctx ctx = as(NULL);
    struct pst_cont_props props = {.quota_bytes = 1 * MiB, .mode = 0777};
    struct pst_cont_info info;
    struct pst_new in = {.mode = S_IFREG | 0644};
    static uint8_t value[PST_XATTR_SIZE_MAX];
    char name[16];
    struct pst_cont *c;
    struct pst_attr a, b;
    struct pst_pool_info pool;
    int n = 0, r;
    (void)state;
    assert_int_equal(pst_cont_create(&nx_e->st, &ctx, "p", "small", &props, &info), 0);
    assert_int_equal(pst_cont_open(&nx_e->st, &ctx, "p", "small", &c), 0);
    assert_int_equal(pst_store_make(c, &ctx, ROOT, "f", &in, &a, NULL), 0);
    assert_int_equal(pst_store_make(c, &ctx, ROOT, "g", &in, &b, NULL), 0);
    do { /* 64 KiB and a name: 17 blocks each */
        snprintf(name, sizeof name, "user.%d", n);
        r = pst_store_setxattr(c, &ctx, a.ino, name, value, sizeof value, 0);
        n += r == 0;
    } while (r == 0);
    assert_int_equal(r, -EDQUOT);
    assert_int_equal(n, 15);
    assert_int_equal(used_by("small"), 15 * 17 * PST_BLOCK);
    assert_int_equal(pst_store_setxattr(c, &ctx, a.ino, "user.0", "x", 1, 0), 0);
    assert_int_equal(used_by("small"), (14 * 17 + 1) * PST_BLOCK);
    assert_int_equal(pst_store_removexattr(c, &ctx, a.ino, "user.1"), 0);
    assert_int_equal(used_by("small"), (13 * 17 + 1) * PST_BLOCK);
    assert_int_equal(pst_store_setxattr(c, &ctx, b.ino, "user.b", "x", 1, 0), 0);
    pst_cont_close(c);
    check_finds_nothing();
    assert_int_equal(pst_cont_open(&nx_e->st, &ctx, "p", "small", &c), 0);
    assert_int_equal(pst_store_unlink(c, &ctx, ROOT, "f"), 0);
    assert_int_equal(used_by("small"), PST_BLOCK);
    pst_cont_close(c);
    assert_int_equal(destroy_cont(NULL, "p", "small"), 0);
    nx_collect();
    assert_int_equal(pst_pool_query(&nx_e->st, &ctx, "p", &pool), 0);
    assert_int_equal(pool.used_bytes, 0);
    check_finds_nothing();
}

/* Of the first format, as older programs wrote them: they were never counted, and are not given back. */
static void attributes_of_before_do_not_count(void **state)
{
    struct pst_ctx ctx = as(NULL);
    uint64_t f = nx_made(NULL, ROOT, "f", S_IFREG | 0644);
    struct key k = key_begin(KEY_XATTR);
    struct txn *t;
    char got[8];
    (void)state;
    assert_int_equal(pst_store_setxattr(nx_c, &ctx, f, "user.new", "n", 1, 0), 0);
    assert_int_equal(pst_store_setxattr(nx_c, &ctx, f, "user.old", "o", 1, 0), 0);
    key_u64(&k, nx_c->info.id);
    key_u64(&k, f);
    key_bytes(&k, "user.old", 8);
    t = txn_new(nx_e);
    txn_put(t, &k, "\1o", 2);
    assert_int_equal(usage_add(t, nx_c->info.id, -(int64_t)PST_BLOCK, 0), 0);
    assert_int_equal(txn_commit(t, NULL), 0);
    check_finds_nothing();
    assert_int_equal(used_by("c"), PST_BLOCK);
    assert_int_equal(pst_store_getxattr(nx_c, &ctx, f, "user.old", got, sizeof got), 1);
    assert_int_equal(got[0], 'o');
    assert_int_equal(pst_store_removexattr(nx_c, &ctx, f, "user.old"), 0);
    assert_int_equal(used_by("c"), PST_BLOCK);
    assert_int_equal(nx_unlink(NULL, ROOT, "f"), 0);
    assert_int_equal(used_by("c"), 0);
    check_finds_nothing();
}

static void *many_changes(void *arg)
{
    for (int i = 0; i < 300; i++) {
        use_space(*(uint64_t *)arg, 8192, i % 3);
        use_space(*(uint64_t *)arg, -4096, i % 3);
    }
    return NULL;
}

static void usage_is_exact_under_concurrent_commits(void **state)
{
    struct pst_ctx ctx = as(NULL);
    pthread_t t[4];
    struct pst_cont_info info;
    uint64_t id = nx_c->info.id;
    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, many_changes, &id), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(pst_cont_query(&nx_e->st, &ctx, "p", "c", &info), 0);
        assert_int_equal(info.used_bytes, 4 * 200 * 4096);
        nx_reopen();
    }
}

/* ---- exactly once ---- */

static struct pst_ctx once(uint64_t seq, uint32_t slot)
{
    return (struct pst_ctx){.id = {.client = "client-16-bytes", .slot = slot, .seq = seq}};
}

static void a_retry_gets_the_recorded_reply(void **state)
{
    struct pst_new in = {.mode = S_IFREG | 0644, .exclusive = true};
    struct pst_ctx ctx = once(1, 0);
    struct pst_attr a, b;
    bool created = false;
    (void)state;
    assert_int_equal(pst_store_make(nx_c, &ctx, ROOT, "f", &in, &a, &created), 0);
    for (int i = 0; i < 2; i++) {
        created = false;
        assert_int_equal(pst_store_make(nx_c, &ctx, ROOT, "f", &in, &b, &created), 0);
        assert_true(created);
        assert_true(nx_same(&a, &b));
        nx_reopen();
    }
    /* an exclusive create by somebody else, or by the same client later, meets the name */
    ctx = once(1, 1);
    assert_int_equal(pst_store_make(nx_c, &ctx, ROOT, "f", &in, &b, &created), -EEXIST);
    ctx = once(2, 0);
    assert_int_equal(pst_store_unlink(nx_c, &ctx, ROOT, "f"), 0);
    assert_int_equal(pst_store_unlink(nx_c, &ctx, ROOT, "f"), 0);
    ctx = once(1, 0);
    assert_int_equal(pst_store_unlink(nx_c, &ctx, ROOT, "f"), -ESTALE);
    ctx = once(2, 0);
    assert_int_equal(pst_store_rmdir(nx_c, &ctx, ROOT, "f"), -EINVAL); /* the number was another request's */
    ctx = once(3, 0);
    assert_int_equal(pst_store_unlink(nx_c, &ctx, ROOT, "f"), -ENOENT);
}

static void every_mutation_happens_once(void **state)
{
    struct pst_attr in = {.mode = 0600}, a, b, d;
    struct pst_new file = {.mode = S_IFREG | 0644, .exclusive = true}, dir = {.mode = S_IFDIR | 0755};
    struct pst_ctx ctx = once(0, 3);
    (void)state;
    assert_int_equal(pst_store_make(nx_c, &ctx, ROOT, "f", &file, &a, NULL), 0);
    assert_int_equal(pst_store_make(nx_c, &ctx, ROOT, "d", &dir, &d, NULL), 0);
#define TWICE(call)                                                                                                    \
    do {                                                                                                               \
        ctx.id.seq++;                                                                                                  \
        assert_int_equal(call, 0);                                                                                     \
        uint64_t change_root = nx_attr(ROOT).change, change_d = nx_attr(d.ino).change,                                 \
                 change_f = nx_attr(a.ino).change;                                                                     \
        assert_int_equal(call, 0);                                                                                     \
        assert_true(change_root == nx_attr(ROOT).change && change_d == nx_attr(d.ino).change &&                        \
                    change_f == nx_attr(a.ino).change);                                                                \
    } while (0)
    TWICE(pst_store_link(nx_c, &ctx, a.ino, d.ino, "g", &b));
    assert_int_equal(b.nlink, 2);
    TWICE(pst_store_setattr(nx_c, &ctx, a.ino, PST_SET_MODE, &in, &b));
    TWICE(pst_store_rename(nx_c, &ctx, ROOT, "f", d.ino, "h", 0));
    TWICE(pst_store_rename(nx_c, &ctx, d.ino, "h", d.ino, "k", PST_RENAME_NOREPLACE));
    TWICE(pst_store_setxattr(nx_c, &ctx, a.ino, "user.x", "v", 1, PST_XATTR_CREATE));
    TWICE(pst_store_removexattr(nx_c, &ctx, a.ino, "user.x"));
    TWICE(pst_store_unlink(nx_c, &ctx, d.ino, "g"));
    struct pst_ctx other = as(NULL);
    assert_int_equal(pst_store_make(nx_c, &other, d.ino, "s", &dir, &b, NULL), 0);
    TWICE(pst_store_rmdir(nx_c, &ctx, d.ino, "s"));
    TWICE(pst_store_open(nx_c, &ctx, a.ino, W_OK, true, &b));
    pst_store_release(nx_c, a.ino);
    pst_store_release(nx_c, a.ino);
#undef TWICE
}

static void administration_happens_once(void **state)
{
    struct pst_ctx ctx = once(1, 0);
    struct pst_pool_info in = {.label = "once"}, p1, p2;
    struct pst_cont_props props = {0};
    struct pst_cont_info c1, c2;
    (void)state;
    assert_int_equal(pst_pool_create(&nx_e->st, &ctx, &in, &p1), 0);
    assert_int_equal(pst_pool_create(&nx_e->st, &ctx, &in, &p2), 0);
    assert_memory_equal(p1.uuid, p2.uuid, 16);
    ctx.id.seq++;
    assert_int_equal(pst_cont_create(&nx_e->st, &ctx, "once", "c", &props, &c1), 0);
    assert_int_equal(pst_cont_create(&nx_e->st, &ctx, "once", "c", &props, &c2), 0);
    assert_int_equal(c1.id, c2.id);
    ctx.id.seq++;
    assert_int_equal(pst_cont_destroy(&nx_e->st, &ctx, "once", "c"), 0);
    assert_int_equal(pst_cont_destroy(&nx_e->st, &ctx, "once", "c"), 0);
    ctx.id.seq++;
    assert_int_equal(pst_pool_destroy(&nx_e->st, &ctx, "once", false), 0);
    assert_int_equal(pst_pool_destroy(&nx_e->st, &ctx, "once", false), 0);
}

static void old_reply_records_are_dropped(void **state)
{
    struct wbuf reply = {0};
    (void)state;
    for (uint32_t slot = 0; slot < 700; slot++) {
        struct pst_ctx ctx = once(9, slot);
        struct txn *t = txn_new(nx_e);
        reply_put(t, &ctx.id, "reply", 5);
        assert_int_equal(txn_commit(t, NULL), 0);
    }
    assert_int_equal(reply_prune(nx_e->ns, reply_today()), 0);
    struct pst_ctx ctx = once(9, 5);
    assert_int_equal(reply_find(nx_e, &ctx.id, &reply), 1);
    assert_memory_equal(reply.data, "reply", 5);
    assert_int_equal(reply_prune(nx_e->ns, reply_today() + 1), 700);
    assert_int_equal(reply_find(nx_e, &ctx.id, &reply), 0);
    assert_int_equal(reply_prune(nx_e->ns, reply_today() + 1), 0);
    wbuf_done(&reply);
}

#define T(name) cmocka_unit_test_setup_teardown(name, nx_setup, nx_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(pools_are_made_listed_and_destroyed),
        T(the_pools_mode_rules_its_containers),
        T(a_new_container_starts_empty_with_an_id_of_its_own),
        T(a_destroyed_container_goes_in_the_background),
        T(a_forced_pool_takes_its_containers_along),
        T(quotas_hold_for_container_and_pool),
        T(a_full_store_lets_its_files_be_deleted),
        T(writes_stop_at_the_quota),
        T(attributes_count_as_space),
        T(attributes_of_before_do_not_count),
        T(usage_is_exact_under_concurrent_commits),
        T(a_retry_gets_the_recorded_reply),
        T(every_mutation_happens_once),
        T(administration_happens_once),
        T(old_reply_records_are_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
