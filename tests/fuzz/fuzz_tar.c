/*
 * Tar archives into a tree in memory: whatever names and links an archive has, nothing of it lands outside the root, is
 * written through a link of its own, or goes on below what is no directory.
 */
#include "fuzz.h"

#include "tar.h"

#include "base/rng.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <locale.h>
#include <string.h>

const char *cli_name = "fuzz"; /* main.c's */

#define ABOVE     "/in"
#define ROOT      ABOVE "/root"
#define NODES_MAX 300

static struct node {
    char path[SIDE_PATH_MAX];
    mode_t mode; /* 0: free */
} nodes[NODES_MAX];
static size_t nnodes;

struct side_file {
    struct node *node;
};

static struct node *find(const char *path)
{
    for (size_t i = 0; i < nnodes; i++)
        if (nodes[i].mode && !strcmp(nodes[i].path, path))
            return &nodes[i];
    return NULL;
}

/* Every operation begins so: the path is below the root, and all above it are directories or are not there. */
static int enter(const char *path, struct node **ret)
{
    char above[SIDE_PATH_MAX];
    size_t n = strlen(path);

    CHECK(n < SIDE_PATH_MAX && !strncmp(path, ROOT, strlen(ROOT)));
    CHECK(n == strlen(ROOT) || path[strlen(ROOT)] == '/');
    snprintf(above, sizeof above, "%s/", path);
    CHECK(!strstr(above, "/../") && !strstr(above, "/./") && !strstr(above, "//"));
    strcpy(above, path);
    *ret = find(path);
    while (strlen(above) > strlen(ROOT)) {
        struct node *d;
        *strrchr(above, '/') = 0;
        d = find(above);
        if (!d)
            return -ENOENT;
        if (!S_ISDIR(d->mode))
            return -ENOTDIR;
    }
    return 0;
}

/* The same for what changes something: there is nothing above it that is no directory. */
static int change(const char *path, struct node **ret)
{
    int r = enter(path, ret);
    CHECK(r != -ENOTDIR);
    return r;
}

static int add(const char *path, mode_t mode)
{
    struct node *n;
    int r = change(path, &n);

    if (r || n)
        return r ? r : -EEXIST;
    if (nnodes == NODES_MAX)
        return -ENOSPC;
    strcpy(nodes[nnodes].path, path);
    nodes[nnodes++].mode = mode;
    return 0;
}

static int f_lstat(struct side *s, const char *path, struct stat *ret)
{
    struct node *n = NULL;
    int r = strcmp(path, ABOVE) ? enter(path, &n) : 0; /* whether the root can be there is looked at too */

    (void)s;
    n = strcmp(path, ABOVE) ? n : find(ROOT);
    if (r || !n)
        return r ? r : -ENOENT;
    *ret = (struct stat){.st_mode = n->mode};
    return 0;
}

static int f_mkdir(struct side *s, const char *path, mode_t mode)
{
    (void)s;
    return add(path, S_IFDIR | mode);
}

static int f_mknod(struct side *s, const char *path, mode_t mode, dev_t rdev)
{
    (void)s, (void)rdev;
    CHECK(!S_ISDIR(mode) && !S_ISLNK(mode));
    return add(path, mode & S_IFMT ? mode : S_IFREG | mode);
}

static int f_symlink(struct side *s, const char *target, const char *path)
{
    (void)s;
    CHECK(target);
    return add(path, S_IFLNK | 0777);
}

static int f_link(struct side *s, const char *from, const char *to)
{
    struct node *n;
    int r = change(from, &n);

    (void)s;
    if (r || !n)
        return r ? r : -ENOENT;
    return S_ISDIR(n->mode) ? -EPERM : add(to, n->mode);
}

static int f_unlink(struct side *s, const char *path)
{
    struct node *n;
    int r = change(path, &n);

    (void)s;
    if (r || !n)
        return r ? r : -ENOENT;
    CHECK(!S_ISDIR(n->mode));
    n->mode = 0;
    return 0;
}

static int there(const char *path)
{
    struct node *n;
    int r = change(path, &n);
    return r ? r : n ? 0 : -ENOENT;
}

static int f_chmod(struct side *s, const char *path, mode_t mode)
{
    struct node *n = find(path);

    (void)s, (void)mode;
    CHECK(!n || !S_ISLNK(n->mode)); /* it would reach what the link names */
    return there(path);
}

static int f_chown(struct side *s, const char *path, uid_t uid, gid_t gid)
{
    (void)s, (void)uid, (void)gid;
    return there(path);
}

static int f_utimens(struct side *s, const char *path, const struct timespec t[2])
{
    (void)s, (void)t;
    return there(path);
}

static int f_setxattr(struct side *s, const char *path, const char *name, const void *value, size_t size)
{
    (void)s;
    CHECK(name && (value || !size));
    return there(path);
}

static int f_open(struct side *s, const char *path, int flags, mode_t mode, struct side_file **ret)
{
    struct node *n;
    int r = change(path, &n);

    (void)s, (void)flags;
    if (!r && !n)
        r = add(path, S_IFREG | mode);
    n = find(path);
    if (r || !S_ISREG(n->mode))
        return r ? r : -ELOOP;
    *ret = malloc(sizeof **ret);
    CHECK(*ret);
    (*ret)->node = n;
    return 0;
}

static int64_t f_pwrite(struct side_file *f, const void *buf, size_t n, uint64_t at)
{
    static volatile uint8_t sum;

    CHECK(f->node->mode && at <= INT64_MAX);
    for (size_t i = 0; i < n; i++) /* so that a sanitizer sees them read */
        sum = (uint8_t)(sum + ((const uint8_t *)buf)[i]);
    return (int64_t)n;
}

static int f_truncate(struct side_file *f, uint64_t size)
{
    CHECK(f->node->mode);
    return size > INT64_MAX ? -EFBIG : 0;
}

static int f_close(struct side_file *f)
{
    free(f);
    return 0;
}

static const struct side_ops ops = {
    .lstat = f_lstat, .mkdir = f_mkdir, .mknod = f_mknod, .symlink = f_symlink, .link = f_link, .unlink = f_unlink,
    .chmod = f_chmod, .chown = f_chown, .utimens = f_utimens, .setxattr = f_setxattr, .open = f_open,
    .pwrite = f_pwrite, .truncate = f_truncate, .close = f_close,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct side to = {.ops = &ops};
    struct archive *a = tar_reader();
    static FILE *null;

    if (!null) {
        stderr = null = fopen("/dev/null", "w");
        setlocale(LC_CTYPE, "C.UTF-8");
    }
    CHECK(a && null);
    nnodes = 0;
    CHECK(add(ROOT, S_IFDIR | 0755) == 0);
    if (archive_read_open_memory(a, data, size) == ARCHIVE_OK)
        tar_import(&to, ROOT, a, "fuzz.tar", NULL);
    archive_read_free(a);
    return 0;
}

/* ---- samples ---- */

static void add_entry(struct archive *a, struct archive_entry *e, struct rng *r)
{
    static const char *const names[] = {"a",    "a/b",  "a/b/c", "d/e", "link",   "link/x", "../out", "/abs",
                                        "./.",  "a/../b", "d",   "d//f/", "link/b", "h"};
    static const mode_t types[] = {S_IFREG, S_IFREG, S_IFDIR, S_IFLNK, S_IFIFO, S_IFCHR};
    mode_t type = types[rng_below(r, ARRAY_SIZE(types))];
    char text[64] = "some bytes of a file, which are not many, and the same for all";
    size_t n = type == S_IFREG ? (size_t)rng_below(r, sizeof text) : 0;

    archive_entry_clear(e);
    archive_entry_set_pathname(e, names[rng_below(r, ARRAY_SIZE(names))]);
    archive_entry_set_mode(e, type | 0644);
    archive_entry_set_mtime(e, (time_t)rng_below(r, 1 << 30), 5);
    archive_entry_set_size(e, (int64_t)n);
    if (type == S_IFLNK)
        archive_entry_set_symlink(e, names[rng_below(r, ARRAY_SIZE(names))]);
    else if (rng_below(r, 5) == 0) {
        archive_entry_set_hardlink(e, names[rng_below(r, ARRAY_SIZE(names))]);
        archive_entry_unset_size(e);
        n = 0;
    }
    if (rng_below(r, 4) == 0)
        archive_entry_xattr_add_entry(e, "user.x", text, 5);
    if (archive_write_header(a, e) == ARCHIVE_OK && n)
        archive_write_data(a, text, n);
}

size_t fuzz_sample(uint64_t n, uint8_t *buf, size_t cap)
{
    struct archive *a = archive_write_new();
    struct archive_entry *e = archive_entry_new();
    struct rng r;
    size_t used = 0;

    rng_seed(&r, n);
    CHECK(a && e);
    if (rng_below(&r, 3))
        archive_write_set_format_pax_restricted(a);
    else if (rng_below(&r, 2))
        archive_write_set_format_gnutar(a);
    else
        archive_write_set_format_ustar(a);
    if (rng_below(&r, 8) == 0)
        archive_write_add_filter_gzip(a);
    archive_write_set_bytes_in_last_block(a, 1);
    CHECK(archive_write_open_memory(a, buf, cap, &used) == ARCHIVE_OK);
    for (uint64_t k = rng_below(&r, 12) + 1; k; k--)
        add_entry(a, e, &r);
    archive_write_close(a);
    archive_write_free(a);
    archive_entry_free(e);
    return used;
}
