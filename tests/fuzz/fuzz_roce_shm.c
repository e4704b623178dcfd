/*
 * Entries of a shared-memory ring as a hostile peer may write them: the input is the ring's entries, taken by the
 * receiver as so many packets. Each is looked at as the engine would.
 */
#include "fuzz.h"

#include "base/rng.h"
#include "shm_priv.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

static struct port *a, *b;

static void open_pair(void)
{
    int sv[2];
    char err[100];
    struct port_rx rx;
    struct port_shm_config cfg = {.peer_memory = true, .ring_packets = 16};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sv))
        abort();
    cfg.sock = sv[0];
    if (port_shm_open(&cfg, &a, err, sizeof err))
        abort();
    cfg.sock = sv[1];
    if (port_shm_open(&cfg, &b, err, sizeof err))
        abort();
    for (int i = 0; i < 4; i++) {
        port_arm(a);
        port_recv(a, 1, &rx, 0);
        port_arm(b);
        port_recv(b, 1, &rx, 0);
    }
    if (port_shm_ready(a) != 1 || port_shm_ready(b) != 1)
        abort();
    /* A region of the peer's, so that there is one to miss. */
    shm_of(b)->theirs[0] =
        (struct shm_region){mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 8192, SHM_REGION_USABLE};
}

static void look_at(struct port_rx *rx)
{
    static uint8_t buf[SHM_PAYLOAD_MAX];
    volatile uint8_t sum = 0;
    for (uint32_t i = 0; i < rx->len; i++)
        sum = (uint8_t)(sum + rx->data[i]);
    if (!rx->copy)
        return;
    if (rx->remote_len > SHM_PAYLOAD_MAX || rx->len > WIRE_HEAD_MAX)
        abort();
    /* Addresses in this very process are the peer's too: only the first bytes, or a random one is copied from. */
    rx->copy(rx->copy_ctx, buf, 0, rx->remote_len);
    rx->copy(rx->copy_ctx, buf, rx->remote_len / 2, rx->remote_len - rx->remote_len / 2);
    if (rx->copy(rx->copy_ctx, buf, rx->remote_len, 1) == 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!a)
        open_pair();
    struct shm_port *s = shm_of(b);
    struct shm_ring *r = s->rx;
    uint32_t n = 0;
    for (size_t at = 0; at < size && n < s->rx_geo.slots; n++) {
        struct shm_entry *e = &r->entries[(s->rx_next + n) & (s->rx_geo.slots - 1)];
        size_t part = size - at < sizeof *e ? size - at : sizeof *e;
        memset(e, 0, sizeof *e);
        memcpy(e, data + at, part);
        at += part;
    }
    atomic_store(&r->head, s->rx_next + n);
    struct port_rx rx[16];
    for (int k; (k = port_recv(b, 1, rx, 16)) > 0;)
        for (int i = 0; i < k; i++)
            look_at(&rx[i]);
    if (shm_has_packets(s))
        abort();
    return 0;
}

size_t fuzz_sample(uint64_t n, uint8_t *buf, size_t cap)
{
    struct rng r;
    struct shm_entry e = {0};
    rng_seed(&r, n);
    rng_fill(&r, &e, sizeof e);
    atomic_store(&e.is_void, 0);
    e.kind = (uint8_t)rng_below(&r, 3);
    e.head_len = (uint8_t)(12 + rng_below(&r, 33));
    e.payload_len = (uint32_t)rng_below(&r, e.kind == SHM_INLINED ? SHM_INLINE + 1 : 5000);
    e.npieces = 1;
    if (e.kind == SHM_PIECED)
        e.pieces[0] = (struct shm_piece){rng_below(&r, 3000), e.payload_len, 0};
    if (cap < sizeof e)
        return 0;
    memcpy(buf, &e, sizeof e);
    return sizeof e;
}
