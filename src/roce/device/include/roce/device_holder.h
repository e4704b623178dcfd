/*
 * Several processes on one address. The holder, a process per user and network namespace, owns the addresses' sockets:
 * one for each slot, where a slot is QPN[23:16]. A process joins, gets a slot and that slot's socket of each address it
 * wants, and receives its own packets from then on; the holder is not on its path. Slot 0 is the holder's: what is sent
 * to QPN 1 (management datagrams) arrives there and is passed on to the process that it concerns: a hello by the slot
 * of its QPN; a message of the communication manager by the slot in our communication id, and a request by its service
 * id, which processes register (one that nobody has goes to any process, which refuses it). It tells the peers of a
 * process that was killed of the end of its connections.
 *
 * The holder is two processes: a keeper, which has all sockets open and does nothing, and a worker, which serves. Each
 * starts the other anew when that was killed; queue pairs that are connected do not notice, since the kernel's
 * numbering of the sockets stays.
 *
 * Messages go over a Unix socket (SOCK_SEQPACKET) with an abstract name, so that there is one per network namespace:
 * "uroce-holder-UID", and "uroce-holder" for the system's holder, which serves all users. Both ends look at the other's
 * uid, as the kernel tells it.
 */
#ifndef ROCE_DEVICE_HOLDER_H
#define ROCE_DEVICE_HOLDER_H

#include "base/list.h"
#include "port/port.h"

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#define HOLDER_SLOTS      64u /* slot 0 is the holder's own */
#define HOLDER_ADDRESSES  32u
#define HOLDER_MAGIC      0x75726833u /* "urh3": another version has another number */
#define HOLDER_PACKET_MAX 512u        /* a management datagram with its headers is 280 bytes */
#define HOLDER_TEXT       192u
#define HOLDER_ANY_SLOT   UINT32_MAX
#define HOLDER_LINGER_NS  5000000000u  /* the holder ends when nobody has been there for so long */
#define HOLDER_RESERVE_NS 10000000000u /* a slot is kept for a process that lives and has not come back yet */

enum holder_type {
    HOLDER_JOIN,    /* to the holder: slot wanted (after the holder's death: the one that it had) or HOLDER_ANY_SLOT */
    HOLDER_JOINED,  /* status, slot, text */
    HOLDER_ADDRESS, /* to the holder: addr. Answer: the same with status, text and the slot's socket */
    HOLDER_PACKET,  /* from the holder: from, to and data: a packet to QPN 1 */
    HOLDER_BIND,    /* to the holder: data is a holder_bind. Answer: the same with status */
    HOLDER_UNBIND,  /* likewise: from the answer on another process may have it */
    HOLDER_LEAVE,   /* to the holder: the device is closed, and its connections are ended. Without it: killed */
};

/* A service id of the communication manager on addresses: requests to it go to that process. */
#define HOLDER_BIND_MAX 16u
struct holder_bind {
    uint64_t service_id;
    uint32_t n, reuse; /* reuse: others that say so too may have it as well */
    union uroce_gid gid[HOLDER_BIND_MAX];
};

struct holder_msg {
    uint32_t magic;
    uint32_t type;
    int32_t status;
    uint32_t slot;
    uint32_t seq; /* of a request; its answer has the same */
    struct port_addr from, to;
    uint16_t len;
    char text[HOLDER_TEXT];
    uint8_t data[HOLDER_PACKET_MAX];
};

/* The socket's address; system: the system's holder. */
socklen_t holder_name(uid_t uid, bool system, struct sockaddr_un *ret);
/* The uid of the process at the other end. */
int holder_peer(int sock, uid_t *ret_uid, pid_t *ret_pid);
int holder_send(int sock, const struct holder_msg *m, int fd);
/* One message, checked; *ret_fd: a descriptor that came with it, or -1. -ENOTCONN at the end, -EPROTO: not ours. */
int holder_recv(int sock, int flags, struct holder_msg *ret, int *ret_fd);

/*
 * The holder itself: serves until nobody has been there for a while. -EADDRINUSE: there is one already. system: all
 * users, and without end.
 */
int holder_run(bool system);

/* ---- the client's side, in a device ---- */

struct holder_client {
    int sock; /* -1: not connected (the holder was killed: another try now and then) */
    uint32_t slot;
    uint32_t seq; /* of the last request */
    bool system;
    uint64_t next_try_ns, next_look_ns;
    struct holder_waiting *waiting; /* packets that came while an answer was awaited */
    struct list questions;          /* that wait for their answers with the lock free */
};

/*
 * Joins, starting a holder if there is none. 0 and c->slot > 0; -ENOENT: there is no program to start one (then the
 * caller has the addresses to itself); else -errno and a line in err.
 */
int holder_client_join(struct holder_client *c, char *err, size_t err_size);
/* The socket of the slot for an address. -errno and a line in err. */
int holder_client_socket(struct holder_client *c, const struct port_addr *addr, char *err, size_t err_size);
/*
 * Waits until the socket is readable, `ms` at most, and frees meanwhile what guards the client: a holder that does not
 * answer stops nobody else. Not to be cancelled: who waits is known to the others.
 */
typedef void holder_wait_fn(void *ctx, int sock, int ms);
/* -EADDRINUSE: another process has it on one of the addresses; -ENOTCONN: the holder is not there now. */
int holder_client_bind(struct holder_client *c, const struct holder_bind *b, holder_wait_fn *wait, void *ctx);
void holder_client_unbind(struct holder_client *c, const struct holder_bind *b, holder_wait_fn *wait, void *ctx);
/* The next packet that the holder passed on: true. Joins again when the holder is back. Never blocks. */
bool holder_client_packet(struct holder_client *c, uint64_t now, struct holder_msg *ret);
void holder_client_leave(struct holder_client *c);

#endif
