#include "cache_policy.h"

#include "base/util.h"

#include <errno.h>
#include <stdlib.h>

#define GHOSTS_EACH    8u   /* for each block */
#define WINDOW_MIN     64u  /* blocks, if that is not more than a quarter */
#define WINDOW_SHARE   16u
#define PERIODS_UNSEEN 8u   /* cache sizes: a block is not dead before, if no distance is known */
#define STALE          4u   /* times as many uses as may be ahead: what was not used meanwhile was read ahead in vain */
#define OFTEN          4u   /* times more often than usual: it comes in */

static void list_add(struct pol *p, uint32_t i, enum pol_place place)
{
    struct pol_list *l = &p->list[place];
    struct pol_block *b = &p->blocks[i];

    b->place = (uint8_t)place;
    b->next = POL_NONE;
    b->prev = l->last;
    if (l->last == POL_NONE)
        l->first = i;
    else
        p->blocks[l->last].next = i;
    l->last = i;
    l->n++;
}

static void list_remove(struct pol *p, uint32_t i)
{
    struct pol_block *b = &p->blocks[i];
    struct pol_list *l = &p->list[b->place];

    if (b->prev == POL_NONE)
        l->first = b->next;
    else
        p->blocks[b->prev].next = b->next;
    if (b->next == POL_NONE)
        l->last = b->prev;
    else
        p->blocks[b->next].prev = b->prev;
    l->n--;
}

int pol_init(struct pol *p, uint32_t nblocks)
{
    uint32_t small = nblocks / 4 < WINDOW_MIN ? nblocks / 4 : WINDOW_MIN;

    *p = (struct pol){.n = nblocks, .latest = POL_NONE, .nghosts = 1, .clock = 1};
    p->window_cap = nblocks / WINDOW_SHARE > small ? nblocks / WINDOW_SHARE : small;
    p->ahead_cap = p->window_cap / 2;
    p->main_cap = nblocks - p->window_cap;
    while (p->nghosts < GHOSTS_EACH * nblocks)
        p->nghosts *= 2;
    p->blocks = calloc(nblocks, sizeof *p->blocks);
    p->ghosts = calloc(p->nghosts, sizeof *p->ghosts);
    if (!p->blocks || !p->ghosts) {
        pol_done(p);
        return -ENOMEM;
    }
    for (int k = 0; k < POL_PLACES; k++)
        p->list[k] = (struct pol_list){POL_NONE, POL_NONE, 0};
    for (uint32_t i = 0; i < nblocks; i++)
        list_add(p, i, POL_FREE);
    p->period_end = p->clock + nblocks;
    return 0;
}

void pol_done(struct pol *p)
{
    free(p->blocks);
    free(p->ghosts);
    p->blocks = NULL;
    p->ghosts = NULL;
}

/* ---- distances ---- */

static uint64_t far_seen(const struct pol *p)
{
    return max_u64(p->far[0], p->far[1]);
}

/* A block is used, the last time at b->last. */
static void note_gap(struct pol *p, struct pol_block *b)
{
    uint64_t gap = p->clock - b->last;

    if (!b->last || gap <= p->window_cap) /* of one use, and no sign of another one */
        return;
    b->gap = b->gaps ? (b->gap + gap) / 2 : gap;
    b->gaps = b->gaps ? 2 : 1;
    p->far[0] = max_u64(p->far[0], gap);
}

static void tick(struct pol *p)
{
    p->clock++;
    if (p->clock < p->period_end)
        return;
    p->far[1] = p->far[0];
    p->far[0] = 0;
    p->period_end = p->clock + max_u64(p->n, p->far[1]);
}

static void move_to(struct pol *p, uint32_t i, enum pol_place place)
{
    list_remove(p, i);
    list_add(p, i, place);
}

void pol_use(struct pol *p, uint32_t i)
{
    struct pol_block *b = &p->blocks[i];

    if (b->place == POL_AHEAD)
        move_to(p, i, POL_WINDOW);
    if (p->latest == i)
        return;
    p->latest = i;
    note_gap(p, b);
    b->last = p->clock;
    tick(p);
    if (b->place == POL_MAIN)
        move_to(p, i, POL_MAIN);
}

/* ---- ghosts ---- */

static struct pol_ghost *ghost_at(struct pol *p, uint64_t key)
{
    return &p->ghosts[(key * 0x9e3779b97f4a7c15ull >> 32) & (p->nghosts - 1)];
}

static void remember(struct pol *p, const struct pol_block *b)
{
    if (b->last)
        *ghost_at(p, b->key) = (struct pol_ghost){b->key, b->last, b->gap, b->gaps};
}

static void recall(struct pol *p, struct pol_block *b)
{
    const struct pol_ghost *g = ghost_at(p, b->key);

    if (g->key != b->key)
        return;
    b->last = g->last;
    b->gap = g->gap;
    b->gaps = g->gaps;
}

/* ---- what goes ---- */

static uint32_t oldest(const struct pol *p, enum pol_place place)
{
    uint32_t i = p->list[place].first;

    while (i != POL_NONE && p->blocks[i].pins)
        i = p->blocks[i].next;
    return i;
}

static bool comes_in(const struct pol *p, const struct pol_block *b, const struct pol_block *old)
{
    uint64_t far = far_seen(p), idle = p->clock - old->last;

    if (idle > (far ? far + far / 2 : (uint64_t)PERIODS_UNSEEN * p->n))
        return true;
    return b->gaps > 1 && b->gap < far / OFTEN;
}

static uint32_t new_ones(const struct pol *p)
{
    return p->list[POL_WINDOW].n + p->list[POL_AHEAD].n;
}

/* While there is room: a little each time, so that no call takes long. */
static void settle(struct pol *p)
{
    for (int k = 0; k < 2; k++) {
        uint32_t w = p->list[POL_WINDOW].first;
        if (w == POL_NONE || new_ones(p) <= p->window_cap || p->list[POL_MAIN].n == p->main_cap || p->blocks[w].pins)
            return;
        move_to(p, w, POL_MAIN);
    }
}

/* Everything in the window is worked with. The main part is not eaten up for that. */
static uint32_t victim_besides(const struct pol *p)
{
    uint32_t a = oldest(p, POL_AHEAD);

    if (a != POL_NONE)
        return a;
    return new_ones(p) < p->n / 2 ? oldest(p, POL_MAIN) : POL_NONE;
}

/* The block that goes, still on its list. */
static uint32_t victim(struct pol *p)
{
    for (;;) {
        uint32_t w = oldest(p, POL_WINDOW), m;
        if (w == POL_NONE)
            return victim_besides(p);
        if (p->list[POL_MAIN].n < p->main_cap) {
            move_to(p, w, POL_MAIN);
            continue;
        }
        m = oldest(p, POL_MAIN);
        if (m == POL_NONE || !comes_in(p, &p->blocks[w], &p->blocks[m]))
            return w;
        move_to(p, w, POL_MAIN);
        return m;
    }
}

void pol_give(struct pol *p, uint32_t i)
{
    if (p->latest == i)
        p->latest = POL_NONE;
    move_to(p, i, POL_FREE);
}

/* There is room ahead, or what is there for long goes. */
static bool room_ahead(struct pol *p, uint32_t *ret_stale)
{
    uint32_t i;

    if (p->list[POL_AHEAD].n < p->ahead_cap)
        return true;
    i = oldest(p, POL_AHEAD);
    if (i == POL_NONE || p->clock - p->blocks[i].born <= (uint64_t)STALE * p->ahead_cap)
        return false;
    *ret_stale = i;
    return true;
}

uint32_t pol_take(struct pol *p, uint64_t key, bool ahead, struct pol_gone *ret)
{
    uint32_t i = POL_NONE;
    struct pol_block *b;

    *ret = (struct pol_gone){0};
    if (ahead && !room_ahead(p, &i))
        return POL_NONE;
    if (i == POL_NONE)
        i = p->list[POL_FREE].first;
    if (i == POL_NONE)
        i = victim(p);
    if (i == POL_NONE)
        return i;
    b = &p->blocks[i];
    if (b->place != POL_FREE) {
        *ret = (struct pol_gone){true, b->place == POL_AHEAD, b->key};
        remember(p, b);
        pol_give(p, i);
    }
    list_remove(p, i);
    *b = (struct pol_block){.pins = 1, .key = key, .born = p->clock};
    list_add(p, i, ahead ? POL_AHEAD : POL_WINDOW);
    recall(p, b);
    if (!ahead)
        pol_use(p, i);
    settle(p);
    return i;
}
