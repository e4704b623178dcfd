/* Threads of which one at a time is woken. */
#include "base/park.h"
#include "base/util.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define THREADS 8
#define TURNS   20000u

static struct {
    pthread_mutex_t lock;
    struct park park;
    uint32_t asleep, awake; /* threads of the first test: that went to sleep, that were woken */
    int order[THREADS];
    uint32_t left, taken[THREADS]; /* of the second one: tokens */
    bool ended;
} t = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *sleep_once(void *arg)
{
    scoped_lock(&t.lock);
    t.asleep++;
    park_sleep(&t.park, &t.lock);
    t.order[t.awake++] = (int)(intptr_t)arg;
    return NULL;
}

static uint32_t look(const uint32_t *counter)
{
    scoped_lock(&t.lock);
    return *counter;
}

/* It does not pass n. */
static void until(const uint32_t *counter, uint32_t n)
{
    uint32_t now;

    while ((now = look(counter)) < n)
        sched_yield();
    assert_int_equal(now, n);
}

static void wake(void (*how)(struct park *p))
{
    scoped_lock(&t.lock);
    how(&t.park);
}

static void who_came_last_is_woken_first_and_alone(void **state)
{
    pthread_t id[THREADS];
    (void)state;

    park_init(&t.park);
    wake(park_wake_one); /* nobody: nothing is kept for later */
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&id[i], NULL, sleep_once, (void *)(intptr_t)i), 0);
        until(&t.asleep, i + 1);
    }
    until(&t.awake, 0);
    for (uint32_t i = 1; i <= 3; i++) {
        wake(park_wake_one);
        until(&t.awake, i);
        assert_int_equal(t.order[i - 1], THREADS - (int)i);
    }
    wake(park_wake_all);
    until(&t.awake, THREADS);
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(id[i], NULL);
}

static void *take(void *arg)
{
    uint32_t *mine = &t.taken[(intptr_t)arg];

    scoped_lock(&t.lock);
    for (;;) {
        while (!t.left && !t.ended)
            park_sleep(&t.park, &t.lock);
        if (!t.left)
            return NULL;
        t.left--;
        ++*mine;
        if (*mine % 3)
            continue;
        pthread_mutex_unlock(&t.lock);
        sched_yield();
        pthread_mutex_lock(&t.lock);
    }
}

/* Each is told once of one thing; if one of them were not told, things would be left. */
static void nobody_sleeps_on_while_there_is_something_for_him(void **state)
{
    pthread_t id[THREADS];
    uint32_t sum = 0;
    (void)state;

    park_init(&t.park);
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&id[i], NULL, take, (void *)(intptr_t)i), 0);
    for (uint32_t i = 0; i < TURNS; i++) {
        pthread_mutex_lock(&t.lock);
        t.left++;
        park_wake_one(&t.park);
        pthread_mutex_unlock(&t.lock);
        while (i % 7 == 0 && look(&t.left))
            sched_yield();
    }
    pthread_mutex_lock(&t.lock);
    t.ended = true;
    park_wake_all(&t.park);
    pthread_mutex_unlock(&t.lock);
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(id[i], NULL);
        sum += t.taken[i];
    }
    assert_int_equal(sum, TURNS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_came_last_is_woken_first_and_alone),
        cmocka_unit_test(nobody_sleeps_on_while_there_is_something_for_him),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
