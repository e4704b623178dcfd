/* What the halves of the store in memory share: memstore.c has the data, memstore_names.c the names. */
#ifndef TESTS_MEMSTORE_NODE_H
#define TESTS_MEMSTORE_NODE_H

#include "memstore.h"

#include "base/list.h"

#include <pthread.h>

struct node {
    struct list link;
    struct pst_attr a;
    uint8_t *data; /* owned; content of a file, target of a symbolic link */
    uint32_t opens;
    struct list names; /* directories: struct name */
    uint64_t parent, last_cookie;
};

struct name {
    struct list link;
    char name[PST_NAME_MAX + 1];
    uint64_t ino, cookie;
};

struct memstore {
    struct pst_store st;
    struct pst_store_ops ops;
    struct pst_cont cont;
    pthread_mutex_t lock;
    struct list nodes;
    uint64_t last_ino;
    uint32_t hold, fail_kinds, fail_left;
    bool backwards;
    int fail_err;
    struct memstore_counts n;
    struct list queues; /* struct mqueue.link */
};

/* All below: the store is locked. */
struct node *node(struct memstore *m, uint64_t ino); /* NULL: not there */
struct node *node_new(struct memstore *m, uint32_t mode, uint64_t parent);
void node_free(struct node *n);
void touch(struct node *n);
int resize(struct node *n, uint64_t size);

/* The operations on names, into the table. */
void memstore_names(struct pst_store_ops *ops);

#endif
