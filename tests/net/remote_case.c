#include "remote_case.h"

#include "api_cases.h"
#include "base/util.h"
#include "../lib/seed.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

const char *program;
uint64_t seed;
bool extended;

int remote_main_begin(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    program = argv[1];
    extended = getenv("PENSTOCK_EXTENDED") != NULL;
    seed = seed_new();
    if (argc == 3)
        cmocka_set_test_filter(argv[2]);
    return 0;
}

struct pst_fs *connect_at(const char *base, const char *container, unsigned timeout_ms)
{
    struct pst_fs *fs;
    int r, tries = 0;

    api_base = base;
    do /* the short times of some tests are for what they then do: a busy machine needs longer to connect */
        r = api_connect(container, timeout_ms, &fs);
    while (r == -ETIMEDOUT && timeout_ms && tries++ < 100);
    if (r < 0)
        fail_msg("%s", pst_last_error());
    return fs;
}

void nap(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000l}, NULL);
}

double figure_of(const char *base, const char *name)
{
    char cmd[300], line[400];
    double v = -1;
    FILE *f;

    snprintf(cmd, sizeof cmd, "'%s' status --metrics %s", program, base);
    f = popen(cmd, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ' ')
            v = strtod(line + strlen(name), NULL);
    assert_int_equal(pclose(f), 0);
    if (v < 0)
        fail_msg("no metric %s", name);
    return v;
}

pid_t busy_client(const char *base, bool writes, const char *placement)
{
    char url[120];
    pid_t pid = fork();

    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY);
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails half-way leaves none behind */
        dup2(null, 1);
        dup2(null, 2);
        for (int i = 3; i < 1024; i++)
            close(i);
        setenv("PENSTOCK_PLACEMENT", placement, 1);
        snprintf(url, sizeof url, "%sdefault/default/", base);
        execl(program, program, "bench", "--file-size", "8M", "--time", "600", url, writes ? "--write" : NULL,
              (char *)NULL);
        _exit(127);
    }
    return pid;
}

void kill_client(pid_t pid)
{
    int status;

    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
}

int memory_mapped(pid_t daemon)
{
    char path[40], line[400];
    FILE *f;
    int n = 0;

    snprintf(path, sizeof path, "/proc/%d/maps", (int)daemon);
    f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        n += strstr(line, "memfd:penstock") != NULL;
    fclose(f);
    return n;
}

size_t record(int i, uint8_t *buf)
{
    size_t n = 16 + (size_t)i * 7919 % (i % 4 ? 3000 : 150000);

    memset(buf, i & 0xff, n);
    memcpy(buf, &i, sizeof i);
    memcpy(buf + 4, &(uint32_t){(uint32_t)n}, 4);
    return n;
}

void check_records(struct pst_fs *fs, const char *path, int count)
{
    uint8_t *want = malloc(RECORD_MAX), *got = malloc(RECORD_MAX);
    struct pst_file *f;
    struct stat st;
    uint64_t at = 0;

    assert_int_equal(pst_open(fs, path, O_RDONLY, 0, &f), 0);
    for (int i = 0; i < count; i++) {
        size_t n = record(i, want);
        assert_int_equal(pst_pread(f, got, n, at), n);
        assert_memory_equal(want, got, n);
        at += n;
    }
    assert_int_equal(pst_fstat(f, &st), 0);
    assert_int_equal(st.st_size, at);
    assert_int_equal(pst_close(f), 0);
    free(want);
    free(got);
}

void names_round(struct pst_fs *fs, int i)
{
    char a[32], b[32], l[32];
    struct pst_file *f;
    struct stat st;

    snprintf(a, sizeof a, "/a%d", i);
    snprintf(b, sizeof b, "/b%d", i);
    snprintf(l, sizeof l, "/l%d", i);
    assert_int_equal(pst_open(fs, a, O_RDWR | O_CREAT | O_EXCL, 0644, &f), 0);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_link(fs, a, l), 0);
    assert_int_equal(pst_rename(fs, a, b, PST_RENAME_KEEP), 0);
    assert_int_equal(pst_stat(fs, b, &st), 0);
    assert_int_equal(st.st_nlink, 2);
    assert_int_equal(pst_rename(fs, b, l, PST_RENAME_SWAP), 0);
    assert_int_equal(pst_unlink(fs, b), 0);
    assert_int_equal(pst_unlink(fs, l), 0);
    assert_int_equal(pst_mkdir(fs, a, 0755), 0);
    assert_int_equal(pst_symlink(fs, "x", b), 0);
    assert_int_equal(pst_rmdir(fs, a), 0);
    assert_int_equal(pst_unlink(fs, b), 0);
}
