/*
 * A plain in-memory namespace that says what a store must answer: random operations, their effect, and a canonical text
 * of the whole tree. Trusted callers only: permissions have tests of their own.
 */
#ifndef TESTS_NS_MODEL_H
#define TESTS_NS_MODEL_H

#include "base/buf.h"
#include "base/rng.h"
#include "store/types.h"

#define MODEL_OBJECTS 96
#define MODEL_ENTRIES 12
#define MODEL_XATTRS  3

struct model_obj {
    bool used;
    uint32_t mode, nlink, opens;
    uint64_t size;
    uint64_t ino; /* in the store under test, once known */
    int parent;   /* directories */
    char target[32];
    int nents, nx;
    struct {
        char name[8];
        int obj;
    } ents[MODEL_ENTRIES];
    struct {
        char name[12];
        char value[12];
    } x[MODEL_XATTRS];
};

struct model {
    struct model_obj o[MODEL_OBJECTS]; /* 0 is the root */
};

enum model_kind {
    MODEL_MAKE,
    MODEL_LINK,
    MODEL_UNLINK,
    MODEL_RMDIR,
    MODEL_RENAME,
    MODEL_CHMOD,
    MODEL_RESIZE,
    MODEL_SETXATTR,
    MODEL_REMOVEXATTR,
    MODEL_OPEN,
    MODEL_RELEASE,
    MODEL_KINDS,
};

struct model_op {
    enum model_kind kind;
    int obj, dir, dir2; /* indices */
    char name[8], name2[8], text[32];
    uint32_t mode, flags;
    bool exclusive;
    uint64_t size;
    int made;     /* out: index of the object that a MAKE made or found */
    bool created; /* out */
};

void model_init(struct model *m, uint32_t root_mode);
void model_random_op(const struct model *m, struct rng *r, struct model_op *ret);
/* What the operation answers; applies it when that is 0. */
int model_apply(struct model *m, struct model_op *op);
/* Nothing is open any more (the store was closed or died): objects without names go. */
void model_drop_opens(struct model *m);
int model_objects(const struct model *m);

/* The canonical text: a line per name, in order of the paths. The same object has the same number on each line. */
struct model_line {
    const char *path;
    int number;
    uint32_t mode, nlink;
    uint64_t size;
    const char *target; /* "" if none */
    const char *xattrs; /* "name=value," each, in order */
};
void model_format(struct wbuf *w, const struct model_line *l);
void model_text(const struct model *m, struct wbuf *w);
const char *model_op_text(const struct model_op *op);

#endif
