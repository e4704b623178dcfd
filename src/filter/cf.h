/*
 * The chunk filter: one store on top of another that keeps whole chunks in another form (csum, compress, crypt). Ranges
 * of bytes become CHUNK_READs and CHUNK_REPLACEs of the store below, on condition of the chunk's version, so that any
 * number of instances may work over one store. The three filters are stages of one instance: pushed one after the
 * other, the second finds the first and joins it. docs/filters.md has the whole.
 */
#ifndef FILTER_CF_H
#define FILTER_CF_H

#include "filter/filter.h"

#include "codec.h"
#include "keys.h"
#include "outs.h"
#include "slots.h"

#define CF_MEMORY_DEFAULT (64 * MiB)
#define CF_WINDOW         4u     /* chunks of one operation at work at the same time */
#define CF_KEYS           1024u  /* data keys that are remembered: 60 KiB of locked memory with the others */
#define CF_SEEN           16384u /* chunks whose newest state is remembered */

/* Data keys by object; a later one takes the place of an earlier one with the same hash. */
struct cf_key {
    uint64_t cont, ino; /* ino 0: nothing */
    uint64_t history;   /* of the store below, as of the time when the header was there */
    uint8_t key[SEAL_KEY];
};

/* All keys that are kept: in memory that is not swapped out, where that is allowed, and not in core dumps. */
struct cf_secrets {
    struct keyring ring;
    struct cf_key keys[CF_KEYS];
};

/* The newest generation that was seen of a chunk. */
struct cf_seen_gen {
    uint64_t key, gen;
};

struct cf {
    struct filter f;
    struct codec codec;
    struct codec_stats stats;
    struct slots *slots;
    struct outs *outs; /* with codec.crypt */
    uint64_t memory;   /* of both */

    pthread_mutex_t keys_lock;
    struct cf_secrets *secrets; /* with codec.crypt */
    struct seal *keys_seal;     /* under keys_lock */

    pthread_mutex_t seen_lock;
    struct cf_seen_gen *seen; /* CF_SEEN; NULL without crypt */
    uint64_t seen_history;    /* of the store below: with another one older states may come back honestly */

    /* For what is not asynchronous: under sync_lock. */
    pthread_mutex_t sync_lock;
    struct pst_queue *sync_queue; /* of the store below; at first use */
    struct codec_ctx sync_ctx;

    atomic_uint_fast64_t again; /* replaced after another one did: read again */
    atomic_uint_fast64_t hits, misses;
};

/* NULL: another store. */
struct cf *cf_of(struct pst_store *st);

static inline uint32_t cf_chunk_size(const struct pst_cont *c)
{
    return (uint32_t)(c->info.props.chunk_size ? c->info.props.chunk_size : PST_CHUNK_DEFAULT);
}

/*
 * The object's data key. create: makes one if there is none. 0; -ENODATA: there is none; -EKEYREJECTED, -EIO (logged
 * and counted), or what the store says. c: this filter's container. Waits for the store below.
 */
int cf_key_get(struct cf *cf, struct pst_cont *c, uint64_t ino, bool create, uint8_t ret_key[SEAL_KEY]);
struct header_place cf_header_place(const struct pst_cont *c, uint64_t ino);
void cf_key_drop(struct cf *cf, struct pst_cont *c, uint64_t ino);
int cf_keys_init(struct cf *cf, const struct keyring *ring);
void cf_keys_done(struct cf *cf);

/*
 * Generations of a chunk: a random number from when it was a hole, in the upper half, and a count of its states since
 * then. The newest that was seen, if it is remembered, else 0: a read that begins now must not bring an older one of
 * the same random number.
 */
uint64_t cf_seen(struct cf *cf, struct pst_cont *c, uint64_t ino, uint64_t chunk);

/*
 * From what was read (op: a CHUNK_READ into `stored` that came back) to the chunk's plain bytes. Logs and counts
 * refusals. least: cf_seen from before the read. 0, or -errno.
 */
int cf_decode(struct cf *cf, struct codec_ctx *x, struct pst_cont *c, const struct pst_op *op, uint64_t least,
              uint8_t *stored, uint8_t *plain, uint32_t cap, uint32_t *ret_len, uint64_t *ret_gen);
/* With which key, and when: until cf_replaced, or cf_not_replaced, has wiped it. */
struct cf_used {
    uint64_t history;
    uint8_t key[SEAL_KEY];
};
/*
 * From plain bytes to a CHUNK_REPLACE: fills op's iov (one element, given), length, and meta data. before: the
 * generation that it replaces, 0: a hole. len 0: the chunk becomes one. sealed: gets encrypted bytes only; may be buf.
 */
int cf_encode(struct cf *cf, struct codec_ctx *x, struct pst_cont *c, struct pst_op *op, struct iovec *iov,
              uint64_t before, const uint8_t *plain, uint32_t len, uint8_t *buf, uint8_t *sealed, struct cf_used *ret);
/*
 * The replacement is there: remembers its generation. -ESTALE: the store below lost the object's header meanwhile, and
 * another one was made, so that nobody can read what was written: it has to be encoded once more.
 */
int cf_replaced(struct cf *cf, struct pst_cont *c, const struct pst_op *op, struct cf_used *u);
void cf_not_replaced(struct cf_used *u);

/* The tables' entries. */
void cf_queue_ops(struct pst_store_ops *ops);
void cf_name_ops(struct pst_store_ops *ops);
void cf_size_ops(struct pst_store_ops *ops);
void cf_size_done(struct cf *cf);

extern const struct filter_type filter_csum, filter_compress, filter_crypt;

#endif
