/* Which process on a shared address listens where: the holder's table, and to whom a management datagram goes. */
#ifndef DEVICE_HOLDER_SERVICES_H
#define DEVICE_HOLDER_SERVICES_H

#include "roce/device_holder.h"

#define HOLDER_SERVICES      8192u /* of all processes */
#define HOLDER_SERVICES_SLOT 2048u /* of one */

struct holder_services {
    uint32_t n, of_slot[HOLDER_SLOTS];
    struct holder_service {
        uint64_t service_id;
        union uroce_gid gid;
        uint8_t slot;
        bool reuse;
        uint16_t count; /* ids of that process that have it */
    } e[HOLDER_SERVICES];
};

/* -EADDRINUSE, -ENOSPC: nothing has changed. -EINVAL: not a message of that kind. */
int services_bind(struct holder_services *t, uint32_t slot, const struct holder_msg *m);
void services_unbind(struct holder_services *t, uint32_t slot, const struct holder_msg *m);
/* The process has gone. */
void services_drop(struct holder_services *t, uint32_t slot);

#define HOLDER_TO_NOBODY 0u
#define HOLDER_TO_ANY    (HOLDER_SLOTS + 1) /* whoever: it will refuse it */
#define HOLDER_TO_ALL    (HOLDER_SLOTS + 2)
/* The slot that a packet to QPN 1 is for, or one of those above. `to`: the address that it came to. */
uint32_t services_slot_of(const struct holder_services *t, const union uroce_gid *to, const uint8_t *data, size_t len);

#endif
