/* A tree, depth first: a directory's other entries, then its subdirectories, each with what is below it. */
#ifndef CLI_WALK_H
#define CLI_WALK_H

#include "side.h"

struct walk {
    struct side *side;
    void *user;
    /*
     * rel: the path below the root, without a leading '/'; "" for the root itself. A result other than 0 ends the walk,
     * but 1 from dir_begin only leaves this directory out. Any may be NULL.
     */
    int (*entry)(void *user, const char *path, const char *rel, const struct stat *st); /* not a directory */
    int (*dir_begin)(void *user, const char *path, const char *rel, const struct stat *st);
    int (*dir_end)(void *user, const char *path, const char *rel, const struct stat *st);
    /* A directory that cannot be listed, a name that is too long: 0 goes on. */
    int (*failed)(void *user, const char *path, int err);
    /* private */
    char path[SIDE_PATH_MAX];
    size_t root_len;
};
/* The root may be anything. 0, or what ended the walk. */
int walk_run(struct walk *w, const char *root);

#endif
