/* The scheduler's inside: heaps of tenants with room for all of them. */
#ifndef QOS_PRIV_H
#define QOS_PRIV_H

#include "qos/qos.h"

void heap_push(struct qos_heap *h, struct qos_tenant *t);
/* It is in h. */
void heap_remove(struct qos_heap *h, struct qos_tenant *t);

#endif
