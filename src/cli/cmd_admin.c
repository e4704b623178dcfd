/* pool and container: create, list, query, destroy. */
#include "cli.h"

#include "base/err.h"
#include "store/store.h"

#include <errno.h>
#include <string.h>

/* The same functions serve "pool ..." and "container ...". */
static bool is_pool(const struct cli_cmd *cmd)
{
    return !strncmp(cmd->name, "pool", 4);
}

/* create: an empty directory becomes a store. */
static struct pst_admin *admin_open(const char *arg, int parts, bool create, const struct cli_conn *k,
                                    struct cli_url *u, int *ret_code)
{
    char options[1000];
    struct pst_options o;
    struct pst_admin *a;
    int r;

    if (cli_url(arg, parts, u) < 0) {
        *ret_code = EXIT_USAGE;
        return NULL;
    }
    cli_conn_options(k, &o);
    if (create && !strncmp(u->server, "local:", 6)) {
        snprintf(options, sizeof options, "create=1%s%s", k->store_options ? "," : "",
                 k->store_options ? k->store_options : "");
        o.store_options = options;
    }
    r = pst_admin_open(u->server, &o, &a);
    if (r < 0) {
        *ret_code = cli_fail_pst(r, u->server);
        return NULL;
    }
    return a;
}

/* What an errno means for a pool or container. */
static int admin_fail(int err, bool pool, const struct cli_url *u)
{
    char name[300];

    snprintf(name, sizeof name, "%s \"%s%s%s\"", pool ? "pool" : "container", u->pool, pool ? "" : "/",
             pool ? "" : u->container);
    switch (err) {
    case -ENOENT:
        cli_error("%s: no %s there (penstock %s lists what there is)", u->server, name,
                  pool ? "pool list" : "container list");
        break;
    case -EEXIST:
        cli_error("%s is there already", name);
        break;
    case -ENOTEMPTY:
        cli_error("%s has containers: --force destroys them with it", name);
        break;
    case -EBUSY:
        cli_error("%s is in use: unmount it and end what works in it", name);
        break;
    case -EPERM:
    case -EACCES:
        cli_error("%s: %s: this is for its owner, or for an administrator of the server", name, err_text(err));
        break;
    default:
        return cli_fail_pst(err, name);
    }
    return cli_exit_code(err);
}

static void uuid_text(const unsigned char u[16], char ret[37])
{
    char *p = ret;

    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *p++ = '-';
        p += snprintf(p, 3, "%02x", u[i]);
    }
}

static json_t *pool_json(const struct pst_pool *p)
{
    char uuid[37], mode[8];

    uuid_text(p->uuid, uuid);
    snprintf(mode, sizeof mode, "%04o", p->mode & 07777);
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:s}", "label", p->label, "uuid", uuid, "quota",
                     (json_int_t)p->quota_bytes, "used", (json_int_t)p->used_bytes, "objects", (json_int_t)p->objects,
                     "containers", (json_int_t)p->containers, "uid", (json_int_t)p->uid, "gid", (json_int_t)p->gid,
                     "mode", mode);
}

static json_t *container_json(const struct pst_container *c)
{
    char uuid[37], mode[8];

    uuid_text(c->uuid, uuid);
    snprintf(mode, sizeof mode, "%04o", c->mode & 07777);
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:f}", "label", c->label, "pool", c->pool,
                     "uuid", uuid, "id", (json_int_t)c->id, "chunk_size", (json_int_t)c->chunk_size, "quota",
                     (json_int_t)c->quota_bytes, "used", (json_int_t)c->used_bytes, "objects", (json_int_t)c->objects,
                     "uid", (json_int_t)c->uid, "gid", (json_int_t)c->gid, "mode", mode, "created",
                     (double)c->created_ns / 1e9);
}

static const char *quota_text(uint64_t quota, char buf[32])
{
    return quota ? cli_size(quota, buf) : "-";
}

static int show_pool(const struct pst_pool *p, bool json)
{
    char a[32], b[32];

    if (json)
        return cli_json(pool_json(p));
    printf("pool %s: %s used%s%s, %llu objects in %u containers, owner %u:%u, mode %04o\n", p->label,
           cli_size(p->used_bytes, a), p->quota_bytes ? " of " : "", p->quota_bytes ? cli_size(p->quota_bytes, b) : "",
           (unsigned long long)p->objects, p->containers, p->uid, p->gid, p->mode & 07777);
    return EXIT_OK;
}

static int show_container(const struct pst_container *c, bool json)
{
    char a[32], b[32], d[32];

    if (json)
        return cli_json(container_json(c));
    printf("container %s/%s: %s used%s%s, %llu objects, chunks of %s, owner %u:%u, mode %04o\n", c->pool, c->label,
           cli_size(c->used_bytes, a), c->quota_bytes ? " of " : "", c->quota_bytes ? cli_size(c->quota_bytes, b) : "",
           (unsigned long long)c->objects, cli_size(c->chunk_size, d), c->uid, c->gid, c->mode & 07777);
    return EXIT_OK;
}

/* ---- lists ---- */

struct listing {
    json_t *array; /* NULL: text */
    uint64_t n;
};

static int list_pool(const struct pst_pool *p, void *user)
{
    struct listing *l = user;
    char a[32], b[32];

    if (l->array)
        return json_array_append_new(l->array, pool_json(p)) < 0 ? -ENOMEM : 0;
    if (l->n++ == 0)
        printf("%-20s %10s %10s %10s %10s\n", "POOL", "USED", "QUOTA", "OBJECTS", "CONTAINERS");
    printf("%-20s %10s %10s %10llu %10u\n", p->label, cli_size(p->used_bytes, a), quota_text(p->quota_bytes, b),
           (unsigned long long)p->objects, p->containers);
    return 0;
}

static int list_container(const struct pst_container *c, void *user)
{
    struct listing *l = user;
    char a[32], b[32], d[32];

    if (l->array)
        return json_array_append_new(l->array, container_json(c)) < 0 ? -ENOMEM : 0;
    if (l->n++ == 0)
        printf("%-20s %10s %10s %10s %10s\n", "CONTAINER", "USED", "QUOTA", "OBJECTS", "CHUNK");
    printf("%-20s %10s %10s %10llu %10s\n", c->label, cli_size(c->used_bytes, a), quota_text(c->quota_bytes, b),
           (unsigned long long)c->objects, cli_size(c->chunk_size, d));
    return 0;
}

static int run_list(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    bool json = false, pools = is_pool(cmd);
    const struct cli_opt opts[] = {
        {0, "json", OPT_FLAG, &json, NULL, "a JSON array", NULL},
        CLI_SERVER_OPTS(k),
        {0},
    };
    struct listing l = {0};
    struct cli_url u;
    struct pst_admin *a;
    int code = EXIT_OK, r;
    CLI_PARSE(cmd, opts, argc, argv, 1, 1);

    a = admin_open(argv[first], pools ? 0 : 1, false, &k, &u, &code);
    if (!a)
        return code;
    l.array = json ? json_array() : NULL;
    r = pools ? pst_pool_each(a, list_pool, &l) : pst_container_each(a, u.pool, list_container, &l);
    if (r < 0)
        code = admin_fail(r, true, &u);
    else if (l.array)
        code = cli_json(json_incref(l.array));
    json_decref(l.array);
    pst_admin_close(a);
    return code;
}

/* ---- create, query, destroy ---- */

struct create_args {
    struct cli_conn k;
    uint64_t quota, chunk_size, uid, gid;
    uint32_t mode;
    bool json;
};

static int create_pool(struct pst_admin *a, const struct cli_url *u, const struct create_args *x)
{
    struct pst_pool p = {
        .quota_bytes = x->quota, .uid = (uint32_t)x->uid, .gid = (uint32_t)x->gid, .mode = x->mode};
    int r;

    snprintf(p.label, sizeof p.label, "%s", u->pool);
    r = pst_pool_add(a, &p, &p);
    return r < 0 ? admin_fail(r, true, u) : show_pool(&p, x->json);
}

static int create_container(struct pst_admin *a, const struct cli_url *u, const struct create_args *x)
{
    struct pst_container c = {.quota_bytes = x->quota,
                              .chunk_size = x->chunk_size,
                              .uid = (uint32_t)x->uid,
                              .gid = (uint32_t)x->gid,
                              .mode = x->mode};
    int r;

    snprintf(c.label, sizeof c.label, "%s", u->container);
    snprintf(c.pool, sizeof c.pool, "%s", u->pool);
    r = pst_container_add(a, &c, &c);
    return r < 0 ? admin_fail(r, r == -ENOENT, u) : show_container(&c, x->json); /* what is missing is the pool */
}

static int run_create(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct create_args x = {.uid = geteuid(), .gid = getegid(), .mode = 0755};
    bool pool = is_pool(cmd);
    const struct cli_opt all[] = {
        {'c', "chunk-size", OPT_SIZE, &x.chunk_size, "SIZE", "a power of two, 64K to 16M; default 1M", NULL},
        {'q', "quota", OPT_SIZE, &x.quota, "SIZE", "space for it; default: no limit of its own", NULL},
        {0, "uid", OPT_UINT, &x.uid, "N", "owner; default: you", NULL},
        {0, "gid", OPT_UINT, &x.gid, "N", "group; default: yours", NULL},
        {'m', "mode", OPT_MODE, &x.mode, "MODE", "permission bits; default 755", NULL},
        {0, "json", OPT_FLAG, &x.json, NULL, "a JSON object", NULL},
        CLI_SERVER_OPTS(x.k),
        {0},
    };
    const struct cli_opt *opts = pool ? all + 1 : all; /* chunks are a container's */
    struct pst_admin *a;
    struct cli_url u;
    int code = EXIT_OK;
    CLI_PARSE(cmd, opts, argc, argv, 1, 1);

    if (x.uid > UINT32_MAX || x.gid > UINT32_MAX)
        return cli_usage(cmd, "--uid, --gid: must be at most %u", UINT32_MAX);
    if (pool && x.mode & ~0777u)
        return cli_usage(cmd, "--mode: a pool has the bits 777 only");
    if (x.chunk_size && (x.chunk_size < PST_CHUNK_MIN || x.chunk_size > PST_CHUNK_MAX || !is_pow2(x.chunk_size)))
        return cli_usage(cmd, "--chunk-size: must be a power of two from 64K to 16M");
    a = admin_open(argv[first], pool ? 1 : 2, pool, &x.k, &u, &code);
    if (!a)
        return code;
    code = pool ? create_pool(a, &u, &x) : create_container(a, &u, &x);
    pst_admin_close(a);
    return code;
}

static int run_query(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    bool json = false, pool = is_pool(cmd);
    const struct cli_opt opts[] = {
        {0, "json", OPT_FLAG, &json, NULL, "a JSON object", NULL},
        CLI_SERVER_OPTS(k),
        {0},
    };
    struct pst_container c;
    struct pst_pool p;
    struct pst_admin *a;
    struct cli_url u;
    int code = EXIT_OK, r;
    CLI_PARSE(cmd, opts, argc, argv, 1, 1);

    a = admin_open(argv[first], pool ? 1 : 2, false, &k, &u, &code);
    if (!a)
        return code;
    r = pool ? pst_pool_get(a, u.pool, &p) : pst_container_get(a, u.pool, u.container, &c);
    if (r < 0)
        code = admin_fail(r, pool, &u);
    else
        code = pool ? show_pool(&p, json) : show_container(&c, json);
    pst_admin_close(a);
    return code;
}

static int run_destroy(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    bool force = false, pool = is_pool(cmd);
    const struct cli_opt opts[] = {
        {'f', "force", OPT_FLAG, &force, NULL, "a pool with its containers, or a container with files in it", NULL},
        CLI_SERVER_OPTS(k),
        {0},
    };
    struct pst_container c;
    struct pst_admin *a;
    struct cli_url u;
    int code = EXIT_OK, r;
    CLI_PARSE(cmd, opts, argc, argv, 1, 1);

    a = admin_open(argv[first], pool ? 1 : 2, false, &k, &u, &code);
    if (!a)
        return code;
    if (pool) {
        r = pst_pool_remove(a, u.pool, force);
    } else {
        r = pst_container_get(a, u.pool, u.container, &c);
        if (r == 0 && c.objects > 1 && !force) { /* its root counts as one */
            cli_error("container %s/%s has %llu objects: --force destroys them", u.pool, u.container,
                      (unsigned long long)c.objects);
            pst_admin_close(a);
            return EXIT_FAILED;
        }
        if (r == 0)
            r = pst_container_remove(a, u.pool, u.container);
    }
    if (r < 0)
        code = admin_fail(r, pool, &u);
    pst_admin_close(a);
    return code;
}

const struct cli_cmd cmds_admin[] = {
    {"pool create", "URL", "Creates a pool: penstock://HOST/POOL or local:/DIRECTORY?POOL",
     "With local: an empty DIRECTORY becomes a store.", run_create},
    {"pool list", "URL", "Lists the pools of a server or directory", NULL, run_list},
    {"pool query", "URL", "Shows a pool", NULL, run_query},
    {"pool destroy", "URL", "Destroys a pool", NULL, run_destroy},
    {"container create", "URL", "Creates a container", NULL, run_create},
    {"container list", "URL", "Lists the containers of a pool", NULL, run_list},
    {"container query", "URL", "Shows a container", NULL, run_query},
    {"container destroy", "URL", "Destroys a container and all that is in it", NULL, run_destroy},
    {0},
};
