/* tenant create, delete; credential create, delete, list: who may use a server, while it runs. */
#include "session.h"
#include "status.h"

#include "base/crypto.h"
#include "base/secret.h"
#include "penstock/v1/admin.pb-c.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define SERVICE "/penstock.v1.TenantService/"
#define SETTINGS_MAX 256

struct settings {
    Penstock__V1__TenantLimit v[SETTINGS_MAX], *at[SETTINGS_MAX];
    size_t n;
};

/* "rate=200M"; without a value: true. */
static void add_setting(struct settings *s, char *arg)
{
    char *eq = strchr(arg, '=');
    Penstock__V1__TenantLimit *l = &s->v[s->n];

    penstock__v1__tenant_limit__init(l);
    if (eq)
        *eq = 0;
    l->key = arg;
    l->value = eq ? eq + 1 : (char *)"true";
    s->at[s->n++] = l;
}

/*
 * One request to the server of a URL, about "tenant NAME" (name may be NULL); header is its own. The reply, or NULL
 * with a message printed and the exit code set.
 */
static void *ask(const struct cli_cmd *cmd, const char *url, const struct cli_conn *k, const char *name,
                 Penstock__V1__AdminHeader *header, const char *method, ProtobufCMessage *q,
                 const ProtobufCMessageDescriptor *reply, int *ret_exit)
{
    struct cli_session *s;
    struct cli_url u;
    char about[200];
    void *a;

    *ret_exit = EXIT_USAGE;
    if (cli_url(url, 0, &u) < 0)
        return NULL;
    if (!cli_is_remote(&u)) {
        *ret_exit = cli_usage(cmd, "%s is no server", url);
        return NULL;
    }
    *ret_exit = EXIT_OK;
    s = cli_session_open(&u, k, ret_exit);
    if (!s)
        return NULL;
    snprintf(about, sizeof about, "%.*s \"%.100s\"", (int)strcspn(cmd->name, " "), cmd->name, name ? name : "");
    if (name)
        cli_session_about(s, about);
    header->session = cli_session_id(s);
    a = cli_call(s, method, q, reply, ret_exit);
    cli_session_close(s);
    return a;
}

static void tell_kept(FILE *f, bool kept)
{
    fprintf(f,
            kept ? "kept over restarts\n"
                 : "until the daemon ends: it has no tenants_file, where this would be kept; change its configuration "
                   "too\n");
}

static int run_tenant_create(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    const struct cli_opt opts[] = {CLI_SERVER_OPTS(k), {0}};
    Penstock__V1__TenantCreateRequest q = PENSTOCK__V1__TENANT_CREATE_REQUEST__INIT;
    Penstock__V1__TenantCreateReply *a;
    Penstock__V1__AdminHeader h = PENSTOCK__V1__ADMIN_HEADER__INIT;
    struct settings set = {.n = 0};
    int code;
    CLI_PARSE(cmd, opts, argc, argv, 3, 2 + SETTINGS_MAX);

    for (int i = first + 2; i < argc; i++) {
        if (!strchr(argv[i], '=')) {
            cli_error("\"%.80s\" is not KEY=VALUE", argv[i]);
            return EXIT_USAGE;
        }
        add_setting(&set, argv[i]);
    }
    q.header = &h;
    q.name = argv[first + 1];
    q.settings = set.at;
    q.n_settings = set.n;
    a = ask(cmd, argv[first], &k, argv[first + 1], &h, SERVICE "Create",
            &q.base, &penstock__v1__tenant_create_reply__descriptor, &code);
    if (!a)
        return code;
    tell_kept(stdout, a->kept);
    printf("nobody may come yet: penstock credential create %s NAME tenant=%s\n", argv[first], argv[first + 1]);
    penstock__v1__tenant_create_reply__free_unpacked(a, NULL);
    return fflush(stdout) ? EXIT_FAILED : EXIT_OK;
}

static int run_tenant_delete(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    const struct cli_opt opts[] = {CLI_SERVER_OPTS(k), {0}};
    Penstock__V1__TenantDeleteRequest q = PENSTOCK__V1__TENANT_DELETE_REQUEST__INIT;
    Penstock__V1__TenantDeleteReply *a;
    Penstock__V1__AdminHeader h = PENSTOCK__V1__ADMIN_HEADER__INIT;
    int code;
    CLI_PARSE(cmd, opts, argc, argv, 2, 2);

    q.header = &h;
    q.name = argv[first + 1];
    a = ask(cmd, argv[first], &k, argv[first + 1], &h, SERVICE "Delete",
            &q.base, &penstock__v1__tenant_delete_reply__descriptor, &code);
    if (!a)
        return code;
    printf("%u of its sessions have ended; its containers and their data stay\n", a->sessions);
    tell_kept(stdout, a->kept);
    penstock__v1__tenant_delete_reply__free_unpacked(a, NULL);
    return fflush(stdout) ? EXIT_FAILED : EXIT_OK;
}

/* ---- credentials ---- */

/* The token goes where the user said, and nowhere else. */
static int put_token(int fd, const char *path, const char *token)
{
    FILE *f = path ? fdopen(dup(fd), "w") : stdout;

    if (!f || fprintf(f, "%s\n", token) < 0 || fflush(f) || (path && (fsync(fd) < 0 || fclose(f)))) {
        cli_error("%s: the token cannot be written: delete the credential, and create it anew",
                  path ? path : "standard output");
        return EXIT_FAILED;
    }
    return EXIT_OK;
}

static int create(const struct cli_cmd *cmd, const char *url, const struct cli_conn *k, const char *name,
                  struct settings *set, const char *token, int out, const char *to)
{
    Penstock__V1__CredentialCreateRequest q = PENSTOCK__V1__CREDENTIAL_CREATE_REQUEST__INIT;
    Penstock__V1__CredentialCreateReply *a;
    Penstock__V1__AdminHeader h = PENSTOCK__V1__ADMIN_HEADER__INIT;
    int code;

    q.header = &h;
    q.name = (char *)(uintptr_t)name;
    q.settings = set->at;
    q.n_settings = set->n;
    q.token = (char *)(uintptr_t)token;
    a = ask(cmd, url, k, name, &h, SERVICE "CreateCredential",
            &q.base, &penstock__v1__credential_create_reply__descriptor, &code);
    if (!a)
        return code;
    tell_kept(stderr, a->kept);
    code = *a->token ? put_token(out, to, a->token) : EXIT_OK;
    pst_wipe(a->token, strlen(a->token));
    penstock__v1__credential_create_reply__free_unpacked(a, NULL);
    return code;
}

static int run_cred_create(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    const char *from = NULL, *to = NULL;
    const struct cli_opt opts[] = {
        {0, "from", OPT_STRING, &from, "FILE", "the token: the first line of a file that nobody else may read", NULL},
        {0, "to", OPT_STRING, &to, "FILE", "a new file for the token that the server makes; default standard output",
         NULL},
        CLI_SERVER_OPTS(k),
        {0},
    };
    char token[SECRET_TOKEN_MAX + 1] = "", err[300];
    struct settings set = {.n = 0};
    cleanup_close int out = -1;
    int code;
    CLI_PARSE(cmd, opts, argc, argv, 3, 2 + SETTINGS_MAX);

    if (from && to)
        return cli_usage(cmd, "--from and --to: one of them");
    for (int i = first + 2; i < argc; i++)
        add_setting(&set, argv[i]);
    if (from && secret_token(from, token, err, sizeof err) < 0) {
        cli_error("%s", err);
        return EXIT_USAGE;
    }
    if (to && (out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0) {
        cli_error("%s: %s", to, strerror(errno));
        return EXIT_USAGE;
    }
    code = create(cmd, argv[first], &k, argv[first + 1], &set, token, out, to);
    pst_wipe(token, sizeof token);
    if (code && to)
        unlink(to);
    return code;
}

static int run_cred_delete(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    const struct cli_opt opts[] = {CLI_SERVER_OPTS(k), {0}};
    Penstock__V1__CredentialDeleteRequest q = PENSTOCK__V1__CREDENTIAL_DELETE_REQUEST__INIT;
    Penstock__V1__CredentialDeleteReply *a;
    Penstock__V1__AdminHeader h = PENSTOCK__V1__ADMIN_HEADER__INIT;
    int code;
    CLI_PARSE(cmd, opts, argc, argv, 2, 2);

    q.header = &h;
    q.name = argv[first + 1];
    a = ask(cmd, argv[first], &k, argv[first + 1], &h, SERVICE "DeleteCredential",
            &q.base, &penstock__v1__credential_delete_reply__descriptor, &code);
    if (!a)
        return code;
    printf("%u of its sessions have ended\n", a->sessions);
    tell_kept(stdout, a->kept);
    penstock__v1__credential_delete_reply__free_unpacked(a, NULL);
    return fflush(stdout) ? EXIT_FAILED : EXIT_OK;
}

static json_t *cred_json(const Penstock__V1__Credential *c)
{
    json_t *o = json_pack("{s:s, s:s, s:s, s:I, s:I, s:b, s:b, s:b, s:b}", "name", c->name, "tenant", c->tenant, "by",
                          *c->cn ? "certificate" : "token", "uid", (json_int_t)c->uid, "gid", (json_int_t)c->gid,
                          "any_uid", c->any_uid, "admin", c->admin, "origin", c->origin, "run_time", c->run_time);

    if (*c->cn)
        json_object_set_new(o, "cn", json_string(c->cn));
    return o;
}

static void print_creds(const Penstock__V1__CredentialListReply *a)
{
    printf("%-24s %-20s %-12s %10s %10s %-20s %s\n", "NAME", "TENANT", "BY", "UID", "GID", "MAY", "FROM");
    for (size_t i = 0; i < a->n_credentials; i++) {
        const Penstock__V1__Credential *c = a->credentials[i];
        char may[40];
        snprintf(may, sizeof may, "%s%s%s", c->any_uid ? "any_uid " : "", c->admin ? "admin " : "",
                 c->origin ? "origin" : "");
        printf("%-24s %-20s %-12s %10u %10u %-20s %s\n", c->name, c->tenant, *c->cn ? "certificate" : "token", c->uid,
               c->gid, *may ? may : "-", c->run_time ? "run time" : "configuration");
    }
}

static int run_cred_list(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    bool json = false;
    const struct cli_opt opts[] = {{0, "json", OPT_FLAG, &json, NULL, "a JSON array", NULL}, CLI_SERVER_OPTS(k), {0}};
    Penstock__V1__CredentialListRequest q = PENSTOCK__V1__CREDENTIAL_LIST_REQUEST__INIT;
    Penstock__V1__CredentialListReply *a;
    Penstock__V1__AdminHeader h = PENSTOCK__V1__ADMIN_HEADER__INIT;
    json_t *list;
    int code;
    CLI_PARSE(cmd, opts, argc, argv, 1, 2);

    q.header = &h;
    q.tenant = first + 1 < argc ? argv[first + 1] : (char *)"";
    a = ask(cmd, argv[first], &k, NULL, &h, SERVICE "ListCredentials",
            &q.base, &penstock__v1__credential_list_reply__descriptor, &code);
    if (!a)
        return code;
    list = json_array();
    for (size_t i = 0; json && i < a->n_credentials; i++)
        json_array_append_new(list, cred_json(a->credentials[i]));
    if (!json)
        print_creds(a);
    penstock__v1__credential_list_reply__free_unpacked(a, NULL);
    if (json)
        return cli_json(list);
    json_decref(list);
    return fflush(stdout) ? EXIT_FAILED : EXIT_OK;
}

const struct cli_cmd cmds_made[] = {
    {"tenant create", "URL NAME KEY=VALUE...", "Makes a tenant, from now on",
     "containers=POOL/CONTAINER or POOL/* at least, as often as wanted, and any of quota, quota_objects, weight,\n"
     "rate, rate_ops, burst, burst_ops, max_sessions, max_connections, shards, buffer_memory, filters, and of an\n"
     "agent cache, read_ahead, backend_token_file or backend_cert and backend_key, with values as in\n"
     "penstock.yaml(5). Then it needs a credential.",
     run_tenant_create},
    {"tenant delete", "URL NAME", "Ends a tenant that was made at run time; its data stays", NULL, run_tenant_delete},
    {"credential create", "URL NAME tenant=NAME [KEY=VALUE...]", "Lets somebody use a tenant, from now on",
     "cn=NAME: by a client certificate; else by a token, which the server makes and which is shown this once. uid,\n"
     "gid, any_uid, admin and origin as in penstock.yaml(5).",
     run_cred_create},
    {"credential delete", "URL NAME", "Takes a credential away that was made at run time", NULL, run_cred_delete},
    {"credential list", "URL [TENANT]", "Lists the credentials of a server or an agent, without secrets", NULL,
     run_cred_list},
    {0},
};
