#include "raw_daemon.h"

#include "local/local_store.h"
#include "remote/remote_store.h"
#include "server/server.h"

#include <arpa/inet.h>
#include <ftw.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static char dir[] = "/tmp/test-raw-daemon-XXXXXX";
static struct srv_config *cfg;
static struct srv *srv;
static struct srv_config *behind_cfg;
static struct srv *behind_srv;
char addr[64], token[TOKEN_BYTES], behind_addr[64], behind_token[TOKEN_BYTES];
struct raw alice, bob;
struct raw_conn conn;
uint64_t ino;
struct cap whole;
const char *daemon_filter, *daemon_config, *daemon_agent_config, *daemon_cache, *daemon_agent_filters[3];
bool daemon_export, daemon_agent, daemon_third;
char export_path[100], behind_file[100], behind_setting[120];
#define PAGE_TOKEN "token-of-the-metrics-page"
static char token_path[100];

static void set_flag(const char *name, const char *value)
{
    char err[300];
    if (srv_config_flag(cfg, name, value, err, sizeof err) < 0)
        fail_msg("%s", err);
}

static int load_config(const char *text)
{
    char path[100], err[400];
    FILE *f;

    snprintf(path, sizeof path, "%s/penstock.yaml", dir);
    f = fopen(path, "w");
    if (!f)
        return -1;
    fputs(text, f);
    fclose(f);
    if (srv_config_load(cfg, path, err, sizeof err) == 0)
        return 0;
    fprintf(stderr, "%s\n", err);
    return -1;
}

/* Where there are tenants the metrics page tells of them only to who has its token. */
static int page_token(void)
{
    FILE *f;

    snprintf(token_path, sizeof token_path, "%s/page.token", dir);
    f = fopen(token_path, "w");
    if (!f || fchmod(fileno(f), 0600) < 0)
        return -1;
    fputs(PAGE_TOKEN, f);
    return fclose(f);
}

/* The daemon under test; or, as `behind`, the server behind it. */
static int start_one(const char *backend, struct srv **ret)
{
    const char *provider = getenv("PENSTOCK_TEST_PROVIDER");
    char err[600] = "", path[100];
    const char *config = backend && daemon_agent_config ? daemon_agent_config : daemon_config;
    bool behind = daemon_agent && !backend;

    cfg = srv_config_new();
    if (config && load_config(config) < 0)
        return -1;
    snprintf(path, sizeof path, "local:%s/store", dir);
    if (backend) {
        set_flag("role", "agent");
        set_flag("backend", backend);
        if (daemon_cache)
            set_flag("cache", daemon_cache);
    } else {
        set_flag("store", path);
        set_flag("store-option", "create=1");
        set_flag("container", "p/c");
    }
    set_flag("listen", behind && behind_addr[0] ? behind_addr : "127.0.0.1:0");
    set_flag("metrics", behind ? "off" : "127.0.0.1:0");
    if (page_token() == 0)
        set_flag("metrics-token-file", token_path);
    set_flag("shards", "1");
    set_flag("buffer-memory", "32M");
    set_flag("log", "error");
    set_flag("lease", "600s"); /* raw clients renew none, and a busy machine takes long for little */
    if (provider)
        set_flag("provider", provider);
    snprintf(export_path, sizeof export_path, "%s/export.sock", dir);
    if (daemon_export && !behind) {
        set_flag("export-listen", export_path);
        set_flag("export-memory", "64M");
    }
    if (daemon_third && backend)
        set_flag("third-party", NULL);
    if (daemon_filter)
        set_flag("filter", daemon_filter);
    for (size_t i = 0; backend && i < 3 && daemon_agent_filters[i]; i++)
        set_flag("filter", daemon_agent_filters[i]);
    if (srv_config_finish(cfg, err, sizeof err) < 0 || srv_start(cfg, ret, err, sizeof err) < 0) {
        fprintf(stderr, "%s\n", err);
        return -1;
    }
    return 0;
}

int start_daemon(void **state)
{
    char path[100];
    sigset_t all;
    (void)state;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    pst_backend_register(&pst_local_backend);
    pst_backend_register(&pst_remote_backend);
    if (!mkdtemp(dir))
        return -1;
    setenv("PENSTOCK_RUN_DIR", dir, 1);
    snprintf(path, sizeof path, "%s/store", dir);
    if (mkdir(path, 0700) < 0 || start_one(NULL, &srv) < 0)
        return -1;
    if (daemon_agent) {
        behind_srv = srv;
        behind_cfg = cfg;
        snprintf(behind_addr, sizeof behind_addr, "127.0.0.1:%d", srv_control_port(behind_srv, 0));
        if (token_find(behind_addr, behind_token) < 0)
            return -1;
        snprintf(behind_file, sizeof behind_file, "%s/%d.token", dir, srv_control_port(behind_srv, 0));
        snprintf(behind_setting, sizeof behind_setting, "backend_token_file=%s", behind_file);
        snprintf(path, sizeof path, "penstock://%s", behind_addr);
        if (start_one(path, &srv) < 0)
            return -1;
    }
    snprintf(addr, sizeof addr, "127.0.0.1:%d", srv_control_port(srv, 0));
    if (token_find(addr, token) < 0 || raw_open(&alice, addr, token, "p", "c") < 0 ||
        raw_open(&bob, addr, token, "p", "c") < 0)
        return -1;
    return raw_create(&alice, "file", &ino, &whole);
}

int restart_behind(void)
{
    struct srv_config *agents = cfg;
    int r;

    srv_stop(behind_srv);
    srv_config_free(behind_cfg);
    r = start_one(NULL, &behind_srv);
    behind_cfg = cfg;
    cfg = agents;
    return r;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

int stop_daemon(void **state)
{
    (void)state;
    raw_close(&alice);
    raw_close(&bob);
    srv_stop(srv);
    srv_config_free(cfg);
    if (daemon_agent)
        srv_stop(behind_srv);
    srv_config_free(behind_cfg);
    return nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

double metric(const char *name)
{
    char page[256 * 1024], key[120], *at;
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)srv_metrics_port(srv)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static const char get[] = "GET /metrics HTTP/1.0\r\nAuthorization: Bearer " PAGE_TOKEN "\r\n\r\n";
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    size_t n = 0;
    ssize_t k;

    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    assert_int_equal(write(fd, get, sizeof get - 1), sizeof get - 1);
    while (n < sizeof page - 1 && (k = read(fd, page + n, sizeof page - 1 - n)) > 0)
        n += (size_t)k;
    close(fd);
    page[n] = 0;
    snprintf(key, sizeof key, "\n%s ", name);
    at = strstr(page, key);
    if (!at)
        fail_msg("no metric %s", name);
    return strtod(at + strlen(key), NULL);
}

double refused(const char *reason)
{
    char name[120];
    snprintf(name, sizeof name, "penstock_refused_total{reason=\"%s\"}", reason);
    return metric(name);
}

double bytes_moved(void)
{
    return metric("penstock_data_bytes_in_total") + metric("penstock_data_bytes_out_total");
}

int set_up(void **state)
{
    struct dp_request w;
    (void)state;

    if (raw_connect_new(&alice, &conn) < 0 || raw_bind(&conn, 0, &whole) < 0)
        return -1;
    memset(conn.mem, 'f', FILE_BYTES);
    w = raw_io(&conn, DP_WRITE, 0, ino, 0, FILE_BYTES, 0);
    if (raw_call(&conn, &w) < 0)
        return -1;
    memset(conn.mem, 'm', RAW_MEM);
    return 0;
}

int tear_down(void **state)
{
    (void)state;
    raw_disconnect(&conn);
    return 0;
}

bool all(const uint8_t *p, size_t n, uint8_t c)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != c)
            return false;
    return true;
}

void assert_nothing_moved(void)
{
    struct raw_conn k;
    struct dp_request r;

    assert_true(all(conn.mem, RAW_MEM, 'm'));
    assert_int_equal(raw_connect_new(&alice, &k), 0);
    assert_int_equal(raw_bind(&k, 0, &whole), 0);
    r = raw_io(&k, DP_READ, 0, ino, 0, FILE_BYTES + 4096, 0);
    assert_int_equal(raw_call(&k, &r), 0);
    assert_int_equal(k.reply.result, FILE_BYTES);
    assert_true(all(k.mem, FILE_BYTES, 'f'));
    raw_disconnect(&k);
}
