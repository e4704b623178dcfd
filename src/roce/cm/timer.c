/* Deadlines of ids in a heap, and what is sent again. */
#include "impl.h"

int cm_heap_reserve(struct cm_engine *e, uint32_t n)
{
    if (n <= e->heap_cap)
        return 0;
    uint32_t cap = e->heap_cap ? e->heap_cap * 2 : 64;
    while (cap < n)
        cap *= 2;
    struct cm_id **t = realloc(e->heap, cap * sizeof(struct cm_id *));
    if (!t)
        return -ENOMEM;
    e->heap = t;
    e->heap_cap = cap;
    return 0;
}

static void place(struct cm_engine *e, uint32_t i, struct cm_id *id)
{
    e->heap[i] = id;
    id->heap_at = i + 1;
}

static void sift(struct cm_engine *e, uint32_t i, struct cm_id *id)
{
    for (; i > 0 && e->heap[(i - 1) / 2]->deadline > id->deadline; i = (i - 1) / 2)
        place(e, i, e->heap[(i - 1) / 2]);
    for (uint32_t c; (c = 2 * i + 1) < e->nheap; i = c) {
        if (c + 1 < e->nheap && e->heap[c + 1]->deadline < e->heap[c]->deadline)
            c++;
        if (e->heap[c]->deadline >= id->deadline)
            break;
        place(e, i, e->heap[c]);
    }
    place(e, i, id);
}

void cm_timer_set(struct cm_id *id, uint64_t deadline)
{
    struct cm_engine *e = id->e;

    if (id->heap_at && deadline == UINT64_MAX) {
        uint32_t i = id->heap_at - 1;
        struct cm_id *last = e->heap[--e->nheap];
        id->heap_at = 0;
        id->deadline = deadline;
        if (last != id)
            sift(e, i, last);
        return;
    }
    id->deadline = deadline;
    if (deadline == UINT64_MAX)
        return;
    sift(e, id->heap_at ? id->heap_at - 1 : e->nheap++, id);
}

uint64_t cm_deadline(const struct cm_engine *e)
{
    return e->nheap ? e->heap[0]->deadline : UINT64_MAX;
}

void cm_send_again(struct cm_id *id)
{
    if (id->has_mad && list_empty(&id->out))
        list_push_back(&id->e->out, &id->out);
}

static uint64_t wait_of(uint32_t tries)
{
    return tries < 6 ? min_u64(CM_RETRY_FIRST_NS << tries, CM_RETRY_MAX_NS) : CM_RETRY_MAX_NS;
}

void cm_send_repeated(struct cm_id *id)
{
    id->tries = 0;
    cm_send_again(id);
    cm_timer_set(id, id->e->now + wait_of(0));
}

bool cm_send_next(struct cm_id *id, uint32_t tries)
{
    if (id->e->cfg.tries)
        tries = id->e->cfg.tries;
    if (++id->tries >= tries)
        return false;
    id->e->st.resent++;
    cm_send_again(id);
    cm_timer_set(id, id->e->now + wait_of(id->tries));
    return true;
}
