/*
 * A page of shared memory with the LSN of the newest commit. It outlives the process, not the operating system, and
 * lies on no disk. So the next process can tell whether it sees all that was committed: a disk that was pulled and put
 * back, or a copy from an earlier moment that was put in the store's place, ends before. Where there is no shared
 * memory there is no witness, and only what the files themselves say counts.
 *
 * A killed process leaves its page for the next one. If its store is removed instead, none comes: the page says where
 * the store lay, and whoever starts a witness removes the pages of stores that are gone from there. The shared memory
 * may be that of several containers, which see other folders, or none, under the same names, and other process ids: so
 * a page that a process has is locked, and else the folders on the way to the store have to be the very ones that they
 * were.
 */
#include "parts.h"

#include "base/endian.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define WITNESS_MAGIC 0x57545350u /* "PSTW" */
#define SHM_DIR       "/dev/shm"
#define NAME_PREFIX   "penstock-"
#define NAME_LEN      (sizeof NAME_PREFIX - 1 + 32)

#define LEVELS        32u

struct page {
    uint32_t magic, zero;
    uint8_t uuid[16];
    uint64_t run;
    _Atomic uint64_t last;
    /* Of the store's folder; the path is empty if it is longer. above: of its parent, the parent's, and so on. */
    uint64_t dev;
    struct place {
        uint64_t dev, ino; /* both 0: not known */
    } above[LEVELS];
    char dir[4096 - 48 - LEVELS * sizeof(struct place)];
};

struct witness {
    struct page *page;
    int fd; /* locked as long as this process has it */
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

/* Is a store with this uuid in the folder, whatever else is wrong with it? True too if that cannot be seen. */
static bool store_is_there(const char *dir, const uint8_t uuid[16])
{
    char path[4200], block[4096];
    cleanup_close int fd = -1;
    ssize_t n;

    snprintf(path, sizeof path, "%s/superblock", dir);
    fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? parts_are_there(dir) : errno != ENOTDIR;
    n = pread(fd, block, sizeof block, 0);
    return n < 0 || memmem(block, (size_t)n, uuid, 16);
}

/* Its parent. False: that is the root. */
static bool go_up(char *dir)
{
    char *slash = strrchr(dir, '/');

    if (!slash || slash == dir)
        return false;
    *slash = 0;
    return true;
}

/*
 * Removed, and not out of sight: the folder from which something is missing is the one that was there, and nothing was
 * mounted in it on the way to the store.
 */
static bool store_is_gone(const struct page *p)
{
    char dir[sizeof p->dir];
    struct stat st;

    if (p->dir[0] != '/' || !memchr(p->dir, 0, sizeof p->dir) || store_is_there(p->dir, p->uuid))
        return false;
    if (!stat(p->dir, &st) && st.st_dev != p->dev)
        return false;
    strcpy(dir, p->dir);
    for (unsigned i = 0; i < LEVELS && go_up(dir); i++) {
        if (!stat(dir, &st))
            return st.st_dev == p->dev && st.st_dev == p->above[i].dev && st.st_ino == p->above[i].ino;
        if (errno != ENOENT && errno != ENOTDIR)
            return false;
    }
    return false;
}

static void sweep(void)
{
    DIR *d = opendir(SHM_DIR);
    struct dirent *de;

    while (d && (de = readdir(d))) {
        cleanup_close int fd = -1;
        struct page p;
        struct stat st;
        if (strncmp(de->d_name, NAME_PREFIX, sizeof NAME_PREFIX - 1) || strlen(de->d_name) != NAME_LEN)
            continue;
        fd = openat(dirfd(d), de->d_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
            !flock(fd, LOCK_EX | LOCK_NB) && pread(fd, &p, sizeof p, 0) == sizeof p && p.magic == WITNESS_MAGIC &&
            store_is_gone(&p))
            unlinkat(dirfd(d), de->d_name, 0);
    }
    if (d)
        closedir(d);
}

/* Where the store lies, for later sweeps. */
static void put_place(const struct engine *e, struct page *p)
{
    char link[40], dir[sizeof p->dir];
    struct stat st;
    ssize_t n;

    snprintf(link, sizeof link, "/proc/self/fd/%d", e->dir_fd);
    n = readlink(link, p->dir, sizeof p->dir);
    if (n < 0 || n == (ssize_t)sizeof p->dir || fstat(e->dir_fd, &st)) {
        p->dir[0] = 0;
        return;
    }
    p->dev = st.st_dev;
    strcpy(dir, p->dir);
    for (unsigned i = 0; i < LEVELS && go_up(dir); i++)
        if (!stat(dir, &st))
            p->above[i] = (struct place){st.st_dev, st.st_ino};
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
    struct page p;
    if (fd < 0 || pread(fd, &p, sizeof p, 0) < (ssize_t)offsetof(struct page, dev) || p.magic != WITNESS_MAGIC ||
        memcmp(p.uuid, e->super.uuid, sizeof p.uuid))
        return 0;
    *ret_run = p.run;
    *ret_last = atomic_load(&p.last);
    return 1;
}

/* The page is there before it is touched: a full memory is an error here, not a signal at a commit. */
static struct page *new_page(int fd)
{
    struct page *p = MAP_FAILED;

    if (fd >= 0 && !flock(fd, LOCK_SH) && !posix_fallocate(fd, 0, sizeof *p))
        p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

struct witness *witness_start(struct engine *e, uint64_t last)
{
    struct witness *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    witness_remove(e); /* of another process that may still have it mapped */
    w->fd = open_ours(e, O_RDWR | O_CREAT | O_EXCL);
    w->page = new_page(w->fd);
    if (!w->page) {
        witness_remove(e);
        witness_close(w);
        return NULL;
    }
    memcpy(w->page->uuid, e->super.uuid, sizeof w->page->uuid);
    w->page->run = e->super.run;
    atomic_store(&w->page->last, last);
    put_place(e, w->page);
    w->page->magic = WITNESS_MAGIC;
    sweep();
    return w;
}

void witness_set(struct witness *w, uint64_t last)
{
    if (w)
        atomic_store_explicit(&w->page->last, last, memory_order_relaxed);
}

void witness_close(struct witness *w)
{
    if (!w)
        return;
    if (w->page)
        munmap(w->page, sizeof *w->page);
    if (w->fd >= 0)
        close(w->fd);
    free(w);
}

void witness_remove(struct engine *e)
{
    char path[64];
    path_of(e, path);
    unlink(path);
}
