/*
 * Threads of which one at a time is woken: in place of a condition variable where several wait and
 * pthread_cond_signal wakes one. glibc from 2.27 to 2.40 can lose such a signal (its bug 25847): then all sleep on.
 * (Broadcasts, and condition variables with one waiter, are not concerned.)
 *
 * All calls are made with one mutex held, which also guards what is waited for. As with a condition variable, who was
 * woken looks again: another thread may have been faster.
 */
#ifndef BASE_PARK_H
#define BASE_PARK_H

#include "base/list.h"

#include <pthread.h>

struct park {
    struct list sleepers; /* who came last is first, and is woken first: its memory is warm */
};

void park_init(struct park *p);
/* Sleeps, without the mutex, until it is woken. */
void park_sleep(struct park *p, pthread_mutex_t *held);
void park_wake_one(struct park *p); /* if somebody sleeps */
void park_wake_all(struct park *p);

#endif
