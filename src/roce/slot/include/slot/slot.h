/*
 * Service slots: code on the data path of a queue pair (the three kinds of RoCE BALBOA, arXiv 2507.20412).
 *
 *   PATH     on the path: may change the payload of each packet and add bytes to it. Works on a packet, at any time, in
 *            any order, also again: a packet that is sent again must come out the same.
 *   BESIDE   beside the path: sees the payload and gives a verdict which the transport honours.
 *   STREAM   application slot: the payload of each message as a stream, before it reaches memory; may change it in
 *            place (same length) and leave a value in the completion.
 *
 * BESIDE and STREAM see each byte of a message once and in order, however often packets were lost or came again.
 * A slot is attached to a queue pair or to a device (then to each queue pair made later). Several stand in the order of
 * attachment on send, in the opposite order on receive; PATH slots are outside of the others, next to the wire.
 * A slot has state per queue pair and no way to another's. Work per packet is bounded: max_ns is stated, measured and
 * counted when exceeded. Calls come one at a time per device, and must not block or call uroce.
 */
#ifndef SLOT_SLOT_H
#define SLOT_SLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define SLOT_MAX          8u  /* on one queue pair */
#define SLOT_OVERHEAD_MAX 64u /* bytes that all PATH slots of a queue pair add to a packet */

enum slot_kind { SLOT_PATH, SLOT_BESIDE, SLOT_STREAM };
enum slot_verdict { SLOT_ACCEPT, SLOT_DROP, SLOT_REFUSE };

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
    uint32_t overhead; /* PATH: bytes added to each packet that has payload */
    uint32_t max_ns;   /* promised bound per packet of 4096 bytes */
    /* State of one queue pair; NULL is -ENOMEM. config: from attach. */
    void *(*attach)(const char *config, uint32_t qpn, char *err, size_t err_size);
    void (*detach)(void *state);
    /* PATH: len bytes in `data`, room for `overhead` more; the new length, or -errno (the packet is dropped, counted).
     */
    int (*path)(void *state, const struct slot_packet *p, uint8_t *data, size_t len);
    /* BESIDE: looks only. */
    enum slot_verdict (*beside)(void *state, const struct slot_packet *p, const struct iovec *iov, int niov);
    /* STREAM: on receive iov is one piece and may be changed. *ret_value counts on the last packet of a message. */
    enum slot_verdict (*stream)(void *state, const struct slot_packet *p, struct iovec *iov, int niov,
                                uint64_t *ret_value, bool *ret_has_value);
    /* A few lines of text for `uroce stat`; NULL: none. */
    int (*stat)(void *state, char *buf, size_t size);
};

/* Registry by name: "count", "sum". NULL: no such slot. */
const struct slot_ops *slot_find(const char *name);

struct slot_chain; /* what is attached to one queue pair */
int slot_chain_new(uint32_t qpn, struct slot_chain **ret);
void slot_chain_free(struct slot_chain *c);
/* spec: "name" or "name:config". -ENOENT, -EINVAL, -ENOSPC, and a line in err. */
int slot_chain_attach(struct slot_chain *c, const char *spec, char *err, size_t err_size);
uint32_t slot_chain_overhead(const struct slot_chain *c);
bool slot_chain_sees_payload(const struct slot_chain *c); /* has BESIDE or STREAM slots */
int slot_chain_path(struct slot_chain *c, const struct slot_packet *p, uint8_t *data, size_t len, size_t room);
enum slot_verdict slot_chain_payload(struct slot_chain *c, const struct slot_packet *p, struct iovec *iov, int niov,
                                     uint64_t *ret_value, bool *ret_has_value);
int slot_chain_stat(struct slot_chain *c, char *buf, size_t size);

#endif
