/* The audit log: whole lines, rotation, and a disk that is full. */
#include "control/audit.h"

#include "base/log.h"
#include "base/util.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/test-audit-XXXXXX", path[64];

static void quiet(enum log_level level, const char *line, void *user)
{
    (void)level, (void)line, (void)user;
}

static int set_up(void **state)
{
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    log_set_sink(quiet, NULL);
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/audit.log", dir);
    return 0;
}

static int tear_down(void **state)
{
    char cmd[64];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    return system(cmd);
}

static void put(struct audit *a, const char *event, const char *what)
{
    audit_put(a, &(struct audit_event){.event = event, .tenant = "t", .credential = "c", .peer = "p", .what = what});
}

/* Waits until so many lines were written or lost. */
static struct audit_counts settled(struct audit *a, uint64_t n)
{
    const struct timespec t = {0, 1000000};
    struct audit_counts c = audit_counts(a);

    for (int i = 0; i < 10000 && c.lines + c.lost < n; i++) {
        nanosleep(&t, NULL);
        c = audit_counts(a);
    }
    return c;
}

/* Every line is whole; how many have these words. */
static unsigned count(const char *file, const char *words)
{
    char line[2048];
    unsigned n = 0;
    FILE *f = fopen(file, "r");

    if (!f)
        return 0;
    while (fgets(line, sizeof line, f)) {
        size_t len = strlen(line);
        assert_true(len > 3 && !strncmp(line, "{\"time\":\"2", 10) && !strcmp(line + len - 2, "}\n"));
        n += strstr(line, words) != NULL;
    }
    fclose(f);
    return n;
}

static void lines_are_json_whatever_is_in_them(void **state)
{
    char big[4000];
    struct audit *a;
    (void)state;

    assert_int_equal(audit_open(path, MiB, 2, &a), 0);
    put(a, "one", "a \"quoted\" \\ back\nslash \xff");
    memset(big, '"', sizeof big - 1);
    big[sizeof big - 1] = 0;
    put(a, "two", big);
    put(a, "three", NULL);
    audit_close(a);
    assert_int_equal(count(path, "\"event\":\"one\",\"tenant\":\"t\",\"credential\":\"c\",\"peer\":\"p\","
                                 "\"what\":\"a \\\"quoted\\\" \\\\ back?slash ?\"}"),
                     1);
    assert_int_equal(count(path, "\"event\":\"two\""), 1);
    assert_int_equal(count(path, "\"peer\":\"p\"}"), 1);
    unlink(path);
}

/* Of this process; -1: not told here. */
static long writes_so_far(void)
{
    char line[80];
    long n = -1;
    FILE *f = fopen("/proc/self/io", "r");

    while (f && fgets(line, sizeof line, f))
        sscanf(line, "syscw: %ld", &n);
    if (f)
        fclose(f);
    return n;
}

/* Every write but the last, and those of a half-full buffer, has what came in ten milliseconds. */
static void lines_that_come_together_are_written_together(void **state)
{
    enum { LINES = 4000 };
    struct audit *a;
    long before, after;
    uint64_t begun, ms;
    struct stat st;
    (void)state;

    assert_int_equal(audit_open(path, 16 * MiB, 2, &a), 0);
    before = writes_so_far();
    begun = now_ns();
    for (uint64_t i = 1; i <= LINES; i++) {
        put(a, "one", "of many");
        if (i % 500 == 0)
            settled(a, i);
    }
    audit_close(a);
    after = writes_so_far();
    ms = (now_ns() - begun) / NSEC_PER_MSEC;
    assert_int_equal(count(path, "\"one\""), LINES);
    assert_int_equal(stat(path, &st), 0);
    unlink(path);
    if (before < 0)
        skip(); /* the kernel does not count */
    assert_in_range(after - before, 1, ms / 10 + (uint64_t)st.st_size / (128 * KiB) + 1);
}

static void it_rotates_by_size_and_keeps_so_many(void **state)
{
    char one[80], two[80], three[80], text[900];
    struct audit *a;
    uint64_t n = 0;
    (void)state;

    snprintf(one, sizeof one, "%s.1", path);
    snprintf(two, sizeof two, "%s.2", path);
    snprintf(three, sizeof three, "%s.3", path);
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    assert_int_equal(audit_open(path, 256 * KiB, 2, &a), 0);
    for (int i = 0; i < 1200; i++) {
        put(a, "e", text);
        if (++n % 100 == 0)
            assert_int_equal(settled(a, n).lost, 0);
    }
    audit_close(a);
    assert_true(count(path, "\"e\"") && count(one, "\"e\"") && count(two, "\"e\""));
    assert_int_not_equal(access(three, F_OK), 0);
    /* Opened anew, as after logrotate; who opens it again goes on in it. */
    assert_int_equal(rename(path, three), 0);
    assert_int_equal(audit_open(path, MiB, 2, &a), 0);
    put(a, "first", NULL);
    settled(a, 1);
    assert_int_equal(rename(path, one), 0);
    audit_reopen(a);
    put(a, "second", NULL);
    audit_close(a);
    assert_int_equal(count(one, "\"first\"") + count(one, "\"second\"") + count(path, "\"second\""), 2);
    assert_int_equal(audit_open(path, MiB, 2, &a), 0);
    put(a, "third", NULL);
    audit_close(a);
    assert_int_equal(count(path, "\"third\""), 1);
    unlink(path);
}

static void a_full_disk_loses_lines_and_says_so(void **state)
{
    struct rlimit was, small;
    struct audit_counts c;
    struct audit *a;
    struct stat st;
    (void)state;

    assert_int_equal(audit_open(path, MiB, 2, &a), 0);
    put(a, "before", NULL);
    settled(a, 1);
    getrlimit(RLIMIT_FSIZE, &was);
    assert_int_equal(stat(path, &st), 0);
    small = (struct rlimit){(rlim_t)st.st_size + 10, was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (int i = 0; i < 5000; i++) /* nobody waits, also when the buffer is full */
        put(a, "during", "something that does not fit");
    c = settled(a, 5001);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(c.lines, 1);
    assert_int_equal(c.lost, 5000);
    put(a, "after", NULL);
    audit_close(a);
    assert_int_equal(count(path, "\"before\""), 1);
    assert_int_equal(count(path, "\"during\""), 0);
    assert_int_equal(count(path, "\"lines_lost\""), 1);
    assert_int_equal(count(path, "\"after\""), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_json_whatever_is_in_them),
        cmocka_unit_test(lines_that_come_together_are_written_together),
        cmocka_unit_test(it_rotates_by_size_and_keeps_so_many),
        cmocka_unit_test(a_full_disk_loses_lines_and_says_so),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
