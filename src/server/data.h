/*
 * The data plane's inside. A shard is one thread with its fabric domain, its store queue and its buffers; a connection
 * and its requests belong to one shard, and only its thread touches them. Others see: the mailbox flags, and under
 * shard.lock the list of connections with their counters.
 */
#ifndef SERVER_DATA_H
#define SERVER_DATA_H

#include "base/trace.h"
#include "client/mem.h"
#include "control/once.h"
#include "control/service.h"
#include "fabric/dp.h"
#include "fabric/fabric.h"
#include "server/server.h"
#include "tenant.h"
#include "turn.h"

#include <semaphore.h>
#include <stdatomic.h>

#define QUEUE_DEPTH     256u       /* store operations in flight per shard; more wait in order */
#define SMALL_BYTES     (16 * KiB) /* requests up to this use the small buffers */
#define SMALL_COUNT     512u       /* per shard */
#define REQ_CACHE_MAX   1024u      /* request structs kept for reuse, per shard */
#define LATENCY_BUCKETS 24u        /* powers of two of microseconds: 1 us .. 8 s, then everything */

enum latency_class { LAT_READ, LAT_WRITE, LAT_SYNC, LAT_OTHER, LAT_CLASSES };

/* Written by the shard's thread only; read by others without a lock: single relaxed words. */
struct shard_stats {
    uint64_t requests[DP_OPCODES], errors, waits; /* waits: for a buffer */
    uint64_t bytes_in, bytes_out, bytes_exported, bytes_in_place, bytes_third;
    uint64_t latency[LAT_CLASSES][LATENCY_BUCKETS], latency_ns[LAT_CLASSES];
};

struct shard {
    struct srv *srv;
    struct tenant *tenant;
    unsigned id; /* over all tenants */
    pthread_t thread;
    bool running;
    sem_t started; /* after the thread has opened all, or failed */
    int start_err;
    char start_text[400];

    struct fab_shard *fab;
    struct pst_queue *queue;
    uint32_t spread; /* pst_queue_spread of it; 0 until there is one */
    struct fab_pool *large, *small;
    uint32_t large_total;
    struct mem_region *regions[2]; /* agent: large and small, so that its backend reaches them without a copy */
    struct ctl_endpoint endpoint;
    int wake; /* eventfd: a mailbox flag was set */
    atomic_bool stop, drain, check_sessions;
    atomic_uint unanswered; /* requests of all connections */

    pthread_mutex_t lock; /* list of connections, for those who look */
    struct list conns;
    struct list thirds; /* struct conn.third_link: connections of third parties; this thread's */
    struct list waiting; /* requests that wait for buffers, in order */
    struct list held;    /* requests that wait for the end of an earlier try of theirs */
    struct list asking;  /* requests that wait for their turn: any order */
    struct turn_box turns;
    struct list backlog; /* store operations that wait for room in the queue, in order */
    struct list free_reqs;
    uint32_t nfree_reqs;
    struct shard_stats stats;
};

/* How requests of a client reach it by the store behind an agent: what its number stands for. */
struct third_way {
    uint64_t number;           /* 0: none */
    uint64_t far_number, epoch; /* struct pst_far */
};

/* Whom a capability was granted to, where the store behind judges users itself. The shard's thread's. */
struct bearer {
    uint32_t refs;
    struct pst_cred cred;
};

/* A capability under the number that the client gave it. */
struct bound {
    struct sess_cont *cont; /* NULL: nothing bound */
    struct bearer *bearer;  /* NULL: the capability does not say */
    struct cap_grant grant;
    uint64_t generation; /* the last at which the key was known to be alive */
};

struct conn {
    struct list link; /* shard.conns */
    struct shard *shard;
    struct fab_conn *fab; /* NULL: closed; the struct lives until its requests are done */
    struct sess *sess;
    struct pst_mac *mac;
    uint64_t number; /* of those that were accepted */
    uint64_t msgno;  /* the last one */
    uint32_t unanswered, reqs;
    struct list unsent; /* answers that wait for a credit */
    struct bound *caps;
    uint32_t ncaps;
    char peer[80];
    uint64_t requests, bytes_in, bytes_out, bytes_exported, bytes_third; /* relaxed, for status */
    /* A third party's (third.c): no requests come by it. */
    struct sess_third third; /* number 0: an ordinary connection */
    struct list third_link;
    struct list owed; /* struct req.notice: notices that wait for a credit */
    uint32_t nowed;
    uint64_t noticed; /* messages sent on it */
    struct third_way way; /* an agent's: the one that was used last */
};

/* A buffer's worth of a request. */
struct part {
    struct req *req;
    struct fab_buf *buf;
    uint32_t offset, len; /* within the request */
    int64_t got;          /* READ: bytes */
    struct iovec iov;
    struct pst_op op; /* READ: one for each part; others use the first part's */
    struct fab_rma rma[DP_SEGS_MAX];
};

/*
 * A request lives while `refs` > 0: one for its answer, and one for each store operation and each RMA under way. Its
 * buffers go back with it.
 */
struct req {
    struct list link; /* shard.waiting, .held, .asking or .free_reqs, or conn.unsent */
    struct conn *conn;
    struct dp_request dp; /* payload is not valid after the message's callback */
    struct sess_cont *cont;
    struct bearer *bearer; /* counted; may be NULL */
    int checked; /* what check_request said */
    struct once once;
    struct turn turn;
    uint64_t start_ns;
    uint32_t refs, nparts, nbufs, ops_left, rmas_left;
    bool failed;
    struct dp_reply reply;
    void *stash;        /* inline payload, while the request waited */
    struct iovec *iov;  /* several parts in one operation */
    struct part *parts; /* &part, or allocated */
    /* EXPORTED: the memory of each segment, used until the request is gone. in_place: the store works on it. */
    struct export *export[DP_SEGS_MAX];
    struct iovec mapped[DP_SEGS_MAX];
    uint32_t nexports;
    bool in_place;
    /* THIRD: the connection that reaches the memory (counted, as its requests), or where the store has that. */
    struct conn *third;
    bool moved; /* an RMA was begun */
    bool is_far;
    struct pst_far far;
    struct list notice; /* conn.owed of `third` */
    struct part part;
};

static inline bool req_is_inline(const struct req *r)
{
    return (r->dp.flags & DP_F_INLINE) != 0;
}

static inline bool req_is_exported(const struct req *r)
{
    return (r->dp.flags & DP_F_EXPORTED) != 0;
}

static inline bool req_is_third(const struct req *r)
{
    return (r->dp.flags & DP_F_THIRD) != 0;
}

/* Does the request bring bytes to the store? */
static inline bool req_is_write(const struct req *r)
{
    return r->dp.opcode == DP_WRITE || r->dp.opcode == DP_CHUNK_REPLACE;
}

static inline bool req_has_data(const struct req *r)
{
    return req_is_write(r) || r->dp.opcode == DP_READ || r->dp.opcode == DP_CHUNK_READ;
}

/* conn.c */
extern const struct fab_callbacks conn_callbacks;
void conn_put_req(struct conn *c); /* a request of it is gone */
void conn_drop_dead_sessions(struct shard *s);
void conn_end(struct conn *c);
/* A message that a correct client does not send. Counted; the connection ends. */
void conn_offence(struct conn *c, enum refusal why);

/* answer.c */
struct req *req_new(struct conn *c, const struct dp_request *dp);
void req_unref(struct req *r);
void req_release_buffers(struct req *r);
/* Sends (or keeps) r->reply; ends the request's own reference, once. */
void req_finish(struct req *r);
void req_answer(struct req *r, int status);
void req_answer_op(struct req *r, const struct pst_op *op);
/* The answer is out, or there is nobody to send it to. */
void req_answered(struct req *r);
void req_flush_unsent(struct conn *c);
void req_free_cache(struct shard *s);

/* request.c */
void req_run(struct req *r);
void req_drop_waiting(struct conn *c);
void req_start_waiting(struct shard *s);
void req_retry_held(struct shard *s);
/* Goes on with those whose turn it is: how many. */
int req_take_turns(struct shard *s);
void req_op_done(struct pst_op *op);
void req_submit_backlog(struct shard *s);
/* All that the request needs of its client and of its own tenant is there. */
void req_ask_turn(struct req *r);

/* move.c */
/* Finds the exported memory of all segments. False: the client named what it does not have, and its connection ends. */
bool req_use_exports(struct req *r);
/* Moves `len` bytes of a part from or to the client's segments. */
void req_move(struct part *p, uint32_t len);
/* All of a write's bytes; then its turn is asked for. */
void req_fetch(struct req *r);

/* third.c: memory of third parties (docs/protocol.md, section 11) */
struct thirds;
struct thirds *thirds_new(void);
void thirds_free(struct thirds *x); /* accepts NULL */
/* An agent's client wants to be reached by the server behind it: ctl_hooks.third_party. */
int thirds_make_way(struct srv *srv, uint32_t tenant, const uint8_t session[SESS_ID_BYTES], uint32_t shard,
                    struct pst_third *ret);
void thirds_end_session(struct thirds *x, const uint8_t id[SESS_ID_BYTES]);
/* A connection with a third party's ticket: is there room for it? Counted if not. */
bool third_admit(struct shard *s, const struct sess *sess, const struct sess_third *third);
void third_connected(struct conn *c);
void third_closed(struct conn *c);
void third_flush(struct conn *c); /* sends what it is owed */
/* Finds what the request's first segment names. False: nothing of its session's. */
bool third_use(struct req *r);
/* The last RMA of the request has been begun: tells the third party. */
void third_notice(struct req *r);
/* May no RMA of the failed request be under way, or come? */
bool third_settled(const struct req *r);

/* check.c: may this request happen? 0 or -errno, refusals counted. Then it has cont and bearer. */
int check_request(struct req *r);
void check_put_bearer(struct bearer *b); /* accepts NULL */
int check_bind(struct conn *c, const struct dp_request *dp);
int check_unbind(struct conn *c, const struct dp_request *dp);
void check_unbind_all(struct conn *c);

/* shard.c */
int shard_start(struct tenant *t, unsigned id, struct shard *s, char *err, size_t err_size);
void shard_poke(struct shard *s);
/* Answers what is under way until the deadline (now_ns clock), takes nothing new. */
void shard_drain(struct shard *s, uint64_t deadline_ns);
/* Its thread ends, with all its connections; others still look at it. */
void shard_end(struct shard *s);
void shard_stop(struct shard *s);

/* export.c: memory that clients handed over */
struct exports;
struct export;
int exports_start(struct srv *srv, struct exports **ret, char *err, size_t err_size);
void exports_stop(struct exports *x); /* after the shards, before the control server is freed; accepts NULL */
/* Nothing of the session's is found any more. Any thread; accepts NULL, as the next two. */
void exports_end_session(struct exports *x, const uint8_t id[SESS_ID_BYTES]);
void exports_count(struct exports *x, uint32_t *ret_n, uint64_t *ret_bytes);
/* Where a segment's bytes are, for this session: 0 and a use (export_put); -ENOENT; -ERANGE: not all within it. */
int export_use(struct exports *x, const struct sess *s, const struct dp_seg *seg, struct export **ret, void **ret_at);
void export_put(struct export *e);

/* stats.c */
void stats_count(struct req *r);
void stats_emit(struct srv *srv, uint32_t tenant, pst_stat_fn fn, void *user);

/* metrics.c */
struct metrics;
int metrics_start(struct srv *srv, const char *addr, struct metrics **ret, char *err, size_t err_size);
int metrics_port(const struct metrics *m);
void metrics_stop(struct metrics *m);

struct srv {
    const struct srv_config *cfg;
    struct pst_store *store; /* what the tenants share: the engine, and the filters for all of them */
    /*
     * By number; the first one is the server's own. Who goes over them holds tenants_lock, or what every change of them
     * holds besides: limits_lock. Who has a session of one, or its place in the control server, has the tenant too.
     */
    struct tenant *_Atomic tenants[SRV_TENANTS_MAX];
    pthread_rwlock_t tenants_lock;
    atomic_uint ntenants;
    pthread_mutex_t change_lock; /* made.h; taken before limits_lock, and that before tenants_lock */
    pthread_mutex_t limits_lock; /* struct limits and `gone` of the tenants, creds, asleep*, tenants_file */
    struct list creds;           /* struct made_cred */
    unsigned ncreds;             /* of these */
    struct list asleep, asleep_limits; /* struct made_cred, and limits, of tenants that are not there (asleep.c) */
    struct turns *turns; /* NULL: no limits, and a single tenant; needs change_lock */
    struct ctl_server *ctl;
    struct audit *audit; /* NULL: none */
    atomic_bool waits_ended; /* the store's: what fails from now on is not answered */
    atomic_bool ready; /* set once ctl is there: shards listen before, and let nobody in */
    struct metrics *metrics;
    struct exports *_Atomic exports; /* NULL: no memory is taken */
    struct thirds *thirds;           /* an agent's, if third parties are let in */
    atomic_uint nconns; /* of all tenants */
    _Atomic uint64_t nconns_made;
    uint64_t start_ns;
};

/* stop.c: everything of a daemon that has started, or has begun to. */
void srv_close_all(struct srv *srv);
/*
 * The store at the bottom, by these options; an agent waits for the server behind it, if it is to, and not beyond the
 * signal that ends the process (-EINTR).
 */
int srv_open_lowest(const struct srv_config *cfg, const struct pst_option *opts, unsigned nopts, bool wait,
                    struct pst_store **ret, char *err, size_t err_size);
/* tenant.c. One that is none any more is not found. Needs limits_lock, or the start. */
struct tenant *srv_tenant_find(struct srv *srv, const char *name);
/* With the next free number, not in the table yet, without anything of its own; m (made.h) becomes its, in any case. */
int srv_tenant_new(struct srv *srv, struct made_tenant *m, struct tenant **ret, char *err, size_t err_size);
/* Of the configuration, with this number; in the table. */
int srv_tenant_configured(struct srv *srv, unsigned number);
void srv_tenant_enter(struct tenant *t); /* needs limits_lock, or the start */
/* Nobody uses it any more: it goes out of the table, with all that it has. Takes limits_lock. */
void srv_tenant_free(struct tenant *t);
/* Numbers for its shards that no other has: the first of them. -ENOSPC. */
int srv_free_shards(struct srv *srv, unsigned n, unsigned *ret_first);
/* Descriptors for so many shards? -EMFILE, and a line for people. */
int srv_files_suffice(uint64_t shards, char *err, size_t err_size);
int srv_make_cred(const struct srv_credential *in, struct ctl_cred *out, char *err, size_t err_size);

/* The hash of a file's first line, which nobody else may read: 0, or -errno and a line for people. */
int srv_read_token(const char *path, uint8_t ret_hash[32], char *err, size_t err_size);

static inline struct tenant *srv_tenant(struct srv *srv, uint32_t number)
{
    return atomic_load(&srv->tenants[number]);
}
/* The first one from this number on, or NULL. */
static inline struct tenant *srv_tenant_from(struct srv *srv, unsigned number)
{
    struct tenant *t = NULL;

    while (number < SRV_TENANTS_MAX && !(t = srv_tenant(srv, number)))
        number++;
    return t;
}
#define srv_each_tenant(srv, t) for (struct tenant *t = srv_tenant_from(srv, 0); t; t = srv_tenant_from(srv, t->id + 1))
#define tenant_each_shard(t, s) for (struct shard *s = (t)->shards; s < (t)->shards + (t)->nshards; s++)

static inline void stat_add(uint64_t *counter, uint64_t n)
{
    __atomic_store_n(counter, *counter + n, __ATOMIC_RELAXED);
}

static inline uint64_t stat_get(const uint64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

#endif
