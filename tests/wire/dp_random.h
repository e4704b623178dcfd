/* Random data-plane messages, for the wire tests and the fuzz harness. */
#ifndef WIRE_DP_RANDOM_H
#define WIRE_DP_RANDOM_H

#include "base/rng.h"
#include "fabric/dp.h"

#define DP_MSG_MAX (DP_HEAD_MAX + DP_INLINE_MAX)

/* Valid ones; payloads point into room (DP_INLINE_MAX bytes). */
void dp_random_request(struct rng *r, uint8_t *room, struct dp_request *ret);
void dp_random_reply(struct rng *r, uint8_t *room, struct dp_reply *ret);
/* Parts joined; returns the length. */
size_t dp_join(const struct iovec *iov, int n, uint8_t *buf);
/* Puts the right MAC at the end of a message that was changed. from: 'C' or 'S'. */
void dp_remac(struct pst_mac *mac, uint8_t from, uint8_t *msg, size_t len);

#endif
