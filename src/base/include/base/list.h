/* Circular doubly linked list, links embedded in the elements. An element is on at most one list per link. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include "base/util.h"

struct list {
    struct list *next, *prev;
};

#define LIST_INIT(l)                                                                                                   \
    {                                                                                                                  \
        &(l), &(l)                                                                                                     \
    }

static inline void list_init(struct list *l)
{
    l->next = l->prev = l;
}

static inline bool list_empty(const struct list *l)
{
    return l->next == l;
}

static inline void list_insert(struct list *prev, struct list *n)
{
    n->prev = prev;
    n->next = prev->next;
    prev->next->prev = n;
    prev->next = n;
}

static inline void list_push_back(struct list *l, struct list *n)
{
    list_insert(l->prev, n);
}

static inline void list_push_front(struct list *l, struct list *n)
{
    list_insert(l, n);
}

/* Leaves n initialised, so that removing it twice is harmless. */
static inline void list_del(struct list *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    list_init(n);
}

static inline struct list *list_pop_front(struct list *l)
{
    struct list *n = l->next;
    if (n == l)
        return NULL;
    list_del(n);
    return n;
}

/* Moves all of src to the end of dst. */
static inline void list_splice_back(struct list *dst, struct list *src)
{
    if (list_empty(src))
        return;
    src->next->prev = dst->prev;
    dst->prev->next = src->next;
    src->prev->next = dst;
    dst->prev = src->prev;
    list_init(src);
}

#define list_entry(n, type, member) container_of(n, type, member)
#define list_for_each(it, l)        for (struct list *it = (l)->next; it != (l); it = it->next)
/* The body may remove `it`. */
#define list_for_each_safe(it, l)                                                                                      \
    for (struct list *it = (l)->next, *it##_next = it->next; it != (l); it = it##_next, it##_next = it->next)

#endif
