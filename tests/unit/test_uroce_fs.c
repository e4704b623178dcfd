/*
 * liburoce-fs.so: each call that looks up a path is led to the view, where the path is one of RDMA's, and passes on
 * what it was given, where it is not. argv[1]: the library; the program starts itself again with it.
 */
#undef _FILE_OFFSET_BITS /* so that open is not open64 */
#include "base/util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include <cmocka.h>

#define DEV   "/sys/class/infiniband/dev0"
#define TYPE  DEV "/node_type"
#define VERBS "/dev/infiniband/uverbs0"

static char view[64];
static int early_result;

/* Before any constructor, the C library's too: it has no environment yet, and nothing to lead to. */
static void early(void)
{
    early_result = access(TYPE, F_OK) == 0 ? 1 : access("/dev/null", F_OK) == 0 ? 2 : 3;
}
__attribute__((section(".preinit_array"), used)) static void (*const before_all)(void) = early;

static void assert_text(int fd, const char *want)
{
    char text[64] = "";
    assert_true(fd >= 0);
    assert_true(read(fd, text, sizeof text - 1) >= 0);
    assert_string_equal(text, want);
    close(fd);
}

static void assert_stream(FILE *f, const char *want)
{
    char text[64] = "";
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof text, f));
    assert_string_equal(text, want);
    fclose(f);
}

static void files_are_opened_in_the_view(void **state)
{
    (void)state;
    assert_int_equal(early_result, 2);
    assert_text(open(TYPE, O_RDONLY), "1: CA\n");
    assert_text(open64(TYPE, O_RDONLY), "1: CA\n");
    assert_text(openat(AT_FDCWD, TYPE, O_RDONLY), "1: CA\n");
    assert_text(openat64(AT_FDCWD, TYPE, O_RDONLY), "1: CA\n");
    assert_stream(fopen(TYPE, "r"), "1: CA\n");
    assert_stream(fopen64(TYPE, "r"), "1: CA\n");
    assert_stream(freopen(TYPE, "r", fopen("/dev/null", "r")), "1: CA\n");
    assert_text(open("/sys/devices/virtual/infiniband/dev0/node_type", O_RDONLY), "1: CA\n");
    int dir = open(DEV, O_RDONLY | O_DIRECTORY);
    assert_text(openat(dir, "node_type", O_RDONLY), "1: CA\n");
    close(dir);
    assert_int_equal(open("/sys/class/infiniband/none", O_RDONLY), -1);
    assert_int_equal(errno, ENOENT);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int no_dots(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static void directories_are_listed_from_the_view(void **state)
{
    (void)state;
    struct dirent **list;
    DIR *d = opendir("/sys/class/infiniband/");
    assert_non_null(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, "dev0") == 0;
    assert_int_equal(n, 1);
    closedir(d);
    assert_int_equal(scandir("/sys/class/infiniband", &list, no_dots, by_name), 1);
    assert_string_equal(list[0]->d_name, "dev0");
    free(list[0]);
    free(list);
    char here[256], there[256];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(DEV), 0);
    assert_text(open("node_type", O_RDONLY), "1: CA\n");
    assert_non_null(getcwd(there, sizeof there));
    assert_non_null(strstr(there, view));
    assert_int_equal(chdir(here), 0);
}

static void attributes_are_those_of_the_view(void **state)
{
    (void)state;
    struct stat st;
    struct stat64 st64;
    struct statx sx;
    assert_int_equal(stat(VERBS, &st), 0);
    assert_true(S_ISCHR(st.st_mode));
    assert_int_equal(stat64(VERBS, &st64), 0);
    assert_true(S_ISCHR(st64.st_mode));
    assert_int_equal(lstat(DEV, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(lstat64(DEV, &st64), 0);
    assert_true(S_ISLNK(st64.st_mode));
    assert_int_equal(fstatat(AT_FDCWD, DEV, &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(fstatat64(AT_FDCWD, DEV, &st64, 0), 0);
    assert_true(S_ISDIR(st64.st_mode));
    assert_int_equal(statx(AT_FDCWD, TYPE, 0, STATX_SIZE, &sx), 0);
    assert_int_equal(sx.stx_size, 6);
    assert_int_equal(access(VERBS, R_OK | W_OK), 0);
    assert_int_equal(eaccess(VERBS, R_OK | W_OK), 0);
    assert_int_equal(faccessat(AT_FDCWD, VERBS, R_OK | W_OK, 0), 0);
    assert_int_equal(access("/dev/infiniband/uverbs1", F_OK), -1);
    assert_int_equal(errno, ENOENT);
    assert_int_equal(lgetxattr(TYPE, "user.none", NULL, 0), -1);
    assert_int_not_equal(errno, ENOENT);
}

static void links_are_those_of_the_view(void **state)
{
    (void)state;
    char text[PATH_MAX] = "", full[PATH_MAX];
    assert_int_equal(readlink(DEV, text, sizeof text - 1), strlen("../../devices/virtual/infiniband/dev0"));
    assert_string_equal(text, "../../devices/virtual/infiniband/dev0");
    assert_true(readlinkat(AT_FDCWD, DEV, text, sizeof text) > 0);
    snprintf(full, sizeof full, "%s/devices/virtual/infiniband/dev0", view);
    assert_string_equal(realpath(DEV, text), full);
    char *own = canonicalize_file_name(DEV);
    assert_string_equal(own, full);
    free(own);
}

static void other_paths_are_left_alone(void **state)
{
    (void)state;
    struct stat st;
    char name[128], text[64];
    snprintf(name, sizeof name, "%s/file", view);
    mode_t mask = umask(0);
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0640);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "mine", 4), 4);
    close(fd);
    assert_int_equal(stat(name, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
    fd = openat(AT_FDCWD, view, O_WRONLY | O_TMPFILE, 0604);
    assert_true(fd >= 0 || errno == EOPNOTSUPP);
    if (fd >= 0) {
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0604);
        close(fd);
    }
    umask(mask);
    assert_text(open(name, O_RDONLY), "mine");
    assert_int_equal(access("/sys/class/infinibandx", F_OK), -1);
    assert_int_equal(access("/dev/infinibandx", F_OK), -1);
    assert_int_equal(access("/dev/null", R_OK), 0);
    assert_int_equal(stat("/proc/self", &st), 0);
    assert_true(readlink("/proc/self", text, sizeof text) > 0);
    const char *volatile none = NULL;
    assert_int_equal(access(none, F_OK), -1);
    assert_int_equal(errno, EFAULT);
    char longer[600] = "/sys/class/infiniband/";
    memset(longer + strlen(longer), 'x', sizeof longer - strlen(longer) - 1);
    longer[sizeof longer - 1] = '\0';
    assert_int_equal(access(longer, F_OK), -1);
    unlink(name);
}

static volatile sig_atomic_t handler_fd;

static void on_signal(int sig)
{
    (void)sig;
    handler_fd = open(TYPE, O_RDONLY);
}

static void it_works_in_a_signal_handler_and_in_children(void **state)
{
    (void)state;
    signal(SIGUSR1, on_signal);
    raise(SIGUSR1);
    assert_text(handler_fd, "1: CA\n");
    pid_t pid = fork();
    if (pid == 0)
        _exit(access(TYPE, R_OK) == 0 ? 42 : 1);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 42);
    assert_int_equal(system("test -c " VERBS " && test -d " DEV), 0);
}

/* A view of one device, by hand. */
static void make_view(void)
{
    char cmd[512];
    strcpy(view, "/tmp/uroce-fs-XXXXXX");
    if (!mkdtemp(view))
        exit(1);
    snprintf(cmd, sizeof cmd,
             "cd %s && mkdir -p class/infiniband devices/virtual/infiniband/dev0 dev/infiniband &&"
             "echo '1: CA' >devices/virtual/infiniband/dev0/node_type && ln -s /dev/null dev/infiniband/uverbs0 &&"
             "ln -s ../../devices/virtual/infiniband/dev0 class/infiniband/dev0",
             view);
    if (system(cmd))
        exit(1);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 1;
    if (!getenv("UROCE_SYSFS")) {
        make_view();
        pid_t pid = fork();
        if (pid == 0) {
            setenv("LD_PRELOAD", argv[1], 1);
            setenv("UROCE_SYSFS", view, 1);
            execv("/proc/self/exe", argv);
            _exit(127);
        }
        int status;
        waitpid(pid, &status, 0);
        char cmd[128];
        snprintf(cmd, sizeof cmd, "rm -rf %s", view);
        return system(cmd) || !WIFEXITED(status) ? 1 : WEXITSTATUS(status);
    }
    snprintf(view, sizeof view, "%s", getenv("UROCE_SYSFS"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_opened_in_the_view),
        cmocka_unit_test(directories_are_listed_from_the_view),
        cmocka_unit_test(attributes_are_those_of_the_view),
        cmocka_unit_test(links_are_those_of_the_view),
        cmocka_unit_test(other_paths_are_left_alone),
        cmocka_unit_test(it_works_in_a_signal_handler_and_in_children),
    };
    return cmocka_run_group_tests_name("the sysfs preload", tests, NULL, NULL);
}
