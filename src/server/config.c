/* One table of options: it makes the flags, and turns the text of either source into checked values. */
#include "config_text.h"

#include "base/err.h"
#include "store/perm.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sched.h>

enum kind { K_STR, K_UINT, K_SIZE, K_MS, K_BOOL, K_LIST, K_POOL, K_CONTAINER, K_CREDENTIAL };

struct option_row {
    struct srv_flag flag;
    const char *key; /* in the file */
    enum kind kind;
    size_t text; /* of the char * (lists: char **, followed by the count) in struct text_values */
    size_t value; /* in struct srv_config */
    uint64_t min, max;
};

#define T(field) offsetof(struct text_values, field)
#define V(field) offsetof(struct srv_config, field)
static const struct option_row rows[] = {
    {{"store", "URL", "the store: local:/var/lib/penstock"}, "store.url", K_STR, T(store.url), V(store_url), 0, 0},
    {{"store-option", "KEY=VALUE", "an option of its engine; repeatable"}, "store.options", K_LIST, T(store.options),
     0, 0, 0},
    {{"filter", "SPEC", "a filter on the store, first is lowest: delay:op=write,ms=200; repeatable"}, "filters", K_LIST,
     T(filters), 0, 0, 0},
    {{"pool", "LABEL[:quota=SIZE]", "create this pool at start if it is not there; repeatable"}, "pools", K_POOL,
     T(pools), 0, 0, 0},
    {{"container", "POOL/LABEL[:chunk_size=SIZE,...]", "and this container; repeatable"}, "pools.containers",
     K_CONTAINER, T(pools), 0, 0, 0},
    {{"listen", "HOST:PORT", "control address (unix:/path too); repeatable; default " SRV_CONTROL_LISTEN},
     "control.listen", K_LIST, T(control.listen), 0, 0, 0},
    {{"insecure", NULL, "plain text also off loopback"}, "control.insecure", K_BOOL, T(control.insecure), V(insecure),
     0, 0},
    {{"local-token", "yes|no", "let in who can read the token file of a local address; default yes"},
     "control.local_token", K_BOOL, T(control.local_token), V(local_token), 0, 0},
    {{"tls-ca", "FILE", "CA of the clients' certificates"}, "control.tls.ca", K_STR, T(control.tls.ca), V(tls_ca), 0, 0},
    {{"tls-cert", "FILE", "this server's certificate"}, "control.tls.cert", K_STR, T(control.tls.cert), V(tls_cert), 0,
     0},
    {{"tls-key", "FILE", "and its key"}, "control.tls.key", K_STR, T(control.tls.key), V(tls_key), 0, 0},
    {{"lease", "TIME", "a session that is silent so long ends; default 30s"}, "control.lease", K_MS, T(control.lease),
     V(lease_ms), 1000, 3600000},
    {{"max-sessions", "N", "sessions at once"}, "control.max_sessions", K_UINT, T(control.max_sessions),
     V(max_sessions), 1, 1000000},
    {{"data-listen", "HOST:PORT", "data address; shard n takes port + n; 0: any; default: the control host, any port"},
     "data.listen", K_STR, T(data.listen), V(data_listen), 0, 0},
    {{"data-advertise", "HOST", "the address clients are told, where data-listen is 0.0.0.0 or [::]"},
     "data.advertise", K_STR, T(data.advertise), V(data_advertise), 0, 0},
    {{"provider", "NAME", "libfabric provider: auto, tcp, net, verbs; default auto"}, "data.provider", K_STR,
     T(data.provider), V(data_provider), 0, 0},
    {{"require-rdma", NULL, "do not start without RDMA"}, "data.require_rdma", K_BOOL, T(data.require_rdma),
     V(data_require_rdma), 0, 0},
    {{"data-security", "clear", "file bytes may cross the network in clear text"}, "data.security", K_STR,
     T(data.security), 0, 0, 0},
    {{"shards", "N", "data threads; default one for two cores"}, "data.shards", K_UINT, T(data.shards), V(data_shards),
     1, SRV_SHARDS_MAX},
    {{"credits", "N", "requests under way per data connection; default 64"}, "data.credits", K_UINT, T(data.credits),
     V(data_credits), 4, 1024},
    {{"spin-us", "N", "busy polling before a data thread sleeps; default 20"}, "data.spin_us", K_UINT, T(data.spin_us),
     V(data_spin_us), 0, 1000000},
    {{"buffer-size", "SIZE", "one transfer buffer; default 1M"}, "data.buffer_size", K_SIZE, T(data.buffer_size),
     V(data_buffer_bytes), 64 * KiB, 8 * MiB},
    {{"buffer-memory", "SIZE", "transfer buffers of one shard; default 64M"}, "data.buffer_memory", K_SIZE,
     T(data.buffer_memory), V(data_buffer_memory), 1 * MiB, 1024 * GiB},
    {{"max-connections", "N", "data connections at once"}, "data.max_connections", K_UINT, T(data.max_connections),
     V(max_connections), 1, 1000000},
    {{"credential", "name=NAME,token_file=FILE|cn=NAME[,uid=N][,gid=N][,any_uid][,admin]", "who may connect; repeatable"},
     "credentials", K_CREDENTIAL, T(credentials), 0, 0, 0},
    {{"metrics", "HOST:PORT|off", "Prometheus page; default " SRV_METRICS_LISTEN}, "metrics.listen", K_STR,
     T(metrics.listen), V(metrics_listen), 0, 0},
    {{"log", "LEVEL", "error, warn, info or debug; default info"}, "log", K_STR, T(log), 0, 0, 0},
    {{"user", "NAME", "run as this user"}, "user", K_STR, T(user), V(run_as), 0, 0},
    {{"drain", "TIME", "how long SIGTERM waits for what is under way; default 10s"}, "drain", K_MS, T(drain),
     V(drain_ms), 0, 600000},
};
_Static_assert(ARRAY_SIZE(rows) <= TEXT_FLAGS, "srv_text.set is too small");

const struct srv_flag *srv_config_flag_at(size_t i)
{
    return i < ARRAY_SIZE(rows) ? &rows[i].flag : NULL;
}

struct srv_config *srv_config_new(void)
{
    struct srv_config *c = calloc(1, sizeof *c);
    struct srv_text *t = calloc(1, sizeof *t);

    if (t)
        t->v = calloc(1, sizeof *t->v);
    if (!c || !t || !t->v) {
        free(t);
        free(c);
        return NULL;
    }
    c->text = t;
    return c;
}

void srv_config_free(struct srv_config *c)
{
    if (!c)
        return;
    for (unsigned i = 0; i < c->npools; i++)
        free(c->pools[i].containers);
    for (unsigned i = 0; i < c->nstore_opts; i++)
        free((char *)c->store_opts[i].key);
    free(c->pools);
    free(c->store_opts);
    free(c->credentials);
    text_free_values(c->text->v);
    free(c->text->path);
    free(c->text);
    free(c);
}

int srv_config_load(struct srv_config *c, const char *path, char *err, size_t err_size)
{
    return text_load(c->text, path, err, err_size);
}

/* ---- flags: written over the text ---- */

static int set_string(char **at, const char *value)
{
    char *p = strdup(value);

    if (!p)
        return -ENOMEM;
    free(*at);
    *at = p;
    return 0;
}

/* Room for one more element at the end of an array that cyaml_free will free. */
static void *grow(void *array, unsigned *count, size_t size)
{
    char **at = array;
    char *p = realloc(*at, (*count + 1) * size);

    if (!p)
        return NULL;
    *at = p;
    memset(p + *count * size, 0, size);
    return p + (*count)++ * size;
}

static int add_string(char ***list, unsigned *count, const char *value)
{
    char **slot = grow(list, count, sizeof *slot);
    return slot ? set_string(slot, value) : -ENOMEM;
}

struct field {
    const char *name;
    size_t offset;
};

/* "a=1,b,c=2" into the char * fields of obj; a name alone means true. */
static int set_fields(void *obj, const struct field *fields, size_t n, const char *value, char *err, size_t err_size)
{
    cleanup_free char *copy = strdup(value);
    char *save = NULL;
    int r = copy ? 0 : -ENOMEM;

    for (char *p = copy ? strtok_r(copy, ",", &save) : NULL; r == 0 && p; p = strtok_r(NULL, ",", &save)) {
        char *eq = strchr(p, '=');
        size_t i;
        if (eq)
            *eq = 0;
        for (i = 0; i < n && strcmp(fields[i].name, p) != 0; i++)
            ;
        if (i == n) {
            size_t len = (size_t)snprintf(err, err_size, "unknown key \"%.40s\"; known:", p);
            for (i = 0; i < n && len < err_size; i++)
                len += (size_t)snprintf(err + len, err_size - len, " %s", fields[i].name);
            return -EINVAL;
        }
        r = set_string((char **)((char *)obj + fields[i].offset), eq ? eq + 1 : "true");
    }
    return r;
}

static int flag_pool(struct text_values *v, const char *value, char *err, size_t err_size)
{
    static const struct field fields[] = {{"quota", offsetof(struct text_pool, quota)},
                                          {"uid", offsetof(struct text_pool, uid)},
                                          {"gid", offsetof(struct text_pool, gid)},
                                          {"mode", offsetof(struct text_pool, mode)}};
    size_t n = strcspn(value, ":");
    struct text_pool *p = grow(&v->pools, &v->pools_count, sizeof *p);

    if (!p || !(p->label = strndup(value, n)))
        return -ENOMEM;
    return set_fields(p, fields, ARRAY_SIZE(fields), value[n] ? value + n + 1 : "", err, err_size);
}

static int flag_container(struct text_values *v, const char *value, char *err, size_t err_size)
{
    static const struct field fields[] = {{"chunk_size", offsetof(struct text_container, chunk_size)},
                                          {"quota", offsetof(struct text_container, quota)},
                                          {"uid", offsetof(struct text_container, uid)},
                                          {"gid", offsetof(struct text_container, gid)},
                                          {"mode", offsetof(struct text_container, mode)}};
    size_t pool = strcspn(value, "/:"), end = strcspn(value, ":");
    struct text_pool *p = NULL;
    struct text_container *k;

    if (value[pool] != '/') {
        snprintf(err, err_size, "must be POOL/LABEL");
        return -EINVAL;
    }
    for (unsigned i = 0; i < v->pools_count && !p; i++)
        if (v->pools[i].label && strlen(v->pools[i].label) == pool && !strncmp(v->pools[i].label, value, pool))
            p = &v->pools[i];
    if (!p) {
        p = grow(&v->pools, &v->pools_count, sizeof *p);
        if (!p || !(p->label = strndup(value, pool)))
            return -ENOMEM;
    }
    k = grow(&p->containers, &p->containers_count, sizeof *k);
    if (!k || !(k->label = strndup(value + pool + 1, end - pool - 1)))
        return -ENOMEM;
    return set_fields(k, fields, ARRAY_SIZE(fields), value[end] ? value + end + 1 : "", err, err_size);
}

static int flag_credential(struct text_values *v, const char *value, char *err, size_t err_size)
{
#define F(f) {#f, offsetof(struct text_credential, f)}
    static const struct field fields[] = {F(name), F(token_file), F(cn), F(uid), F(gid), F(any_uid), F(admin)};
#undef F
    struct text_credential *k = grow(&v->credentials, &v->credentials_count, sizeof *k);

    return k ? set_fields(k, fields, ARRAY_SIZE(fields), value, err, err_size) : -ENOMEM;
}

static int flag_list(const struct option_row *o, struct srv_text *t, const char *value)
{
    char ***list = (char ***)((char *)t->v + o->text);
    unsigned *count = (unsigned *)(list + 1);

    if (!t->set[o - rows]) { /* the first flag drops the file's list */
        for (unsigned i = 0; i < *count; i++)
            free((*list)[i]);
        free(*list);
        *list = NULL;
        *count = 0;
    }
    return add_string(list, count, value);
}

int srv_config_flag(struct srv_config *c, const char *name, const char *value, char *err, size_t err_size)
{
    struct srv_text *t = c->text;
    const struct option_row *o = rows;
    char why[200] = "";
    int r;

    while (o < rows + ARRAY_SIZE(rows) && strcmp(o->flag.name, name) != 0)
        o++;
    if (o == rows + ARRAY_SIZE(rows)) {
        snprintf(err, err_size, "no option --%.60s", name);
        return -EINVAL;
    }
    switch (o->kind) {
    case K_LIST:
        r = flag_list(o, t, value);
        break;
    case K_POOL:
        r = flag_pool(t->v, value, why, sizeof why);
        break;
    case K_CONTAINER:
        r = flag_container(t->v, value, why, sizeof why);
        break;
    case K_CREDENTIAL:
        r = flag_credential(t->v, value, why, sizeof why);
        break;
    default:
        r = set_string((char **)((char *)t->v + o->text), value ? value : "true");
    }
    t->set[o - rows] = true;
    if (r < 0)
        snprintf(err, err_size, "--%s: \"%.100s\": %s", name, value ? value : "", why[0] ? why : err_text(r));
    return r;
}

/* ---- the text's values, checked ---- */

/* "penstock.yaml: line 3: data.shards: "x": must be ..." or "--shards: "x": must be ..." */
static int bad(const struct srv_config *c, const struct option_row *o, const char *key, const char *value,
               const char *why, char *err, size_t err_size)
{
    const struct srv_text *t = c->text;
    bool flag = o && t->set[o - rows];
    unsigned line = flag ? 0 : text_line(t, key);
    char where[300] = "";

    if (line)
        snprintf(where, sizeof where, "%s: line %u: ", t->path, line);
    snprintf(err, err_size, "%s%s%s: %s%.100s%s%s", where, flag ? "--" : "", flag ? o->flag.name : key,
             value ? "\"" : "", value ? value : "", value ? "\": " : "", why);
    return -EINVAL;
}

static int check_row(struct srv_config *c, const struct option_row *o, char *err, size_t err_size)
{
    const char *s = *(char **)((char *)c->text->v + o->text);
    void *out = (char *)c + o->value;
    uint64_t v = 0;
    char why[120];
    int r = 0;

    if (!s)
        return 0;
    switch (o->kind) {
    case K_STR:
        if (!*s)
            return bad(c, o, o->key, s, "is empty", err, err_size);
        if (o->value)
            *(const char **)out = s;
        return 0;
    case K_BOOL:
        if (srv_parse_bool(s, out) < 0)
            return bad(c, o, o->key, s, "must be true or false", err, err_size);
        return 0;
    case K_UINT:
        r = srv_parse_uint(s, &v);
        snprintf(why, sizeof why, "must be a number from %llu to %llu", (unsigned long long)o->min,
                 (unsigned long long)o->max);
        break;
    case K_SIZE:
        r = srv_parse_size(s, &v);
        snprintf(why, sizeof why, "must be a size (512K, 1M, ...) from %lluK to %lluK",
                 (unsigned long long)(o->min / KiB), (unsigned long long)(o->max / KiB));
        break;
    case K_MS:
        r = srv_parse_ms(s, &v);
        snprintf(why, sizeof why, "must be a time (500ms, 30s, 5m) from %llums to %llus", (unsigned long long)o->min,
                 (unsigned long long)(o->max / 1000));
        break;
    default:
        return 0;
    }
    if (r < 0 || v < o->min || v > o->max)
        return bad(c, o, o->key, s, why, err, err_size);
    *(uint64_t *)out = v;
    return 0;
}

static const struct option_row *row(const char *flag)
{
    const struct option_row *o = rows;
    while (strcmp(o->flag.name, flag) != 0)
        o++;
    return o;
}

/* Members of list entries: key is "pools[0].quota". */
struct member {
    const char *name, *text;
    enum { M_SIZE, M_UID, M_MODE, M_BOOL } kind;
    void *out;
};

static int check_members(struct srv_config *c, const struct option_row *o, const char *prefix, const struct member *m,
                         size_t n, char *err, size_t err_size)
{
    for (size_t i = 0; i < n; i++) {
        char key[120];
        uint64_t v = 0;
        const char *why = NULL;
        if (!m[i].text)
            continue;
        switch (m[i].kind) {
        case M_SIZE:
            why = srv_parse_size(m[i].text, m[i].out) < 0 ? "must be a size (64K, 10G, ...)" : NULL;
            break;
        case M_UID:
            why = srv_parse_uint(m[i].text, &v) < 0 || v >= UINT32_MAX ? "must be a numeric id" : NULL;
            if (!why)
                *(uint32_t *)m[i].out = (uint32_t)v;
            break;
        case M_MODE:
            why = srv_parse_mode(m[i].text, m[i].out) < 0 ? "must be permission bits in octal (755)" : NULL;
            break;
        case M_BOOL:
            why = srv_parse_bool(m[i].text, m[i].out) < 0 ? "must be true or false" : NULL;
            break;
        }
        snprintf(key, sizeof key, "%s.%s", prefix, m[i].name);
        if (why)
            return bad(c, o, key, m[i].text, why, err, err_size);
    }
    return 0;
}

static int check_label(struct srv_config *c, const struct option_row *o, const char *prefix, const char *label,
                       char *err, size_t err_size)
{
    char key[120];

    snprintf(key, sizeof key, "%s.label", prefix);
    if (!label)
        return bad(c, o, key, NULL, "is missing", err, err_size);
    if (pst_label_check(label) < 0)
        return bad(c, o, key, label, "must be 1 to 127 of A-Z a-z 0-9 . _ -", err, err_size);
    return 0;
}

static int check_container(struct srv_config *c, const char *prefix, const struct text_container *t,
                           struct srv_container *k, char *err, size_t err_size)
{
    const struct option_row *o = row("container");
    struct pst_cont_props *p = &k->props;
    const struct member m[] = {{"chunk_size", t->chunk_size, M_SIZE, &p->chunk_size},
                               {"quota", t->quota, M_SIZE, &p->quota_bytes},
                               {"uid", t->uid, M_UID, &p->uid},
                               {"gid", t->gid, M_UID, &p->gid},
                               {"mode", t->mode, M_MODE, &p->mode}};
    char key[120];
    int r = check_label(c, o, prefix, t->label, err, err_size);

    if (r == 0)
        r = check_members(c, o, prefix, m, ARRAY_SIZE(m), err, err_size);
    snprintf(key, sizeof key, "%s.chunk_size", prefix);
    if (r == 0 && p->chunk_size &&
        (p->chunk_size < PST_CHUNK_MIN || p->chunk_size > PST_CHUNK_MAX || !is_pow2(p->chunk_size)))
        r = bad(c, o, key, t->chunk_size, "must be a power of two from 64K to 16M", err, err_size);
    k->label = t->label;
    return r;
}

static int check_pools(struct srv_config *c, char *err, size_t err_size)
{
    const struct text_values *v = c->text->v;
    const struct option_row *o = row("pool");
    int r = 0;

    c->pools = calloc(v->pools_count + 1, sizeof *c->pools);
    if (!c->pools)
        return -ENOMEM;
    for (unsigned i = 0; r == 0 && i < v->pools_count; i++) {
        const struct text_pool *t = &v->pools[i];
        struct srv_pool *p = &c->pools[c->npools++];
        const struct member m[] = {{"quota", t->quota, M_SIZE, &p->quota_bytes},
                                   {"uid", t->uid, M_UID, &p->uid},
                                   {"gid", t->gid, M_UID, &p->gid},
                                   {"mode", t->mode, M_MODE, &p->mode}};
        char prefix[60], inner[100];
        p->label = t->label;
        p->mode = 0755;
        snprintf(prefix, sizeof prefix, "pools[%u]", i);
        r = check_label(c, o, prefix, t->label, err, err_size);
        if (r == 0)
            r = check_members(c, o, prefix, m, ARRAY_SIZE(m), err, err_size);
        p->containers = calloc(t->containers_count + 1, sizeof *p->containers);
        if (!p->containers)
            return -ENOMEM;
        for (unsigned j = 0; r == 0 && j < t->containers_count; j++) {
            snprintf(inner, sizeof inner, "%s.containers[%u]", prefix, j);
            r = check_container(c, inner, &t->containers[j], &p->containers[p->ncontainers++], err, err_size);
        }
    }
    return r;
}

static int check_credentials(struct srv_config *c, char *err, size_t err_size)
{
    const struct text_values *v = c->text->v;
    const struct option_row *o = row("credential");
    int r = 0;

    c->credentials = calloc(v->credentials_count + 1, sizeof *c->credentials);
    if (!c->credentials)
        return -ENOMEM;
    for (unsigned i = 0; r == 0 && i < v->credentials_count; i++) {
        const struct text_credential *t = &v->credentials[i];
        struct srv_credential *k = &c->credentials[c->ncredentials++];
        const struct member m[] = {{"uid", t->uid, M_UID, &k->uid},
                                   {"gid", t->gid, M_UID, &k->gid},
                                   {"any_uid", t->any_uid, M_BOOL, &k->any_uid},
                                   {"admin", t->admin, M_BOOL, &k->admin}};
        char prefix[60];
        *k = (struct srv_credential){.name = t->name, .token = t->token, .token_file = t->token_file, .cn = t->cn,
                                     .uid = 65534, .gid = 65534};
        snprintf(prefix, sizeof prefix, "credentials[%u]", i);
        if (!t->name || !*t->name)
            return bad(c, o, prefix, NULL, "name is missing", err, err_size);
        if (!!t->token + !!t->token_file + !!t->cn != 1)
            return bad(c, o, prefix, t->name, "needs one of token, token_file, cn", err, err_size);
        if (t->token && strlen(t->token) < 16)
            return bad(c, o, prefix, t->name, "token must have at least 16 characters", err, err_size);
        r = check_members(c, o, prefix, m, ARRAY_SIZE(m), err, err_size);
    }
    return r;
}

static int check_store_options(struct srv_config *c, char *err, size_t err_size)
{
    const struct text_store *t = &c->text->v->store;

    c->store_opts = calloc(t->options_count + 1, sizeof *c->store_opts);
    if (!c->store_opts)
        return -ENOMEM;
    for (unsigned i = 0; i < t->options_count; i++) {
        char *copy = strdup(t->options[i]), *eq = copy ? strchr(copy, '=') : NULL;
        if (!eq || eq == copy) {
            free(copy);
            return bad(c, row("store-option"), "store.options", t->options[i], "must be KEY=VALUE", err, err_size);
        }
        *eq = 0;
        c->store_opts[c->nstore_opts++] = (struct pst_option){copy, eq + 1};
    }
    return 0;
}

static int check_addr(struct srv_config *c, const char *flag, const char *addr, bool sockets_only, char *err,
                      size_t err_size)
{
    const struct option_row *o = row(flag);
    char host[SRV_HOST_MAX];
    uint16_t port;

    if (srv_parse_addr(addr, host, &port) < 0 || (sockets_only && !strncmp(host, "unix:", 5)))
        return bad(c, o, o->key, addr, sockets_only ? "must be HOST:PORT" : "must be HOST:PORT or unix:/path", err,
                   err_size);
    return 0;
}

static bool is_wildcard(const char *addr)
{
    char host[SRV_HOST_MAX];
    uint16_t port;
    return srv_parse_addr(addr, host, &port) == 0 && (!strcmp(host, "0.0.0.0") || !strcmp(host, "::"));
}

static int check_control(struct srv_config *c, char *err, size_t err_size)
{
    struct text_control *t = &c->text->v->control;
    int r;

    if (t->listen_count == 0 && add_string(&t->listen, &t->listen_count, SRV_CONTROL_LISTEN) < 0)
        return -ENOMEM;
    c->control_listen = t->listen;
    c->ncontrol_listen = t->listen_count;
    if ((c->tls_ca || c->tls_cert || c->tls_key) && !(c->tls_ca && c->tls_cert && c->tls_key))
        return bad(c, NULL, "control.tls", NULL, "needs all of ca, cert and key", err, err_size);
    for (unsigned i = 0; i < c->ncontrol_listen; i++) {
        r = check_addr(c, "listen", c->control_listen[i], false, err, err_size);
        if (r < 0)
            return r;
        if (!srv_addr_is_local(c->control_listen[i]) && !c->tls_cert && !c->insecure)
            return bad(c, row("listen"), "control.listen", c->control_listen[i],
                       "off loopback needs control.tls (penstock tls init makes it), or control.insecure: true", err,
                       err_size);
    }
    return 0;
}

/* The data address, where none is given: the host of the first control address that has one. */
static int default_data_listen(struct srv_config *c)
{
    char host[SRV_HOST_MAX] = "127.0.0.1", addr[SRV_HOST_MAX + 8];
    uint16_t port;

    for (unsigned i = 0; i < c->ncontrol_listen; i++)
        if (strncmp(c->control_listen[i], "unix:", 5) != 0) {
            srv_parse_addr(c->control_listen[i], host, &port);
            break;
        }
    snprintf(addr, sizeof addr, strchr(host, ':') ? "[%s]:0" : "%s:0", host);
    if (set_string(&c->text->v->data.listen, addr) < 0)
        return -ENOMEM;
    c->data_listen = c->text->v->data.listen;
    return 0;
}

static int check_data(struct srv_config *c, char *err, size_t err_size)
{
    const char *security = c->text->v->data.security;
    int r;

    c->data_clear = security && !strcmp(security, "clear");
    if (security && !c->data_clear)
        return bad(c, row("data-security"), "data.security", security,
                   "the only value is clear: file bytes are not encrypted on the data connections", err, err_size);
    r = c->data_listen ? check_addr(c, "data-listen", c->data_listen, true, err, err_size) : default_data_listen(c);
    if (r < 0)
        return r;
    if (!srv_addr_is_local(c->data_listen) && !c->data_clear)
        return bad(c, row("data-listen"), "data.listen", c->data_listen,
                   "off loopback file bytes cross the network in clear text: set data.security: clear "
                   "(--data-security clear) if that is meant, or data.listen: 127.0.0.1:0",
                   err, err_size);
    if (is_wildcard(c->data_listen) && !c->data_advertise)
        return bad(c, row("data-listen"), "data.listen", c->data_listen,
                   "clients cannot connect to a wildcard: name an address, or set data.advertise", err, err_size);
    if (c->data_buffer_memory < 4 * c->data_buffer_bytes)
        return bad(c, row("buffer-memory"), "data.buffer_memory", c->text->v->data.buffer_memory,
                   "must be at least four times data.buffer_size", err, err_size);
    return 0;
}

static uint64_t default_shards(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return max_u64(1, min_u64((uint64_t)n / 2, SRV_SHARDS_MAX));
}

static bool has_local_address(const struct srv_config *c)
{
    for (unsigned i = 0; i < c->ncontrol_listen; i++)
        if (srv_addr_is_local(c->control_listen[i]))
            return true;
    return false;
}

static int check_rest(struct srv_config *c, char *err, size_t err_size)
{
    const struct text_values *v = c->text->v;

    if (!c->store_url)
        return bad(c, NULL, "store.url", NULL, "is missing: local:/DIRECTORY (or use penstock serve --dev DIRECTORY)",
                   err, err_size);
    if (c->ncredentials == 0 && !(c->local_token && has_local_address(c)))
        return bad(c, NULL, "credentials", NULL, "are missing: nobody could connect", err, err_size);
    c->metrics_listen = c->metrics_listen ? c->metrics_listen : SRV_METRICS_LISTEN;
    if (!strcmp(c->metrics_listen, "off"))
        c->metrics_listen = NULL;
    else if (check_addr(c, "metrics", c->metrics_listen, true, err, err_size) < 0)
        return -EINVAL;
    if (v->log && log_level_parse(v->log, &c->log) < 0)
        return bad(c, row("log"), "log", v->log, "must be error, warn, info or debug", err, err_size);
    return 0;
}

int srv_config_finish(struct srv_config *c, char *err, size_t err_size)
{
    static int (*const checks[])(struct srv_config *, char *, size_t) = {
        check_store_options, check_pools, check_credentials, check_control, check_data, check_rest};
    int r = 0;

    c->lease_ms = SRV_LEASE_MS;
    c->drain_ms = SRV_DRAIN_MS;
    c->max_sessions = SRV_SESSIONS;
    c->max_connections = SRV_CONNECTIONS;
    c->data_spin_us = SRV_SPIN_US;
    c->data_buffer_bytes = SRV_BUFFER_BYTES;
    c->data_buffer_memory = SRV_BUFFER_MEMORY;
    c->data_shards = default_shards();
    c->log = LOG_LVL_INFO;
    c->local_token = true;
    c->filters = c->text->v->filters;
    c->nfilters = c->text->v->filters_count;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(rows); i++)
        r = check_row(c, &rows[i], err, err_size);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(checks); i++)
        r = checks[i](c, err, err_size);
    if (r == -ENOMEM)
        snprintf(err, err_size, "out of memory");
    return r;
}

void srv_config_describe(const struct srv_config *c, void (*fn)(void *user, const char *key, const char *value),
                         void *user)
{
    const struct text_values *v = c->text->v;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        char *const *at = (char *const *)((const char *)v + rows[i].text);
        char **list = (char **)*at;
        if (rows[i].kind < K_LIST && *at)
            fn(user, rows[i].key, *at);
        for (unsigned k = 0; rows[i].kind == K_LIST && k < *(const unsigned *)(at + 1); k++)
            fn(user, rows[i].key, list[k]);
    }
    for (unsigned i = 0; i < v->pools_count; i++)
        fn(user, "pools.label", v->pools[i].label ? v->pools[i].label : "");
    for (unsigned i = 0; i < v->credentials_count; i++) /* names only: tokens are secrets */
        fn(user, "credentials.name", v->credentials[i].name ? v->credentials[i].name : "");
}
