/*
 * Reads a directory tree back through the C API and compares it with the original: names, attributes, targets, bytes.
 * An example of penstock.h: listing with attributes, and asynchronous reads into registered memory.
 *
 * usage: verify_tree URL PATH-IN-CONTAINER ORIGINAL-DIRECTORY      exit 0: identical
 */
#include <penstock/penstock.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PARTS     8                /* reads under way at once */
#define PART_SIZE (1024u * 1024u)

static struct pst_fs *fs;
static struct pst_eq *eq;
static char *memory; /* PARTS * PART_SIZE bytes, registered */
static unsigned long long entries, bytes, differences;

static void differs(const char *path, const char *what)
{
    if (differences++ < 20)
        printf("%s: %s\n", path, what);
}

static int compare_part(FILE *original, uint64_t offset, const char *got, size_t n)
{
    static char want[PART_SIZE];
    return fseeko(original, (off_t)offset, SEEK_SET) || fread(want, 1, n, original) != n || memcmp(want, got, n);
}

/* Keeps up to PARTS reads in flight; each part's number is the cookie. */
static void compare_file(const char *path, const char *original_path, uint64_t size)
{
    FILE *original = fopen(original_path, "rb");
    struct pst_file *f;
    uint64_t next = 0, offset_of[PARTS];
    unsigned int idle[PARTS], nidle = 0, busy = 0;
    int r = pst_open(fs, path, O_RDONLY, 0, &f), bad = 0;

    if (!original || r) {
        differs(path, original ? pst_last_error() : "cannot open the original");
        if (original)
            fclose(original);
        return;
    }
    for (unsigned int i = 0; i < PARTS; i++)
        idle[nidle++] = i;
    while (busy || (next < size && !bad)) {
        struct pst_event ev;
        while (nidle && next < size && !bad) {
            unsigned int i = idle[--nidle];
            struct iovec iov = {memory + i * PART_SIZE, size - next < PART_SIZE ? size - next : PART_SIZE};
            offset_of[i] = next;
            if (pst_aio_read(f, &iov, 1, next, eq, (void *)(uintptr_t)i)) {
                idle[nidle++] = i;
                bad = 1;
                break;
            }
            next += iov.iov_len;
            busy++;
        }
        if (busy && pst_eq_poll(eq, &ev, 1, -1) == 1) {
            unsigned int i = (unsigned int)(uintptr_t)ev.cookie;
            uint64_t want = size - offset_of[i] < PART_SIZE ? size - offset_of[i] : PART_SIZE;
            if (ev.result != (int64_t)want ||
                compare_part(original, offset_of[i], memory + i * PART_SIZE, (size_t)want))
                bad = 1;
            idle[nidle++] = i;
            busy--;
        }
    }
    if (bad)
        differs(path, "bytes differ");
    bytes += size;
    pst_close(f);
    fclose(original);
}

static void compare(const char *path, const char *original, const struct stat *st);

static void compare_directory(const char *path, const char *original)
{
    struct pst_dir *dir;
    struct pst_entry e;
    struct dirent *d;
    DIR *od = opendir(original);
    long long here = 0, there = 0;
    int r = pst_opendir(fs, path, PST_DIR_STAT, &dir);

    if (r || !od) {
        differs(path, r ? pst_last_error() : "cannot list the original");
        if (od)
            closedir(od);
        return;
    }
    while ((r = pst_readdir(dir, &e)) == 1) {
        char *p, *o;
        if (asprintf(&p, "%s/%s", path, e.name) < 0 || asprintf(&o, "%s/%s", original, e.name) < 0)
            abort();
        compare(p, o, &e.st);
        free(p);
        free(o);
        here++;
    }
    while ((d = readdir(od)))
        there += strcmp(d->d_name, ".") && strcmp(d->d_name, "..");
    if (r || here != there)
        differs(path, r ? pst_last_error() : "the number of entries differs");
    closedir(od);
    pst_closedir(dir);
}

static void compare(const char *path, const char *original, const struct stat *st)
{
    struct stat o;
    char a[4096], b[4096];

    entries++;
    if (lstat(original, &o)) {
        differs(path, "not in the original");
        return;
    }
    if (o.st_mode != st->st_mode || o.st_uid != st->st_uid || o.st_gid != st->st_gid)
        differs(path, "mode or owner differs");
    if (!S_ISDIR(o.st_mode) && (o.st_size != st->st_size || o.st_mtim.tv_sec != st->st_mtim.tv_sec ||
                                o.st_mtim.tv_nsec != st->st_mtim.tv_nsec))
        differs(path, "size or time differs");
    if (S_ISDIR(st->st_mode)) {
        compare_directory(path, original);
    } else if (S_ISREG(st->st_mode)) {
        compare_file(path, original, (uint64_t)st->st_size);
    } else if (S_ISLNK(st->st_mode)) {
        int64_t n = pst_readlink(fs, path, a, sizeof a);
        ssize_t m = readlink(original, b, sizeof b);
        if (n < 0 || n != m || memcmp(a, b, (size_t)n))
            differs(path, "target differs");
    }
}

int main(int argc, char **argv)
{
    struct timespec t0, t1;
    struct pst_buf *buf;
    struct stat st;
    double s;

    if (argc != 4) {
        fprintf(stderr, "usage: verify_tree URL PATH-IN-CONTAINER ORIGINAL-DIRECTORY\n");
        return 2;
    }
    if (pst_connect(argv[1], NULL, &fs)) {
        fprintf(stderr, "verify_tree: %s\n", pst_last_error());
        return 3;
    }
    if (posix_memalign((void **)&memory, 4096, PARTS * PART_SIZE) || pst_eq_create(fs, PARTS, &eq) ||
        pst_buf_register(fs, memory, PARTS * PART_SIZE, &buf) || pst_lstat(fs, argv[2], &st)) {
        fprintf(stderr, "verify_tree: %s\n", pst_last_error());
        return 1;
    }
    clock_gettime(CLOCK_MONOTONIC, &t0);
    compare(argv[2], argv[3], &st);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    s = (double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) / 1e9;
    printf("%llu entries, %llu bytes, %llu differences; %.0f entries/s, %.1f MB/s\n", entries, bytes, differences,
           (double)entries / s, (double)bytes / s / 1e6);
    pst_eq_destroy(eq);
    pst_buf_unregister(buf);
    free(memory);
    return pst_disconnect(fs) || differences ? 1 : 0;
}
