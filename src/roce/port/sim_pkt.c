/* Packets under way, the earliest first; those of one time in the order in which they were sent. */
#include "sim_priv.h"

#include <string.h>

struct sim_pkt *sim_pkt_new(struct port_sim_net *n, uint32_t len)
{
    struct sim_pkt *p = n->bytes + len <= SIM_BYTES_MAX ? malloc(sizeof *p + len) : NULL;
    if (!p)
        return NULL;
    memset(p, 0, sizeof *p);
    list_init(&p->link);
    p->len = len;
    n->bytes += len;
    return p;
}

struct sim_pkt *sim_pkt_copy(struct port_sim_net *n, const struct sim_pkt *p)
{
    struct sim_pkt *copy = sim_pkt_new(n, p->len);
    if (!copy)
        return NULL;
    memcpy(copy, p, sizeof *copy + p->len);
    list_init(&copy->link);
    return copy;
}

void sim_pkt_free(struct port_sim_net *n, struct sim_pkt *p)
{
    n->bytes -= p->len;
    free(p);
}

static bool before(const struct sim_pkt *a, const struct sim_pkt *b)
{
    return a->time_ns != b->time_ns ? a->time_ns < b->time_ns : a->order < b->order;
}

static void sift_up(struct port_sim_net *n, size_t i)
{
    struct sim_pkt *p = n->heap[i];
    for (; i && before(p, n->heap[(i - 1) / 2]); i = (i - 1) / 2)
        n->heap[i] = n->heap[(i - 1) / 2];
    n->heap[i] = p;
}

static void sift_down(struct port_sim_net *n, size_t i)
{
    struct sim_pkt *p = n->heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n->nheap)
            break;
        if (child + 1 < n->nheap && before(n->heap[child + 1], n->heap[child]))
            child++;
        if (!before(n->heap[child], p))
            break;
        n->heap[i] = n->heap[child];
        i = child;
    }
    n->heap[i] = p;
}

void sim_heap_push(struct port_sim_net *n, struct sim_pkt *p)
{
    if (n->nheap == n->cap) {
        size_t cap = n->cap ? 2 * n->cap : 256;
        struct sim_pkt **heap = realloc(n->heap, cap * sizeof *heap);
        if (!heap) {
            n->stats.tail_dropped++;
            sim_pkt_free(n, p);
            return;
        }
        n->heap = heap;
        n->cap = cap;
    }
    p->order = n->order++;
    n->heap[n->nheap++] = p;
    sift_up(n, n->nheap - 1);
}

void sim_heap_pop(struct port_sim_net *n)
{
    n->heap[0] = n->heap[--n->nheap];
    if (n->nheap)
        sift_down(n, 0);
}

void sim_heap_purge(struct port_sim_net *n, const struct sim_port *port)
{
    size_t kept = 0;
    for (size_t i = 0; i < n->nheap; i++) {
        if (n->heap[i]->to_port == port)
            sim_pkt_free(n, n->heap[i]);
        else
            n->heap[kept++] = n->heap[i];
    }
    n->nheap = kept;
    for (size_t i = kept / 2; i-- > 0;)
        sift_down(n, i);
}
