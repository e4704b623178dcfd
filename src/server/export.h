/* Exported memory: what the table (export.c) and the hand-over (export_take.c) share. */
#ifndef SERVER_EXPORT_H
#define SERVER_EXPORT_H

#include "data.h"

#include "client/mem.h"
#include "fabric/export.h"

#define EXPORTS_MAX    1024u /* of all sessions */
#define EXPORTS_OF_ONE 128u  /* of a session */
#define HANDING_MAX    32u   /* hand-overs under way */
#define HANDING_NS     (5 * NSEC_PER_SEC)
#define RETRY_MS       10  /* registered memory that a queue has not let go of yet */
#define CLOSERS_MAX    16u

struct export {
    struct list link; /* exports.all */
    struct exports *x;
    uint64_t id, bytes;
    uint8_t session[SESS_ID_BYTES];
    char credential[SESS_NAME_MAX + 1];
    uint32_t tenant;
    uint8_t *base;
    struct mem_region *region; /* NULL: too many regions; stores copy */
    int fd;
    uint32_t uses; /* exports.lock, as is: */
    bool ended;
};

/* A hand-over under way; the thread's own. */
struct handing {
    struct list link;
    int fd;
    uint64_t deadline_ns;
    struct sess *sess; /* counted; NULL before the hello */
    struct export_talk talk;
};

struct exports {
    struct srv *srv;
    char path[EXPORT_PATH_MAX];
    int listen_fd, wake_fd;
    pthread_t thread;
    struct watch *watch; /* the thread's */
    bool running;
    atomic_bool stop;
    atomic_uint closers;
    struct list handing;
    uint32_t nhanding;

    pthread_mutex_t lock; /* all below, and what the exports have */
    struct list all;
    uint32_t n;
    uint64_t bytes, last_id;
};

/* A client has come. */
void export_accept(struct exports *x);
/* Takes what a connection under way has brought, and ends it when that was the last. */
void export_hand_on(struct exports *x, struct handing *h);
void export_handing_free(struct exports *x, struct handing *h);

#endif
