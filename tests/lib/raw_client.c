#include "raw_client.h"

#include "base/rng.h"
#include "base/util.h"
#include "penstock/v1/admin.pb-c.h"
#include "penstock/v1/capability.pb-c.h"
#include "penstock/v1/namespace.pb-c.h"
#include "penstock/v1/session.pb-c.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define WAIT_NS (20 * NSEC_PER_SEC)
#define PB(x)   Penstock__V1__##x

_Thread_local char raw_said[400];

int raw_rpc(struct raw *c, const char *path, const ProtobufCMessage *in, const ProtobufCMessageDescriptor *d,
            ProtobufCMessage **ret)
{
    size_t n = protobuf_c_message_get_packed_size(in);
    cleanup_free uint8_t *buf = malloc(n + 1);
    struct rpc_result res;
    int r;

    protobuf_c_message_pack(in, buf);
    r = rpc_unary(c->ch, path, buf, n, 20000, NULL, &res);
    if (r < 0) {
        snprintf(raw_said, sizeof raw_said, "%s", res.details);
        fprintf(stderr, "%s: %s\n", path, res.details);
    }
    *ret = r == 0 ? protobuf_c_message_unpack(d, NULL, res.len, res.data) : NULL;
    rpc_result_done(&res);
    return r < 0 ? r : *ret ? 0 : -EBADMSG;
}

static int open_session(struct raw *c, const char *token, const uint8_t client[16])
{
    PB(SessionOpenRequest) q = PENSTOCK__V1__SESSION_OPEN_REQUEST__INIT;
    PB(SessionOpenReply) * a;
    uint8_t id[16];
    int r;

    memcpy(id, client, sizeof id);
    q.protocol = 1;
    q.software = (char *)"raw";
    q.purpose = (char *)"api";
    q.client_id = (ProtobufCBinaryData){sizeof id, id};
    q.token = (ProtobufCBinaryData){strlen(token), (uint8_t *)token};
    r = raw_rpc(c, "/penstock.v1.SessionService/Open", &q.base, &penstock__v1__session_open_reply__descriptor,
             (ProtobufCMessage **)&a);
    if (r < 0)
        return r;
    memcpy(c->session, a->session.data, sizeof c->session);
    memcpy(c->data_key, a->data_key.data, sizeof c->data_key);
    memcpy(&c->data, a->data[0]->address.data, a->data[0]->address.len);
    c->data_len = (socklen_t)a->data[0]->address.len;
    snprintf(c->provider, sizeof c->provider, "%s", a->data[0]->provider);
    penstock__v1__session_open_reply__free_unpacked(a, NULL);
    return 0;
}

static int open_cont(struct raw *c, const char *pool, const char *cont)
{
    PB(AdminHeader) h = PENSTOCK__V1__ADMIN_HEADER__INIT;
    PB(ContainerOpenRequest) q = PENSTOCK__V1__CONTAINER_OPEN_REQUEST__INIT;
    PB(ContainerOpenReply) * a;
    int r;

    h.session = (ProtobufCBinaryData){16, c->session};
    q.header = &h;
    q.pool = (char *)pool;
    q.label = (char *)cont;
    r = raw_rpc(c, "/penstock.v1.ContainerService/Open", &q.base, &penstock__v1__container_open_reply__descriptor,
             (ProtobufCMessage **)&a);
    if (r < 0)
        return r;
    c->cont = a->handle;
    penstock__v1__container_open_reply__free_unpacked(a, NULL);
    return 0;
}

int raw_open(struct raw *c, const char *addr, const char *token, const char *pool, const char *cont)
{
    uint8_t id[16];

    rng_secret(id, sizeof id);
    return raw_open_as(c, addr, token, pool, cont, id);
}

int raw_open_as(struct raw *c, const char *addr, const char *token, const char *pool, const char *cont,
                const uint8_t client[16])
{
    struct rpc_channel_config cfg = {.addr = addr};
    char err[200];
    int r;

    memset(c, 0, sizeof *c);
    r = rpc_channel_open(&cfg, &c->ch, err, sizeof err);
    if (r == 0)
        r = open_session(c, token, client);
    return r == 0 ? open_cont(c, pool, cont) : r;
}

void raw_close(struct raw *c)
{
    rpc_channel_close(c->ch);
    c->ch = NULL;
}

int raw_end_session(struct raw *c)
{
    PB(SessionCloseRequest) q = PENSTOCK__V1__SESSION_CLOSE_REQUEST__INIT;
    PB(SessionCloseReply) * a;
    int r;

    q.session = (ProtobufCBinaryData){16, c->session};
    r = raw_rpc(c, "/penstock.v1.SessionService/Close", &q.base, &penstock__v1__session_close_reply__descriptor,
             (ProtobufCMessage **)&a);
    if (r == 0)
        penstock__v1__session_close_reply__free_unpacked(a, NULL);
    return r;
}

static PB(Header) header(struct raw *c)
{
    PB(Header) h = PENSTOCK__V1__HEADER__INIT;

    h.session = (ProtobufCBinaryData){16, c->session};
    h.container = c->cont;
    return h;
}

static void take_cap(const ProtobufCBinaryData *d, struct cap *ret)
{
    ret->len = min_u64(d->len, sizeof ret->bytes);
    memcpy(ret->bytes, d->data, ret->len);
}

int raw_create(struct raw *c, const char *name, uint64_t *ret_ino, struct cap *ret_cap)
{
    PB(Header) h = header(c);
    PB(CreateRequest) q = PENSTOCK__V1__CREATE_REQUEST__INIT;
    PB(CreateReply) * a;
    int r;

    q.header = &h;
    q.parent = 1;
    q.name = (ProtobufCBinaryData){strlen(name), (uint8_t *)name};
    q.mode = 0644;
    q.open = 1;
    q.accmode = 6;
    r = raw_rpc(c, "/penstock.v1.NamespaceService/Create", &q.base, &penstock__v1__create_reply__descriptor,
             (ProtobufCMessage **)&a);
    if (r < 0)
        return r;
    *ret_ino = a->attr->ino;
    c->file = a->open->handle;
    take_cap(&a->open->capability, ret_cap);
    penstock__v1__create_reply__free_unpacked(a, NULL);
    return 0;
}

int raw_open_file(struct raw *c, uint64_t ino, uint32_t rights, struct cap *ret_cap)
{
    PB(Header) h = header(c);
    PB(OpenRequest) q = PENSTOCK__V1__OPEN_REQUEST__INIT;
    PB(OpenReply) * a;
    int r;

    q.header = &h;
    q.ino = ino;
    q.accmode = rights;
    r = raw_rpc(c, "/penstock.v1.NamespaceService/Open", &q.base, &penstock__v1__open_reply__descriptor,
             (ProtobufCMessage **)&a);
    if (r < 0)
        return r;
    c->file = a->handle;
    take_cap(&a->capability, ret_cap);
    penstock__v1__open_reply__free_unpacked(a, NULL);
    return 0;
}

static int done(int r, PB(Empty) * a)
{
    if (r == 0)
        penstock__v1__empty__free_unpacked(a, NULL);
    return r;
}

int raw_close_file(struct raw *c, uint64_t handle)
{
    PB(Header) h = header(c);
    PB(CloseRequest) q = PENSTOCK__V1__CLOSE_REQUEST__INIT;
    PB(Empty) *a = NULL;
    int r;

    q.header = &h;
    q.handle = handle;
    r = raw_rpc(c, "/penstock.v1.NamespaceService/Close", &q.base, &penstock__v1__empty__descriptor,
                (ProtobufCMessage **)&a);
    return done(r, a);
}

int raw_unlink(struct raw *c, const char *name)
{
    PB(Header) h = header(c);
    PB(UnlinkRequest) q = PENSTOCK__V1__UNLINK_REQUEST__INIT;
    PB(Empty) *a = NULL;
    int r;

    q.header = &h;
    q.parent = 1;
    q.name = (ProtobufCBinaryData){strlen(name), (uint8_t *)name};
    r = raw_rpc(c, "/penstock.v1.NamespaceService/Unlink", &q.base, &penstock__v1__empty__descriptor,
                (ProtobufCMessage **)&a);
    return done(r, a);
}

int raw_chmod(struct raw *c, uint64_t ino, uint32_t mode)
{
    PB(Header) h = header(c);
    PB(SetattrRequest) q = PENSTOCK__V1__SETATTR_REQUEST__INIT;
    PB(Attr) attr = PENSTOCK__V1__ATTR__INIT;
    PB(AttrReply) * a;
    int r;

    attr.mode = mode;
    q.header = &h;
    q.ino = ino;
    q.mask = 1;
    q.attr = &attr;
    r = raw_rpc(c, "/penstock.v1.NamespaceService/Setattr", &q.base, &penstock__v1__attr_reply__descriptor,
                (ProtobufCMessage **)&a);
    if (r == 0)
        penstock__v1__attr_reply__free_unpacked(a, NULL);
    return r;
}

int raw_grant(struct raw *c, uint64_t ino, uint32_t rights, uint64_t offset, uint64_t length, uint32_t lifetime_ms,
              struct cap *ret_cap, uint64_t *ret_key_id)
{
    PB(Header) h = header(c);
    PB(GrantRequest) q = PENSTOCK__V1__GRANT_REQUEST__INIT;
    PB(GrantReply) * a;
    int r;

    q.header = &h;
    q.ino = ino;
    q.rights = rights;
    q.range_offset = offset;
    q.range_length = length;
    q.lifetime_ms = lifetime_ms;
    r = raw_rpc(c, "/penstock.v1.CapabilityService/Grant", &q.base, &penstock__v1__grant_reply__descriptor,
             (ProtobufCMessage **)&a);
    if (r < 0)
        return r;
    take_cap(&a->capability, ret_cap);
    if (ret_key_id)
        *ret_key_id = a->key_id;
    penstock__v1__grant_reply__free_unpacked(a, NULL);
    return 0;
}

int raw_mkdir(struct raw *c, const char *name, uint32_t slot, uint64_t seq, uint64_t attempt)
{
    PB(RequestId) id = PENSTOCK__V1__REQUEST_ID__INIT;
    PB(Header) h = header(c);
    PB(MkdirRequest) q = PENSTOCK__V1__MKDIR_REQUEST__INIT;
    PB(AttrReply) * a;
    int r;

    id.slot = slot;
    id.sequence = seq;
    id.attempt = attempt;
    h.request_id = &id;
    q.header = &h;
    q.parent = 1;
    q.name = (ProtobufCBinaryData){strlen(name), (uint8_t *)name};
    q.mode = 0755;
    r = raw_rpc(c, "/penstock.v1.NamespaceService/Mkdir", &q.base, &penstock__v1__attr_reply__descriptor,
             (ProtobufCMessage **)&a);
    if (r == 0)
        penstock__v1__attr_reply__free_unpacked(a, NULL);
    return r;
}

int raw_rmdir(struct raw *c, const char *name)
{
    PB(Header) h = header(c);
    PB(RmdirRequest) q = PENSTOCK__V1__RMDIR_REQUEST__INIT;
    PB(Empty) * a;
    int r;

    q.header = &h;
    q.parent = 1;
    q.name = (ProtobufCBinaryData){strlen(name), (uint8_t *)name};
    r = raw_rpc(c, "/penstock.v1.NamespaceService/Rmdir", &q.base, &penstock__v1__empty__descriptor,
             (ProtobufCMessage **)&a);
    if (r == 0)
        penstock__v1__empty__free_unpacked(a, NULL);
    return r;
}

/* What is named in `q`. */
static int revoke_what(struct raw *c, PB(RevokeRequest) * q)
{
    PB(RevokeReply) * a;
    int r;

    q->session = (ProtobufCBinaryData){16, c->session};
    r = raw_rpc(c, "/penstock.v1.CapabilityService/Revoke", &q->base, &penstock__v1__revoke_reply__descriptor,
             (ProtobufCMessage **)&a);
    if (r < 0)
        return r;
    r = (int)a->keys;
    penstock__v1__revoke_reply__free_unpacked(a, NULL);
    return r;
}

int raw_revoke_key(struct raw *c, uint64_t key_id)
{
    PB(RevokeRequest) q = PENSTOCK__V1__REVOKE_REQUEST__INIT;

    q.what_case = PENSTOCK__V1__REVOKE_REQUEST__WHAT_KEY_ID;
    q.key_id = key_id;
    return revoke_what(c, &q);
}

int raw_revoke_session(struct raw *c)
{
    PB(RevokeRequest) q = PENSTOCK__V1__REVOKE_REQUEST__INIT;

    q.what_case = PENSTOCK__V1__REVOKE_REQUEST__WHAT_TARGET_SESSION;
    q.target_session = (ProtobufCBinaryData){16, c->session};
    return revoke_what(c, &q);
}

int raw_revoke_cont(struct raw *c)
{
    PB(RevokeRequest) q = PENSTOCK__V1__REVOKE_REQUEST__INIT;

    q.what_case = PENSTOCK__V1__REVOKE_REQUEST__WHAT_CONTAINER;
    q.container = c->cont;
    return revoke_what(c, &q);
}

int raw_ticket(struct raw *c, uint32_t shard, uint8_t ret[48], size_t *ret_len)
{
    PB(TicketRequest) q = PENSTOCK__V1__TICKET_REQUEST__INIT;
    PB(TicketReply) * a;
    int r;

    q.session = (ProtobufCBinaryData){16, c->session};
    q.shard = shard;
    q.count = 1;
    r = raw_rpc(c, "/penstock.v1.SessionService/Ticket", &q.base, &penstock__v1__ticket_reply__descriptor,
             (ProtobufCMessage **)&a);
    if (r < 0)
        return r;
    *ret_len = min_u64(a->tickets[0].len, 48);
    memcpy(ret, a->tickets[0].data, *ret_len);
    penstock__v1__ticket_reply__free_unpacked(a, NULL);
    return 0;
}

/* ---- data connections ---- */

static void on_connected(struct fab_conn *fc, void *user)
{
    (void)fc;
    ((struct raw_conn *)user)->up = true;
}

static void on_message(struct fab_conn *fc, const void *msg, size_t len, void *user)
{
    struct raw_conn *k = user;

    (void)fc;
    if (dp_decode_reply(k->mac, msg, len, &k->reply) < 0) {
        fprintf(stderr, "an answer that is none\n");
        abort();
    }
    memcpy(k->payload, k->reply.payload ? k->reply.payload : msg, k->reply.payload_len);
    k->got = true;
}

static void on_closed(struct fab_conn *fc, int err, void *user)
{
    struct raw_conn *k = user;

    (void)fc;
    k->conn = NULL;
    k->closed = true;
    k->closed_err = err;
}

static const struct fab_callbacks callbacks = {
    .on_connected = on_connected, .on_message = on_message, .on_closed = on_closed};

static int connect_to(const char *provider, const struct sockaddr_storage *addr, socklen_t addr_len, const void *ticket,
                      size_t len, const uint8_t *key, struct raw_conn *k)
{
    struct fab_config cfg = {.provider = provider, .uroce_instead = true};
    uint64_t end = now_ns() + WAIT_NS;
    char err[200];
    int r;

    memset(k, 0, sizeof *k);
    r = fab_open(&cfg, &k->fab, err, sizeof err);
    if (r == 0)
        r = fab_shard_open(k->fab, &callbacks, k, &k->shard);
    if (r < 0)
        return r;
    k->mem = aligned_alloc(4096, RAW_MEM);
    memset(k->mem, 0, RAW_MEM);
    r = fab_mr_reg(k->shard, k->mem, RAW_MEM, FAB_REMOTE_READ | FAB_REMOTE_WRITE, &k->mr);
    k->mac = pst_mac_new(key, DP_KEY_BYTES);
    if (r == 0)
        r = fab_connect(k->shard, (const struct sockaddr *)addr, addr_len, ticket, len, k, &k->conn);
    while (r == 0 && !k->up && !k->closed && now_ns() < end)
        fab_progress(k->shard, 50 * NSEC_PER_MSEC);
    if (r == 0 && !k->up)
        r = k->closed ? k->closed_err ? k->closed_err : -ECONNREFUSED : -ETIMEDOUT;
    return r;
}

int raw_connect(struct raw *c, const void *ticket, size_t len, const uint8_t *session_key, struct raw_conn *k)
{
    uint8_t key[DP_KEY_BYTES];
    int r = dp_conn_key(session_key ? session_key : c->data_key, ticket, len, key);

    return r < 0 ? r : connect_to(c->provider, &c->data, c->data_len, ticket, len, key, k);
}

int raw_connect_third(struct raw *c, const struct raw_way *w, struct raw_conn *k)
{
    return connect_to(c->provider, &w->addr, w->addr_len, w->ticket, w->len, w->key, k);
}

int raw_third_ticket(struct raw *c, uint32_t shard, uint64_t owner, struct raw_way *ret)
{
    PB(AdminHeader) h = PENSTOCK__V1__ADMIN_HEADER__INIT;
    PB(ThirdTicketRequest) q = PENSTOCK__V1__THIRD_TICKET_REQUEST__INIT;
    PB(ThirdTicketReply) * a;
    int r;

    h.session = (ProtobufCBinaryData){16, c->session};
    q.header = &h;
    q.shard = shard;
    q.owner = owner;
    r = raw_rpc(c, "/penstock.v1.SessionService/ThirdTicket", &q.base, &penstock__v1__third_ticket_reply__descriptor,
             (ProtobufCMessage **)&a);
    if (r < 0)
        return r;
    ret->len = min_u64(a->ticket.len, sizeof ret->ticket);
    memcpy(ret->ticket, a->ticket.data, ret->len);
    ret->number = a->number;
    ret->addr = c->data;
    ret->addr_len = c->data_len;
    penstock__v1__third_ticket_reply__free_unpacked(a, NULL);
    return dp_conn_key(c->data_key, ret->ticket, ret->len, ret->key);
}

int raw_third_party(struct raw *c, uint32_t shard, struct raw_way *ret)
{
    PB(AdminHeader) h = PENSTOCK__V1__ADMIN_HEADER__INIT;
    PB(ThirdPartyRequest) q = PENSTOCK__V1__THIRD_PARTY_REQUEST__INIT;
    PB(ThirdPartyReply) * a;
    int r;

    h.session = (ProtobufCBinaryData){16, c->session};
    q.header = &h;
    q.shard = shard;
    r = raw_rpc(c, "/penstock.v1.SessionService/ThirdParty", &q.base, &penstock__v1__third_party_reply__descriptor,
             (ProtobufCMessage **)&a);
    if (r < 0)
        return r;
    ret->len = min_u64(a->ticket.len, sizeof ret->ticket);
    memcpy(ret->ticket, a->ticket.data, ret->len);
    memcpy(ret->key, a->key.data, min_u64(a->key.len, sizeof ret->key));
    ret->number = a->number;
    memcpy(&ret->addr, a->endpoint->address.data, a->endpoint->address.len);
    ret->addr_len = (socklen_t)a->endpoint->address.len;
    penstock__v1__third_party_reply__free_unpacked(a, NULL);
    return 0;
}

int raw_connect_shard(struct raw *c, uint32_t shard, struct raw_conn *k)
{
    uint8_t ticket[48];
    size_t len;
    int r = raw_ticket(c, shard, ticket, &len);

    return r < 0 ? r : raw_connect(c, ticket, len, NULL, k);
}

int raw_connect_new(struct raw *c, struct raw_conn *k)
{
    return raw_connect_shard(c, 0, k);
}

void raw_disconnect(struct raw_conn *k)
{
    if (k->conn)
        fab_disconnect(k->conn);
    if (k->mr)
        fab_mr_close(k->mr);
    if (k->shard)
        fab_shard_close(k->shard);
    if (k->fab)
        fab_close(k->fab);
    pst_mac_free(k->mac);
    free(k->mem);
    memset(k, 0, sizeof *k);
}

int raw_send(struct raw_conn *k, const void *msg, size_t len)
{
    struct iovec iov = {(void *)msg, len};
    int r = k->conn ? fab_send(k->conn, &iov, 1) : -ENOTCONN;

    if (!r)
        fab_flush(k->shard);
    return r;
}

int raw_request(struct raw_conn *k, const struct dp_request *in)
{
    struct dp_request copy = *in, *r = &copy;
    uint8_t head[DP_HEAD_MAX];
    struct iovec iov[3];
    int n;

    k->msgno++;
    if (!r->msgno)
        r->msgno = k->msgno;
    n = dp_encode_request(k->mac, r, head, iov);
    if (n < 0)
        return n;
    k->sent_len = 0;
    for (int i = 0; i < n; i++) {
        memcpy(k->sent + k->sent_len, iov[i].iov_base, iov[i].iov_len);
        k->sent_len += iov[i].iov_len;
    }
    return raw_send(k, k->sent, k->sent_len);
}

int raw_wait(struct raw_conn *k)
{
    uint64_t end = now_ns() + WAIT_NS;

    while (!k->got && !k->closed && now_ns() < end)
        fab_progress(k->shard, 50 * NSEC_PER_MSEC);
    if (!k->got)
        return k->closed ? -ENOTCONN : -ETIMEDOUT;
    k->got = false;
    return k->reply.status;
}

int raw_call(struct raw_conn *k, const struct dp_request *r)
{
    int e = raw_request(k, r);
    return e < 0 ? e : raw_wait(k);
}

int raw_bind(struct raw_conn *k, uint32_t number, const struct cap *cap)
{
    struct dp_request r = {.opcode = DP_BIND, .cap = number, .payload = cap->bytes, .payload_len = (uint32_t)cap->len};
    return raw_call(k, &r);
}

struct dp_request raw_io(struct raw_conn *k, uint8_t opcode, uint32_t cap, uint64_t ino, uint64_t offset, uint32_t len,
                         uint32_t at)
{
    struct dp_request r = {.opcode = opcode, .cap = cap, .ino = ino, .offset = offset, .length = len, .nsegs = len > 0};

    if (len > 0)
        fab_mr_remote(k->mr, k->mem + at, &r.seg[0].addr, &r.seg[0].key);
    r.seg[0].len = len;
    return r;
}
