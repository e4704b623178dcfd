/* Unary calls of pools and containers: like those of the stream, sent again after a break. */
#include "session.h"

#include "base/trace.h"
#include "penstock/v1/admin.pb-c.h"

#include <errno.h>
#include <string.h>

/* Every request of these services begins so. */
struct with_header {
    ProtobufCMessage base;
    PB(AdminHeader) * header;
};

static int once(struct session *s, struct session_channel *ch, const char *path, ProtobufCMessage *req,
                uint64_t deadline_ns, const ProtobufCMessageDescriptor *reply, ProtobufCMessage **ret)
{
    uint64_t now = now_ns();
    struct rpc_result res;
    uint8_t *buf;
    int r;

    if (now >= deadline_ns)
        return -ETIMEDOUT;
    buf = malloc(protobuf_c_message_get_packed_size(req) + 1);
    if (!buf)
        return -ENOMEM;
    r = rpc_unary(ch->rpc, path, buf, protobuf_c_message_pack(req, buf),
                  (uint32_t)((deadline_ns - now) / NSEC_PER_MSEC + 1), s->cancel, &res);
    free(buf);
    if (r == 0) {
        *ret = protobuf_c_message_unpack(reply, NULL, res.len, res.data);
        r = *ret ? 0 : -EBADMSG;
    } else if (r == -EAGAIN || (!res.from_server && r != -ETIMEDOUT)) {
        /*
         * EAGAIN: this try was turned away (too many calls), but one before it, on a broken connection, may still
         * happen.
         */
        r = -ECONNRESET;
    }
    rpc_result_done(&res);
    return r;
}

/* Lock held; released during the call. */
static int round_trip(struct session *s, const char *path, ProtobufCMessage *req, const struct pst_reqid *origin,
                      uint64_t deadline_ns, bool resume, const ProtobufCMessageDescriptor *reply,
                      ProtobufCMessage **ret, uint64_t *ret_epoch)
{
    PB(AdminHeader) *h = ((struct with_header *)req)->header;
    struct session_channel *ch;
    uint8_t id[SESSION_ID_BYTES];
    int r = resume ? 0 : session_wait_up(s, deadline_ns);

    if (r < 0)
        return r;
    *ret_epoch = s->epoch;
    if (origin) {
        h->request_id->origin = session_origin_number_locked(s, origin->client, s->epoch);
        if (!h->request_id->origin)
            return -ESTALE;
    }
    memcpy(id, s->facts.id, sizeof id);
    h->session = (ProtobufCBinaryData){sizeof id, id};
    ch = session_channel_ref(s);
    pthread_mutex_unlock(&s->lock);
    r = once(s, ch, path, req, deadline_ns, reply, ret);
    session_channel_unref(s, ch);
    pthread_mutex_lock(&s->lock);
    if (r == -ESTALE && !resume && session_was_dead(s, *ret_epoch, deadline_ns))
        r = -ECONNRESET;
    return r;
}

int session_unary(struct session *s, const char *path, ProtobufCMessage *req, const struct pst_cred *cred,
                  const struct pst_reqid *origin, bool record, bool resume, const ProtobufCMessageDescriptor *reply,
                  ProtobufCMessage **ret, uint64_t *ret_epoch)
{
    PB(AdminHeader) h = PENSTOCK__V1__ADMIN_HEADER__INIT;
    PB(RequestId) id = PENSTOCK__V1__REQUEST_ID__INIT;
    PB(Cred) c = PENSTOCK__V1__CRED__INIT;
    uint64_t start = now_ns(), deadline = start + s->timeout_ns, pause = BACKOFF_MIN_NS, epoch = 0;
    uint32_t slot = 0;
    int r;

    if (session_cred(s, cred, &c))
        h.cred = &c;
    h.trace = trace_for(0);
    ((struct with_header *)req)->header = &h;
    scoped_lock(&s->lock);
    if (origin && !origin->seq)
        origin = NULL;
    if (origin) {
        id.slot = origin->slot;
        id.sequence = origin->seq;
        h.request_id = &id;
    } else if (record) {
        r = session_slot_get(s, deadline, &slot, &id.sequence);
        if (r < 0)
            return r;
        id.slot = slot;
        h.request_id = &id;
    }
    for (;;) {
        id.attempt = origin ? ++s->origin_tries : id.attempt + 1;
        r = round_trip(s, path, req, origin, deadline, resume, reply, ret, &epoch);
        if (r != -ECONNRESET || resume)
            break;
        session_wait(&s->changed, &s->lock, min_u64(deadline, now_ns() + pause));
        pause = min_u64(2 * pause, BACKOFF_MAX_NS);
    }
    if (record && r == -ETIMEDOUT && epoch)
        session_give_up_locked(s, epoch);
    if (trace_tells(r, now_ns() - start))
        trace_end(LOG_COMPONENT, false, h.trace, r, now_ns() - start, "%s at %s", req->descriptor->short_name, s->addr);
    if (ret_epoch)
        *ret_epoch = epoch;
    if (record && !origin)
        session_slot_put(s, slot, r == -ETIMEDOUT || r == -ECONNRESET);
    return r;
}
