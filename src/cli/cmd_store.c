/* scrub, backup. */
#include "session.h"

#include "store/store.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

/* ---- scrub: online ---- */

struct scrub {
    bool json;
    json_t *list;
    uint64_t damaged;
};

static void on_damage(void *user, const char *pool, const char *cont, uint64_t ino, uint64_t offset, uint64_t length)
{
    struct scrub *s = user;

    s->damaged++;
    if (s->json)
        json_array_append_new(s->list,
                              json_pack("{s:s, s:s, s:I, s:I, s:I}", "pool", pool, "container", cont, "ino",
                                        (json_int_t)ino, "offset", (json_int_t)offset, "length", (json_int_t)length));
    else
        printf("damaged: %s/%s object %llu, bytes %llu to %llu\n", pool, cont, (unsigned long long)ino,
               (unsigned long long)offset, (unsigned long long)(offset + length));
}

static int scrub_remote(const struct cli_url *u, const struct cli_conn *k, struct scrub *x)
{
    Penstock__V1__ScrubRequest q = PENSTOCK__V1__SCRUB_REQUEST__INIT;
    int code = EXIT_OK;
    struct cli_session *s = cli_session_open(u, k, &code);
    struct rpc_stream *st = NULL;
    struct rpc_result res;
    uint8_t buf[64];
    void *msg;
    size_t len;
    bool done = false;
    int r;

    if (!s)
        return code;
    q.session = cli_session_id(s);
    r = rpc_stream_open(cli_session_channel(s), "/penstock.v1.StatusService/Scrub", &st);
    if (r == 0)
        r = rpc_stream_send(st, buf, protobuf_c_message_pack(&q.base, buf));
    if (r == 0)
        r = rpc_stream_send_end(st);
    while (r == 0 && rpc_stream_recv(st, UINT64_MAX, &msg, &len) == 1) {
        Penstock__V1__ScrubEvent *e = penstock__v1__scrub_event__unpack(NULL, len, msg);
        free(msg);
        if (e && e->done)
            done = true;
        else if (e)
            on_damage(x, e->pool, e->container, e->ino, e->offset, e->length);
        else
            r = -EBADMSG;
        if (e)
            penstock__v1__scrub_event__free_unpacked(e, NULL);
    }
    if (st) {
        int end = rpc_stream_close(st, &res);
        r = r < 0 ? r : end;
        if (end < 0)
            cli_error("%s: %s", u->server, rpc_result_text(&res));
        else if (r < 0 || !done)
            cli_error("%s: the scrub ended early", u->server);
        rpc_result_done(&res);
    }
    cli_session_close(s);
    return r < 0 ? cli_exit_code(r) : done ? EXIT_OK : EXIT_FAILED;
}

static volatile bool cancel;

static void on_signal(int sig)
{
    (void)sig;
    cancel = true;
}

static int scrub_local(const struct cli_url *u, struct scrub *x)
{
    int code = EXIT_OK;
    struct pst_store *st = cli_open_store(u, &code);
    int64_t n;

    if (!st)
        return code;
    signal(SIGINT, on_signal);
    n = pst_store_scrub(st, on_damage, x, &cancel);
    pst_store_close(st);
    if (n < 0)
        return cli_fail((int)n, "%s", u->server);
    return EXIT_OK;
}

static int run_scrub(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    struct scrub x = {0};
    const struct cli_opt opts[] = {
        {0, "json", OPT_FLAG, &x.json, NULL, "a JSON object", NULL},
        CLI_SERVER_OPTS(k),
        {0},
    };
    struct cli_url u;
    int code;
    CLI_PARSE(cmd, opts, argc, argv, 1, 1);

    if (cli_url(argv[first], 0, &u) < 0)
        return EXIT_USAGE;
    x.list = x.json ? json_array() : NULL;
    code = !strncmp(u.server, "local:", 6) ? scrub_local(&u, &x) : scrub_remote(&u, &k, &x);
    if (code != EXIT_OK) {
        json_decref(x.list);
        return code;
    }
    if (x.json)
        code = cli_json(json_pack("{s:I, s:o}", "damaged", (json_int_t)x.damaged, "extents", x.list));
    else
        printf(x.damaged ? "%llu damaged extents\n" : "clean\n", (unsigned long long)x.damaged);
    return code != EXIT_OK ? code : x.damaged ? EXIT_DAMAGED : EXIT_OK;
}

/* ---- backup ---- */

static int backup_remote(const struct cli_url *u, const struct cli_conn *k, char *dir)
{
    Penstock__V1__BackupRequest q = PENSTOCK__V1__BACKUP_REQUEST__INIT;
    struct cli_conn patient = *k;
    ProtobufCMessage *a;
    struct cli_session *s;
    int code = EXIT_OK;

    if (!patient.timeout_ms)
        patient.timeout_ms = 24 * 3600 * 1000;
    s = cli_session_open(u, &patient, &code);
    if (!s)
        return code;
    q.session = cli_session_id(s);
    q.directory = dir;
    cli_session_about(s, dir);
    a = cli_call(s, "/penstock.v1.StatusService/Backup", &q.base, &penstock__v1__backup_reply__descriptor, &code);
    if (a)
        protobuf_c_message_free_unpacked(a, NULL);
    cli_session_close(s);
    return code;
}

static int backup_local(const struct cli_url *u, const char *dir)
{
    int code = EXIT_OK, r;
    struct pst_store *st = cli_open_store(u, &code);

    if (!st)
        return code;
    r = pst_store_backup(st, dir);
    if (r < 0)
        code = cli_fail(r, "%s", dir);
    pst_store_close(st);
    return code;
}

static int run_backup(const struct cli_cmd *cmd, int argc, char **argv)
{
    struct cli_conn k = {0};
    const struct cli_opt opts[] = {CLI_SERVER_OPTS(k), {0}};
    struct cli_url u;
    CLI_PARSE(cmd, opts, argc, argv, 2, 2);

    if (cli_url(argv[first], 0, &u) < 0)
        return EXIT_USAGE;
    if (!strncmp(u.server, "local:", 6))
        return backup_local(&u, argv[first + 1]);
    if (argv[first + 1][0] != '/')
        return cli_usage(cmd,
                         "\"%.60s\": the daemon writes the copy, so the directory is an absolute path of its machine",
                         argv[first + 1]);
    return backup_remote(&u, &k, argv[first + 1]);
}

const struct cli_cmd cmds_store[] = {
    {"scrub", "URL", "Verifies a store while it is in use", NULL, run_scrub},
    {"backup", "URL DIRECTORY", "Makes a consistent copy of a store, also while it is in use",
     "Of a server's store: DIRECTORY is an absolute path on the server, written by the daemon.", run_backup},
    {0},
};
