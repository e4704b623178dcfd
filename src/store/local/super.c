/*
 * The folder of a store:
 *   lock        flock: one process has the store open
 *   superblock  two copies of 4 KiB, written in turn: the valid one with the highest generation counts
 *   data        blocks
 *   log/        segments
 *   index/      RocksDB
 *   reserve     ballast, given up when the file system is full so that log and index can go on
 *   creating    only while the store is being made: what else is there is of no worth
 */
#include "parts.h"

#include "base/crc.h"
#include "base/err.h"
#include "base/rng.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define SUPER_BYTES     4096u
#define SUPER_MAGIC     "PENSTOCK"
#define DEFAULT_PERCENT 90u         /* of the file system's free space: the rest is for log and index */
#define CAPACITY_MIN    (4 * MiB)
#define RESERVE_MIN     (4 * MiB)
#define RESERVE_MAX     (32 * MiB)
#define SEGMENT_MIN     (2 * MiB)   /* holds the largest record */
#define SEGMENT_MAX     (16 * MiB)

int fail(const struct errmsg *m, int err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (m && m->size)
        vsnprintf(m->p, m->size, fmt, ap);
    va_end(ap);
    return err;
}

int path_join(char *ret, size_t size, const char *dir, const char *name)
{
    int n = snprintf(ret, size, "%s/%s", dir, name);
    return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}

int remove_tree(int dir_fd, const char *name)
{
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW), r = 0;
    DIR *d;
    struct dirent *de;
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    d = fdopendir(fd);
    if (!d) {
        r = -errno;
        close(fd);
        return r;
    }
    while ((de = readdir(d))) {
        if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, ".."))
            continue;
        if (unlinkat(fd, de->d_name, 0) && errno != ENOENT)
            r = -errno;
    }
    closedir(d);
    if (unlinkat(dir_fd, name, AT_REMOVEDIR))
        r = r ? r : -errno;
    return r;
}

int fs_free(struct engine *e, uint64_t *ret)
{
    struct statvfs v;
    if (fstatvfs(e->dir_fd, &v))
        return -errno;
    *ret = (uint64_t)v.f_bavail * v.f_frsize;
    return 0;
}

/* ---- the superblock ---- */

/* The CRC is in the last four bytes whatever the layout, so that another layout is told from damage. */
static void super_encode(const struct super *s, uint8_t ret[SUPER_BYTES])
{
    struct wbuf w = {.data = ret, .cap = SUPER_BYTES};
    uint32_t crc;
    memset(ret, 0, SUPER_BYTES);
    wbuf_put(&w, SUPER_MAGIC, 8);
    wbuf_u32(&w, s->layout);
    wbuf_u32(&w, PST_BLOCK);
    wbuf_u64(&w, s->generation);
    wbuf_put(&w, s->uuid, 16);
    wbuf_u64(&w, (uint64_t)s->created_ns);
    wbuf_u64(&w, s->capacity);
    wbuf_u32(&w, s->segment);
    wbuf_u32(&w, s->clean);
    wbuf_u64(&w, s->log_lsn);
    wbuf_u64(&w, s->log_seq);
    wbuf_u64(&w, s->log_off);
    wbuf_u64(&w, s->copy_lsn);
    wbuf_u64(&w, s->run);
    wbuf_u64(&w, s->run_before);
    w.len = SUPER_BYTES - 4;
    crc = crc32c(0, ret, SUPER_BYTES - 4);
    wbuf_u32(&w, crc);
}

/* 0, -EBADMSG: not a superblock, -ENOTSUP: of another layout (only ret->layout is set), -EIO: fields out of range. */
static int super_decode(const uint8_t p[SUPER_BYTES], struct super *ret)
{
    struct super s = {0};
    struct rbuf r = rbuf_of(p, SUPER_BYTES), tail = rbuf_of(p + SUPER_BYTES - 4, 4);
    const void *magic = rbuf_take(&r, 8);
    uint32_t block;
    if (memcmp(magic, SUPER_MAGIC, 8) || rbuf_u32(&tail) != crc32c(0, p, SUPER_BYTES - 4))
        return -EBADMSG;
    s.layout = rbuf_u32(&r);
    if (s.layout != LAYOUT_VERSION) {
        ret->layout = s.layout;
        return -ENOTSUP;
    }
    block = rbuf_u32(&r);
    s.generation = rbuf_u64(&r);
    rbuf_get(&r, s.uuid, 16);
    s.created_ns = (int64_t)rbuf_u64(&r);
    s.capacity = rbuf_u64(&r);
    s.segment = rbuf_u32(&r);
    s.clean = rbuf_u32(&r) != 0;
    s.log_lsn = rbuf_u64(&r);
    s.log_seq = rbuf_u64(&r);
    s.log_off = rbuf_u64(&r);
    s.copy_lsn = rbuf_u64(&r);
    s.run = rbuf_u64(&r);
    s.run_before = rbuf_u64(&r);
    if (block != PST_BLOCK || s.capacity < PST_BLOCK || s.capacity % PST_BLOCK || s.capacity > PST_FILE_MAX * 2 ||
        s.segment < SEGMENT_MIN || s.segment > 1 * GiB || s.segment % SUPER_BYTES)
        return -EIO;
    *ret = s;
    return 0;
}

static int super_read(struct engine *e, const struct errmsg *m)
{
    struct super best = {0}, s = {0};
    bool found = false;
    int other = 0;
    for (int i = 0; i < 2; i++) {
        uint8_t p[SUPER_BYTES];
        int r = pread_all(e->super_fd, p, sizeof p, (uint64_t)i * SUPER_BYTES);
        if (!r)
            r = super_decode(p, &s);
        if (r == -ENOTSUP)
            other = (int)s.layout;
        if (r || (found && s.generation < best.generation))
            continue;
        best = s;
        found = true;
    }
    if (other)
        return fail(m, -ENOTSUP, "%s has layout version %d, this program knows version %u: use a matching penstock, or "
                                 "`penstock upgrade %s`", e->dir, other, LAYOUT_VERSION, e->dir);
    if (!found)
        return fail(m, -EIO, "%s/superblock: both copies are damaged", e->dir);
    e->super = best;
    return 0;
}

int super_write(struct engine *e)
{
    uint8_t p[SUPER_BYTES];
    int r;
    e->super.generation++;
    super_encode(&e->super, p);
    r = pwrite_all(e->super_fd, p, sizeof p, e->super.generation % 2 * SUPER_BYTES);
    if (!r && fdatasync(e->super_fd))
        r = -errno;
    return r;
}

/* ---- reserve ---- */

void reserve_make(struct engine *e)
{
    struct stat st;
    uint64_t avail = 0;
    cleanup_close int fd = -1;
    if (!fstatat(e->dir_fd, "reserve", &st, 0) && (uint64_t)st.st_size == e->reserve_bytes)
        return;
    if (fs_free(e, &avail) || avail < 3 * e->reserve_bytes)
        return;
    fd = openat(e->dir_fd, "reserve", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || fallocate(fd, 0, 0, (off_t)e->reserve_bytes))
        log_debug("%s: no ballast file: %s", e->dir, err_text(errno));
}

void reserve_release(struct engine *e)
{
    if (!unlinkat(e->dir_fd, "reserve", 0))
        log_warn("%s: the file system is nearly full: the reserve is in use; free space there or delete data", e->dir);
}

/* ---- the folder ---- */

static int lock_store(struct engine *e, const struct errmsg *m)
{
    char pid[32] = "";
    int n;
    e->lock_fd = openat(e->dir_fd, "lock", e->opt.readonly ? O_RDONLY | O_CLOEXEC : O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (e->lock_fd < 0 && errno == EROFS && e->opt.check_to && !e->opt.rebuild_index) {
        e->opt.readonly = true; /* what can be checked there is checked */
        e->lock_fd = openat(e->dir_fd, "lock", O_RDONLY | O_CLOEXEC);
    }
    if (e->lock_fd < 0 && errno == EROFS)
        return fail(m, -EROFS,
                    "%s is on a read-only file system: mount it for writing, or only read what the store has, with "
                    "its option readonly=1",
                    e->dir);
    if (e->lock_fd < 0)
        return fail(m, -errno, "%s/lock cannot be opened: %s", e->dir, err_text(errno));
    if (flock(e->lock_fd, (e->opt.readonly ? LOCK_SH : LOCK_EX) | LOCK_NB)) {
        n = (int)pread(e->lock_fd, pid, sizeof pid - 1, 0);
        pid[n > 0 ? strspn(pid, "0123456789") : 0] = 0;
        return fail(m, -EBUSY, "%s is in use by process %s", e->dir, pid[0] ? pid : "(unknown)");
    }
    if (e->opt.readonly)
        return 0;
    n = snprintf(pid, sizeof pid, "%d\n", getpid());
    if (ftruncate(e->lock_fd, 0) || pwrite_all(e->lock_fd, pid, (size_t)n, 0))
        log_debug("%s/lock: %s", e->dir, err_text(errno));
    return 0;
}

/* Names in the folder besides "lock" and "lost+found": 0 none, 1 some. */
int folder_used(struct engine *e)
{
    int fd = openat(e->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), used = 0;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *de;
    if (!d) {
        int r = -errno;
        if (fd >= 0)
            close(fd);
        return r;
    }
    while ((de = readdir(d)))
        used |= strcmp(de->d_name, ".") && strcmp(de->d_name, "..") && strcmp(de->d_name, "lock") &&
                strcmp(de->d_name, "lost+found");
    closedir(d);
    return used;
}

int wipe_half_made(struct engine *e)
{
    static const char *const files[] = {"data", "superblock", "reserve", "recent", "recent.new"};
    int r = remove_tree(e->dir_fd, "log");
    if (!r)
        r = remove_tree(e->dir_fd, "index");
    for (size_t i = 0; !r && i < ARRAY_SIZE(files); i++)
        if (unlinkat(e->dir_fd, files[i], 0) && errno != ENOENT)
            r = -errno;
    return r;
}

static int choose_sizes(struct engine *e, const struct errmsg *m)
{
    uint64_t avail = 0, size = e->opt.size;
    int r = fs_free(e, &avail);
    if (r)
        return fail(m, r, "%s: statvfs: %s", e->dir, err_text(r));
    if (!size)
        size = avail / 100 * DEFAULT_PERCENT;
    size = align_down(size, PST_BLOCK);
    if (size < CAPACITY_MIN)
        return fail(m, -ENOSPC, "%s: a store needs %llu MiB at least (size=, or free space in the file system)", e->dir,
                    CAPACITY_MIN / MiB);
    if (size > PST_FILE_MAX)
        return fail(m, -EINVAL, "size=%llu is too large", (unsigned long long)size);
    e->super.capacity = size;
    e->super.segment = (uint32_t)align_down(max_u64(SEGMENT_MIN, min_u64(SEGMENT_MAX, size / 64)), 1 * MiB);
    return 0;
}

static int make_store(struct engine *e, const struct errmsg *m)
{
    int fd, r;
    if (e->opt.readonly)
        return fail(m, -EROFS, "%s is not a store", e->dir);
    fd = openat(e->dir_fd, "creating", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return fail(m, -errno, "%s: cannot create a store: %s", e->dir, err_text(errno));
    close(fd);
    r = wipe_half_made(e);
    if (r)
        return fail(m, r, "%s: cannot remove a half-made store: %s", e->dir, err_text(r));
    e->super = (struct super){.layout = LAYOUT_VERSION, .created_ns = wall_ns()};
    rng_secret(e->super.uuid, sizeof e->super.uuid);
    r = choose_sizes(e, m);
    if (r)
        return r;
    if (mkdirat(e->dir_fd, "log", 0700) || mkdirat(e->dir_fd, "index", 0700))
        return fail(m, -errno, "%s: mkdir: %s", e->dir, err_text(errno));
    fd = openat(e->dir_fd, "data", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return fail(m, -errno, "%s/data: %s", e->dir, err_text(errno));
    close(fd);
    return 0;
}

int super_created(struct engine *e)
{
    int r = super_write(e);
    if (!r)
        r = super_write(e); /* the second copy too */
    if (!r && fsync(e->dir_fd))
        r = -errno;
    if (!r && unlinkat(e->dir_fd, "creating", 0))
        r = -errno;
    if (!r && fsync(e->dir_fd))
        r = -errno;
    return r;
}

static int open_data(struct engine *e, const struct errmsg *m)
{
    int flags = (e->opt.readonly ? O_RDONLY : O_RDWR) | O_CLOEXEC;
    e->data_fd = openat(e->dir_fd, "data", flags);
    if (e->data_fd < 0)
        return fail(m, -errno, "%s/data: %s", e->dir, err_text(errno));
    if (e->opt.direct == CHOICE_NEVER)
        return 0;
    e->direct_fd = openat(e->dir_fd, "data", flags | O_DIRECT);
    if (e->direct_fd < 0 && e->opt.direct == CHOICE_ALWAYS)
        return fail(m, -errno, "%s/data: O_DIRECT is refused (%s): use direct=auto", e->dir, err_text(errno));
    return 0;
}

int sync_parent(int dir_fd)
{
    cleanup_close int fd = openat(dir_fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 || fsync(fd) ? -errno : 0;
}

#define MAKE_ONE \
    " (penstock pool create 'local:DIRECTORY?POOL', or the option create=1, makes a store in an empty folder)"

static int open_folder(struct engine *e, const struct errmsg *m)
{
    bool made = false;
    e->dir_fd = open(e->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (e->dir_fd < 0 && errno == ENOENT && e->opt.create && !mkdir(e->dir, 0700)) {
        e->dir_fd = open(e->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        made = e->dir_fd >= 0;
    }
    if (e->dir_fd < 0)
        return fail(m, -errno, errno == ENOENT ? "%s: %s" MAKE_ONE : "%s: %s", e->dir, err_text(errno));
    return made && sync_parent(e->dir_fd) ? fail(m, -EIO, "%s: the folder above cannot be flushed", e->dir) : 0;
}

int super_open(struct engine *e, bool *ret_new, const struct errmsg *m)
{
    bool made = false;
    int r = open_folder(e, m);
    if (r)
        return r;
    if (faccessat(e->dir_fd, "superblock", F_OK, 0) || !faccessat(e->dir_fd, "creating", F_OK, 0)) {
        bool half = !faccessat(e->dir_fd, "creating", F_OK, 0);
        if (!e->opt.create && !half)
            return fail(m, -ENOENT, "%s is not a store" MAKE_ONE, e->dir);
        if (!half && folder_used(e) != 0)
            return fail(m, -ENOTEMPTY, "%s is neither a store nor empty", e->dir);
        if (!e->opt.create)
            return fail(m, -ENOENT, "%s: a store was being made here and is not complete: create=1 makes it anew",
                        e->dir);
        made = true;
    }
    r = lock_store(e, m);
    /* Another process may have made or finished it between the look and the lock. */
    if (!r && made && !faccessat(e->dir_fd, "superblock", F_OK, 0) && faccessat(e->dir_fd, "creating", F_OK, 0))
        made = false;
    if (!r && made)
        r = make_store(e, m);
    if (r)
        return r;
    e->super_fd = openat(e->dir_fd, "superblock", (e->opt.readonly ? O_RDONLY : O_RDWR | O_CREAT) | O_CLOEXEC, 0600);
    if (e->super_fd < 0)
        return fail(m, -errno, "%s/superblock: %s", e->dir, err_text(errno));
    r = made ? 0 : super_read(e, m);
    if (!r)
        r = open_data(e, m);
    e->reserve_bytes = max_u64(RESERVE_MIN, min_u64(RESERVE_MAX, e->super.capacity / 16));
    *ret_new = made;
    return r;
}

void super_close(struct engine *e)
{
    int fds[] = {e->direct_fd, e->data_fd, e->super_fd, e->lock_fd, e->dir_fd};
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    e->direct_fd = e->data_fd = e->super_fd = e->lock_fd = e->dir_fd = -1;
}
