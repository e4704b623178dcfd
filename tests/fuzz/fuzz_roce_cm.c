/*
 * The communication manager's engine between a program that does anything in any order and a peer that sends anything:
 * tables stay bounded, events are for ids that there are, and all is gone when the program has left.
 */
#include "fuzz.h"

#include "../wire/cm_random.h"
#include "cm/cm.h"

#include <string.h>

#define IDS 12u

struct world {
    struct cm_engine *e;
    struct cm_id *id[IDS]; /* NULL: free */
    struct cm_id *listener[2];
    uint64_t now;
    uint32_t last_local, last_remote; /* numbers of a message that went out: a peer knows them */
};

static union uroce_gid gid_of(uint8_t last)
{
    union uroce_gid g = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = last}};
    return g;
}

static bool on_event(void *ctx, struct cm_id *id, struct cm_id *listener, const struct uroce_cm_event *ev)
{
    struct world *w = ctx;
    CHECK(ev->private_len <= UROCE_CM_PRIVATE_MAX);
    if (ev->type == UROCE_CM_CONNECT_REQUEST) {
        CHECK(listener && (listener == w->listener[0] || listener == w->listener[1]));
        for (unsigned i = 0; i < IDS; i++)
            if (!w->id[i]) {
                w->id[i] = id;
                return true;
            }
        return false;
    }
    for (unsigned i = 0; i < IDS; i++)
        if (w->id[i] == id)
            return true;
    CHECK(!"an event of an id that there is not");
    return false;
}

size_t fuzz_sample(uint64_t n, uint8_t *buf, size_t max)
{
    struct rng r;
    size_t len = max < 1500 ? max : 1500;
    rng_seed(&r, n);
    rng_fill(&r, buf, len);
    return len;
}

static void send_all(struct world *w)
{
    struct cm_tx tx;
    struct wire_cm m;
    while (cm_tx(w->e, w->now, &tx)) {
        CHECK(!wire_cm_decode(tx.mad, sizeof tx.mad, &m));
        w->last_local = m.local_id;
        w->last_remote = m.remote_id;
    }
}

/* What a peer sends: a message of any kind with random fields, some of them those that it could know. */
static void receive(struct world *w, struct rng *r, uint8_t bits)
{
    uint8_t mad[WIRE_MAD_BYTES];
    struct wire_cm m;
    struct cm_path path = {.local = gid_of(1), .remote = gid_of((uint8_t)(2 + bits % 3)), .hop_limit = 64};
    enum wire_cm_attr attr = cm_random_attr((unsigned)rng_u64(r));

    cm_random(r, attr, false, &m);
    if (bits & 8) {
        m.remote_id = w->last_local;
        m.local_id = bits & 16 ? 5 : w->last_remote;
    } else if (attr == WIRE_CM_REQ || attr == WIRE_CM_SIDR_REQ || bits & 16) {
        m.local_id = bits >> 5;
    }
    struct wire_cma head = {.src = path.remote, .dst = path.local, .src_port = 9, .v4 = true};
    if (attr == WIRE_CM_REQ) {
        m.req.service_id = wire_cma_service_id(WIRE_CMA_TCP, 80);
        m.req.primary.local_gid = path.remote;
        m.req.primary.remote_gid = path.local;
        m.req.mtu = 1 + bits % 6;
        m.req.transport = bits & 32 ? m.req.transport : 0;
        m.req.qpn = bits % 4;
        m.req.ca_guid = bits % 2;
        CHECK(!wire_cma_encode(&head, m.private_data));
    } else if (attr == WIRE_CM_SIDR_REQ) {
        m.sidr_req.service_id = wire_cma_service_id(WIRE_CMA_UDP, 80);
        CHECK(!wire_cma_encode(&head, m.private_data));
    } else if (attr == WIRE_CM_DREQ) {
        m.dreq.qpn = 7;
    } else if (attr == WIRE_CM_SIDR_REP) {
        m.sidr_rep.service_id = wire_cma_service_id(WIRE_CMA_UDP, 80);
        m.local_id = w->last_local;
    }
    cm_bytes(&m, mad);
    if (bits == 255)
        mad[rng_below(r, sizeof mad)] ^= (uint8_t)(1 + rng_below(r, 255));
    cm_rx(w->e, w->now, &path, UROCE_MTU_4096, mad, sizeof mad);
}

static void connect(struct world *w, unsigned i, uint8_t bits)
{
    struct cm_path path = {.local = gid_of(1), .remote = gid_of((uint8_t)(2 + bits % 3)), .hop_limit = 64};
    struct uroce_cm_param p = {.qp_num = 7, .retry_count = bits & 7, .qp_type = bits & 8 ? UROCE_QPT_UC : UROCE_QPT_RC};

    if (!w->id[i] && cm_id_new(w->e, bits & 16 ? UROCE_CM_UDP : UROCE_CM_TCP, NULL, &w->id[i]))
        return;
    cm_route(w->id[i], &path, 80);
    cm_connect(w->id[i], w->now, &p, UROCE_MTU_4096, 14);
}

static void act(struct world *w, struct rng *r, uint8_t op, uint8_t bits)
{
    unsigned i = bits % IDS;
    struct uroce_cm_param p = {.qp_num = 7, .private_data = "x", .private_len = bits & 1};
    struct cm_qp q;

    if (op < 120) {
        receive(w, r, bits);
        return;
    }
    if (op < 150) {
        connect(w, i, bits);
        return;
    }
    if (op < 170) {
        w->now += (uint64_t)bits * bits * 1000000;
        cm_tick(w->e, w->now);
        return;
    }
    if (!w->id[i])
        return;
    if (op < 200) {
        cm_accept(w->id[i], w->now, &p);
    } else if (op < 220) {
        cm_establish(w->id[i], w->now, NULL, 0);
        cm_qp(w->id[i], &q);
    } else if (op < 230) {
        cm_reject(w->id[i], w->now, UROCE_CM_REJ_CONSUMER, "no", 2);
    } else if (op < 242) {
        cm_disconnect(w->id[i], w->now, NULL, 0);
    } else {
        cm_id_free(w->id[i], w->now);
        w->id[i] = NULL;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct cm_ops ops = {.event = on_event};
    static const struct uroce_cm_addr any = {.port = 80};
    struct world w = {.now = 1};
    struct cm_config c = {.seed = size, .ca_guid = 1, .id_slot = 1, .max_ids = 40, .ops = &ops, .ctx = &w};
    struct cm_stats st;
    struct rng r;

    rng_seed(&r, size ? data[0] : 0);
    CHECK(!cm_new(&c, &w.e));
    for (int k = 0; k < 2; k++) {
        CHECK(!cm_id_new(w.e, k ? UROCE_CM_UDP : UROCE_CM_TCP, NULL, &w.listener[k]));
        CHECK(!cm_bind(w.listener[k], &any, 0) && !cm_listen(w.listener[k], 4));
    }
    for (size_t at = 0; at + 1 < size; at += 2) {
        act(&w, &r, data[at], data[at + 1]);
        send_all(&w);
        cm_stats(w.e, &st);
        CHECK(st.ids <= 40);
    }
    for (unsigned i = 0; i < IDS; i++)
        if (w.id[i])
            cm_id_free(w.id[i], w.now);
    for (int k = 0; k < 2; k++)
        cm_id_free(w.listener[k], w.now);
    for (uint64_t t; (t = cm_deadline(w.e)) != UINT64_MAX;) {
        w.now = t > w.now ? t : w.now;
        cm_tick(w.e, w.now);
        send_all(&w);
    }
    send_all(&w);
    cm_stats(w.e, &st);
    CHECK(st.ids == 0);
    cm_free(w.e);
    return 0;
}
