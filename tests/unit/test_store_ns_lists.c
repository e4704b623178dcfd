/* The namespace of the embedded engine: listings, which bytes are names, extended attributes. */
#include "ns_fixture.h"

#define ROOT PST_ROOT_INO

static void listings_are_paged_and_need_rights(void **state)
{
    struct pst_ctx ctx = as(&nx_eve);
    struct nx_names l = {0};
    (void)state;
    uint64_t d = nx_made(&nx_alice, ROOT, "d", S_IFDIR | 0755);
    for (int i = 0; i < 300; i++) {
        char name[16];
        snprintf(name, sizeof name, "f%d", i);
        nx_made(&nx_alice, d, name, S_IFREG | 0644);
    }
    for (int pages = 0; pages < 31; pages++) {
        l.n = 0;
        l.stop_after = 10;
        l.text[0] = 0;
        assert_int_equal(pst_store_readdir(nx_c, &ctx, d, l.last, pages % 2, nx_note_name, &l), 0);
        assert_int_equal(l.n, pages < 30 ? 10 : 0);
    }
    l = (struct nx_names){0};
    assert_int_equal(pst_store_readdir(nx_c, &ctx, d, 0, false, nx_note_name, &l), 0);
    assert_int_equal(l.n, 300);
    assert_int_equal(nx_chmod(&nx_alice, d, 0711), 0);
    assert_int_equal(pst_store_readdir(nx_c, &ctx, d, 0, false, nx_note_name, &l), -EACCES);
    assert_int_equal(pst_store_readdir(nx_c, &ctx, d, UINT64_MAX, false, nx_note_name, &l), -EACCES);
    ctx = as(NULL);
    assert_int_equal(pst_store_readdir(nx_c, &ctx, d, UINT64_MAX, false, nx_note_name, &l), 0);
    assert_int_equal(pst_store_readdir(nx_c, &ctx, 424242, 0, false, nx_note_name, &l), -ENOENT);
}

static int note_attr(const struct pst_dirent *de, void *user)
{
    *(uint64_t *)user = de->attr.ino;
    return 0;
}

static void attributes_are_listed_only_for_who_may_search(void **state)
{
    struct pst_ctx eve = as(&nx_eve), alice = as(&nx_alice);
    uint64_t d = nx_made(&nx_alice, ROOT, "d", S_IFDIR | 0744), f = nx_made(&nx_alice, d, "f", S_IFREG | 0600), got = 1;
    (void)state;
    assert_int_equal(pst_store_readdir(nx_c, &eve, d, 0, true, note_attr, &got), 0);
    assert_int_equal(got, 0);
    assert_int_equal(pst_store_readdir(nx_c, &alice, d, 0, true, note_attr, &got), 0);
    assert_int_equal(got, f);
}

static void a_replaced_name_keeps_its_place_in_listings(void **state)
{
    (void)state;
    nx_made(NULL, ROOT, "a", S_IFREG | 0644);
    nx_made(NULL, ROOT, "b", S_IFREG | 0644);
    nx_made(NULL, ROOT, "tmp", S_IFREG | 0644);
    assert_int_equal(nx_rename(NULL, ROOT, "tmp", ROOT, "a", 0), 0);
    assert_string_equal(nx_list(ROOT), "a b ");
    assert_int_equal(nx_rename(NULL, ROOT, "a", ROOT, "c", 0), 0);
    assert_string_equal(nx_list(ROOT), "b c ");
}

static void names_are_bytes(void **state)
{
    char longest[PST_NAME_MAX + 1];
    (void)state;
    memset(longest, 0xff, PST_NAME_MAX);
    longest[PST_NAME_MAX] = 0;
    uint64_t f = nx_made(NULL, ROOT, longest, S_IFREG | 0644);
    struct pst_attr a;
    assert_int_equal(nx_look(NULL, ROOT, longest, &a), 0);
    assert_int_equal(a.ino, f);
    nx_made(NULL, ROOT, "\x01 \n\\", S_IFREG | 0644);
    assert_int_equal(nx_look(NULL, ROOT, "\x01 \n\\", &a), 0);
    assert_int_equal(nx_make(NULL, ROOT, "a/b", S_IFREG | 0644, NULL), -EINVAL);
    assert_int_equal(nx_make(NULL, ROOT, "..", S_IFREG | 0644, NULL), -EINVAL);
    assert_int_equal(nx_unlink(NULL, ROOT, longest), 0);
}

static int set_x(const struct pst_cred *cred, uint64_t ino, const char *name, const char *value, uint32_t flags)
{
    struct pst_ctx ctx = as(cred);
    return pst_store_setxattr(nx_c, &ctx, ino, name, value, strlen(value), flags);
}

static int64_t get_x(const struct pst_cred *cred, uint64_t ino, const char *name, char *ret, size_t size)
{
    struct pst_ctx ctx = as(cred);
    return pst_store_getxattr(nx_c, &ctx, ino, name, ret, size);
}

static void xattrs_are_set_read_listed_and_removed(void **state)
{
    struct pst_ctx alice = as(&nx_alice), root = as(&nx_root);
    char buf[64];
    (void)state;
    uint64_t f = nx_made(&nx_alice, ROOT, "f", S_IFREG | 0644), l = nx_made(&nx_alice, ROOT, "l", S_IFLNK);
    struct pst_attr before = nx_attr(f);
    assert_int_equal(set_x(&nx_alice, f, "user.a", "one", PST_XATTR_REPLACE), -ENODATA);
    assert_int_equal(set_x(&nx_alice, f, "user.a", "one", PST_XATTR_CREATE), 0);
    assert_int_equal(set_x(&nx_alice, f, "user.a", "two", PST_XATTR_CREATE), -EEXIST);
    assert_int_equal(set_x(&nx_alice, f, "user.a", "three", PST_XATTR_REPLACE), 0);
    assert_int_equal(set_x(&nx_alice, f, "user.empty", "", 0), 0);
    assert_true(nx_attr(f).change > before.change);
    assert_int_equal(get_x(&nx_eve, f, "user.a", buf, sizeof buf), 5);
    assert_memory_equal(buf, "three", 5);
    assert_int_equal(get_x(&nx_eve, f, "user.a", NULL, 0), 5);
    assert_int_equal(get_x(&nx_eve, f, "user.a", buf, 4), -ERANGE);
    assert_int_equal(get_x(&nx_eve, f, "user.empty", buf, sizeof buf), 0);
    assert_int_equal(get_x(&nx_eve, f, "user.none", buf, sizeof buf), -ENODATA);
    assert_int_equal(set_x(&nx_eve, f, "user.a", "x", 0), -EACCES);
    assert_int_equal(set_x(&nx_alice, f, "trusted.t", "x", 0), -EPERM);
    assert_int_equal(set_x(&nx_root, f, "trusted.t", "x", 0), 0);
    assert_int_equal(get_x(&nx_alice, f, "trusted.t", buf, sizeof buf), -ENODATA);
    assert_int_equal(get_x(&nx_root, f, "trusted.t", buf, sizeof buf), 1);
    assert_int_equal(set_x(&nx_alice, f, "security.s", "x", 0), -EPERM);
    assert_int_equal(set_x(&nx_alice, f, "system.posix_acl_access", "x", 0), -EOPNOTSUPP);
    assert_int_equal(get_x(&nx_alice, f, "system.posix_acl_access", buf, sizeof buf), -EOPNOTSUPP);
    assert_int_equal(set_x(&nx_alice, f, "other.s", "x", 0), -EOPNOTSUPP);
    assert_int_equal(set_x(&nx_alice, f, "user.", "x", 0), -EINVAL);
    assert_int_equal(set_x(&nx_alice, l, "user.a", "x", 0), -EPERM);
    assert_int_equal(pst_store_listxattr(nx_c, &alice, f, buf, sizeof buf), 18);
    assert_memory_equal(buf, "user.a\0user.empty", 18);
    assert_int_equal(pst_store_listxattr(nx_c, &root, f, NULL, 0), 28);
    assert_int_equal(pst_store_listxattr(nx_c, &root, f, buf, 27), -ERANGE);
    assert_int_equal(pst_store_removexattr(nx_c, &alice, f, "user.a"), 0);
    assert_int_equal(pst_store_removexattr(nx_c, &alice, f, "user.a"), -ENODATA);
    assert_int_equal(pst_store_listxattr(nx_c, &alice, f, buf, sizeof buf), 11);
    nx_reopen();
    assert_int_equal(get_x(&nx_root, f, "trusted.t", buf, sizeof buf), 1);
    assert_int_equal(nx_unlink(&nx_alice, ROOT, "f"), 0);
    assert_int_equal(get_x(&nx_root, f, "trusted.t", buf, sizeof buf), -ENOENT);
}

static void a_header_of_crypt_is_made_once_by_who_may_write_and_read_by_all(void **state)
{
    struct pst_ctx alice = as(&nx_alice);
    char buf[64];
    (void)state;
    uint64_t f = nx_made(&nx_alice, ROOT, "key1", S_IFREG | 0444), g = nx_made(&nx_alice, ROOT, "key2", S_IFREG | 0666),
             d = nx_made(&nx_alice, ROOT, "key3", S_IFDIR | 0777);
    assert_int_equal(set_x(&nx_eve, f, PST_XATTR_KEY, "x", PST_XATTR_CREATE), -EPERM);
    assert_int_equal(set_x(&nx_eve, d, PST_XATTR_KEY, "x", PST_XATTR_CREATE), -EPERM);
    assert_int_equal(set_x(&nx_eve, g, PST_XATTR_KEY, "x", 0), -EPERM);
    assert_int_equal(set_x(&nx_eve, g, PST_XATTR_KEY, "eve", PST_XATTR_CREATE), 0);
    assert_int_equal(set_x(&nx_alice, f, PST_XATTR_KEY, "alice", PST_XATTR_CREATE), 0);
    assert_int_equal(set_x(&nx_alice, d, PST_XATTR_KEY, "alice", PST_XATTR_CREATE), 0);
    assert_int_equal(set_x(&nx_alice, f, PST_XATTR_KEY, "x", PST_XATTR_CREATE), -EEXIST);
    assert_int_equal(set_x(&nx_alice, f, PST_XATTR_KEY, "x", PST_XATTR_REPLACE), -EPERM);
    assert_int_equal(set_x(&nx_alice, f, PST_XATTR_KEY, "x", 0), -EPERM);
    assert_int_equal(pst_store_removexattr(nx_c, &alice, f, PST_XATTR_KEY), -EPERM);
    assert_int_equal(get_x(&nx_eve, f, PST_XATTR_KEY, buf, sizeof buf), 5);
    assert_memory_equal(buf, "alice", 5);
    assert_int_equal(pst_store_listxattr(nx_c, &alice, f, NULL, 0), 0);
    assert_int_equal(set_x(&nx_root, f, PST_XATTR_KEY, "anew", PST_XATTR_REPLACE), 0);
}

static void xattrs_are_bounded(void **state)
{
    struct pst_ctx ctx = as(NULL);
    char *big = calloc(1, PST_XATTR_SIZE_MAX + 1), name[64];
    (void)state;
    uint64_t f = nx_made(NULL, ROOT, "f", S_IFREG | 0644);
    assert_int_equal(pst_store_setxattr(nx_c, &ctx, f, "user.big", big, PST_XATTR_SIZE_MAX + 1, 0), -E2BIG);
    assert_int_equal(pst_store_setxattr(nx_c, &ctx, f, "user.big", big, PST_XATTR_SIZE_MAX, 0), 0);
    assert_int_equal(pst_store_getxattr(nx_c, &ctx, f, "user.big", big, PST_XATTR_SIZE_MAX), PST_XATTR_SIZE_MAX);
    for (unsigned i = 1; i < NS_XATTRS_MAX; i++) {
        snprintf(name, sizeof name, "user.%u", i);
        assert_int_equal(set_x(NULL, f, name, "v", 0), 0);
    }
    assert_int_equal(set_x(NULL, f, "user.more", "v", 0), -ENOSPC);
    assert_int_equal(set_x(NULL, f, "user.1", "w", 0), 0);
    assert_int_equal(nx_unlink(NULL, ROOT, "f"), 0);
    free(big);
}

#define T(name) cmocka_unit_test_setup_teardown(name, nx_setup, nx_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(listings_are_paged_and_need_rights),
        T(attributes_are_listed_only_for_who_may_search),
        T(a_replaced_name_keeps_its_place_in_listings),
        T(names_are_bytes),
        T(xattrs_are_set_read_listed_and_removed),
        T(a_header_of_crypt_is_made_once_by_who_may_write_and_read_by_all),
        T(xattrs_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
