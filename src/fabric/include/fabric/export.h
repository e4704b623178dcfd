/*
 * Exported memory: how a client hands memory to a daemon of the same machine (docs/protocol.md, "Exported memory"). The
 * messages of the hand-over over a Unix socket (SOCK_SEQPACKET), their proofs, and the memory itself.
 *
 *   client -> daemon   hello    session, nonce
 *   daemon -> client   answer   nonce, the daemon's uid, proof     (before the client gives anything away)
 *   client -> daemon   give     bytes, proof; with it the memfd
 *   daemon -> client   taken    number
 *
 * Proofs are HMACs under the session's data key over both nonces: each is good for one hand-over on one connection. The
 * connection is the export's life: a client that shuts its side down ends the export; the daemon's end of it means that
 * nothing there uses or maps the memory any more, also when the daemon has died.
 */
#ifndef FABRIC_EXPORT_H
#define FABRIC_EXPORT_H

#include "base/endian.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT_MAGIC      0x31787470u /* "ptx1" */
#define EXPORT_NONCE      32u
#define EXPORT_MAC        32u
#define EXPORT_KEY        32u
#define EXPORT_SESSION    16u
#define EXPORT_BYTES_MIN  4096u
#define EXPORT_BYTES_MAX  (1ull << 30) /* of one export */
#define EXPORT_PATH_MAX   108u

struct export_hello {
    le32 magic, zero;
    uint8_t session[EXPORT_SESSION], nonce[EXPORT_NONCE];
};

struct export_answer {
    le32 status; /* 0, or -errno in two's complement: then the rest is zero, and the connection ends */
    le32 uid;    /* the daemon's: the client compares it with what the kernel says */
    uint8_t nonce[EXPORT_NONCE], mac[EXPORT_MAC];
};

struct export_give {
    le64 bytes;
    uint8_t mac[EXPORT_MAC];
};

struct export_taken {
    le32 status, zero;
    le64 id; /* never 0 */
};

/* What both sides have seen of a hand-over. */
struct export_talk {
    uint8_t session[EXPORT_SESSION], client_nonce[EXPORT_NONCE], daemon_nonce[EXPORT_NONCE];
};
/* value: the daemon's uid, or the client's bytes. 0 or -errno. */
int export_mac(const uint8_t key[EXPORT_KEY], bool from_daemon, const struct export_talk *t, uint64_t value,
               uint8_t ret[EXPORT_MAC]);

/*
 * Memory that can be exported: a memfd that cannot shrink or grow, mapped shared. Who touches a page first is charged
 * for it. 0 or -errno; the caller unmaps and closes.
 */
int export_memory_new(size_t len, void **ret_base, int *ret_fd);
/* The same if `shared`; where it is not, or there is none, private memory, and *ret_fd is -1. 0 or -ENOMEM. */
int export_memory_or_private(bool shared, size_t len, void **ret_base, int *ret_fd);
/*
 * Is this such a memfd, of exactly `len` bytes? 0; -EINVAL: of another kind or size; -EPERM: not sealed, or not to be
 * written to. Asks no file system but the kernel's own. After 0 an access to a mapping of it finds a page, whatever the
 * other side does: it cannot shrink, and where it has a hole, or gets one, a page comes at the access, since memory is
 * not accounted strictly (-EOPNOTSUPP where it is).
 */
int export_memory_check(int fd, uint64_t len);

#endif
