/*
 * Directories: paged by the store's cookies, so that nothing is kept between two calls.
 * Offsets: 0 the start, 1 after ".", 2 after "..", cookie + 2 after an entry of the store.
 */
#include "fm.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define OFFSET_BASE 2
#define PAGE_MAX    (1 * MiB)

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fm *m = fm_of(req);
    struct fm_file *file = calloc(1, sizeof(*file));
    int r;

    if (!file) {
        fm_reply_err(req, -ENOMEM);
        return;
    }
    /* The kernel has checked the right to read. The reader may be another process than the opener. */
    fm_cred(req, &file->cred);
    file->ino = ino;
    r = fm_files_add(m->files, file, &fi->fh);
    if (r) {
        free(file);
        fm_reply_err(req, r);
        return;
    }
    if (fuse_reply_open(req, fi))
        free(fm_files_take(m->files, fi->fh));
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    free(fm_files_take(fm_of(req)->files, fi->fh));
    fuse_reply_err(req, 0);
}

struct page {
    fuse_req_t req;
    struct fm *m;
    bool plus;
    size_t size, used;
    char *buf;
};

/* true if it fitted. */
static bool page_add(struct page *p, const char *name, const struct fuse_entry_param *e, off_t next)
{
    size_t n = p->plus ? fuse_add_direntry_plus(p->req, p->buf + p->used, p->size - p->used, name, e, next)
                       : fuse_add_direntry(p->req, p->buf + p->used, p->size - p->used, name, &e->attr, next);

    if (n > p->size - p->used)
        return false;
    p->used += n;
    return true;
}

static int page_entry(const struct pst_dirent *de, void *user)
{
    struct page *p = user;
    struct fuse_entry_param e;

    /* attr.ino 0: the reader may see names but not attributes. */
    if (p->plus && de->attr.ino && !(S_ISREG(de->attr.mode) && fm_node_writers(p->m->nodes, de->ino))) {
        fm_entry(p->m, &de->attr, &e);
    } else {
        /* Node 0 in an entry "plus": name only. (The size of a file that is being written is not known here.) */
        memset(&e, 0, sizeof(e));
        e.attr.st_ino = de->ino;
        e.attr.st_mode = de->type;
    }
    return !page_add(p, de->name, &e, (off_t)(de->cookie + OFFSET_BASE));
}

static void readdir_page(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi, bool plus)
{
    struct fm *m = fm_of(req);
    struct fm_file *file = fm_files_get(m->files, fi->fh);
    struct fuse_entry_param e = {.attr = {.st_ino = ino, .st_mode = S_IFDIR}};
    struct page p = {.req = req, .m = m, .plus = plus, .size = min_u64(size, PAGE_MAX)};
    cleanup_free char *buf = malloc(p.size);
    struct pst_cred cred;
    struct pst_ctx ctx = fm_ctx(file ? &file->cred : &cred);
    uint64_t parent = ino;
    bool room = true;
    int r = 0;

    if (!buf || off < 0) {
        fm_reply_err(req, buf ? -EINVAL : -ENOMEM);
        return;
    }
    if (!file) /* opened before the serving process was restarted */
        fm_cred(req, &cred);
    p.buf = buf;
    if (off == 0)
        room = page_add(&p, ".", &e, 1);
    if (off <= 1 && room) {
        r = pst_store_parent(m->cont, ino, &parent);
        e.attr.st_ino = parent;
        room = !r && page_add(&p, "..", &e, 2);
    }
    if (room)
        r = pst_store_readdir(m->cont, &ctx, ino, off > OFFSET_BASE ? (uint64_t)off - OFFSET_BASE : 0, plus, page_entry,
                              &p);
    /* What is in the page was announced to the kernel's cache as well: an error shows at the next call. */
    if (r < 0 && p.used == 0)
        fm_reply_err(req, fm_stale(r));
    else
        fuse_reply_buf(req, buf, p.used);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    readdir_page(req, ino, size, off, fi, false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    readdir_page(req, ino, size, off, fi, true);
}

static void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    struct fm *m = fm_of(req);

    (void)datasync;
    (void)fi;
    /* syncfs(2) does not reach a FUSE file system: fsync of the root folder stands for it. */
    fm_reply_err(req, ino == FUSE_ROOT_ID ? cl_syncfs(m->cl) : cl_fsync_dir(m->cl, ino));
}

void fm_ops_dir(struct fuse_lowlevel_ops *ops)
{
    ops->opendir = op_opendir;
    ops->readdir = op_readdir;
    ops->readdirplus = op_readdirplus;
    ops->releasedir = op_releasedir;
    ops->fsyncdir = op_fsyncdir;
}
