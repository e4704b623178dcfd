/*
 * The holder's part in the end of a process that was killed: it has seen the messages by which that was connected, and
 * tells the peers, as a kernel does for its processes.
 */
#ifndef DEVICE_HOLDER_WILLS_H
#define DEVICE_HOLDER_WILLS_H

#include "roce/device_holder.h"

#define HOLDER_WILLS 4096u /* connections of all processes; of others the peers find out by traffic */

struct holder_wills {
    uint32_t n;
    uint32_t next; /* when it is full: whose place the next one takes, since some are over without a message to us */
    struct holder_will {
        union uroce_gid local, remote;
        uint32_t peer_id, our_id, peer_qpn; /* our_id 0: asked for, not connected */
        uint16_t scope_id;
        uint8_t slot;
    } e[HOLDER_WILLS];
};

/* A packet that goes to the process in `slot`. */
void wills_see(struct holder_wills *w, uint32_t slot, const struct holder_msg *m);
/* The connections of a process are no more. fd_of: the socket of an address to tell peers by; NULL: without a word. */
void wills_end(struct holder_wills *w, uint32_t slot, int (*fd_of)(void *ctx, const union uroce_gid *local), void *ctx);

#endif
