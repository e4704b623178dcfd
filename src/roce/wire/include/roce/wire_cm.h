/*
 * Messages of the InfiniBand communication manager (IBTA volume 1, chapter 12): management datagrams of class 0x07,
 * version 2, method Send, to QP 1. And the header that the RDMA CM puts before the private data of a request (annex
 * A11, "RDMA IP CM service"): the addresses of both ends, so that an IP program connects as it is used to.
 *
 * The connection's course:
 *
 *     active                    passive
 *       REQ  ------------------>          wants a connection to a service id
 *            <------------------  MRA     (it takes a while: do not ask again soon)
 *            <------------------  REP     or REJ
 *       RTU  ------------------>          ready: both may send
 *       ...
 *       DREQ ------------------>          from either side
 *            <------------------  DREP
 *
 * SIDR_REQ and SIDR_REP ask for the queue pair number and key of a UD service.
 */
#ifndef ROCE_WIRE_CM_H
#define ROCE_WIRE_CM_H

#include "roce/wire_mad.h"
#include "uroce/types.h"

enum wire_cm_attr {
    WIRE_CM_REQ = 0x10,
    WIRE_CM_MRA,
    WIRE_CM_REJ,
    WIRE_CM_REP,
    WIRE_CM_RTU,
    WIRE_CM_DREQ,
    WIRE_CM_DREP,
    WIRE_CM_SIDR_REQ,
    WIRE_CM_SIDR_REP,
    WIRE_CM_LAP, /* load alternate path: refused by us, RoCE has none */
    WIRE_CM_APR,
};

/* Bytes of private data; always sent whole, padded with zeroes. */
#define WIRE_CM_REQ_PRIVATE      92u
#define WIRE_CM_MRA_PRIVATE      222u
#define WIRE_CM_REJ_PRIVATE      148u
#define WIRE_CM_REP_PRIVATE      196u
#define WIRE_CM_RTU_PRIVATE      224u
#define WIRE_CM_DREQ_PRIVATE     220u
#define WIRE_CM_DREP_PRIVATE     224u
#define WIRE_CM_SIDR_REQ_PRIVATE 216u
#define WIRE_CM_SIDR_REP_PRIVATE 136u
#define WIRE_CM_LAP_PRIVATE      168u
#define WIRE_CM_APR_PRIVATE      148u
#define WIRE_CM_PRIVATE_MAX      224u
#define WIRE_CM_INFO_MAX         72u /* additional information of REJ, APR and SIDR_REP */

enum wire_cm_transport { WIRE_CM_RC, WIRE_CM_UC, WIRE_CM_RD, WIRE_CM_EXTENDED /* XRC with ext_transport 1 */ };

/* Which message an MRA or REJ is about. */
enum wire_cm_answered { WIRE_CM_ANSWERED_REQ, WIRE_CM_ANSWERED_REP, WIRE_CM_ANSWERED_OTHER };

/* Reasons of a REJ (IBTA 12.6.7.2), those that we send or that tests name. */
enum wire_cm_reason {
    WIRE_CM_REJ_NO_QP = 1,
    WIRE_CM_REJ_NO_EEC,
    WIRE_CM_REJ_NO_RESOURCES,
    WIRE_CM_REJ_TIMEOUT,
    WIRE_CM_REJ_UNSUPPORTED,
    WIRE_CM_REJ_COMM_ID,
    WIRE_CM_REJ_COMM_INSTANCE,
    WIRE_CM_REJ_SERVICE_ID,
    WIRE_CM_REJ_TRANSPORT,
    WIRE_CM_REJ_STALE,
    WIRE_CM_REJ_GID = 12,
    WIRE_CM_REJ_MTU = 26,
    WIRE_CM_REJ_RESPONDER_RESOURCES = 27,
    WIRE_CM_REJ_CONSUMER = 28, /* the program says no */
    WIRE_CM_REJ_RNR_RETRY = 29,
    WIRE_CM_REJ_DUPLICATE_ID = 30,
    WIRE_CM_REJ_CLASS_VERSION = 31,
    WIRE_CM_REJ_VENDOR = 35, /* vendor option not supported */
};

enum wire_cm_sidr_status {
    WIRE_CM_SIDR_OK,
    WIRE_CM_SIDR_UNSUPPORTED, /* service id not supported */
    WIRE_CM_SIDR_REJECTED,    /* by the service */
    WIRE_CM_SIDR_NO_QP,
    WIRE_CM_SIDR_REDIRECT,
    WIRE_CM_SIDR_VERSION,
};

#define WIRE_CM_APR_UNSUPPORTED 2 /* alternate paths are not supported */

/* A path of a REQ, as the active side sees it: local is the sender of the REQ. */
struct wire_cm_path {
    uint16_t local_lid, remote_lid; /* RoCE: 0xffff */
    union uroce_gid local_gid, remote_gid;
    uint32_t flow_label; /* 20 bits */
    uint8_t rate;        /* 6 bits */
    uint8_t traffic_class, hop_limit;
    uint8_t sl; /* 4 bits */
    bool subnet_local;
    uint8_t ack_timeout; /* 5 bits */
};

struct wire_cm_req {
    uint64_t service_id, ca_guid;
    uint32_t qkey, qpn, eecn, remote_eecn; /* 24 bits but the Q_Key */
    uint32_t psn; /* 24 bits: with which the receiver of this message begins to send; so in a REP */
    uint32_t vendor_id;                    /* 24 bits: enhanced connection establishment */
    uint8_t responder_resources, initiator_depth;
    uint8_t remote_response_timeout, local_response_timeout; /* 5 bits: 4.096 us * 2^x */
    uint8_t transport;                                       /* 2 bits: enum wire_cm_transport */
    uint8_t ext_transport;                                   /* 3 bits: 1 is XRC */
    uint8_t retry_count, rnr_retry_count;                    /* 3 bits */
    uint8_t mtu;                                             /* 4 bits: enum uroce_mtu if the sender is sound */
    uint8_t max_cm_retries;                                  /* 4 bits */
    bool flow_control, rdc_exists, srq;
    uint16_t pkey;
    struct wire_cm_path primary, alternate; /* alternate: all zero if there is none */
};

struct wire_cm_rep {
    uint32_t qkey, qpn, eecn, psn, vendor_id;
    uint8_t responder_resources, initiator_depth;
    uint8_t target_ack_delay; /* 5 bits */
    uint8_t failover;         /* 2 bits */
    uint8_t rnr_retry_count;  /* 3 bits */
    bool flow_control, srq;
    uint64_t ca_guid;
};

struct wire_cm {
    enum wire_cm_attr attr;
    uint64_t tid;
    uint32_t attr_mod;            /* enhanced connection establishment: options; else 0 */
    uint32_t local_id, remote_id; /* communication ids, the sender's view. SIDR: local_id is the request id */
    union {
        struct wire_cm_req req;
        struct wire_cm_rep rep;
        struct {
            uint8_t answered;        /* 2 bits: enum wire_cm_answered */
            uint8_t service_timeout; /* 5 bits */
        } mra;
        struct {
            uint8_t answered;
            uint8_t info_len;
            uint16_t reason;
            uint8_t info[WIRE_CM_INFO_MAX];
        } rej;
        struct {
            uint32_t qpn; /* 24 bits: the receiver's */
        } dreq;
        struct {
            uint64_t service_id;
            uint16_t pkey;
        } sidr_req;
        struct {
            uint64_t service_id;
            uint32_t qpn, qkey, vendor_id;
            uint8_t status; /* enum wire_cm_sidr_status */
            uint8_t info_len;
            uint8_t info[WIRE_CM_INFO_MAX];
        } sidr_rep;
        struct {
            uint8_t status, info_len;
            uint8_t info[WIRE_CM_INFO_MAX];
        } apr;
    };
    /* As much as the message carries; behind that zeroes. */
    uint8_t private_data[WIRE_CM_PRIVATE_MAX];
};

/* Bytes of private data of a message; 0: there is no such attribute. */
unsigned wire_cm_private_bytes(enum wire_cm_attr attr);
/* "REQ"; "?" for an attribute that there is not. */
const char *wire_cm_name(enum wire_cm_attr attr);

/* 0, or -EINVAL: a field that is too wide, an unknown attribute. LAP is never sent: -EINVAL. */
int wire_cm_encode(const struct wire_cm *m, uint8_t ret_mad[WIRE_MAD_BYTES]);
/*
 * -ENOMSG: no message of the communication manager (another class, another method). -EPROTONOSUPPORT: another version
 * of the class (the ids are read, as far as this version knows where they lie, so that it can be refused).
 * -ENODATA: not a MAD's length. -EPROTO: an unknown attribute, a length that does not fit. Or 0. A LAP's path is not
 * read.
 */
int wire_cm_decode(const void *data, size_t len, struct wire_cm *ret);

/* ---- the RDMA CM ---- */

/* Port spaces: bits 16..31 of a service id; the port is in bits 0..15. */
enum wire_cma_space { WIRE_CMA_IPOIB = 0x0002, WIRE_CMA_TCP = 0x0106, WIRE_CMA_UDP = 0x0111, WIRE_CMA_IB = 0x013f };

static inline uint64_t wire_cma_service_id(uint16_t space, uint16_t port)
{
    return (uint64_t)space << 16 | port;
}

/* Is it of an IP port space: 0x00000000_SSSS_PPPP? Then its port space, else 0. */
static inline uint16_t wire_cma_space(uint64_t service_id)
{
    uint64_t s = service_id >> 16;
    return s == WIRE_CMA_IPOIB || s == WIRE_CMA_TCP || s == WIRE_CMA_UDP || s == WIRE_CMA_IB ? (uint16_t)s : 0;
}

/* At the begin of the private data of a REQ or SIDR_REQ. IPv4 addresses as ::ffff:a.b.c.d. */
#define WIRE_CMA_BYTES 36u
struct wire_cma {
    union uroce_gid src, dst;
    uint16_t src_port;
    bool v4; /* addresses are IPv4: both of them */
};
/* -EINVAL: addresses that are not both of the family that v4 tells. */
int wire_cma_encode(const struct wire_cma *h, uint8_t ret[WIRE_CMA_BYTES]);
/* -EPROTO: another version, neither IPv4 nor IPv6, or an IPv6 address that stands for an IPv4 one. */
int wire_cma_decode(const uint8_t data[WIRE_CMA_BYTES], struct wire_cma *ret);

#endif
