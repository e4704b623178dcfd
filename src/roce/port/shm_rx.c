/* The shared-memory port, receiving: nothing of the ring is used but private copies that were checked. */
#include "shm_priv.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/uio.h>

bool shm_has_packets(const struct shm_port *s)
{
    return atomic_load(&s->rx->head) != s->rx_next;
}

/* A load alone could be done before the reads that it is to follow; this has release order, and changes nothing. */
static bool void_after_reads(_Atomic uint32_t *is_void)
{
    return atomic_fetch_or_explicit(is_void, 0, memory_order_acq_rel) != 0;
}

/* The peer's process is alive, so that its pid was its own all the time. */
static bool peer_lives(const struct shm_port *s)
{
    struct pollfd p = {s->peer_pidfd, POLLIN, 0};
    return s->peer_pidfd >= 0 && poll(&p, 1, 0) == 0;
}

static int read_peer(const struct shm_port *s, uint8_t *dst, uint64_t addr, size_t len)
{
    if (s->peer_pidfd < 0)
        return -EIO;
    while (len) {
        struct iovec to = {dst, len}, from = {(void *)(uintptr_t)addr, len};
        ssize_t n = process_vm_readv(s->peer_pid, &to, 1, &from, 1, 0);
        if (n <= 0)
            return -EIO;
        dst += n;
        addr += (uint64_t)n;
        len -= (size_t)n;
    }
    return peer_lives(s) ? 0 : -EIO;
}

static int copy_pieces(const struct shm_lent *l, uint8_t *dst, size_t offset, size_t len)
{
    const struct shm_port *s = l->port;
    for (uint32_t i = 0; i < l->npieces && len; i++) {
        const struct shm_piece *p = &l->pieces[i];
        if (offset >= p->len) {
            offset -= p->len;
            continue;
        }
        size_t part = p->len - offset < len ? p->len - offset : len;
        if (p->region != SHM_NO_REGION)
            memcpy(dst, s->theirs[p->region].base + p->addr + offset, part);
        else if (read_peer(s, dst, p->addr + offset, part))
            return -EIO;
        dst += part;
        offset = 0;
        len -= part;
    }
    return len ? -EIO : 0;
}

static int shm_copy(void *ctx, void *dst, size_t offset, size_t len)
{
    struct shm_lent *l = ctx;
    if (offset > l->payload_len || len > l->payload_len - offset)
        return -EINVAL;
    if (l->staged) {
        memcpy(dst, l->staged + offset, len);
        return 0;
    }
    /* After the copy: had the sender taken the memory back in between, the bytes are not those that it meant. */
    if (!atomic_load(l->is_void) && copy_pieces(l, dst, offset, len) == 0 && !void_after_reads(l->is_void))
        return 0;
    l->port->copy_failed++;
    return -EIO;
}

static bool pieces_are_right(const struct shm_port *s, struct shm_lent *l, const struct shm_entry *e, uint32_t npieces)
{
    uint64_t total = 0;
    if (npieces > SHM_PIECES)
        return false;
    shm_read_once(l->pieces, e->pieces, npieces * sizeof *l->pieces);
    l->npieces = npieces;
    for (uint32_t i = 0; i < npieces; i++) {
        const struct shm_piece *p = &l->pieces[i];
        total += p->len;
        if (p->region == SHM_NO_REGION)
            continue; /* the kernel checks the address */
        /* One that is ENDING is there until the packets of this recv are done with. */
        if (p->region >= SHM_REGIONS || !s->theirs[p->region].base || p->addr > s->theirs[p->region].len ||
            p->len > s->theirs[p->region].len - p->addr)
            return false;
    }
    return total == l->payload_len;
}

/* Takes an entry of the ring apart; false: nonsense. */
static bool take_entry(struct shm_port *s, struct shm_entry *e, struct shm_lent *l, struct port_rx *ret)
{
    struct shm_entry f; /* but its union */
    shm_read_once(&f, e, offsetof(struct shm_entry, bytes));
    if (f.head_len < WIRE_BTH_BYTES || f.head_len > WIRE_HEAD_MAX || f.payload_len > SHM_PAYLOAD_MAX)
        return false;
    l->port = s;
    l->is_void = &e->is_void;
    l->payload_len = f.payload_len;
    l->staged = NULL;
    memcpy(l->packet, f.head, f.head_len);
    *ret = (struct port_rx){
        .from = s->cfg.remote,
        .to = s->cfg.local,
        .data = l->packet,
        .len = f.head_len,
        .traffic_class = f.traffic_class,
        .hop_limit = f.hop_limit,
        .ipv4_id_known = true,
        .time_ns = s->now_ns,
    };
    if (f.kind == SHM_INLINED) {
        uint32_t tail = wire_pad(f.payload_len) + WIRE_ICRC_BYTES;
        if (f.payload_len > SHM_INLINE)
            return false;
        shm_read_once(l->packet + f.head_len, e->bytes, f.payload_len);
        memset(l->packet + f.head_len + f.payload_len, 0, tail);
        ret->len += f.payload_len + tail;
        return true;
    }
    ret->copy = shm_copy;
    ret->copy_ctx = l;
    ret->remote_len = f.payload_len;
    if (f.kind == SHM_PIECED)
        return pieces_are_right(s, l, e, f.npieces);
    if (f.kind != SHM_STAGED || f.npieces > s->rx_geo.data_bytes || f.payload_len > s->rx_geo.data_bytes - f.npieces)
        return false;
    l->staged = shm_ring_data(s->rx, &s->rx_geo) + f.npieces;
    return true;
}

/* The packets of the last recv are done with: their places go back to the sender. */
static void give_back(struct shm_port *s)
{
    if (s->rx_tail == s->rx_next)
        return;
    s->rx_tail = s->rx_next;
    atomic_store(&s->rx->tail, s->rx_tail);
    if (atomic_load(&s->rx->sender_sleeps) && atomic_exchange(&s->rx->sender_sleeps, 0))
        shm_wake(s);
}

int shm_recv(struct port *p, uint64_t now_ns, struct port_rx *ret, int max)
{
    struct shm_port *s = shm_of(p);
    int n = 0;
    s->now_ns = now_ns;
    give_back(s);
    /* A peer that wakes takes the flag back. */
    if ((s->armed && !atomic_load_explicit(&s->rx->receiver_sleeps, memory_order_relaxed)) || !s->tx ||
        now_ns - s->checked_ns > SHM_CHECK_NS) {
        s->armed = false;
        shm_listen(s);
    }
    if (s->ending)
        shm_end_regions(s);
    uint32_t head = atomic_load_explicit(&s->rx->head, memory_order_acquire);
    if (head - s->rx_next > s->rx_geo.slots)
        s->broken = true;
    if (s->broken)
        return -EPROTO;
    if (max > (int)SHM_LENT)
        max = SHM_LENT;
    while (n < max && s->rx_next != head) {
        struct shm_entry *e = &s->rx->entries[s->rx_next++ & (s->rx_geo.slots - 1)];
        if (take_entry(s, e, &s->lent[n], &ret[n]))
            n++;
        else
            s->malformed++;
    }
    return n || !s->dead ? n : -ECONNRESET;
}
