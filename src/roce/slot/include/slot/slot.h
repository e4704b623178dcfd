/*
 * Service slots: code on the data path of a queue pair (the three kinds of RoCE BALBOA, arXiv 2507.20412).
 *
 *   PATH     on the path: may change the payload of each packet and add bytes to it. Works on a packet, at any time, in
 *            any order, also again: a packet that is sent again must come out the same.
 *   BESIDE   beside the path: sees the payload and gives a verdict which the transport honours.
 *   STREAM   application slot: the payload of each message as a stream, before it reaches memory; may change it in
 *            place (same length) and leave a value in the completion.
 *
 *     send:     memory -> STREAM -> BESIDE -> PATH -> wire       within a kind: the order of attachment
 *     receive:  wire -> PATH -> BESIDE -> STREAM -> memory       within a kind: the opposite order
 *
 * BESIDE and STREAM see each byte of a message once and in order, however often packets were lost or came again.
 * A slot is attached to a queue pair or to a device (then to each queue pair made later).
 * A slot has state per queue pair and no way to another's. Work per packet is bounded: max_ns is stated, measured on a
 * sample of the packets, and counted when exceeded. Calls come one at a time per device, and must not block or call
 * uroce. docs/service-slots.md teaches writing one.
 */
#ifndef SLOT_SLOT_H
#define SLOT_SLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define SLOT_MAX          8u  /* on one queue pair */
#define SLOT_OVERHEAD_MAX 64u /* bytes that all PATH slots of a queue pair add to a packet (WIRE_SLOT_ROOM) */

enum slot_kind { SLOT_PATH, SLOT_BESIDE, SLOT_STREAM };
enum slot_verdict {
    SLOT_ACCEPT,
    SLOT_DROP,   /* as if it was lost: it comes again (RC). BESIDE only: from STREAM it is taken for REFUSE */
    SLOT_REFUSE, /* the peer is told that the operation failed (RC); dropped (UC, UD) */
};

/* What a slot may know of the packet. */
struct slot_packet {
    uint32_t qpn, peer_qpn, psn;
    uint8_t opcode;
    bool send, first, last, response, retransmit;
    uint32_t offset; /* in the message; BESIDE and STREAM */
};

struct slot_ops {
    const char *name;
    enum slot_kind kind;
    uint32_t overhead; /* PATH: bytes added to each packet that has payload: always so many, a multiple of 4 */
    uint32_t max_ns;   /* promised bound per packet of 4096 bytes, or begun 4096 bytes */
    /* State of one queue pair; NULL: failed, with a line in err. config: behind the colon of the spec, or NULL. */
    void *(*attach)(const char *config, uint32_t qpn, char *err, size_t err_size);
    void (*detach)(void *state);
    /*
     * PATH: len bytes in `data`; on send room for `overhead` more. 0: done, the packet is now overhead bytes longer
     * (send) or shorter (receive); or -errno: the packet is dropped and counted.
     */
    int (*path)(void *state, const struct slot_packet *p, uint8_t *data, size_t len);
    /* BESIDE: looks only. The verdict counts on receive. */
    enum slot_verdict (*beside)(void *state, const struct slot_packet *p, const struct iovec *iov, int niov);
    /*
     * STREAM: on receive iov is one piece and may be changed; on send it is the program's memory, to be read only.
     * *ret_value counts on the last packet of a message, when *ret_has_value is set to true.
     */
    enum slot_verdict (*stream)(void *state, const struct slot_packet *p, const struct iovec *iov, int niov,
                                uint64_t *ret_value, bool *ret_has_value);
    /* A few lines of text for `uroce stat`, each with a newline; at most size bytes with the final 0. NULL: none. */
    void (*stat)(void *state, char *buf, size_t size);
};

/* Registry by name: "count", "sum". NULL: no such slot. */
const struct slot_ops *slot_find(const char *name);

struct slot_chain; /* what is attached to one queue pair */
int slot_chain_new(uint32_t qpn, struct slot_chain **ret);
void slot_chain_free(struct slot_chain *c);
/* spec: "name" or "name:config". -ENOENT, -EINVAL, -ENOSPC, and a line in err. */
int slot_chain_attach(struct slot_chain *c, const char *spec, char *err, size_t err_size);
/* A slot that is not in the registry. Borrows ops. */
int slot_chain_attach_ops(struct slot_chain *c, const struct slot_ops *ops, const char *config, char *err,
                          size_t err_size);
uint32_t slot_chain_overhead(const struct slot_chain *c);
bool slot_chain_sees_payload(const struct slot_chain *c); /* has BESIDE or STREAM slots */
/*
 * The PATH slots, on a packet's payload of len > 0 bytes in `data`, which has room for `room`. The new length
 * (len + or - slot_chain_overhead), or -errno: the packet is dropped (-ENOSPC, -EBADMSG: too long, too short).
 */
int slot_chain_path(struct slot_chain *c, const struct slot_packet *p, uint8_t *data, size_t len, size_t room);
/*
 * The BESIDE and STREAM slots. If more than one leaves a value, that of the one attached first stands: it is the
 * nearest to the application. On send the answer is ACCEPT.
 */
enum slot_verdict slot_chain_payload(struct slot_chain *c, const struct slot_packet *p, const struct iovec *iov,
                                     int niov, uint64_t *ret_value, bool *ret_has_value);
/* Text for people: a line per slot, what it says of itself indented below. Always ended by 0. */
void slot_chain_stat(struct slot_chain *c, char *buf, size_t size);

struct slot_counters {
    uint64_t packets, bytes; /* seen, or changed */
    uint64_t dropped, refused;
    uint64_t measured, over; /* calls that were timed; of those, longer than max_ns */
};
/* Of the i-th slot in the order of attachment; -ENOENT. */
int slot_chain_counters(const struct slot_chain *c, unsigned i, const char **ret_name, struct slot_counters *ret);

#endif
