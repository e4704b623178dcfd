/* The daemon's configuration: good files give the right values, bad ones a message that names key, value and line. */
#include "server/config.h"

#include "base/parse.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static char dir[] = "/tmp/test-config-XXXXXX", path[64];

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/penstock.yaml", dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    rmdir(dir);
    return 0;
}

static void write_file(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* Loads text (NULL: no file) and flags ("name", "value", ..., NULL). */
static int load(const char *text, const char *const *flags, struct srv_config **ret, char *err, size_t size)
{
    struct srv_config *c = srv_config_new();
    int r = 0;

    err[0] = 0;
    if (text) {
        write_file(text);
        r = srv_config_load(c, path, err, size);
    }
    for (; r == 0 && flags && flags[0]; flags += 2)
        r = srv_config_flag(c, flags[0], flags[1], err, size);
    if (r == 0)
        r = srv_config_finish(c, err, size);
    if (r == 0 && ret)
        *ret = c;
    else
        srv_config_free(c);
    return r;
}

static const char minimal[] = "store:\n  url: local:/srv/p\ncredentials:\n  - name: a\n    token_file: /etc/t\n";

static void a_minimal_file_has_safe_defaults(void **state)
{
    struct srv_config *c = NULL;
    char err[400];
    (void)state;

    assert_int_equal(load(minimal, NULL, &c, err, sizeof err), 0);
    assert_string_equal(c->store_url, "local:/srv/p");
    assert_int_equal(c->ncontrol_listen, 1);
    assert_string_equal(c->control_listen[0], "127.0.0.1:7440");
    assert_string_equal(c->data_listen, "127.0.0.1:0");
    assert_string_equal(c->metrics_listen, "127.0.0.1:7441");
    assert_true(c->data_shards >= 1);
    assert_false(c->insecure);
    assert_false(c->data_clear);
    assert_int_equal(c->lease_ms, 30000);
    assert_int_equal(c->credentials[0].uid, 65534);
    assert_false(c->credentials[0].admin);
    assert_int_equal(c->log, LOG_LVL_INFO);
    srv_config_free(c);
}

static const char full[] = "store:\n"
                           "  url: local:/srv/p\n"
                           "  options: [io=threads, log_size=64M]\n"
                           "filters: ['delay:op=write,ms=200,every=10']\n"
                           "pools:\n"
                           "  - label: ml\n"
                           "    quota: 1.5G\n"
                           "    mode: 711\n"
                           "    containers:\n"
                           "      - {label: imagenet, chunk_size: 4M, uid: 1000}\n"
                           "      - label: scratch\n"
                           "control:\n"
                           "  listen: ['192.0.2.1:7440', 'unix:/run/p.sock', '[::1]:7440']\n"
                           "  lease: 500ms\n"
                           "  tls: {ca: ca.pem, cert: c.pem, key: k.pem}\n"
                           "data: {security: clear, shards: 3, buffer_size: 256K, provider: tcp}\n"
                           "credentials:\n"
                           "  - {name: ops, cn: ops.example, admin: yes, any_uid: on, uid: 0, gid: 0}\n"
                           "metrics: {listen: off}\n"
                           "log: debug\n";

static void every_section_is_read(void **state)
{
    struct srv_config *c = NULL;
    char err[400];
    (void)state;

    assert_int_equal(load(full, NULL, NULL, err, sizeof err), -EINVAL); /* half a second is too short for a lease */
    assert_non_null(strstr(err, "line 14: control.lease: \"500ms\": must be a time"));
    if (load(full, (const char *const[]){"lease", "5s", NULL}, &c, err, sizeof err) < 0)
        fail_msg("%s", err);
    assert_int_equal(c->nstore_opts, 2);
    assert_string_equal(c->store_opts[1].key, "log_size");
    assert_string_equal(c->store_opts[1].value, "64M");
    assert_int_equal(c->nfilters, 1);
    assert_int_equal(c->pools[0].quota_bytes, 1536 * MiB);
    assert_int_equal(c->pools[0].mode, 0711);
    assert_int_equal(c->pools[0].ncontainers, 2);
    assert_int_equal(c->pools[0].containers[0].props.chunk_size, 4 * MiB);
    assert_int_equal(c->pools[0].containers[0].props.uid, 1000);
    assert_string_equal(c->pools[0].containers[1].label, "scratch");
    assert_int_equal(c->ncontrol_listen, 3);
    assert_int_equal(c->lease_ms, 5000);
    assert_string_equal(c->tls_key, "k.pem");
    assert_true(c->data_clear);
    assert_string_equal(c->data_listen, "192.0.2.1:0");
    assert_int_equal(c->data_shards, 3);
    assert_int_equal(c->data_buffer_bytes, 256 * KiB);
    assert_true(c->credentials[0].admin && c->credentials[0].any_uid);
    assert_null(c->metrics_listen);
    assert_int_equal(c->log, LOG_LVL_DEBUG);
    srv_config_free(c);
}

static void flags_need_no_file_and_win_over_it(void **state)
{
    static const char *const flags[] = {"store",      "local:/x",
                                        "listen",     "127.0.0.1:1",
                                        "listen",     "127.0.0.1:2",
                                        "pool",       "p:quota=1M",
                                        "container",  "p/c:chunk_size=64K",
                                        "container",  "q/d",
                                        "credential", "name=t,token_file=/t,any_uid,uid=7",
                                        "insecure",   NULL,
                                        "metrics",    "127.0.0.1:0",
                                        NULL};
    struct srv_config *c = NULL;
    char err[400];
    (void)state;

    if (load(NULL, flags, &c, err, sizeof err) < 0)
        fail_msg("%s", err);
    assert_int_equal(c->ncontrol_listen, 2);
    assert_string_equal(c->control_listen[1], "127.0.0.1:2");
    assert_int_equal(c->npools, 2);
    assert_int_equal(c->pools[0].quota_bytes, MiB);
    assert_string_equal(c->pools[0].containers[0].label, "c");
    assert_string_equal(c->pools[1].label, "q");
    assert_true(c->credentials[0].any_uid);
    assert_int_equal(c->credentials[0].uid, 7);
    assert_true(c->insecure);
    srv_config_free(c);

    assert_int_equal(load(minimal, flags, &c, err, sizeof err), 0);
    assert_string_equal(c->store_url, "local:/x");
    assert_int_equal(c->ncredentials, 2);
    srv_config_free(c);
}

static void a_bad_file_is_refused_with_key_and_line(void **state)
{
    static const struct {
        const char *text, *says[3];
    } cases[] = {
        {"", {"empty"}},
        {"store: [\n", {"line"}},
        {"store:\n  url: local:/x\n  ulr: y\n", {"line 3", "ulr"}},
        {"stroe: 1\n", {"line 1", "stroe"}},
        {"log: info\nlog: debug\n", {"line 2", "\"log\" is there twice"}},
        {"data: 7\n", {"line 1", "data"}},
        {"data:\n  shards: many\n", {"line 2: data.shards: \"many\": must be a number from 1 to 64"}},
        {"data:\n  shards: 65\n", {"data.shards: \"65\""}},
        {"data:\n  shards: -1\n", {"data.shards: \"-1\""}},
        {"data:\n  security: none\n", {"line 2", "the only value is clear"}},
        {"cache: 1G\n", {"line 1: cache: \"1G\": is for an agent"}},
        {"cache: 1T\nread_ahead: 4G\n", {"read_ahead: \"4G\": must be a size"}},
        {"read_ahead: 1M\n", {"needs cache"}},
        {"data:\n  buffer_size: 64M\n", {"must be a size", "from 64K to 8M"}},
        {"data:\n  buffer_size: 8M\n  buffer_memory: 16M\n", {"line 3", "at least four times"}},
        {"data:\n  listen: 10.0.0.1\n", {"must be HOST:PORT"}},
        {"data:\n  listen: 0.0.0.0:7442\n  security: clear\n", {"set data.advertise"}},
        {"data:\n  listen: 10.0.0.1:7442\n", {"line 2", "data.security: clear"}},
        {"control:\n  listen: ['10.0.0.1:7440']\n", {"line 2", "needs control.tls"}},
        {"control:\n  insecure: perhaps\n", {"must be true or false"}},
        {"control:\n  tls: {ca: x}\n", {"line 2", "all of ca, cert and key"}},
        {"pools:\n  - quota: 1G\n", {"line 2", "pools[0].label: is missing"}},
        {"pools:\n  - label: a\n  - label: a b\n", {"line 3: pools[1].label: \"a b\""}},
        {"pools:\n  - label: a\n    quota: lots\n", {"line 3: pools[0].quota: \"lots\""}},
        {"pools:\n  - label: a\n    mode: 999\n", {"octal"}},
        {"pools:\n  - label: a\n    containers:\n      - label: b\n        chunk_size: 3M\n",
         {"line 5: pools[0].containers[0].chunk_size", "power of two"}},
        {"credentials:\n  - token: aaaaaaaaaaaaaaaaaaa\n", {"name is missing"}},
        {"credentials:\n  - name: a\n", {"needs one of"}},
        {"credentials:\n  - {name: a, token: short}\n", {"at least 16"}},
        {"credentials:\n  - {name: a, cn: b, uid: root}\n", {"numeric id"}},
        {"metrics:\n  listen: nowhere\n", {"must be HOST:PORT"}},
        {"log: loud\n", {"line 1: log: \"loud\""}},
        {"store:\n  options: [io]\n", {"must be KEY=VALUE"}},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char text[600], err[400];
        bool has_store = strstr(cases[i].text, "store") || strstr(cases[i].text, "stroe"),
             has_cred = strstr(cases[i].text, "credentials");
        snprintf(text, sizeof text, "%s%s%s", cases[i].text,
                 !*cases[i].text || has_store ? "" : "store: {url: 'local:/x'}\n",
                 !*cases[i].text || has_cred ? "" : "credentials: [{name: a, token_file: /t}]\n");
        assert_int_equal(load(text, NULL, NULL, err, sizeof err), -EINVAL);
        for (int k = 0; k < 3 && cases[i].says[k]; k++)
            if (!strstr(err, cases[i].says[k]))
                fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err, cases[i].says[k]);
        assert_null(strchr(err, '\n'));
    }
}

static void what_is_missing_is_named(void **state)
{
    struct srv_config *c;
    char err[400];
    (void)state;

    assert_int_equal(load("log: info\n", NULL, NULL, err, sizeof err), -EINVAL);
    assert_non_null(strstr(err, "store.url: is missing"));
    assert_int_equal(load("store: {url: 'local:/x'}\ncontrol: {local_token: no}\n", NULL, NULL, err, sizeof err),
                     -EINVAL);
    assert_non_null(strstr(err, "credentials: are missing"));
    assert_int_equal(load("store: {url: 'local:/x'}\n", NULL, &c, err, sizeof err), 0); /* the token file will do */
    srv_config_free(c);
    unlink(path);
    c = srv_config_new();
    assert_int_equal(srv_config_load(c, "/nonexistent/penstock.yaml", err, sizeof err), -ENOENT);
    assert_non_null(strstr(err, "/nonexistent/penstock.yaml"));
    srv_config_free(c);
}

static void bad_flags_name_the_flag(void **state)
{
    static const struct {
        const char *name, *value, *says;
    } cases[] = {
        {"shards", "0", "--shards: \"0\": must be a number"},
        {"container", "c", "must be POOL/LABEL"},
        {"container", "p/c:size=4", "unknown key \"size\""},
        {"credential", "name=x,tokn=y", "unknown key \"tokn\""},
        {"nonsense", "1", "no option --nonsense"},
        {"listen", "host", "--listen: \"host\": must be HOST:PORT"},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char err[400];
        const char *const flags[] = {cases[i].name, cases[i].value, NULL};
        assert_int_equal(load(minimal, flags, NULL, err, sizeof err), -EINVAL);
        if (!strstr(err, cases[i].says))
            fail_msg("\"%s\" lacks \"%s\"", err, cases[i].says);
    }
}

static void values_as_people_write_them(void **state)
{
    char host[SRV_HOST_MAX];
    uint16_t port;
    uint64_t v;
    (void)state;

    assert_int_equal(parse_size("0", &v), 0);
    assert_int_equal(parse_size("18446744073709551615", &v), 0);
    assert_true(v == UINT64_MAX);
    assert_int_equal(parse_size("1.5K", &v), 0);
    assert_int_equal(v, 1536);
    assert_int_equal(parse_size("2MiB", &v), 0);
    assert_int_equal(v, 2 * MiB);
    assert_int_equal(parse_size("", &v), -EINVAL);
    assert_int_equal(parse_size("-1", &v), -EINVAL);
    assert_int_equal(parse_size("1X", &v), -EINVAL);
    assert_int_equal(parse_size("1.0001K", &v), -EINVAL);
    assert_int_equal(parse_size("99999999P", &v), -EINVAL);
    assert_int_equal(srv_parse_ms("2", &v), 0);
    assert_int_equal(v, 2000);
    assert_int_equal(srv_parse_ms("1m", &v), 0);
    assert_int_equal(v, 60000);
    assert_int_equal(srv_parse_ms("1d", &v), -EINVAL);
    assert_int_equal(srv_parse_addr("[2001:db8::1]:80", host, &port), 0);
    assert_string_equal(host, "2001:db8::1");
    assert_int_equal(srv_parse_addr("h:65536", host, &port), -EINVAL);
    assert_int_equal(srv_parse_addr("2001:db8::1:80", host, &port), -EINVAL);
    assert_int_equal(srv_parse_addr(":80", host, &port), -EINVAL);
    assert_true(srv_addr_is_local("127.3.2.1:1"));
    assert_true(srv_addr_is_local("[::1]:1"));
    assert_true(srv_addr_is_local("unix:/x"));
    assert_false(srv_addr_is_local("0.0.0.0:1"));
    assert_false(srv_addr_is_local("127.0.0.1.example:1"));
}

static void an_agent_has_a_backend_and_no_store(void **state)
{
    static const struct {
        const char *text, *why;
    } bad[] = {
        {"role: agent\n", "backend.url: is missing"},
        {"role: dpu\n", "must be server or agent"},
        {"backend: {url: 'penstock://h'}\nstore: {url: 'local:/x'}\n", "is for an agent"},
        {"data: {third_party: true}\nstore: {url: 'local:/x'}\n", "is for an agent"},
        {"role: agent\nbackend: {url: 'local:/x'}\n", "must be penstock://"},
        {"role: agent\nbackend: {url: 'penstock://h'}\nstore: {url: 'local:/x'}\n", "no store of its own"},
        {"role: agent\nbackend: {url: 'penstock://h'}\npools: [{label: p}]\n", "makes no pools"},
        {"role: agent\nbackend: {url: 'penstock://h', cert: c.pem}\n", "needed together"},
    };
    struct srv_config *c = NULL;
    char err[400];
    (void)state;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(load(bad[i].text, NULL, &c, err, sizeof err), -EINVAL);
        if (!strstr(err, bad[i].why))
            fail_msg("\"%s\" does not say \"%s\"", err, bad[i].why);
    }
    assert_int_equal(load("role: agent\nbackend: {url: 'penstock://h:1', token_file: t, timeout: 5s, insecure: true}\n",
                          NULL, &c, err, sizeof err),
                     0);
    assert_true(c->agent);
    assert_string_equal(c->store_url, "penstock://h:1");
    assert_int_equal(c->backend.timeout_ms, 5000);
    assert_int_equal(c->nstore_opts, 5);
    assert_string_equal(c->store_opts[1].key, "token_file");
    assert_string_equal(c->store_opts[1].value, "t");
    srv_config_free(c);
}

static void count_secrets(void *user, const char *key, const char *value)
{
    (void)key;
    if (strstr(value, "secret"))
        ++*(int *)user;
}

static void descriptions_have_no_secrets(void **state)
{
    struct srv_config *c = NULL;
    int secrets = 0;
    char err[400];
    (void)state;

    assert_int_equal(load("store: {url: 'local:/x'}\ncredentials: [{name: a, token: secret-secret-secret}]\n"
                          "filters: ['crypt:memory_mb=9,key_command=echo secret']\n", NULL, &c,
                          err, sizeof err),
                     0);
    srv_config_describe(c, count_secrets, &secrets);
    assert_int_equal(secrets, 0);
    srv_config_free(c);
}

#define BASE  "store: {url: 'local:/x'}\ncredentials: [{name: c, cn: c, tenant: t}]\n"
#define T(in) BASE "tenants:\n  - {name: t, containers: [a/b]" in "}\n"
#define A(in)                                                                                                          \
    "role: agent\nbackend: {url: 'penstock://h'}\ncredentials: [{name: c, cn: c, tenant: t}]\n"                        \
    "tenants:\n  - {name: t, containers: [a/b], backend_token_file: f" in "}\n"

static void note_cache(void *user, const char *key, const char *value)
{
    char *text = user;

    if (!strcmp(key, "tenants.cache") || !strcmp(key, "tenants.read_ahead"))
        snprintf(text + strlen(text), 100 - strlen(text), "%s=%s ", key, value);
}

static void descriptions_have_a_tenants_cache(void **state)
{
    struct srv_config *c = NULL;
    char err[400], text[100] = "";
    (void)state;

    assert_int_equal(load(A(", cache: 1G, read_ahead: 2M"), NULL, &c, err, sizeof err), 0);
    srv_config_describe(c, note_cache, text);
    assert_string_equal(text, "tenants.cache=1G tenants.read_ahead=2M ");
    srv_config_free(c);
}

static void wrong_tenants_are_refused(void **state)
{
    static const struct {
        const char *text, *why;
    } bad[] = {
        {BASE, "credentials[0].tenant: \"t\": is none of tenants"},
        {BASE "tenants: [{containers: [a/b]}]\n", "line 3: tenants[0]: name is missing"},
        {BASE "tenants: [{name: 'a b', containers: [a/b]}]\n", "tenants[0].name: \"a b\": must be"},
        {BASE "tenants: [{name: default, containers: [a/b]}]\n", "is the server's own"},
        {BASE "tenants:\n  - {name: t, containers: [a/b]}\n  - {name: t, containers: [a/b]}\n",
         "line 5: tenants[1].name: \"t\": is there twice"},
        {BASE "tenants:\n  - {name: t}\n", "tenants[0].containers: are missing"},
        {BASE "tenants:\n  - name: t\n    containers:\n    - a/*\n    - '*'\n",
         "line 7: tenants[0].containers[1]: \"*\": must be POOL/CONTAINER or POOL/*"},
        {T(", quota: many"), "line 4: tenants[0].quota: \"many\": must be a size"},
        {T(", quota: 1K"), "tenants[0].quota: \"1K\": must be a size from 64K"},
        {T(", quota_objects: 0"), "tenants[0].quota_objects: \"0\": must be a number from 1"},
        {T(", weight: 0"), "tenants[0].weight: \"0\": must be a number from 1 to 10000"},
        {T(", burst: 1M"), "tenants[0].burst: \"1M\": needs rate"},
        {T(", burst_ops: 10"), "tenants[0].burst_ops: \"10\": needs rate_ops"},
        {T(", shards: 65"), "must be a number from 1 to 64"},
        {T(", buffer_memory: 1M"), "must be a size from 4M"},
        {T(", cache: 1G"), "tenants[0].cache: \"1G\": is for an agent"},
        {A(", cache: 1M"),
         "tenants[0].cache: \"1M\": must be 0, or a size from 16M"},
        {A(", read_ahead: 1M"),
         "tenants[0].read_ahead: \"1M\": needs cache"},
        {A(", cache: 16M, read_ahead: 2G"),
         "tenants[0].read_ahead: \"2G\": must be a size up to 1G"},
        {T(", backend_token_file: f"), "is for an agent"},
        {T(", rat: 1M"), "rat"},
        {T("") "  - {name: u, containers: [a/c]}\n", "tenants[1]: \"u\": has no credential"},
        {"role: agent\nbackend: {url: 'penstock://h'}\ncredentials: [{name: c, cn: c, tenant: t}]\n"
         "tenants:\n  - {name: t, containers: [a/b]}\n",
         "line 5: tenants[0]: \"t\": needs a credential of its own"},
    };
    char err[400];
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        assert_int_equal(load(bad[i].text, NULL, NULL, err, sizeof err), -EINVAL);
        if (!strstr(err, bad[i].why))
            fail_msg("\"%s\" does not say \"%s\"", err, bad[i].why);
    }
    assert_int_equal(load(BASE, NULL, NULL, err, sizeof err), -EINVAL);
}

static void tenants_are_read(void **state)
{
    struct srv_config *c = NULL;
    const struct srv_tenant *t;
    char err[400];
    (void)state;

    assert_int_equal(
        load(T(", quota: 10G, quota_objects: 5, weight: 3, rate: 1M, burst: 2M, rate_ops: 100, burst_ops: 7, "
               "max_sessions: 2, max_connections: 4, shards: 2, buffer_memory: 32M, filters: [csum]"),
             NULL, &c, err, sizeof err),
        0);
    assert_int_equal(c->ntenants, 2);
    assert_string_equal(c->tenants[0].name, "default");
    assert_int_equal(c->credentials[0].tenant, 1);
    t = &c->tenants[1];
    assert_true(t->quota_bytes == 10 * GiB && t->quota_objects == 5 && t->weight == 3);
    assert_true(t->bytes_per_s == MiB && t->burst_bytes == 2 * MiB && t->ops_per_s == 100 && t->burst_ops == 7);
    assert_true(t->max_sessions == 2 && t->max_connections == 4 && t->shards == 2 && t->buffer_memory == 32 * MiB);
    assert_string_equal(t->filters[0], "csum");
    assert_string_equal(t->containers[0], "a/b");
    assert_true(t->cache_bytes == 0);
    srv_config_free(c);

    assert_int_equal(load(A(", cache: 1G") "cache: 2G\nread_ahead: 1M\n", NULL, &c, err, sizeof err), 0);
    assert_true(c->tenants[0].cache_bytes == 2 * GiB && c->tenants[0].read_ahead == MiB);
    assert_true(c->tenants[1].cache_bytes == GiB && c->tenants[1].read_ahead == MiB);
    srv_config_free(c);
    assert_int_equal(load(A(", cache: 1G, read_ahead: 0"), NULL, &c, err, sizeof err), 0);
    assert_true(c->tenants[0].cache_bytes == 0 && c->tenants[1].read_ahead == 0);
    srv_config_free(c);

    /* An agent goes to its server with the tenant's credential, and with no other. */
    c = NULL;
    assert_int_equal(load("role: agent\nbackend: {url: 'penstock://h', token_file: agent, ca: ca}\n"
                          "credentials: [{name: c, cn: c, tenant: t}]\n"
                          "tenants:\n  - {name: t, containers: [a/b], backend_token_file: own}\n",
                          NULL, &c, err, sizeof err),
                     0);
    for (unsigned i = 0; i < c->tenants[1].nstore_opts; i++)
        if (strcmp(c->tenants[1].store_opts[i].key, "purpose"))
            assert_string_not_equal(c->tenants[1].store_opts[i].value, "agent");
    assert_string_equal(c->tenants[1].store_opts[c->tenants[1].nstore_opts - 1].value, "own");
    srv_config_free(c);
}

#undef BASE
#undef T

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_minimal_file_has_safe_defaults),   cmocka_unit_test(every_section_is_read),
        cmocka_unit_test(flags_need_no_file_and_win_over_it), cmocka_unit_test(a_bad_file_is_refused_with_key_and_line),
        cmocka_unit_test(what_is_missing_is_named),           cmocka_unit_test(bad_flags_name_the_flag),
        cmocka_unit_test(values_as_people_write_them),        cmocka_unit_test(descriptions_have_no_secrets),
        cmocka_unit_test(descriptions_have_a_tenants_cache),  cmocka_unit_test(an_agent_has_a_backend_and_no_store),
        cmocka_unit_test(wrong_tenants_are_refused),          cmocka_unit_test(tenants_are_read),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
