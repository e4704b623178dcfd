/* For the tests of the namespace: a store with pool "p" and container "c", callers, short names for the operations. */
#ifndef TESTS_NS_FIXTURE_H
#define TESTS_NS_FIXTURE_H

#include "local_fixture.h"

#include "ns.h"

static struct engine *nx_e;
static struct pst_cont *nx_c;

static const struct pst_cred nx_alice = {.uid = 1000, .gid = 1000},
                             nx_bob = {.uid = 1001, .gid = 1001, .ngroups = 1, .groups = {1000}},
                             nx_eve = {.uid = 1002, .gid = 1002}, nx_root = {0};

static inline struct pst_ctx as(const struct pst_cred *cred)
{
    return (struct pst_ctx){.cred = cred};
}

static inline void nx_open(void)
{
    struct pst_ctx ctx = as(NULL);
    nx_e = fx_open();
    assert_int_equal(pst_cont_open(&nx_e->st, &ctx, "p", "c", &nx_c), 0);
}

static inline void nx_close(void)
{
    pst_cont_close(nx_c);
    eng_close(nx_e);
    nx_c = NULL;
    nx_e = NULL;
}

static inline void nx_reopen(void)
{
    nx_close();
    nx_open();
}

static inline int nx_setup(void **state)
{
    struct pst_ctx ctx = as(NULL);
    struct pst_pool_info pool = {.label = "p", .mode = 0755};
    struct pst_cont_info info;
    struct pst_cont_props props = {.mode = 0777};
    if (fx_setup(state))
        return -1;
    nx_e = fx_open();
    if (pst_pool_create(&nx_e->st, &ctx, &pool, &pool) || pst_cont_create(&nx_e->st, &ctx, "p", "c", &props, &info))
        return -1;
    return pst_cont_open(&nx_e->st, &ctx, "p", "c", &nx_c);
}

static inline int nx_teardown(void **state)
{
    if (nx_e)
        nx_close();
    return fx_teardown(state);
}

static inline int nx_make(const struct pst_cred *cred, uint64_t dir, const char *name, uint32_t mode, uint64_t *ret_ino)
{
    struct pst_ctx ctx = as(cred);
    struct pst_new in = {.mode = mode, .exclusive = true, .target = "somewhere"};
    struct pst_attr a;
    int r = pst_store_make(nx_c, &ctx, dir, name, &in, &a, NULL);
    if (!r && ret_ino)
        *ret_ino = a.ino;
    return r;
}

/* Makes it for sure. */
static inline uint64_t nx_made(const struct pst_cred *cred, uint64_t dir, const char *name, uint32_t mode)
{
    uint64_t ino = 0;
    int r = nx_make(cred, dir, name, mode, &ino);
    if (r)
        fail_msg("make %s: %s", name, err_name(r));
    return ino;
}

static inline int nx_look(const struct pst_cred *cred, uint64_t dir, const char *name, struct pst_attr *ret)
{
    struct pst_ctx ctx = as(cred);
    struct pst_attr a;
    return pst_store_lookup(nx_c, &ctx, dir, name, ret ? ret : &a);
}

static inline struct pst_attr nx_attr(uint64_t ino)
{
    struct pst_ctx ctx = as(NULL);
    struct pst_attr a = {0};
    int r = pst_store_getattr(nx_c, &ctx, ino, &a);
    if (r)
        fail_msg("getattr %llu: %s", (unsigned long long)ino, err_name(r));
    return a;
}

/* All fields; the padding behind the last one may differ. */
static inline bool nx_same(const struct pst_attr *a, const struct pst_attr *b)
{
    return !memcmp(a, b, offsetof(struct pst_attr, chunk_size) + sizeof a->chunk_size);
}

static inline int nx_stat(uint64_t ino)
{
    struct pst_ctx ctx = as(NULL);
    struct pst_attr a;
    return pst_store_getattr(nx_c, &ctx, ino, &a);
}

static inline int nx_unlink(const struct pst_cred *cred, uint64_t dir, const char *name)
{
    struct pst_ctx ctx = as(cred);
    return pst_store_unlink(nx_c, &ctx, dir, name);
}

static inline int nx_rmdir(const struct pst_cred *cred, uint64_t dir, const char *name)
{
    struct pst_ctx ctx = as(cred);
    return pst_store_rmdir(nx_c, &ctx, dir, name);
}

static inline int nx_link(const struct pst_cred *cred, uint64_t ino, uint64_t dir, const char *name)
{
    struct pst_ctx ctx = as(cred);
    struct pst_attr a;
    return pst_store_link(nx_c, &ctx, ino, dir, name, &a);
}

static inline int nx_rename(const struct pst_cred *cred, uint64_t from, const char *name, uint64_t to,
                            const char *new_name, uint32_t flags)
{
    struct pst_ctx ctx = as(cred);
    return pst_store_rename(nx_c, &ctx, from, name, to, new_name, flags);
}

static inline int nx_set(const struct pst_cred *cred, uint64_t ino, uint32_t mask, const struct pst_attr *in)
{
    struct pst_ctx ctx = as(cred);
    struct pst_attr a;
    return pst_store_setattr(nx_c, &ctx, ino, mask, in, &a);
}

static inline int nx_chmod(const struct pst_cred *cred, uint64_t ino, uint32_t mode)
{
    struct pst_attr in = {.mode = mode};
    return nx_set(cred, ino, PST_SET_MODE, &in);
}

/* Names of a directory, in the order of the listing, each with a space behind it. */
struct nx_names {
    char text[4096];
    int n;
    int stop_after;
    uint64_t last;
};

static inline int nx_note_name(const struct pst_dirent *de, void *user)
{
    struct nx_names *l = user;
    strncat(l->text, de->name, sizeof l->text - strlen(l->text) - 2);
    strcat(l->text, " ");
    l->last = de->cookie;
    return ++l->n == l->stop_after;
}

static inline const char *nx_list(uint64_t dir)
{
    static struct nx_names l;
    struct pst_ctx ctx = as(NULL);
    memset(&l, 0, sizeof l);
    assert_int_equal(pst_store_readdir(nx_c, &ctx, dir, 0, true, nx_note_name, &l), 0);
    return l.text;
}

/* Runs the background deleter until it finds nothing more. */
static inline void nx_collect(void)
{
    int r;
    while ((r = gc_step(nx_e->ns)) > 0)
        ;
    assert_int_equal(r, 0);
}

#endif
