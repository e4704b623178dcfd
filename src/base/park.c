#include "base/park.h"

#include <errno.h>
#include <semaphore.h>

struct sleeper {
    struct list link; /* park.sleepers */
    sem_t woken;
};

void park_init(struct park *p)
{
    list_init(&p->sleepers);
}

void park_sleep(struct park *p, pthread_mutex_t *held)
{
    struct sleeper s;

    sem_init(&s.woken, 0, 0);
    list_push_front(&p->sleepers, &s.link);
    pthread_mutex_unlock(held);
    while (sem_wait(&s.woken) < 0 && errno == EINTR)
        ;
    pthread_mutex_lock(held); /* only now the waker is done with the semaphore */
    sem_destroy(&s.woken);
}

void park_wake_one(struct park *p)
{
    struct list *l = list_pop_front(&p->sleepers);

    if (l)
        sem_post(&list_entry(l, struct sleeper, link)->woken);
}

void park_wake_all(struct park *p)
{
    while (!list_empty(&p->sleepers))
        park_wake_one(p);
}
