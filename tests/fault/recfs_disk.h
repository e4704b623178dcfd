/*
 * What the two halves of the recording file system share: recfs.c records, recfs_crash.c builds the disk that is left.
 */
#ifndef TESTS_RECFS_DISK_H
#define TESTS_RECFS_DISK_H

#include "recfs.h"

#include "base/list.h"
#include "base/util.h"

#include <pthread.h>

#define NAME_LEN 64

enum what { T_CREATE, T_MKDIR, T_UNLINK, T_RMDIR, T_RENAME, T_LINK, T_WRITE, T_SIZE, T_SYNC, T_SYNC_DIR, T_ACK };

struct entry {
    enum what what;
    uint32_t ino;    /* the object */
    uint32_t parent; /* of names */
    uint32_t new_parent;
    char name[NAME_LEN], new_name[NAME_LEN];
    uint64_t offset, len; /* write; size in offset */
    uint8_t *data;        /* owned */
    int durable;          /* a write with O_DSYNC */
};

struct node {
    bool used, dir;
    uint32_t mode, nlink;
    uint8_t *data;
    uint64_t size, cap;
    /* Of a disk that is built: for each RECFS_BLOCK up to cap, if data has it. Others are as in `under`, or zeroes. */
    uint8_t *touched;
    const struct node *under;
};

struct dent {
    bool used;
    uint32_t parent, ino;
    char name[NAME_LEN];
};

struct recfs {
    struct fuse_session *se; /* NULL: a disk that recfs_crash builds */
    pthread_t thread;
    pthread_mutex_t lock;
    struct node *nodes; /* by inode number; 1 is the root */
    size_t nnodes;
    struct dent *dents;
    size_t ndents;
    struct entry *trace;
    size_t len, cap;
    uint64_t bytes;
    struct recfs *base; /* what is durable at base_at, of each object up to its base_sync; NULL: not made yet */
    size_t base_at, *base_sync;
};

#define ACK_INO     2u
#define RECFS_BLOCK 4096u

/* Objects and names (recfs_crash.c); no memory ends the process. */
uint32_t node_new(struct recfs *fs, bool dir, uint32_t mode);
void node_resize(struct node *n, uint64_t size);
struct dent *dent_find(struct recfs *fs, uint32_t parent, const char *name);
void dent_add(struct recfs *fs, uint32_t parent, const char *name, uint32_t ino);

#endif
