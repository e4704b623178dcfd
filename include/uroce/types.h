/*
 * uroce: the types of its verbs. C11 and C++.
 *
 * Names, values and semantics are those of the verbs (InfiniBand Architecture Specification, volume 1, chapter 11;
 * ibv_*(3) of rdma-core): who knows those knows these. Numbers are equal to rdma-core's, so that the drop-in libraries
 * translate nothing but structure layouts. All integers are in host order, a GID in network order.
 */
#ifndef UROCE_TYPES_H
#define UROCE_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UROCE_QPN_MAX    0xFFFFFFu /* queue pair numbers, PSNs and message sequence numbers have 24 bits */
#define UROCE_PSN_MASK   0xFFFFFFu
#define UROCE_MSG_MAX    0x40000000u /* bytes of a message, 1 GiB; a UD message is at most the path MTU */
#define UROCE_SGE_MAX    16u         /* pieces of one request */
#define UROCE_INLINE_MAX 256u        /* bytes of an inline request */
#define UROCE_WR_MAX     16384u      /* requests in a send, receive or shared receive queue */
#define UROCE_CQE_MAX    (1u << 20)  /* entries of a completion queue */
#define UROCE_RD_ATOMIC  16u         /* READs and atomics under way in one direction of a queue pair */
#define UROCE_MCAST_GROUPS 1024u     /* multicast groups of a device, and queue pairs in one */
#define UROCE_MCAST_QPS    1024u
#define UROCE_GRH_BYTES  40u         /* in front of a received UD message: the GRH, or 20 bytes and the IPv4 header */

/* An address: an IPv6 address, or an IPv4 address as ::ffff:a.b.c.d. */
union uroce_gid {
    uint8_t raw[16];
    struct {
        uint64_t subnet_prefix, interface_id; /* network order */
    } global;
};

enum uroce_mtu { UROCE_MTU_256 = 1, UROCE_MTU_512, UROCE_MTU_1024, UROCE_MTU_2048, UROCE_MTU_4096 };

enum uroce_qp_type {
    UROCE_QPT_RC = 2,
    UROCE_QPT_UC = 3,
    UROCE_QPT_UD = 4,
    UROCE_QPT_XRC_SEND = 9,
    UROCE_QPT_XRC_RECV = 10,
};

enum uroce_qp_state {
    UROCE_QPS_RESET,
    UROCE_QPS_INIT,
    UROCE_QPS_RTR,
    UROCE_QPS_RTS,
    UROCE_QPS_SQD,
    UROCE_QPS_SQE,
    UROCE_QPS_ERR,
};

enum uroce_access {
    UROCE_ACCESS_LOCAL_WRITE = 1 << 0,
    UROCE_ACCESS_REMOTE_WRITE = 1 << 1, /* needs LOCAL_WRITE, as REMOTE_ATOMIC does */
    UROCE_ACCESS_REMOTE_READ = 1 << 2,
    UROCE_ACCESS_REMOTE_ATOMIC = 1 << 3,
    UROCE_ACCESS_MW_BIND = 1 << 4,
    UROCE_ACCESS_ZERO_BASED = 1 << 5, /* remote addresses count from 0 at the begin of the region or window */
};

/* ---- work requests: laid out in memory like those of rdma-core, which are handed on as they are ---- */

struct uroce_sge {
    uint64_t addr;
    uint32_t length;
    uint32_t lkey;
};

enum uroce_wr_opcode {
    UROCE_WR_RDMA_WRITE,
    UROCE_WR_RDMA_WRITE_WITH_IMM,
    UROCE_WR_SEND,
    UROCE_WR_SEND_WITH_IMM,
    UROCE_WR_RDMA_READ,
    UROCE_WR_ATOMIC_CMP_AND_SWP,
    UROCE_WR_ATOMIC_FETCH_AND_ADD,
    UROCE_WR_LOCAL_INV,
    UROCE_WR_BIND_MW,
    UROCE_WR_SEND_WITH_INV,
};

enum uroce_send_flags {
    UROCE_SEND_FENCE = 1 << 0, /* begin only when all earlier READs and atomics of the queue are complete */
    UROCE_SEND_SIGNALED = 1 << 1,
    UROCE_SEND_SOLICITED = 1 << 2,
    UROCE_SEND_INLINE = 1 << 3, /* the bytes are copied when the request is posted; lkey is not looked at */
};

struct uroce_ah;
struct uroce_mw;
struct uroce_mr;

struct uroce_mw_bind_info {
    struct uroce_mr *mr; /* NULL with length 0 unbinds a type 1 window */
    uint64_t addr, length;
    unsigned int access; /* UROCE_ACCESS_REMOTE_*, ZERO_BASED */
};

struct uroce_send_wr {
    uint64_t wr_id;
    struct uroce_send_wr *next;
    struct uroce_sge *sg_list;
    int num_sge;
    enum uroce_wr_opcode opcode;
    unsigned int send_flags;
    union {
        uint32_t imm_data; /* network order: passed on as it is */
        uint32_t invalidate_rkey;
    };
    union {
        struct {
            uint64_t remote_addr;
            uint32_t rkey;
        } rdma;
        struct {
            uint64_t remote_addr; /* a multiple of 8 */
            uint64_t compare_add, swap;
            uint32_t rkey;
        } atomic; /* one SGE of 8 bytes, which takes the old value */
        struct {
            struct uroce_ah *ah;
            uint32_t remote_qpn, remote_qkey; /* a Q_Key with the highest bit set stands for the queue pair's own */
        } ud;
    } wr;
    uint32_t xrc_remote_srqn; /* XRC_SEND queue pairs */
    struct {
        struct uroce_mw *mw;
        uint32_t rkey; /* the new key: same index as the window's, any key byte (type 2); type 1: 0, or likewise */
        struct uroce_mw_bind_info bind;
    } bind_mw;
};

struct uroce_recv_wr {
    uint64_t wr_id;
    struct uroce_recv_wr *next;
    struct uroce_sge *sg_list;
    int num_sge;
};

/* ---- completions ---- */

enum uroce_wc_status {
    UROCE_WC_SUCCESS,
    UROCE_WC_LOC_LEN_ERR,
    UROCE_WC_LOC_QP_OP_ERR,
    UROCE_WC_LOC_EEC_OP_ERR,
    UROCE_WC_LOC_PROT_ERR,
    UROCE_WC_WR_FLUSH_ERR,
    UROCE_WC_MW_BIND_ERR,
    UROCE_WC_BAD_RESP_ERR,
    UROCE_WC_LOC_ACCESS_ERR,
    UROCE_WC_REM_INV_REQ_ERR,
    UROCE_WC_REM_ACCESS_ERR,
    UROCE_WC_REM_OP_ERR,
    UROCE_WC_RETRY_EXC_ERR,
    UROCE_WC_RNR_RETRY_EXC_ERR,
    UROCE_WC_LOC_RDD_VIOL_ERR,
    UROCE_WC_REM_INV_RD_REQ_ERR,
    UROCE_WC_REM_ABORT_ERR,
    UROCE_WC_INV_EECN_ERR,
    UROCE_WC_INV_EEC_STATE_ERR,
    UROCE_WC_FATAL_ERR,
    UROCE_WC_RESP_TIMEOUT_ERR,
    UROCE_WC_GENERAL_ERR,
};

enum uroce_wc_opcode {
    UROCE_WC_SEND,
    UROCE_WC_RDMA_WRITE,
    UROCE_WC_RDMA_READ,
    UROCE_WC_COMP_SWAP,
    UROCE_WC_FETCH_ADD,
    UROCE_WC_BIND_MW,
    UROCE_WC_LOCAL_INV,
    UROCE_WC_RECV = 1 << 7, /* receives have this bit */
    UROCE_WC_RECV_RDMA_WITH_IMM,
};

enum uroce_wc_flags {
    UROCE_WC_GRH = 1 << 0,
    UROCE_WC_WITH_IMM = 1 << 1,
    UROCE_WC_WITH_INV = 1 << 3,
    UROCE_WC_SLOT_VALUE = 1 << 16, /* slot_value is set */
};

/* With a status other than SUCCESS only wr_id, status, qp_num and vendor_err hold. */
struct uroce_wc {
    uint64_t wr_id;
    enum uroce_wc_status status;
    enum uroce_wc_opcode opcode;
    uint32_t vendor_err; /* the AETH syndrome that ended the request, or 0 */
    uint32_t byte_len;   /* receives, READs and atomics; a UD receive counts the GRH's 40 bytes */
    union {
        uint32_t imm_data; /* network order */
        uint32_t invalidated_rkey;
    };
    uint32_t qp_num;
    uint32_t src_qp; /* UD; XRC: the number of the SRQ */
    unsigned int wc_flags;
    uint16_t pkey_index, slid;
    uint8_t sl; /* UD: the kind of network header, as adapters tell it: 2 IPv4, 1 IPv6 */
    uint8_t dlid_path_bits;
    uint64_t slot_value;   /* what a service slot left for this message (docs/roce.md, service slots) */
    uint64_t timestamp_ns; /* CLOCK_MONOTONIC, when the device looked at what completed it */
};

/* ---- queue pairs ---- */

struct uroce_ah_attr {
    union uroce_gid dgid;
    uint8_t sgid_index, hop_limit, traffic_class, sl;
    uint32_t flow_label; /* 20 bits */
};

struct uroce_qp_cap {
    uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
};

/* Which members of uroce_qp_attr a modify sets; which are needed and allowed in a transition: IBTA table 96. */
enum uroce_qp_attr_mask {
    UROCE_QP_STATE = 1 << 0,
    UROCE_QP_CUR_STATE = 1 << 1,
    UROCE_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2,
    UROCE_QP_ACCESS_FLAGS = 1 << 3,
    UROCE_QP_PKEY_INDEX = 1 << 4,
    UROCE_QP_PORT = 1 << 5,
    UROCE_QP_QKEY = 1 << 6,
    UROCE_QP_AV = 1 << 7,
    UROCE_QP_PATH_MTU = 1 << 8,
    UROCE_QP_TIMEOUT = 1 << 9,
    UROCE_QP_RETRY_CNT = 1 << 10,
    UROCE_QP_RNR_RETRY = 1 << 11,
    UROCE_QP_RQ_PSN = 1 << 12,
    UROCE_QP_MAX_QP_RD_ATOMIC = 1 << 13,
    UROCE_QP_ALT_PATH = 1 << 14,
    UROCE_QP_MIN_RNR_TIMER = 1 << 15,
    UROCE_QP_SQ_PSN = 1 << 16,
    UROCE_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
    UROCE_QP_PATH_MIG_STATE = 1 << 18,
    UROCE_QP_CAP = 1 << 19,
    UROCE_QP_DEST_QPN = 1 << 20,
    UROCE_QP_RATE_LIMIT = 1 << 25,
};

struct uroce_qp_attr {
    enum uroce_qp_state qp_state, cur_qp_state;
    enum uroce_mtu path_mtu;
    uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
    unsigned int qp_access_flags;
    struct uroce_qp_cap cap;
    struct uroce_ah_attr ah_attr;
    uint16_t pkey_index;
    uint8_t en_sqd_async_notify, sq_draining;
    uint8_t max_rd_atomic, max_dest_rd_atomic; /* 0..UROCE_RD_ATOMIC */
    uint8_t min_rnr_timer;                     /* encoding of IBTA table 45 */
    uint8_t port_num;                          /* 1 */
    uint8_t timeout;                           /* 4.096 us * 2^timeout; 0: for ever */
    uint8_t retry_cnt;                         /* 0..7 */
    uint8_t rnr_retry;                         /* 0..7; 7: for ever */
    uint32_t rate_limit;                       /* kbit/s; 0: none */
};

/* ---- events that belong to no completion ---- */

enum uroce_event_type {
    UROCE_EVENT_CQ_ERR,
    UROCE_EVENT_QP_FATAL,
    UROCE_EVENT_QP_REQ_ERR,
    UROCE_EVENT_QP_ACCESS_ERR,
    UROCE_EVENT_COMM_EST,
    UROCE_EVENT_SQ_DRAINED,
    UROCE_EVENT_PATH_MIG,
    UROCE_EVENT_PATH_MIG_ERR,
    UROCE_EVENT_DEVICE_FATAL,
    UROCE_EVENT_PORT_ACTIVE,
    UROCE_EVENT_PORT_ERR,
    UROCE_EVENT_LID_CHANGE,
    UROCE_EVENT_PKEY_CHANGE,
    UROCE_EVENT_SM_CHANGE,
    UROCE_EVENT_SRQ_ERR,
    UROCE_EVENT_SRQ_LIMIT_REACHED,
    UROCE_EVENT_QP_LAST_WQE_REACHED,
    UROCE_EVENT_CLIENT_REREGISTER,
    UROCE_EVENT_GID_CHANGE,
};

/* ---- counters: read while running; they only grow ---- */

struct uroce_counters {
    uint64_t tx_pkts, tx_bytes, rx_pkts, rx_bytes; /* bytes: payload */
    uint64_t retransmits;                          /* packets sent again */
    uint64_t timeouts;                             /* local ACK time-outs */
    uint64_t nak_seq_tx, nak_seq_rx, rnr_nak_tx, rnr_nak_rx, nak_other_tx, nak_other_rx;
    uint64_t duplicates, out_of_order; /* requests that came again; packets past a gap */
    uint64_t selective_acks_tx, selective_acks_rx;
    uint64_t ecn_marked_rx, cnp_tx, cnp_rx;
    /* Packets dropped, by reason. */
    uint64_t drop_icrc, drop_malformed, drop_no_qp, drop_state, drop_source, drop_pkey, drop_qkey, drop_opcode,
        drop_length, drop_no_receive, drop_slot, drop_other;
    uint64_t tx_drops, rx_overruns;  /* lost in this host: could not be sent; receive buffer full */
    uint64_t icrc_full, icrc_solved; /* checks passed: all 32 bits; with the IPv4 id solved for, which leaves 16 */
};

#ifdef __cplusplus
}
#endif
#endif
