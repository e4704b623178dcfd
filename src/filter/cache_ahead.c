/* Who reads in order, and how much is asked for ahead of that. Under cache.lock. */
#include "cache.h"

#define WINDOW_MIN (256 * KiB)
#define STREAK     2u /* reads in a row before something is asked for ahead */

/*
 * Several requests of a reader are under way, by several connections, and come slightly out of order: within a few of
 * their lengths.
 */
static bool goes_on(const struct cache_stream *s, uint64_t from, uint64_t to)
{
    uint64_t len = to - from;

    return s->used && from <= s->next + 4 * len && s->next <= to + 8 * len;
}

static struct cache_stream *stream_of(struct cache_obj *o, uint64_t from, uint64_t to)
{
    struct cache_stream *oldest = &o->stream[0];

    for (uint32_t i = 0; i < CACHE_STREAMS; i++) {
        if (goes_on(&o->stream[i], from, to))
            return &o->stream[i];
        if (o->stream[i].used < oldest->used)
            oldest = &o->stream[i];
    }
    *oldest = (struct cache_stream){.next = from, .ahead = to};
    return oldest;
}

bool cache_ahead_want(struct cache *c, struct cache_obj *o, uint64_t from, uint64_t to, uint64_t *ret_from,
                      uint64_t *ret_to)
{
    struct cache_stream *s;
    uint64_t target;

    if (!c->ahead_max)
        return false;
    s = stream_of(o, from, to);
    s->used = ++c->tick;
    if (to <= s->next)
        return false;
    s->next = to;
    s->ahead = max_u64(s->ahead, to);
    if (++s->streak < STREAK)
        return false;
    if (s->ahead - s->next > s->window / 2) /* more than half of it is still ahead */
        return false;
    s->window = min_u64(c->ahead_max, s->window ? 2 * s->window : max_u64(WINDOW_MIN, 2 * (to - from)));
    target = min_u64(o->size, s->next + s->window);
    if (s->ahead >= target)
        return false;
    *ret_from = s->ahead;
    *ret_to = target;
    return true;
}

void cache_ahead_asked(struct cache *c, struct cache_obj *o, uint64_t from, uint64_t to)
{
    for (uint32_t i = 0; i < CACHE_STREAMS; i++)
        if (o->stream[i].used == c->tick && o->stream[i].ahead == from)
            o->stream[i].ahead = to;
}
