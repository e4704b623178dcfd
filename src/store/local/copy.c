/*
 * Copies of files, and the second copy of the index. index.copy/ is made from the flushed index at a checkpoint, file
 * by file, when the log that is kept since the last one has grown past a bound; the log is kept from its LSN on. So a
 * damaged index is made anew from copy and log: `penstock check --rebuild-index`. A store begins with an empty copy:
 * LSN 0.
 *   index.copy.new   being written
 *   index.copy.done  complete, takes the place of index.copy
 */
#include "parts.h"

#include "base/err.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define COPY_STEP   (1 * MiB)
#define COPY_MAX    (256 * MiB) /* bytes of log kept for a small index */
#define SNAPSHOT    "index.snap" /* links to the files of the index while they are copied */
#define COPY        "index.copy"
#define COPY_NEW    "index.copy.new"
#define COPY_DONE   "index.copy.done"
#define INDEX_DAMAGED "index.damaged"

int copy_range(int from, int to, uint64_t offset, uint64_t n, void *buf, size_t buf_size)
{
    int r = 0;
    for (uint64_t done = 0; !r && done < n;) {
        size_t k = (size_t)min_u64(buf_size, n - done);
        r = pread_all(from, buf, k, offset + done);
        if (!r)
            r = pwrite_all(to, buf, k, offset + done);
        done += k;
    }
    return r;
}

static int copy_file(int from_dir, int to_dir, const char *name, void *buf)
{
    cleanup_close int from = openat(from_dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    cleanup_close int to = from < 0 ? -1 : openat(to_dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    struct stat st;
    int r;
    if (to < 0 || fstat(from, &st))
        return -errno;
    r = copy_range(from, to, 0, (uint64_t)st.st_size, buf, COPY_STEP);
    if (!r && fsync(to))
        r = -errno;
    return r;
}

static int copy_entries(DIR *d, int to_dir)
{
    cleanup_free void *buf = malloc(COPY_STEP);
    struct dirent *de;
    int r = buf ? 0 : -ENOMEM;
    while (!r && (de = readdir(d)))
        if (strcmp(de->d_name, ".") && strcmp(de->d_name, "..") && strcmp(de->d_name, "LOCK") &&
            strncmp(de->d_name, "LOG", 3))
            r = copy_file(dirfd(d), to_dir, de->d_name, buf);
    return r;
}

int copy_folder(int from_dir, const char *from, int to_dir, const char *to)
{
    cleanup_close int fd = -1;
    int src, r;
    DIR *d;
    if (mkdirat(to_dir, to, 0700))
        return -errno;
    fd = openat(to_dir, to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    src = openat(from_dir, from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    d = fd < 0 || src < 0 ? NULL : fdopendir(src);
    if (!d) {
        r = -errno;
        if (src >= 0)
            close(src);
        return r;
    }
    r = copy_entries(d, fd);
    closedir(d);
    if (!r && (fsync(fd) || fsync(to_dir)))
        r = -errno;
    return r;
}

int copy_index_to(struct engine *e, int to_dir, const char *to)
{
    char path[4096];
    int r = path_join(path, sizeof path, e->dir, SNAPSHOT);
    if (!r)
        r = remove_tree(e->dir_fd, SNAPSHOT);
    if (!r)
        r = index_snapshot_to(e, path);
    if (!r)
        r = copy_folder(e->dir_fd, SNAPSHOT, to_dir, to);
    remove_tree(e->dir_fd, SNAPSHOT);
    return r;
}

/* ---- index.copy ---- */

/* index.copy.done, if there is one, becomes index.copy. */
static int copy_settle(struct engine *e)
{
    int r;
    if (faccessat(e->dir_fd, COPY_DONE, F_OK, 0))
        return 0;
    r = remove_tree(e->dir_fd, COPY);
    if (!r && (renameat(e->dir_fd, COPY_DONE, e->dir_fd, COPY) || fsync(e->dir_fd)))
        r = -errno;
    return r;
}

static int copy_make(struct engine *e)
{
    int r = copy_settle(e);
    if (!r)
        r = remove_tree(e->dir_fd, COPY_NEW);
    if (!r)
        r = copy_index_to(e, e->dir_fd, COPY_NEW);
    if (!r && (renameat(e->dir_fd, COPY_NEW, e->dir_fd, COPY_DONE) || fsync(e->dir_fd)))
        r = -errno;
    if (!r)
        r = copy_settle(e);
    if (r)
        remove_tree(e->dir_fd, COPY_NEW);
    return r;
}

uint64_t copy_refresh(struct engine *e, uint64_t lsn)
{
    uint64_t index = index_file_bytes(e), log = wal_bytes(e), avail = 0, room;
    uint64_t bound = max_u64(max_u64(4 * (uint64_t)e->super.segment, min_u64(COPY_MAX, e->super.capacity / 64)), index);
    int r = 0;
    if (log <= bound && e->super.copy_lsn != COPY_NONE)
        return e->super.copy_lsn;
    room = 4 * e->reserve_bytes + index;
    if (fs_free(e, &avail) || avail < room)
        r = -ENOSPC;
    if (!r)
        r = copy_make(e);
    if (!r)
        return lsn;
    if (log <= 2 * bound || e->super.copy_lsn == COPY_NONE)
        return e->super.copy_lsn;
    log_warn("%s: no space for a new copy of the index (%s): until there is some, a damaged index cannot be made anew",
             e->dir, err_text(r));
    remove_tree(e->dir_fd, COPY);
    return COPY_NONE;
}

int index_rebuild(struct engine *e, bool *ret_empty, const struct errmsg *m)
{
    bool damaged_kept = !faccessat(e->dir_fd, INDEX_DAMAGED, F_OK, 0);
    int r = copy_settle(e);
    if (r)
        return fail(m, r, "%s: %s: %s", e->dir, COPY, err_text(r));
    *ret_empty = faccessat(e->dir_fd, COPY, F_OK, 0) != 0;
    if (*ret_empty && e->super.copy_lsn)
        return fail(m, -ENOENT, "%s: there is no copy of the index: restore a backup", e->dir);
    r = remove_tree(e->dir_fd, COPY_NEW);
    if (!r && *ret_empty && mkdirat(e->dir_fd, COPY_NEW, 0700))
        r = -errno;
    if (!r && !*ret_empty)
        r = copy_folder(e->dir_fd, COPY, e->dir_fd, COPY_NEW);
    /* The first damaged index is kept until the rebuild is complete; what a failed rebuild made is not. */
    if (!r && damaged_kept)
        r = remove_tree(e->dir_fd, "index");
    else if (!r && renameat(e->dir_fd, "index", e->dir_fd, INDEX_DAMAGED) && errno != ENOENT)
        r = -errno;
    if (!r && (renameat(e->dir_fd, COPY_NEW, e->dir_fd, "index") || fsync(e->dir_fd)))
        r = -errno;
    return r ? fail(m, r, "%s: the index cannot be made anew: %s", e->dir, err_text(r)) : 0;
}

void index_rebuilt(struct engine *e)
{
    int r = remove_tree(e->dir_fd, INDEX_DAMAGED);
    if (r)
        log_warn("%s/%s cannot be removed: %s", e->dir, INDEX_DAMAGED, err_text(r));
}
