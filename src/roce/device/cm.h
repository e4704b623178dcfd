/* Connections of a device (uroce/cm.h): ids and channels around the communication manager's engine. */
#ifndef DEVICE_CM_H
#define DEVICE_CM_H

#include "cm/cm.h"
#include "dev.h"

#define CM_DRIVES 16

/*
 * LOCKS. ids and the engine: dev->lock. A channel's list: its own lock, a leaf, which is taken with dev->lock held when
 * an event is put in, and alone when one is taken out.
 */
struct uroce_cm_channel {
    pthread_mutex_t lock;
    int fd;             /* eventfd, semaphore: one per event in the list */
    struct list events; /* struct cm_item */
    atomic_uint users;
    uint64_t fork_generation;
    /* Devices without a helper thread: to be driven by who waits here, as long as ids of theirs are there. */
    struct {
        struct uroce_device *dev;
        unsigned int ids;
    } drives[CM_DRIVES];
};

struct cm_item {
    struct list link;
    struct uroce_cm_event e;
};

struct uroce_cm_id {
    struct uroce_device *dev;
    struct cm_id *cm;
    struct uroce_cm_channel *channel;
    void *context;
    enum uroce_qp_type qp_type;
    uint8_t tos, ack_timeout;
    struct holder_bind held; /* at the holder: n > 0 */
};

/* An id uses the channel, or not any more. */
void cm_channel_use(struct uroce_cm_channel *ch, struct uroce_device *dev, bool on);
/* Puts an event into the id's channel. -ENOMEM. */
int cm_channel_put(struct uroce_cm_channel *ch, const struct uroce_cm_event *e);
/* Takes out the id's events; requests to it, whose ids nobody has seen, go to `orphans`. */
void cm_channel_forget(struct uroce_cm_channel *ch, const struct uroce_cm_id *id, struct list *orphans);
/* Moves the id's events. */
void cm_channel_move(struct uroce_cm_channel *from, struct uroce_cm_channel *to, const struct uroce_cm_id *id);

/* cm_late.c; dev->lock. True: the event is told later, when the completions before it were taken. */
bool cm_late_put(struct uroce_device *dev, const struct uroce_cm_event *e, uint32_t qpn, uint64_t now);
void cm_late_tell(struct uroce_device *dev, uint64_t now);
void cm_late_forget(struct uroce_device *dev, const struct uroce_cm_id *id); /* NULL: all */

/* cm_work.c */
void cm_path_of(const struct uroce_device *dev, int port, const union uroce_gid *remote, uint8_t tos,
                struct cm_path *ret);
uint8_t cm_mtu_of(const struct uroce_device *dev, int port);

#endif
