/*
 * Random operations on the engine's namespace beside a plain model: the same answers, the same tree, also after clean
 * stops, after crashes (the tree is one that the model had at or after the last sync), and when replies are lost and
 * requests sent again.
 */
#include "local_fixture.h"

#include "local/local_store.h"
#include "ns.h"
#include "ns_model.h"
#include "../lib/seed.h"

#include <sys/mman.h>

static struct engine *e;
static struct pst_cont *c;
static uint64_t seed0;

static int rounds(int normal)
{
    return getenv("PENSTOCK_EXTENDED") ? normal * 20 : normal;
}

static void open_store(bool fresh)
{
    struct pst_ctx ctx = {0};
    struct pst_pool_info pool = {.label = "p"};
    struct pst_cont_props props = {.mode = 0755};
    struct pst_cont_info info;
    e = fx_open();
    if (fresh) {
        assert_int_equal(pst_pool_create(&e->st, &ctx, &pool, &pool), 0);
        assert_int_equal(pst_cont_create(&e->st, &ctx, "p", "c", &props, &info), 0);
    }
    assert_int_equal(pst_cont_open(&e->st, &ctx, "p", "c", &c), 0);
}

static void close_store(void)
{
    pst_cont_close(c);
    eng_close(e);
}

static void note_line(void *user, const char *line)
{
    strncat(user, line, 2000 - strlen(user));
    strncat(user, "\n", 2000 - strlen(user));
}

/* The store is closed. */
static void assert_check_is_clean(void)
{
    char found[2048] = "";
    struct pst_check_opts o = {.report = note_line, .user = found};
    int64_t n = pst_local_check(fx_dir, &o, fx_err, sizeof fx_err);
    if (n)
        fail_msg("seed %llu: the check finds (%lld, %s):\n%s", (unsigned long long)seed0, (long long)n, fx_err, found);
}

/* ---- the store's side of an operation ---- */

struct answer {
    int r;
    uint64_t ino;
    bool created;
};

static struct answer make_real(const struct model *m, const struct model_op *op, const struct pst_ctx *ctx)
{
    struct pst_new in = {.mode = op->mode, .target = op->text, .exclusive = op->exclusive};
    struct answer a = {0};
    struct pst_attr attr = {0};
    a.r = pst_store_make(c, ctx, m->o[op->dir].ino, op->name, &in, &attr, &a.created);
    a.ino = attr.ino;
    return a;
}

static struct answer apply_real(const struct model *m, const struct model_op *op, const struct pst_ctx *ctx)
{
    uint64_t obj = m->o[op->obj].ino, dir = m->o[op->dir].ino, dir2 = m->o[op->dir2].ino;
    struct pst_attr in = {.mode = op->mode, .size = op->size}, out;
    struct answer a = {0};

    switch (op->kind) {
    case MODEL_MAKE:
        return make_real(m, op, ctx);
    case MODEL_LINK:
        a.r = pst_store_link(c, ctx, obj, dir, op->name, &out);
        break;
    case MODEL_UNLINK:
        a.r = pst_store_unlink(c, ctx, dir, op->name);
        break;
    case MODEL_RMDIR:
        a.r = pst_store_rmdir(c, ctx, dir, op->name);
        break;
    case MODEL_RENAME:
        a.r = pst_store_rename(c, ctx, dir, op->name, dir2, op->name2, op->flags);
        break;
    case MODEL_CHMOD:
        a.r = pst_store_setattr(c, ctx, obj, PST_SET_MODE, &in, &out);
        break;
    case MODEL_RESIZE:
        a.r = pst_store_setattr(c, ctx, obj, PST_SET_SIZE, &in, &out);
        break;
    case MODEL_SETXATTR:
        a.r = pst_store_setxattr(c, ctx, obj, op->name, op->text, strlen(op->text), op->flags);
        break;
    case MODEL_REMOVEXATTR:
        a.r = pst_store_removexattr(c, ctx, obj, op->name);
        break;
    case MODEL_OPEN:
        a.r = pst_store_open(c, ctx, obj, 0, false, &out);
        break;
    default:
        pst_store_release(c, obj);
        break;
    }
    return a;
}

/* ---- the store's tree as text ---- */

struct found {
    struct pst_dirent *list;
    int n;
};

static int collect(const struct pst_dirent *de, void *user)
{
    struct found *f = user;
    f->list = realloc(f->list, (size_t)(f->n + 1) * sizeof *f->list);
    f->list[f->n++] = *de;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct pst_dirent *)a)->name, ((const struct pst_dirent *)b)->name);
}

struct real_walk {
    struct wbuf *w;
    uint64_t inos[256];
    int n;
};

static void real_xattrs(uint64_t ino, char ret[256])
{
    const struct pst_ctx ctx = {0};
    char names[256], value[64];
    int64_t n = pst_store_listxattr(c, &ctx, ino, names, sizeof names);
    assert_true(n >= 0);
    ret[0] = 0;
    for (char *p = names; p < names + n; p += strlen(p) + 1) {
        int64_t len = pst_store_getxattr(c, &ctx, ino, p, value, sizeof value - 1);
        assert_true(len >= 0);
        value[len] = 0;
        strcat(strcat(strcat(strcat(ret, p), "="), value), ",");
    }
}

static void walk_real(struct real_walk *t, const struct pst_attr *a, uint64_t parent, const char *path)
{
    const struct pst_ctx ctx = {0};
    char target[64] = "", xattrs[256], below[768];
    int number = 0;
    while (number < t->n && t->inos[number] != a->ino)
        number++;
    if (number == t->n)
        t->inos[t->n++] = a->ino;
    if (S_ISLNK(a->mode))
        assert_int_equal(pst_store_readlink(c, &ctx, a->ino, target, sizeof target), a->size);
    real_xattrs(a->ino, xattrs);
    model_format(t->w, &(struct model_line){path, number + 1, a->mode, a->nlink, a->size, target, xattrs});
    if (!S_ISDIR(a->mode))
        return;
    struct found f = {0};
    uint64_t up = 0;
    assert_int_equal(pst_store_parent(c, a->ino, &up), 0);
    assert_int_equal(up, parent);
    assert_int_equal(pst_store_readdir(c, &ctx, a->ino, 0, true, collect, &f), 0);
    if (f.n)
        qsort(f.list, (size_t)f.n, sizeof *f.list, by_name);
    for (int i = 0; i < f.n; i++) {
        struct pst_attr look;
        assert_int_equal(pst_store_lookup(c, &ctx, a->ino, f.list[i].name, &look), 0);
        assert_int_equal(look.ino, f.list[i].attr.ino);
        assert_int_equal(look.change, f.list[i].attr.change);
        assert_int_equal(f.list[i].type, look.mode & S_IFMT);
        assert_true((size_t)snprintf(below, sizeof below, "%s/%s", path, f.list[i].name) < sizeof below);
        walk_real(t, &look, a->ino, below);
    }
    free(f.list);
}

static void real_text(struct wbuf *w)
{
    const struct pst_ctx ctx = {0};
    struct real_walk t = {.w = w};
    struct pst_attr root;
    assert_int_equal(pst_store_getattr(c, &ctx, PST_ROOT_INO, &root), 0);
    walk_real(&t, &root, PST_ROOT_INO, "");
}

static void assert_same_tree(const struct model *m, const char *when)
{
    struct wbuf want = {0}, got = {0};
    model_text(m, &want);
    real_text(&got);
    wbuf_u8(&want, 0);
    wbuf_u8(&got, 0);
    if (want.len != got.len || memcmp(want.data, got.data, got.len))
        fail_msg("seed %llu, %s: the trees differ\nwanted:\n%s\ngot:\n%s", (unsigned long long)seed0, when,
                 (char *)want.data, (char *)got.data);
    wbuf_done(&want);
    wbuf_done(&got);
}

static void assert_objects(const struct model *m)
{
    struct pst_statfs sf;
    assert_int_equal(pst_store_statfs(c, &sf), 0);
    assert_int_equal(sf.objects, model_objects(m));
}

/* ---- runs ---- */

/* The next operation that both sides have room for; m becomes what it is after it. Returns the expected answer. */
static int next_op(struct model *m, struct rng *r, struct model_op *op, struct model *ret_before)
{
    for (;;) {
        *ret_before = *m;
        model_random_op(m, r, op);
        int want = model_apply(m, op);
        if (want != -EAGAIN)
            return want;
    }
}

static void compare(struct model *m, const struct model_op *op, int want, const struct answer *a, const char *how)
{
    if (a->r != want)
        fail_msg("seed %llu: %s %s: %s, the model says %s", (unsigned long long)seed0, model_op_text(op), how,
                 err_name(a->r), err_name(want));
    if (op->kind != MODEL_MAKE || want)
        return;
    assert_int_equal(a->created, op->created);
    if (m->o[op->made].ino)
        assert_int_equal(m->o[op->made].ino, a->ino);
    m->o[op->made].ino = a->ino;
}

static void run(struct model *m, struct rng *r, int steps, struct pst_ctx *ctx, bool reopens)
{
    static struct model before;
    struct model_op op;
    for (int i = 0; i < steps; i++) {
        int want = next_op(m, r, &op, &before);
        ctx->id.slot = (uint32_t)rng_below(r, 4);
        ctx->id.seq++; /* grows in every slot */
        struct answer a = apply_real(&before, &op, ctx);
        compare(m, &op, want, &a, "at first");
        bool again = rng_below(r, 3) == 0 && op.kind != MODEL_OPEN && op.kind != MODEL_RELEASE;
        if (reopens && rng_below(r, 150) == 0) {
            close_store();
            open_store(false);
            model_drop_opens(m);
            assert_same_tree(m, "after a clean stop");
            assert_objects(m);
            again = again && want == 0; /* what failed on an object without a name fails otherwise now */
        }
        if (again) {
            a = apply_real(&before, &op, ctx);
            compare(m, &op, want, &a, "again");
        }
        if (i % 64 == 0)
            assert_same_tree(m, model_op_text(&op));
    }
    assert_same_tree(m, "at the end");
    assert_objects(m);
}

static void the_store_answers_as_the_model_does(void **state)
{
    static struct model m;
    (void)state;
    for (int round = 0; round < rounds(3); round++) {
        struct rng r;
        struct pst_ctx ctx = {.id.client = "model-client-id"};
        rng_seed(&r, seed0 + (uint64_t)round);
        model_init(&m, 0755);
        fx_setup(NULL);
        open_store(true);
        run(&m, &r, 2000, &ctx, true);
        close_store();
        assert_check_is_clean();
        fx_remove();
    }
}

/* ---- crashes ---- */

#define CRASH_CLIENT "crashed-client"

struct progress {
    uint32_t done, synced; /* operations begun; operations that are durable */
};

static struct progress *map_progress(void)
{
    char path[96];
    snprintf(path, sizeof path, "%s.progress", fx_dir);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, sizeof(struct progress)), 0);
    void *p = mmap(NULL, sizeof(struct progress), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    assert_true(p != MAP_FAILED);
    return p;
}

/* Runs operations and dies without closing the store. */
static int crash_child(const char *dir, uint64_t seed)
{
    static struct model m, before;
    struct rng r, when;
    struct model_op op;
    struct pst_ctx ctx = {.id.client = CRASH_CLIENT};
    snprintf(fx_dir, sizeof fx_dir, "%s", dir);
    log_set_sink(fx_quiet, NULL);
    struct progress *p = map_progress();
    rng_seed(&r, seed);
    rng_seed(&when, seed ^ 0x5555);
    model_init(&m, 0755);
    open_store(true);
    if (eng_sync(e, eng_last_lsn(e)))
        return 2;
    uint32_t end = 20 + (uint32_t)rng_below(&when, 400);
    while (p->done < end) {
        int want = next_op(&m, &r, &op, &before);
        ctx.id.seq = ++p->done;
        struct answer a = apply_real(&before, &op, &ctx);
        if (a.r != want)
            return 3;
        if (op.kind == MODEL_MAKE && !want)
            m.o[op.made].ino = a.ino;
        if (rng_below(&when, 40) == 0) {
            if (eng_sync(e, eng_last_lsn(e)))
                return 4;
            p->synced = p->done;
        }
    }
    _exit(0);
}

/* Gives the model's objects the numbers that they have in the store. */
static void bind_inos(struct model *m, int o)
{
    const struct pst_ctx ctx = {0};
    for (int i = 0; i < m->o[o].nents; i++) {
        struct pst_attr a;
        int child = m->o[o].ents[i].obj;
        assert_int_equal(pst_store_lookup(c, &ctx, m->o[o].ino, m->o[o].ents[i].name, &a), 0);
        m->o[child].ino = a.ino;
        if (S_ISDIR(m->o[child].mode))
            bind_inos(m, child);
    }
}

/* Where the store is in the run of operations: after the k-th, which was `last` and changed the tree or not. */
struct place {
    int k; /* -1: nowhere */
    struct model_op last;
    int want;
    bool changed;
};

/* The model after k operations of this seed, for the first k in [from, to] whose tree is the store's. */
static struct place find_prefix(struct model *m, uint64_t seed, uint32_t from, uint32_t to)
{
    static struct model before;
    struct place p = {.k = -1};
    struct wbuf got = {0}, want = {0}, previous = {0};
    struct rng r;
    rng_seed(&r, seed);
    model_init(m, 0755);
    real_text(&got);
    for (uint32_t k = 0; k <= to && p.k < 0; k++) {
        if (k)
            p.want = next_op(m, &r, &p.last, &before);
        previous.len = 0;
        wbuf_put(&previous, want.data, want.len);
        want.len = 0;
        model_text(m, &want);
        p.changed = want.len != previous.len || memcmp(want.data, previous.data, want.len);
        if (k >= from && want.len == got.len && !memcmp(want.data, got.data, got.len))
            p.k = (int)k;
    }
    wbuf_done(&got);
    wbuf_done(&want);
    wbuf_done(&previous);
    return p;
}

/* The client of before the crash, which never saw the reply, asks again: it was done, and is not done again. */
static void retry_last(const struct model *m, struct place *p)
{
    struct pst_ctx ctx = {.id = {.client = CRASH_CLIENT, .seq = (uint64_t)p->k}};
    if (p->k <= 0 || p->want || !p->changed)
        return;
    struct answer a = apply_real(m, &p->last, &ctx);
    /* -ESTALE: later ones that left the tree as it was are in the store as well */
    if (a.r && a.r != -ESTALE)
        fail_msg("seed %llu: %s again after the crash: %s", (unsigned long long)seed0, model_op_text(&p->last),
                 err_name(a.r));
    assert_same_tree(m, "after a request of before the crash came again");
}

static void a_crash_leaves_a_prefix(void **state)
{
    static struct model m;
    (void)state;
    for (int round = 0; round < rounds(8); round++) {
        uint64_t seed = seed0 + 1000 + (uint64_t)round;
        char arg[32], path[96];
        struct pst_ctx ctx = {.id.client = "after-the-crash"};
        struct rng r;
        fx_setup(NULL);
        snprintf(path, sizeof path, "%s.progress", fx_dir);
        snprintf(arg, sizeof arg, "%llu", (unsigned long long)seed);
        struct progress *p = map_progress();
        assert_int_equal(fx_child("ns_model", "crash", arg), 0);
        if (round % 2)
            assert_check_is_clean(); /* replays, and leaves objects without names alone */
        open_store(false);
        struct place at = find_prefix(&m, seed, p->synced, p->done);
        if (at.k < 0)
            fail_msg("seed %llu: after the crash the tree is none that was there from operation %u to %u",
                     (unsigned long long)seed, p->synced, p->done);
        bind_inos(&m, 0);
        model_drop_opens(&m);
        retry_last(&m, &at);
        assert_objects(&m);
        /* and life goes on */
        rng_seed(&r, seed);
        run(&m, &r, 200, &ctx, false);
        close_store();
        assert_check_is_clean();
        munmap(p, sizeof *p);
        unlink(path);
        fx_remove();
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_store_answers_as_the_model_does),
        cmocka_unit_test(a_crash_leaves_a_prefix),
    };
    if (argc == 4 && !strcmp(argv[1], "crash"))
        return crash_child(argv[2], strtoull(argv[3], NULL, 10));
    seed0 = seed_new();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
