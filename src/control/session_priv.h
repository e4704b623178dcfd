/* What the files of the session table share. */
#ifndef CONTROL_SESSION_PRIV_H
#define CONTROL_SESSION_PRIV_H

#include "base/list.h"
#include "base/util.h"
#include "control/once.h"
#include "control/session.h"
#include "idmap.h"
#include "store/types.h"

#include <stdatomic.h>
#include <string.h>

struct sess_table {
    struct sess_limits lim;
    struct sess_hooks hooks;
    _Atomic uint64_t refused[REFUSALS], generation;
    _Atomic uint64_t refused_of[SESS_TENANTS_MAX][REFUSALS];
    _Atomic uint32_t held_of[SESS_TENANTS_MAX]; /* struct sess and sess_cont that there are */

    pthread_mutex_t mu;   /* guards all below, and what sessions and containers hold */
    struct list sessions; /* the living, oldest first */
    struct idmap by_id;   /* first 8 bytes of the id: session */
    struct idmap keys;    /* key id: sess_cont */
    struct idmap tickets; /* first 8 bytes: ticket */
    struct list ticket_order;
    struct list clients; /* struct once_client, of sessions that are held */
    uint32_t nsessions, nsessions_of[SESS_TENANTS_MAX];
    uint64_t first_key_id, next_key_id;
    uint64_t last_third;
};

struct sess {
    struct sess_table *t;
    struct list link;
    atomic_uint refs; /* one is the table's, while it lives */
    atomic_bool alive;
    uint8_t id[SESS_ID_BYTES], data_key[SESS_KEY_BYTES];
    struct sess_ident who;
    struct once_client *once; /* of who.client */
    uint64_t era;             /* once.c */
    /* Clients of this client, by number - 1; numbers are not used twice. Needs mu. */
    struct sess_origin **origins;
    uint32_t norigins, origins_alive;
    uint64_t expires_ns, next_handle;
    struct idmap conts, objects; /* by handle */
    uint32_t ntickets, nthirds;
    /* What each slot's last request opened or closed, for its retry. Allocated at first use. */
#define MADE_CLOSED UINT32_MAX /* rights: the request closed the handle */
    struct made *made;
};

struct made {
    uint64_t seq, handle;
    uint32_t rights;
};

/* A client of an agent, for whose requests the agent speaks: control/session.h. */
struct sess_origin {
    struct once_client *once; /* counted */
    uint64_t era;
    struct made *made; /* as a session's, of its first SESS_ORIGIN_MADE slots: those of control requests */
};
#define SESS_ORIGIN_MADE 128u

struct sess_cont {
    struct sess_table *t;
    atomic_uint refs; /* one is the session's handle, one each object's */
    struct pst_cont *c;
    uint32_t tenant;
    uint64_t id, handle;
    struct sess *of; /* only looked at under the lock, while in its handles */
    struct list objects;
    uint64_t key_id; /* 0: none now */
    uint8_t key[SESS_KEY_BYTES];
};

struct object {
    struct list link;
    struct sess_cont *sc; /* counted */
    uint64_t ino, handle;
    uint32_t rights;
    uint64_t key_id; /* that its capability was made with; 0: it has none */
};

struct ticket {
    struct list link;
    struct sess *of; /* lives: tickets go with it */
    uint8_t bytes[SESS_TICKET_BYTES];
    uint32_t shard;
    struct sess_third third;
    uint64_t expires_ns;
};

static inline uint64_t sess_id_key(const uint8_t *id)
{
    uint64_t k;
    memcpy(&k, id, sizeof k);
    return k ? k : 1;
}

/* Counts and passes the error on. */
static inline int sess_refused_as(struct sess_table *t, enum refusal r, int err)
{
    sess_refuse(t, r);
    return err;
}

/* once.c. Counted; NULL: no memory. Without mu. */
struct once_client *once_client_get(struct sess_table *t, const uint8_t client[16]);
void once_client_put(struct sess_table *t, struct once_client *c);
void once_join(struct sess *s); /* a new session is in its client's newest era */
uint64_t once_client_fence(struct once_client *c);
bool once_client_quiet(struct once_client *c);
bool once_client_is_fenced(struct once_client *c, uint64_t era); /* has it come again since? */

/* session_handles.c. Without mu. */
void sess_objects_drop(struct sess_table *t, struct list *objects);

/* These need mu. */
struct sess_origin *sess_origin_of(struct sess *s, uint32_t number); /* NULL: none */
bool sess_key_end(struct sess_table *t, struct sess_cont *sc);
void sess_ticket_end(struct sess_table *t, struct ticket *k);

#endif
