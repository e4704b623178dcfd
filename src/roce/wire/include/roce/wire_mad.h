/*
 * Management datagrams (IBTA 13.4): 256-byte UD payloads to QP 1 with Q_Key WIRE_QKEY_GSI. Here: the common header, and
 * the hello by which uroce ends find each other.
 */
#ifndef ROCE_WIRE_MAD_H
#define ROCE_WIRE_MAD_H

#include "base/endian.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_MAD_BYTES 256u

enum wire_mad_class { WIRE_MAD_CM = 0x07, WIRE_MAD_UROCE = 0x3d /* vendor class with OUI: 0x30 .. 0x4f */ };
enum wire_mad_method { WIRE_MAD_GET = 0x01, WIRE_MAD_SET = 0x02, WIRE_MAD_SEND = 0x03, WIRE_MAD_GET_RESP = 0x81 };

/* As it lies on the wire (IBTA 13.4): 24 bytes. */
struct wire_mad_raw {
    uint8_t base_version, mgmt_class, class_version, method;
    be16 status, class_specific;
    be64 tid;
    be16 attr_id, reserved;
    be32 attr_mod;
};

struct wire_mad {
    uint8_t mgmt_class, class_version, method;
    uint16_t status;
    uint16_t class_specific;
    uint64_t tid;
    uint16_t attr_id;
    uint32_t attr_mod;
};
#define WIRE_MAD_HEAD_BYTES 24u

/* Writes the 24 bytes of the common header. */
void wire_mad_encode(const struct wire_mad *m, uint8_t *ret_head);
/* Of a UD payload: -ENODATA when it is not WIRE_MAD_BYTES long, -EPROTONOSUPPORT when the base version is not 1. Or 0.
 */
int wire_mad_decode(const void *data, size_t len, struct wire_mad *ret_mad);

/*
 * The hello: at RTR an end asks the other, on QP 1, whether it is uroce too, and an end that is answers. Silence, or
 * an error answer, means plain RoCE: go-back-N, no SACK. Method Send, which a kernel that does not know the class
 * ignores. Class 0x3d version 1, attribute 0x0001; the transaction id is the asker's, and the answer carries it back.
 *
 *     offset bytes
 *          0    24  common MAD header
 *         24    12  RMPP header: 0
 *         36     1  0
 *         37     3  OUI 02-55-52 (locally administered: "UR")
 *         40     1  version: 1. Fields are only added, in reserved bytes, with a capability bit that says so
 *         41     1  kind: 1 ask, 2 answer; over shared memory: 3 bind, 4 bound
 *         42     2  0
 *         44     4  capabilities, WIRE_HELLO_*
 *         48     4  the sender's QPN
 *         52     4  the receiver's QPN
 *         56     4  the sender's uid, as it says: checked by the kernel at the rendezvous
 *         60     2  the largest SACK bitmap, in bits, that it takes
 *         62     2  0
 *         64     8  instance: random, once a process; another one means that the peer has started anew
 *         72    16  machine: equal on both ends when they run under one kernel (boot id)
 *         88    16  cookie of the sender's QP, random; in a bind that of the receiver's, which it shows to have heard
 *        104    64  rendezvous: path of a Unix socket, NUL padded; empty without WIRE_HELLO_SHM
 *        168     4  bind, bound: bytes of a packet's payload that the sender takes by shared memory; else 0
 *        172    84  0
 */
#define WIRE_OUI_UROCE        0x025552u
#define WIRE_HELLO_VERSION    1u
#define WIRE_HELLO_ATTR       1u
#define WIRE_HELLO_SACK       (1u << 0) /* selective repeat: takes and sends SACK */
#define WIRE_HELLO_SHM        (1u << 1) /* has a shared-memory rendezvous */
#define WIRE_HELLO_NAME_BYTES 64u

enum wire_hello_kind { WIRE_HELLO_ASK = 1, WIRE_HELLO_ANSWER, WIRE_HELLO_BIND, WIRE_HELLO_BOUND };

struct wire_hello {
    uint64_t tid;
    uint8_t version; /* decode only */
    enum wire_hello_kind kind;
    uint32_t caps;
    uint32_t src_qp, dest_qp; /* 24 bits */
    uint32_t uid;
    uint16_t sack_bits;
    uint64_t instance;
    uint8_t machine[16], cookie[16];
    uint32_t far_bytes;
    char name[WIRE_HELLO_NAME_BYTES]; /* NUL terminated, so 63 bytes at most */
};

/* 0, or -EINVAL: a field that is too wide, a name that is not terminated. */
int wire_hello_encode(const struct wire_hello *h, uint8_t ret_mad[WIRE_MAD_BYTES]);
/*
 * -ENOMSG: a MAD, but not a hello of ours (other class, OUI, method, attribute). -ENODATA, -EPROTONOSUPPORT (version 0)
 * or -EPROTO (a name that is not terminated, a QPN over 24 bits, an unknown kind): malformed. Or 0.
 */
int wire_hello_decode(const void *data, size_t len, struct wire_hello *ret_hello);

#endif
