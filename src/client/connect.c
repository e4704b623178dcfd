/* URLs and connections. */
#include "internal.h"

#include "base/err.h"
#include "store/perm.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#define FILES_NEEDED 48u  /* descriptors of one connection, with some for what a transfer opens */
#define FILES_MANY   512u /* a limit above this is not looked at any closer */

#define OPTIONS_MAX 24

/* The part before the pool; `rest` is "pool/container" or "" . */
static int split_at(const char *url, const char *sep, char **ret_base, const char **ret_rest)
{
    *ret_base = strndup(url, sep ? (size_t)(sep - url) : strlen(url));
    *ret_rest = sep ? sep + 1 : "";
    return *ret_base ? 0 : -ENOMEM;
}

/*
 * penstock://host:port/pool/container: from the first '/' after the host on; all others: from the '?' on. Both names
 * NULL when the URL has none.
 */
int cl_url_split(const char *url, char **ret_base, char **ret_pool, char **ret_cont)
{
    cleanup_free char *base = NULL, *pool = NULL, *cont = NULL;
    const char *rest, *slash;
    int r;

    if (!strncmp(url, "penstock://", 11))
        r = split_at(url, strchr(url + 11, '/'), &base, &rest);
    else
        r = split_at(url, strchr(url, '?'), &base, &rest);
    if (r < 0)
        return r;
    if (*rest) {
        slash = strchr(rest, '/');
        if (!slash)
            return -EINVAL;
        pool = strndup(rest, (size_t)(slash - rest));
        cont = strdup(slash + 1);
        if (!pool || !cont)
            return -ENOMEM;
        if (pst_label_check(pool) < 0 || pst_label_check(cont) < 0)
            return -EINVAL;
    }
    *ret_base = take_ptr(base);
    *ret_pool = take_ptr(pool);
    *ret_cont = take_ptr(cont);
    return 0;
}

/* What the engine behind penstock:// is told; the embedded one gets the caller's own options. */
static size_t net_options(const struct cl_options *o, struct pst_option *opts, char *timeout, size_t timeout_size)
{
    size_t n = 0;
    const struct pst_option all[] = {
        {"purpose", o->purpose},     {"token_file", o->token_file}, {"ca_file", o->ca_file},
        {"cert_file", o->cert_file}, {"key_file", o->key_file},     {"provider", o->provider},
        {"client", o->client},
        {"insecure", o->insecure ? "1" : NULL},
        {"require_rdma", o->require_rdma ? "1" : NULL},
        {"placement", getenv("PENSTOCK_PLACEMENT")}, /* the caller's own, if it has one, comes later */
    };

    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        if (all[i].value)
            opts[n++] = all[i];
    if (o->timeout_ms) {
        snprintf(timeout, timeout_size, "%u", o->timeout_ms);
        opts[n++] = (struct pst_option){"timeout_ms", timeout};
    }
    for (size_t i = 0; i < o->nstore_opts && n < OPTIONS_MAX; i++)
        opts[n++] = o->store_opts[i];
    return n;
}

/* Those of the caller; and a store is made where a container is to be made. */
static size_t local_options(const char *base, const struct cl_options *o, struct pst_option *opts)
{
    size_t n = 0;
    bool create = o->create && !strncmp(base, "local:", 6);

    for (; n < o->nstore_opts && n < OPTIONS_MAX - 1; n++) {
        opts[n] = o->store_opts[n];
        create &= strcmp(opts[n].key, "create") != 0;
    }
    if (create)
        opts[n++] = (struct pst_option){"create", "1"};
    return n;
}

int cl_store_open(const char *base, const struct cl_options *o, struct pst_store **ret, char *err, size_t err_size)
{
    struct pst_option opts[OPTIONS_MAX];
    char timeout[16];

    if (strncmp(base, "penstock", 8) != 0)
        return pst_backend_open(base, opts, local_options(base, o, opts), ret, err, err_size);
    return pst_backend_open(base, opts, net_options(o, opts, timeout, sizeof timeout), ret, err, err_size);
}

static struct client *client_new(const struct cl_options *o)
{
    struct client *c = calloc(1, sizeof *c);
    uint64_t ahead = o->read_ahead ? o->read_ahead : 4 * MiB;

    if (!c)
        return NULL;
    c->fork_gen = fork_generation();
    c->write_behind = o->write_behind ? o->write_behind : 64 * MiB;
    c->ahead_windows = ahead == UINT64_MAX ? 0 : min_u64((ahead + CL_WINDOW - 1) / CL_WINDOW, CL_AHEAD_MAX);
    c->depth = (uint32_t)min_u64(o->depth ? o->depth : 64, CL_DEPTH_MAX);
    c->nthreads = (uint32_t)min_u64(o->threads ? o->threads : 2, CL_THREADS_MAX);
    c->durable_close = o->durable_close;
    cl_bufs_init(&c->bufs);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->room, NULL);
    list_init(&c->dirty);
    for (size_t i = 0; i < CL_INODES; i++)
        list_init(&c->inodes[i]);
    return c;
}

static void client_free(struct client *c)
{
    cl_threads_stop(c);
    pst_cont_close(c->cont);
    pst_store_close(c->store);
    cl_bufs_done(&c->bufs);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->room);
    free(c);
}

/* The pool and container exist afterwards, whoever made them. */
static int make_both(struct client *c, const char *pool, const char *cont)
{
    struct pst_ctx ctx = {.cred = NULL};
    struct pst_pool_info p = {.uid = geteuid(), .gid = getegid(), .mode = 0755}, pr;
    struct pst_cont_props props = {.uid = geteuid(), .gid = getegid()};
    struct pst_cont_info ci;
    int r;

    snprintf(p.label, sizeof p.label, "%s", pool);
    r = pst_pool_query(c->store, &ctx, pool, &pr);
    if (r == -ENOENT)
        r = pst_pool_create(c->store, &ctx, &p, &pr);
    if (r < 0 && r != -EEXIST)
        return r;
    r = pst_cont_create(c->store, &ctx, pool, cont, &props, &ci);
    return r == -EEXIST ? 0 : r;
}

static int open_cont(struct client *c, const char *pool, const char *cont, bool create, char *err, size_t err_size)
{
    struct pst_ctx ctx = {.cred = NULL};
    char why[300];
    int r;

    log_divert("filter", why, sizeof why); /* why one of our filters refuses it */
    r = pst_cont_open(c->store, &ctx, pool, cont, &c->cont);
    if (r == -ENOENT && create) {
        r = make_both(c, pool, cont);
        if (r == 0)
            r = pst_cont_open(c->store, &ctx, pool, cont, &c->cont);
    }
    log_divert(NULL, NULL, 0);
    if (r < 0 && why[0])
        snprintf(err, err_size, "cannot open container \"%s\" of pool \"%s\": %s", cont, pool, why);
    else if (r < 0)
        snprintf(err, err_size, "cannot open container \"%s\" of pool \"%s\": %s%s", cont, pool, err_text(r),
                 r == -ENOENT ? " (\"penstock container create\" makes one)" : "");
    return r;
}

/*
 * Connections, event descriptors and, for local:, the store's files: who runs out of descriptors in the middle finds it
 * out in libraries that name another error, or none.
 */
static int check_descriptors(const char *url, char *err, size_t err_size)
{
    struct rlimit l;
    struct dirent *de;
    uint64_t used = 0;
    DIR *d;

    if (getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur > FILES_MANY)
        return 0;
    d = opendir("/proc/self/fd");
    if (!d)
        return errno == EMFILE ? -EMFILE : 0;
    while ((de = readdir(d)))
        used += de->d_name[0] != '.';
    closedir(d);
    if (used + FILES_NEEDED <= l.rlim_cur)
        return 0;
    snprintf(err, err_size, "%.200s: %llu more files may be opened (ulimit -n is %llu): at least %u are needed", url,
             (unsigned long long)(l.rlim_cur > used ? l.rlim_cur - used : 0), (unsigned long long)l.rlim_cur,
             FILES_NEEDED);
    return -EMFILE;
}

int cl_connect(const char *url, const struct cl_options *o, struct client **ret, char *err, size_t err_size)
{
    static const struct cl_options none;
    cleanup_free char *base = NULL, *pool = NULL, *cont = NULL;
    struct client *c;
    int r = cl_url_split(url, &base, &pool, &cont);
    bool named = pool != NULL, local = !strncmp(url, "local:", 6);

    o = o ? o : &none;
    if (r == 0 && !named && !local)
        r = -EINVAL;
    if (r < 0) {
        snprintf(err, err_size, "the URL \"%.200s\" is not penstock://HOST[:PORT]/POOL/CONTAINER or "
                 "local:/DIRECTORY[?POOL/CONTAINER]: %s", url, err_text(r));
        return r;
    }
    r = check_descriptors(url, err, err_size);
    if (r < 0)
        return r;
    c = client_new(o);
    if (!c) {
        snprintf(err, err_size, "out of memory");
        return -ENOMEM;
    }
    err[0] = '\0';
    r = cl_store_open(base, o, &c->store, err, err_size);
    if (r < 0 && !err[0])
        snprintf(err, err_size, "cannot open %.200s: %s", base, err_text(r));
    if (r == 0)
        r = cl_filters_push(o->filters, &c->store, err, err_size);
    c->bufs.store = c->store;
    if (r == 0)
        r = open_cont(c, named ? pool : "default", named ? cont : "default", o->create || !named, err, err_size);
    if (r == 0) {
        r = cl_threads_start(c);
        if (r < 0)
            snprintf(err, err_size, "cannot start data threads for %.200s: %s", base, err_text(r));
    } else {
        c->nthreads = 0;
    }
    if (r < 0) {
        client_free(c);
        return r;
    }
    *ret = c;
    return 0;
}

int cl_disconnect(struct client *c)
{
    if (!c)
        return 0;
    if (!fork_is_mine(c->fork_gen))
        return -ECHILD;
    client_free(c);
    return 0;
}

struct pst_store *cl_store(struct client *c)
{
    return c->store;
}

struct pst_cont *cl_cont(struct client *c)
{
    return c->cont;
}

void cl_describe(struct client *c, void (*fn)(void *user, const char *key, const char *value), void *user)
{
    char threads[16];

    if (!fork_is_mine(c->fork_gen))
        return;
    snprintf(threads, sizeof threads, "%u", c->nthreads);
    fn(user, "client.threads", threads);
    pst_store_describe(c->store, fn, user);
}
