/* Pools and containers of a store. */
#include "api.h"

#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct pst_admin {
    struct pst_store *st;
    struct pst_cred cred;
    uint64_t fork_gen;
};

#define CHECK_ADMIN(a, call, cond)                                                                                     \
    do {                                                                                                               \
        if (!(a) || !(cond))                                                                                           \
            return (int)api_result(call, NULL, -EINVAL);                                                               \
        if (!fork_is_mine((a)->fork_gen))                                                                              \
            return (int)api_result(call, NULL, -ECHILD);                                                               \
    } while (0)
#define CTX(a) (&(struct pst_ctx){.cred = &(a)->cred})

int pst_admin_open(const char *url, const struct pst_options *options, struct pst_admin **ret_admin)
{
    struct pst_option store_opts[API_STORE_OPTS];
    cleanup_free char *buf = NULL, *base = NULL, *pool = NULL, *cont = NULL;
    char err[400] = "";
    struct cl_options o;
    struct pst_admin *a;
    int r;

    if (!url || !ret_admin)
        return (int)api_result("pst_admin_open", NULL, -EINVAL);
    r = cl_url_split(url, &base, &pool, &cont);
    if (r < 0)
        return (int)api_result("pst_admin_open", url, r);
    r = api_options(options, &o, store_opts, &buf);
    if (r < 0)
        return r;
    a = calloc(1, sizeof *a);
    if (!a)
        return (int)api_result("pst_admin_open", url, -ENOMEM);
    a->fork_gen = fork_generation();
    r = cl_store_open(base, &o, &a->st, err, sizeof err);
    if (r < 0) {
        free(a);
        return api_fail(r, "%s", err[0] ? err : err_text(r));
    }
    api_cred(a->st, &a->cred);
    *ret_admin = a;
    return 0;
}

void pst_admin_close(struct pst_admin *admin)
{
    if (!admin || !fork_is_mine(admin->fork_gen))
        return;
    pst_store_close(admin->st);
    free(admin);
}

static void pool_out(const struct pst_pool_info *in, struct pst_pool *ret)
{
    *ret = (struct pst_pool){.quota_bytes = in->quota_bytes, .used_bytes = in->used_bytes, .objects = in->objects,
                             .containers = in->containers, .uid = in->uid, .gid = in->gid, .mode = in->mode};
    memcpy(ret->label, in->label, sizeof ret->label);
    memcpy(ret->uuid, in->uuid, sizeof ret->uuid);
}

static void cont_out(const struct pst_cont_info *in, struct pst_container *ret)
{
    *ret = (struct pst_container){
        .id = in->id, .chunk_size = in->props.chunk_size, .quota_bytes = in->props.quota_bytes, .uid = in->props.uid,
        .gid = in->props.gid, .mode = in->props.mode, .used_bytes = in->used_bytes, .objects = in->objects,
        .created_ns = in->created_ns};
    memcpy(ret->label, in->label, sizeof ret->label);
    memcpy(ret->pool, in->pool, sizeof ret->pool);
    memcpy(ret->uuid, in->uuid, sizeof ret->uuid);
}

int pst_pool_add(struct pst_admin *admin, const struct pst_pool *in, struct pst_pool *ret_pool)
{
    struct pst_pool_info i, o;
    int r;

    CHECK_ADMIN(admin, "pst_pool_add", in);
    i = (struct pst_pool_info){.quota_bytes = in->quota_bytes, .uid = in->uid, .gid = in->gid, .mode = in->mode};
    memcpy(i.label, in->label, sizeof i.label);
    i.label[sizeof i.label - 1] = '\0';
    r = pst_pool_create(admin->st, CTX(admin), &i, &o);
    if (r == 0 && ret_pool)
        pool_out(&o, ret_pool);
    return (int)api_result("pst_pool_add", i.label, r);
}

int pst_pool_get(struct pst_admin *admin, const char *label, struct pst_pool *ret_pool)
{
    struct pst_pool_info o;
    int r;

    CHECK_ADMIN(admin, "pst_pool_get", label && ret_pool);
    r = pst_pool_query(admin->st, CTX(admin), label, &o);
    if (r == 0)
        pool_out(&o, ret_pool);
    return (int)api_result("pst_pool_get", label, r);
}

struct each {
    int (*pool)(const struct pst_pool *, void *);
    int (*cont)(const struct pst_container *, void *);
    void *user;
    int result;
};

static int each_pool(const struct pst_pool_info *i, void *user)
{
    struct each *e = user;
    struct pst_pool p;

    pool_out(i, &p);
    return e->result = e->pool(&p, e->user);
}

int pst_pool_each(struct pst_admin *admin, int (*fn)(const struct pst_pool *pool, void *user), void *user)
{
    struct each e = {.pool = fn, .user = user};
    int r;

    CHECK_ADMIN(admin, "pst_pool_each", fn);
    r = pst_pool_list(admin->st, CTX(admin), "", each_pool, &e);
    return e.result ? e.result : (int)api_result("pst_pool_each", NULL, r);
}

int pst_pool_remove(struct pst_admin *admin, const char *label, int force)
{
    CHECK_ADMIN(admin, "pst_pool_remove", label);
    return (int)api_result("pst_pool_remove", label, pst_pool_destroy(admin->st, CTX(admin), label, force != 0));
}

int pst_container_add(struct pst_admin *admin, const struct pst_container *in, struct pst_container *ret_container)
{
    struct pst_cont_props p;
    struct pst_cont_info o;
    int r;

    CHECK_ADMIN(admin, "pst_container_add", in && memchr(in->label, 0, sizeof in->label) &&
                memchr(in->pool, 0, sizeof in->pool));
    p = (struct pst_cont_props){.chunk_size = in->chunk_size, .quota_bytes = in->quota_bytes, .uid = in->uid,
                                .gid = in->gid, .mode = in->mode};
    r = pst_cont_create(admin->st, CTX(admin), in->pool, in->label, &p, &o);
    if (r == 0 && ret_container)
        cont_out(&o, ret_container);
    return (int)api_result("pst_container_add", in->label, r);
}

int pst_container_get(struct pst_admin *admin, const char *pool, const char *label,
                      struct pst_container *ret_container)
{
    struct pst_cont_info o;
    int r;

    CHECK_ADMIN(admin, "pst_container_get", pool && label && ret_container);
    r = pst_cont_query(admin->st, CTX(admin), pool, label, &o);
    if (r == 0)
        cont_out(&o, ret_container);
    return (int)api_result("pst_container_get", label, r);
}

static int each_cont(const struct pst_cont_info *i, void *user)
{
    struct each *e = user;
    struct pst_container c;

    cont_out(i, &c);
    return e->result = e->cont(&c, e->user);
}

int pst_container_each(struct pst_admin *admin, const char *pool,
                       int (*fn)(const struct pst_container *container, void *user), void *user)
{
    struct each e = {.cont = fn, .user = user};
    int r;

    CHECK_ADMIN(admin, "pst_container_each", pool && fn);
    r = pst_cont_list(admin->st, CTX(admin), pool, "", each_cont, &e);
    return e.result ? e.result : (int)api_result("pst_container_each", pool, r);
}

int pst_container_remove(struct pst_admin *admin, const char *pool, const char *label)
{
    CHECK_ADMIN(admin, "pst_container_remove", pool && label);
    return (int)api_result("pst_container_remove", label, pst_cont_destroy(admin->st, CTX(admin), pool, label));
}
