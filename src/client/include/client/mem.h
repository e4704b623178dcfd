/*
 * Memory that data connections may reach without a copy: regions that the user registered (pst_buf_register) and the
 * client's own buffers. One table per process: a queue that has a transport underneath asks it for the region of an
 * address and registers that with its own domain once.
 *
 * A region is removed only when no operation uses it; every queue has closed its registration before the removal
 * returns (contract 3). All calls are thread-safe.
 */
#ifndef CLIENT_MEM_H
#define CLIENT_MEM_H

#include "base/list.h"

#define MEM_REGIONS_MAX 256u /* the user's; more would only slow down look-ups */

struct mem_region {
    uint8_t *base;
    size_t len;
    uint64_t id;      /* never used twice */
    bool own;         /* the client's own buffers */
    bool source;      /* may be read from outside, and never written */
    int fd;           /* the memfd that it is, from its start on; -1: of another kind. Set before the first use */
    uint32_t users;   /* operations under way */
    uint32_t holders; /* queues that have it registered */
    bool closing;
};

/* base and len: multiples of 4096. -ENOSPC: too many; -EEXIST: overlaps another region. */
int mem_add(void *base, size_t len, bool own, struct mem_region **ret);
/* The same of memory whose bytes only go out: operations that would put some there do without the region. */
int mem_add_source(void *base, size_t len, struct mem_region **ret);
/* 0: gone, and reachable by nobody. -EBUSY: in use; it stays. */
int mem_remove(struct mem_region *r);

/* The region that holds all of [p, p + len), with one more user; NULL: none, or it is being removed. */
struct mem_region *mem_use(const void *p, size_t len);
void mem_unuse(struct mem_region *r);

/* A queue that registers regions. wake: makes its thread look (mem_closing) soon; called from any thread. */
struct mem_holder {
    struct list link;
    void (*wake)(struct mem_holder *h);
};
void mem_holder_add(struct mem_holder *h);
void mem_holder_remove(struct mem_holder *h); /* after the last mem_release */
/* Bracket a registration: mem_hold before it (the caller is a user of r), mem_release after its end. */
void mem_hold(struct mem_region *r);
void mem_release(struct mem_region *r);
/* Changes whenever some region begins to close: cheap to compare. */
uint64_t mem_generation(void);
bool mem_closing(const struct mem_region *r);

/* Around fork(2): the child begins with an empty table, since it has none of the queues. */
void mem_fork_prepare(void);
void mem_fork_parent(void);
void mem_fork_child(void);

#endif
