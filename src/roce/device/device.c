/* Opening and closing a device; what it tells about itself. */
#define LOG_COMPONENT "uroce"
#include "dev.h"

#include "base/log.h"
#include "base/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

/* Packets on their way of a queue pair, as far as selective repeat can tell of (QP_SACK_RING). */
#define WINDOW_PKTS 1024
#define ACK_EVERY   64
#define ACK_BYTES   (256u << 10) /* an acknowledgement costs both ends as much as some ten packets */

static atomic_uint_fast64_t fork_generation;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void in_child(void)
{
    atomic_fetch_add(&fork_generation, 1);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

uint64_t dev_fork_generation(void)
{
    pthread_once(&fork_once, watch_forks);
    return atomic_load_explicit(&fork_generation, memory_order_relaxed);
}

int dev_check_fork(const struct uroce_device *dev)
{
    return atomic_load_explicit(&fork_generation, memory_order_relaxed) == dev->fork_generation ? 0 : -ECHILD;
}

static void on_mad(void *ctx, const struct qp_path *from, const struct wire_pkt *pkt)
{
    struct wire_mad head;
    if (wire_mad_decode(pkt->payload, pkt->payload_len, &head))
        return;
    if (head.mgmt_class == WIRE_MAD_UROCE)
        dev_hello_mad(ctx, from, pkt);
    else if (head.mgmt_class == WIRE_MAD_CM && !dev_link_of(ctx, from->port_id)) /* connections are the network's */
        dev_cm_mad(ctx, from, pkt);
}

static const struct qp_engine_ops engine_ops = {
    .cq_event = dev_cq_event,
    .async_event = dev_async_event,
    .mad = on_mad,
    .payload = dev_payload,
    .let_go = dev_let_go,
    .group_left = dev_group_left,
};

/* "+FILE": behind what FILE has. A device that finds it in use by another writes FILE.PID.DEVICE. */
static int open_capture(struct uroce_device *dev, struct dev_port *p, char *err, size_t err_size)
{
    const struct uroce_config *c = &dev->cfg;
    bool append = c->capture[0] == '+';
    char path[4096];
    snprintf(path, sizeof path, "%s", c->capture + append);
    struct port_capture_config cc = {
        .path = path,
        .headers_only = c->capture_headers_only,
        .filter = c->capture_filter,
        .interface = c->name,
        .append = append,
        .share = dev->capture,
    };
    struct port *on;
    int r = port_capture_open(&cc, p->port, &on, err, err_size);
    if (r == -EBUSY) {
        snprintf(path, sizeof path, "%s.%d.%s", c->capture + append, (int)getpid(), c->name);
        r = port_capture_open(&cc, p->port, &on, err, err_size);
    }
    if (r)
        return r;
    if (!dev->capture) /* of the first address: it is there as long as the device */
        dev->capture = on;
    p->port = on;
    return 0;
}

/* Capture and impairment stand on the port: the capture sees what the impairment lets through from below. */
int dev_stack_port(struct uroce_device *dev, struct dev_port *p, char *err, size_t err_size)
{
    const struct uroce_config *c = &dev->cfg;
    struct port *on;
    int r = c->capture ? open_capture(dev, p, err, err_size) : 0;
    if (r)
        return r;
    if (c->impair) {
        r = port_impair_open(c->impair, c->seed ? c->seed : dev->instance, p->port, &on, err, err_size);
        if (r)
            return r;
        p->port = on;
    }
    return 0;
}

static int open_ports(struct uroce_device *dev, char *err, size_t err_size)
{
    struct dev_address at[DEV_ADDRESSES_MAX];
    int n = dev_addresses(dev->cfg.addresses, dev->origin, at, DEV_ADDRESSES_MAX, err, err_size);
    if (n < 0)
        return n;
    int joined = holder_client_join(&dev->holder, err, err_size);
    if (joined && joined != -ENOENT)
        return joined;
    if (!joined && dev->cfg.full_icrc) {
        snprintf(err, err_size,
                 "full ICRC checks see all packets of an address, which processes share here: set UROCE_HOLDER=off");
        return -EINVAL;
    }
    for (int i = 0; i < n; i++) {
        struct dev_port *p = &dev->ports[i];
        p->at = at[i];
        list_init(&p->held);
        struct port_udp_config uc = {.local = at[i].addr, .rcvbuf_bytes = dev->cfg.rcvbuf_bytes, .fd = -1};
        uc.raw = dev->cfg.full_icrc;
        if (!joined) {
            uc.fd = holder_client_socket(&dev->holder, &at[i].addr, err, err_size);
            if (uc.fd < 0)
                return uc.fd;
        }
        int r = port_udp_open(&uc, &p->port, err, err_size);
        if (r)
            return r;
        dev->nports++;
        r = dev_stack_port(dev, p, err, err_size);
        if (r)
            return r;
        port_caps(p->port, &p->caps);
    }
    return 0;
}

/* What the smallest of our buffers holds; peers are taken to have as much. */
static uint64_t buffer_bytes(const struct uroce_device *dev)
{
    uint64_t smallest = UINT64_MAX;
    for (int i = 0; i < dev->nports; i++)
        smallest = min_u64(smallest, dev->ports[i].caps.rcvbuf_bytes);
    return smallest;
}

/* Of one queue pair: a quarter of the buffer, at least 32 packets. */
static uint32_t window_bytes(const struct uroce_device *dev)
{
    return (uint32_t)min_u64(max_u64(buffer_bytes(dev) / 4, 32 * WIRE_MTU_BYTES_MAX), 1u << 30);
}

static int open_engine(struct uroce_device *dev)
{
    struct qp_engine_config ec = {
        .seed = dev->cfg.seed,
        .qpn_slot = dev->holder.slot,
        .window_pkts = WINDOW_PKTS,
        .window_bytes = window_bytes(dev),
        .total_bytes = buffer_bytes(dev) / 4 * 3, /* so that hundreds of busy queue pairs do not drown it */
        .ack_every = ACK_EVERY,
        .ack_bytes = ACK_BYTES,
        .run_bytes = PORT_BATCH_BYTES,
        .dcqcn = {.enabled = dev->cfg.congestion_control},
        .ops = &engine_ops,
        .ctx = dev,
    };
    if (!ec.seed)
        rng_secret(&ec.seed, sizeof ec.seed);
    return qp_engine_new(&ec, &dev->engine);
}

/* Two processes under one kernel see the same boot id, in whatever namespaces they are. */
static void read_machine(uint8_t ret[16])
{
    char text[64] = "";
    cleanup_close int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    int digits = 0;
    memset(ret, 0, 16);
    for (ssize_t i = 0; i < n && digits < 32; i++) {
        const char *hex = "0123456789abcdef", *at = text[i] ? strchr(hex, text[i]) : NULL;
        if (!at)
            continue;
        ret[digits / 2] = (uint8_t)(ret[digits / 2] << 4 | (at - hex));
        digits++;
    }
}

static void teardown(struct uroce_device *dev)
{
    dev_leave_watch(dev, false);
    if (dev->cm) { /* the last words of connections */
        dev_lock(dev);
        dev_work(dev, now_ns(), DEV_OTHER);
        dev_unlock(dev);
    }
    dev_thread_stop(dev);
    dev_cm_close(dev);
    if (dev->engine)
        dev_links_close(dev);
    dev_mem_close(dev);
    dev_meet_close(&dev->meet);
    for (int i = 0; i < dev->nports; i++) {
        dev_held_drop(&dev->ports[i]);
        port_close(dev->ports[i].port);
    }
    if (dev->engine)
        qp_engine_free(dev->engine);
    holder_client_leave(&dev->holder);
    dev_tx_done(dev);
    free(dev->by_qpn);
    free(dev->bounce);
    dev_config_done(&dev->cfg);
    dev_stat_stop(dev);
    if (dev->links_fd >= 0)
        close(dev->links_fd);
    if (dev->helper_fd >= 0)
        close(dev->helper_fd);
    if (dev->wake_fd >= 0)
        close(dev->wake_fd);
    dev_events_done(dev);
    sem_destroy(&dev->leave.done);
    pthread_mutex_destroy(&dev->lock);
    pthread_mutex_destroy(&dev->bells_lock);
    free(dev);
}

static struct uroce_device *new_device(void)
{
    struct uroce_device *dev = calloc(1, sizeof *dev);
    if (!dev)
        return NULL;
    pthread_mutexattr_t knows_owner;
    pthread_mutexattr_init(&knows_owner);
    pthread_mutexattr_settype(&knows_owner, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&dev->lock, &knows_owner);
    pthread_mutexattr_destroy(&knows_owner);
    pthread_mutex_init(&dev->bells_lock, NULL);
    list_init(&dev->bells);
    list_init(&dev->hellos);
    dev->hello_due = UINT64_MAX;
    list_init(&dev->cm_late);
    dev->cm_late_look = UINT64_MAX;
    list_init(&dev->event_queues);
    list_init(&dev->qps);
    list_init(&dev->memory);
    sem_init(&dev->leave.done, 0, 0);
    dev_leave_watch(dev, true);
    dev->holder.sock = -1;
    dev->stat.listener = -1;
    for (int i = 0; i < DEV_STAT_READERS; i++)
        dev->stat.readers[i].sock = -1;
    dev_meet_init(&dev->meet);
    dev->links_fd = epoll_create1(EPOLL_CLOEXEC);
    dev->bounce = malloc(WIRE_PAYLOAD_MAX);
    dev->helper_fd = epoll_create1(EPOLL_CLOEXEC);
    dev->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    dev->by_qpn = calloc(DEV_QPNS, sizeof *dev->by_qpn);
    dev->fork_generation = dev_fork_generation();
    rng_secret(&dev->instance, sizeof dev->instance);
    read_machine(dev->machine);
    wire_icrc_tab_init(&dev->icrc);
    return dev;
}

int uroce_open(const struct uroce_config *cfg, struct uroce_device **ret, char *err, size_t err_size)
{
    const char *debug = getenv("UROCE_DEBUG");
    if (debug && *debug && strcmp(debug, "0") != 0)
        log_set_level(LOG_LVL_DEBUG);
    if (err_size)
        err[0] = '\0';
    struct uroce_device *dev = new_device();
    if (!dev)
        return -ENOMEM;
    int r = dev->wake_fd < 0 || dev->helper_fd < 0 || dev->links_fd < 0 ? -EMFILE : 0;
    if (!r && (!dev->by_qpn || !dev->bounce))
        r = -ENOMEM;
    if (!r)
        r = dev_events_init(dev);
    if (!r)
        r = dev_config_init(&dev->cfg, cfg, &dev->index, &dev->origin, err, err_size);
    if (!r)
        r = dev_tx_init(dev);
    if (!r)
        r = open_ports(dev, err, err_size);
    if (!r)
        r = open_engine(dev);
    if (!r)
        r = dev_cm_open(dev);
    if (!r && !dev->cfg.no_thread)
        r = dev_thread_start(dev);
    if (r) {
        if (err_size && !err[0])
            snprintf(err, err_size, "the device cannot be opened: %s", strerror(-r));
        teardown(dev);
        return r;
    }
    *ret = dev;
    return 0;
}

int uroce_close(struct uroce_device *dev)
{
    /* A child has the memory alone: its parent's thread and traffic are not its own. */
    if (dev_check_fork(dev))
        return -ECHILD;
    if (atomic_load(&dev->objects))
        return -EBUSY;
    teardown(dev);
    return 0;
}

void uroce_query_device(struct uroce_device *dev, struct uroce_device_attr *ret)
{
    int mtu = WIRE_MTU_4096;
    for (int i = 0; i < dev->nports; i++) {
        int m = wire_mtu_for_link(dev->ports[i].at.link_mtu, !wire_gid_is_v4(&dev->ports[i].at.addr.gid));
        if (m > 0 && m < mtu)
            mtu = m;
    }
    *ret = (struct uroce_device_attr){
        .max_qp = 65534,
        .max_cq = 65536,
        .max_mr = 1u << 20,
        .max_pd = 65536,
        .max_srq = 65536,
        .max_mw = 1u << 20,
        .max_qp_wr = UROCE_WR_MAX,
        .max_cqe = UROCE_CQE_MAX,
        .max_sge = UROCE_SGE_MAX,
        .max_rd_atomic = UROCE_RD_ATOMIC,
        .max_inline = UROCE_INLINE_MAX,
        .active_mtu = (enum uroce_mtu)mtu,
        .gids = (uint32_t)dev->nports,
    };
    snprintf(ret->name, sizeof ret->name, "%s", dev->cfg.name);
    ret->node_guid = dev_guid(&dev->ports[0].at, dev->index);
}

int uroce_query_gid(struct uroce_device *dev, unsigned int index, union uroce_gid *ret)
{
    if (index >= (unsigned)dev->nports)
        return -ENOENT;
    *ret = dev->ports[index].at.addr.gid;
    return 0;
}

int uroce_query_gid_interface(struct uroce_device *dev, unsigned int index, unsigned int *ret)
{
    if (index >= (unsigned)dev->nports)
        return -ENOENT;
    *ret = dev->ports[index].at.ifindex;
    return 0;
}

static void add_counters(struct uroce_counters *to, const struct uroce_counters *from)
{
    uint64_t *a = (uint64_t *)to;
    const uint64_t *b = (const uint64_t *)from;
    _Static_assert(sizeof *to % sizeof *a == 0, "counters are uint64_t alone");
    for (size_t i = 0; i < sizeof *to / sizeof *a; i++)
        a[i] += b[i];
}

void uroce_device_counters(struct uroce_device *dev, struct uroce_counters *ret)
{
    dev_lock(dev);
    qp_engine_counters(dev->engine, ret);
    add_counters(ret, &dev->counters);
    for (int i = 0; i < dev->nports; i++)
        port_counters(dev->ports[i].port, ret);
    dev_links_counters(dev, ret);
    dev_unlock(dev);
}
