/*
 * Inside of the shared-memory port. Two processes of one user, a Unix socket (SOCK_SEQPACKET) between them.
 *
 * Each side makes the ring in which it RECEIVES, seals its size, and sends the descriptor over the socket: so who reads
 * a ring knows that its memory cannot be taken away under it (SIGBUS). The other side writes. What comes out of a ring
 * or the socket is not trusted: each index and length is read once, into private memory, and checked.
 *
 * The socket also carries wake-ups, and tells of the peer's death. (An eventfd would not do: O_NONBLOCK belongs to the
 * open file, so that a peer could make our reads of it wait; the socket's calls say MSG_DONTWAIT each time.)
 *
 * Payload of a packet goes one of three ways:
 *   INLINE   up to 448 bytes lie in the entry
 *   STAGED   copied by the sender into the ring's data area, by the receiver out of it
 *   PIECES   stays where it is; the receiver copies it once: from a memfd that both have mapped, or by
 *            process_vm_readv. Only when the sender says that the memory stays as it is (port_tx.stays), and as
 *            long as the sender has not called it void (revoke)
 */
#ifndef PORT_SHM_PRIV_H
#define PORT_SHM_PRIV_H

#include "base/util.h"
#include "port/port.h"
#include "roce/wire_limits.h"
#include "run.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/types.h>

#define SHM_MAGIC       0x75724f31u
#define SHM_PAYLOAD_MAX WIRE_FAR_MAX
#define SHM_PACKET_MAX  (WIRE_HEAD_MAX + SHM_PAYLOAD_MAX + WIRE_TAIL_MAX)
#define SHM_SLOTS       1024u /* default */
#define SHM_SLOTS_MIN   16u
#define SHM_SLOTS_MAX   32768u
#define SHM_DATA_BYTES  (8u << 20) /* staging; pages that are never used cost nothing */
#define SHM_REGIONS     64u
#define SHM_MAPPED_MAX  (1ull << 38) /* bytes of the peer's regions together: they take address space */
#define SHM_INLINE      448u
#define SHM_PIECES      (SHM_INLINE / sizeof(struct shm_piece))
#define SHM_IOV         64    /* pieces of memory that a packet to be sent may have */
#define SHM_VM_MIN      8192u /* below, two copies are cheaper than a system call */
#define SHM_LENT        64u   /* packets of one recv */
#define SHM_NO_REGION   UINT32_MAX
#define SHM_CHECK_NS    10000000u /* how often the socket is looked at when nobody sleeps */

enum shm_kind { SHM_INLINED, SHM_STAGED, SHM_PIECED };

struct shm_piece {
    uint64_t addr; /* offset in the region; without one, an address in the sender */
    uint32_t len, region;
};

struct shm_entry {
    _Atomic uint32_t is_void; /* PIECES: what they name is something else by now */
    uint32_t payload_len;
    uint8_t kind, head_len, traffic_class, hop_limit;
    uint32_t npieces; /* STAGED: offset in the data area */
    uint8_t head[48];
    union {
        uint8_t bytes[SHM_INLINE];
        struct shm_piece pieces[SHM_INLINE / sizeof(struct shm_piece)];
    };
};
_Static_assert(sizeof(struct shm_entry) == 512, "layout");

struct shm_ring {
    /* Written by the sender. */
    _Alignas(64) _Atomic uint32_t head; /* entries published, for ever */
    /* Written by the receiver. */
    _Alignas(64) _Atomic uint32_t tail; /* entries done with */
    /* Set by who sleeps, cleared by who wakes. */
    _Alignas(64) _Atomic uint32_t receiver_sleeps;
    _Alignas(64) _Atomic uint32_t sender_sleeps;
    _Alignas(4096) struct shm_entry entries[];
    /* data area */
};

struct shm_geometry {
    uint32_t slots, data_bytes; /* slots: a power of two */
};

static inline size_t shm_ring_bytes(const struct shm_geometry *g)
{
    return sizeof(struct shm_ring) + (size_t)g->slots * sizeof(struct shm_entry) + g->data_bytes;
}

static inline uint8_t *shm_ring_data(struct shm_ring *r, const struct shm_geometry *g)
{
    return (uint8_t *)&r->entries[g->slots];
}

/* ---- messages of the socket ---- */

enum shm_msg_type {
    SHM_HELLO,       /* with the descriptor of the ring; a: geometry; b, c: address and value of a probe */
    SHM_MAY_READ,    /* a: 1, your memory can be read; 0, it cannot; b: what lies behind the probe */
    SHM_REGION,      /* with the descriptor; a: index, b: base, c: length */
    SHM_REGION_OK,   /* a: index: mapped */
    SHM_REGION_GONE, /* a: index: to be unmapped */
    SHM_REGION_FREE, /* a: index: it is, the index may be used again */
    SHM_WAKE,
};
struct shm_msg {
    uint32_t magic, type;
    uint64_t a, b, c;
};

enum shm_region_state {
    SHM_REGION_NONE,
    SHM_REGION_TOLD,   /* ours: the peer has not mapped it yet */
    SHM_REGION_USABLE, /* mapped */
    SHM_REGION_ENDING, /* ours: to be told so; theirs: to be unmapped when no packet is lent out */
    SHM_REGION_ENDED,  /* ours: told so, not answered yet */
};
struct shm_region {
    uint8_t *base; /* ours: where it lies here; the peer's: where it is mapped */
    uint64_t len;
    enum shm_region_state state;
};

/* What copy() needs of a packet that was handed out: checked copies of what the ring said. */
struct shm_lent {
    struct shm_port *port;
    _Atomic uint32_t *is_void; /* in the ring, until the entry is given back */
    uint32_t payload_len, npieces;
    const uint8_t *staged; /* or pieces */
    struct shm_piece pieces[SHM_INLINE / sizeof(struct shm_piece)];
    uint8_t packet[WIRE_HEAD_MAX + SHM_INLINE + WIRE_TAIL_MAX];
};

struct shm_port {
    struct port port;
    struct port_shm_config cfg;
    int sock;
    bool dead, broken; /* the peer is gone; the peer wrote nonsense */
    uint64_t now_ns, checked_ns;
    bool armed, blocked;

    struct shm_geometry rx_geo, tx_geo;
    struct shm_ring *rx, *tx;  /* tx: NULL until the peer's hello */
    uint32_t rx_tail, rx_next; /* what we told the sender; the next entry */
    struct shm_lent *lent;     /* SHM_LENT */

    uint32_t tx_head, tx_tail;
    uint64_t data_head, data_tail; /* staging: bytes used and given back, for ever */
    uint64_t *data_end;            /* of each slot: data_head behind its payload; never shared */

    bool peer_reads; /* the peer says that it can read our memory */
    int peer_shown;  /* that it can it has shown by the secret: port_shm_shown */
    pid_t peer_pid;
    int peer_pidfd; /* -1: its memory cannot be read */
    /* value is told; the secret only who can read our memory knows. */
    struct shm_probe {
        uint64_t value, secret;
    } probe;
    struct shm_region ours[SHM_REGIONS], theirs[SHM_REGIONS];
    uint32_t nours;  /* all from there on are NONE */
    uint32_t ending; /* regions of either side that are ENDING */
    uint64_t mapped; /* bytes of theirs */
    uint64_t malformed, copy_failed, tx_drops;
};

static inline struct shm_port *shm_of(const struct port *p)
{
    return container_of((struct port *)p, struct shm_port, port);
}

/* From here on the compiler may not read again what was copied out of shared memory. */
static inline void shm_read_once(void *dst, const void *shared, size_t len)
{
    memcpy(dst, shared, len);
    __asm__ volatile("" ::: "memory");
}

/* 0, -EAGAIN: no room, or another -errno. fd: -1, or sent along. */
int shm_say(struct shm_port *s, const struct shm_msg *m, int fd);
void shm_wake(struct shm_port *s);
/* Reads what the socket has. Sets dead and broken. */
void shm_listen(struct shm_port *s);
/* Goes on with regions that are ENDING; no packet is lent out. */
void shm_end_regions(struct shm_port *s);
int shm_hello(struct shm_port *s, int ring_fd);

void shm_revoke(struct port *p, const struct port_taken *what);
int shm_send(struct port *p, uint64_t now_ns, const struct port_tx *tx, int n);
/* Takes back what the receiver is done with; -EPROTO: its index is nonsense. */
int shm_reclaim(struct shm_port *s);
int shm_recv(struct port *p, uint64_t now_ns, struct port_rx *ret, int max);
bool shm_has_packets(const struct shm_port *s);

#endif
