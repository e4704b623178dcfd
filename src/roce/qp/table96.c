#include "table96.h"

#include <errno.h>
#include <stddef.h>

#define A(x) UROCE_QP_##x

enum column { COL_RC, COL_UC, COL_UD, COL_XRC_SEND, COL_XRC_RECV, COLS };

struct rule {
    uint8_t from, to;
    unsigned int required[COLS], optional[COLS];
};

#define CONNECTED(x)   [COL_RC] = (x), [COL_UC] = (x), [COL_XRC_SEND] = (x), [COL_XRC_RECV] = (x)
#define INIT_CONNECTED (A(PKEY_INDEX) | A(PORT) | A(ACCESS_FLAGS))
#define INIT_UD        (A(PKEY_INDEX) | A(PORT) | A(QKEY))
#define RTR_BASE       (A(AV) | A(PATH_MTU) | A(DEST_QPN) | A(RQ_PSN))
#define RTR_RESPONDER  (RTR_BASE | A(MAX_DEST_RD_ATOMIC) | A(MIN_RNR_TIMER))
#define RTR_OPTIONAL   (A(ACCESS_FLAGS) | A(PKEY_INDEX))
#define RTS_REQUESTER  (A(TIMEOUT) | A(RETRY_CNT) | A(RNR_RETRY) | A(SQ_PSN) | A(MAX_QP_RD_ATOMIC))
#define MOVE           (A(CUR_STATE) | A(ACCESS_FLAGS) | A(PATH_MIG_STATE) | A(RATE_LIMIT))
#define MOVE_UD        (A(CUR_STATE) | A(QKEY) | A(RATE_LIMIT))
#define RTS_OPTIONAL                                                                                                   \
    {                                                                                                                  \
        [COL_RC] = MOVE | A(MIN_RNR_TIMER), [COL_UC] = MOVE, [COL_UD] = MOVE_UD, [COL_XRC_SEND] = MOVE,                \
        [COL_XRC_RECV] = MOVE | A(MIN_RNR_TIMER)                                                                       \
    }
#define SQD_SEND (A(PORT) | A(AV) | A(TIMEOUT) | A(RETRY_CNT) | A(RNR_RETRY) | A(MAX_QP_RD_ATOMIC))
#define SQD_ANY  (A(ACCESS_FLAGS) | A(PKEY_INDEX) | A(PATH_MIG_STATE))

static const struct rule rules[] = {
    {UROCE_QPS_RESET, UROCE_QPS_INIT, {CONNECTED(INIT_CONNECTED), [COL_UD] = INIT_UD}, {0}},
    {UROCE_QPS_INIT, UROCE_QPS_INIT, {0}, {CONNECTED(INIT_CONNECTED), [COL_UD] = INIT_UD}},
    {UROCE_QPS_INIT,
     UROCE_QPS_RTR,
     {[COL_RC] = RTR_RESPONDER, [COL_UC] = RTR_BASE, [COL_XRC_SEND] = RTR_BASE, [COL_XRC_RECV] = RTR_RESPONDER},
     {CONNECTED(RTR_OPTIONAL), [COL_UD] = A(PKEY_INDEX) | A(QKEY)}},
    {UROCE_QPS_RTR,
     UROCE_QPS_RTS,
     {[COL_RC] = RTS_REQUESTER,
      [COL_UC] = A(SQ_PSN),
      [COL_UD] = A(SQ_PSN),
      [COL_XRC_SEND] = RTS_REQUESTER,
      [COL_XRC_RECV] = A(TIMEOUT) | A(SQ_PSN)},
     RTS_OPTIONAL},
    {UROCE_QPS_RTS, UROCE_QPS_RTS, {0}, RTS_OPTIONAL},
    {UROCE_QPS_RTS, UROCE_QPS_SQD, {0}, {CONNECTED(A(EN_SQD_ASYNC_NOTIFY)), [COL_UD] = A(EN_SQD_ASYNC_NOTIFY)}},
    {UROCE_QPS_SQD, UROCE_QPS_RTS, {0}, RTS_OPTIONAL},
    {UROCE_QPS_SQD,
     UROCE_QPS_SQD,
     {0},
     {[COL_RC] = SQD_SEND | SQD_ANY | A(MAX_DEST_RD_ATOMIC) | A(MIN_RNR_TIMER),
      [COL_UC] = A(AV) | SQD_ANY,
      [COL_UD] = A(PKEY_INDEX) | A(QKEY),
      [COL_XRC_SEND] = SQD_SEND | SQD_ANY,
      [COL_XRC_RECV] = A(PORT) | A(AV) | A(TIMEOUT) | A(MAX_DEST_RD_ATOMIC) | A(MIN_RNR_TIMER) | SQD_ANY}},
    {UROCE_QPS_SQE, UROCE_QPS_RTS, {0}, {[COL_UC] = A(CUR_STATE) | A(ACCESS_FLAGS), [COL_UD] = A(CUR_STATE) | A(QKEY)}},
};

static enum column column_of(enum uroce_qp_type type)
{
    switch (type) {
    case UROCE_QPT_RC:
        return COL_RC;
    case UROCE_QPT_UC:
        return COL_UC;
    case UROCE_QPT_UD:
        return COL_UD;
    case UROCE_QPT_XRC_SEND:
        return COL_XRC_SEND;
    case UROCE_QPT_XRC_RECV:
        return COL_XRC_RECV;
    }
    return COLS;
}

int table96_check(enum uroce_qp_type type, enum uroce_qp_state from, enum uroce_qp_state to, unsigned int mask)
{
    enum column c = column_of(type);

    mask &= ~(unsigned int)UROCE_QP_STATE;
    if (c == COLS)
        return -EINVAL;
    if (to == UROCE_QPS_RESET || to == UROCE_QPS_ERR) /* from everywhere, and nothing else with it */
        return mask & ~(unsigned int)UROCE_QP_CUR_STATE ? -EINVAL : 0;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const struct rule *r = &rules[i];
        if (r->from != from || r->to != to)
            continue;
        if ((mask & r->required[c]) != r->required[c] || mask & ~(r->required[c] | r->optional[c]))
            return -EINVAL;
        return 0;
    }
    return -EINVAL;
}
