/* Listing directories: a page of entries at a time, so that memory does not grow with the directory. */
#include "api.h"

#include "store/perm.h"

#include <errno.h>
#include <sys/stat.h>

#define PAGE_ENTRIES 512u

struct pst_dir {
    struct pst_conn *k;
    uint64_t ino, cookie; /* where the page in memory goes on */
    bool with_attr, end;
    uint32_t n, at;
    struct pst_dirent page[PAGE_ENTRIES];
};

int pst_opendir(struct pst_fs *fs, const char *path, int flags, struct pst_dir **ret_dir)
{
    struct pst_dir *d;
    struct pst_attr a;
    int r;

    if (!fs || !path || !ret_dir || flags & ~PST_DIR_STAT)
        return (int)api_result("pst_opendir", NULL, -EINVAL);
    r = api_find(fs, path, true, &a);
    if (r == 0)
        r = S_ISDIR(a.mode) ? pst_perm_access(&fs->k->cred, &a, R_OK) : -ENOTDIR;
    d = r == 0 ? malloc(sizeof *d) : NULL;
    if (r == 0 && !d)
        r = -ENOMEM;
    if (r < 0)
        return (int)api_result("pst_opendir", path, r);
    d->k = fs->k;
    d->ino = a.ino;
    d->cookie = d->n = d->at = 0;
    d->with_attr = flags & PST_DIR_STAT;
    d->end = false;
    *ret_dir = d;
    return 0;
}

static int add(const struct pst_dirent *de, void *user)
{
    struct pst_dir *d = user;

    d->page[d->n++] = *de;
    return d->n == PAGE_ENTRIES;
}

static int fill(struct pst_dir *d)
{
    struct pst_ctx ctx = {.cred = &d->k->cred};
    int r;

    d->n = d->at = 0;
    r = pst_store_readdir(cl_cont(d->k->c), &ctx, d->ino, d->cookie, d->with_attr, add, d);
    if (r == -ENOENT) { /* the directory was removed: it has no entries */
        d->end = true;
        return 0;
    }
    if (r < 0)
        return r;
    if (d->n)
        d->cookie = d->page[d->n - 1].cookie;
    d->end = d->n < PAGE_ENTRIES;
    return 0;
}

/* Files that this client has unsent bytes of: as they will be. */
static void entry_stat(struct pst_dir *d, struct pst_dirent *de, struct stat *ret)
{
    struct pst_attr a;

    if (S_ISREG(de->type) && cl_has_dirty(d->k->c) && cl_getattr(d->k->c, &d->k->cred, de->ino, &a) == 0)
        de->attr = a;
    api_stat(d->k->c, &de->attr, ret);
}

int pst_readdir(struct pst_dir *dir, struct pst_entry *ret_entry)
{
    struct pst_dirent *de;

    if (!dir || !ret_entry)
        return (int)api_result("pst_readdir", NULL, -EINVAL);
    if (!api_mine(dir->k))
        return (int)api_result("pst_readdir", NULL, -ECHILD);
    if (dir->at == dir->n) {
        int r = dir->end ? 0 : fill(dir);
        if (r < 0 || dir->at == dir->n)
            return (int)api_result("pst_readdir", NULL, r);
    }
    de = &dir->page[dir->at++];
    *ret_entry = (struct pst_entry){.ino = de->ino, .cookie = de->cookie, .type = de->type, .name = de->name};
    if (dir->with_attr)
        entry_stat(dir, de, &ret_entry->st);
    return 1;
}

int pst_seekdir(struct pst_dir *dir, uint64_t cookie)
{
    if (!dir)
        return (int)api_result("pst_seekdir", NULL, -EINVAL);
    dir->cookie = cookie;
    dir->n = dir->at = 0;
    dir->end = false;
    return 0;
}

int pst_closedir(struct pst_dir *dir)
{
    free(dir);
    return 0;
}
