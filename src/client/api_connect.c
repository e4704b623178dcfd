/* pst_connect and its options. */
#include "api.h"

#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void pst_options_init(struct pst_options *options, size_t size)
{
    memset(options, 0, size);
    options->size = size;
}

/* "key=value,key=value" into pairs; the text is cut up. */
static int split_options(char *s, struct pst_option *ret, size_t max, size_t *ret_n)
{
    size_t n = 0;

    for (char *next; s && *s; s = next) {
        char *eq;
        next = strchr(s, ',');
        if (next)
            *next++ = '\0';
        eq = strchr(s, '=');
        if (!eq || n == max)
            return -EINVAL;
        *eq = '\0';
        ret[n++] = (struct pst_option){s, eq + 1};
    }
    *ret_n = n;
    return 0;
}

static const char *or_env(const char *value, const char *name)
{
    const char *env = value ? NULL : getenv(name);

    return value ? value : env && *env ? env : NULL;
}

int api_options(const struct pst_options *in, struct cl_options *ret, struct pst_option *store_opts, char **ret_buf)
{
    struct pst_options o = {.size = sizeof o};
    cleanup_free char *buf = NULL;
    size_t n = 0;

    if (in) {
        if (in->size < offsetof(struct pst_options, threads) || in->size > 4096)
            return api_fail(-EINVAL, "struct pst_options was not set up by pst_options_init");
        memcpy(&o, in, min_u64(in->size, sizeof o));
    }
    if (o.flags & ~(PST_CONNECT_INSECURE | PST_CONNECT_REQUIRE_RDMA | PST_CONNECT_LAZY_CLOSE | PST_CONNECT_CREATE))
        return api_fail(-EINVAL, "unknown bits in pst_options.flags: 0x%x", o.flags);
    if (o.threads > CL_THREADS_MAX || o.depth > CL_DEPTH_MAX)
        return api_fail(-EINVAL, "pst_options: threads above %u, or depth above %u", CL_THREADS_MAX, CL_DEPTH_MAX);
    if (o.store_options) {
        buf = strdup(o.store_options);
        if (!buf)
            return api_fail(-ENOMEM, "out of memory");
        if (split_options(buf, store_opts, API_STORE_OPTS, &n) < 0)
            return api_fail(-EINVAL, "store_options \"%.200s\" is not key=value,key=value", o.store_options);
    }
    *ret = (struct cl_options){
        .threads = o.threads, .depth = o.depth, .write_behind = o.write_behind, .read_ahead = o.read_ahead,
        .timeout_ms = o.timeout_ms, .create = o.flags & PST_CONNECT_CREATE,
        .durable_close = !(o.flags & PST_CONNECT_LAZY_CLOSE), .purpose = o.purpose ? o.purpose : "api",
        .token_file = or_env(o.token_file, "PENSTOCK_TOKEN_FILE"), .ca_file = or_env(o.ca_file, "PENSTOCK_CA_FILE"),
        .cert_file = or_env(o.cert_file, "PENSTOCK_CERT_FILE"), .key_file = or_env(o.key_file, "PENSTOCK_KEY_FILE"),
        .insecure = o.flags & PST_CONNECT_INSECURE, .require_rdma = o.flags & PST_CONNECT_REQUIRE_RDMA,
        .provider = o.provider, .store_opts = n ? store_opts : NULL, .nstore_opts = n, .filters = o.filters};
    *ret_buf = take_ptr(buf);
    return 0;
}

struct identity {
    bool known, any_uid;
    uint32_t uid, gid;
};

static void identity_fact(void *user, const char *name, const char *labels, const char *help, bool counter,
                          double value)
{
    struct identity *id = user;

    (void)labels, (void)help, (void)counter;
    if (!strcmp(name, "remote_session_any_uid")) {
        id->known = true;
        id->any_uid = value > 0;
    } else if (!strcmp(name, "remote_session_uid")) {
        id->uid = (uint32_t)value;
    } else if (!strcmp(name, "remote_session_gid")) {
        id->gid = (uint32_t)value;
    }
}

void api_cred(struct pst_store *st, struct pst_cred *ret)
{
    struct identity id = {0};
    gid_t groups[PST_GROUPS_MAX];
    int n = getgroups(PST_GROUPS_MAX, groups);

    pst_store_stats(st, identity_fact, &id);
    *ret = (struct pst_cred){.uid = geteuid(), .gid = getegid()};
    if (id.known && !id.any_uid) {
        *ret = (struct pst_cred){.uid = id.uid, .gid = id.gid};
        return;
    }
    for (int i = 0; i < n; i++)
        ret->groups[ret->ngroups++] = groups[i];
}

bool api_mine(const struct pst_conn *k)
{
    return fork_is_mine(k->c->fork_gen);
}

int pst_connect(const char *url, const struct pst_options *options, struct pst_fs **ret_fs)
{
    struct pst_option store_opts[API_STORE_OPTS];
    cleanup_free char *buf = NULL;
    char err[400] = "";
    struct cl_options o;
    struct pst_conn *k;
    struct pst_fs *fs;
    int r;

    if (!url || !ret_fs)
        return api_fail(-EINVAL, "pst_connect: no URL, or nowhere to put the result");
    r = api_options(options, &o, store_opts, &buf);
    if (r < 0)
        return r;
    k = calloc(1, sizeof *k);
    fs = calloc(1, sizeof *fs);
    r = k && fs ? cl_connect(url, &o, &k->c, err, sizeof err) : -ENOMEM;
    if (r < 0) {
        free(k);
        free(fs);
        return api_fail(r, "%s", err[0] ? err : err_text(r));
    }
    k->refs = 1;
    api_cred(cl_store(k->c), &k->cred);
    *fs = (struct pst_fs){k, PST_ROOT_INO};
    *ret_fs = fs;
    return 0;
}

int pst_workdir(struct pst_fs *fs, const char *path, struct pst_fs **ret_fs)
{
    struct pst_attr a;
    struct pst_fs *sub;
    int r;

    if (!fs || !path || !ret_fs)
        return api_fail(-EINVAL, "pst_workdir: an argument is NULL");
    r = api_find(fs, path, true, &a);
    if (r == 0 && !S_ISDIR(a.mode))
        r = -ENOTDIR;
    if (r < 0)
        return (int)api_result("pst_workdir", path, r);
    sub = malloc(sizeof *sub);
    if (!sub)
        return (int)api_result("pst_workdir", path, -ENOMEM);
    atomic_fetch_add(&fs->k->refs, 1);
    *sub = (struct pst_fs){fs->k, a.ino};
    *ret_fs = sub;
    return 0;
}

int pst_disconnect(struct pst_fs *fs)
{
    int r = 0;

    if (!fs)
        return 0;
    if (!api_mine(fs->k))
        return (int)api_result("pst_disconnect", NULL, -ECHILD);
    if (atomic_fetch_sub(&fs->k->refs, 1) == 1) {
        r = cl_disconnect(fs->k->c);
        free(fs->k);
    }
    free(fs);
    return (int)api_result("pst_disconnect", NULL, r);
}

void pst_describe(struct pst_fs *fs, void (*fn)(void *user, const char *key, const char *value), void *user)
{
    if (fs && fn && api_mine(fs->k))
        cl_describe(fs->k->c, fn, user);
}
