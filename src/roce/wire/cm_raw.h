/* Messages of the communication manager as they lie on the wire, behind the common MAD header (IBTA 12.6). */
#ifndef WIRE_CM_RAW_H
#define WIRE_CM_RAW_H

#include "roce/wire_cm.h"

#define CM_CLASS_VERSION 2u

struct raw_path {
    be16 local_lid, remote_lid;
    uint8_t local_gid[16], remote_gid[16];
    be32 flow_rate; /* flow label 20, reserved 6, packet rate 6 */
    uint8_t traffic_class, hop_limit;
    uint8_t sl_subnet_local; /* SL 4, subnet local 1 */
    uint8_t ack_timeout;     /* 5, reserved 3 */
};

struct raw_req {
    be32 local_id;
    uint8_t zero;
    be24 vendor_id;
    be64 service_id, ca_guid;
    uint8_t zero2[4];
    be32 qkey;
    be24 qpn;
    uint8_t responder_resources;
    be24 eecn;
    uint8_t initiator_depth;
    be24 remote_eecn;
    uint8_t remote_timeout_transport_flow; /* 5, 2, 1 */
    be24 psn;
    uint8_t local_timeout_retry; /* 5, 3 */
    be16 pkey;
    uint8_t mtu_rdc_rnr;     /* 4, 1, 3 */
    uint8_t retries_srq_ext; /* 4, 1, 3 */
    struct raw_path primary, alternate;
    uint8_t private_data[WIRE_CM_REQ_PRIVATE];
};

struct raw_mra {
    be32 local_id, remote_id;
    uint8_t answered;        /* 2 */
    uint8_t service_timeout; /* 5 */
    uint8_t private_data[WIRE_CM_MRA_PRIVATE];
};

struct raw_rej {
    be32 local_id, remote_id;
    uint8_t answered; /* 2 */
    uint8_t info_len; /* 7 */
    be16 reason;
    uint8_t info[WIRE_CM_INFO_MAX];
    uint8_t private_data[WIRE_CM_REJ_PRIVATE];
};

struct raw_rep {
    be32 local_id, remote_id;
    be32 qkey;
    be24 qpn;
    uint8_t vendor_h;
    be24 eecn;
    uint8_t vendor_m;
    be24 psn;
    uint8_t vendor_l;
    uint8_t responder_resources, initiator_depth;
    uint8_t delay_failover_flow; /* 5, 2, 1 */
    uint8_t rnr_srq;             /* 3, 1 */
    be64 ca_guid;
    uint8_t private_data[WIRE_CM_REP_PRIVATE];
};

struct raw_ids { /* RTU, DREP */
    be32 local_id, remote_id;
    uint8_t private_data[WIRE_CM_RTU_PRIVATE];
};

struct raw_dreq {
    be32 local_id, remote_id;
    be24 qpn;
    uint8_t zero;
    uint8_t private_data[WIRE_CM_DREQ_PRIVATE];
};

struct raw_sidr_req {
    be32 request_id;
    be16 pkey, zero;
    be64 service_id;
    uint8_t private_data[WIRE_CM_SIDR_REQ_PRIVATE];
};

struct raw_sidr_rep {
    be32 request_id;
    uint8_t status, info_len;
    be16 vendor_h; /* bits 23..8 of the vendor id, and here 7..0: */
    be24 qpn;
    uint8_t vendor_l;
    be64 service_id;
    be32 qkey;
    uint8_t info[WIRE_CM_INFO_MAX];
    uint8_t private_data[WIRE_CM_SIDR_REP_PRIVATE];
};

struct raw_apr {
    be32 local_id, remote_id;
    uint8_t info_len, status;
    uint8_t zero[2];
    uint8_t info[WIRE_CM_INFO_MAX];
    uint8_t private_data[WIRE_CM_APR_PRIVATE];
};

/* All behind the common header. */
union raw_cm {
    struct raw_req req;
    struct raw_mra mra;
    struct raw_rej rej;
    struct raw_rep rep;
    struct raw_ids ids;
    struct raw_dreq dreq;
    struct raw_sidr_req sidr_req;
    struct raw_sidr_rep sidr_rep;
    struct raw_apr apr;
};

struct raw_cma {
    uint8_t version, ip_version; /* ip_version: high 4 bits */
    be16 port;
    uint8_t src[16], dst[16]; /* IPv4: the last 4 bytes */
};

#endif
