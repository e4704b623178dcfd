/*
 * Small files: create + write + close, stat, readdir with attributes, unlink, through the C API or the system's calls.
 *
 *   bench_meta URL|DIRECTORY [n=FILES] [bytes=N] [jobs=N] [sync=none|close|fsync] [server=PID] [options=OF_LOCAL]
 *
 * Each job works in a directory of its own. sync: fsync calls it for each file before its close; close (API only)
 * relies on closes that are durable; none has lazy closes. server: its processor time is counted too. Prints one JSON
 * object with operations a second and core-microseconds an operation of each phase.
 */
#include "bench_util.h"

#include <penstock/penstock.h>

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define JOBS_MAX  64u
#define BYTES_MAX (1u << 20)

struct job {
    pthread_t thread;
    unsigned id;
    uint64_t ops;
    void (*phase)(struct job *j);
};

static struct {
    const char *target, *sync;
    uint64_t n, bytes, jobs;
    bool fsync;
} o = {.sync = "none", .n = 1000, .bytes = 4096, .jobs = 1};

static struct pst_fs *fs; /* NULL: the system's calls */
static uint8_t data[BYTES_MAX];

static void folder(const struct job *j, char path[400])
{
    snprintf(path, 400, "%s/meta-%u", fs ? "" : o.target, j->id);
}

static void name(const struct job *j, uint64_t i, char path[400])
{
    snprintf(path, 400, "%s/meta-%u/file-%06llu", fs ? "" : o.target, j->id, (unsigned long long)i);
}

static void sys(const char *what, int64_t r)
{
    if (r < 0)
        die(what, -errno, o.target);
}

static uint64_t share(const struct job *j)
{
    return o.n / o.jobs + (j->id < o.n % o.jobs);
}

static void create_api(const char *path)
{
    struct pst_file *f;

    check("create", pst_open(fs, path, O_WRONLY | O_CREAT | O_EXCL, 0644, &f));
    check("write", pst_pwrite(f, data, o.bytes, 0));
    if (o.fsync)
        check("fsync", pst_fsync(f));
    check("close", pst_close(f));
}

static void create_sys(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);

    sys("create", fd);
    if (write(fd, data, o.bytes) != (ssize_t)o.bytes)
        sys("write", -1);
    if (o.fsync)
        sys("fsync", fsync(fd));
    sys("close", close(fd));
}

static void do_create(struct job *j)
{
    char path[400];

    for (uint64_t i = 0; i < share(j); i++, j->ops++) {
        name(j, i, path);
        (fs ? create_api : create_sys)(path);
    }
}

static void do_stat(struct job *j)
{
    char path[400];
    struct stat st;

    for (uint64_t i = 0; i < share(j); i++, j->ops++) {
        name(j, i, path);
        if (fs)
            check("stat", pst_stat(fs, path, &st));
        else
            sys("stat", stat(path, &st));
        if (st.st_size != (off_t)o.bytes)
            die("stat: size", -EIO, path);
    }
}

static void list_api(struct job *j, const char *path)
{
    struct pst_dir *d;
    struct pst_entry e;
    int r;

    check("opendir", pst_opendir(fs, path, PST_DIR_STAT, &d));
    while ((r = pst_readdir(d, &e)) == 1)
        j->ops += e.st.st_size == (off_t)o.bytes;
    check("readdir", r);
    pst_closedir(d);
}

static void list_sys(struct job *j, const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;
    struct stat st;

    if (!d)
        die("opendir", -errno, path);
    while ((e = readdir(d)))
        if (e->d_name[0] != '.') {
            sys("stat", fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW));
            j->ops += st.st_size == (off_t)o.bytes;
        }
    closedir(d);
}

static void do_list(struct job *j)
{
    char path[400];

    folder(j, path);
    (fs ? list_api : list_sys)(j, path);
    if (j->ops != share(j))
        die("readdir: entries", -EIO, path);
}

static void do_unlink(struct job *j)
{
    char path[400];

    for (uint64_t i = 0; i < share(j); i++, j->ops++) {
        name(j, i, path);
        if (fs)
            check("unlink", pst_unlink(fs, path));
        else
            sys("unlink", unlink(path));
    }
}

static void *run(void *arg)
{
    struct job *j = arg;

    j->ops = 0;
    j->phase(j);
    return NULL;
}

static void phase(struct job *jobs, const char *what, void (*fn)(struct job *), pid_t server)
{
    uint64_t start = now_ns(), ops = 0;
    double cpu = process_cpu(0) + (server ? process_cpu(server) : 0), seconds;

    for (unsigned i = 0; i < o.jobs; i++) {
        jobs[i].phase = fn;
        if (pthread_create(&jobs[i].thread, NULL, run, &jobs[i]))
            die("thread", -EAGAIN, "");
    }
    for (unsigned i = 0; i < o.jobs; i++) {
        pthread_join(jobs[i].thread, NULL);
        ops += jobs[i].ops;
    }
    seconds = (double)(now_ns() - start) / 1e9;
    cpu = process_cpu(0) + (server ? process_cpu(server) : 0) - cpu;
    printf("%s\"%s\": {\"rate\": %.1f, \"core_us\": %.2f}", fn == do_create ? "{" : ", ", what, (double)ops / seconds,
           cpu * 1e6 / (double)ops);
}

static void folders(struct job *jobs, bool make)
{
    char path[400];

    for (unsigned i = 0; i < o.jobs; i++) {
        jobs[i].id = i;
        folder(&jobs[i], path);
        if (fs)
            check(path, make ? pst_mkdir(fs, path, 0755) : pst_rmdir(fs, path));
        else
            sys(path, make ? mkdir(path, 0755) : rmdir(path));
    }
}

int main(int argc, char **argv)
{
    static struct job jobs[JOBS_MAX];
    struct pst_options opts;
    const char *options = NULL;
    uint64_t server = 0;
    const struct bench_arg args[] = {{"n", NULL, &o.n, NULL},         {"bytes", NULL, &o.bytes, NULL},
                                     {"jobs", NULL, &o.jobs, NULL},   {"sync", &o.sync, NULL, NULL},
                                     {"server", NULL, &server, NULL}, {"options", &options, NULL, NULL}, {0}};

    bench_program = "bench_meta";
    if (argc < 2) {
        fprintf(stderr, "usage: bench_meta URL|DIRECTORY [key=value]...\n");
        return 2;
    }
    bench_args(args, argc, argv, 2);
    o.target = argv[1];
    o.fsync = !strcmp(o.sync, "fsync");
    if (!o.jobs || o.jobs > JOBS_MAX || o.n < o.jobs || o.bytes > BYTES_MAX)
        die("arguments", -EINVAL, "");
    memset(data, 'x', o.bytes);
    pst_options_init(&opts, sizeof opts);
    opts.flags = PST_CONNECT_CREATE | (strcmp(o.sync, "close") ? PST_CONNECT_LAZY_CLOSE : 0);
    if (!strncmp(o.target, "local:", 6))
        opts.store_options = options ? options : "create=1";
    if (o.target[0] != '/')
        check("connect", pst_connect(o.target, &opts, &fs));
    folders(jobs, true);
    phase(jobs, "create", do_create, (pid_t)server);
    phase(jobs, "stat", do_stat, (pid_t)server);
    phase(jobs, "readdir", do_list, (pid_t)server);
    phase(jobs, "unlink", do_unlink, (pid_t)server);
    printf("}\n");
    folders(jobs, false);
    if (fs)
        check("disconnect", pst_disconnect(fs));
    return 0;
}
