/* For the tests of the communication manager: two engines, and nothing between them but what a test carries. */
#ifndef TESTS_CM_PAIR_H
#define TESTS_CM_PAIR_H

#include "base/util.h"
#include "cm/cm.h"
#include "roce/wire_gid.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS 1000000ull

struct node {
    struct cm_engine *e;
    struct cm_id *id, *new_id; /* of the last event; of the last request */
    struct uroce_cm_event ev;
    unsigned events;
    bool refuse;
};
static struct node A, B;
static uint64_t now;
static struct cm_tx last; /* the last message that was carried */
static struct wire_cm last_msg;
static unsigned carried;
static uint8_t mtu_of_b;

static inline bool on_event(void *ctx, struct cm_id *id, struct cm_id *listener, const struct uroce_cm_event *ev)
{
    struct node *n = ctx;
    n->ev = *ev;
    n->id = id;
    n->events++;
    if (listener)
        n->new_id = id;
    return !n->refuse;
}

static inline union uroce_gid gid(uint8_t last_byte)
{
    union uroce_gid g = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = last_byte}};
    return g;
}

static const struct cm_ops ops = {.event = on_event};

static inline void new_node(struct node *n, uint64_t guid)
{
    struct cm_config c = {
        .seed = guid * 99 + now, .ca_guid = guid, .id_slot = 5, .max_ids = 100, .ops = &ops, .ctx = n};
    memset(n, 0, sizeof *n);
    assert_int_equal(cm_new(&c, &n->e), 0);
}

static inline int setup(void **state)
{
    (void)state;
    new_node(&A, 1);
    new_node(&B, 2);
    now = 1;
    mtu_of_b = UROCE_MTU_4096;
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    cm_free(A.e);
    cm_free(B.e);
    return 0;
}

static inline void give(struct node *to, const struct cm_tx *tx)
{
    struct cm_path back = {.local = tx->path.remote, .remote = tx->path.local, .hop_limit = 64};
    cm_rx(to->e, now, &back, to == &B ? mtu_of_b : UROCE_MTU_4096, tx->mad, sizeof tx->mad);
}

/* One message from a node, if it has any. */
static inline bool take(struct node *n)
{
    if (!cm_tx(n->e, now, &last))
        return false;
    carried++;
    assert_int_equal(wire_cm_decode(last.mad, sizeof last.mad, &last_msg), 0);
    return true;
}

static inline void carry(void)
{
    bool more = true;
    while (more) {
        more = false;
        while (take(&A)) {
            give(&B, &last);
            more = true;
        }
        while (take(&B)) {
            give(&A, &last);
            more = true;
        }
    }
}

static inline struct cm_id *listener(struct node *n, enum uroce_cm_space space, uint16_t port, uint32_t backlog)
{
    struct uroce_cm_addr any = {.port = port};
    struct cm_id *id;
    assert_int_equal(cm_id_new(n->e, space, NULL, &id), 0);
    assert_int_equal(cm_bind(id, &any, 0), 0);
    assert_int_equal(cm_listen(id, backlog), 0);
    return id;
}

static inline struct cm_id *connecting(enum uroce_cm_space space, uint16_t port, uint32_t qpn)
{
    struct cm_path path = {.local = gid(1), .remote = gid(2), .hop_limit = 64};
    struct uroce_cm_param p = {.private_data = "hello",
                               .private_len = 5,
                               .qp_num = qpn,
                               .responder_resources = 3,
                               .initiator_depth = 5,
                               .retry_count = 6,
                               .rnr_retry_count = 4};
    struct cm_id *id;
    assert_int_equal(cm_id_new(A.e, space, NULL, &id), 0);
    assert_int_equal(cm_route(id, &path, port), 0);
    assert_int_equal(cm_connect(id, now, &p, UROCE_MTU_4096, 14), 0);
    return id;
}

static const struct uroce_cm_param yes = {
    .qp_num = 0x222, .qkey = 9, .responder_resources = 2, .initiator_depth = 1, .rnr_retry_count = 3};

static inline struct cm_id *connected(uint32_t qpn, struct cm_id **ret_passive)
{
    struct cm_id *id = connecting(UROCE_CM_TCP, 7174, qpn);
    carry();
    assert_int_equal(B.ev.type, UROCE_CM_CONNECT_REQUEST);
    assert_int_equal(cm_accept(B.new_id, now, &yes), 0);
    carry();
    assert_int_equal(A.ev.type, UROCE_CM_CONNECT_RESPONSE);
    struct cm_qp q; /* the PSN in a message is the receiver's first */
    assert_int_equal(cm_qp(id, &q), 0);
    assert_int_equal(q.sq_psn, last_msg.rep.psn);
    assert_int_equal(cm_establish(id, now, NULL, 0), 0);
    carry();
    assert_int_equal(B.ev.type, UROCE_CM_ESTABLISHED);
    *ret_passive = B.new_id;
    return id;
}

#endif
