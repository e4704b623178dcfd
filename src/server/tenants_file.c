/*
 * tenants_file: what administrators made and set at run time. A line each of
 *
 *   +NAME id HEX          a tenant that was made, of this life; then its settings: +NAME KEY VALUE
 *   @NAME tenant NAME     a credential that was made; then its settings: @NAME KEY VALUE; of a token its SHA-256:
 *                         @NAME token_hash HEX
 *   NAME KEY VALUE        a limit that was set, of a tenant of the configuration or a made one
 *
 * What it has of a tenant that is not there stays in it, without effect (asleep.c).
 *
 * A line that is not as it should be ends the start: nobody is to run without the limits that he has set.
 */
#include "data.h"
#include "made.h"

#include "base/err.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define FILE_MAX (16u << 20)

/* ---- writing ---- */

struct writing {
    FILE *f;
    char mark[2]; /* "", "+" or "@" */
    const char *name;
};

static void put(void *arg, const char *key, const char *value)
{
    struct writing *w = arg;
    fprintf(w->f, "%s%s %s %s\n", w->mark, w->name, key, value);
}

static void put_hex(struct writing *w, const char *key, const uint8_t *bytes, size_t n)
{
    char text[65] = "";

    for (size_t i = 0; i < n && 2 * i + 2 < sizeof text; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    put(w, key, text);
}

static void put_cred(FILE *f, const struct made_cred *c)
{
    struct writing w = {f, "@", c->text.name};

    made_cred_each(&c->text, put, &w);
    if (!c->text.cn)
        put_hex(&w, "token_hash", c->token_hash, sizeof c->token_hash);
}

static void put_limit(void *arg, const char *name, const char *key, const char *value)
{
    struct writing w = {arg, "", name};
    put(&w, key, value);
}

static int write_all(struct srv *srv, FILE *f)
{
    fprintf(f,
            "# What was made and set at run time (penstock tenant, penstock credential), beside the configuration.\n");
    srv_each_tenant(srv, t) {
        struct writing w = {f, "+", t->cfg->name};
        if (!t->made || t->gone)
            continue;
        put_hex(&w, "id", t->made->life, sizeof t->made->life);
        made_tenant_each(&t->made->text, put, &w);
    }
    list_for_each (it, &srv->creds)
        put_cred(f, list_entry(it, struct made_cred, link));
    list_for_each (it, &srv->asleep)
        put_cred(f, list_entry(it, struct made_cred, link));
    srv_each_tenant(srv, t) {
        struct writing w = {f, "", t->cfg->name};
        if (!t->gone)
            limits_each_set(t, put, &w);
    }
    asleep_limits_each(srv, put_limit, f);
    if (fflush(f) || fsync(fileno(f)))
        return -errno;
    return ferror(f) ? -EIO : 0;
}

int tenants_file_save(struct srv *srv)
{
    const char *path = srv->cfg->tenants_file, *slash = strrchr(path, '/');
    cleanup_free char *dir = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    cleanup_free char *tmp = NULL;
    cleanup_close int dirfd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    FILE *f;
    int fd, r;

    if (dirfd < 0) /* told before anything has changed */
        return -errno;
    if (asprintf(&tmp, "%s.new", path) < 0) {
        tmp = NULL;
        return -ENOMEM;
    }
    unlink(tmp); /* of a crash: with the rights that it has */
    fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!f) {
        r = -errno;
        if (fd >= 0)
            close(fd);
        return r;
    }
    r = write_all(srv, f);
    if (fclose(f) && r == 0)
        r = -errno;
    if (r == 0 && rename(tmp, path) < 0)
        r = -errno;
    if (r == 0 && fsync(dirfd) < 0)
        r = -errno;
    if (r < 0)
        unlink(tmp);
    return r;
}

int tenants_file_keep(struct srv *srv, char *err, size_t err_size)
{
    int r = srv->cfg->tenants_file ? tenants_file_save(srv) : 0;

    if (r < 0)
        snprintf(err, err_size, "%s cannot be written (tenants_file): %s", srv->cfg->tenants_file, err_text(r));
    return r;
}

/* ---- reading ---- */

static bool from_hex(const char *s, uint8_t *ret, size_t n)
{
    unsigned v;

    if (strlen(s) != 2 * n)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!isxdigit((unsigned char)s[2 * i]) || !isxdigit((unsigned char)s[2 * i + 1]) ||
            sscanf(s + 2 * i, "%2x", &v) != 1)
            return false;
        ret[i] = (uint8_t)v;
    }
    return true;
}

static bool is_configured(const struct srv *srv, const char *name)
{
    for (unsigned i = 1; i < srv->cfg->ntenants; i++)
        if (!strcmp(srv->cfg->tenants[i].name, name))
            return true;
    return false;
}

static int take_tenant(struct srv *srv, const char *name, const char *key, const char *value, char *err,
                       size_t err_size)
{
    struct tenant *t = srv_tenant_find(srv, name);
    struct made_tenant *m = t ? t->made : NULL;
    int r;

    if (is_configured(srv, name)) {
        snprintf(err, err_size,
                 "tenant \"%s\" is in the configuration (tenants), but was also created at run time: take it out of "
                 "the configuration, or its lines, which begin with +%s, out of this file",
                 name, name);
        return -EEXIST;
    }
    if (t && !m) {
        snprintf(err, err_size, "tenant \"%s\" is the server's own", name);
        return -EINVAL;
    }
    if (t)
        return made_tenant_key(&m->text, key, value, err, err_size);
    if (strcmp(key, "id"))
        return -EINVAL;
    r = made_tenant_new(name, &m);
    if (r < 0)
        return r;
    if (!from_hex(value, m->life, sizeof m->life)) {
        made_tenant_free(m);
        return -EINVAL;
    }
    r = srv_tenant_new(srv, m, &t, err, err_size);
    if (r == 0)
        srv_tenant_enter(t);
    return r;
}

static int take_cred(struct srv *srv, const char *name, const char *key, const char *value, char *err, size_t err_size)
{
    struct made_cred *c = made_cred_find(srv, name);
    int r;

    if (c && !strcmp(key, "token_hash"))
        return from_hex(value, c->token_hash, sizeof c->token_hash) ? 0 : -EINVAL;
    if (c)
        return made_cred_key(&c->text, key, value, err, err_size);
    if (strcmp(key, "tenant"))
        return -EINVAL;
    if (made_cred_configured(srv, name)) {
        snprintf(err, err_size,
                 "credential \"%s\" is in the configuration (credentials), but was also created at run time: take it "
                 "out of the configuration, or its lines, which begin with @%s, out of this file",
                 name, name);
        return -EEXIST;
    }
    r = srv->ncreds < MADE_CREDS_MAX ? made_cred_new(name, &c) : -EINVAL;
    if (r < 0)
        return r;
    list_push_back(&srv->creds, &c->link);
    srv->ncreds++;
    return made_cred_key(&c->text, key, value, err, err_size);
}

static int take_limit(struct srv *srv, const char *name, const char *key, const char *value, unsigned n)
{
    struct tenant *t = srv_tenant_find(srv, name);

    if (t && t->id)
        return limits_take(t, key, value);
    if (!limits_is_key(key))
        return -EINVAL;
    log_warn("%s: line %u: no tenant \"%s\" in the configuration: its %s is kept, and holds when it is back",
             srv->cfg->tenants_file, n, name, key);
    return asleep_limit(srv, name, key, value);
}

static int take_line(struct srv *srv, char *line, unsigned n, char *err, size_t err_size)
{
    size_t len = strcspn(line, "\n");
    char *key, *value, why[300] = "not a line of it";
    int r = -EINVAL;

    line[len] = 0;
    if (!*line || *line == '#')
        return 0;
    key = strchr(line, ' ');
    value = key ? strchr(key + 1, ' ') : NULL;
    if (value && value > key + 1) {
        *key++ = 0;
        *value++ = 0;
        r = *line == '+'   ? take_tenant(srv, line + 1, key, value, why, sizeof why)
            : *line == '@' ? take_cred(srv, line + 1, key, value, why, sizeof why)
                           : take_limit(srv, line, key, value, n);
    }
    if (r < 0)
        snprintf(err, err_size, "%s: line %u: %s (tenants_file)", srv->cfg->tenants_file, n,
                 r == -ENOMEM ? "out of memory" : why);
    return r;
}

static int read_file(struct srv *srv, char *err, size_t err_size)
{
    const char *path = srv->cfg->tenants_file, *why = NULL;
    cleanup_free char *line = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO is refused, not waited for */
    FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
    struct stat st;
    size_t size = 0;
    unsigned n = 0;
    int r = 0;

    if (!f && errno == ENOENT)
        return 0;
    if (!f) {
        r = -errno;
        why = err_text(r);
    } else if (fstat(fileno(f), &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > FILE_MAX) {
        r = -EINVAL;
        why = "not a file of limits and tenants";
    } else if (st.st_mode & 022) { /* who writes it lets in whom he wants */
        r = -EPERM;
        why = "may be written by others: chmod 600 it";
    }
    while (r == 0 && getline(&line, &size, f) >= 0)
        r = take_line(srv, line, ++n, err, err_size);
    if (r == 0 && ferror(f)) {
        r = -EIO;
        why = err_text(r);
    }
    if (why)
        snprintf(err, err_size, "%s (tenants_file): %s", path, why);
    if (f)
        fclose(f);
    return r;
}

/* Of two tenants: only by hand can that come about. */
static int check_ids(struct srv *srv, char *err, size_t err_size)
{
    srv_each_tenant(srv, t)
        srv_each_tenant(srv, x)
            if (t != x && t->made && x->made && !memcmp(t->made->life, x->made->life, sizeof t->made->life)) {
                snprintf(err, err_size, "tenants \"%s\" and \"%s\" have the same id", t->cfg->name, x->cfg->name);
                return -EEXIST;
            }
    return 0;
}

/* What is wrong with all lines of one together. */
static int check_all(struct srv *srv, char *err, size_t err_size)
{
    char why[300] = "out of memory";
    int r = 0;

    srv_each_tenant(srv, t)
        if (r == 0 && t->made)
            r = made_tenant_check(srv->cfg, t->made, why, sizeof why);
    list_for_each_safe (it, &srv->creds) {
        struct made_cred *c = list_entry(it, struct made_cred, link);
        const struct tenant *t = srv_tenant_find(srv, c->text.tenant);
        static const uint8_t none[sizeof c->token_hash];
        if (r == 0)
            r = made_cred_check(srv->cfg, c, memcmp(c->token_hash, none, sizeof none) != 0, why, sizeof why);
        if (r == 0 && t && t->id) {
            c->cfg.tenant = t->id;
        } else if (r == 0) {
            log_warn("%s: credential %s is of tenant \"%s\", which is not in the configuration: it is kept, and lets "
                     "nobody in until that is back",
                     srv->cfg->tenants_file, c->text.name, c->text.tenant);
            list_del(&c->link);
            srv->ncreds--;
            list_push_back(&srv->asleep, &c->link);
        }
    }
    if (r == 0)
        r = check_ids(srv, why, sizeof why);
    if (r < 0)
        snprintf(err, err_size, "%s (tenants_file): %s", srv->cfg->tenants_file, why);
    return r;
}

int tenants_file_load(struct srv *srv, char *err, size_t err_size)
{
    int r = srv->cfg->tenants_file ? read_file(srv, err, err_size) : 0;
    return r < 0 || !srv->cfg->tenants_file ? r : check_all(srv, err, err_size);
}
