#include "rpc_double.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct rpc_server {
    struct rpc_server_config cfg;
};
struct rpc_call {
    const struct rpc_method *m;
    atomic_uint refs;
    bool gone;
    struct rpc_outcome out;
    void *data;
    void (*data_free)(void *);
};

static struct rpc_server *server;
static void *kept; /* the last reply or message */

int rpc_server_new(const struct rpc_server_config *cfg, struct rpc_server **ret)
{
    server = calloc(1, sizeof *server);
    if (!server)
        abort();
    server->cfg = *cfg;
    *ret = server;
    return 0;
}

int rpc_server_listen(struct rpc_server *s, const char *addr, const struct rpc_tls *tls, bool insecure, int *ret_port,
                      char *err, size_t err_size)
{
    (void)s, (void)addr, (void)tls, (void)insecure, (void)err, (void)err_size;
    *ret_port = 1;
    return 0;
}

int rpc_server_start(struct rpc_server *s)
{
    (void)s;
    return 0;
}

void rpc_server_stop(struct rpc_server *s, uint32_t grace_ms)
{
    (void)s, (void)grace_ms;
}

void rpc_server_free(struct rpc_server *s)
{
    free(s);
    free(kept);
    server = NULL;
    kept = NULL;
}

uint32_t rpc_server_calls(struct rpc_server *s)
{
    (void)s;
    return 1;
}

uint64_t rpc_server_dropped(void)
{
    return 0;
}

struct rpc_call *rpc_call_ref(struct rpc_call *c)
{
    atomic_fetch_add(&c->refs, 1);
    return c;
}

void rpc_call_unref(struct rpc_call *c)
{
    if (atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    if (c->data_free)
        c->data_free(c->data);
    free(c);
}

static int keep(struct rpc_call *c, const void *msg, size_t len)
{
    if (c->out.ends || c->gone)
        return -1;
    free(kept);
    kept = malloc(len + 1);
    if (!kept)
        abort();
    memcpy(kept, msg, len);
    c->out.data = kept;
    c->out.len = len;
    return 0;
}

void rpc_reply(struct rpc_call *c, const void *msg, size_t len)
{
    if (!keep(c, msg, len)) {
        c->out.replies++;
        c->out.ends++;
    }
}

void rpc_finish(struct rpc_call *c, int err, const char *text)
{
    rpc_finish_as(c, errs_code(err), err, text);
}

void rpc_finish_as(struct rpc_call *c, enum rpc_code code, int err, const char *text)
{
    (void)code, (void)text;
    if (!c->out.ends)
        c->out.err = err;
    c->out.ends++;
}

int rpc_send(struct rpc_call *c, const void *msg, size_t len)
{
    int r = keep(c, msg, len);
    c->out.messages += r == 0;
    return r;
}

int rpc_send_wait(struct rpc_call *c, const void *msg, size_t len)
{
    return rpc_send(c, msg, len);
}

bool rpc_cancelled(struct rpc_call *c)
{
    return c->gone;
}

int64_t rpc_deadline_ms(struct rpc_call *c)
{
    (void)c;
    return INT64_MAX;
}

const char *rpc_path(const struct rpc_call *c)
{
    return c->m->path;
}

const void *rpc_method_arg(const struct rpc_call *c)
{
    return c->m->arg;
}

const char *rpc_peer(struct rpc_call *c)
{
    (void)c;
    return "ipv4:127.0.0.1:1";
}

bool rpc_peer_has_cert(struct rpc_call *c)
{
    (void)c;
    return false;
}

bool rpc_peer_names(struct rpc_call *c, bool (*fn)(const char *name, void *arg), void *arg)
{
    (void)c, (void)fn, (void)arg;
    return false;
}

void *rpc_user(struct rpc_call *c)
{
    (void)c;
    return server->cfg.user;
}

void rpc_set_data(struct rpc_call *c, void *data, void (*free_fn)(void *))
{
    c->data = data;
    c->data_free = free_fn;
}

void *rpc_data(struct rpc_call *c)
{
    return c->data;
}

/* No request of a fuzzer's has a limit. */
bool rpc_was_later(void)
{
    return false;
}

void rpc_later(uint64_t at_ns)
{
    (void)at_ns;
    abort();
}

bool rpc_addr_is_local(const char *addr)
{
    (void)addr;
    return true;
}

int rpc_addr_port(const char *addr)
{
    (void)addr;
    return 1;
}

const struct rpc_method *rpc_double_method(size_t i)
{
    return i < server->cfg.nmethods ? &server->cfg.methods[i] : NULL;
}

struct rpc_outcome rpc_double_call(const struct rpc_method *m, const void *msg, size_t len)
{
    struct rpc_call *c = calloc(1, sizeof *c);
    struct rpc_outcome out;

    if (!c)
        abort();
    c->m = m;
    c->refs = 1;
    m->on_message(c, msg, len, server->cfg.user);
    out = c->out;
    c->gone = true;
    if (m->on_cancel)
        m->on_cancel(c, server->cfg.user);
    rpc_call_unref(c);
    return out;
}
