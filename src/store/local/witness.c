/*
 * A page of shared memory with the LSN of the newest commit. It outlives the process, not the operating system, and
 * lies on no disk. So the next process can tell whether it sees all that was committed: a disk that was pulled and put
 * back, or a copy from an earlier moment that was put in the store's place, ends before. Where there is no shared
 * memory there is no witness, and only what the files themselves say counts.
 *
 * A killed process leaves its page for the next one. If its store is removed instead, none comes: the page says where
 * the store lay, and whoever starts a witness removes the pages of stores that are gone from there.
 */
#include "parts.h"

#include "base/endian.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define WITNESS_MAGIC 0x57545350u /* "PSTW" */
#define SHM_DIR       "/dev/shm"
#define NAME_PREFIX   "penstock-"
#define NAME_LEN      (sizeof NAME_PREFIX - 1 + 32)

struct witness {
    uint32_t magic, zero;
    uint8_t uuid[16];
    uint64_t run;
    _Atomic uint64_t last;
    /* Of the store's folder; the path is empty if it is longer. */
    uint64_t dev;
    char dir[4096 - 48];
};

static void path_of(const struct engine *e, char ret[64])
{
    int n = snprintf(ret, 64, SHM_DIR "/" NAME_PREFIX);
    for (int i = 0; i < 16; i++)
        n += snprintf(ret + n, 64 - (size_t)n, "%02x", e->super.uuid[i]);
}

/* ---- pages of stores that are gone ---- */

/* A store that is being put in place, or taken away, has no superblock for a moment. */
static bool parts_are_there(const char *dir)
{
    static const char *const part[] = {"data", "log", "index"};
    char path[4200];

    for (size_t i = 0; i < ARRAY_SIZE(part); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, part[i]);
        if (!access(path, F_OK))
            return true;
    }
    return false;
}

/* Is a store with this uuid in the folder, whatever else is wrong with it? */
static bool store_is_there(const char *dir, const uint8_t uuid[16])
{
    char path[4200], block[4096];
    cleanup_close int fd = -1;
    ssize_t n;

    snprintf(path, sizeof path, "%s/superblock", dir);
    fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return parts_are_there(dir);
    n = fd < 0 ? 0 : pread(fd, block, sizeof block, 0);
    return n > 0 && memmem(block, (size_t)n, uuid, 16);
}

/* Removed, and not out of sight: what is left of the way to it is on the file system that it was on. */
static bool store_is_gone(const struct witness *w)
{
    char dir[sizeof w->dir];
    struct stat st;

    if (w->dir[0] != '/' || !memchr(w->dir, 0, sizeof w->dir) || store_is_there(w->dir, w->uuid))
        return false;
    strcpy(dir, w->dir);
    while (stat(dir, &st)) {
        char *slash = strrchr(dir, '/');
        if ((errno != ENOENT && errno != ENOTDIR) || slash == dir)
            return false;
        *slash = 0;
    }
    return st.st_dev == w->dev;
}

static void sweep(void)
{
    DIR *d = opendir(SHM_DIR);
    struct dirent *de;

    while (d && (de = readdir(d))) {
        cleanup_close int fd = -1;
        struct witness w;
        struct stat st;
        if (strncmp(de->d_name, NAME_PREFIX, sizeof NAME_PREFIX - 1) || strlen(de->d_name) != NAME_LEN)
            continue;
        fd = openat(dirfd(d), de->d_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
            pread(fd, &w, sizeof w, 0) == sizeof w && w.magic == WITNESS_MAGIC && store_is_gone(&w))
            unlinkat(dirfd(d), de->d_name, 0);
    }
    if (d)
        closedir(d);
}

/* Where the store lies, for later sweeps. */
static void put_place(const struct engine *e, struct witness *w)
{
    char link[40];
    struct stat st;
    ssize_t n;

    snprintf(link, sizeof link, "/proc/self/fd/%d", e->dir_fd);
    n = readlink(link, w->dir, sizeof w->dir);
    if (n < 0 || n == (ssize_t)sizeof w->dir || fstat(e->dir_fd, &st))
        w->dir[0] = 0;
    else
        w->dev = st.st_dev;
}

/* ---- this store's ---- */

/* Others may put files there too: only what is ours counts. -1: none. */
static int open_ours(const struct engine *e, int flags)
{
    char path[64];
    struct stat st;
    int fd;
    path_of(e, path);
    fd = open(path, flags | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0 && (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_mode & 077)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

int witness_read(struct engine *e, uint64_t *ret_run, uint64_t *ret_last)
{
    cleanup_close int fd = open_ours(e, O_RDONLY);
    struct witness w;
    if (fd < 0 || pread(fd, &w, sizeof w, 0) < (ssize_t)offsetof(struct witness, dev) || w.magic != WITNESS_MAGIC ||
        memcmp(w.uuid, e->super.uuid, sizeof w.uuid))
        return 0;
    *ret_run = w.run;
    *ret_last = atomic_load(&w.last);
    return 1;
}

struct witness *witness_start(struct engine *e, uint64_t last)
{
    cleanup_close int fd = -1;
    struct witness *w;
    witness_remove(e); /* of another process that may still have it mapped */
    fd = open_ours(e, O_RDWR | O_CREAT | O_EXCL);
    /* The page is there before it is touched: a full memory is an error here, not a signal at a commit. */
    if (fd < 0 || posix_fallocate(fd, 0, sizeof *w)) {
        witness_remove(e);
        return NULL;
    }
    w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (w == MAP_FAILED) {
        witness_remove(e);
        return NULL;
    }
    w->magic = WITNESS_MAGIC;
    memcpy(w->uuid, e->super.uuid, sizeof w->uuid);
    w->run = e->super.run;
    atomic_store(&w->last, last);
    put_place(e, w);
    sweep();
    return w;
}

void witness_set(struct witness *w, uint64_t last)
{
    if (w)
        atomic_store_explicit(&w->last, last, memory_order_relaxed);
}

void witness_close(struct witness *w)
{
    if (w)
        munmap(w, sizeof *w);
}

void witness_remove(struct engine *e)
{
    char path[64];
    path_of(e, path);
    unlink(path);
}
