/*
 * The control server alone, over a store, for tests from outside.
 *
 *   ctl_server STORE-URL [--filter SPEC] [--tls CA,CERT,KEY | --plain] --listen ADDR ... [--insecure]
 *              [--cred name=N,token=T,cert,uid=U,gid=G,any,admin] [--no-local] [--lease-ms N] [--ticket-ms N]
 * [--max-calls N] ctl_server --tls-init DIR CLIENT [SERVER-NAME ...]
 *
 * Prints "port N" for each address and "ready". Then it answers commands on its standard input, as the data plane would
 * use the server, and stops at its end:
 *   ticket HEX SHARD     redeems a ticket: "ok SESSION-HEX CLIENT-HEX" or "err NAME"
 *   cap HEX              verifies a capability for the session of the last ticket: "ok INO RIGHTS"
 *   use INO RIGHTS OFFSET LENGTH   checks a request under the last capability: "ok"
 *   refused REASON       "ok COUNT"
 */
#include "control/service.h"
#include "control/tls.h"
#include "filter/filter.h"
#include "local/local_store.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define LISTEN_MAX 8
#define CREDS_MAX  8

struct options {
    struct ctl_config cfg;
    struct ctl_listen listen[LISTEN_MAX];
    struct ctl_cred creds[CREDS_MAX];
    struct rpc_tls tls[LISTEN_MAX];
    const char *filters[4];
    unsigned nfilters;
};

static struct sess *sess;
static struct sess_cont *cont;
static struct cap_grant grant;
static uint64_t generation;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void add_cred(struct options *o, char *text)
{
    struct ctl_cred *c = &o->creds[o->cfg.ncreds++];
    for (char *save, *part = strtok_r(text, ",", &save); part; part = strtok_r(NULL, ",", &save)) {
        char *value = strchr(part, '=');
        if (value)
            *value++ = 0;
        if (!strcmp(part, "name") && value)
            snprintf(c->name, sizeof c->name, "%s", value);
        else if (!strcmp(part, "token") && value)
            c->by_token = !token_hash(value, c->token_hash);
        else if (!strcmp(part, "uid") && value)
            c->uid = (uint32_t)atoi(value);
        else if (!strcmp(part, "gid") && value)
            c->gid = (uint32_t)atoi(value);
        else if (!strcmp(part, "cert"))
            c->by_cert = true;
        else if (!strcmp(part, "any"))
            c->any_uid = true;
        else if (!strcmp(part, "admin"))
            c->admin = true;
        else
            die(part, "unknown in --cred");
    }
}

static void set_tls(struct rpc_tls *t, char *text)
{
    char *save;
    t->ca_file = strtok_r(text, ",", &save);
    t->cert_file = strtok_r(NULL, ",", &save);
    t->key_file = strtok_r(NULL, ",", &save);
}

static void parse(int argc, char **argv, struct options *o)
{
    const struct rpc_tls *tls = NULL;
    unsigned ntls = 0;

    o->cfg.local_token = true;
    for (int i = 2; i < argc; i++) {
        const char *a = argv[i];
        char *v = argv[i + 1];
        if (!strcmp(a, "--no-local")) {
            o->cfg.local_token = false;
        } else if (!strcmp(a, "--plain")) {
            tls = NULL;
        } else if (!strcmp(a, "--insecure")) {
            o->listen[o->cfg.nlisten - 1].insecure = true;
        } else if (!v) {
            die(a, "unknown, or without its value");
        } else if (!strcmp(a, "--listen")) {
            o->listen[o->cfg.nlisten++] = (struct ctl_listen){v, tls, false};
            i++;
        } else if (!strcmp(a, "--tls")) {
            set_tls(&o->tls[ntls], v);
            tls = &o->tls[ntls++];
            i++;
        } else if (!strcmp(a, "--cred")) {
            add_cred(o, v);
            i++;
        } else if (!strcmp(a, "--filter")) {
            o->filters[o->nfilters++] = v;
            i++;
        } else if (!strcmp(a, "--lease-ms")) {
            o->cfg.limits.lease_ns = (uint64_t)atoi(v) * NSEC_PER_MSEC;
            i++;
        } else if (!strcmp(a, "--ticket-ms")) {
            o->cfg.limits.ticket_ns = (uint64_t)atoi(v) * NSEC_PER_MSEC;
            i++;
        } else if (!strcmp(a, "--max-calls")) {
            o->cfg.max_calls = (uint32_t)atoi(v);
            i++;
        } else {
            die(a, "unknown");
        }
    }
    o->cfg.listen = o->listen;
    o->cfg.creds = o->creds;
}

static size_t from_hex(const char *text, uint8_t *ret, size_t max)
{
    size_t n = 0;
    unsigned v;
    while (n < max && sscanf(text + 2 * n, "%2x", &v) == 1)
        ret[n++] = (uint8_t)v;
    return n;
}

static void print_hex(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        printf("%02x", p[i]);
}

static void answer(int r)
{
    if (r)
        printf("err %s\n", errs_name(r));
}

static void do_ticket(struct ctl_server *s, const char *hex, uint32_t shard)
{
    uint8_t b[64];
    struct sess *got;
    size_t n = from_hex(hex, b, sizeof b);
    int r = ctl_ticket_use(s, b, n, shard, &got);

    answer(r);
    if (r)
        return;
    sess_put(sess);
    sess = got;
    printf("ok ");
    print_hex(sess_id(sess), SESS_ID_BYTES);
    printf(" ");
    print_hex(sess_ident(sess)->client, 16);
    printf("\n");
}

static void do_cap(struct ctl_server *s, const char *hex)
{
    uint8_t b[CAP_BYTES_MAX + 1];
    struct sess_cont *got;
    size_t n = from_hex(hex, b, sizeof b);
    uint64_t gen = ctl_generation(s);
    int r = sess ? ctl_cap_verify(s, sess, b, n, &grant, &got) : -EINVAL;

    answer(r);
    if (r)
        return;
    sess_cont_put(cont);
    cont = got;
    generation = gen;
    printf("ok %llu %u\n", (unsigned long long)grant.ino, grant.rights);
}

static void do_use(struct ctl_server *s, uint64_t ino, uint32_t rights, uint64_t offset, uint64_t length)
{
    uint64_t now = ctl_generation(s);
    int r = now != generation && !ctl_cap_alive(s, &grant) ? -EKEYREVOKED
                                                           : ctl_cap_check(s, &grant, ino, rights, offset, length);
    generation = now;
    answer(r);
    if (!r)
        printf("ok\n");
}

static const char *reason;
static double reason_count;

static void find_reason(void *user, const char *name, const char *labels, const char *help, bool counter, double value)
{
    char want[64];
    (void)user, (void)help, (void)counter;
    snprintf(want, sizeof want, "reason=\"%s\"", reason);
    if (!strcmp(name, "penstock_refused_total") && !strcmp(labels, want))
        reason_count = value;
}

static void command(struct ctl_server *s, char *line)
{
    unsigned long long a, c, d;
    unsigned b;
    char word[2100];

    if (sscanf(line, "ticket %2099s %u", word, &b) == 2) {
        do_ticket(s, word, b);
    } else if (sscanf(line, "cap %2099s", word) == 1) {
        do_cap(s, word);
    } else if (sscanf(line, "use %llu %u %llu %llu", &a, &b, &c, &d) == 4) {
        do_use(s, a, b, c, d);
    } else if (sscanf(line, "refused %63s", word) == 1) {
        reason = word;
        reason_count = -1;
        ctl_metrics(s, CTL_ALL, find_reason, NULL);
        printf("ok %.0f\n", reason_count);
    } else {
        printf("err EINVAL\n");
    }
    fflush(stdout);
}

static int init_tls(int argc, char **argv)
{
    char err[300];
    const struct tls_init o = {.client_name = argc > 3 ? argv[3] : NULL,
                               .server_names = (const char *const *)(argv + 4),
                               .nserver_names = argc > 4 ? (size_t)argc - 4 : 0};
    if (tls_init(argv[2], &o, err, sizeof err))
        die("tls-init", err);
    return 0;
}

int main(int argc, char **argv)
{
    static struct options o;
    struct ctl_endpoint ep = {.provider = "tcp", .addr_len = sizeof(struct sockaddr_in), .text = "127.0.0.1:4712"};
    struct ctl_tenant tenant = {.name = "default", .endpoints = &ep, .nendpoints = 1};
    struct sockaddr_in *sin = (struct sockaddr_in *)&ep.addr;
    struct pst_store *st;
    struct ctl_server *s;
    char err[300] = "", line[4096];
    sigset_t block;

    if (argc >= 3 && !strcmp(argv[1], "--tls-init"))
        return init_tls(argc, argv);
    if (argc < 2)
        die("usage", "see the top of ctl_server_main.c");
    sigemptyset(&block);
    sigaddset(&block, SIGPIPE);
    sigprocmask(SIG_BLOCK, &block, NULL);
    parse(argc, argv, &o);
    pst_backend_register(&pst_local_backend);
    if (pst_backend_open(argv[1], &(struct pst_option){"create", "1"}, 1, &st, err, sizeof err))
        die(argv[1], err);
    for (unsigned i = 0; i < o.nfilters; i++)
        if (filter_push(o.filters[i], st, &st, err, sizeof err))
            die(o.filters[i], err);
    sin->sin_family = AF_INET;
    sin->sin_port = htons(4712);
    sin->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    tenant.st = st;
    o.cfg.tenants = &tenant;
    o.cfg.ntenants = 1;
    if (ctl_server_start(&o.cfg, &s, err, sizeof err))
        die("start", err);
    for (size_t i = 0; i < o.cfg.nlisten; i++)
        printf("port %d\n", ctl_server_port(s, i));
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin))
        command(s, line);
    ctl_server_stop(s, 1000);
    sess_cont_put(cont);
    sess_put(sess);
    ctl_server_free(s);
    pst_store_close(st);
    return 0;
}
