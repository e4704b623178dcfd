/* Opening and closing a store: options, and the parts in their order. */
#include "parts.h"

#include "base/err.h"
#include "base/parse.h"
#include "base/rng.h"
#include "local/local_store.h"

#include <errno.h>
#include <string.h>

#define SYNC_MS_DEFAULT  2000u /* well below PST_SYNC_INTERVAL_NS: a slow disk has time */
#define SYNC_MS_MAX      5000u
#define CACHE_MB_DEFAULT 16u
#define CACHE_MB_MAX     65536u

void eng_default_opts(struct eng_opts *o)
{
    *o = (struct eng_opts){.sync_ms = SYNC_MS_DEFAULT, .cache_mb = CACHE_MB_DEFAULT, .recent = true};
}

/* ---- options ---- */

static int parse_number(const struct pst_option *o, uint64_t max, uint64_t *ret, const struct errmsg *m)
{
    uint64_t v;
    if (parse_uint(o->value, &v) || v > max)
        return fail(m, -EINVAL, "%s=%s: a number from 0 to %llu is expected", o->key, o->value,
                    (unsigned long long)max);
    *ret = v;
    return 0;
}

static int parse_word(const struct pst_option *o, const char *const words[3], int *ret, const struct errmsg *m)
{
    for (int i = 0; i < 3; i++) {
        if (!strcmp(o->value, words[i])) {
            *ret = i;
            return 0;
        }
    }
    return fail(m, -EINVAL, "%s=%s: %s, %s or %s is expected", o->key, o->value, words[0], words[1], words[2]);
}

static int parse_option(const struct pst_option *o, struct eng_opts *ret, const struct errmsg *m)
{
    static const char *const io[] = {"auto", "uring", "threads"}, *const direct[] = {"auto", "always", "never"};
    uint64_t n = 0;
    int w = 0, r;
    if (!strcmp(o->key, "io")) {
        r = parse_word(o, io, &w, m);
        ret->io = r ? ret->io : (enum io_choice)w;
    } else if (!strcmp(o->key, "direct")) {
        r = parse_word(o, direct, &w, m);
        ret->direct = r ? ret->direct : (enum choice)w;
    } else if (!strcmp(o->key, "create") || !strcmp(o->key, "readonly") || !strcmp(o->key, "recent")) {
        r = parse_number(o, 1, &n, m);
        *(o->key[0] == 'c' ? &ret->create : !strcmp(o->key, "recent") ? &ret->recent : &ret->readonly) = n;
    } else if (!strcmp(o->key, "size")) {
        r = parse_size(o->value, &n) || n > PST_FILE_MAX
                ? fail(m, -EINVAL, "size=%s: a size is expected (64G, 1.5T), or a number of bytes", o->value)
                : 0;
        ret->size = r ? ret->size : n;
    } else if (!strcmp(o->key, "sync_ms")) {
        r = parse_number(o, SYNC_MS_MAX, &n, m);
        ret->sync_ms = r ? ret->sync_ms : (uint32_t)n;
    } else if (!strcmp(o->key, "cache_mb")) {
        r = parse_number(o, CACHE_MB_MAX, &n, m);
        ret->cache_mb = r ? ret->cache_mb : (uint32_t)n;
    } else {
        r = fail(m, -EINVAL,
                 "unknown option %s: io, direct, create, size, sync_ms, cache_mb, readonly, recent are known", o->key);
    }
    return r;
}

/* ---- open ---- */

static int replay(struct engine *e, bool made, const struct errmsg *m)
{
    uint64_t applied = 0, last;
    int r = index_applied(e, &applied);
    if (r)
        return fail(m, r, "%s/index is damaged; run `penstock check --rebuild-index %s`", e->dir, e->dir);
    last = applied;
    if (!made && e->super.clean && !e->opt.rebuild_index && applied != e->super.log_lsn)
        return fail(m, -ESTALE, "%s: the index is not the one that was closed: it ends at record %llu, not %llu; run "
                                "`penstock check --rebuild-index %s`", e->dir, (unsigned long long)applied,
                    (unsigned long long)e->super.log_lsn, e->dir);
    if (!made && (!e->super.clean || e->opt.rebuild_index)) {
        if (e->opt.readonly && e->opt.check_to)
            return fail(m, -EROFS,
                        "%s was not stopped cleanly, and is on a read-only file system: mount that for writing",
                        e->dir);
        if (e->opt.readonly)
            return fail(m, -EROFS, "%s was not stopped cleanly: open it once for writing, or run `penstock check %s`",
                        e->dir, e->dir);
        r = wal_replay(e, applied, &last, m);
        if (!r)
            r = recent_replay(e, made, &last, m);
        if (r)
            return r;
        if (fdatasync(e->data_fd))
            return fail(m, -errno, "%s/data: %s", e->dir, err_text(errno));
        if (last < e->super.log_lsn)
            return fail(m, -EBADMSG, "%s: the log ends at record %llu, the index had %llu: restore a backup", e->dir,
                        (unsigned long long)last, (unsigned long long)e->super.log_lsn);
        if (last > applied)
            log_info("%s: replayed %llu log records", e->dir, (unsigned long long)(last - applied));
    }
    if (!e->recent)
        r = recent_replay(e, made, &last, m);
    return r ? r : sync_open(e, last);
}

/* From here on the store may be written: it counts as not stopped cleanly. */
static int begin_writing(struct engine *e, bool made, const struct errmsg *m)
{
    bool replayed = !made && sync_durable(e) > e->super.log_lsn;
    int r;
    e->super.clean = false;
    e->super.run_before = e->super.run;
    rng_secret(&e->super.run, sizeof e->super.run);
    r = made ? super_created(e) : super_write(e);
    if (r)
        return fail(m, r, "%s/superblock: %s", e->dir, err_text(r));
    e->started = true;
    reserve_make(e);
    r = recent_start(e);
    if (r)
        return fail(m, r, "%s/recent: %s", e->dir, err_text(r));
    r = sync_start(e);
    if (r)
        return fail(m, r, "%s: cannot start a thread: %s", e->dir, err_text(r));
    if (!replayed && !e->opt.rebuild_index)
        return 0;
    r = sync_checkpoint(e);
    if (!r && e->opt.rebuild_index)
        index_rebuilt(e);
    return r;
}

static int open_parts(struct engine *e, const struct errmsg *m)
{
    bool made = false, empty = false, verify, apart;
    int r = super_open(e, &made, m);
    verify = !made && !e->super.clean && !e->opt.check_to && !e->opt.rebuild_index;
    apart = verify && !index_was_used();
    if (!r)
        r = locks_open(e);
    if (!r)
        r = io_choose(e, m);
    if (!r && e->opt.rebuild_index)
        r = index_rebuild(e, &empty, m);
    if (!r && apart)
        r = verify_index_apart(e, m);
    if (!r)
        r = index_open(e, made || empty, m);
    if (!r)
        r = wal_open(e, m);
    if (!r)
        r = replay(e, made, m);
    if (!r && verify && !apart)
        r = verify_index_here(e);
    if (!r)
        r = alloc_open(e);
    if (!r)
        r = alloc_scan(e, m);
    if (!r && !e->opt.readonly)
        r = begin_writing(e, made, m);
    return r;
}

static int open_users(struct engine *e, const struct errmsg *m)
{
    int r = data_open(e);
    if (r)
        return fail(m, r, "%s: data path: %s", e->dir, err_text(r));
    if (e->opt.bare)
        return 0;
    r = ns_open(e);
    if (r) {
        data_close(e);
        return fail(m, r, "%s: namespace: %s", e->dir, err_text(r));
    }
    return 0;
}

/* Everything below the users of the store, in whatever state open left it. */
static void close_parts(struct engine *e)
{
    if (e->started) {
        sync_stop(e);
        if (!eng_writable(e) && !sync_checkpoint(e)) {
            e->super.clean = true;
            if (super_write(e))
                log_error("%s/superblock cannot be written", e->dir);
        }
    }
    index_close(e);
    alloc_close(e);
    wal_close(e);
    sync_close(e);
    recent_close(e, e->started && e->super.clean);
    locks_close(e);
    super_close(e);
    free(e->dir);
    free(e);
}

int eng_open(const char *dir, const struct eng_opts *opts, struct engine **ret, const struct errmsg *m)
{
    struct engine *e = calloc(1, sizeof *e);
    int r;
    if (m && m->size)
        m->p[0] = 0;
    if (!e)
        return -ENOMEM;
    e->st.ops = &local_ops;
    e->opt = *opts;
    e->dir_fd = e->lock_fd = e->super_fd = e->data_fd = e->direct_fd = -1;
    e->dir = strdup(dir);
    r = e->dir ? open_parts(e, m) : -ENOMEM;
    if (!r)
        r = open_users(e, m);
    if (r) {
        if (m && m->size && !m->p[0])
            fail(m, r, "%s: %s", dir, err_text(r));
        close_parts(e);
        return r;
    }
    *ret = e;
    return 0;
}

void eng_close(struct engine *e)
{
    if (!e)
        return;
    if (e->ns)
        ns_close(e, e->ns);
    data_close(e);
    close_parts(e);
}

void local_close(struct pst_store *st)
{
    eng_close(engine_of(st));
}

static int local_open(const char *rest, const struct pst_option *opts, size_t nopts, struct pst_store **ret, char *err,
                      size_t err_size)
{
    struct errmsg m = {err, err_size};
    struct eng_opts o;
    struct engine *e;
    int r;
    eng_default_opts(&o);
    if (!*rest)
        return fail(&m, -EINVAL, "local: needs a folder, as in local:/srv/store");
    for (size_t i = 0; i < nopts; i++) {
        r = parse_option(&opts[i], &o, &m);
        if (r)
            return r;
    }
    r = eng_open(rest, &o, &e, &m);
    if (!r)
        *ret = &e->st;
    return r;
}

const struct pst_backend pst_local_backend = {.scheme = "local", .open = local_open};
