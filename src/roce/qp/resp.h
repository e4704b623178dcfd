/*
 * The responder's state machine (RC, XRC; IBTA 9.7.4 and 9.7.5.2). One packet runs through the states of the left
 * column; each state returns the next.
 *
 *     MIDDLE           not a state: of the middle of a WRITE, and none of the states has a word on it
 *     CHECK_PSN        not the one awaited: DUPLICATE, GAP
 *     CHECK_SEQUENCE   fits in the message under way, or begins one: else ERR_SEQUENCE
 *     CHECK_OPERATION  the queue pair allows it: else ERR_OPERATION
 *     CHECK_LENGTH     payload and message: else ERR_LENGTH
 *     CHECK_RECEIVE    a receive for it: else RNR; it is long enough: else ERR_TOO_LONG; its memory: else ERR_LOCAL
 *     CHECK_KEY        the peer's key, range and right: else ERR_KEY; room for a READ or atomic: else ERR_RESOURCES
 *     CHECK_SLOT       a service slot's verdict: LOST, ERR_SLOT
 *     EXECUTE          memory is read or written: ERR_LOCAL, ERR_KEY, LOST
 *     COMPLETE         last packet: key to be invalidated (else ERR_INVALIDATE), completion
 *     ACKNOWLEDGE      the PSN moves on, an acknowledgement is due if one was asked for
 *
 * An error is answered by NAK and ends the queue pair's life (class C of IBTA 9.9.3); nothing of the packet was done.
 */
#ifndef QP_RESP_H
#define QP_RESP_H

#include "impl.h"

#define RESP_STATES(X)                                                                                                 \
    X(CHECK_PSN)                                                                                                       \
    X(CHECK_SEQUENCE)                                                                                                  \
    X(CHECK_OPERATION)                                                                                                 \
    X(CHECK_LENGTH)                                                                                                    \
    X(CHECK_RECEIVE)                                                                                                   \
    X(CHECK_KEY)                                                                                                       \
    X(CHECK_SLOT)                                                                                                      \
    X(EXECUTE)                                                                                                         \
    X(COMPLETE)                                                                                                        \
    X(ACKNOWLEDGE)                                                                                                     \
    X(DUPLICATE)                                                                                                       \
    X(GAP)                                                                                                             \
    X(RNR)                                                                                                             \
    X(LOST)                                                                                                            \
    X(ERR_SEQUENCE)                                                                                                    \
    X(ERR_OPERATION)                                                                                                   \
    X(ERR_LENGTH)                                                                                                      \
    X(ERR_TOO_LONG)                                                                                                    \
    X(ERR_LOCAL)                                                                                                       \
    X(ERR_KEY)                                                                                                         \
    X(ERR_RESOURCES)                                                                                                   \
    X(ERR_SLOT)                                                                                                        \
    X(ERR_INVALIDATE)                                                                                                  \
    X(DONE)

enum resp_state {
#define X(name) RESP_##name,
    RESP_STATES(X)
#undef X
};

/* One packet on its way. */
struct step {
    struct qp *qp;
    const struct qp_rx *rx;
    const struct wire_pkt *p;
    const struct wire_op *op;
    uint32_t npsn; /* PSNs that it takes: more than one for a READ */
    uint64_t orig; /* of an atomic */
    struct qp_rx bounced;
};

/* resp_exec.c */
enum resp_state resp_check_receive(struct step *s);
enum resp_state resp_check_key(struct step *s);
enum resp_state resp_check_slot(struct step *s);
enum resp_state resp_execute(struct step *s);
enum resp_state resp_complete(struct step *s);
enum resp_state resp_duplicate(struct step *s);
/* Packets of the READ of so many bytes. */
static inline uint32_t resp_read_pkts(uint32_t mtu, uint32_t len)
{
    return len ? (len - 1) / mtu + 1 : 1;
}

#endif
