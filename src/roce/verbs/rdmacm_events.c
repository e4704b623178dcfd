/* Event channels: what the device tells becomes what programs expect. */
#include "rdmacm_priv.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>

struct rdma_event_channel *rdma_create_event_channel(void)
{
    struct cma_device *devices;
    int r = cma_devices(&devices);
    if (r < 0)
        return vb_null(r);
    struct cma_channel *ch = calloc(1, sizeof *ch);
    if (!ch)
        return vb_null(-ENOMEM);
    r = uroce_cm_channel_create(&ch->native);
    if (r) {
        free(ch);
        return vb_null(r);
    }
    ch->pub.fd = uroce_cm_channel_fd(ch->native);
    return &ch->pub;
}

/*
 * A thread that only waits for events, as rping's, may be on its way into the next wait while another destroys the
 * channel and ends the program. The kernel's read leaves it waiting; so the newest channels that are gone are kept, and
 * known by it.
 */
#define GONE_KEPT 64

static struct list gone = LIST_INIT(gone);
static unsigned ngone;

void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
    struct cma_channel *ch = cma_channel(channel);
    scoped_lock(&cma_lock);
    if (uroce_cm_channel_destroy(ch->native) == -EBUSY) {
        vb_debug("rdma_destroy_event_channel: an id uses it still; it stays");
        return;
    }
    ch->native = NULL;
    ch->by = pthread_self();
    list_push_back(&gone, &ch->link);
    if (++ngone > GONE_KEPT) {
        free(list_entry(list_pop_front(&gone), struct cma_channel, link));
        ngone--;
    }
}

/* True: it is gone, and `by` another thread than this one. */
static bool gone_by_another(struct cma_channel *ch)
{
    scoped_lock(&cma_lock);
    return !ch->native && !pthread_equal(ch->by, pthread_self());
}

int cma_post(struct cma_id *id, enum rdma_cm_event_type type, int status, const void *more, size_t len)
{
    struct uroce_cm_event ev = {.type = (enum uroce_cm_event_type)type,
                                .status = status,
                                .id = id->nnative ? id->native[0] : NULL,
                                .context = id,
                                .private_len = (uint8_t)len};
    if (len)
        memcpy(ev.private_data, more, len);
    return cma_result(uroce_cm_post_event(cma_channel(id->id.channel)->native, &ev));
}

/* ---- one event: from the device's to the program's ---- */

static void fill_conn(const struct uroce_cm_event *ev, struct cma_event *e)
{
    e->pub.param.conn = (struct rdma_conn_param){
        .private_data = ev->private_len ? e->private_data : NULL,
        .private_data_len = ev->private_len,
        .responder_resources = ev->responder_resources,
        .initiator_depth = ev->initiator_depth,
        .flow_control = ev->flow_control,
        .retry_count = ev->retry_count,
        .rnr_retry_count = ev->rnr_retry_count,
        .srq = ev->srq,
        .qp_num = ev->qp_num,
    };
}

static void fill_ud(const struct uroce_cm_event *ev, struct cma_event *e)
{
    e->pub.param.ud = (struct rdma_ud_param){
        .private_data = ev->private_len ? e->private_data : NULL,
        .private_data_len = ev->private_len,
        .qp_num = ev->qp_num,
        .qkey = ev->qkey,
    };
    vb_ah_attr_back(&ev->ah, 1, &e->pub.param.ud.ah_attr);
}

/* The new id of a request. False: it cannot be had, and the peer is refused. */
static bool new_request(struct cma_event *e, const struct uroce_cm_event *ev)
{
    struct cma_id *listener = e->owner;
    struct rdma_event_channel *channel = listener->id.channel;
    struct cma_id *c = cma_new(channel, listener->id.context, listener->id.ps);
    if (!c) {
        uroce_cm_id_destroy(ev->id);
        return false;
    }
    c->id.qp_type = listener->id.qp_type;
    c->responder_resources = ev->responder_resources;
    c->initiator_depth = ev->initiator_depth;
    for (int i = 0; i < listener->nnative; i++) /* of the device that it came by */
        if (listener->native[i] == ev->listener) {
            cma_add_native(c, listener->native_dev[i], ev->id);
            cma_use_device(c, listener->native_dev[i]);
        }
    cma_show_addresses(c);
    e->pub.id = &c->id;
    e->pub.listen_id = &listener->id;
    if (!listener->sync)
        return true;
    if (rdma_migrate_id(&c->id, NULL) == 0)
        return true;
    rdma_destroy_id(&c->id);
    return false;
}

/* The peer has accepted: a queue pair of ours is made ready, and the peer told. */
static void respond(struct cma_id *c, struct cma_event *e)
{
    c->responder_resources = e->pub.param.conn.responder_resources;
    c->initiator_depth = e->pub.param.conn.initiator_depth;
    if (!c->id.qp)
        return;
    int r = cma_qp_ready(c, RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH) ? -errno : 0;
    if (!r)
        r = uroce_cm_establish(c->native[0], NULL, 0);
    e->pub.event = RDMA_CM_EVENT_ESTABLISHED;
    if (!r)
        return;
    vb_debug("a queue pair cannot be made ready for its connection: %s", strerror(-r));
    uroce_cm_reject(c->native[0], UROCE_CM_REJ_NO_RESOURCES, NULL, 0);
    cma_qp_error(c);
    e->pub.event = RDMA_CM_EVENT_CONNECT_ERROR;
    e->pub.status = r;
}

/* False: nothing for the program. */
static bool translate(struct cma_event *e, const struct uroce_cm_event *ev)
{
    struct cma_id *c = e->owner;
    e->pub.id = &c->id;
    e->pub.event = (enum rdma_cm_event_type)ev->type;
    e->pub.status = ev->status;
    memcpy(e->private_data, ev->private_data, ev->private_len);
    if (e->pub.event == RDMA_CM_EVENT_MULTICAST_JOIN || e->pub.event == RDMA_CM_EVENT_MULTICAST_ERROR) {
        cma_group_event(c, ev->private_data, &e->pub);
        return true;
    }
    if (cma_is_ud(c))
        fill_ud(ev, e);
    else
        fill_conn(ev, e);
    switch ((int)e->pub.event) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
        return new_request(e, ev);
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
        respond(c, e);
        break;
    case RDMA_CM_EVENT_REJECTED:
        cma_qp_error(c);
        break;
    case RDMA_CM_EVENT_UNREACHABLE:
        if (cma_is_ud(c) && ev->status > 0) /* refused: the status of the answer */
            break;
        cma_qp_error(c);
        break;
    default:
        break;
    }
    return true;
}

/* ---- the program's calls ---- */

/*
 * The next event that is there, with its id's count of events that the program has: under one lock, so that an id that
 * is destroyed meanwhile either has taken its events back, or waits for the acknowledgement. -EAGAIN: none.
 */
static int take(struct cma_channel *ch, struct cma_event *e, struct uroce_cm_event *ev)
{
    struct pollfd p = {.fd = ch->pub.fd, .events = POLLIN};
    scoped_lock(&cma_lock);
    if (!ch->native)
        return -EBADF;
    if (poll(&p, 1, 0) != 1)
        return -EAGAIN;
    int r = uroce_cm_get_event(ch->native, ev);
    if (r)
        return r;
    e->owner = ev->context;
    e->owner->unacked++;
    return 0;
}

static void acked(struct cma_id *owner)
{
    scoped_lock(&cma_lock);
    owner->unacked--;
    pthread_cond_broadcast(&owner->acked);
}

static int wait_for(struct cma_channel *ch)
{
    struct pollfd p = {.fd = ch->pub.fd, .events = POLLIN};
    int flags = fcntl(ch->pub.fd, F_GETFL);
    if (flags < 0 || flags & O_NONBLOCK)
        return cma_fail(flags < 0 ? errno : EAGAIN);
    return poll(&p, 1, -1) < 0 ? -1 : 0;
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
    if (!channel || !event)
        return cma_fail(EINVAL);
    struct cma_channel *ch = cma_channel(channel);
    for (;;) {
        struct uroce_cm_event ev;
        struct cma_event *e = calloc(1, sizeof *e);
        int r = e ? take(ch, e, &ev) : -ENOMEM;
        if (!r && translate(e, &ev)) {
            *event = &e->pub;
            return 0;
        }
        if (!r)
            acked(e->owner);
        free(e);
        while (r == -EBADF && gone_by_another(ch))
            pause();
        if (r && r != -EAGAIN)
            return cma_fail(-r);
        /* A thread may be cancelled here: nothing is held. */
        if (r && wait_for(ch) && !gone_by_another(ch))
            return -1;
    }
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
    if (!event)
        return cma_fail(EINVAL);
    struct cma_event *e = container_of(event, struct cma_event, pub);
    acked(e->owner);
    free(e);
    return 0;
}

int cma_complete(struct cma_id *c)
{
    struct rdma_cm_id *id = &c->id;
    if (!c->sync)
        return 0;
    if (id->event) {
        rdma_ack_cm_event(id->event);
        id->event = NULL;
    }
    if (rdma_get_cm_event(id->channel, &id->event))
        return -1;
    if (!id->event->status)
        return 0;
    if (id->event->event == RDMA_CM_EVENT_REJECTED)
        return cma_fail(ECONNREFUSED);
    return cma_fail(id->event->status < 0 ? -id->event->status : id->event->status);
}

const char *rdma_event_str(enum rdma_cm_event_type event)
{
    static const char *const names[] = {
        "RDMA_CM_EVENT_ADDR_RESOLVED",  "RDMA_CM_EVENT_ADDR_ERROR",      "RDMA_CM_EVENT_ROUTE_RESOLVED",
        "RDMA_CM_EVENT_ROUTE_ERROR",    "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
        "RDMA_CM_EVENT_CONNECT_ERROR",  "RDMA_CM_EVENT_UNREACHABLE",     "RDMA_CM_EVENT_REJECTED",
        "RDMA_CM_EVENT_ESTABLISHED",    "RDMA_CM_EVENT_DISCONNECTED",    "RDMA_CM_EVENT_DEVICE_REMOVAL",
        "RDMA_CM_EVENT_MULTICAST_JOIN", "RDMA_CM_EVENT_MULTICAST_ERROR", "RDMA_CM_EVENT_ADDR_CHANGE",
        "RDMA_CM_EVENT_TIMEWAIT_EXIT",
    };
    return (unsigned int)event < ARRAY_SIZE(names) ? names[event] : "UNKNOWN EVENT";
}
