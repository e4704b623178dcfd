/*
 * The completer's state machine (RC, XRC; IBTA 9.7.5.1 and 9.7.7): what comes back for requests. Each state returns the
 * next.
 *
 *     CHECK        ACK, SACK, NAK, RESPONSE; of packets that are not outstanding: OLD; not for this queue pair: WRONG
 *     ACK          the window moves on; a READ or atomic before it that is not answered: MISSING
 *     SACK         an ACK, then what arrived past a gap
 *     NAK          acknowledges all before it, then RNR, SEQUENCE or ERR_REMOTE; MISSING as with ACK
 *     RNR          waits, then goes back; too often: ERR_RNR
 *     SEQUENCE     goes back; too often without progress: ERR_RETRY
 *     RESPONSE     acknowledges all before it; not the one that is due: EARLY, else TAKE
 *     EARLY        kept (selective repeat); MISSING
 *     MISSING      the READ or atomic is asked for again, once as long as nothing else moves
 *     TAKE         what it is and its length: else ERR_RESPONSE; a slot: LOST, ERR_SLOT; memory: ERR_MEMORY
 *     ADVANCE      the window moves on; perhaps the request is complete
 *
 * An error completes the oldest request with its status, and ends the queue pair.
 */
#ifndef QP_COMP_H
#define QP_COMP_H

#include "impl.h"

#define COMP_STATES(X)                                                                                                 \
    X(CHECK)                                                                                                           \
    X(ACK)                                                                                                             \
    X(SACK)                                                                                                            \
    X(NAK)                                                                                                             \
    X(RNR)                                                                                                             \
    X(SEQUENCE)                                                                                                        \
    X(RESPONSE)                                                                                                        \
    X(EARLY)                                                                                                           \
    X(MISSING)                                                                                                         \
    X(TAKE)                                                                                                            \
    X(ADVANCE)                                                                                                         \
    X(OLD)                                                                                                             \
    X(WRONG)                                                                                                           \
    X(LOST)                                                                                                            \
    X(ERR_REMOTE)                                                                                                      \
    X(ERR_RNR)                                                                                                         \
    X(ERR_RETRY)                                                                                                       \
    X(ERR_RESPONSE)                                                                                                    \
    X(ERR_SLOT)                                                                                                        \
    X(ERR_MEMORY)                                                                                                      \
    X(DONE)

enum comp_state {
#define X(name) COMP_##name,
    COMP_STATES(X)
#undef X
};

/* One packet on its way. */
struct comp_step {
    struct qp *qp;
    uint64_t now;
    const struct qp_rx *rx;
    const struct wire_pkt *p;
    const struct wire_op *op;
};

/* comp_done.c */
bool comp_responds(const struct sq_wqe *w); /* READ, atomic */
/* n packets of the oldest request, w, are done. */
void comp_advance(struct qp *qp, const struct sq_wqe *w, uint32_t n);
/* Everything before psn has arrived. False: a READ or atomic before it is not answered. */
bool comp_ack_before(struct qp *qp, psn24 psn);

#endif
