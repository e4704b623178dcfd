/* What a queue pair needs to be told on its way to INIT, RTR and RTS (IBTA table 96, the required attributes). */
#ifndef TESTS_QP_MASK_H
#define TESTS_QP_MASK_H

#include "uroce/types.h"

static inline unsigned int qp_mask(enum uroce_qp_type type, enum uroce_qp_state to)
{
    unsigned int rc = type == UROCE_QPT_RC ? ~0u : 0, connected = type == UROCE_QPT_UD ? 0 : ~0u;

    switch (to) {
    case UROCE_QPS_INIT:
        return UROCE_QP_STATE | UROCE_QP_PKEY_INDEX | UROCE_QP_PORT |
               (connected ? (unsigned int)UROCE_QP_ACCESS_FLAGS : (unsigned int)UROCE_QP_QKEY);
    case UROCE_QPS_RTR:
        return UROCE_QP_STATE | (connected & (UROCE_QP_AV | UROCE_QP_PATH_MTU | UROCE_QP_DEST_QPN | UROCE_QP_RQ_PSN)) |
               (rc & (UROCE_QP_MAX_DEST_RD_ATOMIC | UROCE_QP_MIN_RNR_TIMER));
    case UROCE_QPS_RTS:
        return UROCE_QP_STATE | UROCE_QP_SQ_PSN |
               (rc & (UROCE_QP_TIMEOUT | UROCE_QP_RETRY_CNT | UROCE_QP_RNR_RETRY | UROCE_QP_MAX_QP_RD_ATOMIC));
    default:
        return UROCE_QP_STATE;
    }
}

#endif
