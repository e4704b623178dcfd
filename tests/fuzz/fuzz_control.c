/*
 * Requests of the control plane, from decoding to the engine, and what the data plane shows the control plane: tickets
 * and capabilities. The first byte of an input is a method's number, the rest its message. In a message SESSION stands
 * for the session that is open, whose container has handle 1. However a request is made, it is answered once, with a
 * message that its type decodes or with an errno that has a name.
 */
#include "fuzz.h"

#include "rpc_double.h"
#include "service_priv.h"

#include "base/rng.h"
#include "control/tls.h"
#include "local/local_store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SESSION "the fuzz session"
#define TOKEN   "a-token-of-sixteen-bytes-and-more"

static struct ctl_server *srv;
static struct pst_store *st;
static struct sess *sess;
static char dir[] = "/tmp/penstock-fuzz-XXXXXX";
static size_t nmethods;
static uint8_t packed[65536];

static const struct rpc_method *method(const char *path)
{
    const struct rpc_method *m;

    for (size_t i = 0; (m = rpc_double_method(i)) != NULL; i++)
        if (!strcmp(m->path, path))
            return m;
    abort();
}

static struct rpc_outcome call(const char *path, const ProtobufCMessage *in)
{
    CHECK(protobuf_c_message_get_packed_size(in) <= sizeof packed);
    return rpc_double_call(method(path), packed, protobuf_c_message_pack(in, packed));
}

/* Requests may have destroyed them. */
static void make_container(void)
{
    const struct pst_ctx ctx = {0};
    struct pst_pool_info pool = {.label = "default"};
    struct pst_cont_props props = {.mode = 0777};
    struct pst_cont_info info;
    int r = pst_pool_create(st, &ctx, &pool, &pool);

    CHECK(!r || r == -EEXIST);
    r = pst_cont_create(st, &ctx, "default", "default", &props, &info);
    CHECK(!r || r == -EEXIST);
}

static void open_session(void)
{
    PB(SessionOpenRequest) open = PENSTOCK__V1__SESSION_OPEN_REQUEST__INIT;
    PB(ContainerOpenRequest) cont = PENSTOCK__V1__CONTAINER_OPEN_REQUEST__INIT;
    PB(AdminHeader) header = PENSTOCK__V1__ADMIN_HEADER__INIT;
    PB(SessionOpenReply) * reply;
    struct rpc_outcome o;

    make_container();
    open.protocol = CTL_PROTOCOL;
    open.client_id = (ProtobufCBinaryData){16, (uint8_t *)(uintptr_t) "the fuzz client."};
    open.token = (ProtobufCBinaryData){strlen(TOKEN), (uint8_t *)(uintptr_t)TOKEN};
    o = call("/penstock.v1.SessionService/Open", &open.base);
    CHECK(o.replies == 1);
    reply = penstock__v1__session_open_reply__unpack(NULL, o.len, o.data);
    CHECK(reply);
    sess_put(sess);
    sess = sess_get(srv->sess, reply->session.data, reply->session.len, now_ns());
    CHECK(sess);
    penstock__v1__session_open_reply__free_unpacked(reply, NULL);
    header.session = (ProtobufCBinaryData){SESS_ID_BYTES, (uint8_t *)(uintptr_t)sess_id(sess)};
    cont.header = &header;
    cont.pool = cont.label = (char *)(uintptr_t) "default";
    CHECK(call("/penstock.v1.ContainerService/Open", &cont.base).replies == 1);
}

static void stop(void)
{
    char cmd[60];

    sess_put(sess);
    ctl_server_stop(srv, 0);
    ctl_server_free(srv);
    pst_store_close(st);
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    CHECK(system(cmd) == 0);
}

static void start(void)
{
    const struct pst_option opts[] = {{"create", "1"}, {"size", "256M"}};
    struct ctl_cred cred = {.name = "fuzz", .by_token = true, .any_uid = true, .admin = true};
    struct ctl_listen listen = {.addr = "127.0.0.1:0"};
    struct ctl_endpoint data = {.provider = "tcp", .addr_len = sizeof(sa_family_t)};
    struct ctl_tenant tenant = {.name = "default", .endpoints = &data, .nendpoints = 1};
    struct ctl_config cfg = {.listen = &listen, .nlisten = 1, .creds = &cred, .ncreds = 1, .tenants = &tenant,
                             .ntenants = 1};
    char url[60], err[300] = "";

    log_set_level(LOG_LVL_ERROR);
    cfg.limits.lease_ns = 3600 * NSEC_PER_SEC;
    CHECK(mkdtemp(dir) && !token_hash(TOKEN, cred.token_hash));
    snprintf(url, sizeof url, "local:%s", dir);
    pst_backend_register(&pst_local_backend);
    if (pst_backend_open(url, opts, ARRAY_SIZE(opts), &st, err, sizeof err))
        printf("%s\n", err);
    CHECK(st);
    tenant.st = st;
    CHECK(!ctl_server_start(&cfg, &srv, err, sizeof err));
    while (rpc_double_method(nmethods))
        nmethods++;
    open_session();
    atexit(stop);
}

/* A backup goes where the request says, and a scrub into a thread of its own: of these only the decoding is tried. */
static bool is_run(const struct rpc_method *m)
{
    return !strstr(m->path, "/Backup") && !strstr(m->path, "/Scrub");
}

static void try_method(const struct rpc_method *m, const uint8_t *msg, size_t len)
{
    const struct ctl_method *own = m->arg;
    struct rpc_outcome o;
    ProtobufCMessage *p;

    if (!is_run(m)) {
        p = protobuf_c_message_unpack(own ? own->in : &penstock__v1__scrub_request__descriptor, NULL, len, msg);
        protobuf_c_message_free_unpacked(p, NULL);
        return;
    }
    o = rpc_double_call(m, msg, len);
    CHECK(o.replies <= 1 && o.ends <= 1 && o.len <= RPC_MESSAGE_MAX);
    CHECK(m->kind != RPC_UNARY || o.ends == 1);
    CHECK(m->kind == RPC_UNARY || o.ends + o.messages >= 1);
    CHECK(!o.ends || o.replies || (o.err < 0 && *errs_name(o.err)));
    if (own && o.replies) {
        p = protobuf_c_message_unpack(own->out, NULL, o.len, o.data);
        CHECK(p);
        protobuf_c_message_free_unpacked(p, NULL);
    }
}

/* Of a stranger's bytes none is a ticket or a capability. */
static void try_secrets(const uint8_t *p, size_t n)
{
    struct cap_grant g;
    struct sess_cont *sc;
    struct sess *who;

    CHECK(ctl_ticket_use(srv, p, n, 0, &who) < 0);
    CHECK(ctl_cap_verify(srv, sess, p, n, &g, &sc) < 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sess_cont *sc;
    uint8_t *msg, *at;
    size_t n = size ? size - 1 : 0;

    if (!srv)
        start();
    if (size == 0)
        return 0;
    msg = malloc(n + 1);
    CHECK(msg);
    memcpy(msg, data + 1, n);
    while (n >= 16 && (at = memmem(msg, n, SESSION, 16)) != NULL)
        memcpy(at, sess_id(sess), 16);
    if (data[0] % (nmethods + 1) == nmethods)
        try_secrets(msg, n);
    else
        try_method(rpc_double_method(data[0] % (nmethods + 1)), msg, n);
    free(msg);
    sc = sess_cont_get(srv->sess, sess, 1);
    sess_cont_put(sc);
    if (!sc) {
        sess_close(srv->sess, sess_id(sess));
        open_session();
    }
    return 0;
}

/* ---- samples: a message of any type, its fields filled by what they are and how they are called ---- */

static uint8_t room[32768]; /* of one sample's messages */
static size_t used;

static void *take(size_t n)
{
    void *p = room + used;

    n = (n + 15) & ~(size_t)15;
    if (used + n > sizeof room)
        return NULL;
    used += n;
    memset(p, 0, n);
    return p;
}

static uint64_t number(struct rng *r, const char *field)
{
    static uint64_t sequence;
    static const uint64_t some[] = {0, 1, 2, 3, 4, 5, 6, 7, 16, 0644, 4096, 65536, 1 << 20, UINT32_MAX, UINT64_MAX};

    static const char *const ones[] = {"container", "protocol", "parent", "new_parent", "count", "limit", "slot"};

    for (size_t i = 0; i < ARRAY_SIZE(ones); i++)
        if (!strcmp(field, ones[i]) && rng_below(r, 6))
            return 1;
    if (strstr(field, "ino") || strstr(field, "handle"))
        return rng_below(r, 12);
    if (strstr(field, "sequence"))
        return ++sequence;
    if (!strcmp(field, "mode"))
        return rng_below(r, 01000);
    return rng_below(r, 8) ? some[rng_below(r, ARRAY_SIZE(some))] : rng_u64(r);
}

static const char *text(struct rng *r, const char *field)
{
    static const char *const some[] = {"a", "b", "c", "d", "user.x", "..", "", "a/b"};

    if (!strcmp(field, "session") && rng_below(r, 16))
        return SESSION;
    if ((!strcmp(field, "pool") || !strcmp(field, "label")) && rng_below(r, 3))
        return "default";
    if (!strcmp(field, "client_id"))
        return "another clientid";
    return !strcmp(field, "token") ? TOKEN : some[rng_below(r, ARRAY_SIZE(some))];
}

static ProtobufCMessage *fill(const ProtobufCMessageDescriptor *d, struct rng *r, int depth);

/* One value at `p`, of the field's type. */
static void fill_value(const ProtobufCFieldDescriptor *f, void *p, struct rng *r, int depth)
{
    const char *s;

    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING:
        *(const char **)p = text(r, f->name);
        break;
    case PROTOBUF_C_TYPE_BYTES:
        s = text(r, f->name);
        *(ProtobufCBinaryData *)p = (ProtobufCBinaryData){strlen(s), (uint8_t *)(uintptr_t)s};
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        *(ProtobufCMessage **)p = fill(f->descriptor, r, depth + 1);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *)p = (protobuf_c_boolean)rng_below(r, 2);
        break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
        *(uint64_t *)p = number(r, f->name);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        break;
    default:
        *(uint32_t *)p = (uint32_t)number(r, f->name);
    }
}

static void fill_field(ProtobufCMessage *m, const ProtobufCFieldDescriptor *f, struct rng *r, int depth)
{
    uint8_t *base = (uint8_t *)m;

    if (f->label == PROTOBUF_C_LABEL_REPEATED) {
        size_t n = (size_t)rng_below(r, 4);
        uint8_t *array = take(n * sizeof(ProtobufCBinaryData));
        bool wide = f->type == PROTOBUF_C_TYPE_STRING || f->type == PROTOBUF_C_TYPE_MESSAGE ||
                    f->type == PROTOBUF_C_TYPE_UINT64;
        size_t each = f->type == PROTOBUF_C_TYPE_BYTES ? sizeof(ProtobufCBinaryData) : wide ? 8 : 4;
        for (size_t i = 0; array && i < n; i++)
            fill_value(f, array + i * each, r, depth);
        *(size_t *)(base + f->quantifier_offset) = array ? n : 0;
        *(void **)(base + f->offset) = array;
        return;
    }
    if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
        *(uint32_t *)(base + f->quantifier_offset) = f->id;
    fill_value(f, base + f->offset, r, depth);
}

/* NULL: no room, or deep enough. */
static ProtobufCMessage *fill(const ProtobufCMessageDescriptor *d, struct rng *r, int depth)
{
    ProtobufCMessage *m = depth < 4 ? take(d->sizeof_message) : NULL;
    size_t chosen;

    if (!m)
        return NULL;
    protobuf_c_message_init(d, m);
    chosen = (size_t)rng_below(r, d->n_fields ? d->n_fields : 1); /* of those that exclude one another */
    for (size_t i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        /* Mostly whole, and as the session's own user: what is missing ends a request early. */
        uint64_t odds = !strcmp(f->name, "cred") ? 1 : !strcmp(f->name, "header") ? 16 : 14;
        if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF ? i == chosen : rng_below(r, 16) < odds)
            fill_field(m, f, r, depth);
    }
    return m;
}

/* The request's type; those that the service's own table does not have, by their path. */
static const ProtobufCMessageDescriptor *type_of(const struct rpc_method *m)
{
    if (m->arg)
        return ((const struct ctl_method *)m->arg)->in;
    return strstr(m->path, "/Stream") ? &penstock__v1__namespace_request__descriptor
                                      : &penstock__v1__scrub_request__descriptor;
}

size_t fuzz_sample(uint64_t n, uint8_t *buf, size_t cap)
{
    ProtobufCMessage *m;
    struct rng r;
    size_t which, len;

    if (!srv)
        start();
    rng_seed(&r, n);
    which = (size_t)rng_below(&r, nmethods + 1);
    buf[0] = (uint8_t)which;
    if (which == nmethods) {
        rng_fill(&r, buf + 1, 32);
        return 33;
    }
    used = 0;
    m = fill(type_of(rpc_double_method(which)), &r, 0);
    CHECK(m);
    len = protobuf_c_message_get_packed_size(m);
    CHECK(len < cap);
    return 1 + protobuf_c_message_pack(m, buf + 1);
}
