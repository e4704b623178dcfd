/* After an unclean stop the index is verified in a child process, whose death is a refusal and nothing more. */
#define FX_BARE
#include "local_fixture.h"

#include <dirent.h>

static const char *self;

/* ---- in processes of their own ---- */

static int child_dies(void)
{
    struct engine *e = fx_open();
    for (uint64_t i = 1; i <= 3000; i++)
        if (fx_put(e, i, "some value that is long enough to fill blocks", NULL))
            return 1;
    if (sync_checkpoint(e))
        return 2;
    raise(SIGKILL);
    return 3;
}

/* The child of the process that is not this one; 0: there is none. */
static pid_t other_child(pid_t parent)
{
    DIR *d = opendir("/proc");
    struct dirent *de;
    pid_t found = 0;
    while (!found && (de = readdir(d))) {
        char path[300], line[300] = "";
        int pid = atoi(de->d_name), ppid = 0;
        snprintf(path, sizeof path, "/proc/%s/stat", de->d_name);
        FILE *f = pid > 0 && pid != getpid() ? fopen(path, "re") : NULL;
        if (!f)
            continue;
        if (fgets(line, sizeof line, f) && strrchr(line, ')') && sscanf(strrchr(line, ')'), ") %*c %d", &ppid) == 1 &&
            ppid == parent)
            found = pid;
        fclose(f);
    }
    closedir(d);
    return found;
}

/* Opens while another process kills the verifier: 0 if that is a refusal that says so. */
static int child_opens_and_its_child_dies(int sig)
{
    struct eng_opts o = fx_opts();
    struct engine *e = NULL;
    pid_t killer = fork(), pid;
    int r;
    if (!killer) {
        while (!(pid = other_child(getppid())))
            usleep(1000);
        kill(pid, sig);
        _exit(0);
    }
    r = fx_try(&o, &e);
    waitpid(killer, NULL, 0);
    if (sig == SIGKILL)
        return r == -ENOMEM && strstr(fx_err, "was killed") && strstr(fx_err, fx_dir) ? 0 : 1;
    return r == -EIO && strstr(fx_err, "died of signal") && strstr(fx_err, fx_dir) ? 0 : 1;
}

static int child_counts(void)
{
    struct engine *e = fx_open();
    uint64_t n = atomic_load(&e->index_errors);
    eng_close(e);
    return n > 0 ? 50 : 40;
}

/* ---- */

static void a_death_of_the_verifier_is_a_refusal(void **state)
{
    static const char *const signals[] = {"6", "9"};
    char path[96], kept[96];
    (void)state;
    assert_int_equal(fx_child(self, "dies", ""), -SIGKILL);
    snprintf(path, sizeof path, "%s/index/CURRENT", fx_dir);
    snprintf(kept, sizeof kept, "%s/kept", fx_dir);
    assert_int_equal(rename(path, kept), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* who opens it waits there to be killed */
    for (size_t i = 0; i < ARRAY_SIZE(signals); i++)
        assert_int_equal(fx_child(self, "killed", signals[i]), 0);
    assert_int_equal(rename(kept, path), 0);
    assert_int_equal(fx_child(self, "counts", ""), 40); /* and it left nothing behind */
}

static void damaged_entries_are_counted_and_the_rest_is_served(void **state)
{
    char cmd[300];
    (void)state;
    assert_int_equal(fx_child(self, "dies", ""), -SIGKILL);
    /* In the middle of a table are entries. */
    snprintf(cmd, sizeof cmd, "f=$(ls -S '%s'/index/*.sst | head -1) && printf XXXXXXXX | dd of=\"$f\" bs=1 "
                              "seek=$(($(stat -c %%s \"$f\") / 2)) conv=notrunc 2>/dev/null", fx_dir);
    assert_int_equal(system(cmd), 0);
    assert_int_equal(fx_child(self, "counts", ""), 50);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_death_of_the_verifier_is_a_refusal, fx_setup, fx_teardown),
        cmocka_unit_test_setup_teardown(damaged_entries_are_counted_and_the_rest_is_served, fx_setup, fx_teardown),
    };
    self = argv[0];
    if (argc == 4) {
        snprintf(fx_dir, sizeof fx_dir, "%s", argv[2]);
        log_set_sink(fx_quiet, NULL);
        return !strcmp(argv[1], "dies")     ? child_dies()
               : !strcmp(argv[1], "killed") ? child_opens_and_its_child_dies(atoi(argv[3]))
                                            : child_counts();
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
