/* The shared-memory port: opening and closing. See shm_priv.h for how it works. */
#include "shm_priv.h"

#include "base/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

static void shm_caps(const struct port *p, struct port_caps *ret)
{
    const struct shm_port *s = shm_of(p);
    *ret = (struct port_caps){
        .name = "shm",
        .ipv4_id = PORT_ID_TOLD,
        .no_icrc = true,
        .packet_bytes_max = SHM_PACKET_MAX,
        .segs_max = 1,
        .rcvbuf_bytes = (uint64_t)s->rx_geo.slots / 2 * 65536,
    };
}

static int shm_fd(const struct port *p)
{
    return shm_of(p)->sock;
}

static bool shm_arm(struct port *p)
{
    struct shm_port *s = shm_of(p);
    s->armed = true;
    if (!atomic_load(&s->rx->receiver_sleeps))
        atomic_store(&s->rx->receiver_sleeps, 1);
    if (shm_has_packets(s) || s->dead || s->broken)
        return true;
    if (!s->blocked || !s->tx)
        return false;
    uint32_t before = s->tx_tail;
    atomic_store(&s->tx->sender_sleeps, 1);
    return shm_reclaim(s) || s->tx_tail != before;
}

static uint64_t shm_deadline(const struct port *p)
{
    const struct shm_port *s = shm_of(p);
    return s->blocked ? s->now_ns + SHM_CHECK_NS : UINT64_MAX;
}

static uint16_t shm_sport(struct port *p, uint16_t wanted)
{
    (void)p;
    return wanted;
}

static int shm_join(struct port *p, const struct port_addr *group, bool join)
{
    (void)p, (void)group, (void)join;
    return -EOPNOTSUPP;
}

static void shm_counters(const struct port *p, struct uroce_counters *add_to)
{
    const struct shm_port *s = shm_of(p);
    add_to->drop_malformed += s->malformed;
    add_to->drop_other += s->copy_failed;
    add_to->tx_drops += s->tx_drops;
}

static void shm_close(struct port *p)
{
    struct shm_port *s = shm_of(p);
    for (uint32_t i = 0; i < SHM_REGIONS; i++)
        if (s->theirs[i].base)
            munmap(s->theirs[i].base, s->theirs[i].len);
    if (s->tx)
        munmap(s->tx, shm_ring_bytes(&s->tx_geo));
    if (s->rx)
        munmap(s->rx, shm_ring_bytes(&s->rx_geo));
    if (s->peer_pidfd >= 0)
        close(s->peer_pidfd);
    close(s->sock);
    free(s->data_end);
    free(s->lent);
    free(s);
}

static const struct port_ops shm_ops = {
    .caps = shm_caps,
    .send = shm_send,
    .recv = shm_recv,
    .fd = shm_fd,
    .rx_fd = shm_fd,
    .arm = shm_arm,
    .deadline = shm_deadline,
    .sport = shm_sport,
    .revoke = shm_revoke,
    .join = shm_join,
    .counters = shm_counters,
    .close = shm_close,
};

static int check_socket(int sock)
{
    struct ucred who;
    int type, one = 1;
    socklen_t len = sizeof type;
    if (getsockopt(sock, SOL_SOCKET, SO_TYPE, &type, &len))
        return -errno;
    if (type != SOCK_SEQPACKET)
        return -EPROTOTYPE;
    len = sizeof who;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &len))
        return -errno;
    if (who.uid != geteuid())
        return -EPERM;
    return setsockopt(sock, SOL_SOCKET, SO_PASSCRED, &one, sizeof one) ? -errno : 0;
}

/* The ring that we receive in; its size is sealed, for the peer's safety. */
static int make_ring(struct shm_port *s)
{
    uint32_t want = s->cfg.ring_packets ? s->cfg.ring_packets : SHM_SLOTS;
    s->rx_geo = (struct shm_geometry){SHM_SLOTS_MIN, SHM_DATA_BYTES};
    while (s->rx_geo.slots < want && s->rx_geo.slots < SHM_SLOTS_MAX)
        s->rx_geo.slots *= 2;
    size_t bytes = shm_ring_bytes(&s->rx_geo);
    cleanup_close int fd = memfd_create("uroce-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        return -errno;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    s->rx = p;
    int ret = fd;
    fd = -1;
    return ret;
}

int port_shm_open(const struct port_shm_config *cfg, struct port **ret, char *err, size_t err_size)
{
    struct shm_port *s = calloc(1, sizeof *s);
    int rc = check_socket(cfg->sock);
    if (!s) {
        close(cfg->sock);
        return -ENOMEM;
    }
    s->port.ops = &shm_ops;
    s->cfg = *cfg;
    s->sock = cfg->sock;
    s->peer_pidfd = -1;
    s->peer_shown = -EAGAIN;
    rng_secret(&s->probe, sizeof s->probe);
    s->lent = calloc(SHM_LENT, sizeof *s->lent);
    if (!rc && !s->lent)
        rc = -ENOMEM;
    if (!rc) {
        cleanup_close int ring = make_ring(s);
        rc = ring < 0 ? ring : shm_hello(s, ring);
    }
    if (rc) {
        snprintf(err, err_size, "shared memory with a process on this machine: %s%s", strerror(-rc),
                 rc == -EPERM ? ": it belongs to another user" : "");
        shm_close(&s->port);
        return rc;
    }
    *ret = &s->port;
    return 0;
}

int port_shm_ready(const struct port *p)
{
    const struct shm_port *s = shm_of(p);
    if (p->ops != &shm_ops)
        return -EINVAL;
    if (s->broken)
        return -EPROTO;
    return s->dead ? -ECONNRESET : s->tx != NULL;
}

int port_shm_shown(const struct port *p)
{
    return p->ops == &shm_ops ? shm_of(p)->peer_shown : 0;
}

int port_shm_share(struct port *p, int memfd, const void *base, size_t len)
{
    struct shm_port *s = shm_of(p);
    int seals = fcntl(memfd, F_GET_SEALS);
    if (p->ops != &shm_ops || !len || seals < 0 || !(seals & F_SEAL_SHRINK))
        return -EINVAL;
    uint32_t i = 0;
    while (i < SHM_REGIONS && s->ours[i].state != SHM_REGION_NONE)
        i++;
    if (i == SHM_REGIONS)
        return -ENOSPC;
    struct shm_msg m = {.magic = SHM_MAGIC, .type = SHM_REGION, .a = i, .b = (uintptr_t)base, .c = len};
    int rc = shm_say(s, &m, memfd);
    if (rc)
        return rc;
    s->ours[i] = (struct shm_region){(uint8_t *)(uintptr_t)base, len, SHM_REGION_TOLD};
    if (s->nours <= i)
        s->nours = i + 1;
    return 0;
}

void port_shm_unshare(struct port *p, const void *base)
{
    struct shm_port *s = shm_of(p);
    if (p->ops != &shm_ops)
        return;
    for (uint32_t i = 0; i < s->nours; i++) {
        struct shm_region *r = &s->ours[i];
        if (r->base != base || (r->state != SHM_REGION_TOLD && r->state != SHM_REGION_USABLE))
            continue;
        shm_revoke(p, &(struct port_taken){r->base, r->len, 0});
        r->state = SHM_REGION_ENDING;
        s->ending++;
        return;
    }
}

bool port_shm_room(struct port *p)
{
    struct shm_port *s = shm_of(p);
    if (p->ops != &shm_ops || s->dead || s->broken)
        return true; /* what is sent is dropped */
    if (!s->tx)
        return false;
    for (int again = 0; again < 2; again++) {
        s->broken = shm_reclaim(s) < 0;
        /* A payload does not lie across the end of the area: that much may be left out there. */
        s->blocked = s->tx_geo.slots - (s->tx_head - s->tx_tail) < PORT_SEGS_MAX ||
                     s->tx_geo.data_bytes - (s->data_head - s->data_tail) < PORT_SHM_ROOM + SHM_PAYLOAD_MAX;
        if (!s->blocked || s->broken)
            return true;
        if (again == 0 && !atomic_load(&s->tx->sender_sleeps))
            atomic_store(&s->tx->sender_sleeps, 1); /* and look again, as in send */
    }
    return false;
}

void port_shm_look(struct port *p)
{
    if (p->ops == &shm_ops)
        shm_listen(shm_of(p));
}
