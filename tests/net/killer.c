#include "killer.h"

#include "remote_case.h"

static void *kill_them(void *arg)
{
    struct killer *k = arg;

    for (int i = 0; i < k->rounds; i++) {
        int before = atomic_load(&k->done);
        while (atomic_load(&k->done) < before + 3 && !atomic_load(&k->leave))
            nap(5);
        nap((int)rng_below(&k->r, 60));
        if (k->backend_too && i % 3 == 2) {
            k->failed |= daemon_backend_stop(k->d) != 0;
            k->failed |= !daemon_backend_again(k->d);
        } else {
            daemon_kill(k->d);
            k->failed |= !daemon_again(k->d);
        }
    }
    atomic_store(&k->over, true);
    return NULL;
}

void killer_start(struct killer *k)
{
    rng_seed(&k->r, seed);
    k->failed |= pthread_create(&k->thread, NULL, kill_them, k) != 0;
}

void killer_tick(struct killer *k)
{
    atomic_fetch_add(&k->done, 1);
}

bool killer_over(struct killer *k)
{
    return atomic_load(&k->over);
}

bool killer_end(struct killer *k)
{
    atomic_store(&k->leave, true);
    pthread_join(k->thread, NULL);
    return !atomic_load(&k->failed);
}
