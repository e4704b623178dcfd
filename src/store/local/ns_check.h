/* Offline verification of the namespace: what its files share (ns_check.c, ns_check_tree.c, ns_repair.c). */
#ifndef LOCAL_NS_CHECK_H
#define LOCAL_NS_CHECK_H

#include "ns.h"

struct ck_cont {
    uint64_t id;
    char pool[PST_LABEL_MAX + 1], label[PST_LABEL_MAX + 1]; /* a destroyed one: "" */
    uint32_t chunk_size;
    bool dead;
};

/* An object of the container that is being checked: what its record says, and what was found. */
struct ck_obj {
    uint64_t ino;
    uint32_t nlink, refs; /* refs: entries that name it */
    uint32_t dir;         /* index of its struct ck_dir + 1; 0: not a directory */
    uint16_t xattrs, seen_xattrs;
    uint8_t type; /* S_IFMT bits >> 12 */
    bool orphan;  /* has a KEY_ORPHAN */
};

struct ck_dir {
    uint64_t parent, entries, digest, next_cookie; /* as recorded */
    uint64_t found_in;                             /* the directory whose entry names it; 0: none so far */
    uint64_t seen, seen_digest, top_cookie;
    uint32_t subdirs;
    uint8_t mark; /* of the walk to the root */
};

struct nsck {
    struct engine *e;
    struct check *c;
    bool repair;
    struct ck_cont *conts; /* sorted by id after loading */
    size_t nconts;
    struct ino_mark mark; /* of the counter of numbers; a new one if there is none (mark_r is not 0) */
    int mark_r;
    uint64_t top_run; /* the highest run of that counter of which a number is in use, */
    uint64_t seen;    /* and a number of the run that was looked up last */
    /* the container that is being checked */
    const struct ck_cont *k;
    struct ck_obj *objs; /* in order of the numbers */
    size_t nobjs, capobjs;
    struct ck_dir *dirs;
    size_t ndirs, capdirs;
    uint64_t used;
    uint32_t made; /* objects that repairs made */
};

/* The big-endian number at an offset of a key. */
uint64_t ck_number(const uint8_t *k, size_t at);
/* A finding about the container at hand: "pool/container: ..." */
void ck_problem(struct nsck *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The number is in use. 0 or -ENOMEM. */
int ck_used(struct nsck *s, uint64_t number);
struct ck_obj *ck_find(struct nsck *s, uint64_t ino);
static inline struct ck_dir *ck_dir(struct nsck *s, const struct ck_obj *o)
{
    return &s->dirs[o->dir - 1];
}

/* All of one container; s->k is set. */
int ck_container(struct nsck *s);

/* ---- repairs (ns_repair.c): each one transaction, made only when s->repair, after the finding was reported ---- */

/* The record's counts become what was found. */
int fix_inode(struct nsck *s, const struct ck_obj *o);
/* Both keys of the entry are written: the one that was lost or differs is made from the other. */
int fix_entry(struct nsck *s, uint64_t dir, const char *name, const struct dent *d);
/* A key that says nothing: removed. */
int fix_drop(struct nsck *s, const uint8_t *k, size_t klen);
/* The name that the directory has for it goes; counts of the record follow. */
int fix_unname(struct nsck *s, uint64_t dir, const struct ck_obj *o);
/* An object without a name gets one in /lost+found. */
int fix_unreachable(struct nsck *s, const struct ck_obj *o);
/* An object with no links that nobody counts as an orphan: the next open deletes it. */
int fix_orphan(struct nsck *s, const struct ck_obj *o);
int fix_usage(struct nsck *s, int64_t bytes, int64_t objects);

#endif
