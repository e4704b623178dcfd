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
#include "powerloss_work.h"
#include "recfs.h"

#include "base/util.h"
#include "local/local_store.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
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

static void clean(const char *dir)
{
    char cmd[600];
    snprintf(cmd, sizeof cmd, "rm -rf '%s' && mkdir -p '%s'", dir, dir);
    if (system(cmd))
        die("cannot clean %s", dir);
}

static pid_t state_begin(struct recfs *fs, size_t at, uint64_t seed, int ignore_flushes, const char *dir,
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

/*
 * The writer on an ordinary file system, killed after a random time: it may have been done by then, but not have
 * failed. *ready counts those that had a store by then.
 */
static bool killed_ok(struct rng *r, const char *dir, int *ready)
{
    struct promise p = {0};
    char store[400], ack[400], line[80];
    uint64_t seed = rng_u64(r), us = rng_below(r, 700000);
    pid_t pid;
    int st;
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
    waitpid(pid, &st, 0);
    if (WIFEXITED(st) ? WEXITSTATUS(st) : WTERMSIG(st) != SIGKILL)
        return false;
    f = fopen(ack, "r");
    while (f && fgets(line, sizeof line, f))
        on_mark(&p, line);
    if (f)
        fclose(f);
    *ready += p.ready;
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

static int earlier(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return x < y ? -1 : x > y;
}

/* The moments to look at, in their order. */
static size_t *moments(struct rng *r, size_t first, size_t span, int n)
{
    size_t *at = calloc((size_t)n, sizeof *at);
    if (!at)
        die("out of memory");
    for (int i = 0; i < n; i++)
        at[i] = first + rng_below(r, span);
    qsort(at, (size_t)n, sizeof *at, earlier);
    return at;
}

/* The states of one writer; the number that is wrong. *ret_caught: without flushes a loss is noticed. */
static int power_of_writer(const char *base, int states, uint64_t seed, bool *ret_caught)
{
    struct under_way two[2] = {0};
    int failed = 0;
    bool caught = false;
    struct recfs *fs = record(base, seed);
    size_t first = first_moment(fs), span = recfs_length(fs) - first + 1, *at;
    struct rng r;

    rng_seed(&r, seed);
    for (int i = 0; i < 2; i++)
        snprintf(two[i].disk, sizeof two[i].disk, "%s/disk%d", base, i);
    printf("seed %llu, %zu changes and flushes recorded, %d states\n", (unsigned long long)seed, recfs_length(fs),
           states);
    fflush(stdout);
    at = moments(&r, first, span, states);
    for (int i = 0; i < states; i++) {
        struct under_way *u = &two[i & 1];
        failed += state_end(u, base);
        u->at = at[i];
        u->pid = state_begin(fs, u->at, rng_u64(&r), 0, u->disk, false);
    }
    failed += state_end(&two[0], base) + state_end(&two[1], base);
    for (int i = 0; i < 20 && !caught; i++)
        caught =
            !verify_end(state_begin(fs, first + span / 2 + rng_below(&r, span / 2), rng_u64(&r), 1, two[0].disk, true));
    free(at);
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
    int failed = 0, ready = 0;
    struct rng r;

    rng_seed(&r, seed);
    snprintf(disk, sizeof disk, "%s/disk", base);
    for (int i = 0; i < states; i++)
        failed += !killed_ok(&r, disk, &ready);
    printf("seed %llu, killed %d times, %d of them at work, %d wrong\n", (unsigned long long)seed, states, ready,
           failed);
    return failed != 0 || ready < states / 4;
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
