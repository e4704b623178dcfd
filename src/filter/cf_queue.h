/*
 * Data operations through the chunk filter. An operation from above has a frame; its work on each chunk is a part, of
 * which a frame has CF_WINDOW at the same time. A part takes the slot of its chunk (slots.h), and sends operations of
 * its own to the store below; what is not about one chunk, the frame sends itself. All of it runs in the owner of the
 * queue, in submit and reap.
 *
 *   frame: begin (by kind) -> its `step`, each time when something of it came to its end -> done
 *   part:  slot -> (peek: version and size | read: the chunk) -> change -> replace -> done
 *            ^                                                          |
 *            +---------- another one was first (-ESTALE) ---------------+
 */
#ifndef FILTER_CF_QUEUE_H
#define FILTER_CF_QUEUE_H

#include "cf.h"

#include <errno.h>

#define CF_AGAIN (-ERESTART) /* within a frame: the file's end moved, look again */

/* A version that no chunk has: to ask whether a request was done before, without doing it. */
#define CF_VERSION_NONE (PST_VERSION_ANY - 1)

struct cf_queue;
struct cf_frame;

/* Where an operation that is below belongs. */
struct cf_low {
    struct list link; /* of the queue's `unsent`, while the store below has no room for it */
    struct pst_op op;
    void (*back)(struct cf_low *low);
    struct cf_frame *frame;
    bool below; /* the store below has it */
};

enum cf_work {
    WORK_READ,
    WORK_WRITE,  /* [from, to) := the frame's bytes */
    WORK_APPEND, /* as WRITE; the object must not change meanwhile */
    WORK_ZERO,   /* [from, to) := nothing */
    WORK_GROW,   /* the file ends at `to` at least */
};

struct cf_part {
    struct cf_low low;
    struct slot_wait wait;
    struct cf_frame *frame;
    bool busy;
    enum cf_work work;
    uint64_t chunk;
    uint32_t from, to;
    uint64_t at;      /* offset of `from` in the frame's bytes */
    uint8_t *out;     /* of cf.outs, while its replacement is below */
    uint8_t *direct;  /* the frame's memory in place of the slot's: for a whole chunk that lies in one piece there */
    bool redo;        /* it was there already, under a key that was lost */
    bool last;        /* carries what is to be recorded and made durable */
    uint64_t change;  /* WORK_APPEND: of the object, as it was read */
    uint64_t least;   /* cf_seen */
    uint64_t version; /* of the chunk, that is to be replaced */
    struct cf_used used;
    struct iovec iov;
};

struct cf_frame {
    struct list link; /* of the queue: free, or done */
    struct cf_queue *q;
    struct pst_op *op;
    void (*step)(struct cf_frame *f); /* after each thing that came to its end; at the end it calls cf_done */
    struct cf_low low;
    struct cf_part parts[CF_WINDOW];
    uint32_t under_way; /* parts and low */
    int err;            /* the first one */
    bool cancelled;
    bool replayed; /* it was done before: what was recorded then is the answer */
    /* the range that is still to be done, and what was found */
    uint64_t at, end;
    uint64_t size; /* of the file: the least that was seen */
    uint64_t pos;
    int64_t result;
    int state;
};

struct cf_queue {
    struct pst_queue q;
    struct cf *cf;
    struct pst_queue *next;
    struct codec_ctx ctx;
    struct cf_frame *frames;
    uint32_t depth;
    struct list free, done; /* frames */
    struct list unsent;     /* struct cf_low */
    uint32_t in_flight, below;
    int wake, epoll;
    /* Slots that were granted by others; under `lock`. */
    pthread_mutex_t lock;
    struct list granted; /* struct slot_wait */
    bool signalled;
};

static inline uint32_t cf_size_of(const struct cf_frame *f)
{
    return cf_chunk_size(f->op->cont);
}

/* Sends low->op to the store below; low->back is called when it is back, not before this returns. */
void cf_send(struct cf_frame *f, struct cf_low *low, void (*back)(struct cf_low *low));
/* Prepares an operation of a frame on its object. */
void cf_low_op(struct cf_frame *f, struct cf_low *low, enum pst_op_kind kind, uint64_t offset);
/* The operation from above is over. */
void cf_done(struct cf_frame *f, int64_t result);
/* Something of the frame came to its end: its step follows. err: 0 or -errno. */
void cf_settle(struct cf_frame *f, int err);
/* The operation as it is to the store below, and back. */
void cf_pass_on(struct cf_frame *f);
/* Version and attributes by f->low, which `back` looks at. Counted as under way. */
void cf_peek(struct cf_frame *f, uint64_t chunk, void (*back)(struct cf_low *low));
/* The frame's last operation, if it changes nothing by itself: records the request; mtime; attributes. */
void cf_mark(struct cf_frame *f);
/*
 * Asks whether the request was done before: then the frame is done (with `result`), else its step follows. For those
 * that take several operations, of which only the last is recorded.
 */
void cf_probe(struct cf_frame *f, uint64_t chunk, int64_t result);
/* false: an error or a cancellation; the frame is done, or will be once nothing is under way. */
bool cf_goes_on(struct cf_frame *f);

/* A free part of the frame, to be filled in; NULL: all are at work. */
struct cf_part *cf_part_free(struct cf_frame *f);
void cf_part_start(struct cf_part *p);
void cf_part_granted(struct cf_part *p);

/* Where an append went that was done before, by the attributes recorded then: the file ended after its bytes. */
uint64_t cf_replayed_end(const struct cf_frame *f);

/* By kind. */
void cf_read_begin(struct cf_frame *f);
void cf_write_begin(struct cf_frame *f);
void cf_punch_begin(struct cf_frame *f);
void cf_allocate_begin(struct cf_frame *f);
void cf_seek_begin(struct cf_frame *f);

#endif
