/*
 * The data model: a store holds pools (space), a pool holds containers (a POSIX namespace each), a container holds
 * objects, named by a 64-bit number that is never used twice. Object 1 is the root directory.
 */
#ifndef STORE_TYPES_H
#define STORE_TYPES_H

#include "base/list.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

/* Limits, with the reason. */
#define PST_NAME_MAX       255            /* bytes in one name: NAME_MAX of POSIX systems */
#define PST_WALK_MAX       4095           /* bytes in struct pst_ctx.walk */
#define PST_SYMLINK_MAX    4095           /* bytes in a target: PATH_MAX without the NUL */
#define PST_XATTR_NAME_MAX 255            /* XATTR_NAME_MAX of Linux */
#define PST_XATTR_SIZE_MAX 65536          /* XATTR_SIZE_MAX of Linux */
#define PST_LABEL_MAX      127            /* bytes in the label of a pool or container: [A-Za-z0-9._-] */
#define PST_LINK_MAX       65000          /* hard links of one object */
#define PST_CHUNK_MIN      (64 * KiB)     /* chunk sizes are powers of two between these */
#define PST_CHUNK_MAX      (16 * MiB)
#define PST_CHUNK_DEFAULT  (1 * MiB)
#define PST_BLOCK          4096u          /* unit of checksums and of space */
#define PST_META_MAX       64             /* opaque bytes kept with a chunk */
#define PST_IO_MAX         (8 * MiB)      /* one read or write operation */
#define PST_SMALL_MAX      (16 * KiB)     /* bytes of pst_store_write */
#define PST_FILE_MAX       (1ull << 52)   /* bytes in a file */
#define PST_GROUPS_MAX     64             /* supplementary groups of a caller */
#define PST_ROOT_INO       1u

/* On whose behalf. NULL where a struct pst_cred pointer is taken means: trusted, no permission check. */
struct pst_cred {
    uint32_t uid, gid;
    uint32_t ngroups; /* <= PST_GROUPS_MAX */
    uint32_t groups[PST_GROUPS_MAX];
};

/*
 * Exactly once: a client numbers its mutating requests within slots. One request per slot is outstanding, and its
 * sequence is the slot's last one plus one. The reply record of a slot is committed with the effect and replaced by
 * the slot's next request: a retry with the same sequence gets the recorded reply, an older one -ESTALE.
 * seq 0: the request is not recorded.
 */
#define PST_SLOTS_MAX 1024u
struct pst_reqid {
    uint8_t client[16];
    uint32_t slot; /* < PST_SLOTS_MAX */
    uint64_t seq;
};

/* What comes with each operation besides its arguments. */
struct pst_ctx {
    const struct pst_cred *cred; /* borrowed */
    struct pst_reqid id;
    /*
     * lookup, make, create, unlink, rmdir: names of directories with '/' between them, from the parent down to the one
     * that is meant; NULL: the parent itself. -ELOOP: one of them is a symbolic link, which only the caller can follow.
     */
    const char *walk; /* borrowed */
    uint64_t *walked; /* may be NULL: gets the directory that the walk led to, where that is known */
    uint64_t trace;   /* of operations of a queue: the request's id for the logs (base/trace.h); 0: none */
};

struct pst_attr {
    uint64_t ino;
    uint32_t mode; /* type and permission bits, as in stat(2) */
    uint32_t nlink;
    uint32_t uid, gid;
    uint64_t rdev;
    uint64_t size;
    uint64_t used;                                /* bytes of space taken, a multiple of PST_BLOCK */
    int64_t atime_ns, mtime_ns, ctime_ns, btime_ns; /* since the epoch */
    uint64_t change;                              /* grows with every change of data or attributes */
    uint32_t chunk_size;
};

/* Which fields of a struct pst_attr a setattr changes. */
#define PST_SET_MODE      0x01u
#define PST_SET_UID       0x02u
#define PST_SET_GID       0x04u
#define PST_SET_SIZE      0x08u
#define PST_SET_ATIME     0x10u
#define PST_SET_MTIME     0x20u
#define PST_SET_ATIME_NOW 0x40u
#define PST_SET_MTIME_NOW 0x80u
#define PST_SET_CTIME     0x100u /* trusted callers only (import): -EPERM for others */
#define PST_SET_NO_SETID  0x200u /* takes pst_perm_setid away, of who may write; where there is none nothing changes */
#define PST_SET_ALL       0x3ffu

/* What pst_store_make creates; the type is in mode (S_IFREG, S_IFDIR, S_IFLNK, S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK). */
struct pst_new {
    uint32_t mode;      /* the caller has applied its umask; S_ISGID of the parent is inherited as in POSIX */
    uint64_t rdev;      /* device nodes only; others than root get -EPERM */
    const char *target; /* symbolic links only; borrowed */
    bool exclusive;     /* false: an existing regular file is opened instead (only for S_IFREG) */
};

struct pst_dirent {
    uint64_t ino;
    uint64_t cookie; /* where the listing goes on after this entry; never 0, stable while the entry exists */
    uint32_t type;   /* S_IFMT bits */
    char name[PST_NAME_MAX + 1];
    struct pst_attr attr; /* if attributes were asked for; ino 0: the caller may not search the directory */
};

struct pst_statfs {
    uint64_t total_bytes, free_bytes;
    uint64_t objects; /* in use */
};

struct pst_pool_info {
    char label[PST_LABEL_MAX + 1];
    uint8_t uuid[16];
    uint64_t quota_bytes; /* space promised to the pool; 0: only the store's own limit */
    uint64_t used_bytes;
    uint64_t objects;
    uint32_t containers;
    uint32_t uid, gid, mode; /* owner; mode bits: r list, w create/destroy containers, x open containers */
};

struct pst_cont_props {
    uint64_t chunk_size;     /* 0: PST_CHUNK_DEFAULT */
    uint64_t quota_bytes;    /* 0: the pool's */
    uint32_t uid, gid, mode; /* of the root directory; mode 0: 0755 */
};

struct pst_cont_info {
    char label[PST_LABEL_MAX + 1];
    char pool[PST_LABEL_MAX + 1];
    uint8_t uuid[16];
    uint64_t id; /* never used twice in a store */
    struct pst_cont_props props;
    uint64_t used_bytes;
    uint64_t objects;
    int64_t created_ns;
    uint32_t mounts; /* that have it open now, by a query; 0: the store does not know */
};

/* Flags of pst_store_rename, as renameat2(2). */
#define PST_RENAME_NOREPLACE 1u
#define PST_RENAME_EXCHANGE  2u

/*
 * The header of an encrypted object (docs/filters.md): what `crypt` of any client may read, and make once where it may
 * write. Anybody else than root neither changes nor removes it.
 */
#define PST_XATTR_KEY "trusted.penstock.key"

/* Flags of pst_store_setxattr, as setxattr(2). */
#define PST_XATTR_CREATE  1u
#define PST_XATTR_REPLACE 2u

#endif
