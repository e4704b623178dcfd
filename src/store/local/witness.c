/*
 * A page of shared memory with the LSN of the newest commit. It outlives the process, not the operating system, and lies
 * on no disk. So the next process can tell whether it sees all that was committed: a disk that was pulled and put back, or
 * a copy from an earlier moment that was put in the store's place, ends before. Where there is no shared memory there is
 * no witness, and only what the files themselves say counts.
 */
#include "parts.h"

#include "base/endian.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define WITNESS_MAGIC 0x57545350u /* "PSTW" */

struct witness {
    uint32_t magic, zero;
    uint8_t uuid[16];
    uint64_t run;
    _Atomic uint64_t last;
};

static void path_of(const struct engine *e, char ret[64])
{
    int n = snprintf(ret, 64, "/dev/shm/penstock-");
    for (int i = 0; i < 16; i++)
        n += snprintf(ret + n, 64 - (size_t)n, "%02x", e->super.uuid[i]);
}

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
    if (fd < 0 || pread(fd, &w, sizeof w, 0) != sizeof w || w.magic != WITNESS_MAGIC ||
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
