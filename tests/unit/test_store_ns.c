/* The namespace of the embedded engine: what each operation does, and what it answers when it must not. */
#include "ns_fixture.h"

#define ROOT PST_ROOT_INO

static void a_new_object_has_its_makers_attributes(void **state)
{
    (void)state;
    int64_t before = wall_ns();
    uint64_t f = nx_made(&nx_alice, ROOT, "f", S_IFREG | 0640);
    struct pst_attr a = nx_attr(f), b;
    assert_int_equal(a.ino, f);
    assert_int_equal(a.mode, S_IFREG | 0640);
    assert_int_equal(a.uid, 1000);
    assert_int_equal(a.gid, 1000);
    assert_int_equal(a.nlink, 1);
    assert_int_equal(a.size, 0);
    assert_int_equal(a.chunk_size, PST_CHUNK_DEFAULT);
    assert_true(a.btime_ns >= before && a.mtime_ns == a.btime_ns && a.ctime_ns == a.btime_ns);
    assert_int_equal(nx_look(&nx_eve, ROOT, "f", &b), 0);
    assert_true(nx_same(&a, &b));
    assert_int_equal(nx_look(&nx_eve, ROOT, "g", &b), -ENOENT);
    assert_int_equal(nx_look(&nx_eve, f, "g", &b), -ENOTDIR);
    assert_int_equal(nx_look(&nx_eve, 999999, "g", &b), -ENOENT);
    assert_int_equal(nx_stat(999999), -ENOENT);
}

static void making_changes_the_directory(void **state)
{
    (void)state;
    struct pst_attr before = nx_attr(ROOT), after;
    nx_made(&nx_alice, ROOT, "f", S_IFREG | 0644);
    after = nx_attr(ROOT);
    assert_true(after.change > before.change);
    assert_true(after.mtime_ns >= before.mtime_ns && after.ctime_ns == after.mtime_ns);
    assert_int_equal(after.nlink, 2);
    uint64_t d = nx_made(&nx_alice, ROOT, "d", S_IFDIR | 0755);
    assert_int_equal(nx_attr(ROOT).nlink, 3);
    assert_int_equal(nx_attr(d).nlink, 2);
}

static void make_refuses_what_it_must(void **state)
{
    struct pst_ctx ctx = as(&nx_alice);
    struct pst_new in = {.mode = S_IFREG | 0644};
    struct pst_attr a;
    bool created = true;
    (void)state;
    uint64_t f = nx_made(&nx_alice, ROOT, "f", S_IFREG | 0644), d = nx_made(&nx_alice, ROOT, "d", S_IFDIR | 0755);
    nx_made(&nx_alice, ROOT, "l", S_IFLNK);
    assert_int_equal(nx_make(&nx_alice, ROOT, "f", S_IFREG | 0644, NULL), -EEXIST);
    assert_int_equal(nx_make(&nx_alice, ROOT, "d", S_IFDIR | 0755, NULL), -EEXIST);
    assert_int_equal(nx_make(&nx_alice, f, "x", S_IFREG | 0644, NULL), -ENOTDIR);
    assert_int_equal(nx_make(&nx_eve, d, "x", S_IFREG | 0644, NULL), -EACCES);
    assert_int_equal(nx_make(&nx_eve, d, "x", S_IFDIR | 0755, NULL), -EACCES);
    assert_int_equal(nx_make(&nx_alice, ROOT, "n", S_IFCHR | 0644, NULL), -EPERM);
    assert_int_equal(nx_make(&nx_root, ROOT, "n", S_IFCHR | 0644, NULL), 0);
    assert_int_equal(pst_store_make(nx_c, &ctx, ROOT, "f", &in, &a, &created), 0);
    assert_false(created);
    assert_int_equal(a.ino, f);
    assert_int_equal(pst_store_make(nx_c, &ctx, ROOT, "d", &in, &a, &created), -EISDIR);
    assert_int_equal(pst_store_make(nx_c, &ctx, ROOT, "l", &in, &a, &created), -EEXIST);
    assert_int_equal(nx_chmod(&nx_alice, d, 0644), 0);
    assert_int_equal(nx_look(&nx_alice, d, "f", NULL), -EACCES); /* no search permission */
    assert_int_equal(nx_look(&nx_root, d, "f", NULL), -ENOENT);
}

static void set_group_id_is_inherited(void **state)
{
    (void)state;
    uint64_t d = nx_made(&nx_alice, ROOT, "d", S_IFDIR | 02777);
    assert_int_equal(nx_attr(nx_made(&nx_eve, d, "f", S_IFREG | 0644)).gid, 1000);
    struct pst_attr sub = nx_attr(nx_made(&nx_eve, d, "s", S_IFDIR | 0755));
    assert_int_equal(sub.gid, 1000);
    assert_int_equal(sub.mode, S_IFDIR | 02755);
    /* eve is not in the group: no set-group-id program of it; bob is */
    assert_int_equal(nx_attr(nx_made(&nx_eve, d, "p", S_IFREG | 02755)).mode, S_IFREG | 0755);
    assert_int_equal(nx_attr(nx_made(&nx_bob, d, "q", S_IFREG | 02755)).mode, S_IFREG | 02755);
}

static void symlinks_keep_their_target(void **state)
{
    struct pst_ctx ctx = as(&nx_alice);
    struct pst_new in = {.mode = S_IFLNK};
    struct pst_attr a;
    char *target = malloc(PST_SYMLINK_MAX + 1), *got = malloc(PST_SYMLINK_MAX + 1);
    (void)state;
    for (size_t n = 1; n <= PST_SYMLINK_MAX; n += n < 200 ? 64 : PST_SYMLINK_MAX - n ? PST_SYMLINK_MAX - n : 1) {
        char name[32];
        memset(target, 'x', n);
        target[n] = 0;
        snprintf(name, sizeof name, "l%zu", n);
        in.target = target;
        assert_int_equal(pst_store_make(nx_c, &ctx, ROOT, name, &in, &a, NULL), 0);
        assert_int_equal(a.size, n);
        assert_int_equal(a.mode, S_IFLNK | 0777);
        assert_int_equal(pst_store_readlink(nx_c, &ctx, a.ino, got, PST_SYMLINK_MAX + 1), n);
        assert_string_equal(got, target);
        assert_int_equal(pst_store_readlink(nx_c, &ctx, a.ino, got, n), -ERANGE);
    }
    assert_int_equal(pst_store_readlink(nx_c, &ctx, ROOT, got, 10), -EINVAL);
    free(target);
    free(got);
}

static void links_count_names(void **state)
{
    (void)state;
    uint64_t f = nx_made(&nx_alice, ROOT, "f", S_IFREG | 0644), d = nx_made(&nx_alice, ROOT, "d", S_IFDIR | 0755);
    struct pst_attr before = nx_attr(f), after;
    assert_int_equal(nx_link(&nx_alice, f, d, "g"), 0);
    after = nx_attr(f);
    assert_int_equal(after.nlink, 2);
    assert_true(after.change > before.change && after.ctime_ns >= before.ctime_ns);
    assert_int_equal(after.mtime_ns, before.mtime_ns);
    assert_int_equal(nx_link(&nx_alice, f, d, "g"), -EEXIST);
    assert_int_equal(nx_link(&nx_alice, d, ROOT, "h"), -EPERM);
    assert_int_equal(nx_link(&nx_alice, d, d, "h"), -EPERM);
    assert_int_equal(nx_link(&nx_alice, 424242, d, "h"), -ENOENT);
    assert_int_equal(nx_link(&nx_eve, f, d, "h"), -EACCES);
    assert_int_equal(nx_unlink(&nx_alice, ROOT, "f"), 0);
    assert_int_equal(nx_attr(f).nlink, 1);
    assert_int_equal(nx_unlink(&nx_alice, d, "g"), 0);
    assert_int_equal(nx_stat(f), -ENOENT);
}

static void unlink_and_rmdir_know_their_kind(void **state)
{
    (void)state;
    uint64_t d = nx_made(&nx_alice, ROOT, "d", S_IFDIR | 0755), s = nx_made(&nx_alice, d, "s", S_IFDIR | 0755);
    nx_made(&nx_alice, d, "f", S_IFREG | 0644);
    assert_int_equal(nx_unlink(&nx_alice, ROOT, "d"), -EISDIR);
    assert_int_equal(nx_rmdir(&nx_alice, d, "f"), -ENOTDIR);
    assert_int_equal(nx_rmdir(&nx_alice, ROOT, "d"), -ENOTEMPTY);
    assert_int_equal(nx_unlink(&nx_alice, d, "nothing"), -ENOENT);
    assert_int_equal(nx_unlink(&nx_eve, d, "f"), -EACCES);
    assert_int_equal(nx_attr(d).nlink, 3);
    assert_int_equal(nx_rmdir(&nx_alice, d, "s"), 0);
    assert_int_equal(nx_attr(d).nlink, 2);
    assert_int_equal(nx_stat(s), -ENOENT);
    assert_int_equal(nx_unlink(&nx_alice, d, "f"), 0);
    assert_int_equal(nx_rmdir(&nx_alice, ROOT, "d"), 0);
    assert_int_equal(nx_attr(ROOT).nlink, 2);
    assert_string_equal(nx_list(ROOT), "");
}

static void sticky_directories_protect_others_entries(void **state)
{
    (void)state;
    uint64_t d = nx_made(&nx_root, ROOT, "tmp", S_IFDIR | 01777);
    nx_made(&nx_alice, d, "a", S_IFREG | 0666);
    nx_made(&nx_eve, d, "e", S_IFREG | 0666);
    assert_int_equal(nx_unlink(&nx_eve, d, "a"), -EPERM);
    assert_int_equal(nx_rename(&nx_eve, d, "a", d, "b", 0), -EPERM);
    assert_int_equal(nx_rename(&nx_eve, d, "e", d, "a", 0), -EPERM);
    assert_int_equal(nx_rename(&nx_eve, d, "e", d, "a", PST_RENAME_EXCHANGE), -EPERM);
    assert_int_equal(nx_unlink(&nx_alice, d, "a"), 0);
    assert_int_equal(nx_unlink(&nx_root, d, "e"), 0);
}

static void rename_moves_and_replaces(void **state)
{
    (void)state;
    uint64_t d = nx_made(&nx_alice, ROOT, "d", S_IFDIR | 0755), e = nx_made(&nx_alice, ROOT, "e", S_IFDIR | 0755);
    uint64_t f = nx_made(&nx_alice, d, "f", S_IFREG | 0644), g = nx_made(&nx_alice, e, "g", S_IFREG | 0644), parent = 0;
    uint64_t s = nx_made(&nx_alice, d, "s", S_IFDIR | 0755), t = nx_made(&nx_alice, e, "t", S_IFDIR | 0755);
    struct pst_attr a;
    assert_int_equal(nx_rename(&nx_alice, d, "f", e, "g", 0), 0);
    assert_int_equal(nx_look(NULL, e, "g", &a), 0);
    assert_int_equal(a.ino, f);
    assert_int_equal(nx_stat(g), -ENOENT);
    assert_int_equal(nx_look(NULL, d, "f", &a), -ENOENT);
    assert_int_equal(nx_rename(&nx_alice, d, "s", e, "t", 0), 0);
    assert_int_equal(nx_stat(t), -ENOENT);
    assert_int_equal(pst_store_parent(nx_c, s, &parent), 0);
    assert_int_equal(parent, e);
    assert_int_equal(nx_attr(d).nlink, 2);
    assert_int_equal(nx_attr(e).nlink, 3);
    assert_string_equal(nx_list(d), "");
    assert_string_equal(nx_list(e), "g t ");
    assert_int_equal(nx_rename(&nx_alice, e, "t", d, "s", 0), 0);
    assert_int_equal(nx_attr(d).nlink, 3);
    assert_int_equal(nx_attr(e).nlink, 2);
    assert_int_equal(nx_rename(&nx_alice, d, "s", d, "s", 0), 0);
    assert_string_equal(nx_list(d), "s ");
}

static void rename_refuses_what_it_must(void **state)
{
    (void)state;
    uint64_t d = nx_made(&nx_alice, ROOT, "d", S_IFDIR | 0755), s = nx_made(&nx_alice, d, "s", S_IFDIR | 0755);
    uint64_t f = nx_made(&nx_alice, d, "f", S_IFREG | 0644);
    nx_made(&nx_alice, s, "x", S_IFREG | 0644);
    nx_made(&nx_alice, ROOT, "o", S_IFDIR | 0755);
    nx_made(&nx_alice, ROOT, "h", S_IFREG | 0644);
    assert_int_equal(nx_rename(&nx_alice, d, "f", d, "s", 0), -EISDIR);
    assert_int_equal(nx_rename(&nx_alice, d, "s", d, "f", 0), -ENOTDIR);
    assert_int_equal(nx_rename(&nx_alice, ROOT, "o", d, "s", 0), -ENOTEMPTY);
    assert_int_equal(nx_rename(&nx_alice, ROOT, "d", d, "y", 0), -EINVAL);
    assert_int_equal(nx_rename(&nx_alice, ROOT, "d", s, "y", 0), -EINVAL);
    assert_int_equal(nx_rename(&nx_alice, ROOT, "d", s, "x", PST_RENAME_EXCHANGE), -EINVAL);
    assert_int_equal(nx_rename(&nx_alice, s, "x", ROOT, "d", 0), -ENOTEMPTY);
    assert_int_equal(nx_rename(&nx_alice, s, "x", ROOT, "d", PST_RENAME_EXCHANGE), -EINVAL);
    assert_int_equal(nx_rename(&nx_alice, d, "nothing", ROOT, "z", 0), -ENOENT);
    assert_int_equal(nx_rename(&nx_alice, d, "f", f, "z", 0), -ENOTDIR);
    assert_int_equal(nx_rename(&nx_alice, d, "f", ROOT, "h", PST_RENAME_NOREPLACE), -EEXIST);
    assert_int_equal(nx_rename(&nx_alice, d, "f", ROOT, "z", PST_RENAME_EXCHANGE), -ENOENT);
    assert_int_equal(nx_rename(&nx_eve, d, "f", ROOT, "z", 0), -EACCES);
    assert_int_equal(nx_rename(&nx_alice, d, "f", ROOT, "z", PST_RENAME_NOREPLACE), 0);
    /* a directory changes its "..": that takes write permission on it */
    uint64_t eves = nx_made(&nx_eve, ROOT, "eves", S_IFDIR | 0555);
    (void)eves;
    assert_int_equal(nx_chmod(&nx_alice, d, 0777), 0);
    assert_int_equal(nx_rename(&nx_eve, ROOT, "eves", d, "eves", 0), -EACCES);
    assert_int_equal(nx_rename(&nx_eve, ROOT, "eves", ROOT, "hers", 0), 0);
}

static void rename_of_two_links_does_nothing(void **state)
{
    (void)state;
    uint64_t f = nx_made(&nx_alice, ROOT, "f", S_IFREG | 0644);
    assert_int_equal(nx_link(&nx_alice, f, ROOT, "g"), 0);
    assert_int_equal(nx_rename(&nx_alice, ROOT, "f", ROOT, "g", 0), 0);
    assert_int_equal(nx_rename(&nx_alice, ROOT, "f", ROOT, "g", PST_RENAME_EXCHANGE), 0);
    assert_string_equal(nx_list(ROOT), "f g ");
    assert_int_equal(nx_attr(f).nlink, 2);
}

static void exchange_swaps_names_of_any_kind(void **state)
{
    (void)state;
    uint64_t d = nx_made(&nx_alice, ROOT, "d", S_IFDIR | 0755), s = nx_made(&nx_alice, d, "s", S_IFDIR | 0755);
    uint64_t f = nx_made(&nx_alice, ROOT, "f", S_IFREG | 0644), x = nx_made(&nx_alice, s, "x", S_IFREG | 0644), p = 0;
    struct pst_attr a;
    assert_int_equal(nx_rename(&nx_alice, ROOT, "f", d, "s", PST_RENAME_EXCHANGE), 0);
    assert_int_equal(nx_look(NULL, ROOT, "f", &a), 0);
    assert_int_equal(a.ino, s);
    assert_int_equal(nx_look(NULL, d, "s", &a), 0);
    assert_int_equal(a.ino, f);
    assert_int_equal(nx_attr(ROOT).nlink, 4);
    assert_int_equal(nx_attr(d).nlink, 2);
    assert_int_equal(pst_store_parent(nx_c, s, &p), 0);
    assert_int_equal(p, ROOT);
    assert_int_equal(nx_look(NULL, s, "x", &a), 0);
    assert_int_equal(a.ino, x);
    assert_string_equal(nx_list(ROOT), "d f ");
}

static void setattr_changes_what_the_mask_names(void **state)
{
    (void)state;
    uint64_t f = nx_made(&nx_alice, ROOT, "f", S_IFREG | 0644);
    struct pst_attr before = nx_attr(f), a;
    struct pst_attr in = {
        .mode = 0600, .uid = 7, .gid = 8, .size = 12345, .atime_ns = -5, .mtime_ns = 6, .ctime_ns = 7};
    assert_int_equal(nx_set(&nx_alice, f, PST_SET_MODE | PST_SET_ATIME | PST_SET_MTIME, &in), 0);
    a = nx_attr(f);
    assert_int_equal(a.mode, S_IFREG | 0600);
    assert_true(a.atime_ns == -5 && a.mtime_ns == 6 && a.ctime_ns >= before.ctime_ns && a.change > before.change);
    assert_int_equal(a.size, 0);
    assert_int_equal(nx_set(&nx_alice, f, PST_SET_SIZE, &in), 0);
    assert_int_equal(nx_attr(f).size, 12345);
    assert_true(nx_attr(f).mtime_ns > 6);
    assert_int_equal(nx_set(&nx_alice, f, PST_SET_UID, &in), -EPERM);
    assert_int_equal(nx_set(&nx_alice, f, PST_SET_GID, &in), -EPERM);
    assert_int_equal(nx_set(&nx_alice, f, PST_SET_CTIME, &in), -EPERM);
    assert_int_equal(nx_set(&nx_eve, f, PST_SET_SIZE, &in), -EACCES);
    assert_int_equal(nx_set(&nx_eve, f, PST_SET_MTIME_NOW, &in), -EACCES);
    assert_int_equal(nx_set(NULL, f, PST_SET_UID | PST_SET_GID | PST_SET_CTIME, &in), 0);
    a = nx_attr(f);
    assert_true(a.uid == 7 && a.gid == 8 && a.ctime_ns == 7);
    uint64_t d = nx_made(&nx_alice, ROOT, "d", S_IFDIR | 0755), l = nx_made(&nx_alice, ROOT, "l", S_IFLNK);
    assert_int_equal(nx_set(&nx_alice, d, PST_SET_SIZE, &in), -EISDIR);
    assert_int_equal(nx_set(&nx_alice, l, PST_SET_SIZE, &in), -EINVAL);
    assert_int_equal(nx_set(&nx_alice, l, PST_SET_MODE, &in), -EOPNOTSUPP);
    assert_int_equal(nx_set(&nx_alice, 424242, PST_SET_MODE, &in), -ENOENT);
    in.size = PST_FILE_MAX + 1;
    assert_int_equal(nx_set(NULL, f, PST_SET_SIZE, &in), -EFBIG);
    in.mode = 06755;
    assert_int_equal(nx_set(NULL, f, PST_SET_MODE, &in), 0);
    assert_int_equal(nx_set(&nx_root, f, PST_SET_UID, &in), 0);
    assert_int_equal(nx_attr(f).mode, S_IFREG | 0755); /* a new owner has not made it a set-id program */
}

static void set_id_bits_are_taken_away_and_nothing_else_changes(void **state)
{
    (void)state;
    uint64_t f = nx_made(&nx_alice, ROOT, "f", S_IFREG | 0777);
    struct pst_attr in = {.mode = 06767}, a;
    assert_int_equal(nx_set(NULL, f, PST_SET_MODE, &in), 0);
    in.mode = 0; /* not of this mask */
    assert_int_equal(nx_set(&nx_eve, f, PST_SET_NO_SETID | PST_SET_MODE, &in), -EPERM);
    assert_int_equal(nx_set(&nx_eve, f, PST_SET_NO_SETID, &in), 0);
    a = nx_attr(f);
    assert_int_equal(a.mode, S_IFREG | S_ISGID | 0767);
    assert_int_equal(nx_set(&nx_eve, f, PST_SET_NO_SETID, &in), 0);
    assert_int_equal(nx_attr(f).change, a.change);
    in.mode = 06700;
    assert_int_equal(nx_set(&nx_root, f, PST_SET_MODE, &in), 0);
    assert_int_equal(nx_set(&nx_eve, f, PST_SET_NO_SETID, &in), -EACCES);
    assert_int_equal(nx_attr(f).mode, S_IFREG | 06700);
}

static void an_owner_truncates_what_he_has_open(void **state)
{
    struct pst_ctx root = as(NULL);
    struct pst_attr a, in = {.size = 10};
    (void)state;
    uint64_t f = nx_made(&nx_alice, ROOT, "f", S_IFREG | 0444);
    assert_int_equal(nx_set(&nx_alice, f, PST_SET_SIZE, &in), -EACCES);
    assert_int_equal(pst_store_open(nx_c, &root, f, W_OK, false, &a), 0);
    assert_int_equal(nx_set(&nx_alice, f, PST_SET_SIZE, &in), 0);
    assert_int_equal(nx_set(&nx_eve, f, PST_SET_SIZE, &in), -EACCES);
    pst_store_release(nx_c, f);
    assert_int_equal(nx_set(&nx_alice, f, PST_SET_SIZE, &in), -EACCES);
}

static void open_checks_rights_and_keeps_the_object(void **state)
{
    struct pst_ctx alice = as(&nx_alice), eve = as(&nx_eve);
    struct pst_attr a, in = {.size = 100};
    (void)state;
    uint64_t f = nx_made(&nx_alice, ROOT, "f", S_IFREG | 0640), d = nx_made(&nx_alice, ROOT, "d", S_IFDIR | 0755);
    assert_int_equal(nx_set(&nx_alice, f, PST_SET_SIZE, &in), 0);
    assert_int_equal(pst_store_open(nx_c, &eve, f, R_OK, false, &a), -EACCES);
    assert_int_equal(pst_store_open(nx_c, &eve, f, 0, false, &a), 0);
    pst_store_release(nx_c, f);
    assert_int_equal(pst_store_open(nx_c, &alice, d, W_OK, false, &a), -EISDIR);
    assert_int_equal(pst_store_open(nx_c, &alice, d, R_OK, false, &a), 0);
    assert_int_equal(pst_store_open(nx_c, &alice, f, R_OK | W_OK, true, &a), 0);
    assert_int_equal(a.size, 0);
    assert_int_equal(nx_unlink(&nx_alice, ROOT, "f"), 0);
    assert_int_equal(nx_rmdir(&nx_alice, ROOT, "d"), 0);
    assert_int_equal(nx_attr(f).nlink, 0);
    assert_int_equal(nx_attr(d).nlink, 0);
    assert_int_equal(nx_make(&nx_alice, d, "late", S_IFREG | 0644, NULL), -ENOENT);
    assert_string_equal(nx_list(d), "");
    assert_int_equal(nx_link(&nx_alice, f, ROOT, "again"), -ENOENT);
    assert_int_equal(nx_set(&nx_alice, f, PST_SET_SIZE, &in), 0);
    assert_int_equal(pst_store_open(nx_c, &alice, f, R_OK, false, &a), 0); /* a second handle */
    pst_store_release(nx_c, f);
    assert_int_equal(nx_attr(f).size, 100);
    pst_store_release(nx_c, f);
    pst_store_release(nx_c, d);
    assert_int_equal(nx_stat(f), -ENOENT);
    assert_int_equal(nx_stat(d), -ENOENT);
    assert_int_equal(pst_store_open(nx_c, &alice, f, R_OK, false, &a), -ENOENT);
}

static void orphans_go_at_the_next_start(void **state)
{
    struct pst_ctx ctx = as(NULL);
    struct pst_statfs sf;
    struct pst_attr a;
    (void)state;
    uint64_t f = nx_made(NULL, ROOT, "f", S_IFREG | 0644);
    assert_int_equal(pst_store_open(nx_c, &ctx, f, R_OK, false, &a), 0);
    assert_int_equal(nx_unlink(NULL, ROOT, "f"), 0);
    assert_int_equal(pst_store_statfs(nx_c, &sf), 0);
    assert_int_equal(sf.objects, 2);
    nx_reopen();
    assert_int_equal(nx_stat(f), -ENOENT);
    assert_int_equal(pst_store_statfs(nx_c, &sf), 0);
    assert_int_equal(sf.objects, 1);
}

static void everything_is_there_after_a_restart(void **state)
{
    struct pst_ctx ctx = as(NULL);
    char target[64];
    (void)state;
    uint64_t d = nx_made(&nx_alice, ROOT, "d", S_IFDIR | 0755), f = nx_made(&nx_alice, d, "f", S_IFREG | 0640);
    uint64_t l = nx_made(&nx_alice, d, "l", S_IFLNK);
    struct pst_attr fa = nx_attr(f), da = nx_attr(d), ra = nx_attr(ROOT), a;
    for (int i = 0; i < 3; i++) {
        nx_reopen();
        a = nx_attr(f);
        assert_true(nx_same(&a, &fa));
        a = nx_attr(d);
        assert_true(nx_same(&a, &da));
        a = nx_attr(ROOT);
        assert_true(nx_same(&a, &ra));
        assert_int_equal(pst_store_readlink(nx_c, &ctx, l, target, sizeof target), 9);
        uint64_t n = nx_made(NULL, d, "new", S_IFREG | 0644);
        assert_int_equal(nx_attr(n).nlink, 1);
        assert_int_equal(nx_unlink(NULL, d, "new"), 0);
        da = nx_attr(d);
    }
}

static void a_read_only_store_answers_and_refuses_changes(void **state)
{
    struct pst_ctx ctx = as(NULL);
    struct eng_opts o = fx_opts();
    struct pst_attr a, in = {.mode = 0600};
    (void)state;
    uint64_t f = nx_made(NULL, ROOT, "f", S_IFREG | 0644);
    nx_close();
    o.readonly = true;
    nx_e = fx_open_opts(o);
    assert_int_equal(pst_cont_open(&nx_e->st, &ctx, "p", "c", &nx_c), 0);
    assert_int_equal(nx_look(NULL, ROOT, "f", &a), 0);
    assert_int_equal(a.ino, f);
    assert_string_equal(nx_list(ROOT), "f ");
    assert_int_equal(pst_store_open(nx_c, &ctx, f, R_OK, false, &a), 0);
    assert_int_equal(nx_make(NULL, ROOT, "g", S_IFREG | 0644, NULL), -EROFS);
    assert_int_equal(nx_unlink(NULL, ROOT, "f"), -EROFS);
    assert_int_equal(nx_set(NULL, f, PST_SET_MODE, &in), -EROFS);
    assert_int_equal(pst_cont_destroy(&nx_e->st, &ctx, "p", "none"), -ENOENT);
    pst_store_release(nx_c, f);
    assert_string_equal(nx_list(ROOT), "f ");
    assert_int_equal(nx_attr(f).mode, S_IFREG | 0644);
}

#define T(name) cmocka_unit_test_setup_teardown(name, nx_setup, nx_teardown)

static void a_walk_leads_to_the_name_and_a_retry_needs_none(void **state)
{
    uint64_t a = nx_made(&nx_alice, ROOT, "a", S_IFDIR | 0755), b = nx_made(&nx_alice, a, "b", S_IFDIR | 0755);
    struct pst_ctx ctx = {.cred = &nx_alice, .walk = "a/b", .id = {.client = {1}, .slot = 3, .seq = 1}};
    struct pst_new in = {.mode = S_IFREG | 0644, .exclusive = true};
    struct pst_attr made, again, found;

    (void)state;
    assert_int_equal(pst_store_make(nx_c, &ctx, ROOT, "f", &in, &made, NULL), 0);
    assert_int_equal(nx_look(&nx_alice, b, "f", &found), 0);
    assert_int_equal(found.ino, made.ino);
    assert_int_equal(nx_make(&nx_alice, a, "link", S_IFLNK | 0777, NULL), 0);
    ctx.id.seq = 0;
    for (const char *const *w = (const char *const[]){"a/link", "a/b/f", "a/none", "a/./b", "a/../a", "", "a/", NULL},
                            *const *r = (const char *const[]){"L", "D", "N", "I", "I", "I", "I"}; *w; w++, r++) {
        int want = **r == 'L' ? -ELOOP : **r == 'D' ? -ENOTDIR : **r == 'N' ? -ENOENT : -EINVAL;
        ctx.walk = *w;
        assert_int_equal(pst_store_lookup(nx_c, &ctx, ROOT, "f", &found), want);
        assert_int_equal(pst_store_unlink(nx_c, &ctx, ROOT, "f"), want);
    }
    /* The way is gone: a request that was done gets its reply, one that was not does nothing. */
    assert_int_equal(nx_rename(&nx_alice, ROOT, "a", ROOT, "elsewhere", 0), 0);
    ctx.walk = "a/b";
    ctx.id.seq = 1;
    assert_int_equal(pst_store_make(nx_c, &ctx, ROOT, "f", &in, &again, NULL), 0);
    assert_int_equal(again.ino, made.ino);
    ctx.id.seq = 2;
    assert_int_equal(pst_store_unlink(nx_c, &ctx, ROOT, "f"), -ENOENT);
    assert_int_equal(pst_store_make(nx_c, &ctx, ROOT, "g", &in, &again, NULL), -ENOENT);
    ctx.id.seq = 0;
    assert_int_equal(pst_store_getattr(nx_c, &ctx, ROOT, &found), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_new_object_has_its_makers_attributes),
        T(making_changes_the_directory),
        T(make_refuses_what_it_must),
        T(set_group_id_is_inherited),
        T(symlinks_keep_their_target),
        T(links_count_names),
        T(a_walk_leads_to_the_name_and_a_retry_needs_none),
        T(unlink_and_rmdir_know_their_kind),
        T(sticky_directories_protect_others_entries),
        T(rename_moves_and_replaces),
        T(rename_refuses_what_it_must),
        T(rename_of_two_links_does_nothing),
        T(exchange_swaps_names_of_any_kind),
        T(setattr_changes_what_the_mask_names),
        T(set_id_bits_are_taken_away_and_nothing_else_changes),
        T(an_owner_truncates_what_he_has_open),
        T(open_checks_rights_and_keeps_the_object),
        T(orphans_go_at_the_next_start),
        T(everything_is_there_after_a_restart),
        T(a_read_only_store_answers_and_refuses_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
