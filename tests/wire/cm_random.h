/* Random messages of the communication manager, for tests. */
#ifndef WIRE_CM_RANDOM_H
#define WIRE_CM_RANDOM_H

#include "base/rng.h"
#include "roce/wire_cm.h"

/* Every attribute but LAP, which is never encoded. */
#define CM_RANDOM_ATTRS 10u
enum wire_cm_attr cm_random_attr(unsigned n);
/* Any message that can be encoded; private data of an RDMA CM header if the message may have one and cma is true. */
void cm_random(struct rng *r, enum wire_cm_attr attr, bool cma, struct wire_cm *ret);
/* Into a whole packet's payload: aborts if it cannot be encoded. */
void cm_bytes(const struct wire_cm *m, uint8_t ret[WIRE_MAD_BYTES]);

#endif
