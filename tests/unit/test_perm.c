/* Permission rules, from the POSIX pages of access, unlink, chmod, chown, utimensat. */
#include "store/perm.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static const struct pst_cred root = {0}, alice = {.uid = 1000, .gid = 1000},
                             bob = {.uid = 1001, .gid = 1001, .ngroups = 1, .groups = {1000}},
                             eve = {.uid = 1002, .gid = 1002};

static void access_looks_at_one_class_only(void **state)
{
    struct pst_attr a = {.mode = S_IFREG | 0074, .uid = 1000, .gid = 1000};
    (void)state;
    assert_int_equal(pst_perm_access(&alice, &a, R_OK), -EACCES); /* the owner's class, though the group may */
    assert_int_equal(pst_perm_access(&bob, &a, R_OK | W_OK | X_OK), 0);
    assert_int_equal(pst_perm_access(&eve, &a, R_OK), 0);
    assert_int_equal(pst_perm_access(&eve, &a, W_OK), -EACCES);
    assert_int_equal(pst_perm_access(NULL, &a, R_OK | W_OK), 0);
}

static void root_executes_only_what_someone_may(void **state)
{
    struct pst_attr f = {.mode = S_IFREG | 0600}, d = {.mode = S_IFDIR};
    (void)state;
    assert_int_equal(pst_perm_access(&root, &f, R_OK | W_OK), 0);
    assert_int_equal(pst_perm_access(&root, &f, X_OK), -EACCES);
    assert_int_equal(pst_perm_access(&root, &d, X_OK), 0);
}

static void sticky_directories_protect_entries(void **state)
{
    struct pst_attr dir = {.mode = S_IFDIR | S_ISVTX | 0777}, file = {.mode = S_IFREG, .uid = 1000};
    (void)state;
    assert_int_equal(pst_perm_remove(&alice, &dir, &file), 0);
    assert_int_equal(pst_perm_remove(&eve, &dir, &file), -EPERM);
    assert_int_equal(pst_perm_remove(&root, &dir, &file), 0);
    dir.mode = S_IFDIR | 0755;
    assert_int_equal(pst_perm_remove(&alice, &dir, &file), -EACCES);
}

static void setattr_follows_ownership(void **state)
{
    struct pst_attr a = {.mode = S_IFREG | S_ISUID | S_ISGID | 0755, .uid = 1000, .gid = 1000}, in = a;
    uint32_t clear = 0;
    (void)state;
    assert_int_equal(pst_perm_setattr(&eve, &a, PST_SET_MODE, &in, &clear), -EPERM);
    assert_int_equal(pst_perm_setattr(&alice, &a, PST_SET_MODE, &in, &clear), 0);
    assert_int_equal(clear, 0);
    in.uid = 1001;
    assert_int_equal(pst_perm_setattr(&alice, &a, PST_SET_UID, &in, &clear), -EPERM);
    assert_int_equal(pst_perm_setattr(&root, &a, PST_SET_UID, &in, &clear), 0);
    assert_int_equal(clear, S_ISUID | S_ISGID);
    in = a;
    in.gid = 1002;
    assert_int_equal(pst_perm_setattr(&alice, &a, PST_SET_GID, &in, &clear), -EPERM);
    assert_int_equal(pst_perm_setattr(&eve, &a, PST_SET_SIZE, &in, &clear), -EACCES);
    assert_int_equal(pst_perm_setattr(&eve, &a, PST_SET_MTIME, &in, &clear), -EPERM);
    assert_int_equal(pst_perm_setattr(&eve, &a, PST_SET_MTIME_NOW, &in, &clear), -EACCES);
    assert_int_equal(pst_perm_setattr(&alice, &a, PST_SET_CTIME, &in, &clear), -EPERM);
    assert_int_equal(pst_perm_setattr(NULL, &a, PST_SET_CTIME, &in, &clear), 0);
    assert_int_equal(clear, 0);
}

static void who_may_write_may_take_set_id_bits_away(void **state)
{
    struct pst_attr a = {.mode = S_IFREG | S_ISUID | S_ISGID | 0755, .uid = 1000, .gid = 1000};
    uint32_t clear = 0;
    (void)state;
    assert_int_equal(pst_perm_setattr(&eve, &a, PST_SET_NO_SETID, &a, &clear), -EACCES);
    a.mode |= S_IWOTH;
    assert_int_equal(pst_perm_setattr(&eve, &a, PST_SET_NO_SETID, &a, &clear), 0);
    assert_int_equal(clear, S_ISUID | S_ISGID);
    a.mode = S_IFREG | S_ISUID | S_ISGID | 0444; /* no write permission: its owner could give himself that */
    assert_int_equal(pst_perm_setattr(&alice, &a, PST_SET_NO_SETID, &a, &clear), 0);
    assert_int_equal(clear, S_ISUID); /* without group execute it is mandatory locking */
    a.mode = S_IFDIR | S_ISGID | 0777;
    assert_int_equal(pst_perm_setattr(NULL, &a, PST_SET_NO_SETID, &a, &clear), 0);
    assert_int_equal(clear, 0);
}

static void names_and_labels(void **state)
{
    char longest[PST_NAME_MAX + 2];
    (void)state;
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(pst_name_check(longest), -ENAMETOOLONG);
    longest[PST_NAME_MAX] = 0;
    assert_int_equal(pst_name_check(longest), 0);
    assert_int_equal(pst_name_check(""), -EINVAL);
    assert_int_equal(pst_name_check(".."), -EINVAL);
    assert_int_equal(pst_name_check("a/b"), -EINVAL);
    assert_int_equal(pst_name_check("..."), 0);
    assert_int_equal(pst_label_check("data-set_1.v2"), 0);
    assert_int_equal(pst_label_check("a b"), -EINVAL);
    assert_int_equal(pst_label_check(""), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(access_looks_at_one_class_only),
        cmocka_unit_test(root_executes_only_what_someone_may),
        cmocka_unit_test(sticky_directories_protect_entries),
        cmocka_unit_test(setattr_follows_ownership),
        cmocka_unit_test(who_may_write_may_take_set_id_bits_away),
        cmocka_unit_test(names_and_labels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
