/* The shared-memory port, sending: into the peer's ring. */
#include "shm_priv.h"

#include "roce/wire_op.h"

#include <errno.h>
#include <string.h>

int shm_reclaim(struct shm_port *s)
{
    uint32_t tail = atomic_load(&s->tx->tail);
    uint32_t done = tail - s->tx_tail;
    if (done > s->tx_head - s->tx_tail)
        return -EPROTO;
    if (done) {
        s->data_tail = s->data_end[(tail - 1) & (s->tx_geo.slots - 1)];
        s->tx_tail = tail;
    }
    return 0;
}

/* Where len bytes can be staged in one piece: offset in the data area, or -ENOSPC for now. */
static int64_t stage(struct shm_port *s, uint32_t len)
{
    uint64_t at = s->data_head, size = s->tx_geo.data_bytes, left = size - at % size;
    if (left < len) /* not across the end */
        at += left;
    if (at + len - s->data_tail > size)
        return -ENOSPC;
    s->data_head = at + len;
    return (int64_t)(at % size);
}

static const struct shm_region *region_of(const struct shm_port *s, const struct iovec *v, uint32_t *ret_index)
{
    for (uint32_t i = 0; i < s->nours; i++) {
        const struct shm_region *r = &s->ours[i];
        uint64_t at = (uint64_t)((uintptr_t)v->iov_base - (uintptr_t)r->base);
        if (r->state == SHM_REGION_USABLE && at < r->len && v->iov_len <= r->len - at) {
            *ret_index = i;
            return r;
        }
    }
    return NULL;
}

/* The payload as pieces that the peer can read; false: it has to be copied. */
static bool as_pieces(const struct shm_port *s, const struct iovec *iov, int niov, uint32_t len, struct shm_entry *e)
{
    if (niov > (int)SHM_PIECES)
        return false;
    for (int i = 0; i < niov; i++) {
        struct shm_piece *p = &e->pieces[i];
        uint32_t index;
        const struct shm_region *r = region_of(s, &iov[i], &index);
        if (!r && (!s->peer_reads || len < SHM_VM_MIN))
            return false;
        p->addr = (uintptr_t)iov[i].iov_base - (r ? (uintptr_t)r->base : 0);
        p->len = (uint32_t)iov[i].iov_len;
        p->region = r ? index : SHM_NO_REGION;
    }
    e->npieces = (uint32_t)niov;
    return true;
}

static void copy_iov(uint8_t *dst, const struct iovec *iov, int niov)
{
    for (int i = 0; i < niov; i++) {
        memcpy(dst, iov[i].iov_base, iov[i].iov_len);
        dst += iov[i].iov_len;
    }
}

/* Fills the entry; 0, -ENOSPC: no room to stage it now, -EINVAL: not a packet. */
static int fill(struct shm_port *s, const struct port_tx *tx, struct shm_entry *e)
{
    struct iovec iov[SHM_IOV];
    uint8_t head[WIRE_BTH_BYTES];
    run_head(tx, 0, head, sizeof head);
    const struct wire_op *op = wire_op(head[0]);
    uint32_t tail = WIRE_ICRC_BYTES + (head[1] >> 4 & 3);
    if (!op || op->head_bytes > sizeof e->head || tx->last_bytes < op->head_bytes + tail)
        return -EINVAL;
    uint32_t len = tx->last_bytes - op->head_bytes - tail;
    int niov = iov_slice(tx->iov, tx->niov, op->head_bytes, len, iov, (int)ARRAY_SIZE(iov));
    if (niov < 0 || len > SHM_PAYLOAD_MAX)
        return -EINVAL;
    run_head(tx, 0, e->head, op->head_bytes);
    e->head_len = op->head_bytes;
    e->traffic_class = tx->traffic_class;
    e->hop_limit = tx->hop_limit;
    e->payload_len = len;
    atomic_store_explicit(&e->is_void, 0, memory_order_relaxed);
    e->npieces = 0;
    if (len <= SHM_INLINE) {
        e->kind = SHM_INLINED;
        copy_iov(e->bytes, iov, niov);
    } else if (tx->stays && as_pieces(s, iov, niov, len, e)) {
        e->kind = SHM_PIECED;
    } else {
        int64_t at = stage(s, len);
        if (at < 0)
            return (int)at;
        e->kind = SHM_STAGED;
        e->npieces = (uint32_t)at;
        copy_iov(shm_ring_data(s->tx, &s->tx_geo) + at, iov, niov);
    }
    return 0;
}

static bool names(const struct shm_port *s, const struct shm_entry *e, const struct port_taken *what)
{
    const uint8_t *qpn = e->head + 5;
    if (!what->base)
        return ((uint32_t)qpn[0] << 16 | (uint32_t)qpn[1] << 8 | qpn[2]) == what->dest_qpn;
    for (uint32_t i = 0; i < e->npieces && i < SHM_PIECES; i++) {
        struct shm_piece p; /* the peer may write there meanwhile */
        shm_read_once(&p, &e->pieces[i], sizeof p);
        uintptr_t base = (uintptr_t)what->base, from = (uintptr_t)p.addr;
        if (p.region < SHM_REGIONS)
            from += (uintptr_t)s->ours[p.region].base;
        if (from < base + what->len && base < from + p.len)
            return true;
    }
    return false;
}

/* The entries that the receiver may not be done with. (What it writes over them harms what it receives alone.) */
void shm_revoke(struct port *p, const struct port_taken *what)
{
    struct shm_port *s = shm_of(p);
    for (uint32_t i = s->tx_tail; s->tx && i != s->tx_head; i++) {
        struct shm_entry *e = &s->tx->entries[i & (s->tx_geo.slots - 1)];
        if (e->kind == SHM_PIECED && names(s, e, what))
            atomic_store(&e->is_void, 1);
    }
}

/* One packet; 1, 0: no room, or -errno. */
static int send_packet(struct shm_port *s, const struct port_tx *tx)
{
    if (!run_valid(tx, SHM_PACKET_MAX, 1))
        return -EINVAL;
    if (s->tx_head - s->tx_tail >= s->tx_geo.slots)
        return 0;
    uint32_t slot = s->tx_head & (s->tx_geo.slots - 1);
    int rc = fill(s, tx, &s->tx->entries[slot]);
    if (rc)
        return rc == -ENOSPC ? 0 : rc;
    s->data_end[slot] = s->data_head;
    atomic_store_explicit(&s->tx->head, ++s->tx_head, memory_order_release);
    return 1;
}

/* Asks to be woken when there is room; true: there is some already. */
static bool wait_for_room(struct shm_port *s)
{
    uint32_t before = s->tx_tail;
    /* Both seq_cst, as in give_back(): the flag is seen there, or the room is seen here. */
    atomic_store(&s->tx->sender_sleeps, 1);
    return shm_reclaim(s) == 0 && s->tx_tail != before;
}

int shm_send(struct port *p, uint64_t now_ns, const struct port_tx *tx, int n)
{
    struct shm_port *s = shm_of(p);
    int done = 0, rc = 1;
    s->now_ns = now_ns;
    if (!s->tx || now_ns - s->checked_ns > SHM_CHECK_NS)
        shm_listen(s);
    s->blocked = !s->tx;
    if (s->tx && !s->dead && !s->broken)
        s->broken = shm_reclaim(s) < 0;
    if (s->dead || s->broken) { /* lost; recv tells that the port is broken */
        s->tx_drops += (uint64_t)n;
        return n;
    }
    if (!s->tx)
        return 0;
    while (done < n && rc > 0) {
        rc = send_packet(s, &tx[done]);
        if (rc == 0 && wait_for_room(s))
            rc = send_packet(s, &tx[done]);
        done += rc > 0;
    }
    s->blocked = rc == 0;
    /* Both seq_cst, as in shm_arm(): the packets are seen there, or the flag is seen here. */
    if (done) {
        atomic_store(&s->tx->head, s->tx_head);
        if (atomic_load(&s->tx->receiver_sleeps) && atomic_exchange(&s->tx->receiver_sleeps, 0))
            shm_wake(s);
    }
    return rc < 0 && !done ? rc : done;
}
