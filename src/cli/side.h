/*
 * One end of a copy: a tree of the operating system, or of a container. Paths are whole ones. 0 or a count, or -errno.
 * Thread-safe, like what is behind it.
 */
#ifndef CLI_SIDE_H
#define CLI_SIDE_H

#include "cli.h"

struct side_file;
struct side_dirs;
struct side {
    const struct side_ops *ops;
    struct pst_fs *fs;      /* a container's */
    const char *base;       /* its URL, for messages; NULL: the operating system's */
    struct side_dirs *dirs; /* a container's, between side_keep_dirs and side_drop_dirs; else NULL */
};

struct side_ops {
    bool remote;
    int (*lstat)(struct side *s, const char *path, struct stat *ret);
    /* Without "." and ".."; a fn result other than 0 ends it and is returned. */
    int (*list)(struct side *s, const char *path, int (*fn)(void *user, const char *name, const struct stat *st),
                void *user);
    int (*mkdir)(struct side *s, const char *path, mode_t mode);
    int (*mknod)(struct side *s, const char *path, mode_t mode, dev_t rdev);
    int (*symlink)(struct side *s, const char *target, const char *path);
    int64_t (*readlink)(struct side *s, const char *path, char *ret, size_t size);
    int (*link)(struct side *s, const char *from, const char *to);
    int (*unlink)(struct side *s, const char *path);
    int (*rmdir)(struct side *s, const char *path);
    int (*chmod)(struct side *s, const char *path, mode_t mode);
    int (*chown)(struct side *s, const char *path, uid_t uid, gid_t gid); /* of the link itself */
    int (*utimens)(struct side *s, const char *path, const struct timespec t[2]);
    int64_t (*listxattr)(struct side *s, const char *path, char *ret, size_t size);
    int64_t (*getxattr)(struct side *s, const char *path, const char *name, void *ret, size_t size);
    int (*setxattr)(struct side *s, const char *path, const char *name, const void *value, size_t size);

    /* flags: O_RDONLY, or O_WRONLY|O_CREAT|...; never follows a link. */
    int (*open)(struct side *s, const char *path, int flags, mode_t mode, struct side_file **ret);
    int64_t (*pread)(struct side_file *f, void *buf, size_t n, uint64_t at);
    int64_t (*pwrite)(struct side_file *f, const void *buf, size_t n, uint64_t at); /* all, or an error */
    int (*truncate)(struct side_file *f, uint64_t size);
    int64_t (*seek)(struct side_file *f, uint64_t at, int whence); /* SEEK_DATA, SEEK_HOLE */
    int (*flush)(struct side_file *f); /* what was written is there, or an error; not durable */
    int (*fstat)(struct side_file *f, struct stat *ret);
    int (*fchmod)(struct side_file *f, mode_t mode);
    int (*fchown)(struct side_file *f, uid_t uid, gid_t gid);
    int (*futimens)(struct side_file *f, const struct timespec t[2]);
    int (*fsync)(struct side_file *f);
    int (*close)(struct side_file *f);
    int (*sync)(struct side *s, const char *path); /* all of it is durable */
};

extern const struct side_ops side_os, side_store;

/*
 * While many entries of few directories are worked on: each directory's path is resolved once, and what is meant is
 * the directory that was there then (as with openat). Without it, or without memory for it, each call resolves its
 * whole path. Not for who makes a directory anew that it has removed. Does nothing for the operating system's side.
 */
void side_keep_dirs(struct side *s);
void side_drop_dirs(struct side *s);

/* "dir/name"; -ENAMETOOLONG past 4095 bytes. */
#define SIDE_PATH_MAX 4096
int side_join(const char *dir, const char *name, char ret[SIDE_PATH_MAX]);

#endif
