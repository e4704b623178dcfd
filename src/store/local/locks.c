/* The namespace lock and the stripes of inode locks: their order is in local.h. */
#include "engine.h"
#include "parts.h"

#include <errno.h>

#define STRIPES   1024u
#define LOCKS_MAX 8

struct locks {
    pthread_mutex_t ns;
    pthread_mutex_t stripe[STRIPES];
};

int locks_open(struct engine *e)
{
    struct locks *l = calloc(1, sizeof *l);
    if (!l)
        return -ENOMEM;
    pthread_mutex_init(&l->ns, NULL);
    for (uint32_t i = 0; i < STRIPES; i++)
        pthread_mutex_init(&l->stripe[i], NULL);
    e->locks = l;
    return 0;
}

void locks_close(struct engine *e)
{
    struct locks *l = e->locks;
    if (!l)
        return;
    pthread_mutex_destroy(&l->ns);
    for (uint32_t i = 0; i < STRIPES; i++)
        pthread_mutex_destroy(&l->stripe[i]);
    free(l);
    e->locks = NULL;
}

static uint32_t stripe_of(uint64_t cont, uint64_t ino)
{
    uint64_t h = (cont * 0x9e3779b97f4a7c15ull ^ ino) * 0xff51afd7ed558ccdull;
    return (uint32_t)(h >> 32) % STRIPES;
}

/* Stripes of the inodes in ascending order, each once; returns how many. */
static int stripes_of(uint64_t cont, const uint64_t *inos, int n, uint32_t ret[LOCKS_MAX])
{
    int k = 0;
    for (int i = 0; i < n && i < LOCKS_MAX; i++) {
        uint32_t s = stripe_of(cont, inos[i]);
        int at = k;
        while (at > 0 && ret[at - 1] > s)
            at--;
        if (at > 0 && ret[at - 1] == s)
            continue;
        for (int j = k; j > at; j--)
            ret[j] = ret[j - 1];
        ret[at] = s;
        k++;
    }
    return k;
}

void eng_lock_ns(struct engine *e)
{
    pthread_mutex_lock(&e->locks->ns);
}

void eng_unlock_ns(struct engine *e)
{
    pthread_mutex_unlock(&e->locks->ns);
}

void eng_lock_inodes(struct engine *e, uint64_t cont, const uint64_t *inos, int n)
{
    uint32_t s[LOCKS_MAX];
    int k = stripes_of(cont, inos, n, s);
    for (int i = 0; i < k; i++)
        pthread_mutex_lock(&e->locks->stripe[s[i]]);
}

void eng_unlock_inodes(struct engine *e, uint64_t cont, const uint64_t *inos, int n)
{
    uint32_t s[LOCKS_MAX];
    int k = stripes_of(cont, inos, n, s);
    while (k--)
        pthread_mutex_unlock(&e->locks->stripe[s[k]]);
}

void eng_lock_inode(struct engine *e, uint64_t cont, uint64_t ino)
{
    eng_lock_inodes(e, cont, &ino, 1);
}

void eng_unlock_inode(struct engine *e, uint64_t cont, uint64_t ino)
{
    eng_unlock_inodes(e, cont, &ino, 1);
}
