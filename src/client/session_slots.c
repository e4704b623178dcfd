/*
 * Slots for exactly once. A slot has one request outstanding; its sequence goes on for the client's whole life, over
 * sessions and queues. The first SESSION_CONTROL_SLOTS are for control requests one by one, the rest goes to queues in
 * ranges: a few large ones, then small ones.
 */
#include "session.h"

#include <errno.h>

#define LARGE_RANGE  64u
#define LARGE_RANGES 8u
#define SMALL_RANGE  8u
#define LARGE_END    (SESSION_CONTROL_SLOTS + LARGE_RANGE * LARGE_RANGES)

int session_slot_get(struct session *s, uint64_t deadline_ns, uint32_t *ret_slot, uint64_t *ret_seq)
{
    for (;;) {
        uint64_t now = now_ns();
        if (s->refused)
            return s->refused;
        for (uint32_t i = 0; i < SESSION_CONTROL_SLOTS; i++) {
            struct slot *sl = &s->slot[i];
            if (sl->free_at_ns > now)
                continue;
            sl->free_at_ns = UINT64_MAX;
            *ret_slot = i;
            *ret_seq = ++sl->seq;
            return 0;
        }
        if (!session_wait(&s->changed, &s->lock, deadline_ns))
            return -ETIMEDOUT;
    }
}

void session_slot_put(struct session *s, uint32_t slot, bool abandoned)
{
    s->slot[slot].free_at_ns = abandoned ? now_ns() + SLOT_REST_NS : 0;
    pthread_cond_broadcast(&s->changed);
}

int session_slots_take(struct session *s, uint32_t want, uint32_t *ret_first, uint32_t *ret_count)
{
    scoped_lock(&s->lock);
    for (uint32_t at = SESSION_CONTROL_SLOTS; at < PST_SLOTS_MAX;) {
        uint32_t n = at < LARGE_END ? LARGE_RANGE : SMALL_RANGE;
        if (!s->range_used[at]) {
            s->range_used[at] = true;
            *ret_first = at;
            *ret_count = (uint32_t)min_u64(n, want);
            return 0;
        }
        at += n;
    }
    return -EAGAIN;
}

void session_slots_give(struct session *s, uint32_t first, uint32_t count)
{
    (void)count;
    scoped_lock(&s->lock);
    s->range_used[first] = false;
}

uint64_t session_slot_next(struct session *s, uint32_t slot)
{
    return ++s->slot[slot].seq; /* the range is the caller's alone */
}
