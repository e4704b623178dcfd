/* The embedded engine: a store in a folder of this machine. Options of `open` are in docs/engine.md. */
#ifndef LOCAL_LOCAL_STORE_H
#define LOCAL_LOCAL_STORE_H

#include "store/store.h"

/* local:/dir */
extern const struct pst_backend pst_local_backend;

struct pst_check_opts {
    bool rebuild_index; /* first make the index anew, from its copy and the log */
    bool data;          /* read every block and compare checksums */
    bool repair;        /* put right what can be without a loss: counts, usage, lost halves of entries, /lost+found */
    /* Called with one line per finding; may be NULL. */
    void (*report)(void *user, const char *line);
    void *user;
};
/*
 * Offline check of the store in dir: index entries, namespace, space, and the data if asked for. Replays the log first,
 * as any open does. Returns the number of problems (repaired ones too: a second check says what is left), or -errno
 * with a line for people in err. Works in a child process, unless this process had a store open before.
 */
int64_t pst_local_check(const char *dir, const struct pst_check_opts *opts, char *err, size_t err_size);
/* Brings an older layout to this version's. 1: done, 0: nothing to do, -errno with a line in err. */
int pst_local_upgrade(const char *dir, char *err, size_t err_size);

#endif
