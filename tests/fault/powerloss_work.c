#include "powerloss_work.h"

#include "base/err.h"
#include "base/rng.h"
#include "base/util.h"
#include "filter/filter.h"
#include "local/local_store.h"
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define WRITER_OPS 600

const char *filters;
bool recent;

void die(const char *fmt, ...)
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

void writer(const char *dir, const char *ack, uint64_t seed)
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

void on_mark(void *user, const char *text)
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

pid_t verify_begin(const char *store, const struct promise *p, bool quiet)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (quiet && !freopen("/dev/null", "w", stderr))
            _exit(1);
        verify(store, p);
    }
    return pid;
}

bool verify_end(pid_t pid)
{
    int st;
    waitpid(pid, &st, 0);
    return WIFEXITED(st) && WEXITSTATUS(st) == 0;
}
