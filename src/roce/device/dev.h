/*
 * A device inside: one queue-pair engine, one packet port per address, and whoever drives them.
 *
 * LOCKS, in the order in which they are taken:
 *   dev->lock   the engine and the ports. Taken by try-lock on the fast path (drive.c), waited for by calls that make,
 *               change or destroy objects.
 *   cq->lock    polling and arming of one CQ; qp->send_lock, qp->recv_lock, srq->lock: posting to one queue.
 *   dev->bells_lock, channel->lock, events->lock: leaves, held for a few instructions.
 */
#ifndef DEVICE_DEV_H
#define DEVICE_DEV_H

#include "base/list.h"
#include "port/port.h"
#include "qp/qp.h"
#include "roce/device_holder.h"
#include "roce/wire_icrc.h"
#include "roce/wire_mad.h"
#include "slot/slot.h"
#include "uroce/uroce.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/types.h>

#define DEV_ADDRESSES_MAX UROCE_GIDS_MAX
#define DEV_BURST         64        /* packets taken from the engine or a port at once */
#define DEV_RUN_BYTES     16384     /* packets that are checked, then copied: they stay in the core's first cache */
#define DEV_BURST_MIN     16        /* so many received or sent at once are a stream */
#define DEV_LINGER_NS     100000u   /* so long the helper thread waits awake for more of one, */
#define DEV_LINGER_MAX_NS 1000000u  /* and looks for other work after that */
#define DEV_ROUNDS        16        /* bursts of one drive: then others may have the device */
#define DEV_WAY_NS        1000000u  /* so long after a drive whoever waits for the device goes first */
#define DEV_COPIED        (1u << 20) /* bytes by links after which a poll returns what it has */
#define DEV_STAND_BACK_NS 1000000u  /* the helper thread leaves the device to a program that polled within that time */
#define DEV_CM_MADS       512       /* messages of the communication manager that wait; more are lost, as on a wire */
#define DEV_COLD_NS       10000000u /* an address that nothing came to or went from for so long */
#define DEV_COLD_LOOK_NS  50000u    /* is not looked at more often than that by a program that polls */
#define DEV_LOOKED_NS     20000u    /* looked at so lately, ports are not by who posts, arms or asks for an event */
#define DEV_SPIN_NS       20000u    /* a native wait polls for so long before it sleeps */
#define DEV_QPNS          (1u << 16)
#define DEV_STAT_READERS  4
#define DEV_LINKS_MAX     64 /* processes of this machine by shared memory; port ids follow those of the addresses */
#define DEV_GUESTS        16
#define DEV_FAR_BYTES     (1u << 20) /* payload of a packet by shared memory */

struct dev_address {
    struct port_addr addr;
    uint32_t link_mtu;
    unsigned int ifindex;
    char ifname[16];
};

struct cm_engine;

/* A run that a full port did not take: its packets are copied, since the engine's pointers end with its next call. */
struct dev_held {
    struct port_tx tx;
    struct iovec iov;
    struct list link;
    uint8_t bytes[];
};

struct dev_port {
    struct port *port;
    struct port_caps caps;
    struct dev_address at;
    uint64_t used_ns; /* when something was last sent or received */
    struct list held; /* struct dev_held: nothing newer is sent on this port before them */
    /* The runs that received packets belonged to: packets of one flow and size share the ICRC's prefix. */
    struct dev_rx_run {
        struct wire_icrc_run icrc;
        struct port_addr from, to;
    } rx_runs[4]; /* by their size: a message's first, middle and last packets and the answers come in turns */
};

/* Live counters: who is being told. The helper thread's alone. */
struct dev_stat_reader {
    int sock; /* -1: none */
    uint32_t next;
    uint64_t moved_ns;
};

struct dev_stat {
    int listener;
    uint64_t opened_ns;
    struct dev_stat_reader readers[DEV_STAT_READERS];
};

/* A message of the communication manager that waits to be looked at. */
struct dev_cm_mad {
    struct qp_path path;
    uint8_t bytes[WIRE_MAD_BYTES];
};

/* Who drives: a program that polls, posts, arms or asks for an event, or was woken by a channel that leads; or else. */
enum dev_hand { DEV_POLL, DEV_POST, DEV_EVENT, DEV_WOKEN, DEV_OTHER };

/* acks.c; dev->lock */
struct dev_acks {
    uint64_t since;   /* when the first that waits, or would have, was put off; 0: none */
    uint32_t answers; /* how often the program answered at once, lately */
    bool asked;       /* whether it does now is to be seen */
    bool waits;       /* an acknowledgement does */
};

/* leave.c */
struct dev_leave {
    struct list link; /* of all devices */
    atomic_bool asked;
    sem_t done;
};

/* link.c: another device of this user on this machine. */
struct dev_link {
    struct dev_port port; /* port.port NULL: it has ended, and queue pairs still name it */
    struct port *shm;     /* the bottom of port.port */
    uint64_t instance;    /* of the peer */
    union uroce_gid local, remote;
    uint32_t users; /* queue pairs */
    uint64_t idle_ns;
    uint8_t id;                /* as qp_path.port_id */
    uint8_t large;             /* large packets came lately */
    bool ready, full, offered; /* offered: the peer has been told of all our memory */
};

/* meet.c: where others find this device. */
struct dev_meet {
    int listener; /* -1: none yet */
    bool failed;
    char path[WIRE_HELLO_NAME_BYTES];
    uint64_t next_look_ns;
    struct {
        int sock; /* -1: none */
        uint64_t until_ns;
    } guests[DEV_GUESTS]; /* who have not said what they want */
};

/* lead.c: the channel whose descriptor tells of packets too. */
struct dev_lead {
    struct uroce_channel *channel; /* or NULL; dev->lock */
    atomic_bool never;
    atomic_bool armed;               /* its program armed it, and was given nothing since: it may be asleep */
    atomic_uint_fast64_t armed_ns;   /* when last; 0: never, or there is none */
    atomic_uint_fast64_t doubted_ns; /* before that nobody is taken at his word */
    atomic_uint drives;              /* by programs */
    unsigned seen, idle;             /* the helper thread's: drives as of its last look; looks that found nothing */
};

/* memory.c: of the allocator, or lent by the program. */
struct dev_mem {
    struct list link;
    void *addr;
    size_t len;
    int fd;
    uint32_t lent; /* how often; 0: of the allocator */
    uint64_t offered; /* a bit for each link */
};

struct uroce_device {
    pthread_mutex_t lock;
    int cancel_state; /* of the thread that has the lock by dev_lock; lock */
    struct dev_acks acks;
    struct dev_leave leave;
    struct qp_engine *engine;
    struct dev_port ports[DEV_ADDRESSES_MAX];
    int nports;
    struct port *capture; /* one of the ports' captures: all write to one file */
    struct wire_icrc_tab icrc;
    struct uroce_counters counters; /* what the engine does not see: ICRC, malformed packets, ports */
    struct uroce_config cfg;        /* strings owned */
    unsigned int index;             /* among the devices that are configured */
    const char *origin;             /* of the addresses, for messages */
    uint64_t instance;              /* random: told in the hello */
    uint8_t machine[16];
    uint64_t fork_generation;

    /* drive.c */
    uint64_t sent;               /* packets; dev->lock */
    atomic_uint bursts;          /* drives that received or sent a good part of a run */
    unsigned bursts_lingered;    /* the helper's own */
    atomic_uint received;        /* packets */
    uint64_t looked_ns, cold_ns; /* when ports were last looked at, and those that are idle; lock */
    struct dev_lead lead;
    atomic_bool unfinished;         /* a poll's drive ended with more to do, which nothing else tells */
    atomic_bool pending;            /* somebody wants the device driven; whoever holds the lock looks again */
    atomic_uint_fast64_t polled_ns; /* when a program last drove it itself */
    atomic_uint_fast64_t deadline;  /* as of the last drive */
    atomic_bool helper_drives;      /* the device's own thread has or wants the lock */
    atomic_int wanted;              /* callers of dev_lock that wait: whoever drives lets them go first, */
    atomic_uint_fast64_t way_until; /* until then */
    atomic_int waiters;             /* threads that sleep on the ports themselves (native wait) */
    pthread_mutex_t bells_lock;
    struct list bells; /* struct uroce_qp and struct uroce_srq users whose queue the engine has to look at */
    struct qp_tx *tx;  /* DEV_BURST, scratch of tx.c */
    struct dev_tx_scratch *scratch;
    struct port_rx rx[DEV_BURST];

    /* thread.c */
    pthread_t thread;
    bool has_thread;
    atomic_bool stop;
    int wake_fd, helper_fd; /* helper_fd: an epoll of wake_fd and what stat.c waits for */
    struct dev_stat stat;
    atomic_uint_fast64_t sleeps_until; /* the helper's next look; 0: awake, or it stands back */

    /* hello.c, link.c, meet.c; dev->lock */
    struct list hellos; /* struct dev_hello */
    uint64_t hello_due; /* not after the first deadline of them */
    struct dev_link *links[DEV_LINKS_MAX];
    int nlinks;      /* all from there on are NULL */
    uint64_t copied; /* bytes that came by them in this drive */
    struct dev_meet meet;
    int links_fd;            /* an epoll of the links' and the rendezvous' descriptors */
    atomic_bool links_ready; /* a sleeper saw that it has something */
    atomic_int sleepers;     /* threads that sleep on the ports: links stay armed */
    uint8_t *bounce;         /* WIRE_PAYLOAD_MAX: a link's payload that PATH slots change */

    /* cm.c; dev->lock */
    struct cm_engine *cm;
    struct dev_cm_mad *cm_mads; /* ring */
    uint32_t cm_head, cm_nmads;
    struct list cm_late;   /* cm_late.c */
    uint64_t cm_late_look; /* UINT64_MAX: it is empty */

    struct holder_client holder; /* slot 0: none, the addresses are this process's alone */
    atomic_bool holder_ready;    /* a sleeper saw that it has sent something */

    /* objects.c, events.c */
    atomic_uint objects;         /* that keep the device open */
    struct uroce_events *events; /* of the objects that have no queue of their own */
    struct list event_queues;    /* struct uroce_events; dev->lock */
    struct list qps, memory;     /* struct uroce_qp, struct dev_mem; dev->lock */
    struct uroce_qp **by_qpn;    /* by QPN[15:0]; dev->lock */
    uint32_t path_slot_qps;      /* queue pairs with PATH slots */
};

struct uroce_events {
    struct uroce_device *dev;
    pthread_mutex_t lock;
    struct list waiting; /* struct dev_event */
    int fd;              /* eventfd, semaphore: one per event */
    struct list dev_link;
    atomic_uint users;
};

/* First member of the objects that events concern. */
struct dev_subject {
    struct uroce_events *events;
    void *context;
};

struct uroce_pd {
    struct uroce_device *dev;
    struct qp_pd *qp;
};

struct dev_mr {
    struct uroce_mr handle; /* first: what the engine looks at */
    struct uroce_device *dev;
};

struct dev_mw {
    struct uroce_mw handle;
    struct uroce_device *dev;
};

struct dev_ah {
    struct uroce_ah handle;
    struct uroce_device *dev;
};

struct uroce_xrcd {
    struct uroce_device *dev;
    struct qp_xrcd *qp;
};

struct uroce_channel {
    struct uroce_device *dev;
    pthread_mutex_t lock;
    int fd;      /* an epoll of counter, and of the device's sockets while it leads (lead.c) */
    int counter; /* eventfd, semaphore: one per event in the list */
    atomic_bool leads;
    struct list ready; /* struct uroce_cq with events > 0 */
    atomic_uint users;
};

struct uroce_cq {
    struct dev_subject subject;
    struct uroce_device *dev;
    struct qp_cq *qp;
    pthread_mutex_t lock;
    struct uroce_channel *channel;
    void *context;
    struct list ready_link;   /* channel->lock */
    unsigned events, unacked; /* channel->lock: waiting in the channel; given out and not acknowledged */
    atomic_bool just_armed;   /* the next poll looks whether there is something before the program sleeps */
    pthread_cond_t acked;
};

struct uroce_srq {
    struct dev_subject subject;
    struct uroce_device *dev;
    struct qp_srq *qp;
    pthread_mutex_t lock;
};

struct uroce_qp {
    struct dev_subject subject;
    struct uroce_device *dev;
    struct qp *qp;
    pthread_mutex_t send_lock, recv_lock;
    struct uroce_cq *send_cq, *recv_cq;
    struct list bell_link; /* dev->bells_lock */
    bool bell;
    struct list dev_link;
    struct slot_chain *slots; /* or NULL */
    uint32_t path_overhead;
    enum uroce_qp_type type;
    struct qp_path path; /* of the connection, RTR and on */
    uint32_t dest_qpn;
    bool connected;
    struct dev_hello *hello, *bind; /* being asked; moving to a link */
    bool selective;
    uint8_t cookie[16];    /* of the hello */
    struct dev_link *link; /* which it has moved to; may have ended */
    uint32_t far_bytes;    /* of a packet there */
};

/*
 * Programs cancel threads that wait for events (pthread_cancel), and the system's calls are where that happens: not
 * with one of our locks held. Only the sleep itself is left open.
 */
static inline int dev_cancel_off(void)
{
    int state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    return state;
}

static inline void dev_cancel_back(const int *state)
{
    pthread_setcancelstate(*state, NULL);
}

/* Takes a flag that is rarely set: most polls look alone. */
static inline bool dev_take_flag(atomic_bool *flag)
{
    return atomic_load(flag) && atomic_exchange(flag, false);
}

/* Until the end of the scope. */
#define dev_uncancelled() __attribute__((cleanup(dev_cancel_back))) const int uncancelled = dev_cancel_off()

/* One more, one less in an eventfd. Less: false, there was none. */
static inline void dev_count_up(int fd)
{
    while (eventfd_write(fd, 1) == -1 && errno == EINTR)
        ;
}

static inline bool dev_count_down(int fd)
{
    eventfd_t v;
    int r;
    while ((r = eventfd_read(fd, &v)) == -1 && errno == EINTR)
        ;
    return r == 0;
}

/* ---- drive.c ---- */

/* Drives the device if nobody else does; else whoever does will look once more. Never blocks. */
void dev_drive(struct uroce_device *dev);
/* The same from a post. */
void dev_drive_posted(struct uroce_device *dev);
/* The same by the device's own thread. */
void dev_drive_helper(struct uroce_device *dev);
/* The same from a program's own poll: the helper thread stands back for a while. */
void dev_drive_polled(struct uroce_device *dev);
/* The same by one that asks for an event of a channel that leads. */
void dev_drive_event(struct uroce_device *dev);
/* The same by one that has armed it. */
void dev_drive_armed(struct uroce_device *dev);
/* What a drive does, with dev->lock held; true: there may be more to do. */
bool dev_work(struct uroce_device *dev, uint64_t now, enum dev_hand hand);
/* Waits for the device; unlock drives it if somebody asked meanwhile. settled: drives it in any case. */
void dev_lock(struct uroce_device *dev);
void dev_unlock(struct uroce_device *dev);
void dev_unlock_settled(struct uroce_device *dev);
/* The engine will look at this queue pair's queues at the next drive. */
void dev_ring(struct uroce_qp *qp);
/*
 * Sleeps until a packet, a deadline, or `fd` (-1: none) is readable, at most until `until`; then drives. helper: the
 * device's own thread.
 */
void dev_sleep(struct uroce_device *dev, bool helper, int fd, uint64_t until);
/* Clean-up of a thread that is counted in dev->waiters and is cancelled. */
void dev_forget_waiter(void *dev);

/* ---- acks.c: with dev->lock held ---- */

/* dev_tx_all, but that acknowledgements may wait. got: packets that this drive has received. */
bool dev_acks_send(struct uroce_device *dev, uint64_t now, enum dev_hand hand, int got);
uint64_t dev_acks_deadline(const struct uroce_device *dev);
/* What waits is sent: before anything that ends a queue pair. */
void dev_acks_now(struct uroce_device *dev);

/* Of memory that the program has lent, which is taken back with the device. */
void dev_mem_close(struct uroce_device *dev);

/* ---- leave.c ---- */

/* All devices of the process, also those that are being opened. */
void dev_each(void (*fn)(struct uroce_device *dev, void *ctx), void *ctx);

/* At the end of the program its peers are told, and what waits is sent. */
void dev_leave_watch(struct uroce_device *dev, bool on);
/* By the device's own thread: does so, if it is asked to. */
void dev_leave_asked(struct uroce_device *dev);

/* ---- rx.c, tx.c ---- */

/* Receives from one port and feeds the engine: number of packets. */
int dev_rx(struct uroce_device *dev, int port, uint64_t now);
/* One packet. link: the port is one. */
void dev_take(struct uroce_device *dev, struct dev_port *p, uint8_t port_id, const struct port_rx *r, uint64_t now);
/* The same for packets to QPN 1, which come by the holder when there is one. */
void dev_rx_held(struct uroce_device *dev, uint64_t now);
/* Takes from the engine and sends; true: the engine may have more. */
bool dev_tx(struct uroce_device *dev, uint64_t now);
/* As much as is fair at once; true: there is more, and nothing but another drive sends it. */
bool dev_tx_all(struct uroce_device *dev, uint64_t now);
bool dev_held_flush(struct uroce_device *dev, struct dev_port *p, uint64_t now);
void dev_held_drop(struct dev_port *p);
int dev_tx_init(struct uroce_device *dev);
void dev_tx_done(struct uroce_device *dev);

/* ---- lead.c ---- */

/* The channel's CQ was armed; true: packets wake the program that sleeps on it, which need not be helped. */
bool dev_lead_arm(struct uroce_channel *ch);
/* Its descriptor blocks: then it does not lead any more. */
bool dev_lead_blocks(struct uroce_channel *ch);
/* Whether whoever armed is to be left alone. */
bool dev_lead_trusted(struct uroce_device *dev, uint64_t now);
/* For the helper thread, which stands back: serves the device if the program does not. idle: nothing happens. */
void dev_lead_look(struct uroce_device *dev);
bool dev_lead_idle(const struct uroce_device *dev);
/* With dev->lock held: a socket of packets comes, or goes; no channel leads, from now on, or never again. */
void dev_lead_fd(struct uroce_device *dev, int fd, bool comes);
void dev_lead_drop(struct uroce_device *dev);
void dev_lead_never(struct uroce_device *dev);

/* ---- thread.c ---- */

int dev_thread_start(struct uroce_device *dev);
void dev_thread_stop(struct uroce_device *dev);
void dev_thread_wake(struct uroce_device *dev);

/* ---- stat.c ---- */

int dev_stat_start(struct uroce_device *dev);
void dev_stat_stop(struct uroce_device *dev);
/* Something happened on one of its descriptors. */
void dev_stat_serve(struct uroce_device *dev, int fd);

/* ---- config.c, address.c ---- */

/*
 * Environment, defaults and checks: *c owns its strings, its name is set. *ret_index: the device's place among those
 * that are configured; *ret_origin: what gave the addresses. -EINVAL, -ENODEV, ... and a line in err.
 */
int dev_config_init(struct uroce_config *c, const struct uroce_config *cfg, unsigned int *ret_index,
                    const char **ret_origin, char *err, size_t err_size);
void dev_config_done(struct uroce_config *c);
/*
 * The addresses of the device in the order of its GID table. Number, or -errno and a line in err, which names `origin`,
 * where the list comes from.
 */
int dev_addresses(const char *list, const char *origin, struct dev_address *ret, int max, char *err, size_t err_size);
/* The index of the device's address; -EADDRNOTAVAIL. */
int dev_address_index(const struct uroce_device *dev, const union uroce_gid *gid);
/* Of the first address, as adapters make theirs of the MAC: the same each time. Network order. */
uint64_t dev_guid(const struct dev_address *first, unsigned int index);
/* A path MTU that the address's interface does not carry: -EINVAL, and a debug line that names both. */
int dev_mtu_check(const struct uroce_device *dev, unsigned int port, enum uroce_mtu mtu, uint32_t qpn);
/* Resolves a GID index and a peer's GID. -EINVAL: no such index, families that differ; a debug line says which. */
int dev_path(struct uroce_device *dev, const struct uroce_ah_attr *attr, uint32_t flow_hash, struct qp_path *ret);

/* ---- hello.c ---- */

void dev_hello_start(struct uroce_device *dev, struct uroce_qp *qp);
void dev_hello_cancel(struct uroce_qp *qp);
void dev_hello_mad(struct uroce_device *dev, const struct qp_path *from, const struct wire_pkt *pkt);
void dev_hello_tick(struct uroce_device *dev, uint64_t now);
uint64_t dev_hello_deadline(const struct uroce_device *dev);
/* A link is ready: whoever waits for one looks at once. */
void dev_hello_hurry(struct uroce_device *dev);

/* ---- meet.c ---- */

void dev_meet_init(struct dev_meet *m);
void dev_meet_close(struct dev_meet *m);
/* Where this device listens, from now on; NULL: it does not. */
const char *dev_meet_path(struct uroce_device *dev);
/* Opens a link to who has said that hello. -errno: there is no way. */
int dev_meet_call(struct uroce_device *dev, const struct wire_hello *peer, const struct qp_path *path);
void dev_meet_tick(struct uroce_device *dev, uint64_t now);
uint64_t dev_meet_deadline(const struct uroce_device *dev);

/* ---- link.c ---- */

struct dev_link *dev_link_find(struct uroce_device *dev, uint64_t instance, const union uroce_gid *local,
                               const union uroce_gid *remote);
/* NULL: that is an address. */
struct dev_link *dev_link_of(struct uroce_device *dev, uint8_t port_id);
/* NULL: a link that has ended. */
struct dev_port *dev_port_of(struct uroce_device *dev, uint8_t port_id);
/* Takes the socket, also on failure. */
int dev_link_open(struct uroce_device *dev, int sock, uint64_t instance, const union uroce_gid *local,
                  const union uroce_gid *remote);
/* The queue pair's path is not the link any more: it was reset, or got another address. */
void dev_link_leave(struct uroce_qp *qp);
void dev_links_close(struct uroce_device *dev);
/* True: there may be more. *add_to: packets that came. */
bool dev_links_rx(struct uroce_device *dev, uint64_t now, int *add_to);
/* Queue pairs of full links wait, those of links that are not go on. */
void dev_links_room(struct uroce_device *dev, uint64_t now);
bool dev_links_arm(struct uroce_device *dev);
uint64_t dev_links_deadline(const struct uroce_device *dev);
void dev_links_counters(const struct uroce_device *dev, struct uroce_counters *add_to);
/* New memory of the allocator's; memory that goes. */
void dev_links_offer(struct uroce_device *dev);
void dev_links_withdraw(struct uroce_device *dev, const struct dev_mem *m);
/* qp_engine_ops.let_go */
void dev_let_go(void *ctx, void *qp_user, const void *base, size_t len);

/* ---- device.c ---- */

/* Capture and impairment on top of p->port. */
int dev_stack_port(struct uroce_device *dev, struct dev_port *p, char *err, size_t err_size);

/* ---- cm_work.c ---- */

int dev_cm_open(struct uroce_device *dev);
void dev_cm_close(struct uroce_device *dev);
void dev_cm_mad(struct uroce_device *dev, const struct qp_path *from, const struct wire_pkt *pkt);
/* Looks at the messages that came; true: there were some. */
bool dev_cm_in(struct uroce_device *dev, uint64_t now);
void dev_cm_out(struct uroce_device *dev, uint64_t now);
uint64_t dev_cm_deadline(const struct uroce_device *dev);

/* ---- events.c ---- */

void dev_cq_event(void *ctx, void *cq_user);
void dev_async_event(void *ctx, enum uroce_event_type type, void *user);
int dev_events_init(struct uroce_device *dev);
void dev_events_done(struct uroce_device *dev);
/* An object that is made sends its events to the device's own queue. */
void dev_subject_init(struct uroce_device *dev, struct dev_subject *s);
/* One that goes: its events are forgotten. */
void dev_subject_done(struct dev_subject *s);

/* ---- pairs.c ---- */

/* uroce_qp_transport, with dev->lock held. */
int dev_transport(struct uroce_qp *qp, struct uroce_qp_transport *ret);
void dev_group_left(void *ctx, const union uroce_gid *group);
/* The queue pair of that number; NULL. dev->lock held. */
static inline struct uroce_qp *dev_qp(const struct uroce_device *dev, uint32_t qpn)
{
    struct uroce_qp *qp = dev->by_qpn[qpn & 0xffff];
    return qp && qp_num(qp->qp) == qpn ? qp : NULL;
}

/* ---- slots.c ---- */

enum qp_verdict dev_payload(void *ctx, void *qp_user, const struct qp_payload *p, uint64_t *ret_value,
                            bool *ret_has_value);
/* The queue pair with PATH slots that a packet is for; NULL. */
struct uroce_qp *dev_path_slot_qp(struct uroce_device *dev, uint32_t qpn);

/* Grows in each child of a fork. */
uint64_t dev_fork_generation(void);
/* -ECHILD in a child of the process that opened it. */
int dev_check_fork(const struct uroce_device *dev);

#endif
