/* Errors, URLs, connecting. */
#include "cli.h"

#include "base/err.h"
#include "control/rpc.h"
#include "store/perm.h"
#include "store/store.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

/* One line, whatever is in it: names of files may have newlines. */
static void print_line(const char *text)
{
    char line[1200];
    size_t n = 0;

    for (; *text && n < sizeof line - 1; text++)
        line[n++] = *text == '\n' || *text == '\r' ? ' ' : *text;
    line[n] = 0;
    fprintf(stderr, "penstock%s%s: %s\n", strcmp(cli_name, "penstock") ? " " : "",
            strcmp(cli_name, "penstock") ? cli_name : "", line);
}

void cli_error(const char *fmt, ...)
{
    char text[1200];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    print_line(text);
}

int cli_exit_code(int err)
{
    switch (err < 0 ? -err : err) {
    case 0:
        return EXIT_OK;
    case ECONNREFUSED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ETIMEDOUT:
    case ENOTCONN:
    case ECONNRESET:
    case EADDRNOTAVAIL:
    case EPROTO:
        return EXIT_CONNECT;
    case ENOENT:
        return EXIT_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EKEYREVOKED:
    case EKEYEXPIRED:
        return EXIT_REFUSED;
    default:
        return EXIT_FAILED;
    }
}

int cli_fail(int err, const char *fmt, ...)
{
    char text[1000];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cli_error("%s: %s (%s)", text, err_text(err), err_name(err));
    return cli_exit_code(err);
}

int cli_fail_pst(int err, const char *what)
{
    const char *text = pst_last_error();
    size_t call = strncmp(text, "pst_", 4) ? 0 : strcspn(text, " :");

    /* "pst_open /x: reason", "pst_read: reason": a call's name says nothing to who typed a command. */
    if (!*text)
        cli_error("%s: %s (%s)", what, err_text(err), err_name(err));
    else if (text[call] == ':')
        cli_error("%s%s", what, text + call);
    else
        cli_error("%s", text + call + (call > 0));
    return cli_exit_code(err);
}

/* ---- URLs ---- */

bool cli_is_url(const char *s)
{
    return !strncmp(s, "penstock://", 11) || !strncmp(s, "penstock+unix://", 16) || !strncmp(s, "local:", 6);
}

/* Takes the next name off "pool/container/path"; false: it is too long. */
static bool take_label(const char **rest, char *ret, size_t size)
{
    size_t n;

    *rest += strspn(*rest, "/");
    n = strcspn(*rest, "/");
    if (n >= size)
        return false;
    memcpy(ret, *rest, n);
    ret[n] = 0;
    *rest += n;
    return true;
}

static int split(const char *s, struct cli_url *u)
{
    bool net = !strncmp(s, "penstock://", 11), local = !strncmp(s, "local:", 6);
    size_t head = net ? 11 + strcspn(s + 11, "/") : strcspn(s, "?");
    const char *rest = s + head + (!net && s[head] == '?');
    size_t n;

    if (strlen(s) >= sizeof u->base - 300 || head >= sizeof u->server - 300)
        return -ENAMETOOLONG;
    memcpy(u->server, s, head);
    u->server[head] = 0;
    if (local && !s[head]) { /* the directory alone stands for the default container */
        strcpy(u->pool, "default");
        strcpy(u->container, "default");
    } else if (!take_label(&rest, u->pool, sizeof u->pool) || !take_label(&rest, u->container, sizeof u->container)) {
        return -ENAMETOOLONG;
    }
    rest += strspn(rest, "/");
    u->slash = *rest ? rest[strlen(rest) - 1] == '/' : rest > s && rest[-1] == '/' && u->container[0];
    n = strlen(rest);
    while (n > 0 && rest[n - 1] == '/')
        n--;
    snprintf(u->path, sizeof u->path, "/%.*s", (int)n, rest);
    if (local && !s[head])
        snprintf(u->base, sizeof u->base, "%s", u->server);
    else
        snprintf(u->base, sizeof u->base, "%s%c%s/%s", u->server, net ? '/' : '?', u->pool, u->container);
    return 0;
}

int cli_url_addr(const struct cli_url *u, char *ret, size_t size)
{
    const char *host = strstr(u->server, "//") + 2, *bracket = strchr(host, ']');
    bool net = !strncmp(u->server, "penstock://", 11), port = strchr(bracket ? bracket : host, ':') != NULL;
    int n = net ? snprintf(ret, size, "%s%s", host, port ? "" : ":7440") : snprintf(ret, size, "unix:%s", host);

    return n >= (int)size ? -ENAMETOOLONG : rpc_addr_port(ret) < 0 ? -EINVAL : 0;
}

/* What is wrong with the URL; NULL: nothing. */
static const char *fault(const struct cli_url *u, int parts, bool *ret_form)
{
    bool local = !strncmp(u->server, "local:", 6);
    char addr[sizeof u->server + 8];

    *ret_form = true;
    if (parts >= 1 && !u->pool[0])
        return "names no pool";
    if (parts >= 2 && !u->container[0])
        return "names no container";
    if (local && !u->server[6])
        return "names no directory";
    if (!local && cli_url_addr(u, addr, sizeof addr) < 0)
        return "does not name a host and port";
    *ret_form = false;
    if (!local && !strncmp(addr, "unix:", 5) && addr[5] != '/')
        return "does not name a socket: penstock+unix:///PATH?POOL/CONTAINER";
    if ((u->pool[0] && pst_label_check(u->pool)) || (u->container[0] && pst_label_check(u->container)))
        return "is not possible: names of pools and containers have 1 to 127 of A-Z a-z 0-9 . _ - and do not begin "
               "with a dot";
    return NULL;
}

int cli_url(const char *s, int parts, struct cli_url *ret)
{
    static const char *const want[] = {"", "/POOL", "/POOL/CONTAINER"},
                             *const want_local[] = {"", "?POOL", "?POOL/CONTAINER"};
    struct cli_url u = {.slash = false};
    bool form = true;
    const char *why;

    if (!cli_is_url(s))
        why = "is not a URL";
    else if (split(s, &u) < 0)
        why = "is too long";
    else
        why = fault(&u, parts, &form);
    if (why && form)
        cli_error("\"%.100s\" %s: it has the form penstock://HOST[:PORT]%s or local:/DIRECTORY%s", s, why, want[parts],
                  want_local[parts]);
    else if (why)
        cli_error("\"%.100s\" %s", s, why);
    else
        *ret = u;
    return why ? -EINVAL : 0;
}

int cli_add_filter(void *target, const char *name, const char *value, char *err, size_t err_size)
{
    struct cli_conn *k = target;
    size_t n = 0;

    while (k->filters[n])
        n++;
    if (n == CLI_FILTERS_MAX) {
        snprintf(err, err_size, "--%s: more than %d", name, CLI_FILTERS_MAX);
        return -E2BIG;
    }
    k->filters[n] = value;
    return 0;
}

int cli_connect_code(const struct cli_conn *k, int err)
{
    return err == -EINVAL && (k->filters[0] || getenv("PENSTOCK_FILTERS")) ? EXIT_USAGE : cli_exit_code(err);
}

void cli_conn_options(const struct cli_conn *k, struct pst_options *ret)
{
    pst_options_init(ret, sizeof *ret);
    ret->flags = (k->insecure ? PST_CONNECT_INSECURE : 0) | (k->require_rdma ? PST_CONNECT_REQUIRE_RDMA : 0);
    ret->purpose = "cli";
    ret->token_file = k->token_file;
    ret->ca_file = k->ca;
    ret->cert_file = k->cert;
    ret->key_file = k->key;
    ret->provider = k->provider;
    ret->store_options = k->store_options;
    ret->filters = k->filters[0] ? k->filters : NULL;
    ret->threads = (unsigned)min_u64(k->threads, 64);
    ret->depth = (unsigned)min_u64(k->depth, 1024);
    ret->timeout_ms = (unsigned)min_u64(k->timeout_ms, 3600000);
}

struct pst_fs *cli_connect(const struct cli_url *u, const struct cli_conn *k, unsigned flags, int *ret_exit)
{
    struct pst_options o;
    struct pst_fs *fs;
    int r;

    cli_conn_options(k, &o);
    o.flags |= flags;
    r = pst_connect(u->base, &o, &fs);
    if (r < 0) {
        cli_fail_pst(r, u->base);
        *ret_exit = cli_connect_code(k, r);
        return NULL;
    }
    return fs;
}

int cli_disconnect(struct pst_fs *fs, int code)
{
    int r = pst_disconnect(fs);
    return r < 0 && code == EXIT_OK ? cli_fail_pst(r, "closing") : code;
}

struct pst_store *cli_open_store(const struct cli_url *u, int *ret_exit)
{
    struct pst_store *st;
    char err[400] = "";
    int r = pst_backend_open(u->server, NULL, 0, &st, err, sizeof err);

    if (r == 0)
        return st;
    cli_error("%s", err);
    *ret_exit = cli_exit_code(r);
    return NULL;
}
