/*
 * The mount: a container as a directory of the operating system, through /dev/fuse. docs/operations.md, "Mount", says
 * what a user sees: consistency, time-outs, locks, what happens when a process dies.
 */
#ifndef FUSE_MOUNT_MOUNT_H
#define FUSE_MOUNT_MOUNT_H

#include "client/client.h"

#define FUSE_MOUNT_THREADS_MAX 256u

/* Zero means the default, where one is named. */
struct fuse_mount_opts {
    /*
     * Write-behind, credentials, provider: as for cl_connect. purpose is set here; durable_close too, see
     * durability_fsync.
     */
    struct cl_options client;
    bool foreground;       /* do not go to the background: fuse_mount_run returns at the unmount */
    bool supervise;        /* a parent process keeps the mount over a crash of the one that serves it */
    bool durability_fsync; /* close sends the data but does not make it durable: only fsync does */
    bool read_only;
    bool only_owner;       /* nobody but the mounting user gets in; default for others than root */
    bool allow_other;      /* others than root: needs user_allow_other in /etc/fuse.conf */
    /* How long the kernel may use attributes and names without asking again; negative: 1 s. */
    double attr_timeout, entry_timeout;
    uint32_t max_threads;      /* that serve requests; 0: 16; at most FUSE_MOUNT_THREADS_MAX */
    /* "a,b=c": noexec, nosuid, suid, nodev, dev, noatime, dirsync, sync, fsname=, subtype= */
    const char *mount_options;
    const char *log_file; /* in the background; NULL: syslog */
};
/* A default for each field: background, supervised, durable close, 1 s. */
void fuse_mount_opts_init(struct fuse_mount_opts *o);

/*
 * Mounts and serves. The caller has registered the store engines and has no threads yet (the background needs fork).
 * Foreground: returns after the unmount. Background: returns in the caller's process as soon as the mount answers; the
 * serving processes never return from here.
 * 0, or -errno with a line for people in err: the mount failed, or (foreground) data could not be flushed at the end.
 */
int fuse_mount_run(const char *url, const char *dir, const struct fuse_mount_opts *o, char *err, size_t err_size);
/* Unmounts dir if it is a Penstock mount: waits for dirty data; lazy: also while files are open. 0 or -errno. */
int fuse_mount_stop(const char *dir, bool lazy);

#endif
