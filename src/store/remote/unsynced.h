/*
 * Changes that a server has answered and that no sync has covered yet: of objects (by number), of names (by directory
 * and name). Each is kept with the history (pst_store_history) under which it was answered. A sync that succeeds under
 * another history does not make it durable: the server has lost it, and knows nothing of it. Pure, no lock; bounded.
 *
 * What is closed stays here: who opens a file again and syncs it relies on what was written before, as POSIX lets him.
 */
#ifndef REMOTE_UNSYNCED_H
#define REMOTE_UNSYNCED_H

#include "base/list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UN_BUCKETS 256u
#define UN_MAX     8192u /* changes that are remembered one by one */

#define UN_NAME  1u /* of a name, or of a directory's names: every sync covers those */
#define UN_DATA  2u /* of an object: a sync of the object does, or of all */
#define UN_MOVED 4u /* with UN_NAME: a rename; which object it moved is not known */

struct unsynced {
    struct list bucket[UN_BUCKETS];
    struct list names, data; /* by the last change, oldest first; data: those with UN_DATA */
    struct list lost;        /* under a history that is over */
    uint32_t n;
    uint64_t seq;                    /* counts changes */
    uint64_t forgotten, forgot_at;   /* history and number of what was dropped for lack of room; 0: nothing */
};

void un_init(struct unsynced *u);
void un_done(struct unsynced *u);
/* Keys: an object's number, or this of a name. */
uint64_t un_name(uint64_t dir, const void *name, size_t len);
void un_note(struct unsynced *u, uint64_t key, uint64_t history, uint32_t flags);
/* Before a sync is sent: what it is to cover. */
uint64_t un_mark(const struct unsynced *u);
/* A sync of the object has succeeded. True, once: changes of it are lost. */
bool un_synced(struct unsynced *u, uint64_t key, uint64_t mark, uint64_t history);
/* A sync of all has succeeded. True: something is lost that no such sync has told. Each object tells by itself too. */
bool un_synced_all(struct unsynced *u, uint64_t mark, uint64_t history);
/* There is a new history. Not 0: a rename under this one is lost, which may be of any object that is open. */
uint64_t un_new_history(struct unsynced *u, uint64_t history);
/* A change of the object under that history is lost: its next sync tells. */
void un_lose(struct unsynced *u, uint64_t ino, uint64_t history);
/* An object was found or made under a name: what is lost of the name, its next sync tells. */
void un_found(struct unsynced *u, uint64_t name, uint64_t ino);
/* Is there anything for un_found? */
static inline bool un_has_lost(const struct unsynced *u)
{
    return !list_empty(&u->lost);
}

#endif
