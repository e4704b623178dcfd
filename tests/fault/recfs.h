/*
 * A file system that records: a small FUSE file system in memory that keeps a trace of every change and every flush,
 * in order. From the trace, the disk as it may look after a power loss at any moment is built: what was flushed is
 * there; of the rest, any part may be there, in any order.
 *
 * Rules of the simulated disk:
 *   - a write is durable after an fsync/fdatasync of the file that began after it, or by itself with O_DSYNC/O_SYNC;
 *     until then each 512-byte sector of it may be there or not;
 *   - sizes (truncate, growth, fallocate) are durable with the file's fsync;
 *   - names (create, rename, unlink, link, mkdir) are kept in order, as by a journal: those before an fsync of the
 *     directory are there, of the later ones any prefix.
 * A write to the file "ack" in the root is not stored: its bytes are a mark in the trace (what a program was promised).
 */
#ifndef TESTS_RECFS_H
#define TESTS_RECFS_H

#include "base/rng.h"

#include <stddef.h>
#include <stdint.h>

struct recfs;

/* Mounts on an empty directory and serves it from a thread of its own. NULL with errno set. */
struct recfs *recfs_mount(const char *dir);
/* Unmounts; the trace stays. Everything that used the mount is gone before. */
void recfs_unmount(struct recfs *fs);
void recfs_free(struct recfs *fs);

/* Number of entries in the trace. */
size_t recfs_length(const struct recfs *fs);
/*
 * Builds, in an empty directory, the disk after a loss of power behind entry `at`. ignore_flushes: as if no flush had
 * ever reached the disk (to prove that a test notices). 0 or -errno. Moments that are asked for in order cost less:
 * what was durable before is not built again.
 */
int recfs_crash(struct recfs *fs, size_t at, struct rng *r, int ignore_flushes, const char *dir);
/* Calls fn for each mark before entry `at`, in order. */
void recfs_acks(const struct recfs *fs, size_t at, void (*fn)(void *user, const char *text), void *user);

#endif
