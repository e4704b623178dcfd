/*
 * Offline verification of the namespace: pools and containers here, each container's tree in ns_check_tree.c. The
 * store is open, its log replayed, without a struct ns.
 */
#include "ns_check.h"

#include "base/endian.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

uint64_t ck_number(const uint8_t *k, size_t at)
{
    be64 v;
    memcpy(v.b, k + at, 8);
    return get_be64(v);
}

void ck_problem(struct nsck *s, const char *fmt, ...)
{
    char text[700];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (s->k)
        check_problem(s->c, "%s/%s: %s", s->k->pool, s->k->label, text);
    else
        check_problem(s->c, "%s", text);
}

int ck_used(struct nsck *s, uint64_t number)
{
    uint64_t run;

    if (number & NS_INO_FLAG && number / NS_INO_RUN == s->seen / NS_INO_RUN)
        return 0;
    int r = ino_run_of(&s->mark, number, &run);
    if (r)
        return r;
    s->seen = number;
    s->top_run = max_u64(s->top_run, run);
    return 0;
}

/* ---- pools and containers ---- */

static int by_id(const void *a, const void *b)
{
    uint64_t x = ((const struct ck_cont *)a)->id, y = ((const struct ck_cont *)b)->id;
    return x < y ? -1 : x > y;
}

static const struct ck_cont *cont_known(struct nsck *s, uint64_t id)
{
    const struct ck_cont want = {.id = id};
    return s->nconts ? bsearch(&want, s->conts, s->nconts, sizeof want, by_id) : NULL;
}

static int cont_note(struct nsck *s, const struct ck_cont *k)
{
    void *bigger = realloc(s->conts, (s->nconts + 1) * sizeof *s->conts);
    if (!bigger)
        return -ENOMEM;
    s->conts = bigger;
    s->conts[s->nconts++] = *k;
    return ck_used(s, k->id);
}

static int visit_pool(void *user, const uint8_t *k, size_t klen, const uint8_t *v, size_t vlen)
{
    struct nsck *s = user;
    char label[PST_LABEL_MAX + 1] = {0};
    struct pst_pool_info info;

    memcpy(label, k + 1, klen - 1 <= PST_LABEL_MAX ? klen - 1 : PST_LABEL_MAX);
    if (klen - 1 > PST_LABEL_MAX || pool_decode(label, v, vlen, &info))
        ck_problem(s, "pool %s: its record is not valid", label);
    return 0;
}

static int visit_cont(void *user, const uint8_t *k, size_t klen, const uint8_t *v, size_t vlen)
{
    struct nsck *s = user;
    struct ck_cont c = {0};
    struct pst_cont_info info;
    struct wbuf w = {0};
    const uint8_t *nul = memchr(k + 1, 0, klen - 1);
    size_t plen = nul ? (size_t)(nul - k - 1) : 0, llen = nul ? klen - plen - 2 : 0;

    if (nul && plen <= PST_LABEL_MAX && llen <= PST_LABEL_MAX) {
        memcpy(c.pool, k + 1, plen);
        memcpy(c.label, nul + 1, llen);
    }
    if (cont_decode(c.pool, c.label, v, vlen, &info)) {
        ck_problem(s, "container %s/%s: its record is not valid", c.pool, c.label);
        return 0;
    }
    struct key pk = pool_key(c.pool), ik = cont_id_key(info.id);
    if (idx_get(s->e, NULL, &pk, &w) == -ENOENT)
        ck_problem(s, "container %s/%s: its pool is missing", c.pool, c.label);
    if (idx_get(s->e, NULL, &ik, &w) == -ENOENT || w.len != plen + 1 + llen || memcmp(w.data, k + 1, w.len))
        ck_problem(s, "container %s/%s: the entry of its number %llu is missing or wrong", c.pool, c.label,
                   (unsigned long long)info.id);
    wbuf_done(&w);
    c.id = info.id;
    c.chunk_size = (uint32_t)info.props.chunk_size;
    return cont_note(s, &c);
}

static int visit_cont_id(void *user, const uint8_t *k, size_t klen, const uint8_t *v, size_t vlen)
{
    struct nsck *s = user;
    const struct ck_cont *c = klen == 9 ? cont_known(s, ck_number(k, 1)) : NULL;

    (void)v, (void)vlen;
    if (!c || c->dead)
        ck_problem(s, "container number %llu: the container that it names is missing",
                   klen == 9 ? (unsigned long long)ck_number(k, 1) : 0ull);
    return 0;
}

static int visit_dead(void *user, const uint8_t *k, size_t klen, const uint8_t *v, size_t vlen)
{
    struct nsck *s = user;
    struct ck_cont c = {.dead = true, .label = "(destroyed)"};
    uint8_t uuid[16];

    if (klen != 9 || cont_gc_decode(v, vlen, c.pool, uuid)) {
        ck_problem(s, "a destroyed container: its record is not valid");
        return 0;
    }
    c.id = ck_number(k, 1);
    return cont_note(s, &c);
}

/* Two records with one number: two containers would share their objects. */
static void check_ids(struct nsck *s)
{
    for (size_t i = 1; i < s->nconts; i++)
        if (s->conts[i].id == s->conts[i - 1].id)
            ck_problem(s, "containers %s/%s and %s/%s have the same number", s->conts[i - 1].pool,
                       s->conts[i - 1].label, s->conts[i].pool, s->conts[i].label);
}

/* Keys of containers that do not exist: one finding per space and container. */
static int check_strays(struct nsck *s, enum key_space space)
{
    struct key prefix = key_begin(space), from = prefix;

    for (;;) {
        struct idx_iter *it = idx_iter_new(s->e, NULL, &prefix, &from);
        uint64_t id = 0;
        size_t klen = 0;
        if (!it)
            return -ENOMEM;
        int r = idx_iter_next(it);
        const uint8_t *k = r ? idx_iter_key(it, &klen) : NULL;
        if (k && klen >= 9)
            id = ck_number(k, 1);
        idx_iter_free(it);
        if (!k)
            return 0;
        if (klen < 9)
            ck_problem(s, "index: a key of space '%c' is too short", (char)space);
        else if (!cont_known(s, id))
            ck_problem(s, "index: keys of space '%c' belong to container number %llu, which does not exist",
                       (char)space, (unsigned long long)id);
        if (id == UINT64_MAX)
            return 0;
        from = key_begin(space);
        key_u64(&from, id + 1);
    }
}

static int visit_unknown(void *user, const uint8_t *k, size_t klen, const uint8_t *v, size_t vlen)
{
    struct nsck *s = user;
    (void)v, (void)vlen;
    ck_problem(s, "index: a key of %zu bytes in the unknown space 0x%02x", klen, k[0]);
    return 1; /* one finding per space */
}

static int check_spaces(struct nsck *s)
{
    static const char per_cont[] = {KEY_INODE,   KEY_DIRENT, KEY_COOKIE, KEY_XATTR, KEY_CHUNK,
                                    KEY_ORPHAN, KEY_GARBAGE, KEY_USAGE};
    static const char others[] = {KEY_SYSTEM, KEY_POOL, KEY_CONT, KEY_CONT_ID, KEY_REPLY, KEY_CONT_GC};

    for (size_t i = 0; i < sizeof per_cont; i++) {
        int r = check_strays(s, (enum key_space)per_cont[i]);
        if (r)
            return r;
    }
    for (int b = 0; b < 256; b++) {
        if (memchr(per_cont, b, sizeof per_cont) || memchr(others, b, sizeof others))
            continue;
        struct key prefix = key_begin((enum key_space)b);
        int r = idx_each_whole(s->e, &prefix, visit_unknown, s);
        if (r < 0)
            return r;
    }
    return 0;
}

static int visit_reply(void *user, const uint8_t *k, size_t klen, const uint8_t *v, size_t vlen)
{
    struct nsck *s = user;
    uint32_t day;
    (void)k;
    if (klen != 21 || reply_day(v, vlen, &day))
        ck_problem(s, "a reply record is not valid");
    return 0;
}

/* The counter must be past every run that is in use, or numbers would be given out twice. */
static void check_counter(struct nsck *s)
{
    if (s->mark_r == -ENOENT && s->top_run == 0)
        return;
    if (s->mark_r)
        ck_problem(s, "the counter of object numbers is missing or not valid");
    else if (s->mark.next <= s->top_run)
        ck_problem(s, "the counter of object numbers (%llu) is behind the highest one in use (%llu)",
                   (unsigned long long)s->mark.next, (unsigned long long)s->top_run);
    else
        return;
    if (s->repair) {
        s->mark.next = max_u64(s->mark.next, s->top_run + 1);
        ino_mark_write(s->e, &s->mark);
    }
}

static int load(struct nsck *s)
{
    struct key pools = key_begin(KEY_POOL), conts = key_begin(KEY_CONT), dead = key_begin(KEY_CONT_GC);
    int r = idx_each_whole(s->e, &pools, visit_pool, s);

    if (!r)
        r = idx_each_whole(s->e, &conts, visit_cont, s);
    if (!r)
        r = idx_each_whole(s->e, &dead, visit_dead, s);
    if (!r && s->nconts) {
        qsort(s->conts, s->nconts, sizeof *s->conts, by_id);
        check_ids(s);
    }
    return r;
}

int ns_check(struct engine *e, struct check *c)
{
    struct nsck s = {.e = e, .c = c, .repair = check_repairs(c)};
    struct key ids = key_begin(KEY_CONT_ID), replies = key_begin(KEY_REPLY);
    int r;

    s.mark_r = ino_mark_read(e, &s.mark);
    if (s.mark_r)
        ino_mark_begin(&s.mark);
    r = load(&s);
    if (!r)
        r = idx_each_whole(s.e, &ids, visit_cont_id, &s);
    for (size_t i = 0; !r && i < s.nconts; i++) {
        s.k = &s.conts[i];
        r = ck_container(&s);
    }
    s.k = NULL;
    if (!r)
        r = check_spaces(&s);
    if (!r)
        r = idx_each_whole(s.e, &replies, visit_reply, &s);
    if (!r)
        check_counter(&s);
    free(s.conts);
    free(s.objs);
    free(s.dirs);
    return r;
}
