/*
 * For the tests of the embedded engine's parts: a store in a scratch folder, keys of the test's own, children that die.
 */
#ifndef TESTS_LOCAL_FIXTURE_H
#define TESTS_LOCAL_FIXTURE_H

#include "parts.h"

#include "base/bitmap.h"
#include "base/crc.h"
#include "base/err.h"
#include "base/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

static char fx_dir[64]; /* the store's folder */
static char fx_err[512];

static inline void fx_remove_path(const char *path)
{
    char cmd[256];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", path);
    if (path[0] && system(cmd))
        print_message("%s failed\n", cmd);
}

static inline void fx_remove(void)
{
    char work[96];
    snprintf(work, sizeof work, "%s.work", fx_dir); /* copies that a test makes */
    fx_remove_path(fx_dir);
    fx_remove_path(work);
}

static inline void fx_quiet(enum log_level level, const char *line, void *user)
{
    (void)level, (void)line, (void)user;
}

static inline int fx_setup(void **state)
{
    (void)state;
    if (!getenv("PENSTOCK_LOG"))
        log_set_sink(fx_quiet, NULL); /* most tests provoke errors */
    snprintf(fx_dir, sizeof fx_dir, "%s/pst-engine-XXXXXX", access("/var/tmp", W_OK) ? "/tmp" : "/var/tmp");
    return mkdtemp(fx_dir) ? 0 : -1;
}

static inline int fx_teardown(void **state)
{
    (void)state;
    fx_remove();
    return 0;
}

static inline struct eng_opts fx_opts(void)
{
    struct eng_opts o;
    eng_default_opts(&o);
    o.create = true;
#ifdef FX_BARE
    o.bare = true; /* tests of the substrate: no namespace, nothing claims or commits but the test */
#endif
#ifdef FX_LOG_ONLY
    o.recent = false; /* as after the end of the operating system */
#endif
    o.size = 64 * MiB;
    o.cache_mb = 4;
    return o;
}

static inline int fx_try(const struct eng_opts *o, struct engine **ret)
{
    struct errmsg m = {fx_err, sizeof fx_err};
    return eng_open(fx_dir, o, ret, &m);
}

static inline struct engine *fx_open_opts(struct eng_opts o)
{
    struct engine *e = NULL;
    int r = fx_try(&o, &e);
    if (r)
        fail_msg("open: %s: %s", err_name(r), fx_err);
    return e;
}

static inline struct engine *fx_open(void)
{
    return fx_open_opts(fx_opts());
}

static inline struct key fx_key(uint64_t n)
{
    struct key k = key_begin(KEY_SYSTEM);
    key_bytes(&k, "test", 4);
    key_u64(&k, n);
    return k;
}

/* One transaction: key n := value text. Returns what txn_commit does. */
static inline int fx_put(struct engine *e, uint64_t n, const char *value, uint64_t *ret_lsn)
{
    struct txn *t = txn_new(e);
    struct key k = fx_key(n);
    txn_put(t, &k, value, strlen(value));
    return txn_commit(t, ret_lsn);
}

/* n bytes, aligned for direct I/O; the caller frees them. */
static inline uint8_t *fx_pages(size_t n)
{
    uint8_t *p = aligned_alloc(4096, n);
    assert_non_null(p);
    memset(p, 0, n);
    return p;
}

/* Whether key n has the value. */
static inline bool fx_is(struct engine *e, uint64_t n, const char *value)
{
    struct wbuf w = {0};
    struct key k = fx_key(n);
    int r = idx_get(e, NULL, &k, &w);
    bool same = !r && w.len == strlen(value) && (!w.len || !memcmp(w.data, value, w.len));
    wbuf_done(&w);
    return same;
}

static inline bool fx_absent(struct engine *e, uint64_t n)
{
    struct wbuf w = {0};
    struct key k = fx_key(n);
    int r = idx_get(e, NULL, &k, &w);
    wbuf_done(&w);
    return r == -ENOENT;
}

/*
 * Runs this program again as `NAME fx_dir arg`: a process of its own, since the index library's threads do not survive
 * a fork. Returns its exit status, or minus the signal.
 */
static inline int fx_child(const char *self, const char *name, const char *arg)
{
    int status;
    pid_t pid = fork();
    if (!pid) {
        execl("/proc/self/exe", self, name, fx_dir, arg, (char *)NULL);
        _exit(99);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#endif
