#include "qos_priv.h"

static bool before(const struct qos_heap *h, const struct qos_tenant *a, const struct qos_tenant *b)
{
    return h->wraps ? (int64_t)(a->key - b->key) < 0 : a->key < b->key;
}

static void place(struct qos_heap *h, struct qos_tenant *t, uint32_t at)
{
    h->v[at] = t;
    t->at = at;
}

static void up(struct qos_heap *h, struct qos_tenant *t, uint32_t at)
{
    while (at > 0 && before(h, t, h->v[(at - 1) / 2])) {
        place(h, h->v[(at - 1) / 2], at);
        at = (at - 1) / 2;
    }
    place(h, t, at);
}

static void down(struct qos_heap *h, struct qos_tenant *t, uint32_t at)
{
    for (uint32_t c; (c = 2 * at + 1) < h->n; at = c) {
        if (c + 1 < h->n && before(h, h->v[c + 1], h->v[c]))
            c++;
        if (!before(h, h->v[c], t))
            break;
        place(h, h->v[c], at);
    }
    place(h, t, at);
}

void heap_push(struct qos_heap *h, struct qos_tenant *t)
{
    up(h, t, h->n++);
}

void heap_remove(struct qos_heap *h, struct qos_tenant *t)
{
    struct qos_tenant *last = h->v[--h->n];
    uint32_t at = t->at;

    if (last == t)
        return;
    if (before(h, last, t))
        up(h, last, at);
    else
        down(h, last, at);
}
