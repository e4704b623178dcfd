/* One end of a connection for tests of the queue-pair engine: an engine with a domain, memory, queues, a queue pair. */
#ifndef TEST_QP_END_H
#define TEST_QP_END_H

#include "qp_net.h"

#define QEND_MEM    (256 * 1024)
#define QEND_STATES 64

struct qend_opts {
    enum uroce_qp_type type; /* 0: RC */
    enum uroce_mtu mtu;      /* 0: 1024 */
    uint32_t sq_psn, rq_psn, wr, window_pkts, window_bytes;
    uint8_t rd_atomic, timeout, retry_cnt, rnr_retry, min_rnr_timer;
    bool srq, unsignalled, dcqcn;
    unsigned int access; /* of the memory; 0: all */
    unsigned int qp_access;
    uint32_t cqe, run_bytes;
    uint64_t total_bytes;
};

struct qend {
    struct qp_engine *e;
    struct qp_pd *pd;
    struct qp_cq *scq, *rcq;
    struct qp_mr *mr;
    struct qp_srq *srq;
    struct qp *qp;
    uint8_t *mem; /* QEND_MEM bytes; addresses are those of the process */
    int node;
    struct qend_opts o;
    uint32_t events[32];             /* by enum uroce_event_type */
    const char *states[QEND_STATES]; /* the last steps of the responder, newest last */
    int nstates;
    int cq_events;
    uint32_t room; /* in the send queue when the last of them came */
    void *mad_ctx;
    void (*mad)(void *ctx, const struct qp_path *from, const struct wire_pkt *pkt);
    enum qp_verdict (*payload)(struct qend *q, const struct qp_payload *p, uint64_t *ret_value, bool *ret_has);
    void *user;
    void (*let_go)(struct qend *q, const void *base, size_t len);
};

void qend_open(struct qend *q, struct qpnet *n, const struct qend_opts *o);
/* Another queue pair like the first, of the same engine. */
struct qp *qend_qp(struct qend *q);
/* To RTR and RTS, toward queue pair number dest of another end. */
int qend_connect_to(struct qend *q, struct qp *qp, uint64_t now, int node, uint32_t dest);
void qend_connect(struct qend *a, struct qend *b, uint64_t now);
void qend_close(struct qend *q);
/* Did the responder pass through that state since the last qend_forget? */
bool qend_saw(const struct qend *q, const char *state);
void qend_forget(struct qend *q);

/* Posts one request of one piece and rings the doorbell: 0 or -errno. */
int qend_send(struct qend *q, struct qpnet *n, struct uroce_send_wr *wr, void *addr, uint32_t len);
int qend_recv(struct qend *q, struct qpnet *n, uint64_t wr_id, void *addr, uint32_t len);

#endif
