/*
 * The same application against a server, and against an agent in front of another one: it differs in the URL alone, and
 * the two stores hold the same data in the same format. usage: test_agent_same PENSTOCK [TEST]
 *
 * "The same format" is judged on the closed stores, by the engine and no daemon: the same names lead to objects of the
 * same type, mode, owner, device, size, number of links, chunk size, space taken, extended attributes and link text;
 * each chunk has the same bytes and the same opaque meta data, of which there is none without filters; `penstock check`
 * finds both whole, and counts the same. What each store draws or stamps by itself may differ: UUIDs, object numbers,
 * versions, and times that nobody set.
 */
#include "api_cases.h"
#include "base/rng.h"
#include "base/util.h"
#include "daemon.h"
#include "local/local_store.h"
#include "remote/remote_store.h"
#include "remote_case.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define BYTES (3 * MiB)

/* ---- the application ---- */

static const struct timespec then[2] = {{1600000000, 123456789}, {1500000000, 987654321}};
static uint8_t data[BYTES];

/* Sizes around those at which something is done another way. */
static void files_of_all_sizes(struct pst_fs *fs)
{
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 16384, 16385, 65536, MiB - 1, MiB, MiB + 1, BYTES};

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        char path[40];
        struct pst_file *f;
        snprintf(path, sizeof path, "/sizes/f%zu", sizes[i]);
        f = api_open_new(fs, path, i % 3 ? 0 : O_DIRECT);
        assert_int_equal(pst_pwrite(f, data, sizes[i], 0), sizes[i]);
        if (i % 2)
            assert_int_equal(pst_fsync(f), 0);
        assert_int_equal(pst_close(f), 0);
    }
}

static void changes_in_place(struct pst_fs *fs)
{
    struct pst_file *f = api_open_new(fs, "/changed", 0);
    struct rng r;

    rng_seed(&r, seed);
    assert_int_equal(pst_pwrite(f, data, BYTES, 0), BYTES);
    assert_int_equal(pst_fsync(f), 0);
    for (int i = 0; i < 60; i++) {
        uint64_t at = rng_below(&r, BYTES), n = 1 + rng_below(&r, 20000);
        switch (rng_below(&r, 8)) {
        case 0:
            assert_int_equal(pst_fallocate(f, 3 /* KEEP_SIZE | PUNCH_HOLE */, at, n), 0);
            break;
        case 1:
            assert_int_equal(pst_ftruncate(f, at), 0);
            break;
        case 2:
            assert_int_equal(pst_append(f, data + i, n, NULL), n);
            break;
        case 3:
            assert_int_equal(pst_fsync(f), 0);
            break;
        default:
            assert_int_equal(pst_pwrite(f, data + 2ul * (unsigned)i, n, at), n);
        }
        assert_int_equal(pst_flush(f), 0); /* in this order, not gathered as time allows */
    }
    assert_int_equal(pst_close(f), 0);
}

static void names_and_attributes(struct pst_fs *fs)
{
    struct pst_file *f;

    assert_int_equal(pst_mkdir(fs, "/d", 0750), 0);
    assert_int_equal(pst_mkdir(fs, "/d/deep", 02775), 0);
    assert_int_equal(pst_mkdir(fs, "/gone", 0700), 0);
    assert_int_equal(pst_rmdir(fs, "/gone"), 0);
    api_put(fs, "/d/one", "one");
    assert_int_equal(pst_link(fs, "/d/one", "/d/deep/also one"), 0);
    assert_int_equal(pst_symlink(fs, "../one", "/d/deep/link"), 0);
    assert_int_equal(pst_mknod(fs, "/d/fifo", S_IFIFO | 0640, 0), 0);
    api_put(fs, "/d/two", "two");
    api_put(fs, "/d/three", "three");
    assert_int_equal(pst_rename(fs, "/d/two", "/d/three", 0), 0);
    api_put(fs, "/d/four", "four");
    assert_int_equal(pst_rename(fs, "/d/three", "/d/four", PST_RENAME_SWAP), 0);
    api_put(fs, "/d/unlinked", "unlinked");
    assert_int_equal(pst_unlink(fs, "/d/unlinked"), 0);
    assert_int_equal(pst_setxattr(fs, "/d/one", "user.colour", "green", 5, 0, 0), 0);
    assert_int_equal(pst_setxattr(fs, "/d", "user.long", data, 2000, 0, 0), 0);
    assert_int_equal(pst_chmod(fs, "/d/one", 0604), 0);
    if (geteuid() == 0) {
        assert_int_equal(pst_chown(fs, "/d/one", 1234, 4321, 0), 0);
        assert_int_equal(pst_mknod(fs, "/d/device", S_IFCHR | 0600, makedev(1, 3)), 0);
    }
    f = api_open_new(fs, "/sparse", 0);
    assert_int_equal(pst_pwrite(f, "end", 3, 40 * MiB + 5), 3);
    assert_int_equal(pst_close(f), 0);
    assert_int_equal(pst_utimens(fs, "/d/one", then, 0), 0);
    assert_int_equal(pst_utimens(fs, "/sparse", then, 0), 0);
}

static void application(const char *url)
{
    struct pst_options o;
    struct pst_fs *fs;

    pst_options_init(&o, sizeof o);
    o.timeout_ms = 120000;
    if (pst_connect(url, &o, &fs) < 0)
        fail_msg("%s: %s", url, pst_last_error());
    assert_int_equal(pst_mkdir(fs, "/sizes", 0755), 0);
    files_of_all_sizes(fs);
    changes_in_place(fs);
    names_and_attributes(fs);
    assert_int_equal(pst_disconnect(fs), 0);
}

/* ---- the two stores ---- */

struct side {
    struct pst_store *st;
    struct pst_cont *c;
    struct pst_queue *q;
};

static const struct pst_ctx trusted;

static void open_side(const struct daemon *d, struct side *ret)
{
    char path[100], err[300] = "";

    snprintf(path, sizeof path, "%s/store", d->dir);
    if (pst_local_backend.open(path, NULL, 0, &ret->st, err, sizeof err) < 0)
        fail_msg("%s", err);
    assert_int_equal(pst_cont_open(ret->st, &trusted, "default", "default", &ret->c), 0);
    assert_int_equal(pst_queue_open(ret->st, 4, &ret->q), 0);
}

static void close_side(struct side *s)
{
    pst_queue_close(s->q);
    pst_cont_close(s->c);
    pst_store_close(s->st);
}

static int64_t read_chunk(struct side *s, uint64_t ino, uint64_t chunk, uint8_t *buf, size_t size, struct pst_op *op)
{
    struct iovec iov = {buf, size};

    *op = (struct pst_op){
        .kind = PST_OP_CHUNK_READ, .cont = s->c, .ino = ino, .offset = chunk, .length = size, .iov = &iov, .iovcnt = 1};
    return pst_queue_run(s->q, op);
}

static void compare_chunks(struct side s[2], const uint64_t ino[2], const struct pst_attr *at, const char *path)
{
    uint8_t *buf[2] = {malloc(at->chunk_size), malloc(at->chunk_size)};
    struct pst_attr a;

    for (int i = 0; i < 2; i++)
        assert_int_equal(pst_store_open(s[i].c, &trusted, ino[i], R_OK, false, &a), 0);
    for (uint64_t chunk = 0; chunk * at->chunk_size < at->size; chunk++) {
        struct pst_op op[2];
        int64_t n[2];
        for (int i = 0; i < 2; i++)
            n[i] = read_chunk(&s[i], ino[i], chunk, buf[i], at->chunk_size, &op[i]);
        if (n[0] != n[1] || n[0] < 0 || memcmp(buf[0], buf[1], (size_t)n[0]))
            fail_msg("%s, chunk %llu: %lld and %lld bytes, or different ones", path, (unsigned long long)chunk,
                     (long long)n[0], (long long)n[1]);
        assert_int_equal(op[0].meta_len, 0);
        assert_int_equal(op[1].meta_len, 0);
    }
    for (int i = 0; i < 2; i++) {
        pst_store_release(s[i].c, ino[i]);
        free(buf[i]);
    }
}

static void compare_xattrs(struct side s[2], const uint64_t ino[2], const char *path)
{
    char names[2][4096], value[2][4096];
    int64_t n[2], len[2];

    for (int i = 0; i < 2; i++)
        n[i] = pst_store_listxattr(s[i].c, &trusted, ino[i], names[i], sizeof names[i]);
    if (n[0] != n[1] || n[0] < 0 || memcmp(names[0], names[1], (size_t)n[0]))
        fail_msg("%s: other extended attributes", path);
    for (const char *p = names[0]; p < names[0] + n[0]; p += strlen(p) + 1) {
        for (int i = 0; i < 2; i++)
            len[i] = pst_store_getxattr(s[i].c, &trusted, ino[i], p, value[i], sizeof value[i]);
        if (len[0] != len[1] || len[0] < 0 || memcmp(value[0], value[1], (size_t)len[0]))
            fail_msg("%s: another value of %s", path, p);
    }
}

static bool same_attributes(const struct pst_attr *a, const struct pst_attr *b)
{
    return a->mode == b->mode && a->nlink == b->nlink && a->uid == b->uid && a->gid == b->gid && a->rdev == b->rdev &&
           a->size == b->size && a->used == b->used && a->chunk_size == b->chunk_size &&
           (a->mtime_ns == b->mtime_ns ||
            (a->mtime_ns > 1700000000 * (int64_t)NSEC_PER_SEC && b->mtime_ns > a->mtime_ns));
}

struct name {
    char name[PST_NAME_MAX + 1];
    uint64_t ino;
};

struct listing {
    struct name of[64];
    int n;
};

static int list_one(const struct pst_dirent *de, void *user)
{
    struct listing *l = user;

    assert_in_range(l->n, 0, 63);
    if (!strcmp(de->name, ".") || !strcmp(de->name, ".."))
        return 0;
    memcpy(l->of[l->n].name, de->name, sizeof de->name);
    l->of[l->n++].ino = de->ino;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct name *)a)->name, ((const struct name *)b)->name);
}

static int compare(struct side s[2], const uint64_t ino[2], const char *path);

static int compare_entries(struct side s[2], const uint64_t ino[2], const char *path)
{
    struct listing *l = calloc(2, sizeof *l);
    int objects = 0;

    for (int i = 0; i < 2; i++) {
        assert_int_equal(pst_store_readdir(s[i].c, &trusted, ino[i], 0, false, list_one, &l[i]), 0);
        qsort(l[i].of, (size_t)l[i].n, sizeof l[i].of[0], by_name);
    }
    assert_int_equal(l[0].n, l[1].n);
    for (int k = 0; k < l[0].n; k++) {
        char sub[600];
        const uint64_t both[2] = {l[0].of[k].ino, l[1].of[k].ino};
        assert_string_equal(l[0].of[k].name, l[1].of[k].name);
        snprintf(sub, sizeof sub, "%s/%s", path, l[0].of[k].name);
        objects += compare(s, both, sub);
    }
    free(l);
    return objects;
}

/* The objects and all below them; how many names these have. */
static int compare(struct side s[2], const uint64_t ino[2], const char *path)
{
    char target[2][300] = {""};
    struct pst_attr a[2];

    for (int i = 0; i < 2; i++)
        assert_int_equal(pst_store_getattr(s[i].c, &trusted, ino[i], &a[i]), 0);
    if (!same_attributes(&a[0], &a[1]))
        fail_msg("%s: mode %o and %o, %u and %u links, owner %u and %u, size %llu and %llu, used %llu and %llu, "
                 "mtime %lld and %lld",
                 path, a[0].mode, a[1].mode, a[0].nlink, a[1].nlink, a[0].uid, a[1].uid, (unsigned long long)a[0].size,
                 (unsigned long long)a[1].size, (unsigned long long)a[0].used, (unsigned long long)a[1].used,
                 (long long)a[0].mtime_ns, (long long)a[1].mtime_ns);
    compare_xattrs(s, ino, path);
    if (S_ISDIR(a[0].mode))
        return 1 + compare_entries(s, ino, path);
    if (S_ISREG(a[0].mode))
        compare_chunks(s, ino, &a[0], path);
    if (S_ISLNK(a[0].mode)) {
        for (int i = 0; i < 2; i++)
            assert_int_equal(pst_store_readlink(s[i].c, &trusted, ino[i], target[i], sizeof target[i]), a[i].size);
        assert_string_equal(target[0], target[1]);
    }
    return 1;
}

/* What check counts of a whole store, as text. */
static void check_store(const struct daemon *d, char ret[2000])
{
    char cmd[300];
    size_t n;
    FILE *p;

    snprintf(cmd, sizeof cmd, "'%s' check --json %s/store", d->program, d->dir);
    p = popen(cmd, "r");
    assert_non_null(p);
    n = fread(ret, 1, 1999, p);
    ret[n] = 0;
    assert_int_equal(pclose(p), 0);
}

static void export_to(const struct daemon *of, const struct daemon *program_of, const char *name)
{
    char cmd[400];

    snprintf(cmd, sizeof cmd, "'%s' export %sdefault/default %s/%s.tar", program_of->program, of->base, program_of->dir,
             name);
    assert_int_equal(system(cmd), 0);
}

static void the_stores_are_the_same_whichever_way_they_were_written(void **state)
{
    struct daemon alone, behind, agent;
    const uint64_t root[2] = {PST_ROOT_INO, PST_ROOT_INO};
    char url[120], cmd[300], checked[2][2000];
    struct side s[2];
    struct rng r;
    int objects;

    (void)state;
    rng_seed(&r, seed);
    rng_fill(&r, data, BYTES / 2); /* the other half is zeroes, stored as such */
    assert_true(daemon_start(&alone, program, NULL));
    snprintf(url, sizeof url, "%sdefault/default", alone.base);
    application(url);
    assert_int_equal(daemon_stop(&alone), 0);
    assert_true(daemon_start(&behind, program, NULL));
    assert_true(daemon_agent_start(&agent, &behind, NULL));
    snprintf(url, sizeof url, "%sdefault/default", agent.base);
    application(url);

    export_to(&agent, &agent, "by-agent"); /* and it is read the same way too */
    export_to(&behind, &agent, "by-server");
    snprintf(cmd, sizeof cmd, "cd %s && cmp by-agent.tar by-server.tar", agent.dir);
    assert_int_equal(system(cmd), 0);
    assert_int_equal(daemon_stop(&agent), 0);
    assert_int_equal(daemon_stop(&behind), 0);

    check_store(&alone, checked[0]);
    check_store(&behind, checked[1]);
    assert_string_equal(checked[0], checked[1]);
    open_side(&alone, &s[0]);
    open_side(&behind, &s[1]);
    objects = compare(s, root, "");
    assert_int_equal(objects, geteuid() == 0 ? 25 : 24);
    print_message("%d names compared; check says: %s\n", objects, checked[0]);
    close_side(&s[0]);
    close_side(&s[1]);
    daemon_done(&alone);
    daemon_done(&agent);
    daemon_done(&behind);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_stores_are_the_same_whichever_way_they_were_written),
    };
    int r = remote_main_begin(argc, argv);

    if (r)
        return r;
    unsetenv("PENSTOCK_TEST_AGENT");
    pst_backend_register(&pst_remote_backend);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
