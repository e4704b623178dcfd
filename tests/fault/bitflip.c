/*
 * Bit rot: one bit of a store's files is flipped, anywhere. Whatever is opened and read after that is right, or an
 * error; never wrong data, never a name that silently is not there, never a crash.
 *
 * usage: bitflip FLIPS [SEED]
 */
#include "base/err.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/util.h"
#include "local/local_store.h"
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* The plain build runs the whole sample, the sanitizers' builds a part of it. */
#ifdef __SANITIZE_ADDRESS__
#define FLIPS          100
#define FLIPS_EXTENDED 1000
#else
#define FLIPS          500
#define FLIPS_EXTENDED 10000
#endif

#define DIRS  4
#define FILES 12
#define BIG   (300 * KiB)

/* How a child ends. */
enum { RIGHT = 0, REFUSED = 10, READ_ERROR = 11, WRONG = 1 };

static const struct pst_ctx trusted;

static void wrong(const char *what, int d, int f)
{
    fprintf(stderr, "WRONG: %s in d%d/f%d\n", what, d, f);
    _exit(WRONG);
}

static size_t file_len(int d, int f)
{
    return f == 0 ? BIG : (size_t)(d * 1000 + f * 777);
}

static void fill(uint8_t *p, size_t len, int d, int f)
{
    struct rng r;
    rng_seed(&r, (uint64_t)(d * FILES + f + 1));
    rng_fill(&r, p, len);
}

static int open_all(const char *dir, bool create, struct pst_store **st, struct pst_cont **c, struct pst_queue **q)
{
    char url[512], err[512];
    struct pst_option opts[] = {{"create", create ? "1" : "0"}, {"size", "32M"}, {"sync_ms", "100"}};
    struct pst_pool_info pool = {.label = "p", .mode = 0777}, pi;
    struct pst_cont_props props = {.chunk_size = 64 * KiB};
    struct pst_cont_info ci;
    int r;

    snprintf(url, sizeof url, "local:%s", dir);
    r = pst_backend_open(url, opts, ARRAY_SIZE(opts), st, err, sizeof err);
    if (!r && create)
        r = pst_pool_create(*st, &trusted, &pool, &pi);
    if (!r && create)
        r = pst_cont_create(*st, &trusted, "p", "c", &props, &ci);
    if (!r)
        r = pst_cont_open(*st, &trusted, "p", "c", c);
    return r ? r : pst_queue_open(*st, 8, q);
}

static int64_t data_op(struct pst_queue *q, struct pst_cont *c, enum pst_op_kind kind, uint64_t ino, uint8_t *buf,
                       size_t len)
{
    struct iovec iov = {buf, len};
    struct pst_op op = {.kind = kind, .cont = c, .ino = ino, .length = len, .iov = &iov, .iovcnt = len ? 1 : 0};
    return pst_queue_run(q, &op);
}

/* Makes the store; `crash`: ends without closing it, so that the log has the changes. */
static void make_store(const char *dir, bool crash)
{
    struct pst_store *st;
    struct pst_cont *c;
    struct pst_queue *q;
    uint8_t *buf = malloc(BIG);
    pid_t pid = fork();
    int status, r;

    if (pid) {
        free(buf);
        waitpid(pid, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status)) {
            fprintf(stderr, "cannot make the store\n");
            exit(1);
        }
        return;
    }
    r = open_all(dir, true, &st, &c, &q);
    for (int d = 0; d < DIRS && !r; d++) {
        char name[16];
        struct pst_new nd = {.mode = S_IFDIR | 0755}, nf = {.mode = S_IFREG | 0644};
        struct pst_attr da, fa;
        snprintf(name, sizeof name, "d%d", d);
        r = pst_store_make(c, &trusted, PST_ROOT_INO, name, &nd, &da, NULL);
        for (int f = 0; f < FILES && !r; f++) {
            snprintf(name, sizeof name, "f%d", f);
            r = pst_store_make(c, &trusted, da.ino, name, &nf, &fa, NULL);
            fill(buf, file_len(d, f), d, f);
            if (!r && file_len(d, f) && data_op(q, c, PST_OP_WRITE, fa.ino, buf, file_len(d, f)) < 0)
                r = -EIO;
            if (!r)
                r = pst_store_setxattr(c, &trusted, fa.ino, "user.name", name, strlen(name), 0);
        }
    }
    if (!r)
        r = (int)data_op(q, c, PST_OP_SYNCFS, PST_ROOT_INO, NULL, 0);
    if (r < 0)
        fprintf(stderr, "make: %s\n", err_name(r));
    if (crash)
        usleep(400000); /* idle for a moment: the log's end is marked as such, so that damage to it is noticed */
    if (r < 0 || crash)
        _exit(r < 0);
    pst_queue_close(q);
    pst_cont_close(c);
    pst_store_close(st);
    _exit(0);
}

/* An error that a damaged store may give. -ENOENT is not one: that would be a silent loss. */
static bool honest(int64_t r)
{
    return r == -EIO;
}

static int count_fn(const struct pst_dirent *de, void *user)
{
    (void)de;
    ++*(int *)user;
    return 0;
}

static void read_file(struct pst_cont *c, struct pst_queue *q, uint64_t dir, int d, int f, bool *ret_error)
{
    static uint8_t got[BIG + 1], want[BIG];
    char name[16], value[16];
    struct pst_attr a;
    int64_t r;

    snprintf(name, sizeof name, "f%d", f);
    r = pst_store_lookup(c, &trusted, dir, name, &a);
    if (!r && a.size != file_len(d, f))
        wrong("size", d, f);
    if (!r) {
        r = data_op(q, c, PST_OP_READ, a.ino, got, file_len(d, f) + 1);
        fill(want, file_len(d, f), d, f);
        if (r >= 0 && (r != (int64_t)file_len(d, f) || memcmp(got, want, file_len(d, f))))
            wrong("bytes", d, f);
    }
    if (r >= 0) {
        r = pst_store_getxattr(c, &trusted, a.ino, "user.name", value, sizeof value);
        if (r >= 0 && ((size_t)r != strlen(name) || memcmp(value, name, (size_t)r)))
            wrong("xattr", d, f);
    }
    if (r < 0 && !honest(r))
        wrong(err_name((int)r), d, f);
    *ret_error |= r < 0;
}

static void read_all(const char *dir)
{
    struct pst_store *st;
    struct pst_cont *c;
    struct pst_queue *q;
    bool error = false;
    int r = open_all(dir, false, &st, &c, &q);

    if (r)
        _exit(r == -ENOENT ? WRONG : REFUSED);
    for (int d = 0; d < DIRS; d++) {
        char name[16];
        struct pst_attr a;
        int n = 0;
        snprintf(name, sizeof name, "d%d", d);
        r = pst_store_lookup(c, &trusted, PST_ROOT_INO, name, &a);
        if (r && !honest(r))
            wrong(err_name(r), d, -1);
        error |= r != 0;
        if (r)
            continue;
        r = pst_store_readdir(c, &trusted, a.ino, 0, false, count_fn, &n);
        if (r ? !honest(r) : n != FILES)
            wrong("listing", d, -1);
        error |= r != 0;
        for (int f = 0; f < FILES; f++)
            read_file(c, q, a.ino, d, f, &error);
    }
    if (error) { /* what a read meets, scrub or check must find too */
        volatile bool cancel = false;
        int64_t n = pst_store_scrub(st, NULL, NULL, &cancel);
        if (n == 0) {
            fprintf(stderr, "WRONG: scrub finds nothing where a read failed\n");
            _exit(WRONG);
        }
    }
    pst_queue_close(q);
    pst_cont_close(c);
    pst_store_close(st);
    _exit(error ? READ_ERROR : RIGHT);
}

/* ---- which byte ---- */

static struct {
    char path[64][512];
    uint64_t size[64];
    int n;
} files;

static int collect(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)ftw;
    if (type == FTW_F && st->st_size && files.n < 64) {
        snprintf(files.path[files.n], sizeof files.path[0], "%s", path);
        files.size[files.n++] = (uint64_t)st->st_size;
    }
    return 0;
}

/*
 * A byte that is not in a hole. Each file has the same chance, so that small ones get their share; the data file, where
 * most of a real disk's rot would be, has a third of all.
 */
static void flip(const char *dir, struct rng *r, char *ret_text, size_t size)
{
    files.n = 0;
    nftw(dir, collect, 8, FTW_PHYS);
    for (int tries = 0; tries < 10000; tries++) {
        int f = (int)rng_below(r, (uint64_t)files.n);
        bool in_data = rng_below(r, 3) == 0;
        for (int i = 0; in_data && i < files.n; i++)
            if (!strcmp(files.path[i] + strlen(dir), "/data"))
                f = i;
        uint64_t off = rng_below(r, files.size[f]);
        cleanup_close int fd = open(files.path[f], O_RDWR);
        off_t data = lseek(fd, (off_t)off, SEEK_DATA);
        uint8_t b, bit = (uint8_t)(1u << rng_below(r, 8));
        if (data < 0)
            continue;
        if ((uint64_t)data != off) /* in a hole: the page after it */
            off = (uint64_t)data + rng_below(r, min_u64(4096, files.size[f] - (uint64_t)data));
        if (pread(fd, &b, 1, (off_t)off) != 1)
            continue;
        b ^= bit;
        if (pwrite(fd, &b, 1, (off_t)off) != 1)
            continue;
        snprintf(ret_text, size, "%s byte %llu bit mask %u", files.path[f] + strlen(dir), (unsigned long long)off, bit);
        return;
    }
    abort();
}

static void run(const char *what, const char *a, const char *b)
{
    char cmd[1200];
    snprintf(cmd, sizeof cmd, "%s '%s' '%s'", what, a, b);
    if (system(cmd)) {
        fprintf(stderr, "failed: %s\n", cmd);
        exit(1);
    }
}

static void quiet(enum log_level level, const char *line, void *user)
{
    (void)level;
    (void)line;
    (void)user;
}

int main(int argc, char **argv)
{
    int flips = argc > 1 ? atoi(argv[1]) : getenv("PENSTOCK_EXTENDED") ? FLIPS_EXTENDED : FLIPS, n[256] = {0}, bad = 0;
    const char *env = getenv("PENSTOCK_SEED"), *tmp = getenv("TMPDIR");
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : env ? strtoull(env, NULL, 0) : 1;
    char base[256], clean[300], crashed[300], work[300], what[700];
    struct rng r;

    rng_seed(&r, seed);
    snprintf(base, sizeof base, "%s/penstock-bitflip.XXXXXX",
             tmp                        ? tmp
             : access("/dev/shm", W_OK) ? "/tmp"
                                        : "/dev/shm");
    if (!mkdtemp(base))
        return 1;
    snprintf(clean, sizeof clean, "%s/clean", base);
    snprintf(crashed, sizeof crashed, "%s/crashed", base);
    snprintf(work, sizeof work, "%s/work", base);
    pst_backend_register(&pst_local_backend);
    log_set_sink(quiet, NULL); /* each damage is logged, as it should be: thousands of lines */
    make_store(clean, false);
    make_store(crashed, true);
    for (int i = 0; i < flips; i++) {
        int status;
        pid_t pid;
        run("cp -r --sparse=always", rng_below(&r, 2) ? clean : crashed, work);
        flip(work, &r, what, sizeof what);
        pid = fork();
        if (pid == 0)
            read_all(work);
        waitpid(pid, &status, 0);
        if (WIFEXITED(status))
            n[WEXITSTATUS(status)]++;
        if (!WIFEXITED(status) || (WEXITSTATUS(status) != RIGHT && WEXITSTATUS(status) != REFUSED &&
                                   WEXITSTATUS(status) != READ_ERROR)) {
            printf("flip %d: %s: %s %d\n", i, what, WIFEXITED(status) ? "exit" : "signal",
                   WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
            bad++;
        }
        run("rm -rf", work, work);
    }
    run("rm -rf", base, base);
    printf("seed %llu, %d flips: %d read right, %d refused at open, %d read errors, %d wrong\n",
           (unsigned long long)seed, flips, n[RIGHT], n[REFUSED], n[READ_ERROR], bad);
    return bad != 0;
}
