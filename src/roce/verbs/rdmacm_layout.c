/* The layouts that programs were compiled with (x86-64 and other LP64; rdma-core 44): they do not change. */
#include "rdmacm_priv.h"

#if defined(__LP64__)
#define SIZE(t, n)      _Static_assert(sizeof(struct t) == (n), "the size of struct " #t)
#define OFFSET(t, m, n) _Static_assert(offsetof(struct t, m) == (n), "where " #m " lies in struct " #t)

SIZE(rdma_cm_id, 416);
OFFSET(rdma_cm_id, channel, 8);
OFFSET(rdma_cm_id, context, 16);
OFFSET(rdma_cm_id, qp, 24);
OFFSET(rdma_cm_id, route, 32);
OFFSET(rdma_cm_id, route.addr.dst_addr, 32 + 128);
OFFSET(rdma_cm_id, route.addr.addr, 32 + 256);
OFFSET(rdma_cm_id, ps, 344);
OFFSET(rdma_cm_id, port_num, 348);
OFFSET(rdma_cm_id, event, 352);
OFFSET(rdma_cm_id, srq, 392);
OFFSET(rdma_cm_id, pd, 400);
OFFSET(rdma_cm_id, qp_type, 408);
OFFSET(cma_id, id, 0);

SIZE(rdma_cm_event, 80);
OFFSET(rdma_cm_event, event, 16);
OFFSET(rdma_cm_event, status, 20);
OFFSET(rdma_cm_event, param, 24);
SIZE(rdma_conn_param, 24);
SIZE(rdma_ud_param, 56);
OFFSET(rdma_ud_param, ah_attr, 16);
OFFSET(rdma_ud_param, qp_num, 48);
SIZE(rdma_addrinfo, 96);
OFFSET(rdma_addrinfo, ai_src_addr, 24);
OFFSET(rdma_addrinfo, ai_next, 88);
SIZE(rdma_event_channel, 4);
#endif

/* Numbers that are passed on as they are. */
_Static_assert((int)UROCE_CM_CONNECT_REQUEST == RDMA_CM_EVENT_CONNECT_REQUEST &&
                   (int)UROCE_CM_CONNECT_RESPONSE == RDMA_CM_EVENT_CONNECT_RESPONSE &&
                   (int)UROCE_CM_UNREACHABLE == RDMA_CM_EVENT_UNREACHABLE &&
                   (int)UROCE_CM_REJECTED == RDMA_CM_EVENT_REJECTED &&
                   (int)UROCE_CM_ESTABLISHED == RDMA_CM_EVENT_ESTABLISHED &&
                   (int)UROCE_CM_DISCONNECTED == RDMA_CM_EVENT_DISCONNECTED &&
                   (int)UROCE_CM_TIMEWAIT_EXIT == RDMA_CM_EVENT_TIMEWAIT_EXIT,
               "events");
_Static_assert((int)UROCE_CM_TCP == RDMA_PS_TCP && (int)UROCE_CM_UDP == RDMA_PS_UDP && (int)UROCE_CM_IB == RDMA_PS_IB &&
                   (int)UROCE_CM_IPOIB == RDMA_PS_IPOIB,
               "port spaces");
_Static_assert((int)UROCE_QP_STATE == IBV_QP_STATE && (int)UROCE_QP_DEST_QPN == IBV_QP_DEST_QPN &&
                   (int)UROCE_QP_RATE_LIMIT == IBV_QP_RATE_LIMIT && (int)UROCE_QPS_ERR == IBV_QPS_ERR &&
                   (int)UROCE_MTU_4096 == IBV_MTU_4096 && UROCE_UD_QKEY == RDMA_UDP_QKEY,
               "attributes of queue pairs");
