/* What both drop-in libraries are built with: what UROCE_DEBUG says, and attributes of the device's for programs. */
#include "verbs_priv.h"

#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

__attribute__((constructor)) static void init(void)
{
    const char *debug = getenv("UROCE_DEBUG");
    if (debug && *debug && strcmp(debug, "0") != 0)
        log_set_level(LOG_LVL_DEBUG);
}

void vb_debug(const char *fmt, ...)
{
    char line[512];
    va_list ap;
    if (!log_enabled(LOG_LVL_DEBUG))
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    log_write(LOG_LVL_DEBUG, LOG_COMPONENT, "%s", line);
}

bool vb_gid_is_v4(const uint8_t raw[16])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    return memcmp(raw, mapped, sizeof mapped) == 0;
}

void vb_ah_attr_back(const struct uroce_ah_attr *a, uint8_t port, struct ibv_ah_attr *ret)
{
    *ret = (struct ibv_ah_attr){
        .grh = {.flow_label = a->flow_label,
                .sgid_index = a->sgid_index,
                .hop_limit = a->hop_limit,
                .traffic_class = a->traffic_class},
        .sl = a->sl,
        .is_global = 1,
        .port_num = port,
    };
    memcpy(ret->grh.dgid.raw, a->dgid.raw, sizeof a->dgid.raw);
}

void vb_qp_attr_back(const struct uroce_qp_attr *a, uint8_t port, struct ibv_qp_attr *ret)
{
    *ret = (struct ibv_qp_attr){
        .qp_state = (enum ibv_qp_state)a->qp_state,
        .cur_qp_state = (enum ibv_qp_state)a->cur_qp_state,
        .path_mtu = (enum ibv_mtu)a->path_mtu,
        .qkey = a->qkey,
        .rq_psn = a->rq_psn,
        .sq_psn = a->sq_psn,
        .dest_qp_num = a->dest_qp_num,
        .qp_access_flags = a->qp_access_flags,
        .pkey_index = a->pkey_index,
        .en_sqd_async_notify = a->en_sqd_async_notify,
        .sq_draining = a->sq_draining,
        .max_rd_atomic = a->max_rd_atomic,
        .max_dest_rd_atomic = a->max_dest_rd_atomic,
        .min_rnr_timer = a->min_rnr_timer,
        .port_num = a->port_num,
        .timeout = a->timeout,
        .retry_cnt = a->retry_cnt,
        .rnr_retry = a->rnr_retry,
        .rate_limit = a->rate_limit,
    };
    vb_ah_attr_back(&a->ah_attr, port, &ret->ah_attr);
}
