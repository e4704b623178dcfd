/* The public API over client.h: what its parts know of one another. */
#ifndef CLIENT_API_H
#define CLIENT_API_H

#include "internal.h"

#include <penstock/penstock.h>

/* One connection, shared by the handles on it. */
struct pst_conn {
    _Atomic uint32_t refs;
    struct client *c;
    struct pst_cred cred;
};

struct pst_fs {
    struct pst_conn *k;
    uint64_t dir; /* where relative paths start */
};

struct pst_file {
    struct pst_conn *k; /* borrowed: its fs outlives it */
    struct cl_file *f;
    pthread_mutex_t lock;
    pthread_cond_t idle;
    uint32_t busy; /* asynchronous operations under way */
};

/* Flags of a write: that of who is not root takes set-id bits away, as write(2) does. */
static inline uint32_t api_opf(const struct pst_file *f)
{
    return f->k->cred.uid ? PST_OPF_KILL_SETID : 0;
}

/*
 * Keeps "CALL OBJECT: reason" as the thread's last error and returns err. object may be NULL. A result >= 0 is passed
 * through and nothing kept.
 */
int64_t api_result(const char *call, const char *object, int64_t r);
/* The same with a text of its own. */
int api_fail(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Whom the process acts as on this store; see pst_connect. */
void api_cred(struct pst_store *st, struct pst_cred *ret);
/* Checks, defaults and string options; store_opts point into buf, which is the caller's. */
#define API_STORE_OPTS 16u
int api_options(const struct pst_options *in, struct cl_options *ret, struct pst_option *store_opts, char **ret_buf);

/* ---- paths ---- */

struct api_where {
    uint64_t parent;             /* directory of the last name; 0: the path ends in "/", "." or ".." */
    char walk[PST_WALK_MAX + 1]; /* the way to it from `parent` (struct pst_ctx), mostly "" */
    char name[PST_NAME_MAX + 1]; /* "" then */
    bool exists;
    bool slash; /* the path ends with '/': it must be a directory */
    struct pst_attr attr; /* if it exists; sizes as the server has them */
};
/* An object that is not there is an error unless missing_ok, and then only the last name may be missing. */
int api_walk(struct pst_fs *fs, const char *path, bool follow, bool missing_ok, struct api_where *ret);
/*
 * For a name that is to be made or removed by a call which itself says whether it is there: it is not looked up, and
 * ret->exists is false, unless it has a '/' behind it or is "." or "..". Symbolic links before it are followed.
 */
int api_walk_name(struct pst_fs *fs, const char *path, bool missing_ok, struct api_where *ret);
/*
 * A path that names nothing but directories and a last name: then false, or true and ret has them as they are, so that
 * one request resolves the path and does what is to be done. If that fails with api_walk_needed, the path is to be
 * walked.
 */
bool api_split(struct pst_fs *fs, const char *path, struct api_where *ret);
bool api_walk_needed(int r);
/* An object that is there: as api_walk, in one request where that is possible. */
int api_look(struct pst_fs *fs, const char *path, bool follow, struct pst_attr *ret);
/* The number of an existing object, with attributes that count pending writes. */
int api_find(struct pst_fs *fs, const char *path, bool follow, struct pst_attr *ret);
void api_stat(const struct client *c, const struct pst_attr *a, struct stat *ret);
bool api_mine(const struct pst_conn *k);

/* mask and fields of times as utimensat(2) takes them; 0 or -EINVAL. */
int api_times(const struct timespec *times, uint32_t *ret_mask, struct pst_attr *ret);

#endif
