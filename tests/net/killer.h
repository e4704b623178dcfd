/*
 * Ends a daemon at random moments under the calls of a test, and starts it again. The calls are the test's own
 * thread's, which may fail the test.
 */
#ifndef TESTS_KILLER_H
#define TESTS_KILLER_H

#include "base/rng.h"
#include "daemon.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct killer {
    struct daemon *d;
    int rounds;
    bool backend_too;     /* each third round stops the server behind the agent instead, in order */
    _Atomic int done;     /* what the test has done: a few between two rounds */
    _Atomic bool over, failed, leave;
    struct rng r;
    pthread_t thread;
};

/* d, rounds and backend_too are set. */
void killer_start(struct killer *k);
/* One more call of the test is done. */
void killer_tick(struct killer *k);
/* All rounds are over. */
bool killer_over(struct killer *k);
/* After all rounds. False: a daemon did not come up again. */
bool killer_end(struct killer *k);

#endif
