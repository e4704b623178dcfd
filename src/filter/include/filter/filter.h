/*
 * Filters: inline services on store I/O. A filter is a store on top of another one (`next`), of which it changes only
 * what it is for; everything else is passed on. Filters stack, and nothing above or below them knows that they are
 * there.
 *
 * Writing one: embed struct filter, call filter_init, replace entries of f->ops. An entry that a filter does not
 * replace works on the objects of this header: containers are (at least) a struct pst_cont with `next` set, queues a
 * struct filter_queue. Operations on their way down carry the lower container; on their way up they get back what the
 * submitter had put there.
 */
#ifndef FILTER_FILTER_H
#define FILTER_FILTER_H

#include "store/store.h"

struct filter {
    struct pst_store st;      /* st.next is owned: closed with the filter */
    struct pst_store_ops ops; /* this instance's table: forwards, where the filter has nothing of its own */
};

/* Fills in the table that passes everything on. name: static. */
void filter_init(struct filter *f, const char *name, struct pst_store *next);
/* Its entry that opens a container: for filters that do something besides. */
int filter_cont_open(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                     struct pst_cont **ret);

/* An operation that is on its way through a filter: what the submitter had in it. On one list at a time. */
struct filter_frame {
    struct list link;
    struct pst_op *op;
    struct pst_cont *cont;
    void *user;
    union { /* the filter's; 0 when it is taken */
        uint64_t due_ns;      /* of error and delay */
        uint64_t taken_bytes; /* of quota */
    };
};

struct filter_queue {
    struct pst_queue q;
    struct pst_queue *next;
    struct filter_frame *frames; /* as many as the queue is deep */
    struct list free;
};
/* For filters with queues of their own (fq is zeroed memory). done closes the lower queue. */
int filter_queue_init(struct filter_queue *fq, struct pst_store *st, uint32_t depth);
void filter_queue_done(struct filter_queue *fq);
/* Takes a frame for op, which the filter then owns; NULL: the queue is full (-EAGAIN). */
struct filter_frame *filter_frame_take(struct filter_queue *fq, struct pst_op *op);
/* Submits to the lower queue. On an error the operation is as it was, and still in its frame. */
int filter_frame_submit(struct filter_queue *fq, struct filter_frame *f);
/* The frame of an operation that came back from the lower queue; the operation is the submitter's form again. */
struct filter_frame *filter_frame_back(struct pst_op *op);
/* Gives the frame back and returns its operation, ready to be handed up. */
struct pst_op *filter_frame_drop(struct filter_queue *fq, struct filter_frame *f);

/*
 * For a queue's descriptor that is an epoll set. 0 or -errno; until something of it is readable, UINT64_MAX: however
 * long.
 */
int filter_watch(int epoll, int fd);
void filter_sleep(int epoll, uint64_t ns);

/* An option's value. 0, or -EINVAL with a line in err. */
int filter_number(const struct pst_option *o, uint64_t min, uint64_t max, uint64_t *ret, char *err, size_t err_size);

/* ---- what keeps tenants apart ---- */

/*
 * The part of a store that one tenant may know of: containers, POOL/CONTAINER each, or POOL and a star. What is not
 * among them does not exist for who stands on it; pools cannot be made. shared: its close leaves `next` open. 0,
 * -EINVAL, -ENOMEM.
 */
int filter_view(struct pst_store *next, const char *const *containers, size_t n, bool shared, struct pst_store **ret);
int filter_view_check(const char *container); /* 0, -EINVAL */
/* As the filter "quota"; 0: no limit. On an error `next` stays the caller's. */
int filter_quota(struct pst_store *next, uint64_t bytes, uint64_t objects, struct pst_store **ret);
/*
 * Of a store that filter_quota has made: from now on. Who is over it keeps what he has, and gets no more. Any thread.
 */
void filter_quota_set(struct pst_store *st, uint64_t bytes, uint64_t objects);

/* ---- what is read again and again ---- */

#define FILTER_CACHE_BLOCK (64 * KiB)
#define FILTER_CACHE_MIN   (16 * MiB)
#define FILTER_CACHE_MAX   (1024 * GiB)
/*
 * Keeps what is read in `bytes` of memory, close-to-open consistent, and reads up to `ahead` bytes ahead of who reads
 * in order (0: not); see cache.h. On top of all other filters: what is in memory needs neither the store below nor
 * them. 0, -EINVAL, -ENOMEM: `next` stays the caller's.
 */
int filter_cache(struct pst_store *next, uint64_t bytes, uint64_t ahead, struct pst_store **ret);
/* Its memory, whole pages, into which it has the store below read: until it is closed. */
void filter_cache_memory(struct pst_store *st, void **ret, size_t *ret_len);

/*
 * Memory from which a filter of these has the store below read bytes, all of them encrypted; whole pages, until it is
 * closed. The store below must not be able to write there. False: there is none.
 */
bool filter_sealed_memory(struct pst_store *st, void **ret, size_t *ret_len);

/* ---- the filters there are ---- */

struct filter_type {
    const char *name, *help;
    /* On an error `next` stays the caller's, and err has a line for people. */
    int (*open)(struct pst_store *next, const struct pst_option *opts, size_t nopts, struct pst_store **ret, char *err,
                size_t err_size);
};
/* NULL past the last one. */
const struct filter_type *filter_type(size_t i);
/*
 * Puts a filter on top: "NAME" or "NAME:key=value,key=value". 0, -EINVAL (unknown name or key, a bad value: err says
 * which), -ENOMEM. On an error `next` stays the caller's.
 */
int filter_push(const char *spec, struct pst_store *next, struct pst_store **ret, char *err, size_t err_size);

/*
 * A new tenant key, which is `crypt`'s current one, the earlier one among its old ones: wraps the data keys of all
 * objects of a container, which was opened by the topmost filter, by the current one; no data is rewritten. It may be
 * repeated, and files may be in use. 0, -EINVAL: the filter is not there; else the first error: the others were done.
 */
struct filter_rewrapped {
    uint64_t changed, current, failed;
};
int filter_rewrap(struct pst_cont *c, struct filter_rewrapped *ret);

#endif
