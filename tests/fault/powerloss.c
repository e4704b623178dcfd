/*
 * Loss of power: a writer works on a store that lies on the recording file system (recfs.h), and marks in the trace
 * what the store has acknowledged as durable. For many moments of the trace the disk is built as a power loss may leave
 * it, the store is opened on it, and everything acknowledged before that moment must be there, whole, and `check`
 * clean. One series with all flushes removed must fail: else this test would prove nothing.
 *
 * With PENSTOCK_TEST_FILTERS, filters separated by spaces lie on the store. A write is whole per chunk there, so that
 * what is overwritten and appended stays within chunks.
 *
 * The same writer is also killed (SIGKILL) at random moments on an ordinary file system, where its marks go to a file.
 *
 * usage: powerloss power|kill [STATES [SEED]]
 */
#include "recfs.h"

#include "base/err.h"
#include "base/util.h"
#include "filter/filter.h"
#include "local/local_store.h"
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* The plain build runs the whole sample, the sanitizers' builds a part of it. */
#ifdef __SANITIZE_ADDRESS__
#define POWER_STATES          30
#define KILLS                 5
#define POWER_STATES_EXTENDED 1000
#define KILLS_EXTENDED        100
#else
#define POWER_STATES          200
#define KILLS                 20
#define POWER_STATES_EXTENDED 10000
#define KILLS_EXTENDED        1000
#endif

#define STATES_PER_WRITER 500 /* then another one works on a new store */

#define SLOTS      12
#define WRITER_OPS 600

static void die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    _exit(1);
}

static const struct pst_ctx trusted;

/* What a slot does. Lengths cross block and chunk edges. */
enum slot_kind { OVERWRITE, APPEND, REPLACE, RENAME, XATTR };
static enum slot_kind slot_kind(int s)
{
    return s < 4 ? OVERWRITE : s < 6 ? APPEND : s < 9 ? REPLACE : s < 10 ? RENAME : XATTR;
}

#define APPENDS_END 6
static const char *filters; /* separated by spaces; NULL: none */

static size_t slot_len(int s)
{
    /* The attributes are long so that the log fills and checkpoints happen. */
    static const size_t len[SLOTS] = {100, 5000, 70001, 300000, 333, 9000, 4096, 10, 150000, 77, 65000, 60000};
    static const size_t within[APPENDS_END] = {100, 5000, 60001, 40000, 512, 8192};
    return filters && s < APPENDS_END ? within[s] : len[s];
}

/* The bytes of version v of slot s: the version first, then a stream that depends on both. */
static void fill(uint8_t *p, size_t len, int s, uint64_t v)
{
    struct rng r;
    rng_seed(&r, v * SLOTS + (uint64_t)s);
    rng_fill(&r, p, len);
    memcpy(p, &v, min_u64(len, sizeof v));
}

struct work {
    struct pst_store *st;
    struct pst_cont *c;
    struct pst_queue *q;
    int ack_fd;
    uint8_t *buf;
};

/* Of the same boot, but after a loss of power it is of another: the store would not read it. */
static bool recent;

static void push_filters(struct work *w)
{
    char copy[300], err[256] = "", *save = NULL;

    snprintf(copy, sizeof copy, "%s", filters ? filters : "");
    for (char *f = strtok_r(copy, " ", &save); f; f = strtok_r(NULL, " ", &save))
        if (filter_push(f, w->st, &w->st, err, sizeof err))
            die("%s", err);
}

static void open_store(struct work *w, const char *dir, bool create)
{
    char url[512], err[512] = "";
    struct pst_option opts[] = {
        {"create", create ? "1" : "0"}, {"size", "64M"}, {"sync_ms", "200"}, {"recent", recent ? "1" : "0"}};
    struct pst_pool_info pool = {.label = "p", .mode = 0777};
    struct pst_cont_props props = {.chunk_size = 64 * KiB};
    int r;

    snprintf(url, sizeof url, "local:%s", dir);
    r = pst_backend_open(url, opts, ARRAY_SIZE(opts), &w->st, err, sizeof err);
    if (r)
        die("open %s: %s: %s", dir, err_name(r), err);
    push_filters(w);
    if (create) {
        struct pst_pool_info pi;
        struct pst_cont_info ci;
        r = pst_pool_create(w->st, &trusted, &pool, &pi);
        if (!r)
            r = pst_cont_create(w->st, &trusted, "p", "c", &props, &ci);
        if (r)
            die("create container: %s", err_name(r));
    }
    r = pst_cont_open(w->st, &trusted, "p", "c", &w->c);
    if (r)
        die("open container: %s", err_name(r));
    if (pst_queue_open(w->st, 8, &w->q))
        die("queue");
    w->buf = malloc(4 * MiB);
}

static void close_store(struct work *w)
{
    pst_queue_close(w->q);
    pst_cont_close(w->c);
    pst_store_close(w->st);
    free(w->buf);
}

static int64_t data_op(struct work *w, enum pst_op_kind kind, uint64_t ino, uint64_t off, size_t len, uint32_t flags)
{
    struct iovec iov = {w->buf, len};
    struct pst_op op = {.kind = kind,
                        .flags = flags,
                        .cont = w->c,
                        .ino = ino,
                        .offset = off,
                        .length = len,
                        .iov = &iov,
                        .iovcnt = len ? 1 : 0};
    return pst_queue_run(w->q, &op);
}

/* Lines of one size that divides a page: the kernel hands each to the recording layer in one piece. */
static void mark(struct work *w, const char *what, int slot, uint64_t v)
{
    char line[64 + 1];
    int n = snprintf(line, sizeof line, "%s %d %llu", what, slot, (unsigned long long)v);
    memset(line + n, ' ', sizeof line - (size_t)n);
    line[63] = '\n';
    if (pwrite(w->ack_fd, line, 64, 0) != 64)
        die("mark: %s", strerror(errno));
}

static void must(int64_t r, const char *what)
{
    if (r < 0)
        die("writer: %s: %s", what, err_name((int)r));
}

static uint64_t make_file(struct work *w, const char *name)
{
    struct pst_new in = {.mode = S_IFREG | 0644};
    struct pst_attr a;
    must(pst_store_make(w->c, &trusted, PST_ROOT_INO, name, &in, &a, NULL), "make");
    return a.ino;
}

/* Step v of a slot: the change, then its fsync. */
static void step(struct work *w, int s, uint64_t v)
{
    char name[32], tmp[40];
    struct pst_attr a;
    uint64_t ino;

    snprintf(name, sizeof name, "s%d", s);
    snprintf(tmp, sizeof tmp, "s%d.tmp", s);
    fill(w->buf, slot_len(s), s, v);
    switch (slot_kind(s)) {
    case OVERWRITE:
        ino = make_file(w, name);
        must(data_op(w, PST_OP_WRITE, ino, 0, slot_len(s), 0), "write");
        break;
    case APPEND:
        ino = make_file(w, name);
        must(data_op(w, PST_OP_WRITE, ino, 0, slot_len(s), PST_OPF_APPEND), "append");
        break;
    case REPLACE:
        ino = make_file(w, tmp);
        must(data_op(w, PST_OP_WRITE, ino, 0, slot_len(s), 0), "write");
        must(data_op(w, PST_OP_FSYNC, ino, 0, 0, 0), "fsync");
        must(pst_store_rename(w->c, &trusted, PST_ROOT_INO, tmp, PST_ROOT_INO, name, 0), "rename");
        break;
    case XATTR:
        ino = make_file(w, name);
        must(pst_store_setxattr(w->c, &trusted, ino, "user.v", w->buf, slot_len(s), 0), "setxattr");
        break;
    default: /* RENAME: n.<v-1> becomes n.<v> */
        snprintf(tmp, sizeof tmp, "n.%llu", (unsigned long long)v - 1);
        snprintf(name, sizeof name, "n.%llu", (unsigned long long)v);
        if (v == 1)
            ino = make_file(w, name);
        else
            must(pst_store_rename(w->c, &trusted, PST_ROOT_INO, tmp, PST_ROOT_INO, name, 0), "rename");
        must(pst_store_lookup(w->c, &trusted, PST_ROOT_INO, name, &a), "lookup");
        ino = a.ino;
    }
    must(data_op(w, PST_OP_FSYNC, slot_kind(s) == REPLACE || slot_kind(s) == RENAME ? PST_ROOT_INO : ino, 0, 0, 0),
         "fsync");
}

static void writer(const char *dir, const char *ack, uint64_t seed)
{
    struct work w = {.ack_fd = open(ack, O_WRONLY | O_APPEND)};
    uint64_t version[SLOTS] = {0};
    struct rng r;

    if (w.ack_fd < 0)
        die("open %s: %s", ack, strerror(errno));
    rng_seed(&r, seed);
    open_store(&w, dir, true);
    must(data_op(&w, PST_OP_SYNCFS, PST_ROOT_INO, 0, 0, 0), "syncfs");
    mark(&w, "ready", 0, 0);
    for (int i = 0; i < WRITER_OPS; i++) {
        int s = (int)rng_below(&r, SLOTS);
        uint64_t v = ++version[s];
        mark(&w, "begin", s, v);
        step(&w, s, v);
        mark(&w, "done", s, v);
    }
    close_store(&w);
    _exit(0);
}

/* ---- what must be there ---- */

struct promise {
    bool ready;
    uint64_t begun[SLOTS], done[SLOTS];
};

static void on_mark(void *user, const char *text)
{
    struct promise *p = user;
    unsigned long long v;
    int s;
    if (sscanf(text, "begin %d %llu", &s, &v) == 2)
        p->begun[s] = v;
    else if (sscanf(text, "done %d %llu", &s, &v) == 2)
        p->done[s] = v;
    else
        p->ready = true;
}

static void verify_whole(struct work *w, const struct promise *p, int s, const struct pst_attr *a)
{
    uint8_t *want = w->buf + 2 * MiB;
    size_t len = slot_len(s);
    uint64_t v = 0;

    int64_t n = slot_kind(s) == XATTR ? pst_store_getxattr(w->c, &trusted, a->ino, "user.v", w->buf, len)
                                      : data_op(w, PST_OP_READ, a->ino, 0, len + 1, 0);

    if (p->done[s] == 0 && (n == 0 || n == -ENODATA))
        return; /* made, not yet written: nothing was promised */
    if (n != (int64_t)len)
        die("slot %d: %lld bytes, not %zu", s, (long long)n, len);
    memcpy(&v, w->buf, min_u64(len, sizeof v));
    if (v < p->done[s] || v > p->begun[s])
        die("slot %d: version %llu, acknowledged %llu, begun %llu", s, (unsigned long long)v,
            (unsigned long long)p->done[s], (unsigned long long)p->begun[s]);
    fill(want, len, s, v);
    if (memcmp(w->buf, want, len))
        die("slot %d: version %llu is not whole", s, (unsigned long long)v);
}

static void verify_appends(struct work *w, const struct promise *p, int s, const struct pst_attr *a)
{
    uint8_t *want = w->buf + 2 * MiB;
    size_t len = slot_len(s);
    uint64_t n = a->size / len;

    if (a->size % len || n < p->done[s] || n > p->begun[s])
        die("slot %d: %llu bytes after %llu acknowledged appends of %zu", s, (unsigned long long)a->size,
            (unsigned long long)p->done[s], len);
    for (uint64_t v = 1; v <= n; v++) {
        fill(want, len, s, v);
        if (data_op(w, PST_OP_READ, a->ino, (v - 1) * len, len, 0) != (int64_t)len || memcmp(w->buf, want, len))
            die("slot %d: append %llu is wrong", s, (unsigned long long)v);
    }
}

static void verify_rename(struct work *w, const struct promise *p, int s)
{
    char name[32];
    struct pst_attr a;
    int found = 0;

    for (uint64_t v = p->done[s] ? p->done[s] : 1; v <= p->begun[s]; v++) {
        snprintf(name, sizeof name, "n.%llu", (unsigned long long)v);
        found += !pst_store_lookup(w->c, &trusted, PST_ROOT_INO, name, &a);
    }
    if (found > 1 || (p->done[s] && found != 1))
        die("slot %d: %d names of one object", s, found);
}

static int damage;
static void on_finding(void *user, const char *line)
{
    (void)user;
    fprintf(stderr, "check: %s\n", line);
    damage++;
}

static void verify(const char *dir, const struct promise *p)
{
    struct work w = {0};
    struct pst_check_opts opts = {.data = true, .report = on_finding};
    char err[256] = "";
    int64_t r;

    open_store(&w, dir, false);
    for (int s = 0; s < SLOTS; s++) {
        char name[32];
        struct pst_attr a;
        snprintf(name, sizeof name, "s%d", s);
        if (slot_kind(s) == RENAME) {
            verify_rename(&w, p, s);
            continue;
        }
        r = pst_store_lookup(w.c, &trusted, PST_ROOT_INO, name, &a);
        if (r == -ENOENT && p->done[s] == 0)
            continue;
        if (r)
            die("slot %d: %s", s, err_name((int)r));
        if (slot_kind(s) == APPEND)
            verify_appends(&w, p, s, &a);
        else
            verify_whole(&w, p, s, &a);
    }
    close_store(&w);
    r = pst_local_check(dir, &opts, err, sizeof err);
    if (r || damage)
        die("check: %s %s, %d findings", r < 0 ? err_name((int)r) : "", err, damage);
    _exit(0);
}

/* In a child of its own. */
static pid_t verify_begin(const char *store, const struct promise *p, bool quiet)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (quiet && !freopen("/dev/null", "w", stderr))
            _exit(1);
        verify(store, p);
    }
    return pid;
}

/* True if all is right. */
static bool verify_end(pid_t pid)
{
    int st;
    waitpid(pid, &st, 0);
    return WIFEXITED(st) && WEXITSTATUS(st) == 0;
}

static void clean(const char *dir)
{
    char cmd[600];
    snprintf(cmd, sizeof cmd, "rm -rf '%s' && mkdir -p '%s'", dir, dir);
    if (system(cmd))
        die("cannot clean %s", dir);
}

static pid_t state_begin(const struct recfs *fs, size_t at, uint64_t seed, int ignore_flushes, const char *dir,
                         bool quiet)
{
    struct promise p = {0};
    struct rng r;
    char sub[512];

    clean(dir);
    rng_seed(&r, seed);
    recfs_acks(fs, at, on_mark, &p);
    if (recfs_crash(fs, at, &r, ignore_flushes, dir))
        die("cannot build the disk");
    snprintf(sub, sizeof sub, "%s/store", dir);
    return verify_begin(sub, &p, quiet);
}

/* The writer on an ordinary file system, killed after a random time. */
static bool killed_ok(struct rng *r, const char *dir)
{
    struct promise p = {0};
    char store[400], ack[400], line[80];
    uint64_t seed = rng_u64(r), us = rng_below(r, 700000);
    pid_t pid;
    FILE *f;

    clean(dir);
    snprintf(store, sizeof store, "%s/store", dir);
    snprintf(ack, sizeof ack, "%s/ack", dir);
    close(open(ack, O_CREAT | O_WRONLY, 0600));
    pid = fork();
    if (pid == 0)
        writer(store, ack, seed);
    usleep((useconds_t)us);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    f = fopen(ack, "r");
    while (f && fgets(line, sizeof line, f))
        on_mark(&p, line);
    if (f)
        fclose(f);
    return !p.ready || verify_end(verify_begin(store, &p, false));
}

static struct recfs *record(const char *base, uint64_t seed)
{
    char mnt[300], sub[400], ack[400];
    struct recfs *fs;
    pid_t pid;
    int st, go[2];
    char one = 1;

    snprintf(mnt, sizeof mnt, "%s/mnt", base);
    snprintf(sub, sizeof sub, "%s/store", mnt);
    snprintf(ack, sizeof ack, "%s/ack", mnt);
    mkdir(mnt, 0755);
    /* Before the mount's thread: a sanitizer's allocator may be locked by it at the moment of a fork. */
    if (pipe2(go, O_CLOEXEC))
        die("pipe");
    pid = fork();
    if (pid == 0) {
        close(go[1]);
        if (read(go[0], &one, 1) != 1)
            _exit(0);
        writer(sub, ack, seed);
    }
    close(go[0]);
    fs = recfs_mount(mnt);
    if (!fs) {
        fprintf(stderr, "skipped: cannot mount FUSE here: %s\n", strerror(errno));
        exit(77);
    }
    if (write(go[1], &one, 1) != 1)
        die("the writer is gone");
    close(go[1]);
    waitpid(pid, &st, 0);
    recfs_unmount(fs);
    rmdir(mnt);
    if (!WIFEXITED(st) || WEXITSTATUS(st))
        die("the writer failed");
    return fs;
}

/* The first moment at which the store was ready: before it there is nothing to keep. */
static size_t first_moment(const struct recfs *fs)
{
    size_t lo = 0, hi = recfs_length(fs);
    while (lo < hi) {
        struct promise p = {0};
        size_t mid = (lo + hi) / 2;
        recfs_acks(fs, mid, on_mark, &p);
        if (p.ready)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* A state whose store is being looked at while the next one is built. */
struct under_way {
    char disk[300];
    pid_t pid; /* 0: none */
    size_t at;
};

/* The disk of a wrong one is kept: another run of the same seed differs in its timing. */
static int state_end(struct under_way *u, const char *base)
{
    char kept[300];
    bool ok = !u->pid || verify_end(u->pid);

    u->pid = 0;
    if (ok)
        return 0;
    snprintf(kept, sizeof kept, "%s/wrong-XXXXXX", base);
    if (!mkdtemp(kept) || rename(u->disk, kept))
        die("cannot keep %s: %s", u->disk, strerror(errno));
    printf("wrong after entry %zu: kept in %s\n", u->at, kept);
    fflush(stdout);
    return 1;
}

/* The states of one writer; the number that is wrong. *ret_caught: without flushes a loss is noticed. */
static int power_of_writer(const char *base, int states, uint64_t seed, bool *ret_caught)
{
    struct under_way two[2] = {0};
    int failed = 0;
    bool caught = false;
    struct recfs *fs = record(base, seed);
    size_t first = first_moment(fs), span = recfs_length(fs) - first + 1;
    struct rng r;

    rng_seed(&r, seed);
    for (int i = 0; i < 2; i++)
        snprintf(two[i].disk, sizeof two[i].disk, "%s/disk%d", base, i);
    printf("seed %llu, %zu changes and flushes recorded, %d states\n", (unsigned long long)seed, recfs_length(fs),
           states);
    fflush(stdout);
    for (int i = 0; i < states; i++) {
        struct under_way *u = &two[i & 1];
        failed += state_end(u, base);
        u->at = first + rng_below(&r, span);
        u->pid = state_begin(fs, u->at, rng_u64(&r), 0, u->disk, false);
    }
    failed += state_end(&two[0], base) + state_end(&two[1], base);
    for (int i = 0; i < 20 && !caught; i++)
        caught =
            !verify_end(state_begin(fs, first + span / 2 + rng_below(&r, span / 2), rng_u64(&r), 1, two[0].disk, true));
    recfs_free(fs);
    *ret_caught = caught;
    return failed;
}

static int power_main(const char *base, int states, uint64_t seed)
{
    int failed = 0;
    bool caught = true, c;

    for (int done = 0; done < states; done += STATES_PER_WRITER, caught &= c)
        failed +=
            power_of_writer(base, states - done < STATES_PER_WRITER ? states - done : STATES_PER_WRITER, seed++, &c);
    printf("%d of %d states wrong; without flushes %s\n", failed, states,
           caught ? "a loss is noticed" : "NOTHING is noticed");
    return failed || !caught;
}

static int kill_main(const char *base, int states, uint64_t seed)
{
    char disk[300];
    int failed = 0;
    struct rng r;

    rng_seed(&r, seed);
    snprintf(disk, sizeof disk, "%s/disk", base);
    for (int i = 0; i < states; i++)
        failed += !killed_ok(&r, disk);
    printf("seed %llu, killed %d times, %d wrong\n", (unsigned long long)seed, states, failed);
    return failed != 0;
}

int main(int argc, char **argv)
{
    bool power = argc > 1 && !strcmp(argv[1], "power"), extended = getenv("PENSTOCK_EXTENDED") != NULL;
    int states = argc > 2 ? atoi(argv[2])
                 : power  ? (extended ? POWER_STATES_EXTENDED : POWER_STATES)
                          : (extended ? KILLS_EXTENDED : KILLS);
    int r;
    const char *env = getenv("PENSTOCK_SEED"), *tmp = getenv("TMPDIR");
    uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 0) : env ? strtoull(env, NULL, 0) : 1;
    char base[256], cmd[400];

    if (!power && (argc < 2 || strcmp(argv[1], "kill"))) {
        fprintf(stderr, "usage: powerloss power|kill [STATES [SEED]]\n");
        return 2;
    }
    snprintf(base, sizeof base, "%s/penstock-powerloss.XXXXXX",
             tmp                        ? tmp
             : access("/dev/shm", W_OK) ? "/tmp"
                                        : "/dev/shm");
    if (!mkdtemp(base))
        die("mkdtemp: %s", strerror(errno));
    recent = !power;
    filters = getenv("PENSTOCK_TEST_FILTERS");
    pst_backend_register(&pst_local_backend);
    r = power ? power_main(base, states, seed) : kill_main(base, states, seed);
    snprintf(cmd, sizeof cmd, "rm -rf '%s'%s", base, power && r ? "/disk*" : "");
    return system(cmd) ? 1 : r;
}
