/* tenant list, show, set: who is kept apart on a server, and what each may take. */
#include "session.h"
#include "status.h"

#include "penstock/v1/admin.pb-c.h"

#include <string.h>

static json_t *tenant_json(const Penstock__V1__Tenant *t)
{
    json_t *facts = json_object();

    for (size_t i = 0; i < t->n_facts; i++)
        cli_add_fact(facts, t->facts[i]->key, t->facts[i]->value);
    return json_pack("{s:s, s:I, s:I, s:I, s:o}", "name", t->name, "sessions", (json_int_t)t->sessions, "used_bytes",
                     (json_int_t)t->used_bytes, "objects", (json_int_t)t->objects, "facts", facts);
}

json_t *tenants_json(const struct cli_url *u, const struct cli_conn *k, const char *name, int *ret_exit)
{
    Penstock__V1__TenantsRequest q = PENSTOCK__V1__TENANTS_REQUEST__INIT;
    struct cli_session *s = cli_session_open(u, k, ret_exit);
    Penstock__V1__TenantsReply *a = NULL;
    json_t *list;

    if (!s)
        return NULL;
    if (name) {
        char about[200];
        snprintf(about, sizeof about, "tenant \"%.100s\"", name);
        cli_session_about(s, about);
        q.name = (char *)(uintptr_t)name;
    }
    q.session = cli_session_id(s);
    a = (void *)cli_call(s, "/penstock.v1.StatusService/Tenants", &q.base, &penstock__v1__tenants_reply__descriptor,
                         ret_exit);
    cli_session_close(s);
    if (!a)
        return NULL;
    list = json_array();
    for (size_t i = 0; i < a->n_tenants; i++)
        json_array_append_new(list, tenant_json(a->tenants[i]));
    penstock__v1__tenants_reply__free_unpacked(a, NULL);
    return list;
}

/* A limit for people; "-": none. */
static const char *limit(const json_t *t, const char *key, bool bytes, char buf[32])
{
    const char *v = json_string_value(json_object_get(json_object_get(t, "facts"), key));

    return !v ? "-" : bytes ? cli_size(strtoull(v, NULL, 10), buf) : v;
}

/* How much of it there is; "-": an agent cannot say now. */
static const char *used(const json_t *t, const char *key, bool bytes, char buf[32])
{
    uint64_t n = (uint64_t)json_integer_value(json_object_get(t, key));

    if (json_object_get(json_object_get(t, "facts"), "used"))
        return "-";
    if (bytes)
        return cli_size(n, buf);
    snprintf(buf, 32, "%llu", (unsigned long long)n);
    return buf;
}

static void print_list(const json_t *list)
{
    const json_t *t;
    size_t i;

    printf("%-20s %8s %10s %10s %10s %10s %6s %10s %10s\n", "NAME", "SESSIONS", "USED", "QUOTA", "OBJECTS", "QUOTA",
           "WEIGHT", "RATE/S", "OPS/S");
    json_array_foreach(list, i, t)
    {
        char bytes[32], objects[32], quota[32], rate[32];
        printf("%-20s %8lld %10s %10s %10s %10s %6s %10s %10s\n", json_string_value(json_object_get(t, "name")),
               (long long)json_integer_value(json_object_get(t, "sessions")),
               used(t, "used_bytes", true, bytes), limit(t, "quota", true, quota), used(t, "objects", false, objects),
               limit(t, "quota_objects", false, NULL), limit(t, "weight", false, NULL), limit(t, "rate", true, rate),
               limit(t, "rate_ops", false, NULL));
    }
}

static void print_one(const json_t *t)
{
    const char *key;
    json_t *v;

    printf("%-24s %s\n", "name", json_string_value(json_object_get(t, "name")));
    printf("%-24s %lld\n", "sessions", (long long)json_integer_value(json_object_get(t, "sessions")));
    if (!json_object_get(json_object_get(t, "facts"), "used")) {
        printf("%-24s %lld\n", "used", (long long)json_integer_value(json_object_get(t, "used_bytes")));
        printf("%-24s %lld\n", "objects", (long long)json_integer_value(json_object_get(t, "objects")));
    }
    json_object_foreach(json_object_get(t, "facts"), key, v) cli_print_fact(key, v);
}

static int show(const struct cli_cmd *cmd, int argc, char **argv, bool one)
{
    struct cli_conn k = {0};
    bool json = false;
    const struct cli_opt opts[] = {
        {0, "json", OPT_FLAG, &json, NULL, one ? "a JSON object" : "a JSON array", NULL},
        CLI_SERVER_OPTS(k),
        {0},
    };
    struct cli_url u;
    json_t *list;
    int code = EXIT_OK;
    CLI_PARSE(cmd, opts, argc, argv, one ? 2 : 1, one ? 2 : 1);

    if (cli_url(argv[first], 0, &u) < 0)
        return EXIT_USAGE;
    if (!cli_is_remote(&u))
        return cli_usage(cmd, "%s is no server", argv[first]);
    list = tenants_json(&u, &k, one ? argv[first + 1] : NULL, &code);
    if (!list)
        return code ? code : EXIT_FAILED;
    if (json && one) {
        json_t *t = json_incref(json_array_get(list, 0));
        json_decref(list);
        return cli_json(t);
    }
    if (json)
        return cli_json(list);
    if (one)
        print_one(json_array_get(list, 0));
    else
        print_list(list);
    json_decref(list);
    return fflush(stdout) ? EXIT_FAILED : EXIT_OK;
}

#define LIMITS_MAX 32

/* "rate=200M" into l; false, with a message printed: it is not of that form. */
static bool take_limit(char *arg, Penstock__V1__TenantLimit *l)
{
    char *eq = strchr(arg, '=');

    if (!eq || eq == arg) {
        cli_error("\"%.80s\" is not KEY=VALUE", arg);
        return false;
    }
    *eq = 0;
    penstock__v1__tenant_limit__init(l);
    l->key = arg;
    l->value = eq + 1;
    return true;
}

static int set(const struct cli_url *u, const struct cli_conn *k, const char *name, Penstock__V1__TenantLimit **limits,
               size_t n)
{
    Penstock__V1__TenantSetRequest q = PENSTOCK__V1__TENANT_SET_REQUEST__INIT;
    Penstock__V1__AdminHeader h = PENSTOCK__V1__ADMIN_HEADER__INIT;
    int code = EXIT_OK;
    struct cli_session *s = cli_session_open(u, k, &code);
    Penstock__V1__TenantSetReply *a;
    char about[200];

    if (!s)
        return code;
    snprintf(about, sizeof about, "tenant \"%.100s\"", name);
    cli_session_about(s, about);
    h.session = cli_session_id(s);
    q.header = &h;
    q.name = (char *)(uintptr_t)name;
    q.limits = limits;
    q.n_limits = n;
    a = (void *)cli_call(s, "/penstock.v1.TenantService/Set", &q.base, &penstock__v1__tenant_set_reply__descriptor,
                         &code);
    cli_session_close(s);
    if (!a)
        return code;
    printf(a->kept ? "kept over restarts\n"
                   : "until the daemon ends: it has no tenants_file, where this would be kept; change its "
                     "configuration too\n");
    penstock__v1__tenant_set_reply__free_unpacked(a, NULL);
    return fflush(stdout) ? EXIT_FAILED : EXIT_OK;
}

static int run_set(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    const struct cli_opt opts[] = {CLI_SERVER_OPTS(k), {0}};
    Penstock__V1__TenantLimit limits[LIMITS_MAX], *at[LIMITS_MAX];
    struct cli_url u;
    size_t n = 0;
    CLI_PARSE(cmd, opts, argc, argv, 3, 2 + LIMITS_MAX);

    if (cli_url(argv[first], 0, &u) < 0)
        return EXIT_USAGE;
    if (!cli_is_remote(&u))
        return cli_usage(cmd, "%s is no server", argv[first]);
    for (int i = first + 2; i < argc; i++, n++) {
        if (!take_limit(argv[i], &limits[n]))
            return EXIT_USAGE;
        at[n] = &limits[n];
    }
    return set(&u, &k, argv[first + 1], at, n);
}

static int run_list(const struct cli_cmd *cmd, int argc, char **argv)
{
    return show(cmd, argc, argv, false);
}

static int run_show(const struct cli_cmd *cmd, int argc, char **argv)
{
    return show(cmd, argc, argv, true);
}

const struct cli_cmd cmds_tenant[] = {
    {"tenant list", "URL", "Lists the tenants of a server or an agent", NULL, run_list},
    {"tenant show", "URL NAME", "Shows a tenant: containers, limits, use", NULL, run_show},
    {"tenant set", "URL NAME KEY=VALUE...", "Sets limits of a tenant, from now on",
     "quota, quota_objects, weight, rate, rate_ops, burst, burst_ops, max_sessions, max_connections, with values "
     "as in\n"
     "penstock.yaml(5); \"none\": no limit; KEY= : as the configuration has it. All of them are set, or none.",
     run_set},
    {0},
};
