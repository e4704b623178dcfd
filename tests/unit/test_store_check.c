/* The offline check names each kind of damage to the namespace, and repairs what can be without a loss. */
#include "ns_fixture.h"

#include "local/local_store.h"

#include <sys/resource.h>

#define ROOT PST_ROOT_INO

/* ---- the check's findings ---- */

static char found[16384];

static void note_line(void *user, const char *line)
{
    (void)user;
    if (strlen(found) + strlen(line) + 2 < sizeof found)
        strcat(strcat(found, line), "\n");
}

/* Closes the store, checks it, opens it again. Returns the number of findings. */
static int64_t check(bool repair)
{
    struct pst_check_opts o = {.repair = repair, .data = true, .report = note_line};
    nx_close();
    found[0] = 0;
    return pst_local_check(fx_dir, &o, fx_err, sizeof fx_err);
}

static void check_clean(void)
{
    int64_t n = check(false);
    if (n)
        fail_msg("the check finds (%lld, %s):\n%s", (long long)n, fx_err, found);
}

/* One that must be named by its text; the repair, if it is told to work, leaves nothing. */
static void expect_finding(const char *text, bool repairs)
{
    int64_t n = check(false);
    if (n <= 0 || !strstr(found, text))
        fail_msg("'%s' is not among the findings (%lld, %s):\n%s", text, (long long)n, fx_err, found);
    struct pst_check_opts o = {.repair = true, .report = note_line};
    found[0] = 0;
    n = pst_local_check(fx_dir, &o, fx_err, sizeof fx_err);
    if (n <= 0)
        fail_msg("the repair finds nothing: %lld %s", (long long)n, fx_err);
    if (!repairs)
        return;
    found[0] = 0;
    n = pst_local_check(fx_dir, &(struct pst_check_opts){.report = note_line}, fx_err, sizeof fx_err);
    if (n)
        fail_msg("after the repair of '%s' the check finds (%lld, %s):\n%s", text, (long long)n, fx_err, found);
}

/* ---- planting ---- */

static void plant_del(const struct key *k)
{
    struct wbuf v = {0};
    struct txn *t = txn_new(nx_e);
    assert_int_equal(idx_get(nx_e, NULL, k, &v), 0); /* it was there */
    wbuf_done(&v);
    txn_del(t, k);
    assert_int_equal(txn_commit(t, NULL), 0);
}

static void plant_put(const struct key *k, const void *value, size_t len)
{
    struct txn *t = txn_new(nx_e);
    txn_put(t, k, value, len);
    assert_int_equal(txn_commit(t, NULL), 0);
}

/* Changes an inode's record through the codec. */
static void plant_inode(uint64_t ino, void (*change)(struct inode *i))
{
    struct inode i;
    struct txn *t = txn_new(nx_e);
    assert_int_equal(inode_get(nx_e, nx_c->info.id, ino, &i), 0);
    change(&i);
    inode_put(t, nx_c->info.id, &i);
    inode_done(&i);
    assert_int_equal(txn_commit(t, NULL), 0);
}

/* A small tree: /d/{f, g (= f), s/x, l}, /e; numbers in these. */
static uint64_t d, f, s, x, e;

static int tree_setup(void **state)
{
    struct pst_ctx ctx = as(NULL);
    if (nx_setup(state))
        return -1;
    d = nx_made(NULL, ROOT, "d", S_IFDIR | 0755);
    f = nx_made(NULL, d, "f", S_IFREG | 0644);
    s = nx_made(NULL, d, "s", S_IFDIR | 0755);
    x = nx_made(NULL, s, "x", S_IFREG | 0644);
    nx_made(NULL, d, "l", S_IFLNK);
    e = nx_made(NULL, ROOT, "e", S_IFDIR | 0755);
    nx_link(NULL, f, d, "g");
    return pst_store_setxattr(nx_c, &ctx, f, "user.x", "y", 1, 0);
}

static uint64_t cont(void)
{
    return nx_c->info.id;
}

static struct dent entry(uint64_t dir, const char *name)
{
    struct dent de;
    assert_int_equal(dir_find(nx_e, cont(), dir, name, &de), 0);
    return de;
}

static void a_sound_store_has_no_findings(void **state)
{
    struct pst_ctx ctx = as(NULL);
    struct pst_attr a;
    (void)state;
    assert_int_equal(pst_store_open(nx_c, &ctx, x, R_OK, false, &a), 0);
    assert_int_equal(nx_unlink(NULL, s, "x"), 0); /* an orphan at the time of the check is no damage */
    assert_int_equal(nx_rename(NULL, d, "s", e, "t", 0), 0);
    check_clean();
    nx_open();
    assert_int_equal(nx_stat(x), -ENOENT);
    check_clean();
}

static void a_container_that_is_being_deleted_is_no_damage(void **state)
{
    struct pst_ctx ctx = as(NULL);
    (void)state;
    pst_cont_close(nx_c);
    gc_stop(nx_e->ns);
    assert_int_equal(pst_cont_destroy(&nx_e->st, &ctx, "p", "c"), 0);
    assert_int_equal(gc_step(nx_e->ns), 1); /* a part of it */
    eng_close(nx_e);
    nx_e = NULL;
    found[0] = 0;
    int64_t n = pst_local_check(fx_dir, &(struct pst_check_opts){.report = note_line}, fx_err, sizeof fx_err);
    if (n)
        fail_msg("the check finds %lld (%s):\n%s", (long long)n, fx_err, found);
}

static void a_lost_entry_is_made_again_from_the_listing(void **state)
{
    struct key k = dirent_key(cont(), d, "s");
    (void)state;
    plant_del(&k);
    expect_finding("entry 's' is in listings, but cannot be found", true);
    nx_open();
    assert_int_equal(nx_look(NULL, d, "s", NULL), 0);
    assert_int_equal(nx_look(NULL, s, "x", NULL), 0);
}

static void a_lost_place_in_a_listing_is_made_again(void **state)
{
    struct dent de = entry(d, "f");
    struct key k = cookie_key(cont(), d, de.cookie);
    (void)state;
    plant_del(&k);
    expect_finding("entry 'f' and its place in listings", true);
    nx_open();
    assert_string_equal(nx_list(d), "f s l g ");
}

static void a_wholly_lost_entry_is_noticed(void **state)
{
    struct dent de = entry(s, "x");
    struct key k = dirent_key(cont(), s, "x"), ck = cookie_key(cont(), s, de.cookie);
    char name[32];
    struct pst_attr lost;
    (void)state;
    plant_del(&k);
    plant_del(&ck);
    expect_finding("1 entries are recorded, 0 were found", true);
    nx_open();
    snprintf(name, sizeof name, "#%llu", (unsigned long long)x);
    assert_int_equal(nx_look(NULL, ROOT, "lost+found", &lost), 0);
    assert_int_equal(nx_look(NULL, lost.ino, name, NULL), 0);
    assert_int_equal(nx_rmdir(NULL, d, "s"), 0);
}

static void a_lost_object_is_noticed(void **state)
{
    struct key k = inode_key(cont(), x);
    (void)state;
    plant_del(&k);
    expect_finding("entry 'x' names object", true);
    nx_open();
    assert_int_equal(nx_look(NULL, s, "x", NULL), -ENOENT);
    assert_int_equal(nx_rmdir(NULL, d, "s"), 0);
}

static void a_lost_directory_gives_its_children_to_lost_and_found(void **state)
{
    struct key k = inode_key(cont(), s);
    struct pst_attr a;
    (void)state;
    plant_del(&k);
    expect_finding("which is missing", true);
    assert_non_null(strstr(found, "") /* the text was of the last check */);
    nx_open();
    assert_int_equal(nx_look(NULL, ROOT, "lost+found", &a), 0);
    assert_int_equal(nx_look(NULL, d, "s", NULL), -ENOENT);
}

static void one_more_link(struct inode *i)
{
    i->a.nlink++;
}

static void wrong_link_counts_are_named_and_repaired(void **state)
{
    (void)state;
    plant_inode(f, one_more_link);
    plant_inode(d, one_more_link);
    expect_finding("3 links are recorded, 2 were found", true);
    nx_open();
    assert_int_equal(nx_attr(f).nlink, 2);
    assert_int_equal(nx_attr(d).nlink, 3);
}

static void one_more_of_each(struct inode *i)
{
    i->next_cookie = S_ISDIR(i->a.mode) ? 2 : 0;
    i->entries = S_ISDIR(i->a.mode) ? 1 : 0;
    i->xattrs++;
}

static void wrong_counts_of_a_directory_are_repaired(void **state)
{
    (void)state;
    plant_inode(d, one_more_of_each);
    expect_finding("counter of places in listings is behind", true);
    nx_open();
    nx_made(NULL, d, "new", S_IFREG | 0644);
    assert_string_equal(nx_list(d), "f s l g new ");
    check_clean();
}

static void other_digest(struct inode *i)
{
    i->digest ^= 1;
}

static void an_exchanged_entry_is_noticed_by_the_digest(void **state)
{
    (void)state;
    plant_inode(d, other_digest);
    expect_finding("4 entries are recorded, 4 were found, not the same", true);
}

static void other_parent(struct inode *i)
{
    i->parent = e;
}

static void a_wrong_parent_is_repaired(void **state)
{
    uint64_t p = 0;
    (void)state;
    plant_inode(s, other_parent);
    expect_finding("but says", true);
    nx_open();
    assert_int_equal(pst_store_parent(nx_c, s, &p), 0);
    assert_int_equal(p, d);
}

static void an_entry_of_another_type_gets_its_objects(void **state)
{
    struct dent de = entry(d, "f"), dir = entry(d, "s");
    struct txn *t = txn_new(nx_e);
    (void)state;
    de.type = S_IFIFO;
    dir.type = S_IFREG; /* it counts for the links of d, too */
    dirent_put(t, cont(), d, "f", &de);
    dirent_put(t, cont(), d, "s", &dir);
    assert_int_equal(txn_commit(t, NULL), 0);
    expect_finding("says another type than object", true);
    nx_open();
    assert_int_equal(entry(d, "f").type, S_IFREG);
    assert_int_equal(entry(d, "s").type, S_IFDIR);
    assert_string_equal(nx_list(d), "f s l g ");
}

static void an_object_with_a_name_is_not_deleted(void **state)
{
    struct key k = orphan_key(cont(), f);
    (void)state;
    plant_put(&k, "", 0);
    expect_finding("is to be deleted, but has a name", true);
    nx_open();
    assert_int_equal(nx_stat(f), 0);
}

static void a_directory_with_two_names_is_noticed(void **state)
{
    struct dent de = {.ino = s, .type = S_IFDIR, .cookie = 77};
    struct txn *t = txn_new(nx_e);
    (void)state;
    dirent_put(t, cont(), e, "again", &de);
    assert_int_equal(txn_commit(t, NULL), 0);
    expect_finding("is a second name of directory", false);
}

static void in_e(struct inode *i)
{
    i->parent = e;
}

static void in_s(struct inode *i)
{
    i->parent = s;
}

/* /d is taken out of the root and put below /d/s, by hand. */
static void a_longer_ring_comes_to_lost_found_with_all_below_it(void **state)
{
    struct dent de = entry(ROOT, "d"), in = {.ino = d, .type = S_IFDIR, .cookie = 9}, lost;
    struct key k = dirent_key(cont(), ROOT, "d"), ck = cookie_key(cont(), ROOT, de.cookie);
    struct txn *t = txn_new(nx_e);
    char name[32];
    (void)state;
    txn_del(t, &k);
    txn_del(t, &ck);
    dirent_put(t, cont(), s, "up", &in);
    assert_int_equal(txn_commit(t, NULL), 0);
    plant_inode(d, in_s);
    expect_finding("lies in a ring", true);
    nx_open();
    lost = entry(ROOT, "lost+found");
    snprintf(name, sizeof name, "#%llu", (unsigned long long)d);
    assert_int_equal(entry(lost.ino, name).ino, d);
    assert_string_equal(nx_list(d), "f s l g ");
    assert_string_equal(nx_list(s), "x ");
}

/* /e is taken out of the root and put below itself, by hand. */
static void a_ring_of_one_directory_comes_to_lost_found(void **state)
{
    struct dent de = entry(ROOT, "e"), in = {.ino = e, .type = S_IFDIR, .cookie = 9};
    struct key k = dirent_key(cont(), ROOT, "e"), ck = cookie_key(cont(), ROOT, de.cookie);
    struct txn *t = txn_new(nx_e);
    (void)state;
    txn_del(t, &k);
    txn_del(t, &ck);
    dirent_put(t, cont(), e, "e", &in);
    assert_int_equal(txn_commit(t, NULL), 0);
    plant_inode(e, in_e);
    expect_finding("lies in a ring", true);
}

static void lost_xattrs_are_noticed(void **state)
{
    struct key k = key_begin(KEY_XATTR);
    (void)state;
    key_u64(&k, cont());
    key_u64(&k, f);
    key_bytes(&k, "user.x", 6);
    plant_del(&k);
    expect_finding("1 extended attributes are recorded, 0 were found", true);
}

static void wrong_usage_is_repaired(void **state)
{
    struct key k = usage_key(cont());
    struct pst_ctx ctx = as(NULL);
    struct pst_cont_info info;
    struct wbuf w = {0};
    (void)state;
    usage_encode(&w, 8192, 70);
    plant_put(&k, w.data, w.len);
    wbuf_done(&w);
    expect_finding("8192 bytes in 70 objects are recorded as in use, 4096 in 7 were found", true);
    nx_open();
    assert_int_equal(pst_cont_query(&nx_e->st, &ctx, "p", "c", &info), 0);
    assert_true(info.used_bytes == PST_BLOCK && info.objects == 7);
}

static void a_lost_usage_record_keeps_the_store_shut_until_the_repair(void **state)
{
    struct key k = usage_key(cont());
    struct eng_opts o = fx_opts();
    struct engine *e2 = NULL;
    (void)state;
    plant_del(&k);
    nx_close();
    assert_int_equal(fx_try(&o, &e2), -EIO);
    found[0] = 0;
    struct pst_check_opts opts = {.repair = true, .report = note_line};
    assert_int_equal(pst_local_check(fx_dir, &opts, fx_err, sizeof fx_err), 1);
    nx_open();
    assert_int_equal(nx_look(NULL, d, "f", NULL), 0);
}

static void an_unmarked_nameless_object_is_marked(void **state)
{
    struct pst_ctx ctx = as(NULL);
    struct pst_attr a;
    struct key k = orphan_key(cont(), x);
    (void)state;
    assert_int_equal(pst_store_open(nx_c, &ctx, x, R_OK, false, &a), 0);
    assert_int_equal(nx_unlink(NULL, s, "x"), 0);
    plant_del(&k);
    expect_finding("has no name and is not marked to be deleted", true);
    nx_open();
    assert_int_equal(nx_stat(x), -ENOENT);
}

static void a_counter_that_is_behind_is_repaired(void **state)
{
    (void)state;
    nx_e->ns->ino.next = 3; /* written by the clean stop */
    expect_finding("counter of object numbers", true);
    nx_open();
    for (int i = 0; i < 3; i++) {
        char name[8];
        snprintf(name, sizeof name, "new%d", i);
        uint64_t n = nx_made(NULL, ROOT, name, S_IFREG | 0644);
        assert_true(n / NS_INO_RUN != d / NS_INO_RUN && n / NS_INO_RUN != cont() / NS_INO_RUN);
        nx_reopen();
    }
}

static void stray_and_unknown_keys_are_named(void **state)
{
    struct key inode = inode_key(999, 5), odd = key_begin((enum key_space)'?'), id = cont_id_key(4321);
    (void)state;
    key_u64(&odd, 1);
    plant_put(&inode, "x", 1);
    plant_put(&odd, "x", 1);
    plant_put(&id, "p\0q", 3);
    assert_true(check(false) >= 3);
    assert_non_null(strstr(found, "keys of space 'I' belong to container number 999"));
    assert_non_null(strstr(found, "unknown space 0x3f"));
    assert_non_null(strstr(found, "container number 4321: the container that it names is missing"));
}

static void records_with_impossible_fields_are_named(void **state)
{
    struct key i = inode_key(cont(), x), p = pool_key("p"), r = key_begin(KEY_REPLY);
    (void)state;
    key_bytes(&r, "0123456789abcdef", 16);
    key_u32(&r, 1);
    plant_put(&i, "\x01nonsense", 9);
    plant_put(&p, "nonsense", 8);
    plant_put(&r, "", 0);
    assert_true(check(false) >= 3);
    assert_non_null(strstr(found, "its record is not valid"));
    assert_non_null(strstr(found, "pool p: its record is not valid"));
    assert_non_null(strstr(found, "a reply record is not valid"));
}

static void the_check_of_a_fresh_process_works_in_a_child(void **state)
{
    (void)state;
    nx_close();
    assert_int_equal(fx_child("store_check", "check", "0"), 0);
    nx_open();
    struct key k = dirent_key(cont(), d, "s");
    plant_del(&k);
    nx_close();
    assert_int_equal(fx_child("store_check", "check", "1"), 0);
    assert_int_equal(fx_child("store_check", "check", "0"), 1);
}

static void a_death_in_the_library_is_a_finding(void **state)
{
    (void)state;
    nx_close();
    assert_int_equal(fx_child("store_check", "die", "1"), 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, tree_setup, nx_teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        T(a_sound_store_has_no_findings),
        T(a_container_that_is_being_deleted_is_no_damage),
        T(a_lost_entry_is_made_again_from_the_listing),
        T(a_lost_place_in_a_listing_is_made_again),
        T(a_wholly_lost_entry_is_noticed),
        T(a_lost_object_is_noticed),
        T(a_lost_directory_gives_its_children_to_lost_and_found),
        T(wrong_link_counts_are_named_and_repaired),
        T(wrong_counts_of_a_directory_are_repaired),
        T(an_exchanged_entry_is_noticed_by_the_digest),
        T(a_wrong_parent_is_repaired),
        T(an_entry_of_another_type_gets_its_objects),
        T(a_directory_with_two_names_is_noticed),
        T(a_ring_of_one_directory_comes_to_lost_found),
        T(a_longer_ring_comes_to_lost_found_with_all_below_it),
        T(an_object_with_a_name_is_not_deleted),
        T(lost_xattrs_are_noticed),
        T(wrong_usage_is_repaired),
        T(a_lost_usage_record_keeps_the_store_shut_until_the_repair),
        T(an_unmarked_nameless_object_is_marked),
        T(a_counter_that_is_behind_is_repaired),
        T(stray_and_unknown_keys_are_named),
        T(records_with_impossible_fields_are_named),
        T(the_check_of_a_fresh_process_works_in_a_child),
        T(a_death_in_the_library_is_a_finding),
    };
    if (argc == 4 && !strcmp(argv[1], "die")) {
        /* The child that checks dies of SIGXFSZ at its first write to a file. */
        struct rlimit none = {0, 0};
        struct pst_check_opts o = {.report = note_line};
        setrlimit(RLIMIT_FSIZE, &none);
        int64_t n = pst_local_check(argv[2], &o, fx_err, sizeof fx_err);
        return n == 1 && strstr(found, "died of signal") ? 0 : 1;
    }
    if (argc == 4 && !strcmp(argv[1], "check")) {
        struct pst_check_opts o = {.report = note_line};
        /* 0: as many findings as wanted, each with its line */
        int64_t n = pst_local_check(argv[2], &o, fx_err, sizeof fx_err), want = strtol(argv[3], NULL, 10);
        return n == want && !index_was_used() && (n == 0) == !found[0] ? 0 : 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
