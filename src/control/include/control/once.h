/*
 * Which try of a recorded request counts (exactly once, docs/protocol.md section 5). The store's reply records make a
 * retry of what has succeeded harmless. A failure leaves no record: this table keeps an earlier try, still on its way
 * over a connection that the client has given up, from happening after a later one has failed and the client was told.
 *
 * A client's slots go by its id, over all its sessions; the table lives while one of them is held. Of each slot it
 * keeps the newest request and try that was seen, and who is at it. Once a newer one has been seen, an older one is
 * out: for good if it was not yet in the store; if it was, the newer one waits for its end. In memory only: a server
 * that starts has no connections of before. 40 bytes for each slot that was used, in pages of 64.
 */
#ifndef CONTROL_ONCE_H
#define CONTROL_ONCE_H

#include <stdbool.h>
#include <stdint.h>

struct sess;
struct sess_table;
struct once_client;

/*
 * A slot number as the protocol has it: below 2^16 the client's own; else the upper half is the number of an origin
 * (sess_origin_add), a client of the session's client, and the lower half that one's slot.
 */
#define ONCE_ORIGIN_SHIFT 16

/* A request's part in it, at a fixed address from once_begin to once_end; zeroed: it has none. */
struct once {
    struct once_client *of;
    struct sess_table *t; /* with an origin: the part holds `of` itself, since the session may let go of the origin */
    uint32_t slot;
    uint64_t era; /* of the session */
};

/*
 * A request comes in. attempt: grows with the client's tries of it. 0: it is the one to go on, and an earlier try that
 * is not in the store yet is out. -EAGAIN: an earlier one is in the store: ask again with the same; tries before this
 * one are out from now on. -ESTALE: the slot has seen a later request, or there is no such origin. -ECONNABORTED: it
 * has seen a later try: nobody waits for this one; or a later session has fenced s. -ENOMEM. The caller holds s until
 * once_end.
 */
int once_begin(struct once *o, struct sess *s, uint32_t slot, uint64_t seq, uint64_t attempt);
/* It is about to enter the store, for which later tries wait from now on. False: a later one has come: it must not. */
bool once_commit(struct once *o);
/* The client that the request is of, as for struct pst_reqid; while it has a part. */
const uint8_t *once_of(const struct once *o);
/* It is over, in the store too. Any number of times; nothing for one without a part. */
void once_end(struct once *o);

/*
 * A client that has given up changes, not knowing what became of them, opens another session, s, and fences the earlier
 * ones: what they have under way is out, but for what is in the store, and once_quiet tells when there is nothing.
 */
void once_fence(struct sess *s);
bool once_quiet(const struct sess *s);

#endif
