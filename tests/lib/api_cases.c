#include "api_cases.h"

#include "base/util.h"
#include "store/types.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

const char *api_base;
static int containers;

int api_connect(const char *container, unsigned timeout_ms, struct pst_fs **ret)
{
    struct pst_options o;
    char url[400];

    pst_options_init(&o, sizeof o);
    o.write_behind = 8 * MiB;
    o.flags = PST_CONNECT_CREATE;
    o.timeout_ms = timeout_ms;
    snprintf(url, sizeof url, "%sp/%s", api_base, container);
    return pst_connect(url, &o, ret);
}

int api_setup(void **state)
{
    char name[32];
    struct pst_fs *fs;

    snprintf(name, sizeof name, "c%d-%d", (int)getpid(), containers++);
    if (api_connect(name, 0, &fs) < 0)
        fail_msg("%s", pst_last_error());
    *state = fs;
    return 0;
}

int api_teardown(void **state)
{
    assert_int_equal(pst_disconnect(*state), 0);
    return 0;
}

struct pst_file *api_open_new(struct pst_fs *fs, const char *path, int flags)
{
    struct pst_file *f;
    assert_int_equal(pst_open(fs, path, O_RDWR | O_CREAT | flags, 0644, &f), 0);
    return f;
}

void api_put(struct pst_fs *fs, const char *path, const char *text)
{
    struct pst_file *f = api_open_new(fs, path, O_TRUNC);
    assert_int_equal(pst_pwrite(f, text, strlen(text), 0), strlen(text));
    assert_int_equal(pst_close(f), 0);
}

void api_expect(struct pst_fs *fs, const char *path, const char *text)
{
    char buf[256];
    struct pst_file *f;
    assert_int_equal(pst_open(fs, path, O_RDONLY, 0, &f), 0);
    assert_int_equal(pst_pread(f, buf, sizeof buf, 0), strlen(text));
    assert_memory_equal(buf, text, strlen(text));
    assert_int_equal(pst_close(f), 0);
}

static void paths_resolve_names_dots_and_links(void **state)
{
    struct pst_fs *fs = *state, *sub;
    struct stat st, st2;
    char name[300], target[32];

    assert_int_equal(pst_mkdir(fs, "/a", 0755), 0);
    assert_int_equal(pst_mkdir(fs, "a/b/", 0755), 0);
    api_put(fs, "/a/b/f", "hello");
    api_expect(fs, "//a/./b/../b//f", "hello");
    assert_int_equal(pst_symlink(fs, "b", "/a/rel"), 0);
    assert_int_equal(pst_symlink(fs, "/a/b", "/abs"), 0);
    assert_int_equal(pst_symlink(fs, "../../a/b/f", "/a/b/up"), 0);
    api_expect(fs, "/a/rel/f", "hello");
    api_expect(fs, "/abs/up", "hello");
    assert_int_equal(pst_lstat(fs, "/abs", &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(pst_lstat(fs, "/abs/", &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    assert_int_equal(pst_readlink(fs, "/abs", target, sizeof target), 4);
    assert_string_equal(target, "/a/b");
    assert_int_equal(pst_readlink(fs, "/abs", target, 4), -ERANGE);
    assert_int_equal(pst_readlink(fs, "/a", target, sizeof target), -EINVAL);
    assert_int_equal(pst_stat(fs, "/..", &st), 0);
    assert_int_equal(st.st_ino, PST_ROOT_INO);

    assert_int_equal(pst_workdir(fs, "/a/b", &sub), 0);
    api_expect(sub, "f", "hello");
    api_expect(sub, "/a/b/f", "hello");
    assert_int_equal(pst_rename(fs, "/a", "/moved", 0), 0);
    api_expect(sub, "f", "hello");
    assert_int_equal(pst_disconnect(sub), 0);
    assert_int_equal(pst_workdir(fs, "/moved/b/f", &sub), -ENOTDIR);

    assert_int_equal(pst_symlink(fs, "loop", "/loop"), 0);
    assert_int_equal(pst_stat(fs, "/loop", &st), -ELOOP);
    assert_int_equal(pst_stat(fs, "", &st), -ENOENT);
    assert_int_equal(pst_stat(fs, "/nothing/x", &st), -ENOENT);
    assert_int_equal(pst_stat(fs, "/moved/b/f/x", &st), -ENOTDIR);
    assert_int_equal(pst_stat(fs, "/moved/b/f/", &st), -ENOTDIR);
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_int_equal(pst_stat(fs, name, &st), -ENAMETOOLONG);
    name[255] = '\0';
    api_put(fs, name, "long name");
    assert_int_equal(pst_link(fs, name, "/hard"), 0);
    assert_int_equal(pst_stat(fs, "/hard", &st), 0);
    assert_int_equal(pst_stat(fs, name, &st2), 0);
    assert_int_equal(st.st_ino, st2.st_ino);
    assert_int_equal(st.st_nlink, 2);
    assert_non_null(strstr((pst_stat(fs, "/not/there", &st), pst_last_error()), "/not/there"));
}

static void wrong_targets_get_the_errno_of_posix(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f;

    assert_int_equal(pst_mkdir(fs, "/d", 0755), 0);
    api_put(fs, "/f", "x");
    assert_int_equal(pst_mkdir(fs, "/d", 0755), -EEXIST);
    assert_int_equal(pst_mkdir(fs, "/", 0755), -EEXIST);
    assert_int_equal(pst_mkdir(fs, "/f/", 0755), -ENOTDIR);
    assert_int_equal(pst_unlink(fs, "/d"), -EISDIR);
    assert_int_equal(pst_unlink(fs, "/"), -EISDIR);
    assert_int_equal(pst_rmdir(fs, "/f"), -ENOTDIR);
    assert_int_equal(pst_rmdir(fs, "/"), -EBUSY);
    assert_int_equal(pst_rmdir(fs, "/d/."), -EINVAL);
    assert_int_equal(pst_rmdir(fs, "/d/.."), -ENOTEMPTY);
    api_put(fs, "/d/x", "x");
    assert_int_equal(pst_rmdir(fs, "/d"), -ENOTEMPTY);
    assert_int_equal(pst_open(fs, "/d", O_RDONLY, 0, &f), -EISDIR);
    assert_int_equal(pst_open(fs, "/d/", O_RDWR | O_CREAT, 0644, &f), -EISDIR);
    assert_int_equal(pst_open(fs, "/new/", O_RDWR | O_CREAT, 0644, &f), -EISDIR);
    assert_int_equal(pst_open(fs, "/f", O_RDWR | O_CREAT | O_EXCL, 0644, &f), -EEXIST);
    assert_int_equal(pst_open(fs, "/f", O_RDWR | 0x40000000, 0644, &f), -EINVAL);
    assert_int_equal(pst_symlink(fs, "/f", "/l"), 0);
    assert_int_equal(pst_open(fs, "/l", O_RDONLY | O_NOFOLLOW, 0, &f), -ELOOP);
    assert_int_equal(pst_open(fs, "/l", O_RDWR | O_CREAT | O_EXCL, 0, &f), -EEXIST);
    assert_int_equal(pst_mknod(fs, "/fifo", S_IFIFO | 0644, 0), 0);
    assert_int_equal(pst_open(fs, "/fifo", O_RDONLY, 0, &f), -ENXIO);
    assert_int_equal(pst_rename(fs, "/f", "/d/", 0), -ENOTDIR);
    assert_int_equal(pst_rename(fs, "/f", "/l", PST_RENAME_KEEP), -EEXIST);
    assert_int_equal(pst_truncate(fs, "/d", 0), -EISDIR);
    /* A dangling link is created through. */
    assert_int_equal(pst_symlink(fs, "/d/made", "/dangling"), 0);
    api_put(fs, "/dangling", "through");
    api_expect(fs, "/d/made", "through");
}

static void attributes_are_set_and_read(void **state)
{
    struct pst_fs *fs = *state;
    struct timespec t[2] = {{-5, 7}, {1234567890, 987654321}};
    struct stat st;
    struct pst_file *f = api_open_new(fs, "/f", 0);

    assert_int_equal(pst_utimens(fs, "/f", t, 0), 0);
    assert_int_equal(pst_stat(fs, "/f", &st), 0);
    assert_int_equal(st.st_mtim.tv_sec, 1234567890);
    assert_int_equal(st.st_mtim.tv_nsec, 987654321);
    assert_int_equal(st.st_atim.tv_sec, -5);
    assert_int_equal(st.st_atim.tv_nsec, 7);
    t[0].tv_nsec = (long)NSEC_PER_SEC;
    assert_int_equal(pst_futimens(f, t), -EINVAL);
    t[0].tv_nsec = UTIME_OMIT;
    t[1].tv_nsec = UTIME_NOW;
    assert_int_equal(pst_futimens(f, t), 0);
    assert_int_equal(pst_chmod(fs, "/f", 0600), 0);
    assert_int_equal(pst_fchmod(f, 0640), 0);
    assert_int_equal(pst_ftruncate(f, 5000), 0);
    assert_int_equal(pst_fstat(f, &st), 0);
    assert_int_equal(st.st_mode, S_IFREG | 0640);
    assert_int_equal(st.st_size, 5000);
    assert_int_equal(pst_close(f), 0);
}

static void a_listing_is_complete_across_pages(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_dir *d;
    struct pst_entry e;
    char name[32];
    uint64_t middle = 0;
    int n = 0;

    assert_int_equal(pst_mkdir(fs, "/d", 0755), 0);
    for (int i = 0; i < 1300; i++) {
        snprintf(name, sizeof name, "/d/%d", i);
        assert_int_equal(pst_mknod(fs, name, S_IFREG | 0600, 0), 0);
    }
    assert_int_equal(pst_opendir(fs, "/d", PST_DIR_STAT, &d), 0);
    while (pst_readdir(d, &e) == 1) {
        assert_int_equal(e.st.st_ino, e.ino);
        assert_true(S_ISREG(e.type));
        if (++n == 700)
            middle = e.cookie;
    }
    assert_int_equal(n, 1300);
    assert_int_equal(pst_readdir(d, &e), 0);
    assert_int_equal(pst_seekdir(d, middle), 0);
    for (n = 0; pst_readdir(d, &e) == 1; n++)
        ;
    assert_int_equal(n, 600);
    assert_int_equal(pst_closedir(d), 0);
}

static int child_checks(struct pst_fs *fs, struct pst_file *f)
{
    struct pst_fs *own;
    struct stat st;
    char c;

    if (pst_pread(f, &c, 1, 0) != -ECHILD || pst_pwrite(f, "c", 1, 0) != -ECHILD || pst_fsync(f) != -ECHILD)
        return 1;
    if (pst_stat(fs, "/f", &st) != -ECHILD || pst_mkdir(fs, "/child", 0755) != -ECHILD || pst_close(f) != -ECHILD)
        return 2;
    if (pst_disconnect(fs) != -ECHILD || !strstr(pst_last_error(), "parent"))
        return 3;
#ifdef __SANITIZE_THREAD__
    return 0; /* the tool cannot follow threads that a forked child starts */
#endif
    if (!strncmp(api_base, "mem:", 4) &&
        (pst_connect("mem:?p/c", NULL, &own) != 0 || pst_mkdir(own, "/d", 0755) != 0 || pst_disconnect(own) != 0))
        return 4;
    return 0;
}

static void a_child_gets_errors_and_the_parent_goes_on(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = api_open_new(fs, "/f", 0);
    int status;
    pid_t pid;

    assert_int_equal(pst_pwrite(f, "parent", 6, 0), 6);
    pid = fork();
    if (pid == 0)
        _exit(child_checks(fs, f));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(pst_pwrite(f, "!", 1, 6), 1);
    assert_int_equal(pst_close(f), 0);
    api_expect(fs, "/f", "parent!");
}

static void names_are_renamed_swapped_and_kept(void **state)
{
    struct pst_fs *fs = *state;
    struct stat st;

    api_put(fs, "/a", "A");
    api_put(fs, "/b", "B");
    assert_int_equal(pst_rename(fs, "/a", "/b", PST_RENAME_KEEP), -EEXIST);
    assert_int_equal(pst_rename(fs, "/a", "/b", PST_RENAME_SWAP), 0);
    api_expect(fs, "/a", "B");
    api_expect(fs, "/b", "A");
    assert_int_equal(pst_rename(fs, "/a", "/c", PST_RENAME_KEEP), 0);
    assert_int_equal(pst_rename(fs, "/c", "/b", 0), 0);
    api_expect(fs, "/b", "B");
    assert_int_equal(pst_stat(fs, "/c", &st), -ENOENT);
    assert_int_equal(pst_rename(fs, "/c", "/d", 0), -ENOENT);
    assert_int_equal(pst_rename(fs, "/b", "/d", PST_RENAME_SWAP), -ENOENT);
}

static void an_open_file_outlives_its_name(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f = api_open_new(fs, "/f", 0);
    struct stat st;
    char buf[8];

    assert_int_equal(pst_pwrite(f, "content", 7, 0), 7);
    assert_int_equal(pst_unlink(fs, "/f"), 0);
    assert_int_equal(pst_stat(fs, "/f", &st), -ENOENT);
    assert_int_equal(pst_pread(f, buf, 8, 0), 7);
    assert_memory_equal(buf, "content", 7);
    assert_int_equal(pst_fstat(f, &st), 0);
    assert_int_equal(st.st_nlink, 0);
    assert_int_equal(pst_pwrite(f, "C", 1, 0), 1);
    assert_int_equal(pst_close(f), 0);
}

static void a_creator_may_write_what_its_mode_forbids(void **state)
{
    struct pst_fs *fs = *state;
    struct pst_file *f;

    assert_int_equal(pst_open(fs, "/ro", O_WRONLY | O_CREAT | O_EXCL, 0444, &f), 0);
    assert_int_equal(pst_pwrite(f, "x", 1, 0), 1);
    assert_int_equal(pst_close(f), 0);
    api_expect(fs, "/ro", "x");
}

static void extended_attributes_are_kept(void **state)
{
    struct pst_fs *fs = *state;
    char buf[64], *big = malloc(PST_XATTR_SIZE_MAX);
    int64_t n;

    if (!strncmp(api_base, "mem:", 4)) { /* that store has none */
        free(big);
        return;
    }
    api_put(fs, "/f", "x");
    assert_int_equal(pst_symlink(fs, "/f", "/l"), 0);
    assert_int_equal(pst_setxattr(fs, "/l", "user.a", "one", 3, 1, 0), 0);
    assert_int_equal(pst_setxattr(fs, "/f", "user.a", "two", 3, 1, 0), -EEXIST);
    assert_int_equal(pst_setxattr(fs, "/f", "user.b", "", 0, 2, 0), -ENODATA);
    assert_int_equal(pst_setxattr(fs, "/f", "user.b", "", 0, 0, 0), 0);
    assert_int_equal(pst_getxattr(fs, "/f", "user.a", NULL, 0, 0), 3);
    assert_int_equal(pst_getxattr(fs, "/f", "user.a", buf, 2, 0), -ERANGE);
    assert_int_equal(pst_getxattr(fs, "/f", "user.a", buf, sizeof buf, 0), 3);
    assert_memory_equal(buf, "one", 3);
    assert_int_equal(pst_getxattr(fs, "/f", "user.b", buf, sizeof buf, 0), 0);
    n = pst_listxattr(fs, "/f", buf, sizeof buf, 0);
    assert_int_equal(n, 14);
    assert_int_equal(pst_listxattr(fs, "/f", NULL, 0, 0), 14);
    assert_int_equal(pst_listxattr(fs, "/f", buf, 13, 0), -ERANGE);
    assert_int_equal(pst_removexattr(fs, "/f", "user.a", 0), 0);
    assert_int_equal(pst_removexattr(fs, "/f", "user.a", 0), -ENODATA);
    memset(big, 'b', PST_XATTR_SIZE_MAX);
    assert_int_equal(pst_setxattr(fs, "/f", "user.big", big, PST_XATTR_SIZE_MAX, 0, 0), 0);
    assert_int_equal(pst_getxattr(fs, "/f", "user.big", big, PST_XATTR_SIZE_MAX, 0), PST_XATTR_SIZE_MAX);
    free(big);
}

#define T(f) cmocka_unit_test_setup_teardown(f, api_setup, api_teardown)

int api_run_cases(void)
{
    const struct CMUnitTest tests[] = {
        T(paths_resolve_names_dots_and_links),
        T(wrong_targets_get_the_errno_of_posix),
        T(attributes_are_set_and_read),
        T(a_listing_is_complete_across_pages),
        T(a_child_gets_errors_and_the_parent_goes_on),
        T(names_are_renamed_swapped_and_kept),
        T(an_open_file_outlives_its_name),
        T(a_creator_may_write_what_its_mode_forbids),
        T(extended_attributes_are_kept),
    };

    return cmocka_run_group_tests_name(api_base, tests, NULL, NULL) + api_run_data_cases();
}
